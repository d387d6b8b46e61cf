//! Data that a machine has read so far, by typed key. Never holds less than was answered: a value
//! that does not parse is remembered as unreadable, so that it never counts as absent (IPAM-12).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caracal_model::{
    Block, BlockAffinity, BlockOwner, Family, HandleId, IpPool, IpReservation, IpamConfig,
    IpamHandle, Key, KeyRange, KeyValue, Kind, Metadata, Node, NodeName, PoolName, Prefix,
    Resource, Timestamp, Txn, TxnWrite, ValueError, affinity_prefix, blocks_prefix, ipam_prefix,
    kind_prefix,
};

use crate::block;
use crate::error::Unreadable;
use crate::namespace;
use crate::pools::Reservations;
use crate::step::Reading;

/// A value and the revision to compare when it is replaced.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadValue<T> {
    /// The value as it was read.
    pub value: T,
    /// etcd's ModRevision.
    pub revision: i64,
}

/// Data of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownNode {
    /// Labels, for pools' selectors.
    pub labels: BTreeMap<String, String>,
    /// The whole resource, when it is valid. Allocation needs the labels only.
    pub node: Option<Node>,
}

/// Data read so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IpamData {
    /// The latest revision of all readings.
    pub revision: i64,
    /// The global configuration, when there is one.
    pub config: Option<IpamConfig>,
    /// Pools that parse and are valid.
    pub pools: BTreeMap<PoolName, IpPool>,
    /// Addresses that are not handed out.
    pub reserved: Reservations,
    /// Nodes that were asked for, or all.
    pub nodes: BTreeMap<NodeName, KnownNode>,
    /// Labels of namespaces, of those whose profile was read.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Affinities by owner and block.
    pub affinities: BTreeMap<(BlockOwner, Prefix), ReadValue<BlockAffinity>>,
    /// Handles that were asked for, or all.
    pub handles: BTreeMap<HandleId, ReadValue<IpamHandle>>,
    /// Blocks that were asked for, or all.
    pub blocks: BTreeMap<Prefix, ReadValue<Block>>,
    /// Paths whose values do not parse, with the reason.
    pub unreadable: BTreeMap<String, String>,
    asked: BTreeSet<String>,
}

/// State of a block in the data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Known<'a> {
    /// It exists.
    Present(&'a ReadValue<Block>),
    /// It did not exist when asked for.
    Absent,
    /// It exists but does not parse.
    Unreadable,
    /// Nobody asked yet.
    Unknown,
}

impl IpamData {
    /// Takes over an answer to `asked`. A key answered again replaces what was known.
    pub fn absorb(&mut self, asked: &[KeyRange], reading: Reading) {
        self.revision = self.revision.max(reading.revision);
        for range in asked {
            match range {
                KeyRange::Key(key) => {
                    if let Ok(Key::Block(cidr)) = Key::parse(key) {
                        self.blocks.remove(&cidr);
                    }
                    self.asked.insert(key.clone());
                }
                KeyRange::Prefix(prefix) => {
                    self.blocks
                        .retain(|cidr, _| !Key::Block(*cidr).to_path().starts_with(prefix));
                    self.asked.insert(prefix.clone());
                }
            }
        }
        for kv in reading.ranges.into_iter().flatten() {
            if let Err(reason) = self.insert(&kv) {
                self.unreadable.insert(kv.key, reason.0);
            }
        }
    }

    /// Takes over what a transaction of ours wrote.
    pub(crate) fn apply(&mut self, txn: &Txn, revision: i64) {
        for write in &txn.writes {
            match write {
                TxnWrite::Put(key, value) => {
                    let kv = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        mod_revision: revision,
                    };
                    let inserted = self.insert(&kv);
                    debug_assert!(inserted.is_ok(), "we wrote {key} and cannot read it");
                }
                TxnWrite::Delete(key) => match Key::parse(key) {
                    Ok(Key::Block(cidr)) => drop(self.blocks.remove(&cidr)),
                    Ok(Key::Affinity(owner, cidr)) => drop(self.affinities.remove(&(owner, cidr))),
                    Ok(Key::Handle(id)) => drop(self.handles.remove(&id)),
                    _ => {}
                },
            }
        }
    }

    fn insert(&mut self, kv: &KeyValue) -> Result<(), ValueError> {
        let Ok(key) = Key::parse(&kv.key) else {
            return Ok(());
        };
        let revision = kv.mod_revision;
        match key {
            Key::IpamConfig => self.config = Some(IpamConfig::from_json(&kv.value)?),
            Key::Affinity(owner, cidr) => {
                let value = BlockAffinity::from_json(&kv.value)?;
                let versioned = ReadValue { value, revision };
                self.affinities.insert((owner, cidr), versioned);
            }
            Key::Handle(id) => {
                let value = IpamHandle::from_json(&kv.value)?;
                self.handles.insert(id, ReadValue { value, revision });
            }
            Key::Block(cidr) => {
                let value = Block::from_json(&kv.value)?;
                if value.cidr != cidr {
                    return Err(ValueError(format!("the value says {}", value.cidr)));
                }
                self.blocks.insert(cidr, ReadValue { value, revision });
            }
            Key::Resource { kind, name, .. } => self.insert_resource(kind, &name, &kv.value)?,
            Key::IpamHost(_) | Key::Document { .. } | Key::ServicesCheck => {}
        }
        Ok(())
    }

    fn insert_resource(&mut self, kind: Kind, name: &str, value: &[u8]) -> Result<(), ValueError> {
        match kind {
            Kind::IpPool => {
                let pool = IpPool::from_json(value)?;
                self.pools.insert(name.into(), pool);
            }
            Kind::IpReservation => {
                // A typing error in one CIDR must not unprotect the others.
                self.reserved.extend(readable_cidrs(value));
                IpReservation::from_json(value)?;
            }
            Kind::Node => {
                let node = Node::from_json(value).ok();
                let labels = match &node {
                    Some(node) => node.metadata.labels.clone(),
                    None => lenient(value)?.labels,
                };
                self.nodes.insert(name.into(), KnownNode { labels, node });
            }
            Kind::Profile => {
                if let Some(namespace) = namespace::of_profile(name) {
                    let labels = namespace::namespace_labels(namespace, value)?;
                    self.namespaces.insert(namespace.to_owned(), labels);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> IpamConfig {
        self.config.clone().unwrap_or_default()
    }

    /// How long released addresses are kept back.
    #[must_use]
    pub fn cool_down(&self) -> Duration {
        let seconds = self.config.as_ref().map_or(0, |c| c.ip_cooldown_seconds);
        Duration::from_secs(u64::from(seconds))
    }

    /// Frees, in memory, what has cooled down by `now`.
    pub fn collect(&mut self, now: Timestamp) {
        let cool_down = self.cool_down();
        for versioned in self.blocks.values_mut() {
            block::collect(&mut versioned.value, cool_down, now);
        }
    }

    /// True when all blocks of a family were read.
    #[must_use]
    pub(crate) fn knows_all_blocks(&self, family: Family) -> bool {
        self.asked.contains(&blocks_prefix(family)) || self.asked.contains(&ipam_prefix())
    }

    /// State of a block.
    #[must_use]
    pub fn block(&self, cidr: Prefix) -> Known<'_> {
        if let Some(versioned) = self.blocks.get(&cidr) {
            return Known::Present(versioned);
        }
        let key = Key::Block(cidr);
        if self.unreadable.contains_key(&key.to_path()) {
            Known::Unreadable
        } else if self.was_asked(&key) {
            Known::Absent
        } else {
            Known::Unknown
        }
    }

    /// Ranges to read for those of `blocks` that were not read yet.
    pub(crate) fn unread_blocks<'a>(
        &self,
        blocks: impl IntoIterator<Item = &'a Prefix>,
    ) -> Vec<KeyRange> {
        blocks
            .into_iter()
            .filter(|cidr| self.block(**cidr) == Known::Unknown)
            .map(|cidr| key(&Key::Block(*cidr)))
            .collect()
    }

    /// An owner's affinities of a family, in key order.
    #[must_use]
    pub fn affinities_of(
        &self,
        owner: &BlockOwner,
        family: Family,
    ) -> Vec<(Prefix, &ReadValue<BlockAffinity>)> {
        let mut list: Vec<_> = self
            .affinities
            .iter()
            .filter(|((o, cidr), _)| o == owner && cidr.family() == family)
            .map(|((_, cidr), versioned)| (*cidr, versioned))
            .collect();
        list.sort_by_cached_key(|(cidr, _)| cidr.to_key());
        list
    }

    /// The pool that covers a block or an address.
    #[must_use]
    pub fn pool_of(&self, cidr: &Prefix) -> Option<(&PoolName, &IpPool)> {
        self.pools
            .iter()
            .find(|(_, pool)| pool.spec.prefix().covers(cidr))
    }

    /// True when some other block shares addresses with this range.
    #[must_use]
    pub(crate) fn is_overlapped(&self, cidr: &Prefix) -> bool {
        let inside = self.blocks.range(*cidr..).next();
        let inside = inside.is_some_and(|(block, _)| cidr.covers(block));
        // The largest block that a pool can have is 12 bits shorter than an address.
        let shortest = cidr.family().bits() - 12;
        inside
            || (shortest..cidr.len()).any(|len| {
                self.blocks
                    .contains_key(&Prefix::truncated(cidr.address(), len))
            })
    }

    /// True when a key was asked for, alone or among others.
    #[must_use]
    pub(crate) fn was_asked(&self, key: &Key) -> bool {
        let path = key.to_path();
        self.asked.contains(&path)
            || self
                .asked
                .iter()
                .any(|p| p.ends_with('/') && path.starts_with(p.as_str()))
    }

    /// Why a key's value does not parse.
    #[must_use]
    pub fn fault(&self, key: &Key) -> Option<Unreadable> {
        let key = key.to_path();
        let reason = self.unreadable.get(&key)?.clone();
        Some(Unreadable { key, reason })
    }

    /// Refuses to go on when one of these values does not parse.
    pub(crate) fn readable(&self, keys: &[Key]) -> Result<(), Unreadable> {
        match keys.iter().find_map(|key| self.fault(key)) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}

/// The labels of a node whose spec does not parse.
fn lenient(value: &[u8]) -> Result<Metadata, ValueError> {
    serde_json::from_slice::<Resource<serde_json::Value>>(value)
        .map(|resource| resource.metadata)
        .map_err(|e| ValueError(e.to_string()))
}

fn readable_cidrs(value: &[u8]) -> Vec<Prefix> {
    let value: serde_json::Value = serde_json::from_slice(value).unwrap_or_default();
    let cidrs = value.pointer("/spec/reservedCIDRs");
    let cidrs = cidrs.and_then(serde_json::Value::as_array);
    cidrs
        .into_iter()
        .flatten()
        .filter_map(|cidr| cidr.as_str()?.parse().ok())
        .collect()
}

/// The whole of IPAM's data and the resources it depends on.
#[must_use]
pub fn all_ranges() -> Vec<KeyRange> {
    vec![
        KeyRange::Prefix(ipam_prefix()),
        KeyRange::Prefix(kind_prefix(Kind::IpPool)),
        KeyRange::Prefix(kind_prefix(Kind::IpReservation)),
        KeyRange::Prefix(kind_prefix(Kind::Node)),
    ]
}

pub(crate) fn key(key: &Key) -> KeyRange {
    KeyRange::Key(key.to_path())
}

pub(crate) fn kind(kind: Kind) -> KeyRange {
    KeyRange::Prefix(kind_prefix(kind))
}

pub(crate) fn affinities(owner: &BlockOwner, family: Family) -> KeyRange {
    KeyRange::Prefix(affinity_prefix(owner, family))
}

pub(crate) fn blocks(family: Family) -> KeyRange {
    KeyRange::Prefix(blocks_prefix(family))
}
