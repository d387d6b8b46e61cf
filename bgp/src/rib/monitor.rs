//! Adj-RIB-In for a monitoring station (RFC 7854 §5): the paths that have changed, and all of them
//! piece by piece.
//!
//! Only names of paths are noted, and only while somebody monitors: a path that changes twice
//! before anybody asks is told once, as it is then. A station forgets a peer that goes down, so
//! nothing is noted of peers without a session, and what is kept for their return is not shown
//! until they have announced it again.

use std::sync::Arc;

use caracal_model::{Family, Prefix};

use super::dest_id::DestId;
use super::table::{Dest, Path};
use super::{PeerId, Rib};
use crate::attrs::PathAttrs;

/// The name of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathName {
    /// The peer that announces it.
    pub peer: PeerId,
    /// Destination of the path.
    pub prefix: Prefix,
    /// With which identifier (RFC 7911).
    pub path_id: Option<u32>,
}

/// A path as it is now.
#[derive(Clone, Copy, Debug)]
pub struct MonitoredPath<'a> {
    /// Destination and identifier of the path.
    pub name: PathName,
    /// As received; `None`: it is gone.
    pub received: Option<&'a Arc<PathAttrs>>,
    /// After import policy; `None`: refused, or gone.
    pub accepted: Option<&'a Arc<PathAttrs>>,
}

impl Rib {
    /// Begins to note changed paths, or ends it.
    pub fn monitor(&mut self, on: bool) {
        if on != self.changed_paths.is_some() {
            self.changed_paths = on.then(Vec::new);
        }
    }

    /// True while changed paths are noted.
    #[must_use]
    pub const fn is_monitored(&self) -> bool {
        self.changed_paths.is_some()
    }

    /// The paths that have changed since this was last asked, in the order in which they did. One
    /// that changed twice is in it twice.
    pub fn changed_paths(&mut self) -> Vec<PathName> {
        self.changed_paths
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// A path as it is now.
    #[must_use]
    pub fn monitored_path(&self, name: PathName) -> MonitoredPath<'_> {
        let handle = match name.path_id {
            Some(path_id) => self.peers.paths.find(name.peer, path_id),
            None => Some(name.peer),
        };
        let path = self.table.find(&name.prefix).and_then(|dest| {
            let dest = self.table.get(dest);
            dest.paths().get(dest.position(handle?)?)
        });
        let path = path.filter(|path| !path.stale.is_kept());
        MonitoredPath {
            name,
            received: path.map(|path| &path.received),
            accepted: path.and_then(Path::accepted),
        }
    }

    /// The paths of up to `count` destinations from a slot on, and the slot to go on from, while
    /// there is one. Paths that come meanwhile are either in a later piece or among
    /// [`Rib::changed_paths`].
    #[must_use]
    pub fn monitored_piece(
        &self,
        from: usize,
        count: usize,
    ) -> (Vec<MonitoredPath<'_>>, Option<usize>) {
        let end = from.saturating_add(count);
        let next = (end <= self.table.slots()).then_some(end);
        let mut paths = Vec::new();
        for (_, dest) in self.table.at(from..end) {
            let shown = dest.paths().iter().filter(|path| self.is_shown(path));
            paths.extend(shown.map(|path| self.monitored(dest, path)));
        }
        // Paths with the same attributes stand together, for few messages.
        paths.sort_by_key(|path| {
            let set = path.received.map_or(0, |set| Arc::as_ptr(set) as usize);
            (path.name.peer, path.name.prefix.family(), set)
        });
        (paths, next)
    }

    /// Has the peer told us all of a family since its session began? A peer without graceful
    /// restart need not say so.
    #[must_use]
    pub fn has_finished(&self, peer: PeerId, family: Family) -> bool {
        let peer = self.peers.get(peer);
        peer.is_some_and(|peer| !peer.unfinished.contains(&family))
    }

    /// Number of routes of a family in the Adj-RIB-In of a peer.
    #[must_use]
    pub fn received_of(&self, peer: PeerId, family: Family) -> usize {
        let peer = self.peers.get(peer);
        peer.map_or(0, |peer| peer.received_of(family))
    }

    /// Number of routes of a family of a peer that import policy has accepted.
    #[must_use]
    pub fn accepted_of(&self, peer: PeerId, family: Family) -> usize {
        let peer = self.peers.get(peer);
        peer.map_or(0, |peer| peer.accepted_of(family))
    }

    /// Number of routes of a family that a peer with a limit of them is sent, and of prefixes of
    /// which the limit keeps something back.
    #[must_use]
    pub fn sent_of(&self, peer: PeerId, family: Family) -> (usize, usize) {
        let group = self.membership(peer);
        let sent = group.map(|(group, _)| &group.sent);
        sent.map_or((0, 0), |sent| (sent.count(family), sent.kept_back(family)))
    }

    fn is_shown(&self, path: &Path) -> bool {
        let owner = self.peers.get(path.peer);
        owner.is_some_and(|owner| owner.up) && !path.stale.is_kept()
    }

    fn monitored<'a>(&self, dest: &Dest, path: &'a Path) -> MonitoredPath<'a> {
        MonitoredPath {
            name: self.name_of_path(dest.prefix, path.peer),
            received: Some(&path.received),
            accepted: path.accepted(),
        }
    }

    fn name_of_path(&self, prefix: Prefix, handle: PeerId) -> PathName {
        PathName {
            peer: self.peers.paths.owner(handle),
            prefix,
            path_id: self.peers.paths.path_id(handle),
        }
    }

    /// A path is about to change, or has just changed.
    #[inline]
    pub(super) fn note_path(&mut self, dest: DestId, handle: PeerId) {
        if self.changed_paths.is_some() {
            self.note_monitored(dest, handle);
        }
    }

    #[cold]
    fn note_monitored(&mut self, dest: DestId, handle: PeerId) {
        let prefix = self.table.get(dest).prefix;
        let name = self.name_of_path(prefix, handle);
        let up = self.peers.get(handle).is_some_and(|peer| peer.up);
        if let Some(noted) = self.changed_paths.as_mut().filter(|_| up) {
            noted.push(name);
        }
    }
}
