//! Which of several Services has an address. Who translates addresses and who announces them asks
//! here, so that packets are sent to the nodes that know what to do with them.

use serde::Serialize;

use crate::KubernetesService;

/// Kind of a service's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ServiceAddressKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// An address of this node, with `nodePort`.
    NodePort,
}

impl ServiceAddressKind {
    /// Which of several Services has an address: the lower kind.
    const fn precedence(self) -> u8 {
        match self {
            Self::ClusterIp => 0,
            Self::ExternalIp | Self::LoadBalancer => 1,
            Self::NodePort => 2,
        }
    }

    /// The word of Kubernetes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::ExternalIp => "ExternalIP",
            Self::LoadBalancer => "LoadBalancer",
            Self::NodePort => "NodePort",
        }
    }
}

/// Age of a Service, the oldest first. One that does not say its age is younger than all that do.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAge {
    is_unknown: bool,
    created: Option<String>,
    /// Of Services of one second: nobody chooses it, as one may choose a name.
    uid: Option<String>,
}

impl ServiceAge {
    /// What a Service says of itself.
    #[must_use]
    pub fn of(service: &KubernetesService) -> Self {
        let (created, uid) = service.created();
        Self {
            is_unknown: created.is_none(),
            created: created.map(str::to_owned),
            uid: uid.map(str::to_owned),
        }
    }
}

/// The claim of a Service to an address and port. The lowest one has it: a cluster address comes
/// before load balancers' and external ones, these before node ports; then the older Service. So a
/// newcomer takes nothing, and the order is the same on every node and after a restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceClaim {
    precedence: u8,
    age: ServiceAge,
    /// Namespace and name of the Service.
    pub service: (String, String),
}

impl ServiceClaim {
    /// The claim of a Service of this age and name.
    #[must_use]
    pub fn new(kind: ServiceAddressKind, age: ServiceAge, service: (String, String)) -> Self {
        Self {
            precedence: kind.precedence(),
            age,
            service,
        }
    }

    /// Why this claim comes before another one.
    #[must_use]
    pub const fn why_before(&self, other: &Self) -> &'static str {
        match self.precedence == other.precedence {
            true => "it is the older one",
            false => "that kind of address comes first",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [(ServiceAddressKind, u8); 4] = [
        (ServiceAddressKind::ClusterIp, 0),
        (ServiceAddressKind::ExternalIp, 1),
        (ServiceAddressKind::LoadBalancer, 1),
        (ServiceAddressKind::NodePort, 2),
    ];

    fn age(created: &str, uid: &str) -> ServiceAge {
        let metadata = serde_json::json!({"name": "s", "creationTimestamp": created, "uid": uid});
        let service = serde_json::json!({"metadata": metadata, "spec": {}});
        ServiceAge::of(&serde_json::from_value(service).expect("a Service"))
    }

    #[test]
    fn of_each_pair_of_kinds_rank_then_age_decide_and_never_the_name() {
        // The oldest first: by time, then by identifier, and who does not say when is youngest.
        let ages = [
            age("2026-01-01T00:00:00Z", "z"),
            age("2026-01-02T00:00:00Z", "a"),
            age("2026-01-02T00:00:00Z", "b"),
            age("", "a"),
        ];
        for (kind, rank) in KINDS {
            for (other_kind, other_rank) in KINDS {
                for (n, older) in ages.iter().enumerate() {
                    for younger in &ages[n + 1..] {
                        for names in [["a", "z"], ["z", "a"]] {
                            let name = |n: usize| ("shop".to_owned(), names[n].to_owned());
                            let one = ServiceClaim::new(kind, older.clone(), name(0));
                            let other = ServiceClaim::new(other_kind, younger.clone(), name(1));
                            assert_eq!(one < other, rank <= other_rank, "{one:?} {other:?}");
                            assert_eq!(other < one, rank > other_rank, "{one:?} {other:?}");
                        }
                    }
                }
            }
        }
    }
}
