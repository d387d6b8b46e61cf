//! The console's variables: where it is served, and the files that say who may ask. Who asks
//! another node's console reads the same ones.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{ConfigError, Env};

/// The variables of the files.
pub(crate) const TOKEN: &str = "CARACAL_CONSOLE_TOKEN_FILE";
pub(crate) const CERTIFICATE: &str = "CARACAL_CONSOLE_CERT_FILE";
pub(crate) const KEY: &str = "CARACAL_CONSOLE_KEY_FILE";
pub(crate) const AUTHORITIES: &str = "CARACAL_CONSOLE_CA_CERT_FILE";

/// All of them: none has an effect on a node without `CARACAL_CONSOLE`.
pub(crate) const FILES: [&str; 4] = [TOKEN, CERTIFICATE, KEY, AUTHORITIES];

/// Files that say who may ask, and who we are when we ask others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConsoleFiles {
    /// One line that is a secret.
    pub(crate) token: Option<PathBuf>,
    /// The certificate in PEM, those between it and the authority behind it.
    pub(crate) certificate: Option<PathBuf>,
    /// Its key.
    pub(crate) key: Option<PathBuf>,
    /// The authorities that sign nodes' and clients' certificates.
    pub(crate) authorities: Option<PathBuf>,
}

impl ConsoleFiles {
    /// Those that the environment names.
    pub(crate) fn from_env(env: &Env<'_>) -> Self {
        let file = |name| env.text(name).map(PathBuf::from);
        Self {
            token: file(TOKEN),
            certificate: file(CERTIFICATE),
            key: file(KEY),
            authorities: file(AUTHORITIES),
        }
    }

    /// The console speaks TLS.
    pub(crate) const fn has_tls(&self) -> bool {
        self.certificate.is_some() || self.key.is_some() || self.authorities.is_some()
    }
}

/// `CARACAL_CONSOLE`.
pub(super) fn address(env: &Env<'_>) -> Result<Option<SocketAddr>, ConfigError> {
    env.parse("CARACAL_CONSOLE", |text| {
        let expected = "expected ADDRESS:PORT, such as 127.0.0.1:9095";
        text.parse().map_err(|_| expected.to_owned())
    })
}
