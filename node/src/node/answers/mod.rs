//! Answers on the admin socket, put together from what the owners say.

pub(crate) mod announced;
pub(crate) mod auditor;
mod cluster_map;
pub(crate) mod console;
pub(crate) mod explain;
pub(crate) mod explain_service;
pub(crate) mod health;
pub(crate) mod listeners;
pub(crate) mod peer_names;
mod planned;
pub(crate) mod policy;
mod pools;
pub(crate) mod services;
pub(crate) mod status_publisher;
mod words;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_agent::{AgentStatus, PathMtus, ReconcilerHandle, observe_service_hits};
use caracal_bgp::{SpeakerHandle, SpeakerStatus};
use caracal_datastore::{Accepter, Datastore, View};
use caracal_model::{
    AffinityState, Announcement, AskInUse, AwaitAnnouncement, BlockStatus, DatastoreStatus,
    Elsewhere, Family, InUse, NodeName, NodeStatus, PathStatusJson, Prefix, Problem, ProblemCode,
    Snapshot, Versioned, WorkloadEndpoint,
};
use hyper::body::Bytes;
use serde_json::json;
use tokio::sync::watch;

use self::announced::{AnnouncementSources, Counting};
use self::auditor::Auditor;
use self::services::TranslatedServices;
use crate::admin::routes::{self, text, to_value};
use crate::admin::{self, mrt};
use crate::admin::{AnswerRequests, Answered, AskService, Request};
use crate::config::Config;
use crate::metrics::ipam::Collected;
use crate::metrics::process::{AgentFigures, Figures};
use crate::node::announce::drain::{DrainOrder, Drainer};
use crate::node::announce::origins;
use crate::node::announce::publish::AnnouncedPlan;
use crate::node::kernel::kube_proxy::Takeover;
use crate::node::kernel::policy::Enforced;
use crate::node::kernel::services::Translated;
use crate::node::problems::Problems;
use crate::others::{self, AskOthers, NoAnswer};
use crate::peer_problems;

/// Where the node is on its way up.
#[derive(Clone)]
pub(crate) enum NodeStage {
    /// Not registered yet.
    Starting {
        /// What it waits for.
        reason: String,
        /// The datastore, once it is known which one.
        store: Option<Datastore>,
    },
    /// All tasks run.
    Running(Arc<Owners>),
}

/// Handles of the owners of all state.
pub(crate) struct Owners {
    pub(crate) store: Datastore,
    pub(crate) view: watch::Receiver<View>,
    pub(crate) accepter: Accepter,
    pub(crate) speaker: SpeakerHandle,
    /// Announcements that the speaker was given.
    pub(crate) announced: watch::Receiver<AnnouncedPlan>,
    /// Policy in the kernel.
    pub(crate) enforced: watch::Receiver<Enforced>,
    pub(crate) kernel: watch::Receiver<Arc<AgentStatus>>,
    /// The kernel had no routes of ours when this process started.
    pub(crate) starts_anew: bool,
    pub(crate) reconciler: ReconcilerHandle,
    pub(crate) collected: watch::Receiver<Collected>,
    pub(crate) translated: watch::Receiver<Translated>,
    pub(crate) takeover: Takeover,
    /// Problems found by the node's tasks.
    pub(crate) problems: Problems,
    pub(crate) auditor: Auditor,
    pub(crate) drainer: Drainer,
}

const NO_RELOAD: &str = "a node follows the datastore by itself; reload is for `caracal speaker`";

/// Answers for a node.
#[derive(Clone)]
pub(crate) struct Answers {
    pub(crate) config: Arc<Config>,
    pub(crate) started: Instant,
    pub(crate) stage: watch::Receiver<NodeStage>,
}

impl AnswerRequests for Answers {
    async fn answer(&self, mut request: Request) -> Result<Answered, String> {
        let stage = self.stage.borrow().clone();
        let owners = match (stage, &request) {
            (NodeStage::Running(owners), _) => owners,
            (NodeStage::Starting { reason, store }, Request::Status) => {
                return to_value(&self.starting(reason, store.as_ref())).map(Answered::from);
            }
            // The reason may be one that the log tells more of.
            (NodeStage::Starting { .. }, Request::LogFilter { set }) => {
                return admin::log_filter(set.as_deref());
            }
            (NodeStage::Starting { reason, .. }, _) => {
                return Err(format!("the node is starting: {reason}"));
            }
        };
        let speaker = &owners.speaker;
        owners.resolve_peer(&mut request)?;
        let answer = match request {
            Request::Status => to_value(&self.status(&owners).await?),
            Request::Figures => to_value(&owners.figures().await?),
            Request::Routes { filter } => return routes::all(speaker, filter).await,
            Request::Received { peer, filter } => {
                return routes::received(speaker, &peer, filter).await;
            }
            Request::Advertised { peer, filter } => {
                return routes::advertised(speaker, &peer, filter).await;
            }
            Request::Explain { prefix } => routes::explain(speaker, prefix).await,
            Request::Peer { peer } => owners.peer(&peer).await,
            Request::Operate { peer, order } => routes::operate(speaker, &peer, order).await,
            Request::Refresh { peer } => return routes::refresh(speaker, &peer).await,
            Request::Mrt { file } => mrt::dump_below_folder(speaker, &file).await,
            Request::Announced(question) => to_value(&owners.announced(&question).await?),
            Request::InUse(question) => to_value(&owners.in_use(&question)),
            Request::Policy { packet } => owners.policy(&self.config, packet),
            Request::Services => owners.services().await,
            Request::TakeServicesOver { over } => owners.take_services_over(over),
            Request::ExplainService(question) => self.explain_service(&owners, &question).await,
            Request::Audit => to_value(&owners.auditor.report().await?),
            Request::Pools => Ok(pools::pools(&owners.view.borrow().snapshot.clone())),
            Request::Nodes => self.nodes(&owners).await,
            Request::PlanMode(question) => return Box::pin(planned::mode(&owners, question)).await,
            Request::PlanTopology(asked) => {
                return Box::pin(planned::topology(&owners, &self.config, asked)).await;
            }
            Request::ExplainPath { prefix } => {
                to_value(&explain::explain(owners.sources(), &self.config.node, prefix).await?)
            }
            Request::Drain { text, wait, force } => owners.drain(text, wait, force).await,
            Request::Undrain => to_value(&owners.drainer.order(DrainOrder::Undo).await?),
            Request::DrainStatus => to_value(&owners.drainer.status()),
            Request::DatastoreAccept => owners.accept_datastore().await,
            Request::LogFilter { set } => return admin::log_filter(set.as_deref()),
            Request::Reload => Err(NO_RELOAD.to_owned()),
        };
        let answer = answer.map(|answer| words::answer_of(&owners.store, answer));
        answer.map(Answered::from)
    }
}

impl AskOthers for Answers {
    fn own_name(&self) -> &str {
        self.config.node.as_str()
    }

    async fn ask_other(&self, node: &str, path: &str) -> Result<Bytes, NoAnswer> {
        let stage = self.stage.borrow().clone();
        let owners = match stage {
            NodeStage::Running(owners) => owners,
            NodeStage::Starting { reason, .. } => {
                return Err(NoAnswer::Ours {
                    node: node.to_owned(),
                    reason: format!("this node is starting: {reason}"),
                });
            }
        };
        let place = others::find(&owners.store, node).await?;
        others::ask(&place, path, &self.config.console_files).await
    }
}

/// Which datastore it is.
fn which(store: &Datastore) -> DatastoreStatus {
    DatastoreStatus {
        kind: store.kind().to_owned(),
        endpoints: store.endpoints().to_owned(),
        ..DatastoreStatus::default()
    }
}

impl Answers {
    async fn explain_service(
        &self,
        owners: &Owners,
        question: &AskService,
    ) -> Result<serde_json::Value, String> {
        to_value(&explain_service::explain(owners, &self.config.node, question).await?)
    }

    async fn nodes(&self, owners: &Owners) -> Result<serde_json::Value, String> {
        let status = self.status(owners).await?;
        cluster_map::cluster_map(owners, &self.config, status).await
    }

    fn base(&self) -> NodeStatus {
        NodeStatus {
            node: self.config.node.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            ..NodeStatus::default()
        }
    }

    fn starting(&self, reason: String, store: Option<&Datastore>) -> NodeStatus {
        let datastore = DatastoreStatus {
            state: "starting".to_owned(),
            reason: Some(reason),
            ..store.map(which).unwrap_or_default()
        };
        NodeStatus {
            datastore,
            ..self.base()
        }
    }

    async fn status(&self, owners: &Owners) -> Result<NodeStatus, String> {
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
            revision: view.revision,
            reason: view.freshness.reason().map(ToString::to_string),
            ..which(&owners.store)
        };
        status.problems = owners.problems(Some(&bgp));
        let refused = status
            .problems
            .iter()
            .find(|p| p.code == ProblemCode::DatastoreNoWrites);
        status.datastore.no_writes = refused.map(|problem| problem.reason.clone());
        status.origin = Some(routes::origin(&bgp));
        status.peers = routes::peers(bgp.peers);
        peer_names::name_all(&owners.announced.borrow().bgp_peers, &mut status.peers);
        status.stations = routes::stations(bgp.stations);
        status.work = routes::work(bgp.work);
        status.blocks = blocks(&view, &self.config);
        status.kernel = kernel.kernel.clone();
        status.kernel.paths = paths(snapshot, &kernel.paths.now());
        status.drain = owners.drainer.status().reason();
        Ok(status)
    }
}

impl Owners {
    /// The table of services; the reason where they are not translated, and null while that is not
    /// known.
    async fn services(&self) -> Result<serde_json::Value, String> {
        let status = match self.translated.borrow().clone() {
            Translated::Unknown => return Ok(serde_json::Value::Null),
            Translated::Nothing(reason) => return Ok(reason.into()),
            Translated::Services(status) => status,
        };
        // Without counters there is much to show still.
        let hits = observe_service_hits().await.unwrap_or_default();
        to_value(&TranslatedServices::from_status(&status, &hits))
    }

    async fn drain(
        &self,
        text: String,
        wait: u64,
        force: bool,
    ) -> Result<serde_json::Value, String> {
        let order = DrainOrder::Drain {
            text,
            wait: Duration::from_secs(wait),
            force,
        };
        to_value(&self.drainer.order(order).await?)
    }

    async fn figures(&self) -> Result<Figures, String> {
        let kernel = self.kernel.borrow().clone();
        let agent = AgentFigures {
            passes: kernel.passes,
            applied: kernel.applied,
            pass_seconds: kernel.spent.as_secs_f64(),
        };
        let speaker = self.speaker.status().await.map_err(text)?;
        Ok(Figures::now(Some(agent), Some(&speaker)))
    }

    async fn accept_datastore(&self) -> Result<serde_json::Value, String> {
        let accepted = self.accepter.accept().await.map_err(text)?;
        let (fault, code) = match &accepted {
            Some(fault) => (Some(fault.to_string()), Some(fault.code())),
            None => (None, None),
        };
        Ok(json!({"accepted": fault, "code": code}))
    }

    /// Puts the speaker's name of a peer in the place of the user's.
    fn resolve_peer(&self, request: &mut Request) -> Result<(), String> {
        match request.peer_mut() {
            Some(peer) => peer_names::resolve(&self.announced.borrow().bgp_peers, peer),
            None => Ok(()),
        }
    }

    async fn peer(&self, peer: &str) -> Result<serde_json::Value, String> {
        let answer = routes::peer(&self.speaker, peer).await?;
        Ok(peer_names::named(
            &self.announced.borrow().bgp_peers,
            answer,
        ))
    }

    fn take_services_over(&self, over: bool) -> Result<serde_json::Value, String> {
        self.takeover.order(over)?;
        Ok(serde_json::Value::Null)
    }

    /// Where an explanation comes from.
    const fn sources(&self) -> explain::Sources<'_> {
        explain::Sources {
            store: &self.store,
            view: &self.view,
            speaker: &self.speaker,
            kernel: &self.kernel,
        }
    }

    async fn announced(&self, question: &AwaitAnnouncement) -> Result<Announcement, String> {
        let counting = match self.store.counts_by_kind() {
            true => Counting::ByKind,
            false => Counting::Whole,
        };
        let sources = AnnouncementSources {
            announced: self.announced.clone(),
            counting,
            view: self.view.clone(),
            speaker: self.speaker.clone(),
            first_routes: self
                .starts_anew
                .then(|| (self.kernel.clone(), announced::FIRST_ROUTES)),
            enforced: self.enforced.clone(),
        };
        announced::wait(sources, question).await
    }

    /// Addresses of these blocks that endpoints use.
    fn in_use(&self, question: &AskInUse) -> Vec<InUse> {
        let snapshot = Arc::clone(&self.view.borrow().snapshot);
        let asked = |network: &&Prefix| question.blocks.iter().any(|block| block.covers(network));
        let of =
            |((namespace, name), endpoint): (&(String, String), &Versioned<WorkloadEndpoint>)| {
                let networks = endpoint.spec.ip_networks.iter().filter(asked);
                let one = |network: &Prefix| InUse {
                    address: network.address(),
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                networks.map(one).collect::<Vec<_>>()
            };
        let others = snapshot.elsewhere.iter().flat_map(|(place, endpoint)| {
            let (namespace, name) = Elsewhere::names(place);
            let networks = endpoint.networks.as_slice().iter().filter(asked);
            networks.map(move |network| InUse {
                address: network.address(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
        });
        let own = snapshot.workloads.iter().flat_map(of);
        own.chain(others).collect()
    }

    /// Everything that is wrong, sorted; with what the speaker says of itself, if it answers.
    pub(crate) fn problems(&self, bgp: Option<&SpeakerStatus>) -> Vec<Problem> {
        let mut problems = self.view.borrow().problems();
        problems.extend(self.kernel.borrow().problems.iter().cloned());
        problems.extend(self.problems.borrow().all().cloned());
        problems.extend(self.auditor.losses());
        problems.extend(bgp.into_iter().flat_map(peer_problems::problems));
        problems.extend(bgp.into_iter().flat_map(origins::problems));
        let listen_error = bgp.and_then(|bgp| bgp.listen_error.as_ref());
        problems.extend(listen_error.map(|reason| Problem {
            code: ProblemCode::BgpListen,
            subject: "listening socket".to_owned(),
            reason: reason.clone(),
        }));
        let mut problems = words::problems_of(&self.store, problems);
        problems.sort_unstable();
        problems.dedup();
        problems
    }
}

/// Known path MTUs to other nodes.
fn paths(snapshot: &Snapshot, known: &PathMtus) -> Vec<PathStatusJson> {
    let nodes = snapshot.nodes.iter().flat_map(|(name, node)| {
        let addresses = [Family::Ipv4, Family::Ipv6].map(|family| node.spec.address(family));
        let addresses = addresses.into_iter().flatten();
        addresses.map(move |address| (name, address))
    });
    let path = |(name, address): (&NodeName, IpAddr)| {
        let path = known.get(&address)?;
        Some(PathStatusJson {
            node: name.to_string(),
            address,
            mtu: path.mtu,
            interface_mtu: path.interface,
        })
    };
    nodes.filter_map(path).collect()
}

fn blocks(view: &View, config: &Config) -> Vec<BlockStatus> {
    let snapshot = &view.snapshot;
    let describe = |(cidr, affinity): (caracal_model::Prefix, &caracal_model::BlockAffinity)| {
        let block = snapshot.blocks.get(&cidr);
        let state = match affinity.state {
            AffinityState::Pending => "pending",
            AffinityState::Confirmed => "confirmed",
            AffinityState::PendingDeletion => "pendingDeletion",
        };
        BlockStatus {
            cidr,
            state: state.to_owned(),
            in_use: block.map_or(0, |b| b.in_use as usize),
            size: usize::try_from(cidr.size()).unwrap_or(usize::MAX),
        }
    };
    snapshot
        .affinities_of(&config.node)
        .map(|(cidr, affinity)| describe((cidr, affinity)))
        .collect()
}
