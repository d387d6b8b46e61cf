//! What the kernel of a node is to hold, from the leases: in the agent's vocabulary, written by the
//! agent's writer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use caracal_agent::{
    BLACKHOLE_METRIC, Desired, FLANNEL_IPIP_DEVICE, FLANNEL_PROTOCOL, FLANNEL_TUN_DEVICE, FdbKey,
    ForwardingTarget, Links, NeighbourKey, Ownership, PlannedRoute, Route, RouteKind, Tunnel,
    TunnelDevice,
};
use caracal_model::{Family, IfName, Mac, Prefix, Problem, ProblemCode, SharedMap};

use crate::config::{Backend, VxlanOptions};
use crate::lease::{NodeSubnets, SubnetLease};
use crate::leases::LeaseView;
use crate::network::{
    FlannelNetwork, backend_mtu, container_mtu, device_mac, devices_with, name_device, vxlan_mtu,
};
use crate::relay::RelayTable;

/// Metric of a route, as flanneld leaves it: the kernel's own.
const fn metric(family: Family) -> u32 {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1024,
    }
}

struct Planner<'a> {
    network: &'a FlannelNetwork,
    view: &'a LeaseView,
    links: &'a Links,
    /// The backends in use; of each the devices are wanted.
    backends: Vec<Backend>,
    tunnels: BTreeMap<IfName, Tunnel>,
    routes: BTreeMap<Prefix, PlannedRoute>,
    neighbours: BTreeMap<NeighbourKey, Mac>,
    fdb: BTreeMap<FdbKey, IpAddr>,
    relayed: BTreeMap<Prefix, SocketAddr>,
    /// All nodes are relayed to, at this port.
    relay_port: Option<u16>,
    problems: BTreeSet<Problem>,
}

/// Plans the kernel's state.
#[must_use]
pub fn plan_flannel(network: &FlannelNetwork, view: &LeaseView, links: &Links) -> Desired {
    let mut planner = Planner::new(network, view, links);
    planner.devices();
    planner.blackholes();
    planner.nodes();
    for (subject, reason) in &network.refused {
        planner.problems.insert(Problem {
            code: ProblemCode::FlannelConfig,
            subject: subject.clone(),
            reason: reason.clone(),
        });
    }
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
                own.lease.node()
            ),
        });
    }
    planner.finish()
}

/// Where the relay of the backend `udp` sends packets. Nodes that have left the backend are in it
/// as well: what the kernel still leads into the device was sent before it had another route, and
/// their relays stay for a while (FLANNEL-7).
#[must_use]
pub fn plan_relay(network: &FlannelNetwork, view: &LeaseView) -> RelayTable {
    let links = Links::default();
    let mut planner = Planner::new(network, view, &links);
    planner.relay_port = network.relay_port(view);
    planner.nodes();
    let own = [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .filter_map(|family| {
            let range = network.config.range(family)?;
            Some((range.network, view.own.subnets.subnet(family)?))
        });
    RelayTable::new(planner.relayed, own)
}

/// What a kernel may have of a node's network when that has ended: its devices, and its routes.
#[must_use]
pub fn flannel_ownership(own: &NodeSubnets, network: Prefix, links: &Links) -> Ownership {
    let subnet = own.subnet(network.family());
    let ranges = subnet.map(|subnet| (network, subnet.len()));
    Ownership::flannel(devices_with(own, links), ranges.into_iter().collect(), [])
}

impl<'a> Planner<'a> {
    fn new(network: &'a FlannelNetwork, view: &'a LeaseView, links: &'a Links) -> Self {
        Self {
            network,
            view,
            links,
            backends: network.backends(view, links),
            tunnels: BTreeMap::new(),
            routes: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            fdb: BTreeMap::new(),
            relayed: BTreeMap::new(),
            relay_port: None,
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
        for backend in self.backends.clone() {
            match &backend {
                Backend::Vxlan(options) => self.vxlan_devices(options),
                Backend::Ipip { .. } => {
                    let local = self.network.uplink.address(Family::Ipv4);
                    let kind = TunnelDevice::Ipip { local };
                    if let Some(own) = self.view.own.subnets.v4 {
                        let mtu = self.mtu(&backend);
                        self.tunnel(FLANNEL_IPIP_DEVICE.into(), kind, own, mtu);
                    }
                }
                Backend::Udp { .. } => self.tun(&backend),
                Backend::HostGw | Backend::Alloc => {}
            }
        }
    }

    fn mtu(&self, backend: &Backend) -> u32 {
        backend_mtu(backend, &self.network.config, &self.network.uplink)
    }

    fn tunnel(&mut self, name: IfName, kind: TunnelDevice, own: Prefix, mtu: u32) {
        let tunnel = Tunnel {
            name: name.clone(),
            kind,
            mtu,
            address: Some(own.address()),
        };
        self.tunnels.insert(name, tunnel);
    }

    fn vxlan_devices(&mut self, options: &VxlanOptions) {
        let uplink = &self.network.uplink;
        for family in [Family::Ipv4, Family::Ipv6] {
            let subnet = self.view.own.subnets.subnet(family);
            let (Some(subnet), Some(local)) = (subnet, uplink.address(family)) else {
                continue;
            };
            let kind = TunnelDevice::Vxlan {
                vni: options.vni,
                port: options.port,
                local,
                parent: uplink.name.clone(),
                mac: self.own_mac(family, options),
            };
            let mtu = vxlan_mtu(options, family, uplink);
            self.tunnel(self.vxlan_device(family, options), kind, subnet, mtu);
        }
    }

    fn vxlan_device(&self, family: Family, options: &VxlanOptions) -> IfName {
        name_device(family, options, self.links, &self.backends)
    }

    /// What other nodes were told, else that of the device that is there.
    fn own_mac(&self, family: Family, options: &VxlanOptions) -> Mac {
        let told = self.view.own.lease.vtep(family);
        let told = told.filter(|vtep| vtep.vni.is_none_or(|told| told == options.vni));
        let link = || device_mac(family, options, self.links);
        let [v4, v6] = self.network.macs;
        let new = match family {
            Family::Ipv4 => v4,
            Family::Ipv6 => v6,
        };
        told.map(|vtep| vtep.mac).or_else(link).unwrap_or(new)
    }

    /// Behind whatever leads to containers: where that is gone, packets to the own subnets would
    /// leave by the default route.
    fn blackholes(&mut self) {
        let own = self.view.own.subnets;
        if !self.network.blackhole {
            return;
        }
        for prefix in own.iter() {
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

    /// The relay's device, and the whole network behind it where that is the network's backend.
    fn tun(&mut self, backend: &Backend) {
        let name = IfName::from(FLANNEL_TUN_DEVICE);
        let mtu = self.mtu(backend);
        if let Some(own) = self.view.own.subnets.first() {
            self.tunnel(name.clone(), TunnelDevice::Tun, own, mtu);
        }
        if *backend != self.network.config.backend {
            return;
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            if let Some(range) = self.network.config.range(family) {
                let target = ForwardingTarget::via(None, &name, false);
                self.route(range.network, target, RouteKind::Direct);
            }
        }
    }

    /// The way to another node.
    fn node(&mut self, subnets: &NodeSubnets, lease: &SubnetLease) {
        let own = &self.view.own;
        if *subnets == own.subnets || lease.is_of_same_node(&own.lease) {
            return;
        }
        if subnets.overlap(&own.subnets) {
            let reason = format!(
                "{subnets} is the lease of {}, and shares addresses with ours, {}: two nodes give the same addresses to containers; delete one of the two keys and restart that node",
                lease.node(),
                own.subnets
            );
            return self.problem(&subnets.to_string(), reason);
        }
        let Some(backend) = self.network.backend_of(lease, self.links) else {
            let reason = format!(
                "{} has the backend {:?}, which this node has not: there is no way between the two",
                lease.node(),
                lease.backend_type
            );
            return self.problem(&subnets.to_string(), reason);
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            let public = lease.public(family);
            let ours = self.view.own.subnets.subnet(family).is_some();
            if let (Some(subnet), Some(public), true) = (subnets.subnet(family), public, ours) {
                self.subnet(subnet, public, lease, &backend);
            }
        }
    }

    /// As its lease says, whatever the configuration of this node is: there the node has its
    /// devices.
    fn subnet(&mut self, subnet: Prefix, public: IpAddr, lease: &SubnetLease, backend: &Backend) {
        if self.routes.contains_key(&subnet) || self.relayed.contains_key(&subnet) {
            let reason =
                "two leases have this subnet; packets go to the one whose key is first".to_owned();
            return self.problem(&subnet.to_string(), reason);
        }
        if let Some(port) = self.relay_port {
            self.relayed.insert(subnet, SocketAddr::new(public, port));
        }
        match backend {
            Backend::Alloc => {}
            Backend::Udp { port } => {
                self.relayed.insert(subnet, SocketAddr::new(public, *port));
                if self.is_mixed() {
                    let target = ForwardingTarget::via(None, &FLANNEL_TUN_DEVICE.into(), false);
                    self.route(subnet, target, RouteKind::Direct);
                }
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
            let reason = format!(
                "the lease of {public} names the VNI {vni} for one family and {} for the other",
                options.vni
            );
            return self.problem(&subnet.to_string(), reason);
        }
        let link = self.vxlan_device(subnet.family(), options);
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
        if gateway.is_ipv6() {
            // Linux takes no gateway of IPv6 that another route leads elsewhere, such as that to
            // the same subnet by another backend. This one goes before it.
            let target = ForwardingTarget::via(None, &link, false);
            self.route(Prefix::host(gateway), target, RouteKind::Vxlan);
        }
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
            metric: metric(prefix.family()) + u32::from(self.network.metric),
            protocol: FLANNEL_PROTOCOL,
            target,
            mtu: None,
            source: None,
        };
        self.routes.insert(prefix, PlannedRoute { route, kind });
    }

    /// Among nodes of several backends, or shortly after, one route for the whole network is not
    /// enough.
    fn is_mixed(&self) -> bool {
        self.backends.len() > 1 || !self.view.settled
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
        let named = self.backends.iter().flat_map(|backend| match backend {
            Backend::Vxlan(options) => [Family::Ipv4, Family::Ipv6]
                .map(|family| self.vxlan_device(family, options))
                .to_vec(),
            Backend::Ipip { .. } => vec![FLANNEL_IPIP_DEVICE.into()],
            Backend::Udp { .. } => vec![FLANNEL_TUN_DEVICE.into()],
            Backend::HostGw | Backend::Alloc => Vec::new(),
        });
        // Beside them those of a backend that nobody uses any more.
        let left = devices_with(&view.own.subnets, self.links);
        let devices = named.chain(left).collect();
        let ranges = [Family::Ipv4, Family::Ipv6]
            .into_iter()
            .filter_map(|family| network.config.range(family))
            .map(|range| (range.network, range.len));
        let nodes = view.leases.iter().flat_map(|(_, known)| {
            [Family::Ipv4, Family::Ipv6].map(|family| known.lease.public(family))
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
