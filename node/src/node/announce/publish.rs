//! From snapshots to the speaker: plan, compare, reconfigure. An unchanged plan does not wake the
//! speaker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use caracal_bgp::{Filter, FilterTerm, FilterVerdict, PeerName, SpeakerConfig, SpeakerHandle};
use caracal_datastore::View;
use caracal_model::{NodeName, Prefix, Problem, Snapshot};
use caracal_topologies::{BgpPlan, BgpPlanner, EXPORT_FILTER, PlanOptions, Replanned, plan};
use tokio::sync::watch;

use crate::config::{Backend, Config};
use crate::node::announce::drain;
use crate::node::announce::secrets::Secrets;
use crate::node::announce::transition_report::InForce;
use crate::node::kernel::underlay::PeerGateways;
use crate::node::problems::ProblemReporter;

/// The plan that the speaker has in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnnouncedPlan {
    /// Revision of the snapshot that the plan is of.
    pub(crate) revision: i64,
    pub(crate) snapshot: Arc<Snapshot>,
    /// Prefixes that this node originates.
    pub(crate) originated: Vec<Prefix>,
    /// The BGPPeer of each peer outside the mesh.
    pub(crate) bgp_peers: Arc<BTreeMap<PeerName, String>>,
}

impl AnnouncedPlan {
    fn new(
        snapshot: Arc<Snapshot>,
        config: &SpeakerConfig,
        bgp_peers: Arc<BTreeMap<PeerName, String>>,
    ) -> Self {
        Self {
            revision: snapshot.revision,
            snapshot,
            originated: config.originate.keys().copied().collect(),
            bgp_peers,
        }
    }
}

/// The speaker's configuration for a snapshot, and what could not be planned.
pub(crate) fn speaker_config(
    snapshot: &Snapshot,
    config: &Config,
    secrets: &Secrets,
    datastore: &BTreeSet<IpAddr>,
) -> BgpPlan {
    let options = plan_options(config, secrets, datastore);
    for_this_node(plan(snapshot, &config.node, &options), config)
}

fn plan_options(config: &Config, secrets: &Secrets, datastore: &BTreeSet<IpAddr>) -> PlanOptions {
    PlanOptions {
        router_id: config.router_id.choice(),
        max_prefixes: Some(config.max_prefixes),
        secrets: secrets.clone(),
        show_passwords: false,
        no_bgp: config.backend != Backend::Bird,
        datastore: datastore.clone(),
    }
}

/// The plan as the settings of the process have it.
fn for_this_node(mut planned: BgpPlan, config: &Config) -> BgpPlan {
    if config.ebgp_requires_policy {
        require_policy(&mut planned.config);
    }
    if config.backend != Backend::Bird {
        silence(&mut planned.config);
    }
    planned
}

/// Name of the filter that stands where another AS's peer has none.
const NO_POLICY: &str = "no_policy_rfc8212";

/// Towards another AS, no policy means no routes (RFC 8212 §2). A filter of its own says so, and
/// not an empty list: a drain adds filters to lists.
fn require_policy(config: &mut SpeakerConfig) {
    let own = config.local_as;
    let mut denied = false;
    for peer in config.peers.values_mut() {
        if peer.local_as.unwrap_or(own) == peer.remote_as {
            continue;
        }
        if peer.import.is_empty() {
            peer.import.push(NO_POLICY.to_owned());
            denied = true;
        }
        // The built-in filter says what a cluster may announce, not that somebody wants this peer
        // to hear it.
        if peer.export.iter().all(|name| name == EXPORT_FILTER) {
            peer.export = vec![NO_POLICY.to_owned()];
            denied = true;
        }
    }
    if denied {
        let reject = FilterTerm {
            conditions: Vec::new(),
            actions: Vec::new(),
            verdict: Some(FilterVerdict::Reject),
        };
        let terms = vec![reject];
        config
            .filters
            .insert(NO_POLICY.to_owned(), Filter::from(terms));
    }
}

/// Without BGP the speaker stays up, with nothing to say and no one to say it to.
fn silence(config: &mut SpeakerConfig) {
    config.listen = None;
    config.peers.clear();
    config.originate.clear();
}

/// Logs what became wrong and what became right, each once.
pub(crate) fn log_changes(old: &[Problem], new: &[Problem], node: &NodeName) {
    for problem in new.iter().filter(|p| !old.contains(p)) {
        tracing::warn!(%node, code = %problem.code, subject = %problem.subject, "{}", problem.reason);
    }
    for problem in old.iter().filter(|p| {
        !new.iter()
            .any(|n| n.code == p.code && n.subject == p.subject)
    }) {
        tracing::info!(%node, code = %problem.code, subject = %problem.subject, "corrected");
    }
}

/// Dependencies of the publisher.
pub(crate) struct Publisher {
    pub(crate) config: Arc<Config>,
    pub(crate) view: watch::Receiver<View>,
    /// The sender keeps the other end open without a folder to look at.
    pub(crate) secrets: (watch::Sender<Secrets>, watch::Receiver<Secrets>),
    /// Addresses of the datastore.
    pub(crate) lifelines: watch::Receiver<BTreeSet<IpAddr>>,
    pub(crate) drain: watch::Receiver<drain::DrainStatus>,
    pub(crate) speaker: SpeakerHandle,
    /// Configuration last given to the speaker.
    pub(crate) current: SpeakerConfig,
    pub(crate) problems: ProblemReporter,
    pub(crate) announced: watch::Sender<AnnouncedPlan>,
    pub(crate) in_force: watch::Sender<Option<InForce>>,
    /// The stage of the drain whose configuration the speaker has.
    pub(crate) stage_in_force: watch::Sender<drain::DrainStage>,
    pub(crate) gateways: watch::Sender<PeerGateways>,
}

impl Publisher {
    /// Plans what changed with each snapshot, and anew with each stage of a drain, and tells the
    /// speaker when the plan differs.
    pub(crate) async fn run(mut self) {
        let Self {
            config,
            view,
            secrets: (_, secrets),
            lifelines,
            drain,
            speaker,
            current,
            problems,
            announced,
            in_force,
            stage_in_force,
            gateways,
        } = &mut self;
        // The snapshot may have moved on since the speaker was started with a plan.
        view.mark_changed();
        let (mut planning, mut last_stage) = (BgpPlanner::default(), None);
        loop {
            let alive = tokio::select! {
                changed = view.changed() => changed,
                changed = drain.changed() => changed,
                changed = secrets.changed() => changed,
                changed = lifelines.changed() => changed,
            };
            if alive.is_err() {
                return;
            }
            let snapshot = view.borrow_and_update().snapshot.clone();
            let stage = drain.borrow_and_update().stage;
            let datastore = lifelines.borrow_and_update().clone();
            let options = plan_options(config, &secrets.borrow_and_update(), &datastore);
            let replanned = planning.plan(&snapshot, &config.node, &options);
            let again = last_stage.replace(stage) == Some(stage);
            let differs = !again || replanned != Replanned::Announcements(false);
            let Some(planned) = planning.planned().filter(|_| differs) else {
                publish_revision(announced, snapshot);
                continue;
            };
            let planned = for_this_node(planned.clone(), config);
            log_changes(&problems.current(), &planned.problems, &config.node);
            problems.replace(planned.problems);
            // Before the sessions that need them.
            send_if_changed(gateways, planned.kernel.reachable_by);
            let wanted = drain::at_stage(planned.config, stage);
            if wanted != *current {
                log_new(&wanted, snapshot.revision);
                *current = wanted;
                if speaker.reconfigure(current.clone()).await.is_err() {
                    tracing::error!("the BGP speaker has ended");
                    return;
                }
            }
            let bgp_peers = Arc::new(planned.bgp_peers);
            announced.send_replace(AnnouncedPlan::new(snapshot, current, bgp_peers));
            // Behind the configuration: a report is about sessions that the speaker has.
            send_if_changed(in_force, InForce::new(planned.transition, current));
            stage_in_force.send_replace(stage);
        }
    }
}

fn log_new(wanted: &SpeakerConfig, rev: i64) {
    let (peers, originated) = (wanted.peers.len(), wanted.originate.len());
    tracing::info!(rev, peers, originated, "speaker reconfigured");
}

/// The plan in force is that of this snapshot, too.
fn publish_revision(announced: &watch::Sender<AnnouncedPlan>, snapshot: Arc<Snapshot>) {
    announced.send_modify(|plan| {
        plan.revision = snapshot.revision;
        plan.snapshot = snapshot;
    });
}

fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, next: T) {
    sender.send_if_modified(|known| {
        let changed = *known != next;
        *known = next;
        changed
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_bgp::{Asn, Originations, PeerConfig, RouterId};

    use super::*;

    #[test]
    fn rfc8212_2_without_a_filter_of_somebodys_nothing_passes_to_another_as() {
        let peer = |asn: u32, filtered: bool| {
            let mut peer = PeerConfig::new([10, 0, 0, 2].into(), Asn(asn));
            if filtered {
                peer.import.push("in".to_owned());
                peer.export.push("out".to_owned());
            }
            peer.export.push(EXPORT_FILTER.to_owned());
            peer
        };
        let mut config = SpeakerConfig {
            local_as: Asn(64512),
            router_id: RouterId([10, 0, 0, 1].into()),
            listen: None,
            peers: BTreeMap::from([
                ("mesh".into(), peer(64512, false)),
                ("open".into(), peer(65001, false)),
                ("filtered".into(), peer(65001, true)),
            ]),
            originate: Originations::default(),
            filters: BTreeMap::new(),
            stations: BTreeMap::new(),
        };
        let before = config.clone();
        require_policy(&mut config);
        for name in ["mesh", "filtered"] {
            assert_eq!(config.peers[&name.into()], before.peers[&name.into()]);
        }
        let denied = vec![NO_POLICY.to_owned()];
        let open = &config.peers[&"open".into()];
        assert_eq!((&open.import, &open.export), (&denied, &denied));
        // A drain does not open what is shut.
        let leaving = config.leaving();
        let first = &leaving.peers[&"open".into()].export[0];
        let term = &leaving.filters[first].terms[0];
        assert_eq!(term.verdict, Some(FilterVerdict::Reject));
    }
}
