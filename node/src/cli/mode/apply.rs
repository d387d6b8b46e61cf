//! Writes a planned change, watches it take effect, and takes it back when it does not.
//!
//! What can be seen from one machine: in the datastore, whether every node names the tunnel addresses that the mode
//! needs, which it does only once its device is up; and on admin sockets, whether a node's kernel is in step
//! without a new problem. Other kernels cannot be seen from here, and no packet is sent.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use caracal_agent::desired::{IPIP_DEVICE, vxlan_device};
use caracal_datastore::Store;
use caracal_ipam::tunnel::TunnelKind;
use caracal_model::status::Status;
use caracal_model::txn::{Range, Txn, TxnOutcome};
use caracal_model::{NodeName, Snapshot};

use super::super::run_dir;
use super::plan::ModePlan;
use crate::admin::{Request, ask};

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(250);
/// A node that has just taken the change over may name a transient problem; it has to be well for so many looks.
const STEADY: u32 = 4;

pub(super) async fn run<S: Store>(
    store: &S,
    before: &Snapshot,
    plan: &ModePlan,
    timeout: u64,
    run_dirs: &[PathBuf],
) -> anyhow::Result<ExitCode> {
    let old = store.read(&[Range::Key(plan.key.clone())]).await?;
    let old = old.ranges.into_iter().flatten().next();
    let Some(old) = old.filter(|entry| entry.mod_revision == plan.revision) else {
        anyhow::bail!("{} was changed meanwhile; plan again", plan.key);
    };
    let watched = watched(run_dirs);
    let known: BTreeSet<String> = watched.iter().flat_map(|w| problems(w)).collect();
    let txn = Txn::new().update(plan.key.clone(), plan.revision, plan.value.clone());
    let TxnOutcome::Committed(revision) = store.commit(&txn).await? else {
        anyhow::bail!("{} was changed meanwhile; plan again", plan.key);
    };
    println!("written at revision {revision}");
    let deadline = Instant::now() + Duration::from_secs(timeout);
    let mut steady = 0;
    let missing = loop {
        let seen = missing(store, before, plan, &watched, &known, revision).await;
        steady = if seen.is_ok() { steady + 1 } else { 0 };
        match seen {
            Ok(()) if steady >= STEADY => {
                println!(
                    "in effect on all {} nodes that can be seen",
                    seen_nodes(plan, &watched)
                );
                return Ok(ExitCode::SUCCESS);
            }
            Err(reason) if Instant::now() >= deadline => break reason,
            _ => tokio::time::sleep(LOOK).await,
        }
    };
    eprintln!("not in effect after {timeout} s: {missing}");
    let txn = Txn::new().update(plan.key.clone(), revision, old.value);
    match store.commit(&txn).await? {
        TxnOutcome::Committed(back) => eprintln!("rolled back at revision {back}"),
        TxnOutcome::Conflict => {
            eprintln!("not rolled back: somebody else has changed the pool since")
        }
    }
    Ok(ExitCode::FAILURE)
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

fn status(folder: &Path) -> Option<Status> {
    serde_json::from_value(ask(folder, &Request::Status).ok()?).ok()
}

fn problems(folder: &Path) -> Vec<String> {
    let told = status(folder).map(|s| s.problems).unwrap_or_default();
    told.into_iter().map(|p| p.reason).collect()
}

/// What is not in effect yet.
async fn missing<S: Store>(
    store: &S,
    before: &Snapshot,
    plan: &ModePlan,
    watched: &[PathBuf],
    known: &BTreeSet<String>,
    revision: i64,
) -> Result<(), String> {
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
    watched.iter().try_for_each(|w| in_step(w, known, revision))
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
