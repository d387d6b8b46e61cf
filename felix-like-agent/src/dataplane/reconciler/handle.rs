//! Handle of a running reconciler.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::dataplane::reconciler::status::AgentStatus;
use crate::dataplane::underlay::PublishedUnderlay;

#[derive(Debug)]
pub(in crate::dataplane) enum ReconcilerCommand {
    Freeze(oneshot::Sender<()>),
    #[cfg(test)]
    Resync,
    Answer(oneshot::Sender<()>),
}

/// The running reconciler. When the handle and its clones are dropped, it ends and leaves the
/// kernel as it is.
#[derive(Clone, Debug)]
pub struct ReconcilerHandle {
    pub(in crate::dataplane) commands: mpsc::Sender<ReconcilerCommand>,
    pub(in crate::dataplane) status: watch::Receiver<Arc<AgentStatus>>,
    pub(in crate::dataplane) underlay: watch::Receiver<PublishedUnderlay>,
}

/// Resolves when the reconciler has stopped writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freezing {
    /// It answered.
    Frozen,
    /// It had ended before.
    Ended,
}

impl ReconcilerHandle {
    /// The state after the last pass; changes with each.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Arc<AgentStatus>> {
        self.status.clone()
    }

    /// Underlay for next-hop resolution, as of the last pass; changes only when a value differs.
    #[must_use]
    pub fn underlay(&self) -> watch::Receiver<PublishedUnderlay> {
        self.underlay.clone()
    }

    /// Stops all writing for good; a pass under way is finished first. Called before sessions are
    /// closed, so that routes survive them.
    pub async fn freeze(&self) -> Freezing {
        let (sender, receiver) = oneshot::channel();
        if self
            .commands
            .send(ReconcilerCommand::Freeze(sender))
            .await
            .is_err()
        {
            return Freezing::Ended;
        }
        receiver
            .await
            .map_or(Freezing::Ended, |()| Freezing::Frozen)
    }

    /// Resolves with true when the task has answered, between two passes; with false when it has
    /// ended.
    pub async fn answers(&self) -> bool {
        let (sender, receiver) = oneshot::channel();
        self.commands
            .send(ReconcilerCommand::Answer(sender))
            .await
            .is_ok()
            && receiver.await.is_ok()
    }

    /// Asks for a full comparison now, NAT rules and kernel modules included.
    #[cfg(test)]
    pub(crate) async fn resync(&self) {
        // An ended reconciler has nothing to compare.
        let _ = self.commands.send(ReconcilerCommand::Resync).await;
    }
}
