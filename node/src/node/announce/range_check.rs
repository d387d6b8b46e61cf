//! Looks for ranges of different roles that lie over each other ([`range_conflicts`]) and reports
//! them. It never changes anything: what has been put in use stays.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use caracal_datastore::{Datastore, Store, View};
use caracal_model::{Prefix, Problem, Snapshot, range_conflicts};
use tokio::sync::watch;

use crate::node::problems::ProblemReporter;

/// Pause before the ranges of the cluster's Services are asked for again.
const AGAIN: Duration = Duration::from_secs(60);

/// What was compared last, and what came of it.
#[derive(Debug, Default)]
struct Compared {
    of: Option<(Snapshot, BTreeSet<IpAddr>, Vec<Prefix>)>,
    conflicts: Vec<Problem>,
}

impl Compared {
    /// Compares again where something differs that a conflict follows from.
    fn follow(
        &mut self,
        snapshot: &Snapshot,
        datastore: &BTreeSet<IpAddr>,
        services: &[Prefix],
    ) -> &[Problem] {
        let is_same = self.of.as_ref().is_some_and(|(was, known, told)| {
            known == datastore
                && told == services
                && was.pools.is_same(&snapshot.pools)
                && was.nodes.is_same(&snapshot.nodes)
                && was.bgp_configurations.is_same(&snapshot.bgp_configurations)
                && was.bgp_peers.is_same(&snapshot.bgp_peers)
                && (same_workloads(was, snapshot) || !may_be_workloads(snapshot, datastore))
        });
        if !is_same {
            self.conflicts = range_conflicts(snapshot, datastore, services);
            self.of = Some((snapshot.clone(), datastore.clone(), services.to_vec()));
        }
        &self.conflicts
    }
}

fn same_workloads(was: &Snapshot, is: &Snapshot) -> bool {
    was.blocks.is_same(&is.blocks) && was.workloads.is_same(&is.workloads)
}

/// A router or the datastore is inside a pool: no conflict while it is a pod.
fn may_be_workloads(snapshot: &Snapshot, datastore: &BTreeSet<IpAddr>) -> bool {
    let peers = snapshot.bgp_peers.values();
    let peers = peers.filter_map(|peer| Some(peer.spec.peer_address()?.0));
    let mut all = peers.chain(datastore.iter().copied()).map(Prefix::host);
    all.any(|host| {
        let mut pools = snapshot.pools.values();
        pools.any(|pool| pool.spec.prefix().covers(&host))
    })
}

/// The ranges of the cluster's Services, which stay as they are. Asks until there is an answer.
async fn cluster_services(store: &Datastore) -> Vec<Prefix> {
    let mut told = false;
    loop {
        match store.service_ranges().await {
            Ok(ranges) => return ranges,
            Err(error) if error.is_transient() || told => {
                tracing::debug!(%error, "the range of the cluster's Services is not known");
            }
            Err(error) => {
                told = true;
                tracing::warn!(
                    %error,
                    "the range of the cluster's Services is not known; pools are not compared with it"
                );
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Reports until a channel closes.
pub(crate) async fn report_range_conflicts(
    store: Datastore,
    mut view: watch::Receiver<View>,
    mut datastore: watch::Receiver<BTreeSet<IpAddr>>,
    problems: ProblemReporter,
) {
    let mut compared = Compared::default();
    let mut services: Option<Vec<Prefix>> = None;
    let asked = cluster_services(&store);
    tokio::pin!(asked);
    loop {
        let snapshot = view.borrow_and_update().snapshot.clone();
        let addresses = datastore.borrow_and_update().clone();
        let told = services.as_deref().unwrap_or_default();
        problems.warn(compared.follow(&snapshot, &addresses, told).to_vec());
        let alive = tokio::select! {
            changed = view.changed() => changed,
            changed = datastore.changed() => changed,
            found = &mut asked, if services.is_none() => {
                services = Some(found);
                continue;
            }
        };
        if alive.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use caracal_model::{Key, Kind};
    use serde_json::{Value, json};

    use super::*;

    fn put(snapshot: &mut Snapshot, kind: Kind, name: &str, spec: Value) {
        let resource = json!({"metadata": {"name": name}, "spec": spec}).to_string();
        let path = Key::resource(kind, name).to_path();
        snapshot.apply(&path, Some(resource.as_bytes()), 1);
    }

    #[test]
    fn whatever_a_conflict_follows_from_is_compared_again() {
        let (mut compared, mut snapshot) = (Compared::default(), Snapshot::default());
        let mut datastore = BTreeSet::new();
        let steps = [
            (Kind::IpPool, "pods", json!({"cidr": "10.0.0.0/8"}), 0),
            (
                Kind::Node,
                "a",
                json!({"bgp": {"ipv4Address": "10.0.0.1/24"}}),
                1,
            ),
            (
                Kind::BgpConfiguration,
                "default",
                json!({"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}),
                2,
            ),
            (Kind::IpPool, "pods", json!({"cidr": "10.244.0.0/16"}), 0),
            (Kind::BgpPeer, "tor", json!({"peerIP": "10.244.0.9"}), 1),
        ];
        for (kind, name, spec, conflicts) in steps {
            put(&mut snapshot, kind, name, spec);
            let found = compared.follow(&snapshot, &datastore, &[]).len();
            assert_eq!(found, conflicts, "after {kind:?} {name}");
        }
        // The router turns out to be a pod.
        let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/d/a-k8s-p-eth0";
        let endpoint = json!({"metadata": {"name": "a-k8s-p-eth0", "namespace": "d"},
            "spec": {"node": "a", "interfaceName": "cali1", "ipNetworks": ["10.244.0.9/32"]}});
        snapshot.apply(key, Some(endpoint.to_string().as_bytes()), 2);
        assert_eq!(compared.follow(&snapshot, &datastore, &[]), []);
        datastore.extend(["10.244.0.10".parse::<IpAddr>().ok()].into_iter().flatten());
        assert_eq!(compared.follow(&snapshot, &datastore, &[]).len(), 1);
        // The cluster's Services become known.
        let told = [Prefix::v4(Ipv4Addr::new(10, 244, 128, 0), 17)];
        assert_eq!(compared.follow(&snapshot, &datastore, &told).len(), 2);
    }
}
