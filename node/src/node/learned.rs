//! From the speaker's feed of best routes to the map that the agent plans with, and the ways to peers beside them.
//!
//! The word that every peer has told us everything passes through here too, behind the routes: an agent that heard it
//! by a shorter way would sweep routes that it is about to be told of, and lose the packets in between.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use caracal_agent::learned::Learned;
use caracal_bgp::rib::LearnedRoute;
use caracal_bgp::speaker::FibFeed;
use caracal_bgp::speaker::status::Convergence;
use caracal_model::Prefix;
use tokio::sync::watch;

/// Learned routes by prefix.
pub(super) type Map = BTreeMap<Prefix, Learned>;

/// Ways to peers (`reachableBy`): a route to the peer through a gateway, whatever is learned.
pub(super) type Gateways = BTreeMap<Prefix, IpAddr>;

/// Applies changes until the feed ends. When it ends, the last map stays: a speaker that is gone has withdrawn
/// nothing. `told` gets what `convergence` says, once the map has the routes that it is about.
pub(super) async fn follow(
    feed: FibFeed,
    mut convergence: watch::Receiver<Convergence>,
    mut gateways: watch::Receiver<Gateways>,
    routes: watch::Sender<Arc<Map>>,
    told: watch::Sender<Convergence>,
) {
    let mut ways = Ways::default();
    loop {
        let next = convergence.borrow_and_update().clone();
        ways.apply(&routes, feed.take());
        ways.change(&routes, &gateways.borrow_and_update());
        told.send_if_modified(|old| {
            let changed = *old != next;
            *old = next;
            changed
        });
        tokio::select! {
            changes = feed.changed() => match changes {
                Some(changes) => ways.apply(&routes, changes),
                None => return,
            },
            changed = convergence.changed() => if changed.is_err() { return },
            changed = gateways.changed() => if changed.is_err() { return },
        }
    }
}

/// The ways in force, each with the learned route that it hides.
#[derive(Debug, Default)]
struct Ways(BTreeMap<Prefix, Option<Learned>>);

impl Ways {
    fn apply(
        &mut self,
        sender: &watch::Sender<Arc<Map>>,
        changes: Vec<(Prefix, Option<LearnedRoute>)>,
    ) {
        // The feed tells of our own announcements, too; whoever plans with the map is woken by news alone.
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
            let map = Arc::make_mut(map);
            for (prefix, route) in news {
                match route {
                    Some(route) => drop(map.insert(prefix, route)),
                    None => drop(map.remove(&prefix)),
                }
            }
            true
        });
    }

    fn change(&mut self, sender: &watch::Sender<Arc<Map>>, gateways: &Gateways) {
        let routes: Map = gateways
            .iter()
            .map(|(peer, via)| (*peer, way(*via)))
            .collect();
        sender.send_if_modified(|map| {
            let same = self.0.len() == routes.len()
                && routes
                    .iter()
                    .all(|(p, r)| self.0.contains_key(p) && map.get(p) == Some(r));
            if same {
                return false;
            }
            let map = Arc::make_mut(map);
            for (prefix, hidden) in std::mem::take(&mut self.0) {
                match hidden {
                    Some(route) => drop(map.insert(prefix, route)),
                    None => drop(map.remove(&prefix)),
                }
            }
            for (prefix, route) in routes {
                self.0.insert(prefix, map.insert(prefix, route));
            }
            true
        });
    }
}

fn way(via: IpAddr) -> Learned {
    Learned {
        next_hops: vec![via],
        internal: false,
        stale: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(n: u8) -> Learned {
        way([10, 0, 0, n].into())
    }

    #[test]
    fn nobody_is_woken_without_news() {
        let prefix: Prefix = "10.244.1.0/26".parse().unwrap();
        let (sender, mut map) = watch::channel(Arc::new(Map::new()));
        let mut ways = Ways::default();
        let learned = |n: u8| LearnedRoute {
            next_hops: vec![[10, 0, 0, n].into()],
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
            ways.apply(&sender, vec![(prefix, change.clone())]);
            assert_eq!(map.has_changed().unwrap(), news, "{change:?}");
            let known = map.borrow_and_update().get(&prefix).cloned();
            assert_eq!(known, change.map(crate::admin::routes::learned));
        }
    }

    #[test]
    fn a_way_hides_a_learned_route_and_gives_it_back() {
        let prefix: Prefix = "10.1.0.2/32".parse().unwrap();
        let (sender, map) = watch::channel(Arc::new(Map::from([(prefix, route(1))])));
        let mut ways = Ways::default();
        ways.change(&sender, &Gateways::from([(prefix, [10, 0, 0, 254].into())]));
        assert_eq!(map.borrow()[&prefix], route(254));
        ways.apply(&sender, vec![(prefix, None)]);
        assert_eq!(map.borrow()[&prefix], route(254));
        ways.change(&sender, &Gateways::from([(prefix, [10, 0, 0, 253].into())]));
        assert_eq!(map.borrow()[&prefix], route(253));
        ways.change(&sender, &Gateways::new());
        assert!(map.borrow().is_empty(), "it was withdrawn meanwhile");
    }
}
