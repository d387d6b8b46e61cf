//! `caracal flannel`: flanneld's place on a node of a flannel network. Composition of the leases
//! (`caracal-flannel`) with the agent's writer.

pub(crate) mod args;
mod control;
mod daemon;
mod docker_opts;
mod forward;
mod health;
mod masquerade;
mod relay;
mod stores;
mod uplink;

use std::process::ExitCode;

use anyhow::Context;

use args::{FlannelArgs, FlannelCommand};

/// Runs until SIGTERM or SIGINT; lease, routes, device and `subnet.env` stay.
pub(crate) fn run(args: FlannelArgs) -> anyhow::Result<ExitCode> {
    if let Some(FlannelCommand::DockerOpts(args)) = &args.command {
        return docker_opts::run(args);
    }
    if args.version {
        eprintln!("{}", crate::cli::version::TEXT);
        return Ok(ExitCode::SUCCESS);
    }
    for note in args.check().map_err(anyhow::Error::msg)? {
        tracing::warn!("{note}");
    }
    // One thread: netlink sockets belong to the namespace of the thread that opens them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(daemon::serve(args))
}
