//! Arguments of the commands for resources.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::form::Form;
use super::shape::{Shape, ShapeParser};
use crate::completion;

/// `caracal get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Kind, such as ippools, bgpp, felixconfig, wep; several separated by commas; or KIND/NAME.
    #[arg(add = completion::kinds())]
    pub(super) kind: String,
    /// Names; default: all.
    #[arg(add = completion::names())]
    pub(super) names: Vec<String>,
    /// Namespace.
    #[command(flatten)]
    pub(super) space: NamespaceArgs,
    /// WorkloadEndpoints of all namespaces.
    #[arg(
        short = 'A',
        visible_short_alias = 'a',
        long,
        conflicts_with = "namespace"
    )]
    pub(super) all_namespaces: bool,
    /// Only resources whose labels match a Calico selector: "rack == 'r1' && has(gpu)".
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,
    /// Omit what the datastore adds (uid, resourceVersion, times, status), to apply elsewhere.
    #[arg(long)]
    pub(super) export: bool,
    /// Print tables without headings.
    #[arg(long)]
    pub(super) no_headers: bool,
    /// Keep running; print again at each change.
    #[arg(short, long)]
    pub(super) watch: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORM", default_value = "table", value_parser = ShapeParser)]
    pub(super) output: Shape,
}

/// `-n`.
#[derive(Debug, Args)]
pub(super) struct NamespaceArgs {
    /// Namespace of WorkloadEndpoints; default: `default`.
    #[arg(short, long)]
    pub(super) namespace: Option<String>,
}

impl NamespaceArgs {
    pub(super) fn or_default(&self) -> String {
        self.namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned())
    }
}

/// Files of resources.
#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// A file, a folder (its *.yaml, *.yml and *.json), or - for standard input: YAML documents,
    /// JSON, lists. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    pub(super) files: Vec<PathBuf>,
}

/// How something is written.
#[derive(Debug, Args)]
pub(super) struct WriteArgs {
    /// Check everything and print what would change; write nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Write fields that this version does not know, with a warning.
    #[arg(long)]
    pub(super) allow_unknown: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Form,
}

/// `caracal apply`, `caracal replace`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// Files to read.
    #[command(flatten)]
    pub(super) files: FileArgs,
    /// Namespace of documents that name none.
    #[command(flatten)]
    pub(super) space: NamespaceArgs,
    /// How.
    #[command(flatten)]
    pub(super) write: WriteArgs,
}

/// `caracal create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The resources.
    #[command(flatten)]
    pub(super) apply: ApplyArgs,
    /// Skip resources that exist.
    #[arg(long)]
    pub(super) skip_exists: bool,
}

/// `caracal delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Kind, or KIND/NAME.
    #[arg(required_unless_present = "files", conflicts_with = "files", add = completion::kinds())]
    pub(super) kind: Option<String>,
    /// Names.
    #[arg(add = completion::names())]
    pub(super) names: Vec<String>,
    /// Delete the resources of this file or folder. May be repeated.
    #[arg(short, long = "filename", value_name = "FILE|DIR|-")]
    pub(super) files: Vec<PathBuf>,
    /// Namespace.
    #[command(flatten)]
    pub(super) space: NamespaceArgs,
    /// Do not fail if a resource does not exist.
    #[arg(long, short_alias = 's', visible_alias = "skip-not-exists")]
    pub(super) ignore_not_found: bool,
    /// Delete a pool with addresses in use, or a Node that seems to be alive.
    #[arg(long)]
    pub(super) force: bool,
    /// Print what would change; write nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Form,
}

/// `caracal patch`.
#[derive(Debug, Args)]
pub(crate) struct PatchArgs {
    /// Kind, or KIND/NAME.
    #[arg(add = completion::kinds())]
    pub(super) kind: String,
    /// Name.
    #[arg(add = completion::names())]
    pub(super) name: Option<String>,
    /// The patch, as JSON or YAML.
    #[arg(short, long, value_parser = json)]
    pub(super) patch: Value,
    /// Type of the patch.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) r#type: PatchType,
    /// Namespace.
    #[command(flatten)]
    pub(super) space: NamespaceArgs,
    /// How.
    #[command(flatten)]
    pub(super) write: WriteArgs,
}

/// Types of patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum PatchType {
    /// RFC 7386: a part of the resource; null removes a field, a list replaces the whole list.
    #[default]
    #[value(alias = "strategic")]
    Merge,
    /// RFC 6902: a list of operations.
    Json,
}

fn json(text: &str) -> Result<Value, String> {
    serde_saphyr::from_str(text).map_err(|error| format!("neither JSON nor YAML: {error}"))
}

/// `caracal label`.
#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    /// Kind, or KIND/NAME.
    #[arg(add = completion::kinds())]
    pub(super) kind: String,
    /// Name (unless it is in KIND/NAME), then KEY=VALUE to set a label, KEY- to remove one.
    #[arg(required = true, add = completion::names())]
    pub(super) words: Vec<String>,
    /// Overwrite labels that have another value.
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Remove the named labels (KEY), as calicoctl does.
    #[arg(long)]
    pub(super) remove: bool,
    /// Namespace.
    #[command(flatten)]
    pub(super) space: NamespaceArgs,
    /// Print what would change; write nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Form,
}
