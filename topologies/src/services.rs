//! Addresses of Kubernetes services that a node announces: ClusterIP, ExternalIP and LoadBalancer,
//! with `externalTrafficPolicy: Local`.
//!
//! Services and their endpoints are not part of Calico's data in etcd; they come as documents of
//! the Kubernetes API, which somebody places in the datastore (`caracal services`) or in resource
//! files. Nothing here asks an API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{
    BgpConfigurationSpec, CidrEntry, DocumentKind, Family, KubernetesDocument, KubernetesService,
    NodeName, Prefix, Problem, ProblemCode, Snapshot,
};

use self::contest::{Claimed, Losers};
use crate::Problems;
use crate::view::NodeView;

mod contest;

/// Label of nodes that announce no service addresses.
pub(crate) const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

type Name = (String, String);

/// Services and their endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    services: BTreeMap<Name, Service>,
    endpoints: BTreeMap<Name, Endpoints>,
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

/// Ready endpoints of a service: the nodes that run them, by the family of their addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Endpoints(BTreeMap<AddressType, BTreeSet<Option<String>>>);

/// Address type of an endpoint slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressType {
    Ip(Family),
    /// A document that does not say.
    Unsaid,
}

/// Service routes that a node announces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRoutes {
    /// Ranges and single addresses that are announced.
    pub announced: BTreeSet<Prefix>,
    /// Routes that never go to the kernel, where kube-proxy serves the addresses.
    pub rejected: BTreeSet<Prefix>,
    /// Addresses that are not announced, because they are another Service's.
    pub lost: Vec<Problem>,
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
        let documents = snapshot.documents.iter();
        let problems = documents
            .flat_map(|((_, namespace, name), document)| services.add(namespace, name, document))
            .collect();
        (services, problems)
    }

    /// Adds a document. Returns what is wrong with it: an address that is none is passed over.
    fn add(&mut self, namespace: &str, name: &str, document: &KubernetesDocument) -> Vec<Problem> {
        let key = |name: &str| (namespace.to_owned(), name.to_owned());
        match document {
            KubernetesDocument::Service(document) => {
                let mut faults = Vec::new();
                let service = service(document, &mut faults);
                self.services.extend(service.map(|s| (key(name), s)));
                let problem = |reason| Problem {
                    code: ProblemCode::ServicesAddress,
                    subject: format!("Service {namespace}/{name}"),
                    reason,
                };
                return faults.into_iter().map(problem).collect();
            }
            KubernetesDocument::Endpoints(document) => {
                let endpoints = self.endpoints.entry(key(name)).or_default();
                for address in document.addresses() {
                    let family = family_of(address.ip.as_deref());
                    endpoints.add(family, address.node_name.as_deref());
                }
            }
            KubernetesDocument::EndpointSlice(document) => {
                let Some(service) = document.service_name() else {
                    return Vec::new();
                };
                let addresses = match document.address_type.as_deref() {
                    Some("IPv4") => AddressType::Ip(Family::Ipv4),
                    Some("IPv6") => AddressType::Ip(Family::Ipv6),
                    // Names (FQDN) are no addresses of a service's.
                    Some(_) => return Vec::new(),
                    None => AddressType::Unsaid,
                };
                let endpoints = self.endpoints.entry(key(service)).or_default();
                for endpoint in &document.endpoints {
                    // Readiness that is not said counts as ready, as the API has it.
                    if endpoint.conditions.ready != Some(false) {
                        endpoints.add(addresses, endpoint.node_name.as_deref());
                    }
                }
            }
        }
        Vec::new()
    }

    /// Service routes that a node announces.
    #[must_use]
    pub fn routes(&self, snapshot: &Snapshot, node: &NodeName) -> ServiceRoutes {
        let Some(configuration) = snapshot.bgp_default() else {
            return ServiceRoutes::default();
        };
        let spec = &configuration.spec;
        let aggregated = spec.announces_load_balancer_ranges();
        let cluster = Ranges::new(&spec.service_cluster_ips);
        let external = Ranges::new(&spec.service_external_ips);
        let balanced = Ranges::new(&spec.service_load_balancer_ips);
        let mut routes = ServiceRoutes::default();
        for (ranges, announced) in [(&cluster, true), (&external, true), (&balanced, aggregated)] {
            routes.rejected.extend(&ranges.wide);
            if announced {
                routes.announced.extend(&ranges.wide);
            }
        }
        let known = orchestrators_name(snapshot, node);
        let losers = Losers::new(&self.services);
        for (name, service) in &self.services {
            let endpoints = self.endpoints.get(name);
            let nodes = || {
                endpoints
                    .into_iter()
                    .flat_map(|e| e.in_families(&service.families))
            };
            let here = nodes().any(|node| node == Some(&known));
            let anywhere = nodes().next().is_some();
            let mut announce = |address: &IpAddr| match losers.problem(name, *address) {
                Some(problem) => routes.lost.push(problem),
                None => _ = routes.announced.insert(Prefix::host(*address)),
            };
            let by_policy = service.local && here;
            for address in &service.cluster {
                if cluster.any() && by_policy || !service.local && cluster.is_single(*address) {
                    announce(address);
                }
            }
            for address in &service.external {
                if external.covers(*address) && by_policy
                    || !service.local && external.is_single(*address)
                {
                    announce(address);
                }
            }
            for address in &service.load_balancer {
                let wanted = if service.local {
                    here && balanced.covers(*address)
                } else if aggregated {
                    balanced.is_single(*address)
                } else {
                    anywhere && balanced.covers(*address) || balanced.is_single(*address)
                };
                if wanted {
                    announce(address);
                }
            }
        }
        routes.rejected.extend(&routes.announced);
        let excluded = snapshot.nodes.get(node).is_some_and(|node| {
            node.metadata.labels.get(EXCLUDE_LABEL).map(String::as_str) == Some("true")
        });
        if excluded {
            routes.announced.clear();
        }
        routes
    }
}

/// Service routes that a node announces; faults of the documents are noted.
pub(crate) fn routes(view: &NodeView<'_>, problems: &mut Problems) -> ServiceRoutes {
    let announces = |spec: &BgpConfigurationSpec| {
        let lists = [
            &spec.service_cluster_ips,
            &spec.service_external_ips,
            &spec.service_load_balancer_ips,
        ];
        lists.iter().any(|list| !list.is_empty())
    };
    // Most clusters announce none, and may have thousands.
    if !view
        .snapshot
        .bgp_default()
        .is_some_and(|c| announces(&c.spec))
    {
        return ServiceRoutes::default();
    }
    let (services, faults) = Services::from_snapshot(view.snapshot);
    let routes = services.routes(view.snapshot, view.name);
    for problem in faults.into_iter().chain(routes.lost.iter().cloned()) {
        problems.note(problem.code, problem.subject, problem.reason);
    }
    routes
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

impl Endpoints {
    fn add(&mut self, addresses: AddressType, node: Option<&str>) {
        let node = node.map(str::to_owned);
        self.0.entry(addresses).or_default().insert(node);
    }

    /// The nodes of endpoints that count for a service of these families.
    fn in_families(&self, families: &BTreeSet<Family>) -> impl Iterator<Item = Option<&String>> {
        let counts = |addresses: &AddressType| match addresses {
            AddressType::Ip(family) => families.is_empty() || families.contains(family),
            AddressType::Unsaid => true,
        };
        self.0
            .iter()
            .filter(move |(addresses, _)| counts(addresses))
            .flat_map(|(_, nodes)| nodes.iter().map(Option::as_ref))
    }
}

/// The family of an endpoint's address.
fn family_of(ip: Option<&str>) -> AddressType {
    let address = ip.and_then(|text| text.parse::<IpAddr>().ok());
    address.map_or(AddressType::Unsaid, |ip| AddressType::Ip(Family::of(ip)))
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
        .collect();
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
