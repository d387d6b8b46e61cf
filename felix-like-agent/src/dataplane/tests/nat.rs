//! NAT rules in the real kernel, by whichever backend it has.

use super::*;
use crate::dataplane::write::nat::NatWriter;

fn entries() -> Vec<(&'static str, &'static str, String)> {
    vec![
        node("a", "10.0.0.1/24", "10.244.0.1"),
        pool(
            "p",
            "10.244.0.0/16",
            r#","natOutgoing":true,"vxlanMode":"Always""#,
        ),
        pool("q", "10.250.0.0/16", ""),
    ]
}

/// Our rules as the kernel has them.
fn rules() -> String {
    sh("nft list table inet caracal 2>/dev/null || iptables-legacy-save | grep caracal- || true")
}

/// True when tunnel packets are judged by who sends them.
fn judges(rules: &str) -> bool {
    let judged = ["jump ip_tunnel_senders", "-j caracal-senders"];
    judged.iter().any(|rule| rules.contains(rule))
}

#[test]
fn rules_are_written_once_and_restored() {
    in_namespace("nat::rules_are_written_once_and_restored", || async {
        lab();
        let mut node = Node::start(&entries());
        let status = node.settled().await;
        assert_eq!(status.problems, []);
        let backend = status.kernel.nat.clone();
        println!("backend: {backend}");
        let written = rules();
        for part in [
            "10.244.0.0/16",
            "10.250.0.0/16",
            "vxlan.calico",
            "10.244.0.1",
        ] {
            assert!(written.contains(part), "{part} in {written}");
        }
        node.assert_quiet().await;
        node.restart();
        let status = node.settled().await;
        assert_eq!(
            status.applied, 0,
            "a new process finds them as they should be"
        );
        assert_eq!(status.kernel.nat, backend);
        // Somebody takes a rule out; the resync sees it.
        if backend == "nft" {
            sh("nft flush chain inet caracal postrouting");
        } else {
            sh("iptables-legacy -t nat -F caracal-postrouting");
        }
        assert_ne!(rules(), written);
        node.agent.resync().await;
        wait_for("the rules", LIMIT, rules, |seen| seen == written).await;
        // Whatever is changed by hand is heard of.
        if backend == "nft" {
            for damage in [
                "nft flush chain inet caracal antispoof",
                "nft flush chain inet caracal input",
                "nft delete element inet caracal ip_senders '{ 10.0.0.1 }'",
                "nft flush chain inet caracal ip_tunnel_senders",
                "nft insert rule inet caracal antispoof accept",
                "nft delete table inet caracal",
            ] {
                sh(damage);
                wait_for(damage, LIMIT, rules, |seen| seen == written).await;
            }
            // By whoever asks, too, and by one who was not there when it was done.
            let status = node.settled().await;
            node.agent.freeze().await;
            let seen = crate::dataplane::observe_nat(&status.desired).await;
            let planned = status.desired.nat.as_ref().unwrap().fingerprint();
            assert_eq!(seen, Ok(Some(planned)));
            sh("nft flush chain inet caracal antispoof");
            let seen = crate::dataplane::observe_nat(&status.desired).await;
            assert_eq!(seen, Ok(Some("changed by others".to_owned())));
            assert_ne!(rules(), written);
            node.restart();
            wait_for("a new process", LIMIT, rules, |seen| seen == written).await;
        }
        // While it is not known who is a node, nobody is refused.
        assert!(judges(&rules()), "{}", rules());
        node.precondition
            .send_modify(|precondition| precondition.datastore = Err("away".to_owned()));
        wait_for("open tunnels", LIMIT, rules, |seen| !judges(seen)).await;
        node.precondition.send_replace(SweepPrecondition::met());
        wait_for("judged again", LIMIT, rules, |seen| seen == written).await;
        // A pool that is no longer masqueraded.
        let (kind, name, value) = pool("p", "10.244.0.0/16", r#","vxlanMode":"Always""#);
        node.put(kind, name, value);
        let gone = if backend == "nft" {
            "jump ip_outgoing"
        } else {
            "-s 10.244.0.0/16"
        };
        wait_for("the change", LIMIT, rules, |seen| !seen.contains(gone)).await;
        node.assert_quiet().await;
    });
}

#[test]
fn a_datastore_that_flaps_writes_no_rule() {
    in_namespace("nat::a_datastore_that_flaps_writes_no_rule", || async {
        lab();
        let patient = ReconcilerOptions::new("a".into()).tunnel_guard_patience;
        let options = ReconcilerOptions {
            tunnel_guard_patience: patient,
            ..options(false)
        };
        let mut node = Node::start_with(options, &entries());
        let before = node.settled().await;
        let written = rules();
        assert!(judges(&written), "{written}");
        for _ in 0..5 {
            node.precondition
                .send_modify(|precondition| precondition.datastore = Err("away".to_owned()));
            node.status_when("away", |status| status.kernel.phase == "learning")
                .await;
            node.precondition.send_replace(SweepPrecondition::met());
            node.settled().await;
        }
        assert_eq!(node.pass_anew().await.applied, before.applied);
        assert_eq!(rules(), written);
        // A process that starts without the datastore may have been away for long.
        node.restart_unsure().await;
        wait_for("open tunnels", LIMIT, rules, |seen| !judges(seen)).await;
        node.precondition.send_replace(SweepPrecondition::met());
        wait_for("judged again", LIMIT, rules, |seen| seen == written).await;
    });
}

/// Our table without its marks. A table that is written anew gets another handle.
fn table() -> (String, String) {
    let listing = sh("nft -a list table inet caracal");
    let (first, rest) = listing.split_once('\n').unwrap();
    let marks = ["chain fingerprint_", "chain printed_"];
    let is_mark = |line: &&str| marks.iter().any(|mark| line.contains(mark));
    let says_something = |line: &&str| !matches!(line.trim(), "" | "}");
    let rest = rest.lines().filter(|line| !is_mark(line));
    let rest: Vec<_> = rest.filter(says_something).collect();
    (first.to_owned(), rest.join("\n"))
}

/// Nodes come and go while the program does, and somebody changes what it wrote.
#[test]
fn a_node_that_joins_is_written_by_element() {
    in_namespace("nat::a_node_that_joins_is_written_by_element", || async {
        lab();
        let mut agent = Node::start(&entries());
        if agent.settled().await.kernel.nat != "nft" {
            skip("it", "nftables");
            return;
        }
        let (handle, alone) = table();
        let joins = |agent: &mut Node, name, address: &str, tunnel| {
            let (kind, name, value) = node(name, &format!("{address}/24"), tunnel);
            agent.put(kind, name, value);
        };
        joins(&mut agent, "b", "10.0.0.2", "10.244.1.1");
        wait_for("b", LIMIT, rules, |seen| {
            seen.matches("10.0.0.2").count() == 2
        })
        .await;
        assert_eq!(table().0, handle, "nothing was written anew");
        agent.assert_quiet().await;
        agent.delete("nodes", "b");
        wait_for("b has gone", LIMIT, || table().1, |seen| seen == alone).await;
        assert_eq!(table().0, handle);
        // A new process knows it again, and goes on.
        agent = agent.restarted(false).await;
        assert_eq!(agent.settled().await.applied, 0);
        joins(&mut agent, "c", "10.0.0.3", "10.244.2.1");
        wait_for("c", LIMIT, rules, |seen| seen.contains("10.0.0.3")).await;
        assert_eq!(table().0, handle);
        // What somebody changed is repaired as a whole, and then it goes on by element.
        let (_, whole) = table();
        sh("nft add element inet caracal ip_senders '{ 10.9.9.9 }'");
        let bare = |text: &str| {
            let lines = text
                .lines()
                .map(|line| line.split(" # handle").next().unwrap());
            lines.collect::<Vec<_>>().join("\n")
        };
        wait_for("the repair", LIMIT, || table().0, |seen| seen != handle).await;
        assert_eq!(bare(&table().1), bare(&whole));
        let (handle, _) = table();
        agent.delete("nodes", "c");
        wait_for("c has gone", LIMIT, rules, |seen| {
            !seen.contains("10.0.0.3")
        })
        .await;
        assert_eq!(table().0, handle);
        agent.assert_quiet().await;
    });
}

#[test]
fn a_closed_forward_is_opened_also_when_elements_change() {
    let test = "nat::a_closed_forward_is_opened_also_when_elements_change";
    in_namespace(test, || async {
        lab();
        let agent = Node::start(&entries());
        let settled = agent.settled().await;
        if settled.kernel.nat != "nft" {
            skip("it", "nftables");
            return;
        }
        let nat = settled.desired.nat.clone().unwrap();
        agent.agent.freeze().await;
        let mut writer = NatWriter::default();
        assert_eq!(
            writer.read(Some(&nat)).await.unwrap(),
            Some(nat.fingerprint())
        );
        let mut more = nat.as_ref().clone();
        let node = "10.0.0.9".parse().unwrap();
        more.ipv4.bgp.as_mut().unwrap().nodes.insert(node);
        let more = Arc::new(more);
        let (handle, _) = table();
        sh("iptables-nft -P FORWARD DROP");
        assert_ne!(
            writer.read(Some(&more)).await.unwrap(),
            Some(more.fingerprint())
        );
        writer.write(&more).await.unwrap();
        assert_eq!(table().0, handle, "by element");
        let forward = sh("iptables-nft -S FORWARD");
        assert!(forward.contains("-j caracal-forward"), "{forward}");
        assert_eq!(
            writer.read(Some(&more)).await.unwrap(),
            Some(more.fingerprint())
        );
    });
}

#[test]
fn sources_outside_all_pools_see_the_node() {
    in_namespace("nat::sources_outside_all_pools_see_the_node", || async {
        lab();
        let name = format!("caragent-nat-{}", std::process::id());
        let _guard = Namespace(name.clone());
        sh(&format!(
            "ip netns add {name}
             ip link set wire netns {name}
             ip -n {name} link set lo up
             ip -n {name} link set wire up
             ip -n {name} addr add 10.0.0.9/24 dev wire
             ip addr add 10.244.0.5/32 dev lo"
        ));
        let node = Node::start(&entries());
        node.settled().await;
        // The neighbour has no way back to 10.244.0.5; only a masqueraded packet is answered.
        let ping = || {
            let output = Command::new("ping")
                .args(["-n", "-c", "1", "-W", "1", "-I", "10.244.0.5", "10.0.0.9"])
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        wait_for("an answer", LIMIT, ping, |seen| {
            seen.contains(" 0% packet loss")
        })
        .await;
    });
}

#[test]
fn many_pools_stand_in_sets() {
    in_namespace("nat::many_pools_stand_in_sets", || async {
        lab();
        let mut node = Node::start(&entries());
        let put = |node: &mut Node, n: u8| {
            let (_, _, value) = pool(
                "more",
                &format!("10.200.{n}.0/24"),
                r#","natOutgoing":true"#,
            );
            node.put(
                "ippools",
                &format!("more{n}"),
                value.replace("more", &format!("more{n}")),
            );
        };
        (1..=6).for_each(|n| put(&mut node, n));
        node.settled().await;
        let table = || sh("nft list table inet caracal");
        let rules = || {
            let lines = table();
            let rules = lines
                .lines()
                .filter(|line| line.contains("jump") || line.ends_with("return"));
            rules.map(str::trim).collect::<Vec<_>>().join("\n")
        };
        let before = rules();
        assert!(
            before.contains("ip saddr & 255.255.255.0 == @ip_masquerade_24 jump ip_outgoing"),
            "{before}"
        );
        assert!(
            before.contains("ip daddr & 255.255.255.0 == @ip_exempt_24 return"),
            "{before}"
        );
        put(&mut node, 7);
        node.settled().await;
        wait_for("the seventh", LIMIT, table, |seen| {
            seen.contains("10.200.7.0")
        })
        .await;
        assert_eq!(rules(), before);
        node.assert_quiet().await;
    });
}

pub(super) struct Namespace(pub(super) String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Datagrams from a node to this node's VXLAN port while the table is written again and again: how
/// many were sent, and how many of them were lost.
fn sent_and_lost_while_written(script: &str, times: usize) -> (usize, usize) {
    const PATIENCE: std::time::Duration = std::time::Duration::from_millis(10);
    let node: std::net::SocketAddr = "10.0.0.1:4789".parse().unwrap();
    let socket = std::net::UdpSocket::bind(node).unwrap();
    // The loopback device delivers at once. What is not there after this is lost, or late: it
    // counts when it comes, and no queue fills meanwhile.
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let file = std::env::temp_dir().join(format!("caragent-table-{}", std::process::id()));
    std::fs::write(&file, script).unwrap();
    let write = format!("nft -f {}", file.display());
    sh(&write);
    let (mut sent, mut received) = (0, 0);
    let mut octets = [0; 8];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..times).for_each(|_| drop(sh(&write))));
        while !writer.is_finished() {
            socket.send_to(b"datagram", node).unwrap();
            sent += 1;
            received += usize::from(socket.recv(&mut octets).is_ok());
        }
        writer.join().unwrap();
    });
    while socket.recv(&mut octets).is_ok() {
        received += 1;
    }
    std::fs::remove_file(file).unwrap();
    (sent, sent - received)
}

/// Decision 0040. With a set of intervals instead it is not so on Linux 6.18, which is printed and
/// not judged.
#[test]
fn no_packet_falls_between_the_old_rules_and_the_new_ones() {
    in_namespace(
        "nat::no_packet_falls_between_the_old_rules_and_the_new_ones",
        || async {
            if sh("nft list tables >/dev/null 2>&1 && echo yes || true").is_empty() {
                skip("it", "nftables");
                return;
            }
            sh("ip link set lo up; ip addr add 10.0.0.1/32 dev lo");
            const TIMES: usize = 250;
            let script = crate::nat::nft::script(&crate::nat::example());
            let set = "\tset ip_senders {\n\t\ttype ipv4_addr\n";
            assert!(script.contains(set), "{script}");
            let intervals = script.replace(set, &format!("{set}\t\tflags interval\n"));
            let (sent, lost) = sent_and_lost_while_written(&intervals, TIMES);
            println!("with intervals: {TIMES} times written, {sent} sent, {lost} lost");
            let elements = (0..200).map(|n| format!("10.0.9.{n}"));
            let elements = elements.collect::<Vec<_>>().join(", ");
            let of_set = format!("element inet caracal ip_senders {{ {elements} }}\n");
            let by_element = format!("add {of_set}delete {of_set}add {of_set}delete {of_set}");
            for (how, script) in [("as it is", script), ("by element", by_element)] {
                let (sent, lost) = sent_and_lost_while_written(&script, TIMES);
                println!("{how}: {TIMES} times written, {sent} sent, {lost} lost");
                assert!(sent > TIMES);
                assert_eq!(lost, 0);
            }
        },
    );
}

/// Names of all tables of nftables and all chains of iptables.
fn tables_and_chains() -> String {
    sh(
        "nft list tables 2>/dev/null; for t in iptables ip6tables; do \
        $t-legacy-save 2>/dev/null | grep '^:' | cut -d' ' -f1; done; true",
    )
}

/// Nothing that stands in the datastore gets out of our table, whatever the backend makes of it.
#[test]
fn hostile_settings_change_nothing_outside_our_table() {
    in_namespace(
        "nat::hostile_settings_change_nothing_outside_our_table",
        || async {
            lab();
            let mut node = Node::start(&entries());
            node.settled().await;
            let (before, written) = (tables_and_chains(), rules());
            for value in [
                "cali*\\\" accept\\n}\\n}\\ntable inet evil {\\nchain x {\\niifname \\\"a",
                "cali+ -j ACCEPT\\nCOMMIT\\n*filter\\n:evil - [0:0]\\n-A FORWARD -i x",
            ] {
                let keys = ["interfacePrefix", "iptablesNATOutgoingInterfaceFilter"];
                let keys = keys.map(|key| format!(r#""{key}":"{value}""#)).join(",");
                let name = "default";
                let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{{keys}}}}}"#);
                node.put("felixconfigurations", name, value);
                let status = node.settled().await;
                assert_eq!(tables_and_chains(), before);
                assert_eq!(rules(), written, "what was there before stays");
                let problems: Vec<_> = status.problems.iter().map(|p| p.code.as_str()).collect();
                assert_eq!(problems, ["agent.invalid_setting"; 2]);
            }
        },
    );
}

/// A packet from a workload's interface to a node's BGP: the lab's `wire` stands for the uplink to
/// the other node.
#[test]
fn workloads_do_not_reach_bgp() {
    in_namespace("nat::workloads_do_not_reach_bgp", || async {
        lab();
        let name = format!("caragent-bgp-{}", std::process::id());
        let (pod, far) = (format!("{name}-pod"), format!("{name}-far"));
        let _guards = [Namespace(pod.clone()), Namespace(far.clone())];
        sh(&format!(
            "ip netns add {far}
             ip link set wire netns {far}
             ip -n {far} link set lo up
             ip -n {far} link set wire up
             ip -n {far} addr add 10.0.0.2/24 dev wire
             ip netns add {pod}
             ip link add cali1 address 02:00:00:00:00:06 type veth peer name eth0 address 02:00:00:00:00:05 netns {pod}
             ip link set cali1 up
             ip -n {pod} link set lo up
             ip -n {pod} link set eth0 up
             ip -n {pod} addr add 10.244.0.5/32 dev eth0
             ip -n {pod} route add 169.254.1.1 dev eth0
             ip -n {pod} neigh add 169.254.1.1 lladdr 02:00:00:00:00:06 dev eth0
             ip -n {pod} route add default via 169.254.1.1"
        ));
        let mut entries = entries();
        entries.push(node("b", "10.0.0.2/24", "10.244.1.1"));
        entries.push(workload("10.244.0.5", "cali1"));
        let node = Node::start(&entries);
        node.settled().await;
        // An address and a port that nobody listens on refuse at once; what is dropped is not
        // answered.
        let connect = |address: &str, port: u16| {
            let command = format!(
                "ip netns exec {pod} timeout 2 bash -c ': < /dev/tcp/{address}/{port}' 2>&1; echo $?"
            );
            sh(&command)
        };
        let answered = |seen: &str| seen.contains("refused");
        for address in ["10.0.0.1", "10.0.0.2"] {
            let seen = || connect(address, 180);
            wait_for("another port", LIMIT, seen, answered).await;
            let seen = connect(address, 179);
            assert!(seen.trim_end().ends_with("124"), "{address}: {seen}");
        }
    });
}

/// A pod that sends to its node's 127.0.0.1, with `route_localnet` for all interfaces, as
/// kube-proxy sets it; and to VXLAN's port by way of somebody's translation.
#[test]
fn a_pod_reaches_neither_loopback_nor_vxlan_of_its_node() {
    let test = "nat::a_pod_reaches_neither_loopback_nor_vxlan_of_its_node";
    in_namespace(test, || async {
        lab();
        let name = format!("caragent-pod-{}", std::process::id());
        let _guard = Namespace(name.clone());
        sh(&format!(
            "ip netns add {name}
             ip link add cali123 address 02:00:00:00:00:77 type veth peer name eth0 netns {name}
             ip link set cali123 up
             ip -n {name} link set lo up
             ip -n {name} link set eth0 up
             ip -n {name} addr add 10.244.0.5/32 dev eth0
             ip -n {name} addr del 127.0.0.1/8 dev lo
             ip -n {name} route add default via 169.254.1.1 dev eth0 onlink
             ip -n {name} neigh replace 169.254.1.1 dev eth0 nud permanent \
                lladdr 02:00:00:00:00:77
             ip netns exec {name} sysctl -qw net.ipv4.conf.all.route_localnet=1
             sysctl -qw net.ipv4.conf.all.route_localnet=1"
        ));
        let mac = sh(&format!("ip -n {name} -o link show eth0"));
        let mac = mac.split("link/ether ").nth(1).unwrap();
        let mac = mac.split(' ').next().unwrap().to_owned();
        let workload = |(kind, name, value): (&'static str, &'static str, String)| {
            (kind, name, value.replace("02:00:00:00:00:05", &mac))
        };
        let entries: Vec<_> = super::routes::entries().into_iter().map(workload).collect();
        let agent = Node::start(&entries);
        let settled = agent.settled().await;
        if settled.kernel.nat != "nft" {
            skip("it", "nftables");
            return;
        }
        sh("nft -f - <<'END'
            table ip service {
                chain to { type nat hook prerouting priority -100;
                    udp dport 53 dnat to 10.0.0.1:4789
                    udp dport 54 dnat to 10.0.0.1:4790
                    udp dport 55 dnat to 127.0.0.1:5555
                }
            }
END");
        let sockets = ["127.0.0.1:5555", "10.0.0.1:4790"];
        let sockets = sockets.map(|at| std::net::UdpSocket::bind(at).unwrap());
        // The device of VXLAN may have the port itself.
        sh(
            "nft add table ip seen; nft 'add chain ip seen in { type filter hook input priority 200; }'
            nft add rule ip seen in udp dport 4789 counter",
        );
        for socket in &sockets {
            socket.set_nonblocking(true).unwrap();
        }
        let send = |to: &str| {
            let (address, port) = to.split_once(':').unwrap();
            sh(&format!(
                "ip netns exec {name} bash -c 'echo x > /dev/udp/{address}/{port}'"
            ));
        };
        let got = |at: usize| sockets[at].recv(&mut [0; 8]).is_ok();
        // One way is open, and what was sent before on another one has arrived by then.
        for closed in ["127.0.0.1:5555", "10.0.0.9:53", "10.0.0.9:55"] {
            send(closed);
            send("10.0.0.9:54");
            wait_for(
                "the open way",
                LIMIT,
                || got(1).to_string(),
                |got| got == "true",
            )
            .await;
            assert!(!got(0), "127.0.0.1 is reached");
            let seen = sh("nft list chain ip seen in");
            assert!(
                seen.contains("packets 0 "),
                "VXLAN's port is reached: {seen}"
            );
        }
        // Without our rules both are.
        agent.agent.freeze().await;
        sh("nft delete table inet caracal");
        for way in ["127.0.0.1:5555", "10.0.0.9:55"] {
            send(way);
            let got = || got(0).to_string();
            wait_for("loopback", LIMIT, got, |got| got == "true").await;
        }
        send("10.0.0.9:53");
        let seen = || sh("nft list chain ip seen in");
        wait_for("VXLAN", LIMIT, seen, |seen| !seen.contains("packets 0 ")).await;
    });
}
