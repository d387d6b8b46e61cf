//! Faults of a [`MemoryStore`] on demand.
//!
//! Counting starts at one: `fail_commit(1, …)` means the next commit. Faults for different commits
//! can be scripted together; each happens once. What is switched on stays on until it is switched
//! off.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::MemoryStore;
use crate::store::StoreError;

/// Fault injected into a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// Answers [`TxnOutcome::Conflict`](caracal_model::TxnOutcome::Conflict) though all
    /// conditions hold.
    Conflict,
    /// Nothing is written, the caller gets [`StoreError::Unavailable`].
    Lost,
    /// The writes happen, but the caller gets [`StoreError::Unavailable`].
    AnswerLost,
    /// The datastore refuses with this reason.
    Refused(String),
}

type Hook = Box<dyn FnOnce(&MemoryStore) + Send>;

/// Scripted faults.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) latency: Duration,
    unavailable: bool,
    pub(super) stalled: bool,
    /// Streams opened before the last cut are dead.
    pub(super) cuts: u64,
    pub(super) cut_reason: String,
    commit_number: u64,
    commit_faults: BTreeMap<u64, CommitFault>,
    commit_hooks: BTreeMap<u64, Hook>,
    read_number: u64,
    read_faults: BTreeMap<u64, String>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("latency", &self.latency)
            .field("unavailable", &self.unavailable)
            .field("stalled", &self.stalled)
            .field("commit_faults", &self.commit_faults)
            .finish_non_exhaustive()
    }
}

pub(super) fn unavailable(reason: &str) -> StoreError {
    StoreError::Unavailable {
        endpoints: "memory".to_owned(),
        reason: reason.to_owned(),
    }
}

impl Faults {
    pub(super) fn check_available(&self) -> Result<(), StoreError> {
        if self.unavailable {
            return Err(unavailable("switched off (scripted)"));
        }
        Ok(())
    }

    pub(super) fn next_commit(&mut self) -> (Option<Hook>, Option<CommitFault>) {
        self.commit_number += 1;
        (
            self.commit_hooks.remove(&self.commit_number),
            self.commit_faults.remove(&self.commit_number),
        )
    }

    pub(super) fn next_read(&mut self) -> Result<(), StoreError> {
        self.read_number += 1;
        match self.read_faults.remove(&self.read_number) {
            Some(reason) => Err(unavailable(&reason)),
            None => Ok(()),
        }
    }

    pub(super) fn cut(&mut self, reason: &str) {
        self.cuts += 1;
        reason.clone_into(&mut self.cut_reason);
    }
}

/// # Faults
impl MemoryStore {
    /// The `nth` commit from now on suffers `fault`.
    pub fn fail_commit(&self, nth: u64, fault: CommitFault) {
        let faults = &mut self.lock().faults;
        faults
            .commit_faults
            .insert(faults.commit_number + nth, fault);
    }

    /// The `nth` commit from now on gets a conflict though its conditions hold.
    pub fn conflict_on_commit(&self, nth: u64) {
        self.fail_commit(nth, CommitFault::Conflict);
    }

    /// Runs `hook` right before the `nth` commit from now on: another writer who comes in between.
    pub fn before_commit(&self, nth: u64, hook: impl FnOnce(&Self) + Send + 'static) {
        let faults = &mut self.lock().faults;
        faults
            .commit_hooks
            .insert(faults.commit_number + nth, Box::new(hook));
    }

    /// The `nth` read from now on is not answered.
    #[cfg(test)]
    pub(crate) fn fail_read(&self, nth: u64, reason: &str) {
        let faults = &mut self.lock().faults;
        faults
            .read_faults
            .insert(faults.read_number + nth, reason.to_owned());
    }

    /// Every call takes this long, in tokio's time.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().faults.latency = latency;
    }

    /// Switches the datastore off: calls fail and open streams end with an error. Or on again.
    pub fn set_unavailable(&self, unavailable: bool) {
        let mut state = self.lock();
        state.faults.unavailable = unavailable;
        if unavailable {
            state.faults.cut("switched off (scripted)");
        }
        state.wake_all();
    }

    /// All open watches end with an error.
    #[cfg(test)]
    pub(crate) fn cut_watches(&self, reason: &str) {
        let mut state = self.lock();
        state.faults.cut(reason);
        state.wake_all();
    }

    /// Watches say nothing at all, neither changes nor progress, as on a half-open connection,
    /// until switched off. Then those still open catch up. Applies to later watches too.
    #[cfg(test)]
    pub(crate) fn stall_watches(&self, stalled: bool) {
        let mut state = self.lock();
        state.faults.stalled = stalled;
        state.wake_all();
    }
}
