//! Next-hop objects: one for each gateway, shared by all routes through it. The plan says where
//! routes lead; here it is only decided which object has which gateway, from the kernel's present
//! state.
//!
//! Objects of ours that are there keep their numbers, whatever process made them. They have
//! gateways of several routes: for a single route an object would be one message more and save
//! none. When all routes through an object are to get another gateway, the object is changed, in
//! one message, instead of the routes. An object goes once no route leads through it, because
//! the kernel deletes an object's routes with it; and never while a route of somebody else's does.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use foldhash::{HashMap, HashSet};

use super::gateway_key::{GatewayKey, gateway_key, gateway_key_of};
use super::shares::{Decided, Touched};
use crate::actual::{Actual, ActualObject, ActualRoute};
use crate::desired::Desired;
use crate::kernel_objects::{ForwardingTarget, NextHopObject, Route, RouteKey};
use crate::op::Op;
use crate::ownership::{FIRST_OBJECT, LAST_OBJECT, Owner};

/// A gateway that wants an object.
pub(super) struct Wanted<'a> {
    /// One of the routes through it.
    route: &'a Route,
    /// How many they are.
    pub(super) routes: usize,
}

/// Objects by the key of their gateway.
pub(super) struct Objects<'a> {
    ids: HashMap<GatewayKey<'a>, u32>,
    /// Objects to make and to change, in this order, before the routes.
    pub(super) puts: Vec<Op>,
    /// Objects of ours whose gateway no route wants.
    idle: BTreeSet<u32>,
    /// All objects: whoever made them, their numbers are in use.
    there: &'a BTreeMap<u32, ActualObject>,
    /// Numbers of objects to make.
    taken: HashSet<u32>,
}

/// The MTU of the routes through each object; `Err` when they have several.
pub(super) type Mtus = HashMap<u32, Result<Option<u32>, ()>>;

/// Takes the MTU of a route through an object into account.
pub(super) fn add_mtu(mtus: &mut Mtus, route: &ActualRoute) {
    if let Some(id) = route.object() {
        mtus.entry(id)
            .and_modify(|all| {
                if *all != Ok(route.mtu) {
                    *all = Err(());
                }
            })
            .or_insert(Ok(route.mtu));
    }
}

/// Gateways of planned routes.
pub(super) type Gateways<'a> = HashMap<GatewayKey<'a>, Wanted<'a>>;

/// Counts a planned route to its gateway.
pub(super) fn add_gateway<'a>(gateways: &mut Gateways<'a>, route: &'a Route) {
    if let Some(gateway_key) = gateway_key(route) {
        gateways
            .entry(gateway_key)
            .or_insert(Wanted { route, routes: 0 })
            .routes += 1;
    }
}

/// What all routes through an object want; `None` where they do not want the same.
pub(super) type Changes<'a> = BTreeMap<u32, Option<GatewayKey<'a>>>;

impl<'a> Objects<'a> {
    /// Those that are there. `part` = what is known of the objects of the whole, where `actual` is
    /// a part.
    pub(super) fn new(
        desired: &Desired,
        actual: &'a Actual,
        part: Option<(&'a Touched, &'a BTreeMap<u32, ActualObject>)>,
    ) -> Self {
        let ours = |(id, object): (&u32, &ActualObject)| {
            let ours = desired.ownership.object(*id, object);
            ours.then_some(*id)
        };
        let (ids, idle, there) = match part {
            Some((touched, there)) => (touched.ids().collect(), touched.idle.clone(), there),
            None => {
                let idle = actual.objects.iter().filter_map(ours).collect();
                (HashMap::default(), idle, &actual.objects)
            }
        };
        Self {
            ids,
            puts: Vec::new(),
            idle,
            there,
            taken: HashSet::default(),
        }
    }

    /// True when some of them have no gateway yet, or no more.
    pub(super) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Gives gateways the objects that lead there already.
    pub(super) fn retain_wanted(&mut self, mtus: &Mtus, wanted: &mut Gateways<'a>) {
        // One through which routes lead before one through which none does: it is made in the
        // moment before its routes.
        let (used, unused): (Vec<u32>, Vec<u32>) =
            self.idle.iter().partition(|id| mtus.contains_key(id));
        for id in used.into_iter().chain(unused) {
            let hop = self.there.get(&id).and_then(|object| object.hop.as_ref());
            let mtu = mtus.get(&id).copied().unwrap_or(Ok(None));
            if let (Some(hop), Ok(mtu)) = (hop, mtu)
                && let Some(gateway_key) = gateway_key_of(hop, mtu)
                && wanted.remove(&gateway_key).is_some()
            {
                self.ids.insert(gateway_key, id);
                self.idle.remove(&id);
            }
        }
    }

    /// Asks a route through an idle object what it wants. `deferred` = routes that stay as they are
    /// although another gateway is planned.
    pub(super) fn ask(
        &self,
        route: &ActualRoute,
        desired: &'a Desired,
        deferred: &BTreeSet<RouteKey>,
        next: &mut Changes<'a>,
    ) {
        let Some(id) = route.object().filter(|id| self.idle.contains(id)) else {
            return;
        };
        let planned = desired.routes.get(&route.prefix).map(|p| &p.route);
        let wants = planned
            .filter(|p| p.key() == route.key() && route.tos == 0)
            .filter(|_| !deferred.contains(&route.key()))
            .filter(|_| desired.ownership.route(route) == Owner::Ours)
            .filter(|p| p.mtu == route.mtu)
            .and_then(gateway_key);
        next.entry(id)
            .and_modify(|all| *all = all.filter(|gateway_key| Some(*gateway_key) == wants))
            .or_insert(wants);
    }

    /// Gives idle objects to gateways that have none yet, where all routes through them want that.
    pub(super) fn change(&mut self, next: &Changes<'a>, wanted: &mut Gateways<'a>) {
        for (id, gateway_key) in next {
            let Some(gateway_key) = *gateway_key else {
                continue;
            };
            let hop = self.there.get(id).and_then(|o| o.hop.as_ref());
            let same_family = hop
                .and_then(|hop| hop.gateway)
                .is_some_and(|gateway| gateway.is_ipv4() == gateway_key.0.is_ipv4());
            if same_family && let Some(wanted) = wanted.remove(&gateway_key) {
                self.ids.insert(gateway_key, *id);
                self.idle.remove(id);
                let object = object(*id, wanted.route);
                self.puts.extend(object.map(Op::ReplaceObject));
            }
        }
    }

    /// Makes objects for the gateways that are left.
    pub(super) fn make(&mut self, wanted: Gateways<'a>) {
        let new: BTreeMap<GatewayKey<'_>, Wanted<'_>> = wanted.into_iter().collect();
        for (gateway_key, wanted) in new {
            let id = self.free(gateway_key);
            self.ids.insert(gateway_key, id);
            let object = object(id, wanted.route);
            self.puts.extend(object.map(Op::AddObject));
        }
    }

    /// A number that nobody uses, in our range. The first choice follows from the key, so that it
    /// tends to stay the same.
    fn free(&mut self, gateway_key: GatewayKey<'_>) -> u32 {
        let mut hasher = DefaultHasher::new();
        gateway_key.hash(&mut hasher);
        let range = LAST_OBJECT - FIRST_OBJECT + 1;
        let first = u32::try_from(hasher.finish() % u64::from(range)).unwrap_or(0);
        let id = (0..range)
            .map(|n| FIRST_OBJECT + (first + n) % range)
            .find(|id| !self.there.contains_key(id) && !self.taken.contains(id))
            .unwrap_or(FIRST_OBJECT);
        self.taken.insert(id);
        id
    }

    /// True when a kernel route with a wanted one's key needs no change. What an object leads to is
    /// the object's matter.
    pub(super) fn is_right(&self, wanted: &Route, there: &ActualRoute) -> bool {
        let id = self.id(wanted);
        if id != there.object() {
            return false;
        }
        match (id, there.known()) {
            (None, _) => there.satisfies(wanted),
            (Some(_), Some(known)) => {
                wanted.key() == known.key()
                    && wanted.protocol == known.protocol
                    && wanted.mtu == known.mtu
            }
            (Some(_), None) => false,
        }
    }

    /// The number that a route to be written shall name.
    pub(super) fn id(&self, route: &Route) -> Option<u32> {
        gateway_key(route).and_then(|gateway_key| self.ids.get(&gateway_key).copied())
    }

    /// The route as it is written.
    pub(super) fn lower(&self, route: &Route) -> Route {
        let mut route = route.clone();
        if let (Some(id), [hop]) = (self.id(&route), route.target.hops()) {
            route.target = ForwardingTarget::Object(id, hop.clone());
        }
        route
    }

    /// Objects that can go together with these routes.
    pub(super) fn unused(&self, actual: &Actual, deletes: &[Op]) -> Vec<Op> {
        if self.idle.is_empty() {
            return Vec::new();
        }
        let mut gone: HashMap<RouteKey, Vec<&ActualRoute>> = HashMap::default();
        for op in deletes {
            if let Op::DeleteRoute(route) = op {
                gone.entry(route.key()).or_default().push(route);
            }
        }
        let leaves = |route: &ActualRoute| {
            let gone = gone.get(&route.key());
            gone.is_some_and(|gone| gone.contains(&route))
        };
        let through = actual.all_routes().filter_map(|r| Some((r.object()?, r)));
        let used: BTreeSet<u32> = through
            .filter(|(id, route)| self.idle.contains(id) && !leaves(route))
            .map(|(id, _)| id)
            .collect();
        let unused = self.idle.difference(&used);
        unused.map(|id| Op::DeleteObject(*id)).collect()
    }

    /// The decision, for the next comparison by key. `unused`: objects that go.
    pub(super) fn decided(&self, unused: &[Op], actual: &Actual) -> Decided {
        let goes = |id: &u32| unused.contains(&Op::DeleteObject(*id));
        let idle = self.idle.iter().copied().filter(|id| !goes(id));
        let ids = self.ids.iter().map(|(gateway_key, id)| (*gateway_key, *id));
        Decided::new(ids, idle, actual)
    }
}

fn object(id: u32, route: &Route) -> Option<NextHopObject> {
    let [hop] = route.target.hops() else {
        return None;
    };
    Some(NextHopObject {
        id,
        protocol: route.protocol,
        hop: hop.clone(),
    })
}
