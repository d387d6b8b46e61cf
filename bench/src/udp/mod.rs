//! `caracal-bench udp`: flannel's backend `udp` between two nodes of a lab, beside a relay that
//! makes two system calls for each packet ([`one_by_one`]), and beside VXLAN, which the kernel does
//! alone. `iperf3` and `ping` measure, from a pod of one node to a pod of the other.

pub mod one_by_one;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use caracal_lab::{Lab, LabName, Topology, UpOptions, program_command, wait_until};
use serde_json::Value;

use crate::cluster_lab::process_of;
use crate::dut::{cpu_of, node_binary};
use crate::report;

const NODES: [&str; 2] = ["node1", "node2"];
/// Flannel's `Network` in the labs.
const NETWORK: &str = "10.5.0.0/16";
/// Of the Ethernet link less the headers of IPv4 and UDP, as flanneld has it.
const MTU: u32 = 1472;
/// TCP's payload of a packet: [`MTU`] less the headers of IPv4 and TCP, and its time stamps.
const SEGMENT: f64 = 1420.0;
const PATIENCE: Duration = Duration::from_secs(60);
/// Echo requests of a run, and the time between two of them in seconds.
const PINGS: (u32, f64) = (2000, 0.002);

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct UdpArgs {
    /// Runs of each way; they take turns.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds of `iperf3` in a run.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// The `caracal` to measure; by default the one beside this program.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Writes the table into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// What one run came to.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// TCP's payload that arrived, Mbit/s.
    throughput: u64,
    /// CPU time of both relays for a packet of the stream. `None` = the kernel does it.
    cpu: Option<Duration>,
    /// Round trip at rest, 99th percentile.
    rtt: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Caracal,
    OneByOne,
    Vxlan,
}

impl Way {
    const ALL: [Self; 3] = [Self::Caracal, Self::OneByOne, Self::Vxlan];

    const fn name(self) -> &'static str {
        match self {
            Self::Caracal => "udp: `caracal flannel`",
            Self::OneByOne => "udp: one read and one send a packet",
            Self::Vxlan => "vxlan: the kernel",
        }
    }
}

pub fn run(args: &UdpArgs) -> Result<()> {
    let binary = node_binary(args.binary.as_ref())?;
    let mut udp = up("bench-udp", "udp", &binary)?;
    let vxlan = up("bench-vxlan", "vxlan", &binary)?;
    let mut runs: [Vec<Run>; 3] = [const { Vec::new() }; 3];
    for turn in 0..args.runs {
        for (way, runs) in Way::ALL.into_iter().zip(&mut runs) {
            let run = one(way, args, &mut udp, &vxlan)?;
            println!("{}, run {}: {run:?}", way.name(), turn + 1);
            runs.push(run);
        }
    }
    let table = table(&runs);
    println!("\n### udp\n\n{table}");
    udp.down()?;
    vxlan.down()?;
    match &args.write {
        Some(file) => report::write(file, "udp", &table),
        None => Ok(()),
    }
}

fn up(name: &str, backend: &str, binary: &Path) -> Result<Lab> {
    let text = format!(
        "name: {name}
description: two machines with flannel's network
plugin: flannel
flannel: {{network: {NETWORK}, backend: {{type: {backend}}}}}
segments: [{{name: lan, cidr: 10.200.0.0/24}}]
nodes:
  - {{name: node1, segment: lan, address: 10.200.0.1, pods: 1}}
  - {{name: node2, segment: lan, address: 10.200.0.2, pods: 1}}
"
    );
    let _leftovers = caracal_lab::down(&LabName::new(name)?);
    let options = UpOptions::test(binary.to_owned(), name);
    Ok(Lab::up(
        Topology::parse(&text, name)?,
        &text,
        options,
        &|_| (),
    )?)
}

fn one(way: Way, args: &UdpArgs, udp: &mut Lab, vxlan: &Lab) -> Result<Run> {
    match way {
        Way::Caracal => {
            let relays = NODES.map(|node| process_of(udp, node));
            let [first, second] = relays;
            measure(udp, &[first?, second?], args)
        }
        Way::OneByOne => {
            for node in NODES {
                udp.kill9_node(node)?;
            }
            let relays = Relays::start(udp)?;
            let run = measure(udp, &relays.ids(), args);
            drop(relays);
            for node in NODES {
                udp.restart_node(node)?;
            }
            run
        }
        Way::Vxlan => measure(vxlan, &[], args),
    }
}

/// The other relay, on both nodes; ended when dropped.
struct Relays(Vec<Child>);

impl Relays {
    fn start(lab: &Lab) -> Result<Self> {
        let [one, two] = [pod_of(lab, 0)?.1, pod_of(lab, 1)?.1].map(subnet);
        let uplinks = ["10.200.0.1", "10.200.0.2"];
        let mut relays = Self(Vec::new());
        for (node, (own, other), to) in [
            (NODES[0], (one, two), uplinks[1]),
            (NODES[1], (two, one), uplinks[0]),
        ] {
            let netns = lab.netns(node)?;
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", &netns])
                .arg(std::env::current_exe()?);
            command.args(["one-by-one", &format!("{other}"), to]);
            relays.0.push(command.stdin(Stdio::null()).spawn()?);
            let device = one_by_one::DEVICE;
            let lines = [
                format!("addr add {own}/16 dev {device}"),
                format!("link set {device} up mtu {MTU}"),
            ];
            wait_until(PATIENCE, "the relay's device", || {
                caracal_lab::ip_batch(Some(&netns), &lines)
            })?;
        }
        Ok(relays)
    }

    fn ids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        for relay in &mut self.0 {
            let _ended = relay.kill();
            let _status = relay.wait();
        }
    }
}

/// The first address of a pod's subnet, a /24.
fn subnet(pod: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(pod.to_bits() & 0xffff_ff00)
}

/// Namespace and address of the pod of a node.
fn pod_of(lab: &Lab, node: usize) -> Result<(String, Ipv4Addr)> {
    let pod = lab.state().pods.get(node).context("a pod on each node")?;
    match pod.address {
        Some(IpAddr::V4(address)) => Ok((pod.netns.clone(), address)),
        other => bail!("{} has the address {other:?}", pod.label()),
    }
}

fn measure(lab: &Lab, relays: &[u32], args: &UdpArgs) -> Result<Run> {
    let (client, _) = pod_of(lab, 0)?;
    let (server, address) = pod_of(lab, 1)?;
    let address = address.to_string();
    wait_until(PATIENCE, "an answer to ping", || {
        let mut ping = program_command("ping")?;
        ping.args(["-n", "-q", "-c1", "-W1", &address]);
        caracal_lab::call_program(Some(&client), &mut ping, b"", PATIENCE)
    })?;
    let cpu = || {
        relays
            .iter()
            .map(|id| cpu_of(*id))
            .sum::<Result<Duration>>()
    };
    let before = cpu()?;
    let received = stream(&client, &server, &address, args.seconds)?;
    let spent = cpu()?.saturating_sub(before);
    let octets = received["bytes"].as_u64().context("bytes of iperf3")?;
    // Last, when whatever a new process still does is over.
    let rtt = round_trip(&client, &address)?;
    let of_a_packet = spent.div_f64((octets as f64 / SEGMENT).max(1.0));
    Ok(Run {
        throughput: octets * 8 / 1_000_000 / u64::from(args.seconds).max(1),
        cpu: (!relays.is_empty()).then_some(of_a_packet),
        rtt,
    })
}

/// What `iperf3` says of what its server received.
fn stream(client: &str, server: &str, address: &str, seconds: u32) -> Result<Value> {
    let mut listen = Command::new("ip");
    listen.args(["netns", "exec", server, "iperf3", "-s", "-1"]);
    let mut listen = listen
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run iperf3 (package iperf3)")?;
    let told = wait_until(PATIENCE, "iperf3 to listen", || -> Result<Value> {
        let mut send = program_command("iperf3")?;
        send.args(["-J", "-c", address, "-t", &seconds.to_string()]);
        let limit = Duration::from_secs(u64::from(seconds) + 30);
        let told = caracal_lab::call_program(Some(client), &mut send, b"", limit)?;
        let told: Value = serde_json::from_str(&told)?;
        // It says so, and ends with zero.
        ensure!(told["error"].is_null(), "{}", told["error"]);
        Ok(told)
    });
    let _ended = listen.kill();
    listen.wait()?;
    Ok(told?["end"]["sum_received"].take())
}

/// 99th percentile of the round trips at rest.
fn round_trip(client: &str, address: &str) -> Result<Duration> {
    let mut ping = program_command("ping")?;
    let (count, interval) = (PINGS.0.to_string(), PINGS.1.to_string());
    ping.args(["-n", "-c", &count, "-i", &interval, address]);
    let told = caracal_lab::call_program(Some(client), &mut ping, b"", PATIENCE)?;
    let times = told.lines().filter_map(|line| {
        let (_, time) = line.split_once("time=")?;
        time.split_whitespace().next()?.parse::<f64>().ok()
    });
    let mut times: Vec<Duration> = times.map(|ms| Duration::from_secs_f64(ms / 1e3)).collect();
    ensure!(!times.is_empty(), "ping: {told}");
    times.sort_unstable();
    Ok(times[(times.len() - 1) * 99 / 100])
}

/// Medians, and what they are of those of the other relay.
fn table(runs: &[Vec<Run>; 3]) -> String {
    let median = |of: &dyn Fn(&Run) -> Duration, runs: &[Run]| {
        report::median(runs.iter().map(of).collect()).unwrap_or_default()
    };
    let figures = |runs: &[Run]| {
        let rate = report::median(runs.iter().map(|run| run.throughput).collect());
        let cpu = median(&|run| run.cpu.unwrap_or_default(), runs);
        (
            rate.unwrap_or_default() as f64,
            cpu,
            median(&|run| run.rtt, runs),
        )
    };
    let base = figures(&runs[Way::OneByOne as usize]);
    let mut text = "| way | Mbit/s, median | of the second | CPU µs a packet, both nodes | of the second | RTT p99, µs | of the second |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_owned();
    for (way, runs) in Way::ALL.into_iter().zip(runs) {
        let (rate, cpu, rtt) = figures(runs);
        let cpu = match way {
            Way::Vxlan => "– | –".to_owned(),
            _ => format!(
                "{:.2} | {:.2}",
                cpu.as_secs_f64() * 1e6,
                cpu.as_secs_f64() / base.1.as_secs_f64()
            ),
        };
        text += &format!(
            "| {} | {rate:.0} | {:.2} | {cpu} | {} | {:.2} |\n",
            way.name(),
            rate / base.0,
            rtt.as_micros(),
            rtt.as_secs_f64() / base.2.as_secs_f64()
        );
    }
    text
}
