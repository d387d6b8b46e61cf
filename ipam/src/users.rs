//! Users of addresses according to the rest of the datastore: endpoints of workloads, and nodes
//! with their tunnel devices. A value that does not parse may use an address, so it is remembered.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{
    Compare, Elsewhere, Family, InsertEach, Key, KeyRange, KeyValue, Kind, Node, Snapshot,
    WorkloadEndpoint, kind_prefix,
};
use serde::Serialize;

/// One use of an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct User {
    /// For people: `endpoint default/web-0 on node-a`, `IPIP tunnel of node-a`.
    pub what: String,
    /// The key of the resource that says so.
    pub key: String,
}

/// All uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    by_address: BTreeMap<IpAddr, Vec<User>>,
    /// Endpoints by key: revision and host side interface on which node.
    endpoints: BTreeMap<String, Endpoint>,
    /// Revisions of nodes by key.
    nodes: BTreeMap<String, i64>,
    /// Paths of endpoints and nodes whose values do not parse, with the reason.
    pub unreadable: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    revision: i64,
    node: String,
    interface: String,
}

/// Ranges that [`Users::read`] needs.
#[must_use]
pub fn user_ranges() -> Vec<KeyRange> {
    vec![
        KeyRange::Prefix(kind_prefix(Kind::WorkloadEndpoint)),
        KeyRange::Prefix(kind_prefix(Kind::Node)),
    ]
}

impl Users {
    /// From stored values.
    #[must_use]
    pub fn read<'a>(values: impl IntoIterator<Item = &'a KeyValue>) -> Self {
        let mut users = Self::default();
        for kv in values {
            let Ok(Key::Resource { kind, .. }) = Key::parse(&kv.key) else {
                continue;
            };
            let fault = match kind {
                Kind::WorkloadEndpoint => WorkloadEndpoint::from_json(&kv.value)
                    .map(|endpoint| users.add_endpoint(&kv.key, &endpoint, kv.mod_revision)),
                Kind::Node => Node::from_json(&kv.value)
                    .map(|node| users.add_node(&kv.key, &node, kv.mod_revision)),
                _ => Ok(()),
            };
            if let Err(fault) = fault {
                users.unreadable.insert(kv.key.clone(), fault.0);
            }
        }
        users
    }

    /// From a snapshot. A value of which only an older version parses counts as unreadable too.
    #[must_use]
    pub fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut users = Self::default();
        for ((namespace, name), endpoint) in &snapshot.workloads {
            let key = Key::workload(namespace, name).to_path();
            users.add_endpoint(&key, endpoint, endpoint.revision);
        }
        for (place, endpoint) in &snapshot.elsewhere {
            // Addresses of other nodes' blocks are theirs to judge.
            let networks = endpoint.networks.as_slice();
            let concerns = |network| {
                snapshot
                    .block_of(network)
                    .is_some_and(|b| b.whole().is_some())
            };
            if networks.iter().any(concerns) {
                let (namespace, name) = Elsewhere::names(place);
                users.add_elsewhere(namespace, name, endpoint);
            }
        }
        for (name, node) in &snapshot.nodes {
            users.add_node(&Key::node(name).to_path(), node, node.revision);
        }
        let invalid = snapshot.invalid.iter().filter(|(path, _)| {
            matches!(
                Key::parse(path),
                Ok(Key::Resource {
                    kind: Kind::WorkloadEndpoint | Kind::Node,
                    ..
                })
            )
        });
        users.unreadable = invalid
            .map(|(path, v)| (path.clone(), v.reason.clone()))
            .insert_each();
        users
    }

    fn add(&mut self, address: IpAddr, what: String, key: &str) {
        let user = User {
            what,
            key: key.to_owned(),
        };
        self.by_address.entry(address).or_default().push(user);
    }

    fn add_endpoint(&mut self, key: &str, endpoint: &WorkloadEndpoint, revision: i64) {
        let spec = &endpoint.spec;
        let namespace = endpoint.metadata.namespace.as_deref().unwrap_or("default");
        let workload = [&spec.pod, &spec.workload, &spec.container_id];
        let workload = workload.into_iter().find(|text| !text.is_empty());
        let workload = workload.map_or(endpoint.metadata.name.as_str(), String::as_str);
        for network in &spec.ip_networks {
            let what = format!("endpoint {namespace}/{workload} on {}", spec.node);
            self.add(network.address(), what, key);
        }
        let endpoint = Endpoint {
            revision,
            node: spec.node.clone(),
            interface: spec.interface_name.clone(),
        };
        self.endpoints.insert(key.to_owned(), endpoint);
    }

    fn add_elsewhere(&mut self, namespace: &str, name: &str, endpoint: &Elsewhere) {
        let key = Key::workload(namespace, name).to_path();
        for network in endpoint.networks.as_slice() {
            let what = format!("endpoint {namespace}/{name} on {}", endpoint.node);
            self.add(network.address(), what, &key);
        }
        let endpoint = Endpoint {
            revision: endpoint.revision,
            node: endpoint.node.to_string(),
            interface: String::new(),
        };
        self.endpoints.insert(key, endpoint);
    }

    fn add_node(&mut self, key: &str, node: &Node, revision: i64) {
        self.nodes.insert(key.to_owned(), revision);
        let name = &node.metadata.name;
        let spec = &node.spec;
        let ipip = spec.bgp.as_ref().and_then(|bgp| bgp.ipv4_ipip_tunnel_addr);
        let tunnels = [
            ("IPIP", ipip.map(IpAddr::V4)),
            ("VXLAN", spec.ipv4_vxlan_tunnel_addr.map(IpAddr::V4)),
            ("VXLAN", spec.ipv6_vxlan_tunnel_addr.map(IpAddr::V6)),
            ("WireGuard", spec.wireguard_address(Family::Ipv4)),
            ("WireGuard", spec.wireguard_address(Family::Ipv6)),
        ];
        for (kind, address) in tunnels {
            if let Some(address) = address {
                self.add(address, format!("{kind} tunnel of {name}"), key);
            }
        }
    }

    /// Users of an address.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> &[User] {
        self.by_address.get(&address).map_or(&[], Vec::as_slice)
    }

    /// All addresses in use, in order.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, &[User])> {
        self.by_address
            .iter()
            .map(|(address, users)| (*address, users.as_slice()))
    }

    /// The revision of an endpoint or node.
    #[must_use]
    pub fn revision(&self, key: &Key) -> Option<i64> {
        let path = key.to_path();
        let endpoint = self.endpoints.get(&path).map(|e| e.revision);
        endpoint.or_else(|| self.nodes.get(&path).copied())
    }

    /// That this endpoint or node is as it was read: a comparison for a transaction.
    #[must_use]
    pub fn unchanged(&self, key: &Key) -> Compare {
        match self.revision(key) {
            Some(revision) => Compare::Unchanged(key.to_path(), revision),
            None => Compare::Absent(key.to_path()),
        }
    }

    /// True when some endpoint of the node says that this interface is its own.
    #[must_use]
    pub(crate) fn claims_interface(&self, node: &str, interface: &str) -> bool {
        let mut endpoints = self.endpoints.values();
        endpoints.any(|e| e.node == node && e.interface == interface)
    }
}
