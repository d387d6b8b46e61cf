//! Prefixes that are refused whatever policy says.

use super::*;

fn local(subnets: &[&str], addresses: &[&str]) -> LocalNetworks {
    LocalNetworks {
        subnets: subnets.iter().map(|s| s.parse().unwrap()).collect(),
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
    }
}

fn prefixes(texts: &[&str]) -> Vec<Prefix> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A peer announces these.
fn announce(net: &mut Net, n: u8, attrs: PathAttrs, texts: &[&str]) {
    let update = UpdateMessage {
        announced: prefixes(texts),
        attrs: Some(attrs),
        ..UpdateMessage::default()
    };
    net.apply(n, update);
    net.check();
}

fn used(net: &Net) -> Vec<String> {
    net.fib.keys().map(ToString::to_string).collect()
}

#[test]
fn rfc4271_6_3_a_martian_is_neither_used_nor_passed_on_and_the_session_stays() {
    let peers = [external_peer(2), external_peer(3)];
    let mut net = Net::new(with_peers(peers));
    for n in [2, 3] {
        net.up(n);
    }
    let all = [
        "127.0.0.0/8",
        "169.254.169.254/32",
        "0.0.0.0/0",
        "198.51.100.0/24",
    ];
    announce(&mut net, 2, external(2, &[65002]), &all);
    assert_eq!(used(&net), ["0.0.0.0/0", "198.51.100.0/24"]);
    assert_eq!(net.adj_out_prefixes(3), prefixes(&all[2..]));
    let counts = net.rib.peer_counts(&name(2)).unwrap();
    assert_eq!((counts.received, counts.accepted), (4, 2));
    let explained = net.rib.explain(&all[0].parse().unwrap());
    let sentence = explained.paths[0].status.sentence();
    assert!(
        sentence.contains("must never be routed: it is loopback"),
        "{sentence}"
    );
}

#[test]
fn a_range_that_is_opened_is_routed() {
    let options = RibOptions {
        open: "169.254.0.0/16".parse().unwrap(),
        ..RibOptions::default()
    };
    let mut net = Net::with_options(with_peers([external_peer(2)]), options);
    net.up(2);
    let all = ["169.254.169.254/32", "0.0.0.0/8"];
    announce(&mut net, 2, external(2, &[65002]), &all);
    assert_eq!(used(&net), ["169.254.169.254/32"]);
}

#[test]
fn own_networks_come_and_go_while_routes_are_there() {
    let mut net = Net::new(with_peers([external_peer(2)]));
    net.up(2);
    let all = [
        "192.0.2.0/24",
        "192.0.2.128/25",
        "192.0.0.0/16",
        "203.0.113.7/32",
    ];
    announce(&mut net, 2, external(2, &[65002]), &all);
    assert_eq!(used(&net).len(), 4);
    let now = net.now;
    let changes = net
        .rib
        .set_local_networks(now, local(&["192.0.2.0/24"], &["203.0.113.7"]));
    net.mirror(changes);
    assert_eq!(used(&net), ["192.0.0.0/16"]);
    let changes = net
        .rib
        .set_local_networks(now, local(&[], &["203.0.113.7"]));
    net.mirror(changes);
    assert_eq!(used(&net).len(), 3);
    // Nothing has changed: nothing is told.
    let changes = net
        .rib
        .set_local_networks(now, local(&[], &["203.0.113.7"]));
    assert!(changes.is_empty());
}

#[test]
fn a_new_filter_does_not_let_a_martian_in() {
    let mut net = Net::new(with_peers([external_peer(2)]));
    net.up(2);
    announce(&mut net, 2, external(2, &[65002]), &["224.0.0.0/8"]);
    net.reconfigure(|config| config.peers.get_mut(&name(2)).unwrap().allow_own_as = 1);
    assert_eq!(used(&net), [""; 0]);
}
