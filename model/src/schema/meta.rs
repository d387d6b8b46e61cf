//! `metadata`: names, namespaces, labels and annotations, by Kubernetes' rules.

use serde_json::Value;

use crate::names::NodeName;
use crate::resource::{Kind, ValueError};

/// Longest name of an object.
const LONGEST_NAME: usize = 253;
/// Longest name or value of a label.
const LONGEST_LABEL: usize = 63;

pub(super) fn validate(kind: Kind, resource: &Value, faults: &mut Vec<ValueError>) {
    let Some(metadata @ Value::Object(_)) = resource.get("metadata") else {
        faults.push(ValueError("metadata.name is required".to_owned()));
        return;
    };
    match metadata.get("name") {
        Some(Value::String(name)) if !name.is_empty() => {
            if let Err(reason) = name_of(kind, name) {
                faults.push(ValueError(format!("metadata.name {name:?}: {reason}")));
            }
        }
        None | Some(Value::Null | Value::String(_)) => {
            faults.push(ValueError("metadata.name is required".to_owned()));
        }
        Some(other) => faults.push(ValueError(format!(
            "metadata.name {other}: expected a text"
        ))),
    }
    let namespace = metadata.get("namespace").and_then(Value::as_str);
    match namespace {
        Some(namespace) if !namespace.is_empty() && !kind.is_namespaced() => {
            faults.push(ValueError(format!(
                "metadata.namespace {namespace:?}: a {kind} belongs to the whole cluster and has no namespace"
            )));
        }
        _ => {}
    }
    texts(metadata, "labels", faults, |key, value| {
        label_key(key)?;
        label_value(value)
    });
    texts(metadata, "annotations", faults, |key, _| label_key(key));
}

/// A name of that kind.
fn name_of(kind: Kind, name: &str) -> Result<(), String> {
    if !is_subdomain(name) {
        return Err(format!(
            "a name has at most {LONGEST_NAME} of a-z, 0-9, - and ., and begins and ends with a letter or digit"
        ));
    }
    let of_node = || NodeName::of_configuration(name).is_some();
    match kind {
        Kind::BgpConfiguration | Kind::FelixConfiguration if name != "default" && !of_node() => {
            Err(format!(
                "a {kind} is named default (for the cluster) or node.NAME (for one node); under another name nobody reads it"
            ))
        }
        Kind::ClusterInformation | Kind::IpamConfiguration if name != "default" => {
            Err("there is one, and its name is default".to_owned())
        }
        _ => Ok(()),
    }
}

/// RFC 1123 as Kubernetes uses it: labels of letters, digits and hyphens with dots between.
pub(super) fn is_subdomain(name: &str) -> bool {
    let part = |part: &str| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|c| inner(*c))
            && bytes.last().is_some_and(|c| inner(*c))
            && bytes.iter().all(|c| inner(*c) || *c == b'-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(part)
}

/// Checks a mapping of texts in `metadata`.
fn texts(
    metadata: &Value,
    name: &str,
    faults: &mut Vec<ValueError>,
    check: impl Fn(&str, &str) -> Result<(), String>,
) {
    let map = match metadata.get(name) {
        None | Some(Value::Null) => return,
        Some(Value::Object(map)) => map,
        Some(other) => {
            faults.push(ValueError(format!(
                "metadata.{name} {other}: expected a mapping of texts"
            )));
            return;
        }
    };
    for (key, value) in map {
        let fault = match value.as_str() {
            None => Err(format!("expected a text, found {value}; quote it")),
            Some(value) => check(key, value),
        };
        if let Err(reason) = fault {
            faults.push(ValueError(format!("metadata.{name}.{key}: {reason}")));
        }
    }
}

/// `NAME` or `DOMAIN/NAME`.
///
/// # Errors
/// Says what a key may be.
pub(super) fn label_key(key: &str) -> Result<(), String> {
    let (domain, name) = match key.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, key),
    };
    if is_label_text(name) && !name.is_empty() && domain.is_none_or(is_subdomain) {
        return Ok(());
    }
    Err(format!(
        "the key is NAME or DOMAIN/NAME, with a NAME of 1 to {LONGEST_LABEL} letters, digits, -, _ and ., a letter or digit at both ends"
    ))
}

/// A label's value.
///
/// # Errors
/// Says what a value may be.
pub(super) fn label_value(value: &str) -> Result<(), String> {
    if is_label_text(value) {
        return Ok(());
    }
    Err(format!(
        "the value {value:?} is not one of at most {LONGEST_LABEL} letters, digits, -, _ and ., with a letter or digit at both ends"
    ))
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let end = |c: Option<&u8>| c.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= LONGEST_LABEL
        && end(bytes.first())
        && end(bytes.last())
        && bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}
