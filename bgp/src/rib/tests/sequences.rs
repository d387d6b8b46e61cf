//! Random sequences of everything that can happen, against the mirror and against a fresh table.

use proptest::prelude::*;

use super::*;
use crate::policy::{
    Filter, FilterAction, FilterCondition, FilterTerm, FilterVerdict, PrefixPattern,
};
use crate::types::{ClusterId, Community};

/// Events of a sequence. Peers are 2 to 6, prefixes 0 to 3.
#[derive(Clone, Debug)]
enum Event {
    Up(u8),
    Restarted(u8, bool),
    Down(u8, bool),
    Announce(u8, u8, Variant),
    Withdraw(u8, u8),
    EndOfRib(u8),
    Originate(u8),
    Unoriginate(u8),
    Advance(u64),
    Client(u8, bool),
    Filter(u8, bool),
    Preference(u8),
    Refresh(u8),
    RefreshBegin(u8),
    RefreshEnd(u8),
    NextHop(bool),
    Replace(u8),
    LongLived(u8),
}

/// Attributes from a small set, so that ties and repetitions are common.
#[derive(Clone, Copy, Debug)]
struct Variant {
    local_pref: u32,
    med: u32,
    hop: u8,
    community: bool,
}

fn event() -> impl Strategy<Value = Event> {
    let (peer, route) = (2u8..7, 0u8..4);
    let variant = (100u32..102, 0u32..2, 0u8..2, prop::bool::weighted(0.2)).prop_map(
        |(local_pref, med, hop, community)| Variant {
            local_pref,
            med,
            hop,
            community,
        },
    );
    prop_oneof![
        3 => peer.clone().prop_map(Event::Up),
        1 => (peer.clone(), any::<bool>()).prop_map(|(p, f)| Event::Restarted(p, f)),
        1 => (peer.clone(), any::<bool>()).prop_map(|(p, g)| Event::Down(p, g)),
        9 => (peer.clone(), route.clone(), variant).prop_map(|(p, r, v)| Event::Announce(p, r, v)),
        3 => (peer.clone(), route.clone()).prop_map(|(p, r)| Event::Withdraw(p, r)),
        2 => peer.clone().prop_map(Event::EndOfRib),
        1 => route.clone().prop_map(Event::Originate),
        1 => route.prop_map(Event::Unoriginate),
        1 => (0u64..200).prop_map(Event::Advance),
        1 => (2u8..5, any::<bool>()).prop_map(|(p, c)| Event::Client(p, c)),
        1 => (peer, any::<bool>()).prop_map(|(p, f)| Event::Filter(p, f)),
        1 => (0u8..3).prop_map(Event::Preference),
    ]
}

/// Everything that starts long work, too.
fn long_event() -> impl Strategy<Value = Event> {
    let peer = 2u8..7;
    prop_oneof![
        16 => event(),
        1 => peer.clone().prop_map(Event::Refresh),
        1 => peer.clone().prop_map(Event::RefreshBegin),
        1 => peer.clone().prop_map(Event::RefreshEnd),
        1 => any::<bool>().prop_map(Event::NextHop),
        1 => peer.clone().prop_map(Event::Replace),
        1 => peer.prop_map(Event::LongLived),
    ]
}

fn start(restarting: bool) -> Net {
    let peers = [2, 3, 4]
        .map(internal_peer)
        .into_iter()
        .chain([5, 6].map(external_peer));
    Net::with_options(
        with_peers(peers),
        RibOptions {
            restarting,
            ..RibOptions::default()
        },
    )
}

fn filter(preference: u8) -> Filter {
    let patterns = vec![PrefixPattern::exact(prefix(preference))];
    let conditions = vec![FilterCondition::Prefix {
        patterns,
        negated: false,
    }];
    let local_pref = 100 + u32::from(preference);
    let set = vec![FilterAction::SetLocalPref(local_pref)];
    Filter::from(vec![
        FilterTerm {
            conditions,
            actions: vec![],
            verdict: Some(FilterVerdict::Reject),
        },
        FilterTerm {
            conditions: vec![],
            actions: set,
            verdict: None,
        },
    ])
}

fn received(n: u8, variant: Variant) -> PathAttrs {
    let base = if n > 4 {
        external(n, &[65000 + u32::from(n)])
    } else {
        PathAttrs {
            local_pref: Some(variant.local_pref),
            ..attrs(n)
        }
    };
    PathAttrs {
        med: Some(variant.med),
        next_hop: Some(address(if variant.hop == 0 { n } else { 9 })),
        communities: if variant.community {
            vec![Community::NO_EXPORT]
        } else {
            vec![]
        },
        ..base
    }
}

fn happen(net: &mut Net, event: Event) {
    let filters = vec!["f".to_owned()];
    match event {
        Event::Up(n) => net.up(n),
        Event::Restarted(n, forwarding) => {
            let families = vec![(Family::Ipv4, forwarding)];
            let time = Duration::from_secs(120);
            let restart = RemoteRestart {
                restarting: true,
                time,
                families,
            };
            net.up_with(
                n,
                SessionInfo {
                    graceful_restart: Some(restart),
                    ..session(n)
                },
            );
        }
        Event::Down(n, graceful) => net.down(n, graceful),
        Event::Announce(n, route, variant) => net.announce(n, &[route], received(n, variant)),
        Event::Withdraw(n, route) => net.withdraw(n, &[route]),
        Event::EndOfRib(n) => net.end_of_rib(n),
        Event::Originate(route) => net.reconfigure(|config| {
            config
                .originate
                .insert(prefix(route), Origination::default());
        }),
        Event::Unoriginate(route) => net.reconfigure(|config| {
            config.originate.remove(&prefix(route));
        }),
        Event::Advance(seconds) => net.advance(seconds),
        Event::Client(n, client) => net.reconfigure(|config| {
            let cluster = client.then(|| ClusterId([7, 7, 7, 7].into()));
            config.peers.get_mut(&name(n)).unwrap().client_of = cluster;
        }),
        Event::Filter(n, import) => net.reconfigure(|config| {
            let peer = config.peers.get_mut(&name(n)).unwrap();
            let list = if import {
                &mut peer.import
            } else {
                &mut peer.export
            };
            *list = if list.is_empty() { filters } else { vec![] };
        }),
        Event::Preference(preference) => net.reconfigure(|config| {
            config.filters.insert("f".to_owned(), filter(preference));
        }),
        Event::Refresh(n) => {
            let changes = net.rib.route_refresh(net.now, &name(n), Family::Ipv4);
            net.mirror(changes);
        }
        Event::RefreshBegin(n) => {
            let changes = net.rib.refresh_begin(net.now, &name(n), Family::Ipv4);
            net.mirror(changes);
        }
        Event::RefreshEnd(n) => {
            let changes = net.rib.refresh_end(net.now, &name(n), Family::Ipv4);
            net.mirror(changes);
        }
        Event::NextHop(reached) => {
            let route = reached.then(UnderlayRoute::default);
            let routes = [(Prefix::host(address(9)), route)];
            let underlay = Underlay::new(routes, Some(UnderlayRoute::default()));
            let changes = net.rib.set_underlay(net.now, underlay);
            net.mirror(changes);
        }
        Event::Replace(n) => {
            let id = net.rib.peer_id(&name(n)).unwrap();
            net.adj_out.remove(&id);
            net.station.retain(|path, _| path.peer != id);
            let peer = net.config.peers[&name(n)].clone();
            net.reconfigure(|config| drop(config.peers.remove(&name(n))));
            net.reconfigure(|config| drop(config.peers.insert(name(n), peer)));
        }
        Event::LongLived(n) => {
            let entry = LongLivedRestart {
                family: Family::Ipv4,
                forwarding: true,
                time: Duration::from_secs(50),
            };
            let options = SessionOptions {
                long_lived: Some(vec![entry]),
                enhanced_refresh: true,
                ..SessionOptions::default()
            };
            net.up_with(
                n,
                SessionInfo {
                    options,
                    ..session(n)
                },
            );
        }
    }
}

/// A table that has only ever seen the present.
fn fresh(net: &Net) -> Net {
    let mut fresh = Net::new(net.config.clone());
    for n in 2..7 {
        if net.rib.session(&name(n)).is_some() {
            fresh.up(n);
        }
    }
    fresh
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_was_said_equals_what_is_answered(
        restarting: bool,
        events in prop::collection::vec(event(), 1..60)
    ) {
        let mut net = start(restarting);
        for event in events {
            happen(&mut net, event);
            net.check();
        }
        net.advance(1000);
        net.check();
        prop_assert!(net.rib.awaited().next().is_none());
    }

    /// DESIGN: output depends on the current state, never on history.
    #[test]
    fn history_leaves_no_trace(events in prop::collection::vec(event(), 1..60)) {
        let mut net = start(false);
        let mut known: BTreeMap<(u8, u8), Variant> = BTreeMap::new();
        for event in events {
            // Without retention, so that the model of what each peer has announced stays trivial.
            let event = match event {
                Event::Down(n, _) => Event::Down(n, false),
                Event::Restarted(n, _) => Event::Restarted(n, false),
                other => other,
            };
            match event {
                Event::Down(n, _) | Event::Restarted(n, _) | Event::Up(n) => {
                    if matches!(event, Event::Up(_)) {
                        happen(&mut net, Event::Down(n, false));
                    }
                    known.retain(|(peer, _), _| *peer != n);
                }
                Event::Announce(n, route, variant) if net.rib.session(&name(n)).is_some() => {
                    known.insert((n, route), variant);
                }
                Event::Withdraw(n, route) => drop(known.remove(&(n, route))),
                _ => {}
            }
            happen(&mut net, event);
        }
        let mut fresh = fresh(&net);
        for ((n, route), variant) in known.into_iter().rev() {
            happen(&mut fresh, Event::Announce(n, route, variant));
        }
        prop_assert_eq!(&net.fib, &fresh.fib);
        for n in 2..7 {
            prop_assert_eq!(net.adj_out(n), fresh.adj_out(n), "peer {}", n);
        }
        prop_assert_eq!(net.rib.counts().paths, fresh.rib.counts().paths);
        prop_assert_eq!(net.rib.counts().prefixes, fresh.rib.counts().prefixes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// RIB-5: however the work is cut, and whatever happens in between, it ends where the whole of
    /// it would have.
    #[test]
    fn work_in_slices_ends_where_the_whole_of_it_does(
        restarting: bool,
        events in prop::collection::vec((long_event(), 0usize..4, 0usize..3), 1..60),
        last in 1usize..4,
    ) {
        let mut whole = start(restarting);
        let mut sliced = start(restarting);
        sliced.rib.inline = 0;
        sliced.in_slices = true;
        for (event, times, places) in events {
            happen(&mut whole, event.clone());
            happen(&mut sliced, event);
            sliced.work(times, places);
        }
        sliced.work(10_000, last);
        prop_assert!(!sliced.rib.has_work(), "{:?}", sliced.rib.progress());
        whole.check();
        sliced.check();
        for seconds in [0, 30, 40, 200, 3000] {
            whole.advance(seconds);
            sliced.advance(seconds);
            sliced.work(10_000, last);
            prop_assert_eq!(&whole.fib, &sliced.fib);
            for n in 2..7 {
                prop_assert_eq!(whole.adj_out(n), sliced.adj_out(n), "peer {}", n);
                prop_assert_eq!(whole.rib.received(&name(n)), sliced.rib.received(&name(n)));
                prop_assert_eq!(whole.rib.peer_counts(&name(n)), sliced.rib.peer_counts(&name(n)));
            }
            let of = |net: &Net| {
                let (counts, table) = (net.rib.counts(), &net.rib.table);
                // An empty destination that waits for its decision is let go with it, and which
                // ones wait depends on the slices.
                let slots = (0..table.slots()).filter_map(|slot| table.dest_at(slot));
                let slots = slots.filter(|(_, dest)| !dest.paths().is_empty());
                (counts.paths, slots.count(), counts.update_groups)
            };
            prop_assert_eq!(of(&whole), of(&sliced));
            prop_assert!(sliced.rib.pending_end_of_rib.is_empty() || sliced.rib.is_deferring());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// After anything, policy of one peer changes: no session ends, nothing is asked of any peer,
    /// another peer's policy has nothing to do again. On export, nobody else is told anything; on
    /// import, nothing but what follows from the routes.
    #[test]
    fn a_change_of_policy_touches_one_peer_and_no_session(
        events in prop::collection::vec(event(), 1..60),
        n in 2u8..7,
        preference in 0u8..3,
        import: bool,
    ) {
        let mut net = start(false);
        for event in events {
            happen(&mut net, event);
        }
        let sessions = |net: &Net| -> Vec<_> {
            (2..7).map(|n| net.rib.session(&name(n)).cloned()).collect()
        };
        let received = |net: &Net| -> Vec<_> {
            let of = |n| net.rib.received(&name(n)).unwrap();
            let plain = |route: RouteInfo| (route.prefix, route.path_id, route.stale);
            (2..7).map(|n| of(n).into_iter().map(plain).collect::<Vec<_>>()).collect()
        };
        let adj_out: Vec<_> = (2..7).map(|n| net.adj_out(n)).collect();
        let before = (sessions(&net), received(&net));

        let mut new = net.config.clone();
        new.filters.insert("g".to_owned(), filter(preference));
        let peer = new.peers.get_mut(&name(n)).unwrap();
        if import {
            peer.import = vec!["g".to_owned()];
        } else {
            peer.export = vec!["g".to_owned()];
        }
        let change = crate::config::compare_configs(&net.config, &new);
        for (other, change) in &change.peers {
            prop_assert_eq!(other, &name(n));
            prop_assert!(!change.reset && !change.session && !change.replaced);
        }
        let changes = net.rib.reconfigure(net.now, &new);
        if !import {
            let own = net.rib.peer_id(&name(n)).unwrap();
            for out in &changes.out {
                let Outbound::Peer { peer, .. } = out else {
                    return Err(TestCaseError::fail(format!("{out:?}")));
                };
                prop_assert_eq!(*peer, own);
            }
            prop_assert_eq!(&changes.prefixes, &[]);
        }
        net.config = new;
        net.mirror(changes);
        net.check();
        prop_assert_eq!((sessions(&net), received(&net)), before);
        if !import {
            for other in (2..7).filter(|other| *other != n) {
                prop_assert_eq!(&net.adj_out(other), &adj_out[usize::from(other) - 2]);
            }
        }
    }
}
