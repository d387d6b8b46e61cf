//! Health and metrics over HTTP: `/livez`, `/readyz`, `/metrics`. Reads only; a request changes
//! nothing.
//!
//! Calico's paths `/liveness` and `/readiness` answer as well, so that its probes can stay. A port
//! that is taken is tried again and again: what carries packets does not depend on being looked at.
//!
//! A client that is slow, or that holds many connections, cannot keep others out: a connection
//! carries one request and has little time, and a new one is always taken. When there are too many,
//! one is closed ([`slots`]).

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod exposition;
pub(crate) mod health;
mod slots;
pub(crate) mod stream;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caracal_console::Pacer;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use body::ReplyBody;
use connection::Connection;
use exposition::{MetricFamily, SampleFormat};
use health::HealthReport;
use slots::Slots;
use stream::Stream;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Until the head of its request is there.
    head: Duration,
    /// Until it has its answer and the connection ends.
    life: Duration,
}

/// A scrape of Prometheus has 10 s by default.
const PATIENCE: Patience = Patience {
    head: Duration::from_secs(5),
    life: Duration::from_secs(30),
};
/// Longest head of a request, in octets.
const HEAD_SIZE: usize = 16 * 1024;
/// Longest time for an owner of state to answer; after it, it counts as hung.
const ANSWER: Duration = Duration::from_secs(5);
/// Time between tries to take the port.
const RETRY: Duration = Duration::from_secs(2);

/// Source of health and metrics.
pub(crate) trait Observe: Clone + Send + Sync + 'static {
    /// Whether its tasks turn; when not, a restart may help.
    fn live(&self) -> impl Future<Output = HealthReport> + Send;
    /// Whether it does its work.
    fn ready(&self) -> impl Future<Output = HealthReport> + Send;
    /// Everything that is counted.
    fn metrics(&self) -> impl Future<Output = Vec<MetricFamily>> + Send;
}

/// Waits for the answer of an owner of state, with a time limit.
pub(crate) async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, String> {
    within(ANSWER, answer).await
}

/// The same for an answer that takes longer than others.
pub(crate) async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = T>,
) -> Result<T, String> {
    let answer = tokio::time::timeout(limit, answer).await;
    answer.map_err(|_| format!("its task has not answered in {} s", limit.as_secs()))
}

/// What is answered to a request.
pub(crate) type Reply = Response<ReplyBody>;
/// Answers requests. One type for all ports, so that the program has the protocol once.
pub(crate) type Handler =
    Arc<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync>;

/// Serves health and metrics for ever; takes the port as soon as it is free.
pub(crate) async fn serve(address: SocketAddr, observe: impl Observe) {
    let answers = handler(observe);
    serve_with(address, "health and metrics", Speaks::Plain, answers).await;
}

/// What a port speaks.
#[derive(Clone)]
pub(crate) enum Speaks {
    /// HTTP.
    Plain,
    /// HTTP in TLS, with what is there now; a connection is closed while there is nothing.
    Tls(watch::Receiver<Option<TlsAcceptor>>),
}

/// The same with other answers; `what` they are, for the log.
pub(crate) async fn serve_with(
    address: SocketAddr,
    what: &'static str,
    speaks: Speaks,
    handler: Handler,
) {
    let listener = bind(address, what).await;
    tracing::info!(%address, tls = matches!(speaks, Speaks::Tls(_)), "serving {what}");
    take(listener, speaks, handler, PATIENCE).await;
}

fn handler(observe: impl Observe) -> Handler {
    Arc::new(move |request| {
        let observe = observe.clone();
        Box::pin(async move { answer(&request, &observe).await })
    })
}

/// Takes connections for ever.
async fn take(listener: TcpListener, speaks: Speaks, handler: Handler, patience: Patience) {
    let mut slots = Slots::default();
    let mut handshakes = Pacer::of_handshakes(Instant::now());
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let handler = Arc::clone(&handler);
                let acceptor = match &speaks {
                    Speaks::Plain => None,
                    Speaks::Tls(now) => match now.borrow().clone() {
                        Some(acceptor) if handshakes.take(Instant::now()) => Some(acceptor),
                        _ => continue,
                    },
                };
                slots.free_slot(client.ip());
                let task = tokio::spawn(attend(stream, acceptor, handler, patience));
                slots.add(client.ip(), task.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Converses with a client as long as the connection may live.
async fn attend(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    handler: Handler,
    patience: Patience,
) {
    let stream = match acceptor {
        None => Stream::Plain(stream),
        Some(acceptor) => {
            match tokio::time::timeout(patience.head, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => Stream::Tls(Box::new(stream.into())),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a handshake of TLS failed");
                    return;
                }
                Err(_) => return,
            }
        }
    };
    let (connection, end) = Connection::new(stream.is_certified());
    tokio::select! {
        ended = converse(stream, handler, patience.head, connection) => if let Err(error) = ended {
            tracing::debug!(%error, "an HTTP connection ended");
        },
        () = end.reached(patience.life) => {}
    }
}

async fn bind(address: SocketAddr, what: &str) -> TcpListener {
    let mut is_logged = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if !is_logged => {
                is_logged = true;
                tracing::warn!(
                    %error, %address,
                    "no {what} yet; trying on: does another calico-node or caracal run here?"
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn converse(
    stream: Stream,
    handler: Handler,
    head: Duration,
    connection: Connection,
) -> hyper::Result<()> {
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        let reply = handler(request);
        async move { Ok::<_, Infallible>(reply.await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(HEAD_SIZE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer<B>(request: &Request<B>, observe: &impl Observe) -> Reply {
    const TEXT: &str = "text/plain; charset=utf-8";
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let text = "only GET and HEAD\n".to_owned();
        return respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
    }
    let path = request.uri().path();
    match path {
        "/livez" | "/liveness" | "/healthz" => verdict(&observe.live().await, "live"),
        "/readyz" | "/readiness" => verdict(&observe.ready().await, "ready"),
        "/metrics" | "/metrics/upstream" => {
            let accept = request.headers().get(ACCEPT);
            let form =
                SampleFormat::wanted(accept.and_then(|v| v.to_str().ok()).unwrap_or_default());
            let families = observe.metrics().await;
            let text = match path {
                "/metrics" => exposition::render(&families, form),
                _ => exposition::render(&exposition::upstream(&families), form),
            };
            respond(StatusCode::OK, form.content_type(), text)
        }
        _ => {
            let text = "/livez, /readyz, /metrics and /metrics/upstream are here\n".to_owned();
            respond(StatusCode::NOT_FOUND, TEXT, text)
        }
    }
}

fn verdict(report: &HealthReport, word: &str) -> Reply {
    let status = match report.is_good() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    respond(status, "text/plain; charset=utf-8", report.text(word))
}

pub(crate) fn respond(status: StatusCode, content: &'static str, text: String) -> Reply {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content)
        .header(CACHE_CONTROL, "no-store")
        .body(ReplyBody::Whole(Full::new(Bytes::from(text))))
        .expect("invariant: the parts are constants that HTTP allows")
}

#[cfg(test)]
mod tests;
