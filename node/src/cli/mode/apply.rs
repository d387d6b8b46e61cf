//! Writes a planned change, watches it take effect, and takes it back when it does not.
//!
//! The conductor checks three things: in the datastore, whether every node names the tunnel
//! addresses that the mode needs, which it does only once its device is up; on admin sockets,
//! whether a node's kernel is in step without a new problem; and in the nodes' reports, whether
//! echoes through the pool's data path are answered ([`super::verify`]). The reports are asked for
//! before the change as well: what does not answer then is not blamed on it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use caracal_agent::{IPIP_DEVICE, vxlan_device};
use caracal_datastore::Store;
use caracal_ipam::TunnelKind;
use caracal_model::{
    InsertEach, IpPool, KeyRange, NodeName, NodeStatus, Snapshot, Txn, TxnOutcome,
};

use super::super::run_dir;
use super::verify::{self, Reports};
use crate::admin::{Request, ask};
use crate::args::Output;
use crate::exit::conflict;
use crate::mode_check::{CHECK, basis};
use crate::node::plans::mode::ModePlan;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// A node that has just taken the change over may name a transient problem; it has to be well for
/// so many looks.
const STEADY: u32 = 4;
/// For so long a pair may be silent once all nodes have the change in their kernels.
const SILENCE: Duration = Duration::from_secs(5);
/// Longest wait for the nodes to be done with a check.
const CLEANUP: Duration = Duration::from_secs(20);

/// Options of the operator.
pub(super) struct ModeOptions<'a> {
    /// Where progress is said.
    pub(super) output: Output,
    /// Longest wait for the reports before the change, and for the change.
    pub(super) timeout: Duration,
    /// Run directories of nodes whose admin sockets can be reached.
    pub(super) run_dirs: &'a [PathBuf],
    /// Nodes that need not report.
    pub(super) skip: &'a [String],
}

/// A change under way.
struct Apply<'a, S> {
    store: &'a S,
    before: &'a Snapshot,
    plan: &'a ModePlan,
    options: &'a ModeOptions<'a>,
    /// The pool's value as it was found.
    old: Vec<u8>,
    id: String,
    reporters: BTreeSet<NodeName>,
}

pub(super) async fn run<S: Store>(
    store: &S,
    before: &Snapshot,
    plan: &ModePlan,
    options: &ModeOptions<'_>,
) -> anyhow::Result<ExitCode> {
    let old = store.read(&[KeyRange::Key(plan.key.clone())]).await?;
    let old = old.ranges.into_iter().flatten().next();
    let Some(old) = old.filter(|entry| entry.mod_revision == plan.revision) else {
        return Err(changed_meanwhile(plan));
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let apply = Apply {
        store,
        before,
        plan,
        options,
        old: without_check(&plan.pool.0, old.value),
        id: format!("{:x}", now.unwrap_or_default().as_nanos()),
        reporters: verify::reporters(store, before, options.skip).await?,
    };
    apply.run().await
}

/// The value as it was read, unless an earlier, interrupted run has left its annotation there.
fn without_check(pool: &IpPool, value: Vec<u8>) -> Vec<u8> {
    if !pool.metadata.annotations.contains_key(CHECK) {
        return value;
    }
    unchecked(pool).to_json()
}

fn unchecked(pool: &IpPool) -> IpPool {
    let mut pool = pool.clone();
    pool.metadata.annotations.remove(CHECK);
    pool
}

fn checked(pool: &IpPool, check: &str) -> Vec<u8> {
    let mut pool = pool.clone();
    let annotations = &mut pool.metadata.annotations;
    annotations.insert(CHECK.to_owned(), check.to_owned());
    pool.to_json()
}

fn changed_meanwhile(plan: &ModePlan) -> anyhow::Error {
    conflict(format!("{} was changed meanwhile; plan again", plan.key))
}

impl<S: Store> Apply<'_, S> {
    async fn run(&self) -> anyhow::Result<ExitCode> {
        let (pool, wanted) = &self.plan.pool;
        let check = format!("{}/before", self.id);
        let revision = self
            .write(self.plan.revision, checked(pool, &check))
            .await?;
        let before = match self.baseline(&check, revision).await {
            Ok(before) => before,
            Err(reason) => {
                eprintln!("not changed: {reason}");
                self.put_back(revision).await?;
                return Ok(ExitCode::FAILURE);
            }
        };
        let watched = watched(self.options.run_dirs);
        let known: BTreeSet<String> = watched.iter().flat_map(|w| problems(w)).insert_each();
        let check = format!("{}/after", self.id);
        let revision = self.write(revision, checked(wanted, &check)).await?;
        self.options
            .output
            .progress(format_args!("written at revision {revision}"));
        match self
            .watch(&check, revision, &before, &watched, &known)
            .await
        {
            Ok(answering) => {
                self.options.output.progress(format_args!(
"in effect on all {} nodes that can be seen; {answering} pairs of nodes answer through it",
seen_nodes(self.plan, &watched)
));
                self.write(revision, unchecked(wanted).to_json()).await?;
                self.gone().await?;
                Ok(ExitCode::SUCCESS)
            }
            Err(reason) => {
                eprintln!("{reason}");
                self.put_back(revision).await?;
                Ok(ExitCode::FAILURE)
            }
        }
    }

    async fn write(&self, revision: i64, value: Vec<u8>) -> anyhow::Result<i64> {
        let txn = Txn::new().update(self.plan.key.clone(), revision, value);
        match self.store.commit(&txn).await? {
            TxnOutcome::Committed(revision) => Ok(revision),
            TxnOutcome::Conflict => Err(changed_meanwhile(self.plan)),
        }
    }

    async fn put_back(&self, revision: i64) -> anyhow::Result<()> {
        let txn = Txn::new().update(self.plan.key.clone(), revision, self.old.clone());
        match self.store.commit(&txn).await? {
            TxnOutcome::Committed(back) => eprintln!("rolled back at revision {back}"),
            TxnOutcome::Conflict => {
                eprintln!("not rolled back: somebody else has changed the pool since");
            }
        }
        self.gone().await
    }

    /// Reports of the nodes before the change.
    async fn baseline(&self, check: &str, revision: i64) -> Result<Reports, String> {
        let deadline = Instant::now() + self.options.timeout;
        loop {
            let reports = self.reports(check).await;
            let complete = reports.and_then(|reports| {
                verify::awaited(&self.reporters, &reports, revision)?;
                Ok(reports)
            });
            match complete {
                Err(reason) if Instant::now() >= deadline => return Err(reason),
                Err(_) => tokio::time::sleep(LOOK).await,
                Ok(reports) => return Ok(reports),
            }
        }
    }

    async fn reports(&self, check: &str) -> Result<Reports, String> {
        let reports = verify::reports(self.store, check).await;
        reports.map_err(|error| format!("{error:#}"))
    }

    /// Waits until the change is in effect; the number of pairs that answer, or why it has to be
    /// taken back.
    async fn watch(
        &self,
        check: &str,
        revision: i64,
        before: &Reports,
        watched: &[PathBuf],
        known: &BTreeSet<String>,
    ) -> Result<usize, String> {
        let deadline = Instant::now() + self.options.timeout;
        let mut steady = 0;
        let mut silent_since = None;
        loop {
            let (store, plan) = (self.store, self.plan);
            let taken = missing(store, self.before, plan, watched, known, revision).await;
            let mut answering = 0;
            let seen = match (taken, self.reports(check).await) {
                (Err(reason), _) | (Ok(_), Err(reason)) => Err(reason),
                (Ok(basis), Ok(reports)) => verify::awaited(&self.reporters, &reports, basis)
                    .and_then(|()| {
                        let (answer, broken) = verify::broken(before, &reports);
                        answering = answer;
                        if broken.is_empty() {
                            silent_since = None;
                            return Ok(());
                        }
                        silent_since.get_or_insert_with(Instant::now);
                        Err(verify::some(&broken))
                    }),
            };
            let now = Instant::now();
            let given_up = silent_since.is_some_and(|since| now >= since + SILENCE);
            steady = if seen.is_ok() { steady + 1 } else { 0 };
            match seen {
                Ok(()) if steady >= STEADY => return Ok(answering),
                Err(reason) if given_up => {
                    return Err(format!("packets do not arrive with the new mode: {reason}"));
                }
                Err(reason) if now >= deadline => {
                    let seconds = self.options.timeout.as_secs();
                    return Err(format!("not in effect after {seconds} s: {reason}"));
                }
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Waits until the nodes have taken over that there is nothing to check any more; then their
    /// kernels have the pool as it is now.
    async fn gone(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + CLEANUP;
        loop {
            let left = verify::all_reports(self.store).await?;
            let ours = left
                .into_iter()
                .filter(|(_, r)| r.check.starts_with(&self.id));
            let names: Vec<String> = ours.map(|(name, _)| name.to_string()).collect();
            if names.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                eprintln!(
                    "these nodes have not taken it over yet: {}",
                    names.join(", ")
                );
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn seen_nodes(plan: &ModePlan, watched: &[PathBuf]) -> String {
    format!(
        "{} (datastore), {} (admin socket)",
        plan.nodes.len(),
        watched.len()
    )
}

/// The admin sockets that answer: our own, if there is one, and those that were named.
fn watched(run_dirs: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = run_dirs.to_vec();
    let own = run_dir();
    if !folders.contains(&own) && status(&own).is_some() {
        folders.push(own);
    }
    folders
}

fn status(folder: &Path) -> Option<NodeStatus> {
    serde_json::from_value(ask(folder, &Request::Status).ok()?).ok()
}

fn problems(folder: &Path) -> Vec<String> {
    let reported = status(folder).map(|s| s.problems).unwrap_or_default();
    reported.into_iter().map(|p| p.reason).collect()
}

/// Part of the change that is not in effect yet; else the basis on which nodes have to report.
async fn missing<S: Store>(
    store: &S,
    before: &Snapshot,
    plan: &ModePlan,
    watched: &[PathBuf],
    known: &BTreeSet<String>,
    revision: i64,
) -> Result<i64, String> {
    let now = super::read(store).await.map_err(|e| format!("{e:#}"))?;
    for (name, change) in &plan.nodes {
        let Some(node) = now.nodes.get(name) else {
            continue;
        };
        for kind in TunnelKind::ALL {
            let device = match kind {
                TunnelKind::Ipip => IPIP_DEVICE,
                TunnelKind::Vxlan | TunnelKind::VxlanV6 => vxlan_device(kind.family()),
                TunnelKind::Wireguard | TunnelKind::WireguardV6 => continue,
            };
            let comes = change.devices_come.iter().any(|(name, _)| name == device);
            if comes && kind.current(node).is_none() && had_none(before, name, kind) {
                return Err(format!("node {name} names no address for {device} yet"));
            }
        }
    }
    watched
        .iter()
        .try_for_each(|w| in_step(w, known, revision))?;
    Ok(basis(&now).max(revision))
}

fn had_none(before: &Snapshot, name: &NodeName, kind: TunnelKind) -> bool {
    let node = before.nodes.get(name);
    node.is_none_or(|node| kind.current(node).is_none())
}

fn in_step(folder: &Path, known: &BTreeSet<String>, revision: i64) -> Result<(), String> {
    let Some(status) = status(folder) else {
        return Err(format!("the node at {} does not answer", folder.display()));
    };
    let node = &status.node;
    if let Some(new) = status.problems.iter().find(|p| !known.contains(&p.reason)) {
        return Err(format!("{node}: {}", new.reason));
    }
    if status.kernel.revision < revision {
        return Err(format!(
            "the kernel of {node} is at revision {}, the change at {revision}",
            status.kernel.revision
        ));
    }
    Ok(())
}
