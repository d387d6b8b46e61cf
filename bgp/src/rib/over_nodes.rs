//! Routes over nodes: a default route, their network, a host route to one. From a peer such a route
//! is taken only where an import rule names its range, for it leads what pods send, and what nodes
//! send each other, another way (decision 0161).

use std::sync::Arc;

use caracal_model::Prefix;

use super::import::ImportRefusal;
use super::screen::Screen;
use super::{PeerId, Rib};
use crate::attrs::PathAttrs;
use crate::origin::OriginMode;
use crate::types::PeerName;

impl Screen {
    /// More words for people about a route over nodes.
    pub(super) fn over_nodes_detail(
        &self,
        prefix: &Prefix,
        received: &PathAttrs,
    ) -> Option<String> {
        let (address, node) = self.origins.taken(prefix, received)?;
        Some(format!(
            "{address} is {node}'s; an import rule of action Accept with cidr {prefix} would admit it"
        ))
    }
}

impl Rib {
    /// True when a route is refused because it covers nodes and no import rule names its range.
    /// What a filter rejects anyhow is not this rule's.
    pub(super) fn is_refused_over_nodes(
        &mut self,
        from: PeerId,
        prefix: Prefix,
        received: &Arc<PathAttrs>,
    ) -> bool {
        let origins = &self.screen.origins;
        if !origins.is_over_owners(&prefix) {
            return false;
        }
        let (taken, stale) = (origins.taken(&prefix, received), origins.is_stale());
        let log_only = origins.mode() == OriginMode::Log;
        // The verdict follows from the next hop, and from how fresh the data is.
        self.screen.by_source.insert(prefix);
        if taken.is_none() || stale && self.is_in_force(from, prefix, received) {
            return false;
        }
        let Some(peer) = self.peers.get(from) else {
            return false;
        };
        if self.names(peer, prefix, received) != Some(false) {
            return false;
        }
        let name = peer.name.clone();
        self.screen.counts.violations += 1;
        self.screen.last_violation = Some((prefix, name));
        if !log_only {
            self.screen.over_nodes.insert(prefix);
        }
        !log_only
    }

    /// Some route that is refused because it covers nodes, and who sent it.
    pub(super) fn first_over_nodes(&self) -> Option<(Prefix, PeerName)> {
        self.screen.over_nodes.iter().find_map(|prefix| {
            let id = self.table.find(prefix)?;
            let mut paths = self.table.get(id).paths().iter();
            let refused = paths.find(|path| path.refusal() == Some(ImportRefusal::OverNodes))?;
            Some((*prefix, self.peers.get(refused.peer)?.name.clone()))
        })
    }
}
