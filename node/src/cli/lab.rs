//! `caracal lab`: clusters in network namespaces. The work is the `lab` crate's; this is its
//! command line.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;
use caracal_lab::{
    CONVERGE, DownCommand, ExecCommand, FaultCommand, LabFault, STATUS_PINGS, StatusCommand,
    TableForm, UpCommand, lab_demo, lab_down, lab_exec, lab_fault, lab_list, lab_status, lab_up,
};

use super::output::in_form;
use crate::args::{LabCommand, LabTarget, Output};
use crate::out::Printer;

pub(crate) fn run(command: LabCommand) -> anyhow::Result<ExitCode> {
    let mut stdout = Printer;
    let code = match command {
        LabCommand::Up { file, name, keep } => lab_up(&up(file, name, keep)?, &mut stdout)?,
        LabCommand::Status { name, output } => {
            let output = output.output;
            let status = StatusCommand {
                lab: name,
                json: output.is_data(),
                pings: STATUS_PINGS,
                tables: TableForm {
                    columns: output.columns(),
                    wide: output == Output::Wide,
                },
            };
            in_form(output, |out| Ok(lab_status(&status, out)?))?
        }
        LabCommand::Exec {
            target,
            command,
            lab,
        } => {
            let command = command.into_iter().map(OsString::from).collect();
            lab_exec(&ExecCommand {
                lab,
                target,
                command,
            })?
        }
        LabCommand::Kill(target) => fault(target, LabFault::Kill)?,
        LabCommand::Stop(target) => fault(target, LabFault::Stop)?,
        LabCommand::Start(target) => fault(target, LabFault::Start)?,
        LabCommand::Cut(target) => fault(target, LabFault::Cut)?,
        LabCommand::Heal(target) => fault(target, LabFault::Heal)?,
        LabCommand::Down { name, all } => lab_down(&DownCommand { lab: name, all }, &mut stdout)?,
        LabCommand::List => lab_list(&mut stdout)?,
        // A name of its own, so that a demo never meets a lab that somebody works in.
        LabCommand::Demo { file, name } => lab_demo(&up(file, Some(name), false)?, &mut stdout)?,
    };
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn fault(LabTarget { target, lab }: LabTarget, fault: LabFault) -> anyhow::Result<i32> {
    let command = FaultCommand { lab, target, fault };
    Ok(lab_fault(&command, &mut Printer)?)
}

fn up(file: std::path::PathBuf, name: Option<String>, keep: bool) -> anyhow::Result<UpCommand> {
    let binary = std::env::current_exe().context("finding this program's own file")?;
    Ok(UpCommand {
        file,
        name,
        binary,
        deadline: CONVERGE,
        keep,
        tables: TableForm {
            columns: Output::Table.columns(),
            wide: false,
        },
    })
}
