//! Which machine this is, and whether the node's name is another machine's: two machines under one
//! name would write one Node resource in turn and announce each other's pods.
//!
//! The liveness lease names its machine ([`caracal_ipam::LeaseHolder`]). Who finds the living lease
//! of another machine at its start does not start; who finds one later ends, and leaves the kernel
//! as it is.

use std::path::Path;
use std::time::{Duration, SystemTime};

use caracal_datastore::{Store, StoreError};
use caracal_ipam::{Lease, LeaseHolder};
use caracal_model::{KeyRange, KeyValue, Kind, NodeName, Timestamp, TxnOutcome, kind_prefix};

use crate::node::leave_file;

/// Term of a lease where the collector is off, which otherwise says it.
pub(crate) const TERM: Duration = Duration::from_secs(900);
/// systemd's machine id.
const MACHINE_ID: &str = "/etc/machine-id";
/// Shared by all containers of a machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The name in the library directory, which outlasts reboots, also where a container's
/// `/etc/machine-id` does not.
const FILE: &str = "machine-id";
/// Longest wait for the datastore before the start goes on without an answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Another machine has the name.
#[derive(Debug, thiserror::Error)]
#[error(
    "another machine runs the node {node}: {other} renewed its lease {seconds} s ago, and this is {own}; two machines under one \
     name take each other's pods away. Give this one another NODENAME, or stop the other one; if it is gone for good, \
     `caracal node takeover {node}` gives the name to this machine"
)]
pub(crate) struct Taken {
    node: NodeName,
    other: String,
    own: String,
    seconds: u64,
}

impl Taken {
    pub(crate) fn other(&self) -> &str {
        &self.other
    }
}

fn read_id(path: &Path) -> Option<String> {
    let text = caracal_datastore::read_text_file(path).ok()?;
    let text = text.trim();
    let good = !text.is_empty() && text.len() <= 64 && text != "uninitialized";
    good.then(|| text.to_owned())
}

/// This machine. `CARACAL_MACHINE_ID` says it where the machine cannot.
pub(crate) fn this(lib_dir: &Path) -> LeaseHolder {
    if let Some(machine) = std::env::var("CARACAL_MACHINE_ID")
        .ok()
        .filter(|id| !id.trim().is_empty())
    {
        let boot = machine.clone();
        return LeaseHolder { machine, boot };
    }
    let boot = read_id(Path::new(BOOT_ID)).unwrap_or_default();
    let kept = read_id(&lib_dir.join(FILE));
    let machine = kept.unwrap_or_else(|| {
        let machine = read_id(Path::new(MACHINE_ID)).unwrap_or_else(crate::register::uuid);
        if let Err(error) = leave_file(lib_dir, FILE, &format!("{machine}\n")) {
            tracing::warn!(%error, "cannot write {}", lib_dir.join(FILE).display());
        }
        machine
    });
    LeaseHolder { machine, boot }
}

/// The lease as it is stored.
pub(crate) async fn stored<S: Store>(
    store: &S,
    node: &NodeName,
) -> Result<Option<KeyValue>, StoreError> {
    let answer = store.read(&[KeyRange::Key(Lease::path(node))]).await?;
    Ok(answer.ranges.into_iter().flatten().next())
}

/// Why a stored lease is another living machine's.
pub(crate) fn taken(
    node: &NodeName,
    own: &LeaseHolder,
    stored: Option<&KeyValue>,
) -> Option<Taken> {
    let lease = Lease::read(stored?)?;
    let age = lease.alive(SystemTime::now().into())?;
    lease.holder.is_other(own).then(|| Taken {
        node: node.clone(),
        other: describe(&lease.holder),
        own: describe(own),
        seconds: age.as_secs(),
    })
}

fn describe(holder: &LeaseHolder) -> String {
    format!("machine {}", holder.machine)
}

/// Whether this machine may start as the node. A datastore that does not answer in a short time is
/// no reason against it: the renewal of the lease looks again.
pub(crate) async fn admit<S: Store>(
    store: &S,
    node: &NodeName,
    own: &LeaseHolder,
) -> Result<(), Taken> {
    match tokio::time::timeout(ANSWER, stored(store, node)).await {
        Ok(Ok(lease)) => taken(node, own, lease.as_ref()).map_or(Ok(()), Err),
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot look whether another machine runs this node");
            Ok(())
        }
        Err(_) => {
            tracing::warn!("cannot look whether another machine runs this node: no answer");
            Ok(())
        }
    }
}

/// Result of a takeover of the node's name.
pub(crate) enum Takeover {
    /// The name was free, or this machine's.
    Free,
    /// It was another machine's.
    Taken(Taken),
    /// There is no such node; nothing was written.
    NoNode(Vec<String>),
}

/// Writes the lease for this machine, whoever has it.
pub(crate) async fn take_over<S: Store>(
    store: &S,
    node: &NodeName,
    own: &LeaseHolder,
    term: Duration,
    now: Timestamp,
) -> anyhow::Result<Takeover> {
    let found = stored(store, node).await?;
    let was = taken(node, own, found.as_ref());
    if found.is_none() {
        let prefix = kind_prefix(Kind::Node);
        let answer = store.read(&[KeyRange::Prefix(prefix.clone())]).await?;
        let nodes = answer.ranges.iter().flatten();
        let names = nodes.filter_map(|kv| kv.key.strip_prefix(&prefix).map(str::to_owned));
        let names: Vec<String> = names.collect();
        if !names.iter().any(|name| name == node.as_str()) {
            return Ok(Takeover::NoNode(names));
        }
    }
    let revision = found.as_ref().map(|kv| kv.mod_revision);
    let txn = Lease::renew(node, own, revision, term, now);
    if store.commit(&txn).await? == TxnOutcome::Conflict {
        anyhow::bail!("the other machine renewed its lease at the same moment; try again");
    }
    Ok(was.map_or(Takeover::Free, Takeover::Taken))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_datastore::MemoryStore;

    use super::*;

    fn holder(name: &str) -> LeaseHolder {
        LeaseHolder {
            machine: name.to_owned(),
            boot: name.to_owned(),
        }
    }

    #[tokio::test]
    async fn a_second_machine_is_refused_until_it_takes_the_name_over() {
        let (store, node) = (MemoryStore::new(), NodeName::from("a"));
        let (first, second) = (holder("first"), holder("second"));
        let term = Duration::from_secs(900);
        let now = || Timestamp::from(SystemTime::now());
        admit(&store, &node, &first).await.unwrap();
        store
            .apply(&Lease::renew(&node, &first, None, term, now()))
            .unwrap();
        admit(&store, &node, &first).await.unwrap();
        let refusal = admit(&store, &node, &second).await.unwrap_err().to_string();
        assert!(refusal.contains("machine first renewed") && refusal.contains("takeover a"));
        let took = take_over(&store, &node, &second, term, now())
            .await
            .unwrap();
        assert!(matches!(took, Takeover::Taken(_)));
        admit(&store, &node, &second).await.unwrap();
        admit(&store, &node, &first).await.unwrap_err();
        // A process that has ended in order does not block the name.
        let revision = store.get(&Lease::path(&node)).unwrap().mod_revision;
        store
            .apply(&Lease::stop(&node, &second, revision, term, now()))
            .unwrap();
        admit(&store, &node, &first).await.unwrap();
        store.set_unavailable(true);
        admit(&store, &node, &second).await.unwrap();
    }

    #[tokio::test]
    async fn a_name_that_no_node_has_is_not_taken_over() {
        let (store, own) = (MemoryStore::new(), holder("first"));
        store.put(
            caracal_model::Key::node(&"a".into()).to_path(),
            b"{}".to_vec(),
        );
        let now = Timestamp::from(SystemTime::now());
        let typo = NodeName::from("aa");
        let took = take_over(&store, &typo, &own, TERM, now).await.unwrap();
        assert!(matches!(took, Takeover::NoNode(known) if known == ["a"]));
        assert!(store.get(&Lease::path(&typo)).is_none());
        let took = take_over(&store, &"a".into(), &own, TERM, now).await;
        assert!(matches!(took.unwrap(), Takeover::Free));
    }

    #[test]
    fn a_machine_keeps_its_identity_in_the_library_directory() {
        let dir = std::env::temp_dir().join(format!("caracal-machine-{}", std::process::id()));
        let first = this(&dir);
        assert!(!first.machine.is_empty() && !first.boot.is_empty());
        assert_eq!(this(&dir), first);
        std::fs::write(dir.join(FILE), "kept\n").unwrap();
        assert_eq!(this(&dir).machine, "kept");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
