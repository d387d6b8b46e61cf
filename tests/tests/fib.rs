//! Where the speaker and the kernel meet: `caracal speaker` with a kernel table, in namespaces,
//! against real BIRD 2.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "fib/direct.rs"]
mod direct;
#[path = "fib/families.rs"]
mod families;
#[path = "fib/flood.rs"]
mod flood;
#[path = "fib/link.rs"]
mod link;
#[path = "fib/near.rs"]
mod near;
#[path = "fib/origin.rs"]
mod origin;
#[path = "fib/over_nodes.rs"]
mod over_nodes;
#[path = "fib/policy.rs"]
mod policy;
#[path = "fib/sender.rs"]
mod sender;
#[path = "fib/site.rs"]
mod site;
#[path = "fib/statics.rs"]
mod statics;

use std::process::Command;

use caracal_lab::{call_program, program_command, spawn_in_netns, wait_until};
use caracal_tests::{SECOND, await_settled, ip, possible, up_text};
use site::Site;

/// Our side: these external peers, whatever the kernel block says.
fn speaker(kernel: &str, peers: &[&str]) -> String {
    let peer = |name: &&str| {
        let n = if *name == "a" { 1 } else { 2 };
        format!("protocol bgp {name} from tor {{ neighbor 10.{n}.0.2 as 6500{n}; }}\n")
    };
    let peers: String = peers.iter().map(peer).collect();
    format!(
        "router id 10.0.0.1;
         {kernel}
         template bgp tor {{
           local as 64512; hold time 240; graceful restart on;
           ipv4 {{ import all; export all; extended next hop on; }};
           ipv6 {{ import all; export all; }};
         }}
         {peers}"
    )
}

/// BIRD's side: routes, and the session with us.
fn bird(asn: u32, ours: &str, routes: &str, export: &str) -> String {
    format!(
        "protocol static own4 {{ ipv4; {routes} }}
         protocol bgp caracal {{
           local as {asn}; neighbor {ours} as 64512;
           graceful restart; hold time 240;
           connect delay time 1; connect retry time 1; error wait time 1, 2;
           ipv4 {{ import all; export {export}; }};
         }}"
    )
}

/// `count` routes of /24 below 100.64.0.0/10.
fn many(count: u32) -> String {
    let route = |n: u32| format!("route 100.64.{n}.0/24 blackhole;");
    (0..count).map(route).collect::<Vec<_>>().join("\n")
}

const ALL: &str = "all";

/// Routes of ours in a table.
fn ours(site: &Site, table: &str) -> Vec<String> {
    let mut routes = site.routes("us", &["table", table]);
    routes.retain(|line| line.contains("proto 81"));
    routes
}

#[test]
fn a_speaker_fills_a_table_and_never_touches_what_others_wrote() {
    let scenario = "a_speaker_fills_a_table_and_never_touches_what_others_wrote";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    // A route of another program in the place of one of ours, one of BIRD's, one of a node's, one
    // of zebra's.
    let foreign = [
        "route add 100.64.7.0/24 via 10.2.0.2 metric 32 proto static",
        "route add 100.64.8.0/24 via 10.2.0.2 metric 40 proto bird",
        "route add 203.0.113.0/24 via 10.2.0.2 metric 32 proto bird",
        "route add 203.0.113.0/24 via 10.2.0.2 metric 33 proto 80",
        "route add 203.0.113.0/24 via 10.2.0.2 metric 34 proto bgp",
    ];
    site.ip("us", &foreign);
    let others = |site: &Site| {
        let mut routes = site.routes("us", &["table", "main"]);
        routes.retain(|line| !line.contains("proto 81"));
        routes
    };
    let before = others(&site);
    site.write(&speaker(
        "protocol kernel { ipv4 { export all; }; }",
        &["a"],
    ));
    site.start_us();
    let session = |count| bird(65001, "10.1.0.1", &many(count), ALL);
    site.start_bird("a", &session(100));
    site.until("all routes but the one whose place is taken", &99, || {
        ours(&site, "main").len()
    });
    let one = "100.64.9.0/24 via 10.1.0.2 dev eth-a proto 81 metric 32 onlink";
    assert!(
        ours(&site, "main").iter().any(|line| line.trim() == one),
        "{:?}",
        ours(&site, "main")
    );
    site.until_synced();

    // It dies, and the routes stay; what is withdrawn meanwhile goes once the peer has told
    // everything.
    site.end("us", "-KILL");
    assert_eq!(ours(&site, "main").len(), 99);
    site.reconfigure_bird("a", &session(60));
    site.start_us();
    site.until("what is announced no more is swept", &59, || {
        ours(&site, "main").len()
    });

    // A restart is expected: nothing goes.
    site.end("us", "-TERM");
    assert_eq!(ours(&site, "main").len(), 59);
    site.start_us();
    site.until("the session", &vec!["a".to_owned()], || site.sessions());
    site.until_synced();
    assert_eq!(ours(&site, "main").len(), 59);

    // Somebody takes a route of ours out: it comes back.
    site.ip("us", &["route del 100.64.9.0/24 proto 81 metric 32"]);
    site.until("the route is back", &59, || ours(&site, "main").len());

    // The table moves; the old one is left.
    let moved = "protocol kernel { ipv4 { export all; }; kernel table 1000; metric 5; persist; }";
    site.write(&speaker(moved, &["a"]));
    let change = site.ask(&["speaker", "reload"]).unwrap();
    assert_eq!(change["kernel"], true, "{change}");
    site.until(
        "the new table is full and the old one empty",
        &(60, 0),
        || (ours(&site, "1000").len(), ours(&site, "main").len()),
    );

    // It leaves for good: what persists stays, and what does not goes.
    site.end("us", "-INT");
    assert_eq!(ours(&site, "1000").len(), 60);
    site.write(&speaker(
        "protocol kernel { ipv4 { export all; }; kernel table 1000; metric 5; }",
        &["a"],
    ));
    site.start_us();
    site.until("the session", &vec!["a".to_owned()], || site.sessions());
    site.until_synced();
    site.end("us", "-INT");
    assert_eq!(ours(&site, "1000"), [""; 0]);
    assert_eq!(others(&site), before);
}

#[test]
fn rfc4271_9_1_2_1_an_ecmp_route_loses_one_path_and_is_replaced() {
    let scenario = "rfc4271_9_1_2_1_an_ecmp_route_loses_one_path_and_is_replaced";
    if !possible(scenario, &["bird", "birdc", "ping"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker(
        "protocol kernel { ipv4 { export all; }; merge paths on limit 2; }",
        &["a", "b"],
    ));
    site.start_us();
    let anycast = "route 198.51.100.0/24 blackhole;";
    site.start_bird("a", &bird(65001, "10.1.0.1", anycast, ALL));
    site.start_bird("b", &bird(65002, "10.2.0.1", anycast, ALL));
    let mut monitor = program_command("ip").unwrap();
    monitor.args(["-4", "-o", "monitor", "route"]);
    let route = |site: &Site| {
        let mut lines = ours(site, "main");
        lines.retain(|line| line.starts_with("198.51.100.0/24"));
        let hops = lines.concat();
        ["10.1.0.2", "10.2.0.2"].map(|via| hops.contains(&format!("via {via} ")))
    };
    site.until("both paths in one route", &[true, true], || route(&site));
    assert_eq!(ours(&site, "main")[0].matches("nexthop").count(), 2);
    site.until_synced();
    site.start("monitor", "us", &mut monitor);

    // The cable to `a` is pulled at the other end. Its session stays, for its hold time is long.
    site.ip("a", &["link set eth0 down"]);
    site.until("one path", &[false, true], || route(&site));
    let lost = vec![
        ("best".to_owned(), "eth-b".to_owned()),
        ("lost".to_owned(), "eth-a".to_owned()),
    ];
    site.until("the reason", &lost, || site.explained("198.51.100.0/24"));
    assert_eq!(site.sessions(), ["a", "b"]);
    let mut ping = program_command("ping").unwrap();
    ping.args(["-c", "3", "-i", "0.2", "-W", "5", "198.51.100.1"]);
    call_program(Some(&site.netns("us")), &mut ping, b"", 30 * SECOND).unwrap();

    // It is put in again.
    site.ip("a", &["link set eth0 up"]);
    site.until("both paths", &[true, true], || route(&site));

    // Both are pulled: nothing would be won by a route that is gone when a cable comes back.
    site.ip("a", &["link set eth0 down"]);
    site.until("one path", &[false, true], || route(&site));
    site.ip("b", &["link set eth0 down"]);
    site.until("the last route stays", &[true, true], || route(&site));
    site.ip("b", &["link set eth0 up"]);
    site.until("the path that is back", &[false, true], || route(&site));

    // The kernel was never without the route.
    site.end("monitor", "-TERM");
    let output = site.log_of("monitor");
    assert!(output.contains("198.51.100.0/24"), "{output}");
    let deleted = |line: &&str| line.starts_with("Deleted 198.51.100.0/24");
    assert_eq!(output.lines().find(deleted), None);
}

#[test]
fn rfc4271_9_1_2_1_a_next_hop_behind_a_router_is_tracked() {
    let scenario = "rfc4271_9_1_2_1_a_next_hop_behind_a_router_is_tracked";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.ip(
        "us",
        &["route add 192.0.2.0/24 via 10.1.0.2 metric 7 proto static"],
    );
    site.write(&speaker(
        "protocol kernel { ipv4 { export all; }; }",
        &["a"],
    ));
    site.start_us();
    // The next hop lies in a range that the same peer announces: that must not be its own ground.
    let routes = "route 203.0.113.0/24 blackhole; route 192.0.2.0/25 blackhole;";
    let export = "filter { bgp_next_hop = 192.0.2.9; accept; }";
    let text = bird(65001, "10.1.0.1", routes, export)
        .replace("export filter", "next hop keep; export filter");
    site.start_bird("a", &text);
    let installed = |site: &Site| {
        let mut all: Vec<String> = ours(site, "main");
        all.sort();
        all.iter()
            .map(|line| line.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let both = vec![
        "192.0.2.0/25 via 10.1.0.2 dev eth-a proto 81 metric 32 onlink".to_owned(),
        "203.0.113.0/24 via 10.1.0.2 dev eth-a proto 81 metric 32 onlink".to_owned(),
    ];
    site.until("both routes over the static one", &both, || {
        installed(&site)
    });
    let answer = site.ask(&["bgp", "explain", "203.0.113.0/24"]).unwrap();
    let way = &answer["paths"][0]["way"];
    assert_eq!(way["metric"], 7, "{answer}");
    assert_eq!(way["gateway"], "10.1.0.2", "{answer}");
    site.until_synced();

    site.ip("us", &["route del 192.0.2.0/24 via 10.1.0.2 metric 7"]);
    site.until("no route without its ground", &vec![], || installed(&site));
    let gone = vec![("unreachable".to_owned(), String::new())];
    site.until("the reason", &gone, || site.explained("203.0.113.0/24"));
    assert_eq!(site.sessions(), ["a"]);

    // Another way, over another interface.
    site.ip(
        "us",
        &["route add 192.0.2.0/24 via 10.2.0.2 metric 9 proto static"],
    );
    let moved: Vec<String> = both
        .iter()
        .map(|line| line.replace("10.1.0.2 dev eth-a", "10.2.0.2 dev eth-b"))
        .collect();
    site.until("both over the other interface", &moved, || installed(&site));
    site.ip("us", &["link set eth-b down"]);
    site.until("no route over an interface that is down", &vec![], || {
        installed(&site)
    });
}

#[test]
fn rfc4271_9_1_2_1_a_next_hop_behind_a_learned_route_is_resolved_through_it() {
    let scenario = "rfc4271_9_1_2_1_a_next_hop_behind_a_learned_route_is_resolved_through_it";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker(
        "protocol kernel { ipv4 { export all; }; }",
        &["a", "b"],
    ));
    site.start_us();
    // The route to the next hop comes from one peer, the route behind it from the other.
    let hop = "filter { bgp_next_hop = 192.0.2.9; accept; }";
    let text = bird(65002, "10.2.0.1", "route 203.0.113.0/24 blackhole;", hop)
        .replace("export filter", "next hop keep; export filter");
    site.start_bird("b", &text);
    let gone = vec![("unreachable".to_owned(), String::new())];
    site.until("nothing leads to the next hop", &gone, || {
        site.explained("203.0.113.0/24")
    });
    let text = bird(65001, "10.1.0.1", "route 192.0.2.0/24 blackhole;", "all");
    site.start_bird("a", &text);
    let both = vec![
        "192.0.2.0/24 via 10.1.0.2 dev eth-a proto 81 metric 32".to_owned(),
        "203.0.113.0/24 via 10.1.0.2 dev eth-a proto 81 metric 32".to_owned(),
    ];
    let installed = |site: &Site| {
        let all = ours(site, "main").into_iter();
        let mut all: Vec<String> = all
            .map(|line| line.trim().trim_end_matches(" onlink").to_owned())
            .collect();
        all.sort();
        all
    };
    site.until("both over the first peer", &both, || installed(&site));
    let answer = site.ask(&["bgp", "explain", "203.0.113.0/24"]).unwrap();
    let way = &answer["paths"][0]["way"];
    assert_eq!(way["through"], "192.0.2.0/24", "{answer}");
    site.until_synced();

    site.ip("us", &["link set eth-a down"]);
    site.until("neither without the first peer's link", &vec![], || {
        installed(&site)
    });
    site.until("the reason", &gone, || site.explained("203.0.113.0/24"));
}

#[test]
fn rfc8950_an_ipv4_route_with_an_ipv6_next_hop_is_in_the_kernel_and_forwards() {
    let scenario = "rfc8950_an_ipv4_route_with_an_ipv6_next_hop_is_in_the_kernel_and_forwards";
    if !possible(scenario, &["bird", "birdc", "ping"]) {
        return;
    }
    let mut site = Site::new();
    let text = speaker(
        "protocol kernel { ipv4 { export all; }; merge paths on; }",
        &["a", "b"],
    )
    .replace("neighbor 10.1.0.2", "neighbor 2001:db8:1::2")
    .replace("neighbor 10.2.0.2", "neighbor 2001:db8:2::2");
    site.write(&text);
    site.start_us();
    let extended = |asn: u32, n: u32| {
        let routes = "route 198.51.100.0/24 blackhole;";
        bird(asn, &format!("2001:db8:{n}::1"), routes, ALL)
            .replace("import all;", "extended next hop on; import all;")
    };
    site.start_bird("a", &extended(65001, 1));
    let one = vec![
        "198.51.100.0/24 via inet6 2001:db8:1::2 dev eth-a proto 81 metric 32 onlink".to_owned(),
    ];
    site.until("one path", &one, || {
        let lines = ours(&site, "main");
        lines
            .iter()
            .map(|line| line.trim().to_owned())
            .collect::<Vec<_>>()
    });
    let mut ping = program_command("ping").unwrap();
    ping.args([
        "-c",
        "3",
        "-i",
        "0.2",
        "-W",
        "5",
        "-I",
        "10.1.0.1",
        "198.51.100.1",
    ]);
    call_program(Some(&site.netns("us")), &mut ping, b"", 30 * SECOND).unwrap();
    site.start_bird("b", &extended(65002, 2));
    site.until("two paths in one route", &2, || {
        let line = ours(&site, "main").concat();
        line.matches("nexthop via inet6 2001:db8:").count()
    });
    site.until_synced();
    // The kernel has the routes as written: nothing is written again.
    let looks = |site: &Site| site.ask(&["status"]).unwrap()["problems"].clone();
    assert_eq!(looks(&site), serde_json::json!([]));
    site.end("us", "-INT");
    assert_eq!(ours(&site, "main"), [""; 0]);
}

#[test]
fn a_file_that_asks_too_much_of_the_kernel_is_refused_with_its_place() {
    let file = std::env::temp_dir().join(format!("caracal-fib-{}.conf", std::process::id()));
    std::fs::write(
        &file,
        speaker(
            "protocol kernel { ipv4 { export all; }; learn most; }",
            &["a"],
        ),
    )
    .unwrap();
    let mut command = Command::new(caracal_tests::binary());
    let output = command.args(["speaker", "--check"]).arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let Ok(output) = output else {
        println!("skipped: the binary is not built; cargo build -p caracal");
        return;
    };
    let report = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{report}");
    assert!(report.contains("found \"most\""), "{report}");
}

#[test]
fn rfc4271_6_3_routes_to_our_own_networks_are_neither_written_nor_passed_on() {
    let scenario = "rfc4271_6_3_routes_to_our_own_networks_are_neither_written_nor_passed_on";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    let routes = "route 10.2.0.0/24 blackhole; route 10.2.0.9/32 blackhole; route 10.2.0.1/32 blackhole;
           route 203.0.113.0/24 blackhole; route 100.64.1.0/24 blackhole; route 0.0.0.0/0 blackhole;";
    let a = bird(65001, "10.1.0.1", routes, ALL)
        + "\nprotocol static own6 { ipv6; route 2001:db8:2::/64 blackhole; route 2001:db8:9::/64 blackhole; }
           protocol bgp caracal6 {
             local as 65001; neighbor 2001:db8:1::1 as 64512; connect delay time 1; connect retry time 1;
             error wait time 1, 2; ipv6 { import all; export all; };
           }";
    let six = "protocol bgp a6 from tor { neighbor 2001:db8:1::2 as 65001; }";
    let both = speaker(
        "protocol kernel { ipv4 { export all; }; } protocol kernel six { ipv6 { export all; }; }",
        &["a", "b"],
    ) + six;
    site.write(&both);
    site.start_us();
    site.start_bird("a", &a);
    site.start_bird("b", &bird(65002, "10.2.0.1", "", ALL));
    let destinations = |site: &Site| {
        let mut lines = ours(site, "main");
        let six = site.show("us", &["-6", "-o", "route", "show", "proto", "81"]);
        lines.extend(six);
        let first = |line: &String| line.split_whitespace().next().map(str::to_owned);
        lines.iter().filter_map(first).collect::<Vec<_>>()
    };
    let legal = [
        "default",
        "100.64.1.0/24",
        "203.0.113.0/24",
        "2001:db8:9::/64",
    ];
    let legal: Vec<String> = legal.iter().map(ToString::to_string).collect();
    site.until("what is legal", &legal, || destinations(&site));
    let routes_in_bird = |site: &Site| {
        let shown = site.birdc("b", &["show", "route", "protocol", "caracal"]);
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let mut words: Vec<String> = shown.lines().filter_map(first).collect();
        words.retain(|word| word.contains('/'));
        words.sort();
        words
    };
    let passed_on = ["0.0.0.0/0", "100.64.1.0/24", "203.0.113.0/24"];
    let passed_on: Vec<String> = passed_on.iter().map(ToString::to_string).collect();
    site.until("what is passed on", &passed_on, || routes_in_bird(&site));
    // The session is up, and both the refusal and its reason can be seen.
    let received = site.ask(&["bgp", "received", "a"]).unwrap().to_string();
    assert!(received.contains("never-routed"), "{received}");
    assert!(received.contains("10.2.0.0/24, a subnet"), "{received}");

    // A network becomes our own while its route is in use, and ceases to be.
    site.ip("us", &["addr add 203.0.113.1/24 dev eth-b"]);
    let without = |all: &[String]| -> Vec<String> {
        let kept = all.iter().filter(|p| *p != "203.0.113.0/24");
        kept.cloned().collect()
    };
    site.until("our own network is let go", &without(&legal), || {
        destinations(&site)
    });
    site.until("and withdrawn", &without(&passed_on), || {
        routes_in_bird(&site)
    });
    site.ip("us", &["addr del 203.0.113.1/24 dev eth-b"]);
    site.until("it is back", &legal, || destinations(&site));
}

/// One node of a cluster and two routers of the rack, of two other AS, that announce the same
/// prefix; one of them also a prefix whose next hop is behind a router.
const RACK: &str = r#"
name: rack
description: one Caracal node and two top-of-rack routers that announce the same
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, pods: 1}
  - name: tor1
    segment: lan
    address: 10.0.0.31
    kind: bird2
    asn: 65001
    config: |
      router id 10.0.0.31;
      protocol device {}
      protocol static { ipv4; route 198.51.100.0/24 blackhole; route 203.0.113.0/24 blackhole; }
      protocol bgp node1 {
        local 10.0.0.31 as 65001;
        neighbor 10.0.0.11 as 64512;
        connect retry time 1; connect delay time 1; error wait time 1, 2;
        ipv4 {
          import all; next hop keep;
          export filter { if net = 203.0.113.0/24 then bgp_next_hop = 192.0.2.9; accept; };
        };
      }
  - name: tor2
    segment: lan
    address: 10.0.0.32
    kind: bird2
    asn: 65002
    config: |
      router id 10.0.0.32;
      protocol device {}
      protocol static { ipv4; route 198.51.100.0/24 blackhole; }
      protocol bgp node1 {
        local 10.0.0.32 as 65002;
        neighbor 10.0.0.11 as 64512;
        connect retry time 1; connect delay time 1; error wait time 1, 2;
        ipv4 { import all; export all; };
      }
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: tor1}
    spec: {peerIP: 10.0.0.31, asNumber: 65001}
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: tor2}
    spec: {peerIP: 10.0.0.32, asNumber: 65002}
"#;

#[test]
fn a_node_has_ecmp_routes_and_follows_next_hops() {
    let scenario = "a_node_has_ecmp_routes_and_follows_next_hops";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut lab = up_text(RACK, "rack.yaml", "e2e-fib-rack");
    await_settled(&lab);
    let netns = lab.netns("node1").unwrap();
    let routes = |prefix: &str| {
        let mut command = program_command("ip").unwrap();
        command.args(["-4", "-o", "route", "show", prefix, "proto", "80"]);
        call_program(Some(&netns), &mut command, b"", 30 * SECOND).unwrap()
    };
    let paths = |prefix: &str| {
        let shown = routes(prefix);
        let hops = ["10.0.0.31", "10.0.0.32"].map(|via| shown.contains(&format!("via {via} ")));
        (shown.lines().count(), hops)
    };
    let until = |what: &str, prefix: &str, expected: (usize, [bool; 2])| {
        let seen = || Some(paths(prefix)).filter(|seen| *seen == expected);
        let result = wait_until(60 * SECOND, what, || seen().ok_or_else(|| routes(prefix)));
        result.unwrap_or_else(|error| panic!("{error}"));
    };
    until(
        "both routers in one route",
        "198.51.100.0/24",
        (1, [true, true]),
    );
    // What the user called it, and what Calico does.
    for peer in ["tor1", "Global_10_0_0_31", "10.0.0.31"] {
        let shown = lab.caracal("node1", &["bgp", "peer", peer]).unwrap();
        let head = "Peer Global_10_0_0_31 (global, BGPPeer tor1)\n";
        assert!(shown.starts_with(head), "{peer}: {shown}");
    }
    // Behind the default route first, then nowhere: the session is up, and the route is not used.
    until("the default route", "203.0.113.0/24", (1, [false, false]));
    ip(&lab, "node1", &["route del default"]);
    until("no way", "203.0.113.0/24", (0, [false, false]));
    ip(
        &lab,
        "node1",
        &["route add 192.0.2.0/24 via 10.0.0.32 proto static"],
    );
    until("the way that came", "203.0.113.0/24", (1, [false, true]));
    ip(
        &lab,
        "node1",
        &["route replace 192.0.2.0/24 via 10.0.0.31 proto static"],
    );
    until("the other way", "203.0.113.0/24", (1, [true, false]));
    ip(&lab, "node1", &["route del 192.0.2.0/24"]);
    until("no way any more", "203.0.113.0/24", (0, [false, false]));

    let log = std::env::temp_dir().join(format!("caracal-fib-rack-{}", std::process::id()));
    let mut monitor = program_command("ip").unwrap();
    monitor.args(["-4", "-o", "monitor", "route"]);
    monitor.stdout(std::fs::File::create(&log).unwrap());
    let mut monitor = spawn_in_netns(&netns, &mut monitor).unwrap();
    lab.stop_node("tor2").unwrap();
    until("one router", "198.51.100.0/24", (1, [true, false]));
    lab.start_node("tor2").unwrap();
    until("both again", "198.51.100.0/24", (1, [true, true]));
    let shown = lab.caracal("node1", &["bgp", "peers"]).unwrap();
    let back = shown.lines().find(|line| line.contains("tor2")).unwrap();
    assert!(
        back.contains("Established") && !back.contains(" ago"),
        "an end that is over: {shown}"
    );
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    let output = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    assert!(output.contains("198.51.100.0/24"), "{output}");
    let deleted = |line: &&str| line.starts_with("Deleted 198.51.100.0/24");
    assert_eq!(output.lines().find(deleted), None, "{output}");
}
