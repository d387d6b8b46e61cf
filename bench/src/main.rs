//! `caracal-bench run`: the same BGP work for Caracal, BIRD 2, FRR and GoBGP, one after the other
//! in turn, with checked results. `caracal-bench cni`: the CNI plugin beside Debian's, on a
//! node of a lab. Caracal is measured as the program that ships: `caracal speaker` with a file, the
//! `caracal` beside this program or the one that is named.
//!
//! It makes two network namespaces of its own and needs root for them. It must never touch the
//! namespace it was started in.
#![allow(
    clippy::cast_possible_truncation,
    reason = "counts of peers and prefixes of scenarios that are constants of this program"
)]
#![allow(unreachable_pub, reason = "a program has no public interface")]

mod agent;
mod aims;
mod churn;
mod cluster_lab;
mod cni;
mod dut;
mod facts;
mod generator;
mod idle;
mod kubernetes;
mod lab;
mod latency;
mod relay;
mod report;
mod run;
mod scenario;
mod services;
mod speakers;
mod stalls;
mod udp;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand, ValueEnum as _};

use lab::Lab;
use report::Runs;
use scenario::Scenario;
use speakers::Speaker;

/// The allocator of the program that ships, for what is measured in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
#[command(about = "Compares BGP speakers under the same work")]
struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Compares speakers.
    Run(RunArgs),
    /// The same, already inside the generator's namespace.
    #[command(hide = true)]
    Inside {
        /// The namespace of the speaker under test.
        #[arg(long)]
        dut: String,
        #[command(flatten)]
        args: RunArgs,
    },
    /// A relay with one table, in the present namespace: a lower bound for a speaker.
    #[command(hide = true)]
    Relay,
    /// Compares the CNI plugin with Debian's `bridge` and `host-local`.
    Cni(cni::CniArgs),
    /// Times the agent's plan and comparison in a simulated cluster.
    Plan(agent::plan::PlanArgs),
    /// Compares ways to install many routes.
    Install(agent::install::InstallArgs),
    /// Cost of the nodes of a cluster at rest.
    Idle(idle::IdleArgs),
    /// Times blocks from etcd to another node's kernel, beside BIRD 2.
    Latency(latency::LatencyArgs),
    /// What a node asks of Kubernetes' API.
    Kubernetes(kubernetes::KubernetesArgs),
    /// Cost of pods on other nodes for a node of a large cluster.
    Churn(churn::ChurnArgs),
    /// Cost of services in the kernel, beside iptables.
    Services(services::ServicesArgs),
    /// Times for which the owner of a large table hears nobody.
    Stalls(stalls::StallsArgs),
    /// The same, already inside the generator's namespace.
    #[command(hide = true)]
    StallsInside {
        /// The namespace of the speaker under test.
        #[arg(long)]
        dut: String,
        #[command(flatten)]
        args: stalls::StallsArgs,
    },
    /// Flannel's backend `udp`, beside a relay that takes packets one by one, and VXLAN.
    Udp(udp::UdpArgs),
    /// That relay, in the present namespace.
    #[command(hide = true)]
    OneByOne(udp::one_by_one::OneByOneArgs),
    /// One of them in the present namespace.
    #[command(hide = true)]
    InstallOne(agent::install::InstallOneArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct RunArgs {
    /// A-N, B-N, C, D, E-N, L-N, M-N; N as in 100k or 1M.
    #[arg(default_values = ["A-1M", "F-1M", "C", "B-100", "B-300", "B-1000", "D", "E-300", "L-100", "M-1M"])]
    scenarios: Vec<String>,
    /// Speakers; those that are not installed are left out. Without it: all that are bearable,
    /// GoBGP only with few routes, and the idle scenario, which takes a minute for each run, once
    /// for those that it is not judged by.
    #[arg(long, value_delimiter = ',')]
    speakers: Vec<Speaker>,
    /// Runs of each speaker; speakers take turns.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The `caracal` to measure; without it the one beside this program.
    #[arg(long)]
    caracal: Option<PathBuf>,
    /// Writes the tables into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Action::Run(args) => outside(&args),
        Action::Cni(args) => cni::run(&args),
        Action::Inside { dut, args } => inside(&dut, &args),
        Action::Relay => relay::serve(),
        Action::Plan(args) => agent::plan::run(&args),
        Action::Install(args) => agent::install::run(&args),
        Action::Idle(args) => idle::run(&args),
        Action::Latency(args) => latency::run(&args),
        Action::Kubernetes(args) => kubernetes::run(&args),
        Action::Churn(args) => churn::run(&args),
        Action::Services(args) => services::run(&args),
        Action::Stalls(args) => stalls::run(&args),
        Action::StallsInside { dut, args } => stalls::inside(&dut, &args),
        Action::Udp(args) => udp::run(&args),
        Action::OneByOne(args) => udp::one_by_one::serve(&args),
        Action::InstallOne(args) => agent::install::run_one(&args),
    }
}

/// Makes the namespaces and goes on inside.
fn outside(args: &RunArgs) -> Result<()> {
    for name in &args.scenarios {
        Scenario::new(name)?;
    }
    let lab = Lab::new()?;
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", &lab.generator(), "sh", "-c"])
        .arg("ulimit -n 16384; exec \"$0\" \"$@\"")
        .arg(std::env::current_exe()?)
        .args(["inside", "--dut", &lab.dut()]);
    if !args.speakers.is_empty() {
        let speakers: Vec<&str> = args.speakers.iter().map(|s| s.name()).collect();
        command.args(["--speakers", &speakers.join(",")]);
    }
    command.args(["--runs", &args.runs.to_string()]);
    if let Some(program) = &args.caracal {
        command.arg("--caracal").arg(program);
    }
    if let Some(file) = &args.write {
        command.arg("--write").arg(file);
    }
    let status = command.args(&args.scenarios).status()?;
    ensure!(status.success(), "the comparison failed ({status})");
    Ok(())
}

fn inside(dut: &str, args: &RunArgs) -> Result<()> {
    let mut speakers = Vec::new();
    let wanted = match &args.speakers[..] {
        [] => Speaker::value_variants(),
        some => some,
    };
    let mut versions = Vec::new();
    for speaker in wanted {
        match speaker.version() {
            Some(version) => {
                println!("{}: {version}", speaker.name());
                versions.push(version);
                speakers.push(*speaker);
            }
            None => println!("{}: not installed", speaker.name()),
        }
    }
    let dir = std::env::temp_dir().join(dut);
    std::fs::create_dir_all(&dir)?;
    let begun = facts::Begun::now()?;
    let result = compare(dut, args, &speakers, &dir);
    std::fs::remove_dir_all(&dir)?;
    let measured = result?;
    let Some(file) = &args.write else {
        println!("\n{}", aims::table(&measured, ""));
        return Ok(());
    };
    let aims = aims::table(&measured, &report::block(file, "aims")?);
    println!("\n{aims}");
    report::write(file, "aims", &aims)?;
    report::write(file, "facts", &begun.paragraph(&args.scenarios, &versions)?)
}

/// The runs of each speaker, by scenario.
type Measured = Vec<(String, Vec<Runs>)>;

fn compare(dut: &str, args: &RunArgs, speakers: &[Speaker], dir: &Path) -> Result<Measured> {
    let mut measured = Vec::new();
    for name in &args.scenarios {
        let mut scenario = Scenario::new(name)?;
        let runs = |speaker: Speaker| match &args.speakers[..] {
            [] => scenario.bearable(speaker).min(args.runs),
            _ => args.runs,
        };
        let mut all: Vec<(usize, Runs)> = speakers
            .iter()
            .map(|speaker| (runs(*speaker), Runs::new(*speaker)))
            .filter(|(wanted, _)| *wanted > 0)
            .collect();
        for round in 0..args.runs {
            for (_, runs) in all.iter_mut().filter(|(wanted, _)| *wanted > round) {
                match run::run(runs.speaker, &mut scenario, dut, dir, args.caracal.as_ref()) {
                    Ok(outcome) => runs.outcomes.push(outcome),
                    Err(error) => runs.failures.push(format!("{error:#}")),
                }
            }
        }
        let all: Vec<Runs> = all.into_iter().map(|(_, runs)| runs).collect();
        let table = report::table(&all);
        println!("\n### {}\n\n{table}", scenario.name);
        if let Some(file) = &args.write {
            report::write(file, &scenario.name, &table)?;
        }
        measured.push((scenario.name.clone(), all));
    }
    Ok(measured)
}
