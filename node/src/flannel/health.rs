//! How the daemon of a flannel network is, for probes and scrapers.

use std::sync::Arc;

use caracal_agent::PlannedStatus;
use caracal_flannel::LeaseView;
use tokio::sync::watch;

use crate::http::Observe;
use crate::http::exposition::{MetricFamily, MetricKind};
use crate::http::health::HealthReport;
use crate::metrics;

use super::relay::RelayObserver;

/// What is known once there is a lease.
pub(super) struct Following {
    pub(super) views: watch::Receiver<Arc<LeaseView>>,
    pub(super) status: watch::Receiver<Arc<PlannedStatus>>,
    /// With the backend `udp`.
    pub(super) relay: Option<RelayObserver>,
}

/// Looks at the daemon; nothing to look at before there is a lease.
#[derive(Clone)]
pub(super) struct FlannelHealth(pub(super) watch::Receiver<Option<Following>>);

impl FlannelHealth {
    fn following(&self) -> Option<(Arc<LeaseView>, Arc<PlannedStatus>)> {
        let following = self.0.borrow();
        let Following { views, status, .. } = following.as_ref()?;
        Some((Arc::clone(&views.borrow()), Arc::clone(&status.borrow())))
    }

    fn relay(&self) -> Vec<MetricFamily> {
        let following = self.0.borrow();
        let relay = following.as_ref().and_then(|f| f.relay.as_ref());
        relay.map(RelayObserver::families).unwrap_or_default()
    }
}

impl Observe for FlannelHealth {
    async fn live(&self) -> HealthReport {
        // It answers, on the only thread.
        HealthReport::default().with("flannel", Ok("flanneld is running".to_owned()))
    }

    /// etcd away is no reason to be taken out of service: packets go on.
    async fn ready(&self) -> HealthReport {
        let verdict = match self.following() {
            Some((view, status)) if status.passes > 0 => Ok(format!(
                "{} is this node's, {} routes to others",
                view.own.subnets, status.routes
            )),
            Some(_) => Err("the kernel was not written yet".to_owned()),
            None => Err("no lease yet; the log says why".to_owned()),
        };
        HealthReport::default().with("flannel", verdict)
    }

    async fn metrics(&self) -> Vec<MetricFamily> {
        let mut families = metrics::process::families();
        let ready = self.ready().await;
        let Some((view, status)) = self.following() else {
            families.extend(metrics::probes::families(&ready, &[]));
            return families;
        };
        families.extend(metrics::probes::families(&ready, &status.problems));
        let gauge = |name, help, value: usize| {
            MetricFamily::new(name, MetricKind::Gauge, help).value(metrics::count(value))
        };
        families.extend([
            gauge(
                "caracal_flannel_leases",
                "Leases of all nodes.",
                view.leases.iter().count(),
            ),
            gauge(
                "caracal_flannel_leases_unreadable",
                "Leases whose values cannot be read.",
                view.leases.unreadable().len(),
            ),
            gauge(
                "caracal_flannel_connected",
                "1 while etcd's leases are followed.",
                usize::from(view.connected),
            ),
            gauge(
                "caracal_flannel_settled",
                "1 while what is not wanted may be deleted.",
                usize::from(view.settled),
            ),
            gauge(
                "caracal_flannel_routes",
                "Routes to other nodes that are wanted.",
                status.routes,
            ),
            gauge(
                "caracal_flannel_refused",
                "Changes that the kernel refused at the last comparison.",
                status.refused.len(),
            ),
            MetricFamily::new(
                "caracal_flannel_changes",
                MetricKind::Counter,
                "Changes of the kernel that were carried out.",
            )
            .value(metrics::total(status.applied)),
        ]);
        families.extend(self.relay());
        families
    }
}
