//! `caracal flannel show`: the network, the leases of all nodes, and what this node's kernel has of
//! them.

use std::process::ExitCode;

use caracal_agent::{Actual, Desired};
use caracal_flannel::{Backend, KnownLease, NodeSubnets};
use caracal_model::{Family, Prefix, format_mac};
use serde_json::{Value, json};

use super::facts::Facts;
use super::line::ShowArgs;
use crate::cli::duration;
use crate::exit::DEGRADED;

/// Prints; what is wrong makes the exit code 4.
pub(super) async fn run(line: &ShowArgs) -> anyhow::Result<ExitCode> {
    let facts = Facts::read(&line.args).await?;
    let desired = facts.desired(&line.args);
    let mut problems = missing(&facts, desired.as_ref().ok());
    if let Err(reason) = &facts.config {
        problems.push(format!("{}: {reason}", facts.place));
    }
    if desired.is_err() {
        let unreadable = facts.table.unreadable().iter();
        problems.extend(unreadable.map(|(key, reason)| format!("{key}: {reason}")));
    }
    // Of a machine that is no node of the network there is nothing to say.
    if let (Ok(_), Some(_), Err(reason)) = (&facts.config, facts.own(), &desired) {
        problems.push(reason.clone());
    }
    let leases = facts.table.iter();
    let leases: Vec<Value> = leases.map(|(s, k)| lease(&facts, s, k)).collect();
    let value = json!({
        "network": network(&facts), "leases": leases, "node": node(&facts), "problems": problems,
    });
    match line.output.output.is_data() {
        true => line.output.output.print(&value),
        false => show(line, &value),
    }
    Ok(match problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(DEGRADED),
    })
}

fn network(facts: &Facts) -> Value {
    let Ok(config) = &facts.config else {
        return Value::Null;
    };
    let range = |family| {
        let range = config.range(family)?;
        Some(json!({"network": range.network, "subnetLength": range.len}))
    };
    json!({
        "configuration": facts.place,
        "ipv4": range(Family::Ipv4), "ipv6": range(Family::Ipv6),
        "backend": backend(&config.backend),
    })
}

/// A backend with its options, in flannel's words.
fn backend(backend: &Backend) -> Value {
    let mut value = match backend {
        Backend::Vxlan(options) => json!({
            "VNI": options.vni, "Port": options.port, "MTU": options.mtu,
            "DirectRouting": options.direct_routing,
        }),
        Backend::Ipip { direct_routing } => json!({"DirectRouting": direct_routing}),
        Backend::Udp { port } => json!({"Port": port}),
        Backend::HostGw | Backend::Alloc => json!({}),
    };
    value["Type"] = match backend {
        Backend::Alloc => json!("alloc"),
        Backend::Udp { .. } => json!("udp"),
        other => json!(other.lease_type()),
    };
    value
}

/// A lease as JSON; the table has its columns from it.
fn lease(facts: &Facts, subnets: &NodeSubnets, known: &KnownLease) -> Value {
    let lease = &known.lease;
    let mine = facts.own().is_some_and(|(own, _)| own == subnets);
    let route = |prefix: Prefix| {
        let to = |r: &&caracal_agent::ActualRoute| r.prefix == prefix;
        let found = facts.actual.all_routes().find(to);
        found.and_then(|r| Some(r.known()?.target.to_string()))
    };
    let mut families = [Family::Ipv4, Family::Ipv6].into_iter();
    let vtep = families.find_map(|family| lease.vtep(family));
    json!({
        "subnet": subnets.v4, "ipv6Subnet": subnets.v6,
        "publicIP": lease.public_ip, "publicIPv6": lease.public_ipv6,
        "backend": match &*lease.backend_type { "" => "udp", other => other },
        "vni": vtep.and_then(|v| v.vni), "port": vtep.and_then(|v| v.port),
        "mac": vtep.map(|v| format_mac(&v.mac)),
        "expiresSeconds": facts.left.get(subnets).map(std::time::Duration::as_secs),
        "mine": mine,
        "route": if mine { None } else { subnets.iter().next().and_then(route) },
    })
}

/// This node, as its file and its devices say.
fn node(facts: &Facts) -> Value {
    let env = match &facts.env {
        Ok(env) => json!({
            "subnets": env.subnets().collect::<Vec<_>>(), "mtu": env.mtu,
            "masquerades": env.masquerades,
        }),
        Err(reason) => json!({"unreadable": reason}),
    };
    let links = facts.actual.links.iter();
    let devices = links.filter(|link| link.name.as_str().starts_with("flannel"));
    let device = |link: &caracal_agent::Link| {
        let addresses: Vec<String> = link.addresses.iter().map(ToString::to_string).collect();
        json!({
            "name": link.name.as_str(), "kind": link.kind, "mtu": link.mtu, "up": link.up,
            "mac": link.mac.map(|mac| format_mac(&mac)), "addresses": addresses,
        })
    };
    json!({"subnetEnv": env, "devices": devices.map(device).collect::<Vec<_>>()})
}

/// What the daemon would have in this kernel, and is not there.
fn missing(facts: &Facts, desired: Option<&Desired>) -> Vec<String> {
    let Some(desired) = desired else {
        return Vec::new();
    };
    let actual: &Actual = &facts.actual;
    let mut all: Vec<String> = desired
        .problems
        .iter()
        .map(|problem| format!("{}: {}", problem.subject, problem.reason))
        .collect();
    for name in desired.tunnels.keys() {
        if actual.links.by_name(name.as_str()).is_none() {
            all.push(format!("device {name} is missing"));
        }
    }
    for (prefix, planned) in &desired.routes {
        let wanted = &planned.route.target;
        let leads = |r: &caracal_agent::ActualRoute| {
            r.prefix == *prefix && r.known().is_some_and(|known| known.target == *wanted)
        };
        if !actual.all_routes().any(leads) {
            all.push(format!("route {prefix} {wanted} is missing"));
        }
    }
    for (key, mac) in &desired.neighbours {
        if actual.neighbours.get(key).and_then(|n| n.mac) != Some(*mac) {
            let mac = format_mac(mac);
            all.push(format!("neighbour {key} lladdr {mac} is missing"));
        }
    }
    for (key, node) in &desired.fdb {
        if actual.fdb.get(key) != Some(node) {
            all.push(format!("FDB entry {key} dst {node} is missing"));
        }
    }
    all
}

fn show(line: &ShowArgs, value: &Value) {
    let output = line.output.output;
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let network = &value["network"];
    if !network.is_null() {
        let mut ranges = vec![&network["ipv4"], &network["ipv6"]];
        ranges.retain(|range| !range.is_null());
        let each = ranges
            .into_iter()
            .map(|r| format!("{} in /{}", text(&r["network"]), r["subnetLength"]));
        let ranges = each.collect::<Vec<_>>().join(", ");
        println!("network {ranges}, backend {}\n", network["backend"]);
    }
    let mut rows = output.table(&[
        "SUBNET", "NODE", "BACKEND", "VNI", "MAC", "EXPIRES", "ROUTE",
    ]);
    for lease in value["leases"].as_array().into_iter().flatten() {
        let both = |v4: &str, v6: &str| match (&lease[v4], &lease[v6]) {
            (only, Value::Null) | (Value::Null, only) => text(only),
            (first, second) => format!("{} {}", text(first), text(second)),
        };
        rows.add_row([
            both("subnet", "ipv6Subnet"),
            both("publicIP", "publicIPv6"),
            text(&lease["backend"]),
            text(&lease["vni"]),
            text(&lease["mac"]),
            match lease["expiresSeconds"].as_u64() {
                Some(seconds) => duration(seconds),
                None => "never".to_owned(),
            },
            match lease["mine"] == true {
                true => "this node".to_owned(),
                false => text(&lease["route"]),
            },
        ]);
    }
    println!("{rows}\n");
    let node = &value["node"];
    println!("subnet.env: {}", node["subnetEnv"]);
    for device in node["devices"].as_array().into_iter().flatten() {
        println!("device: {device}");
    }
    for problem in value["problems"].as_array().into_iter().flatten() {
        println!("problem: {}", text(problem));
    }
}
