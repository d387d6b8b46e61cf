//! Origin check: who may announce what. The rules are data: ranges in which only the owner of a prefix may
//! announce it, and who owns which prefix. The verdict is a pure function of them and of a route.
//!
//! An announcement is valid when its next hop is an address of the owner, so that packets go where the data says. Behind
//! a reflector ORIGINATOR_ID says who it came from; one that is known to be somebody else's makes the route invalid, an
//! unknown one does not, for a node may have a BGP Identifier that nobody else knows of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use caracal_model::net::{Family, Prefix};
use foldhash::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use crate::attrs::PathAttrs;
use crate::types::RouterId;

/// What follows from a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing is checked.
    #[default]
    Off,
    /// What is invalid is counted and told, and used.
    Log,
    /// What is invalid is not used.
    Enforce,
}

/// The text is no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not enforce, log or off")]
pub struct ModeError(pub String);

impl std::str::FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text.to_ascii_lowercase().as_str() {
            "off" => Ok(Self::Off),
            "log" => Ok(Self::Log),
            "enforce" => Ok(Self::Enforce),
            _ => Err(ModeError(text.to_owned())),
        }
    }
}

/// What is known of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its addresses: next hops of its routes.
    pub addresses: BTreeSet<IpAddr>,
    /// BGP Identifiers that it may have.
    pub router_ids: BTreeSet<RouterId>,
    /// It is a reflector that was told to put itself in as next hop: it passes on what others own, and forwards for them.
    pub relays: bool,
}

/// A range of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Only owners announce in it. No owner has a prefix shorter than this.
    Owned {
        /// Length of the shortest prefix that an owner has.
        shortest: u8,
    },
    /// Other rules say who announces in it.
    Free,
}

/// The rules but for the owners of single prefixes: small, and replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What follows.
    pub mode: Mode,
    /// Ranges; the longest that covers a prefix counts, and without one there is no check.
    pub ranges: BTreeMap<Prefix, Range>,
    /// Owners by name.
    pub owners: BTreeMap<String, Identity>,
}

/// Who has a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The owner of this name.
    Named(String),
    /// Nobody: other rules say who announces it.
    Free,
}

/// A change of the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The rules, when they differ.
    pub rules: Option<Rules>,
    /// Prefixes that somebody has now (true), or has no more.
    pub held: Vec<(Prefix, Owner, bool)>,
    /// The data may be out of date; `None`: as before.
    pub stale: Option<bool>,
}

impl Update {
    /// True when nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What the data says of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No rule is about it.
    Unchecked,
    /// It comes from its owner.
    Valid,
    /// It does not.
    Invalid(Reason),
    /// The data does not say who has the prefix, or may be out of date.
    Unknown(Reason),
}

/// Why a route is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No owner has a prefix as short as this.
    TooShort(Prefix),
    /// Nobody is known to have it.
    NoOwner(Prefix),
    /// The next hop is no address of the owner.
    NextHop(String, Prefix, Option<IpAddr>),
    /// ORIGINATOR_ID is another owner's.
    Originator(String, Prefix, RouterId, String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort(range) => {
                write!(f, "no node has a prefix as short as this in {range}")
            }
            Self::NoOwner(range) => {
                write!(f, "nobody is known to have this prefix of {range}")
            }
            Self::NextHop(owner, held, Some(hop)) => {
                write!(
                    f,
                    "{held} is {owner}'s, and the next hop {hop} is no address of it"
                )
            }
            Self::NextHop(owner, held, None) => {
                write!(f, "{held} is {owner}'s, and there is no next hop")
            }
            Self::Originator(owner, held, id, other) => {
                write!(
                    f,
                    "{held} is {owner}'s, and ORIGINATOR_ID {id} is {other}'s"
                )
            }
        }
    }
}

/// Index of an owner.
type OwnerId = u32;
/// Stands for [`Owner::Free`].
const FREE: OwnerId = OwnerId::MAX;

/// The data in force, ready to be asked.
#[derive(Debug, Default)]
pub struct Origins {
    rules: Rules,
    stale: bool,
    /// Names by index; an owner keeps its index for good.
    names: Vec<String>,
    ids: HashMap<String, OwnerId>,
    /// Next hops of owners.
    addresses: HashSet<(OwnerId, IpAddr)>,
    /// Addresses of any owner.
    known_addresses: HashSet<IpAddr>,
    /// Next hops of owners that relay.
    relays: HashSet<IpAddr>,
    /// Who has a BGP Identifier; several owners' is nobody's.
    router_ids: HashMap<RouterId, Option<OwnerId>>,
    /// Who has a prefix. More than one owner is a fault of the data; each counts.
    held: HashMap<Prefix, Vec<OwnerId>>,
    /// How many prefixes of each length are held, by family.
    lengths: [BTreeMap<u8, usize>; 2],
}

const fn index(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

impl Origins {
    /// What follows from verdicts.
    #[must_use]
    pub const fn mode(&self) -> Mode {
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
        self.held.len()
    }

    /// True when nobody is known to have anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The ranges that are checked, and those that are not.
    pub fn ranges(&self) -> impl Iterator<Item = Prefix> {
        self.rules.ranges.keys().copied()
    }

    fn id(&mut self, owner: &Owner) -> OwnerId {
        let Owner::Named(name) = owner else {
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

    /// Takes a change over.
    pub fn apply(&mut self, update: Update) {
        if let Some(stale) = update.stale {
            self.stale = stale;
        }
        for (prefix, owner, has) in update.held {
            let id = self.id(&owner);
            self.hold(prefix, id, has);
        }
        if let Some(rules) = update.rules {
            self.set_rules(rules);
        }
    }

    fn hold(&mut self, prefix: Prefix, id: OwnerId, has: bool) {
        let owners = self.held.entry(prefix).or_default();
        let lengths = &mut self.lengths[index(prefix.family())];
        let before = owners.len();
        owners.retain(|known| *known != id);
        if has {
            owners.push(id);
        }
        match (before, owners.len()) {
            (0, 0) => drop(self.held.remove(&prefix)),
            (0, _) => *lengths.entry(prefix.len()).or_default() += 1,
            (_, 0) => {
                self.held.remove(&prefix);
                if let Some(count) = lengths.get_mut(&prefix.len()) {
                    *count -= 1;
                    if *count == 0 {
                        lengths.remove(&prefix.len());
                    }
                }
            }
            _ => {}
        }
    }

    fn set_rules(&mut self, rules: Rules) {
        self.addresses.clear();
        self.known_addresses.clear();
        self.relays.clear();
        self.router_ids.clear();
        for (name, identity) in &rules.owners {
            let id = self.id(&Owner::Named(name.clone()));
            for address in &identity.addresses {
                self.addresses.insert((id, *address));
                self.known_addresses.insert(*address);
                if identity.relays {
                    self.relays.insert(*address);
                }
            }
            for router_id in &identity.router_ids {
                let one = self.router_ids.entry(*router_id).or_insert(Some(id));
                if *one != Some(id) {
                    *one = None;
                }
            }
        }
        self.rules = rules;
    }

    /// The longest range that covers a prefix.
    #[must_use]
    pub fn range_of(&self, prefix: &Prefix) -> Option<(Prefix, Range)> {
        let covering = self.rules.ranges.iter().filter(|(r, _)| r.covers(prefix));
        covering
            .max_by_key(|(range, _)| range.len())
            .map(|(range, rule)| (*range, *rule))
    }

    /// The longest held prefix that covers this one.
    fn holders(&self, prefix: &Prefix) -> Option<(Prefix, &[OwnerId])> {
        let lengths = self.lengths[index(prefix.family())].keys().rev();
        lengths.filter(|len| **len <= prefix.len()).find_map(|len| {
            let held = Prefix::truncated(prefix.address(), *len);
            Some((held, self.held.get(&held)?.as_slice()))
        })
    }

    /// True when somebody has exactly this prefix.
    #[must_use]
    pub fn is_held(&self, prefix: &Prefix) -> bool {
        self.held.contains_key(prefix)
    }

    /// True for an address of some owner.
    #[must_use]
    pub fn is_owner_address(&self, address: &IpAddr) -> bool {
        self.known_addresses.contains(address)
    }

    /// What the data says of a route.
    #[must_use]
    pub fn check(&self, prefix: &Prefix, attrs: &PathAttrs) -> Verdict {
        if self.rules.mode == Mode::Off {
            return Verdict::Unchecked;
        }
        let Some((range, Range::Owned { shortest })) = self.range_of(prefix) else {
            return Verdict::Unchecked;
        };
        let Some((held, owners)) = self.holders(prefix).filter(|(held, _)| range.covers(held))
        else {
            return match prefix.len() < shortest {
                true => Verdict::Invalid(Reason::TooShort(range)),
                false => Verdict::Unknown(Reason::NoOwner(range)),
            };
        };
        if owners.contains(&FREE) {
            return Verdict::Unchecked;
        }
        let hop = attrs.next_hop;
        // RFC 4456 §10: a reflector leaves the next hop alone, unless it is told to be one itself. What it then
        // reflects is the owner's only where the ORIGINATOR_ID is known to be: an unknown one proves nothing.
        let relayed = || {
            let by_relay = hop.is_some_and(|hop| self.relays.contains(&hop));
            let origin = attrs.originator_id.filter(|_| by_relay)?;
            let origin = self.router_ids.get(&origin).copied().flatten()?;
            owners.contains(&origin).then_some(())
        };
        let owner = owners
            .iter()
            .find(|id| hop.is_some_and(|hop| self.addresses.contains(&(**id, hop))));
        let reason = match (owner, attrs.originator_id) {
            (None, Some(_)) if relayed().is_some() => return Verdict::Valid,
            (None, _) => Reason::NextHop(self.name(owners[0]), held, hop),
            (Some(_), None) => return Verdict::Valid,
            (Some(id), Some(originator)) => match self.router_ids.get(&originator) {
                Some(Some(other)) if other != id => {
                    Reason::Originator(self.name(*id), held, originator, self.name(*other))
                }
                _ => return Verdict::Valid,
            },
        };
        match self.stale {
            true => Verdict::Unknown(reason),
            false => Verdict::Invalid(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn identity(n: u8) -> Identity {
        Identity {
            addresses: [[10, 0, 0, n].into()].into(),
            router_ids: [RouterId([10, 0, 0, n].into())].into(),
            relays: false,
        }
    }

    fn named(name: &str) -> Owner {
        Owner::Named(name.to_owned())
    }

    /// Two nodes with a block each; an address of node1's block is node2's.
    fn origins() -> Origins {
        let mut origins = Origins::default();
        let owned = Range::Owned { shortest: 26 };
        let rules = Rules {
            mode: Mode::Enforce,
            ranges: [
                (prefix("10.244.0.0/16"), owned),
                (prefix("10.244.255.0/24"), Range::Free),
            ]
            .into(),
            owners: [
                ("node1".to_owned(), identity(1)),
                ("node2".to_owned(), identity(2)),
            ]
            .into(),
        };
        let held = vec![
            (prefix("10.244.1.0/26"), named("node1"), true),
            (prefix("10.244.2.0/26"), named("node2"), true),
            (prefix("10.244.1.5/32"), named("node2"), true),
            (prefix("10.244.3.0/26"), Owner::Free, true),
        ];
        origins.apply(Update {
            rules: Some(rules),
            held,
            stale: None,
        });
        origins
    }

    fn route(hop: u8, originator: Option<u8>) -> PathAttrs {
        PathAttrs {
            next_hop: Some([10, 0, 0, hop].into()),
            originator_id: originator.map(|n| RouterId([10, 0, 0, n].into())),
            ..PathAttrs::default()
        }
    }

    fn word(origins: &Origins, text: &str, attrs: &PathAttrs) -> &'static str {
        match origins.check(&prefix(text), attrs) {
            Verdict::Unchecked => "unchecked",
            Verdict::Valid => "valid",
            Verdict::Invalid(_) => "invalid",
            Verdict::Unknown(_) => "unknown",
        }
    }

    #[test]
    fn the_owner_of_the_longest_match_may_announce() {
        let origins = origins();
        for (text, hop, expected) in [
            ("10.244.1.0/26", 1, "valid"),
            ("10.244.1.0/26", 2, "invalid"),
            ("10.244.1.0/26", 9, "invalid"),
            ("10.244.1.7/32", 1, "valid"),
            ("10.244.1.7/32", 2, "invalid"),
            ("10.244.1.5/32", 2, "valid"),
            ("10.244.1.5/32", 1, "invalid"),
            ("10.244.0.0/16", 1, "invalid"),
            ("10.244.1.0/25", 1, "invalid"),
            ("10.244.9.0/26", 1, "unknown"),
            ("10.244.9.1/32", 9, "unknown"),
            ("10.0.0.0/8", 9, "unchecked"),
            ("0.0.0.0/0", 9, "unchecked"),
            ("192.0.2.0/24", 9, "unchecked"),
            ("10.244.3.0/26", 9, "unchecked"),
            ("10.244.255.7/32", 9, "unchecked"),
        ] {
            let seen = word(&origins, text, &route(hop, None));
            assert_eq!(seen, expected, "{text} via {hop}");
        }
    }

    #[test]
    fn rfc4456_8_behind_a_reflector_the_originator_counts_where_it_is_known() {
        let origins = origins();
        for (hop, originator, expected) in [
            (1, 1, "valid"),
            (1, 2, "invalid"),
            (2, 1, "invalid"),
            // A node with CALICO_ROUTER_ID of its own, and one that the data does not know: packets go to the owner.
            (1, 77, "valid"),
            (2, 77, "invalid"),
        ] {
            let attrs = route(hop, Some(originator));
            let seen = word(&origins, "10.244.1.0/26", &attrs);
            assert_eq!(seen, expected, "{hop} {originator}");
        }
    }

    /// `nextHopMode: Self` on a reflector (node9): its own address is the next hop of what it reflects.
    #[test]
    fn rfc4456_10_a_reflector_that_is_the_next_hop_is_believed_what_is_the_owners() {
        let mut origins = origins();
        for (relays, originator, expected) in [
            (false, Some(1), "invalid"),
            (true, Some(1), "valid"),
            // Another node's, an unknown node's, and what the reflector says of itself.
            (true, Some(2), "invalid"),
            (true, Some(77), "invalid"),
            (true, None, "invalid"),
        ] {
            let mut rules = origins.rules.clone();
            let reflector = Identity {
                relays,
                ..identity(9)
            };
            rules.owners.insert("node9".to_owned(), reflector);
            origins.apply(Update {
                rules: Some(rules),
                ..Update::default()
            });
            let seen = word(&origins, "10.244.1.0/26", &route(9, originator));
            assert_eq!(seen, expected, "{relays} {originator:?}");
            // Another node is no relay.
            let by_node = word(&origins, "10.244.1.0/26", &route(2, originator));
            assert_eq!(by_node, "invalid");
        }
    }

    #[test]
    fn stale_data_refuses_nothing_for_good_and_off_checks_nothing() {
        let mut origins = origins();
        let update = |stale| Update {
            stale: Some(stale),
            ..Update::default()
        };
        origins.apply(update(true));
        let other = route(9, None);
        assert_eq!(word(&origins, "10.244.1.0/26", &other), "unknown");
        assert_eq!(word(&origins, "10.244.1.0/26", &route(1, None)), "valid");
        origins.apply(update(false));
        assert_eq!(word(&origins, "10.244.1.0/26", &other), "invalid");
        let off = Rules {
            mode: Mode::Off,
            ..origins.rules.clone()
        };
        origins.apply(Update {
            rules: Some(off),
            ..Update::default()
        });
        assert_eq!(word(&origins, "10.244.1.0/26", &other), "unchecked");
    }

    #[test]
    fn a_prefix_changes_hands() {
        let mut origins = origins();
        let block = prefix("10.244.1.0/26");
        let change = |held| Update {
            held,
            ..Update::default()
        };
        origins.apply(change(vec![(block, named("node2"), true)]));
        for hop in [1, 2] {
            let seen = word(&origins, "10.244.1.0/26", &route(hop, None));
            assert_eq!(seen, "valid", "both are named");
        }
        origins.apply(change(vec![(block, named("node1"), false)]));
        assert_eq!(word(&origins, "10.244.1.0/26", &route(1, None)), "invalid");
        origins.apply(change(vec![(block, named("node2"), false)]));
        assert_eq!(word(&origins, "10.244.1.0/26", &route(1, None)), "unknown");
        assert_eq!(origins.len(), 3);
    }

    #[test]
    fn reasons_name_owner_and_next_hop() {
        let origins = origins();
        let Verdict::Invalid(reason) = origins.check(&prefix("10.244.1.0/26"), &route(9, None))
        else {
            panic!("it is invalid");
        };
        assert_eq!(
            reason.to_string(),
            "10.244.1.0/26 is node1's, and the next hop 10.0.0.9 is no address of it"
        );
    }
}
