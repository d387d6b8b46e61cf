//! Actors: machines of any kind behind one face, stepped one I/O at a time by a scheduler of the
//! test.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_ipam::{
    Assign, AssignIp, EnsureTunnel, Inconsistency, Input, IpamData, Machine, ReleaseAffinity,
    ReleaseHandle, ReleaseIps, ReleaseNode, Step, Timestamp, all_ranges, check,
};
use caracal_model::HandleId;
use caracal_model::txn::{Range, Txn, TxnOutcome};

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
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It took these.
    Took(Vec<IpAddr>),
    /// It released, or found nothing to do.
    Finished,
    /// It failed, with this sentence.
    Failed(String),
}

/// What it wants.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    Read(Vec<Range>),
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
}

impl Actor {
    pub fn start(mut machine: Any) -> Self {
        let wish = machine.step(Input::Start);
        Self {
            machine,
            wish,
            steps: 0,
            conflicts: 0,
        }
    }

    pub fn end(&self) -> Option<&End> {
        match &self.wish {
            Wish::End(end) => Some(end),
            _ => None,
        }
    }

    /// What it waits for.
    pub fn wish(&self) -> &Wish {
        &self.wish
    }

    /// Takes the answer to its wish from elsewhere.
    pub fn answer(&mut self, seen: Input) {
        self.wish = self.machine.step(seen);
    }

    /// Carries out the pending wish. Returns true when the world changed.
    pub fn go(&mut self, world: &mut World) -> bool {
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
    findings.retain(Inconsistency::is_fault);
    findings
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
