//! From the speaker's feed of best routes to the map that the agent plans with, and the routes to
//! peers through gateways beside them.
//!
//! How complete the routes are passes through here too, behind the routes: an agent that heard by a
//! shorter way that every peer has sent everything, or that waiting routes have been judged, would
//! sweep routes that it is about to hear of, and lose the packets in between. So does the number of
//! the underlay over which the routes are resolved.

use std::collections::BTreeMap;
use std::sync::Arc;

use caracal_agent::Learned;
use caracal_bgp::{Convergence, FibFeed, LearnedRoute};
use caracal_model::{Prefix, SharedMap};
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

/// How complete the learned routes are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Completeness {
    /// Whether the peers have sent everything.
    pub(crate) convergence: Convergence,
    /// Whether the origin check has judged them by the owners of a current view.
    pub(crate) judged: bool,
}

/// State of the learned routes besides the feed.
pub(crate) struct Beside {
    pub(crate) convergence: watch::Receiver<Convergence>,
    /// The origin check has judged the routes by the owners of a current view.
    pub(crate) judged: watch::Receiver<bool>,
    pub(crate) resolved: watch::Receiver<Resolved>,
}

/// Applies changes until the feed ends. When it ends, the last map stays: a speaker that is gone
/// has withdrawn nothing. `completeness` and `number` get what `beside` says, once the map has the
/// routes that it is about.
pub(crate) async fn follow(
    feed: FibFeed,
    mut beside: Beside,
    routes: watch::Sender<Map>,
    completeness: watch::Sender<Completeness>,
    number: watch::Sender<u64>,
) {
    let mut fixed = Fixed::default();
    loop {
        let next = Completeness {
            convergence: beside.convergence.borrow_and_update().clone(),
            judged: *beside.judged.borrow_and_update(),
        };
        let over = beside.resolved.borrow_and_update().clone();
        fixed.apply(&routes, feed.take());
        fixed.change(&routes, &over.peers);
        number.send_if_modified(|known| std::mem::replace(known, over.number) != over.number);
        completeness.send_if_modified(|old| {
            let changed = *old != next;
            *old = next;
            changed
        });
        tokio::select! {
            changes = feed.changed() => match changes {
                Some(changes) => fixed.apply(&routes, changes),
                None => return,
            },
            changed = beside.convergence.changed() => if changed.is_err() { return },
            changed = beside.judged.changed() => if changed.is_err() { return },
            changed = beside.resolved.changed() => if changed.is_err() { return },
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
            news.sort_unstable_by_key(|(prefix, _)| *prefix);
            map.change(news);
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

    fn learned(n: u8) -> LearnedRoute {
        LearnedRoute {
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
            preferred_source: None,
        }
    }

    /// Whoever hears that everything has been told, and looks at the map then, finds it there.
    #[tokio::test]
    async fn the_word_that_all_is_told_comes_behind_the_routes() {
        const ROUNDS: u32 = 200;
        let feed = FibFeed::new();
        let (convergence, told) = watch::channel(Convergence::default());
        let (_judged, judged) = watch::channel(true);
        let (_resolved, resolved) = watch::channel(Resolved::default());
        let beside = Beside {
            convergence: told,
            judged,
            resolved,
        };
        let (routes, map) = watch::channel(Map::default());
        let (completeness, mut complete) = watch::channel(Completeness::default());
        let number = watch::channel(0).0;
        let task = tokio::spawn(follow(feed.clone(), beside, routes, completeness, number));
        let prefix = |n: u32| Prefix::v4((0x1400_0000 + (n << 8)).into(), 24);
        for round in 1..=ROUNDS {
            feed.extend([(prefix(round), Some(learned(1)))]);
            // Another word each time: what it says does not matter here.
            convergence.send_replace(Convergence {
                converged: true,
                awaited: vec![format!("node{round}").into()],
            });
            let now = format!("node{round}").into();
            let heard = complete.wait_for(|told| told.convergence.awaited.contains(&now));
            drop(heard.await.unwrap());
            assert_eq!(map.borrow().len(), round as usize);
        }
        feed.close();
        task.await.unwrap();
    }

    #[test]
    fn nobody_is_woken_without_news() {
        let prefix: Prefix = "10.244.1.0/26".parse().unwrap();
        let (sender, mut map) = watch::channel(Map::default());
        let mut fixed = Fixed::default();
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
