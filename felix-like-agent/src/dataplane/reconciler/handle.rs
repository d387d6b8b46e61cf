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

/// Commands of the handle. In the middle of a pass questions are answered, and anything else waits
/// for its end.
#[derive(Debug)]
pub(in crate::dataplane) struct Questions {
    commands: mpsc::Receiver<ReconcilerCommand>,
    /// The first one that waits; those behind it wait in the channel.
    waiting: Option<ReconcilerCommand>,
}

impl Questions {
    pub(in crate::dataplane) const fn new(commands: mpsc::Receiver<ReconcilerCommand>) -> Self {
        let waiting = None;
        Self { commands, waiting }
    }

    /// The next command; `None` when nobody is left to give one.
    pub(in crate::dataplane) async fn next(&mut self) -> Option<ReconcilerCommand> {
        match self.waiting.take() {
            Some(command) => Some(command),
            None => self.commands.recv().await,
        }
    }

    /// Lets others run, and answers who asked meanwhile.
    pub(in crate::dataplane) async fn answer(&mut self) {
        tokio::task::yield_now().await;
        while self.waiting.is_none() {
            match self.commands.try_recv() {
                Ok(ReconcilerCommand::Answer(asked)) => {
                    // Who asked may have gone.
                    let _ = asked.send(());
                }
                Ok(command) => self.waiting = Some(command),
                Err(_) => return,
            }
        }
    }
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

    /// Resolves with true when the task has answered, between two passes or two slices of one; with
    /// false when it has ended.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn in_the_middle_of_a_pass_questions_are_answered_and_orders_wait() {
        let (commands, receiver) = mpsc::channel(8);
        let mut questions = Questions::new(receiver);
        let ask = || {
            let (asked, answer) = oneshot::channel();
            (ReconcilerCommand::Answer(asked), answer)
        };
        let (first, mut answered) = ask();
        commands.send(first).await.unwrap();
        let (freeze, mut frozen) = oneshot::channel();
        commands
            .send(ReconcilerCommand::Freeze(freeze))
            .await
            .unwrap();
        let (second, mut waits) = ask();
        commands.send(second).await.unwrap();
        for _ in 0..2 {
            questions.answer().await;
        }
        assert!(answered.try_recv().is_ok());
        // What comes behind an order comes behind it.
        assert!(frozen.try_recv().is_err() && waits.try_recv().is_err());
        let Some(ReconcilerCommand::Freeze(freeze)) = questions.next().await else {
            panic!("the order is lost");
        };
        freeze.send(()).unwrap();
        questions.answer().await;
        assert!(waits.try_recv().is_ok());
        drop(commands);
        assert!(questions.next().await.is_none());
    }
}
