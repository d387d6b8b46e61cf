//! Log lines and pauses while the datastore does not answer.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// Longest time between two log lines of one outage.
const RARELY: Duration = Duration::from_secs(3600);
/// Reasons that are told at once: where each try has another one they are told as if it were one.
const REASONS: usize = 16;

/// Rate-limits log lines: one when an outage begins, one after the interval, then each after twice
/// the time of the one before, up to an hour; one when it is over. Another reason is told at once,
/// and outages that follow each other within the interval for the same one are told once.
#[derive(Debug)]
pub(super) struct Outage {
    interval: Duration,
    /// Time from the last line to the next one.
    pause: Duration,
    since: Option<Instant>,
    logged: Option<Instant>,
    /// Reasons that were told, and when, as long as that keeps them from being told again.
    told: Vec<(String, Instant)>,
    /// True when this outage was logged, so that its end is too.
    announced: bool,
    tries: u32,
}

impl Outage {
    pub(super) const fn new(interval: Duration) -> Self {
        Self {
            interval,
            pause: interval,
            since: None,
            logged: None,
            told: Vec::new(),
            announced: false,
            tries: 0,
        }
    }

    pub(super) fn failed(&mut self, now: Instant, reason: &str) {
        let since = *self.since.get_or_insert(now);
        self.tries += 1;
        if !self.is_due(now, reason) {
            return;
        }
        tracing::warn!(
            reason,
            tries = self.tries,
            seconds = (now - since).as_secs(),
            "the datastore cannot be followed; the last view stays in use, nothing is deleted, trying again"
        );
    }

    /// True when a line may be written now; it is taken for written.
    fn is_due(&mut self, now: Instant, reason: &str) -> bool {
        let pause = self.pause;
        self.told.retain(|(_, at)| now < *at + pause);
        let is_news = self.told.iter().all(|(told, _)| told != reason) && self.told.len() < REASONS;
        if self.logged.is_some_and(|logged| now < logged + pause) {
            if !is_news {
                return false;
            }
        } else {
            self.logged = Some(now);
            if self.announced {
                self.pause = (2 * pause).min(RARELY.max(self.interval));
            }
        }
        self.announced = true;
        self.told.retain(|(told, _)| told != reason);
        self.told.push((reason.to_owned(), now));
        true
    }

    pub(super) fn over(&mut self, now: Instant, revision: i64) {
        let Some(since) = self.since.take() else {
            return;
        };
        (self.tries, self.pause) = (0, self.interval);
        if std::mem::take(&mut self.announced) {
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

    /// Seconds at which something is written while nothing answers, tried each second.
    fn lines(
        outage: &mut Outage,
        begin: Instant,
        seconds: std::ops::Range<u64>,
        reason: impl Fn(u64) -> String,
    ) -> Vec<u64> {
        let mut due = |second: &u64| {
            let now = begin + Duration::from_secs(*second);
            outage.since.get_or_insert(now);
            outage.is_due(now, &reason(*second))
        };
        seconds.filter(|second| due(second)).collect()
    }

    fn refused(_second: u64) -> String {
        "connection refused".to_owned()
    }

    #[test]
    fn a_dead_datastore_is_told_at_once_and_then_rarely() {
        let (mut outage, begin) = (Outage::new(Duration::from_secs(30)), Instant::now());
        let day = lines(&mut outage, begin, 0..86_400, refused);
        assert_eq!(day[..6], [0, 30, 90, 210, 450, 930]);
        assert_eq!(day.len(), 8 + 22, "then one an hour: {day:?}");
        // The next one is told at once again.
        outage.over(begin + Duration::from_secs(86_400), 7);
        let again = lines(&mut outage, begin, 90_000..90_100, refused);
        assert_eq!(again, [90_000, 90_030, 90_090]);
    }

    #[test]
    fn one_that_flaps_is_told_once_an_interval() {
        let (mut outage, begin) = (Outage::new(Duration::from_secs(30)), Instant::now());
        let mut told = 0;
        for second in (0..300).step_by(5) {
            told += lines(&mut outage, begin, second..second + 2, refused).len();
            outage.over(begin + Duration::from_secs(second + 2), 7);
        }
        assert_eq!(told, 10);
    }

    #[test]
    fn another_reason_is_told_at_once() {
        let (mut outage, begin) = (Outage::new(Duration::from_secs(30)), Instant::now());
        let right = |second: u64| format!("cannot list {}", second / 5);
        let told = lines(&mut outage, begin, 0..20, right);
        assert_eq!(told, [0, 5, 10, 15]);
        // Also of the next outage; where each try has another one it is not told each time.
        outage.over(begin + Duration::from_secs(20), 7);
        let told = lines(&mut outage, begin, 21..22, refused);
        assert_eq!(told, [21]);
        let (mut outage, each) = (Outage::new(Duration::from_secs(30)), |n: u64| n.to_string());
        let told = lines(&mut outage, begin, 0..86_400, each);
        assert!(told.len() < 600, "{}", told.len());
    }

    #[test]
    fn pauses_are_spread_over_the_upper_half() {
        let pause = Duration::from_secs(2);
        let all: std::collections::BTreeSet<_> = (0..100).map(|_| jittered(pause)).collect();
        assert!(all.len() > 20, "{}", all.len());
        assert!(all.iter().all(|p| *p >= pause / 2 && *p <= pause));
        assert_eq!(jittered(Duration::ZERO), Duration::ZERO);
    }
}
