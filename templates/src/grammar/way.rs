//! Where packets of a static route go: nowhere, through gateways, to a link, or to wherever an
//! address is reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_bgp::{StaticGateway, StaticWay};
use caracal_model::Family;
use nom::Err;
use nom::Parser;
use nom::combinator::{cut, opt};
use nom::sequence::preceded;

use super::constant::{address, number};
use super::language::Scope;
use super::lexer::{ParseFault, Res, link, one_of_words, skip, string, token};

/// What may stand behind a gateway.
const NEXT: &str = "another gateway, \"weight\", \"{\" or \";\"";

/// What BIRD reads behind a gateway and is not done, with the reason.
const BEHIND_A_GATEWAY: [(&str, &str); 5] = [
    (
        "%",
        "the link of a gateway is found by its address; for one in no subnet of its link say \"onlink\" behind it",
    ),
    (
        "dev",
        "the link of a gateway is found by its address; for one in no subnet of its link say \"onlink\" behind it",
    ),
    (
        "onlink",
        "the gateway says on which link it is: \"10.0.0.1%eth0 onlink\"",
    ),
    ("bfd", "BFD runs with BGP peers only"),
    ("mpls", "there are no labels"),
];

/// `blackhole`, `unreachable`, `prohibit`, `via ADDRESS …`, `via "INTERFACE"`, `recursive ADDRESS`.
pub(super) fn way<'a>(scope: &mut Scope<'a>, family: Family, s: &'a str) -> Res<'a, StaticWay> {
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

/// A gateway, with its share of the packets: `ADDRESS [weight NUMBER]`, or a link: `"INTERFACE"`. A
/// link-local one, and one in no subnet of its link, says on which link it is: `fe80::1%eth0`,
/// `10.0.0.1%eth0 onlink`.
fn gateway<'a>(scope: &mut Scope<'a>, family: Family, s: &'a str) -> Res<'a, StaticGateway> {
    let (rest, mut gateway) = match string(s) {
        Ok((rest, link)) => {
            let mut gateway = StaticGateway::from(unspecified(family));
            gateway.interface = Some(link.into());
            (rest, gateway)
        }
        Err(_) => on_a_link(scope, family, s)?,
    };
    refuse_behind(rest)?;
    let Ok((rest, _)) = token("weight")(rest) else {
        return Ok((rest, gateway));
    };
    let at = skip(rest);
    let (rest, weight): (_, u32) = number(scope, rest)?;
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

/// The address of a gateway, and the link that it names.
fn on_a_link<'a>(scope: &Scope<'a>, family: Family, s: &'a str) -> Res<'a, StaticGateway> {
    let (rest, found) = reached(scope, family, s)?;
    let mut gateway = StaticGateway::from(found);
    let (after, named) = match link(rest)? {
        (rest, None) => opt(preceded(token("dev"), cut(string))).parse(rest)?,
        found => found,
    };
    let on_link = token("onlink")(after).ok();
    let interface = named.map(Into::into);
    match (is_link_local(found), interface, on_link) {
        (true, None, _) => {
            let what = "the interface of a link-local gateway: \"fe80::1%eth0\"";
            Err(Err::Failure(ParseFault::new(skip(rest), what)))
        }
        (true, interface, on_link) => {
            gateway.interface = interface;
            Ok((on_link.map_or(after, |(rest, _)| rest), gateway))
        }
        (false, Some(interface), Some((rest, _))) => {
            gateway.interface = Some(interface);
            Ok((rest, gateway))
        }
        // What follows the address is refused.
        (false, _, _) => Ok((rest, gateway)),
    }
}

/// The address of a gateway that is none: the destination itself is on the link.
const fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Options of gateways that are not done.
fn refuse_behind(s: &str) -> Result<(), Err<ParseFault<'_>>> {
    let behind = skip(s);
    for (word, why) in BEHIND_A_GATEWAY {
        if token(word)(behind).is_ok() {
            let what = format!("{NEXT}: {why}");
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
