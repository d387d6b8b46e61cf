//! Arguments of the commands, as they are typed.

use std::path::PathBuf;

use caracal_agent::Transport;
use caracal_model::{EncapMode, Prefix};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use crate::admin::AskService;

/// `caracal audit`.
#[derive(Debug, ClapArgs)]
pub(crate) struct AuditArgs {
    /// Whose.
    #[command(flatten)]
    pub(crate) nodes: AllNodesArgs,
    /// Go on, and print what comes, what begins to count and what goes.
    #[arg(long)]
    pub(crate) watch: bool,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal explain`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ExplainArgs {
    /// A prefix or an address; or an address of a service with its port, as 10.96.0.10:80,
    /// `[fd00:96::10]:80` or 10.96.0.10:53/udp.
    #[arg(value_parser = explained)]
    pub(crate) destination: ExplainDestination,
    /// Whether to go on.
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// Output form.
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
    /// Take the node back into service.
    #[arg(long, conflicts_with_all = ["text", "wait", "force"])]
    pub(crate) undo: bool,
    /// Why, for the operators of the peers (RFC 9003); at most 255 octets are sent.
    #[arg(long, default_value = "drained")]
    pub(crate) text: String,
    /// Seconds that peers get to take other paths before ours are withdrawn.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) wait: u64,
    /// Drain the node although workloads still run on it.
    #[arg(long)]
    pub(crate) force: bool,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal trace`.
#[derive(Debug, ClapArgs)]
#[cfg_attr(
    not(feature = "lab"),
    allow(
        dead_code,
        reason = "a program without labs reads the command, and says so"
    )
)]
pub(crate) struct TraceArgs {
    /// The one pod, as NODE/POD.
    pub(crate) from: String,
    /// The other.
    pub(crate) to: String,
    /// Name of the lab; optional when there is one.
    #[arg(long)]
    pub(crate) lab: Option<String>,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// `caracal mode`.
#[derive(Debug, Subcommand)]
pub(crate) enum ModeCommand {
    /// Says for each node what would change. Exit code 5 when a node would be cut off.
    Plan {
        /// The change.
        #[command(flatten)]
        args: ModeArgs,
    },
    /// Plans, writes the pool unless a node would be cut off, waits until it is in effect and
    /// echoes between nodes are answered, and takes it back when that does not come.
    Apply {
        /// The change.
        #[command(flatten)]
        args: ModeArgs,
        /// Seconds until it has to be in effect.
        #[arg(long, default_value_t = 60)]
        timeout: u64,
        /// Run directories of more nodes whose admin sockets can be reached from here. May be
        /// repeated.
        #[arg(long = "run-dir", value_name = "DIR")]
        run_dirs: Vec<PathBuf>,
        /// A node that does not have to report whether it reaches the others: it is dead. May be
        /// repeated.
        #[arg(long, value_name = "NODE")]
        skip: Vec<String>,
    },
}

/// A change of modes.
#[derive(Debug, ClapArgs)]
pub(crate) struct ModeArgs {
    /// The pool.
    pub(crate) pool: String,
    /// ipipMode: Never, Always or CrossSubnet. Stays as it is when absent.
    #[arg(long, value_parser = encap_mode)]
    pub(crate) ipip: Option<EncapMode>,
    /// vxlanMode: Never, Always or CrossSubnet. Stays as it is when absent.
    #[arg(long, value_parser = encap_mode)]
    pub(crate) vxlan: Option<EncapMode>,
    /// MTU of the nodes' interfaces in octets; this machine's when absent.
    #[arg(long)]
    pub(crate) mtu: Option<u32>,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

fn encap_mode(text: &str) -> Result<EncapMode, String> {
    EncapMode::from_text(text)
        .ok_or_else(|| format!("{text:?} is no mode; use Never, Always or CrossSubnet"))
}

/// `caracal speaker`.
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SpeakerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SpeakerCommand>,
    /// Run with this file; docs/speaker.md describes its statements.
    #[arg(short, long, value_name = "FILE", required_unless_present = "check")]
    pub(crate) config: Option<PathBuf>,
    /// Read this file, say what is wrong with it, and exit: 0 when it is valid, 5 when not.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub(crate) check: Option<PathBuf>,
    /// Serve /livez, /readyz and /metrics here, such as 127.0.0.1:9099.
    #[arg(long, env = "CARACAL_HTTP", value_name = "ADDRESS:PORT")]
    pub(crate) http: Option<std::net::SocketAddr>,
    /// Route these ranges, which are refused by default: 0.0.0.0/8, 169.254.0.0/16, or both with a
    /// comma between.
    #[arg(long, env = "CARACAL_ALLOW_MARTIANS", value_name = "RANGES")]
    pub(crate) allow_martians: Option<caracal_bgp::OpenRanges>,
}

/// `caracal speaker COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum SpeakerCommand {
    /// Makes the running speaker read its file again. Only peers that differ are touched.
    Reload {
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// `-o`.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct OutputArgs {
    /// Output form.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
}

/// Output forms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// A table for people.
    #[default]
    Table,
    /// The same with every column, and lines as long as they are.
    Wide,
    /// JSON for machines.
    Json,
    /// The same as YAML.
    Yaml,
}

/// `--all-nodes`.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct AllNodesArgs {
    /// Instead of this node: all nodes, as they have published it to the datastore.
    #[arg(long)]
    pub(crate) all_nodes: bool,
}

/// `--watch`.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub(crate) struct WatchArgs {
    /// Go on, and print again whenever something has changed.
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// `caracal bgp`.
#[derive(Debug, Subcommand)]
pub(crate) enum BgpCommand {
    /// Peers and their sessions.
    Peers {
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
    /// One peer with everything that is known about it.
    Peer {
        /// Name or address of the peer, or its BGPPeer.
        peer: String,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Ends the session with a peer and starts none, until it is enabled, its `disabled` changes in
    /// the configuration, or this process is started anew.
    Disable {
        /// Name or address of the peer, or its BGPPeer.
        peer: String,
        /// Told to the peer's operator (RFC 9003); at most 255 octets.
        #[arg(long, default_value = "")]
        text: String,
    },
    /// Lets sessions with a disabled peer run again.
    Enable {
        /// Name or address of the peer, or its BGPPeer.
        peer: String,
    },
    /// Ends the session with a peer and begins a new one.
    Reset {
        /// Name or address of the peer, or its BGPPeer.
        peer: String,
        /// Keeps the session: takes in all its routes again, or sends it all routes again.
        #[arg(long, value_enum, conflicts_with = "text")]
        soft: Option<Soft>,
        /// Told to the peer's operator (RFC 9003); at most 255 octets.
        #[arg(long, default_value = "")]
        text: String,
    },
    /// Routes: all paths that are not refused, the best first. JSON is an object a line.
    Routes {
        /// Which of them.
        #[command(flatten)]
        filter: RouteArgs,
        /// Only paths from this peer: its name, its address, or its BGPPeer.
        #[arg(long, value_name = "PEER")]
        peer: Option<String>,
        /// Only best paths.
        #[arg(long)]
        best: bool,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Routes that a peer sent, refused ones too. JSON is an object a line.
    Received {
        /// Name or address of the peer, or its BGPPeer.
        peer: String,
        /// Which of them.
        #[command(flatten)]
        filter: RouteArgs,
        /// Only those that are best.
        #[arg(long)]
        best: bool,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Routes that a peer is sent. JSON is an object a line.
    Advertised {
        /// Name or address of the peer, or its BGPPeer.
        peer: String,
        /// Which of them.
        #[command(flatten)]
        filter: RouteArgs,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Has a peer announce everything again (RFC 2918); with enhanced refresh (RFC 7313) what it no
    /// longer has goes.
    Refresh {
        /// Name or address of the peer, or its BGPPeer.
        peer: String,
    },
    /// Writes the table to a file in MRT format (RFC 6396, TABLE_DUMP_V2), as bgpdump and others
    /// read it.
    Mrt {
        /// The file, below the daemon's `CARACAL_MRT_DIR`; it is replaced as a whole.
        file: PathBuf,
    },
    /// Why a path won and the others lost.
    Explain {
        /// The destination.
        prefix: Prefix,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Which routes are shown.
#[derive(Debug, ClapArgs)]
pub(crate) struct RouteArgs {
    /// Only this prefix; an address is its host prefix. Exit code 3 when there is no route.
    #[arg(value_parser = destination)]
    pub(crate) prefix: Option<Prefix>,
    /// And all more specific prefixes inside it.
    #[arg(long, requires = "prefix")]
    pub(crate) longer_prefixes: bool,
    /// Only how many there are.
    #[arg(long)]
    pub(crate) count: bool,
}

/// Which way a soft reset goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Soft {
    /// The peer is asked to send all routes again (RFC 2918); where it cannot, those it has sent
    /// are filtered again.
    In,
    /// The peer is sent all routes again.
    Out,
}

/// `caracal render`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RenderArgs {
    /// The node whose configuration is rendered; not used by the styles frr and bird2-tor.
    #[arg(long, env = "NODENAME")]
    pub(crate) node: Option<String>,
    /// The router that is to peer with the cluster, for the styles frr and bird2-tor.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) peer: Option<std::net::IpAddr>,
    /// Files with resources as calicoctl takes them, and Kubernetes Services, Endpoints,
    /// EndpointSlices and Secrets, instead of the datastore. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// A block of the node, with --input, where IPAM data is missing. May be repeated.
    #[arg(long, value_name = "CIDR")]
    pub(crate) affinity: Vec<Prefix>,
    /// Style of the text.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) style: Style,
    /// Write files into this directory instead of standard output.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Templates (NAME.hbs) that replace shipped ones of the same name, or are added.
    #[arg(long, value_name = "DIR")]
    pub(crate) templates: Option<PathBuf>,
    /// Render again whenever something changes.
    #[arg(long, requires = "out")]
    pub(crate) watch: bool,
    /// Run before new files replace the old ones, with their folder as {dir}; when it fails, the
    /// old ones stay.
    #[arg(long, value_name = "COMMAND", requires = "out")]
    pub(crate) check_cmd: Option<String>,
    /// Run after files were replaced.
    #[arg(long, value_name = "COMMAND", requires = "out")]
    pub(crate) reload_cmd: Option<String>,
    /// Show passwords instead of masking them (always shown with --out).
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
    /// Prints the sessions before and after a change. Exit code 5 when a node would be left without
    /// a path.
    Plan(TopologyPlanArgs),
    /// Makes a change in the datastore: new sessions first; the old ones go when no node needs them
    /// any more. Exit code 5 when a node would be left without a path; nothing is written then.
    Apply(TopologyApplyArgs),
}

/// `caracal topology plan`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TopologyPlanArgs {
    /// Files with resources, instead of the datastore. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Vec<PathBuf>,
    /// The change.
    #[command(flatten)]
    pub(crate) change: TopologyChangeArgs,
    /// Output form.
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A change of the topology.
#[derive(Debug, ClapArgs)]
pub(crate) struct TopologyChangeArgs {
    /// A file with the resources that are to change, each whole. May be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) change: Vec<PathBuf>,
    /// A BGPPeer that is to be deleted. May be repeated.
    #[arg(long = "delete-peer", value_name = "NAME")]
    pub(crate) delete: Vec<String>,
    /// Automatic reflectors, as the annotation caracal.io/topology=auto switches them on.
    #[arg(long)]
    pub(crate) auto: bool,
    /// The node-to-node mesh, without automatic reflectors.
    #[arg(long, conflicts_with = "auto")]
    pub(crate) mesh: bool,
    /// With --auto: the number of nodes up to which there is a mesh.
    #[arg(long, value_name = "NODES", requires = "auto")]
    pub(crate) limit: Option<usize>,
    /// With --auto: reflectors of a zone, besides the standby.
    #[arg(long, value_name = "NUMBER", requires = "auto")]
    pub(crate) reflectors: Option<usize>,
    /// With --auto: 2 for reflectors above those of the zones.
    #[arg(long, value_name = "1|2", requires = "auto")]
    pub(crate) levels: Option<usize>,
}

/// `caracal topology apply`.
#[derive(Debug, ClapArgs)]
pub(crate) struct TopologyApplyArgs {
    /// The change; none: wait for the transition that is under way.
    #[command(flatten)]
    pub(crate) change: TopologyChangeArgs,
    /// How long to wait, in seconds. Then both topologies' sessions stay.
    #[arg(long, default_value_t = 120)]
    pub(crate) timeout: u64,
    /// A node that is known to be dead: nobody waits for it. May be repeated.
    #[arg(long, value_name = "NODE")]
    pub(crate) skip: Vec<String>,
    /// Let the old sessions of the transition under way go without waiting.
    #[arg(long)]
    pub(crate) finish: bool,
    /// Go back to the topology before the transition under way.
    #[arg(long, conflicts_with = "finish")]
    pub(crate) abort: bool,
    /// Output form.
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
    /// Name of the lab; optional when there is one.
    #[arg(long)]
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
    /// Brings a cluster up and shows its table.
    Up {
        /// Topology file, such as topologies/examples/cross-subnet.yaml.
        file: PathBuf,
        /// Another name than the file's.
        #[arg(long)]
        name: Option<String>,
        /// Leave what is there when the bring-up fails.
        #[arg(long)]
        keep: bool,
    },
    /// Shows nodes, peers, blocks, routes and the ping matrix.
    Status {
        /// Name of the lab; optional when there is one.
        name: Option<String>,
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Runs a command in the namespace of a node (NODE), a pod (NODE/POD), a router, `etcd` or
    /// `switch`.
    Exec {
        /// Where.
        target: String,
        /// The command.
        #[arg(last = true, required = true)]
        command: Vec<String>,
        /// Name of the lab; optional when there is one.
        #[arg(long)]
        lab: Option<String>,
    },
    /// Kills the process of a node with SIGKILL, or the `datastore`.
    Kill(LabTarget),
    /// Ends the process of a node with SIGTERM, or the `datastore`.
    Stop(LabTarget),
    /// Starts the process of a node again, or the `datastore`, and waits until it serves.
    Start(LabTarget),
    /// Cuts a node, a router or the `datastore` off: every packet is lost, the carrier stays.
    Cut(LabTarget),
    /// Ends a cut.
    Heal(LabTarget),
    /// Takes a cluster down, and whatever a killed lab left behind.
    Down {
        /// Name of the lab; optional when there is one.
        name: Option<String>,
        /// All labs.
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Lists the labs.
    List,
    /// Up, table, ping matrix, down; fails if a ping failed.
    Demo {
        /// Topology file.
        file: PathBuf,
    },
}
