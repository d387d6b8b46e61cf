//! Who brought a route and where it leads, as filters see it: BIRD and the speaker read the same
//! file in the same place, and their neighbours hear the same of both.

use std::process::Command;

use caracal_lab::program_command;
use caracal_tests::possible;

use super::site::{BIRDS, Site};
use super::statics::heard;

/// `a` is outside, `b` inside. 10.1.0.9 and 10.2.0.9 are on links.
const FILE: &str = "
router id 10.0.0.1;
protocol device { scan time 1; }
protocol direct links { ipv4; interface \"eth-*\"; }
protocol kernel { learn; kernel table 1000; ipv4 { import all; export none; }; }
protocol static one {
  ipv4 { preference 210; };
  route 198.18.0.0/24 via 10.1.0.9;
  route 198.18.1.0/24 blackhole;
  route 198.18.2.0/24 via 10.2.0.9 via 10.1.0.9;
  route 198.18.3.0/24 via 10.1.0.9 weight 2 via 10.2.0.9 weight 3;
  route 198.18.4.0/24 via \"eth-a\";
}
protocol static {
  ipv4;
  route 198.18.8.0/24 recursive 198.18.0.7;
  route 198.18.9.0/24 recursive 192.0.2.88;
}
protocol static {
  ipv4;
  route 198.18.10.0/24 unreachable;
}
function inside() { return from ~ 10.2.0.0/16 && gw ~ 10.2.0.0/16; }
filter heard {
  if inside() then bgp_community.add((64512, 101));
  if proto = \"b\" && preference = 100 then bgp_community.add((64512, 102));
  if gw = 10.2.0.99 then bgp_community.add((64512, 103));
  if defined(bgp_originator_id) then bgp_community.add((64512, 104));
  bgp_large_community.add((64512, 100, bgp_cluster_list.len));
  accept;
}
filter told {
  if proto = \"one\" then bgp_community.add((64512, 1));
  if proto = \"static1\" then bgp_community.add((64512, 2));
  if proto ~ \"stat*2\" then bgp_community.add((64512, 3));
  if proto = \"links\" then bgp_community.add((64512, 4));
  if proto = \"kernel1\" then bgp_community.add((64512, 5));
  if proto = \"a\" then bgp_community.add((64512, 6));
  if proto = \"b\" then bgp_community.add((64512, 7));
  if from = :: then bgp_community.add((64512, 8));
  if from = 10.1.0.2 then bgp_community.add((64512, 9));
  if from ~ 10.0.0.0/8 then bgp_community.add((64512, 10));
  if gw = :: then bgp_community.add((64512, 11));
  if gw = 10.1.0.9 then bgp_community.add((64512, 12));
  if gw = 10.2.0.9 then bgp_community.add((64512, 13));
  if gw.is_v4 && from = gw then bgp_community.add((64512, 14));
  if scope = SCOPE_UNIVERSE then bgp_community.add((64512, 15));
  if igp_metric < 1 && !defined(igp_metric) then bgp_community.add((64512, 16));
  if defined(bgp_atomic_aggr) || defined(bgp_aggregator) || defined(bgp_aigp) then bgp_community.add((64512, 17));
  if bgp_cluster_list = -empty- && ! defined(bgp_cluster_list) then bgp_community.add((64512, 18));
  case preference { 10: bgp_community.add((64512, 19)); 200..240: bgp_community.add((64512, 20)); }
  bgp_large_community.add((64512, 0, preference));
  if proto = \"kernel1\" || net = 198.18.1.0/24 then bgp_next_hop = 10.1.0.77;
  if bgp_next_hop = 10.1.0.77 then bgp_large_community.add((64512, 1, 77));
  accept;
}
protocol bgp a {
  local as 64512; neighbor 10.1.0.2 as 65001; hold time 240; graceful restart aware;
  ipv4 { import filter heard; export filter told; };
}
protocol bgp b {
  local as 64512; neighbor 10.2.0.2 as 64512; hold time 240; graceful restart aware;
  ipv4 { import filter heard; export filter told; };
}
";

#[test]
fn filters_know_who_brought_a_route_and_where_it_leads_as_birds_do() {
    let scenario = "filters_know_who_brought_a_route_and_where_it_leads_as_birds_do";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(FILE);
    site.ip(
        "us",
        &["route add 198.18.50.0/24 via 10.1.0.9 table 1000 proto static"],
    );
    let routes = [
        "route 203.0.113.0/25 blackhole;",
        "route 203.0.113.128/25 blackhole; route 203.0.114.0/25 via 10.2.0.99;",
    ];
    for ((name, routes), (asn, ours)) in BIRDS
        .into_iter()
        .zip(routes)
        .zip([(65001, "10.1.0.1"), (64512, "10.2.0.1")])
    {
        let session = format!(
            "protocol static own {{ ipv4; {routes} }}
             protocol bgp caracal {{
               local as {asn}; neighbor {ours} as 64512;
               connect delay time 1; connect retry time 1; error wait time 1, 2;
               ipv4 {{ import all; export where proto = \"own\"; }};
             }}"
        );
        site.start_bird(name, &session);
    }
    let mut bird: Command = program_command("bird").unwrap();
    bird.args(["-f", "-c", "us.conf", "-s", "us.ctl", "-P", "us.pid"]);
    site.start("us", "us", &mut bird);
    // Eleven of ours, those of the other neighbour, and what each has itself.
    let counts = |site: &Site| BIRDS.map(|name| heard(site, name).len());
    site.until("BIRD's announcements", &[14, 14], || counts(&site));
    let expected = BIRDS.map(|name| heard(&site, name));
    let says = |prefix: &str, words: &[&str]| {
        let all = expected.iter().flatten();
        let mut lines = all.filter(|line| line.starts_with(prefix));
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(says("198.18.3.0/24", &["(64512,13)"]), "{expected:#?}");
    assert!(says("198.18.50.0/24", &["(64512,5)", "(64512,12)"]));
    assert!(says("203.0.113.0/25", &["(64512,6)", "(64512,9)"]));
    assert!(says("203.0.114.0/25", &["(64512,101)", "(64512,103)"]));
    assert!(says("198.18.1.0/24", &["10.1.0.77", "(64512, 0, 210)"]));
    site.end("us", "-TERM");
    site.until("BIRD has gone", &[1, 2], || counts(&site));

    site.start_us();
    site.until("the same announcements", &expected, || {
        BIRDS.map(|name| heard(&site, name))
    });
    // A protocol with another name is another one to filters.
    site.write(&FILE.replace("static one {", "static another {"));
    site.signal("us", "-HUP");
    let named = |site: &Site| {
        let heard = heard(site, "a");
        let marked = |line: &&String| line.contains("(64512,1)");
        heard.iter().filter(marked).count()
    };
    site.until("no route of \"one\"", &0, || named(&site));
    site.write(FILE);
    site.signal("us", "-HUP");
    site.until("and back", &expected, || {
        BIRDS.map(|name| heard(&site, name))
    });
}
