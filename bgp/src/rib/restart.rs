//! Sessions that end and come back: the receiving speaker of graceful restart (RFC 4724 §4.2),
//! long-lived too (RFC 9494 §4.2).
//!
//! Stale routes stay in use like any others until the peer has announced them again, has sent
//! End-of-RIB, has come back without them, or has taken too long. Long-lived ones then get
//! LLGR_STALE and are a last resort.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_model::Family;

use super::dest_id::DestId;
use super::families::{FAMILIES, slot};
use super::intern::Interner;
use super::jobs::{Drops, JobKind, Within};
use super::peers::PeerState;
use super::session::LongLivedRestart;
use super::table::Staleness;
use super::{PeerId, Rib, SessionInfo};
use crate::attrs::PathAttrs;
use crate::types::{AnyCommunity, Community};

/// Limit for End-of-RIB after a session has come back; then its stale routes go. RFC 4724 §4.2
/// allows such a bound and names none; this is ample for a table of a million routes.
pub(super) const STALE_LIMIT: Duration = Duration::from_secs(300);

/// RFC 9494 §4.2: the route as it is kept beyond the restart time; `None`: it must not be.
pub(super) fn long_lived(
    attrs: &Arc<PathAttrs>,
    interner: &mut Interner,
) -> Option<Arc<PathAttrs>> {
    if is_never_kept(attrs) {
        return None;
    }
    let mut marked = (**attrs).clone();
    marked.add_community(AnyCommunity::Standard(Community::LLGR_STALE));
    Some(interner.intern(marked))
}

/// RFC 9494 §4.2: the route must not be kept beyond the restart time.
fn is_never_kept(attrs: &PathAttrs) -> bool {
    attrs.has_community(AnyCommunity::Standard(Community::NO_LLGR))
}

/// The families that a peer preserved over its restart, by its Forwarding State bits.
struct Preserved {
    restart: Vec<Family>,
    long_lived: Vec<Family>,
}

impl Preserved {
    fn from_session(session: &SessionInfo) -> Self {
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
        let preserved = Preserved::from_session(&session);
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
        peer.warned = [[false; 2]; 3];
        if peer.stale_until.is_some() {
            peer.stale_until = Some(now + STALE_LIMIT);
        }
        // RFC 4724 §4.2: without the Forwarding State bit for the family, its stale routes go at
        // once. The same holds for the bit of RFC 9494 §4.2.
        self.sweep_stale(
            id,
            Drops {
                restart: FAMILIES.map(|family| !preserved.restart.contains(&family)),
                long_lived: FAMILIES.map(|family| !preserved.long_lived.contains(&family)),
            },
        );
    }

    /// Ends the session of a peer, if it has one.
    pub(super) fn end_session(&mut self, now: Instant, id: PeerId, graceful: bool) {
        self.cancel_refresh(id);
        self.prune_timers(id);
        self.pending_end_of_rib.retain(|(peer, _)| *peer != id);
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
        // RFC 4724 §4.2 lets go at a second restart in a row what is still stale, or it could be
        // kept for ever. Here it goes when the time of the first restart is over: a collision of
        // connections, or two ends that change their configuration one after the other, end two
        // sessions within milliseconds. RFC 9494 §4.2: what is kept long has its own time.
        let in_time = peer.restart_ends.filter(|end| *end > now);
        let until = in_time.unwrap_or(now + restart.time);
        let kept = |family: Family| {
            restart.families.iter().any(|(kept, _)| *kept == family) || long_lived.contains(&family)
        };
        let drops = Drops {
            restart: [in_time.is_none(); 2],
            long_lived: FAMILIES.map(|family| !long_lived.contains(&family)),
        };
        peer.stale_until = Some(until);
        peer.restart_ends = Some(until);
        self.queue(JobKind::Retain {
            peer: id,
            drops,
            kept: FAMILIES.map(kept),
        });
        self.expire_stale(now);
    }

    /// The paths of a peer to a destination become stale, or go. True when all of them have.
    pub(super) fn retain_paths(
        &mut self,
        id: DestId,
        within: &mut Within,
        peer: PeerId,
        (drops, kept): (Drops, [bool; 2]),
    ) -> bool {
        let dropped = self.drop_paths(id, within, |rib, family, path| {
            rib.peers.owns(peer, path.peer)
                && (!kept[slot(family)] || drops.includes(family, path.stale))
        });
        dropped && self.restale(id, within, peer, Staleness::Restart)
    }

    /// Gives the paths of a peer to a destination another staleness, but for those that are a last
    /// resort already. True when all of them have it.
    fn restale(&mut self, id: DestId, within: &mut Within, peer: PeerId, stale: Staleness) -> bool {
        self.walk_paths(id, within, 1, |rib, at| {
            let dest = rib.table.get_mut(id);
            let family = dest.prefix.family();
            let path = &mut dest.paths_mut()[at];
            if path.stale == Staleness::LongLived || !rib.peers.owns(peer, path.peer) {
                return;
            }
            let was = std::mem::replace(&mut path.stale, stale);
            if let Some(state) = rib.peers.get_mut(peer) {
                state.note_staleness(family, was, stale);
            }
            rib.touch_at(id, at);
        })
    }

    /// Drops all routes of a peer and its session.
    pub(super) fn forget_routes(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.session = None;
            peer.stale_until = None;
            peer.restart_ends = None;
            peer.long_lived_until = [None; 2];
            if peer.received > 0 && !peer.forgetting {
                peer.forgetting = true;
                self.supersede(id);
                self.queue(JobKind::Forget(BTreeSet::from([id])));
            }
        }
    }

    /// Drops stale routes of a peer.
    pub(super) fn sweep_stale(&mut self, id: PeerId, drops: Drops) {
        if self.peers.get(id).is_some_and(PeerState::has_stale) {
            self.queue(JobKind::Sweep { peer: id, drops });
        }
    }

    /// Without a session, whatever is left of a peer is stale.
    pub(super) fn forget_if_nothing_is_kept(&mut self, id: PeerId) {
        let judged = self.is_judged(id);
        let peer = self.peers.get(id).filter(|_| !judged);
        if peer.is_some_and(|peer| !peer.up && peer.session.is_some() && !peer.has_stale()) {
            self.forget_routes(id);
        }
    }

    /// Drops what has been stale for too long, or keeps it as a last resort.
    pub(super) fn expire_stale(&mut self, now: Instant) {
        for id in self.peers.ids() {
            let Some(peer) = self.peers.get_mut(id) else {
                continue;
            };
            let due = |until: &mut Option<Instant>| {
                let due = until.is_some_and(|until| until <= now);
                if due {
                    *until = None;
                }
                due
            };
            let mut drops = Drops::default();
            for (until, drop) in peer.long_lived_until.iter_mut().zip(&mut drops.long_lived) {
                *drop = due(until);
            }
            let up = peer.up;
            let restart = due(&mut peer.stale_until);
            if restart && up {
                peer.restart_ends = None;
                drops.restart = [true; 2];
            } else if restart {
                self.keep_long(now, id);
            }
            if drops != Drops::default() {
                self.queue(JobKind::Sweep { peer: id, drops });
            }
        }
    }

    /// RFC 9494 §4.2: the restart time is over. What the peer wants to be kept longer is, as a last
    /// resort.
    fn keep_long(&mut self, now: Instant, id: PeerId) {
        self.prune_timers(id);
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
        self.queue(JobKind::KeepLong {
            peer: id,
            kept: FAMILIES.map(kept),
        });
    }

    /// The paths of a peer to a destination become a last resort, or go. True when all of them
    /// have.
    pub(super) fn keep_paths_long(
        &mut self,
        id: DestId,
        within: &mut Within,
        peer: PeerId,
        kept: [bool; 2],
    ) -> bool {
        let dropped = self.drop_paths(id, within, |rib, family, path| {
            rib.peers.owns(peer, path.peer)
                && (!kept[slot(family)]
                    || (path.stale != Staleness::LongLived
                        && path.accepted().is_some_and(|attrs| is_never_kept(attrs))))
        });
        dropped
            && self.walk_paths(id, within, 1, |rib, at| {
                let dest = rib.table.get_mut(id);
                let family = dest.prefix.family();
                let path = &mut dest.paths_mut()[at];
                if path.stale == Staleness::LongLived || !rib.peers.owns(peer, path.peer) {
                    return;
                }
                let was = std::mem::replace(&mut path.stale, Staleness::LongLived);
                if let Some(accepted) = path.accepted().cloned() {
                    path.replace_accepted(long_lived(&accepted, &mut rib.interner));
                }
                if let Some(state) = rib.peers.get_mut(peer) {
                    state.note_staleness(family, was, Staleness::LongLived);
                }
                rib.touch_at(id, at);
            })
    }
}
