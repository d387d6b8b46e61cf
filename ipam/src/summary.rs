//! How full pools are: the numbers of `caracal ipam show`, in calicoctl's terms.

use std::net::IpAddr;

use caracal_model::{PoolName, Prefix};
use serde::{Serialize, Serializer};

use crate::allocation::Allocation;
use crate::view::IpamData;

/// A pool or block and how full it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fill {
    /// The range.
    pub cidr: Prefix,
    /// Number of addresses.
    #[serde(serialize_with = "number")]
    pub total: u128,
    /// Held, cooling ones included.
    #[serde(serialize_with = "number")]
    pub in_use: u128,
    /// Reserved and not held.
    #[serde(serialize_with = "number")]
    pub reserved: u128,
    /// The rest.
    #[serde(serialize_with = "number")]
    pub free: u128,
}

/// JSON's readers have whole numbers of 64 bits, and a pool of IPv6 has more addresses: its counts
/// are as exact as a floating-point number is.
fn number<S: Serializer>(count: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    match u64::try_from(*count) {
        Ok(count) => serializer.serialize_u64(count),
        Err(_) => serializer.serialize_f64(*count as f64),
    }
}

/// A pool with its blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolFill {
    /// Its name; `None` for blocks outside of all pools.
    pub name: Option<PoolName>,
    /// The whole pool; `None` for blocks outside of all pools.
    pub fill: Option<Fill>,
    /// Its blocks, in address order, with their owners.
    pub blocks: Vec<BlockFill>,
}

/// A block, its owner, and how full it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockFill {
    /// How full it is.
    #[serde(flatten)]
    pub fill: Fill,
    /// `host:NODE`, `virtual:NAME`, or nobody.
    pub owner: Option<String>,
}

fn fill(view: &IpamData, cidr: Prefix, held: &[IpAddr]) -> Fill {
    let inside = || held.iter().filter(|address| cidr.contains(**address));
    let in_use = inside().count() as u128;
    let held_reserved = inside().filter(|a| view.reserved.contains(**a)).count() as u128;
    let reserved = view.reserved.count_in(&cidr).saturating_sub(held_reserved);
    Fill {
        cidr,
        total: cidr.size(),
        in_use,
        reserved,
        free: cidr.size().saturating_sub(in_use).saturating_sub(reserved),
    }
}

/// All pools by name, then the blocks that are in none.
#[must_use]
pub fn pool_fill(view: &IpamData) -> Vec<PoolFill> {
    let block = |block: &caracal_model::Block| {
        let held: Vec<IpAddr> = block.allocated().map(|(_, address, _)| address).collect();
        BlockFill {
            fill: fill(view, block.cidr, &held),
            owner: block.affinity.clone(),
        }
    };
    let mut list: Vec<PoolFill> = Vec::new();
    for (name, pool) in &view.pools {
        let cidr = pool.spec.prefix();
        let inside = || view.blocks.values().filter(|b| cidr.covers(&b.value.cidr));
        let held: Vec<IpAddr> = inside()
            .flat_map(|b| b.value.allocated().map(|(_, address, _)| address))
            .collect();
        list.push(PoolFill {
            name: Some(name.clone()),
            fill: Some(fill(view, cidr, &held)),
            blocks: inside().map(|b| block(&b.value)).collect(),
        });
    }
    let outside = view
        .blocks
        .values()
        .filter(|b| view.pool_of(&b.value.cidr).is_none());
    let outside: Vec<BlockFill> = outside.map(|b| block(&b.value)).collect();
    if !outside.is_empty() {
        list.push(PoolFill {
            name: None,
            fill: None,
            blocks: outside,
        });
    }
    list
}

/// Addresses that another node than the block's owner uses, in address order.
#[must_use]
pub fn borrowed_addresses(view: &IpamData) -> Vec<Allocation> {
    let all = view
        .blocks
        .values()
        .flat_map(|b| Allocation::in_block(&b.value));
    all.filter(|a| a.released_at.is_none() && a.is_borrowed())
        .collect()
}

/// Holder of an address.
#[must_use]
pub fn holder_of(view: &IpamData, address: IpAddr) -> Option<Allocation> {
    let block = view
        .blocks
        .values()
        .find(|b| b.value.cidr.contains(address))?;
    Allocation::in_block(&block.value).find(|a| a.address == address)
}
