//! What a session waits for; each waits forever when there is nothing to wait for. All are cancel-safe.

use std::time::Instant;

use super::link::Link;
use super::outgoing::Outgoing;

pub(super) async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
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
