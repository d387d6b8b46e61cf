//! Verdicts.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// An address of node 1's block.
const POD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 9));

fn identity(n: u8) -> OwnerIdentity {
    OwnerIdentity {
        addresses: [[10, 0, 0, n].into()].into(),
        router_ids: [RouterId([10, 0, 0, n].into())].into(),
        relays: false,
        asn: None,
    }
}

fn named(name: &str) -> PrefixOwner {
    PrefixOwner::Named(name.to_owned())
}

/// Two nodes with a block each; an address of node1's block is node2's.
fn origins() -> OriginCheck {
    let mut origins = OriginCheck::default();
    let owned = OriginRange::Owned { shortest: 26 };
    let rules = OriginRules {
        mode: OriginMode::Enforce,
        ranges: [
            (prefix("10.244.0.0/16"), owned),
            (prefix("10.244.255.0/24"), OriginRange::Free),
        ]
        .into(),
        over_machines: BTreeSet::new(),
    };
    let node = |n: u8| (format!("node{n}"), Some(identity(n)));
    let ownership = vec![
        (prefix("10.244.1.0/26"), named("node1"), true),
        (prefix("10.244.2.0/26"), named("node2"), true),
        (prefix("10.244.1.5/32"), named("node2"), true),
        (prefix("10.244.3.0/26"), PrefixOwner::Free, true),
    ];
    origins.apply(OriginUpdate {
        rules: Some(rules),
        identities: [1, 2].map(node).into(),
        ownership,
        stale: None,
    });
    origins
}

fn route(hop: u8, originator: Option<u8>) -> PathAttrs {
    PathAttrs {
        next_hop: Some([10, 0, 0, hop].into()),
        originator_id: originator.map(|n| RouterId([10, 0, 0, n].into())),
        ..PathAttrs::default()
    }
}

fn verdict(origins: &OriginCheck, text: &str, attrs: &PathAttrs) -> &'static str {
    match origins.check(&prefix(text), attrs) {
        OriginVerdict::Unchecked => "unchecked",
        OriginVerdict::Valid => "valid",
        OriginVerdict::Invalid(_) => "invalid",
        OriginVerdict::Unknown(_) => "unknown",
    }
}

#[test]
fn the_owner_of_the_longest_match_may_announce() {
    let origins = origins();
    for (text, hop, expected) in [
        ("10.244.1.0/26", 1, "valid"),
        ("10.244.1.0/26", 2, "invalid"),
        ("10.244.1.0/26", 9, "invalid"),
        ("10.244.1.7/32", 1, "valid"),
        ("10.244.1.7/32", 2, "invalid"),
        ("10.244.1.5/32", 2, "valid"),
        ("10.244.1.5/32", 1, "invalid"),
        ("10.244.0.0/16", 1, "invalid"),
        ("10.244.1.0/25", 1, "invalid"),
        ("10.244.9.0/26", 1, "unknown"),
        ("10.244.9.1/32", 9, "unknown"),
        ("10.0.0.0/8", 9, "unchecked"),
        ("0.0.0.0/0", 9, "unchecked"),
        ("192.0.2.0/24", 9, "unchecked"),
        ("10.244.3.0/26", 9, "unchecked"),
        ("10.244.255.7/32", 9, "unchecked"),
    ] {
        let seen = verdict(&origins, text, &route(hop, None));
        assert_eq!(seen, expected, "{text} via {hop}");
    }
}

#[test]
fn rfc4456_8_behind_a_reflector_the_originator_counts_where_it_is_known() {
    let origins = origins();
    for (hop, originator, expected) in [
        (1, 1, "valid"),
        (1, 2, "invalid"),
        (2, 1, "invalid"),
        // A node with CALICO_ROUTER_ID of its own, and one that the data does not know: packets go
        // to the owner.
        (1, 77, "valid"),
        (2, 77, "invalid"),
    ] {
        let attrs = route(hop, Some(originator));
        let seen = verdict(&origins, "10.244.1.0/26", &attrs);
        assert_eq!(seen, expected, "{hop} {originator}");
    }
}

/// `nextHopMode: Self` on a reflector (node9): its own address is the next hop of what it reflects.
#[test]
fn rfc4456_10_a_reflector_that_is_the_next_hop_is_believed_what_is_the_owners() {
    let mut origins = origins();
    for (relays, originator, expected) in [
        (false, Some(1), "invalid"),
        (true, Some(1), "valid"),
        // Another node's, an unknown node's, and what the reflector says of itself.
        (true, Some(2), "invalid"),
        (true, Some(77), "invalid"),
        (true, None, "invalid"),
    ] {
        let reflector = OwnerIdentity {
            relays,
            ..identity(9)
        };
        origins.apply(OriginUpdate {
            identities: vec![("node9".to_owned(), Some(reflector))],
            ..OriginUpdate::default()
        });
        let seen = verdict(&origins, "10.244.1.0/26", &route(9, originator));
        assert_eq!(seen, expected, "{relays} {originator:?}");
        // Another node is no relay.
        let by_node = verdict(&origins, "10.244.1.0/26", &route(2, originator));
        assert_eq!(by_node, "invalid");
    }
}

#[test]
fn stale_data_refuses_nothing_for_good_and_off_checks_nothing() {
    let mut origins = origins();
    let update = |stale| OriginUpdate {
        stale: Some(stale),
        ..OriginUpdate::default()
    };
    origins.apply(update(true));
    let other = route(9, None);
    assert_eq!(verdict(&origins, "10.244.1.0/26", &other), "unknown");
    assert_eq!(verdict(&origins, "10.244.1.0/26", &route(1, None)), "valid");
    origins.apply(update(false));
    assert_eq!(verdict(&origins, "10.244.1.0/26", &other), "invalid");
    let off = OriginRules {
        mode: OriginMode::Off,
        ..origins.rules.clone()
    };
    origins.apply(OriginUpdate {
        rules: Some(off),
        ..OriginUpdate::default()
    });
    assert_eq!(verdict(&origins, "10.244.1.0/26", &other), "unchecked");
}

/// Nodes say what their addresses are; an address in another one's block is a pod's all the same.
#[test]
fn an_address_in_what_an_owner_has_is_no_next_hop() {
    let pools = [
        (
            "10.244.0.0/16",
            "10.244.1.0/26",
            "10.244.2.0/26",
            "10.244.1.9",
        ),
        (
            "fd00:10::/64",
            "fd00:10::1:0/122",
            "fd00:10::2:0/122",
            "fd00:10::1:9",
        ),
    ];
    for (pool, of_node1, of_node2, hop) in pools {
        let mut origins = origins();
        let rules = |over_machines: BTreeSet<Prefix>| OriginUpdate {
            rules: Some(OriginRules {
                mode: OriginMode::Enforce,
                ranges: [(prefix(pool), OriginRange::Owned { shortest: 26 })].into(),
                over_machines,
            }),
            ..OriginUpdate::default()
        };
        origins.apply(rules(BTreeSet::new()));
        let hop: IpAddr = hop.parse().unwrap();
        let mut node2 = identity(2);
        node2.addresses.insert(hop);
        let held = |has| OriginUpdate {
            ownership: vec![(prefix(of_node1), named("node1"), has)],
            ..OriginUpdate::default()
        };
        origins.apply(OriginUpdate {
            identities: vec![("node2".to_owned(), Some(node2))],
            ownership: vec![(prefix(of_node2), named("node2"), true)],
            ..held(true)
        });
        origins.apply(held(true));
        let attrs = PathAttrs {
            next_hop: Some(hop),
            ..PathAttrs::default()
        };
        let seen = |origins: &OriginCheck| verdict(origins, of_node2, &attrs);
        assert_eq!(seen(&origins), "invalid");
        let OriginVerdict::Invalid(reason) = origins.check(&prefix(of_node2), &attrs) else {
            panic!("it is invalid");
        };
        let expected = format!("the next hop {hop} is no address of it");
        assert!(reason.to_string().ends_with(&expected), "{reason}");
        // Nor may it be announced by itself, and it hinders nobody's route over it.
        let host = Prefix::host(hop).to_string();
        assert_eq!(verdict(&origins, &host, &attrs), "invalid");
        let (wide, router) = (Prefix::truncated(hop, 14), route(9, None));
        assert_eq!(origins.taken(&wide, &router), None);
        // A pool that lies over machines says nothing of who has an address.
        origins.apply(rules([prefix(pool)].into()));
        assert_eq!(seen(&origins), "valid");
        origins.apply(rules(BTreeSet::new()));
        origins.apply(held(false));
        assert_eq!(seen(&origins), "valid", "nobody has a block there");
        let taken = origins.taken(&wide, &router);
        assert_eq!(taken, Some((hop, "node2".to_owned())));
    }
}

#[test]
fn a_prefix_changes_hands() {
    let mut origins = origins();
    let block = prefix("10.244.1.0/26");
    let change = |ownership| OriginUpdate {
        ownership,
        ..OriginUpdate::default()
    };
    origins.apply(change(vec![(block, named("node2"), true)]));
    for hop in [1, 2] {
        let seen = verdict(&origins, "10.244.1.0/26", &route(hop, None));
        assert_eq!(seen, "valid", "both are named");
    }
    origins.apply(change(vec![(block, named("node1"), false)]));
    assert_eq!(
        verdict(&origins, "10.244.1.0/26", &route(1, None)),
        "invalid"
    );
    origins.apply(change(vec![(block, named("node2"), false)]));
    assert_eq!(
        verdict(&origins, "10.244.1.0/26", &route(1, None)),
        "unknown"
    );
    assert_eq!(origins.len(), 3);
}

#[test]
fn reasons_name_owner_and_next_hop() {
    let origins = origins();
    let OriginVerdict::Invalid(reason) = origins.check(&prefix("10.244.1.0/26"), &route(9, None))
    else {
        panic!("it is invalid");
    };
    assert_eq!(
        reason.to_string(),
        "10.244.1.0/26 is node1's, and the next hop 10.0.0.9 is no address of it"
    );
}

proptest! {
    /// The quick check, which remembers where the route before came from, is what a full check
    /// would say.
    #[test]
    fn a_look_says_what_a_check_says(
        relays in any::<bool>(),
        routes in proptest::collection::vec(
            (prop_oneof![4 => 0u8..4, 1 => Just(255)], 0u8..8, 24u8..=32, 0u8..5, 0u8..4),
            1..80,
        ),
    ) {
        let mut origins = origins();
        // Both nodes have this address, and both of them this block.
        let identities = [1, 2].map(|n| {
            let mut identity = identity(n);
            identity.relays = relays && n == 2;
            identity.addresses.insert([10, 0, 0, 3].into());
            // Among those of node 1.
            identity.addresses.insert(POD);
            (format!("node{n}"), Some(identity))
        });
        let ownership = vec![
            (prefix("10.244.2.0/26"), named("node1"), true),
            // Where other rules count.
            (prefix("10.244.255.0/26"), named("node1"), true),
        ];
        origins.apply(OriginUpdate { identities: identities.into(), ownership, ..OriginUpdate::default() });
        for (third, fourth, len, hop, originator) in routes {
            let asked = Prefix::v4([10, 244, third, fourth].into(), len);
            let mut attrs = route(hop, (originator > 0).then_some(originator));
            if hop == 4 {
                attrs.next_hop = Some(POD);
            }
            let quick = origins.quick_check(&asked, &attrs);
            let verdict = origins.check(&asked, &attrs);
            let passes = matches!(verdict, OriginVerdict::Valid | OriginVerdict::Unchecked);
            prop_assert_eq!(quick.passes, passes, "{} {:?}: {:?}", asked, attrs, verdict);
            let exact = origins.owners.longest(&asked).is_some_and(|(owned, _)| owned == asked);
            prop_assert_eq!(quick.within, !exact && third != 255);
        }
    }
}
