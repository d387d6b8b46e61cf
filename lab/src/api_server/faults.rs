//! Faults on demand. They are set by HTTP below `/test/`, which no real server has:
//!
//! * `POST /test/faults` with a rule adds it: `{"path":"/api/v1/nodes","method":"GET","count":3,
//!   "fault":"500"}`. `path` is a prefix, all but `fault` may be left out. Faults: `429` (plain
//!   text, as priority and fairness answer), `initializing` (429 of the storage), `500`, `503`,
//!   `410`, `401`, `reset` (the connection is cut without an answer), `lost` (the request is
//!   carried out, then the connection is cut), `latency` with `"milliseconds":N`. Two are of
//!   requests with `sendInitialEvents` alone: `no-initial-events` (422, as servers answer that have
//!   none), `short` with `"events":N` (the stream is cut after so many). `GET` shows the rules with
//!   what is left of them, `DELETE` removes all.
//! * `POST /test/tokens` with `{"seconds":N}`: tokens of accounts last N seconds, whatever is asked
//!   for; a real server has a longest time, too, and none below ten minutes.
//! * `POST /test/watches/expire` ends all watches with 410 and forgets all history, as a restart
//!   does; `/test/watches/cut` cuts their connections in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::status::Failure;

/// Fault of the server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fault {
    Answer(Failure),
    Reset,
    Lost,
    Latency(Duration),
    /// There are no initial events.
    NoInitialEvents(Failure),
    /// So many lines of a stream, and no end.
    Short(usize),
}

#[derive(Debug)]
struct Rule {
    text: String,
    method: Option<String>,
    path: String,
    fault: Fault,
    left: AtomicU64,
}

/// The faults of a server. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    rules: watch::Sender<Vec<Arc<Rule>>>,
    cuts: broadcast::Sender<Option<Failure>>,
    /// For how many seconds tokens last at most.
    tokens: Arc<AtomicI64>,
}

/// Tells one watch that it ends.
#[derive(Debug)]
pub(super) struct Cut(broadcast::Receiver<Option<Failure>>);

impl Cut {
    /// With an error as its last event, or in the middle.
    pub(super) async fn next(&mut self) -> Option<Failure> {
        match self.0.recv().await {
            Ok(failure) => failure,
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Faults {
    pub(super) fn new() -> Self {
        Self {
            rules: watch::channel(Vec::new()).0,
            cuts: broadcast::channel(16).0,
            tokens: Arc::new(AtomicI64::new(i64::MAX)),
        }
    }

    pub(super) fn cut(&self) -> Cut {
        Cut(self.cuts.subscribe())
    }

    /// Ends all watches.
    pub(super) fn end_watches(&self, failure: Option<Failure>) {
        // Nobody watches: nothing ends.
        let _ = self.cuts.send(failure);
    }

    /// Faults of a request: the first that is no delay, and all delays before it.
    pub(super) fn matching(
        &self,
        method: &Method,
        path: &str,
        wants_initial: bool,
    ) -> (Duration, Option<Fault>) {
        let mut delay = Duration::ZERO;
        for rule in self.rules.borrow().iter() {
            let of_streams = matches!(rule.fault, Fault::NoInitialEvents(_) | Fault::Short(_));
            let fits = path.starts_with(&rule.path)
                && (wants_initial || !of_streams)
                && rule.method.as_deref().is_none_or(|m| m == method.as_str());
            let less = |n: u64| n.checked_sub(1);
            let order = Ordering::Relaxed;
            if !fits || rule.left.fetch_update(order, order, less).is_err() {
                continue;
            }
            match &rule.fault {
                Fault::Latency(more) => delay += *more,
                fault => return (delay, Some(fault.clone())),
            }
        }
        (delay, None)
    }

    /// From now on tokens last no longer than that. The error says what is wrong.
    pub(super) fn limit_tokens(&self, order: &Value) -> Result<(), String> {
        let seconds = order["seconds"].as_i64().filter(|seconds| *seconds > 0);
        let seconds = seconds.ok_or("seconds: a number above 0")?;
        self.tokens.store(seconds, Ordering::Relaxed);
        Ok(())
    }

    /// The lifetime of a token, in seconds.
    pub(super) fn token_lifetime(&self, asked: i64) -> i64 {
        asked.min(self.tokens.load(Ordering::Relaxed))
    }

    /// Adds a rule. The error says what is wrong with it.
    pub(super) fn add(&self, rule: &Value) -> Result<(), String> {
        let fault = match rule["fault"].as_str() {
            Some("429") => Fault::Answer(Failure::too_many()),
            Some("initializing") => Fault::Answer(Failure::initializing()),
            Some("500") => Fault::Answer(Failure::internal("on demand")),
            Some("503") => Fault::Answer(Failure {
                code: StatusCode::SERVICE_UNAVAILABLE,
                reason: "ServiceUnavailable",
                ..Failure::internal("on demand")
            }),
            Some("410") => Fault::Answer(Failure::expired("on demand")),
            Some("401") => Fault::Answer(Failure::unauthorized()),
            Some("reset") => Fault::Reset,
            Some("lost") => Fault::Lost,
            Some("no-initial-events") => Fault::NoInitialEvents(Failure::no_initial_events()),
            Some("short") => {
                let events = rule["events"].as_u64().ok_or("short needs events")?;
                Fault::Short(usize::try_from(events).unwrap_or(usize::MAX))
            }
            Some("latency") => {
                let milliseconds = rule["milliseconds"].as_u64();
                let milliseconds = milliseconds.ok_or("latency needs milliseconds")?;
                Fault::Latency(Duration::from_millis(milliseconds))
            }
            _ => {
                return Err(format!(
                    "fault: {}: 429, initializing, 500, 503, 410, 401, reset, lost, latency, \
                     no-initial-events or short",
                    rule["fault"]
                ));
            }
        };
        let rule = Rule {
            text: rule.to_string(),
            method: rule["method"].as_str().map(str::to_owned),
            path: rule["path"].as_str().unwrap_or_default().to_owned(),
            fault,
            left: AtomicU64::new(rule["count"].as_u64().unwrap_or(u64::MAX)),
        };
        self.rules.send_modify(|rules| rules.push(Arc::new(rule)));
        Ok(())
    }

    pub(super) fn clear(&self) {
        self.rules.send_replace(Vec::new());
    }

    pub(super) fn show(&self) -> Value {
        let rules = self.rules.borrow();
        let rows = rules.iter().map(|rule| {
            let left = rule.left.load(Ordering::Relaxed);
            json!({"rule": rule.text, "left": (left < u64::MAX / 2).then_some(left)})
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_holds_for_its_requests_and_as_often_as_it_says() {
        let faults = Faults::new();
        let rule = json!({"path": "/api/v1/nodes", "method": "GET", "count": 1, "fault": "500"});
        faults.add(&rule).expect("a rule");
        let slow = json!({"fault": "latency", "milliseconds": 5});
        faults.add(&slow).expect("a rule");
        let delay = Duration::from_millis(5);
        assert_eq!(
            faults.matching(&Method::PUT, "/api/v1/nodes/a", false),
            (delay, None)
        );
        assert_eq!(
            faults.matching(&Method::GET, "/api/v1/pods", false),
            (delay, None)
        );
        let (_, fault) = faults.matching(&Method::GET, "/api/v1/nodes", false);
        assert!(matches!(fault, Some(Fault::Answer(f)) if f.code.as_u16() == 500));
        assert_eq!(
            faults.matching(&Method::GET, "/api/v1/nodes", false),
            (delay, None)
        );
        faults.clear();
        let none = (Duration::ZERO, None);
        assert_eq!(faults.matching(&Method::GET, "/api/v1/nodes", false), none);
        faults.add(&json!({"fault": "?"})).expect_err("unknown");
    }
}
