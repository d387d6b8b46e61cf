//! What is read is done, or refused with its place, or noted; and all errors are told at once.

use std::time::Duration;

use crate::{Options, ParseErrors, parse_file, read_file, render};

/// A file with one peer around a text.
fn file(text: &str) -> String {
    format!("router id 10.0.0.1;\n{text}\n")
}

fn peer(options: &str) -> String {
    file(&format!(
        "protocol bgp a {{ local 10.0.0.1 as 64512; neighbor 10.0.0.2 as 64512; ipv4; {options} }}"
    ))
}

fn errors(text: &str) -> ParseErrors {
    read_file("f", text, &mut |_, _| Err("no files".to_owned()), &|_| {
        Err("no machine".to_owned())
    })
    .expect_err(text)
}

#[test]
fn what_would_be_dropped_is_refused() {
    let with_peer = |text: &str| format!("{}{text}\n", peer(""));
    for (text, expected) in [
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via fd00::1; }"),
            "an address of IPv4",
        ),
        (
            with_peer("protocol static { ipv6; route fd01::/16 via fe80::1; }"),
            "the interface of a link-local gateway",
        ),
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2 weight 257; }"),
            "a weight from 1 to 256",
        ),
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2 weight 0; }"),
            "a weight from 1 to 256",
        ),
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2 weight 2 bfd; }"),
            "BFD runs with BGP peers only",
        ),
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2%eth0; }"),
            "is found by its address",
        ),
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2 dev \"eth0\"; }"),
            "is found by its address",
        ),
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2 onlink; }"),
            "10.0.0.1%eth0 onlink",
        ),
        (
            with_peer("protocol static { ipv4; check link; route 10.1.0.0/16 via 10.0.0.2; }"),
            "no \"check link\"",
        ),
        (
            with_peer("protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2 via 10.0.0.2; }"),
            "a repetition",
        ),
        (
            with_peer(
                "protocol static { ipv4; route 10.1.0.0/16 recursive 10.0.0.2 via 10.0.0.3; }",
            ),
            "expected \";\", found \"via\"",
        ),
        (
            with_peer(
                "protocol static { ipv4; route 10.1.0.0/16 via 10.0.0.2 { bgp_next_hop = 10.0.0.3; }; }",
            ),
            "behind a gateway",
        ),
        (
            with_peer("protocol static { ipv4; route fd00::/16 blackhole; }"),
            "a route of IPv4",
        ),
        (
            with_peer("protocol static { ipv4; ipv6; }"),
            "one family in a static protocol",
        ),
        (
            with_peer(
                "protocol static { ipv4; route 10.1.0.0/16 blackhole; route 10.1.0.0/16 blackhole; }",
            ),
            "every route once in a protocol",
        ),
        (
            with_peer(
                "protocol static { ipv4 { preference 210; }; route 10.1.0.0/16 via 10.0.0.2; }\n\
                 protocol static { ipv4; route 10.1.0.0/16 blackhole; }",
            ),
            "--> f:4:25\n",
        ),
        (
            with_peer(
                "protocol static { ipv4; route 10.1.0.0/16 blackhole; }\n\
                 protocol static { ipv4 { preference 210; }; route 10.1.0.0/16 via 10.0.0.2; }",
            ),
            "no second route to 10.1.0.0/16",
        ),
        (
            with_peer("protocol bgp x { local as 1; neighbor fe80::2 as 2; ipv6; }"),
            "an interface beside a link-local address",
        ),
        (
            with_peer("protocol bgp x { local as 1; neighbor fe80::2%eth0 as 1; ipv6; }"),
            "no router is in between",
        ),
        (
            with_peer("protocol bgp x { local as 1; neighbor fe80::2%eth0 as 2; bfd; ipv6; }"),
            "no \"bfd\"",
        ),
        (
            with_peer("protocol static { ipv4 { preference 100; }; }"),
            "a number from 101 on",
        ),
        (
            with_peer("protocol static { ipv4 { preference 65536; }; }"),
            "a number up to 65535",
        ),
        (
            with_peer("protocol static { roa4 { import none; }; }"),
            "entries of a table of origins",
        ),
        (
            peer("path metric off;"),
            "\"on\": the length of AS_PATH counts",
        ),
        (peer("med metric on;"), "\"off\": MULTI_EXIT_DISC counts"),
        (peer("default bgp_local_pref 200;"), "100: a route without"),
        (peer("enforce first as;"), "this peer is internal"),
        (peer("confederation 1;"), "no \"confederation\""),
        (peer("router id 1.1.1.1;"), "no \"router id\""),
        (peer("ipv6 { preference 200; };"), "a number from 11 to 199"),
        (peer("ipv6 { preference 10; };"), "a number from 11 to 199"),
        (
            with_peer(
                "protocol static { ipv4 { preference 150; }; route 10.1.0.0/16 blackhole; } \
                 protocol bgp x { local as 1; neighbor 10.0.0.9 as 1; ipv4 { preference 150; }; }",
            ),
            "a number from 11 to 149",
        ),
        (
            with_peer(
                "protocol bgp x { local as 1; neighbor 10.0.0.9 as 1; ipv4; ipv6 { preference 120; }; }",
            ),
            "both families with the same \"preference\"",
        ),
        (
            peer("disable after cease { cease, sloth };"),
            "one of: cease, prefix limit hit",
        ),
        (
            with_peer("protocol bgp x { local as 1; neighbor 10.0.0.9 external; ipv4; }"),
            "\"as NUMBER\"",
        ),
        (
            with_peer("protocol bfd { neighbor 10.0.0.9; }"),
            "BFD runs with BGP peers only",
        ),
        (
            with_peer("protocol bfd { interface \"*\" { min rx interval 10 ms; }; }"),
            "\"interval\"",
        ),
        (
            with_peer("protocol pipe { table master4; peer table t; }"),
            "no \"pipe\": there is one table for each family",
        ),
        (
            peer("ipv4 { rpki reload off; };"),
            "run again when it changes",
        ),
        (with_peer("protocol ospf v2 { }"), "with \"learn;\""),
        (
            peer("").replace("router id 10.0.0.1", "router id from \"eth*\""),
            "--> f:1:16\n",
        ),
        (
            with_peer("protocol direct { ipv4; check link; }"),
            "expected \"ipv4\"",
        ),
        (
            with_peer("protocol bfd { interface \"eth0\" { interval 1 s; }; }"),
            "bfd { … };",
        ),
        (
            with_peer("ipv4 table other;"),
            "\"master4\": there is one table",
        ),
        (
            with_peer("define A = 1; define A = 2;"),
            "\"A\" is already defined",
        ),
        (
            with_peer("template bgp t { } template bgp t { }"),
            "no template has yet",
        ),
        (peer("strict bind on;"), "#: listen ADDRESS"),
        (peer("keepalive time 10;"), "no line, or 80 s"),
        (peer("multihop; ipv6 { gateway direct; };"), "\"recursive\""),
        (peer("ipv4 { import all; };"), "each family once"),
        (
            peer("ipv6 { add paths on; };"),
            "both families with the same \"add paths\"",
        ),
        (
            format!(
                "#: listen all port 180\n{}",
                peer("").replace("local 10.0.0.1", "local 10.0.0.1 port 179")
            ),
            "one port to listen on",
        ),
        (
            peer("ipv6 { import filter { krt_metric = 7; accept; }; };"),
            "one of BIRD's only",
        ),
        (
            peer("ipv6 { import filter { krt_prefsrc = fd00::1; accept; }; };"),
            "which is for \"export\" of \"protocol kernel\"",
        ),
        (
            with_peer(
                "function f() { unset(krt_prefsrc); return true; } filter g { if f() then accept; reject; } \
                 protocol static { ipv4 { import filter g; }; }",
            ),
            "which is for \"export\" of \"protocol kernel\"",
        ),
        (
            peer("ipv6 { import filter { preference = 7; accept; }; };"),
            "compared by \"bgp_local_pref\"",
        ),
        (
            peer("ipv6 { import filter { bgp_next_hop = fd00::9; accept; }; };"),
            "for \"export\" to a peer",
        ),
        (
            with_peer(
                "function f() { bgp_next_hop = 10.0.0.9; return true; } filter g { if f() then accept; reject; } \
                 protocol static { ipv4 { import filter g; }; }",
            ),
            "for \"export\" to a peer",
        ),
        (
            peer("ipv6 { export filter { gw = fd00::9; accept; }; };"),
            "packets go where the next hop",
        ),
        (
            peer("ipv6 { export filter { from = fd00::9; accept; }; };"),
            "where the route comes from",
        ),
        (
            peer("ipv6 { export filter { igp_metric = 7; accept; }; };"),
            "the metric of the kernel's route",
        ),
        (
            peer("ipv6 { export filter { bgp_cluster_list.add((1, 2)); accept; }; };"),
            "loops are found by it",
        ),
        (
            peer("ipv6 { export where bgp_aggregator = 7; };"),
            "\"defined(bgp_aggregator)\"",
        ),
        (
            peer("ipv6 { export where proto = 7; };"),
            "operands that go together",
        ),
        (
            with_peer(
                "protocol static { ipv4; \
                   route 10.1.0.0/16 blackhole { if proto = \"a\" then bgp_med = 1; }; }",
            ),
            "steps without \"proto\"",
        ),
        (
            with_peer(
                "protocol static { ipv4; \
                   route 10.1.0.0/16 via 10.0.0.2 { if true then bgp_next_hop = 10.0.0.9; }; }",
            ),
            "no \"bgp_next_hop\" behind a gateway",
        ),
        (
            peer("ipv6 { import where roa_check(r4) = ROA_VALID; };"),
            "roa4 table NAME;",
        ),
        (
            peer("ipv6 { import where (1 + true) = 2; };"),
            "operands that go together",
        ),
        (
            peer("ipv6 { import where ! net ~ [ 10.0.0.0/8 ]; };"),
            "true or false (this is a prefix)",
        ),
        (
            peer("ipv6 { import where 1 / 0 = 1; };"),
            "division by zero",
        ),
        (
            peer("ipv6 { import where net ~ [ 10.0.0.0/8, fd00::/8 ]; };"),
            "prefixes of one family",
        ),
        (
            peer("ipv6 { import filter { return 1; }; };"),
            "only functions return",
        ),
    ] {
        let report = errors(&text).report("f");
        assert!(report.contains(expected), "{text}\n{report}");
    }
}

#[test]
fn what_changes_nothing_is_noted() {
    let text = peer(
        "connect retry time 3; error wait time 1, 2; debug all; hold time 240; graceful restart aware;",
    )
    .replace("ipv4;", "ipv4 { export none; };");
    let notes = parse_file(&text).unwrap().notes;
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(notes.iter().all(|note| note.contains(":2: ")), "{notes:?}");
    // A text of our own has such lines for the daemons that read it.
    let rendered = text.replace(
        "protocol bgp",
        "define caracal_local_as = 64512; protocol bgp",
    );
    assert!(parse_file(&rendered).unwrap().notes.is_empty());
}

#[test]
fn defaults_are_birds_in_a_text_by_hand() {
    let read = |text: &str| parse_file(text).unwrap();
    let two = format!(
        "{}{}",
        peer(""),
        peer("")
            .replace("bgp a", "bgp b")
            .replace("router id 10.0.0.1;", "")
    );
    let file = read(&two);
    // The one that is not, once.
    assert_eq!(file.notes.len(), 1, "{:?}", file.notes);
    assert!(file.notes[0].contains("graceful restart is on"));
    let a = &file.speaker.peers[&"a".into()];
    assert_eq!(a.hold_time, Duration::from_secs(240));
    assert_eq!(
        (a.import.len(), &a.export[..]),
        (0, &["none".to_owned()][..])
    );
    let said = peer("hold time 9; graceful restart on;").replace("ipv4;", "ipv4 { export all; };");
    let file = read(&said);
    let a = &file.speaker.peers[&"a".into()];
    assert_eq!((a.hold_time.as_secs(), a.export.len()), (9, 0));
    assert_eq!(file.notes, [""; 0]);
    // What is rendered says all of it.
    let again = render(&read(&two).speaker, &Options::default()).unwrap();
    assert_eq!(read(&again).speaker, read(&two).speaker);
    assert!(read(&again).notes.is_empty());
}

#[test]
fn what_was_passed_over_before_is_done() {
    let read = |text: &str| parse_file(text).unwrap().speaker;
    let a = read(&peer("source address 10.0.0.9;"))
        .peers
        .remove(&"a".into())
        .unwrap();
    assert_eq!(a.source, Some("10.0.0.9".parse().unwrap()));
    let port = peer("").replace("local 10.0.0.1", "local 10.0.0.1 port 1179");
    assert_eq!(read(&port).listen.unwrap().port, 1179);
    assert!(
        parse_file(&format!(
            "#: listen 10.0.0.1 port 179\n{}",
            peer("strict bind;")
        ))
        .is_ok()
    );
    assert!(parse_file(&peer("keepalive time 80;")).is_ok());
    let off = file("protocol static { disabled; ipv4; route 10.0.0.0/8 blackhole; }");
    assert!(
        read(&format!(
            "{off}{}",
            peer("").replace("router id 10.0.0.1;", "")
        ))
        .originate
        .is_empty()
    );
}

#[test]
fn all_errors_are_told_at_once_and_no_others() {
    let text = "router id 10.0.0.1;
define ASN = 6x;
function f(int a) { if a > true then return 1; return 2; }
filter out { if f(1) = 2 then accept; bgp_med = \"x\"; nonsense; reject; }
protocol bgp a { local as ASN; neighbor 10.0.0.2 as ASN; hold time long; ipv4 { import filter out; }; }
protocol bpg b { }
protocol bgp d { local as 1; neighbor 10.0.0.4 as 1; ipv4 { export filter missing; }; }
protocol bgp c { neighbour 10.0.0.3 as 1; ipv4; }
";
    let errors = errors(text);
    let all: Vec<_> = std::iter::once(&*errors.first)
        .chain(&errors.more)
        .collect();
    let places: Vec<_> = all
        .iter()
        .map(|error| (error.line, error.found.as_str()))
        .collect();
    // The name that could not be defined and the peer whose neighbour could not be read are not
    // told again. What is inside a broken statement is not looked at.
    let wanted = [
        (2, "\"6x\""),
        (3, "\"a\""),
        (4, "\"x\""),
        (4, "\"nonsense\""),
        (5, "\"long\""),
        (6, "\"bpg\""),
        (7, "\"missing\""),
        (8, "\"neighbour\""),
    ];
    for want in wanted {
        let hit = places.iter().any(|(line, found)| {
            *line == want.0 && (found.contains(want.1.trim_matches('"')) || *found == "\"\\\"\"")
        });
        assert!(hit, "{want:?}: {places:?}\n{}", errors.report("f"));
    }
    assert_eq!(places.len(), wanted.len(), "{}", errors.report("f"));
}

#[test]
fn templates_of_templates_and_their_families() {
    let text = "router id 10.0.0.1;
template bgp t1 { local as 64512; hold time 30; ipv4 { import none; export all; }; }
template bgp t2 from t1 { hold time 60; ipv4 { import all; }; }
protocol bgp a from t2 { neighbor 10.0.0.2 internal; ipv4 { export none; }; }
";
    let file = parse_file(text).unwrap().speaker;
    let a = &file.peers[&"a".into()];
    assert_eq!((a.hold_time.as_secs(), a.remote_as.0), (60, 64512));
    assert!(a.import.is_empty());
    assert_eq!(a.export, ["none"]);
    let round = text.replace("template bgp t1 {", "template bgp t1 from t2 {");
    let report = errors(&round).report("f");
    assert!(report.contains("not made of itself"), "{report}");
}

#[test]
fn what_cannot_be_written_is_not_written() {
    for filter in [
        "export where net.len = 24;",
        "export where net ~ [ 10.0.0.0/8 ];",
    ] {
        let config = parse_file(&peer(&format!("ipv6 {{ {filter} }};")))
            .unwrap()
            .speaker;
        let error = crate::render(&config, &crate::Options::default()).unwrap_err();
        assert!(
            error.to_string().contains("more than terms"),
            "{filter}: {error}"
        );
    }
}

#[test]
fn nesting_has_an_end() {
    for (text, depth) in [("(", 200), ("! ", 200), ("(", 100_000)] {
        let text = peer(&format!(
            "ipv6 {{ import where {}true; }};",
            text.repeat(depth)
        ));
        let report = errors(&text).report("f");
        assert!(report.contains("fewer expressions and steps"), "{report}");
    }
    let chain = "if net.len = 1 then accept; else ".repeat(150);
    let text = peer(&format!("ipv6 {{ import filter {{ {chain}reject; }}; }};"));
    assert!(parse_file(&text).is_ok());
    // Many of one kind are no nesting; many of different kinds are.
    let many = "net.len = 1 || ".repeat(5000);
    assert!(parse_file(&peer(&format!("ipv6 {{ import where {many}true; }};"))).is_ok());
    for chain in ["net.len = 1 && true || ", "1 + 1 + ", "2 * 2 * "] {
        let end = if chain.ends_with("|| ") {
            "true"
        } else {
            "1 = 1"
        };
        let text = peer(&format!(
            "ipv6 {{ import where {}{end}; }};",
            chain.repeat(5000)
        ));
        let report = errors(&text).report("f");
        assert!(
            report.contains("a shorter expression"),
            "{}",
            &report[..200]
        );
    }
    let steps = "if true then ".repeat(200);
    let text = peer(&format!("ipv6 {{ import filter {{ {steps}accept; }}; }};"));
    assert!(
        errors(&text)
            .report("f")
            .contains("fewer expressions and steps")
    );
}
