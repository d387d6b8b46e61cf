//! Processes of a lab: started in a group of their own, known by pid *and* start time, so that a
//! recycled pid is never mistaken for ours.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::netns::{self, NetnsError};
use crate::wait::{Timeout, wait_until};

/// Until the kernel has closed everything of a killed process; see the limit of `ip`.
const KILLED: Duration = Duration::from_secs(120);

/// Identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process ID.
    pub pid: i32,
    /// Start time in clock ticks after boot, field 22 of `/proc/PID/stat`.
    pub start: u64,
}

/// Why a process did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// Its log cannot be opened.
    #[error("cannot open the log {path}")]
    Log {
        /// Path of the log file.
        path: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The namespace or the program.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

/// State letter and start time of a process that exists.
fn stat(pid: i32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&text)
}

fn parse_stat(text: &str) -> Option<(char, u64)> {
    // The program's name stands in parentheses and may hold both blanks and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

impl ProcessIdentity {
    /// The identity of a process that exists now.
    #[must_use]
    pub fn read(pid: i32) -> Option<Self> {
        stat(pid).map(|(_, start)| Self { pid, start })
    }

    /// Identity of this process.
    #[must_use]
    pub fn own() -> Self {
        let pid = rustix::process::getpid().as_raw_pid();
        Self::read(pid).unwrap_or(Self { pid, start: 0 })
    }

    /// Is it still running? A zombie is not.
    #[must_use]
    pub fn alive(&self) -> bool {
        stat(self.pid).is_some_and(|(state, start)| start == self.start && !"ZX".contains(state))
    }

    /// Sends a signal to the process if it is still the same one.
    pub fn signal(&self, signal: Signal) {
        if let (true, Some(pid)) = (self.alive(), Pid::from_raw(self.pid)) {
            // It may end at this very moment, which is what was wanted.
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends SIGKILL to the process and to everything in the group it leads.
    pub fn kill_group(&self) {
        if let (true, Some(pid)) = (self.alive(), Pid::from_raw(self.pid))
            && kill_process_group(pid, Signal::KILL).is_err()
        {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// A process of the lab. The handle is there when this very process started it, and is needed to
/// reap it.
#[derive(Debug)]
pub struct RunningProcess {
    /// Process ID and start time.
    pub identity: ProcessIdentity,
    child: Option<Child>,
}

impl RunningProcess {
    /// A process that somebody else started.
    #[must_use]
    pub const fn known(identity: ProcessIdentity) -> Self {
        Self {
            identity,
            child: None,
        }
    }

    /// Starts a program inside a namespace, in a group of its own, with both streams to the end of
    /// `log`.
    ///
    /// # Errors
    /// [`SpawnError`].
    pub fn start(netns: &str, command: &mut Command, log: &Path) -> Result<Self, SpawnError> {
        let open = || OpenOptions::new().create(true).append(true).open(log);
        let file = |source| SpawnError::Log {
            path: log.display().to_string(),
            source,
        };
        let out = open().map_err(file)?;
        let err = out.try_clone().map_err(file)?;
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let child = netns::spawn(netns, command)?;
        let pid = i32::try_from(child.id()).expect("invariant: a pid fits pid_t");
        // Not reaped yet, so it is there even if it has ended.
        let identity = ProcessIdentity::read(pid).unwrap_or(ProcessIdentity { pid, start: 0 });
        Ok(Self {
            identity,
            child: Some(child),
        })
    }

    /// Exit status or signal of the process, or `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        match &mut self.child {
            Some(child) => match child.try_wait() {
                Ok(status) => status.map(|s| s.to_string()),
                Err(e) => Some(e.to_string()),
            },
            None if self.identity.alive() => None,
            None => Some("not running".to_owned()),
        }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`Timeout`].
    pub(crate) fn await_end(&mut self, deadline: Duration) -> Result<String, Timeout> {
        let what = format!("process {} to end", self.identity.pid);
        wait_until(deadline, &what, || self.ended().ok_or("running"))
    }

    /// SIGKILL to it and its group, then waits for the end.
    ///
    /// # Errors
    /// [`Timeout`] when even that does not help.
    pub fn kill9(&mut self) -> Result<String, Timeout> {
        self.identity.kill_group();
        self.await_end(KILLED)
    }

    /// SIGTERM, and SIGKILL when it is still there after `grace`. Tells how it ended.
    ///
    /// # Errors
    /// [`Timeout`] when even SIGKILL does not help.
    pub fn stop(&mut self, grace: Duration) -> Result<String, Timeout> {
        self.identity.signal(Signal::TERM);
        match self.await_end(grace) {
            Ok(end) => Ok(end),
            Err(_) => self.kill9(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_name_may_hold_parentheses() {
        let fields: Vec<_> = (4..=21).map(|n| n.to_string()).collect();
        let text = format!("42 (a) R (b) S {} 777 23", fields.join(" "));
        assert_eq!(parse_stat(&text), Some(('S', 777)));
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("1 (x"), None);
    }

    #[test]
    fn another_start_time_is_another_process() {
        let own = ProcessIdentity::own();
        assert!(own.alive());
        let other = ProcessIdentity {
            start: own.start + 1,
            ..own
        };
        assert!(!other.alive());
        // Must not reach us.
        other.signal(Signal::KILL);
        other.kill_group();
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let identity = ProcessIdentity::read(i32::try_from(child.id()).unwrap()).unwrap();
        let alive = || {
            if identity.alive() {
                Err("alive")
            } else {
                Ok(())
            }
        };
        wait_until(Duration::from_secs(5), "the zombie", alive).unwrap();
        child.wait().unwrap();
    }
}
