//! Text and steps that make the table what it has to be.
//!
//! Order: new sets with what is in them; then, at once, new chains, elements of sets, and the
//! elements of the maps that lead from interfaces to chains; then chains and sets that nothing
//! leads to go. A set of intervals that a rule names in the transaction that fills it matches
//! nothing for a moment.

use std::fmt::Write as _;

use caracal_model::merge_join;

use super::layout::{MAPS, POLICY_TABLE, is_base};
use super::sets::declaration;
use super::table::PolicyTable;
use crate::nft::{Edit, Element, ElementData, Fields, Listing, Sets, Transaction};

const INFALLIBLE: &str = "writing to a String does not fail";
/// Lists the table.
pub(crate) fn listing() -> String {
    format!("list table inet {POLICY_TABLE}\n")
}

/// A checksum of all that is listed of the table but elements and counters.
pub(crate) fn structure(listing: &str) -> u64 {
    Listing::parse(listing).structure(|_| true)
}

/// Takes the table away, which is there.
pub(crate) fn removal() -> String {
    format!("delete table inet {POLICY_TABLE}\n")
}

impl PolicyTable {
    /// Transactions, one behind the other, that make of what was there before this table. `None` =
    /// there is no table.
    pub(crate) fn since(&self, before: Option<&Self>) -> [Transaction; 3] {
        let nothing = Self::default();
        let before = before.unwrap_or(&nothing);
        let (mut first, mut gone) = (Vec::new(), String::new());
        // One that was read may be of an earlier build, which had fewer maps.
        if before.base.is_empty() {
            let mut script = format!("add table inet {POLICY_TABLE}\n");
            for (map, key) in MAPS {
                script +=
                    &format!("add map inet {POLICY_TABLE} {map} {{ type {key} : verdict; }}\n");
            }
            first.push(Edit::Script(script));
        }
        let mut second = self.new_chains(before);
        let mut dead = String::new();
        for chain in before
            .chains
            .keys()
            .filter(|chain| !self.chains.contains_key(*chain))
        {
            writeln!(gone, "flush chain inet {POLICY_TABLE} {chain}").expect(INFALLIBLE);
            writeln!(dead, "delete chain inet {POLICY_TABLE} {chain}").expect(INFALLIBLE);
        }
        for (set, was, is) in merge_join(before.sets.iter(), self.sets.iter()) {
            match (was, is) {
                (Some(was), Some(is)) => {
                    let (less, more) = Sets::differing(was, is);
                    Sets::edits(&mut second, set, less, more);
                }
                (None, Some(is)) => {
                    let declared = declaration(set).unwrap_or_default();
                    first.push(Edit::Script(format!(
                        "add set inet {POLICY_TABLE} {set} {{ {declared} }}\n"
                    )));
                    Sets::edits(&mut first, set, Vec::new(), is.to_vec());
                }
                (Some(_), None) => {
                    writeln!(dead, "delete set inet {POLICY_TABLE} {set}").expect(INFALLIBLE);
                }
                (None, None) => {}
            }
        }
        self.move_leads(before, &mut second);
        gone += &dead;
        let mut last = Vec::new();
        if !gone.is_empty() {
            last.push(Edit::Script(gone));
        }
        [first, second, last].map(Transaction)
    }

    /// Steps that make the chains that are not there, or of which it is not known what is in them.
    fn new_chains(&self, before: &Self) -> Vec<Edit> {
        let (mut made, mut filled) = (String::new(), String::new());
        for (chain, rules) in &self.chains {
            let was = before.chains.get(chain);
            let Some(rules) = rules.as_ref().filter(|_| was != Some(rules)) else {
                continue;
            };
            writeln!(made, "add chain inet {POLICY_TABLE} {chain}").expect(INFALLIBLE);
            if was.is_some() {
                writeln!(filled, "flush chain inet {POLICY_TABLE} {chain}").expect(INFALLIBLE);
            }
            for rule in rules {
                writeln!(filled, "add rule inet {POLICY_TABLE} {chain} {rule}").expect(INFALLIBLE);
            }
        }
        // A list may lead to what the base has.
        if self.base != before.base {
            made = self.base.clone() + &made;
        }
        made += &filled;
        match made.is_empty() {
            true => Vec::new(),
            false => vec![Edit::Script(made)],
        }
    }

    fn move_leads(&self, before: &Self, edits: &mut Vec<Edit>) {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for ((map, key), was, is) in merge_join(leads(before), leads(self)) {
            if was == is {
                continue;
            }
            let element = |chain: &str| {
                let to = ElementData::Goto(chain.into());
                (map.into(), Element::leading(key, to))
            };
            gone.extend(was.map(element));
            come.extend(is.map(element));
        }
        edits.extend(crate::nft::by_set(gone, Edit::Delete));
        edits.extend(crate::nft::by_set(come, Edit::Add));
    }

    /// Reads the table as it is listed, and the steps that take away what nobody here has written.
    pub(crate) fn adopt(listing: &str) -> (Self, Transaction) {
        let listing = Listing::parse(listing);
        let mut table = Self::default();
        let mut strays = String::new();
        for set in listing.sets() {
            let mut maps = MAPS.iter();
            let map = maps.find(|(map, _)| *map == set.name);
            let mut keys = Vec::new();
            for text in &set.elements {
                match (map, Element::parse(text)) {
                    (
                        Some((map, _)),
                        Some(Element {
                            key,
                            data: Some(ElementData::Goto(chain)),
                        }),
                    ) => {
                        table.leads.insert((map, key), chain);
                    }
                    (None, Some(Element { key, data: None })) => keys.push(key),
                    _ => writeln!(
                        strays,
                        "delete element inet {POLICY_TABLE} {} {{ {text} }}",
                        set.name
                    )
                    .expect(INFALLIBLE),
                }
            }
            if map.is_none() {
                table.sets.put(set.name, keys);
            }
        }
        for chain in listing.chains() {
            if !is_base(chain.name) {
                table.chains.insert(chain.name.into(), None);
            }
        }
        let strays = match strays.is_empty() {
            true => Transaction::default(),
            false => strays.into(),
        };
        (table, strays)
    }
}

type Lead<'a> = ((&'static str, Fields), &'a str);

fn leads(of: &PolicyTable) -> impl Iterator<Item = Lead<'_>> {
    of.leads.iter().map(|(at, chain)| (*at, &**chain))
}
