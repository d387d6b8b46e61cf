//! The routes that the table would lose without some peers: asked before a transition removes
//! sessions, so that they are removed only after others have replaced them.

use std::collections::BTreeSet;
use std::ops::Range;

use caracal_model::Prefix;
use serde::{Deserialize, Serialize};

use super::{PeerId, Rib};
use crate::types::PeerName;

/// Routes that would be lost if sessions were removed. Empty: no route would be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalImpact {
    /// Peers that stay and have not sent End-of-RIB yet (RFC 4724 §2), by name.
    pub incomplete: Vec<PeerName>,
    /// Prefixes to which only removed peers have a path, sorted.
    pub uncovered: Vec<Prefix>,
}

impl Rib {
    /// Routes that would be lost if the peers in `removed` were removed now. A stale path replaces
    /// no other: its own peer is gone already.
    #[must_use]
    pub fn removal_impact(&self, removed: &BTreeSet<PeerName>) -> RemovalImpact {
        self.removal_impact_at(removed, 0..self.slots())
    }

    /// The same for some slots of the table.
    #[must_use]
    pub fn removal_impact_at(
        &self,
        removed: &BTreeSet<PeerName>,
        slots: Range<usize>,
    ) -> RemovalImpact {
        let gone: BTreeSet<PeerId> = removed
            .iter()
            .filter_map(|name| self.peers.id(name))
            .collect();
        let incomplete = self
            .peers
            .iter()
            .filter(|(id, _)| !gone.contains(id))
            .filter(|(_, peer)| !(peer.up && peer.unfinished.is_empty()))
            .map(|(_, peer)| peer.name.clone())
            .collect();
        let mut uncovered: Vec<Prefix> = Vec::new();
        for (_, dest) in self.table.at(slots) {
            let accepted = || dest.paths().iter().filter(|path| path.accepted().is_some());
            let lost = accepted().any(|path| gone.contains(&self.peers.paths.owner(path.peer)));
            let covered = || {
                accepted().any(|path| {
                    !path.stale.is_kept() && !gone.contains(&self.peers.paths.owner(path.peer))
                })
            };
            if lost && !covered() {
                uncovered.push(dest.prefix);
            }
        }
        uncovered.sort_unstable();
        RemovalImpact {
            incomplete,
            uncovered,
        }
    }
}
