//! The command line as a whole: which commands there are, and who carries them out.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::args::{
    AllNodesArgs, AuditArgs, BgpCommand, DrainArgs, ExplainArgs, LabCommand, ModeCommand,
    OutputArgs, RenderArgs, SpeakerArgs, TopologyCommand, TraceArgs, WatchArgs,
};
use crate::cli::bundle::BundleArgs;
use crate::cli::datastore::DatastoreCommand;
use crate::cli::doctor::DoctorArgs;
use crate::cli::explain_code::ExplainCodeArgs;
use crate::cli::ipam::args::IpamCommand;
use crate::cli::migrate::MigrateCommand;
use crate::cli::node::NodeCommand;
use crate::cli::resources::args::{
    ApplyArgs, CreateArgs, DeleteArgs, GetArgs, LabelArgs, PatchArgs,
};
use crate::cli::services::ServicesCommand;
use crate::cli::uninstall::UninstallArgs;
use crate::cli::{
    audit, bgp, bundle, datastore, doctor, drain, explain, explain_code, install_cni, ipam,
    migrate, mode, node, render, resources, services, speaker, status, topology, uninstall,
    version,
};
#[cfg(feature = "lab")]
use crate::cli::{lab, trace};
use crate::flannel::args::FlannelArgs;
use crate::telemetry::LogFormat;

/// BGP networking for container clusters in one process per node.
#[derive(Debug, Parser)]
#[command(name = "caracal", version = crate::cli::version::TEXT, max_term_width = 100)]
pub(crate) struct Args {
    /// Form of log lines, on standard error. CARACAL_LOG=debug shows more.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the node: speaker, agent, registration. Configured by the environment, as calico-node
    /// is.
    Node {
        /// Something else than running it.
        #[command(subcommand)]
        command: Option<NodeCommand>,
    },
    /// Runs a BGP speaker without a datastore from a bird-style file, such as a route reflector.
    Speaker(SpeakerArgs),
    /// Runs a node of a flannel network in flanneld's place: takes a subnet, shares etcd's leases
    /// with flanneld's nodes, and reaches them. Flags and environment are flanneld's.
    Flannel(Box<FlannelArgs>),
    /// Shows this node: datastore, peers, blocks, kernel, problems.
    Status {
        /// Whose.
        #[command(flatten)]
        nodes: AllNodesArgs,
        /// Whether to go on.
        #[command(flatten)]
        watch: WatchArgs,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Shows what the speaker knows.
    Bgp {
        #[command(subcommand)]
        command: BgpCommand,
    },
    /// Shows Calico's resources: pools, peers, nodes and the rest. Exit code 3 when one that is
    /// named does not exist.
    Get(GetArgs),
    /// Writes resources from files: creates what is missing, changes what differs. All are checked
    /// first, and nothing is written when one is not valid (exit code 5).
    Apply(ApplyArgs),
    /// Writes resources that do not exist yet. Exit code 5 when one does.
    Create(CreateArgs),
    /// Writes resources that exist already. Exit code 3 when one does not.
    Replace(ApplyArgs),
    /// Deletes resources. A pool goes only when none of its addresses is in use, a Node with all
    /// that is its.
    Delete(DeleteArgs),
    /// Changes a part of a resource.
    Patch(PatchArgs),
    /// Sets and removes labels: `caracal label node a rack=r1 old-`.
    Label(LabelArgs),
    /// Prints a node's speaker configuration as bird-style text.
    Render(RenderArgs),
    /// Places Kubernetes' Services in the datastore, for nodes to announce their addresses.
    Services {
        #[command(subcommand)]
        command: ServicesCommand,
    },
    /// Plans and makes changes of the topology.
    Topology {
        #[command(subcommand)]
        command: TopologyCommand,
    },
    /// Changes how a pool's traffic travels.
    Mode {
        #[command(subcommand)]
        command: ModeCommand,
    },
    /// Takes away what the agent made in this machine's kernel. The node must not run.
    Uninstall(UninstallArgs),
    /// Asks and orders IPAM: pools, blocks and addresses.
    Ipam {
        #[command(subcommand)]
        command: IpamCommand,
    },
    /// Compares datastore, RIB, kernel and interfaces. Exit code 4 when something is wrong.
    Audit(AuditArgs),
    /// Follows a destination from the datastore to the kernel of this node. Exit code 3 when
    /// nothing is known of it.
    Explain(ExplainArgs),
    /// Says what a code means (CRL-B001, bgp.password) and what to do about it. Exit code 3 when
    /// there is no such code.
    ExplainCode(ExplainCodeArgs),
    /// Orders about the datastore as a whole.
    Datastore {
        #[command(subcommand)]
        command: DatastoreCommand,
    },
    /// Takes this node out of service without losing packets: GRACEFUL_SHUTDOWN, withdrawal, then
    /// Cease with a text.
    Drain(DrainArgs),
    /// Follows packets between two pods of a lab, both ways, and names the first broken hop. Exit
    /// code 4 when there is one.
    Trace(TraceArgs),
    /// Takes a node over from Calico, and gives it back.
    Migrate {
        #[command(subcommand)]
        command: MigrateCommand,
    },
    /// Writes what somebody who helps needs to know of this node into one file: status, audit,
    /// routes, rules, configuration, versions. Secrets are removed; each part that cannot be had
    /// says why.
    Bundle(BundleArgs),
    /// Looks for what keeps a node from working: kernel, MTU, ports between nodes, clock, etcd,
    /// leftovers. Exit code 4 when something does.
    Doctor(DoctorArgs),
    /// Installs the CNI plugin and its configuration on this machine; configured by the
    /// environment, as Calico's.
    InstallCni,
    /// Prints the version, and the commit it was built from.
    Version {
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Prints a script that completes commands: `source <(caracal completion bash)`.
    Completion {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Prints the manual page, or writes one for each command into a folder.
    Man {
        /// The folder, such as /usr/local/share/man/man1.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Runs whole clusters in network namespaces on this machine.
    Lab {
        #[command(subcommand)]
        command: LabCommand,
    },
}

/// Carries out a command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if !changes_something(&args.command) {
        crate::out::may_end_early();
    }
    match args.command {
        Command::Node { command: None } => crate::node::run(),
        Command::Node {
            command: Some(command),
        } => node::run(command),
        Command::Ipam { command } => ipam::run(command),
        Command::Speaker(args) => speaker::run(&args),
        Command::Flannel(args) => crate::flannel::run(*args),
        Command::Status {
            nodes,
            watch,
            output,
        } => status::run(nodes.all_nodes, watch.watch, output.output),
        Command::Bgp { command } => bgp::run(command),
        Command::Get(args) => resources::get(&args),
        Command::Apply(args) => resources::apply(&args),
        Command::Create(args) => resources::create(&args),
        Command::Replace(args) => resources::replace(&args),
        Command::Delete(args) => resources::delete(&args),
        Command::Patch(args) => resources::patch(&args),
        Command::Label(args) => resources::label(&args),
        Command::Render(args) => render::run(&args),
        Command::Services { command } => services::run(command),
        Command::Topology { command } => topology::run(command),
        Command::Mode { command } => mode::run(&command),
        Command::Uninstall(args) => uninstall::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::ExplainCode(args) => Ok(explain_code::run(&args)),
        Command::Datastore { command } => datastore::run(command),
        Command::Drain(args) => drain::run(args),
        #[cfg(feature = "lab")]
        Command::Trace(args) => trace::run(&args),
        Command::Migrate { command } => migrate::run(&command),
        Command::Bundle(args) => bundle::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::InstallCni => install_cni::run(),
        Command::Version { output } => version::run(output.output),
        Command::Completion { shell } => version::completion(Args::command(), shell),
        Command::Man { out } => version::man(Args::command(), out.as_deref()),
        #[cfg(feature = "lab")]
        Command::Lab { command } => lab::run(command),
        #[cfg(not(feature = "lab"))]
        Command::Trace(_) | Command::Lab { .. } => anyhow::bail!(
            "this program was built without labs, as `make static` builds it; `cargo build -p caracal` \
             builds one that has them"
        ),
    }
}

/// True for what runs until it is told to end.
pub(crate) const fn serves(command: &Command) -> bool {
    matches!(
        command,
        Command::Node { command: None } | Command::Speaker(_) | Command::Flannel(_)
    )
}

/// Part of the product that a command is, as API servers are told.
pub(crate) const fn part(command: &Command) -> &'static str {
    match command {
        Command::Node { command: None } => "node",
        Command::Flannel(_) => "flannel",
        _ => "command",
    }
}

/// True for what must not end in the middle when nobody reads what it prints.
pub(crate) fn changes_something(command: &Command) -> bool {
    !matches!(
        command,
        Command::Status { .. }
            | Command::Bgp {
                command: BgpCommand::Peers { .. }
                    | BgpCommand::Peer { .. }
                    | BgpCommand::Routes { .. }
                    | BgpCommand::Received { .. }
                    | BgpCommand::Advertised { .. }
                    | BgpCommand::Explain { .. }
            }
            | Command::Migrate {
                command: migrate::MigrateCommand::Plan { .. }
                    | migrate::MigrateCommand::Services {
                        command: migrate::services::MigrateServicesCommand::Plan
                    }
            }
            | Command::Lab {
                command: LabCommand::Status { .. } | LabCommand::List
            }
            | Command::Audit(_)
            | Command::Explain(_)
            | Command::ExplainCode(_)
            | Command::Trace(_)
            | Command::Get(_)
            | Command::Render(RenderArgs { out: None, .. })
            | Command::Version { .. }
            | Command::Completion { .. }
            | Command::Doctor(_)
            | Command::Datastore {
                command: DatastoreCommand::Export { file: None }
            }
            | Command::Topology {
                command: TopologyCommand::Plan(_)
            }
            | Command::Mode {
                command: ModeCommand::Plan { .. }
            }
            | Command::Services {
                command: services::ServicesCommand::Show { .. }
            }
            | Command::Ipam {
                command: ipam::args::IpamCommand::Show(_) | ipam::args::IpamCommand::Why(_)
            }
    )
}

#[cfg(test)]
mod tests;
