//! The table as people and other programs see it. Everything here is a copy and can be serialised.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Gateway, Prefix};
use serde::{Deserialize, Serialize};

use super::decision::BestPathReason;
use super::import::{DecidedBy, ImportRefusal};
use super::next_hops::ResolvedNextHop;
use super::out::Withheld;
use crate::attrs::PathAttrs;
use crate::types::{AnyCommunity, Asn, ClusterId, ExtCommunity, PeerName, RouterId};

/// A route for the forwarding table: the best path to a prefix, learned from a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LearnedRoute {
    /// Next hops of the ECMP set, the best path's first, without duplicates; never empty.
    pub next_hops: Vec<IpAddr>,
    /// Gateways of the route: its resolved next hops, in the same order and without duplicates.
    /// Empty while nobody reads the underlay.
    #[serde(default, skip_serializing_if = "<[Gateway]>::is_empty")]
    pub gateways: Arc<[Gateway]>,
    /// The peer that sent the best path.
    pub peer: PeerName,
    /// Address of the peer that announced the route.
    pub peer_address: IpAddr,
    /// Learned from a peer of our own AS.
    pub internal: bool,
    /// LOCAL_PREF, or the default of 100.
    pub local_pref: u32,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// Length of the AS path.
    pub as_path_len: usize,
    /// Standard, large and extended communities.
    pub communities: Vec<AnyCommunity>,
    /// Kept while the peer restarts.
    pub stale: bool,
    /// The address that packets of this machine are sent from, where the filter of the forwarding
    /// table says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_source: Option<IpAddr>,
}

/// Path attributes in print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttrsInfo {
    /// NEXT_HOP; `None` on a route of ours that uses each session's own address.
    pub next_hop: Option<IpAddr>,
    /// ORIGIN: `IGP`, `EGP`, `Incomplete`.
    pub origin: String,
    /// AS_PATH: `64512 65001 {65002 65003}`.
    pub as_path: String,
    /// LOCAL_PREF; `None`: the peer sent none.
    pub local_pref: Option<u32>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// ONLY_TO_CUSTOMER (RFC 9234): the AS that said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_to_customer: Option<Asn>,
    /// Standard, large and extended communities.
    pub communities: Vec<AnyCommunity>,
    /// ORIGINATOR_ID (RFC 4456 §8): who announced it to the first reflector.
    pub originator_id: Option<RouterId>,
    /// CLUSTER_LIST (RFC 4456 §8), the latest reflector first.
    pub cluster_list: Vec<ClusterId>,
}

/// All communities of a set.
pub(super) fn communities(attrs: &PathAttrs) -> Vec<AnyCommunity> {
    let standard = attrs
        .communities
        .iter()
        .copied()
        .map(AnyCommunity::Standard);
    let large = attrs.large_communities.iter().copied();
    let extended = attrs.ext_communities.iter().copied().map(ExtCommunity);
    standard
        .chain(large.map(AnyCommunity::Large))
        .chain(extended.map(AnyCommunity::Extended))
        .collect()
}

impl From<&PathAttrs> for AttrsInfo {
    fn from(attrs: &PathAttrs) -> Self {
        Self {
            next_hop: attrs.next_hop,
            origin: attrs.origin.to_string(),
            as_path: attrs.as_path.to_string(),
            local_pref: attrs.local_pref,
            med: attrs.med,
            only_to_customer: attrs.only_to_customer(),
            communities: communities(attrs),
            originator_id: attrs.originator_id,
            cluster_list: attrs.cluster_list.to_vec(),
        }
    }
}

/// Result of import and decision for a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "kebab-case")]
pub enum PathStatus {
    /// The path is used.
    Best {
        /// The rule that decided last.
        reason: BestPathReason,
    },
    /// Lost against the best path.
    Lost {
        /// The rule by which it lost.
        reason: BestPathReason,
        /// It is in the ECMP set all the same.
        multipath: bool,
    },
    /// Import has refused the path.
    Refused {
        /// Reason of the refusal.
        refusal: ImportRefusal,
        /// The filter that rejected it.
        by: Option<DecidedBy>,
        /// More words for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// There is no way to its next hop.
    Unreachable,
    /// Selection waits for the peers after a restart.
    Deferred,
}

impl PathStatus {
    /// A sentence for people.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Best { reason } => format!("best: {reason}"),
            Self::Lost {
                reason,
                multipath: false,
            } => format!("lost: the best has {reason}"),
            Self::Lost {
                reason,
                multipath: true,
            } => {
                format!("in the ECMP set; not the best: the best has {reason}")
            }
            Self::Refused {
                refusal,
                by,
                detail,
            } => {
                let by = by.as_ref().map(|by| format!(", {by}"));
                let detail = detail.as_ref().map(|words| format!(": {words}"));
                let more = [by, detail].into_iter().flatten().collect::<String>();
                format!("not used: {refusal}{more}")
            }
            Self::Unreachable => "not used: no route to the next hop".to_owned(),
            Self::Deferred => "selection waits for End-of-RIB of the peers".to_owned(),
        }
    }
}

/// A path of a destination, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteInfo {
    /// Destination of the path.
    pub prefix: Prefix,
    /// The peer that sent it; `None` for a route of ours.
    pub peer: Option<PeerName>,
    /// The identifier with which it was sent (RFC 7911).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_id: Option<u32>,
    /// The attributes: after import policy, or as received when refused.
    #[serde(flatten)]
    pub attrs: AttrsInfo,
    /// Kept while the peer restarts.
    pub stale: bool,
    /// Gateway and interface of the next hop, where they are tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub way: Option<ResolvedNextHop>,
    /// Result of the origin check, where there is one.
    #[serde(
        default,
        rename = "originCheck",
        skip_serializing_if = "Option::is_none"
    )]
    pub origin_check: Option<String>,
    /// Result of import and decision.
    #[serde(flatten)]
    pub status: PathStatus,
}

/// A route as it goes to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdvertisedRoute {
    /// Destination of the route.
    pub prefix: Prefix,
    /// The identifier with which the peer gets it (RFC 7911).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_id: Option<u32>,
    /// The attributes that the peer gets.
    #[serde(flatten)]
    pub attrs: AttrsInfo,
}

/// Whether the best path goes to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advertisement {
    /// The peer gets it, with these attributes.
    Sent(AttrsInfo),
    /// The peer does not get the route, for this reason.
    Withheld(Withheld),
}

/// Everything that is known about one prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The prefix in the table: the one asked for, or the longest that covers it. `None`: there is
    /// none.
    pub prefix: Option<Prefix>,
    /// All paths, the best first.
    pub paths: Vec<RouteInfo>,
    /// Advertisement to each established peer, by name.
    pub advertised: Vec<(PeerName, Advertisement)>,
    /// Route in the forwarding table.
    pub learned: Option<LearnedRoute>,
}

/// Counters of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerCounts {
    /// Prefixes in its Adj-RIB-In.
    pub received: usize,
    /// Number of received prefixes that import policy and loop checks let pass.
    pub accepted: usize,
    /// Prefixes advertised to it.
    pub advertised: usize,
    /// Routes of it are kept past the end of a session (RFC 4724 §4.2).
    pub stale: bool,
}

/// Counters of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RibCounts {
    /// Prefixes with at least one path.
    pub prefixes: usize,
    /// Number of paths in the table.
    pub paths: usize,
    /// Distinct attribute sets, unused ones that await a sweep included.
    pub attribute_sets: usize,
    /// Number of update groups with members.
    pub update_groups: usize,
}
