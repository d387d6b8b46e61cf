//! Feeds by themselves.
#![allow(clippy::unwrap_used)]
use super::*;

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
    assert_eq!(feed.len(), 1, "one marker per family at most");
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
    assert_eq!(feed.len(), 2);
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
