//! Runs the test programs that cargo has built, several at a time.
//!
//!     cargo build --workspace --all-targets --message-format=json-render-diagnostics
//!     >target/built.json target/debug/run-tests --jobs 2 --isolated target/built.json hitless
//!     cluster -- --test-threads=1 --nocapture
//!
//! Cargo runs one program after the other and builds anew for each choice of packages; here
//! everything is built once. An isolated program has network, mount and process namespaces and a
//! `/run` of its own, so that two of them cannot meet, and nothing that it starts is left when it
//! ends. What a program prints is kept in `target/test-logs` and shown whole at its end.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::Value;

/// Script around an isolated program: a `/run` of its own, but the host's locks (which CPU a guest
/// kernel has). The shell stays as process 1, which takes in orphans.
const ROOM: &str = "set -e; mount --make-rprivate /; exec 9</run/lock; mount -t tmpfs -o mode=755 tmpfs /run; \
                    mkdir /run/netns /run/lock; mount --bind /proc/self/fd/9 /run/lock; exec 9<&-; \
                    ip link set lo up; \
                    set +e; \"$@\"; exit $?";
/// Between two looks at a running program.
const LOOK: Duration = Duration::from_millis(50);

/// Runs the test programs that cargo has built, several at a time.
#[derive(Debug, Parser)]
struct Args {
    /// How many run at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Give each program namespaces of its own; needs root.
    #[arg(long)]
    isolated: bool,
    /// End a program that takes longer, in seconds.
    #[arg(long, default_value_t = 1800)]
    limit: u64,
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

#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// Package and target.
    name: String,
    executable: PathBuf,
    /// The package's directory, where cargo runs it.
    directory: PathBuf,
}

/// How a program ended.
#[derive(Debug)]
struct Outcome {
    name: String,
    /// `None`: it went well.
    fault: Option<String>,
    /// Tests passed, failed and ignored.
    counts: [u64; 3],
    failed: Vec<String>,
    seconds: f64,
    output: String,
}

/// The package whose targets can be named.
const PACKAGE: &str = "caracal-tests";

/// The test programs in cargo's messages.
fn programs(messages: &str) -> Vec<Program> {
    let of = |message: Value| -> Option<Program> {
        let executable = message["executable"].as_str()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let directory = Path::new(message["manifest_path"].as_str()?).parent()?;
        let package = message["package_id"].as_str()?;
        // path+file:///…/tests#caracal-tests@0.1.0, or …/node#caracal@0.1.0
        let package = package.rsplit(['#', '/']).next()?.split('@').next()?;
        Some(Program {
            name: format!("{package} {}", message["target"]["name"].as_str()?),
            executable: executable.into(),
            directory: directory.to_owned(),
        })
    };
    let messages = messages
        .lines()
        .filter_map(|l| serde_json::from_str(l).ok());
    messages.filter_map(of).collect()
}

/// The programs to run, in the order in which they start.
fn chosen(
    all: Vec<Program>,
    targets: &[String],
    without: &[String],
    first: &[String],
) -> Result<Vec<Program>, String> {
    let name = |target: &String| format!("{PACKAGE} {target}");
    let find = |target: &String| {
        let found = all.iter().find(|p| p.name == name(target));
        found
            .cloned()
            .ok_or_else(|| format!("{PACKAGE} has no test target {target}, or it was not built"))
    };
    // A name that has been misspelt would leave out nothing.
    let _known: Vec<Program> = without.iter().map(find).collect::<Result<_, _>>()?;
    if !targets.is_empty() {
        return targets
            .iter()
            .filter(|t| !without.contains(t))
            .map(find)
            .collect();
    }
    if let Some(missing) = first.iter().find(|f| all.iter().all(|p| p.name != **f)) {
        return Err(format!(
            "there is no test program {missing}, or it was not built"
        ));
    }
    let without: Vec<String> = without.iter().map(name).collect();
    let mut chosen: Vec<Program> = all
        .into_iter()
        .filter(|p| !without.contains(&p.name))
        .collect();
    let rank = |program: &Program| first.iter().position(|f| *f == program.name);
    chosen.sort_by_key(|program| rank(program).unwrap_or(first.len()));
    Ok(chosen)
}

/// Tests passed, failed and ignored, and the names of those that failed, from what a test program
/// prints.
fn read(output: &str) -> ([u64; 3], Vec<String>) {
    let mut counts = [0; 3];
    for line in output.lines().filter(|l| l.starts_with("test result: ")) {
        let words: Vec<&str> = line.split([' ', ';']).collect();
        for (count, word) in counts.iter_mut().zip(["passed", "failed", "ignored"]) {
            let place = words.iter().position(|w| *w == word);
            let number = place.and_then(|n| words.get(n.checked_sub(1)?)?.parse::<u64>().ok());
            *count += number.unwrap_or(0);
        }
    }
    // The last list of failures has the names alone.
    let list = output
        .rsplit("\nfailures:\n")
        .next()
        .filter(|_| output.contains("\nfailures:\n"));
    let names = list
        .unwrap_or_default()
        .lines()
        .map_while(|l| l.strip_prefix("    "));
    (counts, names.map(str::to_owned).collect())
}

fn command(program: &Program, args: &Args) -> Command {
    let mut command = if args.isolated {
        let mut command = Command::new("setpriv");
        // Nothing outlives this program, however it ends.
        command.args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
        ]);
        command.args(["--mount-proc", "--kill-child", "bash", "-c", ROOM, "bash"]);
        command.arg(&program.executable);
        command
    } else {
        Command::new(&program.executable)
    };
    command
        .args(&args.arguments)
        .current_dir(&program.directory)
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .stdin(Stdio::null());
    command
}

/// Waits for a child; `None` when it took too long and was ended.
fn wait(child: &mut std::process::Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            let _status = child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK);
    }
}

fn run(program: &Program, args: &Args, logs: &Path) -> Outcome {
    let start = Instant::now();
    let log = logs.join(format!("{}.log", program.name.replace(' ', "-")));
    let limit = Duration::from_secs(args.limit);
    let ended = File::create(&log).and_then(|file| {
        let mut command = command(program, args);
        command.stdout(file.try_clone()?).stderr(file);
        wait(&mut command.spawn()?, limit)
    });
    let output = fs::read(&log).unwrap_or_default();
    let output = String::from_utf8_lossy(&output).into_owned();
    let (counts, failed) = read(&output);
    let fault = match ended {
        Ok(Some(status)) if !status.success() => Some(status.to_string()),
        Ok(Some(_)) if !output.contains("test result: ") => Some("it printed no result".to_owned()),
        Ok(Some(_)) => None,
        Ok(None) => Some(format!("ended after {} s", args.limit)),
        Err(error) => Some(error.to_string()),
    };
    Outcome {
        name: program.name.clone(),
        fault,
        counts,
        failed,
        seconds: start.elapsed().as_secs_f64(),
        output,
    }
}

/// The table of durations and the closing line.
fn summary(outcomes: &[Outcome], elapsed: f64) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "\n{:<40} {:>8} {:>7} {:>7} {:>8}\n",
        "program", "seconds", "passed", "failed", "ignored"
    );
    let mut sum = [0; 3];
    for outcome in outcomes {
        let [passed, failed, ignored] = outcome.counts;
        for (sum, count) in sum.iter_mut().zip(outcome.counts) {
            *sum += count;
        }
        let fault = outcome
            .fault
            .as_ref()
            .map(|f| format!("  {f}"))
            .unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<40} {:>8.1} {passed:>7} {failed:>7} {ignored:>8}{fault}",
            outcome.name, outcome.seconds
        );
    }
    let bad: Vec<&Outcome> = outcomes.iter().filter(|o| o.fault.is_some()).collect();
    if !bad.is_empty() {
        text.push_str("\nfailures:\n");
    }
    for outcome in &bad {
        let none = outcome
            .failed
            .is_empty()
            .then(|| outcome.fault.clone().unwrap_or_default());
        for what in outcome.failed.iter().chain(&none) {
            let _ = writeln!(text, "    {}: {what}", outcome.name);
        }
    }
    let verdict = if bad.is_empty() { "ok" } else { "FAILED" };
    let alone: f64 = outcomes.iter().map(|o| o.seconds).sum();
    let [passed, failed, ignored] = sum;
    let _ = writeln!(
        text,
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; {} programs; finished in {elapsed:.1}s (sum {alone:.1}s)",
        outcomes.len()
    );
    text
}

fn all(args: &Args) -> Result<bool, String> {
    let messages =
        fs::read_to_string(&args.built).map_err(|e| format!("{}: {e}", args.built.display()))?;
    let programs = chosen(
        programs(&messages),
        &args.targets,
        &args.without,
        &args.first,
    )?;
    if programs.is_empty() {
        return Err(format!("{}: no test program in it", args.built.display()));
    }
    let logs = args.built.with_file_name("test-logs");
    fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let (done, outcomes) = mpsc::sync_channel(args.jobs.max(1));
    let mut all = Vec::new();
    thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            let (done, next, programs, logs) = (done.clone(), &next, &programs, &logs);
            scope.spawn(move || {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    println!("     Started {}", program.name);
                    // The receiver lives as long as the scope.
                    let _ = done.send(run(program, args, logs));
                }
            });
        }
        drop(done);
        for outcome in outcomes {
            println!("\n     Running {}\n{}", outcome.name, outcome.output);
            all.push(outcome);
        }
    });
    print!("{}", summary(&all, start.elapsed().as_secs_f64()));
    Ok(all.iter().all(|outcome| outcome.fault.is_none()))
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

    const BUILT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///x/tests#caracal-tests@0.1.0","manifest_path":"/x/tests/Cargo.toml","target":{"name":"ipam"},"profile":{"test":true},"executable":"/x/t/ipam-1"}
{"reason":"compiler-artifact","package_id":"path+file:///x/cni#caracal-cni@0.1.0","manifest_path":"/x/cni/Cargo.toml","target":{"name":"ipam"},"profile":{"test":true},"executable":"/x/t/ipam-2"}
{"reason":"compiler-artifact","package_id":"path+file:///x/model#0.1.0","manifest_path":"/x/model/Cargo.toml","target":{"name":"m"},"profile":{"test":true},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///x/node#caracal@0.1.0","manifest_path":"/x/node/Cargo.toml","target":{"name":"caracal"},"profile":{"test":false},"executable":"/x/t/caracal"}
{"reason":"build-finished","success":true}"#;

    fn owned(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn names(targets: &[&str], without: &[&str]) -> Result<Vec<String>, String> {
        let chosen = chosen(programs(BUILT), &owned(targets), &owned(without), &[])?;
        Ok(chosen.into_iter().map(|p| p.name).collect())
    }

    #[test]
    fn a_long_program_starts_first() {
        let chosen = |first: &[&str]| chosen(programs(BUILT), &[], &[], &owned(first));
        let order = chosen(&["caracal-cni ipam"]).unwrap();
        let order: Vec<&str> = order.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(order, ["caracal-cni ipam", "caracal-tests ipam"]);
        let error = chosen(&["caracal-cni ipma"]).unwrap_err();
        assert!(
            error.contains("no test program caracal-cni ipma"),
            "{error}"
        );
    }

    #[test]
    fn targets_of_one_name_in_two_packages_are_two() {
        let both = ["caracal-tests ipam", "caracal-cni ipam"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(names(&[], &[]), Ok(both));
        assert_eq!(
            names(&[], &["ipam"]),
            Ok(vec!["caracal-cni ipam".to_owned()])
        );
        assert_eq!(
            names(&["ipam"], &[]),
            Ok(vec!["caracal-tests ipam".to_owned()])
        );
        for (targets, without) in [(vec!["ipma"], vec![]), (vec![], vec!["ipma"])] {
            let error = names(&targets, &without).expect_err("misspelt");
            assert!(error.contains("no test target ipma"), "{error}");
        }
    }

    #[test]
    fn what_a_test_program_prints_is_counted() {
        let output = "running 3 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nfailures:\nx\n\n\nfailures:\n    b\n    m::c\n\n\
                      test result: FAILED. 1 passed; 2 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(
            read(output),
            ([1, 2, 4], vec!["b".to_owned(), "m::c".to_owned()])
        );
        assert_eq!(read("nothing"), ([0; 3], vec![]));
    }

    fn outcome(script: &str, limit: u64) -> Outcome {
        let folder = std::env::temp_dir().join(format!("run-tests-{}-{limit}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let args = Args::parse_from([
            "run-tests",
            "--limit",
            &limit.to_string(),
            "built",
            "--",
            "-c",
            script,
        ]);
        let program = Program {
            name: script.replace('/', "|").chars().take(20).collect(),
            executable: "/bin/sh".into(),
            directory: folder.clone(),
        };
        let outcome = run(&program, &args, &folder);
        fs::remove_dir_all(&folder).expect("removed");
        outcome
    }

    #[test]
    fn a_program_that_fails_hangs_or_says_nothing_is_a_failure() {
        let good = outcome("echo 'test result: ok. 2 passed; 0 failed; 0 ignored;'", 60);
        assert_eq!((good.fault.as_deref(), good.counts), (None, [2, 0, 0]));
        assert!(
            summary(&[good], 1.0)
                .contains("test result: ok. 2 passed; 0 failed; 0 ignored; 1 programs")
        );
        for (script, limit, fault) in [
            ("exit 101", 61, "exit status: 101"),
            ("kill -SEGV $$", 62, "signal: 11"),
            ("true", 63, "it printed no result"),
            ("while :; do :; done", 1, "ended after 1 s"),
        ] {
            let bad = outcome(script, limit);
            assert!(
                bad.fault.as_ref().is_some_and(|f| f.contains(fault)),
                "{script}: {bad:?}"
            );
            let text = summary(&[bad], 1.0);
            assert!(
                text.contains("failures:") && text.contains("test result: FAILED."),
                "{text}"
            );
        }
    }
}
