//! `caracal trace`: packets between two pods of a lab, hop by hop. The work is the `lab` crate's.

use std::process::ExitCode;

use caracal_lab::commands::{self, Trace};

use crate::args::{Output, TraceArgs};

pub(super) fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let code = commands::trace(
        &Trace {
            lab: args.lab.clone(),
            from: args.from.clone(),
            to: args.to.clone(),
            json: args.output.output == Output::Json,
        },
        &mut std::io::stdout(),
    )?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
