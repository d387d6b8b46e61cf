//! What a session waits for; each waits forever when there is nothing to wait for. All are
//! cancel-safe.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use super::link::Link;
use super::outgoing::Outgoing;

/// A timer that is set anew only when its time is another one: most of what a session hears changes
/// nothing about it.
#[derive(Debug)]
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    due: Option<Instant>,
}

impl Alarm {
    /// Not set.
    pub(super) fn new() -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            due: None,
        }
    }

    /// Rings at this time, or never.
    pub(super) fn set(&mut self, due: Option<Instant>) {
        if let Some(due) = due.filter(|due| self.due != Some(*due)) {
            self.sleep.as_mut().reset(due.into());
        }
        self.due = due;
    }

    pub(super) async fn ring(&mut self) {
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
