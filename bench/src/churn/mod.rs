//! `caracal-bench churn`: what one node costs while pods come and go on *other* nodes of a large
//! cluster, beside `etcdctl watch` on the same keys, which is the least that anybody pays who hears
//! of them. And what its start costs.
//!
//! One real node with a real etcd; the rest of the cluster is data in etcd, as Calico writes them:
//! Nodes, blocks, affinities, handles, endpoints, a VXLAN pool. No BGP: nobody is there to speak
//! to.

mod cluster;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caracal_lab::{ETCD_PORT, Lab, LabName, Topology, UpOptions, run_in_netns};
use caracal_model::Family;

use crate::cluster_lab::{process_of, store};
use crate::dut::{cpu_of, cpu_of_children, memory_of, node_binary};
use crate::report;
use cluster::{Size, StoredCluster};

const NODE: &str = "node1";
/// Limit for the routes of the whole cluster to be written.
const PATIENCE: Duration = Duration::from_secs(300);
/// Rest before the clock runs: what starting up has left to do is done by then.
const REST: Duration = Duration::from_secs(12);

/// Time for what a node that comes or goes leads to, a second reading of the kernel included.
const BETWEEN_JOINS: Duration = Duration::from_secs(2);

const TOPOLOGY: &str = "name: churn
description: one node among many that are only data
backend: vxlan
pool:
  cidr: 10.128.0.0/9
  blockSize: 26
  vxlanMode: Always
segments:
  - {name: lan, cidr: 172.16.0.0/16}
nodes:
  - {name: node1, segment: lan, address: 172.16.0.11, pods: 0}
";

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct ChurnArgs {
    /// Nodes of the cluster besides the one under test.
    #[arg(long, default_value_t = 5000)]
    nodes: u32,
    /// Blocks of those nodes.
    #[arg(long, default_value_t = 20_000)]
    blocks: u32,
    /// Pods in each block, each with a handle and an endpoint.
    #[arg(long, default_value_t = 8)]
    pods: u32,
    /// Pods that come up or go, by turns, in a second.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 10, 100])]
    rates: Vec<u32>,
    /// Nodes that come and go, by turns, one every two seconds; after the pods.
    #[arg(long, default_value_t = 0)]
    joins: u32,
    /// Seconds of each rate.
    #[arg(long, default_value_t = 20)]
    seconds: u32,
    /// The `caracal` to measure; by default the one beside this program.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Writes the table into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Measurement at one rate of changes.
struct RateCost {
    rate: u32,
    done: u32,
    node: Duration,
    watch: Duration,
    took: Duration,
    resident_kib: u64,
}

/// A program that is ended when it is no longer wanted.
struct Watch(Child);

impl Drop for Watch {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn run(args: &ChurnArgs) -> Result<()> {
    ensure!(
        (1..=60_000).contains(&args.nodes) && (1..=60_000).contains(&args.blocks),
        "--nodes {} --blocks {}: 1 to 60000 of each",
        args.nodes,
        args.blocks
    );
    ensure!(args.pods <= 48, "--pods {}: a block has 64", args.pods);
    let binary = node_binary(args.binary.as_ref())?;
    let name = LabName::new("bench-churn")?;
    let _leftovers = caracal_lab::down(&name);
    let options = UpOptions::test(binary, "bench-churn");
    let mut lab = Lab::up(
        Topology::parse(TOPOLOGY, "churn")?,
        TOPOLOGY,
        options,
        &|_| {},
    )?;
    let etcd = lab.layout().etcd_netns();
    let size = Size {
        nodes: args.nodes,
        blocks: args.blocks,
        pods: args.pods,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    lab.stop_node(NODE)?;
    let mut cluster = run_in_netns(&etcd, || {
        runtime.block_on(async { StoredCluster::write(store()?, size).await })
    })??;
    // Without what it remembers: the whole way from nothing.
    let _absent = std::fs::remove_file(lab.folder().lib(NODE).join("last-snapshot"));
    let begun = Instant::now();
    lab.start_node(NODE)?;
    let start = started(&lab, args.blocks as usize)?;
    let start = format!(
        "start to {} routes: {:.2} s of CPU, {:.1} s, peak {:.0} MiB\n",
        args.blocks,
        start.as_secs_f64(),
        begun.elapsed().as_secs_f64(),
        memory_of(process_of(&lab, NODE)?)?.peak_kib as f64 / 1024.0
    );
    println!("{start}");
    let mut costs = Vec::new();
    for rate in &args.rates {
        std::thread::sleep(REST);
        let watch = bare_watch(&etcd)?;
        // It has to be there before it is measured.
        std::thread::sleep(Duration::from_secs(1));
        let cost = run_in_netns(&etcd, || {
            runtime.block_on(measure(&lab, &watch, &mut cluster, *rate, args.seconds))
        })??;
        costs.push(cost);
    }
    let joins = run_in_netns(&etcd, || {
        runtime.block_on(joins(&lab, &mut cluster, args.joins))
    })??;
    let peak = memory_of(process_of(&lab, NODE)?)?.peak_kib;
    let table = format!("{start}\n{}{joins}", table(args, &costs, peak));
    println!("\n### churn\n\n{table}");
    lab.down()?;
    match &args.write {
        Some(file) => report::write(file, &format!("churn-{}", args.nodes), &table),
        None => Ok(()),
    }
}

/// Waits for the routes; the CPU time until they were there and the node was at rest.
fn started(lab: &Lab, wanted: usize) -> Result<Duration> {
    let netns = lab.netns(NODE)?;
    let pid = process_of(lab, NODE)?;
    let end = Instant::now() + PATIENCE;
    let mut last = Duration::ZERO;
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let cpu = cpu_of(pid)?;
        // An idle node uses a few milliseconds.
        if cpu.saturating_sub(last) < Duration::from_millis(10) {
            let routes = caracal_lab::kernel_routes(&netns, Family::Ipv4)?;
            let blocks = routes
                .iter()
                .filter(|route| route.destination().is_some_and(|d| d.len() == 26))
                .count();
            if blocks >= wanted {
                return Ok(cpu);
            }
            ensure!(Instant::now() < end, "{blocks} of {wanted} routes came");
        }
        last = cpu;
    }
}

fn bare_watch(netns: &str) -> Result<Watch> {
    let child = Command::new("ip")
        .args(["netns", "exec", netns, "etcdctl", "watch", "--prefix"])
        .arg(format!("--endpoints=http://127.0.0.1:{ETCD_PORT}"))
        .arg("/calico/")
        .env("ETCDCTL_API", "3")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run etcdctl (package etcd-client)")?;
    Ok(Watch(child))
}

async fn measure(
    lab: &Lab,
    watch: &Watch,
    cluster: &mut StoredCluster,
    rate: u32,
    seconds: u32,
) -> Result<RateCost> {
    let (node, watcher) = (process_of(lab, NODE)?, watch.0.id());
    let (before, before_watch) = (cpu_of(node)?, cpu_of(watcher)?);
    let begun = Instant::now();
    let mut done = 0;
    if rate > 0 {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        while done < rate * seconds {
            ticks.tick().await;
            cluster.change(done).await?;
            done += 1;
        }
    }
    let whole = Duration::from_secs(u64::from(seconds));
    tokio::time::sleep(whole.saturating_sub(begun.elapsed())).await;
    let took = begun.elapsed();
    Ok(RateCost {
        rate,
        done,
        node: cpu_of(node)?.saturating_sub(before),
        watch: cpu_of(watcher)?.saturating_sub(before_watch),
        took,
        resident_kib: memory_of(node)?.resident_kib,
    })
}

/// What nodes that come and go cost, their own time and that of the `nft` that they start.
async fn joins(lab: &Lab, cluster: &mut StoredCluster, count: u32) -> Result<String> {
    if count == 0 {
        return Ok(String::new());
    }
    let node = process_of(lab, NODE)?;
    let (mut costs, children) = (Vec::new(), cpu_of_children(node)?);
    for _ in 0..count {
        let before = cpu_of(node)?;
        cluster.join_or_leave().await?;
        tokio::time::sleep(BETWEEN_JOINS).await;
        costs.push(cpu_of(node)?.saturating_sub(before));
    }
    costs.sort_unstable();
    let children = cpu_of_children(node)?.saturating_sub(children) / count;
    Ok(format!(
        "\nA node comes or goes, {count} times, one every {} s: {:.1} ms of CPU in the process (median), {:.1} in its children (mean).\n",
        BETWEEN_JOINS.as_secs(),
        costs[costs.len() / 2].as_secs_f64() * 1e3,
        children.as_secs_f64() * 1e3,
    ))
}

fn table(args: &ChurnArgs, costs: &[RateCost], peak_kib: u64) -> String {
    let mut text = format!(
        "{} nodes, {} blocks, {} pods in each; peak {:.0} MiB.\n\n\
         | pods per second elsewhere | CPU ms per second: node | `etcdctl watch` | RSS MiB |\n\
         |---|---|---|---|\n",
        args.nodes,
        args.blocks,
        args.pods,
        peak_kib as f64 / 1024.0
    );
    for cost in costs {
        let seconds = cost.took.as_secs_f64();
        let per_second = |cpu: Duration| cpu.as_secs_f64() * 1e3 / seconds;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} (came: {:.1}) | {:.1} | {:.1} | {:.0} |",
            cost.rate,
            f64::from(cost.done) / seconds,
            per_second(cost.node),
            per_second(cost.watch),
            cost.resident_kib as f64 / 1024.0
        );
    }
    text
}
