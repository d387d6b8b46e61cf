//! From changed destinations to what update groups and their members are told.

use caracal_model::net::Prefix;

use super::add_path::{PathRoute, PathUpdate};
use super::adj_out::{
    ExportCache, ExportRoute, Group, GroupRoute, GroupUpdate, Member, PathSource,
};
use super::dest_id::DestId;
use super::jobs::Kind;
use super::next_hops::NextHopTable;
use super::peers::Peers;
use super::table::{Dest, Path};
use super::{Changes, Outbound, PeerId, Rib};

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
        let takes_add_path = |group: &Group| group.key.add_path.is_some();
        let any_add_path = self.groups.iter().flatten().any(takes_add_path);
        let mut path_routes: Vec<Vec<PathRoute>> = Vec::new();
        if any_add_path {
            path_routes.resize_with(self.groups.len(), Vec::new);
        }
        for (n, id) in dirty.iter().enumerate() {
            if n.is_multiple_of(PREFETCH_BATCH) {
                self.prefetch_exports(&dirty[n..dirty.len().min(n + PREFETCH_BATCH)]);
            }
            let id = *id;
            let dest = self.table.get_mut(id);
            dest.dirty = false;
            let changed = self.selector.decide(dest, &self.peers, &self.next_hops);
            if changed {
                changes.prefixes.push(dest.prefix);
                let dest = self.table.get(id);
                let route = export_route(dest, &self.peers, &self.next_hops);
                for (group, (cache, routes)) in self.groups.iter_mut().zip(&mut updates) {
                    let Some(group) = group else { continue };
                    let interner = &mut self.interner;
                    routes.extend(group.update(id, dest.prefix, route, cache, interner));
                }
            }
            if any_add_path {
                self.export_paths(id, &mut path_routes);
            }
            if self.table.get(id).paths().is_empty() {
                self.screen.forget(&self.table.get(id).prefix);
                self.table.release(id);
            }
        }
        for (group, (_, routes)) in self.groups.iter().zip(updates) {
            if let Some(group) = group.as_ref().filter(|_| !routes.is_empty()) {
                let members = group.members.clone();
                changes
                    .out
                    .push(Outbound::Group(GroupUpdate { members, routes }));
            }
        }
        for (group, routes) in self.groups.iter().zip(path_routes) {
            if let Some(group) = group.as_ref().filter(|_| !routes.is_empty()) {
                let members = group.members.clone();
                changes
                    .out
                    .push(Outbound::Paths(PathUpdate { members, routes }));
            }
        }
    }

    /// A peer that goes over to another group has been told by the old one what is said of these
    /// destinations until now: it has to hear the difference before they change.
    fn move_first(&mut self, dirty: &[DestId], changes: &mut Changes) {
        for (peer, from, done) in self.moves() {
            let (mut routes, mut paths) = (Vec::new(), Vec::new());
            for id in dirty.iter().filter(|id| id.index() >= done) {
                self.move_dest(*id, peer, from, &mut routes, &mut paths);
            }
            if !routes.is_empty() || !paths.is_empty() {
                changes.out.push(Outbound::Peer {
                    peer,
                    routes,
                    paths,
                });
            }
        }
    }

    /// Has what the groups remember of these destinations on its way to the caches: what is
    /// withdrawn comes in another order than it was announced in, and each look by itself would
    /// wait for memory.
    fn prefetch_exports(&self, ids: &[DestId]) {
        let groups = self.groups.iter().flatten();
        let read = groups.map(|group| ids.iter().map(|id| group.prefetch(*id)).sum::<usize>());
        // Read, and not known to be of no use.
        std::hint::black_box(read.sum::<usize>());
    }

    /// Exports the paths of a destination to the groups that take several.
    fn export_paths(&mut self, id: DestId, changes: &mut [Vec<PathRoute>]) {
        let prefix = self.table.get(id).prefix;
        let mut groups = std::mem::take(&mut self.groups);
        let mut interner = std::mem::take(&mut self.interner);
        let paths = self.in_order(self.table.get(id));
        for (group, changes) in groups.iter_mut().zip(changes) {
            if let Some(group) = group {
                group.update_paths(id, prefix, &paths, &mut interner, changes);
            }
        }
        self.groups = groups;
        self.interner = interner;
    }

    /// The index of the group with the export rules of an established peer, made if necessary.
    pub(super) fn group_for(&mut self, peer: PeerId) -> Option<usize> {
        let key = self.peers.get(peer)?.group_key()?;
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
        self.queue(Kind::Fill {
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

/// The best path of a destination with its source, for export.
pub(super) fn export_route<'a>(
    dest: &'a Dest,
    peers: &Peers,
    next_hops: &'a NextHopTable,
) -> Option<ExportRoute<'a>> {
    export_path(dest.prefix, dest.best()?, peers, next_hops)
}

/// A path with its source, for export.
pub(super) fn export_path<'a>(
    prefix: Prefix,
    path: &'a Path,
    peers: &Peers,
    next_hops: &'a NextHopTable,
) -> Option<ExportRoute<'a>> {
    let source = match path.peer {
        PeerId::LOCAL => PathSource::Local,
        peer => peers.get(peer)?.source()?,
    };
    Some(ExportRoute {
        prefix,
        attrs: path.accepted()?,
        peer: peers.paths.owner(path.peer),
        handle: path.peer,
        source,
        next_hops,
    })
}
