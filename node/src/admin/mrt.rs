//! The table as a file in MRT format (RFC 6396).

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use caracal_bgp::SpeakerHandle;
use caracal_datastore::{PUBLIC_MODE, create_file, draft_of, make_folder};
use serde_json::Value;
use tokio::fs::File;
use tokio::io::{AsyncWriteExt, BufWriter};

use super::routes::text;
use crate::config::lib_dir;

/// `caracal bgp mrt FILE`: who may ask has the process write below one folder, and nowhere else.
///
/// # Errors
/// A text that says which file and what to do.
pub(crate) async fn dump_below_folder(
    speaker: &SpeakerHandle,
    file: &Path,
) -> Result<Value, String> {
    let file = below(&folder(), file)?;
    let (octets, left_out) = dump(speaker, &file).await?;
    Ok(serde_json::json!({ "file": file, "octets": octets, "leftOut": left_out }))
}

/// What to say of paths that are not in a file.
pub(crate) const LEFT_OUT: &str =
    "paths are left out: a record holds 65,535 octets of attributes at most (RFC 6396)";

/// `CARACAL_MRT_DIR`, or `mrt` in the library directory.
fn folder() -> PathBuf {
    let named = std::env::var_os("CARACAL_MRT_DIR").map(PathBuf::from);
    named.unwrap_or_else(|| lib_dir().join("mrt"))
}

/// The file of a name, which is in the folder or in one below it once all links are followed.
fn below(folder: &Path, name: &Path) -> Result<PathBuf, String> {
    let failed =
        |path: &Path, error: &io::Error| format!("cannot write {}: {error}", path.display());
    make_folder(folder).map_err(|error| failed(folder, &error))?;
    let real = folder.canonicalize();
    let real = real.map_err(|error| failed(folder, &error))?;
    let file = real.join(name);
    let refused = || {
        format!(
            "cannot write {}: the table is written to files below {} alone (CARACAL_MRT_DIR)",
            name.display(),
            folder.display()
        )
    };
    let (Some(above), Some(last)) = (file.parent(), file.file_name()) else {
        return Err(refused());
    };
    // What is not there is not looked for outside.
    let above = above
        .canonicalize()
        .map_err(|error| match above.starts_with(&real) {
            true => failed(&file, &error),
            false => refused(),
        })?;
    match above.starts_with(&real) {
        true => Ok(above.join(last)),
        false => Err(refused()),
    }
}

/// Writes the table; how many octets it has, and how many paths it lacks. The file is there as a
/// whole, on the disk, or not at all; a link of its name gives way to it.
///
/// # Errors
/// A text that names the file.
pub(crate) async fn dump(speaker: &SpeakerHandle, file: &Path) -> Result<(usize, usize), String> {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let time = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
    let mut reader = speaker.mrt(time).await.map_err(text)?;
    let draft = draft_of(file);
    let failed = |error: io::Error| format!("cannot write {}: {error}", file.display());
    let written = async {
        let _absent = tokio::fs::remove_file(&draft).await;
        let made = create_file(&draft, PUBLIC_MODE).map_err(failed)?;
        let mut out = BufWriter::new(File::from_std(made));
        let mut len = 0;
        while let Some(octets) = reader.next().await.map_err(text)? {
            len += octets.len();
            out.write_all(&octets).await.map_err(failed)?;
        }
        out.flush().await.map_err(failed)?;
        // Where the disk is full, some file systems say so only now.
        out.get_ref().sync_all().await.map_err(failed)?;
        tokio::fs::rename(&draft, file).await.map_err(failed)?;
        Ok((len, reader.left_out()))
    };
    let written: Result<(usize, usize), String> = written.await;
    if written.is_err() {
        // A partial file is useless; it may never have been created.
        let _removed = tokio::fs::remove_file(&draft).await;
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use caracal_datastore::TestFolder;

    use super::*;

    #[test]
    fn files_are_below_the_folder() {
        let dir = TestFolder::new("mrt");
        let (folder, outside) = (dir.join("mrt"), dir.join("outside"));
        make_folder(&folder.join("day")).unwrap();
        make_folder(&outside).unwrap();
        symlink(&outside, folder.join("link")).unwrap();
        symlink("day", folder.join("today")).unwrap();
        let real = folder.canonicalize().unwrap();
        let of = |name: &Path| below(&folder, name);
        for (name, file) in [
            ("table.mrt", "table.mrt"),
            ("day/table.mrt", "day/table.mrt"),
            ("today/table.mrt", "day/table.mrt"),
            ("day/../table.mrt", "table.mrt"),
        ] {
            assert_eq!(of(Path::new(name)), Ok(real.join(file)));
            assert_eq!(of(&folder.join(name)), Ok(real.join(file)));
        }
        for name in [
            "link/table.mrt",
            "../table.mrt",
            "..",
            "/etc/passwd",
            "/nowhere/x",
            "/",
        ] {
            let refused = of(Path::new(name)).unwrap_err();
            assert!(refused.contains("CARACAL_MRT_DIR"), "{refused}");
        }
        let absent = of(Path::new("absent/table.mrt")).unwrap_err();
        assert!(
            absent.contains("absent/table.mrt: No such file"),
            "{absent}"
        );
    }
}
