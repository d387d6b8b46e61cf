//! Whose a node address is. A Node claims the addresses that it names; two nodes with one address
//! cannot both route, so the second is refused, but not by a claim that nobody stands behind
//! (decision 0176):
//!
//! * what this node's own Node names, while this machine has another address and that one on no
//!   interface, is withdrawn before anything else is said: machines that swapped their addresses
//!   while they were off, two or a ring of them, make way for each other;
//! * the claim of a node that is off, by its liveness lease, to an address that this machine has on
//!   an interface, is withdrawn from that Node.

use std::net::IpAddr;
use std::time::Duration;

use caracal_datastore::Store;
use caracal_ipam::Lease;
use caracal_model::{
    Cidr, Family, KeyRange, Kind, Node, NodeBgp, NodeName, Snapshot, Timestamp, kind_prefix,
};

use super::{Addresses, RegisterError, read_node, update_node};

/// Time for which a process that has ended in order is taken to be coming back.
const COMES_BACK: Duration = Duration::from_secs(120);

/// Another node's claim to one of our addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Conflict {
    other: NodeName,
    address: IpAddr,
}

impl From<Conflict> for RegisterError {
    fn from(Conflict { other, address }: Conflict) -> Self {
        Self::AddressConflict { other, address }
    }
}

/// Makes sure that no other node claims these addresses. `there` are those of this machine's
/// interfaces.
///
/// # Errors
/// [`RegisterError::AddressConflict`] when one does; this node's own claims are in nobody's way
/// then.
pub(super) async fn settle<S: Store>(
    store: &S,
    me: &NodeName,
    addresses: Addresses,
    there: &[IpAddr],
    now: Timestamp,
) -> Result<(), RegisterError> {
    let found = conflicts(store, me, addresses).await?;
    if found.is_empty() {
        return Ok(());
    }
    withdraw_own(store, me, addresses, there, now).await?;
    for conflict in found {
        let ours = there.contains(&conflict.address);
        if !ours || !is_off(store, &conflict.other, now).await? {
            return Err(conflict.into());
        }
        let Conflict { other, address } = conflict;
        if read_node(store, &other).await?.is_some() {
            update_node(store, &other, now, |node| withdraw(node, address)).await?;
        }
        tracing::warn!(
            %other, %address,
            "the address is this machine's, and the node whose Node names it is off: taken from that Node"
        );
    }
    Ok(())
}

async fn conflicts<S: Store>(
    store: &S,
    me: &NodeName,
    addresses: Addresses,
) -> Result<Vec<Conflict>, RegisterError> {
    let answer = store
        .read(&[KeyRange::Prefix(kind_prefix(Kind::Node))])
        .await?;
    let v4 = addresses.v4.map(|cidr| cidr.address.to_string());
    let may_have_ours = |value: &[u8]| {
        // An IPv6 address has many spellings, and an IPv4 address one.
        let value = std::str::from_utf8(value).unwrap_or_default();
        addresses.v6.is_some() || v4.as_ref().is_some_and(|v4| value.contains(v4))
    };
    let mut snapshot = Snapshot::default();
    let entries = answer.ranges.into_iter().flatten();
    for entry in entries.filter(|entry| may_have_ours(&entry.value)) {
        snapshot.apply(&entry.key, Some(&entry.value), entry.mod_revision);
    }
    let mut found = Vec::new();
    for (name, node) in snapshot.nodes.iter().filter(|(name, _)| *name != me) {
        for ours in [addresses.v4, addresses.v6].into_iter().flatten() {
            if node.spec.address(Family::of(ours.address)) == Some(ours.address) {
                let (other, address) = (name.clone(), ours.address);
                found.push(Conflict { other, address });
            }
        }
    }
    Ok(found)
}

/// Withdraws what this node's Node names and this machine has on no interface, where another
/// address takes its place.
async fn withdraw_own<S: Store>(
    store: &S,
    me: &NodeName,
    addresses: Addresses,
    there: &[IpAddr],
    now: Timestamp,
) -> Result<(), RegisterError> {
    let Some((node, _)) = read_node(store, me).await? else {
        return Ok(());
    };
    let wanted = [(Family::Ipv4, addresses.v4), (Family::Ipv6, addresses.v6)];
    for (family, wanted) in wanted {
        let claimed = node.spec.address(family);
        let stale = claimed.filter(|claimed| {
            wanted.is_some_and(|wanted| wanted.address != *claimed) && !there.contains(claimed)
        });
        if let Some(address) = stale {
            update_node(store, me, now, |node| withdraw(node, address)).await?;
            tracing::warn!(%address, "this machine has the address no more: its claim is withdrawn");
        }
    }
    Ok(())
}

/// Takes an address out of a Node.
fn withdraw(node: &mut Node, address: IpAddr) {
    let spec = &mut node.spec;
    let is_it = |cidr: Option<Cidr>| cidr.is_some_and(|cidr| cidr.address == address);
    if let Some(bgp) = &mut spec.bgp {
        if is_it(bgp.ipv4_address) {
            bgp.ipv4_address = None;
        }
        if is_it(bgp.ipv6_address) {
            bgp.ipv6_address = None;
        }
    }
    // Calico's readers want `bgp` absent rather than empty.
    spec.bgp = spec.bgp.take().filter(|bgp| *bgp != NodeBgp::default());
    spec.addresses
        .retain(|entry| entry.kind != "CalicoNodeIP" || !is_it(entry.address.parse().ok()));
}

/// True when a node's lease has run out, or its process ended in order a while ago. One without a
/// lease may live: a Calico node never had one.
async fn is_off<S: Store>(
    store: &S,
    node: &NodeName,
    now: Timestamp,
) -> Result<bool, RegisterError> {
    let path = Lease::path(node);
    let answer = store.read(&[KeyRange::Key(path)]).await?;
    let stored = answer.ranges.into_iter().flatten().next();
    let Some(lease) = stored.and_then(|stored| Lease::read(&stored)) else {
        return Ok(false);
    };
    let age = Timestamp::parse_rfc3339(&lease.renewed).map(|then| now.since(then));
    Ok(match lease.stopped {
        true => age.is_some_and(|age| age >= COMES_BACK),
        false => age.is_some() && lease.alive(now).is_none(),
    })
}

#[cfg(test)]
mod tests;
