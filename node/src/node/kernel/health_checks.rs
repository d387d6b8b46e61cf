//! Tells load balancers how many endpoints of a Service are on this node, at the Service's
//! `healthCheckNodePort`: those that send clients to nodes of a Service with policy `Local`. The
//! answers are kube-proxy's. And whether this node translates at all, at the port where kube-proxy
//! says so: those ask there that send clients to all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use caracal_agent::ServiceStatus;
use caracal_model::{InsertEach, Timestamp};
use hyper::StatusCode;
use hyper::header::HeaderValue;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::services::Translated;
use crate::http::{self, Handler, Reply, Speaks, respond};

/// A table that could not be written for so long is not to be relied on.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of endpoints, for balancers that deal by weight.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// Serves until the channel closes. `proxy`: where kube-proxy would tell of itself.
pub(crate) async fn answer_health_checks(
    proxy: Option<SocketAddr>,
    mut translated: watch::Receiver<Translated>,
) {
    let mut serving: BTreeMap<SocketAddr, JoinHandle<()>> = BTreeMap::new();
    loop {
        let wanted: BTreeSet<SocketAddr> = {
            let translated = translated.borrow_and_update();
            let status = translated.status().into_iter();
            status
                .flat_map(|status| status.health.keys().copied().chain(proxy))
                .insert_each()
        };
        serving.retain(|address, task| {
            let stays = wanted.contains(address);
            if !stays {
                task.abort();
            }
            stays
        });
        for address in wanted {
            let translated = translated.clone();
            serving.entry(address).or_insert_with(|| {
                let (what, answers) = match proxy == Some(address) {
                    true => (
                        "health of services, as kube-proxy does",
                        proxy_handler(translated),
                    ),
                    false => ("health checks of a Service", handler(address, translated)),
                };
                tokio::spawn(http::serve_with(address, what, Speaks::Plain, answers))
            });
        }
        if translated.changed().await.is_err() {
            return;
        }
    }
}

fn handler(address: SocketAddr, translated: watch::Receiver<Translated>) -> Handler {
    Arc::new(move |_| {
        let reply = match translated.borrow().status() {
            Some(status) => reply(address, status, Instant::now()),
            None => gone(),
        };
        Box::pin(std::future::ready(reply))
    })
}

fn reply(address: SocketAddr, status: &ServiceStatus, now: Instant) -> Reply {
    let Some(health) = status.health.get(&address) else {
        return gone();
    };
    let is_healthy = is_healthy(status, now);
    let (namespace, name) = &health.service;
    let text = json!({
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": health.local_endpoints,
        "serviceProxyHealthy": is_healthy,
    });
    let verdict = match is_healthy && health.local_endpoints > 0 {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut reply = respond(verdict, "application/json", text.to_string());
    let weight = HeaderValue::from(health.local_endpoints);
    reply.headers_mut().insert(WEIGHT, weight);
    reply
}

fn is_healthy(status: &ServiceStatus, now: Instant) -> bool {
    let failing = status.failing_since;
    failing.is_none_or(|since| now < since + PATIENCE)
}

fn proxy_handler(translated: watch::Receiver<Translated>) -> Handler {
    Arc::new(move |request| {
        let reply = match (request.uri().path(), translated.borrow().status()) {
            ("/healthz" | "/livez", Some(status)) => proxy_reply(status, Instant::now()),
            _ => gone(),
        };
        Box::pin(std::future::ready(reply))
    })
}

/// Whether the table is what it should be, and until when it was. This node is always eligible:
/// nobody here knows of taints.
fn proxy_reply(status: &ServiceStatus, now: Instant) -> Reply {
    let is_healthy = is_healthy(status, now);
    let current = SystemTime::now();
    let since = status
        .failing_since
        .map_or(Duration::ZERO, |since| now - since);
    let text = json!({
        "lastUpdated": Timestamp::from(current - since).rfc3339(),
        "currentTime": Timestamp::from(current).rfc3339(),
        "nodeEligible": true,
        "healthy": is_healthy,
    });
    let verdict = match is_healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    respond(verdict, "application/json", text.to_string())
}

/// The Service went a moment ago, or the path leads nowhere.
fn gone() -> Reply {
    respond(StatusCode::NOT_FOUND, "text/plain", String::new())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_agent::ServiceHealth;

    use super::*;

    #[test]
    fn a_node_is_healthy_with_an_endpoint_and_a_table_that_is_written() {
        let address: SocketAddr = "10.0.0.1:32000".parse().unwrap();
        let now = Instant::now();
        let with = |local_endpoints, failing_since| {
            let service = ("shop".to_owned(), "web".to_owned());
            let health = ServiceHealth {
                service,
                local_endpoints,
            };
            let status = ServiceStatus {
                health: [(address, health)].into(),
                failing_since,
                ..ServiceStatus::default()
            };
            let reply = reply(address, &status, now + PATIENCE);
            let weight = reply.headers()[WEIGHT].to_str().unwrap().to_owned();
            (reply.status().as_u16(), weight)
        };
        assert_eq!(with(2, None), (200, "2".to_owned()));
        assert_eq!(with(0, None), (503, "0".to_owned()));
        assert_eq!(with(2, Some(now)), (503, "2".to_owned()));
        assert_eq!(with(2, Some(now + PATIENCE)), (200, "2".to_owned()));
        let none = reply(address, &ServiceStatus::default(), now);
        assert_eq!(none.status(), StatusCode::NOT_FOUND);
    }
    #[test]
    fn a_node_is_healthy_until_its_table_could_not_be_written_for_a_minute() {
        let now = Instant::now();
        let at = |failing_since| {
            let status = ServiceStatus {
                failing_since,
                ..ServiceStatus::default()
            };
            proxy_reply(&status, now + PATIENCE).status().as_u16()
        };
        assert_eq!(at(None), 200);
        assert_eq!(at(Some(now + PATIENCE)), 200);
        assert_eq!(at(Some(now)), 503);
    }
}
