//! Network policy in the kernel.

use caracal_agent::PolicyStatus;

use super::{count, total};
use crate::http::exposition::{MetricFamily, MetricKind};

pub(crate) fn families(status: &PolicyStatus) -> Vec<MetricFamily> {
    let counts = status.counts();
    vec![
        MetricFamily::new(
            "caracal_policy_endpoints",
            MetricKind::Gauge,
            "Endpoints of this node that policies judge.",
        )
        .upstream("felix_active_local_endpoints")
        .value(count(counts.endpoints)),
        MetricFamily::new(
            "caracal_policy_policies",
            MetricKind::Gauge,
            "Policies in this node's kernel; those that say the same are one.",
        )
        .upstream("felix_active_local_policies")
        .value(count(counts.policies)),
        MetricFamily::new(
            "caracal_policy_sets",
            MetricKind::Gauge,
            "Sets of addresses and ports that policies ask.",
        )
        .upstream("felix_ipsets_total")
        .value(count(counts.sets)),
        MetricFamily::new(
            "caracal_policy_elements",
            MetricKind::Gauge,
            "Elements of these sets.",
        )
        .value(count(counts.elements)),
        MetricFamily::new(
            "caracal_policy_refused",
            MetricKind::Gauge,
            "Chains that are closed because nft does not take them.",
        )
        .value(count(status.refused.len())),
        MetricFamily::new(
            "caracal_policy_transactions",
            MetricKind::Counter,
            "Transactions on the table of policy.",
        )
        .value(total(status.transactions)),
        MetricFamily::new(
            "caracal_policy_failures",
            MetricKind::Counter,
            "Passes that did not make the table what it should be.",
        )
        .value(total(status.failures)),
        MetricFamily::new(
            "caracal_policy_flows_ended",
            MetricKind::Counter,
            "Flows that were ended because a change did not allow them any more.",
        )
        .value(total(status.ended_flows())),
        MetricFamily::new(
            "caracal_policy_revision",
            MetricKind::Gauge,
            "Revision of the policies that are in force.",
        )
        .value(total(u64::try_from(status.revision).unwrap_or_default())),
        MetricFamily::new(
            "caracal_policy_last_write_seconds",
            MetricKind::Gauge,
            "Duration of the last change of the table of policy.",
        )
        .value(status.last_write.as_secs_f64()),
    ]
}
