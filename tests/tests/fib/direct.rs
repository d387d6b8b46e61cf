//! Routes of interfaces: BIRD and the speaker read the same file in the same place, and their
//! neighbours hear the same of both.

use std::process::Command;

use caracal_lab::program_command;
use caracal_tests::possible;

use super::site::{BIRDS, Site};
use super::statics::heard;

/// `a` is outside, `b` inside. 10.1.0.0/24 is on a link, and static as well.
const FILE: &str = "
router id 10.0.0.1;
protocol device { scan time 1; }
protocol direct { ipv4; interface -\"eth-a\" 10.9.0.0/16, \"eth-*\", \"lo\"; }
protocol direct six { ipv6 { import filter { bgp_med = 7; accept; }; }; interface \"eth-b\"; }
protocol direct without { interface \"eth-a\"; }
protocol static { ipv4; route 10.1.0.0/24 blackhole; route 198.18.0.0/24 blackhole; }
filter told {
  if source = RTS_STATIC then bgp_community.add((64512, 1));
  if source = RTS_DEVICE then bgp_community.add((64512, 2));
  if dest = RTD_UNICAST then bgp_community.add((64512, 3));
  if dest = RTD_BLACKHOLE then bgp_community.add((64512, 4));
  if ifname = \"eth-a\" then bgp_community.add((64512, 5));
  if defined(bgp_med) then bgp_community.add((64512, 6));
  accept;
}
protocol bgp a {
  local as 64512; neighbor 10.1.0.2 as 65001; hold time 240; graceful restart aware;
  ipv4 { import none; export filter told; };
  ipv6 { import none; export filter told; };
}
protocol bgp b {
  local as 64512; neighbor 10.2.0.2 as 64512; hold time 240; graceful restart aware;
  ipv4 { import none; export filter told; };
  ipv6 { import none; export filter told; };
}
";

/// What both have heard. On a common link our link-local address goes with our own, over a session
/// of IPv4, too (RFC 2545 §3); BIRD leaves it out there.
fn all(site: &Site) -> [Vec<String>; 2] {
    let near = |word: &&str| !word.starts_with("fe80::");
    let plain = |line: String| line.split(' ').filter(near).collect::<Vec<_>>().join(" ");
    BIRDS.map(|name| heard(site, name).into_iter().map(plain).collect())
}

#[test]
fn routes_of_interfaces_go_out_as_birds_do() {
    let scenario = "routes_of_interfaces_go_out_as_birds_do";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(FILE);
    site.ip(
        "us",
        &[
            "addr add 10.7.7.7/32 dev lo",
            "addr add 10.9.0.1/24 dev eth-a",
            "addr add 10.66.0.1 peer 10.66.0.2/32 dev eth-b",
        ],
    );
    for (name, asn, ours) in [("a", 65001, "10.1.0.1"), ("b", 64512, "10.2.0.1")] {
        let session = format!(
            "protocol bgp caracal {{
               local as {asn}; neighbor {ours} as 64512;
               connect delay time 1; connect retry time 1; error wait time 1, 2;
               ipv4 {{ import all; export none; }};
               ipv6 {{ import all; export none; }};
             }}"
        );
        site.start_bird(name, &session);
    }
    let mut bird: Command = program_command("bird").unwrap();
    bird.args(["-f", "-c", "us.conf", "-s", "us.ctl", "-P", "us.pid"]);
    site.start("us", "us", &mut bird);
    let counts = |site: &Site| all(site).map(|heard| heard.len());
    site.until("BIRD's announcements", &[6, 6], || counts(&site));
    let expected = all(&site);
    let device = "10.1.0.0/24 | IGP | 64512 | 10.1.0.1 | 100 | (64512,2) (64512,3) (64512,5)";
    assert!(
        expected[0].iter().any(|line| line == device),
        "{expected:#?}"
    );
    site.end("us", "-TERM");
    site.until("BIRD has gone", &[0, 0], || counts(&site));

    site.start_us();
    site.until("the same announcements", &expected, || all(&site));
    // Interfaces change.
    let has = |site: &Site, prefix: &str| all(site)[1].iter().any(|line| line.starts_with(prefix));
    site.ip("us", &["addr add 10.88.0.1/24 dev eth-b"]);
    site.until("a new subnet", &true, || has(&site, "10.88.0.0/24"));
    site.ip("us", &["addr del 10.88.0.1/24 dev eth-b"]);
    site.until("it is gone", &expected, || all(&site));

    // With a table of the kernel: what is there already is not written.
    let kernel = "protocol kernel { ipv4 { import none; export all; }; }";
    site.write(&format!("{FILE}{kernel}"));
    site.ask(&["speaker", "reload"]).unwrap();
    site.until_synced();
    let ours = site.routes("us", &["proto", "81"]);
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert!(ours[0].contains("198.18.0.0/24"), "{ours:?}");
    site.until("the same with a table", &expected, || all(&site));
    site.ip("us", &["addr add 10.88.0.1/24 dev eth-b"]);
    site.until("a new subnet", &true, || has(&site, "10.88.0.0/24"));
    site.write(&FILE.replace("protocol direct {", "protocol direct { disabled;"));
    site.ask(&["speaker", "reload"]).unwrap();
    site.until("without the protocol", &[3, 3], || counts(&site));
    site.end("us", "-INT");
}
