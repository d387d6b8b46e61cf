//! Services in the kernel.

use std::sync::Arc;

use caracal_agent::{ServiceEntry, ServiceStatus};
use caracal_model::ServiceAddressKind;

use super::{count, total};
use crate::http::exposition::{MetricFamily, MetricKind};

pub(crate) fn families(status: &ServiceStatus) -> Vec<MetricFamily> {
    let local = |internal: bool| {
        let stranded = |e: &&Arc<ServiceEntry>| {
            e.local
                && e.here.is_empty()
                && !e.cluster.is_empty()
                && internal == (e.kind == ServiceAddressKind::ClusterIp)
        };
        count(status.entries.values().filter(stranded).count())
    };
    let without = [("internal", local(true)), ("external", local(false))];
    let without = without.map(|(policy, n)| (vec![("traffic_policy", policy.to_owned())], n));
    vec![
        MetricFamily::new(
            "caracal_services_addresses",
            MetricKind::Gauge,
            "Addresses and ports of services that are translated on this node.",
        )
        .value(count(status.entries.len())),
        MetricFamily::new(
            "caracal_services_no_local_endpoints",
            MetricKind::Gauge,
            "Addresses of policy Local without an endpoint on this node.",
        )
        .upstream("kubeproxy_sync_proxy_rules_no_local_endpoints_total")
        .samples(without),
        MetricFamily::new(
            "caracal_services_changes",
            MetricKind::Counter,
            "Elements and chains of the table of services that were changed.",
        )
        .value(total(status.changed)),
        MetricFamily::new(
            "caracal_services_transactions",
            MetricKind::Counter,
            "Transactions on the table of services.",
        )
        .value(total(status.transactions)),
        MetricFamily::new(
            "caracal_services_failures",
            MetricKind::Counter,
            "Passes that did not make the table what it should be.",
        )
        .upstream("kubeproxy_sync_proxy_rules_nftables_sync_failures_total")
        .value(total(status.failures)),
        MetricFamily::new(
            "caracal_services_flows_forgotten",
            MetricKind::Counter,
            "Flows of UDP to endpoints that are gone, which conntrack was told to forget.",
        )
        .upstream("kubeproxy_conntrack_reconciler_deleted_entries_total")
        .value(total(status.forgotten_flows)),
        MetricFamily::new(
            "caracal_services_connections_reset",
            MetricKind::Counter,
            "Connections of TCP to endpoints that are gone, which were reset.",
        )
        .value(total(status.reset_connections)),
        MetricFamily::new(
            "caracal_services_revision",
            MetricKind::Gauge,
            "Revision of the services that are in force.",
        )
        .value(total(u64::try_from(status.revision).unwrap_or_default())),
        MetricFamily::new(
            "caracal_services_last_write_seconds",
            MetricKind::Gauge,
            "Duration of the last change of the table of services.",
        )
        .value(status.last_write.as_secs_f64()),
    ]
}
