//! Host endpoints: what comes to the nodes themselves, leaves them, and passes through them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use caracal_lab::{Lab, PodState, run_in_netns, wait_until};
use caracal_tests::{
    SECOND, addresses as addresses_of, apply_nft, assert_gone, await_settled, await_status,
    delete_calico_resource, exit_code, has_no_problem, on_each_stack_of, put_calico_resource,
    put_etcd_resource, run_on,
};
use serde_json::{Value, json};

use super::await_pairs;

/// Pods of different nodes meet in tunnels, whose packets are the nodes' own.
const TOPOLOGY: &str = "name: hosts
pool: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: Always}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 1, env: {CARACAL_POLICY: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 1, env: {CARACAL_POLICY: 'on'}}
  - {name: n3, segment: lan, address: 10.0.0.13, pods: 1, env: {CARACAL_POLICY: 'on'}}
";
/// Nobody listens at these: a node that is reached says so.
const WEB: u16 = 8080;
const OTHER: u16 = 8081;
const SSH: u16 = 22;
const BGP: u16 = 179;
/// A port of the node that is translated to the first one.
const NODE_PORT: u16 = 30080;
/// That of a flow that is there before all host endpoints.
const HELD: u16 = 7000;

#[test]
fn host_endpoints_close_and_open_nodes() {
    let scenario = "host_endpoints_close_and_open_nodes";
    on_each_stack_of(scenario, &["nft"], TOPOLOGY, "hosts", close_and_open);
}

fn reaches(lab: &Lab, from: &str, to: SocketAddr) -> bool {
    let ask = || TcpStream::connect_timeout(&to, SECOND);
    match run_in_netns(&lab.netns(from).unwrap(), ask).unwrap() {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionRefused,
    }
}

/// From a node to a port of another one, and whether it gets there.
pub(super) type Asked = (&'static str, &'static str, u16, bool);

/// In each family it is as wanted, which policies come to within moments.
pub(super) fn await_ports(lab: &Lab, what: &str, wanted: &[Asked]) {
    wait_until(60 * SECOND, what, || {
        for (from, to, port, wanted) in wanted {
            for address in addresses_of(lab, to) {
                let to = SocketAddr::new(address, *port);
                if reaches(lab, from, to) != *wanted {
                    return Err(format!("{from} > {to}: not {wanted}"));
                }
            }
        }
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// Connections in each family, which are to notice nothing of all this.
struct Held(Vec<[TcpStream; 2]>);

impl Held {
    fn begin(lab: &Lab, from: &str, to: &str) -> Self {
        let begin = |address: IpAddr| {
            let to_netns = lab.netns(to).unwrap();
            let place = SocketAddr::new(address, HELD);
            let listener = run_in_netns(&to_netns, || TcpListener::bind(place));
            let listener = listener.unwrap().unwrap();
            let connect = || TcpStream::connect_timeout(&place, 10 * SECOND);
            let ours = run_in_netns(&lab.netns(from).unwrap(), connect);
            let (theirs, _) = listener.accept().unwrap();
            [ours.unwrap().unwrap(), theirs]
        };
        Self(addresses_of(lab, to).into_iter().map(begin).collect())
    }

    fn goes_on(&self) {
        for [ours, theirs] in &self.0 {
            for (mut from, mut to) in [(ours, theirs), (theirs, ours)] {
                to.set_read_timeout(Some(10 * SECOND)).unwrap();
                from.write_all(b"x").unwrap();
                to.read_exact(&mut [0]).unwrap();
            }
        }
    }
}

fn put(lab: &Lab, (kind, plural): (&str, &str), name: &str, role: &str, spec: &Value) {
    put_calico_resource(
        lab,
        plural,
        &json!({"apiVersion": "projectcalico.org/v3", "kind": kind,
            "metadata": {"name": name, "labels": {"role": role}}, "spec": spec}),
    );
}

fn host(lab: &Lab, name: &str, role: &str, spec: &Value) {
    put(lab, ("HostEndpoint", "hostendpoints"), name, role, spec);
}

fn policy(lab: &Lab, name: &str, spec: &Value) {
    let kind = ("GlobalNetworkPolicy", "globalnetworkpolicies");
    put(lab, kind, name, "", spec);
}

fn gone(lab: &Lab, plural: &str, name: &str) {
    delete_calico_resource(lab, plural, name);
}

/// Without host endpoints.
pub(super) const OPEN: [Asked; 2] = [("n2", "n1", WEB, true), ("n1", "n2", WEB, true)];
/// What is open of a node without policies for it: the ports of failsafe, each in its direction.
pub(super) const CLOSED: [Asked; 6] = [
    ("n2", "n1", WEB, false),
    ("n1", "n2", WEB, false),
    ("n2", "n1", SSH, true),
    ("n1", "n2", SSH, false),
    ("n2", "n1", BGP, true),
    ("n1", "n2", BGP, true),
];
/// What a policy for it opens to one of the others.
const OPENED: [Asked; 6] = [
    ("n2", "n1", WEB, true),
    ("n3", "n1", WEB, false),
    ("n2", "n1", OTHER, false),
    ("n1", "n2", WEB, true),
    ("n1", "n2", OTHER, false),
    ("n3", "n1", SSH, true),
];

fn close_and_open(mut lab: Lab) {
    await_settled(&lab);
    let open = json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]});
    put_etcd_resource(&lab, "Profile", "profiles", "kns.default", &open);
    await_pairs(&lab, "all pods to be open", |_, _| true);
    await_ports(&lab, "nodes to be open", &OPEN);
    let held = Held::begin(&lab, "n2", "n1");

    let edge = json!({"node": "n1", "interfaceName": "eth0",
        "expectedIPs": addresses_of(&lab, "n1")});
    host(&lab, "n1-eth0", "edge", &edge);
    await_ports(&lab, "a node to be closed", &CLOSED);
    held.goes_on();
    await_pairs(&lab, "pods to be as open as before", |_, _| true);
    for node in ["n1", "n2", "n3"] {
        await_status(&lab, node, 60 * SECOND, "no complaint", |status| {
            has_no_problem(status, "policy.")
        });
    }
    by_policies(&lab);
    before_translation(&lab);

    // While nobody runs, and after that.
    lab.kill9_node("n1").unwrap();
    await_ports(&lab, "a node without its process", &OPENED);
    lab.restart_node("n1").unwrap();
    await_settled(&lab);
    await_ports(&lab, "a node that was restarted", &OPENED);
    let early = [("n3", "n1", NODE_PORT, true), ("n3", "n1", WEB, false)];
    await_ports(&lab, "a node port after a restart", &early);
    gone(&lab, "globalnetworkpolicies", "early");
    let translated = [
        ("n3", "n1", NODE_PORT, false),
        ("n2", "n1", NODE_PORT, true),
    ];
    await_ports(&lab, "others to judge what is translated", &translated);
    held.goes_on();
    await_pairs(&lab, "pods after a restart", |_, _| true);

    by_all_interfaces(&lab);
    by_address(&lab);
    other_failsafe_ports(&lab);
    gone(&lab, "globalnetworkpolicies", "edge");
    await_ports(&lab, "a node to be closed again", &CLOSED);
    gone(&lab, "hostendpoints", "n1-eth0");
    await_ports(&lab, "nodes to be open again", &OPEN);
    held.goes_on();
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}

/// A policy opens a port to the host endpoint of another node, and one to all.
fn by_policies(lab: &Lab) {
    let open = json!({"node": "n2", "interfaceName": "eth0",
        "expectedIPs": addresses_of(lab, "n2"), "profiles": ["projectcalico-default-allow"]});
    host(lab, "n2-client", "client", &open);
    let to_web = |source: Value| {
        json!([{"action": "Allow", "protocol": "TCP", "source": source,
            "destination": {"ports": [WEB]}}])
    };
    policy(
        lab,
        "edge",
        &json!({"selector": "role == 'edge'", "types": ["Ingress", "Egress"],
            "ingress": to_web(json!({"selector": "role == 'client'",
                "namespaceSelector": "global()"})),
            "egress": to_web(json!({}))}),
    );
    await_ports(lab, "a port to be open", &OPENED);
    let (code, said) = exit_code(lab, "n1", &["policy", "show"]);
    assert_eq!(code, 0, "{said}");
    for word in ["HostEndpoint n1-eth0", "eth0", "GlobalNetworkPolicy edge"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let from = addresses_of(lab, "n2").remove(0);
    let to = addresses_of(lab, "n1").remove(0);
    for (port, wanted) in [
        (
            SSH,
            "HostEndpoint n1-eth0 on n1: allowed by a failsafe port",
        ),
        (WEB, "allowed by rule 1 of GlobalNetworkPolicy edge"),
        (OTHER, "HostEndpoint n1-eth0 on n1: dropped by tier default"),
    ] {
        let to = format!("{}/tcp", SocketAddr::new(to, port));
        let (code, said) = exit_code(lab, "n1", &["policy", "explain", &from.to_string(), &to]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains(wanted), "{said}");
    }
}

/// A policy sees a port of the node as it is asked for, which those behind it see translated.
fn before_translation(lab: &Lab) {
    let rules = format!(
        "table inet node-ports {{
  chain prerouting {{
    type nat hook prerouting priority dstnat
    tcp dport {NODE_PORT} redirect to :{WEB}
  }}
}}
"
    );
    apply_nft(lab, "n1", &rules);
    let translated = [
        ("n2", "n1", NODE_PORT, true),
        ("n3", "n1", NODE_PORT, false),
    ];
    await_ports(lab, "a node port to be judged translated", &translated);
    let early = |action: &str| {
        let rule = json!({"action": action, "protocol": "TCP",
            "destination": {"ports": [NODE_PORT]}});
        let spec = json!({"selector": "role == 'edge'", "applyOnForward": true, "preDNAT": true,
            "types": ["Ingress"], "ingress": [rule]});
        policy(lab, "early", &spec);
    };
    early("Deny");
    let closed = [("n2", "n1", NODE_PORT, false), ("n2", "n1", WEB, true)];
    await_ports(lab, "a node port to be closed", &closed);
    early("Allow");
    let open = [
        ("n2", "n1", NODE_PORT, true),
        ("n3", "n1", NODE_PORT, true),
        ("n3", "n1", WEB, false),
    ];
    await_ports(lab, "a node port to be open", &open);
    await_status(lab, "n1", 60 * SECOND, "no complaint", |status| {
        has_no_problem(status, "policy.")
    });
    let from = addresses_of(lab, "n3").remove(0).to_string();
    let to = SocketAddr::new(addresses_of(lab, "n1").remove(0), NODE_PORT);
    let to = format!("{to}/tcp");
    let (code, said) = exit_code(lab, "n1", &["policy", "explain", &from, &to]);
    let wanted = "allowed by rule 1 of GlobalNetworkPolicy early (before translation)";
    assert!(code == 0 && said.contains(wanted), "{said}");
    let (_, said) = exit_code(lab, "n1", &["policy", "show"]);
    assert!(
        said.contains("GlobalNetworkPolicy early (before translation)"),
        "{said}"
    );
}

/// All interfaces of a node, as kube-controllers make them, and a policy for what passes through.
fn by_all_interfaces(lab: &Lab) {
    let all = json!({"node": "n3", "interfaceName": "*",
        "profiles": ["projectcalico-default-allow"]});
    host(lab, "n3-auto-hep", "all", &all);
    policy(
        lab,
        "through",
        &json!({"selector": "role == 'all'", "applyOnForward": true, "types": ["Ingress"],
            "ingress": [{"action": "Deny"}]}),
    );
    let is_there = |pod: &PodState| pod.node == "n3";
    await_pairs(lab, "what passes through to be dropped", |from, to| {
        !is_there(from) && !is_there(to)
    });
    let closed = [("n2", "n3", WEB, false), ("n2", "n3", SSH, true)];
    await_ports(lab, "the node itself to be closed", &closed);
    // A node reaches its own pods, and itself.
    let own = lab.state().pods.iter().find(|pod| is_there(pod)).cloned();
    for address in super::addresses(&own.unwrap()) {
        let _ = run_on(lab, "n3", &format!("ping -n -q -c1 -W5 {address}"));
    }
    await_ports(lab, "the node to reach itself", &[("n3", "n3", WEB, true)]);
    gone(lab, "globalnetworkpolicies", "through");
    await_pairs(lab, "what passes through to pass again", |_, _| true);
    await_ports(lab, "the profile to open", &[("n2", "n3", WEB, true)]);
    gone(lab, "hostendpoints", "n3-auto-hep");
}

/// One that is known by an address, whose name is before that of one which names the interface.
fn by_address(lab: &Lab) {
    let spec = json!({"node": "n2", "expectedIPs": addresses_of(lab, "n2")});
    host(lab, "n2-by-address", "none", &spec);
    let closed = [("n3", "n2", WEB, false), ("n3", "n2", SSH, true)];
    await_ports(lab, "the interface with the address to be closed", &closed);
    let late = json!({"node": "n2", "expectedIPs": ["192.0.2.77"]});
    host(lab, "n2-by-address", "none", &late);
    await_ports(lab, "the other one to count", &[("n3", "n2", WEB, true)]);
    let _ = run_on(lab, "n2", "ip address add 192.0.2.77/32 dev eth0");
    await_ports(lab, "an address that comes to count", &closed);
    let _ = run_on(lab, "n2", "ip address del 192.0.2.77/32 dev eth0");
    await_ports(lab, "one that goes to count", &[("n3", "n2", WEB, true)]);
    gone(lab, "hostendpoints", "n2-by-address");
}

fn other_failsafe_ports(lab: &Lab) {
    let felix = |ports: Value| {
        let kind = ("FelixConfiguration", "felixconfigurations", "node.n1");
        let spec = json!({"failsafeInboundHostPorts": ports});
        put_etcd_resource(lab, kind.0, kind.1, kind.2, &spec);
    };
    felix(json!([{"protocol": "TCP", "port": OTHER}]));
    let other = [("n2", "n1", SSH, false), ("n2", "n1", OTHER, true)];
    await_ports(lab, "another port to be failsafe", &other);
    felix(json!([]));
    let none = [("n2", "n1", SSH, false), ("n2", "n1", OTHER, false)];
    await_ports(lab, "none to be failsafe", &none);
    gone(lab, "felixconfigurations", "node.n1");
    await_ports(lab, "the failsafe ports again", &[("n2", "n1", SSH, true)]);
}
