//! Settings of a call on the node: directories, the node's name, the MTU. Calico's places are read
//! too.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_datastore::read_text_file;
use caracal_model::NodeName;

use crate::spec::NetConf;

/// Calico's directory of the node's files; also our default.
const CALICO_LIB_DIR: &str = "/var/lib/calico";
const RUN_DIR: &str = "/var/run/caracal";
/// Between two looks for a file that is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// The node's directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dirs {
    /// Survives a reboot: node name, MTU, pending releases.
    pub lib: PathBuf,
    /// Does not: the admin socket.
    pub run: PathBuf,
}

/// Why a setting cannot be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginSettingsError {
    /// A file that the configuration names cannot be read.
    #[error("network configuration: {key}: cannot read {path:?}; has the node's process started?")]
    File {
        key: &'static str,
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The MTU's file holds something else.
    #[error("{path:?} holds {text:?}; expected an MTU in octets, 68 to 65535")]
    Mtu {
        path: PathBuf,
        /// The file's text.
        text: String,
    },
    /// No MTU though the configuration demands one.
    #[error("network configuration: require_mtu_file is true and {path:?} does not exist")]
    NoMtu {
        /// The first place looked at.
        path: PathBuf,
    },
    /// A node's name that cannot be one.
    #[error("{name:?} is no name for a node; set nodename in the network configuration")]
    NodeName { name: String },
}

impl Dirs {
    /// The configuration's, else the environment's `CARACAL_LIB_DIR` and `CARACAL_RUN_DIR`, else
    /// the default.
    #[must_use]
    pub(crate) fn from_conf(conf: &NetConf, get: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name| get(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Self {
            lib: conf
                .lib_dir()
                .or_else(|| variable("CARACAL_LIB_DIR"))
                .unwrap_or_else(|| CALICO_LIB_DIR.into()),
            run: conf
                .run_dir()
                .or_else(|| variable("CARACAL_RUN_DIR"))
                .unwrap_or_else(|| RUN_DIR.into()),
        }
    }

    /// Where a file of the node may be.
    fn places(&self, file: &str) -> Vec<PathBuf> {
        let mut places = vec![self.lib.join(file)];
        let calico = Path::new(CALICO_LIB_DIR).join(file);
        if !places.contains(&calico) {
            places.push(calico);
        }
        places
    }

    /// The node's admin socket.
    #[must_use]
    pub(crate) fn admin_socket(&self) -> PathBuf {
        self.run.join("caracal.sock")
    }
}

fn first_text(places: &[PathBuf]) -> Option<(PathBuf, String)> {
    places.iter().find_map(|path| {
        let text = read_text_file(path).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| (path.clone(), text.to_owned()))
    })
}

/// The node's name: `nodename`, `nodename_file`, the file that the node's process writes,
/// `hostname`, the kernel's host name.
///
/// # Errors
/// [`PluginSettingsError`].
pub(crate) fn node_name(conf: &NetConf, dirs: &Dirs) -> Result<NodeName, PluginSettingsError> {
    let name = find_node_name(conf, dirs)?;
    if name.is_empty() || name.contains('/') || name.contains(char::is_whitespace) {
        return Err(PluginSettingsError::NodeName { name });
    }
    Ok(NodeName::from(name))
}

fn find_node_name(conf: &NetConf, dirs: &Dirs) -> Result<String, PluginSettingsError> {
    if !conf.nodename.is_empty() {
        return Ok(conf.nodename.clone());
    }
    if !conf.nodename_file.is_empty() {
        let path = PathBuf::from(&conf.nodename_file);
        match read_text_file(&path) {
            Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
            Ok(_) => {}
            Err(_) if conf.nodename_file_optional => {}
            Err(source) => {
                return Err(PluginSettingsError::File {
                    key: "nodename_file",
                    path,
                    source,
                });
            }
        }
    }
    if let Some((_, name)) = first_text(&dirs.places("nodename")) {
        return Ok(name);
    }
    if !conf.hostname.is_empty() {
        return Ok(conf.hostname.clone());
    }
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Ok(hostname.trim().to_lowercase())
}

/// The MTU of a pod's interface in octets; zero = leave it to the kernel.
///
/// # Errors
/// [`PluginSettingsError`].
pub(crate) fn mtu(conf: &NetConf, dirs: &Dirs) -> Result<u32, PluginSettingsError> {
    if conf.mtu != 0 {
        return Ok(conf.mtu);
    }
    match first_text(&dirs.places("mtu")) {
        Some((path, text)) => match text.parse() {
            Ok(mtu) if (68..=65535).contains(&mtu) => Ok(mtu),
            _ => Err(PluginSettingsError::Mtu { path, text }),
        },
        None if conf.require_mtu_file => Err(PluginSettingsError::NoMtu {
            path: dirs.lib.join("mtu"),
        }),
        None => Ok(0),
    }
}

/// [`mtu`], after a wait for a node that has just started and has not written the file yet: a pod
/// that is attached before would keep the kernel's MTU for its life, and its large packets would
/// not fit into the tunnel. Who does not wait for the agent's route (`route_wait_seconds` 0) does
/// not wait for its file either.
///
/// # Errors
/// [`PluginSettingsError`].
pub(crate) async fn mtu_soon(conf: &NetConf, dirs: &Dirs) -> Result<u32, PluginSettingsError> {
    let limit = Duration::from_secs(conf.route_wait().into());
    let end = tokio::time::Instant::now() + limit;
    loop {
        let waits = tokio::time::Instant::now() < end;
        match mtu(conf, dirs) {
            Ok(0) | Err(PluginSettingsError::NoMtu { .. }) if waits => {
                tokio::time::sleep(LOOK).await
            }
            found => return found,
        }
    }
}

/// A fresh UUID, version 4, as resources carry it in `metadata.uid`.
///
/// # Errors
/// When the kernel gives none.
pub(crate) fn fresh_uid() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests;
