//! Publishes this node's record for commands that look at all nodes
//! ([`crate::cluster_status`]). A record that cannot be written is written later: nothing waits
//! for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use caracal_datastore::Rarely;
use caracal_model::Timestamp;
use tokio::sync::watch;

use super::{Answers, Owners};
use crate::cluster_status::{PublicationSchedule, PublishedStatus, status_path};
use crate::node::report;
use crate::others::published_place;

/// Interval of asking the owners. A session that goes down is seen by others this much later at
/// most, and [`PublicationSchedule`] bounds the writes.
const INTERVAL: Duration = Duration::from_secs(5);

/// Publishes until the speaker ends, while the datastore is followed. `findings`: those of the last
/// audit that count, by code.
pub(crate) async fn publish_status(
    answers: Answers,
    owners: Arc<Owners>,
    findings: watch::Receiver<BTreeMap<String, usize>>,
) {
    let path = status_path(&answers.config.node);
    let mut schedule = PublicationSchedule::default();
    let mut told = Rarely::default();
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        // Nothing is written to a datastore that is not followed: it may be another cluster's.
        if !owners.view.borrow().is_current() {
            continue;
        }
        let Ok(status) = answers.status(&owners).await else {
            return;
        };
        let findings = findings.borrow().clone();
        let mut record =
            PublishedStatus::from_status(&status, findings, console(&answers, &owners));
        if !schedule.is_due(&record, Instant::now()) {
            continue;
        }
        record.written = Timestamp::from(SystemTime::now()).rfc3339();
        match report::store_report(&owners.store, path.clone(), Some(&record)).await {
            Ok(()) => {
                schedule.written(record, Instant::now());
                told.over();
            }
            Err(error) => {
                if !told.is_due(tokio::time::Instant::now(), &error.to_string()) {
                    continue;
                }
                tracing::warn!(
                    %error,
                    "cannot publish this node's status, so `caracal status --all-nodes` shows an old one; it is tried again"
                );
            }
        }
    }
}

/// Where others reach this node's console.
fn console(answers: &Answers, owners: &Owners) -> Option<String> {
    let config = &answers.config;
    let view = owners.view.borrow();
    let node = view.snapshot.nodes.get(&config.node);
    let has_tls = config.console_files.has_tls();
    published_place(config.console?, has_tls, node.map(|node| &**node))
}
