//! Files of the node and of the CNI plugin. What is read is a regular file of bounded length: a
//! FIFO would wait for its other end, and a device may have no end. What is locked is no link to
//! another file. What is written has the mode that it is meant to have, whatever the process's mask
//! is, and is there as a whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Octets of a file that people or programs write by hand: settings, certificates, tokens.
pub const SMALL_FILE: u64 = 4 << 20;

/// Mode of what everybody may read.
pub const PUBLIC_MODE: u32 = 0o644;
/// Mode of a secret.
pub const SECRET_MODE: u32 = 0o600;
const FOLDER: u32 = 0o755;

/// The octets of a regular file, of which a link may tell. At most `limit`.
///
/// # Errors
/// Those of the file system; `InvalidInput` for what is no regular file, `FileTooLarge` for one
/// that is longer.
pub fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut options = File::options();
    let file = open_regular(options.read(true), path)?;
    let too_large = || {
        let reason = format!("it is longer than {limit} octets");
        io::Error::new(io::ErrorKind::FileTooLarge, reason)
    };
    let length = file.metadata()?.len();
    if length > limit {
        return Err(too_large());
    }
    let mut octets = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(limit.saturating_add(1))
        .read_to_end(&mut octets)?;
    match octets.len() as u64 > limit {
        true => Err(too_large()),
        false => Ok(octets),
    }
}

/// [`read_file`] of at most [`SMALL_FILE`] octets of text.
///
/// # Errors
/// As [`read_file`]; `InvalidData` for what is no UTF-8.
pub fn read_text_file(path: &Path) -> io::Result<String> {
    let octets = read_file(path, SMALL_FILE)?;
    String::from_utf8(octets).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// A file to lock, made when there is none. Its content is left as it is.
///
/// # Errors
/// Those of the file system; a symbolic link and what is no regular file are refused.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(PUBLIC_MODE);
    let file = open(&mut options, path, libc::O_NOFOLLOW)?;
    if file.metadata()?.mode() & 0o777 != PUBLIC_MODE {
        // Another user's has the mode that it has.
        let _kept = file.set_permissions(Permissions::from_mode(PUBLIC_MODE));
    }
    Ok(file)
}

/// A file to append to, made when there is none; everybody may read it.
///
/// # Errors
/// Those of the file system; what is no regular file is refused.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let is_new = !path.exists();
    let file = open_regular(options.create(true).append(true), path)?;
    if is_new {
        // The mask of the process may have taken bits away.
        file.set_permissions(Permissions::from_mode(PUBLIC_MODE))?;
    }
    Ok(file)
}

fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    open(options, path, 0)
}

fn open(options: &mut OpenOptions, path: &Path, flags: i32) -> io::Result<File> {
    let refused = |what: &str| {
        let reason = format!("{what}; expected a regular file");
        io::Error::new(io::ErrorKind::InvalidInput, reason)
    };
    // Without waiting for the other end of a FIFO, and without taking a terminal.
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags);
    let file = options
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => refused("it is a symbolic link"),
            _ => error,
        })?;
    let kind = file.metadata()?.file_type();
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(file),
        (false, true) => Err(refused("it is a directory")),
        (false, false) => Err(refused("it is a FIFO, a socket or a device")),
    }
}

/// Hidden, and without an ending that a runtime reads.
#[must_use]
pub fn draft_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.caracal-new"))
}

/// Writes a file in one step, durably: after a crash there is the old one or the new one.
///
/// # Errors
/// Those of the file system.
pub fn put_file(path: &Path, octets: &[u8], mode: u32) -> io::Result<()> {
    let draft = draft_of(path);
    let _absent = fs::remove_file(&draft);
    let mut file = create_file(&draft, mode)?;
    file.write_all(octets)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

/// Makes a file that is not there yet, to be written.
///
/// # Errors
/// Those of the file system.
pub fn create_file(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(mode).open(path)?;
    // The mask of the process may have taken bits away.
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(file)
}

/// Makes a folder, with those above it, that everybody may read. One that is there stays as it is.
///
/// # Errors
/// Those of the file system.
pub fn make_folder(path: &Path) -> io::Result<()> {
    match make_one(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => {
                make_folder(above)?;
                make_one(path)
            }
            _ => Err(error),
        },
        made => made,
    }
}

fn make_one(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(FOLDER)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;
    use crate::testing::TestFolder;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn only_regular_files_of_bounded_length_are_read() {
        let folder = TestFolder::new("read");
        let fifo = folder.join("fifo");
        assert!(
            Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        for path in [&fifo, Path::new("/dev/zero"), &*folder] {
            let refused = read_file(path, SMALL_FILE).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{refused}");
            open_to_append(path).unwrap_err();
        }
        let (file, link) = (folder.join("file"), folder.join("link"));
        put_file(&file, b"12345678", PUBLIC_MODE).unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_file(&link, 8).unwrap(), b"12345678");
        let refused = read_file(&link, 7).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        // It says that it is empty.
        let refused = read_file(Path::new("/proc/self/environ"), 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn what_is_locked_is_no_link() {
        let folder = TestFolder::new("lock");
        let (victim, lock) = (folder.join("victim"), folder.join("lock"));
        symlink(&victim, &lock).unwrap();
        let refused = open_lock_file(&lock).unwrap_err();
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        assert!(!victim.exists());
        fs::remove_file(&lock).unwrap();
        fs::write(&lock, "kept").unwrap();
        fs::set_permissions(&lock, Permissions::from_mode(0o600)).unwrap();
        open_lock_file(&lock).unwrap();
        assert_eq!(
            (fs::read(&lock).unwrap(), mode(&lock)),
            (b"kept".into(), PUBLIC_MODE)
        );
    }

    /// The mask is the process's: a process of its own has another one.
    #[test]
    fn modes_do_not_follow_the_mask() {
        const CHILD: &str = "CARACAL_TEST_MASKED";
        let name = "files::tests::modes_do_not_follow_the_mask";
        if let Some(folder) = std::env::var_os(CHILD).map(PathBuf::from) {
            let inner = folder.join("a/b");
            make_folder(&inner).unwrap();
            put_file(&inner.join("public"), b"", PUBLIC_MODE).unwrap();
            put_file(&inner.join("secret"), b"", SECRET_MODE).unwrap();
            open_lock_file(&inner.join("lock")).unwrap();
            open_to_append(&inner.join("log")).unwrap();
            return;
        }
        for mask in ["000", "077", "027"] {
            let folder = TestFolder::new(&format!("mask-{mask}"));
            let test = std::env::current_exe().unwrap();
            let line = format!("umask {mask}; exec {} --exact {name}", test.display());
            let child = Command::new("sh")
                .args(["-c", &line])
                .env(CHILD, &*folder)
                .status();
            assert!(child.unwrap().success());
            let modes = [
                "a",
                "a/b",
                "a/b/public",
                "a/b/secret",
                "a/b/lock",
                "a/b/log",
            ];
            let modes = modes.map(|name| mode(&folder.join(name)));
            assert_eq!(
                modes,
                [
                    FOLDER,
                    FOLDER,
                    PUBLIC_MODE,
                    SECRET_MODE,
                    PUBLIC_MODE,
                    PUBLIC_MODE
                ],
                "umask {mask}"
            );
        }
    }
}
