//! The next-hop table follows the underlay and the routes, and the routes follow it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use caracal_model::net::underlay::Underlay;
use caracal_model::net::{Family, Prefix};
use foldhash::HashMap;

use super::graph::{Branch, Graph, Node};
use super::{Moved, NextHopChange, NextHopTable, Resolution, slot};
use crate::rib::jobs::Kind;
use crate::rib::select::unresolved_candidate;
use crate::rib::table::{Dest, DestId, Table};
use crate::rib::{Changes, PeerId, PeerState, Rib};

/// How often a call follows what followed from what it did; the rest is left for [`Rib::work`].
const ROUNDS: usize = 4;

impl NextHopTable {
    /// The destinations that a next hop lies in and that count before its range of the underlay.
    fn covering(&self, next_hop: IpAddr, own_len: Option<u8>, table: &Table) -> Vec<Prefix> {
        let least = own_len.map_or(0, |len| len + 1);
        let lens = (least..=Family::of(next_hop).bits()).rev();
        let all = lens.filter(|len| table.has_len(Family::of(next_hop), *len));
        let prefixes = all.map(|len| Prefix::truncated(next_hop, len));
        let there = |prefix: &Prefix| {
            let found = table.find(prefix);
            found.is_some_and(|id| !table.get(id).paths().is_empty())
        };
        let leads = |prefix: &Prefix| {
            let mut pods = self.underlay.not_through.iter();
            !pods.any(|range| range.covers(prefix))
        };
        prefixes.filter(|p| there(p) && leads(p)).collect()
    }
}

impl Rib {
    /// Says over what next hops are reached. Replaces what was said before.
    pub fn set_underlay(&mut self, now: Instant, underlay: Underlay) -> Changes {
        if underlay != self.next_hops.underlay {
            self.change_underlay(underlay);
        }
        self.finish(now, Changes::default())
    }

    fn change_underlay(&mut self, underlay: Underlay) {
        let table = &mut self.next_hops;
        let was = !table.underlay.routes.is_empty();
        let is = !underlay.routes.is_empty();
        let mut lens = [BTreeSet::new(), BTreeSet::new()];
        for range in underlay.routes.keys() {
            lens[slot(range.family())].insert(range.len());
        }
        table.lens = lens.map(|lens| lens.into_iter().rev().collect());
        table.underlay = underlay;
        table.new = table.order.clone();
        for next_hop in table.order.iter().copied().collect::<Vec<_>>() {
            let (own, own_len) = table.look_up(next_hop);
            if let Some(entry) = table.entries.get_mut(&next_hop) {
                (entry.own, entry.own_len) = (own, own_len);
            }
        }
        if !(was && is) {
            let all = NextHopChange {
                all: true,
                ..NextHopChange::default()
            };
            self.queue(Kind::NextHops(Box::new(all)));
            self.interfaces_moved();
        }
        if !is {
            // Nothing is asked of the entries now.
            self.next_hops.new.clear();
            self.next_hops.stale.clear();
            self.next_hops.apart.clear();
            self.next_hops.recursive.clear();
            for (next_hop, entry) in &mut self.next_hops.entries {
                entry.covering.clear();
                entry.now = Resolution::of(*next_hop, entry.own.clone());
            }
        }
    }

    /// Begins what follows from what has happened, until nothing more does.
    pub(in crate::rib) fn follow(&mut self, changes: &mut Changes) {
        for _ in 0..ROUNDS {
            self.resolve_again();
            if !self.begin_jobs(changes) {
                return;
            }
        }
    }

    /// Resolves the next hops again that may be reached otherwise than before.
    pub(in crate::rib) fn resolve_again(&mut self) {
        let table = &mut self.next_hops;
        if table.new.is_empty() && table.stale.is_empty() {
            return;
        }
        let mut again = std::mem::take(&mut table.new);
        for prefix in std::mem::take(&mut table.stale) {
            again.extend(table.inside(&prefix));
        }
        for next_hop in &again {
            let Some(entry) = self.next_hops.entries.get(next_hop) else {
                continue;
            };
            let covering = self
                .next_hops
                .covering(*next_hop, entry.own_len, &self.table);
            let table = &mut self.next_hops;
            match covering.is_empty() {
                true => table.recursive.remove(next_hop),
                false => table.recursive.insert(*next_hop),
            };
            if let Some(entry) = table.entries.get_mut(next_hop) {
                entry.covering = covering;
            }
        }
        let (graph, places) = self.next_hop_graph();
        again.extend(&self.next_hops.recursive);
        let moved = self.take_over(&graph, &places, &again);
        self.take_apart(&graph);
        if moved.is_empty() {
            return;
        }
        let gateways = moved.values().any(|moved| moved.gateway);
        let change = NextHopChange {
            moved,
            ..NextHopChange::default()
        };
        self.queue(Kind::NextHops(Box::new(change)));
        if gateways {
            self.interfaces_moved();
        }
    }

    /// The destinations that next hops lie in, solved, and the place of each.
    fn next_hop_graph(&self) -> (Graph, HashMap<Prefix, usize>) {
        let table = &self.next_hops;
        let mut places: HashMap<Prefix, usize> = HashMap::default();
        let mut graph = Graph::default();
        for next_hop in &table.recursive {
            let covering = table.entries.get(next_hop).map(|entry| &entry.covering);
            for prefix in covering.into_iter().flatten() {
                if !places.contains_key(prefix) {
                    places.insert(*prefix, graph.nodes.len());
                    graph.nodes.push(self.node(*prefix));
                }
            }
        }
        for at in 0..graph.nodes.len() {
            for branch in &mut graph.nodes[at].branches {
                let covering = table.entries.get(&branch.next_hop).map(|e| &e.covering);
                let covering = covering.into_iter().flatten();
                let through = covering.filter_map(|prefix| places.get(prefix).copied());
                branch.through = through.filter(|to| *to != at).collect();
            }
        }
        graph.solve();
        (graph, places)
    }

    /// A destination with the paths of peers. One that we announce ourselves leads to nobody.
    fn node(&self, prefix: Prefix) -> Node {
        let dest = self.table.find(&prefix).map(|id| self.table.get(id));
        let is_ours = |dest: &&Dest| {
            let mut paths = dest.paths().iter();
            paths.any(|path| path.peer == PeerId::LOCAL && path.accepted().is_some())
        };
        let paths = dest.filter(|dest| !is_ours(dest)).map(Dest::paths);
        let branch = |path| {
            let (candidate, next_hop) = unresolved_candidate(path, &self.peers)?;
            let entry = self.next_hops.entries.get(&next_hop?)?;
            Some(Branch::new(candidate, next_hop?, entry.own.clone()))
        };
        Node {
            prefix,
            branches: paths.into_iter().flatten().filter_map(branch).collect(),
            best: None,
        }
    }

    /// Writes down how these next hops are reached. The result: what is another.
    fn take_over(
        &mut self,
        graph: &Graph,
        places: &HashMap<Prefix, usize>,
        again: &BTreeSet<IpAddr>,
    ) -> HashMap<IpAddr, Moved> {
        let mut moved = HashMap::default();
        for next_hop in again {
            let Some(entry) = self.next_hops.entries.get_mut(next_hop) else {
                continue;
            };
            let through = entry.covering.iter().filter_map(|prefix| {
                let at = places.get(prefix)?;
                graph.nodes[*at].leads_to(*next_hop)
            });
            let resolved = through.chain(entry.own.clone()).next();
            if resolved != entry.now.resolved {
                let now = Resolution::of(*next_hop, resolved);
                let what = now.moved(&entry.now);
                entry.now = now;
                if what.is_any() {
                    moved.insert(*next_hop, what);
                }
            }
        }
        moved
    }

    /// Writes down where a path's next hop is reached otherwise than that of others.
    fn take_apart(&mut self, graph: &Graph) {
        let mut apart = BTreeMap::new();
        for node in &graph.nodes {
            for branch in &node.branches {
                let Some(entry) = self.next_hops.entries.get(&branch.next_hop) else {
                    continue;
                };
                let resolved = graph.resolve(branch);
                if !branch.is_beaten() && resolved != entry.now.resolved {
                    let resolution = Resolution::of(branch.next_hop, resolved);
                    apart.insert((node.prefix, branch.next_hop), resolution);
                }
            }
        }
        let old = std::mem::replace(&mut self.next_hops.apart, apart);
        if old == self.next_hops.apart {
            return;
        }
        let new = &self.next_hops.apart;
        let both: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        let others = both.into_iter().filter(|key| old.get(key) != new.get(key));
        let prefixes: BTreeSet<Prefix> = others.map(|(prefix, _)| *prefix).collect();
        for prefix in prefixes {
            if let Some(id) = self.table.find(&prefix) {
                self.table.get_mut(id).touched = true;
                self.mark(id);
            }
        }
    }

    /// Where policy asks for the interface, it runs again.
    fn interfaces_moved(&mut self) {
        let asks = |id: &PeerId| {
            let peer = self.peers.get(*id);
            peer.is_some_and(PeerState::import_asks_for_interface)
        };
        let again: BTreeSet<PeerId> = self.peers.ids().into_iter().filter(asks).collect();
        self.import_again(again);
    }

    pub(in crate::rib) fn begin_following(&mut self, change: &mut NextHopChange) {
        change.began = self.next_hops.clock;
        self.next_hops.clock += 1;
    }

    /// A destination follows the next hops of its paths.
    pub(in crate::rib) fn follow_next_hops(&mut self, id: DestId, change: &mut NextHopChange) {
        let dest = self.table.get(id);
        let mut what = Moved::default();
        for path in dest.paths().iter().filter(|p| p.peer != PeerId::LOCAL) {
            let Some(next_hop) = path.received.next_hop else {
                continue;
            };
            change.seen.insert(next_hop);
            if path.accepted().is_some() {
                let moved = change.moved.get(&next_hop).copied().unwrap_or_default();
                what = what.or(moved);
                what.cost |= change.all;
                what.gateway |= change.all;
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

    pub(in crate::rib) fn end_following(&mut self, change: &NextHopChange) {
        self.next_hops.sweep(change);
    }

    /// Looks for next hops that nobody uses any more, when there may be many.
    pub(in crate::rib) fn tidy_next_hops(&mut self) {
        if self.next_hops.is_overgrown() {
            self.next_hops.used = usize::MAX / 4;
            self.queue(Kind::NextHops(Box::default()));
        }
    }
}
