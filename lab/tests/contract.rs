//! The contract between the lab and the program it runs, held with a stand-in: this very test
//! program, under the names `caracal` and `caracal-cni`. It knows nothing of BGP; its routes are
//! fixed. What is tested is what the lab tells a node and a plugin, in which order, and what it
//! does when they fail or die. Needs root; says so and passes without.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use caracal_lab::{
    CommandError, DownCommand, Lab, LabName, TableForm, Topology, UpCommand, UpError, UpOptions,
    UpProgress, down, lab_down, lab_up, netns_path, wait_until,
};
use caracal_model::{NodeStatus, PeerStatusJson};
use serde_json::{Value, json};

mod support;

use support::{SECOND, assert_nothing_left, unique};

const TOPOLOGY: &str = "\
name: contract
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: n1, segment: lan, address: 10.0.0.1, pods: 2}
  - {name: n2, segment: lan, address: 10.0.0.2, pods: 1, env: {EXTRA: given}}
  - {name: n3, segment: lan, address: 10.0.0.3, pods: 1}
";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let name = Path::new(&arguments[0])
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    match (name.as_str(), arguments.get(1).map(String::as_str)) {
        ("caracal-cni", _) => stand_in::cni(),
        ("caracal", Some("node")) => stand_in::node(),
        ("caracal", Some("status")) => stand_in::status(&arguments[2..]),
        _ => all_tests(),
    }
}

fn all_tests() {
    let possible = support::possible("the lab's contract", &[]);
    let tests: [(&str, fn()); 6] = [
        (
            "nodes_and_plugins_are_told_what_they_need",
            nodes_and_plugins_are_told_what_they_need,
        ),
        (
            "the_matrix_finds_the_one_lost_pair",
            the_matrix_finds_the_one_lost_pair,
        ),
        (
            "traffic_is_counted_while_a_node_dies",
            traffic_is_counted_while_a_node_dies,
        ),
        (
            "a_refused_pod_fails_the_bring_up",
            a_refused_pod_fails_the_bring_up,
        ),
        (
            "a_node_that_dies_at_once_is_quoted",
            a_node_that_dies_at_once_is_quoted,
        ),
        (
            "another_process_can_take_over",
            another_process_can_take_over,
        ),
    ];
    if !possible {
        println!(
            "test result: ok. 0 passed; 0 failed; {} ignored",
            tests.len()
        );
        return;
    }
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    println!(
        "test result: ok. {} passed; 0 failed; 0 ignored",
        tests.len()
    );
}

fn bring_up(text: &str, name: &str) -> Result<Lab, UpError> {
    let topology = Topology::parse(text, "contract.yaml").unwrap();
    let options = UpOptions::test(std::env::current_exe().unwrap(), &unique(name));
    Lab::up(topology, text, options, &|_| {})
}

fn up(name: &str) -> Lab {
    bring_up(TOPOLOGY, name).unwrap_or_else(|e| panic!("{}", caracal_lab::error_chain(&e)))
}

fn nodes_and_plugins_are_told_what_they_need() {
    let events = Mutex::new(Vec::new());
    let topology = Topology::parse(TOPOLOGY, "contract.yaml").unwrap();
    let name = unique("told");
    let options = UpOptions::test(std::env::current_exe().unwrap(), &name);
    let say = |event: UpProgress| events.lock().unwrap().push(event);
    let lab = Lab::up(topology, TOPOLOGY, options, &say).unwrap();
    let ready = events
        .lock()
        .unwrap()
        .iter()
        .filter(|e| matches!(e, UpProgress::NodeReady { .. }))
        .count();
    assert_eq!(ready, 3);
    let pods: Vec<_> = lab
        .state()
        .pods
        .iter()
        .map(|p| format!("{} {}", p.label(), p.address.unwrap()))
        .collect();
    assert_eq!(
        pods,
        [
            "n1/p1 10.244.1.1",
            "n1/p2 10.244.1.2",
            "n2/p1 10.244.2.1",
            "n3/p1 10.244.3.1"
        ]
    );

    let env = stand_in::recorded(&lab, "n2", "node");
    assert_eq!(env["NODENAME"], "n2");
    assert_eq!(env["IP"], "10.0.0.2/24");
    assert_eq!(env["EXTRA"], "given");
    assert_eq!(
        env["CARACAL_RUN_DIR"],
        lab.folder().run("n2").to_str().unwrap()
    );
    assert_eq!(
        env["CARACAL_LIB_DIR"],
        lab.folder().lib("n2").to_str().unwrap()
    );
    assert!(
        env.get("CARGO_MANIFEST_DIR").is_none(),
        "our own environment leaked"
    );

    let cni = stand_in::recorded(&lab, "n2", "ADD");
    let pod = lab
        .state()
        .pods
        .iter()
        .find(|p| p.label() == "n2/p1")
        .unwrap();
    assert_eq!(cni["CNI_CONTAINERID"], pod.container.as_str());
    assert_eq!(cni["CNI_NETNS"], netns_path(&pod.netns).to_str().unwrap());
    assert_eq!(cni["CNI_IFNAME"], "eth0");
    // Ours first; behind it the plugins that a chain or `ipam` may name.
    let path = format!("{}:/usr/lib/cni", lab.folder().bin().display());
    assert_eq!(cni["CNI_PATH"], path);
    let arguments = cni["CNI_ARGS"].as_str().unwrap();
    assert!(arguments.contains("K8S_POD_NAME=p1;"), "{arguments}");
    let config: Value = serde_json::from_str(cni["stdin"].as_str().unwrap()).unwrap();
    assert_eq!(config["cniVersion"], "1.0.0");
    assert_eq!(config["nodename"], "n2");
    assert_eq!(config["etcd_endpoints"], env["ETCD_ENDPOINTS"]);

    assert_eq!(lab.await_sessions(5 * SECOND).unwrap(), 6);
    let report = lab.report(Some(10 * SECOND)).unwrap();
    assert!(
        report.is_healthy(),
        "{}",
        caracal_lab::render_table(&report, TableForm::default())
    );
    assert_eq!(report.matrix.as_ref().unwrap().pairs(), 12);
    assert_eq!(report.nodes[0].routes["direct"], 2);
    assert_eq!(report.nodes[0].routes["local"], 2);
    assert_eq!(
        lab.exec(
            "n1/p2",
            &["ping", "-qnc1", "-W2", "10.244.3.1"].map(Into::into)
        )
        .unwrap(),
        0
    );

    let name = lab.name().clone();
    let gone = lab.down().unwrap();
    assert_eq!(
        (gone.pods, gone.processes, gone.namespaces),
        (4, 4, 2 + 3 + 4)
    );
    assert_eq!(gone.warnings, Vec::<String>::new());
    assert_nothing_left(&name);
}

fn the_matrix_finds_the_one_lost_pair() {
    let lab = up("lost");
    let lines = ["route replace blackhole 10.244.3.1/32".to_owned()];
    caracal_lab::ip_batch(Some(&lab.netns("n1/p1").unwrap()), &lines).unwrap();
    let matrix = lab.ping_matrix(SECOND / 10).unwrap();
    let lost: Vec<_> = matrix
        .lost()
        .iter()
        .map(|(from, to, _)| (*from, *to))
        .collect();
    // Neither the request of one nor the answer to the other gets out of n1/p1.
    assert_eq!(lost, [("n1/p1", "n3/p1"), ("n3/p1", "n1/p1")]);
    let mend = ["route del blackhole 10.244.3.1/32".to_owned()];
    caracal_lab::ip_batch(Some(&lab.netns("n1/p1").unwrap()), &mend).unwrap();
    assert!(lab.ping_matrix(10 * SECOND).unwrap().is_full());
}

fn traffic_is_counted_while_a_node_dies() {
    let mut lab = up("dies");
    assert!(lab.ping_matrix(10 * SECOND).unwrap().is_full());
    let probe = lab.probe("n1/p1", "n2/p1", 1000).unwrap();
    let beyond = |count: u64| {
        let look = || {
            if probe.received() >= count {
                Ok(())
            } else {
                Err(probe.received())
            }
        };
        wait_until(10 * SECOND, "datagrams", look).unwrap();
    };
    beyond(100);
    lab.kill9_node("n2").unwrap();
    assert!(!lab.node_runs("n2"));
    let report = lab.report(None).unwrap();
    assert_eq!(
        report.nodes[1].error.as_deref(),
        Some("its process is not running")
    );
    let now = probe.received();
    beyond(now + 300);
    lab.restart_node("n2").unwrap();
    let now = probe.received();
    beyond(now + 100);
    // The stand-in's routes are the kernel's: nothing is lost, and the counter must say so.
    let loss = probe.stop();
    assert_eq!(loss.lost, 0, "{loss}");
    assert!(loss.sent >= 500, "{loss}");
    lab.stop_node("n2").unwrap();
    assert!(!lab.node_runs("n2"));
}

fn a_refused_pod_fails_the_bring_up() {
    let text = TOPOLOGY.replace(
        "n2, segment: lan, address: 10.0.0.2, pods: 1",
        "n2, segment: lan, address: 10.0.0.2, pods: [refused]",
    );
    let error = caracal_lab::error_chain(&bring_up(&text, "refused").unwrap_err());
    // The first answer, "try again later", was taken at its word.
    assert!(error.contains("cannot attach 4 pods: CNI ADD for pod n2/refused was refused (code 7): invalid configuration: no pool is for it"), "{error}");
    assert_nothing_left(&LabName::new(&unique("refused")).unwrap());
}

fn a_node_that_dies_at_once_is_quoted() {
    let text = TOPOLOGY.replace("{EXTRA: given}", "{DIE: no luck today}");
    let error = caracal_lab::error_chain(&bring_up(&text, "quoted").unwrap_err());
    assert!(
        error.contains("the process of n2 ended (exit status: 3)"),
        "{error}"
    );
    assert!(error.contains("no luck today"), "{error}");
    assert_nothing_left(&LabName::new(&unique("quoted")).unwrap());
}

fn another_process_can_take_over() {
    let file = std::env::temp_dir().join(format!("{}.yaml", unique("contract")));
    std::fs::write(&file, TOPOLOGY).unwrap();
    let arguments = UpCommand {
        file: file.clone(),
        name: Some(unique("taken")),
        binary: std::env::current_exe().unwrap(),
        deadline: 20 * SECOND,
        keep: false,
        tables: TableForm::default(),
    };
    let mut out = Vec::new();
    let status = lab_up(&arguments, &mut out);
    let text = String::from_utf8(out).unwrap();
    assert!(matches!(status, Ok(0)), "{status:?}\n{text}");
    std::fs::remove_file(file).unwrap();
    for part in [
        "n3 is ready",
        "pod n1/p2 has 10.244.1.2",
        "6 sessions established",
        "✓ 12 of 12 pings",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let name = LabName::new(&unique("taken")).unwrap();
    // Nothing of this process's own knowledge is used from here on.
    let mut lab = Lab::attach(&name).unwrap();
    assert!(lab.report(Some(5 * SECOND)).unwrap().is_healthy());
    lab.kill9_node("n1").unwrap();
    lab.restart_node("n1").unwrap();
    drop(lab);
    let mut out = Vec::new();
    let arguments = DownCommand {
        lab: Some(name.to_string()),
        all: false,
    };
    let status: Result<i32, CommandError> = lab_down(&arguments, &mut out);
    assert_eq!(status.unwrap(), 0);
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.contains("removed 4 pods, 4 processes, 9 namespaces"),
        "{text}"
    );
    assert!(down(&name).unwrap().is_empty());
    assert_nothing_left(&name);
}

/// Behaviour of the stand-in under each of its names.
mod stand_in {
    use super::*;

    fn own(key: &str) -> String {
        std::env::var(key).unwrap_or_else(|_| panic!("{key} is not set"))
    }

    fn number(node: &str) -> u8 {
        node.trim_start_matches('n').parse().unwrap()
    }

    fn ip(lines: &[String]) {
        caracal_lab::ip_batch(None, lines).unwrap();
    }

    /// Leaves what it was told where the test finds it.
    fn record(what: &str, stdin: &str) {
        let mut told: BTreeMap<String, String> = std::env::vars().collect();
        told.insert("stdin".to_owned(), stdin.to_owned());
        let file = PathBuf::from(own("CARACAL_LIB_DIR")).join(format!("{what}.json"));
        std::fs::write(file, serde_json::to_string(&told).unwrap()).unwrap();
    }

    pub(super) fn recorded(lab: &Lab, node: &str, what: &str) -> Value {
        let file = lab.folder().lib(node).join(format!("{what}.json"));
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    }

    pub(super) fn node() {
        if let Ok(words) = std::env::var("DIE") {
            eprintln!("{words}");
            std::process::exit(3);
        }
        record("node", "");
        let me = number(&own("NODENAME"));
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        let others = (1..=3).filter(|n| *n != me);
        let routes =
            others.map(|n| format!("route replace 10.244.{n}.0/26 via 10.0.0.{n} dev eth0 onlink"));
        ip(&routes.collect::<Vec<_>>());
        let socket = PathBuf::from(own("CARACAL_RUN_DIR")).join("caracal.sock");
        let _ = std::fs::remove_file(&socket);
        for client in UnixListener::bind(socket).unwrap().incoming() {
            drop(client);
        }
    }

    pub(super) fn status(arguments: &[String]) {
        assert_eq!(arguments, ["-o", "json"]);
        let peer = PeerStatusJson {
            state: "Established".to_owned(),
            ..PeerStatusJson::default()
        };
        let status = NodeStatus {
            node: own("NODENAME"),
            peers: vec![peer.clone(), peer],
            ..NodeStatus::default()
        };
        println!("{}", serde_json::to_string(&status).unwrap());
        // A degraded node says so by its exit status, and has answered all the same.
        std::process::exit(4);
    }

    pub(super) fn cni() {
        let stdin = std::io::read_to_string(std::io::stdin()).unwrap();
        let verb = own("CNI_COMMAND");
        record(&verb, &stdin);
        let config: Value = serde_json::from_str(&stdin).unwrap();
        let node = number(config["nodename"].as_str().unwrap());
        let arguments = own("CNI_ARGS");
        let pod = arguments
            .split(';')
            .find_map(|a| a.strip_prefix("K8S_POD_NAME="))
            .unwrap();
        let Ok(pod) = pod.trim_start_matches('p').parse::<u8>() else {
            let asked = PathBuf::from(own("CARACAL_RUN_DIR")).join("asked");
            let answer = match std::fs::File::create_new(asked) {
                Ok(_) => {
                    json!({"code": 11, "msg": "try again later", "details": "no address is free"})
                }
                Err(_) => {
                    json!({"code": 7, "msg": "invalid configuration", "details": "no pool is for it"})
                }
            };
            println!("{answer}");
            std::process::exit(1);
        };
        let device = format!("cali{node}{pod}");
        if verb == "DEL" {
            return ip(&[format!("link del dev {device}")]);
        }
        let pod_netns = own("CNI_NETNS");
        let inside = Path::new(&pod_netns).file_name().unwrap().to_str().unwrap();
        let address = format!("10.244.{node}.{pod}/32");
        ip(&[
            format!("link add name {device} type veth peer name eth0 netns {inside}"),
            format!("link set dev {device} up"),
            format!("route add {address} dev {device} scope link"),
        ]);
        let lines = [
            format!("address add {address} dev eth0"),
            "link set dev eth0 up".to_owned(),
            "route add 169.254.1.1 dev eth0 scope link".to_owned(),
            "route add default via 169.254.1.1 dev eth0".to_owned(),
        ];
        caracal_lab::ip_batch(Some(inside), &lines).unwrap();
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/proxy_arp"), "1").unwrap();
        std::fs::write(
            format!("/proc/sys/net/ipv4/neigh/{device}/proxy_delay"),
            "0",
        )
        .unwrap();
        let interfaces = json!([{"name": device}, {"name": "eth0", "sandbox": pod_netns}]);
        println!(
            "{}",
            json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": [{"address": address}]})
        );
    }
}
