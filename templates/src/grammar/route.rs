//! Static protocols: the routes that this speaker originates.

use caracal_bgp::Origination;
use caracal_model::Prefix;
use nom::Parser;
use nom::combinator::opt;
use nom::sequence::{delimited, terminated};

use super::community;
use super::lexer::{Res, block, family, ip_address, one_of_words, prefix, token};
use super::policy::assigned;

enum Attribute {
    NextHop(std::net::IpAddr),
    LocalPref(u32),
    Med(u32),
    Community(caracal_bgp::AnyCommunity),
}

/// A route, or nothing for the channel line.
pub(super) fn route(s: &str) -> Res<'_, Option<(Prefix, Origination)>> {
    let (rest, word) = one_of_words(&["route", "ipv4", "ipv6"], s)?;
    if word != "route" {
        return terminated(family, token(";")).map(|_| None).parse(s);
    }
    let (rest, destination) = prefix(rest)?;
    // A daemon's own way to a peer; the speaker leaves those to the kernel.
    if let Ok((rest, _)) = (token("via"), ip_address, token(";")).parse(rest) {
        return Ok((rest, None));
    }
    let (rest, _) = token("blackhole")(rest)?;
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
    Ok((rest, Some((destination, origination))))
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
