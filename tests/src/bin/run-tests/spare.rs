//! Room for more scenarios than the usual number: many wait for most of their time, and cores that
//! idle make a run longer.

use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Between two looks at the cores.
const LOOK: Duration = Duration::from_secs(1);
/// Looks in a row that find the cores idle, before one more scenario starts.
const LOOKS: usize = 3;
/// Share of the cores' time that idles then, in percent.
const IDLE: u64 = 45;

/// Time of all cores since the machine started, in ticks: idle, and in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoreTime {
    idle: u64,
    all: u64,
}

impl CoreTime {
    /// From the first line of `/proc/stat`.
    fn parse(text: &str) -> Option<Self> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?;
        let numbers: Option<Vec<u64>> =
            numbers.split_whitespace().map(|n| n.parse().ok()).collect();
        let numbers = numbers?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
        let first = numbers.get(..8)?;
        Some(Self {
            idle: first[3] + first[4],
            all: first.iter().sum(),
        })
    }

    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Idle share since an earlier time, in percent.
    fn idle_since(self, before: Self) -> u64 {
        let all = self.all.saturating_sub(before.all).max(1);
        100 * self.idle.saturating_sub(before.idle) / all
    }
}

/// Lets one more scenario after the other start while the cores idle.
#[derive(Debug, Default)]
pub(crate) struct SpareCores(Mutex<()>);

impl SpareCores {
    /// Waits until the cores have been idle for some seconds; one caller at a time, so that each
    /// sees what those before it have started. False: nothing is left to run, or nobody says how
    /// busy the cores are.
    pub(crate) fn wait(&self, is_left: impl Fn() -> bool) -> bool {
        let _turn = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut before) = CoreTime::now() else {
            return false;
        };
        let mut idle = 0;
        while idle < LOOKS {
            if !is_left() {
                return false;
            }
            thread::sleep(LOOK);
            let Some(now) = CoreTime::now() else {
                return false;
            };
            idle = match now.idle_since(before) {
                IDLE.. => idle + 1,
                _ => 0,
            };
            before = now;
        }
        is_left()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_read_and_compared() {
        let text = "cpu  100 0 50 800 50 0 10 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let before = CoreTime::parse(text).unwrap();
        assert_eq!(
            before,
            CoreTime {
                idle: 850,
                all: 1010
            }
        );
        let after = CoreTime {
            idle: 910,
            all: 1130,
        };
        assert_eq!(after.idle_since(before), 50);
        assert_eq!(before.idle_since(before), 0);
        assert_eq!(CoreTime::parse("cpu0 1 2"), None);
        assert!(CoreTime::now().is_some());
    }

    #[test]
    fn nobody_waits_when_nothing_is_left() {
        assert!(!SpareCores::default().wait(|| false));
    }
}
