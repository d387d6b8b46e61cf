//! The best-path run of a destination: from its paths to their ranks.

use std::net::IpAddr;

use caracal_model::Prefix;

use super::decision::{Candidate, Decision};
use super::next_hops::NextHopTable;
use super::peers::Peers;
use super::table::{Dest, Path, Rank};
use super::{DEFAULT_LOCAL_PREF, PeerId};
use crate::policy::PeerKind;
use crate::types::Community;

/// The decision process with its scratch space.
#[derive(Debug, Default)]
pub(super) struct Selector {
    candidates: Vec<Candidate>,
    /// For each candidate, the index of its path.
    index: Vec<usize>,
    ranks: Vec<Rank>,
    decision: Decision,
}

/// A path as the decision process sees it; `None` when it is not eligible.
pub(super) fn candidate(
    prefix: &Prefix,
    path: &Path,
    peers: &Peers,
    next_hops: &NextHopTable,
) -> Option<Candidate> {
    let (candidate, next_hop) = unresolved_candidate(path, peers)?;
    let Some(next_hop) = next_hop else {
        return next_hops.has_own_way(prefix).then_some(candidate);
    };
    let cost = next_hops.cost(&next_hop, prefix)?;
    Some(Candidate {
        no_carrier: !cost.carrier,
        metric: cost.metric,
        ..candidate
    })
}

/// The same without what its next hop adds, and the next hop that has to be resolved, if any.
pub(super) fn unresolved_candidate(
    path: &Path,
    peers: &Peers,
) -> Option<(Candidate, Option<IpAddr>)> {
    let attrs = path.accepted()?;
    // Sorted, and LLGR_STALE is nearly the highest there is: a look at the last answers for most.
    let last = attrs.communities.last();
    let may_be_stale = last.is_some_and(|last| *last >= Community::LLGR_STALE);
    let common = Candidate {
        no_carrier: false,
        long_lived_stale: may_be_stale
            && attrs
                .communities
                .binary_search(&Community::LLGR_STALE)
                .is_ok(),
        local: true,
        preference: 0,
        local_pref: attrs.local_pref.unwrap_or(DEFAULT_LOCAL_PREF),
        as_path_len: attrs.as_path.path_len(),
        origin: attrs.origin,
        med: attrs.med.unwrap_or(0),
        neighbour_as: attrs.as_path.first_as(),
        external: false,
        metric: 0,
        router_id: 0,
        cluster_list_len: attrs.cluster_list.len(),
        address: ([0, 0, 0, 0], 0).into(),
        path_id: 0,
    };
    if path.peer == PeerId::LOCAL {
        return Some((common, None));
    }
    let peer = peers.get(path.peer)?;
    let session = peer.session.as_ref()?;
    let candidate = Candidate {
        local: false,
        preference: peer.config.preference,
        external: peer.kind() == PeerKind::External,
        router_id: attrs.originator_id.unwrap_or(session.router_id).number(),
        address: peer.address(),
        path_id: peers.paths.path_id(path.peer).unwrap_or_default(),
        ..common
    };
    Some((candidate, Some(attrs.way()?)))
}

/// True when there is a [`candidate`]; which one does not matter to a path that has no rival.
fn is_eligible(prefix: &Prefix, path: &Path, peers: &Peers, next_hops: &NextHopTable) -> bool {
    let Some(attrs) = path.accepted() else {
        return false;
    };
    let reached = |next_hop| next_hops.cost(&next_hop, prefix).is_some();
    let has_session = |peer: PeerId| peers.get(peer).is_some_and(|peer| peer.session.is_some());
    match path.peer {
        PeerId::LOCAL => next_hops.has_own_way(prefix),
        peer => has_session(peer) && attrs.way().is_some_and(reached),
    }
}

impl Selector {
    /// Ranks the paths of a destination. True when something that the last decision used is gone or
    /// another path is in use now.
    pub(super) fn decide(
        &mut self,
        dest: &mut Dest,
        peers: &Peers,
        next_hops: &NextHopTable,
    ) -> bool {
        let prefix = dest.prefix;
        if let [path] = dest.paths_mut() {
            let rank = if is_eligible(&prefix, path, peers, next_hops) {
                Rank::Best
            } else {
                Rank::None
            };
            let other = std::mem::replace(&mut path.rank, rank) != rank;
            return std::mem::take(&mut dest.touched) || other;
        }
        if dest.paths().is_empty() {
            return std::mem::take(&mut dest.touched);
        }
        self.candidates.clear();
        self.index.clear();
        self.ranks.clear();
        self.ranks.resize(dest.paths().len(), Rank::None);
        for (index, path) in dest.paths().iter().enumerate() {
            if let Some(candidate) = candidate(&prefix, path, peers, next_hops) {
                self.candidates.push(candidate);
                self.index.push(index);
            }
        }
        self.decision.run(&self.candidates);
        for equal in &self.decision.multipath {
            self.ranks[self.index[*equal]] = Rank::Equal;
        }
        if let Some((best, _)) = self.decision.best {
            self.ranks[self.index[best]] = Rank::Best;
        }
        let mut changed = std::mem::take(&mut dest.touched);
        for (path, rank) in dest.paths_mut().iter_mut().zip(&self.ranks) {
            changed |= std::mem::replace(&mut path.rank, *rank) != *rank;
        }
        changed
    }
}
