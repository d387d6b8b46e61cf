//! Futures that a session waits for. All are cancel-safe, and pending forever without a subject.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::link::Link;
use super::outgoing::Outgoing;

/// A timer that is reset only when its deadline changes: most messages do not change it.
#[derive(Debug)]
pub(super) struct Timer {
    sleep: Pin<Box<Sleep>>,
    due: Option<Instant>,
}

impl Timer {
    /// A timer that is not set.
    pub(super) fn new() -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            due: None,
        }
    }

    /// Sets when it expires; `None`: never.
    pub(super) fn set(&mut self, due: Option<Instant>) {
        if let Some(due) = due.filter(|due| self.due != Some(*due)) {
            self.sleep.as_mut().reset(due.into());
        }
        self.due = due;
    }

    /// Waits until it expires.
    pub(super) async fn expired(&mut self) {
        match self.due {
            Some(_) => self.sleep.as_mut().await,
            None => std::future::pending().await,
        }
    }
}

pub(super) async fn readable(link: Option<&Link>) {
    match link {
        // An error shows itself when we read.
        Some(link) if link.ended.is_none() => {
            let _ = link.stream.readable().await;
        }
        Some(_) | None => std::future::pending().await,
    }
}

pub(super) async fn writable(link: Option<&Link>) {
    match link.filter(|link| link.wants_write()) {
        Some(link) => {
            let _ = link.stream.writable().await;
        }
        None => std::future::pending().await,
    }
}

pub(super) async fn ready(outgoing: Option<&Outgoing>) {
    match outgoing {
        Some(outgoing) => outgoing.feed.ready().await,
        None => std::future::pending().await,
    }
}
