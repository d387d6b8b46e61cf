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

use caracal_model::{Cidr, Family, Node, Prefix, SharedMap, Snapshot};

use crate::actual::{ActualNeighbour, ActualObject, ActualRoute, ActualTarget};
use crate::kernel_objects::{
    FdbKey, ForwardingTarget, IPIP_DEVICE, NeighbourKey, NextHop, vxlan_device,
};
use crate::links::Link;
use crate::settings::{PROTOCOL_BOOT, ROUTE_PROTOCOL, Settings};

/// The BIRD daemon.
pub(crate) const PROTOCOL_BIRD: u8 = 12;

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
        .filter(|pool| !pool.spec.is_load_balancer_only())
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
        let pools = match was.pools.is_same(&is.pools) {
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

/// Signs by which our objects are recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
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
        if route.protocol == self.route_protocol || route.protocol == ROUTE_PROTOCOL {
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
            PROTOCOL_BIRD if link == IPIP_DEVICE => Owner::Ours,
            // Felix leaves the protocol of VXLAN routes unset. The kernel's own routes there have
            // protocol 2.
            PROTOCOL_BOOT if is_vxlan_device(link) => Owner::Ours,
            PROTOCOL_BOOT if self.is_workload(link) && route.prefix.is_host() => Owner::Adoptable,
            _ => self.leftover(route),
        }
    }

    /// A route of Calico's BIRD: inside a pool, and to other machines, or a blackhole of more than
    /// one address.
    fn leftover(&self, route: &ActualRoute) -> Owner {
        if route.protocol != PROTOCOL_BIRD || route.tos != 0 {
            return Owner::Foreign;
        }
        let in_pool = self.cluster.block_len(&route.prefix).is_some();
        let outward = |hop: &NextHop| {
            let link = hop.link.as_str();
            hop.gateway.is_some() && !self.is_workload(link) && !is_vxlan_device(link)
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
            "ipip" => link.name.as_str() == IPIP_DEVICE,
            "vxlan" => is_vxlan_device(link.name.as_str()),
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
            && (is_vxlan_device(key.link.as_str())
                || (key.address.is_ipv4() && self.is_workload(key.link.as_str())))
    }

    /// True for an FDB entry that we may have set. The all-zero MAC is the default destination of a
    /// device.
    #[must_use]
    pub fn fdb(&self, key: &FdbKey) -> bool {
        is_vxlan_device(key.link.as_str()) && key.mac != [0; 6]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actual::ActualTarget;
    use crate::kernel_objects::ForwardingTarget;

    fn route(protocol: u8, link: &str) -> ActualRoute {
        ActualRoute {
            prefix: "10.244.1.7/32".parse().unwrap(),
            metric: 0,
            tos: 0,
            protocol,
            target: ActualTarget::Known(ForwardingTarget::via(None, &link.into(), false)),
            mtu: None,
            source: None,
        }
    }

    #[test]
    fn agent_5_ownership_is_protocol_and_device() {
        let rule = Ownership::default();
        for (protocol, link, owner) in [
            (80, "eth0", Owner::Ours),
            (80, "tunl0", Owner::Ours),
            (12, "tunl0", Owner::Ours),
            (12, "eth0", Owner::Foreign),
            (12, "cali123", Owner::Foreign),
            (3, "vxlan.calico", Owner::Ours),
            (2, "vxlan.calico", Owner::Foreign),
            (4, "vxlan.calico", Owner::Foreign),
            (3, "tunl0", Owner::Foreign),
            (3, "eth0", Owner::Foreign),
            (3, "cali123", Owner::Adoptable),
            (2, "cali123", Owner::Foreign),
            (3, "flannel.1", Owner::Foreign),
        ] {
            assert_eq!(
                rule.route(&route(protocol, link)),
                owner,
                "{protocol} {link}"
            );
        }
        let mut blackhole = route(80, "eth0");
        blackhole.target = ActualTarget::Known(ForwardingTarget::Blackhole);
        assert_eq!(rule.route(&blackhole), Owner::Ours);
        blackhole.protocol = 12;
        assert_eq!(rule.route(&blackhole), Owner::Foreign);
    }

    #[test]
    fn agent_5_a_leftover_is_protocol_pool_and_shape() {
        let rule = Ownership {
            cluster: Arc::new(ClusterAddresses {
                pools: vec![("10.244.0.0/16".parse().unwrap(), 26)],
                nodes: [("10.0.0.2".parse().unwrap(), 1)].into_iter().collect(),
            }),
            ..Ownership::default()
        };
        let via = |gateway: &str, link: &str| {
            ForwardingTarget::via(Some(gateway.parse().unwrap()), &link.into(), false)
        };
        let two = |a: &str, b: &str| match (via(a, "eth0"), via(b, "eth0")) {
            (ForwardingTarget::Via(a), ForwardingTarget::Via(b)) => {
                ForwardingTarget::Via([a, b].concat())
            }
            _ => unreachable!("both are ways"),
        };
        let direct = ForwardingTarget::via(None, &"eth0".into(), false);
        for (prefix, protocol, target, owner, certain) in [
            (
                "10.244.2.0/26",
                12,
                via("10.0.0.2", "eth0"),
                Owner::Leftover,
                true,
            ),
            (
                "10.244.2.7/32",
                12,
                via("10.0.0.2", "eth0"),
                Owner::Leftover,
                true,
            ),
            // Behind a router: Calico's when we know better, and left alone when not.
            (
                "10.244.2.0/26",
                12,
                via("10.0.0.254", "eth0"),
                Owner::Leftover,
                false,
            ),
            (
                "10.244.2.0/26",
                12,
                two("10.0.0.2", "10.0.0.254"),
                Owner::Leftover,
                false,
            ),
            (
                "10.244.1.0/26",
                12,
                ForwardingTarget::Blackhole,
                Owner::Leftover,
                true,
            ),
            (
                "10.244.1.0/24",
                12,
                ForwardingTarget::Blackhole,
                Owner::Leftover,
                false,
            ),
            (
                "10.244.1.7/32",
                12,
                ForwardingTarget::Blackhole,
                Owner::Foreign,
                false,
            ),
            // Another BIRD of the host's: other prefixes, other ways.
            (
                "192.0.2.0/24",
                12,
                via("10.0.0.2", "eth0"),
                Owner::Foreign,
                true,
            ),
            (
                "0.0.0.0/0",
                12,
                via("10.0.0.254", "eth0"),
                Owner::Foreign,
                false,
            ),
            ("10.244.2.0/26", 12, direct, Owner::Foreign, false),
            (
                "10.244.2.7/32",
                12,
                via("10.0.0.2", "cali1"),
                Owner::Foreign,
                true,
            ),
            // Other programs.
            (
                "10.244.2.0/26",
                4,
                via("10.0.0.2", "eth0"),
                Owner::Foreign,
                true,
            ),
            (
                "10.244.2.0/26",
                186,
                via("10.0.0.2", "eth0"),
                Owner::Foreign,
                true,
            ),
        ] {
            let mut route = route(protocol, "eth0");
            route.prefix = prefix.parse().unwrap();
            route.target = ActualTarget::Known(target);
            assert_eq!(rule.route(&route), owner, "{route:?}");
            assert_eq!(rule.is_certain(&route), certain, "{route:?}");
            assert_ne!(Ownership::default().route(&route), Owner::Leftover);
        }
    }

    #[test]
    fn a_device_with_our_name_and_another_kind_is_foreign() {
        let rule = Ownership::default();
        let mut link = Link::new(3, "vxlan.calico");
        link.kind = "dummy".into();
        assert!(!rule.tunnel(&link));
        link.kind = "vxlan".into();
        assert!(rule.tunnel(&link));
        assert!(rule.address(&link, &"10.244.0.1/32".parse().unwrap()));
        assert!(!rule.address(&link, &"fe80::1/64".parse().unwrap()));
    }
}
