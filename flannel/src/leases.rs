//! The leases of all nodes, as far as they were heard. Nothing here has a clock: what etcd does not
//! say is gone stays, whatever its TTL was.

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::InsertEach;

use crate::acquire::{FlannelKeys, OwnLease};
use crate::lease::{NodeSubnets, SubnetLease};

/// A lease with the revision of its value.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownLease {
    /// What it says.
    pub lease: SubnetLease,
    /// Revision of the value.
    pub revision: i64,
}

/// Type, VNI and port of a backend, as a lease names them.
pub(crate) type BackendSign = (String, Option<u32>, Option<u16>);

/// The leases of all nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseTable {
    keys: FlannelKeys,
    leases: BTreeMap<NodeSubnets, KnownLease>,
    /// Keys whose values cannot be read, with the reason.
    unreadable: BTreeMap<String, String>,
}

impl LeaseTable {
    /// An empty table.
    #[must_use]
    pub const fn new(keys: FlannelKeys) -> Self {
        Self {
            keys,
            leases: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        }
    }

    /// Takes a whole list over: what is not in it is gone.
    pub fn replace<'a>(&mut self, list: impl IntoIterator<Item = (&'a str, &'a [u8], i64)>) {
        let before = std::mem::take(&mut self.leases);
        self.unreadable.clear();
        for (key, value, revision) in list {
            // What was known of it, for the case that it cannot be read any more.
            if let Some(subnets) = self.keys.subnets(key)
                && let Some(known) = before.get(&subnets)
            {
                self.leases.insert(subnets, known.clone());
            }
            self.change(key, Some(value), revision);
        }
    }

    /// Takes one change over; without a value the key is gone. A value that cannot be read changes
    /// nothing but [`LeaseTable::unreadable`] (FLANNEL-4).
    pub fn change(&mut self, key: &str, value: Option<&[u8]>, revision: i64) {
        let Some(subnets) = self.keys.subnets(key) else {
            return;
        };
        self.unreadable.remove(key);
        match value.map(SubnetLease::parse) {
            None => drop(self.leases.remove(&subnets)),
            Some(Ok(lease)) => {
                let known = KnownLease { lease, revision };
                self.leases.insert(subnets, known);
            }
            Some(Err(error)) => {
                self.unreadable.insert(key.to_owned(), error.to_string());
            }
        }
    }

    /// All leases in the order of their subnets.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeSubnets, &KnownLease)> {
        self.leases.iter()
    }

    /// The lease of some subnets.
    #[must_use]
    pub fn get(&self, subnets: &NodeSubnets) -> Option<&KnownLease> {
        self.leases.get(subnets)
    }

    /// What tells backends apart in the leases: each has devices of its own.
    #[must_use]
    pub(crate) fn backends(&self) -> BTreeSet<BackendSign> {
        let leases = self.leases.values().map(|known| &known.lease);
        leases
            .map(|lease| (lease.backend_type.clone(), lease.vni(), lease.port()))
            .insert_each()
    }

    /// Keys whose values cannot be read, with the reason. What was known of them before holds on.
    #[must_use]
    pub const fn unreadable(&self) -> &BTreeMap<String, String> {
        &self.unreadable
    }
}

/// Everything that is known of the leases at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseView {
    /// The lease of this node.
    pub own: OwnLease,
    /// The leases of all nodes, this one's among them.
    pub leases: LeaseTable,
    /// Revision up to which etcd was heard.
    pub revision: i64,
    /// True while etcd is followed.
    pub connected: bool,
    /// True once etcd has been followed for so long that every node that lives has its lease there,
    /// and that every node has heard that nobody has a backend any more: what is not wanted may go
    /// (FLANNEL-3, FLANNEL-7).
    pub settled: bool,
    /// The address of another machine that writes the lease of this one.
    pub twin: Option<String>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const A: &str = "/coreos.com/network/subnets/10.5.1.0-24";
    const B: &str = "/coreos.com/network/subnets/10.5.2.0-24";
    const HOST_GW: &[u8] = br#"{"PublicIP":"10.0.0.1","PublicIPv6":null,"BackendType":"host-gw"}"#;

    fn shown(table: &LeaseTable) -> Vec<String> {
        table.iter().map(|(s, _)| s.to_string()).collect()
    }

    #[test]
    fn flannel_4_one_bad_value_harms_nobody() {
        let mut table = LeaseTable::new(FlannelKeys::new("/coreos.com/network"));
        table.replace([
            (A, HOST_GW, 3),
            (B, HOST_GW, 4),
            ("/coreos.com/network/subnets/x", b"", 5),
        ]);
        assert_eq!(shown(&table), ["10.5.1.0/24", "10.5.2.0/24"]);
        table.change(A, Some(b"{"), 6);
        assert_eq!(shown(&table), ["10.5.1.0/24", "10.5.2.0/24"]);
        assert_eq!(table.unreadable().len(), 1);
        // Nor does a list, in which the value of somebody else has changed as well.
        table.replace([(A, &b"{"[..], 6), (B, HOST_GW, 9)]);
        assert_eq!(
            table
                .get(&NodeSubnets::parse_key("10.5.1.0-24").unwrap())
                .unwrap()
                .revision,
            3
        );
        assert_eq!(
            table
                .get(&NodeSubnets::parse_key("10.5.2.0-24").unwrap())
                .unwrap()
                .revision,
            9
        );
        assert_eq!(table.unreadable().len(), 1);
        table.change(A, None, 10);
        assert_eq!(shown(&table), ["10.5.2.0/24"]);
        assert!(table.unreadable().is_empty());
    }
}
