//! Sets and masks by themselves; everything else is judged by BIRD in the templates' tests.

use std::sync::Arc;

use caracal_model::Prefix;

use super::*;
use crate::attrs::{AsPath, Segment};
use crate::policy::Sender;
use crate::types::{Asn, ClusterId, Community};

fn prefix(text: &str) -> Prefix {
    Prefix::parse_strict(text).expect("a prefix")
}

fn view<'a>(net: &str, attrs: &'a crate::attrs::PathAttrs) -> RouteView<'a> {
    let attrs = std::borrow::Cow::Borrowed(attrs);
    let (kind, source) = (
        crate::policy::PeerKind::External,
        crate::policy::RouteSource::Bgp,
    );
    RouteView::new(prefix(net), attrs, kind, source)
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
fn a_route_says_who_brought_it_and_where_it_leads() {
    let quads = [0x0202_0202_u32, 0x0101_0101];
    let attrs = crate::attrs::PathAttrs {
        cluster_list: quads.map(|id| ClusterId(id.into())).to_vec().into(),
        atomic_aggregate: true,
        ..crate::attrs::PathAttrs::default()
    };
    let far = std::net::IpAddr::from([10, 0, 0, 9]);
    let mut known = view("10.0.0.0/8", &attrs);
    known.sender = Sender {
        name: "b",
        address: Some([10, 0, 0, 2].into()),
        preference: 120,
    };
    known.gateway = Some(far);
    let own = crate::attrs::PathAttrs::default();
    let mut unknown = view("10.0.0.0/8", &own);
    let nowhere = Value::Ip([0; 16].into());
    let list = quads.map(Community).to_vec();
    for (attribute, here, nothing) in [
        (
            Attribute::Protocol,
            Value::Text("b".into()),
            Value::Text("".into()),
        ),
        (
            Attribute::From,
            Value::Ip([10, 0, 0, 2].into()),
            nowhere.clone(),
        ),
        (Attribute::Gateway, Value::Ip(far), nowhere),
        (Attribute::Preference, Value::Int(120), Value::Int(0)),
        (Attribute::Scope, Value::Enum(2, 4), Value::Enum(2, 4)),
        (Attribute::IgpMetric, Value::Void, Value::Void),
        (
            Attribute::ClusterList,
            Value::Communities(list.into()),
            Value::Communities(Arc::from([])),
        ),
    ] {
        for (route, wanted) in [(&mut known, here), (&mut unknown, nothing)] {
            let both = [
                Expression::Attribute(attribute),
                Expression::Constant(wanted),
            ];
            let same = Expression::Binary(Operator::Equal, Box::new(both));
            let mut machine = Machine::new(Some(route), 0, &|_| ());
            let answer = machine.settled(&same, None).expect("a value");
            assert_eq!(answer, Value::Bool(true), "{attribute:?}");
        }
    }
    let defined = [
        (Attribute::ClusterList, true),
        (Attribute::AtomicAggregate, true),
        (Attribute::Aggregator, false),
        (Attribute::AccumulatedMetric, false),
        (Attribute::IgpMetric, false),
        (Attribute::From, true),
    ];
    for (attribute, wanted) in defined {
        assert_eq!(route::defined(&known, attribute), wanted, "{attribute:?}");
    }
    assert!(!route::defined(&unknown, Attribute::ClusterList));
    let lowest = list::method(
        Some(&attrs),
        Method::Min,
        &Value::Route(RouteList::Clusters),
        None,
    );
    assert_eq!(
        lowest,
        Some(Value::Pair(quads[1])),
        "the list keeps its order"
    );
    route::unset(&mut known, Attribute::AtomicAggregate).expect("taken away");
    assert!(!known.attrs.atomic_aggregate);
}

#[test]
fn a_filter_asks_for_no_more_than_its_steps_and_functions_do() {
    let place = Place {
        file: Arc::from("f"),
        line: 1,
    };
    let program = |action| {
        let place = place.clone();
        Program::new("p", 0, vec![Step { place, action }])
    };
    let prints = |attribute| StepAction::Print(vec![Expression::Attribute(attribute)]);
    let asks = |attribute| program(prints(attribute)).asks();
    let (way, sender) = (true, true);
    assert_eq!(asks(Attribute::Med), Asks::default());
    assert_eq!(asks(Attribute::Gateway), Asks { way, sender: false });
    assert_eq!(asks(Attribute::From), Asks { way: false, sender });
    let function = Arc::new(Function {
        name: "f".to_owned(),
        locals: 0,
        body: program(prints(Attribute::Protocol)).body,
    });
    let called = program(StepAction::Call(Expression::Call(function, Box::new([]))));
    assert_eq!(called.asks(), Asks { way: false, sender });
    let next_hop = StepAction::Set(Attribute::NextHop, Expression::Constant(Value::Void));
    assert!(program(next_hop).sets(Attribute::NextHop));
    assert!(!called.sets(Attribute::NextHop));
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
    let mut route = view("10.0.0.0/8", &attrs);
    let (verdict, at) = program.run(&mut route);
    assert_eq!(verdict, FilterVerdict::Reject);
    assert_eq!(at.map(|place| place.to_string()), Some("f:3".to_owned()));
    assert!(matches!(route.attrs, std::borrow::Cow::Borrowed(_)));
}

/// What is answered without values is what the machine says, for every form and for routes that
/// have and have not what is asked for.
#[test]
fn conditions_of_common_forms_hold_as_the_machine_says() {
    let attribute = |attribute| Expression::Attribute(attribute);
    let constant = Expression::Constant;
    let of_path = |method| Expression::Method(method, Box::new(attribute(Attribute::Path)), None);
    let pattern = |text: &str| SetPattern {
        prefix: prefix(text),
        min: 8,
        max: 16,
    };
    let set = PrefixSet::new(vec![pattern("10.0.0.0/8"), pattern("192.0.0.0/12")]);
    let mask = |items: &[MaskItem]| constant(Value::Mask(Arc::new(PathMask(items.into()))));
    let seven = Arc::new(ValueSet::ranges(SetKind::Int, vec![(7, 8)]));
    let mut conditions = vec![
        [
            attribute(Attribute::Net),
            constant(Value::Set(Arc::new(ValueSet::Prefixes(set)))),
        ],
        [
            constant(Value::Pair(65535 << 16 | 1)),
            attribute(Attribute::Communities),
        ],
        [
            attribute(Attribute::Path),
            mask(&[MaskItem::Any, MaskItem::Range(2, 3), MaskItem::Any]),
        ],
        [
            attribute(Attribute::Path),
            mask(&[MaskItem::Any, MaskItem::Set(seven), MaskItem::Any]),
        ],
        [
            attribute(Attribute::Path),
            mask(&[MaskItem::Any, MaskItem::One, MaskItem::Any]),
        ],
    ];
    let matches = conditions.len();
    for method in [Method::Len, Method::First, Method::Last] {
        for number in [0, 1, 2, 9] {
            conditions.push([of_path(method), constant(Value::Int(number))]);
            conditions.push([constant(Value::Int(number)), of_path(method)]);
        }
    }
    let paths = [
        vec![],
        vec![Segment::Sequence(vec![Asn(1), Asn(2)])],
        vec![
            Segment::Sequence(vec![Asn(9)]),
            Segment::Set(vec![Asn(7), Asn(3)]),
        ],
        vec![Segment::Set(vec![Asn(2), Asn(8)])],
    ];
    let communities = [vec![], vec![Community(1), Community(65535 << 16 | 1)]];
    let mut held = 0;
    for (path, communities) in paths
        .iter()
        .flat_map(|path| communities.iter().map(move |c| (path, c)))
    {
        let attrs = crate::attrs::PathAttrs {
            as_path: AsPath::new(path.clone()),
            communities: communities.clone(),
            ..crate::attrs::PathAttrs::default()
        };
        for net in [
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.1.0/24",
            "192.0.2.0/24",
            "fd00::/8",
        ] {
            let mut route = view(net, &attrs);
            for (index, both) in conditions.iter().enumerate() {
                let operators: &[Operator] = match index < matches {
                    true => &[Operator::Match, Operator::NotMatch],
                    false => &[
                        Operator::Equal,
                        Operator::NotEqual,
                        Operator::Less,
                        Operator::LessOrEqual,
                        Operator::Greater,
                        Operator::GreaterOrEqual,
                    ],
                };
                for operator in operators {
                    let condition = Expression::Binary(*operator, Box::new(both.clone()));
                    let quick = quick::answer(&route, &condition);
                    let mut machine = Machine::new(Some(&mut route), 0, &|_| ());
                    let value = machine.settled(&condition, None).expect("a value");
                    assert_eq!(Some(value), quick.map(Value::Bool), "{net} {condition}");
                    held += u32::from(quick == Some(true));
                }
            }
        }
    }
    assert!(held > 1000, "{held}");
}
