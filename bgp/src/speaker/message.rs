//! Messages between the core task and the session tasks. Towards the core the channel is bounded
//! and blocks; towards a session there is a small bounded control channel beside its [`OutFeed`].

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use caracal_model::{Family, Prefix};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use super::admission::Ticket;
use super::counters::{Counters, MessageDirection};
use super::feed::OutFeed;
use crate::bmp::{BmpPeerDown, MonitoredSession};
use crate::config::{LimitPassed, Listen, Password, PeerConfig};
use crate::rib::SessionInfo;
use crate::types::{Asn, PeerName, RouterId, SessionState};
use crate::wire::refresh::RefreshKind;
use crate::wire::update::UpdateMessage;

/// Capacity of the channel from all sessions to the core, in messages. Enough that a session that
/// reads a full socket buffer of small UPDATEs does not bounce on each; small enough that a slow
/// table stops the reading and TCP slows the peers.
pub(super) const TO_CORE_DEPTH: usize = 256;

/// Capacity of a session's control channel, in messages. The core never waits on it: configuration
/// is resent when it finds the channel full, and a connection that does not fit is dropped for the
/// peer to dial again.
pub(super) const TO_SESSION_DEPTH: usize = 16;

/// Identity of a peer in the core, from when it is configured until it is not and its last session
/// has ended. Never used again. Names are labels: a peer can get another one while its session
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey(pub u64);

/// Everything a session task is born with. The task is `session::run_session(start)`; it ends after
/// [`ToSession::Shutdown`] or when `control` is closed.
#[derive(Debug)]
pub struct SessionStart {
    /// Key of the peer in the core.
    pub key: PeerKey,
    /// Its name now, for the log.
    pub peer: PeerName,
    /// Configuration of the peer.
    pub config: PeerConfig,
    /// Our AS unless the peer's configuration overrides it.
    pub local_as: Asn,
    /// Our BGP Identifier (RFC 6286).
    pub router_id: RouterId,
    /// Until then our OPEN says that we have restarted and kept forwarding (RFC 4724 §4.1).
    pub restarting_until: Option<Instant>,
    /// This process has had a session with the peer before.
    pub had_session: bool,
    /// The peer's counters; they outlive the session.
    pub counters: Arc<Counters>,
    /// The way to the core.
    pub core: mpsc::Sender<ToCore>,
    /// The way from the core.
    pub control: mpsc::Receiver<ToSession>,
}

/// Capacity of the channel from the listener to the core, in connections.
pub(super) const ACCEPT_DEPTH: usize = 64;

/// Everything a listener task is born with. The task is `listener::run(start)`; it binds, and again
/// with back-off when that fails, accepts until it is aborted, and never ends the process.
#[derive(Debug)]
pub(crate) struct ListenerStart {
    /// Addresses and port to bind.
    pub listen: Listen,
    /// Peers that may connect: the listening socket needs their MD5 keys (RFC 2385).
    pub peers: watch::Receiver<Vec<ListenPeer>>,
    /// The way to the core.
    pub core: mpsc::Sender<FromListener>,
}

/// A peer as the listening socket knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenPeer {
    /// Its address, or the range of addresses that it may come from.
    pub prefix: Prefix,
    /// Its TCP MD5 key.
    pub password: Option<Password>,
}

/// Message of the listener to the core.
#[derive(Debug)]
pub(crate) enum FromListener {
    /// The socket is bound to this address.
    Bound(SocketAddr),
    /// It cannot listen, for this reason, and will try again.
    Failed(String),
    /// Somebody has connected. Who it is and whether it may is for the core to find out.
    Accepted {
        /// Accepted connection.
        stream: TcpStream,
        /// Address and port of the other end.
        remote: SocketAddr,
    },
}

/// Message of a session to the core. Messages of one session arrive in order.
#[derive(Debug)]
pub enum ToCore {
    /// The session is established. The core will push the whole table and End-of-RIB into `feed`; a
    /// session makes a new feed for each establishment, so nothing of an earlier session can leak
    /// into it.
    Up {
        /// Key of the peer whose session it is.
        peer: PeerKey,
        /// Negotiated parameters that the table needs.
        session: SessionInfo,
        /// Feed that the core puts the peer's routes into.
        feed: Arc<OutFeed>,
        /// Peer Up information for monitoring stations (RFC 7854 §4.10).
        monitored: Box<MonitoredSession>,
    },
    /// The established session has ended.
    Down {
        /// Key of the peer whose session it is.
        peer: PeerKey,
        /// A sentence for people.
        reason: String,
        /// True when the routes are to be kept for a restart: graceful restart was negotiated and
        /// the session ended without a NOTIFICATION, or as RFC 8538 §4 allows.
        graceful: bool,
        /// Peer Down information for monitoring stations (RFC 7854 §4.9).
        end: BmpPeerDown,
    },
    /// An UPDATE of the established session; `treat-as-withdraw` (RFC 7606) has already been
    /// applied.
    Update {
        /// Key of the peer that sent it.
        peer: PeerKey,
        /// UPDATE as it was decoded.
        update: UpdateMessage,
    },
    /// The peer asks for everything of a family again (RFC 2918), or marks its own answer (RFC
    /// 7313).
    RouteRefresh {
        /// Key of the peer that sent it.
        peer: PeerKey,
        /// Family whose routes are meant.
        family: Family,
        /// Request, begin or end.
        kind: RefreshKind,
    },
    /// A NOTIFICATION has been sent or received, in whatever state; for status only.
    Notified {
        /// Key of the peer whose session it is.
        peer: PeerKey,
        /// Direction of the message.
        way: MessageDirection,
        /// Its code, subcode and text, for people.
        text: String,
    },
    /// The state machine entered a state; for status only.
    State {
        /// Key of the peer whose session it is.
        peer: PeerKey,
        /// State of the peer's machine from now on.
        state: SessionState,
        /// Why, as a sentence, when it went down or failed to come up.
        reason: Option<String>,
        /// True when one of the two ends does not want the session, which is no silence.
        refused: bool,
        /// True when the peer is to be disabled after that.
        disables: bool,
    },
}

impl ToCore {
    /// Key of the peer whose session says it.
    #[must_use]
    pub const fn peer(&self) -> PeerKey {
        match self {
            Self::Up { peer, .. }
            | Self::Down { peer, .. }
            | Self::Update { peer, .. }
            | Self::RouteRefresh { peer, .. }
            | Self::Notified { peer, .. }
            | Self::State { peer, .. } => *peer,
        }
    }
}

/// Message of the core to a session.
#[derive(Debug)]
pub enum ToSession {
    /// Settings that take effect without a new session (password, TTL, passive, …). A change that
    /// needs a new OPEN comes as `Shutdown` and a new task instead.
    Config(Box<PeerConfig>),
    /// A connection from the peer, accepted by the listener.
    Stream {
        /// Accepted connection.
        stream: TcpStream,
        /// Address and port of the peer's end.
        remote: SocketAddr,
        /// Ticket of the limit of connections.
        ticket: Option<Ticket>,
    },
    /// Ask the peer for everything of a family again (RFC 2918).
    AskRefresh(Family),
    /// The peer has more prefixes than it may: end the session (RFC 4486 §4), and dial again after
    /// the pause or, without one, when the configuration changes.
    PrefixLimit(LimitPassed),
    /// BFD says that the peer is gone: end the session, and keep its routes for a restart or not.
    BfdDown {
        /// It may be a restart.
        graceful: bool,
    },
    /// This machine has these addresses no more: connections from them are dead.
    AddressesGone(Arc<BTreeSet<IpAddr>>),
    /// End the session and the task.
    Shutdown(Shutdown),
}

/// Manner in which a session is to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// We, or the session alone, will be back: close TCP without NOTIFICATION when graceful restart
    /// was negotiated (the peer then keeps our routes), else Cease / Administrative Reset.
    Restart,
    /// We leave, or the peer is no longer configured: flush the feed, then Cease with this subcode
    /// (RFC 4486) and text (RFC 9003).
    Cease {
        /// Subcode of Cease (RFC 4486).
        subcode: u8,
        /// For the peer's operator; may be empty.
        text: String,
    },
}

impl Shutdown {
    /// Administrative Shutdown (RFC 4486 §4, subcode 2).
    #[must_use]
    pub fn administrative(text: impl Into<String>) -> Self {
        Self::Cease {
            subcode: 2,
            text: text.into(),
        }
    }

    /// Administrative Reset (RFC 4486 §4, subcode 4).
    #[must_use]
    pub(crate) fn administrative_reset(text: impl Into<String>) -> Self {
        Self::Cease {
            subcode: 4,
            text: text.into(),
        }
    }

    /// Peer De-configured (RFC 4486 §4, subcode 3).
    #[must_use]
    pub(crate) const fn de_configured() -> Self {
        Self::Cease {
            subcode: 3,
            text: String::new(),
        }
    }

    /// Other Configuration Change (RFC 4486 §4, subcode 6).
    #[must_use]
    pub const fn reconfigured() -> Self {
        Self::Cease {
            subcode: 6,
            text: String::new(),
        }
    }
}
