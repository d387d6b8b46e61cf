//! What export filters know of a route beyond its attributes.

use super::*;
use crate::config::{NextHopMode, OwnProtocol};
use crate::policy::{
    Attribute, Expression, Filter, Operator, Place, Program, Step, StepAction, Value,
};
use crate::types::Community;

/// A filter that marks routes with a community when the attribute is this.
fn marking(attribute: Attribute, value: Value) -> Filter {
    let step = |action| Step {
        place: Place {
            file: "f".into(),
            line: 1,
        },
        action,
    };
    let both = [
        Expression::Attribute(attribute),
        Expression::Constant(value),
    ];
    let same = Expression::Binary(Operator::Equal, Box::new(both));
    let mark = Value::Communities([Community::new(65000, 1)].into());
    let mark = StepAction::Set(Attribute::Communities, Expression::Constant(mark));
    let steps = vec![
        step(StepAction::If(same, vec![step(mark)], Vec::new())),
        step(StepAction::Accept),
    ];
    Program::new("marking", 0, steps).into()
}

fn is_marked(net: &Net, n: u8) -> bool {
    !net.adj_out(4)[&prefix(n)].communities.is_empty()
}

#[test]
fn filters_know_the_protocol_of_a_route_of_ours_and_follow_its_name() {
    let (n, mut peer) = external_peer(4);
    peer.export = vec!["marking".to_owned()];
    let mut config = with_peers([(n, peer)]);
    let one = Value::Text("one".into());
    let filter = marking(Attribute::Protocol, one);
    config.filters.insert("marking".to_owned(), filter);
    let of = |name: &str| Origination {
        protocol: Some(Arc::new(OwnProtocol {
            name: name.to_owned(),
            preference: 200,
        })),
        ..Origination::default()
    };
    config.originate = [(prefix(1), of("one")), (prefix(2), of("two"))].into();
    let mut net = Net::new(config);
    net.up(4);
    assert_eq!([1, 2].map(|n| is_marked(&net, n)), [true, false]);
    net.reconfigure(|config| drop(config.originate.insert(prefix(1), of("other"))));
    net.reconfigure(|config| drop(config.originate.insert(prefix(2), of("one"))));
    assert_eq!([1, 2].map(|n| is_marked(&net, n)), [false, true]);
    net.check();
}

#[test]
fn filters_follow_the_name_of_a_peer() {
    let (n, mut peer) = external_peer(4);
    peer.export = vec!["marking".to_owned()];
    let mut config = with_peers([internal_peer(2), (n, peer)]);
    let filter = marking(Attribute::Protocol, Value::Text("p2".into()));
    config.filters.insert("marking".to_owned(), filter);
    let mut net = Net::new(config);
    net.up(2);
    net.up(4);
    net.announce(2, &[1], attrs(2));
    assert!(is_marked(&net, 1));
    net.rib.rename_peer(&name(2), &name(9));
    let peer = net.config.peers.remove(&name(2)).unwrap();
    net.config.peers.insert(name(9), peer);
    net.rest(100);
    assert!(!is_marked(&net, 1));
    net.check();
}

#[test]
fn a_next_hop_that_a_filter_sets_is_told() {
    let told = |mode: NextHopMode, hop: [u8; 4]| {
        let (n, mut peer) = external_peer(4);
        peer.export = vec!["hop".to_owned()];
        peer.next_hop = mode.into();
        let place = Place {
            file: "f".into(),
            line: 1,
        };
        let hop = Expression::Constant(Value::Ip(hop.into()));
        let actions = [StepAction::Set(Attribute::NextHop, hop), StepAction::Accept];
        let steps = actions.map(|action| Step {
            place: place.clone(),
            action,
        });
        let program = Program::new("hop", 0, steps.to_vec());
        let mut config = with_peers([(n, peer)]);
        config.filters.insert("hop".to_owned(), program.into());
        config.originate = [(prefix(1), Origination::default())].into();
        let mut net = Net::new(config);
        net.up(4);
        net.check();
        net.adj_out(4)
            .get(&prefix(1))
            .and_then(|sent| sent.next_hop)
    };
    assert_eq!(told(NextHopMode::Auto, [10, 0, 0, 77]), Some(address(77)));
    let own = told(NextHopMode::Own, [10, 0, 0, 77]);
    assert_eq!(
        own,
        Some(address(1)),
        "\"next hop self\" comes first, as in BIRD"
    );
    assert_eq!(
        told(NextHopMode::Auto, [10, 0, 0, 4]),
        None,
        "not to itself"
    );
}

#[test]
fn routes_of_a_preferred_peer_are_used_whatever_else_they_have() {
    let mut net = Net::new(with_peers([internal_peer(2), internal_peer(3)]));
    net.reconfigure(|config| config.peers.get_mut(&name(3)).unwrap().preference = 120);
    net.up(2);
    net.up(3);
    let strong = PathAttrs {
        local_pref: Some(900),
        ..attrs(2)
    };
    net.announce(2, &[1, 2], strong);
    net.announce(3, &[1], attrs(3));
    let reason = |net: &Net| net.rib.explain(&prefix(1)).paths[0].status.clone();
    assert_eq!(
        (net.hops(1), net.hops(2)),
        (vec![address(3)], vec![address(2)])
    );
    let best = PathStatus::Best {
        reason: BestPathReason::Preference,
    };
    assert_eq!(reason(&net), best);
    net.check();
    net.reconfigure(|config| config.peers.get_mut(&name(3)).unwrap().preference = 100);
    net.rest(100);
    assert_eq!(net.hops(1), [address(2)]);
    net.reconfigure(|config| config.peers.get_mut(&name(2)).unwrap().preference = 50);
    net.rest(100);
    assert_eq!(net.hops(1), [address(3)]);
    net.reconfigure(|config| drop(config.originate.insert(prefix(1), Origination::default())));
    assert_eq!(net.hops(1), [] as [IpAddr; 0], "ours comes first");
    net.check();
}
