//! Watches: what there is, what came since a revision, what comes, and bookmarks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Api;
use super::answer::{self, Body};
use super::cache::{Cache, Event, Outside, Start, StoredObject, at_revision};
use super::faults::Cut;
use super::kinds::Kind;
use super::read::{matching, selector};
use super::request::{Form, Request};
use super::selector::Selector;
use super::status::Failure;

/// Duration of a watch that names no time. Real servers take half an hour to an hour.
const LASTS: Duration = Duration::from_secs(1_800);
/// Lines that may wait for a slow reader.
const LINES: usize = 64;

/// Scope of a watch.
struct Watch {
    kind: Arc<Kind>,
    selector: Selector,
    form: Form,
    lines: mpsc::Sender<io::Result<Bytes>>,
    /// The newest revision that its reader knows of.
    revision: i64,
    /// Nothing up to this revision is told: one of the future makes a silent watch.
    after: i64,
}

/// The reader has gone.
struct Gone;

impl Api {
    pub(super) async fn watch(
        &self,
        request: &Request,
        form: Form,
    ) -> Result<Response<Body>, Failure> {
        let query = &request.query;
        let wants_initial = query.is("sendInitialEvents");
        matching(request)?;
        let selector = selector(request)?;
        let revision = query.revision()?.filter(|r| *r > 0);
        let prefix = request.kind.prefix(request.namespace.as_deref());
        let from = revision.filter(|_| !wants_initial);
        // A watch from now on begins with what is there now, not with what this server knew.
        let now = match from {
            None if query.text("resourceVersion").is_empty() => self.newest().await?,
            _ if wants_initial => revision.unwrap_or_default(),
            _ => 0,
        };
        self.cache.reach(now).await;
        let (lines, reader) = mpsc::channel(LINES);
        let start = match self.cache.watch(&prefix, from).await {
            Ok(start) => start,
            Err(Outside::Old { oldest }) => {
                let asked = from.unwrap_or_default();
                let message = format!("too old resource version: {asked} ({oldest})");
                let status = Failure::expired(message).status();
                let _ = lines.send(Ok(line("ERROR", &status))).await;
                return Ok(answer::stream_response(reader));
            }
            Err(Outside::New { newest }) => {
                return Err(Failure::too_new(from.unwrap_or_default(), newest));
            }
        };
        let seconds = query.text("timeoutSeconds").parse().ok();
        let until = Instant::now() + seconds.map_or(LASTS, Duration::from_secs);
        let bookmarks = query.is("allowWatchBookmarks").then_some(self.bookmarks);
        let cut = self.faults.cut();
        let watch = Watch {
            kind: Arc::clone(&request.kind),
            selector,
            form,
            lines,
            revision: start.present.revision,
            after: from.unwrap_or_default(),
        };
        let times = Times { until, bookmarks };
        let cache = self.cache.clone();
        tokio::spawn(follow(watch, start, cache, times, wants_initial, cut));
        Ok(answer::stream_response(reader))
    }
}

/// End of a watch, and interval of its bookmarks.
struct Times {
    until: Instant,
    bookmarks: Option<Duration>,
}

async fn follow(
    mut watch: Watch,
    start: Start,
    cache: Cache,
    times: Times,
    wants_initial: bool,
    mut cut: Cut,
) {
    let Ok(mut live) = watch.begin(start, wants_initial).await else {
        return;
    };
    let pause = times.bookmarks.unwrap_or(LASTS);
    let mut bookmark = Instant::now() + pause;
    loop {
        let done = tokio::select! {
            // The reason of an end before the end: history that is forgotten ends watches, too.
            biased;
            failure = cut.next() => {
                let last = match failure {
                    Some(failure) => Ok(line("ERROR", &failure.status())),
                    None => Err(io::Error::other("cut on demand")),
                };
                let _ = watch.lines.send(last).await;
                Err(Gone)
            }
            event = live.recv() => match event {
                Some(event) => watch.send_event(&event).await,
                // Too slow, or the history was forgotten.
                None => Err(Gone),
            },
            () = sleep_until(bookmark), if times.bookmarks.is_some() => {
                bookmark = Instant::now() + pause;
                watch.catch_up(&cache, &mut live).await
            }
            () = sleep_until(times.until) => Err(Gone),
            () = watch.lines.closed() => Err(Gone),
        };
        if done.is_err() {
            return;
        }
    }
}

impl Watch {
    async fn begin(
        &mut self,
        start: Start,
        wants_initial: bool,
    ) -> Result<mpsc::Receiver<Arc<Event>>, Gone> {
        for entry in &start.present.entries {
            if self.selector.matches(&entry.object) {
                self.send("ADDED", &entry.object).await?;
            }
        }
        if wants_initial {
            self.bookmark(&json!({"k8s.io/initial-events-end": "true"}))
                .await?;
        }
        for event in &start.backlog {
            self.send_event(event).await?;
        }
        Ok(start.live)
    }

    /// An object may come into what is selected, and leave it.
    async fn send_event(&mut self, event: &Event) -> Result<(), Gone> {
        if event.revision <= self.after {
            return Ok(());
        }
        self.revision = self.revision.max(event.revision);
        let wanted = |entry: &&StoredObject| self.selector.matches(&entry.object);
        let before = event.before.as_ref().filter(wanted);
        let after = event.after.as_ref().filter(wanted);
        match (before, after) {
            (None, Some(after)) => self.send("ADDED", &after.object).await,
            (Some(_), Some(after)) => self.send("MODIFIED", &after.object).await,
            (Some(before), None) => {
                let last = at_revision(&before.object, event.revision);
                self.send("DELETED", &last).await
            }
            (None, None) => Ok(()),
        }
    }

    /// A bookmark of the newest revision, after all events up to it.
    async fn catch_up(
        &mut self,
        cache: &Cache,
        live: &mut mpsc::Receiver<Arc<Event>>,
    ) -> Result<(), Gone> {
        let newest = cache.reach(0).await;
        while let Ok(event) = live.try_recv() {
            self.send_event(&event).await?;
        }
        self.revision = self.revision.max(newest);
        self.bookmark(&Value::Null).await
    }

    async fn bookmark(&self, annotations: &Value) -> Result<(), Gone> {
        let (kind, version) = match self.form {
            Form::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
            _ => (&*self.kind.kind, self.kind.api_version()),
        };
        let mut metadata =
            json!({"resourceVersion": self.revision.to_string(), "creationTimestamp": null});
        if !annotations.is_null() {
            metadata["annotations"] = annotations.clone();
        }
        let object = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        self.write(line("BOOKMARK", &object)).await
    }

    async fn send(&self, event: &str, object: &Value) -> Result<(), Gone> {
        let object = answer::object(&self.kind, object, self.form);
        self.write(line(event, &object)).await
    }

    async fn write(&self, line: Bytes) -> Result<(), Gone> {
        self.lines.send(Ok(line)).await.map_err(|_| Gone)
    }
}

fn line(event: &str, object: &Value) -> Bytes {
    let mut text = json!({"type": event, "object": object}).to_string();
    text.push('\n');
    text.into()
}
