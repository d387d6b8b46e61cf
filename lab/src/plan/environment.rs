//! The environment of a node's `caracal`: Calico's variables, from the topology.

use std::collections::BTreeMap;

use caracal_model::Family;

use super::{FLANNEL_HEALTH_PORT, InterfaceLayout};
use crate::topology::{Datastore, Flannel, Node, Pool, Topology};

/// Environment of a node, but for its directories.
pub(super) fn environment(
    topology: &Topology,
    node: &Node,
    uplink: &InterfaceLayout,
    endpoint: &str,
) -> BTreeMap<String, String> {
    if let Some(flannel) = topology.flannel() {
        return flannels_environment(flannel, node, uplink, endpoint);
    }
    let mut env: BTreeMap<String, String> = [
        ("NODENAME", node.name.value.clone()),
        ("ETCD_ENDPOINTS", endpoint.to_owned()),
        ("DATASTORE_TYPE", "etcdv3".to_owned()),
        // As in Calico's manifests: nobody starts a node again that ended because etcd was slow for
        // a moment.
        ("WAIT_FOR_DATASTORE", "true".to_owned()),
        (
            "CALICO_NETWORKING_BACKEND",
            topology.backend.as_str().to_owned(),
        ),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_owned(), v))
    .collect();
    let families = topology.families();
    for family in &families {
        if let Some((address, len)) = uplink.address_of(*family) {
            let value = match node.autodetect {
                true => "autodetect".to_owned(),
                false => format!("{address}/{len}"),
            };
            let variable = match family {
                Family::Ipv4 => "IP",
                Family::Ipv6 => "IP6",
            };
            env.insert(variable.to_owned(), value);
        }
        if let Some(pool) = topology.pool_of(*family) {
            env.extend(pool_variables(pool));
        }
    }
    if !families.contains(&Family::Ipv4) {
        // As Calico's documentation has it for IPv6 alone: no IPv4 address, no pool of it, and a
        // router ID that comes from elsewhere.
        for (name, value) in [
            ("IP", "none"),
            ("CALICO_IPV4POOL_CIDR", "none"),
            ("CALICO_ROUTER_ID", "hash"),
        ] {
            env.insert(name.to_owned(), value.to_owned());
        }
    }
    if topology.resources.iter().any(|r| r.value.kind == "IPPool") {
        env.insert("NO_DEFAULT_POOLS".to_owned(), "true".to_owned());
    }
    if let Some(asn) = node.asn {
        env.insert("AS".to_owned(), asn.to_string());
    }
    if topology.datastore == Datastore::Kubernetes {
        env.remove("ETCD_ENDPOINTS");
        env.insert("DATASTORE_TYPE".to_owned(), "kubernetes".to_owned());
    }
    env.extend(node.env.clone());
    env
}

/// Environment of a node with `caracal flannel`: flanneld's variables.
fn flannels_environment(
    flannel: &Flannel,
    node: &Node,
    uplink: &InterfaceLayout,
    endpoint: &str,
) -> BTreeMap<String, String> {
    let own = [
        ("FLANNELD_ETCD_ENDPOINTS", endpoint.to_owned()),
        ("FLANNELD_IFACE", uplink.device.clone()),
        ("FLANNELD_IP_MASQ", flannel.ip_masq.to_string()),
        ("FLANNELD_HEALTHZ_PORT", FLANNEL_HEALTH_PORT.to_string()),
    ];
    let own = own
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    own.chain(node.env.clone()).collect()
}

fn pool_variables(pool: &Pool) -> Vec<(String, String)> {
    let prefix = match pool.family() {
        Family::Ipv4 => "CALICO_IPV4POOL",
        Family::Ipv6 => "CALICO_IPV6POOL",
    };
    let mut variables = vec![
        ("CIDR", pool.cidr.value.to_string()),
        ("BLOCK_SIZE", pool.block_size().to_string()),
        ("VXLAN", pool.vxlan_mode.value.as_str().to_owned()),
        ("NAT_OUTGOING", pool.nat_outgoing().to_string()),
    ];
    if pool.family() == Family::Ipv4 {
        variables.push(("IPIP", pool.ipip_mode.as_str().to_owned()));
    }
    variables
        .into_iter()
        .map(|(name, value)| (format!("{prefix}_{name}"), value))
        .collect()
}
