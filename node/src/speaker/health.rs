//! How a standalone speaker is, for probes and scrapers.

use super::caches::Followed;
use crate::admin::routes::text;
use crate::http::exposition::MetricFamily;
use crate::http::health::HealthReport;
use crate::http::{Observe, in_time};
use crate::metrics;
use crate::peer_problems;

use caracal_bgp::{SpeakerHandle, SpeakerStatus};
use tokio::sync::watch;

/// Looks at a speaker.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) speaker: SpeakerHandle,
    pub(super) caches: watch::Receiver<Followed>,
}

impl Health {
    async fn status(&self) -> Result<SpeakerStatus, String> {
        in_time(self.speaker.status()).await?.map_err(text)
    }
}

impl Observe for Health {
    async fn live(&self) -> HealthReport {
        let answers = self.status().await.map(|_| "its task answers".to_owned());
        HealthReport::default().with("speaker", answers)
    }

    async fn ready(&self) -> HealthReport {
        HealthReport::default().with("bgp", metrics::bgp::readiness(&self.status().await))
    }

    async fn metrics(&self) -> Vec<MetricFamily> {
        let status = self.status().await;
        let report = HealthReport::default().with("bgp", metrics::bgp::readiness(&status));
        let mut families = metrics::process::families();
        let problems = status.as_ref().map(peer_problems::problems);
        let mut problems = problems.unwrap_or_default();
        problems.extend(self.caches.borrow().problems());
        families.extend(metrics::probes::families(&report, &problems));
        if let Ok(status) = &status {
            families.extend(metrics::bgp::families(status));
        }
        families
    }
}
