//! Static protocols: the routes that this speaker originates.

use std::net::IpAddr;

use caracal_bgp::{Asn, Filter, Origin, Origination, Roa, admitted};
use caracal_model::{Family, Prefix};
use nom::branch::alt;
use nom::combinator::opt;
use nom::sequence::{delimited, preceded, terminated};
use nom::{Err, Parser};

use super::community;
use super::constant::{number, prefix};
use super::fixed;
use super::language::{self, Scope};
use super::lexer::{
    Located, ParseFault, Res, block, family, ip_address, one_of_words, skip, switch, symbol, token,
    u32_number, until_semicolon,
};
use super::policy::{Passes, assigned, passes};
use super::way::way;

enum Attribute {
    NextHop(IpAddr),
    LocalPref(u32),
    Med(u32),
    Origin(Origin),
    Prepend(u32),
    Community(caracal_bgp::AnyCommunity),
}

enum Line<'a> {
    Channel(Family, Vec<ChannelLine<'a>>),
    Disabled(bool),
    /// What holds anyway.
    Nothing,
    Route(Prefix, Origination),
    /// The table of the entries.
    RoaChannel(Family, &'a str),
    Roa(Roa),
}

/// A line of the family.
enum ChannelLine<'a> {
    Preference(u16),
    Import(Passes<'a>),
    /// It changes nothing.
    Nothing,
}

/// The family of `roa4` and `roa6`.
pub(super) fn roa_family(word: &str) -> Family {
    match word {
        "roa4" => Family::Ipv4,
        _ => Family::Ipv6,
    }
}

/// BIRD's preference of static routes.
pub(super) const PREFERENCE: u16 = 200;

/// BIRD's preference of routes of peers.
const PEERS_PREFERENCE: u16 = 100;

/// Why a route has one next hop.
const NO_NEXT_HOP: &str = "no \"bgp_next_hop\" behind a gateway, which is the next hop";

/// The routes of a static protocol.
#[derive(Debug)]
pub(super) struct StaticRoutes<'a> {
    /// Of several protocols that have a prefix, the highest one counts.
    pub(super) preference: u16,
    /// Which of them there are, and with which attributes.
    pub(super) import: Passes<'a>,
    pub(super) routes: Vec<Located<'a, (Prefix, Origination)>>,
}

/// The block of a static protocol.
pub(super) fn routes<'a>(
    scope: &mut Scope<'a>,
    name: Option<Located<'a, &'a str>>,
    s: &'a str,
) -> Res<'a, StaticRoutes<'a>> {
    let (rest, lines) = block(|s| line(scope, s))(s)?;
    let mut channel = None;
    let mut table = None;
    let mut disabled = false;
    let mut preference = PREFERENCE;
    let mut import = Passes::All;
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
            Line::Channel(family, lines) => {
                channel = Some(family);
                for line in lines {
                    match line {
                        ChannelLine::Preference(said) => preference = said,
                        ChannelLine::Import(said) => import = said,
                        ChannelLine::Nothing => {}
                    }
                }
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
    let protocol = scope.own_protocol("static", name, [preference, PREFERENCE]);
    for route in &mut routes {
        route.value.1.protocol.clone_from(&protocol);
    }
    let routes = StaticRoutes {
        preference,
        import,
        routes,
    };
    Ok((rest, routes))
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
    if let Ok((rest, ())) = fixed::of_any(s) {
        return Ok((rest, Line::Nothing));
    }
    const WORDS: [&str; 7] = ["route", "ipv4", "ipv6", "roa4", "roa6", "disabled", "igp"];
    let (rest, word) = one_of_words(&WORDS, s)?;
    match word {
        "route" => route(scope, rest),
        "roa4" | "roa6" => {
            let family = roa_family(word);
            let (rest, table) = roa_table(scope, family, rest)?;
            Ok((rest, Line::RoaChannel(family, table)))
        }
        "disabled" => terminated(switch, token(";"))
            .map(Line::Disabled)
            .parse(rest),
        "igp" => {
            let (rest, _) = token("table")(rest)?;
            let master = |name| move |s| super::master(name, s);
            let (rest, ()) = alt((master("master4"), master("master6"))).parse(rest)?;
            token(";").map(|_| Line::Nothing).parse(rest)
        }
        _ => channel(scope, s),
    }
}

/// Behind `route`: a destination, where its packets go, and its attributes.
fn route<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Line<'a>> {
    let (rest, destination) = prefix(scope, s)?;
    if let Ok((after, _)) = token("max")(rest) {
        return roa(scope, destination, after);
    }
    let (rest, way) = way(scope, destination.family(), rest)?;
    let mut origination = Origination {
        way,
        ..Origination::default()
    };
    let at = skip(rest);
    let steps = match opt(block(attribute)).parse(rest) {
        Ok((rest, attributes)) => {
            let attributes = attributes.into_iter().flatten();
            (rest, take_attributes(origination, attributes)?)
        }
        // Any steps may stand here, as in a filter that accepts.
        Err(_) => {
            let (rest, program) = language::attributes(scope, rest)?;
            let filter = Filter::from(program);
            if filter.asks_for_more() {
                let what = "steps without \"proto\", \"from\", \"gw\", \"preference\" and \"ifname\", which filters know";
                return Err(Err::Failure(ParseFault::new(at, what)));
            }
            if filter.sets_next_hop() && !origination.way.leads_nowhere() {
                return Err(Err::Failure(ParseFault::new(at, NO_NEXT_HOP)));
            }
            let Some(route) = admitted(Some(&filter), destination, origination) else {
                let what = "steps that come to an end";
                return Err(Err::Failure(ParseFault::new(at, what)));
            };
            (rest, route)
        }
    };
    let rest;
    (rest, origination) = steps;
    token(";")
        .map(|_| Line::Route(destination, origination.clone()))
        .parse(rest)
}

/// The attributes of a route.
fn take_attributes<'a>(
    mut origination: Origination,
    attributes: impl Iterator<Item = Located<'a, Attribute>>,
) -> Result<Origination, Err<ParseFault<'a>>> {
    for attribute in attributes {
        match attribute.value {
            Attribute::NextHop(_) if !origination.way.leads_nowhere() => {
                return Err(Err::Failure(ParseFault::new(attribute.at, NO_NEXT_HOP)));
            }
            Attribute::NextHop(address) => origination.next_hop = Some(address),
            Attribute::LocalPref(value) => origination.local_pref = Some(value),
            Attribute::Med(value) => origination.med = Some(value),
            Attribute::Origin(origin) => origination.origin = origin,
            Attribute::Prepend(asn) => origination.as_path.insert(0, Asn(asn)),
            Attribute::Community(community) => origination.communities.push(community),
        }
    }
    origination.communities.sort_unstable();
    origination.communities.dedup();
    Ok(origination)
}

/// `ipv4;`, or `ipv4 { LINE … };`.
fn channel<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Line<'a>> {
    let (rest, family) = family(s)?;
    let lines = opt(block(|s| channel_line(scope, family, s)));
    let (rest, lines) = terminated(lines, token(";")).parse(rest)?;
    let lines = lines.into_iter().flatten().map(|line| line.value);
    Ok((rest, Line::Channel(family, lines.collect())))
}

fn channel_line<'a>(scope: &mut Scope<'a>, family: Family, s: &'a str) -> Res<'a, ChannelLine<'a>> {
    let (rest, word) = one_of_words(&["preference", "import", "export", "table", "debug"], s)?;
    let (rest, line) = match word {
        "preference" => preference(scope, rest)?,
        "import" => {
            let (rest, import) = passes(scope, rest)?;
            (rest, ChannelLine::Import(import))
        }
        "export" => {
            let (rest, export) = passes(scope, rest)?;
            if !matches!(export, Passes::Nothing) {
                scope.note(skip(s), "export", "nothing goes to a static protocol");
            }
            (rest, ChannelLine::Nothing)
        }
        "table" => {
            let (rest, ()) = super::master(super::master_of(family), rest)?;
            (rest, ChannelLine::Nothing)
        }
        _ => (until_semicolon(rest)?.0, ChannelLine::Nothing),
    };
    token(";")(rest).map(|(rest, _)| (rest, line))
}

/// A route of ours comes before those of peers, whatever it is worth among its own kind.
fn preference<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, ChannelLine<'a>> {
    let at = skip(s);
    let (rest, value) = number(scope, s)?;
    if value > PEERS_PREFERENCE {
        return Ok((rest, ChannelLine::Preference(value)));
    }
    let what = format!(
        "a number from {} on: a static route is used before those of peers, which have {PEERS_PREFERENCE}",
        PEERS_PREFERENCE + 1
    );
    Err(Err::Failure(ParseFault::new(at, what)))
}

/// Behind `roa4` or `roa6`: nothing, or `{ table NAME; }`.
pub(super) fn roa_table<'a>(scope: &mut Scope<'a>, family: Family, s: &'a str) -> Res<'a, &'a str> {
    let at = skip(s);
    let lines = opt(block(|s| roa_line(scope, s)));
    let (rest, lines) = terminated(lines, token(";")).parse(s)?;
    let named = lines
        .into_iter()
        .flatten()
        .filter_map(|line| line.value)
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

/// `table NAME;`, or what holds for all entries: `import all;`, `export …;`.
fn roa_line<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Option<Located<'a, &'a str>>> {
    let (rest, word) = one_of_words(&["table", "import", "export"], s)?;
    if word == "table" {
        return terminated(symbol, token(";")).map(Some).parse(rest);
    }
    let at = skip(rest);
    let (rest, said) = passes(scope, rest)?;
    if word == "import" && !matches!(said, Passes::All) {
        let what = "\"all\": the entries of a table of origins are all used";
        return Err(Err::Failure(ParseFault::new(at, what)));
    }
    token(";").map(|_| None).parse(rest)
}

/// Behind `route PREFIX max`: `LENGTH as AS;`.
fn roa<'a>(scope: &mut Scope<'a>, prefix: Prefix, s: &'a str) -> Res<'a, Line<'a>> {
    let at = skip(s);
    let (rest, max) = number(scope, s)?;
    if max < prefix.len() || max > prefix.family().bits() {
        let what = format!(
            "a length from {} to {}",
            prefix.len(),
            prefix.family().bits()
        );
        return Err(Err::Failure(ParseFault::new(at, what)));
    }
    let (rest, asn) = preceded(token("as"), |s| number(scope, s)).parse(rest)?;
    token(";")
        .map(|_| Line::Roa(Roa { prefix, max, asn }))
        .parse(rest)
}

fn attribute(s: &str) -> Res<'_, Attribute> {
    const WORDS: [&str; 8] = [
        "bgp_next_hop",
        "bgp_local_pref",
        "bgp_med",
        "bgp_origin",
        "bgp_path",
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
        "bgp_origin" => delimited(token("="), origin, token(";"))
            .map(Attribute::Origin)
            .parse(rest),
        "bgp_path" => {
            let prepend = (token("."), token("prepend"), token("("));
            delimited(prepend, u32_number, (token(")"), token(";")))
                .map(Attribute::Prepend)
                .parse(rest)
        }
        list => delimited(add(), community::operand_of(list), end())
            .map(Attribute::Community)
            .parse(rest),
    }
}

fn origin(s: &str) -> Res<'_, Origin> {
    let (rest, word) = one_of_words(&["ORIGIN_IGP", "ORIGIN_EGP", "ORIGIN_INCOMPLETE"], s)?;
    let origin = match word {
        "ORIGIN_IGP" => Origin::Igp,
        "ORIGIN_EGP" => Origin::Egp,
        _ => Origin::Incomplete,
    };
    Ok((rest, origin))
}
