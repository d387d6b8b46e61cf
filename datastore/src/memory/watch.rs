//! The watch of a [`MemoryStore`](super::MemoryStore).

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::Stream;
use tokio::time::{Instant, Sleep};

use super::fault;
use super::state::MemoryState;
use crate::store::{StoreError, WatchEvent};

/// A watch on a [`MemoryStore`](super::MemoryStore).
#[derive(Debug)]
pub struct MemoryWatch {
    state: Arc<Mutex<MemoryState>>,
    id: u64,
    prefix: String,
    /// The first revision not told yet.
    next: i64,
    cuts: u64,
    quiet: Pin<Box<Sleep>>,
    ended: bool,
}

impl MemoryWatch {
    pub(super) fn open(state: Arc<Mutex<MemoryState>>, prefix: String, revision: i64) -> Self {
        let mut locked = lock(&state);
        let id = locked.next_watcher;
        locked.next_watcher += 1;
        locked.watchers.insert(id, None);
        let cuts = locked.faults.cuts;
        let quiet = Box::pin(tokio::time::sleep(super::PROGRESS_INTERVAL));
        drop(locked);
        Self {
            state,
            id,
            prefix,
            next: revision,
            cuts,
            quiet,
            ended: false,
        }
    }

    /// Next event, if there is one; `None` = wait.
    fn next_event(&mut self, cx: &Context<'_>) -> Option<Result<WatchEvent, StoreError>> {
        let state = Arc::clone(&self.state);
        let mut state = lock(&state);
        state.watchers.insert(self.id, Some(cx.waker().clone()));
        if state.faults.cuts != self.cuts {
            return Some(Err(fault::unavailable(&state.faults.cut_reason)));
        }
        if state.faults.stalled {
            return None;
        }
        if self.next <= state.compacted {
            return Some(Err(StoreError::Compacted {
                asked: self.next,
                oldest: state.compacted + 1,
            }));
        }
        let changes: Vec<_> = state
            .history
            .range(self.next..)
            .flat_map(|(_, changes)| changes)
            .filter(|change| change.key.starts_with(&self.prefix))
            .cloned()
            .collect();
        self.next = self.next.max(state.revision + 1);
        (!changes.is_empty()).then_some(Ok(WatchEvent::Changes(changes)))
    }

    fn progress(&self) -> Option<(WatchEvent, Instant)> {
        let state = lock(&self.state);
        let event = WatchEvent::Progress(state.revision);
        (!state.faults.stalled).then(|| (event, Instant::now() + super::PROGRESS_INTERVAL))
    }
}

fn lock(state: &Mutex<MemoryState>) -> std::sync::MutexGuard<'_, MemoryState> {
    state
        .lock()
        .expect("invariant: no code panics while it holds the lock")
}

impl Stream for MemoryWatch {
    type Item = Result<WatchEvent, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(event) = self.next_event(cx) {
            self.ended = event.is_err();
            let next = Instant::now() + super::PROGRESS_INTERVAL;
            self.quiet.as_mut().reset(next);
            return Poll::Ready(Some(event));
        }
        if self.quiet.as_mut().poll(cx).is_ready()
            && let Some((event, next)) = self.progress()
        {
            self.quiet.as_mut().reset(next);
            return Poll::Ready(Some(Ok(event)));
        }
        Poll::Pending
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        lock(&self.state).watchers.remove(&self.id);
    }
}
