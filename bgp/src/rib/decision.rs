//! The decision process: RFC 4271 §9.1.2 with the tie-breaks of RFC 4456 §9.
//!
//! Paths have no total order: MULTI_EXIT_DISC is comparable only between paths from the same
//! neighbouring AS, so "better" is not transitive and sorting would make the answer depend on the
//! order of arrival. The process is therefore an elimination: each step looks at all paths that are
//! left and removes the losers at once.

use std::fmt;
use std::net::SocketAddr;

use foldhash::{HashMap, HashMapExt};
use serde::{Deserialize, Serialize};

use crate::attrs::Origin;
use crate::types::Asn;

/// Attributes of one path that the decision process compares (RFC 4271 §9.1.2.2). Only eligible
/// paths get here: accepted by policy, free of loops, next hop resolvable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The interface to the next hop has no carrier: a last resort.
    pub no_carrier: bool,
    /// Kept as a last resort (RFC 9494 §4.4).
    pub long_lived_stale: bool,
    /// The route is originated by this speaker.
    pub local: bool,
    /// How much routes of the peer are preferred; of our own, `local` says it.
    pub preference: u16,
    /// LOCAL_PREF, or the default.
    pub local_pref: u32,
    /// Length of the AS path; a set counts 1.
    pub as_path_len: usize,
    pub origin: Origin,
    /// MULTI_EXIT_DISC; 0 when absent, the lowest possible value (RFC 4271 §9.1.2.2 c).
    pub med: u32,
    /// The AS next to ours on the path; `None` stands for our own.
    pub neighbour_as: Option<Asn>,
    /// Learned from an external peer.
    pub external: bool,
    /// Interior cost to the next hop.
    pub metric: u32,
    /// ORIGINATOR_ID if present, else the peer's BGP Identifier, as an unsigned number.
    pub router_id: u32,
    /// Length of CLUSTER_LIST; 0 when absent.
    pub cluster_list_len: usize,
    /// The peer's address, and its port for peers that share one: with `path_id`, no two paths of a
    /// prefix have the same.
    pub address: SocketAddr,
    /// The identifier with which the peer sent it; 0 for peers that send one path.
    pub path_id: u32,
}

/// The rule by which a path lost, or by which the best path beat the last of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BestPathReason {
    /// There was no other path.
    OnlyPath,
    /// Paths over an interface with a carrier beat others.
    Carrier,
    /// Whatever is kept as a last resort loses (RFC 9494 §4.4).
    LongLivedStale,
    /// Routes that we originate beat learned ones.
    LocalOrigin,
    /// Highest preference of the peer.
    Preference,
    /// Highest LOCAL_PREF (RFC 4271 §9.1.1).
    LocalPref,
    /// Shortest AS_PATH (§9.1.2.2 a).
    AsPathLength,
    /// Lowest ORIGIN (§9.1.2.2 b).
    Origin,
    /// Lowest MULTI_EXIT_DISC within a neighbouring AS (§9.1.2.2 c).
    Med,
    /// External beats internal (§9.1.2.2 d).
    External,
    /// Lowest interior cost to NEXT_HOP (§9.1.2.2 e).
    IgpMetric,
    /// Lowest ORIGINATOR_ID or BGP Identifier (§9.1.2.2 f, RFC 4456 §9).
    RouterId,
    /// Shortest CLUSTER_LIST (RFC 4456 §9).
    ClusterListLength,
    /// Lowest peer address (§9.1.2.2 g).
    PeerAddress,
    /// Lowest path identifier, of several paths from one peer (RFC 7911 leaves it open).
    PathId,
}

impl fmt::Display for BestPathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OnlyPath => "only path",
            Self::Carrier => "an interface with carrier",
            Self::LongLivedStale => "no LLGR_STALE",
            Self::LocalOrigin => "own route before learned ones",
            Self::Preference => "higher preference of the peer",
            Self::LocalPref => "higher LOCAL_PREF",
            Self::AsPathLength => "shorter AS_PATH",
            Self::Origin => "lower ORIGIN",
            Self::Med => "lower MED from the same AS",
            Self::External => "external before internal",
            Self::IgpMetric => "lower metric to the next hop",
            Self::RouterId => "lower router id",
            Self::ClusterListLength => "shorter CLUSTER_LIST",
            Self::PeerAddress => "lower peer address",
            Self::PathId => "lower path identifier",
        })
    }
}

impl Candidate {
    /// Sort key of a path where MED counts between all paths: lower is better. It is no order of
    /// the decision process, in which MED counts within an AS.
    pub(super) fn rank(&self) -> impl Ord + use<> {
        (
            (self.no_carrier, self.long_lived_stale, !self.local),
            (u16::MAX - self.preference, u32::MAX - self.local_pref),
            (self.as_path_len, self.origin),
            (self.med, !self.external, self.metric, self.router_id),
            (self.cluster_list_len, self.address, self.path_id),
        )
    }
}

/// The outcome for a set of paths. Reused between decisions to save allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Index of the best path and the rule that decided last; `None` without paths.
    pub best: Option<(usize, BestPathReason)>,
    /// Indices of the paths as good as the best up to and including interior cost, the best
    /// included.
    pub multipath: Vec<usize>,
    /// Per path, the rule by which it lost; `None` for the best.
    pub lost: Vec<Option<BestPathReason>>,
}

impl Decision {
    /// Runs the decision process over `paths`, replacing the earlier outcome.
    pub(super) fn run(&mut self, paths: &[Candidate]) {
        self.multipath.clear();
        self.lost.clear();
        self.lost.resize(paths.len(), None);
        self.best = match paths.len() {
            0 => None,
            1 => {
                self.multipath.push(0);
                Some((0, BestPathReason::OnlyPath))
            }
            _ => Some(self.eliminate(paths)),
        };
    }

    fn eliminate(&mut self, paths: &[Candidate]) -> (usize, BestPathReason) {
        let mut last = BestPathReason::OnlyPath;
        self.keep_lowest(paths, &mut last, BestPathReason::Carrier, |p| p.no_carrier);
        self.keep_lowest(paths, &mut last, BestPathReason::LongLivedStale, |p| {
            p.long_lived_stale
        });
        self.keep_lowest(paths, &mut last, BestPathReason::LocalOrigin, |p| !p.local);
        // Nearly always all peers are alike.
        let first = paths.first().map(|path| path.preference);
        if paths.iter().any(|path| Some(path.preference) != first) {
            self.keep_lowest(paths, &mut last, BestPathReason::Preference, |p| {
                u16::MAX - p.preference
            });
        }
        self.keep_lowest(paths, &mut last, BestPathReason::LocalPref, |p| {
            u32::MAX - p.local_pref
        });
        self.keep_lowest(paths, &mut last, BestPathReason::AsPathLength, |p| {
            p.as_path_len
        });
        self.keep_lowest(paths, &mut last, BestPathReason::Origin, |p| p.origin);
        self.keep_lowest_med(paths, &mut last);
        self.keep_lowest(paths, &mut last, BestPathReason::External, |p| !p.external);
        self.keep_lowest(paths, &mut last, BestPathReason::IgpMetric, |p| p.metric);
        let left = (0..paths.len()).filter(|index| self.lost[*index].is_none());
        self.multipath.extend(left);
        self.keep_lowest(paths, &mut last, BestPathReason::RouterId, |p| p.router_id);
        self.keep_lowest(paths, &mut last, BestPathReason::ClusterListLength, |p| {
            p.cluster_list_len
        });
        self.keep_lowest(paths, &mut last, BestPathReason::PeerAddress, |p| p.address);
        self.keep_lowest(paths, &mut last, BestPathReason::PathId, |p| p.path_id);
        let best = self
            .lost
            .iter()
            .position(Option::is_none)
            .expect("each step keeps a path");
        (best, last)
    }

    /// Removes all paths whose key is not the lowest among those left.
    fn keep_lowest<K: Ord>(
        &mut self,
        paths: &[Candidate],
        last: &mut BestPathReason,
        reason: BestPathReason,
        key: impl Fn(&Candidate) -> K,
    ) {
        let left = paths
            .iter()
            .zip(&self.lost)
            .filter(|(_, lost)| lost.is_none());
        let Some(lowest) = left.map(|(path, _)| key(path)).min() else {
            return;
        };
        for (path, lost) in paths.iter().zip(&mut self.lost) {
            if lost.is_none() && key(path) > lowest {
                *lost = Some(reason);
                *last = reason;
            }
        }
    }

    /// Within each neighbouring AS, removes all paths whose MED is not the lowest.
    fn keep_lowest_med(&mut self, paths: &[Candidate], last: &mut BestPathReason) {
        let mut left = paths
            .iter()
            .zip(&self.lost)
            .filter(|(_, lost)| lost.is_none());
        let Some((first, _)) = left.next() else {
            return;
        };
        // Nearly always the MEDs are all equal: then nobody can lose.
        if left.all(|(path, _)| path.med == first.med) {
            return;
        }
        let mut lowest: HashMap<Option<Asn>, u32> = HashMap::new();
        for (path, _) in paths
            .iter()
            .zip(&self.lost)
            .filter(|(_, lost)| lost.is_none())
        {
            let med = lowest.entry(path.neighbour_as).or_insert(path.med);
            *med = path.med.min(*med);
        }
        for (path, lost) in paths.iter().zip(&mut self.lost) {
            if lost.is_none() && path.med > lowest[&path.neighbour_as] {
                *lost = Some(BestPathReason::Med);
                *last = BestPathReason::Med;
            }
        }
    }
}

#[cfg(test)]
mod tests;
