//! State of a lab on disk, so that another process can look at it, use it and remove it.
//!
//! One folder per lab under `$CARACAL_LAB_DIR` (`/run/caracal-lab`): `state.json`, `topology.yaml`,
//! logs, etcd's data, and a run and lib folder per node. The state is written before the first
//! namespace exists and replaced atomically, so whatever a killed lab leaves can be found.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::{fs, io};

use caracal_model::Family;
use serde::{Deserialize, Serialize};

use crate::plan::LabName;
use crate::process::ProcessIdentity;

/// The folder of all labs when `CARACAL_LAB_DIR` is not set: on tmpfs, gone after a reboot as the
/// namespaces are.
const DEFAULT_ROOT: &str = "/run/caracal-lab";
/// The layout of `state.json`; another number belongs to another version of this program.
const VERSION: u32 = 1;
/// Octets of a UNIX socket's path, with the terminating zero.
const SOCKET_PATH_MAX: usize = 108;

/// Why the folder of a lab cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A lab of this name is there.
    #[error("lab {lab} is already there ({folder}); remove it with: caracal lab down {lab}")]
    Exists {
        /// Name of the lab.
        lab: String,
        /// Path of the lab's folder.
        folder: String,
    },
    /// No lab of this name is there.
    #[error("there is no lab {lab} ({folder} is missing); the labs are: {known}")]
    Absent {
        /// Name of the lab.
        lab: String,
        /// Where its folder would be.
        folder: String,
        /// The labs there are.
        known: String,
    },
    /// A file or folder cannot be read, made or written.
    #[error("cannot {action} {path}")]
    File {
        /// File operation that failed.
        action: &'static str,
        /// The file or folder.
        path: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// `state.json` is not one.
    #[error("{path} is no state of a lab")]
    Json {
        /// Path of the file.
        path: String,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// `state.json` of another version.
    #[error(
        "{path} has version {seen}, this program reads {VERSION}; remove the lab with the program that made it, or: caracal lab down"
    )]
    Version {
        /// Path of the file.
        path: String,
        /// Version in the file.
        seen: u32,
    },
    /// The admin sockets would not fit.
    #[error("{path} is longer than the {max} octets of a UNIX socket's path; use a shorter CARACAL_LAB_DIR or lab name",
        max = SOCKET_PATH_MAX - 1)]
    SocketPath {
        /// Path of the file or folder.
        path: String,
    },
}

/// Progress of a lab's bring-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LabPhase {
    /// Being brought up.
    Building,
    Up,
}

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabState {
    /// Version of this layout.
    pub version: u32,
    /// Name of the lab.
    pub lab: String,
    /// Progress of the bring-up.
    pub phase: LabPhase,
    /// Process that brings it up, or did.
    pub creator: ProcessIdentity,
    /// The `caracal` binary it runs.
    pub binary: PathBuf,
    /// All namespaces, also those not made yet.
    pub namespaces: Vec<String>,
    /// Processes by the name of their node, and `etcd`.
    pub processes: BTreeMap<String, ProcessIdentity>,
    /// Pods that were given to the CNI plugin.
    pub pods: Vec<PodState>,
}

/// A pod that the CNI plugin was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    /// Name of the node.
    pub node: String,
    /// Name of the pod.
    pub name: String,
    /// Name of the pod's network namespace.
    pub netns: String,
    /// Value of `CNI_CONTAINERID`.
    pub container: String,
    /// Its address, once ADD has answered.
    pub address: Option<IpAddr>,
    /// Its IPv6 address beside an IPv4 one, once ADD has answered.
    #[serde(default)]
    pub address6: Option<Ipv6Addr>,
    /// The node's end of its cable, once ADD has answered.
    pub host_interface: Option<String>,
}

impl PodState {
    /// Node and pod, as `NODE/POD`.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}/{}", self.node, self.name)
    }

    /// Its address of a family, once ADD has answered.
    #[must_use]
    pub fn address_of(&self, family: Family) -> Option<IpAddr> {
        let second = self.address6.map(IpAddr::V6);
        let mut all = self.address.into_iter().chain(second);
        all.find(|a| Family::of(*a) == family)
    }
}

impl LabState {
    /// The state before anything exists.
    #[must_use]
    pub fn new(lab: &LabName, binary: &Path, namespaces: Vec<String>) -> Self {
        Self {
            version: VERSION,
            lab: lab.to_string(),
            phase: LabPhase::Building,
            creator: ProcessIdentity::own(),
            binary: binary.to_owned(),
            namespaces,
            processes: BTreeMap::new(),
            pods: Vec::new(),
        }
    }
}

/// The folder of one lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabFolder {
    lab: LabName,
    path: PathBuf,
}

/// The folder of all labs.
#[must_use]
pub(crate) fn root() -> PathBuf {
    std::env::var_os("CARACAL_LAB_DIR")
        .filter(|v| !v.is_empty())
        .map_or_else(|| PathBuf::from(DEFAULT_ROOT), PathBuf::from)
}

/// The labs that have a folder, sorted.
#[must_use]
pub(crate) fn labs() -> Vec<LabName> {
    let Ok(entries) = fs::read_dir(root()) else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    let mut labs: Vec<_> = names.filter_map(|n| LabName::new(&n).ok()).collect();
    labs.sort();
    labs
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.display().to_string();
    move |source| StateError::File {
        action,
        path,
        source,
    }
}

impl LabFolder {
    /// The folder of a lab, which need not exist.
    #[must_use]
    pub fn new(lab: &LabName) -> Self {
        Self {
            lab: lab.clone(),
            path: root().join(lab.as_str()),
        }
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder; this is also the lock between two bring-ups of one name.
    ///
    /// # Errors
    /// [`StateError::Exists`] when a lab of this name is there.
    pub fn create(&self) -> Result<(), StateError> {
        let root = root();
        loop {
            match fs::create_dir_all(&root) {
                Ok(()) => {}
                // It was there, and was gone when it was looked at; or is there again by now.
                Err(e)
                    if e.kind() == io::ErrorKind::AlreadyExists
                        && (root.is_dir() || !root.exists()) =>
                {
                    continue;
                }
                Err(e) => return Err(file("make", &root)(e)),
            }
            match fs::create_dir(&self.path) {
                Ok(()) => break,
                // The last other lab went away in between, and the folder of all labs with it; by
                // now a third one may have made it again.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    let folder = self.path.display().to_string();
                    return Err(StateError::Exists {
                        lab: self.lab.to_string(),
                        folder,
                    });
                }
                Err(e) => return Err(file("make", &self.path)(e)),
            }
        }
        for name in ["log", "run", "lib", "bin", "etcd", "kubernetes"] {
            self.make(&self.path.join(name))?;
        }
        Ok(())
    }

    fn make(&self, path: &Path) -> Result<(), StateError> {
        fs::create_dir_all(path).map_err(file("make", path))
    }

    /// Makes a node's folders.
    ///
    /// # Errors
    /// [`StateError`] when they cannot be made, or when the admin socket's path would be too long.
    pub fn create_node(&self, node: &str) -> Result<(), StateError> {
        let socket = self.socket(node);
        if socket.as_os_str().len() >= SOCKET_PATH_MAX {
            return Err(StateError::SocketPath {
                path: socket.display().to_string(),
            });
        }
        self.make(&self.run(node))?;
        self.make(&self.lib(node))
    }

    /// Puts the binary under all names it is called by into [`LabFolder::bin`].
    ///
    /// # Errors
    /// [`StateError::File`].
    pub fn link_binary(&self, binary: &Path) -> Result<(), StateError> {
        for name in ["caracal", "caracal-cni", "caracal-flannel", "caracal-ipam"] {
            let link = self.bin().join(name);
            std::os::unix::fs::symlink(binary, &link).map_err(file("make", &link))?;
        }
        Ok(())
    }

    /// `CARACAL_RUN_DIR` of a node.
    #[must_use]
    pub fn run(&self, node: &str) -> PathBuf {
        self.path.join("run").join(node)
    }

    /// `CARACAL_LIB_DIR` of a node.
    #[must_use]
    pub fn lib(&self, node: &str) -> PathBuf {
        self.path.join("lib").join(node)
    }

    /// The admin socket of a node.
    #[must_use]
    pub fn socket(&self, node: &str) -> PathBuf {
        self.run(node).join("caracal.sock")
    }

    /// The log of a process.
    #[must_use]
    pub fn log(&self, process: &str) -> PathBuf {
        self.path.join("log").join(format!("{process}.log"))
    }

    /// The end of a process's log, for error messages.
    #[must_use]
    pub fn log_tail(&self, process: &str, lines: usize) -> String {
        let bytes = fs::read(self.log(process)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<_> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// `caracal`, under all names it is called by; also `CNI_PATH`.
    #[must_use]
    pub fn bin(&self) -> PathBuf {
        self.path.join("bin")
    }

    /// Path of etcd's data folder.
    #[must_use]
    pub fn etcd(&self) -> PathBuf {
        self.path.join("etcd")
    }

    /// Certificates, tokens and first objects of the API server.
    #[must_use]
    pub fn kubernetes(&self) -> PathBuf {
        self.path.join("kubernetes")
    }

    /// Path of the kubeconfig of an account: a node's name, or `admin`, who may do everything.
    #[must_use]
    pub fn kubeconfig(&self, who: &str) -> PathBuf {
        self.kubernetes().join(format!("{who}.kubeconfig"))
    }

    /// The copy of the topology file.
    #[must_use]
    pub fn topology(&self) -> PathBuf {
        self.path.join("topology.yaml")
    }

    fn state(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// Writes a file of the lab.
    ///
    /// # Errors
    /// [`StateError::File`].
    pub fn write(&self, path: &Path, text: &str) -> Result<(), StateError> {
        fs::write(path, text).map_err(file("write", path))
    }

    /// Replaces `state.json` at once: a reader, or a kill in between, sees the old or the new one.
    ///
    /// # Errors
    /// [`StateError::File`].
    pub fn save(&self, state: &LabState) -> Result<(), StateError> {
        let text = serde_json::to_string_pretty(state).expect("invariant: a state has string keys");
        let new = self.path.join("state.json.new");
        self.write(&new, &text)?;
        let path = self.state();
        fs::rename(&new, &path).map_err(file("replace", &path))
    }

    /// Reads `state.json`.
    ///
    /// # Errors
    /// [`StateError::Absent`] when the lab has no folder.
    pub fn load(&self) -> Result<LabState, StateError> {
        if !self.path.is_dir() {
            let labs = labs();
            let known: Vec<_> = labs.iter().map(LabName::as_str).collect();
            return Err(StateError::Absent {
                lab: self.lab.to_string(),
                folder: self.path.display().to_string(),
                known: if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                },
            });
        }
        let path = self.state();
        let text = fs::read_to_string(&path).map_err(file("read", &path))?;
        let path = path.display().to_string();
        let state: LabState = serde_json::from_str(&text).map_err(|source| StateError::Json {
            path: path.clone(),
            source,
        })?;
        if state.version != VERSION {
            return Err(StateError::Version {
                path,
                seen: state.version,
            });
        }
        Ok(state)
    }

    /// Removes the folder and, when it was the last lab's, the folder of all labs.
    ///
    /// # Errors
    /// [`StateError::File`].
    pub fn remove(&self) -> Result<(), StateError> {
        match fs::remove_dir_all(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(file("remove", &self.path)(e));
            }
            _ => {}
        }
        // Fails while other labs are there, and that is right.
        let _ = fs::remove_dir(root());
        Ok(())
    }
}
