//! Our table as it is in the kernel, and how it becomes another one when nothing but elements of
//! sets differs. With thousands of nodes the table is long, and a node that joins is two elements.

use std::sync::Arc;

use super::NftTable;
use crate::nat::Nat;
use crate::nft::{CHECKSUM, Checksum, Edit, FINGERPRINT, Listing, Transaction};

/// Our table in the kernel, as it was written.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    nat: Arc<Nat>,
    checksum: Checksum,
}

impl Written {
    /// The table that nftables lists, when it is that of `nat` and nobody has changed it.
    #[must_use]
    pub(crate) fn found(listing: &Listing<'_>, nat: &Arc<Nat>) -> Option<Self> {
        (listing.is_untouched() && is_of(listing, nat)).then(|| Self {
            nat: Arc::clone(nat),
            checksum: listing.checksum(),
        })
    }

    /// The rules that it is made of.
    pub(crate) const fn nat(&self) -> &Arc<Nat> {
        &self.nat
    }

    /// The table of `nat`, as nftables lists it just after it was written, and what marks it
    /// with its checksum.
    #[must_use]
    pub(crate) fn just_now(listing: &Listing<'_>, nat: &Arc<Nat>) -> (Self, Transaction) {
        let written = Self {
            nat: Arc::clone(nat),
            checksum: listing.checksum(),
        };
        let mark = Edit::AddChain(format!("{CHECKSUM}{}", written.checksum), Vec::new());
        (written, Transaction(vec![mark]))
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
        let (mut edits, difference) = was.sets.change(&is.sets)?;
        let mut checksum = self.checksum;
        checksum.elements = checksum.elements.wrapping_add(difference);
        for (of, was, is) in [
            (FINGERPRINT, self.nat.fingerprint(), nat.fingerprint()),
            (CHECKSUM, self.checksum.to_string(), checksum.to_string()),
        ] {
            if was != is {
                edits.push(Edit::DeleteChain(format!("{of}{was}")));
                edits.push(Edit::AddChain(format!("{of}{is}"), Vec::new()));
            }
        }
        let nat = Arc::clone(nat);
        Some((Transaction(edits), Self { nat, checksum }))
    }
}

/// True when the table says that it is that of these rules.
pub(crate) fn is_of(listing: &Listing<'_>, nat: &Nat) -> bool {
    listing.fingerprint() == Some(nat.fingerprint().as_str())
}
