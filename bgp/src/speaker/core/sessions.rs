//! The session tasks: which run, with which configuration, and how they end.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashSet;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError};
use tracing::{debug, error, info, warn};

use super::{Core, Inbox, missing, now};
use crate::bmp::{BmpPeerDown, MonitoredSession};
use crate::config::{self, ConfigChange, SpeakerConfig};
use crate::rib::{Changes, SessionInfo};
use crate::speaker::feed::OutFeed;
use crate::speaker::log_limit::LogKind;
use crate::speaker::message::{PeerKey, SessionStart, Shutdown, TO_SESSION_DEPTH, ToSession};
use crate::types::{PeerName, SessionState};

/// Limit for the end of sessions at shutdown; then they are cut off.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

impl Core {
    /// Starts to serve a configured peer, now or when the session task of a peer with its name has
    /// ended.
    pub(super) fn add_peer(&mut self, name: &PeerName) {
        let Some(id) = self.rib.peer_id(name) else {
            return;
        };
        if let Some(ending) = self.peers.named_mut(name) {
            ending.id = Some(id);
            // It was removed and is here again: what was ordered before went with it.
            ending.disabled = None;
            if self.is_disabled_in_config(name) {
                self.disable_peer(name, String::new(), true);
            }
            return;
        }
        self.peers.add(name).id = Some(id);
        if self.is_disabled_in_config(name) {
            self.disable_peer(name, String::new(), true);
        }
        self.start_session(name);
    }

    fn is_disabled_in_config(&self, name: &PeerName) -> bool {
        self.config
            .peers
            .get(name)
            .is_some_and(|peer| peer.disabled)
    }

    pub(super) fn start_session(&mut self, name: &PeerName) {
        let Some(config) = self.config.peers.get(name) else {
            return;
        };
        let Some(peer) = self.peers.named(name) else {
            return;
        };
        if self.disabled.is_some() || peer.disabled.is_some() {
            return;
        }
        let (to_session, control) = mpsc::channel(TO_SESSION_DEPTH);
        let key = peer.key;
        let start = SessionStart {
            key,
            peer: name.clone(),
            config: config.clone(),
            local_as: self.config.local_as,
            router_id: self.config.router_id,
            restarting_until: self.restarting_until,
            had_session: peer.established_count > 0,
            counters: peer.history.counters.clone(),
            core: self.to_core.clone(),
            control,
        };
        let session = (self.starts.session)(start);
        let task = self.sessions.spawn(session);
        self.tasks.insert(task.id(), key);
        if let Some(peer) = self.peers.named_mut(name) {
            peer.control = Some(to_session);
            peer.outdated = false;
        }
    }

    /// A session is established: from now on the table writes all its exports to the session's
    /// feed.
    pub(super) fn session_established(
        &mut self,
        name: &PeerName,
        session: SessionInfo,
        feed: Arc<OutFeed>,
        monitored: MonitoredSession,
    ) -> Changes {
        let now = now();
        let Some(peer) = self.peers.named_mut(name) else {
            return Changes::default();
        };
        let Some(id) = peer.id else {
            return Changes::default();
        };
        if self.log.allows(now, (name.clone(), LogKind::SessionUp)) {
            info!(peer = %name, address = %session.remote_address, "session established");
        }
        peer.history.established(&monitored);
        peer.enter(SessionState::Established);
        peer.established_count += 1;
        let key = peer.key;
        let config = self.config.peers.get(name);
        if let Some(warning) = config.and_then(|config| missing(&session, config))
            && self
                .log
                .allows(now, (name.clone(), LogKind::CannotAnnounce))
        {
            warn!(peer = %name, warning, "routes stay here");
        }
        self.monitor_up(key, id, monitored);
        self.set_feed(id, Some(feed));
        self.note_session(name, true);
        self.watch_peer(name, &session);
        self.rib.peer_up(now, name, session)
    }

    /// A session task has ended; all its messages have been processed.
    pub(super) fn session_ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, failure) = match ended {
            Ok((id, ())) => (id, None),
            Err(failure) => (failure.id(), Some(failure)),
        };
        let Some(key) = self.tasks.remove(&id) else {
            return;
        };
        // Usually its last message was `Down` already.
        self.monitor_down(key, &BmpPeerDown::Local(0));
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let name = peer.name.clone();
        if let Some(failure) = failure {
            error!(peer = %name, %failure, "session task failed, this is a bug; it is restarted");
        }
        let Some(id) = peer.id else {
            self.peers.remove(key);
            return;
        };
        if peer.control.take().is_some() {
            // It ended by itself, so the table may still believe in its session.
            peer.enter(SessionState::Idle);
            self.set_feed(id, None);
            let changes = self.rib.peer_down(now(), &name, false);
            self.dispatch(changes);
        }
        self.start_session(&name);
    }

    /// Ends all sessions with Cease / Administrative Shutdown and this text, and starts none until
    /// [`Core::enable`]. The peers' routes go.
    pub(super) fn disable(&mut self, text: String) {
        info!(text, "all sessions are shut down");
        let names: Vec<PeerName> = self.peers.by_name().map(|peer| peer.name.clone()).collect();
        for name in names {
            self.stop_session(&name, Shutdown::administrative(text.clone()));
            self.rib.session_lost(now(), &name, false);
        }
        // Together: one look at the table for all of them.
        self.undecided = true;
        self.decide();
        self.disabled = Some(text);
    }

    /// Lets sessions run again. Where a task is still ending, its end starts the next.
    pub(super) fn enable(&mut self) {
        if self.disabled.take().is_none() {
            return;
        }
        info!("sessions may run again");
        let ending: HashSet<PeerKey> = self.tasks.values().copied().collect();
        let idle = self.peers.by_name();
        let idle = idle.filter(|peer| !ending.contains(&peer.key));
        let idle: Vec<PeerName> = idle.map(|peer| peer.name.clone()).collect();
        for name in idle {
            self.start_session(&name);
        }
    }

    /// Takes over names that peers have got without being others. Their sessions keep running: they
    /// are known by keys.
    fn rename(&mut self, new: &SpeakerConfig) {
        let renamed = config::renamed(&self.config, new);
        if renamed.is_empty() {
            return;
        }
        for (old, now) in renamed {
            // A peer that is no longer configured has the name until its session has ended.
            if !self.peers.rename(&old, &now) {
                continue;
            }
            info!(%old, %now, "peer has another name");
            self.rib.rename_peer(&old, &now);
            if let Some(config) = self.config.peers.remove(&old) {
                self.config.peers.insert(now, config);
            }
        }
        self.watch_configured();
    }

    /// Goes over to a new configuration. Peers that do not differ are not touched.
    pub(super) fn reconfigure(&mut self, new: SpeakerConfig) {
        let new = self.with_dynamic(new);
        self.rename(&new);
        self.go_over_to(new);
        self.update_listener();
    }

    /// The same for a configuration whose ranges have been taken out and their peers put in.
    pub(super) fn go_over_to(&mut self, new: SpeakerConfig) {
        // The table compares the own routes, which may be many, in slices.
        let change = config::compare_all_but_routes(&self.config, &new);
        if change.is_empty() && new.originate.is_same(&self.config.originate) {
            return;
        }
        let (added, removed) = (change.added.len(), change.removed.len());
        let (changed, own_routes) = (change.peers.len(), new.originate.len());
        info!(added, removed, changed, own_routes, "new configuration");
        // Handles of removed peers are reused by the table, so their feeds have to go first.
        for name in &change.removed {
            self.stop_session(name, Shutdown::de_configured());
            if let Some(id) = self.peers.named_mut(name).and_then(|peer| peer.id.take()) {
                self.monitor_forget(id);
            }
        }
        self.stop_changed(&change);
        self.config = new;
        if change.listen {
            self.start_listening();
        }
        self.update_listener();
        let changes = self.rib.reconfigure(now(), &self.config);
        self.dispatch(changes);
        for name in &change.added {
            self.add_peer(name);
        }
        for (name, differs) in &change.peers {
            match differs.disabled {
                Some(true) => self.disable_peer(name, String::new(), true),
                Some(false) => self.enable_peer(name),
                None => {}
            }
        }
        self.watch_configured();
        self.follow_stations(&change.stations);
        for (name, _) in change.peers.iter().filter(|(_, change)| change.session) {
            if let Some(peer) = self.peers.named_mut(name) {
                peer.outdated = true;
                self.outdated = true;
            }
        }
    }

    /// Ends the sessions that need other OPEN messages; each starts again when its task has ended.
    /// Peers whose identity and ours stay the same keep forwarding, as over a restart (RFC 4724).
    fn stop_changed(&mut self, change: &ConfigChange) {
        for (name, differs) in change.peers.iter().filter(|(_, differs)| differs.reset) {
            let how = if differs.replaced {
                Shutdown::reconfigured()
            } else {
                Shutdown::Restart
            };
            self.stop_session(name, how);
        }
    }

    pub(super) fn stop_session(&mut self, name: &PeerName, how: Shutdown) {
        let Some(peer) = self.peers.named_mut(name) else {
            return;
        };
        debug!(peer = %name, ?how, "session is told to end");
        peer.stop(how);
        peer.enter(SessionState::Idle);
        peer.reason = Some("stopped by a change of configuration".to_owned());
        if let Some(id) = peer.id {
            self.set_feed(id, None);
        }
    }

    /// Has the sessions, and the monitoring stations, give up connections from addresses that this
    /// machine has no more. Which connections those are, they know themselves.
    pub(super) fn addresses_gone(&mut self, gone: BTreeSet<IpAddr>) {
        self.reconnect_stations(&gone);
        let gone = Arc::new(gone);
        for peer in self.peers.iter_mut().filter(|peer| peer.control.is_some()) {
            // An urgent message that is already pending ends the session too.
            peer.urgent
                .get_or_insert_with(|| ToSession::AddressesGone(gone.clone()));
            self.outdated = true;
        }
    }

    /// Hands the configuration to the sessions that have not got it yet and can take it.
    pub(super) fn offer_configuration(&mut self) {
        if !std::mem::take(&mut self.outdated) {
            return;
        }
        for peer in self.peers.iter_mut() {
            let (Some(control), Some(message)) = (&peer.control, peer.urgent.take()) else {
                continue;
            };
            if let Err(mpsc::error::TrySendError::Full(message)) = control.try_send(message) {
                peer.urgent = Some(message);
                self.outdated = true;
            }
        }
        for peer in self.peers.iter_mut().filter(|peer| peer.outdated) {
            let config = self.config.peers.get(&peer.name);
            let (Some(control), Some(config)) = (&peer.control, config) else {
                peer.outdated = false;
                continue;
            };
            let message = ToSession::Config(Box::new(config.clone()));
            let full = matches!(
                control.try_send(message),
                Err(mpsc::error::TrySendError::Full(_))
            );
            peer.outdated = full;
            self.outdated |= full;
        }
    }

    /// Ends everything. `restart`: the peers and the forwarding table are to keep our routes.
    pub(super) async fn shut_down(&mut self, restart: bool, mut inbox: Inbox) {
        info!(restart, "shutting down");
        // The forwarding side first: the end of the sessions says nothing about the routes.
        self.listening.stop();
        for (feed, _) in self.fib.drain(..) {
            feed.close();
        }
        for peer in self.peers.iter_mut() {
            peer.stop(if restart {
                Shutdown::Restart
            } else {
                Shutdown::administrative("")
            });
        }
        let all_ended = async {
            loop {
                tokio::select! {
                    // Keeps the channel empty, so that no session waits for a place in it.
                    _ = inbox.sessions.recv() => {}
                    ended = self.sessions.join_next() => {
                        if ended.is_none() {
                            return;
                        }
                    }
                }
            }
        };
        if tokio::time::timeout(SHUTDOWN_LIMIT, all_ended)
            .await
            .is_err()
        {
            error!(
                left = self.sessions.len(),
                "sessions did not end in time and are cut off"
            );
        }
        self.dismiss_stations().await;
    }
}
