//! The Services that the datastore holds, whether or not a node translates or announces them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{KubernetesDocument, KubernetesService, KubernetesSlice, Snapshot};
use serde::{Deserialize, Serialize};

/// A Service as it was placed in the datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListedService {
    /// `NAMESPACE/NAME`.
    pub(crate) service: String,
    #[serde(rename = "type")]
    pub(crate) service_type: String,
    /// Its cluster, external and load balancer addresses, as they were written.
    pub(crate) addresses: Vec<String>,
    /// `80/TCP`, with the node port behind a colon.
    pub(crate) ports: Vec<String>,
    /// Addresses of its endpoints that are ready.
    pub(crate) endpoints: Vec<String>,
}

impl ListedService {
    /// It has an address, however that is written.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|text| text.parse() == Ok(address))
    }

    /// It has a port of this number.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        let begin = format!("{port}/");
        self.ports.iter().any(|text| text.starts_with(&begin))
    }
}

/// All Services, by namespace and name.
pub(crate) fn services(snapshot: &Snapshot) -> Vec<ListedService> {
    let mut ready: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for ((_, namespace, name), document) in &snapshot.documents {
        match &**document {
            KubernetesDocument::Service(_) => {}
            KubernetesDocument::Endpoints(endpoints) => {
                let texts = endpoints.addresses().filter_map(|a| a.ip.as_deref());
                let known = ready.entry((namespace, name)).or_default();
                known.extend(texts.map(str::to_owned));
            }
            KubernetesDocument::EndpointSlice(slice) => {
                let Some(service) = slice.service_name() else {
                    continue;
                };
                let known = ready.entry((namespace, service)).or_default();
                known.extend(ready_in(slice).map(|address| address.to_string()));
            }
        }
    }
    let documents = snapshot.documents.iter();
    let services = documents.filter_map(|((_, namespace, name), document)| {
        let endpoints = ready.get(&(namespace.as_str(), name.as_str()));
        Some(listed(
            format!("{namespace}/{name}"),
            document.service()?,
            endpoints.into_iter().flatten().cloned().collect(),
        ))
    });
    services.collect()
}

/// The Services that have an address.
pub(crate) fn with_address(snapshot: &Snapshot, address: IpAddr) -> Vec<ListedService> {
    let mut found = services(snapshot);
    found.retain(|service| service.has_address(address));
    found
}

fn ready_in(slice: &KubernetesSlice) -> impl Iterator<Item = IpAddr> {
    let endpoints = slice.endpoints.iter();
    // Readiness that is not said counts as ready.
    let ready = endpoints.filter(|endpoint| endpoint.conditions.ready != Some(false));
    ready.filter_map(|endpoint| endpoint.address)
}

fn listed(service: String, document: &KubernetesService, endpoints: Vec<String>) -> ListedService {
    let spec = &document.spec;
    let mut addresses: Vec<String> = Vec::new();
    let cluster = spec.cluster_ips.iter().chain(&spec.cluster_ip);
    let balanced = document.ingress().iter().filter_map(|i| i.ip.as_ref());
    for address in cluster.chain(&spec.external_ips).chain(balanced) {
        if !address.is_empty() && !addresses.iter().any(|known| **known == **address) {
            addresses.push(address.to_string());
        }
    }
    let ports = spec.ports.iter().map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        match port.node_port {
            0 => format!("{}/{protocol}", port.port),
            node_port => format!("{}/{protocol}:{node_port}", port.port),
        }
    });
    ListedService {
        service,
        service_type: spec
            .service_type
            .as_deref()
            .unwrap_or("ClusterIP")
            .to_owned(),
        addresses,
        ports: ports.collect(),
        endpoints,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_topologies::resources_from_yaml;

    use super::*;

    const DOCUMENTS: &str = "
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {type: NodePort, clusterIP: 10.96.0.10,
  clusterIPs: [10.96.0.10, 'fd00:0::10'], externalIPs: [192.0.2.1], ports: [{port: 80, nodePort: 30080}, {port: 53, protocol: UDP}]},
  status: {loadBalancer: {ingress: [{ip: 192.0.2.2}, {hostname: x}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: none, namespace: shop}, spec: {clusterIP: None}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}},
  addressType: IPv4, endpoints: [{addresses: [10.1.0.1]}, {addresses: [10.1.0.2], conditions: {ready: false}}]}
";

    #[test]
    fn services_are_listed_with_what_is_ready_behind_them() {
        let mut snapshot = Snapshot::default();
        let problems = resources_from_yaml(DOCUMENTS).unwrap().apply(&mut snapshot);
        assert_eq!(problems, []);
        let [none, web] = &services(&snapshot)[..] else {
            panic!("two Services");
        };
        assert_eq!(none.service, "shop/none");
        assert_eq!(none.addresses, ["None"]);
        assert_eq!((none.ports.len(), none.endpoints.len()), (0, 0));
        assert_eq!(web.service_type, "NodePort");
        let addresses = ["10.96.0.10", "fd00:0::10", "192.0.2.1", "192.0.2.2"];
        assert_eq!(web.addresses, addresses);
        assert_eq!(web.ports, ["80/TCP:30080", "53/UDP"]);
        assert_eq!(web.endpoints, ["10.1.0.1"]);
        assert!(web.has_address("fd00::10".parse().unwrap()));
        assert!(!web.has_address("10.1.0.1".parse().unwrap()));
        let found = with_address(&snapshot, "192.0.2.2".parse().unwrap());
        assert_eq!(found, std::slice::from_ref(web));
        assert!(web.has_port(80) && !web.has_port(8) && !web.has_port(30080));
        assert!(!none.has_address("10.96.0.10".parse().unwrap()));
    }
}
