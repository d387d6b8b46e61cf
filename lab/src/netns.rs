//! Network namespaces by name (`/run/netns/NAME`, as `ip netns` makes them).
//!
//! Work inside a namespace is done on a thread of its own that enters it and ends with the work;
//! the calling thread never changes its namespace. A process started on such a thread begins there,
//! so nothing goes through `ip netns exec`, which would also hide `/sys`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const FOLDER: &str = "/run/netns";

/// Why nothing can be done in a namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// It cannot be opened.
    #[error("cannot open network namespace {name}")]
    Open {
        /// Name of the network namespace.
        name: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// It cannot be entered.
    #[error("cannot enter network namespace {name}")]
    Enter {
        /// Name of the network namespace.
        name: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// A program does not start in it.
    #[error("cannot start {program} in network namespace {name}")]
    Spawn {
        program: String,
        /// Name of the network namespace.
        name: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// A sysctl cannot be written in it.
    #[error("cannot write {value} to sysctl {key} in network namespace {name}")]
    Sysctl {
        /// Name of the network namespace.
        name: String,
        /// Name of the sysctl, with slashes.
        key: String,
        value: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

/// The file that keeps a namespace alive.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Runs `work` inside a namespace, on a thread of its own.
///
/// # Errors
/// When the namespace cannot be entered.
pub fn run<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    let open = |source| NetnsError::Open {
        name: name.to_owned(),
        source,
    };
    let file = File::open(path(name)).map_err(open)?;
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
                |errno| NetnsError::Enter {
                    name: name.to_owned(),
                    source: errno.into(),
                },
            )?;
            Ok(work())
        });
        match inside.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Starts a program inside a namespace.
///
/// # Errors
/// When the namespace cannot be entered or the program does not start.
pub fn spawn(name: &str, command: &mut Command) -> Result<Child, NetnsError> {
    let program = command.get_program().to_string_lossy().into_owned();
    run(name, || command.spawn())?.map_err(|source| NetnsError::Spawn {
        program,
        name: name.to_owned(),
        source,
    })
}

/// Writes a sysctl inside a namespace. With `optional`, a kernel that lacks the key is fine.
///
/// # Errors
/// When the kernel refuses.
pub fn sysctl(name: &str, key: &str, value: &str, optional: bool) -> Result<(), NetnsError> {
    // /proc/sys/net shows the namespace of the thread that looks.
    let file = Path::new("/proc/sys").join(key);
    match run(name, || fs::write(file, value))? {
        Err(e) if optional && e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(NetnsError::Sysctl {
            name: name.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
            source,
        }),
        Ok(()) => Ok(()),
    }
}

/// The namespaces whose name starts with `prefix`, sorted.
#[must_use]
pub fn list(prefix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(FOLDER) else {
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| n.starts_with(prefix))
        .collect();
    names.sort();
    names
}

/// The processes inside namespaces, by pid. One look at `/proc` serves all of them.
#[must_use]
pub(crate) fn processes(names: &[String]) -> BTreeMap<i32, String> {
    let identity = |m: &fs::Metadata| (m.dev(), m.ino());
    let wanted: BTreeMap<_, _> = names
        .iter()
        .filter_map(|n| Some((identity(&fs::metadata(path(n)).ok()?), n.clone())))
        .collect();
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net")).ok()?;
        Some((pid, wanted.get(&identity(&namespace))?.clone()))
    })
    .collect()
}
