//! Connections to an API server: HTTP with rustls, one pool for all requests. Over TLS a server
//! that speaks HTTP/2 has one connection for all watches and requests of a process; others, and
//! those without TLS, have one for each at a time.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::ServerName;

use super::access::{Access, ApiCredentials, bearer};
use super::config::chain;
use super::kubeconfig;
use super::program::ProgramCredential;
use super::tls::{Material, configured};

/// A connection that says nothing for so long is asked whether the other end is there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Time between two such questions; after three without an answer the connection is dead.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// The same in HTTP/2, where the other end may be a proxy that answers TCP for one that is gone. A
/// view is taken for fresh while the answers come: both times, and that of a request which is not
/// answered either, are the time after which a silent view is lagging.
const PING: Duration = Duration::from_secs(10);
const PING_ANSWER: Duration = Duration::from_secs(5);

/// Octets that a stream may hold which nobody has read yet, and all streams of a connection: a
/// watch whose reader is busy takes no room from requests.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;

/// `User-Agent` of all requests.
static AGENT: OnceLock<HeaderValue> = OnceLock::new();

/// What this process calls itself in each request to Kubernetes' API, as the server's audit log
/// and its metrics have it. The first call counts; characters that a header cannot hold make it
/// none.
pub fn introduce_as(user_agent: &str) {
    if let Ok(value) = HeaderValue::from_str(user_agent) {
        let _first = AGENT.set(value);
    }
}

/// An API server, with what is needed to talk to it. A connection is made when there is a request.
pub(super) struct ApiConnection {
    tcp: HttpConnector,
    way: Mutex<Way>,
    access: Access,
    /// What the program gives that is asked for credentials.
    program: Option<ProgramCredential>,
}

type Pool = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// How connections are made now.
struct Way {
    /// What it was made from.
    material: Material,
    connector: HttpsConnector<HttpConnector>,
    /// The connections that are used.
    pool: Pool,
    /// Why what the files hold now is not used, as it was told.
    refused: Option<String>,
}

impl ApiConnection {
    /// Reads what the first connection needs, so that its faults are told at once.
    pub(super) fn new(access: Access, connect: Duration) -> Result<Self, String> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect));
        // A watch is silent for minutes: without these, one whose other end is gone is not noticed.
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let way = Way::new(&access, Material::read(&access, None)?, &tcp)?;
        Ok(Self {
            tcp,
            way: Mutex::new(way),
            program: match &access.credentials {
                ApiCredentials::Program(program) => Some(ProgramCredential::new(program.clone())),
                _ => None,
            },
            access,
        })
    }

    /// Waits for the credentials that a program gives, without a limit. `refused`: the server did
    /// not take those of that number. `None`: no program is asked.
    pub(super) async fn credentials(&self, refused: Option<u64>) -> Result<Option<u64>, String> {
        match &self.program {
            Some(program) => program.ready(&self.access, refused).await.map(Some),
            None => Ok(None),
        }
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let given = self.program.as_ref().and_then(ProgramCredential::get);
        match given.as_ref().and_then(|given| given.token.as_deref()) {
            Some(token) => bearer(token).map(Some),
            None => self.access.credentials.header(),
        }
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request had no answer in time: the next ones get a connection of their own. In HTTP/2 they
    /// would share one of which nobody knows yet that the other end is gone; what goes on over it
    /// does so to its end.
    pub(super) fn renew(&self) {
        let mut way = self.way();
        way.pool = pool(&way.connector);
    }

    /// The server's URL, for messages.
    pub(super) fn server(&self) -> String {
        self.access.server()
    }

    /// A kubeconfig with this way to the server and that token.
    pub(super) fn kubeconfig(&self, token: &str) -> Result<String, String> {
        kubeconfig::written(&self.access, token)
    }

    /// The URL of a path, with its query.
    pub(super) fn url(&self, path: &str) -> String {
        self.access.url(path)
    }

    /// Sends a request with the account's credentials; its answer's head. Nothing is sent twice but
    /// a question whose connection ends before its answer: a server, or what stands before it, may
    /// close a connection while it is asked.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        if let Some(header) = self.authorization()? {
            request.headers_mut().insert(AUTHORIZATION, header);
        }
        let agent = AGENT.get_or_init(|| HeaderValue::from_static("caracal"));
        request.headers_mut().insert(USER_AGENT, agent.clone());
        let again = (request.method() == Method::GET).then(|| request.clone());
        let answer = self.newest_pool().request(request).await;
        let answer = match (answer, again) {
            (Err(error), Some(again)) if !error.is_connect() => {
                self.renew();
                self.newest_pool().request(again).await
            }
            (answer, _) => answer,
        };
        answer.map_err(|error| chain(&error))
    }

    /// The connections for the next request. Once the files of the CA or of the client certificate
    /// have changed, they are new ones: watches over the others go on to their ends.
    fn newest_pool(&self) -> Pool {
        let given = self.program.as_ref().and_then(ProgramCredential::get);
        let mut way = self.way();
        let now = Material::read(&self.access, given.as_deref());
        let renewed = now.and_then(|now| match now == way.material {
            true => Ok(None),
            false => Way::new(&self.access, now, &self.tcp).map(Some),
        });
        match renewed {
            Ok(None) => way.refused = None,
            Ok(Some(renewed)) => {
                // One that a program gave is nothing to tell: each command asks for it.
                if given.is_none() {
                    tracing::info!("certificates were renewed; connections are made with them");
                }
                *way = renewed;
            }
            Err(reason) => way.refuse(reason),
        }
        way.pool.clone()
    }
}

impl Way {
    fn new(access: &Access, material: Material, tcp: &HttpConnector) -> Result<Self, String> {
        let connector = connector(access, &material, tcp)?;
        Ok(Self {
            pool: pool(&connector),
            material,
            connector,
            refused: None,
        })
    }

    /// What the files hold cannot be used, perhaps because they are being written: it stays as it
    /// is. Told once.
    fn refuse(&mut self, reason: String) {
        if self.refused.as_ref() != Some(&reason) {
            tracing::warn!(%reason, "renewed certificates cannot be used; those before are");
            self.refused = Some(reason);
        }
    }
}

fn connector(
    access: &Access,
    material: &Material,
    tcp: &HttpConnector,
) -> Result<HttpsConnector<HttpConnector>, String> {
    let builder = HttpsConnectorBuilder::new()
        .with_tls_config(configured(access, material)?)
        .https_or_http();
    let Some(name) = &access.server_name else {
        return Ok(builder.enable_all_versions().wrap_connector(tcp.clone()));
    };
    let wrong = |_| format!("tls-server-name {name:?} is neither a name nor an address");
    let name = ServerName::try_from(name.clone()).map_err(wrong)?;
    Ok(builder
        .with_server_name_resolver(FixedServerNameResolver::new(name))
        .enable_all_versions()
        .wrap_connector(tcp.clone()))
}

fn pool(connector: &HttpsConnector<HttpConnector>) -> Pool {
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PING_ANSWER)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector.clone())
}

#[cfg(test)]
mod tests;
