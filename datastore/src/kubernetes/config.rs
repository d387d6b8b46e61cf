//! How to reach Kubernetes' API: Calico's variables, else a kubeconfig, else what a pod has.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_model::NodeName;

use super::access::{Access, ApiCredentials, Identity, Pem};
use super::kubeconfig;
use super::mapping::ApiGroup;
use crate::patience::PATIENCE;

/// Folder that Kubernetes mounts a pod's service account at.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesConfigError {
    /// Neither a kubeconfig, nor an address, nor a pod's own account.
    #[error(
        "no way to Kubernetes' API is known: set KUBECONFIG, or K8S_API_ENDPOINT with K8S_CA_FILE and \
         K8S_API_TOKEN, or run in a pod with a service account ({0})"
    )]
    Nowhere(String),
    /// The kubeconfig is not there: it may be written yet, as the CNI plugin's is by the node.
    #[error("kubeconfig {}: it is not there", .0.display())]
    Absent(PathBuf),
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// The fault.
        reason: String,
    },
    /// The address is not a URL.
    #[error("K8S_API_ENDPOINT: {0}")]
    Endpoint(String),
    /// One of Calico's variables has a value that is not known.
    #[error("CALICO_API_GROUP={0}: expected crd.projectcalico.org/v1 or projectcalico.org/v3")]
    ApiGroup(String),
    /// A flag that is neither.
    #[error("USE_POD_CIDR={0}: expected true or false")]
    UsePodCidr(String),
    /// A certificate without a key, or the other way round.
    #[error("{given} is set but {missing} is not; a client certificate needs both")]
    HalfIdentity {
        /// The setting that is there.
        given: &'static str,
        /// The setting that is not.
        missing: &'static str,
    },
}

/// How to reach Kubernetes' API. Nothing is read or connected before the first use.
#[derive(Clone, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// Paths of kubeconfigs, as `PATH` has them; the current context is used.
    pub kubeconfig: Option<OsString>,
    /// The API server's URL, instead of the kubeconfig's.
    pub endpoint: Option<String>,
    /// PEM file with the CA certificates to trust.
    pub ca_file: Option<PathBuf>,
    /// PEM files with the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A bearer token. Never printed.
    pub token: Option<String>,
    /// Which of Calico's API groups to use; `None` = the one that is served.
    pub(super) group: Option<ApiGroup>,
    /// Each Node's `podCIDRs` are its blocks, and there are no objects of IPAM.
    pub use_pod_cidr: bool,
    /// Pods of other nodes are neither listed nor watched, unless policies ask for them.
    pub pods_of: Option<NodeName>,
    /// What network policy is made of is listed and watched, too: policies with what they say,
    /// sets, tiers, namespaces and accounts for their labels, and the pods of all nodes.
    pub enforces_policy: bool,
    /// Services and EndpointSlices are followed although no BGPConfiguration has their addresses
    /// announced.
    pub follow_services: bool,
    /// Requests a second, other than lists and watches, that are sent without waiting; zero: all.
    pub requests_per_second: u32,
    /// Programs that a kubeconfig names for credentials (`exec`) are started. Only for commands,
    /// at whose terminal somebody may log in: daemons and plugins refuse such a kubeconfig.
    pub programs: bool,
    /// Limit for one request.
    pub request_timeout: Duration,
    /// How often a watch tells that the API server is there while nothing changes.
    pub progress_interval: Duration,
}

impl fmt::Debug for KubernetesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesConfig")
            .field("kubeconfig", &self.kubeconfig)
            .field("endpoint", &self.endpoint)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            endpoint: None,
            ca_file: None,
            identity: None,
            token: None,
            group: None,
            use_pod_cidr: false,
            pods_of: None,
            enforces_policy: false,
            follow_services: true,
            requests_per_second: 0,
            programs: false,
            request_timeout: PATIENCE,
            progress_interval: Duration::from_secs(10),
        }
    }
}

impl KubernetesConfig {
    /// Reads Calico's variables from any source. Empty counts as not set.
    ///
    /// # Errors
    /// A value is not known, or half of a pair is missing.
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, KubernetesConfigError> {
        let get = |name: &str| {
            let value = lookup(name).map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let group = match get("CALICO_API_GROUP").as_deref() {
            None => None,
            Some("crd.projectcalico.org/v1" | "crd.projectcalico.org") => Some(ApiGroup::V1),
            Some("projectcalico.org/v3" | "projectcalico.org") => Some(ApiGroup::V3),
            Some(other) => return Err(KubernetesConfigError::ApiGroup(other.to_owned())),
        };
        let half = |given, missing| Err(KubernetesConfigError::HalfIdentity { given, missing });
        let identity = match (get("K8S_CERT_FILE"), get("K8S_KEY_FILE")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (Some(_), None) => return half("K8S_CERT_FILE", "K8S_KEY_FILE"),
            (None, Some(_)) => return half("K8S_KEY_FILE", "K8S_CERT_FILE"),
            (None, None) => None,
        };
        Ok(Self {
            kubeconfig: get("KUBECONFIG").map(OsString::from),
            endpoint: get("K8S_API_ENDPOINT"),
            ca_file: get("K8S_CA_FILE").map(PathBuf::from),
            identity,
            token: get("K8S_API_TOKEN"),
            group,
            use_pod_cidr: flag(get("USE_POD_CIDR"))?,
            ..Self::default()
        })
    }

    /// Host and port of the API server.
    ///
    /// # Errors
    /// A kubeconfig cannot be read, or no way to the API is known.
    pub(crate) fn hosts(&self) -> Result<Vec<(String, u16)>, KubernetesConfigError> {
        Ok(vec![self.access()?.host()])
    }

    /// Where the server is and who we are. Reads a kubeconfig, and none of the files that it names.
    pub(super) fn access(&self) -> Result<Access, KubernetesConfigError> {
        match (&self.kubeconfig, &self.endpoint) {
            (Some(list), endpoint) => {
                let mut paths: Vec<PathBuf> = std::env::split_paths(list).collect();
                let first = paths.first().cloned().unwrap_or_default();
                paths.retain(|path| path.exists());
                if paths.is_empty() {
                    return Err(KubernetesConfigError::Absent(first));
                }
                let access = kubeconfig::read(&paths, endpoint.as_deref(), self.programs);
                access.map_err(|reason| KubernetesConfigError::Kubeconfig {
                    path: list.display().to_string(),
                    reason,
                })
            }
            (None, Some(endpoint)) => self.of_variables(endpoint),
            (None, None) => {
                let lookup = |name: &str| std::env::var(name).ok();
                Access::of_pod(lookup, Path::new(ACCOUNT)).map_err(KubernetesConfigError::Nowhere)
            }
        }
    }

    fn of_variables(&self, endpoint: &str) -> Result<Access, KubernetesConfigError> {
        let mut access = Access::to(endpoint).map_err(KubernetesConfigError::Endpoint)?;
        access.authorities = self.ca_file.clone().map(Pem::File);
        access.identity = self.identity.clone().map(|(certificate, key)| Identity {
            certificate: Pem::File(certificate),
            key: Pem::File(key),
        });
        if let Some(token) = &self.token {
            access.credentials = ApiCredentials::Token(token.clone());
        }
        Ok(access)
    }
}

/// `USE_POD_CIDR` as Calico reads it.
fn flag(text: Option<String>) -> Result<bool, KubernetesConfigError> {
    match text.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("false" | "f" | "0") => Ok(false),
        Some("true" | "t" | "1") => Ok(true),
        Some(_) => Err(KubernetesConfigError::UsePodCidr(text.unwrap_or_default())),
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(&format!(": {said}"));
        }
        cause = error.source();
    }
    text
}
