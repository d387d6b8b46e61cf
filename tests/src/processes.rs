//! Programs of one scenario, by name; and a log that nobody reads.

use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use caracal_lab::{spawn_in_netns, wait_until};

/// A program that was told to end gets so long.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// What a pipe of Linux holds (pipe(7)).
const PIPE: usize = 64 * 1024;

/// A pipe that nobody reads, and that has no room; it lives as long as its reader.
///
/// # Panics
/// When there is none to be had.
#[must_use]
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().expect("a pipe");
    writer.write_all(&[b' '; PIPE]).expect("room for so much");
    (reader, writer)
}

/// A folder and the programs that work in it. What each prints goes to `NAME.log` there, also what
/// another one of the same name printed before. They are killed, and the folder is removed, when it
/// goes out of scope.
#[derive(Debug)]
pub struct Processes {
    folder: PathBuf,
    running: Vec<(String, Child)>,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _gone = child.kill();
            let _status = child.wait();
        }
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}

impl Processes {
    /// None yet, with a folder `caracal-NAME` for temporary files.
    ///
    /// # Panics
    /// When the folder cannot be made.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("caracal-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder for temporary files");
        Self {
            folder,
            running: Vec::new(),
        }
    }

    /// Where the programs work, and where their logs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the programs of a name have printed so far.
    #[must_use]
    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default()
    }

    /// Starts a program in the folder, in a network namespace where one is given.
    ///
    /// # Panics
    /// When it does not start.
    #[allow(clippy::expect_used)]
    pub fn start(&mut self, name: &str, netns: Option<&str>, command: &mut Command) {
        let log = self.folder.join(format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log);
        let log = log.expect("a log");
        command
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("one more handle of the log"))
            .stderr(log);
        let child = match netns {
            Some(netns) => spawn_in_netns(netns, command).expect(name),
            None => command.spawn().expect(name),
        };
        self.running.push((name.to_owned(), child));
    }

    /// The process of the program of a name that was started last.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn id(&self, name: &str) -> u32 {
        let child = self.running.iter().rfind(|(n, _)| n == name);
        child.expect(name).1.id()
    }

    /// Sends a signal, as `kill` names it (`-HUP`), to a program.
    ///
    /// # Panics
    /// When there is none of the name.
    #[allow(clippy::expect_used)]
    pub fn signal(&self, name: &str, signal: &str) {
        let id = self.id(name).to_string();
        let sent = Command::new("kill").args([signal, &id]).status();
        assert!(sent.expect("kill").success(), "{signal} to {name}");
    }

    /// The exit status of the program of a name that was started last; `None` while it runs.
    ///
    /// # Panics
    /// When there is none of the name.
    #[allow(clippy::expect_used)]
    pub fn status(&mut self, name: &str) -> Option<ExitStatus> {
        let child = self.running.iter_mut().rfind(|(n, _)| n == name);
        child.expect(name).1.try_wait().expect(name)
    }

    /// Sends a signal, and waits for the program's end.
    ///
    /// # Panics
    /// When there is none of the name, or it does not end.
    #[allow(clippy::expect_used)]
    pub fn end(&mut self, name: &str, signal: &str) -> ExitStatus {
        self.signal(name, signal);
        let at = self.running.iter().rposition(|(n, _)| n == name);
        let (_, mut child) = self.running.remove(at.expect(name));
        let what = format!("{name} to end after {signal}");
        let ended = wait_until(PATIENCE, &what, || {
            child.try_wait().expect(name).ok_or("it runs")
        });
        if ended.is_err() {
            let _gone = child.kill();
            let _status = child.wait();
        }
        ended.unwrap_or_else(|e| panic!("{e}\n{}", self.log(name)))
    }
}
