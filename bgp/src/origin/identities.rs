//! Identities of owners, looked up by address and by BGP Identifier.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::Prefix;
use foldhash::HashMap;

use super::{OwnerId, OwnerIdentity, SourceIds};
use crate::attrs::PathAttrs;
use crate::types::{Asn, RouterId};

/// The identities of all owners.
#[derive(Debug, Default)]
pub(super) struct Identities {
    known: HashMap<OwnerId, OwnerIdentity>,
    by_address: HashMap<IpAddr, Vec<OwnerId>>,
    /// The addresses in their order.
    addresses: BTreeSet<IpAddr>,
    by_router_id: HashMap<RouterId, Vec<OwnerId>>,
    /// Numbers of owners by AS.
    asns: BTreeMap<Asn, u32>,
}

/// Owners that a source speaks for.
#[derive(Debug, Default)]
pub(super) struct Entitled {
    pub(super) owners: Vec<OwnerId>,
    /// That it speaks for them follows from their own identities alone.
    pub(super) by_own: bool,
}

/// Next hops, ORIGINATOR_IDs and ASes of which it differs whose they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    hops: Vec<IpAddr>,
    originators: Vec<RouterId>,
    asns: Vec<Asn>,
}

impl Sources {
    pub(crate) const fn is_empty(&self) -> bool {
        self.hops.is_empty() && self.originators.is_empty() && self.asns.is_empty()
    }

    /// The next hops among them: addresses that an owner got or lost.
    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.hops
    }

    /// True for a route from one of them.
    pub(crate) fn include(&self, attrs: &PathAttrs) -> bool {
        let hop = attrs.next_hop.as_ref();
        let originator = attrs.originator_id.as_ref();
        hop.is_some_and(|hop| self.hops.contains(hop))
            || originator.is_some_and(|id| self.originators.contains(id))
            || !self.asns.is_empty() && attrs.as_path.asns().any(|asn| self.asns.contains(&asn))
    }

    /// Adds a next hop.
    pub(super) fn add_hop(&mut self, hop: IpAddr) {
        self.hops.push(hop);
    }

    /// Adds what differs between two identities of an owner.
    fn add(&mut self, old: Option<&OwnerIdentity>, new: Option<&OwnerIdentity>) {
        let (nobody, relays) = (OwnerIdentity::default(), |of: &OwnerIdentity| of.relays);
        let (old, new) = (old.unwrap_or(&nobody), new.unwrap_or(&nobody));
        match relays(old) == relays(new) {
            true => self
                .hops
                .extend(old.addresses.symmetric_difference(&new.addresses)),
            false => self.hops.extend(old.addresses.union(&new.addresses)),
        }
        self.originators
            .extend(old.router_ids.symmetric_difference(&new.router_ids));
        if old.asn != new.asn {
            self.asns.extend(old.asn.into_iter().chain(new.asn));
        }
    }
}

fn add<K: Eq + std::hash::Hash>(map: &mut HashMap<K, Vec<OwnerId>>, key: K, id: OwnerId) {
    map.entry(key).or_default().push(id);
}

fn remove<K: Eq + std::hash::Hash>(map: &mut HashMap<K, Vec<OwnerId>>, key: &K, id: OwnerId) {
    if let Some(ids) = map.get_mut(key) {
        ids.retain(|known| *known != id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

impl Identities {
    /// Replaces what is known of an owner.
    pub(super) fn set(&mut self, id: OwnerId, identity: Option<OwnerIdentity>) {
        if let Some(old) = self.known.remove(&id) {
            for address in &old.addresses {
                remove(&mut self.by_address, address, id);
                if !self.by_address.contains_key(address) {
                    self.addresses.remove(address);
                }
            }
            for router_id in &old.router_ids {
                remove(&mut self.by_router_id, router_id, id);
            }
            if let Some(asn) = old.asn
                && let Some(number) = self.asns.get_mut(&asn)
            {
                *number -= 1;
                if *number == 0 {
                    self.asns.remove(&asn);
                }
            }
        }
        let Some(identity) = identity else {
            return;
        };
        for address in &identity.addresses {
            add(&mut self.by_address, *address, id);
            self.addresses.insert(*address);
        }
        for router_id in &identity.router_ids {
            add(&mut self.by_router_id, *router_id, id);
        }
        if let Some(asn) = identity.asn {
            *self.asns.entry(asn).or_default() += 1;
        }
        self.known.insert(id, identity);
    }

    /// Adds to `sources` what another identity of an owner changes.
    pub(super) fn differences(
        &self,
        id: Option<OwnerId>,
        identity: Option<&OwnerIdentity>,
        sources: &mut Sources,
    ) {
        let old = id.and_then(|id| self.known.get(&id));
        sources.add(old, identity);
    }

    /// The addresses of owners that a prefix covers, in their order.
    pub(super) fn addresses_in(&self, prefix: &Prefix) -> impl Iterator<Item = IpAddr> {
        let from_there = self.addresses.range(prefix.address()..).copied();
        from_there.take_while(move |address| prefix.contains(*address))
    }

    /// The first of them.
    pub(super) fn first_in(&self, prefix: &Prefix) -> Option<IpAddr> {
        self.addresses_in(prefix).next()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied()
    }

    /// Owners that have an address.
    pub(super) fn of_address(&self, address: &IpAddr) -> &[OwnerId] {
        self.by_address.get(address).map_or(&[], Vec::as_slice)
    }

    /// The one owner with a BGP Identifier.
    pub(super) fn of_router_id(&self, id: RouterId) -> Option<OwnerId> {
        match self.by_router_id.get(&id)?[..] {
            [one] => Some(one),
            _ => None,
        }
    }

    /// The AS of an owner.
    pub(super) fn asn_of(&self, id: OwnerId) -> Option<Asn> {
        self.known.get(&id)?.asn
    }

    /// True for the AS of some owner.
    pub(super) fn is_asn(&self, asn: Asn) -> bool {
        self.asns.contains_key(&asn)
    }

    /// True for the next hop of an owner that relays.
    fn relays(&self, address: &IpAddr) -> bool {
        let mut owners = self.of_address(address).iter();
        owners.any(|id| self.known.get(id).is_some_and(|identity| identity.relays))
    }

    /// Owners that a source speaks for.
    pub(super) fn entitled(&self, (hop, originator): SourceIds) -> Entitled {
        let Some(hop) = hop else {
            return Entitled::default();
        };
        let mut owners = self.of_address(&hop).to_vec();
        let known = originator.and_then(|id| self.of_router_id(id));
        let Some(known) = known else {
            return Entitled {
                owners,
                by_own: originator.is_none(),
            };
        };
        owners.retain(|id| *id == known);
        // RFC 4456 §10: a reflector keeps the next hop, unless it is configured with next-hop-self.
        // A route that it then reflects is the owner's only if the ORIGINATOR_ID is known to be the
        // owner's: an unknown one proves nothing.
        let by_own = !owners.is_empty();
        if !by_own && self.relays(&hop) {
            owners.push(known);
        }
        Entitled { owners, by_own }
    }
}
