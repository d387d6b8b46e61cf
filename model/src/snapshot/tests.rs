//! Content of a snapshot, and its queries.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::ipam::{AllocationAttribute, Block};

const POOL: &str = "/calico/resources/v3/projectcalico.org/ippools/p";

fn pool(cidr: &str, rest: &str) -> Vec<u8> {
    format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"cidr":"{cidr}"{rest}}}}}"#).into_bytes()
}

#[test]
fn model_4_a_bad_value_keeps_the_last_good_one() {
    let mut s = Snapshot::default();
    assert_eq!(
        s.apply(POOL, Some(&pool("10.0.0.0/16", "")), 5),
        Applied::Changed
    );
    let bad = s.apply(POOL, Some(&pool("10.0.0.0/99", "")), 6);
    assert!(matches!(bad, Applied::Invalid(_)));
    assert_eq!(s.pools[&PoolName::from("p")].spec.cidr, "10.0.0.0/16");
    assert_eq!(
        s.problems()[0].reason,
        "spec.cidr: prefix length 99 is too long for IPv4; at most 32; the last good value stays in use"
    );
    assert!(!s.is_doubtful());
    assert_eq!(
        s.apply(POOL, Some(&pool("10.1.0.0/16", "")), 7),
        Applied::Changed
    );
    assert!(s.problems().is_empty());
    assert_eq!(s.revision, 7);
    assert_eq!(s.apply(POOL, None, 8), Applied::Changed);
    assert!(s.pools.is_empty());
}

#[test]
fn a_value_that_never_parsed_makes_the_snapshot_doubtful() {
    let mut s = Snapshot::default();
    s.apply(POOL, Some(b"{nonsense"), 5);
    assert!(s.is_doubtful());
    assert!(
        s.problems()[0]
            .reason
            .contains("the value is ignored until it is corrected, and until then no tunnel")
    );
    s.apply(POOL, None, 6);
    assert!(!s.is_doubtful());
    assert!(s.problems().is_empty());
}

#[test]
fn each_fault_is_named() {
    let fault = |value: &[u8]| match Snapshot::default().apply(POOL, Some(value), 1) {
        Applied::Invalid(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert!(fault(&pool("banana", "")).starts_with("spec.cidr: \"banana\" is not a CIDR"));
    assert!(
        fault(&pool("10.0.0.0/16", r#","ipipMode":"Sometimes""#)).starts_with(
            "encapsulation mode \"Sometimes\" is not known; use Never, Always or CrossSubnet"
        )
    );
    assert!(
        fault(&pool(
            "10.0.0.0/16",
            r#","ipipMode":"Always","vxlanMode":"Always""#
        ))
        .contains("both set")
    );
    assert!(
        fault(&pool("10.0.0.0/16", r#","blockSize":12"#)).contains("an IPv4 block is /20 to /32")
    );
    let peer = br#"{"metadata":{"name":"x"},"spec":{"peerIP":"10.0.0.9","asNumber":99999999999}}"#;
    let path = "/calico/resources/v3/projectcalico.org/bgppeers/x";
    let Applied::Invalid(reason) = Snapshot::default().apply(path, Some(peer), 1) else {
        panic!()
    };
    assert!(
        reason.starts_with("AS number 99999999999 is out of range"),
        "{reason}"
    );
}

#[test]
fn blocks_and_pools_are_found_by_range() {
    let mut s = Snapshot::default();
    s.apply(POOL, Some(&pool("10.0.0.0/16", "")), 1);
    for (cidr, n) in [("10.0.0.0/30", 4), ("10.0.0.8/30", 4)] {
        let key = Key::Block(cidr.parse().unwrap()).to_path();
        let block = Block::new(cidr.parse().unwrap(), None, 1);
        assert_eq!(block.allocations.len(), n);
        s.apply(&key, Some(&block.to_json()), 2);
    }
    let find = |text: &str| {
        s.block_of(&text.parse().unwrap())
            .map(|b| b.cidr.to_string())
    };
    assert_eq!(find("10.0.0.3"), Some("10.0.0.0/30".into()));
    assert_eq!(find("10.0.0.4"), None);
    assert_eq!(find("10.0.0.8/30"), Some("10.0.0.8/30".into()));
    assert_eq!(find("10.0.0.8"), Some("10.0.0.8/30".into()));
    assert!(s.pool_of(&"10.0.3.0/26".parse().unwrap()).is_some());
    assert!(s.pool_of(&"10.1.3.0/26".parse().unwrap()).is_none());
}

#[test]
fn affinities_are_found_by_their_node_alone() {
    let mut s = Snapshot::default();
    let owners = [
        BlockOwner::Host("a".into()),
        BlockOwner::Host("b".into()),
        BlockOwner::Host("bb".into()),
        BlockOwner::Virtual("b".into()),
    ];
    for (owner, third) in owners.iter().zip(0..) {
        for text in [format!("10.0.{third}.0/26"), format!("fd00:{third}::/122")] {
            let key = Key::Affinity(owner.clone(), text.parse().unwrap()).to_path();
            s.apply(&key, Some(br#"{"state":"confirmed"}"#), 1);
        }
    }
    let of = |node: &str| {
        let node = NodeName::from(node);
        let found = s.affinities_of(&node).map(|(cidr, _)| cidr.to_string());
        found.collect::<Vec<_>>()
    };
    assert_eq!(of("b"), ["10.0.1.0/26", "fd00:1::/122"]);
    assert_eq!(of("bb"), ["10.0.2.0/26", "fd00:2::/122"]);
    assert!(of("c").is_empty());
}

#[test]
fn a_block_under_another_key_is_refused() {
    let mut s = Snapshot::default();
    let block = Block::new("10.0.0.8/30".parse().unwrap(), None, 1);
    let key = Key::Block("10.0.0.0/30".parse().unwrap()).to_path();
    assert_eq!(
        s.apply(&key, Some(&block.to_json()), 2),
        Applied::Invalid("the block says 10.0.0.8/30 under the key of 10.0.0.0/30".into())
    );
}

#[test]
fn a_pool_for_load_balancers_makes_routes_while_nodes_have_something_of_it() {
    let range: Prefix = "10.0.0.0/24".parse().unwrap();
    let cidr: Prefix = "10.0.0.8/30".parse().unwrap();
    let mut s = Snapshot::default();
    s.apply(POOL, Some(&pool("10.0.0.0/24", "")), 1);
    let routed = |s: &Snapshot| {
        let mut pools = s.pools.values();
        pools.all(|pool| s.makes_routes(&pool.spec))
    };
    assert!(routed(&s));
    let alone = r#","allowedUses":["LoadBalancer"]"#;
    s.apply(POOL, Some(&pool("10.0.0.0/24", alone)), 2);
    assert!(!routed(&s));
    let block = |owner: Option<BlockOwner>, user: Option<&str>| {
        let mut block = Block::new(cidr, owner.as_ref(), 1);
        if let Some(user) = user {
            block.allocations[1] = Some(0);
            block.unallocated.retain(|free| *free != 1);
            block.attributes.push(AllocationAttribute {
                secondary: [("node".to_owned(), user.to_owned())].into(),
                ..AllocationAttribute::default()
            });
        }
        (Key::Block(cidr).to_path(), Some(block.to_json()))
    };
    let balancer = || Some(BlockOwner::Virtual("load-balancer".into()));
    let node = || Some(BlockOwner::Host("a".into()));
    let path = Key::workload("default", "a-k8s-w-eth0").to_path();
    let endpoint = |address: &str| {
        let value = format!(
            r#"{{"metadata":{{"name":"a-k8s-w-eth0","namespace":"default"}},"spec":{{"node":"a","interfaceName":"cali1","ipNetworks":["{address}"]}}}}"#
        );
        (path.clone(), Some(value.into_bytes()))
    };
    let mut before = s.clone();
    for (revision, ((key, value), expected)) in (3..).zip([
        (block(balancer(), None), false),
        (block(node(), None), true),
        (block(None, None), false),
        (block(None, Some("a")), true),
        (block(balancer(), None), false),
        (endpoint("10.0.1.9/32"), false),
        (endpoint("10.0.0.9/32"), true),
        (block(node(), None), true),
        ((path.clone(), None), true),
        ((Key::Block(cidr).to_path(), None), false),
    ]) {
        s.apply(&key, value.as_deref(), revision);
        assert_eq!(routed(&s), expected, "{revision}");
        let turned = s.pools_turned_since(&before);
        let expected = (routed(&before) != routed(&s)).then_some(range);
        assert_eq!(
            turned,
            expected.into_iter().collect::<Vec<_>>(),
            "{revision}"
        );
        before = s.clone();
    }
}

#[test]
fn a_block_is_of_pods_while_a_node_has_it_and_a_pool_covers_it() {
    let block = |owner: &str| {
        let free = vec!["null"; 64].join(",");
        format!(
            r#"{{"cidr":"10.244.1.0/26"{owner},"allocations":[{free}],"unallocated":[],"attributes":[]}}"#
        )
    };
    let path = "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26";
    let mut s = Snapshot::default();
    let found = |s: &Snapshot, address: &str, own: &[&str]| {
        let host = Prefix::host(address.parse().unwrap());
        let own = own.iter().map(|own| own.parse().unwrap());
        s.block_of_pods(&host, own).is_some()
    };
    s.apply(path, Some(block(r#","affinity":"host:b""#).as_bytes()), 1);
    assert!(!found(&s, "10.244.1.9", &[]), "no pool");
    s.apply(POOL, Some(&pool("10.244.0.0/16", "")), 2);
    assert!(found(&s, "10.244.1.9", &["10.0.0.1"]));
    assert!(found(&s, "10.244.1.9", &["fd00::1", "10.0.0.1"]));
    assert!(!found(&s, "10.244.1.70", &[]), "beside the block");
    assert!(!found(&s, "10.244.1.9", &["10.244.7.1"]), "a pool over us");
    for owner in ["", r#","affinity":"virtual:load-balancer""#] {
        s.apply(path, Some(block(owner).as_bytes()), 3);
        assert!(!found(&s, "10.244.1.9", &[]), "no node's: {owner}");
    }
}
