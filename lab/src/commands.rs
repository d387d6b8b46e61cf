//! The `caracal lab` commands: everything but the parsing of arguments. Each prints for people (or
//! JSON) and gives an exit status.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::down::{self, DownError, DownReport};
use crate::fault::FaultError;
use crate::fault_by_hand::{LabFault, LabFaultError};
use crate::lab::{AttachError, ExecError, Lab};
use crate::netns;
use crate::node::NodeError;
use crate::plan::{LabName, LabNameError};
use crate::program::Missing;
use crate::rootless::{self, Entry, NamespacePurpose, RootlessError};
use crate::state::StateError;
use crate::table::{self, TableForm};
use crate::topology::{Backend, NodeKind, Topology, TopologyError};
use crate::trace::TraceError;
use crate::up::{UpError, UpOptions, UpProgress};
use crate::wait::{Timeout, wait_until};

/// Limit for sessions and pings to come after everything has started.
pub const CONVERGE: Duration = Duration::from_secs(60);
/// Limit of `status` for a ping that is not answered.
pub const STATUS_PINGS: Duration = Duration::from_secs(3);

/// Exit status of a trace that finds a broken hop.
const BROKEN: i32 = 4;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The topology file is wrong.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The text is no name of a lab.
    #[error(transparent)]
    Name(#[from] LabNameError),
    /// The lab cannot be brought up.
    #[error(transparent)]
    Up(#[from] Box<UpError>),
    /// The lab is not there.
    #[error(transparent)]
    Attach(#[from] Box<AttachError>),
    /// The lab cannot be removed.
    #[error(transparent)]
    Down(#[from] DownError),
    /// The trace cannot be made.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The command in a namespace.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The fault cannot be made or mended.
    #[error(transparent)]
    Fault(#[from] Box<LabFaultError>),
    /// There is no root and no way around it.
    #[error(transparent)]
    Rootless(#[from] RootlessError),
    /// A program is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The output is gone.
    #[error("cannot print")]
    Print(#[from] io::Error),
    /// No name was given and it is not clear which lab is meant.
    #[error("{}", which(.0))]
    Which(Vec<LabName>),
    /// There is no such lab.
    #[error("there is no lab {0}")]
    Absent(LabName),
}

impl CommandError {
    /// Exit status: 3 when the lab or a part of it does not exist, 5 for a topology file that is
    /// not valid, else 1.
    #[must_use]
    pub fn status(&self) -> u8 {
        const NOT_FOUND: u8 = 3;
        const INVALID: u8 = 5;
        match self {
            Self::Topology(TopologyError::Syntax { .. } | TopologyError::Invalid { .. }) => INVALID,
            Self::Which(labs) if labs.is_empty() => NOT_FOUND,
            Self::Absent(_)
            | Self::Exec(ExecError::Target(_))
            | Self::Trace(TraceError::Target(_) | TraceError::NoPod { .. }) => NOT_FOUND,
            Self::Attach(error) => match **error {
                AttachError::State(StateError::Absent { .. }) => NOT_FOUND,
                _ => 1,
            },
            Self::Fault(error) => match **error {
                LabFaultError::Node(NodeError::Target(_))
                | LabFaultError::Network(FaultError::Target(_)) => NOT_FOUND,
                _ => 1,
            },
            _ => 1,
        }
    }
}

fn which(labs: &[LabName]) -> String {
    if labs.is_empty() {
        return "there is no lab; bring one up with: caracal lab up FILE".to_owned();
    }
    let names: Vec<_> = labs.iter().map(LabName::as_str).collect();
    format!(
        "there is more than one lab, name one of: {}",
        names.join(", ")
    )
}

/// Writer that commands print to.
pub(crate) type Out<'a> = &'a mut (dyn Write + Send);

/// `caracal lab up FILE`.
#[derive(Clone, Debug)]
pub struct UpCommand {
    /// The topology file.
    pub file: PathBuf,
    /// Another name than the topology's.
    pub name: Option<String>,
    /// The `caracal` binary; this very program.
    pub binary: PathBuf,
    /// Limit for sessions and pings; [`CONVERGE`].
    pub deadline: Duration,
    /// Leave what is there when the bring-up fails.
    pub keep: bool,
    /// Form of tables.
    pub tables: TableForm,
}

/// `caracal lab status`.
#[derive(Clone, Debug, Default)]
pub struct StatusCommand {
    /// The lab; may be left out when there is one.
    pub lab: Option<String>,
    /// JSON instead of tables.
    pub json: bool,
    /// Limit for a ping; no matrix when zero.
    pub pings: Duration,
    /// Form of tables.
    pub tables: TableForm,
}

/// `caracal lab exec TARGET -- COMMAND`.
#[derive(Clone, Debug, Default)]
pub struct ExecCommand {
    /// The lab; may be left out when there is one.
    pub lab: Option<String>,
    /// A node, a pod (`NODE/POD`), a router, `etcd` or `switch`.
    pub target: String,
    /// The command with its arguments.
    pub command: Vec<OsString>,
}

/// `caracal lab kill|stop|start|cut|heal TARGET`.
#[derive(Clone, Debug)]
pub struct FaultCommand {
    /// The lab; may be left out when there is one.
    pub lab: Option<String>,
    /// A node, a router (its network), or `datastore`.
    pub target: String,
    /// What is done to it.
    pub fault: LabFault,
}

/// `caracal trace FROM TO`.
#[derive(Clone, Debug, Default)]
pub struct TraceCommand {
    /// The lab; may be left out when there is one.
    pub lab: Option<String>,
    /// The one pod, as `NODE/POD`.
    pub from: String,
    /// The other, or a service's `ADDRESS:PORT[/PROTOCOL]`.
    pub to: String,
    /// JSON instead of text.
    pub json: bool,
}

/// `caracal lab down`.
#[derive(Clone, Debug, Default)]
pub struct DownCommand {
    /// The lab; may be left out when there is one.
    pub lab: Option<String>,
    /// All labs.
    pub all: bool,
}

/// Brings a lab up, waits until it works, and shows it. Status 0: every session is up and every
/// ping was answered; 1: not so, and the lab stays for a look.
///
/// # Errors
/// [`CommandError`]; then nothing is left, unless it was to be kept.
pub fn up(arguments: &UpCommand, out: Out<'_>) -> Result<i32, CommandError> {
    rootless::restore_directory()?;
    // Before anything is made: a mistake in the file is the likeliest.
    let (topology, text) = Topology::load_text(&arguments.file)?;
    let name = LabName::new(arguments.name.as_deref().unwrap_or(&topology.name.value))?;
    let first = topology.nodes.first().map(|n| n.name.value.clone());
    if let Some(status) = inside(&name, NamespacePurpose::Create)? {
        return Ok(status);
    }
    let status = bring_up(arguments, &name, topology, &text, out)?;
    writeln!(out, "look around:  caracal lab status {name}")?;
    if let Some(node) = first {
        writeln!(
            out,
            "              caracal lab exec --lab {name} {node} -- ip route"
        )?;
    }
    writeln!(out, "remove it:    caracal lab down {name}")?;
    Ok(status)
}

fn bring_up(
    arguments: &UpCommand,
    name: &LabName,
    topology: Topology,
    text: &str,
    out: Out<'_>,
) -> Result<i32, CommandError> {
    let description = topology.description.as_deref().unwrap_or("");
    writeln!(out, "lab {name}: {description}")?;
    let start = Instant::now();
    let lab = {
        let printer = Mutex::new(&mut *out);
        let say = |event: UpProgress| {
            let words = words(&event);
            if let (false, Ok(mut out)) = (words.is_empty(), printer.lock()) {
                // A closed pipe must not stop a half-made lab.
                let _ = writeln!(out, "{:7.2} s  {words}", start.elapsed().as_secs_f64());
                let _ = out.flush();
            }
        };
        let options = UpOptions {
            name: Some(name.to_string()),
            keep_on_failure: arguments.keep,
            ..UpOptions::new(&arguments.binary)
        };
        Lab::up(topology, text, options, &say).map_err(Box::new)?
    };
    let settled = match lab.topology.flannel() {
        Some(_) => lab
            .await_leases(arguments.deadline)
            .map(|leases| format!("{leases} leases known to every node")),
        None => lab
            .await_sessions(arguments.deadline)
            .map(|sessions| format!("{sessions} sessions established")),
    };
    let now = start.elapsed().as_secs_f64();
    match &settled {
        Ok(words) => writeln!(out, "{now:7.2} s  {words}")?,
        Err(timeout) => writeln!(out, "{now:7.2} s  {timeout}")?,
    }
    let left = arguments.deadline.saturating_sub(start.elapsed());
    let report = lab.report(Some(left.max(STATUS_PINGS)))?;
    writeln!(out, "\n{}", table::render(&report, arguments.tables))?;
    Ok(i32::from(!report.is_healthy()))
}

/// A whole life in one command: removes what is left of an earlier one, brings the lab up, shows it
/// and removes it. The status is that of [`up`].
///
/// # Errors
/// [`CommandError`]; nothing is left then either.
pub fn demo(arguments: &UpCommand, out: Out<'_>) -> Result<i32, CommandError> {
    rootless::restore_directory()?;
    let (topology, text) = Topology::load_text(&arguments.file)?;
    let name = LabName::new(arguments.name.as_deref().unwrap_or(&topology.name.value))?;
    // One entry for all three: without root, the whole command line runs again inside.
    if let Some(status) = inside(&name, NamespacePurpose::Visit)? {
        return Ok(status);
    }
    down::down(&name)?;
    let status = bring_up(arguments, &name, topology, &text, out);
    tell_removal(&name, &down::down(&name)?, out)?;
    status
}

/// Shows a lab. Status 0 when every session is up and every ping was answered, else 1.
///
/// # Errors
/// [`CommandError`].
pub fn status(arguments: &StatusCommand, out: Out<'_>) -> Result<i32, CommandError> {
    let name = choose(arguments.lab.as_deref())?;
    if let Some(status) = inside(&name, NamespacePurpose::Use)? {
        return Ok(status);
    }
    let lab = Lab::attach(&name).map_err(Box::new)?;
    let pings = (!arguments.pings.is_zero()).then_some(arguments.pings);
    let report = lab.report(pings)?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&report).map_err(io::Error::other)?;
        writeln!(out, "{text}")?;
    } else {
        write!(
            out,
            "lab {name}\n\n{}",
            table::render(&report, arguments.tables)
        )?;
    }
    Ok(i32::from(!report.is_healthy()))
}

/// Runs a command in a namespace of a lab; its exit status is ours.
///
/// # Errors
/// [`CommandError`].
pub fn exec(arguments: &ExecCommand) -> Result<i32, CommandError> {
    let name = choose(arguments.lab.as_deref())?;
    if let Some(status) = inside(&name, NamespacePurpose::Use)? {
        return Ok(status);
    }
    let lab = Lab::attach(&name).map_err(Box::new)?;
    Ok(lab.exec(&arguments.target, &arguments.command)?)
}

/// Makes or mends a fault, and says how it ends.
///
/// # Errors
/// [`CommandError`].
pub fn fault(arguments: &FaultCommand, out: Out<'_>) -> Result<i32, CommandError> {
    let name = choose(arguments.lab.as_deref())?;
    if let Some(status) = inside(&name, NamespacePurpose::Use)? {
        return Ok(status);
    }
    let mut lab = Lab::attach(&name).map_err(Box::new)?;
    let FaultCommand { target, fault, .. } = arguments;
    lab.make_fault(target, *fault).map_err(Box::new)?;
    writeln!(out, "{}", fault.sentence(target))?;
    Ok(0)
}

/// Follows packets between two pods, or to a service, both ways. Status 4 when a hop is broken, a
/// ping is not answered or a connection not accepted.
///
/// # Errors
/// [`CommandError`].
pub fn trace(arguments: &TraceCommand, out: Out<'_>) -> Result<i32, CommandError> {
    let name = choose(arguments.lab.as_deref())?;
    if let Some(status) = inside(&name, NamespacePurpose::Use)? {
        return Ok(status);
    }
    let lab = Lab::attach(&name).map_err(Box::new)?;
    let report = lab.trace(&arguments.from, &arguments.to)?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&report).map_err(io::Error::other)?;
        writeln!(out, "{text}")?;
    } else {
        write!(out, "{}", report.render())?;
    }
    Ok(if report.is_intact() { 0 } else { BROKEN })
}

/// Removes a lab, or what is left of one. Nothing being there is fine.
///
/// # Errors
/// [`CommandError`].
pub fn down(arguments: &DownCommand, out: Out<'_>) -> Result<i32, CommandError> {
    let names = match (&arguments.lab, arguments.all) {
        (Some(name), _) => vec![LabName::new(name)?],
        (None, true) => found(),
        (None, false) => match found().as_slice() {
            [] => Vec::new(),
            [one] => vec![one.clone()],
            several => return Err(CommandError::Which(several.to_vec())),
        },
    };
    if names.is_empty() {
        writeln!(out, "there is no lab and nothing is left of one")?;
    }
    for name in names {
        match rootless::enter(&name, NamespacePurpose::Remove)? {
            Entry::Done(0) => {}
            Entry::Done(status) => return Ok(status),
            Entry::Absent => writeln!(out, "lab {name}: nothing is left of it")?,
            Entry::Here => tell_removal(&name, &down::down(&name)?, out)?,
        }
    }
    Ok(0)
}

/// Lists the labs.
///
/// # Errors
/// [`CommandError::Print`].
pub fn list(out: Out<'_>) -> Result<i32, CommandError> {
    for name in found() {
        writeln!(out, "{name}")?;
    }
    Ok(0)
}

fn tell_removal(name: &LabName, report: &DownReport, out: Out<'_>) -> io::Result<()> {
    for warning in &report.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    if report.is_empty() {
        return writeln!(out, "lab {name}: nothing is left of it");
    }
    let DownReport {
        pods,
        processes,
        namespaces,
        ..
    } = report;
    writeln!(
        out,
        "lab {name}: removed {pods} pods, {processes} processes, {namespaces} namespaces"
    )
}

fn inside(name: &LabName, purpose: NamespacePurpose) -> Result<Option<i32>, CommandError> {
    match rootless::enter(name, purpose)? {
        Entry::Here => Ok(None),
        Entry::Done(status) => Ok(Some(status)),
        Entry::Absent => Err(CommandError::Absent(name.clone())),
    }
}

/// Labs with a folder, and labs of which only namespaces are left.
fn found() -> Vec<LabName> {
    let mut names: BTreeSet<LabName> = rootless::labs().into_iter().collect();
    // Without root, those are somebody else's.
    let netns = if rootless::is_here() {
        netns::list("car-")
    } else {
        Vec::new()
    };
    for netns in netns {
        let lab = netns.split('-').nth(1).map(|slug| slug.replace('_', "-"));
        names.extend(lab.and_then(|lab| LabName::new(&lab).ok()));
    }
    names.into_iter().collect()
}

fn choose(name: Option<&str>) -> Result<LabName, CommandError> {
    if let Some(name) = name {
        return Ok(LabName::new(name)?);
    }
    let mut labs = rootless::labs();
    match labs.len() {
        1 => Ok(labs.remove(0)),
        _ => Err(CommandError::Which(labs)),
    }
}

impl Lab {
    /// Waits until every Caracal and BIRD node answers and all its sessions are Established; gives
    /// their number. In a cluster with BGP a node without any session is not ready yet.
    ///
    /// # Errors
    /// [`Timeout`], with what was missing last.
    pub fn await_sessions(&self, deadline: Duration) -> Result<usize, Timeout> {
        let members = self
            .layout
            .nodes
            .iter()
            .filter(|n| n.kind.is_member())
            .count();
        let expected = members > 1 && self.topology.backend == Backend::Bird;
        wait_until(deadline, "all sessions to be established", || {
            let report = self.report(None).map_err(|e| e.to_string())?;
            let mut sessions = 0;
            let mut missing = Vec::new();
            for node in &report.nodes {
                if let Some(error) = &node.error {
                    missing.push(format!("{}: {error}", node.name));
                }
                let (up, all) = node.peers();
                sessions += up;
                if up < all || (all == 0 && expected && node.status.is_some()) {
                    missing.push(format!("{}: {up} of {all}", node.name));
                }
            }
            if missing.is_empty() {
                Ok(sessions)
            } else {
                Err(missing.join(", "))
            }
        })
    }
}

fn words(event: &UpProgress) -> String {
    let plural = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    match event {
        UpProgress::Namespaces { count } => plural(*count, "namespace"),
        UpProgress::Network {
            segments,
            routers,
            nodes,
        } => format!(
            "cabled: {}, {}, {}",
            plural(*segments, "segment"),
            plural(*routers, "router"),
            plural(*nodes, "node")
        ),
        UpProgress::Etcd { .. } => "etcd serves".to_owned(),
        UpProgress::ApiServer { .. } => "the API server serves".to_owned(),
        UpProgress::Resources { keys } => {
            let short = keys
                .iter()
                .map(|k| k.rsplitn(3, '/').take(2).collect::<Vec<_>>());
            let short: Vec<_> = short
                .map(|p| p.into_iter().rev().collect::<Vec<_>>().join("/"))
                .collect();
            format!("resources: {}", short.join(", "))
        }
        // Its being ready says more.
        UpProgress::NodeStarted { .. } => String::new(),
        UpProgress::NodeReady { node, kind, .. } => match kind {
            NodeKind::Caracal | NodeKind::Flannel => format!("{node} is ready"),
            kind => format!("{node} ({}) is ready", kind.as_str()),
        },
        UpProgress::Pod { pod, address, took } => {
            format!("pod {pod} has {address} (CNI ADD {} ms)", took.as_millis())
        }
        UpProgress::Done { .. } => "everything has started".to_owned(),
    }
}
