//! `caracal get`.

use std::process::ExitCode;

use caracal_datastore::Store;
use caracal_model::ipam::Owner;
use caracal_model::resource::API_VERSION;
use caracal_model::txn::{KeyValue, Range};
use caracal_model::{
    Key, KeyError, Schema, Selector, Target, handles_prefix, ipam_prefix, kind_prefix,
};
use serde_json::{Map, Value, json};

use super::args::GetArgs;
use super::form::Form;
use super::shape::{self, Shape};
use super::{columns, kind_and_names};
use crate::args::Output;
use crate::cli::exit::{DEGRADED, NOT_FOUND};

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
    let namespaced = matches!(target, Target::Resource(kind) if kind.is_namespaced());
    let namespace = namespaced.then(|| args.space.or_default());
    let found = read(
        store,
        target,
        namespace.as_deref().filter(|_| !args.all_namespaces),
    )
    .await?;
    let mut missing = Vec::new();
    let mut shown: Vec<Value> = Vec::new();
    if names.is_empty() {
        shown.extend(found.resources);
    } else {
        for name in &names {
            let is_it = |r: &&Value| r["metadata"]["name"].as_str() == Some(name.as_str());
            let before = shown.len();
            shown.extend(found.resources.iter().filter(is_it).cloned());
            if shown.len() == before {
                missing.push(name);
            }
        }
    }
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

/// Resources that were read.
struct Found {
    revision: i64,
    resources: Vec<Value>,
    /// Keys whose values are no resources, with the reason.
    unreadable: Vec<(String, String)>,
}

async fn read<S: Store>(
    store: &S,
    target: Target,
    namespace: Option<&str>,
) -> anyhow::Result<Found> {
    let prefix = match target {
        Target::Resource(kind) => match namespace {
            Some(namespace) => format!("{}{namespace}/", kind_prefix(kind)),
            None => kind_prefix(kind),
        },
        Target::IpamHandle => handles_prefix(),
        Target::IpamBlock | Target::BlockAffinity => ipam_prefix(),
    };
    let answer = store.read(&[Range::Prefix(prefix)]).await?;
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
fn resource(target: Target, entry: &KeyValue) -> Option<Result<Value, String>> {
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
        (Target::Resource(_), Key::Resource { .. }) => {
            parsed().map(|fields| super::versioned(Value::Object(fields), entry.mod_revision))
        }
        (Target::IpamBlock, Key::Block(cidr)) => {
            parsed().map(|spec| made(cidr.to_key().replace(['.', ':'], "-"), spec))
        }
        (Target::IpamHandle, Key::Handle(id)) => parsed().map(|spec| made(id.to_string(), spec)),
        (Target::BlockAffinity, Key::Affinity(owner, cidr)) => parsed().map(|mut spec| {
            let (kind, name) = match &owner {
                Owner::Host(node) => ("host", node.to_string()),
                Owner::Virtual(name) => ("virtual", name.clone()),
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
fn document(target: Target, alone: bool, revision: i64, shown: &[Value]) -> Option<Value> {
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
pub(super) fn print(target: Target, form: Form, alone: bool, revision: i64, shown: &[Value]) {
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
