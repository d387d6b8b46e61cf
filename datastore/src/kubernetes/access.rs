//! Where an API server is, whom to trust, and who we are: what a configuration comes to.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use serde_json::{Value, json};

use super::program::{DescribeCluster, Program};
use crate::files::{SMALL_FILE, read_file, read_text_file};

/// Server, certificates and credentials. Files are read when they are used, so that renewed ones
/// count.
#[derive(PartialEq, Eq)]
pub(super) struct Access {
    pub(super) server: Uri,
    /// CA certificates; `None` = those that the system trusts.
    pub(super) authorities: Option<Pem>,
    /// The name in the server's certificate, where it is not its host.
    pub(super) server_name: Option<String>,
    /// The server's certificate is not looked at.
    pub(super) any_server: bool,
    /// A client certificate.
    pub(super) identity: Option<Identity>,
    pub(super) credentials: ApiCredentials,
}

// Nothing of what is secret.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Text in PEM.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Pem {
    File(PathBuf),
    Text(Vec<u8>),
}

impl Pem {
    pub(super) fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(octets) => Ok(octets.clone()),
            Self::File(path) => read_file(path, SMALL_FILE)
                .map_err(|error| format!("{} cannot be read: {error}", path.display())),
        }
    }

    /// Name in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Text(_) => "its data in the kubeconfig".to_owned(),
        }
    }
}

/// A client certificate and its key.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Identity {
    pub(super) certificate: Pem,
    pub(super) key: Pem,
}

/// Credentials of each request.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum ApiCredentials {
    None,
    /// A bearer token.
    Token(String),
    /// A file with one, which is renewed: it is read for each request.
    TokenFile(PathBuf),
    /// `NAME:PASSWORD` in base64.
    Basic(String),
    /// A program that gives them.
    Program(Program),
}

impl ApiCredentials {
    /// The header `Authorization`; none for a program, which has to be asked first.
    pub(super) fn header(&self) -> Result<Option<HeaderValue>, String> {
        let text = match self {
            Self::None | Self::Program(_) => return Ok(None),
            Self::Basic(encoded) => format!("Basic {encoded}"),
            Self::Token(token) => return bearer(token).map(Some),
            Self::TokenFile(path) => {
                let token = read_text_file(path).map_err(|error| {
                    format!("the token file {} cannot be read: {error}", path.display())
                })?;
                return bearer(&token).map(Some);
            }
        };
        authorization(text).map(Some)
    }
}

/// The header `Authorization` with a token.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    authorization(format!("Bearer {}", token.trim()))
}

fn authorization(text: String) -> Result<HeaderValue, String> {
    let header = HeaderValue::try_from(text);
    let mut header =
        header.map_err(|_| "the token has characters that no header can carry".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

impl DescribeCluster for Access {
    fn describe(&self) -> Result<Value, String> {
        let mut cluster = json!({"server": self.server()});
        if let Some(authorities) = &self.authorities {
            cluster["certificate-authority-data"] = STANDARD.encode(authorities.read()?).into();
        }
        if let Some(name) = &self.server_name {
            cluster["tls-server-name"] = name.as_str().into();
        }
        if self.any_server {
            cluster["insecure-skip-tls-verify"] = true.into();
        }
        Ok(cluster)
    }
}

impl Access {
    /// The server at a URL, without an account.
    pub(super) fn to(url: &str) -> Result<Self, String> {
        let server: Uri = url
            .parse()
            .map_err(|error| format!("the server {url:?} is not a URL: {error}"))?;
        let known =
            server.scheme() == Some(&Scheme::HTTP) || server.scheme() == Some(&Scheme::HTTPS);
        if !known || server.host().is_none_or(str::is_empty) {
            return Err(format!("the server {url:?} is not a URL of http or https"));
        }
        Ok(Self {
            server,
            authorities: None,
            server_name: None,
            any_server: false,
            identity: None,
            credentials: ApiCredentials::None,
        })
    }

    /// The server that a pod is told of in its environment, with the account that is mounted.
    pub(super) fn of_pod(
        lookup: impl Fn(&str) -> Option<String>,
        account: &Path,
    ) -> Result<Self, String> {
        let get = |name: &str| {
            lookup(name)
                .filter(|value| !value.is_empty())
                .ok_or_else(|| format!("{name} is not set"))
        };
        let host = get("KUBERNETES_SERVICE_HOST")?;
        let port = get("KUBERNETES_SERVICE_PORT")?;
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host,
        };
        let mut access = Self::to(&format!("https://{host}:{port}"))?;
        let token = account.join("token");
        if !token.exists() {
            return Err(format!("{} is not there", token.display()));
        }
        access.authorities = Some(Pem::File(account.join("ca.crt")));
        access.credentials = ApiCredentials::TokenFile(token);
        Ok(access)
    }

    /// The server's URL, for messages.
    pub(super) fn server(&self) -> String {
        self.server.to_string()
    }

    /// The URL of a path, with its query.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.server().trim_end_matches('/'))
    }

    /// Host and port.
    pub(super) fn host(&self) -> (String, u16) {
        let host = self.server.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let plain = self.server.scheme() == Some(&Scheme::HTTP);
        let port = self.server.port_u16();
        (
            host.to_owned(),
            port.unwrap_or(if plain { 80 } else { 443 }),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::TestFolder;

    #[test]
    fn a_pod_knows_its_server_and_its_account() {
        let folder = TestFolder::new("account");
        let environment = |host: &'static str| {
            move |name: &str| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
                _ => None,
            }
        };
        let said = Access::of_pod(|_| None, &folder).unwrap_err();
        assert_eq!(said, "KUBERNETES_SERVICE_HOST is not set");
        let said = Access::of_pod(environment("10.96.0.1"), &folder).unwrap_err();
        assert!(said.ends_with("/token is not there"), "{said}");
        std::fs::write(folder.join("token"), "first\n").unwrap();
        let access = Access::of_pod(environment("fd00::1"), &folder).unwrap();
        assert_eq!(access.url("/api"), "https://[fd00::1]:443/api");
        assert_eq!(access.host(), ("fd00::1".to_owned(), 443));
        let header = || access.credentials.header().unwrap().unwrap();
        assert_eq!(header(), "Bearer first");
        std::fs::write(folder.join("token"), "second").unwrap();
        assert_eq!(header(), "Bearer second");
        std::fs::remove_dir_all(&folder).unwrap();
        let said = access.credentials.header().unwrap_err();
        assert!(said.contains("/token cannot be read"), "{said}");
    }

    #[test]
    fn what_is_printed_holds_no_secret() {
        let mut access = Access::to("https://10.0.0.1:6443").unwrap();
        access.credentials = ApiCredentials::Token("secret".to_owned());
        let shown = format!("{access:?}");
        assert!(
            shown.contains("10.0.0.1") && !shown.contains("secret"),
            "{shown}"
        );
        let header = access.credentials.header().unwrap().unwrap();
        assert!(!format!("{header:?}").contains("secret"));
    }
}
