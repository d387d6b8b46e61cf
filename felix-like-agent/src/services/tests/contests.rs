//! Two Services with one address and port: each pair of kinds, of both families, in each order in
//! which they may come.

use caracal_model::{Family, ServiceAddressKind};

use super::*;

const OLD: &str = "2026-01-01T00:00:00Z";
const NEW: &str = "2026-01-01T00:00:01Z";

const KINDS: [ServiceAddressKind; 4] = [
    ServiceAddressKind::ClusterIp,
    ServiceAddressKind::ExternalIp,
    ServiceAddressKind::LoadBalancer,
    ServiceAddressKind::NodePort,
];

/// What is contested: an address of nobody's, or a node port of this node.
#[derive(Clone, Copy, Debug)]
struct Contested {
    address: &'static str,
    port: u16,
}

impl Contested {
    fn between(kinds: [ServiceAddressKind; 2], family: Family) -> Self {
        let (address, port) = match (kinds.contains(&ServiceAddressKind::NodePort), family) {
            (false, Family::Ipv4) => ("192.0.2.1", 80),
            (false, Family::Ipv6) => ("2001:db8::1", 80),
            (true, Family::Ipv4) => ("10.0.0.1", 30080),
            (true, Family::Ipv6) => ("fd00::1", 30080),
        };
        Self { address, port }
    }

    /// A Service with a claim of a kind to it.
    fn claimed_by(self, name: &str, kind: ServiceAddressKind, created: &str) -> Value {
        let own = match (self.address.contains(':'), name) {
            (false, "aa") => "10.96.0.11",
            (false, _) => "10.96.0.12",
            (true, "aa") => "fd00:96::11",
            (true, _) => "fd00:96::12",
        };
        let cluster = match kind {
            ServiceAddressKind::ClusterIp => self.address,
            _ => own,
        };
        let mut spec = json!({"type": "ClusterIP", "clusterIP": cluster, "clusterIPs": [cluster],
            "ports": [{"port": self.port}]});
        let mut status = json!({});
        match kind {
            ServiceAddressKind::ClusterIp => {}
            ServiceAddressKind::ExternalIp => spec["externalIPs"] = json!([self.address]),
            ServiceAddressKind::LoadBalancer => {
                spec["type"] = json!("LoadBalancer");
                status = json!({"loadBalancer": {"ingress": [{"ip": self.address}]}});
            }
            ServiceAddressKind::NodePort => {
                spec["type"] = json!("NodePort");
                spec["ports"] = json!([{"port": 80, "nodePort": self.port}]);
            }
        }
        let metadata = json!({"name": name, "namespace": "shop", "creationTimestamp": created});
        json!({"kind": "Service", "metadata": metadata, "spec": spec, "status": status})
    }

    /// The Service that has it, and as what.
    fn holder(self, table: &ServiceTable) -> Option<(String, ServiceAddressKind)> {
        let all = table.entries();
        let mut found = all
            .iter()
            .filter(|(at, _)| at.address.to_string() == self.address && at.port == self.port);
        let holder = found
            .next()
            .map(|(_, entry)| (entry.service.clone(), entry.kind));
        assert!(found.next().is_none(), "one protocol");
        holder
    }

    /// Checks who has it, and that nobody but the other one is named.
    fn assert_holder(self, table: &ServiceTable, has: (&str, ServiceAddressKind), contest: bool) {
        let wanted = (format!("shop/{}", has.0), has.1);
        assert_eq!(self.holder(table), Some(wanted), "{self:?}");
        let mut problems = table.problems();
        problems.retain(|problem| problem.code == "services.conflict");
        assert_eq!(problems.len(), usize::from(contest), "{problems:?}");
        for problem in problems {
            let start = format!("shop/{} ({}) has it", has.0, has.1.as_str());
            assert!(problem.reason.starts_with(&start), "{}", problem.reason);
        }
    }
}

/// The rank of a kind, as docs/services.md has it.
fn rank(kind: ServiceAddressKind) -> u8 {
    match kind {
        ServiceAddressKind::ClusterIp => 0,
        ServiceAddressKind::ExternalIp | ServiceAddressKind::LoadBalancer => 1,
        ServiceAddressKind::NodePort => 2,
    }
}

/// All pairs of claims to one address and port: the one that has it first. A cluster address is no
/// machine's, so that it meets no node port.
fn contests() -> Vec<(Contested, [(Value, ServiceAddressKind); 2])> {
    let mut all = Vec::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        for has in KINDS {
            for loses in KINDS.into_iter().filter(|kind| rank(*kind) >= rank(has)) {
                let kinds = [has, loses];
                let of_machine = kinds.contains(&ServiceAddressKind::NodePort);
                if of_machine && kinds.contains(&ServiceAddressKind::ClusterIp) {
                    continue;
                }
                let contested = Contested::between(kinds, family);
                for names in [["aa", "zz"], ["zz", "aa"]] {
                    for created in [[OLD, NEW], [NEW, OLD]] {
                        if rank(has) == rank(loses) && created[0] == NEW {
                            continue;
                        }
                        let claim = |n: usize| {
                            let document = contested.claimed_by(names[n], kinds[n], created[n]);
                            (document, kinds[n])
                        };
                        all.push((contested, [claim(0), claim(1)]));
                    }
                }
            }
        }
    }
    all
}

#[test]
fn kind_and_age_decide_whoever_comes_last() {
    let all = contests();
    // Of each family: three pairs of one rank and kind, two of external and load balancer (both
    // ways), two of a cluster address with these, two of these with a node port; each with both
    // names, and those of two ranks with both ages.
    assert_eq!(all.len(), 2 * (6 * 2 + 4 * 4), "{all:#?}");
    for (contested, claims) in all {
        let documents = claims.each_ref().map(|(document, _)| document.clone());
        let [has, other] = claims
            .each_ref()
            .map(|(document, kind)| (document["metadata"]["name"].as_str().unwrap(), *kind));
        // Both at a start.
        let (_, at_once) = table(&documents);
        for first in [0, 1] {
            // One, and then the other.
            let (mut ours, mut kernel) = table(&documents[first..=first]);
            contested.assert_holder(&ours, [has, other][first], false);
            kernel.run(&ours.follow(&snapshot(&documents), &own()).unwrap());
            contested.assert_holder(&ours, has, true);
            assert_eq!(kernel.content(), at_once.content(), "{contested:?}");

            // A restart over what is in the kernel.
            let listing = kernel.listing();
            let mut anew = ServiceTable::default();
            assert!(anew.follow(&snapshot(&documents), &own()).is_none());
            kernel.run(&anew.adopt(Some(&listing)));
            contested.assert_holder(&anew, has, true);
            assert_eq!(kernel.content(), at_once.content(), "{contested:?}");

            // Who has it goes, and comes back.
            kernel.run(&anew.follow(&snapshot(&documents[1..]), &own()).unwrap());
            contested.assert_holder(&anew, other, false);
            kernel.run(&anew.follow(&snapshot(&documents), &own()).unwrap());
            contested.assert_holder(&anew, has, true);
            assert_eq!(kernel.content(), at_once.content(), "{contested:?}");
        }
    }
}

#[test]
fn a_cluster_address_is_refused_where_a_node_port_is() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let kinds = [ServiceAddressKind::ClusterIp, ServiceAddressKind::NodePort];
        let contested = Contested::between(kinds, family);
        let [cluster, node_port] = [("aa", kinds[0]), ("zz", kinds[1])]
            .map(|(name, kind)| contested.claimed_by(name, kind, OLD));
        let (ours, _) = table(&[cluster, node_port]);
        let has = ("shop/zz".to_owned(), ServiceAddressKind::NodePort);
        assert_eq!(contested.holder(&ours), Some(has));
        let refused = ours.problems();
        let refused = refused
            .iter()
            .find(|problem| problem.code == "services.refused");
        assert!(
            refused.is_some_and(|p| p.subject.contains("shop/aa")),
            "{refused:?}"
        );
    }
}
