//! One node's process beside each library directory. The admin socket alone does not tell: a
//! cleaner of `/run` takes its file away, and a second process would start beside the first.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use caracal_datastore::{make_folder, open_lock_file};
use tokio::time::Instant;

/// The file in the library directory, which no cleaner looks into. It stays empty.
const FILE: &str = "node.lock";

/// Longest time that a process which was killed holds the lock: a program that it was starting has
/// a copy of the descriptor until it runs.
const STILL_HELD: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Takes the lock, until the value is dropped or the process ends. `None` where there can be no
/// such file: a directory that cannot be written is told elsewhere, and no reason not to route.
///
/// # Errors
/// Another process has it.
pub(super) async fn take_turn(lib_dir: &Path) -> anyhow::Result<Option<File>> {
    let path = lib_dir.join(FILE);
    let opened = make_folder(lib_dir).and_then(|()| open_lock_file(&path));
    let file = match opened {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "no lock against a second process");
            return Ok(None);
        }
    };
    let until = Instant::now() + STILL_HELD;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Err(TryLockError::WouldBlock) => anyhow::bail!(
                "another caracal node runs here: it holds {}; stop it first (CARACAL_LIB_DIR is the directory)",
                path.display()
            ),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, path = %path.display(), "no lock against a second process");
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_datastore::TestFolder;

    use super::*;

    #[tokio::test]
    async fn the_second_process_does_not_start() {
        let lib = TestFolder::new("only-one");
        let first = take_turn(&lib).await.unwrap();
        assert!(first.is_some());
        let refused = take_turn(&lib).await.unwrap_err().to_string();
        assert!(
            refused.contains("another caracal node runs here"),
            "{refused}"
        );
        drop(first);
        assert!(take_turn(&lib).await.unwrap().is_some());
        // Where nothing can be written the node runs all the same.
        assert!(take_turn(Path::new("/proc/none")).await.unwrap().is_none());
    }
}
