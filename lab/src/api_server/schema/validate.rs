//! Values held against a schema.

use regex::Regex;
use serde_json::Value;

use super::super::status::Cause;
use super::{ENVELOPE, formats, joined};

/// The one rule that is understood: the value stays as it is.
pub(super) const STAYS: &str = "self == oldSelf";

/// Faults of an object, compared with its old state.
pub(in super::super) fn validate(
    object: &Value,
    old: Option<&Value>,
    schema: &Value,
) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut schema = schema.clone();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| !ENVELOPE.contains(&name.as_str()));
    }
    value(object, old, &schema, "", &mut causes);
    causes
}

pub(super) fn value(
    value: &Value,
    old: Option<&Value>,
    schema: &Value,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if let Some(cause) = wrong_type(value, schema, path) {
        causes.push(cause);
        return;
    }
    scalar(value, schema, path, causes);
    match value {
        Value::Object(map) => {
            for name in schema["required"].as_array().into_iter().flatten() {
                let name = name.as_str().unwrap_or_default();
                if map.get(name).is_none_or(Value::is_null) {
                    causes.push(Cause::required(&joined(path, name)));
                }
            }
            for (name, item) in map {
                let more = &schema["additionalProperties"];
                let known = schema["properties"].get(name).unwrap_or(more);
                let required = schema["required"].as_array();
                let is_required = required.is_some_and(|r| r.iter().any(|n| n == name));
                if known.is_object() && !(item.is_null() && is_required) {
                    let old = old.and_then(|o| o.get(name));
                    self::value(item, old, known, &joined(path, name), causes);
                }
            }
        }
        Value::Array(items) if schema["items"].is_object() => {
            for (index, item) in items.iter().enumerate() {
                // Elements of lists without keys have no past.
                let at = format!("{path}[{index}]");
                self::value(item, None, &schema["items"], &at, causes);
            }
        }
        _ => {}
    }
    alternatives(value, schema, path, causes);
    for rule in schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
    {
        if rule["rule"] == STAYS && old.is_some_and(|old| old != value) {
            let why = rule["message"].as_str();
            let why = why.unwrap_or("failed rule: self == oldSelf");
            causes.push(Cause::invalid(path, value, why));
        }
    }
}

fn wrong_type(value: &Value, schema: &Value, path: &str) -> Option<Cause> {
    if schema["x-kubernetes-int-or-string"] == true {
        let fits = value.is_string() || value.is_i64();
        return (!fits).then(|| type_cause(value, "integer,string", path));
    }
    let expected = schema["type"].as_str()?;
    let fits = match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        _ => true,
    };
    (!fits).then(|| type_cause(value, expected, path))
}

fn type_cause(value: &Value, expected: &str, path: &str) -> Cause {
    let actual = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let message = format!(
        "Invalid value: \"{actual}\": {path} in body must be of type {expected}: \"{actual}\""
    );
    Cause::new("FieldValueTypeInvalid", path, message)
}

fn scalar(value: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let mut invalid = |why: String| causes.push(Cause::invalid(path, value, &why));
    if let Some(number) = value.as_f64() {
        if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
            invalid(format!(
                "{path} in body should be greater than or equal to {least}"
            ));
        }
        if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
            invalid(format!(
                "{path} in body should be less than or equal to {most}"
            ));
        }
    }
    if let Some(format) = schema["format"].as_str()
        && !formats::holds(format, value)
    {
        invalid(format!("{path} in body must be of type {format}: {value}"));
    }
    if let Some(text) = value.as_str() {
        let pattern = schema["pattern"].as_str();
        let wanted = pattern.and_then(|p| Some((p, Regex::new(p).ok()?)));
        if let Some((pattern, _)) = wanted.filter(|(_, regex)| !regex.is_match(text)) {
            invalid(format!("{path} in body should match '{pattern}'"));
        }
    }
    let size = match value {
        Value::String(text) => Some((text.chars().count(), "minLength", "maxLength", "chars long")),
        Value::Array(items) => Some((items.len(), "minItems", "maxItems", "items")),
        Value::Object(map) => Some((map.len(), "minProperties", "maxProperties", "properties")),
        _ => None,
    };
    if let Some((size, least, most, what)) = size {
        let size = u64::try_from(size).unwrap_or(u64::MAX);
        if let Some(least) = schema[least].as_u64().filter(|least| size < *least) {
            invalid(format!("{path} in body should be at least {least} {what}"));
        }
        if let Some(most) = schema[most].as_u64().filter(|most| size > *most) {
            invalid(format!("{path} in body should be at most {most} {what}"));
        }
    }
    if let Some(list) = schema["enum"]
        .as_array()
        .filter(|list| !list.contains(value))
    {
        let list: Vec<_> = list.iter().map(Value::to_string).collect();
        let list = list.join(", ");
        let message = format!("Unsupported value: {value}: supported values: {list}");
        causes.push(Cause::new("FieldValueNotSupported", path, message));
    }
}

fn alternatives(item: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let fits = |schema: &Value| {
        let mut wrong = Vec::new();
        value(item, None, schema, path, &mut wrong);
        wrong.is_empty()
    };
    for schema in schema["allOf"].as_array().into_iter().flatten() {
        value(item, None, schema, path, causes);
    }
    if let Some(any) = schema["anyOf"].as_array()
        && !any.iter().any(fits)
    {
        let why = format!("{path} in body must validate at least one schema (anyOf)");
        causes.push(Cause::invalid(path, item, &why));
    }
    if let Some(one) = schema["oneOf"].as_array()
        && one.iter().filter(|s| fits(s)).count() != 1
    {
        let why = format!("{path} in body must validate one and only one schema (oneOf)");
        causes.push(Cause::invalid(path, item, &why));
    }
    if schema["not"].is_object() && fits(&schema["not"]) {
        let why = format!("{path} in body must not validate the schema (not)");
        causes.push(Cause::invalid(path, item, &why));
    }
}
