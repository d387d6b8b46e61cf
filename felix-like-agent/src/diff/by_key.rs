//! The comparison of some keys, where all others are known to be as desired: the same one, over the
//! part of both sides that they name.

use caracal_model::net::Prefix;

use super::{Phase, conflicts, diff};
use crate::actual::Actual;
use crate::desired::Desired;
use crate::op::Op;
use crate::plan::ChangedKeys;
use caracal_model::Problem;

/// True when each key can be compared for itself: routes that lead through objects, and those that
/// stay until the far end can receive, depend on others.
#[must_use]
pub(crate) fn is_by_key(desired: &Desired, actual: &Actual) -> bool {
    !desired.objects && actual.objects.is_empty() && desired.held.is_empty()
}

/// Operations for these keys, devices, addresses and sysctls, and the problems that prevent others.
#[must_use]
pub fn diff_of(
    keys: &ChangedKeys,
    desired: &Desired,
    actual: &Actual,
    phase: Phase,
) -> (Vec<Op>, Vec<Problem>) {
    let wanted = Desired {
        routes: part(&keys.prefixes, |prefix| desired.routes.get(prefix)),
        neighbours: part(&keys.neighbours, |key| desired.neighbours.get(key)),
        fdb: part(&keys.fdb, |key| desired.fdb.get(key)),
        tunnels: desired.tunnels.clone(),
        sysctls: desired.sysctls.clone(),
        nat: desired.nat.clone().filter(|_| keys.nat),
        ownership: desired.ownership.clone(),
        ..Desired::default()
    };
    let mut there = Actual {
        links: actual.links.clone(),
        neighbours: part(&keys.neighbours, |key| actual.neighbours.get(key)),
        fdb: part(&keys.fdb, |key| actual.fdb.get(key)),
        sysctls: actual.sysctls.clone(),
        nat: actual.nat.clone(),
        ..Actual::default()
    };
    let routes = |prefix: &Prefix| actual.routes_to(prefix).cloned().collect::<Vec<_>>();
    for route in keys.prefixes.iter().flat_map(routes) {
        there.push_route(route);
    }
    (diff(&wanted, &there, phase), conflicts(&wanted, &there))
}

fn part<'a, K: Clone + 'a, V: Clone + 'a, M: FromIterator<(K, V)>>(
    keys: impl IntoIterator<Item = &'a K>,
    of: impl Fn(&K) -> Option<&'a V>,
) -> M {
    let found = keys.into_iter();
    found
        .filter_map(|key| Some((key.clone(), of(key)?.clone())))
        .collect()
}
