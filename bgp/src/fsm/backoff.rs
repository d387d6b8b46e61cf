//! How long to wait before the next attempt.

use std::time::Duration;

/// Wait after the first failed connection. Short: in a cluster the usual cause is a peer that
/// starts at the same moment.
const CONNECT_BASE: Duration = Duration::from_secs(1);
/// Longest wait between connections: what a node that comes back waits at most for its thousand
/// peers, at about a hundred attempts per second while it is away.
const CONNECT_CAP: Duration = Duration::from_secs(15);
/// Wait after the first protocol error. Errors repeat until a person changes something, so it is
/// longer.
const ERROR_BASE: Duration = Duration::from_secs(2);
/// Longest wait after protocol errors.
const ERROR_CAP: Duration = Duration::from_secs(30);

/// Sessions that may fall soon after they came up without a wait before the next one: a node that
/// is restarted twice is no fault.
const FREE_FLAPS: u32 = 3;
/// Wait after the first session beyond that.
const FLAP_BASE: Duration = Duration::from_secs(1);
/// Longest wait after sessions that fell: below the restart time, so that a peer's kept routes
/// outlast it.
const FLAP_CAP: Duration = Duration::from_secs(60);

/// Counts failures in a row and turns them into waits.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    failures: u32,
    /// Sessions in a row that fell soon after they came up.
    flaps: u32,
    seed: u64,
}

impl Backoff {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            failures: 0,
            flaps: 0,
            seed,
        }
    }

    /// Sessions in a row that fell soon after they came up.
    pub(super) const fn flaps(&self) -> u32 {
        self.flaps
    }

    /// Goes on from this number of them.
    pub(super) const fn resume(&mut self, flaps: u32) {
        self.flaps = flaps;
    }

    /// A session was good for a while: the next failure is the first.
    pub(super) const fn reset(&mut self) {
        self.failures = 0;
        self.flaps = 0;
    }

    /// A session fell soon after it came up: how many did in a row, and the IdleHoldTime if these
    /// are too many (RFC 4271 §8.1.1, DampPeerOscillations).
    pub(super) fn after_flap(&mut self) -> (u32, Option<Duration>) {
        self.flaps = self.flaps.saturating_add(1);
        let over = self.flaps.checked_sub(FREE_FLAPS + 1);
        let wait = over.map(|over| FLAP_BASE.saturating_mul(1 << over.min(8)).min(FLAP_CAP));
        (self.flaps, wait.map(|wait| self.jitter(wait, 0.75)))
    }

    /// The wait after a connection that failed or broke.
    pub(super) fn after_failure(&mut self) -> Duration {
        self.next(CONNECT_BASE, CONNECT_CAP)
    }

    /// The wait after a protocol error.
    pub(super) fn after_error(&mut self) -> Duration {
        self.next(ERROR_BASE, ERROR_CAP)
    }

    fn next(&mut self, base: Duration, cap: Duration) -> Duration {
        let wait = base.saturating_mul(1 << self.failures.min(8)).min(cap);
        self.failures = self.failures.saturating_add(1);
        // Half of it is chance, so that two peers that failed together do not dial together again.
        self.jitter(wait, 0.5)
    }

    /// `duration`, shortened by a factor between `least` and 1 (RFC 4271 §10 wants 0.75 for its
    /// timers).
    pub(super) fn jitter(&mut self, duration: Duration, least: f64) -> Duration {
        duration.mul_f64(least + (1.0 - least) * self.fraction())
    }

    /// Between 0 and 1, from the seed (the splitmix64 sequence).
    fn fraction(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let high = u32::try_from(z >> 32).unwrap_or(u32::MAX);
        f64::from(high) / f64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_half_the_base_to_the_cap_and_differ_by_seed() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..20).map(|_| backoff.after_failure()).collect::<Vec<_>>()
        };
        let one = waits(1);
        assert_ne!(one, waits(2));
        assert!(
            one[0] >= CONNECT_BASE / 2 && one[0] <= CONNECT_BASE,
            "{one:?}"
        );
        assert!(one.iter().all(|wait| *wait <= CONNECT_CAP), "{one:?}");
        assert!(
            one[10..].iter().all(|wait| *wait >= CONNECT_CAP / 2),
            "{one:?}"
        );
        let mut backoff = Backoff::new(1);
        backoff.after_error();
        backoff.after_error();
        backoff.reset();
        assert!(backoff.after_error() <= ERROR_BASE);
    }

    #[test]
    fn rfc4271_10_jitter_stays_between_its_bounds() {
        let mut backoff = Backoff::new(7);
        let waits: Vec<Duration> = (0..1000)
            .map(|_| backoff.jitter(Duration::from_secs(100), 0.75))
            .collect();
        assert!(
            waits
                .iter()
                .all(|w| (75.0..=100.0).contains(&w.as_secs_f64()))
        );
        assert!(waits.iter().any(|w| w.as_secs_f64() < 80.0));
        assert!(waits.iter().any(|w| w.as_secs_f64() > 95.0));
    }
}
