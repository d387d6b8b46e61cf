//! The table of services, from snapshot to transactions: what the shell drives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use caracal_model::{Family, Problem, SharedMap, Snapshot};

use super::address::{ServiceAddress, ServiceTarget};
use super::entry::ServiceEntry;
use super::health::ServiceHealth;
use super::layout::{SERVICES_TABLE, digit};
use super::listing::{Listed, Seal};
use super::planner::ServicePlanner;
use super::script::{transactions, whole};
use super::settings::ServiceNode;
use super::written::{Change, Written};
use crate::nft::{Listing, Transaction};

/// Transactions that make the table what is planned.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TableChange {
    /// In order.
    pub(crate) transactions: Vec<Transaction>,
    /// Elements and chains that change.
    pub(crate) parts: usize,
    /// Chains change: the table has to be sealed anew behind that, with [`ServiceTable::seal`].
    pub(crate) breaks_seal: bool,
    /// Maps of clients in which only these endpoints may stand, to be looked at behind that.
    pub(crate) clients: BTreeMap<String, BTreeSet<ServiceTarget>>,
    /// Addresses whose flows may go to these endpoints only, behind that, too: before, the old
    /// rules would make them anew.
    pub(crate) flows: BTreeMap<ServiceAddress, BTreeSet<ServiceTarget>>,
}

/// Plan and memory of our table.
#[derive(Debug, Default)]
pub(crate) struct ServiceTable {
    planner: ServicePlanner,
    /// `None` = the kernel's table has to be read first.
    written: Option<Written>,
    /// Chains that pick endpoints come and go, and the seal stays as it is.
    seal_follows: bool,
}

impl ServiceTable {
    /// What the kernel holds is not known any more.
    pub(crate) fn doubt(&mut self) {
        self.written = None;
    }

    /// Takes in a snapshot. `None` = the table has to be listed, and given to [`Self::adopt`].
    pub(crate) fn follow(&mut self, snapshot: &Snapshot, own: &ServiceNode) -> Option<TableChange> {
        let concerned = self.planner.follow(snapshot, own);
        let written = self.written.as_mut()?;
        let change = written.follow(&self.planner, concerned);
        Some(TableChange::new(change, self.seal_follows, transactions))
    }

    /// Takes over the table that was listed; `None` = there is none. One whose chains somebody has
    /// changed is written anew.
    pub(crate) fn adopt(&mut self, listing: Option<&str>) -> TableChange {
        let listing = listing.map(Listing::parse);
        let sealed = listing.map(|listing| (Seal::of(&listing), Listed::of(&listing)));
        let sealed = sealed.filter(|(seal, listed)| !seal.is_broken && listed.is_ours());
        if let Some((seal, mut listed)) = sealed {
            let (written, change) = Written::adopt(&self.planner, &mut listed);
            self.written = Some(written);
            self.seal_follows = seal.follows && !seal.is_old;
            return TableChange::new(change, self.seal_follows, transactions);
        }
        let (written, change) = Written::adopt(&self.planner, &mut Listed::default());
        self.written = Some(written);
        TableChange {
            breaks_seal: true,
            ..TableChange::new(change, false, |change| vec![whole(change)])
        }
    }

    /// What seals the table that was listed, without elements: it is as it was written.
    pub(crate) fn seal(&mut self, outline: &str) -> Transaction {
        let listing = Listing::parse(outline);
        let seal = Seal::of(&listing);
        self.seal_follows = seal.follows;
        seal.put(&listing)
    }

    /// Entries in force, by address.
    pub(crate) fn entries(&self) -> SharedMap<ServiceAddress, Arc<ServiceEntry>> {
        let entries = self.written.as_ref().map(Written::entries);
        entries.cloned().unwrap_or_default()
    }

    /// What is wrong with the Services.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        self.planner.problems()
    }

    /// What load balancers are told, by where they ask.
    pub(crate) fn health(&self) -> BTreeMap<SocketAddr, ServiceHealth> {
        self.planner.health()
    }

    /// The script that lists the table.
    pub(crate) fn listing() -> String {
        format!("list table inet {SERVICES_TABLE}\n")
    }

    /// The script that fails where the table has not this cluster address.
    pub(crate) fn asking_for_cluster_address(address: IpAddr) -> String {
        let set = format!("cluster-ips{}", digit(Family::of(address)));
        format!("get element inet {SERVICES_TABLE} {set} {{ {address} }}\n")
    }

    /// The script that lists the counters of a family.
    pub(crate) fn listing_of_hits(family: Family) -> String {
        format!("list set inet {SERVICES_TABLE} hits{}\n", digit(family))
    }

    /// The script that lists one map.
    pub(crate) fn listing_of(map: &str) -> String {
        format!("list map inet {SERVICES_TABLE} {map}\n")
    }
}

impl TableChange {
    fn new(
        mut change: Change,
        seal_follows: bool,
        transactions: impl Fn(&mut Change) -> Vec<Transaction>,
    ) -> Self {
        Self {
            parts: change.len(),
            breaks_seal: change.breaks_seal(seal_follows),
            transactions: transactions(&mut change),
            clients: change.clients,
            flows: change.flows,
        }
    }
}
