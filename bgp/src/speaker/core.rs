//! The core task: the one owner of the table and of the peer list.
//!
//! It waits for nobody: towards sessions and the forwarding side there are coalescing feeds, and a
//! control channel that is full costs a retry. Whether a message means anything is decided in the
//! table, not here.

mod answers;
mod bfd;
mod history;
mod listening;
mod operate;
mod ranges;
mod roster;
mod sessions;
mod slices;
mod stations;
mod violations;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use foldhash::HashMap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{self, JoinSet};
use tracing::{debug, info, warn};

use super::addresses::no_next_hop;
use super::admission::{Admission, PeerAdmission};
use super::feed::OutFeed;
use super::log_limit::{LogKind, LogLimit, summarise_peers};
use super::message::{PeerKey, Shutdown, TO_CORE_DEPTH, ToCore, ToSession};
use super::shared::SharedUpdate;
use super::status::{Convergence, TurnTimes};
use super::{Command, FibFeed, SpeakerOptions, Tasks};
use crate::config::{PeerConfig, SpeakerConfig};
use crate::rib::{Changes, FibExportFilter, Outbound, PeerId, Rib, RibOptions, SessionInfo};
use crate::types::{PeerName, SessionState};
use crate::wire::refresh::RefreshKind;
use bfd::Liveness;
use history::History;
use listening::Listening;
use operate::Disabled;
use ranges::{Dynamic, NamedRange};
use roster::Roster;
use slices::{SessionEvent, Subscription};
use stations::Stations;
use violations::Logged;

/// Messages that are taken from the sessions before others get a turn.
const BATCH: usize = 64;

/// Destinations that may wait for a decision: what is under way at a time costs memory, and beyond
/// a few full messages for each peer, more of it saves nothing.
const DECIDE: usize = 4096;

/// Pause before a control message is offered again to a session whose channel was full.
const RETRY: Duration = Duration::from_millis(100);

/// The time, as tokio has it: a test can stop it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// One configured peer, or one whose session task has not ended yet.
struct CorePeer {
    /// Identifies the sessions of this peer in messages.
    key: PeerKey,
    /// Its label, in the configuration, the table and the log.
    name: PeerName,
    /// Its handle in the table; `None` when it is no longer configured.
    id: Option<PeerId>,
    /// The way to its session task; `None` while the task is ending.
    control: Option<mpsc::Sender<ToSession>>,
    /// The session has not yet got the latest configuration.
    outdated: bool,
    /// A message that ends the session, for too many prefixes or by BFD, and is not sent yet.
    urgent: Option<ToSession>,
    state: SessionState,
    since: SystemTime,
    reason: Option<String>,
    /// One of the two ends does not want the session as it is.
    refused: bool,
    established_count: u64,
    /// Its connections that are no session.
    admission: PeerAdmission,
    /// The operator or the configuration wants no session with it, for this reason.
    disabled: Option<Disabled>,
    history: History,
}

impl CorePeer {
    fn new(key: PeerKey, name: PeerName) -> Self {
        Self {
            key,
            name,
            id: None,
            control: None,
            outdated: false,
            urgent: None,
            state: SessionState::Idle,
            since: SystemTime::now(),
            reason: None,
            refused: false,
            established_count: 0,
            admission: PeerAdmission::new(),
            disabled: None,
            history: History::new(now()),
        }
    }

    fn enter(&mut self, state: SessionState) {
        if state != self.state {
            let established = state == SessionState::Established;
            self.history.enter(now(), established);
            self.state = state;
            self.since = SystemTime::now();
        }
    }

    /// Orders the session task to end. The control channel is closed, so that it ends even if it
    /// cannot take it.
    fn stop(&mut self, how: Shutdown) {
        if let Some(control) = self.control.take()
            && control.try_send(ToSession::Shutdown(how)).is_err()
        {
            debug!("session ends by the closing of its channel");
        }
    }
}

/// Warning of a session on which routes of a family cannot be announced for lack of a next hop of
/// ours.
fn missing(session: &SessionInfo, config: &PeerConfig) -> Option<String> {
    let family = session.without_next_hop(config.own_next_hops).next()?;
    Some(no_next_hop(family, session.local_address, None))
}

/// The state of the core task.
pub(super) struct Core {
    config: SpeakerConfig,
    restarting_until: Option<Instant>,
    rib: Rib,
    peers: Roster,
    /// Ranges of addresses from which peers may come.
    ranges: Vec<NamedRange>,
    /// The peers that came from them, by address; they are part of `config`.
    dynamic: BTreeMap<IpAddr, Dynamic>,
    /// By the peer's handle in the table.
    feeds: Vec<Option<Arc<OutFeed>>>,
    fib: Vec<(FibFeed, FibExportFilter)>,
    convergence: watch::Sender<Convergence>,
    to_core: mpsc::Sender<ToCore>,
    sessions: JoinSet<()>,
    /// Key of the peer that a session task serves.
    tasks: HashMap<task::Id, PeerKey>,
    /// Some session has not yet got the latest configuration.
    outdated: bool,
    /// The table has taken UPDATEs, or ends of sessions, that are not yet decided.
    undecided: bool,
    /// Some: no session is to run, and this text was given to the peers' operators.
    disabled: Option<String>,
    listening: Listening,
    admission: Admission,
    liveness: Liveness,
    stations: Stations,
    log: LogLimit<(PeerName, LogKind)>,
    logged: Logged,
    starts: Tasks,
    /// Taken from the sessions, processed in the next turns.
    events: VecDeque<SessionEvent>,
    /// Of peers whose last messages the table is still working on.
    parked: VecDeque<SessionEvent>,
    /// Callers that wait for long work, with their tickets.
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    /// Feeds for the forwarding side that do not have all routes yet.
    subscriptions: Vec<Subscription>,
    /// Destinations in one step of long work.
    step: usize,
    /// Some dump is paused until its reader has caught up.
    dumps_paused: bool,
    turns: TurnTimes,
}

/// The inputs of the core task.
pub(super) struct Inbox {
    /// Messages of all sessions.
    pub(super) sessions: mpsc::Receiver<ToCore>,
    /// Commands of all handles.
    pub(super) commands: mpsc::Receiver<Command>,
}

impl Core {
    pub(super) fn new(
        mut config: SpeakerConfig,
        options: SpeakerOptions,
        convergence: watch::Sender<Convergence>,
        starts: Tasks,
    ) -> (Self, mpsc::Receiver<ToCore>) {
        let now = now();
        let rib_options = RibOptions {
            restarting: options.restarting,
            startup: options.startup,
            open: options.open,
            local: options.local,
            origins: options.origins,
        };
        let ranges = ranges::take_ranges(&mut config);
        let (rib, _) = Rib::new(now, &config, rib_options);
        let (to_core, inbox) = mpsc::channel(TO_CORE_DEPTH);
        let core = Self {
            config,
            restarting_until: options.restarting.then(|| now + options.startup.selection),
            rib,
            peers: Roster::default(),
            ranges,
            dynamic: BTreeMap::new(),
            feeds: Vec::new(),
            fib: Vec::new(),
            convergence,
            to_core,
            sessions: JoinSet::new(),
            tasks: HashMap::default(),
            outdated: false,
            undecided: false,
            disabled: None,
            listening: Listening::new(),
            admission: Admission::new(),
            liveness: Liveness::default(),
            stations: Stations::new(),
            log: LogLimit::default(),
            logged: Logged::default(),
            starts,
            events: VecDeque::new(),
            parked: VecDeque::new(),
            waiting: Vec::new(),
            subscriptions: Vec::new(),
            step: slices::FIRST_STEP,
            dumps_paused: false,
            turns: TurnTimes::default(),
        };
        (core, inbox)
    }

    /// Runs until a shutdown has been carried out or all handles are gone.
    pub(super) async fn run(mut self, mut inbox: Inbox) {
        for name in self.config.peers.keys().cloned().collect::<Vec<_>>() {
            self.add_peer(&name);
        }
        self.start_listening();
        self.follow_stations(&self.config.stations.keys().cloned().collect());
        let mut batch = Vec::with_capacity(BATCH);
        let mut turn = Instant::now();
        loop {
            self.offer_configuration();
            self.publish_convergence();
            self.log_violations();
            self.update_stations();
            self.end_turn(turn);
            let working = self.has_work();
            let due = self.next_timeout();
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = inbox.sessions.recv_many(&mut batch, BATCH), if self.takes_messages() => {
                    turn = Instant::now();
                    self.events.extend(batch.drain(..).map(SessionEvent::Message));
                    self.process_events(turn);
                }
                command = inbox.commands.recv() => match command {
                    Some(Command::Shutdown { restart, done }) => {
                        self.shut_down(restart, inbox).await;
                        // The handle may have stopped waiting; the speaker is gone all the same.
                        let _ = done.send(());
                        return;
                    }
                    Some(command) => {
                        turn = Instant::now();
                        self.on_command(command);
                    }
                    None => return,
                },
                Some(ended) = self.sessions.join_next_with_id(), if !self.sessions.is_empty() => {
                    turn = Instant::now();
                    // Messages that the task sent before it ended are still in the channel; they
                    // must not be taken for messages of its successor.
                    for _ in 0..inbox.sessions.len() {
                        if let Ok(message) = inbox.sessions.try_recv() {
                            self.events.push_back(SessionEvent::Message(message));
                        }
                    }
                    self.events.push_back(SessionEvent::Ended(ended));
                    self.process_events(turn);
                }
                // Remaining work is the last branch: any event comes first, and without events it
                // goes on.
                () = task::yield_now(), if working => turn = Instant::now(),
                () = self.liveness.changed() => {
                    turn = Instant::now();
                    self.on_bfd_change();
                }
                event = self.listening.events.recv() => {
                    turn = Instant::now();
                    if let Some(event) = event {
                        self.on_listener_event(event);
                    }
                }
                Some(event) = self.stations.events.recv() => {
                    turn = Instant::now();
                    self.on_station_event(event);
                }
                () = sleep => {
                    turn = Instant::now();
                    summarise_peers(self.log.due(now()));
                    self.report_statistics();
                    let changes = self.rib.handle_timeout(now());
                    self.dispatch(changes);
                    self.expire_dynamic();
                }
            }
            self.work(turn);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let retry = self.outdated.then(|| now() + RETRY);
        let departure = self.next_departure();
        let statistics = self.stations.next_timeout();
        let log = self.log.next_timeout();
        let read = self.dumps_paused.then(|| now() + slices::READ_AGAIN);
        let rib = self.rib.next_timeout();
        let timers = [rib, retry, departure, statistics, log, read];
        timers.into_iter().flatten().min()
    }

    /// A message from a session task.
    fn on_message(&mut self, message: ToCore) {
        let now = now();
        let key = message.peer();
        if let ToCore::Down { end, .. } = &message {
            // Stations get it also of a session that we have ended.
            self.monitor_down(key, end);
        }
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        if let ToCore::Notified { way, text, .. } = message {
            // Also of a session that we have ended: that is how it ends.
            peer.history.notified(way, text);
            return;
        }
        // Messages of a peer that is no longer configured, or of a session that we have ended, are
        // dropped.
        let (Some(id), true) = (peer.id, peer.control.is_some()) else {
            return;
        };
        let name = peer.name.clone();
        let changes = match message {
            ToCore::Up {
                session,
                feed,
                monitored,
                ..
            } => self.session_established(&name, session, feed, *monitored),
            ToCore::Down {
                reason, graceful, ..
            } => {
                if self.log.allows(now, (name.clone(), LogKind::SessionDown)) {
                    warn!(peer = %name, reason, graceful, "session ended");
                }
                peer.enter(SessionState::Idle);
                peer.history.failed(&reason);
                peer.reason = Some(reason);
                self.set_feed(id, None);
                self.note_session(&name, false);
                self.rib.session_lost(now, &name, graceful);
                self.undecided = true;
                return;
            }
            ToCore::Update { update, .. } => {
                let end_of_rib = update.end_of_rib;
                self.rib.receive(now, &name, update);
                self.undecided = true;
                if let Some(family) = end_of_rib {
                    self.monitor_end_of_rib(id, family);
                }
                return;
            }
            ToCore::RouteRefresh { family, kind, .. } => match kind {
                RefreshKind::Request => {
                    // Pending UPDATEs are decided first, so that their changes are part of the
                    // answer and do not follow it.
                    self.decide();
                    self.rib.route_refresh(now, &name, family)
                }
                RefreshKind::Begin => self.rib.refresh_begin(now, &name, family),
                RefreshKind::End => self.rib.refresh_end(now, &name, family),
                RefreshKind::Other(_) => return,
            },
            ToCore::State {
                state,
                reason,
                refused,
                disables,
                ..
            } => {
                debug!(peer = %name, %state, reason, "state");
                peer.enter(state);
                if let Some(reason) = &reason {
                    peer.history.failed(reason);
                    peer.refused = refused;
                }
                let text = reason.clone().filter(|_| disables);
                peer.reason = reason.or_else(|| peer.reason.take());
                if let Some(text) = text {
                    self.disable_peer(&name, text, false);
                }
                return;
            }
            // Dealt with above.
            ToCore::Notified { .. } => return,
        };
        self.dispatch(changes);
    }

    /// Runs the decision process for all destinations that UPDATEs have changed since the last run.
    fn decide(&mut self) {
        if std::mem::take(&mut self.undecided) {
            let changes = self.rib.decide(now());
            self.dispatch(changes);
        }
    }

    fn set_feed(&mut self, id: PeerId, feed: Option<Arc<OutFeed>>) {
        if self.feeds.len() <= id.index() {
            self.feeds.resize(id.index() + 1, None);
        }
        self.feeds[id.index()] = feed;
    }

    /// Dispatches the changes of the table to feeds, sessions and stations. Never waits.
    fn dispatch(&mut self, changes: Changes) {
        self.fib.retain(|(feed, _)| !feed.is_orphan());
        if !self.fib.is_empty() && !changes.prefixes.is_empty() {
            let learned = |prefix| (prefix, self.rib.learned(&prefix));
            let routes: Vec<_> = changes.prefixes.iter().copied().map(learned).collect();
            for (feed, policy) in &self.fib {
                let routes = routes.iter().cloned();
                feed.extend(routes.map(|(prefix, route)| {
                    let route = route.and_then(|route| self.rib.forwarded(&prefix, route, policy));
                    (prefix, route)
                }));
            }
        }
        for out in changes.out {
            match out {
                Outbound::Group(update) => {
                    for update in SharedUpdate::new(update, self.rib.prefix_count()) {
                        // A member that sent all of it gets nothing.
                        for member in update.members().iter().filter(|m| update.concerns(m)) {
                            if let Some(feed) = self.feed(member.peer) {
                                feed.share(update.clone(), *member);
                            }
                        }
                    }
                }
                Outbound::Paths(update) => {
                    for member in &update.members {
                        if let Some(feed) = self.feed(member.peer) {
                            feed.change(update.for_member(member));
                        }
                    }
                }
                Outbound::Peer { peer, routes } => {
                    if let Some(feed) = self.feed(peer) {
                        feed.change(routes);
                    }
                }
                Outbound::RefreshBegin { peer, family } => {
                    if let Some(feed) = self.feed(peer) {
                        feed.begin_refresh(family);
                    }
                }
                Outbound::RefreshEnd { peer, family } => {
                    if let Some(feed) = self.feed(peer) {
                        feed.end_refresh(family);
                    }
                }
                Outbound::PrefixLimit { peer, passed } => {
                    self.limit(peer, ToSession::PrefixLimit(passed));
                }
                Outbound::PrefixWarning {
                    peer,
                    counted,
                    family,
                    count,
                    max,
                } => {
                    if let Some(name) = self.name_of(peer).cloned()
                        && self
                            .log
                            .allows(now(), (name.clone(), LogKind::PrefixWarning))
                    {
                        warn!(peer = %name, ?counted, %family, count, max, "peer comes near its limit of prefixes");
                    }
                }
                Outbound::EndOfRib { peer, family } => {
                    if let Some(feed) = self.feed(peer) {
                        feed.end_of_rib(family);
                    }
                }
            }
        }
    }

    /// The name of a peer by its handle.
    fn name_of(&self, id: PeerId) -> Option<&PeerName> {
        self.peers.with_id(id).map(|peer| &peer.name)
    }

    /// Ends a session for too many prefixes, as soon as its task takes the message.
    fn limit(&mut self, id: PeerId, message: ToSession) {
        if let Some(peer) = self.peers.with_id_mut(id) {
            peer.urgent = Some(message);
            self.outdated = true;
        }
    }

    fn feed(&self, peer: PeerId) -> Option<&OutFeed> {
        self.feeds.get(peer.index())?.as_deref()
    }

    fn publish_convergence(&self) {
        self.convergence.send_if_modified(|known| {
            let converged = self.rib.is_converged();
            if converged == known.converged && self.rib.awaited().eq(&known.awaited) {
                return false;
            }
            if converged && !known.converged {
                info!("every peer has told us everything, or had ample time to");
            }
            *known = Convergence {
                converged,
                awaited: self.rib.awaited().cloned().collect(),
            };
            true
        });
    }
}

#[cfg(test)]
mod tests;
