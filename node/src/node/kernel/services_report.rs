//! Says that this node has services in force, while somebody waits for that. See
//! [`crate::services_check`]. It changes nothing but its own report.

use std::time::Duration;

use caracal_datastore::{Rarely, Store, View};
use caracal_model::{NodeName, Snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

use super::services::Translated;
use crate::node::report;
use crate::services_check::{ServicesReport, report_path};

/// Wait before a report that could not be written is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Reports until a channel closes.
pub(crate) async fn report_services<S: Store>(
    store: S,
    me: NodeName,
    mut view: watch::Receiver<View>,
    mut translated: watch::Receiver<Translated>,
) {
    // `None` = unknown: a run before may have left a report.
    let mut written: Option<Option<ServicesReport>> = None;
    let mut told = Rarely::default();
    loop {
        let snapshot = {
            let view = view.borrow_and_update();
            view.is_current().then(|| view.snapshot.clone())
        };
        let in_force = translated.borrow_and_update().clone();
        let wanted = snapshot.and_then(|snapshot| wanted(&snapshot, &in_force));
        let mut failed = false;
        if let Some(wanted) = wanted
            && written.as_ref() != Some(&wanted)
        {
            match report::store_report(&store, report_path(&me), wanted.as_ref()).await {
                Ok(()) => {
                    written = Some(wanted);
                    told.over();
                }
                Err(error) => {
                    if told.is_due(Instant::now(), &error.to_string()) {
                        tracing::warn!(%error, "cannot report that services are in force");
                    }
                    failed = true;
                }
            }
        }
        let alive = tokio::select! {
            alive = view.changed() => alive,
            alive = translated.changed() => alive,
            () = tokio::time::sleep(AGAIN), if failed => Ok(()),
        };
        if alive.is_err() {
            return;
        }
    }
}

/// The report as it should be; the outer `None` = not yet.
fn wanted(snapshot: &Snapshot, in_force: &Translated) -> Option<Option<ServicesReport>> {
    let Some(check) = &snapshot.services_check else {
        return Some(None);
    };
    let addresses = match in_force {
        Translated::Nothing(_) => None,
        Translated::Unknown => return None,
        Translated::Services(status) if status.failing_since.is_some() => return None,
        Translated::Services(status) if status.revision < check.revision => return None,
        Translated::Services(status) => Some(status.entries.len()),
    };
    Some(Some(ServicesReport {
        check: check.to_string(),
        addresses,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use caracal_agent::ServiceStatus;
    use caracal_model::Key;

    use super::*;

    #[test]
    fn a_node_reports_once_the_revision_of_the_check_is_in_force() {
        let mut snapshot = Snapshot::default();
        let at = |revision| {
            let status = ServiceStatus {
                revision,
                ..ServiceStatus::default()
            };
            Translated::Services(Arc::new(status))
        };
        assert_eq!(wanted(&snapshot, &at(7)), Some(None));
        snapshot.apply(&Key::ServicesCheck.to_path(), Some(b"x"), 8);
        assert_eq!(wanted(&snapshot, &at(7)), None);
        assert_eq!(wanted(&snapshot, &Translated::Unknown), None);
        let report = |addresses| {
            Some(Some(ServicesReport {
                check: "x".to_owned(),
                addresses,
            }))
        };
        assert_eq!(wanted(&snapshot, &at(8)), report(Some(0)));
        let nothing = Translated::Nothing("off".to_owned());
        assert_eq!(wanted(&snapshot, &nothing), report(None));
        snapshot.apply(&Key::ServicesCheck.to_path(), None, 9);
        assert_eq!(wanted(&snapshot, &at(8)), Some(None));
    }
}
