//! `caracal uninstall --node`: takes away what the agent made in this machine's kernel, and with
//! `--cni` the plugin, and nothing else.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use caracal_agent::{Ownership, Uninstall};
use tokio::signal::unix::{SignalKind, signal};

use super::install_cni::Installed;
use super::ipam::refuse;
use super::run_dir;
use crate::admin::{Request, ask};
use crate::node::kernel::kube_proxy::forget_takeover;

/// `caracal uninstall`.
#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    /// Remove this node's routes, tunnel devices, neighbours, FDB entries and NAT rules.
    #[arg(long, required = true)]
    pub(crate) node: bool,
    /// Print what would be removed; remove nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Leave sysctls such as IP forwarding as they are.
    #[arg(long)]
    pub(crate) keep_sysctls: bool,
    /// Also remove what `install-cni` installed. The plugin and its credentials stay until its pods
    /// are gone, which it has to delete.
    #[arg(long)]
    pub(crate) cni: bool,
    /// Keep running until SIGTERM; remove the plugin when those pods are gone.
    #[arg(long, requires = "cni", conflicts_with = "dry_run")]
    pub(crate) stay: bool,
}

/// Pause between two looks whether the last pod is gone.
const LOOK: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &UninstallArgs) -> anyhow::Result<ExitCode> {
    if !args.dry_run && ask(&run_dir(), &Request::Status).is_ok() {
        return Ok(refuse(
            "a caracal node runs here and would put everything back; stop it first, or look with --dry-run",
        ));
    }
    // One thread: netlink sockets belong to the network namespace of the thread that opens them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let lib_dir = (!args.keep_sysctls).then(crate::config::lib_dir);
    let plugin = args.cni.then(|| Installed::from_env(args.dry_run));
    let plugin = plugin.transpose()?;
    runtime.block_on(async {
        let stays = match &plugin {
            Some(plugin) => remove_plugin(plugin).await?,
            None => false,
        };
        let code = uninstall(args.dry_run, lib_dir.as_deref()).await?;
        if let Some(plugin) = plugin.filter(|_| args.stay) {
            stay(&plugin, stays).await?;
        }
        Ok(code)
    })
}

/// Interfaces of pods that the plugin made; they have its alias.
async fn pods() -> anyhow::Result<usize> {
    let links = caracal_agent::read_links().await;
    let links = links.context("reading the interfaces")?;
    Ok(links.iter().filter(|link| link.alias.is_some()).count())
}

/// True when programs and credentials stay for pods that are there.
async fn remove_plugin(plugin: &Installed) -> anyhow::Result<bool> {
    let pods = pods().await?;
    let stays = plugin.remove(pods)?;
    if stays {
        eprintln!(
            "{pods} interfaces of pods are here; the plugin and its credentials stay, or nobody could delete them"
        );
    }
    Ok(stays)
}

/// Removes what stayed once the last pod is gone, and waits for the signal to end.
async fn stay(plugin: &Installed, mut stays: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = tokio::time::sleep(LOOK), if stays => {
                stays = plugin.remove(pods().await?)?;
            }
        }
    }
}

async fn uninstall(dry_run: bool, lib_dir: Option<&Path>) -> anyhow::Result<ExitCode> {
    let found = Uninstall::plan(&Ownership::default(), lib_dir).await?;
    let mut failures = 0;
    if dry_run {
        for removal in found.removals() {
            println!("would {removal}");
        }
    } else {
        for (removal, result) in found.remove().await? {
            match result {
                Ok(()) => println!("{removal}"),
                Err(reason) => {
                    failures += 1;
                    eprintln!("cannot {removal}: {reason}");
                }
            }
        }
    }
    if !dry_run && let Err(error) = forget_takeover(&crate::config::lib_dir()) {
        failures += 1;
        eprintln!("cannot forget that services were taken over: {error}");
    }
    // Left behind, it would make the datastore of the next cluster look like a fault.
    match crate::node::membership::remember::forget(&crate::config::lib_dir(), dry_run) {
        Ok(None) => {}
        Ok(Some(path)) if dry_run => println!("would delete {}", path.display()),
        Ok(Some(path)) => println!("delete {}", path.display()),
        Err(error) => {
            failures += 1;
            eprintln!("cannot delete the last snapshot: {error}");
        }
    }
    eprintln!(
        "not changed: routes and interfaces of workloads that the CNI plugin made, and the node's data in the datastore"
    );
    Ok(if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
