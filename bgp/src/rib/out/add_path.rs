//! The Adj-RIB-Out of families of which the members take several paths (RFC 7911).

use std::collections::hash_map::Entry;
use std::net::IpAddr;

use caracal_model::Prefix;
use foldhash::HashMap;

use super::advertised::{Advertised, Member, VisibleCount};
use super::change::{GroupRoute, PathId};
use crate::rib::peer_id::PeerId;

/// Paths of a list up to which it is searched from its beginning.
const FEW: usize = 128;

/// Advertisements of the paths to one destination, by path identifier.
pub(super) enum ByPathId<'a> {
    Few(&'a [(PathId, Advertised)]),
    Many(HashMap<PathId, &'a Advertised>),
}

impl<'a> ByPathId<'a> {
    pub(super) fn new(list: &'a [(PathId, Advertised)]) -> Self {
        if list.len() <= FEW {
            return Self::Few(list);
        }
        Self::Many(
            list.iter()
                .map(|(path_id, sent)| (*path_id, sent))
                .collect(),
        )
    }

    pub(super) fn get(&self, path_id: PathId) -> Option<&'a Advertised> {
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
    by_dest: HashMap<usize, Vec<(PathId, Advertised)>>,
    /// Number of paths from each peer with each next hop: it decides which members get a change.
    classes: HashMap<(PeerId, Option<IpAddr>), usize>,
}

impl AdvertisedPaths {
    /// Advertisements of a destination, the best path first.
    pub(super) fn get(&self, dest: usize) -> &[(PathId, Advertised)] {
        self.by_dest.get(&dest).map_or(&[], Vec::as_slice)
    }

    /// Replaces what is advertised of a destination, and adds the differences to `changes`.
    pub(super) fn put(
        &mut self,
        dest: usize,
        prefix: Prefix,
        after: Vec<(PathId, Advertised)>,
        changes: &mut Vec<GroupRoute>,
    ) {
        let before = self.by_dest.remove(&dest).unwrap_or_default();
        self.count(&before, &after);
        let (old, new) = (ByPathId::new(&before), ByPathId::new(&after));
        let gone = before.iter().filter(|(id, _)| new.get(*id).is_none());
        for (path_id, _) in gone.chain(&after) {
            let (old, new) = (old.get(*path_id), new.get(*path_id));
            if old != new {
                changes.push(GroupRoute {
                    prefix,
                    path_id: Some(*path_id),
                    before: old.map(|old| old.before(new)),
                    after: new.cloned(),
                });
            }
        }
        if !after.is_empty() {
            self.by_dest.insert(dest, after);
        }
    }

    fn count(&mut self, before: &[(PathId, Advertised)], paths: &[(PathId, Advertised)]) {
        for (_, sent) in paths {
            *self.classes.entry(sent.class()).or_default() += 1;
        }
        for (_, sent) in before {
            if let Entry::Occupied(mut count) = self.classes.entry(sent.class()) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }

    /// Number of paths advertised to each of these members.
    pub(super) fn counts(&self, members: &[Member]) -> Vec<usize> {
        let mut count = VisibleCount::new(members);
        for ((source, next_hop), paths) in &self.classes {
            count.add(*source, *next_hop, *paths);
        }
        count.finish()
    }
}
