//! Answers on the admin socket, put together from what the owners say.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use caracal_agent::dataplane::AgentStatus;
use caracal_bgp::speaker::SpeakerHandle;
use caracal_bgp::types::PeerName;
use caracal_datastore::watch::View;
use caracal_model::Family;
use caracal_model::ipam::AffinityState;
use caracal_model::snapshot::Problem;
use caracal_model::status::{BlockStatus, DatastoreStatus, PeerStatus, Status};
use serde_json::Value;
use tokio::sync::watch;

use crate::admin::{Answer, Request};
use crate::config::Config;

/// Where the node is on its way up.
#[derive(Clone)]
pub(super) enum Stage {
    /// Not registered yet; what it waits for.
    Starting(String),
    /// All tasks run.
    Running(Arc<Owners>),
}

/// The ways to the owners of all state.
pub(super) struct Owners {
    pub(super) view: watch::Receiver<View>,
    pub(super) speaker: SpeakerHandle,
    pub(super) kernel: watch::Receiver<Arc<AgentStatus>>,
    /// Problems of the topology's plan and of tunnel addresses.
    pub(super) problems: Vec<watch::Receiver<Vec<Problem>>>,
}

/// Answers for a node.
#[derive(Clone)]
pub(super) struct Answers {
    pub(super) config: Arc<Config>,
    pub(super) started: Instant,
    pub(super) stage: watch::Receiver<Stage>,
}

impl Answer for Answers {
    async fn answer(&self, request: Request) -> Result<Value, String> {
        let stage = self.stage.borrow().clone();
        let owners = match (stage, &request) {
            (Stage::Running(owners), _) => owners,
            (Stage::Starting(reason), Request::Status) => return to_value(&self.starting(reason)),
            (Stage::Starting(reason), _) => return Err(format!("the node is starting: {reason}")),
        };
        let speaker = &owners.speaker;
        match request {
            Request::Status => to_value(&self.status(&owners).await?),
            Request::Routes => to_value(&speaker.routes().await.map_err(text)?),
            Request::Received { peer } => {
                let name = find_peer(speaker, &peer).await?;
                let routes = speaker.received(name).await.map_err(text)?;
                to_value(&routes.ok_or_else(|| no_peer(&peer))?)
            }
            Request::Advertised { peer } => {
                let name = find_peer(speaker, &peer).await?;
                let routes = speaker.advertised(name).await.map_err(text)?;
                to_value(&routes.ok_or_else(|| no_peer(&peer))?)
            }
            Request::Explain { prefix } => to_value(&speaker.explain(prefix).await.map_err(text)?),
        }
    }
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}

fn to_value(value: &impl serde::Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(text)
}

fn no_peer(peer: &str) -> String {
    format!("no peer {peer}; `caracal bgp peers` lists names and addresses")
}

/// A peer by name or address.
async fn find_peer(speaker: &SpeakerHandle, wanted: &str) -> Result<PeerName, String> {
    let status = speaker.status().await.map_err(text)?;
    status
        .peers
        .into_iter()
        .find(|p| p.name.as_str() == wanted || p.address.to_string() == wanted)
        .map(|p| p.name)
        .ok_or_else(|| no_peer(wanted))
}

impl Answers {
    fn base(&self) -> Status {
        Status {
            node: self.config.node.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            ..Status::default()
        }
    }

    fn starting(&self, reason: String) -> Status {
        let datastore = DatastoreStatus {
            state: "starting".to_owned(),
            reason: Some(reason),
            ..Default::default()
        };
        Status {
            datastore,
            ..self.base()
        }
    }

    async fn status(&self, owners: &Owners) -> Result<Status, String> {
        let bgp = owners.speaker.status().await.map_err(text)?;
        let view = owners.view.borrow().clone();
        let kernel = owners.kernel.borrow().clone();
        let snapshot = &view.snapshot;
        let mut status = self.base();
        if let Some(node) = snapshot.nodes.get(&self.config.node) {
            let cidrs = [Family::Ipv4, Family::Ipv6].map(|family| node.spec.cidr(family));
            status.addresses = cidrs.iter().flatten().map(ToString::to_string).collect();
        }
        status.asn = bgp.local_as.0;
        status.router_id = bgp.router_id.to_string();
        status.datastore = DatastoreStatus {
            state: view.freshness.as_str().to_owned(),
            revision: snapshot.revision,
            reason: view.freshness.reason().map(ToString::to_string),
        };
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        status.peers = bgp
            .peers
            .into_iter()
            .map(|peer| peer_status(peer, now))
            .collect();
        status.blocks = blocks(&view, &self.config);
        status.kernel = kernel.kernel.clone();
        let mut problems = snapshot.problems();
        problems.extend(kernel.problems.iter().cloned());
        for source in &owners.problems {
            problems.extend(source.borrow().iter().cloned());
        }
        problems.extend(bgp.listen_error.map(|reason| Problem {
            code: "bgp.listen".to_owned(),
            subject: "listening socket".to_owned(),
            reason,
        }));
        problems.sort();
        problems.dedup();
        status.problems = problems;
        Ok(status)
    }
}

fn peer_status(peer: caracal_bgp::speaker::status::PeerStatus, now: u64) -> PeerStatus {
    PeerStatus {
        name: peer.name.to_string(),
        address: Some(peer.address),
        asn: peer.remote_as.0,
        kind: peer.kind,
        state: peer.state.to_string(),
        since_seconds: now.saturating_sub(peer.since),
        reason: peer.reason,
        received: peer.routes.received,
        accepted: peer.routes.accepted,
        advertised: peer.routes.advertised,
        stale: peer.routes.stale,
    }
}

fn blocks(view: &View, config: &Config) -> Vec<BlockStatus> {
    let snapshot = &view.snapshot;
    let describe =
        |(cidr, affinity): (caracal_model::Prefix, &caracal_model::ipam::BlockAffinity)| {
            let block = snapshot.blocks.get(&cidr);
            let state = match affinity.state {
                AffinityState::Pending => "pending",
                AffinityState::Confirmed => "confirmed",
                AffinityState::PendingDeletion => "pendingDeletion",
            };
            BlockStatus {
                cidr,
                state: state.to_owned(),
                in_use: block.map_or(0, |b| b.in_use()),
                size: usize::try_from(cidr.size()).unwrap_or(usize::MAX),
            }
        };
    snapshot
        .affinities_of(&config.node)
        .map(|(cidr, affinity)| describe((cidr, affinity)))
        .collect()
}
