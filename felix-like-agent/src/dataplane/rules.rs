//! The task that keeps the NAT and forwarding rules: it alone starts `nft` and iptables for them,
//! so that a program which hangs delays rules and nothing else. The reconciler says what is wanted
//! and goes on; what came of it is in [`RulesStatus`].

use std::sync::Arc;
use std::time::Duration;

use caracal_model::{Problem, ProblemCode};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::chain;
use super::read::hints::OwnChanges;
use super::retry::{Retries, backoff};
use super::write::nat::{Backend, CHANGED, NatError, NatWriter};
use crate::nat::Nat;
use crate::nat::nft::blockers::Blocker;
use crate::op::Op;
use crate::problem::problem;
use crate::settings::NatBackend;

/// Work under way may take this long before it is broken off at a freeze. What a program does not
/// finish is not done: it hands all of its work to the kernel at once.
const GRACE: Duration = Duration::from_secs(1);

/// What the rules are to be.
#[derive(Clone, Debug, Default, PartialEq)]
struct Order {
    /// `None` = nothing is planned, and what is there stays.
    nat: Option<Arc<Nat>>,
    backend: NatBackend,
    /// Rules of before this run stay: those that are planned may lack some of them.
    older_stay: bool,
    /// Number of times that the rules had to be read again, whatever was heard of them.
    looks: u64,
    /// Revision of the plan, for the log.
    revision: i64,
}

/// An order with its number.
type Numbered = (u64, Order);

/// How the rules are.
#[derive(Clone, Debug, Default)]
pub(in crate::dataplane) struct RulesStatus {
    /// Number of the order that was worked on last.
    tried: u64,
    /// The rules are as that order has them.
    in_step: bool,
    /// Tool that writes them; `None` = none was found yet.
    pub(in crate::dataplane) backend: Option<Backend>,
    /// Refusals, hanging programs, chains of others that drop.
    pub(in crate::dataplane) problems: Vec<Problem>,
    /// Times that the rules were written since the start.
    pub(in crate::dataplane) applied: u64,
}

/// The running task, for the reconciler, which owns it; it ends with this.
#[derive(Debug)]
pub(in crate::dataplane) struct Rules {
    orders: watch::Sender<Numbered>,
    status: watch::Receiver<RulesStatus>,
    task: JoinHandle<()>,
}

impl Rules {
    /// Starts the task in the calling thread's network namespace. `changed`: notified when others
    /// may have changed the rules; `own`: told what is our own doing.
    pub(in crate::dataplane) fn start(changed: Arc<Notify>, own: OwnChanges) -> Self {
        let (orders, receiver) = watch::channel(Numbered::default());
        let (sender, status) = watch::channel(RulesStatus::default());
        let keeper = Keeper {
            orders: receiver,
            changed,
            status: sender,
            writer: NatWriter::telling(own),
            seen: None,
            looks: 0,
            retries: Retries::default(),
            unread: None,
            has_written: false,
            applied: 0,
        };
        Self {
            orders,
            status,
            task: tokio::spawn(keeper.run()),
        }
    }

    /// Says what the rules are to be from now on.
    pub(in crate::dataplane) fn want(
        &self,
        nat: Option<Arc<Nat>>,
        backend: NatBackend,
        revision: i64,
        older_stay: bool,
    ) {
        self.orders.send_if_modified(|(number, order)| {
            let mut next = Order {
                nat,
                backend,
                older_stay,
                ..order.clone()
            };
            // The revision of a plan that changes nothing here is no news.
            if order.revision != 0 && next == *order {
                return false;
            }
            *number += 1;
            next.revision = revision;
            *order = next;
            true
        });
    }

    /// Has them read again.
    pub(in crate::dataplane) fn look(&self) {
        self.orders.send_modify(|(number, order)| {
            *number += 1;
            order.looks += 1;
        });
    }

    /// Resolves when the state differs from the one that was looked at last.
    pub(in crate::dataplane) async fn changed(&mut self) {
        if self.status.changed().await.is_err() {
            // It was ended on purpose.
            std::future::pending().await
        }
    }

    /// The state.
    pub(in crate::dataplane) fn status(&mut self) -> RulesStatus {
        self.status.borrow_and_update().clone()
    }

    /// True while the last order was not worked on.
    pub(in crate::dataplane) fn is_pending(&self, status: &RulesStatus) -> bool {
        status.tried != self.orders.borrow().0
    }

    /// True when the rules are as they were ordered last.
    pub(in crate::dataplane) fn is_in_step(&self, status: &RulesStatus) -> bool {
        status.in_step && !self.is_pending(status)
    }

    /// Stops all writing for good. Work under way is finished, if it ends within [`GRACE`].
    pub(in crate::dataplane) async fn freeze(&mut self) {
        if self.task.is_finished() {
            return;
        }
        let number = self.orders.borrow().0;
        let mut status = self.status.clone();
        let done = status.wait_for(|status| status.tried == number);
        if tokio::time::timeout(GRACE, done).await.is_err() {
            tracing::warn!("the rules are not as planned, and stay as they are: a program hangs");
        }
        self.task.abort();
        // It has been ended; there is nothing else to learn.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The rules could not be read, or the tool not be chosen.
#[derive(Debug)]
struct Unread {
    times: u32,
    again: Instant,
    reason: String,
}

struct Keeper {
    orders: watch::Receiver<Numbered>,
    changed: Arc<Notify>,
    status: watch::Sender<RulesStatus>,
    writer: NatWriter,
    /// The fingerprint in the kernel; `None` = not known.
    seen: Option<Option<String>>,
    looks: u64,
    retries: Retries,
    unread: Option<Unread>,
    /// What is in the kernel is of this run.
    has_written: bool,
    applied: u64,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            // Before the first plan nothing is known, not even the tool.
            if self.orders.borrow().1.revision != 0 {
                self.pass().await;
            }
            let again = self.unread.as_ref().map(|unread| unread.again);
            let again = again.into_iter().chain(self.retries.next_due()).min();
            tokio::select! {
                changed = self.orders.changed() => if changed.is_err() { return },
                () = self.changed.notified() => self.doubt(),
                () = sleep_until(again) => {}
            }
        }
    }

    /// Others may have changed the rules: until they are read, nothing is said of them. That is no
    /// news yet.
    fn doubt(&mut self) {
        self.seen = None;
        self.status.send_if_modified(|status| {
            status.in_step = false;
            false
        });
    }

    async fn pass(&mut self) {
        let (number, order) = self.orders.borrow_and_update().clone();
        if self.looks != order.looks {
            (self.looks, self.seen) = (order.looks, None);
        }
        let in_step = self.keep(&order, Instant::now()).await;
        let mut problems = self.retries.problems();
        problems.extend(self.unread.as_ref().map(|unread| {
            let reason = format!(
                "it is not known which rules are in the kernel, and they are not written: {}; it is tried again, and routes are kept meanwhile",
                unread.reason
            );
            problem(ProblemCode::AgentRulesUnwritten, "NAT rules", reason)
        }));
        problems.extend(self.writer.blockers.iter().map(forward_dropped));
        self.status.send_replace(RulesStatus {
            tried: number,
            in_step,
            backend: self.writer.backend,
            problems,
            applied: self.applied,
        });
    }

    /// Makes the rules those of the order. True when they are.
    async fn keep(&mut self, order: &Order, now: Instant) -> bool {
        if self
            .unread
            .as_ref()
            .is_some_and(|unread| now < unread.again)
        {
            return false;
        }
        if let Err(error) = self.look(order).await {
            self.cannot_read(&error);
            return false;
        }
        self.unread = None;
        let seen = self.seen.as_ref().and_then(Option::as_ref);
        let stays = order.older_stay && !self.has_written && seen.is_some();
        let wanted = order.nat.iter().filter(|nat| {
            let differs = seen != Some(&nat.fingerprint());
            differs && !stays
        });
        let wanted: Vec<Op> = wanted.map(|nat| Op::PutNat(Arc::clone(nat))).collect();
        let all = wanted.len();
        let due = self.retries.due(wanted, now);
        let mut is_in_step = due.len() == all;
        for op in due {
            is_in_step &= self.write(&op, order.revision).await;
        }
        is_in_step
    }

    /// Finds out which rules are in the kernel, unless that is known.
    async fn look(&mut self, order: &Order) -> Result<(), NatError> {
        if self.writer.choose(order.backend).await? {
            self.seen = None;
        }
        if self.seen.is_none() {
            let seen = self.writer.read(order.nat.as_ref()).await?;
            if seen.as_deref() == Some(CHANGED) {
                tracing::warn!("somebody changed our nftables table; it is written anew");
            }
            self.seen = Some(seen);
        }
        Ok(())
    }

    fn cannot_read(&mut self, error: &NatError) {
        let reason = chain(error);
        let times = self.unread.as_ref().map_or(0, |unread| unread.times);
        if self
            .unread
            .as_ref()
            .is_none_or(|known| known.reason != reason)
        {
            tracing::warn!(%reason, "our rules cannot be read");
        }
        self.unread = Some(Unread {
            times: times.saturating_add(1),
            again: Instant::now() + backoff(times),
            reason,
        });
    }

    /// Writes rules, and remembers how that went. True when they are in the kernel.
    async fn write(&mut self, op: &Op, rev: i64) -> bool {
        let Op::PutNat(nat) = op else {
            return false;
        };
        // State after a failed write is unknown and has to be read again.
        self.seen = None;
        match self.writer.write(nat).await {
            Ok(()) => {
                self.seen = Some(Some(nat.fingerprint()));
                self.has_written = true;
                self.applied += 1;
                self.retries.succeeded(op, 1, Instant::now());
                tracing::info!(rev, %op, "done");
                true
            }
            Err(error) => {
                let reason = chain(&error);
                tracing::warn!(rev, %op, reason, "the kernel refuses");
                self.retries.failed(op, reason, Instant::now());
                false
            }
        }
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A chain of somebody else's drops what pods send.
fn forward_dropped(blocker: &Blocker) -> Problem {
    let place = format!("{} {} {}", blocker.family, blocker.table, blocker.chain);
    let reason = format!(
        "chain {} of nftables table {} {} drops by policy what is forwarded, and rules of other tables cannot undo that; let pods through there: nft insert rule {place} iifname \"cali*\" accept, and the same with oifname",
        blocker.chain, blocker.family, blocker.table,
    );
    problem(ProblemCode::AgentForwardDropped, &place, reason)
}
