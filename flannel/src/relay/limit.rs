//! How often senders are told.

use std::time::Duration;

/// Answers at once, after a while without any.
const BURST: u32 = 50;
/// Answers for each second.
const PER_SECOND: u32 = 1000;

/// A token bucket for ICMP answers (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)): 50 at once and 1000 a
/// second, Linux's own limits (`icmp_msgs_burst`, `icmp_msgs_per_sec`).
#[derive(Clone, Debug)]
pub struct AnswerLimit {
    tokens: u32,
    /// Up to when tokens were given, from an epoch of the caller's.
    until: Duration,
}

impl Default for AnswerLimit {
    fn default() -> Self {
        Self {
            tokens: BURST,
            until: Duration::ZERO,
        }
    }
}

impl AnswerLimit {
    /// True when an answer may be sent; it is counted. `now` is the time since an epoch that stays
    /// the same.
    pub fn allows(&mut self, now: Duration) -> bool {
        let interval = Duration::from_secs(1) / PER_SECOND;
        let passed = now.saturating_sub(self.until);
        let given = u32::try_from(passed.as_micros() / interval.as_micros()).unwrap_or(BURST);
        if given > 0 {
            self.tokens = self.tokens.saturating_add(given).min(BURST);
            self.until = now;
        }
        let allowed = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allowed
    }
}
