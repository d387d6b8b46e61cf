//! Log lines and pauses while the datastore does not answer.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use crate::rarely::Rarely;

/// Log lines of an outage: rarely, and one when it is over.
#[derive(Debug)]
pub(super) struct Outage {
    told: Rarely,
    since: Option<Instant>,
    tries: u32,
}

impl Outage {
    pub(super) const fn new(interval: Duration) -> Self {
        Self {
            told: Rarely::new(interval),
            since: None,
            tries: 0,
        }
    }

    pub(super) fn failed(&mut self, now: Instant, reason: &str) {
        let since = *self.since.get_or_insert(now);
        self.tries += 1;
        if !self.told.is_due(now, reason) {
            return;
        }
        tracing::warn!(
            reason,
            tries = self.tries,
            seconds = (now - since).as_secs(),
            "the datastore cannot be followed; the last view stays in use, nothing is deleted, trying again"
        );
    }

    pub(super) fn over(&mut self, now: Instant, revision: i64) {
        let Some(since) = self.since.take() else {
            return;
        };
        self.tries = 0;
        if self.told.over() {
            tracing::info!(
                revision,
                seconds = (now - since).as_secs(),
                "the datastore is followed again"
            );
        }
    }
}

/// Between half of the pause and all of it, so that a cluster's nodes spread out.
pub(super) fn jittered(pause: Duration) -> Duration {
    const STEPS: u32 = 1000;
    // Every RandomState has other keys; that is random enough for spreading.
    let random = RandomState::new().build_hasher().finish() % u64::from(STEPS);
    let step = u32::try_from(random).unwrap_or(0);
    pause / 2 + pause / 2 * step / STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_over_the_upper_half() {
        let pause = Duration::from_secs(2);
        let all: std::collections::BTreeSet<_> = (0..100).map(|_| jittered(pause)).collect();
        assert!(all.len() > 20, "{}", all.len());
        assert!(all.iter().all(|p| *p >= pause / 2 && *p <= pause));
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }
}
