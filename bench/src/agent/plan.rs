//! `plan` and `diff` of one node in a simulated cluster.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use caracal_agent::{
    Actual, Changed, ChangedKeys, Comparison, Desired, KernelPlanner, Op, Phase, SLICE, apply_op,
    diff,
};

use super::cluster::{PlannedNode, snapshot};

/// Arguments of the simulation.
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

pub fn run(args: &PlanArgs) -> Result<()> {
    let before = resident();
    let mut node = PlannedNode::new(snapshot(args.nodes, args.blocks));
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
    slices(&node, &actual);
    for objects in [false, true] {
        by_key(&mut node, objects, args)?;
    }
    println!(
        "snapshot {} MiB, with a plan and a kernel's state {} MiB",
        mib(held - before),
        mib(resident() - before)
    );
    Ok(())
}

/// The longest steps of a whole plan and of a whole comparison, in slices as a node makes them.
fn slices(node: &PlannedNode, actual: &Actual) {
    let mut planning = KernelPlanner::default();
    let mut plan = Vec::new();
    let planned = node.in_slices(&mut planning, |job| steps(&mut plan, || job.step(SLICE)));
    let mut comparison = Comparison::default();
    let (changed, desired) = (&planned.changed, &planned.desired);
    let mut comparing = comparison.begin(changed, desired, actual, Phase::Synced);
    let mut compare = Vec::new();
    steps(&mut compare, || comparing.step(SLICE));
    for (what, times) in [("plan", plan), ("diff", compare)] {
        let longest = times.iter().max().copied().unwrap_or_default();
        println!(
            "{what} in {} slices, the longest {longest:.1?}",
            times.len()
        );
    }
}

/// Steps until all is done; how long each took.
fn steps(times: &mut Vec<Duration>, mut step: impl FnMut() -> bool) {
    let mut done = false;
    while !done {
        let start = on_cpu();
        done = step();
        times.push(on_cpu() - start);
    }
}

/// The same by key: after another node got a block, and after a node came or went.
fn by_key(node: &mut PlannedNode, objects: bool, args: &PlanArgs) -> Result<()> {
    // As at the start, whatever the round before left: every pass below is a change.
    node.set_node(args.nodes, false);
    node.set_pool(true);
    node.use_objects(objects);
    let mut planning = KernelPlanner::default();
    let mut comparison = Comparison::default();
    let desired = node.follow(&mut planning).desired;
    let mut actual = node.in_step(&desired);
    // With objects the first comparison makes them.
    let mut changed = Changed::All;
    while !apply(&mut comparison, &changed, &desired, &mut actual)? {
        changed = Changed::Keys(ChangedKeys::default());
    }
    // The first comparison by key counts the routes that share a way.
    apply(&mut comparison, &changed, &desired, &mut actual)?;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for pass in (1..).take(args.passes) {
        for (at, times) in times.iter_mut().enumerate() {
            match at {
                // Another owner than the last time.
                0 => node.move_block(pass + 10, pass + 20 + u32::from(objects)),
                1 => node.set_node(args.nodes, pass % 2 == 1),
                _ => node.set_pool(pass % 2 == 0),
            }
            let start = on_cpu();
            let planned = node.follow(&mut planning);
            let Changed::Keys(keys) = &planned.changed else {
                bail!("a change of one key was planned as a whole");
            };
            let before = comparison.by_key();
            let (desired, changed) = (&planned.desired, &planned.changed);
            let ops = compare(&mut comparison, changed, desired, &actual);
            times.push(on_cpu() - start);
            let named = keys.prefixes.len() + keys.neighbours.len() + usize::from(keys.nat);
            ensure!(named > 0, "something changed, and no key is named");
            ensure!(comparison.by_key() > before, "the whole was compared");
            done(&mut comparison, ops, desired, &mut actual)?;
            let none = Changed::Keys(ChangedKeys::default());
            while !apply(&mut comparison, &none, desired, &mut actual)? {}
        }
    }
    let [block, node, pool] = &mut times;
    println!(
        "by key, plan and diff{}: a block elsewhere {:.1?}, a node {:.1?}, the pool of all {:.1?}",
        if objects { ", with objects" } else { "" },
        median(block),
        median(node),
        median(pool)
    );
    Ok(())
}

fn compare(
    comparison: &mut Comparison,
    changed: &Changed,
    desired: &Desired,
    actual: &Actual,
) -> Vec<Op> {
    let phase = Phase::Synced;
    let (ops, _) = comparison.compare(changed, desired, actual, phase);
    ops
}

/// Carries out what a comparison asked for.
fn done(
    comparison: &mut Comparison,
    ops: Vec<Op>,
    desired: &Desired,
    actual: &mut Actual,
) -> Result<()> {
    for op in ops {
        let done = apply_op(actual, &op);
        done.map_err(|refused| anyhow::anyhow!("{op}: {refused}"))?;
    }
    comparison.is_done(desired, Phase::Synced);
    Ok(())
}

/// True when nothing had to be done.
fn apply(
    comparison: &mut Comparison,
    changed: &Changed,
    desired: &Desired,
    actual: &mut Actual,
) -> Result<bool> {
    let ops = compare(comparison, changed, desired, actual);
    let none = ops.is_empty();
    done(comparison, ops, desired, actual)?;
    Ok(none)
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Processor time of this thread: time that others took of a busy machine does not count.
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
