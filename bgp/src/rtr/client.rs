//! The shell of a router's end: one task keeps a connection to a cache, and tells who listens.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use super::RtrCache;
use super::pdu::{decode, encode_error, encode_query};
use super::session::{End, Outcome, Router};
use crate::policy::Roa;

/// Longest time for a connection to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Longest time for which a cache that was asked says nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// Pause after a connection that was lost; it doubles up to the time for another try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Reasons that are logged until the cache is current again.
const REASONS: usize = 8;
/// Octets that are read at once.
const READ: usize = 64 << 10;

/// How the connection to a cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RtrState {
    /// There is none.
    #[default]
    Down,
    /// The cache sends its entries.
    Synchronizing,
    /// What is held is what the cache has.
    Current,
}

/// A cache, as `caracal status` shows it.
#[derive(Clone, Debug, Default)]
pub struct RtrStatus {
    /// State of the connection.
    pub state: RtrState,
    /// Why there is no connection, or no entries.
    pub reason: Option<String>,
    /// Version of the protocol, session and serial number of what is held.
    pub held: Option<(u8, u16, u32)>,
    /// The entries, sorted.
    pub entries: Arc<[Roa]>,
    /// When the cache last said that they are whole.
    pub updated: Option<std::time::Instant>,
}

/// A cache that is followed. Its task ends with the handle.
#[derive(Debug)]
pub struct RtrHandle {
    status: watch::Receiver<RtrStatus>,
    task: AbortHandle,
}

impl Drop for RtrHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RtrHandle {
    /// Begins to follow a cache; `changed` is told each time its entries are others.
    #[must_use]
    pub fn start(name: String, cache: RtrCache, changed: Arc<Notify>) -> Self {
        let (follower, status) = Follower::new(name, cache, changed);
        let task = tokio::spawn(follower.run()).abort_handle();
        Self { status, task }
    }

    /// The entries, sorted.
    #[must_use]
    pub fn entries(&self) -> Arc<[Roa]> {
        Arc::clone(&self.status.borrow().entries)
    }

    /// Where its status can be read.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<RtrStatus> {
        self.status.clone()
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("cannot be connected to: {0}")]
    Connect(io::Error),
    #[error("does not answer within {} s", CONNECT_LIMIT.as_secs())]
    ConnectTimeout,
    #[error("the connection broke: {0}")]
    Failed(#[from] io::Error),
    #[error("the cache closed the connection")]
    Closed,
    #[error("the cache was asked, and says nothing for {} s", SILENCE.as_secs())]
    Silent,
    #[error(transparent)]
    End(#[from] End),
}

struct Follower {
    name: String,
    cache: RtrCache,
    router: Router,
    status: watch::Sender<RtrStatus>,
    changed: Arc<Notify>,
    updated: Option<Instant>,
    pause: Duration,
}

impl Follower {
    fn new(
        name: String,
        cache: RtrCache,
        changed: Arc<Notify>,
    ) -> (Self, watch::Receiver<RtrStatus>) {
        let (status, reader) = watch::channel(RtrStatus::default());
        let follower = Self {
            name,
            cache,
            router: Router::new(),
            status,
            changed,
            updated: None,
            pause: FIRST_PAUSE,
        };
        (follower, reader)
    }

    async fn run(mut self) {
        // Each reason is one line.
        let mut told = BTreeSet::new();
        loop {
            let Err(lost) = self.connection().await;
            let older = matches!(lost, Lost::End(End::Older));
            if self.status.borrow().state == RtrState::Current {
                told.clear();
            }
            let reason = format!("{}:{} {lost}", self.cache.host, self.cache.port);
            if !older && told.len() < REASONS && told.insert(reason.clone()) {
                warn!(
                    cache = self.name,
                    reason, "no connection to the RPKI cache; trying again"
                );
            }
            self.status.send_modify(|status| {
                status.state = RtrState::Down;
                status.reason = Some(reason);
            });
            if !older {
                self.rest().await;
            }
        }
    }

    /// Waits for the next try; entries that become too old meanwhile go.
    async fn rest(&mut self) {
        let retry = self.cache.retry.or(self.router.times().map(|t| t.retry));
        let until = Instant::now() + self.pause.min(retry);
        self.pause = (self.pause * 2).min(retry);
        if let Some(expiry) = self.expiry().filter(|expiry| *expiry <= until) {
            sleep_until(expiry).await;
            self.expire();
        }
        sleep_until(until).await;
    }

    /// For how long what is held is used.
    fn lifetime(&self) -> Duration {
        self.cache.expire.or(self.router.times().map(|t| t.expire))
    }

    /// When what is held is used no more.
    fn expiry(&self) -> Option<Instant> {
        if self.router.entries().is_empty() {
            return None;
        }
        Some(self.updated? + self.lifetime())
    }

    /// After what time a cache is asked again that has said everything: early enough for two tries
    /// before its entries expire, whoever said the times.
    fn refresh(&self) -> Duration {
        let refresh = self
            .cache
            .refresh
            .or(self.router.times().map(|t| t.refresh));
        refresh.min(self.lifetime() / 2)
    }

    fn expire(&mut self) {
        let had = self.router.flush();
        warn!(
            cache = self.name,
            "the cache was not heard for too long; its entries are used no more"
        );
        self.publish(had);
    }

    /// One connection, from dialling to its end.
    async fn connection(&mut self) -> Result<Infallible, Lost> {
        let place = (self.cache.host.as_str(), self.cache.port);
        let stream = match timeout(CONNECT_LIMIT, TcpStream::connect(place)).await {
            Ok(connected) => connected.map_err(Lost::Connect)?,
            Err(_) => return Err(Lost::ConnectTimeout),
        };
        let (read, write) = stream.into_split();
        self.session(read, write).await
    }

    /// A session over a connection, to its end.
    async fn session(
        &mut self,
        mut read: impl AsyncRead + Unpin,
        mut write: impl AsyncWrite + Unpin,
    ) -> Result<Infallible, Lost> {
        let mut received = BytesMut::new();
        let query = self.router.connected();
        self.status.send_modify(|status| {
            status.state = RtrState::Synchronizing;
            status.reason = None;
        });
        let version = self.router.version();
        write.write_all(&encode_query(version, query)).await?;
        let mut heard = Instant::now();
        let mut ask_at = heard;
        loop {
            let due = match self.router.waits() {
                true => heard + SILENCE,
                false => ask_at,
            };
            let expiry = self.expiry();
            let next = expiry.map_or(due, |expiry| expiry.min(due));
            received.reserve(READ);
            tokio::select! {
                count = read.read_buf(&mut received) => {
                    if count? == 0 {
                        return Err(Lost::Closed);
                    }
                    heard = Instant::now();
                }
                () = sleep_until(next) => {
                    let now = Instant::now();
                    if expiry.is_some_and(|expiry| expiry <= now) {
                        self.expire();
                    }
                    if due <= now {
                        if self.router.waits() {
                            return Err(Lost::Silent);
                        }
                        let query = self.router.ask();
                        heard = now;
                        let version = self.router.version();
                        write.write_all(&encode_query(version, query)).await?;
                    }
                }
            }
            if let Some(next) = self.units(&mut received, &mut write).await? {
                ask_at = Instant::now() + next;
            }
        }
    }

    /// Takes the units that are whole. The result: after what time to ask again, where one says so.
    async fn units(
        &mut self,
        received: &mut BytesMut,
        write: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Option<Duration>, Lost> {
        let mut again = None;
        loop {
            let version = self.router.version();
            let unit = match decode(received) {
                Ok(Some(unit)) => unit,
                Ok(None) => return Ok(again),
                Err((fault, octets)) => {
                    // The cache may be gone already; why the connection ends is known.
                    let _told = write
                        .write_all(&encode_error(version, &fault, &octets))
                        .await;
                    return Err(End::from(fault).into());
                }
            };
            let times = self.router.times();
            match self.router.take(&unit) {
                Ok(Outcome::Nothing) => {}
                Ok(Outcome::Ask(query)) => {
                    let version = self.router.version();
                    write.write_all(&encode_query(version, query)).await?;
                }
                Ok(Outcome::Current(differs)) => {
                    self.updated = Some(Instant::now());
                    self.pause = FIRST_PAUSE;
                    again = Some(self.refresh());
                    self.publish(differs);
                }
                Ok(Outcome::NoData) => {
                    again = Some(self.cache.retry.or(times.map(|t| t.retry)));
                    self.status.send_modify(|status| {
                        status.reason = Some("the cache has no entries yet".to_owned());
                    });
                }
                Err(End::Fault(fault)) => {
                    // A mismatch of sessions has emptied it.
                    let is_flushed = self.router.entries().is_empty();
                    self.publish(is_flushed && !self.status.borrow().entries.is_empty());
                    let report = encode_error(version, &fault, &unit.octets);
                    let _told = write.write_all(&report).await;
                    return Err(End::Fault(fault).into());
                }
                Err(end) => return Err(end.into()),
            }
        }
    }

    /// Shows what is held; `differs`: the entries are others than those that were shown.
    fn publish(&mut self, differs: bool) {
        let router = &self.router;
        let held = router.held();
        let version = router.version() as u8;
        let first = self.status.borrow().held.is_none();
        self.status.send_modify(|status| {
            status.held = held.map(|(session, serial)| (version, session, serial));
            status.updated = self
                .updated
                .filter(|_| held.is_some())
                .map(Instant::into_std);
            if held.is_some() {
                status.state = RtrState::Current;
                status.reason = None;
            }
            if differs {
                status.entries = router.entries().iter().copied().collect();
            }
        });
        if first && held.is_some() {
            let entries = router.entries().len();
            info!(
                cache = self.name,
                entries, "the RPKI cache has sent its entries"
            );
        }
        if differs {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
