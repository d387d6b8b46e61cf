//! Calico's nodes taken over under traffic, and given back to a real BIRD: not one datagram is lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use caracal_lab::process::Running;
use caracal_lab::{Lab, error_chain, program, wait_until};
use caracal_tests::calico::{batch, dress, forget, index, with_protocol};
use caracal_tests::loss::Probes;
use caracal_tests::{SECOND, assert_full_matrix, await_settled, caracals, possible, up};

/// Within each rack, and across.
const PAIRS: [(&str, &str); 4] = [
    ("node1/p1", "node2/p1"),
    ("node3/p1", "node4/p1"),
    ("node1/p1", "node3/p1"),
    ("node4/p1", "node2/p1"),
];
/// A block that the cluster gave back while BIRD still had its route.
const STALE: &str = "10.244.240.0/26";
/// A route of another BIRD of the host's.
const ANOTHER_BIRDS: &str = "192.0.2.0/24";

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

/// Four nodes in two racks, host-gw within and VXLAN across, without Caracal's process and with Calico's routes.
fn calicos_cluster(name: &str) -> Lab {
    let mut lab = up("cross-subnet", name);
    await_settled(&lab);
    assert_full_matrix(&lab);
    let nodes = caracals(&lab);
    for node in &nodes {
        lab.stop_node(node).unwrap();
    }
    for node in &nodes {
        dress(&lab, node);
    }
    forget(&lab);
    batch(
        &lab,
        "node1",
        &[
            format!("route add {STALE} via 10.0.1.12 dev eth0 proto bird"),
            format!("route add {ANOTHER_BIRDS} via 10.0.1.12 dev eth0 proto bird"),
        ],
    );
    assert_full_matrix(&lab);
    lab
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
    assert_eq!(fate("node", "node1"), ["adopted"]);
    assert_eq!(fate("device", "vxlan.calico"), ["adopted"]);
    assert_eq!(fate("workload", "cali"), ["adopted"]);
    assert_eq!(fate("fdb", ""), ["adopted"; 3]);
    assert_eq!(fate("neighbour", ""), ["adopted"; 3]);
    assert_eq!(fate("route", STALE), ["removed"]);
    assert_eq!(fate("route", ANOTHER_BIRDS), ["left"]);
    let mut routes: BTreeMap<&str, usize> = BTreeMap::new();
    for fate in fate("route", "10.244.") {
        *routes.entry(fate).or_default() += 1;
    }
    // Own blackhole, own pod, one node of the rack, two across.
    assert_eq!(routes, BTreeMap::from([("removed", 1), ("replaced", 5)]));
    assert!(items.iter().all(|(.., reason)| !reason.is_empty()));
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
        let left = match node.as_str() {
            "node1" => vec![ANOTHER_BIRDS.to_owned()],
            _ => Vec::new(),
        };
        let what = "five routes of ours, and none of Calico's BIRD and Felix";
        wait_until(60 * SECOND, what, || {
            let birds = with_protocol(lab, node, "bird");
            let mut felixes = with_protocol(lab, node, "boot");
            felixes.retain(|dst| dst.starts_with("10.244."));
            let ours = with_protocol(lab, node, "80");
            if birds == left && felixes.is_empty() && ours.len() == 5 {
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
    if !possible(name, &["bird", "birdc"]) {
        return;
    }
    let mut lab = calicos_cluster("mig-xs");
    assert_plan(&lab);
    let devices: Vec<String> = caracals(&lab)
        .iter()
        .map(|n| index(&lab, n, "vxlan.calico"))
        .collect();

    let probes = Probes::start(&lab, &PAIRS);
    probes.after(500);
    take_over(&mut lab, &probes);
    probes.assert_none_lost("four nodes of Calico's taken over");
    let now: Vec<String> = caracals(&lab)
        .iter()
        .map(|n| index(&lab, n, "vxlan.calico"))
        .collect();
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
        let handed: Vec<String> = with_protocol(lab, node, "bird")
            .into_iter()
            .filter(|dst| dst != ANOTHER_BIRDS)
            .collect();
        assert_eq!(handed.len(), 2, "{node}: {handed:?}");
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
            if up != nodes.len() - 1 || status.contains("Graceful restart") {
                return Err(format!("{node}: {up} sessions\n{sessions}\n{status}"));
            }
            let routes = with_protocol(lab, node, "bird");
            let in_pool = routes
                .iter()
                .filter(|dst| dst.starts_with("10.244."))
                .count();
            // Own blackhole and the rack's other block at least.
            if in_pool >= 2 {
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
    let mut bird = program::command("bird").unwrap();
    bird.args(["-f", "-R", "-c"]).arg(run.join("bird.conf"));
    bird.arg("-s").arg(run.join("bird.ctl"));
    let log = lab.folder().log(&format!("{node}-bird"));
    Running::start(&lab.netns(node).unwrap(), &mut bird, &log).unwrap()
}
