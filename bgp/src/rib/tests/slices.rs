//! Nothing looks at the whole table in one call: what each call does is counted, in a table that is
//! larger than a slice.

use super::*;
use crate::policy::{Filter, FilterAction, FilterTerm};

/// Prefixes of the table, several times what a call may look at.
const MANY: u32 = 20_000;
/// Destinations that are asked for at a time.
const STEP: usize = 256;
/// Destinations that a call treats itself.
const INLINE: usize = 512;

fn far(n: u32) -> Prefix {
    Prefix::v4((0x0a00_0000 + (n << 8)).into(), 24)
}

fn long_lived(n: u8) -> SessionInfo {
    let entry = LongLivedRestart {
        family: Family::Ipv4,
        forwarding: true,
        time: Duration::from_secs(3600),
    };
    let options = SessionOptions {
        long_lived: Some(vec![entry]),
        enhanced_refresh: true,
        ..SessionOptions::default()
    };
    SessionInfo {
        options,
        ..session(n)
    }
}

/// External peer 2 has announced everything to 3 and 4.
fn large() -> Net {
    let mut net = Net::new(with_peers([
        external_peer(2),
        internal_peer(3),
        internal_peer(4),
    ]));
    net.in_slices = true;
    // So few that one walk over the table is more than a call may do.
    net.rib.inline = INLINE;
    net.up_with(2, long_lived(2));
    net.up_with(3, long_lived(3));
    announce_all(&mut net);
    net.end_of_rib(2);
    finish(&mut net, 0);
    assert_eq!(net.fib.len(), MANY as usize);
    net
}

fn announce_all(net: &mut Net) {
    for first in (0..MANY).step_by(1000) {
        net.apply(
            2,
            UpdateMessage {
                announced: (first..first + 1000).map(far).collect(),
                attrs: Some(external(2, &[65002])),
                ..UpdateMessage::default()
            },
        );
    }
}

/// Number of routes and prefixes in the answer of a call.
fn outputs(changes: &Changes) -> usize {
    let out = changes.out.iter().map(|out| match out {
        Outbound::Group(update) => update.routes.len(),
        Outbound::Peer { routes, .. } => routes.len(),
        _ => 1,
    });
    changes.prefixes.len().max(out.max().unwrap_or_default())
}

/// Reads of a destination for each that a call may treat, at most: by the jobs that are under way,
/// by the decision, and by the export to each group.
const LOOKS: usize = 24;

/// The watchdog: what a call costs, counted in looks at destinations, which no machine changes.
fn watched<T>(what: &str, destinations: usize, call: impl FnOnce() -> T) -> T {
    let before = table::visits();
    let result = call();
    let seen = table::visits() - before;
    let bound = destinations * LOOKS;
    assert!(seen <= bound, "{what}: {seen} looks for {destinations}");
    result
}

/// Ends the work in steps, each of them small, and at least so many.
fn finish(net: &mut Net, least: usize) {
    let mut steps = 0;
    while net.rib.has_work() {
        let changes = watched("a step", STEP, || net.rib.work(net.now, STEP));
        assert!(
            outputs(&changes) <= STEP,
            "{} in a step of {STEP}",
            outputs(&changes)
        );
        net.mirror(changes);
        steps += 1;
        assert!(steps < 1000, "{:?}", net.rib.progress());
    }
    assert!(steps >= least, "{steps} steps");
}

/// Begins something, which does no more than a slice at once; the rest is left.
fn begin(net: &mut Net, what: impl FnOnce(&mut Net) -> Changes) {
    let inline = net.rib.inline;
    let changes = watched("a beginning", inline, || what(net));
    let bound = inline + 16;
    assert!(outputs(&changes) <= bound, "{} at once", outputs(&changes));
    net.mirror(changes);
    assert!(net.rib.has_work(), "all of it was done at once");
    // Steps left in each case: the table without the first slice.
    finish(net, (MANY as usize - inline) / STEP);
    net.check();
}

#[test]
fn whatever_concerns_the_whole_table_comes_in_slices() {
    let mut net = large();
    let before = net.fib.len();

    // An import filter.
    let local_pref = |pref| {
        Filter::from(vec![FilterTerm {
            conditions: vec![],
            actions: vec![FilterAction::SetLocalPref(pref)],
            verdict: None,
        }])
    };
    begin(&mut net, |net| {
        net.config.filters.insert("f".to_owned(), local_pref(7));
        net.config.peers.get_mut(&name(2)).unwrap().import = vec!["f".to_owned()];
        net.rib.reconfigure(net.now, &net.config.clone())
    });
    assert!(net.fib.values().all(|route| route.local_pref == 7));

    // An export filter.
    begin(&mut net, |net| {
        net.config.filters.insert("g".to_owned(), local_pref(9));
        net.config.peers.get_mut(&name(3)).unwrap().export = vec!["g".to_owned()];
        net.rib.reconfigure(net.now, &net.config.clone())
    });
    assert!(
        net.adj_out(3)
            .values()
            .all(|attrs| attrs.local_pref == Some(9))
    );

    // Another way to the next hop.
    begin(&mut net, |net| {
        let route = UnderlayRoute {
            metric: 3,
            ..UnderlayRoute::default()
        };
        let routes = [(Prefix::host(address(2)), Some(route))];
        let underlay = Underlay::new(routes, Some(UnderlayRoute::default()));
        net.rib.set_underlay(net.now, underlay)
    });

    // A new peer is told everything, and then End-of-RIB.
    begin(&mut net, |net| {
        net.rib.peer_up(net.now, &name(4), session(4))
    });
    assert_eq!(net.adj_out(4).len(), before);
    let four = net.rib.peer_id(&name(4)).unwrap();
    assert_eq!(net.markers.last(), Some(&(four, Family::Ipv4)));

    // A peer asks for everything again.
    begin(&mut net, |net| {
        net.rib.route_refresh(net.now, &name(3), Family::Ipv4)
    });
    assert_eq!(net.adj_out(3).len(), before);

    // A peer is about to send everything again, and sends half of it.
    begin(&mut net, |net| {
        net.rib.refresh_begin(net.now, &name(2), Family::Ipv4)
    });
    let half = UpdateMessage {
        announced: (0..MANY / 2).map(far).collect(),
        attrs: Some(external(2, &[65002])),
        ..UpdateMessage::default()
    };
    net.apply(2, half);
    begin(&mut net, |net| {
        net.rib.refresh_end(net.now, &name(2), Family::Ipv4)
    });
    assert_eq!(net.fib.len(), before / 2);
    announce_all(&mut net);

    // The session ends, and the routes are kept; then as a last resort; then not at all.
    begin(&mut net, |net| net.rib.peer_down(net.now, &name(2), true));
    assert!(net.fib.values().all(|route| route.stale));
    begin(&mut net, |net| {
        net.now += Duration::from_secs(120);
        net.rib.handle_timeout(net.now)
    });
    assert_eq!(net.fib.len(), before);
    begin(&mut net, |net| {
        net.now += Duration::from_secs(3600);
        net.rib.handle_timeout(net.now)
    });
    assert_eq!(net.fib.len(), 0);

    // A session ends for good.
    net.up_with(2, long_lived(2));
    announce_all(&mut net);
    begin(&mut net, |net| net.rib.peer_down(net.now, &name(2), false));
    assert_eq!(net.fib.len(), 0);

    // Stale routes go with End-of-RIB.
    net.up_with(2, long_lived(2));
    announce_all(&mut net);
    begin(&mut net, |net| net.rib.peer_down(net.now, &name(2), true));
    net.up_with(2, long_lived(2));
    begin(&mut net, |net| {
        net.rib
            .apply(net.now, &name(2), UpdateMessage::end_of_rib(Family::Ipv4))
    });
    assert_eq!(net.fib.len(), 0);
    assert_eq!(net.rib.counts().prefixes, 0);
}

/// The own routes of one configuration, as many as the table has of a peer: they come and go in
/// slices, and a peer that comes up meanwhile gets End-of-RIB behind all of them.
#[test]
fn own_routes_of_one_configuration_come_in_slices() {
    let mut net = large();
    let own = |n: u32| Prefix::v4((0x6400_0000 + (n << 8)).into(), 24);
    let route = Origination {
        med: Some(7),
        ..Origination::default()
    };
    begin(&mut net, |net| {
        net.config.originate = (0..MANY).map(|n| (own(n), route.clone())).collect();
        net.rib.reconfigure(net.now, &net.config.clone())
    });
    assert_eq!(net.adj_out(3).len(), 2 * MANY as usize);

    // Others come, some stay, and the configuration changes again before all of it is in force.
    net.config.originate = (MANY / 2..3 * MANY / 2)
        .map(|n| (own(n), route.clone()))
        .collect();
    let changes = net.rib.reconfigure(net.now, &net.config.clone());
    net.mirror(changes);
    let ticket = net.rib.ticket();
    assert!(net.rib.has_work() && !net.rib.is_done(ticket));
    let left = net.rib.progress();
    assert_eq!(left[0].what, "take over own routes");
    let changes = net.rib.peer_up(net.now, &name(4), session(4));
    net.mirror(changes);
    let four = net.rib.peer_id(&name(4)).unwrap();
    net.config.originate.remove(&own(MANY / 2));
    begin(&mut net, |net| {
        net.rib.reconfigure(net.now, &net.config.clone())
    });
    assert!(net.rib.is_done(ticket));
    assert_eq!(net.markers.last(), Some(&(four, Family::Ipv4)));
    for peer in [3, 4] {
        let own_only = |prefix: &&Prefix| net.config.originate.contains_key(*prefix);
        assert_eq!(net.adj_out(peer).len(), 2 * MANY as usize - 1, "{peer}");
        assert_eq!(
            net.adj_out(peer).keys().filter(own_only).count(),
            MANY as usize - 1
        );
    }

    begin(&mut net, |net| {
        net.config.originate.clear();
        net.rib.reconfigure(net.now, &net.config.clone())
    });
    assert_eq!(net.adj_out(3).len(), MANY as usize);
}

/// A configuration that is another one, and says nearly or wholly the same, is compared in slices
/// too, and changes nothing else.
#[test]
fn own_routes_that_stay_are_compared_in_slices() {
    let mut net = large();
    let own = |n: u32| Prefix::v4((0x6400_0000 + (n << 6)).into(), 26);
    // Many enough that one call does not compare them all.
    let all = || (0..3 * MANY).map(|n| (own(n), Origination::default()));
    net.config.originate = all().collect();
    let changes = net.rib.reconfigure(net.now, &net.config.clone());
    net.mirror(changes);
    finish(&mut net, (MANY as usize * 3 - INLINE) / STEP);

    for gone in [None, Some(own(MANY)), Some(own(0)), Some(own(3 * MANY - 1))] {
        net.config.originate = all().filter(|(prefix, _)| Some(*prefix) != gone).collect();
        let changes = watched("a beginning", INLINE, || {
            net.rib.reconfigure(net.now, &net.config.clone())
        });
        net.mirror(changes);
        let ticket = net.rib.ticket();
        assert!(net.rib.has_work() && !net.rib.is_done(ticket));
        let Progress { done, total, .. } = net.rib.progress().remove(0);
        assert!(0 < done && done < total, "{done} of {total}");
        let out = finish_work(&mut net);
        // Withdrawn now, and what was gone the time before is announced again.
        assert!(out <= 2, "{gone:?}: {out} were told");
        assert_eq!(
            net.adj_out(3).len(),
            MANY as usize + net.config.originate.len()
        );
    }
    // The same routes in the same memory are not even compared.
    let seen = table::visits();
    let changes = net.rib.reconfigure(net.now, &net.config.clone());
    assert!(changes.is_empty() && !net.rib.has_work());
    assert!(table::visits() - seen < 100);
    net.check();
}

/// Ends the work in steps, none of which looks at much; number of its outputs.
fn finish_work(net: &mut Net) -> usize {
    let mut outputs_seen = 0;
    while net.rib.has_work() {
        let changes = watched("a step", STEP, || net.rib.work(net.now, STEP));
        outputs_seen += outputs(&changes);
        net.mirror(changes);
    }
    outputs_seen
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 64, ..Default::default() })]

    /// Whatever configurations follow each other, and however far the table was with each: the own
    /// routes are those of the last.
    #[test]
    fn own_routes_are_those_of_the_last_configuration(
        steps in proptest::collection::vec(
            (proptest::collection::btree_map(0u8..40, 0u32..3, 0..40), 0usize..12),
            1..8,
        ),
    ) {
        let mut net = Net::new(with_peers([internal_peer(2)]));
        net.in_slices = true;
        net.rib.inline = 1;
        net.up(2);
        for (routes, work) in steps {
            let route = |med| Origination { med: Some(med), ..Origination::default() };
            let routes = routes.into_iter().map(|(n, med)| (prefix(n), route(med)));
            net.config.originate = routes.collect();
            let changes = net.rib.reconfigure(net.now, &net.config.clone());
            net.mirror(changes);
            for _ in 0..work {
                let changes = net.rib.work(net.now, 1);
                net.mirror(changes);
            }
        }
        while net.rib.has_work() {
            let changes = net.rib.work(net.now, 3);
            net.mirror(changes);
        }
        let adj_out = net.adj_out(2).into_iter();
        let adj_out: BTreeMap<_, _> = adj_out.map(|(prefix, route)| (prefix, route.med)).collect();
        let wanted = net.config.originate.iter();
        let wanted: BTreeMap<_, _> = wanted.map(|(prefix, route)| (*prefix, route.med)).collect();
        proptest::prop_assert_eq!(adj_out, wanted);
        net.check();
    }
}

/// Paths of one peer to one prefix, and of another one between them.
const PATHS: u32 = 20_000;

fn paths(withdrawn: &[u32], announced: &[u32], attrs: PathAttrs) -> UpdateMessage {
    UpdateMessage {
        withdrawn: vec![far(0); withdrawn.len()],
        withdrawn_ids: withdrawn.to_vec(),
        announced: vec![far(0); announced.len()],
        announced_ids: announced.to_vec(),
        attrs: Some(attrs),
        ..UpdateMessage::default()
    }
}

/// Ends the work on one destination with very many paths, of which another peer takes some and
/// brings some between two slices; a slice looks at a part of them.
fn finish_among(net: &mut Net, withdrawn: &mut Vec<u32>, bound: usize) {
    let (first, mut steps) = (u32::try_from(withdrawn.len()).unwrap(), 0u32);
    while net.rib.has_work() {
        let before = table::visits();
        let changes = net.rib.work(net.now, STEP);
        let seen = table::visits() - before;
        assert!(seen <= bound, "{seen} looks in a step");
        net.mirror(changes);
        steps += 1;
        assert!(steps < 100, "{:?}", net.rib.progress());
        let n = first + 2 * steps;
        net.apply(4, paths(&[n, n + 1], &[PATHS + n], attrs(4)));
        withdrawn.extend([n, n + 1]);
    }
    assert!(steps > 2, "{steps} steps");
}

/// The paths to one prefix are no single piece of work: they become stale, a last resort, and go,
/// some in each slice, whatever another peer does to the same prefix meanwhile.
#[test]
fn of_very_many_paths_to_one_prefix_each_slice_looks_at_some() {
    let mut net = Net::new(with_peers([external_peer(2), internal_peer(4)]));
    net.in_slices = true;
    net.rib.inline = INLINE;
    net.up_with(2, long_lived(2));
    net.up(4);
    for first in (0..PATHS).step_by(1000) {
        let ids: Vec<u32> = (first..first + 1000).collect();
        net.apply(4, paths(&[], &ids, attrs(4)));
        net.apply(2, paths(&[], &ids, external(2, &[65002])));
    }
    net.end_of_rib(2);
    let (mut gone, mut others) = (Vec::new(), PATHS as usize);
    let mut brought = 0;
    // A few looks at each path of a walk, and of the two that dropping and marking are.
    let bound = 8 * 2 * 8192;
    let of = |net: &Net, n| net.rib.peer_counts(&name(n)).unwrap();
    let mut step = |net: &mut Net, left: usize, what: &dyn Fn(&mut Net) -> Changes| {
        let changes = what(net);
        net.mirror(changes);
        let before = gone.len();
        finish_among(net, &mut gone, bound);
        let steps = (gone.len() - before) / 2;
        brought += steps;
        others -= 2 * steps;
        assert_eq!(of(net, 2).received, left);
        assert_eq!(of(net, 4).received, others + brought);
        net.check();
    };
    let all = PATHS as usize;
    let two = net.rib.peer_id(&name(2)).unwrap();
    net.adj_out.remove(&two);
    step(&mut net, all, &|net| {
        net.rib.peer_down(net.now, &name(2), true)
    });
    assert!(of(&net, 2).stale);
    step(&mut net, all, &|net| {
        net.now += Duration::from_secs(120);
        net.rib.handle_timeout(net.now)
    });
    step(&mut net, 0, &|net| {
        net.now += Duration::from_secs(3600);
        net.rib.handle_timeout(net.now)
    });
}

/// Queries, dumps and monitoring stations read a piece of the table at a time.
#[test]
fn a_question_a_dump_and_a_station_look_at_a_piece_at_a_time() {
    let net = large();
    let rib = &net.rib;
    for what in [
        RouteTable::Routes,
        RouteTable::Received(name(2)),
        RouteTable::Advertised(name(3)),
    ] {
        let all = RouteQuery::all(what);
        let (mut found, mut answered) = (Vec::new(), 0);
        for place in (0..rib.slots()).step_by(STEP) {
            let scan = || rib.scan(&all, place..place + STEP);
            found.extend(watched("a scan", STEP, scan).unwrap());
        }
        let mut left = &found[..];
        while !left.is_empty() {
            let (routes, prefixes) =
                watched("an answer", STEP, || rib.route_records(&all, left, STEP));
            (answered, left) = (answered + routes.len(), &left[prefixes..]);
        }
        assert_eq!(answered, MANY as usize);
    }
    let all = RouteQuery::all(RouteTable::Routes);
    let prefixes = rib.scan(&all, 0..rib.slots()).unwrap();
    let (mut out, peers) = watched("an index", 1, || rib.mrt_index(0));
    for some in prefixes.chunks(STEP) {
        watched("records", STEP, || {
            rib.mrt_records(0, &peers, MrtProgress::default(), some, &mut out)
        });
    }
    assert!(out.len() > MANY as usize * 20);
    let (mut at, mut monitored) = (Some(0), 0);
    while let Some(from) = at {
        let (paths, next) = watched("a piece", STEP, || rib.monitored_piece(from, STEP));
        (monitored, at) = (monitored + paths.len(), next);
    }
    assert_eq!(monitored, MANY as usize);
    // The cost of these queries depends on the peers, not on the routes.
    watched("counts", 1, || (rib.counts(), rib.all_peer_counts()));
}

/// While the routes of a peer that is gone are still in the table they win nothing, are shown to
/// nobody, and its next session is not confused with them.
#[test]
fn a_peer_that_is_gone_has_no_say_while_its_routes_are_on_their_way_out() {
    let mut net = large();
    let changes = net.rib.peer_down(net.now, &name(2), false);
    net.mirror(changes);
    assert!(net.rib.is_busy(&name(2)));
    assert!(net.rib.received(&name(2)).unwrap().is_empty());
    assert_eq!(net.rib.peer_counts(&name(2)).unwrap().received, 0);
    let last = far(MANY - 1);
    assert!(net.rib.explain(&last).paths.is_empty());
    // Another peer's path wins at once.
    let worse = PathAttrs {
        local_pref: Some(1),
        ..attrs(3)
    };
    net.apply(
        3,
        UpdateMessage {
            announced: vec![last],
            attrs: Some(worse),
            ..UpdateMessage::default()
        },
    );
    assert_eq!(net.fib[&last].peer, name(3));
    // A call that does not wait finishes the rest first.
    net.up_with(2, long_lived(2));
    assert!(!net.rib.is_busy(&name(2)));
    let again = UpdateMessage {
        announced: vec![far(1)],
        attrs: Some(external(2, &[65002])),
        ..UpdateMessage::default()
    };
    net.apply(2, again);
    finish(&mut net, 0);
    assert_eq!(net.fib.len(), 2);
    net.check();
}

/// A set that is left of each page of the allocator holds the page: of a table that has gone
/// nothing may be left, also of what was still on its way to peers when the last route was
/// withdrawn.
#[test]
fn of_a_table_that_has_gone_no_attribute_set_is_left() {
    let mut net = large();
    let own_set = |n: u32| PathAttrs {
        med: Some(n),
        ..external(2, &[65002])
    };
    for n in 0..MANY {
        let update = UpdateMessage {
            announced: vec![far(n)],
            attrs: Some(own_set(n)),
            ..UpdateMessage::default()
        };
        net.apply(2, update);
    }
    finish(&mut net, 0);
    assert!(net.rib.counts().attribute_sets > MANY as usize);
    // A peer that is slow still has these.
    let waiting: Vec<_> = net.adj_out(3).values().take(100).cloned().collect();
    for first in (0..MANY).step_by(1000) {
        let update = UpdateMessage {
            withdrawn: (first..first + 1000).map(far).collect(),
            ..UpdateMessage::default()
        };
        net.apply(2, update);
        finish(&mut net, 0);
    }
    assert_eq!(net.rib.counts().prefixes, 0);
    drop(waiting);
    for _ in 0..10 {
        let Some(at) = net.rib.next_timeout() else {
            break;
        };
        net.now = at;
        let changes = net.rib.handle_timeout(at);
        net.mirror(changes);
        finish(&mut net, 0);
    }
    assert_eq!(net.rib.counts().attribute_sets, 0);
    assert_eq!(net.rib.next_timeout(), None);
}

/// A peer that does not read is not told more of the table than it is allowed to have waiting; the
/// others and what changes are not held up by it.
#[test]
fn the_table_waits_for_a_peer_that_has_much_to_read() {
    let mut net = large();
    let four = net.rib.peer_id(&name(4)).unwrap();
    let changes = net.rib.peer_up(net.now, &name(4), session(4));
    net.mirror(changes);
    assert_eq!(net.rib.dumps().collect::<Vec<_>>(), [four]);
    net.rib.pause_dumps(BTreeSet::from([four]));
    finish(&mut net, 0);
    let adj_out = net.adj_out(4).len();
    assert!(adj_out <= INLINE, "{adj_out} while it is held");
    assert!(
        net.rib.is_done(net.rib.ticket()),
        "nobody waits for its reader"
    );
    // What changes is told at once, also where the table has not been told yet.
    let last = far(MANY - 1);
    let other = UpdateMessage {
        announced: vec![last],
        attrs: Some(external(2, &[65002, 65009])),
        ..UpdateMessage::default()
    };
    net.apply(2, other);
    assert!(net.adj_out(4).contains_key(&last));
    let marked = |net: &Net| net.markers.contains(&(four, Family::Ipv4));
    assert!(!marked(&net), "End-of-RIB before the end");
    // It has read.
    net.rib.pause_dumps(BTreeSet::new());
    assert!(net.rib.has_work());
    finish(&mut net, (MANY as usize - INLINE) / STEP);
    assert_eq!(net.adj_out(4).len(), MANY as usize);
    assert!(marked(&net));
    net.check();
}
