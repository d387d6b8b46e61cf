//! Which machine this is, and whether the node's name is another machine's: two machines under one
//! name would write one Node resource in turn and announce each other's pods.
//!
//! The liveness lease names its machine ([`caracal_ipam::LeaseHolder`]). Who finds the living lease
//! of another machine at its start does not start; who finds one later ends, and leaves the kernel
//! as it is.
//!
//! A copy of a machine has its machine id, too, and another boot id; so has the machine itself
//! after a reboot, but then nobody renews the lease of the boot before. [`Claim`] tells them apart.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use caracal_datastore::{Store, StoreError};
use caracal_ipam::{Lease, LeaseHolder};
use caracal_model::{
    KeyRange, KeyValue, Kind, NodeName, Problem, ProblemCode, Timestamp, TxnOutcome, kind_prefix,
};

use tokio::time::Instant;

use crate::config::Config;
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
/// The boot id under which the name was held last, beside it.
const BOOT_FILE: &str = "boot-id";
/// Longest wait for the datastore before the start goes on without an answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Another machine has the name.
#[derive(Debug, thiserror::Error)]
#[error(
    "another machine runs the node {node}: {other} renewed its lease {seconds} s ago, and this is {own}; two machines under one \
     name take each other's pods away. {remedy}"
)]
pub(crate) struct Taken {
    node: NodeName,
    other: String,
    own: String,
    seconds: u64,
    remedy: String,
}

impl Taken {
    fn new(node: &NodeName, lease: &Lease, own: &LeaseHolder, age: Duration) -> Self {
        let (other, seconds) = (&lease.holder, age.as_secs());
        if other.machine != own.machine {
            let remedy = format!(
                "Give this one another NODENAME, or stop the other one; if it is gone for good, `caracal node takeover {node}` \
                 gives the name to this machine"
            );
            let texts = [other, own].map(|holder| format!("machine {}", holder.machine));
            return Self::of(node, texts, seconds, remedy);
        }
        let remedy = "One of them is a copy of the other, with its machine id: give the copy another NODENAME, and a \
                      machine id of its own (delete /etc/machine-id and the files machine-id and boot-id in CARACAL_LIB_DIR, \
                      then `systemd-machine-id-setup`)";
        let text =
            |holder: &LeaseHolder| format!("machine {} of boot {}", holder.machine, holder.boot);
        Self::of(node, [text(other), text(own)], seconds, remedy.to_owned())
    }

    fn of(node: &NodeName, [other, own]: [String; 2], seconds: u64, remedy: String) -> Self {
        Self {
            node: node.clone(),
            other,
            own,
            seconds,
            remedy,
        }
    }

    /// A copy had the name, and this machine took it back.
    pub(crate) fn problem(&self) -> Problem {
        Problem {
            code: ProblemCode::NodeCopied,
            subject: Lease::path(&self.node),
            reason: self.to_string(),
        }
    }

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
    let is_other = lease.holder.is_other(own);
    is_other.then(|| Taken::new(node, &lease, own, age))
}

/// A living lease of a machine with our id and another boot: our own from before a reboot, or a
/// copy's.
fn of_another_boot(node: &NodeName, own: &LeaseHolder, stored: Option<&KeyValue>) -> Option<Taken> {
    let lease = Lease::read(stored?)?;
    let age = lease.alive(SystemTime::now().into())?;
    let known = |one: &str, other: &str| !one.is_empty() && !other.is_empty();
    let same_machine =
        known(&lease.holder.machine, &own.machine) && lease.holder.machine == own.machine;
    let other_boot = known(&lease.holder.boot, &own.boot) && lease.holder.boot != own.boot;
    (same_machine && other_boot).then(|| Taken::new(node, &lease, own, age))
}

/// This machine's claim to the name of its node, shared by all who look after it.
///
/// Once this process has written the lease, another boot of the same machine id in it is another
/// living machine: a copy. Who has held the name for longer, as a lease of ours that was found
/// again after the time of a renewal proves, takes it back; the other one ends. Each time it is
/// taken back that has to be proven anew, so that of two who both held it, one ends in the end. A
/// lease that is found again sooner proves nothing: two who fight look at it every few
/// milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) node: NodeName,
    pub(crate) holder: LeaseHolder,
    lib_dir: PathBuf,
    term: Duration,
    state: Arc<Mutex<ClaimState>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimState {
    /// This process has not written the lease yet.
    New,
    /// It has, where another one's or none was, at this time.
    Written(Instant),
    /// And found it again after the time of a renewal.
    Settled,
}

/// Result of a look at the lease.
#[derive(Debug)]
pub(crate) enum Held {
    /// It is ours.
    Ours,
    /// It was a copy's, and is ours again.
    TakenBack(Taken),
    /// It is another machine's.
    Lost(Taken),
}

impl Claim {
    pub(crate) fn of_this_machine(config: &Config) -> Self {
        let (node, lib_dir) = (config.node.clone(), &config.lib_dir);
        Self::new(
            node,
            this(lib_dir),
            lib_dir,
            config.ipam_grace.unwrap_or(TERM),
        )
    }

    pub(crate) fn new(node: NodeName, holder: LeaseHolder, lib_dir: &Path, term: Duration) -> Self {
        Self {
            node,
            holder,
            lib_dir: lib_dir.to_owned(),
            term,
            state: Arc::new(Mutex::new(ClaimState::New)),
        }
    }

    /// Looks whose the name is, without a word to the datastore.
    fn judge(&self, stored: Option<&KeyValue>) -> Held {
        if let Some(taken) = taken(&self.node, &self.holder, stored) {
            return Held::Lost(taken);
        }
        let mut state = self
            .state
            .lock()
            .expect("invariant: nobody panics with the lock");
        let Some(copy) = of_another_boot(&self.node, &self.holder, stored) else {
            let is_own =
                |kv: &KeyValue| Lease::read(kv).is_some_and(|lease| lease.holder == self.holder);
            if let ClaimState::Written(since) = *state
                && since.elapsed() >= Lease::interval(self.term)
                && stored.is_some_and(is_own)
            {
                *state = ClaimState::Settled;
            }
            return Held::Ours;
        };
        match *state {
            // A reboot: the boot that held the name last is not this one.
            ClaimState::New
                if read_id(&self.lib_dir.join(BOOT_FILE)) != Some(self.holder.boot.clone()) =>
            {
                Held::Ours
            }
            ClaimState::New | ClaimState::Written(_) => Held::Lost(copy),
            ClaimState::Settled => Held::TakenBack(copy),
        }
    }

    /// Looks whose the name is, and takes it back from a copy.
    pub(crate) async fn look<S: Store>(&self, store: &S) -> anyhow::Result<Held> {
        let stored = stored(store, &self.node).await?;
        let held = self.judge(stored.as_ref());
        if let Held::TakenBack(copy) = &held {
            tracing::warn!("{copy}; this one has had the name for longer, and takes it back");
            self.write(store, stored).await?;
        }
        Ok(held)
    }

    /// The same, and renews the lease where it is ours.
    pub(crate) async fn renew<S: Store>(&self, store: &S) -> anyhow::Result<Held> {
        let stored = stored(store, &self.node).await?;
        let held = self.judge(stored.as_ref());
        if let Held::TakenBack(copy) = &held {
            tracing::warn!("{copy}; this one has had the name for longer, and takes it back");
        }
        if !matches!(held, Held::Lost(_)) {
            self.write(store, stored).await?;
        }
        Ok(held)
    }

    async fn write<S: Store>(&self, store: &S, stored: Option<KeyValue>) -> anyhow::Result<()> {
        let own = stored.as_ref().and_then(Lease::read);
        let was_own = own.is_some_and(|lease| lease.holder == self.holder);
        let revision = stored.map(|kv| kv.mod_revision);
        let now = SystemTime::now().into();
        let txn = Lease::renew(&self.node, &self.holder, revision, self.term, now);
        // A lost race is no matter: somebody else wrote, so it moved.
        if store.commit(&txn).await? == TxnOutcome::Conflict {
            return Ok(());
        }
        let mut state = self
            .state
            .lock()
            .expect("invariant: nobody panics with the lock");
        let first = *state == ClaimState::New;
        if first || !was_own {
            *state = ClaimState::Written(Instant::now());
        }
        drop(state);
        let boot = &self.holder.boot;
        if first && let Err(error) = leave_file(&self.lib_dir, BOOT_FILE, &format!("{boot}\n")) {
            tracing::warn!(%error, "cannot write {}", self.lib_dir.join(BOOT_FILE).display());
        }
        Ok(())
    }
}

/// Whether this machine may start as the node. A datastore that does not answer in a short time is
/// no reason against it: the renewal of the lease looks again.
pub(crate) async fn admit<S: Store>(store: &S, claim: &Claim) -> Result<(), Taken> {
    match tokio::time::timeout(ANSWER, stored(store, &claim.node)).await {
        Ok(Ok(lease)) => match claim.judge(lease.as_ref()) {
            Held::Lost(taken) => Err(taken),
            Held::Ours | Held::TakenBack(_) => Ok(()),
        },
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
    use caracal_datastore::{MemoryStore, TestFolder};

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
        let admit = async |store: &MemoryStore, node: &NodeName, own: &LeaseHolder| {
            let dir = Path::new("/nonexistent");
            super::admit(store, &Claim::new(node.clone(), own.clone(), dir, TERM)).await
        };
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

    /// A process of a machine: its claim, with a library directory of its own.
    fn process(dir: &Path, boot: &str) -> Claim {
        let holder = LeaseHolder {
            machine: "m".to_owned(),
            boot: boot.to_owned(),
        };
        Claim::new("a".into(), holder, dir, TERM)
    }

    /// It holds the name for as long as proves that it is its own.
    async fn hold(one: &Claim, store: &MemoryStore) {
        for _ in 0..2 {
            assert!(matches!(one.renew(store).await.unwrap(), Held::Ours));
            tokio::time::advance(Lease::interval(TERM)).await;
        }
        assert!(matches!(one.look(store).await.unwrap(), Held::Ours));
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_of_a_machine_ends_and_the_machine_stays() {
        let (store, folders) = (MemoryStore::new(), TestFolder::new("copy"));
        let original = process(&folders.join("original"), "boot1");
        hold(&original, &store).await;
        // With all files of the original it looks like a reboot, and takes the name.
        let copy = process(&folders.join("copy"), "boot2");
        admit(&store, &copy).await.unwrap();
        // It fights over the Node, and finds its lease again and again.
        for _ in 0..3 {
            assert!(matches!(copy.renew(&store).await.unwrap(), Held::Ours));
        }
        // The original lives, and has had it for longer.
        let Held::TakenBack(named) = original.look(&store).await.unwrap() else {
            panic!("the copy is not seen");
        };
        let said = named.to_string();
        assert!(
            said.contains("boot2") && said.contains("NODENAME"),
            "{said}"
        );
        assert!(!said.contains("takeover"), "{said}");
        let Held::Lost(taken) = copy.look(&store).await.unwrap() else {
            panic!("the copy stays");
        };
        assert!(taken.to_string().contains("boot1"), "{taken}");
        // Started again, it is refused at once; the original is not, nor after a reboot.
        let again = process(&folders.join("copy"), "boot2");
        admit(&store, &again).await.unwrap_err();
        for boot in ["boot1", "boot3"] {
            let restarted = process(&folders.join("original"), boot);
            admit(&store, &restarted).await.unwrap();
            assert!(matches!(restarted.renew(&store).await.unwrap(), Held::Ours));
        }
    }

    /// The original did not reach the datastore for so long that both have held the name.
    #[tokio::test(start_paused = true)]
    async fn of_two_that_held_the_name_one_stays() {
        let (store, folders) = (MemoryStore::new(), TestFolder::new("both"));
        let first = process(&folders.join("first"), "boot1");
        let second = process(&folders.join("second"), "boot2");
        for one in [&first, &second] {
            hold(one, &store).await;
        }
        let mut turns = Vec::new();
        for one in [&first, &second, &first] {
            turns.push(one.renew(&store).await.unwrap());
        }
        assert!(
            matches!(
                turns[..],
                [Held::TakenBack(_), Held::TakenBack(_), Held::Lost(_)]
            ),
            "{turns:?}"
        );
        assert!(matches!(second.renew(&store).await.unwrap(), Held::Ours));
    }

    /// The first process after a reboot could not write the lease; the next one is still the
    /// machine's own.
    #[tokio::test]
    async fn a_reboot_is_no_copy_also_when_its_first_process_wrote_nothing() {
        let (store, folders) = (MemoryStore::new(), TestFolder::new("reboot"));
        let dir = folders.join("one");
        process(&dir, "boot1").renew(&store).await.unwrap();
        store.set_unavailable(true);
        process(&dir, "boot2").renew(&store).await.unwrap_err();
        store.set_unavailable(false);
        let next = process(&dir, "boot2");
        admit(&store, &next).await.unwrap();
        assert!(matches!(next.renew(&store).await.unwrap(), Held::Ours));
        assert!(matches!(next.renew(&store).await.unwrap(), Held::Ours));
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
        let dir = TestFolder::new("machine");
        let first = this(&dir);
        assert!(!first.machine.is_empty() && !first.boot.is_empty());
        assert_eq!(this(&dir), first);
        std::fs::write(dir.join(FILE), "kept\n").unwrap();
        assert_eq!(this(&dir).machine, "kept");
    }
}
