//! `caracal-bench kubernetes`: what a node asks of Kubernetes' API, at rest and for each thing that
//! happens, in clusters of several sizes. The node is real; the other Nodes, with a block each, are
//! objects on the test API server. Octets are those of IP packets, counted in the node's namespace.

mod cluster;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caracal_lab::{
    API_PORT, Extent, Lab, LabName, Topology, UpOptions, call_program, program_command, wait_until,
};
use serde_json::{Value, json};

use crate::dut::node_binary;
use crate::report;

/// Limit for the node to know the cluster.
const PATIENCE: Duration = Duration::from_secs(600);
/// Rest after that, before anything is counted.
const REST: Duration = Duration::from_secs(20);
/// Nothing is on its way any more after so long without a packet.
const QUIET: Duration = Duration::from_secs(2);
/// Events of each kind.
const EVENTS: u64 = 20;
const CALL: Duration = Duration::from_secs(120);
const NODE: &str = "node1";

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct KubernetesArgs {
    /// Nodes of the cluster, the measured one included; several sizes.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 100, 5000])]
    nodes: Vec<u32>,
    /// Duration of rest in seconds; each watch is opened anew once in 240.
    #[arg(long, default_value_t = 240)]
    seconds: u64,
    /// The `caracal` to measure; by default the one beside this program. The test API server has to
    /// be beside it, or named by `CARACAL_TEST_API_SERVER`.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Writes the table into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Octets on the wire: to the server, and from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Octets {
    sent: u64,
    received: u64,
}

impl Octets {
    const fn all(self) -> u64 {
        self.sent + self.received
    }

    const fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
        }
    }
}

/// One size of cluster.
struct Measured {
    nodes: u32,
    watches: usize,
    connections: usize,
    start: Octets,
    /// In a minute at rest.
    rest: Octets,
    /// For one event of each kind, without what rest takes in the same time.
    events: Vec<(&'static str, u64)>,
}

pub fn run(args: &KubernetesArgs) -> Result<()> {
    let mut all = Vec::new();
    for nodes in &args.nodes {
        ensure!(
            (1..=5000).contains(nodes),
            "--nodes {nodes}: 1 to 5000 have a place"
        );
        let measured = measure(args, *nodes).with_context(|| format!("with {nodes} Nodes"))?;
        all.push(measured);
        println!("\n{}", table(&all));
    }
    match &args.write {
        Some(file) => report::write(file, "kubernetes", &table(&all)),
        None => Ok(()),
    }
}

fn measure(args: &KubernetesArgs, nodes: u32) -> Result<Measured> {
    let binary = std::path::absolute(node_binary(args.binary.as_ref())?)?;
    let name = LabName::new("bench-kube")?;
    let _leftovers = caracal_lab::down(&name);
    let mut options = UpOptions::test(binary.clone(), "bench-kube");
    options.extent = Extent::Network;
    let topology = Topology::parse(cluster::TOPOLOGY, "kubernetes")?;
    let mut lab = Lab::up(topology, cluster::TOPOLOGY, options, &|_| {})?;
    lab.folder().link_binary(&binary)?;
    cluster::fill(&mut lab, nodes)?;
    count_packets(&lab)?;

    lab.start_node(NODE)?;
    lab.await_node(NODE)?;
    wait_until(PATIENCE, "the node to know the cluster", || {
        let status = lab.node_status(NODE).map_err(|e| e.to_string())?;
        match status.datastore.state == "fresh" && status.kernel.phase == "synced" {
            true => Ok(()),
            false => Err(format!("{:?} {:?}", status.datastore, status.kernel)),
        }
    })?;
    let start = octets(&lab)?;
    std::thread::sleep(REST);

    let before = octets(&lab)?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let rested = octets(&lab)?.since(before);
    let per_minute = |octets: u64| octets * 60 / args.seconds.max(1);
    let rest = Octets {
        sent: per_minute(rested.sent),
        received: per_minute(rested.received),
    };
    let mut events = Vec::new();
    for (what, happen) in cluster::EVENTS {
        // A cluster of one has no other node.
        if nodes > 1 || what.ends_with(" here") {
            events.push((what, of_each(&lab, rest, happen)?));
        }
    }
    let measured = Measured {
        nodes,
        watches: watches(&lab)?,
        connections: connections(&lab)?,
        start,
        rest,
        events,
    };
    lab.down()?;
    Ok(measured)
}

fn in_node(lab: &Lab, mut command: Command, stdin: &str) -> Result<String> {
    let netns = lab.netns(NODE)?;
    Ok(call_program(
        Some(&netns),
        &mut command,
        stdin.as_bytes(),
        CALL,
    )?)
}

/// Counters of the packets to and from the API server.
fn count_packets(lab: &Lab) -> Result<()> {
    let mut nft = program_command("nft")?;
    nft.args(["-f", "-"]);
    let chain = |hook: &str, port: &str| {
        format!(
            "chain {hook} {{ type filter hook {hook} priority -300; tcp {port} {API_PORT} counter; }}\n"
        )
    };
    let chains = [chain("output", "dport"), chain("input", "sport")].concat();
    in_node(lab, nft, &format!("table inet bench {{\n{chains}}}\n"))?;
    Ok(())
}

fn octets(lab: &Lab) -> Result<Octets> {
    let mut nft = program_command("nft")?;
    nft.args(["-j", "list", "table", "inet", "bench"]);
    let text = in_node(lab, nft, "")?;
    let listed: Value = serde_json::from_str(&text)?;
    let rules = listed["nftables"].as_array().context("nft lists nothing")?;
    let of = |chain: &str| {
        let mut rules = rules.iter().map(|object| &object["rule"]);
        let rule = rules.find(|rule| rule["chain"] == chain)?;
        let parts = rule["expr"].as_array()?;
        parts
            .iter()
            .find_map(|part| part["counter"]["bytes"].as_u64())
    };
    Ok(Octets {
        sent: of("output").context("no counter of what is sent")?,
        received: of("input").context("no counter of what is received")?,
    })
}

/// Octets for each of some events, without what rest takes meanwhile.
fn of_each(lab: &Lab, rest: Octets, happen: fn(&Lab, u64) -> Result<()>) -> Result<u64> {
    let (start, before) = (Instant::now(), octets(lab)?);
    happen(lab, EVENTS)?;
    let mut seen = octets(lab)?;
    loop {
        std::thread::sleep(QUIET);
        let now = octets(lab)?;
        // Less than a watch tells of anything.
        if now.since(seen).all() < 2 * rest.all() / 10 + 200 {
            break;
        }
        seen = now;
    }
    let all = octets(lab)?.since(before).all();
    let at_rest = rest.all() * start.elapsed().as_secs() / 60;
    Ok(all.saturating_sub(at_rest) / EVENTS)
}

/// Kinds that the node has asked to watch, by the server's audit log.
fn watches(lab: &Lab) -> Result<usize> {
    let text = std::fs::read_to_string(lab.folder().kubernetes().join("audit.log"))?;
    let mut kinds = BTreeSet::new();
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line)?;
        if entry["verb"] == json!("watch") {
            kinds.insert(entry["resource"].to_string());
        }
    }
    Ok(kinds.len())
}

/// Connections to the server that are open.
fn connections(lab: &Lab) -> Result<usize> {
    let mut ss = program_command("ss")?;
    let filter = format!("dport = :{API_PORT}");
    ss.args(["-Htn", "state", "established", &filter]);
    Ok(in_node(lab, ss, "")?.lines().count())
}

fn table(all: &[Measured]) -> String {
    let mut text =
        "| Nodes | watches | connections | start, MB | at rest, octets a minute |".to_owned();
    for (what, _) in cluster::EVENTS {
        // Writing to a String cannot fail.
        let _ = write!(text, " {what} |");
    }
    text.push_str("\n|---|---|---|---|---|");
    text.push_str(&"---|".repeat(cluster::EVENTS.len()));
    text.push('\n');
    for one in all {
        let _ = write!(
            text,
            "| {} | {} | {} | {:.2} | {} sent, {} received |",
            one.nodes,
            one.watches,
            one.connections,
            one.start.all() as f64 / 1e6,
            one.rest.sent,
            one.rest.received
        );
        for (what, _) in cluster::EVENTS {
            let found = one.events.iter().find(|(name, _)| *name == what);
            let shown = found.map_or_else(|| "–".to_owned(), |(_, octets)| octets.to_string());
            let _ = write!(text, " {shown} |");
        }
        text.push('\n');
    }
    text
}
