//! Learned routes as ground for the next hops of others, and what happens when they do not hold still.
//!
//! A next hop may be reached through a learned route whose own next hop is on a link. When what becomes reachable in this way
//! is preferred over the very route that it stands on, the ground goes, the old route comes back, and so on without end: a
//! route whose next hop lies in itself, or two that stand on each other. RFC 4271 §9.1.2.1 has such routes fail; who
//! looks at best routes only sees them by their coming and going. A learned route that is lost as ground again and again is
//! none for a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use caracal_agent::Ways;
use caracal_model::Prefix;

/// So many losses …
const LOSSES: usize = 3;
/// … within this time bar a range, for as long again.
const WINDOW: Duration = Duration::from_secs(60);

/// What learned routes have done as ground.
#[derive(Debug, Default)]
pub(super) struct Ground {
    /// Ranges that were reached by a learned route at the last look.
    standing: BTreeSet<Prefix>,
    /// When ranges ceased to be, the latest times.
    losses: BTreeMap<Prefix, VecDeque<Instant>>,
    barred: BTreeMap<Prefix, Instant>,
}

impl Ground {
    /// Looks at the ways as they are now.
    pub(super) fn look(&mut self, now: Instant, ways: &Ways) {
        self.barred.retain(|_, until| *until > now);
        self.losses.retain(|_, times| {
            times.retain(|at| now.duration_since(*at) < WINDOW);
            !times.is_empty()
        });
        let learned = ways
            .iter()
            .filter(|(_, way)| way.is_some_and(|way| way.learned));
        let standing: BTreeSet<Prefix> = learned.map(|(range, _)| *range).collect();
        for lost in self.standing.difference(&standing) {
            let times = self.losses.entry(*lost).or_default();
            times.push_back(now);
            if times.len() >= LOSSES {
                times.clear();
                self.barred.insert(*lost, now + WINDOW);
                tracing::warn!(
                    range = %lost,
                    "the route to this range comes and goes with the routes whose next hops are in it; for {} s they do not stand on it",
                    WINDOW.as_secs()
                );
            }
        }
        self.standing = standing;
    }

    /// True when next hops shall not stand on the learned route to this range.
    pub(super) fn is_barred(&self, range: &Prefix) -> bool {
        self.barred.contains_key(range)
    }

    /// When the first bar ends.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.barred.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::IpAddr;

    use caracal_agent::Way;
    use caracal_bgp::attrs::PathAttrs;
    use caracal_bgp::config::{PeerConfig, SpeakerConfig};
    use caracal_bgp::rib::{NextHops, Rib, RibOptions, SessionInfo, SessionOptions};
    use caracal_bgp::types::{Asn, PeerName, RouterId};
    use caracal_bgp::wire::update::Update;
    use caracal_model::Family;

    use super::*;
    use crate::next_hops;

    const AS: Asn = Asn(64512);

    fn address(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    /// A table with the peers 10.0.0.2 and 10.0.0.3, which announce what they are told to.
    fn table(now: Instant, routes: &[(u8, &str, &str, u32)]) -> Rib {
        let names = [2u8, 3].map(|n| PeerName::from(format!("p{n}")));
        let peers = [2, 3].map(|n| PeerConfig::new(address(n), AS));
        let config = SpeakerConfig {
            local_as: AS,
            router_id: RouterId([10, 0, 0, 1].into()),
            listen: None,
            peers: names.iter().cloned().zip(peers).collect(),
            originate: BTreeMap::new(),
            filters: BTreeMap::new(),
            stations: BTreeMap::new(),
        };
        let (mut rib, _) = Rib::new(now, &config, RibOptions::default());
        for (n, name) in (2..).zip(&names) {
            let session = SessionInfo {
                families: vec![Family::Ipv4],
                router_id: RouterId([1, 0, 0, n].into()),
                local_address: address(1),
                remote_address: address(n),
                graceful_restart: None,
                options: SessionOptions::default(),
                capabilities: vec![],
            };
            rib.peer_up(now, name, session);
        }
        for (n, to, via, local_pref) in routes {
            let update = Update {
                announced: vec![prefix(to)],
                attrs: Some(PathAttrs {
                    next_hop: Some(via.parse().unwrap()),
                    local_pref: Some(*local_pref),
                    ..PathAttrs::default()
                }),
                ..Update::default()
            };
            rib.apply(now, &names[usize::from(n - 2)], update);
        }
        rib
    }

    /// The ways as the agent finds them: our subnet, and one step through learned routes with a next hop in it.
    fn ways(rib: &Rib) -> Ways {
        let way = |gateway, learned| Way {
            gateway,
            link: "eth0".into(),
            metric: 0,
            carrier: true,
            learned,
        };
        let subnet = prefix("10.0.0.0/24");
        let mut ways = Ways::default();
        ways.offer(subnet, Some(way(None, false)));
        for (range, route) in rib.all_learned() {
            if subnet.contains(route.next_hops[0]) {
                ways.offer(range, Some(way(Some(route.next_hops[0]), true)));
            }
        }
        ways
    }

    /// How often the routes change in a hundred passes, ten a second, and the next hops of a range in the end.
    fn passes(rib: &mut Rib, mut now: Instant, range: &str, damped: bool) -> (usize, Vec<IpAddr>) {
        let mut ground = Ground::default();
        let mut changes = 0;
        for _ in 0..100 {
            let ways = ways(rib);
            ground.look(now, &ways);
            let told: NextHops =
                next_hops::without(&ways, |range| damped && ground.is_barred(range));
            changes += usize::from(!rib.set_next_hops(now, told).prefixes.is_empty());
            now += Duration::from_millis(100);
        }
        let route = rib.learned(&prefix(range));
        (
            changes,
            route.map(|route| route.next_hops).unwrap_or_default(),
        )
    }

    /// The better path has its next hop in the very range that it leads to.
    const SELF: [(u8, &str, &str, u32); 2] = [
        (2, "192.0.2.0/24", "192.0.2.1", 200),
        (3, "192.0.2.0/24", "10.0.0.3", 100),
    ];

    /// Two better paths stand on each other.
    const EACH_OTHER: [(u8, &str, &str, u32); 4] = [
        (2, "192.0.2.0/24", "198.51.100.1", 200),
        (3, "192.0.2.0/24", "10.0.0.3", 100),
        (2, "198.51.100.0/24", "192.0.2.1", 200),
        (3, "198.51.100.0/24", "10.0.0.3", 100),
    ];

    #[test]
    fn rfc4271_9_1_2_1_routes_that_stand_on_themselves_come_to_rest() {
        let now = Instant::now();
        for routes in [&SELF[..], &EACH_OTHER[..]] {
            // Or there would be nothing to bring to rest.
            let mut rib = table(now, routes);
            let (changes, _) = passes(&mut rib, now, "192.0.2.0/24", false);
            assert!(changes > 90, "{changes}");
            let mut rib = table(now, routes);
            let (changes, hops) = passes(&mut rib, now, "192.0.2.0/24", true);
            assert!(changes < 12, "{changes}");
            assert_eq!(hops, [address(3)], "the path with ground of its own");
        }
    }

    #[test]
    fn a_next_hop_behind_a_learned_route_is_reached_and_stays_so() {
        let now = Instant::now();
        let routes = [
            (3, "192.0.2.1/32", "10.0.0.3", 100),
            (2, "203.0.113.0/24", "192.0.2.1", 100),
        ];
        let mut rib = table(now, &routes);
        let (_, hops) = passes(&mut rib, now, "203.0.113.0/24", true);
        let expected: [IpAddr; 1] = [[192, 0, 2, 1].into()];
        assert_eq!(hops, expected);
    }

    #[test]
    fn a_bar_ends_and_a_loss_now_and_then_is_none() {
        let way = Way {
            gateway: None,
            link: "eth0".into(),
            metric: 0,
            carrier: true,
            learned: true,
        };
        let range = prefix("192.0.2.0/24");
        let mut there = Ways::default();
        there.offer(range, Some(way));
        let mut ground = Ground::default();
        let mut now = Instant::now();
        let flap = |ground: &mut Ground, now: Instant| {
            ground.look(now, &there);
            ground.look(now, &Ways::default());
        };
        for _ in 0..10 {
            flap(&mut ground, now);
            now += WINDOW / 2;
            assert!(!ground.is_barred(&range));
        }
        now += WINDOW;
        for _ in 0..LOSSES {
            assert!(!ground.is_barred(&range));
            flap(&mut ground, now);
        }
        assert!(ground.is_barred(&range));
        assert_eq!(ground.next_timeout(), Some(now + WINDOW));
        now += WINDOW;
        ground.look(now, &there);
        assert!(!ground.is_barred(&range));
        assert_eq!(ground.next_timeout(), None);
    }
}
