//! The other side: what a router outside the cluster, such as a top-of-rack switch, needs in order
//! to peer with the cluster's nodes.
//!
//! Nothing is guessed: the nodes are planned, and the sessions that they have with the router's
//! addresses are turned around.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_bgp::{Asn, PeerConfig};
use caracal_model::{Family, InsertEach, NodeName, Prefix, Snapshot};
use serde::Serialize;

use crate::common::{BGP_PORT, FAMILIES};
use crate::session::is_quotable;
use crate::{PlanOptions, plan};

/// Variables of the templates of the sets `frr` and `bird2-tor`. Fields are added, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Router {
    /// The router's address.
    pub address: String,
    /// The BGP Identifier; null when the address is IPv6 and the router is to choose.
    pub router_id: Option<String>,
    /// The router's AS.
    pub local_as: u32,
    /// The cluster's nodes, by name.
    pub neighbors: Vec<Neighbor>,
    /// The family of the address, with the neighbors again; one entry.
    pub families: Vec<RouterFamily>,
}

/// A node, seen from the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbor {
    /// Name of the node.
    pub node: String,
    /// Name of a protocol for it: letters, digits, underscores.
    pub symbol: String,
    /// Address that the node peers from.
    pub address: String,
    /// Its port, when it is not 179.
    pub port: Option<u16>,
    /// AS number of the node.
    pub remote_as: u32,
    /// Its AS is not the router's.
    pub external: bool,
    /// Internal: the router reflects, or the nodes would not learn of each other.
    pub client: bool,
    /// Hops of TTL security; null = off.
    pub ttl_security: Option<u8>,
    /// In seconds.
    pub hold_time: u64,
    /// In seconds.
    pub keepalive: u64,
    /// TCP MD5.
    pub password: Option<String>,
    /// There is a password, and it may not be shown.
    pub password_hidden: bool,
}

/// One address family of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouterFamily {
    /// `ipv4` or `ipv6`.
    pub name: &'static str,
    /// Length of a single address.
    pub host_len: u8,
    /// FRR's word before `prefix-list`: `ip` or `ipv6`.
    pub list_command: &'static str,
    /// FRR's word after `match`.
    pub match_command: &'static str,
    /// Ranges that the cluster announces.
    pub accepted: Vec<AcceptedRange>,
    /// The nodes.
    pub neighbors: Vec<Neighbor>,
}

/// A range that the cluster announces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AcceptedRange {
    /// Number of the rule in the router's prefix list: 5, 10, …
    pub sequence: usize,
    /// Range of a pool, or a service's, as `PREFIX/LENGTH`.
    pub range: String,
    /// It can hold longer ones.
    pub longer: bool,
}

/// Why there is nothing to render for a router.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouterError {
    /// No node peers with it.
    #[error(
        "no node of the cluster peers with {address}; known peers outside the cluster: {known}"
    )]
    Unknown {
        /// Address that was asked for.
        address: IpAddr,
        /// Known peers outside the cluster.
        known: String,
    },
    /// The password has no form in the router's language.
    #[error(
        "the password of {node}'s session with {address} has a quotation mark or a control character, which routers cannot read"
    )]
    Password {
        /// Address of the router.
        address: IpAddr,
        /// Node with that session.
        node: NodeName,
    },
    /// The nodes disagree about its AS.
    #[error(
        "node {node} takes {address} for AS {other}, node {first} for AS {asn}; a router has one AS"
    )]
    TwoNumbers {
        /// Address of the router.
        address: IpAddr,
        /// Node that peers with it as `asn`.
        first: NodeName,
        /// AS number of the router by `first`.
        asn: Asn,
        /// Node that peers with it as `other`.
        node: NodeName,
        /// AS number of the router by `node`.
        other: Asn,
    },
}

/// Turns the cluster's sessions with an address around.
///
/// # Errors
/// [`RouterError`] when there are none, or they contradict each other.
pub fn router(
    snapshot: &Snapshot,
    address: IpAddr,
    options: &PlanOptions,
) -> Result<Router, RouterError> {
    let mut neighbors = Vec::new();
    let mut asn: Option<(NodeName, Asn)> = None;
    let mut known = BTreeSet::new();
    for name in snapshot.nodes.keys() {
        let config = plan(snapshot, name, options).config;
        let port = config.listen.map_or(BGP_PORT, |listen| listen.port);
        for peer in config.peers.values() {
            if !is_node(snapshot, peer.address) {
                known.insert(peer.address);
            }
            let own = peer.source.or_else(|| own_address(snapshot, name, address));
            let (true, Some(own)) = (peer.address == address, own) else {
                continue;
            };
            match &asn {
                Some((first, asn)) if *asn != peer.remote_as => {
                    return Err(RouterError::TwoNumbers {
                        address,
                        first: first.clone(),
                        asn: *asn,
                        node: name.clone(),
                        other: peer.remote_as,
                    });
                }
                _ => asn = Some((name.clone(), peer.remote_as)),
            }
            if !is_quotable(peer.password.as_ref()) {
                let node = name.clone();
                return Err(RouterError::Password { address, node });
            }
            let node_as = peer.local_as.unwrap_or(config.local_as);
            neighbors.push(neighbor(name, own, port, node_as, peer, options));
        }
    }
    let Some((_, asn)) = asn else {
        let known: Vec<_> = known.iter().map(ToString::to_string).collect();
        let known = if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        };
        return Err(RouterError::Unknown { address, known });
    };
    let family = Family::of(address);
    let v4 = family == Family::Ipv4;
    Ok(Router {
        address: address.to_string(),
        router_id: v4.then(|| address.to_string()),
        local_as: asn.0,
        families: vec![RouterFamily {
            name: family.as_str(),
            host_len: family.bits(),
            list_command: if v4 { "ip" } else { "ipv6" },
            match_command: if v4 { "ip" } else { "ipv6" },
            accepted: accepted(snapshot, family),
            neighbors: neighbors.clone(),
        }],
        neighbors,
    })
}

fn is_node(snapshot: &Snapshot, address: IpAddr) -> bool {
    let mut nodes = snapshot.nodes.values();
    nodes.any(|node| {
        FAMILIES
            .iter()
            .any(|f| node.spec.address(*f) == Some(address))
    })
}

fn own_address(snapshot: &Snapshot, name: &NodeName, peer: IpAddr) -> Option<IpAddr> {
    snapshot.nodes.get(name)?.spec.address(Family::of(peer))
}

fn neighbor(
    name: &NodeName,
    own: IpAddr,
    port: u16,
    node_as: Asn,
    peer: &PeerConfig,
    options: &PlanOptions,
) -> Neighbor {
    let external = node_as != peer.remote_as;
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let node = name.to_string();
    let password = peer.password.as_ref().map(|p| p.0.clone());
    let hold_time = peer.hold_time.as_secs();
    Neighbor {
        symbol: format!("node_{}", node.chars().map(safe).collect::<String>()),
        node,
        address: own.to_string(),
        port: Some(port).filter(|port| *port != BGP_PORT),
        remote_as: node_as.0,
        external,
        client: !external,
        ttl_security: peer.ttl_security,
        hold_time,
        keepalive: hold_time / 3,
        password_hidden: password.is_some() && !options.show_passwords,
        password: password.filter(|_| options.show_passwords),
    }
}

/// Pools that are exported, and service ranges.
fn accepted(snapshot: &Snapshot, family: Family) -> Vec<AcceptedRange> {
    let pools = snapshot.pools.values().map(|pool| &pool.spec);
    let mut ranges: BTreeSet<Prefix> = pools
        .filter(|spec| !spec.disable_bgp_export)
        .map(|spec| spec.prefix())
        .insert_each();
    if let Some(configuration) = snapshot.bgp_default() {
        let services = configuration.spec.service_ranges();
        ranges.extend(services.map(|(_, range)| range));
    }
    let of_family = ranges.iter().filter(|range| range.family() == family);
    of_family
        .enumerate()
        .map(|(index, range)| AcceptedRange {
            sequence: 5 * (index + 1),
            range: range.to_string(),
            longer: range.len() < family.bits(),
        })
        .collect()
}
