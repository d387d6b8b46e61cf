//! How to reach Kubernetes' API: Calico's variables, else a kubeconfig, else what a pod has.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use caracal_model::NodeName;
use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster};
use kube::config::{Context, NamedContext};

use super::mapping::ApiGroup;
use crate::patience::PATIENCE;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesConfigError {
    /// Neither a kubeconfig, nor an address, nor a pod's own account.
    #[error(
        "no way to Kubernetes' API is known: set KUBECONFIG, or K8S_API_ENDPOINT with K8S_CA_FILE and \
         K8S_API_TOKEN, or run in a pod with a service account ({0})"
    )]
    Nowhere(String),
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {path}: {reason}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// The fault.
        reason: String,
    },
    /// One of Calico's variables has a value that is not known.
    #[error("CALICO_API_GROUP={0}: expected crd.projectcalico.org/v1 or projectcalico.org/v3")]
    ApiGroup(String),
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
    /// A kubeconfig; its current context is used.
    pub kubeconfig: Option<PathBuf>,
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
    /// Pods of other nodes are neither listed nor watched.
    pub pods_of: Option<NodeName>,
    /// Limit for one request.
    pub request_timeout: Duration,
    /// How often it is asked whether the API server is there while nothing changes.
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
            pods_of: None,
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
            kubeconfig: get("KUBECONFIG").map(PathBuf::from),
            endpoint: get("K8S_API_ENDPOINT"),
            ca_file: get("K8S_CA_FILE").map(PathBuf::from),
            identity,
            token: get("K8S_API_TOKEN"),
            group,
            ..Self::default()
        })
    }

    /// Host and port of the API server.
    ///
    /// # Errors
    /// A kubeconfig cannot be read, or no way to the API is known.
    pub(crate) async fn hosts(&self) -> Result<Vec<(String, u16)>, KubernetesConfigError> {
        let url = self.resolve().await?.cluster_url;
        let host = url.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let plain = url.scheme_str() == Some("http");
        let port = url.port_u16().unwrap_or(if plain { 80 } else { 443 });
        Ok(vec![(host.to_owned(), port)])
    }

    /// Reads the files that are named.
    pub(super) async fn resolve(&self) -> Result<kube::Config, KubernetesConfigError> {
        let mut config = match (&self.kubeconfig, &self.endpoint) {
            (Some(path), _) => self.of_kubeconfig(path).await?,
            (None, Some(_)) => self.of_variables().await?,
            (None, None) => kube::Config::incluster()
                .map_err(|error| KubernetesConfigError::Nowhere(error.to_string()))?,
        };
        config.connect_timeout = Some(self.request_timeout);
        // Tries are ours: a write whose answer is lost must not be sent again.
        config.default_retry = false;
        Ok(config)
    }

    async fn of_kubeconfig(
        &self,
        path: &std::path::Path,
    ) -> Result<kube::Config, KubernetesConfigError> {
        let wrong = |reason: String| KubernetesConfigError::Kubeconfig {
            path: path.display().to_string(),
            reason,
        };
        let mut file = Kubeconfig::read_from(path).map_err(|error| wrong(chain(&error)))?;
        if let Some(user) = file.auth_infos.iter().find(|user| {
            user.auth_info
                .as_ref()
                .is_some_and(|info| info.exec.is_some() || info.auth_provider.is_some())
        }) {
            return Err(wrong(format!(
                "user {:?} gets its credentials from another program, and Caracal starts none; give it a token or a \
                 client certificate",
                user.name
            )));
        }
        if let Some(endpoint) = &self.endpoint {
            for cluster in file.clusters.iter_mut().filter_map(|c| c.cluster.as_mut()) {
                cluster.server = Some(endpoint.clone());
            }
        }
        kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(|error| wrong(chain(&error)))
    }

    /// Calico's variables, as the kubeconfig that says the same.
    async fn of_variables(&self) -> Result<kube::Config, KubernetesConfigError> {
        let path = |path: &PathBuf| path.display().to_string();
        let cluster = Cluster {
            server: self.endpoint.clone(),
            certificate_authority: self.ca_file.as_ref().map(path),
            ..Cluster::default()
        };
        let mut user = AuthInfo {
            client_certificate: self.identity.as_ref().map(|(cert, _)| path(cert)),
            client_key: self.identity.as_ref().map(|(_, key)| path(key)),
            ..AuthInfo::default()
        };
        user.token = self.token.clone().map(Into::into);
        let name = || "variables".to_owned();
        let file = Kubeconfig {
            clusters: vec![NamedCluster {
                name: name(),
                cluster: Some(cluster),
                ..NamedCluster::default()
            }],
            auth_infos: vec![NamedAuthInfo {
                name: name(),
                auth_info: Some(user),
                ..NamedAuthInfo::default()
            }],
            contexts: vec![NamedContext {
                name: name(),
                context: Some(Context {
                    cluster: name(),
                    user: Some(name()),
                    ..Context::default()
                }),
                ..NamedContext::default()
            }],
            current_context: Some(name()),
            ..Kubeconfig::default()
        };
        let wrong = |reason| KubernetesConfigError::Kubeconfig {
            path: "of K8S_API_ENDPOINT, K8S_CA_FILE, K8S_CERT_FILE, K8S_KEY_FILE".to_owned(),
            reason,
        };
        kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(|error| wrong(chain(&error)))
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
