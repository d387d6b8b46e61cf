//! Which of several Services with one address is announced. A node to which packets are sent must
//! translate them to that Service's endpoints, so the claims and their order are those of the
//! translation (`ServiceClaim`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{
    Family, KubernetesService, Problem, ProblemCode, ServiceAddressKind, ServiceAge, ServiceClaim,
};

use super::{Name, Service};

/// What a Service claims of its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claimed {
    age: ServiceAge,
    /// Protocols and ports. Without one the Service claims nothing, and loses nothing.
    ports: BTreeSet<(Box<str>, u16)>,
    kinds: BTreeMap<IpAddr, ServiceAddressKind>,
}

impl Claimed {
    /// Of a document, of which `service` was read. What nobody here translates claims nothing: the
    /// Services of other proxies, load balancers that translate themselves (`ipMode: Proxy`), and
    /// families without cluster address.
    pub(super) fn of(document: &KubernetesService, service: &Service) -> Self {
        if document.proxy().is_some() {
            return Self::default();
        }
        let ports = document.spec.ports.iter().filter(|port| port.port != 0);
        let ports = ports.map(|port| {
            let protocol = port.protocol.clone();
            (protocol.unwrap_or_else(|| "TCP".into()), port.port)
        });
        let ingress = document.ingress().iter();
        let proxied = ingress.filter(|at| at.ip_mode.as_deref() == Some("Proxy"));
        let proxied: BTreeSet<IpAddr> = proxied
            .filter_map(|at| at.ip.as_ref()?.parse().ok())
            .collect();
        let balanced = service.load_balancer.difference(&proxied);
        let of = |kind| move |address: &IpAddr| (*address, kind);
        let external = service.external.iter();
        let cluster = service.cluster.iter();
        // The last one of an address stays.
        let all = balanced
            .map(of(ServiceAddressKind::LoadBalancer))
            .chain(external.map(of(ServiceAddressKind::ExternalIp)))
            .chain(cluster.map(of(ServiceAddressKind::ClusterIp)));
        let is_served = |(address, _): &(IpAddr, _)| {
            let family = Family::of(*address);
            service.cluster.iter().any(|at| Family::of(*at) == family)
        };
        Self {
            age: ServiceAge::of(document),
            ports: ports.collect(),
            kinds: all.filter(is_served).collect(),
        }
    }
}

/// Services that have nothing of an address, with the one that has it, and why.
pub(super) struct Losers<'a>(BTreeMap<(&'a Name, IpAddr), String>);

impl<'a> Losers<'a> {
    pub(super) fn new(services: &'a BTreeMap<Name, Service>) -> Self {
        let claimants = services.iter().flat_map(|(name, service)| {
            let claimed = &service.claimed;
            let addresses = claimed.kinds.iter().filter(|_| !claimed.ports.is_empty());
            addresses.map(move |(address, kind)| (*address, *kind, name, claimed))
        });
        let mut claimants: Vec<_> = claimants.collect();
        claimants.sort_unstable_by_key(|(address, ..)| *address);
        let mut losers = BTreeMap::new();
        for group in claimants.chunk_by(|a, b| a.0 == b.0) {
            if group.len() < 2 {
                continue;
            }
            let claims = group.iter().map(|(address, kind, name, claimed)| {
                let claim = ServiceClaim::new(*kind, claimed.age.clone(), (*name).clone());
                (claim, (*address, *name, *claimed))
            });
            let claims: BTreeMap<_, _> = claims.collect();
            let mut taken: BTreeMap<_, &ServiceClaim> = BTreeMap::new();
            for (claim, (address, name, claimed)) in &claims {
                let first = claimed.ports.first().and_then(|port| taken.get(port));
                let first = first.copied();
                let mut has_any = false;
                for port in &claimed.ports {
                    has_any |= !taken.contains_key(port);
                    taken.entry(port).or_insert(claim);
                }
                if let Some(before) = first.filter(|_| !has_any) {
                    let (namespace, winner) = &before.service;
                    let reason = format!(
                        "it is not announced for this Service: {namespace}/{winner} has all its ports there, and {}",
                        before.why_before(claim)
                    );
                    losers.insert((*name, *address), reason);
                }
            }
        }
        Self(losers)
    }

    /// The problem of a Service that has nothing of an address; `None` = it has something of it.
    pub(super) fn problem(&self, name: &Name, address: IpAddr) -> Option<Problem> {
        let reason = self.0.get(&(name, address))?;
        Some(Problem {
            code: ProblemCode::ServicesConflict,
            subject: format!("Service {}/{} {address}", name.0, name.1),
            reason: reason.clone(),
        })
    }
}
