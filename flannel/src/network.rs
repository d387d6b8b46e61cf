//! A network as a node sees it: the configuration in force, those before it that leases may still
//! be of, and the way to other nodes.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_agent::{
    FLANNEL_IPIP_DEVICE, FLANNEL_TUN_DEVICE, IPIP_OVERHEAD, Link, Links, VXLAN_OVERHEAD,
    VXLAN_V6_OVERHEAD, is_flannels_vxlan,
};
use caracal_model::{Family, IfName, Mac, Prefix};

use crate::config::{Backend, FlannelConfig, UDP_PORT, VNI, VXLAN_PORT, VxlanOptions};
use crate::lease::{NodeSubnets, SubnetLease};
use crate::leases::LeaseView;
use crate::relay::relay_overhead;

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
    pub(crate) const fn address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.addresses[0],
            Family::Ipv6 => self.addresses[1],
        }
    }
}

/// What a node goes by, beside the leases.
#[derive(Clone, Debug, PartialEq)]
pub struct FlannelNetwork {
    /// The configuration in force.
    pub config: FlannelConfig,
    /// Backends of configurations before it, the latest first: what leases mean of nodes that have
    /// not followed yet.
    pub before: Vec<Backend>,
    /// The way to other nodes.
    pub uplink: Uplink,
    /// What no container's network takes of the own subnets is dropped here.
    pub blackhole: bool,
    /// What is added to the metric of routes to other nodes: with more than 0 they lie behind those
    /// of another network of this machine's, and carry what that one does not.
    pub metric: u16,
    /// MAC addresses of devices that are not there and that no lease names.
    pub macs: [Mac; 2],
    /// What is not followed, with the reason: a configuration, or an interface.
    pub refused: Vec<(String, String)>,
}

/// All that the kernel's state follows from, beside the interfaces.
#[derive(Clone, Debug, PartialEq)]
pub struct FlannelState {
    /// The network.
    pub network: FlannelNetwork,
    /// The leases.
    pub view: Arc<LeaseView>,
}

/// Name of a network's VXLAN device.
#[must_use]
pub fn flannel_device(family: Family, vni: u32) -> IfName {
    match family {
        Family::Ipv4 => format!("flannel.{vni}").as_str().into(),
        Family::Ipv6 => format!("flannel-v6.{vni}").as_str().into(),
    }
}

/// True for a VXLAN or IPIP device with a name that networks' devices have.
fn may_be_flannels(link: &Link) -> bool {
    let name = link.name.as_str();
    match link.kind.as_str() {
        "vxlan" => is_flannels_vxlan(name),
        "ipip" => name == FLANNEL_IPIP_DEVICE,
        _ => false,
    }
}

/// Devices on which a node's own subnets begin: this network's, whatever backend they are of.
pub(crate) fn devices_with(subnets: &NodeSubnets, links: &Links) -> Vec<IfName> {
    let own: Vec<Prefix> = std::iter::once(subnets.v4).chain(subnets.v6).collect();
    let has_own = |link: &Link| {
        let mut addresses = link.addresses.iter().map(|cidr| cidr.address);
        addresses.any(|address| own.iter().any(|subnet| subnet.address() == address))
    };
    let ours = links.iter().filter(|l| may_be_flannels(l) && has_own(l));
    ours.map(|link| link.name.clone()).collect()
}

/// MTU of containers' interfaces in octets.
#[must_use]
pub fn container_mtu(config: &FlannelConfig, uplink: &Uplink) -> u32 {
    backend_mtu(&config.backend, config, uplink)
}

/// MTU of a family's VXLAN device in octets. Flannel takes the same overhead for both families; the
/// kernel takes no MTU for which the interface has no room, and IPv6 costs 20 octets more.
pub(crate) fn vxlan_mtu(options: &VxlanOptions, family: Family, uplink: &Uplink) -> u32 {
    let overhead = match family {
        Family::Ipv4 => VXLAN_OVERHEAD,
        Family::Ipv6 => VXLAN_V6_OVERHEAD,
    };
    let below = options.mtu.unwrap_or(uplink.mtu);
    let flannels = below.saturating_sub(VXLAN_OVERHEAD);
    flannels.min(uplink.mtu.saturating_sub(overhead))
}

/// MTU of what a backend sends through, in octets.
pub(crate) fn backend_mtu(backend: &Backend, config: &FlannelConfig, uplink: &Uplink) -> u32 {
    match backend {
        Backend::Vxlan(options) => vxlan_mtu(options, Family::Ipv4, uplink),
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

impl FlannelNetwork {
    /// Takes another configuration over; that of before is remembered.
    pub fn change(&mut self, config: FlannelConfig) {
        let before = std::mem::replace(&mut self.config, config).backend;
        self.before.retain(|known| !known.is_like(&before));
        self.before.insert(0, before);
        let now = &self.config.backend;
        self.before.retain(|known| !known.is_like(now));
    }

    /// The backend that a lease speaks of, with the options of the configuration that it is of.
    /// Without such a one: those of the device that is there, or flannel's usual ones. `None` =
    /// nobody here knows it.
    #[must_use]
    pub(crate) fn backend_of(&self, lease: &SubnetLease, links: &Links) -> Option<Backend> {
        let mut known = std::iter::once(&self.config.backend).chain(&self.before);
        if let Some(known) = known.find(|backend| backend.is_that_of(lease)) {
            return Some(known.clone());
        }
        match lease.backend_type.as_str() {
            "vxlan" => {
                let vni = lease.vni().unwrap_or(VNI);
                let device = flannel_device(Family::Ipv4, vni);
                let made = links.by_name(device.as_str());
                let made = made.and_then(|link| link.vxlan.as_ref());
                let usual = || made.map_or(VXLAN_PORT, |made| made.port);
                Some(Backend::Vxlan(VxlanOptions {
                    vni,
                    port: lease.port().unwrap_or_else(usual),
                    mtu: None,
                    direct_routing: false,
                }))
            }
            "ipip" => Some(Backend::Ipip {
                direct_routing: false,
            }),
            "host-gw" => Some(Backend::HostGw),
            "" => Some(Backend::Udp { port: UDP_PORT }),
            _ => None,
        }
    }

    /// The backends in use: the configuration's, and those that leases are of, this node's among
    /// them. By each of them somebody sends, or is sent to.
    #[must_use]
    pub fn backends(&self, view: &LeaseView, links: &Links) -> Vec<Backend> {
        let mut all = vec![self.config.backend.clone()];
        let others = view.leases.iter().map(|(_, known)| &known.lease);
        for lease in std::iter::once(&view.own.lease).chain(others) {
            if let Some(backend) = self.backend_of(lease, links)
                && !all.contains(&backend)
            {
                all.push(backend);
            }
        }
        all
    }

    /// The UDP port of the relay, while the backend `udp` is in use.
    #[must_use]
    pub fn relay_port(&self, view: &LeaseView) -> Option<u16> {
        let backends = self.backends(view, &Links::default());
        backends.iter().find_map(|backend| match backend {
            Backend::Udp { port } => Some(*port),
            _ => None,
        })
    }

    /// True once other nodes can be told to send as the configuration says: its devices are there.
    #[must_use]
    pub fn devices_stand(&self, subnets: &NodeSubnets, links: &Links) -> bool {
        let is_up = |name: &str, kind: &str| {
            let link = links.by_name(name);
            link.is_some_and(|link| link.up && link.kind == kind)
        };
        match &self.config.backend {
            Backend::Vxlan(options) => [Family::Ipv4, Family::Ipv6].into_iter().all(|family| {
                subnets.subnet(family).is_none()
                    || is_up(flannel_device(family, options.vni).as_str(), "vxlan")
            }),
            Backend::Ipip { .. } => is_up(FLANNEL_IPIP_DEVICE, "ipip"),
            Backend::Udp { .. } => is_up(FLANNEL_TUN_DEVICE, "tun"),
            Backend::HostGw | Backend::Alloc => true,
        }
    }
}
