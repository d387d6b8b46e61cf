//! Answers of a standalone speaker on the admin socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use caracal_agent::TableStatus;
use caracal_bgp::SpeakerHandle;
use caracal_model::{DatastoreStatus, InsertEach, KernelStatus, NodeStatus, Problem, ProblemCode};
use tokio::sync::{mpsc, oneshot, watch};

use super::Reload;
use super::caches::Followed;
use crate::admin::mrt;
use crate::admin::routes::{self, text, to_value};
use crate::admin::{AnswerRequests, Answered, Request};
use crate::metrics::process::Figures;
use crate::peer_problems;

/// State of parts that a standalone speaker does not have.
const NONE: &str = "none";

/// Answers for a standalone speaker.
#[derive(Clone)]
pub(super) struct SpeakerAnswers {
    pub(super) started: Instant,
    pub(super) file: PathBuf,
    pub(super) speaker: SpeakerHandle,
    pub(super) kernel: watch::Receiver<Option<Arc<TableStatus>>>,
    pub(super) caches: watch::Receiver<Followed>,
    pub(super) reload: mpsc::Sender<Reload>,
}

impl AnswerRequests for SpeakerAnswers {
    async fn answer(&self, request: Request) -> Result<Answered, String> {
        let speaker = &self.speaker;
        let answer = match request {
            Request::Status => to_value(&self.status().await?),
            Request::Figures => {
                let status = speaker.status().await.map_err(text)?;
                to_value(&Figures::now(None, Some(&status)))
            }
            Request::Routes { filter } => return routes::all(speaker, filter).await,
            Request::Received { peer, filter } => {
                return routes::received(speaker, &peer, filter).await;
            }
            Request::Advertised { peer, filter } => {
                return routes::advertised(speaker, &peer, filter).await;
            }
            Request::Explain { prefix } => routes::explain(speaker, prefix).await,
            Request::Peer { peer } => routes::peer(speaker, &peer).await,
            Request::Operate { peer, order } => routes::operate(speaker, &peer, order).await,
            Request::Refresh { peer } => return routes::refresh(speaker, &peer).await,
            Request::Mrt { file } => mrt::dump_below_folder(speaker, &file).await,
            Request::Announced(_) | Request::InUse(_) => {
                Err("a standalone speaker has no pods; ask the node's process".to_owned())
            }
            Request::Reload => return self.reload().await,
            Request::LogFilter { set } => return crate::admin::log_filter(set.as_deref()),
            Request::Policy { .. }
            | Request::Services
            | Request::TakeServicesOver { .. }
            | Request::ExplainService { .. }
            | Request::Audit
            | Request::Pools
            | Request::Nodes
            | Request::PlanMode(_)
            | Request::PlanTopology(_)
            | Request::ExplainPath { .. }
            | Request::Drain { .. }
            | Request::Undrain
            | Request::DrainStatus
            | Request::DatastoreAccept => {
                Err("this is a standalone speaker; only a node answers that".to_owned())
            }
        };
        answer.map(Answered::from)
    }

    async fn progress(&self) -> Option<String> {
        routes::progress(&self.speaker).await
    }
}

impl SpeakerAnswers {
    async fn reload(&self) -> Result<Answered, String> {
        let (answer, wait) = oneshot::channel();
        self.reload.send(answer).await.map_err(text)?;
        match wait.await.map_err(text)? {
            Ok(change) => to_value(&change).map(Answered::from),
            Err(refused) => Ok(Answered::Refused(refused)),
        }
    }

    async fn status(&self) -> Result<NodeStatus, String> {
        let bgp = self.speaker.status().await.map_err(text)?;
        let mut problems = peer_problems::problems(&bgp);
        let listen = bgp.listen_error.clone().map(|reason| Problem {
            code: ProblemCode::BgpListen,
            subject: "listening socket".to_owned(),
            reason,
        });
        let kernel = self.kernel.borrow().clone();
        problems.extend(listen);
        let caches = self.caches.borrow().clone();
        problems.extend(caches.problems());
        problems.extend(kernel.iter().flat_map(|kernel| kernel.problems.clone()));
        Ok(NodeStatus {
            node: self.file.display().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            addresses: bgp.listen.iter().map(ToString::to_string).collect(),
            asn: bgp.local_as.0,
            router_id: bgp.router_id.to_string(),
            datastore: DatastoreStatus {
                state: NONE.to_owned(),
                ..DatastoreStatus::default()
            },
            kernel: KernelStatus {
                phase: kernel
                    .as_ref()
                    .map_or(NONE, |kernel| kernel.phase)
                    .to_owned(),
                routes: kernel
                    .iter()
                    .map(|kernel| ("direct".to_owned(), kernel.routes))
                    .insert_each(),
                nat: NONE.to_owned(),
                ..KernelStatus::default()
            },
            origin: Some(routes::origin(&bgp)),
            peers: routes::peers(bgp.peers),
            stations: routes::stations(bgp.stations),
            caches: caches.status(),
            work: routes::work(bgp.work),
            problems,
            ..NodeStatus::default()
        })
    }
}
