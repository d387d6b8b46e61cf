//! `caracal get`, `apply`, `create`, `replace`, `delete`, `patch` and `label` by the real binary:
//! on a real etcd, and in a lab whose pods are routed by resources that were made this way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use caracal_datastore::EtcdServer;
use caracal_lab::{
    Lab, call_program, error_chain, parse_cni_result, program_command, scaled_time, wait_until,
};
use caracal_tests::{SECOND, await_settled, binary, logs, more_pods, possible, up_text};
use serde_json::{Value, json};

/// etcd, and the binary beside it.
struct Bench {
    server: EtcdServer,
    folder: PathBuf,
}

/// How a command ended, and what it said.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Bench {
    fn start(scenario: &str) -> Option<Self> {
        if !possible(scenario, &["etcd"]) {
            return None;
        }
        let server = EtcdServer::start().expect("etcd is installed");
        let name = format!("caracal-resources-{}-{scenario}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Some(Self { server, folder })
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        Command::new(binary())
            .args(arguments)
            .current_dir(&self.folder)
            .env("ETCD_ENDPOINTS", self.server.endpoint())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs a command with this text on its standard input.
    fn run_with(&self, input: &str, arguments: &[&str]) -> Ended {
        let mut child = self.spawn(arguments);
        let mut stdin = child.stdin.take().unwrap();
        // One that refuses before it reads is fine: the broken pipe is ignored.
        let _unread = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that has to end with this code; what it prints and says.
    fn ends(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let ended = self.run_with("", arguments);
        let said = format!("{arguments:?}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.code, Some(code), "{said}");
        (ended.stdout, ended.stderr)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (stdout, _) = self.ends(0, &[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {stdout}"))
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.folder.join(name), text).unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

const POOL: &str = "
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.244.0.0/16, vxlanMode: CrossSubnet}
";

#[test]
fn resources_are_written_read_and_deleted() {
    let Some(bench) = Bench::start("written") else {
        return;
    };
    bench.file("pool.yaml", POOL);
    let dry = bench.ends(0, &["apply", "-f", "pool.yaml", "--dry-run"]).0;
    assert_eq!(dry, "ippool/pods created (dry run: not written)\n");
    bench.ends(3, &["get", "ippool", "pods"]);
    bench.ends(3, &["replace", "-f", "pool.yaml"]);
    let made = bench.ends(0, &["create", "-f", "pool.yaml"]).0;
    assert_eq!(made, "ippool/pods created\n");
    bench.ends(5, &["create", "-f", "pool.yaml"]);
    bench.ends(0, &["create", "-f", "pool.yaml", "--skip-exists"]);
    assert_eq!(
        bench.ends(0, &["apply", "-f", "pool.yaml"]).0,
        "ippool/pods unchanged\n"
    );

    // As Calico writes it, with Calico's defaults.
    let pool = bench.json(&["get", "ippool/pods"]);
    assert_eq!(pool["spec"]["blockSize"], 26);
    assert_eq!(pool["metadata"]["uid"].as_str().unwrap().len(), 36);
    let version = pool["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let exported = bench
        .ends(0, &["get", "pools", "pods", "-o", "yaml", "--export"])
        .0;
    assert!(!exported.contains("uid"), "{exported}");
    let again = bench.run_with(&exported, &["apply", "-f", "-"]);
    assert_eq!(
        (again.code, again.stdout.as_str()),
        (Some(0), "ippool/pods unchanged\n")
    );

    // Changes, with the version that was seen and without.
    let output = bench
        .ends(
            0,
            &[
                "patch",
                "ipp",
                "pods",
                "-p",
                "{spec: {ipipMode: Always, vxlanMode: Never}}",
            ],
        )
        .0;
    assert!(
        output.contains("from VXLAN between subnets to IPIP"),
        "{output}"
    );
    let stale = json!({"metadata": {"resourceVersion": version}, "spec": {"natOutgoing": true}})
        .to_string();
    let (_, said) = bench.ends(6, &["patch", "ipp", "pods", "-p", &stale]);
    assert!(said.contains("somebody has changed it"), "{said}");
    let operations = r#"[{"op": "add", "path": "/spec/natOutgoing", "value": true}]"#;
    bench.ends(
        0,
        &["patch", "ipp", "pods", "--type", "json", "-p", operations],
    );
    assert_eq!(
        bench.json(&["get", "ippool", "pods"])["spec"]["natOutgoing"],
        true
    );
    let (_, said) = bench.ends(
        5,
        &["patch", "ipp", "pods", "-p", "{spec: {blockSize: 27}}"],
    );
    assert!(said.contains("it is 26 and cannot be changed"), "{said}");

    // All that is wrong is told, and nothing is written.
    let bad = format!(
        "{POOL}---{}",
        POOL.replace("pods", "other")
            .replace("vxlanMode", "vxlanMod")
    );
    let ended = bench.run_with(&bad.replace("CrossSubnet", "Always"), &["apply", "-f", "-"]);
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("line 7: IPPool other: spec.vxlanMod: an IPPool has no such field; did you mean vxlanMode?"), "{}", ended.stderr);
    assert_eq!(
        bench.json(&["get", "ippool", "pods"])["spec"]["vxlanMode"],
        "Never"
    );

    let names = bench.ends(0, &["get", "ippools", "-o", "name"]).0;
    assert_eq!(names, "ippool/pods\n");
    bench.ends(0, &["delete", "-f", "pool.yaml", "--dry-run"]);
    bench.ends(0, &["delete", "-f", "pool.yaml"]);
    bench.ends(3, &["delete", "ippool", "pods"]);
    bench.ends(0, &["delete", "ippool", "pods", "--ignore-not-found"]);
}

#[test]
fn what_cannot_be_is_told_with_its_reason() {
    let Some(bench) = Bench::start("refused") else {
        return;
    };
    let said = |code: i32, arguments: &[&str]| bench.ends(code, arguments).1;
    assert!(said(2, &["get", "ipools"]).contains("did you mean ippools?"));
    assert!(said(2, &["get", "networkpolicies"]).contains("the kinds are:"));
    assert!(said(2, &["patch", "node", "a", "-p", "[1"]).contains("neither JSON nor YAML"));
    assert!(said(2, &["label", "node", "a", "word"]).contains("neither KEY=VALUE nor KEY-"));
    assert!(said(1, &["apply", "-f", "none.yaml"]).contains("none.yaml"));
    assert!(
        said(5, &["label", "clusterinfo", "default", "a=b"])
            .contains("the nodes write it themselves")
    );
    assert!(said(5, &["delete", "ipamblock", "10-0-0-0-26"]).contains("it belongs to IPAM"));
    assert!(said(3, &["label", "node", "nobody", "a=b"]).contains("it does not exist"));
    assert!(said(3, &["delete", "node", "nobody"]).contains("there is no Node nobody"));
}

/// Eight people set a label each at the same time, and nobody's is lost. A write that loses is
/// decided anew up to ten times, and each loss is a win of another: all eight come through.
#[test]
fn labels_that_are_set_at_once_all_stay() {
    let Some(bench) = Bench::start("labels") else {
        return;
    };
    let node = "{kind: Node, metadata: {name: a}, spec: {}}";
    assert_eq!(bench.run_with(node, &["apply", "-f", "-"]).code, Some(0));
    let words: Vec<String> = (0..8).map(|n| format!("l{n}={n}")).collect();
    let label = |word: &String| bench.spawn(&["label", "node", "a", word]);
    let all: Vec<Child> = words.iter().map(label).collect();
    for child in all {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
    let node = bench.json(&["get", "node", "a"]);
    assert_eq!(node["metadata"]["labels"].as_object().unwrap().len(), 8);
}

#[test]
fn a_full_etcd_is_told_with_what_helps() {
    let Some(bench) = Bench::start("full") else {
        return;
    };
    bench.file("pool.yaml", POOL);
    // The alarm that etcd raises when its quota is used up, by its own gateway.
    let body = r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#;
    let mut stream = TcpStream::connect(bench.server.address()).unwrap();
    write!(
        stream,
        "POST /v3/maintenance/alarm HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("NOSPACE"), "{answer}");
    let (_, said) = bench.ends(1, &["apply", "-f", "pool.yaml"]);
    assert!(said.contains("database space exceeded"), "{said}");
    assert!(said.contains("etcdctl alarm disarm"), "{said}");
    bench.ends(3, &["get", "ippool", "pods"]);
}

const TOPOLOGY: &str = "
name: resources
description: two nodes whose resources are made by hand
pool:
  cidr: 10.244.0.0/24
  blockSize: 29
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 1}
  - {name: node2, segment: lan, address: 10.0.0.2}
";

/// Another pool, other sessions and a filter.
const CLUSTER: &str = "
apiVersion: projectcalico.org/v3
kind: List
items:
- {kind: IPPool, metadata: {name: byhand}, spec: {cidr: 10.245.0.0/24, blockSize: 29}}
- {kind: IPReservation, metadata: {name: first}, spec: {reservedCIDRs: [10.245.0.0/29]}}
---
apiVersion: projectcalico.org/v3
kind: BGPFilter
metadata: {name: pods}
spec:
  exportV4:
  - {cidr: 10.245.0.0/24, matchOperator: In, action: Accept}
  - {action: Reject}
---
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: all}
spec: {nodeSelector: all(), peerSelector: all(), filters: [pods]}
---
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false, asNumber: 64600}
";

/// Calls the binary on a node, to its end: exit code, standard output and error.
fn caracal(lab: &Lab, arguments: &[&str]) -> (i32, String) {
    let limit = scaled_time(60 * SECOND);
    let output = lab.caracal_output("node1", arguments, limit);
    let output = output.unwrap_or_else(|e| panic!("{arguments:?}: {}", error_chain(&e)));
    let said = format!("{}{}", output.stdout, output.stderr);
    (output.status.code().unwrap_or(-1), said)
}

#[test]
fn pods_are_routed_by_resources_made_from_the_command_line() {
    let scenario = "pods_are_routed_by_resources_made_from_the_command_line";
    if !possible(scenario, &[]) {
        return;
    }
    let lab = up_text(TOPOLOGY, "resources", "e2e-resources");
    await_settled(&lab);
    let file = lab.folder().path().join("cluster.yaml");
    std::fs::write(&file, CLUSTER).unwrap();
    let file = file.to_str().unwrap();

    // A pool with a pod in it stays.
    let (code, said) = caracal(&lab, &["delete", "ippool", "default-ipv4-ippool"]);
    assert_eq!(code, 5, "{said}");
    assert!(
        said.contains("1 address(es) in 1 block(s) are in use"),
        "{said}"
    );
    let disable = r#"{"spec":{"disabled":true}}"#;
    let (code, said) = caracal(
        &lab,
        &["patch", "ippool", "default-ipv4-ippool", "-p", disable],
    );
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("no new address comes from it; the 1 address in use stay"),
        "{said}"
    );

    let (code, said) = caracal(&lab, &["apply", "-f", file]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("ends the mesh of 2 nodes at once"), "{said}");
    assert!(
        said.contains("2 of 2 nodes may take blocks from it"),
        "{said}"
    );
    let (code, said) = caracal(&lab, &["apply", "-f", file]);
    assert_eq!((code, said.matches("unchanged").count()), (0, 5), "{said}");

    let pods = more_pods(&lab, ["node1", "node2"]);
    let add = |pod| {
        let answer = lab
            .cni("ADD", pod)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        let address = parse_cni_result(&answer).expect("an attachment").address;
        let text = address.to_string();
        assert!(text.starts_with("10.245.0."), "{answer}");
        text
    };
    let addresses: Vec<String> = pods.iter().map(add).collect();
    for (from, to) in [(0, 1), (1, 0)] {
        let reached = || {
            let mut ping = program_command("ping").map_err(|e| e.to_string())?;
            ping.args(["-c", "1", "-W", "1", &addresses[to]]);
            let called = call_program(Some(&pods[from].netns), &mut ping, b"", 10 * SECOND);
            called.map(drop).map_err(|e| error_chain(&e))
        };
        wait_until(60 * SECOND, "pods to reach each other", reached)
            .unwrap_or_else(|e| panic!("{e}\n{}", logs(lab.name())));
    }
    println!("pods {addresses:?} of a pool made by `caracal apply` reach each other");
    let (code, said) = caracal(&lab, &["bgp", "peers"]);
    assert!(code == 0 && said.contains("64600"), "{said}");

    let (code, said) = caracal(
        &lab,
        &[
            "patch",
            "ippool",
            "byhand",
            "-p",
            r#"{"spec":{"vxlanMode":"Always"}}"#,
            "--dry-run",
        ],
    );
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains(
            "moves 2 blocks from plain routes to VXLAN on 2 nodes; see `caracal mode plan`"
        ),
        "{said}"
    );
    let (code, said) = caracal(&lab, &["delete", "node", "node2"]);
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("seems to be alive"), "{said}");
    lab.down().unwrap_or_else(|e| panic!("{}", error_chain(&e)));
}
