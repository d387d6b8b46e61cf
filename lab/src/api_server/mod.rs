//! A strict API server for tests: what Caracal's client, `kubectl` and the lab's clusters need of
//! the Kubernetes API, over a real etcd. **It is a test tool**: never a part of `caracal` (the
//! program `caracal-test-api-server` is built with the tests), and no API server for anything else.
//!
//! It has: discovery; create, read, update, patch (JSON, merge, strategic) and delete with
//! optimistic concurrency by `resourceVersion` (etcd's revision), preconditions, finalizers and the
//! `status` subresource; lists with `limit`, `continue`, selectors, `resourceVersionMatch` and
//! metadata alone; watches from a revision, with bookmarks, initial events and 410; custom
//! resources from applied definitions with structural schemas; warnings and strict field
//! validation; accounts by a token file and by tokens of service accounts, with rights by roles and
//! bindings; a limit of requests in flight; faults on demand (the module `faults`).
//!
//! It has not: Protobuf; server-side apply and `managedFields`; aggregated discovery; fields of the
//! core kinds are kept as they are sent, with few defaults and rules; of the rules in schemas only
//! `self == oldSelf`; conversion between versions other than by name; admission by webhooks;
//! quotas; and no controllers: nothing schedules pods, makes EndpointSlices, or follows owner
//! references. A namespace or a definition is deleted with all that belongs to it, at once, and a
//! definition is in force at once.

mod accounts;
mod answer;
mod audit;
mod builtin;
mod cache;
mod faults;
mod first;
mod kinds;
mod metadata;
mod objects;
mod patch;
mod read;
mod request;
mod schema;
mod selector;
mod serve;
mod status;
mod tls;
mod watching;
mod write;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use caracal_datastore::{EtcdConfig, EtcdConfigError, EtcdStore, StoreError};
use caracal_model::Timestamp;
use tokio::sync::Semaphore;

use self::accounts::Accounts;
use self::audit::AuditLog;
use self::cache::Cache;
use self::faults::Faults;
pub use self::first::DEFINITION_FILES;

/// Options of the server.
#[derive(Clone, Debug)]
pub struct ApiServerOptions {
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// Where its etcd is.
    pub etcd: Vec<String>,
    /// Certificate and key, in PEM. Without them it speaks plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Tokens and their users, one `TOKEN,USER,UID,"GROUP,GROUP"` a line. Without it everybody may
    /// do everything.
    pub tokens: Option<PathBuf>,
    /// Where every right that an account asks for is written down.
    pub audit_log: Option<PathBuf>,
    /// Apply the definitions of `deploy/crds` at the start?
    pub has_definitions: bool,
    /// A JSON list of objects that are made at the start, where they are not there already.
    pub objects: Option<PathBuf>,
    /// Requests other than watches that are answered at once; the next one gets 429.
    pub in_flight: usize,
    /// Events that are kept for watches.
    pub history: usize,
    /// Between two bookmarks of a watch.
    pub bookmarks: Duration,
    /// Time after the start for which custom resources are refused.
    pub initializing: Duration,
}

/// Why the server ends.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// The address of etcd.
    #[error(transparent)]
    Config(#[from] EtcdConfigError),
    /// etcd cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address is not free, or no runtime.
    #[error("{what}: {error}")]
    Io {
        /// Operation that failed.
        what: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A certificate that cannot be used.
    #[error("{}: {reason}", path.display())]
    Tls {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The token file, or the first objects.
    #[error("the start failed: {0}")]
    Start(String),
}

/// The server: what all requests share.
#[derive(Debug)]
struct Api {
    store: EtcdStore,
    cache: Cache,
    faults: Faults,
    accounts: Accounts,
    audit: AuditLog,
    in_flight: Semaphore,
    bookmarks: Duration,
    /// Custom resources are refused until then.
    ready: tokio::time::Instant,
}

impl Api {
    async fn new(options: &ApiServerOptions) -> Result<Self, ApiServerError> {
        let config = EtcdConfig {
            endpoints: options.etcd.clone(),
            ..EtcdConfig::default()
        };
        let store = EtcdStore::new(config)?;
        let cache = Cache::start(store.clone(), options.history).await?;
        let api = Self {
            store,
            cache,
            faults: Faults::new(),
            accounts: Accounts::read(options.tokens.as_deref()).map_err(ApiServerError::Start)?,
            audit: AuditLog::open(options.audit_log.as_deref()).map_err(ApiServerError::Start)?,
            in_flight: Semaphore::new(options.in_flight),
            bookmarks: options.bookmarks,
            ready: tokio::time::Instant::now() + options.initializing,
        };
        api.first_objects(options)
            .await
            .map_err(|failure| ApiServerError::Start(failure.message))?;
        Ok(api)
    }

    /// The time, as objects carry it.
    fn now(&self) -> String {
        self.later(None)
    }

    /// Time after so many seconds, as text.
    #[allow(clippy::unused_self, reason = "one clock for all of it")]
    fn later(&self, seconds: Option<i64>) -> String {
        let seconds = u64::try_from(seconds.unwrap_or(0)).unwrap_or(0);
        let at = SystemTime::now() + Duration::from_secs(seconds);
        Timestamp::from(at).rfc3339()
    }
}

/// Runs the server until it is told to end (SIGTERM, SIGINT).
///
/// # Errors
/// [`ApiServerError`].
pub fn run_api_server(options: &ApiServerOptions) -> Result<(), ApiServerError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |error| ApiServerError::Io { what, error }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(io("a runtime"))?;
    runtime.block_on(serve::run(options))
}
