//! A lab without root: a user namespace with its own mounts, network and processes, held open by
//! one small process per lab, which `caracal lab` commands enter by starting themselves again
//! inside.
//!
//! Inside, `/run` is a fresh tmpfs, so names of namespaces and the lab's folder are the lab's own.
//! Ending the holder ends everything: it is process 1 of the namespace.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::plan::LabName;
use crate::process::{ProcessIdentity, RunningProcess};
use crate::program::{self, Missing};

/// Set for the command inside; its value is the directory to go back to.
const INSIDE: &str = "CARACAL_LAB_INSIDE";
/// Script of process 1: it reports that /run is ready, then reaps orphans for ever.
const HOLDER: &str = "mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/netns /run/lock && \
                      echo ready && exec >/dev/null 2>&1 && while :; do sleep 3600 & wait $!; done";

/// Why a lab cannot be had without root.
#[derive(Debug, thiserror::Error)]
pub enum RootlessError {
    /// A program is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The kernel, or whoever configured it, says no.
    #[error(
        "caracal lab needs root (try sudo), or a kernel that lets users make user namespaces; here: {said}{hint}"
    )]
    Refused {
        /// Output of `unshare`.
        said: String,
        /// The setting that probably forbids it.
        hint: String,
    },
    /// The folder of holders.
    #[error("cannot use {path}")]
    File {
        /// The file or folder.
        path: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// Somebody else's folder stands where ours should.
    #[error("{path} belongs to another user")]
    Foreign {
        /// Path of the folder.
        path: String,
    },
    /// The holder of a new lab is there already.
    #[error(
        "lab {lab} is already there (held by process {pid}); remove it with: caracal lab down {lab}"
    )]
    Exists {
        lab: String,
        /// Process ID of its holder.
        pid: i32,
    },
    /// `nsenter` or the command inside did not start.
    #[error("cannot start {program}")]
    Start {
        program: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

/// Use of the lab's namespace by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamespacePurpose {
    /// Makes it; it goes again when the command fails.
    Create,
    /// Uses it, if it is there.
    Use,
    /// Ends it afterwards.
    Remove,
    /// Makes it, unless it is there, and ends it afterwards.
    Visit,
}

/// Rest of the work for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Everything: this process may make namespaces.
    Here,
    /// Nothing: the command ran inside and ended with this status.
    Done(i32),
    /// There is no such lab.
    Absent,
}

/// Goes back to the directory the command was given in: entering a mount namespace forgets it.
/// Comes before anything that reads a relative path.
///
/// # Errors
/// [`RootlessError::File`] when the directory cannot be seen inside.
pub(crate) fn restore_directory() -> Result<(), RootlessError> {
    let Some(directory) = std::env::var_os(INSIDE) else {
        return Ok(());
    };
    let path = PathBuf::from(directory);
    std::env::set_current_dir(&path).map_err(file(&path))
}

/// Lets the command run where it may make namespaces. With root that is here; without, the whole
/// command line runs again inside the lab's user namespace.
///
/// # Errors
/// [`RootlessError`] when the kernel does not allow that.
pub(crate) fn enter(lab: &LabName, purpose: NamespacePurpose) -> Result<Entry, RootlessError> {
    if is_here() {
        return Ok(Entry::Here);
    }
    let folder = folder();
    trusted(&folder)?;
    let record = folder.join(lab.as_str());
    let known = read(&record).filter(ProcessIdentity::alive);
    let holder = match (purpose, known) {
        (NamespacePurpose::Create, Some(holder)) => {
            return Err(RootlessError::Exists {
                lab: lab.to_string(),
                pid: holder.pid,
            });
        }
        (NamespacePurpose::Create, None) => {
            own(&folder)?;
            hold(&record)?
        }
        (_, Some(holder)) => holder,
        (NamespacePurpose::Visit, None) => {
            own(&folder)?;
            hold(&record)?
        }
        (_, None) => {
            let _ = fs::remove_file(&record);
            return Ok(Entry::Absent);
        }
    };
    let status = again(holder);
    let failed = !matches!(status, Ok(0));
    let over = match purpose {
        NamespacePurpose::Remove | NamespacePurpose::Visit => true,
        NamespacePurpose::Create => failed,
        NamespacePurpose::Use => false,
    };
    if over {
        // Its namespaces, and everything in them, end before it does.
        let _ = RunningProcess::known(holder).kill9();
        let _ = fs::remove_file(&record);
        // Fails while the user has other labs, and that is right.
        let _ = fs::remove_dir(&folder);
    }
    Ok(Entry::Done(status?))
}

/// May this process make namespaces itself?
#[must_use]
pub(crate) fn is_here() -> bool {
    std::env::var_os(INSIDE).is_some() || rustix::process::geteuid().is_root()
}

/// The labs that a user without root has; with root, those of [`crate::state::labs`].
#[must_use]
pub(crate) fn labs() -> Vec<LabName> {
    if is_here() {
        return crate::state::labs();
    }
    let folder = folder();
    if trusted(&folder).is_err() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let alive = entries
        .flatten()
        .filter(|e| read(&e.path()).is_some_and(|id| id.alive()));
    let mut labs: Vec<_> = alive
        .filter_map(|e| LabName::new(e.file_name().to_str()?).ok())
        .collect();
    labs.sort();
    labs
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> RootlessError {
    let path = path.display().to_string();
    move |source| RootlessError::File { path, source }
}

/// Folder in which the holders of this user's labs are recorded.
fn folder() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_dir());
    match runtime {
        Some(runtime) => runtime.join("caracal-lab"),
        None => std::env::temp_dir().join(format!("caracal-lab-{uid}")),
    }
}

/// Makes sure that only this user can write there.
fn own(folder: &Path) -> Result<(), RootlessError> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    made.map_err(file(folder))?;
    trusted(folder)
}

/// Not following a link: in a folder that all may write, it could be somebody else's.
fn trusted(folder: &Path) -> Result<(), RootlessError> {
    let meta = match fs::symlink_metadata(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(file(folder))?,
    };
    if meta.uid() == rustix::process::geteuid().as_raw() && meta.is_dir() {
        return Ok(());
    }
    Err(RootlessError::Foreign {
        path: folder.display().to_string(),
    })
}

fn read(record: &Path) -> Option<ProcessIdentity> {
    serde_json::from_str(&fs::read_to_string(record).ok()?).ok()
}

/// Starts the holder and records it.
fn hold(record: &Path) -> Result<ProcessIdentity, RootlessError> {
    let mut unshare = program::command("unshare")?;
    unshare.args([
        "--user",
        "--map-root-user",
        "--mount",
        "--net",
        "--pid",
        "--fork",
    ]);
    unshare.args(["--mount-proc", "--", "sh", "-c", HOLDER]);
    unshare
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let start = |source| RootlessError::Start {
        program: "unshare".to_owned(),
        source,
    };
    let mut child = unshare.spawn().map_err(start)?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        // An end without a word is a refusal, explained on the other stream.
        let _ = BufReader::new(out).read_line(&mut said);
    }
    let parent = i32::try_from(child.id()).expect("invariant: a pid fits pid_t");
    let first = (said.trim() == "ready").then(|| child_of(parent)).flatten();
    let Some(holder) = first.and_then(ProcessIdentity::read) else {
        let _ = child.kill();
        let mut words = String::new();
        if let Some(err) = child.stderr.as_mut() {
            let _ = err.read_to_string(&mut words);
        }
        let _ = child.wait();
        return Err(RootlessError::Refused {
            said: words.trim().to_owned(),
            hint: hint(),
        });
    };
    let text = serde_json::to_string(&holder).expect("invariant: an identity is two numbers");
    fs::write(record, text).map_err(file(record))?;
    Ok(holder)
}

/// `unshare --fork` waits for its one child, which is process 1 inside.
fn child_of(parent: i32) -> Option<i32> {
    let wanted = parent.to_string();
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = status
            .rsplit_once(')')
            .map(|(_, rest)| rest)
            .unwrap_or_default();
        rest.split_ascii_whitespace().nth(1) == Some(&wanted)
    })
}

fn hint() -> String {
    let read = |path: &str| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    for (key, forbids) in [
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
        ("user/max_user_namespaces", "0"),
    ] {
        if read(&format!("/proc/sys/{key}")) == forbids {
            return format!(" (sysctl {} is {forbids})", key.replace('/', "."));
        }
    }
    String::new()
}

/// Runs this very command line inside the holder's namespaces.
fn again(holder: ProcessIdentity) -> Result<i32, RootlessError> {
    let start = |program: &str| {
        let program = program.to_owned();
        move |source| RootlessError::Start { program, source }
    };
    let own = std::env::current_exe().map_err(start("this program"))?;
    let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let mut nsenter: Command = program::command("nsenter")?;
    nsenter
        // The user is root inside as it is, and may not drop groups it cannot name there.
        .args([
            "--preserve-credentials",
            "--user",
            "--mount",
            "--net",
            "--pid",
        ])
        .args(["--target", &holder.pid.to_string(), "--"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, directory);
    let status = nsenter.status().map_err(start("nsenter"))?;
    Ok(status.code().unwrap_or(1))
}
