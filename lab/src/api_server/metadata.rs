//! The `metadata` of objects: what may stand there, and what only the server writes.

use serde_json::{Map, Value};

use super::kinds::Kind;
use super::status::{Cause, Failure, Named};

const KNOWN: [&str; 14] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];
/// Fields that only the server writes.
const OF_THE_SERVER: [&str; 5] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];
const ANNOTATIONS: usize = 256 * 1024;
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                         characters, '-' or '.', and must start and end with an alphanumeric \
                         character (e.g. 'example.com', regex used for validation is \
                         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
                     or '-', and must start and end with an alphanumeric character (e.g. \
                     'my-name',  or '123-abc', regex used for validation is \
                     '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// Identity that the server gives to a new object.
#[derive(Clone, Debug)]
pub(super) struct Birth {
    pub(super) uid: String,
    pub(super) now: String,
    /// Follows `generateName`.
    pub(super) suffix: String,
}

impl Birth {
    /// One of this moment.
    pub(super) fn now(now: &str) -> Self {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let random = crate::etcd::random_uuid();
        let hex: Vec<u8> = random.bytes().filter(u8::is_ascii_hexdigit).collect();
        let letter = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).unwrap_or_default();
            let number = usize::from_str_radix(text, 16).unwrap_or_default();
            char::from(LETTERS[number % LETTERS.len()])
        };
        Self {
            uid: crate::etcd::random_uuid(),
            now: now.to_owned(),
            suffix: hex.chunks(2).take(5).map(letter).collect(),
        }
    }
}

/// The metadata of an object as its client sent it, in order. Gives the unknown fields that were
/// dropped.
pub(super) fn tidy(object: &mut Value) -> Result<Vec<String>, String> {
    let Some(map) = object.as_object_mut() else {
        return Err("the body is not an object".to_owned());
    };
    let metadata = map.entry("metadata").or_insert(Value::Null);
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    let Some(metadata) = metadata.as_object_mut() else {
        return Err("metadata is not an object".to_owned());
    };
    let unknown: Vec<String> = metadata
        .keys()
        .filter(|key| !KNOWN.contains(&key.as_str()) && *key != "selfLink")
        .map(|key| format!("metadata.{key}"))
        .collect();
    metadata.retain(|key, value| {
        let is_empty = match value {
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Null => true,
            _ => false,
        };
        KNOWN.contains(&key.as_str()) && key != "managedFields" && !is_empty
    });
    for key in ["labels", "annotations"] {
        let Some(map) = metadata.get(key) else {
            continue;
        };
        let strings = map
            .as_object()
            .is_some_and(|m| m.values().all(Value::is_string));
        if !strings {
            return Err(format!("metadata.{key} is not a map of strings"));
        }
    }
    for key in [
        "name",
        "namespace",
        "generateName",
        "uid",
        "resourceVersion",
    ] {
        if metadata.get(key).is_some_and(|v| !v.is_string()) {
            return Err(format!("metadata.{key} is not a string"));
        }
    }
    Ok(unknown)
}

/// Gives a new object its name and what only the server writes.
pub(super) fn born(
    object: &mut Value,
    namespace: Option<&str>,
    has_generation: bool,
    birth: &Birth,
) {
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    for key in OF_THE_SERVER {
        metadata.shift_remove(key);
    }
    metadata.shift_remove("resourceVersion");
    let name = metadata.get("name").and_then(Value::as_str);
    if name.is_none_or(str::is_empty)
        && let Some(start) = metadata.get("generateName").and_then(Value::as_str)
    {
        let name = format!("{start}{}", birth.suffix);
        metadata.insert("name".to_owned(), name.into());
    }
    match namespace {
        Some(namespace) => drop(metadata.insert("namespace".to_owned(), namespace.into())),
        None => drop(metadata.shift_remove("namespace")),
    }
    metadata.insert("uid".to_owned(), birth.uid.clone().into());
    metadata.insert("creationTimestamp".to_owned(), birth.now.clone().into());
    if has_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

/// An update keeps what only the server writes.
pub(super) fn carry_over(new: &mut Value, old: &Value) {
    for key in OF_THE_SERVER
        .iter()
        .chain(&["name", "namespace", "generateName", "resourceVersion"])
    {
        match old["metadata"].get(*key) {
            Some(value) => new["metadata"][*key] = value.clone(),
            None => {
                if let Some(metadata) = new["metadata"].as_object_mut() {
                    metadata.shift_remove(*key);
                }
            }
        }
    }
}

/// Faults of the metadata.
pub(super) fn check(kind: &Kind, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        let why = "Required value: name or generateName is required";
        causes.push(Cause::new("FieldValueRequired", "metadata.name", why));
    } else if let Some(why) = wrong_name(kind, name) {
        causes.push(Cause::invalid("metadata.name", &metadata["name"], &why));
    }
    let labels = metadata["labels"].as_object();
    for (key, value) in labels.into_iter().flatten() {
        let text = value.as_str().unwrap_or_default();
        if !is_qualified(key) {
            let why = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
                       must start and end with an alphanumeric character";
            causes.push(Cause::invalid("metadata.labels", &key.clone().into(), why));
        }
        if !(text.is_empty() || is_part(text)) {
            let why = "a valid label must be an empty string or consist of alphanumeric \
                       characters, '-', '_' or '.', and must start and end with an alphanumeric \
                       character, and have at most 63 characters";
            causes.push(Cause::invalid("metadata.labels", value, why));
        }
    }
    let annotations = metadata["annotations"].as_object();
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        size += key.len() + value.as_str().map_or(0, str::len);
        if !is_qualified(&key.to_lowercase()) {
            let why = "name part must consist of alphanumeric characters, '-', '_' or '.', and \
                       must start and end with an alphanumeric character";
            causes.push(Cause::invalid(
                "metadata.annotations",
                &key.clone().into(),
                why,
            ));
        }
    }
    if size > ANNOTATIONS {
        let message = format!("Too long: may not be more than {ANNOTATIONS} bytes");
        let cause = Cause::new("FieldValueTooLong", "metadata.annotations", message);
        causes.push(cause);
    }
    causes
}

fn wrong_name(kind: &Kind, name: &str) -> Option<String> {
    if kind.group == "rbac.authorization.k8s.io" {
        let fine = !name.contains(['/', '%']) && ![".", ".."].contains(&name);
        return (!fine).then(|| "may not contain '/' or '%'".to_owned());
    }
    let (most, is_label) = match (&*kind.group, &*kind.kind) {
        ("", "Namespace" | "Service") => (63, true),
        _ => (253, false),
    };
    if name.len() > most {
        return Some(format!("must be no more than {most} characters"));
    }
    let label = |part: &str| {
        let fine = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = part.as_bytes();
        let ends =
            bytes.first().is_some_and(|c| fine(*c)) && bytes.last().is_some_and(|c| fine(*c));
        ends && bytes.iter().all(|c| fine(*c) || *c == b'-')
    };
    if is_label {
        return (!label(name)).then(|| LABEL.to_owned());
    }
    (!name.split('.').all(label)).then(|| SUBDOMAIN.to_owned())
}

/// `[PREFIX/]NAME`.
fn is_qualified(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let domain = |p: &str| {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        !p.is_empty() && p.len() <= 253 && p.chars().all(fine)
    };
    prefix.is_none_or(domain) && is_part(name)
}

fn is_part(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63
        && text.starts_with(fine)
        && text.ends_with(fine)
        && text.chars().all(|c| fine(c) || "-_.".contains(c))
}

/// Does an update fit the revision and the identity that its sender names?
pub(super) fn fits(
    kind: &Kind,
    old: &Value,
    new: &Value,
    key: &str,
    is_patch: bool,
) -> Result<(), Failure> {
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    let (group, plural) = (&*kind.group, &*kind.plural);
    let what = Named {
        group,
        kind: plural,
        name,
    };
    let text = |object: &Value, key: &str| {
        let text = object["metadata"][key].as_str();
        text.unwrap_or_default().to_owned()
    };
    let (uid, own) = (text(new, "uid"), text(old, "uid"));
    if !uid.is_empty() && uid != own {
        if is_patch {
            let kind = Named {
                kind: &kind.kind,
                ..what
            };
            let cause = Cause::invalid("metadata.uid", &uid.into(), "field is immutable");
            return Err(Failure::invalid(&kind, &[cause]));
        }
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object \
             meta: {own}"
        );
        return Err(Failure::conflict(&what, &why));
    }
    let version = text(new, "resourceVersion");
    if version.is_empty() || version == "0" {
        // Kinds that may be overwritten without having been read.
        let is_loose =
            !kind.is_custom() && !["leases", "customresourcedefinitions"].contains(&plural);
        if is_loose || is_patch {
            return Ok(());
        }
        let why = "must be specified for an update";
        let message = format!("Invalid value: 0x0: {why}");
        let cause = Cause::new("FieldValueInvalid", "metadata.resourceVersion", message);
        let kind = Named {
            kind: &kind.kind,
            ..what
        };
        return Err(Failure::invalid(&kind, &[cause]));
    }
    if version != text(old, "resourceVersion") {
        return Err(Failure::modified(&what));
    }
    Ok(())
}
