//! Static protocols: the routes that this speaker originates.

use std::net::IpAddr;

use caracal_bgp::{Origination, Roa, StaticGateway, StaticWay};
use caracal_model::{Family, Prefix};
use nom::combinator::{cut, opt};
use nom::sequence::{delimited, preceded, terminated};
use nom::{Err, Parser};

use super::community;
use super::language::Scope;
use super::lexer::{
    Located, ParseFault, Res, block, family, ip_address, one_of_words, prefix, skip, string,
    switch, symbol, token, u8_number, u16_number, u32_number,
};
use super::place::{address, link};
use super::policy::assigned;

/// What BIRD reads behind a gateway, and what to do without it.
const BEHIND_A_GATEWAY: [(&str, &str); 5] = [
    (
        "%",
        "another gateway, \"weight\", \"{\" or \";\": the link is found by the address of the gateway",
    ),
    (
        "dev",
        "another gateway, \"weight\", \"{\" or \";\": the link is found by the address of the gateway",
    ),
    (
        "onlink",
        "another gateway, \"weight\", \"{\" or \";\": the gateway has to be in a subnet of a link; give the interface \
         an address in one, or say \"recursive ADDRESS\" and leave the route to it to the kernel's table",
    ),
    (
        "bfd",
        "another gateway, \"weight\", \"{\" or \";\": BFD runs with BGP peers only",
    ),
    (
        "mpls",
        "another gateway, \"weight\", \"{\" or \";\": there are no labels",
    ),
];

enum Attribute {
    NextHop(IpAddr),
    LocalPref(u32),
    Med(u32),
    Community(caracal_bgp::AnyCommunity),
}

enum Line<'a> {
    /// With what it says of the preference.
    Channel(Family, Option<u16>),
    Disabled(bool),
    /// What holds anyway.
    Nothing,
    Route(Prefix, Origination),
    /// The table of the entries.
    RoaChannel(Family, &'a str),
    Roa(Roa),
}

/// The family of `roa4` and `roa6`.
pub(super) fn roa_family(word: &str) -> Family {
    match word {
        "roa4" => Family::Ipv4,
        _ => Family::Ipv6,
    }
}

/// BIRD's preference of static routes.
const PREFERENCE: u16 = 200;

/// BIRD's preference of routes of peers.
const PEERS_PREFERENCE: u16 = 100;

/// The routes of a static protocol.
#[derive(Debug)]
pub(super) struct StaticRoutes<'a> {
    /// Of several protocols that have a prefix, the highest one counts.
    pub(super) preference: u16,
    pub(super) routes: Vec<Located<'a, (Prefix, Origination)>>,
}

/// The block of a static protocol.
pub(super) fn routes<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, StaticRoutes<'a>> {
    let (rest, lines) = block(|s| line(scope, s))(s)?;
    let mut channel = None;
    let mut table = None;
    let mut disabled = false;
    let mut preference = PREFERENCE;
    let mut routes = Vec::new();
    let mut roas: Vec<Located<'a, Roa>> = Vec::new();
    for Located { at, value } in lines {
        match value {
            Line::Channel(..) if table.is_some() => return Err(second_channel(at)),
            Line::RoaChannel(..) if channel.is_some() => return Err(second_channel(at)),
            Line::RoaChannel(family, name) => (channel, table) = (Some(family), Some(name)),
            Line::Roa(value) => roas.push(Located { at, value }),
            Line::Channel(family, _) if channel.is_some_and(|known| known != family) => {
                let what = "one family in a static protocol; the other needs a protocol of its own";
                return Err(Err::Failure(ParseFault::new(at, what)));
            }
            Line::Channel(family, said) => {
                channel = Some(family);
                preference = said.unwrap_or(preference);
            }
            Line::Disabled(off) => disabled = off,
            Line::Nothing => {}
            Line::Route(prefix, route) => routes.push(Located {
                at,
                value: (prefix, route),
            }),
        }
    }
    let other = |route: &&Located<'a, (Prefix, Origination)>| {
        channel.is_some_and(|family| family != route.value.0.family())
    };
    if let (Some(route), Some(family)) = (routes.iter().find(other), channel) {
        let what = format!("a route of {family}, the family of this protocol");
        return Err(Err::Failure(ParseFault::new(route.at, what)));
    }
    let first = routes.first().map(|route| route.at);
    take_roas(scope, channel, table, first, roas, disabled)?;
    if disabled {
        routes.clear();
    }
    Ok((rest, StaticRoutes { preference, routes }))
}

fn second_channel(at: &str) -> Err<ParseFault<'_>> {
    Err::Failure(ParseFault::new(at, "one channel in a static protocol"))
}

/// The entries of a table of origins. Such a protocol has nothing else.
fn take_roas<'a>(
    scope: &mut Scope<'a>,
    family: Option<Family>,
    table: Option<&'a str>,
    route: Option<&'a str>,
    roas: Vec<Located<'a, Roa>>,
    disabled: bool,
) -> Result<(), Err<ParseFault<'a>>> {
    let wrong = |at, what: &str| Err(Err::Failure(ParseFault::new(at, what)));
    if let (Some(_), Some(at)) = (table, route) {
        return wrong(at, "\"route PREFIX max LENGTH as AS;\" in this protocol");
    }
    for Located { at, value } in roas {
        match table {
            None => return wrong(at, "a channel \"roa4\" or \"roa6\" above such a route"),
            Some(_) if family != Some(value.prefix.family()) => {
                return wrong(at, "a prefix of the family of this protocol");
            }
            Some(table) if !disabled => scope.roas.push((table, value)),
            Some(_) => {}
        }
    }
    Ok(())
}

fn line<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Line<'a>> {
    if let Ok((rest, _)) = token("check")(s) {
        let (rest, on) = delimited(token("link"), switch, token(";")).parse(rest)?;
        if on {
            let what = "no \"check link\": a gateway on a link without carrier counts as long as its interface is up";
            return Err(Err::Failure(ParseFault::new(skip(s), what)));
        }
        return Ok((rest, Line::Nothing));
    }
    let (rest, word) = one_of_words(&["route", "ipv4", "ipv6", "roa4", "roa6", "disabled"], s)?;
    match word {
        "route" => {}
        "roa4" | "roa6" => {
            let family = roa_family(word);
            let (rest, table) = roa_table(scope, family, rest)?;
            return Ok((rest, Line::RoaChannel(family, table)));
        }
        "disabled" => {
            return terminated(switch, token(";"))
                .map(Line::Disabled)
                .parse(rest);
        }
        _ => return channel(s),
    }
    let (rest, destination) = prefix(rest)?;
    if let Ok((after, _)) = token("max")(rest) {
        return roa(destination, after);
    }
    let (rest, way) = way(scope, destination.family(), rest)?;
    let (rest, attributes) = terminated(opt(block(attribute)), token(";")).parse(rest)?;
    let mut origination = Origination {
        way,
        ..Origination::default()
    };
    for attribute in attributes.into_iter().flatten() {
        match attribute.value {
            Attribute::NextHop(_) if !origination.way.leads_nowhere() => {
                let what = "no \"bgp_next_hop\" behind a gateway, which is the next hop";
                return Err(Err::Failure(ParseFault::new(attribute.at, what)));
            }
            Attribute::NextHop(address) => origination.next_hop = Some(address),
            Attribute::LocalPref(value) => origination.local_pref = Some(value),
            Attribute::Med(value) => origination.med = Some(value),
            Attribute::Community(community) => origination.communities.push(community),
        }
    }
    origination.communities.sort_unstable();
    origination.communities.dedup();
    Ok((rest, Line::Route(destination, origination)))
}

/// `ipv4;`, or `ipv4 { preference NUMBER; };`.
fn channel(s: &str) -> Res<'_, Line<'_>> {
    let (rest, family) = family(s)?;
    let (rest, lines) = terminated(opt(block(preference)), token(";")).parse(rest)?;
    let said = lines.into_iter().flatten().next_back();
    Ok((rest, Line::Channel(family, said.map(|line| line.value))))
}

/// A route of ours comes before those of peers, whatever it is worth among its own kind.
fn preference(s: &str) -> Res<'_, u16> {
    let (rest, _) = one_of_words(&["preference"], s)?;
    let at = skip(rest);
    let (rest, value) = terminated(u16_number, token(";")).parse(rest)?;
    if value > PEERS_PREFERENCE {
        return Ok((rest, value));
    }
    let what = format!(
        "a number from {} on: a static route is used before those of peers, which have {PEERS_PREFERENCE}",
        PEERS_PREFERENCE + 1
    );
    Err(Err::Failure(ParseFault::new(at, what)))
}

/// Behind `roa4` or `roa6`: nothing, or `{ table NAME; }`.
pub(super) fn roa_table<'a>(scope: &Scope<'a>, family: Family, s: &'a str) -> Res<'a, &'a str> {
    let at = skip(s);
    let table = |s| delimited(token("table"), symbol, token(";")).parse(s);
    let (rest, lines) = terminated(opt(block(table)), token(";")).parse(s)?;
    let named = lines
        .into_iter()
        .flatten()
        .map(|line| line.value)
        .next_back();
    match scope.roa_table(named.map(|name| name.value), family) {
        Some(table) => Ok((rest, table)),
        None => {
            let at = named.map_or(at, |name| name.at);
            let what = format!(
                "a table of this family that is defined above (\"roa{} table NAME;\")",
                if family == Family::Ipv4 { 4 } else { 6 }
            );
            Err(Err::Failure(ParseFault::new(at, what)))
        }
    }
}

/// Behind `route PREFIX max`: `LENGTH as AS;`.
fn roa(prefix: Prefix, s: &str) -> Res<'_, Line<'_>> {
    let at = skip(s);
    let (rest, max) = u8_number(s)?;
    if max < prefix.len() || max > prefix.family().bits() {
        let what = format!(
            "a length from {} to {}",
            prefix.len(),
            prefix.family().bits()
        );
        return Err(Err::Failure(ParseFault::new(at, what)));
    }
    let (rest, asn) = delimited(token("as"), u32_number, token(";")).parse(rest)?;
    Ok((rest, Line::Roa(Roa { prefix, max, asn })))
}

/// `blackhole`, `unreachable`, `prohibit`, `via ADDRESS …`, `recursive ADDRESS`.
fn way<'a>(scope: &mut Scope<'a>, family: Family, s: &'a str) -> Res<'a, StaticWay> {
    const KINDS: [&str; 6] = [
        "blackhole",
        "unreachable",
        "prohibit",
        "reject",
        "via",
        "recursive",
    ];
    let at = skip(s);
    let (mut rest, kind) = one_of_words(&KINDS, s)?;
    let way = match kind {
        "blackhole" => return Ok((rest, StaticWay::Blackhole)),
        "recursive" => {
            let (rest, address) = hop(scope, family, rest)?;
            return Ok((rest, StaticWay::Recursive(address)));
        }
        "via" => {
            let mut gateways: Vec<StaticGateway> = Vec::new();
            loop {
                let (after, gateway) = gateway(scope, family, rest)?;
                let mut known = gateways.iter();
                if known.any(|known| is_same(known, &gateway)) {
                    let what = "another gateway; this one is a repetition";
                    return Err(Err::Failure(ParseFault::new(skip(rest), what)));
                }
                gateways.push(gateway);
                rest = after;
                let Ok((after, _)) = token("via")(rest) else {
                    break;
                };
                rest = after;
            }
            if let [only] = &mut gateways[..]
                && only.extra_weight > 0
            {
                only.extra_weight = 0;
                scope.note(at, "weight", "there is no other gateway");
            }
            return Ok((rest, StaticWay::Via(gateways)));
        }
        "prohibit" => StaticWay::Prohibit,
        _ => StaticWay::Unreachable,
    };
    scope.note(
        at,
        kind,
        "in a table of the kernel the route is a blackhole",
    );
    Ok((rest, way))
}

fn is_same(a: &StaticGateway, b: &StaticGateway) -> bool {
    (a.address, &a.interface) == (b.address, &b.interface)
}

/// A gateway, with its share of the packets: `ADDRESS [weight NUMBER]`. A link-local one says on
/// which link it is: `fe80::1%eth0`, `fe80::1 dev "eth0"`.
fn gateway<'a>(scope: &Scope<'a>, family: Family, s: &'a str) -> Res<'a, StaticGateway> {
    let (rest, found) = reached(scope, family, s)?;
    let mut gateway = StaticGateway::from(found);
    let rest = match is_link_local(found) {
        true => {
            let at = skip(rest);
            let (rest, link) = match link(rest)? {
                (rest, None) => opt(preceded(token("dev"), cut(string))).parse(rest)?,
                found => found,
            };
            let Some(link) = link else {
                let what = "the interface of a link-local gateway: \"fe80::1%eth0\"";
                return Err(Err::Failure(ParseFault::new(at, what)));
            };
            gateway.interface = Some(link.into());
            rest
        }
        false => rest,
    };
    refuse_behind(rest)?;
    let Ok((rest, _)) = token("weight")(rest) else {
        return Ok((rest, gateway));
    };
    let at = skip(rest);
    let (rest, weight) = u32_number(rest)?;
    match weight.checked_sub(1).map(u8::try_from) {
        Some(Ok(extra)) => gateway.extra_weight = extra,
        _ => {
            let what = "a weight from 1 to 256";
            return Err(Err::Failure(ParseFault::new(at, what)));
        }
    }
    refuse_behind(rest)?;
    Ok((rest, gateway))
}

/// Options of gateways that are not done.
fn refuse_behind(s: &str) -> Result<(), Err<ParseFault<'_>>> {
    let behind = skip(s);
    for (word, what) in BEHIND_A_GATEWAY {
        if token(word)(behind).is_ok() {
            return Err(Err::Failure(ParseFault::new(behind, what)));
        }
    }
    Ok(())
}

/// An address that is looked up.
fn hop<'a>(scope: &Scope<'a>, family: Family, s: &'a str) -> Res<'a, IpAddr> {
    let (rest, found) = reached(scope, family, s)?;
    if is_link_local(found) {
        let what = "the address of a router that is no other's on another link";
        return Err(Err::Failure(ParseFault::new(skip(s), what)));
    }
    refuse_behind(rest)?;
    Ok((rest, found))
}

const fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// The address of a gateway, or one that is looked up.
fn reached<'a>(scope: &Scope<'a>, family: Family, s: &'a str) -> Res<'a, IpAddr> {
    let at = skip(s);
    let wrong = |at, what: String| Err(Err::Failure(ParseFault::new(at, what)));
    if at.starts_with('"') {
        let what =
            "the address of a gateway: routes that lead to an interface as a whole are not done";
        return wrong(at, what.to_owned());
    }
    let (rest, found) = address(scope, s)?;
    if Family::of(found) != family {
        return wrong(at, format!("an address of {family}, as the destination"));
    }
    let is_of_link = matches!(found, IpAddr::V4(v4) if v4.is_link_local());
    if is_of_link || found.is_unspecified() || found.is_multicast() {
        let what = "the address of a router that is no other's on another link";
        return wrong(at, what.to_owned());
    }
    Ok((rest, found))
}

fn attribute(s: &str) -> Res<'_, Attribute> {
    const WORDS: [&str; 6] = [
        "bgp_next_hop",
        "bgp_local_pref",
        "bgp_med",
        "bgp_community",
        "bgp_large_community",
        "bgp_ext_community",
    ];
    let (rest, word) = one_of_words(&WORDS, s)?;
    let add = || (token("."), token("add"), token("("));
    let end = || (token(")"), token(";"));
    match word {
        "bgp_next_hop" => delimited(token("="), ip_address, token(";"))
            .map(Attribute::NextHop)
            .parse(rest),
        "bgp_local_pref" => assigned.map(Attribute::LocalPref).parse(rest),
        "bgp_med" => assigned.map(Attribute::Med).parse(rest),
        list => delimited(add(), community::operand_of(list), end())
            .map(Attribute::Community)
            .parse(rest),
    }
}
