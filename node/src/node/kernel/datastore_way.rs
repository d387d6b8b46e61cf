//! The way to the datastore: no rule that an earlier process has left in the kernel stands in it.
//! While one does, nothing better is ever heard.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use caracal_agent::{ServiceWriteError, ServiceWriter};
use caracal_model::{Problem, ProblemCode};
use tokio::sync::watch;

use super::lifelines::{self, Hosts};
use crate::node::problems::ProblemReporter;

/// Longest wait of a start for `nft`: one that hangs is ended after 20 s, and pods are not kept
/// waiting for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Wait after the first failure; doubled with each further one.
pub(super) const FIRST: Duration = Duration::from_secs(1);
/// Longest wait.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// Where this node reaches its datastore.
pub(crate) struct DatastoreWay {
    pub(crate) hosts: Hosts,
    /// What names of hosts were found to be.
    pub(crate) addresses: watch::Receiver<BTreeSet<IpAddr>>,
    /// It is Kubernetes' API.
    pub(crate) is_kubernetes: bool,
    /// Whether the start has freed it.
    pub(crate) freed: watch::Receiver<bool>,
    pub(crate) problems: ProblemReporter,
}

impl DatastoreWay {
    pub(super) fn endpoints(&mut self) -> BTreeSet<SocketAddr> {
        lifelines::endpoints(&self.hosts, &self.addresses.borrow_and_update())
    }

    /// Frees it, also while nothing is known of the Services of now.
    pub(super) async fn free(&mut self) {
        let endpoints = self.endpoints();
        let is_kubernetes = self.is_kubernetes;
        try_until_known(|| spare(endpoints.clone(), is_kubernetes), &self.problems).await;
    }

    /// Resolves when the start has freed it: of two that write at once each takes the other for
    /// somebody else.
    pub(super) async fn await_freed(&mut self) {
        // Where nobody does it any more there is nothing to wait for.
        let _ended = self.freed.wait_for(|freed| *freed).await;
    }
}

/// Frees the way at a start: where services are translated, the table leaves these endpoints alone;
/// where they are not, it goes. Ends when that is done, or `nft` hangs; then it goes on beside the
/// start. Answers with whether it is done.
pub(crate) async fn free_at_start(
    is_translated: bool,
    (endpoints, is_kubernetes): (BTreeSet<SocketAddr>, bool),
    problems: ProblemReporter,
) -> watch::Receiver<bool> {
    let attempt = move || {
        let endpoints = endpoints.clone();
        async move {
            match is_translated {
                true => spare(endpoints, is_kubernetes).await,
                false => remove_service_table().await,
            }
        }
    };
    begin(attempt, problems).await
}

async fn begin<F>(
    attempt: impl Fn() -> F + Send + 'static,
    problems: ProblemReporter,
) -> watch::Receiver<bool>
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let (done, mut freed) = watch::channel(false);
    tokio::spawn(async move {
        try_until_known(attempt, &problems).await;
        done.send_replace(true);
    });
    let is_freed = freed.wait_for(|freed| *freed);
    if tokio::time::timeout(PATIENCE, is_freed).await.is_err() {
        tracing::warn!("the start does not wait for nft, which does not answer");
    }
    freed
}

/// Tries until nothing hangs, and names what does. An attempt fails when it does not know how it
/// ended.
async fn try_until_known<F>(attempt: impl Fn() -> F, problems: &ProblemReporter)
where
    F: Future<Output = Result<(), String>>,
{
    let mut wait = FIRST;
    while let Err(reason) = attempt().await {
        let reason = format!(
            "it is not known whether a Service of before stands between this node and its datastore: {reason}; it is tried again"
        );
        problems.warn(vec![Problem {
            code: ProblemCode::ServicesUnwritten,
            subject: "nftables".to_owned(),
            reason,
        }]);
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST);
    }
    problems.replace(Vec::new());
}

/// Leaves these endpoints alone. `Err`: a program hangs.
async fn spare(endpoints: BTreeSet<SocketAddr>, is_kubernetes: bool) -> Result<(), String> {
    let spared = ServiceWriter::spare(&endpoints, is_kubernetes).await;
    unless_hung(spared, "cannot see whether a service covers the datastore")
}

/// Takes away what an earlier run has written: services are not translated any more. `Err`: a
/// program hangs.
pub(super) async fn remove_service_table() -> Result<(), String> {
    let removed = ServiceWriter::remove().await;
    unless_hung(removed, "the table of services cannot be taken away")
}

/// Logs what is known to have failed; `Err`: a program hangs, and nothing is known.
fn unless_hung(result: Result<(), ServiceWriteError>, what: &str) -> Result<(), String> {
    let Err(error) = result else { return Ok(()) };
    let hangs = error.is_timeout();
    let reason = format!("{:#}", anyhow::Error::new(error));
    match hangs {
        true => Err(reason),
        false => {
            tracing::warn!(reason, "{what}");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;

    use super::*;
    use crate::node::problems::{Registry, Reported};

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_its_way_but_not_for_a_program_that_hangs() {
        // One that hangs so many times is ended each time.
        let nft = |hangs: u32| {
            let asked = AtomicU32::new(0);
            move || {
                let hangs = asked.fetch_add(1, Ordering::Relaxed) < hangs;
                async move {
                    let ended = Duration::from_secs(20);
                    match hangs {
                        true => tokio::time::timeout(ended, std::future::pending())
                            .await
                            .map_err(|_| "nft did not finish within 20 s".to_owned()),
                        false => Ok(()),
                    }
                }
            }
        };
        let registry = Registry::default();
        let mut problems = registry.problems();
        let start = Instant::now();
        let freed = begin(nft(0), registry.reporter("way")).await;
        assert!(*freed.borrow() && start.elapsed() < PATIENCE);
        assert_eq!(problems.borrow().all().count(), 0);

        let start = Instant::now();
        let mut freed = begin(nft(3), registry.reporter("way")).await;
        assert!(!*freed.borrow());
        assert!(start.elapsed() < PATIENCE * 2, "{:?}", start.elapsed());
        // It is named, tried again, and done once the program answers.
        let says = |reported: &Reported| {
            let mut all = reported.all();
            all.any(|problem| problem.reason.contains("nft did not finish within 20 s"))
        };
        problems.wait_for(says).await.unwrap();
        assert!(!*freed.borrow());
        freed.wait_for(|freed| *freed).await.unwrap();
        assert!(start.elapsed() > Duration::from_secs(60));
        assert_eq!(problems.borrow().all().count(), 0);
    }
}
