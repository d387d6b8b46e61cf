//! Communities in BIRD's notation: pairs, triples, and extended ones with a word in front.

use std::net::Ipv4Addr;

use caracal_bgp::{
    Administrator, AnyCommunity, Asn, Community, ExtCommunity, ExtKind, LargeCommunity,
};
use nom::branch::alt;
use nom::sequence::{delimited, preceded, separated_pair, terminated};
use nom::{Err, Parser};

use super::lexer::{
    ParseFault, Res, hex_number, ipv4_address, one_of_words, skip, token, u16_number, u32_number,
};

/// The attributes that hold them.
pub(super) const LISTS: [&str; 3] = ["bgp_community", "bgp_large_community", "bgp_ext_community"];

/// A community of the kind that an attribute holds.
pub(super) fn operand_of(list: &str) -> fn(&str) -> Res<'_, AnyCommunity> {
    match list {
        "bgp_large_community" => triple,
        "bgp_ext_community" => extended,
        _ => pair,
    }
}

/// `C ~ LIST`.
pub(super) fn carried(s: &str) -> Res<'_, AnyCommunity> {
    let [standard, large, extended] = LISTS.map(|list| {
        let holds = (token("~"), token(list));
        terminated(operand_of(list), holds)
    });
    alt((standard, large, extended)).parse(s)
}

/// `(A, B)`.
fn pair(s: &str) -> Res<'_, AnyCommunity> {
    delimited(
        token("("),
        separated_pair(u16_number, token(","), u16_number),
        token(")"),
    )
    .map(|(a, b)| AnyCommunity::Standard(Community::new(a, b)))
    .parse(s)
}

/// `(A, B, C)`.
fn triple(s: &str) -> Res<'_, AnyCommunity> {
    let comma = || token(",");
    delimited(
        token("("),
        (
            terminated(u32_number, comma()),
            terminated(u32_number, comma()),
            u32_number,
        ),
        token(")"),
    )
    .map(|(a, b, c)| AnyCommunity::Large(LargeCommunity(a, b, c)))
    .parse(s)
}

/// `(rt, 64512, 100)`, `(ro, 10.0.0.1, 100)`, `(generic, 0x43000000, 0x1)`.
fn extended(s: &str) -> Res<'_, AnyCommunity> {
    let (rest, _) = token("(")(s)?;
    let (rest, word) = one_of_words(&["rt", "ro", "generic"], rest)?;
    let kind = match word {
        "rt" => ExtKind::RouteTarget,
        "ro" => ExtKind::RouteOrigin,
        _ => {
            let half = || preceded(token(","), hex_number);
            return terminated((half(), half()), token(")"))
                .map(|(a, b)| AnyCommunity::Extended(ExtCommunity::generic(a, b)))
                .parse(rest);
        }
    };
    let (rest, administrator) = preceded(token(","), administrator).parse(rest)?;
    let at = skip(rest).strip_prefix(',').map_or(rest, skip);
    let (rest, number) = delimited(token(","), hex_number, token(")")).parse(rest)?;
    match ExtCommunity::known(kind, administrator, number) {
        Some(community) => Ok((rest, AnyCommunity::Extended(community))),
        None => Err(Err::Failure(ParseFault::new(
            at,
            "a number up to 65535 beside an address or an AS above 65535",
        ))),
    }
}

fn administrator(s: &str) -> Res<'_, Administrator> {
    let address = ipv4_address.map(|address: Ipv4Addr| Administrator::Address(address));
    let asn = hex_number.map(|asn| Administrator::As(Asn(asn)));
    alt((address, asn)).parse(s)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_bgp::{FilterAction, FilterCondition};

    use super::*;
    use crate::parse;

    fn file(filter: &str, route: &str) -> String {
        format!(
            "router id 10.0.0.1;
             define caracal_local_as = 64512;
             filter f {{ {filter} accept; }}
             protocol static {{ ipv4; route 10.1.0.0/16 blackhole {{ {route} }}; }}"
        )
    }

    #[test]
    fn rfc4360_targets_and_origins_in_birds_notation() {
        let config = parse(&file(
            "if ((rt, 64512, 100) ~ bgp_ext_community) && ((ro, 10.0.0.1, 7) ~ bgp_ext_community) then {
               bgp_ext_community.add((rt, 70000, 0x2a));
               bgp_ext_community.delete((generic, 0x43000000, 1));
             }",
            "bgp_ext_community.add((rt, 1, 70000));",
        ))
        .unwrap();
        let community = |text: &str| AnyCommunity::Extended(text.parse().unwrap());
        let term = &config.filters["f"].terms[0];
        assert_eq!(
            term.conditions,
            [
                FilterCondition::Community(community("rt:64512:100")),
                FilterCondition::Community(community("ro:10.0.0.1:7")),
            ]
        );
        assert_eq!(
            term.actions,
            [
                FilterAction::AddCommunity(community("rt:70000:42")),
                FilterAction::RemoveCommunity(community("generic:0x43000000:1")),
            ]
        );
        let (_, own) = config.originate.first_key_value().unwrap();
        assert_eq!(own.communities, [community("rt:1:70000")]);
    }

    #[test]
    fn what_is_no_community_is_told_with_its_place() {
        for (value, expected) in [
            ("(rt, 70000, 65536)", "a number up to 65535 beside"),
            ("(rt, 10.0.0.1, 65536)", "a number up to 65535 beside"),
            ("(soo, 1, 2)", "\"soo\" is not"),
            ("(rt, 1)", "expected \",\""),
            ("(generic, 0x100000000, 0)", "a number up to 0xffffffff"),
            (
                "(1, 2)",
                "what goes with a list of extended communities (this is a pair)",
            ),
        ] {
            let text = file(
                &format!("if true then {{ bgp_ext_community.add({value}); }}"),
                "",
            );
            let report = parse(&text).unwrap_err().report("f");
            assert!(report.contains(expected), "{value}: {report}");
        }
    }
}
