//! One node: a state machine per session, and a table; or, where there would be too many tables, a
//! count of what a table would hold.
//!
//! A node that passes nothing on (a client, or a node of a mesh) looks the same to all others
//! whether it keeps a table or counts.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use caracal_bgp::{
    Changes, ConnectFailure, ConnectionEnds, ConnectionId, FsmInput, FsmOutput, MAX_MESSAGE_LEN,
    MessageFormat, Outbound, PathAttrs, PeerFsm, PeerName, RemoteRestart, Rib, RibOptions,
    RouteChange, SessionInfo, SessionOptions, SessionSettings, SessionUp, SharedUpdate,
    SpeakerConfig, UpdateMessage, decode_message, encode_announce, encode_end_of_rib,
    encode_withdraw, frame_len,
};
use caracal_model::{Family, Prefix};

use crate::cluster;

/// Input of a session.
#[derive(Debug)]
pub enum What {
    Start,
    /// The peer has connected.
    Incoming(ConnectionEnds),
    /// Our connection is up.
    Connected(ConnectionEnds),
    /// Our connection was refused.
    Refused(std::net::SocketAddr),
    /// Octets of the peer.
    Octets(Box<[u8]>),
    /// A deadline of the node has come.
    Timer,
}

/// Effect of a node on others.
#[derive(Debug)]
pub enum Act {
    /// Dials the other end of a session.
    Dial(usize),
    /// Takes the connection of the other end.
    Adopt(usize),
    /// Refuses the connection of this end.
    Refuse(usize),
    /// Sends the next so many octets of [`Effects::octets`].
    Send(usize, usize),
    /// Wants to be called at this time.
    Timer(usize, Instant),
}

/// Effects of a node during one run.
#[derive(Debug, Default)]
pub struct Effects {
    /// Actions, in the order in which they are to be carried out.
    pub acts: Vec<Act>,
    /// Octets to send, in the order of the acts.
    pub octets: Vec<u8>,
    /// Number of messages that were read.
    pub messages: u64,
    /// Routes read or written.
    pub routes: u64,
}

impl Effects {
    fn send(&mut self, end: usize, octets: &[u8]) {
        if !octets.is_empty() {
            self.octets.extend_from_slice(octets);
            self.acts.push(Act::Send(end, octets.len()));
        }
    }
}

/// One end of a session.
struct End {
    name: PeerName,
    peer: PeerFsm,
    conn: Option<ConnectionId>,
    format: MessageFormat,
    timer: Option<Instant>,
}

enum Table {
    Full(Box<Rib>),
    Counted {
        /// A bit a node.
        seen: Vec<u64>,
        count: usize,
        /// Its announcement to each peer.
        own: Box<(PathAttrs, Vec<Prefix>)>,
    },
}

pub struct SimulatedNode {
    ends: Vec<End>,
    table: Table,
    /// Ends by the peer's handle in the table.
    by_id: Vec<usize>,
    pub received: u64,
    /// Octets of heap in use.
    pub heap: i64,
}

impl SimulatedNode {
    /// A node with its plan. Sessions are in the order of the peers.
    pub fn new(now: Instant, config: &SpeakerConfig, full: bool, nodes: usize) -> Self {
        let end = |(name, peer): (&PeerName, &caracal_bgp::PeerConfig)| {
            let settings = SessionSettings {
                local_as: config.local_as,
                router_id: config.router_id,
                peer: peer.clone(),
                restarting_until: None,
                had_session: false,
                epoch: now,
            };
            End {
                name: name.clone(),
                peer: PeerFsm::new(settings, u64::from(u32::from(config.router_id.0))),
                conn: None,
                format: MessageFormat::default(),
                timer: None,
            }
        };
        let ends: Vec<End> = config.peers.iter().map(end).collect();
        let mut by_id = Vec::new();
        let table = if full {
            let (rib, _) = Rib::new(now, config, RibOptions::default());
            for (index, end) in ends.iter().enumerate() {
                let id = rib.peer_id(&end.name).map_or(0, caracal_bgp::PeerId::index);
                by_id.resize(by_id.len().max(id + 1), 0);
                by_id[id] = index;
            }
            Table::Full(Box::new(rib))
        } else {
            let attrs = config.originate.values().next().map(|route| PathAttrs {
                next_hop: route.next_hop,
                local_pref: route.local_pref,
                ..PathAttrs::default()
            });
            let prefixes = config.originate.keys().copied().collect();
            Table::Counted {
                seen: vec![0; nodes.div_ceil(64)],
                count: 0,
                own: Box::new((attrs.unwrap_or_default(), prefixes)),
            }
        };
        Self {
            ends,
            table,
            by_id,
            received: 0,
            heap: 0,
        }
    }

    /// True for a node with a table.
    pub fn is_full(&self) -> bool {
        matches!(self.table, Table::Full(_))
    }

    /// Routes of other nodes that it knows.
    pub fn learned(&self) -> usize {
        match &self.table {
            Table::Full(rib) => rib.all_learned().count(),
            Table::Counted { count, .. } => *count,
        }
    }

    /// Takes in what came, and decides once.
    pub fn work(
        &mut self,
        now: Instant,
        batch: impl Iterator<Item = (usize, What)>,
        effects: &mut Effects,
    ) {
        for (end, what) in batch {
            self.take(now, end, what, effects);
        }
        if let Table::Full(rib) = &mut self.table {
            let mut changes = rib.decide(now);
            // Here nobody waits meanwhile: all of it counts.
            while rib.has_work() {
                let more = rib.work(now, usize::MAX);
                changes.prefixes.extend(more.prefixes);
                changes.out.extend(more.out);
            }
            self.dispatch(changes, effects);
        }
    }

    fn take(&mut self, now: Instant, end: usize, what: What, effects: &mut Effects) {
        match what {
            What::Start => self.feed(now, end, FsmInput::Start, effects),
            What::Incoming(ends) => self.feed(now, end, FsmInput::Incoming(ends), effects),
            What::Connected(ends) => {
                self.ends[end].conn = Some(ConnectionId::Out);
                self.feed(now, end, FsmInput::Connected(ends), effects);
            }
            What::Refused(remote) => {
                let failure = ConnectFailure {
                    remote,
                    cause: std::io::ErrorKind::ConnectionRefused,
                    text: "refused".to_owned(),
                };
                self.feed(now, end, FsmInput::ConnectFailed(failure), effects);
            }
            What::Timer => {
                self.ends[end].timer = None;
                self.ends[end].peer.handle_timeout(now);
                self.drain(now, end, effects);
            }
            What::Octets(octets) => {
                let mut rest = &octets[..];
                while let Ok(Some(len)) = frame_len(rest, MAX_MESSAGE_LEN) {
                    let (message, after) = rest.split_at(len);
                    rest = after;
                    let Some(conn) = self.ends[end].conn else {
                        return;
                    };
                    effects.messages += 1;
                    self.received += 1;
                    let format = self.ends[end].peer.format(conn);
                    let message = decode_message(message, &format);
                    self.feed(now, end, FsmInput::Received(conn, message), effects);
                }
            }
        }
    }

    fn feed(&mut self, now: Instant, end: usize, input: FsmInput, effects: &mut Effects) {
        self.ends[end].peer.handle(now, input);
        self.drain(now, end, effects);
    }

    fn drain(&mut self, now: Instant, end: usize, effects: &mut Effects) {
        while let Some(output) = self.ends[end].peer.poll() {
            match output {
                FsmOutput::Connect => effects.acts.push(Act::Dial(end)),
                FsmOutput::Adopt(conn) => {
                    self.ends[end].conn = Some(conn);
                    effects.acts.push(Act::Adopt(end));
                }
                FsmOutput::Refuse(_) => effects.acts.push(Act::Refuse(end)),
                FsmOutput::Send(_, octets) => effects.send(end, &octets),
                FsmOutput::Up(_, up) => self.up(now, end, *up, effects),
                FsmOutput::Update(update) => self.update(now, end, update, effects),
                // Nobody goes down in this simulation, and nobody asks twice.
                _ => {}
            }
        }
        let End { peer, timer, .. } = &mut self.ends[end];
        if let Some(due) = peer.next_timeout()
            && timer.is_none_or(|set| due < set)
        {
            *timer = Some(due);
            effects.acts.push(Act::Timer(end, due));
        }
    }

    fn up(&mut self, now: Instant, end: usize, up: SessionUp, effects: &mut Effects) {
        let SessionUp {
            negotiated, ends, ..
        } = up;
        self.ends[end].format = negotiated.format;
        match &mut self.table {
            Table::Counted { own, .. } => {
                let mut octets = BytesMut::new();
                announce(&own.0, &own.1, &negotiated.format, &mut octets);
                encode_end_of_rib(Family::Ipv4, &mut octets);
                effects.send(end, &octets);
            }
            Table::Full(rib) => {
                let session = SessionInfo {
                    families: negotiated.families().iter().collect(),
                    router_id: negotiated.remote_router_id,
                    local_address: ends.local.ip(),
                    remote_address: ends.remote.ip(),
                    graceful_restart: negotiated.graceful_restart.map(|restart| RemoteRestart {
                        restarting: restart.restarting,
                        time: restart.time,
                        families: restart.families,
                    }),
                    options: SessionOptions::default(),
                    capabilities: Vec::new(),
                };
                let mut changes = rib.peer_up(now, &self.ends[end].name, session);
                while rib.has_work() {
                    changes.out.extend(rib.work(now, usize::MAX).out);
                }
                self.dispatch(changes, effects);
            }
        }
    }

    fn update(&mut self, now: Instant, end: usize, update: UpdateMessage, effects: &mut Effects) {
        effects.routes += update.announced.len() as u64 + update.withdrawn.len() as u64;
        match &mut self.table {
            Table::Full(rib) => rib.receive(now, &self.ends[end].name, update),
            Table::Counted { seen, count, .. } => {
                for node in update.announced.iter().filter_map(cluster::owner) {
                    let (word, bit) = (&mut seen[node / 64], 1 << (node % 64));
                    *count += usize::from(*word & bit == 0);
                    *word |= bit;
                }
            }
        }
    }

    fn dispatch(&self, changes: Changes, effects: &mut Effects) {
        let mut octets = BytesMut::new();
        for out in changes.out {
            match out {
                Outbound::Group(update) => {
                    for update in SharedUpdate::new(update, usize::MAX) {
                        for member in update.members() {
                            let end = self.by_id[member.peer.index()];
                            octets.clear();
                            update.encode(
                                member,
                                &self.ends[end].format,
                                &mut octets,
                                &mut Vec::new(),
                            );
                            effects.routes += update.len() as u64;
                            effects.send(end, &octets);
                        }
                    }
                }
                Outbound::Peer { peer, routes, .. } => {
                    let end = self.by_id[peer.index()];
                    octets.clear();
                    effects.routes += routes.len() as u64;
                    encode_routes(routes, &self.ends[end].format, &mut octets);
                    effects.send(end, &octets);
                }
                Outbound::EndOfRib { peer, family } => {
                    octets.clear();
                    encode_end_of_rib(family, &mut octets);
                    effects.send(self.by_id[peer.index()], &octets);
                }
                _ => {}
            }
        }
    }
}

/// Routes with the same attributes in one message.
fn encode_routes(mut routes: Vec<RouteChange>, format: &MessageFormat, octets: &mut BytesMut) {
    let key = |attrs: &Option<Arc<PathAttrs>>| attrs.as_ref().map(Arc::as_ptr);
    routes.sort_by_key(|route| (key(&route.attrs), route.prefix));
    for run in routes.chunk_by(|a, b| key(&a.attrs) == key(&b.attrs)) {
        let prefixes: Vec<Prefix> = run.iter().map(|route| route.prefix).collect();
        match &run[0].attrs {
            Some(attrs) => announce(attrs, &prefixes, format, octets),
            None => encode_withdraw(Family::Ipv4, &prefixes, format, octets),
        }
    }
}

fn announce(attrs: &PathAttrs, prefixes: &[Prefix], format: &MessageFormat, octets: &mut BytesMut) {
    encode_announce(Family::Ipv4, attrs, prefixes, format, octets)
        .expect("attributes of a plan fit a message");
}
