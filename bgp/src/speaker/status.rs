//! Status of a speaker, as users see it. Everything here can be serialised.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bfd::BfdStatus;
use super::counters::ErrorCounts;
use crate::rib::{OriginStatus, PeerCounts, Progress, RibCounts, Screened, SessionInfo};
use crate::types::{Asn, PeerName, RouterId, SessionState};

/// The speaker as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeakerStatus {
    /// AS number of this speaker.
    pub local_as: Asn,
    /// BGP Identifier of this speaker (RFC 6286).
    pub router_id: RouterId,
    /// Where we listen; `None` when we do not.
    pub listen: Option<SocketAddr>,
    /// Why we do not listen although configured.
    pub listen_error: Option<String>,
    /// The peers, by name.
    pub peers: Vec<PeerStatus>,
    /// Counters of the table.
    pub rib: RibCounts,
    /// Routes that are refused for their prefix.
    #[serde(default)]
    pub screened: Screened,
    /// The check of who announces what.
    #[serde(default)]
    pub origin: OriginStatus,
    /// Route selection waits for the peers after a restart (RFC 4724 §4.1).
    pub deferring: bool,
    /// Peers that have sent all their routes since the start.
    pub convergence: Convergence,
    /// The monitoring stations, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stations: Vec<StationStatus>,
    /// Long work on the table that is under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<Progress>,
    /// Times for which the owner of the table hears nobody.
    #[serde(default)]
    pub turns: TurnTimes,
    /// UPDATEs of the peers that are configured now.
    #[serde(default)]
    pub updates: UpdateCounts,
}

/// UPDATEs (RFC 4271 §4.3) since the start, End-of-RIB markers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateCounts {
    /// Number of UPDATEs from peers.
    pub received: u64,
    /// Number of UPDATEs to peers.
    pub sent: u64,
}

/// The turns of the task that owns the table: what it does before it listens to everybody again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnTimes {
    /// The longest one since the start.
    pub longest: Duration,
    /// Number of turns since the start.
    pub count: u64,
    /// Number of turns of more than 20 ms.
    pub slow: u64,
}

/// One monitoring station (RFC 7854).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StationStatus {
    /// Name of the station in the configuration.
    pub name: String,
    /// Address that is dialled.
    pub address: IpAddr,
    /// TCP port that is dialled.
    pub port: u16,
    /// There is a connection.
    pub connected: bool,
    /// Our end of it.
    pub local: Option<SocketAddr>,
    /// The station has got all that there was when it connected, and gets what changes.
    pub table_sent: bool,
    /// Octets that wait for it to read.
    pub waiting: usize,
    /// Number of connections since the start.
    pub connections: u64,
    /// Why there is none.
    pub reason: Option<String>,
}

/// State of a peer, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Name of the peer in the configuration.
    pub name: PeerName,
    /// Address of the peer.
    pub address: IpAddr,
    /// TCP port that is dialled.
    pub port: u16,
    /// AS that the peer is configured with.
    pub remote_as: Asn,
    /// Our AS towards it.
    pub local_as: Asn,
    /// Why it exists: `mesh`, `reflector`, `global`, `node`.
    pub kind: String,
    /// The state of its state machine.
    pub state: SessionState,
    /// Since when, in seconds of Unix time.
    pub since: u64,
    /// Why there is no session; `None` while there is one, and when that is not known.
    pub reason: Option<String>,
    /// For how many seconds there has been no session; `None` while there is one, and for peers of
    /// a range, which come and go.
    #[serde(default)]
    pub down_seconds: Option<u64>,
    /// There is no session since one of the two ends does not want it as it is, or nobody listens.
    #[serde(default)]
    pub refused: bool,
    /// Our hold time, in seconds.
    #[serde(default)]
    pub hold_seconds: u64,
    /// It has announced almost as many prefixes as it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_limit: Option<String>,
    /// Somebody wants no session: the operator, or the configuration.
    #[serde(default)]
    pub disabled: bool,
    /// Why the last session ended or the last attempt failed, also when there is a session since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<PastError>,
    /// Errors since the start, by kind.
    #[serde(default, skip_serializing_if = "ErrorCounts::is_empty")]
    pub errors: ErrorCounts,
    /// Warning about the established session, as a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Number of sessions that were established since the start.
    pub established_count: u64,
    /// It has sent End-of-RIB of each family in this session, or its session has no graceful
    /// restart and need not say so (RFC 4724 §2).
    #[serde(default)]
    pub told_all: bool,
    /// Numbers of routes received, accepted and announced.
    pub routes: PeerCounts,
    /// Facts of the session while it is established.
    pub session: Option<SessionInfo>,
    /// BFD session with the peer, where one is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<BfdStatus>,
    /// Changes that are decided and not yet written to the session.
    pub pending: usize,
}

/// Something that went wrong once, which says nothing about now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastError {
    /// Time, in seconds since 1970.
    pub at: u64,
    /// Description of the error, as a sentence.
    pub text: String,
}

/// Whether every peer has sent End-of-RIB since the start, or its time has run out, and all that
/// was learned until then has been given to the forwarding side. Only then may routes from before
/// the start be swept from a forwarding table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convergence {
    /// Nobody is awaited any more, and nothing of what they have told is still to be decided. Never
    /// goes back to false.
    pub converged: bool,
    /// The peers that are awaited.
    pub awaited: Vec<PeerName>,
}

/// Awaited peers that are named; of more, the number.
const NAMED: usize = 5;

impl Convergence {
    /// Why nothing may be swept yet, as a sentence; `None` when it may.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        if self.converged {
            return None;
        }
        if self.awaited.is_empty() {
            return Some("the routes that the peers have told are not all decided yet".to_owned());
        }
        let named = self.awaited.iter().take(NAMED).map(PeerName::as_str);
        let named: Vec<&str> = named.collect();
        let more = match self.awaited.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "waiting for End-of-RIB from {}{more}",
            named.join(", ")
        ))
    }
}
