//! What others do to the host side interfaces of workloads, and to the ways to their addresses.

use super::routes::{entries, routes, up};
use super::*;

/// A workload with the host side interface that our plugin made for its container.
fn pod(n: u8) -> (&'static str, String, String) {
    let value = format!(
        r#"{{"metadata":{{"name":"w{n}","namespace":"default"}},"spec":{{"node":"a","interfaceName":"cali{n}",
            "containerID":"c{n}","ipNetworks":["10.244.0.{n}/32"],"mac":"02:00:00:00:00:0{n}"}}}}"#
    );
    ("workloadendpoints", format!("default/w{n}"), value)
}

fn index_of(link: &str) -> String {
    sh(&format!("ip -o link show {link} | cut -d: -f1"))
}

/// The index of the interface that packets to a pod leave by.
fn leads_to(pod: u8) -> String {
    let route = sh(&format!("ip -o route show 10.244.0.{pod}"));
    match route.split(' ').skip_while(|word| *word != "dev").nth(1) {
        Some(link) => index_of(link),
        None => route,
    }
}

#[test]
fn the_host_side_gets_its_mac_back() {
    in_namespace("endpoints::the_host_side_gets_its_mac_back", || async {
        let mut node = up().await;
        let (kind, name, value) = workload("10.244.0.5", "cali123");
        let of_plugin = r#""spec":{"orchestrator":"k8s","#;
        node.put(kind, name, value.replace(r#""spec":{"#, of_plugin));
        // Another address takes the interface's neighbours with it.
        let mac = || {
            sh(
                "ip -o link show cali123 | grep -o 'ether [^ ]*'; ip neigh show dev cali123 nud permanent",
            )
        };
        let is_right = |seen: &str| {
            seen == "ether ee:ee:ee:ee:ee:ee\n10.244.0.5 lladdr 02:00:00:00:00:05 PERMANENT \n"
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
            lab();
            for n in [5, 6] {
                sh(&format!(
                    "ip link add cali{n} type veth peer name pod{n}; ip link set cali{n} up; ip link set pod{n} up
                     ip link set cali{n} alias caracal:k8s-pod-network.c{n}"
                ));
            }
            let indices = [5, 6].map(|n| index_of(&format!("cali{n}")));
            let mut node = Node::start(&entries()[..5]);
            for n in [5, 6] {
                let (kind, name, value) = pod(n);
                node.put(kind, &name, value);
            }
            let is_right = |seen: &str| seen == indices.concat();
            let ways = || leads_to(5) + &leads_to(6);
            wait_for("routes", LIMIT, ways, is_right).await;
            assert_eq!(node.settled().await.problems, []);
            sh(
                "ip link set cali5 name swap; ip link set cali6 name cali5; ip link set swap name cali6",
            );
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
            }
            sh(
                "ip link set cali5 name swap; ip link set cali6 name cali5; ip link set swap name cali6",
            );
            node.status_when("names are back", |s| s.problems.is_empty())
                .await;
            wait_for("routes as before", LIMIT, ways, is_right).await;
        },
    );
}

#[test]
fn somebody_elses_better_routes_are_named() {
    in_namespace(
        "endpoints::somebody_elses_better_routes_are_named",
        || async {
            let mut node = up().await;
            node.settled().await;
            for (route, ours) in [
                (
                    "10.244.0.5/32 dev eth0 metric 7",
                    "10.244.0.5/32 (dev cali123)",
                ),
                (
                    "10.244.1.7/32 dev eth0 metric 7",
                    "10.244.1.0/26 (via 10.0.0.2 dev eth0 onlink)",
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
            ] {
                sh(&format!("ip route add {route}"));
            }
            assert_eq!(node.pass_anew().await.problems, []);
            assert!(routes().contains("10.244.0.9 dev eth0"));
        },
    );
}
