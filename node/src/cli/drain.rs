//! `caracal drain`: out of service and back, told step by step. Exit code 5 when it is refused.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::run_dir;
use crate::admin::{Request, ask};
use crate::args::{DrainArgs, Output};
use crate::exit::REFUSED;
use crate::node::announce::drain::{DrainStage, DrainStatus};

/// Time between looks.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for the drain beyond the time that peers get.
const LIMIT: Duration = Duration::from_secs(90);

pub(crate) fn run(args: DrainArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    let (request, goal) = if args.undo {
        (Request::Undrain, DrainStage::InService)
    } else {
        let DrainArgs {
            text, wait, force, ..
        } = args;
        (Request::Drain { text, wait, force }, DrainStage::Drained)
    };
    let accepted: DrainStatus = serde_json::from_value(ask(&run_dir(), &request)?)?;
    if let Some(reason) = &accepted.refused {
        if output.is_data() {
            output.print(&serde_json::to_value(&accepted)?);
        } else {
            eprintln!("caracal: not drained: {reason}");
        }
        return Ok(ExitCode::from(REFUSED));
    }
    let reached = follow(goal, Duration::from_secs(args.wait) + LIMIT, output)?;
    if output.is_data() {
        output.print(&serde_json::to_value(&reached)?);
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells each stage once, until the last.
fn follow(goal: DrainStage, limit: Duration, output: Output) -> anyhow::Result<DrainStatus> {
    let end = Instant::now() + limit;
    let mut shown = None;
    loop {
        let value = ask(&run_dir(), &Request::DrainStatus)?;
        let status: DrainStatus = serde_json::from_value(value).context("the drain's status")?;
        let begun = status.stage != DrainStage::InService || goal == DrainStage::InService;
        if !output.is_data() && begun && shown != Some(status.stage) {
            println!("{}", words(status.stage));
            shown = Some(status.stage);
        }
        if status.stage == goal {
            return Ok(status);
        }
        anyhow::ensure!(
            Instant::now() < end,
            "not there after {} s; the node goes on by itself, `caracal status` shows how far it is",
            limit.as_secs()
        );
        std::thread::sleep(LOOK);
    }
}

const fn words(stage: DrainStage) -> &'static str {
    match stage {
        DrainStage::InService => "in service: everything is announced",
        DrainStage::Leaving => {
            "leaving: announcements carry GRACEFUL_SHUTDOWN; peers take other paths"
        }
        DrainStage::Withdrawing => "withdrawing: nothing is announced any more",
        DrainStage::Drained => "drained: all sessions are shut down",
    }
}
