//! Addresses of Kubernetes services that a node announces: ClusterIP, ExternalIP and LoadBalancer,
//! with `externalTrafficPolicy: Local`.
//!
//! Services and their endpoints are not part of Calico's data in etcd; they come as documents of
//! the Kubernetes API, which somebody places in the datastore (`caracal services`) or in resource
//! files. Nothing here asks an API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{
    BgpConfigurationSpec, CidrEntry, DocumentKind, Family, InsertEach, KubernetesDocument,
    KubernetesService, NodeAddresses, NodeName, Prefix, Problem, ProblemCode, ReservedRanges,
    SharedMap, Snapshot, Versioned,
};

use self::contest::{Claimed, Claims};
pub(crate) use self::planned::{PlannedServices, ServicesDiffer};

mod contest;
mod planned;

/// Label of nodes that announce no service addresses.
pub(crate) const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Namespace and name.
type Name = (String, String);
type Documents = SharedMap<(DocumentKind, String, String), Versioned<KubernetesDocument>>;

/// Services, and where their endpoints are written. The endpoints themselves are many, and are read
/// where they are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Services {
    services: BTreeMap<Name, Service>,
    /// Addresses that are nodes' and no Service's.
    nodes: NodeAddresses,
    /// Services with the names of their slices.
    slices: BTreeSet<(Name, String)>,
    claims: Claims,
    /// Addresses that are none.
    faults: BTreeMap<Name, BTreeSet<Problem>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Service {
    local: bool,
    /// `spec.ipFamilies`, else those of the cluster addresses; empty = unknown, and every endpoint
    /// counts.
    families: BTreeSet<Family>,
    cluster: BTreeSet<IpAddr>,
    external: BTreeSet<IpAddr>,
    load_balancer: BTreeSet<IpAddr>,
    claimed: Claimed,
}

/// Service routes that a node announces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRoutes {
    /// Ranges and single addresses that are announced.
    pub announced: BTreeSet<Prefix>,
    /// Routes that never go to the kernel, where kube-proxy serves the addresses.
    pub rejected: BTreeSet<Prefix>,
}

/// The kind of a document that is read here.
#[must_use]
pub(crate) fn document_kind(api_version: Option<&str>, kind: &str) -> Option<DocumentKind> {
    let known = |k: &DocumentKind| k.names() == (api_version.unwrap_or_default(), kind);
    DocumentKind::ALL.into_iter().find(known)
}

impl Services {
    /// The services of a snapshot, and what is wrong with them.
    #[must_use]
    pub fn from_snapshot(snapshot: &Snapshot) -> (Self, Vec<Problem>) {
        let mut services = Self::default();
        services.follow(&Documents::default(), snapshot);
        let faults = services.faults.values().flatten().cloned().collect();
        (services, faults)
    }

    /// Follows a change of the documents and of nodes. Answers with the Services that may be
    /// announced otherwise: those that differ, by themselves or by their endpoints, and those that
    /// lose or get an address because of them, or of a node.
    fn follow(&mut self, was: &Documents, snapshot: &Snapshot) -> BTreeSet<Name> {
        let is = &snapshot.documents;
        let (mut concerned, mut contested) = (BTreeSet::new(), BTreeSet::new());
        for key in is.changed_since(was) {
            let [before, now] = [was, is].map(|documents| Some(&**documents.get(&key)?));
            let (kind, namespace, name) = key;
            match kind {
                DocumentKind::Service => {
                    let document = now.and_then(KubernetesDocument::service);
                    let name = (namespace, name);
                    self.put(&name, document, &mut contested);
                    concerned.insert(name);
                }
                DocumentKind::Endpoints => drop(concerned.insert((namespace, name))),
                DocumentKind::EndpointSlice => {
                    let of = |document: Option<&KubernetesDocument>| {
                        let service = document?.slice()?.service_name()?;
                        Some((namespace.clone(), service.to_owned()))
                    };
                    if let Some(service) = of(before) {
                        self.slices.remove(&(service.clone(), name.clone()));
                        concerned.insert(service);
                    }
                    if let Some(service) = of(now) {
                        self.slices.insert((service.clone(), name));
                        concerned.insert(service);
                    }
                }
            }
        }
        for address in contested {
            concerned.extend(self.claims.settle(address, &self.services));
        }
        for address in self.nodes.follow(&snapshot.nodes) {
            concerned.extend(self.claims.holders(address).cloned());
        }
        concerned
    }

    /// Sets or removes a Service. Addresses to which it claims something else than before are
    /// contested. An address that is none is passed over, and noted.
    fn put(
        &mut self,
        name: &Name,
        document: Option<&KubernetesService>,
        contested: &mut BTreeSet<IpAddr>,
    ) {
        let mut faults = Vec::new();
        let service = document.and_then(|document| service(document, &mut faults));
        let (namespace, service_name) = name;
        let problem = |reason| Problem {
            code: ProblemCode::ServicesAddress,
            subject: format!("Service {namespace}/{service_name}"),
            reason,
        };
        match faults.is_empty() {
            true => drop(self.faults.remove(name)),
            false => {
                let faults = faults.into_iter().map(problem).insert_each();
                self.faults.insert(name.clone(), faults);
            }
        }
        let before = self.services.remove(name);
        let both = (before.as_ref(), service.as_ref());
        self.claims.put(name, both, contested);
        self.services.extend(service.map(|s| (name.clone(), s)));
    }

    /// Service routes that a node announces, but for what it knows of its datastore.
    #[must_use]
    pub fn routes(&self, snapshot: &Snapshot, node: &NodeName) -> ServiceRoutes {
        let Some(rules) = Rules::new(snapshot, node, &BTreeSet::new()) else {
            return ServiceRoutes::default();
        };
        let mut rejected = rules.rejected();
        let mut announced = rules.announced();
        for name in self.services.keys() {
            let (addresses, _) = self.addresses(name, &rules, &snapshot.documents);
            announced.extend(&addresses);
            rejected.extend(addresses);
        }
        if rules.excluded {
            announced.clear();
        }
        ServiceRoutes {
            announced,
            rejected,
        }
    }

    /// Addresses of a Service that a node announces besides the ranges, and those that it would
    /// announce if they were not another Service's, or a node's, or no Service's at all.
    fn addresses(
        &self,
        name: &Name,
        rules: &Rules,
        documents: &Documents,
    ) -> (BTreeSet<Prefix>, BTreeSet<Problem>) {
        let (mut announced, mut lost) = (BTreeSet::new(), BTreeSet::new());
        let Some(service) = self.services.get(name) else {
            return (announced, lost);
        };
        let Rules {
            cluster,
            external,
            balanced,
            aggregated,
            node,
            ..
        } = rules;
        let nodes = || self.nodes(name, &service.families, documents);
        let here = service.local && nodes().any(|at| at == Some(node));
        let mut announce = |address: &IpAddr, is_cluster: bool| {
            let refused = rules.refuses(name, (*address, is_cluster), &self.nodes);
            match refused.or_else(|| self.claims.problem(name, *address)) {
                Some(problem) => _ = lost.insert(problem),
                None => _ = announced.insert(Prefix::host(*address)),
            }
        };
        for address in &service.cluster {
            if cluster.any() && here || !service.local && cluster.is_single(*address) {
                announce(address, true);
            }
        }
        for address in &service.external {
            if external.covers(*address) && here || !service.local && external.is_single(*address) {
                announce(address, false);
            }
        }
        for address in &service.load_balancer {
            let wanted = if service.local {
                here && balanced.covers(*address)
            } else if *aggregated {
                balanced.is_single(*address)
            } else {
                balanced.is_single(*address)
                    || balanced.covers(*address) && nodes().next().is_some()
            };
            if wanted {
                announce(address, false);
            }
        }
        (announced, lost)
    }

    /// The nodes that run ready endpoints of a service, of addresses of these families.
    fn nodes<'a>(
        &self,
        (namespace, name): &Name,
        families: &BTreeSet<Family>,
        documents: &'a Documents,
    ) -> impl Iterator<Item = Option<&'a str>> {
        let counts = |family: Option<Family>| {
            families.is_empty() || family.is_none_or(|family| families.contains(&family))
        };
        let of = |kind, name: &String| documents.get(&(kind, namespace.clone(), name.clone()));
        let endpoints = match of(DocumentKind::Endpoints, name).map(|document| &**document) {
            Some(KubernetesDocument::Endpoints(endpoints)) => Some(endpoints),
            _ => None,
        };
        let addresses = endpoints.into_iter().flat_map(|e| e.addresses());
        let addresses = addresses.filter(move |at| counts(family_of(at.ip.as_deref())));
        let addresses = addresses.map(|at| at.node_name.as_deref());
        let first = ((namespace.clone(), name.clone()), String::new());
        let slices = self.slices.range(first..);
        let slices = slices.take_while(move |((at, of), _)| (at, of) == (namespace, name));
        let slices =
            slices.filter_map(move |(_, slice)| of(DocumentKind::EndpointSlice, slice)?.slice());
        let slices = slices.filter(move |slice| match slice.address_type.as_deref() {
            Some("IPv4") => counts(Some(Family::Ipv4)),
            Some("IPv6") => counts(Some(Family::Ipv6)),
            // Names (FQDN) are no addresses of a service's.
            Some(_) => false,
            None => true,
        });
        // Readiness that is not said counts as ready, as the API has it.
        let ready = slices.flat_map(|slice| &slice.endpoints);
        let ready = ready.filter(|endpoint| endpoint.conditions.ready != Some(false));
        addresses.chain(ready.map(|endpoint| endpoint.node_name.as_deref()))
    }
}

/// What a node's announcement of services follows from besides the services.
#[derive(Debug)]
struct Rules {
    cluster: Ranges,
    external: Ranges,
    balanced: Ranges,
    /// Ranges of load balancers are announced, not their addresses.
    aggregated: bool,
    /// The orchestrator's name for the node, which endpoints carry.
    node: String,
    /// The node announces none.
    excluded: bool,
    /// Ranges in which no Service has an address.
    reserved: ReservedRanges,
    /// Addresses by which the node reaches its datastore.
    datastore: BTreeSet<IpAddr>,
}

impl Rules {
    /// `None` where the cluster announces none: most clusters, and they may have thousands.
    fn new(snapshot: &Snapshot, node: &NodeName, datastore: &BTreeSet<IpAddr>) -> Option<Self> {
        let spec: &BgpConfigurationSpec = &snapshot.bgp_default()?.spec;
        let lists = [
            &spec.service_cluster_ips,
            &spec.service_external_ips,
            &spec.service_load_balancer_ips,
        ];
        if lists.iter().all(|list| list.is_empty()) {
            return None;
        }
        let [cluster, external, balanced] = lists.map(|list| Ranges::new(list));
        let excluded = snapshot.nodes.get(node).is_some_and(|node| {
            node.metadata.labels.get(EXCLUDE_LABEL).map(String::as_str) == Some("true")
        });
        Some(Self {
            cluster,
            external,
            balanced,
            aggregated: spec.announces_load_balancer_ranges(),
            node: orchestrators_name(snapshot, node),
            excluded,
            reserved: ReservedRanges::from_snapshot(snapshot),
            datastore: datastore.clone(),
        })
    }

    /// The problem of an address that is announced for no Service: who follows the route would find
    /// nobody who translates it, or not the machine that has it (decision 0190). The way to the
    /// datastore may be a cluster address, which nobody chooses.
    fn refuses(
        &self,
        name: &Name,
        (address, is_cluster): (IpAddr, bool),
        nodes: &NodeAddresses,
    ) -> Option<Problem> {
        let taken = [
            (nodes.has(address), "a node"),
            (
                !is_cluster && self.datastore.contains(&address),
                "the datastore",
            ),
        ];
        let taken = taken
            .into_iter()
            .find_map(|(is, whose)| is.then_some(whose));
        let taken = taken.map(|whose| format!("it is the address of {whose}"));
        let reason = self.reserved.refuses(address).or(taken)?;
        Some(Problem {
            code: ProblemCode::ServicesRefused,
            subject: contest::subject(name, address),
            reason: format!("it is not announced for this Service: {reason}"),
        })
    }

    /// The ranges that are announced where nothing is excluded.
    fn announced(&self) -> BTreeSet<Prefix> {
        let balanced = Some(&self.balanced).filter(|_| self.aggregated);
        let lists = [&self.cluster, &self.external].into_iter().chain(balanced);
        lists.flat_map(|list| &list.wide).copied().insert_each()
    }

    fn rejected(&self) -> BTreeSet<Prefix> {
        let lists = [&self.cluster, &self.external, &self.balanced];
        lists
            .iter()
            .flat_map(|list| &list.wide)
            .copied()
            .insert_each()
    }
}

impl Service {
    /// All its addresses.
    fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        let outer = self.external.iter().chain(&self.load_balancer);
        self.cluster.iter().chain(outer)
    }
}

/// The orchestrator's name for a node, which endpoints carry.
fn orchestrators_name(snapshot: &Snapshot, node: &NodeName) -> String {
    let references = snapshot.nodes.get(node).map(|n| &n.spec.orch_refs);
    references
        .into_iter()
        .flatten()
        .find(|r| r.orchestrator == "k8s" && !r.node_name.is_empty())
        .map_or_else(|| node.to_string(), |r| r.node_name.clone())
}

/// The family of an endpoint's address; `None` = a document that does not say.
fn family_of(ip: Option<&str>) -> Option<Family> {
    let address: IpAddr = ip?.parse().ok()?;
    Some(Family::of(address))
}

/// `None` for a service that has no address to announce: ExternalName, and a headless one
/// (`clusterIP: None`), whose other addresses nobody serves: kube-proxy passes it over.
fn service(document: &KubernetesService, faults: &mut Vec<String>) -> Option<Service> {
    let spec = &document.spec;
    let kind = spec.service_type.as_deref().unwrap_or("ClusterIP");
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        return None;
    }
    let cluster = || spec.cluster_ips.iter().chain(&spec.cluster_ip);
    if cluster().any(|address| &**address == "None") {
        return None;
    }
    let mut addresses = |field: &str, found: &mut dyn Iterator<Item = &Box<str>>| {
        let mut set = BTreeSet::new();
        for text in found {
            match text.parse::<IpAddr>() {
                Ok(address) => {
                    set.insert(address);
                }
                Err(_) if text.is_empty() => {}
                Err(_) => faults.push(format!(
                    "{field}: {text:?} is no address; it is passed over"
                )),
            }
        }
        set
    };
    let cluster = addresses("spec.clusterIPs", &mut cluster());
    let mut families: BTreeSet<Family> = spec
        .ip_families
        .iter()
        .filter_map(|family| match &**family {
            "IPv4" => Some(Family::Ipv4),
            "IPv6" => Some(Family::Ipv6),
            _ => None,
        })
        .insert_each();
    if families.is_empty() {
        families.extend(cluster.iter().map(|address| Family::of(*address)));
    }
    let ingress = document.ingress().iter();
    let mut service = Service {
        local: spec.external_traffic_policy.as_deref() == Some("Local"),
        families,
        cluster,
        external: addresses("spec.externalIPs", &mut spec.external_ips.iter()),
        load_balancer: addresses(
            "status.loadBalancer.ingress",
            &mut ingress.filter_map(|ingress| ingress.ip.as_ref()),
        ),
        claimed: Claimed::default(),
    };
    service.claimed = Claimed::of(document, &service);
    Some(service)
}

/// A list of ranges, those of one address apart.
#[derive(Debug)]
struct Ranges {
    wide: BTreeSet<Prefix>,
    single: BTreeSet<Prefix>,
}

impl Ranges {
    /// Entries that are no range were reported with the settings.
    fn new(entries: &[CidrEntry]) -> Self {
        let ranges = entries.iter().filter_map(|e| e.cidr.parse::<Prefix>().ok());
        let (single, wide) = ranges.partition(|range| range.len() == range.family().bits());
        Self { wide, single }
    }

    fn any(&self) -> bool {
        !self.wide.is_empty() || !self.single.is_empty()
    }

    fn is_single(&self, address: IpAddr) -> bool {
        self.single.contains(&Prefix::host(address))
    }

    fn covers(&self, address: IpAddr) -> bool {
        let host = Prefix::host(address);
        self.wide
            .iter()
            .chain(&self.single)
            .any(|r| r.covers(&host))
    }
}
