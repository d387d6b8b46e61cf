//! Automatic reflection: who is elected, that it stays so, and that nobody is cut off.

use std::fmt::Write as _;

use caracal_model::{NodeName, Snapshot};

use super::cluster::snapshot;
use super::*;
use crate::auto::{self, REFLECTOR_LABEL, ReflectorTuning, TopologyChoice, Zone};
use crate::paths;

pub(super) const AUTO: &str = "
kind: BGPConfiguration
metadata: {name: default, annotations: {caracal.io/topology: auto, caracal.io/topology-mesh-limit: '10'}}
spec: {}
";

/// A node document: zone, rack and age as given.
fn node(number: usize, zone: &str, rack: &str, created: &str, more: &str) -> String {
    format!(
        "---\nkind: Node\nmetadata: {{name: n{number:03}, creationTimestamp: '{created}', labels: {{topology.kubernetes.io/zone: {zone}, topology.kubernetes.io/rack: {rack}{more}}}}}\nspec: {{bgp: {{ipv4Address: 10.0.{}.{}/16, ipv6Address: 'fd00::{:x}/64'}}}}\n",
        number / 200,
        number % 200 + 1,
        number + 1,
    )
}

fn created(number: usize) -> String {
    format!("2026-01-01T00:{:02}:{:02}Z", number / 60, number % 60)
}

/// `count` nodes over three zones with four racks each, the older the smaller their number.
pub(super) fn cluster(count: usize) -> String {
    let mut text = String::new();
    for i in 0..count {
        let (zone, rack) = (format!("z{}", i % 3), format!("r{}", i / 3 % 4));
        let _ = write!(text, "{}", node(i, &zone, &rack, &created(i), ""));
    }
    text
}

fn elected(snapshot: &Snapshot) -> BTreeMap<String, Zone> {
    match auto::choose_topology(snapshot) {
        TopologyChoice::Reflectors(elected) => elected.zones,
        other => panic!("{other:?}"),
    }
}

fn names(zone: &Zone) -> Vec<&str> {
    zone.reflectors.iter().map(NodeName::as_str).collect()
}

#[test]
fn off_unless_asked_for_and_a_mesh_up_to_the_limit() {
    assert_eq!(
        auto::choose_topology(&snapshot(&[&cluster(60)])),
        TopologyChoice::Off
    );
    assert_eq!(
        auto::choose_topology(&snapshot(&[AUTO, &cluster(10)])),
        TopologyChoice::Mesh
    );
    assert_eq!(elected(&snapshot(&[AUTO, &cluster(11)])).len(), 3);
    assert_eq!(ReflectorTuning::default().limit, 50);
    // The mesh of an automatic topology does not ask nodeToNodeMeshEnabled.
    let off = AUTO.replace("spec: {}", "spec: {nodeToNodeMeshEnabled: false}");
    let plan = plan(
        &snapshot(&[&off, &cluster(4)]),
        &"n000".into(),
        &PlanOptions::default(),
    );
    assert_eq!(plan.config.peers.len(), 6);
}

#[test]
fn sessions_with_elected_ones_say_so() {
    let of = |node: &str| {
        let snapshot = snapshot(&[AUTO, &cluster(60)]);
        let plan = plan(&snapshot, &node.into(), &PlanOptions::default());
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for peer in plan.config.peers.into_values() {
            *kinds.entry(peer.kind).or_default() += 1;
        }
        kinds
    };
    let count = |kind: &str, n: usize| (kind.to_owned(), n);
    // A client has both families of the three reflectors of its zone.
    assert_eq!(of("n009"), [count("reflector", 6)].into());
    // A reflector has those of all zones, and its clients.
    let expected = [count("mesh", 34), count("reflector", 16)];
    assert_eq!(of("n000"), expected.into());
}

#[test]
fn the_oldest_of_different_racks_are_elected() {
    let zones = elected(&snapshot(&[AUTO, &cluster(60)]));
    assert_eq!(names(&zones["z0"]), ["n000", "n003", "n006"]);
    assert_eq!(names(&zones["z2"]), ["n002", "n005", "n008"]);
    assert_eq!(zones["z1"].clients.len(), 17);
    let ids: BTreeSet<_> = zones.values().map(|z| z.cluster.unwrap()).collect();
    assert_eq!(ids.len(), 3);
    // The second oldest shares the rack of the oldest, so the third goes first.
    let mut text = String::new();
    for (i, rack) in ["a", "a", "b", "a", "b"].iter().enumerate() {
        text += &node(i, "z", rack, &created(i), "");
    }
    let low = AUTO.replace("'10'", "'4'");
    let zones = elected(&snapshot(&[&low, &text]));
    assert_eq!(names(&zones["z"]), ["n000", "n002", "n001"]);
}

#[test]
fn a_newcomer_displaces_nobody_and_a_loss_moves_the_standby_up() {
    let before = elected(&snapshot(&[AUTO, &cluster(60)]));
    let after = elected(&snapshot(&[AUTO, &cluster(61)]));
    for (zone, elected) in &before {
        assert_eq!(elected.reflectors, after[zone].reflectors);
    }
    let mut lost = snapshot(&[AUTO, &cluster(60)]);
    lost.apply(
        "/calico/resources/v3/projectcalico.org/nodes/n000",
        None,
        999,
    );
    lost.apply(
        "/calico/resources/v3/projectcalico.org/nodes/n003",
        None,
        999,
    );
    let zones = elected(&lost);
    assert_eq!(names(&zones["z0"])[0], "n006");
    assert_eq!(zones["z1"], before["z1"]);
    assert_eq!(
        paths::cluster_sessions(&lost, &PlanOptions::default()).missing(&lost),
        []
    );
}

#[test]
fn a_node_that_is_to_be_avoided_is_elected_last() {
    let more = node(
        0,
        "z0",
        "r0",
        &created(0),
        &format!(", {REFLECTOR_LABEL}: 'false'"),
    );
    let zones = elected(&snapshot(&[AUTO, &cluster(60), &more]));
    assert_eq!(names(&zones["z0"]), ["n003", "n006", "n009"]);
}

#[test]
fn nobody_is_cut_off_and_sessions_are_few() {
    let options = PlanOptions::default();
    let mesh = snapshot(&[&cluster(60)]);
    let reflected = snapshot(&[AUTO, &cluster(60)]);
    let (old, new) = (
        paths::cluster_sessions(&mesh, &options),
        paths::cluster_sessions(&reflected, &options),
    );
    assert_eq!(
        (old.missing(&mesh), new.missing(&reflected)),
        (vec![], vec![])
    );
    // Two families: 60 × 59 / 2 each; 3 × 17 clients with 3 reflectors each, and 9 reflectors among
    // themselves.
    assert_eq!(old.count(), 2 * 1770);
    assert_eq!(new.count(), 2 * (51 * 3 + 36));
    assert_eq!(new.nodes[&NodeName::from("n059")].len(), 6);
}

#[test]
fn two_dead_reflectors_of_a_zone_cost_no_path() {
    let reflected = snapshot(&[AUTO, &cluster(60)]);
    let mut sessions = paths::cluster_sessions(&reflected, &PlanOptions::default());
    // Their resources are still there, so everybody still peers with them; they answer nobody.
    let mut alive = reflected.clone();
    for dead in ["n000", "n003"] {
        sessions.nodes.remove(&NodeName::from(dead));
        alive.nodes.remove(&NodeName::from(dead));
    }
    assert_eq!(sessions.missing(&alive), []);
    sessions.nodes.remove(&NodeName::from("n006"));
    alive.nodes.remove(&NodeName::from("n006"));
    assert!(!sessions.missing(&alive).is_empty(), "all three are gone");
}

#[test]
fn a_node_of_another_as_is_left_without_a_path_and_that_shows() {
    let odd = "---\nkind: Node\nmetadata: {name: odd}\nspec: {bgp: {ipv4Address: 10.0.9.9/16, asNumber: 65000}}";
    let cut = snapshot(&[AUTO, &cluster(20), odd]);
    let missing = paths::cluster_sessions(&cut, &PlanOptions::default()).missing(&cut);
    assert_eq!(missing.len(), 2 * 20);
    assert!(
        missing
            .iter()
            .all(|m| m.node.as_str() == "odd" || m.of.as_str() == "odd")
    );
}

#[test]
fn iron_rules_of_ibgp() {
    // Three in a row, the one in the middle no reflector: what it hears from one it does not tell
    // the other.
    let off =
        "kind: BGPConfiguration\nmetadata: {name: default}\nspec: {nodeToNodeMeshEnabled: false}";
    let row = "{kind: BGPPeer, metadata: {name: x}, spec: {node: n001, peerSelector: all()}}";
    let options = PlanOptions::default();
    let plain = snapshot(&[off, &cluster(3), row]);
    let missing = paths::cluster_sessions(&plain, &options).missing(&plain);
    let pairs: BTreeSet<_> = missing
        .iter()
        .map(|m| (m.node.as_str(), m.of.as_str()))
        .collect();
    assert_eq!(pairs, BTreeSet::from([("n000", "n002"), ("n002", "n000")]));
    let reflector = "{kind: Node, metadata: {name: n001}, spec: {bgp: {ipv4Address: 10.0.0.2/16, ipv6Address: 'fd00::2/64', routeReflectorClusterID: 1.1.1.1}}}";
    let reflected = snapshot(&[off, &cluster(3), row, reflector]);
    assert_eq!(
        paths::cluster_sessions(&reflected, &options).missing(&reflected),
        []
    );
    // All nodes peer with one router outside, which is taken to pass on.
    let tor = "{kind: BGPPeer, metadata: {name: x}, spec: {peerIP: 10.0.5.5, asNumber: 65000}}\n---\n{kind: BGPPeer, metadata: {name: tor6}, spec: {peerIP: 'fd00::55', asNumber: 65000}}";
    let outside = snapshot(&[off, &cluster(3), tor]);
    assert_eq!(
        paths::cluster_sessions(&outside, &options).missing(&outside),
        []
    );
}

#[test]
fn reflectors_are_clients_of_nobody() {
    let reflected = snapshot(&[AUTO, &cluster(60)]);
    let config = plan(&reflected, &"n000".into(), &PlanOptions::default()).config;
    let zone = &elected(&reflected)["z0"];
    for peer in config.peers.values() {
        let (name, _) = reflected
            .nodes
            .iter()
            .find(|(_, n)| n.spec.address(Family::of(peer.address)) == Some(peer.address))
            .unwrap();
        let expected = zone
            .clients
            .contains(name)
            .then_some(zone.cluster)
            .flatten();
        assert_eq!(peer.client_of, expected, "{name}");
    }
    let client = plan(&reflected, &"n059".into(), &PlanOptions::default()).config;
    assert!(client.peers.values().all(|peer| peer.client_of.is_none()));
}

#[test]
fn annotations_that_cannot_be_read_are_reported_and_change_nothing() {
    for (from, to) in [
        ("topology: auto", "topology: some"),
        ("'10'", "'ten'"),
        ("'10'", "'0'"),
    ] {
        let bad = snapshot(&[&AUTO.replace(from, to), &cluster(12)]);
        assert_eq!(auto::choose_topology(&bad), TopologyChoice::Off);
        let planned = plan(&bad, &"n000".into(), &PlanOptions::default());
        let codes: Vec<_> = planned.problems.iter().map(|p| p.code.as_str()).collect();
        assert_eq!(codes, ["bgp.topology"]);
        assert_eq!(planned.config.peers.len(), 22);
    }
}

#[test]
fn two_levels_reflect_between_zones_with_fewer_sessions() {
    let two = AUTO.replace("'10'", "'10', caracal.io/topology-levels: '2'");
    let cluster = snapshot(&[&two, &cluster(60)]);
    let TopologyChoice::Reflectors(elected) = auto::choose_topology(&cluster) else {
        panic!("reflectors");
    };
    // The oldest nodes of different zones stand at the top, and the next ones reflect their zones.
    let top: Vec<_> = elected.top.iter().map(NodeName::as_str).collect();
    assert_eq!(top, ["n000", "n001", "n002"]);
    assert_eq!(names(&elected.zones["z0"]), ["n003", "n006", "n009"]);
    let options = PlanOptions::default();
    let sessions = paths::cluster_sessions(&cluster, &options);
    assert_eq!(sessions.missing(&cluster), []);
    // 48 clients × 3, 9 zone reflectors × 3 at the top, 3 + 3 × 3 among equals; two families.
    assert_eq!(sessions.count(), 2 * (48 * 3 + 9 * 3 + 3 + 9));
    // A zone reflector knows nobody in other zones but the top.
    assert_eq!(
        sessions.nodes[&NodeName::from("n003")].len(),
        2 * (16 + 2 + 3)
    );
    let config = |name: &str| plan(&cluster, &name.into(), &options).config;
    let clients = |config: &SpeakerConfig| {
        let of: BTreeSet<_> = config.peers.values().filter_map(|p| p.client_of).collect();
        (
            config
                .peers
                .values()
                .filter(|p| p.client_of.is_some())
                .count(),
            of,
        )
    };
    let (count, of_top) = clients(&config("n000"));
    assert_eq!((count, of_top.len()), (18, 1));
    let (count, of_zone) = clients(&config("n003"));
    assert_eq!((count, of_zone.len()), (32, 1));
    assert_ne!(of_top, of_zone);
    // Two of three at each level may die.
    let mut sessions = sessions;
    let mut alive = cluster.clone();
    for dead in ["n000", "n001", "n003", "n006"] {
        sessions.nodes.remove(&NodeName::from(dead));
        alive.nodes.remove(&NodeName::from(dead));
    }
    assert_eq!(sessions.missing(&alive), []);
}

#[test]
fn a_cluster_of_one_zone_has_one_level() {
    let two = AUTO.replace("'10'", "'10', caracal.io/topology-levels: '2'");
    let mut text = String::new();
    for i in 0..20 {
        text += &node(i, "z", "r", &created(i), "");
    }
    let TopologyChoice::Reflectors(elected) = auto::choose_topology(&snapshot(&[&two, &text]))
    else {
        panic!("reflectors");
    };
    assert_eq!(
        (elected.top.len(), elected.zones["z"].reflectors.len()),
        (0, 3)
    );
}
