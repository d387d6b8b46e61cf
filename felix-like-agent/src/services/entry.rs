//! What one address of a service does on this node: the plan of one Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, Prefix, ServiceAddressKind, outermost};
use serde::Serialize;

use super::address::{ServiceAddress, ServiceTarget};
use super::document::{DocumentPort, ServiceDocument, Slice};
use super::endpoints::{Chosen, Place, choose};
use super::refusals::{Judge, Refusals};
use super::reserved::Reserved;
use crate::transport::Transport;

/// `sessionAffinity: ClientIP`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Affinity {
    /// Names the service port, in names of chains and maps.
    pub(super) of: String,
    /// A client keeps its endpoint for this long after its last new connection, in seconds.
    pub seconds: u32,
}

/// What an address does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceEntry {
    /// `NAMESPACE/NAME` of the Service.
    pub service: String,
    /// Name of its port; may be empty.
    pub port_name: String,
    /// Where the address comes from.
    pub kind: ServiceAddressKind,
    /// Traffic policy `Local`: the internal one for cluster addresses, the external one for others.
    pub local: bool,
    /// Endpoints of policy `Cluster`, by index.
    pub cluster: Vec<ServiceTarget>,
    /// Endpoints of policy `Local`, by index.
    pub here: Vec<ServiceTarget>,
    /// Endpoints to which flows that were made before go on. `None` = to whichever.
    pub(super) flows: Option<BTreeSet<ServiceTarget>>,
    /// Addresses of endpoints on this node, which may be their own clients.
    pub own: BTreeSet<IpAddr>,
    /// Addresses of endpoints of which nobody says where they are: they may be their own clients,
    /// too.
    pub(super) unplaced: BTreeSet<IpAddr>,
    /// Clients keep their endpoint.
    pub affinity: Option<Affinity>,
    /// Senders that are let in; `None` = all.
    pub sources: Option<BTreeSet<Prefix>>,
}

impl ServiceEntry {
    /// True for an address that is reached from outside the cluster.
    pub(super) fn is_external(&self) -> bool {
        self.kind != ServiceAddressKind::ClusterIp
    }
}

/// Addresses of this node that services make use of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Here {
    pub(super) place: Place,
    /// Addresses that node ports are served on.
    pub(super) node_ports: BTreeSet<IpAddr>,
    /// Addresses that this node speaks from.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// TCP connections to endpoints that are gone are reset.
    pub(super) reset_tcp: bool,
    /// What is not the Services'.
    pub(super) reserved: Reserved,
}

/// Entries of a Service, by address; what is refused of it is added to the refusals.
pub(super) fn entries(
    name: &str,
    (service, slices): (&ServiceDocument, &[Slice]),
    here: &Here,
    (judge, refusals): (&Judge<'_>, &mut Refusals),
) -> BTreeMap<ServiceAddress, ServiceEntry> {
    let mut entries = BTreeMap::new();
    for cluster in &service.cluster {
        let family = Family::of(*cluster);
        for port in &service.ports {
            let chosen = choose(
                family,
                (&port.name, port.protocol),
                (slices, &here.place),
                (judge, refusals),
            );
            let of = (name, service, port);
            for (address, kind) in addresses(service, port, *cluster, here) {
                let key = ServiceAddress {
                    address,
                    protocol: port.protocol,
                    port: match kind {
                        ServiceAddressKind::NodePort => port.node_port,
                        _ => port.port,
                    },
                };
                if judge.refuses((name, kind), &key, refusals) {
                    continue;
                }
                let sources = match kind {
                    ServiceAddressKind::LoadBalancer => senders(service, address, here),
                    _ => None,
                };
                let flows = flows(&chosen, port.protocol, here);
                let entry = entry(of, kind, &chosen, (sources, flows));
                entries.entry(key).or_insert(entry);
            }
        }
    }
    entries
}

/// The addresses of a Service in the family of `cluster`.
fn addresses(
    service: &ServiceDocument,
    port: &DocumentPort,
    cluster: IpAddr,
    here: &Here,
) -> Vec<(IpAddr, ServiceAddressKind)> {
    use ServiceAddressKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    let node_ports = (port.node_port != 0).then_some(&here.node_ports);
    let all = std::iter::once((cluster, ClusterIp))
        .chain(service.external.iter().map(|a| (*a, ExternalIp)))
        .chain(service.balanced.iter().map(|a| (*a, LoadBalancer)))
        .chain(node_ports.into_iter().flatten().map(|a| (*a, NodePort)));
    all.filter(|(a, _)| Family::of(*a) == Family::of(cluster))
        .collect()
}

/// `loadBalancerSourceRanges` for an address; `None` = everybody.
fn senders(service: &ServiceDocument, address: IpAddr, here: &Here) -> Option<BTreeSet<Prefix>> {
    let family = Family::of(address);
    let ranges = service
        .sources
        .ranges
        .iter()
        .filter(|range| range.family() == family);
    let ranges: Vec<Prefix> = ranges.copied().collect();
    let is_limited = service.sources.has_bad || !ranges.is_empty();
    if !is_limited || ranges.iter().any(|range| range.len() == 0) {
        return None;
    }
    // A node that is let in may speak from the address itself.
    let me = here
        .addresses
        .iter()
        .any(|a| ranges.iter().any(|range| range.contains(*a)));
    let own = me.then(|| Prefix::host(address));
    // The sets of nftables take no ranges that overlap.
    Some(outermost(ranges.iter().copied().chain(own)))
}

/// UDP follows who serves. A connection of TCP belongs to its endpoint as long as that is there:
/// one that ends its work serves its clients to the end.
fn flows(chosen: &Chosen, protocol: Transport, here: &Here) -> Option<BTreeSet<ServiceTarget>> {
    match protocol {
        Transport::Udp => Some(chosen.serving.clone()),
        Transport::Tcp => here.reset_tcp.then(|| chosen.named.clone()),
        Transport::Sctp => None,
    }
}

fn entry(
    (name, service, port): (&str, &ServiceDocument, &DocumentPort),
    kind: ServiceAddressKind,
    chosen: &Chosen,
    (sources, flows): (Option<BTreeSet<Prefix>>, Option<BTreeSet<ServiceTarget>>),
) -> ServiceEntry {
    let of = || format!("{name}/{}/{}", port.name, port.protocol.as_str());
    ServiceEntry {
        service: name.to_owned(),
        port_name: port.name.clone(),
        kind,
        local: match kind {
            ServiceAddressKind::ClusterIp => service.internal_local,
            _ => service.external_local,
        },
        cluster: chosen.cluster.iter().copied().collect(),
        here: chosen.here.iter().copied().collect(),
        flows,
        own: chosen.own.clone(),
        unplaced: chosen.unplaced.clone(),
        affinity: service
            .affinity
            .map(|seconds| Affinity { of: of(), seconds }),
        sources,
    }
}
