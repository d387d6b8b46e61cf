//! BGPFilters and communities as BIRD 1.6 writes them.

use caracal_bgp::{
    AnyCommunity, AsPathPlace, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PeerKind,
    PrefixPattern, RouteSource,
};
use caracal_model::Family;

use super::{Community, Filter, FilterCall, Function, Rule};
use crate::Problems;
use crate::filters::{
    DIRECTIONS, Direction, Found, find, function_name, names, refuse_all, translate,
};
use crate::view::NodeView;

/// All BGPFilters that have rules for the family.
pub(super) fn filters(view: &NodeView<'_>, family: Family, problems: &mut Problems) -> Vec<Filter> {
    let mut filters = Vec::new();
    for name in &names(view) {
        let mut functions = Vec::new();
        for direction in DIRECTIONS {
            let (rules, filter) = match find(view, name, direction, family) {
                Found::Missing | Found::Rules([]) => continue,
                Found::Rules(rules) => (rules, translate(name, rules, direction, family, problems)),
                Found::Refused => (&[][..], refuse_all()),
            };
            functions.push(Function {
                symbol: symbol(name, direction, family),
                takes_same_as: rules.iter().any(|rule| !rule.peer_type.is_empty()),
                rules: filter.terms.iter().map(rule).collect(),
            });
        }
        if !functions.is_empty() {
            let name = name.clone();
            filters.push(Filter { name, functions });
        }
    }
    filters
}

/// How a peer calls a filter; `None` when the filter does not exist or has nothing to say.
pub(super) fn call(
    view: &NodeView<'_>,
    name: &str,
    direction: Direction,
    family: Family,
    same_as: bool,
) -> Option<FilterCall> {
    let rules = match find(view, name, direction, family) {
        Found::Missing | Found::Rules([]) => return None,
        Found::Rules(rules) => rules,
        Found::Refused => &[],
    };
    let takes = rules.iter().any(|rule| !rule.peer_type.is_empty());
    Some(FilterCall {
        symbol: symbol(name, direction, family),
        argument: match (takes, same_as) {
            (false, _) => "",
            (true, true) => "true",
            (true, false) => "false",
        },
    })
}

fn symbol(name: &str, direction: Direction, family: Family) -> String {
    format!("'{}'", function_name(name, direction, family))
}

fn rule(term: &FilterTerm) -> Rule {
    let peer = term.conditions.iter().find_map(|c| match c {
        FilterCondition::PeerKind(PeerKind::Internal) => Some("is_same_as"),
        FilterCondition::PeerKind(PeerKind::External) => Some("!is_same_as"),
        _ => None,
    });
    let conditions: Vec<_> = term.conditions.iter().filter_map(condition).collect();
    let mut statements: Vec<String> = term.actions.iter().flat_map(statements).collect();
    statements.extend(term.verdict.map(|verdict| {
        match verdict {
            FilterVerdict::Accept => "accept;",
            FilterVerdict::Reject => "reject;",
        }
        .to_owned()
    }));
    Rule {
        peer,
        condition: (!conditions.is_empty()).then(|| conditions.join(" && ")),
        statements,
    }
}

/// `None` for the kind of peer, which stands around the rule.
fn condition(condition: &FilterCondition) -> Option<String> {
    Some(match condition {
        FilterCondition::PeerKind(_) => return None,
        FilterCondition::Prefix { patterns, negated } => {
            let texts: Vec<_> = patterns.iter().map(|p| range(p, *negated)).collect();
            texts.join(if *negated { " && " } else { " || " })
        }
        FilterCondition::Source(source) => {
            let source = match source {
                RouteSource::Bgp => "RTS_BGP",
                RouteSource::Static => "RTS_STATIC",
            };
            format!("((defined(source)) && (source ~ [ {source} ]))")
        }
        FilterCondition::Interface(pattern) => {
            // BIRD's strings have no escapes; a pattern with a quotation mark names no interface.
            let pattern = pattern.replace(['"', '\n'], "?");
            format!("((defined(ifname)) && (ifname ~ \"{pattern}\"))")
        }
        FilterCondition::Community(community) => {
            format!(
                "({} ~ {})",
                community.bird_value(),
                community.bird_attribute()
            )
        }
        FilterCondition::AsPath { asns, place } => {
            let numbers: Vec<String> = asns.iter().map(|asn| asn.0.to_string()).collect();
            let numbers = numbers.join(" ");
            match place {
                AsPathPlace::Anywhere => format!("(bgp_path ~ [= * {numbers} * =])"),
                AsPathPlace::End => format!("(bgp_path ~ [= * {numbers} =])"),
                AsPathPlace::Whole => format!("(bgp_path ~ [= {numbers} =])"),
            }
        }
        FilterCondition::AsPathPrefix(asns) => {
            let asns: Vec<_> = asns.iter().map(|asn| asn.0.to_string()).collect();
            format!("(bgp_path ~ [= {} * =])", asns.join(" "))
        }
        FilterCondition::LocalPref(value) => {
            format!("(defined(bgp_local_pref) && (bgp_local_pref = {value}))")
        }
        FilterCondition::NextHop(prefix) => {
            format!("(defined(bgp_next_hop) && (bgp_next_hop ~ {prefix}))")
        }
    })
}

fn range(pattern: &PrefixPattern, negated: bool) -> String {
    let prefix = pattern.prefix;
    let not = if negated { "!" } else { "" };
    match (pattern.min, pattern.max) {
        (min, max) if min == prefix.len() && max == min => {
            format!("(net {} {prefix})", if negated { "!=" } else { "=" })
        }
        (min, max) if min == prefix.len() && max == prefix.family().bits() => {
            format!("(net {not}~ {prefix})")
        }
        (min, max) => format!("(net {not}~ [ {prefix}{{{min},{max}}} ])"),
    }
}

fn statements(action: &FilterAction) -> Vec<String> {
    match action {
        FilterAction::AddCommunity(c) => vec![add(c)],
        FilterAction::RemoveCommunity(c) => {
            let (list, value) = (c.bird_attribute(), c.bird_value());
            vec![format!("{list}.delete({value});")]
        }
        FilterAction::SetLocalPref(value) => vec![format!("bgp_local_pref = {value};")],
        FilterAction::SetMed(value) => vec![format!("bgp_med = {value};")],
        FilterAction::PrependAsPath(asns) => asns
            .iter()
            .rev()
            .map(|asn| format!("bgp_path.prepend({});", asn.0))
            .collect(),
    }
}

fn add(community: &AnyCommunity) -> String {
    format!(
        "{}.add({});",
        community.bird_attribute(),
        community.bird_value()
    )
}

/// The communities of `prefixAdvertisements`.
pub(super) fn communities(view: &NodeView<'_>, family: Family) -> Vec<Community> {
    view.settings
        .advertisements
        .iter()
        .filter(|(range, _)| range.family() == family)
        .map(|(range, values)| Community {
            cidr: range.to_string(),
            statements: values.iter().map(add).collect(),
        })
        .collect()
}
