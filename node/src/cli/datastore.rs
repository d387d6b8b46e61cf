//! `caracal datastore`: orders about the datastore as a whole.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::run_dir;
use crate::admin::{Request, ask};
use crate::args::OutputArgs;

/// `caracal datastore COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum DatastoreCommand {
    /// Has this node follow what the datastore holds although it looks like a fault: emptied,
    /// another cluster's, or restored from a backup that lacks something. Routes that are not in it
    /// are deleted.
    Accept {
        /// Output form.
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) fn run(command: DatastoreCommand) -> anyhow::Result<ExitCode> {
    let DatastoreCommand::Accept { output } = command;
    let answer = ask(&run_dir(), &Request::DatastoreAccept)?;
    if output.output.is_data() {
        output.output.print(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    match &answer["accepted"] {
        Value::String(fault) => println!("Accepted, and followed from now on: {fault}"),
        _ => println!("Nothing to accept: this node follows what the datastore holds"),
    }
    Ok(ExitCode::SUCCESS)
}
