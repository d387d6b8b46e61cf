//! What files of BIRD's users have in common: constants everywhere, options that say what holds
//! anyway, peers without names, lines that are shared out between templates and peers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use caracal_bgp::{Asn, NextHopMode, NextHopModes, Origin, OwnProtocol, PeerConfig, StaticWay};
use caracal_model::Family;

use crate::{File, parse_file};

fn read(text: &str) -> File {
    match parse_file(text) {
        Ok(file) => file,
        Err(error) => panic!("{}", error.report("f")),
    }
}

fn peer<'f>(file: &'f File, name: &str) -> &'f PeerConfig {
    &file.speaker.peers[&name.into()]
}

#[test]
fn a_constant_stands_wherever_a_value_does() {
    let file = read(
        "define OWNAS = 4242420000;
         define OWNIP = 172.22.68.1;
         define OWNNET = 172.22.68.0/28;
         define SECRET = \"hush\";
         define HOLD = 30;
         define MANY = 1000;
         define COMM = (4242, 7);
         router id OWNIP;
         protocol static {
           route OWNNET reject { bgp_community.add(COMM); bgp_path.prepend(OWNAS); bgp_med = HOLD + 1; };
           ipv4;
         };
         protocol bgp a {
           local as OWNAS;
           neighbor range OWNNET port (170 + 9) internal;
           password SECRET;
           hold time HOLD;
           rr client;
           rr cluster id OWNIP;
           ipv4 { import limit MANY action block; };
         };",
    );
    assert_eq!(file.speaker.router_id.to_string(), "172.22.68.1");
    let (prefix, route) = file.speaker.originate.iter().next().unwrap();
    assert_eq!(prefix.to_string(), "172.22.68.0/28");
    assert_eq!(route.way, StaticWay::Unreachable);
    assert_eq!(route.as_path, [Asn(4_242_420_000)]);
    assert_eq!(route.med, Some(31));
    assert_eq!(route.communities, ["4242:7".parse().unwrap()]);
    let a = peer(&file, "a");
    assert_eq!(a.range.unwrap().to_string(), "172.22.68.0/28");
    assert_eq!((a.port, a.remote_as), (179, Asn(4_242_420_000)));
    assert_eq!(a.password.as_ref().unwrap().0, "hush");
    assert_eq!(a.hold_time, Duration::from_secs(30));
    assert_eq!(a.client_of.unwrap().to_string(), "172.22.68.1");
    assert_eq!(a.import_limits.ipv4.unwrap().max, 1000);
}

#[test]
fn peers_without_names_are_numbered_and_lines_are_shared_out() {
    let file = read(
        "router id 1.1.1.1;
         template bgp t { local as 65000; neighbor as 65001; ipv4 { import all; export none; }; }
         protocol bgp from t { neighbor 10.0.0.2; }
         protocol bgp { local as 65000; neighbor 10.0.0.3 as 65000; ipv4; };
         protocol bgp named from t { neighbor 10.0.0.4 port 1790; neighbor as 65009; };",
    );
    let found: Vec<_> = file.speaker.peers.iter().collect();
    let shown = |(name, peer): &(&caracal_bgp::PeerName, &PeerConfig)| {
        format!("{name} {}:{} {}", peer.address, peer.port, peer.remote_as)
    };
    assert_eq!(
        found.iter().map(shown).collect::<Vec<_>>(),
        [
            "bgp1 10.0.0.2:179 65001",
            "bgp2 10.0.0.3:179 65000",
            "named 10.0.0.4:1790 65009"
        ]
    );
}

#[test]
fn options_that_say_what_holds_anyway_are_read() {
    let file = read(
        "router id 1.1.1.1;
         graceful restart wait 15; hostname \"r\"; mrtdump protocols all;
         protocol device { scan time 10; };
         protocol bgp a {
           local as 65000; neighbor fd00::2 as 65001;
           path metric 1; igp metric on; med metric no; deterministic med on; prefer older off;
           default bgp_local_pref 100; default bgp_med 0; interpret communities on;
           enable route refresh on; enable as4 yes; enable extended messages on; capabilities on;
           advertise hostname off; disable after error off; disable after cease no;
           check link off; enforce first as on; free bind off; debug all; mrtdump all;
           startup hold time 240; error forget time 300; connect delay time 5;
           graceful restart aware; long lived graceful restart aware;
           ipv4 { import all; export all; next hop self; extended next hop on; preference 100; };
           ipv6 { import all; export all; graceful restart on; missing lladdr ignore; debug all; };
         };",
    );
    let a = peer(&file, "a");
    assert!(a.enforce_first_as && a.extended_next_hop);
    assert_eq!((a.graceful_restart, a.long_lived), (None, None));
    let modes = NextHopModes {
        ipv4: NextHopMode::Own,
        ipv6: NextHopMode::Auto,
    };
    assert_eq!(a.next_hop, modes);
    let missing = [
        "graceful restart wait",
        "hostname",
        "mrtdump",
        "startup hold time",
        "error forget time",
        "missing lladdr",
    ]
    .into_iter()
    .find(|words| !file.notes.iter().any(|note| note.contains(*words)));
    assert_eq!(missing, None, "{:#?}", file.notes);
    assert!(!file.notes.iter().any(|note| note.contains("check link")));
}

#[test]
fn a_static_protocols_import_says_which_of_its_routes_there_are() {
    let file = read(
        "router id 1.1.1.1;
         filter only { if net.len > 20 then reject; bgp_origin = ORIGIN_EGP; accept; }
         protocol static own4 {
           description \"ours\"; debug all;
           route 10.1.0.0/16 blackhole;
           route 10.2.0.0/24 blackhole;
           route 10.3.0.0/16 via 10.0.0.9 { bgp_large_community.add((1, 2, 3)); };
           ipv4 { table master4; import filter only; export none; };
         }
         protocol static { ipv6 { import none; }; route fd01::/16 reject; }
         protocol static { ipv4 { import all; export all; }; route 10.4.0.0/16 reject { if true then bgp_med = 5; }; }
         protocol bgp a { local as 65000; neighbor 10.0.0.2 as 65000; ipv4; }",
    );
    let routes = &file.speaker.originate;
    let shown: Vec<_> = routes
        .iter()
        .map(|(prefix, route)| format!("{prefix} {:?} {:?}", route.origin, route.med))
        .collect();
    assert_eq!(
        shown,
        [
            "10.1.0.0/16 Egp None",
            "10.3.0.0/16 Egp None",
            "10.4.0.0/16 Igp Some(5)"
        ]
    );
    let gateway: IpAddr = [10, 0, 0, 9].into();
    let through = &routes[&"10.3.0.0/16".parse().unwrap()];
    assert_eq!(through.way, StaticWay::Via(vec![gateway.into()]));
    assert_eq!(through.communities.len(), 1);
    assert_eq!(through.origin, Origin::Egp);
}

#[test]
fn bfd_has_birds_times_and_those_of_its_protocol() {
    let times = |protocol: &str, options: &str| {
        let file = read(&format!(
            "router id 1.1.1.1; {protocol}
             protocol bgp a {{ local as 1; neighbor 10.0.0.2 as 2; ipv4 {{ import all; export all; }}; {options} }}"
        ));
        let bfd = peer(&file, "a").bfd.unwrap();
        (bfd.interval.as_millis(), bfd.multiplier, bfd.graceful)
    };
    let both = "protocol bfd b { interface \"*\" { interval 50 ms; multiplier 4; }; \
                multihop { min rx interval 1 s; min tx interval 1 s; idle tx interval 1 s; }; accept direct; };";
    for (protocol, options, expected) in [
        ("protocol bfd {}", "bfd on;", (100, 5, false)),
        (both, "bfd;", (50, 4, false)),
        (both, "bfd graceful;", (50, 4, true)),
        (both, "bfd; multihop;", (1000, 5, false)),
        (both, "bfd { multiplier 9; };", (50, 9, false)),
    ] {
        assert_eq!(times(protocol, options), expected, "{protocol} {options}");
    }
}

#[test]
fn the_address_that_packets_are_sent_from_is_for_the_kernels_table_alone() {
    let file = read(
        "define OWNIP = 172.22.68.1;
         router id OWNIP;
         protocol kernel {
           disabled off; description \"k\";
           ipv4 {
             table master4;
             export filter { if source = RTS_STATIC then reject; krt_prefsrc = OWNIP; accept; };
           };
         }
         protocol kernel { ipv6 { export all; }; disabled; }
         protocol bgp a { local as 65000; neighbor 10.0.0.2 as 65000; ipv4; }",
    );
    assert_eq!(file.kernel.keys().collect::<Vec<_>>(), [&Family::Ipv4]);
    let export = file.kernel[&Family::Ipv4].export.as_ref();
    assert!(export.is_some_and(caracal_bgp::Filter::is_for_the_kernel));
}

#[test]
fn routes_of_ours_have_the_name_and_the_preference_of_their_protocol() {
    let file = read(
        "router id 1.1.1.1;
         define GATE = 10.0.0.9;
         protocol static { ipv4; route 10.1.0.0/16 blackhole; }
         protocol static one { ipv4 { preference 150; }; route 10.2.0.0/16 via GATE; }
         protocol static { ipv6; route fd02::/64 unreachable; }
         protocol static three { ipv4; route 10.3.0.0/16 prohibit { bgp_next_hop = GATE; }; }
         protocol kernel { learn; ipv4; }
         protocol kernel { learn; ipv6; }
         protocol direct { ipv4; }
         protocol direct uplinks { ipv4; ipv6; }
         protocol bgp { local as 1; neighbor 10.0.0.2 as 1;
           ipv4 { export filter { if proto = \"one\" && gw = GATE then bgp_next_hop = from; unset(bgp_aggregator); accept; }; }; }",
    );
    let of = |protocol: &Option<Arc<OwnProtocol>>| {
        let protocol = protocol.as_ref();
        protocol.map(|own| (own.name.clone(), own.preference))
    };
    let named = |name: &str, preference| Some((name.to_owned(), preference));
    let routes = file.speaker.originate.values();
    let routes: Vec<_> = routes.map(|route| of(&route.protocol)).collect();
    let expected = [
        None,
        named("one", 150),
        named("three", 200),
        named("static2", 200),
    ];
    assert_eq!(routes, expected);
    let told = file.speaker.originate.values().nth(2).unwrap().next_hop;
    assert_eq!(told, Some([10, 0, 0, 9].into()));
    let learn = |family| of(&file.kernel[&family].learn.as_ref().unwrap().protocol);
    assert_eq!(learn(Family::Ipv4), None);
    assert_eq!(learn(Family::Ipv6), named("kernel2", 10));
    let direct: Vec<_> = file
        .direct
        .iter()
        .map(|direct| of(&direct.protocol))
        .collect();
    assert_eq!(direct, [None, named("uplinks", 240)]);
    // What is rendered has names that nobody gave.
    let rendered = read(
        "router id 1.1.1.1; define caracal_local_as = 1;
         protocol static some { ipv4; route 10.1.0.0/16 blackhole; }",
    );
    let route = rendered.speaker.originate.values().next().unwrap();
    assert_eq!(route.protocol, None);
}

#[test]
fn a_peer_is_preferred_and_disabled_by_birds_words() {
    let file = read(
        "router id 1.1.1.1;
         define HIGH = 120;
         template bgp t { local as 1; disable after error; disable after cease; ipv4 { preference HIGH; }; }
         protocol bgp a from t { neighbor 10.0.0.2 as 1; }
         protocol bgp b from t {
           neighbor 10.0.0.3 as 1; disable after error off;
           disable after cease { administrative shutdown, out of resources };
           ipv4 { preference 90; };
         }
         protocol bgp c { local as 1; neighbor 10.0.0.4 as 1; disable after cease 0; ipv4; }",
    );
    let said = ["a", "b", "c"].map(|name| {
        let peer = peer(&file, name);
        let after = peer.disable_after;
        (peer.preference, after.error, after.cease_words())
    });
    let some = |words: &str| Some(words.to_owned());
    assert_eq!(
        said,
        [
            (120, true, some("on")),
            (
                90,
                false,
                some("{ administrative shutdown, out of resources }")
            ),
            (100, false, None),
        ]
    );
}
