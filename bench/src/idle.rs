//! `caracal-bench idle`: what the nodes of a cluster at rest cost. All of them are real: processes
//! of their own in namespaces of their own, one pod each, on one etcd.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use caracal_lab::{Lab, LabName, Topology, UpOptions, UpProgress};

use crate::dut::{cpu_of, memory_of, node_binary};
use crate::report;

/// Limit for the nodes to come to rest.
const PATIENCE: Duration = Duration::from_secs(600);
/// Rest after that, before the clock runs.
const REST: Duration = Duration::from_secs(15);

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct IdleArgs {
    /// Nodes of the lab.
    #[arg(long, default_value_t = 300)]
    nodes: usize,
    /// Nodes with a pod, and so with a block, that the others have a route to; by default all.
    #[arg(long)]
    pods: Option<usize>,
    /// Duration of the measurement in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Elected reflectors instead of the mesh.
    #[arg(long)]
    reflectors: bool,
    /// The `caracal` to measure; by default the one beside this program.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Writes the table into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// One process over the time.
#[derive(Clone, Copy)]
struct ProcessCost {
    cpu: Duration,
    resident_kib: u64,
    peak_kib: u64,
}

pub fn run(args: &IdleArgs) -> Result<()> {
    ensure!(
        (2..=1000).contains(&args.nodes),
        "--nodes {}: a bridge has ports for 2 to 1000",
        args.nodes
    );
    let binary = node_binary(args.binary.as_ref())?;
    let name = LabName::new("bench-idle")?;
    let _leftovers = caracal_lab::down(&name);
    let text = topology(args.nodes, args.pods.unwrap_or(args.nodes));
    let pids = Mutex::new(Vec::new());
    let note = |progress: UpProgress| {
        if let UpProgress::NodeStarted { pid, .. } = progress {
            let mut pids = pids.lock().unwrap_or_else(PoisonError::into_inner);
            pids.push(u32::try_from(pid).unwrap_or_default());
        }
    };
    let options = UpOptions::test(binary, "bench-idle");
    let lab = Lab::up(Topology::parse(&text, "idle")?, &text, options, &note)?;
    if args.reflectors {
        lab.caracal_within("node1", &["topology", "apply", "--auto"], PATIENCE)?;
    }
    let sessions = lab.await_sessions(PATIENCE)?;
    let pids = pids.into_inner().unwrap_or_else(PoisonError::into_inner);
    std::thread::sleep(REST);
    let before = costs(&pids)?;
    std::thread::sleep(Duration::from_secs(args.seconds));
    let after = costs(&pids)?;
    let costs: Vec<ProcessCost> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| ProcessCost {
            cpu: after.cpu - before.cpu,
            ..*after
        })
        .collect();
    let table = table(args, sessions / args.nodes, &costs)?;
    println!("\n### idle\n\n{table}");
    lab.down()?;
    let title = if args.reflectors {
        "idle-reflectors"
    } else {
        "idle-mesh"
    };
    match &args.write {
        Some(file) => report::write(file, title, &table),
        None => Ok(()),
    }
}

/// Topology with `nodes` nodes on one segment, `pods` of them with a pod.
fn topology(nodes: usize, pods: usize) -> String {
    let mut text =
        "name: idle\ndescription: many nodes\npool:\n  cidr: 10.244.0.0/16\n  blockSize: 26\n\
                    segments:\n  - {name: lan, cidr: 10.0.0.0/21}\nnodes:\n"
            .to_owned();
    for n in 1..=nodes {
        // Writing to a String cannot fail.
        let pods = u8::from(n <= pods);
        let _ = writeln!(text, "  - {{name: node{n}, segment: lan, pods: {pods}}}");
    }
    text
}

fn costs(pids: &[u32]) -> Result<Vec<ProcessCost>> {
    let of = |pid: &u32| {
        let memory = memory_of(*pid)?;
        anyhow::Ok(ProcessCost {
            cpu: cpu_of(*pid)?,
            resident_kib: memory.resident_kib,
            peak_kib: memory.peak_kib,
        })
    };
    pids.iter()
        .map(|pid| of(pid).with_context(|| format!("process {pid} of a node")))
        .collect()
}

fn table(args: &IdleArgs, sessions: usize, costs: &[ProcessCost]) -> Result<String> {
    ensure!(!costs.is_empty(), "no node was started");
    let spread = |value: &dyn Fn(&ProcessCost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        (
            values[values.len() / 2],
            values[0],
            values[values.len() - 1],
        )
    };
    let minute = 60.0 / args.seconds as f64;
    let (cpu, least, most) = spread(&|cost| cost.cpu.as_secs_f64() * 1e3 * minute);
    let (resident, _, largest) = spread(&|cost| cost.resident_kib as f64 / 1024.0);
    let (_, _, peak) = spread(&|cost| cost.peak_kib as f64 / 1024.0);
    Ok(format!(
        "| nodes | pods | sessions of a node | CPU ms per minute: median (least–most) | RSS MiB: median, most | peak MiB, most |\n\
         |---|---|---|---|---|---|\n\
         | {} | {} | {sessions} | {cpu:.0} ({least:.0}–{most:.0}) | {resident:.1}, {largest:.1} | {peak:.1} |\n",
        args.nodes,
        args.pods.unwrap_or(args.nodes)
    ))
}
