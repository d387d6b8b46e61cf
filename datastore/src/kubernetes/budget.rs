//! Requests a second of a process: those that forwarding waits for are sent at once, whatever was
//! sent before them, and the others wait for their turn.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Seconds for which unused requests are saved up.
const SAVED: f64 = 2.0;

/// A token bucket; one token a request.
#[derive(Debug)]
pub(super) struct RequestBudget {
    per_second: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Below zero: so many requests wait.
    tokens: f64,
    /// When that was.
    at: Instant,
}

impl RequestBudget {
    /// A full bucket; zero requests a second are no limit.
    pub(super) fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        let tokens = per_second * SAVED;
        let at = Instant::now();
        Self {
            per_second,
            bucket: Mutex::new(Bucket { tokens, at }),
        }
    }

    /// Waits for this request's turn. Whoever asked first goes first.
    pub(super) async fn turn(&self) {
        let debt = self.take(f64::NEG_INFINITY);
        if debt > 0.0 && self.per_second > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(debt / self.per_second)).await;
        }
    }

    /// Counts a request that does not wait. Those that wait already are not put off by it.
    pub(super) fn count(&self) {
        self.take(0.0);
    }

    /// Takes a token, not below `least`; what is owed then.
    fn take(&self, least: f64) -> f64 {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        let most = self.per_second * SAVED;
        bucket.tokens = (bucket.tokens + since * self.per_second).min(most);
        bucket.at = now;
        if bucket.tokens - 1.0 >= least {
            bucket.tokens -= 1.0;
        }
        -bucket.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_saved_goes_at_once_and_the_rest_by_the_second() {
        let budget = RequestBudget::new(10);
        let start = Instant::now();
        for _ in 0..20 {
            budget.turn().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..30 {
            budget.turn().await;
        }
        let took = start.elapsed();
        assert!((2.9..3.1).contains(&took.as_secs_f64()), "{took:?}");
        // Saved again, and no more than before.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let start = Instant::now();
        for _ in 0..21 {
            budget.turn().await;
        }
        let took = start.elapsed();
        assert!((0.09..0.11).contains(&took.as_secs_f64()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_requests_neither_wait_nor_put_others_off() {
        let budget = RequestBudget::new(10);
        let start = Instant::now();
        for _ in 0..1_000 {
            budget.count();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        budget.turn().await;
        let took = start.elapsed();
        assert!(took <= Duration::from_millis(101), "{took:?}");
        // Among requests that wait, nothing is lost.
        let waiting = futures_util::future::join_all((0..20).map(|_| budget.turn()));
        budget.count();
        waiting.await;
        let took = start.elapsed();
        assert!((2.0..2.3).contains(&took.as_secs_f64()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_waits() {
        let budget = RequestBudget::new(0);
        let start = Instant::now();
        for _ in 0..1_000 {
            budget.turn().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
