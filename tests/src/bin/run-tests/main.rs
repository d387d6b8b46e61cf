//! Runs the test programs that cargo has built, several at a time, and gives one verdict.
//!
//!     cargo build --workspace --all-targets --message-format=json-render-diagnostics
//!     >target/built.json target/debug/run-tests --jobs 2 --scenarios target/built.json hitless
//!     cluster -- --test-threads=1 --nocapture
//!
//! Cargo runs one program after the other and builds anew for each choice of packages; here
//! everything is built once. A whole program is one process; of scenarios each is one, with
//! network, mount and process namespaces and a `/run` of its own, so that two of them cannot meet,
//! and nothing that it starts is left when it ends. A scenario that fails runs once more, alone,
//! when all others have ended: what passes then is *flaky*, a defect with an owner, but no verdict
//! on the work. What a process prints is kept in `test-logs` beside cargo's messages, and a JUnit
//! file beside it (docs/testing.md).

mod attempt;
mod cases;
mod junit;
mod soak;
mod verdict;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

use attempt::{Attempt, Conditions, attempt};
use cases::{Case, Program};
use soak::{Endurance, Load};
use verdict::{Judgement, Outcome};

/// Of more failures than this the cause is not chance; to run them all again, one by one, would
/// take longer than to look at one.
const SECOND_TRIES: usize = 12;

/// Runs the test programs that cargo has built, several at a time.
#[derive(Debug, Parser)]
struct Args {
    /// How many run at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Each test function is a process in namespaces of its own, with a second try; needs root.
    #[arg(long)]
    scenarios: bool,
    /// So many scenarios may fail at first and pass at the second try.
    #[arg(long, default_value_t = 3)]
    flaky: usize,
    /// A scenario that waits most of its time (repeatable): these run beside the others, one after
    /// the other.
    #[arg(long)]
    waiting: Vec<String>,
    /// Only the scenarios of this name or target, or with this in their name.
    #[arg(long)]
    only: Option<String>,
    /// Run each so often, and say how often it failed; no second tries.
    #[arg(long)]
    soak: Option<usize>,
    /// Busy processes beside a soak.
    #[arg(long, default_value_t = 0)]
    load: usize,
    /// End a process that takes longer, in seconds.
    #[arg(long, default_value_t = 1800)]
    limit: u64,
    /// Name of the suite: of its JUnit file and of the file with its closing line.
    #[arg(long, default_value = "tests")]
    suite: String,
    /// Leave out this target of caracal-tests (repeatable).
    #[arg(long)]
    without: Vec<String>,
    /// Start this program before the others: package and target (repeatable).
    #[arg(long)]
    first: Vec<String>,
    /// Output of `cargo build --workspace --all-targets --message-format=json-render-diagnostics`.
    built: PathBuf,
    /// Targets of caracal-tests, the longest first; without any, every test program of the
    /// workspace.
    targets: Vec<String>,
    /// Arguments for the programs.
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Args {
    fn conditions(&self, logs: PathBuf) -> Conditions {
        Conditions {
            isolated: self.scenarios,
            limit: Duration::from_secs(self.limit),
            arguments: self.arguments.clone(),
            logs,
        }
    }

    /// The target that a scenario's name begins with is one of those that are run.
    fn targets_name(&self, name: &str) -> bool {
        let target = name.split("::").next().unwrap_or_default();
        self.targets.iter().any(|one| one == target)
    }

    fn cases(&self) -> Result<Vec<Case>, String> {
        let messages = fs::read_to_string(&self.built)
            .map_err(|e| format!("{}: {e}", self.built.display()))?;
        let programs = cases::programs(&messages);
        let programs = cases::chosen(programs, &self.targets, &self.without, &self.first)?;
        let all = match self.scenarios {
            true => cases::apart(cases::scenarios(programs, Program::list)?),
            false => {
                let whole = |program| Case {
                    program,
                    test: None,
                };
                programs.into_iter().map(whole).collect()
            }
        };
        let chosen = match &self.only {
            Some(name) => cases::only(&all, name)?,
            None => all,
        };
        let is_there = |name: &&String| chosen.iter().any(|case| case.name() == **name);
        match self.waiting.iter().find(|name| !is_there(name)) {
            _ if chosen.is_empty() => {
                Err(format!("{}: no test program in it", self.built.display()))
            }
            Some(name) if self.only.is_none() && self.targets_name(name) => {
                Err(format!("--waiting {name}: there is no such scenario"))
            }
            _ => Ok(chosen),
        }
    }
}

/// Cases for so many threads.
struct Lane {
    threads: usize,
    /// Places in the list of cases.
    cases: Vec<usize>,
}

/// Those that wait most of their time have a lane of their own, with one thread.
fn lanes(cases: &[(usize, &Case)], jobs: usize, waiting: &[String]) -> [Lane; 2] {
    let (waiting, others) = (0..cases.len()).partition(|n| waiting.contains(&cases[*n].1.name()));
    [(jobs, others), (1, waiting)].map(|(threads, cases)| Lane { threads, cases })
}

/// Runs cases side by side, `jobs` at once and one of those that wait, and tells of each as it
/// ends. In the order of the cases.
fn run_all(
    cases: &[(usize, &Case)],
    (jobs, waiting): (usize, &[String]),
    conditions: &Conditions,
    told: impl Fn(&Case, &Attempt),
) -> Vec<Attempt> {
    let lanes = lanes(cases, jobs.max(1), waiting);
    let lanes = lanes.map(|lane| (AtomicUsize::new(0), lane));
    let (done, ended) = mpsc::sync_channel(jobs + 1);
    let mut attempts: Vec<(usize, Attempt)> = Vec::new();
    thread::scope(|scope| {
        let threads = lanes.iter().flat_map(|lane| vec![lane; lane.1.threads]);
        for (next, lane) in threads {
            let done = done.clone();
            scope.spawn(move || {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(n) = lane.cases.get(place).copied() else {
                        break;
                    };
                    let (run, case) = cases[n];
                    // The receiver lives as long as the scope.
                    let _ = done.send((n, attempt(case, run, conditions)));
                }
            });
        }
        drop(done);
        for (n, attempt) in ended {
            told(cases[n].1, &attempt);
            attempts.push((n, attempt));
        }
    });
    attempts.sort_by_key(|(n, _)| *n);
    attempts.into_iter().map(|(_, attempt)| attempt).collect()
}

fn tell(case: &Case, attempt: &Attempt) {
    let fault = attempt.fault.as_ref();
    let fault = fault.map(|f| format!("  {f}")).unwrap_or_default();
    let verdict = if fault.is_empty() { "ok" } else { "FAILED" };
    println!(
        "{verdict:>8} {:>7.1}  {}{fault}",
        attempt.seconds,
        case.name()
    );
}

/// Each case once; those that fail once more, one after the other, where that may help.
fn judge(cases: &[Case], args: &Args, conditions: &Conditions) -> Judgement {
    let once: Vec<(usize, &Case)> = cases.iter().map(|case| (1, case)).collect();
    let attempts = run_all(&once, (args.jobs, &args.waiting), conditions, tell);
    let outcome = |(case, first): (&Case, Attempt)| Outcome {
        name: case.name(),
        first,
        second: None,
    };
    let mut outcomes: Vec<Outcome> = cases.iter().zip(attempts).map(outcome).collect();
    let is_bad = |(_, outcome): &(&Case, &mut Outcome)| outcome.first.fault.is_some();
    let failed: Vec<(&Case, &mut Outcome)> =
        cases.iter().zip(&mut outcomes).filter(is_bad).collect();
    match failed.len() {
        0 => {}
        _ if !args.scenarios => {}
        many if many > SECOND_TRIES => {
            println!("{many} failed, more than {SECOND_TRIES}: none has a second try");
        }
        few => {
            println!("once more, one after the other: {few}");
            for (case, outcome) in failed {
                let second = attempt(case, 2, conditions);
                tell(case, &second);
                outcome.second = Some(second);
            }
        }
    }
    Judgement {
        outcomes,
        flaky_allowed: args.flaky,
    }
}

/// Each case `n` times, beside a load.
fn soak(cases: &[Case], n: usize, args: &Args, conditions: &Conditions) -> Result<bool, String> {
    let load = Load::start(args.load)?;
    // Every case once, then every case again: runs of one are not neighbours.
    let rounds = (1..=n).flat_map(|run| cases.iter().map(move |case| (run, case)));
    let rounds: Vec<(usize, &Case)> = rounds.collect();
    let attempts = run_all(&rounds, (args.jobs, &[]), conditions, tell);
    let mut attempts = attempts.into_iter();
    drop(load);
    let mut endured: Vec<Endurance> = Vec::new();
    for _ in 0..n {
        for (at, (case, attempt)) in cases.iter().zip(attempts.by_ref()).enumerate() {
            match endured.get_mut(at) {
                Some(endurance) => endurance.runs.push(attempt),
                None => endured.push(Endurance {
                    name: case.name(),
                    runs: vec![attempt],
                }),
            }
        }
    }
    print!("{}", soak::report(&endured, args.load));
    let (passed, failed) = soak::counts(&endured);
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn all(args: &Args) -> Result<bool, String> {
    let cases = args.cases()?;
    let logs = args.built.with_file_name("test-logs");
    fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let conditions = args.conditions(logs);
    if let Some(n) = args.soak {
        return soak(&cases, n.max(1), args, &conditions);
    }
    let start = Instant::now();
    let judgement = judge(&cases, args, &conditions);
    let elapsed = start.elapsed().as_secs_f64();
    let write = |extension: &str, text: String| {
        let file = conditions.logs.join(format!("{}.{extension}", args.suite));
        fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))
    };
    write("xml", junit::junit(&args.suite, &judgement, elapsed))?;
    let closing = judgement.closing_line();
    write("verdict", format!("{closing}\n"))?;
    print!("{}", judgement.summary(elapsed));
    println!("{closing}");
    Ok(judgement.is_good())
}

fn main() -> ExitCode {
    match all(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("run-tests: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::tests::{Folder, conditions, played};
    use crate::verdict::Verdict;

    fn args(more: &[&str]) -> Args {
        Args::parse_from([&["run-tests"], more, &["built"]].concat())
    }

    /// A scenario that fails the first time, and passes when its mark is there.
    const SECOND_TIME: &str = "[ $1 = steady ] || [ -e $1.mark ] || { touch $1.mark; exit 101; }; \
                               echo 'test result: ok. 1 passed; 0 failed; 0 ignored;'";

    fn verdicts(tests: &[&str], script: &str, args: &Args) -> Vec<Verdict> {
        let name = script.len() + tests.len() + args.jobs;
        let folder = Folder::new(&format!("verdicts-{name}-{}", args.scenarios));
        let cases: Vec<Case> = tests.iter().map(|t| played(&folder, Some(t))).collect();
        let mut conditions = conditions(&folder, script, 60);
        conditions.isolated = false;
        let judgement = judge(&cases, args, &conditions);
        judgement.outcomes.iter().map(Outcome::verdict).collect()
    }

    #[test]
    fn a_scenario_has_a_second_try_and_a_unit_test_has_none() {
        let tests = ["steady", "shaky"];
        let scenarios = args(&["--scenarios", "--jobs", "2"]);
        let seen = verdicts(&tests, SECOND_TIME, &scenarios);
        assert_eq!(seen, [Verdict::Passed, Verdict::Flaky]);
        let seen = verdicts(&tests, SECOND_TIME, &args(&["--jobs", "2"]));
        assert_eq!(seen, [Verdict::Passed, Verdict::Failed]);
        let seen = verdicts(&tests, "exit 101", &scenarios);
        assert_eq!(seen, [Verdict::Failed, Verdict::Failed]);
    }

    #[test]
    fn who_waits_has_a_lane_of_its_own() {
        let folder = Folder::new("lanes");
        let cases = ["a", "waits", "b", "waits_too"].map(|t| played(&folder, Some(t)));
        let once: Vec<(usize, &Case)> = cases.iter().map(|case| (1, case)).collect();
        let waiting = [cases[1].name(), cases[3].name()];
        let [others, beside] = lanes(&once, 3, &waiting);
        assert_eq!((others.threads, &*others.cases), (3, &[0, 2][..]));
        assert_eq!((beside.threads, &*beside.cases), (1, &[1, 3][..]));
        // All are run, whatever lane they have.
        let waiting = waiting.map(|name| ["--waiting".to_owned(), name]).concat();
        let waiting: Vec<&str> = waiting.iter().map(String::as_str).collect();
        let seen = verdicts(
            &["steady", "a", "waits"],
            "echo 'test result: ok. 1 passed; 0 failed; 0 ignored;'",
            &args(&[&["--scenarios", "--jobs", "2"][..], &waiting].concat()),
        );
        assert_eq!(seen, [Verdict::Passed; 3]);
    }

    #[test]
    fn what_all_fails_is_not_run_again() {
        let names: Vec<String> = (0..=SECOND_TRIES).map(|n| format!("t{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let seen = verdicts(&names, SECOND_TIME, &args(&["--scenarios"]));
        assert!(seen.iter().all(|v| *v == Verdict::Failed), "{seen:?}");
    }
}
