//! `caracal-bench stalls`: how long the owner of a large table hears nobody, while something
//! concerns the whole of it.
//!
//! Each case has a speaker of its own with a full table. While the case runs, somebody asks a short
//! question every millisecond, as an operator or a probe would, and the speaker counts its own
//! turns: what it does before it listens to everybody again, sessions and timers included.

mod cases;
mod probe;
mod test_bed;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::lab::Lab;
use crate::report;
use cases::Case;

/// Arguments of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct StallsArgs {
    /// Cases; all of them by default.
    cases: Vec<Case>,
    /// Routes of the table, as in 100k or 1M.
    #[arg(long, default_value = "1M")]
    routes: String,
    /// The `caracal` to measure; without it the one beside this program.
    #[arg(long)]
    caracal: Option<PathBuf>,
    /// Writes the table into this Markdown file, too.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// Outcome of a case.
#[derive(Clone, Copy, Debug)]
pub struct CaseOutcome {
    /// Until it was complete.
    wall: Duration,
    /// Until the first line of an answer, where there is one.
    first: Option<Duration>,
    /// The longest turn since the speaker started, its table being loaded included.
    longest_turn: Duration,
    /// Turns of more than 20 ms while the case ran.
    slow_turns: u64,
    /// Questions that were answered meanwhile.
    questions: usize,
    /// The longest that one of them took.
    longest_answer: Duration,
    /// The most memory that the speaker held meanwhile, beyond what it held before, in KiB.
    grown_kib: u64,
}

/// Makes the namespaces and goes on inside.
pub fn run(args: &StallsArgs) -> Result<()> {
    let lab = Lab::new()?;
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &lab.generator()]);
    command.arg(std::env::current_exe()?);
    command.args(["stalls-inside", "--dut", &lab.dut()]);
    command.args(["--routes", &args.routes]);
    if let Some(program) = &args.caracal {
        command.arg("--caracal").arg(program);
    }
    if let Some(file) = &args.write {
        command.arg("--write").arg(file);
    }
    let name = |case: &Case| clap::ValueEnum::to_possible_value(case);
    let names = args.cases.iter().filter_map(name);
    command.args(names.map(|value| value.get_name().to_owned()));
    let status = command.status()?;
    ensure!(status.success(), "the measurement failed ({status})");
    Ok(())
}

/// The same, already inside the generator's namespace.
pub fn inside(dut: &str, args: &StallsArgs) -> Result<()> {
    let cases = match &args.cases[..] {
        [] => <Case as clap::ValueEnum>::value_variants(),
        some => some,
    };
    let dir = std::env::temp_dir().join(dut);
    std::fs::create_dir_all(&dir)?;
    let measured = measure(cases, dut, &dir, args);
    std::fs::remove_dir_all(&dir)?;
    let table = table(&measured?);
    println!("\n### stalls, {} routes\n\n{table}", args.routes);
    match &args.write {
        Some(file) => report::write(file, "stalls", &table),
        None => Ok(()),
    }
}

fn measure(
    cases: &[Case],
    dut: &str,
    dir: &Path,
    args: &StallsArgs,
) -> Result<Vec<(Case, CaseOutcome)>> {
    let mut measured = Vec::new();
    for case in cases {
        let outcome = cases::measure(*case, &args.routes, dut, dir, args.caracal.as_ref())?;
        println!("{case:?}: {outcome:?}");
        measured.push((*case, outcome));
    }
    Ok(measured)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn table(measured: &[(Case, CaseOutcome)]) -> String {
    let mut text = "| what | complete after s | first line ms | longest turn ms, loading included | turns over 20 ms | questions | \
                    longest answer ms | memory more MiB |\n|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for (case, outcome) in measured {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {:.0} |",
            case.what(),
            report::seconds(outcome.wall),
            outcome.first.map_or_else(|| "–".to_owned(), milliseconds),
            milliseconds(outcome.longest_turn),
            outcome.slow_turns,
            outcome.questions,
            milliseconds(outcome.longest_answer),
            outcome.grown_kib as f64 / 1024.0,
        );
    }
    text
}
