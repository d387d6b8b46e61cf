//! The command line as a whole: which commands there are, and who carries them out.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::args::{
    AuditArgs, BgpCommand, DrainArgs, ExplainArgs, LabCommand, ModeCommand, NodesArgs, OutputArgs,
    RenderArgs, TopologyCommand, TraceArgs, WatchArgs,
};
use crate::cli::bundle::BundleArgs;
use crate::cli::datastore::DatastoreCommand;
use crate::cli::doctor::DoctorArgs;
use crate::cli::events::EventsArgs;
use crate::cli::explain_code::ExplainCodeArgs;
use crate::cli::ipam::args::IpamCommand;
#[cfg(feature = "lab")]
use crate::cli::lab;
use crate::cli::log_level::LogLevelArgs;
use crate::cli::migrate::MigrateCommand;
use crate::cli::node::NodeCommand;
use crate::cli::policy::PolicyCommand;
use crate::cli::resources::args::{
    ApplyArgs, CreateArgs, DeleteArgs, GetArgs, LabelArgs, PatchArgs,
};
use crate::cli::services::ServicesCommand;
use crate::cli::speaker::SpeakerArgs;
use crate::cli::top::TopArgs;
use crate::cli::uninstall::UninstallArgs;
use crate::cli::{
    audit, bgp, bundle, datastore, doctor, drain, events, explain, explain_code, install_cni, ipam,
    log_level, migrate, mode, node, policy, render, resources, services, speaker, status, top,
    topology, trace, uninstall, version,
};
use crate::completion;
use crate::flannel::line::{FlannelCommand, FlannelLine};
use crate::telemetry::LogFormat;

/// BGP networking for container clusters in one process per node.
#[derive(Debug, Parser)]
#[command(name = "caracal", version = crate::cli::version::TEXT, max_term_width = 100)]
pub(crate) struct Args {
    /// Format of log lines on standard error. CARACAL_LOG=debug logs more.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node: BGP speaker, agent and registration. Configured by environment variables, as
    /// calico-node is.
    Node {
        /// Manage Nodes instead of running one.
        #[command(subcommand)]
        command: Option<NodeCommand>,
    },
    /// Run a standalone BGP speaker, such as a route reflector, from a bird-style file.
    Speaker(SpeakerArgs),
    /// Run a node of a flannel network in place of flanneld, in one cluster with flanneld's nodes.
    /// Flags and environment variables are flanneld's.
    Flannel(Box<FlannelLine>),
    /// Show this node: datastore, peers, blocks, kernel, problems.
    Status {
        /// This node, another one, or all.
        #[command(flatten)]
        nodes: NodesArgs,
        /// Once, or again at each change.
        #[command(flatten)]
        watch: WatchArgs,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show peers and routes of the BGP speaker, and manage its sessions.
    Bgp {
        #[command(subcommand)]
        command: BgpCommand,
    },
    /// Show resources: pools, peers, nodes and Calico's other kinds. Exit code 3 if a named one
    /// does not exist.
    Get(GetArgs),
    /// Create or update resources from files. All are checked first; if one is invalid, nothing is
    /// written (exit code 5).
    Apply(ApplyArgs),
    /// Create resources from files. Exit code 5 if one exists.
    Create(CreateArgs),
    /// Replace resources from files. Exit code 3 if one does not exist.
    Replace(ApplyArgs),
    /// Delete resources. A pool with addresses in use is refused; a Node goes with its blocks,
    /// addresses and endpoints.
    Delete(DeleteArgs),
    /// Change fields of a resource.
    Patch(PatchArgs),
    /// Set and remove labels: `caracal label node a rack=r1 old-`.
    Label(LabelArgs),
    /// Render a node's BGP configuration as text for BIRD, FRR or a standalone speaker.
    Render(RenderArgs),
    /// Show the network policies of this node's endpoints, and explain what they decide.
    Policy {
        #[command(subcommand)]
        command: PolicyCommand,
    },
    /// Show Services that nodes announce and translate; store them in etcd.
    Services {
        #[command(subcommand)]
        command: ServicesCommand,
    },
    /// Plan and change the BGP topology: full mesh or route reflectors.
    Topology {
        #[command(subcommand)]
        command: TopologyCommand,
    },
    /// Change a pool's encapsulation: IPIP, VXLAN or none.
    Mode {
        #[command(subcommand)]
        command: ModeCommand,
    },
    /// Remove the agent's routes, devices and rules from this machine's kernel. Stop the node
    /// first.
    Uninstall(UninstallArgs),
    /// Inspect and change IPAM: pools, blocks and addresses.
    Ipam {
        #[command(subcommand)]
        command: IpamCommand,
    },
    /// Compare datastore, RIB, kernel and interfaces. Exit code 4 if they disagree.
    Audit(AuditArgs),
    /// Show what is not well on this node, and follow what changes: sessions, problems, the
    /// datastore, numbers of routes. Exit code 4 if something is not well.
    Events(EventsArgs),
    /// Show this node live in a terminal: sessions, route changes, processor time, problems.
    Top(TopArgs),
    /// Follow a destination from the datastore to this node's kernel. Exit code 3 if nothing is
    /// known of it.
    Explain(ExplainArgs),
    /// Explain a code, such as CRL-B001 or bgp.password, and how to resolve it. Exit code 3 if
    /// there is no such code.
    ExplainCode(ExplainCodeArgs),
    /// Manage the datastore: lock, export, import, accept.
    Datastore {
        #[command(subcommand)]
        command: DatastoreCommand,
    },
    /// Take this node out of service without packet loss: GRACEFUL_SHUTDOWN (RFC 8326), withdrawal,
    /// then Cease with a text.
    Drain(DrainArgs),
    /// Follow packets from a node to an address, node by node over their consoles, to where they
    /// arrive or stop; or, in a lab, between two pods in both directions. Exit code 4 if a hop is
    /// broken.
    Trace(TraceArgs),
    /// Take a node over from Calico, or give it back.
    Migrate {
        #[command(subcommand)]
        command: MigrateCommand,
    },
    /// Collect this node's status, audit, routes, rules, configuration and versions into one file
    /// for support. Secrets are removed; a part that is missing says why.
    Bundle(BundleArgs),
    /// Check what a node needs: kernel, MTU, ports between nodes, clock, datastore, leftovers. Exit
    /// code 4 if a check fails.
    Doctor(DoctorArgs),
    /// Show or change the log level of the running daemon, until it restarts.
    LogLevel(LogLevelArgs),
    /// Install the CNI plugin and its configuration on this machine. Configured by environment
    /// variables, as Calico's installer is.
    InstallCni,
    /// Print the version and the commit it was built from.
    Version {
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Print shell completions: `source <(caracal completion bash)`.
    Completion {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one for each command into a folder.
    Man {
        /// The folder, such as /usr/local/share/man/man1.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Run whole clusters in network namespaces on this machine.
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
        } => status::run(&nodes, watch.watch, output.output),
        Command::Bgp { command } => bgp::run(command),
        Command::Get(args) => resources::get(&args),
        Command::Apply(args) => resources::apply(&args),
        Command::Create(args) => resources::create(&args),
        Command::Replace(args) => resources::replace(&args),
        Command::Delete(args) => resources::delete(&args),
        Command::Patch(args) => resources::patch(&args),
        Command::Label(args) => resources::label(&args),
        Command::Render(args) => render::run(&args),
        Command::Policy { command } => policy::run(command),
        Command::Services { command } => services::run(command),
        Command::Topology { command } => topology::run(command),
        Command::Mode { command } => mode::run(&command),
        Command::Uninstall(args) => uninstall::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::ExplainCode(args) => Ok(explain_code::run(&args)),
        Command::Datastore { command } => datastore::run(command),
        Command::Drain(args) => drain::run(args),
        Command::Trace(args) => trace::run(&args),
        Command::Migrate { command } => migrate::run(&command),
        Command::Bundle(args) => bundle::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::LogLevel(args) => log_level::run(args),
        Command::InstallCni => install_cni::run(),
        Command::Version { output } => version::run(output.output),
        Command::Completion { shell } => completion::script(shell),
        Command::Man { out } => version::man(Args::command(), out.as_deref()),
        #[cfg(feature = "lab")]
        Command::Lab { command } => lab::run(command),
        #[cfg(not(feature = "lab"))]
        Command::Lab { .. } => anyhow::bail!(
            "this program was built without labs, as `make static` builds it; `cargo build -p caracal` \
             builds one that has them"
        ),
    }
}

/// True for what runs until it is told to end.
pub(crate) fn serves(command: &Command) -> bool {
    match command {
        Command::Node { command: None } | Command::Speaker(_) => true,
        Command::Flannel(line) => line.command.is_none(),
        _ => false,
    }
}

/// Part of the product that a command is, as API servers are told.
pub(crate) fn part(command: &Command) -> &'static str {
    match command {
        Command::Node { command: None } => "node",
        Command::Flannel(line) if line.command.is_none() => "flannel",
        _ => "command",
    }
}

/// True for what must not end in the middle when nobody reads what it prints.
pub(crate) fn changes_something(command: &Command) -> bool {
    if let Command::Flannel(line) = command {
        return match &line.command {
            Some(FlannelCommand::Show(_)) => false,
            Some(FlannelCommand::Migrate { command }) => !command.only_reads(),
            _ => true,
        };
    }
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
            | Command::Events(_)
            | Command::Top(_)
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
            | Command::Policy { .. }
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
