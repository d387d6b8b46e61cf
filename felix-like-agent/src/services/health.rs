//! What a load balancer is told that asks at `healthCheckNodePort` of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{Family, InsertEach, Problem, ProblemCode, ServiceAge};
use serde::Serialize;

use super::claims::Name;
use super::document::{ServiceDocument, Slice};
use super::endpoints::Place;
use crate::problem::problem;

/// Health of a Service on this node, for load balancers that send its clients here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceHealth {
    /// Namespace and name of the Service.
    pub service: (String, String),
    /// Its ready endpoints on this node: different addresses of one family, the larger number.
    pub local_endpoints: usize,
}

/// Ports at which load balancers ask, by Services that claim them, the oldest first.
#[derive(Debug, Default)]
pub(super) struct HealthPorts {
    claims: BTreeMap<(u16, ServiceAge, Name), ServiceHealth>,
    /// Where the claim of each Service is.
    of: BTreeMap<Name, (u16, ServiceAge)>,
}

impl HealthPorts {
    /// Puts what a Service claims in the place of its last claim.
    pub(super) fn set(
        &mut self,
        name: &Name,
        age: &ServiceAge,
        claim: Option<(u16, ServiceHealth)>,
    ) {
        if let Some((port, age)) = self.of.remove(name) {
            self.claims.remove(&(port, age, name.clone()));
        }
        if let Some((port, health)) = claim {
            self.of.insert(name.clone(), (port, age.clone()));
            let key = (port, age.clone(), name.clone());
            self.claims.insert(key, health);
        }
    }

    /// What is said at each port: of the oldest Service that has it.
    pub(super) fn in_force(&self) -> impl Iterator<Item = (u16, &ServiceHealth)> {
        let mut last = None;
        let all = self
            .claims
            .iter()
            .map(|((port, ..), health)| (*port, health));
        all.filter(move |(port, _)| last.replace(*port) != Some(*port))
    }

    /// Services of which nothing is said at their port.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        let mut first = None;
        let losers = self
            .claims
            .keys()
            .filter_map(move |(port, _, name)| match first {
                Some((taken, has)) if taken == *port => Some((*port, has, name)),
                _ => {
                    first = Some((*port, name));
                    None
                }
            });
        losers.map(|(port, has, loses)| {
            let reason = format!(
                "{}/{} has it: it is the older one; load balancers that ask there are told nothing of {}/{}",
                has.0, has.1, loses.0, loses.1
            );
            let subject = format!("healthCheckNodePort {port}");
            problem(ProblemCode::ServicesConflict, &subject, reason)
        })
    }
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
        let addresses: BTreeSet<IpAddr> = ready.map(|endpoint| endpoint.address).insert_each();
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
