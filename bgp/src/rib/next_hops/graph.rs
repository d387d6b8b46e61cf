//! Which next hops are resolved through which of our own best routes, as a function of the present
//! paths alone.
//!
//! A destination that contains a next hop may lead to it. What its best path is depends on which of
//! its paths' next hops are resolved, and those may lie in other such destinations: a graph.
//! Destinations that depend on nothing but the underlay are decided first, then those that depend
//! on them (RFC 4271 §9.1.2.1: recursion).
//!
//! A path never resolves through its own destination. Where destinations depend on each other in a
//! circle, what cannot matter is left out first: a path that loses to a better one outside of the
//! circle, a shorter route behind a longer one that is there. What is left of the circle would be
//! mutually recursive routes, and no path resolves through any of them; the underlay, or a route
//! outside of the circle, may still lead to its next hop. So the outcome depends neither on the
//! order in which routes came nor on what was best before.

use std::net::IpAddr;

use caracal_model::Prefix;
use foldhash::HashMap;

use super::{Cost, ResolvedNextHop};
use crate::attrs::Origin;
use crate::rib::decision::{Candidate, Decision};

/// Criteria that come before the next hop's cost in the comparison: lower is better.
type CriteriaBeforeCost = (bool, u32, usize, Origin);

/// A path to a destination.
#[derive(Debug)]
pub(in crate::rib) struct Branch {
    /// As the decision process sees it, but for what the next hop adds.
    pub(super) candidate: Candidate,
    pub(super) next_hop: IpAddr,
    /// Resolution over the underlay alone.
    pub(super) own: Option<ResolvedNextHop>,
    /// Other destinations that contain the next hop and are longer than the range of the underlay,
    /// the longest first.
    pub(super) through: Vec<usize>,
    /// Another path of the destination beats it.
    beaten: bool,
}

impl Branch {
    pub(super) const fn new(
        candidate: Candidate,
        next_hop: IpAddr,
        own: Option<ResolvedNextHop>,
    ) -> Self {
        Self {
            candidate,
            next_hop,
            own,
            through: Vec::new(),
            beaten: false,
        }
    }

    /// True when it is left out, for it loses whatever its next hop adds.
    pub(super) const fn is_beaten(&self) -> bool {
        self.beaten
    }

    const fn rank(&self) -> CriteriaBeforeCost {
        let Candidate {
            long_lived_stale,
            local_pref,
            as_path_len,
            origin,
            ..
        } = self.candidate;
        (long_lived_stale, u32::MAX - local_pref, as_path_len, origin)
    }
}

/// A destination that some next hop lies in.
#[derive(Debug)]
pub(in crate::rib) struct Node {
    pub(super) prefix: Prefix,
    pub(super) branches: Vec<Branch>,
    /// Its best path, once that is found out.
    best: Option<Best>,
}

/// The best path to a destination.
#[derive(Debug)]
struct Best {
    next_hop: IpAddr,
    resolved: ResolvedNextHop,
}

impl Node {
    pub(in crate::rib) const fn new(prefix: Prefix, branches: Vec<Branch>) -> Self {
        Self {
            prefix,
            branches,
            best: None,
        }
    }

    /// Resolution of a next hop that lies in it; `None`: not through this one.
    pub(super) fn leads_to(&self, next_hop: IpAddr) -> Option<ResolvedNextHop> {
        let best = self.best.as_ref()?;
        let resolved = best.resolved.clone();
        Some(if best.next_hop == next_hop {
            // A route with this very next hop is no step on the way to it.
            resolved
        } else {
            resolved.behind(best.next_hop, self.prefix)
        })
    }
}

/// All destinations that next hops lie in.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
}

impl Graph {
    /// Finds out how what lies in each destination is reached.
    pub(super) fn solve(&mut self) {
        let mut sets = vec![(0..self.nodes.len()).collect::<Vec<_>>()];
        while let Some(set) = sets.pop() {
            if let [one] = set[..] {
                self.decide(one);
                continue;
            }
            let mut parts = self.components(&set);
            if parts.len() > 1 {
                parts.reverse();
                sets.extend(parts);
            } else if self.leave_out(&set) {
                sets.push(set);
            } else {
                self.cut(&set);
                for at in set {
                    self.decide(at);
                }
            }
        }
    }

    /// Resolution of a path's next hop, by what has been found out.
    pub(super) fn resolve(&self, branch: &Branch) -> Option<ResolvedNextHop> {
        let through = branch.through.iter();
        let found = through
            .filter_map(|at| self.nodes[*at].leads_to(branch.next_hop))
            .next();
        found.or_else(|| branch.own.clone())
    }

    fn decide(&mut self, at: usize) {
        let node = &self.nodes[at];
        let mut resolved = Vec::new();
        let mut candidates = Vec::new();
        for branch in node.branches.iter().filter(|branch| !branch.beaten) {
            let Some(found) = self.resolve(branch) else {
                continue;
            };
            let cost = Cost::from(&found);
            candidates.push(Candidate {
                metric: cost.metric,
                no_carrier: !cost.carrier,
                ..branch.candidate.clone()
            });
            resolved.push((branch.next_hop, found));
        }
        let mut decision = Decision::default();
        decision.run(&candidates);
        let best = decision.best.map(|(best, _)| resolved.swap_remove(best));
        self.nodes[at].best = best.map(|(next_hop, resolved)| Best { next_hop, resolved });
    }

    /// Leaves out what cannot matter in a circle. False: nothing.
    fn leave_out(&mut self, circle: &[usize]) -> bool {
        let inside = self.members(circle);
        let mut any = false;
        for at in circle {
            for n in 0..self.nodes[*at].branches.len() {
                any |= self.leave_out_shorter(*at, n, &inside);
            }
            let node = &self.nodes[*at];
            let sure = node.branches.iter().filter(|branch| {
                !branch.beaten
                    && !branch.through.iter().any(|to| inside[*to])
                    && self.resolve(branch).is_some_and(|found| found.carrier)
            });
            let Some(best) = sure.map(Branch::rank).min() else {
                continue;
            };
            for branch in &mut self.nodes[*at].branches {
                if !branch.beaten
                    && branch.through.iter().any(|to| inside[*to])
                    && branch.rank() > best
                {
                    branch.beaten = true;
                    branch.through.clear();
                    any = true;
                }
            }
        }
        any
    }

    /// Behind a route that is there no shorter one has a say.
    fn leave_out_shorter(&mut self, at: usize, n: usize, inside: &[bool]) -> bool {
        let through = &self.nodes[at].branches[n].through;
        let sure = |to: &usize| !inside[*to] && self.nodes[*to].best.is_some();
        let Some(first) = through.iter().position(sure) else {
            return false;
        };
        let any = through[first + 1..].iter().any(|to| inside[*to]);
        if any {
            self.nodes[at].branches[n].through.truncate(first + 1);
        }
        any
    }

    /// No path resolves through a destination of the circle that it is in.
    fn cut(&mut self, circle: &[usize]) {
        let inside = self.members(circle);
        for at in circle {
            for branch in &mut self.nodes[*at].branches {
                branch.through.retain(|to| !inside[*to]);
            }
        }
    }

    fn members(&self, set: &[usize]) -> Vec<bool> {
        let mut inside = vec![false; self.nodes.len()];
        for at in set {
            inside[*at] = true;
        }
        inside
    }

    /// The strongly connected components of a part of the graph, each after those that it depends
    /// on (Tarjan). Without recursion: a chain of routes may be as long as a peer likes.
    fn components(&self, set: &[usize]) -> Vec<Vec<usize>> {
        let inside = self.members(set);
        let edges = |at: usize| -> Vec<usize> {
            let branches = self.nodes[at].branches.iter();
            let all = branches.flat_map(|branch| branch.through.iter().copied());
            all.filter(|to| inside[*to]).collect()
        };
        // Its number and the least number that it reaches; `usize::MAX` once it has its component.
        let mut seen: HashMap<usize, (usize, usize)> = HashMap::default();
        let (mut path, mut found) = (Vec::new(), Vec::new());
        for start in set {
            if seen.contains_key(start) {
                continue;
            }
            let mut calls = vec![(*start, edges(*start))];
            seen.insert(*start, (seen.len(), seen.len()));
            path.push(*start);
            while let Some((at, rest)) = calls.last_mut() {
                let at = *at;
                if let Some(to) = rest.pop() {
                    if let Some((number, _)) = seen.get(&to).copied() {
                        let least = &mut seen.entry(at).or_default().1;
                        *least = number.min(*least);
                    } else {
                        seen.insert(to, (seen.len(), seen.len()));
                        path.push(to);
                        calls.push((to, edges(to)));
                    }
                    continue;
                }
                calls.pop();
                let (number, least) = seen[&at];
                if let Some((caller, _)) = calls.last() {
                    let above = &mut seen.entry(*caller).or_default().1;
                    *above = least.min(*above);
                }
                if number == least {
                    let from = path.iter().rposition(|known| *known == at).unwrap_or(0);
                    let part = path.split_off(from);
                    for member in &part {
                        seen.insert(*member, (usize::MAX, usize::MAX));
                    }
                    found.push(part);
                }
            }
        }
        found
    }
}
