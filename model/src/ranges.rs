//! Ranges and addresses of different roles that lie over each other: pools, ranges of services,
//! nodes, their tunnels, routers, the datastore. Each role is right alone; together they take each
//! other's traffic. This is the one place that compares them: `status`, `audit` and `apply` ask it.
//!
//! No conflict, though one covers the other: a pool for load balancers alone, as long as no
//! pod has an address of it, and the ranges of services in the BGPConfiguration; a pool inside the
//! machines' subnet that holds no address of a machine; a datastore behind an address of a Service,
//! or in a pod; a BGPPeer that is a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::code::ProblemCode;
use crate::keys::Key;
use crate::net::Prefix;
use crate::resource::Kind;
use crate::snapshot::{Problem, Snapshot};

/// Whose an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder<'a> {
    Node(&'a str),
    Tunnel(&'a str),
    Router(&'a str),
    Datastore,
}

impl std::fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => write!(f, "of node {name}"),
            Self::Tunnel(name) => write!(f, "of a tunnel of node {name}"),
            Self::Router(peer) => write!(f, "of the router in BGPPeer {peer}"),
            Self::Datastore => f.write_str("of the datastore"),
        }
    }
}

type Held<'a> = BTreeMap<IpAddr, BTreeSet<Holder<'a>>>;

/// Pairs of roles of which one takes what the other has, sorted by subject. `datastore`: the
/// addresses by which it is reached; `cluster_services`: the ranges of the cluster's Services,
/// where they are known. The cost grows with nodes and with pools, not with their product.
#[must_use]
pub fn range_conflicts(
    snapshot: &Snapshot,
    datastore: &BTreeSet<IpAddr>,
    cluster_services: &[Prefix],
) -> Vec<Problem> {
    let held = held(snapshot, datastore);
    let services = snapshot.bgp_default().into_iter();
    let services: Vec<_> = services.flat_map(|c| c.spec.service_ranges()).collect();
    let mut found = Vec::new();
    for (name, pool) in snapshot.pools.iter() {
        let range = pool.spec.prefix();
        let subject = Key::resource(Kind::IpPool, name.as_str()).to_path();
        if pool.spec.is_load_balancer_only() {
            if snapshot.has_workload_in(&range) {
                found.push(problem(&subject, format!(
                    "it is for load balancers alone (allowedUses) and pods have addresses of its range {range}: they stay reached, and it lends pods no new ones; add the use Workload, or move the pods"
                )));
            }
            // A Service gets addresses of it; the way to the datastore may be a Service.
            let taken = within(&held, &range, |_, holder| holder != Holder::Datastore);
            found.extend(taken.map(|taken| problem(&subject, format!(
                "its range {range} for load balancers lies over {taken}: a Service can get that address, and traffic to it goes astray; take the machines out of the range"
            ))));
            continue;
        }
        for (field, services) in &services {
            if range.overlaps(services) {
                found.push(problem(&subject, format!(
                    "its range {range} and {services} of {field} in BGPConfiguration default overlap: an address there can be a pod's and a Service's; give one of them another range"
                )));
            }
        }
        let taken = within(&held, &range, |address, holder| match holder {
            Holder::Node(_) => true,
            // Addresses of tunnels come from pools; a datastore or a router may be a pod.
            Holder::Tunnel(_) => false,
            Holder::Router(_) | Holder::Datastore => !is_workload(snapshot, address),
        });
        found.extend(taken.map(|taken| problem(&subject, format!(
            "its range {range} lies over {taken}: a pod can get that address, and traffic to it is taken for a pod's; give the pool a range that no machine is in"
        ))));
    }
    let subject = Key::resource(Kind::BgpConfiguration, "default").to_path();
    for (field, range) in &services {
        // In a cluster the way to the datastore is often a Service.
        let taken = within(&held, range, |_, holder| holder != Holder::Datastore);
        found.extend(taken.map(|taken| problem(&subject, format!(
            "{field} {range} lies over {taken}: it is announced for Services, and traffic to that address goes astray; take the machines out of the range"
        ))));
    }
    found.extend(over_cluster_services(snapshot, cluster_services));
    found.extend(overlapping_pools(snapshot));
    found.extend(shared(snapshot, &held));
    found.sort_unstable();
    found
}

/// Pools over the ranges of the cluster's Services. Where the BGPConfiguration has such a range,
/// too, a pool of pods is compared with that one; a pool for load balancers is not.
fn over_cluster_services(snapshot: &Snapshot, cluster: &[Prefix]) -> Vec<Problem> {
    let announced = snapshot.bgp_default().into_iter();
    let announced = announced.flat_map(|c| c.spec.service_ranges());
    let announced: Vec<Prefix> = announced.map(|(_, range)| range).collect();
    let mut found = Vec::new();
    for (name, pool) in snapshot.pools.iter() {
        let range = pool.spec.prefix();
        let subject = Key::resource(Kind::IpPool, name.as_str()).to_path();
        let of_pods = !pool.spec.is_load_balancer_only();
        for services in cluster.iter().filter(|services| range.overlaps(services)) {
            if of_pods && announced.iter().any(|wide| wide.covers(services)) {
                continue;
            }
            let user = if of_pods {
                "a pod's"
            } else {
                "a load balancer's"
            };
            found.push(problem(&subject, format!(
                "its range {range} and {services} of the cluster's Services (serviceSubnet in the ConfigMap kube-system/kubeadm-config) overlap: an address there can be {user} and the cluster address of a Service; give the pool another range"
            )));
        }
    }
    found
}

/// Pools inside others: an address belongs to one pool, and which one is not said.
fn overlapping_pools(snapshot: &Snapshot) -> Vec<Problem> {
    let pools = snapshot.pools.iter();
    let mut ranges: Vec<_> = pools
        .map(|(name, pool)| (pool.spec.prefix(), name.as_str()))
        .collect();
    // A wider one before those inside it.
    ranges.sort_unstable();
    let mut found = Vec::new();
    let mut around: Option<(Prefix, &str)> = None;
    for (range, name) in ranges {
        match around {
            Some((wide, other)) if wide.overlaps(&range) => {
                let subject = Key::resource(Kind::IpPool, name).to_path();
                found.push(problem(&subject, format!(
                    "its range {range} and {wide} of IPPool {other} overlap: an address belongs to one pool; give one of them another range, or delete it"
                )));
            }
            _ => around = Some((range, name)),
        }
    }
    found
}

/// What a range lies over, where `counts` says so: the first address with its holder, and how many
/// more there are.
fn within(
    held: &Held<'_>,
    range: &Prefix,
    counts: impl Fn(IpAddr, Holder<'_>) -> bool,
) -> Option<String> {
    let inside = held.range(range.address()..);
    let inside = inside.take_while(|(address, _)| range.contains(**address));
    let mut found = inside.filter_map(|(address, holders)| {
        let holder = holders.iter().find(|holder| counts(*address, **holder))?;
        Some((*address, *holder))
    });
    let (address, holder) = found.next()?;
    Some(match found.count() {
        0 => format!("the address {address} {holder}"),
        more => format!("the address {address} {holder} and {more} more"),
    })
}

/// Addresses of tunnels that are also something else's, or another node's tunnel's.
fn shared<'a>(snapshot: &'a Snapshot, held: &'a Held<'a>) -> impl Iterator<Item = Problem> + 'a {
    let several = held.iter().filter(|(_, holders)| holders.len() > 1);
    several.filter_map(|(address, holders)| {
        let tunnels = holders.iter().filter_map(|holder| match holder {
            Holder::Tunnel(name) => Some(*name),
            _ => None,
        });
        // The one to which IPAM gave the address is right.
        let block = snapshot.block_of(&Prefix::host(*address));
        let user = block.and_then(|block| block.user(*address));
        let tunnel = tunnels.min_by_key(|name| user.is_some_and(|user| user.as_str() == *name))?;
        let other = holders.iter().find(|h| **h != Holder::Tunnel(tunnel))?;
        let subject = Key::resource(Kind::Node, tunnel).to_path();
        let remedy = match other {
            Holder::Tunnel(_) => "correct the address in the Node, which another one has",
            _ => "release it with `caracal ipam release`, the node takes another one",
        };
        Some(problem(
            &subject,
            format!("its tunnel has the address {address} {other}; {remedy}"),
        ))
    })
}

fn problem(subject: &str, reason: String) -> Problem {
    Problem {
        code: ProblemCode::DatastoreRanges,
        subject: subject.to_owned(),
        reason,
    }
}

/// A pod has the address, or may have: IPAM has given it.
fn is_workload(snapshot: &Snapshot, address: IpAddr) -> bool {
    let host = Prefix::host(address);
    let block = snapshot.block_of(&host);
    block.is_some_and(|block| block.is_allocated(address))
        || snapshot.endpoint_networks().any(|network| *network == host)
}

fn held<'a>(snapshot: &'a Snapshot, datastore: &BTreeSet<IpAddr>) -> Held<'a> {
    let mut held = Held::new();
    let mut put = |address: IpAddr, holder| {
        held.entry(address).or_default().insert(holder);
    };
    let mut of_nodes = BTreeSet::new();
    for (name, node) in snapshot.nodes.iter() {
        for address in node.spec.machine_addresses() {
            of_nodes.insert(address);
            put(address, Holder::Node(name.as_str()));
        }
        for address in node.spec.tunnel_addresses() {
            put(address, Holder::Tunnel(name.as_str()));
        }
    }
    for (name, peer) in snapshot.bgp_peers.iter() {
        let address = peer.spec.peer_address().map(|(address, _)| address);
        if let Some(address) = address.filter(|a| !of_nodes.contains(a)) {
            put(address, Holder::Router(name.as_ref()));
        }
    }
    for address in datastore.iter().filter(|a| !of_nodes.contains(a)) {
        put(*address, Holder::Datastore);
    }
    held
}

#[cfg(test)]
mod tests;
