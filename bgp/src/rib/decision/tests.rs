use proptest::prelude::*;

use super::*;

/// The best of `paths` and the rule that decided last.
fn best(paths: &[Candidate]) -> Option<(usize, BestPathReason)> {
    let mut decision = Decision::default();
    decision.run(paths);
    decision.best
}

/// A path like any other; `n` makes it distinct in the last step only.
fn path(n: u8) -> Candidate {
    Candidate {
        no_carrier: false,
        long_lived_stale: false,
        local: false,
        preference: 100,
        local_pref: 100,
        as_path_len: 2,
        origin: Origin::Egp,
        med: 10,
        neighbour_as: Some(Asn(65001)),
        external: false,
        metric: 10,
        router_id: 10,
        cluster_list_len: 1,
        address: ([10, 0, 0, n], 179).into(),
        path_id: 0,
    }
}

/// Path 1 loses the last step against path 2's address unless the rule under test saves it.
fn wins(better: Candidate, reason: BestPathReason) {
    let better = Candidate {
        address: ([10, 0, 0, 99], 179).into(),
        ..better
    };
    for paths in [[path(1), better.clone()], [better.clone(), path(1)]] {
        let mut decision = Decision::default();
        decision.run(&paths);
        let (index, by) = decision.best.expect("there are paths");
        assert_eq!(paths[index], better, "{reason}");
        assert_eq!(by, reason);
        assert_eq!(decision.lost[1 - index], Some(reason));
        assert_eq!(decision.lost[index], None);
    }
}

#[test]
fn rfc4271_9_1_2_each_rule_decides_when_all_before_it_tie() {
    let stale = |path: Candidate| Candidate {
        long_lived_stale: true,
        ..path
    };
    let mut decision = Decision::default();
    decision.run(&[
        stale(Candidate {
            local_pref: 1000,
            ..path(1)
        }),
        path(2),
    ]);
    assert_eq!(decision.best, Some((1, BestPathReason::LongLivedStale)));
    wins(
        Candidate {
            local: true,
            local_pref: 1,
            ..path(2)
        },
        BestPathReason::LocalOrigin,
    );
    wins(
        Candidate {
            preference: 101,
            local_pref: 1,
            ..path(2)
        },
        BestPathReason::Preference,
    );
    wins(
        Candidate {
            local_pref: 101,
            as_path_len: 9,
            ..path(2)
        },
        BestPathReason::LocalPref,
    );
    wins(
        Candidate {
            as_path_len: 1,
            origin: Origin::Incomplete,
            ..path(2)
        },
        BestPathReason::AsPathLength,
    );
    wins(
        Candidate {
            origin: Origin::Igp,
            med: 99,
            ..path(2)
        },
        BestPathReason::Origin,
    );
    wins(
        Candidate {
            med: 9,
            metric: 99,
            ..path(2)
        },
        BestPathReason::Med,
    );
    wins(
        Candidate {
            external: true,
            metric: 99,
            ..path(2)
        },
        BestPathReason::External,
    );
    wins(
        Candidate {
            metric: 9,
            router_id: 99,
            ..path(2)
        },
        BestPathReason::IgpMetric,
    );
    wins(
        Candidate {
            router_id: 9,
            cluster_list_len: 9,
            ..path(2)
        },
        BestPathReason::RouterId,
    );
    wins(
        Candidate {
            cluster_list_len: 0,
            ..path(2)
        },
        BestPathReason::ClusterListLength,
    );
    assert_eq!(
        best(&[path(2), path(1)]),
        Some((1, BestPathReason::PeerAddress))
    );
}

#[test]
fn no_path_and_one_path() {
    assert_eq!(best(&[]), None);
    assert_eq!(best(&[path(1)]), Some((0, BestPathReason::OnlyPath)));
}

#[test]
fn rfc4271_9_1_2_2_c_med_is_compared_within_one_neighbouring_as_only() {
    let other = Candidate {
        med: 1,
        neighbour_as: Some(Asn(65002)),
        ..path(2)
    };
    assert_eq!(
        best(&[path(1), other]),
        Some((0, BestPathReason::PeerAddress))
    );
}

#[test]
fn rfc4271_9_1_2_2_c_a_loser_by_med_cannot_knock_out_a_third_path() {
    // a beats b by router id, b beats c by router id, c beats a by MED: the cycle for which no
    // order exists.
    let a = Candidate {
        med: 20,
        router_id: 1,
        ..path(1)
    };
    let b = Candidate {
        neighbour_as: Some(Asn(65002)),
        router_id: 2,
        ..path(2)
    };
    let c = Candidate {
        med: 10,
        router_id: 3,
        ..path(3)
    };
    for paths in permutations(&[a, b.clone(), c]) {
        let (index, reason) = best(&paths).expect("there are paths");
        assert_eq!((&paths[index], reason), (&b, BestPathReason::RouterId));
    }
}

#[test]
fn the_multipath_set_ends_before_the_router_id() {
    let twin = Candidate {
        router_id: 20,
        ..path(2)
    };
    let far = Candidate {
        metric: 11,
        ..path(3)
    };
    let mut decision = Decision::default();
    decision.run(&[far, path(1), twin]);
    assert_eq!(decision.multipath, [1, 2]);
    assert_eq!(decision.best, Some((1, BestPathReason::RouterId)));
    assert_eq!(
        decision.lost,
        [
            Some(BestPathReason::IgpMetric),
            None,
            Some(BestPathReason::RouterId)
        ]
    );
}

fn permutations(paths: &[Candidate]) -> Vec<Vec<Candidate>> {
    if paths.len() <= 1 {
        return vec![paths.to_vec()];
    }
    let mut all = Vec::new();
    for (index, first) in paths.iter().enumerate() {
        let mut rest = paths.to_vec();
        rest.remove(index);
        for mut tail in permutations(&rest) {
            tail.insert(0, first.clone());
            all.push(tail);
        }
    }
    all
}

/// Few values per field, so that ties reach every step.
fn candidate() -> impl Strategy<Value = Candidate> {
    let origin = prop_oneof![
        Just(Origin::Igp),
        Just(Origin::Egp),
        Just(Origin::Incomplete)
    ];
    let neighbour = prop_oneof![Just(None), Just(Some(Asn(1))), Just(Some(Asn(2)))];
    let first = (99u32..101, 1usize..3, origin, 0u32..3, neighbour);
    let rest = (any::<bool>(), 0u32..2, 0u32..3, 0usize..2, 100u16..102);
    (first, rest).prop_map(
        |((local_pref, as_path_len, origin, med, neighbour_as), rest)| {
            let (external, metric, router_id, cluster_list_len, preference) = rest;
            Candidate {
                no_carrier: false,
                long_lived_stale: false,
                local: false,
                preference,
                local_pref,
                as_path_len,
                origin,
                med,
                neighbour_as,
                external,
                metric,
                router_id,
                cluster_list_len,
                address: ([0, 0, 0, 0], 0).into(),
                path_id: 0,
            }
        },
    )
}

proptest! {
    #[test]
    fn the_order_of_arrival_does_not_matter(
        (paths, shuffled) in prop::collection::vec(candidate(), 1..7).prop_flat_map(|mut paths| {
            for (n, path) in (0u8..).zip(&mut paths) {
                path.address = ([10, 0, 0, n], 179).into();
            }
            (Just(paths.clone()), Just(paths).prop_shuffle())
        })
    ) {
        let (mut one, mut two) = (Decision::default(), Decision::default());
        one.run(&paths);
        two.run(&shuffled);
        let name = |all: &[Candidate], index: usize| all[index].address;
        let winner = one.best.map(|(index, reason)| (name(&paths, index), reason));
        prop_assert_eq!(winner, two.best.map(|(index, reason)| (name(&shuffled, index), reason)));
        let mut sets = [(&one, &paths), (&two, &shuffled)].map(|(decision, all)| {
            decision.multipath.iter().map(|index| name(all, *index)).collect::<Vec<_>>()
        });
        sets.iter_mut().for_each(|set| set.sort());
        prop_assert_eq!(&sets[0], &sets[1]);
        for (index, path) in paths.iter().enumerate() {
            let there = shuffled.iter().position(|other| other.address == path.address);
            prop_assert_eq!(one.lost[index], two.lost[there.unwrap_or(usize::MAX)]);
        }
        // The winner is in the multipath set and nobody in it has a worse LOCAL_PREF.
        let best = one.best.map_or(usize::MAX, |(index, _)| index);
        prop_assert!(one.multipath.contains(&best));
        prop_assert!(one.multipath.iter().all(|i| paths[*i].local_pref == paths[best].local_pref));
    }

    #[test]
    fn removing_a_loser_that_med_did_not_decide_changes_nothing(
        mut paths in prop::collection::vec(candidate(), 2..6)
    ) {
        for (n, path) in (0u8..).zip(&mut paths) {
            path.address = ([10, 0, 0, n], 179).into();
            path.med = 0;
        }
        let (winner, _) = best(&paths).expect("there are paths");
        let address = paths[winner].address;
        let loser = usize::from(winner == 0);
        paths.remove(loser);
        let (again, _) = best(&paths).expect("there are paths");
        prop_assert_eq!(paths[again].address, address);
    }
}
