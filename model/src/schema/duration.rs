//! Go's durations, as far as their form goes: what they mean is their readers' business.

/// True for `90s`, `1h30m`, `1.5s`, `250ms`, `0`.
pub(super) fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
    if text == "0" {
        return true;
    }
    let mut rest = text;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let Some(end) = rest.find(|c| !is_number(c)) else {
            return false;
        };
        let (number, tail) = rest.split_at(end);
        let end = tail.find(is_number).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        if number.parse::<f64>().is_err() || !UNITS.contains(&unit) {
            return false;
        }
        rest = tail;
    }
    !text.is_empty()
}
