//! Where and who a peer is: the line `neighbor`.

use std::net::IpAddr;

use caracal_bgp::Value;
use caracal_model::Prefix;
use nom::combinator::{cut, opt};
use nom::sequence::preceded;
use nom::{Err, Parser};

use super::constant::{self, address};
use super::language::{self, Scope};
use super::lexer::{Number, ParseFault, Res, link, number, one_of_words, skip, token};

/// What a line says of where and who the peer is. Lines may share it out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NeighborLine<'a> {
    pub(super) address: Option<IpAddr>,
    pub(super) interface: Option<&'a str>,
    pub(super) range: Option<Prefix>,
    pub(super) port: Option<u16>,
    pub(super) asn: Option<RemoteAs<'a>>,
}

/// The AS of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum RemoteAs<'a> {
    Number(Number<'a>),
    /// Ours.
    Internal,
}

/// `ADDRESS[%INTERFACE]` or `range PREFIX`, `port PORT`, `as ASN` or `internal`, in any order and
/// not always all of them.
pub(super) fn neighbor<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, NeighborLine<'a>> {
    let mut line = NeighborLine::default();
    let mut rest = s;
    loop {
        let is_said = line.address.is_some() || line.port.is_some() || line.asn.is_some();
        if is_said && let Ok((rest, _)) = token(";")(rest) {
            return Ok((rest, line));
        }
        let no_address = match address(scope, rest) {
            Ok((after, found)) if line.address.is_none() => {
                line.address = Some(found);
                (rest, line.interface) = link(after)?;
                continue;
            }
            Err(Err::Failure(fault)) => return Err(Err::Failure(fault)),
            Err(Err::Error(fault)) if !is_said => Some(fault),
            _ => None,
        };
        rest = match (neighbor_word(scope, &mut line, rest), no_address) {
            (Err(Err::Error(_)), Some(fault)) => return Err(Err::Error(fault)),
            (read, _) => read?.0,
        };
    }
}

/// What a word of `neighbor` says.
fn neighbor_word<'a>(
    scope: &mut Scope<'a>,
    line: &mut NeighborLine<'a>,
    s: &'a str,
) -> Res<'a, ()> {
    const WORDS: [&str; 6] = ["range", "port", "as", "internal", "external", ";"];
    let (rest, word) = one_of_words(&WORDS, s)?;
    let wrong = |what: &str| Err(Err::Failure(ParseFault::new(skip(s), what)));
    let rest = match word {
        "range" => {
            let (rest, range) = cut(|s| constant::prefix(scope, s)).parse(rest)?;
            (line.address, line.range) = (Some(range.address()), Some(range));
            rest
        }
        "port" => {
            let (rest, port) = port(scope, s)?;
            line.port = port;
            rest
        }
        "as" => {
            let (rest, asn) = as_number(scope, rest)?;
            line.asn = Some(RemoteAs::Number(asn));
            rest
        }
        "internal" => {
            line.asn = Some(RemoteAs::Internal);
            rest
        }
        "external" => {
            return wrong("\"as NUMBER\": the AS that a peer says is held against it");
        }
        _ => return wrong("an address"),
    };
    Ok((rest, ()))
}

/// A number, the name of one, or an expression in parentheses.
pub(super) fn as_number<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Number<'a>> {
    let at = skip(s);
    let Some(inside) = at.strip_prefix('(') else {
        return number(s);
    };
    match language::computed(scope, inside)? {
        (rest, Value::Int(value)) => token(")").map(|_| Number::Literal(value)).parse(rest),
        _ => Err(Err::Failure(ParseFault::new(at, "a number"))),
    }
}

/// A port behind its word.
pub(super) fn port<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Option<u16>> {
    opt(preceded(token("port"), cut(|s| constant::number(scope, s)))).parse(s)
}
