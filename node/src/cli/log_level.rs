//! `caracal log-level`: shows or changes what the running daemon logs.

use std::process::ExitCode;

use clap::Args;

use super::run_dir;
use crate::admin::{Request, ask};
use crate::args::OutputArgs;
use crate::telemetry::LogFilter;

/// `caracal log-level`.
#[derive(Debug, Args)]
pub(crate) struct LogLevelArgs {
    /// New levels, as `CARACAL_LOG` has them: `debug`, or `info,caracal_bgp=debug`. They hold until
    /// the daemon restarts. Without this and --reset, the levels in force are shown.
    levels: Option<String>,
    /// Return to the levels of the start.
    #[arg(long, conflicts_with = "levels")]
    reset: bool,
    /// Output format.
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: LogLevelArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    let put = |set| anyhow::Ok(ask(&run_dir(), &Request::LogFilter { set })?);
    let value = match (args.levels, args.reset) {
        (None, true) => {
            let now: LogFilter = serde_json::from_value(put(None)?)?;
            put(Some(now.at_start))?
        }
        (levels, _) => put(levels)?,
    };
    if output.is_data() {
        output.print(&value);
        return Ok(ExitCode::SUCCESS);
    }
    let LogFilter { filter, at_start } = serde_json::from_value(value)?;
    match filter == at_start {
        true => println!("{filter}"),
        false => println!("{filter} (at the start: {at_start})"),
    }
    Ok(ExitCode::SUCCESS)
}
