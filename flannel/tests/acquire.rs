//! One node and its lease: what is written, what is taken again, what is left alone.
#![allow(clippy::unwrap_used, missing_docs)]

mod world;

use caracal_flannel::{AcquireError, DeviceMac, FlannelConfig, LeaseOrigin, NodeSubnets, OwnLease};
use caracal_model::{Family, Prefix};
use proptest::prelude::*;
use world::{Actor, End, PREFIX, World, config, request, subnets};

fn vxlan() -> FlannelConfig {
    config(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#)
}

fn has(end: End) -> OwnLease {
    match end {
        End::Has(lease) => *lease,
        other => panic!("{other:?}"),
    }
}

fn stored(world: &World, key: &str) -> (String, bool) {
    let (value, _, leased) = &world.keys[&format!("{PREFIX}/subnets/{key}")];
    (String::from_utf8(value.clone()).unwrap(), *leased)
}

const OWN: &str = r#"{"PublicIP":"10.0.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:09"},"Later":7}"#;

#[test]
fn a_first_lease_is_as_flanneld_writes_it() {
    let mut world = World::default();
    let lease = has(Actor::new(request(&vxlan(), [10, 0, 0, 1])).run(&mut world));
    assert_eq!(lease.origin, LeaseOrigin::Picked);
    assert_eq!(lease.subnets, subnets("10.5.1.0-24"));
    assert_eq!(
        stored(&world, "10.5.1.0-24"),
        (
            r#"{"PublicIP":"10.0.0.1","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#.to_owned(),
            true
        )
    );
    let mut dual = request(
        &config(
            r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"host-gw"}}"#,
        ),
        [10, 0, 0, 2],
    );
    assert_eq!(
        Actor::new(dual.clone()).run(&mut world),
        End::Refused(AcquireError::NoAddress(Family::Ipv6))
    );
    dual.public_ipv6 = Some("fd00::2".parse().unwrap());
    let lease = has(Actor::new(dual).run(&mut world));
    assert!(lease.subnets.v6.is_some());
    assert_eq!(
        stored(&world, &lease.subnets.to_key()).0,
        r#"{"PublicIP":"10.0.0.2","PublicIPv6":"fd00::2","BackendType":"host-gw"}"#
    );
}

/// flanneld has no such leases in etcd; its key and its value would be these.
#[test]
fn a_network_without_ipv4_has_leases_by_the_address_of_ipv6() {
    let mut world = World::default();
    let config = config(
        r#"{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"vxlan"}}"#,
    );
    let wants = |host: u8| {
        let mut wants = request(&config, [10, 0, 0, host]);
        wants.public_ipv6 = Some(format!("fd00::{host}").parse().unwrap());
        wants
    };
    let first = has(Actor::new(wants(1)).run(&mut world));
    assert_eq!(first.subnets, subnets("0.0.0.0-0&fd00:5:0:24::-64"));
    let value = r#"{"PublicIP":"0.0.0.0","PublicIPv6":"fd00::1","BackendType":"vxlan","BackendV6Data":{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}}"#;
    assert_eq!(
        stored(&world, "0.0.0.0-0&fd00:5:0:24::-64"),
        (value.to_owned(), true)
    );
    // Another node has other subnets, and a second start has its own again.
    let second = has(Actor::new(wants(2)).run(&mut world));
    assert!(!second.subnets.overlap(&first.subnets));
    let again = has(Actor::new(wants(1)).run(&mut world));
    assert_eq!(again.origin, LeaseOrigin::Renewed);
    assert_eq!(again.subnets, first.subnets);
    let mut without = wants(3);
    without.public_ipv6 = None;
    assert_eq!(
        Actor::new(without).run(&mut world),
        End::Refused(AcquireError::NoAddress(Family::Ipv6))
    );
}

#[test]
fn flannel_2_an_own_lease_is_renewed_with_what_others_wrote_into_it() {
    let mut world = World::default();
    world.put("10.5.77.0-24", OWN, true);
    // The device is made anew after a reboot, with the MAC address that everybody knows.
    let lease = has(Actor::new(request(&vxlan(), [10, 0, 0, 1])).run(&mut world));
    assert_eq!((lease.origin, lease.revision), (LeaseOrigin::Renewed, 2));
    assert_eq!(stored(&world, "10.5.77.0-24"), (OWN.to_owned(), true));
    assert_eq!(
        lease.lease.vtep(Family::Ipv4).unwrap().mac,
        [2, 0, 0, 0, 0, 9]
    );
    // A device that is there has the address that it has.
    let mut kept = request(&vxlan(), [10, 0, 0, 1]);
    kept.macs[0] = DeviceMac::Kept([2, 0, 0, 0, 0, 3]);
    has(Actor::new(kept).run(&mut world));
    assert_eq!(
        stored(&world, "10.5.77.0-24").0,
        OWN.replace("00:09", "00:03")
    );
}

#[test]
fn flannel_2_the_subnet_of_before_is_taken_again() {
    let mut wants = request(&vxlan(), [10, 0, 0, 1]);
    wants.previous = Some(subnets("10.5.77.0-24"));
    let mut world = World::default();
    let lease = has(Actor::new(wants.clone()).run(&mut world));
    assert_eq!(
        (lease.subnets, lease.origin),
        (subnets("10.5.77.0-24"), LeaseOrigin::Previous)
    );
    // Somebody else has it, or a part of it; or the network does not give it out.
    for other in ["10.5.77.0-24", "10.5.77.128-25", "10.5.76.0-23&fd00::-64"] {
        let mut world = World::default();
        world.put(other, r#"{"PublicIP":"10.0.0.7"}"#, true);
        let lease = has(Actor::new(wants.clone()).run(&mut world));
        assert_eq!(lease.subnets, subnets("10.5.1.0-24"), "{other}");
    }
    wants.previous = Some(subnets("10.9.77.0-24"));
    let lease = has(Actor::new(wants).run(&mut World::default()));
    assert_eq!(lease.subnets, subnets("10.5.1.0-24"));
}

#[test]
fn a_node_that_moved_keeps_its_subnet() {
    let mut world = World::default();
    world.put("10.5.77.0-24", OWN, true);
    let mut moved = request(&vxlan(), [10, 0, 0, 99]);
    moved.previous = Some(subnets("10.5.77.0-24"));
    moved.macs[0] = DeviceMac::Kept([2, 0, 0, 0, 0, 9]);
    let lease = has(Actor::new(moved.clone()).run(&mut world));
    assert_eq!(lease.subnets, subnets("10.5.77.0-24"));
    assert!(stored(&world, "10.5.77.0-24").0.contains("10.0.0.99"));
    // Another machine's device is no proof.
    moved.public_ip = Some([10, 0, 0, 100].into());
    moved.macs[0] = DeviceMac::Kept([2, 0, 0, 0, 0, 8]);
    let lease = has(Actor::new(moved).run(&mut world));
    assert_eq!(lease.subnets, subnets("10.5.1.0-24"));
}

fn host_gw() -> FlannelConfig {
    config(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#)
}

/// The daemon knows what it wrote, whatever the backend says of devices.
#[test]
fn an_address_that_changes_while_the_daemon_runs_costs_no_subnet() {
    let mut world = World::default();
    let mut wants = request(&host_gw(), [10, 0, 0, 1]);
    let first = has(Actor::new(wants.clone()).run(&mut world));
    wants.previous = Some(first.subnets);
    wants.public_ip = Some([10, 0, 0, 99].into());
    wants.written = Some(first.lease.clone());
    let moved = has(Actor::new(wants.clone()).run(&mut world));
    assert_eq!(moved.subnets, first.subnets);
    assert_eq!(world.keys.len(), 1);
    // Somebody else has written it meanwhile.
    wants.public_ip = Some([10, 0, 0, 98].into());
    let other = has(Actor::new(wants).run(&mut world));
    assert_ne!(other.subnets, first.subnets);
}

#[test]
fn flannel_7_a_lease_speaks_of_a_backend_whose_devices_are_there() {
    let mut world = World::default();
    world.put("10.5.77.0-24", OWN, true);
    let mut wants = request(&host_gw(), [10, 0, 0, 1]);
    wants.devices_stand = false;
    let before = has(Actor::new(wants.clone()).run(&mut world)).lease;
    assert_eq!(String::from_utf8(before.to_json()).unwrap(), OWN);
    wants.devices_stand = true;
    let after = has(Actor::new(wants).run(&mut world)).lease;
    assert_eq!(
        (after.backend_type.as_str(), after.backend_data),
        ("host-gw", None)
    );
}

#[test]
fn flannel_5_a_reservation_stays_one() {
    let mut world = World::default();
    world.put("10.5.77.0-24", r#"{"PublicIP":"10.0.0.1"}"#, false);
    // A reservation says nothing of a backend that would have to be kept.
    let mut first = request(&vxlan(), [10, 0, 0, 1]);
    first.devices_stand = false;
    let lease = has(Actor::new(first).run(&mut world));
    assert!(lease.reserved);
    let (value, leased) = stored(&world, "10.5.77.0-24");
    assert!(value.contains("VtepMAC") && !leased, "{value}");
    let before = world.revision;
    has(Actor::new(request(&vxlan(), [10, 0, 0, 1])).run(&mut world));
    assert_eq!(
        world.revision, before,
        "nothing is written that is there already"
    );
    // Others keep off it.
    let mut other = request(&vxlan(), [10, 0, 0, 2]);
    other.previous = Some(subnets("10.5.77.0-24"));
    assert_eq!(
        has(Actor::new(other).run(&mut world)).subnets,
        subnets("10.5.1.0-24")
    );
}

#[test]
fn flannel_4_what_cannot_be_read_is_taken_all_the_same() {
    let mut world = World::default();
    world.put("10.5.1.0-24", "{", true);
    world.put("nonsense", "{", true);
    let lease = has(Actor::new(request(&vxlan(), [10, 0, 0, 1])).run(&mut world));
    assert_eq!(lease.subnets, subnets("10.5.2.0-24"));
}

proptest! {
    /// Nodes come, come again and go in any order, with any configuration of a small network.
    #[test]
    fn flannel_1_holds_after_any_sequence(
        turns in prop::collection::vec((1u8..9, 26u8..=28, any::<bool>(), any::<u64>(), any::<bool>()), 1..40),
    ) {
        let mut world = World::default();
        for (node, len, dual, seed, leaves) in turns {
            let v6 = if dual { r#""EnableIPv6":true,"IPv6Network":"fd00:5::/120","IPv6SubnetLen":124,"# } else { "" };
            let text = format!(r#"{{"Network":"10.5.0.0/24","SubnetLen":{len},{v6}"Backend":{{"Type":"vxlan"}}}}"#);
            let mut wants = request(&config(&text), [10, 0, 0, node]);
            wants.public_ipv6 = Some("fd00::1".parse().unwrap());
            wants.seed = seed;
            let end = Actor::new(wants).run(&mut world);
            world.assert_disjoint();
            let of_node: Vec<NodeSubnets> = world
                .leases()
                .filter(|(_, lease)| lease.public_ip.unwrap().octets()[3] == node)
                .map(|(subnets, _)| subnets)
                .collect();
            if let End::Has(lease) = end {
                prop_assert_eq!(&of_node, &[lease.subnets]);
                let inside: Prefix = "10.5.0.0/24".parse().unwrap();
                let v4 = lease.subnets.v4.unwrap();
                prop_assert!(inside.covers(&v4) && v4.len() == len);
                prop_assert_eq!(lease.subnets.v6.is_some(), dual);
            }
            if leaves {
                let keys = caracal_flannel::FlannelKeys::new(PREFIX);
                for subnets in of_node {
                    world.keys.remove(&keys.lease(&subnets));
                }
            }
        }
    }
}
