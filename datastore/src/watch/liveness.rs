//! When the datastore was last heard from, and what follows for the view. Pure: the time comes in
//! as an argument.

use tokio::time::Instant;

use super::{Freshness, WatchOptions};

#[derive(Clone, Debug, PartialEq, Eq)]
enum WatchState {
    /// A list is complete and a stream open.
    Following,
    /// There is no stream, but the datastore answers: a list is on its way.
    Behind(String),
    /// The datastore does not answer.
    Lost(String),
}

#[derive(Debug)]
pub(super) struct Liveness {
    state: WatchState,
    heard: Instant,
    ever_followed: bool,
}

impl Liveness {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: WatchState::Lost("nothing was read yet".to_owned()),
            heard: now,
            ever_followed: false,
        }
    }

    /// A list is complete and the watch from its revision stands.
    pub(super) fn following(&mut self, now: Instant) {
        self.state = WatchState::Following;
        self.heard = now;
        self.ever_followed = true;
    }

    /// The stream said something.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The stream ended because we were too slow; the datastore is there.
    pub(super) fn behind(&mut self, reason: String) {
        // A datastore that was never read cannot be merely behind.
        self.state = if self.ever_followed {
            WatchState::Behind(reason)
        } else {
            WatchState::Lost(reason)
        };
    }

    /// The datastore does not answer.
    pub(super) fn lost(&mut self, reason: String) {
        self.state = WatchState::Lost(reason);
    }

    pub(super) fn freshness(&self, now: Instant, options: &WatchOptions) -> Freshness {
        let since = self.heard;
        let silent = now.saturating_duration_since(since);
        let silence = || "the watch says nothing, not even that it is alive".to_owned();
        match &self.state {
            WatchState::Following if silent < options.lagging_after => Freshness::Fresh,
            WatchState::Following if silent < options.stale_after => Freshness::Lagging {
                since,
                reason: silence(),
            },
            WatchState::Following => Freshness::Stale {
                since,
                reason: silence(),
            },
            WatchState::Behind(reason) if silent < options.stale_after => Freshness::Lagging {
                since,
                reason: reason.clone(),
            },
            WatchState::Behind(reason) | WatchState::Lost(reason) => Freshness::Stale {
                since,
                reason: reason.clone(),
            },
        }
    }

    /// True when the stream is to be given up.
    pub(super) fn is_dead(&self, now: Instant, options: &WatchOptions) -> bool {
        self.state == WatchState::Following
            && now.saturating_duration_since(self.heard) >= options.reconnect_after
    }

    /// The next moment at which an answer above changes by itself.
    pub(super) fn next_deadline(&self, now: Instant, options: &WatchOptions) -> Option<Instant> {
        let limits: &[_] = match self.state {
            WatchState::Following => &[
                options.lagging_after,
                options.reconnect_after,
                options.stale_after,
            ],
            WatchState::Behind(_) => &[options.stale_after],
            WatchState::Lost(_) => &[],
        };
        limits
            .iter()
            .map(|limit| self.heard + *limit)
            .filter(|at| *at > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn state(liveness: &Liveness, now: Instant) -> &'static str {
        liveness.freshness(now, &WatchOptions::default()).as_str()
    }

    #[test]
    fn watch_3_silence_is_lagging_then_dead_then_stale() {
        let options = WatchOptions::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut liveness = Liveness::new(start);
        assert_eq!(state(&liveness, start), "stale");
        assert_eq!(liveness.next_deadline(start, &options), None);
        liveness.following(start);
        let expected = [
            (0, "fresh", false),
            (7, "fresh", false),
            (8, "lagging", false),
            (11, "lagging", false),
            (12, "lagging", true),
            (20, "stale", true),
        ];
        for (seconds, word, dead) in expected {
            assert_eq!(state(&liveness, after(seconds)), word, "{seconds}");
            assert_eq!(
                liveness.is_dead(after(seconds), &options),
                dead,
                "{seconds}"
            );
        }
        for (now, next) in [(0, Some(8)), (8, Some(12)), (12, Some(20)), (20, None)] {
            let deadline = liveness.next_deadline(after(now), &options);
            assert_eq!(deadline, next.map(after));
        }
        liveness.heard(after(21));
        assert_eq!(state(&liveness, after(22)), "fresh");
        liveness.behind("compacted".into());
        assert_eq!(state(&liveness, after(22)), "lagging");
        assert_eq!(state(&liveness, after(41)), "stale");
        liveness.lost("refused".into());
        let freshness = liveness.freshness(after(22), &options);
        assert_eq!(freshness.since(), Some(after(21)));
        assert_eq!(freshness.reason(), Some("refused"));
        assert_eq!(freshness.as_str(), "stale");
    }

    #[test]
    fn what_was_never_read_is_stale_not_behind() {
        let start = Instant::now();
        let mut liveness = Liveness::new(start);
        liveness.behind("compacted".into());
        assert_eq!(state(&liveness, start), "stale");
    }
}
