//! The filter language, judged by BIRD: thousands of expressions and filters, the same for a seed,
//! get the same answers from a real BIRD 2.

#![allow(clippy::unwrap_used)]

#[path = "language/bird.rs"]
mod bird;
#[path = "language/generate.rs"]
mod generate;

use bird::Bird;
use caracal_bgp::{
    AnyCommunity, AsPath, Asn, FilterVerdict, Origin, PathAttrs, PeerKind, RouteSource,
};
use caracal_model::Prefix;
use generate::{Chance, KINDS, Known};

/// Routes with and without attributes: prefix, path, LOCAL_PREF, MED, communities of all kinds.
type Route = (
    &'static str,
    &'static [u32],
    Option<u32>,
    Option<u32>,
    &'static [&'static str],
);

const ROUTES: [Route; 7] = [
    ("10.0.0.0/8", &[], None, None, &[]),
    ("10.1.0.0/16", &[3, 2, 1], Some(100), None, &["1:2"]),
    (
        "10.1.0.0/24",
        &[65000, 2, 2, 2],
        Some(5),
        Some(0),
        &["1:2", "65000:100"],
    ),
    (
        "10.2.0.0/24",
        &[1],
        None,
        Some(5),
        &["1:2:3", "100:100:100"],
    ),
    (
        "10.2.3.4/32",
        &[100, 5, 65000, 1, 3],
        None,
        None,
        &["rt:1:2", "ro:65000:5"],
    ),
    (
        "192.168.0.0/17",
        &[64500],
        Some(4_294_967_295),
        Some(3),
        &["5:5", "2:3:5", "rt:100:100"],
    ),
    ("0.0.0.0/0", &[2, 3], Some(0), None, &["65000:1", "3:3"]),
];

/// As a daemon has them.
fn daemon(functions: &[String]) -> String {
    let mut text = String::from("router id 10.0.0.1;\nprotocol device { }\n");
    for function in functions {
        text += function;
        text.push('\n');
    }
    text += "protocol static { ipv4;\n";
    for (prefix, path, local_pref, med, communities) in ROUTES {
        text += &format!("route {prefix} blackhole {{ bgp_origin = ORIGIN_EGP; ");
        for asn in path.iter().rev() {
            text += &format!("bgp_path.prepend({asn}); ");
        }
        if let Some(value) = local_pref {
            text += &format!("bgp_local_pref = {value}; ");
        }
        if let Some(value) = med {
            text += &format!("bgp_med = {value}; ");
        }
        for community in communities {
            let community: AnyCommunity = any_community(community);
            text += &format!(
                "{}.add({}); ",
                community.bird_attribute(),
                community.bird_value()
            );
        }
        text += "};\n";
    }
    text + "}\n"
}

fn any_community(text: &str) -> AnyCommunity {
    match text.starts_with('r') {
        true => AnyCommunity::Extended(text.parse().unwrap()),
        false => text.parse().unwrap(),
    }
}

fn attrs(route: &Route) -> PathAttrs {
    let (_, path, local_pref, med, communities) = route;
    let mut attrs = PathAttrs {
        origin: Origin::Egp,
        as_path: AsPath::sequence(path.iter().copied().map(Asn).collect::<Vec<_>>()),
        local_pref: *local_pref,
        med: *med,
        ..PathAttrs::default()
    };
    for community in *communities {
        attrs.add_community(any_community(community));
    }
    attrs
}

/// A list of BIRD's keeps the order of its making; ours are sorted, and so are both here.
fn sorted(text: &str) -> String {
    let Some((head, items)) = text.split_once("list ") else {
        return text.to_owned();
    };
    let mut items: Vec<&str> = items.trim_end_matches(')').split(") (").collect();
    for item in &mut items {
        *item = item.trim_matches(['(', ')']);
    }
    items.sort_unstable();
    format!("{head}list {}", items.join(" | "))
}

#[test]
fn expressions_have_the_values_that_bird_gives_them() {
    const CASES: u32 = 6000;
    let Some(mut bird) = Bird::start("eval", &daemon(&[])) else {
        return;
    };
    let mut chance = Chance::new(20_260_101);
    let mut wrong = Vec::new();
    let (mut equal, mut refused, mut failed) = (0, 0, 0);
    for case in 0..CASES {
        let kind = chance.one(&KINDS);
        let text = chance.expression(kind, u64::from(case % 5), &Known::default());
        let answer = bird.ask(&format!("eval {text}"));
        let (lines, code) = answer.unwrap_or_else(|| panic!("bird has crashed: {text}"));
        let answer = lines.join("\n");
        let ours = caracal_templates::eval(&text);
        match (code, &ours) {
            (23 | 0, Ok(ours)) if sorted(ours) == sorted(answer.trim()) => equal += 1,
            // Syntax and types: the generator does not know all of 2.0.12's limits.
            (9000..=9999, Ok(_)) => refused += 1,
            (_, Err(_)) if code >= 8000 => failed += 1,
            _ => wrong.push(format!("{text}\n  bird: {code} {answer}\n  ours: {ours:?}")),
        }
    }
    println!("{equal} equal, {failed} without a value for both, {refused} refused by bird alone");
    assert!(
        wrong.is_empty(),
        "{} of {CASES}:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(
        equal > CASES * 3 / 5,
        "only {equal} of {CASES} have said something"
    );
    assert!(refused < CASES / 20, "BIRD refuses {refused} of {CASES}");
}

/// A daemon with these filters, `t` and a number each, and the numbers of those that it reads.
fn with_filters(functions: &[String], bodies: &[String]) -> Option<(Bird, Vec<usize>)> {
    let mut names: Vec<usize> = (0..bodies.len()).collect();
    loop {
        let mut lines = functions.to_vec();
        lines.extend(
            names
                .iter()
                .map(|at| format!("filter t{at} {}", bodies[*at])),
        );
        let text = daemon(&lines);
        let Some(line) = bird::first_error(&text)? else {
            return Bird::start("filter", &text).map(|bird| (bird, names));
        };
        // Two lines stand above, then functions.
        names.remove(line - 3 - functions.len());
    }
}

/// The routes that pass, with what the filter has made of them.
fn passed(lines: &[String]) -> Vec<(String, Vec<String>)> {
    let mut routes: Vec<(String, Vec<String>)> = Vec::new();
    for line in lines {
        if let Some(attribute) = line.trim().strip_prefix("BGP.") {
            let words: Vec<&str> = attribute.split(": ").collect();
            let value = words.get(1).copied().unwrap_or_default();
            let mut items: Vec<&str> = match words[0].contains("community") {
                true => value
                    .split(") (")
                    .map(|item| item.trim_matches(['(', ')']))
                    .collect(),
                false => vec![value],
            };
            items.sort_unstable();
            // A list that has become empty is as good as none.
            let shown = items.join("|").replace(' ', "");
            if let Some((_, all)) = routes.last_mut().filter(|_| !shown.is_empty()) {
                all.push(format!("{}={shown}", words[0]));
            }
        } else if line.contains("blackhole") {
            let prefix = line.split_whitespace().next().unwrap();
            routes.push((prefix.to_owned(), Vec::new()));
        }
    }
    for (_, attributes) in &mut routes {
        attributes.sort_unstable();
    }
    routes.sort();
    routes
}

/// Our attributes in the words of [`passed`].
fn shown(attrs: &PathAttrs) -> Vec<String> {
    let mut all = vec!["origin=EGP".to_owned()];
    let list = |items: Vec<String>| {
        let mut items = items;
        items.sort_unstable();
        items.join("|")
    };
    if !attrs.as_path.is_empty() {
        all.push(format!("as_path={}", attrs.as_path).replace(' ', ""));
    }
    if let Some(value) = attrs.local_pref {
        all.push(format!("local_pref={value}"));
    }
    if let Some(value) = attrs.med {
        all.push(format!("med={value}"));
    }
    let plain = |community: AnyCommunity| {
        community
            .bird_value()
            .replace(' ', "")
            .trim_matches(['(', ')'])
            .to_owned()
    };
    let standard = attrs
        .communities
        .iter()
        .map(|c| plain(AnyCommunity::Standard(*c)));
    let large = attrs
        .large_communities
        .iter()
        .map(|c| plain(AnyCommunity::Large(*c)));
    let extended = attrs
        .ext_communities
        .iter()
        .map(|c| plain(AnyCommunity::Extended(caracal_bgp::ExtCommunity(*c))));
    for (name, items) in [
        ("community", list(standard.collect())),
        ("large_community", list(large.collect())),
        ("ext_community", list(extended.collect())),
    ] {
        if !items.is_empty() {
            all.push(format!("{name}={items}"));
        }
    }
    all.sort_unstable();
    all
}

#[test]
fn filters_decide_and_change_routes_as_bird_does() {
    const CASES: u32 = 1500;
    let mut chance = Chance::new(7_919);
    let mut known = Known {
        route: true,
        ..Known::default()
    };
    let functions: Vec<String> = (0..40).map(|_| chance.function(&mut known)).collect();
    let mut bodies = Vec::new();
    for _ in 0..CASES {
        let mut inside = known.clone();
        let steps = chance.steps(2, &mut inside);
        let end = chance.one(&["accept;", "accept;", "reject;", ""]);
        bodies.push(format!("{{ {steps}{end} }}"));
    }
    let Some((mut bird, names)) = with_filters(&functions, &bodies) else {
        return;
    };
    let mut text = functions.join("\n");
    text += "\nrouter id 10.0.0.1;\ndefine caracal_local_as = 1;\n";
    for at in &names {
        text += &format!("filter t{at} {}\n", bodies[*at]);
    }
    let config = caracal_templates::parse(&text).unwrap_or_else(|e| panic!("{}", e.report("t")));
    let mut wrong = Vec::new();
    let (mut equal, mut passing, mut crashed) = (0, 0, 0);
    let refused = CASES - u32::try_from(names.len()).unwrap();
    for at in names {
        let body = &bodies[at];
        let Some((lines, code)) = bird.ask(&format!("show route filter t{at} all")) else {
            println!("bird crashes: {}", &body[..body.len().min(200)]);
            crashed += 1;
            drop(bird);
            bird = with_filters(&functions, &bodies).unwrap().0;
            continue;
        };
        assert!(code < 8000, "{lines:?}");
        let mut ours = Vec::new();
        for route in &ROUTES {
            let prefix = Prefix::parse_strict(route.0).unwrap();
            let judged = config.filters[&format!("t{at}")].judge(
                prefix,
                attrs(route),
                RouteSource::Static,
                PeerKind::Internal,
            );
            if let (Some(FilterVerdict::Accept), changed) = judged {
                ours.push((route.0.to_owned(), shown(&changed)));
            }
        }
        ours.sort();
        let theirs = passed(&lines);
        passing += theirs.len();
        if ours == theirs {
            equal += 1;
        } else {
            wrong.push(format!("{body}\n  bird: {theirs:?}\n  ours: {ours:?}"));
        }
    }
    println!("{equal} equal, {refused} refused by bird, {passing} routes passed");
    assert!(
        wrong.is_empty(),
        "{}:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(12)].join("\n")
    );
    assert!(equal > CASES / 2 && passing > 1000, "{equal}, {passing}");
    assert!(refused < CASES / 10, "BIRD refuses {refused} of {CASES}");
    assert!(crashed < CASES / 50, "BIRD crashes in {crashed} of {CASES}");
}
