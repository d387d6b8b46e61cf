//! `caracal get`.

use std::process::ExitCode;

use caracal_datastore::Store;
use caracal_model::{
    API_VERSION, BlockOwner, Key, KeyError, KeyRange, KeyValue, ResourceType, Schema, Selector,
    handles_prefix, ipam_prefix, kind_prefix,
};
use serde_json::{Map, Value, json};

use super::args::GetArgs;
use super::form::Form;
use super::shape::{self, Shape};
use super::{columns, kind_and_names};
use crate::args::Output;
use crate::exit::{DEGRADED, NOT_FOUND};

pub(super) async fn run<S: Store>(store: &S, args: &GetArgs) -> anyhow::Result<ExitCode> {
    let (target, names) = match kind_and_names(&args.kind, &args.names) {
        Ok(asked) => asked,
        Err(code) => return Ok(code),
    };
    let selector = args.selector.as_deref().map(Selector::parse).transpose();
    let selector = match selector {
        Ok(selector) => selector,
        Err(error) => return Ok(super::usage(&format!("--selector: {error}"))),
    };
    let namespaced = matches!(target, ResourceType::Resource(kind) if kind.is_namespaced());
    let namespace = namespaced.then(|| args.space.or_default());
    let found = read(
        store,
        target,
        namespace.as_deref().filter(|_| !args.all_namespaces),
    )
    .await?;
    let (mut shown, mut missing) = pick(found.resources, &names);
    if let Some(selector) = selector {
        shown.retain(|resource| selector.matches(&super::labels(resource)));
    }
    if args.export {
        shown.iter_mut().for_each(Schema::export);
    }
    // One that was asked for by its name is printed by itself, as calicoctl does.
    let alone = names.len() == 1;
    match &args.output {
        Shape::Form(form) => print(target, *form, alone, found.revision, &shown),
        Shape::Columns(asked) => {
            let (headings, rows) = match shape::table(target, asked, &shown) {
                Ok(table) => table,
                Err(reason) => return Ok(super::usage(&reason)),
            };
            let headings: Vec<_> = headings.iter().map(String::as_str).collect();
            let mut table = Output::Wide.table(&headings);
            table.add_rows(rows);
            println!("{table}");
        }
        Shape::Template(template) => {
            if let Some(document) = document(target, alone, found.revision, &shown) {
                print!("{}", template.fill(&document));
            }
        }
        Shape::GoTemplate(template) => {
            if let Some(document) = document(target, alone, found.revision, &shown) {
                match template.fill(&document) {
                    Ok(text) => print!("{text}"),
                    Err(error) => return Ok(super::usage(&format!("go-template: {error}"))),
                }
            }
        }
    }
    let asked = |key: &str| {
        let last = key.rsplit('/').next().unwrap_or_default();
        names.is_empty() || names.iter().any(|name| name == last)
    };
    let unreadable: Vec<_> = found
        .unreadable
        .iter()
        .filter(|(key, _)| asked(key))
        .collect();
    for (key, reason) in &unreadable {
        eprintln!("caracal: {key}: {reason}");
    }
    missing.retain(|name| {
        !unreadable
            .iter()
            .any(|(key, _)| key.ends_with(&format!("/{name}")))
    });
    for name in &missing {
        let place = match &namespace {
            Some(namespace) if !args.all_namespaces => format!(" in namespace {namespace}"),
            _ => String::new(),
        };
        eprintln!("caracal: there is no {} {name}{place}", target.as_str());
    }
    Ok(match (missing.is_empty(), unreadable.is_empty()) {
        (false, _) => ExitCode::from(NOT_FOUND),
        (true, false) => ExitCode::from(DEGRADED),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// The resources with these names, or all without names; and the names that nothing has.
fn pick(resources: Vec<Value>, names: &[String]) -> (Vec<Value>, Vec<&String>) {
    if names.is_empty() {
        return (resources, Vec::new());
    }
    let (mut shown, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        let is_it = |r: &&Value| r["metadata"]["name"].as_str() == Some(name.as_str());
        let before = shown.len();
        shown.extend(resources.iter().filter(is_it).cloned());
        if shown.len() == before {
            missing.push(name);
        }
    }
    (shown, missing)
}

/// Resources that were read.
struct Found {
    revision: i64,
    resources: Vec<Value>,
    /// Keys whose values are no resources, with the reason.
    unreadable: Vec<(String, String)>,
}

async fn read<S: Store>(
    store: &S,
    target: ResourceType,
    namespace: Option<&str>,
) -> anyhow::Result<Found> {
    let prefix = match target {
        ResourceType::Resource(kind) => match namespace {
            Some(namespace) => format!("{}{namespace}/", kind_prefix(kind)),
            None => kind_prefix(kind),
        },
        ResourceType::IpamHandle => handles_prefix(),
        ResourceType::IpamBlock | ResourceType::BlockAffinity => ipam_prefix(),
    };
    let answer = store.read(&[KeyRange::Prefix(prefix)]).await?;
    let mut found = Found {
        revision: answer.revision,
        resources: Vec::new(),
        unreadable: Vec::new(),
    };
    for entry in answer.ranges.iter().flatten() {
        match resource(target, entry) {
            Some(Ok(resource)) => found.resources.push(resource),
            Some(Err(reason)) => found.unreadable.push((entry.key.clone(), reason)),
            None => {}
        }
    }
    Ok(found)
}

/// An entry as a resource; `None` for what is of another kind.
fn resource(target: ResourceType, entry: &KeyValue) -> Option<Result<Value, String>> {
    let key = match Key::parse(&entry.key) {
        Ok(key) => key,
        Err(KeyError::Foreign) => return None,
        Err(error) => return Some(Err(error.to_string())),
    };
    let parsed = || {
        let value = serde_json::from_slice::<Value>(&entry.value);
        let value = value.map_err(|error| format!("the value is not JSON: {error}"))?;
        match value {
            Value::Object(fields) => Ok(fields),
            other => Err(format!("the value is no mapping: {other}")),
        }
    };
    let made = |name: String, spec: Map<String, Value>| {
        json!({"kind": target.as_str(), "apiVersion": API_VERSION,
            "metadata": {"name": name, "resourceVersion": entry.mod_revision.to_string()},
            "spec": spec})
    };
    let value = match (target, key) {
        (ResourceType::Resource(_), Key::Resource { .. }) => {
            parsed().map(|fields| super::versioned(Value::Object(fields), entry.mod_revision))
        }
        (ResourceType::IpamBlock, Key::Block(cidr)) => {
            parsed().map(|spec| made(cidr.to_key().replace(['.', ':'], "-"), spec))
        }
        (ResourceType::IpamHandle, Key::Handle(id)) => {
            parsed().map(|spec| made(id.to_string(), spec))
        }
        (ResourceType::BlockAffinity, Key::Affinity(owner, cidr)) => parsed().map(|mut spec| {
            let (kind, name) = match &owner {
                BlockOwner::Host(node) => ("host", node.to_string()),
                BlockOwner::Virtual(name) => ("virtual", name.clone()),
            };
            spec.insert("node".to_owned(), Value::from(name.clone()));
            spec.insert("type".to_owned(), Value::from(kind));
            spec.insert("cidr".to_owned(), Value::from(cidr.to_string()));
            let cidr = cidr.to_key().replace(['.', ':'], "-");
            made(format!("{name}-{cidr}"), spec)
        }),
        _ => return None,
    };
    Some(value)
}

/// Resources as one value: one that was asked for by its name alone, else a list.
fn document(target: ResourceType, alone: bool, revision: i64, shown: &[Value]) -> Option<Value> {
    match shown {
        [one] if alone => Some(one.clone()),
        [] if alone => None,
        all => Some(
            json!({"kind": format!("{}List", target.as_str()), "apiVersion": API_VERSION,
                "metadata": {"resourceVersion": revision.to_string()}, "items": all}),
        ),
    }
}

/// Prints resources in a form.
pub(super) fn print(target: ResourceType, form: Form, alone: bool, revision: i64, shown: &[Value]) {
    match form {
        Form::Json | Form::Yaml => {
            if let Some(document) = document(target, alone, revision, shown) {
                form.output().print(&document);
            }
        }
        Form::Name => shown
            .iter()
            .for_each(|resource| println!("{}", super::name_of(target, resource))),
        Form::Table | Form::Wide => {
            if alone && shown.is_empty() {
                return;
            }
            let (header, rows) = columns::table(target, form == Form::Wide, shown);
            let mut table = form.output().table(&header);
            table.add_rows(rows);
            println!("{table}");
        }
    }
}
