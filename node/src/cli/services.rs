//! `caracal services`: Kubernetes' Services and their endpoints, placed in the datastore for the
//! nodes to read: `kubectl get services,endpointslices -A -o json | caracal services apply - --prune`.
//! Where the datastore is Kubernetes' API they are there already, and are never written.

mod wait;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_model::{Key, KeyRange, NodeName, Snapshot, Txn, TxnOutcome, documents_prefix};
use caracal_topologies::{Services, resources_from_yaml};
use clap::Subcommand;
use serde_json::Value;

use super::ipam::{on_store, refuse};
use super::{mode, run_dir, table};
use crate::admin::{Request, ask};
use crate::args::{Output, OutputArgs};
use crate::node::answers::services::TranslatedServices;

/// Writes of one transaction; etcd takes 128.
const BATCH: usize = 100;

const OF_KUBERNETES: &str = "the datastore is Kubernetes' API: its Services and EndpointSlices are read as they are, and others write \
                             them; use `kubectl apply`, and `caracal services show --here` on a node to see what it has of them";

/// Fields that change without a meaning for routes, or that nobody here reads; without them most
/// updates of an endpoint are none.
const NOISE: [&str; 3] = ["managedFields", "resourceVersion", "annotations"];

/// `caracal services COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum ServicesCommand {
    /// Places Services, Endpoints and EndpointSlices in etcd. Refused on Kubernetes' API, which has
    /// them.
    Apply {
        /// Files with documents of Kubernetes' API, as `kubectl get -o yaml` or `-o json` prints
        /// them; - is standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Remove what the files do not hold.
        #[arg(long)]
        prune: bool,
        /// Return when every node has in force what the datastore holds; exit code 1 when one has
        /// not in time.
        #[arg(long)]
        wait: bool,
        /// Longest wait, in seconds.
        #[arg(long, default_value_t = 60, requires = "wait")]
        timeout: u64,
        /// A node that is known to be dead: nobody waits for it. May be repeated.
        #[arg(long, value_name = "NODE", requires = "wait")]
        skip: Vec<String>,
    },
    /// Shows what each node announces of services, or what this node translates.
    Show {
        /// What this node translates: addresses with their endpoints, as its process has them in
        /// the kernel (`CARACAL_SERVICES=on`).
        #[arg(long)]
        here: bool,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) fn run(command: ServicesCommand) -> anyhow::Result<ExitCode> {
    if let ServicesCommand::Show { here: true, output } = command {
        return show_here(output.output);
    }
    on_store(async |store| match command {
        ServicesCommand::Apply { .. } if store.has_nodes_of_kubernetes() => {
            Ok(refuse(OF_KUBERNETES))
        }
        ServicesCommand::Apply {
            files,
            prune,
            wait,
            timeout,
            skip,
        } => {
            apply(&store, &files, prune).await?;
            match wait {
                true => {
                    let timeout = Duration::from_secs(timeout);
                    wait::wait_until_in_force(&store, timeout, &skip).await
                }
                false => Ok(ExitCode::SUCCESS),
            }
        }
        ServicesCommand::Show { output, .. } => show(&store, output.output).await,
    })
}

async fn apply(store: &Datastore, files: &[PathBuf], prune: bool) -> anyhow::Result<()> {
    let mut wanted = BTreeMap::new();
    for file in files {
        wanted.extend(read(file)?);
    }
    let range = KeyRange::Prefix(documents_prefix());
    let there = store.read(&[range]).await?.ranges.into_iter().flatten();
    let mut there: BTreeMap<String, (i64, Vec<u8>)> = there
        .filter(|entry| entry.key != Key::ServicesCheck.to_path())
        .map(|entry| (entry.key, (entry.mod_revision, entry.value)))
        .collect();
    let (mut put, mut deleted) = (0, 0);
    let mut txn = Txn::new();
    for (path, value) in wanted {
        txn = match there.remove(&path) {
            Some((_, old)) if old == value => continue,
            Some((revision, _)) => txn.update(path, revision, value),
            None => txn.create(path, value),
        };
        put += 1;
        if txn.writes.len() == BATCH {
            commit(store, std::mem::take(&mut txn)).await?;
        }
    }
    if prune {
        for (path, (revision, _)) in there {
            txn = txn.delete(path, revision);
            deleted += 1;
            if txn.writes.len() == BATCH {
                commit(store, std::mem::take(&mut txn)).await?;
            }
        }
    }
    commit(store, txn).await?;
    println!("{put} written, {deleted} deleted");
    Ok(())
}

async fn commit(store: &Datastore, txn: Txn) -> anyhow::Result<()> {
    if txn.writes.is_empty() {
        return Ok(());
    }
    match store.commit(&txn).await? {
        TxnOutcome::Committed(_) => Ok(()),
        TxnOutcome::Conflict => anyhow::bail!("somebody else writes services too; try again"),
    }
}

/// The documents of a file by their paths.
fn read(file: &Path) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut text = String::new();
    if file == Path::new("-") {
        let mut input = std::io::stdin();
        input
            .read_to_string(&mut text)
            .context("reading standard input")?;
    } else {
        text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    }
    documents(&text).with_context(|| file.display().to_string())
}

fn documents(text: &str) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let resources = resources_from_yaml(text)?;
    let mut snapshot = Snapshot::default();
    let faults = resources.apply(&mut snapshot);
    anyhow::ensure!(
        faults.is_empty(),
        "{}",
        faults
            .iter()
            .map(|p| format!("{}: {}", p.subject, p.reason))
            .collect::<Vec<_>>()
            .join("; ")
    );
    let (_, faults) = Services::from_snapshot(&snapshot);
    for fault in faults {
        eprintln!("{}: {}", fault.subject, fault.reason);
    }
    let others = resources.len() - snapshot.documents.len();
    anyhow::ensure!(
        others == 0,
        "{others} document(s) are no Service, Endpoints or EndpointSlice"
    );
    let paths = resources.entries().map(|(_, key, value)| {
        let mut value: Value = serde_json::from_slice(value)?;
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in NOISE {
                metadata.remove(field);
            }
        }
        Ok((key.to_path(), value.to_string().into_bytes()))
    });
    paths.collect()
}

fn show_here(output: Output) -> anyhow::Result<ExitCode> {
    let value = ask(&run_dir(), &Request::Services)?;
    if matches!(output, Output::Json | Output::Yaml) {
        output.print(&value);
        return Ok(ExitCode::SUCCESS);
    }
    if !value.is_object() {
        let reason = value.as_str().unwrap_or("the node is starting");
        println!("services are not translated on this node: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let translated: TranslatedServices = serde_json::from_value(value)?;
    let mut shown = table(&[
        "ADDRESS",
        "SERVICE",
        "KIND",
        "POLICY",
        "HERE",
        "ELSEWHERE",
        "HITS",
    ]);
    for row in translated.rows {
        shown.add_row([
            row.address,
            row.service,
            row.kind,
            row.policy,
            row.here.join(", "),
            row.elsewhere.join(", "),
            row.hits.map_or_else(String::new, |hits| hits.to_string()),
        ]);
    }
    println!("{shown}");
    for problem in translated.problems {
        println!("{}: {}: {}", problem.code, problem.subject, problem.reason);
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(store: &Datastore, output: Output) -> anyhow::Result<ExitCode> {
    let mut snapshot = mode::read(store).await?;
    let answer = store.read(&[KeyRange::Prefix(documents_prefix())]).await?;
    for entry in answer.ranges.iter().flatten() {
        snapshot.apply(&entry.key, Some(&entry.value), entry.mod_revision);
    }
    let (services, _) = Services::from_snapshot(&snapshot);
    let routes: BTreeMap<&NodeName, Vec<String>> = snapshot
        .nodes
        .keys()
        .map(|node| {
            let announced = services.routes(&snapshot, node).announced;
            (node, announced.iter().map(ToString::to_string).collect())
        })
        .collect();
    match output {
        Output::Json | Output::Yaml => output.print(&serde_json::to_value(&routes)?),
        Output::Table | Output::Wide => {
            let mut shown = table(&["NODE", "ANNOUNCES"]);
            for (node, routes) in routes {
                shown.add_row([node.to_string(), routes.join(", ")]);
            }
            println!("{shown}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::documents;

    #[test]
    fn documents_are_stored_by_kind_namespace_and_name_without_noise() {
        let text = r#"{"kind": "List", "apiVersion": "v1", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "n", "resourceVersion": "7"}, "spec": {}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-1"}}]}"#;
        let found = documents(text).unwrap();
        let paths: Vec<_> = found.keys().collect();
        assert_eq!(
            paths,
            [
                "/calico/caracal/v1/endpointslices/default/web-1",
                "/calico/caracal/v1/services/n/web"
            ]
        );
        let service =
            String::from_utf8(found["/calico/caracal/v1/services/n/web"].clone()).unwrap();
        assert!(!service.contains("resourceVersion"), "{service}");
        let error = documents("kind: Node\nmetadata: {name: a}\nspec: {}").unwrap_err();
        assert!(error.to_string().contains("no Service"), "{error}");
    }
}
