//! What a sweep leaves of what no plan has, for each value that cannot be read.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use caracal_model::{Key, Prefix};

use crate::actual::{Actual, ActualNeighbour, ActualRoute};
use crate::diff::{Phase, diff};
use crate::kernel_objects::{FdbKey, ForwardingTarget, NeighbourKey, Route};
use crate::links::Link;
use crate::op::Op;
use crate::plan::tests::World;

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";
const BLOCKS: &str = "/calico/ipam/v2/assignment";

/// Routes that no plan has: of a block that is gone, of one that may be there, of one that is c's
/// and that nobody has told of, outside all pools, to interfaces of workloads; IPv6.
const ROUTES: [(&str, &str, &str); 9] = [
    ("10.244.7.0/26", "10.0.0.2", "eth0"),
    ("10.244.9.0/26", "10.0.0.2", "eth0"),
    ("10.244.9.3/32", "10.0.0.2", "eth0"),
    ("10.244.2.0/26", "10.0.0.254", "eth0"),
    ("10.250.0.0/24", "10.0.0.2", "eth0"),
    ("10.244.0.9/32", "", "cali123"),
    ("10.244.0.10/32", "", "cali456"),
    ("fd00:244::40/122", "fd00:a::2", "eth0"),
    ("fd00:244::80/122", "fd00:a::2", "eth0"),
];

fn world() -> World {
    let mut world = World::new("");
    world.pool("v6", "fd00:244::/56", r#","blockSize":122"#);
    world.workload("w", "cali456", r#"["10.244.0.5/32"]"#);
    world
}

fn spoil(world: &mut World, path: &str) {
    let revision = world.snapshot.revision + 1;
    world.snapshot.apply(path, Some(b"{nonsense"), revision);
}

/// The kernel of a node that had VXLAN, with the routes of the plan and [`ROUTES`].
fn kernel(world: &World) -> Actual {
    let vxlan = "vxlan.calico";
    let mut device = Link::new(7, vxlan).with_address("10.244.0.1/32".parse().unwrap());
    device.kind = "vxlan".into();
    let mut links = world.links.clone();
    links.insert(device);
    let mut actual = Actual {
        links,
        ..Actual::default()
    };
    let planned = world.plan();
    for planned in planned.routes.values() {
        actual.push_route(planned.route.clone().into());
    }
    for (prefix, gateway, link) in ROUTES {
        actual.push_route(ActualRoute::from(Route {
            prefix: prefix.parse().unwrap(),
            metric: 0,
            protocol: 80,
            target: ForwardingTarget::via(gateway.parse().ok(), &link.into(), false),
            mtu: None,
            source: None,
        }));
    }
    let mac = [0x66, 0, 0, 0, 0, 2];
    let key = NeighbourKey {
        link: vxlan.into(),
        address: "10.244.1.1".parse().unwrap(),
    };
    let there = ActualNeighbour {
        mac: Some(mac),
        permanent: true,
    };
    actual.neighbours.insert(key, there);
    let link = vxlan.into();
    let far = "10.0.0.2".parse().unwrap();
    actual.fdb.insert(FdbKey { link, mac }, far);
    actual
}

/// What stays of what no plan has.
fn kept(world: &World) -> BTreeSet<String> {
    let actual = kernel(world);
    let ops = diff(&world.plan(), &actual, Phase::Synced);
    let mut kept: BTreeSet<String> = ROUTES.map(|(prefix, ..)| prefix.to_owned()).into();
    kept.extend(["device", "address", "neighbour", "fdb"].map(str::to_owned));
    for op in ops {
        let gone = match op {
            Op::DeleteRoute(route) => route.prefix.to_string(),
            Op::DeleteTunnel(_) => "device".to_owned(),
            Op::DeleteAddress(..) => "address".to_owned(),
            Op::DeleteNeighbour(_) => "neighbour".to_owned(),
            Op::DeleteFdb(..) => "fdb".to_owned(),
            _ => continue,
        };
        assert!(kept.remove(&gone), "{gone} is wanted, or was twice there");
    }
    kept
}

fn assert_kept(path: &str, wanted: &[&str]) {
    let mut world = world();
    spoil(&mut world, path);
    let wanted = wanted.iter().map(|text| (*text).to_owned()).collect();
    assert_eq!(kept(&world), wanted, "{path}");
}

#[test]
fn where_everything_can_be_read_all_of_it_goes() {
    assert_eq!(kept(&world()), BTreeSet::new());
}

#[test]
fn a_block_or_an_affinity_holds_its_range_back() {
    let range = ["10.244.9.0/26", "10.244.9.3/32"];
    assert_kept(&format!("{BLOCKS}/ipv4/block/10.244.9.0-26"), &range);
    assert_kept("/calico/ipam/v2/host/b/ipv4/block/10.244.9.0-26", &range);
    let range = ["fd00:244::40/122"];
    assert_kept(&format!("{BLOCKS}/ipv6/block/fd00:244::40-122"), &range);
    assert_kept("/calico/ipam/v2/host/z/ipv6/block/fd00:244::40-122", &range);
}

#[test]
fn a_block_outside_the_pools_may_want_a_tunnel() {
    let wanted = ["address", "device"];
    assert_kept(&format!("{BLOCKS}/ipv4/block/10.251.0.0-26"), &wanted);
}

#[test]
fn a_pool_holds_back_what_lies_outside_the_others_and_the_tunnels() {
    let wanted = ["10.250.0.0/24", "address", "device", "fdb", "neighbour"];
    assert_kept(&format!("{RESOURCES}/ippools/q"), &wanted);
}

#[test]
fn a_node_holds_back_its_blocks_and_what_it_may_reflect() {
    let mut world = world();
    // z owns one block, and an address of a's.
    world.block("10.244.9.0/26", "z", &[]);
    world.block("10.244.0.0/26", "a", &[(10, "z")]);
    assert_eq!(kept(&world), BTreeSet::new());
    spoil(&mut world, &Key::node(&"z".into()).to_path());
    let wanted = [
        "10.244.0.10/32",
        "10.244.2.0/26",
        "10.244.9.0/26",
        "10.244.9.3/32",
        "10.250.0.0/24",
        "fdb",
        "neighbour",
    ];
    // The device is no node's but ours, and no pool wants it.
    assert_eq!(kept(&world), wanted.map(str::to_owned).into());
}

#[test]
fn an_endpoint_holds_back_the_interfaces_that_no_endpoint_names() {
    let of = |name: &str| format!("{RESOURCES}/workloadendpoints/default/{name}-k8s-x-eth0");
    assert_kept(&of("a"), &["10.244.0.9/32"]);
    assert_kept(&of("unknown"), &["10.244.0.9/32"]);
    assert_kept(&of("b"), &[]);
}

#[test]
fn other_values_hold_nothing_back() {
    for kind in ["bgppeers", "bgpfilters", "ipreservations"] {
        assert_kept(&format!("{RESOURCES}/{kind}/x"), &[]);
    }
}

/// A value that comes and goes changes no key of the plan, and what it holds back is judged anew.
#[test]
fn the_sweep_follows_as_soon_as_the_value_can_be_read() {
    use crate::diff::Comparison;
    use crate::plan::Changed;
    let mut world = world();
    let path = format!("{BLOCKS}/ipv4/block/10.244.9.0-26");
    spoil(&mut world, &path);
    let mut comparison = Comparison::default();
    let nothing = Changed::Keys(Default::default());
    let actual = kernel(&world);
    let all = |ops: Vec<Op>| -> Vec<Prefix> {
        let routes = ops.into_iter().filter_map(|op| match op {
            Op::DeleteRoute(route) => Some(route.prefix),
            _ => None,
        });
        routes.collect()
    };
    let held = world.plan();
    let (ops, _) = comparison.compare(&nothing, &held, &actual, Phase::Synced);
    assert!(!all(ops).contains(&"10.244.9.0/26".parse().unwrap()));
    comparison.is_done(&held, Phase::Synced);
    world.snapshot.apply(&path, None, 99);
    let plan = world.plan();
    let (ops, _) = comparison.compare(&nothing, &plan, &actual, Phase::Synced);
    assert!(all(ops).contains(&"10.244.9.0/26".parse().unwrap()));
}
