//! Feeds by themselves.
#![allow(clippy::unwrap_used)]
use super::pending::PUSHES;
use super::*;
use crate::rib::PathId;
use crate::speaker::shared::tests::change_of;

fn p(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn attrs(med: u32) -> Arc<PathAttrs> {
    Arc::new(PathAttrs {
        med: Some(med),
        ..PathAttrs::default()
    })
}

#[test]
fn one_value_per_prefix_and_one_group_per_set() {
    let feed = OutFeed::new();
    let (one, two) = (attrs(1), attrs(2));
    feed.push(p("10.0.0.0/24"), Some(one.clone()));
    feed.push(p("10.0.1.0/24"), Some(two.clone()));
    feed.push(p("10.0.2.0/24"), Some(two.clone()));
    feed.push(p("10.0.3.0/24"), Some(one.clone()));
    feed.push(p("10.0.3.0/24"), None);
    feed.push(p("10.0.2.0/24"), Some(one.clone()));
    assert_eq!(feed.len(), 4);
    let batch = feed.take(100);
    assert_eq!(batch.withdrawn, [p("10.0.3.0/24")]);
    assert_eq!(
        batch.announced,
        [
            (one, vec![p("10.0.0.0/24"), p("10.0.2.0/24")]),
            (two, vec![p("10.0.1.0/24")])
        ]
    );
    assert!(feed.take(100).is_empty());
}

#[test]
fn rfc4724_2_the_marker_follows_what_was_pushed_before_it() {
    let feed = OutFeed::new();
    feed.push(p("10.0.0.0/24"), None);
    feed.push(p("10.0.1.0/24"), None);
    feed.end_of_rib(Family::Ipv4);
    feed.push(p("10.0.2.0/24"), None);
    let first = feed.take(1);
    assert_eq!((first.withdrawn.len(), first.markers.len()), (1, 0));
    let second = feed.take(10);
    assert_eq!(second.withdrawn, [p("10.0.1.0/24")]);
    assert_eq!(second.markers, [Marker::EndOfRib(Family::Ipv4)]);
    assert_eq!(feed.take(10).withdrawn, [p("10.0.2.0/24")]);
    feed.end_of_rib(Family::Ipv4);
    feed.end_of_rib(Family::Ipv4);
    let markers = feed.take(10).markers;
    assert_eq!(markers.len(), 1, "one marker per family at most");
    assert!(feed.is_empty());
}

#[test]
fn rfc7313_4_all_routes_of_the_family_stand_between_the_marks() {
    let feed = OutFeed::new();
    feed.push(p("10.0.0.0/24"), Some(attrs(1)));
    feed.push(p("10.0.9.0/24"), None);
    feed.push(p("fd00::/64"), None);
    for _ in 0..2 {
        feed.begin_refresh(Family::Ipv4);
        feed.push(p("10.0.0.0/24"), Some(attrs(2)));
        feed.end_refresh(Family::Ipv4);
    }
    feed.push(p("10.0.1.0/24"), Some(attrs(3)));
    let before = feed.take(10);
    assert_eq!(before.withdrawn, [p("fd00::/64")], "the other family stays");
    assert!(
        before.announced.is_empty(),
        "nothing before BoRR is repeated after it"
    );
    assert_eq!(before.markers, [Marker::RefreshBegin(Family::Ipv4)]);
    let all = feed.take(10);
    assert_eq!(all.announced, [(attrs(2), vec![p("10.0.0.0/24")])]);
    assert_eq!(all.markers, [Marker::RefreshEnd(Family::Ipv4)]);
    assert_eq!(feed.take(10).announced.len(), 1);
    assert!(feed.is_empty());
}

#[test]
fn rfc7313_4_no_begin_before_end_of_rib() {
    let feed = OutFeed::new();
    let one = attrs(1);
    feed.push(p("10.0.0.0/24"), Some(one.clone()));
    feed.end_of_rib(Family::Ipv4);
    feed.begin_refresh(Family::Ipv4);
    feed.push(p("10.0.1.0/24"), Some(one));
    feed.end_refresh(Family::Ipv4);
    let batch = feed.take(10);
    assert_eq!(batch.announced[0].1.len(), 2);
    assert_eq!(batch.markers, [Marker::EndOfRib(Family::Ipv4)]);
    assert!(feed.is_empty());
}

#[test]
fn churn_does_not_grow_a_feed_that_nobody_reads() {
    let feed = OutFeed::new();
    for round in 0..1000u32 {
        feed.push(p("10.0.0.0/24"), (round % 2 == 0).then(|| attrs(round)));
        feed.end_of_rib(Family::Ipv4);
    }
    assert!(feed.len() < 100, "{}", feed.len());
    for _ in 0..100 {
        feed.begin_refresh(Family::Ipv4);
        for n in 0..1000u32 {
            feed.push(Prefix::v4((n << 8).into(), 24), Some(attrs(n)));
        }
        feed.end_refresh(Family::Ipv4);
    }
    assert!(feed.len() < 4000, "{}", feed.len());
    let sent = read(&feed);
    assert_eq!(sent.len(), 1001 + 1, "{sent:?}");
}

/// Reads the feed to its end: prefixes and markers as texts.
fn read(feed: &OutFeed) -> Vec<String> {
    let mut sent = Vec::new();
    while let Some(chunk) = feed.next(100) {
        let OutChunk::Batch(batch) = chunk else {
            sent.push("shared".to_owned());
            continue;
        };
        let announced = batch.announced.iter().flat_map(|(_, prefixes)| prefixes);
        sent.extend(announced.map(ToString::to_string));
        sent.extend(batch.withdrawn.iter().map(|prefix| format!("-{prefix}")));
        let paths = batch.paths.iter().flat_map(|(_, paths)| paths);
        sent.extend(paths.map(|(prefix, id)| format!("{prefix} {id}")));
        sent.extend(batch.markers.iter().map(|marker| format!("{marker:?}")));
    }
    sent
}

/// Whoever fills a feed waits for the lock and for what it does itself, and never for the whole of
/// what waits: not for changes of the group that nobody has read, and not for a table that is sent
/// again.
#[test]
fn no_call_handles_all_that_waits() {
    const MANY: u32 = 100_000;
    let feed = OutFeed::new();
    let (update, member) = change_of(4000, 0);
    for _ in 0..MANY / 4000 {
        for part in SharedUpdate::new(update.clone(), usize::MAX) {
            feed.share(part, member);
        }
    }
    assert_eq!(feed.len(), MANY as usize);
    let watched = |what: &str, call: &dyn Fn()| {
        let before = PUSHES.get();
        call();
        let pushed = PUSHES.get() - before;
        assert!(pushed <= 8192, "{what}: {pushed} at once");
    };
    let other = p("192.0.2.0/24");
    watched("a route for one peer", &|| feed.push(other, None));
    watched("a path", &|| {
        feed.change([RouteChange {
            prefix: other,
            path_id: PathId::new(7),
            attrs: Some(attrs(7)),
        }]);
    });
    watched("End-of-RIB", &|| feed.end_of_rib(Family::Ipv4));
    let sent = read(&feed);
    let (ends, routes): (Vec<String>, Vec<String>) =
        sent.into_iter().partition(|what| what != "shared");
    assert!(!routes.is_empty());
    assert_eq!(ends, ["-192.0.2.0/24", "192.0.2.0/24 7", "EndOfRib(Ipv4)"]);

    // A table waits by prefix, and is sent again: the old values are left where they are.
    for n in 0..MANY {
        feed.push(Prefix::v4((n << 8).into(), 24), Some(attrs(n)));
    }
    watched("BoRR", &|| feed.begin_refresh(Family::Ipv4));
    feed.push(other, Some(attrs(1)));
    feed.push(Prefix::v4((5u32 << 8).into(), 24), Some(attrs(2)));
    watched("EoRR", &|| feed.end_refresh(Family::Ipv4));
    assert_eq!(
        read(&feed),
        [
            "RefreshBegin(Ipv4)",
            "192.0.2.0/24",
            "0.0.5.0/24",
            "RefreshEnd(Ipv4)"
        ]
    );
    let pending = feed.feed.lock();
    assert_eq!((pending.values.len(), pending.shared_len), (0, 0));
}

/// Each prefix changes twelve times while the peer does not read.
#[test]
fn who_does_not_read_is_sent_the_table_and_no_history() {
    const MANY: u32 = 10_000;
    let feed = OutFeed::new();
    let (update, member) = change_of(MANY, 0);
    let share = || {
        for part in SharedUpdate::new(update.clone(), MANY as usize) {
            let before = PUSHES.get();
            feed.share(part, member);
            assert!(PUSHES.get() - before <= 3 * 4096, "at once");
        }
    };
    for _ in 0..12 {
        share();
    }
    feed.end_of_rib(Family::Ipv4);
    assert_eq!(feed.len(), MANY as usize + 1);
    let sent = read(&feed);
    assert_eq!(sent.len(), MANY as usize + 1, "each prefix once");
    assert_eq!(sent.last().unwrap(), "EndOfRib(Ipv4)");
    // Who has read everything shares again.
    share();
    assert_eq!(read(&feed), ["shared", "shared", "shared"]);
}

/// A few prefixes with attribute sets of the largest size.
#[test]
fn large_attributes_do_not_wait_as_often_as_they_change() {
    let feed = OutFeed::new();
    let (update, member) = change_of(20, 15_000);
    for _ in 0..300 {
        for part in SharedUpdate::new(update.clone(), 20) {
            feed.share(part, member);
        }
    }
    assert_eq!(feed.len(), 20);
    assert_eq!(read(&feed).len(), 20);
}

/// Values queued behind shared changes are sent behind them, markers and refreshes included.
#[test]
fn rfc7313_4_a_refresh_behind_shared_changes() {
    let feed = OutFeed::new();
    let (update, member) = change_of(3, 0);
    for part in SharedUpdate::new(update.clone(), 3) {
        feed.share(part, member);
    }
    feed.begin_refresh(Family::Ipv4);
    feed.push(p("10.0.0.0/24"), Some(attrs(2)));
    feed.end_refresh(Family::Ipv4);
    for part in SharedUpdate::new(update, 3) {
        feed.share(part, member);
    }
    let sent = read(&feed);
    assert_eq!(
        sent,
        [
            "shared",
            "RefreshBegin(Ipv4)",
            "10.0.0.0/24",
            "RefreshEnd(Ipv4)",
            "shared"
        ]
    );
}

#[tokio::test]
async fn a_reader_wakes_for_values_and_for_the_end() {
    let feed = KeyedFeed::new();
    let reader = tokio::spawn({
        let feed = feed.clone();
        async move {
            let mut seen = Vec::new();
            while let Some(changes) = feed.changed().await {
                seen.extend(changes);
            }
            seen
        }
    });
    feed.extend([(p("10.0.0.0/24"), 1)]);
    feed.close();
    assert_eq!(reader.await.unwrap(), [(p("10.0.0.0/24"), 1)]);
    assert!(feed.is_orphan());
}
