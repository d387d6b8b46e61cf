//! History of a peer for users: errors with their times, the session's ends and OPENs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::bmp::MonitoredSession;
use crate::opens::SessionOpens;
use crate::speaker::counters::{Counters, MessageDirection};
use crate::speaker::status::PastError;

/// Seconds of Unix time.
pub(super) fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |age| age.as_secs())
}

/// The ends and OPENs of a session.
#[derive(Clone, Debug)]
pub(super) struct Established {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) opens: SessionOpens,
}

/// The history of one peer. It outlives sessions and their tasks.
#[derive(Debug)]
pub(super) struct History {
    pub(super) counters: Arc<Counters>,
    /// Without a session since then; `None` with one.
    down_since: Option<Instant>,
    /// Why the last session ended, or the last attempt failed.
    pub(super) last_error: Option<PastError>,
    /// The last NOTIFICATION to the peer.
    pub(super) sent: Option<PastError>,
    /// The last NOTIFICATION from the peer.
    pub(super) received: Option<PastError>,
    /// The session, or the last one.
    pub(super) session: Option<Established>,
}

fn error(text: String) -> PastError {
    PastError {
        at: unix(SystemTime::now()),
        text,
    }
}

impl History {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            counters: Arc::default(),
            down_since: Some(now),
            last_error: None,
            sent: None,
            received: None,
            session: None,
        }
    }

    /// The state of the peer has changed.
    pub(super) fn enter(&mut self, now: Instant, established: bool) {
        self.down_since = match (established, self.down_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now)),
        };
    }

    pub(super) fn established(&mut self, session: &MonitoredSession) {
        self.session = Some(Established {
            local: session.local,
            remote: session.remote,
            opens: session.opens.clone(),
        });
    }

    /// A session has ended, or an attempt has failed.
    pub(super) fn failed(&mut self, reason: &str) {
        self.last_error = Some(error(reason.to_owned()));
    }

    /// A NOTIFICATION has passed.
    pub(super) fn notified(&mut self, way: MessageDirection, text: String) {
        match way {
            MessageDirection::Sent => self.sent = Some(error(text)),
            MessageDirection::Received => self.received = Some(error(text)),
        }
    }

    /// For how long there has been no session; `None` while there is one.
    pub(super) fn down_for(&self, now: Instant) -> Option<Duration> {
        let since = self.down_since?;
        Some(now.saturating_duration_since(since))
    }
}
