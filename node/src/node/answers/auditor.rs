//! The auditor's task: gathers what the owners say and what the kernel holds, compares, and keeps
//! the ages. It writes nothing. What is compared with what, and by which rules, is
//! `caracal_agent::audit`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::{
    AgentStatus, AuditFinding, AuditInputs, AuditJob, AuditPeer, AuditRib, FindingAges, OwnBlock,
    SLICE, ServiceDifferences, observe_kernel, observe_nat, observe_services,
};
use caracal_bgp::{Advertisement, Explanation, SessionState, SpeakerEnded, SpeakerHandle};
use caracal_datastore::{Rarely, View};
use caracal_model::{AffinityState, AuditCode, InsertEach, NodeName, Prefix, Problem, ProblemCode};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::node::announce::drain::DrainStatus;
use crate::node::announce::origins;
use crate::node::kernel::learned;
use crate::node::kernel::services::Translated;
use crate::node::problems::Problems;
use crate::peer_problems;

/// Time between comparisons without cause.
const PERIOD: Duration = Duration::from_secs(30);
/// Shortest time between comparisons that events ask for.
const SPACING: Duration = Duration::from_secs(5);
/// And of the time between two, so small a part is spent on one.
const PART: u32 = 50;
/// NAT rules are read by a program, so rarely; always when somebody asks.
const NAT_PERIOD: Duration = Duration::from_secs(60);
/// So is the table of services, which may be large; whoever changes it is heard of anyway.
const SERVICES_PERIOD: Duration = Duration::from_secs(600);
/// Readings of that table while it changes, before it is left for the next time.
const SERVICES_TRIES: u32 = 3;
/// Most blocks without a route about which the speaker is asked.
const ASKED: usize = 50;
/// Questions that may wait.
const QUESTIONS: usize = 8;
/// Findings that lose packets and of which no owner of state knows: each has done its part, and
/// what came of all is not what was asked for.
const LOSSES: [AuditCode; 15] = [
    AuditCode::BlockNotOriginated,
    AuditCode::BlockNotAnnounced,
    AuditCode::NoPathToBlock,
    AuditCode::PathRefused,
    AuditCode::PathNotPlanned,
    AuditCode::RouteMissing,
    AuditCode::RouteWrong,
    AuditCode::NextHopMissing,
    AuditCode::DeviceMissing,
    AuditCode::DeviceWrong,
    AuditCode::FdbMissing,
    AuditCode::NeighbourMissing,
    AuditCode::InterfaceDown,
    AuditCode::AddressNotAllocated,
    AuditCode::ServicesMissing,
];

/// Answer to `caracal audit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditReport {
    pub(crate) node: String,
    /// Revision of the snapshot that was compared.
    pub(crate) revision: i64,
    /// Something counts as wrong.
    pub(crate) wrong: bool,
    /// Everything that was found, those that count first.
    pub(crate) findings: Vec<AuditFinding>,
}

/// Inputs of the auditor.
pub(crate) struct AuditorInputs {
    pub(crate) me: NodeName,
    pub(crate) view: watch::Receiver<View>,
    /// `None` = the node runs without BGP.
    pub(crate) speaker: Option<SpeakerHandle>,
    pub(crate) kernel: watch::Receiver<Arc<AgentStatus>>,
    pub(crate) learned: watch::Receiver<learned::Map>,
    pub(crate) problems: Problems,
    pub(crate) drain: watch::Receiver<DrainStatus>,
    /// The table of services, as it was written.
    pub(crate) translated: watch::Receiver<Translated>,
}

/// Handle of the auditor.
#[derive(Clone)]
pub(crate) struct Auditor {
    questions: mpsc::Sender<oneshot::Sender<AuditReport>>,
    counting: watch::Receiver<BTreeMap<String, usize>>,
    losses: watch::Receiver<Vec<Problem>>,
}

/// Whom each comparison is told.
struct Told {
    counting: watch::Sender<BTreeMap<String, usize>>,
    losses: watch::Sender<Vec<Problem>>,
}

impl Auditor {
    /// Starts the task.
    pub(crate) fn spawn(inputs: AuditorInputs) -> Self {
        let (questions, receiver) = mpsc::channel(QUESTIONS);
        let (counts, counting) = watch::channel(BTreeMap::new());
        let (lost, losses) = watch::channel(Vec::new());
        let told = Told {
            counting: counts,
            losses: lost,
        };
        tokio::spawn(run(inputs, receiver, told));
        Self {
            questions,
            counting,
            losses,
        }
    }

    /// Findings of the last comparison that count, by code.
    pub(crate) fn counting(&self) -> watch::Receiver<BTreeMap<String, usize>> {
        self.counting.clone()
    }

    /// Findings of the last comparison that lose packets, as problems.
    pub(crate) fn losses(&self) -> Vec<Problem> {
        self.losses.borrow().clone()
    }

    /// Compares now.
    pub(crate) async fn report(&self) -> Result<AuditReport, String> {
        let ended = "the auditor has ended";
        let (answer, wait) = oneshot::channel();
        self.questions.send(answer).await.map_err(|_| ended)?;
        Ok(wait.await.map_err(|_| ended)?)
    }
}

async fn run(
    mut inputs: AuditorInputs,
    mut questions: mpsc::Receiver<oneshot::Sender<AuditReport>>,
    told: Told,
) {
    let mut ages = FindingAges::default();
    let (mut nat, mut unread) = (None, Rarely::default());
    let mut services = None;
    let mut known = BTreeSet::new();
    let mut last = Instant::now();
    let mut spacing = SPACING;
    let mut next = last + spacing;
    loop {
        let question = tokio::select! {
            question = questions.recv() => match question {
                Some(question) => Some(question),
                None => return,
            },
            alive = inputs.changed() => {
                if !alive {
                    return;
                }
                next = next.min(last + spacing);
                continue;
            }
            () = tokio::time::sleep_until(next) => None,
        };
        let begin = Instant::now();
        let nat_is_old = nat
            .as_ref()
            .is_none_or(|(read, _)| Instant::now() >= *read + NAT_PERIOD);
        if question.is_some() || nat_is_old {
            let before = nat.take().map(|(_, seen)| seen);
            nat = Some((Instant::now(), inputs.rules(before, &mut unread).await));
        }
        let seen = nat.as_ref().and_then(|(_, seen)| seen.clone());
        let services_are_old = services.as_ref().is_none_or(|(read, differences)| {
            *differences != Some(ServiceDifferences::default())
                || Instant::now() >= *read + SERVICES_PERIOD
        });
        if question.is_some() || services_are_old {
            services = Some((Instant::now(), inputs.services().await));
        }
        let compared = services
            .as_ref()
            .and_then(|(_, compared)| compared.as_ref());
        let report = inputs.audit(&mut ages, seen, compared).await;
        log_changes(&mut known, &report.findings);
        told.counting.send_replace(counted(&report.findings));
        told.losses.send_replace(losses(&report.findings));
        let due = due(&report.findings);
        if let Some(question) = question {
            // The caller may have gone.
            let _ = question.send(report);
        }
        last = Instant::now();
        spacing = (PART * (last - begin)).max(SPACING);
        next = last + spacing.max(due.map_or(PERIOD, |due| due.min(PERIOD)));
    }
}

impl AuditorInputs {
    /// The fingerprint of the rules in the kernel. Where they cannot be read it is the one before,
    /// or the one that is planned.
    async fn rules(&self, before: Option<Option<String>>, told: &mut Rarely) -> Option<String> {
        let desired = self.kernel.borrow().desired.clone();
        match observe_nat(&desired).await {
            Ok(seen) => {
                told.over();
                seen
            }
            Err(reason) => {
                if told.is_due(Instant::now(), &reason) {
                    tracing::warn!(
                        reason,
                        "our rules cannot be read; the audit leaves them out"
                    );
                }
                let as_planned = || desired.nat.as_ref().map(|nat| nat.fingerprint());
                before.unwrap_or_else(as_planned)
            }
        }
    }

    /// Waits for a change of anything that is compared. False when there is nothing left to audit.
    async fn changed(&mut self) -> bool {
        let changed = tokio::select! {
            changed = self.view.changed() => changed,
            changed = self.kernel.changed() => changed,
            changed = self.learned.changed() => changed,
            changed = self.drain.changed() => changed,
        };
        changed.is_ok()
    }

    /// Compares the table of services with what was written. `None` = there is none, or it changes
    /// all the time.
    async fn services(&self) -> Option<ServiceDifferences> {
        for _ in 0..SERVICES_TRIES {
            let before = self.translated.borrow().status()?.clone();
            if before.revision == 0 || before.failing_since.is_some() {
                return None;
            }
            let differences = observe_services(&before.entries).await;
            let after = self.translated.borrow().status()?.clone();
            if before.transactions == after.transactions && after.failing_since.is_none() {
                return Some(differences);
            }
        }
        None
    }

    async fn audit(
        &mut self,
        ages: &mut FindingAges,
        nat: Option<String>,
        services: Option<&ServiceDifferences>,
    ) -> AuditReport {
        // The plan before the kernel: what is planned later is not missed in an older picture.
        let view = self.view.borrow_and_update().clone();
        let (rib, origin) = self.rib(&view).await.ok().flatten().unzip();
        let agent = self.kernel.borrow_and_update().clone();
        let actual = observe_kernel(&agent.desired).await;
        let actual = actual
            .map(|mut actual| {
                actual.nat = nat;
                actual
            })
            .map_err(|error| format!("{:#}", anyhow::Error::from(error)));
        let mut problems = agent.problems.clone();
        problems.extend(self.problems.borrow().all().cloned());
        problems.extend(view.absent_problems());
        problems.extend(origin.into_iter().flatten());
        let stale = view.freshness.reason().map(ToString::to_string);
        let compared = AuditInputs {
            me: &self.me,
            snapshot: &view.snapshot,
            revision: view.revision,
            stale: stale.as_deref(),
            desired: &agent.desired,
            agent: &agent.kernel,
            problems: &problems,
            actual: actual.as_ref().map_err(String::as_str),
            rib: rib.as_ref(),
            services,
        };
        let mut job = AuditJob::new(&compared);
        while !job.step(SLICE) {
            tokio::task::yield_now().await;
        }
        let findings = ages.update(Instant::now().into_std(), job.finish());
        AuditReport {
            node: self.me.to_string(),
            revision: view.snapshot.revision,
            wrong: findings.iter().any(|finding| finding.counts),
            findings,
        }
    }

    /// State of the speaker, and its problems with prefixes; `None` without a speaker.
    async fn rib(&mut self, view: &View) -> Result<Option<(AuditRib, Vec<Problem>)>, SpeakerEnded> {
        let Some(speaker) = &self.speaker else {
            return Ok(None);
        };
        let status = speaker.status().await?;
        let origin = origins::problems(&status).collect();
        let peers = status.peers.into_iter().map(|peer| AuditPeer {
            established: peer.state == SessionState::Established,
            wrong: peer_problems::wrong(&peer),
            disabled: peer.disabled,
            name: peer.name.to_string(),
            state: peer.state.to_string(),
            reason: peer.reason,
        });
        let mut own_blocks = BTreeMap::new();
        for (cidr, affinity) in view.snapshot.affinities_of(&self.me) {
            if affinity.state == AffinityState::Confirmed {
                own_blocks.insert(cidr, own_block(cidr, speaker.explain(cidr).await?));
            }
        }
        let learned = self.learned.borrow_and_update().clone();
        let desired = self.kernel.borrow().desired.clone();
        let planned = |cidr: &Prefix| {
            learned.contains_key(cidr)
                || desired.routes.contains_key(cidr)
                || desired.skipped.contains_key(cidr)
        };
        let mut unused = BTreeMap::new();
        for (n, (cidr, block)) in view.snapshot.blocks.iter().enumerate() {
            if n % SLICE == 0 {
                tokio::task::yield_now().await;
            }
            let of_other = block.host().is_some_and(|host| *host != self.me);
            if of_other && !planned(cidr) && unused.len() < ASKED {
                unused.insert(*cidr, why_unused(*cidr, speaker.explain(*cidr).await?));
            }
        }
        let unused = unused.into_iter();
        let unused = unused.filter_map(|(cidr, why)| Some((cidr, why?)));
        let rib = AuditRib {
            peers: peers.collect(),
            own_blocks,
            unused: unused.insert_each(),
            learned,
            drained: self.drain.borrow().reason(),
        };
        Ok(Some((rib, origin)))
    }
}

/// Why the paths to a block are not used; `None`: there is none.
fn why_unused(cidr: Prefix, explanation: Explanation) -> Option<String> {
    if explanation.prefix != Some(cidr) {
        return None;
    }
    let paths = explanation.paths.into_iter().filter_map(|path| {
        let peer = path.peer?;
        Some(format!(
            "the path from {peer} is {}",
            path.status.sentence()
        ))
    });
    let said: Vec<String> = paths.take(3).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn own_block(cidr: Prefix, explanation: Explanation) -> OwnBlock {
    let mut block = OwnBlock::default();
    if explanation.prefix != Some(cidr) {
        return block;
    }
    block.originated = explanation.paths.iter().any(|path| path.peer.is_none());
    for (peer, advertisement) in explanation.advertised {
        match advertisement {
            Advertisement::Sent(_) => {
                block.advertised_to.insert(peer.to_string());
            }
            Advertisement::Withheld(why) => {
                block.withheld.insert(peer.to_string(), why.to_string());
            }
        }
    }
    block
}

/// The findings that count, by code.
fn counted(findings: &[AuditFinding]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for finding in findings.iter().filter(|finding| finding.counts) {
        *counts.entry(finding.code.clone()).or_default() += 1;
    }
    counts
}

/// Findings that count and lose packets, as problems.
fn losses(findings: &[AuditFinding]) -> Vec<Problem> {
    let is_loss = |finding: &&AuditFinding| {
        let mut codes = LOSSES.iter();
        finding.counts && codes.any(|code| code.as_str() == finding.code)
    };
    let problem = |finding: &AuditFinding| Problem {
        code: ProblemCode::AuditLoss,
        subject: finding.subject.clone(),
        reason: format!("{}: {}", finding.code, finding.sentence),
    };
    findings.iter().filter(is_loss).map(problem).collect()
}

/// Time until the next finding counts, if it stays.
fn due(findings: &[AuditFinding]) -> Option<Duration> {
    let young = findings
        .iter()
        .filter(|f| !f.counts && f.grace_seconds > f.age_seconds);
    let rest = young.map(|f| f.grace_seconds - f.age_seconds).min()?;
    Some(Duration::from_secs(rest))
}

/// Logs what begins to count and what is no longer found, each once.
fn log_changes(known: &mut BTreeSet<(String, String)>, findings: &[AuditFinding]) {
    let mut now = BTreeSet::new();
    for finding in findings.iter().filter(|finding| finding.counts) {
        let key = (finding.code.clone(), finding.subject.clone());
        if !known.contains(&key) {
            tracing::warn!(
                code = finding.code,
                subject = finding.subject,
                "audit: {}",
                finding.sentence
            );
        }
        now.insert(key);
    }
    for (code, subject) in known.difference(&now) {
        tracing::info!(code, subject, "audit: no longer found");
    }
    *known = now;
}
