//! A Node whose address is one of a block for pods: it is used for nothing.

use caracal_model::{Key, Kind};

use super::cluster::{codes, names, snapshot};
use super::*;

/// Two nodes, and one that says that it has the address of a pod of b's.
fn cluster(rogue: &str) -> Snapshot {
    let text = format!(
        "
kind: Node
metadata: {{name: a}}
spec: {{bgp: {{ipv4Address: 10.0.0.1/24, ipv6Address: 'fd00::1/64'}}}}
---
kind: Node
metadata: {{name: b}}
spec: {{bgp: {{ipv4Address: 10.0.0.2/24, ipv6Address: 'fd00::2/64'}}}}
---
kind: Node
metadata: {{name: rogue, labels: {{rr: x}}}}
spec: {{bgp: {{{rogue}}}}}
"
    );
    let mut snapshot = snapshot(&[&text]);
    for block in ["10.244.1.0/26", "fd00:10::1:0/122"] {
        assign_block(&mut snapshot, &"b".into(), block.parse().unwrap());
    }
    snapshot
}

const ROGUES: [(&str, &str, &str); 2] = [
    ("ipv4Address: 10.244.1.9/24", "10.244.0.0/16", "10.244.1.9"),
    (
        "ipv6Address: 'fd00:10::1:9/64'",
        "fd00:10::/64",
        "fd00:10::1:9",
    ),
];

fn put_pool(snapshot: &mut Snapshot, cidr: Option<&str>) {
    let value =
        cidr.map(|cidr| format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"cidr":"{cidr}"}}}}"#));
    let revision = snapshot.revision + 1;
    let path = Key::resource(Kind::IpPool, "p").to_path();
    snapshot.apply(&path, value.as_deref().map(str::as_bytes), revision);
}

fn planned_by(planner: &mut BgpPlanner, snapshot: &Snapshot, node: &str) -> BgpPlan {
    let (node, options) = (node.into(), PlanOptions::default());
    planner.plan(snapshot, &node, &options);
    let planned = planner.planned().unwrap().clone();
    assert_eq!(planned, plan(snapshot, &node, &options));
    planned
}

/// True when a plan has a session with this address; then no problem is named, else this one is.
fn has_session(planned: &BgpPlan, address: &str) -> bool {
    let address: IpAddr = address.parse().unwrap();
    let has = planned.config.peers.values().any(|p| p.address == address);
    match &planned.problems[..] {
        [] => assert!(has),
        [problem] => {
            assert!(!has);
            assert_eq!(problem.code, ProblemCode::NodeAddress);
            assert!(problem.subject.ends_with("/nodes/rogue"), "{problem:?}");
            let said = format!("the BGP address {address} is one of block ");
            assert!(problem.reason.starts_with(&said), "{problem:?}");
            let end = " of node b; nobody peers with the node there";
            assert!(problem.reason.ends_with(end), "{problem:?}");
        }
        more => panic!("{more:?}"),
    }
    has
}

#[test]
fn an_address_of_a_pod_gives_no_session_of_the_mesh_while_a_pool_is_over_it() {
    for (rogue, pool, address) in ROGUES {
        let mut snapshot = cluster(rogue);
        let mut planner = BgpPlanner::default();
        let mut has = |snapshot: &Snapshot| {
            let planned = planned_by(&mut planner, snapshot, "a");
            has_session(&planned, address)
        };
        assert!(has(&snapshot), "there is no pool");
        put_pool(&mut snapshot, Some(pool));
        assert!(!has(&snapshot), "{pool}");
        put_pool(&mut snapshot, None);
        assert!(has(&snapshot), "the pool is gone");
        put_pool(&mut snapshot, Some(pool));
        assert!(!has(&snapshot), "and there again");
        // Nor from the other end's side is there anything to dial.
        let planned = plan(&snapshot, &"b".into(), &PlanOptions::default());
        let with = |p: &PeerConfig| p.address == address.parse::<IpAddr>().unwrap();
        assert!(!planned.config.peers.values().any(with));
        // The block goes, and comes as nobody's.
        let block = snapshot
            .blocks
            .values()
            .find(|b| b.cidr.contains(address.parse().unwrap()));
        let path = Key::Block(block.unwrap().cidr).to_path();
        let value = caracal_model::Block::new(block.unwrap().cidr, None, 1).to_json();
        let revision = snapshot.revision + 1;
        snapshot.apply(&path, Some(&value), revision);
        assert!(has(&snapshot), "a block that nobody has is no node's");
    }
}

#[test]
fn nor_one_of_a_bgp_peer_from_either_side() {
    let selectors = "
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false}
---
kind: BGPPeer
metadata: {name: there}
spec: {nodeSelector: '!has(rr)', peerSelector: has(rr)}
---
kind: BGPPeer
metadata: {name: back}
spec: {nodeSelector: has(rr), peerIP: 10.0.0.2}
";
    for (rogue, pool, address) in ROGUES {
        let mut snapshot = cluster(rogue);
        let applied = resources_from_yaml(selectors).unwrap().apply(&mut snapshot);
        assert_eq!(applied, []);
        for node in ["a", "b"] {
            let mut snapshot = snapshot.clone();
            let has = |snapshot: &Snapshot| {
                let planned = plan(snapshot, &node.into(), &PlanOptions::default());
                let address: IpAddr = address.parse().unwrap();
                planned.config.peers.values().any(|p| p.address == address)
            };
            assert!(has(&snapshot), "{node}");
            put_pool(&mut snapshot, Some(pool));
            assert!(!has(&snapshot), "{node}");
        }
    }
}

/// A router that is a pod stays a peer whatever a Node says of itself.
#[test]
fn a_bgp_peer_that_is_a_pod_is_no_node() {
    for (rogue, pool, address) in ROGUES {
        let peer = format!(
            "
kind: BGPPeer
metadata: {{name: pod}}
spec: {{peerIP: '{address}', asNumber: 65009}}
"
        );
        let mut snapshot = cluster(rogue);
        let applied = resources_from_yaml(&peer).unwrap().apply(&mut snapshot);
        assert_eq!(applied, []);
        let planned = |snapshot: &Snapshot| plan(snapshot, &"a".into(), &PlanOptions::default());
        let before = planned(&snapshot);
        assert_eq!(codes(&before), ["bgp.peer"], "it is a node with another AS");
        put_pool(&mut snapshot, Some(pool));
        let after = planned(&snapshot);
        assert_eq!(codes(&after), ["node.address"]);
        let global = names(&after.config);
        let global = global.iter().filter(|name| name.starts_with("Global_"));
        assert_eq!(global.count(), 1, "{:?}", names(&after.config));
    }
}

/// There the pool is the mistake, and the nodes keep their sessions.
#[test]
fn a_pool_over_this_machine_keeps_no_node_off() {
    let mut snapshot = cluster("ipv4Address: 10.244.1.9/24, ipv6Address: 'fd00:10::1:9/64'");
    put_pool(&mut snapshot, Some("10.0.0.0/8"));
    let planned = plan(&snapshot, &"a".into(), &PlanOptions::default());
    assert_eq!(codes(&planned), [""; 0]);
    assert_eq!(
        names(&planned.config),
        [
            "Mesh_10_0_0_2",
            "Mesh_10_244_1_9",
            "Mesh_fd00_10__1_9",
            "Mesh_fd00__2"
        ]
    );
}
