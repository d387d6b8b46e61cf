//! Compact form of a block in a snapshot. The value in etcd names who holds each address; parsed,
//! one block takes 30 kB, and every node of a cluster would hold all of them. Routes, announcements
//! and counts need to know who owns the block, how much of it is in use, and who else uses
//! addresses of it: some hundred octets.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::ipam::{AllocationAttribute, Block, BlockOwner};
use crate::names::NodeName;
use crate::net::Prefix;

/// A block as far as other nodes are concerned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownBlock {
    /// The range.
    pub cidr: Prefix,
    /// Node or virtual owner that the block belongs to.
    #[serde(default, with = "owner_text", skip_serializing_if = "Option::is_none")]
    pub owner: Option<BlockOwner>,
    /// Allocated addresses, cooling ones included.
    pub in_use: u32,
    /// Those of them that name the owner's node.
    used_by_owner: u32,
    /// By ordinal: allocated, and not cooling.
    live: Ordinals,
    /// By ordinal: a workload of the owner has the address.
    workloads_of_owner: Ordinals,
    /// Addresses that name another node.
    #[serde(default, skip_serializing_if = "<[Guest]>::is_empty")]
    guests: Box<[Guest]>,
    /// The value as it stands in etcd, see [`KnownBlock::whole`].
    #[serde(skip)]
    whole: Option<Box<Block>>,
}

/// An owner as `host:NODE` or `virtual:NAME`.
mod owner_text {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::ipam::BlockOwner;

    pub(super) fn serialize<S: Serializer>(
        owner: &Option<BlockOwner>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        match owner {
            Some(owner) => s.collect_str(owner),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<BlockOwner>, D::Error> {
        let Some(text) = Option::<String>::deserialize(d)? else {
            return Ok(None);
        };
        let owner = BlockOwner::from_text(&text);
        owner.map(Some).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is neither host:NODE nor virtual:NAME"))
        })
    }
}

/// A set of ordinals, a bit each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct Ordinals(Box<[u64]>);

impl Ordinals {
    fn up_to(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)].into())
    }

    fn insert(&mut self, ordinal: usize) {
        self.0[ordinal / 64] |= 1 << (ordinal % 64);
    }

    fn contains(&self, ordinal: usize) -> bool {
        let word = self.0.get(ordinal / 64);
        word.is_some_and(|word| word >> (ordinal % 64) & 1 == 1)
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0.iter().enumerate();
        words.flat_map(|(index, word)| {
            let set = (0..64).filter(move |bit| word >> bit & 1 == 1);
            set.map(move |bit| index * 64 + bit)
        })
    }
}

/// An address that another node than the owner uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Guest {
    address: IpAddr,
    node: NodeName,
    holder: Holder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Holder {
    Workload,
    /// A tunnel device, which is reached through the tunnel.
    Device,
    /// Nobody any more; not to be given away again yet.
    Cooling,
}

impl Holder {
    fn from_attribute(attribute: &AllocationAttribute) -> Self {
        Self::from_facts(attribute.released_at.is_some(), attribute.usage().is_some())
    }

    pub(super) const fn from_facts(is_released: bool, has_usage: bool) -> Self {
        match (is_released, has_usage) {
            (true, _) => Self::Cooling,
            (false, true) => Self::Device,
            (false, false) => Self::Workload,
        }
    }
}

impl From<&Block> for KnownBlock {
    fn from(block: &Block) -> Self {
        let mut known = Self::empty(block.cidr, block.owner(), block.allocations.len());
        for (ordinal, _, attribute) in block.allocated() {
            known.add(
                ordinal,
                Holder::from_attribute(attribute),
                attribute.node(),
                &|node| node.into(),
            );
        }
        known
    }
}

impl KnownBlock {
    /// A block of which no address is in use.
    pub(super) fn empty(cidr: Prefix, owner: Option<BlockOwner>, size: usize) -> Self {
        Self {
            cidr,
            owner,
            in_use: 0,
            used_by_owner: 0,
            live: Ordinals::up_to(size),
            workloads_of_owner: Ordinals::up_to(size),
            guests: Box::default(),
            whole: None,
        }
    }

    /// An address is in use, by a node if it is named.
    pub(super) fn add(
        &mut self,
        ordinal: usize,
        holder: Holder,
        node: Option<&str>,
        named: &dyn Fn(&str) -> NodeName,
    ) {
        self.in_use += 1;
        if holder != Holder::Cooling {
            self.live.insert(ordinal);
        }
        let Some(node) = node else { return };
        if self.host().is_some_and(|owner| owner.as_str() == node) {
            self.used_by_owner += 1;
            if holder == Holder::Workload {
                self.workloads_of_owner.insert(ordinal);
            }
        } else if let Some(address) = Self::at(self.cidr, ordinal) {
            let mut guests = std::mem::take(&mut self.guests).into_vec();
            guests.push(Guest {
                address,
                node: named(node),
                holder,
            });
            self.guests = guests.into();
        }
    }

    /// A block with its whole value when it concerns a node: it owns it, uses addresses of it, or
    /// nobody owns it. Without a node every block does.
    pub(super) fn new(block: Block, node: Option<&NodeName>) -> Self {
        let mut known = Self::from(&block);
        if node.is_none_or(|node| known.concerns(node)) {
            known.whole = Some(Box::new(block));
        }
        known
    }

    /// True when the node owns it or uses addresses of it, or nobody owns it.
    pub(super) fn concerns(&self, node: &NodeName) -> bool {
        self.owner.is_none() || self.nodes().any(|other| other == node)
    }

    /// True when the same addresses are used by the same other nodes.
    pub(super) fn has_guests_of(&self, other: &Self) -> bool {
        self.guests == other.guests
    }

    /// The whole value, of blocks that concern the snapshot's node ([`Snapshot::whole_blocks_of`]).
    ///
    /// [`Snapshot::whole_blocks_of`]: super::Snapshot::whole_blocks_of
    #[must_use]
    pub fn whole(&self) -> Option<&Block> {
        self.whole.as_deref()
    }

    /// The nodes that the block names: its owner, and who uses addresses of it.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        let guests = self.guests.iter().map(|guest| &guest.node);
        self.host().into_iter().chain(guests)
    }

    /// The node that holds the block.
    #[must_use]
    pub fn host(&self) -> Option<&NodeName> {
        self.owner.as_ref().and_then(BlockOwner::node)
    }

    /// Addresses in use by another node than the owner, with that node. Cooling ones are not.
    pub fn used_elsewhere(&self) -> impl Iterator<Item = (IpAddr, &NodeName)> {
        let live = self.guests.iter().filter(|g| g.holder != Holder::Cooling);
        live.map(|guest| (guest.address, &guest.node))
    }

    /// True when an address is given out and does not cool down.
    #[must_use]
    pub fn is_allocated(&self, address: IpAddr) -> bool {
        let ordinal = self.cidr.offset(address).map(usize::try_from);
        ordinal.is_some_and(|ordinal| ordinal.is_ok_and(|o| self.live.contains(o)))
    }

    /// True when an address names another node than the owner, also while it cools down.
    #[must_use]
    pub fn is_elsewhere(&self, address: IpAddr) -> bool {
        self.guests.iter().any(|guest| guest.address == address)
    }

    /// The node that an address belongs to: the one that has borrowed it, else the block's.
    #[must_use]
    pub fn user(&self, address: IpAddr) -> Option<&NodeName> {
        let mut guests = self.guests.iter();
        let guest = guests.find(|guest| guest.address == address);
        guest.map_or_else(|| self.host(), |guest| Some(&guest.node))
    }

    /// True when another node than the owner uses an address.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        self.used_elsewhere().next().is_some()
    }

    /// Addresses that workloads of a node have: none of tunnel devices, none that cools down.
    pub fn workloads_of<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = IpAddr> + 'a {
        let own = self.host() == Some(node);
        let ordinals = self.workloads_of_owner.iter().filter(move |_| own);
        let guests = self.guests.iter();
        let guests = guests.filter(move |g| g.holder == Holder::Workload && g.node == *node);
        ordinals
            .filter_map(|ordinal| self.cidr.nth(ordinal as u128))
            .chain(guests.map(|guest| guest.address))
    }

    /// True when a workload of a node has an address.
    pub(super) fn has_workload(&self, address: IpAddr, node: &NodeName) -> bool {
        let ordinal = self.cidr.offset(address).map(usize::try_from);
        let own = || matches!(ordinal, Some(Ok(o)) if self.workloads_of_owner.contains(o));
        let is_it =
            |g: &Guest| g.address == address && g.holder == Holder::Workload && g.node == *node;
        (self.host() == Some(node) && own()) || self.guests.iter().any(is_it)
    }

    /// Number of addresses that workloads have, the owner's and others'.
    #[must_use]
    pub fn workloads(&self) -> usize {
        let own: u32 = self
            .workloads_of_owner
            .0
            .iter()
            .map(|w| w.count_ones())
            .sum();
        let guests = self.guests.iter();
        own as usize + guests.filter(|g| g.holder == Holder::Workload).count()
    }

    /// How many addresses name a node, those of devices and cooling ones included.
    #[must_use]
    pub fn used_by(&self, node: &NodeName) -> usize {
        let guests = self.guests.iter().filter(|g| g.node == *node).count();
        let own = if self.host() == Some(node) {
            self.used_by_owner as usize
        } else {
            0
        };
        own + guests
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Ordinals of a /25 of node a, with node, type and whether they cool down.
    fn block(held: &[(usize, &str, Option<&str>, bool)]) -> KnownBlock {
        let owner = BlockOwner::Host("a".into());
        let mut block = Block::new("10.0.0.0/25".parse().unwrap(), Some(&owner), 1);
        for (index, (ordinal, node, usage, cooling)) in held.iter().enumerate() {
            let mut attribute = AllocationAttribute::default();
            attribute.secondary.insert("node".into(), (*node).into());
            if let Some(usage) = usage {
                attribute.secondary.insert("type".into(), (*usage).into());
            }
            attribute.released_at = cooling.then(|| "2026-01-01T00:00:00Z".to_owned());
            block.attributes.push(attribute);
            block.allocations[*ordinal] = Some(index);
        }
        KnownBlock::from(&block)
    }

    fn texts(addresses: impl Iterator<Item = IpAddr>) -> Vec<String> {
        addresses.map(|address| address.to_string()).collect()
    }

    #[test]
    fn workloads_guests_devices_and_cooling_addresses_are_told_apart() {
        let known = block(&[
            (0, "a", Some("vxlanTunnelAddress"), false),
            (1, "a", None, false),
            (70, "a", None, false),
            (2, "a", None, true),
            (3, "b", None, false),
            (4, "b", Some("ipipTunnelAddress"), false),
            (5, "b", None, true),
            (127, "c", None, false),
        ]);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(NodeName::from);
        assert_eq!(known.in_use, 8);
        assert_eq!([&a, &b, &c, &d].map(|n| known.used_by(n)), [4, 3, 1, 0]);
        assert_eq!(texts(known.workloads_of(&a)), ["10.0.0.1", "10.0.0.70"]);
        assert_eq!(texts(known.workloads_of(&b)), ["10.0.0.3"]);
        assert_eq!(texts(known.workloads_of(&d)), [] as [&str; 0]);
        let elsewhere: Vec<String> = known
            .used_elsewhere()
            .map(|(address, node)| format!("{address} {node}"))
            .collect();
        assert_eq!(elsewhere, ["10.0.0.3 b", "10.0.0.4 b", "10.0.0.127 c"]);
        assert!(known.is_borrowed());
        let is = |ordinal| {
            let address = known.cidr.nth(ordinal).unwrap();
            (known.is_allocated(address), known.is_elsewhere(address))
        };
        // Device, workload, cooling, guest, cooling guest, free.
        assert_eq!(
            [0, 70, 2, 3, 5, 9].map(is),
            [
                (true, false),
                (true, false),
                (false, false),
                (true, true),
                (false, true),
                (false, false),
            ]
        );
        assert!(!known.is_allocated("10.9.0.0".parse().unwrap()));
    }

    #[test]
    fn only_what_concerns_a_node_is_kept_whole() {
        let [a, b, c] = ["a", "b", "c"].map(NodeName::from);
        let owner = BlockOwner::Host(a.clone());
        let mut block = Block::new("10.0.0.0/30".parse().unwrap(), Some(&owner), 1);
        let mut attribute = AllocationAttribute::default();
        attribute.secondary.insert("node".into(), "b".into());
        block.attributes.push(attribute);
        block.allocations[0] = Some(0);
        let whole = |node| KnownBlock::new(block.clone(), node).whole().cloned();
        for node in [None, Some(&a), Some(&b)] {
            assert_eq!(whole(node).as_ref(), Some(&block));
        }
        assert_eq!(whole(Some(&c)), None);
        block.affinity = None;
        assert!(KnownBlock::new(block, Some(&c)).whole().is_some());
    }

    #[test]
    fn what_nobody_else_uses_is_not_borrowed() {
        assert!(!block(&[(0, "a", None, false), (5, "b", None, true)]).is_borrowed());
    }

    #[test]
    fn a_block_of_nobody_has_guests_only() {
        let mut whole = Block::new("10.0.0.0/30".parse().unwrap(), None, 1);
        whole.attributes.push(AllocationAttribute::default());
        whole.allocations[1] = Some(0);
        let known = KnownBlock::from(&whole);
        assert_eq!((known.in_use, known.is_borrowed()), (1, false));
        whole.attributes[0]
            .secondary
            .insert("node".into(), "a".into());
        assert!(KnownBlock::from(&whole).is_borrowed());
    }
}
