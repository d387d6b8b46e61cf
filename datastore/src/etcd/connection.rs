//! The one connection of an [`EtcdStore`](super::EtcdStore): opened when first needed, to the first
//! endpoint that answers, and replaced when it breaks.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{
    Certificate, Channel, Client, ClusterClient, ConnectOptions, Identity, KvClient, LeaseClient,
    TlsOptions, WatchClient,
};
use tokio::net::UdpSocket;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;
use tonic::transport::Endpoint;

use super::config::{EtcdConfig, EtcdConfigError};
use super::error::EtcdFailure;
use crate::files::{SMALL_FILE, read_file};
use crate::store::StoreError;

/// The largest answer that is accepted. etcd sends whole revisions, up to 1000 of them in one
/// answer of a watch that catches up, so gRPC's usual 4 MB are not enough. It is a limit, not an
/// allocation.
const MAX_ANSWER_BYTES: usize = 256 << 20;

/// At least this long for one endpoint, even when there are many.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The same for one request.
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// An open connection. Clones share it.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) kv: KvClient,
    pub(super) watch: WatchClient,
    pub(super) lease: LeaseClient,
    cluster: ClusterClient,
    number: u64,
    /// Some call succeeded.
    proven: Arc<AtomicBool>,
    /// Our address on the connection, as far as the kernel says which one it takes.
    source: Option<IpAddr>,
    /// True when the connection is known to be dead: what waits on it need not wait.
    dead: Arc<watch::Sender<bool>>,
}

impl Session {
    /// Notes that a call succeeded.
    pub(super) fn proven(&self) {
        self.proven.store(true, Ordering::Relaxed);
    }

    /// True when the other end says itself that it is a gRPC proxy of etcd: it names itself as the
    /// member, and no cluster. An error and any other answer mean no.
    pub(super) async fn is_proxy(&self) -> bool {
        let members = self.cluster.clone().member_list().await;
        members.is_ok_and(|members| members.header().is_none_or(|h| h.cluster_id() == 0))
    }

    /// Returns once the connection is known to be dead, which may be never.
    pub(super) async fn died(&self) {
        let mut dead = self.dead.subscribe();
        // The sender is in here.
        let _dead = dead.wait_for(|dead| *dead).await;
    }

    /// True when a call succeeded on this connection.
    pub(super) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Slot {
    session: Option<Session>,
    /// Number of the session, so that a broken one is given up once.
    number: u64,
    /// The endpoint to try first.
    endpoint: usize,
}

pub(super) struct EtcdConnection {
    pub(super) config: EtcdConfig,
    urls: Vec<String>,
    text: String,
    slot: Mutex<Slot>,
}

impl std::fmt::Debug for EtcdConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.text)
    }
}

impl EtcdConnection {
    pub(super) fn new(config: EtcdConfig) -> Result<Self, EtcdConfigError> {
        let urls = config.checked_endpoints()?;
        Ok(Self {
            text: urls.join(", "),
            urls,
            config,
            slot: Mutex::default(),
        })
    }

    pub(super) fn endpoints(&self) -> &str {
        &self.text
    }

    pub(super) fn endpoint_count(&self) -> usize {
        self.urls.len()
    }

    /// The error for the caller. With TLS 1.3 a server refuses a client certificate after the
    /// handshake, and its reason is often lost with the connection: say what is likely.
    pub(super) fn explain(&self, failure: EtcdFailure, session: &Session) -> StoreError {
        let suspect =
            failure.is_disconnect() && !session.is_proven() && self.text.contains("https:");
        let mut error = failure.into_store_error(&self.text);
        if let (true, StoreError::Unavailable { reason, .. }) = (suspect, &mut error) {
            reason.push_str(if self.config.cert_file.is_some() {
                " (it may not trust the client certificate)"
            } else {
                " (it may require a client certificate; none is set)"
            });
        }
        error
    }

    /// A request within its time, or a part of it.
    pub(super) async fn timed<T>(
        &self,
        parts: usize,
        call: impl Future<Output = Result<T, EtcdFailure>>,
    ) -> Result<T, EtcdFailure> {
        let whole = self.config.request_timeout;
        let parts = u32::try_from(parts).unwrap_or(u32::MAX);
        let limit = (whole / parts).max(MIN_REQUEST_TIMEOUT.min(whole));
        timeout(limit, call)
            .await
            .unwrap_or(Err(EtcdFailure::Timeout(limit)))
    }

    /// The open connection, or a new one. Those who come while one is being opened wait for it.
    pub(super) async fn session(&self) -> Result<Session, StoreError> {
        let mut slot = self.slot.lock().await;
        if let Some(session) = &slot.session {
            return Ok(session.clone());
        }
        let mut last = None;
        for _ in 0..self.urls.len() {
            let url = &self.urls[slot.endpoint % self.urls.len()];
            match self.connect(url, slot.number + 1).await {
                Ok(session) => {
                    slot.number = session.number;
                    slot.session = Some(session.clone());
                    tracing::debug!(endpoint = %url, "connected to etcd");
                    return Ok(session);
                }
                Err(failure) => {
                    slot.endpoint += 1;
                    let error = failure.into_store_error(url);
                    // A refusal says more than a dead endpoint.
                    if last.as_ref().is_none_or(StoreError::is_transient) {
                        last = Some(error);
                    }
                }
            }
        }
        Err(last.expect("invariant: there is at least one endpoint"))
    }

    /// Gives up a connection, unless it was given up before. The next one goes to the next
    /// endpoint.
    pub(super) async fn broken(&self, session: &Session) {
        let mut slot = self.slot.lock().await;
        if slot.number == session.number && slot.session.take().is_some() {
            slot.endpoint += 1;
        }
    }

    /// This machine has these addresses no more: a connection from one of them is given up, with
    /// all that waits on it. The next one goes to the same endpoint.
    pub(super) async fn addresses_gone(&self, gone: &BTreeSet<IpAddr>) {
        let mut slot = self.slot.lock().await;
        let is_dead = |session: &mut Session| session.source.is_some_and(|s| gone.contains(&s));
        if let Some(session) = slot.session.take_if(is_dead) {
            tracing::info!(local = ?session.source, "connection to etcd ended: its own address is gone");
            session.dead.send_replace(true);
        }
    }

    async fn connect(&self, url: &str, number: u64) -> Result<Session, EtcdFailure> {
        let count = u32::try_from(self.urls.len()).unwrap_or(u32::MAX);
        let limit = (self.config.connect_timeout / count).max(MIN_CONNECT_TIMEOUT);
        timeout(limit, self.open(url, number))
            .await
            .unwrap_or(Err(EtcdFailure::Timeout(limit)))
    }

    async fn open(&self, url: &str, number: u64) -> Result<Session, EtcdFailure> {
        let channel = self
            .endpoint(url)?
            .connect()
            .await
            .map_err(|e| EtcdFailure::Etcd(e.into()))?;
        // A member that lost its leader answers at once instead of serving stale data.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let authenticated = match &self.config.credentials {
            Some(user) => options.clone().with_user(&user.username, &user.password),
            None => options.clone(),
        };
        let open = |options| Client::from_channel(Channel::Tonic(channel.clone()), Some(options));
        let client = match open(authenticated).await {
            Err(e) if e.to_string().contains("authentication is not enabled") => {
                tracing::warn!("etcd does not authenticate; user name and password are not used");
                open(options).await?
            }
            client => client?,
        };
        Ok(Session {
            kv: client
                .kv_client()
                .max_decoding_message_size(MAX_ANSWER_BYTES),
            watch: client
                .watch_client()
                .max_decoding_message_size(MAX_ANSWER_BYTES),
            lease: client.lease_client(),
            cluster: client.cluster_client(),
            number,
            proven: Arc::default(),
            source: source(url).await,
            dead: Arc::new(watch::Sender::new(false)),
        })
    }

    fn endpoint(&self, url: &str) -> Result<Endpoint, EtcdFailure> {
        let transport = |e: tonic::transport::Error| EtcdFailure::Etcd(e.into());
        let endpoint = Endpoint::from_shared(url.to_owned())
            .map_err(transport)?
            // Ours, around the whole of it, is first and says what it waited for.
            .connect_timeout(self.config.connect_timeout * 2)
            .http2_keep_alive_interval(self.config.keep_alive_interval)
            .keep_alive_timeout(self.config.keep_alive_timeout)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if url.starts_with("https:") {
            return endpoint.tls_config(self.tls()?).map_err(transport);
        }
        Ok(endpoint)
    }

    fn tls(&self) -> Result<TlsOptions, EtcdFailure> {
        let mut tls = TlsOptions::new();
        if let Some(file) = self.config.ca_file() {
            tls = tls.ca_certificate(Certificate::from_pem(pem(file)?));
        }
        if let (Some(cert), Some(key)) = (&self.config.cert_file, &self.config.key_file) {
            tls = tls.identity(Identity::from_pem(pem(cert)?, pem(key)?));
        }
        Ok(tls)
    }
}

/// The address that the kernel takes for connections to an endpoint; a UDP socket is told without
/// sending anything.
async fn source(url: &str) -> Option<IpAddr> {
    let (_, authority) = url.split_once("://")?;
    let authority = authority.split('/').next().unwrap_or_default();
    for target in tokio::net::lookup_host(authority).await.ok()? {
        let any: IpAddr = match target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).await.ok()?;
        if socket.connect(target).await.is_ok() {
            return Some(socket.local_addr().ok()?.ip().to_canonical());
        }
    }
    None
}

fn pem(file: &Path) -> Result<Vec<u8>, EtcdFailure> {
    let refuse = |reason: String| {
        EtcdFailure::Store(StoreError::Refused(format!(
            "TLS file {}: {reason}",
            file.display()
        )))
    };
    let text = read_file(file, SMALL_FILE).map_err(|e| refuse(e.to_string()))?;
    if !text.windows(10).any(|window| window == b"-----BEGIN") {
        return Err(refuse("it is not a PEM file".to_owned()));
    }
    Ok(text)
}
