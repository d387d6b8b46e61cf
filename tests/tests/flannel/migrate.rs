//! Nodes of a flannel network become nodes of a Calico network, one after the other, and go back,
//! under traffic. One of the three is foreign, and stays.

use std::path::PathBuf;
use std::process::Command;

use caracal_lab::{Probe, ProgramOutput, program_output, wait_for};
use caracal_tests::{PROBE_RATE, SECOND, await_datagrams, binary, possible};
use serde_json::{Value, json};

use super::runtime::{Container, NEEDED, Runtime};
use super::site::{PATIENCE, Site};
use super::{VXLAN, assert_none_lost, mac, probe, reach, start_foreign, subnet};

const ETCD: &str = "http://10.200.0.100:2379";
const FOREIGN: &str = "10.5.72.0/24";
/// The list of flannel, as runtimes have it.
const FLANNELS: &str = r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"}]}"#;
/// Exit code of what has to wait for somebody.
const REFUSED: Option<i32> = Some(5);

/// One node of ours.
struct Migrant {
    number: u8,
    /// Flannel's plugin, and ours.
    flannels: Runtime,
    ours: Runtime,
}

impl Migrant {
    fn new(site: &Site, number: u8) -> Self {
        let folder = |kind: &str| site.folder().join(format!("{kind}{number}"));
        for kind in ["netd", "own", "lib"] {
            std::fs::create_dir_all(folder(kind)).unwrap();
        }
        let mut ours = Runtime::new(site, number, "caracal-cni");
        ours.list = json!({"name": "k8s-pod-network", "cniVersion": "1.0.0", "plugins": [{
            "type": "caracal-cni", "nodename": format!("n{number}"), "etcd_endpoints": ETCD,
            "ipam": {"type": "caracal-ipam"}, "policy": {},
        }]});
        ours.environment = vec![
            ("CARACAL_RUN_DIR".to_owned(), folder("own")),
            ("CARACAL_LIB_DIR".to_owned(), folder("lib")),
        ];
        let migrant = Self {
            number,
            flannels: Runtime::new(site, number, "flannel"),
            ours,
        };
        migrant.configure_cni(site, FLANNELS);
        migrant
    }

    fn name(&self) -> String {
        format!("n{}", self.number)
    }

    fn configure_cni(&self, site: &Site, list: &str) {
        let folder = site.folder().join(format!("netd{}", self.number));
        std::fs::write(folder.join("10-flannel.conflist"), list).unwrap();
    }

    fn environment(&self, site: &Site, command: &mut Command) {
        for (name, folder) in &self.ours.environment {
            command.env(name, folder);
        }
        command
            .env("ETCD_ENDPOINTS", ETCD)
            .env("NODENAME", self.name())
            .env("IP", format!("10.200.0.{}/24", self.number))
            .env("NO_DEFAULT_POOLS", "true")
            .env("FLANNELD_ETCD_ENDPOINTS", ETCD)
            .env("FLANNELD_SUBNET_FILE", site.subnet_file(self.number))
            .env("CNI_CONF_DIR", self.folder(site, "netd"));
    }

    fn folder(&self, site: &Site, kind: &str) -> PathBuf {
        site.folder().join(format!("{kind}{}", self.number))
    }

    /// A command on this node.
    fn caracal(&self, site: &Site, words: &[&str]) -> ProgramOutput {
        let mut command = Command::new(binary());
        command.args(words);
        self.environment(site, &mut command);
        let netns = site.netns(&self.name());
        let output = program_output(Some(&netns), &mut command, b"", 60 * SECOND).unwrap();
        println!("{} {words:?}: {:?}", self.name(), output.status.code());
        println!("{}{}", output.stdout, output.stderr);
        output
    }

    fn migrate(&self, site: &Site, command: &str, more: &[&str]) -> ProgramOutput {
        let networks = self.folder(site, "cni").join("networks/cbr0");
        let networks = networks.display().to_string();
        let words = ["flannel", "migrate", command, "--networks-dir", &networks];
        self.caracal(site, &[&words, more].concat())
    }

    /// A command that is refused, and says so.
    fn refused(&self, site: &Site, command: &str, says: &str) {
        let output = self.migrate(site, command, &[]);
        assert_eq!(output.status.code(), REFUSED, "{command}: {says}");
        assert!(output.stderr.contains(says), "{says}: {}", output.stderr);
    }

    fn done(&self, site: &Site, command: &str) -> String {
        let output = self.migrate(site, command, &[]);
        assert!(output.status.success(), "{command}: {}", output.stderr);
        output.stdout
    }

    /// The steps of the plan with their states.
    fn steps(&self, site: &Site) -> Vec<(String, String)> {
        let output = self.migrate(site, "plan", &["-o", "json"]);
        assert!(output.status.success(), "{}", output.stderr);
        let plan: Value = serde_json::from_str(&output.stdout).unwrap();
        let text = |step: &Value, key: &str| step[key].as_str().unwrap().to_owned();
        let steps = plan["steps"].as_array().unwrap().iter();
        steps
            .map(|step| (text(step, "step"), text(step, "state")))
            .collect()
    }

    fn state(&self, site: &Site, step: &str) -> String {
        let steps = self.steps(site).into_iter();
        let mut states = steps.filter(|(name, _)| name == step);
        states.next().map(|(_, state)| state).unwrap_or_default()
    }

    /// Restarts the daemon of flannel's.
    fn restart_flannel(&self, site: &mut Site, flags: &[&str]) {
        assert_eq!(site.end(&self.name(), "-TERM"), Some(0));
        site.start_again(self.number, flags);
    }

    /// Starts `caracal node`, and waits until others can send to it.
    fn start_node(&self, site: &mut Site) {
        let mut command = Command::new(binary());
        command.arg("node");
        self.environment(site, &mut command);
        site.start(&format!("c{}", self.number), &self.name(), &mut command);
        let state = || self.state(site, "node");
        wait_for(PATIENCE, "the node's tunnel address", state, |s| {
            s == "done"
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", site.log_of(&format!("c{}", self.number))));
    }
}

/// Waits until a node's route to a subnet, the one that counts, leads so.
fn await_way(site: &Site, node: &Migrant, subnet: &str, way: &str) {
    let get = subnet.replace(".0/24", ".250");
    let what = format!("{} to {subnet} {way}", node.name());
    let leads = |lines: &[String]| lines.iter().any(|line| line.contains(way));
    site.await_lines(&node.name(), &["route", "get", &get], &what, leads);
}

/// Flannel's routes of a node have this metric, and no other.
fn await_metric(site: &Site, node: &Migrant, metric: Option<u32>) {
    let fits = |line: &String| match metric {
        Some(metric) => line.contains(&format!("metric {metric}")),
        None => !line.contains("metric"),
    };
    let all = |lines: &[String]| lines.len() == 2 && lines.iter().all(fits);
    let what = format!(
        "{}: flannel's routes have the metric {metric:?}",
        node.name()
    );
    site.await_lines(&node.name(), &["route", "show", "proto", "82"], &what, all);
}

#[test]
fn nodes_go_over_and_back_without_a_lost_packet() {
    let scenario = "migrate::nodes_go_over_and_back_without_a_lost_packet";
    if !possible(scenario, &[&NEEDED[..], &["nft", "bridge"]].concat()) {
        return;
    }
    // The namespaces of the last two pods are further containers of node 1.
    let mut site = Site::new(&[1, 2, 3, 4, 5]);
    site.lease = 120 * SECOND;
    site.configure(VXLAN);
    start_foreign(&site);
    let nodes = [1, 2].map(|number| {
        site.start_node(number, &["-ip-masq"]);
        Migrant::new(&site, number)
    });
    let bridges = [1, 2].map(|number| site.bridge_address(number));
    for (number, bridge) in (1..).zip(&bridges) {
        reach(&site, number, bridge, &mac(&site, number));
    }
    let mut old = [1, 2].map(|n| {
        nodes[n - 1]
            .flannels
            .container(&site, u8::try_from(n).unwrap())
    });
    let mut pods: Vec<String> = nodes
        .iter()
        .zip(&mut old)
        .map(|(node, container)| node.flannels.add(container).unwrap())
        .collect();
    let mut ended = nodes[0].flannels.container(&site, 4);
    let late = nodes[0].flannels.add(&mut ended).unwrap();
    pods.push(site.start_pod(3, "10.5.72.1/24", 1450));
    let pairs = [(1u8, 2u8), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)];
    for (from, to) in pairs {
        site.await_ping(from, &pods[usize::from(to) - 1], 1450);
    }
    shows_the_network(&site, &nodes[0], &bridges);
    let start = |(from, to): (u8, u8)| probe(&site, from, to, &pods[usize::from(to) - 1]);
    let flows: Vec<Probe> = pairs.into_iter().map(start).collect();
    await_datagrams(&flows[0], 500);

    goes_over(&mut site, &nodes[0], 2, &flows);
    let (young, its_flows) = a_new_pod(&site, &nodes[0], &pods);
    goes_over(&mut site, &nodes[1], 1, &flows);
    for (node, other) in [(0, 1), (1, 0)] {
        let other = subnet(&bridges[other]) + "/24";
        await_way(&site, &nodes[node], &other, "dev vxlan.calico");
        await_way(&site, &nodes[node], FOREIGN, "dev flannel.1");
    }
    // A container of before ends under our plugin, which frees its address.
    ended.result = None;
    nodes[0].ours.del(&ended).unwrap();
    let shown = nodes[0].caracal(&site, &["ipam", "show", "--ip", &late]);
    assert_eq!(shown.status.code(), Some(3), "{late} is free");
    await_datagrams(&flows[0], 2 * u64::from(PROBE_RATE));
    for flow in its_flows {
        assert_none_lost("to and from a pod of ours beside those on the bridge", flow);
    }

    goes_back(&mut site, &nodes[1], &nodes[..1], None);
    goes_back(&mut site, &nodes[0], &[], Some(&young));
    for (node, other) in [(0, 1), (1, 0)] {
        let other = subnet(&bridges[other]) + "/24";
        await_way(&site, &nodes[node], &other, "dev flannel.1");
    }
    await_datagrams(&flows[0], u64::from(PROBE_RATE));
    for flow in flows {
        assert_none_lost("two nodes over and back, beside a foreign one", flow);
    }
    assert_eq!(
        nodes[0].flannels.held(),
        [pods[0].clone()],
        "what has ended is free"
    );
    let left = site.etcdctl(&[
        "get",
        "--prefix",
        "--keys-only",
        "/calico/ipam/v2/assignment",
    ]);
    assert_eq!(left.trim(), "", "no block is left");
    let mut next = nodes[0].flannels.container(&site, 5);
    let address = nodes[0].flannels.add(&mut next).unwrap();
    site.await_ping(5, &pods[0], 1450);
    assert_ne!(address, pods[0]);
}

/// `caracal flannel show` before anything happens, and with something missing.
fn shows_the_network(site: &Site, node: &Migrant, bridges: &[String; 2]) {
    let show = |code: i32| {
        let output = node.caracal(site, &["flannel", "show", "-o", "json"]);
        assert_eq!(output.status.code(), Some(code), "{}", output.stderr);
        serde_json::from_str::<Value>(&output.stdout).unwrap()
    };
    let shown = show(0);
    assert_eq!(shown["problems"], json!([]));
    assert_eq!(shown["network"]["ipv4"]["network"], "10.5.0.0/16");
    assert_eq!(shown["network"]["backend"]["Type"], "vxlan");
    let leases = shown["leases"].as_array().unwrap();
    assert_eq!(leases.len(), 3);
    for lease in leases {
        let seconds = lease["expiresSeconds"].as_u64().unwrap();
        let subnet_of = |bridge: &String| json!(subnet(bridge) + "/24");
        let mine = lease["subnet"] == subnet_of(&bridges[0]);
        assert_eq!(lease["mine"], mine, "{lease}");
        assert!(seconds > 60 && seconds <= 86_400, "{lease}");
        let by_device = lease["route"]
            .as_str()
            .is_some_and(|r| r.contains("dev flannel.1"));
        assert_eq!(by_device, !mine, "{lease}");
    }
    assert_eq!(shown["node"]["subnetEnv"]["mtu"], 1450);
    assert_eq!(shown["node"]["devices"][0]["name"], "flannel.1");
    let table = node.caracal(site, &["flannel", "show"]);
    for says in [
        "network 10.5.0.0/16 in /24",
        FOREIGN,
        "10.200.0.3",
        "this node",
    ] {
        assert!(table.stdout.contains(says), "{says}: {}", table.stdout);
    }
    // A lease that cannot be read is named.
    site.put_lease("10.5.99.0-24", "{");
    let named = show(4)["problems"].to_string();
    assert!(named.contains("10.5.99.0-24"), "{named}");
    site.etcdctl(&[
        "del",
        &format!("{}/subnets/10.5.99.0-24", super::site::PREFIX),
    ]);
}

/// One node, by the steps of its plan.
fn goes_over(site: &mut Site, node: &Migrant, others: usize, flows: &[Probe]) {
    let waits = |site: &Site, step: &str| {
        assert_eq!(node.state(site, step), "before", "{step}");
    };
    waits(site, "routes");
    node.refused(site, "apply", "--route-metric");
    node.restart_flannel(site, &["-ip-masq", "--route-metric=100"]);
    await_metric(site, node, Some(100));
    waits(site, "cni");
    node.refused(site, "apply", "caracal install-cni");
    node.configure_cni(site, &node.ours.list.to_string());
    assert_eq!(node.state(site, "block"), "apply");
    let waiting = node
        .steps(site)
        .into_iter()
        .filter(|(step, _)| step == "other");
    assert_eq!(waiting.count(), others);
    node.done(site, "apply");
    assert_eq!(node.state(site, "block"), "done");
    await_datagrams(&flows[0], 200);
    node.start_node(site);
    let again = node.done(site, "apply");
    assert!(again.contains("; 0 more addresses"), "{again}");
    await_datagrams(&flows[0], 500);
    let status = || node.caracal(site, &["status"]).status.code();
    wait_for(PATIENCE, "nothing wrong", status, |code| *code == Some(0)).unwrap();
}

/// A pod that our plugin attaches, among those on the bridge and on the other nodes.
fn a_new_pod(site: &Site, node: &Migrant, pods: &[String]) -> (Container, Vec<Probe>) {
    let mut container = node.ours.container(site, 5);
    let address = node.ours.add(&mut container).unwrap_or_else(|e| {
        panic!("{e}\n{}", site.log_of(&format!("c{}", node.number)));
    });
    let block = |address: &str| address.rsplit_once('.').unwrap().0.to_owned();
    assert_eq!(
        block(&address),
        block(&pods[0]),
        "out of the node's own subnet"
    );
    assert!(
        !node.flannels.held().contains(&address),
        "{address} is given out twice"
    );
    for (other, pod) in (1u8..).zip(pods) {
        site.await_ping(5, pod, 1450);
        site.await_ping(other, &address, 1450);
    }
    let both = |other: u8| {
        let there = &pods[usize::from(other) - 1];
        [
            probe(site, 5, other, there),
            probe(site, other, 5, &address),
        ]
    };
    let flows: Vec<Probe> = [1, 2, 3].into_iter().flat_map(both).collect();
    await_datagrams(&flows[0], 200);
    (container, flows)
}

/// The same node back, with a pod of ours on it or without one.
fn goes_back(site: &mut Site, node: &Migrant, others: &[Migrant], pod: Option<&Container>) {
    node.refused(site, "undo", "put flannel's CNI configuration back");
    if pod.is_some() {
        assert_eq!(node.flannels.held().len(), 2, "a note of the pod of ours");
    }
    node.configure_cni(site, FLANNELS);
    if let Some(container) = pod {
        node.refused(site, "undo", "pods that Caracal's plugin has attached");
        node.ours.del(container).unwrap();
    }
    node.refused(site, "undo", "`caracal node` runs");
    assert_eq!(site.end(&format!("c{}", node.number), "-TERM"), Some(0));
    let told = node.done(site, "undo");
    assert!(told.contains("caracal uninstall --node"), "{told}");
    let block = subnet(&site.bridge_address(node.number)) + "/24";
    for other in others {
        await_way(site, other, &block, "dev flannel.1");
    }
    let removed = node.caracal(site, &["uninstall", "--node"]);
    assert!(removed.status.success(), "{}", removed.stderr);
    node.restart_flannel(site, &["-ip-masq"]);
    await_metric(site, node, None);
    let deleted = node.caracal(site, &["node", "delete", &node.name()]);
    assert!(deleted.status.success(), "{}", deleted.stderr);
}
