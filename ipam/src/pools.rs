//! Which pools a request may use, and why not the others.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use caracal_model::{AllowedUse, Family, IpPool, PoolName, Prefix, Selector};

/// Addresses that are never handed out unasked (IPAM-9).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations(Vec<Prefix>);

impl Reservations {
    /// True for a reserved address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|cidr| cidr.contains(address))
    }

    /// The reservation that covers a whole block.
    #[must_use]
    pub fn covering(&self, block: &Prefix) -> Option<&Prefix> {
        self.0.iter().find(|cidr| cidr.covers(block))
    }

    /// How many addresses of a block or pool are reserved. Reservations may overlap, blocks are
    /// small.
    #[must_use]
    pub(crate) fn count_in(&self, block: &Prefix) -> u128 {
        let inside = || self.0.iter().filter(|cidr| block.covers(cidr));
        if self.covering(block).is_some() {
            return block.size();
        }
        // Two prefixes overlap only when one covers the other: count those that no other covers.
        let mut outermost: Vec<&Prefix> = inside()
            .filter(|cidr| !inside().any(|other| other != *cidr && other.covers(cidr)))
            .collect();
        outermost.sort_unstable();
        outermost.dedup();
        outermost.into_iter().map(Prefix::size).sum()
    }
}

impl Extend<Prefix> for Reservations {
    fn extend<I: IntoIterator<Item = Prefix>>(&mut self, cidrs: I) {
        self.0.extend(cidrs);
    }
}

/// A pool that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub name: PoolName,
    pub cidr: Prefix,
    /// Prefix length of its blocks.
    pub block_len: u8,
}

impl Candidate {
    pub(crate) fn new(name: &PoolName, pool: &IpPool) -> Self {
        Self {
            name: name.clone(),
            cidr: pool.spec.prefix(),
            block_len: pool.spec.block_len(),
        }
    }
}

/// Why a pool is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRefusal {
    /// `spec.disabled`.
    Disabled,
    /// A deletion is under way.
    Deleting,
    /// The condition `Allocatable` is False.
    NotAllocatable,
    /// `allowedUses` does not contain this use.
    Use(AllowedUse),
    /// `assignmentMode` is not Automatic and the pool was not asked for.
    Manual,
    /// `nodeSelector` does not match the node's labels.
    Node,
    /// `namespaceSelector` does not match, or there is no namespace to match.
    Namespace,
}

impl fmt::Display for PoolRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("is disabled"),
            Self::Deleting => f.write_str("is being deleted"),
            Self::NotAllocatable => f.write_str("has the condition Allocatable=False"),
            Self::Use(usage) => write!(f, "does not allow the use {usage:?}"),
            Self::Manual => f.write_str("is assigned on request only (assignmentMode)"),
            Self::Node => f.write_str("does not select this node"),
            Self::Namespace => f.write_str("does not select this namespace"),
        }
    }
}

/// Node and namespace that the pools are wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    /// Labels of the node.
    pub node: &'a BTreeMap<String, String>,
    /// Labels of the namespace.
    pub namespace: Option<&'a BTreeMap<String, String>>,
    /// The intended use.
    pub usage: AllowedUse,
}

/// A pool that is usable whoever asks: neither disabled nor on its way out.
///
/// # Errors
/// The reason why not.
pub(crate) fn usable(pool: &IpPool) -> Result<(), PoolRefusal> {
    if pool.spec.disabled {
        return Err(PoolRefusal::Disabled);
    }
    if pool.metadata.deletion_timestamp.is_some() {
        return Err(PoolRefusal::Deleting);
    }
    if is_unallocatable(pool) {
        return Err(PoolRefusal::NotAllocatable);
    }
    Ok(())
}

fn is_unallocatable(pool: &IpPool) -> bool {
    let conditions = pool.status.as_ref().and_then(|s| s.get("conditions"));
    conditions
        .and_then(serde_json::Value::as_array)
        .into_iter()
        .flatten()
        .any(|c| {
            let is = |field: &str, text: &str| c.get(field).is_some_and(|v| v == text);
            is("type", "Allocatable") && is("status", "False")
        })
}

/// True when the pool's node selector matches.
#[must_use]
pub(crate) fn selects_node(pool: &IpPool, labels: &BTreeMap<String, String>) -> bool {
    Selector::parse(&pool.spec.node_selector).is_ok_and(|s| s.matches(labels))
}

/// True when the pool chooses its nodes.
pub(crate) fn chooses_nodes(pool: &IpPool) -> bool {
    !matches!(Selector::parse(&pool.spec.node_selector), Ok(Selector::All))
}

/// True when the pool surely does not select the node: a selector that does not parse takes nothing
/// away.
pub(crate) fn turns_away(pool: &IpPool, labels: &BTreeMap<String, String>) -> bool {
    Selector::parse(&pool.spec.node_selector).is_ok_and(|s| !s.matches(labels))
}

/// A request without a namespace gets pools for all namespaces only.
pub(crate) fn selects_namespace(pool: &IpPool, labels: Option<&BTreeMap<String, String>>) -> bool {
    match (Selector::parse(&pool.spec.namespace_selector), labels) {
        (Ok(Selector::All), _) => true,
        (Ok(selector), Some(labels)) => selector.matches(labels),
        (Ok(_), None) | (Err(_), _) => false,
    }
}

/// Whether a pool that nobody asked for by name serves the asker.
///
/// # Errors
/// The reason why not.
pub(crate) fn serves(pool: &IpPool, asker: &Asker<'_>) -> Result<(), PoolRefusal> {
    usable(pool)?;
    if !pool.spec.allows(asker.usage) {
        return Err(PoolRefusal::Use(asker.usage));
    }
    if !pool.spec.is_automatic() {
        return Err(PoolRefusal::Manual);
    }
    if !selects_node(pool, asker.node) {
        return Err(PoolRefusal::Node);
    }
    if !selects_namespace(pool, asker.namespace) {
        return Err(PoolRefusal::Namespace);
    }
    Ok(())
}

/// Why explicitly requested pools cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Explicit {
    /// No pool has this name or CIDR.
    Unknown(String),
    /// The pool is of the other family.
    Family(PoolName, Family),
    /// The pool is there but refused.
    Refused(PoolName, PoolRefusal),
}

/// The pools asked for, by name or CIDR, sorted by name. Selectors and `assignmentMode` do not
/// matter then.
///
/// # Errors
/// [`Explicit`] with the first one that cannot be used.
pub(crate) fn explicit(
    pools: &BTreeMap<PoolName, IpPool>,
    wanted: &[String],
    family: Family,
    usage: AllowedUse,
) -> Result<Vec<Candidate>, Explicit> {
    let mut list = Vec::new();
    for text in wanted {
        let cidr = text.contains('/').then(|| text.parse::<Prefix>().ok());
        let found = pools.iter().find(|(name, pool)| match cidr {
            Some(cidr) => Some(pool.spec.prefix()) == cidr,
            None => name.as_str() == text,
        });
        let (name, pool) = found.ok_or_else(|| Explicit::Unknown(text.clone()))?;
        let pool_family = pool.spec.prefix().family();
        if pool_family != family {
            return Err(Explicit::Family(name.clone(), pool_family));
        }
        let refused = |refusal| Explicit::Refused(name.clone(), refusal);
        usable(pool).map_err(refused)?;
        if !pool.spec.allows(usage) {
            return Err(refused(PoolRefusal::Use(usage)));
        }
        list.push(Candidate::new(name, pool));
    }
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list.dedup();
    Ok(list)
}

/// The pools that serve the asker, sorted by name, and the others with their reasons.
#[must_use]
pub(crate) fn automatic(
    pools: &BTreeMap<PoolName, IpPool>,
    family: Family,
    asker: &Asker<'_>,
) -> (Vec<Candidate>, Vec<(PoolName, PoolRefusal)>) {
    let (mut candidates, mut refused) = (Vec::new(), Vec::new());
    for (name, pool) in pools {
        if pool.spec.prefix().family() != family {
            continue;
        }
        match serves(pool, asker) {
            Ok(()) => candidates.push(Candidate::new(name, pool)),
            Err(refusal) => refused.push((name.clone(), refusal)),
        }
    }
    (candidates, refused)
}

#[cfg(test)]
mod tests;
