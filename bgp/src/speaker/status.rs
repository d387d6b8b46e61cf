//! What a speaker tells people about itself. Everything here can be serialised.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bfd::Seen;
use crate::rib::{PeerCounts, Progress, RibCounts, SessionInfo};
use crate::types::{Asn, PeerName, RouterId, SessionState};

/// The speaker as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeakerStatus {
    /// Our AS.
    pub local_as: Asn,
    /// Our BGP Identifier.
    pub router_id: RouterId,
    /// Where we listen; `None` when we do not.
    pub listen: Option<SocketAddr>,
    /// Why we do not listen although configured.
    pub listen_error: Option<String>,
    /// The peers, by name.
    pub peers: Vec<PeerStatus>,
    /// Counters of the table.
    pub rib: RibCounts,
    /// Route selection waits for the peers after a restart (RFC 4724 §4.1).
    pub deferring: bool,
    /// Who has told us everything since the start.
    pub convergence: Convergence,
    /// The monitoring stations, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stations: Vec<StationStatus>,
    /// Long work on the table that is under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<Progress>,
    /// How long the owner of the table is busy at a time.
    #[serde(default)]
    pub turns: Turns,
}

/// The turns of the task that owns the table: what it does before it listens to everybody again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// The longest one since the start.
    pub longest: Duration,
    /// How many there have been.
    pub count: u64,
    /// How many of them took more than 20 ms.
    pub slow: u64,
}

/// One monitoring station (RFC 7854).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StationStatus {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Its TCP port.
    pub port: u16,
    /// There is a connection.
    pub connected: bool,
    /// Our end of it.
    pub local: Option<SocketAddr>,
    /// It has been sent all there was when it was connected, and is sent what changes.
    pub table_sent: bool,
    /// Octets that wait for it to read.
    pub waiting: usize,
    /// How many connections there have been.
    pub connections: u64,
    /// Why there is none.
    pub reason: Option<String>,
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: PeerName,
    /// Its address.
    pub address: IpAddr,
    /// Its TCP port.
    pub port: u16,
    /// Its AS.
    pub remote_as: Asn,
    /// Our AS towards it.
    pub local_as: Asn,
    /// Why it exists: `mesh`, `global`, `node`.
    pub kind: String,
    /// The state of its state machine.
    pub state: SessionState,
    /// Since when, in seconds of Unix time.
    pub since: u64,
    /// Why the last session ended or the last attempt failed.
    pub reason: Option<String>,
    /// How many sessions have been established since the start.
    pub established_count: u64,
    /// Its routes.
    pub routes: PeerCounts,
    /// The established session.
    pub session: Option<SessionInfo>,
    /// What BFD sees of it, where it is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<Seen>,
    /// Changes that are decided and not yet written to the session.
    pub pending: usize,
}

/// Whether every peer has told us everything since the start, or had ample time to. What a forwarding table
/// holds from before the start may be swept only then.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convergence {
    /// Nobody is awaited any more. Never goes back to false.
    pub converged: bool,
    /// The peers that are awaited.
    pub awaited: Vec<PeerName>,
}
