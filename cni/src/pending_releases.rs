//! A DEL leaves a note on the node when the datastore does not answer: the addresses that are still
//! to be released. The node replays it later; so does the next ADD or DEL of the same attachment.
//!
//! A file per attachment in `LIB_DIR/cni-tombstones/`, written atomically. The directory's lock is
//! held from reading a note until it is deleted, so that no replay releases what a later ADD of the
//! same container holds (CNI-5).

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use caracal_datastore::{
    PUBLIC_MODE, SMALL_FILE, Store, create_file, make_folder, open_lock_file, read_file,
};
use caracal_model::{HandleId, Key};
use serde::{Deserialize, Serialize};

use crate::addresses::{self, AddressError};
use crate::attachment::{Attachment, calicos_handle};
use crate::endpoint::{self, EndpointError};

const DIRECTORY: &str = "cni-tombstones";
const LOCK: &str = ".lock";
const SUFFIX: &str = ".json";

/// Addresses of an attachment that are still to be released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRelease {
    /// The IPAM handle; absent when another IPAM plugin has the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<HandleId>,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// Path of the WorkloadEndpoint's key; absent when there never was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// When it was left, RFC 3339.
    pub left_at: String,
}

/// Why pending releases could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PendingReleaseError {
    /// Reading or writing failed.
    #[error("cannot {action} {path:?}")]
    File {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path:?} is no pending release; remove it after checking `caracal ipam check`")]
    Decode {
        /// The file.
        path: PathBuf,
        /// The fault.
        #[source]
        source: serde_json::Error,
    },
    /// Another process is replaying.
    #[error("another process is replaying the pending releases")]
    Busy,
    /// The endpoint could not be removed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The addresses could not be released.
    #[error(transparent)]
    Addresses(#[from] AddressError),
}

/// Outcome of a replay.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Containers whose remains are gone.
    pub done: Vec<String>,
    /// Failures; their files stay.
    pub failed: Vec<PendingReleaseError>,
    /// True when another process is replaying; nothing was done.
    pub busy: bool,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PendingReleaseError {
    let path = path.to_owned();
    move |source| PendingReleaseError::File {
        action,
        path,
        source,
    }
}

fn file_of(lib_dir: &Path, attachment: &Attachment) -> PathBuf {
    let name = attachment.short_handle() + SUFFIX;
    lib_dir.join(DIRECTORY).join(name)
}

/// Writes a pending release; one that is there is overwritten.
///
/// # Errors
/// [`PendingReleaseError::File`].
pub(crate) fn write(
    lib_dir: &Path,
    attachment: &Attachment,
    pending_release: &PendingRelease,
) -> Result<PathBuf, PendingReleaseError> {
    let directory = lib_dir.join(DIRECTORY);
    make_folder(&directory).map_err(failed("make", &directory))?;
    let path = file_of(lib_dir, attachment);
    // Two calls may write the same one.
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    let text =
        serde_json::to_vec_pretty(pending_release).expect("a pending release is always valid JSON");
    let write = || {
        let _absent = fs::remove_file(&draft);
        let mut file = create_file(&draft, PUBLIC_MODE)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(&directory)?.sync_all()
    };
    write().map_err(failed("write", &path))?;
    Ok(path)
}

/// All pending releases, sorted by file name.
///
/// # Errors
/// [`PendingReleaseError`].
pub fn list_pending_releases(lib_dir: &Path) -> Result<Vec<PendingRelease>, PendingReleaseError> {
    files(lib_dir)?.iter().map(|path| read(path)).collect()
}

fn files(lib_dir: &Path) -> Result<Vec<PathBuf>, PendingReleaseError> {
    let directory = lib_dir.join(DIRECTORY);
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed("list", &directory))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("list", &directory))?.path();
        if path.to_string_lossy().ends_with(SUFFIX) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn read(path: &Path) -> Result<PendingRelease, PendingReleaseError> {
    let text = read_file(path, SMALL_FILE).map_err(failed("read", path))?;
    serde_json::from_slice(&text).map_err(|source| PendingReleaseError::Decode {
        path: path.into(),
        source,
    })
}

fn lock_file(lib_dir: &Path) -> Result<(File, PathBuf), PendingReleaseError> {
    let path = lib_dir.join(DIRECTORY).join(LOCK);
    let file = open_lock_file(&path).map_err(failed("open", &path))?;
    Ok((file, path))
}

fn try_lock(lock: &File, path: &Path) -> Result<bool, PendingReleaseError> {
    match lock.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(failed("lock", path)(error)),
    }
}

/// Replays all pending releases. For the node's process, whenever the datastore is fresh.
///
/// # Errors
/// [`PendingReleaseError`] when the directory itself cannot be read; what fails of one pending
/// release is in the answer, and its file stays.
pub async fn replay_pending_releases<S: Store>(
    store: &S,
    lib_dir: &Path,
) -> Result<Replayed, PendingReleaseError> {
    let mut replayed = Replayed::default();
    if files(lib_dir)?.is_empty() {
        return Ok(replayed);
    }
    let (lock, path) = lock_file(lib_dir)?;
    if !try_lock(&lock, &path)? {
        replayed.busy = true;
        return Ok(replayed);
    }
    for path in files(lib_dir)? {
        match replay_one(store, &path).await {
            Ok(container) => replayed.done.push(container),
            Err(error) => replayed.failed.push(error),
        }
    }
    Ok(replayed)
}

/// How long to wait while another process replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Wait for its end: only then is the attachment's name free.
    Endless,
    /// Fail with [`PendingReleaseError::Busy`].
    None,
}

/// Replays the pending release of one attachment, when there is one.
///
/// # Errors
/// [`PendingReleaseError`].
pub(crate) async fn replay_of<S: Store>(
    store: &S,
    lib_dir: &Path,
    attachment: &Attachment,
    patience: Patience,
) -> Result<(), PendingReleaseError> {
    let path = file_of(lib_dir, attachment);
    if !path.exists() {
        return Ok(());
    }
    let (lock, lock_path) = lock_file(lib_dir)?;
    match patience {
        Patience::Endless => lock.lock().map_err(failed("lock", &lock_path))?,
        Patience::None if !try_lock(&lock, &lock_path)? => return Err(PendingReleaseError::Busy),
        Patience::None => {}
    }
    if path.exists() {
        replay_one(store, &path).await?;
    }
    Ok(())
}

async fn replay_one<S: Store>(store: &S, path: &Path) -> Result<String, PendingReleaseError> {
    let pending_release = read(path)?;
    if let Some(key) = &pending_release.endpoint
        && let Ok(key) = Key::parse(key)
    {
        if let Some(handle) = &pending_release.handle
            && calicos_handle(handle).is_some()
        {
            let networks =
                endpoint::networks_of(store, &key, &pending_release.container_id).await?;
            addresses::release_calicos(store, handle, &networks).await?;
        }
        endpoint::remove(store, &key, &pending_release.container_id).await?;
    }
    if let Some(handle) = &pending_release.handle {
        addresses::release(store, handle, &[]).await?;
    }
    fs::remove_file(path).map_err(failed("remove", path))?;
    tracing::info!(
        container = pending_release.container_id,
        "pending release replayed"
    );
    Ok(pending_release.container_id)
}

#[cfg(test)]
mod tests;
