//! Pools whose traffic between nodes is encapsulated.
//!
//! Caracal's own agent programs tunnel routes. A foreign routing daemon that stands in for the
//! speaker on a node cannot, and needs to be told which routes to leave alone.

use caracal_model::{EncapMode, NodeName, Prefix, Snapshot};

/// A range that is reached through tunnels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelledPool {
    pub prefix: Prefix,
    /// `IPIP` or `VXLAN`.
    pub encap: &'static str,
    /// Next hops in this subnet, the node's own, are reached without a tunnel (`CrossSubnet`).
    pub direct_within: Option<Prefix>,
}

/// The encapsulated pools as one node sees them, sorted.
#[must_use]
pub fn tunnelled_pools(snapshot: &Snapshot, node: &NodeName) -> Vec<TunnelledPool> {
    let node = snapshot.nodes.get(node);
    let mut pools: Vec<_> = snapshot
        .pools
        .values()
        .filter_map(|pool| {
            let spec = &pool.spec;
            let (encap, mode) = match (spec.ipip_mode, spec.vxlan_mode) {
                (EncapMode::Never, EncapMode::Never) => return None,
                (EncapMode::Never, mode) => ("VXLAN", mode),
                (mode, _) => ("IPIP", mode),
            };
            let prefix = spec.prefix();
            let subnet = node.and_then(|n| n.spec.cidr(prefix.family()));
            Some(TunnelledPool {
                prefix,
                encap,
                direct_within: subnet
                    .filter(|_| mode == EncapMode::CrossSubnet)
                    .map(|cidr| cidr.prefix()),
            })
        })
        .collect();
    pools.sort_unstable();
    pools
}
