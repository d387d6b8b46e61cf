//! The pod of a call as Kubernetes has it: Calico's policies select an endpoint by its pod's labels
//! and account, and pods and namespaces wish for addresses by annotations. And the ranges of the
//! node's pods, for `host-local`.

use caracal_datastore::{
    Datastore, DatastoreConfig, DatastoreConfigError, KubernetesPod, StoreError,
};
use caracal_model::NodeName;
use serde_json::Value;

use crate::attachment::{Attachment, Workload};
use crate::spec::{ConfigError, NetConf, pod_cidr};

/// Why a pod is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    /// Kubernetes' API cannot be asked.
    #[error(
        "policy.type is \"k8s\" or ipam.subnet usePodCidr, and the way to Kubernetes' API is wrong; see kubernetes.kubeconfig in the \
         network configuration"
    )]
    Config(#[source] DatastoreConfigError),
    /// It did not answer, or refused.
    #[error(
        "cannot read the pod {pod} and its namespace from Kubernetes' API (policies select the pod by its labels); \
         are kubernetes.kubeconfig in the network configuration and the account's rights right?"
    )]
    Read {
        /// `NAMESPACE/NAME`.
        pod: String,
        #[source]
        source: StoreError,
    },
    /// Ranges of the node's pods could not be read.
    #[error(
        "cannot read the Node {node} from Kubernetes' API, whose podCIDRs ipam.subnet usePodCidr stands for; are \
         kubernetes.kubeconfig in the network configuration and the account's rights right?"
    )]
    Ranges {
        node: String,
        #[source]
        source: StoreError,
    },
    /// Kubernetes does not know the node.
    #[error("Kubernetes has no Node {0}, whose podCIDRs ipam.subnet usePodCidr stands for")]
    UnknownNode(String),
    /// The node has no such range.
    #[error(transparent)]
    NoRange(#[from] ConfigError),
    /// It is gone, or never was.
    #[error("Kubernetes has no such pod: {0}")]
    Absent(String),
    /// It is another one of the same name.
    #[error("the pod {pod} was replaced: it has the UID {uid} now, and this call is for {wanted}")]
    Replaced {
        /// `NAMESPACE/NAME`.
        pod: String,
        uid: String,
        /// `K8S_POD_UID` of `CNI_ARGS`.
        wanted: String,
    },
}

impl PodError {
    /// True when the same call may succeed later.
    #[must_use]
    pub(crate) const fn is_transient(&self) -> bool {
        match self {
            Self::Read { source, .. } | Self::Ranges { source, .. } => source.is_transient(),
            Self::Absent(_) | Self::UnknownNode(_) => true,
            Self::Config(_) | Self::NoRange(_) | Self::Replaced { .. } => false,
        }
    }
}

/// Kubernetes' API as the configuration names it; what it leaves out is the environment's.
///
/// # Errors
/// [`DatastoreConfigError`].
pub(crate) fn api_config(
    conf: &NetConf,
    get: impl Fn(&str) -> Option<String>,
) -> Result<DatastoreConfig, DatastoreConfigError> {
    let (kubernetes, policy) = (&conf.kubernetes, &conf.policy);
    let first = |texts: &[&String]| {
        let given = texts.iter().find(|text| !text.is_empty());
        given.map(|text| (*text).clone())
    };
    DatastoreConfig::from_lookup(|name| {
        let given = match name {
            "DATASTORE_TYPE" => Some("kubernetes".to_owned()),
            "KUBECONFIG" => first(&[&kubernetes.kubeconfig]),
            "K8S_API_ENDPOINT" => first(&[&kubernetes.k8s_api_root, &policy.k8s_api_root]),
            "K8S_API_TOKEN" => first(&[&policy.k8s_auth_token]),
            "K8S_CERT_FILE" => first(&[&policy.k8s_client_certificate]),
            "K8S_KEY_FILE" => first(&[&policy.k8s_client_key]),
            "K8S_CA_FILE" => first(&[&policy.k8s_certificate_authority]),
            "CALICO_API_GROUP" => first(&[&conf.calico_api_group]),
            _ => None,
        };
        given.or_else(|| get(name))
    })
}

/// The API server that is not the datastore.
///
/// # Errors
/// [`PodError::Config`].
pub(crate) fn beside(
    conf: &NetConf,
    get: impl Fn(&str) -> Option<String>,
) -> Result<Datastore, PodError> {
    let config = api_config(conf, get);
    config
        .and_then(DatastoreConfig::open)
        .map_err(PodError::Config)
}

/// Looks up the pod of an attachment; `uid` is that of the call, when the runtime tells it. `None`
/// for what is no pod.
///
/// # Errors
/// [`PodError`].
pub(crate) async fn read_pod(
    api: &Datastore,
    attachment: &Attachment,
    uid: Option<&str>,
) -> Result<Option<KubernetesPod>, PodError> {
    let Workload::Pod { namespace, name } = &attachment.workload else {
        return Ok(None);
    };
    let label = format!("{namespace}/{name}");
    let found = api.pod(namespace, name).await;
    let found = found.map_err(|source| PodError::Read {
        pod: label.clone(),
        source,
    })?;
    let pod = found.ok_or_else(|| PodError::Absent(label.clone()))?;
    match uid.filter(|uid| *uid != pod.uid) {
        Some(wanted) => Err(PodError::Replaced {
            pod: label,
            uid: pod.uid,
            wanted: wanted.to_owned(),
        }),
        None => Ok(Some(pod)),
    }
}

/// Puts the ranges of a node's pods into a configuration of `host-local`.
///
/// # Errors
/// [`PodError`].
pub(crate) async fn fill_ranges(
    conf: &mut Value,
    api: &Datastore,
    node: &NodeName,
) -> Result<(), PodError> {
    let ranges = api.pod_cidrs(node).await;
    let ranges = ranges.map_err(|source| PodError::Ranges {
        node: node.to_string(),
        source,
    })?;
    let ranges = ranges.ok_or_else(|| PodError::UnknownNode(node.to_string()))?;
    Ok(pod_cidr::fill(conf, &ranges)?)
}
