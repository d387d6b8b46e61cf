//! Pods: the lab plays the container runtime, calling the CNI plugin as one would, with a
//! namespace, an environment and a configuration on standard input.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use caracal_model::{Family, Prefix};
use serde_json::{Value, json};

use crate::etcd::random_uuid;
use crate::flannel;
use crate::lab::Lab;
use crate::netns;
use crate::plan::NodeLayout;
use crate::plan::kubernetes::{plugin_kubeconfig, pod_name};
use crate::program::{self, ProgramError};
use crate::state::PodState;
use crate::topology::{Datastore, NodeKind};

const CALL: Duration = Duration::from_secs(30);
/// A pod of a lab that comes up, where many nodes find each other on few cores. A kubelet waits for
/// minutes.
const ATTACH: Duration = Duration::from_secs(120);
/// "Try again later" in the CNI specification, and the plugin's own word for a route that did not
/// come in time.
const LATER: u64 = 11;
const UNROUTED: u64 = 104;
/// Pause before the plugin is called again after either of those codes.
const PAUSE: Duration = Duration::from_secs(1);
/// Nodes for each core that get their pods at the same time.
const WORKERS: usize = 8;
/// The name of the network in Calico's manifests; IPAM handles start with it.
const NETWORK: &str = "k8s-pod-network";
pub(crate) const INTERFACE: &str = "eth0";
/// Where the package `containernetworking-plugins` has `host-local`.
const FOREIGN_PLUGINS: &str = "/usr/lib/cni";

/// Why a pod was not attached or detached.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// The plugin did not start, or did not end.
    #[error("CNI {verb} for pod {pod}")]
    Program {
        /// `ADD`, `DEL`, `CHECK` or `GC`.
        verb: &'static str,
        /// The pod, as `NODE/POD`.
        pod: String,
        /// Error of the program.
        #[source]
        source: ProgramError,
    },
    /// The plugin said no.
    #[error("CNI {verb} for pod {pod} was refused (code {code}): {message}")]
    Refused {
        /// `ADD`, `DEL`, `CHECK` or `GC`.
        verb: &'static str,
        /// The pod, as `NODE/POD`.
        pod: String,
        /// Error code of the CNI specification, 0 when the answer has none.
        code: u64,
        /// `msg` and `details`, or whatever was printed.
        message: String,
    },
    /// The plugin's answer is not a result of the CNI specification.
    #[error("CNI ADD for pod {pod} gave no address: {answer}")]
    Answer {
        /// The pod, as `NODE/POD`.
        pod: String,
        /// Standard output of the plugin.
        answer: String,
    },
    /// The pod's node is not in the topology.
    #[error("pod {pod} is on an unknown node")]
    Unknown {
        /// The pod, as `NODE/POD`.
        pod: String,
    },
    /// A foreign node's side of the cable.
    #[error("cannot route pod {pod} on its node")]
    HostSide {
        /// The pod, as `NODE/POD`.
        pod: String,
        /// Error of the program.
        #[source]
        source: ProgramError,
    },
}

/// Interface and addresses that a pod got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// First address of the pod.
    pub address: IpAddr,
    /// Its IPv6 address, when the first is IPv4.
    pub address6: Option<Ipv6Addr>,
    /// The node's end of its cable, when the plugin tells.
    pub host_interface: Option<String>,
}

/// A container ID such as runtimes make: 64 hexadecimal digits.
#[must_use]
pub fn container_id() -> String {
    format!("{}{}", random_uuid(), random_uuid()).replace('-', "")
}

/// The network configuration of a node, as on standard input of the plugin.
#[must_use]
pub fn network_config(node: &NodeLayout) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0",
        "name": NETWORK,
        "type": "caracal-cni",
        "nodename": node.name,
        "etcd_endpoints": node.etcd_endpoint,
        "ipam": { "type": "caracal-ipam" },
        "policy": {},
    });
    if node.uplink.address_of(Family::Ipv6).is_some() {
        // Without a word it is IPv4 alone, as Calico's plugin does it.
        let v4 = node.uplink.address_of(Family::Ipv4).is_some();
        config["ipam"]["assign_ipv4"] = json!(v4.to_string());
        config["ipam"]["assign_ipv6"] = json!("true");
    }
    if node.kind != NodeKind::Caracal {
        // The plugin waits for the agent's route, and here there is no agent: the lab makes it
        // after ADD.
        config["route_wait_seconds"] = json!(0);
        config["announce_wait_seconds"] = json!(0);
    }
    config
}

impl Lab {
    /// The network configuration of a node, with where the lab has its datastore.
    fn network_config(&self, node: &NodeLayout) -> Value {
        if node.kind == NodeKind::Flannel {
            return self.flannel_config(&node.name);
        }
        let mut config = network_config(node);
        if self.topology.datastore == Datastore::Kubernetes {
            let path = self.folder.kubeconfig(&plugin_kubeconfig(&node.name));
            config["kubernetes"] = json!({ "kubeconfig": path });
            config["policy"] = json!({ "type": "k8s" });
        }
        if node.uses_pod_cidr() {
            let word = |family| match family {
                Family::Ipv4 => "usePodCidr",
                Family::Ipv6 => "usePodCidrIPv6",
            };
            let families = [Family::Ipv4, Family::Ipv6].into_iter();
            let families = families.filter(|f| node.uplink.address_of(*f).is_some());
            let ranges: Vec<_> = families.map(|f| json!([{ "subnet": word(f) }])).collect();
            let kept = self.folder.lib(&node.name).join("host-local");
            config["ipam"] = json!({ "type": "host-local", "ranges": ranges, "dataDir": kept });
        }
        if node.datastore() == Datastore::Kubernetes {
            if let Some(map) = config.as_object_mut() {
                map.shift_remove("etcd_endpoints");
            }
            config["datastore_type"] = json!("kubernetes");
        }
        config
    }

    /// Calls the CNI plugin for a pod and gives what it printed.
    ///
    /// # Errors
    /// [`CniError`].
    pub fn cni(&self, verb: &'static str, pod: &PodState) -> Result<String, CniError> {
        self.cni_within(verb, pod, CALL)
    }

    /// Calls the CNI plugin for a pod and kills it with SIGKILL when it is not done in time.
    ///
    /// # Errors
    /// [`CniError`]; with [`ProgramError::Hung`] inside when it was killed.
    pub fn cni_within(
        &self,
        verb: &'static str,
        pod: &PodState,
        limit: Duration,
    ) -> Result<String, CniError> {
        self.call_for(verb, pod, (None, INTERFACE), limit)
    }

    /// Calls the CNI plugin for a further attachment of a pod, as a plugin that calls several
    /// networks does.
    ///
    /// # Errors
    /// [`CniError`].
    pub fn cni_of_network(
        &self,
        verb: &'static str,
        pod: &PodState,
        network: &str,
        interface: &str,
    ) -> Result<String, CniError> {
        self.call_for(verb, pod, (Some(network), interface), CALL)
    }

    fn call_for(
        &self,
        verb: &'static str,
        pod: &PodState,
        (network, interface): (Option<&str>, &str),
        limit: Duration,
    ) -> Result<String, CniError> {
        let label = pod.label();
        let node = self
            .layout
            .node(&pod.node)
            .ok_or_else(|| CniError::Unknown { pod: label.clone() })?;
        let mut command = self.plugin(node, verb);
        // In the Kubernetes API names are unique in a namespace, not only on a node.
        let name = match self.topology.datastore {
            Datastore::Kubernetes => pod_name(&pod.node, &pod.name),
            Datastore::Etcd => pod.name.clone(),
        };
        let arguments = [
            "IgnoreUnknown=1".to_owned(),
            "K8S_POD_NAMESPACE=default".to_owned(),
            format!("K8S_POD_NAME={name}"),
            format!("K8S_POD_INFRA_CONTAINER_ID={}", pod.container),
        ];
        command
            .env("CNI_CONTAINERID", &pod.container)
            .env("CNI_NETNS", netns::path(&pod.netns))
            .env("CNI_IFNAME", interface)
            .env("CNI_ARGS", arguments.join(";"));
        let mut config = self.network_config(node);
        if let Some(network) = network {
            config["name"] = network.into();
        }
        call(node, command, verb, label, &config, limit)
    }

    /// CNI GC on a node: of the network only the attachments of `alive` stay.
    ///
    /// # Errors
    /// [`CniError`].
    pub fn cni_gc(&self, node: &str, alive: &[PodState]) -> Result<String, CniError> {
        let layout = self.layout.node(node).ok_or_else(|| CniError::Unknown {
            pod: node.to_owned(),
        })?;
        let mut config = self.network_config(layout);
        // The first version that has GC.
        config["cniVersion"] = json!("1.1.0");
        let alive = alive.iter().filter(|pod| pod.node == node);
        config["cni.dev/valid-attachments"] = alive
            .map(|pod| json!({ "containerID": pod.container, "ifname": INTERFACE }))
            .collect();
        let command = self.plugin(layout, "GC");
        call(layout, command, "GC", format!("{node}/*"), &config, CALL)
    }

    /// CNI STATUS on a node: could it attach a pod now?
    ///
    /// # Errors
    /// [`CniError`]; [`CniError::Refused`] with the reason when it could not.
    pub fn cni_status(&self, node: &str) -> Result<(), CniError> {
        let layout = self.layout.node(node).ok_or_else(|| CniError::Unknown {
            pod: node.to_owned(),
        })?;
        let mut config = self.network_config(layout);
        // The first version that has STATUS.
        config["cniVersion"] = json!("1.1.0");
        let command = self.plugin(layout, "STATUS");
        let answer = call(
            layout,
            command,
            "STATUS",
            format!("{node}/*"),
            &config,
            CALL,
        );
        answer.map(drop)
    }

    /// The plugin with what is the same for all pods of a node.
    fn plugin(&self, node: &NodeLayout, verb: &str) -> Command {
        let bin = self.folder.bin();
        let program = match node.kind {
            NodeKind::Flannel => flannel::PLUGIN,
            _ => "caracal-cni",
        };
        let mut command = self.clean_command(&bin.join(program));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_PATH", format!("{}:{FOREIGN_PLUGINS}", bin.display()))
            .env("CARACAL_RUN_DIR", self.folder.run(&node.name))
            .env("CARACAL_LIB_DIR", self.folder.lib(&node.name));
        command
    }

    /// CNI ADD, again while the plugin says that later will do or that the node was too slow, as
    /// runtimes do.
    fn add(&self, pod: &PodState) -> Result<String, CniError> {
        let end = Instant::now() + ATTACH;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.cni_within("ADD", pod, left) {
                Err(CniError::Refused {
                    code: LATER | UNROUTED,
                    ..
                }) if Instant::now() + PAUSE < end => {
                    std::thread::sleep(PAUSE);
                }
                answer => return answer,
            }
        }
    }

    /// CNI ADD. On a foreign node, where no agent does it, the pod is also routed.
    pub(crate) fn attach_pod(&self, pod: &PodState) -> Result<Attachment, CniError> {
        let answer = self.add(pod)?;
        let attachment = parse_result(&answer).ok_or_else(|| CniError::Answer {
            pod: pod.label(),
            answer: answer.clone(),
        })?;
        let foreign = self
            .layout
            .node(&pod.node)
            .filter(|n| !matches!(n.kind, NodeKind::Caracal | NodeKind::Flannel));
        if let (Some(node), Some(interface)) = (foreign, &attachment.host_interface) {
            let second = attachment.address6.map(IpAddr::V6);
            for address in std::iter::once(attachment.address).chain(second) {
                route_by_hand(node, interface, address).map_err(|source| CniError::HostSide {
                    pod: pod.label(),
                    source,
                })?;
            }
        }
        Ok(attachment)
    }

    /// Attaches pods, one node's after the other, several nodes at the same time.
    pub(crate) fn attach_pods(
        &self,
        pods: &[PodState],
        each: &(dyn Fn(&PodState, &Attachment, Duration) + Sync),
    ) -> Vec<(PodState, Result<Attachment, CniError>)> {
        self.by_node(pods, |pod| {
            let start = Instant::now();
            let result = self.attach_pod(pod);
            if let Ok(attachment) = &result {
                each(pod, attachment, start.elapsed());
            }
            result
        })
    }

    /// CNI DEL for pods.
    pub(crate) fn detach_pods(
        &self,
        pods: &[PodState],
    ) -> Vec<(PodState, Result<String, CniError>)> {
        self.by_node(pods, |pod| self.cni("DEL", pod))
    }

    fn by_node<T: Send>(
        &self,
        pods: &[PodState],
        work: impl Fn(&PodState) -> T + Sync,
    ) -> Vec<(PodState, T)> {
        let nodes = &self.layout.nodes;
        let next = AtomicUsize::new(0);
        // More at the same time than the machine can run only makes each of them late.
        let workers = std::thread::available_parallelism().map_or(1, NonZeroUsize::get) * WORKERS;
        let worker = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(node) = nodes.get(index) else {
                    return done;
                };
                let mine = pods.iter().filter(|p| p.node == node.name);
                done.extend(mine.map(|p| (index, (p.clone(), work(p)))));
            }
        };
        std::thread::scope(|scope| {
            let workers = (0..workers.min(nodes.len())).map(|_| scope.spawn(worker));
            let workers: Vec<_> = workers.collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, Vec<_>>| match worker.join() {
                Ok(results) => results,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            let mut done: Vec<_> = workers.into_iter().flat_map(join).collect();
            done.sort_by_key(|(index, _)| *index);
            done.into_iter().map(|(_, pod)| pod).collect()
        })
    }
}

fn call(
    node: &NodeLayout,
    mut command: Command,
    verb: &'static str,
    pod: String,
    config: &Value,
    limit: Duration,
) -> Result<String, CniError> {
    let config = config.to_string();
    let output = match program::output(Some(&node.netns), &mut command, config.as_bytes(), limit) {
        Ok(output) => output,
        Err(source) => return Err(CniError::Program { verb, pod, source }),
    };
    if output.status.success() {
        return Ok(output.stdout);
    }
    let (code, message) = refusal(&output);
    Err(CniError::Refused {
        verb,
        pod,
        code,
        message,
    })
}

/// The node's side of a pod's cable, as the agent would make it.
fn route_by_hand(node: &NodeLayout, device: &str, pod: IpAddr) -> Result<(), ProgramError> {
    let switches = match Family::of(pod) {
        Family::Ipv4 => vec![
            ("net/ipv4/ip_forward".to_owned(), "1"),
            (format!("net/ipv4/conf/{device}/proxy_arp"), "1"),
            // Else the first packet of a pod waits up to 0.8 s for its gateway.
            (format!("net/ipv4/neigh/{device}/proxy_delay"), "0"),
        ],
        Family::Ipv6 => vec![("net/ipv6/conf/all/forwarding".to_owned(), "1")],
    };
    for (key, value) in switches {
        netns::sysctl(&node.netns, &key, value, false)?;
    }
    let lines = [
        format!("link set dev {device} up"),
        format!(
            "route replace {} dev {device} scope link",
            Prefix::host(pod)
        ),
    ];
    crate::ip::batch(Some(&node.netns), &lines)
}

fn refusal(output: &program::ProgramOutput) -> (u64, String) {
    let Ok(error) = serde_json::from_str::<Value>(&output.stdout) else {
        let said = format!("{}{}", output.stdout, output.stderr);
        return (0, format!("{}: {}", output.status, said.trim()));
    };
    let text = |key: &str| {
        error
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let details = text("details");
    let message = if details.is_empty() {
        text("msg")
    } else {
        format!("{}: {details}", text("msg"))
    };
    (
        error.get("code").and_then(Value::as_u64).unwrap_or(0),
        message,
    )
}

/// The addresses and the interface outside the sandbox of a CNI result.
#[must_use]
pub fn parse_result(answer: &str) -> Option<Attachment> {
    let result: Value = serde_json::from_str(answer).ok()?;
    let addresses: Vec<IpAddr> = result["ips"]
        .as_array()?
        .iter()
        .map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok())
        .collect::<Option<_>>()?;
    let (&address, rest) = addresses.split_first()?;
    let second = rest.iter().find_map(|ip| match ip {
        IpAddr::V6(second) => Some(*second),
        IpAddr::V4(_) => None,
    });
    let interfaces = result["interfaces"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    // A bridge comes before the pod's cable.
    let outside = interfaces
        .iter()
        .rfind(|i| i["sandbox"].as_str().is_none_or(str::is_empty))
        .and_then(|i| i["name"].as_str());
    Some(Attachment {
        address,
        address6: second,
        host_interface: outside.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn cni_result_1_0_is_read() {
        let answer = r#"{"cniVersion":"1.0.0",
            "interfaces":[{"name":"cali0d7763386da"},{"name":"eth0","sandbox":"/run/netns/x"}],
            "ips":[{"address":"10.244.3.66/32"}]}"#;
        let attachment = parse_result(answer).unwrap();
        assert_eq!(attachment.address.to_string(), "10.244.3.66");
        assert_eq!(
            attachment.host_interface.as_deref(),
            Some("cali0d7763386da")
        );
        let bridged = r#"{"interfaces":[{"name":"cni0"},{"name":"veth1"},{"name":"eth0","sandbox":"/x"}],
            "ips":[{"address":"10.5.1.2/24"}]}"#;
        let bridged = parse_result(bridged).unwrap();
        assert_eq!(bridged.host_interface.as_deref(), Some("veth1"));
        let dual = r#"{"ips":[{"address":"10.244.3.66/32"},{"address":"fd00:244::41/128"}]}"#;
        let dual = parse_result(dual).unwrap();
        assert_eq!(dual.address.to_string(), "10.244.3.66");
        assert_eq!(dual.address6, Some("fd00:244::41".parse().unwrap()));
        let bare = parse_result(r#"{"ips":[{"address":"10.244.3.66/32"}]}"#).unwrap();
        assert_eq!(bare.host_interface, None);
        for bad in ["", "{}", r#"{"ips":[]}"#, r#"{"ips":[{"address":"x"}]}"#] {
            assert_eq!(parse_result(bad), None, "{bad}");
        }
    }

    #[test]
    fn container_ids_are_64_hexadecimal_digits() {
        let id = container_id();
        assert_eq!(id.len(), 64);
        assert!(id.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(id, container_id());
    }
}
