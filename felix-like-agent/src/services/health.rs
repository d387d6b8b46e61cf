//! What a load balancer is told that asks at `healthCheckNodePort` of a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_model::Family;
use serde::Serialize;

use super::document::{ServiceDocument, Slice};
use super::endpoints::Place;

/// Health of a Service on this node, for load balancers that send its clients here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceHealth {
    /// Namespace and name of the Service.
    pub service: (String, String),
    /// Its ready endpoints on this node: different addresses of one family, the larger number.
    pub local_endpoints: usize,
}

/// The port and what is said there. `None` = the Service has no such port.
pub(super) fn health(
    (namespace, name): (&str, &str),
    service: &ServiceDocument,
    slices: &[Slice],
    place: &Place,
) -> Option<(u16, ServiceHealth)> {
    let port = service.health_check_port?;
    let local = |family: Family| {
        let slices = slices.iter().filter(|slice| slice.family == family);
        let ready = slices.flat_map(|slice| &slice.endpoints).filter(|e| {
            e.ready && !e.terminating && e.node.as_deref() == Some(place.node.as_str())
        });
        let addresses: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.address).collect();
        addresses.len()
    };
    let local_endpoints = local(Family::Ipv4).max(local(Family::Ipv6));
    let service = (namespace.to_owned(), name.to_owned());
    Some((
        port,
        ServiceHealth {
            service,
            local_endpoints,
        },
    ))
}
