//! The agent's part: passes, changes, routes in the kernel.

use caracal_agent::AgentStatus;

use super::{count, one_of, total};
use crate::http::exposition::{MetricFamily, MetricKind};

/// Phases of [`caracal_agent::Phase`].
const PHASES: [&str; 3] = ["learning", "synced", "frozen"];

pub(crate) fn families(status: &AgentStatus) -> Vec<MetricFamily> {
    let kernel = &status.kernel;
    let routes = kernel
        .routes
        .iter()
        .map(|(kind, number)| (vec![("kind", kind.clone())], count(*number)));
    let revision = u64::try_from(kernel.revision).unwrap_or_default();
    vec![
        MetricFamily::new(
            "caracal_dataplane_phase",
            MetricKind::Gauge,
            "1 for the phase that the agent is in; nothing is deleted unless it is synced.",
        )
        .samples(one_of("phase", &PHASES, &kernel.phase)),
        MetricFamily::new(
            "caracal_dataplane_apply_time_seconds",
            MetricKind::Summary,
            "Passes over the kernel's state, and the time spent in them.",
        )
        .upstream("felix_int_dataplane_apply_time_seconds")
        .observed(total(status.passes), status.spent.as_secs_f64()),
        MetricFamily::new(
            "caracal_dataplane_changes",
            MetricKind::Counter,
            "Changes made in the kernel.",
        )
        .value(total(status.applied)),
        MetricFamily::new(
            "caracal_dataplane_revision",
            MetricKind::Gauge,
            "Revision of the last snapshot that was applied without errors.",
        )
        .value(total(revision)),
        MetricFamily::new(
            "caracal_route_table_routes",
            MetricKind::Gauge,
            "Routes that are wanted in the kernel, by kind.",
        )
        .samples(routes),
        MetricFamily::new(
            "caracal_tunnels_up",
            MetricKind::Gauge,
            "Tunnel devices that are up.",
        )
        .value(count(kernel.tunnels.len())),
    ]
}
