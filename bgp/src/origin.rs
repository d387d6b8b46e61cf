//! Origin check: who may announce what. The rules are data: ranges in which only the owner of a
//! prefix may announce it, and who owns which prefix. The verdict is a pure function of them and of
//! a route.
//!
//! An announcement is valid when its next hop is an address of the owner, so that packets go where
//! the data says. An address in what an owner has is nobody's next hop: what has it is no router.
//! Behind a reflector ORIGINATOR_ID says who it came from; one that is known to be somebody else's
//! makes the route invalid, an unknown one does not, for a node may have a BGP Identifier that
//! nobody else knows of. Behind a router of another AS that puts itself in as next hop the AS path
//! says so, where owners have AS numbers of their own.

mod identities;
mod prefix_owners;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use caracal_model::Prefix;
use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use crate::attrs::PathAttrs;
use crate::ranges::Ranges;
use crate::types::{Asn, RouterId};
use identities::{Entitled, Identities};
use prefix_owners::PrefixOwners;

pub(crate) use identities::Sources;

/// Action on the verdicts of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginMode {
    /// Nothing is checked.
    #[default]
    Off,
    /// Invalid routes are counted and logged, and used.
    Log,
    /// Invalid routes are not used.
    Enforce,
}

/// The text is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not enforce, log or off")]
pub struct OriginModeError(pub String);

impl std::str::FromStr for OriginMode {
    type Err = OriginModeError;

    fn from_str(text: &str) -> Result<Self, OriginModeError> {
        match text.to_ascii_lowercase().as_str() {
            "off" => Ok(Self::Off),
            "log" => Ok(Self::Log),
            "enforce" => Ok(Self::Enforce),
            _ => Err(OriginModeError(text.to_owned())),
        }
    }
}

/// Addresses and router ids by which an owner's announcements are recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerIdentity {
    /// Its addresses: next hops of its routes.
    pub addresses: BTreeSet<IpAddr>,
    /// BGP Identifiers that it may have.
    pub router_ids: BTreeSet<RouterId>,
    /// Its AS, by which its routes are known behind a router that is their next hop.
    pub asn: Option<Asn>,
    /// It is a reflector with next-hop-self: it announces prefixes of other owners and forwards for
    /// them.
    pub relays: bool,
}

/// A range of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginRange {
    /// Only owners announce in it. No owner has a prefix shorter than this.
    Owned {
        /// Length of the shortest prefix that an owner has.
        shortest: u8,
    },
    /// Other rules say who announces in it.
    Free,
}

/// The rules but for the owners: small, and replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginRules {
    /// Action on the verdicts.
    pub mode: OriginMode,
    /// Ranges; the longest that covers a prefix counts, and without one there is no check.
    pub ranges: BTreeMap<Prefix, OriginRange>,
    /// Those of the ranges that lie over machines: an address in what an owner has there may be the
    /// address of another one. Elsewhere it is no next hop of anybody.
    pub over_machines: BTreeSet<Prefix>,
}

/// The owner of a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PrefixOwner {
    /// The owner of this name.
    Named(String),
    /// Nobody: other rules say who announces it.
    Free,
}

/// A change of the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginUpdate {
    /// The rules, when they differ.
    pub rules: Option<OriginRules>,
    /// Identities that owners have now, by name; `None`: there is no such owner any more.
    pub identities: Vec<(String, Option<OwnerIdentity>)>,
    /// Owners that a prefix has now (true), or has no more.
    pub ownership: Vec<(Prefix, PrefixOwner, bool)>,
    /// The data may be out of date; `None`: as before.
    pub stale: Option<bool>,
}

impl OriginUpdate {
    /// True when nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Result of the check of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginVerdict {
    /// No rule is about it.
    Unchecked,
    /// It comes from its owner.
    Valid,
    /// It does not come from its owner.
    Invalid(OriginReason),
    /// The data does not say who has the prefix, or may be out of date.
    Unknown(OriginReason),
}

/// Why a route is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginReason {
    /// No owner has a prefix as short as this.
    TooShort(Prefix),
    /// Nobody is known to have it.
    NoOwner(Prefix),
    /// The next hop is no address of the owner.
    NextHop(String, Prefix, Option<IpAddr>),
    /// ORIGINATOR_ID is another owner's.
    Originator(String, Prefix, RouterId, String),
}

impl fmt::Display for OriginReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort(range) => {
                write!(f, "no node has a prefix as short as this in {range}")
            }
            Self::NoOwner(range) => {
                write!(f, "nobody is known to have this prefix of {range}")
            }
            Self::NextHop(owner, owned, Some(hop)) => {
                write!(
                    f,
                    "{owned} is {owner}'s, and the next hop {hop} is no address of it"
                )
            }
            Self::NextHop(owner, owned, None) => {
                write!(f, "{owned} is {owner}'s, and there is no next hop")
            }
            Self::Originator(owner, owned, id, other) => {
                write!(
                    f,
                    "{owned} is {owner}'s, and ORIGINATOR_ID {id} is {other}'s"
                )
            }
        }
    }
}

/// Index of an owner.
type OwnerId = u32;
/// Stands for [`PrefixOwner::Free`].
const FREE: OwnerId = OwnerId::MAX;

/// The data in force, ready to be asked.
#[derive(Debug, Default)]
pub struct OriginCheck {
    rules: OriginRules,
    /// The ranges of the rules, the longest first.
    ranges: Ranges<OriginRange>,
    stale: bool,
    /// Names by index; an owner keeps its index for good.
    names: Vec<String>,
    ids: HashMap<String, OwnerId>,
    identities: Identities,
    owners: PrefixOwners,
    /// The last source and its answer: routes of one UPDATE share it.
    last: (SourceIds, Entitled),
}

/// The source of a route: NEXT_HOP and ORIGINATOR_ID.
type SourceIds = (Option<IpAddr>, Option<RouterId>);

/// Routes that a change of the data concerns, but for its rules, which concern all.
#[derive(Debug, Default)]
pub(crate) struct Concerned {
    /// What other owners have now, and what owners with another identity have.
    pub(crate) prefixes: BTreeSet<Prefix>,
    /// Sources that speak for others than before: they concern routes whose verdict follows from
    /// more than the identity of the owner of their prefix.
    pub(crate) sources: Sources,
}

/// Result of the quick check of a route: all that is needed for most of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuickCheck {
    /// The route is valid or not checked. Otherwise [`OriginCheck::check`] says why it is not.
    pub(crate) passes: bool,
    /// The prefix lies in a range with owners, and nobody has exactly it.
    pub(crate) within: bool,
    /// The answer follows from the identity of the owner of the prefix alone.
    pub(crate) by_owner: bool,
}

impl OriginCheck {
    /// Action on the verdicts, as configured.
    #[must_use]
    pub const fn mode(&self) -> OriginMode {
        self.rules.mode
    }

    /// The data may be out of date.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        self.stale
    }

    /// Number of prefixes with an owner.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// True if no prefix has a known owner.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The ranges that are checked, and those that are not.
    pub fn ranges(&self) -> impl Iterator<Item = Prefix> {
        self.rules.ranges.keys().copied()
    }

    fn id(&mut self, owner: &PrefixOwner) -> OwnerId {
        let PrefixOwner::Named(name) = owner else {
            return FREE;
        };
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = OwnerId::try_from(self.names.len()).unwrap_or(FREE);
        self.names.push(name.clone());
        self.ids.insert(name.clone(), id);
        id
    }

    fn name(&self, id: OwnerId) -> String {
        let name = self.names.get(id as usize);
        name.map_or_else(|| "nobody".to_owned(), Clone::clone)
    }

    /// Routes that a change will concern. Asked before it is applied.
    pub(crate) fn concerned(&self, update: &OriginUpdate) -> Concerned {
        let mut concerned = Concerned::default();
        for (prefix, ..) in &update.ownership {
            concerned.prefixes.insert(*prefix);
            // What has an address there is a next hop of its owner, or no longer.
            for address in self.identities.addresses_in(prefix) {
                concerned.sources.add_hop(address);
                let owners = self.identities.of_address(&address).iter();
                let held = owners.flat_map(|id| self.owners.prefixes_of(*id));
                concerned.prefixes.extend(held);
            }
        }
        for (name, identity) in &update.identities {
            let id = self.ids.get(name).copied();
            self.identities
                .differences(id, identity.as_ref(), &mut concerned.sources);
            let held = id.into_iter().flat_map(|id| self.owners.prefixes_of(id));
            concerned.prefixes.extend(held);
        }
        concerned
    }

    /// Takes a change over.
    pub fn apply(&mut self, update: OriginUpdate) {
        if let Some(stale) = update.stale {
            self.stale = stale;
        }
        for (name, identity) in update.identities {
            let id = self.id(&PrefixOwner::Named(name));
            self.identities.set(id, identity);
        }
        for (prefix, owner, has) in update.ownership {
            let id = self.id(&owner);
            let checked = is_checked(&self.ranges, &prefix);
            self.owners.set(prefix, id, has, checked);
        }
        if let Some(rules) = update.rules {
            self.set_rules(rules);
        }
        self.last = Default::default();
    }

    fn set_rules(&mut self, rules: OriginRules) {
        let mut ranges: Vec<_> = rules.ranges.iter().map(|(p, rule)| (*p, *rule)).collect();
        ranges.sort_by_key(|(range, _)| std::cmp::Reverse(range.len()));
        self.ranges = ranges.into_iter().collect();
        let ranges = &self.ranges;
        self.owners.check_again(|prefix| is_checked(ranges, prefix));
        self.rules = rules;
    }

    /// The longest range that covers a prefix.
    #[must_use]
    pub fn range_of(&self, prefix: &Prefix) -> Option<(Prefix, OriginRange)> {
        self.ranges.first(prefix).copied()
    }

    /// What a route takes from owners that leads to more than their prefixes: the first address of
    /// an owner that it covers, and whose that is. Inside a range with owners the verdict of
    /// [`OriginCheck::check`] counts instead; and an owner may announce an address of its own.
    pub(crate) fn taken(&self, prefix: &Prefix, attrs: &PathAttrs) -> Option<(IpAddr, String)> {
        if self.rules.mode == OriginMode::Off || is_checked(&self.ranges, prefix) {
            return None;
        }
        let mut inside = self.identities.addresses_in(prefix);
        let address = inside.find(|address| !self.is_held(address))?;
        let owners = self.identities.of_address(&address);
        let by_hop = attrs.next_hop.map(|hop| self.owners_at(&hop));
        let by_owner = || by_hop.is_some_and(|by| owners.iter().any(|id| by.contains(id)));
        if prefix.is_host() && by_owner() {
            return None;
        }
        let name = owners.first().map_or_else(String::new, |id| self.name(*id));
        Some((address, name))
    }

    /// True when a prefix covers an address of an owner.
    pub(crate) fn is_over_owners(&self, prefix: &Prefix) -> bool {
        self.identities.first_in(prefix).is_some()
    }

    /// The addresses of all owners.
    pub(crate) fn owner_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.identities.addresses()
    }

    /// True for an address of some owner.
    #[must_use]
    pub(crate) fn is_owner_address(&self, address: &IpAddr) -> bool {
        !self.identities.of_address(address).is_empty()
    }

    /// True for a route that has come through the AS of a node that has the prefix, where that is
    /// not ours: with an AS of its own for each node that says whose it is.
    pub(crate) fn passes_owner(&self, prefix: &Prefix, attrs: &PathAttrs, ours: Asn) -> bool {
        let Some((range, OriginRange::Owned { .. })) = self.range_of(prefix) else {
            return false;
        };
        self.holders(prefix, &range).is_some_and(|(_, owners)| {
            let mut numbers = owners.iter().filter_map(|id| self.identities.asn_of(*id));
            numbers.any(|asn| asn != ours && attrs.as_path.contains(asn) > 0)
        })
    }

    /// True for a route that has come through the AS of some owner, where that is not ours.
    pub(crate) fn passes_some_owner(&self, attrs: &PathAttrs, ours: Asn) -> bool {
        let mut path = attrs.as_path.asns();
        path.any(|asn| asn != ours && self.identities.is_asn(asn))
    }

    /// Whether a route is valid or not checked. Says the same as [`OriginCheck::check`], for less.
    pub(crate) fn quick_check(&mut self, prefix: &Prefix, attrs: &PathAttrs) -> QuickCheck {
        let unchecked = QuickCheck {
            passes: true,
            within: false,
            by_owner: true,
        };
        if self.rules.mode == OriginMode::Off {
            return unchecked;
        }
        let (owners, within) = match self.owners.exact(prefix) {
            Some((false, _)) => return unchecked,
            Some((true, owners)) => (owners, false),
            None => {
                let Some((range, OriginRange::Owned { .. })) = self.range_of(prefix) else {
                    return unchecked;
                };
                let Some((_, owners)) = self.holders(prefix, &range) else {
                    return QuickCheck {
                        passes: false,
                        within: true,
                        by_owner: false,
                    };
                };
                (owners, true)
            }
        };
        let source = (attrs.next_hop, attrs.originator_id);
        let answer = |entitled: &Entitled| {
            let passes = entitled.may_have(owners);
            QuickCheck {
                passes,
                within,
                by_owner: passes && entitled.by_own,
            }
        };
        if self.last.0 == source {
            return answer(&self.last.1);
        }
        let entitled = self.entitled(source);
        let quick = answer(&entitled);
        self.last = (source, entitled);
        quick
    }

    /// Owners that a source speaks for.
    fn entitled(&self, source: SourceIds) -> Entitled {
        match source.0 {
            Some(hop) if self.is_held(&hop) => Entitled::default(),
            _ => self.identities.entitled(source),
        }
    }

    /// Owners whose routes may have a next hop.
    fn owners_at(&self, hop: &IpAddr) -> &[OwnerId] {
        match self.is_held(hop) {
            true => &[],
            false => self.identities.of_address(hop),
        }
    }

    /// True for an address in what an owner has: whoever says that it is its own, no machine has
    /// it.
    fn is_held(&self, address: &IpAddr) -> bool {
        let host = Prefix::host(*address);
        let Some((range, OriginRange::Owned { .. })) = self.range_of(&host) else {
            return false;
        };
        let holders = self.holders(&host, &range);
        !self.rules.over_machines.contains(&range)
            && holders.is_some_and(|(_, owners)| !owners.contains(&FREE))
    }

    /// The longest prefix with an owner that covers this one and lies in the range, and its owners.
    fn holders(&self, prefix: &Prefix, range: &Prefix) -> Option<(Prefix, &[OwnerId])> {
        let longest = self.owners.longest(prefix);
        longest.filter(|(owned, _)| range.len() <= owned.len())
    }

    /// Checks a route of the Adj-RIB-In against the owner of its prefix.
    #[must_use]
    pub fn check(&self, prefix: &Prefix, attrs: &PathAttrs) -> OriginVerdict {
        if self.rules.mode == OriginMode::Off {
            return OriginVerdict::Unchecked;
        }
        let Some((range, OriginRange::Owned { shortest })) = self.range_of(prefix) else {
            return OriginVerdict::Unchecked;
        };
        let Some((owned, owners)) = self.holders(prefix, &range) else {
            return match prefix.len() < shortest {
                true => OriginVerdict::Invalid(OriginReason::TooShort(range)),
                false => OriginVerdict::Unknown(OriginReason::NoOwner(range)),
            };
        };
        if owners.contains(&FREE) {
            return OriginVerdict::Unchecked;
        }
        let source = (attrs.next_hop, attrs.originator_id);
        if self.entitled(source).may_have(owners) {
            return OriginVerdict::Valid;
        }
        let reason = self.reason(owned, owners, source);
        match self.stale {
            true => OriginVerdict::Unknown(reason),
            false => OriginVerdict::Invalid(reason),
        }
    }

    /// Why routes from there are not the owners'.
    fn reason(
        &self,
        owned: Prefix,
        owners: &[OwnerId],
        (hop, originator): SourceIds,
    ) -> OriginReason {
        let of_hop = hop.map(|hop| self.owners_at(&hop));
        let owner = of_hop.and_then(|ids| owners.iter().find(|id| ids.contains(id)));
        let known = originator.and_then(|id| Some((id, self.identities.of_router_id(id)?)));
        match (owner, known) {
            // The next hop is the owner's; so it is the originator that is not.
            (Some(owner), Some((id, other))) => {
                OriginReason::Originator(self.name(*owner), owned, id, self.name(other))
            }
            _ => OriginReason::NextHop(self.name(owners[0]), owned, hop),
        }
    }
}

/// True in a range in which only owners announce.
fn is_checked(ranges: &Ranges<OriginRange>, prefix: &Prefix) -> bool {
    let range = ranges.first(prefix);
    matches!(range, Some((_, OriginRange::Owned { .. })))
}

impl Entitled {
    /// A route of theirs may be for what these have.
    fn may_have(&self, owners: &[OwnerId]) -> bool {
        owners
            .iter()
            .any(|id| *id == FREE || self.owners.contains(id))
    }
}

#[cfg(test)]
mod tests;
