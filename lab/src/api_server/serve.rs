//! Connections, and which part of the server answers a request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use super::answer::{
    Answer, Body, failure_response, json_response, shortened_response, text_response,
};
use super::faults::Fault;
use super::patch::PatchKind;
use super::request::{Request, form};
use super::status::Failure;
use super::tls;
use super::write::Change;
use super::{Api, ApiServerError, ApiServerOptions};

/// The largest body that is read.
const LARGEST: usize = 3 * 1024 * 1024;
/// Limit of a request other than a watch.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn run(options: &ApiServerOptions) -> Result<(), ApiServerError> {
    let api = Arc::new(Api::new(options).await?);
    let io = |what: String| move |error| ApiServerError::Io { what, error };
    let address = options.listen;
    let files = options.tls.as_ref();
    let tls = files
        .map(|(certificate, key)| tls::acceptor(certificate, key))
        .transpose()?;
    let listener = TcpListener::bind(address)
        .await
        .map_err(io(format!("listening at {address}")))?;
    let local = listener
        .local_addr()
        .map_err(io("its address".to_owned()))?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    println!("listening at {scheme}://{local}");
    let mut term = signal(SignalKind::terminate()).map_err(io("SIGTERM".to_owned()))?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    tokio::spawn(connection(Arc::clone(&api), stream, tls.clone()));
                }
                Err(error) => {
                    eprintln!("a connection is lost: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            _ = term.recv() => return Ok(()),
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

async fn connection(api: Arc<Api>, stream: TcpStream, tls: Option<TlsAcceptor>) {
    // Small answers at once; without it they only wait.
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve(api, stream, false).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => {
                let two = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP_2);
                serve(api, stream, two).await;
            }
            Err(error) => eprintln!("TLS: {error}"),
        },
    }
}

/// Serves a connection, in HTTP/2 or 1.1. Its end is the client's business, or a fault on demand.
async fn serve(
    api: Arc<Api>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    two: bool,
) {
    let service = service_fn(move |request| {
        let api = Arc::clone(&api);
        async move { api.answer(request).await }
    });
    let stream = TokioIo::new(stream);
    let _ = match two {
        true => {
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(stream, service)
                .await
        }
        false => {
            http1::Builder::new()
                .serve_connection(stream, service)
                .await
        }
    };
}

impl Api {
    /// Answers one request; an error cuts the connection.
    async fn answer(&self, request: hyper::Request<Incoming>) -> io::Result<Response<Body>> {
        let path = request.uri().path().to_owned();
        if path.starts_with("/test/") {
            return Ok(self.test(&path, request).await);
        }
        let query = request.uri().query().unwrap_or_default();
        let wants_initial = query.contains("sendInitialEvents=true");
        let (delay, fault) = self.faults.matching(request.method(), &path, wants_initial);
        tokio::time::sleep(delay).await;
        let cut = || io::Error::other("cut on demand");
        match fault {
            Some(Fault::Answer(failure) | Fault::NoInitialEvents(failure)) => {
                return Ok(failure_response(&failure));
            }
            Some(Fault::Reset) => return Err(cut()),
            Some(Fault::Lost) => {
                let _ = self.dispatch(request).await;
                return Err(cut());
            }
            Some(Fault::Short(lines)) => {
                let whole = self.dispatch(request).await;
                return Ok(match whole {
                    Ok(whole) => shortened_response(whole, lines),
                    Err(failure) => failure_response(&failure),
                });
            }
            Some(Fault::Latency(_)) | None => {}
        }
        let answer = tokio::time::timeout(PATIENCE, self.dispatch(request)).await;
        let late = || {
            let mut failure = Failure::internal("");
            failure.code = StatusCode::GATEWAY_TIMEOUT;
            failure.reason = "Timeout";
            failure.message =
                "Timeout: request did not complete within the allotted timeout".to_owned();
            Err(failure)
        };
        let answer = answer.unwrap_or_else(|_| late());
        Ok(answer.unwrap_or_else(|failure| failure_response(&failure)))
    }

    async fn dispatch(&self, http: hyper::Request<Incoming>) -> Result<Response<Body>, Failure> {
        let user = self.authenticate(http.headers()).await?;
        let registry = self.cache.registry();
        let Some(request) = Request::parse(&registry, http.method(), http.uri()) else {
            self.authorize_path(&user, http.uri().path())?;
            return self.general(&http);
        };
        let request = request?;
        self.authorize(&user, &request, http.headers()).await?;
        let permit = self.in_flight.try_acquire();
        if permit.is_err() && request.verb != "watch" {
            return Err(Failure::too_many());
        }
        self.execute(request, http).await
    }

    async fn execute(
        &self,
        request: Request,
        http: hyper::Request<Incoming>,
    ) -> Result<Response<Body>, Failure> {
        if request.kind.is_custom() && tokio::time::Instant::now() < self.ready {
            return Err(Failure::initializing());
        }
        let is_list = request.name.is_none() && http.method() == Method::GET;
        let form = form(http.headers(), is_list && request.verb != "watch")?;
        match &request.subresource {
            Some(sub) if has_row(&request, sub) && request.verb == "create" => {
                let body = body(http).await?;
                return Ok(self.subresource(&request, &body).await?.into_response());
            }
            Some(sub) if sub != "status" || !request.kind.has_status => {
                return Err(Failure::no_such_path());
            }
            Some(_) if !["get", "update", "patch"].contains(&request.verb) => {
                return Err(Failure::method());
            }
            _ => {}
        }
        let name = request.name.clone().unwrap_or_default();
        let answer = match request.verb {
            "watch" => return self.watch(&request, form).await,
            "get" => self.get(&request, form).await?,
            "list" => self.list(&request, form).await?,
            "patch" => {
                let media_type = http.headers().get("content-type");
                let media_type = media_type.and_then(|v| v.to_str().ok()).unwrap_or_default();
                let kind = PatchKind::parse(media_type).ok_or_else(|| {
                    Failure::media_type(
                        "application/json-patch+json, application/merge-patch+json, \
                         application/strategic-merge-patch+json",
                    )
                })?;
                let body = body(http).await?;
                let change = Change::Patch(kind, &body);
                self.update(&request, &change, form).await?
            }
            verb => {
                let body = body(http).await?;
                match verb {
                    "create" => self.create(&request, body, form).await?,
                    "update" => self.update(&request, &Change::Whole(&body), form).await?,
                    "delete" => self.delete(&request, &name, &body, form).await?,
                    _ => self.delete_all(&request, &body, form).await?,
                }
            }
        };
        Ok(answer.into_response())
    }

    /// Subresources that are created: tokens and bindings.
    async fn subresource(&self, request: &Request, body: &Value) -> Result<Answer, Failure> {
        let mut answer = if request.kind.plural == "pods" {
            self.bind(request, body).await?
        } else {
            Answer::ok(self.create_token(request, body).await?)
        };
        answer.code = StatusCode::CREATED;
        Ok(answer)
    }

    /// Discovery, health, the version.
    fn general<B>(&self, request: &hyper::Request<B>) -> Result<Response<Body>, Failure> {
        let parts: Vec<&str> = request
            .uri()
            .path()
            .split('/')
            .filter(|p| !p.is_empty())
            .collect();
        let ok = |value: &Value| Ok(json_response(StatusCode::OK, value));
        match &parts[..] {
            ["readyz" | "livez" | "healthz", ..] => Ok(text_response(StatusCode::OK, "ok")),
            ["version"] => ok(&json!({
                "major": "1", "minor": "33", "gitVersion": "v1.33.0-caracal-test",
                "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
                "compiler": "", "platform": "linux/amd64",
            })),
            // kubectl checks what it sends against the schemas that it finds here, which are none.
            ["openapi", "v2"] => Ok(openapi(request)),
            [] => ok(&json!({"paths": ["/api", "/apis", "/livez", "/readyz", "/version"]})),
            path => match self.cache.registry().discover(path) {
                Some(answer) => ok(&answer),
                None => Err(Failure::no_such_path()),
            },
        }
    }

    /// Answers the paths by which tests order faults.
    async fn test(&self, path: &str, request: hyper::Request<Incoming>) -> Response<Body> {
        let method = request.method().clone();
        let answer = match (&method, path) {
            (&Method::GET, "/test/faults") => Ok(self.faults.show()),
            (&Method::DELETE, "/test/faults") => {
                self.faults.clear();
                Ok(Value::Null)
            }
            (&Method::POST, "/test/faults") => match body(request).await {
                Ok(rule) => {
                    let added = self.faults.add(&rule);
                    added.map(|()| Value::Null).map_err(Failure::bad)
                }
                Err(failure) => Err(failure),
            },
            (&Method::POST, "/test/tokens") => match body(request).await {
                Ok(order) => {
                    let limited = self.faults.limit_tokens(&order);
                    limited.map(|()| Value::Null).map_err(Failure::bad)
                }
                Err(failure) => Err(failure),
            },
            (&Method::POST, "/test/watches/expire") => {
                // Watches end with a reason before the lost history ends them without one.
                let message = "too old resource version: on demand";
                self.faults.end_watches(Some(Failure::expired(message)));
                self.cache.forget().await;
                Ok(Value::Null)
            }
            (&Method::POST, "/test/watches/cut") => {
                self.faults.end_watches(None);
                Ok(Value::Null)
            }
            _ => Err(Failure::no_such_path()),
        };
        match answer {
            Ok(value) => Answer::ok(value).into_response(),
            Err(failure) => failure_response(&failure),
        }
    }
}

/// Subresources that are created.
fn has_row(request: &Request, subresource: &str) -> bool {
    request.kind.group.is_empty()
        && [("pods", "binding"), ("serviceaccounts", "token")]
            .contains(&(&*request.kind.plural, subresource))
}

/// An empty document, in the form that was asked for: `swagger: "2.0"` is field 1 in Protobuf.
fn openapi<B>(request: &hyper::Request<B>) -> Response<Body> {
    let accept = request.headers().get("accept");
    let accept = accept.and_then(|v| v.to_str().ok()).unwrap_or_default();
    if accept.contains("protobuf") {
        let mut response = text_response(StatusCode::OK, &b"\x0a\x032.0"[..]);
        let media_type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
        let media_type = hyper::header::HeaderValue::from_static(media_type);
        response.headers_mut().insert("content-type", media_type);
        return response;
    }
    let document =
        json!({"swagger": "2.0", "info": {"title": "test", "version": "v1"}, "paths": {}});
    json_response(StatusCode::OK, &document)
}

/// The body as JSON. An empty one is null.
async fn body(request: hyper::Request<Incoming>) -> Result<Value, Failure> {
    let media_type = request.headers().get("content-type");
    let media_type = media_type.and_then(|v| v.to_str().ok()).unwrap_or_default();
    if media_type.contains("protobuf") || media_type.contains("yaml") {
        return Err(Failure::media_type("application/json"));
    }
    let body = Limited::new(request.into_body(), LARGEST).collect().await;
    let body = body.map_err(|_| Failure::too_large(LARGEST))?.to_bytes();
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&body).map_err(|e| Failure::bad(format!("the body is not JSON: {e}")))
}
