//! What an operator says of services on a node, and the node itself.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use caracal_model::{InsertEach, NodeName, Prefix};

use crate::settings::Overrides;

/// Addresses of a node that its node ports are served on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Those of its Node resource: one a family.
    #[default]
    Primary,
    /// All of the machine's within one of these; never those of its loopback range, of its tunnels
    /// and of its workloads.
    Within(BTreeSet<Prefix>),
}

/// Text that names no addresses for node ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected primary, all, or CIDRs with commas between; {0:?} is none of these")]
pub struct NodePortAddressesError(String);

impl FromStr for NodePortAddresses {
    type Err = NodePortAddressesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ranges = match text {
            "primary" => return Ok(Self::Primary),
            "all" => "0.0.0.0/0,::/0",
            ranges => ranges,
        };
        let range = |text: &str| {
            let range = text.trim().parse();
            range.map_err(|_| NodePortAddressesError(text.to_owned()))
        };
        ranges
            .split(',')
            .map(range)
            .collect::<Result<_, _>>()
            .map(Self::Within)
    }
}

/// Settings of services on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSettings {
    /// Addresses that node ports are served on.
    pub node_ports: NodePortAddresses,
    /// TCP connections to an endpoint that no slice names any more are reset when their client
    /// sends next.
    pub reset_tcp: bool,
}

/// This node, as the plan of services needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceNode {
    pub(crate) name: NodeName,
    pub(crate) settings: ServiceSettings,
    /// Addresses of its interfaces; those of tunnels and workloads are not among them.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Where it reaches its datastore.
    pub(crate) datastore: BTreeSet<SocketAddr>,
    /// Its datastore is Kubernetes' API.
    pub(crate) on_kubernetes: bool,
    /// Where it listens itself, beside BGP.
    pub(crate) listeners: BTreeSet<SocketAddr>,
    /// Whom it asks for names.
    pub(crate) name_servers: BTreeSet<IpAddr>,
    /// Its `FELIX_*` variables.
    pub(crate) overrides: Overrides,
}

impl ServiceNode {
    /// A node of which nothing else is known yet.
    pub(crate) fn new(name: NodeName, settings: ServiceSettings) -> Self {
        Self {
            name,
            settings,
            addresses: BTreeSet::new(),
            datastore: BTreeSet::new(),
            on_kubernetes: false,
            listeners: BTreeSet::new(),
            name_servers: BTreeSet::new(),
            overrides: Overrides::new(),
        }
    }

    /// The addresses for node ports. `registered`: those of its Node resource.
    pub(super) fn node_port_addresses(&self, registered: &BTreeSet<IpAddr>) -> BTreeSet<IpAddr> {
        let ranges = match &self.settings.node_ports {
            NodePortAddresses::Primary => return registered.clone(),
            NodePortAddresses::Within(ranges) => ranges,
        };
        let serves = |address: &&IpAddr| {
            !address.is_loopback() && ranges.iter().any(|range| range.contains(**address))
        };
        self.addresses.iter().filter(serves).copied().insert_each()
    }
}
