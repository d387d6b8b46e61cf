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

/// Values that wait for the reader, in the order in which their keys were first pushed.
#[derive(Debug)]
struct Pending<V> {
    values: PartedMap<Prefix, V>,
    /// The same for paths with an identifier (RFC 7911).
    paths: PartedMap<(Prefix, u32), V>,
    order: PartedQueue<Item>,
    /// Changes of an update group, newer than all of the above and in order.
    shared: VecDeque<(Arc<SharedUpdate>, Member)>,
    /// Number of changes in `shared`.
    shared_len: usize,
    /// Families of which everything is being queued again without marks, with End-of-RIB at the
    /// end.
    unmarked: BTreeSet<Family>,
    /// The writer is gone: nothing more will come.
    closed: bool,
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
    fn push(&mut self, prefix: Prefix, value: V) {
        if self.values.insert(prefix, value).is_none() {
            self.order.push_back(Item::Value(prefix));
        }
    }
}

impl Pending<Option<Arc<PathAttrs>>> {
    fn push_path(&mut self, prefix: Prefix, path_id: u32, value: Option<Arc<PathAttrs>>) {
        if self.paths.insert((prefix, path_id), value).is_none() {
            self.order.push_back(Item::Path(prefix, path_id));
        }
    }

    /// Drops what is pending for a family, marks of a refresh included.
    fn forget(&mut self, family: Family) {
        self.order.retain(|item| match item {
            Item::Value(prefix) if prefix.family() == family => {
                self.values.remove(prefix);
                false
            }
            Item::Path(prefix, path_id) if prefix.family() == family => {
                self.paths.remove(&(*prefix, *path_id));
                false
            }
            Item::Value(_) | Item::Path(..) => true,
            Item::Marker(Marker::RefreshBegin(seen) | Marker::RefreshEnd(seen)) => *seen != family,
            Item::Marker(Marker::EndOfRib(_)) => true,
        });
    }

    /// Puts shared changes among those by prefix, where later ones replace them.
    fn fold(&mut self) {
        while !self.shared.is_empty() {
            self.fold_first();
        }
    }

    /// The same with the oldest of them.
    fn fold_first(&mut self) {
        if let Some((update, member)) = self.shared.pop_front() {
            self.shared_len -= update.len();
            for (prefix, attrs) in update.for_member(&member) {
                self.push(prefix, attrs);
            }
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
        self.feed.extend([(prefix, attrs)]);
    }

    /// [`OutFeed::push`] for many prefixes under one lock.
    pub fn extend(&self, changes: impl IntoIterator<Item = (Prefix, Option<Arc<PathAttrs>>)>) {
        self.feed.lock().fold();
        self.feed.extend(changes);
    }

    /// Queues changes for this peer alone.
    pub fn change(&self, changes: impl IntoIterator<Item = RouteChange>) {
        let mut pending = self.feed.lock();
        pending.fold();
        for RouteChange {
            prefix,
            path_id,
            attrs,
        } in changes
        {
            match path_id {
                None => pending.push(prefix, attrs),
                Some(path_id) => pending.push_path(prefix, path_id.get(), attrs),
            }
        }
        drop(pending);
        self.feed.wake_up.notify_one();
    }

    /// Queues a change of the peer's update group. As long as the reader keeps up nothing is
    /// copied.
    pub fn share(&self, update: Arc<SharedUpdate>, member: Member) {
        let mut pending = self.feed.lock();
        pending.shared_len += update.len();
        pending.shared.push_back((update, member));
        // The oldest ones only: whoever fills the feed must not be held up by a reader that is
        // slow.
        while pending.shared_len > SHARED_LIMIT || pending.shared.len() > SHARED_LIMIT / 16 {
            pending.fold_first();
        }
        drop(pending);
        self.feed.wake_up.notify_one();
    }

    /// Queues the End-of-RIB marker of a family behind everything that is pending now.
    pub fn end_of_rib(&self, family: Family) {
        let mut pending = self.feed.lock();
        pending.fold();
        // A marker that is still waiting is overtaken by this one: one marker per family at most.
        let marker = Item::Marker(Marker::EndOfRib(family));
        if pending.order.iter().any(|item| *item == marker) {
            pending.order.retain(|item| *item != marker);
        }
        pending.order.push_back(marker);
        drop(pending);
        self.feed.wake_up.notify_one();
    }

    /// Everything of a family follows again, up to [`OutFeed::end_refresh`], between marks (RFC
    /// 7313 §4): what the reader has not heard when the second one comes is gone for it. All there
    /// is follows, so that whatever of the family is pending is dropped.
    ///
    /// As long as End-of-RIB of the family is pending there are no marks, since BoRR must not come
    /// before it; the routes go out again before End-of-RIB then.
    pub fn begin_refresh(&self, family: Family) {
        let mut pending = self.feed.lock();
        pending.fold();
        let end_of_rib = Item::Marker(Marker::EndOfRib(family));
        if pending.order.iter().any(|item| *item == end_of_rib) {
            pending.order.retain(|item| *item != end_of_rib);
            pending.unmarked.insert(family);
        } else if !pending.unmarked.contains(&family) {
            pending.forget(family);
            let begin = Item::Marker(Marker::RefreshBegin(family));
            pending.order.push_back(begin);
        }
        drop(pending);
        self.feed.wake_up.notify_one();
    }

    /// That was everything.
    pub fn end_refresh(&self, family: Family) {
        let mut pending = self.feed.lock();
        pending.fold();
        let end = if pending.unmarked.remove(&family) {
            Marker::EndOfRib(family)
        } else {
            Marker::RefreshEnd(family)
        };
        pending.order.push_back(Item::Marker(end));
        drop(pending);
        self.feed.wake_up.notify_one();
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
    #[must_use]
    pub fn take(&self, max: usize) -> OutBatch {
        let mut pending = self.feed.lock();
        pending.fold();
        Self::take_from(&mut pending, max)
    }

    /// The oldest changes, as they were queued: what [`OutFeed::take`] would give, or a shared
    /// change.
    #[must_use]
    pub fn next(&self, max: usize) -> Option<OutChunk> {
        let mut pending = self.feed.lock();
        if !pending.order.is_empty() {
            return Some(OutChunk::Batch(Self::take_from(&mut pending, max)));
        }
        let (update, member) = pending.shared.pop_front()?;
        pending.shared_len -= update.len();
        Some(OutChunk::Shared(update, member))
    }

    fn take_from(pending: &mut Pending<Option<Arc<PathAttrs>>>, max: usize) -> OutBatch {
        let mut batch = OutBatch::default();
        let mut groups: HashMap<*const PathAttrs, usize> = HashMap::default();
        let mut path_groups: HashMap<*const PathAttrs, usize> = HashMap::default();
        for _ in 0..max {
            match pending.order.front() {
                Some(Item::Value(prefix)) if batch.markers.is_empty() => {
                    let prefix = *prefix;
                    pending.order.pop_front();
                    match pending.values.remove(&prefix) {
                        Some(Some(attrs)) => {
                            // Interned sets: the same pointer is the same set.
                            let group = *groups.entry(Arc::as_ptr(&attrs)).or_insert_with(|| {
                                batch.announced.push((attrs, Vec::new()));
                                batch.announced.len() - 1
                            });
                            batch.announced[group].1.push(prefix);
                        }
                        Some(None) => batch.withdrawn.push(prefix),
                        None => {}
                    }
                }
                Some(Item::Path(prefix, path_id)) if batch.markers.is_empty() => {
                    let key = (*prefix, *path_id);
                    pending.order.pop_front();
                    let Some(attrs) = pending.paths.remove(&key) else {
                        continue;
                    };
                    let known = attrs.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
                    let group = *path_groups.entry(known).or_insert_with(|| {
                        batch.paths.push((attrs, Vec::new()));
                        batch.paths.len() - 1
                    });
                    batch.paths[group].1.push(key);
                }
                Some(Item::Marker(marker)) => {
                    batch.markers.push(*marker);
                    pending.order.pop_front();
                }
                Some(Item::Value(_) | Item::Path(..)) | None => break,
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
        let take = |item: &Item| match item {
            Item::Value(prefix) => values.remove(prefix).map(|value| (*prefix, value)),
            // Paths are for peers.
            Item::Path(..) | Item::Marker(_) => None,
        };
        order.iter().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests;
