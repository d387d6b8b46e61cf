//! `diff(desired, actual, phase) -> [Op]`: what has to happen, in dependency order: links,
//! addresses, neighbours and FDB, routes, sysctls, NAT, and deletions last, in the opposite order.

mod by_key;
mod deferred;
mod gateway_key;
mod job;
mod objects;
mod shares;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use caracal_model::{IfName, Prefix, Problem, ProblemCode, merge_join};

use crate::actual::{Actual, ActualRoute};
use crate::desired::Desired;
use crate::kernel_objects::{
    FdbKey, IPIP_DEVICE, NeighbourKey, PlannedRoute, RouteKey, RouteKind, Tunnel, TunnelDevice,
};
use crate::links::{Link, Links};
use crate::op::Op;
use crate::ownership::{Owner, PROTOCOL_KERNEL};
use crate::problem::problem;
use crate::slice::{count_look, look_at};
pub use by_key::{Comparing, Comparison};
pub(crate) use job::CompareJob;
use job::DiffJob;
use objects::Objects;

/// How sure we are that what is not desired is unwanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not sure (start, stale datastore, peers without End-of-RIB): put, never delete.
    Learning,
    /// Sure: sweep what is ours and unwanted.
    Synced,
    /// A restart is expected: touch nothing.
    Frozen,
}

impl Phase {
    /// The word in status and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Learning => "learning",
            Self::Synced => "synced",
            Self::Frozen => "frozen",
        }
    }
}

/// Operations that make the kernel as desired. Empty when the kernel is as desired (AGENT-2).
#[must_use]
pub fn diff(desired: &Desired, actual: &Actual, phase: Phase) -> Vec<Op> {
    DiffJob::new(desired, actual, phase, None).finish().0
}

/// All that is ours, as deletions: what an uninstallation does.
#[must_use]
pub(crate) fn removal(actual: &Actual, ownership: &crate::ownership::Ownership) -> Vec<Op> {
    let nothing = Desired {
        ownership: ownership.clone(),
        ..Desired::default()
    };
    let mut ops = diff(&nothing, actual, Phase::Synced);
    if actual.nat.is_some() {
        ops.push(Op::DeleteNat);
    }
    ops
}

/// Next-hop objects of ours that no route leads through: what is left of them once routes are
/// handed back.
#[must_use]
pub fn unused_objects(actual: &Actual, ownership: &crate::ownership::Ownership) -> Vec<Op> {
    let nothing = Desired {
        ownership: ownership.clone(),
        ..Desired::default()
    };
    Objects::new(&nothing, actual, None).unused(actual, &[])
}

/// Those that will be left so by these changes of routes, which lead none through an object.
#[must_use]
pub fn unused_objects_after(
    ops: &[Op],
    actual: &Actual,
    ownership: &crate::ownership::Ownership,
) -> Vec<Op> {
    let mut actual = actual.clone();
    for op in ops {
        let key = match op {
            Op::ReplaceRoute(route) => route.key(),
            Op::DeleteRoute(route) => route.key(),
            _ => continue,
        };
        if let Some(there) = actual.routes.get_mut(&key) {
            there.retain(|there| match op {
                Op::DeleteRoute(route) => there != route,
                _ => there.tos != 0,
            });
        }
    }
    unused_objects(&actual, ownership)
}

/// Foreign devices in the place of wanted ones; they win (see [`crate::ownership`]).
fn foreign_devices(desired: &Desired, actual: &Actual) -> Vec<Problem> {
    let foreign = |tunnel: &Tunnel| {
        let link = actual.links.by_name(tunnel.name.as_str())?;
        let is_foreign = tunnel_state(tunnel, &actual.links) == TunnelState::Foreign;
        is_foreign.then(|| {
            let reason = format!(
                "a device of kind {:?} has the name of our {} device; it is not touched, and nothing goes through a tunnel of ours until it is renamed or removed",
                link.kind,
                tunnel.kind.as_str(),
            );
            let name = tunnel.name.as_str();
            problem(ProblemCode::AgentForeignDevice, name, reason)
        })
    };
    desired.tunnels.values().filter_map(foreign).collect()
}

/// A foreign route in the place of a wanted one; it wins, too.
fn foreign_route(
    desired: &Desired,
    planned: &PlannedRoute,
    there: &[ActualRoute],
) -> Option<Problem> {
    // However it leads there.
    let right = |r: &ActualRoute| r.satisfies(&planned.route);
    let RouteState::Foreign(other) = route_state(desired, there, right) else {
        return None;
    };
    let reason = format!(
        "a route of another program (protocol {}) has this prefix and metric {}; it stays and ours ({}) is not written; remove it if ours is the right one",
        other.protocol, other.metric, planned.route.target,
    );
    let prefix = other.prefix.to_string();
    Some(problem(ProblemCode::AgentForeignRoute, &prefix, reason))
}

/// What somebody else's routes with one key do to ours.
fn in_the_way(
    desired: &Desired,
    planned: Option<&PlannedRoute>,
    there: &[ActualRoute],
) -> Option<Problem> {
    match planned {
        Some(planned) => foreign_route(desired, planned, there),
        None => preferred_route(desired, there),
    }
}

/// A foreign route inside a pool that the kernel prefers to one of ours: it is more specific, or
/// has a lower metric. The kernel's own, of addresses of this machine, are named as ranges that lie
/// over each other. An unused address of a block of this node has no packets that could be taken.
fn preferred_route(desired: &Desired, there: &[ActualRoute]) -> Option<Problem> {
    let foreign = |r: &&ActualRoute| {
        r.tos == 0 && r.protocol != PROTOCOL_KERNEL && desired.ownership.route(r) == Owner::Foreign
    };
    let other = there.iter().find(foreign)?;
    let prefix = other.prefix;
    let pools = &desired.ownership.cluster.pools;
    let (pool, _) = pools.iter().find(|(pool, _)| pool.covers(&prefix))?;
    let covering = (pool.len()..=prefix.len()).rev();
    let mut covering = covering.filter_map(|len| Prefix::new(prefix.address(), len).ok());
    let planned = covering.find_map(|covering| desired.routes.get(&covering))?;
    let ours = &planned.route;
    if planned.kind == RouteKind::Blackhole || ours.prefix == prefix && ours.metric <= other.metric
    {
        return None;
    }
    let (protocol, metric) = (other.protocol, other.metric);
    let reason = format!(
        "a route of another program (protocol {protocol}, metric {metric}) takes what is sent there from ours to {} ({}); if ours is the right one, `ip route del {prefix} metric {metric}` removes it",
        ours.prefix, ours.target,
    );
    let subject = prefix.to_string();
    Some(problem(ProblemCode::AgentForeignRoute, &subject, reason))
}

/// Everything that stands in the way.
#[must_use]
pub(crate) fn conflicts(desired: &Desired, actual: &Actual) -> Vec<Problem> {
    let mut found = foreign_devices(desired, actual);
    for (_, planned, there) in routes_behind(desired, actual, None) {
        found.extend(in_the_way(desired, planned, there.unwrap_or_default()));
    }
    found
}

/// True when an op takes away a tunnel device of such a name, or what stands on it.
pub(crate) fn is_on_device(op: &Op, mut wanted: impl FnMut(&IfName) -> bool) -> bool {
    match op {
        Op::DeleteTunnel(name) | Op::DeleteAddress(name, _) => wanted(name),
        Op::DeleteNeighbour(key) => wanted(&key.link),
        Op::DeleteFdb(key, _) => wanted(&key.link),
        _ => false,
    }
}

const fn deletion_rank(op: &Op) -> u8 {
    match op {
        Op::DeleteRoute(_) => 0,
        Op::DeleteObject(_) => 1,
        Op::DeleteFdb(..) => 2,
        Op::DeleteNeighbour(_) => 3,
        Op::DeleteAddress(..) => 4,
        _ => 5,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TunnelState {
    Missing,
    /// Made by another process, which has not done so yet.
    Awaited,
    Foreign,
    /// Made with parameters that cannot be changed.
    Wrong,
    /// Needs MTU, MAC or up.
    Unset,
    Right,
}

fn tunnel_state(tunnel: &Tunnel, links: &Links) -> TunnelState {
    let Some(link) = links.by_name(tunnel.name.as_str()) else {
        return match tunnel.kind {
            TunnelDevice::Tun => TunnelState::Awaited,
            TunnelDevice::Ipip { .. } | TunnelDevice::Vxlan { .. } => TunnelState::Missing,
        };
    };
    if link.kind != tunnel.kind.as_str() {
        return TunnelState::Foreign;
    }
    let mac_is_right = match &tunnel.kind {
        _ if !is_made_like(tunnel, link, links) => return TunnelState::Wrong,
        TunnelDevice::Ipip { .. } | TunnelDevice::Tun => true,
        TunnelDevice::Vxlan { mac, .. } => link.mac == Some(*mac),
    };
    if link.up && link.mtu == tunnel.mtu && mac_is_right {
        TunnelState::Right
    } else {
        TunnelState::Unset
    }
}

fn is_made_like(tunnel: &Tunnel, link: &Link, links: &Links) -> bool {
    let TunnelDevice::Vxlan {
        vni,
        port,
        local,
        parent,
        ..
    } = &tunnel.kind
    else {
        let TunnelDevice::Ipip { local } = tunnel.kind else {
            return true;
        };
        // `tunl0` is the kernel's, and has none.
        return local.is_none() || local == link.local;
    };
    link.vxlan.as_ref().is_some_and(|made| {
        made.vni == *vni
            && made.port == *port
            && made.local == Some(*local)
            && !made.learning
            && !made.external
            && made
                .parent
                .and_then(|index| links.by_index(index))
                .is_some_and(|link| link.name == *parent)
    })
}

enum RouteState<'a> {
    Missing,
    /// Ours, but it leads elsewhere.
    Wrong,
    Right,
    Foreign(&'a ActualRoute),
}

/// Planned routes and those of the kernel behind a key, by their keys.
fn routes_behind<'a>(
    desired: &'a Desired,
    actual: &'a Actual,
    key: Option<RouteKey>,
) -> impl Iterator<
    Item = (
        RouteKey,
        Option<&'a PlannedRoute>,
        Option<&'a [ActualRoute]>,
    ),
> {
    let start = key.map_or(Bound::Unbounded, |key| Bound::Included(key.prefix));
    let planned = desired.routes.range((start, Bound::Unbounded));
    let planned = planned.map(|(_, p)| (p.route.key(), p));
    let planned = planned.filter(move |(other, _)| key.is_none_or(|key| *other > key));
    let start = key.map_or(Bound::Unbounded, Bound::Excluded);
    let there = actual.routes.range((start, Bound::Unbounded));
    merge_join(planned, there.map(|(key, all)| (*key, all.as_slice())))
}

/// How a wanted route stands, given those with its key.
fn route_state<'a>(
    desired: &Desired,
    there: &'a [ActualRoute],
    right: impl Fn(&ActualRoute) -> bool,
) -> RouteState<'a> {
    let mut same_key = there.iter().filter(|r| r.tos == 0).peekable();
    if same_key.peek().is_none() {
        return RouteState::Missing;
    }
    if there.iter().any(right) {
        return RouteState::Right;
    }
    // A replacement hits the first one, so all of them must be ours.
    same_key
        .find(|r| desired.ownership.route(r) == Owner::Foreign)
        .map_or(RouteState::Wrong, RouteState::Foreign)
}

struct Ops<'a> {
    desired: &'a Desired,
    /// Devices whose names somebody else holds, or that are awaited.
    blocked: BTreeSet<&'a IfName>,
    /// Interfaces that get another MAC address.
    readdressed: BTreeSet<&'a IfName>,
    /// Routes whose switch to the planned one is deferred.
    deferred: BTreeSet<RouteKey>,
    /// Devices of such routes.
    in_use: BTreeSet<IfName>,
    puts: Vec<Op>,
    deletes: Vec<Op>,
}

impl<'d> Ops<'d> {
    const fn empty(desired: &'d Desired) -> Self {
        Self {
            desired,
            blocked: BTreeSet::new(),
            readdressed: BTreeSet::new(),
            deferred: BTreeSet::new(),
            in_use: BTreeSet::new(),
            puts: Vec::new(),
            deletes: Vec::new(),
        }
    }

    /// Answers with what the rest of the diff has to reckon with: a device that is made anew loses
    /// what it had.
    fn tunnels<'a>(&mut self, actual: &'a Actual, phase: Phase) -> Cow<'a, Actual> {
        let mut rest = Cow::Borrowed(actual);
        for tunnel in self.desired.tunnels.values() {
            match tunnel_state(tunnel, &actual.links) {
                TunnelState::Missing => self.puts.push(Op::AddTunnel(tunnel.clone())),
                TunnelState::Unset => self.puts.push(Op::SetTunnel(tunnel.clone())),
                // Not to be had without a deletion; before we are sure, a wrong device is better
                // than none.
                TunnelState::Wrong if phase == Phase::Synced => {
                    self.puts.push(Op::DeleteTunnel(tunnel.name.clone()));
                    self.puts.push(Op::AddTunnel(tunnel.clone()));
                    rest.to_mut().remove_link(&tunnel.name);
                }
                TunnelState::Wrong
                | TunnelState::Awaited
                | TunnelState::Foreign
                | TunnelState::Right => {}
            }
        }
        let held = &self.desired.held;
        for link in actual.links.iter() {
            let ours = self.desired.ownership.tunnel(link);
            // tunl0 is the kernel's fallback device and cannot be deleted; it loses its addresses.
            // A TUN device goes with its process.
            let deletable = match link.kind.as_str() {
                "vxlan" => true,
                "ipip" => link.name.as_str() != IPIP_DEVICE,
                _ => false,
            };
            let unwanted = !self.desired.tunnels.contains_key(&link.name) && !held.devices();
            if ours && deletable && unwanted {
                self.deletes.push(Op::DeleteTunnel(link.name.clone()));
            }
        }
        rest
    }

    fn addresses(&mut self, actual: &Actual) {
        for tunnel in self.desired.tunnels.values() {
            if self.blocked.contains(&tunnel.name) {
                continue;
            }
            let link = actual.links.by_name(tunnel.name.as_str());
            if let Some(cidr) = tunnel.cidr()
                && link.is_none_or(|l| !l.addresses.contains(&cidr))
            {
                self.puts.push(Op::AddAddress(tunnel.name.clone(), cidr));
            }
        }
        for link in actual.links.iter() {
            let wanted = self.desired.tunnels.get(&link.name);
            // An address that IPAM has not given yet may be the one that is there.
            if wanted.is_some_and(|t| t.address.is_none()) {
                continue;
            }
            if wanted.is_none() && self.desired.held.devices() {
                continue;
            }
            for cidr in &link.addresses {
                if self.desired.ownership.address(link, cidr)
                    && wanted.and_then(Tunnel::cidr) != Some(*cidr)
                {
                    self.deletes
                        .push(Op::DeleteAddress(link.name.clone(), *cidr));
                }
            }
        }
    }

    /// At most so many neighbours; the last one, where there may be more.
    fn neighbours(
        &mut self,
        actual: &Actual,
        from: Bound<NeighbourKey>,
        most: usize,
    ) -> Option<NeighbourKey> {
        let range = (from, Bound::Unbounded);
        let wanted = self.desired.neighbours.range(range.clone());
        let all = merge_join(wanted, actual.neighbours.range(range));
        let key = |(key, ..): &(&NeighbourKey, _, _)| (*key).clone();
        look_at(all, most, key, |(key, wanted, there)| {
            let is_lost = self.readdressed.contains(&key.link);
            let put = wanted.filter(|mac| {
                is_lost || there.is_none_or(|n| !n.permanent || n.mac != Some(**mac))
            });
            let delete = || {
                let ours = |n| self.desired.ownership.neighbour(key, n);
                let held = self.desired.held.entries_of(&key.link);
                wanted.is_none() && !held && there.is_some_and(ours)
            };
            if let Some(mac) = put {
                if !self.blocked.contains(&key.link) {
                    self.puts.push(Op::PutNeighbour(key.clone(), *mac));
                }
            } else if delete() && !self.blocked.contains(&key.link) {
                self.deletes.push(Op::DeleteNeighbour(key.clone()));
            }
        })
    }

    /// The same of FDB entries.
    fn fdb(&mut self, actual: &Actual, from: Bound<FdbKey>, most: usize) -> Option<FdbKey> {
        let range = (from, Bound::Unbounded);
        let wanted = self.desired.fdb.range(range.clone());
        let all = merge_join(wanted, actual.fdb.range(range));
        let key = |(key, ..): &(&FdbKey, _, _)| (*key).clone();
        look_at(all, most, key, |(key, wanted, there)| {
            if wanted == there || self.blocked.contains(&key.link) {
                return;
            }
            let held = self.desired.held.entries_of(&key.link);
            match (wanted, there) {
                (Some(remote), _) => self.puts.push(Op::PutFdb(key.clone(), *remote)),
                (None, Some(remote)) if !held && self.desired.ownership.fdb(key) => {
                    self.deletes.push(Op::DeleteFdb(key.clone(), *remote));
                }
                (None, _) => {}
            }
        })
    }

    fn put_routes(&mut self, planned: &[&PlannedRoute], objects: &Objects<'_>, actual: &Actual) {
        for planned in planned {
            count_look();
            let route = &planned.route;
            if route.target.links().any(|link| self.blocked.contains(link)) {
                continue;
            }
            if self.desired.deferred.contains_key(&route.prefix)
                && self.deferred.iter().any(|key| key.prefix == route.prefix)
            {
                continue;
            }
            let right = |there: &ActualRoute| objects.is_right(route, there);
            let there = actual.routes.get(&route.key());
            let there = there.map_or(&[][..], Vec::as_slice);
            match route_state(self.desired, there, right) {
                RouteState::Missing => self.puts.push(Op::AddRoute(objects.lower(route))),
                RouteState::Wrong => self.puts.push(Op::ReplaceRoute(objects.lower(route))),
                RouteState::Right | RouteState::Foreign(_) => {}
            }
        }
    }

    /// Routes of one key, in the kernel's order.
    fn sweep(&mut self, routes: &[ActualRoute], objects: &Objects<'_>, actual: &Actual) {
        count_look();
        let Some(first) = routes.first() else { return };
        if self.deferred.contains(&first.key()) {
            return;
        }
        let planned = self.desired.routes.get(&first.prefix);
        let wanted = planned.filter(|p| p.route.metric == first.metric);
        let exact = wanted.and_then(|p| routes.iter().position(|r| objects.is_right(&p.route, r)));
        let foreign =
            |r: &ActualRoute| r.tos == 0 && self.desired.ownership.route(r) == Owner::Foreign;
        // The one that stays, because it is right or is being replaced.
        let stays = match (wanted, exact) {
            (None, _) => None,
            (Some(_), Some(index)) => Some(index),
            (Some(_), None) if routes.iter().any(foreign) => None,
            (Some(_), None) => routes.iter().position(|r| r.tos == 0),
        };
        for (index, route) in routes.iter().enumerate() {
            let delete = match self.desired.ownership.route(route) {
                _ if Some(index) == stays => false,
                Owner::Ours => true,
                Owner::Adoptable => planned.is_some_and(|p| {
                    p.kind == RouteKind::Local && p.route.target.links().eq(route.link())
                }),
                // It carries packets until ours is seen in the kernel.
                Owner::Leftover => match planned {
                    Some(planned) => {
                        let there = actual.routes.get(&planned.route.key());
                        let right = |r: &ActualRoute| objects.is_right(&planned.route, r);
                        there.is_some_and(|there| there.iter().any(right))
                    }
                    None => self.desired.ownership.is_certain(route),
                },
                Owner::Foreign => false,
            };
            if delete && !self.desired.held.route(route) {
                self.deletes.push(Op::DeleteRoute(route.clone()));
            }
        }
    }

    /// Before the neighbours: an interface that gets another MAC address loses them all.
    fn macs(&mut self, actual: &Actual) {
        for (name, mac) in &self.desired.macs {
            let link = actual.links.by_name(name.as_str());
            if link.is_some_and(|link| link.mac != Some(*mac)) {
                self.puts.push(Op::SetMac(name.clone(), *mac));
                self.readdressed.insert(name);
            }
        }
    }

    fn sysctls(&mut self, actual: &Actual) {
        for (path, value) in &self.desired.sysctls {
            if actual.sysctls.get(path) != Some(value) {
                self.puts.push(Op::WriteSysctl(path.clone(), value.clone()));
            }
        }
    }

    fn nat(&mut self, actual: &Actual) {
        if let Some(nat) = &self.desired.nat
            && actual.nat.as_ref() != Some(&nat.fingerprint())
        {
            self.puts.push(Op::PutNat(Arc::clone(nat)));
        }
    }
}
