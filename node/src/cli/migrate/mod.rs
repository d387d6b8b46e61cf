//! `caracal migrate`: from Calico to Caracal on one node, and back. `plan` changes nothing; `back`
//! touches routes only, each in place.

mod plan;
pub(crate) mod services;

use std::process::ExitCode;

use caracal_agent::{Ownership, hand_back_ops, unused_objects, unused_objects_after};
use clap::Subcommand;

use super::ipam::refuse;
use super::{in_this_namespace, run_dir};
use crate::admin::{Request, ask};
use crate::args::OutputArgs;

/// `caracal migrate COMMAND`.
#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Show what Calico left on this node and what `caracal node` will do with it. Exit code 5 if
    /// packets would be lost.
    Plan {
        /// Output format.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Move the translation of Services on this node from kube-proxy to Caracal, or back.
    Services {
        #[command(subcommand)]
        command: services::MigrateServicesCommand,
    },
    /// Hand the routes back to Calico's BIRD and Felix without removing them. Stop the node first.
    Back {
        /// The Calico to come is 3.32 or older, whose BIRD writes routes over IPIP.
        #[arg(long)]
        ipip_by_bird: bool,
        /// Print what would change; change nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) fn run(command: &MigrateCommand) -> anyhow::Result<ExitCode> {
    match command {
        MigrateCommand::Plan { output } => plan::run(output.output),
        MigrateCommand::Services { command } => services::run(command),
        MigrateCommand::Back {
            ipip_by_bird,
            dry_run,
        } => back(*ipip_by_bird, *dry_run),
    }
}

fn back(ipip_by_bird: bool, dry_run: bool) -> anyhow::Result<ExitCode> {
    if !dry_run && ask(&run_dir(), &Request::Status).is_ok() {
        return Ok(refuse(
            "a caracal node runs here and would take everything back; stop it first, or look with --dry-run",
        ));
    }
    in_this_namespace(async {
        let actual = caracal_agent::read_kernel().await?;
        let ops = hand_back_ops(&actual, ipip_by_bird);
        if ops.is_empty() {
            eprintln!("no route of ours is there that Calico's BIRD would write");
        }
        if dry_run {
            let unused = unused_objects_after(&ops, &actual, &Ownership::default());
            for op in ops.iter().chain(&unused) {
                println!("would {op}");
            }
            return Ok(ExitCode::SUCCESS);
        }
        let mut failures = 0;
        for (op, result) in caracal_agent::apply_ops(ops).await? {
            match result {
                Ok(()) => println!("{op}"),
                Err(reason) => {
                    failures += 1;
                    eprintln!("cannot {op}: {reason}");
                }
            }
        }
        if failures > 0 {
            return Ok(ExitCode::FAILURE);
        }
        // Seen to be without routes: the kernel deletes an object's routes with it.
        let actual = caracal_agent::read_kernel().await?;
        let unused = unused_objects(&actual, &Ownership::default());
        for (op, result) in caracal_agent::apply_ops(unused).await? {
            match result {
                Ok(()) => println!("{op}"),
                Err(reason) => eprintln!("cannot {op}: {reason}"),
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}
