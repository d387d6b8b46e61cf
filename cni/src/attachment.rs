//! One attachment of a container to a network, and every name that follows from it: IPAM handle,
//! host side interface, MAC, WorkloadEndpoint. Pure; equal calls give equal names, which is what
//! makes a repeated ADD or a late DEL find what an earlier call left (CNI-1).

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_datastore::KubernetesPod;
use caracal_model::{
    ALIAS_PREFIX, DELEGATED_ATTRIBUTE, ENDPOINT_ATTRIBUTE, HandleId, INTERFACE_ATTRIBUTE, IfName,
    Key, Kind, Mac, NodeName, Prefix, Timestamp, WorkloadEndpoint, WorkloadEndpointSpec,
    container_interface, endpoint_name, format_mac, pod_interface,
};
use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::spec::{Env, NetConf};

/// Prefix of all host side interfaces, as Felix expects it.
pub(crate) const INTERFACE_PREFIX: &str = "cali";
/// Namespace of endpoints without an orchestrator.
const DEFAULT_NAMESPACE: &str = "default";
/// The interface name under which Calico's handle stands for the attachment.
pub(crate) const FIRST_INTERFACE: &str = "eth0";

/// An address that IPAM has assigned to an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AssignedAddress {
    pub(crate) address: IpAddr,
    /// The block it is from.
    pub(crate) block: Prefix,
}

/// Orchestrator that runs the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// A pod; orchestrator `k8s`.
    Pod { namespace: String, name: String },
    /// Anything else; orchestrator `cni`.
    Container,
}

/// Origin of an endpoint's UID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndpointUid {
    /// Its own: in etcd it is an object of its own.
    #[default]
    Fresh,
    /// That of the pod, which the endpoint is a part of in Kubernetes' API; `None` when the runtime
    /// does not tell it. What is written is refused when the pod is another one by then.
    OfPod(Option<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub network: String,
    /// The container (sandbox).
    pub container_id: String,
    /// The interface inside the container.
    pub ifname: String,
    /// Orchestrator that runs the container.
    pub workload: Workload,
    pub node: NodeName,
    /// Origin of the endpoint's UID.
    pub uid: EndpointUid,
    /// Our main plugin makes the interface, and writes the endpoint. False for addresses of another
    /// main plugin: of their interface nothing is known.
    pub wired: bool,
}

impl Attachment {
    /// The attachment that a call names.
    #[must_use]
    pub(crate) fn new(env: &Env, conf: &NetConf, node: NodeName) -> Self {
        let workload = match (env.arg("K8S_POD_NAMESPACE"), env.arg("K8S_POD_NAME")) {
            (Some(namespace), Some(name)) => Workload::Pod {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            _ => Workload::Container,
        };
        Self {
            network: conf.name.clone(),
            container_id: env.container_id.clone(),
            ifname: env.ifname.clone(),
            workload,
            node,
            uid: EndpointUid::Fresh,
            wired: false,
        }
    }

    /// The IPAM handle, `NETWORK.CONTAINER` as Calico's; further interfaces of the same container
    /// add their name, so that one DEL does not release the addresses of another attachment.
    #[must_use]
    pub(crate) fn handle(&self) -> HandleId {
        handle(&self.network, &self.container_id, &self.ifname)
    }

    /// The attributes of our addresses, as Calico writes them; IPAM adds `node` and `timestamp`.
    /// Where the interface is ours, its name and the endpoint's key go with them: when both are
    /// gone, the node's collector may release the address.
    #[must_use]
    pub(crate) fn attributes(&self) -> BTreeMap<String, String> {
        let mut attributes = BTreeMap::new();
        if let Workload::Pod { namespace, name } = &self.workload {
            attributes.insert("namespace".to_owned(), namespace.clone());
            attributes.insert("pod".to_owned(), name.clone());
        }
        if self.wired {
            let endpoint = format!("{}/{}", self.namespace(), self.endpoint_name());
            attributes.insert(ENDPOINT_ATTRIBUTE.to_owned(), endpoint);
            let interface = self.host_interface().to_string();
            attributes.insert(INTERFACE_ATTRIBUTE.to_owned(), interface);
        } else {
            attributes.insert(DELEGATED_ATTRIBUTE.to_owned(), "true".to_owned());
        }
        attributes
    }

    /// The host side interface. Calico's names: SHA-1 of the pod, else the head of the container's
    /// id. Where the head of the id does not tell containers apart (ids that were chosen, not
    /// drawn) or the container has several interfaces, the digits are of SHA-1 over all of it.
    #[must_use]
    pub(crate) fn host_interface(&self) -> IfName {
        let first = self.ifname == FIRST_INTERFACE;
        let id = &self.container_id;
        let drawn = id.len() >= 32 && id.bytes().all(|c| c.is_ascii_hexdigit());
        let head_tells = id.len() <= 11 || drawn;
        IfName::from(match &self.workload {
            Workload::Pod { namespace, name } if first => {
                pod_interface(INTERFACE_PREFIX, namespace, name)
            }
            Workload::Pod { namespace, name } => pod_interface(
                INTERFACE_PREFIX,
                namespace,
                &format!("{name}.{}", self.ifname),
            ),
            Workload::Container if first && head_tells => container_interface(INTERFACE_PREFIX, id),
            Workload::Container => pod_interface(INTERFACE_PREFIX, id, &self.ifname),
        })
    }

    /// Alias of the host side interface: it names the owner. A DEL deletes by it, also without
    /// namespace and without datastore, and never another container's interface of the same name.
    #[must_use]
    pub(crate) fn alias(&self) -> String {
        format!("{ALIAS_PREFIX}{}", self.short_handle())
    }

    /// True for the handle of the same interface of the same container in another network.
    #[must_use]
    pub(crate) fn is_same_container(&self, other: &HandleId) -> bool {
        let own = self.handle();
        let container = own.as_str().get(self.network.len()..);
        let network = container.and_then(|container| other.as_str().strip_suffix(container));
        network.is_some_and(|network| !network.is_empty() && network != self.network)
    }

    /// The handle, or a digest of it where it is too long for an alias (255 octets) or a file name.
    #[must_use]
    pub(crate) fn short_handle(&self) -> String {
        const LIMIT: usize = 200;
        let handle = self.handle();
        if handle.as_str().len() <= LIMIT {
            return handle.to_string();
        }
        let digest = Sha1::digest(handle.as_str());
        digest.iter().map(|octet| format!("{octet:02x}")).collect()
    }

    /// The MAC of the pod's interface when nobody wishes one: the same for each try.
    #[must_use]
    pub(crate) fn mac(&self) -> Mac {
        let digest = Sha1::digest(format!("{}/{}", self.handle(), self.ifname));
        [0x02, digest[0], digest[1], digest[2], digest[3], digest[4]]
    }

    const fn orchestrator(&self) -> &'static str {
        match self.workload {
            Workload::Pod { .. } => "k8s",
            Workload::Container => "cni",
        }
    }

    /// The namespace of the endpoint.
    #[must_use]
    pub(crate) fn namespace(&self) -> &str {
        match &self.workload {
            Workload::Pod { namespace, .. } => namespace,
            Workload::Container => DEFAULT_NAMESPACE,
        }
    }

    fn endpoint_name(&self) -> String {
        let workload = match &self.workload {
            Workload::Pod { name, .. } => name,
            Workload::Container => &self.container_id,
        };
        endpoint_name(
            self.node.as_str(),
            self.orchestrator(),
            workload,
            &self.ifname,
        )
    }

    /// The key of the WorkloadEndpoint.
    #[must_use]
    pub(crate) fn endpoint_key(&self) -> Key {
        Key::workload(self.namespace(), &self.endpoint_name())
    }

    /// The WorkloadEndpoint as it shall be stored. What `previous` holds besides (uid, creation
    /// time, labels, unknown fields) stays (MODEL-1); labels, profiles, account and ports are those
    /// of the pod where it is known.
    #[must_use]
    pub(crate) fn endpoint(
        &self,
        addresses: &[Prefix],
        mac: &Mac,
        birth: Birth,
        pod: Option<&KubernetesPod>,
    ) -> WorkloadEndpoint {
        let mut endpoint = match birth {
            Birth::Update(previous) => *previous,
            Birth::Create { uid, now } => {
                let mut endpoint =
                    WorkloadEndpoint::new(&self.endpoint_name(), WorkloadEndpointSpec::default());
                endpoint.metadata.uid = Some(uid);
                endpoint.metadata.creation_timestamp = Some(now.rfc3339());
                endpoint
            }
        };
        if let EndpointUid::OfPod(uid) = &self.uid {
            endpoint.metadata.uid.clone_from(uid);
        }
        endpoint.metadata.namespace = Some(self.namespace().to_owned());
        let labels = &mut endpoint.metadata.labels;
        for (label, value) in [
            ("projectcalico.org/namespace", self.namespace()),
            ("projectcalico.org/orchestrator", self.orchestrator()),
        ] {
            labels.insert(label.to_owned(), value.to_owned());
        }
        let spec = &mut endpoint.spec;
        spec.orchestrator = self.orchestrator().to_owned();
        spec.node = self.node.to_string();
        spec.container_id.clone_from(&self.container_id);
        spec.endpoint.clone_from(&self.ifname);
        spec.ip_networks = addresses.to_vec();
        spec.interface_name = self.host_interface().to_string();
        spec.mac = format_mac(mac);
        spec.profiles = vec![self.profile()];
        if let Workload::Pod { name, .. } = &self.workload {
            spec.pod.clone_from(name);
        }
        if let Some(pod) = pod {
            describe(&mut endpoint, pod);
        }
        endpoint
    }

    /// The profile of the endpoint: that of the pod's namespace, else one with the network's name.
    #[must_use]
    pub(crate) fn profile(&self) -> String {
        match &self.workload {
            Workload::Pod { namespace, .. } => format!("kns.{namespace}"),
            Workload::Container => self.network.clone(),
        }
    }

    /// Key and value of the profile that a plain container's endpoint needs, as Calico's plugin
    /// makes it: members of the network reach one another.
    #[must_use]
    pub(crate) fn network_profile(&self, uid: String, now: Timestamp) -> Option<(Key, Value)> {
        if self.workload != Workload::Container {
            return None;
        }
        let name = &self.network;
        let value = json!({
            "kind": Kind::Profile.as_str(),
            "apiVersion": caracal_model::API_VERSION,
            "metadata": {"name": name, "uid": uid, "creationTimestamp": now.rfc3339()},
            "spec": {
                "ingress": [{"action": "Allow", "source": {"selector": format!("has({name})")}, "destination": {}}],
                "egress": [{"action": "Allow", "source": {}, "destination": {}}],
                "labelsToApply": {name.as_str(): ""},
            },
        });
        Some((Key::resource(Kind::Profile, name.as_str()), value))
    }
}

/// What policies look at, as Calico's plugin writes it.
fn describe(endpoint: &mut WorkloadEndpoint, pod: &KubernetesPod) {
    endpoint.metadata.labels.clone_from(&pod.labels);
    endpoint.spec.profiles.clone_from(&pod.profiles);
    let put = |map: &mut Map<String, Value>, key: &str, value: Option<Value>| {
        map.shift_remove(key);
        map.extend(value.map(|value| (key.to_owned(), value)));
    };
    let name = pod.generate_name.as_deref();
    let extra = &mut endpoint.metadata.extra;
    put(extra, "generateName", name.map(Value::from));
    let extra = &mut endpoint.spec.extra;
    let account = pod.service_account.as_str();
    put(extra, "serviceAccountName", Some(account.into()));
    let ports = (!pod.ports.is_empty()).then(|| pod.ports.clone());
    put(extra, "ports", ports.map(Value::from));
}

/// Where a WorkloadEndpoint comes from.
#[derive(Debug)]
pub(crate) enum Birth {
    /// There is none yet.
    Create {
        /// A fresh UUID.
        uid: String,
        now: Timestamp,
    },
    /// There is one; an older container's or our own.
    Update(Box<WorkloadEndpoint>),
}

/// The IPAM handle of an attachment.
#[must_use]
pub fn handle(network: &str, container_id: &str, ifname: &str) -> HandleId {
    HandleId::sanitised(&if ifname == FIRST_INTERFACE {
        format!("{network}.{container_id}")
    } else {
        // ':' is in no container id, so the container can be read back.
        format!("{network}.{container_id}:{ifname}")
    })
}

/// The handle under which Calico's plugin has the addresses of a further interface: that of the
/// container's first one. None when this is the first one's handle.
#[must_use]
pub(crate) fn calicos_handle(handle: &HandleId) -> Option<HandleId> {
    let (first, _ifname) = handle.as_str().split_once(':')?;
    Some(HandleId::from(first))
}

/// The container of a handle of this network. None for another network's handle and for those where
/// the border between network and container is not certain (`a.b` may be a network too).
#[must_use]
pub(crate) fn container_of<'a>(handle: &'a HandleId, network: &str) -> Option<&'a str> {
    let rest = handle.as_str().strip_prefix(network)?.strip_prefix('.')?;
    let container = rest.split(':').next().unwrap_or_default();
    (!container.is_empty() && !container.contains('.')).then_some(container)
}

/// The handle in an interface's alias, when the interface is one of ours.
#[must_use]
pub(crate) fn handle_of_alias(alias: &str) -> Option<HandleId> {
    alias.strip_prefix(ALIAS_PREFIX).map(HandleId::from)
}

#[cfg(test)]
mod tests;
