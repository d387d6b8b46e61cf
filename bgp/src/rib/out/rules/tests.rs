use super::*;
use crate::policy::{
    Attribute, Expression, Filter, FilterAction, FilterCondition, FilterTerm, Operator, Place,
    PrefixPattern, Program, Step, StepAction, Value,
};
use crate::rib::peers::Peers;

fn key(kind: PeerKind, filters: Vec<Arc<NamedFilter>>) -> GroupKey {
    GroupKey {
        kind,
        own_as: Asn(64512),
        role: None,
        client_of: None,
        transparent: false,
        next_hop: NextHopModes::default(),
        own_next_hops: [Some([10, 0, 0, 1].into()), None],
        families: vec![Family::Ipv4],
        extended_next_hop: false,
        long_lived: false,
        partial_deployment: false,
        link_local: None,
        link: Vec::new(),
        add_path: None,
        limit: None,
        filters,
        asks: Asks::default(),
    }
}

fn prefix(n: u8) -> Prefix {
    Prefix::v4([10, 244, n, 0].into(), 24)
}

fn filter() -> Arc<NamedFilter> {
    let only = |n| FilterCondition::Prefix {
        patterns: vec![PrefixPattern::exact(prefix(n))],
        negated: false,
    };
    let terms = vec![
        FilterTerm {
            conditions: vec![only(1)],
            actions: vec![],
            verdict: Some(FilterVerdict::Reject),
        },
        FilterTerm {
            conditions: vec![only(2)],
            actions: vec![FilterAction::SetMed(9)],
            verdict: None,
        },
        // A route of ours has no LOCAL_PREF that a filter could see.
        FilterTerm {
            conditions: vec![
                FilterCondition::Source(RouteSource::Static),
                FilterCondition::LocalPref(100),
            ],
            actions: vec![],
            verdict: Some(FilterVerdict::Reject),
        },
        FilterTerm {
            conditions: vec![FilterCondition::Source(RouteSource::Static)],
            actions: vec![FilterAction::PrependAsPath(vec![Asn(7)])],
            verdict: Some(FilterVerdict::Accept),
        },
    ];
    Arc::new(NamedFilter {
        name: "out".into(),
        filter: Filter::from(terms),
    })
}

fn export(
    key: &GroupKey,
    n: u8,
    source: PathSource,
    cache: &mut ExportCache,
    interner: &mut Interner,
) -> Result<Arc<PathAttrs>, Withheld> {
    let next_hop = (source != PathSource::Local).then(|| [10, 0, 0, 9].into());
    let attrs = interner.intern(PathAttrs {
        next_hop,
        med: Some(1),
        ..PathAttrs::default()
    });
    let route = ExportRoute {
        prefix: prefix(n),
        attrs: &attrs,
        peer: PeerId(u32::from(n)),
        handle: PeerId(u32::from(n)),
        source,
        senders: &Peers::default(),
        next_hops: &NextHopTable::default(),
        own: &Originations::default(),
    };
    key.export(route, cache, interner)
}

#[test]
fn filters_see_the_route_before_the_protocol_changes_it() {
    let key = key(PeerKind::External, vec![filter()]);
    let (mut cache, mut interner) = (ExportCache::default(), Interner::default());
    let mut sent = |n, source| export(&key, n, source, &mut cache, &mut interner);
    let by = DecidedBy {
        filter: "out".into(),
        term: 0,
        place: None,
    };
    assert_eq!(sent(1, PathSource::Local), Err(Withheld::Policy(by)));
    let own = sent(3, PathSource::Local).expect("accepted");
    assert_eq!(
        own.as_path.to_string(),
        "64512 7",
        "our AS goes in front of what the filter put"
    );
    assert_eq!((own.local_pref, own.med), (None, Some(1)));
    let source = PathSource::Peer {
        kind: PeerKind::External,
        client_of: None,
        router_id: RouterId([1, 1, 1, 1].into()),
    };
    assert_eq!(
        sent(2, source).expect("accepted").med,
        Some(9),
        "a MED that a filter sets goes out"
    );
    assert_eq!(sent(3, source).expect("accepted").med, None);
}

#[test]
fn export_filters_see_the_med_that_goes_no_further() {
    let step = |action| Step {
        place: Place {
            file: "f".into(),
            line: 1,
        },
        action,
    };
    let is_one = Expression::Binary(
        Operator::Equal,
        Box::new([
            Expression::Attribute(Attribute::Med),
            Expression::Constant(Value::Int(1)),
        ]),
    );
    let mark = StepAction::Set(Attribute::LocalPref, Expression::Constant(Value::Int(7)));
    let accept = vec![step(mark), step(StepAction::Accept)];
    let program = vec![step(StepAction::If(is_one, accept, Vec::new()))];
    let seen = Arc::new(NamedFilter {
        name: "seen".into(),
        filter: Program::new("seen", 0, program).into(),
    });
    let source = PathSource::Peer {
        kind: PeerKind::Internal,
        client_of: None,
        router_id: RouterId([1, 1, 1, 1].into()),
    };
    let key = key(PeerKind::External, vec![seen]);
    let (mut cache, mut interner) = (ExportCache::default(), Interner::default());
    let sent = export(&key, 1, source, &mut cache, &mut interner);
    assert_eq!(sent.expect("accepted").med, None);
}

#[test]
fn the_rule_for_the_next_hop_is_that_of_the_family() {
    let key = GroupKey {
        families: vec![Family::Ipv4, Family::Ipv6],
        next_hop: NextHopModes {
            ipv4: NextHopMode::Keep,
            ipv6: NextHopMode::Own,
        },
        own_next_hops: [Some([10, 0, 0, 1].into()), Some([1; 16].into())],
        ..key(PeerKind::Internal, vec![])
    };
    let told = |prefix: &str, hop: &str| {
        let (mut cache, mut interner) = (ExportCache::default(), Interner::default());
        let attrs = interner.intern(PathAttrs {
            next_hop: hop.parse().ok(),
            ..PathAttrs::default()
        });
        let route = ExportRoute {
            prefix: prefix.parse().expect("a prefix"),
            attrs: &attrs,
            peer: PeerId(2),
            handle: PeerId(2),
            source: PathSource::Peer {
                kind: PeerKind::External,
                client_of: None,
                router_id: RouterId([1, 1, 1, 1].into()),
            },
            senders: &Peers::default(),
            next_hops: &NextHopTable::default(),
            own: &Originations::default(),
        };
        let sent = key.export(route, &mut cache, &mut interner);
        sent.expect("sent").next_hop
    };
    assert_eq!(told("10.9.0.0/16", "10.0.0.9"), Some([10, 0, 0, 9].into()));
    assert_eq!(told("fd09::/16", "fd00::9"), Some([1; 16].into()));
}

#[test]
fn rfc7947_2_2_a_route_server_passes_routes_on_as_they_came() {
    let source = PathSource::Peer {
        kind: PeerKind::External,
        client_of: None,
        router_id: RouterId([1, 1, 1, 1].into()),
    };
    let client = |next_hop| GroupKey {
        transparent: true,
        next_hop,
        ..key(PeerKind::External, vec![])
    };
    let sent = |key: &GroupKey, source| {
        let (mut cache, mut interner) = (ExportCache::default(), Interner::default());
        export(key, 1, source, &mut cache, &mut interner).expect("sent")
    };
    let of_other = sent(&client(NextHopMode::Auto.into()), source);
    assert_eq!(of_other.as_path.to_string(), "", "our AS is not in it");
    assert_eq!(of_other.med, Some(1));
    assert_eq!(of_other.next_hop, Some([10, 0, 0, 9].into()));
    assert_eq!(of_other.local_pref, None, "as to every external peer");
    let through_us = sent(&client(NextHopMode::Own.into()), source);
    assert_eq!(through_us.next_hop, Some([10, 0, 0, 1].into()));
    let own = sent(&client(NextHopMode::Auto.into()), PathSource::Local);
    assert_eq!(own.next_hop, Some([10, 0, 0, 1].into()));
    let plain = sent(&key(PeerKind::External, vec![]), source);
    assert_eq!(
        (plain.as_path.to_string(), plain.med),
        ("64512".to_owned(), None)
    );
}

#[test]
fn the_cache_does_not_mix_sources_or_sets() {
    let key = key(PeerKind::Internal, vec![]);
    let (mut cache, mut interner) = (ExportCache::default(), Interner::default());
    let external = PathSource::Peer {
        kind: PeerKind::External,
        client_of: None,
        router_id: RouterId([1, 1, 1, 1].into()),
    };
    for _ in 0..2 {
        let own = export(&key, 1, PathSource::Local, &mut cache, &mut interner).expect("sent");
        assert_eq!(own.next_hop, Some([10, 0, 0, 1].into()));
        let learned = export(&key, 2, external, &mut cache, &mut interner).expect("sent");
        assert_eq!(learned.next_hop, Some([10, 0, 0, 9].into()));
        let again = export(&key, 2, external, &mut cache, &mut interner).expect("sent");
        assert!(Arc::ptr_eq(&learned, &again));
    }
}

/// RFC 9234 §5, egress: where a route goes that is for customers alone, and what it says there.
#[test]
fn rfc9234_5_what_is_for_customers_alone_goes_down() {
    let (own, other) = (Asn(64512), Asn(65009));
    let sent = |role: Option<BgpRole>, said: Option<Asn>| {
        let mut interner = Interner::default();
        let mut attrs = PathAttrs {
            next_hop: Some([10, 0, 0, 9].into()),
            ..PathAttrs::default()
        };
        attrs.set_only_to_customer(said);
        let attrs = interner.intern(attrs);
        let source = PathSource::Peer {
            kind: PeerKind::External,
            client_of: None,
            router_id: RouterId([1, 1, 1, 1].into()),
        };
        let route = ExportRoute {
            prefix: prefix(1),
            attrs: &attrs,
            peer: PeerId(1),
            handle: PeerId(1),
            source,
            senders: &Peers::default(),
            next_hops: &NextHopTable::default(),
            own: &Originations::default(),
        };
        let key = GroupKey {
            role,
            ..key(PeerKind::External, vec![])
        };
        let sent = key.export(route, &mut ExportCache::default(), &mut interner);
        sent.map(|attrs| attrs.only_to_customer())
    };
    for above in [BgpRole::Provider, BgpRole::RsServer] {
        assert_eq!(sent(Some(above), None), Ok(Some(own)));
        assert_eq!(sent(Some(above), Some(other)), Ok(Some(other)));
    }
    for below in [BgpRole::Customer, BgpRole::RsClient] {
        assert_eq!(sent(Some(below), None), Ok(None));
        assert_eq!(
            sent(Some(below), Some(other)),
            Err(Withheld::OnlyToCustomer)
        );
    }
    assert_eq!(sent(Some(BgpRole::Peer), None), Ok(Some(own)));
    assert_eq!(
        sent(Some(BgpRole::Peer), Some(other)),
        Err(Withheld::OnlyToCustomer)
    );
    assert_eq!(sent(None, Some(other)), Ok(Some(other)));
}
