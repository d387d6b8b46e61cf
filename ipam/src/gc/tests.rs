#![allow(clippy::unwrap_used)]

use caracal_model::{
    AllocationAttribute, Block, BlockAffinity, BlockOwner, ENDPOINT_ATTRIBUTE, INTERFACE_ATTRIBUTE,
    Key, Node, NodeSpec, Timestamp, WorkloadEndpoint, WorkloadEndpointSpec,
};

use super::*;

const GRACE: Duration = Duration::from_secs(900);
const PATH: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/default/web";

fn me() -> NodeName {
    "node-a".into()
}

fn put(snapshot: &mut Snapshot, path: &str, value: &[u8]) {
    let revision = snapshot.revision + 1;
    snapshot.apply(path, Some(value), revision);
}

/// A block of node-a, with its affinity.
fn block(cidr: &str, change: impl FnOnce(&mut Block)) -> Block {
    let owner = BlockOwner::Host(me());
    let mut block = Block::new(cidr.parse().unwrap(), Some(&owner), 1);
    change(&mut block);
    block
}

fn store(snapshot: &mut Snapshot, block: &Block) {
    let owner = BlockOwner::Host(me());
    put(
        snapshot,
        &Key::Block(block.cidr).to_path(),
        &block.to_json(),
    );
    let affinity = Key::Affinity(owner, block.cidr).to_path();
    let confirmed = BlockAffinity::new(AffinityState::Confirmed).to_json();
    put(snapshot, &affinity, &confirmed);
}

fn attribute(handle: &str, node: &str) -> AllocationAttribute {
    let secondary = [
        ("node", node),
        (ENDPOINT_ATTRIBUTE, "default/web"),
        (INTERFACE_ATTRIBUTE, "caliweb"),
    ];
    AllocationAttribute {
        handle_id: Some(handle.to_owned()),
        secondary: secondary.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ..AllocationAttribute::default()
    }
}

fn take(block: &mut Block, count: usize, attribute: &AllocationAttribute) {
    let taken = crate::block::take(block, count, attribute, &Default::default());
    assert_eq!(taken.len(), count);
}

/// node-a holds 10.0.0.0 for the pod `web`, which has no endpoint.
fn leaked() -> Snapshot {
    let mut snapshot = Snapshot::default();
    let node = Node::new("node-a", NodeSpec::default());
    put(&mut snapshot, &Key::node(&me()).to_path(), &node.to_json());
    let held = block("10.0.0.0/30", |b| take(b, 1, &attribute("net.1", "node-a")));
    store(&mut snapshot, &held);
    snapshot
}

fn endpoint(snapshot: &mut Snapshot, network: &str, container: &str) {
    let mut endpoint = WorkloadEndpoint::new("web", WorkloadEndpointSpec::default());
    endpoint.spec.node = "node-a".to_owned();
    endpoint.spec.ip_networks = vec![network.parse().unwrap()];
    endpoint.spec.container_id = container.to_owned();
    endpoint.spec.interface_name = "caliweb".to_owned();
    put(snapshot, PATH, &endpoint.to_json());
}

/// Looks now and a grace period later.
fn twice(snapshot: &Snapshot, interfaces: &[&str]) -> Vec<Garbage> {
    let mut collector = Collector::new(me(), GRACE);
    let interfaces = interfaces.iter().map(|i| (*i).to_owned()).collect();
    let now = Instant::now();
    assert_eq!(
        collector.collectable(now, snapshot, &interfaces),
        [],
        "nothing at first sight"
    );
    collector.collectable(now + GRACE, snapshot, &interfaces)
}

fn addresses(collections: &[Garbage]) -> Vec<String> {
    let targets = collections.iter().flat_map(|c| match c {
        Garbage::Addresses { targets, .. } => targets.as_slice(),
        _ => &[],
    });
    targets.map(|t| t.address.to_string()).collect()
}

#[test]
fn gc_1_two_proofs_of_death() {
    let mut snapshot = leaked();
    let collected = twice(&snapshot, &["eth0"]);
    let [
        Garbage::Addresses {
            targets,
            preconditions,
            interfaces,
            ..
        },
    ] = &collected[..]
    else {
        panic!("{collected:?}");
    };
    assert_eq!(targets[0].handle, Some("net.1".into()));
    assert!(targets[0].sequence.is_some());
    assert_eq!(preconditions, &[Compare::Absent(PATH.to_owned())]);
    assert!(interfaces.contains("caliweb"));
    assert_eq!(twice(&snapshot, &["caliweb"]), [], "its interface is there");
    endpoint(&mut snapshot, "10.0.0.0/32", "1");
    assert_eq!(twice(&snapshot, &[]), [], "an endpoint has the address");
}

#[test]
fn gc_1_a_later_pod_of_the_same_name_has_the_interface() {
    let mut snapshot = leaked();
    endpoint(&mut snapshot, "10.0.0.9/32", "2");
    let collected = twice(&snapshot, &["caliweb"]);
    assert_eq!(addresses(&collected), ["10.0.0.0"]);
    let [
        Garbage::Addresses {
            preconditions,
            interfaces,
            ..
        },
    ] = &collected[..]
    else {
        panic!("{collected:?}");
    };
    assert_eq!(
        preconditions,
        &[Compare::Unchanged(PATH.to_owned(), snapshot.revision)]
    );
    assert!(interfaces.is_empty());
}

#[test]
fn gc_3_death_must_last() {
    let snapshot = leaked();
    let mut living = snapshot.clone();
    endpoint(&mut living, "10.0.0.0/32", "1");
    let mut collector = Collector::new(me(), GRACE);
    let (now, none) = (Instant::now(), BTreeSet::new());
    collector.collectable(now, &snapshot, &none);
    assert_eq!(
        collector.collectable(now + GRACE - Duration::from_secs(1), &snapshot, &none),
        []
    );
    // It was seen alive in between: the time starts anew.
    assert_eq!(collector.collectable(now + GRACE, &living, &none), []);
    assert_eq!(collector.collectable(now + GRACE * 2, &snapshot, &none), []);
    assert_eq!(
        collector
            .collectable(now + GRACE * 3, &snapshot, &none)
            .len(),
        1
    );
    // The same address, allocated anew: another allocation.
    let mut again = leaked();
    let mut held = block("10.0.0.0/30", |b| {
        b.sequence_number = 77;
        take(b, 1, &attribute("net.1", "node-a"));
    });
    held.sequence_number = 78;
    store(&mut again, &held);
    assert_eq!(collector.collectable(now + GRACE * 3, &again, &none), []);
}

#[test]
fn gc_4_all_addresses_of_a_handle_or_none() {
    let mut snapshot = leaked();
    let two = block("10.0.0.0/30", |b| take(b, 2, &attribute("net.1", "node-a")));
    store(&mut snapshot, &two);
    assert_eq!(addresses(&twice(&snapshot, &[])), ["10.0.0.0", "10.0.0.1"]);
    endpoint(&mut snapshot, "10.0.0.1/32", "1");
    assert_eq!(twice(&snapshot, &[]), []);
}

fn pool(snapshot: &mut Snapshot, name: &str, cidr: &str) {
    let path = format!("/calico/resources/v3/projectcalico.org/ippools/{name}");
    let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"cidr":"{cidr}"}}}}"#);
    put(snapshot, &path, value.as_bytes());
    assert!(snapshot.pools.keys().any(|known| known.as_str() == name));
}

/// Those of pools that are gone serve nobody.
#[test]
fn gc_6_empty_blocks_without_a_pool() {
    let mut snapshot = leaked();
    store(&mut snapshot, &block("10.9.0.0/30", |_| {}));
    store(&mut snapshot, &block("fd00::/126", |_| {}));
    pool(&mut snapshot, "other", "10.0.0.0/16");
    let blocks = ["10.9.0.0/30", "fd00::/126"].map(|b| Garbage::Block(b.parse().unwrap()));
    assert_eq!(twice(&snapshot, &["caliweb"]), blocks);
    pool(&mut snapshot, "v6", "fd00::/64");
    assert_eq!(twice(&snapshot, &["caliweb"]), blocks[..1]);
    // The last one that a pool has is kept beside one without a pool.
    let mut snapshot = Snapshot::default();
    pool(&mut snapshot, "one", "10.0.0.0/16");
    store(&mut snapshot, &block("10.0.0.4/30", |_| {}));
    store(&mut snapshot, &block("10.9.0.0/30", |_| {}));
    assert_eq!(twice(&snapshot, &[]), blocks[..1]);
}

#[test]
fn gc_6_empty_blocks_but_never_the_last() {
    let mut snapshot = leaked();
    pool(&mut snapshot, "v4", "10.0.0.0/16");
    store(&mut snapshot, &block("10.0.0.4/30", |_| {}));
    store(&mut snapshot, &block("10.0.0.8/30", |_| {}));
    let collected = twice(&snapshot, &["caliweb"]);
    let blocks = ["10.0.0.4/30", "10.0.0.8/30"].map(|b| Garbage::Block(b.parse().unwrap()));
    assert_eq!(collected, blocks);
    // Only empty ones: one stays.
    let mut snapshot = Snapshot::default();
    pool(&mut snapshot, "v4", "10.0.0.0/16");
    pool(&mut snapshot, "v6", "fd00::/64");
    store(&mut snapshot, &block("10.0.0.4/30", |_| {}));
    store(&mut snapshot, &block("10.0.0.8/30", |_| {}));
    store(&mut snapshot, &block("fd00::/126", |_| {}));
    assert_eq!(twice(&snapshot, &[]), blocks[..1]);
    // Changed in between: it was used.
    let mut collector = Collector::new(me(), GRACE);
    let (now, none) = (Instant::now(), BTreeSet::new());
    collector.collectable(now, &snapshot, &none);
    store(&mut snapshot, &block("10.0.0.4/30", |_| {}));
    let collected = collector.collectable(now + GRACE, &snapshot, &none);
    assert_eq!(collected, blocks[1..]);
}

#[test]
fn gc_6_blocks_that_only_cool_down_and_blocks_of_nobody() {
    let cooling = |b: &mut Block| {
        take(b, 1, &attribute("net.1", "node-a"));
        crate::block::release(b, 0, Duration::from_secs(30), Timestamp::from_nanos(1));
        assert_eq!(b.in_use(), 1);
    };
    let mut snapshot = leaked();
    store(&mut snapshot, &block("10.0.0.4/30", cooling));
    let nobodys = |cidr: &str, change: &dyn Fn(&mut Block)| {
        block(cidr, |b| {
            change(b);
            b.affinity = None;
        })
    };
    for block in [
        nobodys("10.0.0.8/30", &cooling),
        nobodys("10.0.0.12/30", &|_| {}),
        nobodys("10.0.0.16/30", &|b| {
            take(b, 1, &attribute("net.2", "node-b"))
        }),
    ] {
        put(
            &mut snapshot,
            &Key::Block(block.cidr).to_path(),
            &block.to_json(),
        );
    }
    let mut collected = twice(&snapshot, &["caliweb"]);
    collected.retain(|c| !matches!(c, Garbage::Addresses { .. }));
    let cidr = |text: &str| text.parse().unwrap();
    assert_eq!(
        collected,
        [
            Garbage::Block(cidr("10.0.0.4/30")),
            Garbage::Abandoned(cidr("10.0.0.8/30")),
            Garbage::Abandoned(cidr("10.0.0.12/30")),
        ]
    );
}

#[test]
fn gc_7_a_value_that_does_not_parse_holds_back_what_it_is_about() {
    // The endpoint of the address, before it was ever read and after.
    let mut own = leaked();
    put(&mut own, PATH, b"{");
    assert_eq!(twice(&own, &[]), []);
    let mut known = leaked();
    endpoint(&mut known, "10.0.0.1/32", "1");
    put(&mut known, PATH, b"{");
    assert_eq!(twice(&known, &[]), []);
    // Others: each is about something else.
    for path in [
        &format!("{PATH}-2"),
        "/calico/resources/v3/projectcalico.org/nodes/node-b",
        "/calico/resources/v3/projectcalico.org/ippools/p",
        "/calico/ipam/v2/assignment/ipv4/block/10.0.0.64-30",
        "/calico/ipam/v2/host/node-b/ipv6/block/fd00::40-122",
    ] {
        let mut snapshot = leaked();
        put(&mut snapshot, path, b"{");
        assert_eq!(addresses(&twice(&snapshot, &[])), ["10.0.0.0"], "{path}");
    }
}

#[test]
fn gc_7_a_block_whose_affinity_does_not_parse_is_kept() {
    let mut snapshot = leaked();
    let mut empty = block("10.0.0.64/30", |_| {});
    empty.affinity = None;
    put(
        &mut snapshot,
        &Key::Block(empty.cidr).to_path(),
        &empty.to_json(),
    );
    let abandoned = Garbage::Abandoned(empty.cidr);
    assert!(twice(&snapshot, &["caliweb"]).contains(&abandoned));
    let affinity = Key::Affinity(BlockOwner::Host("node-b".into()), empty.cidr);
    put(&mut snapshot, &affinity.to_path(), b"{");
    assert_eq!(twice(&snapshot, &["caliweb"]), []);
}

#[test]
fn gc_8_only_addresses_of_our_own_interfaces_on_this_node() {
    for change in [
        |a: &mut AllocationAttribute| drop(a.secondary.remove(INTERFACE_ATTRIBUTE)),
        |a: &mut AllocationAttribute| drop(a.secondary.insert("node".into(), "node-b".into())),
        |a: &mut AllocationAttribute| {
            a.secondary
                .insert("type".into(), "ipipTunnelAddress".into());
        },
        |a: &mut AllocationAttribute| a.released_at = Some("2026-01-01T00:00:00Z".into()),
        |a: &mut AllocationAttribute| a.handle_id = None,
    ] {
        let mut attribute = attribute("net.1", "node-a");
        change(&mut attribute);
        let mut snapshot = leaked();
        pool(&mut snapshot, "v4", "10.0.0.0/16");
        store(
            &mut snapshot,
            &block("10.0.0.0/30", |b| take(b, 1, &attribute)),
        );
        assert_eq!(twice(&snapshot, &[]), [], "{attribute:?}");
    }
}
