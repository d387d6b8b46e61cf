//! Why a node's next address comes from where it comes: every pool with yes or no and the reason,
//! the node's own blocks, the limits. What would really happen is found by a dry run of the
//! assignment itself ([`crate::LoggedStore`]); this is the explanation beside it.

use std::collections::BTreeMap;

use caracal_model::{AffinityState, AllowedUse, BlockOwner, Family, NodeName, PoolName, Prefix};
use serde::Serialize;

use crate::block;
use crate::plan::DEFAULT_MAX_BLOCKS;
use crate::pools::{self, Asker};
use crate::view::{IpamData, Known};

/// A pool and whether it serves the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolAnswer {
    /// Name of the pool.
    pub pool: PoolName,
    /// Its range.
    pub cidr: Prefix,
    /// It may be used.
    pub usable: bool,
    /// Why, or why not.
    pub reason: String,
}

/// A block that the node has an affinity to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockAnswer {
    /// The block.
    pub cidr: Prefix,
    /// Pool whose range covers it.
    pub pool: Option<PoolName>,
    /// Addresses that can be handed out.
    pub free: usize,
    /// It may be used.
    pub usable: bool,
    /// Why, or why not.
    pub reason: String,
}

/// The decision chain of one family.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// Node that the chain is about.
    pub node: NodeName,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// All pools of the family, by name.
    pub pools: Vec<PoolAnswer>,
    /// The node's own blocks of the family, in the order in which they are tried.
    pub blocks: Vec<BlockAnswer>,
    /// Blocks that count against the limit: those in usable pools.
    pub held: usize,
    /// Most blocks of the node.
    pub limit: u32,
    /// Whether it may claim a further block, and why.
    pub growth: String,
    /// Whether it may borrow, and why.
    pub borrowing: String,
}

/// Explains, for a pod of a namespace when its labels are given. `None` when there is no such Node.
#[must_use]
pub fn why(
    view: &IpamData,
    node: &NodeName,
    family: Family,
    namespace: Option<&BTreeMap<String, String>>,
) -> Option<Why> {
    let labels = &view.nodes.get(node)?.labels;
    let asker = Asker {
        node: labels,
        namespace,
        usage: AllowedUse::Workload,
    };
    let mut answers = Vec::new();
    for (name, pool) in &view.pools {
        let cidr = pool.spec.prefix();
        if cidr.family() != family {
            continue;
        }
        let served = pools::serves(pool, &asker);
        answers.push(PoolAnswer {
            pool: name.clone(),
            cidr,
            usable: served.is_ok(),
            reason: match served {
                Ok(()) => "serves this node".to_owned(),
                Err(refusal) => refusal.to_string(),
            },
        });
    }
    let owner = BlockOwner::Host(node.clone());
    let mut blocks = Vec::new();
    let mut held = 0;
    for (cidr, affinity) in view.affinities_of(&owner, family) {
        let pool = answers.iter().find(|answer| answer.cidr.covers(&cidr));
        let usable = pool.is_some_and(|answer| answer.usable);
        held += usize::from(usable);
        let free = match view.block(cidr) {
            Known::Present(known) => block::free(&known.value, &view.reserved, usize::MAX),
            Known::Absent => usize::try_from(cidr.size()).unwrap_or(usize::MAX),
            Known::Unreadable | Known::Unknown => 0,
        };
        let (ok, reason) = own_block(view, &owner, cidr, affinity.value.state, usable, free);
        blocks.push(BlockAnswer {
            cidr,
            pool: pool.map(|answer| answer.pool.clone()),
            free,
            usable: ok,
            reason,
        });
    }
    let config = view.config();
    let limit = match config.max_blocks_per_host {
        0 => DEFAULT_MAX_BLOCKS,
        limit => limit,
    };
    let room = usize::try_from(limit).is_ok_and(|limit| held < limit);
    let growth = match (config.auto_allocate_blocks, room) {
        (false, _) => "no: auto_allocate_blocks is false".to_owned(),
        (true, true) => format!("yes: {held} of {limit} blocks"),
        (true, false) => format!("no: it holds {held} blocks and may hold {limit}"),
    };
    let borrowing = if config.strict_affinity {
        "no: strict affinity is on"
    } else {
        "yes: when its own blocks are full and it can claim none"
    };
    Some(Why {
        node: node.clone(),
        family: family.as_str().to_owned(),
        pools: answers,
        blocks,
        held,
        limit,
        growth,
        borrowing: borrowing.to_owned(),
    })
}

fn own_block(
    view: &IpamData,
    owner: &BlockOwner,
    cidr: Prefix,
    state: AffinityState,
    usable: bool,
    free: usize,
) -> (bool, String) {
    let no = |text: &str| (false, text.to_owned());
    if !usable {
        return no("its pool does not serve this node");
    }
    match view.block(cidr) {
        Known::Present(known) if known.value.owner().as_ref() != Some(owner) => {
            match known.value.owner() {
                Some(other) => (false, format!("belongs to {other}; the affinity is stale")),
                None => no("belongs to nobody; the affinity is stale"),
            }
        }
        Known::Present(_) if free == 0 => no("is full"),
        Known::Present(_) if state == AffinityState::PendingDeletion => (
            true,
            "is being released; its next use takes it back".to_owned(),
        ),
        Known::Present(_) => (true, "has free addresses".to_owned()),
        Known::Absent => (true, "is claimed and not created yet".to_owned()),
        Known::Unreadable => no("does not parse"),
        Known::Unknown => no("was not read"),
    }
}
