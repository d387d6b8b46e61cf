//! Values against the schemas of the API's description, as far as it uses JSON Schema; a word that
//! is not known fails.

use serde_json::Value;

/// What is wrong with a value, with the place.
pub(crate) fn faults(description: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let words = schema
        .as_object()
        .unwrap_or_else(|| panic!("{at}: {schema}"));
    let mut faults = Vec::new();
    for (word, rule) in words {
        match word.as_str() {
            "$ref" => {
                let pointer = rule
                    .as_str()
                    .and_then(|text| text.strip_prefix('#'))
                    .unwrap();
                let meant = description.pointer(pointer);
                let meant = meant.unwrap_or_else(|| panic!("{at}: there is no {rule}"));
                faults.extend(self::faults(description, meant, value, at));
            }
            "type" => {
                let types = rule
                    .as_array()
                    .cloned()
                    .unwrap_or_else(|| vec![rule.clone()]);
                if !types
                    .iter()
                    .any(|name| is_of(name.as_str().unwrap(), value))
                {
                    faults.push(format!("{at}: {value} is no {rule}"));
                }
            }
            "enum" => {
                if !rule.as_array().unwrap().contains(value) {
                    faults.push(format!("{at}: {value} is none of {rule}"));
                }
            }
            "required" => {
                for name in rule.as_array().unwrap() {
                    if value.is_object() && value.get(name.as_str().unwrap()).is_none() {
                        faults.push(format!("{at}: {name} is missing"));
                    }
                }
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    if let Some(inner) = value.get(name) {
                        let at = format!("{at}.{name}");
                        faults.extend(self::faults(description, schema, inner, &at));
                    }
                }
            }
            "additionalProperties" => {
                for (name, inner) in value.as_object().into_iter().flatten() {
                    let at = format!("{at}.{name}");
                    faults.extend(self::faults(description, rule, inner, &at));
                }
            }
            "items" => {
                for (n, inner) in value.as_array().into_iter().flatten().enumerate() {
                    let at = format!("{at}[{n}]");
                    faults.extend(self::faults(description, rule, inner, &at));
                }
            }
            other => panic!("{at}: the schema's word {other} is not known"),
        }
    }
    faults
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        other => panic!("the type {other} is not known"),
    }
}
