//! As much of kustomize as `deploy/` uses: `resources`, `patches` by strategic merge, `namespace`,
//! `components`.
//! A field that is not known here is an error, so that nothing is silently left out.

use std::path::Path;

use serde_json::{Map, Value};

use super::{documents, read};

/// Builds a directory.
pub(crate) fn build(dir: &Path) -> Vec<Value> {
    let file = dir.join("kustomization.yaml");
    let name = file.display().to_string();
    let [kustomization] = &documents(&read(&file), &name)[..] else {
        panic!("{name}: one document");
    };
    let known = [
        "apiVersion",
        "kind",
        "namespace",
        "resources",
        "patches",
        "components",
    ];
    for key in kustomization.as_object().unwrap().keys() {
        assert!(
            known.contains(&key.as_str()),
            "{name}: {key} is not known to this test"
        );
    }
    let list = |key: &str| kustomization[key].as_array().cloned().unwrap_or_default();
    let mut objects = Vec::new();
    for resource in list("resources") {
        let path = dir.join(resource.as_str().unwrap());
        match path.is_dir() {
            true => objects.extend(build(&path)),
            false => objects.extend(documents(&read(&path), &path.display().to_string())),
        }
    }
    for component in list("components") {
        let dir = dir.join(component.as_str().unwrap());
        let file = dir.join("kustomization.yaml");
        let component = documents(&read(&file), &file.display().to_string()).remove(0);
        assert_eq!(component["kind"], "Component", "{}", file.display());
        patch(&mut objects, &dir, component["patches"].as_array().unwrap());
    }
    patch(&mut objects, dir, &list("patches"));
    if let Some(namespace) = kustomization["namespace"].as_str() {
        for object in objects
            .iter()
            .filter(|o| !o["kind"].as_str().unwrap().starts_with("Cluster"))
        {
            assert_eq!(
                object["metadata"]["namespace"], namespace,
                "{name}: {object}"
            );
        }
    }
    objects
}

/// Applies patches of a folder to the objects that they name.
fn patch(objects: &mut [Value], dir: &Path, patches: &[Value]) {
    for patch in patches {
        let path = dir.join(patch["path"].as_str().expect("a patch by path"));
        for patch in documents(&read(&path), &path.display().to_string()) {
            let same = |o: &&mut Value| {
                [
                    "/apiVersion",
                    "/kind",
                    "/metadata/name",
                    "/metadata/namespace",
                ]
                .iter()
                .all(|at| o.pointer(at) == patch.pointer(at))
            };
            let target = objects.iter_mut().find(same);
            merge(
                target.unwrap_or_else(|| panic!("{}: no such object", path.display())),
                &patch,
            );
        }
    }
}

/// A strategic merge. Lists of objects with names are merged by name; other lists are replaced.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                match target.get_mut(key) {
                    Some(there) => merge(there, value),
                    None => {
                        target.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(target), Value::Array(patch))
            if patch.iter().all(|v| v["name"].is_string()) =>
        {
            // Items that the patch names go first, as in kustomize.
            let mut merged = Vec::new();
            for value in patch {
                let there = target
                    .iter()
                    .position(|there| there["name"] == value["name"]);
                let mut there = there.map_or(Value::Object(Map::new()), |at| target.remove(at));
                merge(&mut there, value);
                merged.push(there);
            }
            merged.append(target);
            *target = merged;
        }
        (target, patch) => *target = patch.clone(),
    }
}

#[test]
fn a_patch_merges_by_name_and_replaces_what_has_none() {
    let mut target = serde_json::json!({"a": {"b": 1, "c": [1, 2]}, "list": [{"name": "x", "v": 1}, {"name": "y"}]});
    let patch = serde_json::json!({"a": {"c": [3]}, "list": [{"name": "x", "v": 2}, {"name": "z"}], "d": Map::new()});
    merge(&mut target, &patch);
    let wanted = serde_json::json!({
        "a": {"b": 1, "c": [3]}, "list": [{"name": "x", "v": 2}, {"name": "z"}, {"name": "y"}], "d": {}
    });
    assert_eq!(target, wanted);
}
