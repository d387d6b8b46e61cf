//! The CustomResourceDefinitions in `deploy/crds/` are the schema that `caracal apply` validates
//! against. `CARACAL_WRITE_CRDS=1` writes them anew.

use std::collections::BTreeSet;

use caracal_model::{Kind, Schema};
use serde_json::{Map, Value, json};

use super::{deploy, documents, read, schema};

fn definitions() -> impl Iterator<Item = (Kind, Value)> {
    let all = Kind::ALL.into_iter();
    all.filter_map(|kind| Some((kind, Schema(kind).definition()?)))
}

#[test]
fn published_definitions_are_the_schema() {
    // Kinds that users do not write have no schema of ours: `ipam.yaml` says what Calico's says.
    let unwritten = ["kustomization.yaml", "ipam.yaml"];
    let mut wanted = BTreeSet::from(unwritten.map(str::to_owned));
    for (kind, definition) in definitions() {
        schema::check(&definition).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let name = format!("{}.yaml", kind.plural());
        let path = deploy(&format!("crds/{name}"));
        if std::env::var_os("CARACAL_WRITE_CRDS").is_some() {
            std::fs::write(&path, serde_saphyr::to_string(&definition).unwrap()).unwrap();
        }
        let published = documents(&read(&path), &name);
        assert_eq!(
            published,
            [definition],
            "{name}: write it anew with CARACAL_WRITE_CRDS=1"
        );
        wanted.insert(name);
    }
    let there = std::fs::read_dir(deploy("crds")).unwrap();
    let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(there.collect::<BTreeSet<_>>(), wanted);
    let list = &documents(&read(&deploy("crds/kustomization.yaml")), "crds")[0]["resources"];
    let list = list.as_array().unwrap().iter();
    let listed: BTreeSet<&str> = list.filter_map(Value::as_str).collect();
    wanted.remove("kustomization.yaml");
    assert_eq!(listed, wanted.iter().map(String::as_str).collect());
}

/// Whether a structural schema accepts a value, as the API server reads it: types, required fields,
/// allowed texts, bounds.
fn takes(schema: &Value, value: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_i64() || value.is_u64() || value.is_string();
    }
    let typed = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.as_i64().is_some_and(|n| {
            schema["minimum"].as_i64().is_none_or(|low| n >= low)
                && schema["maximum"].as_i64().is_none_or(|high| n <= high)
        }),
        Some(other) => panic!("{other} is no type of a structural schema"),
    };
    let allowed = schema["enum"]
        .as_array()
        .is_none_or(|all| all.contains(value));
    let required = schema["required"].as_array().into_iter().flatten();
    let complete = required
        .filter_map(Value::as_str)
        .all(|name| value.get(name).is_some());
    let below = value
        .as_object()
        .into_iter()
        .flatten()
        .all(|(name, value)| {
            let property = &schema["properties"][name];
            property.is_null() || takes(property, value)
        });
    let items = value.as_array().into_iter().flatten();
    typed && allowed && complete && below && items.into_iter().all(|v| takes(&schema["items"], v))
}

/// A value for a structural schema: the first that comes to mind.
fn sample(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|all| all.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") => {
            let properties = schema["properties"].as_object();
            let all = properties.into_iter().flatten();
            let all = all.map(|(name, schema)| (name.clone(), sample(schema)));
            Value::Object(all.collect::<Map<_, _>>())
        }
        Some("array") => json!([sample(&schema["items"])]),
        Some("boolean") => json!(true),
        Some("integer") => schema["maximum"].clone(),
        _ => json!("Info"),
    }
}

/// Whatever the API server would refuse, `caracal apply` refuses too: each field of a sample is
/// given values of other types and out of bounds, and is left out.
#[test]
fn what_a_definition_refuses_the_command_line_refuses() {
    let mut looked_at = 0;
    for (kind, definition) in definitions() {
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let spec = &spec["properties"]["spec"];
        let good = sample(spec);
        assert!(takes(spec, &good), "{kind}: {good}");
        let mut mutations = Vec::new();
        mutate(&good, &mut Vec::new(), &mut mutations);
        for (place, wrong) in mutations {
            let mut bad = good.clone();
            set(&mut bad, &place, wrong.clone());
            if takes(spec, &bad) {
                continue;
            }
            looked_at += 1;
            let field = |path: &[Step]| {
                let parts = path.iter().map(|step| match step {
                    Step::Field(name) => format!(".{name}"),
                    Step::Item => "[0]".to_owned(),
                });
                format!("spec{}", parts.collect::<String>())
            };
            let resource = json!({"apiVersion": "projectcalico.org/v3", "kind": kind.as_str(),
                "metadata": {"name": "default"}, "spec": bad});
            let faults = Schema(kind).validate(&resource);
            let named = faults
                .iter()
                .any(|fault| fault.0.starts_with(&field(&place)));
            assert!(named, "{kind}: {} {wrong:?}: {faults:?}", field(&place));
        }
    }
    assert!(looked_at > 500, "{looked_at}");
}

/// A step into a value.
#[derive(Clone, Debug)]
enum Step {
    Field(String),
    Item,
}

/// Every place of a value with what could be wrong there; `None`: it is not there.
fn mutate(value: &Value, at: &mut Vec<Step>, into: &mut Vec<(Vec<Step>, Option<Value>)>) {
    if !at.is_empty() {
        for wrong in [
            json!(true),
            json!(-1),
            json!("Inf"),
            json!([7]),
            json!({"a": 1}),
        ] {
            into.push((at.clone(), Some(wrong)));
        }
        if matches!(at.last(), Some(Step::Field(_))) {
            into.push((at.clone(), None));
        }
    }
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                at.push(Step::Field(name.clone()));
                mutate(inner, at, into);
                at.pop();
            }
        }
        Value::Array(items) => {
            if let Some(first) = items.first() {
                at.push(Step::Item);
                mutate(first, at, into);
                at.pop();
            }
        }
        _ => {}
    }
}

fn set(value: &mut Value, place: &[Step], new: Option<Value>) {
    match place {
        [Step::Field(name)] => {
            let fields = value.as_object_mut().unwrap();
            match new {
                Some(new) => drop(fields.insert(name.clone(), new)),
                None => drop(fields.shift_remove(name)),
            }
        }
        [Step::Item] => value[0] = new.unwrap(),
        [Step::Field(name), rest @ ..] => set(&mut value[name], rest, new),
        [Step::Item, rest @ ..] => set(&mut value[0], rest, new),
        [] => {}
    }
}
