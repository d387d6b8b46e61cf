//! Ownership of kernel objects. Ours are recognised by route protocol, device and table; everything
//! else is foreign, and never changed and never deleted (AGENT-5).
//!
//! Routes that Calico's BIRD left for this cluster are told by protocol *and* by what the datastore
//! knows: a prefix inside a pool, and a shape that Calico writes ([`ClusterAddresses`]). Another
//! BIRD of the host's keeps its routes.
//!
//! The rule for a foreign route with the prefix and metric of a wanted one: it stays, ours is not
//! written, and a problem says so. (Felix overwrites it.) With another metric both exist and the
//! lower one is used.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_model::{Cidr, Family, IfName, Node, Prefix, SharedMap, Snapshot};

use crate::actual::{ActualNeighbour, ActualObject, ActualRoute, ActualTarget};
use crate::kernel_objects::{
    FdbKey, ForwardingTarget, IPIP_DEVICE, NeighbourKey, NextHop, vxlan_device,
};
use crate::links::Link;
use crate::settings::{PROTOCOL_BOOT, ROUTE_PROTOCOL, Settings};

/// The kernel itself.
pub(crate) const PROTOCOL_KERNEL: u8 = 2;
/// The BIRD daemon.
pub(crate) const PROTOCOL_BIRD: u8 = 12;

/// The IPIP device of flannel networks.
pub const FLANNEL_IPIP_DEVICE: &str = "flannel.ipip";
/// The TUN device of flannel networks with the backend `udp`.
pub const FLANNEL_TUN_DEVICE: &str = "flannel0";

/// Protocol number of the routes to other nodes of a flannel network: another than a Calico node's,
/// so that both can stand on one machine.
pub const FLANNEL_PROTOCOL: u8 = 82;

/// Numbers of our next-hop objects: far above those that the kernel gives by itself (from 1 on),
/// and above those that routing daemons count up from.
pub const FIRST_OBJECT: u32 = 0x4300_0000;
/// The last of them.
pub(crate) const LAST_OBJECT: u32 = 0x43ff_ffff;

/// Owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Ours: replaced and deleted at will.
    Ours,
    /// Made by a CNI plugin on a workload's interface: replaced when its key is the wanted one,
    /// deleted once our own route to the same prefix over the same interface is wanted.
    Adoptable,
    /// Left by Calico's BIRD: replaced when its key is the wanted one, deleted once our own route
    /// to the prefix is there, and without one when nobody but Calico can have written it
    /// (`Ownership::is_certain`).
    Leftover,
    /// Somebody else's.
    Foreign,
}

/// Facts of the datastore that tell routes of Calico's BIRD from those of another BIRD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAddresses {
    /// Ranges of the pools, with the length of their blocks.
    pub pools: Vec<(Prefix, u8)>,
    /// Addresses of the nodes, with how many nodes have each.
    pub nodes: SharedMap<IpAddr, usize>,
}

impl From<&Snapshot> for ClusterAddresses {
    fn from(snapshot: &Snapshot) -> Self {
        let mut nodes: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for address in snapshot.nodes.values().flat_map(|node| addresses(node)) {
            *nodes.entry(address).or_default() += 1;
        }
        Self {
            pools: pools(snapshot),
            nodes: nodes.into_iter().collect(),
        }
    }
}

fn pools(snapshot: &Snapshot) -> Vec<(Prefix, u8)> {
    let pools = snapshot.pools.values();
    pools
        .filter(|pool| snapshot.makes_routes(&pool.spec))
        .map(|pool| (pool.spec.prefix(), pool.spec.block_len()))
        .collect()
}

fn addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    let families = [Family::Ipv4, Family::Ipv6].into_iter();
    families.filter_map(|family| node.spec.address(family))
}

impl ClusterAddresses {
    /// The same for `is`, where these facts are those of `was`: costs what is different.
    #[must_use]
    pub(crate) fn follow(&self, was: &Snapshot, is: &Snapshot) -> Self {
        let mut nodes = self.nodes.clone();
        for name in is.nodes.changed_since(&was.nodes) {
            for address in was.nodes.get(&name).into_iter().flat_map(|n| addresses(n)) {
                match nodes.get(&address).copied() {
                    Some(2..) => drop(nodes.insert(address, nodes[&address] - 1)),
                    _ => drop(nodes.remove(&address)),
                }
            }
            for address in is.nodes.get(&name).into_iter().flat_map(|n| addresses(n)) {
                let others = nodes.get(&address).copied().unwrap_or_default();
                nodes.insert(address, others + 1);
            }
        }
        let same = was.pools.is_same(&is.pools) && is.pools_turned_since(was).is_empty();
        let pools = match same {
            true => self.pools.clone(),
            false => pools(is),
        };
        Self { pools, nodes }
    }
}

impl ClusterAddresses {
    fn block_len(&self, prefix: &Prefix) -> Option<u8> {
        let pool = self.pools.iter().find(|(pool, _)| pool.covers(prefix));
        pool.map(|(_, len)| *len)
    }
}

/// Whose devices and routes an [`Ownership`] takes for its own, beside those with its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Calico's.
    Calico,
    /// Flannel's: these devices, with the routes on them that have no protocol (flanneld's),
    /// and what flanneld left of routes without a device of its own.
    Flannel(Vec<IfName>),
}

/// Signs by which our objects are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Which network's.
    pub network: NetworkKind,
    /// Protocol of our routes.
    pub route_protocol: u8,
    /// Routes are told by that protocol alone, as in a table that a speaker without a cluster
    /// fills.
    pub protocol_only: bool,
    /// Prefixes of workload interfaces' names.
    pub interface_prefixes: Vec<String>,
    /// Facts of the datastore; empty = no route of a BIRD is a leftover but those on the IPIP
    /// device.
    pub cluster: Arc<ClusterAddresses>,
}

impl Default for Ownership {
    fn default() -> Self {
        Self::from(&Settings::default())
    }
}

impl From<&Settings> for Ownership {
    fn from(settings: &Settings) -> Self {
        Self {
            network: NetworkKind::Calico,
            route_protocol: settings.route_protocol,
            protocol_only: false,
            interface_prefixes: settings.interface_prefixes.clone(),
            cluster: Arc::default(),
        }
    }
}

/// True when the name is that of one of our VXLAN devices.
#[must_use]
pub(crate) fn is_vxlan_device(name: &str) -> bool {
    name == vxlan_device(Family::Ipv4) || name == vxlan_device(Family::Ipv6)
}

/// True for a name that VXLAN devices of flannel networks have.
#[must_use]
pub fn is_flannels_vxlan(name: &str) -> bool {
    let number = name.strip_prefix("flannel.");
    let number = number.or_else(|| name.strip_prefix("flannel-v6."));
    // One with another port beside it has a letter more.
    let number = number.map(|text| text.strip_suffix('b').unwrap_or(text));
    number.is_some_and(|text| text.parse::<u32>().is_ok())
}

/// True when the name is that of one of our tunnel devices.
#[must_use]
pub fn is_tunnel_device(name: &str) -> bool {
    name == IPIP_DEVICE || is_vxlan_device(name)
}

impl Ownership {
    /// The rules of a node of the cluster that the datastore describes.
    #[must_use]
    pub fn from_settings(settings: &Settings, snapshot: &Snapshot) -> Self {
        Self {
            cluster: Arc::new(ClusterAddresses::from(snapshot)),
            ..Self::from(settings)
        }
    }

    /// The same for `is`, where this one is that of `was` under these settings.
    #[must_use]
    pub(crate) fn follow(&self, settings: &Settings, was: &Snapshot, is: &Snapshot) -> Self {
        Self {
            cluster: Arc::new(self.cluster.follow(was, is)),
            ..Self::from(settings)
        }
    }

    /// The rules of a node of a flannel network that has these devices: its routes have
    /// [`FLANNEL_PROTOCOL`]. `range` are the network and the length of a node's subnet, `nodes` the
    /// addresses of the other nodes: by them routes are known that flanneld left.
    #[must_use]
    pub fn flannel(
        devices: Vec<IfName>,
        ranges: Vec<(Prefix, u8)>,
        nodes: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let cluster = ClusterAddresses {
            pools: ranges,
            nodes: nodes.into_iter().map(|address| (address, 1)).collect(),
        };
        Self {
            network: NetworkKind::Flannel(devices),
            route_protocol: FLANNEL_PROTOCOL,
            protocol_only: false,
            interface_prefixes: Vec::new(),
            cluster: Arc::new(cluster),
        }
    }

    /// True for the name of a device that routes to other nodes lead into, whose routes without a
    /// protocol are of the network's own daemon.
    fn is_outward(&self, name: &str) -> bool {
        match &self.network {
            NetworkKind::Calico => is_vxlan_device(name),
            NetworkKind::Flannel(devices) => devices.iter().any(|d| d.as_str() == name),
        }
    }

    /// True for the name of a VXLAN device of ours.
    #[must_use]
    pub(crate) fn is_vxlan(&self, name: &str) -> bool {
        match &self.network {
            NetworkKind::Calico => is_vxlan_device(name),
            NetworkKind::Flannel(_) => {
                let others = [FLANNEL_IPIP_DEVICE, FLANNEL_TUN_DEVICE];
                self.is_outward(name) && !others.contains(&name)
            }
        }
    }

    /// Protocol of the routes that the program before us left.
    const fn leftover_protocol(&self) -> u8 {
        match self.network {
            NetworkKind::Calico => PROTOCOL_BIRD,
            NetworkKind::Flannel(_) => PROTOCOL_BOOT,
        }
    }

    fn is_workload(&self, name: &str) -> bool {
        self.interface_prefixes.iter().any(|p| name.starts_with(p))
    }

    /// Owner of a route of the main table.
    #[must_use]
    pub fn route(&self, route: &ActualRoute) -> Owner {
        if self.protocol_only {
            return if route.protocol == self.route_protocol {
                Owner::Ours
            } else {
                Owner::Foreign
            };
        }
        // Felix's number stays ours even when another one is set, so that a change of the setting
        // leaves no route.
        let is_felixs = self.network == NetworkKind::Calico && route.protocol == ROUTE_PROTOCOL;
        if route.protocol == self.route_protocol || is_felixs {
            return Owner::Ours;
        }
        // Nobody but us and daemons of other kinds leads routes through next-hop objects.
        if route.object().is_some() {
            return Owner::Foreign;
        }
        let Some(link) = route.link().map(caracal_model::IfName::as_str) else {
            return self.leftover(route);
        };
        match route.protocol {
            // Calico before 3.33 left IPIP routes to BIRD.
            PROTOCOL_BIRD if link == IPIP_DEVICE && self.network == NetworkKind::Calico => {
                Owner::Ours
            }
            // Felix leaves the protocol of VXLAN routes unset. The kernel's own routes there have
            // protocol 2.
            PROTOCOL_BOOT if self.is_outward(link) => Owner::Ours,
            PROTOCOL_BOOT if self.is_workload(link) && route.prefix.is_host() => Owner::Adoptable,
            _ => self.leftover(route),
        }
    }

    /// A route of Calico's BIRD: inside a pool, and to other machines, or a blackhole of more than
    /// one address.
    fn leftover(&self, route: &ActualRoute) -> Owner {
        if route.protocol != self.leftover_protocol() || route.tos != 0 {
            return Owner::Foreign;
        }
        let block_len = self.cluster.block_len(&route.prefix);
        let in_pool = match self.network {
            NetworkKind::Calico => block_len.is_some(),
            // An administrator's routes have the same protocol: whole subnets of nodes only.
            NetworkKind::Flannel(_) => block_len == Some(route.prefix.len()),
        };
        let outward = |hop: &NextHop| {
            let link = hop.link.as_str();
            hop.gateway.is_some() && !self.is_workload(link) && !self.is_outward(link)
        };
        let shape = match &route.target {
            ActualTarget::Known(ForwardingTarget::Blackhole) => !route.prefix.is_host(),
            ActualTarget::Known(ForwardingTarget::Via(hops)) => hops.iter().all(outward),
            ActualTarget::Known(ForwardingTarget::Object(..)) | ActualTarget::Other(_) => false,
        };
        if in_pool && shape {
            Owner::Leftover
        } else {
            Owner::Foreign
        }
    }

    /// True when only Calico can have written a [`Owner::Leftover`]: a blackhole of exactly a
    /// block's size, or a way to nodes of the cluster.
    #[must_use]
    pub(crate) fn is_certain(&self, route: &ActualRoute) -> bool {
        match &route.target {
            ActualTarget::Known(ForwardingTarget::Blackhole) => {
                self.cluster.block_len(&route.prefix) == Some(route.prefix.len())
            }
            _ => route.next_hops().iter().all(|hop| {
                hop.gateway
                    .is_some_and(|gateway| self.cluster.nodes.contains_key(&gateway))
            }),
        }
    }

    /// True for a next-hop object of ours: protocol, number, and a kind that we make.
    #[must_use]
    pub fn object(&self, id: u32, object: &ActualObject) -> bool {
        object.hop.is_some()
            && [self.route_protocol, ROUTE_PROTOCOL].contains(&object.protocol)
            && (FIRST_OBJECT..=LAST_OBJECT).contains(&id)
    }

    /// True for one of our tunnel devices: the name and the kind.
    #[must_use]
    pub fn tunnel(&self, link: &Link) -> bool {
        match link.kind.as_str() {
            "ipip" => match &self.network {
                NetworkKind::Calico => link.name.as_str() == IPIP_DEVICE,
                NetworkKind::Flannel(_) => {
                    link.name.as_str() == FLANNEL_IPIP_DEVICE && self.is_outward(link.name.as_str())
                }
            },
            "vxlan" => self.is_vxlan(link.name.as_str()),
            "tun" => {
                let name = link.name.as_str();
                name == FLANNEL_TUN_DEVICE && self.is_outward(name)
            }
            _ => false,
        }
    }

    /// True for an address of ours on one of our tunnel devices.
    #[must_use]
    pub fn address(&self, link: &Link, address: &Cidr) -> bool {
        self.tunnel(link) && address.prefix().is_host()
    }

    /// True for a neighbour that we may have set.
    #[must_use]
    pub fn neighbour(&self, key: &NeighbourKey, neighbour: &ActualNeighbour) -> bool {
        neighbour.permanent
            && (self.is_vxlan(key.link.as_str())
                || (key.address.is_ipv4() && self.is_workload(key.link.as_str())))
    }

    /// True for an FDB entry that we may have set. The all-zero MAC is the default destination of a
    /// device.
    #[must_use]
    pub fn fdb(&self, key: &FdbKey) -> bool {
        self.is_vxlan(key.link.as_str()) && key.mac != [0; 6]
    }
}

#[cfg(test)]
mod tests;
