//! What one node announces of Services, by Service: it follows the documents that change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use caracal_model::{InsertEach, NodeName, Prefix, Problem, Snapshot};

use super::{Documents, Name, Rules, ServiceRoutes, Services};
use crate::wanted::Wanted;

/// Service routes that a node announces, and whose they are.
#[derive(Debug)]
pub(crate) struct PlannedServices {
    services: Services,
    rules: Rules,
    /// Ranges that are announced, and those that are not for the kernel.
    announced: BTreeSet<Prefix>,
    rejected: BTreeSet<Prefix>,
    addresses: Wanted<Name>,
    /// Addresses that are none, and those that are not announced, because they are another
    /// Service's, or no Service's.
    problems: BTreeMap<Name, BTreeSet<Problem>>,
}

/// What differs between two plans of Services.
#[derive(Debug, Default)]
pub(crate) struct ServicesDiffer {
    /// Prefixes that are announced or not for the kernel from now on, or no longer.
    pub(crate) turned: BTreeSet<Prefix>,
    /// The problems differ.
    pub(crate) problems: bool,
}

impl PlannedServices {
    /// All Services; `None` where the cluster announces none.
    pub(crate) fn new(
        snapshot: &Snapshot,
        node: &NodeName,
        datastore: &BTreeSet<IpAddr>,
    ) -> Option<Self> {
        let rules = Rules::new(snapshot, node, datastore)?;
        let mut planned = Self {
            services: Services::default(),
            announced: rules.announced(),
            rejected: rules.rejected(),
            rules,
            addresses: Wanted::default(),
            problems: BTreeMap::new(),
        };
        planned.follow(&Documents::default(), snapshot);
        Some(planned)
    }

    /// Plans again the Services that a change of the documents, or of nodes, concerns.
    pub(crate) fn follow(&mut self, was: &Documents, is: &Snapshot) -> ServicesDiffer {
        let mut differ = ServicesDiffer::default();
        for name in self.services.follow(was, is) {
            let documents = &is.documents;
            let (addresses, mut problems) = self.services.addresses(&name, &self.rules, documents);
            let faults = self.services.faults.get(&name);
            problems.extend(faults.into_iter().flatten().cloned());
            let before = self.problems.remove(&name).unwrap_or_default();
            differ.problems |= before != problems;
            if !problems.is_empty() {
                self.problems.insert(name.clone(), problems);
            }
            let addresses = addresses.into_iter().collect();
            self.addresses.set(name, addresses, &mut differ.turned);
        }
        differ
    }

    /// True when the node announces a range or address of Services.
    pub(crate) fn announces(&self, prefix: &Prefix) -> bool {
        let is_wanted = self.announced.contains(prefix) || self.addresses.is_wanted(prefix);
        is_wanted && !self.rules.excluded
    }

    /// True when routes to it are not for the kernel.
    pub(crate) fn rejects(&self, prefix: &Prefix) -> bool {
        self.rejected.contains(prefix) || self.addresses.is_wanted(prefix)
    }

    /// What is wrong with the Services.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    /// All of it.
    pub(crate) fn routes(&self) -> ServiceRoutes {
        let rejected = self.rejected.iter().chain(self.addresses.prefixes());
        let rejected: BTreeSet<Prefix> = rejected.copied().insert_each();
        let announced = rejected.iter().filter(|prefix| self.announces(prefix));
        ServiceRoutes {
            announced: announced.copied().insert_each(),
            rejected,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::resources_from_yaml;

    const SERVICES: usize = 50;

    fn apply(snapshot: &mut Snapshot, text: &str) {
        assert_eq!(resources_from_yaml(text).unwrap().apply(snapshot), []);
    }

    /// A change concerns its own Service, and who has an address in common with it.
    #[test]
    fn few_services_are_concerned() {
        let mut snapshot = Snapshot::default();
        let service = |n: usize, external: usize, year: u16| {
            format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: s{n}, namespace: n, creationTimestamp: '{year}-01-01T00:00:00Z'}},
                  spec: {{clusterIP: 10.96.0.{n}, externalIPs: [192.0.2.{external}], ports: [{{port: 80}}]}}}}\n---\n"
            )
        };
        let all: String = (0..SERVICES).map(|n| service(n, n, 2025)).collect();
        apply(&mut snapshot, &all);
        let mut services = Services::default();
        let none = Documents::default();
        assert_eq!(services.follow(&none, &snapshot).len(), SERVICES);
        let slice = |of: usize| {
            format!(
                "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: x, namespace: n,
                  labels: {{kubernetes.io/service-name: s{of}}}}}, addressType: IPv4, endpoints: [{{nodeName: a}}]}}"
            )
        };
        for (change, expected) in [
            (slice(7), &["s7"][..]),
            // The slice becomes another one's.
            (slice(8), &["s7", "s8"]),
            (service(9, 10, 2026), &["s9"]),
            // The older one loses what it had, the younger one gets it.
            (service(9, 10, 2024), &["s10", "s9"]),
            (service(9, 9, 2024), &["s10", "s9"]),
        ] {
            let before = snapshot.documents.clone();
            apply(&mut snapshot, &change);
            let concerned = services.follow(&before, &snapshot);
            let names: Vec<&str> = concerned.iter().map(|(_, name)| name.as_str()).collect();
            assert_eq!(names, expected, "{change}");
            let (anew, _) = Services::from_snapshot(&snapshot);
            assert_eq!(services, anew, "{change}");
        }
    }
}
