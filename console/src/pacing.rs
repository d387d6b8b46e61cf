//! How often the console does a thing: so many at once, and so many a second in the long run.

use std::time::Instant;

/// Questions at once.
const BURST: f64 = 100.0;
/// Questions a second.
const RATE: f64 = 25.0;
/// Handshakes of TLS for each question: there are those of clients that are refused, and each may
/// cost a millisecond of signing.
const HANDSHAKES: f64 = 4.0;

/// Counts questions, or handshakes.
#[derive(Debug)]
pub struct Pacer {
    left: f64,
    at: Instant,
    /// As many as for one question.
    each: f64,
}

impl Pacer {
    /// One that has answered nothing yet.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            at: now,
            each: 1.0,
        }
    }

    /// One of handshakes.
    #[must_use]
    pub const fn of_handshakes(now: Instant) -> Self {
        Self {
            left: BURST * HANDSHAKES,
            at: now,
            each: HANDSHAKES,
        }
    }

    /// True when one more may be answered now.
    pub fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * RATE * self.each).min(BURST * self.each);
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_at_once_and_few_in_the_long_run() {
        let start = Instant::now();
        let mut pacer = Pacer::new(start);
        let answered = (0..1000).filter(|_| pacer.take(start)).count();
        assert_eq!(answered, 100);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..1000).filter(|_| pacer.take(later)).count(), 25);
        // What was not used is not saved up beyond the burst.
        let much_later = start + Duration::from_secs(3600);
        assert_eq!((0..1000).filter(|_| pacer.take(much_later)).count(), 100);
        let mut handshakes = Pacer::of_handshakes(start);
        assert_eq!((0..1000).filter(|_| handshakes.take(start)).count(), 400);
        assert_eq!((0..1000).filter(|_| handshakes.take(later)).count(), 100);
    }
}
