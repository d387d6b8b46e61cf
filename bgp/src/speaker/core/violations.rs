//! Routes that do not come from the owner of their prefix, or lie over nodes, in the log: who sends
//! many of them writes few lines.

use std::time::{Duration, Instant};

use tracing::warn;

use super::{Core, now};

/// Shortest interval of two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Number of violations logged so far, and the time of the last line.
#[derive(Debug, Default)]
pub(super) struct Logged {
    violations: u64,
    at: Option<Instant>,
}

impl Core {
    /// Logs what has come since the last line.
    pub(super) fn log_violations(&mut self) {
        let seen = self.rib.screened().violations;
        let logged = &self.logged;
        let rests = logged.at.is_some_and(|at| now().duration_since(at) < PAUSE);
        if seen == logged.violations || rests {
            return;
        }
        let status = self.rib.origin_status();
        if let Some((prefix, peer)) = status.last_violation {
            warn!(
                %prefix, %peer, count = seen - logged.violations, mode = ?status.mode,
                "a peer announces a prefix that is not its to announce; caracal bgp explain says why"
            );
        }
        self.logged = Logged {
            violations: seen,
            at: Some(now()),
        };
    }
}
