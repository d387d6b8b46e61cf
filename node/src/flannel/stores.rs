//! Where the network's configuration and the leases are, as the flags say: etcd, or a file and the
//! Nodes of Kubernetes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use caracal_datastore::EtcdStore;
use caracal_flannel::{FlannelConfig, FlannelKeys, KubernetesNode, LeaseStore, read_config};
use caracal_model::NodeName;

use super::args::FlannelArgs;

/// flanneld's pause before it tries again what is missing.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

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
        if !args.kube_subnet_mgr {
            let store = EtcdStore::new(args.etcd())?;
            let keys = FlannelKeys::new(&args.etcd_prefix);
            return Ok(Self {
                config: ConfigPlace::Etcd(store.clone(), keys.clone()),
                leases: LeaseStore::Etcd(store),
                keys,
            });
        }
        let name = node_name(args).await?;
        let node = KubernetesNode {
            store: args.kubernetes(&name)?,
            name,
            annotations: args.annotations()?,
            sets_condition: args.set_node_network_unavailable,
        };
        take_public_ips(args, &node).await;
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
    let mut said = String::new();
    loop {
        let reason = match store.node_of_pod(&namespace, &pod).await {
            Ok(Some(node)) => return Ok(node),
            Ok(None) => format!("there is no pod {namespace}/{pod} that runs on a node"),
            Err(error) => error.to_string(),
        };
        again(&mut said, "the name of this Node", reason).await;
    }
}

/// What the Node's annotations say of public addresses counts where the flags say nothing.
async fn take_public_ips(args: &mut FlannelArgs, node: &KubernetesNode) {
    let mut said = String::new();
    let object = loop {
        match node.read().await {
            Ok((object, _)) => break object,
            Err(error) => again(&mut said, "the Node", error.to_string()).await,
        }
    };
    let (v4, v6) = node.annotations.public_ips(&object);
    args.public_ip = args.public_ip.or(v4);
    args.public_ipv6 = args.public_ipv6.or(v6);
}

/// Says a reason once, and waits.
async fn again(said: &mut String, what: &str, reason: String) {
    if reason != *said {
        tracing::error!("{what}: {reason}");
        *said = reason;
    }
    tokio::time::sleep(AGAIN).await;
}

impl ConfigPlace {
    fn name(&self) -> String {
        match self {
            Self::Etcd(_, keys) => keys.config(),
            Self::File(path) => path.display().to_string(),
        }
    }

    async fn read(&self) -> Result<FlannelConfig, String> {
        let text = match self {
            Self::Etcd(store, keys) => read_config(store, keys).await.map_err(|e| e.to_string())?,
            Self::File(path) => Some(
                caracal_datastore::read_file(path, caracal_datastore::SMALL_FILE)
                    .map_err(|e| e.to_string())?,
            ),
        };
        let missing = "there is none; write one, such as '{\"Network\": \"10.5.0.0/16\", \"Backend\": {\"Type\": \"vxlan\"}}'";
        FlannelConfig::parse(&text.ok_or(missing)?).map_err(|e| e.to_string())
    }

    /// The network's configuration, once there is one that can be used.
    pub(super) async fn wait(&self) -> FlannelConfig {
        let mut said = String::new();
        loop {
            match self.read().await {
                Ok(config) => {
                    for note in &config.notes {
                        tracing::warn!("{}: {note}", self.name());
                    }
                    return config;
                }
                Err(reason) => {
                    let what = format!("the network's configuration at {}", self.name());
                    again(&mut said, &what, reason).await;
                }
            }
        }
    }
}
