//! Adj-RIB-In: paths come, change and go. Every change puts the destination on the list to decide.

use std::sync::Arc;

use caracal_model::net::{Family, Prefix};

use super::import::{self, Imported, Refusal};
use super::table::{Dest, DestId, Path, Rank, Staleness};
use super::{PeerId, Rib, forward};
use crate::attrs::PathAttrs;
use crate::config::Origination;

impl Rib {
    /// Puts a destination on the list to decide.
    pub(super) fn mark(&mut self, id: DestId) {
        let dest = self.table.get_mut(id);
        if !std::mem::replace(&mut dest.dirty, true) {
            self.dirty.push(id);
        }
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
        import::correct(&mut attrs, peer.kind());
        let received = self.interner.intern(attrs);
        let rules = peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
        // As a rule the prefixes make no difference.
        let for_all = rules.import_any(&received);
        self.table.warm(prefixes);
        for (n, prefix) in prefixes
            .iter()
            .enumerate()
            .filter(|(_, prefix)| families.contains(&Some(prefix.family())))
        {
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
                if std::mem::replace(&mut path.stale, Staleness::Fresh).is_kept() {
                    self.note_path(dest, id);
                    self.touch(dest, id);
                }
                continue;
            }
            let outcome = match &for_all {
                Some(outcome) => outcome.clone(),
                None => self.filter(peer_id, *prefix, &received),
            };
            self.put_path(dest, id, received.clone(), outcome);
        }
    }

    /// Runs import policy over a route.
    fn filter(&mut self, peer: PeerId, prefix: Prefix, received: &PathAttrs) -> Imported {
        let Some(peer) = self.peers.get(peer) else {
            return Err(Refusal::Policy);
        };
        let rules = peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
        rules.filter(prefix, received, &mut self.interner)
    }

    /// Stores or replaces the path of a peer.
    pub(super) fn put_path(
        &mut self,
        id: DestId,
        peer: PeerId,
        received: Arc<PathAttrs>,
        outcome: Imported,
    ) {
        let dest = self.table.get_mut(id);
        let old = dest.remove(peer);
        let was_accepted = old.as_ref().is_some_and(|old| old.accepted().is_some());
        let is_accepted = outcome.is_ok();
        if let Some(state) = self.peers.get_mut(peer) {
            state.received += usize::from(old.is_none());
            state.received_ipv6 +=
                usize::from(old.is_none() && dest.prefix.family() == Family::Ipv6);
            state.accepted = state.accepted + usize::from(is_accepted) - usize::from(was_accepted);
        }
        if old.is_none() {
            self.peers.paths.take(peer);
        }
        dest.touched |= old.is_some_and(|old| old.rank != Rank::None);
        dest.push(Path::new(received, peer, outcome));
        self.note_path(id, peer);
        if was_accepted || is_accepted {
            self.mark(id);
        }
    }

    /// Removes the path of a peer.
    pub(super) fn remove_path(&mut self, id: DestId, peer: PeerId) {
        self.note_path(id, peer);
        let dest = self.table.get_mut(id);
        let Some(old) = dest.remove(peer) else { return };
        dest.touched |= old.rank != Rank::None;
        if let Some(state) = self.peers.get_mut(peer) {
            state.received -= 1;
            state.received_ipv6 -= usize::from(dest.prefix.family() == Family::Ipv6);
            state.accepted -= usize::from(old.accepted().is_some());
        }
        self.peers.paths.drop(peer);
        // Also when it was not in use: the destination may be empty now and must be released.
        self.mark(id);
    }

    /// A path changed in place.
    pub(super) fn touch(&mut self, id: DestId, peer: PeerId) {
        let dest = self.table.get_mut(id);
        let used = dest
            .path_of(peer)
            .is_some_and(|path| path.rank != Rank::None);
        dest.touched |= used;
        self.mark(id);
    }

    /// The paths of a peer that `which` selects: their destinations and their handles.
    pub(super) fn find_paths(
        &self,
        peer: PeerId,
        which: impl Fn(&Dest, &Path) -> bool,
    ) -> Vec<(DestId, PeerId)> {
        let mut found = Vec::new();
        let mut left = self
            .peers
            .get(peer)
            .map_or(usize::MAX, |peer| peer.received);
        for (id, dest) in self.table.iter() {
            if left == 0 {
                break;
            }
            for path in dest.paths() {
                if self.peers.owns(peer, path.peer) {
                    left -= 1;
                    if which(dest, path) {
                        found.push((id, path.peer));
                    }
                }
            }
        }
        found
    }

    /// Removes the paths of a peer that `which` selects.
    pub(super) fn remove_paths(&mut self, peer: PeerId, which: impl Fn(&Dest, &Path) -> bool) {
        let found = self.find_paths(peer, which);
        for (id, handle) in found {
            self.remove_path(id, handle);
        }
    }

    pub(super) fn put_local(&mut self, prefix: Prefix, route: &Origination) {
        let attrs = self.interner.intern(forward::attributes(route));
        let id = self.table.find_or_insert(prefix);
        self.put_path(id, PeerId::LOCAL, attrs, Ok(None));
    }

    pub(super) fn remove_local(&mut self, prefix: Prefix) {
        if let Some(id) = self.table.find(&prefix) {
            self.remove_path(id, PeerId::LOCAL);
        }
    }
}
