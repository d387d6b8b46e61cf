//! STATUS: could an ADD be served now? The node's process must be up and ready, since only it
//! programs routes, the datastore must answer and know the node, and the readiness gates must be
//! open.

use caracal_datastore::Store;
use caracal_model::NodeStatus;

use crate::call::{Call, PluginRole};
use crate::endpoint;
use crate::error::{CniError, StatusError};
use crate::node_process;
use crate::spec::Command;

/// Checks the node's process (an IPAM plugin does without), the gates, the datastore, and a
/// delegated IPAM plugin.
///
/// # Errors
/// [`StatusError`] with the reason, or the delegated plugin's.
pub(crate) async fn status<S: Store>(call: &Call, store: &S) -> Result<(), CniError> {
    if call.role == PluginRole::Main {
        let said = node_process::status(&call.dirs.admin_socket())
            .await
            .map_err(StatusError::Process)?;
        if let Some(reason) = unready(&said) {
            let node = call.attachment.node.to_string();
            return Err(StatusError::NotReady { node, reason }.into());
        }
    }
    for gate in call.conf.gates()? {
        gate.probe().await.map_err(StatusError::Gate)?;
    }
    endpoint::read(store, &call.attachment)
        .await
        .map_err(StatusError::Datastore)?;
    if let Some(delegate) = call.delegate()? {
        delegate.run(Command::Status)?;
    }
    Ok(())
}

/// Why a node that says this would not route a new pod.
fn unready(said: &NodeStatus) -> Option<String> {
    let reason = said
        .datastore
        .reason
        .as_deref()
        .unwrap_or("no reason given");
    match said.datastore.state.as_str() {
        "starting" => return Some(reason.to_owned()),
        "stale" => return Some(format!("it does not hear from the datastore: {reason}")),
        _ => {}
    }
    match said.kernel.phase.as_str() {
        "frozen" => Some("it is about to restart".to_owned()),
        "" => Some("it has not looked at the kernel's routes yet".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_would_not_route_a_pod_is_not_ready() {
        let said = |state: &str, phase: &str| {
            let mut said = NodeStatus::default();
            said.datastore.state = state.to_owned();
            said.datastore.reason = Some("etcd is down".to_owned());
            said.kernel.phase = phase.to_owned();
            unready(&said)
        };
        assert_eq!(said("fresh", "synced"), None);
        assert_eq!(said("lagging", "learning"), None);
        for (state, phase, part) in [
            ("starting", "", "etcd is down"),
            ("stale", "synced", "the datastore: etcd is down"),
            ("fresh", "frozen", "restart"),
            ("fresh", "", "not looked at the kernel"),
        ] {
            let reason = said(state, phase).unwrap_or_default();
            assert!(reason.contains(part), "{reason}");
        }
    }
}
