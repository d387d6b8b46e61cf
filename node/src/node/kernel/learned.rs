//! From the speaker's feed of best routes to the map that the agent plans with, and the routes to
//! peers through gateways beside them.
//!
//! The word that every peer has told us everything passes through here too, behind the routes: an
//! agent that heard it by a shorter way would sweep routes that it is about to be told of, and lose
//! the packets in between. So does the word over which underlay the routes are resolved.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_agent::Learned;
use caracal_bgp::{Convergence, FibFeed, LearnedRoute};
use caracal_model::SharedMap;
use caracal_model::net::Prefix;
use tokio::sync::watch;

/// Learned routes by prefix.
pub(crate) type Map = SharedMap<Prefix, Learned>;

/// Underlay over which the speaker has resolved its routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Resolved {
    /// Number of the published underlay.
    pub(crate) number: u64,
    /// The routes to peers through gateways.
    pub(crate) peers: Arc<Map>,
}

/// Applies changes until the feed ends. When it ends, the last map stays: a speaker that is gone
/// has withdrawn nothing. `told` gets what `convergence` says, once the map has the routes that it
/// is about, and `number` what `resolved` says.
pub(crate) async fn follow(
    feed: FibFeed,
    mut convergence: watch::Receiver<Convergence>,
    mut resolved: watch::Receiver<Resolved>,
    routes: watch::Sender<Map>,
    told: watch::Sender<Convergence>,
    number: watch::Sender<u64>,
) {
    let mut fixed = Fixed::default();
    loop {
        let next = convergence.borrow_and_update().clone();
        let over = resolved.borrow_and_update().clone();
        fixed.apply(&routes, feed.take());
        fixed.change(&routes, &over.peers);
        number.send_if_modified(|known| std::mem::replace(known, over.number) != over.number);
        told.send_if_modified(|old| {
            let changed = *old != next;
            *old = next;
            changed
        });
        tokio::select! {
            changes = feed.changed() => match changes {
                Some(changes) => fixed.apply(&routes, changes),
                None => return,
            },
            changed = convergence.changed() => if changed.is_err() { return },
            changed = resolved.changed() => if changed.is_err() { return },
        }
    }
}

/// Routes that hold whatever is learned, each with the learned route that it hides.
#[derive(Debug, Default)]
struct Fixed(BTreeMap<Prefix, Option<Learned>>);

impl Fixed {
    fn apply(&mut self, sender: &watch::Sender<Map>, changes: Vec<(Prefix, Option<LearnedRoute>)>) {
        // The feed tells of our own announcements, too; whoever plans with the map is woken by news
        // alone.
        sender.send_if_modified(|map| {
            let mut news = Vec::new();
            for (prefix, route) in changes {
                let route = route.map(crate::admin::routes::learned);
                match self.0.get_mut(&prefix) {
                    Some(hidden) => *hidden = route,
                    None => news.push((prefix, route)),
                }
            }
            news.retain(|(prefix, route)| map.get(prefix) != route.as_ref());
            if news.is_empty() {
                return false;
            }
            for (prefix, route) in news {
                match route {
                    Some(route) => drop(map.insert(prefix, route)),
                    None => drop(map.remove(&prefix)),
                }
            }
            true
        });
    }

    fn change(&mut self, sender: &watch::Sender<Map>, routes: &Map) {
        sender.send_if_modified(|map| {
            let same = self.0.len() == routes.len()
                && routes
                    .iter()
                    .all(|(p, r)| self.0.contains_key(p) && map.get(p) == Some(r));
            if same {
                return false;
            }
            for (prefix, hidden) in std::mem::take(&mut self.0) {
                match hidden {
                    Some(route) => drop(map.insert(prefix, route)),
                    None => drop(map.remove(&prefix)),
                }
            }
            for (prefix, route) in routes {
                self.0.insert(*prefix, map.insert(*prefix, route.clone()));
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(n: u8) -> Learned {
        Learned::external([10, 0, 0, n].into())
    }

    #[test]
    fn nobody_is_woken_without_news() {
        let prefix: Prefix = "10.244.1.0/26".parse().unwrap();
        let (sender, mut map) = watch::channel(Map::default());
        let mut fixed = Fixed::default();
        let learned = |n: u8| LearnedRoute {
            next_hops: vec![[10, 0, 0, n].into()],
            gateways: Arc::default(),
            peer: "node2".into(),
            peer_address: [10, 0, 0, 2].into(),
            internal: false,
            local_pref: 100,
            med: None,
            as_path_len: 0,
            communities: Vec::new(),
            stale: false,
        };
        for (change, news) in [
            (None, false),
            (Some(learned(1)), true),
            (Some(learned(1)), false),
            (Some(learned(2)), true),
            (None, true),
            (None, false),
        ] {
            fixed.apply(&sender, vec![(prefix, change.clone())]);
            assert_eq!(map.has_changed().unwrap(), news, "{change:?}");
            let known = map.borrow_and_update().get(&prefix).cloned();
            assert_eq!(known, change.map(crate::admin::routes::learned));
        }
    }

    #[test]
    fn a_fixed_route_hides_a_learned_one_and_gives_it_back() {
        let prefix: Prefix = "10.1.0.2/32".parse().unwrap();
        let (sender, map) = watch::channel(Map::from_iter([(prefix, route(1))]));
        let mut fixed = Fixed::default();
        fixed.change(&sender, &Map::from_iter([(prefix, route(254))]));
        assert_eq!(map.borrow()[&prefix], route(254));
        fixed.apply(&sender, vec![(prefix, None)]);
        assert_eq!(map.borrow()[&prefix], route(254));
        fixed.change(&sender, &Map::from_iter([(prefix, route(253))]));
        assert_eq!(map.borrow()[&prefix], route(253));
        fixed.change(&sender, &Map::default());
        assert!(map.borrow().is_empty(), "it was withdrawn meanwhile");
    }
}
