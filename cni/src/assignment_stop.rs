//! The node stops assignments while the datastore that answers is not known to be the cluster's:
//! what it calls free may be in use. The order is a file in the run directory, so that an ADD need
//! not ask the node.

use std::io;
use std::path::{Path, PathBuf};

use caracal_datastore::{PUBLIC_MODE, make_folder, put_file, read_text_file};

/// The file; it holds the reason.
const FILE: &str = "no-addresses";

/// No address is given out.
#[derive(Debug, thiserror::Error)]
#[error("no address is given out on this node: {0}")]
pub(crate) struct AssignmentsStopped(pub String);

fn path(run_dir: &Path) -> PathBuf {
    run_dir.join(FILE)
}

/// Says that no address is to be given out, or takes it back. A file that says so already stays.
///
/// # Errors
/// Those of the file system.
pub fn forbid_addresses(run_dir: &Path, reason: Option<&str>) -> io::Result<()> {
    let Some(reason) = reason else {
        return match std::fs::remove_file(path(run_dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    };
    let path = path(run_dir);
    if read_text_file(&path).is_ok_and(|said| said == reason) {
        return Ok(());
    }
    make_folder(run_dir)?;
    put_file(&path, reason.as_bytes(), PUBLIC_MODE)
}

/// Checks that addresses may be given out. A file that cannot be read stops nothing.
///
/// # Errors
/// [`AssignmentsStopped`].
pub(crate) fn check(run_dir: &Path) -> Result<(), AssignmentsStopped> {
    match read_text_file(&path(run_dir)) {
        Ok(reason) => Err(AssignmentsStopped(reason.trim().to_owned())),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_datastore::TestFolder;

    use super::*;

    #[test]
    fn the_word_is_given_and_taken_back() {
        let dir = TestFolder::new("assignment-stop");
        forbid_addresses(&dir, None).unwrap();
        check(&dir).unwrap();
        forbid_addresses(&dir, Some("another cluster's")).unwrap();
        let stopped = check(&dir).unwrap_err().to_string();
        assert!(
            stopped.ends_with("on this node: another cluster's"),
            "{stopped}"
        );
        // As a cleaner does.
        std::fs::remove_dir_all(&dir).unwrap();
        check(&dir).unwrap();
        forbid_addresses(&dir, Some("another cluster's")).unwrap();
        check(&dir).unwrap_err();
        forbid_addresses(&dir, None).unwrap();
        check(&dir).unwrap();
    }
}
