//! A container's network namespace. A thread of its own enters it and ends; the rest of the process
//! never leaves the host's. A netlink socket that such a thread opens stays in the namespace.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};

/// Between two looks whether another call has ended.
const LOOK: Duration = Duration::from_millis(5);

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
        // Whatever else is there must not be opened: a FIFO would wait for its other end.
        let place = File::options()
            .read(true)
            .custom_flags(nix::libc::O_PATH)
            .open(path)
            .map_err(enter)?;
        let there = place.metadata().map_err(enter)?;
        let here = std::fs::metadata("/proc/thread-self/ns/net").map_err(enter)?;
        if there.dev() != here.dev() {
            // A mount point whose namespace was unmounted is an empty file on another file system.
            return Err(NetnsError::Gone { path: path.into() });
        }
        if there.ino() == here.ino() {
            return Err(NetnsError::Host { path: path.into() });
        }
        let file = File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).map_err(enter)?;
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
        let path = || self.path.clone();
        entered.map_err(|errno: nix::Error| match errno {
            // A namespace of another kind.
            nix::Error::EINVAL => NetnsError::Gone { path: path() },
            errno => NetnsError::Enter {
                path: path(),
                source: errno.into(),
            },
        })
    }

    /// Waits until no other call has its turn with the container; false when that takes longer than
    /// `limit`. The turn ends with this value, and with the process. Nothing is left on a disk: the
    /// lock is the namespace's own.
    pub(crate) async fn take_turn(&self, limit: Duration) -> bool {
        let taken = async {
            loop {
                match self.file.try_lock() {
                    Ok(()) => return true,
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(LOOK).await,
                    Err(TryLockError::Error(error)) => {
                        tracing::debug!(%error, "the namespace cannot be locked");
                        return true;
                    }
                }
            }
        };
        tokio::time::timeout(limit, taken).await.unwrap_or(false)
    }
}
