//! `caracal-bench latency`: from a block's confirmation in etcd by one node to the route in the
//! kernel of another, over two Caracal nodes, and over two BIRD 2 whose kernel protocols learn and
//! export as in Calico's templates (`learn`, `scan time 2`).
//!
//! The clock starts when etcd has answered the confirmation, and ends when the kernel of the other
//! node tells of the route. BIRD reads no datastore: an agent that does nothing but follow etcd and
//! write the blackhole route of the block, which BIRD then learns, stands in for Felix. Changes
//! come at fixed times, whether or not the last one has arrived.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use caracal_datastore::{Store, WatchEvent};
use caracal_lab::{Lab, LabName, Topology, UpOptions, run_in_netns};
use caracal_model::{
    AffinityState, Block, BlockAffinity, BlockOwner, Key, KeyRange, Prefix, Txn, TxnOutcome,
};
use futures_util::StreamExt;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::agent::minimal;
use crate::cluster_lab::store;
use crate::dut::node_binary;
use crate::report;

/// Blocks in one transaction while the stage is set.
const TOGETHER: usize = 50;
/// Limit for the last routes.
const PATIENCE: Duration = Duration::from_secs(60);
/// `RTNLGRP_IPV4_ROUTE`.
const ROUTES: u32 = 7;
/// `RTM_NEWROUTE`, `RTA_DST`.
const NEW_ROUTE: u16 = 24;
const DESTINATION: u16 = 1;
/// Node that announces, and node that learns.
const ANNOUNCES: &str = "node1";
const LEARNS: &str = "node2";

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct LatencyArgs {
    /// Blocks that are confirmed in each run; 1,000 at most.
    #[arg(long, default_value_t = 1000)]
    changes: u32,
    /// Milliseconds between two confirmations.
    #[arg(long, default_value_t = 20)]
    interval: u64,
    /// Runs of each; they take turns.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The `caracal` to measure; by default the one beside this program.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Writes the table into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Speaker that carries the block to the other node.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    Caracal,
    Bird2,
}

impl Carrier {
    const fn name(self) -> &'static str {
        match self {
            Self::Caracal => "caracal",
            Self::Bird2 => "bird2",
        }
    }

    fn topology(self) -> String {
        let kind = match self {
            Self::Caracal => "",
            Self::Bird2 => ", kind: bird2, asn: 64512",
        };
        format!(
            "name: latency\ndescription: two nodes\npool:\n  cidr: 10.244.0.0/16\n  blockSize: 26\n\
             segments:\n  - {{name: lan, cidr: 10.0.0.0/24}}\nnodes:\n\
             \x20 - {{name: {ANNOUNCES}, segment: lan, address: 10.0.0.11, pods: 0{kind}}}\n\
             \x20 - {{name: {LEARNS}, segment: lan, address: 10.0.0.12, pods: 0{kind}}}\n"
        )
    }
}

/// A node as Calico's templates configure it, in BIRD 2's words.
fn bird(own: &str, peer: &str) -> String {
    format!(
        "log stderr {{ error, fatal, bug }};\nrouter id {own};\n\
         protocol device {{ scan time 2; }}\n\
         protocol direct {{ ipv4; interface \"*\"; }}\n\
         protocol kernel {{ learn; persist; scan time 2; graceful restart; merge paths on; ipv4 {{ import all; export all; }}; }}\n\
         protocol bgp mesh {{ local {own} as 64512; neighbor {peer} as 64512; multihop; graceful restart;\n\
         ipv4 {{ import all; export where net ~ [ 10.244.0.0/16+ ]; next hop self; gateway recursive; }}; }}\n"
    )
}

/// Measures by turns and prints.
pub fn run(args: &LatencyArgs) -> Result<()> {
    ensure!(
        (1..=1000).contains(&args.changes),
        "--changes {}: the pool has blocks for 1 to 1000",
        args.changes
    );
    let binary = node_binary(args.binary.as_ref())?;
    let mut all = [(Carrier::Caracal, Vec::new()), (Carrier::Bird2, Vec::new())];
    for _ in 0..args.runs {
        for (carrier, times) in &mut all {
            times.extend(measure(*carrier, args, &binary)?);
        }
    }
    let table = table(&all, args.runs);
    println!("\n### latency\n\n{table}");
    match &args.write {
        Some(file) => report::write(file, "latency", &table),
        None => Ok(()),
    }
}

fn table(all: &[(Carrier, Vec<Duration>)], runs: usize) -> String {
    let mut text =
        "| nodes | runs | changes | p50 ms | p99 ms | most ms |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for (carrier, times) in all {
        let mut times = times.clone();
        times.sort_unstable();
        let at = |percent: usize| {
            let time = times.get((times.len() * percent / 100).min(times.len() - 1));
            time.map_or(0.0, |t| t.as_secs_f64() * 1e3)
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {runs} | {} | {:.2} | {:.2} | {:.1} |",
            carrier.name(),
            times.len(),
            at(50),
            at(99),
            at(100)
        );
    }
    text
}

/// One run on a cluster of its own.
fn measure(
    carrier: Carrier,
    args: &LatencyArgs,
    binary: &std::path::Path,
) -> Result<Vec<Duration>> {
    let name = LabName::new("bench-latency")?;
    let _leftovers = caracal_lab::down(&name);
    let text = carrier.topology();
    let mut options = UpOptions::test(binary, "bench-latency");
    if matches!(carrier, Carrier::Bird2) {
        options.speaker_config = Some(Box::new(|_, node| {
            let (own, peer) = match node.name.as_str() {
                ANNOUNCES => ("10.0.0.11", "10.0.0.12"),
                _ => ("10.0.0.12", "10.0.0.11"),
            };
            Some(bird(own, peer))
        }));
    }
    let lab = Lab::up(Topology::parse(&text, "latency")?, &text, options, &|_| {})?;
    lab.await_sessions(PATIENCE)?;
    let stop = AtomicBool::new(false);
    let watcher = run_in_netns(&lab.netns(LEARNS)?, routes_socket)??;
    let writer = match carrier {
        Carrier::Caracal => None,
        Carrier::Bird2 => Some(run_in_netns(&lab.netns(ANNOUNCES)?, minimal::open)??),
    };
    let etcd = lab.layout().etcd_netns();
    let times = std::thread::scope(|scope| {
        let stop = &stop;
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let etcd = etcd.as_str();
        let follower = writer.map(|socket| {
            scope.spawn(move || run_in_netns(etcd, || in_runtime(follow(socket, &ready, stop)))?)
        });
        let seen = scope.spawn(move || watch_routes(&watcher, stop));
        let confirmed = (|| {
            if follower.is_some() {
                is_ready.recv().context("the follower of etcd has ended")?;
            }
            let confirmed = run_in_netns(etcd, || in_runtime(confirm(args)))??;
            await_routes(&lab, confirmed.len())?;
            anyhow::Ok(confirmed)
        })();
        stop.store(true, Ordering::Relaxed);
        let seen = seen.join().expect("the watcher does not panic")?;
        if let Some(follower) = follower {
            follower.join().expect("the follower does not panic")?;
        }
        latencies(&confirmed?, &seen)
    })?;
    lab.down()?;
    Ok(times)
}

fn latencies(
    confirmed: &[(Prefix, Instant)],
    seen: &HashMap<Prefix, Instant>,
) -> Result<Vec<Duration>> {
    // The first one finds sessions and caches cold, or waits for them.
    let times = confirmed.iter().skip(1).map(|(block, at)| {
        let arrived = seen.get(block);
        arrived.map(|seen| seen.saturating_duration_since(*at))
    });
    times
        .collect::<Option<_>>()
        .context("a route was in the table and the watcher missed it")
}

/// Waits until the other kernel has all routes.
fn await_routes(lab: &Lab, wanted: usize) -> Result<()> {
    let netns = lab.netns(LEARNS)?;
    let end = Instant::now() + PATIENCE;
    loop {
        let routes = caracal_lab::kernel_routes(&netns, caracal_model::Family::Ipv4)?;
        let blocks = routes
            .iter()
            .filter(|route| route.destination().is_some_and(|d| d.len() == 26));
        let count = blocks.count();
        if count >= wanted {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{count} of {wanted} routes came");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn in_runtime<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(work)
}

fn block(n: u32) -> Prefix {
    let base = u32::from(Ipv4Addr::new(10, 244, 0, 0));
    Prefix::truncated(Ipv4Addr::from(base + n * 64).into(), 26)
}

fn affinity(block: Prefix) -> String {
    Key::Affinity(BlockOwner::Host(ANNOUNCES.into()), block).to_path()
}

/// Writes the blocks with pending affinities, then confirms one after the other.
async fn confirm(args: &LatencyArgs) -> Result<Vec<(Prefix, Instant)>> {
    let store = store()?;
    let owner = BlockOwner::Host(ANNOUNCES.into());
    let blocks: Vec<Prefix> = (0..args.changes).map(block).collect();
    let mut revisions = HashMap::new();
    for some in blocks.chunks(TOGETHER) {
        let mut txn = Txn::new();
        for cidr in some {
            let pending = BlockAffinity::new(AffinityState::Pending).to_json();
            let block = Block::new(*cidr, Some(&owner), 1).to_json();
            txn = txn.create(affinity(*cidr), pending);
            txn = txn.create(Key::Block(*cidr).to_path(), block);
        }
        let TxnOutcome::Committed(revision) = store.commit(&txn).await? else {
            bail!("blocks of {ANNOUNCES} were there already");
        };
        revisions.extend(some.iter().map(|cidr| (*cidr, revision)));
    }
    let value = BlockAffinity::new(AffinityState::Confirmed).to_json();
    let mut ticks = tokio::time::interval(Duration::from_millis(args.interval));
    let mut confirmed = Vec::new();
    for cidr in blocks {
        ticks.tick().await;
        let txn = Txn::new().update(affinity(cidr), revisions[&cidr], value.clone());
        let outcome = store.commit(&txn).await?;
        ensure!(
            matches!(outcome, TxnOutcome::Committed(_)),
            "somebody changed the affinity of {cidr}"
        );
        confirmed.push((cidr, Instant::now()));
    }
    Ok(confirmed)
}

/// Writes the blackhole route of each block that is confirmed.
async fn follow(
    socket: Socket,
    ready: &std::sync::mpsc::SyncSender<()>,
    stop: &AtomicBool,
) -> Result<()> {
    let store = store()?;
    let prefix = "/calico/ipam/v2/host/";
    let now = store
        .read(&[KeyRange::Key(prefix.to_owned())])
        .await?
        .revision;
    let mut watch = store.watch(prefix, now + 1).await?;
    ready.send(()).context("nobody waits")?;
    while !stop.load(Ordering::Relaxed) {
        let next = tokio::time::timeout(Duration::from_millis(100), watch.next());
        let Ok(event) = next.await else { continue };
        let WatchEvent::Changes(changes) = event.context("the watch has ended")?? else {
            continue;
        };
        for change in changes {
            let confirmed = change.value.as_deref().map(BlockAffinity::from_json);
            if let Some(Ok(value)) = confirmed
                && value.state == AffinityState::Confirmed
                && let Ok(Key::Affinity(_, cidr)) = Key::parse(&change.key)
            {
                minimal::blackhole(&socket, &cidr)?;
            }
        }
    }
    Ok(())
}

/// A socket that hears of routes.
fn routes_socket() -> Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind(&SocketAddr::new(0, 0))?;
    socket.add_membership(ROUTES)?;
    socket.set_non_blocking(true)?;
    Ok(socket)
}

/// Records the time at which the route to each /26 comes.
fn watch_routes(socket: &Socket, stop: &AtomicBool) -> Result<HashMap<Prefix, Instant>> {
    let mut seen = HashMap::new();
    let mut buffer = Vec::with_capacity(64 * 1024);
    while !stop.load(Ordering::Relaxed) {
        let readable = rustix::event::poll(
            &mut [rustix::event::PollFd::new(
                &socket,
                rustix::event::PollFlags::IN,
            )],
            Some(&rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            }),
        )?;
        if readable == 0 {
            continue;
        }
        buffer.clear();
        socket.recv(&mut buffer, 0)?;
        let now = Instant::now();
        for block in destinations(&buffer) {
            seen.entry(block).or_insert(now);
        }
    }
    Ok(seen)
}

/// The /26 of all `RTM_NEWROUTE` in a datagram.
fn destinations(mut datagram: &[u8]) -> Vec<Prefix> {
    let mut found = Vec::new();
    let half = |octets: &[u8], at: usize| {
        octets
            .get(at..at + 2)
            .map_or(0, |o| u16::from_ne_bytes([o[0], o[1]]))
    };
    while datagram.len() >= 28 {
        let length = u32::from_ne_bytes([datagram[0], datagram[1], datagram[2], datagram[3]]);
        let length = (length as usize).clamp(16, datagram.len());
        let message = &datagram[..length];
        if half(message, 4) == NEW_ROUTE && message.get(17) == Some(&26) {
            let mut attributes = &message[28..];
            while attributes.len() >= 4 {
                let size = usize::from(half(attributes, 0)).clamp(4, attributes.len());
                if half(attributes, 2) == DESTINATION && size == 8 {
                    let address: [u8; 4] = attributes[4..8].try_into().unwrap_or_default();
                    found.push(Prefix::truncated(IpAddr::from(address), 26));
                }
                attributes = &attributes[size.next_multiple_of(4).min(attributes.len())..];
            }
        }
        datagram = &datagram[length.next_multiple_of(4).min(datagram.len())..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_of_a_route_is_read() {
        let mut message = vec![44, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        message.extend([2, 26, 0, 0, 254, 80, 0, 1, 0, 0, 0, 0]);
        message.extend([8, 0, 15, 0, 254, 0, 0, 0, 8, 0, 1, 0, 10, 244, 1, 64]);
        let twice = [message.clone(), message].concat();
        assert_eq!(destinations(&twice), [block(5), block(5)]);
        assert!(destinations(&twice[..30]).is_empty());
    }
}
