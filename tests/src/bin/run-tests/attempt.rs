//! One run of one case: the process, its namespaces, its limit, and what became of it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::cases::Case;

/// Script around an isolated program: `/run` and `/dev/shm` of its own, but the host's locks (which
/// CPU a guest kernel has). The shell stays as process 1, which takes in orphans.
const ROOM: &str = "set -e; mount --make-rprivate /; exec 9</run/lock; mount -t tmpfs -o mode=755 tmpfs /run; \
                    mkdir /run/netns /run/lock; mount --bind /proc/self/fd/9 /run/lock; exec 9<&-; \
                    mount -t tmpfs -o mode=1777 tmpfs /dev/shm; \
                    ip link set lo up; \
                    set +e; \"$@\"; exit $?";
/// Between two looks at a running program.
const LOOK: Duration = Duration::from_millis(20);

/// How cases are run.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    /// Each in namespaces of its own.
    pub(crate) isolated: bool,
    /// What takes longer is ended.
    pub(crate) limit: Duration,
    /// Arguments for the programs.
    pub(crate) arguments: Vec<String>,
    /// Folder of the logs.
    pub(crate) logs: PathBuf,
}

/// How one run ended.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// `None`: it went well.
    pub(crate) fault: Option<String>,
    /// Tests passed, failed and ignored.
    pub(crate) counts: [u64; 3],
    pub(crate) failed: Vec<String>,
    pub(crate) seconds: f64,
    /// Seconds of CPU, of all processes that it has waited for.
    pub(crate) cpu: f64,
    pub(crate) output: String,
    pub(crate) log: PathBuf,
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

/// A command of which nothing outlives this program, however that ends.
pub(crate) fn bound_to_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// A folder for the temporary files of one run: process identifiers, by which tests name theirs,
/// are the same in every namespace. Open to every user; removed with all that is in it when it
/// goes.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Paths of sockets below it have 108 octets.
        let name = format!("caracal-t{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder)?;
        // As /tmp: some scenarios go on as a user without rights.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777))?;
        Ok(Self(folder))
    }

    /// What a program has left that should have removed it; `None` = nothing.
    fn left(&self) -> io::Result<Option<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        let left = || format!("it has left {} in its temporary folder", names.join(", "));
        Ok((!names.is_empty()).then(left))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

fn command(case: &Case, conditions: &Conditions) -> Command {
    let program = &case.program;
    let mut command = if conditions.isolated {
        let mut command = bound_to_us("unshare");
        command.args(["--mount", "--net", "--pid", "--fork"]);
        command.args(["--mount-proc", "--kill-child", "bash", "-c", ROOM, "bash"]);
        command.arg(&program.executable);
        command
    } else {
        Command::new(&program.executable)
    };
    command.args(&conditions.arguments);
    if let Some(test) = &case.test {
        command.args(["--exact", test]);
    }
    command
        .current_dir(&program.directory)
        .env("CARGO_MANIFEST_DIR", &program.directory)
        // Processes are killed and no machine: a disk that is busy need not stop etcd for seconds.
        .env("ETCD_UNSAFE_NO_FSYNC", "true")
        .env("CARACAL_LAB_TELL_WAITS", "true")
        .stdin(Stdio::null());
    command
}

/// Waits for a child; `None` when it took too long and was ended. With its seconds of CPU.
fn wait(child: &mut Child, limit: Duration) -> io::Result<(Option<ExitStatus>, f64)> {
    let start = Instant::now();
    let id = Pid::from_raw(child.id().cast_signed());
    // What a process took can be read until somebody has asked how it ended.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    loop {
        if waitid(Id::Pid(id), look)? != WaitStatus::StillAlive {
            let cpu = cpu_seconds(child.id()).unwrap_or_default();
            return Ok((Some(child.wait()?), cpu));
        }
        if start.elapsed() > limit {
            child.kill()?;
            let _status = child.wait()?;
            return Ok((None, 0.0));
        }
        thread::sleep(LOOK);
    }
}

/// CPU of a process and of those that it has waited for (proc_pid_stat(5)).
fn cpu_seconds(id: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before the last bracket may hold anything.
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    let ticks: f64 = fields
        .get(11..15)?
        .iter()
        .flat_map(|n| n.parse::<f64>())
        .sum();
    let second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(ticks / f64::from(i32::try_from(second).ok()?))
}

/// The log of a case's n-th run, from 1: `drain-a_node_leaves.log`, then `….2.log`.
fn log(case: &Case, run: usize, logs: &Path) -> PathBuf {
    let name = case.name().replace("::", "-").replace([' ', '/'], "-");
    match run {
        1 => logs.join(format!("{name}.log")),
        _ => logs.join(format!("{name}.{run}.log")),
    }
}

/// Runs a case for the n-th time, from 1.
pub(crate) fn attempt(case: &Case, run: usize, conditions: &Conditions) -> Attempt {
    let start = Instant::now();
    let log = log(case, run, &conditions.logs);
    let ended = File::create(&log).and_then(|file| {
        let scratch = Scratch::new()?;
        let mut command = command(case, conditions);
        command.env("TMPDIR", &scratch.0);
        command.stdout(file.try_clone()?).stderr(file);
        let status = wait(&mut command.spawn()?, conditions.limit)?;
        // Whoever runs unit tests without us has his temporary folder as it was.
        let left = if conditions.isolated {
            None
        } else {
            scratch.left()?
        };
        Ok((status, left))
    });
    let output = fs::read(&log).unwrap_or_default();
    let output = String::from_utf8_lossy(&output).into_owned();
    let (counts, failed) = read(&output);
    let cpu = ended.as_ref().map_or(0.0, |((_, cpu), _)| *cpu);
    let fault = match ended {
        Ok(((Some(status), _), _)) if !status.success() => Some(status.to_string()),
        Ok(((Some(_), _), _)) if !output.contains("test result: ") => {
            Some("it printed no result".to_owned())
        }
        Ok(((Some(_), _), _)) if case.test.is_some() && counts[0] == 0 => {
            Some("no test ran".to_owned())
        }
        Ok(((Some(_), _), left)) => left,
        Ok(((None, _), _)) => Some(format!("ended after {} s", conditions.limit.as_secs())),
        Err(error) => Some(error.to_string()),
    };
    // A scenario is one, whatever a guest kernel's own test program has counted in its output.
    let counts = match (&case.test, &fault) {
        (None, _) => counts,
        (Some(_), None) => [1, 0, 0],
        (Some(_), Some(_)) => [0, 1, 0],
    };
    Attempt {
        fault,
        counts,
        failed,
        seconds: start.elapsed().as_secs_f64(),
        cpu,
        output,
        log,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::cases::Program;

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

    /// A folder for one test, removed when it goes.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(name: &str) -> Self {
            let name = format!("run-tests-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).expect("a folder");
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    /// A case that a shell plays; its script finds the name of the test in `$1`.
    pub(crate) fn played(folder: &Folder, test: Option<&str>) -> Case {
        Case {
            program: Program {
                name: "caracal-tests play".to_owned(),
                executable: "/bin/sh".into(),
                directory: folder.0.clone(),
            },
            test: test.map(str::to_owned),
        }
    }

    pub(crate) fn conditions(folder: &Folder, script: &str, limit: u64) -> Conditions {
        Conditions {
            isolated: false,
            limit: Duration::from_secs(limit),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            logs: folder.0.clone(),
        }
    }

    #[test]
    fn a_program_that_fails_hangs_or_says_nothing_is_a_failure() {
        let folder = Folder::new("faults");
        let run = |test: Option<&str>, text: &str, limit: u64| {
            let conditions = conditions(&folder, text, limit);
            attempt(&played(&folder, test), 1, &conditions)
        };
        let good = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored;'";
        let attempt = run(None, good, 60);
        assert_eq!((attempt.fault, attempt.counts), (None, [2, 0, 0]));
        let attempt = run(Some("x"), good, 60);
        assert_eq!((attempt.fault, attempt.counts), (None, [1, 0, 0]));
        let busy = "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done";
        let attempt = run(None, &format!("({busy}); {good}"), 60);
        assert!(attempt.fault.is_none() && attempt.cpu > 0.0, "{attempt:?}");
        for (text, limit, fault) in [
            ("exit 101", 60, "exit status: 101"),
            ("kill -SEGV $$", 60, "signal: 11"),
            ("true", 60, "it printed no result"),
            (
                "echo 'test result: ok. 0 passed; 0 failed;'",
                60,
                "no test ran",
            ),
            ("while :; do :; done", 1, "ended after 1 s"),
            (
                "mkdir \"$TMPDIR/left\"; echo 'test result: ok. 1 passed; 0 failed;'",
                60,
                "it has left left in its temporary folder",
            ),
        ] {
            let bad = run(Some("x"), text, limit);
            let seen = bad.fault.as_deref().unwrap_or_default();
            assert!(seen.contains(fault), "{text}: {bad:?}");
            assert_eq!(bad.counts, [0, 1, 0]);
        }
    }
}
