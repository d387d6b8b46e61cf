//! What is read of Services and EndpointSlices, and which of them count: the rules of kube-proxy
//! 1.36. `Endpoints` objects, `targetPort` and `publishNotReadyAddresses` are not read: slices say
//! all of that.

use std::net::IpAddr;

use caracal_model::{Family, Prefix};
use serde_json::Value;

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

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let array = value.pointer(pointer).and_then(Value::as_array);
    array.map_or(&[][..], Vec::as_slice)
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

fn port(value: &Value, key: &str) -> u16 {
    let number = value.get(key).and_then(Value::as_u64);
    number.and_then(|n| n.try_into().ok()).unwrap_or_default()
}

fn addresses<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<IpAddr> {
    let texts = values.into_iter().filter_map(Value::as_str);
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// Reads a Service. `None` = it is not translated: headless, ExternalName, or another proxy's.
pub(super) fn service(document: &Value) -> Option<ServiceDocument> {
    let labels = document.pointer("/metadata/labels");
    let proxy = labels.and_then(|l| l.get("service.kubernetes.io/service-proxy-name"));
    if proxy.is_some() || text(document, "/spec/type") == Some("ExternalName") {
        return None;
    }
    let first = text(document, "/spec/clusterIP").unwrap_or_default();
    if matches!(first, "" | "None") {
        return None;
    }
    let mut cluster = Vec::new();
    let all = addresses(list(document, "/spec/clusterIPs"));
    for address in first.parse().into_iter().chain(all) {
        let family = Family::of(address);
        if !cluster.iter().any(|other| Family::of(*other) == family) {
            cluster.push(address);
        }
    }
    let ingress = list(document, "/status/loadBalancer/ingress").iter();
    let direct = ingress.filter(|i| text(i, "/ipMode") != Some("Proxy"));
    let is_local = |policy: &str| text(document, policy) == Some("Local");
    let seconds = document.pointer("/spec/sessionAffinityConfig/clientIP/timeoutSeconds");
    let seconds = seconds.and_then(Value::as_u64).unwrap_or(USUAL_AFFINITY);
    let seconds = u32::try_from(seconds.clamp(1, LONGEST_AFFINITY)).ok();
    Some(ServiceDocument {
        cluster,
        external: addresses(list(document, "/spec/externalIPs")),
        balanced: addresses(direct.filter_map(|ingress| ingress.get("ip"))),
        ports: list(document, "/spec/ports")
            .iter()
            .filter_map(service_port)
            .collect(),
        internal_local: is_local("/spec/internalTrafficPolicy"),
        external_local: is_local("/spec/externalTrafficPolicy"),
        affinity: seconds.filter(|_| text(document, "/spec/sessionAffinity") == Some("ClientIP")),
        sources: list(document, "/spec/loadBalancerSourceRanges")
            .iter()
            .filter_map(|range| range.as_str()?.trim().parse().ok())
            .collect(),
    })
}

fn service_port(value: &Value) -> Option<DocumentPort> {
    Some(DocumentPort {
        name: text(value, "/name").unwrap_or_default().to_owned(),
        protocol: Transport::parse(text(value, "/protocol"))?,
        port: Some(port(value, "port")).filter(|port| *port != 0)?,
        node_port: port(value, "nodePort"),
    })
}

/// The name of the Service that a slice belongs to, in the slice's namespace. `None` = it does not
/// count.
pub(super) fn service_of(document: &Value) -> Option<&str> {
    let labels = document.pointer("/metadata/labels")?;
    if labels.get("service.kubernetes.io/headless").is_some() {
        return None;
    }
    labels.get("kubernetes.io/service-name")?.as_str()
}

/// Reads a slice. `None` = it holds no addresses.
pub(super) fn slice(document: &Value) -> Option<Slice> {
    let family = match text(document, "/addressType")? {
        "IPv4" => Family::Ipv4,
        "IPv6" => Family::Ipv6,
        _ => return None,
    };
    let numbered = |value: &Value| {
        let number = Some(port(value, "port")).filter(|port| *port != 0)?;
        // Only a port without name is an unnamed one: `null` matches none.
        let name = match value.get("name") {
            None => "",
            Some(name) => name.as_str()?,
        };
        Some((
            name.to_owned(),
            Transport::parse(text(value, "/protocol"))?,
            number,
        ))
    };
    let endpoints = list(document, "/endpoints").iter();
    Some(Slice {
        family,
        ports: list(document, "/ports")
            .iter()
            .filter_map(numbered)
            .collect(),
        endpoints: endpoints.filter_map(|e| endpoint(e, family)).collect(),
    })
}

fn endpoint(value: &Value, family: Family) -> Option<SliceEndpoint> {
    let address = list(value, "/addresses").first()?.as_str()?.parse().ok()?;
    let condition = |name: &str, unsaid: bool| {
        let conditions = value.get("conditions");
        let said = conditions.and_then(|c| c.get(name)?.as_bool());
        said.unwrap_or(unsaid)
    };
    let hint = |pointer: &str| {
        let names = list(value, pointer).iter();
        names
            .filter_map(|hint| text(hint, "/name").map(str::to_owned))
            .collect()
    };
    (Family::of(address) == family).then(|| SliceEndpoint {
        address,
        ready: condition("ready", true),
        serving: condition("serving", true),
        terminating: condition("terminating", false),
        node: text(value, "/nodeName").map(str::to_owned),
        for_nodes: hint("/hints/forNodes"),
        for_zones: hint("/hints/forZones"),
    })
}
