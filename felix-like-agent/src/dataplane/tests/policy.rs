//! The table of policy in the real kernel: what packets say against what the policies say.

mod refused;
mod revoked;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use caracal_model::{Packet, PolicyData, PolicyDirection};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::nat::Namespace;
use super::*;
use crate::dataplane::policy::PolicyWriter;
use crate::policy::tests::apply;
use crate::policy::tests::random;

/// Pods of the random world.
const PODS: std::ops::Range<u8> = 1..7;
/// What is asked for. Nobody listens: a machine that is reached says so.
const ASKED: [(&str, u16); 5] = [
    ("tcp", 80),
    ("tcp", 81),
    ("tcp", 8080),
    ("udp", 53),
    ("udp", 80),
];
/// Set in a process that asks: what it asks for.
const ASKS: &str = "CARAGENT_ASKS";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_millis(1500);

fn pod(n: u8) -> String {
    format!("caragent-pod{n}-{}", std::process::id())
}

/// Whoever is reached and has no such port says so, however often it is asked.
const ANSWER_ALL: &str = "echo 0 > /proc/sys/net/ipv4/icmp_ratelimit
    echo 0 > /proc/sys/net/ipv6/icmp/ratelimit
    echo 1000000 > /proc/sys/net/ipv4/icmp_msgs_per_sec
    echo 1000000 > /proc/sys/net/ipv4/icmp_msgs_burst";

/// The node in this namespace, and its pods in namespaces of their own.
fn node_with_pods() -> Vec<Namespace> {
    sh(&format!(
        "ip link set lo up
         echo 1 > /proc/sys/net/ipv4/ip_forward
         echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
         ip address add 192.0.2.7/32 dev lo
         ip address add 2001:db8::1/128 dev lo
         {ANSWER_ALL}"
    ));
    let mut guards = Vec::new();
    for n in PODS {
        let pod = pod(n);
        sh(&format!(
            "ip netns add {pod}
             ip link add cali{n} address ee:ee:ee:ee:ee:ee type veth peer name eth0 \
                address 02:00:00:00:00:0{n} netns {pod}
             ip link set cali{n} up
             ip -n {pod} link set lo up
             ip -n {pod} link set eth0 up
             ip -n {pod} address add 10.0.0.{n}/32 dev eth0
             ip -n {pod} -6 address add fd00::{n}/128 dev eth0 nodad
             ip -n {pod} route add 169.254.1.1 dev eth0 scope link
             ip -n {pod} route add default via 169.254.1.1
             ip -n {pod} -6 route add default via fe80::1 dev eth0
             ip -n {pod} neigh replace 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0
             ip -n {pod} neigh replace fe80::1 lladdr ee:ee:ee:ee:ee:ee dev eth0
             ip netns exec {pod} sh -c '{ANSWER_ALL}'
             ip route add 10.0.0.{n}/32 dev cali{n}
             ip -6 route add fd00::{n}/128 dev cali{n}
             ip neigh replace 10.0.0.{n} lladdr 02:00:00:00:00:0{n} dev cali{n}
             ip neigh replace fd00::{n} lladdr 02:00:00:00:00:0{n} dev cali{n}"
        ));
        guards.push(Namespace(pod));
    }
    guards
}

/// Asks for what the process was started for, all at once; prints what was reached.
#[test]
#[ignore = "other tests start it, in the namespace of a pod"]
fn asks() {
    let asked = std::env::var(ASKS).unwrap();
    let threads = asked.split(' ').map(|one| {
        let one = one.to_owned();
        std::thread::spawn(move || {
            let (protocol, to) = one.split_once('=').unwrap();
            let to: SocketAddr = to.parse().unwrap();
            let reached = match protocol {
                "tcp" => tcp(to),
                _ => udp(to),
            };
            (reached, one)
        })
    });
    let threads: Vec<_> = threads.collect();
    // Behind what the runner of tests says.
    println!();
    for thread in threads {
        let (reached, one) = thread.join().unwrap();
        if reached {
            println!("reached {one}");
        }
    }
}

/// Refused is reached.
fn tcp(to: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    }
}

fn udp(to: SocketAddr) -> bool {
    let any: IpAddr = if to.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let socket = UdpSocket::bind((any, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE / 3)).unwrap();
    socket.connect(to).unwrap();
    (0..3).any(|_| {
        let sent = socket.send(b"x");
        let answer = sent.and_then(|_| socket.recv(&mut [0; 8]));
        answer.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

type Asked = (u8, IpAddr, &'static str, u16);

/// All that pods may ask of pods, and of the node: whether it was reached.
fn ask_all() -> BTreeMap<Asked, bool> {
    let mut targets: Vec<IpAddr> = Vec::new();
    for n in PODS {
        targets.push([10, 0, 0, n].into());
        targets.push(format!("fd00::{n}").parse().unwrap());
    }
    targets.extend(["192.0.2.7", "2001:db8::1"].map(|a| a.parse::<IpAddr>().unwrap()));
    let mut children = Vec::new();
    for n in PODS {
        let own: [IpAddr; 2] = [[10, 0, 0, n].into(), format!("fd00::{n}").parse().unwrap()];
        let mut questions = Vec::new();
        for to in targets.iter().filter(|to| !own.contains(to)) {
            for (protocol, port) in ASKED {
                questions.push((*to, protocol, port));
            }
        }
        let text: Vec<String> = questions
            .iter()
            .map(|(to, protocol, port)| format!("{protocol}={}", SocketAddr::new(*to, *port)))
            .collect();
        let child = Command::new("ip")
            .args(["netns", "exec", &pod(n)])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .arg("dataplane::tests::policy::asks")
            .env(ASKS, text.join(" "))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        children.push((n, questions, child));
    }
    let mut answers = BTreeMap::new();
    for (n, questions, child) in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "pod {n} cannot ask");
        let text = String::from_utf8(output.stdout).unwrap();
        for (to, protocol, port) in questions {
            let line = format!("reached {protocol}={}", SocketAddr::new(to, port));
            let reached = text.lines().any(|seen| seen == line);
            answers.insert((n, to, protocol, port), reached);
        }
    }
    answers
}

/// What the policies say of it: out of the one pod, and into the other one.
fn judged(data: &PolicyData, (n, to, protocol, port): Asked) -> bool {
    let local = |address: IpAddr| {
        let mut all = data.endpoints();
        let local = all.find(|(_, e)| e.node == "me" && e.addresses.contains(&address));
        local.map(|(_, endpoint)| endpoint)
    };
    let from: IpAddr = match to {
        IpAddr::V4(_) => [10, 0, 0, n].into(),
        IpAddr::V6(_) => format!("fd00::{n}").parse().unwrap(),
    };
    let packet = Packet {
        source: from,
        destination: to,
        protocol: if protocol == "tcp" { 6 } else { 17 },
        ports: (0, port),
        icmp: (0, 0),
    };
    let is_node = ["192.0.2.7", "2001:db8::1"].contains(&to.to_string().as_str());
    let leaves =
        local(from).is_some_and(|e| data.judge(e, PolicyDirection::Egress, &packet).allowed);
    let enters =
        local(to).is_some_and(|e| data.judge(e, PolicyDirection::Ingress, &packet).allowed);
    leaves && (is_node || enters)
}

fn compare(data: &PolicyData) -> usize {
    let answers = ask_all();
    let mut wrong = Vec::new();
    for (asked, reached) in &answers {
        let judged = judged(data, *asked);
        if judged != *reached {
            wrong.push(format!("{asked:?}: reached {reached}, judged {judged}"));
        }
    }
    let table = || sh("nft list table inet caracal-policy");
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), table());
    answers.values().filter(|reached| **reached).count()
}

/// POL-1 with packets, for what a property draws; each world is reached from the one before.
#[test]
fn packets_get_where_the_policies_say() {
    let name = "policy::packets_get_where_the_policies_say";
    in_namespace(name, || async {
        let _pods = node_with_pods();
        let mut writer = PolicyWriter::new("me".into());
        let mut runner = TestRunner::deterministic();
        let (mut data, mut reached) = (PolicyData::default(), Vec::new());
        for world in 0..12 {
            if world % 4 == 0 {
                data = PolicyData::default();
            }
            let steps = random::steps().new_tree(&mut runner).unwrap().current();
            for (at, step) in steps.into_iter().enumerate() {
                apply(&mut data, &step);
                if at % 7 == 0 {
                    writer.pass(&data, 1).await.unwrap();
                }
            }
            writer.pass(&data, 1).await.unwrap();
            reached.push(compare(&data));
            if world % 3 == 0 {
                // A new process finds the table, and nothing changes.
                writer = PolicyWriter::new("me".into());
                writer.pass(&data, 1).await.unwrap();
            }
        }
        println!("reached, world by world: {reached:?}");
        assert!(reached.iter().any(|n| *n > 20) && reached.iter().any(|n| *n < 200));
    });
}

/// Unknown endpoints get nowhere, what others change is put back, and a flow that was let through
/// goes on.
#[test]
fn what_is_unknown_is_closed_and_damage_is_repaired() {
    let name = "policy::what_is_unknown_is_closed_and_damage_is_repaired";
    in_namespace(name, || async {
        let _pods = node_with_pods();
        let mut open = ask_all();
        open.retain(|_, reached| !*reached);
        assert!(open.is_empty(), "without a table all is open: {open:?}");
        let mut writer = PolicyWriter::new("me".into());
        // Pods are at work here: they are not cut off before anything is known.
        writer.close(true).await.unwrap();
        assert!(!PolicyWriter::is_there().await.unwrap());
        writer.close(false).await.unwrap();
        assert!(
            ask_all().values().all(|reached| !reached),
            "nothing is known of any pod"
        );
        let mut data = PolicyData::default();
        let steps = [
            random::profile("a"),
            random::pod(1, "a", "me", &[("app", "x")]),
            random::pod(2, "a", "me", &[("app", "y")]),
            random::policy(
                "networkpolicies/a/p",
                json!({
                    "selector": "app == 'x'", "types": ["Ingress"],
                    "ingress": [{"action": "Allow", "protocol": "TCP",
                        "source": {"selector": "app == 'y'"}, "destination": {"ports": ["web"]}}],
                }),
            ),
        ];
        for step in &steps {
            apply(&mut data, step);
        }
        assert!(writer.pass(&data, 7).await.unwrap().is_in_force("cali2"));
        assert!(compare(&data) > 0);
        let listing = || {
            let text = sh("nft list table inet caracal-policy");
            let words: Vec<&str> = text.split_whitespace().collect();
            // Without what counters have counted.
            words
                .join(" ")
                .split(" packets ")
                .map(|part| {
                    part.split_once(" drop")
                        .map_or(part, |(_, rest)| rest)
                        .to_owned()
                })
                .collect::<Vec<_>>()
                .join("|")
        };
        let written = listing();
        for damage in [
            "nft flush chain inet caracal-policy forward",
            "nft delete element inet caracal-policy to-pods '{ \"cali1\" }'",
            "nft add element inet caracal-policy to-pods '{ \"cali9\" : accept }'",
            "nft add chain inet caracal-policy theirs",
            "nft insert rule inet caracal-policy to-dispatch accept",
            "nft delete table inet caracal-policy",
        ] {
            sh(damage);
            let heard = tokio::time::timeout(LIMIT, writer.changed_by_others()).await;
            assert!(heard.is_ok(), "{damage}: not heard of");
            writer.pass(&data, 8).await.unwrap();
            assert_eq!(listing(), written, "{damage}");
        }
        // A change that somebody else takes back is none, and nothing is written.
        let before = writer.pass(&data, 9).await.unwrap().transactions;
        sh("nft add chain inet caracal-policy theirs");
        sh("nft delete chain inet caracal-policy theirs");
        let heard = tokio::time::timeout(LIMIT, writer.changed_by_others()).await;
        assert!(heard.is_ok());
        assert_eq!(writer.pass(&data, 9).await.unwrap().transactions, before);
        PolicyWriter::remove().await.unwrap();
        assert!(!PolicyWriter::is_there().await.unwrap());
    });
}
