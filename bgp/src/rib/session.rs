//! Facts about an established session that the table needs.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use caracal_model::{Family, Prefix};
use serde::{Deserialize, Serialize};

use crate::config::OwnNextHops;
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
    /// Address of the peer's end.
    pub remote_address: IpAddr,
    /// The peer's graceful restart capability; `None` when either side did not send one.
    pub graceful_restart: Option<RemoteRestart>,
    /// Options that both OPENs have.
    #[serde(default)]
    pub options: SessionOptions,
    /// Capabilities in use, in the field's words, for people: `4-octet AS`, `route refresh`, …
    pub capabilities: Vec<String>,
}

impl SessionInfo {
    /// Our own NEXT_HOP for a family: as configured; our end of the session in its own family, and
    /// in IPv4 also over IPv6 where the peer knows RFC 8950; else an address of the same interface.
    /// `None`: there is none, and routes that need it are not announced.
    #[must_use]
    pub fn own_next_hop(&self, configured: OwnNextHops, family: Family) -> Option<IpAddr> {
        let over_ipv6 = self.options.extended_next_hop && family == Family::Ipv4;
        let end = Some(self.local_address);
        let end = end.filter(|end| Family::of(*end) == family || over_ipv6);
        let other = self.options.other_address;
        configured
            .for_family(family)
            .or(end)
            .or_else(|| other.filter(|other| Family::of(*other) == family))
    }

    /// The families of the session in which we have no address to announce routes with.
    pub fn without_next_hop(&self, configured: OwnNextHops) -> impl Iterator<Item = Family> {
        let families = self.families.iter().copied();
        families.filter(move |family| self.own_next_hop(configured, *family).is_none())
    }
}

/// Options of a session beyond plain RFC 4271.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionOptions {
    /// The peer can be asked for everything again (RFC 2918).
    pub route_refresh: bool,
    /// Begin and end of a refresh are marked (RFC 7313).
    pub enhanced_refresh: bool,
    /// IPv4 prefixes may have IPv6 next hops (RFC 8950).
    pub extended_next_hop: bool,
    /// AS numbers have four octets (RFC 6793).
    pub four_octet_as: bool,
    /// The peer takes messages of up to 65,535 octets (RFC 8654).
    pub extended_messages: bool,
    /// Families in which the peer takes several paths per prefix (RFC 7911).
    pub path_ids_out: Vec<Family>,
    /// The peer's long-lived graceful restart; `None` when either side did not announce it (RFC
    /// 9494).
    pub long_lived: Option<Vec<LongLivedRestart>>,
    /// Our address in the family that is not the session's own, on the interface of our end; `None`
    /// when there is none or nobody needs it.
    pub other_address: Option<IpAddr>,
    /// Our link-local address, when the peer is configured as being on a link of ours, and is (RFC
    /// 2545 §3).
    pub link_local: Option<Ipv6Addr>,
    /// The subnets of the interface of our end, when the peer is configured as being on a link of
    /// ours, and is.
    pub link: Vec<Prefix>,
}

/// Long-lived graceful restart of a peer's family (RFC 9494 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongLivedRestart {
    /// Family whose routes are kept.
    pub family: Family,
    /// Forwarding survived the peer's restart.
    pub forwarding: bool,
    /// Time for which its routes are kept after the restart time.
    pub time: Duration,
}

/// The graceful restart capability of a peer (RFC 4724 §3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteRestart {
    /// Restart State: the peer has restarted and waits for our End-of-RIB.
    pub restarting: bool,
    /// Time for which its routes are kept without a session.
    pub time: Duration,
    /// The families it keeps, each with the Forwarding State bit: true when forwarding survived its
    /// restart.
    pub families: Vec<(Family, bool)>,
}
