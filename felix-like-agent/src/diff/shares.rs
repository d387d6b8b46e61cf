//! Routes by their gateway, and the object of each gateway, where the kernel is as planned: what a
//! comparison by key has to know of the routes that it does not look at.
//!
//! A change of some destinations touches their gateways before and after it. A gateway of several
//! routes before and after keeps its object, whichever routes left or joined. Only where a gateway
//! gets or loses its object the other route through it is compared, too: there is at most one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{IfName, Prefix, SharedMap};
use foldhash::{HashMap, HashSet};

use super::gateway_key::{GatewayKey, SHARED, gateway_key};
use crate::actual::Actual;
use crate::kernel_objects::{PlannedRoute, Route};
use crate::ownership::Ownership;

/// A [`GatewayKey`] of its own.
type OwnGatewayKey = (IpAddr, IfName, Option<u32>);

type Routes = SharedMap<Prefix, PlannedRoute>;

/// Gateways, the destinations behind each, and their objects.
#[derive(Debug, Default)]
pub(super) struct Shares {
    members: HashMap<OwnGatewayKey, BTreeSet<Prefix>>,
    ids: HashMap<OwnGatewayKey, u32>,
    /// Objects of ours without a wanted gateway, with the destinations whose routes led through
    /// them.
    idle: BTreeMap<u32, BTreeSet<Prefix>>,
}

/// Scope of a change of some destinations.
#[derive(Debug)]
pub(super) struct Touched {
    /// Those destinations, and those whose routes get or lose an object with theirs.
    pub(super) prefixes: BTreeSet<Prefix>,
    /// Gateways of theirs that keep their object.
    ids: HashMap<OwnGatewayKey, u32>,
    /// Gateways that have had no object and want one.
    new: HashSet<OwnGatewayKey>,
    /// Objects whose gateway no route wants any more.
    pub(super) idle: BTreeSet<u32>,
}

impl Touched {
    /// The gateways that keep their object.
    pub(super) fn ids(&self) -> impl Iterator<Item = (GatewayKey<'_>, u32)> {
        let ids = self.ids.iter();
        ids.map(|((gateway, link, mtu), id)| ((*gateway, link, *mtu), *id))
    }

    /// True for a gateway that wants an object.
    pub(super) fn is_new(&self, gateway_key: &GatewayKey<'_>) -> bool {
        !self.new.is_empty() && self.new.contains(&own(*gateway_key))
    }
}

/// Decision about the objects that a change touched.
#[derive(Debug)]
pub(super) struct Decided {
    ids: Vec<(OwnGatewayKey, u32)>,
    idle: BTreeMap<u32, BTreeSet<Prefix>>,
}

impl Decided {
    /// `there`: what was compared.
    pub(super) fn new<'a>(
        ids: impl Iterator<Item = (GatewayKey<'a>, u32)>,
        idle: impl Iterator<Item = u32>,
        there: &Actual,
    ) -> Self {
        let mut idle: BTreeMap<u32, BTreeSet<Prefix>> =
            idle.map(|id| (id, BTreeSet::new())).collect();
        for route in there.all_routes() {
            if let Some(routes) = route.object().and_then(|id| idle.get_mut(&id)) {
                routes.insert(route.prefix);
            }
        }
        Self {
            ids: ids
                .map(|(gateway_key, id)| (own(gateway_key), id))
                .collect(),
            idle,
        }
    }
}

fn own((gateway, link, mtu): GatewayKey<'_>) -> OwnGatewayKey {
    (gateway, link.clone(), mtu)
}

fn own_gateway_key(routes: &Routes, prefix: &Prefix) -> Option<OwnGatewayKey> {
    gateway_key(&routes.get(prefix)?.route).map(own)
}

impl Shares {
    /// Of a kernel that is as planned. `None` where more than the plan's own routes decides about
    /// objects: a route of somebody else's leads through one of ours, or one is not as it should
    /// be.
    pub(super) fn new(routes: &Routes, actual: &Actual, ownership: &Ownership) -> Option<Self> {
        let mut shares = Self::default();
        for (prefix, planned) in routes {
            if let Some(gateway_key) = gateway_key(&planned.route) {
                let members = shares.members.entry(own(gateway_key)).or_default();
                members.insert(*prefix);
            }
        }
        let ours = |(id, object): (&u32, _)| ownership.object(*id, object).then_some(*id);
        let ours: HashSet<u32> = actual.objects.iter().filter_map(ours).collect();
        let mut stands_for: HashMap<u32, GatewayKey<'_>> = HashMap::default();
        for there in actual.all_routes() {
            let Some(id) = there.object().filter(|id| ours.contains(id)) else {
                continue;
            };
            let is_that = |planned: &&Route| {
                planned.key() == there.key()
                    && planned.mtu == there.mtu
                    && planned.protocol == there.protocol
                    && there.tos == 0
            };
            let planned = routes.get(&there.prefix).map(|p| &p.route).filter(is_that);
            let gateway_key = planned.and_then(gateway_key)?;
            if *stands_for.entry(id).or_insert(gateway_key) != gateway_key {
                return None;
            }
        }
        for (id, gateway_key) in stands_for {
            let hop = actual.objects.get(&id)?.hop.as_ref()?;
            let leads_there = hop.gateway == Some(gateway_key.0) && hop.link == *gateway_key.1;
            if !leads_there || shares.ids.insert(own(gateway_key), id).is_some() {
                return None;
            }
        }
        let has_object = |(gateway_key, members): (&OwnGatewayKey, &BTreeSet<Prefix>)| {
            (members.len() >= SHARED) == shares.ids.contains_key(gateway_key)
        };
        if !shares.members.iter().all(has_object) {
            return None;
        }
        let used: HashSet<u32> = shares.ids.values().copied().collect();
        let idle = ours.difference(&used);
        shares.idle = idle.map(|id| (*id, BTreeSet::new())).collect();
        Some(shares)
    }

    /// Takes over what is planned for these destinations.
    pub(super) fn follow(&mut self, keys: &BTreeSet<Prefix>, was: &Routes, is: &Routes) -> Touched {
        let mut before: BTreeMap<OwnGatewayKey, usize> = BTreeMap::new();
        let count = |shares: &Self, gateway_key: &OwnGatewayKey| {
            shares.members.get(gateway_key).map_or(0, BTreeSet::len)
        };
        for prefix in keys {
            let (old, new) = (own_gateway_key(was, prefix), own_gateway_key(is, prefix));
            for gateway_key in old.iter().chain(&new) {
                if !before.contains_key(gateway_key) {
                    before.insert(gateway_key.clone(), count(self, gateway_key));
                }
            }
            if old == new {
                continue;
            }
            if let Some(members) = old.and_then(|gateway_key| self.members.get_mut(&gateway_key)) {
                members.remove(prefix);
            }
            if let Some(gateway_key) = new {
                self.members.entry(gateway_key).or_default().insert(*prefix);
            }
        }
        let mut touched = Touched {
            prefixes: keys.clone(),
            ids: HashMap::default(),
            new: HashSet::default(),
            idle: self.idle.keys().copied().collect(),
        };
        for (gateway_key, before) in before {
            let now = count(self, &gateway_key);
            let turns = (before >= SHARED) != (now >= SHARED);
            if turns {
                touched
                    .prefixes
                    .extend(self.members.get(&gateway_key).into_iter().flatten());
            }
            if now == 0 {
                self.members.remove(&gateway_key);
            }
            if now < SHARED {
                touched.idle.extend(self.ids.remove(&gateway_key));
            } else if turns {
                touched.new.insert(gateway_key);
            } else if let Some(id) = self.ids.get(&gateway_key) {
                touched.ids.insert(gateway_key, *id);
            }
        }
        for prefix in self.idle.values().flatten() {
            touched.prefixes.insert(*prefix);
            let gateway_key = own_gateway_key(is, prefix).filter(|key| !touched.new.contains(key));
            if let Some((gateway_key, id)) =
                gateway_key.and_then(|gateway_key| self.ids.get_key_value(&gateway_key))
            {
                touched.ids.insert(gateway_key.clone(), *id);
            }
        }
        touched
    }

    /// Takes over what was decided about objects.
    pub(super) fn settle(&mut self, decided: Decided) {
        self.ids.extend(decided.ids);
        self.idle = decided.idle;
    }
}
