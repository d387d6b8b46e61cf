//! A node's lease of life: a key of its own that a living node rewrites again and again. Others never compare
//! clocks: they watch, on their own clock, for how long the key's revision stays the same.
//!
//! It is an ordinary key that its owner rewrites, not one that etcd lets expire: a key that is not there says
//! nothing (a Calico node never had one), while one that is there and stands still proves that somebody lived
//! and stopped. It lies outside of `/calico/`, so that renewals wake no watcher of Calico's data.

use std::time::Duration;

use caracal_model::names::NodeName;
use caracal_model::time::Timestamp;
use caracal_model::txn::{KeyValue, Txn};
use serde::{Deserialize, Serialize};

/// Prefix of all leases.
pub const PREFIX: &str = "/caracal/lease/";

/// Renewals that may fail before the lease counts as expired.
const RENEWALS: u32 = 5;

/// Shortest lease. Anything shorter would take a busy machine for a dead one.
const SHORTEST: Duration = Duration::from_secs(5);

/// What stands in the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The node.
    pub node: NodeName,
    /// When its owner renewed it, on the owner's clock: for people.
    pub renewed: String,
    /// For how long the owner may be silent, in seconds.
    pub seconds: u64,
}

/// The key of a node's lease.
#[must_use]
pub fn path(node: &NodeName) -> String {
    format!("{PREFIX}{node}")
}

/// How long a node of this grace period may be silent.
#[must_use]
pub fn term(grace: Duration) -> Duration {
    grace.max(SHORTEST)
}

/// How often it renews.
#[must_use]
pub fn interval(grace: Duration) -> Duration {
    term(grace) / RENEWALS
}

/// The lease in a stored value; `None` when it does not parse, and then it proves nothing.
#[must_use]
pub fn read(stored: &KeyValue) -> Option<Lease> {
    serde_json::from_slice(&stored.value).ok()
}

/// Writes the lease anew. `stored` is the revision of what is there.
#[must_use]
pub fn renew(node: &NodeName, stored: Option<i64>, grace: Duration, now: Timestamp) -> Txn {
    let lease = Lease {
        node: node.clone(),
        renewed: now.rfc3339(),
        seconds: term(grace).as_secs(),
    };
    let value = serde_json::to_vec(&lease).expect("a lease is always valid JSON");
    match stored {
        Some(revision) => Txn::new().update(path(node), revision, value),
        None => Txn::new().create(path(node), value),
    }
}
