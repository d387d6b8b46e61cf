//! Places of a number, an address, a prefix or a text: a literal, the name of a constant, or a
//! number as an expression in parentheses.

use std::net::{IpAddr, Ipv4Addr};

use caracal_bgp::Value;
use caracal_model::Prefix;
use nom::Parser;

use super::language::{self, Named, Scope};
use super::lexer::{self, ParseFault, Res, ip_address, skip, symbol, token};

/// The constant whose name stands here. `None`: no such name is defined.
fn constant<'a, 's>(scope: &'s Scope<'a>, s: &'a str) -> Option<(&'a str, &'s Value)> {
    let (rest, name) = symbol(s).ok()?;
    match scope.find(name.value) {
        Some(Named::Constant(value)) => Some((rest, value)),
        _ => None,
    }
}

/// A literal, or else a constant that `take` makes something of; `what` it has to be.
fn literal_or<'a, T>(
    scope: &Scope<'a>,
    s: &'a str,
    literal: impl FnOnce(&'a str) -> Res<'a, T>,
    take: impl FnOnce(&Value) -> Option<T>,
    what: &str,
) -> Res<'a, T> {
    let failed = match literal(s) {
        Err(nom::Err::Error(fault)) => fault,
        found => return found,
    };
    let Some((rest, value)) = constant(scope, s) else {
        return Err(nom::Err::Error(failed));
    };
    match take(value) {
        Some(found) => Ok((rest, found)),
        None => {
            let what = format!("the name of {what}");
            Err(nom::Err::Failure(ParseFault::new(skip(s), what)))
        }
    }
}

/// An address.
pub(super) fn address<'a>(scope: &Scope<'a>, s: &'a str) -> Res<'a, IpAddr> {
    let take = |value: &Value| match value {
        Value::Ip(address) => Some(*address),
        _ => None,
    };
    literal_or(scope, s, ip_address, take, "an address")
}

/// An identifier of 32 bits, in the form of an IPv4 address.
pub(super) fn identifier<'a>(scope: &Scope<'a>, s: &'a str) -> Res<'a, Ipv4Addr> {
    let take = |value: &Value| match value {
        Value::Ip(IpAddr::V4(address)) => Some(*address),
        Value::Quad(number) | Value::Int(number) => Some(Ipv4Addr::from_bits(*number)),
        _ => None,
    };
    literal_or(scope, s, lexer::ipv4_address, take, "an IPv4 address")
}

/// A prefix.
pub(super) fn prefix<'a>(scope: &Scope<'a>, s: &'a str) -> Res<'a, Prefix> {
    let take = |value: &Value| match value {
        Value::Prefix(prefix) => Some(*prefix),
        _ => None,
    };
    literal_or(scope, s, lexer::prefix, take, "a prefix")
}

/// A text in double quotes.
pub(super) fn text<'a>(scope: &Scope<'a>, s: &'a str) -> Res<'a, String> {
    let take = |value: &Value| match value {
        Value::Text(text) => Some(text.to_string()),
        _ => None,
    };
    let literal = |s| lexer::string.map(str::to_owned).parse(s);
    literal_or(scope, s, literal, take, "a text")
}

/// A number up to the largest of its type.
pub(super) fn number<'a, T: TryFrom<u32>>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, T> {
    let at = skip(s);
    let largest = u32::MAX >> (32 - 8 * u32::try_from(size_of::<T>()).unwrap_or(4).min(4));
    let what = format!("a number up to {largest}");
    let (rest, value) = match at.strip_prefix('(') {
        Some(inside) => match language::computed(scope, inside)? {
            (rest, Value::Int(value)) => (token(")")(rest)?.0, value),
            _ => return Err(nom::Err::Failure(ParseFault::new(at, what))),
        },
        None => {
            let take = |value: &Value| match value {
                Value::Int(value) => Some(*value),
                _ => None,
            };
            match literal_or(scope, s, lexer::hex_number, take, "a number") {
                Err(nom::Err::Error(_)) => {
                    return Err(nom::Err::Error(ParseFault::new(at, what)));
                }
                found => found?,
            }
        }
    };
    match T::try_from(value) {
        Ok(value) => Ok((rest, value)),
        Err(_) => Err(nom::Err::Error(ParseFault::new(at, what))),
    }
}
