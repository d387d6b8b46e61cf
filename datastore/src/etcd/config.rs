//! How to reach etcd: a plain value that the environment or the CNI configuration fills.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::patience::PATIENCE;

/// etcd's port for clients, when an endpoint names none.
const CLIENT_PORT: u16 = 2379;
/// etcd's default client address, used when no endpoint is given.
const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:2379";

/// Files with the CA certificates that common distributions trust: for `https` without a CA file.
const SYSTEM_CA_FILES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdConfigError {
    /// An endpoint is not a URL of a known scheme.
    #[error(
        "etcd endpoint \"{endpoint}\": {reason}; expected http://HOST:PORT or https://HOST:PORT"
    )]
    Endpoint {
        /// As it was given.
        endpoint: String,
        /// The fault.
        reason: String,
    },
    /// A certificate without a key, or the other way round.
    #[error("{given} is set but {missing} is not; a client certificate needs both")]
    HalfIdentity {
        /// The setting that is there.
        given: &'static str,
        /// The setting that is not.
        missing: &'static str,
    },
    /// A password without a user name, or the other way round.
    #[error("{given} is set but {missing} is not; authentication needs both")]
    HalfCredentials {
        /// The setting that is there.
        given: &'static str,
        /// The setting that is not.
        missing: &'static str,
    },
    /// `https` and nothing to trust.
    #[error(
        "endpoint {endpoint} needs a CA certificate: set ETCD_CA_CERT_FILE (no system bundle was found)"
    )]
    NoCa {
        /// URL as it was given.
        endpoint: String,
    },
}

/// User name and password. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdCredentials {
    /// User name.
    pub username: String,
    /// In clear text.
    pub password: String,
}

impl fmt::Debug for EtcdCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({}, password hidden)", self.username)
    }
}

/// How to reach etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`. Without a scheme: `https` when a CA or client certificate
    /// is given, else `http`.
    pub endpoints: Vec<String>,
    /// PEM file with the CA certificates to trust. Without: the system's bundle.
    pub ca_cert_file: Option<PathBuf>,
    /// PEM file with the client certificate.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the client certificate's key.
    pub key_file: Option<PathBuf>,
    /// For etcd's own authentication.
    pub credentials: Option<EtcdCredentials>,
    /// Limit for connecting, all endpoints together: [`PATIENCE`].
    pub connect_timeout: Duration,
    /// Limit for one request: [`PATIENCE`].
    pub request_timeout: Duration,
    /// HTTP/2 ping interval. etcd disconnects clients that ping more often than every 5 s.
    pub keep_alive_interval: Duration,
    /// How long a ping may stay unanswered.
    pub keep_alive_timeout: Duration,
    /// How often a watch asks whether it is alive.
    pub progress_interval: Duration,
    /// How long that question may stay unanswered before the watch ends with an error.
    pub progress_timeout: Duration,
}

impl Default for EtcdConfig {
    fn default() -> Self {
        Self {
            endpoints: vec![DEFAULT_ENDPOINT.to_owned()],
            ca_cert_file: None,
            cert_file: None,
            key_file: None,
            credentials: None,
            connect_timeout: PATIENCE,
            request_timeout: PATIENCE,
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(5),
            progress_interval: Duration::from_secs(3),
            progress_timeout: Duration::from_secs(9),
        }
    }
}

impl EtcdConfig {
    /// Plain or TLS endpoints, everything else as by default.
    #[must_use]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Reads Calico's variables from any source: `ETCD_ENDPOINTS`, `ETCD_CA_CERT_FILE`,
    /// `ETCD_CERT_FILE`, `ETCD_KEY_FILE`, `ETCD_USERNAME`, `ETCD_PASSWORD`. Empty counts as not
    /// set.
    ///
    /// # Errors
    /// Only half of a pair is set. The rest is checked by
    /// [`EtcdStore::new`](super::EtcdStore::new).
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, EtcdConfigError> {
        let get = |name: &str| {
            lookup(name)
                .map(|value| value.trim().to_owned())
                .filter(|value| !value.is_empty())
        };
        let mut config = Self::default();
        if let Some(list) = get("ETCD_ENDPOINTS") {
            config.endpoints = list
                .split(',')
                .map(str::trim)
                .filter(|endpoint| !endpoint.is_empty())
                .map(str::to_owned)
                .collect();
        }
        config.ca_cert_file = get("ETCD_CA_CERT_FILE").map(PathBuf::from);
        config.cert_file = get("ETCD_CERT_FILE").map(PathBuf::from);
        config.key_file = get("ETCD_KEY_FILE").map(PathBuf::from);
        let half = |given, missing| Err(EtcdConfigError::HalfCredentials { given, missing });
        config.credentials = match (get("ETCD_USERNAME"), get("ETCD_PASSWORD")) {
            (Some(username), Some(password)) => Some(EtcdCredentials { username, password }),
            (Some(_), None) => return half("ETCD_USERNAME", "ETCD_PASSWORD"),
            (None, Some(_)) => return half("ETCD_PASSWORD", "ETCD_USERNAME"),
            (None, None) => None,
        };
        Ok(config)
    }

    /// Host and port of each endpoint.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (String, u16)> {
        self.endpoints.iter().map(|endpoint| {
            let rest = endpoint
                .split_once("://")
                .map_or(endpoint.as_str(), |(_, rest)| rest);
            let authority = rest.split('/').next().unwrap_or_default();
            let port = |text: &str| text.parse().unwrap_or(CLIENT_PORT);
            // An IPv6 address stands in brackets, or alone.
            if let Some((address, behind)) =
                authority.strip_prefix('[').and_then(|a| a.split_once(']'))
            {
                return (address.to_owned(), port(behind.trim_start_matches(':')));
            }
            match authority.split_once(':') {
                Some((host, digits)) if !digits.contains(':') => (host.to_owned(), port(digits)),
                _ => (authority.to_owned(), CLIENT_PORT),
            }
        })
    }

    /// The endpoints with their scheme, when everything fits together.
    pub(super) fn checked_endpoints(&self) -> Result<Vec<String>, EtcdConfigError> {
        let half = |given, missing| Err(EtcdConfigError::HalfIdentity { given, missing });
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => return half("ETCD_CERT_FILE", "ETCD_KEY_FILE"),
            (None, Some(_)) => return half("ETCD_KEY_FILE", "ETCD_CERT_FILE"),
            _ => {}
        }
        if self.endpoints.is_empty() {
            return Err(EtcdConfigError::Endpoint {
                endpoint: String::new(),
                reason: "no endpoint is given".to_owned(),
            });
        }
        self.endpoints
            .iter()
            .map(|endpoint| self.checked_endpoint(endpoint))
            .collect()
    }

    fn checked_endpoint(&self, endpoint: &str) -> Result<String, EtcdConfigError> {
        let fail = |reason: String| {
            Err(EtcdConfigError::Endpoint {
                endpoint: endpoint.to_owned(),
                reason,
            })
        };
        let url = match endpoint.split_once("://") {
            Some(("http" | "https", _)) => endpoint.to_owned(),
            Some((scheme, _)) => return fail(format!("scheme \"{scheme}\" is not known")),
            None if self.ca_cert_file.is_some() || self.cert_file.is_some() => {
                format!("https://{endpoint}")
            }
            None => format!("http://{endpoint}"),
        };
        match url.parse::<tonic::transport::Uri>() {
            Err(e) => return fail(e.to_string()),
            Ok(uri) if uri.host().is_none_or(str::is_empty) => {
                return fail("there is no host".to_owned());
            }
            Ok(uri) if uri.port_u16().is_none() => return fail("there is no port".to_owned()),
            Ok(_) => {}
        }
        if url.starts_with("https:") && self.ca_file().is_none() {
            return Err(EtcdConfigError::NoCa { endpoint: url });
        }
        Ok(url)
    }

    /// The file with the certificates to trust.
    pub(super) fn ca_file(&self) -> Option<&Path> {
        self.ca_cert_file.as_deref().or_else(|| {
            SYSTEM_CA_FILES
                .iter()
                .map(Path::new)
                .find(|path| path.exists())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<EtcdConfig, EtcdConfigError> {
        EtcdConfig::from_lookup(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn hosts_of_endpoints() {
        let endpoints = [
            "https://etcd.example:2390/",
            "10.0.0.1:2379",
            "http://[fd00::1]:2380",
            "fd00::2",
            "name",
        ];
        let hosts: Vec<_> = EtcdConfig::new(endpoints).hosts().collect();
        let expected = [
            ("etcd.example", 2390),
            ("10.0.0.1", 2379),
            ("fd00::1", 2380),
            ("fd00::2", 2379),
            ("name", 2379),
        ];
        assert_eq!(hosts, expected.map(|(host, port)| (host.to_owned(), port)));
    }

    #[test]
    fn calicos_variables_are_read() {
        let config = read(&[
            (
                "ETCD_ENDPOINTS",
                "https://10.0.0.1:2379, https://10.0.0.2:2379,",
            ),
            ("ETCD_CA_CERT_FILE", "/pki/ca.crt"),
            ("ETCD_CERT_FILE", "/pki/node.crt"),
            ("ETCD_KEY_FILE", "/pki/node.key"),
            ("ETCD_USERNAME", "calico"),
            ("ETCD_PASSWORD", "hunter2"),
        ])
        .unwrap();
        assert_eq!(
            config.checked_endpoints().unwrap(),
            ["https://10.0.0.1:2379", "https://10.0.0.2:2379"]
        );
        assert_eq!(
            config.ca_cert_file.as_deref(),
            Some(Path::new("/pki/ca.crt"))
        );
        assert_eq!(config.key_file.as_deref(), Some(Path::new("/pki/node.key")));
        assert!(!format!("{config:?}").contains("hunter2"));
        let unset = read(&[("ETCD_ENDPOINTS", " "), ("ETCD_CERT_FILE", "")]).unwrap();
        assert_eq!(unset, EtcdConfig::default());
    }

    #[test]
    fn a_missing_scheme_follows_the_certificates() {
        let mut config = EtcdConfig::new(["etcd.example:2379"]);
        assert_eq!(
            config.checked_endpoints().unwrap(),
            ["http://etcd.example:2379"]
        );
        config.ca_cert_file = Some("/pki/ca.crt".into());
        assert_eq!(
            config.checked_endpoints().unwrap(),
            ["https://etcd.example:2379"]
        );
    }

    #[test]
    fn each_mistake_is_named() {
        let mistake = |config: EtcdConfig| config.checked_endpoints().unwrap_err().to_string();
        let said = mistake(EtcdConfig::new(["ftp://a:1"]));
        assert!(said.starts_with("etcd endpoint \"ftp://a:1\": scheme \"ftp\" is not known"));
        assert!(mistake(EtcdConfig::new(["http://a"])).contains("there is no port"));
        assert!(mistake(EtcdConfig::new(["http://:2379"])).contains("etcd endpoint"));
        assert!(mistake(EtcdConfig::new([""; 0])).contains("no endpoint is given"));
        let config = EtcdConfig {
            key_file: Some("/pki/node.key".into()),
            ..EtcdConfig::default()
        };
        assert_eq!(
            mistake(config),
            "ETCD_KEY_FILE is set but ETCD_CERT_FILE is not; a client certificate needs both"
        );
        assert_eq!(
            read(&[("ETCD_USERNAME", "calico")])
                .unwrap_err()
                .to_string(),
            "ETCD_USERNAME is set but ETCD_PASSWORD is not; authentication needs both"
        );
    }
}
