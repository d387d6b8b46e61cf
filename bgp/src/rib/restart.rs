//! Sessions that end and come back: the receiving speaker of graceful restart (RFC 4724 §4.2), long-lived too
//! (RFC 9494 §4.2).
//!
//! Stale routes stay in use like any others until the peer has announced them again, has sent End-of-RIB, has
//! come back without them, or has taken too long. Long-lived ones then get LLGR_STALE and are a last resort.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_model::net::Family;

use super::intern::Interner;
use super::session::LongLivedRestart;
use super::table::{DestId, Staleness};
use super::{PeerId, Rib, SessionInfo};
use crate::attrs::PathAttrs;
use crate::types::{AnyCommunity, Community};

/// How long stale routes are kept after the session has come back, when End-of-RIB fails to come. RFC 4724 §4.2
/// allows such a bound and names none; this is ample for a table of a million routes.
pub(super) const STALE_LIMIT: Duration = Duration::from_secs(300);

/// RFC 9494 §4.2: the route as it is kept beyond the restart time; `None`: it must not be.
pub(super) fn long_lived(
    attrs: &Arc<PathAttrs>,
    interner: &mut Interner,
) -> Option<Arc<PathAttrs>> {
    if attrs.has_community(AnyCommunity::Standard(Community::NO_LLGR)) {
        return None;
    }
    let mut marked = (**attrs).clone();
    marked.add_community(AnyCommunity::Standard(Community::LLGR_STALE));
    Some(interner.intern(marked))
}

/// The families that a peer preserved over its restart, by its Forwarding State bits.
struct Preserved {
    restart: Vec<Family>,
    long_lived: Vec<Family>,
}

impl Preserved {
    fn of(session: &SessionInfo) -> Self {
        let restart = session
            .graceful_restart
            .iter()
            .flat_map(|restart| &restart.families)
            .filter(|(family, forwarding)| *forwarding && session.families.contains(family))
            .map(|(family, _)| *family)
            .collect();
        let long_lived = session
            .options
            .long_lived
            .iter()
            .flatten()
            .filter(|entry| entry.forwarding && session.families.contains(&entry.family))
            .map(|entry| entry.family)
            .collect();
        Self {
            restart,
            long_lived,
        }
    }
}

impl Rib {
    /// Notes the new session and drops the stale routes that the peer did not preserve.
    pub(super) fn start_session(&mut self, now: Instant, id: PeerId, session: SessionInfo) {
        let preserved = Preserved::of(&session);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.unfinished = match session.graceful_restart {
            Some(_) => session.families.iter().copied().collect(),
            None => BTreeSet::new(),
        };
        peer.session = Some(session);
        peer.up = true;
        peer.over_limit = false;
        peer.warned = [false; 2];
        if peer.stale_until.is_some() {
            peer.stale_until = Some(now + STALE_LIMIT);
        }
        // RFC 4724 §4.2: without the Forwarding State bit for the family, its stale routes go at once. The same holds
        // for the bit of RFC 9494 §4.2.
        self.sweep_stale(id, |family, staleness| match staleness {
            Staleness::LongLived => !preserved.long_lived.contains(&family),
            _ => !preserved.restart.contains(&family),
        });
    }

    /// Ends the session of a peer, if it has one.
    pub(super) fn end_session(&mut self, now: Instant, id: PeerId, graceful: bool) {
        self.owed.retain(|(peer, _)| *peer != id);
        self.leave_group(id);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.refreshing = [None; 2];
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
        let long_lived = peer.long_lived_families();
        // RFC 4724 §4.2 lets go at a second restart in a row what is still stale, or it could be kept for ever. Here it
        // goes when the time of the first restart is over: a collision of connections, or two ends that change
        // their configuration one after the other, end two sessions within milliseconds. RFC 9494 §4.2: what is
        // kept long has its own time.
        let in_time = peer.restart_ends.filter(|end| *end > now);
        let until = in_time.unwrap_or(now + restart.time);
        self.sweep_stale(id, |family, staleness| match staleness {
            Staleness::LongLived => !long_lived.contains(&family),
            _ => in_time.is_none(),
        });
        let kept = |family: Family| {
            restart.families.iter().any(|(kept, _)| *kept == family) || long_lived.contains(&family)
        };
        self.remove_paths(id, |dest, _| !kept(dest.prefix.family()));
        for (dest, handle) in self.find_paths(id, |_, path| path.stale != Staleness::LongLived) {
            if let Some(path) = self.table.get_mut(dest).path_of(handle) {
                path.stale = Staleness::Restart;
                self.touch(dest, handle);
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.stale_until = Some(until);
            peer.restart_ends = Some(until);
        }
        self.expire_stale(now);
    }

    /// Drops all routes of a peer and its session.
    pub(super) fn forget_routes(&mut self, id: PeerId) {
        self.remove_paths(id, |_, _| true);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.session = None;
            peer.stale_until = None;
            peer.restart_ends = None;
            peer.long_lived_until = [None; 2];
        }
    }

    /// Drops the stale routes of a peer that `which` selects.
    pub(super) fn sweep_stale(&mut self, id: PeerId, which: impl Fn(Family, Staleness) -> bool) {
        if self.peers.get(id).is_none_or(|peer| !peer.has_stale()) {
            return;
        }
        self.remove_paths(id, |dest, path| {
            path.stale.is_kept() && which(dest.prefix.family(), path.stale)
        });
        let mut restart = false;
        let mut long_lived = [false; 2];
        for (_, dest) in self.table.iter() {
            let of_peer = dest
                .paths()
                .iter()
                .filter(|path| self.peers.owns(id, path.peer));
            for path in of_peer {
                match path.stale {
                    Staleness::Restart => restart = true,
                    Staleness::LongLived => long_lived[slot(dest.prefix.family())] = true,
                    Staleness::Fresh | Staleness::Refresh => {}
                }
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.stale_until = peer.stale_until.filter(|_| restart);
            peer.restart_ends = peer.restart_ends.filter(|_| restart);
            for (until, left) in peer.long_lived_until.iter_mut().zip(long_lived) {
                *until = until.filter(|_| left);
            }
        }
    }

    /// Drops what has been stale for too long, or keeps it as a last resort.
    pub(super) fn expire_stale(&mut self, now: Instant) {
        for id in self.peers.ids() {
            let Some(peer) = self.peers.get(id) else {
                continue;
            };
            let (up, until) = (peer.up, peer.long_lived_until);
            if peer.stale_until.is_some_and(|until| until <= now) {
                if up {
                    self.sweep_stale(id, |_, staleness| staleness == Staleness::Restart);
                } else {
                    self.keep_long(now, id);
                }
            }
            for family in [Family::Ipv4, Family::Ipv6] {
                if until[slot(family)].is_some_and(|until| until <= now) {
                    self.sweep_stale(id, |seen, staleness| {
                        seen == family && staleness == Staleness::LongLived
                    });
                }
            }
            // Without a session, whatever is left of the peer is stale.
            if self
                .peers
                .get(id)
                .is_some_and(|peer| !peer.up && peer.session.is_some() && !peer.has_stale())
            {
                self.forget_routes(id);
            }
        }
    }

    /// RFC 9494 §4.2: the restart time is over. What the peer wants to be kept longer is, as a last resort.
    fn keep_long(&mut self, now: Instant, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        peer.stale_until = None;
        let entries: Vec<LongLivedRestart> = peer
            .session
            .iter()
            .filter_map(|session| session.options.long_lived.as_ref())
            .flatten()
            .filter(|entry| !entry.time.is_zero())
            .copied()
            .collect();
        for entry in &entries {
            // A timer that runs since an earlier loss is not started again.
            peer.long_lived_until[slot(entry.family)].get_or_insert(now + entry.time);
        }
        let kept = |family: Family| entries.iter().any(|entry| entry.family == family);
        self.remove_paths(id, |dest, _| !kept(dest.prefix.family()));
        for (dest, handle) in self.find_paths(id, |_, path| path.stale != Staleness::LongLived) {
            self.keep_path_long(dest, handle);
        }
        // Drops the timers of families of which nothing is left.
        self.sweep_stale(id, |_, _| false);
    }

    fn keep_path_long(&mut self, dest: DestId, id: PeerId) {
        let Some(path) = self.table.get_mut(dest).path_of(id) else {
            return;
        };
        path.stale = Staleness::LongLived;
        let Some(accepted) = path.accepted().cloned() else {
            return;
        };
        match long_lived(&accepted, &mut self.interner) {
            Some(marked) => {
                path.replace_accepted(Some(marked));
                self.touch(dest, id);
            }
            None => self.remove_path(dest, id),
        }
    }
}

/// The index of a family in an array of both.
pub(super) const fn slot(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}
