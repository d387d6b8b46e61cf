//! `caracal trace`: the way of packets, hop by hop. In a lab between two pods, through every
//! namespace (the work is the `lab` crate's); in a cluster from a node to an address, by what the
//! nodes answer over their consoles.

mod cluster;

use std::process::ExitCode;

#[cfg(feature = "lab")]
use caracal_lab::{TraceCommand, lab_trace};

#[cfg(feature = "lab")]
use super::output::in_form;
use crate::args::TraceArgs;

pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    match args.to.parse() {
        Ok(address) if args.lab.is_none() => cluster::run(&args.from, address, args.output.output),
        _ => in_lab(args),
    }
}

#[cfg(feature = "lab")]
fn in_lab(args: &TraceArgs) -> anyhow::Result<ExitCode> {
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

#[cfg(not(feature = "lab"))]
fn in_lab(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "{:?} is a destination in a lab, and this program was built without labs, as `make static` builds it; in a \
         cluster the destination is an address: `caracal trace NODE ADDRESS`",
        args.to
    )
}
