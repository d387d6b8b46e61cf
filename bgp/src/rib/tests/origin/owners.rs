//! A change of owners is judged by owner: the table is what it would be had all of it been judged.

use proptest::prelude::*;

use super::*;

/// Blocks, addresses inside and outside them, a range as long as two blocks, one elsewhere, what
/// covers nodes, and what is around the pool.
const PREFIXES: [&str; 11] = [
    "10.244.1.0/24",
    "10.244.2.0/24",
    "10.244.3.0/24",
    "10.244.1.7/32",
    "10.244.9.7/32",
    "10.244.2.0/23",
    "10.9.0.0/24",
    "0.0.0.0/0",
    "10.0.0.0/29",
    "10.0.0.3/32",
    "10.240.0.0/12",
];

/// The address of a node or of a router; one of them lies where blocks may be.
fn address_of(n: u8) -> IpAddr {
    match n {
        6 => [10, 244, 1, 7].into(),
        n => address(n),
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// Peer, prefix, next hop, ORIGINATOR_ID, AS path.
    Announce(u8, usize, u8, Option<u8>, Vec<u32>),
    Withdraw(u8, usize),
    /// Whether a node has a prefix.
    Held(usize, u8, bool),
    Node(u8, Option<OwnerIdentity>),
    /// A node is known with what it has.
    Join(u8, OwnerIdentity, usize),
    Fresh,
    /// And whether the pool lies over machines.
    Mode(OriginMode, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let (peer, node, at) = (2u8..5, 2u8..6, 0..PREFIXES.len());
    let some = |of: std::ops::Range<u8>| proptest::collection::vec(of, 0..3);
    let asn = || proptest::option::weighted(0.5, 65100u32..65103);
    let identity = (some(2..7), some(2..6), prop::bool::weighted(0.3), asn()).prop_map(
        |(addresses, ids, relays, asn)| OwnerIdentity {
            asn: asn.map(Asn),
            addresses: addresses.into_iter().map(address_of).collect(),
            ..identity(&[], &ids, relays)
        },
    );
    let mode = prop_oneof![Just(OriginMode::Enforce), Just(OriginMode::Log)];
    prop_oneof![
        8 => (peer.clone(), at.clone(), 2u8..8, proptest::option::of(2u8..8), asn()).prop_map(
            |(peer, at, hop, originator, asn)| {
                Event::Announce(peer, at, hop, originator, asn.into_iter().collect())
            }
        ),
        2 => (peer, at.clone()).prop_map(|(peer, at)| Event::Withdraw(peer, at)),
        3 => (at.clone(), node.clone(), any::<bool>())
            .prop_map(|(at, node, has)| Event::Held(at, node, has)),
        5 => (node.clone(), proptest::option::weighted(0.8, identity.clone()))
            .prop_map(|(node, identity)| Event::Node(node, identity)),
        1 => (node, identity, at)
            .prop_map(|(node, identity, at)| Event::Join(node, identity, at)),
        1 => Just(Event::Fresh),
        1 => (mode, any::<bool>()).prop_map(|(mode, over)| Event::Mode(mode, over)),
    ]
}

fn holds(at: usize, node: u8, has: bool) -> OriginUpdate {
    let owner = PrefixOwner::Named(format!("node{node}"));
    OriginUpdate {
        ownership: vec![(PREFIXES[at].parse().unwrap(), owner, has)],
        ..OriginUpdate::default()
    }
}

fn happen(net: &mut Net, event: &Event, whole: bool) {
    let update = match event {
        Event::Announce(peer, at, hop, originator, path) => {
            let received = PathAttrs {
                originator_id: originator.map(|n| RouterId([1, 0, 0, n].into())),
                as_path: AsPath::sequence(path.iter().copied().map(Asn).collect::<Vec<_>>()),
                next_hop: Some(address_of(*hop)),
                ..attrs(*hop)
            };
            let update = UpdateMessage {
                announced: vec![PREFIXES[*at].parse().unwrap()],
                attrs: Some(received),
                ..UpdateMessage::default()
            };
            return net.apply(*peer, update);
        }
        Event::Withdraw(peer, at) => {
            let update = UpdateMessage {
                withdrawn: vec![PREFIXES[*at].parse().unwrap()],
                ..UpdateMessage::default()
            };
            return net.apply(*peer, update);
        }
        Event::Held(at, node, has) => holds(*at, *node, *has),
        Event::Node(node, identity) => node_is(*node, identity.clone()),
        Event::Join(node, identity, at) => OriginUpdate {
            ownership: holds(*at, *node, true).ownership,
            ..node_is(*node, Some(identity.clone()))
        },
        Event::Fresh => stale(false),
        Event::Mode(mode, over) => {
            let mut rules = rules(*mode);
            let pools = rules.ranges.keys().copied().filter(|_| *over);
            rules.over_machines = pools.collect();
            OriginUpdate {
                rules: Some(rules),
                ..OriginUpdate::default()
            }
        }
    };
    net.origins(update);
    if whole {
        for n in 2..5 {
            let changes = net.rib.import_peer_again(net.now, &name(n));
            net.mirror(changes);
        }
    }
}

/// What is known of each route, and the numbers that are not of events.
fn outcome(net: &Net) -> (Vec<String>, Screened) {
    let peers = net.config.peers.keys();
    let routes = peers.flat_map(|name| net.rib.received(name).unwrap());
    let routes = routes.map(|route| format!("{route:?}"));
    let numbers = Screened {
        violations: 0,
        martians: 0,
        ..net.rib.screened()
    };
    (routes.collect(), numbers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 512 }))]

    #[test]
    fn what_owners_change_is_what_judging_everything_changes(
        events in proptest::collection::vec(event(), 1..40),
        starts_stale in any::<bool>(),
        inline in prop_oneof![Just(0usize), Just(2), Just(2048)],
    ) {
        let new = || Net::checked(
            [internal_peer(2), internal_peer(3), external_peer(4)],
            OriginMode::Enforce,
        );
        let (mut by_owner, mut whole) = (new(), new());
        for net in [&mut by_owner, &mut whole] {
            net.origins(stale(starts_stale));
        }
        by_owner.in_slices = true;
        by_owner.rib.inline = inline;
        for event in &events {
            happen(&mut by_owner, event, false);
            while by_owner.rib.has_work() {
                let changes = by_owner.rib.work(by_owner.now, 2);
                by_owner.mirror(changes);
            }
            happen(&mut whole, event, true);
            prop_assert_eq!(&by_owner.fib, &whole.fib, "{:?}", event);
            prop_assert_eq!(outcome(&by_owner), outcome(&whole), "{:?}", event);
        }
    }
}

/// Number of nodes, with a block each.
const NODES: u16 = 4_000;

fn hop_of(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    [10, 1, high, low].into()
}

fn block_of(n: u16) -> Prefix {
    Prefix::v4((0x0a80_0000 + (u32::from(n) << 8)).into(), 24)
}

/// A node with a block, which it announces through a reflector.
fn known(n: u16) -> OriginUpdate {
    let identity = OwnerIdentity {
        addresses: [hop_of(n)].into(),
        router_ids: [RouterId(u32::from(n).into())].into(),
        relays: false,
        asn: None,
    };
    let name = format!("n{n}");
    OriginUpdate {
        ownership: vec![(block_of(n), PrefixOwner::Named(name.clone()), true)],
        identities: vec![(name, Some(identity))],
        ..OriginUpdate::default()
    }
}

#[test]
fn a_node_that_comes_moves_or_goes_costs_its_own_routes() {
    let mut net = Net::checked([internal_peer(2)], OriginMode::Enforce);
    let owned = OriginRange::Owned { shortest: 24 };
    net.origins(OriginUpdate {
        rules: Some(OriginRules {
            ranges: [("10.128.0.0/9".parse().unwrap(), owned)].into(),
            ..rules(OriginMode::Enforce)
        }),
        ..OriginUpdate::default()
    });
    // What comes through a reflector says whose it is.
    let announce = |net: &mut Net, n: u16, hop: IpAddr| {
        let received = PathAttrs {
            next_hop: Some(hop),
            originator_id: Some(RouterId(u32::from(n).into())),
            ..attrs(2)
        };
        let update = UpdateMessage {
            announced: vec![block_of(n)],
            attrs: Some(received),
            ..UpdateMessage::default()
        };
        net.apply(2, update);
    };
    for n in 0..NODES - 1 {
        let changes = net.rib.set_origins(net.now, known(n));
        net.mirror(changes);
        announce(&mut net, n, hop_of(n));
    }
    assert_eq!(net.fib.len(), usize::from(NODES) - 1);

    let counted = |net: &mut Net, what: &str, update: OriginUpdate| {
        let before = table::visits();
        let changes = net.rib.set_origins(net.now, update);
        let seen = table::visits() - before;
        net.mirror(changes);
        assert!(seen <= 16, "{what}: {seen} looks");
    };
    let last = NODES - 1;
    announce(&mut net, last, hop_of(last));
    assert_eq!(net.fib.get(&block_of(last)), None);
    counted(&mut net, "it comes", known(last));
    assert_eq!(net.fib.len(), usize::from(NODES));
    let mut moved = known(last);
    moved.ownership.clear();
    let Some((_, Some(identity))) = moved.identities.first_mut() else {
        panic!("it has an identity");
    };
    identity.addresses = [address(200)].into();
    counted(&mut net, "it moves", moved);
    assert_eq!(net.fib.get(&block_of(last)), None);
    announce(&mut net, last, address(200));
    assert!(net.fib.contains_key(&block_of(last)));
    let gone = OriginUpdate {
        identities: vec![(format!("n{last}"), None)],
        ..OriginUpdate::default()
    };
    counted(&mut net, "it goes", gone);
    assert_eq!(net.fib.len(), usize::from(NODES) - 1);
    net.check();
}
