//! Next hops that are resolved through our own routes (RFC 4271 §9.1.2.1): recursion, loops, and no
//! trace of history.

use proptest::prelude::*;

use super::*;
use crate::config::StaticGateway;

fn to(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn link(interface: &str) -> Option<UnderlayRoute> {
    Some(UnderlayRoute {
        interface: Some(interface.into()),
        ..UnderlayRoute::default()
    })
}

/// One interface with the peers on it.
fn subnet() -> Underlay {
    Underlay::new([(to("10.0.0.0/24"), link("eth0"))], None)
}

fn with_underlay(underlay: Underlay) -> Net {
    let mut net = Net::mesh([2, 3, 4]);
    set_underlay(&mut net, underlay);
    net
}

fn set_underlay(net: &mut Net, underlay: Underlay) -> Vec<Prefix> {
    let changes = net.rib.set_underlay(net.now, underlay);
    let mut prefixes = changes.prefixes.clone();
    net.mirror(changes);
    net.check();
    prefixes.sort_unstable();
    prefixes
}

/// A peer announces a route with this next hop.
fn announce(net: &mut Net, n: u8, route: &str, next_hop: &str, local_pref: u32) -> Vec<Prefix> {
    let update = UpdateMessage {
        announced: vec![to(route)],
        attrs: Some(PathAttrs {
            next_hop: Some(next_hop.parse().unwrap()),
            local_pref: Some(local_pref),
            ..PathAttrs::default()
        }),
        ..UpdateMessage::default()
    };
    let changes = net.rib.apply(net.now, &name(n), update);
    let prefixes = changes.prefixes.clone();
    net.mirror(changes);
    net.check();
    prefixes
}

fn withdraw(net: &mut Net, n: u8, route: &str) {
    let update = UpdateMessage {
        withdrawn: vec![to(route)],
        ..UpdateMessage::default()
    };
    let changes = net.rib.apply(net.now, &name(n), update);
    net.mirror(changes);
    net.check();
}

/// Where a route leads: its next hops, and behind an arrow where packets go.
fn leads(net: &Net, route: &str) -> String {
    let Some(route) = net.rib.learned(&to(route)) else {
        return "nowhere".to_owned();
    };
    let hops: Vec<String> = route.next_hops.iter().map(ToString::to_string).collect();
    let gateway = |g: &Gateway| format!("{} {}", g.address, g.interface);
    let gateways: Vec<String> = route.gateways.iter().map(gateway).collect();
    format!("{} → {}", hops.join("+"), gateways.join("+"))
}

#[test]
fn rfc4271_9_1_2_1_a_next_hop_is_resolved_through_routes_of_our_own() {
    let mut net = with_underlay(subnet());
    announce(&mut net, 2, "203.0.113.0/24", "192.0.2.1", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "nowhere");
    // The route that it lies in comes later, and that has another router behind it.
    announce(&mut net, 3, "192.0.2.1/32", "198.51.100.7", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "nowhere");
    let changed = announce(&mut net, 4, "198.51.100.0/24", "10.0.0.4", 100);
    assert_eq!(changed.len(), 3, "{changed:?}");
    assert_eq!(
        leads(&net, "203.0.113.0/24"),
        "192.0.2.1 → 10.0.0.4 eth0",
        "two steps"
    );
    let path = &net.rib.explain(&to("203.0.113.0/24")).paths[0];
    assert_eq!(
        path.way.as_ref().map(ToString::to_string).as_deref(),
        Some("via 10.0.0.4 dev eth0, metric 2048, through the route to 192.0.2.1/32")
    );
    // A longer route takes over, and gives back.
    announce(&mut net, 2, "198.51.100.7/32", "10.0.0.2", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.1 → 10.0.0.2 eth0");
    withdraw(&mut net, 2, "198.51.100.7/32");
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.1 → 10.0.0.4 eth0");
    net.down(4, false);
    assert_eq!(leads(&net, "203.0.113.0/24"), "nowhere");
    assert_eq!(leads(&net, "192.0.2.1/32"), "nowhere");
}

#[test]
fn rfc4271_9_1_2_1_a_path_does_not_resolve_through_its_own_destination() {
    let mut net = with_underlay(subnet());
    announce(&mut net, 2, "192.0.2.0/24", "192.0.2.1", 200);
    assert_eq!(leads(&net, "192.0.2.0/24"), "nowhere");
    announce(&mut net, 3, "192.0.2.0/24", "10.0.0.3", 100);
    assert_eq!(leads(&net, "192.0.2.0/24"), "10.0.0.3 → 10.0.0.3 eth0");
    // For others it leads there.
    announce(&mut net, 2, "203.0.113.0/24", "192.0.2.1", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.1 → 10.0.0.3 eth0");
    // Where the underlay leads there, the better path is used: nothing of its own is needed.
    let mut underlay = subnet();
    let default = UnderlayRoute {
        gateway: Some("10.0.0.254".parse().unwrap()),
        ..link("eth0").unwrap()
    };
    underlay.offer(to("0.0.0.0/0"), Some(default));
    set_underlay(&mut net, underlay);
    assert_eq!(leads(&net, "192.0.2.0/24"), "192.0.2.1 → 10.0.0.254 eth0");
    // That route is no step on the way to its own next hop.
    let path = &net.rib.explain(&to("203.0.113.0/24")).paths[0];
    let metric = path.way.as_ref().map(|way| (way.metric, way.through));
    assert_eq!(metric, Some((0, None)));
    set_underlay(&mut net, subnet());
    assert_eq!(leads(&net, "192.0.2.0/24"), "10.0.0.3 → 10.0.0.3 eth0");
}

#[test]
fn rfc4271_9_1_2_1_mutually_recursive_routes_are_not_resolved() {
    let routes = [
        (2, "192.0.2.0/24", "198.51.100.1", 200),
        (2, "198.51.100.0/24", "192.0.2.1", 200),
        (3, "192.0.2.0/24", "10.0.0.3", 100),
        (3, "198.51.100.0/24", "10.0.0.3", 100),
    ];
    let mut changes = 0;
    let mut net = with_underlay(subnet());
    for (n, route, next_hop, local_pref) in routes {
        changes += announce(&mut net, n, route, next_hop, local_pref).len();
    }
    assert!(changes <= 4, "{changes}: they come to rest at once");
    for route in ["192.0.2.0/24", "198.51.100.0/24"] {
        assert_eq!(leads(&net, route), "10.0.0.3 → 10.0.0.3 eth0", "{route}");
    }
    for route in ["192.0.2.0/24", "198.51.100.0/24"] {
        withdraw(&mut net, 3, route);
    }
    assert_eq!(leads(&net, "192.0.2.0/24"), "nowhere");
    // Each other's ground, in turn, without a way out.
    withdraw(&mut net, 2, "192.0.2.0/24");
    announce(&mut net, 2, "192.0.2.0/24", "10.0.0.2", 100);
    assert_eq!(
        leads(&net, "198.51.100.0/24"),
        "192.0.2.1 → 10.0.0.2 eth0",
        "no circle any more"
    );
}

/// A path that cannot win has no effect: the other side of the circle is used.
#[test]
fn a_worse_path_that_would_close_a_circle_takes_nothing_away() {
    let mut net = with_underlay(subnet());
    announce(&mut net, 2, "192.0.2.0/24", "198.51.100.1", 200);
    announce(&mut net, 3, "192.0.2.0/24", "10.0.0.3", 100);
    announce(&mut net, 2, "198.51.100.0/24", "192.0.2.1", 100);
    announce(&mut net, 4, "198.51.100.0/24", "10.0.0.4", 200);
    assert_eq!(leads(&net, "192.0.2.0/24"), "198.51.100.1 → 10.0.0.4 eth0");
    assert_eq!(leads(&net, "198.51.100.0/24"), "10.0.0.4 → 10.0.0.4 eth0");
    // The better one is gone: now there is a circle.
    withdraw(&mut net, 4, "198.51.100.0/24");
    assert_eq!(leads(&net, "192.0.2.0/24"), "10.0.0.3 → 10.0.0.3 eth0");
    assert_eq!(leads(&net, "198.51.100.0/24"), "nowhere");
}

#[test]
fn pods_and_own_routes_are_no_way_to_a_next_hop() {
    let mut net = with_underlay(Underlay {
        not_through: [to("10.244.0.0/16")].into(),
        ..subnet()
    });
    announce(&mut net, 2, "10.244.1.0/24", "10.0.0.2", 100);
    announce(&mut net, 3, "203.0.113.0/24", "10.244.1.1", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "nowhere");
    announce(&mut net, 2, "192.0.2.0/24", "10.0.0.2", 100);
    announce(&mut net, 3, "203.0.113.0/24", "192.0.2.1", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.1 → 10.0.0.2 eth0");
    net.reconfigure(|config| {
        let own = Origination::default();
        config.originate.insert(to("192.0.2.0/24"), own);
    });
    net.check();
    assert_eq!(leads(&net, "203.0.113.0/24"), "nowhere");
    net.reconfigure(|config| drop(config.originate.remove(&to("192.0.2.0/24"))));
    net.check();
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.1 → 10.0.0.2 eth0");
}

/// The default route of a peer leads to what nothing else does; that of the underlay counts before
/// it.
#[test]
fn default_routes() {
    let mut net = with_underlay(subnet());
    announce(&mut net, 2, "203.0.113.0/24", "192.0.2.1", 100);
    announce(&mut net, 3, "0.0.0.0/0", "10.0.0.3", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.1 → 10.0.0.3 eth0");
    let mut underlay = subnet();
    underlay.offer(to("0.0.0.0/0"), link("eth1"));
    let changed = set_underlay(&mut net, underlay);
    assert_eq!(changed, [to("203.0.113.0/24")], "and nothing else is");
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.1 → 192.0.2.1 eth1");
}

#[test]
fn only_what_leads_over_a_moved_next_hop_is_decided_again() {
    let hosts = |three: &str| {
        let routes = [
            (Prefix::host(address(2)), link("eth0")),
            (Prefix::host(address(3)), link(three)),
        ];
        Underlay::new(routes, None)
    };
    let mut net = with_underlay(hosts("eth0"));
    announce(&mut net, 2, "198.51.100.0/24", "10.0.0.2", 100);
    announce(&mut net, 3, "192.0.2.0/24", "10.0.0.3", 100);
    let decided = net.rib.decided;
    assert_eq!(set_underlay(&mut net, hosts("eth1")), [to("192.0.2.0/24")]);
    assert_eq!(leads(&net, "192.0.2.0/24"), "10.0.0.3 → 10.0.0.3 eth1");
    assert_eq!(net.rib.decided, decided + 1);
    assert_eq!(set_underlay(&mut net, hosts("eth1")), []);
    assert_eq!(net.rib.decided, decided + 1);
}

#[test]
fn next_hops_that_nobody_uses_any_more_are_forgotten() {
    let mut net = with_underlay(subnet());
    for n in 0..5000u32 {
        let next_hop = IpAddr::from((u32::from_be_bytes([172, 16, 0, 0]) + n).to_be_bytes());
        announce(&mut net, 2, "192.0.2.0/24", &next_hop.to_string(), 100);
    }
    let tracked = net.rib.next_hops.tracked();
    assert!(tracked < 2100, "{tracked}");
    announce(&mut net, 2, "192.0.2.0/24", "10.0.0.2", 100);
    assert_eq!(leads(&net, "192.0.2.0/24"), "10.0.0.2 → 10.0.0.2 eth0");
}

/// A chain as long as a peer likes costs no stack.
#[test]
fn a_long_chain_is_resolved() {
    let mut net = with_underlay(Underlay::default());
    let host = |n: u32| IpAddr::from((u32::from_be_bytes([172, 16, 0, 0]) + n).to_be_bytes());
    for n in 1..2000 {
        let update = UpdateMessage {
            announced: vec![Prefix::host(host(n))],
            attrs: Some(PathAttrs {
                next_hop: Some(host(n + 1)),
                local_pref: Some(100),
                ..PathAttrs::default()
            }),
            ..UpdateMessage::default()
        };
        let changes = net.rib.apply(net.now, &name(2), update);
        net.mirror(changes);
    }
    let changes = net.rib.set_underlay(net.now, subnet());
    net.mirror(changes);
    while net.rib.has_work() {
        let changes = net.rib.work(net.now, 1024);
        net.mirror(changes);
    }
    assert_eq!(leads(&net, "172.16.0.1/32"), "nowhere");
    announce(&mut net, 2, "172.16.7.208/32", "10.0.0.2", 100);
    assert_eq!(leads(&net, "172.16.0.1/32"), "172.16.0.2 → 10.0.0.2 eth0");
}

#[test]
fn an_own_route_is_there_while_a_gateway_is_on_a_link() {
    let mut net = with_underlay(subnet());
    let own = |net: &mut Net, route: &str, way| {
        net.reconfigure(|config| drop(config.originate.insert(to(route), led(way))));
        net.check();
    };
    let gateway = |hop: &&str| hop.parse::<IpAddr>().unwrap().into();
    let via = |hops: &[&str]| StaticWay::Via(hops.iter().map(gateway).collect());
    let told = |net: &Net| net.adj_out_prefixes(2).len();
    own(&mut net, "203.0.113.0/24", via(&["10.0.0.9"]));
    assert_eq!(leads(&net, "203.0.113.0/24"), "10.0.0.9 → 10.0.0.9 eth0");
    assert_eq!(told(&net), 1);
    // Not on a link, though there is a way to it; then one of two.
    own(&mut net, "203.0.113.0/24", via(&["192.0.2.9"]));
    announce(&mut net, 3, "192.0.2.0/24", "10.0.0.3", 100);
    assert_eq!(leads(&net, "203.0.113.0/24"), "nowhere");
    assert_eq!(told(&net), 0);
    own(&mut net, "203.0.113.0/24", via(&["192.0.2.9", "10.0.0.8"]));
    assert_eq!(
        leads(&net, "203.0.113.0/24"),
        "192.0.2.9+10.0.0.8 → 10.0.0.8 eth0"
    );
    own(&mut net, "203.0.113.0/24", via(&["10.0.0.8", "10.0.0.9"]));
    assert_eq!(
        leads(&net, "203.0.113.0/24"),
        "10.0.0.8+10.0.0.9 → 10.0.0.8 eth0+10.0.0.9 eth0"
    );
    // The same gateways with another weight lead elsewhere.
    let mut heavy = via(&["10.0.0.8", "10.0.0.9"]);
    if let StaticWay::Via(gateways) = &mut heavy {
        gateways[1].extra_weight = 2;
    }
    own(&mut net, "203.0.113.0/24", heavy);
    let weights = |net: &Net| {
        let gateways = &net.fib[&to("203.0.113.0/24")].gateways;
        gateways
            .iter()
            .map(|gateway| gateway.extra_weight)
            .collect::<Vec<_>>()
    };
    assert_eq!(weights(&net), [0, 2]);
    // Through a learned route, and when that goes, nowhere; but it is announced.
    own(
        &mut net,
        "203.0.113.0/24",
        StaticWay::Recursive("192.0.2.9".parse().unwrap()),
    );
    assert_eq!(leads(&net, "203.0.113.0/24"), "192.0.2.9 → 10.0.0.3 eth0");
    let next_hop = |net: &Net| net.adj_out(2)[&to("203.0.113.0/24")].next_hop;
    assert_eq!(next_hop(&net), Some(address(3)), "the gateway");
    withdraw(&mut net, 3, "192.0.2.0/24");
    assert_eq!(leads(&net, "203.0.113.0/24"), "nowhere");
    assert_eq!((told(&net), next_hop(&net)), (1, Some(address(1))));
    // A route of ours is a way for others; without its link it is none.
    own(&mut net, "198.51.100.0/24", via(&["10.0.0.7"]));
    announce(&mut net, 3, "100.64.0.0/24", "198.51.100.1", 100);
    assert_eq!(leads(&net, "100.64.0.0/24"), "198.51.100.1 → 10.0.0.7 eth0");
    // Of several gateways, the first on a link.
    own(&mut net, "198.51.100.0/24", via(&["192.0.2.9", "10.0.0.6"]));
    assert_eq!(leads(&net, "100.64.0.0/24"), "198.51.100.1 → 10.0.0.6 eth0");
    own(&mut net, "198.51.100.0/24", via(&["10.0.0.7"]));
    let elsewhere = Underlay::new([(to("10.9.0.0/24"), link("eth0"))], None);
    set_underlay(&mut net, elsewhere);
    assert_eq!(leads(&net, "100.64.0.0/24"), "nowhere");
    assert_eq!(
        net.adj_out_prefixes(2),
        [to("203.0.113.0/24")],
        "the recursive one"
    );
    set_underlay(&mut net, subnet());
    assert_eq!(leads(&net, "100.64.0.0/24"), "198.51.100.1 → 10.0.0.7 eth0");
}

/// Events: prefixes that contain each other's next hops, and an underlay with holes.
#[derive(Clone, Debug)]
enum Event {
    Announce(u8, usize, usize, u32),
    Withdraw(u8, usize),
    Lose(u8),
    Underlay(u8),
    /// 0: no route of ours; 1: one that leads nowhere; then to a gateway, or to what is looked up.
    Own(usize, usize),
}

const ROUTES: [&str; 6] = [
    "0.0.0.0/0",
    "192.0.2.0/24",
    "192.0.2.1/32",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "203.0.113.128/25",
];

const HOPS: [&str; 7] = [
    "10.0.0.2",
    "10.0.1.3",
    "192.0.2.1",
    "192.0.2.200",
    "198.51.100.1",
    "203.0.113.1",
    "203.0.113.200",
];

fn event() -> impl Strategy<Value = Event> {
    let (peer, route) = (2u8..5, 0..ROUTES.len());
    prop_oneof![
        12 => (peer.clone(), route.clone(), 0..HOPS.len(), 100u32..103)
            .prop_map(|(n, route, hop, pref)| Event::Announce(n, route, hop, pref)),
        3 => (peer.clone(), route.clone()).prop_map(|(n, route)| Event::Withdraw(n, route)),
        1 => peer.prop_map(Event::Lose),
        2 => (0u8..16).prop_map(Event::Underlay),
        2 => (route, 0..2 + 2 * HOPS.len()).prop_map(|(route, own)| Event::Own(route, own)),
    ]
}

/// Parts of an underlay that are there or not.
fn underlay(parts: u8) -> Underlay {
    let mut underlay = Underlay::new([(to("10.255.0.1/32"), None)], None);
    let behind = |gateway: &str| UnderlayRoute {
        gateway: Some(gateway.parse().unwrap()),
        metric: 10,
        ..link("eth1").unwrap()
    };
    let dead = UnderlayRoute {
        carrier: false,
        ..link("eth2").unwrap()
    };
    let all = [
        ("10.0.0.0/24", link("eth0").unwrap()),
        ("10.0.1.0/24", dead),
        ("0.0.0.0/0", behind("10.0.0.254")),
        ("192.0.2.192/26", behind("10.0.0.253")),
    ];
    for (n, (range, route)) in all.into_iter().enumerate() {
        if parts >> n & 1 == 1 {
            underlay.offer(to(range), Some(route));
        }
    }
    underlay
}

fn own_way(kind: usize) -> Option<StaticWay> {
    let hop = |n: usize| HOPS[n % HOPS.len()].parse::<IpAddr>().unwrap();
    Some(match kind {
        0 => return None,
        1 => StaticWay::Blackhole,
        n if n < 2 + HOPS.len() => StaticWay::Via(vec![hop(n).into()]),
        n => StaticWay::Recursive(hop(n)),
    })
}

fn happen(net: &mut Net, event: &Event, sliced: bool) {
    let changes = match event {
        Event::Announce(n, route, hop, pref) => {
            let update = UpdateMessage {
                announced: vec![to(ROUTES[*route])],
                attrs: Some(PathAttrs {
                    next_hop: Some(HOPS[*hop].parse().unwrap()),
                    local_pref: Some(*pref),
                    ..PathAttrs::default()
                }),
                ..UpdateMessage::default()
            };
            net.rib.apply(net.now, &name(*n), update)
        }
        Event::Withdraw(n, route) => {
            let update = UpdateMessage {
                withdrawn: vec![to(ROUTES[*route])],
                ..UpdateMessage::default()
            };
            net.rib.apply(net.now, &name(*n), update)
        }
        Event::Lose(n) => {
            net.down(*n, false);
            return net.up(*n);
        }
        Event::Underlay(parts) => net.rib.set_underlay(net.now, underlay(*parts)),
        Event::Own(route, own) => {
            return net.reconfigure(|config| {
                let prefix = to(ROUTES[*route]);
                match own_way(*own) {
                    Some(way) => drop(config.originate.insert(prefix, led(way))),
                    None => drop(config.originate.remove(&prefix)),
                }
            });
        }
    };
    net.mirror(changes);
    if !sliced {
        net.check();
    }
}

/// State at the end of a history.
#[derive(Default)]
struct Left {
    paths: BTreeMap<(u8, usize), Event>,
    underlay: Option<Event>,
    own: BTreeMap<usize, Event>,
}

impl Left {
    fn note(&mut self, event: &Event) {
        let copy = event.clone();
        match event {
            Event::Announce(n, route, ..) => drop(self.paths.insert((*n, *route), copy)),
            Event::Withdraw(n, route) => drop(self.paths.remove(&(*n, *route))),
            Event::Lose(n) => self.paths.retain(|(peer, _), _| peer != n),
            Event::Underlay(_) => self.underlay = Some(copy),
            Event::Own(route, 0) => drop(self.own.remove(route)),
            Event::Own(route, _) => drop(self.own.insert(*route, copy)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// RIB-6: resolution after any history, in one go or in slices, is what it is for who has only
    /// seen the present.
    #[test]
    fn resolution_leaves_no_trace_of_history(
        events in prop::collection::vec((event(), 0usize..3), 1..60),
        slices: bool,
    ) {
        let mut net = Net::mesh([2, 3, 4]);
        if slices {
            net.rib.inline = 0;
            net.in_slices = true;
        }
        let mut left = Left::default();
        let work = |net: &mut Net, times: usize| {
            for _ in 0..times {
                if net.rib.has_work() {
                    let changes = net.rib.work(net.now, 1);
                    net.mirror(changes);
                }
            }
        };
        for (event, times) in &events {
            left.note(event);
            happen(&mut net, event, slices);
            work(&mut net, *times);
        }
        work(&mut net, 10_000);
        prop_assert!(!net.rib.has_work(), "{:?}", net.rib.progress());
        net.check();
        let mut fresh = Net::mesh([2, 3, 4]);
        let present = left.paths.values().rev().chain(left.own.values());
        for event in present.chain(left.underlay.as_ref()) {
            happen(&mut fresh, event, false);
        }
        prop_assert_eq!(&net.fib, &fresh.fib);
        for n in 2..5 {
            prop_assert_eq!(net.rib.received(&name(n)), fresh.rib.received(&name(n)));
        }
    }
}

/// External peers 2 and 3 have the same address, on two links, and 4 is an internal one.
fn near() -> Net {
    let on_link = |(n, mut peer): (u8, PeerConfig)| {
        peer.address = "fe80::2".parse().unwrap();
        peer.interface = Some(format!("eth{n}").into());
        peer.families = vec![Family::Ipv6];
        (n, peer)
    };
    let mut inside = internal_peer(4);
    inside.1.families = vec![Family::Ipv6];
    let peers = [2, 3].map(external_peer).map(on_link);
    let mut net = Net::new(with_peers(peers.into_iter().chain([inside])));
    for (n, local, remote) in [
        (2, "fe80::1", "fe80::2"),
        (3, "fe80::1", "fe80::2"),
        (4, "2001:db8::1", "2001:db8::4"),
    ] {
        let info = SessionInfo {
            families: vec![Family::Ipv6],
            local_address: local.parse().unwrap(),
            remote_address: remote.parse().unwrap(),
            ..session(n)
        };
        net.up_with(n, info);
    }
    net
}

fn links(names: &[&str]) -> Underlay {
    let ranges = names
        .iter()
        .map(|name| (caracal_model::zone(&(*name).into()), link(name)));
    Underlay::new(ranges.chain([(to("fe80::/10"), None)]), None)
}

#[test]
fn rfc4007_6_a_link_local_next_hop_is_on_the_link_of_its_peer() {
    let mut net = near();
    set_underlay(&mut net, links(&["eth2", "eth3"]));
    let route = |n: u8, hop: &str, near: Option<&str>| UpdateMessage {
        announced: vec![to("2001:db8:9::/48")],
        attrs: Some(PathAttrs {
            next_hop: Some(hop.parse().unwrap()),
            link_local_next_hop: near.map(|near| near.parse().unwrap()),
            ..external(n, &[65000 + u32::from(n)])
        }),
        ..UpdateMessage::default()
    };
    // Alone, and behind a global one to which there is no route.
    net.apply(2, route(2, "fe80::2", None));
    net.apply(3, route(3, "2001:db8:3::1", Some("fe80::2")));
    let over = |net: &Net| leads(net, "2001:db8:9::/48");
    assert_eq!(over(&net), "fe80::2+fe80::2 → fe80::2 eth2+fe80::2 eth3");
    let shown = &net.rib.explain(&to("2001:db8:9::/48")).paths[0];
    assert_eq!(shown.attrs.next_hop, "fe80::2".parse().ok());
    let interface = shown.way.as_ref().and_then(|way| way.interface.clone());
    assert_eq!(interface, Some("eth2".into()));
    // Others are on other links.
    let told = net.adj_out(4)[&to("2001:db8:9::/48")].clone();
    assert_eq!(told.next_hop, "2001:db8::1".parse().ok());
    assert_eq!(told.link_local_next_hop, None);
    let told = net.adj_out(3)[&to("2001:db8:9::/48")].clone();
    assert_eq!(told.next_hop, "fe80::1".parse().ok());
    // A link goes, and what is on the other one stays.
    set_underlay(&mut net, links(&["eth3"]));
    assert_eq!(over(&net), "fe80::2 → fe80::2 eth3");
    // From a peer without a link, such a next hop leads nowhere, whatever stands in its bits.
    net.down(3, false);
    let zoned = caracal_model::zoned("fe80::2".parse().unwrap(), &"eth3".into()).to_string();
    net.apply(4, route(4, &zoned, Some(&zoned)));
    assert_eq!(over(&net), "nowhere");
    net.check();
}

#[test]
fn rfc4007_6_a_link_local_gateway_of_ours_is_on_its_link() {
    let mut net = near();
    let gateway = |interface: &str| StaticGateway {
        interface: Some(interface.into()),
        ..IpAddr::V6("fe80::7".parse().unwrap()).into()
    };
    let route = Origination {
        way: StaticWay::Via(vec![gateway("eth2"), gateway("eth3")]),
        ..Origination::default()
    };
    net.reconfigure(|config| drop(config.originate.insert(to("2001:db8:8::/48"), route)));
    set_underlay(&mut net, links(&["eth2", "eth3"]));
    let over = |net: &Net| leads(net, "2001:db8:8::/48");
    assert_eq!(over(&net), "fe80::7+fe80::7 → fe80::7 eth2+fe80::7 eth3");
    let told = net.adj_out(4)[&to("2001:db8:8::/48")].clone();
    assert_eq!(told.next_hop, "2001:db8::1".parse().ok());
    set_underlay(&mut net, links(&["eth3"]));
    assert_eq!(over(&net), "fe80::7+fe80::7 → fe80::7 eth3");
    set_underlay(&mut net, links(&[]));
    assert_eq!(over(&net), "nowhere");
    assert!(net.adj_out(4).is_empty());
    net.check();
}
