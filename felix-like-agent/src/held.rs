//! What is ours in the kernel and stays although no plan has it: the value in the datastore that
//! would say whether it is wanted cannot be read (decision 0174). What its key says bounds it;
//! everything else is swept.

use std::collections::BTreeSet;

use caracal_model::{IfName, KnownBlock, NodeName, Prefix, SharedMap, Versioned};

use crate::actual::ActualRoute;
use crate::ownership::is_tunnel_device;

/// What is held back; nothing almost always.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// Routes inside these: the ranges of blocks and affinities, and those of nodes in doubt.
    pub(crate) ranges: BTreeSet<Prefix>,
    /// Routes to blocks of these nodes that exist: a Node in doubt may be a route reflector, which
    /// has told of them.
    pub(crate) blocks: Option<OthersBlocks>,
    /// Routes outside these: the pools that can be read.
    pub(crate) outside: Option<Vec<Prefix>>,
    /// Tunnel devices with their addresses: a pool may want them.
    pub(crate) devices: bool,
    /// Neighbours and FDB entries of tunnel devices: what a Node in doubt has there is not known.
    pub(crate) far_ends: bool,
    /// Routes to interfaces of workloads that no endpoint names.
    pub(crate) interfaces: BTreeSet<IfName>,
    /// Routes to addresses of other nodes' workloads, where there are no blocks.
    pub(crate) addresses: bool,
}

/// Blocks of other nodes that exist.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OthersBlocks {
    pub(crate) blocks: SharedMap<Prefix, Versioned<KnownBlock>>,
    pub(crate) me: NodeName,
    pub(crate) nodes: BTreeSet<NodeName>,
}

impl OthersBlocks {
    fn have(&self, prefix: &Prefix) -> bool {
        let owner = self.blocks.get(prefix).and_then(|block| block.host());
        owner.is_some_and(|owner| *owner != self.me && self.nodes.contains(owner))
    }
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True for a route that stays.
    pub(crate) fn route(&self, route: &ActualRoute) -> bool {
        let prefix = &route.prefix;
        let covered = |ranges: &[Prefix]| ranges.iter().any(|range| range.covers(prefix));
        let by_link = || {
            let link = route.link();
            let of_a_workload = link.is_some_and(|link| self.interfaces.contains(link));
            of_a_workload || (self.addresses && prefix.is_host() && link.is_some())
        };
        self.ranges.iter().any(|range| range.covers(prefix))
            || self.outside.as_deref().is_some_and(|pools| !covered(pools))
            || self
                .blocks
                .as_ref()
                .is_some_and(|blocks| blocks.have(prefix))
            || by_link()
    }

    /// True when tunnel devices and their addresses stay.
    pub(crate) const fn devices(&self) -> bool {
        self.devices
    }

    /// True when neighbours and FDB entries of a device stay.
    pub(crate) fn entries_of(&self, link: &IfName) -> bool {
        self.interfaces.contains(link) || (self.far_ends && is_tunnel_device(link.as_str()))
    }
}
