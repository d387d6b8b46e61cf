//! Policy between the decision process and a forwarding table: BIRD's `export` of a kernel
//! protocol, and its `import` for what others wrote there.
//!
//! Filters decide and nothing more: a forwarding table has no attributes that an action could set.
//! Filters for what comes from it do set attributes, for these routes are announced.

use std::borrow::Cow;
use std::collections::BTreeMap;

use caracal_model::{Family, Prefix};

use super::Rib;
use super::view::communities;
use crate::attrs::{PathAttrs, RouteType};
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
        let mut view = own(prefix, Cow::Borrowed(&attrs), None);
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

fn own<'a>(prefix: Prefix, attrs: Cow<'a, PathAttrs>, interface: Option<&'a str>) -> RouteView<'a> {
    RouteView {
        prefix,
        attrs,
        peer: PeerKind::Internal,
        source: RouteSource::Static,
        interface,
    }
}

/// A route of ours as the table has it.
pub(super) fn attributes(route: &Origination) -> PathAttrs {
    let (route_type, next_hop) = match &route.way {
        StaticWay::Blackhole => (RouteType::Blackhole, route.next_hop),
        StaticWay::Unreachable => (RouteType::Unreachable, route.next_hop),
        StaticWay::Prohibit => (RouteType::Prohibit, route.next_hop),
        StaticWay::Via(gateways) => match &gateways[..] {
            [gateway] => (RouteType::Via, Some(gateway.address)),
            _ => (RouteType::Multipath, None),
        },
        StaticWay::Recursive(address) => (RouteType::Recursive, Some(*address)),
        StaticWay::Interface(_) => (RouteType::Interface, None),
        StaticWay::Inherited(_) => (RouteType::Inherited, None),
    };
    let mut attrs = PathAttrs {
        next_hop,
        local_pref: route.local_pref,
        med: route.med,
        route_type,
        ..PathAttrs::default()
    };
    for community in &route.communities {
        attrs.add_community(*community);
    }
    attrs
}

/// Announcement of a route that is in the forwarding table and not of this speaker, by which
/// packets go this way; `None`: the filter rejects it. Actions set its attributes, but for the AS
/// path, which is empty on a route of ours.
#[must_use]
pub fn redistribute(
    filter: Option<&Filter>,
    prefix: Prefix,
    way: StaticWay,
) -> Option<Origination> {
    let route = Origination {
        way,
        ..Origination::default()
    };
    let Some(filter) = filter else {
        return Some(route);
    };
    let interface = match &route.way {
        StaticWay::Interface(name) | StaticWay::Inherited(Some(name)) => Some(name.as_str()),
        _ => None,
    };
    let mut view = own(prefix, Cow::Owned(attributes(&route)), interface);
    if !passes(filter, &mut view) {
        return None;
    }
    let attrs = view.attrs.into_owned();
    let mut communities = communities(&attrs);
    communities.sort_unstable();
    Some(Origination {
        next_hop: None,
        local_pref: attrs.local_pref,
        med: attrs.med,
        communities,
        way: route.way,
    })
}

impl Rib {
    /// Whether the best path of a prefix may go to the forwarding table. True without one.
    #[must_use]
    pub fn forwards(&self, prefix: &Prefix, policy: &FibExportFilter) -> bool {
        let Some(filter) = policy.0.get(&prefix.family()) else {
            return true;
        };
        let dest = self.table.find(prefix).map(|id| self.table.get(id));
        let Some(best) = dest.and_then(|dest| dest.best()) else {
            return true;
        };
        let Some(attrs) = best.accepted() else {
            return true;
        };
        let next_hop = attrs.way();
        let interface = next_hop.and_then(|hop| self.next_hops.interface(&hop));
        let mut view = own(*prefix, Cow::Borrowed(attrs), interface);
        if let Some(peer) = self.peers.get(best.peer) {
            (view.peer, view.source) = (peer.kind(), RouteSource::Bgp);
        }
        passes(filter, &mut view)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::policy::{FilterAction, FilterCondition, FilterTerm};
    use crate::types::AnyCommunity;

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
        let by = |interface: &str| StaticWay::Inherited(Some(interface.into()));
        let route = redistribute(Some(&filter), prefix, by("eth0")).unwrap();
        assert_eq!((route.med, route.local_pref), (Some(7), Some(50)));
        assert_eq!(
            route.communities,
            ["9:9".parse().unwrap(), extended],
            "sorted"
        );
        assert_eq!(redistribute(Some(&filter), prefix, by("wg0")), None);
        assert_eq!(
            redistribute(Some(&filter), prefix, StaticWay::Inherited(None)),
            None
        );
        let all = redistribute(None, prefix, by("eth0")).unwrap();
        assert_eq!((all.med, all.way), (None, by("eth0")));
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
