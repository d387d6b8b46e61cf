//! A group's changes in bundles that can be encoded once for all members.
//!
//! RIB-3 says that what a member is told is a function of the group's change and of the member. For nearly all
//! members that function is the same: only who sent a route, or whose address is its next hop, is told something else. A
//! bundle holds what all others are told, and the index says who the exceptions are.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::net::Prefix;
use foldhash::{HashMap, HashSet};

use super::PeerId;
use super::adj_out::{GroupRoute, GroupUpdate, Member, Sent};
use crate::attrs::PathAttrs;

/// Changes that go to all but a few members alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The attributes to announce with; `None` withdraws.
    pub attrs: Option<Arc<PathAttrs>>,
    /// What is announced or withdrawn; empty when only exceptions are told anything.
    pub prefixes: Vec<Prefix>,
    /// Indices of the changes.
    routes: Vec<usize>,
}

/// A group's change in bundles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundles {
    /// The bundles; no prefix is in two of them.
    pub bundles: Vec<Bundle>,
    by_source: HashMap<PeerId, Vec<usize>>,
    by_address: HashMap<IpAddr, Vec<usize>>,
}

/// What tells a bundle from another: the members to whom it may not apply, and what it says.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    says: Says,
    sources: [Option<PeerId>; 2],
    addresses: [Option<IpAddr>; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Says {
    Nothing,
    Withdraw,
    /// Interned sets: the address is the identity.
    Announce(usize),
}

impl GroupUpdate {
    /// The changes in bundles.
    #[must_use]
    pub fn bundles(&self) -> Bundles {
        let peers: HashSet<PeerId> = self.members.iter().map(|member| member.peer).collect();
        let addresses: HashSet<IpAddr> = self.members.iter().map(Member::address).collect();
        let mut bundles = Bundles::default();
        let mut known: HashMap<Key, usize> = HashMap::default();
        let mut last: Option<(Key, usize)> = None;
        for (index, route) in self.routes.iter().enumerate() {
            let key = key(route, &peers, &addresses);
            let at = match last {
                Some((same, at)) if same == key => at,
                _ => *known
                    .entry(key)
                    .or_insert_with(|| bundles.open(&key, route)),
            };
            last = Some((key, at));
            let bundle = &mut bundles.bundles[at];
            bundle.routes.push(index);
            if key.says != Says::Nothing {
                bundle.prefixes.push(route.prefix);
            }
        }
        bundles
    }

    /// What a member is told about the changes of a bundle.
    pub fn exception<'a>(
        &'a self,
        bundle: &'a Bundle,
        member: &'a Member,
    ) -> impl Iterator<Item = (Prefix, Option<Arc<PathAttrs>>)> + 'a {
        let routes = bundle.routes.iter().filter_map(|at| self.routes.get(*at));
        routes.filter_map(|route| route.for_member(member))
    }
}

impl Bundles {
    fn open(&mut self, key: &Key, route: &GroupRoute) -> usize {
        let at = self.bundles.len();
        let attrs = match key.says {
            Says::Announce(_) => route.after().map(|sent| sent.attrs().clone()),
            Says::Withdraw | Says::Nothing => None,
        };
        self.bundles.push(Bundle {
            attrs,
            ..Bundle::default()
        });
        for source in key.sources.into_iter().flatten() {
            self.by_source.entry(source).or_default().push(at);
        }
        for address in key.addresses.into_iter().flatten() {
            self.by_address.entry(address).or_default().push(at);
        }
        at
    }

    /// Indices of the bundles that may say something else to this member, ascending.
    #[must_use]
    pub fn exceptions(&self, member: &Member) -> Vec<usize> {
        let sent = self.by_source.get(&member.peer).into_iter().flatten();
        let hops = self.by_address.get(&member.address()).into_iter().flatten();
        let mut found: Vec<usize> = sent.chain(hops).copied().collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn key(route: &GroupRoute, peers: &HashSet<PeerId>, addresses: &HashSet<IpAddr>) -> Key {
    let both = [route.before(), route.after()];
    let says = match both {
        [_, None] if route.before().is_none() => Says::Nothing,
        [_, None] => Says::Withdraw,
        [Some(before), Some(after)] if Arc::ptr_eq(before.attrs(), after.attrs()) => Says::Nothing,
        [_, Some(after)] => Says::Announce(Arc::as_ptr(after.attrs()).addr()),
    };
    let source = |sent: Option<&Sent>| sent.map(Sent::source).filter(|peer| peers.contains(peer));
    let address = |sent: Option<&Sent>| {
        let hop = sent.and_then(|sent| sent.attrs().next_hop);
        hop.filter(|hop| addresses.contains(hop))
    };
    Key {
        says,
        sources: both.map(source),
        addresses: both.map(address),
    }
}
