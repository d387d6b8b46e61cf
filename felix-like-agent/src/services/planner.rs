//! The plan of all services, kept by Service: a change costs what depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use caracal_model::{
    DocumentKind, InsertEach, KubernetesDocument, KubernetesService, NodeAddresses, Prefix,
    Problem, ProblemCode, ServiceAge, SharedMap, Snapshot, Versioned, outermost,
};

use super::address::ServiceAddress;
use super::claims::{Claims, Name};
use super::document::{self, ServiceDocument, Slice, is_name};
use super::endpoints::Place;
use super::entry::{Here, ServiceEntry, entries};
use super::health::{HealthPorts, ServiceHealth, health};
use super::refusals::{Judge, Refusals};
use super::reserved::Reserved;
use super::settings::ServiceNode;
use crate::problem::problem;
use crate::settings::{ServiceLoops, Settings};
use crate::transport::Transport;

type Documents = SharedMap<(DocumentKind, String, String), Versioned<KubernetesDocument>>;

/// What services depend on beside themselves and their endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Surroundings {
    here: Here,
    /// Ranges of pods: all pools.
    pub(super) pods: BTreeSet<Prefix>,
    /// Ranges of cluster addresses: what is sent to an unused one goes nowhere.
    pub(super) ranges: BTreeSet<Prefix>,
    /// Ranges that hold what is no Service's, with the reason: nothing is dropped there.
    refused: BTreeMap<Prefix, String>,
    /// Endpoints of the datastore: whatever the table holds, it leaves them alone.
    pub(super) spared: BTreeSet<SocketAddr>,
    /// Ports of this node that are never translated, and those that nobody is sent to.
    pub(super) kept: BTreeSet<(Transport, u16)>,
    pub(super) guarded: BTreeSet<(Transport, u16)>,
}

/// Label of the zone of a node.
const ZONE: &str = "topology.kubernetes.io/zone";

impl Surroundings {
    fn from_snapshot(snapshot: &Snapshot, own: &ServiceNode, nodes: &NodeAddresses) -> Self {
        let node = snapshot.nodes.get(&own.name);
        let mut addresses = BTreeSet::new();
        if let Some(bgp) = node.and_then(|node| node.spec.bgp.as_ref()) {
            addresses.extend(bgp.ipv4_address.map(|cidr| cidr.address));
            addresses.extend(bgp.ipv6_address.map(|cidr| cidr.address));
        }
        let named = node.into_iter().flat_map(|node| &node.spec.orch_refs);
        let mut named = named.filter(|r| r.orchestrator == "k8s" && !r.node_name.is_empty());
        let place = Place {
            node: named
                .next()
                .map_or_else(|| own.name.to_string(), |r| r.node_name.clone()),
            zone: node.and_then(|node| node.metadata.labels.get(ZONE).cloned()),
        };
        let pools = snapshot.pools.values().map(|pool| pool.spec.prefix());
        let defaults = Settings::default();
        let (settings, _) = Settings::resolve(&defaults, snapshot, &own.name, &own.overrides);
        // What is not dropped is left to the rules of `serviceLoopPrevention`.
        let is_dropped = settings.service_loops == ServiceLoops::Drop;
        let ranges = snapshot.bgp_default().filter(|_| is_dropped).into_iter();
        let ranges = ranges.flat_map(|c| &c.spec.service_cluster_ips);
        let ranges = outermost(ranges.filter_map(|entry| entry.cidr.parse().ok()));
        let reserved = Reserved::new(snapshot, own, &addresses, settings.vxlan_port);
        let refused = |range: &Prefix| Some((*range, reserved.refuses_range(nodes, range)?));
        let refused: BTreeMap<Prefix, String> = ranges.iter().filter_map(refused).insert_each();
        let listening = reserved.listeners.iter();
        let listening = listening.map(|at| (Transport::Tcp, at.port()));
        Self {
            spared: reserved.spared(&api_addresses(snapshot)),
            kept: reserved
                .guarded
                .iter()
                .copied()
                .chain(listening)
                .insert_each(),
            guarded: reserved.guarded.clone(),
            here: Here {
                place,
                node_ports: own.node_port_addresses(&addresses),
                addresses,
                reset_tcp: own.settings.reset_tcp,
                reserved,
            },
            pods: outermost(pools),
            ranges: ranges
                .into_iter()
                .filter(|range| !refused.contains_key(range))
                .insert_each(),
            refused,
        }
    }
}

/// The cluster addresses of Kubernetes' API.
fn api_addresses(snapshot: &Snapshot) -> BTreeSet<IpAddr> {
    let [namespace, name] = ["default", "kubernetes"].map(str::to_owned);
    let found = snapshot
        .documents
        .get(&(DocumentKind::Service, namespace, name));
    let scratch = &mut Refusals::default();
    let service = found.and_then(|document| document::service(document.service()?, scratch));
    service.map_or_else(BTreeSet::new, |service| {
        service.cluster.into_iter().insert_each()
    })
}

/// Reads a Service; its name is part of names in the table.
fn read(
    (namespace, name): &Name,
    found: &KubernetesService,
    refusals: &mut Refusals,
) -> Option<ServiceDocument> {
    let mut wrong = Refusals::default();
    let service = document::service(found, &mut wrong)?;
    let bad = [namespace, name].into_iter().find(|text| !is_name(text));
    if let Some(bad) = bad {
        refusals.add(format!("{bad:?} is no name; nothing of it is translated"));
        return None;
    }
    refusals.extend(wrong);
    Some(service)
}

/// The plan, between two snapshots.
#[derive(Debug, Default)]
pub(super) struct ServicePlanner {
    documents: Documents,
    pub(super) surroundings: Surroundings,
    /// Addresses of all nodes.
    nodes: NodeAddresses,
    /// What is refused, by Service.
    refusals: BTreeMap<Name, Refusals>,
    /// Names of the slices of a Service.
    slices: BTreeMap<Name, BTreeSet<String>>,
    /// The Service of each slice, by namespace and name of the slice.
    belongs: BTreeMap<Name, Name>,
    /// Addresses of each Service.
    planned: BTreeMap<Name, BTreeSet<ServiceAddress>>,
    /// Entries of all Services, by address.
    claims: BTreeMap<ServiceAddress, Claims>,
    /// Addresses that several Services have.
    contested: BTreeSet<ServiceAddress>,
    /// What load balancers are told.
    health: HealthPorts,
}

impl ServicePlanner {
    /// Takes in a snapshot; the addresses whose entry may be another one now.
    pub(super) fn follow(
        &mut self,
        snapshot: &Snapshot,
        own: &ServiceNode,
    ) -> BTreeSet<ServiceAddress> {
        let moved = self.nodes.follow(&snapshot.nodes);
        let surroundings = Surroundings::from_snapshot(snapshot, own, &self.nodes);
        let changed = snapshot.documents.changed_since(&self.documents);
        self.documents = snapshot.documents.clone();
        let mut concerned = BTreeSet::new();
        for (kind, namespace, name) in changed {
            match kind {
                DocumentKind::Service => _ = concerned.insert((namespace, name)),
                DocumentKind::EndpointSlice => concerned.extend(self.moved(namespace, name)),
                DocumentKind::Endpoints => {}
            }
        }
        if surroundings.here != self.surroundings.here {
            let of = |(kind, namespace, name): &(DocumentKind, String, String)| {
                let is_service = *kind == DocumentKind::Service;
                is_service.then(|| (namespace.clone(), name.clone()))
            };
            concerned.extend(self.documents.keys().filter_map(of));
        }
        self.surroundings = surroundings;
        concerned.extend(self.concerned_by(&moved));
        let planned = concerned.into_iter().flat_map(|name| self.plan(name));
        planned.collect::<Vec<_>>().into_iter().insert_each()
    }

    /// The entry of an address.
    pub(super) fn entry(&self, address: &ServiceAddress) -> Option<&Arc<ServiceEntry>> {
        self.claims.get(address)?.first()
    }

    /// All entries, by address.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ServiceAddress, &Arc<ServiceEntry>)> {
        let first = |(address, claims)| Some((address, Claims::first(claims)?));
        self.claims.iter().filter_map(first)
    }

    /// Addresses that several Services have, and what is refused.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let contested = |address: &ServiceAddress| self.claims.get(address)?.problem(address);
        let ranges = self.surroundings.refused.iter().map(|(range, reason)| {
            let subject = format!("serviceClusterIPs {range}");
            let reason = format!("{reason}; what is sent to unused addresses is not dropped");
            problem(ProblemCode::ServicesRefused, &subject, reason)
        });
        let refused = |((namespace, name), refusals): (&Name, &Refusals)| {
            refusals.problem(&format!("{namespace}/{name}"))
        };
        let contested = self.contested.iter().filter_map(contested);
        let contested = contested.chain(self.health.problems());
        let refused = self.refusals.iter().filter_map(refused);
        ranges.chain(contested).chain(refused).collect()
    }

    /// Services for which it counts that nodes have got or lost these addresses.
    fn concerned_by(&self, moved: &BTreeSet<IpAddr>) -> BTreeSet<Name> {
        if moved.is_empty() {
            return BTreeSet::new();
        }
        let by_port = self.refusals.iter().filter(|(_, r)| r.by_nodes);
        let mut concerned: BTreeSet<Name> = by_port.map(|(name, _)| name.clone()).insert_each();
        for address in moved {
            let first = ServiceAddress::first_of(*address);
            let from_there = self.claims.range(first..);
            let of_it = from_there.take_while(|(at, _)| at.address == *address);
            concerned.extend(of_it.flat_map(|(_, claims)| claims.names().cloned()));
        }
        concerned
    }

    /// What load balancers are told, by where they ask.
    pub(super) fn health(&self) -> BTreeMap<SocketAddr, ServiceHealth> {
        let at = |(port, health): (u16, &ServiceHealth)| {
            let health = health.clone();
            let addresses = self.surroundings.here.node_ports.iter();
            addresses.map(move |address| ((*address, port).into(), health.clone()))
        };
        self.health.in_force().flat_map(at).insert_each()
    }

    /// A slice has changed: the Services that it belonged to and belongs to.
    fn moved(&mut self, namespace: String, name: String) -> Vec<Name> {
        let key = (DocumentKind::EndpointSlice, namespace.clone(), name.clone());
        let service = self
            .documents
            .get(&key)
            .and_then(|slice| document::service_of(slice.slice()?));
        let now = service.map(|service| (namespace.clone(), service.to_owned()));
        let slice = (namespace, name.clone());
        let before = match &now {
            Some(now) => self.belongs.insert(slice, now.clone()),
            None => self.belongs.remove(&slice),
        };
        if let Some(before) = &before
            && let Some(slices) = self.slices.get_mut(before)
        {
            slices.remove(&name);
            if slices.is_empty() {
                self.slices.remove(before);
            }
        }
        if let Some(now) = &now {
            self.slices.entry(now.clone()).or_default().insert(name);
        }
        before.into_iter().chain(now).collect()
    }

    /// Plans a Service anew; the addresses that it had and has.
    fn plan(&mut self, name: Name) -> BTreeSet<ServiceAddress> {
        let key = (DocumentKind::Service, name.0.clone(), name.1.clone());
        let found = self.documents.get(&key).and_then(|found| found.service());
        let age = found.map_or_else(ServiceAge::default, ServiceAge::of);
        let mut refusals = Refusals::default();
        let service = found.and_then(|found| read(&name, found, &mut refusals));
        let mut wrong = Refusals::default();
        let slices: Vec<Slice> = self
            .slices
            .get(&name)
            .into_iter()
            .flatten()
            .filter_map(|slice| {
                let key = (DocumentKind::EndpointSlice, name.0.clone(), slice.clone());
                document::slice(slice, self.documents.get(&key)?.slice()?, &mut wrong)
            })
            .collect();
        let place = &self.surroundings.here.place;
        let found = service.as_ref();
        let found = found.and_then(|s| health((&name.0, &name.1), s, &slices, place));
        self.health.set(&name, &age, found);
        let text = format!("{}/{}", name.0, name.1);
        let judge = Judge {
            reserved: &self.surroundings.here.reserved,
            nodes: &self.nodes,
        };
        if service.is_some() {
            refusals.extend(wrong);
        }
        let entries = service.map_or_else(BTreeMap::new, |service| {
            let here = &self.surroundings.here;
            entries(&text, (&service, &slices), here, (&judge, &mut refusals))
        });
        match refusals.is_empty() {
            true => _ = self.refusals.remove(&name),
            false => _ = self.refusals.insert(name.clone(), refusals),
        }
        let addresses: BTreeSet<ServiceAddress> = entries.keys().copied().insert_each();
        let before = match addresses.is_empty() {
            true => self.planned.remove(&name),
            false => self.planned.insert(name.clone(), addresses.clone()),
        };
        let before = before.unwrap_or_default();
        for address in before.difference(&addresses) {
            self.claim(*address, &name, None);
        }
        for (address, entry) in entries {
            self.claim(address, &name, Some((age.clone(), Arc::new(entry))));
        }
        &before | &addresses
    }

    fn claim(
        &mut self,
        address: ServiceAddress,
        name: &Name,
        claim: Option<(ServiceAge, Arc<ServiceEntry>)>,
    ) {
        let claims = self.claims.entry(address).or_default();
        claims.set(name, claim);
        match claims.len() {
            0 => _ = self.claims.remove(&address),
            1 => _ = self.contested.remove(&address),
            _ => _ = self.contested.insert(address),
        }
        if !self.claims.contains_key(&address) {
            self.contested.remove(&address);
        }
    }
}
