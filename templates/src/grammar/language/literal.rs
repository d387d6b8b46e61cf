//! Numbers, addresses and prefixes as they are written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_bgp::Value;
use caracal_model::Prefix;

use super::super::lexer::{ParseFault, Res, hex_number, skip};

/// A number, an address, or a prefix; `None`: something else stands there.
pub(super) fn literal(s: &str) -> Res<'_, Option<Value>> {
    let at = skip(s);
    let Some((address, rest)) = address(at) else {
        if !at.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok((s, None));
        }
        let (rest, number) = hex_number(at)?;
        if rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return failure(at, "a number");
        }
        return Ok((rest, Some(Value::Int(number))));
    };
    let digits = rest.strip_prefix('/').unwrap_or_default();
    let end = digits.find(|c: char| !c.is_ascii_digit());
    let (len, after) = digits.split_at(end.unwrap_or(digits.len()));
    if len.is_empty() {
        return Ok((rest, Some(Value::Ip(address))));
    }
    let text = &at[..at.len() - after.len()];
    match Prefix::parse_strict(text) {
        Ok(prefix) => Ok((after, Some(Value::Prefix(prefix)))),
        Err(error) => failure(at, format!("a prefix ({error})")),
    }
}

fn failure<'a, T>(at: &'a str, expected: impl Into<String>) -> Res<'a, T> {
    Err(nom::Err::Failure(ParseFault::new(at, expected)))
}

/// An address, when the text begins with one.
fn address(s: &str) -> Option<(IpAddr, &str)> {
    let run = |part: fn(char) -> bool| s.find(|c| !part(c)).unwrap_or(s.len());
    let end = run(|c| c.is_ascii_hexdigit() || c == ':');
    let word = &s[..end];
    // A number and the colon of a label are no address.
    if word.contains("::") || word.matches(':').count() > 2 {
        let longer = run(|c| c.is_ascii_hexdigit() || c == ':' || c == '.');
        let mut ends = [longer, end, end.saturating_sub(1)].into_iter();
        return ends.find_map(|end| {
            let address: Ipv6Addr = s.get(..end)?.parse().ok()?;
            Some((IpAddr::V6(address), &s[end..]))
        });
    }
    // Exactly four numbers: behind them a point may begin a property or a range.
    let mut end = 0;
    for part in 0..4 {
        if part > 0 {
            end += usize::from(s[end..].starts_with('.'));
        }
        let digits = s[end..].find(|c: char| !c.is_ascii_digit());
        end += digits.unwrap_or(s.len() - end);
    }
    let address: Ipv4Addr = s[..end].parse().ok()?;
    Some((IpAddr::V4(address), &s[end..]))
}
