//! What the table has to hold, beside what it holds: for those who only ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caracal_model::SharedMap;

use super::address::ServiceAddress;
use super::entry::ServiceEntry;
use super::layout::SERVICES_TABLE;
use super::listing::{Listed, is_sealed};
use super::parts::{CLIENTS, Element, Part, parts};

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

fn elements(address: &ServiceAddress, entry: &ServiceEntry) -> impl Iterator<Item = Element> {
    parts(address, entry)
        .into_iter()
        .filter_map(|part| match part {
            Part::Element(element) => Some(element),
            Part::Pick(..) | Part::Keeping(_) => None,
        })
}

fn text(Element { key, data, .. }: &Element) -> String {
    match data {
        Some(data) => format!("{key} : {data}"),
        None => key.clone(),
    }
}

/// Elements that an address needs, by their set.
#[derive(Debug)]
pub(crate) struct NeededElements(BTreeMap<String, BTreeSet<Element>>);

impl NeededElements {
    pub(crate) fn new(address: &ServiceAddress, entry: &ServiceEntry) -> Self {
        let mut sets: BTreeMap<String, BTreeSet<Element>> = BTreeMap::new();
        for element in elements(address, entry) {
            sets.entry(element.set.clone()).or_default().insert(element);
        }
        Self(sets)
    }

    /// Names of the sets.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The script that prints just these elements of a set; it fails where one is missing.
    pub(crate) fn script(&self, set: &str) -> String {
        let needed = self.0.get(set).into_iter().flatten();
        let keys: Vec<&str> = needed.map(|element| element.key.as_str()).collect();
        let keys = keys.join(", ");
        format!("get element inet {SERVICES_TABLE} {set} {{ {keys} }}\n")
    }

    /// The script that lists a whole set. nftables finds a set under `set`, and a map, whose
    /// elements have data, under `map`.
    pub(crate) fn whole(&self, set: &str) -> String {
        let mut needed = self.0.get(set).into_iter().flatten();
        let kind = match needed.any(|element| element.data.is_some()) {
            true => "map",
            false => "set",
        };
        format!("list {kind} inet {SERVICES_TABLE} {set}\n")
    }

    /// The elements of a set beside a listing that has them.
    pub(crate) fn compare(&self, set: &str, listing: &str) -> Vec<ServiceElement> {
        let listed = Listed::parse(listing);
        let needed = self.0.get(set).into_iter().flatten();
        let element = |element: &Element| ServiceElement {
            set: set.to_owned(),
            element: text(element),
            is_there: listed.elements.contains(element),
        };
        needed.map(element).collect()
    }
}

/// Compares a listing of the whole table with what addresses need.
pub(crate) fn differences(
    entries: &SharedMap<ServiceAddress, Arc<ServiceEntry>>,
    listing: &str,
) -> ServiceDifferences {
    let mut listed = Listed::parse(listing);
    if !listed.is_ours() {
        return ServiceDifferences {
            unreadable: Some("the table is of another layout".to_owned()),
            ..ServiceDifferences::default()
        };
    }
    if !is_sealed(listing) {
        return ServiceDifferences {
            unreadable: Some("somebody has changed its chains".to_owned()),
            ..ServiceDifferences::default()
        };
    }
    let named = |element: &Element| format!("{} {}", element.set, text(element));
    let mut missing = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for element in entries.iter().flat_map(|(a, entry)| elements(a, entry)) {
        if listed.elements.remove(&element) {
            shared.insert(element);
        } else if !shared.contains(&element) {
            missing.insert(named(&element));
        }
    }
    let concerns = |element: &&Element| {
        !OTHERS.contains(&element.set.as_str()) && !element.set.starts_with(CLIENTS)
    };
    let unwanted = listed.elements.iter().filter(concerns).map(named);
    ServiceDifferences {
        unreadable: None,
        missing: missing.into_iter().collect(),
        unwanted: unwanted.collect(),
    }
}
