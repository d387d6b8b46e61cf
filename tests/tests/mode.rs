//! The commands that change how a cluster's traffic travels, and the one that takes the agent's work away.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsString;

use caracal_lab::ip::RouteKind;
use caracal_lab::{Extent, Lab, LabName, Options, Topology, netns, program, wait_for};
use caracal_tests::loss::{Probes, count};
use caracal_tests::{
    SECOND, assert_full_matrix, await_settled, await_status, binary, caracals, example, possible,
    settled, up,
};

const POOL: &str = "default-ipv4-ippool";

/// Exit status of `caracal ARGUMENTS…` in the namespace of a node.
fn caracal(lab: &Lab, node: &str, arguments: &[&str]) -> i32 {
    let mut words: Vec<OsString> = vec!["caracal".into()];
    words.extend(arguments.iter().map(Into::into));
    lab.exec(node, &words).unwrap()
}

fn modes(lab: &Lab) -> String {
    let key = format!("/calico/resources/v3/projectcalico.org/ippools/{POOL}");
    let text = lab.etcdctl(&["get", &key, "--print-value-only"], b"");
    let pool: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    let mode = |name: &str| pool["spec"][name].as_str().unwrap_or("Never").to_owned();
    format!("{} {}", mode("ipipMode"), mode("vxlanMode"))
}

#[test]
fn a_mode_is_planned_applied_and_rolled_back() {
    if !possible("a_mode_is_planned_applied_and_rolled_back", &[]) {
        return;
    }
    let lab = up("full-mesh", "mode-apply");
    await_settled(&lab);
    assert_full_matrix(&lab);
    let nodes = caracals(&lab);
    let run_dirs: Vec<String> = nodes
        .iter()
        .map(|n| format!("--run-dir={}", lab.folder().run(n).display()))
        .collect();
    let apply = |vxlan: &str, timeout: &str| {
        let mut words = vec![
            "mode",
            "apply",
            POOL,
            "--vxlan",
            vxlan,
            "--timeout",
            timeout,
        ];
        words.extend(run_dirs.iter().map(String::as_str));
        caracal(&lab, "node1", &words)
    };
    let plan = lab
        .caracal(
            "node1",
            &["mode", "plan", POOL, "--vxlan", "always", "-o", "json"],
        )
        .unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    for node in &nodes {
        let change = &plan["nodes"][node];
        assert_eq!(change["devicesCome"][0]["name"], "vxlan.calico", "{plan}");
        assert_eq!(change["devicesCome"][0]["mtu"], 1450, "{plan}");
        assert_eq!(change["routes"][0]["from"], "direct", "{plan}");
        assert_eq!(change["routes"][0]["to"], "vxlan", "{plan}");
        assert_eq!(change["routes"][0]["count"], 2, "{plan}");
    }
    assert_eq!(modes(&lab), "Never Never", "a plan writes nothing");
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1"), ("node2/p1", "node3/p1")]);
    assert_eq!(apply("Always", "40"), 0);
    for node in &nodes {
        assert_eq!(count(&lab, node, RouteKind::Vxlan), 2, "{node}");
    }
    assert_eq!(apply("Never", "40"), 0);
    for node in &nodes {
        assert_eq!(count(&lab, node, RouteKind::Direct), 2, "{node}");
    }
    // A node that does not follow: the change is taken back, and nothing was lost.
    lab.pause_node("node3").unwrap();
    assert_eq!(apply("Always", "3"), 1);
    assert_eq!(modes(&lab), "Never Never", "rolled back");
    lab.resume_node("node3").unwrap();
    for node in &nodes {
        await_status(&lab, node, 20 * SECOND, "settled", settled);
        let direct = || count(&lab, node, RouteKind::Direct);
        wait_for(20 * SECOND, "direct routes", direct, |n| *n == 2).unwrap();
    }
    probes.assert_none_lost("mode apply, back, and a change that is rolled back");
}

#[test]
fn a_mode_that_would_strand_a_node_is_refused() {
    if !possible("a_mode_that_would_strand_a_node_is_refused", &[]) {
        return;
    }
    let lab = up("cross-subnet", "mode-refuse");
    await_settled(&lab);
    // The router knows no pod: without encapsulation the racks are cut off from each other.
    for verb in ["plan", "apply"] {
        let status = caracal(&lab, "node1", &["mode", verb, POOL, "--vxlan", "never"]);
        assert_eq!(status, 5, "{verb}");
    }
    assert_eq!(modes(&lab), "Never CrossSubnet");
    assert_eq!(caracal(&lab, "node1", &["mode", "plan", "no-such-pool"]), 5);
    assert_eq!(
        caracal(&lab, "node1", &["mode", "plan", POOL, "--vxlan", "always"]),
        0
    );
}

/// The kernel state that an installation touches, as the usual tools print it.
fn kernel_state(lab: &Lab, node: &str) -> String {
    let netns = lab.netns(node).unwrap();
    let mut text = String::new();
    for words in [
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ip -d link show",
        "ip -o addr show",
        "ip neigh show nud permanent",
        "bridge fdb show",
        "nft list ruleset",
    ] {
        let mut words = words.split(' ');
        let mut command = program::command(words.next().unwrap()).unwrap();
        command.args(words);
        let printed = program::call(Some(&netns), &mut command, b"", 10 * SECOND).unwrap();
        text.push_str(&printed);
    }
    text
}

#[test]
fn uninstall_leaves_the_kernel_as_it_was() {
    if !possible("uninstall_leaves_the_kernel_as_it_was", &["nft", "bridge"]) {
        return;
    }
    let text = std::fs::read_to_string(example("full-mesh")).unwrap();
    let text = text.replace(
        "blockSize: 26",
        "blockSize: 26\n  vxlanMode: Always\n  natOutgoing: true",
    );
    let topology = Topology::parse(&text, "full-mesh").unwrap();
    let _leftovers = caracal_lab::down(&LabName::new("mode-uninst").unwrap());
    let mut options = Options::test(binary(), "mode-uninst");
    options.extent = Extent::Network;
    let mut lab = Lab::up(topology, &text, options, &|_| {}).unwrap();
    lab.folder().link_binary(&binary()).unwrap();
    for node in caracals(&lab) {
        lab.folder().create_node(&node).unwrap();
    }
    let netns = lab.netns("node1").unwrap();
    // Somebody else's, beside ours and alike.
    let foreign = [
        "route add 10.244.200.0/26 via 10.0.0.12 proto static",
        "route add blackhole 172.31.0.0/16 proto bird",
        "link add vxlan9 type vxlan id 9 dstport 4790 dev eth0",
        "neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
    ];
    caracal_lab::ip::batch(Some(&netns), &foreign.map(str::to_owned)).unwrap();
    // The kernel itself is still at work on its link-local address, and its route to it comes after the address.
    let state = || kernel_state(&lab, "node1");
    let before = wait_for(20 * SECOND, "addresses in use", state, |s| {
        s.contains("inet6 fe80") && s.contains("local fe80") && !s.contains("tentative")
    })
    .unwrap();
    for node in caracals(&lab) {
        lab.start_node(&node).unwrap();
    }
    for node in caracals(&lab) {
        lab.await_node(&node).unwrap();
    }
    // Each node claims a block for its tunnel's address, and so has routes to the others.
    let routes = || count(&lab, "node1", RouteKind::Vxlan);
    wait_for(30 * SECOND, "routes over VXLAN", routes, |n| *n >= 2).unwrap();
    await_settled(&lab);
    let during = kernel_state(&lab, "node1");
    for ours in [
        "dev vxlan.calico",
        "blackhole 10.244.",
        "table inet caracal",
    ] {
        assert!(during.contains(ours), "no {ours} in:\n{during}");
    }
    let refused = caracal(&lab, "node1", &["uninstall", "--node"]);
    assert_eq!(refused, 1, "a node that runs would put everything back");
    lab.stop_node("node1").unwrap();
    let installed = kernel_state(&lab, "node1");
    assert_eq!(
        caracal(&lab, "node1", &["uninstall", "--node", "--dry-run"]),
        0
    );
    assert_eq!(
        kernel_state(&lab, "node1"),
        installed,
        "a dry run changes nothing"
    );
    assert_eq!(caracal(&lab, "node1", &["uninstall", "--node"]), 0);
    assert_eq!(kernel_state(&lab, "node1"), before);
    let nothing_left = lab
        .caracal("node1", &["uninstall", "--node", "--dry-run"])
        .unwrap();
    assert_eq!(nothing_left, "");
    assert!(netns::exists(&netns));
}
