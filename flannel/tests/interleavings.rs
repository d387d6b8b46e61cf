//! Two and three processes that want subnets at the same time: every interleaving of their steps,
//! with crashes at any point and leases that end at any moment.
#![allow(clippy::unwrap_used, missing_docs)]

mod world;

use caracal_flannel::{AcquireError, DeviceMac, NodeSubnets};
use world::{Actor, End, Search, World, config, request, subnets};

const NETWORK: &str = r#""Network":"10.5.0.0/24","SubnetLen":26"#;

/// What all nodes of the search hold at its end, and how often it went so.
fn ends(start: World, actors: Vec<Actor>, crashes: usize, expiries: usize) -> Search {
    let mut search = Search::default();
    search.run(start, actors, crashes, expiries);
    println!("{} histories, {} ends", search.histories, search.ends.len());
    assert!(search.histories > 1);
    search
}

fn taken(end: &End) -> Option<NodeSubnets> {
    match end {
        End::Has(lease) => Some(lease.subnets),
        _ => None,
    }
}

#[test]
fn flannel_1_and_2_two_nodes_want_one_subnet() {
    let config = config(&format!(
        "{{{NETWORK},\"Backend\":{{\"Type\":\"host-gw\"}}}}"
    ));
    let wanted = subnets("10.5.0.64-26");
    let node = |ip: [u8; 4]| {
        let mut request = request(&config, ip);
        request.previous = Some(wanted);
        Actor::new(request)
    };
    let search = ends(
        World::default(),
        vec![node([10, 0, 0, 1]), node([10, 0, 0, 2])],
        0,
        0,
    );
    for end in &search.ends {
        let both: Vec<_> = end.iter().map(|e| taken(e).unwrap()).collect();
        assert_eq!(both.iter().filter(|s| **s == wanted).count(), 1, "{both:?}");
        assert!(!both[0].overlap(&both[1]), "{both:?}");
    }
    assert!(search.ends.len() >= 2, "either may be the faster one");
    ends(
        World::default(),
        vec![node([10, 0, 0, 1]), node([10, 0, 0, 2])],
        2,
        1,
    );
}

#[test]
fn flannel_1_the_last_subnet_goes_to_one_of_two() {
    let config = config(&format!(
        "{{{NETWORK},\"SubnetMax\":\"10.5.0.64\",\"Backend\":{{\"Type\":\"alloc\"}}}}"
    ));
    let nodes = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|ip| Actor::new(request(&config, ip)));
    let search = ends(World::default(), nodes.to_vec(), 0, 0);
    for end in &search.ends {
        let has = end.iter().filter(|e| taken(e).is_some()).count();
        let refused = end
            .iter()
            .filter(|e| {
                matches!(
                    e,
                    End::Refused(AcquireError::OutOfSubnets { leases: 1, .. })
                )
            })
            .count();
        assert_eq!((has, refused), (1, 1), "{end:?}");
    }
    ends(World::default(), nodes.to_vec(), 1, 2);
}

/// A node with both families and one that still has the configuration of before: their keys differ,
/// their subnets must not.
#[test]
fn flannel_1_holds_between_keys_of_different_form() {
    let old = config(&format!(
        "{{{NETWORK},\"Backend\":{{\"Type\":\"host-gw\"}}}}"
    ));
    let new = config(
        r#"{"Network":"10.5.0.0/24","SubnetLen":27,"EnableIPv6":true,"IPv6Network":"fd00:5::/48",
            "Backend":{"Type":"host-gw"}}"#,
    );
    let mut dual = request(&new, [10, 0, 0, 2]);
    dual.public_ipv6 = Some("fd00::2".parse().unwrap());
    let mut other = dual.clone();
    other.public_ip = Some([10, 0, 0, 3].into());
    other.seed += 1;
    let actors = [request(&old, [10, 0, 0, 1]), dual, other].map(Actor::new);
    let search = ends(World::default(), actors.to_vec(), 0, 0);
    for end in &search.ends {
        assert!(end.iter().all(|e| taken(e).is_some()), "{end:?}");
    }
}

/// Both have the address of the node: whichever writes last, there is one lease.
#[test]
fn flannel_2_an_old_and_a_new_process_of_one_node() {
    let config = config(&format!("{{{NETWORK},\"Backend\":{{\"Type\":\"vxlan\"}}}}"));
    let mut old = request(&config, [10, 0, 0, 1]);
    old.macs[0] = DeviceMac::Kept([2, 0, 0, 0, 0, 1]);
    let mut new = old.clone();
    new.seed += 1;
    let actors = vec![Actor::new(old), Actor::new(new)];
    let search = ends(World::default(), actors, 1, 0);
    for end in &search.ends {
        let all: Vec<_> = end.iter().filter_map(taken).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{end:?}");
    }
}

/// The network was cut anew: a lease that does not fit goes together with the new one, and never
/// before.
#[test]
fn a_lease_that_does_not_fit_is_exchanged_in_one_step() {
    let config = config(&format!(
        "{{{NETWORK},\"Backend\":{{\"Type\":\"host-gw\"}}}}"
    ));
    let mut start = World::default();
    start.put(
        "10.5.0.64-27",
        r#"{"PublicIP":"10.0.0.1","PublicIPv6":null,"BackendType":"host-gw"}"#,
        true,
    );
    let nodes = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|ip| Actor::new(request(&config, ip)));
    let search = ends(start, nodes.to_vec(), 1, 0);
    for world in &search.worlds {
        let of_first = world
            .leases()
            .filter(|(_, lease)| lease.public_ip.unwrap().octets()[3] == 1);
        assert_eq!(of_first.count(), 1, "{world:?}");
    }
}
