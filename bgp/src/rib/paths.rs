//! Adj-RIB-In: paths come, change and go. Every change puts the destination on the list to decide.

use std::sync::Arc;

use caracal_model::{Family, Prefix};

use super::dest_id::DestId;
use super::import::{self, ImportRefusal, Imported};
use super::jobs::Within;
use super::limit;
use super::table::{Path, Rank, Staleness};
use super::{PeerId, Rib};
use crate::attrs::PathAttrs;
use crate::config::PrefixLimits;

impl Rib {
    /// Puts a destination on the list to decide.
    pub(super) fn mark(&mut self, id: DestId) {
        let dest = self.table.get_mut(id);
        if !std::mem::replace(&mut dest.dirty, true) {
            self.dirty.push_back(id);
            self.marked += 1;
        }
    }

    /// Marks a destination whose paths have changed: next hops that lie in it may be reached
    /// otherwise.
    fn mark_changed(&mut self, id: DestId) {
        self.next_hops.note_change(&self.table.get(id).prefix);
        self.mark(id);
    }

    /// Takes routes from a peer into Adj-RIB-In and through import policy.
    pub(super) fn learn(
        &mut self,
        id: PeerId,
        mut attrs: PathAttrs,
        prefixes: &[Prefix],
        path_ids: &[u32],
    ) {
        let peer_id = id;
        let Some(peer) = self.peers.get(id) else {
            return;
        };
        let Some(session) = &peer.session else { return };
        let families = [Family::Ipv4, Family::Ipv6]
            .map(|family| session.families.contains(&family).then_some(family));
        let limits = [peer.config.prefix_limits, peer.config.import_limits];
        let [blocks, may_lack_room] = limits.map(PrefixLimits::blocks);
        import::correct(&mut attrs, peer.kind(), peer.role_and_as());
        import::place(&mut attrs, peer.config.interface.as_ref());
        let received = self.interner.intern(attrs);
        if let Some(next_hop) = received.way() {
            self.next_hops.track(next_hop);
        }
        let rules = peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
        // As a rule the prefixes make no difference.
        let for_all = rules.import_any(&received);
        self.table.prefetch(prefixes);
        for (n, prefix) in prefixes
            .iter()
            .enumerate()
            .filter(|(_, prefix)| families.contains(&Some(prefix.family())))
        {
            if blocks && self.keeps_out(peer_id, prefix, path_ids.get(n).copied()) {
                continue;
            }
            let id = match path_ids.get(n) {
                Some(path_id) => self.peers.paths.get_or_insert(peer_id, *path_id),
                None => peer_id,
            };
            let dest = self.table.find_or_insert(*prefix);
            if let Some(path) = self.table.get_mut(dest).path_of(id)
                && Arc::ptr_eq(&path.received, &received)
                && path.stale != Staleness::LongLived
            {
                // Nothing about it changes when the peer just repeats it (RFC 7313).
                let was = std::mem::replace(&mut path.stale, Staleness::Fresh);
                if was != Staleness::Fresh
                    && let Some(state) = self.peers.get_mut(peer_id)
                {
                    state.note_staleness(prefix.family(), was, Staleness::Fresh);
                }
                if was.is_kept() {
                    self.note_path(dest, id);
                    self.touch(dest, id);
                }
                continue;
            }
            let refused = match &for_all {
                Some(Err(refusal)) => Some(*refusal),
                _ if self.screen.concerns(prefix) => self.screen_refusal(id, *prefix, &received),
                _ => None,
            };
            let outcome = match (refused, &for_all) {
                (Some(refusal), _) => Err(refusal),
                (None, Some(outcome)) => outcome.clone(),
                (None, None) => self.filter(peer_id, *prefix, &received),
            };
            let room = !may_lack_room || self.accepts_more(peer_id, prefix.family());
            self.put_path(dest, id, received.clone(), outcome, room);
        }
    }

    /// Runs import policy over a route.
    fn filter(&mut self, peer: PeerId, prefix: Prefix, received: &PathAttrs) -> Imported {
        let Some(peer) = self.peers.get(peer) else {
            return Err(ImportRefusal::Policy);
        };
        let rules = peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
        rules.filter(prefix, received, &mut self.interner)
    }

    /// Stores or replaces the path of a peer. Without room, one that was not accepted is not.
    pub(super) fn put_path(
        &mut self,
        id: DestId,
        peer: PeerId,
        received: Arc<PathAttrs>,
        outcome: Imported,
        room: bool,
    ) {
        let dest = self.table.get_mut(id);
        let old = dest.remove(peer);
        let was_accepted = old.as_ref().is_some_and(|old| old.accepted().is_some());
        let outcome = limit::newly_accepted(outcome, was_accepted, room);
        let is_accepted = outcome.is_ok();
        if let Some(state) = self.peers.get_mut(peer) {
            state.received += usize::from(old.is_none());
            state.received_ipv6 +=
                usize::from(old.is_none() && dest.prefix.family() == Family::Ipv6);
            state.count_accepted(dest.prefix.family(), was_accepted, is_accepted);
            if let Some(old) = &old {
                state.note_staleness(dest.prefix.family(), old.stale, Staleness::Fresh);
            }
        }
        if old.is_none() {
            self.peers.paths.take(peer);
            self.local_paths += usize::from(peer == PeerId::LOCAL);
        }
        let before = old.as_ref().and_then(Path::refusal);
        self.screen.count(before, outcome.as_ref().err().copied());
        dest.touched |= old.is_some_and(|old| old.rank != Rank::None);
        dest.push(Path::new(received, peer, outcome));
        self.note_path(id, peer);
        self.note_no_wait(id, before);
        if was_accepted || is_accepted {
            self.mark_changed(id);
        }
    }

    /// Removes the path of a peer.
    pub(super) fn remove_path(&mut self, id: DestId, peer: PeerId) {
        let dest = self.table.get_mut(id);
        if let Some(old) = dest.remove(peer) {
            dest.touched |= old.rank != Rank::None;
            let prefix = dest.prefix;
            self.path_removed(id, prefix, &old);
        }
    }

    fn remove_at(&mut self, id: DestId, at: usize) {
        let dest = self.table.get_mut(id);
        if let Some(old) = dest.remove_at(at) {
            dest.touched |= old.rank != Rank::None;
            let prefix = dest.prefix;
            self.path_removed(id, prefix, &old);
        }
    }

    /// Follows up the removal of a path.
    fn path_removed(&mut self, id: DestId, prefix: Prefix, old: &Path) {
        let peer = old.peer;
        self.note_path(id, peer);
        if peer == PeerId::LOCAL {
            self.local_paths -= 1;
        }
        self.screen.count(old.refusal(), None);
        self.note_no_wait(id, old.refusal());
        if let Some(state) = self.peers.get_mut(peer) {
            let family = prefix.family();
            state.note_staleness(family, old.stale, Staleness::Fresh);
            state.received -= 1;
            state.received_ipv6 -= usize::from(family == Family::Ipv6);
            state.count_accepted(family, old.accepted().is_some(), false);
        }
        self.peers.paths.drop(peer);
        self.next_hops.note_change(&prefix);
        // Also when it was not in use: the destination may be empty now and must be released.
        self.mark(id);
    }

    /// A path changed in place.
    pub(super) fn touch(&mut self, id: DestId, peer: PeerId) {
        if let Some(at) = self.table.get(id).position(peer) {
            self.touch_at(id, at);
        }
    }

    /// The same by the path's index.
    pub(super) fn touch_at(&mut self, id: DestId, at: usize) {
        let dest = self.table.get_mut(id);
        dest.touched |= dest.paths()[at].rank != Rank::None;
        self.mark_changed(id);
    }

    /// Removes the paths of a destination that `which` selects, in a job's first walk over them.
    /// True when it is over.
    pub(super) fn drop_paths(
        &mut self,
        id: DestId,
        within: &mut Within,
        which: impl Fn(&Self, Family, &Path) -> bool,
    ) -> bool {
        let family = self.table.get(id).prefix.family();
        self.walk_paths(id, within, 0, |rib, at| {
            let path = rib.table.get(id).paths().get(at);
            if path.is_some_and(|path| which(rib, family, path)) {
                rib.remove_at(id, at);
            }
        })
    }

    pub(super) fn put_local(&mut self, prefix: Prefix, attrs: Arc<PathAttrs>) {
        let id = self.table.find_or_insert(prefix);
        self.put_path(id, PeerId::LOCAL, attrs, Ok(None), true);
    }

    pub(super) fn remove_local(&mut self, prefix: Prefix) {
        if let Some(id) = self.table.find(&prefix) {
            self.remove_path(id, PeerId::LOCAL);
        }
    }
}
