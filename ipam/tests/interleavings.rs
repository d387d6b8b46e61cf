//! Races in virtual time: any interleaving of machines, with a crash at any step, keeps the invariants after
//! every single commit; and every interleaving of two clients on one block, exhaustively.
#![allow(clippy::unwrap_used, missing_docs)]

mod world;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use caracal_ipam::affinity::ReleaseAffinity;
use caracal_ipam::assign::Assign;
use caracal_ipam::assign_ip::AssignIp;
use caracal_ipam::check::{AffinityWord, Finding, check};
use caracal_ipam::leave::ReleaseNode;
use caracal_ipam::release::{ReleaseHandle, ReleaseIps};
use caracal_ipam::tunnel::EnsureTunnel;
use caracal_ipam::{AssignIpRequest, AssignRequest, Target, TunnelKind};
use caracal_model::ipam::Owner;
use caracal_model::names::HandleId;
use caracal_model::net::Prefix;
use caracal_model::resource::ip_pool::{AllowedUse, EncapMode};
use proptest::prelude::*;
use world::actor::{Actor, Any, End, faults, held_by, run, view};
use world::{World, after, config, node, pool, pool_with};

/// One thing that a host does. Each host has its own handles, numbered.
#[derive(Clone, Debug)]
enum Deed {
    Assign(u8, usize),
    AssignIp(u8, u8),
    Release(u8),
    ReleaseIp(u8),
    GiveBack(u8, bool),
    Tunnel,
    Leave,
}

const POOL: &str = "10.0.0.0/28";

fn handle(host: usize, number: u8) -> HandleId {
    HandleId::from(format!("h{host}.{number}"))
}

fn address(n: u8) -> IpAddr {
    POOL.parse::<Prefix>()
        .unwrap()
        .nth(u128::from(n % 16))
        .unwrap()
}

/// The machine for a deed. Time passes between deeds, so that empty blocks become old enough to reclaim.
fn machine(host: usize, deed: &Deed, block_len: u8, minute: u64) -> Any {
    let name = format!("node-{host}");
    let now = after(minute * 61);
    match deed {
        Deed::Assign(number, count) => {
            let mut request = AssignRequest::workload(name.as_str().into(), handle(host, *number));
            request.num_v4 = *count;
            Any::Assign(Assign::new(request, now))
        }
        Deed::AssignIp(number, n) => {
            let request = AssignIpRequest {
                address: address(*n),
                node: name.as_str().into(),
                handle: handle(host, *number),
                attributes: BTreeMap::new(),
                usage: AllowedUse::Workload,
            };
            Any::AssignIp(AssignIp::new(request, now))
        }
        Deed::Release(number) => {
            let handle = handle(host, *number);
            Any::ReleaseHandle(ReleaseHandle::new(handle, Vec::new(), now))
        }
        Deed::ReleaseIp(n) => {
            // Only what is under a handle of this host (IPAM-8).
            let targets = (0..3).map(|number| Target {
                address: address(*n),
                handle: Some(handle(host, number)),
                sequence: None,
            });
            let targets = targets.take(1).collect();
            Any::ReleaseIps(ReleaseIps::new(targets, now))
        }
        Deed::GiveBack(n, must_be_empty) => {
            let owner = Owner::Host(name.as_str().into());
            let cidr = Prefix::truncated(address(*n), block_len);
            let machine = ReleaseAffinity::new(owner, cidr, *must_be_empty, now);
            Any::ReleaseAffinity(machine)
        }
        Deed::Tunnel => {
            let machine = EnsureTunnel::new(TunnelKind::Ipip, name.as_str().into(), now);
            Any::Tunnel(machine)
        }
        Deed::Leave => Any::ReleaseNode(ReleaseNode::new(name.as_str().into(), now)),
    }
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        5 => (0u8..3, 1usize..4).prop_map(|(h, n)| Deed::Assign(h, n)),
        2 => (0u8..3, any::<u8>()).prop_map(|(h, n)| Deed::AssignIp(h, n)),
        3 => (0u8..3).prop_map(Deed::Release),
        1 => any::<u8>().prop_map(Deed::ReleaseIp),
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
    let encap = |p: &mut caracal_model::resource::IpPool| p.spec.ipip_mode = EncapMode::Always;
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
        // Nothing is lost: whatever is free by the data can be had. Each of three hosts releases all it
        // holds; then one host gets every address of the pool.
        for host in 0..3 {
            let left = run(&mut world, machine(host, &Deed::Leave, block_len, 200));
            prop_assert_eq!(left, End::Finished);
            for block in view(&world).blocks.keys() {
                let owner = Owner::Host(format!("node-{host}").as_str().into());
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

/// A state of the exhaustive search: the world, each client's actor and what it still has to do, and how
/// many crashes may still happen.
#[derive(Clone, Debug)]
struct Branch {
    world: World,
    clients: Vec<Client>,
    crashes: usize,
}

#[derive(Clone, Debug)]
struct Client {
    host: usize,
    actor: Option<Actor>,
    todo: Vec<Deed>,
    took: BTreeSet<IpAddr>,
    crashed: bool,
    handle: HandleId,
}

struct Search {
    block_len: u8,
    size: usize,
    seen: HashSet<u64>,
    ends: usize,
}

impl Search {
    fn explore(&mut self, branch: Branch) {
        let mut hasher = DefaultHasher::new();
        format!("{branch:?}").hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        let mut leaf = true;
        for index in 0..branch.clients.len() {
            if branch.clients[index].actor.is_none() && branch.clients[index].todo.is_empty() {
                continue;
            }
            leaf = false;
            let mut next = branch.clone();
            self.advance(&mut next, index);
            self.explore(next);
            if branch.crashes > 0 && branch.clients[index].actor.is_some() {
                let mut next = branch.clone();
                next.crashes -= 1;
                next.clients[index].actor = None;
                next.clients[index].crashed = true;
                self.explore(next);
            }
        }
        if leaf {
            self.ends += 1;
            self.inspect_end(branch);
        }
    }

    /// At rest: everybody alive holds what it was told, and nothing is lost: once the dead hosts' data is
    /// released, every address of the pool can be had again.
    fn inspect_end(&self, mut branch: Branch) {
        for client in &branch.clients {
            if !client.crashed {
                let held = held_by(&branch.world, &client.handle);
                assert_eq!(held, client.took, "{branch:?}");
            }
        }
        if branch.clients.iter().all(|client| !client.crashed) {
            // A claim that a lost race made needless stays for the next one (IPAM-10).
            let mut findings = check(&view(&branch.world), after(10_000));
            findings.retain(|f| !matches!(f, Finding::Unconfirmed(_, _, AffinityWord::Pending)));
            assert_eq!(findings, [], "{branch:?}");
        }
        let world = &mut branch.world;
        for host in 0..2 {
            let left = run(world, machine(host, &Deed::Leave, self.block_len, 100));
            assert_eq!(left, End::Finished);
        }
        let mut request = AssignRequest::workload("node-0".into(), "all".into());
        request.num_v4 = self.size;
        let all = run(world, Any::Assign(Assign::new(request, after(20_000))));
        assert!(matches!(all, End::Took(_)), "IPAM-10: {all:?} {world:?}");
        assert_eq!(faults(world, after(20_000)), []);
    }

    fn advance(&self, branch: &mut Branch, index: usize) {
        let minute = 5 - u64::try_from(branch.clients[index].todo.len()).unwrap();
        let client = &mut branch.clients[index];
        if client.actor.is_none() {
            let deed = client.todo.remove(0);
            if matches!(deed, Deed::Release(_)) {
                client.took.clear();
            }
            let machine = machine(client.host, &deed, self.block_len, minute);
            client.actor = Some(Actor::start(machine));
        }
        let actor = client.actor.as_mut().unwrap();
        assert!(actor.conflicts < 12, "losing for ever: {actor:?}");
        let changed = actor.go(&mut branch.world);
        if let Some(end) = actor.end() {
            if let End::Took(addresses) = end {
                client.took.extend(addresses);
            }
            client.actor = None;
            let mine = client.took.clone();
            let others = branch
                .clients
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != index);
            for (_, other) in others {
                assert!(mine.is_disjoint(&other.took), "IPAM-1: {branch:?}");
            }
        }
        if changed {
            let faults = faults(&branch.world, after(10_000));
            assert!(faults.is_empty(), "{faults:?} in {branch:?}");
        }
    }
}

fn search(stage: &str, strict: bool, todos: &[(usize, &[Deed])], crashes: usize) {
    let pool_range: Prefix = stage.parse().unwrap();
    let block_len = 30;
    let mut world = World::default()
        .with(pool("p", stage, block_len))
        .with(config(|c| c.strict_affinity = strict));
    for host in 0..2 {
        world.put(node(&format!("node-{host}")));
    }
    let client = |(host, todo): &(usize, &[Deed])| Client {
        host: *host,
        actor: None,
        todo: todo.to_vec(),
        took: BTreeSet::new(),
        crashed: false,
        handle: match todo[0] {
            Deed::Assign(number, _) => handle(*host, number),
            _ => unreachable!("a client begins with an assignment"),
        },
    };
    let branch = Branch {
        world,
        clients: todos.iter().map(client).collect(),
        crashes,
    };
    let mut search = Search {
        block_len,
        size: usize::try_from(pool_range.size()).unwrap(),
        seen: HashSet::new(),
        ends: 0,
    };
    search.explore(branch);
    println!("{} states, {} ends", search.seen.len(), search.ends);
    assert!(search.ends > 1);
}

const ONE_BLOCK: &str = "10.0.0.0/30";
const TWO_BLOCKS: &str = "10.0.0.0/29";

#[test]
fn every_interleaving_of_two_hosts_on_one_block_with_two_crashes() {
    let deeds: &[Deed] = &[Deed::Assign(0, 3), Deed::Release(0)];
    search(ONE_BLOCK, false, &[(0, deeds), (1, deeds)], 2);
}

#[test]
fn every_interleaving_of_two_hosts_that_borrow_from_each_other() {
    let deeds: &[Deed] = &[Deed::Assign(0, 2), Deed::Release(0)];
    search(ONE_BLOCK, false, &[(0, deeds), (1, deeds)], 1);
}

#[test]
fn every_interleaving_of_claim_give_back_and_reclaim_with_two_crashes() {
    let first: &[Deed] = &[
        Deed::Assign(0, 1),
        Deed::Release(0),
        Deed::GiveBack(0, true),
    ];
    let second: &[Deed] = &[Deed::Assign(0, 2)];
    search(ONE_BLOCK, true, &[(0, first), (1, second)], 2);
}

#[test]
fn every_interleaving_of_two_processes_of_one_host() {
    let deeds: &[Deed] = &[Deed::Assign(0, 3)];
    let more: &[Deed] = &[Deed::Assign(1, 3), Deed::Release(1)];
    search(TWO_BLOCKS, false, &[(0, deeds), (0, more)], 1);
}

#[test]
fn every_interleaving_of_three_clients_on_two_blocks() {
    let first: &[Deed] = &[Deed::Assign(0, 3)];
    let second: &[Deed] = &[Deed::Assign(1, 2)];
    let third: &[Deed] = &[Deed::Assign(2, 2), Deed::Release(2)];
    search(TWO_BLOCKS, false, &[(0, first), (0, second), (1, third)], 1);
}
