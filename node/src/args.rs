//! Arguments of the commands, as they are typed.

use std::path::PathBuf;

use caracal_agent::Transport;
use caracal_model::{EncapMode, Kind, Prefix};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use crate::admin::AskService;
use crate::completion;

/// `caracal audit`.
#[derive(Debug, ClapArgs)]
pub(crate) struct AuditArgs {
    /// This node, another one, or all.
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// Keep running; print findings as they appear, become errors and disappear.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal explain`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ExplainArgs {
    /// A prefix, an address, or a service's address and port: 10.96.0.10:80, `[fd00:96::10]:80`,
    /// 10.96.0.10:53/udp.
    #[arg(value_parser = explained)]
    pub(crate) destination: ExplainDestination,
    /// This node, or another one.
    #[command(flatten)]
    pub(crate) node: NodeArg,
    /// Once, or again at each change.
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// What is to be explained.
#[derive(Clone, Debug)]
pub(crate) enum ExplainDestination {
    Prefix(Prefix),
    Service(AskService),
}

fn destination(text: &str) -> Result<Prefix, String> {
    if let Ok(address) = text.parse() {
        return Ok(Prefix::host(address));
    }
    text.parse()
        .map_err(|_| format!("{text:?} is neither an address nor a prefix"))
}

fn explained(text: &str) -> Result<ExplainDestination, String> {
    let (address, protocol) = match text.rsplit_once('/') {
        Some((address, word)) => (address, Transport::from_word(word)),
        None => (text, None),
    };
    if let Ok(address) = address.parse()
        && (protocol.is_some() || !text.contains('/'))
    {
        return Ok(ExplainDestination::Service(AskService {
            address,
            protocol,
        }));
    }
    let fault = |_| format!("{text:?} is neither an address, a prefix nor ADDRESS:PORT");
    destination(text)
        .map(ExplainDestination::Prefix)
        .map_err(fault)
}

/// `caracal drain`.
#[derive(Debug, ClapArgs)]
pub(crate) struct DrainArgs {
    /// Return the node to service.
    #[arg(long, conflicts_with_all = ["text", "wait", "force"])]
    pub(crate) undo: bool,
    /// Reason sent to the peers' operators (RFC 9003), at most 255 octets.
    #[arg(long, default_value = "drained")]
    pub(crate) text: String,
    /// Seconds between GRACEFUL_SHUTDOWN and the withdrawal of routes.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) wait: u64,
    /// Drain although workloads still run on this node.
    #[arg(long)]
    pub(crate) force: bool,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal trace`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TraceArgs {
    /// Source: a node, or in a lab a pod, as NODE/POD.
    pub(crate) from: String,
    /// Destination: an address; in a lab a pod, as NODE/POD, or a service, as
    /// ADDRESS:PORT[/PROTOCOL].
    pub(crate) to: String,
    /// Name of the lab; needed if several run.
    #[arg(long, add = completion::labs())]
    pub(crate) lab: Option<String>,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal mode`.
#[derive(Debug, Subcommand)]
pub(crate) enum ModeCommand {
    /// Show what would change on each node. Exit code 5 if a node would be cut off.
    Plan {
        /// The change.
        #[command(flatten)]
        args: ModeArgs,
    },
    /// Change the pool, wait until the mode is in effect and nodes answer each other's pings, and
    /// revert if they do not. Refused if a node would be cut off.
    Apply {
        /// The change.
        #[command(flatten)]
        args: ModeArgs,
        /// Seconds until the change must be in effect.
        #[arg(long, default_value_t = 60)]
        timeout: u64,
        /// Run directory of another node whose admin socket is reachable from here. May be
        /// repeated.
        #[arg(long = "run-dir", value_name = "DIR")]
        run_dirs: Vec<PathBuf>,
        /// Do not wait for this node, which is down. May be repeated.
        #[arg(long, value_name = "NODE", add = completion::names_of_kind(Kind::Node))]
        skip: Vec<String>,
    },
}

/// A change of modes.
#[derive(Debug, ClapArgs)]
pub(crate) struct ModeArgs {
    /// The pool.
    #[arg(add = completion::names_of_kind(Kind::IpPool))]
    pub(crate) pool: String,
    /// New ipipMode: Never, Always or CrossSubnet.
    #[arg(long, value_parser = encap_mode)]
    pub(crate) ipip: Option<EncapMode>,
    /// New vxlanMode: Never, Always or CrossSubnet.
    #[arg(long, value_parser = encap_mode)]
    pub(crate) vxlan: Option<EncapMode>,
    /// MTU of the nodes' interfaces in octets; default: this machine's.
    #[arg(long)]
    pub(crate) mtu: Option<u32>,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn encap_mode(text: &str) -> Result<EncapMode, String> {
    EncapMode::from_text(text)
        .ok_or_else(|| format!("{text:?} is no mode; use Never, Always or CrossSubnet"))
}

/// `-o`.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct OutputArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
}

/// Output forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table for people.
    #[default]
    Table,
    /// A table with all columns, not wrapped.
    Wide,
    /// JSON for machines.
    Json,
    /// YAML for machines.
    Yaml,
}

/// `--node`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NodeArg {
    /// Ask this node over its console, not the one that runs here.
    #[arg(long, value_name = "NODE", add = completion::names_of_kind(Kind::Node))]
    pub(crate) node: Option<String>,
}

/// `--node` and `--all-nodes`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct NodesArgs {
    /// Another node.
    #[command(flatten)]
    pub(crate) one: NodeArg,
    /// Show all nodes, as they published their status to the datastore.
    #[arg(long, conflicts_with = "node")]
    pub(crate) all_nodes: bool,
}

/// `--watch`.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct WatchArgs {
    /// Keep running; print again at each change.
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// `caracal bgp`.
#[derive(Debug, Subcommand)]
pub(crate) enum BgpCommand {
    /// Show peers and their sessions.
    Peers {
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
    /// Show one peer in detail.
    Peer {
        /// Name or address of the peer, or name of its BGPPeer.
        #[arg(add = completion::peers())]
        peer: String,
        /// This node, or another one.
        #[command(flatten)]
        node: NodeArg,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Shut down a peer until it is enabled, its `disabled` changes in the configuration, or the
    /// daemon restarts.
    Disable {
        /// Name or address of the peer, or name of its BGPPeer.
        #[arg(add = completion::peers())]
        peer: String,
        /// Reason sent to the peer's operator (RFC 9003), at most 255 octets.
        #[arg(long, default_value = "")]
        text: String,
    },
    /// Enable a disabled peer.
    Enable {
        /// Name or address of the peer, or name of its BGPPeer.
        #[arg(add = completion::peers())]
        peer: String,
    },
    /// Restart the session with a peer.
    Reset {
        /// Name or address of the peer, or name of its BGPPeer.
        #[arg(add = completion::peers())]
        peer: String,
        /// Keep the session; import or export all routes again.
        #[arg(long, value_enum, conflicts_with = "text")]
        soft: Option<Soft>,
        /// Reason sent to the peer's operator (RFC 9003), at most 255 octets.
        #[arg(long, default_value = "")]
        text: String,
    },
    /// Show routes: all accepted paths, the best first. JSON is one object per line.
    Routes {
        /// Which of them.
        #[command(flatten)]
        filter: RouteArgs,
        /// Only paths from this peer: its name, address, or BGPPeer.
        #[arg(long, value_name = "PEER", add = completion::peers())]
        peer: Option<String>,
        /// Only best paths.
        #[arg(long)]
        best: bool,
        /// This node, or another one.
        #[command(flatten)]
        node: NodeArg,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show routes received from a peer, with rejected ones. JSON is one object per line.
    Received {
        /// Name or address of the peer, or name of its BGPPeer.
        #[arg(add = completion::peers())]
        peer: String,
        /// Which of them.
        #[command(flatten)]
        filter: RouteArgs,
        /// Only best paths.
        #[arg(long)]
        best: bool,
        /// This node, or another one.
        #[command(flatten)]
        node: NodeArg,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Show routes advertised to a peer. JSON is one object per line.
    Advertised {
        /// Name or address of the peer, or name of its BGPPeer.
        #[arg(add = completion::peers())]
        peer: String,
        /// Which of them.
        #[command(flatten)]
        filter: RouteArgs,
        /// This node, or another one.
        #[command(flatten)]
        node: NodeArg,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Ask a peer to resend its routes (RFC 2918). With enhanced refresh (RFC 7313), routes it no
    /// longer has are removed.
    Refresh {
        /// Name or address of the peer, or name of its BGPPeer.
        #[arg(add = completion::peers())]
        peer: String,
    },
    /// Write the table to an MRT file (RFC 6396, TABLE_DUMP_V2) for bgpdump and others.
    Mrt {
        /// File below the daemon's `CARACAL_MRT_DIR`; it is overwritten.
        file: PathBuf,
    },
    /// Explain which path of a prefix is best, and why.
    Explain {
        /// The prefix.
        prefix: Prefix,
        /// This node, or another one.
        #[command(flatten)]
        node: NodeArg,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Which routes are shown.
#[derive(Debug, ClapArgs)]
pub(crate) struct RouteArgs {
    /// Only this prefix; an address means its host prefix. Exit code 3 if there is no route.
    #[arg(value_parser = destination)]
    pub(crate) prefix: Option<Prefix>,
    /// Also more specific prefixes.
    #[arg(long, requires = "prefix")]
    pub(crate) longer_prefixes: bool,
    /// Print only the number of routes.
    #[arg(long)]
    pub(crate) count: bool,
}

/// Which way a soft reset goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Soft {
    /// Ask the peer to resend its routes (RFC 2918); without that capability, filter the stored
    /// ones again.
    In,
    /// Resend all routes to the peer.
    Out,
}

/// `caracal render`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RenderArgs {
    /// Node whose configuration is rendered; not used by the styles frr and bird2-tor.
    #[arg(long, env = "NODENAME", add = completion::names_of_kind(Kind::Node))]
    pub(crate) node: Option<String>,
    /// Router that peers with the cluster, for the styles frr and bird2-tor.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Option<std::net::IpAddr>,
    /// Read resources from this file instead of the datastore: Calico's kinds, and Kubernetes
    /// Services, Endpoints, EndpointSlices and Secrets. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// With --input: a block of the node, where the files have no IPAM data. May be repeated.
    #[arg(long, value_name = "CIDR")]
    pub(crate) affinity: Vec<Prefix>,
    /// Which program the text is for.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) style: Style,
    /// Write files into this directory instead of standard output.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Folder of templates (NAME.hbs) that replace shipped ones of the same name or add to them.
    #[arg(long, value_name = "DIR")]
    pub(crate) templates: Option<PathBuf>,
    /// Keep running; render again at each change.
    #[arg(long, requires = "out")]
    pub(crate) watch: bool,
    /// Command to check new files in the folder {dir}; if it fails, the old files stay.
    #[arg(long, value_name = "COMMAND", requires = "out")]
    pub(crate) check_cmd: Option<String>,
    /// Command to run after files were replaced.
    #[arg(long, value_name = "COMMAND", requires = "out")]
    pub(crate) reload_cmd: Option<String>,
    /// Show passwords, which are masked otherwise (never with --out).
    #[arg(long)]
    pub(crate) show_passwords: bool,
}

/// Styles of `caracal render`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Style {
    /// For an unpatched BIRD 2 daemon that also programs the kernel.
    #[default]
    Bird2,
    /// Six files for Calico's fork of BIRD 1.6, as confd makes them.
    Calico,
    /// frr.conf of a router that peers with the cluster.
    Frr,
    /// bird.conf of a BIRD 2 router that peers with the cluster.
    Bird2Tor,
    /// The speaker's configuration alone, as a standalone speaker reads it.
    View,
}

/// `caracal topology`.
#[derive(Debug, Subcommand)]
pub(crate) enum TopologyCommand {
    /// Show the sessions before and after a change. Exit code 5 if a node would lose its paths.
    Plan(TopologyPlanArgs),
    /// Change the topology: new sessions first, then remove old ones that no node needs. Refused,
    /// with exit code 5, if a node would lose its paths.
    Apply(TopologyApplyArgs),
}

/// `caracal topology plan`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TopologyPlanArgs {
    /// Read resources from this file instead of the datastore. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// The change.
    #[command(flatten)]
    pub(crate) change: TopologyChangeArgs,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A change of the topology.
#[derive(Debug, ClapArgs)]
pub(crate) struct TopologyChangeArgs {
    /// File with the changed resources, each complete. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) change: Vec<PathBuf>,
    /// BGPPeer to delete. May be repeated.
    #[arg(long = "delete-peer", value_name = "NAME")]
    pub(crate) delete: Vec<String>,
    /// Elect route reflectors, as the annotation caracal.io/topology=auto does.
    #[arg(long)]
    pub(crate) auto: bool,
    /// Use the node-to-node mesh instead of elected reflectors.
    #[arg(long, conflicts_with = "auto")]
    pub(crate) mesh: bool,
    /// With --auto: largest number of nodes that form a full mesh.
    #[arg(long, value_name = "NODES", requires = "auto")]
    pub(crate) limit: Option<usize>,
    /// With --auto: reflectors per zone, not counting the standby.
    #[arg(long, value_name = "NUMBER", requires = "auto")]
    pub(crate) reflectors: Option<usize>,
    /// With --auto: levels of reflectors; 2 puts one above the zones.
    #[arg(long, value_name = "1|2", requires = "auto")]
    pub(crate) levels: Option<usize>,
}

/// `caracal topology apply`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TopologyApplyArgs {
    /// The change; none: wait for the transition that is under way.
    #[command(flatten)]
    pub(crate) change: TopologyChangeArgs,
    /// Longest wait in seconds; afterwards the sessions of both topologies stay.
    #[arg(long, default_value_t = 120)]
    pub(crate) timeout: u64,
    /// Do not wait for this node, which is down. May be repeated.
    #[arg(long, value_name = "NODE")]
    pub(crate) skip: Vec<String>,
    /// Complete the transition under way without waiting.
    #[arg(long)]
    pub(crate) finish: bool,
    /// Revert the transition under way.
    #[arg(long, conflicts_with = "finish")]
    pub(crate) abort: bool,
    /// Output format.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A part of a lab.
#[derive(Debug, ClapArgs)]
#[cfg_attr(
    not(feature = "lab"),
    allow(
        dead_code,
        reason = "a program without labs reads the command, and says so"
    )
)]
pub(crate) struct LabTarget {
    /// A node, a router, or `datastore`.
    pub(crate) target: String,
    /// Name of the lab; needed if several run.
    #[arg(long, add = completion::labs())]
    pub(crate) lab: Option<String>,
}

/// `caracal lab`.
#[derive(Debug, Subcommand)]
#[cfg_attr(
    not(feature = "lab"),
    allow(
        dead_code,
        reason = "a program without labs reads the command, and says so"
    )
)]
pub(crate) enum LabCommand {
    /// Start a cluster and show it.
    Up {
        /// Topology file, such as topologies/examples/cross-subnet.yaml.
        file: PathBuf,
        /// Name of the lab; default: the file's.
        #[arg(long)]
        name: Option<String>,
        /// Keep what was started if the rest fails.
        #[arg(long)]
        keep: bool,
    },
    /// Show nodes, peers, blocks, routes and the ping matrix.
    Status {
        /// Name of the lab; needed if several run.
        #[arg(add = completion::labs())]
        name: Option<String>,
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Run a command in the network namespace of a node (NODE), a pod (NODE/POD), a router, `etcd`
    /// or `switch`.
    Exec {
        /// Where to run it.
        target: String,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
        /// Name of the lab; needed if several run.
        #[arg(long, add = completion::labs())]
        lab: Option<String>,
    },
    /// Kill the process of a node, or the `datastore`, with SIGKILL.
    Kill(LabTarget),
    /// Stop the process of a node, or the `datastore`, with SIGTERM.
    Stop(LabTarget),
    /// Start the process of a node, or the `datastore`, again, and wait until it serves.
    Start(LabTarget),
    /// Cut off a node, a router or the `datastore`: drop every packet, keep the carrier.
    Cut(LabTarget),
    /// End a cut.
    Heal(LabTarget),
    /// Remove a cluster, and what a killed lab left behind.
    Down {
        /// Name of the lab; needed if several run.
        #[arg(add = completion::labs())]
        name: Option<String>,
        /// All labs.
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// List labs.
    List,
    /// Start a cluster, show it, ping between all pods, remove it. Fails if a ping fails.
    Demo {
        /// Topology file.
        file: PathBuf,
        /// Name of the lab. What is left of an earlier one of this name is removed first.
        #[arg(long, default_value = "demo")]
        name: String,
    },
}
