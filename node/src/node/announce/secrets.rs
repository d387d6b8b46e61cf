//! Passwords of sessions, from files as Kubernetes mounts its Secrets:
//! `CARACAL_SECRETS_DIR/NAME/KEY`. The datastore holds none, and Calico's references name them by
//! secret and key.
//!
//! Files are looked at again and again: a mounted Secret changes without a word.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_bgp::Password;
use caracal_topologies::SecretName;
use tokio::sync::watch;

/// Interval of reading the files again.
const INTERVAL: Duration = Duration::from_secs(2);

/// Passwords by secret and key.
pub(crate) type Secrets = BTreeMap<SecretName, Password>;

/// Reads all secrets of a folder. One trailing line end is not part of a password.
pub(crate) fn read(folder: &Path) -> io::Result<Secrets> {
    let mut secrets = Secrets::new();
    for (name, path) in entries(folder)? {
        if !path.is_dir() {
            continue;
        }
        for (key, path) in entries(&path)? {
            if !path.is_file() {
                continue;
            }
            let text = caracal_datastore::read_text_file(&path)?;
            let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
            let name = name.clone();
            secrets.insert(SecretName { name, key }, Password(text));
        }
    }
    Ok(secrets)
}

/// Files of a folder; names that start with a dot are Kubernetes' own.
fn entries(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

/// Publishes what changes, for ever. What cannot be read leaves the last good passwords in use.
pub(crate) async fn watch_secrets(folder: PathBuf, secrets: watch::Sender<Secrets>) {
    let mut last_fault = String::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        match read(&folder) {
            Ok(next) => {
                last_fault.clear();
                secrets.send_if_modified(|known| {
                    let changed = *known != next;
                    *known = next;
                    changed
                });
            }
            Err(error) => {
                let fault = error.to_string();
                if fault != last_fault {
                    tracing::warn!(folder = %folder.display(), %error, "the passwords in use stay");
                }
                last_fault = fault;
            }
        }
        if secrets.is_closed() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use caracal_datastore::TestFolder;

    use super::*;

    #[test]
    fn files_as_kubernetes_mounts_them() {
        let folder = TestFolder::new("secrets");
        let data = folder.join("bgp/..data");
        std::fs::create_dir_all(&data).unwrap();
        std::fs::write(data.join("mesh"), "hunter2\n").unwrap();
        std::os::unix::fs::symlink("..data/mesh", folder.join("bgp/mesh")).unwrap();
        std::fs::write(folder.join("stray"), "x").unwrap();
        let secrets = read(&folder).unwrap();
        let name = SecretName {
            name: "bgp".into(),
            key: "mesh".into(),
        };
        assert_eq!(secrets, Secrets::from([(name, Password("hunter2".into()))]));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(read(&folder).is_err());
    }
}
