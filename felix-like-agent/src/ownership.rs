//! Whose is a kernel object? Ours are told by route protocol, device and table; everything else is foreign, and
//! never changed and never deleted (AGENT-5).
//!
//! The rule for a foreign route with the prefix and metric of a wanted one: it stays, ours is not
//! written, and a problem says so. (Felix overwrites it.) With another metric both exist and the lower one is used.

use caracal_model::net::{Cidr, Family};

use crate::actual::{ActualNeighbour, ActualRoute};
use crate::desired::{FdbKey, IPIP_DEVICE, NeighbourKey, vxlan_device};
use crate::links::Link;
use crate::settings::{ROUTE_PROTOCOL, Settings};

/// `ip route add` without a protocol, as CNI plugins and Felix's workload and VXLAN routes.
pub const PROTOCOL_BOOT: u8 = 3;
/// The BIRD daemon.
pub const PROTOCOL_BIRD: u8 = 12;

/// Whose an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Ours: replaced and deleted at will.
    Ours,
    /// Made by a CNI plugin on a workload's interface: replaced when its key is the wanted one, deleted once our
    /// own route to the same prefix over the same interface is wanted.
    Adoptable,
    /// Somebody else's.
    Foreign,
}

/// What tells our objects from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Protocol of our routes.
    pub route_protocol: u8,
    /// Prefixes of workload interfaces' names.
    pub interface_prefixes: Vec<String>,
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
            interface_prefixes: settings.interface_prefixes.clone(),
        }
    }
}

/// True when the name is that of one of our VXLAN devices.
#[must_use]
pub fn is_vxlan_device(name: &str) -> bool {
    name == vxlan_device(Family::Ipv4) || name == vxlan_device(Family::Ipv6)
}

/// True when the name is that of one of our tunnel devices.
#[must_use]
pub fn is_tunnel_device(name: &str) -> bool {
    name == IPIP_DEVICE || is_vxlan_device(name)
}

impl Ownership {
    fn is_workload(&self, name: &str) -> bool {
        self.interface_prefixes.iter().any(|p| name.starts_with(p))
    }

    /// Whose a route of the main table is.
    #[must_use]
    pub fn route(&self, route: &ActualRoute) -> Owner {
        // Felix's number stays ours even when another one is set, so that a change of the setting leaves no route.
        if route.protocol == self.route_protocol || route.protocol == ROUTE_PROTOCOL {
            return Owner::Ours;
        }
        let Some(link) = route.link().map(caracal_model::names::IfName::as_str) else {
            return Owner::Foreign;
        };
        match route.protocol {
            // Calico before 3.33 left IPIP routes to BIRD.
            PROTOCOL_BIRD if link == IPIP_DEVICE => Owner::Ours,
            // Felix leaves the protocol of VXLAN routes unset. The kernel's own routes there have protocol 2.
            PROTOCOL_BOOT if is_vxlan_device(link) => Owner::Ours,
            PROTOCOL_BOOT if self.is_workload(link) && route.prefix.is_host() => Owner::Adoptable,
            _ => Owner::Foreign,
        }
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

    /// True for an FDB entry that we may have set. The all-zero MAC is the default destination of a device.
    #[must_use]
    pub fn fdb(&self, key: &FdbKey) -> bool {
        is_vxlan_device(key.link.as_str()) && key.mac != [0; 6]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actual::ActualTarget;
    use crate::desired::Target;

    fn route(protocol: u8, link: &str) -> ActualRoute {
        ActualRoute {
            prefix: "10.244.1.7/32".parse().unwrap(),
            metric: 0,
            tos: 0,
            protocol,
            target: ActualTarget::Known(Target::via(None, &link.into(), false)),
            mtu: None,
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
        blackhole.target = ActualTarget::Known(Target::Blackhole);
        assert_eq!(rule.route(&blackhole), Owner::Ours);
        blackhole.protocol = 12;
        assert_eq!(rule.route(&blackhole), Owner::Foreign);
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
