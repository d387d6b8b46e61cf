//! What the table has to hold, beside what it holds: for those who only ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caracal_model::SharedMap;

use super::address::ServiceAddress;
use super::entry::ServiceEntry;
use super::layout::SERVICES_TABLE;
use super::listing::{Listed, Seal};
use super::parts::{CLIENTS, Part, parts};
use crate::nft::{Element, Listing, SetName};

/// An element that the table has to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceElement {
    /// Name of its set or map.
    pub set: String,
    /// The element as nftables prints it.
    pub element: String,
    /// The kernel has it.
    pub is_there: bool,
}

/// Differences between the table and what it has to hold, each as set and element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceDifferences {
    /// Why nothing can be compared, such as that there is no table.
    pub unreadable: Option<String>,
    /// Elements that are not there.
    pub missing: Vec<String>,
    /// Elements that nobody wants.
    pub unwanted: Vec<String>,
}

/// Sets whose elements do not follow from addresses alone.
const OTHERS: [&str; 8] = [
    "pods4",
    "pods6",
    "ranges4",
    "ranges6",
    "spared4",
    "spared6",
    "kept-ports",
    "guarded-ports",
];

fn elements(
    address: &ServiceAddress,
    entry: &ServiceEntry,
) -> impl Iterator<Item = (SetName, Element)> {
    let parts = parts(address, entry).into_iter();
    parts.filter_map(|part| match part {
        Part::Element(set, element) => Some((set, element)),
        Part::Pick(..) | Part::Keeping(_) => None,
    })
}

/// Elements that an address needs, by their set.
#[derive(Debug)]
pub(crate) struct NeededElements(BTreeMap<SetName, BTreeSet<(SetName, Element)>>);

impl NeededElements {
    pub(crate) fn new(address: &ServiceAddress, entry: &ServiceEntry) -> Self {
        let mut sets = BTreeMap::<SetName, BTreeSet<_>>::new();
        for element in elements(address, entry) {
            let set = Arc::clone(&element.0);
            sets.entry(set).or_default().insert(element);
        }
        Self(sets)
    }

    /// Names of the sets.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|set| &**set)
    }

    /// The script that prints just these elements of a set; it fails where one is missing.
    pub(crate) fn script(&self, set: &str) -> String {
        let needed = self.0.get(set).into_iter().flatten();
        let keys: Vec<String> = needed.map(|(_, of)| of.key.to_string()).collect();
        let keys = keys.join(", ");
        format!("get element inet {SERVICES_TABLE} {set} {{ {keys} }}\n")
    }

    /// The script that lists a whole set. nftables finds a set under `set`, and a map, whose
    /// elements have data, under `map`.
    pub(crate) fn whole(&self, set: &str) -> String {
        let mut needed = self.0.get(set).into_iter().flatten();
        let kind = match needed.any(|(_, element)| element.data.is_some()) {
            true => "map",
            false => "set",
        };
        format!("list {kind} inet {SERVICES_TABLE} {set}\n")
    }

    /// The elements of a set beside a listing that has them.
    pub(crate) fn compare(&self, set: &str, listing: &str) -> Vec<ServiceElement> {
        let listed = Listed::parse(listing);
        let needed = self.0.get(set).into_iter().flatten();
        let element = |needed: &(SetName, Element)| ServiceElement {
            set: set.to_owned(),
            element: needed.1.to_string(),
            is_there: listed.elements.contains(needed),
        };
        needed.map(element).collect()
    }
}

/// Compares a listing of the whole table with what addresses need.
pub(crate) fn differences(
    entries: &SharedMap<ServiceAddress, Arc<ServiceEntry>>,
    listing: &str,
) -> ServiceDifferences {
    let listing = Listing::parse(listing);
    let mut listed = Listed::of(&listing);
    if !listed.is_ours() {
        return ServiceDifferences {
            unreadable: Some("the table is of another layout".to_owned()),
            ..ServiceDifferences::default()
        };
    }
    if Seal::of(&listing).is_broken {
        return ServiceDifferences {
            unreadable: Some("somebody has changed its chains".to_owned()),
            ..ServiceDifferences::default()
        };
    }
    let named = |(set, element): &(SetName, Element)| format!("{set} {element}");
    let mut missing = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for element in entries.iter().flat_map(|(a, entry)| elements(a, entry)) {
        if listed.elements.remove(&element) {
            shared.insert(element);
        } else if !shared.contains(&element) {
            missing.insert(named(&element));
        }
    }
    let concerns = |set: &SetName| !OTHERS.contains(&&**set) && !set.starts_with(CLIENTS);
    let unwanted = listed.elements.iter().filter(|(set, _)| concerns(set));
    let foreign = listed.foreign.iter().filter(|(set, _)| concerns(set));
    let foreign = foreign.map(|(set, text)| format!("{set} {text}"));
    let unwanted = unwanted.map(named).chain(foreign);
    ServiceDifferences {
        unreadable: None,
        missing: missing.into_iter().collect(),
        unwanted: unwanted.collect(),
    }
}
