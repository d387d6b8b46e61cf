//! A filter in BIRD's words, for people: terms here, programs in `program/text.rs`.

use std::fmt::{self, Formatter};

use super::{
    AsPathPlace, Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PeerKind,
    PrefixPattern, RouteSource,
};
use crate::types::{AnyCommunity, Asn};

/// Patterns of a condition that are shown.
const SHOWN: usize = 8;

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(program) = &self.program {
            return program.fmt(f);
        }
        self.terms
            .iter()
            .try_for_each(|term| writeln!(f, "  {term}"))
    }
}

impl fmt::Display for FilterTerm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.conditions.is_empty() {
            let texts: Vec<String> = self.conditions.iter().map(ToString::to_string).collect();
            write!(f, "if {} then ", texts.join(" && "))?;
        }
        let mut deeds: Vec<String> = self.actions.iter().map(ToString::to_string).collect();
        let verdict = self.verdict.map(|verdict| match verdict {
            FilterVerdict::Accept => "accept".to_owned(),
            FilterVerdict::Reject => "reject".to_owned(),
        });
        deeds.extend(verdict);
        write!(f, "{};", deeds.join("; "))
    }
}

impl fmt::Display for FilterCondition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { patterns, negated } => {
                let sign = if *negated { "!~" } else { "~" };
                write!(f, "net {sign} [{}]", beginning(patterns))
            }
            Self::Community(community) => write!(f, "{} ~ {community}", list_of(*community)),
            Self::AsPathPrefix(asns) => write!(f, "bgp_path ~ [= {} * =]", numbers(asns)),
            Self::AsPath { asns, place } => {
                let numbers = numbers(asns);
                match place {
                    AsPathPlace::Anywhere => write!(f, "bgp_path ~ [= * {numbers} * =]"),
                    AsPathPlace::End => write!(f, "bgp_path ~ [= * {numbers} =]"),
                    AsPathPlace::Whole => write!(f, "bgp_path ~ [= {numbers} =]"),
                }
            }
            Self::NextHop(prefix) => write!(f, "bgp_next_hop ~ {prefix}"),
            Self::PeerKind(PeerKind::Internal) => f.write_str("the peer is internal"),
            Self::PeerKind(PeerKind::External) => f.write_str("the peer is external"),
            Self::Source(RouteSource::Bgp) => f.write_str("source = RTS_BGP"),
            Self::Source(RouteSource::Static) => f.write_str("source = RTS_STATIC"),
            Self::Interface(pattern) => write!(f, "ifname ~ {pattern:?}"),
            Self::LocalPref(value) => write!(f, "bgp_local_pref = {value}"),
        }
    }
}

impl fmt::Display for FilterAction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddCommunity(one) => write!(f, "{}.add({one})", list_of(*one)),
            Self::RemoveCommunity(one) => write!(f, "{}.delete({one})", list_of(*one)),
            Self::SetLocalPref(value) => write!(f, "bgp_local_pref = {value}"),
            Self::SetMed(value) => write!(f, "bgp_med = {value}"),
            Self::PrependAsPath(asns) => write!(f, "bgp_path.prepend({})", numbers(asns)),
        }
    }
}

const fn list_of(community: AnyCommunity) -> &'static str {
    match community {
        AnyCommunity::Standard(_) => "bgp_community",
        AnyCommunity::Large(_) => "bgp_large_community",
        AnyCommunity::Extended(_) => "bgp_ext_community",
    }
}

fn numbers(asns: &[Asn]) -> String {
    let texts: Vec<String> = asns.iter().map(ToString::to_string).collect();
    texts.join(" ")
}

fn beginning(patterns: &[PrefixPattern]) -> String {
    let shown = patterns.iter().take(SHOWN).map(ToString::to_string);
    let mut texts: Vec<String> = shown.collect();
    if patterns.len() > SHOWN {
        texts.push(format!("… {} in all", patterns.len()));
    }
    texts.join(", ")
}
