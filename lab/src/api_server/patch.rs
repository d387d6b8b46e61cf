//! Patches: JSON, merge, and strategic merge of the kinds of the core.

use serde_json::{Map, Value};

/// Kind of a patch, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Strategic,
}

impl PatchKind {
    /// From the media type.
    pub(super) fn parse(media_type: &str) -> Option<Self> {
        match media_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(Self::Json),
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }
}

/// Applies a patch. The error is the message of the 400 or 422.
pub(super) fn apply(kind: PatchKind, object: &Value, patch: &Value) -> Result<Value, String> {
    let mut patched = object.clone();
    match kind {
        PatchKind::Json => {
            let patch: json_patch::Patch = serde_json::from_value(patch.clone())
                .map_err(|e| format!("the body is not a JSON patch: {e}"))?;
            json_patch::patch(&mut patched, &patch).map_err(|e| e.to_string())?;
        }
        PatchKind::Merge => json_patch::merge(&mut patched, patch),
        PatchKind::Strategic => {
            let Some(patch) = patch.as_object() else {
                return Err("a strategic merge patch is an object".to_owned());
            };
            if !patched.is_object() {
                return Err("only objects can be patched".to_owned());
            }
            merge_object(&mut patched, patch, "")?;
        }
    }
    Ok(patched)
}

/// By which key the elements of a list are the same; an empty key: the elements themselves.
fn merge_key(parent: &str, field: &str) -> Option<&'static str> {
    match (parent, field) {
        ("containers" | "initContainers" | "ephemeralContainers", "ports") => Some("containerPort"),
        ("containers" | "initContainers" | "ephemeralContainers", "volumeMounts") => {
            Some("mountPath")
        }
        ("spec", "ports") => Some("port"),
        ("status", "addresses") => Some("type"),
        (_, "conditions") => Some("type"),
        (
            _,
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "env"
            | "imagePullSecrets"
            | "secrets"
            | "volumesAttached",
        ) => Some("name"),
        (_, "ownerReferences") => Some("uid"),
        (_, "podIPs" | "hostIPs" | "hostAliases") => Some("ip"),
        (_, "topologySpreadConstraints") => Some("topologyKey"),
        ("metadata", "finalizers") | ("spec", "podCIDRs") => Some(""),
        _ => None,
    }
}

fn merge_object(target: &mut Value, patch: &Map<String, Value>, name: &str) -> Result<(), String> {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            let mut patch = patch.clone();
            patch.shift_remove("$patch");
            *target = Value::Object(patch);
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(format!("unknown patch type: {other}")),
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else {
        return Ok(());
    };
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(list) = map.get_mut(field).and_then(Value::as_array_mut) {
                list.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key == "$retainKeys" {
            let kept = value.as_array().cloned().unwrap_or_default();
            map.retain(|key, _| kept.iter().any(|k| k == key));
            continue;
        }
        // The order of elements is kept as it is.
        if key.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => drop(map.shift_remove(key)),
            Value::Object(patch) => {
                let target = map.entry(key.clone()).or_insert(Value::Null);
                merge_object(target, patch, key)?;
            }
            Value::Array(items) => match merge_key(name, key) {
                Some(by) => {
                    let target = map.entry(key.clone()).or_insert(Value::Null);
                    merge_list(target, items, by, key)?;
                }
                None => drop(map.insert(key.clone(), value.clone())),
            },
            _ => drop(map.insert(key.clone(), value.clone())),
        }
    }
    Ok(())
}

fn merge_list(target: &mut Value, items: &[Value], by: &str, name: &str) -> Result<(), String> {
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else {
        return Ok(());
    };
    if items.iter().any(|i| i["$patch"] == "replace") {
        *list = items
            .iter()
            .filter(|i| i["$patch"] != "replace")
            .cloned()
            .collect();
        return Ok(());
    }
    for item in items {
        if by.is_empty() {
            if !list.contains(item) {
                list.push(item.clone());
            }
            continue;
        }
        let Some(patch) = item.as_object() else {
            return Err(format!("an element of {name} is not an object"));
        };
        let Some(key) = patch.get(by) else {
            return Err(format!(
                "map: {item} does not contain declared merge key: {by}"
            ));
        };
        let at = list.iter().position(|i| i.get(by) == Some(key));
        match (at, patch.get("$patch").and_then(Value::as_str)) {
            (Some(at), Some("delete")) => drop(list.remove(at)),
            (None, Some("delete")) => {}
            (Some(at), _) => merge_object(&mut list[at], patch, name)?,
            (None, _) => {
                let mut new = Value::Object(Map::new());
                merge_object(&mut new, patch, name)?;
                list.push(new);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn strategic(object: Value, patch: Value) -> Value {
        apply(PatchKind::Strategic, &object, &patch).expect("it applies")
    }

    #[test]
    fn elements_of_a_list_are_merged_by_their_key() {
        let node = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]}});
        let condition = json!({"type": "Ready", "status": "False", "reason": "R"});
        let patched = strategic(node, json!({"status": {"conditions": [condition]}}));
        let conditions = &patched["status"]["conditions"];
        assert_eq!(conditions[0]["status"], "False");
        assert_eq!(conditions[0]["reason"], "R");
        assert_eq!(conditions[1]["type"], "DiskPressure");
        let gone = json!({"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}});
        let left = strategic(patched, gone);
        assert_eq!(
            left["status"]["conditions"].as_array().map(Vec::len),
            Some(1)
        );
    }

    #[test]
    fn ports_of_a_container_and_of_a_service_have_keys_of_their_own() {
        let pod =
            json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}});
        let patch = json!({"spec": {"containers": [
            {"name": "a", "ports": [{"containerPort": 80, "name": "web"}]}]}});
        let patched = strategic(pod, patch);
        let ports = json!([{"containerPort": 80, "name": "web"}]);
        assert_eq!(patched["spec"]["containers"][0]["ports"], ports);
        let service = json!({"spec": {"ports": [{"port": 80}]}});
        let patched = strategic(service, json!({"spec": {"ports": [{"port": 443}]}}));
        assert_eq!(
            patched["spec"]["ports"],
            json!([{"port": 80}, {"port": 443}])
        );
    }

    #[test]
    fn null_removes_and_lists_without_a_key_are_replaced() {
        let object = json!({"metadata": {"annotations": {"a": "1", "b": "2"}}, "x": [1, 2]});
        let patch = json!({"metadata": {"annotations": {"a": null}}, "x": [3]});
        let expected = json!({"metadata": {"annotations": {"b": "2"}}, "x": [3]});
        assert_eq!(strategic(object.clone(), patch.clone()), expected);
        let merged = apply(PatchKind::Merge, &object, &patch).expect("it applies");
        assert_eq!(merged, expected);
        apply(PatchKind::Strategic, &object, &json!([])).expect_err("not an object");
        let nameless = json!({"spec": {"containers": [{"image": "x"}]}});
        apply(PatchKind::Strategic, &object, &nameless).expect_err("no key");
    }

    #[test]
    fn a_json_patch_that_tests_in_vain_changes_nothing() {
        let object = json!({"spec": {"n": 1}});
        let patch = json!([{"op": "test", "path": "/spec/n", "value": 2},
            {"op": "replace", "path": "/spec/n", "value": 3}]);
        apply(PatchKind::Json, &object, &patch).expect_err("the test fails");
        let patch = json!([{"op": "add", "path": "/spec/m", "value": 2}]);
        let patched = apply(PatchKind::Json, &object, &patch).expect("it applies");
        assert_eq!(patched, json!({"spec": {"n": 1, "m": 2}}));
    }
}
