//! A pod and its namespace, and the ranges of a Node, for the CNI plugin.

use caracal_model::{NodeName, Prefix};

use super::api::{Api, ApiFailure};
use super::mapping;
use crate::kubernetes_pod::KubernetesPod;

/// Reads both at the same time; `None` when there is no such pod.
pub(super) async fn read(
    api: &Api,
    namespace: &str,
    name: &str,
) -> Result<Option<KubernetesPod>, ApiFailure> {
    let within = format!("/api/v1/namespaces/{namespace}");
    let path = format!("{within}/pods/{name}");
    let (pod, namespace) = tokio::join!(api.get(&path), api.get(&within));
    match (pod, namespace) {
        // A pod whose namespace went in between is on its way, too.
        (Err(ApiFailure::NotFound), _) | (Ok(_), Err(ApiFailure::NotFound)) => Ok(None),
        (pod, namespace) => Ok(Some(mapping::read_pod(&pod?, &namespace?))),
    }
}

/// The node that a pod runs on.
pub(super) async fn node(
    api: &Api,
    namespace: &str,
    name: &str,
) -> Result<Option<NodeName>, ApiFailure> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let pod = match api.get(&path).await {
        Err(ApiFailure::NotFound) => return Ok(None),
        pod => pod?,
    };
    let node = pod["spec"]["nodeName"].as_str();
    Ok(node.filter(|name| !name.is_empty()).map(NodeName::from))
}

/// The ranges of a Node's pods; `None` when there is no such Node.
pub(super) async fn pod_cidrs(
    api: &Api,
    node: &NodeName,
) -> Result<Option<Vec<Prefix>>, ApiFailure> {
    match api.get(&format!("/api/v1/nodes/{node}")).await {
        Err(ApiFailure::NotFound) => Ok(None),
        node => Ok(Some(mapping::pod_cidrs(&node?))),
    }
}
