//! The Node's condition `NetworkUnavailable`, which the cluster's scheduler waits for: it is False,
//! as Calico's node says it, once this node has read the datastore and its kernel has been worked
//! on. In etcd there is nobody to tell.
//!
//! It is not set back at the end of the process: a restart leaves the routes in the kernel, and the
//! CNI plugin waits for the next process.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use caracal_agent::AgentStatus;
use caracal_datastore::{Datastore, View};
use caracal_model::{NodeName, Problem, ProblemCode, Timestamp};
use tokio::sync::watch;

use crate::node::problems::ProblemReporter;

/// Pause after a failed try.
const RETRY: Duration = Duration::from_secs(10);
/// Reason and message of the condition.
const SAID: (&str, &str) = ("CalicoIsUp", "Caracal is running on this node");

/// Sets the condition once per start.
pub(crate) async fn set_once(
    store: Datastore,
    me: NodeName,
    mut view: watch::Receiver<View>,
    mut kernel: watch::Receiver<Arc<AgentStatus>>,
    problems: ProblemReporter,
) {
    let worked_on = |status: &Arc<AgentStatus>| status.kernel.revision > 0;
    loop {
        if view.wait_for(View::is_current).await.is_err()
            || kernel.wait_for(worked_on).await.is_err()
        {
            return;
        }
        let now = Timestamp::from(SystemTime::now());
        match store.tell_network_is_up(&me, now, SAID).await {
            Ok(wrote) => {
                if wrote {
                    tracing::info!(node = %me, "told Kubernetes that the node's network is up");
                }
                problems.replace(Vec::new());
                return;
            }
            Err(error) => problems.warn(vec![Problem {
                code: ProblemCode::NodeRegistration,
                subject: format!("Node {me}, condition NetworkUnavailable"),
                reason: format!(
                    "cannot tell Kubernetes that this node's network is up: {error}; the scheduler may keep pods away until \
                     then. It is tried again"
                ),
            }]),
        }
        tokio::time::sleep(RETRY).await;
    }
}
