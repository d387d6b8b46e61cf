//! `caracal ipam`: questions and orders to IPAM, in calicoctl's habits. Glue and tables; what is
//! decided is decided in the `ipam` crate. Every order says each write before it makes it, and with
//! `--dry-run` makes none.

pub(crate) mod args;
mod check;
mod configure;
mod release;
mod show;
mod split;
mod why;

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use caracal_datastore::{Datastore, Store};
use caracal_ipam::Client;
use caracal_ipam::ClusterSummary;
use caracal_ipam::LoggedStore;
use caracal_ipam::Reading;
use caracal_ipam::{IpamData, all_ranges};
use caracal_ipam::{Users, user_ranges};
use caracal_model::{Key, KeyRange, Kind, Timestamp, TxnWrite};
use serde_json::Value;

use crate::exit::{DEGRADED, NOT_FOUND, REFUSED};
use args::IpamCommand;

pub(crate) fn run(command: IpamCommand) -> anyhow::Result<ExitCode> {
    on_store(async |store| match command {
        _ if store.uses_pod_cidr() => Ok(refuse(
            "USE_POD_CIDR: pods have addresses of their Node's podCIDRs, which the plugin host-local gives out; IPAM keeps nothing",
        )),
        IpamCommand::Show(args) => show::run(&store, &args).await,
        IpamCommand::Check(args) => check::run(&store, &args).await,
        IpamCommand::Release(args) => release::run(&store, &args).await,
        IpamCommand::Configure(args) => configure::run(&store, &args).await,
        IpamCommand::Split(args) => split::run(&store, &args).await,
        IpamCommand::Why(args) => why::run(&store, &args).await,
    })
}

/// Runs something with the datastore of the environment.
pub(super) fn on_store(
    work: impl AsyncFnOnce(Datastore) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = super::open_store()?;
        work(store).await
    })
}

/// Everything at one revision.
struct Survey {
    view: IpamData,
    users: Users,
    cluster: ClusterSummary,
}

async fn survey(store: &Datastore) -> anyhow::Result<Survey> {
    let (everything, uses) = (all_ranges(), user_ranges());
    let cluster = KeyRange::Key(Key::resource(Kind::ClusterInformation, "default").to_path());
    let mut ranges = [everything.clone(), uses.clone()].concat();
    ranges.push(cluster);
    let mut answer = store.read(&ranges).await.context("reading the datastore")?;
    let cluster = answer.ranges.pop().unwrap_or_default();
    let uses = answer.ranges.split_off(everything.len());
    let mut view = IpamData::default();
    let reading = Reading {
        revision: answer.revision,
        ranges: answer.ranges,
    };
    view.absorb(&everything, reading);
    let cluster = cluster.first().map(|kv| {
        let value: Value = serde_json::from_slice(&kv.value).unwrap_or_default();
        let text = |field: &str| value["spec"][field].as_str().unwrap_or_default().to_owned();
        ClusterSummary {
            guid: text("clusterGUID"),
            kind: text("clusterType"),
            locked: caracal_model::is_locked(&value),
            revision: kv.mod_revision.to_string(),
        }
    });
    Ok(Survey {
        view,
        users: Users::read(uses.iter().flatten()),
        cluster: cluster.unwrap_or_default(),
    })
}

/// A client that says what it writes: on standard output for people, on standard error beside JSON
/// and YAML.
pub(crate) fn announced(
    store: &Datastore,
    dry_run: bool,
    data: bool,
) -> Client<LoggedStore<Datastore>> {
    let tell = move |write: &TxnWrite| {
        let verb = match write {
            TxnWrite::Put(..) => "put",
            TxnWrite::Delete(_) => "delete",
        };
        let note = if dry_run {
            " (dry run: not written)"
        } else {
            ""
        };
        let line = format!("{verb} {}{note}", write.key());
        if data {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    };
    Client::new(if dry_run {
        LoggedStore::dry_run(store.clone(), tell)
    } else {
        LoggedStore::new(store.clone(), tell)
    })
}

/// Says why a safety check refuses.
pub(crate) fn refuse(reason: &str) -> ExitCode {
    eprintln!("caracal: {reason}");
    ExitCode::from(REFUSED)
}

pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}
