//! One TCP connection of a peer, from dialling to Established: its phase and its deadlines.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{ConnectionEnds, Negotiated};
use crate::opens::SessionOpens;
use crate::types::SessionState;

/// Phase of a connection, by the messages that were exchanged.
#[derive(Debug)]
pub(super) enum ConnectionPhase {
    /// TCP is not up yet.
    Connecting,
    /// Our OPEN is sent.
    OpenSent(ConnectionEnds),
    /// The peer's OPEN was good; we wait for its KEEPALIVE.
    OpenConfirm(ConnectionEnds, Box<Negotiated>),
    /// OPENs are exchanged and routes flow.
    Established(Box<Negotiated>, Instant),
}

/// A connection. At most two per peer.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) phase: ConnectionPhase,
    /// HoldTimer (RFC 4271 §8); in `Connecting` the limit of the attempt.
    pub(super) hold: Option<Instant>,
    /// KeepaliveTimer (RFC 4271 §8).
    pub(super) keepalive: Option<Instant>,
    /// The OPENs so far.
    pub(super) opens: SessionOpens,
}

impl Connection {
    pub(super) const fn new(phase: ConnectionPhase, hold: Option<Instant>) -> Self {
        Self {
            phase,
            hold,
            keepalive: None,
            opens: SessionOpens {
                sent: Bytes::new(),
                received: Bytes::new(),
            },
        }
    }

    pub(super) const fn state(&self) -> SessionState {
        match self.phase {
            ConnectionPhase::Connecting => SessionState::Connect,
            ConnectionPhase::OpenSent(_) => SessionState::OpenSent,
            ConnectionPhase::OpenConfirm(..) => SessionState::OpenConfirm,
            ConnectionPhase::Established(..) => SessionState::Established,
        }
    }

    pub(super) const fn negotiated(&self) -> Option<&Negotiated> {
        match &self.phase {
            ConnectionPhase::Connecting | ConnectionPhase::OpenSent(_) => None,
            ConnectionPhase::OpenConfirm(_, negotiated)
            | ConnectionPhase::Established(negotiated, _) => Some(negotiated),
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
            ConnectionPhase::Established(_, since) => Some(since),
            ConnectionPhase::Connecting
            | ConnectionPhase::OpenSent(_)
            | ConnectionPhase::OpenConfirm(..) => None,
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
