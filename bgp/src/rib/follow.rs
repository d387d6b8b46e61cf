//! The next-hop table follows the underlay and the routes, and the routes follow it.

use std::collections::BTreeSet;
use std::time::Instant;

use caracal_model::{Prefix, Underlay};

use super::dest_id::DestId;
use super::jobs::JobKind;
use super::next_hops::{Moved, NextHopChange, NextHopTable, Node};
use super::peers::Peers;
use super::select::unresolved_candidate;
use super::table::{Dest, Path, Table};
use super::{Changes, PeerId, Rib};

/// Rounds of a call that follows its own changes; the rest is left for [`Rib::work`].
const ROUNDS: usize = 4;

impl Rib {
    /// Says over what next hops are reached. Replaces what was said before.
    pub fn set_underlay(&mut self, now: Instant, underlay: Underlay) -> Changes {
        if underlay != *self.next_hops.underlay()
            && let Some(all) = self.next_hops.set_underlay(underlay)
        {
            self.queue(JobKind::NextHops(Box::new(all)));
            self.interfaces_moved();
        }
        self.finish(now, Changes::default())
    }

    /// Begins what follows from what has happened, until nothing more does.
    pub(super) fn follow(&mut self, changes: &mut Changes) {
        for _ in 0..ROUNDS {
            self.resolve_again();
            if !self.begin_jobs(changes) {
                return;
            }
        }
    }

    /// Resolves the next hops again that may be reached otherwise than before.
    pub(super) fn resolve_again(&mut self) {
        let Some(again) = self.next_hops.take_changed() else {
            return;
        };
        let (table, peers) = (&self.table, &self.peers);
        let has_paths = |prefix: &Prefix| {
            let found = table.find(prefix);
            found.is_some_and(|id| !table.get(id).paths().is_empty())
        };
        for next_hop in &again {
            let has_len = |family, len| table.has_len(family, len);
            self.next_hops.cover(*next_hop, has_len, has_paths);
        }
        let node = |next_hops: &NextHopTable, prefix| node(table, peers, next_hops, prefix);
        let (change, apart) = self.next_hops.resolve(again, node);
        for prefix in apart {
            if let Some(id) = self.table.find(&prefix) {
                self.table.get_mut(id).touched = true;
                self.mark(id);
            }
        }
        if change.is_empty() {
            return;
        }
        let gateways = change.has_gateways();
        self.queue(JobKind::NextHops(Box::new(change)));
        if gateways {
            self.interfaces_moved();
        }
    }

    /// Runs policy again where it asks for the interface or the gateway of a route.
    fn interfaces_moved(&mut self) {
        let asks = |id: &PeerId| {
            let peer = self.peers.get(*id);
            peer.is_some_and(|peer| peer.import_asks().way)
        };
        let again: BTreeSet<PeerId> = self.peers.ids().into_iter().filter(asks).collect();
        self.import_again(again);
    }

    /// A destination follows the next hops of its paths.
    pub(super) fn follow_next_hops(&mut self, id: DestId, change: &mut NextHopChange) {
        let dest = self.table.get(id);
        let mut what = Moved::default();
        for next_hop in self.next_hops.own_hops(&dest.prefix) {
            what = what.or(change.meet(next_hop));
        }
        for path in dest.paths().iter().filter(|p| p.peer != PeerId::LOCAL) {
            let Some(next_hop) = path.received.way() else {
                continue;
            };
            let moved = change.meet(next_hop);
            if path.accepted().is_some() {
                what = what.or(moved);
            }
        }
        if what.gateway {
            // No other path may win, and still the route leads elsewhere, and export policy has to
            // look again.
            self.table.get_mut(id).touched = true;
        }
        if what.is_any() {
            self.mark(id);
        }
    }

    /// Looks for next hops that nobody uses any more, when there may be many.
    pub(super) fn tidy_next_hops(&mut self) {
        if self.next_hops.is_overgrown() {
            self.next_hops.expect_sweep();
            self.queue(JobKind::NextHops(Box::default()));
        }
    }
}

/// A destination with the paths of peers. One that we announce ourselves leads where our route
/// does, or to nobody.
fn node(table: &Table, peers: &Peers, next_hops: &NextHopTable, prefix: Prefix) -> Node {
    let dest = table.find(&prefix).map(|id| table.get(id));
    let ours = |path: &&Path| path.peer == PeerId::LOCAL && path.accepted().is_some();
    let counts = next_hops.has_own_way(&prefix);
    let is_ours = counts && dest.is_some_and(|dest| dest.paths().iter().any(|p| ours(&p)));
    let own_hop = next_hops.own_first(&prefix).filter(|_| is_ours);
    let paths = dest.into_iter().flat_map(Dest::paths);
    let branch = |path: &Path| {
        let (candidate, next_hop) = unresolved_candidate(path, peers)?;
        let next_hop = next_hop.or(own_hop);
        next_hops.branch(candidate, next_hop?)
    };
    let paths = paths.filter(|path| !is_ours || ours(path));
    Node::new(prefix, paths.filter_map(branch).collect())
}
