//! Calico's nodes taken over under traffic, and given back to a real BIRD: not one datagram is
//! lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use caracal_lab::{Lab, RunningProcess as Running, error_chain, program_command, wait_until};
use caracal_model::Family;
use caracal_tests::{
    Probes, SECOND, address_of, assert_full_matrix, await_settled, caracals, device_index, either,
    hand_routes_to_calico, ip, is_kubernetes, on_each_stack_and_datastore, remove_liveness_leases,
    routes_with_protocol,
};

/// Within each rack, and across.
const PAIRS: [(&str, &str); 4] = [
    ("node1/p1", "node2/p1"),
    ("node3/p1", "node4/p1"),
    ("node1/p1", "node3/p1"),
    ("node4/p1", "node2/p1"),
];
/// A block that the cluster gave back while BIRD still had its route.
const fn stale(family: Family) -> &'static str {
    either(family, "10.244.240.0/26", "fd00:10:244:0:240::/122")
}

/// A route of another BIRD of the host's.
const fn another_birds(family: Family) -> &'static str {
    either(family, "192.0.2.0/24", "2001:db8:77::/64")
}

/// Prefix of all pods' addresses.
const fn pods(family: Family) -> &'static str {
    either(family, "10.244.", "fd00:10:244:")
}

/// Own blackhole, own pod, one node of the rack, two across; and each of these two's VTEP with
/// IPv6.
const fn routes(family: Family) -> usize {
    either(family, 5, 7)
}

/// Of all families of a lab together.
fn all<T: std::iter::Sum>(lab: &Lab, of: impl Fn(Family) -> T) -> T {
    lab.topology().families().into_iter().map(of).sum()
}

fn is_pods(dst: &str) -> bool {
    dst.starts_with(pods(Family::Ipv4)) || dst.starts_with(pods(Family::Ipv6))
}

fn tunnels(lab: &Lab) -> Vec<&'static str> {
    let device = |family| either(family, "vxlan.calico", "vxlan-v6.calico");
    lab.topology().families().into_iter().map(device).collect()
}

/// The indices of all tunnel devices.
fn indices(lab: &Lab) -> Vec<String> {
    let of = |node: &String| {
        let devices = tunnels(lab).into_iter();
        devices
            .map(|device| device_index(lab, node, device))
            .collect::<Vec<_>>()
    };
    caracals(lab).iter().flat_map(of).collect()
}

/// `caracal migrate plan` as JSON: object → (fate, reason).
fn plan(lab: &Lab, node: &str) -> Vec<(String, String, String, String)> {
    let text = lab
        .caracal(node, &["migrate", "plan", "-o", "json"])
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = |item: &serde_json::Value, key: &str| item[key].as_str().unwrap().to_owned();
    let items = value["items"].as_array().unwrap().iter();
    items
        .map(|i| {
            (
                text(i, "kind"),
                text(i, "object"),
                text(i, "fate"),
                text(i, "reason"),
            )
        })
        .collect()
}

/// Four nodes in two racks, host-gw within and VXLAN across, without Caracal's process and with
/// Calico's routes.
fn make_calicos(lab: &mut Lab) {
    await_settled(lab);
    assert_full_matrix(lab);
    let nodes = caracals(lab);
    for node in &nodes {
        lab.stop_node(node).unwrap();
    }
    for node in &nodes {
        hand_routes_to_calico(lab, node);
    }
    remove_liveness_leases(lab);
    for family in lab.topology().families() {
        let via = address_of(lab, "node2", family);
        let routes = [stale(family), another_birds(family)];
        let lines = routes.map(|dst| format!("route add {dst} via {via} dev eth0 proto bird"));
        ip(lab, "node1", &lines);
    }
    assert_full_matrix(lab);
}

fn assert_plan(lab: &Lab) {
    let items = plan(lab, "node1");
    for item in &items {
        println!("{item:?}");
    }
    let fate = |kind: &str, start: &str| -> Vec<&str> {
        let of = items
            .iter()
            .filter(|(k, o, ..)| k == kind && o.starts_with(start));
        of.map(|(_, _, fate, _)| fate.as_str()).collect()
    };
    let store = if is_kubernetes(lab) {
        "Kubernetes' API https://"
    } else {
        "etcd http://"
    };
    assert_eq!(fate("datastore", store), ["adopted"]);
    assert_eq!(fate("node", "node1"), ["adopted"]);
    assert_eq!(fate("workload", "cali"), ["adopted"]);
    for device in tunnels(lab) {
        assert_eq!(fate("device", device), ["adopted"]);
    }
    let others = vec!["adopted"; all(lab, |_| 3)];
    assert_eq!(fate("fdb", ""), others);
    assert_eq!(fate("neighbour", ""), others);
    for family in lab.topology().families() {
        assert_eq!(fate("route", stale(family)), ["removed"]);
        assert_eq!(fate("route", another_birds(family)), ["left"]);
        let mut fates: BTreeMap<&str, usize> = BTreeMap::new();
        for fate in fate("route", pods(family)) {
            *fates.entry(fate).or_default() += 1;
        }
        let wanted = [("removed", 1), ("replaced", routes(family))];
        assert_eq!(fates, BTreeMap::from(wanted));
    }
    assert!(items.iter().all(|(.., reason)| !reason.is_empty()));
}

fn all_another_birds(lab: &Lab) -> Vec<String> {
    let families = lab.topology().families().into_iter();
    families.map(|f| another_birds(f).to_owned()).collect()
}

/// Takes every node over; the kernels show what became of each route.
fn take_over(lab: &mut Lab, probes: &Probes) {
    let nodes = caracals(lab);
    for node in &nodes {
        lab.restart_node(node).unwrap();
        probes.after(500);
    }
    await_settled(lab);
    for node in &nodes {
        let mut left = match node.as_str() {
            "node1" => all_another_birds(lab),
            _ => Vec::new(),
        };
        left.sort();
        let what = "all routes ours, and none of Calico's BIRD and Felix";
        wait_until(60 * SECOND, what, || {
            let birds = routes_with_protocol(lab, node, "bird");
            let mut felixes = routes_with_protocol(lab, node, "boot");
            felixes.retain(|dst| is_pods(dst));
            let ours = routes_with_protocol(lab, node, "80");
            if birds == left && felixes.is_empty() && ours.len() == all(lab, routes) {
                Ok(())
            } else {
                Err(format!("{node}: {birds:?} {felixes:?} {ours:?}"))
            }
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(node, 60)));
    }
    probes.after(1000);
}

#[test]
fn calicos_nodes_are_taken_over_and_given_back_without_a_lost_packet() {
    let name = "calicos_nodes_are_taken_over_and_given_back_without_a_lost_packet";
    let programs = ["bird", "birdc"];
    on_each_stack_and_datastore(name, &programs, "cross-subnet", "mig-xs", over_and_back);
}

fn over_and_back(mut lab: Lab) {
    make_calicos(&mut lab);
    assert_plan(&lab);
    let devices = indices(&lab);

    let probes = Probes::start(&lab, &PAIRS);
    probes.after(500);
    take_over(&mut lab, &probes);
    probes.assert_none_lost("four nodes of Calico's taken over");
    let now = indices(&lab);
    assert_eq!(devices, now, "a tunnel device was made anew");
    assert_full_matrix(&lab);

    let probes = Probes::start(&lab, &PAIRS);
    probes.after(500);
    let birds = give_back(&mut lab, &probes);
    probes.assert_none_lost("four nodes given back to BIRD");
    drop(birds);
}

/// Hands every node to a real BIRD, started as calico-node starts it.
fn give_back(lab: &mut Lab, probes: &Probes) -> Vec<Running> {
    let nodes = caracals(lab);
    let mut birds = Vec::new();
    for node in &nodes {
        let config = lab
            .caracal(node, &["render", "--node", node, "--style", "bird2"])
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        let path = lab.folder().run(node).join("bird.conf");
        lab.folder().write(&path, &config).unwrap();
    }
    for node in &nodes {
        lab.stop_node(node).unwrap();
        let dry = lab
            .caracal(node, &["migrate", "back", "--dry-run"])
            .unwrap();
        assert!(dry.lines().all(|line| line.starts_with("would ")), "{dry}");
        let done = lab.caracal(node, &["migrate", "back"]).unwrap();
        assert_eq!(dry.replace("would ", ""), done);
        // Own blackhole, and the other node of the rack; the ways across are Felix's.
        let handed: Vec<String> = routes_with_protocol(lab, node, "bird")
            .into_iter()
            .filter(|dst| !all_another_birds(lab).contains(dst))
            .collect();
        assert_eq!(handed.len(), all(lab, |_| 2), "{node}: {handed:?}");
        probes.after(300);
        birds.push(start_bird(lab, node));
        probes.after(300);
    }
    for node in &nodes {
        wait_until(120 * SECOND, "BIRD's sessions and routes", || {
            let sessions = lab
                .birdc(node, &["show", "protocols"])
                .map_err(|e| e.to_string())?;
            let up = sessions.matches("Established").count();
            let status = lab
                .birdc(node, &["show", "status"])
                .map_err(|e| e.to_string())?;
            if up != all(lab, |_| nodes.len() - 1) || status.contains("Graceful restart") {
                return Err(format!("{node}: {up} sessions\n{sessions}\n{status}"));
            }
            let routes = routes_with_protocol(lab, node, "bird");
            let in_pool = routes.iter().filter(|dst| is_pods(dst)).count();
            // Own blackhole and the rack's other block at least.
            if in_pool >= all(lab, |_| 2) {
                Ok(())
            } else {
                Err(format!("{node}: {routes:?}"))
            }
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }
    probes.after(1000);
    birds
}

/// `-R`: BIRD keeps the kernel's routes until its peers have told theirs, as in calico-node.
fn start_bird(lab: &Lab, node: &str) -> Running {
    let run = lab.folder().run(node);
    let mut bird = program_command("bird").unwrap();
    bird.args(["-f", "-R", "-c"]).arg(run.join("bird.conf"));
    bird.arg("-s").arg(run.join("bird.ctl"));
    let log = lab.folder().log(&format!("{node}-bird"));
    Running::start(&lab.netns(node).unwrap(), &mut bird, &log).unwrap()
}
