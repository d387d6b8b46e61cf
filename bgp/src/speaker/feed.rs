//! Feeds away from the owner of the table: one pending value per key, so a reader that stops costs
//! memory in proportion to the table and never in proportion to the churn, and the writer never
//! waits.
//!
//! Its lock is held for a map operation and never across an await.

mod parts;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caracal_model::net::{Family, Prefix};
use foldhash::HashMap;
use tokio::sync::Notify;

use self::parts::{PartedMap, PartedQueue};
use super::shared::SharedUpdate;
use crate::attrs::PathAttrs;
use crate::rib::{Member, RouteChange};

/// Changes that wait in shared form at most. Beyond that they are kept by prefix, where the latest
/// replaces all before it, and what a peer that does not read costs is bounded by the table.
const SHARED_LIMIT: usize = 128 * 1024;

/// A queue is walked through as a whole up to this length.
const TIDIED: usize = 64 * 1024;

/// Values that wait for the reader, in the order in which their keys were first pushed.
#[derive(Debug)]
struct Pending<V> {
    values: PartedMap<Prefix, (Round, V)>,
    /// The same for paths with an identifier (RFC 7911).
    paths: PartedMap<(Prefix, u32), (Round, V)>,
    /// What belongs to an earlier round is passed over.
    order: PartedQueue<(Round, Item)>,
    /// A family's round begins when everything of it follows again: what was pending before is
    /// gone, and nobody has to look for it.
    rounds: [Round; 2],
    /// Where End-of-RIB of a family waits: in the last round of its own.
    ends: [(Round, bool); 2],
    /// Changes of an update group, and what came behind them; newer than all of the above and in
    /// order.
    shared: VecDeque<Queued>,
    /// Number of changes in `shared`.
    shared_len: usize,
    /// Families of which everything is being queued again without marks, with End-of-RIB at the
    /// end.
    unmarked: BTreeSet<Family>,
    /// The writer is gone: nothing more will come.
    closed: bool,
}

/// Counts how often everything of a family has been queued again.
type Round = u32;

/// What has not been put among the values by prefix yet.
#[derive(Debug)]
enum Queued {
    /// Changes of an update group.
    Shared(Arc<SharedUpdate>, Member),
    /// Changes for this reader alone.
    Changes(Vec<RouteChange>),
    /// Between them.
    Mark(Mark),
}

/// What the writer says between routes.
#[derive(Clone, Copy, Debug)]
enum Mark {
    EndOfRib(Family),
    BeginRefresh(Family),
    EndRefresh(Family),
}

const fn slot(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    /// The pending value of this prefix.
    Value(Prefix),
    /// The pending value of this path.
    Path(Prefix, u32),
    /// Everything that was pushed before has been taken.
    Marker(Marker),
}

/// A message between routes whose place among them matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// End-of-RIB (RFC 4724 §2).
    EndOfRib(Family),
    /// Everything of the family follows (RFC 7313, BoRR).
    RefreshBegin(Family),
    /// That was everything (RFC 7313, EoRR).
    RefreshEnd(Family),
}

impl<V> Pending<V> {
    const fn round(&self, prefix: &Prefix) -> Round {
        self.rounds[slot(prefix.family())]
    }

    fn push(&mut self, prefix: Prefix, value: V) {
        #[cfg(test)]
        tests::note_push();
        let round = self.round(&prefix);
        let known = self.values.insert(prefix, (round, value));
        if known.is_none_or(|(known, _)| known != round) {
            self.order.push_back((round, Item::Value(prefix)));
        }
    }

    fn push_path(&mut self, prefix: Prefix, path_id: u32, value: V) {
        #[cfg(test)]
        tests::note_push();
        let round = self.round(&prefix);
        let known = self.paths.insert((prefix, path_id), (round, value));
        if known.is_none_or(|(known, _)| known != round) {
            self.order.push_back((round, Item::Path(prefix, path_id)));
        }
    }

    /// Takes out what is of earlier rounds, when that is most of a queue that is not long: who asks
    /// for everything again and again and reads nothing is not kept a queue of what was. A long
    /// queue is not walked through: nobody is told the table who has so much to read.
    fn tidy(&mut self) {
        let len = self.order.len();
        if len <= TIDIED && len > 2 * (self.values.len() + self.paths.len()) + 64 {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|(round, item)| {
                let holds = self.holds(*round, *item);
                if !holds {
                    self.pass_over(*round, *item);
                }
                holds
            });
            self.order = order;
        }
    }

    /// Queues End-of-RIB. One that is still waiting is overtaken: there is one for each family at
    /// most.
    fn put_end_of_rib(&mut self, family: Family) {
        let (round, waits) = &mut self.ends[slot(family)];
        *round = round.wrapping_add(1);
        *waits = true;
        let marker = Item::Marker(Marker::EndOfRib(family));
        self.order.push_back((*round, marker));
        self.tidy();
    }

    fn mark(&mut self, mark: Mark) {
        match mark {
            Mark::EndOfRib(family) => self.put_end_of_rib(family),
            Mark::BeginRefresh(family) => {
                let (round, waits) = &mut self.ends[slot(family)];
                if std::mem::take(waits) {
                    *round = round.wrapping_add(1);
                    self.unmarked.insert(family);
                } else if !self.unmarked.contains(&family) {
                    let round = &mut self.rounds[slot(family)];
                    *round = round.wrapping_add(1);
                    let begin = Item::Marker(Marker::RefreshBegin(family));
                    self.order.push_back((*round, begin));
                    self.tidy();
                }
            }
            Mark::EndRefresh(family) => {
                if self.unmarked.remove(&family) {
                    self.put_end_of_rib(family);
                } else {
                    let end = Item::Marker(Marker::RefreshEnd(family));
                    self.order.push_back((self.rounds[slot(family)], end));
                }
            }
        }
    }

    /// False: the item is of an earlier round.
    fn holds(&self, round: Round, item: Item) -> bool {
        match item {
            Item::Value(prefix) | Item::Path(prefix, _) => round == self.round(&prefix),
            Item::Marker(Marker::EndOfRib(family)) => self.ends[slot(family)] == (round, true),
            Item::Marker(Marker::RefreshBegin(family) | Marker::RefreshEnd(family)) => {
                round == self.rounds[slot(family)]
            }
        }
    }

    /// Forgets an item of an earlier round, and its value unless there is a later one.
    fn pass_over(&mut self, round: Round, item: Item) {
        match item {
            Item::Value(prefix) => {
                self.values.remove_if(&prefix, |(known, _)| *known == round);
            }
            Item::Path(prefix, path_id) => {
                let key = (prefix, path_id);
                self.paths.remove_if(&key, |(known, _)| *known == round);
            }
            Item::Marker(_) => {}
        }
    }
}

impl Pending<Option<Arc<PathAttrs>>> {
    /// Puts everything among the values by prefix, where later ones replace earlier ones.
    #[cfg(test)]
    fn fold(&mut self) {
        while !self.shared.is_empty() {
            self.fold_first();
        }
    }

    /// The same with the oldest part.
    fn fold_first(&mut self) {
        let Some(first) = self.shared.pop_front() else {
            return;
        };
        self.shared_len -= first.len();
        match first {
            Queued::Shared(update, member) => {
                for (prefix, attrs) in update.for_member(&member) {
                    self.push(prefix, attrs);
                }
            }
            Queued::Changes(changes) => self.change(changes),
            Queued::Mark(mark) => self.mark(mark),
        }
    }

    fn change(&mut self, changes: impl IntoIterator<Item = RouteChange>) {
        for change in changes {
            match change.path_id {
                None => self.push(change.prefix, change.attrs),
                Some(path_id) => self.push_path(change.prefix, path_id.get(), change.attrs),
            }
        }
    }

    /// Puts something behind what is shared, in order.
    fn queue(&mut self, queued: Queued) {
        self.shared_len += queued.len();
        self.shared.push_back(queued);
        // The oldest ones only: whoever fills the feed must not be held up by a reader that is
        // slow.
        while self.shared_len > SHARED_LIMIT || self.shared.len() > SHARED_LIMIT / 16 {
            self.fold_first();
        }
    }

    fn queue_mark(&mut self, mark: Mark) {
        if self.shared.is_empty() {
            self.mark(mark);
        } else {
            self.queue(Queued::Mark(mark));
        }
    }
}

impl Queued {
    fn len(&self) -> usize {
        match self {
            Self::Shared(update, _) => update.len(),
            Self::Changes(changes) => changes.len(),
            Self::Mark(_) => 1,
        }
    }
}

/// A lock, a queue and a wake-up.
#[derive(Debug)]
struct Feed<V> {
    pending: Mutex<Pending<V>>,
    wake_up: Notify,
}

impl<V> Feed<V> {
    fn new() -> Self {
        let pending = Pending {
            values: PartedMap::default(),
            paths: PartedMap::default(),
            order: PartedQueue::default(),
            rounds: [0; 2],
            ends: [(0, false); 2],
            shared: VecDeque::new(),
            shared_len: 0,
            unmarked: BTreeSet::new(),
            closed: false,
        };
        Self {
            pending: Mutex::new(pending),
            wake_up: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending<V>> {
        // A panic elsewhere does not make a queue of whole values inconsistent.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, values: impl IntoIterator<Item = (Prefix, V)>) {
        let mut pending = self.lock();
        for (prefix, value) in values {
            pending.push(prefix, value);
        }
        let waiting = !pending.order.is_empty();
        drop(pending);
        if waiting {
            self.wake_up.notify_one();
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wake_up.notify_one();
    }

    /// Waits until something is pending (true) or the feed is closed and empty (false).
    /// Cancel-safe.
    async fn ready(&self) -> bool {
        loop {
            let notified = self.wake_up.notified();
            {
                let pending = self.lock();
                if !pending.order.is_empty() || !pending.shared.is_empty() {
                    return true;
                }
                if pending.closed {
                    return false;
                }
            }
            notified.await;
        }
    }
}

/// What is to be told to one peer during one session: made by the session when it is established,
/// handed to the core with [`ToCore::Up`](super::message::ToCore::Up), dropped when the session
/// ends.
///
/// One writer (the core), one reader (the session).
#[derive(Debug)]
pub struct OutFeed {
    feed: Feed<Option<Arc<PathAttrs>>>,
}

/// What a session takes from its feed at once.
#[derive(Clone, Debug)]
pub enum OutChunk {
    /// Changes for this peer alone.
    Batch(OutBatch),
    /// Changes of its update group, of which it is this member.
    Shared(Arc<SharedUpdate>, Member),
}

/// A part of an [`OutFeed`], ready to be packed into UPDATE messages: first withdrawals, then
/// announcements, then markers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutBatch {
    /// Prefixes to withdraw.
    pub withdrawn: Vec<Prefix>,
    /// Prefixes to announce, by attribute set; no set occurs twice.
    pub announced: Vec<(Arc<PathAttrs>, Vec<Prefix>)>,
    /// Paths to announce (`Some`) or withdraw, by attribute set.
    pub paths: Vec<PathBatch>,
    /// What is due after the above, in this order.
    pub markers: Vec<Marker>,
}

/// Paths with identifiers (RFC 7911) that share attributes; `None` withdraws them.
pub type PathBatch = (Option<Arc<PathAttrs>>, Vec<(Prefix, u32)>);

impl OutBatch {
    /// True when there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.withdrawn.is_empty()
            && self.announced.is_empty()
            && self.paths.is_empty()
            && self.markers.is_empty()
    }
}

impl Default for OutFeed {
    fn default() -> Self {
        Self::new()
    }
}

impl OutFeed {
    /// An empty feed.
    #[must_use]
    pub fn new() -> Self {
        Self { feed: Feed::new() }
    }

    /// Announces (`Some`) or withdraws (`None`) a prefix. Replaces what is pending for it.
    pub fn push(&self, prefix: Prefix, attrs: Option<Arc<PathAttrs>>) {
        let path_id = None;
        self.change([RouteChange {
            prefix,
            path_id,
            attrs,
        }]);
    }

    /// Queues changes for this peer alone.
    pub fn change(&self, changes: impl IntoIterator<Item = RouteChange>) {
        let mut pending = self.feed.lock();
        if pending.shared.is_empty() {
            pending.change(changes);
        } else {
            pending.queue(Queued::Changes(changes.into_iter().collect()));
        }
        self.wake_if_waiting(pending);
    }

    /// Queues a change of the peer's update group. As long as the reader keeps up nothing is
    /// copied.
    pub fn share(&self, update: Arc<SharedUpdate>, member: Member) {
        let mut pending = self.feed.lock();
        pending.queue(Queued::Shared(update, member));
        self.wake_if_waiting(pending);
    }

    fn wake_if_waiting(&self, pending: MutexGuard<'_, Pending<Option<Arc<PathAttrs>>>>) {
        let waiting = !pending.order.is_empty() || !pending.shared.is_empty();
        drop(pending);
        if waiting {
            self.feed.wake_up.notify_one();
        }
    }

    fn put_mark(&self, mark: Mark) {
        let mut pending = self.feed.lock();
        pending.queue_mark(mark);
        self.wake_if_waiting(pending);
    }

    /// Queues the End-of-RIB marker of a family behind everything that is pending now. A marker
    /// that is still waiting is overtaken by this one: one marker per family at most.
    pub fn end_of_rib(&self, family: Family) {
        self.put_mark(Mark::EndOfRib(family));
    }

    /// Everything of a family follows again, up to [`OutFeed::end_refresh`], between marks (RFC
    /// 7313 §4): what the reader has not heard when the second one comes is gone for it. All there
    /// is follows, so that whatever of the family is pending is dropped.
    ///
    /// As long as End-of-RIB of the family is pending there are no marks, since BoRR must not come
    /// before it; the routes go out again before End-of-RIB then.
    pub fn begin_refresh(&self, family: Family) {
        self.put_mark(Mark::BeginRefresh(family));
    }

    /// That was everything.
    pub fn end_refresh(&self, family: Family) {
        self.put_mark(Mark::EndRefresh(family));
    }

    /// Number of pending prefixes and markers; a prefix in several shared changes counts several
    /// times.
    #[must_use]
    pub fn len(&self) -> usize {
        let pending = self.feed.lock();
        pending.order.len() + pending.shared_len
    }

    /// True when nothing is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until [`OutFeed::take`] has something to give. Cancel-safe.
    pub async fn ready(&self) {
        self.feed.ready().await;
    }

    /// Takes at most `max` prefixes, oldest first; empty when nothing is pending. A batch ends at a
    /// marker, so that a marker never overtakes what was pushed before it and never delays what
    /// comes after it.
    #[cfg(test)]
    pub(super) fn take(&self, max: usize) -> OutBatch {
        let mut pending = self.feed.lock();
        pending.fold();
        Self::take_from(&mut pending, max)
    }

    /// The oldest changes, as they were queued: at most `max` prefixes, oldest first, up to a
    /// marker, so that a marker never overtakes what was pushed before it and never delays what
    /// comes after it; or a shared change.
    #[must_use]
    pub fn next(&self, max: usize) -> Option<OutChunk> {
        let mut pending = self.feed.lock();
        loop {
            if !pending.order.is_empty() {
                return Some(OutChunk::Batch(Self::take_from(&mut pending, max)));
            }
            match pending.shared.pop_front()? {
                Queued::Shared(update, member) => {
                    pending.shared_len -= update.len();
                    return Some(OutChunk::Shared(update, member));
                }
                other => {
                    pending.shared.push_front(other);
                    pending.fold_first();
                }
            }
        }
    }

    fn take_from(pending: &mut Pending<Option<Arc<PathAttrs>>>, max: usize) -> OutBatch {
        let mut batch = OutBatch::default();
        let mut groups: HashMap<*const PathAttrs, usize> = HashMap::default();
        let mut path_groups: HashMap<*const PathAttrs, usize> = HashMap::default();
        for _ in 0..max {
            let Some((round, item)) = pending.order.front().copied() else {
                break;
            };
            let held = pending.holds(round, item);
            if held && !matches!(item, Item::Marker(_)) && !batch.markers.is_empty() {
                break;
            }
            pending.order.pop_front();
            if !held {
                pending.pass_over(round, item);
                continue;
            }
            match item {
                Item::Value(prefix) => match pending.values.remove(&prefix) {
                    Some((_, Some(attrs))) => {
                        // Interned sets: the same pointer is the same set.
                        let group = *groups.entry(Arc::as_ptr(&attrs)).or_insert_with(|| {
                            batch.announced.push((attrs, Vec::new()));
                            batch.announced.len() - 1
                        });
                        batch.announced[group].1.push(prefix);
                    }
                    Some((_, None)) => batch.withdrawn.push(prefix),
                    None => {}
                },
                Item::Path(prefix, path_id) => {
                    let key = (prefix, path_id);
                    let Some((_, attrs)) = pending.paths.remove(&key) else {
                        continue;
                    };
                    let known = attrs.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
                    let group = *path_groups.entry(known).or_insert_with(|| {
                        batch.paths.push((attrs, Vec::new()));
                        batch.paths.len() - 1
                    });
                    batch.paths[group].1.push(key);
                }
                Item::Marker(marker) => {
                    if let Marker::EndOfRib(family) = marker {
                        pending.ends[slot(family)].1 = false;
                    }
                    batch.markers.push(marker);
                }
            }
        }
        batch
    }
}

/// What the forwarding side must know: the latest value for each prefix that changed. Cheap to
/// clone; clones share one queue. One writer, one reader.
#[derive(Debug)]
pub struct KeyedFeed<V> {
    feed: Arc<Feed<V>>,
}

impl<V> Clone for KeyedFeed<V> {
    fn clone(&self) -> Self {
        Self {
            feed: self.feed.clone(),
        }
    }
}

impl<V> Default for KeyedFeed<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> KeyedFeed<V> {
    /// An empty feed.
    #[must_use]
    pub fn new() -> Self {
        Self {
            feed: Arc::new(Feed::new()),
        }
    }

    /// Replaces the pending value of each prefix.
    pub fn extend(&self, values: impl IntoIterator<Item = (Prefix, V)>) {
        self.feed.extend(values);
    }

    /// No more values will come; what is pending can still be read.
    pub fn close(&self) {
        self.feed.close();
    }

    /// True when nobody else holds the feed.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        Arc::strong_count(&self.feed) == 1
    }

    /// Waits for changes and takes all of them, in the order in which the prefixes first changed.
    /// `None`: the speaker has ended, which says nothing about the routes. Cancel-safe.
    pub async fn changed(&self) -> Option<Vec<(Prefix, V)>> {
        self.feed.ready().await.then(|| self.take())
    }

    /// Takes what is pending now, without waiting. What the speaker says elsewhere
    /// ([`Convergence`](super::status::Convergence), for one) it says after it has put the routes
    /// in here, so whoever hears of it and then takes has these routes.
    #[must_use]
    pub fn take(&self) -> Vec<(Prefix, V)> {
        let mut pending = self.feed.lock();
        let order = std::mem::take(&mut pending.order);
        let mut values = std::mem::take(&mut pending.values);
        drop(pending);
        let take = |(_, item): &(Round, Item)| match item {
            Item::Value(prefix) => values.remove(prefix).map(|(_, value)| (*prefix, value)),
            // Paths are for peers.
            Item::Path(..) | Item::Marker(_) => None,
        };
        order.iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests;
