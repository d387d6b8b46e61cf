//! The machine's network interfaces, as data. Read by the shell, used by the plan and by whoever
//! looks for the node's address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{ALIAS_PREFIX, Cidr, IfName, InsertEach, LocalNetworks, Mac, Prefix};

/// Immutable parameters of a VXLAN device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanParameters {
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// Source address of outer packets.
    pub local: Option<IpAddr>,
    /// Index of the device below.
    pub parent: Option<u32>,
    /// Learns MAC addresses from packets.
    pub learning: bool,
    /// Driven by metadata (flow based, `external`).
    pub external: bool,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Kernel index.
    pub index: u32,
    /// Name in the kernel, at most 15 octets.
    pub name: IfName,
    /// `veth`, `vxlan`, `ipip`, `bridge`, …; empty for hardware and loopback.
    pub kind: String,
    /// Addresses with their subnets' lengths.
    pub addresses: Vec<Cidr>,
    /// Administratively up.
    pub up: bool,
    /// Something is at the other end (`LOWER_UP`): the cable is in, the other half of a veth pair
    /// is up.
    pub carrier: bool,
    /// MTU in octets.
    pub mtu: u32,
    /// MAC address, for Ethernet devices.
    pub mac: Option<Mac>,
    /// Index of the device below (VLAN, macvlan, veth's other end).
    pub parent: Option<u32>,
    /// The loopback interface.
    pub loopback: bool,
    /// Parameters of a VXLAN device.
    pub vxlan: Option<VxlanParameters>,
    /// Alias, of interfaces that our CNI plugin made: whose they are.
    pub alias: Option<String>,
    /// Source address of the outer packets of an IPIP device, where it is set.
    pub local: Option<IpAddr>,
}

impl Link {
    /// An interface that is up, for tests and simulations.
    #[must_use]
    pub fn new(index: u32, name: &str) -> Self {
        Self {
            index,
            name: name.into(),
            kind: String::new(),
            addresses: Vec::new(),
            up: true,
            carrier: true,
            mtu: 1500,
            mac: None,
            parent: None,
            loopback: name == "lo",
            vxlan: None,
            alias: None,
            local: None,
        }
    }

    /// Whether a container's interface is this one; `None` = it does not say.
    pub(crate) fn is_of_container(&self, id: &str) -> Option<bool> {
        let of = self.alias.as_deref()?.strip_prefix(ALIAS_PREFIX)?;
        // A name that is too long is a digest, and tells nothing.
        (!id.is_empty() && of.contains('.')).then(|| of.contains(id))
    }

    /// The same with one more address.
    #[must_use]
    pub fn with_address(mut self, address: Cidr) -> Self {
        self.addresses.push(address);
        self
    }
}

/// Holds the addresses of services that kube-proxy serves by IPVS: they are addresses of every
/// node, and so of none.
const IPVS_DEVICE: &str = "kube-ipvs0";

/// All interfaces by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    by_index: BTreeMap<u32, Link>,
}

impl FromIterator<Link> for Links {
    fn from_iter<I: IntoIterator<Item = Link>>(links: I) -> Self {
        Self {
            by_index: links.into_iter().map(|l| (l.index, l)).insert_each(),
        }
    }
}

impl Links {
    /// All interfaces in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = &Link> {
        self.by_index.values()
    }

    /// The interface with an index.
    #[must_use]
    pub fn by_index(&self, index: u32) -> Option<&Link> {
        self.by_index.get(&index)
    }

    /// The interface with a name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&Link> {
        self.iter().find(|l| l.name.as_str() == name)
    }

    /// The interface with an index, to change it.
    pub(crate) fn by_index_mut(&mut self, index: u32) -> Option<&mut Link> {
        self.by_index.get_mut(&index)
    }

    /// The interface with a name, to change it.
    pub fn by_name_mut(&mut self, name: &str) -> Option<&mut Link> {
        self.by_index.values_mut().find(|l| l.name.as_str() == name)
    }

    /// Adds or replaces an interface.
    pub fn insert(&mut self, link: Link) {
        self.by_index.insert(link.index, link);
    }

    /// Removes an interface.
    pub fn remove(&mut self, name: &str) -> Option<Link> {
        let index = self.by_name(name)?.index;
        self.by_index.remove(&index)
    }

    /// The interface that carries an address of this machine.
    #[must_use]
    pub fn holding(&self, address: IpAddr) -> Option<&Link> {
        self.iter()
            .find(|l| l.addresses.iter().any(|a| a.address == address))
    }

    /// The interface that is up and has `address` in one of its subnets; the longest subnet wins.
    /// An address of the machine itself is on no link.
    #[must_use]
    pub(crate) fn on_link(&self, address: IpAddr) -> Option<&Link> {
        if self.holding(address).is_some() {
            return None;
        }
        self.iter()
            .filter(|l| l.up && !l.loopback)
            .flat_map(|l| l.addresses.iter().map(move |a| (a, l)))
            .filter(|(a, _)| a.prefix().contains(address))
            .max_by_key(|(a, _)| a.len)
            .map(|(_, l)| l)
    }

    /// The machine's own networks, without those of the interfaces that `skip` names. IPv6
    /// link-local ones are left out: they are on every link.
    #[must_use]
    pub fn local_networks(&self, skip: impl Fn(&Link) -> bool) -> LocalNetworks {
        let mut local = LocalNetworks::default();
        let links = self
            .iter()
            .filter(|l| l.name.as_str() != IPVS_DEVICE && !skip(l));
        for link in links {
            for cidr in &link.addresses {
                let of_the_link =
                    matches!(cidr.address, IpAddr::V6(a) if a.is_unicast_link_local());
                if of_the_link {
                    continue;
                }
                local.addresses.insert(cidr.address);
                let subnet = cidr.prefix();
                if link.up && !subnet.is_host() {
                    local.subnets.insert(subnet);
                }
            }
        }
        local
    }

    /// The subnets of interfaces that are up, without host prefixes.
    pub fn subnets(&self) -> impl Iterator<Item = Prefix> {
        self.iter()
            .filter(|l| l.up)
            .flat_map(|l| l.addresses.iter().map(Cidr::prefix))
            .filter(|p| !p.is_host())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_subnet_is_the_link() {
        let mut down = Link::new(4, "eth2").with_address("10.0.0.77/30".parse().unwrap());
        down.up = false;
        let links: Links = [
            Link::new(1, "lo").with_address("127.0.0.1/8".parse().unwrap()),
            Link::new(2, "eth0").with_address("10.0.0.1/16".parse().unwrap()),
            Link::new(3, "eth1").with_address("10.0.0.65/26".parse().unwrap()),
            down,
        ]
        .into_iter()
        .collect();
        let on = |text: &str| links.on_link(text.parse().unwrap()).map(|l| l.index);
        assert_eq!(on("10.0.0.66"), Some(3));
        assert_eq!(on("10.0.0.78"), Some(3), "eth2 is down");
        assert_eq!(on("10.0.1.1"), Some(2));
        assert_eq!(on("10.0.0.65"), None, "our own address");
        assert_eq!(on("127.0.0.9"), None);
        assert_eq!(on("192.0.2.1"), None);
    }
}
