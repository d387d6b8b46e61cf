//! The core's turns: long work is done in slices, so that a caller waits for one turn and not for
//! the whole table.
//!
//! A turn processes events, then a slice of the work that is left. Events of a peer whose last
//! messages the table is still working on are parked, in order; when too many are parked, the
//! sessions are not read until there is room.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::{Id, JoinError};

use super::{Core, DECIDE, now};
use crate::rib::{FibExportFilter, PeerId};
use crate::speaker::FibFeed;
use crate::speaker::message::ToCore;
use crate::types::PeerName;
use crate::wire::update::UpdateMessage;

/// Longest time in a turn for events, and again for work. The aim is 20 ms for both; a step is not
/// cut short.
const SLICE: Duration = Duration::from_millis(4);

/// Duration above which a turn counts as slow.
const SLOW: Duration = Duration::from_millis(20);

/// Shortest and longest time of a step of long work, between which the size of steps is adjusted.
const STEP: [Duration; 2] = [Duration::from_micros(250), Duration::from_millis(1)];

/// Destinations in the first step.
pub(super) const FIRST_STEP: usize = 128;
/// Fewest and most destinations in a step.
const STEPS: [usize; 2] = [16, 2048];

/// Prefixes of an UPDATE that are processed at once; longer ones are cut.
const PIECE: usize = 1024;

/// Most parked events. Each is a few kilooctets; beyond, sessions are not read and TCP slows the
/// peers.
const PARKED: usize = 1024;

/// Pending changes of a feed above which no table is dumped into it until its reader has caught up.
/// Enough that the reader is never idle.
const MUCH_TO_READ: usize = 32 * 1024;

/// Interval at which such feeds are checked.
pub(super) const READ_AGAIN: Duration = Duration::from_millis(5);

/// Destinations in one step of a subscription.
const SUBSCRIBED: usize = 1024;

/// An event of a session task.
#[allow(
    clippy::large_enum_variant,
    reason = "the small one is rare, and a box for each message is not"
)]
pub(super) enum SessionEvent {
    /// A message of a session.
    Message(ToCore),
    /// The task has ended; no message of it follows.
    Ended(Result<(Id, ()), JoinError>),
}

/// A feed for the forwarding side that is being filled.
pub(super) struct Subscription {
    pub(super) feed: FibFeed,
    pub(super) policy: FibExportFilter,
    pub(super) at: usize,
    pub(super) answer: oneshot::Sender<FibFeed>,
}

/// Takes the first part of a long UPDATE and leaves the rest in it. `None`: it is not long.
fn first_piece(update: &mut UpdateMessage) -> Option<UpdateMessage> {
    fn split<T>(list: &mut Vec<T>, at: usize) -> Vec<T> {
        let rest = list.split_off(at.min(list.len()));
        std::mem::replace(list, rest)
    }
    if update.withdrawn.len() + update.announced.len() <= PIECE {
        return None;
    }
    let withdrawn = split(&mut update.withdrawn, PIECE);
    let room = PIECE - withdrawn.len();
    let announced = split(&mut update.announced, room);
    Some(UpdateMessage {
        withdrawn_ids: split(&mut update.withdrawn_ids, withdrawn.len()),
        announced_ids: split(&mut update.announced_ids, announced.len()),
        attrs: update.attrs.clone().filter(|_| !announced.is_empty()),
        withdrawn,
        announced,
        end_of_rib: None,
    })
}

impl Core {
    /// True when messages may be taken from the sessions.
    pub(super) fn takes_messages(&self) -> bool {
        self.events.is_empty() && self.parked.len() < PARKED
    }

    /// True when there is something to do although nothing happens.
    pub(super) fn has_work(&self) -> bool {
        self.rib.has_work()
            || !self.events.is_empty()
            || !self.subscriptions.is_empty()
            || !self.parked.is_empty()
    }

    /// The peer of an event, by its present name.
    fn peer_of_event(&self, event: &SessionEvent) -> Option<PeerName> {
        let key = match event {
            SessionEvent::Message(message) => message.peer(),
            SessionEvent::Ended(Ok((id, ()))) => *self.tasks.get(id)?,
            SessionEvent::Ended(Err(failure)) => *self.tasks.get(&failure.id())?,
        };
        self.peers.get(key).map(|peer| peer.name.clone())
    }

    /// Processes events of the sessions, for a slice.
    pub(super) fn process_events(&mut self, turn: Instant) {
        while let Some(event) = self.events.pop_front() {
            if self.rib.has_work() || !self.parked.is_empty() {
                let of = self.peer_of_event(&event);
                let busy = |name: &PeerName| self.rib.is_busy(name);
                let mut parked = self.parked.iter();
                let waits = of.as_ref().is_some_and(busy)
                    || parked.any(|parked| self.peer_of_event(parked) == of);
                if waits {
                    self.parked.push_back(event);
                    continue;
                }
            }
            self.process(event);
            if turn.elapsed() >= SLICE {
                break;
            }
        }
        self.decide();
    }

    fn process(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Message(ToCore::Update { peer, mut update }) => {
                match first_piece(&mut update) {
                    Some(piece) => {
                        let rest = ToCore::Update { peer, update };
                        self.events.push_front(SessionEvent::Message(rest));
                        self.on_message(ToCore::Update {
                            peer,
                            update: piece,
                        });
                    }
                    None => self.on_message(ToCore::Update { peer, update }),
                }
            }
            SessionEvent::Message(message) => self.on_message(message),
            SessionEvent::Ended(ended) => {
                self.decide();
                self.session_ended(ended);
            }
        }
        if self.rib.undecided() >= DECIDE {
            self.decide();
        }
    }

    /// Pauses dumps of the table to peers whose feeds are long.
    fn pause_dumps(&mut self) {
        if self.rib.dumps().next().is_none() && !self.dumps_paused {
            return;
        }
        let much = |id: &PeerId| self.feed(*id).is_some_and(|feed| feed.len() > MUCH_TO_READ);
        let paused: BTreeSet<PeerId> = self.rib.dumps().filter(much).collect();
        self.dumps_paused = !paused.is_empty();
        self.rib.pause_dumps(paused);
    }

    /// Works for a slice.
    pub(super) fn work(&mut self, turn: Instant) {
        self.pause_dumps();
        if !self.has_work() {
            return;
        }
        // Events have had their slice.
        let begin = Instant::now();
        self.process_parked(begin);
        self.fill_subscriptions();
        while self.rib.has_work() && begin.elapsed() < SLICE {
            let step = Instant::now();
            let changes = self.rib.work(now(), self.step);
            self.dispatch(changes);
            self.pause_dumps();
            let [short, long] = STEP;
            let [least, most] = STEPS;
            match step.elapsed() {
                took if took < short => self.step = (self.step * 2).min(most),
                took if took > long => self.step = (self.step / 2).max(least),
                _ => {}
            }
        }
        if turn.elapsed() < SLICE * 2 {
            self.process_events(begin);
        }
        self.answer_waiting();
    }

    /// Processes parked events of peers that the table is no longer busy with.
    fn process_parked(&mut self, begin: Instant) {
        let free = |core: &Self, event: &SessionEvent| {
            let name = core.peer_of_event(event);
            name.is_none_or(|name| !core.rib.is_busy(&name))
        };
        while begin.elapsed() < SLICE {
            // The oldest event of a peer comes first.
            let Some(at) = self.parked.iter().position(|event| free(self, event)) else {
                break;
            };
            let Some(event) = self.parked.remove(at) else {
                break;
            };
            // The rest of a long UPDATE takes its place.
            let events = self.events.len();
            self.process(event);
            if self.events.len() > events
                && let Some(rest) = self.events.pop_front()
            {
                self.parked.insert(at, rest);
            }
        }
        self.decide();
    }

    /// Puts more routes into new feeds of the forwarding side, and gives away those that have all.
    pub(super) fn fill_subscriptions(&mut self) {
        let begin = Instant::now();
        for mut filled in std::mem::take(&mut self.subscriptions) {
            while filled.at < self.rib.slots() && begin.elapsed() < SLICE / 2 {
                let slots = filled.at..filled.at + SUBSCRIBED;
                let routes = self.rib.learned_at(slots);
                let routes = routes.filter_map(|(prefix, route)| {
                    let route = self.rib.forwarded(&prefix, route, &filled.policy)?;
                    Some((prefix, Some(route)))
                });
                filled.feed.extend(routes);
                filled.at += SUBSCRIBED;
            }
            if filled.at < self.rib.slots() {
                self.subscriptions.push(filled);
            } else {
                // Dropped when nobody waits any more.
                drop(filled.answer.send(filled.feed));
            }
        }
    }

    /// Answers when the work is done that has been started until now.
    pub(super) fn when_done(&mut self, answer: oneshot::Sender<()>) {
        self.waiting.push((self.rib.ticket(), answer));
        self.answer_waiting();
    }

    fn answer_waiting(&mut self) {
        for (ticket, answer) in std::mem::take(&mut self.waiting) {
            if self.rib.is_done(ticket) {
                // Dropped when nobody waits any more.
                let _ = answer.send(());
            } else {
                self.waiting.push((ticket, answer));
            }
        }
    }

    /// Notes how long a turn has taken.
    pub(super) fn end_turn(&mut self, turn: Instant) {
        let took = turn.elapsed();
        self.turns.count += 1;
        self.turns.slow += u64::from(took > SLOW);
        self.turns.longest = self.turns.longest.max(took);
    }
}

#[cfg(test)]
mod tests {
    use caracal_model::Prefix;

    use super::*;
    use crate::attrs::PathAttrs;

    #[test]
    fn a_long_update_comes_in_pieces_that_say_the_same() {
        let prefix = |n: u32| Prefix::v4((n << 8).into(), 24);
        let whole = UpdateMessage {
            withdrawn: (0..1500).map(prefix).collect(),
            withdrawn_ids: (0..1500).collect(),
            announced: (2000..4500).map(prefix).collect(),
            announced_ids: (7000..9500).collect(),
            attrs: Some(PathAttrs::default()),
            end_of_rib: None,
        };
        let mut rest = whole.clone();
        let mut pieces = Vec::new();
        while let Some(piece) = first_piece(&mut rest) {
            pieces.push(piece);
        }
        pieces.push(rest);
        let (mut sum, mut sizes) = (UpdateMessage::default(), Vec::new());
        for piece in pieces {
            sizes.push(piece.withdrawn.len() + piece.announced.len());
            assert_eq!(piece.withdrawn.len(), piece.withdrawn_ids.len());
            assert_eq!(piece.announced.len(), piece.announced_ids.len());
            assert!(piece.attrs.is_some() || piece.announced.is_empty());
            sum.withdrawn.extend(piece.withdrawn);
            sum.withdrawn_ids.extend(piece.withdrawn_ids);
            sum.announced.extend(piece.announced);
            sum.announced_ids.extend(piece.announced_ids);
            sum.attrs = sum.attrs.or(piece.attrs);
        }
        assert_eq!(sum, whole);
        assert_eq!(sizes, [1024, 1024, 1024, 928]);
    }
}
