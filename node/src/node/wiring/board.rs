//! Connections between the tasks of the table: handles of the owners, and a feed for each value
//! that goes from one task to others. The board is dropped once all tasks run, so that a feed ends
//! with the task that writes it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_agent::{AgentStatus, PublishedUnderlay, SweepPrecondition};
use caracal_bgp::{FibFeed, SpeakerConfig, SpeakerHandle};
use caracal_datastore::{Datastore, View};
use caracal_model::Snapshot;
use tokio::sync::{mpsc, watch};

use crate::config::Config;
use crate::metrics::ipam::Collected;
use crate::node::announce::drain::{self, DrainStatus};
use crate::node::announce::publish::AnnouncedPlan;
use crate::node::announce::secrets::Secrets;
use crate::node::announce::transition_report::InForce;
use crate::node::ipam::collector::Life;
use crate::node::kernel::kube_proxy::Takeover;
use crate::node::kernel::learned::{self, Completeness, Resolved};
use crate::node::kernel::policy::Enforced;
use crate::node::kernel::services::Translated;
use crate::node::kernel::underlay::PeerGateways;
use crate::node::membership::machine::{self, Claim, Taken};
use crate::node::problems::Registry;

/// The latest value of something, for whoever listens. One task writes it.
pub(super) struct Feed<T> {
    sender: watch::Sender<T>,
    /// It has seen the first value only, so that whoever gets a copy of it misses none of the later
    /// ones.
    receiver: watch::Receiver<T>,
}

impl<T> Feed<T> {
    pub(super) fn new(first: T) -> Self {
        let (sender, receiver) = watch::channel(first);
        Self { sender, receiver }
    }

    /// For the task that writes.
    pub(super) fn writer(&self) -> watch::Sender<T> {
        self.sender.clone()
    }

    /// For a task that listens.
    pub(super) fn reader(&self) -> watch::Receiver<T> {
        self.receiver.clone()
    }
}

/// The feeds between tasks, by what they carry.
pub(super) struct Feeds {
    /// Addresses of etcd.
    pub(super) lifelines: Feed<BTreeSet<IpAddr>>,
    /// Passwords of sessions.
    pub(super) secrets: Feed<Secrets>,
    /// How far a drain is.
    pub(super) drain: Feed<DrainStatus>,
    /// The revision and the announcements of the configuration last given to the speaker.
    pub(super) announced: Feed<AnnouncedPlan>,
    /// Gateways of peers (`reachableBy`).
    pub(super) gateways: Feed<PeerGateways>,
    /// Underlay over which the speaker has resolved next hops.
    pub(super) resolved: Feed<Resolved>,
    /// The number of the underlay that the learned routes are resolved over, behind them.
    pub(super) resolved_routes: Feed<u64>,
    /// The change of topology that the speaker has in force.
    pub(super) in_force: Feed<Option<InForce>>,
    /// The stage of a drain that the speaker has in force.
    pub(super) stage_in_force: Feed<drain::DrainStage>,
    /// Learned routes.
    pub(super) learned: Feed<learned::Map>,
    /// Whether the origin check has judged the routes by the owners of a current view.
    pub(super) judged: Feed<bool>,
    /// How complete the learned routes are, behind them.
    pub(super) completeness: Feed<Completeness>,
    /// Whether the kernel may be swept.
    pub(super) precondition: Feed<SweepPrecondition>,
    /// Snapshots, in step with the precondition.
    pub(super) snapshots: Feed<Arc<Snapshot>>,
    /// Counters of the IPAM collector.
    pub(super) collected: Feed<Collected>,
    /// Policy in the kernel.
    pub(super) enforced: Feed<Enforced>,
    /// Services in the kernel.
    pub(super) translated: Feed<Translated>,
    /// Whether services were taken over from kube-proxy.
    pub(super) takeover: Takeover,
}

/// Everything that a task of the table may be given.
pub(super) struct Board {
    pub(super) config: Arc<Config>,
    pub(super) store: Datastore,
    /// Hosts and ports of etcd.
    pub(super) hosts: Vec<(String, u16)>,
    /// Whether the start has freed the way to them.
    pub(super) freed: watch::Receiver<bool>,
    /// This machine's claim to the node's name.
    pub(super) claim: Claim,
    pub(super) lost: mpsc::Sender<Taken>,
    pub(super) registry: Registry,
    pub(super) view: watch::Receiver<View>,
    /// The view that the speaker was started with.
    pub(super) first: View,
    pub(super) speaker: SpeakerHandle,
    /// The configuration that the speaker was started with.
    pub(super) speaker_config: SpeakerConfig,
    /// The speaker's best routes.
    pub(super) fib: FibFeed,
    /// The agent's status of the kernel.
    pub(super) kernel: watch::Receiver<Arc<AgentStatus>>,
    /// Links and routes over which next hops are resolved.
    pub(super) underlay: watch::Receiver<PublishedUnderlay>,
    pub(super) feeds: Feeds,
}

impl Board {
    /// Task that renews this node's lease, and ends it.
    pub(super) fn life(&self) -> Life<Datastore> {
        Life {
            store: self.store.clone(),
            claim: self.claim.clone(),
            grace: self.config.ipam_grace.unwrap_or(machine::TERM),
        }
    }
}
