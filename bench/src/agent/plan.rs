//! `plan` and `diff` of one node in a simulated cluster.

use std::time::Duration;

use anyhow::{Result, ensure};
use caracal_agent::{Phase, diff};

use super::cluster::{Node, snapshot};

/// What to simulate.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 5000)]
    nodes: u32,
    /// Blocks of the cluster, each with 30 addresses in use.
    #[arg(long, default_value_t = 20_000)]
    blocks: u32,
    /// Passes; the median is printed.
    #[arg(long, default_value_t = 15)]
    passes: usize,
}

/// Measures and prints.
pub fn run(args: &PlanArgs) -> Result<()> {
    let before = resident();
    let node = Node::of(snapshot(args.nodes, args.blocks));
    let held = resident();
    let desired = node.plan();
    let actual = node.in_step(&desired);
    ensure!(
        diff(&desired, &actual, Phase::Synced).is_empty(),
        "a kernel in step needs nothing"
    );
    let (mut plans, mut diffs) = (Vec::new(), Vec::new());
    for _ in 0..args.passes {
        let start = on_cpu();
        let desired = node.plan();
        plans.push(on_cpu() - start);
        let start = on_cpu();
        let ops = diff(&desired, &actual, Phase::Synced);
        diffs.push(on_cpu() - start);
        ensure!(ops.is_empty(), "a kernel in step needs nothing");
    }
    let (plan, diff) = (median(&mut plans), median(&mut diffs));
    println!(
        "{} nodes, {} blocks: {} routes, {} neighbours and FDB entries",
        args.nodes,
        args.blocks,
        desired.routes.len(),
        desired.neighbours.len() + desired.fdb.len()
    );
    println!(
        "plan {plan:.1?}, diff {diff:.1?}, both {:.1?} of CPU time (medians of {})",
        plan + diff,
        args.passes
    );
    println!(
        "snapshot {} MiB, with a plan and a kernel's state {} MiB",
        mib(held - before),
        mib(resident() - before)
    );
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// What this thread has had of a processor: time that others took of a busy machine does not count.
fn on_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds)
}

/// Octets of this process in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|p| p.parse().ok())
        .unwrap_or(0);
    pages * 4096
}

const fn mib(octets: u64) -> u64 {
    octets >> 20
}
