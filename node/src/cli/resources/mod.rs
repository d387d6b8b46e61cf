//! `caracal get`, `apply`, `create`, `replace`, `delete`, `patch` and `label`: Calico's resources from the command line,
//! in calicoctl's and kubectl's habits. What a resource may say is decided by [`caracal_model::schema`]; here are files,
//! the datastore and words.

pub(crate) mod args;
mod columns;
mod get;

use std::collections::BTreeMap;
use std::process::ExitCode;

use caracal_model::schema::{self, Target};
use serde_json::Value;

use super::ipam::on_store;
use args::GetArgs;

/// A command line that cannot be read.
const USAGE: u8 = 2;

pub(crate) fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    on_store(async |store| get::run(&store, args).await)
}

/// Says what is wrong with the command line.
fn usage(reason: &str) -> ExitCode {
    eprintln!("caracal: {reason}");
    ExitCode::from(USAGE)
}

/// The kind and the names that were asked for: `KIND NAME…` or `KIND/NAME`.
fn kind_and_names(kind: &str, names: &[String]) -> Result<(Target, Vec<String>), ExitCode> {
    let (kind, first) = match kind.split_once('/') {
        Some((kind, name)) => (kind, Some(name.to_owned())),
        None => (kind, None),
    };
    let target = schema::find_kind(kind).map_err(|reason| usage(&reason))?;
    let mut all: Vec<String> = first.into_iter().collect();
    for name in names {
        // `ippool/a ippool/b`, as `-o name` prints them.
        let bare = name
            .split_once('/')
            .map_or(Ok(name.as_str()), |(other, bare)| {
                match schema::find_kind(other) == Ok(target) {
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
fn name_of(target: Target, resource: &Value) -> String {
    let text = |name: &str| resource["metadata"][name].as_str().unwrap_or_default();
    format!("{}/{}", target.short(), text("name"))
}

/// A resource as it is read: its version is the revision of its last change.
fn versioned(mut resource: Value, revision: i64) -> Value {
    if let Some(Value::Object(metadata)) = resource.get_mut("metadata") {
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    }
    resource
}

fn labels(resource: &Value) -> BTreeMap<String, String> {
    let labels = resource
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let each = labels.into_iter().flatten();
    each.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}
