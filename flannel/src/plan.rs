//! What the kernel of a node is to hold, from the leases: in the agent's vocabulary, written by the
//! agent's writer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use caracal_agent::{
    BLACKHOLE_METRIC, Desired, FLANNEL_IPIP_DEVICE, FLANNEL_PROTOCOL, FLANNEL_TUN_DEVICE, FdbKey,
    ForwardingTarget, IPIP_OVERHEAD, Links, NeighbourKey, Ownership, PlannedRoute, Route,
    RouteKind, Tunnel, TunnelDevice, VXLAN_OVERHEAD,
};
use caracal_model::{Family, IfName, Mac, Prefix, Problem, ProblemCode, SharedMap};

use crate::config::{Backend, FlannelConfig, VxlanOptions};
use crate::lease::{NodeSubnets, SubnetLease};
use crate::leases::LeaseView;
use crate::relay::{RelayTable, relay_overhead};

/// Metric of a route, as flanneld leaves it: the kernel's own.
const fn metric(family: Family) -> u32 {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1024,
    }
}

/// The interface over which nodes reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its name.
    pub name: IfName,
    /// Its address of IPv4, and of IPv6: where outer packets come from.
    pub addresses: [Option<IpAddr>; 2],
    /// Its MTU in octets.
    pub mtu: u32,
}

impl Uplink {
    const fn address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.addresses[0],
            Family::Ipv6 => self.addresses[1],
        }
    }
}

/// What stays the same while the daemon runs.
#[derive(Clone, Debug, PartialEq)]
pub struct FlannelNetwork {
    /// The configuration.
    pub config: FlannelConfig,
    /// The way to other nodes.
    pub uplink: Uplink,
    /// What no container's network takes of the own subnets is dropped here.
    pub blackhole: bool,
}

/// Name of a network's VXLAN device.
#[must_use]
pub fn flannel_device(family: Family, vni: u32) -> IfName {
    match family {
        Family::Ipv4 => format!("flannel.{vni}").as_str().into(),
        Family::Ipv6 => format!("flannel-v6.{vni}").as_str().into(),
    }
}

/// MTU of containers' interfaces in octets.
#[must_use]
pub fn container_mtu(config: &FlannelConfig, uplink: &Uplink) -> u32 {
    match &config.backend {
        Backend::Vxlan(options) => vxlan_mtu(options, uplink),
        Backend::Ipip { .. } => uplink.mtu.saturating_sub(IPIP_OVERHEAD),
        // One device carries both families, and each in datagrams of its own.
        Backend::Udp { .. } => {
            let outer = match config.v6 {
                Some(_) => Family::Ipv6,
                None => Family::Ipv4,
            };
            uplink.mtu.saturating_sub(relay_overhead(outer))
        }
        Backend::HostGw | Backend::Alloc => uplink.mtu,
    }
}

/// Flannel takes the same for both families, although IPv6 costs 20 octets more.
fn vxlan_mtu(options: &VxlanOptions, uplink: &Uplink) -> u32 {
    let below = options.mtu.unwrap_or(uplink.mtu);
    below.saturating_sub(VXLAN_OVERHEAD)
}

struct Planner<'a> {
    network: &'a FlannelNetwork,
    view: &'a LeaseView,
    links: &'a Links,
    tunnels: BTreeMap<IfName, Tunnel>,
    routes: BTreeMap<Prefix, PlannedRoute>,
    neighbours: BTreeMap<NeighbourKey, Mac>,
    fdb: BTreeMap<FdbKey, IpAddr>,
    relayed: BTreeMap<Prefix, SocketAddr>,
    problems: BTreeSet<Problem>,
}

/// Plans the kernel's state.
#[must_use]
pub fn plan_flannel(network: &FlannelNetwork, view: &LeaseView, links: &Links) -> Desired {
    let mut planner = Planner::new(network, view, links);
    planner.devices();
    planner.blackholes();
    planner.nodes();
    for (key, reason) in view.leases.unreadable() {
        let reason =
            format!("the lease cannot be read, and what was known of it holds on: {reason}");
        planner.problem(key, reason);
    }
    if let Some(twin) = &view.twin {
        let own = &view.own;
        planner.problems.insert(Problem {
            code: ProblemCode::FlannelSameAddress,
            subject: own.subnets.to_string(),
            reason: format!(
                "somebody else has written the lease of this node ({}) with {twin}: a machine with the same public address, or a second daemon here",
                own.lease.public_ip
            ),
        });
    }
    planner.finish()
}

/// Where the relay of the backend `udp` sends packets.
#[must_use]
pub fn plan_relay(network: &FlannelNetwork, view: &LeaseView) -> RelayTable {
    let links = Links::default();
    let mut planner = Planner::new(network, view, &links);
    planner.nodes();
    let own = [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .filter_map(|family| {
            let range = network.config.range(family)?;
            Some((range.network, view.own.subnets.subnet(family)?))
        });
    RelayTable::new(planner.relayed, own)
}

impl<'a> Planner<'a> {
    const fn new(network: &'a FlannelNetwork, view: &'a LeaseView, links: &'a Links) -> Self {
        Self {
            network,
            view,
            links,
            tunnels: BTreeMap::new(),
            routes: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            fdb: BTreeMap::new(),
            relayed: BTreeMap::new(),
            problems: BTreeSet::new(),
        }
    }

    fn nodes(&mut self) {
        let view = self.view;
        for (subnets, known) in view.leases.iter() {
            self.node(subnets, &known.lease);
        }
    }

    fn problem(&mut self, subject: &str, reason: String) {
        self.problems.insert(Problem {
            code: ProblemCode::FlannelLease,
            subject: subject.to_owned(),
            reason,
        });
    }

    fn devices(&mut self) {
        let (network, own) = (self.network, &self.view.own);
        let options = match &network.config.backend {
            Backend::Vxlan(options) => options,
            Backend::Ipip { .. } => {
                let name = IfName::from(FLANNEL_IPIP_DEVICE);
                let tunnel = Tunnel {
                    name: name.clone(),
                    kind: TunnelDevice::Ipip {
                        local: network.uplink.address(Family::Ipv4),
                    },
                    mtu: container_mtu(&network.config, &network.uplink),
                    address: Some(own.subnets.v4.address()),
                };
                self.tunnels.insert(name, tunnel);
                return;
            }
            Backend::Udp { .. } => return self.tun(),
            Backend::HostGw | Backend::Alloc => return,
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            let vtep = own.lease.vtep(family);
            let (Some(subnet), Some(vtep)) = (own.subnets.subnet(family), vtep) else {
                continue;
            };
            let Some(local) = network.uplink.address(family) else {
                continue;
            };
            let name = flannel_device(family, options.vni);
            let tunnel = Tunnel {
                name: name.clone(),
                kind: TunnelDevice::Vxlan {
                    vni: options.vni,
                    port: options.port,
                    local,
                    parent: network.uplink.name.clone(),
                    mac: vtep.mac,
                },
                mtu: vxlan_mtu(options, &network.uplink),
                address: Some(subnet.address()),
            };
            self.tunnels.insert(name, tunnel);
        }
    }

    /// Behind whatever leads to containers: where that is gone, packets to the own subnets would
    /// leave by the default route.
    fn blackholes(&mut self) {
        let own = self.view.own.subnets;
        if !self.network.blackhole {
            return;
        }
        for prefix in std::iter::once(own.v4).chain(own.v6) {
            let route = Route {
                prefix,
                metric: BLACKHOLE_METRIC,
                protocol: FLANNEL_PROTOCOL,
                target: ForwardingTarget::Blackhole,
                mtu: None,
                source: None,
            };
            let kind = RouteKind::Blackhole;
            self.routes.insert(prefix, PlannedRoute { route, kind });
        }
    }

    /// The relay's device, and the whole network behind it.
    fn tun(&mut self) {
        let network = self.network;
        let name = IfName::from(FLANNEL_TUN_DEVICE);
        let tunnel = Tunnel {
            name: name.clone(),
            kind: TunnelDevice::Tun,
            mtu: container_mtu(&network.config, &network.uplink),
            address: Some(self.view.own.subnets.v4.address()),
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            if let Some(range) = network.config.range(family) {
                let target = ForwardingTarget::via(None, &name, false);
                self.route(range.network, target, RouteKind::Direct);
            }
        }
        self.tunnels.insert(name, tunnel);
    }

    /// The way to another node.
    fn node(&mut self, subnets: &NodeSubnets, lease: &SubnetLease) {
        let own = &self.view.own;
        if *subnets == own.subnets || lease.public_ip == own.lease.public_ip {
            return;
        }
        if subnets.overlap(&own.subnets) {
            let reason = format!(
                "{subnets} is the lease of {}, and shares addresses with ours, {}: two nodes give the same addresses to containers; delete one of the two keys and restart that node",
                lease.public_ip, own.subnets
            );
            return self.problem(&subnets.to_string(), reason);
        }
        let expected = self.network.config.backend.lease_type();
        if lease.backend_type != expected {
            let reason = format!(
                "{} has the backend {:?}, this node {expected:?}: there is no way between the two",
                lease.public_ip, lease.backend_type
            );
            return self.problem(&subnets.to_string(), reason);
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            let public = match family {
                Family::Ipv4 => Some(IpAddr::V4(lease.public_ip)),
                Family::Ipv6 => lease.public_ipv6.map(IpAddr::V6),
            };
            let ours = self.view.own.subnets.subnet(family).is_some();
            if let (Some(subnet), Some(public), true) = (subnets.subnet(family), public, ours) {
                self.subnet(subnet, public, lease);
            }
        }
    }

    fn subnet(&mut self, subnet: Prefix, public: IpAddr, lease: &SubnetLease) {
        if self.routes.contains_key(&subnet) || self.relayed.contains_key(&subnet) {
            let reason =
                "two leases have this subnet; packets go to the one whose key is first".to_owned();
            return self.problem(&subnet.to_string(), reason);
        }
        match &self.network.config.backend {
            Backend::Alloc => {}
            Backend::Udp { port } => {
                self.relayed.insert(subnet, SocketAddr::new(public, *port));
            }
            Backend::HostGw => {
                if self.is_on_link(public) {
                    self.direct(subnet, public);
                } else {
                    let reason = format!(
                        "{public} is not on a network of {}: host-gw needs all nodes on one link; use vxlan",
                        self.network.uplink.name
                    );
                    self.problem(&subnet.to_string(), reason);
                }
            }
            Backend::Ipip { .. } if subnet.family() == Family::Ipv6 => {}
            Backend::Ipip { direct_routing } if *direct_routing && self.is_on_link(public) => {
                self.direct(subnet, public);
            }
            Backend::Ipip { .. } => {
                let target = ForwardingTarget::via(Some(public), &FLANNEL_IPIP_DEVICE.into(), true);
                self.route(subnet, target, RouteKind::Ipip);
            }
            Backend::Vxlan(options) if options.direct_routing && self.is_on_link(public) => {
                self.direct(subnet, public);
            }
            Backend::Vxlan(options) => self.vxlan(options, subnet, public, lease),
        }
    }

    fn vxlan(
        &mut self,
        options: &VxlanOptions,
        subnet: Prefix,
        public: IpAddr,
        lease: &SubnetLease,
    ) {
        let Some(vtep) = lease.vtep(subnet.family()) else {
            let reason = format!("the lease of {public} names no MAC address of a device");
            return self.problem(&subnet.to_string(), reason);
        };
        if let Some(vni) = vtep.vni.filter(|vni| *vni != options.vni) {
            let reason = format!("{public} has the VNI {vni}, this node {}", options.vni);
            return self.problem(&subnet.to_string(), reason);
        }
        let link = flannel_device(subnet.family(), options.vni);
        let gateway = subnet.address();
        let fdb = FdbKey {
            link: link.clone(),
            mac: vtep.mac,
        };
        if let Some(other) = self.fdb.get(&fdb) {
            let reason = format!(
                "{public} and {other} have devices with one MAC address: packets reach only one of them; delete {link} on one and restart it"
            );
            return self.problem(&subnet.to_string(), reason);
        }
        self.fdb.insert(fdb, public);
        let neighbour = NeighbourKey {
            link: link.clone(),
            address: gateway,
        };
        self.neighbours.insert(neighbour, vtep.mac);
        let target = ForwardingTarget::via(Some(gateway), &link, true);
        self.route(subnet, target, RouteKind::Vxlan);
    }

    fn direct(&mut self, subnet: Prefix, public: IpAddr) {
        let target = ForwardingTarget::via(Some(public), &self.network.uplink.name, false);
        self.route(subnet, target, RouteKind::Direct);
    }

    fn route(&mut self, prefix: Prefix, target: ForwardingTarget, kind: RouteKind) {
        let route = Route {
            prefix,
            metric: metric(prefix.family()),
            protocol: FLANNEL_PROTOCOL,
            target,
            mtu: None,
            source: None,
        };
        self.routes.insert(prefix, PlannedRoute { route, kind });
    }

    fn is_on_link(&self, address: IpAddr) -> bool {
        let uplink = self.links.by_name(self.network.uplink.name.as_str());
        uplink.is_some_and(|link| {
            let mut networks = link.addresses.iter().map(caracal_model::Cidr::prefix);
            networks.any(|network| network.contains(address))
        })
    }

    fn finish(self) -> Desired {
        let (network, view) = (self.network, self.view);
        let devices = match &network.config.backend {
            Backend::Vxlan(options) => [Family::Ipv4, Family::Ipv6]
                .map(|family| flannel_device(family, options.vni))
                .to_vec(),
            Backend::Ipip { .. } => vec![FLANNEL_IPIP_DEVICE.into()],
            Backend::Udp { .. } => vec![FLANNEL_TUN_DEVICE.into()],
            Backend::HostGw | Backend::Alloc => Vec::new(),
        };
        let ranges = [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter_map(|family| network.config.range(family))
            .map(|range| (range.network, range.len));
        let nodes = view.leases.iter().flat_map(|(_, known)| {
            let v6 = known.lease.public_ipv6.map(IpAddr::V6);
            [Some(IpAddr::V4(known.lease.public_ip)), v6]
        });
        Desired {
            revision: view.revision,
            routes: self.routes.into_iter().collect::<SharedMap<_, _>>(),
            tunnels: self.tunnels,
            neighbours: self.neighbours.into_iter().collect(),
            fdb: self.fdb.into_iter().collect(),
            problems: self.problems,
            workload_mtu: container_mtu(&network.config, &network.uplink),
            ownership: Ownership::flannel(devices, ranges.collect(), nodes.flatten()),
            ..Desired::default()
        }
    }
}

#[cfg(test)]
mod tests;
