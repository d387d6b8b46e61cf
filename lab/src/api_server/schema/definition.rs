//! Definitions of custom resources: which are taken.

use serde_json::Value;

use super::super::status::Cause;
use super::{PRESERVES, validate};

/// Faults of a CustomResourceDefinition.
pub(in super::super) fn check(definition: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    for (path, value) in [
        ("spec.group", &spec["group"]),
        ("spec.scope", &spec["scope"]),
        ("spec.names.plural", &spec["names"]["plural"]),
        ("spec.names.kind", &spec["names"]["kind"]),
    ] {
        if text(value).is_empty() {
            causes.push(Cause::required(path));
        }
    }
    let name = &definition["metadata"]["name"];
    if text(name) != format!("{plural}.{group}") {
        let why = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", name, why));
    }
    if !["Cluster", "Namespaced", ""].contains(&&*text(&spec["scope"])) {
        let message = format!(
            "Unsupported value: {}: supported values: \"Cluster\", \"Namespaced\"",
            spec["scope"]
        );
        causes.push(Cause::new("FieldValueNotSupported", "spec.scope", message));
    }
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    if versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &spec["versions"], why));
    }
    for (index, version) in versions.iter().enumerate() {
        let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
        let schema = &version["schema"]["openAPIV3Schema"];
        if schema.is_object() {
            structural(schema, &path, &mut causes);
        } else {
            causes.push(Cause::required(&path));
        }
    }
    causes
}

fn structural(schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let is_free = schema[PRESERVES] == true || schema["x-kubernetes-int-or-string"] == true;
    if schema["type"].as_str().is_none_or(str::is_empty) && !is_free {
        let message = "Required value: must not be empty for specified object fields";
        let path = format!("{path}.type");
        causes.push(Cause::new("FieldValueRequired", &path, message));
    }
    let rules = schema["x-kubernetes-validations"].as_array();
    for rule in rules.into_iter().flatten() {
        if rule["rule"] != validate::STAYS {
            let why = "this test server knows the rule `self == oldSelf` alone";
            let path = format!("{path}.x-kubernetes-validations");
            causes.push(Cause::invalid(&path, &rule["rule"], why));
        }
    }
    if let Some(pattern) = schema["pattern"].as_str()
        && let Err(error) = regex::Regex::new(pattern)
    {
        let path = format!("{path}.pattern");
        causes.push(Cause::invalid(
            &path,
            &schema["pattern"],
            &error.to_string(),
        ));
    }
    if let Some(default) = schema.get("default") {
        let mut wrong = Vec::new();
        validate::value(
            default,
            None,
            schema,
            &format!("{path}.default"),
            &mut wrong,
        );
        causes.append(&mut wrong);
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        structural(schema, &format!("{path}.properties[{name}]"), causes);
    }
    if schema["items"].is_object() {
        structural(&schema["items"], &format!("{path}.items"), causes);
    }
    if schema["additionalProperties"].is_object() {
        let path = format!("{path}.additionalProperties");
        structural(&schema["additionalProperties"], &path, causes);
    }
    if schema["type"] == "array" && !schema["items"].is_object() {
        causes.push(Cause::required(&format!("{path}.items")));
    }
}
