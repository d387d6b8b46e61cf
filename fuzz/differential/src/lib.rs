//! Content of a message in one form for three decoders: ours, `bgpkit-parser` and `routecore`.
//!
//! Each module reads octets with one decoder and writes down [`Facts`]. Nothing is corrected on the
//! way: where decoders differ for a reason, the reason is in the tests.

mod bgpkit;
mod ours;
mod routecore;

use std::collections::BTreeSet;

pub use bgpkit::read as bgpkit;
pub use ours::{clean, read as ours};
pub use routecore::read as routecore;

/// Result of the OPENs, as far as it changes the format of messages.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// AS numbers of four octets.
    pub four_octet_as: bool,
    /// Prefixes have path identifiers.
    pub path_ids: bool,
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Facts {
    Open {
        /// The AS of the two-octet field, or of the four-octet capability.
        asn: u32,
        /// Seconds.
        hold_time: u16,
        /// The BGP Identifier.
        router_id: [u8; 4],
        /// Codes of the capabilities, in order.
        capabilities: Vec<u8>,
    },
    Update(Box<Routes>),
    Notification {
        /// Code and subcode.
        code: (u8, u8),
        data: Vec<u8>,
    },
    Keepalive,
    /// ROUTE-REFRESH: AFI, subtype, SAFI.
    Refresh(u16, u8, u8),
}

/// A prefix with its path identifier.
pub type Nlri = (String, Option<u32>);

/// Content of an UPDATE.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// No longer reachable.
    pub withdrawn: BTreeSet<Nlri>,
    /// Reachable.
    pub announced: BTreeSet<Nlri>,
    /// The next hop of the IPv4 prefixes in the classic field.
    pub next_hop: Option<String>,
    /// The global next hop of MP_REACH_NLRI.
    pub mp_next_hop: Option<String>,
    pub origin: Option<u8>,
    /// AS_PATH: each segment with a letter, `+` a sequence, `*` a set. Sequences in a row are one.
    pub as_path: Vec<(char, Vec<u32>)>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    pub local_pref: Option<u32>,
    pub atomic_aggregate: bool,
    pub aggregator: Option<(u32, [u8; 4])>,
    pub communities: BTreeSet<u32>,
    /// EXTENDED COMMUNITIES; `None`: the decoder does not give their octets.
    pub extended: Option<BTreeSet<[u8; 8]>>,
    /// LARGE_COMMUNITY.
    pub large: BTreeSet<(u32, u32, u32)>,
    /// ORIGINATOR_ID.
    pub originator: Option<[u8; 4]>,
    /// CLUSTER_LIST.
    pub clusters: Vec<u32>,
}

impl Routes {
    /// Without what only prefixes that are announced have: a message that only withdraws may carry
    /// attributes, which mean nothing (RFC 4271 §4.3).
    #[must_use]
    pub fn meaning(self) -> Self {
        if self.announced.is_empty() {
            return Self {
                withdrawn: self.withdrawn,
                ..Self::default()
            };
        }
        self
    }
}

/// Appends a segment; two sequences in a row say the same as one (RFC 4271 §4.3).
fn push_segment(path: &mut Vec<(char, Vec<u32>)>, kind: char, asns: impl IntoIterator<Item = u32>) {
    match path.last_mut() {
        Some((last, before)) if *last == '+' && kind == '+' => before.extend(asns),
        _ => path.push((kind, asns.into_iter().collect())),
    }
    // RFC 4271 §4.3: a set has no order.
    if let Some(('*', set)) = path.last_mut() {
        set.sort_unstable();
        set.dedup();
    }
    if path.last().is_some_and(|(_, asns)| asns.is_empty()) {
        path.pop();
    }
}
