//! Our table as it is in the kernel, and how it becomes another one when nothing but elements of
//! sets differs. With thousands of nodes the table is long, and a node that joins is two elements.

use std::fmt::Write;
use std::sync::Arc;

use caracal_model::merge_join;

use super::elements::{Element, sum};
use super::listing::{Checksum, Listing};
use super::{CHECKSUM, FINGERPRINT, NftTable, TABLE};
use crate::nat::Nat;
use crate::nft::{SetElement, TableEdit, Transaction, are_few};

/// Our table in the kernel, as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    nat: Arc<Nat>,
    /// The marks in the kernel: the fingerprint, and the checksum in whichever form.
    fingerprint: String,
    mark: String,
    checksum: Checksum,
}

impl Written {
    /// The table that nftables lists, when it is that of `nat` and nobody has changed it.
    #[must_use]
    pub(crate) fn found(listing: &Listing<'_>, nat: &Arc<Nat>) -> Option<Self> {
        let (fingerprint, mark) = (listing.fingerprint()?, listing.mark()?);
        (listing.is_untouched() && listing.is_of(nat)).then(|| Self {
            nat: Arc::clone(nat),
            fingerprint: fingerprint.to_owned(),
            mark: mark.to_owned(),
            checksum: listing.checksum(),
        })
    }

    /// The rules that it is made of.
    pub(crate) const fn nat(&self) -> &Arc<Nat> {
        &self.nat
    }

    /// The table of `nat`, as nftables lists it just after it was written, and the script that
    /// marks it with its checksum.
    #[must_use]
    pub(crate) fn just_now(listing: &Listing<'_>, nat: &Arc<Nat>) -> (Self, String) {
        let checksum = listing.checksum();
        let written = Self {
            nat: Arc::clone(nat),
            fingerprint: nat.fingerprint(),
            mark: checksum.to_string(),
            checksum,
        };
        let script = format!("add chain inet {TABLE} {CHECKSUM}{}\n", written.mark);
        (written, script)
    }

    /// True when the sets have the elements of the rules. Otherwise somebody changed the table
    /// between the writing and the listing.
    #[must_use]
    pub(crate) fn has_all_elements(&self) -> bool {
        self.checksum.elements == NftTable::new(&self.nat).sets.sum()
    }

    /// The transaction that makes the table that of `nat`, and the table afterwards.
    /// `None` where they differ in more than elements of sets.
    #[must_use]
    pub(crate) fn change(&self, nat: &Arc<Nat>) -> Option<(Transaction, Self)> {
        let (was, is) = (NftTable::new(&self.nat), NftTable::new(nat));
        if was.text != is.text {
            return None;
        }
        let (mut script, mut edits) = (String::new(), Vec::new());
        let mut elements = self.checksum.elements;
        for (set, now) in &is.sets.0 {
            let before = was.sets.0.get(set)?;
            let both = || merge_join(keys(before), keys(now));
            let gone = both().filter(|(_, was, is)| was.is_some() && is.is_none());
            let gone: Vec<_> = gone.map(|(element, ..)| element).collect();
            let added = both().filter(|(_, was, is)| was.is_none() && is.is_some());
            let added: Vec<_> = added.map(|(element, ..)| element).collect();
            elements = elements
                .wrapping_sub(sum(set, &gone))
                .wrapping_add(sum(set, &added));
            put(&mut script, "delete", set, &gone);
            put(&mut script, "add", set, &added);
            edits.push(as_data(&gone).map(|gone| TableEdit::Delete(set.clone(), gone)));
            edits.push(as_data(&added).map(|added| TableEdit::Add(set.clone(), added)));
        }
        let checksum = Checksum {
            elements,
            ..self.checksum
        };
        let written = Self {
            nat: Arc::clone(nat),
            fingerprint: is.fingerprint(),
            mark: checksum.to_string(),
            checksum,
        };
        for (of, was, is) in [
            (FINGERPRINT, &self.fingerprint, &written.fingerprint),
            (CHECKSUM, &self.mark, &written.mark),
        ] {
            if was != is {
                put_mark(&mut script, of, was, is);
                edits.push(Some(TableEdit::DeleteChain(format!("{of}{was}"))));
                edits.push(Some(TableEdit::AddChain(format!("{of}{is}"))));
            }
        }
        let edits: Option<Vec<TableEdit>> = edits.into_iter().collect();
        let edits = edits.filter(|edits| are_few(edits));
        Some((Transaction { script, edits }, written))
    }
}

fn keys<'e, 'a>(
    elements: &'e [Element<'a>],
) -> impl Iterator<Item = (Element<'a>, ())> + use<'e, 'a> {
    elements.iter().map(|element| (*element, ()))
}

fn as_data(elements: &[Element<'_>]) -> Option<Vec<SetElement>> {
    elements.iter().map(Element::as_data).collect()
}

fn put(script: &mut String, verb: &str, set: &str, elements: &[Element<'_>]) {
    if elements.is_empty() {
        return;
    }
    let elements: Vec<String> = elements.iter().map(Element::to_string).collect();
    let elements = elements.join(", ");
    writeln!(script, "{verb} element inet {TABLE} {set} {{ {elements} }}")
        .expect("writing to a String does not fail");
}

fn put_mark(script: &mut String, mark: &str, before: &str, now: &str) {
    for (verb, value) in [("delete", before), ("add", now)] {
        writeln!(script, "{verb} chain inet {TABLE} {mark}{value}")
            .expect("writing to a String does not fail");
    }
}
