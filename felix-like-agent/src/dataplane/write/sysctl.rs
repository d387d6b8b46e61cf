//! Values below `/proc/sys`. Which network namespace `net/` shows is decided by the thread that
//! opens the file, so these are plain, synchronous reads and writes: nothing here blocks, it is
//! memory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use caracal_model::InsertEach;

const ROOT: &str = "/proc/sys";
/// Mount point of the host's `/proc/sys` in a container without privileges, whose own is read-only.
const HOST_ROOT: &str = "/host/proc/sys";

/// The present values of paths; those that cannot be read are left out.
pub(in crate::dataplane) fn read<'a>(
    paths: impl IntoIterator<Item = &'a String>,
) -> BTreeMap<String, String> {
    read_unknown(paths, BTreeMap::new())
}

/// The values of paths: those that are known as they are known, the others as they are now.
pub(in crate::dataplane) fn read_unknown<'a>(
    paths: impl IntoIterator<Item = &'a String>,
    mut known: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut value = |path: &String| known.remove(path).or_else(|| read_one(path));
    paths
        .into_iter()
        .filter_map(|path| Some((path.clone(), value(path)?)))
        .insert_each()
}

/// The present value of a path.
pub(in crate::dataplane) fn read_one(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new(ROOT).join(path)).ok()?;
    Some(text.trim_end().to_owned())
}

/// The names in a folder.
pub(in crate::dataplane) fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(Path::new(ROOT).join(folder));
    let names = entries.into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

pub(in crate::dataplane) fn write(path: &str, value: &str) -> io::Result<()> {
    match std::fs::write(Path::new(ROOT).join(path), value) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            std::fs::write(Path::new(HOST_ROOT).join(path), value)
        }
        result => result,
    }
}

/// True when the kernel has IPv6.
pub(in crate::dataplane) fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").is_dir()
}
