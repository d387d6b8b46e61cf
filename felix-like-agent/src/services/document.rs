//! What is read of Services and EndpointSlices, and which of them count: the rules of kube-proxy
//! 1.36. `Endpoints` objects, `targetPort` and `publishNotReadyAddresses` are not read: slices say
//! all of that.

use std::net::IpAddr;

use caracal_model::{
    EndpointHint, Family, KubernetesEndpoint, KubernetesService, KubernetesServicePort,
    KubernetesSlice, Prefix,
};

use super::address::Transport;

/// Longest time for which a client keeps its endpoint, in seconds, as Kubernetes limits it.
const LONGEST_AFFINITY: u64 = 86_400;
/// Time where the Service does not say, in seconds.
const USUAL_AFFINITY: u64 = 10_800;

/// A Service that has addresses to translate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceDocument {
    /// At most one a family.
    pub(super) cluster: Vec<IpAddr>,
    pub(super) external: Vec<IpAddr>,
    /// Addresses of load balancers that deliver packets unchanged (`ipMode` VIP).
    pub(super) balanced: Vec<IpAddr>,
    pub(super) ports: Vec<DocumentPort>,
    pub(super) internal_local: bool,
    pub(super) external_local: bool,
    /// `sessionAffinity: ClientIP`: for how many seconds.
    pub(super) affinity: Option<u32>,
    /// Where load balancers ask for the endpoints of a node.
    pub(super) health_check_port: Option<u16>,
    /// Senders that may use the addresses of load balancers; empty = all.
    pub(super) sources: Vec<Prefix>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentPort {
    /// An unnamed port has the name "".
    pub(super) name: String,
    pub(super) protocol: Transport,
    pub(super) port: u16,
    /// 0 = none.
    pub(super) node_port: u16,
}

/// A slice of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) family: Family,
    /// Name, protocol and number.
    pub(super) ports: Vec<(String, Transport, u16)>,
    pub(super) endpoints: Vec<SliceEndpoint>,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceEndpoint {
    pub(super) address: IpAddr,
    pub(super) ready: bool,
    pub(super) serving: bool,
    pub(super) terminating: bool,
    pub(super) node: Option<String>,
    /// `hints.forNodes`; empty = no hint.
    pub(super) for_nodes: Vec<String>,
    /// `hints.forZones`; empty = no hint.
    pub(super) for_zones: Vec<String>,
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a Box<str>>) -> Vec<IpAddr> {
    let texts = texts.into_iter();
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Reads a Service. `None` = it is not translated: headless, ExternalName, or another proxy's.
pub(super) fn service(document: &KubernetesService) -> Option<ServiceDocument> {
    let spec = &document.spec;
    let is = |word: &Option<Box<str>>, wanted| word.as_deref() == Some(wanted);
    if document.proxy().is_some() || is(&spec.service_type, "ExternalName") {
        return None;
    }
    let first = spec.cluster_ip.as_deref().unwrap_or_default();
    if matches!(first, "" | "None") {
        return None;
    }
    let mut cluster = Vec::new();
    let all = addresses(&spec.cluster_ips);
    for address in first.parse().into_iter().chain(all) {
        let family = Family::of(address);
        if !cluster.iter().any(|other| Family::of(*other) == family) {
            cluster.push(address);
        }
    }
    let ingress = document.ingress().iter();
    let direct = ingress.filter(|ingress| !is(&ingress.ip_mode, "Proxy"));
    let external_local = is(&spec.external_traffic_policy, "Local");
    let seconds = spec.affinity_seconds().unwrap_or(USUAL_AFFINITY);
    let seconds = u32::try_from(seconds.clamp(1, LONGEST_AFFINITY)).ok();
    let health_check_port = spec.health_check_node_port;
    Some(ServiceDocument {
        cluster,
        external: addresses(&spec.external_ips),
        balanced: addresses(direct.filter_map(|ingress| ingress.ip.as_ref())),
        ports: spec.ports.iter().filter_map(service_port).collect(),
        internal_local: is(&spec.internal_traffic_policy, "Local"),
        external_local,
        health_check_port: Some(health_check_port).filter(|port| *port != 0 && external_local),
        affinity: seconds.filter(|_| is(&spec.session_affinity, "ClientIP")),
        sources: spec
            .load_balancer_source_ranges
            .iter()
            .filter_map(|range| range.trim().parse().ok())
            .collect(),
    })
}

fn service_port(port: &KubernetesServicePort) -> Option<DocumentPort> {
    Some(DocumentPort {
        name: port.name.to_string(),
        protocol: Transport::parse(port.protocol.as_deref())?,
        port: Some(port.port).filter(|port| *port != 0)?,
        node_port: port.node_port,
    })
}

/// The name of the Service that a slice belongs to, in the slice's namespace. `None` = it does not
/// count.
pub(super) fn service_of(document: &KubernetesSlice) -> Option<&str> {
    document.service_name().filter(|_| !document.is_headless())
}

/// Reads a slice. `None` = it holds no addresses.
pub(super) fn slice(document: &KubernetesSlice) -> Option<Slice> {
    let family = match document.address_type.as_deref()? {
        "IPv4" => Family::Ipv4,
        "IPv6" => Family::Ipv6,
        _ => return None,
    };
    let ports = document.ports.iter().filter_map(|port| {
        let number = Some(port.port).filter(|port| *port != 0)?;
        // Only a port without name is an unnamed one: `null` matches none.
        let name = match &port.name {
            None => "",
            Some(name) => name.as_deref()?,
        };
        let protocol = Transport::parse(port.protocol.as_deref())?;
        Some((name.to_owned(), protocol, number))
    });
    let endpoints = document.endpoints.iter();
    Some(Slice {
        family,
        ports: ports.collect(),
        endpoints: endpoints.filter_map(|e| endpoint(e, family)).collect(),
    })
}

fn endpoint(endpoint: &KubernetesEndpoint, family: Family) -> Option<SliceEndpoint> {
    let address = endpoint.address.filter(|a| Family::of(*a) == family)?;
    let conditions = endpoint.conditions;
    let names = |hints: &[EndpointHint]| hints.iter().map(|hint| hint.name.to_string()).collect();
    let hints = endpoint.hints.as_deref();
    Some(SliceEndpoint {
        address,
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        node: endpoint.node_name.as_deref().map(str::to_owned),
        for_nodes: hints.map_or_else(Vec::new, |hints| names(&hints.for_nodes)),
        for_zones: hints.map_or_else(Vec::new, |hints| names(&hints.for_zones)),
    })
}
