//! A pod and its namespace, and the ranges of a Node, for the CNI plugin; and the cluster's ranges
//! of pods and of Services.

use caracal_model::{NodeName, Prefix};

use serde_json::Value;

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

/// Where kubeadm keeps what a cluster was made with.
const KUBEADM: &str = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";

/// What kubeadm calls the ranges of pods.
pub(super) const OF_PODS: &str = "podSubnet";
/// What kubeadm calls the ranges of Services.
pub(super) const OF_SERVICES: &str = "serviceSubnet";

/// The ranges that kubeadm was told in that field; none in clusters that it did not make.
pub(super) async fn cluster_ranges(
    api: &Api,
    field: &'static str,
) -> Result<Vec<Prefix>, ApiFailure> {
    match api.get(KUBEADM).await {
        Err(ApiFailure::NotFound) => Ok(Vec::new()),
        map => told_to_kubeadm(&map?, field).map_err(|reason| {
            ApiFailure::Refused(format!("ConfigMap kube-system/kubeadm-config: {reason}"))
        }),
    }
}

/// A field of `networking` in the ClusterConfiguration: a range, or two with a comma between.
fn told_to_kubeadm(map: &Value, field: &str) -> Result<Vec<Prefix>, String> {
    let Some(text) = map["data"]["ClusterConfiguration"].as_str() else {
        return Ok(Vec::new());
    };
    let configuration: Value = serde_saphyr::from_str(text)
        .map_err(|error| format!("ClusterConfiguration is not YAML: {error}"))?;
    let ranges = configuration["networking"][field].as_str();
    let ranges = ranges.unwrap_or_default().split(',').map(str::trim);
    let range = |text: &str| {
        Prefix::parse_strict(text).map_err(|error| format!("networking.{field} {text:?}: {error}"))
    };
    ranges.filter(|text| !text.is_empty()).map(range).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(configuration: &str) -> Result<Vec<String>, String> {
        read(configuration, OF_PODS)
    }

    fn read(configuration: &str, field: &str) -> Result<Vec<String>, String> {
        let map = json!({"data": {"ClusterConfiguration": configuration}});
        let ranges = told_to_kubeadm(&map, field)?;
        Ok(ranges.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_ranges_of_pods_are_those_that_kubeadm_was_told() {
        let both = "kind: ClusterConfiguration\nnetworking:\n  dnsDomain: cluster.local\n  podSubnet: 10.244.0.0/16,fd00:244::/56\n  serviceSubnet: 10.96.0.0/12\n";
        let ranges = vec!["10.244.0.0/16".to_owned(), "fd00:244::/56".to_owned()];
        assert_eq!(told(both), Ok(ranges));
        for none in [
            "networking: {serviceSubnet: 10.96.0.0/12}",
            "networking: {podSubnet: \"\"}",
            "apiServer: {}",
        ] {
            assert_eq!(told(none), Ok(Vec::new()), "{none}");
        }
        assert_eq!(told_to_kubeadm(&json!({}), OF_PODS), Ok(Vec::new()));
        let wrong = told("networking: {podSubnet: 10.244.0.1/16}").unwrap_err();
        assert!(
            wrong.starts_with("networking.podSubnet \"10.244.0.1/16\": "),
            "{wrong}"
        );
        assert!(told("{").unwrap_err().contains("is not YAML"));
    }

    #[test]
    fn the_ranges_of_services_are_those_that_kubeadm_was_told() {
        for (text, ranges) in [
            ("10.96.0.0/12", "10.96.0.0/12"),
            ("fd00:96::/112", "fd00:96::/112"),
            ("10.96.0.0/12,fd00:96::/112", "10.96.0.0/12 fd00:96::/112"),
            ("fd00:96::/112, 10.96.0.0/12", "fd00:96::/112 10.96.0.0/12"),
            ("", ""),
        ] {
            let both =
                format!("networking:\n  podSubnet: 10.244.0.0/16\n  serviceSubnet: \"{text}\"\n");
            let found = read(&both, OF_SERVICES).unwrap();
            assert_eq!(found.join(" "), ranges, "{text}");
            assert_eq!(told(&both).unwrap(), ["10.244.0.0/16"], "{text}");
        }
        let without = "networking: {podSubnet: 10.244.0.0/16}";
        assert_eq!(read(without, OF_SERVICES), Ok(Vec::new()));
        let wrong = read("networking: {serviceSubnet: 10.96.0.1/12}", OF_SERVICES);
        let wrong = wrong.unwrap_err();
        assert!(
            wrong.starts_with("networking.serviceSubnet \"10.96.0.1/12\": "),
            "{wrong}"
        );
    }
}
