//! Our table as nftables lists it, read back at a start.

use std::collections::{BTreeMap, BTreeSet};

use super::address::{ServiceAddress, ServiceTarget};
use super::layout::{SERVICES_TABLE, mark};
use super::parts::{CLIENTS, Element};
use crate::nat::nft::CHECKSUM;
use crate::nat::nft::listing::Listing;

/// What was listed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) elements: BTreeSet<Element>,
    pub(super) chains: BTreeSet<String>,
    orders: BTreeMap<(&'static str, ServiceAddress), BTreeMap<u32, ServiceTarget>>,
}

impl Listed {
    /// Reads what `nft list table` prints.
    pub(super) fn parse(text: &str) -> Self {
        let mut listed = Self::default();
        let mut set = "";
        let mut inside = false;
        for line in text.lines().map(str::trim) {
            let named = |kind: &str| line.strip_prefix(kind)?.strip_suffix(" {");
            if let Some(name) = named("map ").or_else(|| named("set ")) {
                set = name;
            } else if let Some(name) = named("chain ") {
                listed.chains.insert(name.to_owned());
            }
            let elements = match line.strip_prefix("elements = {") {
                Some(first) => {
                    inside = true;
                    first
                }
                None if inside => line,
                None => continue,
            };
            if elements.ends_with('}') {
                inside = false;
            }
            // Clients of services come and go by themselves.
            if !set.starts_with(CLIENTS) {
                listed.add(set, elements.trim_end_matches('}'));
            }
        }
        listed
    }

    fn add(&mut self, set: &str, elements: &str) {
        for element in elements.split(',').map(str::trim).filter(|e| !e.is_empty()) {
            let element = without_counter(element);
            let (key, data) = match element.split_once(" : ") {
                Some((key, data)) => (key, Some(data)),
                None => (element, None),
            };
            self.note_order(set, key, data);
            self.elements.insert(Element {
                set: set.to_owned(),
                key: key.to_owned(),
                data: data.map(str::to_owned),
            });
        }
    }

    fn note_order(&mut self, set: &str, key: &str, target: Option<&str>) {
        let list = match set {
            _ if set.starts_with("endpoints") => "endpoints",
            _ if set.starts_with("here") => "here",
            _ => return,
        };
        let index = key
            .rsplit_once(" . ")
            .and_then(|(_, index)| index.parse().ok());
        let target = target.and_then(ServiceTarget::of_value);
        let address = ServiceAddress::of_key(key);
        if let (Some(address), Some(index), Some(target)) = (address, index, target) {
            self.orders
                .entry((list, address))
                .or_default()
                .insert(index, target);
        }
    }

    /// True when the table is of the layout that we write.
    pub(super) fn is_ours(&self) -> bool {
        self.chains.contains(&mark())
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

/// True when chains, sets and rules are as they were when the table was sealed. Elements are none
/// of it: each of them is compared with the plan.
pub(super) fn is_sealed(text: &str) -> bool {
    let listing = Listing::parse(text);
    *listing.marks() == [listing.structure()]
}

/// The script that seals a table as it was listed, with or without elements.
pub(super) fn seal(text: &str) -> String {
    let listing = Listing::parse(text);
    let (table, structure) = (SERVICES_TABLE, listing.structure());
    let old = listing.marks().iter().filter(|mark| **mark != structure);
    let old = old.map(|mark| format!("delete chain inet {table} {CHECKSUM}{mark}\n"));
    let new = format!("add chain inet {table} {CHECKSUM}{structure}\n");
    old.chain([new]).collect()
}

const COUNTER: &str = " counter packets ";

fn without_counter(element: &str) -> &str {
    let split = element.split_once(COUNTER);
    split.map_or(element, |(element, _)| element)
}

/// Packets that each address of a listed set with counters was found for.
pub(super) fn hits(text: &str) -> impl Iterator<Item = (ServiceAddress, u64)> {
    let elements = text.split_once("elements = {").map_or("", |(_, rest)| rest);
    elements.split(',').filter_map(|element| {
        let (key, counter) = element.split_once(COUNTER)?;
        let packets = counter.split(' ').next()?.parse().ok()?;
        Some((ServiceAddress::of_key(key.trim())?, packets))
    })
}

/// Clients in the listing of one map whose endpoint is none of these.
pub(crate) fn stray_clients(text: &str, allowed: &BTreeSet<ServiceTarget>) -> Vec<String> {
    let Some((_, elements)) = text.split_once("elements = {") else {
        return Vec::new();
    };
    let elements = elements.split('}').next().unwrap_or_default().split(',');
    let client = |element: &str| {
        let (key, target) = element.split_once(" : ")?;
        let target = target.trim();
        let stays = match ServiceTarget::of_value(target) {
            Some(target) => allowed.contains(&target),
            None => allowed
                .iter()
                .any(|allowed| target.parse() == Ok(allowed.address)),
        };
        let address = key.split_whitespace().next()?;
        (!stays).then(|| address.to_owned())
    };
    elements.filter_map(client).collect()
}
