//! Behaviour particular to IPv6, on this machine's kernel. What is the same in both families is in
//! the other scenarios, which run on IPv4, IPv6 and dual stack each ([`caracal_tests::stack`]).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_lab::{
    Lab, RouteKind, call_program, program_command, run_in_netns, wait_for, wait_until,
};
use caracal_model::{Family, Kind, Node, NodeStatus, PeerStatusJson};
use caracal_tests::{
    PROBE_RATE, Probes, RouteMonitor, SECOND, Stack, assert_full_matrix, await_settled,
    await_status, caracals, count_routes, example, ip, more_pods, possible, routes_by_kind,
    settled, try_run_on, up, up_text,
};

/// The link-local address that follows from the MAC ee:ee:ee:ee:ee:ee (RFC 4291, appendix A): every
/// pod's gateway.
const GATEWAY: &str = "fe80::ecee:eeff:feee:eeee";

/// Output of a program in a namespace of the lab.
fn said(lab: &Lab, target: &str, words: &str) -> String {
    let netns = lab.netns(target).unwrap();
    let mut words = words.split(' ');
    let mut command = program_command(words.next().unwrap()).unwrap();
    command.args(words);
    call_program(Some(&netns), &mut command, b"", 60 * SECOND).unwrap()
}

fn sysctl(lab: &Lab, node: &str, path: &str) -> String {
    let netns = lab.netns(node).unwrap();
    let path = format!("/proc/sys/net/{path}");
    let text = run_in_netns(&netns, || std::fs::read_to_string(&path)).unwrap();
    text.unwrap_or_else(|e| panic!("{path}: {e}"))
        .trim()
        .to_owned()
}

/// The first pod of a node: its address of IPv6 and the node's end of its cable.
fn pod(lab: &Lab, node: &str) -> (IpAddr, String) {
    let pod = lab.state().pods.iter().find(|p| p.node == node).unwrap();
    let address = pod.address_of(Family::Ipv6).unwrap();
    (address, pod.host_interface.clone().unwrap())
}

fn ping(lab: &Lab, from: &str, to: IpAddr, size: u32) {
    // Of one attempt, and with all the time of a loaded machine.
    said(lab, from, &format!("ping -n -c1 -W10 -M do -s {size} {to}"));
}

/// Routes, devices, switches and addresses of a dual-stack node, as Calico's have them.
#[test]
fn a_dual_stack_node_is_as_calicos() {
    if !possible("a_dual_stack_node_is_as_calicos", &[]) {
        return;
    }
    let lab = up("dual-stack", "v6-shape");
    await_settled(&lab);
    assert_full_matrix(&lab);
    for node in caracals(&lab) {
        let (address, cable) = pod(&lab, &node);
        for (path, value) in [
            ("ipv6/conf/all/forwarding".to_owned(), "1"),
            (format!("ipv6/conf/{cable}/forwarding"), "1"),
            (format!("ipv6/conf/{cable}/proxy_ndp"), "1"),
            (format!("ipv6/conf/{cable}/accept_ra"), "0"),
            ("ipv4/ip_forward".to_owned(), "1"),
        ] {
            assert_eq!(sysctl(&lab, &node, &path), value, "{node}: {path}");
        }
        let cables = said(&lab, &node, &format!("ip -6 addr show dev {cable}"));
        assert!(
            cables.contains(&format!("inet6 {GATEWAY}/64 scope link")),
            "{cables}"
        );
        let inside = said(&lab, &format!("{node}/p1"), "ip -6 addr show dev eth0");
        assert!(
            inside.contains(&format!("inet6 {address}/128 scope global")),
            "{inside}"
        );
        let default = said(&lab, &format!("{node}/p1"), "ip -6 route show default");
        assert!(
            default.starts_with(&format!("default via {GATEWAY} dev eth0 ")),
            "{default}"
        );

        let routes = said(&lab, &node, "ip -6 route show proto 80");
        let line = |start: String| {
            let found = routes.lines().find(|l| l.starts_with(&start));
            found.unwrap_or_else(|| panic!("{node}: no {start:?} in\n{routes}"))
        };
        line(format!("{address} dev {cable} metric 1024"));
        line("blackhole fd00:10:244:".to_owned());
        for (kind, route) in routes_by_kind(&lab, &node) {
            let is_ipv6 = route.dst.contains(':');
            if let (RouteKind::Vxlan, true, Some(vtep)) = (kind, is_ipv6, route.gateway) {
                assert_eq!(route.dev.as_deref(), Some("vxlan-v6.calico"), "{route:?}");
                line(format!("{vtep} dev vxlan-v6.calico metric 1024 mtu 1430"));
            }
        }
        // Both tunnels at once: one VNI and one port, an outer header of each family.
        let own = lab.layout().node(&node).unwrap().uplink.clone();
        for (device, family, mtu) in [
            ("vxlan.calico", Family::Ipv4, 1450),
            ("vxlan-v6.calico", Family::Ipv6, 1430),
        ] {
            let (local, _) = own.address_of(family).unwrap();
            let link = said(&lab, &node, &format!("ip -d link show dev {device}"));
            for words in [
                format!(" mtu {mtu} "),
                format!("vxlan id 4096 local {local} dev eth0 "),
                "dstport 4789 nolearning".to_owned(),
            ] {
                assert!(link.contains(&words), "{node}: no {words:?} in\n{link}");
            }
        }
        // The tunnel's address does not wait for duplicate address detection; the kernel's own
        // link-local one may.
        let waiting = "ip -6 addr show dev vxlan-v6.calico scope global tentative";
        assert_eq!(said(&lab, &node, waiting), "");
    }
}

/// The datastore has what Calico's nodes need to know of ours.
#[test]
fn a_dual_stack_node_is_registered_with_both_addresses() {
    if !possible("a_dual_stack_node_is_registered_with_both_addresses", &[]) {
        return;
    }
    let lab = up("dual-stack", "v6-node");
    await_settled(&lab);
    for name in caracals(&lab) {
        let key = caracal_model::Key::resource(Kind::Node, name.as_str()).to_path();
        let own = lab.layout().node(&name).unwrap().uplink.clone();
        let complete = || {
            let text = lab
                .etcdctl(&["get", "--print-value-only", &key], b"")
                .map_err(|e| e.to_string())?;
            let node = Node::from_json(text.trim().as_bytes()).map_err(|e| e.to_string())?;
            match node.spec.ipv6_vxlan_tunnel_addr {
                Some(_) => Ok(node),
                None => Err(text),
            }
        };
        let node = wait_until(60 * SECOND, "the tunnel's address", complete).unwrap();
        for (address, len) in own.addresses() {
            let family = Family::of(address);
            let cidr = node.spec.cidr(family).unwrap();
            assert_eq!((cidr.address, cidr.len), (address, len), "{node:?}");
            let listed = format!("{address}/{len}");
            assert!(
                node.spec
                    .addresses
                    .iter()
                    .any(|a| a.kind == "CalicoNodeIP" && a.address == listed),
                "{node:?}"
            );
        }
        let vtep: IpAddr = node.spec.ipv6_vxlan_tunnel_addr.unwrap().into();
        let on_device = said(&lab, &name, "ip -6 addr show dev vxlan-v6.calico");
        assert!(
            on_device.contains(&format!("inet6 {vtep}/128 scope global")),
            "{on_device}"
        );
    }
}

/// Nodes and their pods reach each other too, with packets as large as the pod's interface takes.
#[test]
fn nodes_reach_pods_and_full_packets_pass() {
    if !possible("nodes_reach_pods_and_full_packets_pass", &[]) {
        return;
    }
    let lab = up("dual-stack", "v6-hosts");
    await_settled(&lab);
    assert_full_matrix(&lab);
    // 40 octets of IPv6 header and 8 of ICMPv6 beside the payload; 1430 is what fits the tunnel.
    for (from, to) in [
        ("node1", "node1"),
        ("node1", "node2"),
        ("node1", "node3"),
        ("node3", "node1"),
    ] {
        let (address, _) = pod(&lab, to);
        ping(&lab, from, address, 1430 - 48);
    }
    for (from, to) in [("node1/p1", "node2"), ("node1/p1", "node3")] {
        let (address, _) = pod(&lab, to);
        ping(&lab, from, address, 1430 - 48);
        let node = lab
            .layout()
            .node(to)
            .unwrap()
            .uplink
            .address_of(Family::Ipv6);
        ping(&lab, from, node.unwrap().0, 1430 - 48);
    }
}

/// The address is usable the moment ADD has returned: no packet waits for duplicate address
/// detection.
#[test]
fn a_pods_first_packet_is_answered() {
    if !possible("a_pods_first_packet_is_answered", &[]) {
        return;
    }
    let lab = up("ipv6", "v6-first");
    await_settled(&lab);
    assert_full_matrix(&lab);
    let pod = lab.state().pods.iter().find(|p| p.node == "node1");
    let pod = pod.unwrap().clone();
    let target = self::pod(&lab, "node2").0;
    for _ in 0..3 {
        lab.cni("DEL", &pod).unwrap();
        lab.cni("ADD", &pod).unwrap();
        assert_eq!(
            said(
                &lab,
                "node1/p1",
                "ip -6 addr show dev eth0 scope global tentative"
            ),
            ""
        );
        ping(&lab, "node1/p1", target, 56);
    }
}

/// No IPv4 anywhere, and yet every speaker has an identifier of its own, from its node's name.
#[test]
fn ipv6_alone_has_no_ipv4_address_anywhere() {
    if !possible("ipv6_alone_has_no_ipv4_address_anywhere", &["tcpdump"]) {
        return;
    }
    let lab = up("ipv6", "v6-alone");
    await_settled(&lab);
    let capture = lab.capture_segment("lan", "ip or arp").unwrap();
    assert_full_matrix(&lab);
    let mut ids = BTreeSet::new();
    for node in caracals(&lab) {
        let status = lab.node_status(&node).unwrap();
        assert!(status.problems.is_empty(), "{:?}", status.problems);
        assert_eq!(status.peers.len(), 2);
        assert!(
            status
                .peers
                .iter()
                .all(|p| p.address.is_some_and(|a| a.is_ipv6()))
        );
        ids.insert(status.router_id.clone());
        assert_eq!(said(&lab, &node, "ip -4 addr show scope global"), "");
        assert_eq!(said(&lab, &node, "ip -4 route show"), "");
        assert_eq!(said(&lab, &format!("{node}/p1"), "ip -4 route show"), "");
    }
    assert_eq!(ids.len(), 3, "{ids:?}");
    assert_eq!(capture.stop().packets, Vec::<String>::new());
}

/// One family without an address is no pod: what the other gave is given back.
#[test]
fn a_pod_gets_both_addresses_or_none() {
    if !possible("a_pod_gets_both_addresses_or_none", &[]) {
        return;
    }
    let lab = up("dual-stack", "v6-both");
    await_settled(&lab);
    let in_use = |status: &NodeStatus| {
        [Family::Ipv4, Family::Ipv6].map(|family| {
            let blocks = status.blocks.iter().filter(|b| b.cidr.family() == family);
            blocks.map(|b| b.in_use).sum::<usize>()
        })
    };
    let disable = |off: bool| {
        let key = "/calico/resources/v3/projectcalico.org/ippools/default-ipv6-ippool";
        let text = lab
            .etcdctl(&["get", key, "--print-value-only"], b"")
            .unwrap();
        let mut pool: serde_json::Value = serde_json::from_str(&text).unwrap();
        pool["spec"]["disabled"] = off.into();
        lab.etcdctl(&["put", key], pool.to_string().as_bytes())
            .unwrap();
    };
    let pod = lab.state().pods.iter().find(|p| p.node == "node1");
    let pod = pod.unwrap().clone();
    lab.cni("DEL", &pod).unwrap();
    // Only the addresses of the tunnels are left.
    let now = || in_use(&lab.node_status("node1").unwrap());
    wait_for(60 * SECOND, "both addresses free", now, |n| *n == [1, 1]).unwrap();
    disable(true);
    let refusal = lab.cni("ADD", &pod).unwrap_err();
    let words = caracal_lab::error_chain(&refusal);
    assert!(words.contains("IPv6"), "{words}");
    let revision: i64 = {
        let text = lab
            .etcdctl(&["get", "/", "--limit=1", "-w", "json"], b"")
            .unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["header"]["revision"].as_i64().unwrap()
    };
    // The node has seen everything up to now, and the pod holds nothing; the tunnels keep theirs,
    // as other nodes' pods have addresses of the disabled pool.
    let nothing = [1, 1];
    await_status(&lab, "node1", 60 * SECOND, "nothing held", |s| {
        let seen = in_use(s);
        if s.datastore.revision >= revision && seen == nothing {
            Ok(())
        } else {
            Err(format!("{:?} {seen:?}, of {revision}", s.datastore))
        }
    });
    disable(false);
    let answer = lab.cni("ADD", &pod).unwrap();
    let attachment = caracal_lab::parse_cni_result(&answer).unwrap();
    assert!(
        attachment.address.is_ipv4() && attachment.address6.is_some(),
        "{answer}"
    );
}

/// A node loses its IPv6 address as routers renumber, and gets it back: IPv4 does not notice.
#[test]
fn an_ipv6_address_that_goes_takes_nothing_of_ipv4_with_it() {
    if !possible(
        "an_ipv6_address_that_goes_takes_nothing_of_ipv4_with_it",
        &[],
    ) {
        return;
    }
    let lab = up("dual-stack", "v6-lost");
    await_settled(&lab);
    assert_full_matrix(&lab);
    let probes = Probes::start_of(
        &lab,
        &[("node1/p1", "node2/p1"), ("node3/p1", "node1/p1")],
        Family::Ipv4,
        PROBE_RATE,
    );
    let netns = lab.netns("node1").unwrap();
    let (address, len) = lab
        .layout()
        .node("node1")
        .unwrap()
        .uplink
        .address_of(Family::Ipv6)
        .unwrap();
    let ip = |verb: &str, rest: &str| {
        let line = format!("addr {verb} {address}/{len} dev eth0 {rest}");
        caracal_lab::ip_batch(Some(&netns), &[line]).unwrap();
    };
    ip("del", "");
    await_status(
        &lab,
        "node1",
        60 * SECOND,
        "the missing address named",
        |s| match s.problems.iter().find(|p| p.code == "agent.no_parent") {
            Some(p) if p.reason.contains(&address.to_string()) => Ok(()),
            _ => Err(format!("{:?}", s.problems)),
        },
    );
    probes.after(1000);
    ip("add", "nodad");
    await_status(&lab, "node1", 60 * SECOND, "settled", |s| {
        settled(s)?;
        if s.problems.is_empty() {
            Ok(())
        } else {
            Err(format!("{:?}", s.problems))
        }
    });
    let both = || [RouteKind::Direct, RouteKind::Vxlan].map(|k| count_routes(&lab, "node1", k));
    wait_for(60 * SECOND, "all routes", both, |n| *n == [2, 4]).unwrap();
    assert_full_matrix(&lab);
    probes.after(500);
    probes.assert_none_lost("IPv4, while the node's IPv6 address goes and comes back");
}

/// Anti-spoofing by our rules, which let neighbour discovery through.
#[test]
fn a_pod_sends_only_from_its_own_ipv6_address() {
    if !possible(
        "a_pod_sends_only_from_its_own_ipv6_address",
        &["tcpdump", "nft"],
    ) {
        return;
    }
    let lab = up("ipv6", "v6-spoof");
    await_settled(&lab);
    assert_full_matrix(&lab);
    let (own, _) = pod(&lab, "node1");
    let (target, cable) = pod(&lab, "node2");
    let requests = "icmp6 and ip6[40] == 128";
    let seen = lab.capture("node2", &cable, requests).unwrap();
    let neighbour = lab.state().pods.iter().filter(|p| p.node == "node1").nth(1);
    let neighbour = neighbour.unwrap().address_of(Family::Ipv6).unwrap();
    for source in [neighbour.to_string(), "2001:db8::9".to_owned()] {
        said(
            &lab,
            "node1/p1",
            &format!("ip addr add {source}/128 dev lo nodad"),
        );
        let spoofed = format!("ping -n -c 2 -i 0.2 -W 1 -I {source} {target}");
        assert!(
            try_run_on(&lab, "node1/p1", &spoofed).is_err(),
            "{source} got an answer"
        );
        said(
            &lab,
            "node1/p1",
            &format!("ip addr del {source}/128 dev lo"),
        );
    }
    // The node forgets the pod's MAC, and asks for it anew.
    let (_, own_cable) = pod(&lab, "node1");
    said(&lab, "node1", &format!("ip -6 neigh flush dev {own_cable}"));
    ping(&lab, "node1/p1", target, 56);
    seen.wait_for(1, 60 * SECOND).unwrap();
    let from_own = format!("IP6 {own} > {target}");
    let packets = seen.stop().packets;
    assert!(packets.iter().all(|p| p.contains(&from_own)), "{packets:?}");
}

/// A cluster of IPv4 alone becomes one of both families while its pods talk: nodes get addresses of
/// IPv6 and are started again one after the other with the variables for it, which also makes the
/// pool. IPv4 does not notice, and new pods have both addresses.
#[test]
fn an_ipv4_cluster_becomes_dual_stack_under_traffic() {
    if !possible("an_ipv4_cluster_becomes_dual_stack_under_traffic", &[]) {
        return;
    }
    let text = std::fs::read_to_string(example("full-mesh")).unwrap();
    let text = text.replace("blockSize: 26", "blockSize: 26\n  vxlanMode: Always");
    let before = up_text(&text, "full-mesh", "v6-become");
    await_settled(&before);
    assert_full_matrix(&before);
    let ring = [
        ("node1/p1", "node2/p1"),
        ("node2/p1", "node3/p1"),
        ("node3/p1", "node1/p1"),
    ];
    let monitors: Vec<_> = caracals(&before)
        .iter()
        .map(|n| RouteMonitor::start(&before, n))
        .collect();
    let probes = Probes::start_of(&before, &ring, Family::Ipv4, PROBE_RATE);
    probes.after(500);

    // The same lab by another plan.
    std::fs::write(before.folder().topology(), Stack::Dual.topology(&text)).unwrap();
    let mut lab = Lab::attach(before.name()).unwrap();
    let nodes = caracals(&lab);
    for node in &nodes {
        let uplink = lab.layout().node(node).unwrap().uplink.clone();
        let (address, len) = uplink.address_of(Family::Ipv6).unwrap();
        let line = format!("addr add {address}/{len} dev eth0 nodad");
        ip(&lab, node, &[&line]);
    }
    probes.after(500);
    for node in &nodes {
        lab.stop_node(node).unwrap();
        lab.restart_node(node).unwrap();
        probes.after(500);
    }
    await_settled(&lab);
    for node in &nodes {
        await_status(&lab, node, 60 * SECOND, "sessions of both families", |s| {
            let of = |v6: bool| {
                let family = |p: &&PeerStatusJson| p.address.is_some_and(|a| a.is_ipv6() == v6);
                s.peers.iter().filter(family).count()
            };
            match [of(false), of(true)] {
                [2, 2] => settled(s),
                other => Err(format!("{other:?}")),
            }
        });
    }
    let added = more_pods(&lab, nodes.iter().map(String::as_str));
    let mut addresses = Vec::new();
    for pod in &added {
        let answer = lab.cni("ADD", pod).unwrap();
        let attachment = caracal_lab::parse_cni_result(&answer).unwrap();
        assert!(attachment.address.is_ipv4(), "{answer}");
        addresses.push(IpAddr::V6(attachment.address6.expect("both addresses")));
    }
    for (n, pod) in added.iter().enumerate() {
        for to in addresses.iter().filter(|to| **to != addresses[n]) {
            let words = ["-n", "-c1", "-W5", &to.to_string()];
            wait_until(60 * SECOND, "a new pod's ping over IPv6", || {
                let mut ping = program_command("ping").unwrap();
                ping.args(words);
                call_program(Some(&pod.netns), &mut ping, b"", 30 * SECOND)
                    .map_err(|e| e.to_string())
            })
            .unwrap_or_else(|e| panic!("{e}"));
        }
    }
    // Pods from before keep what they have.
    let matrix = lab.ping_matrix_of(Family::Ipv4, 60 * SECOND).unwrap();
    assert!(matrix.is_full(), "{:?}", matrix.lost());
    probes.after(500);
    probes.assert_none_lost("IPv4, while the cluster becomes dual stack");
    for monitor in &monitors {
        monitor.assert_nothing_deleted_of(Family::Ipv4, "while the cluster becomes dual stack");
    }
}
