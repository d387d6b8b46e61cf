//! Pools and blocks: what is exported and what the kernel is told.

use caracal_model::{AffinityState, EncapMode, Family, Node};
use serde_json::Value;

use super::sorted_as_text;
use super::{Block, KernelPool};
use crate::view::NodeView;

/// Routes that BIRD programs, from `programClusterRoutes` of the BGPConfiguration. VXLAN is never
/// BIRD's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) ipip: bool,
    pub(super) no_encap: bool,
}

impl Owner {
    /// Unknown values count as unset, as in Calico.
    pub(super) fn parse(text: Option<&str>) -> Self {
        let (ipip, no_encap) = match text {
            Some("Enabled") => (true, true),
            Some("Disabled") => (false, false),
            Some("EnabledIPIPOnly") => (true, false),
            _ => (false, true),
        };
        Self { ipip, no_encap }
    }
}

pub(super) fn blocks(view: &NodeView<'_>, family: Family) -> Vec<Block> {
    let mut blocks: Vec<_> = view
        .snapshot
        .affinities_of(view.name)
        .filter(|(cidr, affinity)| {
            cidr.family() == family && affinity.state != AffinityState::Pending && !affinity.deleted
        })
        .map(|(cidr, affinity)| Block {
            cidr: cidr.to_string(),
            leaving: affinity.state == AffinityState::PendingDeletion,
            single: cidr.len() == family.bits(),
        })
        .collect();
    blocks.sort_unstable();
    blocks
}

/// The pools with or without `disableBGPExport`.
pub(super) fn exported(view: &NodeView<'_>, family: Family, wanted: bool) -> Vec<String> {
    let specs = view.snapshot.pools.values().map(|pool| &pool.spec);
    sorted_as_text(
        specs
            .filter(|spec| spec.prefix().family() == family)
            .filter(|spec| spec.disable_bgp_export != wanted)
            .map(|spec| spec.prefix().to_string()),
    )
}

/// IPv6 has no IPIP and says only what is not BIRD's; a node without a subnet says nothing for
/// IPv4.
pub(super) fn kernel(view: &NodeView<'_>, family: Family, owner: Option<&str>) -> Vec<KernelPool> {
    let owner = Owner::parse(owner);
    let subnet = view.node.and_then(|node| node.spec.cidr(family));
    if family == Family::Ipv4 && subnet.is_none() {
        return Vec::new();
    }
    let mut pools: Vec<_> = view
        .snapshot
        .pools
        .values()
        .map(|pool| &pool.spec)
        .filter(|spec| spec.prefix().family() == family)
        .map(|spec| {
            let pool = KernelPool {
                cidr: spec.prefix().to_string(),
                comment: "",
                reject: false,
                tunnel: false,
                direct_within: None,
            };
            let reject = |comment| KernelPool {
                comment,
                reject: true,
                ..pool.clone()
            };
            if spec.vxlan_mode != EncapMode::Never {
                return reject("VXLAN routes are programmed by Felix");
            }
            let (owned, tunnel) = match spec.ipip_mode {
                EncapMode::Never => (owner.no_encap, false),
                EncapMode::Always | EncapMode::CrossSubnet => (owner.ipip, true),
            };
            if !owned {
                return reject("Felix programs the routes of this pool");
            }
            KernelPool {
                comment: match spec.ipip_mode {
                    EncapMode::Never => "without encapsulation",
                    EncapMode::Always => "IPIP",
                    EncapMode::CrossSubnet => "IPIP across subnets",
                },
                tunnel,
                direct_within: subnet
                    .filter(|_| spec.ipip_mode == EncapMode::CrossSubnet)
                    .map(|subnet| subnet.prefix().to_string()),
                ..pool
            }
        })
        .filter(|pool| family == Family::Ipv4 || pool.reject)
        .collect();
    pools.sort_unstable_by(|a, b| a.cidr.cmp(&b.cidr));
    pools
}

/// Addresses of the other nodes that run WireGuard, when this node does.
pub(super) fn wireguard_peers(view: &NodeView<'_>, family: Family) -> Vec<String> {
    if !view.node.is_some_and(|node| runs_wireguard(node, family)) {
        return Vec::new();
    }
    sorted_as_text(
        view.nodes()
            .filter(|(name, node)| *name != view.name && runs_wireguard(node, family))
            .filter_map(|(_, node)| node.spec.address(family))
            .map(|address| address.to_string()),
    )
}

fn runs_wireguard(node: &Node, family: Family) -> bool {
    let field = match family {
        Family::Ipv4 => "interfaceIPv4Address",
        Family::Ipv6 => "interfaceIPv6Address",
    };
    let address = node.spec.extra.get("wireguard").and_then(|w| w.get(field));
    address
        .and_then(Value::as_str)
        .is_some_and(|text| !text.is_empty())
}
