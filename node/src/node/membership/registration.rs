//! This node's own entry in the datastore, kept while the node runs: registered where the start
//! could not wait for that, and written again when somebody deletes or overwrites it. Never into a
//! datastore that is not known to be the cluster's, and never between a restart and forwarding:
//! what fails is a problem and is tried again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use caracal_datastore::{DatastoreFault, Store, View};
use caracal_model::{Cidr, Family, Key, Node, Problem, ProblemCode, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::config::{AddressChoice, Config};
use crate::detect::Interface;
use crate::node::membership::{address, machine, startup};
use crate::node::problems::ProblemReporter;
use crate::register::{self, Addresses};

/// First and longest pause after a failed try.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Time for which it is shown that the Node was written again, or that a copy of this machine had
/// the name.
pub(crate) const SHOWN: Duration = Duration::from_secs(600);

/// Dependencies of the task.
pub(crate) struct Registrar<S, I> {
    pub(crate) store: S,
    pub(crate) config: Arc<Config>,
    /// This machine's.
    pub(crate) claim: machine::Claim,
    pub(crate) view: watch::Receiver<View>,
    /// This machine's interfaces.
    pub(crate) interfaces: I,
    /// The start has registered the node.
    pub(crate) registered: bool,
    /// The cluster's identity, when it is known: one that was lost is written as it was.
    pub(crate) guid: Option<String>,
    /// The Node as it was registered.
    pub(crate) outcome: watch::Sender<Option<Node>>,
    pub(crate) problems: ProblemReporter,
    /// Another machine has the name: this process has to end.
    pub(crate) lost: mpsc::Sender<machine::Taken>,
}

/// Reason to write the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// The Node is gone.
    Deleted,
    /// The stored value is no Node.
    Unreadable,
    /// It lacks the addresses that it had.
    Overwritten,
    /// As at every start.
    Register,
}

impl Work {
    /// Text of the problem after the Node was written again.
    const fn rewrite_reason(self) -> Option<&'static str> {
        match self {
            Self::Deleted => Some("was deleted"),
            Self::Unreadable => Some("was overwritten with something that is no Node"),
            Self::Overwritten => Some("was overwritten: this node's addresses were gone from it"),
            Self::Register => None,
        }
    }
}

/// What is shown, and until when.
type Notice = (Problem, Instant);

/// What is shown after something was found. A copy that is about to end writes the Node once more:
/// that is no news.
fn told(shown: Option<Notice>, found: Option<Notice>) -> Option<Notice> {
    let is_copy = |notice: &Notice| notice.0.code == ProblemCode::NodeCopied;
    match (shown, found) {
        (Some(shown), Some(found)) if is_copy(&shown) && !is_copy(&found) => Some(shown),
        (shown, found) => found.or(shown),
    }
}

impl<S: Store, I: AsyncFn() -> anyhow::Result<Vec<Interface>>> Registrar<S, I> {
    /// Keeps the entry for ever.
    pub(crate) async fn run(mut self) {
        let mut last: Option<Node> = None;
        let mut failure: Option<Problem> = None;
        let mut notice: Option<Notice> = None;
        let mut pause = RETRY.0;
        loop {
            let view = self.view.borrow_and_update().clone();
            if let Some(guid) = &view.snapshot.cluster_guid {
                self.guid = Some(String::clone(guid));
            }
            if view.forbids_writing() {
                // Accepted, it is a new one to this node.
                self.registered = false;
            }
            let work = self.work(&view, last.as_ref());
            if let Some(work) = work {
                match self.execute(work, &view, last.as_ref()).await {
                    Ok(found) => {
                        failure = None;
                        pause = RETRY.0;
                        if work == Work::Register {
                            last = self.outcome.borrow().clone();
                        }
                        let found = found.map(|found| (found, Instant::now() + SHOWN));
                        notice = told(notice, found);
                    }
                    Err(error) => match error.downcast::<machine::Taken>() {
                        Ok(taken) => {
                            let _ended = self.lost.send(taken).await;
                            return;
                        }
                        Err(error) => failure = Some(self.failed(&error, &view)),
                    },
                }
            } else if view.fault.is_none()
                && let Some(node) = view.snapshot.nodes.get(&self.config.node)
            {
                last = Some(Node::clone(node));
            }
            if notice
                .as_ref()
                .is_some_and(|(_, until)| *until <= Instant::now())
            {
                notice = None;
            }
            let found = failure
                .iter()
                .chain(notice.iter().map(|(problem, _)| problem));
            self.problems.warn(found.cloned().collect());
            let until = notice.as_ref().map(|(_, until)| *until);
            tokio::select! {
                changed = self.view.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause), if failure.is_some() => {
                    pause = (pause * 2).min(RETRY.1);
                }
                () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
            }
        }
    }

    /// Work to do; none while the datastore was not read, or is not known to be the cluster's.
    fn work(&self, view: &View, last: Option<&Node>) -> Option<Work> {
        let me = &self.config.node;
        let known = view.snapshot.nodes.get(me);
        match &view.fault {
            Some(DatastoreFault::OwnNode) => return Some(Work::Deleted),
            Some(_) => return None,
            None if !view.synced => return None,
            None => {}
        }
        let path = Key::node(me).to_path();
        if known.is_some() && view.snapshot.invalid.contains_key(&path) {
            return Some(Work::Unreadable);
        }
        if !self.registered {
            return Some(Work::Register);
        }
        let (node, last) = (known?, last?);
        // The view still has it as it was.
        let kept = view.absent.contains(me);
        (kept || lacks(&self.config, node, last)).then_some(Work::Overwritten)
    }

    /// Does it, unless another machine has the name; what is to be told of it.
    async fn execute(
        &mut self,
        work: Work,
        view: &View,
        last: Option<&Node>,
    ) -> anyhow::Result<Option<Problem>> {
        let copy = match self.claim.look(&self.store).await? {
            machine::Held::Lost(taken) => return Err(taken.into()),
            machine::Held::TakenBack(copy) => Some(copy.problem()),
            machine::Held::Ours => None,
        };
        let wrote = self.write(work, view, last).await?;
        let rewritten = work.rewrite_reason().filter(|_| wrote);
        Ok(copy.or_else(|| Some(self.written_again(rewritten?))))
    }

    /// True when something was written.
    async fn write(
        &mut self,
        work: Work,
        view: &View,
        last: Option<&Node>,
    ) -> anyhow::Result<bool> {
        let me = &self.config.node;
        let interfaces = (self.interfaces)().await?;
        match work {
            Work::Deleted | Work::Unreadable => {
                let known = view.snapshot.nodes.get(me).map(|node| &**node);
                let Some(known) = known.or(last) else {
                    anyhow::bail!("what it held is not known; restart the node");
                };
                Ok(register::restore_node(&self.store, me, known).await?)
            }
            Work::Register => {
                let node =
                    startup::attempt(&self.store, &self.config, &interfaces, self.guid.as_deref())
                        .await?;
                self.registered = true;
                self.outcome.send_replace(Some(node));
                Ok(true)
            }
            Work::Overwritten => {
                let found = address::resolve(&self.config, last, &interfaces)?;
                let was = |family| last.and_then(|node| node.spec.cidr(family));
                let addresses = Addresses {
                    v4: found.v4.or_else(|| was(Family::Ipv4)),
                    v6: found.v6.or_else(|| was(Family::Ipv6)),
                };
                let now = Timestamp::from(SystemTime::now());
                let there = startup::addresses(&interfaces);
                register::register_again(&self.store, &self.config, addresses, &there, last, now)
                    .await?;
                Ok(true)
            }
        }
    }

    fn written_again(&self, what: &str) -> Problem {
        let key = Key::node(&self.config.node).to_path();
        tracing::warn!(key, "this node's own resource {what}; it was written again");
        Problem {
            code: ProblemCode::NodeWrittenAgain,
            subject: key,
            reason: format!(
                "this node's own resource {what}; the node wrote it again. Find out who did that; a node that is to leave \
                 the cluster is stopped first, then removed with `caracal node delete`"
            ),
        }
    }

    fn failed(&self, error: &anyhow::Error, view: &View) -> Problem {
        Problem {
            code: ProblemCode::NodeRegistration,
            subject: Key::node(&self.config.node).to_path(),
            reason: format!(
                "this node cannot write its entry in the datastore: {error:#}; it works with what is known of revision {}, and \
                 tries again",
                view.snapshot.revision
            ),
        }
    }
}

/// The Node has lost an address that it had, or has another one than this node was given.
fn lacks(config: &Config, node: &Node, last: &Node) -> bool {
    let families = [(Family::Ipv4, &config.ip), (Family::Ipv6, &config.ip6)];
    families.into_iter().any(|(family, choice)| {
        let is: Option<Cidr> = node.spec.cidr(family);
        match choice {
            AddressChoice::Keep => false,
            AddressChoice::Literal { address, .. } => is.is_none_or(|is| is.address != *address),
            AddressChoice::Autodetect { .. } => is.is_none() && last.spec.cidr(family).is_some(),
        }
    })
}

#[cfg(test)]
mod tests;
