//! The finite state machine of a peer (RFC 4271 §8), without clock and socket.
//!
//! One [`PeerFsm`] per configured peer. It holds up to two connections, one that we dialled and one
//! that the peer did, until collision detection leaves one; a further one of the peer waits beside
//! an established session until its OPEN has come. The caller feeds [`FsmInput`]s, drains
//! [`PeerFsm::poll`], and sleeps until [`PeerFsm::next_timeout`]; deadlines live inside, so no
//! timer can be forgotten.
//!
//! It must never read a clock, draw a random number (jitter comes from a seed), or look into
//! routes.
//!
//! Differences from the letter of RFC 4271 §8, all of them common practice: a failed connection
//! leads to Active, where the peer may connect, and not to Idle; Idle is for peers that are stopped
//! and for the pause after a protocol error; the ConnectRetryTimer grows and is jittered.

mod backoff;
mod collision;
mod connection;
mod down;
mod negotiate;
mod peer;
mod receive;

pub(crate) use collision::survivor;
pub use down::{ConnectFailure, DownReason};
pub use negotiate::{Negotiated, RemoteGracefulRestart};
pub use peer::PeerFsm;

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use caracal_model::Family;

use crate::config::{BgpRole, LimitPassed, PeerConfig};
use crate::opens::SessionOpens;
use crate::types::{Asn, RouterId, SessionState};
use crate::wire::Message;
use crate::wire::error::{AttrFault, DecodeError};
use crate::wire::notification::{CeaseSubcode, Notification};
use crate::wire::update::UpdateMessage;

/// One of the connections of a peer: at most two, and one more beside an established session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionId {
    /// The connection that we dialled.
    Out,
    /// The connection that the peer dialled.
    In,
    /// The peer dialled once more while a session runs on [`ConnectionId::In`]. It becomes `In`
    /// when its OPEN is good, or when the session ends (RFC 4724 §5).
    Pending,
}

impl ConnectionId {
    /// Every one. `Pending` comes first: what ends all of them must not promote it on the way.
    pub const ALL: [Self; 3] = [Self::Pending, Self::Out, Self::In];

    /// The one that was dialled from the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In | Self::Pending => Self::Out,
        }
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Out => "outgoing",
            Self::In => "incoming",
            Self::Pending => "second incoming",
        })
    }
}

/// The two ends of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionEnds {
    /// Address and port of our end.
    pub local: SocketAddr,
    /// Address and port of the peer's end.
    pub remote: SocketAddr,
}

/// Configuration of one [`PeerFsm`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSettings {
    /// Our AS unless the peer's configuration overrides it.
    pub local_as: Asn,
    /// Our BGP Identifier (RFC 6286).
    pub router_id: RouterId,
    /// Configuration of the peer.
    pub peer: PeerConfig,
    /// Until then our OPEN says that we have restarted and kept forwarding (RFC 4724 §4.1).
    pub restarting_until: Option<Instant>,
    /// This process has had a session with the peer before. Then forwarding has outlived a session
    /// for certain, and our OPEN says so: without the Forwarding State bit a peer that has kept our
    /// routes would have to drop them until we announce them again (RFC 4724 §4.2).
    pub had_session: bool,
    /// Time that is the same for all peers: KEEPALIVEs are due at whole parts of their interval
    /// after it, so that those of many sessions go out together instead of waking the process one
    /// by one.
    pub epoch: Instant,
}

impl SessionSettings {
    /// Our AS on this session.
    #[must_use]
    pub fn local_as(&self) -> Asn {
        self.peer.local_as.unwrap_or(self.local_as)
    }

    /// The hold time we propose: none, or at least three seconds (RFC 4271 §4.2) and at most what
    /// fits.
    #[must_use]
    pub fn hold_time(&self) -> Duration {
        match self.peer.hold_time {
            Duration::ZERO => Duration::ZERO,
            hold => Duration::from_secs(hold.as_secs().clamp(3, u16::MAX.into())),
        }
    }

    /// True when the peer is in our AS.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.local_as() == self.peer.remote_as
    }

    /// Our role on the session; none inside the AS (RFC 9234 §4.1).
    #[must_use]
    pub fn role(&self) -> Option<BgpRole> {
        self.peer.role.filter(|_| !self.is_internal())
    }
}

/// Manner in which a session is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionStop {
    /// We are about to restart: close without NOTIFICATION when graceful restart was negotiated, so
    /// that the peer keeps our routes (RFC 4724 §4.1); otherwise Cease / Administrative Reset.
    Restart,
    /// Cease with this subcode (RFC 4486) and a text for the operator at the other end (RFC 9003).
    /// The peer drops our routes at once.
    Cease(CeaseSubcode, String),
}

/// Event of the state machine (RFC 4271 §8.1).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "UPDATEs are the many; boxing them would cost an allocation each"
)]
pub enum FsmInput {
    /// The operator (or the configuration) wants the session.
    Start,
    /// The operator does not want it any more.
    Stop(SessionStop),
    /// Other settings. They hold from the next OPEN on; if there is none, we try at once.
    Settings(Box<SessionSettings>),
    /// The connection that [`FsmOutput::Connect`] asked for is up.
    Connected(ConnectionEnds),
    /// The connection that [`FsmOutput::Connect`] asked for did not come up.
    ConnectFailed(ConnectFailure),
    /// The peer has connected to us. The answer is [`FsmOutput::Adopt`] or [`FsmOutput::Refuse`].
    Incoming(ConnectionEnds),
    /// The connection has ended without us closing it. The text is the operating system's, `None`
    /// for an orderly end.
    Closed(ConnectionId, Option<String>),
    /// A message, or why what came is none.
    Received(ConnectionId, Result<Message, DecodeError>),
    /// Octets of the peer wait to be read because we are busy: the peer is alive (RFC 4271's hold
    /// timer is about the peer, not about us).
    BytesWaiting(ConnectionId),
    /// The peer has taken nothing from us for too long (RFC 9687).
    SendHoldExpired(ConnectionId),
    /// We want the peer to send all routes of the family again (RFC 2918).
    AskRefresh(Family),
    /// BFD says that the peer is gone (RFC 5882 §4.2).
    BfdDown {
        /// It may be a restart of the peer: its routes are to be kept as graceful restart says.
        graceful: bool,
    },
    /// The peer has more prefixes than it may. With a pause there is another attempt behind it;
    /// otherwise other settings start it again.
    PrefixLimit(LimitPassed),
}

/// Action that the caller must carry out, in the order of the outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "UPDATEs are the many; boxing them would cost an allocation each"
)]
pub enum FsmOutput {
    /// Dial the peer; answer with [`FsmInput::Connected`] or [`FsmInput::ConnectFailed`]. A second
    /// `Connect` never comes before that or [`FsmOutput::Close`].
    Connect,
    /// The connection that the peer opened is now this one; an earlier one has been closed before.
    Adopt(ConnectionId),
    /// [`ConnectionId::Pending`] is now [`ConnectionId::In`]; an earlier one has been closed
    /// before.
    Promote,
    /// Write these octets to the connection that the peer opened, then close it.
    Refuse(Bytes),
    /// Write these octets to the connection.
    Send(ConnectionId, Bytes),
    /// Close when everything is written, or give up dialling. Nothing is to be reported afterwards.
    Close(ConnectionId),
    /// The state of the peer as a whole, for status. With a reason when it went down or failed to
    /// come up.
    State(SessionState, Option<DownReason>),
    /// The session is established on this connection.
    Up(ConnectionId, Box<SessionUp>),
    /// The established session has ended.
    Down {
        /// Reason for status and logs.
        reason: DownReason,
        /// The NOTIFICATION that we sent.
        sent: Option<Notification>,
        /// The peer's routes are to be kept for a restart (RFC 4724 §4.2, RFC 8538 §4).
        graceful: bool,
    },
    /// Routes that the peer announces or withdraws.
    Update(UpdateMessage),
    /// The peer wants all routes of the family again.
    RouteRefresh(Family),
    /// The peer is about to send all routes of the family again (RFC 7313, BoRR).
    RefreshBegin(Family),
    /// The peer has sent all routes of the family; what has not come again is gone (RFC 7313,
    /// EoRR).
    RefreshEnd(Family),
    /// An UPDATE was wrong in a way that the session survives; it is dealt with, this is for the
    /// log.
    Fault(AttrFault),
}

/// What is known of a session when it is established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionUp {
    /// Result of the exchange of OPENs.
    pub negotiated: Negotiated,
    /// Ends of the TCP connection.
    pub ends: ConnectionEnds,
    /// Both OPEN messages, for monitoring.
    pub opens: SessionOpens,
}

#[cfg(test)]
mod tests;
