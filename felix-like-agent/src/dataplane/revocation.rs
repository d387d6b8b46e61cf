//! Ends flows that policies do not allow any more: they are marked, and the table refuses their
//! packets. A flow that is allowed again loses its mark; one that is allowed never notices.
//!
//! A task of its own looks, a moment after a change, and not again before it has rested: a table of
//! a hundred thousand flows is no reason to be busy, and no pod waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caracal_model::{NodeName, Packet, PolicyData};
use tokio::sync::watch;
use tokio::time::Instant;

use super::conntrack::{self, Marked};
use crate::nft::InterfaceName;
use crate::policy::{PolicyTable, REVOKED};

/// Changes come in groups.
const SETTLED: Duration = Duration::from_millis(100);
/// Shortest rest between two looks; and how many times as long as a look the rest is.
const REST: Duration = Duration::from_millis(500);
const RESTS: u32 = 8;
/// After a look that failed.
const AGAIN: Duration = Duration::from_secs(5);

/// What flows are judged by.
#[derive(Debug, Default)]
pub(super) struct InForce {
    pub(super) table: Arc<PolicyTable>,
    /// Addresses of this node's endpoints, with their interfaces.
    endpoints: BTreeMap<IpAddr, InterfaceName>,
    /// What endpoints may send to this node itself is taken.
    nodes_take: bool,
}

impl InForce {
    pub(super) fn new(
        table: Arc<PolicyTable>,
        data: &PolicyData,
        me: &NodeName,
        nodes_take: bool,
    ) -> Self {
        let mut endpoints = BTreeMap::new();
        for (_, endpoint) in data.endpoints() {
            if endpoint.node != me.as_str() {
                continue;
            }
            if let Some(interface) = InterfaceName::new(&endpoint.interface) {
                for address in &endpoint.addresses {
                    endpoints.insert(*address, interface);
                }
            }
        }
        Self {
            table,
            endpoints,
            nodes_take,
        }
    }

    /// Whether a flow with this first packet is to end. `None` = no policy judges it: it is between
    /// others, or begins at this node itself, which has these addresses.
    fn is_to_end(&self, own: &BTreeSet<IpAddr>, packet: &Packet) -> Option<bool> {
        if own.contains(&packet.source) {
            return None;
        }
        let interface = |address| self.endpoints.get(address).copied();
        let leaves = interface(&packet.source).and_then(|i| self.table.lets_out(i, packet));
        let enters = interface(&packet.destination).and_then(|i| self.table.lets_in(i, packet));
        let is_taken = self.nodes_take || !own.contains(&packet.destination);
        let leaves = leaves.map(|leaves| leaves && is_taken);
        match (leaves, enters) {
            (None, None) => None,
            (leaves, enters) => Some(leaves == Some(false) || enters == Some(false)),
        }
    }
}

/// What the task has found.
#[derive(Debug)]
struct Found {
    /// Flows that were ended since the start.
    ended: Arc<AtomicU64>,
    /// There are flows with the mark: what is allowed now may be one of them.
    has_marked: AtomicBool,
}

/// Tells the task what is in force. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Revocation {
    in_force: watch::Sender<Arc<InForce>>,
    found: Arc<Found>,
}

impl Revocation {
    /// Starts the task, which counts the flows that it has ended. Must be called inside a tokio
    /// runtime.
    pub(super) fn spawn(ended: Arc<AtomicU64>) -> Self {
        let (in_force, heard) = watch::channel(Arc::default());
        let found = Arc::new(Found {
            ended,
            has_marked: AtomicBool::new(false),
        });
        tokio::spawn(look_after_changes(heard, Arc::clone(&found)));
        Self { in_force, found }
    }

    /// Something that was allowed may not be so any more, or the other way round.
    pub(super) fn look(&self, in_force: InForce) {
        // Until the look is over there may be some.
        self.found.has_marked.store(true, Ordering::Relaxed);
        self.in_force.send_replace(Arc::new(in_force));
    }

    /// Whether a change that only allows more is to be looked at, too.
    pub(super) fn has_marked(&self) -> bool {
        self.found.has_marked.load(Ordering::Relaxed)
    }
}

async fn look_after_changes(mut heard: watch::Receiver<Arc<InForce>>, found: Arc<Found>) {
    while heard.changed().await.is_ok() {
        tokio::time::sleep(SETTLED).await;
        loop {
            let in_force = Arc::clone(&heard.borrow_and_update());
            let started = Instant::now();
            match look(in_force).await {
                Ok(marked) => {
                    note(&found, marked);
                    tokio::time::sleep(REST.max(started.elapsed() * RESTS)).await;
                    break;
                }
                Err(error) => {
                    let reason = super::chain(&error);
                    tracing::warn!(
                        reason,
                        "conntrack cannot be asked: flows that a change does not allow go on; trying again"
                    );
                    tokio::time::sleep(AGAIN).await;
                    if heard.has_changed().is_err() {
                        return;
                    }
                }
            }
        }
    }
}

fn note(found: &Found, Marked { set, taken, kept }: Marked) {
    found.ended.fetch_add(set, Ordering::Relaxed);
    found.has_marked.store(set + kept > 0, Ordering::Relaxed);
    if set + taken > 0 {
        tracing::info!(
            ended = set,
            allowed_again = taken,
            "flows follow the policies"
        );
    }
}

async fn look(in_force: Arc<InForce>) -> io::Result<Marked> {
    let links = super::read_links().await.map_err(io::Error::other)?;
    let mut own = BTreeSet::new();
    for link in links.iter() {
        own.extend(link.addresses.iter().map(|cidr| cidr.address));
    }
    let looked = tokio::task::spawn_blocking(move || {
        conntrack::mark_flows(REVOKED, |packet| in_force.is_to_end(&own, packet))
    });
    looked.await.map_err(io::Error::other)?
}
