//! MTUs, derived as Calico does: the smallest MTU of the host's interfaces less the overhead of the
//! tunnel.

use caracal_model::Family;

use super::Planner;
use super::encap::{IPIP_OVERHEAD, VXLAN_OVERHEAD, VXLAN_V6_OVERHEAD};
use crate::links::{Link, Links};
use crate::settings::InterfacePattern;

/// Host MTU when no interface says one; fits the smaller cloud networks.
pub const FALLBACK_MTU: u32 = 1460;

/// The smallest MTU among the interfaces that are up and match the pattern, and the interface that
/// carries the node's address; [`FALLBACK_MTU`] when there is none of these.
#[must_use]
pub fn host_mtu(links: &Links, parent: Option<&Link>, pattern: &InterfacePattern) -> u32 {
    links
        .iter()
        .filter(|l| l.up && pattern.matches(l.name.as_str()))
        .chain(parent)
        .map(|l| l.mtu)
        .min()
        .unwrap_or(FALLBACK_MTU)
}

impl Planner<'_> {
    fn host_mtu(&self, family: Family) -> u32 {
        let parent = self.own.get(&family).and_then(|own| own.parent);
        host_mtu(
            self.inputs.links,
            parent,
            &self.inputs.settings.mtu_interfaces,
        )
    }

    pub(super) fn ipip_mtu(&self) -> u32 {
        self.inputs
            .settings
            .ipip_mtu
            .unwrap_or_else(|| self.host_mtu(Family::Ipv4).saturating_sub(IPIP_OVERHEAD))
    }

    pub(super) fn vxlan_mtu(&self, family: Family) -> u32 {
        let settings = self.inputs.settings;
        let (set, overhead) = match family {
            Family::Ipv4 => (settings.vxlan_mtu, VXLAN_OVERHEAD),
            Family::Ipv6 => (settings.vxlan_mtu_v6, VXLAN_V6_OVERHEAD),
        };
        set.unwrap_or_else(|| self.host_mtu(family).saturating_sub(overhead))
    }

    /// The MTU for workloads: what fits all paths, and never more than Calico's rule gives.
    pub(super) fn workload_mtu(&self) -> u32 {
        let limit = super::paths::workload_limit(self);
        self.rule_mtu().min(limit.unwrap_or(u32::MAX))
    }

    /// Calico's rule: the smallest of the encapsulations in use, else the host's.
    fn rule_mtu(&self) -> u32 {
        let mut mtus = Vec::new();
        if self.pools.any_ipip() {
            mtus.push(self.ipip_mtu());
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            if self.pools.any_vxlan(family) {
                mtus.push(self.vxlan_mtu(family));
            }
        }
        if mtus.is_empty() {
            mtus.extend(self.own.keys().map(|family| self.host_mtu(*family)));
        }
        mtus.into_iter()
            .min()
            .unwrap_or_else(|| self.host_mtu(Family::Ipv4))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_smallest_hardware_interface_decides() {
        let with = |specs: &[(&str, u32, bool)]| -> Links {
            specs
                .iter()
                .zip(1..)
                .map(|(&(name, mtu, up), index)| {
                    let mut link = Link::new(index, name);
                    (link.mtu, link.up) = (mtu, up);
                    link
                })
                .collect()
        };
        let links = with(&[
            ("lo", 65_536, true),
            ("eth0", 9000, true),
            ("enp3s0", 1500, true),
            ("eth1", 1280, false),
            ("cali123", 1400, true),
            ("docker0", 1300, true),
            ("entry", 1200, true),
        ]);
        let hardware = InterfacePattern::default();
        assert_eq!(host_mtu(&links, None, &hardware), 1500);
        let docker = InterfacePattern::new("^docker").unwrap();
        assert_eq!(host_mtu(&links, None, &docker), 1300);
        let links = with(&[("v0", 1400, true)]);
        assert_eq!(host_mtu(&links, None, &hardware), 1460);
        assert_eq!(host_mtu(&links, links.by_name("v0"), &hardware), 1400);
    }
}
