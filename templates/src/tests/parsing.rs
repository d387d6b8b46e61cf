//! Files written by people, and where they go wrong.

use std::net::IpAddr;

use caracal_bgp::{
    BgpRole, FilterCondition, FilterVerdict, GracefulRestart, Listen, StaticGateway, StaticWay,
    Station,
};

use super::*;

const HAND: &str = r#"/* a reflector without
   a datastore */
router id 10.0.0.9;
define ASN = 65000;

filter only_pods {
  if (net ~ [ 10.244.0.0/16+ ]) then accept;
}

template bgp client { hold time 30; rr client; graceful restart time 60; }

protocol static { ipv4; route 10.9.0.0/24 blackhole; }
protocol device { scan time 2; }

protocol bgp leaf1 from client {   # the first client
  local 10.0.0.9 as ASN;
  neighbor 10.0.0.1 as ASN;
  ipv4 { import filter only_pods; export all; };
}
protocol bgp tor {
  local as 65000;
  neighbor fd00::1 port 1179 as 65100;
  passive;
  ipv6 { import all; export all; next hop self; };
}
"#;

#[test]
fn a_file_written_by_hand() {
    let config = parse(HAND).unwrap();
    assert_eq!(config.local_as, Asn(65000));
    assert_eq!(
        config.listen,
        Some(Listen {
            address: None,
            second: None,
            port: 179
        })
    );
    let leaf = &config.peers[&PeerName::from("leaf1")];
    assert_eq!(
        (leaf.local_as, leaf.remote_as),
        (Some(Asn(65000)), Asn(65000))
    );
    assert_eq!(leaf.hold_time.as_secs(), 30);
    assert_eq!(leaf.client_of.unwrap().to_string(), "10.0.0.9");
    assert_eq!(
        leaf.graceful_restart,
        Some(GracefulRestart {
            restart_time: std::time::Duration::from_secs(60)
        })
    );
    assert_eq!(
        (leaf.ttl, leaf.import.len(), leaf.export.len()),
        (None, 1, 0)
    );
    let tor = &config.peers[&PeerName::from("tor")];
    assert_eq!((tor.port, tor.passive, tor.local_as), (1179, true, None));
    // An external peer is a neighbour unless the file says multihop.
    assert_eq!(tor.ttl, Some(1));
    // In a filter, unlike in a function, what no term decides is refused.
    let terms = &config.filters["only_pods"].terms;
    assert_eq!(terms.len(), 2);
    assert!(matches!(
        terms[0].conditions[..],
        [FilterCondition::Prefix { .. }]
    ));
    assert_eq!(terms[1].verdict, Some(FilterVerdict::Reject));
    assert_eq!(config.originate.len(), 1);
}

#[test]
fn a_monitoring_station_in_birds_words() {
    let text = format!(
        "{HAND}protocol bmp watch {{
  station address ip 10.0.0.50 port 1790;
  monitoring rib in pre_policy;
  monitoring rib in post_policy off;
  system name \"rr1\";
  tx buffer limit 2;
  #: statistics every 30
}}
"
    );
    let config = parse(&text).unwrap();
    let station = Station {
        system_name: Some("rr1".to_owned()),
        buffer: 2 << 20,
        statistics: Some(std::time::Duration::from_secs(30)),
        ..Station::new("10.0.0.50".parse().unwrap(), 1790)
    };
    assert_eq!(config.stations["watch"], station);
    for (from, to, line, column, words) in [
        ("port 1790", "port 1790000", 27, 37, "a number up to 65535"),
        (
            "pre_policy;",
            "prepolicy;",
            28,
            21,
            "\"pre_policy\" or \"post_policy\"",
        ),
        ("limit 2;", "limit;", 31, 18, "a number up to 4294967295"),
        ("every 30", "each 30", 32, 17, "\"every\" or \"off\""),
        (
            "station address ip 10.0.0.50 port 1790;",
            "",
            26,
            14,
            "a station with a line \"station address ip ADDRESS port PORT;\"",
        ),
    ] {
        let error = parse(&text.replace(from, to)).unwrap_err();
        assert_eq!(
            (error.line, error.column),
            (line, column),
            "{from}: {error}"
        );
        assert_eq!(error.expected, words, "{from}");
    }
}

/// The file with one change, and the error it gives: line, column, and the words.
fn fault(from: &str, to: &str) -> (usize, usize, String) {
    assert_eq!(HAND.matches(from).count(), 1, "{from}");
    let error = parse(&HAND.replace(from, to)).unwrap_err();
    let words = format!("expected {}, found {}", error.expected, error.found);
    (error.line, error.column, words)
}

#[test]
fn errors_name_the_place() {
    for (from, to, line, column, words) in [
        (
            "router id 10.0.0.9;",
            "router id 10.0.0;",
            3,
            11,
            "expected an IPv4 address, found \"10.0.0\"",
        ),
        (
            "define ASN = 65000;",
            "define ASN 65000;",
            4,
            12,
            "expected \"=\", found \"65000\"",
        ),
        (
            "10.244.0.0/16+",
            "10.244.0.1/16+",
            7,
            15,
            "expected a prefix (10.244.0.1/16 has host bits set; the prefix is 10.244.0.0/16), found \"10.244.0.1/16\"",
        ),
        (
            "10.244.0.0/16+",
            "10.244.0.0/16{24,8}",
            7,
            28,
            "expected lengths {MIN,MAX} with MIN <= MAX <= 32, found \"{\"",
        ),
        (
            "hold time 30;",
            "hold time 70000;",
            10,
            33,
            "expected a number up to 65535, found \"70000\"",
        ),
        (
            "neighbor 10.0.0.1 as ASN;",
            "neighbor 10.0.0.1 as NSA;",
            17,
            24,
            "expected a constant; \"NSA\" is not defined, found \"NSA\"",
        ),
        (
            "neighbor 10.0.0.1 as ASN;",
            "neighbor 10.0.0.1 port x as ASN;",
            17,
            26,
            "expected a number up to 65535, found \"x\"",
        ),
        (
            "neighbor 10.0.0.1 as ASN;",
            "",
            15,
            14,
            "expected a peer with a line \"neighbor ADDRESS as NUMBER;\", found \"leaf1\"",
        ),
        (
            "import filter only_pods;",
            "import filter pods;",
            18,
            24,
            "expected the name of a function or filter, found \"pods\"",
        ),
        (
            "from client {",
            "from server {",
            15,
            25,
            "expected the name of a template, found \"server\"",
        ),
        ("  passive;\n", "  pasive;\n", 23, 3, "found \"pasive\""),
        (
            "next hop self; };\n}\n",
            "next hop self; };\n",
            25,
            1,
            "or \"}\", found the end of the file",
        ),
        (
            "then accept;",
            "then { bgp_med = true; }",
            7,
            50,
            "expected a number (this is true or false), found \"true\"",
        ),
        (
            "export all; };\n}\nprotocol bgp tor",
            "export all; };\n}\nprotocol bgp leaf1",
            20,
            14,
            "expected a name that no peer has yet, found \"leaf1\"",
        ),
    ] {
        let (seen_line, seen_column, seen) = fault(from, to);
        assert_eq!((seen_line, seen_column), (line, column), "{to}: {seen}");
        assert!(seen.contains(words), "{to}: {seen}");
    }
}

#[test]
fn a_report_points_at_the_place() {
    let error = parse("router id 10.0.0.1;\n\tlog stderr al;\n").unwrap_err();
    assert_eq!(
        error.report("speaker.conf"),
        "error: expected \"all\" or \"{\", found \"al\"\n  --> speaker.conf:2:13\n   |\n 2 | \tlog stderr al;\n   | \t           ^\n"
    );
}

#[test]
fn directives_are_read_and_misspelt_ones_refused() {
    let base = "router id 10.0.0.1;\ndefine caracal_local_as = 1;\n";
    let listen = |line: &str| parse(&format!("{base}{line}\n"));
    assert_eq!(listen("#: listen none").unwrap().listen, None);
    assert_eq!(
        listen("#: listen 10.0.0.1 port 1179").unwrap().listen,
        Some(Listen {
            address: Some("10.0.0.1".parse().unwrap()),
            second: None,
            port: 1179
        })
    );
    assert_eq!(
        listen("#: listen 10.0.0.1 and fd00::1 port 179")
            .unwrap()
            .listen,
        Some(Listen {
            address: Some("10.0.0.1".parse().unwrap()),
            second: Some("fd00::1".parse().unwrap()),
            port: 179
        })
    );
    for (bad, column) in [
        ("#: lisen none", 4),
        ("#: listen none whatever", 16),
        ("#: listen all port 70000", 20),
    ] {
        let error = listen(bad).unwrap_err();
        assert_eq!((error.line, error.column), (3, column), "{bad}: {error}");
    }
    assert!(
        parse("# only a comment")
            .unwrap_err()
            .expected
            .contains("router id")
    );
    assert!(
        parse("router id 10.0.0.1;")
            .unwrap_err()
            .expected
            .contains("caracal_local_as")
    );
}

#[test]
fn what_a_caller_says_of_a_peer_must_be_true() {
    let mut config = empty();
    let mut peer = PeerConfig::new("10.0.0.2".parse().unwrap(), Asn(64512));
    config
        .filters
        .insert("f1".into(), caracal_bgp::Filter::from(Vec::new()));
    peer.import = vec!["f1".into()];
    config.peers.insert(PeerName::from("p1"), peer);
    let text = render(&config, &Options::default()).unwrap();
    let error = parse(&text.replace("f1(true)", "f1(false)")).unwrap_err();
    assert!(
        error.expected.starts_with("true, from the AS numbers"),
        "{error}"
    );
}

proptest::proptest! {
    #[test]
    fn never_panics(text in "\\PC{0,80}") {
        let _ = parse(&text);
    }

    /// Cut anywhere, or with a character changed, a text is refused or understood, and an error can
    /// be shown.
    #[test]
    fn damaged_files_never_panic(at in 0..HAND.len(), other in "\\PC?", cut in proptest::bool::ANY) {
        let rest = if cut { "" } else { &HAND[at + 1..] };
        if let Err(error) = parse(&format!("{}{other}{rest}", &HAND[..at])) {
            proptest::prop_assert!(error.report("x").contains('^'));
        }
    }
}

#[test]
fn rfc8212_an_external_peer_needs_a_policy_both_ways() {
    let text = |asn: u32, channel: &str| {
        format!(
            "router id 10.0.0.1;\nprotocol bgp p {{\n  local as 64512; neighbor 10.0.0.2 as {asn};\n  {channel}\n}}\n"
        )
    };
    for channel in ["ipv4;", "ipv4 { import all; };", "ipv4 { export all; };"] {
        let error = crate::parse(&text(65001, channel)).unwrap_err();
        assert_eq!((error.line, error.column), (4, 3), "{channel}");
        assert!(error.expected.contains("RFC 8212"), "{error}");
        crate::parse(&text(64512, channel)).unwrap();
    }
    crate::parse(&text(65001, "ipv4 { import all; export all; };")).unwrap();
}

/// A peer with these lines and these lines in its family.
fn with_options(options: &str, family: &str) -> Result<PeerConfig, ParseError> {
    let text = format!(
        "router id 10.0.0.1;\nprotocol bgp x {{ local as 64512; neighbor 10.0.0.2 as 64512;\n{options}\n\
         ipv4 {{ {family}\n }}; }}\n"
    );
    Ok(parse(&text)?.peers.remove(&"x".into()).unwrap())
}

#[test]
fn options_of_a_peer_that_are_off_by_default() {
    use caracal_bgp::{AddPath, BfdOptions, LimitAction, PathCount, PrefixLimit};
    use std::time::Duration;

    let plain = with_options("", "").unwrap();
    assert_eq!(
        (
            plain.bfd,
            plain.long_lived,
            plain.prefix_limits.ipv4,
            plain.add_path
        ),
        (None, None, None, AddPath::default())
    );
    let bfd = |text: &str| with_options(text, "").unwrap().bfd;
    let birds = BfdOptions {
        interval: Duration::from_millis(100),
        multiplier: 5,
        graceful: false,
    };
    assert_eq!(bfd("bfd;"), Some(birds));
    assert_eq!(bfd("bfd off;"), None);
    let tuned = BfdOptions {
        interval: Duration::from_millis(50),
        multiplier: 5,
        graceful: true,
    };
    assert_eq!(
        bfd("bfd { interval 50 ms; multiplier 5; }; bfd graceful;"),
        Some(tuned)
    );
    let long = |text: &str| with_options(text, "").unwrap().long_lived;
    assert_eq!(
        long("long lived graceful restart on;"),
        Some(Duration::from_secs(3600))
    );
    assert_eq!(
        long("long lived graceful restart on; long lived stale time 60;"),
        Some(Duration::from_secs(60))
    );
    let limit = |text: &str| with_options("", text).unwrap().prefix_limits.ipv4;
    assert_eq!(limit("receive limit 9;"), Some(PrefixLimit::new(9)));
    assert_eq!(
        limit("receive limit 9 action restart;\n#: limit warning 50 restart 7"),
        Some(PrefixLimit {
            max: 9,
            warning: 50,
            action: LimitAction::Restart(Duration::from_secs(7))
        })
    );
    assert_eq!(limit("receive limit 9; receive limit off;"), None);
    let block = |max| {
        Some(PrefixLimit {
            action: LimitAction::Block,
            ..PrefixLimit::new(max)
        })
    };
    let all = "import limit 8 action block; receive limit 9 action block; export limit 7;\n\
               #: export limit warning 50 restart 0";
    let peer = with_options("", all).unwrap();
    assert_eq!(
        (
            peer.prefix_limits.ipv4,
            peer.import_limits.ipv4,
            peer.export_limits.ipv4
        ),
        (
            block(9),
            block(8),
            Some(PrefixLimit {
                warning: 50,
                ..PrefixLimit::new(7)
            })
        )
    );
    let off = with_options("", "import limit 8; import limit off; export limit off;").unwrap();
    assert_eq!(
        (off.import_limits.ipv4, off.export_limits.ipv4),
        (None, None)
    );
    let paths = |text: &str| with_options("", text).unwrap().add_path;
    let mode = |receive, send| AddPath { receive, send };
    assert_eq!(paths("add paths on;"), mode(true, Some(PathCount::All)));
    assert_eq!(paths("add paths rx;"), mode(true, None));
    assert_eq!(
        paths("add paths tx;\n#: add paths best 2"),
        mode(false, Some(PathCount::Best(2)))
    );
    assert!(
        with_options("", "extended next hop on;")
            .unwrap()
            .extended_next_hop
    );
    for word in ["receive", "import", "export"] {
        let text = format!("{word} limit 9 action stop;");
        let error = with_options("", &text).unwrap_err();
        assert!(error.expected.contains("\"block\""), "{error}");
        let error = with_options("", &format!("{word} limit;")).unwrap_err();
        assert!(error.expected.contains("a number"), "{error}");
    }
}

#[test]
fn each_family_has_limits_of_its_own() {
    use caracal_bgp::{LimitAction, PrefixLimit, PrefixLimits};

    let text = "router id 10.0.0.1;\n\
        template bgp t { local as 64512; ipv4 { receive limit 7; }; ipv6 { receive limit 9; }; }\n\
        protocol bgp x from t { neighbor 10.0.0.2 as 64512;\n\
          ipv4 { import limit 100 action block; };\n\
          ipv6 { receive limit off; import limit 50 action restart;\n\
            #: import limit warning 10 restart 5\n\
            export limit 3 action warn; }; }\n";
    let config = parse(text).unwrap();
    let peer = &config.peers[&"x".into()];
    let limit = |max, action| {
        Some(PrefixLimit {
            action,
            ..PrefixLimit::new(max)
        })
    };
    assert_eq!(
        peer.prefix_limits,
        PrefixLimits {
            ipv4: Some(PrefixLimit::new(7)),
            ipv6: None
        }
    );
    assert_eq!(
        peer.import_limits,
        PrefixLimits {
            ipv4: limit(100, LimitAction::Block),
            ipv6: Some(PrefixLimit {
                max: 50,
                warning: 10,
                action: LimitAction::Restart(std::time::Duration::from_secs(5))
            })
        }
    );
    assert_eq!(
        peer.export_limits,
        PrefixLimits {
            ipv4: None,
            ipv6: limit(3, LimitAction::Warn)
        }
    );
    let rendered = render(&config, &Options::default()).unwrap();
    assert_eq!(parse(&rendered).unwrap(), config, "{rendered}");
}

#[test]
fn of_several_static_routes_to_a_prefix_the_preferred_one_counts() {
    let way = |first: &str, second: &str| {
        let text = format!(
            "router id 10.0.0.1;\nprotocol static a {{ {first} }}\nprotocol static b {{ {second} }}\n\
             protocol bgp x {{ local as 64512; neighbor 10.0.0.2 as 64512; ipv4; }}\n"
        );
        let file = parse(&text).unwrap();
        let route = file.originate.get(&Prefix::v4([10, 1, 0, 0].into(), 16));
        route.unwrap().way.clone()
    };
    let black = "ipv4; route 10.1.0.0/16 blackhole;";
    let un = "ipv4; route 10.1.0.0/16 unreachable;";
    let to = |preference: u16, routes: &str| {
        routes.replace("ipv4;", &format!("ipv4 {{ preference {preference}; }};"))
    };
    // As BIRD 2.0.12: the first among equals.
    assert_eq!(way(black, un), StaticWay::Blackhole);
    assert_eq!(way(un, black), StaticWay::Unreachable);
    assert_eq!(way(&to(200, black), un), StaticWay::Blackhole);
    assert_eq!(way(&to(199, black), un), StaticWay::Unreachable);
    assert_eq!(way(black, &to(201, un)), StaticWay::Unreachable);
    let gateway = "ipv4; route 10.1.0.0/16 via 10.0.0.2;";
    assert_eq!(way(gateway, &to(201, un)), StaticWay::Unreachable);
    let off = "disabled; ipv4 { preference 201; }; route 10.1.0.0/16 via 10.0.0.2;";
    assert_eq!(way(black, off), StaticWay::Blackhole);
}

#[test]
fn peers_of_a_range_have_a_name_of_their_own() {
    let text = |options: &str| {
        format!(
            "router id 10.0.0.1;\nprotocol bgp x {{ local as 64512;\n\
             neighbor range 10.0.0.0/24 as 64512;\n{options}\nipv4 {{ import all; export all; }}; }}\n"
        )
    };
    let name = |options: &str| {
        let file = parse(&text(options)).unwrap();
        file.peers[&"x".into()].dynamic_name.clone()
    };
    assert_eq!(name(""), None);
    assert_eq!(
        name("dynamic name \"leaf\"; dynamic name digits 4;"),
        Some("leaf".into())
    );
    let error = parse(&text("dynamic names;")).unwrap_err();
    assert_eq!(error.line, 4, "{error}");
}

#[test]
fn roles_are_between_ases() {
    let text = |remote: u32, options: &str| {
        format!(
            "router id 10.0.0.1;\nprotocol bgp x {{ local as 64512; neighbor 10.0.0.2 as {remote};\n\
             {options}\nipv4 {{ import all; export all; }}; }}\n"
        )
    };
    for role in BgpRole::ALL {
        let file = parse(&text(65001, &format!("local role {role}; require roles;"))).unwrap();
        let peer = &file.peers[&"x".into()];
        assert_eq!((peer.role, peer.require_roles), (Some(role), true));
    }
    let file = parse(&text(65001, "require roles off;")).unwrap();
    let peer = &file.peers[&"x".into()];
    assert_eq!((peer.role, peer.require_roles), (None, false));
    for (remote, options, why) in [
        (64512, "local role peer;", "this peer is internal"),
        (65001, "require roles;", "\"local role\" beside it"),
        (65001, "local role king;", "provider"),
    ] {
        let error = parse(&text(remote, options)).unwrap_err();
        assert_eq!(error.line, 3, "{error}");
        assert!(error.expected.contains(why), "{error}");
    }
}

#[test]
fn a_route_server_has_external_clients() {
    let text = |remote: u32, options: &str| {
        format!(
            "router id 10.0.0.1;\nprotocol bgp x {{ local as 64512; neighbor 10.0.0.2 as {remote};\n\
             {options}\nipv4 {{ import all; export all; }}; }}\n"
        )
    };
    let client = |options: &str| {
        let file = parse(&text(65001, options)).unwrap();
        file.peers[&"x".into()].rs_client
    };
    assert!(client("rs client;"));
    assert!(!client("rs client; rs client off;"));
    assert!(!client(""));
    let error = parse(&text(64512, "rs client;")).unwrap_err();
    assert_eq!((error.line, error.column), (3, 1), "{error}");
    assert!(error.expected.contains("this peer is internal"), "{error}");
    parse(&text(64512, "rs client off;")).unwrap();
}

#[test]
fn a_range_stands_for_all_its_addresses() {
    let text = "router id 10.0.0.1; protocol bgp x { local as 64512; neighbor range 10.0.0.0/8 as 64512; ipv4; }";
    let peer = parse(text).unwrap().peers.remove(&"x".into()).unwrap();
    assert_eq!(peer.range.unwrap().to_string(), "10.0.0.0/8");
    let error = parse(&text.replace("10.0.0.0/8", "10.0.0.1/8")).unwrap_err();
    assert!(error.expected.contains("prefix"), "{error}");
}

#[test]
fn rfc8212_a_required_policy_replaces_the_demand_for_lines() {
    let external = |family: &str| {
        parse(&format!(
            "router id 10.0.0.1; filter f {{ accept; }}\n\
             protocol bgp x {{ local as 1; neighbor 10.0.0.2 as 2;\n#: policy required\nipv4 {{ {family} }}; }}"
        ))
    };
    for silent in ["", "import none; export none;", "export filter f;"] {
        let peer = external(silent).unwrap().peers.remove(&"x".into()).unwrap();
        assert!(peer.require_policy && peer.import.is_empty(), "{silent}");
    }
    assert!(
        external("import all; export filter f;").is_err(),
        "\"all\" is no policy"
    );
    let peer = with_options("", "import none;").unwrap();
    assert_eq!(peer.import, ["none"], "nothing passes");
}

#[test]
fn static_routes_lead_where_they_say() {
    let text = "router id 10.0.0.1;
define GATE = 10.0.0.254;
protocol static one {
  ipv4;
  route 10.1.0.0/16 via GATE;
  route 10.2.0.0/16 via 10.0.0.253 via GATE { bgp_med = 7; };
  route 10.3.0.0/16 recursive 192.0.2.1;
  route 10.6.0.0/16 via 10.0.0.253 weight 256 via 10.0.0.252 weight 1 via GATE weight 3;
  route 10.7.0.0/16 via GATE weight 5;
}
protocol static two { ipv4; route 10.4.0.0/16 reject; route 10.5.0.0/16 prohibit; }
protocol bgp a { local as 64512; neighbor 10.0.0.2 as 64512; ipv4; }
";
    let config = parse(text).unwrap();
    let way = |route: &str| config.originate[&route.parse().unwrap()].way.clone();
    let gate = |n: u8| StaticGateway::from(IpAddr::from([10, 0, 0, n]));
    assert_eq!(way("10.1.0.0/16"), StaticWay::Via(vec![gate(254)]));
    assert_eq!(
        way("10.2.0.0/16"),
        StaticWay::Via(vec![gate(253), gate(254)])
    );
    assert_eq!(
        way("10.3.0.0/16"),
        StaticWay::Recursive([192, 0, 2, 1].into())
    );
    assert_eq!(way("10.4.0.0/16"), StaticWay::Unreachable);
    assert_eq!(way("10.5.0.0/16"), StaticWay::Prohibit);
    let weighted = |n, extra_weight| StaticGateway {
        extra_weight,
        ..gate(n)
    };
    assert_eq!(
        way("10.6.0.0/16"),
        StaticWay::Via(vec![weighted(253, 255), gate(252), weighted(254, 2)])
    );
    assert_eq!(way("10.7.0.0/16"), StaticWay::Via(vec![gate(254)]));
    let notes = crate::parse_file(text).unwrap().notes;
    let noted = |note: &String| note.contains("\"weight\" has no effect");
    assert_eq!(notes.iter().filter(|note| noted(note)).count(), 1);
    let again = render(&config, &Options::default()).unwrap();
    assert!(
        again.contains("  route 10.2.0.0/16 via 10.0.0.253 via 10.0.0.254 {\n"),
        "{again}"
    );
    let weights =
        "  route 10.6.0.0/16 via 10.0.0.253 weight 256 via 10.0.0.252 via 10.0.0.254 weight 3;\n";
    assert!(again.contains(weights), "{again}");
    // One protocol has them all.
    let mut plain = config;
    for route in plain.originate.values_mut() {
        route.protocol = None;
    }
    assert_eq!(parse(&again).unwrap(), plain);
}

#[test]
fn a_link_local_address_has_its_link() {
    let text = "
router id 10.0.0.1;
protocol static {
  ipv6;
  route fd01::/16 via fe80::1%eth0 via fe80::1%'eth0.7' weight 2 via fe80::2 dev \"wg0\";
}
protocol bgp a { local as 64512; neighbor fe80::2%eth0 port 1179 as 65001; ipv6 { import all; export all; }; }
protocol bgp b { local as 64512; neighbor fe80::2 as 65002; interface \"eth0.7\"; ipv6 { import all; export all; }; }
protocol bgp c { local as 64512; neighbor fe80::3%wg0 internal; direct; ipv6; }
protocol bgp d { local as 64512; neighbor fd00::3 as 65003; interface \"wg0\"; ipv6 { import all; export all; }; }
";
    let config = parse(text).unwrap();
    let StaticWay::Via(gateways) = &config.originate[&"fd01::/16".parse().unwrap()].way else {
        panic!("a way");
    };
    let gateways: Vec<String> = gateways.iter().map(ToString::to_string).collect();
    assert_eq!(gateways, ["fe80::1%eth0", "fe80::1%eth0.7", "fe80::2%wg0"]);
    let link = |name: &str| config.peers[&name.into()].interface.clone();
    let links = ["a", "b", "c", "d"].map(link);
    let expected = [Some("eth0"), Some("eth0.7"), Some("wg0"), None];
    assert_eq!(links, expected.map(|name| name.map(Into::into)));
    let all: Vec<String> = config.links().iter().map(ToString::to_string).collect();
    assert_eq!(all, ["eth0", "eth0.7", "wg0"]);
    let notes = crate::parse_file(text).unwrap().notes;
    let noted = |note: &String| note.contains("\"interface\" says nothing");
    assert_eq!(notes.iter().filter(|note| noted(note)).count(), 1);
    let again = render(&config, &Options::default()).unwrap();
    let lines = "neighbor fe80::2 port 179 as 65002;\n  interface \"eth0.7\";\n";
    assert!(again.contains(lines), "{again}");
    assert_eq!(parse(&again).unwrap(), config);
}
