//! Switches under `/proc/sys/net`. They belong to the network namespace of the thread that opens
//! them.

use std::io;
use std::path::PathBuf;

/// A switch that could not be set.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {path:?} to {value}; is /proc/sys mounted read-only?")]
pub struct SysctlError {
    pub path: PathBuf,
    /// The value wished.
    pub value: &'static str,
    /// Error of the kernel.
    #[source]
    pub source: io::Error,
}

/// Sets a switch; `name` is the part below `/proc/sys/net`. A switch that holds the value already
/// is not written: writing `ip_forward` resets others even then.
///
/// # Errors
/// [`SysctlError`].
pub(crate) fn set(name: &str, value: &'static str) -> Result<(), SysctlError> {
    let path = PathBuf::from("/proc/sys/net").join(name);
    let now = std::fs::read_to_string(&path);
    let written = match now {
        Ok(now) if now.trim() == value => Ok(()),
        Ok(_) => std::fs::write(&path, value),
        Err(error) => Err(error),
    };
    written.map_err(|source| SysctlError {
        path,
        value,
        source,
    })
}

/// True when the kernel of this namespace speaks IPv6.
#[must_use]
pub(crate) fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}
