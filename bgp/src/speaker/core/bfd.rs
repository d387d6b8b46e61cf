//! Effect of BFD on sessions and routes (RFC 5882).
//!
//! A peer whose BFD goes down loses its session at once. What becomes of its routes depends on what
//! has died: when its BFD shares the fate of its control plane (C bit clear), that may be a
//! restart, in which forwarding goes on.
//!
//! | the session when BFD goes down | C bit clear, `graceful` | C bit clear | C bit set |
//! |---|---|---|---|
//! | established | ends, routes kept as graceful restart says | ends, routes go | ends, routes go |
//! | gone, routes kept for a restart | nothing | nothing | routes go (RFC 5882 §4.3.1) |

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::watch;
use tracing::warn;

use super::{Core, now};
use crate::config::PeerConfig;
use crate::rib::SessionInfo;
use crate::speaker::bfd::{BfdHandle, BfdStatus, BfdTarget};
use crate::speaker::message::ToSession;
use crate::types::{PeerName, SessionState};

/// BFD as the core knows it.
#[derive(Default)]
pub(super) struct Liveness {
    /// The thread; it starts with the first target.
    handle: Option<BfdHandle>,
    seen: Option<watch::Receiver<BTreeMap<PeerName, BfdStatus>>>,
    targets: BTreeMap<PeerName, BfdTarget>,
    /// How often each peer's BFD had gone down when it was last looked at.
    downs: BTreeMap<PeerName, u64>,
}

impl Liveness {
    /// Waits for news. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        let ended = match &mut self.seen {
            Some(seen) => seen.changed().await.is_err(),
            None => true,
        };
        if ended {
            std::future::pending().await
        }
    }

    /// State of the BFD session with a peer.
    pub(super) fn of(&self, name: &PeerName) -> Option<BfdStatus> {
        self.seen.as_ref()?.borrow().get(name).cloned()
    }

    /// Hands the targets to the BFD thread; starts it with the first one.
    fn send_targets(&mut self) {
        if self.handle.is_none() && !self.targets.is_empty() {
            match BfdHandle::spawn() {
                Ok(handle) => {
                    self.seen = Some(handle.seen());
                    self.handle = Some(handle);
                }
                Err(error) => warn!(%error, "cannot start BFD"),
            }
        }
        if let Some(handle) = &self.handle {
            handle.set(self.targets.clone());
        }
    }
}

/// On a common link, as the TTL settings say.
fn is_direct(peer: &PeerConfig) -> bool {
    peer.ttl == Some(1) || peer.ttl_security == Some(1)
}

fn target(peer: &PeerConfig, local: IpAddr, remote: IpAddr) -> Option<BfdTarget> {
    Some(BfdTarget {
        local,
        remote,
        multihop: !is_direct(peer),
        options: peer.bfd?,
    })
}

impl Core {
    /// A session is established: from now on its peer is watched, also when the session has ended.
    pub(super) fn watch_peer(&mut self, name: &PeerName, session: &SessionInfo) {
        let Some(config) = self.config.peers.get(name) else {
            return;
        };
        let ends = (session.local_address, session.remote_address);
        let Some(target) = target(config, ends.0, ends.1) else {
            return;
        };
        if self.liveness.targets.insert(name.clone(), target) != Some(target) {
            self.liveness.send_targets();
        }
    }

    /// The configuration is another one.
    pub(super) fn watch_configured(&mut self) {
        let peers = &self.config.peers;
        let before = self.liveness.targets.clone();
        for (name, watched) in &before {
            let options = peers
                .get(name)
                .filter(|peer| peer.address == watched.remote);
            match options.and_then(|peer| target(peer, watched.local, watched.remote)) {
                Some(target) => drop(self.liveness.targets.insert(name.clone(), target)),
                None => drop(self.liveness.targets.remove(name)),
            }
        }
        // A session that was there before BFD was configured.
        for (name, peer) in peers.iter().filter(|(_, peer)| peer.bfd.is_some()) {
            if let Some(session) = self.rib.session(name)
                && let Some(target) = target(peer, session.local_address, session.remote_address)
            {
                self.liveness.targets.insert(name.clone(), target);
            }
        }
        if self.liveness.targets != before {
            self.liveness.send_targets();
        }
    }

    /// The state of a BFD session has changed.
    pub(super) fn on_bfd_change(&mut self) {
        let Some(seen) = &mut self.liveness.seen else {
            return;
        };
        let seen = seen.borrow_and_update().clone();
        let known = std::mem::take(&mut self.liveness.downs);
        for (name, seen) in &seen {
            if seen.downs > known.get(name).copied().unwrap_or_default() {
                self.bfd_down(name, seen);
            }
        }
        let downs = seen.into_iter().map(|(name, seen)| (name, seen.downs));
        self.liveness.downs = downs.collect();
    }

    fn bfd_down(&mut self, name: &PeerName, seen: &BfdStatus) {
        let independent = seen.control_plane_independent;
        let options = self.config.peers.get(name).and_then(|peer| peer.bfd);
        let (Some(peer), Some(options)) = (self.peers.named_mut(name), options) else {
            return;
        };
        if peer.state == SessionState::Established {
            let graceful = options.graceful && !independent;
            peer.urgent = Some(ToSession::BfdDown { graceful });
            self.outdated = true;
        } else if independent {
            let changes = self.rib.peer_down(now(), name, false);
            self.dispatch(changes);
        }
    }
}
