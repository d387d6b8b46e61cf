//! `caracal speaker`: runs the standalone speaker, checks its file, makes it read the file again.

use std::path::Path;
use std::process::ExitCode;

use caracal_bgp::missing_next_hops;

use super::run_dir;
use crate::admin::{Request, ask};
use crate::args::{Output, SpeakerArgs, SpeakerCommand};
use crate::exit::REFUSED;
use crate::speaker::AdminPlace;
use crate::speaker::change::ReloadChange;
use crate::speaker::file::{self, FileError};

pub(crate) fn run(args: &SpeakerArgs) -> anyhow::Result<ExitCode> {
    match (&args.command, &args.check, &args.config) {
        (Some(SpeakerCommand::Reload { output }), ..) => reload(output.output),
        (None, Some(file), _) => check(file),
        (None, None, Some(file)) => match file::read(file) {
            Err(FileError::Invalid(report)) => Ok(invalid(&report)),
            Err(error) => Err(error.into()),
            Ok(config) => crate::speaker::run(
                AdminPlace {
                    run_dir: run_dir(),
                    group: args.admin_group,
                },
                file,
                args.http,
                args.allow_martians.unwrap_or_default(),
                config,
            ),
        },
        (None, None, None) => anyhow::bail!("-c FILE or --check FILE is missing"),
    }
}

fn invalid(report: &str) -> ExitCode {
    eprint!("{report}");
    ExitCode::from(REFUSED)
}

fn check(file: &Path) -> anyhow::Result<ExitCode> {
    match file::read(file) {
        Ok(read) => {
            for note in &read.notes {
                eprintln!("note: {note}");
            }
            let config = read.speaker;
            for (peer, warning) in missing_next_hops(&config) {
                eprintln!("warning: peer {peer}: {warning}");
            }
            println!(
                "{}: AS {}, router id {}, {} peers, {} routes, {} filters, {} kernel tables",
                file.display(),
                config.local_as,
                config.router_id,
                config.peers.len(),
                config.originate.len(),
                config.filters.len(),
                read.kernel.len()
            );
            Ok(ExitCode::SUCCESS)
        }
        Err(FileError::Invalid(report)) => Ok(invalid(&report)),
        Err(error) => Err(error.into()),
    }
}

fn reload(output: Output) -> anyhow::Result<ExitCode> {
    let value = ask(&run_dir(), &Request::Reload)?;
    match output {
        Output::Json | Output::Yaml => output.print(&value),
        Output::Table | Output::Wide => {
            print!("{}", serde_json::from_value::<ReloadChange>(value)?)
        }
    }
    Ok(ExitCode::SUCCESS)
}
