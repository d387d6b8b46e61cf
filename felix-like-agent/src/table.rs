//! Kernel table of a speaker without a datastore: its best routes and nothing else.
//!
//! The same writer and the same comparison as for a node ([`crate::diff()`]), with another rule of
//! ownership: ours is what carries our protocol number, and nothing else is ever changed or
//! deleted, whatever its device or prefix (AGENT-5).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, IfName, InsertEach, Prefix};

use crate::actual::{Actual, ActualTarget};
use crate::desired::Desired;
use crate::diff::{Phase, diff};
use crate::kernel_objects::{
    ForwardingTarget, NextHop, PlannedRoute, Route, RouteKind, cluster_metric,
};
use crate::learned::Learned;
use crate::links::Links;
use crate::op::Op;
use crate::ownership::Ownership;

/// Protocol number of our routes in the kernel: no daemon's in `/etc/iproute2/rt_protos`, so that
/// neither BIRD (12) nor zebra (186) takes our routes for its own, nor we theirs.
pub const TABLE_PROTOCOL: u8 = 81;

/// BIRD's metric for routes that it exports to the kernel.
pub(crate) const TABLE_METRIC: u32 = 32;

pub(crate) const MAIN_TABLE: u32 = 254;

/// How the routes of one family are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSettings {
    /// Number of the kernel's table.
    pub table: u32,
    /// Protocol number: whatever carries it in the table is ours.
    pub protocol: u8,
    /// Metric of every route.
    pub metric: u32,
    /// Next hops of one route at most.
    pub paths: usize,
    /// The routes stay when the speaker leaves for good.
    pub persist: bool,
    /// Routes of others in the table are of interest.
    pub learn: Option<LearnScope>,
    /// Links on which next hops are link-local.
    pub near: BTreeSet<IfName>,
}

/// Which routes of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnScope {
    /// Those of administrators and of daemons that know no BGP.
    Some,
    /// Those of the kernel itself and of other BGP daemons as well.
    All,
}

impl Default for TableSettings {
    /// BIRD's defaults: the main table, metric 32, one path, nothing stays.
    fn default() -> Self {
        Self {
            table: MAIN_TABLE,
            protocol: TABLE_PROTOCOL,
            metric: TABLE_METRIC,
            paths: 1,
            persist: false,
            learn: None,
            near: BTreeSet::new(),
        }
    }
}

impl TableSettings {
    /// The rule of ownership in the table.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        Ownership {
            route_protocol: self.protocol,
            protocol_only: true,
            interface_prefixes: Vec::new(),
            ..Ownership::default()
        }
    }

    /// The route for a learned one; a blackhole for one without next hops. `Err`: no next hop can
    /// be reached.
    fn route(&self, prefix: Prefix, learned: &Learned) -> Result<Route, Vec<IpAddr>> {
        // The best path's first.
        let gateways = learned.gateways.iter().take(self.paths);
        let mut hops: Vec<NextHop> = gateways.map(NextHop::from).collect();
        // A route that leads nowhere is one of ours: a packet that no longer prefix covers ends
        // here.
        let ours = learned.next_hops.is_empty();
        if hops.is_empty() && !ours {
            return Err(learned.next_hops.clone());
        }
        if let [only] = &mut hops[..] {
            only.extra_weight = 0;
        }
        hops.sort_unstable();
        // IPv6 has no metric 0.
        let metric = match self.metric {
            0 => cluster_metric(prefix.family()),
            metric => metric,
        };
        Ok(Route {
            prefix,
            metric,
            protocol: self.protocol,
            target: match ours {
                true => ForwardingTarget::Blackhole,
                false => ForwardingTarget::Via(hops),
            },
            mtu: None,
            source: learned.preferred_source,
        })
    }
}

/// A route that somebody else wrote into a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The kernel's number for who wrote it.
    pub protocol: u8,
    /// The interface that it leads to; the first of several.
    pub interface: Option<IfName>,
    /// The gateway on it, when it is none of the destination itself.
    pub gateway: Option<IpAddr>,
}

/// By destination; of several routes to one, that of the lowest metric.
pub(crate) type Foreigners = BTreeMap<Prefix, Foreign>;

/// Protocol numbers of routes that the kernel makes itself: redirects, and subnets of interfaces.
const OF_THE_KERNEL: [u8; 3] = [0, 1, 2];
/// Protocol numbers of daemons that have their routes from BGP, or may have: zebra, BIRD, a node of
/// ours, a speaker of ours, BGP. What they wrote may have come from us.
const OF_BGP: [u8; 5] = [11, 12, 80, TABLE_PROTOCOL, 186];

/// The routes of others in the tables that are of interest. Never ours, whatever else is asked for:
/// a route must not be the reason of its own announcement.
#[must_use]
pub(crate) fn foreigners(tables: &Tables, actual: &Actual) -> Foreigners {
    let mut found: BTreeMap<Prefix, (u32, Foreign)> = BTreeMap::new();
    for route in actual.all_routes() {
        let Some(settings) = tables.get(&route.prefix.family()) else {
            continue;
        };
        let wanted = match settings.learn {
            None => false,
            Some(LearnScope::All) => true,
            Some(LearnScope::Some) => {
                !OF_THE_KERNEL.contains(&route.protocol) && !OF_BGP.contains(&route.protocol)
            }
        };
        if !wanted || route.protocol == settings.protocol || is_of_a_link(route.prefix) {
            continue;
        }
        // Unreachable, prohibited and encapsulated routes are not announced.
        let ActualTarget::Known(target) = &route.target else {
            continue;
        };
        let first = target.hops().first();
        let foreign = Foreign {
            protocol: route.protocol,
            interface: first.map(|hop| hop.link.clone()),
            gateway: first.and_then(|hop| hop.gateway),
        };
        let better = |(metric, _): &(u32, Foreign)| *metric <= route.metric;
        if !found.get(&route.prefix).is_some_and(better) {
            found.insert(route.prefix, (route.metric, foreign));
        }
    }
    let plain = found.into_iter();
    plain
        .map(|(prefix, (_, foreign))| (prefix, foreign))
        .insert_each()
}

/// Link-local and multicast ranges are in the table of every machine.
fn is_of_a_link(prefix: Prefix) -> bool {
    match prefix.address() {
        IpAddr::V4(v4) => prefix.len() > 0 && (v4.is_link_local() || v4.is_multicast()),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
    }
}

/// The tables by family; a family without one is not written.
pub type Tables = BTreeMap<Family, TableSettings>;

/// The changes for some prefixes, and those of them whose next hops are not resolved.
///
/// `actual` holds the routes of the tables; of them only those to these prefixes count.
#[must_use]
pub(crate) fn changes<'a>(
    tables: &Tables,
    wanted: impl IntoIterator<Item = (&'a Prefix, Option<&'a Learned>)>,
    actual: &Actual,
    phase: Phase,
) -> (Vec<Op>, BTreeSet<Prefix>) {
    let mut unreachable = BTreeSet::new();
    let mut planned: BTreeMap<Family, (Desired, Actual)> = BTreeMap::new();
    for (prefix, learned) in wanted {
        let Some(settings) = tables.get(&prefix.family()) else {
            continue;
        };
        let (desired, there) = planned.entry(prefix.family()).or_insert_with(|| {
            let ownership = settings.ownership();
            let desired = Desired {
                ownership,
                ..Desired::default()
            };
            (desired, Actual::default())
        });
        for route in actual.routes_to(prefix) {
            there.push_route(route.clone());
        }
        match learned.map(|learned| settings.route(*prefix, learned)) {
            None => {}
            Some(Err(_)) => {
                unreachable.insert(*prefix);
            }
            Some(Ok(route)) => {
                let kind = RouteKind::Direct;
                desired.routes.insert(*prefix, PlannedRoute { route, kind });
            }
        }
    }
    let ops = planned.values().flat_map(|(desired, there)| {
        // Interfaces are left out on purpose: devices are no business of a speaker's.
        debug_assert_eq!(there.links, Links::default());
        diff(desired, there, phase)
    });
    (ops.collect(), unreachable)
}

/// All that is ours in the tables, as deletions.
#[must_use]
pub(crate) fn removal(tables: &Tables, actual: &Actual) -> Vec<Op> {
    let ours = |(family, settings): (&Family, &TableSettings)| {
        let mut there = Actual::default();
        for route in actual.all_routes().filter(|r| r.prefix.family() == *family) {
            there.push_route(route.clone());
        }
        crate::diff::removal(&there, &settings.ownership())
    };
    tables.iter().flat_map(ours).collect()
}

/// Puts a change that was carried out into the picture of the tables.
pub(crate) fn note(actual: &mut Actual, op: &Op) {
    match op {
        Op::AddRoute(route) => actual.push_route(route.clone().into()),
        Op::ReplaceRoute(route) => actual.replace_route(route.clone().into()),
        Op::DeleteRoute(route) => {
            // It may be gone already.
            let _gone = actual.remove_route(route);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
