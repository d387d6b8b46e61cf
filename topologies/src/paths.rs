//! Whether every node learns of every other: the sessions of all nodes as a graph, and the rules by
//! which BGP passes routes on (RFC 4271 §9.2, RFC 4456 §6) applied to it.
//!
//! Routers outside the cluster are not known: all of them together are taken for one that passes on
//! what it hears. Filters are not looked at. A session counts when both ends have it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use caracal_model::{Family, InsertEach, NodeName, Snapshot};

use crate::common::FAMILIES;
use crate::{PlanOptions, plan};

/// The sessions of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSessions {
    /// By node: its peers, in either family.
    pub nodes: BTreeMap<NodeName, BTreeMap<IpAddr, SessionEnd>>,
    addresses: BTreeMap<NodeName, Vec<IpAddr>>,
}

/// One end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEnd {
    /// The peer's name in the plan.
    pub name: String,
    /// The node at the other end; `None` when it is outside the cluster.
    pub node: Option<NodeName>,
    /// The AS is the same at both ends.
    pub internal: bool,
    /// The peer is our client.
    pub client: bool,
}

/// A node that does not learn of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MissingPath {
    /// Node that does not learn the route.
    pub node: NodeName,
    /// Of whom.
    pub of: NodeName,
    /// In which family.
    pub family: Family,
}

/// Plans every node.
#[must_use]
pub fn cluster_sessions(snapshot: &Snapshot, options: &PlanOptions) -> ClusterSessions {
    let mut owners = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for (name, node) in &snapshot.nodes {
        let own: Vec<IpAddr> = FAMILIES
            .iter()
            .filter_map(|f| node.spec.address(*f))
            .collect();
        for address in &own {
            owners.entry(*address).or_insert_with(|| name.clone());
        }
        addresses.insert(name.clone(), own);
    }
    let nodes = snapshot.nodes.keys().map(|name| {
        let config = plan(snapshot, name, options).config;
        let peers = config.peers.iter().map(|(peer_name, peer)| {
            let session = SessionEnd {
                name: peer_name.to_string(),
                node: owners.get(&peer.address).cloned(),
                internal: peer.local_as.unwrap_or(config.local_as) == peer.remote_as,
                client: peer.client_of.is_some(),
            };
            (peer.address, session)
        });
        (name.clone(), peers.insert_each())
    });
    ClusterSessions {
        nodes: nodes.insert_each(),
        addresses,
    }
}

/// How a node learned a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Learned {
    Own,
    External,
    Client,
    Internal,
}

impl ClusterSessions {
    /// Number of sessions of the cluster: those between nodes once, those with the outside each.
    #[must_use]
    pub fn count(&self) -> usize {
        let all = self.nodes.values().flat_map(BTreeMap::values);
        let (inside, outside): (Vec<_>, Vec<_>) = all.partition(|s| s.node.is_some());
        inside.len().div_ceil(2) + outside.len()
    }

    /// The pairs of nodes without a path, of the families in which both have an address.
    #[must_use]
    pub fn missing(&self, snapshot: &Snapshot) -> Vec<MissingPath> {
        let mut missing = Vec::new();
        for family in FAMILIES {
            let has = |name: &&NodeName| {
                snapshot
                    .nodes
                    .get(*name)
                    .is_some_and(|n| n.spec.address(family).is_some())
            };
            let links = self.links(family);
            let members: Vec<&NodeName> = self.nodes.keys().filter(has).collect();
            for origin in &members {
                let reached = reach(&links, origin);
                for node in &members {
                    if node != origin && !reached.contains(*node) {
                        missing.push(MissingPath {
                            node: (*node).clone(),
                            of: (*origin).clone(),
                            family,
                        });
                    }
                }
            }
        }
        missing.sort_unstable();
        missing
    }

    /// The sessions that both ends have, by node.
    fn links(&self, family: Family) -> Links<'_> {
        let mut links = Links::default();
        for (name, peers) in &self.nodes {
            let of_family = peers.iter().filter(|(a, _)| Family::of(**a) == family);
            for session in of_family.map(|(_, session)| session) {
                let Some(peer) = &session.node else {
                    links.outside.push(name);
                    continue;
                };
                // The other end's view of us decides how it learns.
                let Some(back) = self.end(peer, name, family) else {
                    continue;
                };
                links.of.entry(name).or_default().push(Link {
                    to: peer,
                    internal: session.internal,
                    client: session.client,
                    learns: match (back.internal, back.client) {
                        (false, _) => Learned::External,
                        (true, true) => Learned::Client,
                        (true, false) => Learned::Internal,
                    },
                });
            }
        }
        links
    }

    /// Session end at `from` towards `to`.
    fn end(&self, from: &NodeName, to: &NodeName, family: Family) -> Option<&SessionEnd> {
        let peers = self.nodes.get(from)?;
        let address = self.address_of(to, family)?;
        peers.get(&address)
    }

    fn address_of(&self, node: &NodeName, family: Family) -> Option<IpAddr> {
        let mut own = self.addresses.get(node)?.iter();
        own.find(|address| Family::of(**address) == family).copied()
    }
}

struct Link<'a> {
    to: &'a NodeName,
    internal: bool,
    client: bool,
    learns: Learned,
}

#[derive(Default)]
struct Links<'a> {
    of: BTreeMap<&'a NodeName, Vec<Link<'a>>>,
    /// Nodes with a session to a router outside.
    outside: Vec<&'a NodeName>,
}

/// The nodes that learn a route of `origin`.
fn reach<'a>(links: &Links<'a>, origin: &'a NodeName) -> BTreeSet<&'a NodeName> {
    let mut seen = BTreeSet::from([(origin, Learned::Own)]);
    let mut queue = VecDeque::from([(origin, Learned::Own)]);
    let mut outside_knows = false;
    let mut learn = |node: &'a NodeName, how: Learned, queue: &mut VecDeque<_>| {
        if seen.insert((node, how)) {
            queue.push_back((node, how));
        }
    };
    while let Some((node, how)) = queue.pop_front() {
        for link in links.of.get(node).into_iter().flatten() {
            // RFC 4456 §6: what a non-client said goes to clients only. RFC 4271 §9.2: without
            // reflection, not to internal peers at all.
            let passes = how != Learned::Internal || link.client || !link.internal;
            if passes {
                learn(link.to, link.learns, &mut queue);
            }
        }
        if !outside_knows && links.outside.contains(&node) {
            outside_knows = true;
            for peer in &links.outside {
                learn(peer, Learned::External, &mut queue);
            }
        }
    }
    seen.into_iter().map(|(node, _)| node).insert_each()
}
