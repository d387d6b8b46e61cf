//! The folder in which `host-local` keeps the addresses that it has given out: a file for each,
//! named by the address, with the container and its interface.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use caracal_datastore::{PUBLIC_MODE, make_folder, open_lock_file, put_file, read_text_file};

/// Before the handle, in files of addresses that our plugin has given out.
const NOTE: &str = "caracal:";

/// Whose an address is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LocalHolder {
    /// A container's, with its interface.
    Container(String, String),
    /// Our plugin has given it out, under this handle: noted here for the way back.
    Noted(String),
}

/// The folder of one network.
pub(super) struct HostLocal(pub(super) PathBuf);

impl HostLocal {
    /// Waits for the lock that the plugin takes for each call; it is held until the file is closed.
    pub(super) fn lock(&self) -> anyhow::Result<File> {
        let path = self.0.join("lock");
        let taken = make_folder(&self.0).and_then(|()| {
            let file = open_lock_file(&path)?;
            file.lock()?;
            Ok(file)
        });
        taken.with_context(|| format!("locking {}", path.display()))
    }

    /// All addresses of the folder; `None` without one.
    pub(super) fn read(&self) -> anyhow::Result<Option<BTreeMap<IpAddr, LocalHolder>>> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| self.0.display().to_string()),
        };
        let mut held = BTreeMap::new();
        for entry in entries {
            let name = entry.with_context(|| self.0.display().to_string())?;
            // `lock` and `last_reserved_ip.0` are there, too.
            let Some(address) = name.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let path = name.path();
            let text = read_text_file(&path).with_context(|| path.display().to_string())?;
            held.insert(address, holder(&text, &path)?);
        }
        Ok(Some(held))
    }

    /// Notes an address that our plugin has given out.
    pub(super) fn note(&self, address: IpAddr, handle: &str) -> anyhow::Result<()> {
        let path = self.0.join(address.to_string());
        let text = format!("{NOTE}{handle}");
        put_file(&path, text.as_bytes(), PUBLIC_MODE).with_context(|| path.display().to_string())
    }

    /// Forgets an address.
    pub(super) fn forget(&self, address: IpAddr) -> anyhow::Result<()> {
        let path = self.0.join(address.to_string());
        fs::remove_file(&path).with_context(|| path.display().to_string())
    }
}

fn holder(text: &str, path: &Path) -> anyhow::Result<LocalHolder> {
    if let Some(handle) = text.strip_prefix(NOTE) {
        return Ok(LocalHolder::Noted(handle.trim().to_owned()));
    }
    let mut lines = text.lines().map(str::trim);
    let container = lines.next().filter(|container| !container.is_empty());
    let container = container.with_context(|| {
        format!(
            "{} names no container, so that nobody could free the address: delete it if no container has the address",
            path.display()
        )
    })?;
    // Releases of before 2019 wrote no interface.
    let ifname = lines.next().filter(|ifname| !ifname.is_empty());
    let ifname = ifname.unwrap_or("eth0");
    Ok(LocalHolder::Container(
        container.to_owned(),
        ifname.to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_are_those_of_host_local() {
        let folder = std::env::temp_dir().join(format!("caracal-hl-{}", std::process::id()));
        let place = HostLocal(folder.join("cbr0"));
        assert_eq!(place.read().unwrap(), None);
        drop(place.lock().unwrap());
        for (name, text) in [
            ("10.5.48.2", "abc\r\neth0"),
            ("10.5.48.3", "def"),
            ("10.5.48.4", "abc\r\nnet1\n"),
            ("last_reserved_ip.0", "10.5.48.4"),
        ] {
            std::fs::write(place.0.join(name), text).unwrap();
        }
        let address = |n: u8| IpAddr::from([10, 5, 48, n]);
        place.note(address(9), "net.x:eth1").unwrap();
        let container = |id: &str, ifname: &str| LocalHolder::Container(id.into(), ifname.into());
        let expected = BTreeMap::from([
            (address(2), container("abc", "eth0")),
            (address(3), container("def", "eth0")),
            (address(4), container("abc", "net1")),
            (address(9), LocalHolder::Noted("net.x:eth1".to_owned())),
        ]);
        assert_eq!(place.read().unwrap(), Some(expected));
        place.forget(address(9)).unwrap();
        assert_eq!(place.read().unwrap().unwrap().len(), 3);
        std::fs::write(place.0.join("10.5.48.5"), "\n").unwrap();
        let told = format!("{:#}", place.read().unwrap_err());
        assert!(told.contains("10.5.48.5 names no container"), "{told}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
