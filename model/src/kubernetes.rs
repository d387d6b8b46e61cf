//! Services of Kubernetes' API and their endpoints, with the fields that somebody reads: in a
//! large cluster they are the most that a node remembers, and most of what changes in them concerns
//! nobody here.
//!
//! `null` counts as a field that is not there, as Go writes its empty lists.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::keys::DocumentKind;
use crate::resource::ValueError;

/// A document that is kept: what is read of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum KubernetesDocument {
    /// A Service (`v1`).
    Service(KubernetesService),
    /// Endpoints (`v1`) of the Service of their name.
    Endpoints(KubernetesEndpoints),
    /// A part of the endpoints of a Service (`discovery.k8s.io/v1`).
    EndpointSlice(KubernetesSlice),
}

impl KubernetesDocument {
    /// Reads a document of this kind.
    pub(crate) fn from_json(kind: DocumentKind, text: &[u8]) -> Result<Self, ValueError> {
        // The parser takes a list for an object's fields in their order.
        if text.trim_ascii_start().first() != Some(&b'{') {
            return Err(ValueError("not a JSON object".to_owned()));
        }
        let parsed = match kind {
            DocumentKind::Service => serde_json::from_slice(text).map(Self::Service),
            DocumentKind::Endpoints => serde_json::from_slice(text).map(Self::Endpoints),
            DocumentKind::EndpointSlice => serde_json::from_slice(text).map(Self::EndpointSlice),
        };
        parsed.map_err(|error| ValueError(error.to_string()))
    }

    /// The Service, if it is one.
    #[must_use]
    pub const fn service(&self) -> Option<&KubernetesService> {
        match self {
            Self::Service(service) => Some(service),
            _ => None,
        }
    }

    /// The slice, if it is one.
    #[must_use]
    pub const fn slice(&self) -> Option<&KubernetesSlice> {
        match self {
            Self::EndpointSlice(slice) => Some(slice),
            _ => None,
        }
    }
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct KubernetesService {
    #[serde(deserialize_with = "or_default")]
    metadata: ServiceMetadata,
    /// Its addresses and ports, and how they are served.
    #[serde(deserialize_with = "or_default")]
    pub spec: KubernetesServiceSpec,
    #[serde(deserialize_with = "or_default")]
    status: ServiceState,
}

impl KubernetesService {
    /// Label `service.kubernetes.io/service-proxy-name`: another proxy serves it.
    #[must_use]
    pub fn proxy(&self) -> Option<&str> {
        self.metadata.labels.proxy.as_deref()
    }

    /// Age, and what tells Services of one age apart: `creationTimestamp` (RFC 3339, UTC) without
    /// its Z, so that texts are in the order of time, and `uid`. `None` = not said, or not so.
    #[must_use]
    pub fn created(&self) -> (Option<&str>, Option<&str>) {
        let created = self.metadata.creation_timestamp.as_deref();
        let is_time = |text: &&str| text.len() >= "2026-01-01T00:00:00".len();
        let created = created.and_then(|text| text.strip_suffix('Z'));
        (created.filter(is_time), self.metadata.uid.as_deref())
    }

    /// `status.loadBalancer.ingress`.
    #[must_use]
    pub fn ingress(&self) -> &[LoadBalancerIngress] {
        &self.status.load_balancer.ingress
    }
}

/// `spec` of a Service. Addresses and words are as they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are Kubernetes' own")]
pub struct KubernetesServiceSpec {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub service_type: Option<Box<str>>,
    #[serde(rename = "clusterIP", skip_serializing_if = "Option::is_none")]
    pub cluster_ip: Option<Box<str>>,
    #[serde(rename = "clusterIPs", deserialize_with = "or_default")]
    pub cluster_ips: Box<[Box<str>]>,
    #[serde(deserialize_with = "or_default")]
    pub ip_families: Box<[Box<str>]>,
    #[serde(rename = "externalIPs", deserialize_with = "or_default")]
    pub external_ips: Box<[Box<str>]>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Box<[KubernetesServicePort]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<Box<str>>,
    #[serde(deserialize_with = "or_default")]
    session_affinity_config: AffinityConfig,
    #[serde(deserialize_with = "or_default")]
    pub load_balancer_source_ranges: Box<[Box<str>]>,
    /// 0 = none.
    #[serde(deserialize_with = "or_default")]
    pub health_check_node_port: u16,
}

impl KubernetesServiceSpec {
    /// `sessionAffinityConfig.clientIP.timeoutSeconds`.
    #[must_use]
    pub const fn affinity_seconds(&self) -> Option<u64> {
        self.session_affinity_config.client_ip.timeout_seconds
    }
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubernetesServicePort {
    /// An unnamed port has the name "".
    #[serde(deserialize_with = "or_default")]
    pub name: Box<str>,
    /// `None` = TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Box<str>>,
    /// 0 = not said.
    #[serde(deserialize_with = "or_default")]
    pub port: u16,
    /// 0 = none.
    #[serde(deserialize_with = "or_default")]
    pub node_port: u16,
}

/// An address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoadBalancerIngress {
    /// `None` = it has a host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<Box<str>>,
    /// `VIP` or `Proxy`; `None` = VIP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_mode: Option<Box<str>>,
}

/// A slice of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubernetesSlice {
    #[serde(deserialize_with = "or_default")]
    metadata: Labelled<SliceLabels>,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_type: Option<Box<str>>,
    /// Ports of all endpoints.
    #[serde(deserialize_with = "or_default")]
    pub ports: Box<[KubernetesSlicePort]>,
    /// The endpoints.
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Box<[KubernetesEndpoint]>,
}

impl KubernetesSlice {
    /// The name of its Service, in its own namespace.
    #[must_use]
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.service.as_deref()
    }

    /// Label `service.kubernetes.io/headless`: its Service has no address.
    #[must_use]
    pub const fn is_headless(&self) -> bool {
        self.metadata.labels.headless.is_some()
    }
}

/// A port of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct KubernetesSlicePort {
    /// `None` = it is not there; `Some(None)` = it is `null`, which is the name of no port.
    #[serde(
        deserialize_with = "even_null",
        skip_serializing_if = "Option::is_none"
    )]
    pub name: Option<Option<Box<str>>>,
    /// `None` = TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Box<str>>,
    /// 0 = none.
    #[serde(deserialize_with = "or_default")]
    pub port: u16,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubernetesEndpoint {
    /// The first of `addresses`: the others are never read. `None` = it is none.
    #[serde(
        rename = "addresses",
        deserialize_with = "first_address",
        serialize_with = "one_address"
    )]
    pub address: Option<IpAddr>,
    /// What it does.
    #[serde(deserialize_with = "or_default")]
    pub conditions: EndpointConditions,
    /// Its node, as Kubernetes calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Box<str>>,
    /// Who had better use it; most have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Box<EndpointHints>>,
}

/// `conditions` of an endpoint; `None` = not said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the fields are Kubernetes' own")]
pub struct EndpointConditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint: nodes and zones that had better use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are Kubernetes' own")]
pub struct EndpointHints {
    #[serde(deserialize_with = "or_default")]
    pub for_nodes: Box<[EndpointHint]>,
    #[serde(deserialize_with = "or_default")]
    pub for_zones: Box<[EndpointHint]>,
}

/// A node or zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct EndpointHint {
    /// Its name.
    pub name: Box<str>,
}

/// Endpoints of a Service as they were before slices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct KubernetesEndpoints {
    #[serde(deserialize_with = "or_default")]
    subsets: Box<[Subset]>,
}

impl KubernetesEndpoints {
    /// Addresses of all subsets that are ready.
    pub fn addresses(&self) -> impl Iterator<Item = &EndpointsAddress> {
        self.subsets.iter().flat_map(|subset| &subset.addresses)
    }
}

/// An address of Endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointsAddress {
    /// As it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<Box<str>>,
    /// Its node, as Kubernetes calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct Labelled<L: Default> {
    #[serde(
        deserialize_with = "or_default",
        bound(deserialize = "L: Deserialize<'de>")
    )]
    labels: L,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceMetadata {
    #[serde(deserialize_with = "or_default")]
    labels: ServiceLabels,
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_timestamp: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct ServiceLabels {
    #[serde(
        rename = "service.kubernetes.io/service-proxy-name",
        skip_serializing_if = "Option::is_none"
    )]
    proxy: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct SliceLabels {
    #[serde(
        rename = "kubernetes.io/service-name",
        skip_serializing_if = "Option::is_none"
    )]
    service: Option<Box<str>>,
    #[serde(
        rename = "service.kubernetes.io/headless",
        skip_serializing_if = "Option::is_none"
    )]
    headless: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceState {
    #[serde(deserialize_with = "or_default")]
    load_balancer: LoadBalancerState,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct LoadBalancerState {
    #[serde(deserialize_with = "or_default")]
    ingress: Box<[LoadBalancerIngress]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct AffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "or_default")]
    client_ip: ClientAffinity,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct ClientAffinity {
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
struct Subset {
    #[serde(deserialize_with = "or_default")]
    addresses: Box<[EndpointsAddress]>,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// `Some(None)` for `null`.
fn even_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<Box<str>>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

fn first_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    let texts: Option<Vec<Box<str>>> = Option::deserialize(deserializer)?;
    Ok(texts.and_then(|texts| texts.first()?.parse().ok()))
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn one_address<S: Serializer>(address: &Option<IpAddr>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_again_as_the_same() {
        let service = json!({"metadata": {"name": "web", "creationTimestamp": "2026-01-05T10:11:12Z", "uid": "u", "labels": {"a": "b", "service.kubernetes.io/service-proxy-name": "x"}},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
                "externalIPs": null, "ports": [{"port": 80, "nodePort": 30000, "targetPort": "http"}],
                "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}}});
        let slice = json!({"metadata": {"labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
            "ports": [{"name": null, "port": 1}, {"port": 2}, {"name": "", "port": null}],
            "endpoints": [{"addresses": ["10.1.0.1", "10.1.0.2"], "conditions": {"ready": null, "serving": true},
                "nodeName": "n", "targetRef": {"kind": "Pod"}, "hints": {"forZones": [{"name": "z"}]}},
                {"addresses": ["name.example"], "conditions": null}]});
        let old = json!({"subsets": [{"addresses": [{"ip": "10.1.0.1", "nodeName": "n"}], "ports": []}, {"notReadyAddresses": []}]});
        for (kind, value) in [
            (DocumentKind::Service, service),
            (DocumentKind::EndpointSlice, slice),
            (DocumentKind::Endpoints, old),
        ] {
            let read = |text: &[u8]| KubernetesDocument::from_json(kind, text).unwrap();
            let document = read(value.to_string().as_bytes());
            assert_eq!(
                read(&serde_json::to_vec(&document).unwrap()),
                document,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn null_names_no_port_and_a_name_that_is_not_there_the_unnamed_one() {
        let text = br#"{"ports": [{"name": null, "port": 1}, {"port": 2}], "endpoints": null}"#;
        let document = KubernetesDocument::from_json(DocumentKind::EndpointSlice, text).unwrap();
        let names: Vec<_> = document
            .slice()
            .unwrap()
            .ports
            .iter()
            .map(|p| &p.name)
            .collect();
        assert_eq!(names, [&Some(None), &None]);
    }

    #[test]
    fn what_is_no_document_is_refused() {
        for text in ["[]", "7", r#"{"endpoints": 7}"#] {
            let refused =
                KubernetesDocument::from_json(DocumentKind::EndpointSlice, text.as_bytes());
            assert!(refused.is_err(), "{text}");
        }
    }
}
