//! One TCP connection of a peer, from dialling to Established: its phase and its deadlines.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{Ends, Negotiated};
use crate::opens::Opens;
use crate::types::SessionState;
use crate::wire::Message;
use crate::wire::header::Kind;
use crate::wire::notification::FsmSubcode;
use crate::wire::notification::Notification;
use crate::wire::open::Open;
use crate::wire::refresh::RouteRefresh;
use crate::wire::update::Decoded;

/// How far a connection has come.
#[derive(Debug)]
pub(super) enum Phase {
    /// TCP is not up yet.
    Connecting,
    /// Our OPEN is sent.
    OpenSent(Ends),
    /// The peer's OPEN was good; we wait for its KEEPALIVE.
    OpenConfirm(Ends, Box<Negotiated>),
    /// Routes flow.
    Established(Box<Negotiated>, Instant),
}

/// A connection. At most two per peer.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: Phase,
    /// When patience with the peer ends: HoldTimer, and in `Connecting` the limit of an attempt.
    pub(super) hold: Option<Instant>,
    /// KeepaliveTimer.
    pub(super) keepalive: Option<Instant>,
    /// The OPENs so far.
    pub(super) opens: Opens,
}

impl Connection {
    pub(super) const fn new(phase: Phase, hold: Option<Instant>) -> Self {
        Self {
            phase,
            hold,
            keepalive: None,
            opens: Opens {
                sent: Bytes::new(),
                received: Bytes::new(),
            },
        }
    }

    pub(super) const fn state(&self) -> SessionState {
        match self.phase {
            Phase::Connecting => SessionState::Connect,
            Phase::OpenSent(_) => SessionState::OpenSent,
            Phase::OpenConfirm(..) => SessionState::OpenConfirm,
            Phase::Established(..) => SessionState::Established,
        }
    }

    pub(super) const fn negotiated(&self) -> Option<&Negotiated> {
        match &self.phase {
            Phase::Connecting | Phase::OpenSent(_) => None,
            Phase::OpenConfirm(_, negotiated) | Phase::Established(negotiated, _) => {
                Some(negotiated)
            }
        }
    }

    /// The negotiated hold time; zero before.
    pub(super) fn hold_time(&self) -> Duration {
        self.negotiated()
            .map_or(Duration::ZERO, |negotiated| negotiated.hold_time)
    }

    /// Since when the session is established.
    pub(super) const fn established_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Established(_, since) => Some(since),
            Phase::Connecting | Phase::OpenSent(_) | Phase::OpenConfirm(..) => None,
        }
    }

    /// Something came from the peer: RFC 4271 §8.2.2 restarts the HoldTimer unless it is zero.
    pub(super) fn alive(&mut self, now: Instant) {
        let hold = self.hold_time();
        if !hold.is_zero() {
            self.hold = Some(now + hold);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        [self.hold, self.keepalive].into_iter().flatten().min()
    }
}

/// What a message means in a phase.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "UPDATEs are the many; boxing them would cost an allocation each"
)]
pub(super) enum Reaction {
    /// The peer's OPEN, to be checked.
    Open(Open),
    /// The KEEPALIVE that answers our OPEN.
    Establish,
    /// The peer is alive; nothing else.
    Alive,
    /// Routes.
    Update(Decoded),
    /// A request for routes.
    Refresh(RouteRefresh),
    /// The peer ends the session.
    Notified(Notification),
    /// Finite State Machine Error.
    Unexpected(Kind, FsmSubcode),
}

/// RFC 4271 §8.2.2, events 19 to 27, for the states that have a connection.
pub(super) fn react(state: SessionState, message: Message) -> Reaction {
    use SessionState::{Active, Connect, Established, Idle, OpenConfirm, OpenSent};
    let kind = message.kind();
    match (state, message) {
        (_, Message::Notification(notification)) => Reaction::Notified(notification),
        (OpenSent, Message::Open(open)) => Reaction::Open(open),
        (OpenConfirm, Message::Keepalive) => Reaction::Establish,
        (Established, Message::Keepalive) => Reaction::Alive,
        (Established, Message::Update(decoded)) => Reaction::Update(decoded),
        (Established, Message::RouteRefresh(refresh)) => Reaction::Refresh(refresh),
        (OpenSent, Message::Keepalive | Message::Update(_) | Message::RouteRefresh(_)) => {
            Reaction::Unexpected(kind, FsmSubcode::InOpenSent)
        }
        (OpenConfirm, Message::Open(_) | Message::Update(_) | Message::RouteRefresh(_)) => {
            Reaction::Unexpected(kind, FsmSubcode::InOpenConfirm)
        }
        (Established, Message::Open(_)) => Reaction::Unexpected(kind, FsmSubcode::InEstablished),
        // Without a connection nothing can be received.
        (
            Idle | Connect | Active,
            Message::Open(_) | Message::Keepalive | Message::Update(_) | Message::RouteRefresh(_),
        ) => Reaction::Unexpected(kind, FsmSubcode::Unspecific),
    }
}
