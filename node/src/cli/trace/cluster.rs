//! The way of packets through a cluster, node by node: each is asked over its console what its
//! kernel does with the destination, and the answer says who is asked next. Nothing is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_model::{Family, KeyRange, Kind, Node, Prefix, kind_prefix};
use serde_json::{Value, json};

use crate::admin::{self, Request};
use crate::args::Output;
use crate::cli::whom::{Other, on_one_thread};
use crate::cli::{open_store, run_dir};
use crate::exit::{DEGRADED, not_found};
use crate::node::answers::explain::Explained;
use crate::others::value_path;

/// Nodes that have the addresses to which routes lead: their own, and those of their tunnels.
type Gateways = BTreeMap<IpAddr, String>;

/// What a node does with the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// It is there.
    Arrives(String),
    /// It goes where no node of ours is asked.
    Leaves(String),
    /// It goes to this node next.
    Next { node: String, by: String },
    /// It ends here.
    Broken(String),
}

/// Follows packets from a node (or from a pod: NODE/POD) to an address.
pub(super) fn run(from: &str, to: IpAddr, output: Output) -> anyhow::Result<ExitCode> {
    let node = from.split('/').next().unwrap_or(from);
    let way = on_one_thread(Box::pin(follow(node, Prefix::host(to))))?;
    if output.is_data() {
        output.print(&way);
    } else {
        print(to, &way);
    }
    Ok(match way["broken"] == true {
        true => ExitCode::from(DEGRADED),
        false => ExitCode::SUCCESS,
    })
}

fn print(to: IpAddr, way: &Value) {
    let text = |value: &Value, otherwise: &str| {
        let text = value.as_str().unwrap_or(otherwise);
        text.to_owned()
    };
    println!("From node {} to {to}:", text(&way["from"], ""));
    for hop in way["hops"].as_array().into_iter().flatten() {
        let mode = hop["mode"].as_str().map(|mode| format!(" ({mode})"));
        let route = text(&hop["route"], "no route");
        let node = text(&hop["node"], "");
        println!("  {node}: {route}{}", mode.unwrap_or_default());
        println!("    {}", text(&hop["then"], ""));
    }
}

async fn follow(from: &str, destination: Prefix) -> anyhow::Result<Value> {
    let store = open_store()?;
    let gateways = gateways(&store).await?;
    // The node that runs here is asked without a console.
    let request = Request::ExplainPath {
        prefix: destination,
    };
    let here = admin::ask(&run_dir(), &request);
    let here = here
        .ok()
        .and_then(|value| serde_json::from_value(value).ok());
    let (mut hops, mut is_broken) = (Vec::new(), false);
    let (mut node, mut been) = (from.to_owned(), BTreeSet::new());
    loop {
        let explained = match &here {
            Some(own) if is_of(own, &node) => own.clone(),
            _ => explained(&store, &node, &request).await?,
        };
        been.insert(node.clone());
        let step = match step(&explained, &gateways) {
            Step::Next { node, by } if been.contains(&node) => Step::Broken(format!(
                "{by} back to node {node}: packets go round in circles"
            )),
            step => step,
        };
        let (then, next) = match step {
            Step::Arrives(text) | Step::Leaves(text) => (text, None),
            Step::Broken(text) => {
                is_broken = true;
                (text, None)
            }
            Step::Next { node, by } => (format!("{by} to node {node}"), Some(node)),
        };
        hops.push(json!({
            "node": explained.node,
            "route": explained.kernel.map(|kernel| kernel.route),
            "mode": explained.mode,
            "then": then,
        }));
        match next {
            Some(next) => node = next,
            None => break,
        }
    }
    Ok(json!({
        "from": from,
        "destination": destination,
        "hops": hops,
        "broken": is_broken,
    }))
}

fn is_of(explained: &Explained, node: &str) -> bool {
    explained.node == node
}

async fn explained(store: &Datastore, node: &str, request: &Request) -> anyhow::Result<Explained> {
    let (path, _) = value_path(request).context("a question of consoles")?;
    let value = Other::find(store, node).await?.value(&path).await?;
    Ok(serde_json::from_value(value)?)
}

/// The addresses of all nodes.
async fn gateways(store: &Datastore) -> anyhow::Result<Gateways> {
    let prefix = kind_prefix(Kind::Node);
    let answer = store.read(&[KeyRange::Prefix(prefix.clone())]).await;
    let answer = answer.context(store.advice())?;
    let mut gateways = Gateways::new();
    for stored in answer.ranges.into_iter().flatten() {
        let Some(name) = stored.key.strip_prefix(&prefix) else {
            continue;
        };
        // One that cannot be read is no way; `caracal status` says so.
        let Ok(node) = Node::from_json(&stored.value) else {
            continue;
        };
        let spec = &node.spec;
        for family in [Family::Ipv4, Family::Ipv6] {
            let of_family = [spec.address(family), spec.vxlan_address(family)];
            gateways.extend(
                of_family
                    .into_iter()
                    .flatten()
                    .map(|a| (a, name.to_owned())),
            );
        }
        let of_tunnel = spec.ipip_address().map(IpAddr::from);
        gateways.extend(of_tunnel.map(|address| (address, name.to_owned())));
    }
    if gateways.is_empty() {
        return Err(not_found("the datastore has no nodes with addresses"));
    }
    Ok(gateways)
}

/// What follows from what a node says. A router between two nodes is none that can be asked: the
/// way goes on at the node that has the destination's block.
fn step(explained: &Explained, gateways: &Gateways) -> Step {
    // An address of the node itself needs no route.
    if explained.mode.as_deref() == Some("local") && explained.kernel.is_none() {
        return Step::Arrives(format!("it is there: {}", explained.source));
    }
    let Some(kernel) = &explained.kernel else {
        let why = explained.skipped.as_deref().unwrap_or(&explained.source);
        return Step::Broken(format!("its kernel has no route: {why}"));
    };
    if let Some(down) = kernel.devices.iter().find(|device| !device.up) {
        return Step::Broken(format!("{} is down", down.name));
    }
    match explained.mode.as_deref() {
        Some("local") => {
            let owner = explained.owner.as_deref().unwrap_or(&explained.source);
            return Step::Arrives(format!("it is there: {owner}"));
        }
        Some("blackhole") => return Step::Broken(explained.source.clone()),
        _ => {}
    }
    let Some(device) = kernel.devices.first() else {
        return Step::Broken(format!("its kernel drops it: {}", kernel.route));
    };
    let others = match kernel.devices.len() {
        1 => String::new(),
        n => format!(" (the first of {n} ways)"),
    };
    let Some(gateway) = device.gateway else {
        return Step::Leaves(format!("it is on the link of {}{others}", device.name));
    };
    let by = format!("by {gateway} on {}{others}", device.name);
    if let Some(node) = gateways.get(&gateway) {
        return Step::Next {
            node: node.clone(),
            by,
        };
    }
    let block = explained.block.as_ref();
    let owner = block.and_then(|block| block.affinity.as_deref()?.strip_prefix("host:"));
    match owner {
        Some(node) if node != explained.node => Step::Next {
            node: node.to_owned(),
            by: format!("{by}, a router,"),
        },
        _ => Step::Leaves(format!("{by}, which is no node")),
    }
}

#[cfg(test)]
mod tests;
