//! `caracal uninstall --node`: takes away what the agent made in this machine's kernel, and nothing
//! else.

use std::path::Path;
use std::process::ExitCode;

use caracal_agent::{Ownership, Uninstall};

use super::ipam::refuse;
use super::run_dir;
use crate::admin::{Request, ask};
use crate::args::UninstallArgs;
use crate::node::kernel::kube_proxy::forget_takeover;

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
    runtime.block_on(uninstall(args.dry_run, lib_dir.as_deref()))
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
