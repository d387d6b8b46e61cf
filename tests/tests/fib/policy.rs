//! Exchange between the speaker and its table: filters, our own routes, routes of others, and lost
//! notifications.

use caracal_lab::ip_batch;
use caracal_tests::possible;

use crate::site::Site;
use crate::{ALL, bird, many, ours, speaker};

/// Destinations of routes of ours in the main table, sorted; a blackhole says so.
fn written(site: &Site) -> Vec<String> {
    let mut found: Vec<String> = ours(site, "main")
        .iter()
        .map(|line| {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("blackhole") => format!("blackhole {}", words.next().unwrap_or_default()),
                word => word.unwrap_or_default().to_owned(),
            }
        })
        .collect();
    found.sort();
    found
}

/// Prefixes that we announce as our own, sorted.
fn own(site: &Site) -> Vec<String> {
    let Ok(routes) = site.ask(&["bgp", "routes"]) else {
        return Vec::new();
    };
    let routes = routes.as_array().cloned().unwrap_or_default();
    let own = routes.iter().filter(|route| route["peer"].is_null());
    let mut own: Vec<String> = own
        .map(|route| route["prefix"].as_str().unwrap_or_default().to_owned())
        .collect();
    own.sort();
    own
}

/// Prefixes that BIRD has from us, sorted.
fn announced_routes(site: &Site) -> Vec<String> {
    let shown = site.birdc("a", &["show", "route", "protocol", "caracal"]);
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let mut prefixes: Vec<String> = shown.lines().filter_map(first).collect();
    prefixes.retain(|word| word.contains('/'));
    prefixes.sort();
    prefixes
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

#[test]
fn a_table_has_a_filter_our_own_routes_and_gives_those_of_others() {
    let scenario = "a_table_has_a_filter_our_own_routes_and_gives_those_of_others";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    let statics = "filter fib {
           if (source = RTS_STATIC) then accept;
           if ((65001, 1) ~ bgp_community) then reject;
           accept;
         }
         protocol static { ipv4; route 192.0.2.0/24 blackhole; route 192.0.3.0/24 blackhole; }";
    let text = |kernel: &str| speaker(&format!("{kernel} {statics}"), &["a"]);
    site.ip(
        "us",
        &[
            "route add 203.0.113.0/24 via 10.2.0.2 proto static",
            "route add 203.0.114.0/24 via 10.2.0.2 proto bgp",
            "route add 203.0.115.0/24 via 10.1.0.2 proto static",
        ],
    );
    let learning = "protocol kernel {
        ipv4 { import where ifname != \"\" && ifname ~ \"eth-b\"; export filter fib; };
        learn; scan time 10;
      }";
    site.write(&text(learning));
    site.start_us();
    let routes = "route 100.64.0.0/24 blackhole { bgp_community.add((65001, 1)); };
                  route 100.64.1.0/24 blackhole;";
    site.start_bird("a", &bird(65001, "10.1.0.1", routes, ALL));
    let statics = ["blackhole 192.0.2.0/24", "blackhole 192.0.3.0/24"];
    let all = [&["100.64.1.0/24"], &statics[..]].concat();
    site.until("what the filter lets pass", &strings(&all), || {
        written(&site)
    });
    // The subnets of our interfaces are the kernel's own; what a BGP daemon wrote may be ours; one
    // leads elsewhere.
    let first = strings(&["192.0.2.0/24", "192.0.3.0/24", "203.0.113.0/24"]);
    site.until("our routes, and one of somebody's", &first, || {
        announced_routes(&site)
    });
    assert_eq!(own(&site), first, "nothing that we wrote ourselves");
    site.until_synced();

    // Somebody's routes come and go.
    site.ip(
        "us",
        &[
            "route add 203.0.116.0/24 dev eth-b proto static",
            "route del 203.0.113.0/24 via 10.2.0.2 proto static",
        ],
    );
    let second = strings(&["192.0.2.0/24", "192.0.3.0/24", "203.0.116.0/24"]);
    site.until("the other one", &second, || announced_routes(&site));

    // A route that becomes ours is in the table as ours, and leaves it when it is ours no more: so
    // does a learned route in its place.
    site.reconfigure_bird(
        "a",
        &bird(
            65001,
            "10.1.0.1",
            &format!("{routes} route 192.0.3.0/24 blackhole;"),
            ALL,
        ),
    );
    let less = text(learning).replace("route 192.0.3.0/24 blackhole;", "");
    site.write(&less);
    site.ask(&["speaker", "reload"]).unwrap();
    let mixed = strings(&["100.64.1.0/24", "192.0.3.0/24", "blackhole 192.0.2.0/24"]);
    site.until("the peer's route where ours was", &mixed, || written(&site));

    // Other filters, and nothing is learned: the table follows, no session is touched.
    let other = "protocol kernel { ipv4 { export where source = RTS_STATIC; }; }";
    site.write(&text(other));
    let change = site.ask(&["speaker", "reload"]).unwrap();
    assert_eq!(change["kernel"], true, "{change}");
    assert_eq!(change["changed"], serde_json::json!({}), "{change}");
    site.until("our own routes alone", &strings(&statics), || {
        written(&site)
    });
    let third = strings(&["192.0.2.0/24", "192.0.3.0/24"]);
    site.until("nothing of others", &third, || announced_routes(&site));
    site.until_synced();
    site.end("us", "-INT");
    assert_eq!(written(&site), [""; 0]);
    let foreign = site.routes("us", &["203.0.116.0/24"]);
    assert_eq!(foreign.len(), 1, "{foreign:?}");
}

/// The kernel drops notifications for who does not read them. Nothing may depend on having read
/// them all.
#[test]
fn lost_notifications_cost_a_look_at_everything_and_no_route() {
    let scenario = "lost_notifications_cost_a_look_at_everything_and_no_route";
    if !possible(scenario, &["bird", "birdc"]) {
        return;
    }
    let mut site = Site::new();
    site.write(&speaker(
        "protocol kernel { ipv4 { export all; }; learn; }",
        &["a"],
    ));
    site.start_us();
    site.start_bird("a", &bird(65001, "10.1.0.1", &many(20), ALL));
    site.until("all routes", &20, || ours(&site, "main").len());
    site.until_synced();

    // More changes than a socket can hold, and behind them what matters: a route of ours goes, one
    // of others comes.
    site.signal("us", "-STOP");
    let us = site.netns("us");
    let noise = |verb: &str| -> Vec<String> {
        let route = |n: u32| {
            let (a, b) = (n / 250, n % 250);
            format!("route {verb} 100.80.{a}.{b}/32 dev eth-b proto static")
        };
        (0..30_000).map(route).collect()
    };
    ip_batch(Some(&us), &noise("add")).unwrap();
    ip_batch(Some(&us), &noise("del")).unwrap();
    site.ip(
        "us",
        &[
            "route del 100.64.9.0/24 proto 81 metric 32",
            "route add 203.0.113.0/24 via 10.2.0.2 proto static",
        ],
    );
    assert_eq!(ours(&site, "main").len(), 19);
    site.signal("us", "-CONT");
    site.until("the route is back", &20, || ours(&site, "main").len());
    site.until("the route of others", &strings(&["203.0.113.0/24"]), || {
        own(&site)
    });
    let log = site.log_of("us");
    assert!(log.contains("some are lost"), "the buffer held all of it");
    assert_eq!(site.sessions(), ["a"]);
}
