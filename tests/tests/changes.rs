//! The sentence that the whole product comes down to: for each pair of pods, and for the announced
//! addresses of a Service, from pods and from a router outside, after each change of the datastore,
//! after a restart and after a node that joins, either packets get through, or `status` of a node
//! concerned names a problem, and `audit` and `/readyz` agree. When a change is taken back,
//! everything gets through, and nothing is left of it.
//!
//! Changes are drawn by a seed. `CARACAL_SEED` and `CARACAL_STEPS` choose others, and more
//! (`make fuzz-cluster`); `CARACAL_FIRST` begins with a later one of the same seed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "changes/draw.rs"]
mod draw;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use caracal_lab::{
    Lab, call_program, error_chain, ip_batch, parse_cni_result, program_command, scaled_time,
    wait_until,
};
use caracal_model::{Family, Problem};
use caracal_tests::{
    EchoServer, PodEndpoint, Processes, Random, SECOND, Services, Stack, VipConnection,
    await_settled, bind_pods, caracals, endpoint_slices, exit_code, get_http, is_kubernetes,
    kubectl, kubernetes_object, logs, more_pods, on_kubernetes_datastore, possible, try_run_on,
    unbind_pod, up_text,
};
use draw::{Change, draw};
use serde_json::{Value, json};

/// Two racks behind a router: the way between them is another than that inside. A router of another
/// AS beside the first node hears which addresses of services it has.
const TOPOLOGY: &str = "
name: changes
pool: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: CrossSubnet}
segments:
  - {name: rack1, cidr: 10.0.1.0/24}
  - {name: rack2, cidr: 10.0.2.0/24}
routers:
  - name: router
    legs:
      - {segment: rack1, address: 10.0.1.254}
      - {segment: rack2, address: 10.0.2.254}
nodes:
  - {name: node1, segment: rack1, address: 10.0.1.11, pods: 2, env: {CARACAL_SERVICES: 'on'}}
  - {name: node2, segment: rack1, address: 10.0.1.12, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: node3, segment: rack2, address: 10.0.2.11, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: late, segment: rack2, address: 10.0.2.12, pods: 0, env: {CARACAL_SERVICES: 'on'}}
  - {name: outside, kind: plain, segment: rack1, address: 10.0.1.31}
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPConfiguration
    metadata: {name: default}
    spec: {serviceExternalIPs: [{cidr: 192.0.2.0/24}, {cidr: '2001:db8:2::/64'}]}
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: outside}
    spec: {node: node1, peerIP: 10.0.1.31, asNumber: 65001}
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: outside6}
    spec: {node: node1, peerIP: 'fd00:10:0:1::31', asNumber: 65001}
";
/// The BIRD of the router, which takes the first node with whatever AS it has.
const ROUTER: &str = "router id 10.0.1.31;
protocol device {}
protocol kernel { ipv4 { import none; export all; }; }
protocol kernel six { ipv6 { import none; export all; }; }
template bgp neighbour {
  local as 65001;
  connect retry time 1; connect delay time 1; error wait time 1, 2;
}
protocol bgp node1 from neighbour {
  neighbor 10.0.1.11 external;
  ipv4 { import all; export none; };
}
protocol bgp node1six from neighbour {
  neighbor fd00:10:0:1::11 external;
  ipv6 { import all; export none; };
}
";
/// A Service whose addresses the node of its endpoint announces.
const SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd00:96::10'], ipFamilyPolicy: PreferDualStack, externalIPs: [192.0.2.10, '2001:db8:2::10'], externalTrafficPolicy: Local, ports: [{port: 80}]}
";
/// Where its endpoint listens.
const TARGET: u16 = 8080;
/// The node of its endpoint.
const SERVER: &str = "node1";
const NODES: [&str; 3] = ["node1", "node2", "node3"];
/// It leaves before a change and joins after it.
const LATE: &str = "late";
/// So long may neither packets get through nor anybody say why.
const SILENCE: Duration = Duration::from_secs(45);
/// So long may it take until nothing is left of a change.
const AFTERMATH: Duration = Duration::from_secs(90);

fn number(name: &str, otherwise: u64) -> u64 {
    let set = std::env::var(name).ok().filter(|text| !text.is_empty());
    set.map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

/// It is shown for ten minutes after all is as it was.
const OVER: &str = "node.written_again";
const OVER_IN_AUDIT: &str = "CRL-D007";
/// An empty block of a pool that is gone goes after the collector's grace period (docs/ipam.md).
const LEFT_TO_THE_COLLECTOR: &str = "agent.would_cut_off IPAMBlock";

/// Each problem, without the numbers that move.
fn problems(lab: &Lab, node: &str) -> Result<BTreeSet<String>, String> {
    let text = |p: &Problem| format!("{} {}", p.code, p.subject);
    let status = lab.node_status(node);
    let status = status.map_err(|error| format!("no status of {node}: {}", error_chain(&error)))?;
    let now = status.problems.iter().filter(|p| p.code != OVER);
    Ok(now.map(text).collect())
}

/// Whether `/readyz` says something of it: it is not ready, or a problem is noted.
fn probe_agrees(lab: &Lab, node: &str) -> Result<bool, String> {
    let (status, body) = get_http(lab, node, 9099, "/readyz")?;
    Ok(status == 503 || body.contains("[!] "))
}

/// What does not reach what, and the nodes of which one has to say why.
type Lost = BTreeMap<(String, String), BTreeSet<String>>;

/// Pairs of pods without an answer, in any family, and the announced addresses without one.
fn lost(lab: &Lab) -> Lost {
    let mut all = Lost::new();
    for family in lab.topology().families() {
        let matrix = lab.ping_matrix_of(family, Duration::ZERO).unwrap();
        let pairs = matrix.lost().into_iter().map(|(from, to, _)| {
            let nodes = [from, to].map(|pod| node_of(pod).to_owned());
            ((from.to_owned(), to.to_owned()), nodes.into())
        });
        all.extend(pairs);
    }
    all.extend(unserved(lab));
    all
}

fn node_of(pod: &str) -> &str {
    pod.split('/').next().unwrap_or_default()
}

/// The announced addresses of the Service that do not answer, to the router or to a pod of another
/// node.
fn unserved(lab: &Lab) -> Lost {
    let others = lab.state().pods.iter().filter(|pod| pod.node != SERVER);
    let pods = others.map(|pod| (pod.label(), pod.netns.clone(), pod.node.as_str()));
    let outside = lab.netns("outside").unwrap();
    let clients = std::iter::once(("outside".to_owned(), outside, SERVER)).chain(pods);
    let addresses = ["192.0.2.10", "2001:db8:2::10"].map(|text| text.parse::<IpAddr>().unwrap());
    let asked = clients.flat_map(|client| addresses.map(|to| (client.clone(), to)));
    std::thread::scope(|scope| {
        let ask = |((client, netns, node), to): ((String, String, &str), IpAddr)| {
            let nodes = [node, SERVER].map(str::to_owned);
            let ask = move || VipConnection::open(&netns, (to, 80).into()).is_err();
            (((client, to.to_string()), nodes.into()), scope.spawn(ask))
        };
        let all: Vec<_> = asked.map(ask).collect();
        let lost = all.into_iter().filter_map(|(what, asking)| {
            let is_lost = asking.join().expect("a client that asks");
            is_lost.then_some(what)
        });
        lost.collect()
    })
}

/// Starts BIRD on the router.
fn start_router(lab: &Lab) -> Processes {
    let mut processes = Processes::new(&format!("{}-outside", lab.name()));
    std::fs::write(processes.folder().join("bird.conf"), ROUTER).unwrap();
    let mut bird = program_command("bird").unwrap();
    bird.args(["-f", "-c", "bird.conf", "-s", "bird.ctl", "-P", "bird.pid"]);
    let netns = lab.netns("outside").unwrap();
    processes.start("bird", Some(&netns), &mut bird);
    processes
}

/// Gives the cluster its Service, and waits until it is served everywhere.
fn serve(lab: &Lab) -> EchoServer {
    let families = lab.topology().families();
    let mut pods = lab.state().pods.iter();
    let pod = pods.find(|pod| pod.node == SERVER).unwrap();
    let server = EchoServer::start(pod, &families, TARGET);
    let endpoint = PodEndpoint {
        pod,
        port: TARGET,
        terminates: false,
    };
    let slices = endpoint_slices("web", &families, &[TARGET], &[endpoint]);
    Services(lab).prepare();
    Services(lab).apply(&format!("{SERVICE}{slices}"));
    wait_until(60 * SECOND, "the Service to be served", || {
        let unserved = unserved(lab);
        match unserved.is_empty() {
            true => Ok(()),
            false => Err(format!("{unserved:?}")),
        }
    })
    .unwrap_or_else(|e| panic!("{e}\n{}", logs(lab.name())));
    server
}

/// What was seen against the sentence; the tests go on, to see more.
#[derive(Default)]
struct Verdict(Vec<String>);

impl Verdict {
    /// Packets get through, or a node of each pair that is lost says why, and its audit as well.
    fn told(&mut self, lab: &Lab, when: &str) {
        let told = wait_until(SILENCE, "packets or a reason", || {
            for ((from, to), nodes) in lost(lab) {
                let said = nodes.iter().map(|node| problems(lab, node));
                let said = said.collect::<Result<Vec<_>, _>>()?;
                if said.iter().all(BTreeSet::is_empty) {
                    return Err(format!("{from} does not reach {to}, and nobody says why"));
                }
                let agree = nodes.iter().map(|node| probe_agrees(lab, node));
                if !agree.collect::<Result<Vec<_>, _>>()?.contains(&true) {
                    return Err(format!(
                        "{from} does not reach {to}: {said:?}, and /readyz is content"
                    ));
                }
                let finds = |node: &String| exit_code(lab, node, &["audit"]).0 != 0;
                if !nodes.iter().any(finds) {
                    return Err(format!(
                        "{from} does not reach {to}: {said:?}, and audit finds nothing"
                    ));
                }
            }
            Ok(())
        });
        self.note(lab, when, told.map_err(|e| e.to_string()));
    }

    /// Everything gets through and nobody complains, `audit` included.
    fn healed(&mut self, lab: &Lab, when: &str) {
        let healed = wait_until(AFTERMATH, "all to be well again", || {
            let lost = lost(lab);
            let said = caracals(lab).into_iter().map(|node| {
                let mut all = problems(lab, &node)?;
                all.retain(|text| !text.starts_with(LEFT_TO_THE_COLLECTOR));
                Ok(all)
            });
            let said = said.collect::<Result<Vec<_>, String>>()?;
            if !lost.is_empty() || !said.iter().all(BTreeSet::is_empty) {
                return Err(format!("lost {lost:?}, problems {said:?}"));
            }
            for node in NODES {
                let (code, found) = exit_code(lab, node, &["audit"]);
                let findings = found.lines().filter(|line| line.contains("CRL-"));
                let excused = |line: &str| {
                    line.contains(OVER_IN_AUDIT)
                        || (line.contains("IPAMBlock") && line.contains("would_cut_off"))
                };
                if code != 0 && !findings.clone().all(excused) {
                    return Err(format!("audit of {node}: {code}: {found}"));
                }
            }
            Ok(())
        });
        self.note(lab, when, healed.map_err(|e| e.to_string()));
    }

    fn note(&mut self, lab: &Lab, when: &str, seen: Result<(), String>) {
        if let Err(fault) = seen {
            println!("  AGAINST IT: {when}: {fault}");
            let tails = NODES.map(|node| format!("{node}:\n{}", lab.folder().log_tail(node, 15)));
            println!("{}", tails.join("\n"));
            self.0.push(format!("{when}: {fault}"));
        }
    }
}

fn restart(lab: &mut Lab, node: &str) {
    lab.kill9_node(node).unwrap();
    lab.start_node(node).unwrap();
    let socket = scaled_time(60 * SECOND);
    wait_until(socket, "the node to answer", || {
        lab.node_status(node).map_err(|e| error_chain(&e))
    })
    .unwrap_or_else(|e| panic!("{node}: {e}\n{}", logs(lab.name())));
}

/// A node that nobody has heard of yet; the pod that it gets, and what does not reach it or is not
/// reached, with the reason that is given.
fn join(lab: &mut Lab, change: &Change, verdict: &mut Verdict, when: &str) {
    lab.stop_node(LATE).unwrap();
    let of_kubelet = leave(lab);
    let library = lab.folder().lib(LATE);
    std::fs::remove_dir_all(&library).unwrap();
    std::fs::create_dir(&library).unwrap();
    change.make(lab);
    if let Some(node) = of_kubelet {
        kubectl(lab, &["create", "-f", "-"], node.to_string().as_bytes());
    }
    lab.start_node(LATE).unwrap();
    let pod = more_pods(lab, [LATE]).remove(0);
    bind_pods(lab, std::slice::from_ref(&pod));
    let mut given = None;
    let told = wait_until(SILENCE, "a pod's packets or a reason", || {
        if given.is_none() {
            match lab.cni("ADD", &pod) {
                Ok(answer) => given = parse_cni_result(&answer),
                Err(error) => {
                    let error = error_chain(&error);
                    // It has just started.
                    if error.contains("is not in the datastore") {
                        return Err(error);
                    }
                    // A pod that does not come up is told to whoever asked for it.
                    println!("  no pod on {LATE}: {error}");
                    return Ok(());
                }
            }
        }
        let given = given.as_ref().expect("just made");
        let second = given.address6.map(IpAddr::V6);
        for own in std::iter::once(given.address).chain(second) {
            for other in &lab.state().pods {
                let Some(address) = other.address_of(Family::of(own)) else {
                    continue;
                };
                if pings(&pod.netns, address) && pings(&other.netns, own) {
                    continue;
                }
                if problems(lab, LATE)?.is_empty() && problems(lab, &other.node)?.is_empty() {
                    let other = other.label();
                    return Err(format!("{own} and {other} ({address}): nobody says why"));
                }
            }
        }
        Ok(())
    });
    verdict.note(lab, when, told.map_err(|e| e.to_string()));
    verdict.told(lab, when);
    lab.cni("DEL", &pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    if is_kubernetes(lab) {
        unbind_pod(lab, &pod);
    }
    ip_batch(None, &[format!("netns del {}", pod.netns)]).unwrap();
}

/// The node leaves the datastore; its Node as a kubelet makes it, where there are kubelets, whose
/// Nodes are Kubernetes' to delete.
fn leave(lab: &Lab) -> Option<Value> {
    if !is_kubernetes(lab) {
        let (code, said) = exit_code(lab, "node1", &["node", "delete", LATE, "--force"]);
        assert_eq!(code, 0, "{said}");
        return None;
    }
    let mut node = kubernetes_object(lab, "nodes", LATE);
    let labels = node["metadata"]["labels"].take();
    node["metadata"] = json!({"name": LATE, "labels": labels});
    kubectl(lab, &["delete", "node", LATE], b"");
    Some(node)
}

/// As after a reboot: nothing of the node's is left in the kernel but its pods' interfaces.
fn boot(lab: &mut Lab, node: &str, change: &Change) {
    lab.stop_node(node).unwrap();
    change.make(lab);
    for device in ["vxlan.calico", "vxlan-v6.calico"] {
        let _ = try_run_on(lab, node, &format!("ip link del {device}"));
    }
    for table in ["caracal", "caracal-services"] {
        let _ = try_run_on(lab, node, &format!("nft delete table inet {table}"));
    }
    lab.start_node(node).unwrap();
}

fn pings(netns: &str, to: IpAddr) -> bool {
    let mut ping = program_command("ping").unwrap();
    ping.args(["-n", "-q", "-c1", "-W1", &to.to_string()]);
    call_program(Some(netns), &mut ping, b"", 30 * SECOND).is_ok()
}

/// A node that was away while the change was made: it comes with nothing but what is on its disk.
fn rejoin(lab: &mut Lab, node: &str, change: &Change) {
    lab.kill9_node(node).unwrap();
    change.make(lab);
    lab.start_node(node).unwrap();
}

fn follow(mut lab: Lab, steps: u64) {
    let _router = start_router(&lab);
    await_settled(&lab);
    let _server = serve(&lab);
    let seed = number("CARACAL_SEED", 7);
    let first = number("CARACAL_FIRST", 0);
    let mut verdict = Verdict::default();
    for step in first..first + steps {
        // A step is the same whichever came before it.
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (step + 1));
        let _mixed = (random.number(), random.number());
        let change = draw(&mut random, &lab);
        let node = *random.of(&NODES);
        let name = format!("seed {seed}, step {step}: {}", change.what);
        println!("{}: {name}", lab.name());
        match random.below(5) {
            0 => {
                let when = format!("{name}; {LATE} joined");
                join(&mut lab, &change, &mut verdict, &when);
                restart(&mut lab, node);
                verdict.told(&lab, &format!("{when}, {node} restarted"));
            }
            1 => {
                rejoin(&mut lab, node, &change);
                verdict.told(&lab, &format!("{name}; {node} was away meanwhile"));
            }
            2 => {
                boot(&mut lab, node, &change);
                verdict.told(&lab, &format!("{name}; {node} was booted"));
            }
            _ => {
                change.make(&lab);
                verdict.told(&lab, &name);
                restart(&mut lab, node);
                verdict.told(&lab, &format!("{name}; {node} restarted"));
            }
        }
        change.take_back(&lab);
        verdict.healed(&lab, &format!("{name}; taken back"));
    }
    assert!(caracals(&lab).iter().all(|node| lab.node_runs(node)));
    assert!(
        verdict.0.is_empty(),
        "{} times:\n{}",
        verdict.0.len(),
        verdict.0.join("\n")
    );
}

/// The same nodes in one segment, with a pool that nothing encapsulates: all routes are BGP's.
fn one_segment() -> String {
    let text = TOPOLOGY.replace(", vxlanMode: CrossSubnet", "").replace(
        "segment: rack2, address: 10.0.2.",
        "segment: rack1, address: 10.0.1.2",
    );
    let start = text.find("  - {name: rack2").expect("a second rack");
    let end = text.find("nodes:").expect("nodes");
    [&text[..start], &text[end..]].concat()
}

#[test]
fn without_encapsulation_packets_get_through_or_somebody_says_why_on_etcd() {
    let scenario = "without encapsulation packets get through or somebody says why";
    if possible(scenario, &["ping", "bird", "nft"]) {
        let text = Stack::Dual.topology(&one_segment());
        follow(
            up_text(&text, "changes", "chg-flat"),
            number("CARACAL_STEPS", 6),
        );
    }
}

#[test]
fn without_encapsulation_packets_get_through_or_somebody_says_why_on_kubernetes() {
    let scenario = "without encapsulation packets get through or somebody says why";
    if possible(scenario, &["ping", "bird", "nft", "kubectl", "openssl"]) {
        let text = on_kubernetes_datastore(&Stack::Dual.topology(&one_segment()));
        follow(
            up_text(&text, "changes", "chg-flat-k8"),
            number("CARACAL_STEPS", 4),
        );
    }
}

#[test]
fn packets_get_through_or_somebody_says_why_on_etcd() {
    if possible(
        "packets get through or somebody says why",
        &["ping", "bird", "nft"],
    ) {
        let text = Stack::Dual.topology(TOPOLOGY);
        follow(
            up_text(&text, "changes", "chg"),
            number("CARACAL_STEPS", 12),
        );
    }
}

#[test]
fn packets_get_through_or_somebody_says_why_on_kubernetes() {
    if possible(
        "packets get through or somebody says why",
        &["ping", "bird", "nft", "kubectl", "openssl"],
    ) {
        let text = on_kubernetes_datastore(&Stack::Dual.topology(TOPOLOGY));
        follow(
            up_text(&text, "changes", "chg-k8"),
            number("CARACAL_STEPS", 8),
        );
    }
}
