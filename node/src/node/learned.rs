//! From the speaker's feed of best routes to the map that the agent plans with.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_agent::learned::Learned;
use caracal_bgp::rib::LearnedRoute;
use caracal_bgp::speaker::FibFeed;
use caracal_model::Prefix;
use tokio::sync::watch;

/// Learned routes by prefix.
pub(super) type Map = BTreeMap<Prefix, Learned>;

/// Applies changes until the feed ends. When it ends, the last map stays: a speaker that is gone has withdrawn
/// nothing.
pub(super) async fn follow(feed: FibFeed, sender: watch::Sender<Arc<Map>>) {
    while let Some(changes) = feed.changed().await {
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
}

fn adapt(route: LearnedRoute) -> Learned {
    Learned {
        next_hops: route.next_hops,
        internal: route.internal,
        stale: route.stale,
    }
}
