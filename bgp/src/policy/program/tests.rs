//! Sets and masks by themselves; everything else is judged by BIRD in the templates' tests.

use std::sync::Arc;

use caracal_model::Prefix;

use super::*;
use crate::attrs::{AsPath, Segment};
use crate::types::Asn;

fn prefix(text: &str) -> Prefix {
    Prefix::parse_strict(text).expect("a prefix")
}

#[test]
fn a_set_of_prefixes_answers_as_its_patterns_do() {
    // Every pattern around 10.0.0.0/8 with small lengths, and every prefix there.
    let all: Vec<Prefix> = (0..=4)
        .flat_map(|len| (0..1u32 << len).map(move |n| (len, n)))
        .map(|(len, n)| {
            let bits = if len == 0 { 0 } else { n << (32 - len) };
            Prefix::v4(bits.into(), len.try_into().expect("small"))
        })
        .collect();
    let agree = |a: Prefix, b: Prefix, len: u8| {
        Prefix::truncated(a.address(), len) == Prefix::truncated(b.address(), len)
    };
    let mut asked = 0;
    for pattern in &all {
        for min in 0..=4 {
            for max in min..=4 {
                let prefix = *pattern;
                let other = SetPattern {
                    prefix: all[7],
                    min: 3,
                    max: 3,
                };
                let set = PrefixSet::new(vec![SetPattern { prefix, min, max }, other]);
                for net in &all {
                    let len = net.len();
                    let common = prefix.len().min(len);
                    let wanted = agree(prefix, *net, common) && (min..=max).contains(&len);
                    let wanted = wanted || *net == all[7];
                    assert_eq!(set.matches(net), wanted, "{net} ~ {set}");
                    asked += 1;
                }
            }
        }
    }
    assert!(asked > 10_000);
}

#[test]
fn sets_of_one_family_hold_nothing_of_the_other() {
    let pattern = SetPattern {
        prefix: prefix("0.0.0.0/0"),
        min: 0,
        max: 32,
    };
    let set = PrefixSet::new(vec![pattern]);
    assert!(set.matches(&prefix("10.0.0.0/8")));
    assert!(!set.matches(&prefix("fd00::/8")));
}

#[test]
fn intervals_are_joined_and_searched() {
    let set = ValueSet::ranges(SetKind::Int, vec![(5, 7), (1, 2), (8, 9), (20, 20)]);
    assert_eq!(set.to_string(), "[1..2, 5..9, 20]");
    for number in 0..25u128 {
        let wanted = matches!(number, 1..=2 | 5..=9 | 20);
        assert_eq!(set.holds(SetKind::Int, number), wanted, "{number}");
        assert!(!set.holds(SetKind::Pair, number));
    }
}

#[test]
fn a_set_of_the_path_is_one_as_of_the_mask() {
    let path = AsPath::new([
        Segment::Sequence(vec![Asn(1), Asn(2)]),
        Segment::Set(vec![Asn(7), Asn(9)]),
    ]);
    let fits = |items: &[MaskItem]| PathMask(items.into()).fits(&path);
    let asn = |n| MaskItem::Range(n, n);
    assert!(fits(&[asn(1), asn(2), asn(9)]));
    assert!(fits(&[MaskItem::Any, asn(7)]));
    assert!(fits(&[
        MaskItem::Range(1, 2),
        MaskItem::More,
        MaskItem::One
    ]));
    assert!(!fits(&[asn(1), asn(2), asn(7), asn(9)]));
    assert!(!fits(&[]));
    assert!(PathMask::default().fits(&AsPath::default()));
}

#[test]
fn a_function_that_calls_itself_without_end_rejects_the_route() {
    let place = Place {
        file: Arc::from("f"),
        line: 3,
    };
    let step = |action| Step {
        place: place.clone(),
        action,
    };
    let endless = Arc::new(Function {
        name: "endless".to_owned(),
        locals: 0,
        body: vec![step(StepAction::Call(Expression::Recursion(Box::new([]))))],
    });
    let body = vec![
        step(StepAction::Call(Expression::Call(endless, Box::new([])))),
        step(StepAction::Accept),
    ];
    let program = Program::new("p", 0, body);
    let attrs = crate::attrs::PathAttrs::default();
    let mut route = RouteView {
        prefix: prefix("10.0.0.0/8"),
        attrs: std::borrow::Cow::Borrowed(&attrs),
        peer: crate::policy::PeerKind::Internal,
        source: crate::policy::RouteSource::Bgp,
        interface: None,
    };
    let (verdict, at) = program.run(&mut route);
    assert_eq!(verdict, FilterVerdict::Reject);
    assert_eq!(at.map(|place| place.to_string()), Some("f:3".to_owned()));
    assert!(matches!(route.attrs, std::borrow::Cow::Borrowed(_)));
}
