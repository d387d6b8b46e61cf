//! Hostile pods and hostile data: a pod is not a node, and no key cuts a node off from its
//! datastore.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket};

use caracal_lab::{Lab, run_in_netns, wait_until};
use caracal_model::{Block, BlockOwner, Family, Prefix};
use caracal_tests::{
    SECOND, Stack, address_of, apply_nft, assert_full_matrix, assert_gone, await_settled,
    await_status, either, exit_code, has_problem, in_ipip_kernel, on_each_stack_of, possible,
    put_etcd_resource, run_on, up_text,
};
use serde_json::json;

const TOPOLOGY: &str = "
name: hostile
description: two nodes
pool: {cidr: 10.244.0.0/16, natOutgoing: true}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, pods: 2}
  - {name: node2, segment: lan, pods: 1}
";

/// Whether a connection to a port comes about, from a node or a pod.
fn connects(lab: &Lab, from: &str, to: (IpAddr, u16)) -> bool {
    let connect = || TcpStream::connect_timeout(&SocketAddr::from(to), 2 * SECOND).is_ok();
    run_in_netns(&lab.netns(from).unwrap(), connect).unwrap()
}

#[test]
fn neither_pods_nor_keys_cut_a_node_off() {
    let scenario = "neither_pods_nor_keys_cut_a_node_off";
    let programs = ["nft", "iptables-legacy"];
    on_each_stack_of(scenario, &programs, TOPOLOGY, "e2e-hostile", |mut lab| {
        await_settled(&lab);
        pods_are_kept_from_nodes(&lab);
        by_iptables(&lab);
        policies_are_told(&lab);
        a_lock_is_told(&lab);
        a_block_over_etcd(&mut lab);
        await_settled(&lab);
        assert_full_matrix(&lab);
        let name = lab.name().clone();
        lab.down().unwrap();
        assert_gone(&name);
    });
}

fn pods_are_kept_from_nodes(lab: &Lab) {
    for family in lab.topology().families() {
        pods_do_not_speak_bgp(lab, family);
        pods_do_not_speak_bfd(lab, family);
        pods_do_not_speak_by_translation(lab, family);
    }
    a_configured_workload_speaks_bgp(lab);
}

/// Another port than BGP's, open.
fn listener(lab: &Lab, node: &str, address: IpAddr) -> TcpListener {
    let free = || TcpListener::bind((address, 1790)).map_err(|e| e.to_string());
    let listen = || wait_until(60 * SECOND, "a free port", free).unwrap();
    run_in_netns(&lab.netns(node).unwrap(), listen).unwrap()
}

/// TCP 179 of its own node and of another one is closed to a pod; to nodes it is open, and so is
/// all else to pods.
fn pods_do_not_speak_bgp(lab: &Lab, family: Family) {
    let pod = "node1/p1";
    for node in ["node1", "node2"] {
        let address = address_of(lab, node, family);
        let listener = listener(lab, node, address);
        assert!(
            connects(lab, pod, (address, 1790)),
            "{pod} to {node}, another port"
        );
        drop(listener);
        assert!(
            !connects(lab, pod, (address, 179)),
            "{pod} to BGP of {node}"
        );
    }
    let far = address_of(lab, "node2", family);
    assert!(connects(lab, "node1", (far, 179)), "node1 to BGP of node2");
    if family == Family::Ipv6 {
        pods_do_not_speak_bgp_on_their_link(lab, pod);
    }
}

/// The node's end of a pod's link has an address of its own.
fn pods_do_not_speak_bgp_on_their_link(lab: &Lab, pod: &str) {
    let state = lab.state();
    let known = state
        .pods
        .iter()
        .find(|known| known.label() == pod)
        .unwrap();
    let end = known.host_interface.as_deref().unwrap();
    let shown = run_on(
        lab,
        "node1",
        &format!("ip -6 -o addr show dev {end} scope link"),
    );
    let mut words = shown.split_whitespace().skip_while(|word| *word != "inet6");
    let (address, _) = words.nth(1).unwrap().split_once('/').unwrap();
    let shown = run_on(lab, pod, "ip -o link show dev eth0");
    let index = shown.split(':').next().unwrap().trim().parse().unwrap();
    let address = address.parse().unwrap();
    let connects = |port: u16| {
        let to = SocketAddrV6::new(address, port, 0, index);
        let connect = || TcpStream::connect_timeout(&to.into(), 2 * SECOND).is_ok();
        run_in_netns(&lab.netns(pod).unwrap(), connect).unwrap()
    };
    let listener = listener(lab, "node1", Ipv6Addr::UNSPECIFIED.into());
    assert!(connects(1790), "{pod} to {address}, another port");
    drop(listener);
    assert!(!connects(179), "{pod} to BGP on its own link");
}

/// Sends a packet for each of these ports of a node until the last one arrives; which arrived. `to`
/// says where each is sent.
fn arrive(
    lab: &Lab,
    from: &str,
    node: &str,
    to: impl Fn(u16) -> SocketAddr + Sync,
    ports: &[u16],
) -> Vec<u16> {
    let address = address_of(lab, node, Family::of(to(0).ip()));
    // A program that another thread is starting has a copy of the sockets of before for a moment.
    let bind = |port: &u16| {
        let free = || UdpSocket::bind((address, *port)).map_err(|e| e.to_string());
        let socket = wait_until(60 * SECOND, "a free port", free).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let sockets: Vec<UdpSocket> = run_in_netns(&lab.netns(node).unwrap(), || {
        ports.iter().map(bind).collect()
    })
    .unwrap();
    let send = || {
        let any: IpAddr = match address {
            IpAddr::V4(_) => [0; 4].into(),
            IpAddr::V6(_) => [0; 16].into(),
        };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        for port in ports {
            // The kernel may say here what an ICMP message said of the packet before.
            let _sent = socket.send_to(&[0x20; 24], to(*port));
        }
    };
    let from = lab.netns(from).unwrap();
    let arrived = |socket: &UdpSocket| match socket.recv(&mut [0; 64]) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            false
        }
    };
    let mut seen = vec![false; ports.len()];
    wait_until(60 * SECOND, "a packet to the last port", || {
        run_in_netns(&from, send).unwrap();
        for (seen, socket) in seen.iter_mut().zip(&sockets) {
            *seen |= arrived(socket);
        }
        if seen.last() == Some(&true) {
            Ok(())
        } else {
            Err("none")
        }
    })
    .unwrap_or_else(|e| panic!("{node}, {address}: {e}"));
    // Packets sent before the last one to arrive are there by now, if they were let through.
    let there = ports.iter().zip(seen).zip(&sockets);
    let there = there.filter(|((_, seen), socket)| *seen || arrived(socket));
    there.map(|((port, _), _)| *port).collect()
}

/// BFD's ports of nodes (RFC 5881, RFC 5883) are closed to pods and open to nodes; another port is
/// open to both.
fn pods_do_not_speak_bfd(lab: &Lab, family: Family) {
    for node in ["node1", "node2"] {
        let address = address_of(lab, node, family);
        let ports = [3784, 4784, 3790];
        let of_pod = arrive(lab, "node1/p1", node, |port| (address, port).into(), &ports);
        assert_eq!(of_pod, [3790], "a pod to {node} over {family}");
    }
    let far = address_of(lab, "node2", family);
    let ports = [3784, 4784, 3790];
    let of_node = arrive(lab, "node1", "node2", |port| (far, port).into(), &ports);
    assert_eq!(of_node, ports, "a node over {family}");
}

/// Ports of a pod's own node and of another one that somebody else's table, and not the datastore,
/// has lead to BGP, BFD and VXLAN of either. A pod would speak with the address of its own node
/// there, and with the other one's.
fn pods_do_not_speak_by_translation(lab: &Lab, family: Family) {
    for via in ["node1", "node2"] {
        pods_do_not_speak_by(lab, via, family);
    }
}

fn pods_do_not_speak_by(lab: &Lab, via: &str, family: Family) {
    const HIGHER: u16 = 26_000;
    let by = address_of(lab, via, family);
    let word = either(family, "ip", "ip6");
    for node in ["node1", "node2"] {
        let address = address_of(lab, node, family);
        let (tcp, udp) = ([179, 1790], [3784, 4784, 4789, 3790]);
        let to = |port: u16| SocketAddr::from((by, port + HIGHER));
        let rule = |protocol: &str, port: u16| {
            let (sent, at) = (to(port).port(), SocketAddr::from((address, port)));
            format!("{word} daddr {by} {protocol} dport {sent} dnat to {at}\n")
        };
        let rules = tcp.map(|p| rule("tcp", p)).concat() + &udp.map(|p| rule("udp", p)).concat();
        let script = format!(
            "table {word} theirs {{
            chain there {{\ntype nat hook prerouting priority -100\n{rules}}}
            chain back {{\ntype nat hook postrouting priority 100\nct status dnat masquerade\n}}
            }}\n"
        );
        apply_nft(lab, via, &script);
        let listener = listener(lab, node, address);
        let reaches = |port: u16| connects(lab, "node1/p1", (by, to(port).port()));
        assert!(reaches(1790), "{family}: a pod to {node} by {via}");
        assert!(!reaches(179), "{family}: a pod to BGP of {node} by {via}");
        drop(listener);
        let arrived = arrive(lab, "node1/p1", node, to, &udp);
        assert_eq!(arrived, [3790], "{family}: a pod to {node} by {via}");
        run_on(lab, via, &format!("nft delete table {word} theirs"));
    }
}

/// kube-proxy's way in its mode `ipvs`: ports of node2 lead to node1. Conntrack knows nothing of
/// the translation.
#[test]
fn pods_do_not_speak_by_ipvs() {
    let scenario = "pods_do_not_speak_by_ipvs";
    if !possible(scenario, &["ipvsadm", "iptables-legacy"]) {
        return;
    }
    in_ipip_kernel(scenario, || {
        let lab = up_text(&Stack::Dual.topology(TOPOLOGY), "hostile", "e2e-ipvs");
        await_settled(&lab);
        for family in lab.topology().families() {
            pods_do_not_speak_by_ipvs_of(&lab, family);
        }
        lab.down().unwrap();
    });
}

fn pods_do_not_speak_by_ipvs_of(lab: &Lab, family: Family) {
    const HIGHER: u16 = 26_000;
    let [by, node] = ["node2", "node1"].map(|node| address_of(lab, node, family));
    let iptables = either(family, "iptables-legacy", "ip6tables-legacy");
    let (tcp, udp) = ([179, 1790], [3784, 4784, 4789, 3790]);
    let to = |port: u16| SocketAddr::from((by, port + HIGHER));
    let leads = |(protocol, port): (&str, u16)| {
        let word = &protocol[..1];
        let (sent, at) = (to(port), SocketAddr::from((node, port)));
        run_on(lab, "node2", &format!("ipvsadm -A -{word} {sent} -s rr"));
        run_on(
            lab,
            "node2",
            &format!("ipvsadm -a -{word} {sent} -r {at} -m"),
        );
        run_on(
            lab,
            "node2",
            &format!(
                "{iptables} -w -t nat -A POSTROUTING -d {node} -p {protocol} --dport {port} -j MASQUERADE"
            ),
        );
    };
    let all = tcp.map(|port| ("tcp", port)).into_iter();
    all.chain(udp.map(|port| ("udp", port))).for_each(leads);
    // As kube-proxy sets it: what it translates is masqueraded.
    run_on(lab, "node2", "sysctl -qw net.ipv4.vs.conntrack=1");
    let listener = listener(lab, "node1", node);
    let reaches = |port: u16| connects(lab, "node1/p1", (by, to(port).port()));
    assert!(reaches(1790), "{family}: a pod to node1 by node2");
    assert!(!reaches(179), "{family}: a pod to BGP of node1 by node2");
    drop(listener);
    let arrived = arrive(lab, "node1/p1", "node1", to, &udp);
    assert_eq!(arrived, [3790], "{family}: a pod to node1 by node2");
    // A node's own process is no pod.
    assert!(connects(lab, "node2", (node, 179)), "{family}: node2");
}

/// A workload that a BGPPeer names by `localWorkloadSelector` may speak to its own node, and to no
/// other; another workload of the node may not.
fn a_configured_workload_speaks_bgp(lab: &Lab) {
    const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
    let pod = &lab.state().pods[0];
    assert_eq!(pod.label(), "node1/p1");
    let keys = lab.etcdctl(&["get", ENDPOINTS, "--prefix", "--keys-only"], b"");
    let keys = keys.unwrap();
    let mut own = keys.lines().filter(|key| !key.is_empty()).map(|key| {
        let text = lab
            .etcdctl(&["get", key, "--print-value-only"], b"")
            .unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        (key, value)
    });
    let (key, before) = own
        .find(|(_, value)| value["spec"]["containerID"] == pod.container.as_str())
        .expect("the pod's endpoint");
    let mut labelled = before.clone();
    labelled["metadata"]["labels"]["role"] = "router".into();
    let put = |value: &serde_json::Value| {
        lab.etcdctl(&["put", key], value.to_string().as_bytes())
            .unwrap();
    };
    put(&labelled);
    let spec = json!({"localWorkloadSelector": "role == 'router'", "asNumber": 65010});
    put_etcd_resource(lab, "BGPPeer", "bgppeers", "router", &spec);
    for family in lab.topology().families() {
        let own = (address_of(lab, "node1", family), 179);
        let opened = wait_until(60 * SECOND, "the peer's way to be open", || match connects(
            lab, "node1/p1", own,
        ) {
            true => Ok(()),
            false => Err("it is closed"),
        });
        opened.unwrap_or_else(|e| panic!("{family}: {e}"));
        assert!(!connects(lab, "node1/p2", own), "another pod, {family}");
        let far = (address_of(lab, "node2", family), 179);
        assert!(!connects(lab, "node1/p1", far), "another node, {family}");
    }
    let peer = "/calico/resources/v3/projectcalico.org/bgppeers/router";
    lab.etcdctl(&["del", peer], b"").unwrap();
    put(&before);
    for family in lab.topology().families() {
        let own = (address_of(lab, "node1", family), 179);
        let closed = wait_until(
            60 * SECOND,
            "the way to be closed again",
            || match connects(lab, "node1/p1", own) {
                true => Err("it is open"),
                false => Ok(()),
            },
        );
        closed.unwrap_or_else(|e| panic!("{family}: {e}"));
    }
}

/// The same rules written by iptables, and back.
fn by_iptables(lab: &Lab) {
    let backend = |mode: &str, wanted: bool| {
        let spec = json!({"nftablesMode": mode});
        put_etcd_resource(
            lab,
            "FelixConfiguration",
            "felixconfigurations",
            "default",
            &spec,
        );
        let programs = lab.topology().families().into_iter();
        let programs: Vec<_> = programs
            .map(|family| either(family, "iptables-legacy -S", "ip6tables-legacy -S"))
            .collect();
        for (node, program) in ["node1", "node2"]
            .into_iter()
            .flat_map(|node| programs.iter().map(move |program| (node, *program)))
        {
            let rules = || {
                let rules = run_on(lab, node, program);
                // Rules of both are there for a moment, and none of them is to be counted for the
                // other's.
                let nft = run_on(lab, node, "nft list tables").contains("caracal");
                let ours = rules.contains("-j caracal-bgp") && rules.contains("-A caracal-bgp");
                match ours == wanted && nft != wanted {
                    true => Ok(()),
                    false => Err(format!("nft {nft}: {rules}")),
                }
            };
            wait_until(60 * SECOND, "the rules to be the other program's", rules)
                .unwrap_or_else(|e| panic!("{node}, {program}: {e}"));
        }
    };
    backend("Disabled", true);
    pods_are_kept_from_nodes(lab);
    backend("Enabled", false);
}

fn policies_are_told(lab: &Lab) {
    let spec = json!({"selector": "all()", "types": ["Ingress"]});
    put_etcd_resource(
        lab,
        "NetworkPolicy",
        "networkpolicies",
        "default/closed",
        &spec,
    );
    let is_reported = |status: &caracal_model::NodeStatus| {
        has_problem(status, "policy.not_enforced", "default/closed")
    };
    await_status(
        lab,
        "node1",
        60 * SECOND,
        "the policy to be told",
        is_reported,
    );
    for command in [["doctor"].as_slice(), &["audit"], &["migrate", "plan"]] {
        let (_, text) = exit_code(lab, "node1", command);
        assert!(text.contains("default/closed"), "{command:?}: {text}");
    }
    let key = "/calico/resources/v3/projectcalico.org/networkpolicies/default/closed";
    lab.etcdctl(&["del", key], b"").unwrap();
}

/// Every view names the lock and the command that ends it; the node stays ready.
fn a_lock_is_told(lab: &Lab) {
    let does = |arguments: &[&str]| exit_code(lab, "node1", arguments);
    let (code, said) = does(&["datastore", "lock"]);
    assert_eq!(code, 0, "{said}");
    let told = |status: &caracal_model::NodeStatus| {
        has_problem(status, "datastore.locked", "caracal datastore unlock")
    };
    await_status(lab, "node1", 60 * SECOND, "the lock to be told", told);
    for (command, code) in [("doctor", "datastore.ready"), ("audit", "CRL-D009")] {
        let (exit, said) = does(&[command]);
        assert_eq!(exit, 4, "{command}: {said}");
        let remedy = "caracal datastore unlock";
        assert!(
            said.contains(code) && said.contains(remedy),
            "{command}: {said}"
        );
    }
    let (_, said) = does(&["ipam", "why", "node1"]);
    assert!(said.contains("caracal datastore unlock"), "{said}");
    let (code, said) = does(&["datastore", "unlock"]);
    assert_eq!(code, 0, "{said}");
    await_settled(lab);
    let (_, said) = does(&["audit"]);
    assert!(!said.contains("CRL-D009"), "{said}");
    let (code, said) = does(&["node", "takeover", "nodee1"]);
    assert_eq!(code, 3, "{said}");
}

/// A block of node1 whose range holds etcd's address: named, and no blackhole; one that is there
/// from before goes at the start.
fn a_block_over_etcd(lab: &mut Lab) {
    let layout = lab.layout().node("node1").unwrap();
    let endpoint = layout.etcd_endpoint.trim_start_matches("http://");
    let endpoint = endpoint.parse::<SocketAddr>().unwrap().ip();
    let family = Family::of(endpoint);
    let (len, ip) = either(family, (26, "ip -4"), (122, "ip -6"));
    let bad = Prefix::truncated(endpoint, len);
    let owner = BlockOwner::Host("node1".into());
    let block = Block::new(bad, Some(&owner), 1);
    let key = caracal_model::Key::Block(bad).to_path();
    lab.etcdctl(&["put", &key], &block.to_json()).unwrap();
    let is_reported = |status: &caracal_model::NodeStatus| {
        let mut problems = status.problems.iter();
        match problems.any(|p| p.code == "agent.would_cut_off" && p.subject == key) {
            true => Ok(()),
            false => Err(format!("{:?}", status.problems)),
        }
    };
    await_status(lab, "node1", 60 * SECOND, "the key to be told", is_reported);
    let routes = |lab: &Lab| run_on(lab, "node1", &format!("{ip} route show type blackhole"));
    assert!(!routes(lab).contains(&bad.to_string()), "{}", routes(lab));
    // As an older version has left it; the process that starts cannot read a thing until it is
    // gone.
    lab.kill9_node("node1").unwrap();
    run_on(
        lab,
        "node1",
        &format!("{ip} route add blackhole {bad} proto 80 metric 1000000"),
    );
    assert!(
        !connects(lab, "node1", (endpoint, 2379)),
        "the blackhole works"
    );
    lab.start_node("node1").unwrap();
    await_status(
        lab,
        "node1",
        60 * SECOND,
        "the key to be told again",
        is_reported,
    );
    assert!(!routes(lab).contains(&bad.to_string()), "{}", routes(lab));
    // Mended.
    lab.etcdctl(&["del", &key], b"").unwrap();
    let mended = || match lab.node_status("node1") {
        Ok(status) if status.problems.iter().all(|p| p.subject != key) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_until(60 * SECOND, "the problem to go", mended).unwrap_or_else(|e| panic!("{e}"));
}
