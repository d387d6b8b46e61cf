//! How the next-hop table is resolved again: what of it depends on which destinations.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, Prefix, Underlay};
use foldhash::HashMap;

use super::graph::{Branch, Graph, Node};
use super::{Moved, NextHopChange, NextHopTable, Resolution};
use crate::rib::decision::Candidate;
use crate::rib::families::slot;

impl NextHopTable {
    /// Renode_of the underlay. The result says whether every next hop has moved: somebody began to
    /// read the underlay, or ceased to.
    pub(in crate::rib) fn set_underlay(&mut self, underlay: Underlay) -> Option<NextHopChange> {
        let was = !self.underlay.routes.is_empty();
        let is = !underlay.routes.is_empty();
        let mut lens = [BTreeSet::new(), BTreeSet::new()];
        for range in underlay.routes.keys() {
            lens[slot(range.family())].insert(range.len());
        }
        self.lens = lens.map(|lens| lens.into_iter().rev().collect());
        self.underlay = underlay;
        self.new = self.order.clone();
        for next_hop in self.order.iter().copied().collect::<Vec<_>>() {
            let (own, own_len) = self.look_up(next_hop);
            if let Some(entry) = self.entries.get_mut(&next_hop) {
                (entry.own, entry.own_len) = (own, own_len);
            }
        }
        if !is {
            self.forget_routes();
        }
        (!(was && is)).then(|| NextHopChange {
            all: true,
            ..NextHopChange::default()
        })
    }

    /// Nothing is asked of the entries now.
    fn forget_routes(&mut self) {
        self.new.clear();
        self.stale.clear();
        self.apart.clear();
        self.recursive.clear();
        for (next_hop, entry) in &mut self.entries {
            entry.covering.clear();
            entry.now = Resolution::new(*next_hop, entry.own.clone());
        }
    }

    /// Takes the next hops that may be resolved otherwise than before; `None`: nothing has changed.
    pub(in crate::rib) fn take_changed(&mut self) -> Option<BTreeSet<IpAddr>> {
        if self.new.is_empty() && self.stale.is_empty() {
            return None;
        }
        let mut again = std::mem::take(&mut self.new);
        for prefix in std::mem::take(&mut self.stale) {
            again.extend(self.inside(&prefix));
        }
        Some(again)
    }

    /// Finds the destinations that contain a next hop and count before its range of the underlay.
    /// `has_paths` says which lengths and destinations there are.
    pub(in crate::rib) fn cover(
        &mut self,
        next_hop: IpAddr,
        has_len: impl Fn(Family, u8) -> bool,
        has_paths: impl Fn(&Prefix) -> bool,
    ) {
        let Some(entry) = self.entries.get_mut(&next_hop) else {
            return;
        };
        let family = Family::of(next_hop);
        let least = entry.own_len.map_or(0, |len| len + 1);
        let leads = |prefix: &Prefix| {
            let mut pods = self.underlay.not_through.iter();
            !pods.any(|range| range.covers(prefix))
        };
        entry.covering = (least..=family.bits())
            .rev()
            .filter(|len| has_len(family, *len))
            .map(|len| Prefix::truncated(next_hop, len))
            .filter(|prefix| has_paths(prefix) && leads(prefix))
            .collect();
        match entry.covering.is_empty() {
            true => self.recursive.remove(&next_hop),
            false => self.recursive.insert(next_hop),
        };
    }

    /// A path as the graph of destinations has it; `None`: its next hop is not tracked.
    pub(in crate::rib) fn branch(&self, candidate: Candidate, next_hop: IpAddr) -> Option<Branch> {
        let entry = self.entries.get(&next_hop)?;
        Some(Branch::new(candidate, next_hop, entry.own.clone()))
    }

    /// Resolves these next hops, and those that lie in some destination. The result: which moved,
    /// and the destinations whose own paths are resolved otherwise than before.
    pub(in crate::rib) fn resolve(
        &mut self,
        mut again: BTreeSet<IpAddr>,
        node: impl Fn(&Self, Prefix) -> Node,
    ) -> (NextHopChange, BTreeSet<Prefix>) {
        let (graph, node_of) = self.graph(node);
        again.extend(&self.recursive);
        let change = NextHopChange {
            moved: self.take_over(&graph, &node_of, &again),
            ..NextHopChange::default()
        };
        (change, self.take_apart(&graph))
    }

    /// The destinations that next hops lie in, solved, and the node of each.
    fn graph(&self, node: impl Fn(&Self, Prefix) -> Node) -> (Graph, HashMap<Prefix, usize>) {
        let mut node_of: HashMap<Prefix, usize> = HashMap::default();
        let mut graph = Graph::default();
        for next_hop in &self.recursive {
            let covering = self.entries.get(next_hop).map(|entry| &entry.covering);
            for prefix in covering.into_iter().flatten() {
                if !node_of.contains_key(prefix) {
                    node_of.insert(*prefix, graph.nodes.len());
                    graph.nodes.push(node(self, *prefix));
                }
            }
        }
        for at in 0..graph.nodes.len() {
            for branch in &mut graph.nodes[at].branches {
                let covering = self.entries.get(&branch.next_hop).map(|e| &e.covering);
                let covering = covering.into_iter().flatten();
                let through = covering.filter_map(|prefix| node_of.get(prefix).copied());
                branch.through = through.filter(|to| *to != at).collect();
            }
        }
        graph.solve();
        (graph, node_of)
    }

    /// Writes down how these next hops are reached. The result: what is another.
    fn take_over(
        &mut self,
        graph: &Graph,
        node_of: &HashMap<Prefix, usize>,
        again: &BTreeSet<IpAddr>,
    ) -> HashMap<IpAddr, Moved> {
        let mut moved = HashMap::default();
        for next_hop in again {
            let Some(entry) = self.entries.get_mut(next_hop) else {
                continue;
            };
            let through = entry.covering.iter().filter_map(|prefix| {
                let at = node_of.get(prefix)?;
                graph.nodes[*at].leads_to(*next_hop)
            });
            let resolved = through.chain(entry.own.clone()).next();
            if resolved != entry.now.resolved {
                let now = Resolution::new(*next_hop, resolved);
                let what = now.moved(&entry.now);
                entry.now = now;
                if what.is_any() {
                    moved.insert(*next_hop, what);
                }
            }
        }
        moved
    }

    /// Writes down where a path's next hop is reached otherwise than that of others. The result:
    /// the destinations where this is another.
    fn take_apart(&mut self, graph: &Graph) -> BTreeSet<Prefix> {
        let mut apart = BTreeMap::new();
        for node in &graph.nodes {
            for branch in &node.branches {
                let Some(entry) = self.entries.get(&branch.next_hop) else {
                    continue;
                };
                let resolved = graph.resolve(branch);
                if !branch.is_beaten() && resolved != entry.now.resolved {
                    let resolution = Resolution::new(branch.next_hop, resolved);
                    apart.insert((node.prefix, branch.next_hop), resolution);
                }
            }
        }
        let old = std::mem::replace(&mut self.apart, apart);
        let new = &self.apart;
        let both = old.keys().chain(new.keys());
        both.filter(|key| old.get(key) != new.get(key))
            .map(|(prefix, _)| *prefix)
            .collect()
    }
}
