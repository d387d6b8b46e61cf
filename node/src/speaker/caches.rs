//! The RPKI caches of a file: who follows them, and what `caracal status` says of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_bgp::{RtrHandle, RtrState, RtrStatus};
use caracal_model::{CacheStatusJson, Problem, ProblemCode};
use caracal_templates::{Cache, Learned};
use tokio::sync::{Notify, watch};

/// The caches that are followed.
#[derive(Debug)]
pub(super) struct Caches {
    running: BTreeMap<String, (Cache, RtrHandle)>,
    changed: Arc<Notify>,
    followed: watch::Sender<Followed>,
}

impl Caches {
    pub(super) fn new() -> Self {
        Self {
            running: BTreeMap::new(),
            changed: Arc::default(),
            followed: watch::Sender::default(),
        }
    }

    /// Follows these caches; one that is followed already goes on. True when some are others.
    pub(super) fn change(&mut self, wanted: BTreeMap<String, Cache>) -> bool {
        let is_same = |name: &String, cache: &Cache| {
            let running = self.running.get(name);
            running.is_some_and(|(known, _)| known == cache)
        };
        let same = wanted.iter().all(|(name, cache)| is_same(name, cache));
        if same && wanted.len() == self.running.len() {
            return false;
        }
        let mut before = std::mem::take(&mut self.running);
        for (name, cache) in wanted {
            let kept = before
                .remove(&name)
                .filter(|(known, _)| known.rtr == cache.rtr);
            let handle = match kept {
                Some((_, handle)) => handle,
                None => {
                    RtrHandle::start(name.clone(), cache.rtr.clone(), Arc::clone(&self.changed))
                }
            };
            self.running.insert(name, (cache, handle));
        }
        let running = self.running.iter();
        let followed = running.map(|(name, (cache, handle))| {
            let address = format!("{} port {}", cache.rtr.host, cache.rtr.port);
            (name.clone(), address, handle.status())
        });
        self.followed.send_replace(Followed(followed.collect()));
        true
    }

    /// Told each time the entries of some cache are others.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// What they have sent.
    pub(super) fn learned(&self) -> Learned {
        let running = self.running.iter();
        running
            .map(|(name, (_, handle))| (name.clone(), handle.entries()))
            .collect()
    }

    pub(super) fn followed(&self) -> watch::Receiver<Followed> {
        self.followed.subscribe()
    }
}

/// The caches, for who looks at them: name, place, status.
#[derive(Clone, Debug, Default)]
pub(super) struct Followed(Arc<[(String, String, watch::Receiver<RtrStatus>)]>);

impl Followed {
    pub(super) fn status(&self) -> Vec<CacheStatusJson> {
        let one = |(name, address, status): &(String, String, watch::Receiver<RtrStatus>)| {
            let status = status.borrow();
            CacheStatusJson {
                name: name.clone(),
                address: address.clone(),
                state: match status.state {
                    RtrState::Down => "Down",
                    RtrState::Synchronizing => "Synchronizing",
                    RtrState::Current => "Current",
                }
                .to_owned(),
                entries: status.entries.len(),
                version: status.held.map(|(version, _, _)| version),
                session: status.held.map(|(_, session, _)| session),
                serial: status.held.map(|(_, _, serial)| serial),
                updated_seconds: status.updated.map(|at| at.elapsed().as_secs()),
                reason: status.reason.clone(),
            }
        };
        self.0.iter().map(one).collect()
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        let one = |cache: CacheStatusJson| {
            let used = match cache.entries {
                0 => "none of its entries is in use, so that `roa_check` gives `ROA_UNKNOWN`",
                _ => "the entries that it sent last are in use until they expire",
            };
            Some(Problem {
                code: ProblemCode::BgpRpkiCache,
                subject: format!("RPKI cache {} ({})", cache.name, cache.address),
                reason: format!("{}; {used}", cache.reason?),
            })
        };
        self.status().into_iter().filter_map(one).collect()
    }
}
