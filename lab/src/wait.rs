//! Waiting for a condition, with a deadline and the last value seen. No other module of the lab,
//! and no test, sleeps.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// The first pause between two looks; it doubles, so that what takes a millisecond is seen after a
/// millisecond, and what takes long is not looked at a thousand times a second.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
/// The longest pause after a look that costs little.
const LONGEST_PAUSE: Duration = Duration::from_millis(40);
/// A look at a node is a program and the node's answer: to pause for so many times what it took
/// leaves the cores to what is waited for, the more the busier they are.
const PAUSE_FOR_A_LOOK: u32 = 5;
const LONGEST_PAUSE_FOR_A_LOOK: Duration = Duration::from_millis(150);
/// What takes a minute need not be seen within a tenth of a second: after a costly look so small a
/// part of the time that was waited may pass, up to a time in which no state comes and goes.
const PART_OF_THE_WAIT: u32 = 50;
const LONGEST_PAUSE_OF_A_WAIT: Duration = Duration::from_millis(400);
/// With this variable a wait of this long is told on standard error: what a scenario waits for.
const TELL: &str = "CARACAL_LAB_TELL_WAITS";
const TOLD: Duration = Duration::from_secs(5);

/// The pause after one of `before`, when the look between them took `look` and the wait so far
/// `waited`.
fn next_pause(before: Duration, look: Duration, waited: Duration) -> Duration {
    let for_look = look * PAUSE_FOR_A_LOOK;
    let longest = match for_look <= LONGEST_PAUSE {
        true => LONGEST_PAUSE,
        false => for_look
            .min(LONGEST_PAUSE_FOR_A_LOOK)
            .max((waited / PART_OF_THE_WAIT).min(LONGEST_PAUSE_OF_A_WAIT)),
    };
    (before * 2).min(longest)
}

/// The deadline passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("waited {after:.1?} for {what}; last seen: {last}")]
pub struct Timeout {
    /// Awaited condition.
    pub what: String,
    /// Time that was waited.
    pub after: Duration,
    /// The last value, or why there was none.
    pub last: String,
}

/// Looks until `look` gives a value, or until `deadline` (scaled by [`scale`]) has passed.
///
/// # Errors
/// [`Timeout`] with the last error `look` gave.
pub fn wait_until<T, E: Display>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, E>,
) -> Result<T, Timeout> {
    let start = Instant::now();
    let deadline = scaled(deadline);
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        let last = match look() {
            Ok(value) => {
                tell(what, start.elapsed());
                return Ok(value);
            }
            Err(last) => last,
        };
        let took = began.elapsed();
        let after = start.elapsed();
        if after >= deadline {
            return Err(Timeout {
                what: what.to_owned(),
                after,
                last: last.to_string(),
            });
        }
        std::thread::sleep(pause.min(deadline.saturating_sub(after)));
        pause = next_pause(pause, took, after);
    }
}

fn tell(what: &str, took: Duration) {
    if took >= TOLD && std::env::var_os(TELL).is_some() {
        eprintln!("{:5.1} s for {what}", took.as_secs_f64());
    }
}

/// Looks until `predicate` holds for what `look` gives.
///
/// # Errors
/// [`Timeout`] with the last value.
pub fn wait_for<T: std::fmt::Debug>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> T,
    predicate: impl Fn(&T) -> bool,
) -> Result<T, Timeout> {
    wait_until(deadline, what, || {
        let value = look();
        if predicate(&value) {
            Ok(value)
        } else {
            Err(format!("{value:?}"))
        }
    })
}

/// By how much deadlines are stretched: `CARACAL_LAB_TIME_SCALE`, or 6 in a User Mode Linux guest,
/// where starting a process takes 15 ms instead of one and there is one CPU.
#[must_use]
pub fn scale() -> f64 {
    let asked = std::env::var("CARACAL_LAB_TIME_SCALE")
        .ok()
        .and_then(|s| s.parse::<f64>().ok());
    match asked {
        Some(factor) if factor.is_finite() && factor > 0.0 => factor,
        _ if in_uml() => 6.0,
        _ => 1.0,
    }
}

/// A deadline, stretched by [`scale`].
#[must_use]
pub fn scaled(deadline: Duration) -> Duration {
    deadline.mul_f64(scale())
}

/// Are we in the guest of `with-ipip-kernel`?
#[must_use]
pub fn in_uml() -> bool {
    std::env::var_os("CARACAL_UML").is_some_and(|v| v == "1")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_value_ends_the_wait() {
        let mut n = 0;
        let value = wait_until(Duration::from_secs(5), "three", || {
            n += 1;
            if n == 3 { Ok(n) } else { Err(n) }
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn a_costly_look_leaves_the_cores_to_what_is_waited_for() {
        let millis = Duration::from_millis;
        let pauses = |look, waited| {
            let next = move |before: &Duration| Some(next_pause(*before, look, waited));
            std::iter::successors(Some(FIRST_PAUSE), next)
        };
        let soon = |look| pauses(look, millis(1500));
        assert_eq!(soon(millis(1)).nth(3), Some(millis(4)), "short at first");
        assert_eq!(soon(millis(1)).nth(20), Some(millis(40)));
        assert_eq!(soon(millis(20)).nth(20), Some(millis(100)));
        assert_eq!(soon(millis(1500)).nth(20), Some(millis(150)));
        // Less often after a while, where a look costs something.
        let late = |look, seconds: u64| pauses(look, millis(seconds * 1000)).nth(20);
        assert_eq!(late(millis(1), 60), Some(millis(40)));
        assert_eq!(late(millis(20), 4), Some(millis(100)));
        assert_eq!(late(millis(20), 10), Some(millis(200)));
        assert_eq!(late(millis(20), 60), Some(millis(400)));
    }

    #[test]
    fn a_timeout_tells_the_last_value() {
        let mut n = 0;
        let error = wait_for(
            Duration::from_millis(30),
            "a hundred",
            || {
                n += 1;
                n
            },
            |n| *n == 100,
        )
        .unwrap_err();
        assert_eq!(error.last, n.to_string());
        assert!(
            error.to_string().contains("for a hundred; last seen: "),
            "{error}"
        );
    }
}
