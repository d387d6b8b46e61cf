//! The `caracal lab` commands as separate processes, with root and without: up, list, status, exec,
//! down. The nodes are plain namespaces, so no `caracal` is needed.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use caracal_lab::{
    CommandError, DownCommand, ExecCommand, STATUS_PINGS, StatusCommand, TableForm, UpCommand,
    find_program, lab_demo, lab_down, lab_exec, lab_list, lab_status, lab_up, list_netns,
};

mod support;

use support::{SECOND, unique};

const TOPOLOGY: &str = "\
name: plain
segments: [{name: lan, cidr: 10.0.0.0/24}, {name: far, cidr: 10.0.1.0/24}]
routers: [{name: gate, legs: [{segment: lan}, {segment: far}]}]
nodes:
  - {name: n1, segment: lan, kind: plain}
  - {name: n2, segment: far, kind: plain}
";

/// Runs in a process of its own, as the `caracal` binary would.
#[test]
#[ignore = "a part of the other tests"]
fn child_runs_a_command() {
    let Ok(words) = std::env::var("LAB_TEST_COMMAND") else {
        return;
    };
    let words: Vec<_> = words.split_ascii_whitespace().collect();
    let mut out = std::io::stdout();
    let up = |file: &str, name: &str| UpCommand {
        file: file.into(),
        name: Some(name.to_owned()),
        binary: "/bin/true".into(),
        deadline: 10 * SECOND,
        keep: false,
        tables: TableForm::default(),
    };
    let result = match words.as_slice() {
        ["up", file, name] => lab_up(&up(file, name), &mut out),
        ["demo", file, name] => lab_demo(&up(file, name), &mut out),
        ["list"] => lab_list(&mut out),
        ["status", lab] => {
            let lab = Some((*lab).to_owned());
            lab_status(
                &StatusCommand {
                    lab,
                    json: true,
                    pings: STATUS_PINGS,
                    tables: TableForm::default(),
                },
                &mut out,
            )
        }
        ["exec", lab, target, command @ ..] => lab_exec(&ExecCommand {
            lab: Some((*lab).to_owned()),
            target: (*target).to_owned(),
            command: command.iter().map(OsString::from).collect(),
        }),
        ["down", lab] => lab_down(
            &DownCommand {
                lab: Some((*lab).to_owned()),
                all: false,
            },
            &mut out,
        ),
        other => panic!("{other:?}"),
    };
    let status = result.unwrap_or_else(|error: CommandError| {
        println!("error: {}", caracal_lab::error_chain(&error));
        99
    });
    std::process::exit(status);
}

/// Somebody who types commands.
struct User {
    program: PathBuf,
    folder: PathBuf,
    unprivileged: bool,
}

impl User {
    /// The test program is copied to where an unprivileged user may run it.
    fn new(name: &str, unprivileged: bool) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(unique(name));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).unwrap();
        let program = folder.join("lab");
        // Not by us: another test's child could inherit the open file, which then cannot be
        // executed.
        let mut copy = Command::new("cp");
        copy.arg(std::env::current_exe().unwrap()).arg(&program);
        assert!(copy.status().unwrap().success());
        std::fs::write(folder.join("plain.yaml"), TOPOLOGY).unwrap();
        Self {
            program,
            folder,
            unprivileged,
        }
    }

    fn types(&self, words: &str) -> (i32, String) {
        let mut command = if self.unprivileged {
            let mut setpriv = Command::new("setpriv");
            setpriv.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]);
            setpriv.arg(&self.program);
            setpriv
        } else {
            Command::new(&self.program)
        };
        let output = command
            .args([
                "--exact",
                "child_runs_a_command",
                "--ignored",
                "--nocapture",
            ])
            .env("LAB_TEST_COMMAND", words)
            .env_remove("XDG_RUNTIME_DIR")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words_of_error = String::from_utf8_lossy(&output.stderr);
        (
            output.status.code().unwrap(),
            format!("{text}{words_of_error}"),
        )
    }

    /// On a machine with one CPU the test harness has begun a line of its own.
    fn lists(&self, lab: &str) -> bool {
        self.expect("list", 0)
            .lines()
            .any(|line| line.ends_with(lab))
    }

    fn expect(&self, words: &str, status: i32) -> String {
        let (seen, text) = self.types(words);
        assert_eq!(seen, status, "{words}:\n{text}");
        text
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn a_whole_life(user: &User, lab: &str) {
    let text = user.expect(&format!("up plain.yaml {lab}"), 0);
    assert!(
        text.contains("cabled: 2 segments, 1 router, 2 nodes"),
        "{text}"
    );
    assert!(text.contains(&format!("caracal lab down {lab}")), "{text}");
    assert!(user.lists(lab));
    let text = user.expect(&format!("up plain.yaml {lab}"), 99);
    assert!(text.contains("is already there"), "{text}");
    let text = user.expect(&format!("status {lab}"), 0);
    assert!(text.contains(r#""address": "10.0.1.1/24""#), "{text}");
    let text = user.expect(&format!("exec {lab} n1 ping -nc1 -W2 10.0.1.1"), 0);
    assert!(text.contains("ttl=63"), "{text}");
    user.expect(&format!("exec {lab} n2 false"), 1);
    let text = user.expect(&format!("exec {lab} n9 true"), 99);
    assert!(
        text.contains("it has: etcd, gate, n1, n2, switch"),
        "{text}"
    );
    let text = user.expect(&format!("down {lab}"), 0);
    assert!(
        text.contains("removed 0 pods, 1 processes, 5 namespaces"),
        "{text}"
    );
    let text = user.expect(&format!("down {lab}"), 0);
    assert!(text.contains("nothing is left of it"), "{text}");
    assert!(!user.lists(lab));
    let text = user.expect(&format!("demo plain.yaml {lab}"), 0);
    assert_eq!(text.matches("everything has started").count(), 1, "{text}");
    assert_eq!(
        text.matches("1 processes, 5 namespaces").count(),
        1,
        "{text}"
    );
    assert!(!user.lists(lab));
}

#[test]
fn the_commands_work_with_root() {
    if support::possible("the_commands_work_with_root", &[]) {
        a_whole_life(&User::new("root", false), &unique("cmd"));
    }
}

#[test]
fn the_commands_work_without_root() {
    let test = "the_commands_work_without_root";
    if !support::possible(test, &["setpriv", "unshare", "nsenter"]) {
        return;
    }
    let user = User::new("nobody", true);
    let lab = unique("user");
    let allowed = Command::new("setpriv")
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"])
        .args([
            "unshare",
            "--user",
            "--map-root-user",
            "--net",
            "--mount",
            "true",
        ])
        .output()
        .unwrap();
    if !allowed.status.success() {
        // Then at least it says so, and leaves nothing.
        let text = user.expect(&format!("up plain.yaml {lab}"), 99);
        assert!(text.contains("caracal lab needs root"), "{text}");
        println!("{test}: only the refusal was tested, the kernel allows no user namespaces");
        return;
    }
    a_whole_life(&user, &lab);
    let outside = list_netns(&format!("car-{}", lab.replace('-', "_")));
    assert_eq!(
        outside,
        Vec::<String>::new(),
        "the machine's own namespaces are not touched"
    );
    assert!(!Path::new("/run/caracal-lab").join(&lab).exists());
}

#[test]
fn a_bad_file_is_explained_before_anything_is_made() {
    let user = User::new("badfile", false);
    let bad = TOPOLOGY.replace("segment: far, kind", "segment: fra, kind");
    std::fs::write(user.folder.join("bad.yaml"), bad).unwrap();
    let lab = unique("bad");
    let text = user.expect(&format!("up bad.yaml {lab}"), 99);
    assert!(
        text.contains("bad.yaml:6:25: no segment is called \"fra\""),
        "{text}"
    );
    let text = user.expect(&format!("up missing.yaml {lab}"), 99);
    assert!(
        text.contains("cannot read the topology file missing.yaml: No such file"),
        "{text}"
    );
    if find_program("ip").is_some() {
        assert!(list_netns(&format!("car-{}", lab.replace('-', "_"))).is_empty());
    }
}
