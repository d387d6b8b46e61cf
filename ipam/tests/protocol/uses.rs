//! Holders other than plain pods: load balancers, Windows nodes, virtual machines, WireGuard
//! devices; and namespaces that select pools.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::world::actor::{Any, End, faults, held_by, run, view};
use crate::world::{NOW, World, after, config, node, node_with, pool, pool_with};
use caracal_ipam::{
    Allocation, AssignIpRequest, AssignRequest, Input, Machine, Purpose, Step, TunnelKind,
    namespace_key,
};
use caracal_ipam::{Assign, AssignIp, EnsureTunnel, ReleaseAffinity, ReleaseHandle, ReleaseNode};
use caracal_ipam::{create_block, take_address};
use caracal_model::{
    AffinityState, AllocationAttribute, AllowedUse, BlockAffinity, BlockOwner, IpReservation, Key,
    Kind, Prefix, TxnOutcome, WINDOWS_RESERVED_HANDLE,
};
use serde_json::json;

fn take(world: &mut World, request: AssignRequest) -> Result<Vec<IpAddr>, String> {
    let end = run(world, Any::Assign(Assign::new(request, NOW)));
    assert_eq!(faults(world, after(100_000)), []);
    match end {
        End::Took(list) => Ok(list),
        End::Failed(text) => Err(text),
        End::Finished => unreachable!("an assignment takes or fails"),
    }
}

fn workload(handle: &str) -> AssignRequest {
    AssignRequest::workload("node-a".into(), handle.into())
}

/// An address for a service, as Calico's controller asks for it: no node, no timestamp.
fn service(handle: &str) -> AssignRequest {
    let mut request = AssignRequest::workload("".into(), handle.into());
    request.usage = AllowedUse::LoadBalancer;
    let attributes = [("service", "web"), ("namespace", "default")];
    request.attributes = attributes.map(|(k, v)| (k.into(), v.into())).into();
    request
}

fn named(address: &str, handle: &str, usage: AllowedUse) -> AssignIpRequest {
    let node = match usage {
        AllowedUse::LoadBalancer => "",
        _ => "node-a",
    };
    AssignIpRequest {
        address: address.parse().unwrap(),
        node: node.into(),
        handle: handle.into(),
        attributes: BTreeMap::new(),
        usage,
    }
}

fn take_named(world: &mut World, request: AssignIpRequest) -> End {
    let end = run(world, Any::AssignIp(AssignIp::new(request, NOW)));
    assert_eq!(faults(world, after(100_000)), []);
    end
}

fn took(address: &str) -> End {
    End::Took(vec![address.parse().unwrap()])
}

#[test]
fn load_balancers_have_pools_and_blocks_of_their_own() {
    let mut world = World::default()
        .with(pool("a-pods", "10.0.0.0/29", 30))
        .with(pool_with("b-services", "10.1.0.0/29", 30, |p| {
            p.spec.allowed_uses = vec![AllowedUse::LoadBalancer];
        }))
        .with(node("node-a"));
    let got = take(&mut world, service("lb-1")).unwrap();
    assert!(got[0].to_string().starts_with("10.1.0."), "{got:?}");
    let now = view(&world);
    let owner = BlockOwner::Virtual("load-balancer".to_owned());
    let (cidr, known) = now.blocks.iter().next().unwrap();
    assert_eq!(
        known.value.affinity.as_deref(),
        Some("virtual:load-balancer")
    );
    assert_eq!(
        now.affinities[&(owner, *cidr)].value.state,
        AffinityState::Confirmed
    );
    assert!(world.keys.contains_key(&format!(
        "/calico/ipam/v2/virtual/load-balancer/ipv4/block/{}",
        cidr.to_key()
    )));
    assert_eq!(
        serde_json::to_value(&known.value.attributes).unwrap(),
        json!([{"handle_id": "lb-1", "secondary": {"service": "web", "namespace": "default"}}])
    );
    let allocation = Allocation::in_block(&known.value).next().unwrap();
    assert!(matches!(allocation.purpose(), Purpose::Elsewhere(_)));
    // A pod never gets one, nor borrows from the load balancer's blocks, nor takes them when empty.
    take(&mut world, {
        let mut r = workload("pods");
        r.num_v4 = 8;
        r
    })
    .unwrap();
    let says = take(&mut world, workload("one-more")).unwrap_err();
    assert!(says.contains("no free block"), "{says}");
    // And a service never gets one of a pod's pool.
    let mut greedy = service("lb-2");
    greedy.num_v4 = 8;
    let says = take(&mut world, greedy).unwrap_err();
    assert!(
        says.contains("8 IPv4 addresses wanted for the load balancer, 7 to be had"),
        "{says}"
    );
    // Chosen addresses: the same rule.
    assert_eq!(
        take_named(
            &mut world,
            named("10.1.0.7", "lb-3", AllowedUse::LoadBalancer)
        ),
        took("10.1.0.7")
    );
    for (address, usage, says) in [
        (
            "10.0.0.1",
            AllowedUse::LoadBalancer,
            "10.0.0.1 is in pool a-pods, which does not allow the use LoadBalancer",
        ),
        (
            "10.1.0.6",
            AllowedUse::Workload,
            "10.1.0.6 is in pool b-services, which does not allow the use Workload",
        ),
    ] {
        assert_eq!(
            take_named(&mut world, named(address, "x", usage)),
            End::Failed(says.to_owned())
        );
    }
    // The whole of it goes by handle.
    for handle in ["lb-1", "lb-3"] {
        let release = ReleaseHandle::new(handle.into(), Vec::new(), NOW);
        assert_eq!(run(&mut world, Any::ReleaseHandle(release)), End::Finished);
        assert!(held_by(&world, &handle.into()).is_empty());
    }
    assert_eq!(faults(&world, NOW), []);
}

/// A block as a Windows node of Calico claims it: four addresses are kept from everybody.
fn windows_block(world: &mut World, cidr: &str) {
    let cidr: Prefix = cidr.parse().unwrap();
    let owner = BlockOwner::Host("win".into());
    let mut value = create_block(cidr, &owner, NOW);
    let reserved = AllocationAttribute {
        handle_id: Some(WINDOWS_RESERVED_HANDLE.to_owned()),
        secondary: [("note".to_owned(), "windows host rsvd".to_owned())].into(),
        ..AllocationAttribute::default()
    };
    for ordinal in [0, 1, 2, cidr.size() - 1] {
        let address = cidr.nth(ordinal).unwrap();
        take_address(&mut value, address, &reserved).unwrap();
    }
    world.put((Key::Block(cidr).to_path(), value.to_json()));
    let affinity = BlockAffinity::new(AffinityState::Confirmed).to_json();
    world.put((Key::Affinity(owner, cidr).to_path(), affinity));
}

#[test]
fn what_windows_nodes_keep_back_is_no_fault_and_goes_with_the_block() {
    let stage = || {
        let mut world = World::default()
            .with(pool("p", "10.0.0.0/29", 29))
            .with(node("node-a"))
            .with(node("win"))
            .with(config(|c| c.strict_affinity = true));
        windows_block(&mut world, "10.0.0.0/29");
        assert_eq!(faults(&world, after(1)), []);
        world
    };
    // Nobody gets what is kept back, and the handle has no key.
    let mut world = stage();
    let mut request = AssignRequest::workload("win".into(), "pods".into());
    request.num_v4 = 4;
    let mut got = take(&mut world, request).unwrap();
    got.sort_unstable();
    let expected = ["10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
    assert_eq!(got, expected.map(|a| a.parse::<IpAddr>().unwrap()));
    // A block in use is nobody else's.
    let late = Assign::new(workload("x"), after(3600));
    assert!(matches!(run(&mut world, Any::Assign(late)), End::Failed(_)));
    let leave = ReleaseNode::new("win".into(), NOW);
    assert_eq!(run(&mut world, Any::ReleaseNode(leave)), End::Finished);
    assert!(view(&world).blocks.is_empty(), "{world:?}");
    // One that holds nothing else counts as empty: it can be given back, and be taken after a
    // minute.
    let mut world = stage();
    let back = ReleaseAffinity::new(
        BlockOwner::Host("win".into()),
        "10.0.0.0/29".parse().unwrap(),
        true,
        NOW,
    );
    assert_eq!(run(&mut world, Any::ReleaseAffinity(back)), End::Finished);
    assert!(view(&world).blocks.is_empty());
    let mut world = stage();
    let mut request = workload("pods");
    request.num_v4 = 8;
    let reclaim = Assign::new(request, after(61));
    let End::Took(got) = run(&mut world, Any::Assign(reclaim)) else {
        panic!("{world:?}")
    };
    assert_eq!(got.len(), 8);
    assert_eq!(faults(&world, after(100)), []);
}

#[test]
fn addresses_of_virtual_machines_are_not_judged() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/29", 29))
        .with(node("node-a"));
    let mut request = workload("k8s-pod-network.vmi.default.vm");
    let attributes = [
        ("namespace", "default"),
        ("pod", "launcher"),
        ("vmi-name", "vm"),
    ];
    request.attributes = attributes.map(|(k, v)| (k.into(), v.into())).into();
    take(&mut world, request).unwrap();
    let now = view(&world);
    let allocation = Allocation::in_block(&now.blocks.values().next().unwrap().value).next();
    assert!(
        matches!(allocation.unwrap().purpose(), Purpose::Elsewhere(why) if why.contains("KubeVirt"))
    );
}

#[test]
fn wireguard_addresses_need_a_public_key_and_any_pool_of_the_family() {
    let with_key = |address: Option<IpAddr>| {
        node_with("node-a", |n| {
            n.status = Some(json!({"wireguardPublicKey": "k4", "wireguardPublicKeyV6": "k6"}));
            if let Some(address) = address {
                let family = caracal_model::Family::of(address);
                n.spec.set_wireguard_address(family, Some(address));
            }
        })
    };
    let mut world = World::default()
        .with(pool("v4", "10.0.0.0/28", 30))
        .with(pool("v6", "fd00::/120", 124))
        .with(node("node-a"));
    let ensure = |world: &mut World, kind| {
        let end = run(
            world,
            Any::Tunnel(EnsureTunnel::new(kind, "node-a".into(), NOW)),
        );
        assert_eq!(faults(world, after(1)), []);
        match end {
            End::Took(list) => list.first().copied(),
            other => panic!("{other:?}"),
        }
    };
    for (kind, handle, attribute) in [
        (
            TunnelKind::Wireguard,
            "wireguard-tunnel-addr-node-a",
            "wireguardTunnelAddress",
        ),
        (
            TunnelKind::WireguardV6,
            "wireguard-v6-tunnel-addr-node-a",
            "wireguardV6TunnelAddress",
        ),
    ] {
        world.put(node("node-a"));
        assert_eq!(ensure(&mut world, kind), None, "no key, no address");
        world.put(with_key(None));
        let address = ensure(&mut world, kind).unwrap();
        assert_eq!(caracal_model::Family::of(address), kind.family());
        assert_eq!(held_by(&world, &handle.into()), [address].into());
        let now = view(&world);
        let held = now.blocks.values().flat_map(|b| b.value.allocated());
        let usage = held
            .filter(|(_, a, _)| *a == address)
            .map(|(_, _, t)| t.usage());
        assert_eq!(usage.collect::<Vec<_>>(), [Some(attribute)]);
        // It stays while it is good, and goes with the key.
        world.put(with_key(Some(address)));
        assert_eq!(ensure(&mut world, kind), Some(address));
        world.put(node("node-a"));
        assert_eq!(ensure(&mut world, kind), None);
        assert!(held_by(&world, &handle.into()).is_empty());
    }
}

#[test]
fn namespaces_select_pools_by_the_labels_in_their_profile() {
    let stage = World::default()
        .with(pool_with("p", "10.0.0.0/28", 30, |p| {
            p.spec.namespace_selector = "team == 'red'".into();
        }))
        .with(node("node-a"));
    let in_namespace = |handle: &str| {
        let mut request = workload(handle);
        let attributes = [("namespace", "shop"), ("pod", "web")];
        request.attributes = attributes.map(|(k, v)| (k.into(), v.into())).into();
        request
    };
    let profile = namespace_key("shop").to_path();
    let mut world = stage.clone();
    let says = take(&mut world, in_namespace("h")).unwrap_err();
    assert!(says.contains("does not select this namespace"), "{says}");
    let value = br#"{"spec":{"labelsToApply":{"pcns.team":"red"}}}"#;
    world.put((profile.clone(), value.to_vec()));
    assert_eq!(take(&mut world, in_namespace("h")).unwrap().len(), 1);
    // An unreadable namespace selects nothing and is named; where no pool asks, it does not matter.
    let mut world = stage.clone().with((profile.clone(), b"{".to_vec()));
    let says = take(&mut world, in_namespace("h")).unwrap_err();
    assert!(says.contains(&profile), "{says}");
    world.put(pool("p", "10.0.0.0/28", 30));
    assert_eq!(take(&mut world, in_namespace("h")).unwrap().len(), 1);
    // The name is a label without any profile.
    let mut world = stage.with(pool_with("p", "10.0.0.0/28", 30, |p| {
        p.spec.namespace_selector = "projectcalico.org/name == 'shop'".into();
    }));
    assert_eq!(take(&mut world, in_namespace("h")).unwrap().len(), 1);
    take(&mut world, workload("i")).unwrap_err();
}

#[test]
fn ipam_9_ipv6_reservations() {
    let reserve = |cidrs: &[&str]| {
        let mut reservation = IpReservation::new("r", Default::default());
        reservation.spec.reserved_cidrs = cidrs.iter().map(|c| c.parse().unwrap()).collect();
        let key = Key::resource(Kind::IpReservation, "r").to_path();
        (key, reservation.to_json())
    };
    let mut world = World::default()
        .with(pool("v4", "10.0.0.0/30", 30))
        .with(pool("v6", "fd00::/125", 126))
        .with(reserve(&[
            "fd00::/126",
            "fd00::6",
            "10.0.0.0/31",
            "fd00:1::/32",
        ]))
        .with(node("node-a"));
    let mut dual = workload("dual");
    (dual.num_v4, dual.num_v6) = (2, 3);
    let mut got = take(&mut world, dual).unwrap();
    got.sort_unstable();
    let expected = ["10.0.0.2", "10.0.0.3", "fd00::4", "fd00::5", "fd00::7"];
    assert_eq!(got, expected.map(|a| a.parse::<IpAddr>().unwrap()));
    let mut more = workload("more");
    (more.num_v4, more.num_v6) = (0, 1);
    take(&mut world, more).unwrap_err();
    // Reserved is not forbidden.
    assert_eq!(
        take_named(&mut world, named("fd00::6", "x", AllowedUse::Workload)),
        took("fd00::6")
    );
}

#[test]
fn a_chosen_address_claims_no_block_beyond_the_limit() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/28", 30))
        .with(node("node-a"))
        .with(config(|c| {
            (c.strict_affinity, c.max_blocks_per_host) = (true, 2)
        }));
    for address in ["10.0.0.1", "10.0.0.5", "10.0.0.6"] {
        let request = named(address, address, AllowedUse::Workload);
        assert_eq!(take_named(&mut world, request), took(address));
    }
    let before = world.revision;
    assert_eq!(
        take_named(&mut world, named("10.0.0.9", "x", AllowedUse::Workload)),
        End::Failed(
            "10.0.0.9 is in block 10.0.0.8/30, which nobody has, and node-a holds as many blocks as \
             maxBlocksPerHost allows (2); choose an address of one of its blocks, or raise the limit"
                .into()
        )
    );
    assert_eq!(world.revision, before, "nothing was written");
    // Nobody chose the default of 20, so it stands in nobody's way.
    world.put(config(|_| {}));
    let request = named("10.0.0.9", "x", AllowedUse::Workload);
    assert_eq!(take_named(&mut world, request), took("10.0.0.9"));
}

#[test]
fn a_chosen_address_of_a_block_of_default_size_costs_one_read() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/16", 26))
        .with(pool("q", "fd00::/64", 122))
        .with(node("node-a"));
    for (round, address) in ["10.0.3.4", "10.0.3.5", "fd00::7:1", "fd00::7:2"]
        .iter()
        .enumerate()
    {
        let request = named(address, address, AllowedUse::Workload);
        let mut machine = AssignIp::new(request, NOW);
        let (mut seen, mut reads, mut commits) = (Input::Start, 0, 0);
        loop {
            seen = match machine.step(seen) {
                Step::Read(ranges) => {
                    reads += 1;
                    Input::Read(world.read(&ranges))
                }
                Step::Commit(txn) => {
                    commits += 1;
                    match world.commit(&txn) {
                        TxnOutcome::Committed(revision) => Input::Committed(revision),
                        TxnOutcome::Conflict => panic!("alone"),
                    }
                }
                Step::Done(assignment) => {
                    break assert_eq!(assignment.address.to_string(), **address);
                }
                Step::Failed(error) => panic!("{error}"),
            };
        }
        // A new block is marked as pending first.
        assert_eq!((reads, commits), (1, 2 - round % 2), "{address}");
    }
}

#[test]
fn a_block_that_was_emptied_goes_when_its_pool_turned_away() {
    for by_handle in [true, false] {
        let selecting = |rack: &str| {
            pool_with("p", "10.0.0.0/28", 30, |p| {
                p.spec.node_selector = format!("rack == '{rack}'");
            })
        };
        let mut world = World::default()
            .with(selecting("r1"))
            .with(node_with("node-a", |n| {
                n.metadata.labels.insert("rack".into(), "r1".into());
            }));
        let mut request = workload("h");
        request.num_v4 = 5;
        take(&mut world, request).unwrap();
        let last = take(&mut world, workload("last")).unwrap()[0];
        world.put(selecting("r2"));
        let release = |world: &mut World, handle: &str| {
            let machine = if by_handle {
                Any::ReleaseHandle(ReleaseHandle::new(handle.into(), Vec::new(), NOW))
            } else {
                let held = held_by(world, &handle.into());
                let targets = held
                    .into_iter()
                    .map(caracal_ipam::ReleaseTarget::any)
                    .collect();
                Any::ReleaseIps(caracal_ipam::ReleaseIps::new(targets, NOW))
            };
            assert_eq!(run(world, machine), End::Finished);
            assert_eq!(faults(world, NOW), []);
        };
        release(&mut world, "h");
        let left: Vec<_> = view(&world).blocks.keys().copied().collect();
        assert_eq!(left, [Prefix::truncated(last, 30)], "one is in use still");
        // A pool that selects the node again keeps its block.
        world.put(selecting("r1"));
        release(&mut world, "last");
        assert_eq!(view(&world).blocks.len(), 1);
        take(&mut world, workload("again")).unwrap();
        world.put(selecting("r2"));
        release(&mut world, "again");
        let now = view(&world);
        assert!(
            now.blocks.is_empty() && now.affinities.is_empty(),
            "{world:?}"
        );
    }
}
