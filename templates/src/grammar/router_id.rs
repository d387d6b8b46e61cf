//! `router id ADDRESS;`, and `router id from` a list of interfaces.

use caracal_bgp::InterfacePattern;
use caracal_model::{Family, Prefix};
use nom::combinator::opt;
use nom::sequence::terminated;
use nom::{Err, Parser};

use super::Statement;
use super::constant::identifier;
use super::language::Scope;
use super::lexer::{Located, ParseFault, Res, ip_address, prefix, skip, string, token};

/// Behind `router`: `id ADDRESS;` or `id from [-] ["INTERFACE"] [PREFIX], …;`.
pub(super) fn router_id<'a>(scope: &Scope<'a>, s: &'a str) -> Res<'a, Statement<'a>> {
    let (rest, _) = token("id")(s)?;
    let Ok((rest, _)) = token("from")(rest) else {
        return terminated(|s| identifier(scope, s), token(";"))
            .map(Statement::RouterId)
            .parse(rest);
    };
    let at = skip(rest);
    let (rest, value) = patterns(rest)?;
    Ok((rest, Statement::RouterIdFrom(Located { at, value })))
}

/// A list of interfaces and addresses, to the semicolon.
pub(super) fn patterns(mut s: &str) -> Res<'_, Vec<InterfacePattern>> {
    let mut list = Vec::new();
    loop {
        let (after, pattern) = pattern(s)?;
        list.push(pattern);
        match token(",")(after) {
            Ok((after, _)) => s = after,
            Err(_) => return token(";").map(|_| list.clone()).parse(after),
        }
    }
}

/// `[-] ["INTERFACE"] [PREFIX]`, not empty. In BIRD the sign may stand in the name, too.
fn pattern(s: &str) -> Res<'_, InterfacePattern> {
    let (rest, minus) = opt(token("-")).parse(s)?;
    let (rest, name) = opt(string).parse(rest)?;
    let (name, inner_minus) = match name.and_then(|name| name.strip_prefix('-')) {
        Some(name) => (Some(name), true),
        None => (name, false),
    };
    let (rest, range) = match name {
        Some(_) if !skip(rest).starts_with(starts_address) => (rest, None),
        _ => range(rest).map(|(rest, range)| (rest, Some(range)))?,
    };
    let pattern = InterfacePattern {
        excludes: minus.is_some() != inner_minus,
        interface: name.map(str::to_owned),
        prefix: range,
    };
    Ok((rest, pattern))
}

/// A prefix of IPv4, or an address alone.
fn range(s: &str) -> Res<'_, Prefix> {
    let at = skip(s);
    let Ok((rest, address)) = ip_address(s) else {
        let what = "an interface in double quotes, or a prefix";
        return Err(Err::Failure(ParseFault::new(at, what)));
    };
    let (rest, range) = match rest.starts_with('/') {
        true => prefix(s)?,
        false => (rest, Prefix::truncated(address, Family::of(address).bits())),
    };
    if range.family() == Family::Ipv6 {
        let what = "a prefix of IPv4";
        return Err(Err::Failure(ParseFault::new(at, what)));
    }
    Ok((rest, range))
}

const fn starts_address(c: char) -> bool {
    c.is_ascii_hexdigit() || c == ':'
}
