//! Several paths per prefix (RFC 7911): handles for received ones, and the Adj-RIB-Out of peers
//! that take them.
//!
//! A received path is named by a handle of its own beside the peer's, so that a path in the table
//! is no larger for peers that send one path each. A path that we send has the handle of where it
//! came from as its identifier: it stays the same as long as the path is there, whatever others do.

use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::net::Prefix;
use foldhash::HashMap;

use super::adj_out::{ExportCache, ExportRoute, Group, Member};
use super::advertised::{Advertised, VisibleCount};
use super::decision::Decision;
use super::dest_id::DestId;
use super::export::export_path;
use super::intern::Interner;
use super::select::candidate;
use super::table::Dest;
use super::{PeerId, Rib};
use crate::attrs::PathAttrs;

/// The decision process orders so many paths by being run again and again.
const DECIDED: usize = 128;

/// Handles with this bit are of paths, not of peers.
const PATH: u32 = 1 << 31;

/// A prefix, the identifier of a path to it, and what a peer is told of it; `None` withdraws.
pub type PathAdvertisement = (Prefix, u32, Option<Arc<PathAttrs>>);

/// One handle of a path.
#[derive(Clone, Copy, Debug)]
struct Handle {
    owner: PeerId,
    path_id: u32,
    /// Paths in the table with this handle.
    uses: u32,
}

/// The handles of paths that came with an identifier.
#[derive(Debug, Default)]
pub(super) struct PathHandles {
    handles: Vec<Handle>,
    known: HashMap<(PeerId, u32), PeerId>,
    free: Vec<PeerId>,
}

const fn index(handle: PeerId) -> Option<usize> {
    if handle.0 & PATH == 0 {
        None
    } else {
        Some((handle.0 & !PATH) as usize)
    }
}

impl PathHandles {
    /// The peer that a handle belongs to.
    #[inline]
    pub(super) fn owner(&self, handle: PeerId) -> PeerId {
        index(handle).map_or(handle, |index| self.handles[index].owner)
    }

    /// The identifier with which the peer sent it.
    pub(super) fn path_id(&self, handle: PeerId) -> Option<u32> {
        index(handle).map(|index| self.handles[index].path_id)
    }

    /// The handle of a path that is known.
    pub(super) fn find(&self, owner: PeerId, path_id: u32) -> Option<PeerId> {
        self.known.get(&(owner, path_id)).copied()
    }

    /// The handle of a path.
    pub(super) fn get_or_insert(&mut self, owner: PeerId, path_id: u32) -> PeerId {
        if let Some(known) = self.find(owner, path_id) {
            return known;
        }
        let new = Handle {
            owner,
            path_id,
            uses: 0,
        };
        let handle = if let Some(free) = self.free.pop() {
            if let Some(index) = index(free) {
                self.handles[index] = new;
            }
            free
        } else {
            let next = u32::try_from(self.handles.len()).expect("fewer than 2^31 paths");
            self.handles.push(new);
            PeerId(next | PATH)
        };
        self.known.insert((owner, path_id), handle);
        handle
    }

    /// Gives memory back when no path has a handle, and what can be spared otherwise.
    pub(super) fn shrink(&mut self) {
        if self.known.is_empty() {
            *self = Self::default();
        } else {
            self.known.shrink_to_fit();
        }
    }

    /// A path with this handle is in the table now.
    pub(super) fn take(&mut self, handle: PeerId) {
        if let Some(index) = index(handle) {
            self.handles[index].uses += 1;
        }
    }

    /// A path with this handle has left the table.
    pub(super) fn drop(&mut self, handle: PeerId) {
        let Some(index) = index(handle) else { return };
        let entry = &mut self.handles[index];
        entry.uses -= 1;
        if entry.uses == 0 {
            self.known.remove(&(entry.owner, entry.path_id));
            self.free.push(handle);
        }
    }
}

/// The identifier under which we send a path.
pub(super) const fn advertised_id(handle: PeerId) -> u32 {
    // Ours have handle 0, and 0 looks like no identifier.
    handle.0.wrapping_add(1)
}

/// A change of what a group is told about one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRoute {
    /// The destination.
    pub prefix: Prefix,
    /// The path's identifier.
    pub path_id: u32,
    before: Option<Advertised>,
    after: Option<Advertised>,
}

/// Changes for the members of an update group that take several paths per prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathUpdate {
    /// The members.
    pub members: Vec<Member>,
    /// The changes.
    pub routes: Vec<PathRoute>,
}

fn visible<'a>(sent: Option<&'a Advertised>, member: &Member) -> Option<&'a Arc<PathAttrs>> {
    sent.and_then(|sent| sent.visible_to(member).ok())
}

fn same(a: Option<&Arc<PathAttrs>>, b: Option<&Arc<PathAttrs>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    }
}

impl PathUpdate {
    /// What one member must be told.
    pub fn for_member<'a>(
        &'a self,
        member: &'a Member,
    ) -> impl Iterator<Item = PathAdvertisement> + 'a {
        self.routes.iter().filter_map(|route| {
            let before = visible(route.before.as_ref(), member);
            let after = visible(route.after.as_ref(), member);
            (!same(before, after)).then(|| (route.prefix, route.path_id, after.cloned()))
        })
    }
}

/// What is told of the paths to one destination, by identifier.
enum ByPathId<'a> {
    Few(&'a [(u32, Advertised)]),
    Many(HashMap<u32, &'a Advertised>),
}

impl<'a> ByPathId<'a> {
    fn new(list: &'a [(u32, Advertised)]) -> Self {
        if list.len() <= DECIDED {
            return Self::Few(list);
        }
        Self::Many(
            list.iter()
                .map(|(path_id, sent)| (*path_id, sent))
                .collect(),
        )
    }

    fn of(&self, path_id: u32) -> Option<&'a Advertised> {
        match self {
            Self::Few(list) => {
                let found = list.iter().find(|(seen, _)| *seen == path_id);
                found.map(|(_, sent)| sent)
            }
            Self::Many(map) => map.get(&path_id).copied(),
        }
    }
}

/// The part of an Adj-RIB-Out that holds several paths, by destination.
#[derive(Debug, Default)]
pub(super) struct AdvertisedPaths {
    by_dest: HashMap<usize, Vec<(u32, Advertised)>>,
    /// How many there are from each peer with each next hop: what decides who is told.
    classes: HashMap<(PeerId, Option<IpAddr>), usize>,
}

impl AdvertisedPaths {
    /// Something is told of a destination.
    pub(super) fn has(&self, dest: usize) -> bool {
        self.by_dest.contains_key(&dest)
    }

    /// Replaces what is told of a destination.
    fn put(&mut self, dest: usize, paths: &[(u32, Advertised)]) -> Vec<(u32, Advertised)> {
        let before = if paths.is_empty() {
            self.by_dest.remove(&dest)
        } else {
            self.by_dest.insert(dest, paths.to_vec())
        };
        let before = before.unwrap_or_default();
        for (_, sent) in paths {
            *self.classes.entry(sent.class()).or_default() += 1;
        }
        for (_, sent) in &before {
            if let Entry::Occupied(mut count) = self.classes.entry(sent.class()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        before
    }

    /// For each of these members, the number of paths that it is told.
    pub(super) fn counts(&self, members: &[Member]) -> Vec<usize> {
        let mut count = VisibleCount::new(members);
        for ((source, next_hop), paths) in &self.classes {
            count.add(*source, *next_hop, *paths);
        }
        count.finish()
    }
}

impl Group {
    /// Recomputes the export of a destination's paths, the best of which come first.
    pub(super) fn update_paths(
        &mut self,
        id: DestId,
        prefix: Prefix,
        paths: &[ExportRoute<'_>],
        interner: &mut Interner,
        changes: &mut Vec<PathRoute>,
    ) {
        let Some(count) = self.key.paths_of(prefix.family()) else {
            return;
        };
        let mut cache = ExportCache::default();
        let mut after = Vec::new();
        for route in paths {
            if after.len() == count.limit() {
                break;
            }
            if let Ok(attrs) = self.key.export(*route, &mut cache, interner) {
                after.push((
                    advertised_id(route.handle),
                    Advertised::new(attrs, route.peer),
                ));
            }
        }
        let before = self.paths.put(id.index(), &after);
        let (old, new) = (ByPathId::new(&before), ByPathId::new(&after));
        let gone = before.iter().filter(|(seen, _)| new.of(*seen).is_none());
        for (path_id, _) in gone.chain(&after) {
            let route = PathRoute {
                prefix,
                path_id: *path_id,
                before: old.of(*path_id).cloned(),
                after: new.of(*path_id).cloned(),
            };
            if route.before != route.after {
                changes.push(route);
            }
        }
    }

    /// The paths to a destination that a member is told.
    pub(super) fn advertised_paths_of<'a>(
        &'a self,
        id: DestId,
        member: &'a Member,
    ) -> impl Iterator<Item = (u32, &'a Arc<PathAttrs>)> {
        let paths = self.paths.by_dest.get(&id.index()).into_iter().flatten();
        paths.filter_map(|(path_id, sent)| Some((*path_id, sent.visible_to(member).ok()?)))
    }

    /// The first of the paths to a destination that a member is told.
    pub(super) fn first_advertised_path(
        &self,
        id: DestId,
        member: &Member,
    ) -> Option<&Arc<PathAttrs>> {
        let paths = self.paths.by_dest.get(&id.index())?;
        paths
            .iter()
            .find_map(|(_, sent)| sent.visible_to(member).ok())
    }

    /// What a peer is to be told of the paths to a destination that was a member of `self` and is
    /// now one of `other`.
    pub(super) fn path_difference(
        &self,
        id: DestId,
        prefix: Prefix,
        other: &Self,
        member: &Member,
        told: &mut Vec<PathAdvertisement>,
    ) {
        if self.paths.by_dest.is_empty() && other.paths.by_dest.is_empty() {
            return;
        }
        let before: HashMap<u32, &Arc<PathAttrs>> = self.advertised_paths_of(id, member).collect();
        let after: HashMap<u32, &Arc<PathAttrs>> = other.advertised_paths_of(id, member).collect();
        let gone = before.keys().filter(|key| !after.contains_key(*key));
        told.extend(gone.map(|path_id| (prefix, *path_id, None)));
        let changed = after
            .iter()
            .filter(|(key, attrs)| !same(before.get(*key).copied(), Some(**attrs)));
        told.extend(changed.map(|(path_id, attrs)| (prefix, *path_id, Some((*attrs).clone()))));
    }
}

impl Rib {
    /// The usable paths of a destination, the best first: the decision process again and again
    /// without the winner.
    pub(super) fn in_order<'a>(&'a self, dest: &'a Dest) -> Vec<ExportRoute<'a>> {
        let mut left: Vec<_> = dest
            .paths()
            .iter()
            .filter_map(|path| {
                Some((
                    candidate(&dest.prefix, path, &self.peers, &self.next_hops)?,
                    path,
                ))
            })
            .collect();
        let mut decision = Decision::default();
        let mut ordered = Vec::with_capacity(left.len());
        if left.len() > DECIDED {
            // So many are put in order by one look at each, after the best: MED then counts between
            // all of them.
            let candidates: Vec<_> = left
                .iter()
                .map(|(candidate, _)| candidate.clone())
                .collect();
            decision.run(&candidates);
            let best = decision.best.map(|(best, _)| left.swap_remove(best));
            left.sort_by_key(|(candidate, _)| candidate.rank());
            let paths = best.into_iter().chain(left).map(|(_, path)| path);
            ordered.extend(
                paths.filter_map(|path| {
                    export_path(dest.prefix, path, &self.peers, &self.next_hops)
                }),
            );
            return ordered;
        }
        while !left.is_empty() {
            let candidates: Vec<_> = left
                .iter()
                .map(|(candidate, _)| candidate.clone())
                .collect();
            decision.run(&candidates);
            let Some((best, _)) = decision.best else {
                break;
            };
            let (_, path) = left.swap_remove(best);
            ordered.extend(export_path(dest.prefix, path, &self.peers, &self.next_hops));
        }
        ordered
    }
}
