//! Lists of the API: which of them hold a prefix, their paths, and what their objects stand for.

use caracal_model::KeyValue;
use serde_json::Value;

use super::api::Api;
use super::mapping::{self, ApiGroup, Collection, List, PolicyKind};

/// Metadata without the rest: a Node's status is most of it and changes with every heartbeat.
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(super) const WHOLE: &str = "application/json";

/// Keys and values of an object. One that cannot be mapped is left out, with a warning.
pub(super) fn key_values(
    api: &Api,
    collection: Collection,
    object: &Value,
    group: ApiGroup,
) -> Vec<KeyValue> {
    if collection == Collection::Nodes && api.config.use_pod_cidr {
        return mapping::key_values_with_pod_cidrs(object);
    }
    if mapping::is_deleted(object) {
        return Vec::new();
    }
    mapping::key_values(collection, object, group).unwrap_or_else(|error| {
        let name = &object["metadata"]["name"];
        tracing::warn!(?collection, %name, %error, "an object that cannot be read is left out");
        Vec::new()
    })
}

/// Characters of a query's value that stand for themselves.
pub(super) fn escaped(text: &str) -> String {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.~/".contains(&c);
    text.bytes().fold(String::new(), |mut all, c| {
        match plain(c) {
            true => all.push(char::from(c)),
            false => all.push_str(&format!("%{c:02X}")),
        }
        all
    })
}

/// The path of a list with what selects its objects; ends in `?` or `&`.
pub(super) fn list_path(api: &Api, group: ApiGroup, list: &List) -> String {
    let mut path = format!("{}?", list.collection.path(group));
    if let Some(labels) = &list.labels {
        path.push_str(&format!("labelSelector={}&", escaped(labels)));
    }
    let pods_of = api.config.pods_of.as_ref();
    let pods_of = pods_of.filter(|_| !api.config.enforces_policy);
    if let (Collection::Pods, Some(node)) = (list.collection, pods_of) {
        let selector = format!("spec.nodeName={node}");
        path.push_str(&format!("fieldSelector={}&", escaped(&selector)));
    }
    path
}

/// The lists that hold all keys below a prefix.
pub(super) fn lists_below(api: &Api, prefix: &str) -> Vec<List> {
    match api.config.use_pod_cidr {
        true => List::under_prefix_with_pod_cidrs(prefix),
        false => List::under_prefix(prefix),
    }
}

/// How a kind is listed to be followed. Of Nodes the metadata, unless `podCIDRs` are read; of those
/// of Kubernetes' policies that are only named, too.
pub(super) fn listed_form(api: &Api, collection: Collection) -> &'static str {
    match is_metadata(api, collection) {
        true => METADATA_LIST,
        false => WHOLE,
    }
}

/// The same of its objects in a watch.
pub(super) fn watched_form(api: &Api, collection: Collection) -> &'static str {
    match is_metadata(api, collection) {
        true => METADATA,
        false => WHOLE,
    }
}

fn is_metadata(api: &Api, collection: Collection) -> bool {
    match collection {
        Collection::Nodes => !api.config.use_pod_cidr,
        Collection::Policies(PolicyKind::Network) => !api.config.enforces_policy,
        other => matches!(other, Collection::Policies(_)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::KubernetesConfig;
    use super::*;

    /// Where policies are enforced, they are read whole, and so are the pods of all nodes.
    #[test]
    fn policies_ask_for_what_they_say_and_for_all_pods() {
        let policies = Collection::Policies(PolicyKind::Network);
        let of_clusters = Collection::Policies(PolicyKind::Cluster);
        for (enforces_policy, pods, form) in [
            (
                false,
                "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&",
                METADATA,
            ),
            (true, "/api/v1/pods?", WHOLE),
        ] {
            let api = Api::new(KubernetesConfig {
                pods_of: Some("node-1".into()),
                enforces_policy,
                ..KubernetesConfig::default()
            });
            let path = list_path(&api, ApiGroup::V1, &List::all(Collection::Pods));
            assert_eq!(path, pods);
            assert_eq!(watched_form(&api, policies), form);
            assert_eq!(watched_form(&api, of_clusters), METADATA);
        }
    }
}
