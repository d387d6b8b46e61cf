//! What somebody else's rules translate on this machine, and where it does not get to.

use super::nat::Namespace;
use super::*;

/// Ports that are for nodes alone, and one of each protocol that is for anybody.
const GUARDED: [(&str, u16); 4] = [("tcp", 179), ("udp", 3784), ("udp", 4784), ("udp", 4789)];
const OPEN: [(&str, u16); 2] = [("tcp", 180), ("udp", 4790)];
/// Ports of this machine are so much higher; those that lead to another node, twice.
const HIGHER: u16 = 20_000;

/// The rules of a family: to this node, and to another one; what got through is counted by port.
fn theirs(word: &str, [own, other]: [&str; 2]) -> String {
    let (mut counters, mut there, mut input, mut output) = Default::default();
    let add = |text: &mut String, line: String| *text += &(line + "\n");
    for (protocol, port) in GUARDED.iter().chain(&OPEN) {
        let to = format!("{protocol} dport");
        let (here, further) = (port + HIGHER, port + 2 * HIGHER);
        add(&mut there, format!("{to} {here} dnat to {own}:{port}"));
        add(&mut there, format!("{to} {further} dnat to {other}:{port}"));
        for (name, chain, packets) in [
            ("in", &mut input, ""),
            ("out", &mut output, "oifname eth0 "),
        ] {
            let name = format!("{name}_{protocol}{port}");
            add(&mut counters, format!("counter {name} {{ }}"));
            let packets = format!("{packets}ct direction original {to} {port}");
            add(chain, format!("{packets} counter name {name}"));
        }
    }
    format!(
        "table {word} theirs {{
        {counters}
        chain there {{\ntype nat hook prerouting priority -100\n{there}}}
        chain back {{\ntype nat hook postrouting priority 100\nct status dnat masquerade\n}}
        chain in {{\ntype filter hook input priority 200\n{input}}}
        chain out {{\ntype filter hook postrouting priority 50\n{output}}}
        }}\n"
    )
}

/// Which ports packets got to, here and on the other node.
fn reached(word: &str, ports: &[(&str, u16)]) -> Vec<String> {
    let listed = sh(&format!("nft list counters table {word} theirs"));
    let mut reached = Vec::new();
    for part in listed.split("counter ").skip(1) {
        let (name, rest) = part.split_once(' ').unwrap();
        let is_asked =
            |(protocol, port): &(&str, u16)| name.ends_with(&format!("_{protocol}{port}"));
        if ports.iter().any(is_asked) && !rest.contains("packets 0 ") {
            reached.push(name.to_owned());
        }
    }
    reached
}

/// A pod of another node comes with the address of that node.
#[test]
fn what_is_translated_here_reaches_no_nodes_bgp_nor_vxlan() {
    let test = "translated::what_is_translated_here_reaches_no_nodes_bgp_nor_vxlan";
    in_namespace(test, || async {
        lab();
        let far = format!("caragent-far-{}", std::process::id());
        let _guard = Namespace(far.clone());
        sh(&format!(
            "ip netns add {far}
             ip link set wire netns {far}
             ip -n {far} link set lo up
             ip -n {far} link set wire up
             ip -n {far} addr add 10.0.0.2/24 dev wire
             ip -n {far} addr add 10.0.0.3/24 dev wire
             ip -n {far} -6 addr add fd00:a::2/64 dev wire nodad
             ip -n {far} -6 addr add fd00:a::3/64 dev wire nodad"
        ));
        let nodes = [("a", 1), ("b", 2), ("c", 3)].map(|(name, n)| {
            let value = format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{"ipv4VXLANTunnelAddr":"10.244.{n}.1",
                    "bgp":{{"ipv4Address":"10.0.0.{n}/24","ipv6Address":"fd00:a::{n}/64"}}}}}}"#
            );
            ("nodes", name, value)
        });
        let pools = [
            pool("p", "10.244.0.0/16", r#","vxlanMode":"Always""#),
            pool("p6", "fd00:10:244::/48", ""),
        ];
        let agent = Node::start(&[&nodes[..], &pools].concat());
        if agent.settled().await.kernel.nat != "nft" {
            skip("it", "nftables");
            return;
        }
        let families = [
            ("ip", ["10.0.0.1", "10.0.0.3"], "10.0.0.1"),
            ("ip6", ["[fd00:a::1]", "[fd00:a::3]"], "fd00:a::1"),
        ];
        let send = |to: &str, ports: &[(&str, u16)]| {
            for (protocol, port) in ports {
                for port in [port + HIGHER, port + 2 * HIGHER] {
                    // Whoever is not answered waits.
                    let say = format!("exec 3<>/dev/{protocol}/{to}/{port} && echo x >&3");
                    sh(&format!(
                        "ip netns exec {far} timeout 1 bash -c '{say}' 2>&1 || true"
                    ));
                }
            }
        };
        for (word, addresses, to) in families {
            let file = std::env::temp_dir().join(format!("{far}-{word}"));
            std::fs::write(&file, theirs(word, addresses)).unwrap();
            sh(&format!("nft -f {}", file.display()));
            std::fs::remove_file(&file).unwrap();
            send(to, &GUARDED);
            // What was sent before has arrived by then.
            let open = || {
                send(to, &OPEN);
                reached(word, &OPEN).len().to_string()
            };
            let all = (2 * OPEN.len()).to_string();
            wait_for("the open ports", LIMIT, open, |seen| seen == all).await;
            assert_eq!(reached(word, &GUARDED), Vec::<String>::new(), "{word}");
        }
        // Without our rules all get there.
        agent.agent.freeze().await;
        sh("nft delete table inet caracal");
        for (word, _, to) in families {
            let guarded = || {
                send(to, &GUARDED);
                reached(word, &GUARDED).len().to_string()
            };
            let all = (2 * GUARDED.len()).to_string();
            wait_for("the others", LIMIT, guarded, |seen| seen == all).await;
        }
    });
}
