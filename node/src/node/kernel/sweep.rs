//! When the kernel may be swept: with a datastore that is fresh, peers that have sent everything or
//! had ample time to, and routes that the origin check has judged by a fresh datastore.
//!
//! A datastore that comes back after a while brings back nodes that waited for it. Their routes are
//! in the kernel still, because nothing was deleted meanwhile; those peers get the time of a
//! restart again before what they do not announce is swept.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use caracal_agent::SweepPrecondition;
use caracal_bgp::{PeerName, PeerStatus, SessionState, SpeakerHandle, SpeakerStatus};
use caracal_datastore::View;
use caracal_model::{InsertEach, Snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

use super::learned::Completeness;

/// A datastore that was away for a shorter time kept nobody from starting.
const AWAY: Duration = Duration::from_secs(5);
/// Time for peers to come back: Caracal's default restart time.
const GRACE: Duration = Duration::from_secs(120);
/// Interval of looking whether peers are up.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time for an established peer without End-of-RIB to send its routes, and for those of any other
/// to come from the session to here.
const ROUTES_LIMIT: Duration = Duration::from_secs(5);

/// Says of each peer whether it is established and has sent End-of-RIB, where it sends one.
pub(crate) trait Peers {
    /// `None`: there is no answer any more.
    async fn complete(&self) -> Option<Vec<(PeerName, bool)>>;
}

impl Peers for SpeakerHandle {
    async fn complete(&self) -> Option<Vec<(PeerName, bool)>> {
        let status: SpeakerStatus = self.status().await.ok()?;
        let is_complete =
            |peer: &PeerStatus| peer.state == SessionState::Established && peer.told_all;
        let peers = status.peers.iter();
        let word = |peer: &PeerStatus| (peer.name.clone(), is_complete(peer));
        Some(peers.map(word).collect())
    }
}

/// Peers that were not up, or had not told everything, when the datastore came back.
struct Starting {
    down: BTreeSet<PeerName>,
    /// When the last one has told everything that did.
    up: Option<Instant>,
    until: Instant,
}

impl Starting {
    /// Those who are down now that the datastore is back; `None` when it was not away for long.
    fn after(away: Instant, now: Instant, peers: &[(PeerName, bool)]) -> Option<Self> {
        let down = peers.iter().filter(|(_, up)| !up);
        (now >= away + AWAY).then(|| Self {
            down: down.map(|(name, _)| name.clone()).insert_each(),
            up: None,
            until: now + GRACE,
        })
    }

    /// Looks again; `false`: they need not be waited for any more.
    fn must_wait(&mut self, now: Instant, peers: &[(PeerName, bool)]) -> bool {
        let before = self.down.len();
        let still = |name: &PeerName| peers.iter().any(|(peer, up)| peer == name && !up);
        self.down.retain(still);
        if self.down.len() < before {
            self.up = Some(now);
        }
        let telling = self.up.is_some_and(|up| now < up + ROUTES_LIMIT);
        now < self.until && (!self.down.is_empty() || telling)
    }

    fn reason(&self) -> String {
        if self.down.is_empty() {
            return "peers that came up after the datastore came back are telling their routes"
                .to_owned();
        }
        let names: Vec<&str> = self.down.iter().map(|name| name.as_str()).collect();
        format!(
            "the datastore was away; waiting for peers that may be starting: {}",
            names.join(", ")
        )
    }
}

/// Keeps the answer current, and hands on the snapshots of the views. The snapshot goes first: a
/// precondition that is met is never about a snapshot still to come.
pub(crate) async fn hold_sweep(
    mut view: watch::Receiver<View>,
    mut completeness: watch::Receiver<Completeness>,
    peers: impl Peers,
    snapshots: watch::Sender<Arc<Snapshot>>,
    precondition: watch::Sender<SweepPrecondition>,
) {
    let mut away = (!view.borrow().is_current()).then(Instant::now);
    let mut starting: Option<Starting> = None;
    loop {
        let heard = view.borrow_and_update().clone();
        snapshots.send_if_modified(|old| {
            let changed = !Arc::ptr_eq(old, &heard.snapshot);
            *old = heard.snapshot.clone();
            changed
        });
        let now = Instant::now();
        if !heard.is_current() {
            away.get_or_insert(now);
            starting = None;
        } else if let Some(since) = away.take() {
            starting = Starting::after(since, now, &peers.complete().await.unwrap_or_default());
        }
        if let Some(waiting) = &mut starting {
            let known = peers.complete().await.unwrap_or_default();
            if !waiting.must_wait(Instant::now(), &known) {
                starting = None;
            }
        }
        let next = SweepPrecondition {
            datastore: match heard.freshness.reason() {
                None => Ok(()),
                Some(reason) => Err(format!("the datastore is not fresh: {reason}")),
            },
            bgp: match &starting {
                Some(starting) => Err(starting.reason()),
                None => complete(&completeness.borrow_and_update()),
            },
        };
        precondition.send_if_modified(|precondition| {
            let changed = *precondition != next;
            *precondition = next;
            changed
        });
        tokio::select! {
            changed = view.changed() => if changed.is_err() { return },
            changed = completeness.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(INTERVAL), if starting.is_some() => {}
        }
    }
}

fn complete(routes: &Completeness) -> Result<(), String> {
    if let Some(reason) = routes.convergence.reason() {
        return Err(reason);
    }
    // A route to a block that was made while the datastore was away waited until now.
    match routes.judged {
        true => Ok(()),
        false => Err(
            "the datastore is back, and the origin check has not yet judged the routes by it"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use caracal_bgp::Convergence;
    use caracal_datastore::Freshness;

    use super::*;

    fn peers(a: bool, b: bool) -> Vec<(PeerName, bool)> {
        vec![("a".into(), a), ("b".into(), b)]
    }

    #[test]
    fn peers_that_start_when_the_datastore_is_back_get_their_time() {
        let away = Instant::now();
        let after = |seconds| away + Duration::from_secs(seconds);
        // A short absence kept nobody from starting.
        assert!(Starting::after(away, after(3), &peers(true, false)).is_none());
        // All are up: nobody is waited for.
        let mut nobody = Starting::after(away, after(60), &peers(true, true)).unwrap();
        assert!(!nobody.must_wait(after(60), &peers(true, true)));
        // One is down, comes up, and tells its routes.
        let mut one = Starting::after(away, after(60), &peers(true, false)).unwrap();
        assert!(one.must_wait(after(60), &peers(true, false)));
        assert!(one.reason().ends_with("may be starting: b"));
        // A peer that goes down later changes nothing.
        assert!(one.must_wait(after(70), &peers(false, false)));
        assert!(one.reason().ends_with("may be starting: b"));
        assert!(one.must_wait(after(80), &peers(true, true)));
        assert!(one.reason().contains("telling their routes"));
        assert!(one.must_wait(after(84), &peers(true, true)));
        assert!(!one.must_wait(after(85), &peers(true, true)));
        // One is down for good, or no peer any more.
        let mut dead = Starting::after(away, after(60), &peers(true, false)).unwrap();
        assert!(dead.must_wait(after(179), &peers(true, false)));
        assert!(!dead.must_wait(after(180), &peers(true, false)));
        let mut gone = Starting::after(away, after(60), &peers(true, false)).unwrap();
        let left = vec![("a".into(), true)];
        assert!(gone.must_wait(after(61), &left) && !gone.must_wait(after(70), &left));
    }

    /// All peers are up.
    struct Up;

    impl Peers for Up {
        async fn complete(&self) -> Option<Vec<(PeerName, bool)>> {
            Some(peers(true, true))
        }
    }

    fn view(freshness: Freshness) -> View {
        View {
            snapshot: Arc::default(),
            revision: 1,
            wakes: 1,
            freshness,
            synced: true,
            fault: None,
            store: caracal_datastore::StoreId::default(),
            absent: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_datastore_that_is_back_sweeps_nothing_before_the_origin_check_has_judged() {
        let stale = Freshness::Stale {
            since: Instant::now(),
            reason: "away".to_owned(),
        };
        let (views, heard) = watch::channel(view(stale));
        let converged = Convergence {
            converged: true,
            ..Convergence::default()
        };
        let not_judged = Completeness {
            convergence: converged,
            judged: false,
        };
        let (routes, completeness) = watch::channel(not_judged.clone());
        let (precondition, mut met) = watch::channel(SweepPrecondition::default());
        let task = tokio::spawn(hold_sweep(
            heard,
            completeness,
            Up,
            watch::channel(Arc::default()).0,
            precondition,
        ));
        met.wait_for(|met| met.datastore.is_err()).await.unwrap();
        views.send_replace(view(Freshness::Fresh));
        let first = met.wait_for(|met| met.datastore.is_ok()).await.unwrap();
        let reason = first.bgp.clone().unwrap_err();
        assert!(reason.contains("origin check"), "{reason}");
        drop(first);
        routes.send_replace(Completeness {
            judged: true,
            ..not_judged
        });
        met.wait_for(|met| met.bgp.is_ok()).await.unwrap();
        drop(routes);
        task.await.unwrap();
    }
}
