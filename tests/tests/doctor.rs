//! `caracal doctor` on nodes that are well, and on nodes with faults that the test made.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use caracal_lab::{Lab, call_program, netns_sysctl, program_command, program_output};
use caracal_tests::{SECOND, await_settled, binary, either, focus, ip, on_each_stack};

/// Verdict and fix by check and subject.
type Found = BTreeMap<(String, String), (String, String)>;

/// Exit status, and verdict and fix by check and subject.
fn examine(lab: &Lab, node: &str, more: &[&str]) -> (Option<i32>, Found) {
    let layout = lab.layout().node(node).unwrap().clone();
    let [conf, bin] = ["net.d", "bin"].map(|name| lab.folder().run(node).join(name));
    for (dir, name, text) in [
        (&conf, "10-caracal.conflist", r#"{"type":"caracal-cni"}"#),
        (&bin, "caracal-cni", ""),
    ] {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join(name), text).unwrap();
    }
    let mut command = std::process::Command::new(binary());
    command
        .envs(&layout.env)
        .env("CARACAL_RUN_DIR", lab.folder().run(node))
        .args(["doctor", "-o", "json", "--cni-conf-dir"])
        .arg(&conf)
        .arg("--cni-bin-dir")
        .arg(&bin)
        .args(more);
    let output = program_output(Some(&layout.netns), &mut command, b"", 120 * SECOND).unwrap();
    let value: serde_json::Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", output.stdout, output.stderr));
    let text = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = value["findings"].as_array().unwrap().iter();
    let found = findings
        .map(|f| {
            println!("{node}: {f}");
            (
                (text(f, "check"), text(f, "subject")),
                (text(f, "verdict"), text(f, "fix")),
            )
        })
        .collect();
    (output.status.code(), found)
}

fn assert_failed(found: &Found, wanted: &[(&str, &str)]) {
    let failed: Vec<(&str, &str)> = found
        .iter()
        .filter(|(_, (verdict, _))| verdict == "fail")
        .map(|((check, subject), _)| (check.as_str(), subject.as_str()))
        .collect();
    assert_eq!(failed, wanted);
    for ((check, _), (verdict, fix)) in found {
        assert!(verdict != "fail" || !fix.is_empty(), "{check} has no fix");
    }
}

fn nft(lab: &Lab, node: &str, rules: &str) {
    let mut command = program_command("nft").unwrap();
    command.args(["-f", "-"]);
    let netns = lab.netns(node).unwrap();
    call_program(Some(&netns), &mut command, rules.as_bytes(), 60 * SECOND).unwrap();
}

#[test]
fn faults_are_found_each_with_a_fix() {
    on_each_stack(
        "faults_are_found_each_with_a_fix",
        &["nft"],
        "cross-subnet",
        "e2e-doctor",
        faults_and_fixes,
    );
}

fn faults_and_fixes(mut lab: Lab) {
    await_settled(&lab);
    let (status, found) = examine(&lab, "node1", &[]);
    assert_failed(&found, &[]);
    assert_eq!(status, Some(0));
    let verdict = |found: &Found, check: &str, subject: &str| {
        found[&(check.to_owned(), subject.to_owned())].0.clone()
    };
    for node in ["node2", "node3", "node4"] {
        for check in ["tcp.bgp", "mtu.path"] {
            assert_eq!(verdict(&found, check, node), "ok", "{check} {node}");
        }
    }
    // Across the racks only: within one, nothing goes through the tunnel.
    for node in ["node3", "node4"] {
        assert_eq!(verdict(&found, "udp.vxlan", node), "ok", "{node}");
    }

    // 1: a firewall on node3 that drops VXLAN; 2: one on node4 that refuses BGP; 3: a device of
    // flannel; 4: a narrow path to node2; 5: strict reverse path filtering, a warning.
    nft(
        &lab,
        "node3",
        "table inet doctor { chain in { type filter hook input priority 0; udp dport 4789 drop; }; }",
    );
    nft(
        &lab,
        "node4",
        "table inet doctor { chain in { type filter hook input priority 0; tcp dport 179 tcp flags syn reject with tcp reset; }; }",
    );
    ip(
        &lab,
        "node1",
        &["link add flannel.1 type bridge".to_owned()],
    );
    let echo = either(focus(&lab), "icmp", "icmpv6");
    nft(
        &lab,
        "node2",
        &format!(
            "table inet doctor {{ chain in {{ type filter hook input priority 0; {echo} type echo-request meta length > 1400 drop; }}; }}"
        ),
    );
    let netns = lab.netns("node1").unwrap();
    netns_sysctl(&netns, "net/ipv4/conf/all/rp_filter", "1", false).unwrap();
    let (status, found) = examine(&lab, "node1", &[]);
    assert_failed(
        &found,
        &[
            ("leftover.device", "flannel.1"),
            ("mtu.path", "node2"),
            ("tcp.bgp", "node4"),
            ("udp.vxlan", "node3"),
        ],
    );
    assert_eq!(status, Some(4));
    assert_eq!(
        verdict(&found, "sysctl.rp_filter", "net.ipv4.conf.all.rp_filter"),
        "warn"
    );

    // 6: no etcd; the rest of the machine is looked at all the same. Nothing goes to other nodes
    // then.
    lab.kill9_etcd().unwrap();
    let (status, found) = examine(&lab, "node2", &["--local"]);
    assert_failed(&found, &[("datastore.reachable", "etcd")]);
    assert_eq!(status, Some(4));
}
