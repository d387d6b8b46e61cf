//! One value against the rules of its kind: types, required fields, bounds.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::duration;
use super::types::{Rule, Type};
use crate::net::{Cidr, Family, Prefix};
use crate::resource::{AsNumber, ValueError, parse_mac};
use crate::selector::Selector;

/// Checks a mapping. `path` is its place in the table with the dot behind it, `shown` its place in
/// the value without. Fields that no rule knows are looked at elsewhere.
pub(super) fn object(
    rules: &[Rule],
    path: &str,
    shown: &str,
    value: &Value,
    faults: &mut Vec<ValueError>,
) {
    let Value::Object(fields) = value else {
        faults.push(mismatch(shown, value, "a mapping"));
        return;
    };
    for rule in rules {
        let Some(name) = rule.path.strip_prefix(path) else {
            continue;
        };
        if name.contains('.') {
            continue;
        }
        let place = format!("{shown}.{name}");
        match fields.get(name).filter(|value| !is_absent(value)) {
            Some(value) => field(rules, rule, &place, value, faults),
            None if rule.required => faults.push(ValueError(format!("{place} is required"))),
            None => {}
        }
    }
}

/// Go's clients write `null` and empty texts for what is not set.
pub(super) fn is_absent(value: &Value) -> bool {
    matches!(value, Value::Null) || value.as_str().is_some_and(str::is_empty)
}

fn field(rules: &[Rule], rule: &Rule, shown: &str, value: &Value, faults: &mut Vec<ValueError>) {
    let below = format!("{}.", rule.path);
    match (rule.holds, value) {
        (Type::Object, _) => object(rules, &below, shown, value, faults),
        (Type::Objects, Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                object(rules, &below, &format!("{shown}[{index}]"), item, faults);
            }
        }
        (Type::Objects, _) => faults.push(mismatch(shown, value, "a list")),
        (Type::List(inner), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                scalar(*inner, &format!("{shown}[{index}]"), item, faults);
            }
        }
        (Type::List(_), _) => faults.push(mismatch(shown, value, "a list")),
        (holds, _) => scalar(holds, shown, value, faults),
    }
}

fn mismatch(shown: &str, value: &Value, expected: &str) -> ValueError {
    const LONGEST: usize = 60;
    let mut seen = value.to_string();
    if let Some((end, _)) = seen.char_indices().nth(LONGEST) {
        seen.truncate(end);
        seen.push('…');
    }
    ValueError(format!("{shown} {seen}: expected {expected}"))
}

fn scalar(holds: Type, shown: &str, value: &Value, faults: &mut Vec<ValueError>) {
    if let Err(expected) = fits(holds, value) {
        faults.push(mismatch(shown, value, &expected));
    }
}

/// Checks the type of a value; the error is the expected form as text.
fn fits(holds: Type, value: &Value) -> Result<(), String> {
    let expect = |good: bool, what: &str| if good { Ok(()) } else { Err(what.to_owned()) };
    match holds {
        Type::Object | Type::Objects | Type::List(_) | Type::Any => return Ok(()),
        Type::Boolean => return expect(value.is_boolean(), "true or false"),
        Type::Integer(low, high) => {
            let inside = value.as_i64().is_some_and(|n| (low..=high).contains(&n));
            return expect(inside, &format!("a whole number of {low} to {high}"));
        }
        Type::AsNumber => {
            let number = serde_json::from_value::<AsNumber>(value.clone());
            return expect(
                number.is_ok(),
                "an AS number of 0 to 4294967295, or HIGH.LOW",
            );
        }
        Type::Ports => return expect(is_ports(value), "a port, or FIRST:LAST"),
        _ => {}
    }
    let Some(text) = value.as_str() else {
        return Err(format!("{}, as text", described(holds)));
    };
    match holds {
        Type::OneOf(all) => one_of(text, all, false),
        Type::OneOfAnyCase(all) => one_of(text, all, true),
        Type::Cidr(family) => cidr(text, family),
        Type::Selector => Selector::parse(text)
            .map(drop)
            .map_err(|error| format!("a selector such as rack == 'r1': {error}")),
        Type::AddressWithLength(family) => {
            let found = text.parse::<Cidr>().ok().map(|cidr| cidr.address);
            let found = found.or_else(|| text.parse().ok());
            expect(is_of(found, family), &described(holds))
        }
        Type::Address(family) => expect(is_of(text.parse().ok(), family), &described(holds)),
        Type::Peer => {
            let socket = text.parse::<std::net::SocketAddr>().is_ok();
            expect(socket || text.parse::<IpAddr>().is_ok(), &described(holds))
        }
        Type::Duration => expect(duration::is_duration(text), &described(holds)),
        Type::Mac => expect(parse_mac(text).is_some(), &described(holds)),
        Type::Community => expect(is_community(text), &described(holds)),
        Type::Interface => expect(is_interface(text), &described(holds)),
        _ => Ok(()),
    }
}

fn described(holds: Type) -> String {
    let of = |family: Option<Family>| match family {
        Some(family) => format!("an {family} address"),
        None => "an address".to_owned(),
    };
    match holds {
        Type::OneOf(all) | Type::OneOfAnyCase(all) => listed(all),
        Type::Cidr(_) => "ADDRESS/LENGTH such as 10.244.0.0/16".to_owned(),
        Type::AddressWithLength(family) => {
            format!("{}, with the length of its subnet or without", of(family))
        }
        Type::Address(family) => of(family),
        Type::Peer => "IP, IP:PORT or [IPv6]:PORT".to_owned(),
        Type::Duration => "a duration such as 90s or 1m30s".to_owned(),
        Type::Selector => "a selector such as rack == 'r1'".to_owned(),
        Type::Mac => "a MAC address such as 66:07:02:c1:cc:60".to_owned(),
        Type::Community => "a community as AS:VALUE or A:B:C".to_owned(),
        Type::Interface => "an interface or a pattern without blanks or quotes".to_owned(),
        _ => "a text".to_owned(),
    }
}

/// `A, B or C`.
fn listed(all: &[&str]) -> String {
    match all.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "nothing".to_owned(),
    }
}

fn one_of(text: &str, all: &[&str], any_case: bool) -> Result<(), String> {
    let same = |known: &&&str| known.eq_ignore_ascii_case(text);
    match all.iter().find(same) {
        Some(known) if any_case || *known == text => Ok(()),
        Some(known) => Err(format!("{}; did you mean {known}?", listed(all))),
        None => Err(listed(all)),
    }
}

fn cidr(text: &str, family: Option<Family>) -> Result<(), String> {
    let prefix = Prefix::parse_strict(text)
        .map_err(|error| format!("{}: {error}", described(Type::Cidr(None))))?;
    match family {
        Some(family) if prefix.family() != family => Err(format!("an {family} range")),
        _ => Ok(()),
    }
}

fn is_of(address: Option<IpAddr>, family: Option<Family>) -> bool {
    address.is_some_and(|address| family.is_none_or(|family| Family::of(address) == family))
}

/// RFC 1997 (two numbers of 16 bits) and RFC 8092 (three of 32 bits).
pub(super) fn is_community(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [_, _] => parts.iter().all(|part| part.parse::<u16>().is_ok()),
        [_, _, _] => parts.iter().all(|part| part.parse::<u32>().is_ok()),
        _ => false,
    }
}

fn is_interface(text: &str) -> bool {
    !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
}

fn is_ports(value: &Value) -> bool {
    let port = |text: &str| text.parse::<u16>().ok();
    match value {
        Value::Number(number) => number.as_u64().is_some_and(|n| n <= 65_535),
        Value::String(text) => match text.split_once(':') {
            None => port(text).is_some(),
            Some((first, last)) => port(first)
                .zip(port(last))
                .is_some_and(|(first, last)| first <= last),
        },
        _ => false,
    }
}

/// Looks up `spec.a.b`; `None` where it is not set.
pub(super) fn at<'a>(resource: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = resource;
    for part in path.split('.') {
        value = value
            .as_object()
            .and_then(|map: &Map<_, _>| map.get(part))?;
    }
    Some(value).filter(|value| !is_absent(value))
}
