//! BGPPeer resources: scopes, selectors, reverse peering, reflectors.

use super::cluster::{THREE, codes, config, names, peer, planned, snapshot};
use super::*;

const NO_MESH: &str = "
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false}
";

/// a is a plain node, r and s are reflectors of one cluster, t of another.
const REFLECTORS: &str = "
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 10.0.0.1/24}}
---
kind: Node
metadata: {name: r, labels: {rr: 'true'}}
spec: {bgp: {ipv4Address: 10.0.0.2/24, routeReflectorClusterID: 244.0.0.1}}
---
kind: Node
metadata: {name: s, labels: {rr: 'true'}}
spec: {bgp: {ipv4Address: 10.0.0.3/24, routeReflectorClusterID: 244.0.0.1}}
---
kind: Node
metadata: {name: t, labels: {rr: 'true'}}
spec: {bgp: {ipv4Address: 10.0.0.4/24, routeReflectorClusterID: 244.0.0.2}}
---
kind: BGPPeer
metadata: {name: to-reflectors}
spec: {nodeSelector: all(), peerSelector: has(rr)}
";

#[test]
fn reflectors_and_their_clients() {
    let a = config("a", &[REFLECTORS, NO_MESH]);
    assert_eq!(
        names(&a),
        ["Node_10_0_0_2", "Node_10_0_0_3", "Node_10_0_0_4"]
    );
    assert!(
        a.peers
            .values()
            .all(|p| p.client_of.is_none() && !p.passive)
    );
    let r = config("r", &[REFLECTORS, NO_MESH]);
    // The plain node comes from the reverse of the resource.
    assert_eq!(
        names(&r),
        ["Node_10_0_0_1", "Node_10_0_0_3", "Node_10_0_0_4"]
    );
    let cluster = |name: &str| peer(&r, name).client_of.map(|c| c.to_string());
    assert_eq!(cluster("Node_10_0_0_1").as_deref(), Some("244.0.0.1"));
    assert_eq!(cluster("Node_10_0_0_3"), None);
    assert_eq!(cluster("Node_10_0_0_4").as_deref(), Some("244.0.0.1"));
}

#[test]
fn a_reflector_takes_no_part_in_the_mesh() {
    assert_eq!(
        names(&config("a", &[REFLECTORS])),
        ["Node_10_0_0_2", "Node_10_0_0_3", "Node_10_0_0_4"]
    );
    let lonely = REFLECTORS.split("---\nkind: BGPPeer").next().unwrap();
    assert_eq!(names(&config("a", &[lonely])), [] as [&str; 0]);
    assert_eq!(names(&config("r", &[lonely])), [] as [&str; 0]);
}

#[test]
fn every_session_is_planned_by_both_ends() {
    for texts in [&[THREE][..], &[REFLECTORS, NO_MESH], &[REFLECTORS]] {
        let all = snapshot(texts);
        let plans: BTreeMap<_, _> = all
            .nodes
            .iter()
            .map(|(name, node)| {
                let address = node.spec.address(Family::Ipv4).unwrap();
                (address, plan(&all, name, &PlanOptions::default()).config)
            })
            .collect();
        for (own, config) in &plans {
            for peer in config.peers.values() {
                let back = plans[&peer.address]
                    .peers
                    .values()
                    .find(|p| p.address == *own);
                let back = back.unwrap_or_else(|| panic!("{} has no peer {own}", peer.address));
                assert!(!(peer.passive && back.passive));
            }
        }
    }
}

#[test]
fn a_global_peer_outside_the_cluster() {
    let text = "
kind: BGPPeer
metadata: {name: tor}
spec:
  peerIP: 10.0.0.254
  asNumber: 65100
  localASNumber: 64600
  keepOriginalNextHop: true
  maxRestartTime: 90s
  keepaliveTime: 20s
  sourceAddress: None
  numAllowedLocalASNumbers: 3
  ttlSecurity: 2
---
kind: BGPPeer
metadata: {name: tor-high-port}
spec: {peerIP: '10.0.0.254:1179', asNumber: 65100, nextHopMode: Self, keepOriginalNextHop: true}
";
    let a = config("a", &[THREE, NO_MESH, text]);
    assert_eq!(
        names(&a),
        ["Global_10_0_0_254", "Global_10_0_0_254_port_1179"]
    );
    let tor = peer(&a, "Global_10_0_0_254");
    assert_eq!(tor.kind, "global");
    assert_eq!(
        (tor.remote_as, tor.local_as),
        (Asn(65100), Some(Asn(64600)))
    );
    assert_eq!(tor.next_hop, NextHopMode::Keep.into());
    assert_eq!(
        tor.graceful_restart.unwrap().restart_time,
        Duration::from_secs(90)
    );
    assert_eq!(tor.hold_time, Duration::from_secs(60));
    assert_eq!((tor.source, tor.passive), (None, false));
    assert_eq!(tor.allow_own_as, 3);
    assert_eq!((tor.ttl, tor.ttl_security), (Some(255), Some(2)));
    let high = peer(&a, "Global_10_0_0_254_port_1179");
    assert_eq!((high.port, high.next_hop), (1179, NextHopMode::Own.into()));
    assert_eq!(high.source, Some("10.0.0.9".parse().unwrap()));
}

#[test]
fn bfd_is_done_with_peers_on_a_link_of_the_node() {
    let text = "
kind: BGPPeer
metadata: {name: near}
spec: {peerIP: 10.0.0.254, asNumber: 65100, failureDetectionMode: BFDIfDirectlyConnected}
---
kind: BGPPeer
metadata: {name: far}
spec: {peerIP: 10.9.0.254, asNumber: 65100, failureDetectionMode: BFDIfDirectlyConnected}
---
kind: BGPPeer
metadata: {name: hops}
spec: {peerIP: 10.0.0.253, asNumber: 65100, ttlSecurity: 2, failureDetectionMode: BFDIfDirectlyConnected}
---
kind: BGPPeer
metadata: {name: link}
spec: {peerIP: 10.0.0.252, asNumber: 65100, ttlSecurity: 1, failureDetectionMode: BFDIfDirectlyConnected}
---
kind: BGPPeer
metadata: {name: without}
spec: {peerIP: 10.0.0.251, asNumber: 65100, failureDetectionMode: None}
---
kind: BGPPeer
metadata:
  name: annotated
  annotations: {caracal.io/failure-detection-mode: BFDIfDirectlyConnected}
spec: {peerIP: 10.0.0.250, asNumber: 65100}
---
kind: BGPPeer
metadata:
  name: overruled
  annotations: {caracal.io/failure-detection-mode: BFDIfDirectlyConnected}
spec: {peerIP: 10.0.0.249, asNumber: 65100, failureDetectionMode: None}
---
kind: BGPPeer
metadata:
  name: misspelt
  annotations: {caracal.io/failure-detection-mode: bfd}
spec: {peerIP: 10.0.0.248, asNumber: 65100}
";
    let plan = planned("a", &[THREE, NO_MESH, text]);
    let peer = |host: &str| peer(&plan.config, &format!("Global_{}", host.replace('.', "_")));
    for (host, ttl) in [("10.0.0.254", 1), ("10.0.0.252", 255), ("10.0.0.250", 1)] {
        let near = peer(host);
        // Others take a restart of ours for a death unless BFD is graceful on both sides.
        assert!(near.bfd.is_some_and(|bfd| bfd.graceful), "{host}");
        assert_eq!(near.ttl, Some(ttl), "{host}");
    }
    for host in [
        "10.9.0.254",
        "10.0.0.253",
        "10.0.0.251",
        "10.0.0.249",
        "10.0.0.248",
    ] {
        assert_eq!(peer(host).bfd, None, "{host}");
    }
    assert_eq!(peer("10.9.0.254").ttl, None);
    let said: Vec<&str> = plan.problems.iter().map(|p| p.reason.as_str()).collect();
    assert!(
        said.len() == 1 && said[0].starts_with("failureDetectionMode \"bfd\" is neither"),
        "{said:?}"
    );
}

#[test]
fn a_global_peer_that_is_a_node_waits_like_the_mesh_and_is_reversed() {
    let text = "
kind: BGPPeer
metadata: {name: all-to-c}
spec: {peerIP: 10.0.0.11, asNumber: 65001}
";
    let port = "
kind: BGPConfiguration
metadata: {name: node.c}
spec: {listenPort: 1179}
";
    let a = config("a", &[THREE, NO_MESH, text]);
    assert_eq!(names(&a), ["Global_10_0_0_11"]);
    assert!(!peer(&a, "Global_10_0_0_11").passive);
    assert!(peer(&config("b", &[THREE, NO_MESH, text]), "Global_10_0_0_11").passive);
    let c = config("c", &[THREE, NO_MESH, text]);
    assert_eq!(names(&c), ["Node_10_0_0_10", "Node_10_0_0_9"]);
    assert!(
        c.peers
            .values()
            .all(|p| !p.passive && p.remote_as == Asn(64512))
    );
    let a = config("a", &[THREE, NO_MESH, text, port]);
    assert_eq!(names(&a), ["Global_10_0_0_11_port_1179"]);
    // With the mesh on, the BGPPeer stands in for the mesh session to the same place.
    assert_eq!(
        names(&config("a", &[THREE, text])),
        ["Global_10_0_0_11", "Mesh_10_0_0_10"]
    );
    let manual = "
kind: BGPPeer
metadata: {name: all-to-c}
spec: {peerIP: 10.0.0.11, asNumber: 65001, reversePeering: Manual}
";
    assert_eq!(
        names(&config("c", &[THREE, NO_MESH, manual])),
        [] as [&str; 0]
    );
}

#[test]
fn node_peers_by_name_and_by_selector() {
    let text = "
kind: BGPPeer
metadata: {name: one}
spec: {node: a, peerIP: 10.1.0.1, asNumber: 65100}
---
kind: BGPPeer
metadata: {name: rack}
spec: {nodeSelector: rack == 'r1', peerIP: 10.1.0.2, asNumber: 65100}
";
    assert_eq!(
        names(&config("a", &[THREE, NO_MESH, text])),
        ["Node_10_1_0_1"]
    );
    assert_eq!(
        names(&config("b", &[THREE, NO_MESH, text])),
        ["Node_10_1_0_2"]
    );
    assert_eq!(
        names(&config("c", &[THREE, NO_MESH, text])),
        [] as [&str; 0]
    );
}

#[test]
fn the_first_by_scope_and_name_wins() {
    let text = "
kind: BGPPeer
metadata: {name: a-node}
spec: {node: a, peerIP: 10.1.0.1, asNumber: 1}
---
kind: BGPPeer
metadata: {name: z-global}
spec: {peerIP: 10.1.0.1, asNumber: 2}
---
kind: BGPPeer
metadata: {name: y-global}
spec: {peerIP: 10.1.0.1, asNumber: 3}
";
    let a = config("a", &[THREE, NO_MESH, text]);
    assert_eq!(names(&a), ["Global_10_1_0_1"]);
    assert_eq!(peer(&a, "Global_10_1_0_1").remote_as, Asn(3));
}

#[test]
fn workloads_as_peers() {
    let text = "
kind: WorkloadEndpoint
metadata: {name: w, namespace: default, labels: {bgp: 'yes'}}
spec: {node: a, orchestrator: k8s, endpoint: eth0, interfaceName: cali1, ipNetworks: [10.244.0.5/32]}
---
kind: BGPPeer
metadata: {name: local}
spec: {localWorkloadSelector: has(bgp), asNumber: 65200}
";
    let a = config("a", &[THREE, NO_MESH, text]);
    assert_eq!(names(&a), ["Local_Workload_10_244_0_5"]);
    let w = peer(&a, "Local_Workload_10_244_0_5");
    assert!(w.passive && w.source.is_none());
    assert_eq!(w.kind, "workload");
    assert_eq!(
        names(&config("b", &[THREE, NO_MESH, text])),
        [] as [&str; 0]
    );
}

#[test]
fn topo_2_a_peer_that_cannot_be_says_why() {
    let text = "
kind: BGPPeer
metadata: {name: nothing}
spec: {nodeSelector: all()}
---
kind: BGPPeer
metadata: {name: six}
spec: {peerIP: 'fd00::1', asNumber: 65100}
---
kind: BGPPeer
metadata: {name: secret}
spec: {peerIP: 10.1.0.1, asNumber: 65100, password: {secretKeyRef: {name: bgp, key: tor}}}
---
kind: BGPPeer
metadata: {name: via}
spec: {peerIP: 10.1.0.2, asNumber: 65100, reachableBy: 10.0.0.254, keepaliveTime: 1ms, maxRestartTime: 2h}
---
kind: BGPPeer
metadata: {name: workload}
spec: {localWorkloadSelector: all()}
";
    let a = planned("a", &[THREE, NO_MESH, text]);
    assert_eq!(names(&a.config), ["Global_10_1_0_2"]);
    let seen: Vec<_> = a
        .problems
        .iter()
        .map(|p| (p.code.as_str(), p.subject.rsplit('/').next().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            ("bgp.keepalive_time", "via"),
            ("bgp.password", "secret"),
            ("bgp.peer", "nothing"),
            ("bgp.peer", "six"),
            ("bgp.peer", "workload"),
            ("bgp.restart_time", "via"),
        ]
    );
    assert_eq!(codes(&a).len(), 6);
    let via: (Prefix, IpAddr) = ("10.1.0.2/32".parse().unwrap(), [10, 0, 0, 254].into());
    assert_eq!(a.kernel.reachable_by, BTreeMap::from([via]));
}

#[test]
fn addresses_that_no_peer_can_have_are_named() {
    let text = "
kind: BGPPeer
metadata: {name: zero}
spec: {peerIP: 0.0.0.0, asNumber: 65100}
---
kind: BGPPeer
metadata: {name: many}
spec: {peerIP: 224.0.0.5, asNumber: 65100}
---
kind: BGPPeer
metadata: {name: me}
spec: {node: a, peerIP: 10.0.0.9, asNumber: 65100}
---
kind: BGPPeer
metadata: {name: one-of-us}
spec: {peerIP: 10.0.0.10, asNumber: 64512}
---
kind: Node
metadata: {name: d}
spec: {bgp: {ipv4Address: 0.0.0.0/24}}
";
    let a = planned("a", &[THREE, text]);
    let seen = a
        .problems
        .iter()
        .map(|p| p.subject.rsplit('/').next().unwrap());
    assert_eq!(seen.collect::<Vec<_>>(), ["many", "me", "zero", "d"]);
    let reasons: Vec<_> = a.problems.iter().map(|p| p.reason.as_str()).collect();
    assert!(
        reasons[0].contains("224.0.0.5 is a multicast address"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].contains("own address of the node"),
        "{reasons:?}"
    );
    assert_eq!(names(&a.config), ["Global_10_0_0_10", "Mesh_10_0_0_11"]);
    // The node that the resource for all names is one of many, and no mistake.
    assert_eq!(codes(&planned("b", &[THREE, text])).len(), 3);
}

#[test]
fn another_port_of_the_own_address_is_another_daemon() {
    let text = |scope: &str, peer: &str| {
        format!(
            "
kind: BGPPeer
metadata: {{name: second}}
spec: {{{scope}peerIP: '{peer}', asNumber: 65100}}
---
kind: Node
metadata: {{name: a}}
spec: {{bgp: {{ipv4Address: 10.0.0.9/24, ipv6Address: 'fd00::9/64'}}}}
"
        )
    };
    let of = |node: &str, scope: &str, peer: &str| planned(node, &[THREE, &text(scope, peer)]);
    let peers = |plan: &BgpPlan| -> Vec<String> {
        let names = names(&plan.config).into_iter();
        let of_resource = |name: &String| !name.starts_with("Mesh");
        names
            .map(|name| name.to_string())
            .filter(of_resource)
            .collect()
    };
    for (peer, name) in [
        ("10.0.0.9:1790", "10_0_0_9_port_1790"),
        ("[fd00::9]:1790", "fd00__9_port_1790"),
    ] {
        let own = of("a", "node: a, ", peer);
        assert_eq!(peers(&own), [format!("Node_{name}")]);
        assert_eq!(codes(&own), [""; 0], "{:?}", own.problems);
        assert_eq!(peers(&of("a", "", peer)), [format!("Global_{name}")]);
    }
    // Elsewhere it is a peer as any; a node without an address of the family has none.
    assert_eq!(
        peers(&of("b", "", "10.0.0.9:1790")),
        ["Global_10_0_0_9_port_1790"]
    );
    // Our own port is ourselves, said or not.
    for peer in ["10.0.0.9", "10.0.0.9:179", "[fd00::9]:179", "fd00::9"] {
        let own = of("a", "node: a, ", peer);
        assert_eq!(peers(&own), [""; 0]);
        let reason = &own.problems.first().unwrap().reason;
        assert!(reason.contains("own address of the node"), "{reason}");
        assert_eq!(peers(&of("a", "", peer)), [""; 0]);
    }
    // So is the one that this node was given.
    let other = "
kind: BGPConfiguration
metadata: {name: default}
spec: {listenPort: 1790}
";
    let text = text("node: a, ", "10.0.0.9:1790");
    assert_eq!(peers(&planned("a", &[THREE, other, &text])), [""; 0]);
    let text = text.replace(":1790", ":179");
    assert_eq!(
        peers(&planned("a", &[THREE, other, &text])),
        ["Node_10_0_0_9"]
    );
}

#[test]
fn a_peer_by_the_address_of_a_node_has_the_nodes_as() {
    let text = |address: &str| {
        format!(
            "
kind: BGPPeer
metadata: {{name: p}}
spec: {{node: a, peerIP: {address}}}
"
        )
    };
    let asn = |address: &str| {
        let a = planned("a", &[THREE, NO_MESH, &text(address)]);
        let peer = a.config.peers.values().next().map(|peer| peer.remote_as.0);
        (peer, a.problems.len())
    };
    assert_eq!(asn("10.0.0.10"), (Some(64512), 0), "the cluster's");
    assert_eq!(asn("10.0.0.11"), (Some(65001), 0), "its own");
    assert_eq!(asn("10.9.9.9"), (None, 1), "nobody knows it");
    // The other end has the reverse of it.
    let b = config("b", &[THREE, NO_MESH, &text("10.0.0.10")]);
    assert_eq!(names(&b), ["Node_10_0_0_9"]);
}

/// A typing error takes no session of the mesh, on neither end.
#[test]
fn a_peer_with_a_nodes_address_and_another_as_gives_no_session() {
    let two = "
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 10.0.0.9/24, ipv6Address: 'fd00::9/64'}}
---
kind: Node
metadata: {name: c}
spec: {bgp: {ipv4Address: 10.0.0.11/24, ipv6Address: 'fd00::11/64', asNumber: 65001}}
";
    let mesh = ["Mesh_10_0_0_11", "Mesh_fd00__11"];
    assert_eq!(names(&config("a", &[two])), mesh);
    for (at, place) in [
        ("10.0.0.11", "Global_10_0_0_11"),
        ("'10.0.0.11:179'", "Global_10_0_0_11"),
        ("'fd00::11'", "Global_fd00__11"),
        ("'[fd00::11]:179'", "Global_fd00__11"),
    ] {
        let text = |rest: &str| {
            format!(
                "
kind: BGPPeer
metadata: {{name: p}}
spec: {{peerIP: {at}, {rest}}}
"
            )
        };
        let wrong = text("asNumber: 64512");
        let planned = planned("a", &[two, &wrong]);
        assert_eq!(names(&planned.config), mesh, "{at}");
        assert_eq!(codes(&planned), ["bgp.peer"], "{at}");
        let reason = &planned.problems[0].reason;
        assert!(
            reason.contains("node c, whose AS is 65001 and not 64512"),
            "{reason}"
        );
        let c = config("c", &[two, &wrong]);
        assert_eq!(names(&c), ["Mesh_10_0_0_9", "Mesh_fd00__9"], "{at}");
        // The right AS, and one that the node has for us.
        let right = names(&config("a", &[two, &text("asNumber: 65001")])).join(" ");
        assert!(right.contains(place), "{at}: {right}");
        let local = "
kind: BGPPeer
metadata: {name: of-c}
spec: {node: c, peerIP: 10.0.0.9, asNumber: 64512, localASNumber: 64777}
";
        let as_local = config("a", &[two, &text("asNumber: 64777"), local]);
        let as_local = names(&as_local).join(" ");
        assert!(as_local.contains(place), "{at}: {as_local}");
    }
    // Somebody else listens on another port of that machine.
    let beside = "
kind: BGPPeer
metadata: {name: p}
spec: {peerIP: '10.0.0.11:1790', asNumber: 64512}
";
    let beside = planned("a", &[two, beside]);
    assert_eq!(names(&beside.config).len(), 3);
    assert_eq!(codes(&beside), [""; 0]);
}

#[test]
fn a_session_has_the_name_of_the_bgp_peer_that_asks_for_it() {
    let tor = "
kind: BGPPeer
metadata: {name: tor.r1}
spec: {peerIP: 10.0.0.31, asNumber: 65001}
---
kind: BGPPeer
metadata: {name: to-c}
spec: {node: a, peerIP: 10.0.0.11}
";
    let named = |node: &str| {
        let named = planned(node, &[THREE, tor]).bgp_peers;
        let named = named.into_iter();
        let named = named.map(|(peer, name)| format!("{peer} {name}"));
        named.collect::<Vec<_>>()
    };
    assert_eq!(
        named("a"),
        ["Global_10_0_0_31 tor.r1", "Node_10_0_0_11 to-c"]
    );
    // The other end is the same BGPPeer's; the mesh is nobody's.
    assert_eq!(
        named("c"),
        ["Global_10_0_0_31 tor.r1", "Node_10_0_0_9 to-c"]
    );
    assert_eq!(named("b"), ["Global_10_0_0_31 tor.r1"]);
}

#[test]
fn every_peer_of_a_node_has_a_limit_of_prefixes_and_a_resource_may_say_another() {
    let text = "
kind: BGPPeer
metadata: {name: tor, annotations: {caracal.io/max-prefixes: 'off'}}
spec: {peerIP: 10.1.0.1, asNumber: 65100}
---
kind: BGPPeer
metadata: {name: few, annotations: {caracal.io/max-prefixes: '10'}}
spec: {peerIP: 10.1.0.2, asNumber: 65100}
---
kind: BGPPeer
metadata: {name: wrong, annotations: {caracal.io/max-prefixes: many}}
spec: {peerIP: 10.1.0.3, asNumber: 65100}
";
    let snapshot = snapshot(&[THREE, text]);
    let limits = |max_prefixes| {
        let options = PlanOptions {
            max_prefixes,
            ..PlanOptions::default()
        };
        let planned = plan(&snapshot, &"a".into(), &options);
        assert_eq!(codes(&planned), ["bgp.max_prefixes"]);
        let limit = |peer: &PeerConfig| {
            let limit = peer.prefix_limits.ipv4;
            limit.map(|limit| (limit.max, limit.warning))
        };
        planned.config.peers.values().map(limit).collect::<Vec<_>>()
    };
    let (most, few) = (Some((250_000, 75)), Some((10, 75)));
    assert_eq!(
        limits(Some(MaxPrefixes::default())),
        [None, few, most, most, most]
    );
    assert_eq!(limits(None), [None, few, None, None, None]);
    for (text, parsed) in [
        ("7", Some(MaxPrefixes::Most(7))),
        ("off", Some(MaxPrefixes::Off)),
        ("0", None),
        ("-1", None),
    ] {
        assert_eq!(MaxPrefixes::parse(text), parsed);
    }
}

/// A newcomer that says that it has a node's address gets none of its sessions, whatever its name
/// and its AS.
#[test]
fn of_nodes_with_one_address_the_older_one_has_the_sessions() {
    let cluster = |name: &str, created: &str| {
        format!(
            "
kind: Node
metadata: {{name: a, creationTimestamp: '2026-01-05T10:00:00Z'}}
spec: {{bgp: {{ipv4Address: 10.0.0.1/24, ipv6Address: 'fd00::1/64'}}}}
---
kind: Node
metadata: {{name: m, labels: {{rr: 'true'}}, creationTimestamp: '2026-01-05T10:00:01Z'}}
spec: {{bgp: {{ipv4Address: 10.0.0.2/24, ipv6Address: 'fd00::2/64'}}}}
---
kind: Node
metadata: {{name: {name}, labels: {{rr: 'true'}}{created}}}
spec: {{bgp: {{ipv4Address: 10.0.0.2/24, ipv6Address: 'fd00::2/64', asNumber: 65099}}}}
"
        )
    };
    let younger = ", creationTimestamp: '2026-01-05T10:00:02Z'";
    let older = ", creationTimestamp: '2026-01-05T09:59:59Z'";
    let selects = format!(
        "{NO_MESH}---
kind: BGPPeer
metadata: {{name: reflectors}}
spec: {{nodeSelector: all(), peerSelector: has(rr)}}
"
    );
    for name in ["b", "z"] {
        for (created, asn) in [(younger, 64512), ("", 64512), (older, 65099)] {
            let cluster = cluster(name, created);
            for more in [None, Some(&selects)] {
                let mut texts = vec![cluster.as_str()];
                texts.extend(more.map(String::as_str));
                let planned = planned("a", &texts);
                let peers = planned.config.peers.values();
                let asns: Vec<_> = peers.map(|peer| peer.remote_as.0).collect();
                assert_eq!(asns, [asn, asn], "{name} {created} {}", more.is_some());
                if more.is_none() {
                    let named: Vec<_> = planned.problems.iter().map(|p| &p.subject).collect();
                    let wrong = if asn == 64512 { name } else { "m" };
                    assert!(
                        named.iter().all(|s| s.ends_with(&format!("/{wrong}"))),
                        "{named:?}"
                    );
                    assert_eq!(named.len(), 2);
                }
            }
        }
    }
}
