//! Races in virtual time: any interleaving of machines, with a crash at any step, keeps the
//! invariants after every single commit; and every interleaving of two or three clients on one or
//! two blocks, exhaustively.

use std::collections::BTreeSet;

use crate::histories::{Deed, SCENARIOS, Search, machine};
use crate::world::actor::{Actor, Any, End, faults, run, view};
use crate::world::{World, after, config, node, pool_with};
use caracal_ipam::{Assign, AssignRequest, ReleaseAffinity};
use caracal_model::{BlockOwner, EncapMode};
use proptest::prelude::*;

const POOL: &str = "10.0.0.0/28";

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        5 => (0u8..3, 1usize..4).prop_map(|(h, n)| Deed::Assign(h, n)),
        2 => (0u8..3, any::<u8>()).prop_map(|(h, n)| Deed::AssignIp(h, n)),
        3 => (0u8..3).prop_map(Deed::Release),
        1 => (0u8..3, any::<u8>()).prop_map(|(h, n)| Deed::ReleaseIp(h, n)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(n, e)| Deed::GiveBack(n, e)),
        1 => Just(Deed::Tunnel),
        1 => Just(Deed::Leave),
    ]
}

/// A host's processes: deeds one after the other, the process of some killed after so many steps.
type Script = Vec<(Deed, Option<usize>)>;

fn scripts() -> impl Strategy<Value = Vec<(usize, Script)>> {
    let entry = (deed(), prop::option::weighted(0.2, 0usize..6));
    let script = (0usize..3, prop::collection::vec(entry, 1..6));
    prop::collection::vec(script, 2..5)
}

fn world(block_len: u8, strict: bool, cool_down: u32) -> World {
    let encap = |p: &mut caracal_model::IpPool| p.spec.ipip_mode = EncapMode::Always;
    let mut world = World::default()
        .with(pool_with("p", POOL, block_len, encap))
        .with(config(|c| {
            c.strict_affinity = strict;
            c.ip_cooldown_seconds = cool_down;
        }));
    for host in 0..3 {
        world.put(node(&format!("node-{host}")));
    }
    world
}

struct Running {
    host: usize,
    script: std::vec::IntoIter<(Deed, Option<usize>)>,
    actor: Option<(Actor, Option<usize>)>,
    done: u64,
}

impl Running {
    /// One I/O of this process, or the start of its next deed. Returns the end of a deed.
    fn go(&mut self, world: &mut World, block_len: u8) -> Option<End> {
        if self.actor.is_none() {
            let (deed, dies) = self.script.next()?;
            let machine = machine(self.host, &deed, block_len, self.done);
            self.actor = Some((Actor::start(machine), dies));
            self.done += 1;
        }
        let (actor, dies) = self.actor.as_mut()?;
        if *dies == Some(actor.steps) {
            self.actor = None;
            return None;
        }
        actor.go(world);
        let end = actor.end().cloned();
        if end.is_some() {
            self.actor = None;
        }
        end
    }

    fn is_over(&self) -> bool {
        self.actor.is_none() && self.script.len() == 0
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ipam_1_to_7_hold_after_every_commit_of_any_interleaving(
        scripts in scripts(),
        schedule in prop::collection::vec(any::<prop::sample::Index>(), 0..160),
        block_len in 29u8..=32,
        strict: bool,
        cool_down in prop_oneof![3 => Just(0u32), 1 => Just(100u32)],
    ) {
        let mut world = world(block_len, strict, cool_down);
        let late = after(10_000);
        let mut running: Vec<Running> = scripts
            .into_iter()
            .map(|(host, script)| Running { host, script: script.into_iter(), actor: None, done: 0 })
            .collect();
        let mut turns = schedule.into_iter();
        // When the schedule is used up, one after the other runs to its end.
        while let Some(first) = running.iter().position(|r| !r.is_over()) {
            let live: Vec<usize> = (0..running.len()).filter(|i| !running[*i].is_over()).collect();
            let chosen = turns.next().map_or(first, |turn| live[turn.index(live.len())]);
            let before = world.revision;
            running[chosen].go(&mut world, block_len);
            if world.revision != before {
                let faults = faults(&world, late);
                prop_assert!(faults.is_empty(), "{faults:?}");
            }
        }
        // Nothing is lost: whatever is free by the data can be had. Each of three hosts releases
        // all it holds; then one host gets every address of the pool.
        for host in 0..3 {
            let left = run(&mut world, machine(host, &Deed::Leave, block_len, 200));
            prop_assert_eq!(left, End::Finished);
            for block in view(&world).blocks.keys() {
                let owner = BlockOwner::Host(format!("node-{host}").as_str().into());
                let back = ReleaseAffinity::new(owner, *block, false, after(20_000));
                run(&mut world, Any::ReleaseAffinity(back));
            }
        }
        let mut request = AssignRequest::workload("node-0".into(), "all".into());
        request.num_v4 = 16;
        let all = run(&mut world, Any::Assign(Assign::new(request, after(30_000))));
        let End::Took(all) = all else { panic!("{all:?}: {:#?}", view(&world)) };
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 16);
        prop_assert!(faults(&world, after(30_000)).is_empty());
    }
}

/// IPAM-1 to IPAM-7 after every commit, IPAM-8 to IPAM-11 at the ends, of every interleaving of
/// every scenario.
fn search(names: &[&str]) {
    for name in names {
        let scenario = SCENARIOS.iter().find(|s| s.name == *name).unwrap();
        let search = Search::through(scenario);
        let ends = search.histories.len();
        println!("{name}: {} states, {ends} ends", search.states());
        assert!(ends > 1);
    }
}

#[test]
fn every_interleaving_of_two_hosts_on_one_block() {
    search(&[
        "two hosts on one block, two crashes",
        "two hosts that borrow from each other",
    ]);
}

#[test]
fn every_interleaving_of_claim_give_back_and_reclaim() {
    search(&["claim, give back and reclaim, two crashes"]);
}

#[test]
fn every_interleaving_of_two_processes_of_one_host() {
    search(&["two processes of one host"]);
}

#[test]
fn every_interleaving_of_three_clients() {
    search(&[
        "three clients on two blocks",
        "three clients claim one block, two crashes",
    ]);
}

#[test]
fn every_interleaving_of_chosen_addresses() {
    search(&[
        "a chosen address against any address, two crashes",
        "the same chosen address wanted by two hosts",
    ]);
}

#[test]
fn every_interleaving_of_a_node_that_is_deleted() {
    search(&["a node deleted twice at once while another assigns"]);
}

#[test]
fn every_interleaving_of_processes_that_ensure_a_tunnel() {
    search(&["an old and a new process ensure one tunnel address"]);
}
