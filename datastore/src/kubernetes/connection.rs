//! Connections to an API server: HTTP with rustls, one pool for all requests. Over TLS a server
//! that speaks HTTP/2 has one connection for all watches and requests of a process; others, and
//! those without TLS, have one for each at a time.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ResolvesClientCert};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::access::{Access, Identity, Pem};
use super::config::chain;
use super::kubeconfig;

/// A connection that says nothing for so long is asked whether the other end is there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Time between two such questions; after three without an answer the connection is dead.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// The same in HTTP/2, where the other end may be a proxy that answers TCP for one that is gone.
const PING: Duration = Duration::from_secs(20);
const PING_ANSWER: Duration = Duration::from_secs(10);

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
    connector: HttpsConnector<HttpConnector>,
    /// The connections that are used.
    pool: Mutex<Pool>,
    access: Access,
}

type Pool = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

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
        let builder = HttpsConnectorBuilder::new()
            .with_tls_config(tls(&access)?)
            .https_or_http();
        let connector = match &access.server_name {
            Some(name) => {
                let wrong =
                    |_| format!("tls-server-name {name:?} is neither a name nor an address");
                let name = ServerName::try_from(name.clone()).map_err(wrong)?;
                builder
                    .with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name))
                    .enable_all_versions()
                    .wrap_connector(tcp)
            }
            None => builder.enable_all_versions().wrap_connector(tcp),
        };
        Ok(Self {
            pool: Mutex::new(pool(&connector)),
            connector,
            access,
        })
    }

    /// A request had no answer in time: the next ones get a connection of their own. In HTTP/2 they
    /// would share one of which nobody knows yet that the other end is gone; what goes on over it
    /// does so to its end.
    pub(super) fn renew(&self) {
        *self.pool.lock().unwrap_or_else(PoisonError::into_inner) = pool(&self.connector);
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
        if let Some(header) = self.access.credentials.header()? {
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

    fn newest_pool(&self) -> Pool {
        let pool = self.pool.lock();
        pool.unwrap_or_else(PoisonError::into_inner).clone()
    }
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

fn tls(access: &Access) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match access.any_server {
        true => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(Arc::clone(&provider)))),
        false => builder.with_root_certificates(roots(access.authorities.as_ref())?),
    };
    Ok(match &access.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            builder.with_client_cert_resolver(Arc::new(Renewed::new(identity, provider)?))
        }
    })
}

/// The CA certificates of a file, or those of the system.
fn roots(authorities: Option<&Pem>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(pem) = authorities else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        return match roots.is_empty() {
            true => Err("no CA certificate is given, and the system trusts none".to_owned()),
            false => Ok(roots),
        };
    };
    for certificate in certificates(pem)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("the CA certificate in {}: {error}", pem.name()))?;
    }
    Ok(roots)
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = pem.read()?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| format!("{}: {error}", pem.name()))?;
    match found.is_empty() {
        true => Err(format!("{} has no certificate in PEM", pem.name())),
        false => Ok(found),
    }
}

/// A client certificate that is read again for each connection, as it is renewed in place; where
/// that fails, the first one is shown.
struct Renewed {
    identity: Identity,
    provider: Arc<CryptoProvider>,
    first: Arc<CertifiedKey>,
}

impl Renewed {
    fn new(identity: &Identity, provider: Arc<CryptoProvider>) -> Result<Self, String> {
        Ok(Self {
            first: Arc::new(certified(identity, &provider)?),
            identity: identity.clone(),
            provider,
        })
    }
}

fn certified(identity: &Identity, provider: &CryptoProvider) -> Result<CertifiedKey, String> {
    let certificates = certificates(&identity.certificate)?;
    let wrong = |error: String| format!("the client's key in {}: {error}", identity.key.name());
    let key = PrivateKeyDer::from_pem_slice(&identity.key.read()?);
    let key = key.map_err(|error| wrong(error.to_string()))?;
    CertifiedKey::from_der(certificates, key, provider).map_err(|error| wrong(error.to_string()))
}

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed").finish_non_exhaustive()
    }
}

impl ResolvesClientCert for Renewed {
    fn resolve(&self, _issuers: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let now = certified(&self.identity, &self.provider).map(Arc::new);
        Some(now.unwrap_or_else(|reason| {
            tracing::warn!(%reason, "the client certificate cannot be read again; the first one is used");
            Arc::clone(&self.first)
        }))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Trusts every server (`insecure-skip-tls-verify`); that the other end has its key is verified.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
