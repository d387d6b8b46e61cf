//! Long work in slices: work on the whole table is a job with a cursor over the slots of the table.
//!
//! A call that starts such work changes the rules at once, queues the job and does the first slice
//! itself, so that in a small table everything is done when the call returns. [`Rib::work`] does
//! the rest, as much at a time as the caller wants, between other calls.
//!
//! Jobs are level-triggered: a job applies to a destination the peers, rules and next hops of the
//! moment at which it processes it, never those of the moment at which it was queued. Destinations
//! that change meanwhile follow the present rules anyway. So the order of jobs does not matter,
//! with one exception: jobs that judge the paths of one peer by their age run one after the other,
//! and as long as one of them could mistake new paths for old ones the peer is *busy*
//! ([`Rib::is_busy`]). A call for a busy peer first ends those jobs; a caller that must not wait
//! keeps the peer's messages until it is not busy any more.
//!
//! * RIB-5: when no work is left, the table is what it would be had every job been done at once.

mod progress;
mod run;
mod within;

use std::collections::BTreeSet;
use std::time::Instant;

use caracal_model::Family;

use super::families::{FAMILIES, slot};
use super::next_hops::NextHopChange;
use super::out::ExportCache;
use super::parted::STRIDE;
use super::peers::PeerState;
use super::table::Staleness;
use super::{Changes, PeerId, Rib};
use crate::config::Counted;
use crate::types::PeerName;
pub use progress::Progress;
pub(super) use within::Within;

/// Slots that a call processes itself: tables up to this size leave no work for later.
pub(super) const INLINE: usize = 2048;

/// A slot with many paths counts as several: number of paths that are as much work as a slot.
const PATHS_PER_SLOT: usize = 8;

/// Stale paths to drop: for each family those of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drops {
    pub(super) restart: [bool; 2],
    pub(super) long_lived: [bool; 2],
}

impl Drops {
    pub(super) fn includes(self, family: Family, staleness: Staleness) -> bool {
        match staleness {
            Staleness::Restart => self.restart[slot(family)],
            Staleness::LongLived => self.long_lived[slot(family)],
            Staleness::Fresh | Staleness::Refresh => false,
        }
    }

    /// Number of a peer's paths of a family that go.
    fn doomed(self, peer: &PeerState, family: Family) -> usize {
        let of = |drop: bool, count: usize| if drop { count } else { 0 };
        of(self.restart[slot(family)], peer.kept_for_restart(family))
            + of(self.long_lived[slot(family)], peer.kept_long(family))
    }

    /// Both kinds of a family.
    pub(super) fn family(family: Family) -> Self {
        let mut of = [false; 2];
        of[slot(family)] = true;
        Self {
            restart: of,
            long_lived: of,
        }
    }
}

/// Work of a job on each destination.
#[derive(Debug)]
pub(super) enum JobKind {
    /// The session of these peers is over, and nothing of theirs is kept.
    Forget(BTreeSet<PeerId>),
    /// The session is over: paths become stale, but for those that go at once and families that are
    /// not kept.
    Retain {
        peer: PeerId,
        drops: Drops,
        kept: [bool; 2],
    },
    /// Removes the peer's stale paths.
    Sweep { peer: PeerId, drops: Drops },
    /// The restart time is over: paths become a last resort, families that are not kept go (RFC
    /// 9494 §4.2).
    KeepLong { peer: PeerId, kept: [bool; 2] },
    /// The peer sends everything of a family again (RFC 7313).
    MarkRefresh(PeerId, Family),
    /// Drops paths that it has not sent since.
    EndRefresh(PeerId, Family),
    /// Received paths of these peers go through import policy again.
    Import(BTreeSet<PeerId>),
    /// Decides again the routes over next hops that have moved.
    NextHops(Box<NextHopChange>),
    /// Everything is decided and exported again.
    TouchAll,
    /// Attribute sets that nobody uses any more go.
    Sets,
    /// A new update group gets its Adj-RIB-Out.
    Fill {
        group: usize,
        cache: Box<ExportCache>,
    },
    /// A peer goes over to another update group; `from` is the old one, once the job has begun.
    Move {
        peer: PeerId,
        from: Option<usize>,
        to: usize,
    },
    /// A dump of the table to a peer, of one family or of both.
    Dump {
        peer: PeerId,
        family: Option<Family>,
        /// Between marks (RFC 7313).
        marked: bool,
    },
}

impl JobKind {
    /// The peers whose received paths it judges by when they came.
    fn judges(&self, id: PeerId) -> bool {
        match self {
            Self::Forget(peers) => peers.contains(&id),
            Self::Retain { peer, .. }
            | Self::Sweep { peer, .. }
            | Self::KeepLong { peer, .. }
            | Self::MarkRefresh(peer, _)
            | Self::EndRefresh(peer, _) => *peer == id,
            _ => false,
        }
    }

    fn judged(&self) -> BTreeSet<PeerId> {
        match self {
            Self::Forget(peers) => peers.clone(),
            Self::Retain { peer, .. }
            | Self::Sweep { peer, .. }
            | Self::KeepLong { peer, .. }
            | Self::MarkRefresh(peer, _)
            | Self::EndRefresh(peer, _) => BTreeSet::from([*peer]),
            _ => BTreeSet::new(),
        }
    }

    /// True when the job could take paths that come now for old ones.
    const fn takes_new_for_old(&self) -> bool {
        matches!(
            self,
            Self::Forget(_) | Self::Retain { .. } | Self::KeepLong { .. } | Self::MarkRefresh(..)
        )
    }

    const fn what(&self) -> &'static str {
        match self {
            Self::Forget(_) => "withdraw the routes of peers that are gone",
            Self::Retain { .. } => "keep routes over a restart",
            Self::Sweep { .. } => "drop stale routes",
            Self::KeepLong { .. } => "keep routes as a last resort",
            Self::MarkRefresh(..) | Self::EndRefresh(..) => "route refresh",
            Self::Import(_) => "run import filters again",
            Self::NextHops(_) => "follow next hops",
            Self::TouchAll => "decide again",
            Self::Sets => "give memory back",
            Self::Fill { .. } => "run export filters",
            Self::Move { .. } => "announce the difference of export filters",
            Self::Dump { .. } => "announce the table",
        }
    }
}

/// A job and how far it is.
#[derive(Debug)]
pub(super) struct Job {
    number: u64,
    kind: JobKind,
    at: usize,
    /// Progress with the destination at this slot.
    within: Within,
}

impl Job {
    /// True when it has not done anything yet.
    fn is_new(&self) -> bool {
        self.at == 0 && self.within == Within::default()
    }
}

/// The jobs that are not done, oldest first.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    list: Vec<Job>,
    last: u64,
    /// The job that had the last slice.
    turn: u64,
    /// Some job has been queued since the last slice.
    new: bool,
    /// Peers whose dumps are paused.
    paused: BTreeSet<PeerId>,
}

impl Jobs {
    fn find(&self, number: u64) -> usize {
        self.list.partition_point(|job| job.number < number)
    }

    fn has(&self, which: impl Fn(&JobKind) -> bool) -> bool {
        self.list.iter().any(|job| which(&job.kind))
    }

    /// The next job that may run, in turn.
    fn next(&self, groups_ready: impl Fn(&JobKind) -> bool) -> Option<usize> {
        let ready = |at: usize| {
            let kind = &self.list[at].kind;
            let judged = kind.judged();
            let earlier = self.list[..at].iter();
            let first = |id: &PeerId| !earlier.clone().any(|job| job.kind.judges(*id));
            groups_ready(kind) && judged.iter().all(first)
        };
        let after = self.find(self.turn + 1);
        (after..self.list.len())
            .chain(0..after)
            .find(|at| ready(*at))
    }
}

impl Rib {
    /// True while there is work for [`Rib::work`].
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.undecided_left || !self.own.is_empty() || self.jobs.has(|kind| !self.is_paused(kind))
    }

    /// The peers to which the table is being announced.
    pub fn dumps(&self) -> impl Iterator<Item = PeerId> {
        self.jobs.list.iter().filter_map(|job| match job.kind {
            JobKind::Dump { peer, .. } => Some(peer),
            _ => None,
        })
    }

    /// Pauses the dumps of the table to these peers, since their feeds are long, and resumes all
    /// others. Changes are still announced.
    pub fn pause_dumps(&mut self, peers: BTreeSet<PeerId>) {
        self.jobs.paused = peers;
    }

    fn is_paused(&self, kind: &JobKind) -> bool {
        matches!(kind, JobKind::Dump { peer, .. } if self.jobs.paused.contains(peer))
    }

    /// True while new paths of a peer could be taken for old ones: its messages should wait.
    #[must_use]
    pub fn is_busy(&self, name: &PeerName) -> bool {
        !self.jobs.list.is_empty() && self.peer_id(name).is_some_and(|id| self.busy(id))
    }

    fn busy(&self, id: PeerId) -> bool {
        self.jobs
            .has(|kind| kind.takes_new_for_old() && kind.judges(id))
    }

    /// Stands for all work that has been started until now.
    #[must_use]
    pub const fn ticket(&self) -> u64 {
        self.jobs.last
    }

    /// True when all work that a ticket stands for is done, but for what waits for peers to read.
    #[must_use]
    pub fn is_done(&self, ticket: u64) -> bool {
        let mut left = self
            .jobs
            .list
            .iter()
            .filter(|job| !self.is_paused(&job.kind));
        let jobs_done = left.next().is_none_or(|job| job.number > ticket);
        jobs_done && !self.undecided_left && self.own.is_empty()
    }

    /// Where the cursor of a job ends.
    fn extent(&self, kind: &JobKind) -> usize {
        match kind {
            JobKind::Sets => self.interner.end(),
            _ => self.table.slots(),
        }
    }

    /// Does work on about so many destinations.
    pub fn work(&mut self, now: Instant, slots: usize) -> Changes {
        let mut changes = Changes::default();
        let own = self.update_own(slots);
        self.run_jobs(slots.saturating_sub(own), &mut changes);
        self.jobs.new = false;
        self.finish_with(now, changes, slots.max(1))
    }

    /// The first slice of what was queued since the last time.
    ///
    /// False: there was nothing.
    pub(super) fn begin_jobs(&mut self, changes: &mut Changes) -> bool {
        let new = std::mem::take(&mut self.jobs.new);
        if new {
            self.run_jobs(self.inline, changes);
        }
        new
    }

    pub(super) fn queue(&mut self, mut kind: JobKind) {
        self.jobs.last += 1;
        self.jobs.new = true;
        // One that has not begun does the same.
        let joined = self.jobs.list.iter_mut().filter(|job| job.is_new());
        for job in joined {
            match (&mut job.kind, &mut kind) {
                (JobKind::Forget(known), JobKind::Forget(peers))
                | (JobKind::Import(known), JobKind::Import(peers)) => {
                    known.append(peers);
                    return;
                }
                (JobKind::TouchAll, JobKind::TouchAll) | (JobKind::Sets, JobKind::Sets) => return,
                (JobKind::NextHops(known), JobKind::NextHops(change)) => {
                    known.join(change);
                    return;
                }
                _ => {}
            }
        }
        self.jobs.list.push(Job {
            number: self.jobs.last,
            kind,
            at: 0,
            within: Within::default(),
        });
    }

    /// Takes out the jobs that judge received paths of a peer: something else is to become of them.
    pub(super) fn supersede(&mut self, id: PeerId) {
        self.jobs.list.retain_mut(|job| match &mut job.kind {
            JobKind::Forget(_) => true,
            other => !other.judges(id),
        });
    }

    /// The session ends in which everything was to come again. A refresh that has ended already is
    /// carried through: what was not sent again goes.
    pub(super) fn cancel_refresh(&mut self, id: PeerId) {
        let ends = |kind: &JobKind| match kind {
            JobKind::EndRefresh(peer, family) if *peer == id => Some(*family),
            _ => None,
        };
        let ended: Vec<Family> = self
            .jobs
            .list
            .iter()
            .filter_map(|job| ends(&job.kind))
            .collect();
        self.jobs.list.retain(|job| match &job.kind {
            JobKind::MarkRefresh(peer, family) if *peer == id => ended.contains(family),
            _ => true,
        });
    }

    /// Drops the pending dumps to a peer.
    pub(super) fn cancel_exports(&mut self, id: PeerId) {
        let mut unpinned = Vec::new();
        self.jobs.list.retain(|job| match &job.kind {
            JobKind::Dump { peer, .. } => *peer != id,
            JobKind::Move { peer, from, to } if *peer == id => {
                unpinned.extend(from.iter().chain([to]).copied());
                false
            }
            _ => true,
        });
        for group in unpinned {
            self.unpin(group);
        }
    }

    fn unpin(&mut self, group: usize) {
        if let Some(Some(pinned)) = self.groups.get_mut(group) {
            pinned.pins -= 1;
        }
        self.drop_unused(group);
    }

    /// Drops a group that nobody needs any more.
    pub(super) fn drop_unused(&mut self, index: usize) {
        let Some(slot) = self.groups.get_mut(index) else {
            return;
        };
        if slot
            .as_ref()
            .is_some_and(|group| group.members.is_empty() && group.pins == 0)
        {
            *slot = None;
            let fills =
                |kind: &JobKind| matches!(kind, JobKind::Fill { group, .. } if *group == index);
            self.jobs.list.retain(|job| !fills(&job.kind));
        }
    }

    /// Forgets a refresh that was to be answered, and says whether the first dump to the peer is
    /// under way, which then begins again.
    pub(super) fn restart_dump(&mut self, id: PeerId, of: Family) -> bool {
        let mut first = false;
        self.jobs.list.retain_mut(|job| match &job.kind {
            JobKind::Dump { peer, family, .. } if *peer == id => {
                if family.is_none() {
                    first = true;
                    job.at = 0;
                }
                *family != Some(of)
            }
            _ => true,
        });
        first
    }

    /// Whether a peer has got the dump that was queued when its session began.
    pub(super) fn is_dumped(&self, id: PeerId) -> bool {
        let first = |kind: &JobKind| matches!(kind, JobKind::Dump { peer, family: None, .. } if *peer == id);
        self.jobs.list.is_empty() || !self.jobs.has(first)
    }

    /// Whether a peer is on its way to another group.
    pub(super) fn is_moving(&self, id: PeerId) -> bool {
        let moves = |kind: &JobKind| matches!(kind, JobKind::Move { peer, from: Some(_), .. } if *peer == id);
        self.jobs.has(moves)
    }

    /// Forgets a move that has not begun.
    pub(super) fn cancel_move(&mut self, id: PeerId) {
        let mut group = None;
        self.jobs.list.retain(|job| match &job.kind {
            JobKind::Move {
                peer,
                from: None,
                to,
            } if *peer == id => {
                group = Some(*to);
                false
            }
            _ => true,
        });
        if let Some(group) = group {
            self.unpin(group);
        }
    }

    /// Peers on their way to another group, each with its old one and the slot up to which it is
    /// done.
    pub(super) fn moves(&self) -> Vec<(PeerId, usize, usize)> {
        let moves = |job: &Job| match &job.kind {
            JobKind::Move {
                peer,
                from: Some(from),
                ..
            } => Some((*peer, *from, job.at)),
            _ => None,
        };
        self.jobs.list.iter().filter_map(moves).collect()
    }

    /// Whether some job judges received paths of a peer.
    pub(super) fn is_judged(&self, id: PeerId) -> bool {
        self.jobs.has(|kind| kind.judges(id))
    }

    /// Stale paths of a peer that queued jobs will drop; and whether more may become stale.
    fn drops_ahead(&self, id: PeerId) -> (Drops, bool) {
        let (mut ahead, mut more) = (Drops::default(), false);
        for job in &self.jobs.list {
            match &job.kind {
                JobKind::Sweep { peer, drops } if *peer == id => {
                    for at in 0..2 {
                        ahead.restart[at] |= drops.restart[at];
                        ahead.long_lived[at] |= drops.long_lived[at];
                    }
                }
                kind => more |= kind.takes_new_for_old() && kind.judges(id),
            }
        }
        (ahead, more)
    }

    /// The number of a peer's paths of a family, as it will be without those that are on their way
    /// out. Whether those were accepted is not known: until they are gone, there may be more
    /// accepted ones.
    pub(super) fn count_ahead(&self, id: PeerId, counted: Counted, family: Family) -> usize {
        let Some(peer) = self.peers.get(id) else {
            return 0;
        };
        let all = match counted {
            Counted::Sent => return self.sent_of(id, family).0,
            Counted::Received => peer.received_of(family),
            Counted::Accepted => peer.accepted_of(family),
        };
        if self.jobs.list.is_empty() {
            return all;
        }
        let refreshed = |kind: &JobKind| matches!(kind, JobKind::EndRefresh(peer, of) if *peer == id && *of == family);
        let refreshed = if self.jobs.has(refreshed) {
            peer.refreshed(family)
        } else {
            0
        };
        all.saturating_sub(self.drops_ahead(id).0.doomed(peer, family))
            .saturating_sub(refreshed)
    }

    /// Forgets the timers of stale routes that are not there, or will not be when all jobs are
    /// done.
    pub(super) fn prune_timers(&mut self, id: PeerId) {
        let (ahead, more) = self.drops_ahead(id);
        if more {
            return;
        }
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let left =
            |family: Family, doomed: [bool; 2], count: usize| !doomed[slot(family)] && count > 0;
        let restart = FAMILIES
            .into_iter()
            .any(|family| left(family, ahead.restart, peer.kept_for_restart(family)));
        peer.stale_until = peer.stale_until.filter(|_| restart);
        peer.restart_ends = peer.restart_ends.filter(|_| restart);
        for family in FAMILIES {
            if !left(family, ahead.long_lived, peer.kept_long(family)) {
                peer.long_lived_until[slot(family)] = None;
            }
        }
    }

    /// Ends the work that could take new paths of a peer for old ones. Whoever must not be held up
    /// asks [`Rib::is_busy`] first.
    pub(super) fn end_judging(&mut self, id: PeerId) {
        let mut changes = Changes::default();
        while !self.jobs.list.is_empty() && self.busy(id) {
            let first = self.jobs.list.iter().position(|job| job.kind.judges(id));
            let Some(at) = first else { break };
            // Others of the job's peers may wait for jobs of their own.
            let at = self.first_before(at);
            self.run_job(at, usize::MAX, &mut changes);
        }
        // None of these tells anybody anything by itself.
        debug_assert!(changes.is_empty());
    }

    /// The first job that has to be done before this one can.
    fn first_before(&self, at: usize) -> usize {
        let judged = self.jobs.list[at].kind.judged();
        let earlier = self.jobs.list[..at].iter();
        let judges = |job: &Job| judged.iter().any(|id| job.kind.judges(*id));
        let found = earlier.enumerate().find(|(_, job)| judges(job));
        found.map_or(at, |(earlier, _)| self.first_before(earlier))
    }
}
