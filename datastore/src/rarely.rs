//! Log lines about the same trouble: at once, and then rarely.

use std::time::Duration;

use tokio::time::Instant;

/// Time from the first line to the second one, where nobody says.
const INTERVAL: Duration = Duration::from_secs(30);
/// Longest time between two lines.
const LONGEST: Duration = Duration::from_secs(3600);
/// Reasons that are told at once: where each try has another one they are told as if it were one.
const REASONS: usize = 16;

/// When a reason is told that something fails again and again: at once, after the interval, then
/// each after twice the time of the one before, up to an hour. Another reason is told at once, and
/// troubles that follow each other within the interval for the same one are told once.
#[derive(Debug)]
pub struct Rarely {
    interval: Duration,
    /// Time from the last line to the next one.
    pause: Duration,
    logged: Option<Instant>,
    /// Reasons that were told, and when, as long as that keeps them from being told again.
    told: Vec<(String, Instant)>,
    /// True when this trouble was told, so that its end is too.
    announced: bool,
}

impl Default for Rarely {
    fn default() -> Self {
        Self::new(INTERVAL)
    }
}

impl Rarely {
    /// Nothing was told yet.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self {
            interval,
            pause: interval,
            logged: None,
            told: Vec::new(),
            announced: false,
        }
    }

    /// True when a reason is to be told now; it is taken for told.
    pub fn is_due(&mut self, now: Instant, reason: &str) -> bool {
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
                self.pause = (2 * pause).min(LONGEST.max(self.interval));
            }
        }
        self.announced = true;
        self.told.retain(|(told, _)| told != reason);
        self.told.push((reason.to_owned(), now));
        true
    }

    /// The trouble is over. True when it was told.
    pub fn over(&mut self) -> bool {
        self.pause = self.interval;
        std::mem::take(&mut self.announced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds at which something is written while nothing answers, tried each second.
    fn lines(
        rarely: &mut Rarely,
        begin: Instant,
        seconds: std::ops::Range<u64>,
        reason: impl Fn(u64) -> String,
    ) -> Vec<u64> {
        let mut due = |second: &u64| {
            let now = begin + Duration::from_secs(*second);
            rarely.is_due(now, &reason(*second))
        };
        seconds.filter(|second| due(second)).collect()
    }

    fn refused(_second: u64) -> String {
        "connection refused".to_owned()
    }

    #[test]
    fn what_stays_is_told_at_once_and_then_rarely() {
        let (mut rarely, begin) = (Rarely::new(Duration::from_secs(30)), Instant::now());
        let day = lines(&mut rarely, begin, 0..86_400, refused);
        assert_eq!(day[..6], [0, 30, 90, 210, 450, 930]);
        assert_eq!(day.len(), 8 + 22, "then one an hour: {day:?}");
        // The next one is told at once again.
        rarely.over();
        let again = lines(&mut rarely, begin, 90_000..90_100, refused);
        assert_eq!(again, [90_000, 90_030, 90_090]);
    }

    #[test]
    fn one_that_flaps_is_told_once_an_interval() {
        let (mut rarely, begin) = (Rarely::new(Duration::from_secs(30)), Instant::now());
        let mut told = 0;
        for second in (0..300).step_by(5) {
            told += lines(&mut rarely, begin, second..second + 2, refused).len();
            rarely.over();
        }
        assert_eq!(told, 10);
    }

    #[test]
    fn another_reason_is_told_at_once() {
        let (mut rarely, begin) = (Rarely::new(Duration::from_secs(30)), Instant::now());
        let right = |second: u64| format!("cannot list {}", second / 5);
        let told = lines(&mut rarely, begin, 0..20, right);
        assert_eq!(told, [0, 5, 10, 15]);
        // Also of the next rarely; where each try has another one it is not told each time.
        rarely.over();
        let told = lines(&mut rarely, begin, 21..22, refused);
        assert_eq!(told, [21]);
        let (mut rarely, each) = (Rarely::new(Duration::from_secs(30)), |n: u64| n.to_string());
        let told = lines(&mut rarely, begin, 0..86_400, each);
        assert!(told.len() < 600, "{}", told.len());
    }
}
