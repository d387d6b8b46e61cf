//! The schema of a kind as Kubernetes' API server takes it: a CustomResourceDefinition in the group
//! that Calico's nodes read. What the API server checks is the part of the rules that a structural
//! schema can say: types, required fields, allowed texts, bounds, and that a field stays as it is.

use serde_json::{Map, Value, json};

use super::rules_of;
use super::types::{Rule, Type};
use crate::resource::Kind;

/// The group of Calico's definitions.
const GROUP: &str = "crd.projectcalico.org";

/// Kinds that are objects of their own on Kubernetes. Nodes and endpoints are Kubernetes' Nodes and
/// Pods there, and IPAM's settings have another kind.
const fn is_defined(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::IpPool
            | Kind::IpReservation
            | Kind::BgpPeer
            | Kind::BgpFilter
            | Kind::BgpConfiguration
            | Kind::FelixConfiguration
            | Kind::ClusterInformation
    )
}

/// The definition of a kind; `None` for kinds that have none.
pub(super) fn definition(kind: Kind) -> Option<Value> {
    let rules = rules_of(kind).filter(|_| is_defined(kind))?;
    let plural = kind.plural();
    let (name, list) = (format!("{plural}.{GROUP}"), format!("{kind}List"));
    let names = json!({
        "kind": kind.as_str(), "listKind": list, "plural": plural,
        "singular": kind.as_str().to_ascii_lowercase(),
    });
    let root = json!({
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": object(rules, "spec."),
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    });
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": root},
    });
    Some(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {"group": GROUP, "names": names, "scope": "Cluster", "versions": [version]},
    }))
}

/// The mapping below a path. Fields of a newer Calico are not pruned.
fn object(rules: &[Rule], path: &str) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for rule in rules {
        let Some(name) = rule.path.strip_prefix(path).filter(|n| !n.contains('.')) else {
            continue;
        };
        properties.insert(name.to_owned(), property(rules, rule));
        if rule.required {
            required.push(name);
        }
    }
    let mut schema = json!({
        "type": "object", "properties": properties, "x-kubernetes-preserve-unknown-fields": true,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(rules: &[Rule], rule: &Rule) -> Value {
    let below = format!("{}.", rule.path);
    let mut schema = match rule.holds {
        Type::Object => object(rules, &below),
        Type::Objects => json!({"type": "array", "items": object(rules, &below)}),
        Type::List(inner) => json!({"type": "array", "items": scalar(*inner)}),
        holds => scalar(holds),
    };
    if let Some(default) = rule.default {
        schema["default"] = serde_json::from_str(default).expect("invariant: defaults are JSON");
    }
    if let Some(reason) = rule.immutable {
        let message = format!("it cannot be changed; {reason}");
        schema["x-kubernetes-validations"] =
            json!([{"rule": "self == oldSelf", "message": message}]);
    }
    schema
}

fn scalar(holds: Type) -> Value {
    match holds {
        Type::Boolean => json!({"type": "boolean"}),
        Type::Integer(low, high) => {
            json!({"type": "integer", "format": "int64", "minimum": low, "maximum": high})
        }
        // Go's clients may write an empty text for what is not set.
        Type::OneOf(all) => {
            let all: Vec<&str> = all.iter().copied().chain([""]).collect();
            json!({"type": "string", "enum": all})
        }
        Type::OneOfAnyCase(all) => {
            json!({"type": "string", "pattern": format!("^(?i)({})?$", all.join("|"))})
        }
        Type::AsNumber | Type::Ports => json!({"x-kubernetes-int-or-string": true}),
        Type::Any => json!({"x-kubernetes-preserve-unknown-fields": true}),
        _ => json!({"type": "string"}),
    }
}
