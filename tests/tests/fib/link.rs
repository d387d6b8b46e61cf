//! A peer on a common link: BFD over one hop (RFC 5881) with a real BIRD 2, what its C bit means
//! for graceful restart (RFC 5882 §4.3), and link-local next hops (RFC 2545).

use std::time::Instant;

use caracal_tests::possible;

use crate::site::Site;

const OURS: &str = "2001:db8:1::1";
const THEIRS: &str = "2001:db8:1::2";

fn speaker(bfd: &str) -> String {
    format!(
        "router id 10.0.0.1;
         define caracal_local_as = 64512;
         protocol kernel {{ ipv6 {{ export where source = RTS_BGP; }}; }}
         protocol static {{ ipv6; route 2001:db8:f::/48 blackhole; }}
         protocol bgp a {{
           local {OURS} as 64512; neighbor {THEIRS} as 65001;
           direct; hold time 240; graceful restart on; {bfd}
           ipv6 {{ import all; export all; }};
         }}"
    )
}

fn bird() -> String {
    format!(
        "protocol static own6 {{ ipv6; route 2001:db8:e::/48 blackhole; }}
         protocol bfd watch {{
           interface \"eth0\" {{ min rx interval 300 ms; min tx interval 300 ms; multiplier 3; }};
         }}
         protocol bgp caracal {{
           local {THEIRS} as 65001; neighbor {OURS} as 64512;
           direct; bfd; graceful restart; hold time 240;
           connect delay time 1; connect retry time 1; error wait time 1, 2;
           ipv6 {{ import all; export all; }};
         }}"
    )
}

/// Our status of the peer: the state of the session and of BFD, and how often BFD has lost it.
fn peer(site: &Site) -> (String, String, u64) {
    let Ok(status) = site.ask(&["status"]) else {
        return (String::new(), String::new(), 0);
    };
    let peer = &status["peers"][0];
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    (
        word(&peer["state"]),
        word(&peer["bfd"]["state"]),
        peer["bfd"]["downs"].as_u64().unwrap_or_default(),
    )
}

fn is_up(site: &Site) -> bool {
    let (session, bfd, _) = peer(site);
    let theirs = site.birdc("a", &["show", "bfd", "sessions"]);
    session == "Established" && bfd == "Up" && theirs.contains("Up")
}

/// Whether the peer's route is in our table, and whether it is stale.
fn route(site: &Site) -> Option<bool> {
    let answer = site.ask(&["bgp", "explain", "2001:db8:e::/48"]).ok()?;
    answer["paths"][0]["stale"].as_bool()
}

#[test]
fn rfc5881_bird_on_a_link_and_we_watch_each_other() {
    let scenario = "rfc5881_bird_on_a_link_and_we_watch_each_other";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker("bfd;"));
    site.start_us();
    site.start_bird("a", &bird());
    site.until("the session and BFD at both ends", &true, || is_up(&site));
    site.until("the route", &Some(false), || route(&site));
    let shown = site.birdc("a", &["show", "bfd", "sessions"]);
    assert!(shown.contains("0.900"), "three times 300 ms: {shown}");
    assert!(shown.contains("eth0"), "over one hop: {shown}");

    // RFC 2545 §3: beside our address there is the one of the link.
    let link_local = site
        .show(
            "us",
            &["-6", "-o", "addr", "show", "dev", "eth-a", "scope", "link"],
        )
        .concat();
    let link_local = link_local.split_whitespace().nth(3).unwrap();
    let (link_local, _) = link_local.split_once('/').unwrap();
    let hops = format!("BGP.next_hop: {OURS} {link_local}");
    site.until("both next hops", &true, || {
        let route = ["show", "route", "2001:db8:f::/48", "all"];
        site.birdc("a", &route).contains(&hops)
    });

    // BIRD stands still, and its kernel still answers for it: nothing but BFD can see that. The C
    // bit of its BFD is clear, and we do not take that for a restart: its routes go at once.
    let cut = Instant::now();
    site.signal("a", "-STOP");
    site.until("no route", &None, || route(&site));
    println!("{scenario}: the route was gone after {:?}", cut.elapsed());
    let (session, _, downs) = peer(&site);
    assert_ne!(session, "Established");
    assert_eq!(downs, 1);
    site.signal("a", "-CONT");
    site.until("all again", &true, || is_up(&site));
    site.until("the route again", &Some(false), || route(&site));

    // We stand still: BIRD sees it as soon.
    site.signal("us", "-STOP");
    site.until("BIRD's word", &true, || {
        let shown = site.birdc("a", &["show", "bfd", "sessions"]);
        shown.contains("Down")
    });
    site.signal("us", "-CONT");
    site.until("all again", &true, || is_up(&site));

    // RFC 5882 §4.3: with `bfd graceful` the clear C bit may mean a restart, and its routes stay.
    site.write(&speaker("bfd; bfd graceful;"));
    site.ask(&["speaker", "reload"]).unwrap();
    site.until("the session is not touched", &true, || is_up(&site));
    site.until("the route", &Some(false), || route(&site));
    let before = peer(&site).2;
    site.signal("a", "-STOP");
    site.until("a stale route", &Some(true), || route(&site));
    assert_eq!(peer(&site).2, before + 1);
    site.signal("a", "-CONT");
    site.until("all again", &true, || is_up(&site));
    site.until("a fresh route", &Some(false), || route(&site));
}
