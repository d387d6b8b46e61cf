//! The protocol's numbers as types: two `u32`s never stand side by side.

mod extended;

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use extended::{Administrator, ExtCommunity, ExtCommunityError, ExtForm, ExtKind};

/// An autonomous system number, four octets (RFC 6793).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Asn(pub u32);

impl Asn {
    /// Stands for a four-octet AS where only two octets fit (RFC 6793 §9).
    pub const TRANS: Self = Self(23456);
    /// Calico's default, private use.
    pub const DEFAULT: Self = Self(64512);

    /// True when the number fits the two-octet encoding of an OPEN message.
    #[must_use]
    pub(crate) const fn is_two_octet(self) -> bool {
        self.0 <= 0xffff
    }
}

impl fmt::Display for Asn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Asn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AS{}", self.0)
    }
}

/// The BGP Identifier: four octets, unsigned, non-zero, unique within an AS (RFC 6286).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RouterId(pub Ipv4Addr);

impl RouterId {
    /// As the unsigned number that RFC 4271 §6.8 and §9.1.2.2 compare.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0.into()
    }
}

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A reflector's CLUSTER_ID, four octets (RFC 4456 §7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub Ipv4Addr);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A community (RFC 1997): `AS:value`, both two octets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Community(pub u32);

impl Community {
    /// Routes are not advertised outside the confederation or AS (RFC 1997).
    pub(crate) const NO_EXPORT: Self = Self(0xffff_ff01);
    /// Routes are not advertised to any peer (RFC 1997).
    pub(crate) const NO_ADVERTISE: Self = Self(0xffff_ff02);
    /// Routes are not advertised to external peers (RFC 1997).
    pub(crate) const NO_EXPORT_SUBCONFED: Self = Self(0xffff_ff03);
    /// The sender is about to go away (RFC 8326).
    pub const GRACEFUL_SHUTDOWN: Self = Self(0xffff_0000);
    /// Kept past a restart as a last resort (RFC 9494).
    pub(crate) const LLGR_STALE: Self = Self(0xffff_0006);
    /// Never to be kept past a restart (RFC 9494).
    pub(crate) const NO_LLGR: Self = Self(0xffff_0007);

    /// From its two halves.
    #[must_use]
    pub const fn new(asn: u16, value: u16) -> Self {
        Self((asn as u32) << 16 | value as u32)
    }

    /// The two halves.
    #[must_use]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "each half is masked to two octets"
    )]
    pub const fn parts(self) -> (u16, u16) {
        ((self.0 >> 16) as u16, (self.0 & 0xffff) as u16)
    }
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (asn, value) = self.parts();
        write!(f, "{asn}:{value}")
    }
}

impl fmt::Debug for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A large community (RFC 8092): three times four octets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LargeCommunity(pub u32, pub u32, pub u32);

impl fmt::Display for LargeCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.0, self.1, self.2)
    }
}

impl fmt::Debug for LargeCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is neither `A:B` nor `A:B:C` with numbers in range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a community; expected AS:VALUE (0-65535 each) or A:B:C (32 bits each)")]
pub struct CommunityError(pub String);

/// A community of any size, as configuration writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AnyCommunity {
    /// Standard community (RFC 1997).
    Standard(Community),
    /// Large community (RFC 8092).
    Large(LargeCommunity),
    /// Extended community (RFC 4360).
    Extended(ExtCommunity),
}

impl fmt::Display for AnyCommunity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard(c) => fmt::Display::fmt(c, f),
            Self::Large(c) => fmt::Display::fmt(c, f),
            Self::Extended(c) => fmt::Display::fmt(c, f),
        }
    }
}

impl AnyCommunity {
    /// BIRD's name for the attribute that holds it.
    #[must_use]
    pub const fn bird_attribute(&self) -> &'static str {
        match self {
            Self::Standard(_) => "bgp_community",
            Self::Large(_) => "bgp_large_community",
            Self::Extended(_) => "bgp_ext_community",
        }
    }

    /// In BIRD's notation: `(64512, 100)`, `(64512, 1, 2)`, `(rt, 64512, 100)`.
    #[must_use]
    pub fn bird_value(&self) -> String {
        format!("({})", self.to_string().replace(':', ", "))
    }
}

impl FromStr for AnyCommunity {
    type Err = CommunityError;

    fn from_str(text: &str) -> Result<Self, CommunityError> {
        let error = || CommunityError(text.to_owned());
        let parts: Vec<u32> = text
            .split(':')
            .map(|part| part.parse().map_err(|_| error()))
            .collect::<Result<_, _>>()?;
        match parts[..] {
            [a, b] => {
                let half = |v: u32| u16::try_from(v).map_err(|_| error());
                Ok(Self::Standard(Community::new(half(a)?, half(b)?)))
            }
            [a, b, c] => Ok(Self::Large(LargeCommunity(a, b, c))),
            _ => Err(error()),
        }
    }
}

/// The name of a peer, unique within a configuration: `Mesh_10_0_0_2`. Sorts as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerName(std::sync::Arc<str>);

impl PeerName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PeerName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for PeerName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A state of the finite state machine (RFC 4271 §8.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SessionState {
    /// Refusing connections, or waiting before the next attempt.
    Idle,
    /// Waiting for our connection to complete.
    Connect,
    /// Waiting for the peer to connect.
    Active,
    /// OPEN sent, waiting for the peer's.
    OpenSent,
    /// OPEN received, waiting for the first KEEPALIVE.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

impl fmt::Display for SessionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Idle => "Idle",
            Self::Connect => "Connect",
            Self::Active => "Active",
            Self::OpenSent => "OpenSent",
            Self::OpenConfirm => "OpenConfirm",
            Self::Established => "Established",
        })
    }
}
