//! The VXLAN device, its neighbours and FDB, and packets through it.

use super::*;

fn entries() -> Vec<(&'static str, &'static str, String)> {
    vec![
        node("a", "10.0.0.1/24", "10.244.0.1"),
        node("b", "10.0.0.2/24", "10.244.1.1"),
        node("c", "10.0.1.3/24", "10.244.2.1"),
        pool("p", "10.244.0.0/16", r#","vxlanMode":"Always""#),
        block("10.244.0.0/26", "a"),
        block("10.244.1.0/26", "b"),
        block("10.244.2.0/26", "c"),
    ]
}

fn routes() -> String {
    sh("ip route show proto 80 | sed 's/ *$//' | sort")
}

/// SHA-1("b") and SHA-1("c"), first five octets.
const MAC_B: &str = "66:e9:d7:1f:5e:e7";
const MAC_C: &str = "66:84:a5:16:84:1b";

const ALWAYS: &str = "10.244.1.0/26 via 10.244.1.1 dev vxlan.calico onlink mtu 1450
10.244.2.0/26 via 10.244.2.1 dev vxlan.calico onlink mtu 1450
blackhole 10.244.0.0/26 metric 1000000
";

#[test]
fn device_neighbours_and_fdb_are_calicos() {
    in_namespace("vxlan::device_neighbours_and_fdb_are_calicos", || async {
        lab();
        let node = Node::start(&entries());
        wait_for("routes", LIMIT, routes, |seen| seen == ALWAYS).await;
        let device = sh("ip -d link show vxlan.calico");
        for part in [
            "vxlan id 4096",
            "local 10.0.0.1",
            "dev eth0",
            "dstport 4789",
            "nolearning",
            "mtu 1450",
            // SHA-1("a")
            "link/ether 66:86:f7:e4:37:fa",
        ] {
            assert!(device.contains(part), "{part} in {device}");
        }
        assert!(sh("ip addr show dev vxlan.calico").contains("inet 10.244.0.1/32 scope global"));
        assert_eq!(
            sh("ip neigh show dev vxlan.calico nud permanent | sort"),
            format!("10.244.1.1 lladdr {MAC_B} PERMANENT \n10.244.2.1 lladdr {MAC_C} PERMANENT \n")
        );
        let fdb = || sh("bridge fdb show dev vxlan.calico | sort");
        assert_eq!(
            fdb(),
            format!("{MAC_B} dst 10.0.0.2 self permanent\n{MAC_C} dst 10.0.1.3 self permanent\n")
                .lines()
                .map(str::to_owned)
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .map(|line| line + "\n")
                .collect::<String>()
        );
        let status = node.settled().await;
        assert_eq!(status.problems, []);
        assert_eq!(status.kernel.tunnels, ["vxlan.calico"]);
        node.assert_quiet().await;
        // Somebody tampers.
        sh(&format!(
            "bridge fdb del {MAC_B} dev vxlan.calico dst 10.0.0.2 self"
        ));
        wait_for("FDB", LIMIT, fdb, |seen| seen.contains(MAC_B)).await;
        sh("ip link set vxlan.calico mtu 1200");
        let link = || sh("ip link show vxlan.calico");
        wait_for("MTU", LIMIT, link, |seen| seen.contains("mtu 1450")).await;
        sh("ip link del vxlan.calico");
        wait_for("all", LIMIT, routes, |seen| seen == ALWAYS).await;
        wait_for("FDB", LIMIT, fdb, |seen| seen.contains(MAC_B)).await;
    });
}

#[test]
fn a_node_that_moves_takes_its_entries_along() {
    in_namespace(
        "vxlan::a_node_that_moves_takes_its_entries_along",
        || async {
            lab();
            let mut node = Node::start(&entries());
            wait_for("routes", LIMIT, routes, |seen| seen == ALWAYS).await;
            let (kind, name, value) = super::node("b", "10.0.0.22/24", "10.244.1.9");
            node.put(kind, name, value);
            let all = || {
                routes() + &sh("bridge fdb show dev vxlan.calico; ip neigh show dev vxlan.calico")
            };
            wait_for("the new address", LIMIT, all, |seen| {
                seen.contains("10.244.1.0/26 via 10.244.1.9 dev vxlan.calico")
                    && seen.contains(&format!("{MAC_B} dst 10.0.0.22"))
                    && seen.contains(&format!("10.244.1.9 lladdr {MAC_B}"))
                    && !seen.contains("10.244.1.1 ")
                    && !seen.contains("10.0.0.2 ")
            })
            .await;
            node.settled().await;
            node.assert_quiet().await;
        },
    );
}

#[test]
fn cross_subnet_and_leaving() {
    in_namespace("vxlan::cross_subnet_and_leaving", || async {
        lab();
        let mut node = Node::start(&entries());
        wait_for("routes", LIMIT, routes, |seen| seen == ALWAYS).await;
        let (kind, name, value) = pool("p", "10.244.0.0/16", r#","vxlanMode":"CrossSubnet""#);
        node.put(kind, name, value);
        let cross = "10.244.1.0/26 via 10.0.0.2 dev eth0 onlink
10.244.2.0/26 via 10.244.2.1 dev vxlan.calico onlink mtu 1450
blackhole 10.244.0.0/26 metric 1000000
";
        wait_for("cross-subnet", LIMIT, routes, |seen| seen == cross).await;
        // Another VNI means another device, with all that belongs to it.
        let configuration =
            r#"{"metadata":{"name":"default"},"spec":{"vxlanVNI":4097}}"#.to_owned();
        node.put("felixconfigurations", "default", configuration);
        let device = || {
            sh(
                "ip -d link show vxlan.calico 2>/dev/null; ip route show proto 80; bridge fdb show dev vxlan.calico 2>/dev/null; true",
            )
        };
        wait_for("another VNI", LIMIT, device, |seen| {
            seen.contains("vxlan id 4097") && seen.contains("10.244.2.1") && seen.contains(MAC_C)
        })
        .await;
        // No pool uses VXLAN any more: the routes go at once, the device a little later.
        let (kind, name, value) = pool("p", "10.244.0.0/16", "");
        node.put(kind, name, value);
        wait_for("no routes", LIMIT, routes, |seen| {
            seen == "blackhole 10.244.0.0/26 metric 1000000\n"
        })
        .await;
        sh("ip link show vxlan.calico");
        let links = || sh("ip -o link");
        let lingered = wait_for("no device", LIMIT, links, |seen| {
            !seen.contains("vxlan.calico")
        })
        .await;
        println!("the device stayed {lingered:?} longer than its routes");
        node.settled().await;
        node.assert_quiet().await;
    });
}

#[test]
fn a_foreign_device_with_our_name_is_not_touched() {
    in_namespace(
        "vxlan::a_foreign_device_with_our_name_is_not_touched",
        || async {
            lab();
            sh("ip link add vxlan.calico type bridge; ip link set vxlan.calico up");
            let node = Node::start(&entries());
            let status = node
                .status_when("the conflict", |s| {
                    s.problems.iter().any(|p| p.code == "agent.foreign_device")
                })
                .await;
            assert_eq!(status.problems.len(), 1, "{:?}", status.problems);
            assert!(sh("ip -d link show vxlan.calico").contains("bridge"));
            assert_eq!(routes(), "blackhole 10.244.0.0/26 metric 1000000\n");
        },
    );
}

/// Removes a namespace when the test ends, however it ends.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn packets_reach_a_node_made_by_hand() {
    in_namespace("vxlan::packets_reach_a_node_made_by_hand", || async {
        lab();
        let other = Namespace(format!("caragent-{}", std::process::id()));
        let ns = &other.0;
        sh(&format!("ip netns add {ns}; ip link set wire netns {ns}"));
        let mac_a = "66:86:f7:e4:37:fa";
        sh(&format!(
            "ip -n {ns} link set lo up
             ip -n {ns} link set wire up
             ip -n {ns} addr add 10.0.0.2/24 dev wire
             ip -n {ns} link add vxlan.calico address {MAC_B} type vxlan id 4096 dstport 4789 local 10.0.0.2 dev wire nolearning
             ip -n {ns} addr add 10.244.1.1/32 dev vxlan.calico
             ip -n {ns} addr add 10.244.1.5/32 dev lo
             ip -n {ns} link set vxlan.calico up
             ip -n {ns} neigh add 10.244.0.1 lladdr {mac_a} dev vxlan.calico nud permanent
             bridge -n {ns} fdb add {mac_a} dev vxlan.calico dst 10.0.0.1 self permanent
             ip -n {ns} route add 10.244.0.0/26 via 10.244.0.1 dev vxlan.calico onlink"
        ));
        let node = Node::start(&entries());
        node.settled().await;
        let ping = || {
            let output = Command::new("ping")
                .args(["-n", "-c", "1", "-W", "1", "10.244.1.5"])
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        wait_for("an answer through VXLAN", LIMIT, ping, |seen| {
            seen.contains(" 0% packet loss")
        })
        .await;
        let sent = sh("ip -s link show vxlan.calico");
        assert!(!sent.contains("TX: 0"), "{sent}");
    });
}
