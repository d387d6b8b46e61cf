#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use caracal_datastore::MemoryStore;
use caracal_ipam::LeaseHolder;

use super::*;
use crate::config::Config;
use crate::register::register;

const START: u64 = 1_767_607_920_000_000_000;

/// So many seconds after the start.
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(START + seconds * 1_000_000_000)
}

/// A machine with this last octet in both families starts as a node.
async fn start(store: &MemoryStore, node: &str, octet: u8, now: Timestamp) -> Result<(), String> {
    let config = Config::from_env(&BTreeMap::new(), None, node).unwrap();
    let addresses = Addresses {
        v4: Some(format!("10.0.0.{octet}/24").parse().unwrap()),
        v6: Some(format!("fd00::{octet}/64").parse().unwrap()),
    };
    let both = [addresses.v4, addresses.v6];
    let there: Vec<IpAddr> = both.into_iter().flatten().map(|c| c.address).collect();
    let registered = register(store, &config, addresses, &there, now).await;
    registered.map(drop).map_err(|error| error.to_string())
}

async fn claims(store: &MemoryStore, node: &str) -> Vec<String> {
    let (node, _) = read_node(store, &node.into()).await.unwrap().unwrap();
    let of = |family| node.spec.address(family).map(|a| a.to_string());
    [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .filter_map(of)
        .collect()
}

/// Starts all of them again and again, as their supervisors do; how many rounds that took.
async fn rounds(store: &MemoryStore, wanted: &[(&str, u8)]) -> usize {
    for round in 1..=wanted.len() {
        let mut refused = 0;
        for (node, octet) in wanted {
            refused += usize::from(start(store, node, *octet, at(0)).await.is_err());
        }
        if refused == 0 {
            return round;
        }
    }
    panic!("refused for ever");
}

#[tokio::test]
async fn machines_that_swapped_their_addresses_make_way_for_each_other() {
    for nodes in [&["a", "b"][..], &["a", "b", "c"], &["a", "b", "c", "d"]] {
        for shift in 1..nodes.len() {
            let store = MemoryStore::new();
            for (octet, node) in (1..).zip(nodes) {
                start(&store, node, octet, at(0)).await.unwrap();
            }
            let octets = (1..).take(nodes.len()).cycle().skip(shift);
            let wanted: Vec<(&str, u8)> = nodes.iter().copied().zip(octets).collect();
            assert_eq!(rounds(&store, &wanted).await, 2, "{wanted:?}");
            for (node, octet) in wanted {
                let both = [format!("10.0.0.{octet}"), format!("fd00::{octet}")];
                assert_eq!(claims(&store, node).await, both);
            }
        }
    }
}

#[tokio::test]
async fn a_living_node_keeps_its_address_and_the_refused_one_its_own() {
    let store = MemoryStore::new();
    start(&store, "a", 1, at(0)).await.unwrap();
    start(&store, "b", 2, at(0)).await.unwrap();
    let term = Duration::from_secs(900);
    let node = NodeName::from("a");
    let holder = LeaseHolder::default();
    let lease = |revision, now| Lease::renew(&node, &holder, revision, term, now);
    let config = Config::from_env(&BTreeMap::new(), None, "b").unwrap();
    let wanted = Addresses {
        v4: Some("10.0.0.1/24".parse().unwrap()),
        v6: None,
    };
    // Told a wrong address, it still has its own: nothing is withdrawn, and not asked who is off.
    let own: Vec<IpAddr> = vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let refused = register(&store, &config, wanted, &own, at(9999)).await;
    assert!(refused.is_err());
    assert_eq!(claims(&store, "b").await, ["10.0.0.2", "fd00::2"]);
    // One without a lease may live.
    let says = start(&store, "c", 1, at(9999)).await.unwrap_err();
    assert!(says.contains("node a already has the address"), "{says}");
    store.apply(&lease(None, at(0))).unwrap();
    start(&store, "c", 1, at(899)).await.unwrap_err();
    // Power was cut: its term is over.
    start(&store, "c", 1, at(900)).await.unwrap();
    assert_eq!(claims(&store, "a").await, [""; 0]);
    assert_eq!(claims(&store, "c").await, ["10.0.0.1", "fd00::1"]);
    // It comes back with its old address, and is refused by the living one.
    let revision = store.get(&Lease::path(&"a".into())).unwrap().mod_revision;
    store.apply(&lease(Some(revision), at(1000))).unwrap();
    start(&store, "a", 1, at(1000)).await.unwrap_err();
    start(&store, "a", 3, at(1000)).await.unwrap();
    // One that ended in order comes back, as a rule.
    let revision = store.get(&Lease::path(&"a".into())).unwrap().mod_revision;
    let stop = Lease::stop(&node, &holder, revision, term, at(2000));
    store.apply(&stop).unwrap();
    start(&store, "d", 3, at(2119)).await.unwrap_err();
    start(&store, "d", 3, at(2120)).await.unwrap();
}
