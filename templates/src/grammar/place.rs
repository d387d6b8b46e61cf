//! Where something is: an address, and the link that a link-local one is on.

use std::net::IpAddr;

use caracal_bgp::Value;
use nom::combinator::{cut, opt};
use nom::sequence::preceded;
use nom::{Err, Parser};

use super::language::{Named, Scope};
use super::lexer::{ParseFault, Res, ip_address, skip, symbol, token};

/// An address, or the name of one.
pub(super) fn address<'a>(scope: &Scope<'a>, s: &'a str) -> Res<'a, IpAddr> {
    let at = skip(s);
    let literal = match ip_address(at) {
        Err(Err::Error(fault)) => fault,
        found => return found,
    };
    let Ok((rest, name)) = symbol(at) else {
        return Err(Err::Error(literal));
    };
    match scope.find(name.value) {
        Some(Named::Constant(Value::Ip(address))) => Ok((rest, *address)),
        Some(_) => Err(Err::Failure(ParseFault::new(at, "the name of an address"))),
        None => Err(Err::Error(literal)),
    }
}

/// The link that an address is on, behind it: `%INTERFACE`.
pub(super) fn link(s: &str) -> Res<'_, Option<&str>> {
    let link = preceded(token("%"), cut(symbol));
    opt(link.map(|interface| interface.value)).parse(s)
}
