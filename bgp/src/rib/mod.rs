//! The routing information base: Adj-RIB-In, Loc-RIB and Adj-RIB-Out of one speaker (RFC 4271
//! §3.2).
//!
//! One owner drives it: every change is a call with the time as an argument, and returns
//! [`Changes`]: what the forwarding side must look at again and what peers must be told. It never
//! waits, never reads a clock and never sends.
//!
//! Invariants:
//!
//! * RIB-1: the best path of a prefix depends on the set of its paths, not on the order of their
//!   arrival.
//! * RIB-2: two attribute sets in the table are equal exactly when they are the same `Arc`.
//! * RIB-3: what a member of an update group has been told is a function of the group's Adj-RIB-Out
//!   and of the member; nothing is stored per member.
//! * RIB-4: while selection is deferred (RFC 4724 §4.1) nothing is announced, withdrawn or
//!   reported.

mod decision;
mod dest_id;
mod export;
mod families;
mod follow;
mod forward;
mod free;
mod import;
mod index;
mod intern;
mod jobs;
mod limit;
mod monitor;
mod mrt;
mod next_hops;
mod order;
mod out;
mod over_nodes;
mod own_routes;
mod parted;
mod path_handles;
mod paths;
mod peer_id;
mod peers;
mod query;
mod reconfigure;
mod refresh;
mod removal_impact;
mod restart;
mod scan;
mod screen;
mod select;
mod session;
mod startup;
mod table;
mod tidy;
mod view;
mod waits;

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use caracal_model::{Family, LocalNetworks, Prefix};

pub use caracal_model::{Gateway, Underlay, UnderlayRoute};
pub use decision::BestPathReason;
pub use forward::{FibExportFilter, admitted};
pub use import::{DecidedBy, ImportRefusal};
pub use jobs::Progress;
pub use monitor::{MonitoredPath, PathName};
pub use mrt::{MrtPeers, MrtProgress};
pub use next_hops::ResolvedNextHop;
#[cfg(feature = "speaker")]
pub(crate) use out::Packer;
pub use out::{
    Buckets, GroupRoute, GroupUpdate, Member, MemberUpdate, PackingBucket, PathId, RouteChange,
    Withheld,
};
pub use peer_id::PeerId;
pub use removal_impact::RemovalImpact;
pub use scan::{RouteQuery, RouteRecord, RouteTable};
pub use screen::{OriginStatus, Screened};
pub use session::{LongLivedRestart, RemoteRestart, SessionInfo, SessionOptions};
pub use startup::StartupTimes;
pub use view::{
    AdvertisedRoute, Advertisement, AttrsInfo, Explanation, LearnedRoute, PathStatus, PeerCounts,
    RibCounts, RouteInfo,
};

use crate::config::{Counted, LimitPassed, Origination, Originations, SpeakerConfig};
use crate::martian::OpenRanges;
use crate::origin;
use crate::types::{ClusterId, PeerName};
use crate::wire::update::UpdateMessage;
use dest_id::DestId;
use export::PREFETCH_BATCH;
use intern::Interner;
use jobs::{Drops, JobKind, Jobs};
use out::Group;
use own_routes::OwnRoutes;
use peers::{Filters, PeerState, Peers};
use screen::Screen;
use select::Selector;
use startup::Startup;
use table::Table;
use tidy::Tidy;

/// LOCAL_PREF of a route that carries none: the field's common default.
pub(crate) const DEFAULT_LOCAL_PREF: u32 = 100;

/// Options of a new table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RibOptions {
    /// The speaker restarts and its forwarding state survived: selection is deferred until the
    /// peers have sent End-of-RIB (RFC 4724 §4.1).
    pub restarting: bool,
    /// Limits of the waits at the start.
    pub startup: StartupTimes,
    /// Ranges that are routed although they are refused by default.
    pub open: OpenRanges,
    /// The networks of this machine at the start.
    pub local: LocalNetworks,
    /// Initial data of the origin check.
    pub origins: origin::OriginUpdate,
}

/// Result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Prefixes whose best path or ECMP set is another one; ask [`Rib::learned`].
    pub prefixes: Vec<Prefix>,
    /// Updates for peers, in this order.
    pub out: Vec<Outbound>,
}

impl Changes {
    /// True when there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty() && self.out.is_empty()
    }
}

/// Something that goes to peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbound {
    /// Changes for all members of an update group; see [`GroupUpdate::for_member`].
    Group(GroupUpdate),
    /// The same for groups whose members take several paths per prefix (RFC 7911).
    Paths(GroupUpdate),
    /// Announcements (`Some`) and withdrawals (`None`) for one peer.
    Peer {
        /// Peer that gets the routes.
        peer: PeerId,
        /// Changes of the peer's Adj-RIB-Out.
        routes: Vec<RouteChange>,
    },
    /// Everything of a family follows again for one peer (RFC 7313, BoRR), with whatever changes
    /// meanwhile.
    RefreshBegin {
        /// Peer that gets the marker.
        peer: PeerId,
        /// Family whose routes are complete.
        family: Family,
    },
    /// All routes of the family have followed (RFC 7313, EoRR).
    RefreshEnd {
        /// Peer that gets the marker.
        peer: PeerId,
        /// Family whose routes come again.
        family: Family,
    },
    /// The peer has more prefixes than it may; its session has to end.
    PrefixLimit {
        /// Peer whose session has to end.
        peer: PeerId,
        /// The limit.
        passed: LimitPassed,
    },
    /// The peer comes near a limit, or has passed one that does not end the session.
    PrefixWarning {
        /// Peer that is warned about.
        peer: PeerId,
        /// Which prefixes they are.
        counted: Counted,
        /// Family whose limit it is.
        family: Family,
        /// Number of prefixes.
        count: usize,
        /// Number of prefixes that there may be.
        max: u32,
    },
    /// The End-of-RIB marker (RFC 4724 §2).
    EndOfRib {
        /// Peer that gets the marker.
        peer: PeerId,
        /// The family that is complete.
        family: Family,
    },
}

/// The table of one speaker.
///
/// The calls in their order: [`Rib::new`], [`Rib::set_underlay`]; [`Rib::peer_up`] before the
/// [`Rib::apply`] of a peer's UPDATEs, [`Rib::peer_down`] after the last; [`Rib::work`] as long as
/// [`Rib::has_work`], and [`Rib::handle_timeout`] at [`Rib::next_timeout`]. What each returns is
/// dispatched before the next call: [`Changes::out`] in its order, and [`Rib::learned`] for each
/// of [`Changes::prefixes`]. UPDATEs of a peer that [`Rib::is_busy`] wait: they could be taken for
/// what a job is about to remove.
#[derive(Debug)]
pub struct Rib {
    config: SpeakerConfig,
    filters: Filters,
    /// The clusters that we reflect for: our CLUSTER_IDs.
    clusters: BTreeSet<ClusterId>,
    peers: Peers,
    table: Table,
    interner: Interner,
    /// Update groups; an empty slot is free.
    groups: Vec<Option<Group>>,
    next_hops: next_hops::NextHopTable,
    selector: Selector,
    screen: Screen,
    startup: Startup,
    /// Destinations that a best-path run has to look at.
    dirty: VecDeque<DestId>,
    /// Destinations that have been put on that list, and taken from it.
    marked: u64,
    decided: u64,
    /// Some of that list has been left for [`Rib::work`].
    undecided_left: bool,
    /// Long work that is not done.
    jobs: Jobs,
    /// Places that a call looks at itself before it leaves the rest to [`Rib::work`].
    inline: usize,
    /// Undecided destinations up to which a call decides all of them.
    backlog: usize,
    /// Own routes that the table does not have yet.
    own: OwnRoutes,
    /// Paths to what we originate.
    local_paths: usize,
    /// The most prefixes there have been since memory was last given back.
    peak: usize,
    /// The table has become smaller, and memory is to be given back.
    tidy: Option<Tidy>,
    /// End-of-RIB markers that are due when selection is no longer deferred and the peer has been
    /// told what there is.
    pending_end_of_rib: Vec<(PeerId, Family)>,
    /// Number of decided destinations from which on the markers are due.
    end_of_rib_after: u64,
    /// Pending warnings about peers with too many prefixes.
    pending_warnings: Vec<Outbound>,
    /// Paths that have changed, while somebody monitors them.
    changed_paths: Option<Vec<PathName>>,
}

impl Rib {
    /// A table with the peers and the originated routes of a configuration.
    #[must_use]
    pub fn new(now: Instant, config: &SpeakerConfig, options: RibOptions) -> (Self, Changes) {
        let mut empty = config.clone();
        empty.peers.clear();
        empty.originate = Originations::default();
        empty.filters.clear();
        let mut rib = Self {
            config: empty,
            filters: Filters::default(),
            clusters: BTreeSet::new(),
            peers: Peers::default(),
            table: Table::default(),
            interner: Interner::default(),
            groups: Vec::new(),
            next_hops: next_hops::NextHopTable::default(),
            selector: Selector::default(),
            screen: Screen::new(options.open, options.local, options.origins),
            startup: Startup::new(now, options.restarting, options.startup),
            dirty: VecDeque::new(),
            marked: 0,
            decided: 0,
            undecided_left: false,
            jobs: Jobs::default(),
            inline: jobs::INLINE,
            backlog: BACKLOG,
            own: OwnRoutes::default(),
            local_paths: 0,
            peak: 0,
            tidy: None,
            pending_end_of_rib: Vec::new(),
            end_of_rib_after: 0,
            pending_warnings: Vec::new(),
            changed_paths: None,
        };
        let changes = rib.reconfigure(now, config);
        (rib, changes)
    }

    /// The handle of a configured peer.
    #[must_use]
    pub fn peer_id(&self, name: &PeerName) -> Option<PeerId> {
        self.peers.id(name)
    }

    /// A session is established: the whole table is advertised to the peer, then End-of-RIB.
    pub fn peer_up(&mut self, now: Instant, name: &PeerName, session: SessionInfo) -> Changes {
        let Some(id) = self.peers.id(name) else {
            return Changes::default();
        };
        // RFC 4724 §4.2: a new session before the end of the old one is the end of the old one.
        self.end_session(now, id, true);
        self.end_judging(id);
        self.startup.up(now, id, &session);
        let families = session.families.clone();
        self.start_session(now, id, session);
        self.enter_group(id);
        self.queue(JobKind::Dump {
            peer: id,
            family: None,
            marked: false,
        });
        self.pending_end_of_rib
            .extend(families.into_iter().map(|family| (id, family)));
        self.finish(now, Changes::default())
    }

    /// A session has ended. `graceful`: the peer's routes are kept as RFC 4724 §4.2 says.
    pub fn peer_down(&mut self, now: Instant, name: &PeerName, graceful: bool) -> Changes {
        self.session_lost(now, name, graceful);
        self.decide(now)
    }

    /// The first half of [`Rib::peer_down`], as [`Rib::receive`] is of [`Rib::apply`]: peers that
    /// go together are withdrawn together.
    pub fn session_lost(&mut self, now: Instant, name: &PeerName, graceful: bool) {
        if let Some(id) = self.peers.id(name) {
            self.end_session(now, id, graceful);
            self.startup.down(now, id);
        }
    }

    /// Stops waiting for all routes of a peer since the start.
    pub fn not_awaited(&mut self, now: Instant, name: &PeerName) -> Changes {
        if let Some(id) = self.peers.id(name) {
            self.startup.forget(id);
        }
        self.handle_timeout(now)
    }

    /// An UPDATE of an established session.
    pub fn apply(&mut self, now: Instant, name: &PeerName, update: UpdateMessage) -> Changes {
        self.receive(now, name, update);
        self.decide(now)
    }

    /// The first half of [`Rib::apply`]: nothing is decided until [`Rib::decide`] or any other call
    /// that returns changes. What many UPDATEs change is then decided once and exported together.
    pub fn receive(&mut self, now: Instant, name: &PeerName, update: UpdateMessage) {
        let up = |id: &PeerId| {
            let peer = self.peers.get(*id);
            peer.is_some_and(|peer| peer.up && !peer.over_limit)
        };
        let Some(id) = self.peers.id(name).filter(up) else {
            return;
        };
        self.end_judging(id);
        self.startup.activity(now, id);
        for (n, prefix) in update.withdrawn.iter().enumerate() {
            if n.is_multiple_of(PREFETCH_BATCH) {
                let end = update.withdrawn.len().min(n + PREFETCH_BATCH);
                self.table.prefetch(&update.withdrawn[n..end]);
            }
            let handle = match update.withdrawn_ids.get(n) {
                Some(path_id) => self.peers.paths.find(id, *path_id),
                None => Some(id),
            };
            if let (Some(dest), Some(handle)) = (self.table.find(prefix), handle) {
                self.remove_path(dest, handle);
            }
        }
        if let Some(attrs) = update.attrs.filter(|_| !update.announced.is_empty()) {
            self.learn(id, attrs, &update.announced, &update.announced_ids);
        }
        self.check_limits(id);
        if let Some(family) = update.end_of_rib {
            self.startup.end_of_rib(id, family);
            if let Some(peer) = self.peers.get_mut(id) {
                peer.unfinished.remove(&family);
            }
            self.sweep_stale(id, Drops::family(family));
        }
    }

    /// Number of destinations that [`Rib::decide`] would look at.
    #[must_use]
    pub fn undecided(&self) -> usize {
        self.dirty.len()
    }

    /// The second half of [`Rib::apply`].
    pub fn decide(&mut self, now: Instant) -> Changes {
        self.finish(now, Changes::default())
    }

    /// Announces a route of our own, or changes it.
    pub fn originate(&mut self, now: Instant, prefix: Prefix, route: &Origination) -> Changes {
        self.config.originate.insert(prefix, route.clone());
        self.put_own(prefix);
        self.finish(now, Changes::default())
    }

    /// Withdraws a route of our own.
    pub fn withdraw(&mut self, now: Instant, prefix: Prefix) -> Changes {
        self.config.originate.remove(&prefix);
        self.put_own(prefix);
        self.finish(now, Changes::default())
    }

    /// Does what is due: drops stale routes, ends a deferral.
    pub fn handle_timeout(&mut self, now: Instant) -> Changes {
        self.expire_stale(now);
        self.expire_refreshes(now);
        self.finish(now, Changes::default())
    }

    /// When [`Rib::handle_timeout`] is due next.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let timers = |(_, peer): (PeerId, &'_ PeerState)| {
            let [a, b] = peer.long_lived_until;
            let [c, d] = peer.refreshing;
            [peer.stale_until, a, b, c, d].into_iter().flatten().min()
        };
        let stale = self.peers.iter().filter_map(timers);
        let waits = self.screen.next_timeout();
        let stale = stale.chain(self.startup.next_timeout()).chain(waits);
        stale.chain(self.tidy.map(|tidy| tidy.at)).min()
    }

    /// Ends every call that changes something.
    fn finish(&mut self, now: Instant, mut changes: Changes) -> Changes {
        self.follow(&mut changes);
        // So long a list is left by the end of a deferral only.
        let most = if self.dirty.len() > self.backlog {
            self.inline
        } else {
            usize::MAX
        };
        self.finish_with(now, changes, most)
    }

    /// Finishes a call like [`Rib::finish`], with this limit of decisions.
    fn finish_with(&mut self, now: Instant, mut changes: Changes, most: usize) -> Changes {
        changes.out.append(&mut self.pending_warnings);
        self.note_waits(now);
        let due = self.startup.expire(now);
        if due {
            self.end_of_rib_after = self.marked;
        }
        self.resolve_again();
        if !self.startup.deferring() {
            self.decide_and_export(most, &mut changes);
            self.check_sent();
            changes.out.append(&mut self.pending_warnings);
            self.undecided_left = !self.dirty.is_empty();
            self.tidy(now);
            self.send_end_of_rib(&mut changes);
        }
        self.note_convergence();
        changes
    }

    /// End-of-RIB for those who have got the whole table.
    fn send_end_of_rib(&mut self, changes: &mut Changes) {
        let ready = self.own.is_empty() && self.decided >= self.end_of_rib_after;
        if self.pending_end_of_rib.is_empty() || !ready {
            return;
        }
        for (peer, family) in std::mem::take(&mut self.pending_end_of_rib) {
            if self.is_dumped(peer) {
                changes.out.push(Outbound::EndOfRib { peer, family });
            } else {
                self.pending_end_of_rib.push((peer, family));
            }
        }
    }
}

/// A list of undecided destinations that is longer is decided in slices.
const BACKLOG: usize = 32 * 1024;

#[cfg(test)]
mod tests;
