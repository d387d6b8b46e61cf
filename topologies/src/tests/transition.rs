//! Transitions: both topologies at once, and nobody's role ends early.

use caracal_model::{NodeName, Snapshot};

use super::cluster::snapshot;
use super::reflection::{AUTO, cluster};
use super::*;
use crate::transition::{self, TransitionError};
use crate::{auto, paths};

const RR: &str = "
{kind: BGPConfiguration, metadata: {name: default}, spec: {nodeToNodeMeshEnabled: false}}
---
{kind: BGPPeer, metadata: {name: rr}, spec: {nodeSelector: all(), peerSelector: has(rr)}}
---
{kind: Node, metadata: {name: n000, labels: {rr: ''}}, spec: {bgp: {ipv4Address: 10.0.0.1/16, ipv6Address: 'fd00::1/64', routeReflectorClusterID: 1.1.1.1}}}
---
{kind: Node, metadata: {name: n001, labels: {rr: ''}}, spec: {bgp: {ipv4Address: 10.0.0.2/16, ipv6Address: 'fd00::2/64', routeReflectorClusterID: 1.1.1.1}}}
";

fn of(snapshot: &Snapshot, node: &str) -> BgpPlan {
    plan(snapshot, &NodeName::from(node), &PlanOptions::default())
}

/// Places of a plan's sessions.
fn places(config: &SpeakerConfig) -> BTreeSet<IpAddr> {
    config.peers.values().map(|p| p.address).collect()
}

/// The snapshot under way from one to the other.
fn transition_under_way(before: &Snapshot, after: &Snapshot) -> Snapshot {
    let mut both = after.clone();
    transition::begin_transition("t1", before, &mut both).unwrap();
    both
}

fn assert_both(before: &Snapshot, after: &Snapshot) {
    let both = transition_under_way(before, after);
    for name in after.nodes.keys() {
        let (old, new) = (of(before, name.as_str()), of(after, name.as_str()));
        let planned = of(&both, name.as_str());
        let union: BTreeSet<_> = places(&old.config)
            .union(&places(&new.config))
            .copied()
            .collect();
        assert_eq!(places(&planned.config), union, "{name}");
        let sessions = planned.transition.unwrap();
        let to_remove = |name: &PeerName| sessions.to_remove.contains(name);
        let left = planned.config.peers.iter().filter(|(n, _)| !to_remove(n));
        let left: BTreeSet<_> = left.map(|(_, p)| p.address).collect();
        assert_eq!(left, places(&new.config), "{name}");
        let came: BTreeSet<_> = sessions
            .to_add
            .iter()
            .map(|n| planned.config.peers[n].address)
            .collect();
        let fresh: BTreeSet<_> = places(&new.config)
            .difference(&places(&old.config))
            .copied()
            .collect();
        assert_eq!(came, fresh, "{name}");
        // TRANS-2
        for side in [&old, &new] {
            for peer in side.config.peers.values().filter(|p| p.client_of.is_some()) {
                let now = planned
                    .config
                    .peers
                    .values()
                    .find(|p| p.address == peer.address)
                    .unwrap();
                assert!(now.client_of.is_some(), "{name}");
            }
        }
    }
    assert_eq!(
        paths::cluster_sessions(&both, &PlanOptions::default()).missing(&both),
        []
    );
    let mut done = both;
    transition::end_transition(&mut done);
    for name in after.nodes.keys() {
        assert_eq!(
            of(&done, name.as_str()).config,
            of(after, name.as_str()).config
        );
    }
}

#[test]
fn trans_1_2_mesh_reflectors_and_auto_in_every_direction() {
    let nodes = cluster(20);
    let mesh = snapshot(&[&nodes]);
    let auto = snapshot(&[&nodes, AUTO]);
    let two = snapshot(&[
        &nodes,
        &AUTO.replace("'10'", "'10', caracal.io/topology-levels: '2'"),
    ]);
    let rr = snapshot(&[&nodes, RR]);
    let all = [mesh, auto, two, rr];
    for before in &all {
        for after in &all {
            assert_both(before, after);
        }
    }
}

#[test]
fn without_a_transition_no_session_goes() {
    assert_eq!(of(&snapshot(&[&cluster(3)]), "n000").transition, None);
}

#[test]
fn trans_3_as_numbers_and_addresses_are_refused() {
    let before = snapshot(&[&cluster(3)]);
    let begin = |text: &str| {
        let mut after = snapshot(&[&cluster(3), text]);
        transition::begin_transition("t", &before, &mut after).unwrap_err()
    };
    let number = "{kind: BGPConfiguration, metadata: {name: default}, spec: {asNumber: 65000}}";
    let TransitionError::Asn { old, new, .. } = begin(number) else {
        panic!("AS");
    };
    assert_eq!((old, new), (64512, 65000));
    let bare =
        "{kind: Node, metadata: {name: n001}, spec: {bgp: {routeReflectorClusterID: 1.1.1.1}}}";
    assert_eq!(begin(bare), TransitionError::Address("n001".into()));
}

#[test]
fn a_malformed_annotation_is_a_problem_and_no_transition() {
    let odd = AUTO.replace("'10'", "'10', caracal.io/topology-transition: '{'");
    let planned = of(&snapshot(&[&odd, &cluster(12)]), "n000");
    assert_eq!(planned.transition, None);
    let codes: Vec<_> = planned.problems.iter().map(|p| p.code.as_str()).collect();
    assert_eq!(codes, ["bgp.transition"]);
}

#[test]
fn changes_are_what_differs_with_its_revision() {
    let before = snapshot(&[&cluster(3)]);
    let after = snapshot(&[&cluster(3), AUTO]);
    let changes = transition::changed_resources(&before, &after);
    let paths: Vec<_> = changes
        .iter()
        .map(|c| c.path.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(paths, ["default"]);
    assert_eq!(
        (changes[0].old.is_none(), changes[0].new.is_some()),
        (true, true)
    );
    assert_eq!(transition::changed_resources(&after, &before)[0].new, None);
    assert!(auto::reflector_tuning(&after).unwrap().is_some());
}
