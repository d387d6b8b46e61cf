//! Static protocols: the routes that this speaker originates.

use caracal_bgp::Origination;
use caracal_model::{Family, Prefix};
use nom::combinator::opt;
use nom::sequence::{delimited, terminated};
use nom::{Err, Parser};

use super::community;
use super::language::Scope;
use super::lexer::{
    Located, ParseFault, Res, block, family, ip_address, one_of_words, prefix, skip, switch, token,
};
use super::policy::assigned;

enum Attribute {
    NextHop(std::net::IpAddr),
    LocalPref(u32),
    Med(u32),
    Community(caracal_bgp::AnyCommunity),
}

enum Line {
    Channel(Family),
    Disabled(bool),
    Route(Prefix, Origination),
}

/// The block of a static protocol.
pub(super) fn routes<'a>(
    scope: &mut Scope<'a>,
    s: &'a str,
) -> Res<'a, Vec<Located<'a, (Prefix, Origination)>>> {
    let (rest, lines) = block(|s| line(scope, s))(s)?;
    let mut channel = None;
    let mut disabled = false;
    let mut routes = Vec::new();
    for Located { at, value } in lines {
        match value {
            Line::Channel(family) if channel.is_some_and(|known| known != family) => {
                let what = "one family in a static protocol; the other needs a protocol of its own";
                return Err(Err::Failure(ParseFault::new(at, what)));
            }
            Line::Channel(family) => channel = Some(family),
            Line::Disabled(off) => disabled = off,
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
    if disabled {
        routes.clear();
    }
    Ok((rest, routes))
}

fn line<'a>(scope: &mut Scope<'a>, s: &'a str) -> Res<'a, Line> {
    let (rest, word) = one_of_words(&["route", "ipv4", "ipv6", "disabled"], s)?;
    match word {
        "route" => {}
        "disabled" => {
            return terminated(switch, token(";"))
                .map(Line::Disabled)
                .parse(rest);
        }
        _ => return terminated(family, token(";")).map(Line::Channel).parse(s),
    }
    let (rest, destination) = prefix(rest)?;
    let at = skip(rest);
    let kinds = [
        "blackhole",
        "unreachable",
        "prohibit",
        "reject",
        "via",
        "recursive",
    ];
    let (rest, kind) = one_of_words(&kinds, rest)?;
    match kind {
        "via" | "recursive" => {
            let what = "\"blackhole\": a route through a gateway is not announced yet; with \
                        \"{ bgp_next_hop = ADDRESS; }\" behind it, internal peers hear of the gateway";
            return Err(Err::Failure(ParseFault::new(at, what)));
        }
        "blackhole" => {}
        other => scope.note(
            at,
            other,
            "in a table of the kernel the route is a blackhole",
        ),
    }
    let (rest, attributes) = terminated(opt(block(attribute)), token(";")).parse(rest)?;
    let mut origination = Origination::default();
    for attribute in attributes.into_iter().flatten() {
        match attribute.value {
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
