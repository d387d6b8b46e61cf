//! IPAM's tools and its collector through the binary, on real etcd, real interfaces and real pods.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsString;

use caracal_lab::{Lab, PodState, wait_until};
use caracal_model::{Family, Prefix};
use caracal_tests::{SECOND, await_settled, either, focus, ipam_why, on_each_stack_of};
use serde_json::Value;

/// Exit codes of the command line.
const NOT_FOUND: i32 = 3;
const DEGRADED: i32 = 4;
const REFUSED: i32 = 5;

/// Two nodes with two pods each; their collectors wait so many seconds.
fn topology(grace: u64) -> String {
    let env = format!("{{CARACAL_IPAM_GC_GRACE_SECONDS: \"{grace}\"}}");
    format!(
        "name: ipam\ndescription: two nodes for IPAM's tools\npool: {{cidr: 10.244.0.0/16, blockSize: 26}}\n\
         segments:\n  - {{name: lan, cidr: 10.0.0.0/24}}\nnodes:\n\
         \x20 - {{name: node1, segment: lan, address: 10.0.0.1, pods: 2, env: {env}}}\n\
         \x20 - {{name: node2, segment: lan, address: 10.0.0.2, pods: 2, env: {env}}}\n"
    )
}

/// The pool of a family.
fn pool(shown: &Value, family: Family) -> &Value {
    let cidr = either(family, "10.244.0.0/16", "fd00:10:244::/64");
    let mut pools = shown["pools"].as_array().unwrap().iter();
    pools.find(|p| p["fill"]["cidr"] == cidr).unwrap()
}

/// `caracal ARGUMENTS` on node1: its exit code.
fn code(lab: &Lab, arguments: &[&str]) -> i32 {
    let caracal = lab.folder().bin().join("caracal");
    let mut command = vec![OsString::from(caracal)];
    command.extend(arguments.iter().map(OsString::from));
    lab.exec("node1", &command).unwrap()
}

fn json(lab: &Lab, arguments: &[&str]) -> Value {
    let text = lab.caracal("node1", arguments).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Key of the endpoint that has an address.
fn endpoint_of(lab: &Lab, address: &str) -> String {
    let prefix = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
    let keys = lab
        .etcdctl(&["get", "--prefix", "--keys-only", prefix], b"")
        .unwrap();
    let mut keys = keys.split_whitespace();
    let has = |key: &&str| {
        let value = lab
            .etcdctl(&["get", "--print-value-only", key], b"")
            .unwrap();
        let host = Prefix::host(address.parse().unwrap());
        value.contains(&format!("\"{host}\""))
    };
    keys.find(has).expect("the pod has an endpoint").to_owned()
}

/// The addresses of a pod, as text in order.
fn addresses(pod: &PodState) -> Vec<String> {
    let both = [Family::Ipv4, Family::Ipv6].map(|family| pod.address_of(family));
    both.iter().flatten().map(ToString::to_string).collect()
}

/// Deletes a pod's endpoint behind CNI's back. Gives its addresses.
fn forget(lab: &Lab, pod: &str) -> Vec<String> {
    let pods = &lab.state().pods;
    let addresses = addresses(pods.iter().find(|p| p.label() == pod).unwrap());
    let key = endpoint_of(lab, &addresses[0]);
    assert_eq!(lab.etcdctl(&["del", &key], b"").unwrap().trim(), "1");
    addresses
}

/// Takes a pod away behind CNI's back: cable and endpoint. Gives its addresses.
fn lose(lab: &Lab, pod: &str) -> Vec<String> {
    let state = lab
        .state()
        .pods
        .iter()
        .find(|p| p.label() == pod)
        .unwrap()
        .clone();
    let interface = state.host_interface.clone().unwrap();
    let delete = ["ip", "link", "delete", interface.as_str()].map(OsString::from);
    assert_eq!(lab.exec(&state.node, &delete).unwrap(), 0);
    forget(lab, pod)
}

/// Whether somebody holds an address.
fn held(lab: &Lab, address: &str) -> bool {
    match code(lab, &["ipam", "show", "--ip", address]) {
        0 => true,
        NOT_FOUND => false,
        other => panic!("ipam show --ip {address}: exit code {other}"),
    }
}

/// Whether all of these are held, or none.
fn all_held(lab: &Lab, addresses: &[String]) -> bool {
    let held: Vec<bool> = addresses.iter().map(|a| held(lab, a)).collect();
    assert!(
        held.windows(2).all(|w| w[0] == w[1]),
        "{addresses:?}: {held:?}"
    );
    held[0]
}

#[test]
fn a_leak_is_named_and_fixed() {
    let scenario = "a_leak_is_named_and_fixed";
    on_each_stack_of(scenario, &[], &topology(0), "e2e-ipam-fix", leak);
}

fn leak(lab: Lab) {
    await_settled(&lab);
    assert_eq!(
        code(&lab, &["ipam", "check"]),
        0,
        "a fresh cluster is clean"
    );
    let used = addresses(&lab.state().pods[1]).pop().unwrap();
    assert_eq!(
        code(&lab, &["ipam", "release", "--ip", &used]),
        REFUSED,
        "in use"
    );
    let lost = lose(&lab, "node1/p1");
    assert_eq!(code(&lab, &["ipam", "check"]), DEGRADED);
    let report = lab.folder().path().join("report.json");
    let report = report.to_str().unwrap();
    assert_eq!(code(&lab, &["ipam", "check", "-o", report]), DEGRADED);
    let value: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let leaked: Vec<String> = value["allocations"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(leaked, lost);
    // Too young for --fix; then a dry run; neither writes.
    assert_eq!(code(&lab, &["ipam", "check", "--fix"]), DEGRADED);
    let dry_run = ["ipam", "check", "--fix", "--min-age=0", "--dry-run"];
    assert_eq!(code(&lab, &dry_run), DEGRADED);
    assert!(all_held(&lab, &lost));
    let fixed = lab
        .caracal("node1", &["ipam", "check", "--fix", "--min-age=0"])
        .unwrap();
    for address in &lost {
        let family = either(Family::of(address.parse().unwrap()), "ipv4", "ipv6");
        let write = format!("put /calico/ipam/v2/assignment/{family}/block/");
        let write = fixed.find(&write).expect("the write is said");
        let release = fixed.find(&format!("release {address}"));
        assert!(release.unwrap() < write, "{fixed}");
    }
    assert!(fixed.contains("Problems left: 0"), "{fixed}");
    assert!(!all_held(&lab, &lost));
    assert_eq!(code(&lab, &["ipam", "check"]), 0);
    // The report is old now: nobody holds that allocation.
    assert_eq!(
        code(&lab, &["ipam", "release", "--from-report", report]),
        NOT_FOUND
    );
}

#[test]
fn the_other_orders_and_questions() {
    let scenario = "the_other_orders_and_questions";
    on_each_stack_of(
        scenario,
        &[],
        &topology(0),
        "e2e-ipam-ask",
        orders_and_questions,
    );
}

fn orders_and_questions(lab: Lab) {
    await_settled(&lab);
    let family = focus(&lab);
    let shown = json(&lab, &["ipam", "show", "--show-blocks", "-o", "json"]);
    let pool = pool(&shown, family);
    let total = pool["fill"]["total"].as_f64().unwrap();
    assert_eq!(total, either(family, 65536.0, 2f64.powi(64)), "{shown}");
    assert_eq!(pool["blocks"].as_array().unwrap().len(), 2, "{shown}");
    let text = lab
        .caracal("node1", &["ipam", "show", "--show-blocks"])
        .unwrap();
    assert!(text.contains("IP Pool") && text.contains("Block"), "{text}");
    let why = json(&lab, &ipam_why(family, &["node2", "-o", "json"]));
    let name = either(family, "default-ipv4-ippool", "default-ipv6-ippool");
    let mut pools = why["pools"].as_array().unwrap().iter();
    let pool = pools.find(|p| p["pool"] == name).unwrap();
    assert_eq!(pool["reason"], "serves this node");
    assert_eq!(
        (&why["next"]["ownBlock"], &why["next"]["borrowed"]),
        (&true.into(), &false.into())
    );
    assert_eq!(code(&lab, &ipam_why(family, &["node9"])), NOT_FOUND);
    let nobodys = either(family, "10.244.255.255", "fd00:10:244::ffff");
    assert_eq!(code(&lab, &["ipam", "show", "--ip", nobodys]), NOT_FOUND);
    assert_eq!(
        code(&lab, &["ipam", "configure", "--max-blocks-per-host=1"]),
        REFUSED
    );
    let strict = [
        "ipam",
        "configure",
        "--strictaffinity=true",
        "--max-blocks-per-host=1",
    ];
    assert_eq!(code(&lab, &strict), 0);
    let stored = lab
        .etcdctl(
            &["get", "--print-value-only", "/calico/ipam/v2/config"],
            b"",
        )
        .unwrap();
    assert!(
        stored.contains(r#""auto_allocate_blocks":true"#),
        "{stored}"
    );
    let why = lab.caracal("node1", &ipam_why(family, &["node1"])).unwrap();
    assert!(
        why.contains("no: it holds 1 blocks and may hold 1"),
        "{why}"
    );
    let cidr = either(family, "--cidr=10.244.0.0/16", "--cidr=fd00:10:244::/64");
    assert_eq!(
        code(&lab, &["ipam", "split", "2", cidr]),
        REFUSED,
        "not locked"
    );
    assert_eq!(code(&lab, &["ipam", "split", "2", cidr, "--force"]), 0);
    let shown = json(&lab, &["ipam", "show", "-o", "json"]);
    let cidrs: Vec<_> = shown["pools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["fill"]["cidr"].as_str().unwrap())
        .filter(|cidr| cidr.contains(':') == (family == Family::Ipv6))
        .collect();
    let halves = either(
        family,
        ["10.244.0.0/17", "10.244.128.0/17"],
        ["fd00:10:244::/65", "fd00:10:244:0:8000::/65"],
    );
    assert_eq!(cidrs, halves);
    assert_eq!(code(&lab, &["ipam", "check"]), 0);
    await_settled(&lab);
    caracal_tests::assert_full_matrix(&lab);
}

#[test]
fn the_collector_frees_what_is_dead_twice_over() {
    let scenario = "the_collector_frees_what_is_dead_twice_over";
    on_each_stack_of(scenario, &[], &topology(8), "e2e-ipam-gc", collector);
}

fn collector(mut lab: Lab) {
    await_settled(&lab);
    // One proof of death only: its interface is there.
    let kept = forget(&lab, "node1/p2");
    let lost = lose(&lab, "node1/p1");
    let gone = |lab: &Lab, addresses: &[String]| match addresses.iter().find(|a| held(lab, a)) {
        Some(address) => Err(format!("{address} is held")),
        None => Ok(()),
    };
    wait_until(60 * SECOND, "the leaked address collected", || {
        gone(&lab, &lost)
    })
    .unwrap();
    assert!(all_held(&lab, &kept), "an address with an interface stays");
    // A node that dies and whose Node is deleted: its lease runs out on the other's clock.
    let theirs = lab.state().pods.iter().find(|p| p.node == "node2").unwrap();
    let theirs = addresses(theirs);
    assert_eq!(
        code(&lab, &["node", "delete", "node2"]),
        REFUSED,
        "it lives"
    );
    lab.kill9_node("node2").unwrap();
    let node = "/calico/resources/v3/projectcalico.org/nodes/node2";
    assert_eq!(lab.etcdctl(&["del", node], b"").unwrap().trim(), "1");
    let orphaned = || {
        let leases = lab
            .etcdctl(&["get", "--prefix", "--keys-only", "/caracal/lease/"], b"")
            .unwrap();
        let affinities = [
            "get",
            "--prefix",
            "--keys-only",
            "/calico/ipam/v2/host/node2/",
        ];
        let left = lab.etcdctl(&affinities, b"").unwrap();
        if leases.contains("node2") || !left.trim().is_empty() {
            return Err(format!("{theirs:?}: {leases} {left}"));
        }
        gone(&lab, &theirs)
    };
    wait_until(90 * SECOND, "the dead node's data collected", orphaned).unwrap();
    assert!(all_held(&lab, &kept));
}
