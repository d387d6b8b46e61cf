//! WorkloadEndpoint: one interface of one workload, as the CNI plugin writes it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha1::{Digest, Sha1};

use super::{Kind, Mac, Resource, ResourceSpec, null_default};
use crate::net::Prefix;

/// A WorkloadEndpoint.
pub type WorkloadEndpoint = Resource<WorkloadEndpointSpec>;

/// `spec` of a WorkloadEndpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadEndpointSpec {
    /// `k8s`, `cni` or another.
    #[serde(default)]
    pub orchestrator: String,
    /// The node that runs the workload.
    #[serde(default)]
    pub node: String,
    /// The container (sandbox) id.
    #[serde(
        default,
        rename = "containerID",
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub container_id: String,
    /// The pod, orchestrator `k8s`.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub pod: String,
    /// The workload, other orchestrators.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub workload: String,
    /// The interface inside the workload.
    #[serde(default)]
    pub endpoint: String,
    /// Addresses, as /32 or /128.
    #[serde(default, deserialize_with = "null_default")]
    pub ip_networks: Vec<Prefix>,
    /// Names of Profiles; `kns.NAMESPACE` in Kubernetes.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub profiles: Vec<String>,
    /// The interface on the host.
    #[serde(default)]
    pub interface_name: String,
    /// MAC of the interface inside the workload.
    #[serde(
        default,
        deserialize_with = "null_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub mac: String,
    /// Unknown fields (MODEL-1).
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl ResourceSpec for WorkloadEndpointSpec {
    const KIND: Kind = Kind::WorkloadEndpoint;
}

/// The name of a WorkloadEndpoint: the four parts joined by `-`, every `-` inside a part doubled.
/// `workload` is the pod for `k8s`, the container id for `cni`.
#[must_use]
pub fn endpoint_name(node: &str, orchestrator: &str, workload: &str, endpoint: &str) -> String {
    let mut name = String::new();
    push_endpoint_name(&mut name, [node, orchestrator, workload, endpoint]);
    name
}

/// Appends such a name. A list of endpoints makes one for each pod of the cluster.
pub(crate) fn push_endpoint_name(to: &mut String, parts: [&str; 4]) {
    // With room for as many dashes as most names have.
    to.reserve(parts.iter().map(|part| part.len()).sum::<usize>() + 16);
    for (part, at) in parts.into_iter().zip(0..) {
        if at > 0 {
            to.push('-');
        }
        for piece in part.split_inclusive('-') {
            to.push_str(piece);
            if piece.ends_with('-') {
                to.push('-');
            }
        }
    }
}

/// The host side interface of a Kubernetes pod: `prefix` and the first 11 hexadecimal digits of
/// SHA-1(`NAMESPACE.POD`).
#[must_use]
pub fn pod_interface(prefix: &str, namespace: &str, pod: &str) -> String {
    let digest = Sha1::digest(format!("{namespace}.{pod}"));
    let mut name = prefix.to_owned();
    for octet in &digest[..6] {
        name.push_str(&format!("{octet:02x}"));
    }
    name.truncate(prefix.len() + 11);
    name
}

/// MAC of the host side interface of every workload, which workloads know their gateway by.
pub const HOST_END_MAC: Mac = [0xee; 6];

/// Prefix of the alias of host side interfaces; behind it is whose they are, with the container's
/// id.
pub const ALIAS_PREFIX: &str = "caracal:";

/// The host side interface of another workload: `prefix` and the first 11 characters of the
/// container id.
#[must_use]
pub fn container_interface(prefix: &str, container_id: &str) -> String {
    let id: String = container_id.chars().take(11).collect();
    format!("{prefix}{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_calicos() {
        assert_eq!(
            endpoint_name("node-a", "k8s", "web-0", "eth0"),
            "node--a-k8s-web--0-eth0"
        );
        assert_eq!(pod_interface("cali", "default", "web-0"), "cali0d7763386da");
        assert_eq!(
            container_interface("cali", "8f2c4112345678"),
            "cali8f2c4112345"
        );
    }
}
