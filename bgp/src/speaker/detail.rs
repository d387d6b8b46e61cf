//! Everything that is known about one peer, for `caracal bgp peer`.

use std::fmt::Write;
use std::net::IpAddr;

use caracal_model::Family;
use serde::{Deserialize, Serialize};

use super::bfd::BfdStatus;
use super::counters::{ErrorCounts, MessageCounts};
use super::status::PastError;
use crate::config::BgpRole;
use crate::types::{Asn, PeerName, RouterId, SessionState};
use crate::wire::capability::{AddPathMode, AfiSafi, Capability};

/// One peer in full. Times of day are in seconds of Unix time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerDetail {
    /// Name of the peer in the configuration.
    pub name: PeerName,
    /// Why it exists: `mesh`, `global`, `node`, or its description.
    pub kind: String,
    /// The state of its state machine.
    pub state: SessionState,
    /// Time of the last state change, in seconds since 1970.
    pub since: u64,
    /// For how many seconds there has been no session; absent while there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down_seconds: Option<u64>,
    /// Why there is no session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Somebody wants no session.
    pub disabled: bool,
    /// Number of sessions that were established since the start.
    pub established_count: u64,
    /// Address, port and OPEN of our end.
    pub local: Endpoint,
    /// Address, port and OPEN of the peer's end.
    pub remote: Endpoint,
    /// We wait for it to connect.
    pub passive: bool,
    /// Hold time in seconds.
    pub hold_time: NegotiatedTime,
    /// Time between KEEPALIVEs in seconds.
    pub keepalive_time: NegotiatedTime,
    /// Time to live of our packets, where it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Packets that came over more hops are dropped (RFC 5082).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_security_hops: Option<u8>,
    /// Segments carry a TCP MD5 signature (RFC 2385).
    pub md5: bool,
    /// BFD session with the peer, where one is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bfd: Option<BfdStatus>,
    /// Capabilities of the session, or of the last one.
    pub capabilities: Capabilities,
    /// One entry per negotiated or configured address family.
    pub families: Vec<FamilyDetail>,
    /// Routes advertised to it, in all families: with ADD-PATH several of a prefix.
    pub advertised: usize,
    /// Its routes are kept past the end of a session.
    pub stale: bool,
    /// Changes that are decided and not yet written to the session.
    pub pending: usize,
    /// Names of the import filters, in order.
    pub import_filters: Vec<String>,
    /// Names of the export filters, in order.
    pub export_filters: Vec<String>,
    /// Messages since the start.
    pub messages: Messages,
    /// Errors since the start, by kind.
    pub errors: ErrorCounts,
    /// Why the last session ended or the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<PastError>,
    /// The last NOTIFICATION that we sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_notification_sent: Option<PastError>,
    /// The last NOTIFICATION that came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_notification_received: Option<PastError>,
}

/// One end of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Its address, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Its TCP port on the connection; without one the configured port of the peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// AS number in the OPEN.
    pub asn: Asn,
    /// Its BGP Identifier, as far as it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_id: Option<RouterId>,
}

/// A time that both ends have a say in, in seconds; 0 is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NegotiatedTime {
    /// Seconds that we have configured.
    pub configured: u64,
    /// Negotiated value; absent without a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreed: Option<u64>,
}

/// Capabilities of both OPENs, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Capabilities in our OPEN.
    pub sent: Vec<String>,
    /// Of the peer's OPEN.
    pub received: Vec<String>,
    /// In use. Empty without a session.
    pub agreed: Vec<String>,
}

/// One family of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FamilyDetail {
    /// Address family of these figures.
    pub family: Family,
    /// The session carries it.
    pub agreed: bool,
    /// Prefixes that the peer has announced.
    pub received: usize,
    /// Number of announced prefixes that policy lets pass.
    pub accepted: usize,
    /// Prefixes advertised to it. Counted for this answer; absent without a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertised: Option<usize>,
    /// Prefixes of which the export limit keeps something back.
    #[serde(default)]
    pub kept_back: usize,
    /// Number of prefixes that it may announce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// From how many on there is a warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning_from: Option<u32>,
    /// Number of its prefixes that policy may accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import_limit: Option<u32>,
    /// Number of prefixes that it may be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export_limit: Option<u32>,
}

/// Messages of the session by type and direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Messages {
    /// Messages that we sent.
    pub sent: MessageCounts,
    /// Messages that the peer sent.
    pub received: MessageCounts,
}

/// A capability as text: `graceful restart 120 s (IPv4)`.
#[must_use]
pub(super) fn words(capability: &Capability) -> String {
    match capability {
        Capability::Multiprotocol(family) => format!("multiprotocol {}", name(*family)),
        Capability::RouteRefresh => "route refresh".to_owned(),
        Capability::EnhancedRouteRefresh => "enhanced route refresh".to_owned(),
        Capability::ExtendedMessage => "extended message".to_owned(),
        Capability::FourOctetAs(asn) => format!("4-octet AS {asn}"),
        Capability::ExtendedNextHop(list) => {
            let of = |(family, afi): &(AfiSafi, u16)| format!("{} over AFI {afi}", name(*family));
            format!("extended next hop ({})", joined(list.iter().map(of)))
        }
        Capability::GracefulRestart(restart) => {
            let mut text = format!("graceful restart {} s", restart.restart_time);
            let of = |(family, kept): &(AfiSafi, bool)| {
                let kept = if *kept { ", forwarding kept" } else { "" };
                format!("{}{kept}", name(*family))
            };
            let families = joined(restart.families.iter().map(of));
            let _ = write!(text, " ({families})");
            for (holds, word) in [
                (restart.restarting, ", restarting"),
                (restart.notification, ", graceful notification"),
            ] {
                text.push_str(if holds { word } else { "" });
            }
            text
        }
        Capability::LongLivedGracefulRestart(list) => {
            let families = list.iter();
            let families =
                families.map(|entry| format!("{} {} s", name(entry.family), entry.stale_time));
            format!("long-lived graceful restart ({})", joined(families))
        }
        Capability::AddPath(list) => {
            let of = |(family, mode): &(AfiSafi, AddPathMode)| {
                let mode = match mode {
                    AddPathMode::Receive => "receive".to_owned(),
                    AddPathMode::Send => "send".to_owned(),
                    AddPathMode::Both => "receive and send".to_owned(),
                    AddPathMode::Other(octet) => format!("mode {octet}"),
                };
                format!("{} {mode}", name(*family))
            };
            format!("ADD-PATH ({})", joined(list.iter().map(of)))
        }
        Capability::Role(code) => match BgpRole::of_code(*code) {
            Some(role) => format!("role {role}"),
            None => format!("role of number {code}"),
        },
        Capability::Unknown { code, value } => {
            format!("capability {code} ({} octets)", value.len())
        }
    }
}

fn name(family: AfiSafi) -> String {
    match family.family() {
        Some(family) => family.to_string(),
        None => format!("AFI {} SAFI {}", family.afi, family.safi),
    }
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}
