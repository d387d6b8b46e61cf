//! `caracal flannel`: flanneld's place on a node of a flannel network. Composition of the leases
//! (`caracal-flannel`) with the agent's writer.

pub(crate) mod args;
mod control;
mod daemon;
mod docker_opts;
mod facts;
mod forward;
mod health;
pub(crate) mod line;
mod masquerade;
mod migrate;
mod offload;
mod presence;
mod relay;
mod show;
mod stores;
mod uplink;

use std::process::ExitCode;

use crate::cli::in_this_namespace;
use line::{FlannelCommand, FlannelLine};

/// Runs until SIGTERM or SIGINT; lease, routes, device and `subnet.env` stay.
pub(crate) fn run(line: FlannelLine) -> anyhow::Result<ExitCode> {
    let args = line.args;
    match &line.command {
        Some(FlannelCommand::DockerOpts(args)) => return docker_opts::run(args),
        Some(FlannelCommand::Show(args)) => return in_this_namespace(show::run(args)),
        Some(FlannelCommand::Migrate { command }) => {
            return in_this_namespace(migrate::run(command));
        }
        None => {}
    }
    if args.version {
        eprintln!("{}", crate::cli::version::TEXT);
        return Ok(ExitCode::SUCCESS);
    }
    for note in args.check().map_err(anyhow::Error::msg)? {
        tracing::warn!("{note}");
    }
    in_this_namespace(daemon::serve(args))
}
