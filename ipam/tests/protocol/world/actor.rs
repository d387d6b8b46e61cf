//! Actors: machines of any kind behind one face, stepped one I/O at a time by a scheduler of the
//! test.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_datastore::{CommitStep, OrderedCommit, StepResult};
use caracal_ipam::{
    Assign, AssignIp, EnsureTunnel, Inconsistency, Input, IpamData, Machine, Reading,
    ReleaseAffinity, ReleaseHandle, ReleaseIps, ReleaseNode, Step, TakeBlock, all_ranges, check,
};
use caracal_model::{HandleId, KeyRange, KeyValue, Timestamp, Txn, TxnOutcome};

use super::World;

/// Any machine.
#[derive(Clone, Debug)]
pub enum Any {
    Assign(Assign),
    AssignIp(AssignIp),
    ReleaseHandle(ReleaseHandle),
    ReleaseIps(ReleaseIps),
    ReleaseAffinity(ReleaseAffinity),
    ReleaseNode(ReleaseNode),
    Tunnel(EnsureTunnel),
    TakeBlock(TakeBlock),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It took these.
    Took(Vec<IpAddr>),
    /// It released, or found nothing to do.
    Finished,
    /// It failed, with this sentence.
    Failed(String),
}

/// Next action that it waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    Read(Vec<KeyRange>),
    Commit(Txn),
    End(End),
}

fn wish<T, E: std::fmt::Display>(step: Step<T, E>, end: impl FnOnce(T) -> End) -> Wish {
    match step {
        Step::Read(ranges) => Wish::Read(ranges),
        Step::Commit(txn) => Wish::Commit(txn),
        Step::Done(output) => Wish::End(end(output)),
        Step::Failed(error) => Wish::End(End::Failed(error.to_string())),
    }
}

impl Any {
    pub fn step(&mut self, seen: Input) -> Wish {
        match self {
            Self::Assign(m) => wish(m.step(seen), |a| {
                End::Took(a.all().map(|one| one.address).collect())
            }),
            Self::AssignIp(m) => wish(m.step(seen), |a| End::Took(vec![a.address])),
            Self::ReleaseHandle(m) => wish(m.step(seen), |_| End::Finished),
            Self::ReleaseIps(m) => wish(m.step(seen), |_| End::Finished),
            Self::ReleaseAffinity(m) => wish(m.step(seen), |_| End::Finished),
            Self::ReleaseNode(m) => wish(m.step(seen), |_| End::Finished),
            Self::TakeBlock(m) => wish(m.step(seen), |_| End::Finished),
            Self::Tunnel(m) => wish(m.step(seen), |a| End::Took(a.into_iter().collect())),
        }
    }
}

/// A running machine with its pending wish.
#[derive(Clone, Debug)]
pub struct Actor {
    machine: Any,
    pub wish: Wish,
    pub steps: usize,
    pub conflicts: usize,
    /// On a store of single objects: how far the wish is carried out.
    partly: Partly,
}

/// A wish on a store of single objects takes several steps.
#[derive(Clone, Debug, Default)]
enum Partly {
    #[default]
    Not,
    /// The lists that are there.
    Read(Vec<Vec<KeyValue>>),
    /// The writes, and the next of them.
    Commit(OrderedCommit, CommitStep),
}

impl Actor {
    pub fn start(mut machine: Any) -> Self {
        let wish = machine.step(Input::Start);
        Self {
            machine,
            wish,
            steps: 0,
            conflicts: 0,
            partly: Partly::Not,
        }
    }

    pub fn end(&self) -> Option<&End> {
        match &self.wish {
            Wish::End(end) => Some(end),
            _ => None,
        }
    }

    /// Next action that it waits for.
    pub fn wish(&self) -> &Wish {
        &self.wish
    }

    /// Takes the answer to its wish from elsewhere.
    pub fn answer(&mut self, seen: Input) {
        self.wish = self.machine.step(seen);
    }

    /// Carries out the pending wish. Returns true when the world changed.
    pub fn go(&mut self, world: &mut World) -> bool {
        if world.ordered {
            return self.go_object_by_object(world);
        }
        let (seen, changed) = match &self.wish {
            Wish::End(_) => return false,
            Wish::Read(ranges) => (Input::Read(world.read(ranges)), false),
            Wish::Commit(txn) => match world.commit(txn) {
                TxnOutcome::Committed(revision) => (Input::Committed(revision), true),
                TxnOutcome::Conflict => (Input::Conflict, false),
            },
        };
        self.conflicts += usize::from(seen == Input::Conflict);
        self.steps += 1;
        self.wish = self.machine.step(seen);
        changed
    }

    /// One call of an API of single objects. Returns true when the world changed.
    fn go_object_by_object(&mut self, world: &mut World) -> bool {
        self.steps += 1;
        let before = world.revision;
        let seen = match (&self.wish, std::mem::take(&mut self.partly)) {
            (Wish::End(_), _) => return false,
            (Wish::Read(ranges), partly) => {
                let mut lists = match partly {
                    Partly::Read(lists) => lists,
                    _ => Vec::new(),
                };
                // A range that no machine here writes is as if it were read with the next list.
                while let Some(range) = ranges.get(lists.len()) {
                    lists.extend(world.read(std::slice::from_ref(range)).ranges);
                    if changes(range) {
                        break;
                    }
                }
                if lists.len() < ranges.len() {
                    self.partly = Partly::Read(lists);
                    return false;
                }
                Input::Read(Reading {
                    revision: world.revision,
                    ranges: lists,
                })
            }
            (Wish::Commit(txn), partly) => {
                let (mut commit, order) = match partly {
                    Partly::Commit(commit, order) => (commit, order),
                    _ => {
                        let mut commit = OrderedCommit::new(txn.clone());
                        let order = commit.step(StepResult::Start);
                        (commit, order)
                    }
                };
                let result = world.execute(&order);
                match commit.step(result) {
                    CommitStep::Done(TxnOutcome::Committed(revision)) => Input::Committed(revision),
                    CommitStep::Done(TxnOutcome::Conflict) => Input::Conflict,
                    order => {
                        self.partly = Partly::Commit(commit, order);
                        return world.revision != before;
                    }
                }
            }
        };
        self.conflicts += usize::from(seen == Input::Conflict);
        self.wish = self.machine.step(seen);
        world.revision != before
    }

    /// Runs alone to the end; alone, nothing can conflict more than once.
    pub fn finish(&mut self, world: &mut World) -> End {
        for _ in 0..200 {
            if let Some(end) = self.end() {
                return end.clone();
            }
            self.go(world);
        }
        panic!("a machine that runs alone does not end: {self:?}");
    }
}

/// Whether machines write what is there.
fn changes(range: &KeyRange) -> bool {
    let (KeyRange::Key(path) | KeyRange::Prefix(path)) = range;
    path.starts_with("/calico/ipam/v2/") && path != "/calico/ipam/v2/config"
}

/// Runs one machine alone.
pub fn run(world: &mut World, machine: Any) -> End {
    Actor::start(machine).finish(world)
}

pub fn view(world: &World) -> IpamData {
    let ranges = all_ranges();
    let mut view = IpamData::default();
    view.absorb(&ranges, world.read(&ranges));
    view
}

/// Findings that no crash excuses. They must be absent after every single commit.
pub fn faults(world: &World, now: Timestamp) -> Vec<Inconsistency> {
    let mut findings = check(&view(world), now);
    findings.retain(|finding| {
        let between = world.ordered && matches!(finding, Inconsistency::NoAffinity(..));
        finding.is_fault() && !is_excused(world, finding) && !between
    });
    findings
}

/// Findings that an order of writes leaves where a transaction would not, also at rest: a handle
/// may count too much, never too little (IPAM-2); and when one process of a host claims a block
/// that another gives back, the claim of a block that names nobody any more may stay (IPAM-3),
/// until the host's next request drops it.
pub fn is_excused(world: &World, finding: &Inconsistency) -> bool {
    let given_back = matches!(finding, Inconsistency::Affinity { named: None, .. });
    world.ordered && (given_back || counts_too_much(finding))
}

/// A handle counts more than its block holds.
pub fn counts_too_much(finding: &Inconsistency) -> bool {
    let Inconsistency::Count { counted, held, .. } = finding else {
        return false;
    };
    counted.is_some_and(|counted| counted > *held)
}

/// The addresses that the data says a handle holds.
pub fn held_by(world: &World, handle: &HandleId) -> BTreeSet<IpAddr> {
    let view = view(world);
    let blocks = view.blocks.values();
    blocks
        .flat_map(|known| known.value.allocated())
        .filter(|(_, _, a)| a.handle_id.as_deref() == Some(handle.as_str()))
        .map(|(_, address, _)| address)
        .collect()
}
