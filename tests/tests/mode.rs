//! The commands that change how a cluster's traffic travels, and the one that takes the agent's
//! work away.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use caracal_lab::{Lab, RouteKind, scaled_time, wait_for};
use caracal_model::Family;
use caracal_tests::{
    Installation, Probes, SECOND, Stack, apply_nft, assert_full_matrix, await_settled,
    await_status, calico_resource, caracals, count_routes, exec_caracal, family_count,
    install_and_uninstall, is_kubernetes, kubernetes_objects, on_each_stack,
    on_each_stack_and_datastore, possible, settled, speaks, with_two_blocks,
};

/// The pool whose mode is changed: in a dual-stack cluster that of IPv6, and IPv4's stays as it is.
fn pool(lab: &Lab) -> &'static str {
    match speaks(lab, Family::Ipv6) {
        true => "default-ipv6-ippool",
        false => "default-ipv4-ippool",
    }
}

fn modes(lab: &Lab) -> String {
    let pool = calico_resource(lab, "ippools", pool(lab));
    let mode = |name: &str| pool["spec"][name].as_str().unwrap_or("Never").to_owned();
    format!("{} {}", mode("ipipMode"), mode("vxlanMode"))
}

/// What nodes have told `mode apply`.
fn reports(lab: &Lab) -> String {
    if is_kubernetes(lab) {
        let leases = kubernetes_objects(lab, "leases").into_iter();
        let names = leases.map(|lease| lease["metadata"]["name"].to_string());
        return names.filter(|name| name.contains("caracal-mode")).collect();
    }
    let left = lab.etcdctl(&["get", "/caracal/mode/", "--prefix", "--keys-only"], b"");
    left.unwrap().trim().to_owned()
}

#[test]
fn a_mode_is_planned_applied_and_rolled_back() {
    let scenario = "a_mode_is_planned_applied_and_rolled_back";
    on_each_stack_and_datastore(
        scenario,
        &[],
        "full-mesh",
        "mode-apply",
        plan_apply_roll_back,
    );
}

fn plan_apply_roll_back(lab: Lab) {
    let pool = pool(&lab);
    let (device, mtu) = match speaks(&lab, Family::Ipv6) {
        true => ("vxlan-v6.calico", 1430),
        false => ("vxlan.calico", 1450),
    };
    // The other family's routes, which nothing is to happen to.
    let others = 2 * (family_count(&lab) - 1);
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
            pool,
            "--vxlan",
            vxlan,
            "--timeout",
            timeout,
        ];
        words.extend(run_dirs.iter().map(String::as_str));
        exec_caracal(&lab, "node1", &words)
    };
    let plan = lab
        .caracal(
            "node1",
            &["mode", "plan", pool, "--vxlan", "always", "-o", "json"],
        )
        .unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    for node in &nodes {
        let change = &plan["nodes"][node];
        assert_eq!(change["devicesCome"][0]["name"], device, "{plan}");
        assert_eq!(change["devicesCome"][0]["mtu"], mtu, "{plan}");
        assert_eq!(change["routes"][0]["from"], "direct", "{plan}");
        assert_eq!(change["routes"][0]["to"], "vxlan", "{plan}");
        assert_eq!(change["routes"][0]["count"], 2, "{plan}");
    }
    assert_eq!(modes(&lab), "Never Never", "a plan writes nothing");
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1"), ("node2/p1", "node3/p1")]);
    assert_eq!(apply("Always", "240"), 0);
    for node in &nodes {
        let seen = [RouteKind::Vxlan, RouteKind::Direct].map(|k| count_routes(&lab, node, k));
        assert_eq!(seen, [2, others], "{node}");
    }
    assert_eq!(apply("Never", "240"), 0);
    for node in &nodes {
        assert_eq!(
            count_routes(&lab, node, RouteKind::Direct),
            2 + others,
            "{node}"
        );
    }
    // A node that does not run: nothing is changed unless it is passed over, and then it is missed
    // all the same, for it does not follow. Nothing is lost.
    lab.pause_node("node3").unwrap();
    assert_eq!(apply("Always", "3"), 1);
    assert_eq!(modes(&lab), "Never Never", "not changed");
    let passed_over = [
        "mode",
        "apply",
        pool,
        "--vxlan",
        "Always",
        "--timeout",
        "5",
        "--skip",
        "node3",
    ];
    assert_eq!(exec_caracal(&lab, "node1", &passed_over), 1);
    assert_eq!(modes(&lab), "Never Never", "rolled back");
    lab.resume_node("node3").unwrap();
    for node in &nodes {
        await_status(&lab, node, 60 * SECOND, "settled", settled);
        let direct = || count_routes(&lab, node, RouteKind::Direct);
        wait_for(60 * SECOND, "direct routes", direct, |n| *n == 2 + others).unwrap();
    }
    probes.assert_none_lost("mode apply, back, and a change that is rolled back");
}

/// The new mode's packets are dropped on their way: the nodes find out, and the pool gets back what
/// it had.
#[test]
fn a_mode_whose_packets_are_dropped_is_taken_back() {
    let scenario = "a_mode_whose_packets_are_dropped_is_taken_back";
    on_each_stack_and_datastore(scenario, &["nft"], "full-mesh", "mode-hole", dropped);
}

fn dropped(lab: Lab) {
    let pool = pool(&lab);
    let others = 2 * (family_count(&lab) - 1);
    await_settled(&lab);
    assert_full_matrix(&lab);
    let hole = "table inet hole { chain input { type filter hook input priority 0; udp dport 4789 drop; }; }";
    apply_nft(&lab, "node2", hole);
    let arguments = ["mode", "apply", pool, "--vxlan", "Always"];
    let output = lab
        .caracal_output("node1", &arguments, scaled_time(180 * SECOND))
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = &output.stderr;
    for part in [
        "packets do not arrive with the new mode",
        "→ node2: no answer from ",
        "rolled back at revision",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(modes(&lab), "Never Never");
    let value = calico_resource(&lab, "ippools", pool).to_string();
    assert!(!value.contains("mode-check"), "{value}");
    for node in caracals(&lab) {
        let direct = || count_routes(&lab, &node, RouteKind::Direct);
        wait_for(20 * SECOND, "direct routes", direct, |n| *n == 2 + others).unwrap();
    }
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1"), ("node2/p1", "node3/p1")]);
    probes.after(2000);
    probes.assert_none_lost("after a change that was taken back");
    // The way is free: the same command succeeds, and leaves nothing of its own.
    apply_nft(&lab, "node2", "delete table inet hole");
    assert_eq!(exec_caracal(&lab, "node1", &arguments), 0);
    assert_eq!(modes(&lab), "Never Always");
    assert_eq!(reports(&lab), "");
    assert_full_matrix(&lab);
}

#[test]
fn a_mode_that_would_strand_a_node_is_refused() {
    let scenario = "a_mode_that_would_strand_a_node_is_refused";
    on_each_stack(scenario, &[], "cross-subnet", "mode-refuse", refusal);
}

fn refusal(lab: Lab) {
    let pool = pool(&lab);
    await_settled(&lab);
    // The router knows no pod: without encapsulation the racks are cut off from each other.
    for verb in ["plan", "apply"] {
        let status = exec_caracal(&lab, "node1", &["mode", verb, pool, "--vxlan", "never"]);
        assert_eq!(status, 5, "{verb}");
    }
    assert_eq!(modes(&lab), "Never CrossSubnet");
    assert_eq!(
        exec_caracal(&lab, "node1", &["mode", "plan", "no-such-pool"]),
        3
    );
    assert_eq!(
        exec_caracal(&lab, "node1", &["mode", "plan", pool, "--vxlan", "always"]),
        0
    );
}

#[test]
fn uninstall_leaves_the_kernel_as_it_was() {
    if !possible("uninstall_leaves_the_kernel_as_it_was", &["nft", "bridge"]) {
        return;
    }
    // Routes to one node share next-hop objects.
    let text = with_two_blocks("full-mesh").replace(
        "  blockSize: 31",
        "  blockSize: 31\n  vxlanMode: Always\n  natOutgoing: true",
    );
    std::thread::scope(|scope| {
        for stack in Stack::ALL {
            let topology = stack.topology(&text);
            scope.spawn(move || uninstall(stack, &topology));
        }
    });
}

fn uninstall(stack: Stack, topology: &str) {
    let ipv4 = [
        "ip route add 10.244.200.0/26 via 10.0.0.12 proto static",
        "ip route add blackhole 172.31.0.0/16 proto bird",
        "ip link add vxlan9 type vxlan id 9 dstport 4790 dev eth0",
        "ip neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
    ];
    let ipv6 = [
        "ip route add fd00:10:244:0:200::/122 via fd00:10::12 proto static",
        "ip route add blackhole fd00:172::/64 proto bird",
        "ip link add vxlan10 type vxlan id 10 dstport 4790 dev eth0 local fd00:10::1",
        "ip neigh add fd00:10::77 lladdr 02:00:00:00:00:77 dev eth0 nud permanent",
    ];
    let of_ipv4 = ["dev vxlan.calico", "blackhole 10.244."];
    let of_ipv6 = ["dev vxlan-v6.calico", "blackhole fd00:10:244:"];
    let (foreign, mut during) = match stack {
        Stack::Ipv4 => (ipv4.to_vec(), of_ipv4.to_vec()),
        Stack::Ipv6 => (ipv6.to_vec(), of_ipv6.to_vec()),
        Stack::Dual => ([&ipv4[..], &ipv6].concat(), [of_ipv4, of_ipv6].concat()),
    };
    during.extend(["table inet caracal", "dev cali", " nhid "]);
    install_and_uninstall(&Installation {
        lab: &stack.lab("mode-uninst"),
        topology,
        foreign: &foreign,
        during: &during,
    });
}
