//! Watches: one for each kind that is followed, as one stream.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, SelectAll, Stream, StreamExt as _};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::api::{Api, ApiFailure, judge};
use super::lines::Lines;
use super::lists::{WHOLE, key_values, list_path, lists_below, watched_form};
use super::mapping::{self, ApiGroup, Collection, List, PolicyKind};
use super::read::{ANCHOR, newest_revision};
use super::services;
use crate::store::{Change, StoreError, WatchEvent};

/// Collections that are watched. Handles never: they are many and no route depends on them.
const FOLLOWED: [Collection; 21] = [
    Collection::Nodes,
    Collection::Pods,
    Collection::Services,
    Collection::EndpointSlices,
    Collection::Policies(PolicyKind::Network),
    Collection::Policies(PolicyKind::Admin),
    Collection::Policies(PolicyKind::Baseline),
    Collection::Policies(PolicyKind::Cluster),
    Collection::Custom("clusterinformations"),
    Collection::Custom("ippools"),
    Collection::Custom("ipreservations"),
    Collection::Custom("bgpconfigurations"),
    Collection::Custom("bgppeers"),
    Collection::Custom("bgpfilters"),
    Collection::Custom("felixconfigurations"),
    Collection::Custom("ipamblocks"),
    Collection::Custom("blockaffinities"),
    Collection::Custom("ipamconfigs"),
    Collection::Custom("hostendpoints"),
    Collection::Custom("globalnetworkpolicies"),
    Collection::Custom("networkpolicies"),
];

/// What is watched besides where policy is enforced.
const OF_POLICY: [Collection; 5] = [
    Collection::Namespaces,
    Collection::ServiceAccounts,
    Collection::Custom("tiers"),
    Collection::Custom("globalnetworksets"),
    Collection::Custom("networksets"),
];

/// After so long the server ends a watch, and it is opened anew from where it was. One whose
/// connection died unnoticed does not end, and is found by that.
const SECONDS: u64 = 240;

/// Tolerance for the end of a watch after the promised time.
const OVERDUE: Duration = Duration::from_secs(10);

/// Interval of looking for a kind that is not installed.
const NOT_INSTALLED: Duration = Duration::from_secs(60);

/// The same of kinds that few clusters have and that are only named: of thousands of nodes each
/// asks for each of them.
const NOT_INSTALLED_POLICY: Duration = Duration::from_secs(300);

/// How often the server is asked for an object while pings show that it is there: a server may
/// answer pings and nothing else, as one that lost its etcd.
const ASKED: Duration = Duration::from_secs(60);

type Events = Pin<Box<dyn Stream<Item = Result<WatchEvent, StoreError>> + Send>>;

/// The watches of a [`KubernetesStore`](super::KubernetesStore).
pub struct KubernetesWatch {
    streams: SelectAll<Events>,
    ended: bool,
}

impl std::fmt::Debug for KubernetesWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesWatch").finish_non_exhaustive()
    }
}

impl KubernetesWatch {
    /// Opens the watches of all kinds below a prefix, from a revision on.
    pub(super) async fn open(
        api: &Arc<Api>,
        prefix: &str,
        revision: i64,
    ) -> Result<Self, StoreError> {
        let group = api.group().await;
        let group = group.map_err(|failure| failure.into_error(api.server(), "the API"))?;
        let below = lists_below(api, prefix);
        let of_policy = OF_POLICY.into_iter().filter(|_| api.config.enforces_policy);
        let chosen = FOLLOWED.into_iter().chain(of_policy).filter(|collection| {
            let mut lists = below.iter();
            let ranges = api.config.use_pod_cidr
                && [mapping::BLOCKS, mapping::AFFINITIES].contains(collection);
            !ranges
                && api.services.follows(*collection)
                && (below.is_empty() || lists.any(|list| list.collection == *collection))
        });
        let mut streams = SelectAll::new();
        let pinged = PingedStreams::default();
        for collection in chosen {
            let one = One {
                api: Arc::clone(api),
                group,
                collection,
                revision: revision - 1,
                lines: None,
                pinged: pinged.clone(),
                opened: Instant::now(),
                said: HashMap::new(),
                absent: false,
            };
            streams.push(one.events());
        }
        let nodes_only = matches!(&below[..], [list] if list.collection == Collection::Nodes);
        let probed = match &api.config.pods_of {
            Some(node) if nodes_only => format!("{}/{node}", Collection::Nodes.path(group)),
            _ => format!(
                "{}/default",
                Collection::Custom("clusterinformations").path(group)
            ),
        };
        streams.push(Probe::new(Arc::clone(api), &probed, pinged).events());
        Ok(Self {
            streams,
            ended: false,
        })
    }
}

impl Stream for KubernetesWatch {
    type Item = Result<WatchEvent, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = self.streams.poll_next_unpin(cx);
        self.ended = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }
}

/// Watches that are open over HTTP/2. Their connections are pinged, so each of them shows that the
/// server is there.
#[derive(Clone, Debug, Default)]
struct PingedStreams(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
struct PingedStream(PingedStreams);

impl PingedStreams {
    fn add(&self) -> PingedStream {
        self.0.fetch_add(1, Ordering::Relaxed);
        PingedStream(self.clone())
    }

    fn are_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for PingedStream {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells now and then that the API server is there. While watches are pinged their connection says
/// so, and the server is seldom asked. Else it is asked each time, for an object that our account
/// may read: the answer comes from the server's memory.
struct Probe {
    api: Arc<Api>,
    path: String,
    pinged: PingedStreams,
    /// When the server was asked last.
    asked: Instant,
}

impl Probe {
    fn new(api: Arc<Api>, object: &str, pinged: PingedStreams) -> Self {
        Self {
            api,
            path: format!("{object}?resourceVersion=0"),
            pinged,
            asked: Instant::now(),
        }
    }

    fn events(self) -> Events {
        let next = |mut probe: Self| async move {
            tokio::time::sleep(probe.api.config.progress_interval).await;
            let item = probe.next().await;
            Some((item, probe))
        };
        stream::unfold(self, next).boxed()
    }

    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        if self.pinged.are_open() && self.asked.elapsed() < ASKED {
            return Ok(WatchEvent::Alive);
        }
        self.asked = Instant::now();
        match self.api.read_at_once(&self.path, WHOLE).await {
            Ok(_) | Err(ApiFailure::NotFound) => Ok(WatchEvent::Alive),
            Err(failure) => Err(failure.into_error(self.api.server(), "the API")),
        }
    }
}

/// The watch of one kind.
struct One {
    api: Arc<Api>,
    group: ApiGroup,
    collection: Collection,
    /// The last revision that was told.
    revision: i64,
    /// The open watch; with a mark where its connection is pinged.
    lines: Option<(Lines, Option<PingedStream>)>,
    pinged: PingedStreams,
    /// Since when it is open.
    opened: Instant,
    /// Of objects that change without what is read of them changing, as a Node at each heartbeat: a
    /// hash of what was told last, by key.
    said: HashMap<String, u64>,
    /// The kind was not installed when it was asked for.
    absent: bool,
}

/// Content of one line of a watch.
enum Said {
    /// Changes; none for what is not read.
    Changes(Vec<Change>),
    /// The watch goes on from here.
    Revision(i64),
}

impl One {
    fn events(self) -> Events {
        let next = |mut one: Self| async move {
            let item = one.next().await;
            Some((item, one))
        };
        stream::unfold(self, next).boxed()
    }

    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            match self.step().await {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(ApiFailure::Gone) => {
                    return Err(StoreError::Compacted {
                        asked: self.revision,
                        oldest: 0,
                    });
                }
                Err(failure) => {
                    let what = format!("{:?}", self.collection);
                    return Err(failure.into_error(self.api.server(), &what));
                }
            }
        }
    }

    async fn step(&mut self) -> Result<Option<WatchEvent>, ApiFailure> {
        let Some((lines, _)) = &mut self.lines else {
            let newest = self.open().await?;
            return Ok(newest.map(WatchEvent::Progress));
        };
        let due = self.opened + Duration::from_secs(SECONDS) + OVERDUE;
        let Ok(Some(line)) = timeout_at(due, lines.next()).await else {
            // Ended by the server, or the connection broke, or it died without a sign and the end
            // that the server promised never came: on from where it was.
            self.lines = None;
            return Ok(None);
        };
        let event: Value = serde_json::from_slice(&line).map_err(|error| {
            ApiFailure::Unavailable(format!("an event that is no JSON: {error}"))
        })?;
        match self.on_event(&event)? {
            Said::Changes(changes) if changes.is_empty() => Ok(None),
            Said::Changes(changes) => Ok(Some(WatchEvent::Changes(changes))),
            Said::Revision(revision) => {
                self.revision = self.revision.max(revision);
                Ok(None)
            }
        }
    }

    /// Opens the watch. Answers with the revision of what is stored, where it was asked for.
    async fn open(&mut self) -> Result<Option<i64>, ApiFailure> {
        let list = List {
            collection: self.collection,
            labels: None,
        };
        let path = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={SECONDS}&resourceVersion={}",
            list_path(&self.api, self.group, &list),
            self.revision
        );
        let accept = watched_form(&self.api, self.collection);
        match self.api.watch(&path, accept).await {
            Ok(lines) => {
                if std::mem::take(&mut self.absent) {
                    tracing::info!(collection = ?self.collection, "a kind was installed; listing again");
                    return Err(ApiFailure::Gone);
                }
                let pinged = lines.are_pinged().then(|| self.pinged.add());
                self.lines = Some((lines, pinged));
                self.opened = Instant::now();
                // Asked behind the opening: whatever comes between ends the watch. One kind asks
                // for all, whose watches go to the same address.
                if self.collection == ANCHOR {
                    return self.check_history().await.map(Some);
                }
            }
            Err(ApiFailure::NotFound) => {
                self.absent = true;
                let pause = match self.collection {
                    Collection::Policies(_) => NOT_INSTALLED_POLICY,
                    _ => NOT_INSTALLED,
                };
                tokio::time::sleep(pause).await;
            }
            Err(failure) => return Err(failure),
        }
        Ok(None)
    }

    /// Behind the address there may be another etcd by now, emptied or restored from a backup: its
    /// server takes a watch from a revision of the future and says nothing until that is there, or
    /// tells another history from there on. Answers with the revision of what is stored: who
    /// follows judges whether it can be as high.
    async fn check_history(&self) -> Result<i64, ApiFailure> {
        let newest = newest_revision(&self.api).await?;
        let went_back = newest < self.revision;
        if went_back || self.api.is_another_cluster().await? {
            tracing::warn!(
                newest,
                told = self.revision,
                "what this address serves is not what was listed; listing again"
            );
            return Err(ApiFailure::Gone);
        }
        Ok(newest)
    }

    fn on_event(&mut self, event: &Value) -> Result<Said, ApiFailure> {
        let object = &event["object"];
        let revision = mapping::revision(object);
        match event["type"].as_str() {
            Some("BOOKMARK") => Ok(Said::Revision(revision)),
            Some("ERROR") => {
                let code = object["code"]
                    .as_u64()
                    .and_then(|code| code.try_into().ok());
                Err(judge(
                    code.unwrap_or(500),
                    object,
                    "the watch ended with an error",
                ))
            }
            Some(kind @ ("ADDED" | "MODIFIED" | "DELETED")) => {
                self.revision = self.revision.max(revision);
                let needs_services = self.collection == services::CONFIGURATIONS
                    && !self.api.services.follows(Collection::Services)
                    && kind != "DELETED"
                    && services::announces(object);
                if needs_services {
                    tracing::info!(
                        "addresses of Services are announced from now on; listing again"
                    );
                    return Err(ApiFailure::Gone);
                }
                Ok(Said::Changes(self.changes(
                    object,
                    revision,
                    kind == "DELETED",
                )))
            }
            other => Err(ApiFailure::Unavailable(format!(
                "an event of type {other:?}"
            ))),
        }
    }

    fn changes(&mut self, object: &Value, revision: i64, deleted: bool) -> Vec<Change> {
        let mut values = key_values(&self.api, self.collection, object, self.group);
        // An object that stands for nothing any more: its key as it was.
        if values.is_empty() {
            values = mapping::keys_without_values(self.collection, object, self.group)
                .into_iter()
                .map(|key| caracal_model::KeyValue {
                    key,
                    value: Vec::new(),
                    mod_revision: revision,
                })
                .collect();
        }
        let noisy = matches!(self.collection, Collection::Nodes | Collection::Pods);
        let mut changes = Vec::new();
        for kv in values {
            let value = (!deleted && !kv.value.is_empty()).then_some(kv.value);
            if noisy {
                let mut hash = DefaultHasher::new();
                value.hash(&mut hash);
                let hash = hash.finish();
                // Of an object that is gone nothing more comes: what was told of it goes, too.
                let told = match deleted {
                    true => self.said.remove(&kv.key),
                    false => self.said.insert(kv.key.clone(), hash),
                };
                if told == Some(hash) {
                    continue;
                }
            }
            changes.push(Change {
                key: kv.key,
                value,
                revision,
            });
        }
        changes
    }
}

#[cfg(test)]
mod tests;
