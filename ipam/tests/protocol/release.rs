//! Releases: of addresses, of blocks, of a whole node.

use std::net::IpAddr;

use crate::world::actor::{Any, End, faults, held_by, run, view};
use crate::world::{NOW, World, after, config, node, pool, pool_with};
use caracal_ipam::Assign;
use caracal_ipam::MAX_PRECONDITIONS;
use caracal_ipam::ReleaseAffinity;
use caracal_ipam::ReleaseNode;
use caracal_ipam::{AssignRequest, Input, Machine, ReleaseTarget, Step};
use caracal_ipam::{Conditional, PreconditionError};
use caracal_ipam::{ReleaseHandle, ReleaseIps};
use caracal_model::{BlockOwner, Compare, Key, Prefix, TxnOutcome};

fn world() -> World {
    World::default()
        .with(pool("p", "10.0.0.0/28", 30))
        .with(node("node-a"))
        .with(node("node-b"))
}

fn assign(world: &mut World, host: &str, handle: &str, count: usize) -> Vec<IpAddr> {
    let mut request = AssignRequest::workload(host.into(), handle.into());
    request.num_v4 = count;
    match run(world, Any::Assign(Assign::new(request, NOW))) {
        End::Took(list) => list,
        other => panic!("{other:?}"),
    }
}

/// Runs a machine alone and returns what it returns.
fn drive<M: Machine>(world: &mut World, mut machine: M) -> Result<M::Output, M::Error> {
    let mut seen = Input::Start;
    loop {
        seen = match machine.step(seen) {
            Step::Read(ranges) => Input::Read(world.read(&ranges)),
            Step::Commit(txn) => match world.commit(&txn) {
                TxnOutcome::Committed(revision) => Input::Committed(revision),
                TxnOutcome::Conflict => Input::Conflict,
            },
            Step::Done(output) => return Ok(output),
            Step::Failed(error) => return Err(error),
        }
    }
}

#[test]
fn ipam_8_a_stale_release_frees_nothing() {
    let mut world = world();
    let first = assign(&mut world, "node-a", "old", 1)[0];
    let view_before = view(&world);
    let block = &view_before.blocks.values().next().unwrap().value;
    let sequence = block.sequence_number_for_allocation["0"];
    let handle = ReleaseHandle::new("old".into(), Vec::new(), NOW);
    assert_eq!(drive(&mut world, handle).unwrap().addresses, [first]);
    // The queue is first in, first out: four more until the address comes round again.
    let again = assign(&mut world, "node-a", "new", 4);
    assert!(again.contains(&first));
    let mut release = |handle: Option<&str>, sequence| {
        let target = ReleaseTarget {
            address: first,
            handle: handle.map(Into::into),
            sequence,
        };
        drive(&mut world, ReleaseIps::new(vec![target], NOW)).map_err(|e| e.to_string())
    };
    assert_eq!(
        release(Some("old"), None).unwrap_err(),
        format!("{first} is not released: it is held through new, not old")
    );
    let error = release(Some("new"), Some(sequence)).unwrap_err();
    assert!(error.contains("was assigned anew since"), "{error}");
    assert_eq!(
        release(Some("new"), Some(sequence + 2)).unwrap().addresses,
        [first]
    );
    assert_eq!(release(Some("new"), None).unwrap().unknown, [first]);
    assert_eq!(held_by(&world, &"new".into()).len(), 3);
    assert_eq!(faults(&world, after(1)), []);
}

#[test]
fn unknown_addresses_are_told_and_a_gone_pool_is_no_obstacle() {
    let mut world = world();
    let got = assign(&mut world, "node-a", "h", 2);
    world
        .keys
        .remove("/calico/resources/v3/projectcalico.org/ippools/p")
        .unwrap();
    let targets = ["192.0.2.1", "fd00::1"].map(|a| ReleaseTarget::any(a.parse().unwrap()));
    let targets = targets
        .into_iter()
        .chain(got.iter().map(|a| ReleaseTarget::any(*a)));
    let released = drive(&mut world, ReleaseIps::new(targets.collect(), NOW)).unwrap();
    assert_eq!(released.addresses, got);
    assert_eq!(released.unknown.len(), 2);
    assert_eq!(view(&world).handles.len(), 0);
}

#[test]
fn ipam_7_an_empty_block_of_nobody_goes_with_its_last_address() {
    let mut world = world();
    let got = assign(&mut world, "node-a", "h", 1);
    let cidr = Prefix::truncated(got[0], 30);
    let owner = BlockOwner::Host("node-a".into());
    let refused = ReleaseAffinity::new(owner.clone(), cidr, true, NOW);
    assert_eq!(
        drive(&mut world, refused).unwrap_err().to_string(),
        format!("block {cidr} is not released: 1 of its addresses are in use")
    );
    drive(&mut world, ReleaseAffinity::new(owner, cidr, false, NOW)).unwrap();
    assert!(view(&world).affinities.is_empty());
    assert_eq!(view(&world).blocks[&cidr].value.affinity, None);
    assert_eq!(view(&world).blocks[&cidr].value.affinity_claim_time, None);
    assert_eq!(faults(&world, after(1)), []);
    drive(&mut world, ReleaseHandle::new("h".into(), Vec::new(), NOW)).unwrap();
    assert!(view(&world).blocks.is_empty());
}

#[test]
fn a_deleted_node_leaves_nothing() {
    let mut world = world();
    let own = assign(&mut world, "node-a", "a", 4);
    let borrowed_from = assign(&mut world, "node-b", "b", 10);
    world.put(config(|c| c.auto_allocate_blocks = false));
    let borrowed = assign(&mut world, "node-a", "c", 1);
    let left = drive(&mut world, ReleaseNode::new("node-a".into(), NOW)).unwrap();
    let mut all: Vec<IpAddr> = own.into_iter().chain(borrowed).collect();
    all.sort_unstable();
    assert_eq!(left.addresses, all);
    assert_eq!(left.blocks.len(), 1);
    assert_eq!(held_by(&world, &"b".into()).len(), borrowed_from.len());
    let after_all = view(&world);
    assert!(
        after_all
            .affinities
            .keys()
            .all(|(o, _)| o.to_string() == "host:node-b")
    );
    assert_eq!(after_all.handles.len(), 1);
    assert_eq!(faults(&world, after(1)), []);
}

#[test]
fn hundreds_of_addresses_and_handles_are_released_in_etcd_sized_transactions() {
    let mut world = World::default()
        .with(pool("p", "10.0.0.0/22", 28))
        .with(node("node-a"));
    let mut targets = Vec::new();
    for n in 0..150 {
        let got = assign(&mut world, "node-a", &format!("h{n}"), 2);
        targets.extend(got.into_iter().map(ReleaseTarget::any));
    }
    let released = drive(&mut world, ReleaseIps::new(targets, NOW)).unwrap();
    assert_eq!((released.addresses.len(), released.unknown.len()), (300, 0));
    assert!(view(&world).handles.is_empty());
    assert_eq!(faults(&world, after(1)), []);
}

#[test]
fn the_largest_transaction_fits_with_the_largest_proof() {
    // Each address under a handle of its own, two in a block, and the pool turned away from the
    // node: block, affinity and handle, and preconditions beside them.
    let selecting = |rack: &str| {
        pool_with("p", "10.0.0.0/20", 30, |p| {
            p.spec.node_selector = rack.to_owned();
        })
    };
    let mut world = World::default()
        .with(selecting("all()"))
        .with(config(|c| c.max_blocks_per_host = 200))
        .with(node("node-a"));
    let (mut targets, mut rest) = (Vec::new(), Vec::new());
    for n in 0..90 {
        for handle in ["h", "i"] {
            let got = assign(&mut world, "node-a", &format!("{handle}{n}"), 2);
            let mut got = got.into_iter().map(ReleaseTarget::any);
            targets.extend(got.next());
            rest.extend(got);
        }
    }
    drive(&mut world, ReleaseIps::new(rest, NOW)).unwrap();
    assert_eq!(view(&world).blocks.len(), 90);
    world.put(selecting("rack == 'r2'"));
    let preconditions = |n: usize| -> Vec<Compare> {
        let keys = (0..n).map(|n| format!("/proof/{n}"));
        keys.map(Compare::Absent).collect()
    };
    let too_large = Conditional::new(
        ReleaseIps::new(targets.clone(), NOW),
        preconditions(MAX_PRECONDITIONS + 1),
    );
    assert_eq!(
        drive(&mut world, too_large),
        Err(PreconditionError::TooLarge(MAX_PRECONDITIONS + 1))
    );
    let conditional = Conditional::new(
        ReleaseIps::new(targets, NOW),
        preconditions(MAX_PRECONDITIONS),
    );
    let released = drive(&mut world, conditional).unwrap();
    assert_eq!(released.addresses.len(), 180);
    let now = view(&world);
    assert!(now.blocks.is_empty() && now.handles.is_empty() && now.affinities.is_empty());
    // The largest assignment: as many empty blocks of others as one transaction takes.
    world.put(selecting("all()"));
    for n in 0..40 {
        assign(&mut world, "node-a", &format!("i{n}"), 4);
    }
    let leave: Vec<ReleaseTarget> = (0..40)
        .flat_map(|n| held_by(&world, &format!("i{n}").as_str().into()))
        .map(ReleaseTarget::any)
        .collect();
    drive(&mut world, ReleaseIps::new(leave, NOW)).unwrap();
    world.put(pool_with("p", "10.0.0.0/20", 30, |_| {}));
    world.put(config(|c| c.max_blocks_per_host = 200));
    world.put(node("node-b"));
    let mut request = AssignRequest::workload("node-b".into(), "all".into());
    request.num_v4 = 160;
    let end = run(&mut world, Any::Assign(Assign::new(request, after(3600))));
    assert!(matches!(end, End::Took(list) if list.len() == 160));
    assert_eq!(faults(&world, after(3600)), []);
}

#[test]
fn ipam_2_a_leaked_count_goes_with_its_handle() {
    // A Calico node died between counting and taking: the handle counts what no block holds.
    let mut world = world();
    let key = Key::Handle("leak".into()).to_path();
    world.put((key, br#"{"block":{"10.0.0.0/30":1}}"#.to_vec()));
    assert_eq!(faults(&world, NOW).len(), 1);
    let released = drive(
        &mut world,
        ReleaseHandle::new("leak".into(), Vec::new(), NOW),
    )
    .unwrap();
    assert!(released.addresses.is_empty());
    assert_eq!(faults(&world, NOW), []);
}
