//! Points in time as Calico's data writes them. Pure: the time itself comes in as an argument.

use std::fmt;
use std::time::{Duration, SystemTime};

/// A point in time, UTC, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    nanos: u64,
}

impl From<SystemTime> for Timestamp {
    /// Times before 1970 become 1970; times after 2554 become 2554.
    fn from(time: SystemTime) -> Self {
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self {
            nanos: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Timestamp {
    /// From nanoseconds since 1970.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Nanoseconds since 1970.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.nanos
    }

    /// Time since an earlier point; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }

    /// `2026-01-05T10:11:12Z`.
    #[must_use]
    pub fn rfc3339(self) -> String {
        let (year, month, day, hour, minute, second) = self.fields();
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }

    /// `2026-01-05T10:11:12.000003Z`, as Kubernetes' `MicroTime` has it. Later texts sort behind
    /// earlier ones.
    #[must_use]
    pub fn rfc3339_micros(self) -> String {
        let mut text = self.rfc3339();
        text.pop();
        let micros = self.nanos % 1_000_000_000 / 1000;
        format!("{text}.{micros:06}Z")
    }

    /// Go's default text of a UTC time: `2026-01-05 10:12:00.5 +0000 UTC`.
    #[must_use]
    pub fn go_utc(self) -> String {
        let (year, month, day, hour, minute, second) = self.fields();
        let nanos = self.nanos % 1_000_000_000;
        let mut fraction = String::new();
        if nanos != 0 {
            fraction = format!(".{nanos:09}");
            fraction.truncate(fraction.trim_end_matches('0').len());
        }
        format!(
            "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{fraction} +0000 UTC"
        )
    }

    /// Reads RFC 3339 with `Z` or a numeric offset.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let (date, rest) = text.split_once(['T', 't', ' '])?;
        let mut date = date.splitn(3, '-').map(str::parse::<u64>);
        let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
        let zone = rest.find(['Z', 'z', '+', '-'])?;
        let (clock, zone) = rest.split_at(zone);
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
        let mut clock = clock.splitn(3, ':').map(str::parse::<u64>);
        let (hour, minute, second) = (
            clock.next()?.ok()?,
            clock.next()?.ok()?,
            clock.next()?.ok()?,
        );
        if !(1970..2554).contains(&year)
            || !(1..=12).contains(&month)
            || !(1..=31).contains(&day)
            || hour > 23
            || minute > 59
            || second > 60
        {
            return None;
        }
        let mut nanos = 0;
        if !fraction.is_empty() {
            let digits: String = fraction
                .chars()
                .chain("000000000".chars())
                .take(9)
                .collect();
            nanos = digits.parse().ok()?;
        }
        let seconds = days_before(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        let seconds = i64::try_from(seconds).ok()? - offset(zone)?;
        Some(Self {
            nanos: u64::try_from(seconds).ok()? * 1_000_000_000 + nanos,
        })
    }

    fn fields(self) -> (u64, u64, u64, u64, u64, u64) {
        let seconds = self.nanos / 1_000_000_000;
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        // Proleptic Gregorian calendar with years that start in March, so that a leap day is a
        // year's last.
        let shifted = days + 719_468;
        let (era, of_era) = (shifted / 146_097, shifted % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        (year, month, day, rest / 3600, rest / 60 % 60, rest % 60)
    }
}

/// Days from 1970-01-01 to a date.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = zone.split_at_checked(1)?;
    let (hours, minutes) = rest.split_once(':')?;
    let seconds = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
    Some(if sign == "-" { -seconds } else { seconds })
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors() {
        let t = Timestamp::from_nanos(1_767_607_920_500_000_000);
        assert_eq!(t.rfc3339(), "2026-01-05T10:12:00Z");
        assert_eq!(t.rfc3339_micros(), "2026-01-05T10:12:00.500000Z");
        assert_eq!(t.go_utc(), "2026-01-05 10:12:00.5 +0000 UTC");
        assert_eq!(Timestamp::parse_rfc3339("2026-01-05T10:12:00.5Z"), Some(t));
        assert_eq!(
            Timestamp::parse_rfc3339("2026-01-05T12:12:00.500+02:00"),
            Some(t)
        );
        assert_eq!(
            Timestamp::from_nanos(0).go_utc(),
            "1970-01-01 00:00:00 +0000 UTC"
        );
        let leap = Timestamp::parse_rfc3339("2024-02-29T23:59:59Z").unwrap();
        assert_eq!(leap.rfc3339(), "2024-02-29T23:59:59Z");
        for bad in [
            "",
            "2026-01-05",
            "2026-13-05T10:12:00Z",
            "2026-01-05T10:12Z",
            "x-01-05T10:12:00Z",
        ] {
            assert_eq!(Timestamp::parse_rfc3339(bad), None, "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn round_trip(seconds in 0u64..17_000_000_000) {
            let t = Timestamp::from_nanos(seconds * 1_000_000_000);
            proptest::prop_assert_eq!(Timestamp::parse_rfc3339(&t.rfc3339()), Some(t));
        }
    }
}
