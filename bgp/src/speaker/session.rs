//! The session task: owns one state machine, its at most three connections and their buffers.
//!
//! It waits for whatever comes first: octets, room to write, the core's channel, the feed, a
//! command, the next deadline. Towards the core it blocks by not reading on; timers and keepalives
//! go on meanwhile. What a message means is decided in [`crate::fsm`] and [`crate::wire`], not
//! here.

mod control;
mod info;
mod link;
mod notes;
mod outgoing;
mod waits;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use caracal_model::Family;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{Instrument, debug, info_span, warn};

use super::admission::Ticket;
use super::counters::{Counters, ErrorKind};
use super::log_limit::{LogKind, LogLimit, summarise};
use super::message::{PeerKey, SessionStart, ToCore, ToSession};
use super::socket;
use crate::bmp::BmpPeerDown;
use crate::config::PeerConfig;
use crate::fsm::{
    ConnectionEnds, ConnectionId, DownReason, FsmInput, FsmOutput, PeerFsm, SessionSettings,
    SessionStop,
};
use crate::types::SessionState;
use crate::wire::refresh::RefreshKind;
use info::{connect_failure, monitored_session, session_info};
pub(super) use link::turn_away;
use link::{Link, Read};
use outgoing::Outgoing;
use waits::{Timer, readable, ready, writable};

/// Messages that may wait for a place in the core's channel before we stop reading.
const QUEUE: usize = 64;
/// Limit for the feed to empty before the last NOTIFICATION.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Send hold time (RFC 9687 §3): a peer that takes nothing for so long is given up, or after twice
/// the hold time if that is more.
const SEND_HOLD: Duration = Duration::from_secs(8 * 60);

/// When the first session of this process was made.
static EPOCH: OnceLock<Instant> = OnceLock::new();

type Dial = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Serves one peer until [`ToSession::Shutdown`]. See [`SessionStart`].
pub async fn run_session(start: SessionStart) {
    let span = info_span!("peer", name = %start.peer, address = %start.config.address);
    SessionTask::new(start).run().instrument(span).await;
}

/// The time, as tokio has it: a test can stop it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Event that the task waits for.
enum TaskEvent {
    Timeout,
    Control(Option<ToSession>),
    Dialled(io::Result<TcpStream>),
    Readable(ConnectionId),
    Writable(ConnectionId),
    /// There is room in the core's channel, or the core is gone.
    Core(bool),
    /// The feed has something.
    Feed,
    /// A closed connection has had its last octets; what it held is free again.
    Closed,
}

struct SessionTask {
    key: PeerKey,
    settings: SessionSettings,
    peer: PeerFsm,
    core: mpsc::Sender<ToCore>,
    control: mpsc::Receiver<ToSession>,
    dial: Option<Dial>,
    out: Option<Link>,
    inc: Option<Link>,
    /// A further one of the peer, beside a session on `inc`.
    pending: Option<Link>,
    /// A connection that the machine has not yet adopted or refused.
    offered: Option<Link>,
    outgoing: Option<Outgoing>,
    /// Messages that the core has not taken yet.
    queue: VecDeque<ToCore>,
    /// Connections that get their last octets.
    closing: JoinSet<()>,
    /// Ends the session when the feed is empty, and at this time anyway.
    stopping: Option<(SessionStop, Instant)>,
    timer: Timer,
    counters: Arc<Counters>,
    log: LogLimit<LogKind>,
}

impl SessionTask {
    fn new(start: SessionStart) -> Self {
        let SessionStart {
            key,
            peer: name,
            config,
            local_as,
            router_id,
            restarting_until,
            had_session,
            counters,
            core,
            control,
        } = start;
        let settings = SessionSettings {
            local_as,
            router_id,
            peer: config,
            restarting_until,
            had_session,
            epoch: *EPOCH.get_or_init(now),
        };
        // Keys of a RandomState differ from process to process: peers that start together spread
        // out.
        let seed = RandomState::new().hash_one(name.as_str());
        Self {
            peer: PeerFsm::new(settings.clone(), seed).resuming(counters.flaps()),
            key,
            settings,
            core,
            control,
            dial: None,
            out: None,
            inc: None,
            pending: None,
            offered: None,
            outgoing: None,
            queue: VecDeque::new(),
            closing: JoinSet::new(),
            stopping: None,
            timer: Timer::new(),
            counters,
            log: LogLimit::default(),
        }
    }

    async fn run(mut self) {
        let in_order = self.serve().await;
        summarise(self.log.finish(now()));
        while in_order && self.closing.join_next().await.is_some() {}
    }

    /// Serves the peer until the core orders the session to end (true) or is gone (false).
    async fn serve(&mut self) -> bool {
        self.feed(FsmInput::Start);
        loop {
            // Yield now and then: a stream that is always ready must not keep a thread from the
            // other sessions.
            tokio::task::coop::consume_budget().await;
            self.pack();
            if self.stop_if_drained() {
                return true;
            }
            match self.wait().await {
                TaskEvent::Timeout => self.timeout(),
                // The core is gone without an order, as after a crash: the connections just end.
                TaskEvent::Control(None) | TaskEvent::Core(false) => return false,
                TaskEvent::Control(Some(message)) => self.control(message),
                TaskEvent::Dialled(result) => self.dialled(result),
                TaskEvent::Readable(conn) => self.readable(conn),
                TaskEvent::Writable(conn) => {
                    if let Some(link) = self.link_mut(conn) {
                        link.flush(now());
                    }
                }
                TaskEvent::Core(true) => self.unblocked(),
                TaskEvent::Feed | TaskEvent::Closed => {}
            }
        }
    }

    /// Waits for what comes first. Deadlines go before octets, so that a busy peer does not delay
    /// keepalives.
    async fn wait(&mut self) -> TaskEvent {
        self.timer.set(self.next_timeout());
        let reading = self.queue.len() < QUEUE;
        let Self {
            core,
            control,
            dial,
            out,
            inc,
            pending,
            closing,
            outgoing,
            queue,
            stopping,
            timer,
            ..
        } = self;
        let outgoing = outgoing
            .as_ref()
            .filter(|outgoing| link(out, inc, outgoing.conn).is_some_and(Link::has_room));
        let (out, inc, pending) = (out.as_ref(), inc.as_ref(), pending.as_ref());
        tokio::select! {
            biased;
            () = timer.expired() => TaskEvent::Timeout,
            message = control.recv(), if stopping.is_none() => TaskEvent::Control(message),
            result = async { dial.as_mut().expect("checked").await }, if dial.is_some() => {
                TaskEvent::Dialled(result)
            }
            permit = core.reserve(), if !queue.is_empty() => match permit {
                Ok(permit) => {
                    if let Some(message) = queue.pop_front() {
                        permit.send(message);
                    }
                    TaskEvent::Core(true)
                }
                Err(_) => TaskEvent::Core(false),
            },
            // Until then the end of the control channel says the same.
            () = core.closed(), if stopping.is_some() && queue.is_empty() => TaskEvent::Core(false),
            () = writable(out) => TaskEvent::Writable(ConnectionId::Out),
            () = writable(inc) => TaskEvent::Writable(ConnectionId::In),
            () = writable(pending) => TaskEvent::Writable(ConnectionId::Pending),
            () = readable(out), if reading => TaskEvent::Readable(ConnectionId::Out),
            () = readable(inc), if reading => TaskEvent::Readable(ConnectionId::In),
            () = readable(pending), if reading => TaskEvent::Readable(ConnectionId::Pending),
            Some(_) = closing.join_next() => TaskEvent::Closed,
            () = ready(outgoing) => TaskEvent::Feed,
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let send_hold = self.send_hold();
        let stalls = [&self.out, &self.inc, &self.pending]
            .into_iter()
            .flatten()
            .filter_map(Link::stalled);
        let drained = self.stopping.as_ref().map(|(_, until)| *until);
        stalls
            .map(|since| since + send_hold)
            .chain(drained)
            .chain(self.peer.next_timeout())
            .chain(self.log.next_timeout())
            .min()
    }

    fn send_hold(&self) -> Duration {
        SEND_HOLD.max(self.settings.hold_time() * 2)
    }

    fn link_mut(&mut self, conn: ConnectionId) -> Option<&mut Link> {
        self.slot(conn).as_mut()
    }

    const fn slot(&mut self, conn: ConnectionId) -> &mut Option<Link> {
        match conn {
            ConnectionId::Out => &mut self.out,
            ConnectionId::In => &mut self.inc,
            ConnectionId::Pending => &mut self.pending,
        }
    }

    /// Feeds an event to the state machine and carries out its outputs.
    fn feed(&mut self, input: FsmInput) {
        self.peer.handle(now(), input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.peer.poll() {
            self.execute(output);
        }
        let now = now();
        for conn in ConnectionId::ALL {
            if let Some(link) = self.link_mut(conn)
                && link.wants_write()
            {
                link.flush(now);
            }
        }
    }

    /// Executes an output of the peer machine.
    fn execute(&mut self, output: FsmOutput) {
        let peer = self.key;
        match output {
            FsmOutput::Connect => self.dial(),
            FsmOutput::Adopt(conn) => *self.slot(conn) = self.offered.take(),
            FsmOutput::Promote => self.inc = self.pending.take(),
            FsmOutput::Refuse(octets) => {
                self.note_sent(&octets);
                if let Some(mut link) = self.offered.take() {
                    link.outbox().extend_from_slice(&octets);
                    self.closing.spawn(link.close());
                }
            }
            FsmOutput::Send(conn, octets) => {
                self.note_sent(&octets);
                if let Some(link) = self.link_mut(conn) {
                    link.outbox().extend_from_slice(&octets);
                }
            }
            FsmOutput::Close(conn) => {
                if conn == ConnectionId::Out {
                    self.dial = None;
                }
                if let Some(link) = self.slot(conn).take() {
                    self.closing.spawn(link.close());
                }
            }
            FsmOutput::State(state, reason) => {
                self.counters.keep_flaps(self.peer.flaps());
                if let Some(reason) = &reason {
                    self.counters.down(reason);
                    debug!(%state, code = reason.code(), %reason, "state");
                }
                let after = self.settings.peer.disable_after;
                let refused = reason.as_ref().is_some_and(DownReason::is_refusal);
                let disables = reason.as_ref().is_some_and(|reason| reason.disables(after));
                let reason = reason.map(|reason| reason.to_string());
                self.send_state(state, reason, [refused, disables]);
            }
            FsmOutput::Up(conn, up) => {
                let outgoing = Outgoing::new(conn, up.negotiated.format);
                if let Some(link) = self.link_mut(conn) {
                    link.ticket = None;
                }
                let feed = outgoing.feed.clone();
                let monitored = Box::new(monitored_session(&up));
                self.outgoing = Some(outgoing);
                self.send_to_core(ToCore::Up {
                    peer,
                    session: session_info(&self.settings.peer, *up),
                    feed,
                    monitored,
                });
            }
            FsmOutput::Down {
                reason,
                sent,
                graceful,
            } => {
                self.outgoing = None;
                self.send_to_core(ToCore::Down {
                    peer,
                    reason: reason.to_string(),
                    graceful,
                    end: BmpPeerDown::new(&reason, sent.as_ref()),
                });
            }
            FsmOutput::Update(update) => self.send_to_core(ToCore::Update { peer, update }),
            FsmOutput::RouteRefresh(family) => self.send_refresh(family, RefreshKind::Request),
            FsmOutput::RefreshBegin(family) => self.send_refresh(family, RefreshKind::Begin),
            FsmOutput::RefreshEnd(family) => self.send_refresh(family, RefreshKind::End),
            FsmOutput::Fault(fault) => self.note_fault(&fault),
        }
    }

    /// Sends a message to the core; queues it, in order, while the channel is full.
    fn send_to_core(&mut self, message: ToCore) {
        if !self.queue.is_empty() {
            self.queue.push_back(message);
            return;
        }
        match self.core.try_send(message) {
            Ok(()) => {}
            Err(
                mpsc::error::TrySendError::Full(message)
                | mpsc::error::TrySendError::Closed(message),
            ) => {
                self.queue.push_back(message);
            }
        }
    }

    fn send_refresh(&mut self, family: Family, kind: RefreshKind) {
        let peer = self.key;
        self.send_to_core(ToCore::RouteRefresh { peer, family, kind });
    }

    /// Sends a state. A queued state is replaced by the next one, so they do not pile up.
    fn send_state(
        &mut self,
        state: SessionState,
        reason: Option<String>,
        [refused, disables]: [bool; 2],
    ) {
        if let Some(ToCore::State {
            state: waiting,
            reason: said,
            refused: said_refused,
            disables: said_disables,
            ..
        }) = self.queue.back_mut()
        {
            *waiting = state;
            if reason.is_some() {
                *said = reason;
                *said_refused = refused;
                *said_disables |= disables;
            }
            return;
        }
        let peer = self.key;
        self.send_to_core(ToCore::State {
            peer,
            state,
            reason,
            refused,
            disables,
        });
    }

    fn dial(&mut self) {
        let config = self.settings.peer.clone();
        self.dial = Some(Box::pin(async move { socket::connect(&config).await }));
    }

    fn dialled(&mut self, result: io::Result<TcpStream>) {
        self.dial = None;
        let connected = result.and_then(|stream| {
            let link = Link::new(stream);
            let ends = link.ends()?;
            Ok((link, ends))
        });
        match connected {
            Ok((link, ends)) => {
                self.out = Some(link);
                self.feed(FsmInput::Connected(ends));
            }
            Err(error) => {
                let failure = connect_failure(&self.settings.peer, &error);
                self.feed(FsmInput::ConnectFailed(failure));
            }
        }
    }

    /// A connection from the peer.
    fn offer(&mut self, stream: TcpStream, ticket: Option<Ticket>) {
        let config = &self.settings.peer;
        let checked =
            socket::apply(&stream, config).and_then(|()| socket::check_distance(&stream, config));
        if let Err(error) = checked {
            self.counters.error(ErrorKind::ConnectionRejected);
            if self.log.allows(now(), LogKind::ConnectionClosed) {
                warn!(%error, "connection from the peer is closed");
            }
            return;
        }
        let mut link = Link::new(stream);
        link.ticket = ticket;
        let Ok(ends) = link.ends() else {
            // It has gone already.
            return;
        };
        self.offered = Some(link);
        self.feed(FsmInput::Incoming(ends));
    }

    fn readable(&mut self, conn: ConnectionId) {
        let Some(link) = self.link_mut(conn) else {
            return;
        };
        if let Read::End(text) = link.read() {
            link.ended = Some(text);
        }
        self.understand(conn);
    }

    /// Decodes what has been read, as far as the core keeps up.
    fn understand(&mut self, conn: ConnectionId) {
        self.understand_on(conn);
        if conn == ConnectionId::Pending && self.pending.is_none() {
            // Its OPEN may have made it the incoming connection, and what follows the OPEN has been
            // read already.
            self.understand_on(ConnectionId::In);
        }
    }

    fn understand_on(&mut self, conn: ConnectionId) {
        while self.queue.len() < QUEUE {
            let format = self.peer.format(conn);
            let Some(link) = self.link_mut(conn) else {
                return;
            };
            if let Some(message) = link.message(&format) {
                self.note_received(&message);
                self.feed(FsmInput::Received(conn, message));
                continue;
            }
            if let Some(text) = link.ended.take() {
                *self.slot(conn) = None;
                self.feed(FsmInput::Closed(conn, text));
            }
            return;
        }
    }

    /// The core has taken something: hands over the rest and goes on.
    fn unblocked(&mut self) {
        while let Some(message) = self.queue.pop_front() {
            if let Err(
                mpsc::error::TrySendError::Full(message)
                | mpsc::error::TrySendError::Closed(message),
            ) = self.core.try_send(message)
            {
                self.queue.push_front(message);
                break;
            }
        }
        for conn in ConnectionId::ALL {
            self.understand(conn);
        }
    }

    fn timeout(&mut self) {
        let now = now();
        summarise(self.log.due(now));
        let limit = self.send_hold();
        for conn in ConnectionId::ALL {
            let Some(link) = self.link_mut(conn) else {
                continue;
            };
            if link.stalled().is_some_and(|since| since + limit <= now) {
                self.feed(FsmInput::SendHoldExpired(conn));
                continue;
            }
            // The hold timer is about the peer's silence, and it is not silent while its octets
            // wait for us.
            if !link.has_message() {
                self.readable(conn);
            }
            if self.link_mut(conn).is_some_and(|link| link.has_message()) {
                self.feed(FsmInput::BytesWaiting(conn));
            }
        }
        self.peer.handle_timeout(now);
        self.drain();
    }

    /// Packs routes into the connection's outbox as long as there are routes and room.
    fn pack(&mut self) {
        let Some(outgoing) = &self.outgoing else {
            return;
        };
        let link = match outgoing.conn {
            ConnectionId::Out => &mut self.out,
            // Routes go where the session is established, and that is never the pending connection.
            ConnectionId::In | ConnectionId::Pending => &mut self.inc,
        };
        let Some(link) = link else {
            return;
        };
        let mut failed = Vec::new();
        loop {
            // Few large writes: what is pending goes out together as far as there is room.
            let mut packed = false;
            while link.has_room() {
                let outbox = link.outbox();
                let before = outbox.len();
                if !outgoing.pack(outbox, &mut failed) {
                    break;
                }
                self.counters.sent(outbox.get(before..).unwrap_or_default());
                packed = true;
            }
            notes::cannot_announce(&mut self.log, &mut failed);
            if !packed {
                return;
            }
            link.flush(now());
        }
    }
}

const fn link<'a>(
    out: &'a Option<Link>,
    inc: &'a Option<Link>,
    conn: ConnectionId,
) -> Option<&'a Link> {
    match conn {
        ConnectionId::Out => out.as_ref(),
        ConnectionId::In | ConnectionId::Pending => inc.as_ref(),
    }
}

#[cfg(test)]
mod tests;
