//! Addresses of tunnel devices, as a node's start-up asks for them.

use std::net::IpAddr;

use crate::world::actor::{Any, End, faults, held_by, run, view};
use crate::world::{NOW, World, after, node, node_with, pool_with};
use caracal_ipam::{Assign, EnsureTunnel, TunnelKind};
use caracal_model::{AllowedUse, BlockOwner, EncapMode, Key, NodeBgp, NodeName};
use serde_json::{Value, json};

fn world() -> World {
    World::default()
        .with(pool_with("plain", "10.9.0.0/24", 26, |_| {}))
        .with(pool_with("ipip", "10.0.0.0/28", 30, |p| {
            p.spec.ipip_mode = EncapMode::Always
        }))
        .with(pool_with("vxlan", "10.1.0.0/28", 30, |p| {
            p.spec.vxlan_mode = EncapMode::CrossSubnet
        }))
        .with(pool_with("vxlan6", "fd00::/120", 122, |p| {
            p.spec.vxlan_mode = EncapMode::Always
        }))
        .with(node("node-a"))
}

fn ensure(world: &mut World, kind: TunnelKind) -> Option<IpAddr> {
    let machine = EnsureTunnel::new(kind, "node-a".into(), NOW);
    let end = run(world, Any::Tunnel(machine));
    assert_eq!(faults(world, after(1)), []);
    match end {
        End::Took(list) => list.first().copied(),
        other => panic!("{other:?}"),
    }
}

fn ensure_in_use(world: &mut World, kind: TunnelKind, pools: &[&str]) -> Option<IpAddr> {
    let in_use = pools.iter().map(|name| (*name).into()).collect();
    let machine = EnsureTunnel::new(kind, "node-a".into(), NOW).with_pools_in_use(in_use);
    match run(world, Any::Tunnel(machine)) {
        End::Took(list) => list.first().copied(),
        other => panic!("{other:?}"),
    }
}

fn name_in_node(world: &mut World, address: Option<IpAddr>) {
    world.put(node_with("node-a", |n| {
        n.spec.bgp = address.map(|a| NodeBgp {
            ipv4_ipip_tunnel_addr: match a {
                IpAddr::V4(a) => Some(a),
                IpAddr::V6(_) => None,
            },
            ..NodeBgp::default()
        });
    }));
}

#[test]
fn each_kind_from_its_pools_under_calicos_handle() {
    let mut world = world();
    for (kind, handle, attribute, pool) in [
        (
            TunnelKind::Ipip,
            "ipip-tunnel-addr-node-a",
            "ipipTunnelAddress",
            "10.0.0.",
        ),
        (
            TunnelKind::Vxlan,
            "vxlan-tunnel-addr-node-a",
            "vxlanTunnelAddress",
            "10.1.0.",
        ),
        (
            TunnelKind::VxlanV6,
            "vxlan-v6-tunnel-addr-node-a",
            "vxlanV6TunnelAddress",
            "fd00::",
        ),
    ] {
        let address = ensure(&mut world, kind).unwrap();
        assert!(address.to_string().starts_with(pool), "{address}");
        assert_eq!(held_by(&world, &handle.into()), [address].into());
        let view = view(&world);
        let block = view
            .blocks
            .values()
            .find(|b| b.value.cidr.contains(address));
        assert_eq!(
            serde_json::to_value(&block.unwrap().value.attributes[0]).unwrap(),
            json!({"handle_id": handle, "secondary": {"node": "node-a", "type": attribute}})
        );
    }
}

#[test]
fn a_good_address_stays_and_is_found_again_after_a_crash() {
    let mut world = world();
    let address = ensure(&mut world, TunnelKind::Ipip);
    // Died before writing the Node.
    assert_eq!(ensure(&mut world, TunnelKind::Ipip), address);
    name_in_node(&mut world, address);
    let before = world.revision;
    assert_eq!(ensure(&mut world, TunnelKind::Ipip), address);
    assert_eq!(world.revision, before);
}

#[test]
fn no_qualifying_pool_releases_and_a_new_one_moves_make_before_break() {
    let mut world = world();
    let first = ensure(&mut world, TunnelKind::Ipip);
    name_in_node(&mut world, first);
    let handle = "ipip-tunnel-addr-node-a".into();
    world.put(pool_with("ipip", "10.0.0.0/28", 30, |p| {
        p.spec.ipip_mode = EncapMode::Always;
        p.spec.disabled = true;
    }));
    world.put(pool_with("next", "10.2.0.0/28", 30, |p| {
        p.spec.ipip_mode = EncapMode::CrossSubnet
    }));
    let second = ensure(&mut world, TunnelKind::Ipip);
    assert!(second.unwrap().to_string().starts_with("10.2.0."));
    // The Node still names the first: it is kept until the Node names the second.
    assert_eq!(held_by(&world, &handle).len(), 2);
    assert_eq!(ensure(&mut world, TunnelKind::Ipip), second);
    assert_eq!(held_by(&world, &handle).len(), 2);
    name_in_node(&mut world, second);
    assert_eq!(ensure(&mut world, TunnelKind::Ipip), second);
    assert_eq!(held_by(&world, &handle), [second.unwrap()].into());
    for (change, value) in [("uses", 0), ("selector", 1)] {
        let mut copy = world.clone();
        copy.put(pool_with("next", "10.2.0.0/28", 30, |p| {
            p.spec.ipip_mode = EncapMode::CrossSubnet;
            match value {
                0 => p.spec.allowed_uses = vec![AllowedUse::Workload],
                _ => p.spec.node_selector = "has(other)".into(),
            }
        }));
        assert_eq!(ensure(&mut copy, TunnelKind::Ipip), None, "{change}");
        assert!(held_by(&copy, &handle).is_empty());
    }
}

#[test]
fn somebody_elses_address_in_the_node_is_replaced_and_left_alone() {
    let mut world = world();
    let mut request =
        caracal_ipam::AssignRequest::workload("node-a".into(), "k8s-pod-network.1".into());
    request.pools_v4 = vec!["ipip".into()];
    let End::Took(pod) = run(&mut world, Any::Assign(Assign::new(request, NOW))) else {
        panic!("no address for the pod")
    };
    name_in_node(&mut world, Some(pod[0]));
    let address = ensure(&mut world, TunnelKind::Ipip);
    assert_ne!(address, Some(pod[0]));
    assert_eq!(
        held_by(&world, &"k8s-pod-network.1".into()),
        [pod[0]].into()
    );
}

#[test]
fn a_nameless_allocation_of_old_is_taken_over() {
    let mut world = world();
    let name: NodeName = "node-a".into();
    let owner = BlockOwner::Host(name);
    let cidr = "10.0.0.4/30".parse().unwrap();
    let mut block = caracal_ipam::create_block(cidr, &owner, NOW);
    let nameless = Default::default();
    caracal_ipam::take_address(&mut block, "10.0.0.5".parse().unwrap(), &nameless).unwrap();
    world.put((Key::Block(cidr).to_path(), block.to_json()));
    let confirmed = br#"{"state":"confirmed"}"#.to_vec();
    world.put((Key::Affinity(owner, cidr).to_path(), confirmed));
    name_in_node(&mut world, Some("10.0.0.5".parse().unwrap()));
    assert_eq!(
        ensure(&mut world, TunnelKind::Ipip),
        Some("10.0.0.5".parse().unwrap())
    );
    let handle: Value =
        serde_json::from_slice(&world.keys["/calico/ipam/v2/handle/ipip-tunnel-addr-node-a"].1)
            .unwrap();
    assert_eq!(handle["block"], json!({"10.0.0.4/30": 1}));
}

/// Each way in which a pool stops to lend new addresses, for each kind of tunnel.
#[test]
fn an_address_stays_while_workloads_need_the_tunnel() {
    type Change = fn(&mut caracal_model::IpPool);
    let changes: [(&str, Change); 6] = [
        ("disabled", |p| p.spec.disabled = true),
        ("nodeSelector", |p| p.spec.node_selector = "has(x)".into()),
        ("allowedUses", |p| {
            p.spec.allowed_uses = vec![AllowedUse::Workload]
        }),
        ("deleted", |p| {
            p.metadata.deletion_timestamp =
                Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap())
        }),
        ("Allocatable", |p| {
            let no = json!({"conditions": [{"type": "Allocatable", "status": "False"}]});
            p.status = Some(serde_json::from_value(no).unwrap());
        }),
        ("assignmentMode", |p| {
            p.spec.assignment_mode = "Manual".into()
        }),
    ];
    let kinds: [(TunnelKind, &str, &str, u8, Change); 3] = [
        (TunnelKind::Ipip, "ipip", "10.0.0.0/28", 30, |p| {
            p.spec.ipip_mode = EncapMode::Always
        }),
        (TunnelKind::Vxlan, "vxlan", "10.1.0.0/28", 30, |p| {
            p.spec.vxlan_mode = EncapMode::CrossSubnet
        }),
        (TunnelKind::VxlanV6, "vxlan6", "fd00::/120", 122, |p| {
            p.spec.vxlan_mode = EncapMode::Always
        }),
    ];
    for (kind, pool, cidr, len, mode) in kinds {
        for (what, change) in changes {
            let mut world = world();
            let held = ensure(&mut world, kind);
            name_of_kind(&mut world, kind, held);
            world.put(pool_with(pool, cidr, len, |p| {
                mode(p);
                change(p);
            }));
            let before = world.revision;
            let kept = ensure_in_use(&mut world, kind, &[pool]);
            assert_eq!((kept, world.revision), (held, before), "{kind:?} {what}");
            // The Node that was written without it, by an older version, names it again.
            name_of_kind(&mut world, kind, None);
            let kept = ensure_in_use(&mut world, kind, &[pool]);
            assert_eq!(kept, held, "{kind:?} {what}: found by its handle");
            if what == "assignmentMode" {
                continue;
            }
            // Use of another pool is none of this one's, and the last workload ends it.
            name_of_kind(&mut world, kind, held);
            let left = ensure_in_use(&mut world, kind, &["plain"]);
            assert_eq!(left, None, "{kind:?} {what}");
            assert!(held_by(&world, &kind.handle(&"node-a".into())).is_empty());
            // A pool that lends nothing lends no new address, whatever is in use.
            name_of_kind(&mut world, kind, None);
            let new = ensure_in_use(&mut world, kind, &[pool]);
            assert_eq!(new, None, "{kind:?} {what}");
        }
    }
}

fn name_of_kind(world: &mut World, kind: TunnelKind, address: Option<IpAddr>) {
    world.put(node_with("node-a", |n| match (kind, address) {
        (TunnelKind::Ipip, Some(IpAddr::V4(a))) => {
            n.spec.bgp = Some(NodeBgp {
                ipv4_ipip_tunnel_addr: Some(a),
                ..NodeBgp::default()
            });
        }
        (TunnelKind::Vxlan, Some(IpAddr::V4(a))) => n.spec.ipv4_vxlan_tunnel_addr = Some(a),
        (TunnelKind::VxlanV6, Some(IpAddr::V6(a))) => n.spec.ipv6_vxlan_tunnel_addr = Some(a),
        _ => {}
    }));
}
