//! Why a request fails for good. Every sentence says what was wanted, what stands in the way and
//! what would help. A lost race is not in here: it is [`crate::Input::Conflict`], and machines go
//! on after it.

use std::fmt;
use std::net::IpAddr;

use caracal_model::{Family, HandleId, NodeName, PoolName, Prefix};

use crate::pools::{Explicit, PoolRefusal};

/// Most addresses of one request, of both families. A pod needs a few; etcd takes 128 operations in
/// a transaction, and a request is one transaction.
pub(crate) const MAX_ADDRESSES: usize = 1024;

/// etcd's limit: comparisons of one transaction, and writes of one.
pub const MAX_OPERATIONS: usize = 128;

/// Most blocks that one transaction touches: up to three comparisons each.
pub(crate) const MAX_BLOCKS: usize = 40;

/// Most comparisons that a guard may add to a transaction.
pub const MAX_PRECONDITIONS: usize = 8;

/// A stored value does not parse and must be understood first (IPAM-12).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} does not parse: {reason}; correct or remove it")]
pub struct Unreadable {
    /// Path of the value.
    pub key: String,
    /// The parser's reason.
    pub reason: String,
}

/// Why no addresses were assigned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// The request makes no sense.
    #[error("{0}")]
    Request(RequestFault),
    /// The node has no Node resource.
    #[error(
        "node {node} has no Node resource in the datastore, so no pool can select it; is the node's agent \
         running, and is NODENAME the same there and here?"
    )]
    UnknownNode {
        /// Node of the request.
        node: NodeName,
    },
    /// A stored value that must be understood does not parse.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// A pool asked for by name or CIDR cannot be used.
    #[error("{}", explicit_text(.0))]
    Pool(Explicit),
    /// No pool serves this node and use.
    #[error("{0}")]
    NoPool(Box<NoPool>),
    /// Pools serve the node, but hold no address for it.
    #[error("{0}")]
    NoAddress(Box<NoAddress>),
}

/// Fault of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// No address is asked for.
    Nothing,
    /// More than `MAX_ADDRESSES`.
    TooMany(usize),
    /// The addresses would come from more than `MAX_BLOCKS` blocks.
    TooScattered(usize, usize),
    /// The handle is empty or holds a `/`.
    Handle(HandleId),
    /// The node's name is empty.
    Node,
}

impl fmt::Display for RequestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("the request asks for no address of either family"),
            Self::TooMany(count) => write!(
                f,
                "{count} addresses in one request are too many; ask for at most {MAX_ADDRESSES} at a time"
            ),
            Self::TooScattered(count, blocks) => write!(
                f,
                "{count} addresses would come from {blocks} blocks, and one transaction takes {MAX_BLOCKS}; \
                 ask for fewer at a time"
            ),
            Self::Handle(handle) => write!(
                f,
                "{:?} is no handle: it becomes part of an etcd key, so it must not be empty or hold a slash",
                handle.as_str()
            ),
            Self::Node => f.write_str("the request names no node"),
        }
    }
}

fn explicit_text(explicit: &Explicit) -> String {
    match explicit {
        Explicit::Unknown(text) => {
            format!("no IP pool has the name or CIDR {text:?}; see `caracal get ippools`")
        }
        Explicit::Family(pool, family) => {
            format!("pool {pool} is an {family} pool, but was asked for the other family")
        }
        Explicit::Refused(pool, refusal) => format!("pool {pool} was asked for, but {refusal}"),
    }
}

/// No pool serves a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoPool {
    /// Node of the request; empty for a load balancer.
    pub node: NodeName,
    /// Family that was asked for.
    pub family: Family,
    /// Pools of the family that were passed over.
    pub refused: Vec<(PoolName, PoolRefusal)>,
    /// Pools whose values do not parse: key and reason.
    pub unreadable: Vec<(String, String)>,
}

impl fmt::Display for NoPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, family) = (whom(&self.node), self.family);
        write!(f, "no {family} pool serves {node}: ")?;
        let mut reasons: Vec<String> = self
            .refused
            .iter()
            .map(|(pool, refusal)| format!("pool {pool} {refusal}"))
            .collect();
        let unreadable = self.unreadable.iter();
        reasons.extend(unreadable.map(|(key, reason)| format!("{key} does not parse ({reason})")));
        if reasons.is_empty() {
            write!(f, "there is no {family} pool; create one")
        } else {
            f.write_str(&reasons.join(", "))
        }
    }
}

/// Only requests for load balancers name no node.
fn whom(node: &NodeName) -> &str {
    match node.as_str() {
        "" => "the load balancer",
        node => node,
    }
}

/// Where the limit of blocks comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// Nobody set one.
    Default,
    /// `maxBlocksPerHost`.
    Config,
    /// `max_blocks` of the request.
    Request,
}

/// A pool that was searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolState {
    /// Name of the IPPool.
    pub name: PoolName,
    /// `spec.cidr` of the pool.
    pub cidr: Prefix,
}

/// Why no further block was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// All blocks are taken.
    Full,
    /// The node holds as many blocks as it may.
    Limit(LimitSource, u32),
    /// `auto_allocate_blocks` is false.
    Off,
}

/// Pools serve the node, but there is no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAddress {
    /// Node of the request; empty for a load balancer.
    pub node: NodeName,
    /// Family that was asked for.
    pub family: Family,
    /// How many were wanted.
    pub wanted: usize,
    /// How many could have been had.
    pub available: usize,
    /// The pools that were searched.
    pub pools: Vec<PoolState>,
    /// Blocks that the node holds in them.
    pub blocks: usize,
    /// Why there is no further block.
    pub growth: Growth,
    /// Most blocks that the node may hold.
    pub limit: u32,
    /// Strict affinity is on, so nothing is borrowed.
    pub strict: bool,
}

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (node, family) = (whom(&self.node), self.family);
        if self.wanted == 1 {
            write!(f, "no {family} address for {node}: ")?;
        } else {
            let (wanted, available) = (self.wanted, self.available);
            write!(
                f,
                "{wanted} {family} addresses wanted for {node}, {available} to be had: "
            )?;
        }
        match self.blocks {
            0 => f.write_str("it holds no block")?,
            1 => f.write_str("its only block is full")?,
            n => write!(f, "its {n} blocks are full")?,
        }
        let lending = if self.strict {
            "and borrowing is off (strict affinity)"
        } else {
            "and no other node's block has one to lend"
        };
        write!(f, ", {}, {lending}; {}", self.obstacle(), self.advice())
    }
}

impl NoAddress {
    /// Reason why the node gets no further block.
    fn obstacle(&self) -> String {
        let pools = self.pools.iter();
        let pools: Vec<_> = pools.map(|p| format!("{} ({})", p.name, p.cidr)).collect();
        let (noun, has) = match pools.len() {
            1 => ("pool", "has"),
            _ => ("pools", "have"),
        };
        let pools = format!("{noun} {}", pools.join(", "));
        match self.growth {
            Growth::Full => {
                let limit = self.limit;
                format!("{pools} {has} no free block (a node may hold at most {limit})")
            }
            Growth::Limit(_, limit) => {
                let s = if limit == 1 { "" } else { "s" };
                format!(
                    "the limit of {limit} block{s} per node keeps it from claiming more in {pools}"
                )
            }
            Growth::Off => {
                format!("{pools} must not be cut into new blocks (auto_allocate_blocks is false)")
            }
        }
    }

    fn advice(&self) -> &'static str {
        match (self.growth, self.strict) {
            (Growth::Limit(LimitSource::Request, _), _) => "ask with a higher limit, or add a pool",
            (Growth::Limit(LimitSource::Config, _), _) => "raise maxBlocksPerHost",
            (Growth::Limit(LimitSource::Default, _), _) => {
                "set maxBlocksPerHost to allow more than the default"
            }
            (Growth::Off, _) => "turn auto_allocate_blocks on, or give the node a block",
            (Growth::Full, true) => {
                "add a pool, release leaked addresses (`caracal ipam check`), or turn strict affinity off"
            }
            (Growth::Full, false) => {
                "add a pool, or release leaked addresses (`caracal ipam check`)"
            }
        }
    }
}

/// Why one explicit address was not assigned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignIpError {
    /// The request makes no sense.
    #[error("{0}")]
    Request(RequestFault),
    /// A stored value that must be understood does not parse.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// Outside of all pools.
    #[error(
        "{address} is in no IP pool; choose one inside a pool, or create a pool that covers it"
    )]
    /// The address lies in no pool.
    OutsidePools {
        /// Address that was asked for.
        address: IpAddr,
    },
    /// Nobody has its block, and the node may not claim one more.
    #[error(
        "{address} is in block {block}, which nobody has, and {node} holds as many blocks as maxBlocksPerHost allows \
         ({limit}); choose an address of one of its blocks, or raise the limit"
    )]
    BlockLimit {
        /// Address that was asked for.
        address: IpAddr,
        /// Block that would have to be claimed.
        block: Prefix,
        /// Node of the request.
        node: NodeName,
        /// Most blocks of a node.
        limit: u32,
    },
    /// Its pool cannot be used.
    #[error("{address} is in pool {pool}, which {refusal}")]
    Pool {
        /// Address that was asked for.
        address: IpAddr,
        /// Pool whose range covers it.
        pool: PoolName,
        /// Why the pool serves no such request.
        refusal: PoolRefusal,
    },
    /// Somebody holds it.
    #[error("{address} is already assigned{}", holder_text(.holder, .node))]
    Taken {
        /// Address that was asked for.
        address: IpAddr,
        /// The handle of the holder; `None` for an old allocation without one, or one that cools
        /// down.
        holder: Option<HandleId>,
        /// The node of the holder.
        node: Option<NodeName>,
    },
    /// It cools down.
    #[error(
        "{address} was released a short time ago and is kept back for {seconds} s (ipCooldownSeconds)"
    )]
    Cooling {
        /// Address that was asked for.
        address: IpAddr,
        /// `ipCooldownSeconds`.
        seconds: u32,
    },
    /// Its block belongs to another host, and strict affinity is on.
    #[error(
        "{address} is in block {block} of {owner}, and strict affinity is on, so {node} cannot use it; \
         choose an address of a free block or of a block of {node}"
    )]
    ForeignBlock {
        /// Address that was asked for.
        address: IpAddr,
        /// Block that covers it.
        block: Prefix,
        /// `host:NODE`, or what else stands there.
        owner: String,
        /// Node of the request.
        node: NodeName,
    },
}

fn holder_text(holder: &Option<HandleId>, node: &Option<NodeName>) -> String {
    let mut text = String::new();
    if let Some(handle) = holder {
        text.push_str(&format!(" under handle {handle}"));
    }
    if let Some(node) = node {
        text.push_str(&format!(" on {node}"));
    }
    text
}

/// Why addresses were not released.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// A stored value that must be understood does not parse.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// It is held through another handle (IPAM-8).
    #[error("{address} is not released: it is held through {}, not {expected}", .found.as_ref().map_or("no handle", |h| h.as_str()))]
    OtherHandle {
        /// Address that stays held.
        address: IpAddr,
        /// The handle asked for.
        expected: HandleId,
        /// Handle that holds it now; `None` for an allocation without one.
        found: Option<HandleId>,
    },
    /// It was released and assigned again (IPAM-8).
    #[error(
        "{address} is not released: it was assigned anew since (sequence number {found}, not {expected})"
    )]
    OtherSequence {
        /// Address that stays held.
        address: IpAddr,
        /// The number asked for.
        expected: u64,
        /// The number found.
        found: u64,
    },
}

/// Why a block was not given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// A stored value that must be understood does not parse.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The host's name is empty: whose block was meant is unknown.
    #[error("block {0} is not released: no host is named; say whose block it is")]
    NoHost(Prefix),
    /// Addresses are held in it, and it was to be released only when empty.
    #[error("block {block} is not released: {in_use} of its addresses are in use")]
    NotEmpty {
        /// Block that stays claimed.
        block: Prefix,
        /// Number of addresses that are held in it.
        in_use: usize,
    },
}
