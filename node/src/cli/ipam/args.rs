//! `caracal ipam`: what was typed. Flags are calicoctl's where it has them.

use std::net::IpAddr;
use std::path::PathBuf;

use caracal_model::{Kind, Prefix};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use crate::args::OutputArgs;
use crate::completion;

/// `caracal ipam`.
#[derive(Debug, Subcommand)]
pub(crate) enum IpamCommand {
    /// Show how full pools are, or who holds an address.
    Show(ShowArgs),
    /// Find leaked addresses and inconsistent data. Exit code 4 if there are problems.
    Check(CheckArgs),
    /// Release addresses.
    Release(ReleaseArgs),
    /// Change the global IPAM configuration.
    Configure(ConfigureArgs),
    /// Split a pool into equal parts.
    Split(SplitArgs),
    /// Explain which pool and block a node's next address comes from.
    Why(WhyArgs),
}

/// `caracal ipam show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Show blocks.
    #[arg(long)]
    pub(crate) show_blocks: bool,
    /// Show addresses that a node borrows from another node's block.
    #[arg(long)]
    pub(crate) show_borrowed: bool,
    /// Show the IPAM configuration.
    #[arg(long)]
    pub(crate) show_configuration: bool,
    /// Show who holds this address. Exit code 3 if it is free.
    #[arg(long, value_name = "IP")]
    pub(crate) ip: Option<IpAddr>,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal ipam check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Repair what is safe to repair; each write is printed first.
    #[arg(long)]
    pub(crate) fix: bool,
    /// With --fix: print the writes without making them.
    #[arg(long, requires = "fix")]
    pub(crate) dry_run: bool,
    /// With --fix: keep leaked addresses younger than this.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) min_age: u64,
    /// `table`, `wide`, `json`, `yaml`, or a file to write a report for `release --from-report`.
    #[arg(short, long, value_name = "FORM|FILE", default_value = "table")]
    pub(crate) output: String,
}

/// `caracal ipam release`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).args(["ip", "from_report"])))]
pub(crate) struct ReleaseArgs {
    /// Address to release. May be repeated.
    #[arg(long, value_name = "IP")]
    pub(crate) ip: Vec<IpAddr>,
    /// Release the leaked addresses of this report by `ipam check -o`.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_report: Option<PathBuf>,
    /// Release addresses in use, or use a report of another version.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the writes without making them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// As calicoctl writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum PersistenceArg {
    /// Addresses stay.
    Enabled,
    /// Addresses are released.
    Disabled,
}

/// `caracal ipam configure`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true)
    .args(["strictaffinity", "auto_allocate_blocks", "max_blocks_per_host", "kubevirt_ip_persistence",
        "ip_cooldown_seconds"])))]
pub(crate) struct ConfigureArgs {
    /// Never borrow addresses from other nodes' blocks.
    #[arg(long, value_name = "true|false")]
    pub(crate) strictaffinity: Option<bool>,
    /// Claim new blocks as needed.
    #[arg(long, value_name = "true|false")]
    pub(crate) auto_allocate_blocks: Option<bool>,
    /// Largest number of blocks per node and family; 0 = the default, 20.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_blocks_per_host: Option<u32>,
    /// Keep a KubeVirt VM's address when its pod ends.
    #[arg(long, value_name = "Enabled|Disabled", ignore_case = true)]
    pub(crate) kubevirt_ip_persistence: Option<PersistenceArg>,
    /// Time before a released address is assigned again.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ip_cooldown_seconds: Option<u32>,
    /// Print the write without making it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal ipam split`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["cidr", "name"])))]
pub(crate) struct SplitArgs {
    /// Number of parts, a power of two.
    pub(crate) number: u32,
    /// CIDR of the pool.
    #[arg(long)]
    pub(crate) cidr: Option<Prefix>,
    /// Name of the pool.
    #[arg(long, add = completion::names_of_kind(Kind::IpPool))]
    pub(crate) name: Option<String>,
    /// Split although the datastore is not locked.
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the writes without making them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal ipam why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The node.
    #[arg(add = completion::names_of_kind(Kind::Node))]
    pub(crate) node: String,
    /// The pod's namespace, for pools with a namespaceSelector.
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// IPv6 instead of IPv4.
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
