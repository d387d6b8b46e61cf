//! Which of several Services with one address is announced. A node to which packets are sent must
//! translate them to that Service's endpoints, so the claims and their order are those of the
//! translation (`ServiceClaim`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{
    Family, InsertEach, KubernetesService, Problem, ProblemCode, ServiceAddressKind, ServiceAge,
    ServiceClaim, merge_join,
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
            .filter_map(|at| at.ip.as_ref()?.parse::<IpAddr>().ok())
            .insert_each();
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
            ports: ports.insert_each(),
            kinds: all.filter(is_served).insert_each(),
        }
    }

    /// The addresses of which it claims ports.
    fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.kinds.keys().filter(|_| !self.ports.is_empty())
    }

    /// The kind of an address of which it claims ports.
    fn kind_of(&self, address: IpAddr) -> Option<ServiceAddressKind> {
        let kind = self.kinds.get(&address).copied();
        kind.filter(|_| !self.ports.is_empty())
    }
}

/// The claims to all addresses, and who lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// Who has an address, whether it claims something of it or not.
    holders: BTreeSet<(IpAddr, Name)>,
    /// Services that have nothing of an address, with the one that has it, and why.
    losers: BTreeMap<IpAddr, BTreeMap<Name, String>>,
}

impl Claims {
    /// Sets a Service, from what it was to what it is. Addresses of which it claims something else
    /// are contested.
    pub(super) fn put(
        &mut self,
        name: &Name,
        (before, now): (Option<&Service>, Option<&Service>),
        contested: &mut BTreeSet<IpAddr>,
    ) {
        for address in before.into_iter().flat_map(Service::addresses) {
            self.holders.remove(&(*address, name.clone()));
        }
        for address in now.into_iter().flat_map(Service::addresses) {
            self.holders.insert((*address, name.clone()));
        }
        let none = Claimed::default();
        let [before, now] = [before, now].map(|service| service.map_or(&none, |s| &s.claimed));
        if before != now {
            contested.extend(before.addresses().chain(now.addresses()));
        }
    }

    /// The Services that have an address.
    pub(super) fn holders(&self, address: IpAddr) -> impl Iterator<Item = &Name> {
        let first = (address, Name::default());
        let holders = self.holders.range(first..);
        let holders = holders.take_while(move |(at, _)| *at == address);
        holders.map(|(_, name)| name)
    }

    /// Settles the claims to an address again. The Services for which that differs.
    pub(super) fn settle(
        &mut self,
        address: IpAddr,
        services: &BTreeMap<Name, Service>,
    ) -> Vec<Name> {
        let losers = self.losers_of(address, services);
        let before = match losers.is_empty() {
            true => self.losers.remove(&address),
            false => self.losers.insert(address, losers.clone()),
        };
        let before = before.unwrap_or_default();
        let both = merge_join(&before, &losers);
        let differ = both.filter(|(_, was, is)| was != is);
        differ.map(|(name, ..)| name.clone()).collect()
    }

    fn losers_of(
        &self,
        address: IpAddr,
        services: &BTreeMap<Name, Service>,
    ) -> BTreeMap<Name, String> {
        let group: Vec<_> = self.holders(address).collect();
        if group.len() < 2 {
            return BTreeMap::new();
        }
        let claims = group.into_iter().filter_map(|name| {
            let claimed = &services.get(name)?.claimed;
            let kind = claimed.kind_of(address)?;
            let claim = ServiceClaim::new(kind, claimed.age.clone(), name.clone());
            Some((claim, claimed))
        });
        let claims: BTreeMap<ServiceClaim, &Claimed> = claims.insert_each();
        let mut losers = BTreeMap::new();
        let mut taken: BTreeMap<_, &ServiceClaim> = BTreeMap::new();
        for (claim, claimed) in &claims {
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
                losers.insert(claim.service.clone(), reason);
            }
        }
        losers
    }

    /// The problem of a Service that has nothing of an address; `None` = it has something of it.
    pub(super) fn problem(&self, name: &Name, address: IpAddr) -> Option<Problem> {
        let reason = self.losers.get(&address)?.get(name)?;
        Some(Problem {
            code: ProblemCode::ServicesConflict,
            subject: subject(name, address),
            reason: reason.clone(),
        })
    }
}

/// An address of a Service, in problems.
pub(super) fn subject((namespace, name): &Name, address: IpAddr) -> String {
    format!("Service {namespace}/{name} {address}")
}
