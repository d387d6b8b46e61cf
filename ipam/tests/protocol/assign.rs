//! Assignments, one machine at a time: from which pool and block, what is written, and what a
//! refusal says.

use std::collections::BTreeMap;

use crate::world::actor::{Any, End, faults, run, view};
use crate::world::{NOW, World, after, config, node, node_with, pool, pool_with};
use caracal_ipam::{Assign, AssignIp, AssignIpRequest, AssignRequest, ReleaseHandle};
use caracal_model::{
    AffinityState, AllowedUse, Block, BlockAffinity, BlockOwner, DELEGATED_ATTRIBUTE,
    ENDPOINT_ATTRIBUTE, INTERFACE_ATTRIBUTE, IpReservation, IpamHandle, Key, Kind, Prefix,
    Timestamp,
};
use serde_json::{Value, json};

fn request(host: &str, handle: &str, count: usize) -> AssignRequest {
    let mut request = AssignRequest::workload(host.into(), handle.into());
    request.num_v4 = count;
    request
}

fn assign_at(
    world: &mut World,
    request: AssignRequest,
    now: Timestamp,
) -> Result<Vec<String>, String> {
    match run(world, Any::Assign(Assign::new(request, now))) {
        End::Took(list) => Ok(list.iter().map(ToString::to_string).collect()),
        End::Failed(text) => Err(text),
        End::Finished => unreachable!("an assignment takes or fails"),
    }
}

fn assign(world: &mut World, request: AssignRequest) -> Result<Vec<String>, String> {
    let result = assign_at(world, request, NOW);
    assert_eq!(faults(world, after(100_000)), []);
    result
}

fn block(world: &World, cidr: &str) -> Option<Block> {
    let key = Key::Block(cidr.parse().unwrap()).to_path();
    let (_, value) = world.keys.get(&key)?;
    Some(Block::from_json(value).unwrap())
}

fn put_block(world: &mut World, block: &Block) {
    world.put((Key::Block(block.cidr).to_path(), block.to_json()));
}

fn put_affinity(world: &mut World, host: &str, cidr: &str, state: AffinityState) {
    let key = Key::Affinity(BlockOwner::Host(host.into()), cidr.parse().unwrap());
    world.put((key.to_path(), BlockAffinity::new(state).to_json()));
}

/// Gives a host a block with everything that belongs to it.
fn claimed(world: &mut World, host: &str, cidr: &str, now: Timestamp) {
    let owner = BlockOwner::Host(host.into());
    let block = caracal_ipam::create_block(cidr.parse().unwrap(), &owner, now);
    put_block(world, &block);
    put_affinity(world, host, cidr, AffinityState::Confirmed);
}

fn small() -> World {
    World::default()
        .with(pool("p", "10.0.0.0/28", 30))
        .with(node("node-a"))
        .with(node("node-b"))
}

#[test]
fn the_values_are_what_a_calico_node_reads() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/30", 30))
        .with(node("node-a"));
    let mut wanted = request("node-a", "k8s-pod-network.8f2c41", 1);
    wanted.attributes = [
        ("pod".to_owned(), "web-0".to_owned()),
        ("namespace".to_owned(), "default".to_owned()),
    ]
    .into();
    assert_eq!(assign(&mut world, wanted).unwrap(), ["10.0.0.0"]);
    let json = |path: &str| -> Value { serde_json::from_slice(&world.keys[path].1).unwrap() };
    assert_eq!(
        json("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30"),
        json!({"cidr": "10.0.0.0/30", "affinity": "host:node-a",
            "affinity_claim_time": "2026-01-05T10:12:00Z",
            "allocations": [0, null, null, null], "unallocated": [1, 2, 3],
            "attributes": [{"handle_id": "k8s-pod-network.8f2c41", "secondary": {
                "namespace": "default", "node": "node-a", "pod": "web-0",
                "timestamp": "2026-01-05 10:12:00.5 +0000 UTC"}}],
            "sequenceNumber": 1_767_607_920_500_000_001u64,
            "sequenceNumberForAllocation": {"0": 1_767_607_920_500_000_000u64},
            "deleted": false})
    );
    assert_eq!(
        json("/calico/ipam/v2/host/node-a/ipv4/block/10.0.0.0-30"),
        json!({"state": "confirmed", "deleted": false})
    );
    assert_eq!(
        json("/calico/ipam/v2/handle/k8s-pod-network.8f2c41"),
        json!({"block": {"10.0.0.0/30": 1}, "deleted": false})
    );
}

#[test]
fn own_blocks_first_in_key_order_then_a_new_one() {
    let mut world = small();
    claimed(&mut world, "node-a", "10.0.0.12/30", NOW);
    claimed(&mut world, "node-a", "10.0.0.4/30", NOW);
    let got = assign(&mut world, request("node-a", "h", 9)).unwrap();
    // As text, 10.0.0.12-30 stands before 10.0.0.4-30.
    assert_eq!(
        got[..5],
        [
            "10.0.0.12",
            "10.0.0.13",
            "10.0.0.14",
            "10.0.0.15",
            "10.0.0.4"
        ]
    );
    assert_eq!(view(&world).affinities.len(), 3);
    let third = Prefix::truncated(got[8].parse().unwrap(), 30);
    let rest = if third.to_string() == "10.0.0.0/30" {
        "10.0.0.8/30"
    } else {
        "10.0.0.0/30"
    };
    claimed(&mut world, "node-b", rest, NOW);
    // A wrong guess does no harm: the block of node-b stays untouched.
    let mut guess = request("node-a", "other", 1);
    guess.block_hints = vec![rest.parse().unwrap(), third];
    assert!(third.contains(assign(&mut world, guess).unwrap()[0].parse().unwrap()));
    assert_eq!(block(&world, rest).unwrap().in_use(), 0);
}

#[test]
fn pools_by_selector_use_mode_and_state() {
    let mut world = World::default()
        .with(node_with("node-a", |n| {
            n.metadata.labels.insert("rack".into(), "r1".into());
        }))
        .with(pool_with("a-disabled", "10.1.0.0/24", 26, |p| {
            p.spec.disabled = true
        }))
        .with(pool_with("b-leaving", "10.2.0.0/24", 26, |p| {
            p.metadata.deletion_timestamp = Some("2026-01-05T10:00:00Z".into());
        }))
        .with(pool_with("c-overlap", "10.3.0.0/24", 26, |p| {
            p.status = Some(json!({"conditions": [{"type": "Allocatable", "status": "False"}]}));
        }))
        .with(pool_with("d-rack-2", "10.4.0.0/24", 26, |p| {
            p.spec.node_selector = "rack == 'r2'".into();
        }))
        .with(pool_with("e-team", "10.5.0.0/24", 26, |p| {
            p.spec.namespace_selector = "team == 'red'".into();
        }))
        .with(pool_with("f-manual", "10.6.0.0/24", 26, |p| {
            p.spec.assignment_mode = "Manual".into();
        }))
        .with(pool_with("g-tunnels", "10.7.0.0/24", 26, |p| {
            p.spec.allowed_uses = vec![AllowedUse::Tunnel];
        }));
    assert_eq!(
        assign(&mut world, request("node-a", "h", 1)).unwrap_err(),
        "no IPv4 pool serves node-a: pool a-disabled is disabled, pool b-leaving is being deleted, pool \
         c-overlap has the condition Allocatable=False, pool d-rack-2 does not select this node, pool e-team \
         does not select this namespace, pool f-manual is assigned on request only (assignmentMode), pool \
         g-tunnels does not allow the use Workload"
    );
    let mut red = request("node-a", "red", 1);
    red.namespace_labels = Some([("team".to_owned(), "red".to_owned())].into());
    assert!(assign(&mut world, red).unwrap()[0].starts_with("10.5.0."));
    // Asked for by name or CIDR, selectors and mode do not matter; use and state do.
    for (pools, start) in [("f-manual", "10.6.0."), ("10.4.0.0/24", "10.4.0.")] {
        let mut explicit = request("node-a", pools.split('/').next().unwrap(), 1);
        explicit.pools_v4 = vec![pools.to_owned()];
        assert!(assign(&mut world, explicit).unwrap()[0].starts_with(start));
    }
    for (pools, says) in [
        (
            "a-disabled",
            "pool a-disabled was asked for, but is disabled",
        ),
        (
            "g-tunnels",
            "pool g-tunnels was asked for, but does not allow the use Workload",
        ),
        (
            "nonsense",
            "no IP pool has the name or CIDR \"nonsense\"; see `caracal get ippools`",
        ),
    ] {
        let mut explicit = request("node-a", "x", 1);
        explicit.pools_v4 = vec![pools.to_owned()];
        assert_eq!(assign(&mut world, explicit).unwrap_err(), says);
    }
}

#[test]
fn the_limit_of_blocks_is_the_smaller_one() {
    let mut world = small().with(config(|c| {
        c.strict_affinity = true;
        c.max_blocks_per_host = 2;
    }));
    assert_eq!(
        assign(&mut world, request("node-a", "h", 8)).unwrap().len(),
        8
    );
    assert_eq!(
        assign(&mut world, request("node-a", "i", 1)).unwrap_err(),
        "no IPv4 address for node-a: its 2 blocks are full, the limit of 2 blocks per node keeps it from \
         claiming more in pool p (10.0.0.0/28), and borrowing is off (strict affinity); raise maxBlocksPerHost"
    );
    let mut one = request("node-b", "j", 5);
    one.max_blocks = Some(1);
    assert_eq!(
        assign(&mut world, one).unwrap_err(),
        "5 IPv4 addresses wanted for node-b, 4 to be had: it holds no block, the limit of 1 block per node \
         keeps it from claiming more in pool p (10.0.0.0/28), and borrowing is off (strict affinity); ask \
         with a higher limit, or add a pool"
    );
    // IPAM-11: nothing of the failed request is held.
    assert_eq!(view(&world).handles.len(), 1);
}

#[test]
fn borrowing_and_strict_affinity() {
    let mut world = small();
    assert_eq!(
        assign(&mut world, request("node-b", "b", 13))
            .unwrap()
            .len(),
        13
    );
    let got = assign(&mut world, request("node-a", "a", 2)).unwrap();
    let lent = view(&world);
    let lent = lent
        .blocks
        .values()
        .find(|b| b.value.cidr.contains(got[0].parse().unwrap()));
    let lent = lent.unwrap();
    assert_eq!(lent.value.affinity.as_deref(), Some("host:node-b"));
    // IPAM-6: only the attribute says where the address lives.
    let attribute = lent
        .value
        .attributes
        .iter()
        .find(|a| a.node() == Some("node-a"));
    assert_eq!(attribute.unwrap().handle_id.as_deref(), Some("a"));
    world.put(config(|c| c.strict_affinity = true));
    assert_eq!(
        assign(&mut world, request("node-a", "c", 1)).unwrap_err(),
        "no IPv4 address for node-a: it holds no block, pool p (10.0.0.0/28) has no free block (a node \
         may hold at most 20), and borrowing is off (strict affinity); add a pool, release leaked addresses (`caracal ipam check`), or turn \
         strict affinity off"
    );
    world.put(config(|c| c.auto_allocate_blocks = false));
    assert_eq!(
        assign(&mut world, request("node-a", "c", 1)).unwrap().len(),
        1
    );
    assert_eq!(
        assign(&mut world, request("node-a", "d", 1)).unwrap_err(),
        "no IPv4 address for node-a: it holds no block, pool p (10.0.0.0/28) must not be cut into new blocks \
         (auto_allocate_blocks is false), and no other node's block has one to lend; turn \
         auto_allocate_blocks on, or give the node a block"
    );
}

#[test]
fn ipam_9_reserved_addresses_are_skipped_but_may_be_asked_for() {
    let mut reservation = IpReservation::new("r", Default::default());
    reservation.spec.reserved_cidrs = ["10.0.0.0/29", "10.0.0.8/31", "10.0.0.15/32"]
        .map(|c| c.parse().unwrap())
        .to_vec();
    let key = Key::resource(Kind::IpReservation, "r").to_path();
    let mut world = small().with((key.clone(), reservation.to_json()));
    let mut got = assign(&mut world, request("node-a", "h", 5)).unwrap();
    got.sort_unstable();
    assert_eq!(
        got,
        [
            "10.0.0.10",
            "10.0.0.11",
            "10.0.0.12",
            "10.0.0.13",
            "10.0.0.14"
        ]
    );
    assign(&mut world, request("node-a", "i", 1)).unwrap_err();
    let explicit = AssignIpRequest {
        address: "10.0.0.15".parse().unwrap(),
        node: "node-a".into(),
        handle: "x".into(),
        attributes: BTreeMap::new(),
        usage: AllowedUse::Workload,
    };
    let took = run(&mut world, Any::AssignIp(AssignIp::new(explicit, NOW)));
    assert_eq!(took, End::Took(vec!["10.0.0.15".parse().unwrap()]));
    // One unreadable CIDR does not unprotect the others.
    let value = br#"{"metadata":{"name":"r"},"spec":{"reservedCIDRs":["10.0.0.0/28","banana"]}}"#;
    let mut world = small().with((key, value.to_vec()));
    assign_at(&mut world, request("node-a", "h", 1), NOW).unwrap_err();
}

#[test]
fn ipam_9_cooling_addresses_come_back_when_their_time_is_over() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/31", 31))
        .with(node("node-a"))
        .with(config(|c| c.ip_cooldown_seconds = 30));
    assign(&mut world, request("node-a", "h", 2)).unwrap();
    let release = ReleaseHandle::new("h".into(), Vec::new(), after(10));
    assert_eq!(run(&mut world, Any::ReleaseHandle(release)), End::Finished);
    assert!(view(&world).handles.is_empty());
    let cooling = block(&world, "10.0.0.0/31").unwrap();
    assert_eq!(cooling.in_use(), 2);
    assert_eq!(
        serde_json::to_value(&cooling.attributes).unwrap(),
        json!([{"releasedAt": "2026-01-05T10:12:10Z"}])
    );
    assign_at(&mut world, request("node-a", "i", 1), after(39)).unwrap_err();
    let explicit = AssignIpRequest {
        address: "10.0.0.0".parse().unwrap(),
        node: "node-a".into(),
        handle: "x".into(),
        attributes: BTreeMap::new(),
        usage: AllowedUse::Workload,
    };
    assert_eq!(
        run(
            &mut world,
            Any::AssignIp(AssignIp::new(explicit, after(39)))
        ),
        End::Failed(
            "10.0.0.0 was released a short time ago and is kept back for 30 s (ipCooldownSeconds)"
                .into()
        )
    );
    assert_eq!(
        assign_at(&mut world, request("node-a", "i", 2), after(41))
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn an_empty_block_of_another_host_is_reclaimed_after_a_minute() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/30", 30))
        .with(node("node-a"))
        .with(node("node-b"))
        .with(config(|c| c.strict_affinity = true));
    claimed(&mut world, "node-b", "10.0.0.0/30", NOW);
    assign_at(&mut world, request("node-a", "h", 1), after(58)).unwrap_err();
    assert_eq!(
        assign_at(&mut world, request("node-a", "h", 1), after(60))
            .unwrap()
            .len(),
        1
    );
    let after_all = view(&world);
    let owners: Vec<String> = after_all
        .affinities
        .keys()
        .map(|(o, _)| o.to_string())
        .collect();
    assert_eq!(owners, ["host:node-a"]);
    assert_eq!(faults(&world, after(100)), []);
    // Not while it holds an address.
    let error = assign_at(&mut world, request("node-b", "i", 1), after(600)).unwrap_err();
    assert!(error.contains("has no free block"), "{error}");
}

#[test]
fn ipam_10_what_a_crash_left_is_repaired() {
    // Pending, no block: the claim goes on. Confirmed, but the block is another's: dropped. Pending
    // deletion, block still ours: confirmed again.
    let mut world = small().with(config(|c| c.max_blocks_per_host = 3));
    put_affinity(&mut world, "node-a", "10.0.0.0/30", AffinityState::Pending);
    claimed(&mut world, "node-b", "10.0.0.4/30", NOW);
    put_affinity(
        &mut world,
        "node-a",
        "10.0.0.4/30",
        AffinityState::Confirmed,
    );
    claimed(&mut world, "node-a", "10.0.0.8/30", NOW);
    put_affinity(
        &mut world,
        "node-a",
        "10.0.0.8/30",
        AffinityState::PendingDeletion,
    );
    let got = assign(&mut world, request("node-a", "h", 8)).unwrap();
    assert_eq!(got[0], "10.0.0.8");
    assert_eq!(got[4], "10.0.0.0");
    let after_all = view(&world);
    let states: Vec<_> = after_all
        .affinities
        .iter()
        .map(|((owner, cidr), a)| format!("{owner} {cidr} {:?}", a.value.state))
        .collect();
    assert_eq!(
        states,
        [
            "host:node-a 10.0.0.0/30 Confirmed",
            "host:node-a 10.0.0.8/30 Confirmed",
            "host:node-b 10.0.0.4/30 Confirmed"
        ]
    );
}

#[test]
fn empty_blocks_of_pools_that_turned_away_are_given_back() {
    let mut world = small().with(pool_with("old", "10.9.0.0/24", 26, |p| {
        p.spec.node_selector = "rack == 'elsewhere'".into();
    }));
    claimed(&mut world, "node-a", "10.9.0.0/26", NOW);
    assign(&mut world, request("node-a", "h", 1)).unwrap();
    assert_eq!(block(&world, "10.9.0.0/26"), None);
    assert_eq!(view(&world).affinities.len(), 1);
}

#[test]
fn ipam_12_unreadable_values_are_neither_absent_nor_overwritten() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/30", 30))
        .with(pool("q", "10.1.0.0/30", 30))
        .with((
            "/calico/resources/v3/projectcalico.org/ippools/broken".into(),
            b"{".to_vec(),
        ))
        .with(node("node-a"));
    let path = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30";
    world.put((path.into(), b"{nonsense".to_vec()));
    put_affinity(
        &mut world,
        "node-a",
        "10.0.0.0/30",
        AffinityState::Confirmed,
    );
    let got = assign_at(&mut world, request("node-a", "h", 1), NOW).unwrap();
    assert_eq!(got, ["10.1.0.0"]);
    assert_eq!(world.keys[path].1, b"{nonsense");
    for key in [Key::IpamConfig, Key::Handle("h".into())] {
        let mut world = small().with((key.to_path(), b"[]".to_vec()));
        let error = assign_at(&mut world, request("node-a", "h", 1), NOW).unwrap_err();
        assert!(
            error.starts_with(&format!("{key} does not parse: ")),
            "{error}"
        );
    }
}

#[test]
fn ipam_12_unknown_fields_survive_a_change() {
    let mut world = small();
    let path = Key::Block("10.0.0.0/30".parse().unwrap()).to_path();
    world.put((
        path.clone(),
        br#"{"cidr":"10.0.0.0/30","affinity":"host:node-a","hostAffinity":"x","future":{"a":[1]},
            "allocations":[0,null,null,null],"unallocated":[3,1,2],
            "attributes":[{"handle_id":"o","secondary":{"node":"node-a"},"alternateOwnerAttrs":{"k":"v"}}],
            "sequenceNumber":18446744073709551615,"sequenceNumberForAllocation":null}"#
            .to_vec(),
    ));
    put_affinity(
        &mut world,
        "node-a",
        "10.0.0.0/30",
        AffinityState::Confirmed,
    );
    let handle = Key::Handle("o".into()).to_path();
    world.put((
        handle,
        br#"{"block":{"10.0.0.0/30":1},"future":1}"#.to_vec(),
    ));
    // First in, first out: the head of the queue is 3.
    assert_eq!(
        assign(&mut world, request("node-a", "h", 1)).unwrap(),
        ["10.0.0.3"]
    );
    let value: Value = serde_json::from_slice(&world.keys[&path].1).unwrap();
    assert_eq!(value["future"], json!({"a": [1]}));
    assert_eq!(
        value["attributes"][0]["alternateOwnerAttrs"],
        json!({"k": "v"})
    );
    assert_eq!(value["unallocated"], json!([1, 2]));
    assert_eq!(value["sequenceNumber"], json!(0));
}

#[test]
fn a_node_must_be_known_and_a_request_sensible() {
    let mut world = small();
    let error = assign(&mut world, request("node-x", "h", 1)).unwrap_err();
    assert!(
        error.starts_with("node node-x has no Node resource"),
        "{error}"
    );
    for (bad, says) in [
        (request("node-a", "h", 0), "no address of either family"),
        (request("node-a", "a/b", 1), "\"a/b\" is no handle"),
        (request("", "h", 1), "names no node"),
        (
            request("node-a", "h", 5000),
            "5000 addresses in one request are too many",
        ),
    ] {
        let error = assign(&mut world, bad).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    let mut empty = World::default().with(node("node-a"));
    assert_eq!(
        assign(&mut empty, request("node-a", "h", 1)).unwrap_err(),
        "no IPv4 pool serves node-a: there is no IPv4 pool; create one"
    );
    // Labels are enough: a Node whose spec nobody can read still gets addresses.
    let mut world = World::default().with(pool("p", "10.0.0.0/30", 30)).with((
        Key::node(&"node-a".into()).to_path(),
        br#"{"metadata":{"name":"node-a"},"spec":{"bgp":{"ipv4Address":"nonsense"}}}"#.to_vec(),
    ));
    assert_eq!(
        assign(&mut world, request("node-a", "h", 1)).unwrap().len(),
        1
    );
}

#[test]
fn one_explicit_address() {
    let mut world = small().with(config(|c| c.strict_affinity = true));
    let explicit = |address: &str, host: &str, handle: &str| AssignIpRequest {
        address: address.parse().unwrap(),
        node: host.into(),
        handle: handle.into(),
        attributes: BTreeMap::new(),
        usage: AllowedUse::Workload,
    };
    let mut ask = |address, host, handle| {
        let machine = AssignIp::new(explicit(address, host, handle), NOW);
        let end = run(&mut world, Any::AssignIp(machine));
        assert_eq!(faults(&world, after(1)), []);
        end
    };
    assert_eq!(
        ask("10.0.0.6", "node-a", "h"),
        End::Took(vec!["10.0.0.6".parse().unwrap()])
    );
    for (address, host, says) in [
        (
            "10.0.0.6",
            "node-a",
            "10.0.0.6 is already assigned under handle h on node-a",
        ),
        (
            "10.0.0.5",
            "node-b",
            "10.0.0.5 is in block 10.0.0.4/30 of host:node-a, and strict affinity is on, so node-b cannot use \
             it; choose an address of a free block or of a block of node-b",
        ),
        (
            "192.0.2.1",
            "node-a",
            "192.0.2.1 is in no IP pool; choose one inside a pool, or create a pool that covers it",
        ),
    ] {
        assert_eq!(ask(address, host, "i"), End::Failed(says.into()));
    }
    world.put(config(|_| {}));
    let borrow = AssignIp::new(explicit("10.0.0.5", "node-b", "j"), NOW);
    assert_eq!(
        run(&mut world, Any::AssignIp(borrow)),
        End::Took(vec!["10.0.0.5".parse().unwrap()])
    );
    let handle = &world.keys["/calico/ipam/v2/handle/j"].1;
    assert_eq!(IpamHandle::from_json(handle).unwrap().block.len(), 1);
}

/// A node lost its power: no DEL was ever made, and the pod comes back in another container.
#[test]
fn the_same_workload_takes_its_address_over_and_nobody_else() {
    let of = |host: &str, handle: &str, endpoint: &str| AssignIpRequest {
        address: "10.0.0.6".parse().unwrap(),
        node: host.into(),
        handle: handle.into(),
        attributes: [
            (ENDPOINT_ATTRIBUTE.to_owned(), endpoint.to_owned()),
            (INTERFACE_ATTRIBUTE.to_owned(), "caliweb".to_owned()),
        ]
        .into(),
        usage: AllowedUse::Workload,
    };
    let mut world = small().with(config(|c| c.ip_cooldown_seconds = 600));
    let mut ask = |request: AssignIpRequest, over: bool| {
        let machine = AssignIp::new(request, NOW);
        let machine = if over { machine.taking_over() } else { machine };
        let end = run(&mut world, Any::AssignIp(machine));
        assert_eq!(faults(&world, after(1)), []);
        end
    };
    let took = End::Took(vec!["10.0.0.6".parse().unwrap()]);
    assert_eq!(ask(of("node-a", "net.1", "d/web"), false), took);
    let taken = "10.0.0.6 is already assigned under handle net.1 on node-a";
    for (request, over) in [
        // Its interface is still there; another node; another workload; one that does not say.
        (of("node-a", "net.2", "d/web"), false),
        (of("node-b", "net.2", "d/web"), true),
        (of("node-a", "net.2", "d/other"), true),
        (
            AssignIpRequest {
                attributes: BTreeMap::new(),
                ..of("node-a", "net.2", "d/web")
            },
            true,
        ),
    ] {
        assert_eq!(ask(request, over), End::Failed(taken.into()));
    }
    assert_eq!(ask(of("node-a", "net.2", "d/web"), true), took);
    // A late DEL of the first container takes nothing.
    assert!(!world.keys.contains_key("/calico/ipam/v2/handle/net.1"));
    let late = ReleaseHandle::new("net.1".into(), Vec::new(), NOW);
    run(&mut world, Any::ReleaseHandle(late));
    let again = AssignIp::new(of("node-b", "net.3", "d/web"), NOW);
    let taken = "10.0.0.6 is already assigned under handle net.2 on node-a";
    assert_eq!(
        run(&mut world, Any::AssignIp(again)),
        End::Failed(taken.into())
    );
}

/// The same, where Calico's plugin gave the address: it wrote namespace, pod and node alone.
#[test]
fn the_same_pod_takes_over_what_calicos_plugin_gave_it_and_nobody_else() {
    const NET: &str = "k8s-pod-network";
    let text = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let of = |host: &str, container: &str, attributes: &[(&str, &str)]| AssignIpRequest {
        address: "10.0.0.6".parse().unwrap(),
        node: host.into(),
        handle: format!("{NET}.{container}").into(),
        attributes: attributes.iter().copied().map(text).collect(),
        usage: AllowedUse::Workload,
    };
    let pod = |namespace: &'static str, name: &'static str| {
        let wiring = [
            (ENDPOINT_ATTRIBUTE, "d/web"),
            (INTERFACE_ATTRIBUTE, "caliweb"),
        ];
        [
            wiring.as_slice(),
            &[("namespace", namespace), ("pod", name)],
        ]
        .concat()
    };
    let web = pod("d", "web");
    let calicos = &web[2..];
    let taken = |container: &str| {
        let holder = format!("already assigned under handle {NET}.{container} on node-a");
        End::Failed(format!("10.0.0.6 is {holder}"))
    };
    let took = || End::Took(vec!["10.0.0.6".parse().unwrap()]);
    let held_as = |more: &[(&str, &str)]| {
        let mut world = small().with(config(|c| c.ip_cooldown_seconds = 600));
        let held = [calicos, more].concat();
        let first = AssignIp::new(of("node-a", "1", &held), NOW);
        assert_eq!(run(&mut world, Any::AssignIp(first)), took());
        world
    };
    let mut world = held_as(&[]);
    for (host, attributes, over) in [
        // Its interface is still there; another node, pod and namespace.
        ("node-a", web.clone(), false),
        ("node-b", web.clone(), true),
        ("node-a", pod("d", "other"), true),
        ("node-a", pod("e", "web"), true),
        // Who asks has no interface of ours; who asks is no pod.
        ("node-a", calicos.to_vec(), true),
        ("node-a", web[..2].to_vec(), true),
    ] {
        let machine = AssignIp::new(of(host, "2", &attributes), NOW);
        let machine = if over { machine.taking_over() } else { machine };
        let end = run(&mut world, Any::AssignIp(machine));
        assert_eq!(end, taken("1"), "{host} {attributes:?}");
    }
    let again = || AssignIp::new(of("node-a", "2", &web), NOW).taking_over();
    // What our plugin gave to another main plugin, and what a virtual machine has.
    for more in [(DELEGATED_ATTRIBUTE, "true"), ("vmi-name", "vm")] {
        let end = run(&mut held_as(&[more]), Any::AssignIp(again()));
        assert_eq!(end, taken("1"), "{more:?}");
    }
    assert_eq!(run(&mut world, Any::AssignIp(again())), took());
    assert_eq!(faults(&world, after(1)), []);
    // A late DEL of the first container takes nothing.
    let first = format!("{NET}.1");
    let key = format!("/calico/ipam/v2/handle/{first}");
    assert!(!world.keys.contains_key(&key));
    let late = ReleaseHandle::new(first.as_str().into(), Vec::new(), NOW);
    run(&mut world, Any::ReleaseHandle(late));
    let other = AssignIp::new(of("node-b", "3", &web), NOW);
    assert_eq!(run(&mut world, Any::AssignIp(other)), taken("2"));
}

#[test]
fn a_huge_ipv6_pool_is_no_trouble() {
    let mut world = World::default()
        .with(pool("v6", "fd00::/48", 122))
        .with(node("node-a"));
    let mut wanted = request("node-a", "h", 0);
    wanted.num_v6 = 130;
    let got = assign(&mut world, wanted).unwrap();
    assert_eq!(got.len(), 130);
    assert_eq!(view(&world).blocks.len(), 3);
}
