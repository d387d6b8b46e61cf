//! Owners of prefixes, and what changes of them.

#![allow(clippy::unwrap_used)]

use caracal_bgp::{OriginCheck, OriginVerdict, PathAttrs};

use super::*;

const ROOT: &str = "/calico/resources/v3/projectcalico.org";

/// For a node that is none of the cluster's.
fn update(old: Option<&Snapshot>, new: &Snapshot) -> OriginUpdate {
    origin_update(old, new, (&"me".into(), OriginMode::Enforce))
}

fn put(snapshot: &mut Snapshot, revision: i64, path: &str, value: &str) {
    let applied = snapshot.apply(path, Some(value.as_bytes()), revision);
    assert_eq!(applied, caracal_model::Applied::Changed, "{path}");
}

fn node(snapshot: &mut Snapshot, revision: i64, n: u8) {
    let value = format!(
        r#"{{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{{"name":"node{n}"}},"spec":{{"bgp":{{"ipv4Address":"10.0.0.{n}/24","ipv6Address":"fd00::{n}/64"}}}}}}"#
    );
    put(snapshot, revision, &format!("{ROOT}/nodes/node{n}"), &value);
}

fn affinity(snapshot: &mut Snapshot, revision: i64, n: u8, third: u8, state: Option<&str>) {
    let path = format!("/calico/ipam/v2/host/node{n}/ipv4/block/10.244.{third}.0-26");
    let value = state.map(|state| format!(r#"{{"state":"{state}"}}"#));
    snapshot.apply(&path, value.as_deref().map(str::as_bytes), revision);
}

/// Node 1 has a block in which `guest` uses an address.
fn block(snapshot: &mut Snapshot, revision: i64, guest: Option<&str>) {
    let mut allocations = vec!["null"; 64];
    let mut attributes = String::new();
    if let Some(guest) = guest {
        allocations[5] = "0";
        attributes = format!(r#"{{"handle_id":"h","secondary":{{"node":"{guest}"}}}}"#);
    }
    let value = format!(
        r#"{{"cidr":"10.244.1.0/26","affinity":"host:node1","allocations":[{}],"unallocated":[],"attributes":[{attributes}]}}"#,
        allocations.join(",")
    );
    let path = "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26";
    put(snapshot, revision, path, &value);
}

fn cluster() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let pool = |name: &str, cidr: &str, more: &str| {
        let value = format!(
            r#"{{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{{"cidr":"{cidr}"{more}}}}}"#
        );
        (format!("{ROOT}/ippools/{name}"), value)
    };
    let lb = r#","allowedUses":["LoadBalancer"]"#;
    for (path, value) in [
        pool("pods", "10.244.0.0/16", ""),
        pool("lb", "10.245.0.0/16", lb),
    ] {
        put(&mut snapshot, 1, &path, &value);
    }
    node(&mut snapshot, 2, 1);
    node(&mut snapshot, 3, 2);
    affinity(&mut snapshot, 4, 1, 1, Some("confirmed"));
    affinity(&mut snapshot, 5, 2, 2, Some("pending"));
    block(&mut snapshot, 6, Some("node2"));
    snapshot
}

fn origins(updates: impl IntoIterator<Item = OriginUpdate>) -> OriginCheck {
    let mut origins = OriginCheck::default();
    for update in updates {
        origins.apply(update);
    }
    origins
}

fn verdict(origins: &OriginCheck, prefix: &str, hop: &str) -> &'static str {
    let attrs = PathAttrs {
        next_hop: Some(hop.parse().unwrap()),
        ..PathAttrs::default()
    };
    match origins.check(&prefix.parse().unwrap(), &attrs) {
        OriginVerdict::Unchecked => "unchecked",
        OriginVerdict::Valid => "valid",
        OriginVerdict::Invalid(_) => "invalid",
        OriginVerdict::Unknown(_) => "unknown",
    }
}

/// Questions to every table that is made of one snapshot.
const QUESTIONS: [(&str, &str); 9] = [
    ("10.244.1.0/26", "10.0.0.1"),
    ("10.244.1.0/26", "fd00::1"),
    ("10.244.1.0/26", "10.0.0.2"),
    ("10.244.1.5/32", "10.0.0.2"),
    ("10.244.1.5/32", "10.0.0.1"),
    ("10.244.2.0/26", "10.0.0.2"),
    ("10.244.0.0/16", "10.0.0.1"),
    ("10.245.0.7/32", "10.0.0.2"),
    ("0.0.0.0/0", "10.0.0.9"),
];

fn answers(origins: &OriginCheck) -> Vec<&'static str> {
    let answer = |(prefix, hop): (&str, &str)| verdict(origins, prefix, hop);
    QUESTIONS.map(answer).to_vec()
}

#[test]
fn a_block_is_its_owners_and_a_borrowed_address_its_workloads_nodes() {
    let origins = origins([update(None, &cluster())]);
    let expected = [
        "valid",
        "valid",
        "invalid",
        "valid",
        "invalid",
        "unknown",
        "invalid",
        "unchecked",
        "unchecked",
    ];
    assert_eq!(answers(&origins), expected);
}

#[test]
fn a_reflector_with_its_own_next_hop_relays_by_configuration_alone() {
    let mut snapshot = cluster();
    let reflector = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node9","labels":{"rr":"yes"}},"spec":{"bgp":{"ipv4Address":"10.0.0.9/24","routeReflectorClusterID":"244.0.0.1"}}}"#;
    put(&mut snapshot, 20, &format!("{ROOT}/nodes/node9"), reflector);
    let relays = |snapshot: &Snapshot| -> Vec<String> {
        let owners = identities(&Snapshot::default(), snapshot).into_iter();
        let relays = owners.filter(|(_, identity)| identity.as_ref().unwrap().relays);
        relays.map(|(name, _)| name).collect()
    };
    assert_eq!(relays(&snapshot), [""; 0]);
    for (mode, sides, expected) in [
        (
            "Auto",
            r#""nodeSelector":"!has(rr)","peerSelector":"has(rr)""#,
            &[][..],
        ),
        (
            "Self",
            r#""nodeSelector":"!has(rr)","peerSelector":"has(rr)""#,
            &["node9"],
        ),
        (
            "Self",
            r#""nodeSelector":"has(rr)","peerIP":"10.0.0.31","asNumber":65001"#,
            &["node9"],
        ),
        (
            "Self",
            r#""peerIP":"10.0.0.9","asNumber":64512"#,
            &["node9"],
        ),
        (
            "Self",
            r#""node":"node1","peerIP":"10.0.0.31","asNumber":65001"#,
            &[],
        ),
    ] {
        let old = snapshot.clone();
        let peer = format!(
            r#"{{"kind":"BGPPeer","apiVersion":"projectcalico.org/v3","metadata":{{"name":"p"}},"spec":{{"nextHopMode":"{mode}",{sides}}}}}"#
        );
        let revision = snapshot.revision + 1;
        put(
            &mut snapshot,
            revision,
            &format!("{ROOT}/bgppeers/p"),
            &peer,
        );
        assert_eq!(relays(&snapshot), expected, "{mode} {sides}");
        let update = update(Some(&old), &snapshot);
        let differs = !update.identities.is_empty();
        assert_eq!(differs, relays(&old) != relays(&snapshot), "{mode} {sides}");
        assert_eq!(update.rules, None);
    }
}

#[test]
fn an_owner_has_the_as_of_its_node_or_of_the_cluster() {
    let mut snapshots = vec![cluster()];
    let mut step = |path: &str, value: &str| {
        let mut next = snapshots[snapshots.len() - 1].clone();
        let revision = next.revision + 1;
        put(&mut next, revision, &format!("{ROOT}/{path}"), value);
        let old = &snapshots[snapshots.len() - 1];
        let told = identities(old, &next).into_iter();
        let told = told.map(|(name, is)| (name, is.unwrap().asn.unwrap().0));
        let told: Vec<(String, u32)> = told.collect();
        snapshots.push(next);
        told
    };
    let own = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node1"},"spec":{"bgp":{"ipv4Address":"10.0.0.1/24","asNumber":65101}}}"#;
    let told = step("nodes/node1", own);
    assert_eq!(told, [("node1".to_owned(), 65101)]);
    let default = r#"{"kind":"BGPConfiguration","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},"spec":{"asNumber":64999}}"#;
    let told = step("bgpconfigurations/default", default);
    assert_eq!(told, [("node2".to_owned(), 64999)]);
    let whole = identities(&Snapshot::default(), &cluster()).into_iter();
    let whole: Vec<u32> = whole.map(|(_, is)| is.unwrap().asn.unwrap().0).collect();
    assert_eq!(whole, [64512, 64512]);
}

#[test]
fn blocks_of_load_balancers_belong_to_no_node() {
    let mut snapshot = cluster();
    let block = "10.244.9.0/26".parse().unwrap();
    let owner = BlockOwner::Virtual("load-balancer".to_owned());
    let path = caracal_model::Key::Affinity(owner, block).to_path();
    put(&mut snapshot, 9, &path, r#"{"state":"confirmed"}"#);
    let origins = origins([update(None, &snapshot)]);
    let seen = verdict(&origins, "10.244.9.7/32", "10.0.0.2");
    assert_eq!(seen, "unchecked");
}

#[test]
fn a_disabled_pool_without_blocks_is_another_clusters() {
    let mut snapshot = cluster();
    let value = r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"far"},"spec":{"cidr":"10.246.0.0/16","disabled":true}}"#;
    put(&mut snapshot, 20, &format!("{ROOT}/ippools/far"), value);
    let mut stepwise = origins([update(None, &snapshot)]);
    let far = |origins: &OriginCheck| verdict(origins, "10.246.1.0/26", "10.0.0.9");
    assert_eq!(far(&stepwise), "unchecked");
    // It has a block after all: it is an old pool of ours that empties.
    let path = "/calico/ipam/v2/host/node1/ipv4/block/10.246.1.0-26";
    let steps: [(&[u8], _); 2] = [
        (br#"{"state":"pending"}"#, "unknown"),
        (br#"{"state":"confirmed"}"#, "invalid"),
    ];
    for (revision, (value, expected)) in (21..).zip(steps) {
        let old = snapshot.clone();
        snapshot.apply(path, Some(value), revision);
        stepwise.apply(update(Some(&old), &snapshot));
        assert_eq!(far(&stepwise), expected);
    }
}

#[test]
fn a_pool_for_load_balancers_is_nodes_as_long_as_they_have_a_block() {
    let mut snapshot = cluster();
    let mut stepwise = origins([update(None, &snapshot)]);
    let path = "/calico/ipam/v2/host/node1/ipv4/block/10.245.1.0-26";
    let free = vec!["null"; 64].join(",");
    let value = format!(
        r#"{{"cidr":"10.245.1.0/26","affinity":"host:node1","allocations":[{free}],"unallocated":[],"attributes":[]}}"#
    );
    let block = "/calico/ipam/v2/assignment/ipv4/block/10.245.1.0-26";
    for (revision, value, expected) in [
        (30, Some(value.as_str()), ["valid", "invalid", "unknown"]),
        (40, None, ["unchecked"; 3]),
    ] {
        let old = snapshot.clone();
        let affinity = value.map(|_| r#"{"state":"confirmed"}"#.as_bytes());
        snapshot.apply(path, affinity, revision);
        snapshot.apply(block, value.map(str::as_bytes), revision);
        stepwise.apply(update(Some(&old), &snapshot));
        let seen = [
            ("10.245.1.0/26", "10.0.0.1"),
            ("10.245.1.0/26", "10.0.0.2"),
            ("10.245.2.0/26", "10.0.0.2"),
        ];
        let seen = seen.map(|(prefix, hop)| verdict(&stepwise, prefix, hop));
        assert_eq!(seen, expected);
    }
}

/// Routes inside a pool are written whatever range of services covers them; so nobody but the
/// owner announces there.
#[test]
fn a_range_of_services_over_pods_frees_nothing_of_a_pool() {
    for range in [
        "10.0.0.0/8",
        "10.244.0.0/16",
        "10.244.0.0/17",
        "10.244.1.0/26",
    ] {
        let mut snapshot = cluster();
        let value = format!(
            r#"{{"kind":"BGPConfiguration","apiVersion":"projectcalico.org/v3","metadata":{{"name":"default"}},"spec":{{"serviceExternalIPs":[{{"cidr":"{range}"}},{{"cidr":"192.0.2.0/24"}}]}}}}"#
        );
        let path = format!("{ROOT}/bgpconfigurations/default");
        put(&mut snapshot, 20, &path, &value);
        let origins = origins([update(None, &snapshot)]);
        let seen = |prefix, hop| verdict(&origins, prefix, hop);
        assert_eq!(seen("10.244.1.0/26", "10.0.0.1"), "valid", "{range}");
        assert_eq!(seen("10.244.1.0/26", "10.0.0.2"), "invalid", "{range}");
        assert_eq!(seen("10.244.1.9/32", "10.0.0.2"), "invalid", "{range}");
        assert_eq!(seen("10.245.0.7/32", "10.0.0.2"), "unchecked", "{range}");
        assert_eq!(seen("192.0.2.7/32", "10.0.0.2"), "unchecked", "{range}");
    }
}

/// Whoever may write Nodes has no routes led to a pod; a machine that a pool lies over stays a
/// next hop to those that it lies over, too.
#[test]
fn an_address_among_pods_is_no_next_hop() {
    let node2 = |snapshot: &mut Snapshot, revision, more: &str| {
        let value = format!(
            r#"{{"kind":"Node","metadata":{{"name":"node2"}},"spec":{{"bgp":{{"ipv4Address":"10.0.0.2/24"}},"addresses":[{{"address":"{more}"}}]}}}}"#
        );
        put(snapshot, revision, &format!("{ROOT}/nodes/node2"), &value);
    };
    let mut snapshot = cluster();
    affinity(&mut snapshot, 19, 2, 2, Some("confirmed"));
    node2(&mut snapshot, 20, "10.244.1.9");
    let seen = |snapshot: &Snapshot, me: &str| {
        let whole = origin_update(None, snapshot, (&me.into(), OriginMode::Enforce));
        verdict(&origins([whole]), "10.244.2.0/26", "10.244.1.9")
    };
    assert_eq!(seen(&snapshot, "node1"), "invalid");
    node(&mut snapshot, 21, 9);
    let over = r#"{"metadata":{"name":"node9"},"spec":{"bgp":{"ipv4Address":"10.244.7.1/24"}}}"#;
    put(&mut snapshot, 22, &format!("{ROOT}/nodes/node9"), over);
    assert_eq!(seen(&snapshot, "node1"), "invalid");
    assert_eq!(seen(&snapshot, "node9"), "valid");
    // Its own address is followed.
    let was = snapshot.clone();
    node(&mut snapshot, 23, 9);
    let me: NodeName = "node9".into();
    let me = (&me, OriginMode::Enforce);
    let steps = [
        origin_update(None, &was, me),
        origin_update(Some(&was), &snapshot, me),
    ];
    let stepwise = origins(steps);
    let told = verdict(&stepwise, "10.244.2.0/26", "10.244.1.9");
    assert_eq!(told, "invalid");
}

#[test]
fn changes_add_up_to_the_whole() {
    let mut snapshots = vec![Snapshot::default(), cluster()];
    type Step = fn(&mut Snapshot, i64);
    let steps: [Step; 9] = [
        |s, r| affinity(s, r, 2, 2, Some("confirmed")),
        |s, r| block(s, r, None),
        |s, r| block(s, r, Some("node3")),
        |s, r| node(s, r, 3),
        |s, r| affinity(s, r, 1, 1, None),
        |s, r| affinity(s, r, 2, 1, Some("confirmed")),
        |s, r| affinity(s, r, 2, 2, Some("pendingDeletion")),
        |s, r| affinity(s, r, 2, 2, None),
        |s, r| drop(s.apply(&format!("{ROOT}/nodes/node3"), None, r)),
    ];
    for (n, step) in (100..).zip(steps) {
        let mut next = snapshots[snapshots.len() - 1].clone();
        step(&mut next, n);
        snapshots.push(next);
    }
    let mut stepwise = OriginCheck::default();
    stepwise.apply(update(None, &snapshots[0]));
    for pair in snapshots.windows(2) {
        stepwise.apply(update(Some(&pair[0]), &pair[1]));
        let whole = origins([update(None, &pair[1])]);
        assert_eq!(answers(&stepwise), answers(&whole));
        assert_eq!(stepwise.len(), whole.len());
    }
    let last = &snapshots[snapshots.len() - 1];
    assert!(update(Some(last), last).is_empty());
}

#[test]
fn a_change_that_is_nobodys_business_is_none() {
    let old = cluster();
    let mut new = old.clone();
    // The same allocation, written again; a node with another label.
    block(&mut new, 50, Some("node2"));
    node(&mut new, 51, 1);
    assert!(update(Some(&old), &new).is_empty());
}
