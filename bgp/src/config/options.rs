//! Options of a peer that are off unless somebody asks for them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use caracal_model::Family;
use serde::{Deserialize, Serialize};

/// The ends of a session after which none begins until somebody enables the peer, as in BIRD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct DisableAfter {
    /// A NOTIFICATION of either side that is no Cease, or what BFD says.
    pub error: bool,
    /// The subcodes of the peer's Cease, each a bit: 1 for 0, 2 for 1, and so on.
    pub cease: u16,
}

impl DisableAfter {
    /// BIRD's words for the subcodes of Cease, from 0.
    pub const CEASES: [&str; 9] = [
        "cease",
        "prefix limit hit",
        "administrative shutdown",
        "peer deconfigured",
        "administrative reset",
        "connection rejected",
        "configuration change",
        "connection collision",
        "out of resources",
    ];
    /// All subcodes.
    pub const ANY_CEASE: u16 = u16::MAX;

    /// The subcodes in BIRD's words; `None`: there are none.
    #[must_use]
    pub fn cease_words(&self) -> Option<String> {
        let named = Self::CEASES.iter().enumerate();
        let named = named.filter(|(bit, _)| self.cease >> bit & 1 == 1);
        let words: Vec<&str> = named.map(|(_, words)| *words).collect();
        match self.cease {
            Self::ANY_CEASE => Some("on".to_owned()),
            _ if words.is_empty() => None,
            _ => Some(format!("{{ {} }}", words.join(", "))),
        }
    }
}

/// Limit of the prefixes of a family of a session (RFC 4486 §4). [`Counted`] says which ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PrefixLimit {
    /// The most that there may be.
    pub max: u32,
    /// Percentage of `max` from which on there is a warning in the log.
    pub warning: u8,
    /// Action when there are more than `max`.
    pub action: LimitAction,
}

impl PrefixLimit {
    /// A limit that ends the session until somebody changes the configuration, with a warning at 75
    /// %.
    #[must_use]
    pub const fn new(max: u32) -> Self {
        Self {
            max,
            warning: 75,
            action: LimitAction::Disable,
        }
    }

    /// The number of prefixes from which on there is a warning.
    #[must_use]
    pub fn warning_from(&self) -> u32 {
        let scaled = u64::from(self.max) * u64::from(self.warning) / 100;
        u32::try_from(scaled).unwrap_or(u32::MAX)
    }
}

/// A limit of each family by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefixLimits {
    /// The limit of IPv4 prefixes.
    pub ipv4: Option<PrefixLimit>,
    /// The limit of IPv6 prefixes.
    pub ipv6: Option<PrefixLimit>,
}

impl PrefixLimits {
    /// The limit of a family.
    #[must_use]
    pub const fn for_family(self, family: Family) -> Option<PrefixLimit> {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// Changes the limit of a family.
    pub const fn set(&mut self, family: Family, limit: Option<PrefixLimit>) {
        match family {
            Family::Ipv4 => self.ipv4 = limit,
            Family::Ipv6 => self.ipv6 = limit,
        }
    }

    /// True when a family has a limit.
    pub(crate) const fn is_some(self) -> bool {
        self.ipv4.is_some() || self.ipv6.is_some()
    }

    /// True when the limit of a family keeps out what is new.
    pub(crate) fn blocks(self) -> bool {
        let mut limits = [self.ipv4, self.ipv6].into_iter().flatten();
        limits.any(|limit| limit.action == LimitAction::Block)
    }
}

/// Which prefixes of a session a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Counted {
    /// What the peer announces, before import policy: what is refused costs memory as well.
    Received,
    /// What import policy has accepted.
    Accepted,
    /// What the peer is sent.
    Sent,
}

/// A limit that is passed, and ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitPassed {
    /// Which prefixes are too many.
    pub counted: Counted,
    /// The family with too many.
    pub family: Family,
    /// The most that there may be.
    pub max: u32,
    /// Pause before the next session; `None`: until another configuration comes.
    pub restart: Option<Duration>,
}

/// Action when there are more prefixes than a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitAction {
    /// A warning in the log; the routes are taken.
    Warn,
    /// A warning in the log; what is new beyond the limit is not taken, or not sent. What is there
    /// stays.
    Block,
    /// Cease / Maximum Number of Prefixes Reached; no new session until the configuration changes.
    Disable,
    /// Ends the session, and allows a new attempt after this time.
    Restart(Duration),
}

/// Our NEXT_HOP towards a peer, where it shall not be our end of the session. In a family that is
/// not the session's own one, without it, it is an address of the session's interface (RFC 4760 §3,
/// RFC 2545).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnNextHops {
    /// Our next hop for IPv4 prefixes.
    pub ipv4: Option<Ipv4Addr>,
    /// Our next hop for IPv6 prefixes.
    pub ipv6: Option<Ipv6Addr>,
}

impl OwnNextHops {
    /// Our next hop for prefixes of a family.
    #[must_use]
    pub fn for_family(self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.ipv4.map(IpAddr::V4),
            Family::Ipv6 => self.ipv6.map(IpAddr::V6),
        }
    }

    /// Takes an address as that of its family.
    pub const fn set(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.ipv4 = Some(address),
            IpAddr::V6(address) => self.ipv6 = Some(address),
        }
    }
}

/// NEXT_HOP on export (RFC 4271 §5.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NextHopMode {
    /// Internal peers: kept, except for routes we originate. External peers: ourselves.
    #[default]
    Auto,
    /// Always our own address.
    #[serde(rename = "self")]
    Own,
    /// The next hop that the route came with.
    Keep,
}

/// The rule for NEXT_HOP on export, for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NextHopModes {
    /// Of IPv4 prefixes.
    pub ipv4: NextHopMode,
    /// Of IPv6 prefixes.
    pub ipv6: NextHopMode,
}

impl NextHopModes {
    /// The rule for prefixes of a family.
    #[must_use]
    pub const fn for_family(self, family: Family) -> NextHopMode {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// Takes a rule for a family.
    pub const fn set(&mut self, family: Family, mode: NextHopMode) {
        match family {
            Family::Ipv4 => self.ipv4 = mode,
            Family::Ipv6 => self.ipv6 = mode,
        }
    }
}

impl From<NextHopMode> for NextHopModes {
    /// One rule for all prefixes.
    fn from(mode: NextHopMode) -> Self {
        Self {
            ipv4: mode,
            ipv6: mode,
        }
    }
}

/// Our place on an external session (RFC 9234 §3). Its routes and their ONLY_TO_CUSTOMER follow
/// from it (§5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BgpRole {
    /// The peer is our customer.
    Provider,
    /// We are a route server, and the peer is its client.
    RsServer,
    /// The peer is a route server.
    RsClient,
    /// The peer is our provider.
    Customer,
    /// Each tells the other of its own routes and those of its customers.
    Peer,
}

impl BgpRole {
    /// All roles, each at the place of its code.
    pub const ALL: [Self; 5] = [
        Self::Provider,
        Self::RsServer,
        Self::RsClient,
        Self::Customer,
        Self::Peer,
    ];

    /// The role of a capability's octet (RFC 9234 §4.1, table 1).
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The octet in the capability.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Provider => 0,
            Self::RsServer => 1,
            Self::RsClient => 2,
            Self::Customer => 3,
            Self::Peer => 4,
        }
    }

    /// The word in configurations, BIRD's.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::RsServer => "rs_server",
            Self::RsClient => "rs_client",
            Self::Customer => "customer",
            Self::Peer => "peer",
        }
    }

    /// The role that the other end must have (RFC 9234 §4.2, table 2).
    #[must_use]
    pub const fn counterpart(self) -> Self {
        match self {
            Self::Provider => Self::Customer,
            Self::RsServer => Self::RsClient,
            Self::RsClient => Self::RsServer,
            Self::Customer => Self::Provider,
            Self::Peer => Self::Peer,
        }
    }

    /// True when the peer is below us: it is told of everything, and tells us of nothing that goes
    /// to customers alone.
    pub(crate) const fn is_above(self) -> bool {
        matches!(self, Self::Provider | Self::RsServer)
    }
}

impl fmt::Display for BgpRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Several paths per prefix (RFC 7911), for all families of the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AddPath {
    /// Take several paths per prefix from the peer.
    pub receive: bool,
    /// ADD-PATH send: at most this many of the best paths.
    pub send: Option<PathCount>,
}

/// Number of paths of a destination that are announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathCount {
    /// Every path that could be used.
    All,
    /// The best so many.
    Best(u8),
}

impl PathCount {
    /// The largest number of paths that this allows.
    #[must_use]
    pub fn limit(self) -> usize {
        match self {
            Self::All => usize::MAX,
            Self::Best(count) => usize::from(count),
        }
    }
}

/// Bidirectional Forwarding Detection for a peer (RFC 5880, 5881, 5883).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BfdOptions {
    /// Interval at which we want to send and can receive.
    pub interval: Duration,
    /// Detection multiplier: the peer is down after this many of its intervals without a packet.
    pub multiplier: u8,
    /// Treat the loss of a peer whose BFD shares the fate of its control plane (C bit clear, RFC
    /// 5882 §4.3) as a restart of the peer: its routes are kept as graceful restart says. Otherwise
    /// they go at once.
    pub graceful: bool,
}

impl Default for BfdOptions {
    /// Three times 300 ms: a dead peer is noticed within a second.
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(300),
            multiplier: 3,
            graceful: false,
        }
    }
}
