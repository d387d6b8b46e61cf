//! Replays the releases that CNI DEL could not make while etcd was down. The plugin leaves files;
//! this task empties the folder whenever the datastore is fresh.

use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_cni::PendingReleaseError;
use caracal_datastore::{Store, View};
use caracal_model::{Problem, ProblemCode};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::node::problems::ProblemReporter;

/// Interval of reading the folder. A plugin that cannot reach etcd leaves a file at any time,
/// also while this process still can.
const INTERVAL: Duration = Duration::from_secs(5);

/// Replays for ever; what stays is reported as problems.
pub(crate) async fn release_pending<S: Store>(
    store: S,
    lib_dir: PathBuf,
    mut view: watch::Receiver<View>,
    problems: ProblemReporter,
) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if view
            .wait_for(|view| view.freshness.is_fresh())
            .await
            .is_err()
        {
            return;
        }
        let found = replay(&store, &lib_dir).await;
        problems.replace(found);
    }
}

async fn replay<S: Store>(store: &S, lib_dir: &Path) -> Vec<Problem> {
    let failed = match caracal_cni::replay_pending_releases(store, lib_dir).await {
        Ok(replayed) => {
            for container in &replayed.done {
                tracing::info!(%container, "released what a DEL without datastore had left");
            }
            replayed.failed
        }
        Err(error) => vec![error],
    };
    let problem = |error: PendingReleaseError| Problem {
        code: ProblemCode::CniTombstone,
        subject: lib_dir.display().to_string(),
        reason: format!("{:#}; it is tried again", anyhow::Error::from(error)),
    };
    failed.into_iter().map(problem).collect()
}
