//! Neighbours with link-local addresses: BIRD and the speaker read the same file in the same place.
//! Their neighbours hear the same of both, and the kernel gets the same routes.

use std::collections::BTreeSet;
use std::process::Command;

use caracal_lab::{call_program, program_command};
use caracal_tests::{SECOND, possible};

use super::site::{BIRDS, Site};

/// Both neighbours have the same address, each on its link. The link with `a` has no other one, the
/// link with `b` has global ones.
const FILE: &str = "
router id 10.0.0.1;
protocol device { scan time 1; }
protocol kernel { ipv4 { import none; export all; }; merge paths on; kernel table 1000; }
protocol kernel { ipv6 { import none; export all; }; merge paths on; kernel table 1000; }
protocol static {
  ipv6;
  route 2001:db8:f0::/48 via fe80::2%'eth-a';
  route 2001:db8:f1::/48 via fe80::99%'eth-b';
  route 2001:db8:f2::/48 via fe80::2%'eth-a' via fe80::2%'eth-b';
}
template bgp near {
  local as 64512; hold time 240; graceful restart aware;
  ipv4 { import all; export all; extended next hop on; };
  ipv6 { import all; export all; };
}
protocol bgp b from near { neighbor fe80::2 as 65002; interface \"eth-b\"; }
";

const A: &str = "protocol bgp a from near { neighbor fe80::2%'eth-a' as 65001; }\n";

/// A neighbour: a route of its own in each family and one that both have, and the session.
fn neighbour(name: &str) -> String {
    let n = if name == "a" { 1 } else { 2 };
    format!(
        "protocol static own4 {{
           ipv4; route 198.51.{n}.0/24 blackhole; route 198.51.100.0/24 blackhole;
         }}
         protocol static own6 {{
           ipv6; route 2001:db8:a{n}::/48 blackhole; route 2001:db8:c::/48 blackhole;
         }}
         protocol bgp caracal {{
           local as 6500{n}; neighbor fe80::1%eth0 as 64512; hold time 240;
           connect delay time 1; connect retry time 1; error wait time 1, 2;
           ipv4 {{ import all; export all; extended next hop on; }};
           ipv6 {{ import all; export all; }};
         }}"
    )
}

/// The link-local addresses of a link; `a`'s has no others of IPv6.
fn give_addresses(site: &Site, name: &str) {
    let ours = format!("eth-{name}");
    for (place, interface, n) in [("us", ours.as_str(), 1), (name, "eth0", 2)] {
        let flush = format!("addr flush dev {interface} scope link");
        let add = format!("addr add fe80::{n}/64 dev {interface} nodad");
        let global = format!("addr del 2001:db8:1::{n}/64 dev {interface}");
        site.ip(place, &[&flush, &add]);
        if name == "a" {
            site.ip(place, &[&global]);
        }
    }
}

/// What a neighbour has heard: prefixes with AS path.
fn heard(site: &Site, name: &str) -> BTreeSet<String> {
    let shown = site.birdc(name, &["show", "route", "all", "protocol", "caracal"]);
    let mut prefix = "";
    let mut routes = BTreeSet::new();
    for line in shown.lines() {
        if line.contains(" unicast ") {
            prefix = line.split_whitespace().next().unwrap_or_default();
        }
        if let Some((_, path)) = line.split_once("BGP.as_path: ") {
            routes.insert(format!("{prefix} | {path}"));
        }
    }
    routes
}

/// Routes of the table with their ways, whoever wrote them.
fn table(site: &Site) -> BTreeSet<String> {
    let families = ["-4", "-6"].into_iter();
    let lines = families
        .flat_map(|family| site.show("us", &[family, "-o", "route", "show", "table", "1000"]));
    let route = |line: String| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let behind = |pair: &[&str]| match pair {
            ["via" | "inet6", gateway] if *gateway != "inet6" => Some(format!("via {gateway}")),
            ["dev", interface] => Some(format!("dev {interface}")),
            _ => None,
        };
        let ways: Vec<String> = words.windows(2).filter_map(behind).collect();
        // The order of equal ways is the kernel's.
        let ways: BTreeSet<String> = ways.chunks(2).map(|way| way.join(" ")).collect();
        let ways: Vec<String> = ways.into_iter().collect();
        format!("{} {}", words.first().unwrap_or(&""), ways.join(" "))
    };
    lines.map(route).collect()
}

/// What both neighbours have heard, and what the kernel has.
fn seen(site: &Site) -> ([BTreeSet<String>; 2], BTreeSet<String>) {
    (BIRDS.map(|name| heard(site, name)), table(site))
}

/// A command of `ip -6`.
fn six(site: &Site, name: &str, words: &str) {
    let mut command = program_command("ip").unwrap();
    command.arg("-6").args(words.split(' '));
    call_program(Some(&site.netns(name)), &mut command, b"", 30 * SECOND).unwrap();
}

fn ping(site: &Site, target: &str) {
    let mut ping = program_command("ping").unwrap();
    ping.args(["-c", "2", "-i", "0.2", "-W", "5", target]);
    call_program(Some(&site.netns("us")), &mut ping, b"", 30 * SECOND).unwrap();
}

#[test]
fn rfc4007_6_neighbours_with_one_link_local_address_on_two_links() {
    let scenario = "rfc4007_6_neighbours_with_one_link_local_address_on_two_links";
    if !possible(scenario, &["bird", "birdc", "ping"]) {
        return;
    }
    let mut site = Site::new();
    for name in BIRDS {
        give_addresses(&site, name);
        site.start_bird(name, &neighbour(name));
    }
    site.ip("us", &["rule add table 1000"]);
    six(&site, "us", "rule add table 1000");
    site.ip("a", &["addr add 2001:db8:a1::1/128 dev lo nodad"]);
    site.ip("us", &["addr add 2001:db8::1/128 dev lo nodad"]);
    six(&site, "a", "route add 2001:db8::1/128 via fe80::1 dev eth0");
    let whole = format!("{FILE}{A}");
    site.write(&whole);
    let mut bird: Command = program_command("bird").unwrap();
    bird.args(["-f", "-c", "us.conf", "-s", "us.ctl", "-P", "us.pid"]);
    site.start("us", "us", &mut bird);
    let counts = |site: &Site| {
        let (heard, table) = seen(site);
        let two_ways = |route: &&String| route.matches("via").count() == 2;
        let two_ways = table.iter().filter(two_ways).count();
        (heard.map(|heard| heard.len()), table.len(), two_ways)
    };
    // The static routes, and the other's own.
    site.until("BIRD's announcements", &([5, 7], 9, 3), || counts(&site));
    let expected = seen(&site);
    let both = "2001:db8:c::/48 via fe80::2 dev eth-a via fe80::2 dev eth-b";
    assert!(expected.1.contains(both), "{expected:#?}");
    site.end("us", "-TERM");
    site.ip("us", &["route flush table 1000"]);
    six(&site, "us", "route flush table 1000");

    // We, first with one of them, and then with the other.
    site.write(FILE);
    site.start_us();
    site.until("one session", &vec!["b".to_owned()], || site.sessions());
    site.write(&whole);
    site.ask(&["speaker", "reload"]).unwrap();
    site.until("the same as BIRD", &expected, || seen(&site));
    site.until_synced();
    ping(&site, "2001:db8:a1::1");
    let nothing = serde_json::json!([]);
    site.until("no problems", &nothing, || {
        site.ask(&["status"]).unwrap_or_default()["problems"].clone()
    });

    // A restart moves nothing.
    site.end("us", "-TERM");
    assert_eq!(table(&site), expected.1);
    site.start_us();
    site.until("both sessions", &2, || site.sessions().len());
    site.until("the same after a restart", &expected, || seen(&site));

    // Without the link, what leads over it is gone; the interface comes back with another number.
    site.ip("us", &["link del eth-a"]);
    let over_a = |table: &BTreeSet<String>| table.iter().any(|route| route.contains("eth-a"));
    site.until("nothing leads over the link that is gone", &false, || {
        over_a(&table(&site))
    });
    let (us, a) = (site.netns("us"), site.netns("a"));
    let again = format!("link add eth-a netns {us} type veth peer name eth0 netns {a}");
    caracal_lab::ip_batch(None, &[again]).unwrap();
    for (place, interface, n) in [("us", "eth-a", 1), ("a", "eth0", 2)] {
        let up = format!("link set {interface} addrgenmode none up");
        let add = format!("addr add fe80::{n}/64 dev {interface} nodad");
        site.ip(place, &[&up, &add]);
    }
    site.until("the same over the new link", &expected, || seen(&site));
}
