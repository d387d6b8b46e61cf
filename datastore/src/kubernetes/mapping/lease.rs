//! Data that nodes keep beside Calico's, below `/caracal/`: a Lease for each key, in the namespace
//! of the system. The liveness lease and the leader's are Leases in Kubernetes' sense too; of the
//! reports only the value counts, and a Lease is the object for which a node needs the fewest
//! rights.

use caracal_model::{HandleId, KeyValue};
use serde_json::{Map, Value, json};

use super::{MappingError, names, revision};

/// Prefix of the keys.
pub(super) const ROOT: &str = "/caracal/";
/// Namespace of the Leases.
pub(in crate::kubernetes) const NAMESPACE: &str = "kube-system";
const KEY: &str = "caracal.io/key";
const VALUE: &str = "caracal.io/value";
/// The part of the key behind the root: `lease`, `leader`, `topology`, `mode`.
const KIND: &str = "caracal.io/kind";

/// The parts of a key.
fn parts(path: &str) -> Option<(&str, &str)> {
    let (kind, name) = path.strip_prefix(ROOT)?.split_once('/')?;
    (!kind.is_empty() && !name.is_empty()).then_some((kind, name))
}

/// The name of a key's object.
pub(super) fn name(path: &str) -> Option<String> {
    let (kind, name) = parts(path)?;
    Some(names::of_handle(&HandleId::from(&*format!(
        "caracal-{kind}.{name}"
    ))))
}

/// The labels that select what lies below a prefix of keys; `None`: nothing here does.
pub(super) fn selector(prefix: &str) -> Option<String> {
    let rest = prefix.strip_prefix(ROOT)?;
    Some(match rest.split_once('/') {
        Some((kind, _)) => format!("{KIND}={kind}"),
        None => KIND.to_owned(),
    })
}

/// The key and the value of an object; none of another's Lease.
pub(super) fn key_values(object: &Value) -> Vec<KeyValue> {
    let annotations = &object["metadata"]["annotations"];
    let (Some(key), Some(value)) = (annotations[KEY].as_str(), annotations[VALUE].as_str()) else {
        return Vec::new();
    };
    vec![KeyValue {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        mod_revision: revision(object),
    }]
}

/// The object of a value, with the metadata of the one that it replaces.
pub(super) fn object(
    path: &str,
    value: &[u8],
    mut metadata: Map<String, Value>,
) -> Result<Value, MappingError> {
    let (kind, name) = parts(path).ok_or(MappingError::NoObject)?;
    let text = std::str::from_utf8(value).map_err(|_| MappingError::NoObject)?;
    let lease: Value = serde_json::from_str(text).map_err(|_| MappingError::NoObject)?;
    metadata.insert("name".to_owned(), self::name(path).into());
    metadata.insert("namespace".to_owned(), NAMESPACE.into());
    metadata.insert("labels".to_owned(), json!({(KIND): kind}));
    let annotations = json!({(KEY): path, (VALUE): text});
    metadata.insert("annotations".to_owned(), annotations);
    let mut spec = json!({});
    // For people who look at leases, and for tools that know them.
    let holder = match kind {
        "lease" => Some(lease["machine"].as_str().unwrap_or(name)),
        "leader" => lease["node"].as_str(),
        _ => None,
    };
    if let Some(holder) = holder {
        spec["holderIdentity"] = holder.into();
        if let Some(seconds) = lease["seconds"].as_u64().filter(|seconds| *seconds > 0) {
            spec["leaseDurationSeconds"] = seconds.into();
        }
        for (field, time) in [("renewTime", "renewed"), ("acquireTime", "acquired")] {
            if let Some(time) = lease[time].as_str().and_then(micro_time) {
                spec[field] = time.into();
            }
        }
        if let Some(transitions) = lease["transitions"].as_u64() {
            spec["leaseTransitions"] = transitions.into();
        }
    }
    Ok(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": metadata, "spec": spec,
    }))
}

/// A time with the six digits that Kubernetes wants behind the seconds.
fn micro_time(text: &str) -> Option<String> {
    let text = text.strip_suffix('Z')?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().take(6).collect();
    Some(format!("{seconds}.{digits:0<6}Z"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_liveness_lease_is_a_lease_and_comes_back_as_it_was() {
        let value =
            br#"{"node":"n1","renewed":"2026-01-05T10:11:12Z","seconds":900,"machine":"m"}"#;
        let mut lease = object("/caracal/lease/n1", value, Map::new()).unwrap();
        assert_eq!(lease["metadata"]["name"], "caracal-lease.n1");
        assert_eq!(
            lease["spec"],
            json!({"holderIdentity": "m", "leaseDurationSeconds": 900,
                   "renewTime": "2026-01-05T10:11:12.000000Z"})
        );
        lease["metadata"]["resourceVersion"] = "7".into();
        let stored = key_values(&lease);
        assert_eq!(
            (&*stored[0].key, stored[0].mod_revision),
            ("/caracal/lease/n1", 7)
        );
        assert_eq!(stored[0].value, value);
        let next = object(
            "/caracal/lease/n1",
            value,
            lease["metadata"].as_object().unwrap().clone(),
        )
        .unwrap();
        assert_eq!(next["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn the_leader_is_the_holder_of_its_lease() {
        let value = br#"{"node":"n1","acquired":"2026-01-05T10:11:12Z","renewed":"2026-01-05T10:11:13Z","seconds":450,"transitions":2}"#;
        let lease = object("/caracal/leader/deleted-nodes", value, Map::new()).unwrap();
        assert_eq!(lease["metadata"]["name"], "caracal-leader.deleted-nodes");
        assert_eq!(
            lease["spec"],
            json!({"holderIdentity": "n1", "leaseDurationSeconds": 450, "leaseTransitions": 2,
                   "acquireTime": "2026-01-05T10:11:12.000000Z",
                   "renewTime": "2026-01-05T10:11:13.000000Z"})
        );
    }

    #[test]
    fn reports_are_selected_by_their_kind_and_other_leases_are_none() {
        let report = object("/caracal/topology/n1", br#"{"a":1}"#, Map::new()).unwrap();
        assert_eq!(report["spec"], json!({}));
        assert_eq!(report["metadata"]["labels"][KIND], "topology");
        assert_eq!(
            selector("/caracal/topology/").unwrap(),
            "caracal.io/kind=topology"
        );
        assert_eq!(selector("/caracal/").unwrap(), "caracal.io/kind");
        assert_eq!(selector("/calico/"), None);
        let foreign = json!({"metadata": {"name": "kube-scheduler"}, "spec": {}});
        assert_eq!(key_values(&foreign), []);
        assert!(object("/caracal/lease/n1", b"no JSON", Map::new()).is_err());
        assert_eq!(
            micro_time("2026-01-05T10:11:12.5Z").unwrap(),
            "2026-01-05T10:11:12.500000Z"
        );
    }
}
