//! What others do to the host side interfaces of workloads, and to the ways to their addresses.

use super::routes::entries;
use super::*;

/// Of node `a` and node `b`, in both families; what the plan of IPv4 lacks for both.
fn both_families() -> Vec<(&'static str, &'static str, String)> {
    let node = |name: &'static str, n: u8| {
        let value = format!(
            r#"{{"metadata":{{"name":"{name}"}},"spec":{{"bgp":{{"ipv4Address":"10.0.0.{n}/24",
                "ipv6Address":"fd00:a::{n}/64"}}}}}}"#
        );
        ("nodes", name, value)
    };
    let mut all = entries();
    all.retain(|(kind, ..)| *kind != "nodes" && *kind != "workloadendpoints");
    all.splice(0..0, [node("a", 1), node("b", 2)]);
    all.extend([
        pool("p6", "fd00:10:244::/48", ""),
        block("fd00:10:244::/122", "a"),
        block("fd00:10:244:1::/122", "b"),
    ]);
    all
}

/// A workload with the host side interface that our plugin made for its container.
fn pod(n: u8) -> (&'static str, String, String) {
    let value = format!(
        r#"{{"metadata":{{"name":"w{n}","namespace":"default"}},"spec":{{"node":"a","interfaceName":"cali{n}",
            "containerID":"c{n}","ipNetworks":["10.244.0.{n}/32","fd00:10:244::{n}/128"],
            "mac":"02:00:00:00:00:0{n}"}}}}"#
    );
    ("workloadendpoints", format!("default/w{n}"), value)
}

fn index_of(link: &str) -> String {
    sh(&format!("ip -o link show {link} | cut -d: -f1"))
}

/// The index of the interface that packets to a pod leave by: by IPv4, and by IPv6.
fn leads_to(pod: u8) -> String {
    let of = |route: String| match route.split(' ').skip_while(|word| *word != "dev").nth(1) {
        Some(link) => index_of(link),
        None => route,
    };
    let routes = ["-4 route show 10.244.0.", "-6 route show fd00:10:244::"]
        .map(|address| of(sh(&format!("ip -o {address}{pod}"))));
    routes.concat()
}

/// The pods 5 and 6 with their interfaces; the indices of these.
fn two_pods(has_alias: impl Fn(u8) -> bool) -> ([String; 2], Node) {
    lab();
    for n in [5, 6] {
        sh(&format!(
            "ip link add cali{n} type veth peer name pod{n}; ip link set cali{n} up; ip link set pod{n} up"
        ));
        if has_alias(n) {
            sh(&format!(
                "ip link set cali{n} alias caracal:k8s-pod-network.c{n}"
            ));
        }
    }
    let indices = [5, 6].map(|n| index_of(&format!("cali{n}")));
    let mut node = Node::start(&both_families());
    for n in [5, 6] {
        let (kind, name, value) = pod(n);
        node.put(kind, &name, value);
    }
    (indices, node)
}

/// Exchanges the names of the two interfaces.
fn exchange() {
    sh("ip link set cali5 name swap; ip link set cali6 name cali5; ip link set swap name cali6");
}

#[test]
fn the_host_side_gets_its_mac_back() {
    in_namespace("endpoints::the_host_side_gets_its_mac_back", || async {
        lab();
        sh(
            "ip link add cali123 type veth peer name pod; ip link set cali123 up; ip link set pod up",
        );
        let mut node = Node::start(&both_families());
        let (kind, name, value) = workload("10.244.0.5", "cali123");
        let value = value.replace("/32\"", "/32\",\"fd00:10:244::5/128\"");
        let of_plugin = r#""spec":{"orchestrator":"k8s","#;
        node.put(kind, name, value.replace(r#""spec":{"#, of_plugin));
        // Another address takes the interface's neighbours with it.
        let mac = || {
            sh(
                "ip -o link show cali123 | grep -o 'ether [^ ]*'; ip neigh show dev cali123 nud permanent
                 ip -6 route show fd00:10:244::5 | cut -d' ' -f1-3",
            )
        };
        let is_right = |seen: &str| {
            seen == "ether ee:ee:ee:ee:ee:ee\n10.244.0.5 lladdr 02:00:00:00:00:05 PERMANENT \n\
                     fd00:10:244::5 dev cali123\n"
        };
        wait_for("the MAC of a veth pair", LIMIT, mac, is_right).await;
        sh("ip link set cali123 address 02:11:22:33:44:55");
        wait_for("the MAC by event", LIMIT, mac, is_right).await;
        node.assert_quiet().await;
        node.agent.freeze().await;
        sh("ip link set cali123 address 02:11:22:33:44:55");
        node.restart();
        wait_for("the MAC after a restart", LIMIT, mac, is_right).await;
        assert_eq!(node.settled().await.problems, []);
    });
}

#[test]
fn exchanged_interfaces_keep_their_routes_and_are_named() {
    in_namespace(
        "endpoints::exchanged_interfaces_keep_their_routes_and_are_named",
        || async {
            let ([five, six], mut node) = two_pods(|_| true);
            let is_right = |seen: &str| seen == [&*five, &five, &six, &six].concat();
            let ways = || leads_to(5) + &leads_to(6);
            wait_for("routes", LIMIT, ways, is_right).await;
            assert_eq!(node.settled().await.problems, []);
            exchange();
            for restart in [false, true] {
                if restart {
                    node.restart();
                }
                let both = |s: &AgentStatus| s.kernel.phase == "synced" && s.problems.len() == 2;
                let status = node.status_when("both are named", both).await;
                assert_eq!(
                    status.problems[0].reason,
                    "interface cali5 is another workload's by its alias, and this one's is called cali6; the route leads to cali6; give both their names back (`ip link set cali6 name …`)"
                );
                node.pass_anew().await;
                wait_for("routes of both", LIMIT, ways, is_right).await;
                // Packets of each may come from its own interface.
                let sources = sh("nft list set inet caracal ip_sources");
                assert!(sources.contains("\"cali6\" . 10.244.0.5"), "{sources}");
                let sources = sh("nft list set inet caracal ip6_sources");
                assert!(sources.contains("\"cali6\" . fd00:10:244::5"), "{sources}");
            }
            exchange();
            node.status_when("names are back", |s| s.problems.is_empty())
                .await;
            wait_for("routes as before", LIMIT, ways, is_right).await;
        },
    );
}

/// Nothing says whose an interface of another plugin is but its name: routes follow it, and nobody
/// is accused of anything. One alias alone says of neither pod where its interface is.
#[test]
fn exchanged_interfaces_without_alias_have_their_names_routes() {
    in_namespace(
        "endpoints::exchanged_interfaces_without_alias_have_their_names_routes",
        || async {
            for with_alias in [None, Some(5), Some(6)] {
                sh("ip link del cali5; ip link del cali6; ip link del eth0; true");
                let ([five, six], mut node) = two_pods(|n| with_alias == Some(n));
                let ways = || leads_to(5) + &leads_to(6);
                let by_name = [&*five, &five, &six, &six].concat();
                let exchanged = [&*six, &six, &five, &five].concat();
                wait_for("routes", LIMIT, ways, |seen| seen == by_name).await;
                assert_eq!(node.settled().await.problems, []);
                exchange();
                for restart in [false, true] {
                    if restart {
                        node.restart();
                    }
                    wait_for("routes of the names", LIMIT, ways, |seen| seen == exchanged).await;
                    node.settled().await;
                    assert_eq!(node.pass_anew().await.problems, []);
                }
                exchange();
                wait_for("routes as before", LIMIT, ways, |seen| seen == by_name).await;
                assert_eq!(node.settled().await.problems, []);
                node.end().await;
            }
        },
    );
}

#[test]
fn somebody_elses_better_routes_are_named() {
    in_namespace(
        "endpoints::somebody_elses_better_routes_are_named",
        || async {
            let (_, mut node) = two_pods(|_| true);
            node.learn(&[
                ("10.244.1.0/26", "10.0.0.2"),
                ("fd00:10:244:1::/122", "fd00:a::2"),
            ]);
            let learned = || sh("ip -6 route show proto 80");
            wait_for("routes", LIMIT, learned, |seen| {
                seen.contains("fd00:10:244:1::/122 via fd00:a::2")
            })
            .await;
            node.settled().await;
            for (route, ours) in [
                (
                    "10.244.0.5/32 dev eth0 metric 7",
                    "10.244.0.5/32 (dev cali5)",
                ),
                (
                    "10.244.1.7/32 dev eth0 metric 7",
                    "10.244.1.0/26 (via 10.0.0.2 dev eth0 onlink)",
                ),
                (
                    "fd00:10:244::5/128 dev eth0 metric 7",
                    "fd00:10:244::5/128 (dev cali5)",
                ),
                (
                    "fd00:10:244:1::7/128 dev eth0 metric 7",
                    "fd00:10:244:1::/122 (via fd00:a::2 dev eth0 onlink)",
                ),
            ] {
                for restart in [false, true] {
                    sh(&format!("ip route add {route}"));
                    if restart {
                        node.restart();
                    }
                    let named =
                        |s: &AgentStatus| s.kernel.phase == "synced" && !s.problems.is_empty();
                    let status = node.status_when("it is named", named).await;
                    let (prefix, _) = route.split_once(' ').unwrap();
                    assert_eq!(status.problems.len(), 1);
                    assert_eq!(status.problems[0].subject, prefix);
                    assert_eq!(
                        status.problems[0].reason,
                        format!(
                            "a route of another program (protocol 3, metric 7) takes what is sent there from ours to {ours}; if ours is the right one, `ip route del {prefix} metric 7` removes it"
                        )
                    );
                    // The remedy is one.
                    sh(&format!("ip route del {prefix} metric 7"));
                    node.status_when("nothing is wrong", |s| s.problems.is_empty())
                        .await;
                }
            }
            // What takes nothing is nobody's business: a higher metric, an unused address, others.
            for route in [
                "10.244.0.5/32 dev eth0 metric 4000",
                "10.244.0.9/32 dev eth0",
                "192.0.2.1/32 dev eth0",
                "fd00:10:244::5/128 dev eth0 metric 4000",
                "fd00:10:244::9/128 dev eth0",
                "2001:db8::1/128 dev eth0",
            ] {
                sh(&format!("ip route add {route}"));
            }
            assert_eq!(node.pass_anew().await.problems, []);
            assert!(sh("ip route show").contains("10.244.0.9 dev eth0"));
            assert!(sh("ip -6 route show").contains("fd00:10:244::9 dev eth0"));
        },
    );
}
