//! `caracal-bench install`: filling an empty table with routes to one next hop, by the agent's
//! writer, by the whole agent, by BIRD 2's kernel protocol, by a minimal program that batches
//! netlink messages, and by `ip -batch`; the first two and the minimal program with a next-hop
//! object, too.
//!
//! The input of a method (ops, routes of BGP, BIRD's configuration, the batch file) is ready before
//! the clock runs.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use caracal_agent::{
    FIRST_OBJECT, ForwardingTarget, Learned, NextHop, NextHopObject, Op, Reconciler,
    ReconcilerOptions, Route, Settings, SweepPrecondition, apply_ops,
};
use caracal_model::{Prefix, SharedMap, Snapshot};
use tokio::sync::watch;

pub use super::methods::Method;
use super::methods::{InstallCost, MethodRuns};
use super::minimal::{self, Work};
use super::ratios;
use crate::dut::cpu_of;
use crate::lab::{LINK, Lab};
use crate::report;
use caracal_hot_paths::routes::DUT;

/// Name of the device that all routes leave by.
const DEVICE: &str = "dut";
/// Protocol of the routes.
const PROTOCOL: u8 = 80;
/// A method that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct InstallArgs {
    /// Sizes of the table.
    #[arg(long, value_delimiter = ',', default_values_t = [100_000, 500_000])]
    routes: Vec<u32>,
    /// Runs of each method; methods take turns.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Methods to compare.
    #[arg(long, value_delimiter = ',', default_values = ["minimal", "caracal", "agent", "bird2", "ip-batch", "minimal-objects", "caracal-objects", "agent-objects"])]
    methods: Vec<Method>,
    /// Number of routes that share a gateway, and then an object; 0 = all. For the minimal program
    /// and the agent's writer.
    #[arg(long, default_value_t = 0)]
    share: u32,
    /// Writes the tables into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// One method in the present namespace.
#[derive(Clone, Debug, clap::Args)]
pub struct InstallOneArgs {
    method: Method,
    routes: u32,
    share: u32,
    /// For files and sockets.
    dir: PathBuf,
}

/// Measures all methods by turns and prints.
pub fn run(args: &InstallArgs) -> Result<()> {
    let dir = std::env::temp_dir().join(format!("caracal-install-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let before = load()?;
    let sizes = args.routes.iter();
    let all: Result<Vec<(u32, Vec<MethodRuns>)>> =
        sizes.map(|n| Ok((*n, compare(args, *n, &dir)?))).collect();
    std::fs::remove_dir_all(&dir)?;
    let mut text = ratios::table(&all?);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\nLoad of the machine (`/proc/loadavg`): {before} before, {} after.",
        load()?
    );
    publish(args, "install-ratios", &text)
}

/// The load averages of one and of five minutes.
fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    Ok(words.join(" and "))
}

fn compare(args: &InstallArgs, routes: u32, dir: &Path) -> Result<Vec<MethodRuns>> {
    let mut all: Vec<MethodRuns> = args.methods.iter().map(|m| (*m, Vec::new())).collect();
    for _ in 0..args.runs {
        for (method, costs) in &mut all {
            costs.push(one_in_a_namespace(*method, routes, args.share, dir)?);
        }
    }
    publish(args, &format!("install-{routes}"), &table(&all))?;
    Ok(all)
}

fn publish(args: &InstallArgs, name: &str, table: &str) -> Result<()> {
    println!("\n### {name}\n\n{table}");
    match &args.write {
        Some(file) => report::write(file, name, table),
        None => Ok(()),
    }
}

fn one_in_a_namespace(method: Method, routes: u32, share: u32, dir: &Path) -> Result<InstallCost> {
    let lab = Lab::new()?;
    let output = Command::new("ip")
        .args(["netns", "exec", &lab.dut()])
        .arg(std::env::current_exe()?)
        .args(["install-one", &method.name()])
        .args([routes.to_string(), share.to_string()])
        .arg(dir)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{} failed", method.name());
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(wall)), Some(Ok(cpu))) => Ok(InstallCost {
            wall: Duration::from_nanos(wall),
            cpu: Duration::from_nanos(cpu),
        }),
        _ => bail!("{} printed {text:?}", method.name()),
    }
}

fn table(all: &[MethodRuns]) -> String {
    let mut text = "| method | runs | wall s | CPU s |\n|---|---|---|---|\n".to_owned();
    for (method, costs) in all {
        let times: Vec<_> = costs.iter().map(|c| (c.wall, c.cpu)).collect();
        let (wall, cpu) = report::cells(&times);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {wall} | {cpu} |",
            method.name(),
            costs.len()
        );
    }
    text
}

/// Measures one method here and prints nanoseconds: wall, CPU.
pub fn run_one(args: &InstallOneArgs) -> Result<()> {
    let (routes, share) = (args.routes, args.share);
    let whole = |cost: Result<InstallCost>| match share {
        0 => cost,
        _ => bail!("{} has one gateway for all routes", args.method.name()),
    };
    let cost = match args.method {
        Method::Minimal => minimal(routes, share, false),
        Method::MinimalObjects => minimal(routes, share, true),
        Method::Caracal => caracal(routes, share, false),
        Method::CaracalObjects => caracal(routes, share, true),
        Method::Agent => whole(agent(routes, false)),
        Method::AgentObjects => whole(agent(routes, true)),
        Method::Bird2 => whole(bird(routes, &args.dir)),
        Method::IpBatch => whole(ip_batch(routes, &args.dir)),
    }?;
    let there = count()?;
    ensure!(
        there >= args.routes,
        "{} prefixes in the kernel, of {}",
        there,
        args.routes
    );
    println!("{} {}", cost.wall.as_nanos(), cost.cpu.as_nanos());
    Ok(())
}

fn prefixes(count: u32) -> Vec<Prefix> {
    let first = u32::from(Ipv4Addr::new(11, 0, 0, 0));
    (0..count)
        .map(|n| Prefix::v4((first + n * 64).into(), 26))
        .collect()
}

fn index() -> Result<u32> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{DEVICE}/ifindex"))?;
    text.trim().parse().context("no interface index")
}

/// Prefixes in the main table, counted by the kernel.
fn count() -> Result<u32> {
    let text = std::fs::read_to_string("/proc/self/net/fib_triestat")?;
    let lines = text.lines().map(str::trim);
    let numbers = lines.filter_map(|l| l.strip_prefix("Prefixes:")?.trim().parse::<u32>().ok());
    numbers.max().context("no table in /proc/net/fib_triestat")
}

/// Work of this process.
fn own(work: impl FnOnce() -> Result<()>) -> Result<InstallCost> {
    let me = std::process::id();
    let (start, cpu) = (Instant::now(), cpu_of(me)?);
    work()?;
    Ok(InstallCost {
        wall: start.elapsed(),
        cpu: cpu_of(me)?.saturating_sub(cpu),
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

/// The gateway of a route: the first ones of all have the same one, and so on.
fn gateway(number: u32, share: u32) -> Ipv4Addr {
    // Beyond the prefixes and the link itself; the routes say "onlink".
    let first = u32::from(Ipv4Addr::new(100, 64, 0, 0));
    number
        .checked_div(share)
        .map_or(LINK, |node| (first + node).into())
}

fn minimal(routes: u32, share: u32, objects: bool) -> Result<InstallCost> {
    let gateways = (0..routes).map(|n| gateway(n, share));
    let work = Work {
        routes: prefixes(routes).into_iter().zip(gateways).collect(),
        device: index()?,
        objects,
    };
    own(|| minimal::install(&work))
}

fn caracal(routes: u32, share: u32, objects: bool) -> Result<InstallCost> {
    let mut ops = Vec::new();
    let mut id = FIRST_OBJECT;
    for (number, prefix) in (0..).zip(prefixes(routes)) {
        let hop = NextHop {
            gateway: Some(gateway(number, share).into()),
            link: DEVICE.into(),
            onlink: true,
            extra_weight: 0,
        };
        if objects && (number == 0 || number.checked_rem(share) == Some(0)) {
            id += 1;
            ops.push(Op::AddObject(NextHopObject {
                id,
                protocol: PROTOCOL,
                hop: hop.clone(),
            }));
        }
        ops.push(Op::AddRoute(Route {
            prefix,
            metric: 0,
            protocol: PROTOCOL,
            target: match objects {
                true => ForwardingTarget::Object(id, hop),
                false => ForwardingTarget::Via(vec![hop]),
            },
            mtu: None,
            source: None,
        }));
    }
    let runtime = runtime()?;
    own(|| {
        let done = runtime.block_on(apply_ops(ops))?;
        let refused = done
            .iter()
            .find_map(|(op, result)| Some((op, result.as_ref().err()?)));
        if let Some((op, reason)) = refused {
            bail!("{op}: {reason}");
        }
        Ok(())
    })
}

fn agent(routes: u32, objects: bool) -> Result<InstallCost> {
    let mut data = Snapshot::default();
    for (name, address) in [("a", DUT), ("b", LINK)] {
        let path = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
        let value = format!(
            r#"{{"metadata":{{"name":"{name}"}},"spec":{{"bgp":{{"ipv4Address":"{address}/20"}}}}}}"#
        );
        data.apply(&path, Some(value.as_bytes()), 1);
    }
    let (_snapshot, snapshot) = watch::channel(Arc::new(data));
    let (_precondition, precondition) = watch::channel(SweepPrecondition::met());
    let (feed, receiver) = watch::channel(SharedMap::default());
    let runtime = runtime()?;
    let options = ReconcilerOptions {
        settings: Settings {
            objects,
            ..Settings::default()
        },
        ..ReconcilerOptions::new("a".into())
    };
    let handle =
        runtime.block_on(async { Reconciler::spawn(options, snapshot, precondition, receiver) })?;
    let mut status = handle.status();
    let settled = runtime.block_on(async {
        let first = status.wait_for(|s| s.passes > 0 && s.kernel.phase == "synced");
        Ok::<_, anyhow::Error>(tokio::time::timeout(LIMIT, first).await??.applied)
    })?;
    let path = Learned::internal(LINK.into()).over(&handle.underlay().borrow().underlay);
    let learned: SharedMap<Prefix, Learned> = prefixes(routes)
        .into_iter()
        .map(|prefix| (prefix, path.clone()))
        .collect();
    own(|| {
        feed.send_replace(learned);
        let target = settled + u64::from(routes);
        runtime.block_on(async {
            let done = status.wait_for(|s| s.applied >= target);
            tokio::time::timeout(LIMIT, done).await??;
            Ok(())
        })
    })
}

fn bird(routes: u32, dir: &Path) -> Result<InstallCost> {
    let (file, socket) = (dir.join("bird.conf"), dir.join("bird.ctl"));
    let mut text = format!(
        "log stderr {{ error, fatal, bug }};\nrouter id {DUT};\nprotocol device {{}}\n\
         protocol kernel {{ scan time 3600; ipv4 {{ import none; export all; }}; }}\n\
         protocol static all_routes {{ disabled; ipv4;\n"
    );
    for prefix in prefixes(routes) {
        let _ = writeln!(text, "route {prefix} via {LINK};");
    }
    text.push_str("}\n");
    std::fs::write(&file, text)?;
    let mut child = Command::new("bird")
        .args(["-f", "-c"])
        .arg(&file)
        .arg("-s")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start bird (package bird2)")?;
    let cost = enabled(child.id(), &socket, routes);
    // It may have ended already.
    let _ = child.kill();
    child.wait()?;
    cost
}

/// From `enable` until the kernel holds them all.
fn enabled(id: u32, socket: &Path, routes: u32) -> Result<InstallCost> {
    let client = |order: &[&str]| {
        let mut command = Command::new("birdc");
        command.arg("-s").arg(socket).args(order).output()
    };
    until("BIRD answers", || {
        let output = client(&["show", "status"])?;
        Ok(String::from_utf8_lossy(&output.stdout).contains("up and running"))
    })?;
    let (start, cpu) = (Instant::now(), cpu_of(id)?);
    let output = client(&["enable", "all_routes"])?;
    ensure!(output.status.success(), "birdc: {output:?}");
    until("all routes are there", || Ok(count()? >= routes))?;
    Ok(InstallCost {
        wall: start.elapsed(),
        cpu: cpu_of(id)?.saturating_sub(cpu),
    })
}

fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !holds()? {
        ensure!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn ip_batch(routes: u32, dir: &Path) -> Result<InstallCost> {
    let file = dir.join("routes.batch");
    let mut text = String::new();
    for prefix in prefixes(routes) {
        let _ = writeln!(
            text,
            "route add {prefix} via {LINK} dev {DEVICE} proto {PROTOCOL} onlink"
        );
    }
    std::fs::write(&file, text)?;
    let (start, before) = (Instant::now(), children()?);
    let status = Command::new("ip").arg("-batch").arg(&file).status()?;
    ensure!(status.success(), "ip -batch: {status}");
    Ok(InstallCost {
        wall: start.elapsed(),
        cpu: children()?.saturating_sub(before),
    })
}

/// CPU time of children that have ended, in the kernel's ticks of 10 ms (`cutime` and `cstime` of
/// proc(5)).
fn children() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = text.rsplit_once(')').context("no /proc/self/stat")?;
    let ticks = fields.split_whitespace().skip(13).take(2);
    let ticks: u64 = ticks.filter_map(|n| n.parse::<u64>().ok()).sum();
    Ok(Duration::from_millis(ticks * 10))
}
