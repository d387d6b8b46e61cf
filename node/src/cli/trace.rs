//! `caracal trace`: packets between two pods of a lab, hop by hop. The work is the `lab` crate's.

use std::process::ExitCode;

use caracal_lab::{TraceCommand, lab_trace};

use super::output::in_form;
use crate::args::TraceArgs;

pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.output;
    let trace = TraceCommand {
        lab: args.lab.clone(),
        from: args.from.clone(),
        to: args.to.clone(),
        json: output.is_data(),
    };
    let code = in_form(output, |out| Ok(lab_trace(&trace, out)?))?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
