//! The shell: tokio tasks, sockets and timers around the pure core.
//!
//! | task | owns, alone | receives from | sends to |
//! |---|---|---|---|
//! | core, one | the table, the peer list | sessions, configuration, queries | feeds |
//! | session, one per peer | its state machine, its at most two connections | its peer, its feed, the core | the core |
//! | BFD, a thread, when a peer has it | its sessions and sockets | packets | the core |
//! | listener, one for each address to listen on | the listening socket | connections | the core |
//! | station, one for each monitoring station | its connection | the core | the station |

mod addresses;
mod admission;
mod bfd;
mod core;
mod counters;
mod detail;
mod direct;
mod feed;
mod listener;
mod log_limit;
mod message;
mod reader;
mod router_id;
mod session;
mod shared;
mod socket;
mod station;
mod status;

pub use addresses::missing_next_hops;
pub use bfd::{BfdHandle, BfdStatus, BfdTarget};
pub use counters::{Counters, ErrorCounts, ErrorKind, MessageCounts, MessageDirection};
pub use detail::{Capabilities, Endpoint, FamilyDetail, Messages, NegotiatedTime, PeerDetail};
pub use direct::direct_subnets;
pub use feed::{KeyedFeed, OutBatch, OutChunk, OutFeed};
pub use message::{PeerKey, SessionStart, Shutdown, ToCore, ToSession};
pub use reader::{MrtReader, RouteReader};
pub use router_id::choose_router_id;
pub use session::run_session;
pub use shared::{CannotAnnounce, SharedUpdate};
pub use status::{
    Convergence, PastError, PeerStatus, SpeakerStatus, StationStatus, TurnTimes, UpdateCounts,
};

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::Pin;

use caracal_model::{LocalNetworks, Prefix};
use tokio::sync::{mpsc, oneshot, watch};

use self::core::{Core, Inbox};
use crate::config::SpeakerConfig;
use crate::martian::OpenRanges;
use crate::origin;
use crate::rib::{
    AdvertisedRoute, Explanation, FibExportFilter, LearnedRoute, RemovalImpact, RouteInfo,
    RouteQuery, RouteRecord, RouteTable, StartupTimes, Underlay,
};
use crate::types::{PeerName, SessionState};

use message::ListenerStart;
use reader::Slice;

/// Capacity of the command channel, in commands. Commands come from people and from one
/// configuration task.
const COMMAND_DEPTH: usize = 16;

/// Routes for the forwarding table: for each prefix that changed the latest best path, `None` when
/// there is none or it is our own.
pub type FibFeed = KeyedFeed<Option<LearnedRoute>>;

/// Options of a new speaker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeakerOptions {
    /// The speaker restarts and its forwarding state survived: our OPENs say so, and selection is
    /// deferred until the peers have sent End-of-RIB (RFC 4724 §4.1).
    pub restarting: bool,
    /// Time limits of the start.
    pub startup: StartupTimes,
    /// Ranges that are routed although they are refused by default.
    pub open: OpenRanges,
    /// The networks of this machine at the start; see [`SpeakerHandle::set_local_networks`].
    pub local: LocalNetworks,
    /// Initial data of the origin check; see [`SpeakerHandle::set_origins`].
    pub origins: origin::OriginUpdate,
}

/// Starts the tasks of a speaker; [`SpeakerHandle`] is what one keeps of it.
#[derive(Clone, Copy, Debug)]
pub struct Speaker;

/// A task that the core starts.
pub(crate) type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Bodies of the tasks that the core starts; tests replace them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tasks {
    /// Makes the task of a session.
    pub session: fn(SessionStart) -> Running,
    /// Makes the task that listens.
    pub listener: fn(ListenerStart) -> Running,
}

impl Tasks {
    /// Sessions over TCP, and a listening socket.
    #[must_use]
    pub(crate) fn tcp() -> Self {
        Self {
            session: |start| Box::pin(session::run_session(start)),
            listener: |start| Box::pin(listener::run(start)),
        }
    }
}

impl Speaker {
    /// Starts a speaker over TCP on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn spawn(config: SpeakerConfig, options: SpeakerOptions) -> SpeakerHandle {
        Self::spawn_with(config, options, Tasks::tcp())
    }

    /// Starts a speaker on the current tokio runtime, with these tasks for sessions and listening.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub(crate) fn spawn_with(
        config: SpeakerConfig,
        options: SpeakerOptions,
        tasks: Tasks,
    ) -> SpeakerHandle {
        let (commands, inbox) = mpsc::channel(COMMAND_DEPTH);
        let (publish, convergence) = watch::channel(Convergence::default());
        let (core, sessions) = Core::new(config, options, publish, tasks);
        tokio::spawn(core.run(Inbox {
            sessions,
            commands: inbox,
        }));
        SpeakerHandle {
            commands,
            convergence,
        }
    }
}

/// The speaker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the BGP speaker has ended")]
pub struct SpeakerEnded;

/// A command of an operator about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerCommand {
    /// Cease / Administrative Shutdown with this text (RFC 9003), and no session until it is
    /// enabled.
    Disable(String),
    /// Sessions may run again.
    Enable,
    /// Cease / Administrative Reset with this text, and the next session at once.
    Reset(String),
    /// Ask for all routes again, or filter those that were received again.
    SoftIn,
    /// Announces all routes again (soft reconfiguration, outbound).
    SoftOut,
}

/// Why a command about a peer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerCommandError {
    /// No peer has this name.
    #[error("there is no such peer")]
    NoPeer,
    /// The peer is disabled, and only an enable has a meaning.
    #[error("the peer is disabled; enable it first")]
    Disabled,
    /// The node is drained, or the whole speaker is shut down otherwise.
    #[error("all sessions are shut down here, by a drain; take the node back into service first")]
    AllDisabled,
    /// The peer has no established session.
    #[error("the peer has no established session")]
    NoSession,
    /// The session's control channel is full.
    #[error("the session is busy; try again")]
    Busy,
    /// Length of the text in octets.
    #[error("the text has {0} octets; RFC 9003 has room for 255")]
    Text(usize),
}

/// A command or question of a handle to the core.
#[derive(Debug)]
enum Command {
    Reconfigure(Box<SpeakerConfig>, oneshot::Sender<()>),
    Disable(String, oneshot::Sender<()>),
    Enable(oneshot::Sender<()>),
    Underlay(Underlay, oneshot::Sender<()>),
    LocalNetworks(LocalNetworks, oneshot::Sender<()>),
    AddressesGone(BTreeSet<IpAddr>, oneshot::Sender<()>),
    Origins(origin::OriginUpdate, oneshot::Sender<()>),
    Status(oneshot::Sender<SpeakerStatus>),
    Slice(Slice),
    Explain(Prefix, oneshot::Sender<Box<Explanation>>),
    Refresh(PeerName, oneshot::Sender<bool>),
    Peer(PeerName, oneshot::Sender<Option<Box<PeerDetail>>>),
    Operate(
        PeerName,
        PeerCommand,
        oneshot::Sender<Result<String, PeerCommandError>>,
    ),
    Fib(FibExportFilter, oneshot::Sender<FibFeed>),
    Shutdown {
        restart: bool,
        done: oneshot::Sender<()>,
    },
}

/// The way to a running speaker; cheap to clone. When the last handle is dropped without
/// [`SpeakerHandle::shutdown`], the speaker ends as if it had crashed: connections close without
/// NOTIFICATION.
#[derive(Clone, Debug)]
pub struct SpeakerHandle {
    commands: mpsc::Sender<Command>,
    convergence: watch::Receiver<Convergence>,
}

impl SpeakerHandle {
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, SpeakerEnded> {
        let (answer, wait) = oneshot::channel();
        self.commands
            .send(command(answer))
            .await
            .map_err(|_| SpeakerEnded)?;
        wait.await.map_err(|_| SpeakerEnded)
    }

    /// Goes over to a new configuration; only what differs moves. Returns when it is in force;
    /// sessions follow on their own.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn reconfigure(&self, config: SpeakerConfig) -> Result<(), SpeakerEnded> {
        self.ask(|done| Command::Reconfigure(Box::new(config), done))
            .await
    }

    /// Shuts all sessions down: each peer is sent what is pending, then Cease / Administrative
    /// Shutdown with this text (RFC 9003), inside a Hard Reset where the peer would keep our routes
    /// otherwise (RFC 8538). Their routes go, and no session starts until
    /// [`SpeakerHandle::enable`]: a peer that connects meanwhile gets the same Cease.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn disable(&self, text: String) -> Result<(), SpeakerEnded> {
        self.ask(|done| Command::Disable(text, done)).await
    }

    /// Undoes [`SpeakerHandle::disable`].
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn enable(&self) -> Result<(), SpeakerEnded> {
        self.ask(Command::Enable).await
    }

    /// Says over what next hops are reached. Until then every next hop counts as reached, and
    /// nobody knows how. Returns when every route follows.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn set_underlay(&self, underlay: Underlay) -> Result<(), SpeakerEnded> {
        self.ask(|done| Command::Underlay(underlay, done)).await
    }

    /// Says which networks are this machine's own: no peer's route to them is used or passed on.
    /// Replaces what was said before.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn set_local_networks(&self, local: LocalNetworks) -> Result<(), SpeakerEnded> {
        self.ask(|done| Command::LocalNetworks(local, done)).await
    }

    /// Says that this machine has these addresses no more. Connections from them end, for nothing
    /// can arrive on them: without this only the hold timer would notice.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn addresses_gone(&self, gone: BTreeSet<IpAddr>) -> Result<(), SpeakerEnded> {
        self.ask(|done| Command::AddressesGone(gone, done)).await
    }

    /// Takes over a change of who may announce what; routes that it concerns are judged again.
    /// Returns when they are, and subscribers have what changed.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn set_origins(&self, update: origin::OriginUpdate) -> Result<(), SpeakerEnded> {
        self.ask(|done| Command::Origins(update, done)).await
    }

    /// The speaker and its peers.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn status(&self) -> Result<SpeakerStatus, SpeakerEnded> {
        self.ask(Command::Status).await
    }

    /// Reads many routes, by prefix and a slice at a time: the core is never busy with it for long.
    /// The routes of one prefix belong together, the whole is no snapshot. `None`: the question
    /// names a peer that is not there.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn read(&self, query: RouteQuery) -> Result<Option<RouteReader>, SpeakerEnded> {
        RouteReader::open(self.clone(), query).await
    }

    async fn read_all<T: From<RouteRecord>>(
        &self,
        table: RouteTable,
    ) -> Result<Option<Vec<T>>, SpeakerEnded> {
        match self.read(RouteQuery::all(table)).await? {
            Some(reader) => reader.all().await.map(Some),
            None => Ok(None),
        }
    }

    /// All paths that are not refused, by prefix, the best first: [`SpeakerHandle::read`] for small
    /// tables.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn routes(&self) -> Result<Vec<RouteInfo>, SpeakerEnded> {
        self.read_all(RouteTable::Routes)
            .await
            .map(Option::unwrap_or_default)
    }

    /// Adj-RIB-In of a peer, refused routes included. `None`: there is no such peer.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn received(&self, peer: PeerName) -> Result<Option<Vec<RouteInfo>>, SpeakerEnded> {
        self.read_all(RouteTable::Received(peer)).await
    }

    /// Adj-RIB-Out of a peer. `None`: there is no such peer.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn advertised(
        &self,
        peer: PeerName,
    ) -> Result<Option<Vec<AdvertisedRoute>>, SpeakerEnded> {
        self.read_all(RouteTable::Advertised(peer)).await
    }

    /// Everything that is known about a prefix.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn explain(&self, prefix: Prefix) -> Result<Explanation, SpeakerEnded> {
        self.ask(|answer| Command::Explain(prefix, answer))
            .await
            .map(|explanation| *explanation)
    }

    /// Routes that would be lost if the sessions with these peers were removed now.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn removal_impact(
        &self,
        removed: BTreeSet<PeerName>,
    ) -> Result<RemovalImpact, SpeakerEnded> {
        reader::removal_impact(self, removed).await
    }

    /// Asks a peer to send everything again (RFC 2918). `false`: it has no session, or cannot be
    /// asked now.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn refresh(&self, peer: PeerName) -> Result<bool, SpeakerEnded> {
        self.ask(|answer| Command::Refresh(peer, answer)).await
    }

    /// Everything that is known about a peer. `None`: there is no such peer.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn peer(&self, peer: PeerName) -> Result<Option<PeerDetail>, SpeakerEnded> {
        let asked = peer.clone();
        let detail = self.ask(|answer| Command::Peer(asked, answer)).await?;
        let Some(mut detail) = detail else {
            return Ok(None);
        };
        if detail.state == SessionState::Established
            && let Some(counts) = reader::count_advertised(self, peer).await?
        {
            for family in detail.families.iter_mut().filter(|family| family.agreed) {
                family.advertised = Some(counts.for_family(family.family));
            }
        }
        Ok(Some(*detail))
    }

    /// Carries out what an operator wants of a peer. The answer is a sentence about what was done,
    /// or why not.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn operate(
        &self,
        peer: PeerName,
        command: PeerCommand,
    ) -> Result<Result<String, PeerCommandError>, SpeakerEnded> {
        self.ask(|answer| Command::Operate(peer, command, answer))
            .await
    }

    /// The table as an MRT file (RFC 6396), with this time in seconds of Unix time, in parts.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn mrt(&self, time: u32) -> Result<MrtReader, SpeakerEnded> {
        MrtReader::open(self.clone(), time).await
    }

    /// A new subscription to the routes for the forwarding table. It starts with all there are.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn fib(&self) -> Result<FibFeed, SpeakerEnded> {
        self.fib_through(FibExportFilter::default()).await
    }

    /// The same, with filters between: what they reject is not there.
    ///
    /// # Errors
    /// [`SpeakerEnded`].
    pub async fn fib_through(&self, policy: FibExportFilter) -> Result<FibFeed, SpeakerEnded> {
        self.ask(|answer| Command::Fib(policy, answer)).await
    }

    /// Whether every peer has sent End-of-RIB since the start; only then may a forwarding table be
    /// swept.
    #[must_use]
    pub fn convergence(&self) -> watch::Receiver<Convergence> {
        self.convergence.clone()
    }

    /// Ends the speaker, and returns when the connections are closed. `restart`: the peers shall
    /// keep our routes, so TCP is closed without NOTIFICATION where graceful restart was negotiated
    /// (RFC 4724 §4.1). Otherwise they get Cease / Administrative Shutdown and drop our routes at
    /// once. Feeds end without withdrawing anything.
    ///
    /// # Errors
    /// [`SpeakerEnded`] when it had ended before.
    pub async fn shutdown(&self, restart: bool) -> Result<(), SpeakerEnded> {
        self.ask(|done| Command::Shutdown { restart, done }).await
    }
}
