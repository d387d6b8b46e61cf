//! The garbage collector of IPAM, and this node's liveness lease. What may go is decided in
//! [`caracal_ipam::Collector`]; here are its eyes (snapshot, interfaces) and its hand
//! (conditional machines). A collector that is wrong about time or slow does no harm: each release
//! compares its preconditions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use caracal_datastore::{Rarely, Store, View};
use caracal_ipam::Lease;
use caracal_ipam::{AffinityError, AffinityOutcome, Conditional, ReleaseIps};
use caracal_ipam::{Client, ClientError, Collector, Garbage, Mender, Repair};
use caracal_model::{BlockOwner, InsertEach, NodeName, Problem, ProblemCode, Timestamp};
use tokio::sync::{mpsc, watch};

use super::deleted_nodes::{Grace, NodeRelease};
use crate::metrics::ipam::Collected;
use crate::node::membership::machine::{self, Claim, Held, Taken};
use crate::node::membership::registration::SHOWN;
use crate::node::problems::ProblemReporter;

/// Pause after a renewal that failed: whose the name is has to be known soon.
const RETRY: Duration = Duration::from_secs(5);

/// Looks within one grace period: death must be seen several times.
const LOOKS: u32 = 4;
/// Longest time between two looks.
const LONGEST: Duration = Duration::from_secs(300);

/// A node's lease: what is needed to renew it.
#[derive(Clone, Debug)]
pub(crate) struct Life<S> {
    pub(crate) store: S,
    /// This machine's.
    pub(crate) claim: Claim,
    pub(crate) grace: Duration,
}

impl<S: Store> Life<S> {
    /// Renews this node's lease, until another machine has it. Nothing is written into a datastore
    /// that is not known to be the cluster's.
    ///
    /// The lease is the one thing that a healthy node writes regularly, so here it is noticed that
    /// the datastore can be read and takes no writes.
    pub(crate) async fn live(
        self,
        mut view: watch::Receiver<View>,
        lost: mpsc::Sender<Taken>,
        problems: ProblemReporter,
    ) {
        let mut told = Rarely::default();
        let mut copied: Option<(Problem, tokio::time::Instant)> = None;
        loop {
            if view.wait_for(|v| !v.forbids_writing()).await.is_err() {
                return;
            }
            let pause = match self.claim.renew(&self.store).await {
                Ok(held @ (Held::Ours | Held::TakenBack(_))) => {
                    told.over();
                    let now = tokio::time::Instant::now();
                    if let Held::TakenBack(copy) = held {
                        copied = Some((copy.problem(), now + SHOWN));
                    }
                    copied.take_if(|(_, until)| *until <= now);
                    let shown = copied.iter().map(|(problem, _)| problem.clone());
                    problems.replace(shown.collect());
                    Lease::interval(self.grace)
                }
                Ok(Held::Lost(taken)) => {
                    // Whoever listens ends the process.
                    let _ended = lost.send(taken).await;
                    return;
                }
                Err(error) => {
                    if told.is_due(tokio::time::Instant::now(), &error.to_string()) {
                        tracing::warn!(%error, "cannot renew the liveness lease; trying again");
                    }
                    // A datastore that does not answer at all shows in its view.
                    match view.borrow().is_current() {
                        true => problems.warn(vec![self.refused(&error)]),
                        false => problems.replace(Vec::new()),
                    }
                    RETRY.min(Lease::interval(self.grace))
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn refused(&self, error: &anyhow::Error) -> Problem {
        Problem {
            code: ProblemCode::DatastoreNoWrites,
            subject: Lease::path(&self.claim.node),
            reason: format!(
                "the datastore can be read and takes no writes: {error:#}; routes and sessions stay, but no pod starts or gives \
                 its address back, and no setting is changed"
            ),
        }
    }

    /// Says that this process ends in order: another machine may take its place at once.
    pub(crate) async fn end(&self) -> anyhow::Result<()> {
        let Claim { node, holder, .. } = &self.claim;
        let stored = machine::stored(&self.store, node).await?;
        let own = stored.filter(|kv| {
            Lease::read(kv).is_some_and(|lease| lease.holder == *holder && !lease.stopped)
        });
        if let Some(own) = own {
            let revision = own.mod_revision;
            let txn = Lease::stop(node, holder, revision, self.grace, now());
            self.store.commit(&txn).await?;
        }
        Ok(())
    }
}

/// Collects for ever.
pub(crate) async fn collect<S: Store>(
    store: S,
    me: NodeName,
    grace: Grace,
    view: watch::Receiver<View>,
    tell: watch::Sender<Collected>,
) {
    let client = Client::new(store.clone());
    let mut collector = Collector::new(me.clone(), grace.period);
    let mut nodes = NodeRelease::new(store, me.clone(), grace);
    let mut told = Rarely::default();
    let mut ticks = tokio::time::interval((grace.period / LOOKS).min(LONGEST));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if view.has_changed().is_err() {
            return;
        }
        let current = view.borrow().clone();
        if !current.freshness.is_fresh() {
            continue;
        }
        let snapshot = &current.snapshot;
        let mut failed = Vec::new();
        match interfaces().await {
            Ok(interfaces) => {
                let garbage = collector.collectable(Instant::now(), snapshot, &interfaces);
                tell.send_modify(|counts| counts.candidates = collector.candidates());
                for one in garbage {
                    match release(&client, &me, one, Signs::of).await {
                        Ok(()) => tell.send_modify(|counts| counts.reclaimed += 1),
                        Err(error) => failed.push(format!("not collected: {error:#}")),
                    }
                }
            }
            Err(error) => failed.push(format!("IPAM's collector cannot look: {error:#}")),
        }
        let clock = || (Instant::now(), now());
        match nodes.run(snapshot, clock, &mut failed).await {
            Ok(released) => tell.send_modify(|counts| counts.reclaimed += released),
            Err(error) => failed.push(format!("cannot clear up after deleted nodes: {error:#}")),
        }
        tell_rarely(&mut told, &failed);
    }
}

/// What did not go comes again with each look, as long as the datastore takes no writes.
fn tell_rarely(told: &mut Rarely, failed: &[String]) {
    if failed.is_empty() {
        told.over();
    }
    for reason in failed {
        if told.is_due(tokio::time::Instant::now(), reason) {
            tracing::warn!("{reason}");
        }
    }
}

async fn interfaces() -> anyhow::Result<BTreeSet<String>> {
    let links = caracal_agent::read_links().await;
    let links = links.context("reading the interfaces")?;
    Ok(links.iter().map(|link| link.name.to_string()).insert_each())
}

/// What the kernel shows of life.
#[derive(Debug, Default)]
struct Signs {
    /// Names of all interfaces.
    interfaces: BTreeSet<String>,
    /// Addresses with a route of their own to an interface, with a sentence that says which.
    routed: BTreeMap<IpAddr, String>,
}

impl Signs {
    async fn of(addresses: Vec<IpAddr>) -> anyhow::Result<Self> {
        let routed = caracal_cni::routed_addresses(addresses).await;
        Ok(Self {
            interfaces: interfaces().await?,
            routed: routed.context("reading the routes")?,
        })
    }
}

async fn release<S: Store>(
    client: &Client<S>,
    me: &NodeName,
    collection: Garbage,
    look: impl AsyncFn(Vec<IpAddr>) -> anyhow::Result<Signs>,
) -> anyhow::Result<()> {
    match collection {
        Garbage::Addresses {
            targets,
            preconditions,
            interfaces: gone,
            reason,
        } => {
            let signs = look(targets.iter().map(|target| target.address).collect()).await?;
            if let Some(back) = signs.interfaces.intersection(&gone).next() {
                anyhow::bail!("{reason}; but {back} is there again");
            }
            if let Some((address, by)) = signs.routed.first_key_value() {
                anyhow::bail!("{reason}; but {address} is in use: {by}");
            }
            let machine = Conditional::new(ReleaseIps::new(targets, now()), preconditions);
            let released = client.drive(machine).await.context(reason.clone())?;
            tracing::info!(addresses = ?released.addresses, "collected {reason}");
        }
        Garbage::Block(cidr) => {
            let owner = BlockOwner::Host(me.clone());
            match client.release_block_affinity(&owner, cidr, true).await {
                Ok(AffinityOutcome::Deleted) => tracing::info!(%cidr, "collected an empty block"),
                // Used again meanwhile: nothing to collect.
                Ok(_) | Err(ClientError::Refused(AffinityError::NotEmpty { .. })) => {}
                Err(error) => return Err(error).context(format!("block {cidr}")),
            }
        }
        Garbage::Abandoned(cidr) => {
            let mender = Mender::new(Repair::Mend(cidr), now());
            let done = client.drive(mender).await;
            if done.with_context(|| format!("block {cidr}"))? {
                tracing::info!(%cidr, "collected an empty block of nobody");
            }
        }
    }
    Ok(())
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests;
