//! Memory is given back when the table has become smaller.

use std::time::{Duration, Instant};

use super::Rib;
use super::jobs::JobKind;

/// Fewest prefixes of a table that is tidied.
const LITTLE: usize = 256;

/// Time from the last shrinking of a table to its tidying. Much of what is withdrawn is announced
/// again soon, with the same attributes, and needs the same room; and sessions have dropped by then
/// what the table has.
const REST: Duration = Duration::from_secs(2);

/// A table that has become smaller, and waits to be tidied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tidy {
    /// Time at which it is tidied.
    pub(super) at: Instant,
    /// Prefixes of the table when that was decided.
    size: usize,
}

impl Rib {
    /// Gives memory back when the table has become much smaller and has come to rest, or holds many
    /// sets that nobody may use.
    ///
    /// A few sets here and there hold whole pages of the allocator: those that are still in the
    /// hands of sessions when the table looks for sets without users would keep much, so that it
    /// looks when the sessions are done.
    pub(super) fn tidy(&mut self, now: Instant) {
        let size = self.table.len();
        self.peak = self.peak.max(size);
        let smaller = self.peak > LITTLE && size < self.peak / 2;
        let mut rests = false;
        match self.tidy {
            None if smaller => self.tidy = Some(Tidy::at_rest(now, size)),
            Some(tidy) if tidy.at <= now => {
                // On its way down: not yet.
                let moves = size < tidy.size - tidy.size / 8;
                rests = smaller && !moves;
                self.tidy = moves.then(|| Tidy::at_rest(now, size));
            }
            _ => {}
        }
        if rests {
            self.peak = size;
            self.peers.paths.shrink();
            self.table.shrink();
        }
        if self.interner.take_due() || rests {
            self.queue(JobKind::Sets);
        }
        self.tidy_next_hops();
    }
}

impl Tidy {
    fn at_rest(now: Instant, size: usize) -> Self {
        Self {
            at: now + REST,
            size,
        }
    }
}
