//! The collector in the exhaustive search: plugins that make and unmake pods on a node, killed at
//! any step, beside the node's collector, in every interleaving. A living pod never loses its
//! address (GC-1, GC-3, GC-5), and once the collector has run, nothing that a crash left is held by
//! anybody (GC-9).
//!
//! The model's rules are those of the world: a runtime has the CNI plugin end an attachment, again
//! and again until that succeeds, before it makes it anew (but one that calls a killed ADD again
//! instead is searched as well); a plugin's call has a deadline much shorter than the grace period;
//! and an interface goes with its pod's network namespace, which the runtime deletes at some time
//! after a plugin died.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::world::actor::{Actor, Any, End, faults, held_by, run, view};
use crate::world::{NOW, World, after, config, node, pool};
use caracal_ipam::{
    Assign, AssignRequest, Collector, Conditional, Garbage, Input, Lease, LeaseHolder, Machine,
    PreconditionError, ReleaseHandle, ReleaseIps, ReleaseNode, Step,
};
use caracal_model::{
    Compare, ENDPOINT_ATTRIBUTE, HandleId, INTERFACE_ATTRIBUTE, Key, Prefix, Snapshot, Txn,
    TxnOutcome, TxnWrite, WorkloadEndpoint, WorkloadEndpointSpec,
};

const GRACE: Duration = Duration::from_secs(900);
const INTERFACE: &str = "caliweb";
const ENDPOINT: &str = "web";

/// Call of the runtime: a container attached, or an attachment ended. All containers are of one
/// pod, one after the other, as those of a stateful set: they share interface name and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Add(u8),
    Del(u8),
}

/// A plugin's call, one I/O at a time, in the plugin's order.
#[derive(Clone, Debug)]
enum Plugin {
    /// ADD: looks what an earlier call has taken.
    Looking,
    /// ADD: takes the address.
    Taking(Box<Actor>),
    /// ADD: the pair of interfaces. The handle's revision, when an earlier call took the address.
    Wiring(IpAddr, Option<i64>),
    /// ADD: the endpoint, in one transaction with the precondition that the handle is as it was.
    Writing(IpAddr, Option<i64>),
    /// DEL: the endpoint, if it is of this container.
    Forgetting,
    /// DEL: the interface.
    Cutting,
    /// DEL: the address.
    Releasing(Box<Actor>),
}

/// Behaviour of a runtime after an ADD that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterAKill {
    /// It gives the container up.
    GivesUp,
    /// It calls ADD again for the same container, whenever that may be.
    CallsAgain {
        /// Whether the endpoint is written only while the handle is as it was read. Without that
        /// the search has to find a living pod that lost its address.
        proves: bool,
    },
}

#[derive(Clone, Debug)]
struct Branch {
    world: World,
    /// Container that has the interface.
    interface: Option<u8>,
    /// How the runtime goes on after an ADD that was killed.
    after_a_kill: AfterAKill,
    /// Containers whose plugin died: their network namespace goes some time.
    doomed: BTreeSet<u8>,
    calls: Vec<Call>,
    running: Option<(u8, Plugin)>,
    alive: Vec<(u8, IpAddr)>,
    crashes: usize,
    /// How often somebody may still delete a living pod's endpoint.
    vandals: usize,
    collector: Collector,
    /// Grace periods that passed.
    hour: u32,
    grace: u32,
    looked: bool,
    collecting: Vec<Garbage>,
    release: Option<(Conditional<ReleaseIps>, Step<(), ()>)>,
}

fn handle(container: u8) -> HandleId {
    HandleId::from(format!("net.c{container}"))
}

fn add(container: u8) -> Any {
    let mut request = AssignRequest::workload("node-0".into(), handle(container));
    let endpoint = format!("default/{ENDPOINT}");
    let attributes = [
        (INTERFACE_ATTRIBUTE, INTERFACE),
        (ENDPOINT_ATTRIBUTE, &endpoint),
    ];
    request.attributes = attributes.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    Any::Assign(Assign::new(request, NOW))
}

fn del(container: u8) -> Any {
    Any::ReleaseHandle(ReleaseHandle::new(handle(container), Vec::new(), after(10)))
}

fn endpoint_key() -> String {
    Key::workload("default", ENDPOINT).to_path()
}

/// Compare-and-swap as the plugin does it, read and write in one step: the plugin repeats a lost
/// race.
fn swap(world: &mut World, key: &str, value: Option<Vec<u8>>) {
    let known = world.keys.get(key).map(|(revision, _)| *revision);
    let compare = match known {
        Some(revision) => Compare::Unchanged(key.to_owned(), revision),
        None => Compare::Absent(key.to_owned()),
    };
    let write = match value {
        Some(value) => TxnWrite::Put(key.to_owned(), value),
        None => TxnWrite::Delete(key.to_owned()),
    };
    let txn = Txn {
        compare: vec![compare],
        writes: vec![write],
    };
    assert!(matches!(world.commit(&txn), TxnOutcome::Committed(_)));
}

fn owner_of_endpoint(world: &World) -> Option<String> {
    let (_, value) = world.keys.get(&endpoint_key())?;
    let endpoint = WorkloadEndpoint::from_json(value).unwrap();
    Some(endpoint.spec.container_id)
}

fn write_endpoint(world: &mut World, container: u8, address: IpAddr) {
    let mut endpoint = WorkloadEndpoint::new(ENDPOINT, WorkloadEndpointSpec::default());
    endpoint.metadata.namespace = Some("default".to_owned());
    endpoint.spec.node = "node-0".to_owned();
    endpoint.spec.pod = ENDPOINT.to_owned();
    endpoint.spec.container_id = format!("c{container}");
    endpoint.spec.interface_name = INTERFACE.to_owned();
    endpoint.spec.ip_networks = vec![Prefix::host(address)];
    swap(world, &endpoint_key(), Some(endpoint.to_json()));
}

fn snapshot(world: &World) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (key, (revision, value)) in &world.keys {
        snapshot.apply(key, Some(value), *revision);
    }
    snapshot.revision = world.revision;
    snapshot
}

impl Branch {
    fn new(
        calls: &[Call],
        after_a_kill: AfterAKill,
        crashes: usize,
        vandals: usize,
        grace: u32,
    ) -> Self {
        Self {
            world: World::default()
                .with(pool("p", "10.0.0.0/31", 31))
                .with(config(|_| {}))
                .with(node("node-0")),
            interface: None,
            after_a_kill,
            doomed: BTreeSet::new(),
            calls: calls.to_vec(),
            running: None,
            alive: Vec::new(),
            crashes,
            vandals,
            collector: Collector::new("node-0".into(), GRACE),
            hour: 0,
            grace,
            looked: false,
            collecting: Vec::new(),
            release: None,
        }
    }

    fn interfaces(&self) -> BTreeSet<String> {
        self.interface
            .iter()
            .map(|_| INTERFACE.to_owned())
            .collect()
    }

    /// One step of the plugin.
    fn plugin(&mut self) {
        let Some((container, plugin)) = self.running.take() else {
            let call = self.calls.remove(0);
            self.running = Some(match call {
                Call::Add(c) => {
                    // A runtime makes a pod anew only after the end of the one before.
                    self.alive.clear();
                    match self.after_a_kill {
                        AfterAKill::GivesUp => (c, Plugin::Taking(Box::new(Actor::start(add(c))))),
                        AfterAKill::CallsAgain { .. } => (c, Plugin::Looking),
                    }
                }
                Call::Del(c) => {
                    self.alive.retain(|(alive, _)| *alive != c);
                    (c, Plugin::Forgetting)
                }
            });
            return;
        };
        let next = match plugin {
            Plugin::Looking => {
                let held = held_by(&self.world, &handle(container));
                Some(match held.first() {
                    Some(address) => Plugin::Wiring(*address, self.revision_of(container)),
                    None => Plugin::Taking(Box::new(Actor::start(add(container)))),
                })
            }
            Plugin::Taking(mut actor) => {
                actor.go(&mut self.world);
                match actor.end() {
                    None => Some(Plugin::Taking(actor)),
                    Some(End::Took(list)) => Some(Plugin::Wiring(list[0], None)),
                    Some(other) => panic!("{other:?}"),
                }
            }
            Plugin::Wiring(address, preconditions) => {
                // An older container's pair of this name goes: it is dead.
                self.interface = Some(container);
                Some(Plugin::Writing(address, preconditions))
            }
            Plugin::Writing(_, preconditions) if self.is_refuted(container, preconditions) => {
                // The call fails and takes everything back; the runtime calls again.
                self.calls.insert(0, Call::Add(container));
                Some(Plugin::Forgetting)
            }
            Plugin::Writing(address, _) => {
                write_endpoint(&mut self.world, container, address);
                self.alive.push((container, address));
                None
            }
            Plugin::Forgetting => {
                if owner_of_endpoint(&self.world) == Some(format!("c{container}")) {
                    swap(&mut self.world, &endpoint_key(), None);
                }
                Some(Plugin::Cutting)
            }
            Plugin::Cutting => {
                if self.interface == Some(container) {
                    self.interface = None;
                }
                let release = Actor::start(del(container));
                Some(Plugin::Releasing(Box::new(release)))
            }
            Plugin::Releasing(mut actor) => {
                actor.go(&mut self.world);
                actor.end().is_none().then_some(Plugin::Releasing(actor))
            }
        };
        self.running = next.map(|plugin| (container, plugin));
    }

    /// The revision of a container's handle.
    fn revision_of(&self, container: u8) -> Option<i64> {
        let key = Key::Handle(handle(container)).to_path();
        self.world.keys.get(&key).map(|(revision, _)| *revision)
    }

    fn is_refuted(&self, container: u8, preconditions: Option<i64>) -> bool {
        let proves = self.after_a_kill == AfterAKill::CallsAgain { proves: true };
        proves && preconditions.is_some() && preconditions != self.revision_of(container)
    }

    fn crash(&mut self) {
        if let Some((container, plugin)) = self.running.take() {
            let ends = matches!(
                plugin,
                Plugin::Forgetting | Plugin::Cutting | Plugin::Releasing(_)
            );
            if !ends && self.after_a_kill != AfterAKill::GivesUp {
                self.calls.insert(0, Call::Add(container));
                self.crashes -= 1;
                return;
            }
            self.doomed.insert(container);
            if ends {
                self.calls.insert(0, Call::Del(container));
            }
            self.crashes -= 1;
        }
    }

    fn begin_collection(&mut self, start: Instant) {
        let now = start + GRACE * self.hour;
        let (snapshot, interfaces) = (snapshot(&self.world), self.interfaces());
        self.collecting = self.collector.collectable(now, &snapshot, &interfaces);
        self.looked = true;
    }

    /// One step of the collector's hand.
    fn collect(&mut self) {
        if let Some((mut machine, step)) = self.release.take() {
            let seen = match step {
                Step::Read(ranges) => Input::Read(self.world.read(&ranges)),
                Step::Commit(txn) => match self.world.commit(&txn) {
                    TxnOutcome::Committed(revision) => Input::Committed(revision),
                    TxnOutcome::Conflict => Input::Conflict,
                },
                Step::Done(()) | Step::Failed(()) => return,
            };
            let step = machine.step(seen).map(|_| (), |_| ());
            if matches!(step, Step::Read(_) | Step::Commit(_)) {
                self.release = Some((machine, step));
            }
            return;
        }
        let Some(Garbage::Addresses {
            targets,
            preconditions,
            interfaces,
            ..
        }) = self.collecting.pop()
        else {
            return;
        };
        if !self.interfaces().is_disjoint(&interfaces) {
            return;
        }
        let mut machine = Conditional::new(ReleaseIps::new(targets, after(20)), preconditions);
        let step = machine.step(Input::Start).map(|_| (), |_| ());
        self.release = Some((machine, step));
    }

    fn is_collecting(&self) -> bool {
        self.release.is_some() || !self.collecting.is_empty()
    }

    fn assert_sound(&self) {
        let faults = faults(&self.world, after(10_000));
        assert!(faults.is_empty(), "{faults:?} in {self:?}");
        for (container, address) in &self.alive {
            let held = held_by(&self.world, &handle(*container));
            assert_eq!(held, [*address].into(), "a living pod: {self:?}");
        }
    }

    /// The runtime has cleaned up, and the collector runs once more, alone: only the living hold
    /// anything.
    fn settle(mut self, start: Instant) {
        while self.is_collecting() {
            self.collect();
        }
        let alive: BTreeSet<u8> = self.alive.iter().map(|(c, _)| *c).collect();
        if self.interface.is_some_and(|c| !alive.contains(&c)) {
            self.interface = None;
        }
        // The endpoint of a dead container is a resource that its controller deletes.
        let owner = owner_of_endpoint(&self.world);
        if owner.is_some_and(|id| !alive.iter().any(|c| id == format!("c{c}"))) {
            swap(&mut self.world, &endpoint_key(), None);
        }
        for _ in 0..2 {
            self.hour += 1;
            self.begin_collection(start);
            while self.is_collecting() {
                self.collect();
            }
        }
        self.assert_sound();
        for container in 0..4 {
            if !alive.contains(&container) {
                let held = held_by(&self.world, &handle(container));
                assert!(held.is_empty(), "GC-9: lost for ever: {held:?} {self:?}");
            }
        }
    }
}

struct Digest(DefaultHasher);

impl std::fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

struct Search {
    start: Instant,
    seen: HashSet<u64>,
    ends: usize,
    released: usize,
}

impl Search {
    fn explore(&mut self, branch: Branch) {
        let mut digest = Digest(DefaultHasher::new());
        write!(digest, "{branch:?}").unwrap();
        if !self.seen.insert(digest.0.finish()) {
            return;
        }
        branch.assert_sound();
        let mut nexts = Vec::new();
        let mut may = |possible: bool, act: &dyn Fn(&mut Branch)| {
            if possible {
                let mut next = branch.clone();
                act(&mut next);
                nexts.push(next);
            }
        };
        let busy = branch.running.is_some();
        may(busy || !branch.calls.is_empty(), &Branch::plugin);
        may(busy && branch.crashes > 0, &Branch::crash);
        // A dead plugin's network namespace goes, and the interface with it.
        let orphan = branch.interface.filter(|c| branch.doomed.contains(c));
        may(orphan.is_some(), &|next| next.interface = None);
        // One proof of death is none.
        let endpoint = branch.world.keys.contains_key(&endpoint_key());
        may(endpoint && branch.vandals > 0, &|next| {
            swap(&mut next.world, &endpoint_key(), None);
            next.vandals -= 1;
        });
        may(branch.is_collecting(), &Branch::collect);
        let start = self.start;
        let idle = !branch.is_collecting();
        may(idle && !branch.looked, &|next| next.begin_collection(start));
        // No call lives as long as the grace period, nor does a transaction of the collector.
        may(
            idle && branch.looked && !busy && branch.hour < branch.grace,
            &|next| {
                next.hour += 1;
                next.looked = false;
            },
        );
        if branch.calls.is_empty() && !busy {
            self.ends += 1;
            branch.clone().settle(self.start);
        }
        for next in nexts {
            let freed = branch.release.is_some() && next.world.revision > branch.world.revision;
            self.released += usize::from(freed);
            self.explore(next);
        }
    }
}

fn search(calls: &[Call], crashes: usize, vandals: usize, grace: u32) {
    let branch = Branch::new(calls, AfterAKill::GivesUp, crashes, vandals, grace);
    search_from(branch);
}

fn search_from(branch: Branch) {
    let calls = branch.calls.clone();
    let mut search = Search {
        start: Instant::now(),
        seen: HashSet::new(),
        ends: 0,
        released: 0,
    };
    search.explore(branch);
    println!(
        "{calls:?}: {} states, {} ends, the collector freed in {}",
        search.seen.len(),
        search.ends,
        search.released
    );
    assert!(search.ends > 1 && search.released > 0);
}

#[test]
fn every_interleaving_of_a_pod_and_its_successor_with_the_collector() {
    search(&[Call::Add(1), Call::Add(2)], 2, 0, 2);
    search(&[Call::Add(1)], 1, 1, 2);
}

#[test]
fn every_interleaving_of_an_attachment_ended_and_made_anew_with_the_collector() {
    search(&[Call::Add(1), Call::Del(1), Call::Add(1)], 2, 0, 2);
}

#[test]
fn every_interleaving_of_late_ends_with_the_collector() {
    search(
        &[Call::Add(1), Call::Add(2), Call::Del(1), Call::Del(2)],
        1,
        0,
        2,
    );
}

#[test]
fn every_interleaving_of_an_add_that_is_called_again_with_the_collector() {
    let again = AfterAKill::CallsAgain { proves: true };
    search_from(Branch::new(&[Call::Add(1)], again, 2, 0, 3));
    search_from(Branch::new(&[Call::Add(1), Call::Add(2)], again, 1, 0, 2));
}

/// The search finds what the precondition is for.
#[test]
#[should_panic(expected = "a living pod")]
fn without_the_proof_an_add_that_is_called_again_loses_its_address() {
    let again = AfterAKill::CallsAgain { proves: false };
    search_from(Branch::new(&[Call::Add(1)], again, 2, 0, 3));
}

/// A node that was taken for dead comes back at any step of its collection: from then on nothing of
/// it goes.
#[test]
fn gc_5_a_node_that_comes_back_keeps_what_it_has() {
    let mut at = 0;
    loop {
        let mut world = World::default()
            .with(pool("p", "10.0.0.0/28", 30))
            .with(node("node-0"))
            .with(node("node-1"));
        for handle in ["a", "b"] {
            let mut request = AssignRequest::workload("node-1".into(), handle.into());
            request.num_v4 = 5;
            run(&mut world, Any::Assign(Assign::new(request, NOW)));
        }
        let node_key = Key::node(&"node-1".into()).to_path();
        let lease = Lease::path(&"node-1".into());
        let renew = |world: &mut World, revision| {
            let txn = Lease::renew(
                &"node-1".into(),
                &LeaseHolder::default(),
                revision,
                GRACE,
                NOW,
            );
            assert!(matches!(world.commit(&txn), TxnOutcome::Committed(_)));
        };
        renew(&mut world, None);
        world.keys.remove(&node_key);
        let revision = world.keys[&lease].0;
        let preconditions = vec![
            Compare::Absent(node_key),
            Compare::Unchanged(lease, revision),
        ];
        let mut machine =
            Conditional::new(ReleaseNode::new("node-1".into(), after(1)), preconditions);
        let (mut step, mut taken, mut steps) = (machine.step(Input::Start), 0, 0);
        let back = loop {
            if steps == at {
                // Its process renews the lease before all else.
                renew(&mut world, Some(revision));
                world.put(node("node-1"));
                let request = AssignRequest::workload("node-1".into(), "new".into());
                let end = run(&mut world, Any::Assign(Assign::new(request, after(2))));
                assert!(matches!(end, End::Took(_)));
                taken = world.revision;
            }
            step = machine.step(match step {
                Step::Read(ranges) => Input::Read(world.read(&ranges)),
                Step::Commit(txn) => match world.commit(&txn) {
                    TxnOutcome::Committed(revision) => Input::Committed(revision),
                    TxnOutcome::Conflict => Input::Conflict,
                },
                Step::Done(_) => break steps >= at,
                Step::Failed(PreconditionError::Broken { .. }) => break true,
                Step::Failed(error) => panic!("{error}"),
            });
            steps += 1;
            assert_eq!(faults(&world, after(10_000)), []);
        };
        if !back {
            assert!(at > 5, "the collection has several steps");
            assert_eq!(view(&world).handles.len(), 0);
            return;
        }
        assert_eq!(
            world.revision, taken,
            "step {at}: nothing was written since"
        );
        assert_eq!(held_by(&world, &"new".into()).len(), 1);
        at += 1;
    }
}
