//! Durations as Go writes them: `120s`, `1h30m`, `1.5s`, `250ms`, `0`.

use std::time::Duration;

/// The text is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a duration; expected a number with a unit (h, m, s, ms, us, ns) such as 120s or 1m30s"
)]
pub(crate) struct GoDurationError(pub String);

/// Reads a duration.
///
/// # Errors
/// [`GoDurationError`] with the text; negative durations are refused too.
pub(crate) fn parse(text: &str) -> Result<Duration, GoDurationError> {
    let error = || GoDurationError(text.to_owned());
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(error());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(error)?;
        let (number, tail) = rest.split_at(end);
        let (unit, tail) = unit(tail).ok_or_else(error)?;
        total = scale(number, unit)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(error)?;
        rest = tail;
    }
    Ok(total)
}

/// Length of the unit at the start of a text in nanoseconds, and what follows.
fn unit(text: &str) -> Option<(u64, &str)> {
    // The longer spelling first: `m` is also the beginning of `ms`.
    const UNITS: [(&str, u64); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    UNITS
        .iter()
        .find_map(|(name, length)| Some((*length, text.strip_prefix(name)?)))
}

/// `number` (digits with at most one point) times `unit` nanoseconds.
fn scale(number: &str, unit: u64) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let mut nanos = whole.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.chars() {
        place /= 10;
        nanos = nanos.checked_add(u64::from(digit.to_digit(10)?) * place)?;
    }
    Some(Duration::from_nanos(nanos))
}

/// The nearest whole number of seconds, halves up.
#[must_use]
pub(crate) fn round_to_seconds(duration: Duration) -> Duration {
    let up = u64::from(duration.subsec_nanos() >= 500_000_000);
    Duration::from_secs(duration.as_secs().saturating_add(up))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_vectors() {
        for (text, millis) in [
            ("0", 0),
            ("120s", 120_000),
            ("1h30m", 5_400_000),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            (".5s", 500),
            ("250ms", 250),
            ("+3s", 3_000),
            ("1000us", 1),
            ("2m0.25s", 120_250),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "s",
            "5",
            "-5s",
            "1..5s",
            "5 s",
            "1d",
            ".s",
            "99999999999h",
            "1,5s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_second() {
        for (millis, seconds) in [(1_499, 1), (1_500, 2), (0, 0), (499, 0), (90_000, 90)] {
            assert_eq!(
                round_to_seconds(Duration::from_millis(millis)),
                Duration::from_secs(seconds)
            );
        }
    }
}
