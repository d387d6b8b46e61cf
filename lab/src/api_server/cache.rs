//! Stored objects in memory: one task owns them and follows etcd by one watch.
//!
//! Every revision of etcd passes here, also those of keys that are not ours, so that who knows a
//! revision can wait for it. Events are kept for a while: a watch starts from an old revision, and
//! a list at an old revision is the present with the events undone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use caracal_datastore::{Change, EtcdStore, Store, StoreError, WatchEvent};
use caracal_model::KeyRange;
use futures_util::StreamExt;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::kinds::{DEFINITIONS, ROOT, Registry};

/// Most events that a watcher may be behind before it is cut.
const BEHIND: usize = 1_000;
/// Pause between two tries to reach etcd.
const PAUSE: Duration = Duration::from_millis(200);

/// An object as it is stored, with its `resourceVersion` in it.
#[derive(Clone, Debug)]
pub(super) struct StoredObject {
    pub(super) key: String,
    pub(super) revision: i64,
    pub(super) object: Arc<Value>,
}

/// A change of one object.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) revision: i64,
    pub(super) key: String,
    pub(super) before: Option<StoredObject>,
    pub(super) after: Option<StoredObject>,
}

/// Objects of one revision.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) revision: i64,
    pub(super) entries: Vec<StoredObject>,
}

/// The revision asked for is no longer, or not yet, known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outside {
    /// Older than what is remembered.
    Old { oldest: i64 },
    /// Newer than what there is, after a wait.
    New { newest: i64 },
}

/// The beginning of a watch: what there is or what came since, then what comes.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) present: Listing,
    pub(super) backlog: Vec<Arc<Event>>,
    pub(super) live: mpsc::Receiver<Arc<Event>>,
}

enum Ask {
    Get(String, oneshot::Sender<Option<StoredObject>>),
    List(
        String,
        Option<i64>,
        oneshot::Sender<Result<Listing, Outside>>,
    ),
    Watch(String, Option<i64>, oneshot::Sender<Result<Start, Outside>>),
    Revision(oneshot::Sender<i64>),
    Forget(oneshot::Sender<i64>),
}

/// The way to the task.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    asks: mpsc::Sender<(i64, Ask)>,
    registry: watch::Receiver<Arc<Registry>>,
}

impl Cache {
    /// Reads everything, then follows it in a task of its own.
    pub(super) async fn start(store: EtcdStore, history: usize) -> Result<Self, StoreError> {
        let (registry_writer, registry) = watch::channel(Arc::new(Registry::built_in()));
        let mut state = State {
            objects: BTreeMap::new(),
            revision: 0,
            oldest: 0,
            events: VecDeque::new(),
            history,
            watchers: Vec::new(),
            registry: registry_writer,
        };
        state.load(&store).await?;
        let (asks, questions) = mpsc::channel(64);
        tokio::spawn(run(store, state, questions));
        Ok(Self { asks, registry })
    }

    /// The kinds that are served now.
    pub(super) fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry.borrow())
    }

    /// One object, as of revision `at` or later.
    pub(super) async fn get(&self, key: &str, at: i64) -> Option<StoredObject> {
        self.ask(at, |reply| Ask::Get(key.to_owned(), reply))
            .await
            .flatten()
    }

    /// All objects below `prefix`, as of revision `at` or later; or as of `exact`.
    pub(super) async fn list(
        &self,
        prefix: &str,
        at: i64,
        exact: Option<i64>,
    ) -> Result<Listing, Outside> {
        self.ask(at, |reply| Ask::List(prefix.to_owned(), exact, reply))
            .await
            .unwrap_or(Err(Outside::New { newest: 0 }))
    }

    /// Changes below `prefix` from revision `from` on, exclusive; without: from now on.
    pub(super) async fn watch(&self, prefix: &str, from: Option<i64>) -> Result<Start, Outside> {
        self.ask(0, |reply| Ask::Watch(prefix.to_owned(), from, reply))
            .await
            .unwrap_or(Err(Outside::New { newest: 0 }))
    }

    /// Waits until revision `at` is here; the newest revision.
    pub(super) async fn reach(&self, at: i64) -> i64 {
        self.ask(at, Ask::Revision).await.unwrap_or_default()
    }

    /// Forgets all history, as a restart does, and cuts all watches. The newest revision.
    pub(super) async fn forget(&self) -> i64 {
        self.ask(0, Ask::Forget).await.unwrap_or_default()
    }

    /// `None`: the task has ended, with the program.
    async fn ask<T>(&self, at: i64, ask: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.asks.send((at, ask(reply))).await.ok()?;
        answer.await.ok()
    }
}

struct State {
    objects: BTreeMap<String, StoredObject>,
    revision: i64,
    /// Events after this revision are all here.
    oldest: i64,
    events: VecDeque<Arc<Event>>,
    history: usize,
    watchers: Vec<(String, mpsc::Sender<Arc<Event>>)>,
    registry: watch::Sender<Arc<Registry>>,
}

async fn run(store: EtcdStore, mut state: State, mut asks: mpsc::Receiver<(i64, Ask)>) {
    let mut waiting: Vec<(i64, Ask)> = Vec::new();
    loop {
        let mut changes = match store.watch("", state.revision + 1).await {
            Ok(changes) => changes,
            Err(error) => {
                eprintln!("etcd cannot be watched: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        loop {
            tokio::select! {
                event = changes.next() => match event {
                    Some(Ok(WatchEvent::Changes(changes))) => state.follow(changes),
                    // It may overtake events: see `WatchEvent::Progress`.
                    Some(Ok(WatchEvent::Progress(_) | WatchEvent::Alive)) => {}
                    Some(Err(StoreError::Compacted { .. })) => {
                        if let Err(error) = state.load(&store).await {
                            eprintln!("etcd cannot be read: {error}");
                        }
                        break;
                    }
                    Some(Err(error)) => {
                        eprintln!("the watch on etcd ended: {error}");
                        tokio::time::sleep(PAUSE).await;
                        break;
                    }
                    None => break,
                },
                ask = asks.recv() => match ask {
                    Some((at, ask)) if at <= state.revision => state.answer(ask),
                    Some(later) => waiting.push(later),
                    None => return,
                },
            }
            for (at, ask) in std::mem::take(&mut waiting) {
                if at <= state.revision {
                    state.answer(ask);
                } else if !ask.is_given_up() {
                    waiting.push((at, ask));
                }
            }
        }
    }
}

impl Ask {
    fn is_given_up(&self) -> bool {
        match self {
            Self::Get(_, reply) => reply.is_closed(),
            Self::List(_, _, reply) => reply.is_closed(),
            Self::Watch(_, _, reply) => reply.is_closed(),
            Self::Revision(reply) | Self::Forget(reply) => reply.is_closed(),
        }
    }
}

impl State {
    async fn load(&mut self, store: &EtcdStore) -> Result<(), StoreError> {
        let answer = store.read(&[KeyRange::Prefix(ROOT.to_owned())]).await?;
        let values = answer.ranges.into_iter().flatten();
        self.objects = values
            .filter_map(|kv| Some((kv.key.clone(), entry(kv.key, &kv.value, kv.mod_revision)?)))
            .collect();
        self.revision = answer.revision;
        self.forget();
        self.read_definitions();
        Ok(())
    }

    fn forget(&mut self) {
        self.oldest = self.revision;
        self.events.clear();
        self.watchers.clear();
    }

    fn read_definitions(&self) {
        let definitions = self.below(DEFINITIONS).map(|e| &*e.object);
        let registry = Registry::with_definitions(definitions);
        self.registry.send_replace(Arc::new(registry));
    }

    fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a StoredObject> {
        self.objects
            .range(prefix.to_owned()..)
            .map(|(_, entry)| entry)
            .take_while(move |e| e.key.starts_with(prefix))
    }

    fn follow(&mut self, changes: Vec<Change>) {
        let mut is_definition = false;
        for change in changes {
            self.revision = self.revision.max(change.revision);
            if !change.key.starts_with(ROOT) {
                continue;
            }
            is_definition |= change.key.starts_with(DEFINITIONS);
            let after = change
                .value
                .and_then(|value| entry(change.key.clone(), &value, change.revision));
            let before = match &after {
                Some(after) => self.objects.insert(change.key.clone(), after.clone()),
                None => self.objects.remove(&change.key),
            };
            if before.is_none() && after.is_none() {
                continue;
            }
            let event = Arc::new(Event {
                revision: change.revision,
                key: change.key,
                before,
                after,
            });
            self.watchers.retain(|(prefix, to)| {
                !event.key.starts_with(prefix) || to.try_send(Arc::clone(&event)).is_ok()
            });
            self.events.push_back(event);
        }
        if is_definition {
            self.read_definitions();
        }
        self.watchers.retain(|(_, to)| !to.is_closed());
        while self.events.len() > self.history {
            if let Some(event) = self.events.pop_front() {
                self.oldest = event.revision;
            }
        }
    }

    /// Nobody waits for the answer any more: nothing is lost.
    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Get(key, reply) => drop(reply.send(self.objects.get(&key).cloned())),
            Ask::List(prefix, exact, reply) => drop(reply.send(self.list(&prefix, exact))),
            Ask::Watch(prefix, from, reply) => drop(reply.send(self.watch(prefix, from))),
            Ask::Revision(reply) => {
                let _ = reply.send(self.revision);
            }
            Ask::Forget(reply) => {
                self.forget();
                let _ = reply.send(self.revision);
            }
        }
    }

    fn list(&self, prefix: &str, exact: Option<i64>) -> Result<Listing, Outside> {
        let revision = exact.unwrap_or(self.revision);
        if revision < self.oldest {
            return Err(Outside::Old {
                oldest: self.oldest,
            });
        }
        if revision > self.revision {
            return Err(Outside::New {
                newest: self.revision,
            });
        }
        let undone: Vec<_> = self
            .events
            .iter()
            .rev()
            .take_while(|e| e.revision > revision)
            .filter(|e| e.key.starts_with(prefix))
            .collect();
        let mut entries: Vec<StoredObject> = self.below(prefix).cloned().collect();
        if !undone.is_empty() {
            let mut map: BTreeMap<_, _> = entries.into_iter().map(|e| (e.key.clone(), e)).collect();
            for event in undone {
                match &event.before {
                    Some(before) => drop(map.insert(event.key.clone(), before.clone())),
                    None => drop(map.remove(&event.key)),
                }
            }
            entries = map.into_values().collect();
        }
        Ok(Listing { revision, entries })
    }

    fn watch(&mut self, prefix: String, from: Option<i64>) -> Result<Start, Outside> {
        if from.is_some_and(|from| from < self.oldest) {
            return Err(Outside::Old {
                oldest: self.oldest,
            });
        }
        let (to, live) = mpsc::channel(BEHIND);
        let (present, backlog) = match from {
            None => (self.below(&prefix).cloned().collect(), Vec::new()),
            Some(from) => {
                let since = self.events.iter().filter(|e| e.revision > from);
                let since = since.filter(|e| e.key.starts_with(&prefix));
                (Vec::new(), since.cloned().collect())
            }
        };
        self.watchers.push((prefix, to));
        let present = Listing {
            revision: self.revision,
            entries: present,
        };
        Ok(Start {
            present,
            backlog,
            live,
        })
    }
}

/// `None`: somebody else has written there, and not an object.
fn entry(key: String, value: &[u8], revision: i64) -> Option<StoredObject> {
    let mut object: Value = match serde_json::from_slice(value) {
        Ok(object) => object,
        Err(error) => {
            eprintln!("{key}: not an object: {error}");
            return None;
        }
    };
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    Some(StoredObject {
        key,
        revision,
        object: Arc::new(object),
    })
}

/// A deleted object: its last state, with the revision of the deletion.
pub(super) fn at_revision(object: &Value, revision: i64) -> Value {
    let mut object = object.clone();
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    object
}
