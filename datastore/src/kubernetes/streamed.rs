//! Lists as streams (`sendInitialEvents`, Kubernetes 1.32): a watch that begins with what there is
//! and says when that was all. The server holds no list of thousands of objects for it, and neither
//! does the client.
//!
//! A stream that is refused, breaks off, or says nothing has its list read in pages, and those that
//! follow for a while. What it told is dropped then: a list counts once its end was told.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use caracal_model::KeyValue;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::api::{Api, ApiFailure, judge};
use super::lines::Lines;
use super::lists::{key_values, list_path, watched_form};
use super::mapping::{self, ApiGroup, List};

/// Objects of a part.
const PART: usize = 500;

/// After so long the server ends a stream whose reader does not come back.
const SECONDS: u64 = 60;

/// How long lists are read in pages after a stream of one was refused: a server that has none is
/// asked for one so often.
const REFUSED: Duration = Duration::from_secs(3600);

/// How long after another failure. Short: a server that restarts in the middle of a stream is the
/// one of which all nodes want lists next.
const FAILED: Duration = Duration::from_secs(60);

/// The annotation of the bookmark that ends what there is.
const END: &str = "k8s.io/initial-events-end";

/// The list that is being read as a stream, and whether streams are asked for.
#[derive(Debug, Default)]
pub(super) struct StreamedLists(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Until then lists are read in pages.
    pages_until: Option<Instant>,
    /// The list that is not at its end yet, with its number.
    begun: Option<(u64, Streamed)>,
    last_number: u64,
}

/// A part of a list, and the number under which it goes on.
pub(super) type Part = (Vec<KeyValue>, Option<u64>);

impl StreamedLists {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is the next list to be read as a stream?
    pub(super) fn are_wanted(&self) -> bool {
        let until = self.state().pages_until;
        until.is_none_or(|until| until <= Instant::now())
    }

    /// The first part of a list that is not older than `least`.
    pub(super) async fn begin(
        &self,
        api: &Api,
        list: &List,
        least: i64,
    ) -> Result<Part, ApiFailure> {
        match Streamed::open(api, list, least).await {
            // The kind is not installed: there is nothing of it.
            Err(ApiFailure::NotFound) => Ok((Vec::new(), None)),
            Err(failure) => Err(self.failed(list, failure)),
            Ok(streamed) => self.next(api, streamed).await,
        }
    }

    /// The next part of the list with this number.
    pub(super) async fn go_on(&self, api: &Api, number: u64) -> Result<Part, ApiFailure> {
        let begun = self.state().begun.take();
        match begun.filter(|(known, _)| *known == number) {
            Some((_, streamed)) => self.next(api, streamed).await,
            // Another list was begun since.
            None => Err(ApiFailure::Gone),
        }
    }

    async fn next(&self, api: &Api, mut streamed: Streamed) -> Result<Part, ApiFailure> {
        let limit = api.config.request_timeout;
        let part = timeout(limit, streamed.next_part(api)).await;
        let part = part.unwrap_or_else(|_| {
            let seconds = limit.as_secs();
            Err(ApiFailure::Unavailable(format!(
                "no part within {seconds} s"
            )))
        });
        let (values, is_all) = part.map_err(|failure| self.failed(&streamed.list, failure))?;
        if is_all {
            return Ok((values, None));
        }
        let mut state = self.state();
        state.last_number += 1;
        let number = state.last_number;
        state.begun = Some((number, streamed));
        Ok((values, Some(number)))
    }

    fn failed(&self, list: &List, failure: ApiFailure) -> ApiFailure {
        let pause = match &failure {
            ApiFailure::Refused(_) => REFUSED,
            _ => FAILED,
        };
        self.state().pages_until = Some(Instant::now() + pause);
        tracing::debug!(collection = ?list.collection, ?failure, "a list is no stream; lists are read in pages");
        failure
    }
}

/// A list as a stream.
#[derive(Debug)]
struct Streamed {
    list: List,
    group: ApiGroup,
    lines: Lines,
    least: i64,
}

impl Streamed {
    async fn open(api: &Api, list: &List, least: i64) -> Result<Self, ApiFailure> {
        let group = api.group().await?;
        let path = format!(
            "{}watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
             &allowWatchBookmarks=true&timeoutSeconds={SECONDS}",
            list_path(api, group, list)
        );
        let form = watched_form(api, list.collection);
        let lines = api.watch(&path, form).await?;
        Ok(Self {
            list: list.clone(),
            group,
            lines,
            least,
        })
    }

    /// The next part, sorted by key; true when it is the last.
    async fn next_part(&mut self, api: &Api) -> Result<(Vec<KeyValue>, bool), ApiFailure> {
        let mut values: Vec<KeyValue> = Vec::new();
        let mut is_all = false;
        while !is_all && values.len() < PART {
            let broken = || ApiFailure::Unavailable("the stream of a list broke off".to_owned());
            let line = self.lines.next().await.ok_or_else(broken)?;
            let event: Value = serde_json::from_slice(&line).map_err(|_| broken())?;
            let object = &event["object"];
            let told = || key_values(api, self.list.collection, object, self.group);
            match event["type"].as_str() {
                Some("ADDED") => values.extend(told()),
                // Changed while the server was telling. What was given on cannot be taken back.
                Some(kind @ ("MODIFIED" | "DELETED")) => {
                    let told = told();
                    let before = values.len();
                    values.retain(|kv| told.iter().all(|changed| changed.key != kv.key));
                    match kind {
                        "MODIFIED" if !told.is_empty() => values.extend(told),
                        "DELETED" if before - values.len() >= told.len().max(1) => {}
                        _ => return Err(broken()),
                    }
                }
                Some("BOOKMARK") => {
                    is_all = object["metadata"]["annotations"][END] == "true";
                    if is_all && mapping::revision(object) < self.least {
                        let reason = "the stream of a list is older than what was read before";
                        return Err(ApiFailure::Unavailable(reason.to_owned()));
                    }
                }
                _ => {
                    let code = object["code"]
                        .as_u64()
                        .and_then(|code| code.try_into().ok());
                    let text = "the stream of a list ended with an error";
                    return Err(judge(code.unwrap_or(500), object, text));
                }
            }
        }
        values.sort_by(|a, b| a.key.cmp(&b.key));
        Ok((values, is_all))
    }
}
