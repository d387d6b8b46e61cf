//! Requests to Kubernetes' API, one at a time: what went wrong is told by what can be done about
//! it. Nothing is sent twice but what was throttled, which the server did not carry out.
//!
//! What forwarding waits for (lists and watches of what is followed, what comes before them, the
//! probe) is sent at once; other requests wait for their turn where the process has a limit
//! ([`RequestBudget`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout, timeout_at};

use super::budget::RequestBudget;
use super::config::{KubernetesConfig, KubernetesConfigError, chain};
use super::connection::ApiConnection;
use super::lines::Lines;
use super::mapping::ApiGroup;
use super::rights;
use super::services::ServiceUse;
use crate::store::StoreError;

/// The longest time that a throttled request waits, all its tries together.
const THROTTLED: Duration = Duration::from_secs(10);

/// Wait when the server does not say how long.
const RETRY_AFTER: Duration = Duration::from_secs(1);

const JSON: &str = "application/json";

/// Most octets of a body that says why something is refused.
const MOST_SAID: usize = 300;

/// Why a request has no answer that can be used.
#[derive(Debug)]
pub(super) enum ApiFailure {
    /// There is no such object.
    NotFound,
    /// It exists, or it was changed since.
    Conflict,
    /// The revision is too old.
    Gone,
    /// The server does not do it, and would not later.
    Refused(String),
    /// It does not know who we are.
    Unknown(String),
    /// No connection, or no answer, or the server cannot now.
    Unavailable(String),
}

impl ApiFailure {
    pub(super) fn into_error(self, server: &str, what: &str) -> StoreError {
        match self {
            Self::Unavailable(reason) => StoreError::Unavailable {
                endpoints: server.to_owned(),
                reason,
            },
            Self::Gone => StoreError::Compacted {
                asked: 0,
                oldest: 0,
            },
            Self::Refused(reason) | Self::Unknown(reason) => StoreError::Refused(reason),
            Self::NotFound => StoreError::Refused(format!("{what} is not there")),
            Self::Conflict => StoreError::Refused(format!("{what} was changed meanwhile")),
        }
    }
}

/// A connection to Kubernetes' API, made when it is first used.
pub(super) struct Api {
    pub(super) config: KubernetesConfig,
    pub(super) services: ServiceUse,
    budget: RequestBudget,
    connected: OnceCell<Connected>,
}

struct Connected {
    connection: ApiConnection,
    server: String,
    group: OnceCell<ApiGroup>,
    /// That the cluster's identity cannot be read was told.
    unknown: AtomicBool,
    /// The cluster that was listed last; zero when unknown.
    listed: AtomicU64,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.config.fmt(f)
    }
}

impl Api {
    pub(super) fn new(config: KubernetesConfig) -> Self {
        Self {
            services: ServiceUse::new(config.follow_services),
            budget: RequestBudget::new(config.requests_per_second),
            config,
            connected: OnceCell::new(),
        }
    }

    async fn connected(&self) -> Result<&Connected, ApiFailure> {
        let connect = async || {
            let access = self.config.access();
            let access = access.map_err(|error| match error {
                KubernetesConfigError::Absent(_) => ApiFailure::Unavailable(error.to_string()),
                error => ApiFailure::Refused(error.to_string()),
            })?;
            let connection = ApiConnection::new(access, self.config.request_timeout);
            let connection = connection.map_err(ApiFailure::Refused)?;
            Ok(Connected {
                server: connection.server(),
                connection,
                group: OnceCell::new(),
                unknown: AtomicBool::new(false),
                listed: AtomicU64::new(0),
            })
        };
        self.connected.get_or_try_init(connect).await
    }

    /// A kubeconfig with this way to the server and that token.
    pub(super) async fn kubeconfig(&self, token: &str) -> Result<String, ApiFailure> {
        let connected = self.connected().await?;
        let text = connected.connection.kubeconfig(token);
        text.map_err(ApiFailure::Refused)
    }

    /// The server's address, for messages.
    pub(super) fn server(&self) -> &str {
        let connected = self.connected.get().map(|c| c.server.as_str());
        let given = self.config.endpoint.as_deref();
        connected.or(given).unwrap_or("Kubernetes' API")
    }

    /// Which of Calico's API groups is used: the newer one only where it is served and the older is
    /// not.
    pub(super) async fn group(&self) -> Result<ApiGroup, ApiFailure> {
        if let Some(group) = self.config.group {
            return Ok(group);
        }
        let connected = self.connected().await?;
        let discover = async || {
            let groups = self.read_at_once("/apis", JSON).await?;
            let list = groups["groups"].as_array().cloned().unwrap_or_default();
            let serves = |name: &str| list.iter().any(|group| group["name"] == name);
            let newer = serves("projectcalico.org") && !serves("crd.projectcalico.org");
            Ok(match newer {
                true => ApiGroup::V3,
                false => ApiGroup::V1,
            })
        };
        connected.group.get_or_try_init(discover).await.copied()
    }

    /// Which cluster is listed now, by the identity of its namespace `kube-system`; zero when that
    /// may not be read. An API server that has lost its etcd makes another namespace.
    pub(super) async fn cluster(&self) -> Result<u64, ApiFailure> {
        let connected = self.connected().await?;
        let cluster = self.read_cluster(connected).await?;
        connected.listed.store(cluster, Ordering::Relaxed);
        Ok(cluster)
    }

    /// True when another cluster answers than the one that was listed.
    pub(super) async fn is_another_cluster(&self) -> Result<bool, ApiFailure> {
        let connected = self.connected().await?;
        let is = self.read_cluster(connected).await?;
        let was = connected.listed.load(Ordering::Relaxed);
        Ok(is != 0 && was != 0 && is != was)
    }

    async fn read_cluster(&self, connected: &Connected) -> Result<u64, ApiFailure> {
        let path = "/api/v1/namespaces/kube-system";
        match self.read_at_once(path, JSON).await {
            Ok(namespace) => {
                let uid = namespace["metadata"]["uid"].as_str().unwrap_or_default();
                let digits = uid.chars().filter(char::is_ascii_hexdigit).take(16);
                Ok(u64::from_str_radix(&digits.collect::<String>(), 16).unwrap_or_default())
            }
            Err(ApiFailure::Unavailable(reason)) => Err(ApiFailure::Unavailable(reason)),
            Err(failure) => {
                if !connected.unknown.swap(true, Ordering::Relaxed) {
                    let error = failure.into_error(self.server(), "the namespace kube-system");
                    tracing::warn!(
                        %error, "which cluster this is cannot be read: another one at this address would not be noticed"
                    );
                }
                Ok(0)
            }
        }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, ApiFailure> {
        self.call(Method::GET, path, JSON, None).await
    }

    /// A request with a body of that type, and its answer, when it is its turn.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        content: &'static str,
        body: Option<&Value>,
    ) -> Result<Value, ApiFailure> {
        self.budget.turn().await;
        self.answer(method, path, content, body, JSON).await
    }

    /// Reads in a form, at once.
    pub(super) async fn read_at_once(
        &self,
        path: &str,
        accept: &'static str,
    ) -> Result<Value, ApiFailure> {
        self.budget.count();
        self.answer(Method::GET, path, JSON, None, accept).await
    }

    /// Waits for the credentials of a program, before the time of a request begins. `refused`: the
    /// server did not take those of that number. `None`: no program is asked.
    async fn credentials(&self, refused: Option<u64>) -> Result<Option<u64>, ApiFailure> {
        let connected = self.connected().await?;
        let ready = connected.connection.credentials(refused).await;
        ready.map_err(ApiFailure::Refused)
    }

    /// Sends a request by `send`. When the server does not take the credentials of a program, that
    /// is asked for others, and the request is sent once more: it was not carried out.
    async fn with_credentials<T, F: Future<Output = Result<T, ApiFailure>>>(
        &self,
        send: impl Fn() -> F,
    ) -> Result<T, ApiFailure> {
        let given = self.credentials(None).await?;
        match send().await {
            Err(ApiFailure::Unknown(_)) if given.is_some() => {
                self.credentials(given).await?;
                send().await
            }
            answer => answer,
        }
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        content: &'static str,
        body: Option<&Value>,
        accept: &'static str,
    ) -> Result<Value, ApiFailure> {
        let ask = || self.answer_in_time(method.clone(), path, content, body, accept);
        self.with_credentials(ask).await
    }

    async fn answer_in_time(
        &self,
        method: Method,
        path: &str,
        content: &'static str,
        body: Option<&Value>,
        accept: &'static str,
    ) -> Result<Value, ApiFailure> {
        let limit = self.config.request_timeout;
        let call = async {
            let response = self.send(method, path, content, body, accept).await?;
            let octets = response.into_body().collect().await;
            let octets = octets.map_err(|error| ApiFailure::Unavailable(chain(&error)))?;
            serde_json::from_slice(&octets.to_bytes()).map_err(|error| {
                ApiFailure::Unavailable(format!("an answer that is no JSON: {error}"))
            })
        };
        // A throttled request may wait longer than one that is not answered.
        timeout(limit + THROTTLED, call).await.unwrap_or_else(|_| {
            let reason = format!("no answer within {} s", limit.as_secs());
            Err(ApiFailure::Unavailable(reason))
        })
    }

    /// The lines of a watch, as they come. It is opened at once.
    pub(super) async fn watch(
        &self,
        path: &str,
        accept: &'static str,
    ) -> Result<Lines, ApiFailure> {
        self.budget.count();
        let open = || self.send(Method::GET, path, JSON, None, accept);
        Ok(Lines::of(self.with_credentials(open).await?))
    }

    /// The head of a successful answer; its body follows as it comes.
    async fn send(
        &self,
        method: Method,
        path: &str,
        content: &'static str,
        body: Option<&Value>,
        accept: &'static str,
    ) -> Result<Response<Incoming>, ApiFailure> {
        let connected = self.connected().await?;
        let patience = Instant::now() + THROTTLED;
        loop {
            let octets = body.map(|body| body.to_string().into_bytes());
            let request = Request::builder()
                .method(method.clone())
                .uri(connected.connection.url(path))
                .header("accept", accept)
                .header("content-type", content)
                .body(Full::new(Bytes::from(octets.unwrap_or_default())))
                .map_err(|error| ApiFailure::Refused(error.to_string()))?;
            let limit = Instant::now() + self.config.request_timeout;
            let response = timeout_at(limit, connected.connection.send(request)).await;
            let response = response
                .map_err(|_| {
                    connected.connection.renew();
                    let seconds = self.config.request_timeout.as_secs();
                    ApiFailure::Unavailable(format!("no answer within {seconds} s"))
                })?
                .map_err(ApiFailure::Unavailable)?;
            if response.status().is_success() {
                return Ok(response);
            }
            let pause = (response.status().as_u16() == 429).then(|| retry_after(&response));
            if let Some(pause) = pause.filter(|pause| Instant::now() + *pause < patience) {
                tokio::time::sleep(pause).await;
                continue;
            }
            return Err(failure(response).await);
        }
    }

    /// Removes an object, if it is this one.
    pub(super) async fn delete(&self, path: &str, preconditions: Value) -> Result<(), ApiFailure> {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions,
        });
        let answer = self.call(Method::DELETE, path, JSON, Some(&options)).await;
        answer.map(drop)
    }
}

fn retry_after(response: &Response<Incoming>) -> Duration {
    let header = response.headers().get("retry-after");
    let seconds = header.and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.map_or(RETRY_AFTER, Duration::from_secs)
}

/// The failure that a refusal stands for.
async fn failure(response: Response<Incoming>) -> ApiFailure {
    let code = response.status().as_u16();
    let octets = response.into_body().collect().await;
    let octets = octets.map(|body| body.to_bytes()).unwrap_or_default();
    let status: Value = serde_json::from_slice(&octets).unwrap_or_default();
    judge(code, &status, &String::from_utf8_lossy(&octets))
}

/// The failure that a status stands for; `text` is the body where it holds no status.
pub(super) fn judge(code: u16, status: &Value, text: &str) -> ApiFailure {
    let said = match status["message"].as_str() {
        Some(message) => message.to_owned(),
        None => text.trim().chars().take(MOST_SAID).collect(),
    };
    let replaced = || {
        let causes = status["details"]["causes"].as_array();
        causes.is_some_and(|causes| causes.iter().any(|cause| cause["field"] == "metadata.uid"))
    };
    match code {
        404 => ApiFailure::NotFound,
        409 => ApiFailure::Conflict,
        410 => ApiFailure::Gone,
        // An object of that name that is another one.
        422 if replaced() => ApiFailure::NotFound,
        401 => ApiFailure::Unknown(format!(
            "the API server does not know these credentials (401): {said}"
        )),
        403 => {
            let said = rights::explained(&said);
            ApiFailure::Refused(format!("a right is missing (403): {said}"))
        }
        400 | 405 | 406 | 413 | 415 | 422 => ApiFailure::Refused(format!("{said} ({code})")),
        429 => ApiFailure::Unavailable(format!("the API server has too much to do (429): {said}")),
        500 if said.contains("request is too large") => ApiFailure::Refused(said),
        _ => ApiFailure::Unavailable(format!("{said} ({code})")),
    }
}
