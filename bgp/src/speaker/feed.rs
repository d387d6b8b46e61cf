//! Feeds away from the owner of the table: one pending value per key, so a reader that stops costs
//! memory in proportion to the table and never in proportion to the churn, and the writer never
//! waits.
//!
//! Its lock is held for a map operation and never across an await.

mod parts;
mod pending;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use caracal_model::{Family, Prefix};
use foldhash::HashMap;
use tokio::sync::Notify;

pub(super) use self::pending::Marker;
use self::pending::{Item, Mark, Pending, Queued, Round, slot};
use super::shared::SharedUpdate;
use crate::attrs::PathAttrs;
use crate::rib::{Member, RouteChange};

/// A lock, a queue and a wake-up.
#[derive(Debug)]
struct Feed<V> {
    pending: Mutex<Pending<V>>,
    wake_up: Notify,
}

impl<V> Feed<V> {
    fn new() -> Self {
        Self {
            pending: Mutex::new(Pending::new()),
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

/// Updates pending for one peer during one session: made by the session when it is established,
/// handed to the core with [`ToCore::Up`](super::message::ToCore::Up), dropped when the session
/// ends.
///
/// One writer (the core), one reader (the session).
#[derive(Debug)]
pub struct OutFeed {
    feed: Feed<Option<Arc<PathAttrs>>>,
}

/// One unit that a session takes from its feed.
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
    /// Prefixes to withdraw, before the announcements.
    pub withdrawn: Vec<Prefix>,
    /// Prefixes to announce, by attribute set; no set occurs twice.
    pub announced: Vec<(Arc<PathAttrs>, Vec<Prefix>)>,
    /// Paths to announce (`Some`) or withdraw, by attribute set.
    pub paths: Vec<PathBatch>,
    /// Markers to send after the routes above, in this order.
    pub markers: Vec<Marker>,
}

/// Paths with identifiers (RFC 7911) that share attributes; `None` withdraws them.
pub(super) type PathBatch = (Option<Arc<PathAttrs>>, Vec<(Prefix, u32)>);

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
    /// A feed without changes, whose reader waits.
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
    /// 7313 §4): routes that the reader has not received between them are withdrawn for it. All
    /// routes follow, so pending ones of the family are dropped.
    ///
    /// As long as End-of-RIB of the family is pending there are no marks, since BoRR must not come
    /// before it; the routes go out again before End-of-RIB then.
    pub fn begin_refresh(&self, family: Family) {
        self.put_mark(Mark::BeginRefresh(family));
    }

    /// Queues the end of an enhanced refresh (RFC 7313, EoRR).
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

    /// Waits until [`OutFeed::next`] has something to give. Cancel-safe.
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
            match pending.shared.front() {
                Some(Queued::Shared(..)) => {
                    if let Some(Queued::Shared(update, member)) = pending.take_first() {
                        return Some(OutChunk::Shared(update, member));
                    }
                }
                Some(_) => pending.fold_first(),
                None => {
                    pending.behind = false;
                    return None;
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

/// Pending changes for the forwarding side: the latest value of each prefix that changed. Cheap to
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
    /// A feed without changes, whose reader waits.
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
    pub(crate) fn is_orphan(&self) -> bool {
        Arc::strong_count(&self.feed) == 1
    }

    /// Waits for changes and takes all of them, in the order in which the prefixes first changed.
    /// `None`: the speaker has ended, which says nothing about the routes. Cancel-safe.
    pub async fn changed(&self) -> Option<Vec<(Prefix, V)>> {
        self.feed.ready().await.then(|| self.take())
    }

    /// Takes what is pending now, without waiting. The speaker puts routes in here before it
    /// publishes anything about them elsewhere ([`Convergence`](super::status::Convergence), for
    /// one), so a reader that sees that and then takes has these routes.
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
