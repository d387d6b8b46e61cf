//! Properties of `diff` against a small kernel made of maps.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Cidr, Family, Prefix};
use proptest::prelude::*;

use super::*;
use crate::actual::{ActualNeighbour, ActualObject, ActualTarget};
use crate::kernel_objects::{
    BLACKHOLE_METRIC, FdbKey, ForwardingTarget, IPIP_DEVICE, NeighbourKey, NextHop, NextHopObject,
    PlannedRoute, Route, vxlan_device,
};
use crate::ownership::FIRST_OBJECT;
use crate::testing::{apply_op, made};

fn base() -> Actual {
    let mut links = Links::default();
    links.insert(Link::new(1, "eth0").with_address("10.0.0.1/24".parse().unwrap()));
    for (index, name) in [(2, "cali1"), (3, "cali2")] {
        let mut link = Link::new(index, name);
        link.kind = "veth".into();
        links.insert(link);
    }
    Actual {
        links,
        ..Actual::default()
    }
}

// A small world, so that wanted and present things often meet.

fn some_prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        (0u8..6).prop_map(|n| Prefix::v4([10, 244, n, 0].into(), 26)),
        (0u8..4).prop_map(|n| Prefix::v4([10, 244, 0, n].into(), 32)),
    ]
}

fn some_link() -> impl Strategy<Value = IfName> {
    prop::sample::select(vec!["eth0", "cali1", "cali2", "vxlan.calico", "tunl0"])
        .prop_map(IfName::from)
}

fn some_target() -> impl Strategy<Value = ForwardingTarget> {
    prop_oneof![
        Just(ForwardingTarget::Blackhole),
        (some_link(), prop::option::of(2u8..5), any::<bool>()).prop_map(
            |(link, gateway, onlink)| {
                let gateway = gateway.map(|n| IpAddr::from([10, 0, 0, n]));
                // A plan says "onlink" wherever the link's subnet does not say it.
                let onlink = onlink || link.as_str() != "eth0";
                ForwardingTarget::via(gateway, &link, onlink)
            }
        ),
    ]
}

fn some_metric() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![0, 1024, BLACKHOLE_METRIC])
}

fn some_actual_route() -> impl Strategy<Value = ActualRoute> {
    let protocol = prop::sample::select(vec![2u8, 3, 4, 12, 80, 80]);
    let target = prop_oneof![
        9 => some_target().prop_map(ActualTarget::Known),
        1 => Just(ActualTarget::Other(7)),
    ];
    let tos = prop_oneof![9 => Just(0u8), 1 => Just(16u8)];
    (
        some_prefix(),
        some_metric(),
        protocol,
        target,
        tos,
        prop::option::of(Just(1450)),
    )
        .prop_map(|(prefix, metric, protocol, target, tos, mtu)| ActualRoute {
            prefix,
            metric,
            tos,
            protocol,
            target,
            mtu,
            source: None,
        })
}

fn some_object() -> impl Strategy<Value = NextHopObject> {
    let id = prop_oneof![1u32..3, FIRST_OBJECT..FIRST_OBJECT + 4];
    let protocol = prop::sample::select(vec![0u8, 80, 80, 186]);
    (id, protocol, some_link(), 2u8..5).prop_map(|(id, protocol, link, n)| NextHopObject {
        id,
        protocol,
        hop: NextHop {
            gateway: Some([10, 0, 0, n].into()),
            link,
            onlink: true,
            extra_weight: 0,
        },
    })
}

fn some_tunnel(name: &'static str) -> impl Strategy<Value = Tunnel> {
    (
        1u32..3,
        any::<bool>(),
        prop::option::of(0u8..3),
        any::<u8>(),
    )
        .prop_map(move |(vni, big, address, octet)| Tunnel {
            name: name.into(),
            kind: if name == IPIP_DEVICE {
                TunnelDevice::Ipip { local: None }
            } else {
                TunnelDevice::Vxlan {
                    vni,
                    port: 4789,
                    local: [10, 0, 0, 1].into(),
                    parent: "eth0".into(),
                    mac: [0x66, 0, 0, 0, 0, octet],
                }
            },
            mtu: if big { 1480 } else { 1450 },
            address: address.map(|n| [10, 244, 0, n].into()),
        })
}

fn some_desired() -> impl Strategy<Value = Desired> {
    let tunnels = (
        prop::option::of(some_tunnel(vxlan_device(Family::Ipv4))),
        prop::option::of(some_tunnel(IPIP_DEVICE)),
    );
    let routes = prop::collection::vec((some_prefix(), some_metric(), some_target()), 0..12);
    let vteps = prop::collection::vec((0u8..4, 2u8..5), 0..4);
    let sysctls = prop::collection::btree_map("net/[ab]", "[01]", 0..3);
    (
        tunnels,
        routes,
        vteps,
        sysctls,
        prop::option::of(any::<bool>()),
        any::<bool>(),
    )
        .prop_map(|((vxlan, ipip), routes, vteps, sysctls, nat, objects)| {
            let mut desired = Desired {
                sysctls,
                objects,
                ..Desired::default()
            };
            for tunnel in vxlan.into_iter().chain(ipip) {
                desired.tunnels.insert(tunnel.name.clone(), tunnel);
            }
            // A plan names only devices that are there or planned.
            let usable = |link: &IfName, desired: &Desired| {
                !crate::ownership::is_tunnel_device(link.as_str())
                    || desired.tunnels.contains_key(link)
            };
            for (prefix, metric, target) in routes {
                if !target.links().all(|l| usable(l, &desired)) {
                    continue;
                }
                let local = target.links().any(|l| l.as_str().starts_with("cali"));
                let kind = if local {
                    RouteKind::Local
                } else {
                    RouteKind::Direct
                };
                let route = Route {
                    prefix,
                    metric,
                    protocol: 80,
                    target,
                    mtu: None,
                    source: None,
                };
                desired.routes.insert(prefix, PlannedRoute { route, kind });
            }
            let link: IfName = vxlan_device(Family::Ipv4).into();
            if desired.tunnels.contains_key(&link) {
                for (n, host) in vteps {
                    let mac = [0x66, 1, 0, 0, 0, n];
                    let address = [10, 244, n, 1].into();
                    desired.neighbours.insert(
                        NeighbourKey {
                            link: link.clone(),
                            address,
                        },
                        mac,
                    );
                    desired.fdb.insert(
                        FdbKey {
                            link: link.clone(),
                            mac,
                        },
                        [10, 0, 0, host].into(),
                    );
                }
            }
            desired.nat = nat.map(|on| {
                let mut nat = crate::nat::example();
                if !on {
                    nat.ipv4.masquerade.clear();
                }
                Arc::new(nat)
            });
            desired
        })
}

/// A kernel in any state: devices of any make, routes, neighbours and FDB entries of anybody.
fn some_actual() -> impl Strategy<Value = Actual> {
    let devices = (
        prop::option::of((some_tunnel(vxlan_device(Family::Ipv4)), any::<u8>())),
        prop::option::of((some_tunnel(IPIP_DEVICE), any::<u8>())),
    );
    let routes = prop::collection::vec(some_actual_route(), 0..16);
    let neighbours = prop::collection::vec((some_link(), 0u8..4, any::<bool>()), 0..6);
    let fdb = prop::collection::vec((0u8..5, 2u8..5), 0..4);
    let objects = prop::collection::vec((some_object(), 0usize..16), 0..6);
    let all = (devices, routes, neighbours, fdb, objects);
    all.prop_map(|((vxlan, ipip), mut routes, neighbours, fdb, objects)| {
        let mut actual = base();
        for (tunnel, whim) in vxlan.into_iter().chain(ipip) {
            let mut link = made(&tunnel, &actual.links).unwrap();
            link.up = whim & 1 == 0;
            link.addresses.extend(tunnel.cidr());
            link.addresses.push("fe80::1/64".parse().unwrap());
            if whim & 6 == 6 {
                (link.kind, link.vxlan) = ("bridge".into(), None);
            }
            actual.links.insert(link);
        }
        let there = |link: &IfName, actual: &Actual| actual.links.by_name(link.as_str()).is_some();
        // Of ours and of others, with routes of ours and of others through them, and without.
        for (object, nth) in objects {
            if there(&object.hop.link, &actual) && !actual.objects.contains_key(&object.id) {
                let made = ActualObject {
                    protocol: object.protocol,
                    hop: Some(object.hop.clone()),
                };
                actual.objects.insert(object.id, made);
                if let Some(route) = routes.get_mut(nth) {
                    route.target =
                        ActualTarget::Known(ForwardingTarget::Object(object.id, object.hop));
                }
            }
        }
        for route in routes {
            if route
                .next_hops()
                .iter()
                .all(|hop| there(&hop.link, &actual))
            {
                actual.push_route(route);
            }
        }
        for (link, n, permanent) in neighbours {
            if there(&link, &actual) {
                let key = NeighbourKey {
                    link,
                    address: [10, 244, n, 1].into(),
                };
                let mac = Some([0x66, 1, 0, 0, 0, n]);
                actual
                    .neighbours
                    .insert(key, ActualNeighbour { mac, permanent });
            }
        }
        let link: IfName = vxlan_device(Family::Ipv4).into();
        if there(&link, &actual) {
            for (n, host) in fdb {
                let mac = if n == 4 {
                    [0; 6]
                } else {
                    [0x66, 1, 0, 0, 0, n]
                };
                let key = FdbKey {
                    link: link.clone(),
                    mac,
                };
                actual.fdb.insert(key, [10, 0, 0, host].into());
            }
        }
        actual
    })
}

/// With all devices up.
fn awake(mut actual: Actual) -> Actual {
    let names: Vec<IfName> = actual.links.iter().map(|l| l.name.clone()).collect();
    for name in names {
        actual.links.by_name_mut(name.as_str()).unwrap().up = true;
    }
    actual
}

/// Everything in a kernel that is not ours, in a form that compares.
fn foreign(actual: &Actual, desired: &Desired) -> BTreeSet<String> {
    let rule = &desired.ownership;
    let mut all = BTreeSet::new();
    let replaced: BTreeSet<&IfName> = desired.tunnels.keys().collect();
    for route in actual
        .all_routes()
        .filter(|r| rule.route(r) == Owner::Foreign)
    {
        // A route on a device of ours is removed with it.
        let on_ours = route.next_hops().iter().any(|hop| {
            actual
                .links
                .by_name(hop.link.as_str())
                .is_some_and(|l| rule.tunnel(l))
        });
        if !on_ours {
            all.insert(format!("{route:?}"));
        }
    }
    for (id, object) in &actual.objects {
        let on_ours = object.hop.as_ref().is_some_and(|hop| {
            let link = actual.links.by_name(hop.link.as_str());
            link.is_some_and(|l| rule.tunnel(l))
        });
        if !rule.object(*id, object) && !on_ours {
            all.insert(format!("{id} {object:?}"));
        }
    }
    for link in actual.links.iter().filter(|l| !rule.tunnel(l)) {
        // The kernel of this test gives addresses to devices of ours alone.
        all.insert(format!("{link:?}"));
    }
    for (key, neighbour) in &actual.neighbours {
        let link = actual.links.by_name(key.link.as_str());
        let on_ours = link.is_some_and(|l| rule.tunnel(l)) || replaced.contains(&key.link);
        if !rule.neighbour(key, neighbour) && !on_ours && !desired.neighbours.contains_key(key) {
            all.insert(format!("{key} {neighbour:?}"));
        }
    }
    all
}

/// The wanted things that are not there, but for those whose place somebody else holds.
fn missing(desired: &Desired, actual: &Actual) -> Vec<String> {
    let mut missing = Vec::new();
    let blocked = |link: &IfName| {
        desired
            .tunnels
            .get(link)
            .is_some_and(|t| tunnel_state(t, &actual.links) == TunnelState::Foreign)
    };
    for tunnel in desired.tunnels.values() {
        let state = tunnel_state(tunnel, &actual.links);
        if !matches!(state, TunnelState::Right | TunnelState::Foreign) {
            missing.push(format!("device {}", tunnel.name));
        }
        let link = actual.links.by_name(tunnel.name.as_str());
        let has = |cidr: Cidr| link.is_some_and(|l| l.addresses.contains(&cidr));
        if state == TunnelState::Right && !tunnel.cidr().is_none_or(has) {
            missing.push(format!("address of {}", tunnel.name));
        }
    }
    for planned in desired.routes.values() {
        if planned.route.target.links().any(blocked) {
            continue;
        }
        // By an object where that is wanted, and not by one where it is not.
        let target = &planned.route.target;
        let same_gateway = |p: &&PlannedRoute| {
            p.route.target.same_gateway(target) && p.route.mtu == planned.route.mtu
        };
        let by_object = desired.objects
            && matches!(target.hops(), [hop] if hop.gateway.is_some())
            && desired.routes.values().filter(same_gateway).count() >= super::gateway_key::SHARED;
        let right =
            |r: &ActualRoute| r.satisfies(&planned.route) && r.object().is_some() == by_object;
        let there = actual.routes.get(&planned.route.key());
        match route_state(desired, there.map_or(&[][..], Vec::as_slice), right) {
            RouteState::Right | RouteState::Foreign(_) => {}
            _ => missing.push(planned.route.to_string()),
        }
    }
    for (key, mac) in &desired.neighbours {
        let there = actual.neighbours.get(key);
        if !blocked(&key.link) && there.is_none_or(|n| !n.permanent || n.mac != Some(*mac)) {
            missing.push(key.to_string());
        }
    }
    for (key, remote) in &desired.fdb {
        if !blocked(&key.link) && actual.fdb.get(key) != Some(remote) {
            missing.push(key.to_string());
        }
    }
    missing
}

/// The next-hop object that an op makes or leads through.
fn object_of(op: &Op) -> Option<u32> {
    match op {
        Op::AddObject(object) => Some(object.id),
        Op::AddRoute(route) | Op::ReplaceRoute(route) => match route.target {
            ForwardingTarget::Object(id, _) => Some(id),
            _ => None,
        },
        _ => None,
    }
}

fn run(desired: &Desired, actual: &Actual, phase: Phase) -> (Vec<Op>, Actual) {
    let ops = diff(desired, actual, phase);
    let mut after = actual.clone();
    let mut never_made = BTreeSet::new();
    for op in &ops {
        match apply_op(&mut after, op) {
            Ok(()) => {}
            // A device that has to be made anew, which only the sure do, stays down until then.
            Err("ENETDOWN") if phase == Phase::Learning => {
                never_made.extend(object_of(op));
            }
            // And what was to go through an object on it waits, too.
            Err("EINVAL") if object_of(op).is_some_and(|id| never_made.contains(&id)) => {}
            Err(reason) => panic!("{op}: {reason}\nof {ops:#?}"),
        }
    }
    (ops, after)
}

/// A second round is needed when a foreign route had the place of ours on a device of ours that
/// went last, or when routes went away from a next-hop object, which goes once that is seen.
fn settle(desired: &Desired, actual: &Actual) -> Actual {
    let (ops, after) = run(desired, actual, Phase::Synced);
    let waits = |op: &Op| matches!(op, Op::DeleteTunnel(_) | Op::ReplaceRoute(_));
    if ops.iter().any(waits) {
        return run(desired, &after, Phase::Synced).1;
    }
    after
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn agent_2_and_3_apply_gives_what_is_desired_and_then_nothing_is_left_to_do(
        desired in some_desired(), actual in some_actual()
    ) {
        let after = settle(&desired, &actual);
        prop_assert_eq!(missing(&desired, &after), Vec::<String>::new());
        prop_assert_eq!(diff(&desired, &after, Phase::Synced), vec![]);
    }

    #[test]
    fn agent_4_learning_deletes_nothing_and_loses_nothing(
        desired in some_desired(), actual in some_actual().prop_map(awake)
    ) {
        let (ops, after) = run(&desired, &actual, Phase::Learning);
        prop_assert!(!ops.iter().any(Op::is_delete), "{:#?}", ops);
        prop_assert_eq!(diff(&desired, &after, Phase::Learning), vec![]);
        for route in actual.all_routes() {
            prop_assert!(after.routes.contains_key(&route.key()), "{:?} is gone", route);
        }
        // Everything that is possible without deletion is there.
        let swept = settle(&desired, &after);
        prop_assert_eq!(missing(&desired, &swept), Vec::<String>::new());
    }

    #[test]
    fn agent_4_frozen_does_nothing(desired in some_desired(), actual in some_actual()) {
        prop_assert_eq!(diff(&desired, &actual, Phase::Frozen), vec![]);
    }

    #[test]
    fn agent_5_foreign_objects_are_untouched(desired in some_desired(), actual in some_actual()) {
        let before = foreign(&actual, &desired);
        for phase in [Phase::Learning, Phase::Synced] {
            let (_, after) = run(&desired, &actual, phase);
            let after = foreign(&after, &desired);
            prop_assert_eq!(before.difference(&after).collect::<Vec<_>>(), Vec::<&String>::new());
        }
    }

    /// A wanted prefix that is routed before is routed after each single op: replaced, never
    /// deleted and added.
    #[test]
    fn agent_6_no_wanted_prefix_is_ever_without_a_route(
        first in some_desired(), second in some_desired()
    ) {
        let (_, mut actual) = run(&first, &base(), Phase::Synced);
        let ops = diff(&second, &actual, Phase::Synced);
        let recreated: Vec<&IfName> = ops.iter().filter_map(|op| match op {
            Op::DeleteTunnel(name) => Some(name),
            _ => None,
        }).collect();
        for op in &ops {
            apply_op(&mut actual, op).unwrap();
            for (prefix, planned) in &second.routes {
                // A device with another VNI has to be made anew.
                let through_recreated = |p: &PlannedRoute| p.route.target.links().any(|l| recreated.contains(&l));
                let Some(before) = first.routes.get(prefix) else { continue };
                if through_recreated(before) || through_recreated(planned) {
                    continue;
                }
                prop_assert!(
                    actual.all_routes().any(|r| r.prefix == *prefix),
                    "{} has no route after {}", prefix, op
                );
            }
        }
    }

    #[test]
    fn removal_leaves_nothing_of_ours(desired in some_desired(), actual in some_actual()) {
        let (_, mut installed) = run(&desired, &actual, Phase::Synced);
        let before = foreign(&installed, &desired);
        for op in removal(&installed, &desired.ownership) {
            apply_op(&mut installed, &op).unwrap();
        }
        let left: Vec<_> = installed
            .all_routes()
            .filter(|r| desired.ownership.route(r) == Owner::Ours)
            .collect();
        prop_assert_eq!(left, Vec::<&ActualRoute>::new());
        for (id, object) in installed.objects.iter().filter(|(id, o)| desired.ownership.object(**id, o)) {
            // The kernel would delete their routes.
            let foreign = installed.all_routes().any(|r| r.object() == Some(*id));
            prop_assert!(foreign, "{} {:?} is left", id, object);
        }
        prop_assert!(installed.fdb.keys().all(|key| !desired.ownership.fdb(key)));
        prop_assert_eq!(installed.nat.clone(), None);
        let after = foreign(&installed, &desired);
        prop_assert_eq!(before.difference(&after).collect::<Vec<_>>(), Vec::<&String>::new());
    }
}

#[test]
fn ops_come_in_dependency_order() {
    let mut desired = Desired::default();
    let link: IfName = vxlan_device(Family::Ipv4).into();
    let tunnel = Tunnel {
        name: link.clone(),
        kind: TunnelDevice::Vxlan {
            vni: 4096,
            port: 4789,
            local: [10, 0, 0, 1].into(),
            parent: "eth0".into(),
            mac: [0x66; 6],
        },
        mtu: 1450,
        address: Some([10, 244, 0, 1].into()),
    };
    desired.tunnels.insert(link.clone(), tunnel);
    let mac = [0x66, 0, 0, 0, 0, 2];
    let vtep: IpAddr = [10, 244, 1, 1].into();
    desired.neighbours.insert(
        NeighbourKey {
            link: link.clone(),
            address: vtep,
        },
        mac,
    );
    desired.fdb.insert(
        FdbKey {
            link: link.clone(),
            mac,
        },
        [10, 0, 0, 2].into(),
    );
    let prefix = "10.244.1.0/26".parse().unwrap();
    let route = Route {
        prefix,
        metric: 0,
        protocol: 80,
        target: ForwardingTarget::via(Some(vtep), &link, true),
        mtu: Some(1450),
        source: None,
    };
    desired.routes.insert(
        prefix,
        PlannedRoute {
            route,
            kind: RouteKind::Vxlan,
        },
    );
    desired
        .sysctls
        .insert("net/ipv4/ip_forward".into(), "1".into());
    desired.nat = Some(Arc::new(crate::nat::example()));
    let mut actual = base();
    let old = Route {
        prefix: "10.244.9.0/26".parse().unwrap(),
        metric: 0,
        protocol: 80,
        target: ForwardingTarget::Blackhole,
        mtu: None,
        source: None,
    };
    actual.push_route(old.into());
    let fingerprint = desired.nat.as_ref().unwrap().fingerprint();
    let texts: Vec<String> = diff(&desired, &actual, Phase::Synced)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        texts,
        [
            "add vxlan device vxlan.calico mtu 1450",
            "add address 10.244.0.1/32 dev vxlan.calico",
            "put neighbour 10.244.1.1 dev vxlan.calico lladdr 66:00:00:00:00:02",
            "put fdb 66:00:00:00:00:02 dev vxlan.calico dst 10.0.0.2",
            "add route 10.244.1.0/26 via 10.244.1.1 dev vxlan.calico onlink proto 80 metric 0 mtu 1450",
            "write sysctl net/ipv4/ip_forward = 1",
            &format!("replace the NAT rules by {fingerprint}"),
            "delete route 10.244.9.0/26 blackhole proto 80 metric 0",
        ]
    );
}

/// From unencapsulated to VXLAN on IPv6: the block's old route is what leads to the VTEP, until the
/// VTEP has its own.
#[test]
fn an_ipv6_vtep_is_on_the_link_before_anything_goes_through_it() {
    let link: IfName = vxlan_device(Family::Ipv6).into();
    let route = |prefix: &str, target: ForwardingTarget| Route {
        prefix: prefix.parse().unwrap(),
        metric: 1024,
        protocol: 80,
        target,
        mtu: None,
        source: None,
    };
    let via =
        |gateway: &str, link: &IfName| ForwardingTarget::via(gateway.parse().ok(), link, true);
    let mut desired = Desired::default();
    let tunnel = Tunnel {
        name: link.clone(),
        kind: TunnelDevice::Vxlan {
            vni: 4096,
            port: 4789,
            local: "fd00:a::1".parse().unwrap(),
            parent: "eth0".into(),
            mac: [0x66; 6],
        },
        mtu: 1430,
        address: None,
    };
    desired.tunnels.insert(link.clone(), tunnel);
    for wanted in [
        route("fd00:244::40/122", via("fd00:244::41", &link)),
        route(
            "fd00:244::41/128",
            ForwardingTarget::via(None, &link, false),
        ),
    ] {
        let planned = PlannedRoute {
            route: wanted,
            kind: RouteKind::Vxlan,
        };
        desired.routes.insert(planned.route.prefix, planned);
    }
    let mut actual = base();
    actual.push_route(route("fd00:244::40/122", via("fd00:a::2", &"eth0".into())).into());
    for phase in [Phase::Learning, Phase::Synced] {
        let (ops, after) = run(&desired, &actual, phase);
        assert!(
            matches!(
                ops.as_slice(),
                [Op::AddTunnel(_), Op::AddRoute(_), Op::ReplaceRoute(_)]
            ),
            "{ops:?}"
        );
        assert_eq!(diff(&desired, &after, phase), []);
    }
}
