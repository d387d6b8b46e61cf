//! Screening: what a prefix itself forbids, before import policy: prefixes that are never routed,
//! and prefixes that another has ([`crate::origin`]). Most prefixes are no rule's business, and
//! cost one look into a table of first octets.
//!
//! A route that waits for its owner to become known is looked at again when the data about its
//! prefix changes: by key, not by a walk over the table.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use caracal_model::{Family, LocalNetworks, Prefix};
use serde::{Deserialize, Serialize};

use super::dest_id::DestId;
use super::import::{ImportRefusal, Imported, run_filters};
use super::waits::Waits;
use super::{Changes, PeerId, PeerState, Rib};
use crate::attrs::PathAttrs;
use crate::martian::{Martian, Martians, OpenRanges};
use crate::origin::{OriginCheck, OriginMode, OriginReason, OriginUpdate, OriginVerdict, Sources};
use crate::policy::{FilterCondition, FilterVerdict, PeerKind};
use crate::types::PeerName;

/// Numbers of routes that are refused for their prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Screened {
    /// Routes that are never routed, now.
    pub never_routed: usize,
    /// Routes that do not come from the owner, now.
    pub not_owner: usize,
    /// Routes that wait for their owner to become known, now.
    pub waiting: usize,
    /// Routes over nodes that no import rule names, now.
    pub over_nodes: usize,
    /// Routes that wait for longer than they should.
    pub overdue: usize,
    /// Routes that have not come from the owner for longer than a change of owner explains.
    pub refused: usize,
    /// Times that a route was found not to come from the owner since the start, whatever followed.
    pub violations: u64,
    /// Times that a prefix was found that is never routed.
    pub martians: u64,
}

/// The origin check for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OriginStatus {
    /// Action on the verdicts.
    pub mode: OriginMode,
    /// The data may be out of date.
    pub stale: bool,
    /// Prefixes with an owner.
    pub held: usize,
    /// The last route that did not come from its owner, and who sent it.
    pub last_violation: Option<(Prefix, PeerName)>,
    /// Some route that waits for longer than it should.
    pub overdue: Option<Prefix>,
    /// Some route that has not come from the owner for longer than a change of owner explains, who
    /// sent it, and why it is not the owner's.
    pub refused: Option<(Prefix, PeerName, String)>,
    /// Some route that is refused because it covers nodes, and who sent it.
    pub over_nodes: Option<(Prefix, PeerName)>,
}

/// The rules by prefix.
#[derive(Debug)]
pub(super) struct Screen {
    martians: Martians,
    pub(super) origins: OriginCheck,
    octets: Octets,
    /// Prefixes in the table inside checked ranges that nobody has as they are: what changes around
    /// them concerns them.
    tracked: BTreeSet<Prefix>,
    /// Prefixes in the table with a route whose verdict follows from more than the identity of the
    /// prefix's owner: one that is refused or waits, or comes through somebody else. What changes
    /// about its source concerns it.
    pub(super) by_source: BTreeSet<Prefix>,
    /// Prefixes with a path whose owner is not known.
    pub(super) unknown: Waits,
    /// Prefixes with a path that does not come from the owner.
    pub(super) refused: Waits,
    /// Prefixes with a route that was refused because it covers nodes.
    pub(super) over_nodes: BTreeSet<Prefix>,
    pub(super) counts: Screened,
    pub(super) last_violation: Option<(Prefix, PeerName)>,
}

impl Screen {
    pub(super) fn new(open: OpenRanges, local: LocalNetworks, origins: OriginUpdate) -> Self {
        let mut screen = Self {
            martians: Martians::new(open, local),
            origins: OriginCheck::default(),
            octets: Octets::default(),
            tracked: BTreeSet::new(),
            by_source: BTreeSet::new(),
            unknown: Waits::default(),
            refused: Waits::default(),
            over_nodes: BTreeSet::new(),
            counts: Screened::default(),
            last_violation: None,
        };
        screen.origins.apply(origins);
        screen.index();
        screen
    }

    fn index(&mut self) {
        let ranges = self.martians.ranges().chain(self.origins.ranges());
        self.octets = ranges.collect();
        self.octets.add_over(self.origins.owner_addresses());
    }

    /// False: no rule is about the prefix.
    pub(super) const fn concerns(&self, prefix: &Prefix) -> bool {
        self.octets.contain(prefix)
    }

    /// Why a prefix is refused from every peer. What lies in a range with owners is theirs also
    /// inside a subnet of ours: there the origin check has the word.
    fn martian(&self, prefix: &Prefix) -> Option<Martian> {
        let found = self.martians.find(prefix)?;
        let connected = matches!(found, Martian::Connected(_));
        (!connected || self.origins.range_of(prefix).is_none()).then_some(found)
    }

    /// More words for people about a refusal.
    pub(super) fn detail(
        &self,
        prefix: &Prefix,
        refusal: ImportRefusal,
        received: &PathAttrs,
    ) -> Option<String> {
        match refusal {
            ImportRefusal::NeverRouted => self.martian(prefix).map(|why| why.to_string()),
            ImportRefusal::NotOwner | ImportRefusal::OwnerUnknown => self.origin(prefix, received),
            ImportRefusal::OverNodes => self.over_nodes_detail(prefix, received),
            _ => None,
        }
    }

    /// Result of the origin check of a route as text; `None`: it is not checked.
    pub(super) fn origin(&self, prefix: &Prefix, received: &PathAttrs) -> Option<String> {
        match self.origins.check(prefix, received) {
            OriginVerdict::Unchecked => None,
            OriginVerdict::Valid => Some("it comes from the owner of the prefix".to_owned()),
            OriginVerdict::Invalid(reason) => Some(reason.to_string()),
            OriginVerdict::Unknown(reason) if self.origins.is_stale() => {
                Some(format!("{reason}; the datastore is not fresh"))
            }
            OriginVerdict::Unknown(reason) => Some(reason.to_string()),
        }
    }

    /// A destination is no longer in the table.
    pub(super) fn forget(&mut self, prefix: &Prefix) {
        if self.concerns(prefix) {
            self.tracked.remove(prefix);
            self.by_source.remove(prefix);
            self.unknown.forget(prefix);
            self.refused.forget(prefix);
            self.over_nodes.remove(prefix);
        }
    }

    /// A path has another outcome, or is new (`None` before) or gone (`None` after).
    pub(super) const fn count(
        &mut self,
        before: Option<ImportRefusal>,
        after: Option<ImportRefusal>,
    ) {
        if let Some(refusal) = before
            && let Some(number) = self.number(refusal)
        {
            *number = number.saturating_sub(1);
        }
        if let Some(refusal) = after
            && let Some(number) = self.number(refusal)
        {
            *number += 1;
        }
    }

    const fn number(&mut self, refusal: ImportRefusal) -> Option<&mut usize> {
        match refusal {
            ImportRefusal::NeverRouted => Some(&mut self.counts.never_routed),
            ImportRefusal::NotOwner => Some(&mut self.counts.not_owner),
            ImportRefusal::OwnerUnknown => Some(&mut self.counts.waiting),
            ImportRefusal::OverNodes => Some(&mut self.counts.over_nodes),
            _ => None,
        }
    }

    /// When a wait becomes a problem next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let due = [self.unknown.next_timeout(), self.refused.next_timeout()];
        due.into_iter().flatten().min()
    }
}

/// First octets of addresses, a bit for each, by family. A prefix inside a range starts with an
/// octet of the range.
#[derive(Clone, Copy, Debug, Default)]
struct Octets([[u64; 4]; 2]);

impl Octets {
    const fn index(prefix: &Prefix) -> (usize, u8) {
        match prefix.address() {
            IpAddr::V4(address) => (0, address.octets()[0]),
            IpAddr::V6(address) => (1, address.octets()[0]),
        }
    }

    const fn contain(&self, prefix: &Prefix) -> bool {
        let (family, octet) = Self::index(prefix);
        self.0[family][octet as usize / 64] >> (octet % 64) & 1 == 1
    }
}

impl Octets {
    /// Adds what covers these addresses: a prefix of eight bits or more starts with the octet of
    /// the address, a shorter one with that of its own.
    fn add_over(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        for address in addresses {
            for len in 0..=8 {
                let (family, octet) = Self::index(&Prefix::truncated(address, len));
                self.0[family][usize::from(octet) / 64] |= 1 << (octet % 64);
            }
        }
    }
}

impl FromIterator<Prefix> for Octets {
    fn from_iter<I: IntoIterator<Item = Prefix>>(ranges: I) -> Self {
        let mut octets = Self::default();
        for range in ranges {
            let (family, first) = Self::index(&range);
            let more = u8::MAX.checked_shr(u32::from(range.len())).unwrap_or(0);
            for octet in first..=first | more {
                octets.0[family][usize::from(octet) / 64] |= 1 << (octet % 64);
            }
        }
        octets
    }
}

/// True when the deciding term of a filter names the range that it admits: an "accept" of
/// everything is the default written down, and admits nobody to what another has.
fn admits(conditions: &[FilterCondition]) -> bool {
    conditions.iter().any(|condition| match condition {
        FilterCondition::Prefix { patterns, negated } => {
            // Of the whole address space only the default route itself is a range with a name.
            !negated && patterns.iter().all(|p| p.prefix.len() > 0 || p.max == 0)
        }
        _ => false,
    })
}

impl Rib {
    /// Says which networks are this machine's own. Replaces what was said before.
    pub fn set_local_networks(&mut self, now: Instant, local: LocalNetworks) -> Changes {
        if self.screen.martians.set_local(local) {
            self.screen.index();
            self.import_again(self.peers.ids().into_iter().collect());
        }
        self.finish(now, Changes::default())
    }

    /// Takes over a change of who may announce what. Routes that it concerns are judged again at
    /// once: all of them if the rules differ, otherwise those of the owners that differ.
    pub fn set_origins(&mut self, now: Instant, update: OriginUpdate) -> Changes {
        let rules = update.rules.is_some();
        let was_stale = self.screen.origins.is_stale();
        let concerned = self.screen.origins.concerned(&update);
        self.screen.origins.apply(update);
        let moved = concerned.sources.addresses().iter().copied();
        match rules {
            true => self.screen.index(),
            false => self.screen.octets.add_over(moved.clone()),
        }
        let fresh = was_stale && !self.screen.origins.is_stale();
        let by_source = fresh || !concerned.sources.is_empty();
        if rules || by_source && self.screen.by_source.len() > self.inline {
            self.import_again(self.peers.ids().into_iter().collect());
        } else {
            let mut again = concerned.prefixes.clone();
            for prefix in &concerned.prefixes {
                // A prefix has a last address.
                let last = prefix
                    .nth(prefix.size() - 1)
                    .unwrap_or_else(|| prefix.address());
                let inside = self.screen.tracked.range(*prefix..=Prefix::host(last));
                again.extend(inside);
            }
            match fresh {
                true => again.extend(&self.screen.by_source),
                false => again.extend(self.routes_from(&concerned.sources)),
            }
            for address in moved {
                let covering = |len| Prefix::truncated(address, len);
                again.extend((0..=Family::of(address).bits()).map(covering));
            }
            for prefix in again {
                if let Some(id) = self.table.find(&prefix) {
                    self.import_dest(id);
                }
            }
        }
        self.finish(now, Changes::default())
    }

    /// Prefixes with a route from these sources whose verdict depends on its source.
    fn routes_from(&self, sources: &Sources) -> Vec<Prefix> {
        if sources.is_empty() {
            return Vec::new();
        }
        let comes = |prefix: &&Prefix| {
            self.table.find(prefix).is_some_and(|id| {
                let mut paths = self.table.get(id).paths().iter();
                paths.any(|path| sources.include(&path.received))
            })
        };
        self.screen
            .by_source
            .iter()
            .filter(comes)
            .copied()
            .collect()
    }

    /// Numbers of routes that are refused for their prefix.
    #[must_use]
    pub fn screened(&self) -> Screened {
        Screened {
            overdue: self.screen.unknown.overdue.len(),
            refused: self.screen.refused.overdue.len(),
            ..self.screen.counts
        }
    }

    /// The origin check as it is in force.
    #[must_use]
    pub fn origin_status(&self) -> OriginStatus {
        let screen = &self.screen;
        OriginStatus {
            mode: screen.origins.mode(),
            stale: screen.origins.is_stale(),
            held: screen.origins.len(),
            last_violation: screen.last_violation.clone(),
            overdue: screen.unknown.overdue.first().copied(),
            refused: self.first_refused(),
            over_nodes: self.first_over_nodes(),
        }
    }

    /// Runs import again over all paths of a destination.
    fn import_dest(&mut self, id: DestId) {
        let prefix = self.table.get(id).prefix;
        self.screen.tracked.remove(&prefix);
        self.screen.by_source.remove(&prefix);
        self.screen.over_nodes.remove(&prefix);
        for at in 0..self.table.get(id).paths().len() {
            let dest = self.table.get(id);
            let path = &dest.paths()[at];
            if path.peer == PeerId::LOCAL {
                continue;
            }
            let (from, received) = (path.peer, path.received.clone());
            let outcome = self.import(from, prefix, &received);
            let room = self.accepts_more(from, prefix.family());
            self.replace_outcome(id, at, outcome, room);
        }
        self.note_wait_over(id);
    }

    /// Imports a received route: checks of the protocol, of its prefix, and policy.
    pub(super) fn import(
        &mut self,
        from: PeerId,
        prefix: Prefix,
        received: &Arc<PathAttrs>,
    ) -> Imported {
        let Some(peer) = self.peers.get(from) else {
            return Err(ImportRefusal::Policy);
        };
        let rules = peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
        if let Some(Err(refusal)) = rules.import_any(received) {
            return Err(refusal);
        }
        if self.screen.concerns(&prefix)
            && let Some(refusal) = self.screen_refusal(from, prefix, received)
        {
            return Err(refusal);
        }
        let Some(peer) = self.peers.get(from) else {
            return Err(ImportRefusal::Policy);
        };
        let rules = peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
        rules.import(prefix, received, &mut self.interner)
    }

    /// Why a route is refused for its prefix.
    pub(super) fn screen_refusal(
        &mut self,
        from: PeerId,
        prefix: Prefix,
        received: &Arc<PathAttrs>,
    ) -> Option<ImportRefusal> {
        if self.screen.martian(&prefix).is_some() {
            self.screen.counts.martians += 1;
            return Some(ImportRefusal::NeverRouted);
        }
        if self.is_refused_over_nodes(from, prefix, received) {
            return Some(ImportRefusal::OverNodes);
        }
        self.check_origin(from, prefix, received)
    }

    /// Why the origin check refuses a route.
    fn check_origin(
        &mut self,
        from: PeerId,
        prefix: Prefix,
        received: &Arc<PathAttrs>,
    ) -> Option<ImportRefusal> {
        let quick = self.screen.origins.quick_check(&prefix, received);
        if quick.within {
            self.screen.tracked.insert(prefix);
        }
        if !quick.by_owner {
            self.screen.by_source.insert(prefix);
        }
        if quick.passes {
            return None;
        }
        let (reason, unknown) = match self.screen.origins.check(&prefix, received) {
            OriginVerdict::Unchecked | OriginVerdict::Valid => return None,
            OriginVerdict::Invalid(reason) => (reason, false),
            OriginVerdict::Unknown(reason) => (reason, true),
        };
        let peer = self.peers.get(from)?;
        let owned = matches!(reason, OriginReason::NextHop(..));
        let (origins, ours) = (&self.screen.origins, self.config.local_as);
        let hop = received.next_hop.as_ref();
        let from_owner = hop.is_some_and(|hop| origins.is_owner_address(hop));
        // A router between nodes of different ASes is the next hop of what it passes on.
        let router = peer.kind() == PeerKind::External && !from_owner;
        if owned && router && origins.passes_owner(&prefix, received, ours)
            || owned && self.admits_others(peer, prefix, received)
            || unknown && self.is_in_force(from, prefix, received)
        {
            return None;
        }
        let log_only = origins.mode() == OriginMode::Log;
        // Of a node that nobody has heard of yet, a reflector may speak; a router of another AS has
        // nothing to wait for, unless a node's AS is in the path.
        if unknown && (!router || origins.passes_some_owner(received, ours)) {
            if !log_only {
                self.screen.unknown.push(prefix);
            }
            return (!log_only).then_some(ImportRefusal::OwnerUnknown);
        }
        self.screen.counts.violations += 1;
        self.screen.last_violation = Some((prefix, peer.name.clone()));
        if !log_only {
            self.screen.refused.push(prefix);
        }
        (!log_only).then_some(ImportRefusal::NotOwner)
    }

    /// True when the operator lets a peer announce what others have: a filter accepts the range by
    /// name, or BGPPeer says that our own AS may come back through a peer of another one, as behind
    /// a router that all nodes peer with.
    fn admits_others(&self, peer: &PeerState, prefix: Prefix, received: &PathAttrs) -> bool {
        if peer.kind() == PeerKind::External && peer.config.allow_own_as > 0 {
            return true;
        }
        self.names(peer, prefix, received) == Some(true)
    }

    /// Whether the filter term that accepts a route names its range; `None`: it is rejected.
    pub(super) fn names(
        &self,
        peer: &PeerState,
        prefix: Prefix,
        received: &PathAttrs,
    ) -> Option<bool> {
        let rules = peer.import_rules(self.config.router_id, &self.clusters, &self.next_hops);
        let mut view = rules.view(prefix, received);
        let (verdict, by) = run_filters(&peer.import, &mut view);
        if verdict != FilterVerdict::Accept {
            return None;
        }
        let term = by.and_then(|(name, decision)| {
            let filter = peer.import.iter().find(|named| named.name == name)?;
            filter.filter.terms.get(decision.term)
        });
        Some(term.is_some_and(|term| admits(&term.conditions)))
    }

    /// True when the path is in use already, and leads to the same gateway.
    pub(super) fn is_in_force(&self, from: PeerId, prefix: Prefix, received: &PathAttrs) -> bool {
        let dest = self.table.find(&prefix).map(|id| self.table.get(id));
        let path = dest.and_then(|dest| dest.paths().iter().find(|path| path.peer == from));
        path.is_some_and(|path| {
            path.accepted().is_some()
                && path.received.next_hop == received.next_hop
                && path.received.originator_id == received.originator_id
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_prefix_inside_a_range_is_looked_at() {
        let ranges = ["224.0.0.0/4", "10.0.0.0/24", "fe80::/10", "0.0.0.0/8"];
        let octets: Octets = ranges.iter().map(|r| r.parse().unwrap()).collect();
        let contains = |text: &str| octets.contain(&text.parse().unwrap());
        for text in ["239.1.0.0/16", "224.0.0.0/4", "10.0.0.1/32", "fe80::/64"] {
            assert!(contains(text), "{text}");
        }
        for text in ["223.0.0.0/8", "240.0.0.0/4", "11.0.0.0/8", "2001:db8::/32"] {
            assert!(!contains(text), "{text}");
        }
        let all: Octets = std::iter::once("0.0.0.0/0".parse().unwrap()).collect();
        assert!(all.contain(&"255.0.0.0/8".parse().unwrap()));
        let odd: Octets = std::iter::once("10.0.0.0/7".parse().unwrap()).collect();
        assert!(odd.contain(&"11.0.0.0/8".parse().unwrap()));
        assert!(!odd.contain(&"12.0.0.0/8".parse().unwrap()));
    }
}
