//! Routes over nodes: refused, unless an import rule names their range.

use super::*;

/// What covers nodes 2, 3 and 4: default routes, their network, what is wider, a node.
const OVER: [&str; 7] = [
    "0.0.0.0/0",
    "::/0",
    "10.0.0.0/24",
    "10.0.0.0/8",
    "10.0.0.3/32",
    "fd00::/64",
    "fd00::3/128",
];

/// What does not.
const BESIDE: [&str; 4] = [
    "10.0.1.0/24",
    "10.0.0.128/25",
    "fd00:1::/64",
    "198.51.100.0/24",
];

/// Nodes of both families.
fn dual(mode: OriginMode) -> OriginUpdate {
    let mut update = cluster(mode);
    for (n, (_, identity)) in (2u16..).zip(&mut update.identities) {
        let six = std::net::Ipv6Addr::from([0xfd00, 0, 0, 0, 0, 0, 0, n]);
        identity.as_mut().unwrap().addresses.insert(six.into());
    }
    update
}

fn pattern(text: &str) -> FilterCondition {
    FilterCondition::Prefix {
        patterns: vec![PrefixPattern::exact(text.parse().unwrap())],
        negated: false,
    }
}

/// A router of another AS, and what the filters for its routes are.
fn router(mode: OriginMode, filters: &[(&[FilterCondition], FilterVerdict)]) -> Net {
    let mut config = with_peers([external_peer(9)]);
    let terms = filters.iter().map(|(conditions, verdict)| FilterTerm {
        conditions: conditions.to_vec(),
        actions: vec![],
        verdict: Some(*verdict),
    });
    let filter = Filter::from(Vec::from_iter(terms));
    let named = !filter.terms.is_empty();
    config.filters.insert("in".to_owned(), filter);
    let peer = config.peers.get_mut(&name(9)).unwrap();
    peer.import.extend(named.then(|| "in".to_owned()));
    peer.families = vec![Family::Ipv4, Family::Ipv6];
    let options = RibOptions {
        origins: dual(mode),
        ..RibOptions::default()
    };
    let mut net = Net::with_options(config, options);
    let both = SessionInfo {
        families: vec![Family::Ipv4, Family::Ipv6],
        ..session(9)
    };
    net.up_with(9, both);
    net
}

fn say(net: &mut Net, hop: u8, texts: &[&str]) {
    let update = UpdateMessage {
        announced: texts.iter().map(|text| text.parse().unwrap()).collect(),
        attrs: Some(external(hop, &[65009])),
        ..UpdateMessage::default()
    };
    net.apply(9, update);
}

fn used(net: &Net) -> Vec<String> {
    net.fib.keys().map(ToString::to_string).collect()
}

fn sorted(texts: &[&str]) -> Vec<String> {
    let all: std::collections::BTreeSet<Prefix> =
        texts.iter().map(|text| text.parse().unwrap()).collect();
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn a_peers_route_over_nodes_is_not_used_and_is_named() {
    let mut net = router(OriginMode::Enforce, &[]);
    say(&mut net, 9, &[OVER.as_slice(), &BESIDE].concat());
    assert_eq!(used(&net), sorted(&BESIDE));
    assert_eq!(net.rib.screened().over_nodes, OVER.len());
    let named = net.rib.origin_status().over_nodes.unwrap();
    assert_eq!(named, ("0.0.0.0/0".parse().unwrap(), name(9)));
    let explained = net.rib.explain(&"10.0.0.0/24".parse().unwrap());
    let sentence = explained.paths[0].status.sentence();
    assert!(sentence.contains("10.0.0.2 is node2's"), "{sentence}");
    // Gone, and no longer named.
    let update = UpdateMessage {
        withdrawn: OVER.iter().map(|text| text.parse().unwrap()).collect(),
        ..UpdateMessage::default()
    };
    net.apply(9, update);
    assert_eq!(net.rib.screened().over_nodes, 0);
    assert_eq!(net.rib.origin_status().over_nodes, None);
}

#[test]
fn an_import_rule_that_names_the_range_admits_the_route_and_no_other() {
    for wanted in OVER {
        let (accept, all) = ([pattern(wanted)], []);
        let filters = [
            (accept.as_slice(), FilterVerdict::Accept),
            (all.as_slice(), FilterVerdict::Accept),
        ];
        let mut net = router(OriginMode::Enforce, &filters);
        say(&mut net, 9, &OVER);
        assert_eq!(used(&net), [wanted]);
        // What filters reject is theirs, and no problem.
        let filters = [
            (accept.as_slice(), FilterVerdict::Accept),
            (all.as_slice(), FilterVerdict::Reject),
        ];
        let mut net = router(OriginMode::Enforce, &filters);
        say(&mut net, 9, &OVER);
        assert_eq!(used(&net), [wanted]);
        assert_eq!(net.rib.screened().over_nodes, 0);
    }
    // "Any prefix" is no name.
    let any = [FilterCondition::Prefix {
        patterns: vec![PrefixPattern::or_longer("0.0.0.0/0".parse().unwrap())],
        negated: false,
    }];
    let mut net = router(OriginMode::Enforce, &[(&any, FilterVerdict::Accept)]);
    say(&mut net, 9, &OVER);
    assert_eq!(used(&net), [""; 0]);
}

#[test]
fn a_node_that_comes_takes_routes_over_it_out_and_one_that_goes_lets_them_in() {
    let mut net = router(OriginMode::Enforce, &[]);
    say(&mut net, 9, &["10.0.1.0/24", "10.0.1.7/32"]);
    assert_eq!(used(&net).len(), 2);
    let mut far = identity(&[], &[7], false);
    far.addresses.insert("10.0.1.7".parse().unwrap());
    assert_eq!(net.origins(node_is(7, Some(far.clone()))), 2);
    assert_eq!(used(&net), [""; 0]);
    assert_eq!(net.origins(node_is(7, None)), 2);
    assert_eq!(used(&net).len(), 2);
    // While the data may be out of date, what is in use stays.
    net.origins(stale(true));
    net.origins(node_is(7, Some(far)));
    assert_eq!(used(&net).len(), 2);
    net.origins(stale(false));
    assert_eq!(used(&net), [""; 0]);
}

#[test]
fn a_node_may_announce_an_address_of_its_own() {
    let mut net = router(OriginMode::Enforce, &[]);
    say(&mut net, 3, &["10.0.0.3/32", "fd00::3/128", "10.0.0.4/32"]);
    assert_eq!(used(&net), ["10.0.0.3/32", "fd00::3/128"]);
}

#[test]
fn the_mode_is_that_of_the_origin_check() {
    for (mode, violations) in [(OriginMode::Log, OVER.len() as u64), (OriginMode::Off, 0)] {
        let mut net = router(mode, &[]);
        say(&mut net, 9, &OVER);
        assert_eq!(used(&net), sorted(&OVER));
        let screened = net.rib.screened();
        assert_eq!((screened.violations, screened.over_nodes), (violations, 0));
    }
}

#[test]
fn of_two_routers_the_one_that_a_rule_admits_gives_the_route_while_it_does() {
    let mut config = with_peers([external_peer(8), external_peer(9)]);
    let accept = FilterTerm {
        conditions: vec![pattern("0.0.0.0/0")],
        actions: vec![],
        verdict: Some(FilterVerdict::Accept),
    };
    let filter = Filter::from(vec![accept]);
    config.filters.insert("in".to_owned(), filter);
    let options = RibOptions {
        origins: dual(OriginMode::Enforce),
        ..RibOptions::default()
    };
    let mut net = Net::with_options(config, options);
    let default: Prefix = "0.0.0.0/0".parse().unwrap();
    for (n, path) in [(8, &[65008][..]), (9, &[65009, 65010])] {
        net.up(n);
        let update = UpdateMessage {
            announced: vec![default],
            attrs: Some(external(n, path)),
            ..UpdateMessage::default()
        };
        net.apply(n, update);
    }
    let state = |net: &Net| {
        let hops = net.fib.get(&default).map(|route| route.next_hops.clone());
        let named = net.rib.origin_status().over_nodes.map(|(_, peer)| peer);
        (
            hops.unwrap_or_default(),
            net.rib.screened().over_nodes,
            named,
        )
    };
    assert_eq!(state(&net), (vec![], 2, Some(name(8))));
    // The worse path is the one that is admitted.
    let filters_of = |net: &mut Net, n: u8, filters: &[&str]| {
        net.reconfigure(|config| {
            let peer = config.peers.get_mut(&name(n)).unwrap();
            peer.import = filters.iter().map(|text| (*text).to_owned()).collect();
        });
    };
    filters_of(&mut net, 9, &["in"]);
    assert_eq!(state(&net), (vec![address(9)], 1, Some(name(8))));
    filters_of(&mut net, 8, &["in"]);
    assert_eq!(state(&net), (vec![address(8)], 0, None));
    filters_of(&mut net, 8, &[]);
    filters_of(&mut net, 9, &[]);
    assert_eq!(state(&net), (vec![], 2, Some(name(8))));
}
