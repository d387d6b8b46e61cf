//! Kinds of tunnel devices: their handles and attributes, and the pools that they serve.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{
    AllowedUse, EncapMode, Family, HandleId, IpPool, Node, NodeName, ipip_handle, vxlan_handle,
    vxlan_v6_handle, wireguard_handle, wireguard_v6_handle,
};

use crate::pools;

/// A kind of tunnel device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TunnelKind {
    /// `tunl0`.
    Ipip,
    /// `vxlan.calico`.
    Vxlan,
    /// `vxlan-v6.calico`.
    VxlanV6,
    /// `wireguard.cali`. Caracal makes no such device, but keeps and gives up what Calico took.
    Wireguard,
    /// `wg-v6.cali`.
    WireguardV6,
}

impl TunnelKind {
    /// All, in Calico's order of allocation.
    pub const ALL: [Self; 5] = [
        Self::Wireguard,
        Self::WireguardV6,
        Self::Ipip,
        Self::Vxlan,
        Self::VxlanV6,
    ];

    /// True for the kinds whose devices are Calico's alone.
    #[must_use]
    pub const fn is_wireguard(self) -> bool {
        matches!(self, Self::Wireguard | Self::WireguardV6)
    }

    /// The handle of a node's address.
    #[must_use]
    pub fn handle(self, node: &NodeName) -> HandleId {
        match self {
            Self::Ipip => ipip_handle(node),
            Self::Vxlan => vxlan_handle(node),
            Self::VxlanV6 => vxlan_v6_handle(node),
            Self::Wireguard => wireguard_handle(node),
            Self::WireguardV6 => wireguard_v6_handle(node),
        }
    }

    /// The attribute `type`.
    #[must_use]
    pub const fn attribute(self) -> &'static str {
        match self {
            Self::Ipip => "ipipTunnelAddress",
            Self::Vxlan => "vxlanTunnelAddress",
            Self::VxlanV6 => "vxlanV6TunnelAddress",
            Self::Wireguard => "wireguardTunnelAddress",
            Self::WireguardV6 => "wireguardV6TunnelAddress",
        }
    }

    /// The address family of the pools it serves.
    #[must_use]
    pub const fn family(self) -> Family {
        match self {
            Self::Ipip | Self::Vxlan | Self::Wireguard => Family::Ipv4,
            Self::VxlanV6 | Self::WireguardV6 => Family::Ipv6,
        }
    }

    /// The address that the Node names now.
    #[must_use]
    pub fn current(self, node: &Node) -> Option<IpAddr> {
        match self {
            Self::Ipip => node.spec.ipip_address().map(IpAddr::V4),
            Self::Vxlan | Self::VxlanV6 => node.spec.vxlan_address(self.family()),
            Self::Wireguard | Self::WireguardV6 => node.spec.wireguard_address(self.family()),
        }
    }

    /// True when the node has what the device needs: WireGuard a public key, which its agent
    /// publishes.
    #[must_use]
    pub(super) fn is_wanted_by(self, node: &Node) -> bool {
        let field = match self {
            Self::Ipip | Self::Vxlan | Self::VxlanV6 => return true,
            Self::Wireguard => "wireguardPublicKey",
            Self::WireguardV6 => "wireguardPublicKeyV6",
        };
        let key = node.status.as_ref().and_then(|status| status.get(field));
        key.and_then(|key| key.as_str())
            .is_some_and(|key| !key.is_empty())
    }

    /// True when the pool's traffic uses this kind (WireGuard: any), whether or not the pool hands
    /// out addresses.
    #[must_use]
    pub fn carries(self, pool: &IpPool) -> bool {
        let is_used = match self {
            Self::Ipip => pool.spec.ipip_mode != EncapMode::Never,
            Self::Vxlan | Self::VxlanV6 => pool.spec.vxlan_mode != EncapMode::Never,
            Self::Wireguard | Self::WireguardV6 => true,
        };
        is_used && pool.spec.prefix().family() == self.family()
    }

    /// True when the pool's traffic uses this kind, it may lend addresses to tunnels, and it
    /// selects the node.
    #[must_use]
    pub fn qualifies(self, pool: &IpPool, labels: &BTreeMap<String, String>) -> bool {
        self.carries(pool)
            && pools::usable(pool).is_ok()
            && pool.spec.allows(AllowedUse::Tunnel)
            && pools::selects_node(pool, labels)
    }
}
