//! The options of a `protocol bgp` or `template bgp` block.

use std::net::{IpAddr, Ipv4Addr};

use caracal_bgp::{BgpRole, DisableAfter, NextHopMode};
use caracal_model::Family;
use nom::branch::alt;
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded, terminated};
use nom::{Err, Parser};

use super::bfd;
use super::constant::{self, address, identifier};
use super::fixed;
use super::language::{Named, Scope};
use super::lexer::{
    Located, Number, ParseFault, Res, block, directive, end_of_line, family, one_of_words, skip,
    string, switch, symbol, token, u8_number,
};
use super::neighbor::{NeighborLine, as_number, neighbor, port};
use super::options::{self, ChannelLine, Extra, LimitOption, PathOption};
use super::policy::{Passes, name_line};
use crate::context::LIMITS;

#[derive(Clone, Debug)]
pub(super) enum PeerOption<'a> {
    Name(String),
    Kind(&'a str),
    Local {
        address: Option<IpAddr>,
        port: Option<u16>,
        asn: Number<'a>,
    },
    Neighbor(NeighborLine<'a>),
    Source(IpAddr),
    Interface(&'a str),
    StrictBind(bool),
    /// `None` = direct; `Some(None)` = multihop without a limit.
    Reach(Option<Option<u8>>),
    TtlSecurity(bool),
    CheckLink(bool),
    /// The exact TTL and TTL security.
    Ttl(Option<u8>, Option<u8>),
    HoldTime(u16),
    Keepalive(u32),
    Disabled(bool),
    Passive(bool),
    Client(bool),
    /// Of a route server.
    RsClient(bool),
    /// Of RFC 9234.
    Role(BgpRole),
    RequireRoles(bool),
    DynamicName(&'a str),
    ClusterId(Ipv4Addr),
    GracefulRestart(bool),
    RestartTime(u16),
    AllowOwnAs(u8),
    EnforceFirstAs(bool),
    Password(String),
    DisableAfterError(bool),
    /// Subcodes as bits.
    DisableAfterCease(u16),
    Channel(Family, Vec<Located<'a, ChannelOption<'a>>>),
    Extra(Extra),
    /// It is so, or there is a note about it.
    Fixed,
}

/// What passes between us and a peer.
#[derive(Clone, Debug)]
pub(super) enum Policy<'a> {
    Passes(Passes<'a>),
    /// Functions that are lists of terms, one after the other, as rendered text has them.
    Calls(Vec<Call<'a>>),
}

/// A call of a function: `NAME(true);`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) symbol: Located<'a, &'a str>,
    /// What the caller says of the peer.
    pub(super) internal: Located<'a, bool>,
}

pub(super) fn peer_option<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, PeerOption<'a>> {
    const WORDS: [&str; 28] = [
        "description",
        "interface",
        "disabled",
        "local",
        "neighbor",
        "strict",
        "direct",
        "multihop",
        "ttl",
        "check",
        "hold",
        "passive",
        "rr",
        "rs",
        "require",
        "dynamic",
        "graceful",
        "allow",
        "enforce",
        "password",
        "long",
        "bfd",
        "ipv4",
        "ipv6",
        "keepalive",
        "source",
        "disable",
        "#:",
    ];
    let at = skip(s);
    if let Some(read) = fixed::of_peer(scope, s) {
        return read.map(|(rest, ())| (rest, PeerOption::Fixed));
    }
    let (rest, word) = one_of_words(&WORDS, s)?;
    match word {
        "local" => local(scope, rest),
        "neighbor" => neighbor(scope, rest).map(|(rest, line)| (rest, PeerOption::Neighbor(line))),
        "rr" => reflector(scope, rest),
        "rs" => delimited(token("client"), switch, token(";"))
            .map(PeerOption::RsClient)
            .parse(rest),
        "require" => delimited(token("roles"), switch, token(";"))
            .map(PeerOption::RequireRoles)
            .parse(rest),
        "dynamic" => dynamic(scope, at, rest),
        "graceful" => graceful(scope, rest),
        "ipv4" | "ipv6" => channel(scope, s),
        "source" => {
            let (rest, _) = token("address")(rest)?;
            let (rest, address) = address(scope, rest)?;
            token(";").map(|_| PeerOption::Source(address)).parse(rest)
        }
        "disable" => disable(scope, rest),
        "#:" => line(s),
        _ => terminated(|s| simple(scope, word, s), token(";")).parse(rest),
    }
}

/// Behind `disable`: `after error [SWITCH];`, `after cease [SWITCH | { WORDS, … }];`.
fn disable<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, PeerOption<'a>> {
    let (rest, _) = token("after")(s)?;
    let (rest, word) = one_of_words(&["error", "cease"], rest)?;
    let (rest, option) = if word == "error" {
        let (rest, on) = fixed::on_or_off(scope, rest)?;
        (rest, PeerOption::DisableAfterError(on))
    } else if skip(rest).starts_with('{') {
        let (mut rest, mut cease) = (rest, 0);
        while let Ok((after, _)) = one_of_words(if cease == 0 { &["{"] } else { &[","] }, rest) {
            let mut named = DisableAfter::CEASES.iter().enumerate();
            let found = named.find_map(|(bit, words)| Some((bit, all_words(words, after)?)));
            let Some((bit, behind)) = found else {
                let what = format!("one of: {}", DisableAfter::CEASES.join(", "));
                return Err(Err::Failure(ParseFault::new(skip(after), what)));
            };
            (rest, cease) = (behind, cease | 1 << bit);
        }
        let (rest, _) = token("}")(rest)?;
        (rest, PeerOption::DisableAfterCease(cease))
    } else {
        let (rest, on) = fixed::on_or_off(scope, rest)?;
        let cease = if on { DisableAfter::ANY_CEASE } else { 0 };
        (rest, PeerOption::DisableAfterCease(cease))
    };
    token(";").map(|_| option.clone()).parse(rest)
}

/// The text behind some words.
fn all_words<'a>(words: &str, s: &'a str) -> Option<&'a str> {
    words.split(' ').try_fold(s, |rest, word| {
        // Words are short and many: what is not one of them is no error yet.
        let (rest, found) = symbol(rest).ok()?;
        (found.value == word).then_some(rest)
    })
}

/// Options of a few words, without their semicolon.
fn simple<'a>(scope: &mut Scope<'a>, word: &str, s: &'a str) -> Res<'a, PeerOption<'a>> {
    match word {
        "description" => string.map(PeerOption::Kind).parse(s),
        "interface" => string.map(PeerOption::Interface).parse(s),
        "direct" => Ok((s, PeerOption::Reach(None))),
        "multihop" => opt(|s| constant::number(scope, s))
            .map(|hops| PeerOption::Reach(Some(hops)))
            .parse(s),
        "ttl" => preceded(token("security"), switch)
            .map(PeerOption::TtlSecurity)
            .parse(s),
        "check" => preceded(token("link"), switch)
            .map(PeerOption::CheckLink)
            .parse(s),
        "hold" => preceded(token("time"), |s| constant::number(scope, s))
            .map(PeerOption::HoldTime)
            .parse(s),
        "disabled" => switch.map(PeerOption::Disabled).parse(s),
        "passive" => switch.map(PeerOption::Passive).parse(s),
        "allow" => {
            let count = opt(|s| constant::number(scope, s));
            preceded((token("local"), token("as")), count)
                .map(|count| PeerOption::AllowOwnAs(count.unwrap_or(1)))
                .parse(s)
        }
        "enforce" => preceded((token("first"), token("as")), switch)
            .map(PeerOption::EnforceFirstAs)
            .parse(s),
        "password" => {
            constant::text(scope, s).map(|(rest, text)| (rest, PeerOption::Password(text)))
        }
        "long" => {
            options::long_lived(scope, s).map(|(rest, extra)| (rest, PeerOption::Extra(extra)))
        }
        "bfd" => bfd::options(scope, s)
            .map(|(rest, options)| (rest, PeerOption::Extra(Extra::Bfd(options)))),
        "strict" => preceded(token("bind"), switch)
            .map(PeerOption::StrictBind)
            .parse(s),
        _ => preceded(token("time"), |s| constant::number(scope, s))
            .map(PeerOption::Keepalive)
            .parse(s),
    }
}

/// `[ADDRESS] [port PORT] as ASN;`, `role ROLE;`.
fn local<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, PeerOption<'a>> {
    if let Ok((rest, _)) = token("role")(s) {
        return terminated(role, token(";"))
            .map(PeerOption::Role)
            .parse(rest);
    }
    let (rest, address) = match address(scope, s) {
        Ok((rest, address)) => (rest, Some(address)),
        Err(Err::Error(_)) => (s, None),
        Err(error) => return Err(error),
    };
    let (rest, port) = port(scope, rest)?;
    let (rest, _) = token("as")(rest)?;
    let (rest, asn) = as_number(scope, rest)?;
    let local = PeerOption::Local { address, port, asn };
    token(";").map(|_| local.clone()).parse(rest)
}

/// `dynamic name "x";`, `dynamic name digits N;`.
fn dynamic<'a>(scope: &mut Scope<'a>, at: &'a str, s: &'a str) -> Res<'a, PeerOption<'a>> {
    let (rest, _) = token("name")(s)?;
    if let Ok((rest, _)) = token("digits")(rest) {
        let (rest, _) = terminated(u8_number, token(";")).parse(rest)?;
        let why = "peers of a range have their addresses in their names, and no numbers";
        scope.note(at, "dynamic name digits", why);
        return Ok((rest, PeerOption::Fixed));
    }
    terminated(string, token(";"))
        .map(PeerOption::DynamicName)
        .parse(rest)
}

fn role(s: &str) -> Res<'_, BgpRole> {
    let (rest, word) = one_of_words(&BgpRole::ALL.map(BgpRole::word), s)?;
    let mut all = BgpRole::ALL.into_iter();
    match all.find(|role| role.word() == word) {
        Some(role) => Ok((rest, role)),
        None => Err(Err::Error(ParseFault::new(skip(s), "a role"))),
    }
}

/// `rr client;`, `rr cluster id ID;`.
fn reflector<'a>(scope: &Scope<'a>, s: &'a str) -> Res<'a, PeerOption<'a>> {
    let (rest, word) = one_of_words(&["client", "cluster"], s)?;
    if word == "client" {
        return terminated(switch, token(";"))
            .map(PeerOption::Client)
            .parse(rest);
    }
    delimited(token("id"), |s| identifier(scope, s), token(";"))
        .map(PeerOption::ClusterId)
        .parse(rest)
}

/// `graceful restart on;`, `graceful restart aware;`, `graceful restart time SECONDS;`.
fn graceful<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, PeerOption<'a>> {
    let (rest, _) = token("restart")(s)?;
    if let Ok((rest, _)) = token("time")(rest) {
        return terminated(|s| constant::number(scope, s), token(";"))
            .map(PeerOption::RestartTime)
            .parse(rest);
    }
    if let Ok((rest, _)) = token("aware")(rest) {
        return token(";")
            .map(|_| PeerOption::GracefulRestart(false))
            .parse(rest);
    }
    terminated(switch, token(";"))
        .map(PeerOption::GracefulRestart)
        .parse(rest)
}

/// `#: name "…"`, `#: ttl TTL security HOPS`, `#: policy required`, `#: password hidden`, `#: long
/// lived partial`.
fn line(s: &str) -> Res<'_, PeerOption<'_>> {
    let (rest, line) = directive(s)?;
    let (line, word) = one_of_words(&["name", "ttl", "policy", "password", "long"], line)?;
    match word {
        "policy" => {
            let (line, _) = token("required")(line)?;
            end_of_line(line)?;
            Ok((rest, PeerOption::Extra(Extra::RequirePolicy)))
        }
        "name" => name_line.map(PeerOption::Name).parse(s),
        "long" => {
            let (line, _) = (token("lived"), token("partial")).parse(line)?;
            end_of_line(line)?;
            Ok((rest, PeerOption::Extra(Extra::LongLivedPartial)))
        }
        "ttl" => {
            let (line, ttl) = octet_or_none(line)?;
            let (line, security) = preceded(token("security"), octet_or_none).parse(line)?;
            end_of_line(line)?;
            Ok((rest, PeerOption::Ttl(ttl, security)))
        }
        _ => Err(Err::Failure(ParseFault::new(
            line.trim_start(),
            "the password itself; this text was written without its passwords",
        ))),
    }
}

fn octet_or_none(s: &str) -> Res<'_, Option<u8>> {
    nom::branch::alt((token("none").map(|_| None), u8_number.map(Some))).parse(s)
}

/// One line of a channel.
#[derive(Clone, Debug)]
pub(super) enum ChannelOption<'a> {
    Import(Policy<'a>),
    Export(Policy<'a>),
    NextHop(NextHopMode),
    OwnNextHop(IpAddr),
    ExtendedNextHop(bool),
    Preference(u16),
    /// `gateway direct`: next hops of routes are the peer itself or on the link with it.
    GatewayDirect,
    Paths(PathOption),
    Limit(LimitOption),
    /// It is so.
    Done,
}

fn channel<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, PeerOption<'a>> {
    let (rest, family) = family(s)?;
    let lines = opt(block(|s| channel_option(scope, family, s)));
    let (rest, options) = terminated(lines, token(";")).parse(rest)?;
    Ok((
        rest,
        PeerOption::Channel(family, options.unwrap_or_default()),
    ))
}

/// `next hop address` of a family has an address of the family.
const fn own_next_hop(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "an IPv4 address: this is the next hop of IPv4 routes",
        Family::Ipv6 => "an IPv6 address: this is the next hop of IPv6 routes",
    }
}

fn channel_option<'a>(
    scope: &mut Scope<'a>,
    family: Family,
    s: &'a str,
) -> Res<'a, ChannelOption<'a>> {
    const WORDS: [&str; 11] = [
        "import",
        "export",
        "next",
        "gateway",
        "extended",
        "add",
        "receive",
        "table",
        "rpki",
        "preference",
        "#:",
    ];
    if let Some(read) = fixed::of_family(scope, s) {
        return read.map(|(rest, ())| (rest, ChannelOption::Done));
    }
    let (rest, word) = one_of_words(&WORDS, s)?;
    let limit = LIMITS.iter().find(|(limit, _)| *limit == word);
    if let Some((_, counted)) = limit
        && let Ok((rest, _)) = token("limit")(rest)
    {
        let limit = options::limit(scope, *counted, rest);
        return limit.map(|(rest, limit)| (rest, ChannelOption::Limit(limit)));
    }
    match word {
        "extended" => delimited((token("next"), token("hop")), switch, token(";"))
            .map(ChannelOption::ExtendedNextHop)
            .parse(rest),
        "add" => options::add_paths.map(ChannelOption::Paths).parse(rest),
        // What is right has been read above; this is the error.
        "receive" => token("limit").map(|_| ChannelOption::Done).parse(rest),
        "#:" => options::channel_line
            .map(|line| match line {
                ChannelLine::Paths(option) => ChannelOption::Paths(option),
                ChannelLine::Limit(option) => ChannelOption::Limit(option),
            })
            .parse(s),
        "import" => {
            // What a peer has sent is kept anyway, and shown.
            let kept = (token("keep"), token("filtered")).map(|_| ());
            if let Ok((rest, ())) = alt((kept, token("table").map(|_| ()))).parse(rest) {
                return done(rest);
            }
            terminated(|s| policy(scope, s), token(";"))
                .map(ChannelOption::Import)
                .parse(rest)
        }
        "export" => {
            // What a peer was sent is known anyway.
            if let Ok((rest, _)) = token("table")(rest) {
                return done(rest);
            }
            terminated(|s| policy(scope, s), token(";"))
                .map(ChannelOption::Export)
                .parse(rest)
        }
        "rpki" => rpki_reload(rest),
        "preference" => terminated(|s| constant::number(scope, s), token(";"))
            .map(ChannelOption::Preference)
            .parse(rest),
        "table" => {
            let (rest, ()) = super::master(super::master_of(family), rest)?;
            token(";").map(|_| ChannelOption::Done).parse(rest)
        }
        "gateway" => {
            let (rest, word) = one_of_words(&["recursive", "direct"], rest)?;
            let option = match word {
                "direct" => ChannelOption::GatewayDirect,
                _ => ChannelOption::Done,
            };
            token(";").map(|_| option.clone()).parse(rest)
        }
        _ => next_hop(scope, family, rest),
    }
}

/// A switch that changes nothing, and the end of the line.
fn done<'a>(s: &'a str) -> Res<'a, ChannelOption<'a>> {
    terminated(switch, token(";"))
        .map(|_| ChannelOption::Done)
        .parse(s)
}

/// Behind `rpki`: `reload on;`.
fn rpki_reload<'a>(s: &'a str) -> Res<'a, ChannelOption<'a>> {
    let (rest, _) = token("reload")(s)?;
    let at = skip(rest);
    match switch(rest)? {
        (rest, true) => token(";").map(|_| ChannelOption::Done).parse(rest),
        (_, false) => {
            let what = "\"on\": filters that ask a table of origins run again when it changes";
            Err(Err::Failure(ParseFault::new(at, what)))
        }
    }
}

/// Behind `next`: `hop self;`, `hop keep;`, `hop address ADDRESS;`.
fn next_hop<'a>(scope: &mut Scope<'a>, family: Family, s: &'a str) -> Res<'a, ChannelOption<'a>> {
    let (rest, _) = token("hop")(s)?;
    let (rest, word) = one_of_words(&["self", "keep", "address"], rest)?;
    if word == "address" {
        let at = skip(rest);
        let (rest, own) = cut(|s| address(scope, s)).parse(rest)?;
        if Family::of(own) != family {
            return Err(Err::Failure(ParseFault::new(at, own_next_hop(family))));
        }
        return token(";")
            .map(|_| ChannelOption::OwnNextHop(own))
            .parse(rest);
    }
    let mode = if word == "self" {
        NextHopMode::Own
    } else {
        NextHopMode::Keep
    };
    token(";").map(|_| ChannelOption::NextHop(mode)).parse(rest)
}

/// `all`, `none`, `where …`, `filter NAME` or `filter { … }`. Calls of functions that are lists of
/// terms, as rendered text has them, stay what they are.
fn policy<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Policy<'a>> {
    if let Ok((rest, _)) = token("filter")(s)
        && let Ok((rest, lines)) = block(policy_line)(rest)
    {
        let mut calls = Vec::new();
        let mut accepts = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            match line.value {
                PolicyLine::Call(call) => calls.push(call),
                PolicyLine::Accept => accepts.push(index),
                PolicyLine::Guard => {}
            }
        }
        let is_program = |call: &Call<'_>| match scope.find(call.symbol.value) {
            Some(Named::Function(function)) => !function.is_terms,
            _ => false,
        };
        if accepts.first() == lines.len().checked_sub(1).as_ref() && !calls.iter().any(is_program) {
            return Ok((rest, Policy::Calls(calls)));
        }
    }
    super::policy::passes(scope, s).map(|(rest, passes)| (rest, Policy::Passes(passes)))
}

/// A line of a filter that is a list of calls.
#[derive(Clone, Copy)]
enum PolicyLine<'a> {
    Call(Call<'a>),
    /// Keeps a daemon's other routes out.
    Guard,
    Accept,
}

/// A call, the lines that keep a daemon's other routes out, or the final `accept;`.
fn policy_line(s: &str) -> Res<'_, PolicyLine<'_>> {
    if let Ok((rest, _)) = token("accept")(s) {
        return token(";").map(|_| PolicyLine::Accept).parse(rest);
    }
    if let Ok((rest, _)) = (token("if"), token("source")).parse(s) {
        let gateways = (
            token("="),
            token("RTS_STATIC"),
            token("&&"),
            token("dest"),
            token("!="),
            token("RTD_BLACKHOLE"),
            token("then"),
            token("reject"),
            token(";"),
        );
        if let Ok((rest, _)) = gateways.map(|_| ()).parse(rest) {
            return Ok((rest, PolicyLine::Guard));
        }
        let others = (
            token("!~"),
            token("["),
            token("RTS_BGP"),
            token(","),
            token("RTS_STATIC"),
            token("]"),
            token("then"),
            token("reject"),
            token(";"),
        );
        return others.map(|_| PolicyLine::Guard).parse(rest);
    }
    let (rest, symbol) = symbol(s)?;
    let (rest, _) = token("(")(rest)?;
    let at = skip(rest);
    let (rest, word) = one_of_words(&["true", "false"], rest)?;
    let (rest, _) = (token(")"), token(";")).parse(rest)?;
    let internal = Located {
        at,
        value: word == "true",
    };
    Ok((rest, PolicyLine::Call(Call { symbol, internal })))
}
