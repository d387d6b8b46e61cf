//! A block with addresses that somebody else has given out: it comes whole, none of them is given
//! a second time by any interleaving with an assignment, and a late release frees one.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::world::actor::{Actor, Any, End, faults, held_by, run, view};
use crate::world::{NOW, World, after, config, node, pool};
use caracal_ipam::{Assign, AssignRequest, ReleaseHandle, ReleaseNode, TakeBlock};
use caracal_model::{DELEGATED_ATTRIBUTE, HandleId, Key, Prefix};

const BLOCK: &str = "10.5.48.0/24";

fn cidr() -> Prefix {
    BLOCK.parse().unwrap()
}

/// Addresses of these numbers, each of a container of its own.
fn take(numbers: impl IntoIterator<Item = u8>) -> Any {
    let held = numbers.into_iter().map(|n| {
        let address: IpAddr = format!("10.5.48.{n}").parse().unwrap();
        (address, HandleId::from(format!("net.{n}")))
    });
    let attributes = [(DELEGATED_ATTRIBUTE.to_owned(), "true".to_owned())];
    let held: BTreeMap<IpAddr, HandleId> = held.collect();
    let machine = TakeBlock::new("node-a".into(), cidr(), held, attributes.into(), NOW);
    Any::TakeBlock(machine)
}

/// No node takes a block by itself.
fn cluster(ordered: bool) -> World {
    let mut world = World::default()
        .with(pool("flannel", "10.5.0.0/16", 24))
        .with(node("node-a"))
        .with(node("node-b"))
        .with(config(|c| {
            c.strict_affinity = true;
            c.auto_allocate_blocks = false;
        }));
    world.ordered = ordered;
    world
}

fn one(host: &str, handle: &str) -> Any {
    let request = AssignRequest::workload(host.into(), handle.into());
    Any::Assign(Assign::new(request, NOW))
}

fn held(world: &World) -> usize {
    let view = view(world);
    let blocks = view.blocks.values();
    blocks.map(|b| b.value.allocated().count()).sum()
}

#[test]
fn a_block_comes_with_what_was_given_out_of_it() {
    for ordered in [false, true] {
        let mut world = cluster(ordered);
        let End::Failed(none) = run(&mut world, one("node-a", "early")) else {
            panic!("there is no block yet");
        };
        assert!(none.contains("auto_allocate_blocks is false"), "{none}");
        // More handles than one transaction takes; on a store of single objects each is a step.
        let last = if ordered { 20 } else { 250 };
        let count = usize::from(last) + 1;
        let all = 0..=last;
        assert_eq!(run(&mut world, take(all.clone())), End::Finished);
        assert_eq!(faults(&world, after(1)), []);
        assert_eq!(held(&world), count);
        let before = world.revision;
        assert_eq!(run(&mut world, take(all)), End::Finished);
        assert_eq!(world.revision, before, "the second time nothing is written");
        // What is free goes to the node, and to no other one.
        let End::Took(taken) = run(&mut world, one("node-a", "web")) else {
            panic!("there is room");
        };
        assert_eq!(taken, [IpAddr::from([10, 5, 48, last + 1])]);
        let other = run(&mut world, one("node-b", "else"));
        assert!(matches!(other, End::Failed(_)), "{other:?}");
        // A late DEL of an old container.
        let late = ReleaseHandle::new("net.7".into(), Vec::new(), NOW);
        assert_eq!(run(&mut world, Any::ReleaseHandle(late)), End::Finished);
        assert_eq!(held(&world), count);
        assert!(held_by(&world, &"net.7".into()).is_empty());
        // Everything back.
        let back = ReleaseNode::new("node-a".into(), NOW);
        assert_eq!(run(&mut world, Any::ReleaseNode(back)), End::Finished);
        let left = view(&world);
        assert!(
            left.blocks.is_empty() && left.affinities.is_empty(),
            "{world:?}"
        );
        assert!(left.handles.is_empty(), "{world:?}");
    }
}

#[test]
fn what_somebody_else_has_is_refused_and_named() {
    let failed = |world: &mut World, machine: Any| {
        let before = world.revision;
        let End::Failed(reason) = run(world, machine) else {
            panic!("it is refused");
        };
        assert_eq!(world.revision, before, "nothing is written");
        reason
    };
    let mut world = cluster(false);
    run(&mut world, take([2]));
    let ours = take([2, 3]);
    let theirs = TakeBlock::new(
        "node-b".into(),
        cidr(),
        BTreeMap::new(),
        BTreeMap::new(),
        NOW,
    );
    let reason = failed(&mut world, Any::TakeBlock(theirs));
    assert!(reason.contains("10.5.48.0/24 is host:node-a's"), "{reason}");
    assert_eq!(run(&mut world, one("node-a", "web")), {
        End::Took(vec!["10.5.48.0".parse().unwrap()])
    });
    let reason = failed(&mut world, take([0, 2]));
    for says in ["10.5.48.0 is held under handle web", "--ip 10.5.48.0"] {
        assert!(reason.contains(says), "{reason}");
    }
    let outside = [("10.5.49.1".parse().unwrap(), HandleId::from("x"))];
    let outside = TakeBlock::new(
        "node-a".into(),
        cidr(),
        outside.into(),
        BTreeMap::new(),
        NOW,
    );
    let reason = failed(&mut world, Any::TakeBlock(outside));
    assert!(
        reason.contains("no address of block 10.5.48.0/24"),
        "{reason}"
    );
    assert_eq!(run(&mut world, ours), End::Finished);
    world.put((Key::Block(cidr()).to_path(), b"{".to_vec()));
    let reason = failed(&mut world, take([2]));
    assert!(reason.contains("does not parse"), "{reason}");
}

/// Every interleaving of the two, step by step.
fn interleave(world: &World, actors: &[Actor; 2], ends: &mut usize) {
    let mut live = false;
    for at in 0..2 {
        if actors[at].end().is_some() {
            continue;
        }
        live = true;
        let (mut world, mut actors) = (world.clone(), actors.clone());
        assert!(actors[at].steps < 30, "{:?}", actors[at]);
        actors[at].go(&mut world);
        interleave(&world, &actors, ends);
    }
    if live {
        return;
    }
    *ends += 1;
    assert_eq!(actors[0].end(), Some(&End::Finished), "{world:?}");
    if let Some(End::Took(taken)) = actors[1].end() {
        let given: Vec<IpAddr> = [0u8, 1, 2].map(|n| [10, 5, 48, n].into()).into();
        assert!(
            !given.contains(&taken[0]),
            "given twice: {taken:?}\n{world:?}"
        );
    }
    assert_eq!(faults(world, after(1)), [], "{world:?}");
}

#[test]
fn no_interleaving_gives_an_address_twice() {
    for ordered in [false, true] {
        let world = cluster(ordered);
        let actors = [
            Actor::start(take([0, 1, 2])),
            Actor::start(one("node-a", "web")),
        ];
        let mut ends = 0;
        interleave(&world, &actors, &mut ends);
        println!("ordered {ordered}: {ends} ends");
        assert!(ends > 1);
    }
}
