//! A node's liveness lease: a key of its own that a living node rewrites again and again. Others
//! never compare clocks: they watch, on their own clock, for how long the key's revision stays the
//! same.
//!
//! It is an ordinary key that its owner rewrites, not one that etcd lets expire: a key that is not
//! there says nothing (a Calico node never had one), while one that is there and stands still
//! proves that somebody lived and stopped. It names the machine, so that a second machine under the
//! same name is refused. It lies outside of `/calico/`, so that renewals wake no watcher of
//! Calico's data.

use std::time::Duration;

use caracal_model::{KeyValue, NodeName, Timestamp, Txn};
use serde::{Deserialize, Serialize};

/// Prefix of all leases.
pub const LEASE_PREFIX: &str = "/caracal/lease/";

/// Renewals that may fail before the lease counts as expired.
const RENEWALS: u32 = 5;

/// Shortest lease. Anything shorter would take a busy machine for a dead one.
const SHORTEST: Duration = Duration::from_secs(5);

/// Value of the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// Node that renews it.
    pub node: NodeName,
    /// When its owner renewed it, on the owner's clock: for people.
    pub renewed: String,
    /// For how long the owner may be silent, in seconds.
    pub seconds: u64,
    /// The machine; older versions did not say.
    #[serde(flatten)]
    pub holder: LeaseHolder,
    /// The owner ended in order: another machine may take its place at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// The machine that a lease is of. Empty = not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseHolder {
    /// Machine id; it survives a reboot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Boot id; all containers of a machine share it until it reboots.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
}

impl LeaseHolder {
    /// True when the two are known to be different machines.
    #[must_use]
    pub fn is_other(&self, than: &Self) -> bool {
        let known = |a: &str, b: &str| !a.is_empty() && !b.is_empty();
        let differ = known(&self.machine, &than.machine) && self.machine != than.machine;
        differ && !(known(&self.boot, &than.boot) && self.boot == than.boot)
    }
}

impl Lease {
    /// The key of a node's lease.
    #[must_use]
    pub fn path(node: &NodeName) -> String {
        format!("{LEASE_PREFIX}{node}")
    }

    /// How long a node of this grace period may be silent.
    #[must_use]
    pub fn term(grace: Duration) -> Duration {
        grace.max(SHORTEST)
    }

    /// How often it renews.
    #[must_use]
    pub fn interval(grace: Duration) -> Duration {
        Self::term(grace) / RENEWALS
    }

    /// The lease in a stored value; `None` when it does not parse, and then it proves nothing.
    #[must_use]
    pub fn read(stored: &KeyValue) -> Option<Self> {
        serde_json::from_slice(&stored.value).ok()
    }

    /// Writes the lease anew. `stored` is the revision of what is there.
    #[must_use]
    pub fn renew(
        node: &NodeName,
        holder: &LeaseHolder,
        stored: Option<i64>,
        grace: Duration,
        now: Timestamp,
    ) -> Txn {
        put(node, holder, stored, grace, now, false)
    }

    /// Says that the owner has ended in order.
    #[must_use]
    pub fn stop(
        node: &NodeName,
        holder: &LeaseHolder,
        stored: i64,
        grace: Duration,
        now: Timestamp,
    ) -> Txn {
        put(node, holder, Some(stored), grace, now, true)
    }

    /// True when two renewals in a row have failed to come, by the two clocks, and nobody has ended
    /// it: its owner does not reach the datastore, or is gone.
    #[must_use]
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        let age = Timestamp::parse_rfc3339(&self.renewed).map(|then| now.since(then));
        let late = Self::interval(Duration::from_secs(self.seconds)) * 2;
        !self.stopped && age.is_none_or(|age| age > late)
    }

    /// How long ago it was renewed, by the two clocks; `None` when it has ended or run out.
    #[must_use]
    pub fn alive(&self, now: Timestamp) -> Option<Duration> {
        let age = now.since(Timestamp::parse_rfc3339(&self.renewed)?);
        (!self.stopped && age.as_secs() < self.seconds).then_some(age)
    }
}

fn put(
    node: &NodeName,
    holder: &LeaseHolder,
    stored: Option<i64>,
    grace: Duration,
    now: Timestamp,
    stopped: bool,
) -> Txn {
    let lease = Lease {
        node: node.clone(),
        renewed: now.rfc3339(),
        seconds: Lease::term(grace).as_secs(),
        holder: holder.clone(),
        stopped,
    };
    let value = serde_json::to_vec(&lease).expect("a lease is always valid JSON");
    match stored {
        Some(revision) => Txn::new().update(Lease::path(node), revision, value),
        None => Txn::new().create(Lease::path(node), value),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn holder(machine: &str, boot: &str) -> LeaseHolder {
        LeaseHolder {
            machine: machine.to_owned(),
            boot: boot.to_owned(),
        }
    }

    #[test]
    fn a_machine_is_itself_after_a_reboot_and_in_any_container() {
        let own = holder("m", "b");
        for (other, is_other) in [
            (holder("m", "b"), false),
            (holder("m", "c"), false),
            (holder("n", "b"), false),
            (holder("n", "c"), true),
            (holder("", "c"), false),
            (holder("n", ""), true),
            (LeaseHolder::default(), false),
        ] {
            assert_eq!(own.is_other(&other), is_other, "{other:?}");
            assert_eq!(other.is_other(&own), is_other, "{other:?}");
        }
    }

    #[test]
    fn a_lease_lives_until_its_term_or_its_end() {
        let at = |text: &str| Timestamp::parse_rfc3339(text).unwrap();
        let grace = Duration::from_secs(900);
        let written = |txn: Txn| {
            let [caracal_model::TxnWrite::Put(key, value)] = &txn.writes[..] else {
                panic!("one put: {txn:?}");
            };
            let stored = KeyValue {
                key: key.clone(),
                value: value.clone(),
                mod_revision: 1,
            };
            Lease::read(&stored).unwrap()
        };
        let (node, own) = ("a".into(), holder("m", "b"));
        let begun = at("2026-01-01T00:00:00Z");
        let lease = written(Lease::renew(&node, &own, None, grace, begun));
        assert_eq!(lease.holder, own);
        let age = |text| lease.alive(at(text)).map(|age| age.as_secs());
        assert_eq!(age("2026-01-01T00:14:59Z"), Some(899));
        assert_eq!(age("2026-01-01T00:15:00Z"), None);
        let ended = written(Lease::stop(&node, &own, 1, grace, begun));
        assert_eq!(ended.alive(begun), None);
        // As an older version wrote it.
        let old = br#"{"node":"a","renewed":"2026-01-01T00:00:00Z","seconds":900}"#;
        let old: Lease = serde_json::from_slice(old).unwrap();
        assert_eq!((old.holder, old.stopped), (LeaseHolder::default(), false));
    }
}
