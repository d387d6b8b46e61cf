//! Drives the writer of the table of services: what the datastore holds goes to the kernel.

use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{ServiceStatus, ServiceWriter};
use caracal_datastore::View;
use caracal_model::{NodeName, Problem, ProblemCode};
use tokio::sync::watch;

use crate::node::problems::ProblemReporter;

/// Wait after the first failure; doubled with each further one.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait.
const LONGEST: Duration = Duration::from_secs(30);

/// What is translated on this node; `None` = nothing.
pub(crate) type Translated = Option<Arc<ServiceStatus>>;

/// Keeps the table until a channel closes. Nothing is written while the view is not current: half
/// a list would look like Services that were removed.
pub(crate) async fn translate_services(
    me: NodeName,
    mut view: watch::Receiver<View>,
    translated: watch::Sender<Translated>,
    problems: ProblemReporter,
) {
    let mut writer = ServiceWriter::new(me);
    let mut wait = FIRST;
    loop {
        let snapshot = {
            let view = view.borrow_and_update();
            view.is_current().then(|| Arc::clone(&view.snapshot))
        };
        let mut failed = false;
        if let Some(snapshot) = snapshot {
            match writer.pass(&snapshot).await {
                Ok(status) => {
                    wait = FIRST;
                    problems.replace(status.problems.clone());
                    translated.send_replace(Some(Arc::new(status.clone())));
                }
                Err(error) => {
                    let reason = format!("{:#}", anyhow::Error::new(error));
                    tracing::warn!(reason, "services are not as planned");
                    problems.replace(vec![Problem {
                        code: ProblemCode::ServicesUnwritten,
                        subject: "nftables".to_owned(),
                        reason,
                    }]);
                    failed = true;
                }
            }
        }
        let again = async {
            match failed {
                true => tokio::time::sleep(wait).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = view.changed() => if changed.is_err() { return },
            () = writer.changed_by_others() => {}
            () = again => wait = (wait * 2).min(LONGEST),
        }
    }
}

/// Takes away what an earlier run has written: services are not translated any more.
pub(crate) async fn remove_service_table() {
    if let Err(error) = ServiceWriter::remove().await {
        // Where there is no nftables there is no table.
        tracing::debug!(
            error = format!("{:#}", anyhow::Error::new(error)),
            "services"
        );
    }
}
