//! What the table would miss without some peers: asked before sessions are given up on purpose, so
//! that they go only after others have taken their place.

use std::collections::BTreeSet;
use std::ops::Range;

use caracal_model::net::Prefix;
use serde::{Deserialize, Serialize};

use super::{PeerId, Rib};
use crate::types::PeerName;

/// What keeps peers from being given up. Empty: nothing would be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parting {
    /// Peers that stay and have not sent End-of-RIB in an established session (RFC 4724 §2), by
    /// name.
    pub incomplete: Vec<PeerName>,
    /// Prefixes to which only the peers that go have a path, sorted.
    pub uncovered: Vec<Prefix>,
}

impl Rib {
    /// What would be missing if the peers in `going` went now. A stale path covers nothing: its own
    /// peer has gone already.
    #[must_use]
    pub fn parting(&self, going: &BTreeSet<PeerName>) -> Parting {
        self.parting_at(going, 0..self.slots())
    }

    /// The same with the prefixes at some slots of the table.
    #[must_use]
    pub fn parting_at(&self, going: &BTreeSet<PeerName>, slots: Range<usize>) -> Parting {
        let leaves: BTreeSet<PeerId> = going
            .iter()
            .filter_map(|name| self.peers.id(name))
            .collect();
        let incomplete = self
            .peers
            .iter()
            .filter(|(id, _)| !leaves.contains(id))
            .filter(|(_, peer)| !(peer.up && peer.unfinished.is_empty()))
            .map(|(_, peer)| peer.name.clone())
            .collect();
        let mut uncovered: Vec<Prefix> = Vec::new();
        for (_, dest) in self.table.at(slots) {
            let accepted = || dest.paths().iter().filter(|path| path.accepted().is_some());
            let lost = accepted().any(|path| leaves.contains(&self.peers.paths.owner(path.peer)));
            let covered = || {
                accepted().any(|path| {
                    !path.stale.is_kept() && !leaves.contains(&self.peers.paths.owner(path.peer))
                })
            };
            if lost && !covered() {
                uncovered.push(dest.prefix);
            }
        }
        uncovered.sort_unstable();
        Parting {
            incomplete,
            uncovered,
        }
    }
}
