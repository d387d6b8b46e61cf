//! Files: how many the process may open, and how one is replaced.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to what the administrator allows at most: a connection is one, a
/// speaker has as many as it has peers, and a shell's or a service's usual 1,024 is too few for a
/// thousand. Without success, what is there has to do.
pub(crate) fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, all) {
        tracing::warn!(%error, "the number of open files stays limited to {current:?}");
    }
}

/// Hidden, and without an ending that a runtime reads.
pub(crate) fn draft_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.caracal-new"))
}

/// Writes a file in one step, durably: after a crash there is the old one or the new one.
pub(crate) fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let draft = draft_of(path);
    let _absent = fs::remove_file(&draft);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)?;
    file.write_all(bytes)?;
    // The mask of the process may have taken bits away.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()?;
    fs::rename(&draft, path)
}
