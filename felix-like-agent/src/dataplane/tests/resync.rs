//! When nothing is told of a change: the periodic comparison finds it. When a notification is lost,
//! that is told, and is a reason to look.

use super::routes::{WANTED, entries, routes, up};
use super::*;

fn refresh(interval: &str) -> String {
    format!(r#"{{"metadata":{{"name":"default"}},"spec":{{"routeRefreshInterval":"{interval}"}}}}"#)
}

/// The kernel says nothing of this value: only the periodic comparison finds it changed.
#[test]
fn what_no_event_tells_is_repaired_at_the_resync() {
    in_namespace(
        "resync::what_no_event_tells_is_repaired_at_the_resync",
        || async {
            let mut node = up().await;
            node.settled().await;
            let path = "/proc/sys/net/ipv4/conf/cali123/route_localnet";
            let read = || std::fs::read_to_string(path).unwrap();
            wait_for("the value", LIMIT, read, |seen| seen.trim() == "0").await;
            node.put("felixconfigurations", "default", refresh("500ms"));
            node.settled().await;
            node.assert_quiet().await;
            std::fs::write(path, "1").unwrap();
            let took = wait_for("repaired at the resync", LIMIT, read, |seen| {
                seen.trim() == "0"
            })
            .await;
            println!(
                "an unheard change was repaired within {took:?} with routeRefreshInterval 500ms"
            );
        },
    );
}

/// An agent that hears nothing: without the periodic comparison damage stays, and with it
/// everything is repaired.
#[test]
fn the_resync_repairs_what_nobody_hears_of() {
    in_namespace(
        "resync::the_resync_repairs_what_nobody_hears_of",
        || async {
            lab();
            sh(
                "ip link add cali123 type veth peer name pod; ip link set cali123 up; ip link set pod up",
            );
            let deaf = ReconcilerOptions {
                deaf: true,
                ..options(false)
            };
            let mut node = Node::start_with(deaf, &entries());
            node.put("felixconfigurations", "default", refresh("0s"));
            node.learn(&[("10.244.1.0/26", "10.0.0.2")]);
            wait_for("routes", LIMIT, routes, |seen| seen == WANTED).await;
            let rules = || {
                sh(
                    "nft list table inet caracal 2>/dev/null || iptables-legacy-save | grep caracal- || true",
                )
            };
            let neighbours = || sh("ip neigh show dev cali123 nud permanent");
            // Between two passes, and with nothing that waits for one.
            node.agent.resync().await;
            assert!(node.agent.answers().await);
            node.settled().await;
            let quiet = node.agent.status().borrow().passes;
            let (all_rules, all_neighbours) = (rules(), neighbours());
            let damage = || {
                sh("ip route flush proto 80
                ip neigh flush dev cali123 nud permanent
                nft delete table inet caracal 2>/dev/null || iptables-legacy -F caracal-forward");
            };
            damage();
            assert!(node.agent.answers().await);
            assert_eq!(routes(), "", "nobody has heard of it");
            let passes = node.agent.status().borrow().passes;
            assert_eq!(passes, quiet, "and nobody has looked");
            node.put("felixconfigurations", "default", refresh("200ms"));
            for _ in 0..2 {
                wait_for("the routes", LIMIT, routes, |seen| seen == WANTED).await;
                wait_for("the neighbours", LIMIT, neighbours, |seen| {
                    seen == all_neighbours
                })
                .await;
                wait_for("the rules", LIMIT, rules, |seen| seen == all_rules).await;
                // The first time it was the new setting that made it look.
                node.settled().await;
                damage();
            }
            wait_for("the routes", LIMIT, routes, |seen| seen == WANTED).await;
        },
    );
}

/// More notifications than the socket holds, all of them about a table that is not ours, and ours
/// among the lost ones: the loss itself is heard.
#[test]
fn lost_notifications_are_a_reason_to_look() {
    in_namespace(
        "resync::lost_notifications_are_a_reason_to_look",
        || async {
            let mut node = up().await;
            node.put("felixconfigurations", "default", refresh("0s"));
            node.settled().await;
            node.assert_quiet().await;
            let before = node.agent.status().borrow().passes;
            // This thread is the only one of the runtime: nothing is read from the socket
            // meanwhile.
            sh("seq 0 59999 | awk '{printf \"route add blackhole 11.%d.%d.%d table 77\\n\", $1/65536, ($1/256)%256, $1%256}' | ip -batch -
            ip route flush proto 80");
            assert_eq!(routes(), "");
            // The kernel's own count of what it could not put into a socket.
            let dropped = sh("awk 'NR > 1 { sum += $9 } END { print sum + 0 }' /proc/net/netlink");
            assert_ne!(dropped.trim(), "0", "nothing was lost");
            wait_for("the routes", LIMIT, routes, |seen| seen == WANTED).await;
            // The routes are there before their pass has ended.
            let passes = || node.agent.status().borrow().passes.to_string();
            wait_for("the pass", LIMIT, passes, |after| {
                after != before.to_string()
            })
            .await;
            node.settled().await;
            // And it hears as before.
            sh("ip route flush proto 80");
            wait_for("the routes again", LIMIT, routes, |seen| seen == WANTED).await;
        },
    );
}
