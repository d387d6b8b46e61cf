//! Memory is given back when the table has become smaller.

use std::time::{Duration, Instant};

use super::Rib;
use super::jobs::Kind;

/// A table of fewer prefixes is small.
const MUCH: usize = 4096;

/// After this time sessions have usually dropped what the table has dropped.
const TIDY_AGAIN: Duration = Duration::from_secs(2);

/// Tables with fewer prefixes are not tidied.
const LITTLE: usize = 256;

impl Rib {
    /// Gives memory back when the table has become much smaller, or holds many sets that nobody may
    /// use.
    ///
    /// That is done again a little later: what was on its way to peers was still in use, and a few
    /// sets here and there hold whole pages of the allocator.
    pub(super) fn tidy(&mut self, now: Instant) {
        let size = self.table.len();
        self.peak = self.peak.max(size);
        let much_smaller = self.peak > MUCH && size < self.peak / 4;
        let again = self.tidy_at.is_some_and(|at| at <= now);
        if again {
            self.tidy_at = None;
        } else if self.tidy_at.is_none() && self.peak > LITTLE && size < self.peak / 2 {
            self.tidy_at = Some(now + TIDY_AGAIN);
        }
        if much_smaller || again {
            self.peak = size;
            self.peers.paths.shrink();
        }
        if self.interner.take_due() || much_smaller || again {
            self.queue(Kind::Sets);
        }
        self.tidy_next_hops();
    }
}
