//! Routes without tunnels, sysctls, adoption, repair.

use super::*;

/// `ip route` without the kernel's own routes, sorted.
pub(super) fn routes() -> String {
    sh("ip route | grep -v 'proto kernel' | sed 's/ *$//' | sort")
}

pub(super) fn entries() -> Vec<(&'static str, &'static str, String)> {
    vec![
        node("a", "10.0.0.1/24", "10.244.0.1"),
        node("b", "10.0.0.2/24", "10.244.1.1"),
        pool("p", "10.244.0.0/16", ""),
        block("10.244.0.0/26", "a"),
        block("10.244.1.0/26", "b"),
        workload("10.244.0.5", "cali123"),
    ]
}

pub(super) const WANTED: &str = "10.244.0.5 dev cali123 proto 80 scope link metric 1024
10.244.1.0/26 via 10.0.0.2 dev eth0 proto 80 onlink
blackhole 10.244.0.0/26 proto 80 metric 1000000
";

pub(super) async fn up() -> Node {
    lab();
    sh("ip link add cali123 type veth peer name pod; ip link set cali123 up; ip link set pod up");
    let node = Node::start(&entries());
    node.learn(&[("10.244.1.0/26", "10.0.0.2")]);
    wait_for("routes", LIMIT, routes, |seen| seen == WANTED).await;
    node
}

#[test]
fn shapes_are_calicos() {
    in_namespace("routes::shapes_are_calicos", || async {
        let node = up().await;
        assert_eq!(
            sh("ip neigh show dev cali123 nud permanent"),
            "10.244.0.5 lladdr 02:00:00:00:00:05 PERMANENT \n"
        );
        for (path, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv4/conf/cali123/proxy_arp", "1"),
            ("net/ipv4/conf/cali123/route_localnet", "0"),
            ("net/ipv4/conf/cali123/forwarding", "1"),
            ("net/ipv4/neigh/cali123/proxy_delay", "0"),
        ] {
            let file = format!("/proc/sys/{path}");
            wait_for(
                path,
                LIMIT,
                || std::fs::read_to_string(&file).unwrap(),
                |seen| seen.trim() == value,
            )
            .await;
        }
        let status = node.settled().await;
        assert_eq!(status.problems, []);
        assert_eq!(status.kernel.routes["blackhole"], 1);
        node.assert_quiet().await;
    });
}

#[test]
fn a_new_process_adopts_what_is_there() {
    in_namespace("routes::a_new_process_adopts_what_is_there", || async {
        let mut node = up().await;
        node.settled().await;
        let status = node.restart_unsure().await;
        assert_eq!(status.applied, 0, "nothing is rewritten");
        assert_eq!(routes(), WANTED, "nothing is deleted");
        node.learn(&[("10.244.1.0/26", "10.0.0.2")]);
        node.precondition.send_replace(SweepPrecondition::met());
        let status = node.settled().await;
        assert_eq!(status.applied, 0);
        assert_eq!(routes(), WANTED);
    });
}

#[test]
fn agent_4_nothing_is_deleted_before_everybody_is_sure() {
    in_namespace(
        "routes::agent_4_nothing_is_deleted_before_everybody_is_sure",
        || async {
            let mut node = up().await;
            node.settled().await;
            node.precondition.send_replace(SweepPrecondition {
                bgp: Err("waiting for End-of-RIB of Mesh_10_0_0_2".into()),
                ..SweepPrecondition::met()
            });
            node.learn(&[]);
            node.delete("block", "10.244.0.0/26");
            let status = node
                .status_when("learning", |s| {
                    s.desired.revision == node.data.revision && s.kernel.phase == "learning"
                })
                .await;
            assert_eq!(
                status.kernel.reason.as_deref(),
                Some("nothing is deleted: waiting for End-of-RIB of Mesh_10_0_0_2")
            );
            assert_eq!(routes(), WANTED);
            node.precondition.send_replace(SweepPrecondition::met());
            wait_for("the sweep", LIMIT, routes, |seen| {
                seen == "10.244.0.5 dev cali123 proto 80 scope link metric 1024\n"
            })
            .await;
        },
    );
}

#[test]
fn damage_is_repaired_by_event() {
    in_namespace("routes::damage_is_repaired_by_event", || async {
        let node = up().await;
        node.settled().await;
        for damage in [
            "ip route del 10.244.1.0/26",
            "ip route del blackhole 10.244.0.0/26 metric 1000000",
            "ip route flush proto 80",
            "ip route replace 10.244.1.0/26 via 10.0.0.77 dev eth0 proto 80",
            "ip link set eth0 down; ip link set eth0 up",
        ] {
            sh(damage);
            let took = wait_for(damage, LIMIT, routes, |seen| seen == WANTED).await;
            println!("{damage}: repaired after {took:?}");
        }
        sh("ip neigh del 10.244.0.5 dev cali123");
        wait_for(
            "the neighbour",
            LIMIT,
            || sh("ip neigh show dev cali123 nud permanent"),
            |seen| seen.contains("10.244.0.5"),
        )
        .await;
    });
}

#[test]
fn agent_5_foreign_routes_stay_and_win() {
    in_namespace("routes::agent_5_foreign_routes_stay_and_win", || async {
        lab();
        let foreign = "10.244.1.0/26 via 10.0.0.9 dev eth0 proto static
10.244.9.0/26 via 10.0.0.9 dev eth0 proto zebra
192.0.2.0/24 via 10.0.0.9 dev eth0 proto static
blackhole 10.244.0.128/26 proto zebra
";
        for line in foreign.lines() {
            sh(&format!("ip route add {line}"));
        }
        let mut node = Node::start(&entries()[..5]);
        node.learn(&[("10.244.1.0/26", "10.0.0.2"), ("10.244.9.0/26", "10.0.0.2")]);
        let status = node
            .status_when("conflicts", |s| {
                s.kernel.phase == "synced" && s.problems.len() == 2
            })
            .await;
        assert_eq!(
            status.problems[0].reason,
            "a route of another program (protocol 4) has this prefix and metric 0; it stays and ours (via 10.0.0.2 dev eth0 onlink) is not written; remove it if ours is the right one"
        );
        let with_ours = foreign.to_owned() + "blackhole 10.244.0.0/26 proto 80 metric 1000000\n";
        let mut lines: Vec<&str> = with_ours.lines().collect();
        lines.sort_unstable();
        assert_eq!(routes().lines().collect::<Vec<_>>(), lines);
        // The foreign one goes: ours comes by itself.
        sh("ip route del 10.244.1.0/26");
        wait_for("ours", LIMIT, routes, |seen| {
            seen.contains("10.244.1.0/26 via 10.0.0.2 dev eth0 proto 80 onlink")
        })
        .await;
        // And leaving takes nothing of others away.
        for name in ["a", "b"] {
            node.delete("nodes", name);
        }
        node.delete("block", "10.244.0.0/26");
        node.learn(&[]);
        let left = foreign.replacen("10.244.1.0/26 via 10.0.0.9 dev eth0 proto static\n", "", 1);
        wait_for("the sweep", LIMIT, routes, |seen| seen == left).await;
    });
}

#[test]
fn a_cni_plugins_route_is_adopted() {
    in_namespace("routes::a_cni_plugins_route_is_adopted", || async {
        lab();
        sh("ip link add cali123 type veth peer name pod; ip link set cali123 up; ip link set pod up
            ip route add 10.244.0.5/32 dev cali123 scope link
            ip route add 10.244.0.6/32 dev cali123 scope link");
        let node = Node::start(&entries());
        node.learn(&[("10.244.1.0/26", "10.0.0.2")]);
        // The second one has no endpoint yet: its plugin may be about to write it.
        wait_for("routes", LIMIT, routes, |seen| {
            seen.replace("10.244.0.6 dev cali123 scope link\n", "") == WANTED && seen != WANTED
        })
        .await;
    });
}

#[test]
fn freezing_stops_all_writing() {
    in_namespace("routes::freezing_stops_all_writing", || async {
        let node = up().await;
        node.settled().await;
        assert_eq!(
            node.agent.freeze().await,
            crate::dataplane::Freezing::Frozen
        );
        node.learn(&[]);
        node.precondition.send_replace(SweepPrecondition::default());
        let status = node
            .status_when("frozen", |s| s.kernel.phase == "frozen")
            .await;
        let before = status.passes;
        sh("ip route del 10.244.1.0/26");
        node.status_when("a pass", |s| s.passes > before).await;
        assert!(!routes().contains("10.244.1.0/26"), "frozen means frozen");
    });
}

#[test]
fn ten_thousand_routes_in_batches() {
    in_namespace("routes::ten_thousand_routes_in_batches", || async {
        lab();
        let node = Node::start(&entries()[..3]);
        let learned: SharedMap<Prefix, Learned> = (0..10_000u32)
            .map(|n| {
                let prefix = Prefix::v4((0x0b00_0000 + n * 64).into(), 26);
                (prefix, Learned::internal("10.0.0.2".parse().unwrap()))
            })
            .collect();
        node.settled().await;
        let start = Instant::now();
        node.learned.send_replace(learned);
        node.status_when("all", |s| s.applied >= 10_000).await;
        println!("10000 routes written after {:?}", start.elapsed());
        assert_eq!(
            sh("ip route show proto 80 metric 1024 | wc -l").trim(),
            "10000"
        );
        let start = Instant::now();
        node.assert_quiet().await;
        println!("10000 routes compared in {:?}", start.elapsed());
        let before = node.agent.status().borrow().applied;
        node.learn(&[]);
        node.status_when("the sweep", |s| s.applied >= before + 10_000)
            .await;
        assert_eq!(sh("ip route show proto 80 metric 1024 | wc -l").trim(), "0");
    });
}

#[test]
fn equal_cost_paths_are_written_once() {
    in_namespace("routes::equal_cost_paths_are_written_once", || async {
        let node = up().await;
        let mut learned = SharedMap::clone(&node.learned.borrow());
        let hops = ["10.0.0.7", "10.0.0.3"]
            .map(|h| h.parse().unwrap())
            .to_vec();
        learned.insert(
            "192.0.2.0/24".parse().unwrap(),
            Learned {
                next_hops: hops,
                gateways: Arc::default(),
                internal: false,
                stale: false,
                preferred_source: None,
            },
        );
        node.learned.send_replace(learned);
        let route = || sh("ip route show 192.0.2.0/24 | tr -s ' \\n\\t' ' '");
        wait_for("both ways", LIMIT, route, |seen| {
            seen.trim()
                == "192.0.2.0/24 proto 80 metric 1024 nexthop via 10.0.0.3 dev eth0 weight 1 onlink nexthop via 10.0.0.7 dev eth0 weight 1 onlink"
        })
        .await;
        node.assert_quiet().await;
    });
}

/// FRR writes its routes with next-hop objects; they lead somewhere like any other.
#[test]
fn ways_through_next_hop_objects_of_others_count() {
    in_namespace(
        "routes::ways_through_next_hop_objects_of_others_count",
        || async {
            let node = up().await;
            sh("ip nexthop add id 7 via 10.0.0.254 dev eth0 proto zebra
                ip nexthop add id 8 via 10.0.0.253 dev eth0 proto zebra
                ip nexthop add id 9 group 7/8 proto zebra
                ip route add 10.9.0.0/24 nhid 7 proto bgp
                ip route add 10.10.0.0/24 nhid 9 proto bgp");
            node.learn(&[
                ("10.244.1.0/26", "10.0.0.2"),
                ("10.244.2.0/26", "10.9.0.2"),
                ("10.244.3.0/26", "10.10.0.2"),
            ]);
            let route = |block: &'static str| move || sh(&format!("ip route show {block}"));
            for (block, gateways) in [
                ("10.244.2.0/26", &["10.0.0.254"][..]),
                ("10.244.3.0/26", &["10.0.0.253", "10.0.0.254"]),
            ] {
                wait_for(block, LIMIT, route(block), |seen| {
                    gateways.iter().any(|g| seen.contains(&format!("via {g} ")))
                })
                .await;
            }
            node.pass_anew().await;
            let underlay = node.agent.underlay().borrow().underlay.clone();
            let found = |address: &str| underlay.find(address.parse().unwrap()).cloned();
            for address in ["10.9.0.2", "10.10.0.2"] {
                let way = found(address).unwrap_or_else(|| panic!("no way to {address}"));
                assert_eq!(way.interface.unwrap().as_str(), "eth0");
            }
            // And they are nobody's but FRR's.
            drop(node);
            assert!(sh("ip route show proto bgp").contains("10.9.0.0/24 nhid 7"));
        },
    );
}

/// The route to a next hop goes and comes back: what leads over it follows in one pass, and nothing
/// is refused or written twice.
#[test]
fn a_flap_of_the_underlay_reaches_the_kernel_in_one_pass() {
    in_namespace(
        "routes::a_flap_of_the_underlay_reaches_the_kernel_in_one_pass",
        || async {
            let node = up().await;
            sh("ip link add eth1 type veth peer name wire1; ip link set wire1 up; ip link set eth1 up
                ip addr add 10.0.1.1/24 dev eth1
                ip route add 10.9.0.0/24 via 10.0.0.254 metric 10
                ip route add 10.9.0.0/24 via 10.0.1.254 metric 20");
            let blocks = ["10.244.1.0/26", "10.244.2.0/26", "10.244.3.0/26"];
            node.learn(&blocks.map(|block| (block, "10.9.0.2")));
            let over = |device: &str| {
                sh(&format!(
                    "ip route show proto 80 dev {device} | grep -c via || true"
                ))
            };
            wait_for("eth0", LIMIT, || over("eth0"), |seen| seen.trim() == "3").await;
            for (change, device) in [
                ("ip route del 10.9.0.0/24 metric 10", "eth1"),
                ("ip route add 10.9.0.0/24 via 10.0.0.254 metric 10", "eth0"),
            ] {
                node.assert_quiet().await;
                let before = node.agent.status().borrow().clone();
                let number = node.agent.underlay().borrow().number;
                sh(change);
                let written = node
                    .status_when("another gateway", |s| s.applied > before.applied)
                    .await;
                assert_eq!(written.passes, before.passes + 1, "{change}");
                assert_eq!(node.agent.underlay().borrow().number, number + 1);
                assert_eq!(written.applied, before.applied + 3, "{change}");
                assert_eq!(over(device).trim(), "3", "{change}");
                node.assert_quiet().await;
                assert_eq!(node.agent.status().borrow().applied, written.applied);
            }
            // The kernel takes the routes of a link that goes with it: they come back over the
            // other one, and nothing is tried over the one that is gone.
            let before = node.pass_anew().await;
            sh("ip link set eth0 down");
            wait_for("eth1", LIMIT, || over("eth1"), |seen| seen.trim() == "3").await;
            let after = node.pass_anew().await;
            assert_eq!(after.applied, before.applied + 3);
            let refused =
                |s: &AgentStatus| s.problems.iter().any(|p| p.code == "agent.kernel_refused");
            assert!(!refused(&after), "{:?}", after.problems);
        },
    );
}
