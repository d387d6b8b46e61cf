//! Content and time of the messages to monitoring stations (RFC 7854 §5).
//!
//! A station is sent, in this order: Initiation; Peer Up of every established session; all paths
//! there are, piece by piece as it reads, and End-of-RIB; meanwhile and afterwards what changes.
//! All of it goes through one queue, so that what is later overrides what is earlier. A change is
//! encoded once for all stations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use caracal_model::Family;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::debug;

use super::{Core, now};
use crate::attrs::PathAttrs;
use crate::bmp::{
    self, BmpPeerDown, BmpStatistic, BmpTermination, BmpTimestamp, MonitoredSession, PolicyView,
};
use crate::config::Station;
use crate::rib::{MonitoredPath, PeerId};
use crate::speaker::message::PeerKey;
use crate::speaker::shared::{CannotAnnounce, announce, withdraw};
use crate::speaker::station::{self, FromStation, Queue, StationStart};
use crate::speaker::status::StationStatus;
use crate::wire::format::MessageFormat;
use crate::wire::nlri::Nlri;
use crate::wire::update::encode_end_of_rib;

/// Capacity of the channel from all stations to the core, in messages. Each station has at most two
/// under way.
const DEPTH: usize = 16;
/// Destinations in one piece of the table: some hundred kilooctets at most, and less than a
/// millisecond of work.
const PIECE: usize = 1024;
/// Limit for stations to read what is left when the speaker ends.
const FAREWELL: Duration = Duration::from_secs(1);
/// Octets of a BGP message's header, up to and with its length.
const LENGTH_END: usize = 18;

pub(super) struct Stations {
    stations: BTreeMap<String, StationState>,
    /// Established sessions, for stations that connect later.
    sessions: BTreeMap<PeerKey, MonitoredPeer>,
    pub(super) events: mpsc::Receiver<FromStation>,
    to_core: mpsc::Sender<FromStation>,
    tasks: JoinSet<()>,
    /// Of the next task.
    next_id: u64,
}

/// A session that stations know to be up.
struct MonitoredPeer {
    /// `None` while it is ending because its peer is no longer configured.
    id: Option<PeerId>,
    session: MonitoredSession,
    since: BmpTimestamp,
}

struct StationState {
    /// Number of the task that serves the station.
    id: u64,
    config: Station,
    /// Dropping it ends the task.
    stop: Option<oneshot::Sender<()>>,
    /// While it is connected.
    live: Option<Live>,
    connections: u64,
    reason: Option<String>,
}

struct Live {
    queue: Arc<Queue>,
    local: SocketAddr,
    /// Place in the table where the next piece begins, until all have been sent.
    next_piece: Option<usize>,
    statistics_at: Option<Instant>,
}

impl Stations {
    pub(super) fn new() -> Self {
        let (to_core, events) = mpsc::channel(DEPTH);
        Self {
            stations: BTreeMap::new(),
            sessions: BTreeMap::new(),
            events,
            to_core,
            tasks: JoinSet::new(),
            next_id: 0,
        }
    }

    fn is_live(&self) -> bool {
        self.stations.values().any(|station| station.live.is_some())
    }

    fn start(&mut self, name: &str, config: &Station) {
        let (stop, stopped) = oneshot::channel();
        let id = self.next_id;
        self.next_id += 1;
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(station::run(StationStart {
            id,
            name: name.to_owned(),
            config: config.clone(),
            core: self.to_core.clone(),
            stop: stopped,
        }));
        let state = StationState {
            id,
            config: config.clone(),
            stop: Some(stop),
            live: None,
            connections: 0,
            reason: None,
        };
        self.stations.insert(name.to_owned(), state);
    }

    fn of_task(&mut self, id: u64) -> Option<&mut StationState> {
        self.stations.values_mut().find(|state| state.id == id)
    }

    /// Puts octets into the queues of the stations that `which` selects.
    fn push(&mut self, octets: &Bytes, which: impl Fn(&Station) -> bool) {
        if octets.is_empty() {
            return;
        }
        let wanted = |state: &&mut StationState| which(&state.config);
        for state in self.stations.values_mut().filter(wanted) {
            if state
                .live
                .as_ref()
                .is_some_and(|live| !live.queue.push(octets.clone()))
            {
                // Its task says why, and connects again.
                state.live = None;
            }
        }
    }

    /// When numbers are due next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let live = self.stations.values().filter_map(|s| s.live.as_ref());
        live.filter_map(|live| live.statistics_at).min()
    }

    pub(super) fn status(&self) -> Vec<StationStatus> {
        let status = |(name, state): (&String, &StationState)| StationStatus {
            name: name.clone(),
            address: state.config.address,
            port: state.config.port,
            connected: state.live.is_some(),
            local: state.live.as_ref().map(|live| live.local),
            table_sent: state
                .live
                .as_ref()
                .is_some_and(|live| live.next_piece.is_none()),
            waiting: state.live.as_ref().map_or(0, |live| live.queue.octets()),
            connections: state.connections,
            reason: state.reason.clone().filter(|_| state.live.is_none()),
        };
        self.stations.iter().map(status).collect()
    }
}

/// The clock of the wall: stations compare it with that of others.
fn wall() -> BmpTimestamp {
    BmpTimestamp(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

impl Core {
    /// Goes over to the stations of the configuration.
    pub(super) fn follow_stations(&mut self, changed: &BTreeSet<String>) {
        for name in changed {
            if let Some(mut old) = self.stations.stations.remove(name) {
                dismiss(&mut old);
            }
            if let Some(config) = self.config.stations.get(name) {
                self.stations.start(name, config);
            }
        }
        self.rib.monitor(self.stations.is_live());
    }

    /// Connects anew to stations whose connection is from an address that is gone.
    pub(super) fn reconnect_stations(&mut self, gone: &BTreeSet<IpAddr>) {
        let stations = self.stations.stations.iter();
        let dead = stations.filter(|(_, station)| {
            let live = station.live.as_ref();
            live.is_some_and(|live| gone.contains(&live.local.ip().to_canonical()))
        });
        let dead: BTreeSet<String> = dead.map(|(name, _)| name.clone()).collect();
        if !dead.is_empty() {
            self.follow_stations(&dead);
        }
    }

    /// A session is established.
    pub(super) fn monitor_up(&mut self, key: PeerKey, id: PeerId, session: MonitoredSession) {
        self.update_stations();
        let since = wall();
        let mut out = BytesMut::new();
        bmp::encode_bmp_peer_up(&session, since, &mut out);
        self.stations.push(&out.freeze(), |_| true);
        let up = MonitoredPeer {
            id: Some(id),
            session,
            since,
        };
        self.stations.sessions.insert(key, up);
    }

    /// A session has ended.
    pub(super) fn monitor_down(&mut self, key: PeerKey, reason: &BmpPeerDown) {
        self.update_stations();
        if let Some(up) = self.stations.sessions.remove(&key) {
            let mut out = BytesMut::new();
            bmp::encode_bmp_peer_down(&up.session, wall(), reason, &mut out);
            self.stations.push(&out.freeze(), |_| true);
        }
    }

    /// A handle is about to be given to another peer, or to none.
    pub(super) fn monitor_forget(&mut self, id: PeerId) {
        self.update_stations();
        for up in self.stations.sessions.values_mut() {
            up.id = up.id.filter(|known| *known != id);
        }
    }

    /// A peer has sent all routes of a family.
    pub(super) fn monitor_end_of_rib(&mut self, id: PeerId, family: Family) {
        if !self.rib.is_monitored() {
            return;
        }
        self.update_stations();
        for view in [PolicyView::PrePolicy, PolicyView::PostPolicy] {
            let mut out = BytesMut::new();
            if let Some(up) = self.stations.up(id) {
                end_of_rib(&up.session, view, family, wall(), &mut out);
            }
            self.stations
                .push(&out.freeze(), |config| wants(config, view));
        }
    }

    /// Sends stations the paths that have changed since the last call.
    pub(super) fn update_stations(&mut self) {
        if !self.rib.is_monitored() {
            return;
        }
        let changed = self.rib.changed_paths();
        if changed.is_empty() {
            return;
        }
        let paths: Vec<_> = changed
            .into_iter()
            .map(|name| self.rib.monitored_path(name))
            .collect();
        for view in [PolicyView::PrePolicy, PolicyView::PostPolicy] {
            let mut states = self.stations.stations.values();
            if states.any(|state| state.live.is_some() && wants(&state.config, view)) {
                let octets = self.stations.encode(&paths, view, wall());
                self.stations.push(&octets, |config| wants(config, view));
            }
        }
        self.rib.monitor(self.stations.is_live());
    }

    /// An event of a station's task.
    pub(super) fn on_station_event(&mut self, event: FromStation) {
        match event {
            FromStation::Connected { id, local, queue } => {
                // Changes noted so far are part of the table that the station gets.
                self.update_stations();
                self.greet(id, local, queue);
            }
            FromStation::Written { id, queue } => self.next_piece(id, &queue),
            FromStation::Lost { id, reason } => {
                if let Some(state) = self.stations.of_task(id) {
                    state.live = None;
                    state.reason = Some(reason);
                }
            }
        }
        self.rib.monitor(self.stations.is_live());
    }

    /// Initiation and Peer Up; the table follows when they are written.
    fn greet(&mut self, id: u64, local: SocketAddr, queue: Arc<Queue>) {
        let router_id = self.config.router_id;
        let mut states = self.stations.stations.values_mut();
        let Some(state) = states.find(|state| state.id == id) else {
            return;
        };
        let config = &state.config;
        let system = config
            .system_name
            .clone()
            .unwrap_or_else(|| router_id.to_string());
        let description = config
            .system_description
            .clone()
            .unwrap_or_else(|| concat!("caracal ", env!("CARGO_PKG_VERSION")).to_owned());
        let mut out = BytesMut::new();
        bmp::encode_bmp_initiation(&system, &description, &mut out);
        for up in self.stations.sessions.values() {
            bmp::encode_bmp_peer_up(&up.session, up.since, &mut out);
        }
        state.connections += 1;
        if queue.push(out.freeze()) {
            state.live = Some(Live {
                queue,
                local,
                next_piece: Some(0),
                statistics_at: state.config.statistics.map(|every| now() + every),
            });
        }
    }

    /// The station has read all there was: it gets the next piece of the table.
    fn next_piece(&mut self, id: u64, queue: &Arc<Queue>) {
        // Changes since the last piece go first; the piece shows the table as of now.
        self.update_stations();
        let Some(state) = self.stations.of_task(id) else {
            return;
        };
        let config = state.config.clone();
        let live = state.live.as_ref();
        let Some(from) = live
            .filter(|live| Arc::ptr_eq(&live.queue, queue))
            .and_then(|live| live.next_piece)
        else {
            return;
        };
        let (mut paths, next) = self.rib.monitored_piece(from, PIECE);
        let mut out = BytesMut::new();
        for view in [PolicyView::PrePolicy, PolicyView::PostPolicy] {
            if wants(&config, view) {
                // Of what is refused nothing has been said that could be withdrawn.
                paths.retain(|path| attributes(path, view).is_some());
                out.extend_from_slice(&self.stations.encode(&paths, view, BmpTimestamp::UNKNOWN));
            }
        }
        if next.is_none() {
            self.put_ends(&config, &mut out);
        }
        if out.is_empty() {
            queue.ask_again();
        }
        let fits = queue.push(out.freeze());
        if let Some(state) = self.stations.of_task(id) {
            match &mut state.live {
                Some(live) if fits => live.next_piece = next,
                _ => state.live = None,
            }
        }
    }

    /// Sends End-of-RIB for the peers that have sent theirs; the others follow when they do.
    fn put_ends(&self, config: &Station, out: &mut BytesMut) {
        for up in self.stations.sessions.values() {
            let Some(id) = up.id else { continue };
            for family in up.session.format.families.iter() {
                for view in [PolicyView::PrePolicy, PolicyView::PostPolicy] {
                    if wants(config, view) && self.rib.has_finished(id, family) {
                        end_of_rib(&up.session, view, family, BmpTimestamp::UNKNOWN, out);
                    }
                }
            }
        }
    }

    /// Sends the Statistics Reports that are due (RFC 7854 §4.8).
    pub(super) fn report_statistics(&mut self) {
        let now = now();
        let due = |state: &StationState| {
            let at = state.live.as_ref().and_then(|live| live.statistics_at);
            at.is_some_and(|at| at <= now)
        };
        if !self.stations.stations.values().any(due) {
            return;
        }
        let octets = self.statistics();
        for state in self.stations.stations.values_mut().filter(|s| due(s)) {
            let every = state.config.statistics;
            let Some(live) = &mut state.live else {
                continue;
            };
            live.statistics_at = every.map(|every| now + every);
            if !octets.is_empty() && !live.queue.push(octets.clone()) {
                state.live = None;
            }
        }
    }

    /// A report about each established peer.
    fn statistics(&self) -> Bytes {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let mut out = BytesMut::new();
        let all = self.rib.all_peer_counts();
        for up in self.stations.sessions.values() {
            let Some((id, counts)) = up.id.and_then(|id| Some((id, all.get(&id)?))) else {
                continue;
            };
            let mut numbers = vec![BmpStatistic::AdjRibIn(number(counts.received))];
            for family in up.session.format.families.iter() {
                let count = number(self.rib.received_of(id, family));
                numbers.push(BmpStatistic::AdjRibInOf(family, count));
            }
            numbers.push(BmpStatistic::AdjRibOut(number(counts.advertised)));
            bmp::encode_bmp_statistics(&up.session, wall(), &numbers, &mut out);
        }
        out.freeze()
    }

    /// The speaker ends: so does monitoring.
    pub(super) async fn dismiss_stations(&mut self) {
        for state in self.stations.stations.values_mut() {
            dismiss(state);
        }
        self.stations.stations.clear();
        let Stations { tasks, events, .. } = &mut self.stations;
        let ended = async {
            loop {
                tokio::select! {
                    // Keeps the channel empty, so that no task waits for a place in it.
                    _ = events.recv() => {}
                    ended = tasks.join_next() => if ended.is_none() { return },
                }
            }
        };
        let _ = tokio::time::timeout(FAREWELL, ended).await;
    }
}

/// Termination, and nothing after it. A task without a connection ends at once, the other when all
/// is written.
fn dismiss(state: &mut StationState) {
    let Some(stop) = state.stop.take() else {
        return;
    };
    if let Some(live) = state.live.take() {
        let mut out = BytesMut::new();
        bmp::encode_bmp_termination(BmpTermination::AdministrativelyClosed, &mut out);
        live.queue.push(out.freeze());
        live.queue.close();
        // A station that does not read is not waited for.
        tokio::spawn(async move {
            tokio::time::sleep(FAREWELL).await;
            drop(stop);
        });
    }
}

const fn wants(config: &Station, view: PolicyView) -> bool {
    match view {
        PolicyView::PrePolicy => config.pre_policy,
        PolicyView::PostPolicy => config.post_policy,
    }
}

/// Attributes of a path in a view; `None`: the path is not in the view.
const fn attributes<'a>(path: &MonitoredPath<'a>, view: PolicyView) -> Option<&'a Arc<PathAttrs>> {
    match view {
        PolicyView::PrePolicy => path.received,
        PolicyView::PostPolicy => path.accepted,
    }
}

impl Stations {
    fn up(&self, id: PeerId) -> Option<&MonitoredPeer> {
        self.sessions.values().find(|up| up.id == Some(id))
    }

    /// Route Monitoring of these paths. Those of sessions that a station does not know are left
    /// out.
    fn encode(&self, paths: &[MonitoredPath<'_>], view: PolicyView, time: BmpTimestamp) -> Bytes {
        let mut out = BytesMut::new();
        let known: BTreeMap<PeerId, &MonitoredPeer> = self
            .sessions
            .values()
            .filter_map(|up| Some((up.id?, up)))
            .collect();
        let together = |a: &MonitoredPath<'_>, b: &MonitoredPath<'_>| {
            let same = match (attributes(a, view), attributes(b, view)) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            };
            same && a.name.peer == b.name.peer
                && a.name.path_id.is_some() == b.name.path_id.is_some()
        };
        for run in paths.chunk_by(together) {
            let Some(up) = known.get(&run[0].name.peer) else {
                continue;
            };
            let format = up.session.update_format(view);
            let mut updates = BytesMut::new();
            let set = attributes(&run[0], view).map(|set| &**set);
            // Identifiers are for all prefixes of a family or for none; a session may use them for
            // one family only.
            if run[0].name.path_id.is_some() {
                let id = |path: &MonitoredPath<'_>| {
                    (path.name.prefix, path.name.path_id.unwrap_or_default())
                };
                let nlri: Vec<_> = run.iter().map(id).collect();
                put_updates(set, &nlri, &format, &mut updates);
            } else {
                let nlri: Vec<_> = run.iter().map(|path| path.name.prefix).collect();
                put_updates(set, &nlri, &format, &mut updates);
            }
            wrap(&up.session, view, time, &updates, &mut out);
        }
        out.freeze()
    }
}

/// Appends the UPDATEs that announce or withdraw prefixes.
fn put_updates<N: Nlri>(
    attrs: Option<&PathAttrs>,
    nlri: &[N],
    format: &MessageFormat,
    out: &mut BytesMut,
) {
    let mut failed = Vec::new();
    match attrs {
        Some(attrs) => announce(attrs, nlri, format, out, &mut failed),
        None => withdraw(nlri, format, out),
    }
    // Hardly ever: the peer itself has sent them in a message of this format.
    for CannotAnnounce { error, count } in failed {
        debug!(
            error,
            count, "a monitoring station is not told of routes, which do not fit a message"
        );
    }
}

/// Appends a Route Monitoring for each UPDATE.
fn wrap(
    session: &MonitoredSession,
    view: PolicyView,
    time: BmpTimestamp,
    mut updates: &[u8],
    out: &mut BytesMut,
) {
    while let Some(&[high, low]) = updates.get(LENGTH_END - 2..LENGTH_END) {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let (update, rest) = updates.split_at(len.min(updates.len()));
        bmp::encode_bmp_route_monitoring(session, view, time, update, out);
        updates = rest;
    }
}

fn end_of_rib(
    session: &MonitoredSession,
    view: PolicyView,
    family: Family,
    time: BmpTimestamp,
    out: &mut BytesMut,
) {
    let mut marker = BytesMut::new();
    encode_end_of_rib(family, &mut marker);
    bmp::encode_bmp_route_monitoring(session, view, time, &marker, out);
}
