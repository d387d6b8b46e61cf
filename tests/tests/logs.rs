//! Standard output and standard error that take nothing: a reader that hangs, one that is gone, a
//! full disk. No daemon stops or ends for its log, and a command says that it could not print.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::pipe;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};

use caracal_lab::wait_until;
use caracal_tests::{Processes, SECOND, binary, full_pipe};

fn full_disk() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

/// A pipe whose reader is gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A speaker with this standard error answers, takes a signal, and ends as it should.
fn speaker_lives(what: &str, stderr: Stdio) {
    let site = Processes::new(&format!("logs-{what}-{}", std::process::id()));
    let file = site.folder().join("speaker.conf");
    let text = "router id 192.0.2.1;\n#: listen none\n\
                protocol bgp far {\n  local as 64512;\n  neighbor 192.0.2.9 as 64512;\n  ipv4 { import all; export all; };\n}\n";
    std::fs::write(&file, text).unwrap();
    let caracal = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command
            .args(arguments)
            .env("CARACAL_RUN_DIR", site.folder())
            .stdin(Stdio::null());
        command
    };
    let mut speaker = caracal(&["speaker", "-c", file.to_str().unwrap()])
        .env("CARACAL_LOG", "trace")
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let answers = |mut command: Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        other => Err(format!("{other:?}")),
    };
    for arguments in [&["bgp", "peers"][..], &["speaker", "reload"]] {
        wait_until(60 * SECOND, "an answer", || answers(caracal(arguments)))
            .unwrap_or_else(|e| panic!("{what}: {e}, {:?}", speaker.try_wait()));
    }
    let mut kill = Command::new("kill");
    let killed = kill.arg("-TERM").arg(speaker.id().to_string()).status();
    assert!(killed.unwrap().success());
    let ended = wait_until(60 * SECOND, "the end", || match speaker.try_wait() {
        Ok(Some(status)) => Ok(status),
        other => Err(format!("{other:?}")),
    });
    let status = ended.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(status.success(), "{what}: {status}");
}

#[test]
fn a_speaker_outlives_whoever_reads_its_log() {
    speaker_lives("full-disk", full_disk());
    speaker_lives("closed-pipe", closed_pipe());
    let (reader, stderr) = full_pipe();
    speaker_lives("full-pipe", stderr.into());
    drop(reader);
}

/// A disk that is full in the middle of a table: no file, no "ok", and room for the next one. The
/// process may write files of so many KiB, where a number is given.
fn table_within(kibibytes: Option<u32>) -> (Option<i32>, String, Vec<String>) {
    let mut site = Processes::new(&format!(
        "mrt-{}-{}",
        kibibytes.unwrap_or(0),
        std::process::id()
    ));
    let (file, tables) = (
        site.folder().join("speaker.conf"),
        site.folder().join("tables"),
    );
    let route = |n: u32| format!("route 10.{}.{}.0/24 blackhole;", n / 256, n % 256);
    let routes: Vec<String> = (0..2000).map(route).collect();
    let text = format!(
        "router id 192.0.2.1;\n#: listen none\ndefine caracal_local_as = 64512;\nprotocol static own {{ ipv4; {} }}\n",
        routes.join(" ")
    );
    std::fs::write(&file, text).unwrap();
    std::fs::create_dir(&tables).unwrap();
    let limit = kibibytes.map_or_else(String::new, |k| format!("ulimit -f {k}; "));
    // A file that is too large is an error, and not the end.
    let line = format!("trap '' XFSZ; {limit}exec \"$0\" speaker -c \"$1\"");
    let folder = site.folder().to_owned();
    let with_folders = |command: &mut Command| {
        command
            .env("CARACAL_RUN_DIR", &folder)
            .env("CARACAL_MRT_DIR", &tables);
    };
    let mut speaker = Command::new("bash");
    speaker.args(["-c", &line]).arg(binary()).arg(&file);
    with_folders(&mut speaker);
    site.start("speaker", None, &mut speaker);
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).stdin(Stdio::null());
        with_folders(&mut command);
        command.output().unwrap()
    };
    wait_until(60 * SECOND, "all routes", || {
        let output = ask(&["bgp", "routes", "-o", "json"]);
        let said = String::from_utf8_lossy(&output.stdout);
        match said.matches("10.7.207.0/24").count() {
            0 => Err(format!("{} octets, {}", said.len(), site.log("speaker"))),
            _ => Ok(()),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
    let output = ask(&["bgp", "mrt", "table.mrt"]);
    let said = [output.stdout, output.stderr].concat();
    let names = std::fs::read_dir(&tables).unwrap();
    let names = names.map(|name| name.unwrap().file_name().to_string_lossy().into_owned());
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.code(), said, names.collect())
}

#[test]
fn a_table_that_does_not_fit_is_not_there() {
    let (code, said, names) = table_within(None);
    assert_eq!(
        (code, &*names),
        (Some(0), &["table.mrt".to_owned()][..]),
        "{said}"
    );
    let (code, said, names) = table_within(Some(16));
    assert_eq!((code, &*names), (Some(1), &[][..]), "{said}");
    assert!(said.contains("table.mrt: File too large"), "{said}");
}

/// Commands that need nothing else.
const COMMANDS: [&[&str]; 7] = [
    &["--help"],
    &["--version"],
    &["version"],
    &["version", "-o", "json"],
    &["explain-code", "agent.kernel_unreadable"],
    &["completion", "bash"],
    &["man"],
];

fn run(arguments: &[&str], stdout: Stdio, stderr: Stdio) -> (ExitStatus, String) {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null());
    let output = command.stdout(stdout).stderr(stderr).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status, said)
}

#[test]
fn a_command_whose_output_cannot_be_written_says_so() {
    for arguments in COMMANDS {
        let (status, said) = run(arguments, Stdio::null(), Stdio::piped());
        assert!(status.success(), "{arguments:?}: {status} {said}");
        let (status, said) = run(arguments, full_disk(), Stdio::piped());
        assert_eq!(status.code(), Some(1), "{arguments:?}: {status} {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        let (status, _) = run(arguments, full_disk(), full_disk());
        assert_eq!(status.code(), Some(1), "{arguments:?}: {status}");
        // A reader that has enough is no fault.
        let (status, said) = run(arguments, closed_pipe(), Stdio::piped());
        assert_eq!((status.code(), &*said), (Some(0), ""), "{arguments:?}");
    }
    // What goes wrong is told on standard error, as far as that takes it.
    for stderr in [full_disk(), closed_pipe()] {
        let (status, _) = run(&["speaker", "--check", "/nowhere"], Stdio::null(), stderr);
        assert_eq!((status.code(), status.signal()), (Some(1), None));
    }
}

/// A runtime that does not read: the call fails, and says why where somebody listens.
#[test]
fn a_plugin_whose_answer_cannot_be_written_fails() {
    let plugin = |stdout: Stdio, stderr: Stdio| {
        let mut command = Command::new(binary());
        command.arg0("caracal-cni").env("CNI_COMMAND", "VERSION");
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command.output().unwrap()
    };
    for stdout in [full_disk(), closed_pipe()] {
        let output = plugin(stdout, Stdio::piped());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for stderr in [full_disk(), closed_pipe()] {
        let output = plugin(full_disk(), stderr);
        assert_eq!(output.status.code(), Some(1));
    }
}
