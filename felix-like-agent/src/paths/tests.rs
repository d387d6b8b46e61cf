//! Searches on imagined paths, and the schedule on virtual time.

#![allow(clippy::unwrap_used)]

use super::*;

/// Runs a search; `answers` sees the size and the number of the probe.
fn search(mut search: MtuSearch, mut answers: impl FnMut(u32, u32) -> bool) -> (PathVerdict, u32) {
    let mut sent = 0;
    loop {
        match search.step() {
            SearchStep::Done(verdict) => return (verdict, sent),
            SearchStep::Probe(size) => {
                sent += 1;
                assert!(sent < 200, "no end");
                search.heard(answers(size, sent));
            }
        }
    }
}

#[test]
fn every_width_is_found() {
    for width in 84..=1500 {
        let found = search(MtuSearch::new(84, 1500, None), |size, _| size <= width);
        assert_eq!(found.0, PathVerdict::Mtu(width));
        assert!(found.1 <= 24, "{width}: {} probes", found.1);
    }
}

#[test]
fn a_wide_path_takes_two_packets_and_a_silent_one_a_single() {
    let wide = search(MtuSearch::new(84, 9000, None), |_, _| true);
    assert_eq!(wide, (PathVerdict::Mtu(9000), 2));
    let silent = search(MtuSearch::new(84, 9000, None), |_, _| false);
    assert_eq!(silent, (PathVerdict::Unknown, 3));
}

#[test]
fn what_others_have_is_tried_first() {
    for width in [1400, 1399, 1401, 600] {
        let guessed = search(MtuSearch::new(84, 1500, Some(1400)), |size, _| {
            size <= width
        });
        assert_eq!(guessed.0, PathVerdict::Mtu(width));
        if width == 1400 {
            assert!(guessed.1 <= 10, "{} probes", guessed.1);
        }
    }
}

#[test]
fn any_single_lost_packet_changes_nothing_of_a_wide_path() {
    for lost in 1..=8 {
        let (verdict, _) = search(MtuSearch::new(84, 1500, None), |_, n| n != lost);
        assert_eq!(verdict, PathVerdict::Mtu(1500), "packet {lost}");
    }
    // An outage in which nothing passes: nothing is concluded.
    let (verdict, _) = search(MtuSearch::new(84, 1500, None), |_, n| n < 2);
    assert_eq!(verdict, PathVerdict::Unknown);
    // All large ones are lost in the beginning, and what follows shows it.
    let (verdict, _) = search(MtuSearch::new(84, 1500, None), |size, n| {
        size < 1500 || n > 8
    });
    assert_eq!(verdict, PathVerdict::Mtu(1500));
}

#[test]
fn a_lost_packet_in_the_search_is_made_good() {
    for lost in 8..30 {
        let (verdict, _) = search(MtuSearch::new(84, 1500, None), |size, n| {
            n != lost && size <= 1400
        });
        assert_eq!(verdict, PathVerdict::Mtu(1400), "packet {lost}");
    }
}

fn address(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

/// Measures everything that is due until `end`; how often each.
fn run(schedule: &mut ProbeSchedule, mut now: Instant, end: Instant) -> BTreeMap<IpAddr, u32> {
    let mut counts = BTreeMap::new();
    while now < end {
        match schedule.next(now) {
            Next::Measure(address, mtu) => {
                *counts.entry(address).or_insert(0) += 1;
                schedule.done(address, PathVerdict::Mtu(mtu), now);
            }
            Next::Wait(until) => {
                assert!(until > now);
                now = until;
            }
            Next::Nothing => break,
        }
    }
    counts
}

#[test]
fn few_in_a_second_and_rarely_again() {
    let start = Instant::now();
    let paths: SharedMap<IpAddr, u32> = (1..=40).map(|n| (address(n), 1500)).collect();
    let mut schedule = ProbeSchedule::new("a");
    assert_eq!(schedule.next(start), Next::Nothing);
    schedule.follow(&paths, false, start);
    let first = run(&mut schedule, start, start + Duration::from_secs(4));
    let measured: u32 = first.values().sum();
    assert!((12..=22).contains(&measured), "{measured} in 4 s");
    let minute = start + Duration::from_secs(60);
    run(&mut schedule, start + Duration::from_secs(4), minute);
    let hour = run(&mut schedule, minute, start + Duration::from_secs(3660));
    assert_eq!(hour.len(), 40);
    assert!(hour.values().all(|n| (5..=9).contains(n)), "{hour:?}");
}

#[test]
fn a_change_brings_it_forward() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let both = [(address(1), 1500), (address(2), 1500)];
    let mut paths: SharedMap<IpAddr, u32> = both.into_iter().collect();
    let mut schedule = ProbeSchedule::new("a");
    schedule.follow(&paths, false, start);
    run(&mut schedule, start, start + 5 * second);
    // Nothing has changed: nothing is due.
    let now = start + 5 * second;
    schedule.follow(&paths, false, now);
    assert_eq!(
        run(&mut schedule, now, now + 30 * second),
        BTreeMap::default()
    );
    // An interface has another MTU.
    let now = now + 30 * second;
    paths.insert(address(2), 9000);
    schedule.follow(&paths, false, now);
    assert_eq!(
        run(&mut schedule, now, now + 5 * second),
        [(address(2), 1)].into()
    );
    // Routes change all the time.
    let mut counts = 0;
    for n in 0..60 {
        let now = now + (5 + n) * second;
        schedule.follow(&paths, true, now);
        counts += run(&mut schedule, now, now + second).values().sum::<u32>();
    }
    assert!((6..=10).contains(&counts), "{counts} in a minute");
    // A node that is gone is forgotten, a new one is measured.
    let now = now + 70 * second;
    let other: SharedMap<IpAddr, u32> = [(address(3), 1500)].into_iter().collect();
    schedule.follow(&other, false, now);
    assert_eq!(
        run(&mut schedule, now, now + 5 * second),
        [(address(3), 1)].into()
    );
}
