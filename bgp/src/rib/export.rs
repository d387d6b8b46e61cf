//! From changed destinations to what is advertised to update groups and their members.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use caracal_model::{Family, Gateway, Prefix};

use super::dest_id::DestId;
use super::families::{FAMILIES, slot};
use super::jobs::JobKind;
use super::next_hops::plain;
use super::order::{export_route, in_order};
use super::out::{ExportCache, Group, GroupRoute, GroupUpdate, Member};
use super::peer_id::PeerId;
use super::table::{Dest, Rank};
use super::view::{LearnedRoute, communities};
use super::{Changes, DEFAULT_LOCAL_PREF, Outbound, Rib};
use crate::attrs::PathAttrs;
use crate::policy::PeerKind;

/// Destinations whose memory is prefetched together.
pub(super) const PREFETCH_BATCH: usize = 64;

impl Rib {
    /// Decides the first `most` destinations on the list and exports what changed.
    pub(super) fn decide_and_export(&mut self, most: usize, changes: &mut Changes) {
        let dirty: Vec<DestId> = if self.dirty.len() <= most {
            std::mem::take(&mut self.dirty).into()
        } else {
            self.dirty.drain(..most).collect()
        };
        if dirty.is_empty() {
            return;
        }
        self.decided += dirty.len() as u64;
        self.move_first(&dirty, changes);
        changes.prefixes.reserve(dirty.len());
        let mut updates: Vec<(ExportCache, Vec<GroupRoute>)> = Vec::new();
        updates.resize_with(self.groups.len(), Default::default);
        let add_path = FAMILIES.map(|family| self.exports_add_path(family));
        for (n, id) in dirty.iter().enumerate() {
            if n.is_multiple_of(PREFETCH_BATCH) {
                self.prefetch_exports(&dirty[n..dirty.len().min(n + PREFETCH_BATCH)]);
            }
            let id = *id;
            let dest = self.table.get_mut(id);
            dest.dirty = false;
            let changed = self.selector.decide(dest, &self.peers, &self.next_hops);
            let (prefix, gone) = (dest.prefix, dest.paths().is_empty());
            if changed {
                changes.prefixes.push(prefix);
            }
            let add_path = add_path[slot(prefix.family())];
            if changed || add_path {
                self.export(id, changed, add_path, &mut updates);
            }
            if gone {
                self.screen.forget(&prefix);
                self.table.release(id);
            }
        }
        for (group, (_, routes)) in self.groups.iter().zip(updates) {
            if let Some(group) = group.as_ref().filter(|_| !routes.is_empty()) {
                changes.out.extend(group_updates(group, routes));
            }
        }
    }

    /// True when some group takes several paths of a family.
    fn exports_add_path(&self, family: Family) -> bool {
        let mut groups = self.groups.iter().flatten();
        groups.any(|group| group.key.paths_of(family).is_some())
    }

    /// Exports a destination to the groups: to those that take one path when another one is the
    /// best, to those that take `add_path` when anything is another.
    fn export(
        &mut self,
        id: DestId,
        changed: bool,
        add_path: bool,
        updates: &mut [(ExportCache, Vec<GroupRoute>)],
    ) {
        let dest = self.table.get(id);
        let own = &self.config.originate;
        let (all, best);
        let paths = if add_path {
            all = in_order(dest, &self.peers, &self.next_hops, own);
            &all[..]
        } else {
            best = export_route(dest, &self.peers, &self.next_hops, own);
            best.as_slice()
        };
        for (group, (cache, routes)) in self.groups.iter_mut().zip(updates) {
            let Some(group) = group else { continue };
            if changed || group.key.paths_of(dest.prefix.family()).is_some() {
                let shared = (cache, &mut self.interner);
                group.update(id, dest.prefix, paths, shared, routes);
            }
        }
    }

    /// Before these destinations change, send peers that are switching groups the difference
    /// between both groups' advertisements.
    fn move_first(&mut self, dirty: &[DestId], changes: &mut Changes) {
        for (peer, from, done) in self.moves() {
            let mut routes = Vec::new();
            for id in dirty.iter().filter(|id| id.index() >= done) {
                self.move_dest(*id, peer, from, &mut routes);
            }
            if !routes.is_empty() {
                changes.out.push(Outbound::Peer { peer, routes });
            }
        }
    }

    /// Has what the groups remember of these destinations on its way to the caches: what is
    /// withdrawn comes in another order than it was announced in, and each look by itself would
    /// wait for memory.
    fn prefetch_exports(&self, ids: &[DestId]) {
        let groups = self.groups.iter().flatten();
        let read = groups.map(|group| ids.iter().map(|id| group.prefetch(*id)).sum::<usize>());
        // `black_box` keeps the compiler from dropping the prefetch loads.
        std::hint::black_box(read.sum::<usize>());
    }

    /// The index of the group with the export rules of an established peer, made if necessary.
    pub(super) fn group_for(&mut self, peer: PeerId) -> Option<usize> {
        let key = self.peers.get(peer)?.group_key(peer)?;
        let same = |group: &Option<Group>| group.as_ref().is_some_and(|group| group.key == key);
        if let Some(index) = self.groups.iter().position(same) {
            return Some(index);
        }
        let group = Group::new(key);
        let free = self.groups.iter().position(Option::is_none);
        let index = free.unwrap_or(self.groups.len());
        if free.is_none() {
            self.groups.push(None);
        }
        self.groups[index] = Some(group);
        let cache = Box::default();
        self.queue(JobKind::Fill {
            group: index,
            cache,
        });
        Some(index)
    }

    /// Makes an established peer a member of its group.
    pub(super) fn enter_group(&mut self, peer: PeerId) {
        if let Some(index) = self.group_for(peer) {
            self.join(peer, index);
        }
    }

    /// Makes an established peer a member of a group.
    pub(super) fn join(&mut self, peer: PeerId, index: usize) {
        if let Some(group) = self.groups[index].as_mut()
            && let Some(state) = self.peers.get_mut(peer)
            && let Some(session) = &state.session
        {
            group.join(peer, session.remote_address);
            state.group = Some(index);
        }
    }

    pub(super) fn leave_group(&mut self, peer: PeerId) {
        let index = self
            .peers
            .get_mut(peer)
            .and_then(|state| state.group.take());
        if let Some(Some(group)) = index.and_then(|index| self.groups.get_mut(index)) {
            group.leave(peer);
        }
        self.cancel_exports(peer);
        if let Some(index) = index {
            self.drop_unused(index);
        }
    }

    /// The group of a peer and the peer as its member.
    pub(super) fn membership(&self, peer: PeerId) -> Option<(&Group, &Member)> {
        let group = self.groups.get(self.peers.get(peer)?.group?)?.as_ref()?;
        Some((group, group.member(peer)?))
    }
}

/// Towards the forwarding table.
impl Rib {
    /// The route for the forwarding table. `None`: no path, or the best is our own and leads to no
    /// gateway.
    #[must_use]
    pub fn learned(&self, prefix: &Prefix) -> Option<LearnedRoute> {
        self.learned_of(self.table.get(self.table.find(prefix)?))
    }

    /// The routes for the forwarding table at some slots of the table.
    pub fn learned_at(&self, slots: Range<usize>) -> impl Iterator<Item = (Prefix, LearnedRoute)> {
        self.table
            .at(slots)
            .filter_map(|(_, dest)| Some((dest.prefix, self.learned_of(dest)?)))
    }

    /// All routes for the forwarding table.
    pub fn all_learned(&self) -> impl Iterator<Item = (Prefix, LearnedRoute)> {
        self.learned_at(0..self.slots())
    }

    pub(super) fn learned_of(&self, dest: &Dest) -> Option<LearnedRoute> {
        let best = dest.best()?;
        let attrs = best.accepted()?;
        if best.peer == PeerId::LOCAL {
            return self.own_learned(dest, attrs);
        }
        let peer = self.peers.get(best.peer)?;
        let mut next_hops = vec![attrs.way()?];
        for path in dest.paths().iter().filter(|path| path.rank == Rank::Equal) {
            if let Some(next_hop) = path.accepted().and_then(|attrs| attrs.way())
                && !next_hops.contains(&next_hop)
            {
                next_hops.push(next_hop);
            }
        }
        // The order in which equal paths arrived shall not show.
        next_hops[1..].sort_unstable();
        let gateways = self.gateways(&dest.prefix, &next_hops);
        Some(LearnedRoute {
            next_hops: next_hops.into_iter().map(plain).collect(),
            gateways,
            peer: peer.name.clone(),
            peer_address: peer.config.address,
            internal: peer.kind() == PeerKind::Internal,
            local_pref: attrs.local_pref.unwrap_or(DEFAULT_LOCAL_PREF),
            med: attrs.med,
            as_path_len: attrs.as_path.path_len(),
            communities: communities(attrs),
            stale: best.stale.is_kept(),
            preferred_source: None,
        })
    }

    /// A route of ours that leads somewhere. Others are none: nothing is known of them that the
    /// configuration does not say.
    fn own_learned(&self, dest: &Dest, attrs: &PathAttrs) -> Option<LearnedRoute> {
        let next_hops = self.next_hops.own_addresses(&dest.prefix);
        let peer_address = *next_hops.first()?;
        let gateways = self.next_hops.own_gateways(&dest.prefix);
        (!gateways.is_empty()).then(|| LearnedRoute {
            next_hops,
            gateways,
            peer: "static".into(),
            peer_address,
            internal: false,
            local_pref: attrs.local_pref.unwrap_or(DEFAULT_LOCAL_PREF),
            med: attrs.med,
            as_path_len: attrs.as_path.path_len(),
            communities: communities(attrs),
            stale: false,
            preferred_source: None,
        })
    }

    /// Where packets to these next hops of a destination go.
    fn gateways(&self, prefix: &Prefix, next_hops: &[IpAddr]) -> Arc<[Gateway]> {
        if let [one] = next_hops {
            return self.next_hops.gateways(one, prefix);
        }
        let mut all: Vec<Gateway> = Vec::new();
        for next_hop in next_hops {
            let found = self.next_hops.gateways(next_hop, prefix);
            all.extend(
                found
                    .iter()
                    .filter(|known| !all.contains(known))
                    .cloned()
                    .collect::<Vec<_>>(),
            );
        }
        all.into()
    }
}

/// The changes of a group: those of families of which its members take one path, and the others.
fn group_updates(group: &Group, routes: Vec<GroupRoute>) -> impl Iterator<Item = Outbound> {
    let update = |routes| GroupUpdate {
        members: group.members.clone(),
        routes,
    };
    let (add_path, one): (Vec<_>, Vec<_>) = match group.key.add_path {
        None => (Vec::new(), routes),
        Some(_) => routes
            .into_iter()
            .partition(|route| route.path_id.is_some()),
    };
    let one = (!one.is_empty()).then(|| Outbound::Group(update(one)));
    let add_path = (!add_path.is_empty()).then(|| Outbound::Paths(update(add_path)));
    one.into_iter().chain(add_path)
}
