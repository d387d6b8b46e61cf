//! Is what is held in use, and what is in use held? Compares blocks with their [`Users`]; with
//! [`mod@crate::check`]'s findings this is the whole of `caracal ipam check`. Reports and changes
//! nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{Compare, Key, Kind, PoolName, Prefix, Timestamp};
use serde::{Deserialize, Serialize};

use crate::allocation::{Allocation, Purpose};
use crate::check::{self, Inconsistency};
use crate::users::{User, Users};
use crate::view::IpamData;

/// Use of one held address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressUse {
    /// Somebody uses it.
    InUse,
    /// Released, and not handed out again yet.
    Cooling,
    /// Nobody here can say; why.
    Unjudged(String),
    /// Nobody uses it; why.
    Leaked(String),
}

/// Whether somebody uses the address of `allocation`.
#[must_use]
pub(crate) fn judge(allocation: &Allocation, users: &Users) -> AddressUse {
    if allocation.released_at.is_some() {
        return AddressUse::Cooling;
    }
    if !users.of_address(allocation.address).is_empty() {
        return AddressUse::InUse;
    }
    if let Some(key) = doubted(allocation, users) {
        return AddressUse::Unjudged(format!("{key} does not parse and may use it"));
    }
    match allocation.purpose() {
        Purpose::Elsewhere(why) => AddressUse::Unjudged(why.to_owned()),
        Purpose::Tunnel => match allocation.node() {
            // A node's process holds an address before its Node names it (the device comes up
            // first), and releases the old one after it names another: between the two only that
            // process can judge.
            Some(node) if users.revision(&Key::node(&node.into())).is_some() => {
                AddressUse::Unjudged(format!("the process of {node} takes and releases it"))
            }
            Some(node) => AddressUse::Leaked(format!("there is no Node {node} any more")),
            None => AddressUse::Leaked("no Node names it as address of a tunnel".to_owned()),
        },
        Purpose::Workload => AddressUse::Leaked("no WorkloadEndpoint has it".to_owned()),
    }
}

/// The endpoint or node that does not parse and may be the one that an address was taken for: the
/// one that the allocation names, or any where it names none.
fn doubted<'a>(allocation: &Allocation, users: &'a Users) -> Option<&'a String> {
    let wiring = allocation.wiring().map(|(_, key)| key);
    let concerns = |path: &str| match Key::parse(path) {
        Ok(Key::Resource {
            kind: Kind::Node,
            name,
            ..
        }) => {
            allocation.purpose() == Purpose::Tunnel
                && allocation.node().is_none_or(|node| node == name)
        }
        Ok(endpoint) => {
            allocation.purpose() == Purpose::Workload
                && wiring.as_ref().is_none_or(|wiring| *wiring == endpoint)
        }
        Err(_) => false,
    };
    users.unreadable.keys().find(|path| concerns(path))
}

/// An address that is held and that nobody uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leak {
    /// Entry of the address in its block.
    #[serde(flatten)]
    pub allocation: Allocation,
    /// Why it counts as leaked.
    pub reason: String,
}

impl Leak {
    /// Preconditions of a release: the endpoint that would have the address, or the node whose
    /// tunnel would have it, is as it was when `users` was read. Empty when it is not known which
    /// one that is.
    #[must_use]
    pub fn preconditions(&self, users: &Users) -> Vec<Compare> {
        let key = match (self.allocation.purpose(), self.allocation.node()) {
            (Purpose::Tunnel, Some(node)) => Some(Key::node(&node.into())),
            _ => self.allocation.wiring().map(|(_, key)| key),
        };
        key.iter().map(|key| users.unchanged(key)).collect()
    }
}

/// An address in use that IPAM does not hold for anybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unallocated {
    /// The address that is used.
    pub address: IpAddr,
    /// Users of the address.
    pub users: Vec<User>,
    /// The pool that covers it. Without one it is merely outside of IPAM.
    pub pool: Option<PoolName>,
}

/// Numbers for the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Valid pools.
    pub pools: usize,
    /// Blocks of all owners.
    pub blocks: usize,
    /// Handles, empty ones included.
    pub handles: usize,
    /// Held addresses, cooling ones included.
    pub allocations: usize,
    /// Of these, in use.
    pub in_use: usize,
    /// Of these, cooling.
    pub cooling: usize,
    /// Of these, those that nobody here can judge.
    pub unjudged: usize,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// etcd's revision of everything that was read.
    pub revision: i64,
    /// Totals over all pools.
    pub counts: Counts,
    /// Held and not in use.
    pub leaked: Vec<Leak>,
    /// In use and not held.
    pub unallocated: Vec<Unallocated>,
    /// Why allocations could not be judged, with how many.
    pub unjudged: BTreeMap<String, usize>,
    /// Endpoints and nodes that do not parse.
    pub unreadable: BTreeMap<String, String>,
    /// Inconsistencies inside IPAM's own data.
    pub findings: Vec<Inconsistency>,
}

impl Audit {
    /// How many problems there are; what a crash may leave and the next request repairs is none,
    /// nor is an address in use outside of all pools.
    #[must_use]
    pub fn problems(&self) -> usize {
        let faults = self.findings.iter().filter(|f| f.is_fault()).count();
        let inside = self.unallocated.iter().filter(|u| u.pool.is_some()).count();
        self.leaked.len() + inside + self.unreadable.len() + faults
    }
}

/// Compares everything with everything.
#[must_use]
pub fn audit(view: &IpamData, users: &Users, now: Timestamp) -> Audit {
    let mut audit = Audit {
        revision: view.revision,
        counts: Counts {
            pools: view.pools.len(),
            blocks: view.blocks.len(),
            handles: view.handles.len(),
            ..Counts::default()
        },
        leaked: Vec::new(),
        unallocated: Vec::new(),
        unjudged: BTreeMap::new(),
        unreadable: users.unreadable.clone(),
        findings: check::check(view, now),
    };
    // The check read the nodes too, leniently.
    audit.findings.retain(
        |f| !matches!(f, Inconsistency::Unreadable { key, .. } if users.unreadable.contains_key(key)),
    );
    let mut held = std::collections::BTreeSet::new();
    for known in view.blocks.values() {
        for allocation in Allocation::in_block(&known.value) {
            audit.counts.allocations += 1;
            if allocation.released_at.is_none() {
                held.insert(allocation.address);
            }
            match judge(&allocation, users) {
                AddressUse::InUse => audit.counts.in_use += 1,
                AddressUse::Cooling => audit.counts.cooling += 1,
                AddressUse::Unjudged(why) => {
                    audit.counts.unjudged += 1;
                    *audit.unjudged.entry(why).or_default() += 1;
                }
                AddressUse::Leaked(reason) => audit.leaked.push(Leak { allocation, reason }),
            }
        }
    }
    for (address, users) in users.iter().filter(|(address, _)| !held.contains(address)) {
        audit.unallocated.push(Unallocated {
            address,
            users: users.to_vec(),
            pool: view
                .pool_of(&Prefix::host(address))
                .map(|(name, _)| name.clone()),
        });
    }
    audit
}
