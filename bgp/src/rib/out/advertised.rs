//! Advertisements: attributes and their source, and which members of a group see them.

use std::fmt;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use crate::attrs::PathAttrs;
use crate::rib::import::DecidedBy;
use crate::rib::peer_id::PeerId;

/// Why a best path is not announced to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Withheld {
    /// The session does not carry the family.
    Family,
    /// The peer sent it to us.
    SplitHorizon,
    /// Learned from an internal peer, and neither side is our reflector client (RFC 4271 §9.2, RFC
    /// 4456 §6).
    InternalToInternal,
    /// Community NO_ADVERTISE (RFC 1997).
    NoAdvertise,
    /// Community NO_EXPORT or NO_EXPORT_SUBCONFED (RFC 1997).
    NoExport,
    /// ONLY_TO_CUSTOMER, and the peer is our provider, our peer or a route server (RFC 9234 §5).
    OnlyToCustomer,
    /// Kept as a last resort, and the peer has not announced that it understands that (RFC 9494
    /// §4.3).
    LongLivedStale,
    /// Its NEXT_HOP would be the peer's own address (RFC 4271 §5.1.3).
    PeerIsNextHop,
    /// The session has no address of the family that could be the NEXT_HOP.
    NoNextHop,
    /// Its attributes do not fit into a message of the session (RFC 4271 §9.2): the peer hears that
    /// it is withdrawn.
    TooLong,
    /// The limit of the prefixes that the peer is sent is reached.
    OverLimit,
    /// An export filter rejected it.
    Policy(DecidedBy),
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Family => "the session does not carry the family",
            Self::SplitHorizon => "the peer sent it to us",
            Self::InternalToInternal => "learned from an internal peer, and no reflector client",
            Self::NoAdvertise => "community NO_ADVERTISE",
            Self::NoExport => "community NO_EXPORT",
            Self::OnlyToCustomer => {
                "it is for customers alone (ONLY_TO_CUSTOMER), and the peer is none by its role"
            }
            Self::LongLivedStale => {
                "community LLGR_STALE, and the peer has no long-lived graceful restart"
            }
            Self::PeerIsNextHop => "the next hop would be the peer itself",
            Self::NoNextHop => "no address of the family for the next hop",
            Self::TooLong => "the attributes do not fit into a message of the session",
            Self::OverLimit => "the export limit is reached",
            Self::Policy(by) => return write!(f, "rejected by {by}"),
        })
    }
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Peer that is a member of the group.
    pub peer: PeerId,
    /// The peer's end of the session.
    pub(super) address: IpAddr,
}

impl Member {
    pub(in crate::rib) const fn new(peer: PeerId, address: IpAddr) -> Self {
        Self { peer, address }
    }

    pub(in crate::rib) const fn address(&self) -> IpAddr {
        self.address
    }
}

/// Advertisement of a prefix to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rib) struct Advertised {
    attrs: Arc<PathAttrs>,
    /// The peer that sent us the route; it gets nothing.
    source: PeerId,
}

impl Advertised {
    pub(in crate::rib) const fn new(attrs: Arc<PathAttrs>, source: PeerId) -> Self {
        Self { attrs, source }
    }

    pub(in crate::rib) const fn attrs(&self) -> &Arc<PathAttrs> {
        &self.attrs
    }

    pub(in crate::rib) const fn source(&self) -> PeerId {
        self.source
    }

    /// Source and next hop, which decide which members get it.
    pub(in crate::rib) fn class(&self) -> (PeerId, Option<IpAddr>) {
        (self.source, self.attrs.next_hop)
    }

    /// True when attributes and source are the same.
    pub(in crate::rib) fn is(&self, other: &Self) -> bool {
        self.source == other.source && Arc::ptr_eq(&self.attrs, &other.attrs)
    }

    /// The attributes, when they are advertised to this member; else the export exception.
    pub(in crate::rib) fn visible_to(&self, member: &Member) -> Result<&Arc<PathAttrs>, Withheld> {
        if self.source == member.peer {
            Err(Withheld::SplitHorizon)
        } else if self.attrs.next_hop == Some(member.address()) {
            // RFC 4271 §5.1.3: never with an address of the peer as NEXT_HOP.
            Err(Withheld::PeerIsNextHop)
        } else {
            Ok(&self.attrs)
        }
    }

    /// Summary that is kept when another path is advertised.
    pub(super) fn before(&self, after: Option<&Self>) -> Before {
        Before {
            source: self.source,
            next_hop: self.attrs.next_hop,
            same: after.is_some_and(|after| Arc::ptr_eq(&self.attrs, &after.attrs)),
        }
    }

    pub(super) fn hash(&self, hasher: &foldhash::quality::RandomState) -> u64 {
        hasher.hash_one((Arc::as_ptr(&self.attrs).addr(), self.source))
    }
}

/// Advertisement of a prefix to a group before a change: members that did not get it, and whether
/// the attributes are still the same. To hold on to the attributes would cost two atomic operations
/// for each route that is withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rib) struct Before {
    pub(in crate::rib) source: PeerId,
    pub(in crate::rib) next_hop: Option<IpAddr>,
    pub(in crate::rib) same: bool,
}

impl Before {
    /// True when it was advertised to this member.
    pub(in crate::rib) fn visible_to(&self, member: &Member) -> bool {
        self.source != member.peer && self.next_hop != Some(member.address())
    }
}

/// Counts routes advertised to members: all, without those hidden from a few of them.
#[derive(Debug)]
pub(in crate::rib) struct VisibleCount {
    by_peer: HashMap<PeerId, usize>,
    by_address: HashMap<IpAddr, Vec<usize>>,
    hidden: Vec<usize>,
    all: usize,
}

impl VisibleCount {
    pub(in crate::rib) fn new(members: &[Member]) -> Self {
        let mut by_address: HashMap<IpAddr, Vec<usize>> = HashMap::default();
        for (at, member) in members.iter().enumerate() {
            by_address.entry(member.address()).or_default().push(at);
        }
        let peers = members.iter().enumerate();
        Self {
            by_peer: peers.map(|(at, member)| (member.peer, at)).collect(),
            by_address,
            hidden: vec![0; members.len()],
            all: 0,
        }
    }

    /// Adds so many routes.
    pub(in crate::rib) fn add(&mut self, source: PeerId, next_hop: Option<IpAddr>, routes: usize) {
        self.all += routes;
        let source = self.by_peer.get(&source).copied();
        if let Some(source) = source {
            self.hidden[source] += routes;
        }
        let next_hop = next_hop.and_then(|next_hop| self.by_address.get(&next_hop));
        for at in next_hop.into_iter().flatten().copied() {
            if Some(at) != source {
                self.hidden[at] += routes;
            }
        }
    }

    /// The numbers, in the order of the members.
    pub(in crate::rib) fn finish(self) -> Vec<usize> {
        let hidden = self.hidden.into_iter();
        hidden.map(|hidden| self.all - hidden).collect()
    }
}

pub(super) fn visible<'a>(
    sent: Option<&'a Advertised>,
    member: &Member,
) -> Option<&'a Arc<PathAttrs>> {
    sent.and_then(|sent| sent.visible_to(member).ok())
}
