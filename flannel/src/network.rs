//! A network as a node sees it: the configuration in force, those before it that leases may still
//! be of, and the way to other nodes.

use std::net::IpAddr;
use std::sync::Arc;

use caracal_agent::{
    FLANNEL_IPIP_DEVICE, FLANNEL_TUN_DEVICE, IPIP_OVERHEAD, Link, Links, VXLAN_OVERHEAD,
    VXLAN_V6_OVERHEAD, is_flannels_vxlan,
};
use caracal_model::{Family, IfName, Mac};

use crate::config::{Backend, FlannelConfig, UDP_PORT, VNI, VXLAN_PORT, VxlanOptions};
use crate::lease::{NodeSubnets, SubnetLease};
use crate::leases::LeaseView;
use crate::relay::relay_overhead;

/// Octets of an interface's name in Linux.
const LONGEST_NAME: usize = 15;

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

/// The usual name of a network's VXLAN device: flanneld's.
#[must_use]
pub(crate) fn flannel_device(family: Family, vni: u32) -> IfName {
    match family {
        Family::Ipv4 => format!("flannel.{vni}").as_str().into(),
        Family::Ipv6 => format!("flannel-v6.{vni}").as_str().into(),
    }
}

/// Name of the device that stands beside it while the port changes: a VNI may have a device for
/// each port. `None` = Linux has no room for the name.
fn second_device(family: Family, vni: u32) -> Option<IfName> {
    let name = format!("{}b", flannel_device(family, vni));
    (name.len() <= LONGEST_NAME).then(|| name.as_str().into())
}

/// The VXLAN device of some options, where there is one, by whichever name.
pub(crate) fn made_device<'a>(
    family: Family,
    options: &VxlanOptions,
    links: &'a Links,
) -> Option<&'a Link> {
    let usual = flannel_device(family, options.vni);
    let names = std::iter::once(usual).chain(second_device(family, options.vni));
    let mut links = names.filter_map(|name| links.by_name(name.as_str()));
    links.find(|link| port_of(link) == Some(options.port))
}

/// UDP port of a VXLAN device.
fn port_of(link: &Link) -> Option<u16> {
    let made = link.vxlan.as_ref().filter(|_| link.kind == "vxlan");
    made.map(|made| made.port)
}

/// Name of the VXLAN device of some options: that of the device that is there; else the usual one,
/// unless a device of another port that is in use has it, or comes before.
pub(crate) fn name_device(
    family: Family,
    options: &VxlanOptions,
    links: &Links,
    in_use: &[Backend],
) -> IfName {
    if let Some(made) = made_device(family, options, links) {
        return made.name.clone();
    }
    let of_vni = |backend: &Backend| match backend {
        Backend::Vxlan(other) if other.vni == options.vni => Some(other.port),
        _ => None,
    };
    let usual = flannel_device(family, options.vni);
    let names = [Some(usual.clone()), second_device(family, options.vni)];
    let mut free = names.into_iter().flatten().filter(|name| {
        let port = links.by_name(name.as_str()).and_then(port_of);
        port.is_none() || !in_use.iter().any(|backend| of_vni(backend) == port)
    });
    let mut before = Vec::new();
    for port in in_use.iter().filter_map(of_vni) {
        let other = VxlanOptions {
            port,
            ..options.clone()
        };
        if before.contains(&port) || made_device(family, &other, links).is_some() {
            continue;
        }
        before.push(port);
        let name = free.next();
        if port == options.port {
            return name.unwrap_or(usual);
        }
    }
    usual
}

/// The VXLAN devices of a configuration that are there.
pub fn vxlan_devices<'a>(
    config: &FlannelConfig,
    links: &'a Links,
) -> impl Iterator<Item = &'a Link> + use<'a> {
    let options = match &config.backend {
        Backend::Vxlan(options) => Some(options),
        _ => None,
    };
    let made = |family| options.and_then(|options| made_device(family, options, links));
    let made = [Family::Ipv4, Family::Ipv6].map(made);
    made.into_iter().flatten()
}

/// MAC address of the VXLAN device of some options; without it that of one whose place it takes.
#[must_use]
pub fn device_mac(family: Family, options: &VxlanOptions, links: &Links) -> Option<Mac> {
    let usual = flannel_device(family, options.vni);
    let before = || {
        links
            .by_name(usual.as_str())
            .filter(|link| link.kind == "vxlan")
    };
    made_device(family, options, links).or_else(before)?.mac
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
    let has_own = |link: &Link| {
        let mut addresses = link.addresses.iter().map(|cidr| cidr.address);
        addresses.any(|address| subnets.iter().any(|subnet| subnet.address() == address))
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
        Backend::Vxlan(options) => vxlan_mtu(options, config.families().first(), uplink),
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
        let known = || std::iter::once(&self.config.backend).chain(&self.before);
        let family = self.config.families().first();
        if let Some(known) = known().find(|backend| backend.is_that_of(lease)) {
            return Some(known.clone());
        }
        // A flanneld does not say which port it has. Ours do, unless it is Linux's own.
        let usual = VxlanOptions::usual(lease.vni().unwrap_or(VNI));
        let is_made = lease.vni().is_some() && made_device(family, &usual, links).is_some();
        let mut without_port = known().filter(|backend| backend.may_be_that_of(lease));
        if let Some(known) = without_port.next().filter(|_| !is_made) {
            return Some(known.clone());
        }
        match lease.backend_type.as_str() {
            "vxlan" => {
                let device = flannel_device(family, usual.vni);
                let port = links.by_name(device.as_str()).and_then(port_of);
                let port = port.filter(|_| !is_made).unwrap_or(VXLAN_PORT);
                Some(Backend::Vxlan(VxlanOptions {
                    port: lease.port().unwrap_or(port),
                    ..usual
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
                    || made_device(family, options, links).is_some_and(|link| link.up)
            }),
            Backend::Ipip { .. } => is_up(FLANNEL_IPIP_DEVICE, "ipip"),
            Backend::Udp { .. } => is_up(FLANNEL_TUN_DEVICE, "tun"),
            Backend::HostGw | Backend::Alloc => true,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_agent::VxlanParameters;

    use super::*;

    fn device(index: u32, name: &str, port: u16) -> Link {
        let mut link = Link::new(index, name);
        link.kind = "vxlan".to_owned();
        link.vxlan = Some(VxlanParameters {
            vni: 1,
            port,
            local: None,
            parent: None,
            learning: false,
            external: false,
        });
        link
    }

    #[test]
    fn each_port_in_use_has_a_device_of_its_own() {
        let options = |port| VxlanOptions {
            port,
            ..VxlanOptions::usual(VNI)
        };
        let named = |links: &[Link], in_use: &[u16]| -> Vec<String> {
            let links: Links = links.iter().cloned().collect();
            let all: Vec<Backend> = in_use.iter().map(|p| Backend::Vxlan(options(*p))).collect();
            let name = |port: &u16| name_device(Family::Ipv4, &options(*port), &links, &all);
            in_use.iter().map(|port| name(port).to_string()).collect()
        };
        let old = device(3, "flannel.1", 8472);
        let new = device(4, "flannel.1b", 4789);
        assert_eq!(named(&[], &[4789]), ["flannel.1"]);
        // A node that comes while the others change.
        assert_eq!(named(&[], &[4789, 8472]), ["flannel.1", "flannel.1b"]);
        assert_eq!(
            named(std::slice::from_ref(&old), &[4789, 8472]),
            ["flannel.1b", "flannel.1"]
        );
        let both = [old.clone(), new.clone()];
        assert_eq!(named(&both, &[4789, 8472]), ["flannel.1b", "flannel.1"]);
        // It keeps its name when the other one has gone, and back.
        assert_eq!(named(std::slice::from_ref(&new), &[4789]), ["flannel.1b"]);
        assert_eq!(named(&[new], &[8472, 4789]), ["flannel.1", "flannel.1b"]);
        // Nobody has that port any more: it is made anew.
        assert_eq!(named(&[old], &[4790]), ["flannel.1"]);
        let long = VxlanOptions::usual(99_999_999);
        assert_eq!(second_device(Family::Ipv4, long.vni), None);
    }
}
