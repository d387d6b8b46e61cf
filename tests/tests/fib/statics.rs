//! Static routes: BIRD and the speaker read the same file in the same place, and their neighbours
//! hear the same of both.

use std::process::Command;

use caracal_lab::program_command;
use caracal_tests::possible;

use super::site::{BIRDS, Site};

/// `a` is outside, `b` inside. 10.1.0.9 and 10.2.0.9 are on links, 192.0.2.0/24 is nowhere.
const FILE: &str = "
router id 10.0.0.1;
define GATE = 10.1.0.9;
protocol device { scan time 1; }
define SENT = 10.2.0.1;
protocol kernel {
  kernel table 1000; merge paths on; description \"table\";
  ipv4 {
    table master4; import none;
    export filter { if net ~ [ 198.18.0.0/24, 198.18.11.0/24 ] then krt_prefsrc = SENT; accept; };
  };
};
protocol static one {
  ipv4;
  route 198.18.0.0/24 via GATE;
  route 198.18.1.0/24 via 10.2.0.9;
  route 198.18.2.0/24 via 10.1.0.9 via 10.2.0.9;
  route 198.18.3.0/24 blackhole;
  route 198.18.4.0/24 unreachable { bgp_community.add((64512, 7)); };
  route 198.18.5.0/24 prohibit { bgp_local_pref = 300; };
  route 198.18.6.0/24 via 192.0.2.77;
  route 198.18.7.0/24 via 10.1.0.2;
  route 198.18.10.0/24 via 10.1.0.9 weight 256 via 10.2.0.9 weight 3;
}
filter marked { if net.len > 24 then reject; bgp_large_community.add((64512, 0, 1)); accept; }
protocol static three {
  ipv4 { import filter marked; export none; };
  route 198.18.11.0/24 via \"eth-a\";
  route 198.18.12.0/24 via 203.0.113.9%'eth-a' onlink;
  route 198.18.13.0/24 blackhole { bgp_path.prepend(65007); bgp_path.prepend(65008); bgp_origin = ORIGIN_INCOMPLETE; };
  route 198.18.14.0/25 blackhole;
  route 198.18.15.0/24 via \"gone\";
};
protocol static two {
  ipv4;
  route 198.18.8.0/24 recursive 198.18.0.7;
  route 198.18.9.0/24 recursive 192.0.2.88;
}
filter told {
  # BIRD tells the one on its link a gateway there that is in none of its subnets.
  if net = 198.18.12.0/24 then reject;
  if bgp_local_pref = 100 then reject;
  if defined(bgp_local_pref) then bgp_community.add((64512, 1));
  if dest = RTD_UNICAST then bgp_community.add((64512, 2));
  if dest = RTD_UNREACHABLE then bgp_community.add((64512, 3));
  if defined(bgp_next_hop) then bgp_community.add((64512, 4));
  if ifname = \"eth-a\" then bgp_community.add((64512, 5));
  accept;
}
protocol bgp a {
  local as 64512; neighbor 10.1.0.2 as 65001; hold time 240; graceful restart aware;
  ipv4 { import none; export filter told; };
}
protocol bgp b {
  local as 64512; neighbor 10.2.0.2 as 64512; hold time 240; graceful restart aware;
  ipv4 { import none; export filter told; };
}
";

/// What a neighbour has heard: prefixes with next hop, LOCAL_PREF and communities.
pub(super) fn heard(site: &Site, name: &str) -> Vec<String> {
    let mut routes: Vec<String> = Vec::new();
    for line in site.birdc(name, &["show", "route", "all"]).lines() {
        if let Some(prefix) = line
            .split_whitespace()
            .next()
            .filter(|p| p.contains('/') && !line.starts_with([' ', '\t']))
        {
            routes.push(prefix.to_owned());
        }
        let wanted = [
            "BGP.as_path",
            "BGP.origin",
            "BGP.med",
            "BGP.large_community",
            "BGP.next_hop",
            "BGP.local_pref",
            "BGP.community",
        ];
        if let Some(route) = routes.last_mut()
            && wanted.iter().any(|word| line.contains(word))
            && let Some((_, value)) = line.split_once(": ")
        {
            route.push_str(" | ");
            route.push_str(value.trim());
        }
    }
    routes.sort_unstable();
    routes
}

/// Routes of the table with their ways, whoever wrote them. The speaker writes blackholes where
/// BIRD has other words.
fn table(site: &Site) -> Vec<String> {
    let routes = site.routes("us", &["table", "1000"]);
    let mut routes: Vec<String> = routes
        .iter()
        .filter(|line| line.contains("198.18."))
        .map(|line| {
            let words = line
                .split_whitespace()
                .filter(|word| !word.contains("onlink"));
            let words: Vec<&str> = words.collect();
            let line = words
                .join(" ")
                .replace(" proto bird", "")
                .replace(" proto 81", "");
            let drops = ["unreachable ", "prohibit "];
            drops
                .iter()
                .fold(line, |line, word| line.replace(word, "blackhole "))
        })
        .collect();
    routes.sort_unstable();
    routes
}

#[test]
fn static_routes_go_out_and_into_the_kernel_as_birds_do() {
    let scenario = "static_routes_go_out_and_into_the_kernel_as_birds_do";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(FILE);
    for (name, asn, ours) in [("a", 65001, "10.1.0.1"), ("b", 64512, "10.2.0.1")] {
        let session = format!(
            "protocol bgp caracal {{
               local as {asn}; neighbor {ours} as 64512;
               connect delay time 1; connect retry time 1; error wait time 1, 2;
               ipv4 {{ import all; export none; }};
             }}"
        );
        site.start_bird(name, &session);
    }
    let mut bird: Command = program_command("bird").unwrap();
    bird.args(["-f", "-c", "us.conf", "-s", "us.ctl", "-P", "us.pid"]);
    site.start("us", "us", &mut bird);
    // Not the one without a link, and not to the gateway itself.
    let counts = |site: &Site| (BIRDS.map(|name| heard(site, name).len()), table(site).len());
    let all = ([11, 12], 13);
    site.until("BIRD's announcements", &all, || counts(&site));
    let expected = BIRDS.map(|name| heard(&site, name));
    let written = table(&site);
    let weights = |line: &String| line.contains("weight 256 ") && line.contains("weight 3");
    assert!(written.iter().any(weights), "{written:#?}");
    let on_link = "198.18.0.0/24 | IGP | 64512 | 10.1.0.9 | 100 | (64512,2) (64512,5)";
    assert!(
        expected[0].iter().any(|line| line == on_link),
        "{expected:#?}"
    );
    let sent = |line: &&String| line.contains("src 10.2.0.1");
    assert_eq!(written.iter().filter(sent).count(), 2, "{written:#?}");
    let ends = |words: &str| written.iter().any(|line| line.contains(words));
    assert!(
        ends("198.18.11.0/24 dev eth-a") && ends("via 203.0.113.9 dev eth-a"),
        "{written:#?}"
    );
    site.end("us", "-TERM");
    site.until("BIRD has gone", &([0, 0], 0), || counts(&site));

    site.start_us();
    site.until("the same announcements", &expected, || {
        BIRDS.map(|name| heard(&site, name))
    });
    site.until("the same routes in the kernel", &written, || table(&site));
    // A gateway goes with its link, and comes back.
    site.ip("us", &["addr del 10.2.0.1/24 dev eth-b"]);
    site.until("the route is gone", &false, || {
        let heard = heard(&site, "a").join("\n");
        heard.contains("198.18.1.0/24") || !heard.contains("198.18.2.0/24")
    });
    site.ip("us", &["addr add 10.2.0.1/24 dev eth-b"]);
    site.until("all of it is back", &expected, || {
        BIRDS.map(|name| heard(&site, name))
    });
    site.until("and in the kernel", &written, || table(&site));
}
