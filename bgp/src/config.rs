//! The typed configuration of a speaker. It travels as a value from `topologies` to the speaker;
//! the bird-style text is a view of it.

mod diff;
mod interfaces;
mod leave;
mod options;
mod originations;
mod station;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use caracal_model::{Family, IfName, Prefix, zoned};
use serde::{Deserialize, Serialize};

pub(crate) use diff::compare_all_but_routes;
#[cfg(feature = "speaker")]
pub(crate) use diff::renamed;
pub use diff::{ConfigChange, PeerChange, compare_configs};
pub use interfaces::InterfacePattern;
pub use options::{
    AddPath, BfdOptions, BgpRole, Counted, DisableAfter, LimitAction, LimitPassed, NextHopMode,
    NextHopModes, OwnNextHops, PathCount, PrefixLimit, PrefixLimits,
};
pub use originations::Originations;
pub use station::Station;

use crate::attrs::Origin;
use crate::policy::{Filter, Sender};
use crate::types::{AnyCommunity, Asn, ClusterId, PeerName, RouterId};

/// LOCAL_PREF of a route of normal priority in a Calico cluster: 2147483647 − 1024. Calico's nodes
/// turn it back into kernel metric 1024; a speaker that sends 100 loses against them for the same
/// prefix.
pub const CALICO_LOCAL_PREF: u32 = 2_147_483_647 - 1024;

/// Everything a speaker needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeakerConfig {
    /// Our AS unless a peer overrides it.
    pub local_as: Asn,
    /// Our BGP Identifier (RFC 6286).
    pub router_id: RouterId,
    /// Address and port to listen on; `None`: all peers are dialled.
    pub listen: Option<Listen>,
    /// Peers and ranges of peers, by name.
    pub peers: BTreeMap<PeerName, PeerConfig>,
    /// Routes that we originate, by prefix.
    pub originate: Originations,
    /// Filters by name; peers refer to them.
    pub filters: BTreeMap<String, Filter>,
    /// Monitoring stations by name (RFC 7854).
    pub stations: BTreeMap<String, Station>,
}

impl SpeakerConfig {
    /// The links of peers and gateways with link-local addresses.
    #[must_use]
    pub fn links(&self) -> BTreeSet<IfName> {
        let peers = self
            .peers
            .values()
            .filter_map(|peer| peer.interface.clone());
        let ways = self.originate.values().map(|route| &route.way);
        let gateways = ways.flat_map(|way| match way {
            StaticWay::Via(gateways) => gateways.as_slice(),
            _ => &[],
        });
        peers
            .chain(gateways.filter_map(|gateway| gateway.interface.clone()))
            .collect()
    }
}

/// Socket on which the speaker listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listen {
    /// Local address; `None` = all addresses.
    pub address: Option<IpAddr>,
    /// A second one, of a node with an address of each family; only beside a first.
    #[serde(default)]
    pub second: Option<IpAddr>,
    /// TCP port, normally 179.
    pub port: u16,
}

impl Listen {
    /// One for each socket to make.
    pub fn sockets(self) -> impl Iterator<Item = Self> {
        let one = move |address| Self {
            address,
            second: None,
            port: self.port,
        };
        let second = self.second.filter(|_| self.address.is_some());
        std::iter::once(one(self.address)).chain(second.map(|address| one(Some(address))))
    }
}

/// A route that this speaker announces as its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origination {
    /// NEXT_HOP; `None` = the session's own address.
    pub next_hop: Option<IpAddr>,
    /// LOCAL_PREF towards internal peers; `None` = 100, and filters see none.
    pub local_pref: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// ORIGIN.
    #[serde(default)]
    pub origin: Origin,
    /// AS_PATH as it begins here, before our own AS comes in front of it.
    #[serde(default)]
    pub as_path: Vec<Asn>,
    /// Communities, sorted and unique.
    pub communities: Vec<AnyCommunity>,
    /// Where its packets go.
    #[serde(default)]
    pub way: StaticWay,
    /// The protocol of a file that it stands in; `None`: the first of its kind, without a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Arc<OwnProtocol>>,
}

/// A protocol of a file that has routes of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnProtocol {
    /// Its name.
    pub name: String,
    /// How much its routes are preferred to those of others of its kind: a higher number is more.
    pub preference: u16,
}

impl Origination {
    /// Its protocol as filters see it, by BIRD's names and numbers.
    pub(crate) fn sender(&self) -> Sender<'_> {
        let (name, preference) = match (&self.protocol, &self.way) {
            (Some(protocol), _) => (protocol.name.as_str(), protocol.preference),
            (None, StaticWay::Interface(_)) => ("direct1", 240),
            (None, StaticWay::Inherited { .. }) => ("kernel1", 10),
            (None, _) => return Sender::STATIC,
        };
        Sender {
            name,
            address: None,
            preference,
        }
    }
}

impl From<StaticWay> for Origination {
    /// A route that leads this way, without attributes.
    fn from(way: StaticWay) -> Self {
        Self {
            way,
            ..Self::default()
        }
    }
}

/// Where packets of a route of ours go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StaticWay {
    /// They are dropped.
    #[default]
    Blackhole,
    /// They are dropped, and the sender is told.
    Unreachable,
    /// They are dropped, and the sender is told that it is forbidden.
    Prohibit,
    /// To gateways on links of ours; never empty. The route is there while one of them is on a
    /// link.
    Via(Vec<StaticGateway>),
    /// To wherever this address is reached. Without a way to it they are dropped.
    Recursive(IpAddr),
    /// To what is on this link, by the kernel's own route.
    Interface(IfName),
    /// By a route that another program wrote into the kernel's table.
    Inherited {
        /// The interface, when it is one.
        interface: Option<IfName>,
        /// The gateway, when it is one.
        #[serde(default)]
        gateway: Option<IpAddr>,
    },
}

impl StaticWay {
    /// The interface and the gateway, as far as they are known without the kernel's routes.
    pub(crate) fn told(&self) -> (Option<&str>, Option<IpAddr>) {
        let (interface, gateway) = match self {
            Self::Interface(interface) => (Some(interface), None),
            Self::Inherited { interface, gateway } => (interface.as_ref(), *gateway),
            Self::Via(gateways) => {
                let first = gateways.iter().min_by_key(|gateway| gateway.order());
                let interface = first.and_then(|first| first.interface.as_ref());
                (interface, first.map(|first| first.address))
            }
            _ => (None, None),
        };
        let gateway = gateway.filter(|address| !address.is_unspecified());
        (interface.map(IfName::as_str), gateway)
    }

    /// The addresses of the gateways, zoned, or the address that is looked up.
    pub(crate) fn hops(&self) -> impl Iterator<Item = IpAddr> {
        let (gateways, looked_up) = match self {
            Self::Via(gateways) => (gateways.as_slice(), None),
            Self::Recursive(address) => (&[][..], Some(*address)),
            Self::Blackhole
            | Self::Unreachable
            | Self::Prohibit
            | Self::Interface(_)
            | Self::Inherited { .. } => (&[][..], None),
        };
        let addresses = gateways.iter().map(StaticGateway::hop);
        addresses.chain(looked_up)
    }

    /// True when its packets are dropped, whatever the links.
    #[must_use]
    pub const fn leads_nowhere(&self) -> bool {
        matches!(self, Self::Blackhole | Self::Unreachable | Self::Prohibit)
    }
}

/// A gateway of a route of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticGateway {
    /// Address of the gateway; unspecified: there is none, the destination itself is on the link.
    pub address: IpAddr,
    /// The link that it is on, whatever subnets the link has. A link-local address has one, and so
    /// has the unspecified one; `None`: it is in a subnet of its link.
    #[serde(default)]
    pub interface: Option<IfName>,
    /// Beside others: how much more than one share of the packets it gets.
    #[serde(default)]
    pub extra_weight: u8,
}

impl StaticGateway {
    /// The first of several gateways has the lowest.
    pub(crate) const fn order(&self) -> (Reverse<u8>, IpAddr) {
        (Reverse(self.extra_weight), self.address)
    }

    /// The address, zoned. Where a link is named and the address is not link-local, any address on
    /// the link stands for it.
    pub(crate) fn hop(&self) -> IpAddr {
        const ANY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
        match (self.address, &self.interface) {
            (IpAddr::V6(address), Some(interface)) if address.is_unicast_link_local() => {
                zoned(address, interface).into()
            }
            (_, Some(interface)) => zoned(ANY, interface).into(),
            (address, None) => address,
        }
    }

    /// True for an address that need not be in a subnet of the link that is named.
    #[must_use]
    pub const fn is_on_any_link(&self) -> bool {
        match self.address {
            IpAddr::V6(address) if address.is_unicast_link_local() => false,
            _ => self.interface.is_some(),
        }
    }
}

impl fmt::Display for StaticGateway {
    /// `10.0.0.1`, `fe80::1%eth0`, `dev eth0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.interface {
            Some(interface) if self.address.is_unspecified() => write!(f, "dev {interface}"),
            Some(interface) => write!(f, "{}%{interface}", self.address),
            None => self.address.fmt(f),
        }
    }
}

impl From<IpAddr> for StaticGateway {
    /// With one share.
    fn from(address: IpAddr) -> Self {
        Self {
            address,
            interface: None,
            extra_weight: 0,
        }
    }
}

/// Configuration of a peer, or of a range of peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerConfig {
    /// Address that the peer has, and that is dialled.
    pub address: IpAddr,
    /// The link that we share with the peer; of a peer with a link-local address, and of no other.
    #[serde(default)]
    pub interface: Option<IfName>,
    /// The peer's TCP port, normally 179.
    pub port: u16,
    /// The AS we expect in its OPEN.
    pub remote_as: Asn,
    /// Our AS on this session; `None` = [`SpeakerConfig::local_as`].
    pub local_as: Option<Asn>,
    /// Source address of our connections; also our NEXT_HOP. `None` = the kernel's choice.
    pub source: Option<IpAddr>,
    /// True: no session is wanted, until somebody enables the peer or this changes.
    #[serde(default)]
    pub disabled: bool,
    /// True: wait for the peer to connect, never dial.
    pub passive: bool,
    /// Hold time that we propose; zero turns keepalives off (RFC 4271 §4.2).
    pub hold_time: Duration,
    /// Address families to negotiate, sorted; never empty.
    pub families: Vec<Family>,
    /// Some: the peer is our reflector client, and this is the cluster it belongs to (RFC 4456).
    pub client_of: Option<ClusterId>,
    /// The external peer is a client of a route server (RFC 7947 §2.2): AS_PATH and MED go to it as
    /// they came, and NEXT_HOP does unless `next_hop` says otherwise. Nothing to an internal peer.
    #[serde(default)]
    pub rs_client: bool,
    /// Our role on the session (RFC 9234); without meaning to an internal peer.
    #[serde(default)]
    pub role: Option<BgpRole>,
    /// True: no session with a peer that names no role (RFC 9234 §4.2, strict mode).
    #[serde(default)]
    pub require_roles: bool,
    /// Rule for NEXT_HOP on export (RFC 4271 §5.1.3).
    pub next_hop: NextHopModes,
    /// Our own NEXT_HOP where that is not our end of the session.
    #[serde(default)]
    pub own_next_hops: OwnNextHops,
    /// Graceful restart (RFC 4724); `None` = the capability is not sent.
    pub graceful_restart: Option<GracefulRestart>,
    /// Time to live of our packets: 1 for a directly connected external peer, 255 with
    /// `ttl_security`, otherwise the multihop limit. `None` = the system's default.
    pub ttl: Option<u8>,
    /// Some(hops): accept only packets that came at most this many hops (RFC 5082).
    pub ttl_security: Option<u8>,
    /// TCP MD5 key (RFC 2385). Never printed.
    pub password: Option<Password>,
    /// Filters on import, in order; what no filter decides is accepted.
    pub import: Vec<String>,
    /// Filters on export, in order; what no filter decides is accepted.
    pub export: Vec<String>,
    /// Number of times that our own AS may stand in a received path (default 0).
    pub allow_own_as: u8,
    /// True: the external peer's AS has to be the first of each path that it sends (RFC 4271 §6.3).
    #[serde(default)]
    pub enforce_first_as: bool,
    /// Some: not one peer but all that connect from these addresses, each with these options.
    /// `address` is then the range's own and means nothing.
    pub range: Option<Prefix>,
    /// The beginning of the names of a range's peers, before `_` and the address; `None` = the
    /// range's own name.
    #[serde(default)]
    pub dynamic_name: Option<String>,
    /// Of the routes of peers to a destination those of the highest number are used, whatever else
    /// they have; normally 100.
    #[serde(default = "PeerConfig::usual_preference")]
    pub preference: u16,
    /// The ends of a session after which none begins until somebody enables the peer.
    #[serde(default)]
    pub disable_after: DisableAfter,
    /// Limits of the prefixes that the peer announces, before import policy.
    #[serde(default)]
    pub prefix_limits: PrefixLimits,
    /// Limits of its prefixes that import policy accepts.
    #[serde(default)]
    pub import_limits: PrefixLimits,
    /// Limits of the prefixes that the peer is sent.
    #[serde(default)]
    pub export_limits: PrefixLimits,
    /// RFC 8212: as an external peer without a filter for a direction, nothing passes in that
    /// direction. Off by default, as in Calico.
    pub require_policy: bool,
    /// Offer IPv4 prefixes with IPv6 next hops (RFC 8950).
    pub extended_next_hop: bool,
    /// Several paths per prefix (RFC 7911).
    pub add_path: AddPath,
    /// Long-lived graceful restart (RFC 9494): how long the peer shall keep our routes after the
    /// restart time, as a last resort; at most 2²⁴−1 s on the wire. Only with `graceful_restart`.
    pub long_lived: Option<Duration>,
    /// RFC 9494 §4.6: as an internal peer that does not know long-lived stale routes, it gets them
    /// all the same, with LOCAL_PREF 0 and NO_EXPORT.
    #[serde(default)]
    pub long_lived_partial: bool,
    /// Bidirectional Forwarding Detection (RFC 5880) beside the session; `None` means without.
    pub bfd: Option<BfdOptions>,
    /// Why this peer exists, for people: `mesh`, `global`, `node`.
    pub kind: String,
}

impl PeerConfig {
    /// BIRD's preference of routes of peers.
    pub const PREFERENCE: u16 = 100;

    const fn usual_preference() -> u16 {
        Self::PREFERENCE
    }

    /// The limits of what is counted.
    #[must_use]
    pub const fn limits(&self, counted: Counted) -> PrefixLimits {
        match counted {
            Counted::Received => self.prefix_limits,
            Counted::Accepted => self.import_limits,
            Counted::Sent => self.export_limits,
        }
    }

    /// A peer with the defaults of this speaker: port 179, hold time 90 s (RFC 4271 §10), IPv4
    /// unicast, graceful restart of 120 s.
    #[must_use]
    pub fn new(address: IpAddr, remote_as: Asn) -> Self {
        Self {
            address,
            interface: None,
            port: 179,
            remote_as,
            local_as: None,
            source: None,
            disabled: false,
            passive: false,
            hold_time: Duration::from_secs(90),
            families: vec![Family::Ipv4],
            client_of: None,
            rs_client: false,
            role: None,
            require_roles: false,
            next_hop: NextHopModes::default(),
            own_next_hops: OwnNextHops::default(),
            graceful_restart: Some(GracefulRestart::default()),
            ttl: None,
            ttl_security: None,
            password: None,
            import: Vec::new(),
            export: Vec::new(),
            allow_own_as: 0,
            enforce_first_as: false,
            range: None,
            dynamic_name: None,
            preference: Self::PREFERENCE,
            disable_after: DisableAfter::default(),
            prefix_limits: PrefixLimits::default(),
            import_limits: PrefixLimits::default(),
            export_limits: PrefixLimits::default(),
            require_policy: false,
            extended_next_hop: false,
            add_path: AddPath::default(),
            long_lived: None,
            long_lived_partial: false,
            bfd: None,
            kind: String::new(),
        }
    }
}

/// Graceful restart parameters (RFC 4724).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GracefulRestart {
    /// Time for which the peer keeps our routes without a session; at most 4095 s on the wire.
    pub restart_time: Duration,
}

impl Default for GracefulRestart {
    /// 120 s, as BIRD's default and so as Calico's.
    fn default() -> Self {
        Self {
            restart_time: Duration::from_secs(120),
        }
    }
}

/// A TCP MD5 key. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Password(pub String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password(…)")
    }
}
