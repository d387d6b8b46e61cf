//! `caracal ipam`: what was typed. Flags are calicoctl's where it has them.

use std::net::IpAddr;
use std::path::PathBuf;

use caracal_model::Prefix;
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use crate::args::OutputArgs;

/// `caracal ipam`.
#[derive(Debug, Subcommand)]
pub(crate) enum IpamCommand {
    /// Shows how full pools are, or who holds an address.
    Show(ShowArgs),
    /// Finds leaked addresses and inconsistent data. Exit code 4 when there are problems.
    Check(CheckArgs),
    /// Releases addresses by hand.
    Release(ReleaseArgs),
    /// Changes the global IPAM configuration.
    Configure(ConfigureArgs),
    /// Cuts a pool into equal parts.
    Split(SplitArgs),
    /// Explains where a node's next address comes from.
    Why(WhyArgs),
}

/// `caracal ipam show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Show every block.
    #[arg(long)]
    pub(crate) show_blocks: bool,
    /// Show addresses that a node uses out of another node's block.
    #[arg(long)]
    pub(crate) show_borrowed: bool,
    /// Show the configuration.
    #[arg(long)]
    pub(crate) show_configuration: bool,
    /// Show who holds this address. Exit code 3 when nobody does.
    #[arg(long, value_name = "IP")]
    pub(crate) ip: Option<IpAddr>,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal ipam check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Put right what can be put right without asking; every write is printed before it is made.
    #[arg(long)]
    pub(crate) fix: bool,
    /// With --fix: print the writes and make none.
    #[arg(long, requires = "fix")]
    pub(crate) dry_run: bool,
    /// With --fix: leave leaked addresses alone that were taken less than this many seconds ago.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) min_age: u64,
    /// `table`, `wide`, `json`, `yaml`, or a file for a report that `release --from-report` reads.
    #[arg(short, long, value_name = "FORM|FILE", default_value = "table")]
    pub(crate) output: String,
}

/// `caracal ipam release`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["ip", "from_report"])))]
pub(crate) struct ReleaseArgs {
    /// The address. May be repeated.
    #[arg(long, value_name = "IP")]
    pub(crate) ip: Vec<IpAddr>,
    /// A report of `ipam check -o`.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_report: Option<PathBuf>,
    /// Release addresses in use, or follow a report of another version.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the writes and make none.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// As calicoctl writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum PersistenceArg {
    /// They keep them.
    Enabled,
    /// They do not.
    Disabled,
}

/// `caracal ipam configure`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true)
    .args(["strictaffinity", "auto_allocate_blocks", "max_blocks_per_host", "kubevirt_ip_persistence",
        "ip_cooldown_seconds"])))]
pub(crate) struct ConfigureArgs {
    /// Never take addresses from other nodes' blocks.
    #[arg(long, value_name = "true|false")]
    pub(crate) strictaffinity: Option<bool>,
    /// Claim new blocks when needed.
    #[arg(long, value_name = "true|false")]
    pub(crate) auto_allocate_blocks: Option<bool>,
    /// Most blocks of a node and family; 0 = the default, 20.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_blocks_per_host: Option<u32>,
    /// Whether KubeVirt virtual machines keep their addresses when their pods go.
    #[arg(long, value_name = "Enabled|Disabled", ignore_case = true)]
    pub(crate) kubevirt_ip_persistence: Option<PersistenceArg>,
    /// For how long a released address is not handed out again.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ip_cooldown_seconds: Option<u32>,
    /// Print the write and do not make it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal ipam split`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["cidr", "name"])))]
pub(crate) struct SplitArgs {
    /// Number of parts, a power of two.
    pub(crate) number: u32,
    /// The pool's range.
    #[arg(long)]
    pub(crate) cidr: Option<Prefix>,
    /// The pool's name.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Split although the datastore is not locked.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the writes and make none.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal ipam why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The node.
    pub(crate) node: String,
    /// The pod's namespace, for pools with a namespaceSelector; without it the pod has none.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// IPv6 instead of IPv4.
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
