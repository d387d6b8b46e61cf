//! How the node is, for probes and scrapers. Alive means that the owners of state answer; ready
//! means that what the datastore says is in the kernel and that peers were heard. A peer that is
//! lost later is a metric and a problem, and no reason to call the whole node unready: its routes
//! still carry packets.

use std::sync::Arc;

use caracal_agent::AgentStatus;
use caracal_bgp::SpeakerStatus;
use caracal_datastore::View;
use caracal_model::ProblemCode;

use crate::admin::routes::text;
use crate::http::exposition::MetricFamily;
use crate::http::health::HealthReport;
use crate::http::{Observe, in_time};
use crate::metrics;
use crate::node::answers::{Answers, NodeStage, Owners};
use crate::node::kernel::services::Translated;

/// The kernel's phase in which everything wanted is there and everything unwanted is gone.
const SYNCED: &str = "synced";

impl Observe for Answers {
    async fn live(&self) -> HealthReport {
        match self.owners() {
            Err(reason) => HealthReport::default().with("start", Ok(reason)),
            Ok(owners) => HealthReport::default()
                .with("speaker", speaker(&owners).await.map(|_| answers()))
                .with("agent", agent_answers(&owners).await),
        }
    }

    async fn ready(&self) -> HealthReport {
        match self.owners() {
            Err(reason) => HealthReport::default().with("start", Err(reason)),
            Ok(owners) => ready(&owners, &speaker(&owners).await),
        }
    }

    async fn metrics(&self) -> Vec<MetricFamily> {
        let mut families = metrics::process::families();
        let Ok(owners) = self.owners() else {
            let report = self.ready().await;
            families.extend(metrics::probes::families(&report, &[]));
            return families;
        };
        let bgp = speaker(&owners).await;
        let problems = owners.problems(bgp.as_ref().ok());
        families.extend(metrics::probes::families(&checks(&owners, &bgp), &problems));
        let view = owners.view.borrow().clone();
        families.extend(metrics::datastore::families(&view));
        families.extend(metrics::ipam::families(
            &view.snapshot,
            &self.config.node,
            *owners.collected.borrow(),
        ));
        families.extend(metrics::dataplane::families(&owners.kernel.borrow()));
        let translated = owners.translated.borrow().clone();
        families.extend(
            translated
                .status()
                .into_iter()
                .flat_map(|s| metrics::services::families(s)),
        );
        let enforced = owners.enforced.borrow().clone();
        let enforced = enforced.status();
        families.extend(enforced.into_iter().flat_map(metrics::policy::families));
        if let Ok(bgp) = &bgp {
            families.extend(metrics::bgp::families(bgp));
        }
        families
    }
}

impl Answers {
    fn owners(&self) -> Result<Arc<Owners>, String> {
        match &*self.stage.borrow() {
            NodeStage::Starting { reason, .. } => Err(reason.clone()),
            NodeStage::Running(owners) => Ok(Arc::clone(owners)),
        }
    }
}

fn answers() -> String {
    "its task answers".to_owned()
}

async fn speaker(owners: &Owners) -> Result<SpeakerStatus, String> {
    in_time(owners.speaker.status()).await?.map_err(text)
}

async fn agent_answers(owners: &Owners) -> Result<String, String> {
    match in_time(owners.reconciler.answers()).await? {
        true => Ok(answers()),
        false => Err("its task has ended".to_owned()),
    }
}

/// Problems that a probe names; `caracal status` has all.
const NOTED: usize = 10;

fn ready(owners: &Owners, bgp: &Result<SpeakerStatus, String>) -> HealthReport {
    let problems = owners.problems(bgp.as_ref().ok());
    let more = problems.len().saturating_sub(NOTED);
    let notes = problems.iter().take(NOTED);
    let notes = notes.map(|p| format!("{} {}: {}", p.code, p.subject, p.reason));
    let more = (more > 0).then(|| format!("{more} more problems: caracal status"));
    checks(owners, bgp).noting(notes.chain(more))
}

fn checks(owners: &Owners, bgp: &Result<SpeakerStatus, String>) -> HealthReport {
    HealthReport::default()
        .with("datastore", datastore(&owners.view.borrow()))
        .with("kernel", kernel(&owners.kernel.borrow()))
        .with("services", services(&owners.translated.borrow()))
        .with("bgp", metrics::bgp::readiness(bgp))
}

fn datastore(view: &View) -> Result<String, String> {
    let revision = view.revision;
    match view.freshness.reason() {
        // Routes and pods go on, and no other process here could do more: a probe that failed would
        // take every node of the cluster out of service.
        None if view.snapshot.locked => Ok(format!(
            "fresh at revision {revision}, and locked (datastore.locked)"
        )),
        None => Ok(format!("fresh at revision {revision}")),
        Some(reason) => Err(format!(
            "{} since revision {revision}: {reason}",
            view.freshness.as_str()
        )),
    }
}

/// Routes that are in step are not enough: rules keep pods from what is the nodes', and masquerade.
fn kernel(status: &AgentStatus) -> Result<String, String> {
    let kernel = &status.kernel;
    let mut problems = status.problems.iter();
    let unwritten = problems.find(|p| p.code == ProblemCode::AgentRulesUnwritten);
    if let Some(problem) = unwritten {
        return Err(format!("rules are not written: {}", problem.reason));
    }
    let reason = kernel.reason.as_deref();
    match kernel.phase.as_str() {
        SYNCED => Ok(format!(
            "in step with the datastore at revision {}",
            kernel.revision
        )),
        "" => Err("no pass over the kernel's state yet".to_owned()),
        phase => Err(format!("{phase}: {}", reason.unwrap_or("no reason given"))),
    }
}

/// Whether Services are translated, where this node is to do that.
fn services(translated: &Translated) -> Result<String, String> {
    match translated {
        Translated::Unknown => Err("the table of services is not written yet".to_owned()),
        Translated::Nothing(reason) => Ok(format!("not translated: {reason}")),
        Translated::Services(status) => match status.failing_since {
            Some(since) => Err(format!(
                "the table of services cannot be written, for {} s (services.unwritten)",
                since.elapsed().as_secs()
            )),
            None => Ok(format!("translated, of revision {}", status.revision)),
        },
    }
}

#[cfg(test)]
mod tests {
    use caracal_agent::ServiceStatus;
    use caracal_model::{KernelStatus, Problem};
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn the_kernel_is_ready_when_it_is_in_step_and_says_why_not() {
        let status = |phase: &str, reason: Option<&str>| AgentStatus {
            kernel: KernelStatus {
                phase: phase.to_owned(),
                reason: reason.map(str::to_owned),
                revision: 9,
                ..KernelStatus::default()
            },
            ..AgentStatus::default()
        };
        assert!(kernel(&status("synced", None)).is_ok_and(|text| text.ends_with("revision 9")));
        let waits = kernel(&status("learning", Some("waiting for End-of-RIB from a")));
        assert_eq!(
            waits,
            Err("learning: waiting for End-of-RIB from a".to_owned())
        );
        assert!(kernel(&status("", None)).is_err_and(|why| why.contains("no pass")));
        assert!(kernel(&status("frozen", None)).is_err());
        let mut without_rules = status("synced", None);
        without_rules.problems.push(Problem {
            code: ProblemCode::AgentRulesUnwritten,
            subject: "rules".to_owned(),
            reason: "no nft".to_owned(),
        });
        let said = kernel(&without_rules);
        assert_eq!(said, Err("rules are not written: no nft".to_owned()));
    }

    #[tokio::test]
    async fn services_are_ready_when_their_table_is_written_or_nobodys() {
        let of = |failing_since| {
            let status = ServiceStatus {
                failing_since,
                revision: 9,
                ..ServiceStatus::default()
            };
            services(&Translated::Services(Arc::new(status)))
        };
        assert_eq!(of(None), Ok("translated, of revision 9".to_owned()));
        assert!(of(Some(Instant::now())).is_err_and(|why| why.contains("services.unwritten")));
        assert!(services(&Translated::Unknown).is_err());
        let off = services(&Translated::Nothing("off".to_owned()));
        assert_eq!(off, Ok("not translated: off".to_owned()));
    }
}
