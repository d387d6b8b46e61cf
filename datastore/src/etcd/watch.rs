//! A watch on etcd that cannot die silently: it asks for progress every few seconds and ends with
//! an error when the answer does not come. It never resumes by itself.
//!
//! A gRPC proxy of etcd (`etcd grpc-proxy`) does not answer such questions. Where the other end
//! says that it is one, linearizable reads ask instead: they go the way of the watch, from here to
//! the proxy and over its one connection to etcd.
//!
//! Fragments (`WatchCreateRequest.fragment`) are not asked for: without them etcd keeps all changes
//! of a revision in one answer, which is what [`WatchEvent::Changes`] promises.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use etcd_client::{
    EventType, GetOptions, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use futures_util::Stream;
use tokio::time::{Instant, Interval, MissedTickBehavior, timeout};

use super::connection::{EtcdConnection, Session};
use super::error::EtcdFailure;
use super::read::{prefix_end, text};
use crate::store::{Change, StoreError, WatchEvent};

type Item = Result<WatchEvent, StoreError>;

/// A watch on etcd.
pub struct EtcdWatch {
    events: Pin<Box<dyn Stream<Item = Item> + Send>>,
}

impl std::fmt::Debug for EtcdWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EtcdWatch")
    }
}

impl Stream for EtcdWatch {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        self.events.as_mut().poll_next(cx)
    }
}

impl EtcdWatch {
    /// Opens a watch and waits for etcd's word that it stands.
    pub(super) async fn open(
        connection: Arc<EtcdConnection>,
        session: Session,
        prefix: &str,
        revision: i64,
    ) -> Result<Self, EtcdFailure> {
        // One revision earlier than asked, and what comes from there is dropped: etcd before 3.4.35
        // may lose a deletion at exactly the revision of a compaction. Zero would mean "from now
        // on".
        let start = (revision - 1).max(1);
        let options = WatchOptions::new()
            .with_range(prefix_end(prefix.as_bytes()))
            .with_start_revision(start)
            .with_progress_notify();
        let key = if prefix.is_empty() {
            &[0]
        } else {
            prefix.as_bytes()
        };
        let mut client = session.watch.clone();
        let (requests, mut responses) = client.watch(key, Some(options)).await?.split();
        let first = responses.message().await?.ok_or(EtcdFailure::Ended)?;
        if first.canceled() {
            return Err(EtcdFailure::Store(cancelled(&first, revision, &connection)));
        }
        let mut progress = tokio::time::interval(connection.config.progress_interval);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        progress.reset();
        let live = Live {
            session,
            connection,
            requests,
            responses,
            progress,
            unanswered: None,
            asked_who: false,
            revision,
            key: key.to_vec(),
            by_reads: false,
        };
        let events = futures_util::stream::unfold(Some(live), |live| async move {
            let mut live = live?;
            match live.next().await {
                Ok(event) => Some((Ok(event), Some(live))),
                Err(failure) => Some((Err(live.connection.explain(failure, &live.session)), None)),
            }
        });
        Ok(Self {
            events: Box::pin(events),
        })
    }
}

struct Live {
    /// Keeps the connection open.
    session: Session,
    connection: Arc<EtcdConnection>,
    requests: WatchRequestSender,
    responses: WatchResponseStream,
    progress: Interval,
    /// When the oldest question was asked that nothing was heard since.
    unanswered: Option<Instant>,
    /// The other end has been asked meanwhile whether it is a proxy.
    asked_who: bool,
    /// First revision of the watch; older events are dropped.
    revision: i64,
    key: Vec<u8>,
    /// The other end is a proxy: reads prove that etcd is reached.
    by_reads: bool,
}

impl Live {
    async fn next(&mut self) -> Result<WatchEvent, EtcdFailure> {
        loop {
            tokio::select! {
                // Events that have arrived come before any deadline: the caller may have been away.
                biased;
                response = self.responses.message() => {
                    self.unanswered = None;
                    let response = response?.ok_or(EtcdFailure::Ended)?;
                    if let Some(event) = self.event(response)? {
                        return Ok(event);
                    }
                }
                () = self.session.died() => return Err(EtcdFailure::Ended),
                _ = self.progress.tick() => {
                    if let Some(event) = self.ask().await? {
                        return Ok(event);
                    }
                }
            }
        }
    }

    async fn ask(&mut self) -> Result<Option<WatchEvent>, EtcdFailure> {
        if self.by_reads {
            return self.read().await.map(Some);
        }
        let limit = self.connection.config.progress_timeout;
        if self.unanswered.is_none() {
            self.asked_who = false;
        }
        let silent = self.unanswered.get_or_insert_with(Instant::now).elapsed();
        let left = limit.saturating_sub(silent);
        if left.is_zero() {
            return Err(EtcdFailure::Timeout(limit));
        }
        // Half of the time is left for this question: an end that answers nothing is given up no
        // later because of it.
        let ask_who = silent >= limit / 2 && !std::mem::replace(&mut self.asked_who, true);
        let is_proxy = ask_who
            && timeout(left, self.session.is_proxy())
                .await
                .unwrap_or(false);
        if !is_proxy {
            // The request channel has room for far more questions than fit into the limit.
            self.requests.request_progress().await?;
            return Ok(None);
        }
        self.by_reads = true;
        if self.connection.config.credentials.is_some() {
            tracing::warn!(
                "a gRPC proxy of etcd serves all watches with the token of one client, and events end silently when it expires: use client certificates instead of user name and password"
            );
        }
        tracing::info!(
            endpoints = self.connection.endpoints(),
            "this is a gRPC proxy of etcd, which does not say how far a watch is: reads show that etcd is reached"
        );
        self.read().await.map(Some)
    }

    /// Asks etcd for its revision: of one key, which need not be there.
    async fn read(&mut self) -> Result<WatchEvent, EtcdFailure> {
        let mut kv = self.session.kv.clone();
        let options = GetOptions::new().with_keys_only().with_limit(1);
        let read = async { Ok(kv.get(self.key.clone(), Some(options)).await?) };
        let answer = self.connection.timed(1, read).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok(WatchEvent::Progress(revision))
    }

    fn event(&self, response: WatchResponse) -> Result<Option<WatchEvent>, EtcdFailure> {
        if response.canceled() {
            let error = cancelled(&response, self.revision, &self.connection);
            return Err(EtcdFailure::Store(error));
        }
        if response.created() {
            return Ok(None);
        }
        let changes: Vec<Change> = response
            .events()
            .iter()
            .filter_map(|event| {
                let kv = event.kv()?;
                Some(Change {
                    key: text(kv.key().to_vec()),
                    value: (event.event_type() == EventType::Put).then(|| kv.value().to_vec()),
                    revision: kv.mod_revision(),
                })
            })
            .filter(|change| change.revision >= self.revision)
            .collect();
        if !changes.is_empty() {
            return Ok(Some(WatchEvent::Changes(changes)));
        }
        let revision = response.header().map_or(0, |header| header.revision());
        Ok(Some(WatchEvent::Progress(revision)))
    }
}

fn cancelled(response: &WatchResponse, asked: i64, connection: &EtcdConnection) -> StoreError {
    let reason = response.cancel_reason();
    if response.compact_revision() > 0 || reason.contains("has been compacted") {
        return StoreError::Compacted {
            asked,
            oldest: response.compact_revision() + 1,
        };
    }
    // etcd gives the gRPC status as text here.
    let stale_token = reason.contains("revision in header is old");
    let refusals = ["permission denied", "InvalidArgument", "FailedPrecondition"];
    if !stale_token && refusals.iter().any(|text| reason.contains(text)) {
        return StoreError::Refused(format!("the watch: {reason}"));
    }
    StoreError::Unavailable {
        endpoints: connection.endpoints().to_owned(),
        reason: format!("etcd ended the watch: {reason}"),
    }
}
