//! Filters as templates see them.

use caracal_bgp::{
    AnyCommunity, AsPathPlace, Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict,
    PeerKind, RouteSource,
};

use super::{ActionView, ConditionView, FilterView, TermView, quoted};
use crate::RenderError;
use crate::pieces::{pattern, prefix, quotable};
use crate::symbols::Symbol;

pub(super) fn filter_view(
    name: &str,
    symbol: &Symbol,
    filter: &Filter,
) -> Result<FilterView, RenderError> {
    let what = format!("filter {name:?}");
    if filter.program.is_some() || filter.family.is_some() {
        return Err(RenderError::Inexpressible {
            what,
            value: "a filter of a bird-style file that is more than terms for both families"
                .to_owned(),
            reason: "only lists of terms are written",
        });
    }
    Ok(FilterView {
        symbol: symbol.text.clone(),
        name: symbol.stands_in.then(|| quoted(name)),
        terms: filter
            .terms
            .iter()
            .map(|term| term_view(term, &what))
            .collect::<Result<_, _>>()?,
    })
}

fn term_view(term: &FilterTerm, what: &str) -> Result<TermView, RenderError> {
    let mut actions = Vec::new();
    for (index, action) in term.actions.iter().enumerate() {
        let before = index.checked_sub(1).map(|i| &term.actions[i]);
        // Two paths in a row would read back as one.
        if let (Some(FilterAction::PrependAsPath(_)), FilterAction::PrependAsPath(_)) =
            (before, action)
        {
            actions.push(ActionView::Note { value: "next" });
        }
        action_views(action, &mut actions);
    }
    Ok(TermView {
        conditions: term
            .conditions
            .iter()
            .map(|condition| condition_view(condition, what))
            .collect::<Result<_, _>>()?,
        actions,
        bare: term.conditions.is_empty() && term.actions.is_empty() && term.verdict.is_some(),
        verdict: term.verdict.map(|verdict| match verdict {
            FilterVerdict::Accept => "accept",
            FilterVerdict::Reject => "reject",
        }),
    })
}

fn condition_view(condition: &FilterCondition, what: &str) -> Result<ConditionView, RenderError> {
    Ok(match condition {
        FilterCondition::Prefix { patterns, negated } => {
            if patterns.is_empty() {
                return Err(RenderError::Inexpressible {
                    what: what.to_owned(),
                    value: "a prefix condition without patterns".to_owned(),
                    reason: "a set has at least one element",
                });
            }
            let runs = patterns.chunk_by(|a, b| a.prefix.family() == b.prefix.family());
            let sets = runs.map(|run| {
                let texts: Result<Vec<_>, _> = run.iter().map(|p| pattern(p, what)).collect();
                texts.map(|texts| texts.join(", "))
            });
            ConditionView::Prefix {
                sets: sets.collect::<Result<_, _>>()?,
                operator: if *negated { "!~" } else { "~" },
                joined_by: if *negated { "&&" } else { "||" },
            }
        }
        FilterCondition::Community(community) => {
            let value = community.bird_value();
            match community {
                AnyCommunity::Standard(_) => ConditionView::Community { value },
                AnyCommunity::Large(_) => ConditionView::LargeCommunity { value },
                AnyCommunity::Extended(_) => ConditionView::ExtCommunity { value },
            }
        }
        FilterCondition::AsPath { asns, place } => ConditionView::AsPath {
            asns: asns.iter().map(|asn| asn.0).collect(),
            open_start: *place != AsPathPlace::Whole,
            open_end: *place == AsPathPlace::Anywhere,
        },
        FilterCondition::AsPathPrefix(asns) => ConditionView::AsPathPrefix {
            asns: asns.iter().map(|asn| asn.0).collect(),
        },
        FilterCondition::NextHop(range) => ConditionView::NextHop {
            prefix: prefix(range),
        },
        FilterCondition::PeerKind(PeerKind::Internal) => ConditionView::Internal,
        FilterCondition::PeerKind(PeerKind::External) => ConditionView::External,
        FilterCondition::Source(source) => ConditionView::Source {
            value: match source {
                RouteSource::Bgp => "RTS_BGP",
                RouteSource::Static => "RTS_STATIC",
            },
        },
        FilterCondition::Interface(text) => ConditionView::Interface {
            pattern: quotable(text, &format!("{what}, interface"))?,
        },
        FilterCondition::LocalPref(value) => ConditionView::LocalPref { value: *value },
    })
}

fn action_views(action: &FilterAction, out: &mut Vec<ActionView>) {
    match action {
        FilterAction::AddCommunity(community) => {
            let value = community.bird_value();
            out.push(match community {
                AnyCommunity::Standard(_) => ActionView::AddCommunity { value },
                AnyCommunity::Large(_) => ActionView::AddLargeCommunity { value },
                AnyCommunity::Extended(_) => ActionView::AddExtCommunity { value },
            });
        }
        FilterAction::RemoveCommunity(community) => {
            let value = community.bird_value();
            out.push(match community {
                AnyCommunity::Standard(_) => ActionView::RemoveCommunity { value },
                AnyCommunity::Large(_) => ActionView::RemoveLargeCommunity { value },
                AnyCommunity::Extended(_) => ActionView::RemoveExtCommunity { value },
            });
        }
        FilterAction::SetLocalPref(value) => out.push(ActionView::SetLocalPref { value: *value }),
        FilterAction::SetMed(value) => out.push(ActionView::SetMed { value: *value }),
        FilterAction::PrependAsPath(asns) if asns.is_empty() => {
            out.push(ActionView::Note { value: "prepend" });
        }
        FilterAction::PrependAsPath(asns) => {
            out.extend(
                asns.iter()
                    .rev()
                    .map(|asn| ActionView::Prepend { value: asn.0 }),
            );
        }
    }
}
