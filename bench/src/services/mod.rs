//! `caracal-bench services`: what services in the kernel cost one node, for a few and for many of
//! them: its start, a change of one endpoint until the kernel has it, and what a client waits for.
//! Beside it the same services in iptables, as kube-proxy writes them, and the node's own table
//! written as a whole.
//!
//! One real node with a real etcd and two pods; the services are data, and one of them has a pod
//! behind it.

mod cluster;
mod kernel;
mod path;
mod rival;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caracal_lab::{Lab, LabName, Topology, UpOptions, run_in_netns};

use crate::cluster_lab::{process_of, store};
use crate::dut::{cpu_of, cpu_of_children, memory_of, node_binary};
use crate::report;
use cluster::{PORT, ServiceSet, TARGET};
use path::Way;
use rival::ProgramCost;

const NODE: &str = "node1";
/// Limit for the whole table to be written.
const PATIENCE: Duration = Duration::from_secs(300);
/// Limit for one change.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two changes: each is one by itself.
const PAUSE: Duration = Duration::from_millis(20);
/// Changes of iptables and of a whole table, which take long.
const FEW: u32 = 10;

const TOPOLOGY: &str = "name: services
description: one node and services that are only data
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 172.16.0.0/16}
nodes:
  - {name: node1, segment: lan, address: 172.16.0.11, pods: 2, env: {CARACAL_SERVICES: 'on'}}
";

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct ServicesArgs {
    /// Numbers of services, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 10_000])]
    services: Vec<u32>,
    /// Endpoints of each.
    #[arg(long, default_value_t = 10)]
    endpoints: u32,
    /// Endpoints that come and go.
    #[arg(long, default_value_t = 500)]
    changes: u32,
    /// Clients keep their endpoints (`sessionAffinity: ClientIP`).
    #[arg(long)]
    affinity: bool,
    /// Leave out iptables, whose rules take minutes to load where they are many.
    #[arg(long)]
    no_iptables: bool,
    /// The `caracal` to measure; by default the one beside this program.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Writes the table into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Measurement with one number of services.
struct ServicesCost {
    services: u32,
    start: StartCost,
    /// The next process, which finds the table.
    again: StartCost,
    changes: ChangeCost,
    ways: [Way; 2],
    whole_table: ProgramCost,
    iptables: Option<IptablesCost>,
}

struct StartCost {
    node: Duration,
    children: Duration,
    resident_kib: u64,
    peak_kib: u64,
}

struct ChangeCost {
    /// From etcd's answer to the kernel's word; sorted.
    times: Vec<Duration>,
    /// CPU time of one.
    node: Duration,
    children: Duration,
}

struct IptablesCost {
    load: ProgramCost,
    change: ProgramCost,
    ways: [Way; 2],
}

pub fn run(args: &ServicesArgs) -> Result<()> {
    ensure!(
        (1..=20).contains(&args.endpoints)
            && args.services.iter().all(|n| (2..=60_000).contains(n)),
        "2 to 60000 services with 1 to 20 endpoints"
    );
    let mut costs = Vec::new();
    for services in &args.services {
        costs.push(measure(args, *services)?);
    }
    let table = table(args, &costs);
    println!("\n### services\n\n{table}");
    match &args.write {
        Some(file) => report::write(file, "services", &table),
        None => Ok(()),
    }
}

fn measure(args: &ServicesArgs, services: u32) -> Result<ServicesCost> {
    let binary = node_binary(args.binary.as_ref())?;
    let name = LabName::new("bench-services")?;
    let _leftovers = caracal_lab::down(&name);
    let options = UpOptions::test(binary, "bench-services");
    let topology = Topology::parse(TOPOLOGY, "services")?;
    let mut lab = Lab::up(topology, TOPOLOGY, options, &|_| {})?;
    let [client, server] = [0, 1].map(|n| lab.state().pods.get(n).cloned());
    let (client, server) = client.zip(server).context("the lab has two pods")?;
    let set = ServiceSet {
        services,
        endpoints: args.endpoints,
        pod: server.address.context("the pod has an address")?,
        affinity: match args.affinity {
            true => "ClientIP",
            false => "None",
        },
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let etcd = lab.layout().etcd_netns();
    lab.stop_node(NODE)?;
    run_in_netns(&etcd, || {
        runtime.block_on(async { set.write(&store()?).await })
    })??;
    // Without what it remembers: the whole way from nothing.
    let _absent = std::fs::remove_file(lab.folder().lib(NODE).join("last-snapshot"));
    lab.start_node(NODE)?;
    let start = started(&lab, set)?;
    let transactions = run_in_netns(&lab.netns(NODE)?, kernel::Transactions::follow)??;
    let changes = run_in_netns(&etcd, || {
        runtime.block_on(changes(&lab, set, args.changes, &transactions))
    })??;
    let vip = SocketAddr::new(ServiceSet::vip(set.real()).into(), PORT);
    let connect = || {
        path::compare(
            &client.netns,
            &server.netns,
            SocketAddr::new(set.pod, TARGET),
            vip,
        )
    };
    let ways = connect()?;
    lab.stop_node(NODE)?;
    lab.start_node(NODE)?;
    let again = started(&lab, set)?;
    lab.stop_node(NODE)?;
    let node = lab.netns(NODE)?;
    let whole_table = whole_table(&node)?;
    let iptables = match args.no_iptables {
        true => None,
        false => {
            let (load, change) = iptables(&node, set)?;
            let ways = connect()?;
            Some(IptablesCost { load, change, ways })
        }
    };
    lab.down()?;
    Ok(ServicesCost {
        services,
        start,
        again,
        changes,
        ways,
        whole_table,
        iptables,
    })
}

/// Waits for the table; CPU time until it was there and the node was at rest.
fn started(lab: &Lab, set: ServiceSet) -> Result<StartCost> {
    let (netns, pid) = (lab.netns(NODE)?, process_of(lab, NODE)?);
    let end = Instant::now() + PATIENCE;
    let (mut last, mut quiet) = (Duration::ZERO, 0);
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let (node, children) = (cpu_of(pid)?, cpu_of_children(pid)?);
        // An idle node uses a few milliseconds, as does one that waits for a program.
        quiet = match node + children < last + Duration::from_millis(10) {
            true => quiet + 1,
            false => 0,
        };
        if quiet >= 3 {
            let elements = elements(&netns);
            if elements == set.elements() as usize {
                let memory = memory_of(pid)?;
                return Ok(StartCost {
                    node,
                    children,
                    resident_kib: memory.resident_kib,
                    peak_kib: memory.peak_kib,
                });
            }
            ensure!(
                Instant::now() < end,
                "{elements} of {} endpoints came",
                set.elements()
            );
        }
        last = node + children;
    }
}

/// Endpoints in the kernel. The table may not be there yet.
fn elements(netns: &str) -> usize {
    let list = [
        "nft",
        "list",
        "map",
        "inet",
        "caracal-services",
        "endpoints4-tcp",
    ];
    let text = rival::output(netns, &list).unwrap_or_default();
    text.matches(" : 10.").count()
}

async fn changes(
    lab: &Lab,
    set: ServiceSet,
    count: u32,
    transactions: &kernel::Transactions,
) -> Result<ChangeCost> {
    let (store, pid) = (store()?, process_of(lab, NODE)?);
    let before = (cpu_of(pid)?, cpu_of_children(pid)?);
    let mut times = Vec::new();
    for turn in 0..count {
        // The same one goes and comes back.
        let number = (turn / 2).wrapping_mul(7919) % set.services;
        let number = if number == set.real() { 0 } else { number };
        set.change(&store, number, turn % 2 == 1).await?;
        let begun = Instant::now();
        let seen = transactions.next(LIMIT)?;
        times.push(seen.saturating_duration_since(begun));
        tokio::time::sleep(PAUSE).await;
    }
    times.sort_unstable();
    Ok(ChangeCost {
        times,
        node: cpu_of(pid)?.saturating_sub(before.0) / count.max(1),
        children: cpu_of_children(pid)?.saturating_sub(before.1) / count.max(1),
    })
}

/// The median of a few runs.
fn repeated(mut run: impl FnMut(u32) -> Result<ProgramCost>) -> Result<ProgramCost> {
    let costs = (0..FEW).map(&mut run).collect::<Result<Vec<_>>>()?;
    let mean = costs.iter().map(|cost| cost.cpu).sum::<Duration>() / FEW;
    let wall = report::median(costs.iter().map(|cost| cost.wall).collect());
    Ok(ProgramCost {
        wall: wall.unwrap_or_default(),
        cpu: mean,
    })
}

/// The node's own table, deleted and written as a whole in one transaction; deleted at the end.
fn whole_table(netns: &str) -> Result<ProgramCost> {
    let listed = rival::output(netns, &["nft", "list", "table", "inet", "caracal-services"])?;
    // nft 1.0.6 lists rules that it does not read: a concatenation with `ct original proto-dst`.
    let readable = |line: &&str| !line.contains("ct original proto-dst @");
    let listed: Vec<&str> = listed.lines().filter(readable).collect();
    let listed = listed.join("\n");
    let text = format!("delete table inet caracal-services\n{listed}\n");
    let cost = repeated(|_| rival::feed(netns, &["nft", "-f", "-"], &text))?;
    rival::output(
        netns,
        &["nft", "delete", "table", "inet", "caracal-services"],
    )?;
    Ok(cost)
}

/// Loads the rules and changes them; they stay.
fn iptables(netns: &str, set: ServiceSet) -> Result<(ProgramCost, ProgramCost)> {
    let restore = ["iptables-restore", "--noflush"];
    let load = rival::feed(netns, &restore, &rival::iptables(set))?;
    let change = repeated(|turn| {
        rival::feed(
            netns,
            &restore,
            &rival::iptables_change(set, 0, turn % 2 == 1),
        )
    })?;
    Ok((load, change))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn at(times: &[Duration], percent: usize) -> f64 {
    let index = times.len().saturating_sub(1) * percent / 100;
    milliseconds(times.get(index).copied().unwrap_or_default())
}

fn table(args: &ServicesArgs, costs: &[ServicesCost]) -> String {
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    let mut row = |name, cell: &dyn Fn(&ServicesCost) -> String| {
        rows.push((name, costs.iter().map(cell).collect()));
    };
    row("start, CPU s: node + `nft`", &|cost| {
        let (node, children) = (&cost.start.node, &cost.start.children);
        format!("{:.2} + {:.2}", node.as_secs_f64(), children.as_secs_f64())
    });
    row("another start, with the table there", &|cost| {
        let (node, children) = (&cost.again.node, &cost.again.children);
        format!("{:.2} + {:.2}", node.as_secs_f64(), children.as_secs_f64())
    });
    row("RSS at rest, peak, MiB", &|cost| {
        let mib = |kib: u64| kib as f64 / 1024.0;
        format!(
            "{:.0}, {:.0}",
            mib(cost.start.resident_kib),
            mib(cost.start.peak_kib)
        )
    });
    row(
        "an endpoint comes or goes → kernel, ms: p50, p99",
        &|cost| {
            let times = &cost.changes.times;
            format!("{:.2}, {:.2}", at(times, 50), at(times, 99))
        },
    );
    row("CPU of it, ms: node + `nft`", &|cost| {
        let (node, children) = (cost.changes.node, cost.changes.children);
        format!("{:.2} + {:.2}", milliseconds(node), milliseconds(children))
    });
    row("the same table written whole, ms: wall, CPU", &|cost| {
        program(&cost.whole_table)
    });
    row("iptables: load, ms: wall, CPU", &|cost| {
        cost.iptables
            .as_ref()
            .map_or_else(none, |i| program(&i.load))
    });
    row(
        "iptables: an endpoint comes or goes, ms: wall, CPU",
        &|cost| {
            cost.iptables
                .as_ref()
                .map_or_else(none, |i| program(&i.change))
        },
    );
    row(
        "first packets through a VIP ÷ direct, p50: ours, iptables",
        &|cost| {
            let theirs = cost.iptables.as_ref();
            format!(
                "{:.2}, {}",
                waits(&cost.ways),
                theirs.map_or_else(none, |i| format!("{:.2}", waits(&i.ways)))
            )
        },
    );
    row(
        "connections per second through a VIP ÷ direct: ours, iptables",
        &|cost| {
            let theirs = cost.iptables.as_ref();
            format!(
                "{:.2}, {}",
                serves(&cost.ways),
                theirs.map_or_else(none, |i| format!("{:.2}", serves(&i.ways)))
            )
        },
    );
    let mut text = format!("{} endpoints of each service.\n\n| |", args.endpoints);
    // Writing to a String cannot fail.
    for cost in costs {
        let _ = write!(text, " {} services |", cost.services);
    }
    text += "\n|---|";
    text += &"---|".repeat(costs.len());
    text += "\n";
    for (name, cells) in rows {
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}

fn none() -> String {
    "–".to_owned()
}

fn program(cost: &ProgramCost) -> String {
    format!(
        "{:.1}, {:.0}",
        milliseconds(cost.wall),
        milliseconds(cost.cpu)
    )
}

/// How long an establishment takes through the service, in those of the direct way.
fn waits([direct, vip]: &[Way; 2]) -> f64 {
    vip.established(50).as_secs_f64() / direct.established(50).as_secs_f64()
}

fn serves([direct, vip]: &[Way; 2]) -> f64 {
    vip.per_second() / direct.per_second()
}
