//! Our table as nftables lists it, read back at a start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caracal_model::InsertEach;

use super::address::{ServiceAddress, ServiceTarget};
use super::clients::Client;
use super::layout::mark;
use super::parts::{CLIENTS, Keeping, is_map_of_clients, is_of_clients, pick_of, pick_rules};
use crate::nft::{
    CHECKSUM, Edit, Element, ElementData, Field, Fields, Listing, PickRule, Section, SetName,
    Transaction,
};

/// What was listed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed<'a> {
    pub(super) elements: BTreeSet<(SetName, Element)>,
    /// Elements of no form that we write, as nftables prints them.
    pub(super) foreign: Vec<(SetName, String)>,
    pub(super) chains: BTreeSet<String>,
    /// Rules of the chains of service ports whose clients keep their endpoints.
    affine: BTreeMap<&'a str, Vec<&'a str>>,
    /// Maps of such service ports, with their elements where they are clients.
    maps: BTreeMap<&'a str, Vec<&'a str>>,
    orders: BTreeMap<(&'static str, ServiceAddress), BTreeMap<u32, ServiceTarget>>,
}

impl<'a> Listed<'a> {
    /// Reads what `nft list table` prints.
    pub(super) fn parse(text: &'a str) -> Self {
        Self::of(&Listing::parse(text))
    }

    pub(super) fn of(listing: &Listing<'a>) -> Self {
        let mut listed = Self::default();
        let names = listing.chains().map(|chain| chain.name.to_owned());
        listed.chains = names.insert_each();
        let affine = listing.chains().filter(|chain| is_of_clients(chain.name));
        let affine = affine.map(|chain| (chain.name, chain.rules().to_vec()));
        listed.affine = affine.insert_each();
        for map in listing.sets().filter(|set| is_map_of_clients(set.name)) {
            let clients = map.elements.iter();
            let clients = clients.filter(|_| map.name.starts_with(CLIENTS));
            listed.maps.insert(map.name, clients.copied().collect());
        }
        // Clients of services come and go by themselves.
        for set in listing.sets().filter(|set| !set.name.starts_with(CLIENTS)) {
            let name: SetName = set.name.into();
            for text in set.elements.iter().map(|text| without_counter(text)) {
                match Element::parse(text) {
                    Some(element) => {
                        listed.note_order(&name, &element);
                        listed.elements.insert((Arc::clone(&name), element));
                    }
                    None => listed.foreign.push((Arc::clone(&name), text.to_owned())),
                }
            }
        }
        listed
    }

    fn note_order(&mut self, set: &str, Element { key, data }: &Element) {
        let list = match set {
            _ if set.starts_with("endpoints") => "endpoints",
            _ if set.starts_with("here") => "here",
            _ => return,
        };
        let target = match data {
            Some(ElementData::Value(address, port)) => Some(ServiceTarget {
                address: *address,
                port: *port,
            }),
            _ => None,
        };
        let address = ServiceAddress::of_key(key);
        let index = key.iter().last();
        if let (Some(address), Some(Field::Index(index)), Some(target)) = (address, index, target) {
            let order = self.orders.entry((list, address)).or_default();
            order.insert(*index, target);
        }
    }

    /// True when the table is of the layout that we write.
    pub(super) fn is_ours(&self) -> bool {
        self.chains.contains(&mark())
    }

    /// True where the chains of a service port whose clients keep their endpoints have the rules
    /// that they should have, and so lead to maps of their own.
    pub(super) fn keeps(&self, keeping: &Keeping) -> bool {
        let is_there = |(name, rules): &(String, Vec<String>)| {
            let listed = self.affine.get(name.as_str());
            listed.is_some_and(|listed| {
                let listed = listed.iter().map(|rule| tight(rule));
                listed.eq(rules.iter().map(|rule| tight(rule)))
            })
        };
        keeping.chains().iter().all(is_there)
    }

    /// True where a client in this map keeps an endpoint that is none of these.
    pub(super) fn has_stray_client(&self, map: &str, allowed: &BTreeSet<ServiceTarget>) -> bool {
        let listed = self.maps.get(map).into_iter().flatten();
        let mut clients = listed.filter_map(|text| Client::parse(text));
        clients.any(|client| client.is_stray(allowed))
    }

    /// Maps of service ports whose clients keep their endpoints.
    pub(super) fn maps_of_clients(&self) -> impl Iterator<Item = &'a str> {
        self.maps.keys().copied()
    }

    /// The endpoints of an address in the order of their indices, wherever they run and here.
    pub(super) fn order(
        &self,
        address: &ServiceAddress,
    ) -> (Vec<ServiceTarget>, Vec<ServiceTarget>) {
        let of = |list| {
            let targets = self.orders.get(&(list, *address));
            targets.map_or_else(Vec::new, |targets| targets.values().copied().collect())
        };
        (of("endpoints"), of("here"))
    }
}

/// By what a table is sealed. Elements are none of it: each of them is compared with the plan. Nor
/// are chains that pick, where nftables prints them as they are written: they come and go without
/// anything that is listed.
#[derive(Debug)]
pub(super) struct Seal {
    structure: String,
    pub(super) is_broken: bool,
    /// The table's seal is of the version before, in which chains that pick were part of it.
    pub(super) is_old: bool,
    /// Chains that pick may come and go, and the seal stays as it is. False also where there is
    /// none: how nftables prints them is not known then.
    pub(super) follows: bool,
}

impl Seal {
    /// The seal of the table that was listed, with or without elements.
    pub(super) fn of(listing: &Listing<'_>) -> Self {
        let structure = listing.structure(|section| !picks_as_written(section));
        let structure = format!("{structure:016x}");
        let marks = listing.marks(CHECKSUM);
        let is_sealed = *marks == [structure.as_str()];
        let is_old = !is_sealed && *marks == [format!("{:016x}", listing.structure(|_| true))];
        let mut picks = listing
            .chains()
            .filter(|chain| pick_of(chain.name).is_some());
        let first = picks.next();
        Self {
            structure,
            is_broken: !is_sealed && !is_old,
            is_old,
            follows: first.is_some_and(picks_as_written) && picks.all(picks_as_written),
        }
    }

    /// What puts it on the table.
    pub(super) fn put(&self, listing: &Listing<'_>) -> Transaction {
        let old = listing.marks(CHECKSUM).into_iter();
        let old = old.filter(|mark| *mark != self.structure);
        let old = old.map(|mark| Edit::DeleteChain(format!("{CHECKSUM}{mark}")));
        let new = Edit::AddChain(format!("{CHECKSUM}{}", self.structure), Vec::new());
        Transaction(old.chain([new]).collect())
    }
}

/// True for a chain that picks an endpoint, and has just the rules that it should have.
fn picks_as_written(section: &Section<'_>) -> bool {
    pick_of(section.name).is_some_and(|(endpoints, count)| {
        let rules = pick_rules(endpoints, count);
        let rules = rules.iter().map(PickRule::to_string);
        rules.eq(section.rules().iter().copied())
    })
}

/// A rule without space around colons, which versions of nftables print differently.
fn tight(rule: &str) -> String {
    rule.replace(" : ", ":")
}

const COUNTER: &str = " counter packets ";

fn without_counter(element: &str) -> &str {
    let split = element.split_once(COUNTER);
    split.map_or(element, |(element, _)| element)
}

/// Packets that each address of a listed set with counters was found for.
pub(crate) fn hits(text: &str) -> Vec<(ServiceAddress, u64)> {
    let hits = |element: &str| {
        let (key, counter) = element.split_once(COUNTER)?;
        let packets = counter.split(' ').next()?.parse().ok()?;
        Some((ServiceAddress::of_key(&Fields::parse(key)?)?, packets))
    };
    let listing = Listing::parse(text);
    let elements = listing.sets().flat_map(|set| &set.elements);
    elements.filter_map(|element| hits(element)).collect()
}
