//! Tables of origins and `roa_check`, judged by BIRD: the same file, hundreds of prefixes and
//! origins, the same answers.

#![allow(clippy::unwrap_used)]

#[path = "language/bird.rs"]
mod bird;

use bird::Bird;
use caracal_bgp::{AsPath, Asn, FilterVerdict, PathAttrs, PeerKind, RouteSource};
use caracal_model::Prefix;
use caracal_templates::{parse_file, read_file};

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// A prefix of a small part of the addresses, so that many lie in each other.
    fn prefix(&mut self, family: usize) -> Prefix {
        let low = self.below(1 << 16);
        let address: std::net::IpAddr = match family {
            0 => [10, 0, u8::try_from(low >> 8).unwrap(), 0].into(),
            _ => [0x2001, 0xdb8, u16::try_from(low).unwrap(), 0, 0, 0, 0, 0].into(),
        };
        let (shortest, longest) = [(14, 24), (30, 48)][family];
        let len = shortest + self.below(longest - shortest + 1);
        Prefix::truncated(address, u8::try_from(len).unwrap())
    }
}

/// The filters stand above the entries.
fn file() -> String {
    let mut numbers = Numbers(7);
    let mut text = String::from(
        "router id 10.0.0.1;\nprotocol device { }\nroa4 table r4;\nroa6 table r6;\nroa4 table spare;\n",
    );
    for (filter, check) in [
        ("four", "roa_check(r4)"),
        ("six", "roa_check(r6)"),
        ("said", "roa_check(r4, net, bgp_path.last)"),
    ] {
        text += &format!(
            "filter {filter} {{
               if {check} = ROA_VALID then bgp_med = 1;
               else if {check} = ROA_INVALID then bgp_med = 2;
               else bgp_med = 0;
               accept;
             }}\n"
        );
    }
    text += "protocol static { roa4 { table spare; }; route 10.0.0.0/8 max 32 as 5; }\n";
    for (family, channel) in [(0, "roa4"), (1, "roa6 { table r6; }")] {
        text += &format!("protocol static {{ {channel};\n");
        for _ in 0..40 {
            let prefix = numbers.prefix(family);
            let longest: u64 = if family == 0 { 24 } else { 48 };
            let max =
                u64::from(prefix.len()) + numbers.below(longest + 1 - u64::from(prefix.len()));
            text += &format!("route {prefix} max {max} as {};\n", numbers.below(4));
        }
        text += "}\n";
    }
    text + "protocol bgp a { local as 64512; neighbor 10.0.0.2 as 64513;
              ipv4 { import filter four; export none; }; ipv6 { import filter six; export none; }; }\n"
}

#[test]
fn rfc6811_2_origins_are_judged_as_bird_judges_them() {
    let text = file();
    let config = parse_file(&text).unwrap().speaker;
    // Ours is read by BIRD; without one there is nothing to compare with.
    let Some(complaint) = bird::first_error(&text) else {
        return;
    };
    assert_eq!(complaint, None, "{text}");
    let Some(mut bird) = Bird::start("origins", &text) else {
        return;
    };
    let mut numbers = Numbers(11);
    let mut seen = [0; 3];
    for n in 0..600 {
        let family = n % 2;
        let (prefix, asn) = (
            numbers.prefix(family),
            u32::try_from(numbers.below(4)).unwrap(),
        );
        let (filter, table) = [("four", "r4"), ("six", "r6")][family];
        let attrs = PathAttrs {
            as_path: AsPath::sequence([Asn(9), Asn(asn)]),
            ..PathAttrs::default()
        };
        let judged = |name: &str| {
            let filter = &config.filters[name];
            let (verdict, judged) =
                filter.judge(prefix, attrs.clone(), RouteSource::Bgp, PeerKind::External);
            assert_eq!(verdict, Some(FilterVerdict::Accept));
            judged.med.unwrap()
        };
        let ours = judged(filter);
        if family == 0 {
            assert_eq!(judged("said"), ours);
        }
        let question = format!("eval roa_check({table}, {prefix}, {asn})");
        let (answer, _) = bird.ask(&question).unwrap();
        let theirs = answer[0].chars().last().and_then(|c| c.to_digit(10));
        assert_eq!(Some(ours), theirs, "{question}: {answer:?}\n{text}");
        seen[usize::try_from(ours).unwrap()] += 1;
    }
    assert!(seen.iter().all(|times| *times > 20), "{seen:?}");
}

#[test]
fn what_a_table_of_origins_does_to_a_route() {
    let text = file();
    let four = |text: &str| parse_file(text).unwrap().speaker.filters["four"].clone();
    let other = text.replace("max 32 as 5", "max 32 as 6");
    assert_eq!(four(&text), four(&other), "another table");
    let mut lines = text.lines();
    let entry = lines.find(|line| line.starts_with("route 10.")).unwrap();
    let less = text.replace(&format!("{entry}\n"), "");
    assert_ne!(four(&text), four(&less), "a reload runs the filter again");
    // A route of ours has no path: as in BIRD that is an error, and the route is rejected.
    let prefix: Prefix = "10.0.0.0/16".parse().unwrap();
    let own = four(&text).judge(
        prefix,
        PathAttrs::default(),
        RouteSource::Static,
        PeerKind::External,
    );
    assert_eq!(own.0, Some(FilterVerdict::Reject));
}

#[test]
fn wrong_tables_and_entries_are_told_with_their_place() {
    for (text, line, expected) in [
        ("roa4 table r4;\nroa4 table r4;", 2, "already defined"),
        ("protocol static { roa4; }", 1, "roa4 table NAME;"),
        (
            "roa4 table r4;\nprotocol static { roa6; }",
            2,
            "roa6 table NAME;",
        ),
        (
            "roa4 table r4;\nprotocol static { roa4;\nroute 10.0.0.0/8 max 7 as 1; }",
            3,
            "a length from 8 to 32",
        ),
        (
            "roa4 table r4;\nprotocol static { roa4;\nroute 2001:db8::/32 max 48 as 1; }",
            3,
            "the family of this protocol",
        ),
        (
            "roa4 table r4;\nprotocol static { roa4;\nroute 10.0.0.0/8 blackhole; }",
            3,
            "max LENGTH as AS",
        ),
        (
            "protocol static { ipv4;\nroute 10.0.0.0/8 max 9 as 1; }",
            2,
            "a channel \"roa4\"",
        ),
        (
            "roa4 table r4;\nprotocol static { roa4;\nipv4; }",
            3,
            "one channel",
        ),
        (
            "define A = roa_check(r4, 10.0.0.0/8, 1);",
            1,
            "\"roa4 table NAME;\"",
        ),
        (
            "roa4 table r4;\ndefine A = roa_check(r4);",
            2,
            "there is no route",
        ),
    ] {
        let text = format!(
            "{text}\nrouter id 10.0.0.1;\nprotocol bgp a {{ local as 1; neighbor 10.0.0.2 as 1; ipv4; }}\n"
        );
        let errors = read_file("f", &text, &mut |_, _| Err("no files".to_owned()), &|_| {
            Err("no machine".to_owned())
        })
        .unwrap_err();
        let report = errors.report("f");
        assert!(report.contains(expected), "{text}\n{report}");
        assert!(report.contains(&format!("f:{line}:")), "{text}\n{report}");
    }
}
