//! NAT rules in the real kernel, by whichever backend it has.

use super::*;

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
            assert_eq!(seen, Some(planned));
            sh("nft flush chain inet caracal antispoof");
            let seen = crate::dataplane::observe_nat(&status.desired).await;
            assert_eq!(seen.as_deref(), Some("changed by others"));
            assert_ne!(rules(), written);
            node.restart();
            wait_for("a new process", LIMIT, rules, |seen| seen == written).await;
        }
        // While it is not known who is a node, nobody is refused.
        let judged = ["jump ip_tunnel_senders", "-j caracal-senders"];
        let judges = |seen: &str| judged.iter().any(|rule| seen.contains(rule));
        assert!(judges(&rules()), "{}", rules());
        node.gate
            .send_modify(|gate| gate.datastore = Err("away".to_owned()));
        wait_for("open tunnels", LIMIT, rules, |seen| !judges(seen)).await;
        node.gate.send_replace(Gate::open());
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

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}
