//! Arguments of the commands for resources.

use clap::{Args, ValueEnum};

use crate::args::Output;

/// `caracal get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Kind, such as ippools, bgpp, felixconfig, wep; or KIND/NAME.
    pub(super) kind: String,
    /// Names; all when absent.
    pub(super) names: Vec<String>,
    /// Where.
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
    /// Only those whose labels match, as in Calico's selectors: "rack == 'r1' && has(gpu)".
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,
    /// Without what the datastore adds (uid, resourceVersion, times, status): ready for another cluster.
    #[arg(long)]
    pub(super) export: bool,
    /// Output form.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: Form,
}

/// `-n`.
#[derive(Debug, Args)]
pub(super) struct NamespaceArgs {
    /// Namespace of WorkloadEndpoints; `default` when absent.
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

/// Output forms of commands for resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// A table for people.
    #[default]
    #[value(alias = "ps")]
    Table,
    /// The same with every column, and lines as long as they are.
    Wide,
    /// JSON, as Calico stores it.
    Json,
    /// The same as YAML, ready for `caracal apply -f -`.
    Yaml,
    /// A line `KIND/NAME` for each.
    Name,
}

impl Form {
    /// The form that other commands have.
    pub(super) const fn output(self) -> Output {
        match self {
            Self::Table | Self::Name => Output::Table,
            Self::Wide => Output::Wide,
            Self::Json => Output::Json,
            Self::Yaml => Output::Yaml,
        }
    }
}
