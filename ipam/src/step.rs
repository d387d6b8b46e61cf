//! The contract between a machine and whoever drives it. Values only.

use caracal_model::{KeyRange, KeyValue, Txn};

/// A consistent answer to [`Step::Read`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The revision at which all ranges were read.
    pub revision: i64,
    /// One list for each range, in the order asked.
    pub ranges: Vec<Vec<KeyValue>>,
}

/// Input of a machine: the outcome of its last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing yet: the first step.
    Start,
    /// The answer to [`Step::Read`].
    Read(Reading),
    /// The transaction of [`Step::Commit`] was carried out at this revision.
    Committed(i64),
    /// The transaction of [`Step::Commit`] found something changed; nothing was written.
    Conflict,
}

/// Next step of a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<T, E> {
    /// All of these, at one revision.
    Read(Vec<KeyRange>),
    /// This transaction.
    Commit(Txn),
    /// The end, with the result.
    Done(T),
    /// It cannot be done, and trying again would not help. Lost races are never reported here.
    Failed(E),
}

impl<T, E> Step<T, E> {
    /// Converts the outcome, keeps the wishes.
    pub fn map<U, F>(self, done: impl FnOnce(T) -> U, failed: impl FnOnce(E) -> F) -> Step<U, F> {
        match self {
            Self::Read(ranges) => Step::Read(ranges),
            Self::Commit(txn) => Step::Commit(txn),
            Self::Done(value) => Step::Done(done(value)),
            Self::Failed(error) => Step::Failed(failed(error)),
        }
    }
}

/// One request. Call [`Machine::step`] with [`Input::Start`], carry out what it returns, and call
/// again with the outcome. Anything unexpected makes a machine start over, which is always safe.
pub trait Machine {
    /// Result of a finished machine.
    type Output;
    /// Why a machine gives up.
    type Error;

    /// The next step, given the outcome of the last.
    fn step(&mut self, seen: Input) -> Step<Self::Output, Self::Error>;
}
