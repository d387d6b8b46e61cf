//! What is read of Services and EndpointSlices, and which of them count: the rules of kube-proxy
//! 1.36. `Endpoints` objects, `targetPort` and `publishNotReadyAddresses` are not read: slices say
//! all of that.

use std::net::IpAddr;

use caracal_model::{
    EndpointHint, Family, KubernetesEndpoint, KubernetesService, KubernetesServicePort,
    KubernetesServiceSpec, KubernetesSlice, Prefix,
};

use super::refusals::Refusals;
use crate::transport::Transport;

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
    /// Senders that may use the addresses of load balancers.
    pub(super) sources: Sources,
}

/// `loadBalancerSourceRanges`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// Of both families; a family of which there is none is not limited.
    pub(super) ranges: Vec<Prefix>,
    /// An entry is no range, of whichever family it was to be: both are limited.
    pub(super) has_bad: bool,
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

/// Longest name of a Service, a namespace or a port.
const LONGEST_NAME: usize = 63;

/// True for the name of a namespace, a Service or a port, as Kubernetes takes them (RFC 1123,
/// labels): what names of chains and maps can hold.
pub(super) fn is_name(text: &str) -> bool {
    let is_fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = !text.starts_with('-') && !text.ends_with('-');
    (1..=LONGEST_NAME).contains(&text.len()) && ends && text.bytes().all(is_fine)
}

fn addresses<'a>(
    texts: impl IntoIterator<Item = &'a Box<str>>,
    field: &str,
    refusals: &mut Refusals,
) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for text in texts {
        match text.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => refusals.add(format!("{field}: {text:?} is no address")),
        }
    }
    addresses
}

/// Cluster addresses, at most one a family.
fn cluster_addresses(spec: &KubernetesServiceSpec, refusals: &mut Refusals) -> Vec<IpAddr> {
    let mut cluster: Vec<IpAddr> = Vec::new();
    // The first of the list is the address that stands alone as well.
    let alone = spec.cluster_ip.iter();
    let alone = alone.filter(|text| !spec.cluster_ips.contains(text));
    let families = spec.ip_families.iter().map(|family| Some(&**family));
    let families = families.chain(std::iter::repeat(None));
    let listed = spec.cluster_ips.iter().zip(families);
    for (text, wanted) in alone.map(|text| (text, None)).chain(listed) {
        let Some(address) = addresses([text], "clusterIPs", refusals).pop() else {
            continue;
        };
        let family = Family::of(address);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != family.to_string()) {
            refusals.add(format!("{address} is not of the family {wanted}"));
        } else if cluster.iter().any(|other| Family::of(*other) == family) {
            refusals.add(format!("{address} is a second address of its family"));
        } else {
            cluster.push(address);
        }
    }
    cluster
}

/// True for the second of two words; none, or the first one, is false.
fn is_second(
    word: Option<&str>,
    (field, [first, second]): (&str, [&str; 2]),
    refusals: &mut Refusals,
) -> bool {
    let word = word.unwrap_or(first);
    if word != first && word != second {
        let reason =
            format!("{field} {word:?} is neither {first} nor {second}, and counts as {first}");
        refusals.add(reason);
    }
    word == second
}

/// Reads a Service; what is refused of it is added to the refusals. `None` = it is not translated:
/// headless, ExternalName, or another proxy's.
pub(super) fn service(
    document: &KubernetesService,
    refusals: &mut Refusals,
) -> Option<ServiceDocument> {
    let spec = &document.spec;
    let is = |word: &Option<Box<str>>, wanted| word.as_deref() == Some(wanted);
    if document.proxy().is_some() || is(&spec.service_type, "ExternalName") {
        return None;
    }
    let first = spec.cluster_ip.as_deref().unwrap_or_default();
    if matches!(first, "" | "None") {
        return None;
    }
    let ingress = document.ingress().iter();
    let direct = ingress.filter(|ingress| !is(&ingress.ip_mode, "Proxy"));
    let balanced = direct.filter_map(|ingress| ingress.ip.as_ref());
    let mut second = |word: &Option<Box<str>>, words| is_second(word.as_deref(), words, refusals);
    let policies = ["Cluster", "Local"];
    let external_local = second(
        &spec.external_traffic_policy,
        ("externalTrafficPolicy", policies),
    );
    let internal_local = second(
        &spec.internal_traffic_policy,
        ("internalTrafficPolicy", policies),
    );
    let is_affine = second(
        &spec.session_affinity,
        ("sessionAffinity", ["None", "ClientIP"]),
    );
    let seconds = spec.affinity_seconds().unwrap_or(USUAL_AFFINITY);
    let seconds = u32::try_from(seconds.clamp(1, LONGEST_AFFINITY)).ok();
    let health_check_port = spec.health_check_node_port;
    let has_node_ports =
        is(&spec.service_type, "NodePort") || is(&spec.service_type, "LoadBalancer");
    Some(ServiceDocument {
        cluster: cluster_addresses(spec, refusals),
        external: addresses(&spec.external_ips, "externalIPs", refusals),
        balanced: addresses(balanced, "status.loadBalancer.ingress", refusals),
        ports: service_ports(&spec.ports, has_node_ports, refusals),
        internal_local,
        external_local,
        health_check_port: Some(health_check_port).filter(|port| *port != 0 && external_local),
        affinity: seconds.filter(|_| is_affine),
        sources: sources(&spec.load_balancer_source_ranges, refusals),
    })
}

fn sources(texts: &[Box<str>], refusals: &mut Refusals) -> Sources {
    let mut sources = Sources::default();
    for text in texts {
        match text.trim().parse() {
            Ok(range) => sources.ranges.push(range),
            Err(_) => {
                sources.has_bad = true;
                let reason = "is no range; it lets nobody in";
                refusals.add(format!("loadBalancerSourceRanges: {text:?} {reason}"));
            }
        }
    }
    sources
}

fn service_ports(
    ports: &[KubernetesServicePort],
    has_node_ports: bool,
    refusals: &mut Refusals,
) -> Vec<DocumentPort> {
    let mut read: Vec<DocumentPort> = Vec::new();
    for port in ports {
        let KubernetesServicePort {
            name, port: number, ..
        } = port;
        let protocol = transport(port.protocol.as_deref(), refusals);
        if *number == 0 {
            refusals.add("a port has the number 0, or none: port 0 is not translated".to_owned());
        } else if !name.is_empty() && !is_name(name) {
            refusals.add(format!("port {number}: {name:?} is no name of a port"));
        } else if read.iter().any(|other| *other.name == **name) {
            refusals.add(format!("port {number}: {name:?} is the name of two ports"));
        } else if let Some(protocol) = protocol {
            let node_port = port.node_port;
            if node_port != 0 && !has_node_ports {
                refusals.add(format!(
                    "port {number}: nodePort {node_port} counts for the types NodePort and LoadBalancer alone"
                ));
            }
            read.push(DocumentPort {
                name: name.to_string(),
                protocol,
                port: *number,
                node_port: if has_node_ports { node_port } else { 0 },
            });
        }
    }
    read
}

fn transport(text: Option<&str>, refusals: &mut Refusals) -> Option<Transport> {
    let protocol = Transport::parse(text);
    if protocol.is_none() {
        let text = text.unwrap_or_default();
        refusals.add(format!("protocol {text:?} is none of TCP, UDP and SCTP"));
    }
    protocol
}

/// The name of the Service that a slice belongs to, in the slice's namespace. `None` = it does not
/// count.
pub(super) fn service_of(document: &KubernetesSlice) -> Option<&str> {
    document.service_name().filter(|_| !document.is_headless())
}

/// Reads a slice of this name. `None` = it holds no addresses.
pub(super) fn slice(
    name: &str,
    document: &KubernetesSlice,
    refusals: &mut Refusals,
) -> Option<Slice> {
    let mut wrong = Refusals::default();
    let slice = slice_of(document, &mut wrong);
    refusals.add_of(name, wrong);
    slice
}

fn slice_of(document: &KubernetesSlice, refusals: &mut Refusals) -> Option<Slice> {
    let family = match document.address_type.as_deref()? {
        "IPv4" => Family::Ipv4,
        "IPv6" => Family::Ipv6,
        "FQDN" => return None,
        other => {
            refusals.add(format!(
                "addressType {other:?} is none of IPv4, IPv6 and FQDN"
            ));
            return None;
        }
    };
    let mut ports = Vec::new();
    for port in &document.ports {
        let number = Some(port.port).filter(|port| *port != 0);
        // Only a port without name is an unnamed one: `null` matches none.
        let name = match &port.name {
            None => Some(""),
            Some(name) => name.as_deref(),
        };
        let protocol = transport(port.protocol.as_deref(), refusals);
        if let (Some(name), Some(protocol), Some(number)) = (name, protocol, number) {
            ports.push((name.to_owned(), protocol, number));
        }
    }
    let mut endpoints = Vec::new();
    for found in &document.endpoints {
        match found.address {
            Some(address) if Family::of(address) == family => {
                endpoints.push(endpoint(found, address));
            }
            Some(address) => refusals.add(format!("{address} is not of the family {family}")),
            None => refusals.add("an endpoint has no address".to_owned()),
        }
    }
    Some(Slice {
        family,
        ports,
        endpoints,
    })
}

fn endpoint(endpoint: &KubernetesEndpoint, address: IpAddr) -> SliceEndpoint {
    let conditions = endpoint.conditions;
    let names = |hints: &[EndpointHint]| hints.iter().map(|hint| hint.name.to_string()).collect();
    let hints = endpoint.hints.as_deref();
    SliceEndpoint {
        address,
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        node: endpoint.node_name.as_deref().map(str::to_owned),
        for_nodes: hints.map_or_else(Vec::new, |hints| names(&hints.for_nodes)),
        for_zones: hints.map_or_else(Vec::new, |hints| names(&hints.for_zones)),
    }
}
