//! Structural schemas of custom resources: what they prune, fill in and refuse.

mod definition;
mod formats;
mod validate;

use serde_json::{Map, Value};

pub(super) use definition::check as check_definition;
pub(super) use validate::validate;

/// Keeps what a schema does not know.
const PRESERVES: &str = "x-kubernetes-preserve-unknown-fields";
/// Fields of each object, whatever the schema says.
const ENVELOPE: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes what the schema does not know; the paths of what was removed.
pub(super) fn prune(object: &mut Value, schema: &Value) -> Vec<String> {
    let mut gone = Vec::new();
    let Some(map) = object.as_object_mut() else {
        return gone;
    };
    let envelope: Vec<_> = ENVELOPE
        .iter()
        .filter_map(|key| Some((*key, map.shift_remove(*key)?)))
        .collect();
    prune_below(object, schema, "", &mut gone);
    if let Some(map) = object.as_object_mut() {
        let rest = std::mem::take(map);
        map.extend(envelope.into_iter().map(|(key, v)| (key.to_owned(), v)));
        map.extend(rest);
    }
    gone
}

fn prune_below(value: &mut Value, schema: &Value, path: &str, gone: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let more = &schema["additionalProperties"];
            let keeps = schema[PRESERVES] == true || *more == true;
            let names: Vec<String> = map.keys().cloned().collect();
            for name in names {
                let at = joined(path, &name);
                let known = schema["properties"].get(&name);
                let known = known.or_else(|| more.is_object().then_some(more));
                match (known, map.get_mut(&name)) {
                    (Some(schema), Some(value)) => prune_below(value, schema, &at, gone),
                    (None, _) if !keeps => {
                        map.shift_remove(&name);
                        gone.push(at);
                    }
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                prune_below(item, &schema["items"], &format!("{path}[{index}]"), gone);
            }
        }
        _ => {}
    }
}

/// Fills in what the schema has a default for.
pub(super) fn fill_in(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            fill_in_properties(map, &schema["properties"]);
            let more = &schema["additionalProperties"];
            let known = &schema["properties"];
            for (name, value) in map.iter_mut() {
                match known.get(name) {
                    Some(schema) => fill_in(value, schema),
                    None if more.is_object() => fill_in(value, more),
                    None => {}
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                fill_in(item, &schema["items"]);
            }
        }
        _ => {}
    }
}

fn fill_in_properties(map: &mut Map<String, Value>, properties: &Value) {
    for (name, schema) in properties.as_object().into_iter().flatten() {
        let Some(default) = schema.get("default") else {
            continue;
        };
        let is_null = map.get(name) == Some(&Value::Null) && schema["nullable"] != true;
        if is_null || !map.contains_key(name) {
            map.insert(name.clone(), default.clone());
        }
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "spec": {"type": "object", "required": ["cidr"], "properties": {
                "cidr": {"type": "string", "x-kubernetes-validations": [
                    {"rule": "self == oldSelf", "message": "it stays"}]},
                "size": {"type": "integer", "format": "int64", "default": 26, "minimum": 20},
                "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
                "as": {"type": "integer", "format": "int32"},
                "since": {"type": "string", "format": "date-time"},
                "list": {"type": "array", "items": {"type": "object", "properties": {
                    "a": {"type": "string", "default": "x"}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"known": {"type": "object"}}},
                "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            }},
        }})
    }

    #[test]
    fn unknown_fields_go_and_their_paths_are_told() {
        let mut object = json!({"kind": "K", "metadata": {"x": 1}, "top": 1, "spec": {
            "cidr": "c", "typo": 1, "list": [{"a": "1", "b": 2}],
            "free": {"any": 1, "known": {"thing": 1}}, "counts": {"k": 1}}});
        let gone = prune(&mut object, &schema());
        let kept = json!({"kind": "K", "metadata": {"x": 1}, "spec": {
            "cidr": "c", "list": [{"a": "1"}], "free": {"any": 1, "known": {}},
            "counts": {"k": 1}}});
        assert_eq!(object, kept);
        let paths = [
            "top",
            "spec.typo",
            "spec.list[0].b",
            "spec.free.known.thing",
        ];
        let mut gone = gone;
        gone.sort();
        let mut paths = paths.to_vec();
        paths.sort_unstable();
        assert_eq!(gone, paths);
    }

    #[test]
    fn defaults_are_filled_in_where_nothing_is() {
        let mut object = json!({"spec": {"mode": null, "list": [{}], "size": 24}});
        fill_in(&mut object, &schema());
        let filled = json!({"spec": {"mode": "A", "list": [{"a": "x"}], "size": 24}});
        assert_eq!(object, filled);
        // No `spec`, no defaults below it.
        let mut object = json!({});
        fill_in(&mut object, &schema());
        assert_eq!(object, json!({}));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_field() {
        let told = |spec: Value| -> Vec<String> {
            let object = json!({"spec": spec});
            let causes = validate(&object, None, &schema());
            let text =
                |c: super::super::status::Cause| format!("{} {} {}", c.reason, c.field, c.message);
            causes.into_iter().map(text).collect()
        };
        assert_eq!(told(json!({"cidr": "c"})), [""; 0]);
        let required = ["FieldValueRequired spec.cidr Required value"];
        assert_eq!(told(json!({})), required);
        assert_eq!(told(json!({"cidr": null})), required);
        let type_of = "FieldValueTypeInvalid spec.size Invalid value: \"string\": spec.size in \
                       body must be of type integer: \"string\"";
        assert_eq!(told(json!({"cidr": "c", "size": "26"})), [type_of]);
        let least = "FieldValueInvalid spec.size Invalid value: 3: spec.size in body should be \
                     greater than or equal to 20";
        assert_eq!(told(json!({"cidr": "c", "size": 3})), [least]);
        let mode = "FieldValueNotSupported spec.mode Unsupported value: \"C\": supported values: \
                    \"A\", \"B\"";
        assert_eq!(told(json!({"cidr": "c", "mode": "C"})), [mode]);
        assert_eq!(told(json!({"cidr": "c", "as": 4_200_000_000_u32})).len(), 1);
        assert_eq!(told(json!({"cidr": "c", "size": u64::MAX})).len(), 1);
        assert_eq!(told(json!({"cidr": "c", "size": 26.5})).len(), 1);
        assert_eq!(told(json!({"cidr": "c", "size": i64::MAX})), [""; 0]);
        assert_eq!(told(json!({"cidr": "c", "since": "yesterday"})).len(), 1);
        let good = json!({"cidr": "c", "since": "2026-01-05T10:11:12Z"});
        assert_eq!(told(good), [""; 0]);
        assert_eq!(told(json!({"cidr": "c", "counts": {"k": "v"}})).len(), 1);
    }

    #[test]
    fn rules_compare_with_what_was() {
        let old = json!({"spec": {"cidr": "a"}});
        let new = json!({"spec": {"cidr": "b"}});
        let causes = validate(&new, Some(&old), &schema());
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].message, "Invalid value: \"b\": it stays");
        assert!(validate(&old, Some(&old), &schema()).is_empty());
        assert!(validate(&new, None, &schema()).is_empty());
    }
}
