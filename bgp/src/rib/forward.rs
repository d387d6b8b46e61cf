//! Policy between the decision process and a forwarding table: BIRD's `export` of a kernel
//! protocol, and its `import` for what others wrote there.
//!
//! Of a route on its way into a forwarding table, filters decide, and may say from which address
//! packets are sent (`krt_prefsrc`): it has no other attributes. Filters for what comes from it,
//! and for routes of our own, do set attributes, for these routes are announced.

use std::borrow::Cow;
use std::collections::BTreeMap;

use caracal_model::{Family, Prefix};

use super::Rib;
use super::view::{LearnedRoute, communities};
use crate::attrs::{AsPath, PathAttrs, RouteType};
use crate::config::{Origination, StaticWay};
use crate::policy::{Filter, FilterVerdict, PeerKind, RouteSource, RouteView};

/// The filters between best routes and a forwarding table, by family. Of a family without one,
/// everything passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FibExportFilter(BTreeMap<Family, Filter>);

impl FibExportFilter {
    /// Whether an own route passes.
    #[must_use]
    pub fn admits_own(&self, prefix: Prefix, route: &Origination) -> bool {
        let Some(filter) = self.0.get(&prefix.family()) else {
            return true;
        };
        let attrs = attributes(route);
        let mut view = own(prefix, Cow::Borrowed(&attrs), route);
        passes(filter, &mut view)
    }
}

impl FromIterator<(Family, Filter)> for FibExportFilter {
    fn from_iter<I: IntoIterator<Item = (Family, Filter)>>(filters: I) -> Self {
        Self(filters.into_iter().collect())
    }
}

fn passes(filter: &Filter, view: &mut RouteView<'_>) -> bool {
    let decided = filter.run(view);
    decided.is_none_or(|decided| decided.verdict == FilterVerdict::Accept)
}

fn own<'a>(prefix: Prefix, attrs: Cow<'a, PathAttrs>, route: &'a Origination) -> RouteView<'a> {
    let (interface, gateway) = route.way.told();
    RouteView {
        interface,
        gateway,
        sender: route.sender(),
        ..RouteView::new(prefix, attrs, PeerKind::Internal, RouteSource::Static)
    }
}

/// A route of ours as the table has it.
pub(super) fn attributes(route: &Origination) -> PathAttrs {
    let (route_type, next_hop) = match &route.way {
        StaticWay::Blackhole => (RouteType::Blackhole, route.next_hop),
        StaticWay::Unreachable => (RouteType::Unreachable, route.next_hop),
        StaticWay::Prohibit => (RouteType::Prohibit, route.next_hop),
        StaticWay::Via(gateways) => match &gateways[..] {
            [gateway] => {
                let address = Some(gateway.address);
                (
                    RouteType::Via,
                    address.filter(|told| !told.is_unspecified()),
                )
            }
            _ => (RouteType::Multipath, None),
        },
        StaticWay::Recursive(address) => (RouteType::Recursive, Some(*address)),
        StaticWay::Interface(_) => (RouteType::Interface, None),
        StaticWay::Inherited { .. } => (RouteType::Inherited, None),
    };
    let mut attrs = PathAttrs {
        next_hop,
        local_pref: route.local_pref,
        med: route.med,
        origin: route.origin,
        as_path: AsPath::sequence(route.as_path.clone()),
        route_type,
        ..PathAttrs::default()
    };
    for community in &route.communities {
        attrs.add_community(*community);
    }
    attrs
}

/// A route of ours as a filter lets it in, with the attributes that the filter sets; `None`: it is
/// rejected.
#[must_use]
pub fn admitted(
    filter: Option<&Filter>,
    prefix: Prefix,
    route: Origination,
) -> Option<Origination> {
    let Some(filter) = filter else {
        return Some(route);
    };
    let mut view = own(prefix, Cow::Owned(attributes(&route)), &route);
    if !passes(filter, &mut view) {
        return None;
    }
    let next_hop = view.told_next_hop.or(route.next_hop);
    let attrs = view.attrs.into_owned();
    let mut communities = communities(&attrs);
    communities.sort_unstable();
    let ases = attrs.as_path.segments().flat_map(|(_, asns)| asns);
    Some(Origination {
        next_hop,
        local_pref: attrs.local_pref,
        med: attrs.med,
        origin: attrs.origin,
        as_path: ases.copied().collect(),
        communities,
        way: route.way,
        protocol: route.protocol,
    })
}

impl Rib {
    /// The best path of a prefix as it goes to the forwarding table; `None`: the filter rejects it.
    #[must_use]
    pub fn forwarded(
        &self,
        prefix: &Prefix,
        route: LearnedRoute,
        policy: &FibExportFilter,
    ) -> Option<LearnedRoute> {
        let Some(filter) = policy.0.get(&prefix.family()) else {
            return Some(route);
        };
        let dest = self.table.find(prefix).map(|id| self.table.get(id));
        let best = dest.and_then(|dest| dest.best());
        let Some((best, attrs)) = best.and_then(|best| Some((best, best.accepted()?))) else {
            return Some(route);
        };
        let attrs = Cow::Borrowed(&**attrs);
        let internal = PeerKind::Internal;
        let mut view = RouteView::new(*prefix, attrs, internal, RouteSource::Static);
        let way = match self.peers.get(best.peer) {
            Some(peer) => {
                (view.peer, view.source) = (peer.kind(), RouteSource::Bgp);
                view.sender = peer.sender();
                let way = view.attrs.way();
                way.map(|next_hop| self.next_hops.way(&next_hop))
            }
            None => {
                let route = self.config.originate.get(prefix);
                view.sender = route.map(Origination::sender).unwrap_or_default();
                Some(self.next_hops.own_way(prefix))
            }
        };
        (view.interface, view.gateway) = way.unwrap_or_default();
        passes(filter, &mut view).then_some(LearnedRoute {
            preferred_source: view.preferred_source,
            ..route
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::attrs::Origin;
    use crate::policy::{FilterAction, FilterCondition, FilterTerm};
    use crate::types::{AnyCommunity, Asn};

    fn term(
        conditions: Vec<FilterCondition>,
        actions: Vec<FilterAction>,
        verdict: FilterVerdict,
    ) -> FilterTerm {
        FilterTerm {
            conditions,
            actions,
            verdict: Some(verdict),
        }
    }

    #[test]
    fn an_own_route_passes_by_its_attributes() {
        let community: AnyCommunity = "1:2".parse().unwrap();
        let filter = Filter::from(vec![
            term(
                vec![FilterCondition::Community(community)],
                vec![],
                FilterVerdict::Accept,
            ),
            term(vec![], vec![], FilterVerdict::Reject),
        ]);
        let policy = FibExportFilter::from_iter([(Family::Ipv4, filter)]);
        let marked = Origination {
            communities: vec![community],
            ..Origination::default()
        };
        let v4: Prefix = "10.0.0.0/8".parse().unwrap();
        assert!(policy.admits_own(v4, &marked));
        assert!(!policy.admits_own(v4, &Origination::default()));
        let v6: Prefix = "fd00::/8".parse().unwrap();
        assert!(policy.admits_own(v6, &Origination::default()), "no filter");
    }

    #[test]
    fn what_others_wrote_is_announced_as_the_filter_says() {
        let extended = AnyCommunity::Extended("rt:1:2".parse().unwrap());
        let actions = vec![
            FilterAction::SetMed(7),
            FilterAction::SetLocalPref(50),
            FilterAction::AddCommunity(extended),
            FilterAction::AddCommunity("9:9".parse().unwrap()),
        ];
        let uplink = FilterCondition::Interface("eth*".to_owned());
        let filter = Filter::from(vec![
            term(vec![uplink], actions, FilterVerdict::Accept),
            term(vec![], vec![], FilterVerdict::Reject),
        ]);
        let prefix: Prefix = "10.0.0.0/8".parse().unwrap();
        let by = |interface: &str| StaticWay::Inherited {
            interface: (!interface.is_empty()).then(|| interface.into()),
            gateway: None,
        };
        let route = admitted(Some(&filter), prefix, by("eth0").into()).unwrap();
        assert_eq!((route.med, route.local_pref), (Some(7), Some(50)));
        assert_eq!(
            route.communities,
            ["9:9".parse().unwrap(), extended],
            "sorted"
        );
        let refused = [by("wg0"), by("")];
        for way in refused {
            assert_eq!(admitted(Some(&filter), prefix, way.into()), None);
        }
        let all = admitted(None, prefix, by("eth0").into()).unwrap();
        assert_eq!((all.med, all.way), (None, by("eth0")));
    }

    #[test]
    fn a_filter_sets_the_path_of_an_own_route_too() {
        let asns = vec![Asn(65001), Asn(65002)];
        let prepend = FilterAction::PrependAsPath(asns.clone());
        let filter = Filter::from(vec![term(vec![], vec![prepend], FilterVerdict::Accept)]);
        let prefix: Prefix = "10.0.0.0/8".parse().unwrap();
        let given = Origination {
            origin: Origin::Incomplete,
            as_path: vec![Asn(65003)],
            next_hop: Some([10, 0, 0, 9].into()),
            ..Origination::default()
        };
        let route = admitted(Some(&filter), prefix, given.clone()).unwrap();
        let as_path = [asns, given.as_path.clone()].concat();
        assert_eq!(route, Origination { as_path, ..given });
    }

    #[test]
    fn filters_see_no_local_pref_of_an_own_route_that_has_none() {
        let term = |value| {
            let conditions = vec![FilterCondition::LocalPref(value)];
            let rest = term(vec![], vec![], FilterVerdict::Reject);
            let filter = Filter::from(vec![term(conditions, vec![], FilterVerdict::Accept), rest]);
            FibExportFilter::from_iter([(Family::Ipv4, filter)])
        };
        let prefix: Prefix = "10.0.0.0/8".parse().unwrap();
        let plain = Origination::default();
        let given = Origination {
            local_pref: Some(100),
            ..Origination::default()
        };
        assert!(!term(100).admits_own(prefix, &plain));
        assert!(term(100).admits_own(prefix, &given));
    }
}
