//! Files of flannel's plugin: the daemon's `subnet.env`, and what was rendered for each attachment.
//! DEL needs the latter, for the subnet may be another one by then.
//!
//! Flannel's own plugin names a file by the container alone, so that a second interface of a
//! container takes the first one's place; ours has the interface in its name. A DEL finds both.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use caracal_datastore::{SECRET_MODE, make_folder, put_file, read_text_file};
use caracal_flannel::{SubnetEnv, SubnetEnvError};
use serde_json::{Map, Value};

use crate::attachment::FIRST_INTERFACE;
use crate::spec::env::is_identifier;

/// Between container and interface; neither can have it.
const BETWEEN: char = ':';

/// Why flannel's plugin cannot serve a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlannelError {
    /// The daemon has not written its file.
    #[error(
        "the flannel daemon of this node is not ready: there is no {}; the log of `caracal flannel` \
         (or flanneld) on this node says why",
        .path.display()
    )]
    NotReady {
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The daemon's file is of no use.
    #[error("{} {fault}; the flannel daemon of this node writes it at its start", .path.display())]
    SubnetEnv {
        path: PathBuf,
        fault: SubnetEnvError,
    },
    /// A file cannot be read, written or deleted.
    #[error("cannot {action} {}", .path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what an ADD has written.
    #[error(
        "{} is no configuration of a plugin, and it is not known what to detach; delete the file, \
         and release the container's address by hand (host-local: /var/lib/cni/networks)",
        .path.display()
    )]
    Saved {
        path: PathBuf,
        /// Error of the parser; `None` = it has no `type`.
        #[source]
        source: Option<serde_json::Error>,
    },
    /// ADD for what is attached.
    #[error(
        "the container already has an interface {ifname}; DEL comes before another ADD, or choose \
         another CNI_IFNAME"
    )]
    Occupied { ifname: String },
    /// CHECK for what is not attached.
    #[error("no ADD is known for interface {ifname} of this container: {} has no file of it", .dir.display())]
    Unknown { ifname: String, dir: PathBuf },
}

/// Reads the daemon's file.
///
/// # Errors
/// [`FlannelError`].
pub(crate) fn read_subnet_env(path: &Path) -> Result<SubnetEnv, FlannelError> {
    let text = read_text_file(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => FlannelError::NotReady {
            path: path.into(),
            source,
        },
        _ => failed("read", path)(source),
    })?;
    SubnetEnv::parse(&text).map_err(|fault| FlannelError::SubnetEnv {
        path: path.into(),
        fault,
    })
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FlannelError {
    let path = path.to_owned();
    move |source| FlannelError::File {
        action,
        path,
        source,
    }
}

/// The directory of what was rendered.
#[derive(Clone, Debug)]
pub(crate) struct SavedConfigurations {
    dir: PathBuf,
}

/// A file of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Saved {
    pub path: PathBuf,
    pub container_id: String,
    /// The interface; the first one where neither the file nor the call says.
    pub ifname: String,
    /// The file is named after the interface, too. Flannel's plugin does not do that.
    pub named: bool,
}

impl Saved {
    /// By the name of a file; `None` for what is nobody's attachment.
    fn of(path: PathBuf) -> Option<Self> {
        let name = path.file_name().and_then(OsStr::to_str)?;
        let named = name.split_once(BETWEEN);
        let (container_id, ifname) = named.unwrap_or((name, FIRST_INTERFACE));
        is_identifier(container_id).then(|| Self {
            container_id: container_id.to_owned(),
            ifname: ifname.to_owned(),
            named: named.is_some(),
            path: path.clone(),
        })
    }

    /// True when no other interface of the container can need the file: it is named after this one,
    /// or this is the first one, whose DEL comes last.
    pub(crate) fn is_of_this_interface(&self) -> bool {
        self.named || self.ifname == FIRST_INTERFACE
    }

    /// The configuration and the name of its plugin.
    ///
    /// # Errors
    /// [`FlannelError`].
    pub(crate) fn read(&self) -> Result<(Map<String, Value>, String), FlannelError> {
        let wrong = |source| FlannelError::Saved {
            path: self.path.clone(),
            source,
        };
        let text = read_text_file(&self.path).map_err(failed("read", &self.path))?;
        let conf: Map<String, Value> = serde_json::from_str(&text).map_err(|e| wrong(Some(e)))?;
        let kind = conf.get("type").and_then(Value::as_str).map(str::to_owned);
        let kind = kind.ok_or_else(|| wrong(None))?;
        Ok((conf, kind))
    }

    /// Deletes the file.
    ///
    /// # Errors
    /// [`FlannelError::File`].
    pub(crate) fn delete(&self) -> Result<(), FlannelError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("delete", &self.path)(error))
            }
            _ => Ok(()),
        }
    }
}

impl SavedConfigurations {
    pub(crate) const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Where they are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of an attachment, to be written.
    pub(crate) fn of(&self, container_id: &str, ifname: &str) -> Saved {
        Saved {
            path: self.dir.join(format!("{container_id}{BETWEEN}{ifname}")),
            container_id: container_id.to_owned(),
            ifname: ifname.to_owned(),
            named: true,
        }
    }

    /// What is there of an attachment: ours, else that of flannel's plugin, which does not say of
    /// which interface it is.
    pub(crate) fn find(&self, container_id: &str, ifname: &str) -> Option<Saved> {
        let ours = self.of(container_id, ifname);
        let flannels = Saved {
            path: self.dir.join(container_id),
            named: false,
            ..ours.clone()
        };
        [ours, flannels]
            .into_iter()
            .find(|saved| saved.path.is_file())
    }

    /// Writes what was rendered for an attachment, in one step, for root alone.
    ///
    /// # Errors
    /// [`FlannelError::File`].
    pub(crate) fn put(&self, saved: &Saved, conf: &[u8]) -> Result<(), FlannelError> {
        make_folder(&self.dir).map_err(failed("make", &self.dir))?;
        put_file(&saved.path, conf, SECRET_MODE).map_err(failed("write", &saved.path))
    }

    /// All, sorted.
    ///
    /// # Errors
    /// [`FlannelError::File`].
    pub(crate) fn all(&self) -> Result<Vec<Saved>, FlannelError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read", &self.dir)(error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed("read", &self.dir))?.path();
            all.extend(Saved::of(path).filter(|saved| saved.path.is_file()));
        }
        all.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt as _;

    use caracal_datastore::TestFolder;

    use super::*;

    struct Folder(TestFolder);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(TestFolder::new(name))
        }

        fn saved(&self) -> SavedConfigurations {
            SavedConfigurations::new(self.0.join("data"))
        }
    }

    #[test]
    fn each_interface_has_a_file_of_its_own_for_root_alone() {
        let folder = Folder::new("own");
        let saved = folder.saved();
        assert_eq!(saved.all().unwrap(), []);
        for (ifname, conf) in [
            ("eth0", r#"{"type":"bridge"}"#),
            ("net1", r#"{"type":"ptp"}"#),
        ] {
            saved.put(&saved.of("c1", ifname), conf.as_bytes()).unwrap();
        }
        let found = saved.find("c1", "net1").unwrap();
        assert_eq!(found.read().unwrap().1, "ptp");
        let mode = fs::metadata(&found.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        found.delete().unwrap();
        found.delete().unwrap();
        assert_eq!(saved.find("c1", "net1"), None);
        assert_eq!(
            saved.find("c1", "eth0").unwrap().read().unwrap().1,
            "bridge"
        );
    }

    #[test]
    fn files_of_flannels_plugin_are_found() {
        let folder = Folder::new("found");
        let saved = folder.saved();
        saved.put(&saved.of("c1", "eth0"), b"{}").unwrap();
        fs::write(saved.dir().join("c2"), r#"{"type":"bridge"}"#).unwrap();
        fs::write(saved.dir().join(".draft"), "").unwrap();
        fs::create_dir(saved.dir().join("c3")).unwrap();
        let there = saved.all().unwrap();
        let names: Vec<_> = there
            .iter()
            .map(|s| (s.container_id.as_str(), s.ifname.as_str()))
            .collect();
        assert_eq!(names, [("c1", "eth0"), ("c2", "eth0")]);
        let found = saved.find("c2", "eth0").unwrap();
        assert_eq!(found.path, saved.dir().join("c2"));
        assert!(found.is_of_this_interface());
        let second = saved.find("c2", "net1").unwrap();
        assert!(!second.is_of_this_interface(), "the first one needs it");
        assert_eq!(found.read().unwrap().1, "bridge");
        assert_eq!(saved.find("c3", "eth0"), None);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let folder = Folder::new("named");
        let saved = folder.saved();
        let file = saved.of("c1", "eth0");
        for conf in ["{", "[]", "{}"] {
            saved.put(&file, conf.as_bytes()).unwrap();
            let told = file.read().unwrap_err().to_string();
            assert!(told.contains("c1:eth0 is no configuration"), "{told}");
        }
        let path = folder.0.join("subnet.env");
        let told = read_subnet_env(&path).unwrap_err().to_string();
        assert!(
            told.contains("the flannel daemon of this node is not ready"),
            "{told}"
        );
        fs::write(
            &path,
            "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\n",
        )
        .unwrap();
        let told = read_subnet_env(&path).unwrap_err().to_string();
        assert!(
            told.contains("is missing FLANNEL_MTU, FLANNEL_IPMASQ"),
            "{told}"
        );
        let told = read_subnet_env(&folder.0).unwrap_err();
        assert!(
            matches!(told, FlannelError::File { action: "read", .. }),
            "{told}"
        );
    }
}
