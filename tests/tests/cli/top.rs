//! `caracal top` on a pseudo terminal, as a person has it: a session that goes down is seen, the
//! frame follows the terminal's size, and each end restores the terminal.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use caracal_lab::{Lab, wait_until};
use caracal_tests::{Processes, SECOND, await_settled, exit_code, possible, up_text};

/// What runs on the terminal; the name of each run is in `$1`.
const SESSION: &str = "
stty cols 100 rows 30
tty >$1.tty
stty -g >$1.before
sh -c 'echo $$ >$1.pid; exec \"$CARACAL\" top' top $1
echo $? >$1.code
stty -g >$1.after
";

/// The terminal: a shell of its own, whose keys come from a pipe.
const TERMINAL: &str = "exec script -q -f -c \"sh session $1\" $1.typescript <$1.keys";

/// One run of the command.
struct Terminal {
    folder: PathBuf,
    name: &'static str,
    keys: File,
}

impl Terminal {
    fn open(lab: &Lab, processes: &mut Processes, name: &'static str) -> Self {
        let folder = processes.folder().to_owned();
        std::fs::write(folder.join("session"), SESSION).unwrap();
        let pipe = folder.join(format!("{name}.keys"));
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        // The command is started by the shell with what the lab gives it.
        let of_node = lab.caracal_command("node1", &["top"]).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", TERMINAL, "sh", name]);
        let set = of_node
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?)));
        command.envs(set).env("CARACAL", of_node.get_program());
        command.env("SHELL", "/bin/sh").process_group(0);
        processes.start(name, Some(&lab.netns("node1").unwrap()), &mut command);
        let keys = File::options().write(true).open(&pipe).unwrap();
        Self { folder, name, keys }
    }

    fn file(&self, ending: &str) -> String {
        read(&self.folder.join(format!("{}.{ending}", self.name)))
    }

    /// The last frame that is there as a whole, without what moves the cursor; a row a line.
    fn frame(&self) -> String {
        let all = self.file("typescript");
        let frames: Vec<&str> = all.split("\x1b[H").collect();
        let whole = frames.iter().rev().find(|frame| frame.ends_with("\x1b[J"));
        plain(whole.unwrap_or(&""))
    }

    fn await_frame(&self, what: &str, holds: impl Fn(&str) -> bool) {
        let seen = wait_until(30 * SECOND, what, || match self.frame() {
            frame if holds(&frame) => Ok(()),
            frame => Err(frame),
        });
        seen.unwrap_or_else(|e| panic!("{e}"));
    }

    /// It has ended with code 0, and the terminal is as it was.
    fn await_end(&self) {
        let ended = wait_until(30 * SECOND, "the end", || {
            let after = self.file("after");
            if after.ends_with('\n') {
                Ok(after)
            } else {
                Err(self.frame())
            }
        });
        let after = ended.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(self.file("code"), "0\n");
        assert_eq!(after, self.file("before"), "the terminal is not restored");
        let all = self.file("typescript");
        let (_, left) = all.rsplit_once("\x1b[J").unwrap();
        let restored = left.find("\x1b[?25h").zip(left.find("\x1b[?1049l"));
        assert!(restored.is_some(), "neither cursor nor screen: {left:?}");
    }
}

fn read(file: &Path) -> String {
    let octets = std::fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&octets).into_owned()
}

/// Text without control sequences; where the cursor goes to a row, a line begins.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut parts = text.split("\x1b[");
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
        if part[end..].starts_with('H') {
            plain.push('\n');
        }
        plain.push_str(part.get(end + 1..).unwrap_or_default());
    }
    plain
}

#[test]
fn a_person_sees_a_session_go_down_and_has_the_terminal_back() {
    if !possible("caracal top", &["script", "stty", "mkfifo"]) {
        return;
    }
    let mut lab = up_text(super::TOPOLOGY, "top", "top");
    await_settled(&lab);
    // Nobody's terminal: one frame, as with --once.
    for arguments in [&["top"][..], &["top", "--once"]] {
        let (code, text) = exit_code(&lab, "node1", arguments);
        assert_eq!(code, 0, "{text}");
        assert!(
            text.contains("● sessions 1 of 1") && text.contains("CPU "),
            "{text}"
        );
        assert!(!text.contains('\x1b') && !text.contains("q quit"), "{text}");
    }
    let mut processes = Processes::new("top");
    let mut terminal = Terminal::open(&lab, &mut processes, "first");
    terminal.await_frame("a session that is up", |frame| {
        frame.contains("● sessions 1 of 1") && frame.contains("● Established")
    });
    terminal.await_frame("what the keys are", |frame| {
        frame.lines().count() >= 30 && frame.contains("q quit")
    });
    lab.kill9_node("node2").unwrap();
    terminal.await_frame("a session that is down", |frame| {
        frame.contains("▲ sessions 0 of 1") && !frame.contains("● Established")
    });
    // The terminal gets narrow.
    assert!(terminal.frame().contains("ACCEPTED"));
    let tty = terminal.file("tty");
    let resized = Command::new("stty")
        .args(["-F", tty.trim(), "cols", "44", "rows", "12"])
        .status();
    assert!(resized.unwrap().success());
    terminal.await_frame("a narrow frame", |frame| {
        let rows = frame.lines().filter(|line| !line.is_empty());
        frame.contains("PEER")
            && !frame.contains("ACCEPTED")
            && rows.clone().count() <= 12
            && rows.map(|line| line.chars().count()).all(|wide| wide <= 44)
    });
    terminal.keys.write_all(b"\x1b[C").unwrap();
    terminal.await_frame("another order", |frame| frame.contains("SINCE▾"));
    terminal.keys.write_all(b"q").unwrap();
    terminal.await_end();

    lab.start_node("node2").unwrap();
    let terminal = Terminal::open(&lab, &mut processes, "second");
    terminal.await_frame("a session that is up again", |frame| {
        frame.contains("● sessions 1 of 1")
    });
    let pid = terminal.file("pid");
    let told = Command::new("kill").args(["-TERM", pid.trim()]).status();
    assert!(told.unwrap().success());
    terminal.await_end();
}
