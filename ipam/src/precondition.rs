//! [`Conditional`]: a machine whose every transaction also demands that its preconditions still
//! hold. What was true when somebody decided to release is thereby true in the very moment of the
//! release.

use caracal_model::{Compare, KeyRange, KeyValue};

use crate::error::MAX_PRECONDITIONS;
use crate::step::{Input, Machine, Step};

/// Why a conditional machine ends without having done all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreconditionError<E: std::error::Error> {
    /// A precondition does not hold any more. Nothing was written since.
    #[error("{key} changed since it was looked at")]
    Broken {
        /// Key that changed since it was read.
        key: String,
    },
    /// There are more preconditions than a transaction has room for. Nothing was written.
    #[error("{0} preconditions do not fit into one transaction, which takes {MAX_PRECONDITIONS}")]
    TooLarge(usize),
    /// The machine's own reason.
    #[error(transparent)]
    Inner(E),
}

/// A machine with preconditions.
#[derive(Clone, Debug)]
pub struct Conditional<M> {
    machine: M,
    preconditions: Vec<Compare>,
    looking: bool,
}

impl<M: Machine> Conditional<M> {
    /// A machine that writes only while all of `proof` holds.
    #[must_use]
    pub const fn new(machine: M, preconditions: Vec<Compare>) -> Self {
        Self {
            machine,
            preconditions,
            looking: false,
        }
    }

    fn keys_to_read(&mut self) -> Vec<KeyRange> {
        self.looking = true;
        let keys = self.preconditions.iter().map(Compare::key);
        keys.map(|key| KeyRange::Key(key.to_owned())).collect()
    }
}

fn holds(compare: &Compare, found: &[KeyValue]) -> bool {
    match compare {
        Compare::Absent(_) => found.is_empty(),
        Compare::Unchanged(_, revision) => found.iter().any(|kv| kv.mod_revision == *revision),
    }
}

impl<M: Machine> Machine for Conditional<M>
where
    M::Error: std::error::Error,
{
    type Output = M::Output;
    type Error = PreconditionError<M::Error>;

    fn step(&mut self, seen: Input) -> Step<M::Output, Self::Error> {
        if self.preconditions.len() > MAX_PRECONDITIONS {
            return Step::Failed(PreconditionError::TooLarge(self.preconditions.len()));
        }
        let seen = match seen {
            // Conflict of the key or of a precondition? The machine must not try again on a broken
            // precondition.
            Input::Conflict if !self.preconditions.is_empty() => {
                return Step::Read(self.keys_to_read());
            }
            Input::Read(reading) if self.looking => {
                self.looking = false;
                let answers = self.preconditions.iter().zip(&reading.ranges);
                for (compare, found) in answers {
                    if !holds(compare, found) {
                        let key = compare.key().to_owned();
                        return Step::Failed(PreconditionError::Broken { key });
                    }
                }
                Input::Conflict
            }
            seen => seen,
        };
        match self
            .machine
            .step(seen)
            .map(|output| output, PreconditionError::Inner)
        {
            Step::Commit(mut txn) => {
                for compare in &self.preconditions {
                    if !txn.compare.iter().any(|c| c.key() == compare.key()) {
                        txn.compare.push(compare.clone());
                    }
                }
                Step::Commit(txn)
            }
            step => step,
        }
    }
}
