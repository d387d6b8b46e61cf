//! Plans that follow changes of nodes are the whole ones, and most changes plan nothing.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::{BgpPlanner, PlanOptions, Replanned, assign_block, plan, resources_from_yaml};

/// Reflectors by labels, a peer by address that may be a node's, and peers of one rack.
const BY_SELECTOR: &str = "
kind: BGPConfiguration
metadata: {name: default}
spec: {nodeToNodeMeshEnabled: false}
---
kind: BGPPeer
metadata: {name: reflectors}
spec: {nodeSelector: '!has(rr)', peerSelector: has(rr)}
---
kind: BGPPeer
metadata: {name: router}
spec: {peerIP: 10.0.0.7, asNumber: 64512}
---
kind: BGPPeer
metadata: {name: rack}
spec: {nodeSelector: rack == '1', peerSelector: rack == '2'}
";

fn elected(levels: usize) -> String {
    format!(
        "
kind: BGPConfiguration
metadata:
  name: default
  annotations: {{caracal.io/topology: auto, caracal.io/topology-mesh-limit: '3',
    caracal.io/topology-reflectors: '1', caracal.io/topology-levels: '{levels}'}}
spec: {{}}
"
    )
}

fn topologies() -> [String; 4] {
    let mesh = "kind: BGPConfiguration\nmetadata: {name: default}\nspec: {}\n".to_owned();
    [mesh, BY_SELECTOR.to_owned(), elected(1), elected(2)]
}

/// What is told of one node.
#[derive(Clone, Debug)]
struct Said {
    reflects: bool,
    /// 0: no label.
    rack: u8,
    zone: u8,
    created: u8,
    address: u8,
    asn: Option<u32>,
}

/// One without labels, as old as all others.
fn ordinary(address: u8) -> Said {
    Said {
        reflects: false,
        rack: 0,
        zone: 0,
        created: 0,
        address,
        asn: None,
    }
}

fn said() -> impl Strategy<Value = Said> {
    let asn = prop::option::weighted(0.2, prop_oneof![Just(0), Just(64512), Just(65001)]);
    (
        prop::bool::weighted(0.2),
        0u8..4,
        0u8..3,
        0u8..4,
        1u8..14,
        asn,
    )
        .prop_map(|(reflects, rack, zone, created, address, asn)| Said {
            reflects,
            rack,
            zone,
            created,
            address,
            asn,
        })
}

fn put(snapshot: &mut Snapshot, n: u8, said: Option<&Said>) {
    let value = said.map(|said| {
        let mut labels = serde_json::Map::new();
        let mut label = |name: &str, value: u8| {
            if value > 0 {
                labels.insert(name.to_owned(), value.to_string().into());
            }
        };
        label("rr", u8::from(said.reflects));
        label("rack", said.rack);
        label(auto::RACK_LABEL, said.rack);
        label(auto::ZONE_LABEL, said.zone);
        let created = format!("2026-01-0{}T00:00:00Z", said.created + 1);
        // One in thirteen has an address that no node can have, and one that of a pod.
        let address = match said.address {
            13 => "255.255.255.255/32".to_owned(),
            12 => format!("10.244.1.{n}/24"),
            at => format!("10.0.0.{at}/24"),
        };
        let mut bgp = serde_json::json!({ "ipv4Address": address });
        if said.reflects && said.rack == 0 {
            bgp["routeReflectorClusterID"] = "244.0.0.1".into();
        }
        if let Some(asn) = said.asn {
            bgp["asNumber"] = asn.into();
        }
        let value = serde_json::json!({
            "metadata": {"name": format!("n{n}"), "labels": labels, "creationTimestamp": created},
            "spec": {"bgp": bgp},
        });
        value.to_string()
    });
    let revision = snapshot.revision + 1;
    let path = format!("/calico/resources/v3/projectcalico.org/nodes/n{n}");
    snapshot.apply(&path, value.as_deref().map(str::as_bytes), revision);
}

fn cluster(topology: &str) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let pool = "kind: IPPool\nmetadata: {name: p}\nspec: {cidr: 10.244.0.0/16}\n";
    for text in [topology, pool] {
        let refused = resources_from_yaml(text).unwrap().apply(&mut snapshot);
        assert_eq!(refused, []);
    }
    assign_block(
        &mut snapshot,
        &"n1".into(),
        "10.244.1.0/26".parse().unwrap(),
    );
    snapshot
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn after_any_history_of_nodes_the_plan_is_the_whole(
        topology in 0usize..4,
        no_bgp in prop::bool::weighted(0.2),
        first in proptest::collection::vec(said(), 1..8),
        history in proptest::collection::vec((0u8..10, prop::option::weighted(0.8, said())), 1..25),
    ) {
        let mut snapshot = cluster(&topologies()[topology]);
        for (n, said) in (0..).zip(&first) {
            put(&mut snapshot, n, Some(said));
        }
        let node = "n0".into();
        let options = PlanOptions { no_bgp, ..PlanOptions::default() };
        let mut planning = BgpPlanner::default();
        planning.plan(&snapshot, &node, &options);
        for (n, said) in &history {
            put(&mut snapshot, *n, said.as_ref());
            planning.plan(&snapshot, &node, &options);
            prop_assert_eq!(planning.planned().unwrap(), &plan(&snapshot, &node, &options));
        }
    }
}

#[test]
fn without_bgp_other_nodes_plan_nothing() {
    let mut snapshot = cluster(&topologies()[0]);
    for n in 0..3 {
        put(&mut snapshot, n, Some(&ordinary(n + 1)));
    }
    for (no_bgp, peers, expected) in [
        (false, 3, Replanned::Whole),
        (true, 0, Replanned::Announcements(false)),
    ] {
        let (node, options) = (
            "n0".into(),
            PlanOptions {
                no_bgp,
                ..PlanOptions::default()
            },
        );
        let mut planning = BgpPlanner::default();
        let mut snapshot = snapshot.clone();
        planning.plan(&snapshot, &node, &options);
        put(&mut snapshot, 5, Some(&ordinary(6)));
        assert_eq!(planning.plan(&snapshot, &node, &options), expected);
        assert_eq!(planning.planned().unwrap().config.peers.len(), peers);
    }
}

#[test]
fn a_node_behind_reflectors_plans_nothing_for_others_that_come_and_go() {
    for topology in &topologies()[1..] {
        let mut snapshot = cluster(topology);
        for n in 0..6 {
            put(&mut snapshot, n, Some(&ordinary(n + 1)));
        }
        // By selector it is the only one; the election takes older nodes.
        let reflector = Said {
            reflects: topology == BY_SELECTOR,
            ..ordinary(8)
        };
        put(&mut snapshot, 6, Some(&reflector));
        let young = Said {
            created: 3,
            ..ordinary(9)
        };
        let choice = auto::choose_topology(&snapshot);
        let clients = (0..6).map(|n| NodeName::from(format!("n{n}")));
        let client = clients
            .into_iter()
            .find(|name| choice.cluster_of(name).is_none())
            .unwrap();
        let options = PlanOptions::default();
        let mut planning = BgpPlanner::default();
        planning.plan(&snapshot, &client, &options);
        assert!(!planning.planned().unwrap().config.peers.is_empty());
        for said in [Some(&young), None] {
            put(&mut snapshot, 9, said);
            let replanned = planning.plan(&snapshot, &client, &options);
            assert_eq!(replanned, Replanned::Announcements(false), "{topology}");
        }
        put(&mut snapshot, 6, None);
        for n in 0..6 {
            if choice
                .cluster_of(&NodeName::from(format!("n{n}")))
                .is_some()
            {
                put(&mut snapshot, n, None);
            }
        }
        let replanned = planning.plan(&snapshot, &client, &options);
        assert_eq!(replanned, Replanned::Whole, "{topology}");
    }
}
