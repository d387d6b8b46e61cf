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
use crate::speaker::message::{PeerKey, ToSession};
use crate::types::{PeerName, SessionState};

/// BFD as the core knows it.
#[derive(Default)]
pub(super) struct Liveness {
    /// The thread; it starts with the first target.
    handle: Option<BfdHandle>,
    seen: Option<watch::Receiver<BTreeMap<PeerKey, BfdStatus>>>,
    targets: BTreeMap<PeerKey, BfdTarget>,
    /// Number of times that each peer's BFD had gone down when it was last read.
    downs: BTreeMap<PeerKey, u64>,
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
    pub(super) fn status(&self, key: PeerKey) -> Option<BfdStatus> {
        self.seen.as_ref()?.borrow().get(&key).cloned()
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

/// `ends`: our address and the peer's.
fn target(name: &PeerName, peer: &PeerConfig, ends: (IpAddr, IpAddr)) -> Option<BfdTarget> {
    Some(BfdTarget {
        name: name.clone(),
        local: ends.0,
        remote: ends.1,
        multihop: !is_direct(peer),
        options: peer.bfd?,
    })
}

impl Core {
    /// A session is established: from now on its peer is watched, also when the session has ended.
    pub(super) fn watch_peer(&mut self, name: &PeerName, session: &SessionInfo) {
        let (Some(peer), Some(config)) = (self.peers.named(name), self.config.peers.get(name))
        else {
            return;
        };
        let ends = (session.local_address, session.remote_address);
        let Some(target) = target(name, config, ends) else {
            return;
        };
        let targets = &mut self.liveness.targets;
        if targets.insert(peer.key, target.clone()) != Some(target) {
            self.liveness.send_targets();
        }
    }

    /// The configuration is another one, or names are.
    pub(super) fn watch_configured(&mut self) {
        let known = &self.liveness.targets;
        let wanted = self.peers.by_name().filter_map(|peer| {
            let config = self.config.peers.get(&peer.name)?;
            // Also a session that was there before BFD was configured.
            let ends = match self.rib.session(&peer.name) {
                Some(session) => (session.local_address, session.remote_address),
                None => {
                    let watched = known.get(&peer.key)?;
                    if watched.remote != config.address {
                        return None;
                    }
                    (watched.local, watched.remote)
                }
            };
            Some((peer.key, target(&peer.name, config, ends)?))
        });
        let wanted: BTreeMap<_, _> = wanted.collect();
        if wanted != *known {
            self.liveness.targets = wanted;
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
        for (key, seen) in &seen {
            if seen.downs > known.get(key).copied().unwrap_or_default() {
                self.bfd_down(*key, seen);
            }
        }
        let downs = seen.into_iter().map(|(key, seen)| (key, seen.downs));
        self.liveness.downs = downs.collect();
    }

    fn bfd_down(&mut self, key: PeerKey, seen: &BfdStatus) {
        let independent = seen.control_plane_independent;
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let config = self.config.peers.get(&peer.name);
        let Some(options) = config.and_then(|peer| peer.bfd) else {
            return;
        };
        if peer.state == SessionState::Established {
            let graceful = options.graceful && !independent;
            peer.urgent = Some(ToSession::BfdDown { graceful });
            self.outdated = true;
        } else if independent {
            let changes = self.rib.peer_down(now(), &peer.name, false);
            self.dispatch(changes);
        }
    }
}
