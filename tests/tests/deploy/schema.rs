//! Kubernetes' types, strictly: an object is read as its type and written again, and what does not
//! come back was not known.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Fault of an object.
pub(crate) fn check(object: &Value) -> Result<(), String> {
    let api = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    match (api, kind) {
        ("apps/v1", "DaemonSet") => typed::<DaemonSet>(object),
        ("apps/v1", "Deployment") => typed::<Deployment>(object),
        ("v1", "ConfigMap") => typed::<ConfigMap>(object),
        ("v1", "ServiceAccount") => typed::<ServiceAccount>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => typed::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => {
            typed::<ClusterRoleBinding>(object)
        }
        ("rbac.authorization.k8s.io/v1", "Role") => typed::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => typed::<RoleBinding>(object),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            typed::<CustomResourceDefinition>(object)
        }
        _ => Err(format!("{api} {kind} is no type that this test knows")),
    }
}

fn typed<T: Serialize + DeserializeOwned>(object: &Value) -> Result<(), String> {
    let read: T = serde_json::from_value(object.clone()).map_err(|e| e.to_string())?;
    let back = serde_json::to_value(&read).map_err(|e| e.to_string())?;
    let mut lost = Vec::new();
    missing(object, &back, "", &mut lost);
    match lost.is_empty() {
        true => Ok(()),
        false => Err(format!("unknown or not as written: {}", lost.join(", "))),
    }
}

/// Paths of `written` that are not in `back`.
fn missing(written: &Value, back: &Value, path: &str, lost: &mut Vec<String>) {
    match (written, back) {
        (Value::Object(written), Value::Object(back)) => {
            for (key, value) in written {
                let path = format!("{path}.{key}");
                match back.get(key) {
                    Some(there) => missing(value, there, &path, lost),
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(written), Value::Array(back)) if written.len() == back.len() => {
            for (index, (written, back)) in written.iter().zip(back).enumerate() {
                missing(written, back, &format!("{path}[{index}]"), lost);
            }
        }
        // Quantities and numbers are compared as they are written.
        (written, back) if written == back => {}
        (Value::Number(written), Value::Number(back)) if written.as_f64() == back.as_f64() => {}
        (written, back) => lost.push(format!("{path} ({written} became {back})")),
    }
}

/// The value with the keys of all objects in order.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            let pairs = keys.into_iter().map(|key| (key.clone(), sorted(&map[key])));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
        Value::Array(list) => Value::Array(list.iter().map(sorted).collect()),
        other => other.clone(),
    }
}
