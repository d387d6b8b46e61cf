//! `caracal lab`: clusters in network namespaces. The work is the `lab` crate's; this is its command line.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use caracal_lab::commands::{
    self, CONVERGE, DownCommand, ExecCommand, STATUS_PINGS, StatusCommand, UpCommand,
};

use super::output::in_form;
use crate::args::{LabCommand, Output};

pub(super) fn run(command: LabCommand) -> anyhow::Result<ExitCode> {
    let mut stdout = std::io::stdout();
    let code = match command {
        LabCommand::Up { file, name, keep } => commands::up(&up(file, name, keep)?, &mut stdout)?,
        LabCommand::Status { name, output } => {
            let output = output.output;
            let status = StatusCommand {
                lab: name,
                json: output.is_data(),
                pings: STATUS_PINGS,
                columns: output.columns(),
            };
            in_form(output, |out| Ok(commands::status(&status, out)?))?
        }
        LabCommand::Exec {
            target,
            command,
            lab,
        } => {
            let command = command.into_iter().map(OsString::from).collect();
            commands::exec(&ExecCommand {
                lab,
                target,
                command,
            })?
        }
        LabCommand::Down { name, all } => {
            commands::down(&DownCommand { lab: name, all }, &mut stdout)?
        }
        LabCommand::List => commands::list(&mut stdout)?,
        // A name of its own, so that a demo never meets a lab that somebody works in.
        LabCommand::Demo { file } => {
            commands::demo(&up(file, Some("demo".to_owned()), false)?, &mut stdout)?
        }
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn up(file: std::path::PathBuf, name: Option<String>, keep: bool) -> anyhow::Result<Up> {
    let binary = std::env::current_exe().context("finding this program's own file")?;
    Ok(UpCommand {
        file,
        name,
        binary,
        deadline: CONVERGE,
        keep,
        columns: Output::Table.columns(),
    })
}
