//! One Secret, followed by its name: listed and watched with the field selector `metadata.name`, so
//! that an account which may read this one (`resourceNames`) needs no other right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use caracal_model::InsertEach;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::api::{Api, ApiFailure, judge};
use super::lines::Lines;
use super::lists::WHOLE;
use super::mapping;
use crate::secret::SecretContent;
use crate::store::StoreError;

/// After so long the server ends a watch, and it is opened anew.
const SECONDS: u64 = 240;

/// Tolerance for the end of a watch after the promised time.
const OVERDUE: Duration = Duration::from_secs(10);

/// Pause between two tries, also where a server ends watches at once.
const PAUSE: Duration = Duration::from_secs(5);

/// A Secret that is followed.
struct Followed {
    api: Arc<Api>,
    /// Path of the list, with what selects the one.
    path: String,
    /// Name in messages.
    what: String,
    /// Where the watch goes on; `None`: it is listed first.
    revision: Option<i64>,
    watch: Option<(Lines, Instant)>,
    /// The last try failed, or a watch has ended.
    waits: bool,
}

/// The content of a Secret, now and after each change; an empty one where there is none. After an
/// error it is tried again. The stream does not end.
pub(super) fn follow(
    api: &Arc<Api>,
    namespace: &str,
    name: &str,
) -> BoxStream<'static, Result<SecretContent, StoreError>> {
    let followed = Followed {
        api: Arc::clone(api),
        path: format!(
            "/api/v1/namespaces/{namespace}/secrets?fieldSelector=metadata.name%3D{name}"
        ),
        what: format!("the Secret {namespace}/{name}"),
        revision: None,
        watch: None,
        waits: false,
    };
    let next = |mut followed: Followed| async move {
        let content = followed.next().await;
        let content = content.map_err(|failure| {
            followed.revision = None;
            followed.watch = None;
            followed.waits = true;
            failure.into_error(followed.api.server(), &followed.what)
        });
        Some((content, followed))
    };
    stream::unfold(followed, next).boxed()
}

impl Followed {
    async fn next(&mut self) -> Result<SecretContent, ApiFailure> {
        loop {
            if std::mem::take(&mut self.waits) {
                tokio::time::sleep(PAUSE).await;
            }
            let Some(revision) = self.revision else {
                return self.list().await;
            };
            let Some((lines, opened)) = &mut self.watch else {
                match self.open(revision).await {
                    Err(ApiFailure::Gone) => self.revision = None,
                    opened => opened?,
                }
                continue;
            };
            let due = *opened + Duration::from_secs(SECONDS) + OVERDUE;
            let Ok(Some(line)) = timeout_at(due, lines.next()).await else {
                self.waits = opened.elapsed() < PAUSE;
                self.watch = None;
                continue;
            };
            let event: Value = serde_json::from_slice(&line).map_err(|error| {
                ApiFailure::Unavailable(format!("an event that is no JSON: {error}"))
            })?;
            match self.on_event(&event) {
                Ok(None) => {}
                Ok(Some(content)) => return Ok(content),
                Err(ApiFailure::Gone) => (self.revision, self.watch) = (None, None),
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn list(&mut self) -> Result<SecretContent, ApiFailure> {
        let list = self.api.read_at_once(&self.path, WHOLE).await?;
        self.revision = Some(mapping::revision(&list));
        Ok(content(&list["items"][0]))
    }

    async fn open(&mut self, revision: i64) -> Result<(), ApiFailure> {
        let path = format!(
            "{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={SECONDS}&resourceVersion={revision}",
            self.path
        );
        let lines = self.api.watch(&path, WHOLE).await?;
        self.watch = Some((lines, Instant::now()));
        Ok(())
    }

    fn on_event(&mut self, event: &Value) -> Result<Option<SecretContent>, ApiFailure> {
        let object = &event["object"];
        let heard = mapping::revision(object);
        let known = self.revision.unwrap_or_default();
        match event["type"].as_str() {
            Some("ERROR") => {
                let code = object["code"].as_u64().unwrap_or(500);
                let code = code.try_into().unwrap_or(500);
                Err(judge(code, object, "the watch ended with an error"))
            }
            kind => {
                self.revision = Some(known.max(heard));
                Ok(match kind {
                    Some("ADDED" | "MODIFIED") => Some(content(object)),
                    Some("DELETED") => Some(SecretContent::default()),
                    _ => None,
                })
            }
        }
    }
}

/// `data` of a Secret; values that are no base64 or no text are left out.
fn content(secret: &Value) -> SecretContent {
    let data = secret["data"].as_object().into_iter().flatten();
    let decoded = data.filter_map(|(key, value)| {
        let octets = STANDARD.decode(value.as_str()?).ok()?;
        Some((key.clone(), String::from_utf8(octets).ok()?))
    });
    SecretContent(decoded.insert_each::<BTreeMap<_, _>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_text_is_read() {
        let secret =
            json!({"data": {"mesh": "aHVudGVyMg==", "empty": "", "odd": "?", "octets": "/w=="}});
        let expected = [("empty", ""), ("mesh", "hunter2")];
        let expected = expected.map(|(key, text)| (key.to_owned(), text.to_owned()));
        assert_eq!(content(&secret).0, BTreeMap::from(expected));
        assert_eq!(content(&json!(null)), SecretContent::default());
    }
}
