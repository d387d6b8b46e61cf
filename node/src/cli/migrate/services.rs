//! `caracal migrate services`: kube-proxy's work on one node to Caracal, and back. The one who
//! comes has its rules complete before the rules of the one who goes are taken away: conntrack goes
//! on with every connection as long as one of them translates.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use caracal_agent::{ForeignRules, RuleOwner};
use clap::Subcommand;
use serde_json::Value;

use crate::admin::{Request, ask};
use crate::cli::{in_this_namespace, run_dir};
use crate::exit::REFUSED;

/// Longest wait for the node's process.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// `caracal migrate services COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum MigrateServicesCommand {
    /// Show kube-proxy's rules on this node, and what would be done.
    Plan,
    /// Translate Services here, and remove kube-proxy's rules. Exit code 5 while kube-proxy runs:
    /// stop it, and repeat this.
    Apply,
    /// Return Services to kube-proxy. Exit code 5 if its rules are missing.
    Undo,
}

pub(super) fn run(command: &MigrateServicesCommand) -> anyhow::Result<ExitCode> {
    in_this_namespace(async {
        let rules = ForeignRules::find(RuleOwner::KubeProxy).await?;
        match command {
            MigrateServicesCommand::Plan => plan(&rules),
            MigrateServicesCommand::Apply => apply(&rules).await,
            MigrateServicesCommand::Undo => undo(&rules).await,
        }
    })
}

fn plan(rules: &ForeignRules) -> anyhow::Result<ExitCode> {
    println!("rules of kube-proxy: {rules}");
    match running() {
        Some(process) => println!("kube-proxy runs (process {process})"),
        None => println!("no kube-proxy is seen to run"),
    }
    let translated = ask(&run_dir(), &Request::Services)?;
    match translated["rows"].as_array() {
        Some(rows) => println!("Caracal translates {} address(es)", rows.len()),
        None => println!(
            "Caracal does not translate: {}",
            translated.as_str().unwrap_or("it is starting")
        ),
    }
    match rules.is_empty() {
        true => println!("nothing is to be taken over"),
        false => println!(
            "apply: Caracal translates, ahead of kube-proxy; you stop kube-proxy on this node; apply again takes its rules away"
        ),
    }
    if rules.has_ipvs() {
        println!("{IPVS}");
    }
    Ok(ExitCode::SUCCESS)
}

const IPVS: &str = "rules of ipvs stay: its connections live in it and would be cut. When none is left, with \
                    kube-proxy stopped: ipvsadm --clear; ip link delete kube-ipvs0";

async fn apply(rules: &ForeignRules) -> anyhow::Result<ExitCode> {
    ask(&run_dir(), &Request::TakeServicesOver { over: true })?;
    // Before that nobody else would translate.
    let is_written = |v: &Value| v["revision"].as_i64() > Some(0) && v["failing"] == false;
    let translated = wait(is_written).await?;
    let rows = translated["rows"].as_array().map_or(0, Vec::len);
    println!("Caracal translates {rows} address(es) on this node");
    if let Some(process) = running() {
        eprintln!(
            "kube-proxy runs (process {process}) and would write its rules again: stop it on this node, then call this again"
        );
        return Ok(ExitCode::from(REFUSED));
    }
    if rules.has_ipvs() {
        eprintln!("{IPVS}");
    }
    rules.remove().await?;
    println!("rules of kube-proxy that were there: {rules}");
    let left = ForeignRules::find(RuleOwner::KubeProxy).await?;
    println!("rules of kube-proxy that are left: {left}");
    Ok(ExitCode::SUCCESS)
}

async fn undo(rules: &ForeignRules) -> anyhow::Result<ExitCode> {
    if rules.is_empty() {
        eprintln!("kube-proxy has no rules on this node: start it first, and call this again");
        return Ok(ExitCode::from(REFUSED));
    }
    ask(&run_dir(), &Request::TakeServicesOver { over: false })?;
    wait(Value::is_string).await?;
    println!("kube-proxy translates on this node: {rules}");
    Ok(ExitCode::SUCCESS)
}

/// Waits until the node says of services what is wanted.
async fn wait(is_wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
    let started = Instant::now();
    loop {
        let translated = ask(&run_dir(), &Request::Services)?;
        if is_wanted(&translated) {
            return Ok(translated);
        }
        anyhow::ensure!(
            started.elapsed() < PATIENCE,
            "the node has not followed after {} s; see `caracal status`",
            PATIENCE.as_secs()
        );
        tokio::time::sleep(LOOK).await;
    }
}

/// The process of a kube-proxy on this machine, as far as processes are seen from here.
fn running() -> Option<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.find(|process: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
        name.is_ok_and(|name| name.trim() == "kube-proxy")
    })
}
