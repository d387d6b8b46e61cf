#![allow(clippy::unwrap_used)]
use super::*;
use crate::attrs::AsPath;

fn p(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn community(text: &str) -> AnyCommunity {
    text.parse().unwrap()
}

fn attrs() -> PathAttrs {
    let mut attrs = PathAttrs {
        as_path: AsPath::sequence([Asn(65001), Asn(65002)]),
        next_hop: Some("10.0.0.7".parse().unwrap()),
        local_pref: Some(200),
        ..PathAttrs::default()
    };
    attrs.add_community(community("65000:1"));
    attrs.add_community(community("1:2:3"));
    attrs.add_community(extended("rt:65000:1"));
    attrs
}

fn extended(text: &str) -> AnyCommunity {
    AnyCommunity::Extended(text.parse().unwrap())
}

fn view(attrs: &PathAttrs) -> RouteView<'_> {
    let (prefix, attrs) = (p("10.244.1.0/26"), Cow::Borrowed(attrs));
    RouteView {
        interface: Some("cali0123456789a"),
        ..RouteView::new(prefix, attrs, PeerKind::Internal, RouteSource::Bgp)
    }
}

fn term(
    conditions: Vec<FilterCondition>,
    actions: Vec<FilterAction>,
    verdict: Option<FilterVerdict>,
) -> FilterTerm {
    FilterTerm {
        conditions,
        actions,
        verdict,
    }
}

fn prefixes(patterns: &[PrefixPattern], negated: bool) -> FilterCondition {
    FilterCondition::Prefix {
        patterns: patterns.to_vec(),
        negated,
    }
}

#[test]
fn every_condition_has_a_yes_and_a_no() {
    let pool = p("10.244.0.0/16");
    let in_range = PrefixPattern {
        prefix: pool,
        min: 24,
        max: 28,
    };
    let table = [
        (
            prefixes(&[PrefixPattern::exact(p("10.244.1.0/26"))], false),
            true,
        ),
        (prefixes(&[PrefixPattern::exact(pool)], false), false),
        (prefixes(&[PrefixPattern::exact(pool)], true), true),
        (
            prefixes(&[PrefixPattern::exact(pool), in_range], false),
            true,
        ),
        (
            prefixes(
                &[PrefixPattern {
                    max: 25,
                    ..in_range
                }],
                false,
            ),
            false,
        ),
        (prefixes(&[PrefixPattern::or_longer(pool)], true), false),
        (FilterCondition::Community(community("65000:1")), true),
        (FilterCondition::Community(community("65000:2")), false),
        (FilterCondition::Community(community("1:2:3")), true),
        (FilterCondition::Community(community("1:2:4")), false),
        (FilterCondition::Community(extended("rt:65000:1")), true),
        (FilterCondition::Community(extended("ro:65000:1")), false),
        (FilterCondition::AsPathPrefix(vec![Asn(65001)]), true),
        (
            FilterCondition::AsPathPrefix(vec![Asn(65001), Asn(65002)]),
            true,
        ),
        (FilterCondition::AsPathPrefix(vec![Asn(65002)]), false),
        (FilterCondition::NextHop(p("10.0.0.0/24")), true),
        (FilterCondition::NextHop(p("10.0.1.0/24")), false),
        (FilterCondition::PeerKind(PeerKind::Internal), true),
        (FilterCondition::PeerKind(PeerKind::External), false),
        (FilterCondition::Source(RouteSource::Bgp), true),
        (FilterCondition::Source(RouteSource::Static), false),
        (FilterCondition::Interface("cali*".into()), true),
        (FilterCondition::Interface("tunl0".into()), false),
        (FilterCondition::LocalPref(200), true),
        (FilterCondition::LocalPref(100), false),
    ];
    let attrs = attrs();
    for (condition, expected) in table {
        assert_eq!(condition.holds(&view(&attrs)), expected, "{condition:?}");
    }
}

#[test]
fn numbers_in_an_as_path() {
    let path = |text: &str| -> Vec<Asn> {
        let numbers = text.split_whitespace();
        numbers.map(|number| Asn(number.parse().unwrap())).collect()
    };
    let plain = AsPath::sequence(path("1 2 3 2"));
    let with_set = AsPath::new([
        crate::attrs::Segment::Sequence(path("1 2")),
        crate::attrs::Segment::Set(path("7 8")),
    ]);
    use AsPathPlace::{Anywhere, End, Whole};
    for (aspath, place, asns, expected) in [
        (&plain, Anywhere, "2 3", true),
        (&plain, Anywhere, "1 3", false),
        (&plain, Anywhere, "2", true),
        (&plain, Anywhere, "9", false),
        (&plain, Anywhere, "1 2 3 2 1", false),
        (&plain, End, "2", true),
        (&plain, End, "3", false),
        (&plain, End, "3 2", true),
        (&plain, Whole, "1 2 3 2", true),
        (&plain, Whole, "1 2 3", false),
        (&with_set, End, "2 8", true),
        (&with_set, End, "7", true),
        (&with_set, Anywhere, "7 8", false),
        (&with_set, Whole, "1 2 7", true),
        (&AsPath::default(), Whole, "", true),
        (&AsPath::default(), Anywhere, "1", false),
    ] {
        let seen = place.holds(aspath, &path(asns));
        assert_eq!(seen, expected, "{asns} {place:?} {aspath}");
    }
}

#[test]
fn what_a_route_does_not_have_does_not_match() {
    let attrs = PathAttrs::default();
    let route = RouteView {
        interface: None,
        ..view(&attrs)
    };
    assert!(!FilterCondition::Interface("*".into()).holds(&route));
    assert!(!FilterCondition::LocalPref(100).holds(&route));
    assert!(!FilterCondition::NextHop(p("0.0.0.0/0")).holds(&route));
}

#[test]
fn every_action() {
    let actions = vec![
        FilterAction::AddCommunity(community("65000:9")),
        FilterAction::RemoveCommunity(community("65000:1")),
        FilterAction::RemoveCommunity(community("1:2:3")),
        FilterAction::AddCommunity(extended("ro:10.0.0.1:7")),
        FilterAction::RemoveCommunity(extended("rt:65000:1")),
        FilterAction::SetLocalPref(300),
        FilterAction::SetMed(7),
        FilterAction::PrependAsPath(vec![Asn(1), Asn(2)]),
    ];
    let filter = Filter::from(vec![term(vec![], actions, Some(FilterVerdict::Accept))]);
    let before = attrs();
    let mut route = view(&before);
    let decided = filter.run(&mut route);
    assert_eq!(
        decided,
        Some(FilterDecision {
            verdict: FilterVerdict::Accept,
            term: 0,
            place: None
        })
    );
    let after = route.attrs.into_owned();
    assert_eq!(after.as_path.to_string(), "1 2 65001 65002");
    assert_eq!((after.local_pref, after.med), (Some(300), Some(7)));
    assert_eq!(after.communities.len(), 1);
    assert!(after.has_community(community("65000:9")));
    assert!(after.large_communities.is_empty());
    assert_eq!(after.ext_communities, [[1, 3, 10, 0, 0, 1, 0, 7]]);
}

#[test]
fn the_first_verdict_ends_the_filter_and_later_terms_see_changes() {
    let filter = Filter::from(vec![
        term(vec![], vec![FilterAction::SetLocalPref(5)], None),
        term(
            vec![FilterCondition::LocalPref(200)],
            vec![],
            Some(FilterVerdict::Accept),
        ),
        term(
            vec![FilterCondition::LocalPref(5)],
            vec![],
            Some(FilterVerdict::Reject),
        ),
        term(
            vec![],
            vec![FilterAction::SetMed(1)],
            Some(FilterVerdict::Accept),
        ),
    ]);
    let attrs = attrs();
    let mut route = view(&attrs);
    assert_eq!(
        filter.run(&mut route),
        Some(FilterDecision {
            verdict: FilterVerdict::Reject,
            term: 2,
            place: None
        })
    );
    assert_eq!(route.attrs.med, None);
}

#[test]
fn no_verdict_and_no_action_leaves_the_attributes_borrowed() {
    let filter = Filter::from(vec![term(
        vec![FilterCondition::LocalPref(1)],
        vec![FilterAction::SetMed(1)],
        Some(FilterVerdict::Reject),
    )]);
    let attrs = attrs();
    let mut route = view(&attrs);
    assert_eq!(filter.run(&mut route), None);
    assert!(matches!(route.attrs, Cow::Borrowed(_)));
}

#[test]
fn interface_patterns() {
    for (pattern, text, expected) in [
        ("cali*", "cali1", true),
        ("cali*", "cali", true),
        ("*.cali", "vxlan.cali", true),
        ("*.cali", "vxlan.calico", false),
        ("*", "", true),
        ("", "", true),
        ("", "x", false),
        ("a*b*c", "abc", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*b*c", "acb", false),
        ("a*a", "a", false),
        ("ab*ba", "aba", false),
        ("**x", "yx", true),
    ] {
        assert_eq!(glob(pattern, text), expected, "{pattern} ~ {text}");
    }
}
