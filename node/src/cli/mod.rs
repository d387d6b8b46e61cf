//! The client commands. Data goes to standard output, everything else to standard error.

mod all_nodes;
pub(crate) mod audit;
pub(crate) mod bgp;
pub(crate) mod bundle;
mod columns;
pub(crate) mod datastore;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod explain_code;
pub(crate) mod hints;
pub(crate) mod install_cni;
pub(crate) mod ipam;
#[cfg(feature = "lab")]
pub(crate) mod lab;
pub(crate) mod log_level;
pub(crate) mod migrate;
pub(crate) mod mode;
pub(crate) mod node;
pub(crate) mod output;
mod peer;
pub(crate) mod policy;
pub(crate) mod render;
pub(crate) mod resources;
pub(crate) mod services;
pub(crate) mod speaker;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod topology;
pub(crate) mod trace;
pub(crate) mod uninstall;
pub(crate) mod version;
mod whom;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::{Datastore, DatastoreConfig, Store, View};
use caracal_model::{Key, KeyRange, Kind, Snapshot};
use tokio::sync::watch;

use crate::config::run_dir;
pub(crate) use doctor::cni::conflists;
use output::table;

/// Runs `work`, which reads this machine's kernel, on one thread: netlink sockets belong to the
/// network namespace of the thread that opens them.
pub(crate) fn in_this_namespace(
    work: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// Limit of reading everything once the datastore answers: a large one on a slow disk.
const FIRST_LIST: Duration = Duration::from_secs(60);

/// The datastore of the environment.
pub(crate) fn open_store() -> anyhow::Result<Datastore> {
    let store = DatastoreConfig::from_env()?.with_programs().open()?;
    crate::out::speak_of(&store);
    Ok(store)
}

/// A view that holds everything. When the datastore does not answer, the error says why, after the
/// same time ([`caracal_datastore::PATIENCE`]) as in every other command.
async fn first_view(store: &Datastore) -> anyhow::Result<watch::Receiver<View>> {
    // The watcher tries for ever and tells nobody why. What asks for nothing is no question to
    // Kubernetes' API.
    let anything = Key::resource(Kind::ClusterInformation, "default").to_path();
    let question = [KeyRange::Key(anything)];
    store.read(&question).await.context(store.advice())?;
    let mut view = caracal_datastore::spawn_watcher(store.clone(), store.watch_options());
    let synced = async { view.wait_for(|view| view.synced).await.map(|_| ()) };
    let synced = tokio::time::timeout(FIRST_LIST, synced).await;
    let Ok(synced) = synced else {
        let reason = view.borrow().freshness.reason().map(str::to_owned);
        anyhow::bail!(
            "the datastore answers, but reading all of it took longer than {} s: {}",
            FIRST_LIST.as_secs(),
            reason.unwrap_or_default()
        )
    };
    synced.context("the watcher has ended")?;
    Ok(view)
}

/// The datastore of the environment, and everything in it.
async fn read_everything() -> anyhow::Result<(Datastore, Arc<Snapshot>)> {
    let store = open_store()?;
    let snapshot = first_view(&store).await?.borrow().snapshot.clone();
    Ok((store, snapshot))
}

/// `12s`, `3m04s`, `2h05m`, `3d04h`.
pub(crate) fn duration(seconds: u64) -> String {
    let (m, h, d) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{m}m{:02}s", seconds % 60),
        3600..86_400 => format!("{h}h{:02}m", m % 60),
        _ => format!("{d}d{:02}h", h % 24),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn durations_are_short() {
        let shown = [0, 59, 60, 3599, 3600, 90_000].map(super::duration);
        assert_eq!(shown, ["0s", "59s", "1m00s", "59m59s", "1h00m", "1d01h"]);
    }
}
