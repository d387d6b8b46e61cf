//! Sessions that end and come back: the receiving speaker of graceful restart (RFC 4724 §4.2).
//!
//! Stale routes stay in use like any others until the peer has announced them again, has sent End-of-RIB, has
//! come back without them, or has taken too long.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use caracal_model::net::Family;

use super::{PeerId, Rib, SessionInfo};

/// How long stale routes are kept after the session has come back, when End-of-RIB fails to come. RFC 4724 §4.2
/// allows such a bound and names none; this is ample for a table of a million routes.
const STALE_LIMIT: Duration = Duration::from_secs(300);

impl Rib {
    /// Notes the new session and drops the stale routes that the peer did not preserve.
    pub(super) fn start_session(&mut self, now: Instant, id: PeerId, session: SessionInfo) {
        // RFC 4724 §4.2: without the Forwarding State bit for the family, its stale routes go at once.
        let preserved: Vec<Family> = session
            .graceful_restart
            .iter()
            .flat_map(|restart| &restart.families)
            .filter(|(family, forwarding)| *forwarding && session.families.contains(family))
            .map(|(family, _)| *family)
            .collect();
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.unfinished = match session.graceful_restart {
            Some(_) => session.families.iter().copied().collect(),
            None => BTreeSet::new(),
        };
        peer.session = Some(session);
        peer.up = true;
        if peer.stale_until.is_some() {
            peer.stale_until = Some(now + STALE_LIMIT);
            self.sweep_stale(id, |family| !preserved.contains(&family));
        }
    }

    /// Ends the session of a peer, if it has one.
    pub(super) fn end_session(&mut self, now: Instant, id: PeerId, graceful: bool) {
        self.owed.retain(|(peer, _)| *peer != id);
        self.leave_group(id);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if !std::mem::take(&mut peer.up) {
            if !graceful {
                self.forget_routes(id);
            }
            return;
        }
        let session = peer.session.as_ref();
        let restart = session.and_then(|session| session.graceful_restart.clone());
        let Some(restart) = restart.filter(|_| graceful) else {
            self.forget_routes(id);
            return;
        };
        // RFC 4724 §4.2: what was stale already at a second restart in a row goes.
        self.sweep_stale(id, |_| true);
        let kept = |family| restart.families.iter().any(|(kept, _)| *kept == family);
        self.remove_paths(id, |dest, _| !kept(dest.prefix.family()));
        for dest in self.table.ids() {
            if let Some(path) = self.table.get_mut(dest).path_of(id) {
                path.stale = true;
                self.touch(dest, id);
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.stale_until = Some(now + restart.time);
        }
        self.expire_stale(now);
    }

    /// Drops all routes of a peer and its session.
    pub(super) fn forget_routes(&mut self, id: PeerId) {
        self.remove_paths(id, |_, _| true);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.session = None;
            peer.stale_until = None;
        }
    }

    /// Drops the stale routes of a peer in the families that `which` selects.
    pub(super) fn sweep_stale(&mut self, id: PeerId, which: impl Fn(Family) -> bool) {
        if self
            .peers
            .get(id)
            .is_none_or(|peer| peer.stale_until.is_none())
        {
            return;
        }
        self.remove_paths(id, |dest, path| path.stale && which(dest.prefix.family()));
        let left = self.table.iter().any(|(_, dest)| {
            dest.paths()
                .iter()
                .any(|path| path.peer == id && path.stale)
        });
        if let Some(peer) = self.peers.get_mut(id).filter(|_| !left) {
            peer.stale_until = None;
        }
    }

    /// Drops what has been stale for too long.
    pub(super) fn expire_stale(&mut self, now: Instant) {
        for id in self.peers.ids() {
            let until = self.peers.get(id).and_then(|peer| peer.stale_until);
            if until.is_some_and(|until| until <= now) {
                // Without a session, whatever is left of the peer is stale.
                if self.peers.get(id).is_some_and(|peer| peer.up) {
                    self.sweep_stale(id, |_| true);
                } else {
                    self.forget_routes(id);
                }
            }
        }
    }
}
