//! The network configuration that a runtime hands over on stdin: the specification's keys, those of
//! Calico's plugin and a few of our own. A key that is not known is no error; it is named in a
//! warning.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::env::is_identifier;
use super::pod_cidr;
use super::version::{CniVersion, VersionError};
use crate::gates::Gate;

/// Fault of the configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// Not JSON.
    #[error("the network configuration on stdin is no JSON object")]
    Decode(#[source] serde_json::Error),
    /// A key has a value of another type.
    #[error("network configuration: {key} has a value of the wrong type")]
    Type {
        key: String,
        /// The value and the type that was expected.
        #[source]
        source: serde_json::Error,
    },
    /// The version is not supported.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A key is required or its value is impossible.
    #[error("network configuration: {key}: {reason}")]
    Invalid {
        key: &'static str,
        /// The value, and a right one.
        reason: String,
    },
    /// A value that Calico knows and Caracal does not have.
    #[error("network configuration: {key} {value:?} is not supported; {hint}")]
    Unsupported {
        key: &'static str,
        value: String,
        /// Value to use instead.
        hint: &'static str,
    },
}

/// The network configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NetConf {
    /// Version of the specification.
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    /// Name of the network, unique on the node.
    pub name: String,
    /// Name of the plugin's program.
    #[serde(rename = "type")]
    pub kind: String,
    /// MTU of the pod's interface; zero or absent: the node's.
    #[serde(deserialize_with = "null_default")]
    pub mtu: u32,
    /// Transmit and receive queues of the pair; zero or absent: the kernel's default.
    #[serde(deserialize_with = "null_default")]
    pub num_queues: u32,
    /// Name of the node.
    #[serde(deserialize_with = "null_default")]
    pub nodename: String,
    /// Old name of `nodename`.
    #[serde(deserialize_with = "null_default")]
    pub hostname: String,
    /// File that holds the node's name.
    #[serde(deserialize_with = "null_default")]
    pub nodename_file: String,
    /// Go on without that file.
    #[serde(deserialize_with = "null_default")]
    pub nodename_file_optional: bool,
    /// `etcdv3` or `kubernetes`.
    #[serde(deserialize_with = "null_default")]
    pub datastore_type: String,
    /// Kubernetes' API: how to reach it.
    #[serde(deserialize_with = "null_default")]
    pub kubernetes: KubernetesConf,
    /// Kubernetes' API: which of Calico's API groups; the one that is served when absent.
    #[serde(deserialize_with = "null_default")]
    pub calico_api_group: String,
    /// etcd: URLs separated by commas.
    #[serde(deserialize_with = "null_default")]
    pub etcd_endpoints: String,
    /// etcd: `host:port`, the old form of `etcd_endpoints`.
    #[serde(deserialize_with = "null_default")]
    pub etcd_authority: String,
    /// etcd: scheme of `etcd_authority`.
    #[serde(deserialize_with = "null_default")]
    pub etcd_scheme: String,
    /// etcd: file of the client's key.
    #[serde(deserialize_with = "null_default")]
    pub etcd_key_file: String,
    /// etcd: file of the client's certificate.
    #[serde(deserialize_with = "null_default")]
    pub etcd_cert_file: String,
    /// etcd: file of the authorities' certificates.
    #[serde(deserialize_with = "null_default")]
    pub etcd_ca_cert_file: String,
    /// `debug`, `info`, `warning`, `error`.
    #[serde(deserialize_with = "null_default")]
    pub log_level: String,
    /// File that the log is appended to, besides stderr.
    #[serde(deserialize_with = "null_default")]
    pub log_file_path: String,
    /// False: no default route in the pod.
    pub include_default_routes: Option<bool>,
    /// `veth`.
    #[serde(deserialize_with = "null_default")]
    pub device_type: String,
    /// Fail when no file says the MTU.
    #[serde(deserialize_with = "null_default")]
    pub require_mtu_file: bool,
    /// Calico's wait for the endpoint's policy; read when `route_wait_seconds` is absent.
    pub policy_setup_timeout_seconds: Option<u32>,
    /// Ours: seconds to wait for the pod's route in the kernel; zero = do not wait.
    pub route_wait_seconds: Option<u32>,
    /// Ours: seconds to wait until the pod's addresses are announced; zero = do not wait.
    pub announce_wait_seconds: Option<u32>,
    /// URLs of health checks that must succeed before a pod is attached.
    #[serde(deserialize_with = "null_default")]
    pub readiness_gates: Vec<String>,
    /// `feature_control`
    #[serde(deserialize_with = "null_default")]
    pub feature_control: FeatureControl,
    /// Ours: the node's library directory, when it is not the environment's.
    #[serde(deserialize_with = "null_default")]
    pub lib_dir: String,
    /// Ours: the node's runtime directory, when it is not the environment's.
    #[serde(deserialize_with = "null_default")]
    pub run_dir: String,
    /// Address management.
    #[serde(deserialize_with = "null_default")]
    pub ipam: IpamConf,
    /// Whether pods are looked up in Kubernetes' API, for Calico's policies.
    #[serde(deserialize_with = "null_default")]
    pub policy: PolicyConf,
    /// `container_settings`.
    #[serde(deserialize_with = "null_default")]
    pub container_settings: ContainerSettings,
    /// `args` of the configuration; `args.cni` is the specification's part.
    #[serde(deserialize_with = "null_default")]
    pub args: Map<String, Value>,
    /// Values of the runtime for the `capabilities`.
    #[serde(rename = "runtimeConfig", deserialize_with = "null_default")]
    pub runtime_config: Map<String, Value>,
    /// Name servers for the result.
    pub dns: Option<Value>,
    /// Result of the plugins before us in the chain.
    #[serde(rename = "prevResult")]
    pub prev_result: Option<Value>,
    /// `GC`: the attachments that are alive.
    #[serde(rename = "cni.dev/valid-attachments")]
    pub valid_attachments: Option<Vec<ValidAttachment>>,
    /// All other keys.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// `ipam` of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct IpamConf {
    /// `caracal-ipam` or `calico-ipam`: ours, within the process; else the program to run.
    #[serde(rename = "type", deserialize_with = "null_default")]
    pub kind: String,
    /// Assign an IPv4 address; yes when absent.
    #[serde(deserialize_with = "flag")]
    pub assign_ipv4: Option<bool>,
    /// Assign an IPv6 address; no when absent.
    #[serde(deserialize_with = "flag")]
    pub assign_ipv6: Option<bool>,
    /// Pools to take IPv4 addresses from, by name or CIDR.
    #[serde(deserialize_with = "null_default")]
    pub ipv4_pools: Vec<String>,
    /// Pools to take IPv6 addresses from, by name or CIDR.
    #[serde(deserialize_with = "null_default")]
    pub ipv6_pools: Vec<String>,
    /// Routes that the result shall hold, for other main plugins.
    #[serde(deserialize_with = "null_default")]
    pub routes: Vec<super::Route>,
    /// All other keys.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// `kubernetes` of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KubernetesConf {
    /// File that says where the API server is, and the plugin's account.
    #[serde(deserialize_with = "null_default")]
    pub kubeconfig: String,
    /// The API server's URL, instead of the file's.
    #[serde(deserialize_with = "null_default")]
    pub k8s_api_root: String,
    /// All other keys.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// `policy` of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PolicyConf {
    /// `k8s`, or empty.
    #[serde(rename = "type", deserialize_with = "null_default")]
    pub kind: String,
    /// Old form of `kubernetes.k8s_api_root`.
    #[serde(deserialize_with = "null_default")]
    pub k8s_api_root: String,
    /// Token for `k8s_api_root`.
    #[serde(deserialize_with = "null_default")]
    pub k8s_auth_token: String,
    /// Certificate for `k8s_api_root`, with `k8s_client_key`.
    #[serde(deserialize_with = "null_default")]
    pub k8s_client_certificate: String,
    /// File of the certificate's key.
    #[serde(deserialize_with = "null_default")]
    pub k8s_client_key: String,
    /// File of the CA certificates.
    #[serde(deserialize_with = "null_default")]
    pub k8s_certificate_authority: String,
    /// All other keys.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// `container_settings` of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerSettings {
    /// Leave forwarding between the pod's interfaces alone.
    #[serde(deserialize_with = "null_default")]
    pub allow_ip_forwarding: bool,
    /// All other keys.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// `feature_control` of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FeatureControl {
    /// Pods may bring addresses that no pool knows, by annotation.
    #[serde(deserialize_with = "null_default")]
    pub ip_addrs_no_ipam: bool,
    /// Pods may ask for floating addresses. There are none here: see [`NetConf::parse`].
    #[serde(deserialize_with = "null_default")]
    pub floating_ips: bool,
    /// All other keys.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

/// One attachment of `cni.dev/valid-attachments`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The interface in it.
    pub ifname: String,
}

/// The `policy.type` that is known.
const POLICY: &str = "k8s";

/// Known keys of Calico's plugin that change nothing here, or that belong to other programs.
const WITHOUT_EFFECT: &[&str] = &[
    "log_file_max_size",
    "log_file_max_age",
    "log_file_max_count",
    "ipam_lock_file",
    "endpoint_status_dir",
    "qps",
    "burst",
    "dataplane_options",
    "capabilities",
    "ipMasq",
    "windows_use_single_network",
];

impl NetConf {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub(crate) fn parse(stdin: &[u8]) -> Result<Self, ConfigError> {
        let conf: Self = decode(stdin)?;
        conf.version()?;
        check_name(&conf.name)?;
        if !conf.mtu_is_possible() {
            return Err(ConfigError::Invalid {
                key: "mtu",
                reason: format!("{} is out of range; expected 68 to 65535", conf.mtu),
            });
        }
        conf.check_supported()?;
        // What could not be decoded was told by now.
        pod_cidr::check(&serde_json::from_slice(stdin).map_err(ConfigError::Decode)?)?;
        conf.gates()?;
        Ok(conf)
    }

    /// The version in `stdin`, however broken the rest may be; for `VERSION` and error objects.
    #[must_use]
    pub(crate) fn peek_version(stdin: &[u8]) -> Option<String> {
        let value: Value = serde_json::from_slice(stdin).ok()?;
        value.get("cniVersion")?.as_str().map(str::to_owned)
    }

    /// The version of the specification.
    ///
    /// # Errors
    /// [`VersionError`] with what was seen.
    pub(crate) fn version(&self) -> Result<CniVersion, VersionError> {
        self.cni_version.parse()
    }

    const fn mtu_is_possible(&self) -> bool {
        self.mtu == 0 || (self.mtu >= 68 && self.mtu <= 65535)
    }

    fn check_supported(&self) -> Result<(), ConfigError> {
        if !matches!(self.datastore_type.as_str(), "" | "etcdv3" | "kubernetes") {
            return Err(ConfigError::Unsupported {
                key: "datastore_type",
                value: self.datastore_type.clone(),
                hint: "use \"etcdv3\" with etcd_endpoints, or \"kubernetes\" with kubernetes.kubeconfig",
            });
        }
        if !matches!(self.device_type.as_str(), "" | "veth") {
            return Err(ConfigError::Unsupported {
                key: "device_type",
                value: self.device_type.clone(),
                hint: "use \"veth\"",
            });
        }
        if self.feature_control.floating_ips {
            return Err(ConfigError::Unsupported {
                key: "feature_control.floating_ips",
                value: "true".to_owned(),
                hint: "this node's agent translates no floating addresses; set it to false",
            });
        }
        if self.extra.contains_key("etcd_discovery_srv") {
            return Err(ConfigError::Unsupported {
                key: "etcd_discovery_srv",
                value: self.extra["etcd_discovery_srv"].to_string(),
                hint: "list the members in etcd_endpoints",
            });
        }
        Ok(())
    }

    /// Whether the datastore is Kubernetes' API: by the configuration, which may leave it to the
    /// environment.
    #[must_use]
    pub(crate) fn uses_kubernetes(&self, get: &impl Fn(&str) -> Option<String>) -> bool {
        let named = !self.etcd_endpoints.is_empty() || !self.etcd_authority.is_empty();
        match self.datastore_type.as_str() {
            "" if named => false,
            "" => get("DATASTORE_TYPE").is_some_and(|kind| kind.trim() == "kubernetes"),
            kind => kind == "kubernetes",
        }
    }

    /// Pods are looked up in Kubernetes' API although the datastore is another one: Calico's
    /// policies select by what an endpoint says of its pod.
    #[must_use]
    pub(crate) fn has_policy(&self) -> bool {
        self.policy.kind == POLICY
    }

    /// Keys that nothing here knows, sorted; `ipam.subnet` for a nested one.
    #[must_use]
    pub(crate) fn unknown_keys(&self) -> Vec<String> {
        let ours = self.ipam.is_ours();
        let top = self
            .extra
            .keys()
            .filter(|key| !WITHOUT_EFFECT.contains(&key.as_str()) && !key.starts_with("cni.dev/"))
            .cloned();
        let ipam = self.ipam.extra.keys().filter(|_| ours);
        let container = self.container_settings.extra.keys();
        let features = self.feature_control.extra.keys();
        let kubernetes = self.kubernetes.extra.keys();
        let policy = self.policy.extra.keys().cloned();
        let kind = match self.policy.kind.as_str() {
            "" | POLICY => None,
            other => Some(format!("type={other}")),
        };
        top.chain(ipam.map(|key| format!("ipam.{key}")))
            .chain(kubernetes.map(|key| format!("kubernetes.{key}")))
            .chain(container.map(|key| format!("container_settings.{key}")))
            .chain(features.map(|key| format!("feature_control.{key}")))
            .chain(policy.chain(kind).map(|key| format!("policy.{key}")))
            .collect()
    }

    /// Keys of Calico's plugin that are accepted and change nothing.
    #[must_use]
    pub(crate) fn keys_without_effect(&self) -> Vec<&str> {
        self.extra
            .keys()
            .map(String::as_str)
            .filter(|key| {
                WITHOUT_EFFECT.contains(key) && !matches!(*key, "capabilities" | "ipMasq")
            })
            .collect()
    }

    /// Seconds to wait for the pod's route; zero = do not wait.
    #[must_use]
    pub(crate) fn route_wait(&self) -> u32 {
        const DEFAULT: u32 = 10;
        self.route_wait_seconds
            .or_else(|| self.policy_setup_timeout_seconds.filter(|s| *s > 0))
            .unwrap_or(DEFAULT)
    }

    /// Seconds to wait until the pod's addresses are announced; zero = do not wait.
    #[must_use]
    pub(crate) fn announce_wait(&self) -> u32 {
        const DEFAULT: u32 = 2;
        self.announce_wait_seconds.unwrap_or(DEFAULT)
    }

    /// The readiness gates.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub(crate) fn gates(&self) -> Result<Vec<Gate>, ConfigError> {
        self.readiness_gates
            .iter()
            .map(|url| {
                Gate::parse(url).map_err(|reason| ConfigError::Invalid {
                    key: "readiness_gates",
                    reason,
                })
            })
            .collect()
    }

    /// `lib_dir`, when set.
    #[must_use]
    pub(crate) fn lib_dir(&self) -> Option<PathBuf> {
        (!self.lib_dir.is_empty()).then(|| PathBuf::from(&self.lib_dir))
    }

    /// `run_dir`, when set.
    #[must_use]
    pub(crate) fn run_dir(&self) -> Option<PathBuf> {
        (!self.run_dir.is_empty()).then(|| PathBuf::from(&self.run_dir))
    }
}

impl IpamConf {
    /// True when addresses come from our own blocks, without running another program.
    #[must_use]
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.kind.as_str(), "" | "caracal-ipam" | "calico-ipam")
    }
}

/// Reads a configuration of some plugin.
///
/// # Errors
/// [`ConfigError::Decode`], or [`ConfigError::Type`] with the key.
pub(crate) fn decode<T: DeserializeOwned>(stdin: &[u8]) -> Result<T, ConfigError> {
    let object: Map<String, Value> = serde_json::from_slice(stdin).map_err(ConfigError::Decode)?;
    T::deserialize(&object).map_err(|source| {
        // serde does not tell which key; each of them alone does.
        let alone = |(key, value): (&String, &Value)| {
            let object = Map::from_iter([(key.clone(), value.clone())]);
            let source = T::deserialize(&object).err()?;
            let key = key.clone();
            Some(ConfigError::Type { key, source })
        };
        let found = object.iter().find_map(alone);
        found.unwrap_or(ConfigError::Decode(source))
    })
}

/// Checks the name of a network.
///
/// # Errors
/// [`ConfigError::Invalid`].
pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    if is_identifier(name) {
        return Ok(());
    }
    Err(ConfigError::Invalid {
        key: "name",
        reason: format!(
            "{name:?} is no network name; expected a letter or digit, then letters, digits, '_', \
             '.' or '-'"
        ),
    })
}

/// Reads `null` as if the key were absent.
pub(crate) fn null_default<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Calico's plugin writes these flags as texts.
fn flag<'de, D: Deserializer<'de>>(d: D) -> Result<Option<bool>, D::Error> {
    match Value::deserialize(d)? {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(flag)),
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "" => Ok(None),
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(serde::de::Error::custom(format!(
                "{text:?} is neither \"true\" nor \"false\""
            ))),
        },
        other => Err(serde::de::Error::custom(format!(
            "{other} is neither true nor false"
        ))),
    }
}
