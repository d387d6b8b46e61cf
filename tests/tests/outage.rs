//! A datastore that is away, read-only, without a majority, empty, or another cluster's;
//! directories that cannot be written; and two machines with one name. In none of them a running
//! pod loses a packet.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "outage/bumped.rs"]
mod bumped;
#[path = "outage/copied.rs"]
mod copied;

use std::fs;
use std::path::Path;

use caracal_lab::{Lab, error_chain, wait_until};
use caracal_model::{Family, NodeStatus};
use caracal_tests::{
    LogLines, Probes, RouteMonitor, SECOND, assert_full_matrix, await_remembered, await_settled,
    await_status, caracals, copy_folder, example, exit_code, family_count, more_pods,
    on_each_stack_of, possible, routes_by_kind, settled, up_text,
};
use serde_json::{Value, json};

const NODES: &str = "/calico/resources/v3/projectcalico.org/nodes";
const INFO: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
/// Another cluster's identity.
const OTHER: &str = r#"{"metadata":{"name":"default"},"spec":{"clusterGUID":"0ther0ther"}}"#;
const PAIRS: [(&str, &str); 2] = [("node1/p1", "node2/p1"), ("node3/p1", "node1/p1")];

/// A full mesh whose nodes have more environment.
fn text(environment: &str) -> String {
    let text = fs::read_to_string(example("full-mesh")).unwrap();
    text.replace(", pods:", &format!(", env: {{{environment}}}, pods:"))
}

fn etcdctl(lab: &Lab, arguments: &[&str]) -> String {
    lab.etcdctl(arguments, b"")
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)))
}

fn has(status: &NodeStatus, code: &str) -> Result<String, String> {
    let problem = status.problems.iter().find(|p| p.code == code);
    problem
        .map(|p| p.reason.clone())
        .ok_or_else(|| format!("no {code}: {:?} {:?}", status.problems, status.datastore))
}

fn await_problem(lab: &Lab, node: &str, code: &str) -> String {
    let status = await_status(lab, node, 60 * SECOND, code, |s| has(s, code).map(drop));
    has(&status, code).unwrap()
}

/// Sessions are up; the kernel is not swept.
fn forwards_stale(status: &NodeStatus) -> Result<(), String> {
    let down = status.peers.iter().find(|p| p.state != "Established");
    if let Some(peer) = down {
        return Err(format!(
            "{} is {} ({:?})",
            peer.name, peer.state, peer.reason
        ));
    }
    let waits = status.datastore.state == "stale" && status.kernel.phase == "learning";
    if status.peers.is_empty() || !waits {
        return Err(format!("{:?} {:?}", status.datastore, status.kernel));
    }
    Ok(())
}

/// ADD of another pod on node1 fails, and says why.
fn assert_nothing_is_given_out(lab: &Lab, why: &str) {
    let pod = &more_pods(lab, ["node1"])[0];
    let error = lab.cni("ADD", pod).expect_err("an address was given out");
    let error = error_chain(&error);
    assert!(error.contains(why), "{error}");
    println!("ADD: {error}");
    let _ = lab.cni("DEL", pod);
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
}

/// The password of the mesh in the restart scenario.
const PASSWORD: &str = "correct-horse-battery";

#[test]
fn a_restart_without_the_datastore_loses_nothing() {
    let scenario = "a_restart_without_the_datastore_loses_nothing";
    let secrets = std::env::temp_dir().join(format!("caracal-out-secrets-{}", std::process::id()));
    fs::create_dir_all(secrets.join("bgp")).unwrap();
    fs::write(secrets.join("bgp/mesh"), PASSWORD).unwrap();
    // Leases are renewed every two seconds.
    let environment = format!(
        "FELIX_ROUTEREFRESHINTERVAL: \"3600\", CARACAL_IPAM_GC_GRACE_SECONDS: \"10\", CARACAL_SECRETS_DIR: {}",
        secrets.display()
    );
    let text = text(&environment)
        + "
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPConfiguration
    metadata: {name: default}
    spec: {nodeMeshPassword: {secretKeyRef: {name: bgp, key: mesh}}}
";
    on_each_stack_of(scenario, &[], &text, "out-restart", restarts);
    fs::remove_dir_all(&secrets).unwrap();
}

fn restarts(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    for node in caracals(&lab) {
        await_remembered(&lab, &node);
    }
    let before: Vec<_> = caracals(&lab)
        .iter()
        .map(|n| routes_by_kind(&lab, n))
        .collect();
    let monitors = RouteMonitor::on_all(&lab);
    let probes = Probes::start(&lab, &PAIRS);
    probes.after(500);

    // Away: after SIGTERM, after a crash, and all nodes at once.
    let said = LogLines::on_all(&lab);
    lab.stop_etcd().unwrap();
    lab.stop_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    let stale = await_status(&lab, "node1", 60 * SECOND, "forwarding", forwards_stale);
    println!("restarted without etcd: {:?}", stale.datastore);
    let blocks = family_count(&lab);
    assert_eq!(stale.blocks.len(), blocks, "its blocks are known");
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_status(&lab, "node1", 60 * SECOND, "forwarding", forwards_stale);
    assert_nothing_is_given_out(&lab, "does not answer");
    said.assert_few(&lab, &["node2", "node3"], "without etcd");
    for node in ["node2", "node3"] {
        lab.kill9_node(node).unwrap();
    }
    for node in ["node2", "node3"] {
        lab.restart_node(node).unwrap();
    }
    for node in caracals(&lab) {
        await_status(&lab, &node, 60 * SECOND, "forwarding", forwards_stale);
    }
    assert_full_matrix(&lab);
    lab.start_etcd().unwrap();
    await_settled(&lab);

    // Full: it can be read, and takes no writes.
    lab.stop_etcd().unwrap();
    lab.start_etcd_with(&["--quota-backend-bytes=16777216"])
        .unwrap();
    await_settled(&lab);
    let said = LogLines::on_all(&lab);
    fill(&lab);
    // Told by the nodes that run, and by one that starts.
    for node in caracals(&lab) {
        let said = await_problem(&lab, &node, "datastore.no_writes");
        assert!(said.contains("space exceeded"), "{said}");
    }
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_status(&lab, "node1", 60 * SECOND, "sessions up", settled);
    await_problem(&lab, "node1", "datastore.no_writes");
    let (_, says) = exit_code(&lab, "node1", &["status"]);
    assert!(says.contains("fresh, takes no writes"), "{says}");
    let (code, says) = exit_code(&lab, "node1", &["audit"]);
    assert_eq!(code, 4, "{says}");
    assert!(says.contains("CRL-D005"), "{says}");
    assert_full_matrix(&lab);
    assert_nothing_is_given_out(&lab, "space exceeded");
    said.assert_few(&lab, &["node2", "node3"], "without room in etcd");
    etcdctl(&lab, &["del", "--prefix", "/calico/ballast/"]);
    let revision = etcdctl(&lab, &["get", "/", "--limit=1", "-w", "json"]);
    let revision: serde_json::Value = serde_json::from_str(&revision).unwrap();
    let revision = revision["header"]["revision"].to_string();
    etcdctl(&lab, &["compact", &revision]);
    etcdctl(&lab, &["defrag"]);
    etcdctl(&lab, &["alarm", "disarm"]);
    await_settled(&lab);
    for node in caracals(&lab) {
        await_status(&lab, &node, 60 * SECOND, "no problem left", no_problem);
    }

    // Without a majority: a second member that never comes.
    etcdctl(
        &lab,
        &["member", "add", "ghost", "--peer-urls=http://127.0.0.1:9"],
    );
    let lost = |s: &NodeStatus| match s.datastore.state.as_str() {
        "stale" => Ok(()),
        _ => Err(format!("{:?}", s.datastore)),
    };
    await_status(&lab, "node1", 60 * SECOND, "no majority", lost);
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    let stale = await_status(&lab, "node1", 60 * SECOND, "forwarding", forwards_stale);
    println!("restarted without a majority: {:?}", stale.datastore);
    lab.kill9_etcd().unwrap();
    lab.start_etcd_with(&["--force-new-cluster"]).unwrap();
    await_settled(&lab);

    unwritable_directories(&mut lab);
    damaged_memory(&mut lab);
    await_settled(&lab);
    probes.after(500);
    let afterwards: Vec<_> = caracals(&lab)
        .iter()
        .map(|n| routes_by_kind(&lab, n))
        .collect();
    assert_eq!(afterwards, before);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("restarts without the datastore");
    }
    assert_full_matrix(&lab);
    probes.assert_none_lost("restarts without the datastore");
    for node in caracals(&lab) {
        let kept = fs::read_to_string(lab.folder().lib(&node).join("last-snapshot")).unwrap();
        assert!(
            kept.contains("nodeMeshPassword"),
            "the reference to it is there"
        );
        assert!(
            !kept.contains(PASSWORD),
            "a password in {node}'s last snapshot"
        );
    }
}

/// Writes until etcd refuses.
fn fill(lab: &Lab) {
    let value = "x".repeat(1 << 20);
    for n in 0..64 {
        let key = format!("/calico/ballast/{n}");
        if let Err(error) = lab.etcdctl(&["put", &key], value.as_bytes()) {
            let error = error_chain(&error);
            assert!(error.contains("space exceeded"), "{error}");
            return;
        }
    }
    panic!("etcd takes everything");
}

/// A mount that ends with the scenario.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn new(arguments: &[&str], target: &'a Path) -> Self {
        mount("mount", arguments, target);
        Self(target)
    }

    /// Content of a directory, which cannot be written.
    fn read_only(target: &'a Path) -> Self {
        let text = target.display().to_string();
        let mounted = Self::new(&["--bind", &text], target);
        mount("mount", &["-o", "remount,bind,ro"], target);
        mounted
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        mount("umount", &["--lazy"], self.0);
    }
}

fn mount(program: &str, arguments: &[&str], target: &Path) {
    let mut command = std::process::Command::new(program);
    let done = command.args(arguments).arg(target).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {said}");
}

/// Directories that are mounted read-only, and such that are full. The node forwards in all of
/// them.
fn unwritable_directories(lab: &mut Lab) {
    let (lib, run) = (lab.folder().lib("node1"), lab.folder().run("node1"));
    lab.stop_node("node1").unwrap();
    {
        let _mount = Mount::read_only(&lib);
        lab.restart_node("node1").unwrap();
        let said = await_problem(lab, "node1", "node.lib_dir");
        assert!(said.contains("Read-only file system"), "{said}");
        await_status(lab, "node1", 60 * SECOND, "sessions up", settled);
        lab.kill9_node("node1").unwrap();
    }
    let kept = lib.with_extension("kept");
    copy_folder(&lib, &kept);
    {
        let _mount = Mount::new(&["-t", "tmpfs", "-o", "size=128k", "tmpfs"], &lib);
        copy_folder(&kept, &lib);
        let full = fs::write(lib.join("ballast"), vec![0; 1 << 20]);
        assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        lab.restart_node("node1").unwrap();
        let said = await_problem(lab, "node1", "node.lib_dir");
        assert!(said.contains("No space left on device"), "{said}");
        await_status(lab, "node1", 60 * SECOND, "sessions up", settled);
        let dumped = |code| {
            assert_eq!(exit_code(lab, "node1", &["bgp", "mrt", "t.mrt"]).0, code);
            let names = fs::read_dir(lib.join("mrt")).unwrap();
            names
                .map(|name| name.unwrap().file_name())
                .collect::<Vec<_>>()
        };
        assert!(dumped(1).is_empty(), "no table where there is no room");
        // Room is made.
        fs::remove_file(lib.join("ballast")).unwrap();
        await_status(lab, "node1", 120 * SECOND, "no problem left", no_problem);
        assert_eq!(dumped(0), ["t.mrt"]);
        lab.stop_node("node1").unwrap();
    }
    let full = ["-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs"];
    for options in [None, Some(&full)] {
        let mounted = options.map_or_else(|| Mount::read_only(&run), |o| Mount::new(o, &run));
        let told_before = lab
            .folder()
            .log_tail("node1", 100_000)
            .matches("node.run_dir")
            .count();
        lab.start_node("node1").unwrap();
        wait_until(60 * SECOND, "the problem in the log", || {
            let log = lab.folder().log_tail("node1", 100_000);
            match log.matches("node.run_dir").count() > told_before {
                true => Ok(()),
                false => Err(lab.folder().log_tail("node1", 20)),
            }
        })
        .unwrap_or_else(|e| panic!("{e}"));
        await_status(lab, "node2", 60 * SECOND, "the session with node1", settled);
        drop(mounted);
        // It is writable again: the socket comes.
        lab.await_node("node1").unwrap();
        await_status(lab, "node1", 60 * SECOND, "no problem left", no_problem);
        lab.kill9_node("node1").unwrap();
    }
    lab.restart_node("node1").unwrap();
    await_status(lab, "node1", 60 * SECOND, "no problem left", no_problem);
}

fn no_problem(status: &NodeStatus) -> Result<(), String> {
    settled(status)?;
    match status.problems.is_empty() {
        true => Ok(()),
        false => Err(format!("{:?}", status.problems)),
    }
}

/// A flipped octet is noticed; the node starts without its memory.
fn damaged_memory(lab: &mut Lab) {
    let file = lab.folder().lib("node1").join("last-snapshot");
    lab.stop_node("node1").unwrap();
    let mut octets = fs::read(&file).unwrap();
    let text = String::from_utf8_lossy(&octets);
    assert!(text.contains("/nodes/node2"), "{text}");
    let middle = octets.len() / 2;
    octets[middle] ^= 1;
    fs::write(&file, octets).unwrap();
    lab.restart_node("node1").unwrap();
    let said = await_problem(lab, "node1", "node.last_snapshot");
    assert!(said.contains("checksum"), "{said}");
    await_status(lab, "node1", 60 * SECOND, "settled", settled);
    await_remembered(lab, "node1");
}

#[test]
fn a_restart_before_a_block_is_remembered_deletes_no_route() {
    let scenario = "a_restart_before_a_block_is_remembered_deletes_no_route";
    let text = text("FELIX_ROUTEREFRESHINTERVAL: \"3600\"");
    on_each_stack_of(scenario, &[], &text, "out-late", restarts_too_early);
}

/// Routes to blocks that are not remembered stay until their owner is known again.
fn restarts_too_early(mut lab: Lab) {
    await_settled(&lab);
    await_remembered(&lab, "node1");
    let late = blocks_that_nobody_remembers(&lab);
    let before = routes_by_kind(&lab, "node1");
    let monitors = RouteMonitor::on_all(&lab);
    lab.kill9_etcd().unwrap();
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_status(&lab, "node1", 60 * SECOND, "forwarding", forwards_stale);
    for block in &late {
        let (_, says) = exit_code(&lab, "node1", &["bgp", "explain", block]);
        assert!(says.contains("not fresh"), "{block} is remembered: {says}");
    }
    lab.start_etcd().unwrap();
    await_settled(&lab);
    assert_eq!(routes_by_kind(&lab, "node1"), before);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("blocks that nobody remembers");
    }
    assert_full_matrix(&lab);
}

/// Another block of node3 in each family, made when the nodes have just written what they remember,
/// and in node1's kernel.
fn blocks_that_nobody_remembers(lab: &Lab) -> Vec<String> {
    let mut blocks = Vec::new();
    for family in lab.topology().families() {
        let (version, block, length) = match family {
            Family::Ipv4 => ("ipv4", "10.244.200.0", 26),
            Family::Ipv6 => ("ipv6", "fd00:10:244::f000:0", 122),
        };
        let cidr = format!("{block}/{length}");
        let free: Vec<_> = (0..64).collect();
        let body = json!({
            "cidr": cidr, "affinity": "host:node3", "strictAffinity": false, "deleted": false,
            "allocations": vec![Value::Null; 64], "unallocated": free, "attributes": [],
        });
        let key = format!("/calico/ipam/v2/assignment/{version}/block/{block}-{length}");
        etcdctl(lab, &["put", &key, &body.to_string()]);
        let key = format!("/calico/ipam/v2/host/node3/{version}/block/{block}-{length}");
        etcdctl(lab, &["put", &key, r#"{"state":"confirmed"}"#]);
        wait_until(60 * SECOND, "the route to the block", || {
            let routes = lab.routes("node1").map_err(|e| error_chain(&e))?;
            let there = routes.iter().any(|r| r.dst == cidr);
            there.then_some(()).ok_or_else(|| format!("{routes:?}"))
        })
        .unwrap_or_else(|e| panic!("{e}"));
        blocks.push(cidr);
    }
    blocks
}

#[test]
fn an_empty_or_other_datastore_is_a_fault_and_no_order() {
    let scenario = "an_empty_or_other_datastore_is_a_fault_and_no_order";
    let text = text("FELIX_ROUTEREFRESHINTERVAL: \"3600\"");
    on_each_stack_of(scenario, &[], &text, "out-other", emptied_and_exchanged);
}

fn emptied_and_exchanged(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let nodes = caracals(&lab);
    for node in &nodes {
        await_remembered(&lab, node);
    }
    let before: Vec<_> = nodes.iter().map(|n| routes_by_kind(&lab, n)).collect();
    let monitors = RouteMonitor::on_all(&lab);
    let probes = Probes::start(&lab, &PAIRS);

    // Empty, also for a node that restarts beside it.
    let data = lab.folder().etcd();
    let good = lab.folder().path().join("etcd-good");
    lab.stop_etcd().unwrap();
    copy_folder(&data, &good);
    fs::remove_dir_all(&data).unwrap();
    lab.start_etcd().unwrap();
    for node in &nodes {
        let said = await_problem(&lab, node, "datastore.emptied");
        assert!(said.contains("caracal datastore accept"), "{said}");
    }
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_problem(&lab, "node1", "datastore.emptied");
    await_status(&lab, "node1", 60 * SECOND, "forwarding", forwards_stale);
    assert_nothing_is_given_out(&lab, "has lost all 3 nodes");
    // The word for the plugins is in a directory that a cleaner may remove.
    let run = lab.folder().run("node1");
    fs::remove_dir_all(&run).unwrap();
    let word = || run.join("no-addresses").metadata();
    wait_until(60 * SECOND, "the word for the plugins", word).unwrap_or_else(|e| panic!("{e}"));
    lab.await_node("node1").unwrap();
    assert_nothing_is_given_out(&lab, "has lost all 3 nodes");
    let keys = etcdctl(&lab, &["get", "--prefix", "--keys-only", "/"]);
    assert_eq!(keys.trim(), "", "nothing was written");

    // Somebody sets another cluster up there.
    lab.etcdctl(&["put", INFO], OTHER.as_bytes()).unwrap();
    let stranger = r#"{"metadata":{"name":"stranger"},"spec":{}}"#;
    let path = format!("{NODES}/stranger");
    lab.etcdctl(&["put", &path], stranger.as_bytes()).unwrap();
    for node in &nodes {
        println!("{}", await_problem(&lab, node, "datastore.other_cluster"));
    }
    probes.after(1000);
    let during: Vec<_> = nodes.iter().map(|n| routes_by_kind(&lab, n)).collect();
    assert_eq!(during, before);

    // The good one is put back.
    lab.stop_etcd().unwrap();
    fs::remove_dir_all(&data).unwrap();
    copy_folder(&good, &data);
    lab.start_etcd().unwrap();
    await_settled(&lab);
    probes.after(500);
    let afterwards: Vec<_> = nodes.iter().map(|n| routes_by_kind(&lab, n)).collect();
    assert_eq!(afterwards, before);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("an empty and another cluster's datastore");
    }
    probes.assert_none_lost("an empty and another cluster's datastore");

    own_node_lost(&lab, &nodes);
    accepted(&lab);
}

/// Its own Node is deleted, overwritten with nonsense, then with a Node that has no address. The
/// others keep it until it has written itself again: no session ends, and its pods lose nothing.
fn own_node_lost(lab: &Lab, nodes: &[String]) {
    let own = format!("{NODES}/node1");
    let whole = etcdctl(lab, &["get", &own, "--print-value-only"]);
    let empty = r#"{"kind":"Node","metadata":{"name":"node1"},"spec":{}}"#;
    let probes = Probes::start(lab, &PAIRS);
    let begun = std::time::Instant::now();
    for damage in ["", "nonsense", empty] {
        match damage {
            "" => etcdctl(lab, &["del", &own]),
            text => lab.etcdctl(&["put", &own], text.as_bytes()).unwrap(),
        };
        let said = await_problem(lab, "node1", "node.written_again");
        println!("{said}");
        wait_until(60 * SECOND, "the Node as it was", || {
            let now = etcdctl(lab, &["get", &own, "--print-value-only"]);
            let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
            match value(&now).is_some_and(|now| now["spec"] == value(&whole).unwrap()["spec"]) {
                true => Ok(()),
                false => Err(now),
            }
        })
        .unwrap_or_else(|e| panic!("{e}"));
        for node in nodes {
            await_status(lab, node, 60 * SECOND, "settled", settled);
        }
    }
    await_settled(lab);
    assert_full_matrix(lab);
    for node in nodes {
        let status = await_status(lab, node, 60 * SECOND, "settled", settled);
        let elapsed = begun.elapsed().as_secs();
        for peer in &status.peers {
            assert!(
                peer.since_seconds >= elapsed,
                "{node}: a new session: {peer:?}"
            );
        }
    }
    probes.after(500);
    probes.assert_none_lost("an own Node that was deleted and overwritten");
}

fn accepted(lab: &Lab) {
    let (code, says) = exit_code(lab, "node3", &["datastore", "accept"]);
    assert_eq!(code, 0);
    assert!(says.contains("Nothing to accept"), "{says}");
    lab.etcdctl(&["put", INFO], OTHER.as_bytes()).unwrap();
    await_problem(lab, "node3", "datastore.other_cluster");
    let (code, says) = exit_code(lab, "node3", &["datastore", "accept"]);
    assert_eq!(code, 0);
    assert!(says.contains("another cluster"), "{says}");
    await_status(lab, "node3", 60 * SECOND, "followed", |s| {
        match s.datastore.state.as_str() {
            "fresh" => Ok(()),
            _ => Err(format!("{:?}", s.datastore)),
        }
    });
    await_problem(lab, "node1", "datastore.other_cluster");
}

#[test]
fn two_machines_with_one_name() {
    // Renewed every two seconds.
    let environment = "CARACAL_IPAM_GC_GRACE_SECONDS: \"10\"";
    let scenario = "two_machines_with_one_name";
    on_each_stack_of(scenario, &[], &text(environment), "out-twins", twins);
}

fn twins(mut lab: Lab) {
    await_settled(&lab);
    let lease = "/caracal/lease/node1";
    wait_until(60 * SECOND, "a lease that names its machine", || {
        let text = etcdctl(&lab, &["get", lease, "--print-value-only"]);
        text.contains("machine").then_some(()).ok_or(text)
    })
    .unwrap_or_else(|e| panic!("{e}"));
    // Another machine, with directories of its own.
    let folder = lab.folder().path().join("twin");
    let said = folder.join("said");
    fs::create_dir_all(&folder).unwrap();
    let twin = |lab: &Lab, command: &str| {
        let (folder, file) = (folder.display(), said.display());
        let line = format!(
            "NODENAME=node1 CARACAL_MACHINE_ID=twin CARACAL_RUN_DIR={folder} CARACAL_LIB_DIR={folder} \
             FELIX_HEALTHENABLED=false caracal {command} > {file} 2>&1"
        );
        let words = ["sh", "-c", &line].map(Into::into);
        let code = lab.exec("node2", &words).unwrap();
        (code, fs::read_to_string(&said).unwrap())
    };
    let (code, says) = twin(&lab, "node");
    assert_eq!(code, 1, "{says}");
    assert!(
        says.contains("another machine runs the node node1"),
        "{says}"
    );
    assert!(says.contains("caracal node takeover node1"), "{says}");
    // The same machine starts at once.
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_settled(&lab);
    let (code, says) = twin(&lab, "node takeover");
    assert_eq!(code, 0, "{says}");
    assert!(says.contains("node1 is this machine's now"), "{says}");
    // The first one notices, and ends without a fight.
    wait_until(
        60 * SECOND,
        "the first machine's process to end",
        || match lab.node_runs("node1") {
            true => Err(lab.folder().log_tail("node1", 5)),
            false => Ok(()),
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
    let log = lab.folder().log_tail("node1", 10);
    assert!(log.contains("another machine runs the node node1"), "{log}");
    // The twin never started, so its lease runs out, and the first machine has its name back.
    wait_until(60 * SECOND, "the first machine to start again", || {
        lab.restart_node("node1").map_err(|e| error_chain(&e))
    })
    .unwrap_or_else(|e| panic!("{e}"));
    await_settled(&lab);
}

/// What every node has to follow: a pool that gives out no addresses. Its revision.
fn put_pool(lab: &Lab, number: u8) -> i64 {
    let key = format!("/calico/resources/v3/projectcalico.org/ippools/unused{number}");
    let value = format!(
        r#"{{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{{"name":"unused{number}"}},"spec":{{"cidr":"10.99.{number}.0/24","disabled":true}}}}"#
    );
    lab.etcdctl(&["put", &key], value.as_bytes()).unwrap();
    let answer = etcdctl(lab, &["get", &key, "-w", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    answer["kvs"][0]["mod_revision"].as_i64().unwrap()
}

fn await_followed(lab: &Lab, revision: i64) {
    for node in caracals(lab) {
        await_status(
            lab,
            &node,
            60 * SECOND,
            "the new pool is known",
            |s| match s.datastore.revision >= revision && s.datastore.state == "fresh" {
                true => Ok(()),
                false => Err(format!("{:?}, not {revision}", s.datastore)),
            },
        );
    }
}

/// Watches at etcd itself, by its own metric.
fn watchers(lab: &Lab) -> String {
    let file = lab.folder().path().join("metrics");
    let ask =
        r"exec 3<>/dev/tcp/127.0.0.1/2379; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3";
    let line = format!("{ask} > {}", file.display());
    let words = ["bash", "-c", &line].map(Into::into);
    lab.exec("etcd", &words).unwrap();
    let text = fs::read_to_string(&file).unwrap_or_default();
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("etcd_debugging_mvcc_watcher_total"));
    line.unwrap_or_default().to_owned()
}

#[test]
fn a_proxy_of_etcd_that_is_killed_and_comes_back_costs_nothing() {
    let scenario = "a_proxy_of_etcd_that_is_killed_and_comes_back_costs_nothing";
    if !possible(scenario, &[]) {
        return;
    }
    let text = fs::read_to_string(example("full-mesh")).unwrap() + "\netcd: {proxies: 2}\n";
    let mut lab = up_text(&text, scenario, "out-proxy");
    await_settled(&lab);
    assert_full_matrix(&lab);
    // A proxy answers no question about a watch, and the watch stays nevertheless.
    for node in caracals(&lab) {
        wait_until(60 * SECOND, "reads instead of questions", || {
            let log = lab.folder().log(&node);
            let text = fs::read_to_string(log).map_err(|e| e.to_string())?;
            match text.contains("gRPC proxy of etcd") {
                true => Ok(()),
                false => Err(lab.folder().log_tail(&node, 5)),
            }
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }
    println!(
        "with two proxies and {} nodes: {}",
        caracals(&lab).len(),
        watchers(&lab)
    );
    for node in caracals(&lab) {
        let status = await_status(&lab, &node, SECOND, "fresh", |_| Ok(()));
        assert_eq!(
            status.datastore.state, "fresh",
            "{node}: {:?}",
            status.datastore
        );
    }
    let monitors = RouteMonitor::on_all(&lab);
    let probes = Probes::start(&lab, &PAIRS);
    probes.after(500);
    let pods = more_pods(&lab, ["node1", "node2"]);
    for (number, pod) in [1, 2].into_iter().zip(&pods) {
        lab.kill9_etcd_proxy(number).unwrap();
        let revision = put_pool(&lab, number);
        lab.cni("ADD", pod)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        await_followed(&lab, revision);
        lab.start_etcd_proxy(number).unwrap();
        let revision = put_pool(&lab, number + 10);
        await_followed(&lab, revision);
        await_settled(&lab);
    }
    probes.after(500);
    probes.assert_none_lost("proxies of etcd killed and started again");
    for monitor in &monitors {
        monitor.assert_nothing_deleted("proxies of etcd killed and started again");
    }
    println!("afterwards: {}", watchers(&lab));
    assert_full_matrix(&lab);
}
