//! `caracal speaker`: runs the standalone speaker, checks its file, makes it read the file again.

mod explain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use caracal_bgp::missing_next_hops;
use clap::{Args as ClapArgs, Subcommand};

use super::run_dir;
use crate::admin::{Request, ask};
use crate::args::{Output, OutputArgs};
use crate::config::group::AdminGroup;
use crate::exit::REFUSED;
use crate::speaker::AdminPlace;
use crate::speaker::change::ReloadChange;
use crate::speaker::file::{self, FileError};
use caracal_templates::Learned;

/// `caracal speaker`.
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SpeakerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SpeakerCommand>,
    /// Configuration file; docs/speaker.md describes its statements.
    #[arg(short, long, value_name = "FILE", required_unless_present = "check")]
    pub(crate) config: Option<PathBuf>,
    /// Check a configuration file and exit: 0 if it is valid, 5 if not.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub(crate) check: Option<PathBuf>,
    /// Beside --check: print what each protocol and filter came to.
    #[arg(long, requires = "check", conflicts_with = "config")]
    pub(crate) explain: bool,
    /// Serve /livez, /readyz and /metrics on this address, such as 127.0.0.1:9099.
    #[arg(long, env = "CARACAL_HTTP", value_name = "ADDRESS:PORT")]
    pub(crate) http: Option<std::net::SocketAddr>,
    /// Group, by name or number, that may use the admin socket as root may.
    #[arg(long, env = "CARACAL_ADMIN_GROUP", value_name = "GROUP", value_parser = AdminGroup::named)]
    pub(crate) admin_group: Option<AdminGroup>,
    /// Accept these ranges, which are refused by default: 0.0.0.0/8, 169.254.0.0/16, or both
    /// separated by a comma.
    #[arg(long, env = "CARACAL_ALLOW_MARTIANS", value_name = "RANGES")]
    pub(crate) allow_martians: Option<caracal_bgp::OpenRanges>,
}

/// `caracal speaker COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum SpeakerCommand {
    /// Reload the running speaker's configuration file. Only peers that differ are touched.
    Reload {
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
}

pub(crate) fn run(args: &SpeakerArgs) -> anyhow::Result<ExitCode> {
    match (&args.command, &args.check, &args.config) {
        (Some(SpeakerCommand::Reload { output }), ..) => reload(output.output),
        (None, Some(file), _) => check(file, args.explain),
        (None, None, Some(file)) => match file::read(file, None, &Learned::new()) {
            Err(FileError::Invalid(report)) => Ok(invalid(&report)),
            Err(error) => Err(error.into()),
            Ok(read) => crate::speaker::run(
                AdminPlace {
                    run_dir: run_dir(),
                    group: args.admin_group,
                },
                file,
                args.http,
                args.allow_martians.unwrap_or_default(),
                read,
            ),
        },
        (None, None, None) => anyhow::bail!("-c FILE or --check FILE is missing"),
    }
}

fn invalid(report: &str) -> ExitCode {
    eprint!("{report}");
    ExitCode::from(REFUSED)
}

fn check(file: &Path, explains: bool) -> anyhow::Result<ExitCode> {
    match file::read(file, None, &Learned::new()) {
        Ok((_, read)) => {
            for note in &read.notes {
                eprintln!("note: {note}");
            }
            let config = &read.speaker;
            for (peer, warning) in missing_next_hops(config) {
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
            if explains {
                print!("{}", explain::Explained(&read));
            }
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
