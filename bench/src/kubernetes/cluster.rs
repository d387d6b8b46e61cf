//! The cluster around the measured node, and what happens in it.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use caracal_lab::Lab;
use serde_json::{Value, json};

/// VXLAN, as there is nobody to speak BGP with.
pub(super) const TOPOLOGY: &str = "
name: kubernetes
description: one node, and the objects of many
datastore: kubernetes
backend: vxlan
pool: {cidr: 10.128.0.0/10, blockSize: 26, vxlanMode: Always}
segments:
  - {name: lan, cidr: 10.0.0.0/16}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 0}
";

/// Something that happens so many times.
type Happening = fn(&Lab, u64) -> Result<()>;

/// What is counted, by the heading of its column.
pub(super) const EVENTS: [(&str, Happening); 4] = [
    ("a pod comes up here", pods_here),
    ("a pod comes up elsewhere", pods_elsewhere),
    ("its block there", blocks_elsewhere),
    ("a heartbeat of another Node", heartbeats),
];

const GROUP: &str = "crd.projectcalico.org/v1";

fn name(node: u32) -> String {
    format!("worker-{node}")
}

fn address(node: u32) -> Ipv4Addr {
    (u32::from(Ipv4Addr::new(10, 0, 4, 0)) + node).into()
}

/// The first address of a Node's block; the measured node takes its own from the front.
fn block(node: u32) -> Ipv4Addr {
    (u32::from(Ipv4Addr::new(10, 130, 0, 0)) + node * 64).into()
}

fn block_name(node: u32) -> String {
    format!("{}-26", block(node).to_string().replace('.', "-"))
}

/// A Node as a kubelet and Calico's node have written it; `images` and the like, which are most of
/// a real one, are in a status that nobody asks for.
fn node_object(node: u32) -> Value {
    let name = name(node);
    let image = |n: u32| {
        let digest = format!("{:064x}", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        json!({"names": [format!("registry.example/library/image-{n}@sha256:{digest}")],
            "sizeBytes": 50_000_000 + n})
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "a",
            },
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "projectcalico.org/IPv4Address": format!("{}/16", address(node)),
                "projectcalico.org/IPv4VXLANTunnelAddr": block(node).to_string(),
                "projectcalico.org/VXLANTunnelMACAddr":
                    format!("66:00:00:00:{:02x}:{:02x}", node >> 8, node & 0xff),
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "status": {
            "addresses": [{"type": "InternalIP", "address": address(node).to_string()}],
            "images": (0..50).map(image).collect::<Vec<_>>(),
        },
    })
}

/// Its block with one address, the tunnel's, and the affinity.
fn block_objects(node: u32) -> [Value; 2] {
    let (owner, cidr) = (name(node), format!("{}/26", block(node)));
    let mut allocations = vec![Value::Null; 64];
    allocations[0] = 0.into();
    let attribute = json!({"handle_id": format!("vxlan-tunnel-addr-{owner}"),
        "secondary": {"node": owner, "type": "vxlanTunnelAddress"}});
    [
        json!({"apiVersion": GROUP, "kind": "IPAMBlock", "metadata": {"name": block_name(node)},
            "spec": {"cidr": cidr, "affinity": format!("host:{owner}"), "allocations": allocations,
                "unallocated": (1..64).collect::<Vec<u32>>(), "attributes": [attribute],
                "sequenceNumber": 1, "deleted": false, "strictAffinity": false}}),
        json!({"apiVersion": GROUP, "kind": "BlockAffinity",
            "metadata": {"name": format!("{owner}-{}", block_name(node))},
            "spec": {"state": "confirmed", "node": owner, "type": "host", "cidr": cidr,
                "deleted": "false"}}),
    ]
}

/// Makes the other Nodes: the server reads them at its start, as one by one they would take hours.
pub(super) fn fill(lab: &mut Lab, nodes: u32) -> Result<()> {
    let path = lab.folder().kubernetes().join("objects.json");
    let text = std::fs::read_to_string(&path)?;
    let mut objects: Vec<Value> = serde_json::from_str(&text)?;
    for node in 1..nodes {
        objects.push(node_object(node));
        objects.extend(block_objects(node));
    }
    lab.kill9_api_server()?;
    std::fs::write(&path, json!(objects).to_string())?;
    lab.start_api_server()
        .context("with the Nodes of the cluster")
}

/// A pod as a Deployment makes it, bound to a node.
fn pod(node: &str, number: u64) -> Value {
    let variable =
        |n: u32| json!({"name": format!("SETTING_{n}"), "value": format!("value of setting {n}")});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("web-7d4b9c6f58-{number:05}"), "namespace": "default",
            "labels": {"app": "web", "pod-template-hash": "7d4b9c6f58"},
        },
        "spec": {
            "nodeName": node, "serviceAccountName": "default",
            "containers": [{
                "name": "web", "image": "registry.example/library/web:1.27",
                "env": (0..20).map(variable).collect::<Vec<_>>(),
                "ports": [{"containerPort": 8080, "name": "http"}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/web"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "web"}}],
        },
    })
}

fn kubectl(lab: &Lab, arguments: &[&str], stdin: &Value) -> Result<()> {
    let done = lab.kubectl(arguments, stdin.to_string().as_bytes());
    done.map(drop)
        .with_context(|| format!("kubectl {arguments:?}"))
}

fn make(lab: &Lab, items: Vec<Value>) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    kubectl(lab, &["create", "-f", "-"], &list)
}

/// Made and bound, and then annotated with an address as the plugin does it.
fn pods_on(lab: &Lab, node: &str, numbers: std::ops::Range<u64>) -> Result<()> {
    make(lab, numbers.clone().map(|n| pod(node, n)).collect())?;
    let names: Vec<String> = numbers.map(|n| format!("web-7d4b9c6f58-{n:05}")).collect();
    let mut arguments = vec!["annotate", "pods"];
    arguments.extend(names.iter().map(String::as_str));
    arguments.extend([
        "cni.projectcalico.org/podIP=10.128.0.9/32",
        "cni.projectcalico.org/podIPs=10.128.0.9/32",
        "cni.projectcalico.org/containerID=8f2c6f1c2a345b6d4e7f8a9b0c1d2e3f4a5b8f2c6f1c2a345b6d4e7f8a9b0c1d",
    ]);
    kubectl(lab, &arguments, &Value::Null)
}

fn pods_here(lab: &Lab, count: u64) -> Result<()> {
    pods_on(lab, super::NODE, 0..count)
}

fn pods_elsewhere(lab: &Lab, count: u64) -> Result<()> {
    pods_on(lab, &name(1), count..2 * count)
}

fn blocks_elsewhere(lab: &Lab, count: u64) -> Result<()> {
    for number in 0..count {
        let patch = json!({"spec": {"sequenceNumber": number + 2}}).to_string();
        let name = block_name(1);
        kubectl(
            lab,
            &["patch", "ipamblock", &name, "--type=merge", "-p", &patch],
            &Value::Null,
        )?;
    }
    Ok(())
}

/// A kubelet's is of the status, which is not read; that something changed is told all the same.
fn heartbeats(lab: &Lab, count: u64) -> Result<()> {
    for number in 0..count {
        let beat = format!("node.alpha.kubernetes.io/ttl={number}");
        kubectl(
            lab,
            &["annotate", "--overwrite", "node", &name(1), &beat],
            &Value::Null,
        )?;
    }
    Ok(())
}
