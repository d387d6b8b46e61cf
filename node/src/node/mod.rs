//! `caracal node`: the daemon. Composition only: nothing here decides about routes.

pub(crate) mod announce;
pub(crate) mod answers;
mod ipam;
pub(crate) mod kernel;
pub(crate) mod membership;
pub(crate) mod plans;
mod problems;
mod report;
#[cfg(test)]
mod tests;
mod wiring;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use caracal_datastore::{PUBLIC_MODE, make_folder, put_file, read_text_file};

use crate::config::Config;
pub(crate) use ipam::tunnels::set as set_tunnel_address;

/// Runs the node until SIGTERM or SIGINT.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let config = read_config()?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    crate::files::allow_many();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Two workers carry a node of any size; more only cost memory and wake-ups.
        .worker_threads(2)
        .build()
        .context("starting the runtime")?;
    runtime.spawn(crate::allocator::give_back());
    runtime.block_on(wiring::run(config))
}

/// The environment, resolved.
pub(crate) fn read_config() -> anyhow::Result<Config> {
    let vars = crate::config::environment();
    let nodename_file = vars
        .get("CALICO_NODENAME_FILE")
        .map_or_else(|| lib_dir(&vars).join("nodename"), |file| file.into());
    let nodename = read_text_file(&nodename_file).ok();
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok(Config::from_env(&vars, nodename.as_deref(), &hostname)?)
}

fn lib_dir(vars: &BTreeMap<String, String>) -> &Path {
    Path::new(
        vars.get("CARACAL_LIB_DIR")
            .map_or(crate::config::LIB_DIR, String::as_str),
    )
}

/// Writes a file for the CNI plugin into the library directory, atomically: a reader sees the old
/// text or the new one.
fn leave_file(lib_dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    make_folder(lib_dir)?;
    put_file(&lib_dir.join(name), text.as_bytes(), PUBLIC_MODE)
}
