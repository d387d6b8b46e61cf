//! From the speaker's feed of best routes to the map that the agent plans with.
//!
//! The word that every peer has told us everything passes through here too, behind the routes: an agent that heard it
//! by a shorter way would sweep routes that it is about to be told of, and lose the packets in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_agent::learned::Learned;
use caracal_bgp::rib::LearnedRoute;
use caracal_bgp::speaker::FibFeed;
use caracal_bgp::speaker::status::Convergence;
use caracal_model::Prefix;
use tokio::sync::watch;

/// Learned routes by prefix.
pub(super) type Map = BTreeMap<Prefix, Learned>;

/// Applies changes until the feed ends. When it ends, the last map stays: a speaker that is gone has withdrawn
/// nothing. `told` gets what `convergence` says, once the map has the routes that it is about.
pub(super) async fn follow(
    feed: FibFeed,
    mut convergence: watch::Receiver<Convergence>,
    routes: watch::Sender<Arc<Map>>,
    told: watch::Sender<Convergence>,
) {
    loop {
        let next = convergence.borrow_and_update().clone();
        apply(&routes, feed.take());
        told.send_if_modified(|old| {
            let changed = *old != next;
            *old = next;
            changed
        });
        tokio::select! {
            changes = feed.changed() => match changes {
                Some(changes) => apply(&routes, changes),
                None => return,
            },
            changed = convergence.changed() => if changed.is_err() { return },
        }
    }
}

fn apply(sender: &watch::Sender<Arc<Map>>, changes: Vec<(Prefix, Option<LearnedRoute>)>) {
    if changes.is_empty() {
        return;
    }
    sender.send_modify(|map| {
        let map = Arc::make_mut(map);
        for (prefix, route) in changes {
            match route {
                Some(route) => map.insert(prefix, adapt(route)),
                None => map.remove(&prefix),
            };
        }
    });
}

fn adapt(route: LearnedRoute) -> Learned {
    Learned {
        next_hops: route.next_hops,
        internal: route.internal,
        stale: route.stale,
    }
}
