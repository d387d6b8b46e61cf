//! The picture of the datastore: how fresh, and of how large a cluster.

use caracal_datastore::View;

use super::{count, one_of, total};
use crate::http::exposition::{MetricFamily, MetricKind};

/// States of [`caracal_datastore::Freshness`].
const STATES: [&str; 3] = ["fresh", "lagging", "stale"];

pub(crate) fn families(view: &View) -> Vec<MetricFamily> {
    let snapshot = &view.snapshot;
    let revision = u64::try_from(view.revision).unwrap_or_default();
    vec![
        MetricFamily::new(
            "caracal_datastore_state",
            MetricKind::Gauge,
            "1 for the state that the datastore is in as this node sees it.",
        )
        .samples(one_of("state", &STATES, view.freshness.as_str())),
        MetricFamily::new(
            "caracal_datastore_revision",
            MetricKind::Gauge,
            "Revision of the last change from which something follows for this node.",
        )
        .value(total(revision)),
        MetricFamily::new(
            "caracal_datastore_wakes",
            MetricKind::Counter,
            "Changes of the datastore that woke this node; those of other nodes' pods do not.",
        )
        .value(total(view.wakes)),
        MetricFamily::new(
            "caracal_cluster_hosts",
            MetricKind::Gauge,
            "Nodes of the cluster.",
        )
        .upstream("felix_cluster_num_hosts")
        .value(count(snapshot.nodes.len())),
        MetricFamily::new(
            "caracal_cluster_workload_endpoints",
            MetricKind::Gauge,
            "Workloads of the cluster, by their endpoints or the addresses that blocks say they have.",
        )
        .upstream("felix_cluster_num_workload_endpoints")
        .value(count(snapshot.workload_count())),
    ]
}
