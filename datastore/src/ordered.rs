//! [`OrderedCommit`]: a transaction on a store that changes one key at a time, each with
//! compare-and-swap. Pure: it says what to do next and is told what came of it.
//!
//! Kubernetes' API has no transactions. Calico's nodes write the objects of one operation in an
//! order in which every reader, and everybody who comes after a crash, is safe; this is the same
//! order for a transaction of IPAM's machines, which say what belongs together:
//!
//! 1. handles that hold more than before (a handle may count too much, never too little);
//! 2. affinities that are pending or being given back;
//! 3. blocks; then blocks that go;
//! 4. affinities that are confirmed; then affinities that go;
//! 5. everything that is not IPAM's, deletions last;
//! 6. handles that hold less than before.
//!
//! The keys that a transaction compares are read before the first write, so that most lost races
//! write nothing. A race that is lost later, or a write that is refused, takes back what a
//! transaction that takes addresses has written, each key only if nobody changed it since
//! (`ORDER-2`); one that gives back stays where it is, for that is the safe side.
//!
//! * `ORDER-1`: no key is written without its revision, or its absence, being compared by the
//!   store.
//! * `ORDER-2`: nothing that somebody else wrote is ever overwritten, not even to take back.
//! * `ORDER-3`: a block that names an address as held is written after its handle counts it.
//! * `ORDER-4`: a confirmed affinity is written after its block, and removed after it.
//!
//! Weaker than a transaction: a key that is compared and not written may change between the look
//! and the writes, and a crash in between leaves a handle that counts too much, a block whose
//! affinity is pending or gone, or an affinity without a block. IPAM's machines take all of these
//! up.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use caracal_model::{
    AffinityState, Block, BlockAffinity, Compare, InsertEach, IpamHandle, Key, KeyValue, Prefix,
    Txn, TxnOutcome, TxnWrite,
};

/// Next order of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// Read these keys; the answer is [`StepResult::Found`].
    Look(Vec<String>),
    /// Set a key that does not exist.
    Create(String, Vec<u8>),
    /// Replace a value whose last change was at this revision.
    Replace(String, i64, Vec<u8>),
    /// Remove a value whose last change was at this revision.
    Delete(String, i64),
    /// The end.
    Done(TxnOutcome),
}

/// Outcome of the last order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// Nothing was ordered yet.
    Start,
    /// The stored ones of the keys that were read.
    Found(Vec<KeyValue>),
    /// It was written at this revision.
    Written(i64),
    /// The key is not as it was said to be; nothing was written.
    Conflict,
    /// The store refused the write for another reason; nothing was written, and the caller reports
    /// it when this ends.
    Refused,
}

/// Places in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    HandleUp,
    AffinityUnconfirmed,
    BlockPut,
    BlockDelete,
    AffinityConfirmed,
    AffinityDelete,
    OtherPut,
    OtherDelete,
    HandleDown,
}

/// One write, with what it replaces.
#[derive(Clone, Debug)]
struct PlannedWrite {
    rank: Rank,
    key: String,
    /// Value before the write: revision and value.
    before: Option<(i64, Vec<u8>)>,
    /// Value after the write.
    after: Option<Vec<u8>>,
}

/// A key that was written, and what it takes to take it back.
#[derive(Clone, Debug)]
struct WrittenKey {
    key: String,
    /// The revision of our write; `None` = we deleted it.
    revision: Option<i64>,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum CommitState {
    Begun,
    Looking,
    /// The first of `queue` is under way.
    Writing,
    /// The first of `queue`, an affinity, was changed by somebody else; it is being looked at.
    Following,
    /// The last of `written` is being taken back.
    Undoing,
    Over,
}

/// A transaction being carried out key by key.
#[derive(Clone, Debug)]
pub struct OrderedCommit {
    txn: Txn,
    state: CommitState,
    queue: VecDeque<PlannedWrite>,
    written: Vec<WrittenKey>,
    /// Whether what was written is taken back when the rest cannot be.
    takes: bool,
    revision: i64,
}

impl OrderedCommit {
    /// Nothing is ordered yet.
    #[must_use]
    pub fn new(txn: Txn) -> Self {
        Self {
            txn,
            state: CommitState::Begun,
            queue: VecDeque::new(),
            written: Vec::new(),
            takes: false,
            revision: 0,
        }
    }

    /// The next order, given what came of the last.
    pub fn step(&mut self, result: StepResult) -> CommitStep {
        match (&self.state, result) {
            (CommitState::Begun, _) => self.read_first(),
            (CommitState::Looking, StepResult::Found(found)) => {
                let found = found
                    .into_iter()
                    .map(|kv| (kv.key.clone(), kv))
                    .insert_each();
                if !self.plan(&found) {
                    return self.end(TxnOutcome::Conflict);
                }
                self.state = CommitState::Writing;
                self.next_write()
            }
            (CommitState::Writing, StepResult::Written(revision)) => {
                self.wrote(revision);
                self.next_write()
            }
            (CommitState::Writing, StepResult::Conflict) => self.lost(),
            (CommitState::Writing, _) => self.give_up(),
            (CommitState::Following, StepResult::Found(found)) => self.follow(&found),
            (CommitState::Undoing, result) => {
                let last = self.written.pop();
                // Somebody changed it since, and it is not ours to take back. What a block may hold
                // has to be counted.
                if !matches!(result, StepResult::Written(_))
                    && last.is_some_and(|last| matches!(Key::parse(&last.key), Ok(Key::Block(_))))
                {
                    self.written.retain(|w| !is_handle(&w.key));
                }
                self.take_back()
            }
            _ => self.end(TxnOutcome::Conflict),
        }
    }

    /// The first of the queue is not as it was.
    fn lost(&mut self) -> CommitStep {
        let Some(change) = self.queue.front() else {
            return self.give_up();
        };
        match (change.rank, Key::parse(&change.key)) {
            // Another process of the same owner may have claimed the block meanwhile, too.
            (Rank::AffinityConfirmed, Ok(Key::Affinity(_, cidr))) => {
                self.state = CommitState::Following;
                CommitStep::Look(vec![change.key.clone(), Key::Block(cidr).to_path()])
            }
            // The block is ours already: what is left of its former owner's claim is that owner's.
            (Rank::AffinityDelete, _) if self.takes => {
                self.queue.pop_front();
                self.next_write()
            }
            _ => self.give_up(),
        }
    }

    /// The affinity follows its block, which holds our addresses by now whoever wrote it since: the
    /// claim is confirmed where the block names its owner and nobody is giving it back.
    fn follow(&mut self, found: &[KeyValue]) -> CommitStep {
        self.state = CommitState::Writing;
        let Some(change) = self.queue.front_mut() else {
            return self.give_up();
        };
        let Ok(Key::Affinity(owner, _)) = Key::parse(&change.key) else {
            return self.give_up();
        };
        let (affinity, block): (Vec<_>, Vec<_>) = found.iter().partition(|kv| kv.key == change.key);
        let Some(Ok(block)) = block.first().map(|kv| Block::from_json(&kv.value)) else {
            return self.give_up();
        };
        let named = block.owner().as_ref() == Some(&owner);
        let affinity = affinity.first();
        let state = affinity.map(|kv| BlockAffinity::from_json(&kv.value).map(|a| a.state));
        match state {
            None if named => change.before = None,
            Some(Ok(AffinityState::Pending)) if named => {
                change.before = affinity.map(|kv| (kv.mod_revision, kv.value.clone()));
            }
            Some(Err(_)) => return self.give_up(),
            _ => drop(self.queue.pop_front()),
        }
        self.next_write()
    }

    fn give_up(&mut self) -> CommitStep {
        if self.takes {
            self.state = CommitState::Undoing;
            return self.take_back();
        }
        self.end(TxnOutcome::Conflict)
    }

    fn end(&mut self, outcome: TxnOutcome) -> CommitStep {
        self.state = CommitState::Over;
        CommitStep::Done(outcome)
    }

    /// Reads what is compared by its revision, and what is replaced.
    fn read_first(&mut self) -> CommitStep {
        let created = |key: &str| {
            let absent = |c: &Compare| matches!(c, Compare::Absent(k) if k == key);
            let put = |w: &TxnWrite| matches!(w, TxnWrite::Put(k, _) if k == key);
            self.txn.compare.iter().any(absent) && self.txn.writes.iter().any(put)
        };
        let compared = self.txn.compare.iter().map(Compare::key);
        let mut keys: Vec<String> = compared
            .chain(self.txn.writes.iter().map(TxnWrite::key))
            // That it is absent, the store itself sees to.
            .filter(|key| !created(key))
            .map(str::to_owned)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        self.state = CommitState::Looking;
        match keys.is_empty() {
            true => self.step(StepResult::Found(Vec::new())),
            false => CommitStep::Look(keys),
        }
    }

    /// Makes the changes and puts them in order. False: something is not as compared.
    fn plan(&mut self, found: &BTreeMap<String, KeyValue>) -> bool {
        let holds = |compare: &Compare| match compare {
            Compare::Absent(key) => !found.contains_key(key),
            Compare::Unchanged(key, revision) => found
                .get(key)
                .is_some_and(|kv| kv.mod_revision == *revision),
        };
        if !self.txn.compare.iter().all(holds) {
            return false;
        }
        let mut changes = Vec::new();
        for write in &self.txn.writes {
            let known = found.get(write.key());
            changes.extend(changes_of(write, known));
        }
        changes.sort_by_key(|change| change.rank);
        self.takes = changes.iter().any(|change| match change.rank {
            Rank::HandleUp | Rank::AffinityConfirmed => true,
            Rank::BlockPut => change.before.is_none(),
            _ => false,
        });
        self.queue = changes.into();
        true
    }

    fn next_write(&mut self) -> CommitStep {
        let Some(change) = self.queue.front() else {
            return self.end(TxnOutcome::Committed(self.revision));
        };
        let key = change.key.clone();
        // A handle is written twice when it holds more here and less there.
        let own = self.written.iter().rev().find(|w| w.key == key);
        let revision = match own {
            Some(own) => own.revision,
            None => change.before.as_ref().map(|(revision, _)| *revision),
        };
        match (revision, &change.after) {
            (None, Some(value)) => CommitStep::Create(key, value.clone()),
            (Some(revision), Some(value)) => CommitStep::Replace(key, revision, value.clone()),
            (Some(revision), None) => CommitStep::Delete(key, revision),
            // Nothing is there and nothing is to be.
            (None, None) => {
                self.queue.pop_front();
                self.next_write()
            }
        }
    }

    fn wrote(&mut self, revision: i64) {
        let Some(change) = self.queue.pop_front() else {
            return;
        };
        self.revision = self.revision.max(revision);
        self.written.push(WrittenKey {
            revision: change.after.is_some().then_some(revision),
            key: change.key,
            before: change.before.map(|(_, value)| value),
            after: change.after,
        });
    }

    fn take_back(&mut self) -> CommitStep {
        loop {
            let Some(last) = self.written.last() else {
                return self.end(TxnOutcome::Conflict);
            };
            let key = last.key.clone();
            match (last.revision, &last.before) {
                (Some(revision), None) => return CommitStep::Delete(key, revision),
                (Some(revision), Some(before)) => {
                    let value = as_before(&key, before, last.after.as_deref());
                    return CommitStep::Replace(key, revision, value);
                }
                // A deletion stays one: who takes addresses deletes only what is of no use.
                (None, _) => drop(self.written.pop()),
            }
        }
    }
}

fn is_handle(key: &str) -> bool {
    matches!(Key::parse(key), Ok(Key::Handle(_)))
}

/// The value before our write, as a value after it: a block's sequence number never goes back, for
/// somebody may have seen the one in between.
fn as_before(key: &str, before: &[u8], after: Option<&[u8]>) -> Vec<u8> {
    if let Ok(Key::Block(_)) = Key::parse(key)
        && let (Ok(mut block), Some(Ok(written))) =
            (Block::from_json(before), after.map(Block::from_json))
    {
        block.sequence_number = written.sequence_number.wrapping_add(1);
        return block.to_json();
    }
    before.to_vec()
}

fn changes_of(write: &TxnWrite, known: Option<&KeyValue>) -> Vec<PlannedWrite> {
    let before = known.map(|kv| (kv.mod_revision, kv.value.clone()));
    let (key, after) = match write {
        TxnWrite::Put(key, value) => (key.clone(), Some(value.clone())),
        TxnWrite::Delete(key) => (key.clone(), None),
    };
    if before.is_none() && after.is_none() {
        return Vec::new();
    }
    let kind = Key::parse(&key);
    if let (Ok(Key::Handle(_)), Some(new)) = (&kind, &after) {
        return handle_changes(key, before, new);
    }
    let rank = match (kind, &after) {
        (Ok(Key::Handle(_)), _) => Rank::HandleDown,
        (Ok(Key::Block(_)), Some(_)) => Rank::BlockPut,
        (Ok(Key::Block(_)), None) => Rank::BlockDelete,
        (Ok(Key::Affinity(..)), None) => Rank::AffinityDelete,
        (Ok(Key::Affinity(..)), Some(value)) => match BlockAffinity::from_json(value) {
            Ok(affinity) if affinity.state == AffinityState::Confirmed => Rank::AffinityConfirmed,
            _ => Rank::AffinityUnconfirmed,
        },
        (_, Some(_)) => Rank::OtherPut,
        (_, None) => Rank::OtherDelete,
    };
    vec![PlannedWrite {
        rank,
        key,
        before,
        after,
    }]
}

/// A handle that holds more is written before the blocks, one that holds less behind them, and one
/// that does both twice.
fn handle_changes(key: String, before: Option<(i64, Vec<u8>)>, new: &[u8]) -> Vec<PlannedWrite> {
    let change = |rank, after: Vec<u8>| PlannedWrite {
        rank,
        key: key.clone(),
        before: before.clone(),
        after: Some(after),
    };
    let parsed = |value: &[u8]| IpamHandle::from_json(value).ok();
    let old = before.as_ref().and_then(|(_, value)| parsed(value));
    let (Some(old), Some(wanted)) = (old, parsed(new)) else {
        return vec![change(Rank::HandleUp, new.to_vec())];
    };
    let more = |a: &IpamHandle, b: &IpamHandle| {
        let held =
            |handle: &IpamHandle, block: &Prefix| handle.block.get(block).copied().unwrap_or(0);
        a.block.iter().any(|(block, count)| *count > held(b, block))
    };
    match (more(&wanted, &old), more(&old, &wanted)) {
        (true, false) => vec![change(Rank::HandleUp, new.to_vec())],
        (false, _) => vec![change(Rank::HandleDown, new.to_vec())],
        (true, true) => {
            let mut most = wanted;
            for (block, count) in old.block {
                let held = most.block.entry(block).or_default();
                *held = count.max(*held);
            }
            vec![
                change(Rank::HandleUp, most.to_json()),
                change(Rank::HandleDown, new.to_vec()),
            ]
        }
    }
}
