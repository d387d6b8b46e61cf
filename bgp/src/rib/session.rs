//! What the table needs to know about an established session.

use std::net::IpAddr;
use std::time::Duration;

use caracal_model::net::Family;
use serde::{Deserialize, Serialize};

use crate::types::RouterId;

/// An established session, as the table sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Families that both sides offered, sorted.
    pub families: Vec<Family>,
    /// The peer's BGP Identifier.
    pub router_id: RouterId,
    /// Our end; our NEXT_HOP for its family.
    pub local_address: IpAddr,
    /// The peer's end.
    pub remote_address: IpAddr,
    /// The peer's graceful restart capability; `None` when either side did not send one.
    pub graceful_restart: Option<RemoteRestart>,
    /// Capabilities in use, in the field's words, for people: `4-octet AS`, `route refresh`, …
    pub capabilities: Vec<String>,
}

/// The graceful restart capability of a peer (RFC 4724 §3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRestart {
    /// Restart State: the peer has restarted and waits for our End-of-RIB.
    pub restarting: bool,
    /// How long we shall keep its routes without a session.
    pub time: Duration,
    /// The families it keeps, each with the Forwarding State bit: true when forwarding survived its restart.
    pub families: Vec<(Family, bool)>,
}
