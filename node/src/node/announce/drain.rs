//! `caracal drain`: takes the node out of service without losing a packet, and back.
//!
//! 1. *leaving*: every announcement carries GRACEFUL_SHUTDOWN and LOCAL_PREF 0 (RFC 8326); who has
//!    another path takes it, and what still comes here is still forwarded. Once that is written to
//!    all sessions, receivers get the time that was asked for.
//! 2. *withdrawing*: nothing is announced any more.
//! 3. *drained*: all sessions end with Cease / Administrative Shutdown and a text (RFC 9003), where
//!    needed inside a Hard Reset, so that graceful restart keeps no route of ours (RFC 8538). The
//!    agent stops following BGP.
//!
//! A drained node stays drained when its process or its machine restarts: the text stands in a file
//! until `caracal drain --undo`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caracal_bgp::{SessionState, SpeakerConfig, SpeakerHandle};
use caracal_datastore::View;
use caracal_model::{NodeName, Problem, ProblemCode};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::node::problems::ProblemReporter;

/// The file that says that the node is drained, in the library directory; it holds the text.
const FILE: &str = "drained";
/// Interval of checking that all sessions have sent the change.
const LOOK: Duration = Duration::from_millis(100);
/// A session that takes nothing for this long does not hold up the others.
const SEND_LIMIT: Duration = Duration::from_secs(30);
/// Orders that may wait.
const ORDERS: usize = 4;
/// Most workloads that a refusal names.
const NAMED: usize = 3;

/// How far a drain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DrainStage {
    #[default]
    InService,
    /// Announcements carry GRACEFUL_SHUTDOWN.
    Leaving,
    /// Announcements are withdrawn.
    Withdrawing,
    /// Sessions are shut down.
    Drained,
}

/// How far it is, and why it was begun.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DrainStatus {
    /// How far.
    pub(crate) stage: DrainStage,
    /// The text for the operators of peers.
    pub(crate) text: String,
    /// Why nothing was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
}

impl DrainStatus {
    /// A few words for a node that is not in service.
    pub(crate) fn reason(&self) -> Option<String> {
        let stage = match self.stage {
            DrainStage::InService => return None,
            DrainStage::Leaving => "leaving",
            DrainStage::Withdrawing => "withdrawing",
            DrainStage::Drained => "drained",
        };
        Some(if self.text.is_empty() {
            stage.to_owned()
        } else {
            format!("{stage}: {}", self.text)
        })
    }
}

/// Order to the task.
pub(crate) enum DrainOrder {
    /// Leave.
    Drain {
        /// For the operators of peers.
        text: String,
        /// Time for receivers to take another path.
        wait: Duration,
        /// Although workloads are left.
        force: bool,
    },
    /// Come back.
    Undo,
}

/// Handle of the task.
#[derive(Clone)]
pub(crate) struct Drainer {
    orders: mpsc::Sender<(DrainOrder, oneshot::Sender<DrainStatus>)>,
    status: watch::Receiver<DrainStatus>,
}

impl Drainer {
    /// How far it is.
    pub(crate) fn status(&self) -> DrainStatus {
        self.status.borrow().clone()
    }

    /// Gives an order; answers once it is accepted or refused, not once it is carried out.
    pub(crate) async fn order(&self, order: DrainOrder) -> Result<DrainStatus, String> {
        let ended = "the task that drains has ended";
        let (answer, wait) = oneshot::channel();
        self.orders.send((order, answer)).await.map_err(|_| ended)?;
        Ok(wait.await.map_err(|_| ended)?)
    }
}

/// The configuration of the speaker at a stage.
pub(crate) fn at_stage(config: SpeakerConfig, stage: DrainStage) -> SpeakerConfig {
    match stage {
        DrainStage::InService => config,
        DrainStage::Leaving => config.leaving(),
        DrainStage::Withdrawing | DrainStage::Drained => config.silent(),
    }
}

/// Whether the node was drained. Where that cannot be read it is taken to be in service, and
/// reported.
pub(crate) fn recall_or_report(lib_dir: &Path, problems: &ProblemReporter) -> DrainStatus {
    recall(lib_dir).unwrap_or_else(|error| {
        problems.warn(vec![Problem {
            code: ProblemCode::NodeLibDir,
            subject: lib_dir.display().to_string(),
            reason: format!(
                "cannot read whether the node is drained: {error}; it is taken to be in service (CARACAL_LIB_DIR)"
            ),
        }]);
        DrainStatus::default()
    })
}

/// Whether the node was drained when its last process ended.
pub(crate) fn recall(lib_dir: &Path) -> io::Result<DrainStatus> {
    match caracal_datastore::read_text_file(&lib_dir.join(FILE)) {
        Ok(text) => Ok(DrainStatus {
            stage: DrainStage::Drained,
            text: text.trim_end().to_owned(),
            refused: None,
        }),
        Err(error) if crate::node::membership::remember::is_absent(&error) => {
            Ok(DrainStatus::default())
        }
        Err(error) => Err(error),
    }
}

/// Dependencies of the task.
pub(crate) struct DrainerParts {
    pub(crate) me: NodeName,
    pub(crate) lib_dir: PathBuf,
    pub(crate) view: watch::Receiver<View>,
    pub(crate) speaker: SpeakerHandle,
    /// The stage that is wanted; the publisher follows it.
    pub(crate) status: watch::Sender<DrainStatus>,
    /// The stage whose configuration is in force.
    pub(crate) in_force: watch::Receiver<DrainStage>,
}

/// Starts the task.
pub(crate) fn spawn(parts: DrainerParts) -> Drainer {
    let (orders, receiver) = mpsc::channel(ORDERS);
    let status = parts.status.subscribe();
    tokio::spawn(parts.run(receiver));
    Drainer { orders, status }
}

impl DrainerParts {
    async fn run(mut self, mut orders: mpsc::Receiver<(DrainOrder, oneshot::Sender<DrainStatus>)>) {
        let mut next = orders.recv().await;
        while let Some((order, answer)) = next {
            let accepted = self.accept(&order);
            // The caller may have gone.
            let _ = answer.send(accepted.clone());
            if accepted.refused.is_some() {
                next = orders.recv().await;
                continue;
            }
            // A later order takes the place of one that is still being carried out.
            next = tokio::select! {
                biased;
                later = orders.recv() => later,
                () = self.execute(order) => orders.recv().await,
            };
        }
    }

    /// Answer to an order.
    fn accept(&self, order: &DrainOrder) -> DrainStatus {
        let now = self.status.borrow().clone();
        let refused = match order {
            DrainOrder::Drain { force: false, .. } if now.stage == DrainStage::InService => {
                self.left_here()
            }
            _ => None,
        };
        DrainStatus { refused, ..now }
    }

    /// Workloads that would be cut off: nobody else announces them.
    fn left_here(&self) -> Option<String> {
        let snapshot = self.view.borrow().snapshot.clone();
        let names: Vec<String> = snapshot
            .workloads_of(&self.me)
            .map(|workload| workload.metadata.name.clone())
            .collect();
        if names.is_empty() {
            return None;
        }
        let more = names.len().saturating_sub(NAMED);
        let more = if more == 0 {
            String::new()
        } else {
            format!(" and {more} more")
        };
        let named = names[..names.len().min(NAMED)].join(", ");
        Some(format!(
            "{} workloads still run on this node and would be cut off where BGP carries their routes ({named}{more}); move them away first, or use --force",
            names.len()
        ))
    }

    async fn execute(&mut self, order: DrainOrder) {
        match order {
            DrainOrder::Drain { text, wait, .. } => self.drain(text, wait).await,
            DrainOrder::Undo => self.undo().await,
        }
    }

    async fn drain(&mut self, text: String, wait: Duration) {
        let stage = self.status.borrow().stage;
        tracing::info!(text, "the node is drained");
        if let Err(error) = crate::node::leave_file(&self.lib_dir, FILE, &format!("{text}\n")) {
            tracing::warn!(%error, "the drain will not outlast this process");
        }
        if stage < DrainStage::Leaving {
            self.go(DrainStage::Leaving, &text).await;
            tokio::time::sleep(wait).await;
        }
        if stage < DrainStage::Withdrawing {
            self.go(DrainStage::Withdrawing, &text).await;
        }
        if self.speaker.disable(text.clone()).await.is_err() {
            tracing::error!("the BGP speaker has ended");
        }
        self.set(DrainStage::Drained, &text);
        tracing::info!("the node is drained: all sessions are shut down");
    }

    async fn undo(&mut self) {
        if let Err(error) = std::fs::remove_file(self.lib_dir.join(FILE))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "the node will be drained again after a restart");
        }
        // First the announcements, so that sessions start with them.
        self.go(DrainStage::InService, "").await;
        if self.speaker.enable().await.is_err() {
            tracing::error!("the BGP speaker has ended");
        }
        tracing::info!("the node is back in service");
    }

    fn set(&self, stage: DrainStage, text: &str) {
        self.status.send_replace(DrainStatus {
            stage,
            text: text.to_owned(),
            refused: None,
        });
    }

    /// Goes to a stage; returns when its configuration is in force and all sessions have sent it.
    async fn go(&mut self, stage: DrainStage, text: &str) {
        self.set(stage, text);
        if self
            .in_force
            .wait_for(|in_force| *in_force == stage)
            .await
            .is_err()
        {
            return;
        }
        let sent = async {
            while !self.all_told().await {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(SEND_LIMIT, sent).await.is_err() {
            tracing::warn!("a peer takes nothing; the others have been told");
        }
    }

    async fn all_told(&self) -> bool {
        self.speaker.status().await.map_or(true, |status| {
            let mut up = status
                .peers
                .iter()
                .filter(|peer| peer.state == SessionState::Established);
            up.all(|peer| peer.pending == 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use caracal_datastore::TestFolder;

    use super::*;

    #[test]
    fn a_drain_outlasts_the_process() {
        let dir = TestFolder::new("drain");
        assert_eq!(recall(&dir).unwrap(), DrainStatus::default());
        crate::node::leave_file(&dir, FILE, "new rack\n").unwrap();
        let recalled = recall(&dir).unwrap();
        assert_eq!(recalled.stage, DrainStage::Drained);
        assert_eq!(recalled.reason().as_deref(), Some("drained: new rack"));
    }
}
