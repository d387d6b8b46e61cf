//! The one binary: `caracal SUBCOMMAND`, or a CNI plugin by the name it is called under.
//! Composition only.

#[macro_use]
mod out;

mod admin;
mod allocator;
mod args;
mod cli;
mod cluster_nodes;
mod cluster_status;
mod command;
mod completion;
mod config;
mod console;
mod detect;
mod exit;
mod files;
mod flannel;
mod http;
mod kernel_answer;
mod metrics;
mod mode_check;
mod neighbours;
mod node;
mod others;
mod peer_problems;
mod register;
mod service_list;
mod services_check;
mod signals;
mod speaker;
mod stored;
mod telemetry;
mod tls;

use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    allocator::configure();
    let name = std::env::args_os().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|n| n.to_str()) {
        Some("caracal-cni" | "calico") => {
            introduce("cni");
            return caracal_cni::main_cni();
        }
        Some("caracal-ipam" | "calico-ipam") => {
            introduce("cni");
            return caracal_cni::main_ipam();
        }
        Some("caracal-flannel" | "flannel") => return caracal_cni::main_flannel(),
        _ => {}
    }
    if completion::answer(command::Args::command) {
        return ExitCode::SUCCESS;
    }
    let arguments = flannel::args::flannels_words(std::env::args_os());
    let args = match command::Args::try_parse_from(arguments) {
        Ok(args) => args,
        // Help, too.
        Err(told) => {
            let words: Vec<String> = std::env::args().skip(1).collect();
            let hint = cli::hints::of(&words);
            if let Some(hint) = hint.filter(|_| told.kind() == ErrorKind::InvalidSubcommand) {
                eprintln!("caracal: {hint}");
                return ExitCode::from(2);
            }
            return told_by_clap(&told);
        }
    };
    introduce(command::part(&args.command));
    telemetry::init(args.log_format, command::serves(&args.command));
    let code = match command::run(args) {
        Ok(code) => code,
        // The same as in `out`, for what is printed by the lab.
        Err(error) if out::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("caracal: {error:#}");
            ExitCode::from(exit::code_of(&error))
        }
    };
    telemetry::finish();
    out::finish(code)
}

/// Says to Kubernetes' API servers which part of which program asks.
fn introduce(part: &str) {
    #[cfg(feature = "kubernetes")]
    caracal_datastore::introduce_as(&cli::version::user_agent(part));
    #[cfg(not(feature = "kubernetes"))]
    let _nobody = part;
}

/// Prints help, the version, or what is wrong with the arguments.
fn told_by_clap(told: &clap::Error) -> ExitCode {
    let code = u8::try_from(told.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
    match told.print() {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("caracal: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => out::finish(code),
    }
}
