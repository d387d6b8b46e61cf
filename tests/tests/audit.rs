//! `caracal audit` and `caracal explain` in the real binary: what the agent cannot repair is found,
//! and clean is clean.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use caracal_lab::{Lab, error_chain, spawn_in_netns, wait_until};
use caracal_tests::{
    SECOND, address_of, await_settled, binary, either, example, exit_code, family_count, focus, ip,
    on_each_stack_of,
};
use serde_json::Value;

/// Exit code, report, and the codes that count. A kernel that does not answer the command in time
/// is asked again.
fn audit(lab: &Lab, node: &str) -> (i32, Value, BTreeSet<String>) {
    let asked = wait_until(120 * SECOND, "a report", || {
        let output = lab.caracal_output(node, &["audit", "-o", "json"], 60 * SECOND);
        let output = output.map_err(|e| error_chain(&e))?;
        let report: Value = serde_json::from_str(&output.stdout)
            .map_err(|e| format!("{e}: {}{}", output.stdout, output.stderr))?;
        Ok::<_, String>((output.status.code().unwrap_or(-1), report))
    });
    let (code, report) = asked.unwrap_or_else(|e| panic!("{e}"));
    let findings = report["findings"].as_array().unwrap().iter();
    let counting = findings.filter(|finding| finding["counts"] == true);
    let codes = counting.map(|f| f["code"].as_str().unwrap().to_owned());
    let codes = codes.collect();
    (code, report, codes)
}

/// Waits until just these codes count, and answers with the findings.
fn await_codes(lab: &Lab, node: &str, wanted: &[&str]) -> Vec<Value> {
    await_findings(lab, node, wanted, |_| true)
}

/// Waits until just these codes count and all that count are enough, and answers with them.
fn await_findings(
    lab: &Lab,
    node: &str,
    wanted: &[&str],
    enough: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let wanted: BTreeSet<String> = wanted.iter().map(ToString::to_string).collect();
    let found = wait_until(120 * SECOND, "the codes that count", || {
        let (code, report, codes) = audit(lab, node);
        assert_eq!(code, if codes.is_empty() { 0 } else { 4 }, "{report:#}");
        assert_eq!(report["wrong"], !codes.is_empty());
        let findings = report["findings"].as_array().unwrap().iter();
        let counting = findings.filter(|finding| finding["counts"] == true);
        let counting: Vec<Value> = counting.cloned().collect();
        if codes == wanted && enough(&counting) {
            Ok(counting)
        } else {
            Err(format!("{codes:?}, not {wanted:?}: {report:#}"))
        }
    });
    found.unwrap_or_else(|e| panic!("{}", error_chain(&e)))
}

fn await_clean(lab: &Lab, node: &str) {
    await_codes(lab, node, &[]);
    let (code, text) = exit_code(lab, node, &["audit"]);
    assert_eq!(code, 0, "{text}");
}

fn find<'a>(findings: &'a [Value], code: &str) -> (&'a str, &'a str) {
    let finding = findings.iter().find(|f| f["code"] == code).unwrap();
    let text = |key: &str| finding[key].as_str().unwrap();
    assert!(finding["ageSeconds"].as_u64() >= finding["graceSeconds"].as_u64());
    (text("subject"), text("sentence"))
}

/// An endpoint of another node, written again as it was, leaves nobody behind the datastore.
fn nothing_follows_from_an_endpoint_elsewhere(lab: &Lab) {
    let folder = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
    let keys = lab
        .etcdctl(&["get", folder, "--prefix", "--keys-only"], b"")
        .unwrap();
    let elsewhere = |key: &&str| key.contains("/node3-");
    let key = keys.lines().find(elsewhere).unwrap();
    let value = lab
        .etcdctl(&["get", key, "--print-value-only"], b"")
        .unwrap();
    let before = audit(lab, "node1").1["revision"].as_i64();
    lab.etcdctl(&["put", key], value.trim_end().as_bytes())
        .unwrap();
    let report = wait_until(60 * SECOND, "the endpoint's revision", || {
        let (_, report, _) = audit(lab, "node1");
        let newer = report["revision"].as_i64() > before;
        newer.then_some(report).ok_or("not seen yet")
    });
    let report = report.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    assert_eq!(report["findings"], serde_json::json!([]), "{report:#}");
}

/// The kernel's route of node1 to a pod's block.
fn block_route(lab: &Lab, pod: &str) -> (String, Option<String>) {
    let address = pod_address(lab, pod);
    let routes = lab.routes("node1").unwrap();
    let of_pod = routes.into_iter().find(|r| {
        let prefix = r.destination();
        let block = either(focus(lab), 26, 122);
        prefix.is_some_and(|p| p.len() == block && p.contains(address.parse().unwrap()))
    });
    let route = of_pod.unwrap_or_else(|| panic!("no route to {address}"));
    (route.dst.clone(), route.gateway.map(|g| g.to_string()))
}

fn pod_address(lab: &Lab, pod: &str) -> String {
    let found = lab.state().pods.iter().find(|p| p.label() == pod).unwrap();
    found.address_of(focus(lab)).unwrap().to_string()
}

/// The name of node1's session with a node.
fn session(lab: &Lab, node: &str) -> String {
    let address = address_of(lab, node, focus(lab));
    let peers = lab.node_status("node1").unwrap().peers;
    let found = peers.into_iter().find(|peer| peer.address == Some(address));
    found.unwrap_or_else(|| panic!("no peer {address}")).name
}

/// A mesh of BGPPeers, whose hold time is not 90 s.
const RESOURCES: &str = "
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPConfiguration
    metadata: {name: default}
    spec: {nodeToNodeMeshEnabled: false}
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: nodes}
    spec: {nodeSelector: all(), peerSelector: all(), keepaliveTime: 5s}
";

fn explain(lab: &Lab, destination: &str) -> Value {
    let (code, text) = exit_code(lab, "node1", &["explain", destination, "-o", "json"]);
    assert_eq!(code, 0, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn what_the_agent_cannot_repair_is_found() {
    let scenario = "what_the_agent_cannot_repair_is_found";
    let text = std::fs::read_to_string(example("cross-subnet")).unwrap() + RESOURCES;
    on_each_stack_of(scenario, &[], &text, "e2e-audit", found);
}

fn found(mut lab: Lab) {
    let family = focus(&lab);
    let node2 = address_of(&lab, "node2", family).to_string();
    let tunnel = either(family, "vxlan.calico", "vxlan-v6.calico");
    await_settled(&lab);
    for node in ["node1", "node2", "node3", "node4"] {
        await_clean(&lab, node);
    }
    explanations(&lab);
    nothing_follows_from_an_endpoint_elsewhere(&lab);

    let watcher = Watcher::start(&lab, "node1");
    // A route of another program in the place of ours, a workload without its interface, a node
    // that is gone.
    let (prefix, gateway) = block_route(&lab, "node2/p1");
    assert_eq!(gateway, Some(node2.clone()));
    let router = either(family, "10.0.1.254", "fd00:10:0:1::254");
    let foreign = format!("route replace {prefix} via {router} dev eth0 proto static");
    ip(&lab, "node1", &[&foreign]);
    let pods = &lab.state().pods;
    let pod = pods.iter().find(|p| p.node == "node1").unwrap().clone();
    let host = pod.host_interface.clone().unwrap();
    ip(&lab, "node1", &[&format!("link del {host}")]);
    lab.stop_node("node4").unwrap();
    // In dual stack the sessions of node4 end one after the other.
    let codes = ["CRL-R003", "CRL-W001", "CRL-B001"];
    let findings = await_findings(&lab, "node1", &codes, |findings| {
        let lost = findings.iter().filter(|f| f["code"] == "CRL-B001");
        lost.count() == family_count(&lab)
    });
    let (subject, sentence) = find(&findings, "CRL-R003");
    assert_eq!(subject, prefix);
    assert!(sentence.contains("protocol 4") && sentence.contains("remove the other route"));
    let (_, sentence) = find(&findings, "CRL-W001");
    assert!(sentence.contains(&host), "{sentence}");
    let lost = findings.iter().filter(|f| f["code"] == "CRL-B001");
    let lost: Vec<&str> = lost.map(|f| f["subject"].as_str().unwrap()).collect();
    assert!(lost.contains(&session(&lab, "node4").as_str()), "{lost:?}");
    let explained = explain(&lab, &prefix);
    assert_eq!(explained["source"], "foreign: a route of protocol 4");
    assert_eq!(explained["inStep"], false);
    let (_, text) = exit_code(&lab, "node1", &["audit"]);
    assert!(
        text.contains("CRL-R003") && text.contains(&prefix),
        "{text}"
    );

    lab.restart_node("node4").unwrap();
    ip(
        &lab,
        "node1",
        &[&format!("route del {prefix} proto static")],
    );
    lab.cni("DEL", &pod).unwrap();
    await_clean(&lab, "node1");
    assert_eq!(block_route(&lab, "node2/p1").1, Some(node2));

    for event in ["found", "counts", "gone"] {
        watcher.await_event(event, "CRL-R003");
    }

    // Another program has the tunnel's name.
    lab.pause_node("node1").unwrap();
    let gone = format!("link del {tunnel}");
    let foreign = format!("link add {tunnel} type bridge");
    ip(&lab, "node1", &[&gone, &foreign]);
    lab.resume_node("node1").unwrap();
    let findings = await_codes(&lab, "node1", &["CRL-T003"]);
    assert_eq!(find(&findings, "CRL-T003").0, tunnel);
    ip(&lab, "node1", &[&gone]);
    await_clean(&lab, "node1");

    // Blocks that are confirmed and announced to nobody.
    let peers = "/calico/resources/v3/projectcalico.org/bgppeers/nodes";
    let get = ["get", peers, "--print-value-only"];
    let before = lab.etcdctl(&get, b"").unwrap();
    assert!(before.contains("peerSelector"), "{before}");
    lab.etcdctl(&["del", peers], b"").unwrap();
    let findings = await_codes(&lab, "node2", &["CRL-B003"]);
    let untold = findings.iter().filter(|f| f["code"] == "CRL-B003");
    assert!(untold.into_iter().any(|f| f["subject"] == prefix.as_str()));
    lab.etcdctl(&["put", peers], before.trim_end().as_bytes())
        .unwrap();
    await_settled(&lab);
    await_clean(&lab, "node2");

    // etcd is away.
    lab.stop_etcd().unwrap();
    let findings = await_codes(&lab, "node1", &["CRL-D001"]);
    assert!(find(&findings, "CRL-D001").1.contains("routes stay"));
    lab.start_etcd().unwrap();
    await_clean(&lab, "node1");
}

/// `caracal audit --watch -o json`, and what it has printed.
struct Watcher {
    child: Child,
    lines: Receiver<String>,
}

impl Watcher {
    fn start(lab: &Lab, node: &str) -> Self {
        let mut command = Command::new(binary());
        command
            .args(["audit", "--watch", "-o", "json"])
            .env("CARACAL_RUN_DIR", lab.folder().run(node))
            .stdout(Stdio::piped());
        let mut child = spawn_in_netns(&lab.netns(node).unwrap(), &mut command).unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::sync_channel(1024);
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Waits until an event of a code is printed; events of other codes are passed over.
    fn await_event(&self, event: &str, code: &str) {
        loop {
            let line = self
                .lines
                .recv_timeout(SECOND * 60)
                .unwrap_or_else(|e| panic!("no {event} of {code}: {e}"));
            let printed: Value = serde_json::from_str(&line).unwrap();
            if printed["event"] == event && printed["finding"]["code"] == code {
                return;
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One destination of each kind.
fn explanations(lab: &Lab) {
    let near = explain(lab, &pod_address(lab, "node1/p1"));
    assert_eq!(
        (&near["source"], &near["mode"]),
        (&"workload".into(), &"local".into())
    );
    assert!(
        near["owner"].as_str().unwrap().contains("on node node1"),
        "{near:#}"
    );
    let own = near["block"]["cidr"].as_str().unwrap();
    let block = explain(lab, own);
    assert_eq!(block["mode"], "blackhole");
    let advertised = block["bgp"]["advertised"].as_array().unwrap();
    let peers = 3 * family_count(lab);
    assert_eq!(
        advertised.len(),
        peers,
        "the block goes to all peers: {block:#}"
    );

    let address = pod_address(lab, "node3/p1");
    // Its stages are asked one after the other: at rest they agree.
    let far = wait_until(60 * SECOND, "stages at rest", || {
        let far = explain(lab, &address);
        let newest = |stage: &str| {
            let stages = far["revisions"].as_array().unwrap().iter();
            let of_stage = stages.filter(|r| r["stage"] == stage);
            of_stage.map(|r| r["revision"].as_i64().unwrap()).max()
        };
        let kernel = newest("kernel");
        if far["inStep"] == true && kernel <= newest("plan") && newest("plan") <= newest("snapshot")
        {
            Ok(far)
        } else {
            Err(format!("{far:#}"))
        }
    })
    .unwrap();
    assert_eq!(far["mode"], "vxlan");
    assert_eq!(far["source"], "remote block, from the datastore");
    assert_eq!(far["inStep"], true);
    assert_eq!(far["kernel"]["owner"], "ours");
    let family = focus(lab);
    let (tunnel, mtu) = either(family, ("vxlan.calico", 1450), ("vxlan-v6.calico", 1430));
    let node3 = address_of(lab, "node3", family);
    assert_eq!(far["kernel"]["devices"][0]["name"], tunnel);
    assert_eq!(far["kernel"]["devices"][0]["mtu"], mtu);
    let vtep = far["kernel"]["vtep"].as_str().unwrap();
    assert!(vtep.ends_with(&format!("behind {node3}")), "{vtep}");
    let path = &far["bgp"]["paths"][0];
    assert_eq!(path["peer"], session(lab, "node3"));
    let stages = far["revisions"].as_array().unwrap();
    let at = |stage: &str| {
        let mut of_stage = stages.iter().filter(|r| r["stage"] == stage);
        let newest = of_stage
            .by_ref()
            .map(|r| r["revision"].as_i64().unwrap())
            .max();
        newest.unwrap_or_else(|| panic!("no revision at {stage}: {far:#}"))
    };
    let (newest, read) = (at("datastore"), at("snapshot"));
    let (planned, kernel) = (at("plan"), at("kernel"));
    assert!(
        newest > 0 && newest <= kernel && kernel <= planned && planned <= read,
        "{far:#}"
    );

    let beside = explain(lab, &pod_address(lab, "node2/p1"));
    assert_eq!(
        (&beside["mode"], &beside["inStep"]),
        (&"direct".into(), &true.into())
    );
    let own = explain(lab, &address_of(lab, "node1", family).to_string());
    assert_eq!(own["source"], "this node: an address of eth0");
    assert_eq!(own["owner"], "the address of node node1");
    let outside = explain(lab, either(family, "192.0.2.1", "2001:db8::1"));
    assert_eq!(outside["kernel"]["owner"], "foreign");
    assert_eq!(outside["pool"], Value::Null);
    let (_, text) = exit_code(lab, "node1", &["explain", &pod_address(lab, "node3/p1")]);
    assert!(
        text.contains(&format!("from {} via {node3}: best", session(lab, "node3"))),
        "{text}"
    );
}
