//! From a received route to an accepted one: what a kind of session forbids, loops, policy.
//!
//! Pure functions of the route as received and the rules, so a change of policy is a second run
//! over the stored routes (RFC 4271 §9.1.1, Adj-RIB-In) and never needs the peer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{IfName, Prefix, unzoned, zoned};
use serde::{Deserialize, Serialize};

use super::intern::Interner;
use super::next_hops::NextHopTable;
use crate::attrs::PathAttrs;
use crate::config::BgpRole;
use crate::policy::{
    Filter, FilterDecision, FilterVerdict, PeerKind, RouteSource, RouteView, Sender,
};
use crate::types::{Asn, ClusterId, Community, RouterId};

/// Why a received route is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImportRefusal {
    /// Our AS stands in AS_PATH more often than allowed (RFC 4271 §9.1.2).
    AsLoop,
    /// ORIGINATOR_ID is ours (RFC 4456 §8).
    OriginatorLoop,
    /// CLUSTER_LIST holds a cluster of ours (RFC 4456 §8).
    ClusterLoop,
    /// NEXT_HOP is our own address (RFC 4271 §6.3).
    OwnNextHop,
    /// NEXT_HOP is a loopback address, on a session with another machine (RFC 4271 §6.3).
    LoopbackNextHop,
    /// There is no NEXT_HOP.
    NoNextHop,
    /// ONLY_TO_CUSTOMER says that it must not come from this peer (RFC 9234 §5).
    RouteLeak,
    /// AS_PATH does not begin with the peer's AS (RFC 4271 §6.3).
    FirstAs,
    /// An import filter rejected it.
    Policy,
    /// The limit of accepted prefixes is reached, and blocks what is new.
    OverLimit,
    /// The prefix must never be routed (RFC 4271 §6.3, `martian.rs`).
    NeverRouted,
    /// It does not come from the owner of the prefix ([`crate::OriginCheck`]).
    NotOwner,
    /// The owner of the prefix is not known yet, or may be out of date; the route waits.
    OwnerUnknown,
    /// The prefix covers addresses of nodes ([`crate::OriginCheck`]).
    OverNodes,
}

impl fmt::Display for ImportRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AsLoop => "our AS is in the AS path",
            Self::OriginatorLoop => "ORIGINATOR_ID is ours",
            Self::ClusterLoop => "CLUSTER_LIST holds our cluster",
            Self::OwnNextHop => "the next hop is our own address",
            Self::LoopbackNextHop => {
                "the next hop is a loopback address (127.0.0.0/8, ::1), and the session is not"
            }
            Self::NoNextHop => "the route has no next hop",
            Self::RouteLeak => {
                "it is for customers alone (ONLY_TO_CUSTOMER), and the peer's role is another"
            }
            Self::FirstAs => "the AS path does not begin with the peer's AS",
            Self::Policy => "rejected by import policy",
            Self::OverLimit => "the import limit is reached",
            Self::NeverRouted => "the prefix must never be routed",
            Self::NotOwner => "it does not come from the owner of the prefix",
            Self::OwnerUnknown => "it waits until the owner of the prefix is known",
            Self::OverNodes => "it covers nodes, and no import rule names its range",
        })
    }
}

/// The outcome of import: the attributes when policy has changed them, or why it is
/// refused.
pub(super) type Imported = Result<Option<Arc<PathAttrs>>, ImportRefusal>;

/// A filter with its name. Compared by content: a renamed peer of the same rules is no change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedFilter {
    pub(super) name: String,
    pub(super) filter: Filter,
}

/// Which filter and which of its terms decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidedBy {
    /// Name of the filter in the configuration.
    pub filter: String,
    /// Index of the term, from 0.
    pub term: usize,
    /// File and line, where the filter is a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl DecidedBy {
    pub(super) fn new(filter: &str, decision: &FilterDecision) -> Self {
        Self {
            filter: filter.to_owned(),
            term: decision.term,
            place: decision.place.as_ref().map(ToString::to_string),
        }
    }
}

impl fmt::Display for DecidedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{place} in filter {}", self.filter),
            None => write!(f, "term {} of filter {}", self.term + 1, self.filter),
        }
    }
}

/// Runs filters in order; the first verdict wins, and what no filter decides is accepted.
pub(super) fn run_filters<'f>(
    filters: &'f [Arc<NamedFilter>],
    route: &mut RouteView<'_>,
) -> (FilterVerdict, Option<(&'f str, FilterDecision)>) {
    for named in filters {
        if let Some(decided) = named.filter.run(route) {
            return (decided.verdict, Some((&named.name, decided)));
        }
    }
    (FilterVerdict::Accept, None)
}

/// The rules for routes from one peer.
#[derive(Clone, Debug)]
pub(super) struct ImportRules<'a> {
    pub(super) kind: PeerKind,
    /// Our role on the session, and the peer's AS.
    pub(super) role: Option<(BgpRole, Asn)>,
    /// Our AS on this session, and the speaker's.
    pub(super) own_as: [Asn; 2],
    pub(super) allow_own_as: u8,
    /// The AS with which each path has to begin; `None`: any.
    pub(super) first_as: Option<Asn>,
    pub(super) router_id: RouterId,
    pub(super) clusters: &'a BTreeSet<ClusterId>,
    /// Our end of the session, while there is one, and what we tell the peer as our next hops.
    pub(super) own_addresses: [Option<IpAddr>; 3],
    /// The peer as filters see it.
    pub(super) sender: Sender<'a>,
    pub(super) filters: &'a [Arc<NamedFilter>],
    /// Resolved next hops.
    pub(super) next_hops: &'a NextHopTable,
}

/// Takes away what a peer of this kind must not say, and adds what it should have said to us as its
/// customer, peer or client: that the route is for customers alone (RFC 9234 §5).
pub(super) fn correct(attrs: &mut PathAttrs, kind: PeerKind, role: Option<(BgpRole, Asn)>) {
    if let Some((_, remote_as)) = role.filter(|(role, _)| !role.is_above())
        && attrs.only_to_customer().is_none()
    {
        attrs.set_only_to_customer(Some(remote_as));
    }
    if kind == PeerKind::External {
        // RFC 4271 §5.1.5: LOCAL_PREF from an external peer is ignored. RFC 8326 §4.2: what is
        // about to go away is the last choice, as long as it is there; a filter may say otherwise.
        let leaving = attrs
            .communities
            .binary_search(&Community::GRACEFUL_SHUTDOWN)
            .is_ok();
        attrs.local_pref = leaving.then_some(0);
        // RFC 4456 §8, RFC 7606 §7.9 and §7.10: these have no meaning outside the AS.
        attrs.originator_id = None;
        attrs.cluster_list.clear();
    }
}

/// Says on which link the link-local next hop is: that of the peer, if it has one. Without a link
/// it leads nowhere.
pub(super) fn place(attrs: &mut PathAttrs, link: Option<&IfName>) {
    let Some(IpAddr::V6(told)) = attrs.next_hop else {
        return;
    };
    let alone = told.is_unicast_link_local().then(|| unzoned(told));
    if let Some(alone) = alone {
        attrs.next_hop = Some(alone.into());
    }
    let near = &mut attrs.link_local_next_hop;
    *near = match link {
        Some(link) => near.or(alone).map(|near| zoned(near, link)),
        None => near.map(unzoned),
    };
}

impl ImportRules<'_> {
    /// The reason why the protocol itself forbids to use the route.
    fn forbids(&self, attrs: &PathAttrs) -> Option<ImportRefusal> {
        let [session_as, speaker_as] = self.own_as;
        let allowed = usize::from(self.allow_own_as);
        let Some(next_hop) = attrs.next_hop else {
            return Some(ImportRefusal::NoNextHop);
        };
        if attrs.as_path.contains(session_as) > allowed
            || attrs.as_path.contains(speaker_as) > allowed
        {
            Some(ImportRefusal::AsLoop)
        } else if attrs.originator_id == Some(self.router_id) {
            Some(ImportRefusal::OriginatorLoop)
        } else if attrs
            .cluster_list
            .iter()
            .any(|cluster| self.clusters.contains(cluster))
        {
            Some(ImportRefusal::ClusterLoop)
        } else if self.own_addresses.contains(&Some(next_hop)) {
            Some(ImportRefusal::OwnNextHop)
        } else if next_hop.is_loopback() && !self.shares_the_host() {
            Some(ImportRefusal::LoopbackNextHop)
        } else if self.is_leak(attrs) {
            Some(ImportRefusal::RouteLeak)
        } else if let Some(asn) = self.first_as
            && attrs.as_path.first_as() != Some(asn)
        {
            Some(ImportRefusal::FirstAs)
        } else {
            None
        }
    }

    /// RFC 9234 §5: a customer or client of a route server tells of no route that is for customers
    /// alone, and a peer of its own ones.
    fn is_leak(&self, attrs: &PathAttrs) -> bool {
        match (self.role, attrs.only_to_customer()) {
            (Some((BgpRole::Peer, remote_as)), Some(by)) => by != remote_as,
            (Some((role, _)), Some(_)) => role.is_above(),
            (_, None) | (None, _) => false,
        }
    }

    /// Speakers of one machine may have a session, and next hops, between its loopback addresses.
    fn shares_the_host(&self) -> bool {
        self.own_addresses[0].is_none_or(|own| own.is_loopback())
    }

    pub(super) fn view<'v>(&'v self, prefix: Prefix, attrs: &'v PathAttrs) -> RouteView<'v> {
        let way = attrs.way().map(|next_hop| self.next_hops.way(&next_hop));
        let (interface, gateway) = way.unwrap_or_default();
        let attrs = Cow::Borrowed(attrs);
        RouteView {
            interface,
            gateway,
            sender: self.sender,
            ..RouteView::new(prefix, attrs, self.kind, RouteSource::Bgp)
        }
    }

    /// Import result that holds for every prefix with these attributes; `None`: policy has to look
    /// at each prefix.
    pub(super) fn import_any(&self, received: &PathAttrs) -> Option<Imported> {
        match self.forbids(received) {
            Some(refusal) => Some(Err(refusal)),
            None => self.filters.is_empty().then_some(Ok(None)),
        }
    }

    /// The outcome of import for a received route.
    pub(super) fn import(
        &self,
        prefix: Prefix,
        received: &PathAttrs,
        interner: &mut Interner,
    ) -> Imported {
        self.import_any(received)
            .unwrap_or_else(|| self.filter(prefix, received, interner))
    }

    /// Runs the import policy over a route that the protocol does not forbid.
    pub(super) fn filter(
        &self,
        prefix: Prefix,
        received: &PathAttrs,
        interner: &mut Interner,
    ) -> Imported {
        let mut route = self.view(prefix, received);
        match (run_filters(self.filters, &mut route).0, route.attrs) {
            (FilterVerdict::Reject, _) => Err(ImportRefusal::Policy),
            (FilterVerdict::Accept, Cow::Borrowed(_)) => Ok(None),
            (FilterVerdict::Accept, Cow::Owned(attrs)) => Ok(Some(interner.intern(attrs))),
        }
    }

    /// Filter and term that decided about a received route.
    pub(super) fn decided_by(&self, prefix: Prefix, received: &PathAttrs) -> Option<DecidedBy> {
        let (_, decided) = run_filters(self.filters, &mut self.view(prefix, received));
        decided.map(|(name, decision)| DecidedBy::new(name, &decision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attrs::AsPath;
    use crate::policy::{FilterAction, FilterTerm};

    fn attrs() -> PathAttrs {
        PathAttrs {
            as_path: AsPath::sequence([Asn(65001)]),
            next_hop: Some([10, 0, 0, 2].into()),
            ..PathAttrs::default()
        }
    }

    fn rules<'a>(
        clusters: &'a BTreeSet<ClusterId>,
        next_hops: &'a NextHopTable,
        allow_own_as: u8,
    ) -> ImportRules<'a> {
        ImportRules {
            kind: PeerKind::Internal,
            role: None,
            own_as: [Asn(64513), Asn(64512)],
            allow_own_as,
            first_as: None,
            router_id: RouterId([10, 0, 0, 1].into()),
            clusters,
            own_addresses: [Some([10, 0, 0, 1].into()), None, None],
            sender: Sender::default(),
            filters: &[],
            next_hops,
        }
    }

    fn check(change: impl FnOnce(&mut PathAttrs), allow_own_as: u8) -> Option<ImportRefusal> {
        let clusters = BTreeSet::from([ClusterId([1, 1, 1, 1].into())]);
        let next_hops = NextHopTable::default();
        let rules = rules(&clusters, &next_hops, allow_own_as);
        let mut attrs = attrs();
        change(&mut attrs);
        let prefix = Prefix::v4([10, 9, 0, 0].into(), 24);
        rules.import(prefix, &attrs, &mut Interner::default()).err()
    }

    #[test]
    fn rfc4271_9_1_2_own_as_in_the_path_is_a_loop() {
        let path =
            |asns: &[u32]| AsPath::sequence(asns.iter().copied().map(Asn).collect::<Vec<_>>());
        assert_eq!(check(|_| (), 0), None);
        assert_eq!(
            check(|a| a.as_path = path(&[1, 64512]), 0),
            Some(ImportRefusal::AsLoop)
        );
        assert_eq!(
            check(|a| a.as_path = path(&[1, 64513]), 0),
            Some(ImportRefusal::AsLoop)
        );
        assert_eq!(check(|a| a.as_path = path(&[64512, 1]), 1), None);
        assert_eq!(
            check(|a| a.as_path = path(&[64512, 1, 64512]), 1),
            Some(ImportRefusal::AsLoop)
        );
    }

    #[test]
    fn rfc4271_6_3_the_first_as_is_the_peers_where_it_has_to_be() {
        let (clusters, next_hops) = (BTreeSet::new(), NextHopTable::default());
        let refused = |first_as, path: &[u32]| {
            let rules = ImportRules {
                first_as,
                ..rules(&clusters, &next_hops, 0)
            };
            let attrs = PathAttrs {
                as_path: AsPath::sequence(path.iter().copied().map(Asn).collect::<Vec<_>>()),
                ..attrs()
            };
            let prefix = Prefix::v4([10, 9, 0, 0].into(), 24);
            rules.import(prefix, &attrs, &mut Interner::default()).err()
        };
        let wrong = Some(ImportRefusal::FirstAs);
        assert_eq!(refused(Some(Asn(65001)), &[65001, 7]), None);
        assert_eq!(refused(Some(Asn(65001)), &[7, 65001]), wrong);
        assert_eq!(refused(Some(Asn(65001)), &[]), wrong);
        assert_eq!(refused(None, &[7, 65001]), None);
    }

    #[test]
    fn rfc4456_8_reflection_loops() {
        let own = RouterId([10, 0, 0, 1].into());
        let cluster = |n: u8| ClusterId([n, 1, 1, 1].into());
        assert_eq!(
            check(|a| a.originator_id = Some(own), 0),
            Some(ImportRefusal::OriginatorLoop)
        );
        assert_eq!(
            check(|a| a.cluster_list = vec![cluster(2), cluster(1)].into(), 0),
            Some(ImportRefusal::ClusterLoop)
        );
        assert_eq!(check(|a| a.cluster_list = vec![cluster(2)].into(), 0), None);
    }

    #[test]
    fn rfc4271_6_3_own_next_hop() {
        assert_eq!(
            check(|a| a.next_hop = Some([10, 0, 0, 1].into()), 0),
            Some(ImportRefusal::OwnNextHop)
        );
        assert_eq!(
            check(|a| a.next_hop = None, 0),
            Some(ImportRefusal::NoNextHop)
        );
    }

    #[test]
    fn rfc4271_6_3_a_loopback_next_hop_leads_to_the_receiver() {
        for loopback in ["127.0.0.1", "127.9.9.9", "::1"] {
            let next_hop: Option<IpAddr> = loopback.parse().ok();
            let over = |own: &str| {
                let (clusters, next_hops) = (BTreeSet::new(), NextHopTable::default());
                let rules = ImportRules {
                    own_addresses: [own.parse().ok(), None, None],
                    ..rules(&clusters, &next_hops, 0)
                };
                rules.forbids(&PathAttrs {
                    next_hop,
                    ..attrs()
                })
            };
            assert_eq!(over("10.0.0.1"), Some(ImportRefusal::LoopbackNextHop));
            assert_eq!(over("fd00::1"), Some(ImportRefusal::LoopbackNextHop));
            // Two speakers of one machine.
            assert_eq!(over("127.0.0.2"), None);
        }
    }

    #[test]
    fn rfc4271_5_1_5_an_external_peer_has_no_say_in_local_pref() {
        let mut attrs = attrs();
        attrs.local_pref = Some(1000);
        attrs.originator_id = Some(RouterId([1, 1, 1, 1].into()));
        let mut internal = attrs.clone();
        correct(&mut attrs, PeerKind::External, None);
        assert_eq!((attrs.local_pref, attrs.originator_id), (None, None));
        correct(&mut internal, PeerKind::Internal, None);
        assert_eq!(internal.local_pref, Some(1000));
    }

    #[test]
    fn rfc8326_4_2_a_route_that_is_about_to_go_is_the_last_choice() {
        let mut leaving = attrs();
        leaving.local_pref = Some(1000);
        leaving.communities = vec![Community::new(64512, 1), Community::GRACEFUL_SHUTDOWN];
        let mut internal = leaving.clone();
        correct(&mut leaving, PeerKind::External, None);
        assert_eq!(leaving.local_pref, Some(0));
        // Inside the AS, LOCAL_PREF itself says it.
        correct(&mut internal, PeerKind::Internal, None);
        assert_eq!(internal.local_pref, Some(1000));
    }

    /// RFC 9234 §5, ingress: what a route that says so, or says nothing, becomes at each role.
    #[test]
    fn rfc9234_5_what_is_for_customers_alone_comes_from_above_or_is_a_leak() {
        let (remote, other) = (Asn(65001), Asn(65009));
        let became = |role: BgpRole, said: Option<Asn>| {
            let (clusters, next_hops) = (BTreeSet::new(), NextHopTable::default());
            let rules = ImportRules {
                kind: PeerKind::External,
                role: Some((role, remote)),
                ..rules(&clusters, &next_hops, 0)
            };
            let mut attrs = attrs();
            attrs.set_only_to_customer(said);
            correct(&mut attrs, PeerKind::External, rules.role);
            match rules.forbids(&attrs) {
                Some(refusal) => Err(refusal),
                None => Ok(attrs.only_to_customer()),
            }
        };
        let leak = Err(ImportRefusal::RouteLeak);
        for above in [BgpRole::Provider, BgpRole::RsServer] {
            assert_eq!(became(above, None), Ok(None));
            assert_eq!(became(above, Some(remote)), leak);
        }
        for below in [BgpRole::Customer, BgpRole::RsClient] {
            assert_eq!(became(below, None), Ok(Some(remote)));
            assert_eq!(became(below, Some(other)), Ok(Some(other)));
        }
        assert_eq!(became(BgpRole::Peer, None), Ok(Some(remote)));
        assert_eq!(became(BgpRole::Peer, Some(remote)), Ok(Some(remote)));
        assert_eq!(became(BgpRole::Peer, Some(other)), leak);
    }

    #[test]
    fn the_first_filter_with_a_verdict_wins_and_is_named() {
        let filter = |name: &str, verdict: Option<FilterVerdict>| {
            let term = FilterTerm {
                conditions: vec![],
                actions: vec![FilterAction::SetMed(1)],
                verdict,
            };
            let name = name.to_owned();
            Arc::new(NamedFilter {
                name,
                filter: Filter::from(vec![term]),
            })
        };
        let reject = Some(FilterVerdict::Reject);
        let filters = [filter("a", None), filter("b", reject), filter("c", reject)];
        let attrs = attrs();
        let prefix = Prefix::v4([10, 9, 0, 0].into(), 24);
        let (attrs, kind) = (Cow::Borrowed(&attrs), PeerKind::Internal);
        let mut route = RouteView::new(prefix, attrs, kind, RouteSource::Bgp);
        let (verdict, by) = run_filters(&filters, &mut route);
        let (name, decision) = by.expect("b decides");
        assert_eq!(
            (verdict, name, decision.term),
            (FilterVerdict::Reject, "b", 0)
        );
        assert_eq!(
            run_filters(&filters[..1], &mut route),
            (FilterVerdict::Accept, None)
        );
    }
}
