//! `caracal get`, `apply`, `create`, `replace`, `delete`, `patch` and `label`: Calico's resources
//! from the command line, in calicoctl's and kubectl's habits. What a resource may say is decided
//! by [`caracal_model::Schema`]; here are files, the datastore and words.

mod apply;
pub(crate) mod args;
mod change;
mod columns;
mod delete;
mod effect;
mod field_path;
mod form;
mod get;
mod go_template;
mod input;
mod shape;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::ExitCode;

use caracal_datastore::DatastoreConfig;
use caracal_model::{InsertEach, Key, ResourceType, WriteRule};
use serde_json::Value;

use super::ipam::{now, on_store};
use crate::node::kernel::lifelines::look_up;
use apply::ApplyOptions;
use args::{
    ApplyArgs, CreateArgs, DeleteArgs, GetArgs, LabelArgs, PatchArgs, PatchType, WriteArgs,
};
use change::{Labels, ResourceChange};
use input::Document;
use write::{RequestedState, RequestedWrite};

/// A command line that cannot be read.
const USAGE: u8 = 2;

pub(crate) fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    get::run(args)
}

pub(crate) fn apply(args: &ApplyArgs) -> anyhow::Result<ExitCode> {
    write_files(args, RequestedState::Apply, false)
}

pub(crate) fn create(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    write_files(&args.apply, RequestedState::Create, args.skip_exists)
}

pub(crate) fn replace(args: &ApplyArgs) -> anyhow::Result<ExitCode> {
    write_files(args, RequestedState::Replace, false)
}

pub(crate) fn delete(args: &DeleteArgs) -> anyhow::Result<ExitCode> {
    on_store(async |store| delete::run(&store, args).await)
}

pub(crate) fn patch(args: &PatchArgs) -> anyhow::Result<ExitCode> {
    let change = match args.r#type {
        PatchType::Merge if !args.patch.is_object() => {
            return Ok(usage("--patch: a merge patch is a mapping"));
        }
        PatchType::Merge => ResourceChange::Merge(args.patch.clone()),
        PatchType::Json => match serde_json::from_value(args.patch.clone()) {
            Ok(operations) => ResourceChange::Operations(operations),
            Err(error) => {
                return Ok(usage(&format!(
                    "--patch: a JSON patch is a list of operations (RFC 6902): {error}"
                )));
            }
        },
    };
    let names: Vec<String> = args.name.iter().cloned().collect();
    let order = match changed(&args.kind, &names, args.space.or_default(), change) {
        Ok(order) => order,
        Err(code) => return Ok(code),
    };
    run(vec![order], options(&args.write, false))
}

pub(crate) fn label(args: &LabelArgs) -> anyhow::Result<ExitCode> {
    let (names, words) = match (args.kind.contains('/'), args.words.split_first()) {
        (false, Some((name, words))) => (vec![name.clone()], words),
        _ => (Vec::new(), &args.words[..]),
    };
    let labels = match Labels::parse(words, args.overwrite, args.remove) {
        Ok(labels) => labels,
        Err(reason) => return Ok(usage(&reason)),
    };
    let change = ResourceChange::Labels(labels);
    let order = match changed(&args.kind, &names, args.space.or_default(), change) {
        Ok(order) => order,
        Err(code) => return Ok(code),
    };
    let options = ApplyOptions {
        dry_run: args.dry_run,
        allow_unknown: false,
        skip_exists: false,
        form: args.output,
    };
    run(vec![order], options)
}

/// A change of one resource.
fn changed(
    kind: &str,
    names: &[String],
    namespace: String,
    change: ResourceChange,
) -> Result<RequestedWrite, ExitCode> {
    let (target, names) = kind_and_names(kind, names)?;
    let [name] = &names[..] else {
        return Err(usage("which one? give its name"));
    };
    let kind = match (target, target.writable()) {
        (ResourceType::Resource(kind), _) => kind,
        (_, WriteRule::ReadOnly(reason)) => {
            let what = target.as_str();
            return Err(super::ipam::refuse(&format!(
                "{what} {name}: it is read only: {reason}"
            )));
        }
        (_, WriteRule::Writable) => return Err(usage("which kind?")),
    };
    Ok(RequestedWrite {
        origin: String::new(),
        kind,
        key: Key::Resource {
            kind,
            namespace: kind.is_namespaced().then_some(namespace),
            name: name.clone(),
        },
        wanted: RequestedState::Change(change),
    })
}

fn options(args: &WriteArgs, skip_exists: bool) -> ApplyOptions {
    ApplyOptions {
        dry_run: args.dry_run,
        allow_unknown: args.allow_unknown,
        skip_exists,
        form: args.output,
    }
}

/// The addresses by which others reach the datastore: not those of this machine alone.
async fn datastore_addresses() -> BTreeSet<IpAddr> {
    let hosts = DatastoreConfig::from_env().and_then(|config| config.hosts());
    let found = look_up(&hosts.unwrap_or_default()).await;
    found
        .into_iter()
        .filter(|at| !at.is_loopback())
        .insert_each()
}

fn run(orders: Vec<RequestedWrite>, options: ApplyOptions) -> anyhow::Result<ExitCode> {
    on_store(async |store| {
        let datastore = datastore_addresses().await;
        apply::run((&store, &datastore), orders, options, now()).await
    })
}

fn write_files(
    args: &ApplyArgs,
    wanted: fn(Value) -> RequestedState,
    skip_exists: bool,
) -> anyhow::Result<ExitCode> {
    let documents = input::read(&args.files.files, &args.space.or_default());
    let documents = documents.map_err(crate::exit::invalid)?;
    let order = |document: Document| RequestedWrite {
        origin: document.origin,
        kind: document.kind,
        key: document.key,
        wanted: wanted(document.value),
    };
    let orders = documents.into_iter().map(order).collect();
    run(orders, options(&args.write, skip_exists))
}

/// Says what is wrong with the command line.
fn usage(reason: &str) -> ExitCode {
    eprintln!("caracal: {reason}");
    ExitCode::from(USAGE)
}

/// The kind and the names that were asked for: `KIND NAME…` or `KIND/NAME`.
fn kind_and_names(kind: &str, names: &[String]) -> Result<(ResourceType, Vec<String>), ExitCode> {
    let (kind, first) = match kind.split_once('/') {
        Some((kind, name)) => (kind, Some(name.to_owned())),
        None => (kind, None),
    };
    let target = ResourceType::named(kind).map_err(|reason| usage(&reason))?;
    let mut all: Vec<String> = first.into_iter().collect();
    for name in names {
        // `ippool/a ippool/b`, as `-o name` prints them.
        let bare = name
            .split_once('/')
            .map_or(Ok(name.as_str()), |(other, bare)| {
                match ResourceType::named(other) == Ok(target) {
                    true => Ok(bare),
                    false => Err(usage(&format!(
                        "{name:?} is of another kind than {kind:?}; ask for one kind at a time"
                    ))),
                }
            })?;
        all.push(bare.to_owned());
    }
    Ok((target, all))
}

/// `ippool/default-ipv4-ippool`; with its namespace where there is one.
fn name_of(target: ResourceType, resource: &Value) -> String {
    let text = |name: &str| resource["metadata"][name].as_str().unwrap_or_default();
    format!("{}/{}", target.short(), text("name"))
}

fn labels(resource: &Value) -> BTreeMap<String, String> {
    let labels = resource
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let each = labels.into_iter().flatten();
    each.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .insert_each()
}
