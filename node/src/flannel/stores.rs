//! Where the network's configuration and the leases are, as the flags say: etcd, or a file and the
//! Nodes of Kubernetes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::{EtcdStore, Rarely, SMALL_FILE, StoreError, read_file};
use caracal_flannel::{
    FlannelConfig, FlannelKeys, KubernetesNode, LeaseStore, config_changed, read_config,
};
use caracal_model::NodeName;
use tokio::sync::watch;
use tokio::time::Instant;

use super::args::FlannelArgs;

/// flanneld's pause before it tries again what is missing.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// Interval of reading a file again.
const FILE_INTERVAL: Duration = Duration::from_secs(2);

/// A configuration, or why there is none that can be used.
pub(super) type FoundConfig = Result<FlannelConfig, String>;

/// Where the configuration is.
pub(super) enum ConfigPlace {
    Etcd(EtcdStore, FlannelKeys),
    File(PathBuf),
}

/// Both places, and the keys under which leases are known.
pub(super) struct Stores {
    pub(super) config: ConfigPlace,
    pub(super) leases: LeaseStore,
    pub(super) keys: FlannelKeys,
}

impl Stores {
    /// Opens what the flags name. Nothing is asked in etcd; of Kubernetes the name of the Node, by
    /// the pod's, where the environment does not have it.
    pub(super) async fn open(args: &mut FlannelArgs) -> anyhow::Result<Self> {
        let name = match args.kube_subnet_mgr {
            true => node_name(args).await?,
            false => "".into(),
        };
        let stores = Self::of(args, name)?;
        if let LeaseStore::Kubernetes(node) = &stores.leases {
            take_public_ips(args, node).await;
        }
        Ok(stores)
    }

    /// The same, and nothing is asked.
    pub(super) fn of(args: &FlannelArgs, name: NodeName) -> anyhow::Result<Self> {
        if !args.kube_subnet_mgr {
            let store = EtcdStore::new(args.etcd())?;
            let keys = FlannelKeys::new(&args.etcd_prefix);
            return Ok(Self {
                config: ConfigPlace::Etcd(store.clone(), keys.clone()),
                leases: LeaseStore::Etcd(store),
                keys,
            });
        }
        let node = KubernetesNode {
            store: args.kubernetes(&name)?,
            name,
            annotations: args.annotations()?,
            sets_condition: args.set_node_network_unavailable,
        };
        Ok(Self {
            config: ConfigPlace::File(args.net_config_path.clone()),
            leases: LeaseStore::Kubernetes(node),
            keys: FlannelKeys::new("Node"),
        })
    }
}

/// `NODE_NAME`, else the node that the pod `POD_NAME` of `POD_NAMESPACE` runs on.
async fn node_name(args: &FlannelArgs) -> anyhow::Result<NodeName> {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    if let Some(name) = variable("NODE_NAME") {
        return Ok(name.as_str().into());
    }
    let pod = variable("POD_NAME").zip(variable("POD_NAMESPACE"));
    let (pod, namespace) = pod.context(
        "--kube-subnet-mgr: which Node this is must be in NODE_NAME, or the pod in POD_NAME and POD_NAMESPACE",
    )?;
    let store = args.kubernetes(&"".into())?;
    let mut told = Rarely::default();
    loop {
        let reason = match store.node_of_pod(&namespace, &pod).await {
            Ok(Some(node)) => return Ok(node),
            Ok(None) => format!("there is no pod {namespace}/{pod} that runs on a node"),
            Err(error) => error.to_string(),
        };
        again(&mut told, "the name of this Node", reason).await;
    }
}

/// What the Node's annotations say of public addresses counts where the flags say nothing.
async fn take_public_ips(args: &mut FlannelArgs, node: &KubernetesNode) {
    let mut told = Rarely::default();
    let object = loop {
        match node.read().await {
            Ok((object, _)) => break object,
            Err(error) => again(&mut told, "the Node", error.to_string()).await,
        }
    };
    let (v4, v6) = node.annotations.public_ips(&object);
    args.public_ip = args.public_ip.or(v4);
    args.public_ipv6 = args.public_ipv6.or(v6);
}

/// Wishes of a configuration that are passed over.
pub(super) fn warn_of_notes(place: &str, config: &FlannelConfig) {
    for note in &config.notes {
        tracing::warn!("{place}: {note}");
    }
}

/// Says a reason at once and then rarely, and waits.
pub(super) async fn again(told: &mut Rarely, what: &str, reason: String) {
    if told.is_due(Instant::now(), &reason) {
        tracing::error!("{what}: {reason}");
    }
    tokio::time::sleep(AGAIN).await;
}

impl ConfigPlace {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Etcd(_, keys) => keys.config(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// What is there, with etcd's revision.
    ///
    /// # Errors
    /// etcd does not answer: nothing is known of what is there.
    pub(super) async fn read(&self) -> Result<(i64, FoundConfig), StoreError> {
        let (revision, text) = match self {
            Self::Etcd(store, keys) => read_config(store, keys).await?,
            Self::File(path) => match read_file(path, SMALL_FILE) {
                Ok(text) => (0, Some(text)),
                Err(error) => return Ok((0, Err(error.to_string()))),
            },
        };
        let missing = "there is none; write one, such as '{\"Network\": \"10.5.0.0/16\", \"Backend\": {\"Type\": \"vxlan\"}}'";
        let parse = |text: Vec<u8>| FlannelConfig::parse(&text).map_err(|e| e.to_string());
        Ok((
            revision,
            text.ok_or_else(|| missing.to_owned()).and_then(parse),
        ))
    }

    /// With Kubernetes subnets are given out by somebody else, and the configuration says nothing
    /// of their lengths.
    pub(super) const fn gives_subnets(&self) -> bool {
        matches!(self, Self::Etcd(..))
    }

    /// Starts the task that publishes what is there, for ever. While etcd is away it is what was
    /// there last.
    pub(super) fn follow(self, first: FlannelConfig) -> watch::Receiver<FoundConfig> {
        let (sender, receiver) = watch::channel(Ok(first));
        tokio::spawn(async move {
            while !sender.is_closed() {
                let (revision, found) = match self.read().await {
                    Ok(answer) => answer,
                    // Who follows the leases says it.
                    Err(_away) => {
                        tokio::time::sleep(AGAIN).await;
                        continue;
                    }
                };
                sender.send_if_modified(|known| {
                    let is_other = *known != found;
                    *known = found;
                    is_other
                });
                if self.changed(revision).await.is_err() {
                    tokio::time::sleep(AGAIN).await;
                }
            }
        });
        receiver
    }

    /// Waits until something else may be there.
    async fn changed(&self, revision: i64) -> Result<(), StoreError> {
        match self {
            Self::Etcd(store, keys) => config_changed(store, keys, revision).await,
            // A mounted ConfigMap changes without a word.
            Self::File(_) => {
                tokio::time::sleep(FILE_INTERVAL).await;
                Ok(())
            }
        }
    }

    /// The network's configuration, once there is one that can be used.
    pub(super) async fn wait(&self) -> FlannelConfig {
        let mut told = Rarely::default();
        loop {
            let found = self.read().await.map_err(|error| error.to_string());
            match found.and_then(|(_, found)| found) {
                Ok(config) => {
                    warn_of_notes(&self.name(), &config);
                    return config;
                }
                Err(reason) => {
                    let what = format!("the network's configuration at {}", self.name());
                    again(&mut told, &what, reason).await;
                }
            }
        }
    }
}
