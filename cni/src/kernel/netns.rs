//! A container's network namespace. A thread of its own enters it and ends; the rest of the process
//! never leaves the host's. A netlink socket that such a thread opens stays in the namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

/// An open network namespace.
#[derive(Debug)]
pub(crate) struct Netns {
    file: File,
    path: PathBuf,
}

/// Why a namespace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// There is nothing at the path, or no network namespace any more.
    #[error("there is no network namespace at {path:?} (CNI_NETNS); has the container ended?")]
    Gone { path: PathBuf },
    /// The path is the host's own namespace.
    #[error("{path:?} (CNI_NETNS) is the host's own network namespace; a pod needs one of its own")]
    Host { path: PathBuf },
    /// It cannot be opened or entered.
    #[error("cannot enter the network namespace at {path:?} (CNI_NETNS)")]
    Enter {
        path: PathBuf,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
}

impl Netns {
    /// Opens the namespace at a path.
    ///
    /// # Errors
    /// [`NetnsError`].
    pub(crate) fn open(path: &Path) -> Result<Self, NetnsError> {
        let enter = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                NetnsError::Gone { path: path.into() }
            }
            _ => NetnsError::Enter {
                path: path.into(),
                source,
            },
        };
        let file = File::open(path).map_err(enter)?;
        let there = file.metadata().map_err(enter)?;
        let here = std::fs::metadata("/proc/thread-self/ns/net").map_err(enter)?;
        if there.dev() != here.dev() {
            // A mount point whose namespace was unmounted is an empty file on another file system.
            return Err(NetnsError::Gone { path: path.into() });
        }
        if there.ino() == here.ino() {
            return Err(NetnsError::Host { path: path.into() });
        }
        Ok(Self {
            file,
            path: path.into(),
        })
    }

    /// The path it was opened at.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Runs `work` on a thread inside the namespace and returns what it returns. `work` must not
    /// touch the runtime but through a handle.
    ///
    /// # Errors
    /// [`NetnsError::Enter`].
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let entered = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(self.fd(), CloneFlags::CLONE_NEWNET)?;
                    Ok(work())
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        entered.map_err(|errno: nix::Error| NetnsError::Enter {
            path: self.path.clone(),
            source: errno.into(),
        })
    }
}
