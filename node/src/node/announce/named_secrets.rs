//! Passwords of sessions from Secrets of Kubernetes, where Calico's data are there, too: each
//! Secret that a BGPPeer or BGPConfiguration names is followed by its name, and no other. A
//! password that cannot be read any more stays in use; that of a Secret that was deleted does not.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use caracal_bgp::Password;
use caracal_datastore::{Datastore, SecretContent, StoreError, View};
use caracal_model::{InsertEach, Problem, ProblemCode, Snapshot};
use caracal_topologies::{SecretName, secret_names};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::sync::watch;

use super::secrets::Secrets;
use crate::node::problems::ProblemReporter;

/// Longest wait of a start for its passwords: without one its session comes up later.
const FIRST: Duration = Duration::from_secs(2);

/// One Secret.
struct Named {
    stream: BoxStream<'static, Result<SecretContent, StoreError>>,
    /// What it has; `None` until it was read.
    content: Option<SecretContent>,
    /// Why it could not be read.
    fault: Option<String>,
}

/// The Secrets that are named.
struct NamedSecrets {
    store: Datastore,
    namespace: String,
    named: BTreeMap<String, Named>,
}

impl NamedSecrets {
    const fn new(store: Datastore, namespace: String) -> Self {
        Self {
            store,
            namespace,
            named: BTreeMap::new(),
        }
    }

    /// Follows the Secrets that a snapshot names, and those only.
    fn follow(&mut self, snapshot: &Snapshot) {
        let names = secret_names(snapshot).into_iter();
        let names: BTreeSet<String> = names.map(|secret| secret.name).insert_each();
        self.named.retain(|name, _| names.contains(name));
        for name in names {
            if self.named.contains_key(&name) {
                continue;
            }
            if let Some(stream) = self.store.secret(&self.namespace, &name) {
                let named = Named {
                    stream,
                    content: None,
                    fault: None,
                };
                self.named.insert(name, named);
            }
        }
    }

    /// Waits for news of any of them. Dropping the future loses nothing.
    async fn news(&mut self) {
        poll_fn(|cx| {
            for named in self.named.values_mut() {
                match named.stream.poll_next_unpin(cx) {
                    Poll::Ready(Some(Ok(content))) => {
                        (named.content, named.fault) = (Some(content), None);
                    }
                    Poll::Ready(Some(Err(error))) => named.fault = Some(error.to_string()),
                    Poll::Ready(None) | Poll::Pending => continue,
                }
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    /// Some were neither read nor refused yet.
    fn are_awaited(&self) -> bool {
        let mut named = self.named.values();
        named.any(|secret| secret.content.is_none() && secret.fault.is_none())
    }

    fn passwords(&self) -> Secrets {
        let known = self.named.iter();
        let known = known.filter_map(|(name, secret)| Some((name, secret.content.as_ref()?)));
        let each = |(name, content): (&String, &SecretContent)| {
            let name = name.clone();
            let texts = content.0.clone().into_iter();
            texts.map(move |(key, text)| {
                let name = name.clone();
                (SecretName { name, key }, Password(text))
            })
        };
        known.flat_map(each).insert_each()
    }

    fn problems(&self) -> Vec<Problem> {
        let problem = |(name, secret): (&String, &Named)| {
            let fault = secret.fault.as_ref()?;
            let kept = match secret.content {
                Some(_) => "its passwords stay in use as they were read last",
                None => "sessions that need it are left out",
            };
            Some(Problem {
                code: ProblemCode::BgpPassword,
                subject: format!("Secret {}/{name}", self.namespace),
                reason: format!("it cannot be read: {fault}; {kept}, and it is tried again"),
            })
        };
        self.named.iter().filter_map(problem).collect()
    }
}

/// The passwords that a snapshot names, as far as they can be had at once.
pub(crate) async fn first(store: &Datastore, namespace: &str, snapshot: &Snapshot) -> Secrets {
    let mut named = NamedSecrets::new(store.clone(), namespace.to_owned());
    named.follow(snapshot);
    let all = async {
        while named.are_awaited() {
            named.news().await;
        }
    };
    let in_time = tokio::time::timeout(FIRST, all).await.is_ok();
    if !in_time {
        tracing::warn!("passwords of Secrets are not known yet; their sessions come up later");
    }
    named.passwords()
}

/// Publishes what changes, for ever.
pub(crate) async fn watch_named_secrets(
    store: Datastore,
    namespace: String,
    mut view: watch::Receiver<View>,
    secrets: watch::Sender<Secrets>,
    problems: ProblemReporter,
) {
    let mut named = NamedSecrets::new(store, namespace);
    loop {
        let snapshot = view.borrow_and_update().snapshot.clone();
        named.follow(&snapshot);
        problems.warn(named.problems());
        // At the start the ones that are in use are better than none.
        if !named.are_awaited() {
            let next = named.passwords();
            secrets.send_if_modified(|known| {
                let changed = *known != next;
                *known = next;
                changed
            });
        }
        let alive = tokio::select! {
            changed = view.changed() => changed.is_ok(),
            () = named.news() => true,
        };
        if !alive || secrets.is_closed() {
            return;
        }
    }
}
