//! Pending values of a feed: by prefix in the order in which they came, and behind them, as they
//! were queued, changes of an update group. No call handles all of it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use caracal_model::{Family, Prefix};

use super::parts::{PartedMap, PartedQueue};
use crate::attrs::PathAttrs;
use crate::rib::{Member, RouteChange};
use crate::speaker::shared::{SHARED_ROUTES, SharedUpdate};

#[cfg(test)]
thread_local! {
    /// Values that were put into the map by prefix.
    pub(super) static PUSHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Most changes that wait in shared form, whatever the table's size.
const SHARED_LIMIT: usize = 128 * 1024;

/// Most octets that wait in shared form.
const SHARED_OCTETS: usize = 8 << 20;

/// Longest queue that is walked through as a whole.
const TIDIED: usize = 64 * 1024;

/// Values that wait for the reader, in the order in which their keys were first pushed.
#[derive(Debug)]
pub(super) struct Pending<V> {
    pub(super) values: PartedMap<Prefix, (Round, V)>,
    /// Pending paths with an identifier (RFC 7911).
    pub(super) paths: PartedMap<(Prefix, u32), (Round, V)>,
    /// Keys in the order of their first push; entries of an earlier round are skipped.
    pub(super) order: PartedQueue<(Round, Item)>,
    /// A family's round begins when everything of it follows again: what was pending before is
    /// gone, and nobody has to look for it.
    pub(super) rounds: [Round; 2],
    /// Place of a family's End-of-RIB: in the last round of its own.
    pub(super) ends: [(Round, bool); 2],
    /// Changes of an update group, and what came behind them; newer than all of the above and in
    /// order.
    pub(super) shared: VecDeque<Queued>,
    /// Number of changes in `shared`.
    pub(super) shared_len: usize,
    /// Octets of memory of `shared`.
    shared_octets: usize,
    /// Prefixes of the table, as last heard.
    table: usize,
    /// More waited than the table has: until the reader has read everything, changes are kept by
    /// prefix, where the latest replaces all before it. So what a peer that does not read costs is
    /// bounded by the table, and it is sent the table and no history.
    pub(super) behind: bool,
    /// Families of which everything is being queued again without marks, with End-of-RIB at the
    /// end.
    pub(super) unmarked: BTreeSet<Family>,
    /// The writer is gone: nothing more will come.
    pub(super) closed: bool,
}

/// Counts how often everything of a family has been queued again.
pub(super) type Round = u32;

/// Entry that is not merged into the values by prefix yet.
#[derive(Debug)]
pub(super) enum Queued {
    /// Changes of an update group.
    Shared(Arc<SharedUpdate>, Member),
    /// Changes for this reader alone.
    Changes(Vec<RouteChange>),
    /// A marker with its place among the changes.
    Mark(Mark),
}

/// Marker of the writer between routes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    EndOfRib(Family),
    BeginRefresh(Family),
    EndRefresh(Family),
}

pub(super) const fn slot(family: Family) -> usize {
    match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1,
    }
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
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
    /// All routes of the family have been queued again (RFC 7313, EoRR).
    RefreshEnd(Family),
}

impl<V> Pending<V> {
    pub(super) fn new() -> Self {
        Self {
            values: PartedMap::default(),
            paths: PartedMap::default(),
            order: PartedQueue::default(),
            rounds: [0; 2],
            ends: [(0, false); 2],
            shared: VecDeque::new(),
            shared_len: 0,
            shared_octets: 0,
            table: 0,
            behind: false,
            unmarked: BTreeSet::new(),
            closed: false,
        }
    }

    pub(super) const fn round(&self, prefix: &Prefix) -> Round {
        self.rounds[slot(prefix.family())]
    }

    pub(super) fn push(&mut self, prefix: Prefix, value: V) {
        #[cfg(test)]
        PUSHES.set(PUSHES.get() + 1);
        let round = self.round(&prefix);
        let known = self.values.insert(prefix, (round, value));
        if known.is_none_or(|(known, _)| known != round) {
            self.order.push_back((round, Item::Value(prefix)));
        }
    }

    pub(super) fn push_path(&mut self, prefix: Prefix, path_id: u32, value: V) {
        #[cfg(test)]
        PUSHES.set(PUSHES.get() + 1);
        let round = self.round(&prefix);
        let known = self.paths.insert((prefix, path_id), (round, value));
        if known.is_none_or(|(known, _)| known != round) {
            self.order.push_back((round, Item::Path(prefix, path_id)));
        }
    }

    /// Removes entries of earlier rounds when they are most of a queue that is not long: a peer
    /// that requests refreshes again and again and reads nothing must not make the queue grow. A
    /// long queue is not walked through: its reader is sent no further table until it has read.
    pub(super) fn tidy(&mut self) {
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
    pub(super) fn put_end_of_rib(&mut self, family: Family) {
        let (round, waits) = &mut self.ends[slot(family)];
        *round = round.wrapping_add(1);
        *waits = true;
        let marker = Item::Marker(Marker::EndOfRib(family));
        self.order.push_back((*round, marker));
        self.tidy();
    }

    pub(super) fn mark(&mut self, mark: Mark) {
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
    pub(super) fn holds(&self, round: Round, item: Item) -> bool {
        match item {
            Item::Value(prefix) | Item::Path(prefix, _) => round == self.round(&prefix),
            Item::Marker(Marker::EndOfRib(family)) => self.ends[slot(family)] == (round, true),
            Item::Marker(Marker::RefreshBegin(family) | Marker::RefreshEnd(family)) => {
                round == self.rounds[slot(family)]
            }
        }
    }

    /// Forgets an item of an earlier round, and its value unless there is a later one.
    pub(super) fn pass_over(&mut self, round: Round, item: Item) {
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
    pub(super) fn fold(&mut self) {
        while !self.shared.is_empty() {
            self.fold_first();
        }
    }

    /// Takes the oldest part out.
    pub(super) fn take_first(&mut self) -> Option<Queued> {
        let first = self.shared.pop_front()?;
        self.shared_len -= first.len();
        self.shared_octets -= first.octets();
        Some(first)
    }

    /// Folds the oldest part alone.
    pub(super) fn fold_first(&mut self) {
        let Some(first) = self.take_first() else {
            return;
        };
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

    pub(super) fn change(&mut self, changes: impl IntoIterator<Item = RouteChange>) {
        for change in changes {
            match change.path_id {
                None => self.push(change.prefix, change.attrs),
                Some(path_id) => self.push_path(change.prefix, path_id.get(), change.attrs),
            }
        }
    }

    /// Puts something behind what is shared, in order.
    pub(super) fn queue(&mut self, queued: Queued) {
        let len = queued.len();
        if let Queued::Shared(update, _) = &queued {
            self.table = update.table();
        }
        self.shared_len += len;
        self.shared_octets += queued.octets();
        self.shared.push_back(queued);
        self.behind |= self.shared_len > self.table.clamp(SHARED_ROUTES, SHARED_LIMIT)
            || self.shared_octets > SHARED_OCTETS
            || self.shared.len() > SHARED_LIMIT / 16;
        // Twice what came, and the oldest ones only: a slow reader must not delay the writer.
        let mut rest = if self.behind { 2 * len } else { 0 };
        while rest > 0
            && let Some(first) = self.shared.front()
        {
            rest = rest.saturating_sub(first.len());
            self.fold_first();
        }
    }

    pub(super) fn queue_mark(&mut self, mark: Mark) {
        if self.shared.is_empty() {
            self.mark(mark);
        } else {
            self.queue(Queued::Mark(mark));
        }
    }
}

impl Queued {
    fn octets(&self) -> usize {
        match self {
            Self::Shared(update, _) => update.octets(),
            Self::Changes(changes) => size_of_val(&**changes),
            Self::Mark(_) => 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Shared(update, _) => update.len(),
            Self::Changes(changes) => changes.len(),
            Self::Mark(_) => 1,
        }
    }
}
