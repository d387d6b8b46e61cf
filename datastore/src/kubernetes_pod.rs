//! A pod, as the CNI plugin needs it.

use std::collections::BTreeMap;

use serde_json::Value;

/// What Kubernetes says of a pod: its WorkloadEndpoint is made from it, and it has wishes for its
/// addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubernetesPod {
    /// The pod's UID.
    pub uid: String,
    /// `metadata.generateName`, of pods that a controller made.
    pub generate_name: Option<String>,
    /// Labels of its endpoint: its own, and Calico's `projectcalico.org/namespace`,
    /// `…/orchestrator` and `…/serviceaccount`.
    pub labels: BTreeMap<String, String>,
    /// The service account that it runs as.
    pub service_account: String,
    /// Profiles of its endpoint: `kns.NAMESPACE`, `ksa.NAMESPACE.ACCOUNT`.
    pub profiles: Vec<String>,
    /// Ports of its containers that have a name or a port of the host, as `spec.ports` of an
    /// endpoint has them.
    pub ports: Vec<Value>,
    /// The pod's annotations.
    pub annotations: BTreeMap<String, String>,
    /// Those of its namespace.
    pub namespace_annotations: BTreeMap<String, String>,
}
