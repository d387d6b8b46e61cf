//! Configurations of a speaker that is about to leave: the same sessions, other export rules.
//! Neither needs a new session, and going back is one more reconfiguration.

use std::collections::BTreeMap;

use super::SpeakerConfig;
use crate::policy::{Filter, FilterAction, FilterTerm, FilterVerdict};
use crate::types::{AnyCommunity, Community};

/// Name of the filter that marks what no other filter decides; the suffix of the marked copies of
/// filters.
pub(crate) const LEAVING_FILTER: &str = "graceful_shutdown";

/// Name of the filter that lets nothing out.
pub(crate) const SILENT_FILTER: &str = "announce_nothing";

impl SpeakerConfig {
    /// Every announcement carries GRACEFUL_SHUTDOWN (RFC 8326 §4) and, towards internal peers,
    /// LOCAL_PREF 0, whatever export filters set: receivers prefer every other path while this one
    /// still works.
    #[must_use]
    pub fn leaving(mut self) -> Self {
        let mut marked = BTreeMap::new();
        for peer in self.peers.values_mut() {
            for name in &mut peer.export {
                let copy = format!("{name}_{LEAVING_FILTER}");
                if let Some(filter) = self.filters.get(name) {
                    marked
                        .entry(copy.clone())
                        .or_insert_with(|| mark_accepted(filter));
                    *name = copy;
                }
            }
            peer.export.push(LEAVING_FILTER.to_owned());
        }
        let rest = FilterTerm {
            conditions: Vec::new(),
            actions: mark().to_vec(),
            verdict: Some(FilterVerdict::Accept),
        };
        marked.insert(LEAVING_FILTER.to_owned(), Filter::from(vec![rest]));
        self.filters.extend(marked);
        self
    }

    /// Nothing is announced to anybody; what was announced is withdrawn.
    #[must_use]
    pub fn silent(mut self) -> Self {
        for peer in self.peers.values_mut() {
            peer.export = vec![SILENT_FILTER.to_owned()];
        }
        let nothing = FilterTerm {
            conditions: Vec::new(),
            actions: Vec::new(),
            verdict: Some(FilterVerdict::Reject),
        };
        let filter = Filter::from(vec![nothing]);
        self.filters.insert(SILENT_FILTER.to_owned(), filter);
        self
    }
}

fn mark() -> [FilterAction; 2] {
    [
        FilterAction::AddCommunity(AnyCommunity::Standard(Community::GRACEFUL_SHUTDOWN)),
        FilterAction::SetLocalPref(0),
    ]
}

/// The filter with the mark behind everything else it does to what it accepts. Only nodes leave so,
/// and their filters are terms.
fn mark_accepted(filter: &Filter) -> Filter {
    let mut marked = filter.clone();
    for term in &mut marked.terms {
        if term.verdict == Some(FilterVerdict::Accept) {
            term.actions.extend(mark());
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use caracal_model::Prefix;

    use super::*;
    use crate::attrs::PathAttrs;
    use crate::config::{Originations, PeerConfig, compare_configs};
    use crate::policy::{FilterCondition, PeerKind, PrefixPattern, RouteSource, RouteView};
    use crate::types::{Asn, PeerName, RouterId};

    fn prefix(n: u8) -> Prefix {
        Prefix::v4([10, 244, n, 0].into(), 26)
    }

    /// Accepts .1 with LOCAL_PREF 7, rejects .2, says nothing of .3.
    fn config() -> SpeakerConfig {
        let term = |n, actions, verdict| FilterTerm {
            conditions: vec![FilterCondition::Prefix {
                patterns: vec![PrefixPattern::exact(prefix(n))],
                negated: false,
            }],
            actions,
            verdict: Some(verdict),
        };
        let terms = vec![
            term(
                1,
                vec![FilterAction::SetLocalPref(7)],
                FilterVerdict::Accept,
            ),
            term(2, vec![], FilterVerdict::Reject),
        ];
        let mut peer = PeerConfig::new([10, 0, 0, 2].into(), Asn(64512));
        peer.export = vec!["out".to_owned()];
        peer.import = vec!["out".to_owned()];
        SpeakerConfig {
            local_as: Asn(64512),
            router_id: RouterId([10, 0, 0, 1].into()),
            listen: None,
            peers: BTreeMap::from([(PeerName::from("p"), peer)]),
            originate: Originations::default(),
            filters: BTreeMap::from([("out".to_owned(), Filter::from(terms))]),
            stations: BTreeMap::new(),
        }
    }

    /// LOCAL_PREF and communities of what goes out, `None` when nothing does.
    fn exported(config: &SpeakerConfig, n: u8) -> Option<(Option<u32>, Vec<Community>)> {
        let attrs = Cow::Owned(PathAttrs {
            local_pref: Some(100),
            ..PathAttrs::default()
        });
        let (kind, source) = (PeerKind::Internal, RouteSource::Static);
        let mut view = RouteView::new(prefix(n), attrs, kind, source);
        let peer = &config.peers[&PeerName::from("p")];
        let decided = peer
            .export
            .iter()
            .find_map(|name| config.filters[name].run(&mut view));
        let rejected = decided.is_some_and(|decided| decided.verdict == FilterVerdict::Reject);
        (!rejected).then(|| (view.attrs.local_pref, view.attrs.communities.clone()))
    }

    #[test]
    fn rfc8326_4_everything_that_goes_out_is_marked_whatever_filters_set() {
        let before = config();
        assert_eq!(exported(&before, 1), Some((Some(7), vec![])));
        assert_eq!(exported(&before, 3), Some((Some(100), vec![])));
        let leaving = before.leaving();
        let marked = Some((Some(0), vec![Community::GRACEFUL_SHUTDOWN]));
        assert_eq!(exported(&leaving, 1), marked);
        assert_eq!(exported(&leaving, 2), None);
        assert_eq!(exported(&leaving, 3), marked);
    }

    #[test]
    fn a_silent_speaker_announces_nothing() {
        let silent = config().silent();
        for n in 1..=3 {
            assert_eq!(exported(&silent, n), None);
        }
    }

    #[test]
    fn neither_needs_a_new_session_nor_touches_what_is_received() {
        for change in [
            compare_configs(&config(), &config().leaving()),
            compare_configs(&config().leaving(), &config().silent()),
            compare_configs(&config().silent(), &config()),
        ] {
            assert_eq!(change.peers.len(), 1);
            for peer in change.peers.values() {
                assert!(peer.export && !peer.reset && !peer.import && !peer.session);
            }
            assert!(change.originated.is_empty() && change.withdrawn.is_empty());
        }
    }
}
