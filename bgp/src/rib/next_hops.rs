//! The next-hop table: how each next hop is resolved (RFC 4271 §9.1.2.1), over the underlay and
//! through our own best routes.
//!
//! The underlay comes in as a whole, so that a next hop that is heard of for the first time needs
//! no question and no answer. Every next hop of a stored path has an entry. An entry changes when
//! the underlay does, or when the paths to a destination change that some next hop lies in; only
//! what leads over a next hop that is then another one is decided again.
//!
//! * RIB-6: the table is a function of the underlay and of the paths that are stored, whatever was
//!   before.

mod graph;
mod own;
mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Family, Gateway, IfName, Prefix, Underlay, UnderlayRoute, unzoned};
use foldhash::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

pub(super) use self::graph::Node;
use super::families::slot;
use crate::config::StaticWay;

/// Interior cost of each recursion through a BGP route: a next hop on a link is nearer than one
/// behind a router learned from BGP.
const STEP_COST: u32 = 1024;

/// Unused next hops that are kept before they are swept.
const UNUSED: usize = 1024;

/// Gateway and interface by which a next hop is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedNextHop {
    /// Interior cost (RFC 4271 §9.1.2.2, e): lower is nearer.
    pub metric: u32,
    /// The interface, when it is known.
    pub interface: Option<IfName>,
    /// The gateway on the link; `None` = the next hop is on the link itself.
    pub gateway: Option<IpAddr>,
    /// Something is at the other end of the interface.
    pub carrier: bool,
    /// The route of our own table that it is resolved through; `None` = none, the underlay leads
    /// there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Prefix>,
}

impl From<&UnderlayRoute> for ResolvedNextHop {
    fn from(route: &UnderlayRoute) -> Self {
        Self {
            metric: route.metric,
            interface: route.interface.clone(),
            gateway: route.gateway,
            carrier: route.carrier,
            through: None,
        }
    }
}

impl Default for ResolvedNextHop {
    /// Reachable, metric 0, interface unknown.
    fn default() -> Self {
        Self::from(&UnderlayRoute::default())
    }
}

impl ResolvedNextHop {
    /// The same for destinations in `prefix`, when the next hop of the best path to it is reached
    /// like this.
    fn behind(self, next_hop: IpAddr, prefix: Prefix) -> Self {
        Self {
            metric: self.metric.saturating_add(STEP_COST),
            gateway: Some(self.gateway.unwrap_or_else(|| plain(next_hop))),
            through: Some(prefix),
            ..self
        }
    }

    fn gateways(&self, next_hop: IpAddr) -> Arc<[Gateway]> {
        let interface = self.interface.iter().cloned();
        let gateway = |interface| Gateway {
            address: self.gateway.unwrap_or_else(|| plain(next_hop)),
            interface,
            extra_weight: 0,
        };
        interface.map(gateway).collect()
    }
}

impl fmt::Display for ResolvedNextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let route = UnderlayRoute {
            metric: self.metric,
            interface: self.interface.clone(),
            gateway: self.gateway,
            carrier: self.carrier,
        };
        route.fmt(f)?;
        match self.through {
            Some(through) => write!(f, ", through the route to {through}"),
            None => Ok(()),
        }
    }
}

/// An address as the kernel and people have it: a link-local one beside its interface.
pub(super) const fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => IpAddr::V6(unzoned(v6)),
        other => other,
    }
}

/// Cost of a next hop for the decision process (RFC 4271 §9.1.2.2 e).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) metric: u32,
    pub(super) carrier: bool,
}

impl From<&ResolvedNextHop> for Cost {
    fn from(resolved: &ResolvedNextHop) -> Self {
        Self {
            metric: resolved.metric,
            carrier: resolved.carrier,
        }
    }
}

/// Resolution of a next hop; empty when it cannot be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Resolution {
    resolved: Option<ResolvedNextHop>,
    gateways: Arc<[Gateway]>,
}

impl Resolution {
    fn new(next_hop: IpAddr, resolved: Option<ResolvedNextHop>) -> Self {
        let gateways = resolved
            .as_ref()
            .map_or_else(Arc::default, |resolved| resolved.gateways(next_hop));
        Self { resolved, gateways }
    }

    fn cost(&self) -> Option<Cost> {
        self.resolved.as_ref().map(Cost::from)
    }

    /// Differences that matter to users of the next hop.
    fn moved(&self, old: &Self) -> Moved {
        Moved {
            cost: self.cost() != old.cost(),
            gateway: self.gateways != old.gateways,
        }
    }
}

/// A next hop of some path.
#[derive(Debug)]
struct NextHopEntry {
    /// By the underlay alone, and the length of its range.
    own: Option<ResolvedNextHop>,
    own_len: Option<u8>,
    /// Destinations with paths that contain it and are longer than the range of the underlay, the
    /// longest first.
    covering: Vec<Prefix>,
    now: Resolution,
    /// Number of sweeps for unused ones when a path came in with it.
    born: u64,
}

/// Change of a next hop's resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) cost: bool,
    pub(super) gateway: bool,
}

impl Moved {
    pub(super) const fn or(self, other: Self) -> Self {
        Self {
            cost: self.cost || other.cost,
            gateway: self.gateway || other.gateway,
        }
    }

    pub(super) const fn is_any(self) -> bool {
        self.cost || self.gateway
    }
}

/// A change of the next-hop table on its way through the routes.
#[derive(Debug, Default)]
pub(super) struct NextHopChange {
    moved: HashMap<IpAddr, Moved>,
    /// Every next hop has moved: somebody began to read the underlay, or ceased to.
    all: bool,
    /// The next hops that were met, and since when.
    seen: HashSet<IpAddr>,
    began: u64,
}

impl NextHopChange {
    /// True when no next hop has moved.
    pub(super) fn is_empty(&self) -> bool {
        self.moved.is_empty() && !self.all
    }

    /// True when some next hop is reached by another gateway.
    pub(super) fn has_gateways(&self) -> bool {
        self.all || self.moved.values().any(|moved| moved.gateway)
    }

    /// Notes that a stored path has this next hop, and says what of it has moved.
    pub(super) fn meet(&mut self, next_hop: IpAddr) -> Moved {
        self.seen.insert(next_hop);
        let moved = self.moved.get(&next_hop).copied().unwrap_or_default();
        moved.or(Moved {
            cost: self.all,
            gateway: self.all,
        })
    }

    /// Takes another one in, before it has begun.
    pub(super) fn join(&mut self, other: &Self) {
        self.all |= other.all;
        for (next_hop, moved) in &other.moved {
            let known = self.moved.entry(*next_hop).or_default();
            *known = known.or(*moved);
        }
    }
}

/// The next hops of all paths, and how each is reached.
#[derive(Debug, Default)]
pub(super) struct NextHopTable {
    underlay: Underlay,
    /// The lengths of the underlay's ranges by family, the longest first.
    lens: [Vec<u8>; 2],
    entries: HashMap<IpAddr, NextHopEntry>,
    /// Next hops in order, to find those that lie in a prefix.
    order: BTreeSet<IpAddr>,
    /// First octets of next hops, a bit for each, by family.
    octets: [[u64; 4]; 2],
    /// Next hops that lie in some destination of the table.
    recursive: BTreeSet<IpAddr>,
    /// Resolutions that differ between paths with one next hop, lest a path resolve through its own
    /// destination or one that depends on it.
    apart: BTreeMap<(Prefix, IpAddr), Resolution>,
    /// Destinations with next hops in them whose paths are others.
    stale: BTreeSet<Prefix>,
    /// Next hops that are not resolved yet.
    new: BTreeSet<IpAddr>,
    /// Where routes of our own lead that lead anywhere.
    own_ways: HashMap<Prefix, StaticWay>,
    clock: u64,
    /// Entries after the last look for unused ones.
    used: usize,
}

const fn first_octet(address: IpAddr) -> (usize, u8) {
    match address {
        IpAddr::V4(address) => (0, address.octets()[0]),
        IpAddr::V6(address) => (1, address.octets()[0]),
    }
}

/// The last address of a prefix.
fn last_address(prefix: &Prefix) -> IpAddr {
    prefix
        .nth(prefix.size() - 1)
        .unwrap_or_else(|| prefix.address())
}

impl NextHopTable {
    /// True once somebody reads the underlay. Until then every next hop counts as reached.
    pub(super) fn is_tracking(&self) -> bool {
        !self.underlay.routes.is_empty() || self.underlay.others != Some(UnderlayRoute::default())
    }

    pub(super) const fn underlay(&self) -> &Underlay {
        &self.underlay
    }

    fn resolution(&self, next_hop: &IpAddr, prefix: &Prefix) -> Option<&Resolution> {
        if !self.apart.is_empty()
            && let Some(apart) = self.apart.get(&(*prefix, *next_hop))
        {
            return Some(apart);
        }
        self.entries.get(next_hop).map(|entry| &entry.now)
    }

    /// The cost of a path's next hop; `None`: it cannot be reached.
    pub(super) fn cost(&self, next_hop: &IpAddr, prefix: &Prefix) -> Option<Cost> {
        if self.underlay.routes.is_empty() {
            return self.underlay.others.as_ref().map(|route| Cost {
                metric: route.metric,
                carrier: route.carrier,
            });
        }
        self.resolution(next_hop, prefix)?.cost()
    }

    /// Resolution of a path's next hop.
    pub(super) fn resolved(&self, next_hop: &IpAddr, prefix: &Prefix) -> Option<ResolvedNextHop> {
        if self.underlay.routes.is_empty() {
            return self.underlay.others.as_ref().map(ResolvedNextHop::from);
        }
        self.resolution(next_hop, prefix)?.resolved.clone()
    }

    /// Where packets for a path's next hop go; nowhere while nobody reads the underlay.
    pub(super) fn gateways(&self, next_hop: &IpAddr, prefix: &Prefix) -> Arc<[Gateway]> {
        if self.underlay.routes.is_empty() {
            let others = self.underlay.others.as_ref();
            return others.map_or_else(Arc::default, |route| {
                ResolvedNextHop::from(route).gateways(*next_hop)
            });
        }
        let found = self.resolution(next_hop, prefix);
        found.map_or_else(Arc::default, |found| Arc::clone(&found.gateways))
    }

    /// The interface by which a next hop is reached, and the gateway on it.
    pub(super) fn way(&self, next_hop: &IpAddr) -> (Option<&str>, Option<IpAddr>) {
        let entry = self.entries.get(next_hop);
        let Some(resolved) = entry.and_then(|entry| entry.now.resolved.as_ref()) else {
            return (None, None);
        };
        let gateway = resolved.gateway.unwrap_or_else(|| plain(*next_hop));
        (
            resolved.interface.as_ref().map(IfName::as_str),
            Some(gateway),
        )
    }

    /// True when some next hop lies in a prefix.
    fn contains_some(&self, prefix: &Prefix) -> bool {
        let (slot, octet) = first_octet(prefix.address());
        let bit = self.octets[slot][usize::from(octet / 64)] >> (octet % 64) & 1;
        (prefix.len() < 8 || bit == 1) && self.inside(prefix).next().is_some()
    }

    fn inside(&self, prefix: &Prefix) -> impl Iterator<Item = &IpAddr> {
        self.order.range(prefix.address()..=last_address(prefix))
    }

    /// The paths to a destination are others.
    pub(super) fn note_change(&mut self, prefix: &Prefix) {
        if !self.underlay.routes.is_empty() && self.contains_some(prefix) {
            self.stale.insert(*prefix);
        }
    }

    /// The route of the underlay to an address, and the length of its range.
    fn look_up(&self, address: IpAddr) -> (Option<ResolvedNextHop>, Option<u8>) {
        let lens = self.lens[slot(Family::of(address))].iter();
        let found = lens
            .filter_map(|len| {
                let route = self
                    .underlay
                    .routes
                    .get(&Prefix::truncated(address, *len))?;
                Some((route.as_ref(), Some(*len)))
            })
            .next();
        let (route, len) = found.unwrap_or((self.underlay.others.as_ref(), None));
        (route.map(ResolvedNextHop::from), len)
    }

    /// Takes a next hop in that a path is about to have. What it is before it is resolved, the
    /// underlay says.
    pub(super) fn track(&mut self, next_hop: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&next_hop) {
            entry.born = self.clock;
            return;
        }
        let (own, own_len) = self.look_up(next_hop);
        let now = Resolution::new(next_hop, own.clone());
        let entry = NextHopEntry {
            own,
            own_len,
            covering: Vec::new(),
            now,
            born: self.clock,
        };
        self.entries.insert(next_hop, entry);
        self.order.insert(next_hop);
        let (slot, octet) = first_octet(next_hop);
        self.octets[slot][usize::from(octet / 64)] |= 1 << (octet % 64);
        if !self.underlay.routes.is_empty() {
            self.new.insert(next_hop);
        }
    }

    #[cfg(test)]
    pub(super) fn tracked(&self) -> usize {
        self.entries.len()
    }

    /// True when many entries may be unused.
    pub(super) fn is_overgrown(&self) -> bool {
        self.entries.len() > self.used * 2 + UNUSED
    }

    /// A walk through all routes is on its way: none is needed until it has ended.
    pub(super) const fn expect_sweep(&mut self) {
        self.used = usize::MAX / 4;
    }

    /// A walk through all routes begins.
    pub(super) const fn begin_walk(&mut self, change: &mut NextHopChange) {
        change.began = self.clock;
        self.clock += 1;
    }

    /// Drops the entries that a walk through all routes has not met and that were there before it.
    pub(super) fn sweep(&mut self, change: &NextHopChange) {
        let unused = |next_hop: &IpAddr, entry: &NextHopEntry| {
            entry.born <= change.began && !change.seen.contains(next_hop)
        };
        let order = &mut self.order;
        let recursive = &mut self.recursive;
        self.entries.retain(|next_hop, entry| {
            let goes = unused(next_hop, entry);
            if goes {
                order.remove(next_hop);
                recursive.remove(next_hop);
            }
            !goes
        });
        self.used = self.entries.len();
    }
}
