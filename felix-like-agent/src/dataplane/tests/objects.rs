//! Routes through next-hop objects: sharing, repair, adoption, changes in one message, the way
//! there and back, and objects of others.

use std::fs::File;
use std::path::PathBuf;
use std::process::Child;

use super::*;
use crate::dataplane::Uninstall;
use crate::ownership::Ownership;

/// False, with a word, where the kernel has no such objects.
fn possible() -> bool {
    let output = Command::new("ip")
        .args(["nexthop", "list"])
        .output()
        .unwrap();
    if !output.status.success() {
        println!("skipped: this kernel has no next-hop objects");
    }
    output.status.success()
}

/// `ip route` without the kernel's own routes and without the numbers of objects, sorted.
fn routes() -> String {
    sh("ip route | grep -v 'proto kernel' | sed 's/nhid [0-9]*/nhid N/; s/ *$//' | sort")
}

/// Numbers of the objects with our protocol.
fn ids() -> Vec<u32> {
    let text = sh("ip nexthop list protocol 80 | sed 's/^id \\([0-9]*\\).*/\\1/'");
    text.lines()
        .map(|line| line.trim().parse().unwrap())
        .collect()
}

fn entries() -> Vec<(&'static str, &'static str, String)> {
    vec![
        node("a", "10.0.0.1/24", "10.244.0.1"),
        node("b", "10.0.0.2/24", "10.244.1.1"),
        node("c", "10.0.0.3/24", "10.244.3.1"),
        pool("p", "10.244.0.0/16", ""),
        block("10.244.0.0/26", "a"),
        block("10.244.1.0/26", "b"),
        block("10.244.2.0/26", "b"),
        block("10.244.3.0/26", "c"),
        block("10.244.4.0/26", "c"),
    ]
}

const LEARNED: [(&str, &str); 4] = [
    ("10.244.1.0/26", "10.0.0.2"),
    ("10.244.2.0/26", "10.0.0.2"),
    ("10.244.3.0/26", "10.0.0.3"),
    ("10.244.4.0/26", "10.0.0.3"),
];

const WANTED: &str = "10.244.1.0/26 nhid N via 10.0.0.2 dev eth0 proto 80 onlink
10.244.2.0/26 nhid N via 10.0.0.2 dev eth0 proto 80 onlink
10.244.3.0/26 nhid N via 10.0.0.3 dev eth0 proto 80 onlink
10.244.4.0/26 nhid N via 10.0.0.3 dev eth0 proto 80 onlink
blackhole 10.244.0.0/26 proto 80 metric 1000000
";

/// `ip monitor` for routes and objects, from before until after what it is to see.
struct Monitor {
    child: Child,
    file: PathBuf,
}

impl Monitor {
    async fn start() -> Self {
        let file = std::env::temp_dir().join(format!("caracal-monitor-{}", std::process::id()));
        let child = Command::new("ip")
            .args(["-o", "monitor", "route", "nexthop"])
            .stdout(File::create(&file).unwrap())
            .spawn()
            .unwrap();
        let monitor = Self { child, file };
        // It listens once it tells of something.
        let look = || {
            sh("ip nexthop add id 6 blackhole proto static; ip nexthop del id 6");
            monitor.text()
        };
        wait_for("the monitor", LIMIT, look, |seen| seen.contains("id 6 ")).await;
        monitor
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap()
    }

    /// All that it has seen until now, without what was done to try it.
    async fn seen(&self) -> String {
        sh("ip nexthop add id 7 blackhole proto static; ip nexthop del id 7");
        let last = |seen: &str| seen.contains("Deleted id 7 ");
        wait_for("the end", LIMIT, || self.text(), last).await;
        let text = self.text();
        let tried = |l: &&str| l.contains("id ") && l.contains(" blackhole ");
        let lines = text.lines().filter(|l| !tried(l));
        lines.map(|line| format!("{line}\n")).collect()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

async fn up() -> Node {
    lab();
    let node = Node::start_with(options(true), &entries());
    node.learn(&LEARNED);
    wait_for("routes", LIMIT, routes, |seen| seen == WANTED).await;
    node.settled().await;
    node.assert_quiet().await;
    node
}

#[test]
fn routes_to_one_node_share_one_object_and_are_repaired() {
    in_namespace(
        "objects::routes_to_one_node_share_one_object_and_are_repaired",
        || async {
            if !possible() {
                return;
            }
            let node = up().await;
            let status = node.settled().await;
            assert_eq!(status.problems, []);
            assert_eq!(status.kernel.next_hops, "objects");
            let made = ids();
            assert_eq!(made.len(), 2, "{made:?}");
            assert!(
                made.iter()
                    .all(|id| (0x4300_0000..=0x43ff_ffff).contains(id))
            );
            for damage in [
                // The kernel deletes the routes with it, and tells only of the object.
                format!("ip nexthop del id {}", made[0]),
                "ip nexthop flush proto 80".to_owned(),
                "ip route del 10.244.1.0/26; ip route del 10.244.3.0/26".to_owned(),
                format!(
                    "ip nexthop replace id {} via 10.0.0.77 dev eth0 proto 80",
                    made[1]
                ),
                "ip route replace 10.244.1.0/26 via 10.0.0.77 dev eth0 proto 80".to_owned(),
                "ip link set eth0 down; ip link set eth0 up".to_owned(),
            ] {
                sh(&damage);
                let took = wait_for(&damage, LIMIT, routes, |seen| seen == WANTED).await;
                println!("{damage}: repaired after {took:?}");
            }
            node.assert_quiet().await;
            assert_eq!(ids().len(), 2);
        },
    );
}

#[test]
fn a_new_process_adopts_objects_and_routes() {
    in_namespace(
        "objects::a_new_process_adopts_objects_and_routes",
        || async {
            if !possible() {
                return;
            }
            let mut node = up().await;
            let made = ids();
            let status = node.restart_unsure().await;
            assert_eq!(status.applied, 0, "nothing is rewritten");
            node.learn(&LEARNED);
            node.precondition.send_replace(SweepPrecondition::met());
            let status = node.settled().await;
            assert_eq!(status.applied, 0);
            assert_eq!((routes().as_str(), ids()), (WANTED, made));
        },
    );
}

#[test]
fn a_node_that_moves_is_one_message() {
    in_namespace("objects::a_node_that_moves_is_one_message", || async {
        if !possible() {
            return;
        }
        let node = up().await;
        let (before, made) = (node.settled().await.applied, ids());
        let monitor = Monitor::start().await;
        node.learn(&[
            ("10.244.1.0/26", "10.0.0.9"),
            ("10.244.2.0/26", "10.0.0.9"),
            LEARNED[2],
            LEARNED[3],
        ]);
        let moved = WANTED.replace("10.0.0.2", "10.0.0.9");
        wait_for("both routes", LIMIT, routes, |seen| seen == moved).await;
        node.assert_quiet().await;
        let status = node.settled().await;
        assert_eq!(status.applied - before, 1, "one change for both routes");
        assert_eq!(ids(), made);
        let seen = monitor.seen().await;
        assert!(!seen.contains("Deleted"), "{seen}");
        let objects = seen
            .lines()
            .filter(|l| l.contains("proto 80") && l.starts_with("id "));
        assert_eq!(objects.count(), 1, "{seen}");
        // Only one of two goes elsewhere: the other one needs no object any more.
        node.learn(&[
            ("10.244.1.0/26", "10.0.0.3"),
            ("10.244.2.0/26", "10.0.0.9"),
            LEARNED[2],
            LEARNED[3],
        ]);
        let parted = moved
            .replacen("10.0.0.9", "10.0.0.3", 1)
            .replace("nhid N via 10.0.0.9", "via 10.0.0.9");
        wait_for("one route", LIMIT, routes, |seen| seen == parted).await;
        // And as nothing leads through it any more, it goes.
        let count = || ids().len().to_string();
        wait_for("one object", LIMIT, count, |seen| seen == "1").await;
    });
}

/// A gateway of a single route has no object, as long as it has none already.
#[test]
fn an_object_is_made_for_the_second_route() {
    in_namespace(
        "objects::an_object_is_made_for_the_second_route",
        || async {
            if !possible() {
                return;
            }
            lab();
            let node = Node::start_with(options(true), &entries());
            let lines: Vec<&str> = WANTED.lines().collect();
            let black = lines[4];
            let plain = |line: &str| line.replace("nhid N ", "");
            let of = |lines: &[&str]| format!("{}\n{black}\n", lines.join("\n"));
            let first = plain(lines[0]);
            for (learned, wanted, objects) in [
                (&LEARNED[..1], of(&[&first]), 0),
                (&LEARNED[..2], of(&lines[..2]), 1),
                (&LEARNED[..1], of(&[&first]), 0),
            ] {
                node.learn(learned);
                wait_for("routes", LIMIT, routes, |seen| seen == wanted).await;
                assert_eq!(node.settled().await.problems, []);
                node.assert_quiet().await;
                assert_eq!(ids().len(), objects);
            }
        },
    );
}

#[test]
fn from_plain_routes_to_objects_and_back_nothing_is_deleted() {
    in_namespace(
        "objects::from_plain_routes_to_objects_and_back_nothing_is_deleted",
        || async {
            if !possible() {
                return;
            }
            lab();
            let mut node = Node::start(&entries());
            node.learn(&LEARNED);
            let plain = WANTED.replace("nhid N ", "");
            wait_for("plain", LIMIT, routes, |seen| seen == plain).await;
            node.settled().await;
            let monitor = Monitor::start().await;
            for (objects, wanted) in [(true, WANTED), (false, plain.as_str())] {
                node = node.restarted(objects).await;
                wait_for("the other form", LIMIT, routes, |seen| seen == wanted).await;
                let expected = if objects { "2" } else { "0" };
                let count = || ids().len().to_string();
                wait_for("objects", LIMIT, count, |seen| seen == expected).await;
                let status = node.settled().await;
                assert_eq!(status.problems, []);
                node.assert_quiet().await;
            }
            let seen = monitor.seen().await;
            let deleted = seen.lines().filter(|l| l.contains("Deleted"));
            let deleted: Vec<&str> = deleted.collect();
            // Two objects, once nothing led through them.
            assert_eq!(deleted.len(), 2, "{seen}");
            assert!(deleted.iter().all(|l| l.contains("Deleted id ")), "{seen}");
            assert!(seen.contains("nhid"), "the monitor was listening: {seen}");
        },
    );
}

#[test]
fn agent_5_objects_of_others_are_untouched() {
    in_namespace(
        "objects::agent_5_objects_of_others_are_untouched",
        || async {
            if !possible() {
                return;
            }
            let node = up().await;
            let taken = ids();
            node.end().await;
            // Somebody else has a number that would be ours, and another one.
            sh(&format!(
                "ip nexthop flush proto 80
            ip nexthop add id {} via 10.0.0.7 dev eth0 proto static
            ip nexthop add id 7 via 10.0.0.8 dev eth0 proto zebra
            ip route add 192.0.2.0/24 nhid 7 proto zebra",
                taken[0]
            ));
            let foreign = || sh("ip nexthop list | grep -v 'proto 80'; ip route show 192.0.2.0/24");
            let before = foreign();
            let mut node = Node::start_with(options(true), &entries());
            node.learn(&LEARNED);
            let ours =
                || sh("ip route show proto 80 | sed 's/nhid [0-9]*/nhid N/; s/ *$//' | sort");
            let wanted = WANTED.replace(" proto 80", "");
            wait_for("routes", LIMIT, ours, |seen| seen == wanted).await;
            assert!(!ids().contains(&taken[0]), "{:?}", ids());
            // A route of somebody else's leads through an object of ours: it stays as long as that
            // does.
            let borrowed = ids()[0];
            sh(&format!(
                "ip route add 198.51.100.0/24 nhid {borrowed} proto static"
            ));
            for name in ["10.244.1.0/26", "10.244.2.0/26", "10.244.3.0/26"] {
                node.delete("block", name);
            }
            node.learn(&[]);
            let left = || format!("{:?}", ids());
            let one = format!("[{borrowed}]");
            wait_for("the other object", LIMIT, left, |seen| seen == one).await;
            assert_eq!(foreign(), before);
            node.end().await;
            let uninstall = Uninstall::plan(&Ownership::default(), None).await.unwrap();
            uninstall.remove().await.unwrap();
            assert_eq!(left(), one, "a route of somebody else's would go with it");
            assert!(sh("ip route show 198.51.100.0/24").contains("via 10.0.0."));
            sh("ip route del 198.51.100.0/24");
            let uninstall = Uninstall::plan(&Ownership::default(), None).await.unwrap();
            for (removal, result) in uninstall.remove().await.unwrap() {
                assert_eq!(result, Ok(()), "{removal}");
            }
            assert_eq!(left(), "[]");
            assert_eq!(foreign(), before);
        },
    );
}

#[test]
fn a_mode_change_replaces_objects_in_both_families() {
    in_namespace(
        "objects::a_mode_change_replaces_objects_in_both_families",
        || async {
            if !possible() || !std::path::Path::new("/proc/sys/net/ipv6").is_dir() {
                return;
            }
            lab();
            let node = |name: &'static str, n: u8| {
                let value = format!(
                    r#"{{"metadata":{{"name":"{name}"}},"spec":{{"ipv4VXLANTunnelAddr":"10.244.{n}.1",
                        "ipv6VXLANTunnelAddr":"fd00:10:244:{n}::1",
                        "bgp":{{"ipv4Address":"10.0.0.{n}/24","ipv6Address":"fd00:a::{n}/64"}}}}}}"#
                );
                ("nodes", name, value)
            };
            let entries = [
                node("a", 1),
                node("b", 2),
                pool("p4", "10.244.0.0/16", ""),
                pool("p6", "fd00:10:244::/48", ""),
                block("10.244.1.0/26", "a"),
                block("10.244.2.0/26", "b"),
                block("10.244.3.0/26", "b"),
                block("fd00:10:244:2::/122", "b"),
                block("fd00:10:244:3::/122", "b"),
            ];
            let mut node = Node::start_with(options(true), &entries);
            node.learn(&[
                ("10.244.2.0/26", "10.0.0.2"),
                ("10.244.3.0/26", "10.0.0.2"),
                ("fd00:10:244:2::/122", "fd00:a::2"),
                ("fd00:10:244:3::/122", "fd00:a::2"),
            ]);
            let routes = || {
                let shown = sh(
                    "for p in 10.244.2.0/26 10.244.3.0/26; do ip route show $p; done
                    for p in fd00:10:244:2::/122 fd00:10:244:3::/122; do ip -6 route show $p; done",
                );
                let of_line = |line: &str| {
                    let words: Vec<&str> = line.split(' ').collect();
                    let through = if words[1] == "nhid" {
                        words[3..7].join(" ")
                    } else {
                        line.to_owned()
                    };
                    format!("{} {through}\n", words[0])
                };
                shown.lines().map(of_line).collect::<String>()
            };
            let direct = "10.244.2.0/26 via 10.0.0.2 dev eth0
10.244.3.0/26 via 10.0.0.2 dev eth0
fd00:10:244:2::/122 via fd00:a::2 dev eth0
fd00:10:244:3::/122 via fd00:a::2 dev eth0
";
            let vxlan = "10.244.2.0/26 via 10.244.2.1 dev vxlan.calico
10.244.3.0/26 via 10.244.2.1 dev vxlan.calico
fd00:10:244:2::/122 via fd00:10:244:2::1 dev vxlan-v6.calico
fd00:10:244:3::/122 via fd00:10:244:2::1 dev vxlan-v6.calico
";
            // By VXLAN and with its MTU, or neither.
            let mtus = || {
                let shown = sh("ip route show proto 80; ip -6 route show proto 80");
                let mut through_objects = shown.lines().filter(|line| line.contains("nhid"));
                through_objects.all(|line| line.contains("vxlan") == line.contains("mtu"))
            };
            wait_for("direct", LIMIT, routes, |seen| seen == direct).await;
            node.settled().await;
            let made = ids();
            assert_eq!(made.len(), 2);
            for (mode, wanted) in [(r#","vxlanMode":"Always""#, vxlan), ("", direct)] {
                for (name, cidr) in [("p4", "10.244.0.0/16"), ("p6", "fd00:10:244::/48")] {
                    let (kind, name, value) = pool(name, cidr, mode);
                    node.put(kind, name, value);
                }
                wait_for("the other mode", LIMIT, routes, |seen| seen == wanted).await;
                let rest = || {
                    sh("ip nexthop list protocol 80 | wc -l; ip -o link | grep -c vxlan || true")
                };
                let expected = if wanted == vxlan { "2\n2\n" } else { "2\n0\n" };
                wait_for("objects and devices", LIMIT, rest, |seen| seen == expected).await;
                let status = node.settled().await;
                assert_eq!(status.problems, []);
                // The tunnel has another MTU, and so another object; the first one's number follows
                // from its way.
                assert_eq!(ids() == made, wanted == direct);
                assert!(mtus(), "a route has not the MTU of its mode");
            }
        },
    );
}
