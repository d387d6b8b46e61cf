//! The network and the clock: what arrives when, and how long a node is busy with it.
//!
//! The model of time. A node does one thing after the other. Octets take [`LATENCY`] from end to
//! end; links are never full. What a node does costs what the constants say; they are of the size
//! that the speaker's own measurements (docs/performance.md) give for a core of a small server.
//! They are no measurement of a large cluster.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use caracal_bgp::ConnectionEnds;

use crate::cluster::{PlannedCluster, Shape};
use crate::heap;
use crate::node::{Act, Effects, SimulatedNode, What};

/// From one node to another, one way.
const LATENCY: Duration = Duration::from_micros(250);
/// A connection that comes up: system calls, a task.
const CONNECTION: Duration = Duration::from_micros(100);
/// CPU time for reading a message.
const MESSAGE: Duration = Duration::from_micros(5);
/// A route read or written.
const ROUTE: Duration = Duration::from_micros(1);
/// A write to a socket.
const WRITE: Duration = Duration::from_micros(5);
/// Number of events taken in before the table decides, as the speaker does.
const BATCH: usize = 64;
/// Nothing happens for longer in a cluster that will converge.
const PATIENCE: Duration = Duration::from_secs(600);

/// Largest clusters in which all nodes keep tables: a mesh, and one with reflectors.
const FULL_MESH: usize = 200;
const FULL: usize = 500;
/// Nodes with tables in larger clusters, besides the reflectors.
const SAMPLE: usize = 5;

/// The result of a simulated cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterOutcome {
    pub shape: Shape,
    pub nodes: usize,
    /// Sessions of the cluster.
    pub sessions: usize,
    /// Sessions at the node with the most.
    pub busiest: usize,
    /// BGP messages in all.
    pub messages: u64,
    /// Octets of those messages.
    pub octets: u64,
    /// Heap of the node with the most, in octets: state machines, table, configuration.
    pub heap_most: u64,
    /// The same of an ordinary node.
    pub heap_client: u64,
    /// Until every node had every route, in virtual time.
    pub converged: Duration,
    /// Nodes whose tables were kept in full.
    pub full: usize,
}

/// An arrival, or a node that goes on with what waits.
struct Event {
    node: usize,
    what: Option<(usize, What)>,
}

/// All nodes and what is on its way between them.
pub struct Network {
    start: Instant,
    nodes: Vec<SimulatedNode>,
    inboxes: Vec<VecDeque<(usize, What)>>,
    /// Until when a node is busy; `None` when it waits for something to come.
    busy: Vec<Option<Duration>>,
    /// By node and session: the node and the session at the other end.
    other: Vec<Vec<(usize, usize)>>,
    ends: Vec<Vec<ConnectionEnds>>,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: std::collections::HashMap<u64, Event>,
    sequence: u64,
    /// Octets and connections on their way.
    in_flight: usize,
    octets: u64,
}

impl Network {
    /// A cluster before its start.
    pub fn new(cluster: &PlannedCluster) -> Self {
        let start = Instant::now();
        let limit = if cluster.shape == Shape::Mesh {
            FULL_MESH
        } else {
            FULL
        };
        let count = cluster.len();
        let keeps =
            |node: usize| count <= limit || cluster.reflects(node) || node + SAMPLE >= count;
        let mut nodes = Vec::with_capacity(count);
        for (index, plan) in cluster.plans.iter().enumerate() {
            let before = heap::in_use();
            let mut node = SimulatedNode::new(start, plan, keeps(index), count);
            node.heap = heap::in_use() - before;
            nodes.push(node);
        }
        let place = |node: usize, peer: usize| {
            let address = &cluster.plans[node]
                .peers
                .values()
                .nth(0)
                .and_then(|p| p.source);
            let (own, other) = (*address, &cluster.plans[peer]);
            let found = other.peers.values().position(|p| Some(p.address) == own);
            found.unwrap_or(usize::MAX)
        };
        let mut other = Vec::with_capacity(count);
        let mut ends = Vec::with_capacity(count);
        for (index, plan) in cluster.plans.iter().enumerate() {
            let peers: Vec<usize> = plan
                .peers
                .values()
                .map(|p| cluster.by_address.get(&p.address).copied().unwrap_or(index))
                .collect();
            other.push(
                peers
                    .iter()
                    .map(|peer| (*peer, place(index, *peer)))
                    .collect(),
            );
            let pair = |p: &caracal_bgp::PeerConfig| ConnectionEnds {
                local: SocketAddr::new(p.source.unwrap_or(p.address), 179),
                remote: SocketAddr::new(p.address, 179),
            };
            ends.push(plan.peers.values().map(pair).collect());
        }
        Self {
            start,
            inboxes: nodes.iter().map(|_| VecDeque::new()).collect(),
            busy: vec![None; count],
            nodes,
            other,
            ends,
            queue: BinaryHeap::new(),
            events: std::collections::HashMap::new(),
            sequence: 0,
            in_flight: 0,
            octets: 0,
        }
    }

    fn push(&mut self, at: Duration, node: usize, what: Option<(usize, What)>) {
        if matches!(&what, Some((_, what)) if !matches!(what, What::Timer)) {
            self.in_flight += 1;
        }
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence)));
        self.events.insert(self.sequence, Event { node, what });
    }

    /// Runs until every node knows every route and nothing is on its way.
    ///
    /// # Errors
    /// When that does not come.
    pub fn run(mut self, cluster: &PlannedCluster) -> Result<ClusterOutcome> {
        for (node, ends) in cluster.plans.iter().enumerate() {
            for end in 0..ends.peers.len() {
                self.push(Duration::ZERO, node, Some((end, What::Start)));
            }
        }
        let mut effects = Effects::default();
        effects.octets.reserve(1 << 24);
        effects.acts.reserve(1 << 16);
        let mut converged = Duration::ZERO;
        while let Some(Reverse((now, sequence))) = self.queue.pop() {
            let event = self.events.remove(&sequence).context("an event once")?;
            ensure!(now < PATIENCE, "the cluster does not converge");
            match event.what {
                Some(what) => {
                    self.inboxes[event.node].push_back(what);
                    if self.busy[event.node].is_none() {
                        self.busy[event.node] = Some(now);
                        self.push(now, event.node, None);
                    }
                }
                None => {
                    if self.work(now, event.node, &mut effects) {
                        converged = now;
                    }
                }
            }
            if self.in_flight == 0 {
                break;
            }
        }
        self.outcome(cluster, converged)
    }

    /// A node does a batch of what waits. True when it learned something.
    fn work(&mut self, now: Duration, node: usize, effects: &mut Effects) -> bool {
        let waiting = self.inboxes[node].len().min(BATCH);
        if waiting == 0 {
            self.busy[node] = None;
            return false;
        }
        effects.acts.clear();
        effects.octets.clear();
        (effects.messages, effects.routes) = (0, 0);
        let batch: Vec<(usize, What)> = self.inboxes[node].drain(..waiting).collect();
        let fresh = |(_, what): &&(usize, What)| !matches!(what, What::Timer);
        self.in_flight -= batch.iter().filter(fresh).count();
        let connects =
            |(_, what): &&(usize, What)| matches!(what, What::Incoming(_) | What::Connected(_));
        let connections = batch.iter().filter(connects).count();
        // Memory of the messages themselves goes with them, whichever node made them.
        let held: usize = batch
            .iter()
            .map(|(_, what)| match what {
                What::Octets(octets) => octets.len(),
                _ => 0,
            })
            .sum();
        let batch_heap = batch.capacity() * size_of::<(usize, What)>();
        let before = heap::in_use();
        let at = self.start + now;
        self.nodes[node].work(at, batch.into_iter(), effects);
        let freed = i64::try_from(held + batch_heap).unwrap_or(0);
        self.nodes[node].heap += heap::in_use() - before + freed;
        let writes = effects
            .acts
            .iter()
            .filter(|a| matches!(a, Act::Send(..)))
            .count();
        let times = |cost: Duration, count: u64| cost * u32::try_from(count).unwrap_or(u32::MAX);
        let done = now
            + times(CONNECTION, connections as u64)
            + times(MESSAGE, effects.messages)
            + times(ROUTE, effects.routes)
            + times(WRITE, writes as u64);
        self.carry(done, node, effects);
        self.busy[node] = Some(done);
        self.push(done, node, None);
        effects.routes > 0
    }

    /// Delivers the effects of a node to the other ends.
    fn carry(&mut self, now: Duration, node: usize, effects: &Effects) {
        let mut octets = &effects.octets[..];
        for act in &effects.acts {
            match act {
                Act::Dial(end) => {
                    let (peer, there) = self.other[node][*end];
                    let ends = self.ends[peer][there];
                    self.push(now + LATENCY, peer, Some((there, What::Incoming(ends))));
                }
                Act::Adopt(end) => {
                    let (peer, there) = self.other[node][*end];
                    let ends = self.ends[peer][there];
                    self.push(now + LATENCY, peer, Some((there, What::Connected(ends))));
                }
                Act::Refuse(end) => {
                    let (peer, there) = self.other[node][*end];
                    let remote = self.ends[peer][there].remote;
                    self.push(now + LATENCY, peer, Some((there, What::Refused(remote))));
                }
                Act::Send(end, len) => {
                    let (sent, rest) = octets.split_at(*len);
                    octets = rest;
                    self.octets += *len as u64;
                    let (peer, there) = self.other[node][*end];
                    self.push(
                        now + LATENCY,
                        peer,
                        Some((there, What::Octets(sent.into()))),
                    );
                }
                Act::Timer(end, due) => {
                    let due = due.saturating_duration_since(self.start).max(now);
                    self.push(due, node, Some((*end, What::Timer)));
                }
            }
        }
    }

    fn outcome(self, cluster: &PlannedCluster, converged: Duration) -> Result<ClusterOutcome> {
        let count = cluster.len();
        for (index, node) in self.nodes.iter().enumerate() {
            let others = node.learned();
            // A node that only counts sees at most its own block come back from a reflector.
            ensure!(
                others + 1 >= count,
                "node {index} of {count} knows {others} routes under {}",
                cluster.shape.name()
            );
        }
        let mut degrees: Vec<usize> = cluster.plans.iter().map(|plan| plan.peers.len()).collect();
        degrees.sort_unstable();
        let full = |reflects: bool| {
            let nodes = self.nodes.iter().enumerate();
            let of_kind =
                nodes.filter(move |(n, node)| node.is_full() && cluster.reflects(*n) == reflects);
            of_kind.map(|(_, node)| u64::try_from(node.heap).unwrap_or(0))
        };
        let clients: Vec<u64> = full(false).collect();
        let heap_client = clients.iter().sum::<u64>() / (clients.len() as u64).max(1);
        Ok(ClusterOutcome {
            shape: cluster.shape,
            nodes: count,
            sessions: degrees.iter().sum::<usize>() / 2,
            busiest: degrees.last().copied().unwrap_or(0),
            messages: self.nodes.iter().map(|node| node.received).sum(),
            octets: self.octets,
            heap_most: full(true).chain(clients).max().unwrap_or(0),
            heap_client,
            converged,
            full: self.nodes.iter().filter(|node| node.is_full()).count(),
        })
    }
}
