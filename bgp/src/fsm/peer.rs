//! The machine of one peer: connections, attempts and their pauses, the end of a session.

mod commands;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use caracal_model::Family;

use super::backoff::Backoff;
use super::connection::{Connection, ConnectionPhase};
use super::{
    ConnectFailure, ConnectionEnds, ConnectionId, DownReason, FsmInput, FsmOutput, Negotiated,
    SessionSettings,
};
use crate::types::SessionState;
use crate::wire::format::MessageFormat;
use crate::wire::notification::{CeaseSubcode, Notification, NotificationCode};
use crate::wire::{encode_keepalive, encode_notification, encode_open};

/// Limit for a peer's OPEN. RFC 4271 §8.2.2 suggests four minutes.
pub(super) const OPEN_HOLD: Duration = Duration::from_secs(240);
/// Limit of an attempt to connect: three SYNs of the kernel.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After a session of this length, the next failure counts as the first.
const STABLE: Duration = Duration::from_secs(30);
/// Time within which connections that were opened at the same moment collide.
pub(super) const COLLISION_WINDOW: Duration = Duration::from_secs(5);
/// KEEPALIVEs are due at whole such parts of their interval.
const KEEPALIVE_STEPS: u32 = 20;
/// Time for which unread octets keep a session alive, from each report of them on.
const BUSY_GRACE: Duration = Duration::from_secs(10);

/// The state machine of one configured peer.
#[derive(Debug)]
pub struct PeerFsm {
    pub(super) settings: SessionSettings,
    /// The session is wanted.
    enabled: bool,
    pub(super) out: Option<Connection>,
    pub(super) inc: Option<Connection>,
    /// A further connection of the peer, beside a session on `inc`.
    pending: Option<Connection>,
    /// ConnectRetryTimer: when to dial again.
    connect_retry: Option<Instant>,
    /// IdleHoldTimer: until then connections are neither made nor accepted.
    idle_hold: Option<Instant>,
    pub(super) backoff: Backoff,
    /// Our next OPENs carry no capabilities: the peer has refused the last one for having some (RFC
    /// 5492 §3).
    pub(super) plain: bool,
    pub(super) outputs: VecDeque<FsmOutput>,
    /// The last state that was put out.
    shown: SessionState,
    /// Reason of the last connection's end, until it is put out.
    reason: Option<DownReason>,
    /// Stopped for too many prefixes, until the settings change.
    limited: bool,
}

impl PeerFsm {
    /// A peer that is stopped. `seed` makes its jitter differ from that of others.
    #[must_use]
    pub const fn new(settings: SessionSettings, seed: u64) -> Self {
        Self {
            settings,
            enabled: false,
            out: None,
            inc: None,
            pending: None,
            connect_retry: None,
            idle_hold: None,
            backoff: Backoff::new(seed),
            plain: false,
            outputs: VecDeque::new(),
            shown: SessionState::Idle,
            reason: None,
            limited: false,
        }
    }

    /// Goes on counting flaps from what an earlier machine of the same peer had counted.
    #[must_use]
    pub const fn resuming(mut self, flaps: u32) -> Self {
        self.backoff.resume(flaps);
        self
    }

    /// Sessions in a row that fell soon after they came up, for [`PeerFsm::resuming`].
    #[must_use]
    pub const fn flaps(&self) -> u32 {
        self.backoff.flaps()
    }

    /// The state of the peer as a whole: that of the connection that has come furthest.
    #[must_use]
    pub fn state(&self) -> SessionState {
        let furthest = self.connections().map(Connection::state).max();
        match furthest {
            Some(state) => state,
            None if !self.enabled || self.idle_hold.is_some() => SessionState::Idle,
            None => SessionState::Active,
        }
    }

    /// Format of a connection's messages, for decoding and encoding.
    #[must_use]
    pub fn format(&self, conn: ConnectionId) -> MessageFormat {
        self.connection(conn)
            .and_then(Connection::negotiated)
            .map_or_else(
                // RFC 8654 §3: we announce extended messages, but UPDATEs come only after
                // negotiation.
                MessageFormat::default,
                |negotiated| negotiated.format,
            )
    }

    /// The connection of the established session and what it negotiated.
    #[must_use]
    pub fn established(&self) -> Option<(ConnectionId, &Negotiated)> {
        [ConnectionId::Out, ConnectionId::In]
            .into_iter()
            .find_map(|conn| {
                let connection = self.connection(conn)?;
                connection.established_at()?;
                Some((conn, connection.negotiated()?))
            })
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: Instant, input: FsmInput) {
        match input {
            FsmInput::Start => {
                self.enabled = true;
                self.dial(now);
            }
            FsmInput::Stop(stop) => self.stop(now, &stop),
            FsmInput::Settings(settings) => {
                let had_session = self.settings.had_session;
                self.settings = *settings;
                self.settings.had_session |= had_session;
                // A person has changed something: no reason to wait on.
                self.enabled |= std::mem::take(&mut self.limited);
                self.idle_hold = None;
                self.connect_retry = None;
                self.dial(now);
            }
            FsmInput::Connected(ends) => self.connected(now, ends),
            FsmInput::ConnectFailed(failure) => self.connect_failed(now, failure),
            FsmInput::Incoming(ends) => self.incoming(now, ends),
            FsmInput::Closed(conn, text) => {
                if let Some(connection) = self.slot(conn).take() {
                    self.ended(now, conn, &connection, DownReason::Closed(text), None);
                }
            }
            FsmInput::Received(conn, message) => self.received(now, conn, message),
            FsmInput::BytesWaiting(conn) => {
                if let Some(connection) = self.slot(conn)
                    && connection.hold.is_some()
                {
                    connection.hold = connection.hold.max(Some(now + BUSY_GRACE));
                }
            }
            FsmInput::SendHoldExpired(conn) if self.is_open(conn) => {
                let notification = Notification::new(NotificationCode::SendHoldTimerExpired(0));
                self.end(
                    now,
                    conn,
                    DownReason::SendHoldTimerExpired,
                    Some(notification),
                );
            }
            FsmInput::SendHoldExpired(_) => {}
            FsmInput::AskRefresh(family) => self.ask_refresh(family),
            FsmInput::BfdDown { graceful } => self.bfd_down(now, graceful),
            FsmInput::PrefixLimit(passed) => self.prefix_limit(now, passed),
        }
        self.show();
    }

    /// The next thing to do; drain it after each `handle` and `handle_timeout`.
    pub fn poll(&mut self) -> Option<FsmOutput> {
        self.outputs.pop_front()
    }

    /// When to call [`PeerFsm::handle_timeout`] at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let timers = [self.idle_hold, self.connect_retry].into_iter().flatten();
        self.connections()
            .filter_map(Connection::next_timeout)
            .chain(timers)
            .min()
    }

    /// Does what is due. Calling it early or twice is harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        for conn in ConnectionId::ALL {
            self.connection_timeout(now, conn);
        }
        if self.idle_hold.is_some_and(|due| due <= now) {
            self.idle_hold = None;
            self.connect_retry = Some(now);
        }
        if self.connect_retry.is_some_and(|due| due <= now) {
            self.connect_retry = None;
            self.dial(now);
        }
        self.show();
    }

    fn connection_timeout(&mut self, now: Instant, conn: ConnectionId) {
        let Some(connection) = self.connection(conn) else {
            return;
        };
        if connection.hold.is_some_and(|due| due <= now) {
            let expired = Some(Notification::new(NotificationCode::HoldTimerExpired(0)));
            return match connection.state() {
                SessionState::Connect => {
                    self.end(now, conn, DownReason::ConnectTimeout(CONNECT_LIMIT), None);
                }
                SessionState::OpenSent if self.established().is_some() => {
                    let cease = Notification::cease(CeaseSubcode::CollisionResolution);
                    self.end(now, conn, DownReason::Collision(conn), Some(cease));
                }
                SessionState::OpenSent => {
                    self.end(now, conn, DownReason::NoOpen(OPEN_HOLD), expired)
                }
                SessionState::Idle
                | SessionState::Active
                | SessionState::OpenConfirm
                | SessionState::Established => {
                    let hold = connection.hold_time();
                    self.end(now, conn, DownReason::HoldTimerExpired(hold), expired);
                }
            };
        }
        if connection.keepalive.is_some_and(|due| due <= now) {
            self.send_keepalive(now, conn);
        }
    }

    pub(super) fn connection(&self, conn: ConnectionId) -> Option<&Connection> {
        match conn {
            ConnectionId::Out => self.out.as_ref(),
            ConnectionId::In => self.inc.as_ref(),
            ConnectionId::Pending => self.pending.as_ref(),
        }
    }

    fn connections(&self) -> impl Iterator<Item = &Connection> {
        [&self.out, &self.inc, &self.pending].into_iter().flatten()
    }

    /// True when TCP is up.
    fn is_open(&self, conn: ConnectionId) -> bool {
        self.connection(conn)
            .is_some_and(|c| c.state() != SessionState::Connect)
    }

    pub(super) const fn slot(&mut self, conn: ConnectionId) -> &mut Option<Connection> {
        match conn {
            ConnectionId::Out => &mut self.out,
            ConnectionId::In => &mut self.inc,
            ConnectionId::Pending => &mut self.pending,
        }
    }

    /// Dials, unless there is a reason not to.
    fn dial(&mut self, now: Instant) {
        let busy = self.out.is_some() || self.inc.is_some() || self.connect_retry.is_some();
        if !self.enabled || self.settings.peer.passive || self.idle_hold.is_some() || busy {
            return;
        }
        self.out = Some(Connection::new(
            ConnectionPhase::Connecting,
            Some(now + CONNECT_LIMIT),
        ));
        self.outputs.push_back(FsmOutput::Connect);
    }

    fn connected(&mut self, now: Instant, ends: ConnectionEnds) {
        match self.out.as_ref().map(Connection::state) {
            Some(SessionState::Connect) => {}
            Some(_) => return,
            None => return self.outputs.push_back(FsmOutput::Close(ConnectionId::Out)),
        }
        // The peer's own connection has overtaken ours; nobody has seen ours yet.
        if self
            .inc
            .as_ref()
            .is_some_and(|inc| inc.negotiated().is_some())
        {
            self.end(
                now,
                ConnectionId::Out,
                DownReason::Collision(ConnectionId::Out),
                None,
            );
            return;
        }
        self.open(now, ConnectionId::Out, ends);
    }

    fn connect_failed(&mut self, now: Instant, failure: ConnectFailure) {
        if let Some(connection) = self
            .out
            .take_if(|connection| connection.state() == SessionState::Connect)
        {
            let down = DownReason::ConnectFailed(failure);
            self.ended(now, ConnectionId::Out, &connection, down, None);
        }
    }

    fn incoming(&mut self, now: Instant, ends: ConnectionEnds) {
        if !self.enabled || self.idle_hold.is_some() {
            let reject = Notification::cease(CeaseSubcode::ConnectionRejected);
            self.outputs.push_back(FsmOutput::Refuse(encoded(&reject)));
            return;
        }
        let conn = match self.inc.as_ref().map(Connection::state) {
            None => ConnectionId::In,
            // RFC 4724 §5: a peer that dials twice may have lost the first session. Its OPEN says
            // whether it is the peer.
            Some(SessionState::Established) if self.peer_may_restart(ConnectionId::In) => {
                ConnectionId::Pending
            }
            Some(SessionState::Established) => {
                let cease = Notification::cease(CeaseSubcode::CollisionResolution);
                self.outputs.push_back(FsmOutput::Refuse(encoded(&cease)));
                self.send_keepalive(now, ConnectionId::In);
                return;
            }
            Some(_) => ConnectionId::In,
        };
        // The peer has given up the earlier one, else it would not dial again.
        let cease = Notification::cease(CeaseSubcode::CollisionResolution);
        self.end(now, conn, DownReason::Collision(conn), Some(cease));
        self.outputs.push_back(FsmOutput::Adopt(conn));
        self.open(now, conn, ends);
    }

    /// True when graceful restart was negotiated on an established connection.
    pub(super) fn peer_may_restart(&self, conn: ConnectionId) -> bool {
        self.connection(conn)
            .filter(|connection| connection.established_at().is_some())
            .and_then(Connection::negotiated)
            .is_some_and(|negotiated| negotiated.graceful_restart.is_some())
    }

    /// TCP is up: sends our OPEN.
    fn open(&mut self, now: Instant, conn: ConnectionId, ends: ConnectionEnds) {
        self.connect_retry = None;
        let mut octets = BytesMut::new();
        let mut open = super::negotiate::our_open(&self.settings, now);
        if self.plain {
            open.capabilities.clear();
        }
        encode_open(&open, &mut octets);
        let octets = octets.freeze();
        self.outputs
            .push_back(FsmOutput::Send(conn, octets.clone()));
        let patience = match self.established() {
            Some(_) => COLLISION_WINDOW,
            None => OPEN_HOLD,
        };
        let mut connection = Connection::new(ConnectionPhase::OpenSent(ends), Some(now + patience));
        connection.opens.sent = octets;
        *self.slot(conn) = Some(connection);
    }

    pub(super) fn send_keepalive(&mut self, now: Instant, conn: ConnectionId) {
        let mut octets = BytesMut::new();
        encode_keepalive(&mut octets);
        self.outputs
            .push_back(FsmOutput::Send(conn, octets.freeze()));
        let interval = self.connection(conn).map_or(Duration::ZERO, |connection| {
            connection
                .negotiated()
                .map_or(Duration::ZERO, Negotiated::keepalive_time)
        });
        let next = (!interval.is_zero()).then(|| self.keepalive_due(now, interval));
        if let Some(connection) = self.slot(conn) {
            connection.keepalive = next;
        }
    }

    /// RFC 4271 §10: after three quarters of the interval at the earliest, by chance, and after all
    /// of it at the latest; within that at a whole part of the interval since the epoch.
    fn keepalive_due(&mut self, now: Instant, interval: Duration) -> Instant {
        let step = interval / KEEPALIVE_STEPS;
        let earliest = now + self.backoff.jitter(interval - step, 0.75 / 0.95);
        let since = earliest.saturating_duration_since(self.settings.epoch);
        let into = since.as_nanos() % step.as_nanos().max(1);
        let rest = step.as_nanos().saturating_sub(into);
        earliest + Duration::from_nanos(u64::try_from(rest).unwrap_or_default())
    }

    /// Ends a connection from our side.
    pub(super) fn end(
        &mut self,
        now: Instant,
        conn: ConnectionId,
        down: DownReason,
        notification: Option<Notification>,
    ) {
        let Some(connection) = self.slot(conn).take() else {
            return;
        };
        let sent = notification.filter(|_| connection.state() != SessionState::Connect);
        if let Some(notification) = &sent {
            self.outputs
                .push_back(FsmOutput::Send(conn, encoded(notification)));
        }
        self.outputs.push_back(FsmOutput::Close(conn));
        self.ended(now, conn, &connection, down, sent);
    }

    /// Handles the loss of a connection: reports the session's end and schedules the next attempt.
    fn ended(
        &mut self,
        now: Instant,
        conn: ConnectionId,
        connection: &Connection,
        down: DownReason,
        sent: Option<Notification>,
    ) {
        let mut damped = None;
        if let Some(since) = connection.established_at() {
            if now.duration_since(since) >= STABLE {
                self.backoff.reset();
            } else if down.is_flap() {
                let (times, wait) = self.backoff.after_flap();
                damped = wait.map(|wait| (times, wait));
            }
            let graceful = connection
                .negotiated()
                .is_some_and(|n| is_graceful(n, &down));
            self.outputs.push_back(FsmOutput::Down {
                reason: down.clone(),
                sent,
                graceful,
            });
        }
        if damped.is_some() {
            // No way around the pause by a second connection.
            let reject = Notification::cease(CeaseSubcode::ConnectionRejected);
            for other in ConnectionId::ALL {
                self.end(
                    now,
                    other,
                    DownReason::Collision(other),
                    Some(reject.clone()),
                );
            }
        } else if conn == ConnectionId::In {
            self.promote(now);
        }
        if self.connections().next().is_some() {
            return;
        }
        // One attempt without; when that fails too, the next one has them again.
        if connection.state() != SessionState::Connect {
            self.plain = !self.plain
                && down.refuses_parameters()
                && self.settings.peer.families.contains(&Family::Ipv4);
        }
        if self.enabled {
            let error = down.is_protocol_error();
            let error = error.then(|| self.backoff.after_error());
            let idle = error.max(damped.map(|(_, wait)| wait));
            self.idle_hold = idle.map(|wait| now + wait);
            self.connect_retry = match idle {
                Some(_) => None,
                None => Some(now + self.backoff.after_failure()),
            };
        }
        self.reason = Some(match damped {
            Some((times, wait)) => DownReason::Flapping {
                last: Box::new(down),
                times,
                within: STABLE,
                wait,
            },
            None => down,
        });
    }

    /// The session beside the pending connection is over: the peer goes on there.
    fn promote(&mut self, now: Instant) {
        if let Some(mut pending) = self.pending.take() {
            pending.hold = Some(now + OPEN_HOLD);
            self.inc = Some(pending);
            self.outputs.push_back(FsmOutput::Promote);
        }
    }

    /// Puts out the state when it changed or there is news about it.
    fn show(&mut self) {
        let state = self.state();
        let reason = self.reason.take();
        if state != self.shown || reason.is_some() {
            self.shown = state;
            self.outputs.push_back(FsmOutput::State(state, reason));
        }
    }
}

/// Are the peer's routes to be kept (RFC 4724 §4.2, RFC 8538 §4)?
fn is_graceful(negotiated: &Negotiated, down: &DownReason) -> bool {
    let Some(restart) = &negotiated.graceful_restart else {
        return false;
    };
    if restart.families.is_empty() {
        return false;
    }
    match down {
        // The connection ended, or another one takes over.
        DownReason::Closed(_)
        | DownReason::Replaced
        | DownReason::Restarting
        | DownReason::Collision(_) => true,
        DownReason::Notified(notification) => {
            restart.notification
                && notification.code != NotificationCode::Cease(CeaseSubcode::HardReset)
        }
        DownReason::Stopped(_) | DownReason::PrefixLimit { .. } | DownReason::Flapping { .. } => {
            false
        }
        DownReason::Bfd { graceful } => *graceful,
        // We sent a NOTIFICATION that is no hard reset.
        DownReason::ConnectFailed(_)
        | DownReason::ConnectTimeout(_)
        | DownReason::PeerAs { .. }
        | DownReason::RouterIdConflict(_)
        | DownReason::NoCommonFamily { .. }
        | DownReason::RoleMismatch { .. }
        | DownReason::HoldTimerExpired(_)
        | DownReason::NoOpen(_)
        | DownReason::SendHoldTimerExpired
        | DownReason::Malformed(_)
        | DownReason::Unexpected { .. } => restart.notification,
    }
}

fn encoded(notification: &Notification) -> Bytes {
    let mut octets = BytesMut::new();
    encode_notification(notification, &mut octets);
    octets.freeze()
}
