//! `caracal datastore`: orders about the datastore as a whole.

mod transfer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use caracal_datastore::{Datastore, Store, StoreError};
use caracal_model::{
    Key, KeyRange, KeyValue, Kind, Txn, TxnOutcome, ipam_prefix, resources_prefix,
};
use clap::Subcommand;
use serde_json::Value;

use super::{in_this_namespace, open_store, run_dir};
use crate::admin::{Request, ask};
use crate::args::OutputArgs;
use crate::exit::{DEGRADED, NOT_FOUND, REFUSED, conflict, invalid};

/// Most tries of a transaction that loses races.
const TRIES: usize = 5;

/// `caracal datastore COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum DatastoreCommand {
    /// Make this node follow a datastore that looks wrong: emptied, another cluster's, or restored
    /// from an incomplete backup. Routes that it does not have are deleted.
    Accept {
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Lock the datastore (`datastoreReady: false` in ClusterInformation): no node assigns
    /// addresses. Running pods keep working; addresses are still released.
    Lock,
    /// Unlock the datastore.
    Unlock,
    /// Export Calico's data for `caracal datastore import`. Lock the datastore first.
    Export {
        /// File to write; default: standard output.
        #[arg(short = 'f', long = "filename", value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Import an export into the datastore. Existing data is never changed, except that Kubernetes'
    /// Nodes and Pods are completed; on a conflict nothing is written. Can be repeated after an
    /// interruption.
    Import {
        /// File to read; `-` = standard input.
        #[arg(short = 'f', long = "filename", value_name = "FILE")]
        file: PathBuf,
        /// Print the writes without making them.
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) fn run(command: DatastoreCommand) -> anyhow::Result<ExitCode> {
    let work = async {
        match command {
            DatastoreCommand::Accept { output } => accept(output),
            DatastoreCommand::Lock => set_ready(false).await,
            DatastoreCommand::Unlock => set_ready(true).await,
            DatastoreCommand::Export { file } => export(file.as_deref()).await,
            DatastoreCommand::Import { file, dry_run } => import(&file, dry_run).await,
        }
    };
    in_this_namespace(work)
}

fn accept(output: OutputArgs) -> anyhow::Result<ExitCode> {
    let answer = ask(&run_dir(), &Request::DatastoreAccept)?;
    if output.output.is_data() {
        output.output.print(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    match &answer["accepted"] {
        Value::String(fault) => println!("Accepted, and followed from now on: {fault}"),
        _ => println!("Nothing to accept: this node follows what the datastore holds"),
    }
    Ok(ExitCode::SUCCESS)
}

fn cluster_key() -> String {
    Key::resource(Kind::ClusterInformation, "default").to_path()
}

async fn set_ready(ready: bool) -> anyhow::Result<ExitCode> {
    let store = open_store()?;
    let key = cluster_key();
    for _ in 0..TRIES {
        let answer = store.read(&[KeyRange::Key(key.clone())]).await;
        let answer = answer.context(store.advice())?;
        let Some(kv) = answer.ranges.into_iter().flatten().next() else {
            eprintln!("there is no ClusterInformation \"default\": no node has registered yet");
            return Ok(NOT_FOUND.into());
        };
        let mut value: Value =
            serde_json::from_slice(&kv.value).with_context(|| format!("{key} holds no JSON"))?;
        if value["spec"]["datastoreReady"] == ready {
            println!("{} already", state(ready));
            return Ok(ExitCode::SUCCESS);
        }
        value["spec"]["datastoreReady"] = ready.into();
        let txn = Txn::new().update(&key, kv.mod_revision, value.to_string().into_bytes());
        if let TxnOutcome::Committed(_) = store.commit(&txn).await? {
            println!("{}", state(ready));
            return Ok(ExitCode::SUCCESS);
        }
    }
    Err(conflict(format!(
        "{key} was changed by others {TRIES} times in a row; try again"
    )))
}

const fn state(ready: bool) -> &'static str {
    match ready {
        true => "the datastore is not locked",
        false => "the datastore is locked: pods get no addresses until `caracal datastore unlock`",
    }
}

/// Everything of Calico's.
async fn everything(store: &Datastore) -> anyhow::Result<Vec<KeyValue>> {
    let ranges = [
        KeyRange::Prefix(resources_prefix()),
        KeyRange::Prefix(ipam_prefix()),
    ];
    let answer = store.read(&ranges).await.context(store.advice())?;
    Ok(answer.ranges.into_iter().flatten().collect())
}

fn is_locked(values: &[KeyValue]) -> bool {
    let key = cluster_key();
    let cluster = values.iter().find(|kv| kv.key == key);
    let value = cluster.and_then(|kv| serde_json::from_slice::<Value>(&kv.value).ok());
    value.is_some_and(|value| caracal_model::is_locked(&value))
}

async fn export(path: Option<&Path>) -> anyhow::Result<ExitCode> {
    let store = open_store()?;
    let values = everything(&store).await?;
    if !is_locked(&values) {
        eprintln!(
            "the datastore is not locked, so that addresses could change between export and import; first `caracal datastore lock`"
        );
        return Ok(REFUSED.into());
    }
    let file = transfer::file(&values, store.kind())?;
    let text = format!("{file:#}\n");
    match path {
        None => print!("{text}"),
        Some(path) => {
            caracal_datastore::put_file(path, text.as_bytes(), 0o600)
                .with_context(|| format!("writing {}", path.display()))?;
            eprintln!("{} values of {}", values.len(), store.kind());
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn import(path: &Path, dry_run: bool) -> anyhow::Result<ExitCode> {
    let name = path.display();
    let text = match path == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(path),
    };
    let text = text.with_context(|| format!("reading {name}"))?;
    let file = serde_json::from_str::<Value>(&text).with_context(|| format!("{name} is no JSON"));
    let file = file.map_err(invalid)?;
    let content = transfer::content(&file).with_context(|| name.to_string());
    let content = content.map_err(invalid)?;
    let store = open_store()?;
    let plan = transfer::plan(&content, &everything(&store).await?);
    if let Some(first) = plan.other.first() {
        eprintln!(
            "{} holds {} of these keys with something else in them, the first is {first}; nothing was written. Import into a \
             datastore that no node has used",
            store.kind(),
            plan.other.len()
        );
        return Ok(REFUSED.into());
    }
    let (mut written, mut left_out) = (0, 0);
    for order in plan.orders {
        if dry_run {
            println!("would write {}", order.key);
            continue;
        }
        match write(&store, &order).await? {
            None => written += 1,
            Some(reason) => {
                left_out += 1;
                eprintln!("left out: {}: {reason}", order.key);
            }
        }
    }
    if dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{written} values written to {}, {} were there, {left_out} left out",
        store.kind(),
        plan.same
    );
    println!(
        "it is locked, as the exported one: `caracal datastore unlock` once the nodes and plugins use it"
    );
    match left_out {
        0 => Ok(ExitCode::SUCCESS),
        _ => Ok(DEGRADED.into()),
    }
}

/// Writes one value; the reason where this datastore has no place for it.
async fn write(store: &Datastore, order: &transfer::ImportWrite) -> anyhow::Result<Option<String>> {
    match store.commit(&order.txn).await {
        Ok(TxnOutcome::Committed(_)) => Ok(None),
        Ok(TxnOutcome::Conflict) => {
            // Two keys may be one object.
            let answer = store.read(&[KeyRange::Key(order.key.clone())]).await?;
            let there = answer.ranges.into_iter().flatten().next();
            let reason = match there {
                Some(there) if order.is_done_by(&there) => return Ok(None),
                Some(_) => "somebody else wrote it meanwhile",
                None => "Kubernetes has none of that name",
            };
            Ok(Some(reason.to_owned()))
        }
        Err(StoreError::Refused(reason)) => Ok(Some(reason)),
        Err(error) => Err(error).with_context(|| format!("writing {}", order.key)),
    }
}
