//! Result of creating or updating an object, without any storage.

use serde_json::{Value, json};

use super::builtin;
use super::kinds::{EXTENSIONS, Kind, with_default_names};
use super::metadata::{self, Birth};
use super::schema;
use super::status::{Failure, Named};

/// Treatment of fields that the schema does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    /// From the parameter of a request.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "Ignore" => Ok(Self::Ignore),
            "" | "Warn" => Ok(Self::Warn),
            "Strict" => Ok(Self::Strict),
            other => Err(Failure::bad(format!(
                "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \
                 \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// An object that may be stored, and what its sender is warned of.
pub(super) type Accepted = (Value, Vec<String>);

/// Checks and completes an object that is to be created.
pub(super) fn create(
    kind: &Kind,
    namespace: Option<&str>,
    mut object: Value,
    birth: &Birth,
    unknown: FieldValidation,
) -> Result<Accepted, Failure> {
    let warnings = decode(kind, &mut object, unknown)?;
    let version = &object["metadata"]["resourceVersion"];
    if version.as_str().is_some_and(|v| !v.is_empty() && v != "0") {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(Failure::internal(message));
    }
    metadata::born(&mut object, namespace, has_generation(kind), birth);
    if kind.has_status && kind.is_custom() {
        remove(&mut object, "status");
    }
    builtin::fill_in(kind, &mut object, true);
    if kind.group == EXTENSIONS {
        establish(&mut object, &birth.now);
    }
    check(kind, &object, None)?;
    Ok((object, warnings))
}

/// A new state of an object. `is_status`: by the subresource.
pub(super) fn update(
    kind: &Kind,
    old: &Value,
    mut new: Value,
    is_status: bool,
    unknown: FieldValidation,
) -> Result<Accepted, Failure> {
    let warnings = decode(kind, &mut new, unknown)?;
    metadata::carry_over(&mut new, old);
    if is_status {
        let status = new.get("status").cloned();
        let mut kept = old.clone();
        if !kind.is_custom() {
            // Labels, annotations and finalizers are written as well.
            let references = old["metadata"].get("ownerReferences").cloned();
            kept["metadata"] = new["metadata"].clone();
            if let Some(references) = references {
                kept["metadata"]["ownerReferences"] = references;
            }
        }
        new = kept;
        set(&mut new, "status", status);
    } else if kind.has_status {
        set(&mut new, "status", old.get("status").cloned());
    }
    builtin::fill_in(kind, &mut new, false);
    if kind.group == EXTENSIONS {
        let created = old["metadata"]["creationTimestamp"].as_str();
        establish(&mut new, created.unwrap_or_default());
    }
    check(kind, &new, Some(old))?;
    if has_generation(kind) && content(&new, kind) != content(old, kind) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
        new["metadata"]["generation"] = (generation + 1).into();
    }
    Ok((new, warnings))
}

/// Is nothing to be written?
pub(super) fn is_same(old: &Value, new: &Value) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        remove(&mut object["metadata"], "resourceVersion");
        object
    };
    bare(old) == bare(new)
}

fn has_generation(kind: &Kind) -> bool {
    kind.is_custom() || ["apps", EXTENSIONS].contains(&&*kind.group)
}

/// Part of an object whose changes the generation counts.
fn content(object: &Value, kind: &Kind) -> Value {
    let mut object = object.clone();
    remove(&mut object, "metadata");
    remove(&mut object, "apiVersion");
    if kind.has_status {
        remove(&mut object, "status");
    }
    object
}

fn remove(object: &mut Value, key: &str) {
    if let Some(map) = object.as_object_mut() {
        map.shift_remove(key);
    }
}

fn set(object: &mut Value, key: &str, value: Option<Value>) {
    match value {
        Some(value) => object[key] = value,
        None => remove(object, key),
    }
}

fn decode(
    kind: &Kind,
    object: &mut Value,
    unknown: FieldValidation,
) -> Result<Vec<String>, Failure> {
    let (expected, name) = (kind.api_version(), &kind.kind);
    let cannot = |why: &str| {
        let version = &kind.version;
        let text = format!("{name} in version \"{version}\" cannot be handled as a {name}: {why}");
        Failure::bad(text)
    };
    for (key, expected) in [("apiVersion", &expected), ("kind", name)] {
        let given = object.get(key).and_then(Value::as_str);
        let given = given.unwrap_or_default().to_owned();
        if given.is_empty() && !kind.is_custom() && object.is_object() {
            object[key] = expected.clone().into();
        } else if given != *expected {
            return Err(Failure::bad(format!(
                "the {key} in the data ({given}) does not match the expected {key} ({expected})"
            )));
        }
    }
    let mut dropped = metadata::tidy(object).map_err(|why| cannot(&why))?;
    if let Some(schema) = &kind.schema {
        dropped.extend(schema::prune(object, schema));
        schema::fill_in(object, schema);
    }
    let told = dropped
        .iter()
        .map(|path| format!("unknown field \"{path}\""));
    match unknown {
        FieldValidation::Strict if !dropped.is_empty() => {
            let all: Vec<_> = told.collect();
            Err(cannot(&format!(
                "strict decoding error: {}",
                all.join(", ")
            )))
        }
        FieldValidation::Warn => Ok(told.collect()),
        _ => Ok(Vec::new()),
    }
}

fn check(kind: &Kind, object: &Value, old: Option<&Value>) -> Result<(), Failure> {
    let mut causes = metadata::check(kind, object);
    if let Some(schema) = &kind.schema {
        causes.extend(schema::validate(object, old, schema));
    } else if kind.group == EXTENSIONS {
        causes.extend(schema::check_definition(object));
    } else {
        causes.extend(builtin::check(kind, object, old));
    }
    if causes.is_empty() {
        return Ok(());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let what = Named {
        group: &kind.group,
        kind: &kind.kind,
        name,
    };
    Err(Failure::invalid(&what, &causes))
}

/// A definition is in force at once. On a real server a controller says so a moment later.
fn establish(definition: &mut Value, since: &str) {
    let names = with_default_names(&definition["spec"]["names"]);
    definition["spec"]["names"] = names.clone();
    definition["spec"]["conversion"] = json!({"strategy": "None"});
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": "True", "lastTransitionTime": since, "reason": reason,
            "message": message})
    };
    let versions = definition["spec"]["versions"].as_array();
    let stored = versions
        .into_iter()
        .flatten()
        .filter(|v| v["storage"] == true);
    let stored: Vec<_> = stored.map(|v| v["name"].clone()).collect();
    definition["status"] = json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": names, "storedVersions": stored,
    });
}
