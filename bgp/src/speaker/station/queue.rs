//! Send queue towards a station. The writer never waits; beyond the limit the queue is dropped
//! together with the connection.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

#[derive(Debug)]
pub(in crate::speaker) struct Queue {
    inner: Mutex<Inner>,
    limit: usize,
    wake_up: Notify,
    overrun: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Bytes>,
    octets: usize,
    /// Something was taken since the last [`Next::Drained`].
    taken: bool,
    closed: bool,
    overrun: bool,
}

/// Next action of the task that writes to the station.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::speaker) enum Next {
    /// Octets to write to the station.
    Octets(Bytes),
    /// All is written. Comes once after each run of octets.
    Drained,
    /// All is written and there will be no more.
    Closed,
}

impl Queue {
    pub(in crate::speaker) fn new(limit: usize) -> Self {
        Self {
            inner: Mutex::default(),
            limit,
            wake_up: Notify::new(),
            overrun: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change leaves it whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends octets. `false`: there is no room, and the connection ends.
    pub(in crate::speaker) fn push(&self, octets: Bytes) -> bool {
        let mut inner = self.lock();
        if inner.overrun {
            return false;
        }
        if inner.octets + octets.len() > self.limit {
            inner.overrun = true;
            inner.waiting.clear();
            inner.octets = 0;
            drop(inner);
            self.overrun.notify_one();
            return false;
        }
        inner.octets += octets.len();
        inner.waiting.push_back(octets);
        drop(inner);
        self.wake_up.notify_one();
        true
    }

    /// Has [`Next::Drained`] come once more, although there may have been nothing to write.
    pub(in crate::speaker) fn ask_again(&self) {
        self.lock().taken = true;
        self.wake_up.notify_one();
    }

    /// No more will come.
    pub(in crate::speaker) fn close(&self) {
        self.lock().closed = true;
        self.wake_up.notify_one();
    }

    /// Octets that wait to be written.
    pub(in crate::speaker) fn octets(&self) -> usize {
        self.lock().octets
    }

    /// Waits until there was no room.
    pub(in crate::speaker) async fn overrun(&self) {
        while !self.lock().overrun {
            self.overrun.notified().await;
        }
    }

    /// Waits for what is next.
    pub(in crate::speaker) async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.poll() {
                return next;
            }
            self.wake_up.notified().await;
        }
    }

    fn poll(&self) -> Option<Next> {
        let mut inner = self.lock();
        if let Some(octets) = inner.waiting.pop_front() {
            inner.octets -= octets.len();
            inner.taken = true;
            return Some(Next::Octets(octets));
        }
        if inner.closed {
            return Some(Next::Closed);
        }
        std::mem::take(&mut inner.taken).then_some(Next::Drained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn octets_come_in_order_and_their_end_is_told_once() {
        let queue = Queue::new(10);
        assert!(queue.push(Bytes::from_static(b"ab")));
        assert!(queue.push(Bytes::from_static(b"c")));
        assert_eq!(queue.octets(), 3);
        assert_eq!(queue.next().await, Next::Octets(Bytes::from_static(b"ab")));
        assert_eq!(queue.next().await, Next::Octets(Bytes::from_static(b"c")));
        assert_eq!(queue.next().await, Next::Drained);
        assert_eq!(queue.poll(), None);
        queue.ask_again();
        assert_eq!(queue.next().await, Next::Drained);
        assert_eq!(queue.poll(), None);
        queue.close();
        assert_eq!(queue.next().await, Next::Closed);
    }

    #[tokio::test]
    async fn without_room_everything_goes() {
        let queue = Queue::new(4);
        assert!(queue.push(Bytes::from_static(b"abcd")));
        assert!(!queue.push(Bytes::from_static(b"e")));
        queue.overrun().await;
        assert_eq!(queue.octets(), 0);
        assert!(!queue.push(Bytes::from_static(b"f")));
    }
}
