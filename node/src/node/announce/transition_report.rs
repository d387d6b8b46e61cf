//! While the topology changes: reports what this node would miss without the sessions that are to
//! go, for whoever conducts the change (`caracal topology apply`). What a report means is said in
//! [`caracal_topologies::TransitionReport`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use caracal_bgp::{PeerName, SpeakerConfig, SpeakerHandle};
use caracal_datastore::{Rarely, Store};
use caracal_model::{InsertEach, NodeName};
use caracal_topologies::{TransitionReport, TransitionSessions, transition_report_path};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::node::report;

/// Interval of asking the table. Short against what a change of sessions takes, long against what
/// the question costs.
const LOOK: Duration = Duration::from_millis(250);

/// Prefixes that are named in a report.
const EXAMPLES: usize = 5;

/// A transition as this node's speaker has it in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InForce {
    sessions: TransitionSessions,
    /// Addresses of the new peers.
    added: BTreeMap<PeerName, IpAddr>,
}

impl InForce {
    pub(crate) fn new(
        sessions: Option<TransitionSessions>,
        config: &SpeakerConfig,
    ) -> Option<Self> {
        let sessions = sessions?;
        let address = |name: &PeerName| Some((name.clone(), config.peers.get(name)?.address));
        let added = sessions.to_add.iter().filter_map(address).insert_each();
        Some(Self { sessions, added })
    }
}

/// Reports until the channel closes. A report that cannot be written is written later.
pub(crate) async fn report<S: Store>(
    store: S,
    me: NodeName,
    speaker: SpeakerHandle,
    mut in_force: watch::Receiver<Option<InForce>>,
) {
    // `None` = unknown: a run before may have left a report.
    let mut written: Option<Option<TransitionReport>> = None;
    let mut told = Rarely::default();
    loop {
        let current = in_force.borrow_and_update().clone();
        let wanted = match &current {
            None => None,
            Some(current) => match report_impact(&speaker, current).await {
                Some(report) => Some(report),
                None => return,
            },
        };
        if written.as_ref() != Some(&wanted) {
            match report::store_report(&store, transition_report_path(&me), wanted.as_ref()).await {
                Ok(()) => {
                    written = Some(wanted);
                    told.over();
                }
                Err(error) if told.is_due(Instant::now(), &error.to_string()) => {
                    tracing::warn!(%error, "cannot report on the change of topology");
                }
                Err(_) => {}
            }
        }
        let idle = current.is_none() && written == Some(None);
        tokio::select! {
            changed = in_force.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(LOOK), if !idle => {}
        }
    }
}

/// `None`: the speaker has ended.
async fn report_impact(speaker: &SpeakerHandle, current: &InForce) -> Option<TransitionReport> {
    let impact = speaker
        .removal_impact(current.sessions.to_remove.clone())
        .await
        .ok()?;
    let address = |name: &PeerName| current.added.get(name).copied();
    let incomplete: BTreeSet<IpAddr> = impact.incomplete.iter().filter_map(address).insert_each();
    Some(TransitionReport {
        transition: current.sessions.id.clone(),
        incomplete,
        uncovered: impact.uncovered.len(),
        examples: impact.uncovered.into_iter().take(EXAMPLES).collect(),
    })
}
