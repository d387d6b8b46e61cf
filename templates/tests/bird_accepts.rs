//! TEXT-2: the real BIRD 2 reads what we write, for arbitrary configurations and for the example
//! clusters.

#![allow(clippy::unwrap_used)]

#[path = "../src/tests/generate.rs"]
mod generate;

use std::process::{Command, Stdio};

use caracal_model::Snapshot;
use caracal_templates::{Daemon, Options, Role, Tunnelled, parse, render};
use caracal_topologies::{PlanOptions, assign_block, plan, resources_from_yaml};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRng, TestRunner};
use serde_json::{Value, json};

/// BIRD's complaint about a text; `None` when it is content.
fn complaint(text: &str, name: &str) -> Option<String> {
    let file = std::env::temp_dir().join(format!("caracal-{}-{name}.conf", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new("bird")
        .arg("-p")
        .arg("-c")
        .arg(&file)
        .output()
        .unwrap();
    let _ = std::fs::remove_file(&file);
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// True when there is a BIRD 2; else says why the test is skipped.
fn have_bird() -> bool {
    let found = Command::new("bird")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        println!("skipped: no program \"bird\"; install it with: apt-get install bird2");
    }
    found
}

#[test]
fn text_2_bird_accepts_arbitrary_configurations() {
    if !have_bird() {
        return;
    }
    let config = Config::default();
    // The same cases every time: a failure names a text, and there is nothing to shrink.
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    for case in 0..300 {
        let config = generate::config().new_tree(&mut runner).unwrap().current();
        for (name, role) in [
            ("view", Role::View),
            (
                "daemon",
                Role::Daemon(Daemon {
                    tunnelled: vec![
                        Tunnelled {
                            prefix: "10.244.0.0/16".parse().unwrap(),
                            encap: "IPIP",
                            direct_within: Some("10.0.0.0/24".parse().unwrap()),
                        },
                        Tunnelled {
                            prefix: "fd00:10::/48".parse().unwrap(),
                            encap: "VXLAN",
                            direct_within: None,
                        },
                    ],
                    rejected: ["10.96.0.0/12".parse().unwrap()].into(),
                    reachable_by: [("10.9.0.1/32".parse().unwrap(), [10, 0, 0, 254].into())].into(),
                    ignored_interfaces: vec!["eth9*".to_owned()],
                }),
            ),
        ] {
            let options = Options {
                role,
                show_passwords: true,
                ..Options::default()
            };
            let text = render(&config, &options).unwrap();
            if let Some(complaint) = complaint(&text, name) {
                panic!("case {case}, {name}: {complaint}\n{text}");
            }
        }
    }
}

#[test]
fn bird_refuses_what_is_wrong() {
    // Guards the test above against a `bird` that accepts everything.
    if have_bird() {
        let text = "router id 10.0.0.1;\nprotocol device { }\n";
        assert_eq!(complaint(text, "good"), None);
        assert!(complaint(&text.replace("router id", "router di"), "bad").is_some());
    }
}

/// An example's nodes, pool and resources, as the datastore would hold them, with a block for each
/// node.
fn cluster(file: &std::path::Path) -> Snapshot {
    let topology: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let pools: Vec<&Value> = ["pool", "pool6"]
        .into_iter()
        .map(|field| &topology[field])
        .filter(|pool| !pool.is_null())
        .collect();
    let mut documents: Vec<Value> = pools
        .iter()
        .enumerate()
        .map(|(n, spec)| json!({"kind": "IPPool", "metadata": {"name": format!("pool-{n}")}, "spec": spec}))
        .collect();
    let first = topology["segments"][0]["cidr"].as_str().unwrap();
    let net = first.strip_suffix("/64").unwrap_or("10.0.0.");
    let mut names = Vec::new();
    for (index, node) in topology["nodes"].as_array().unwrap().iter().enumerate() {
        if matches!(node["kind"].as_str(), Some("gobgp" | "plain")) {
            continue;
        }
        let address = node["address"]
            .as_str()
            .map_or_else(|| format!("{net}{}", 101 + index), str::to_owned);
        let mut bgp = json!({});
        let second = node["address6"].as_str().map(str::to_owned);
        for address in std::iter::once(address).chain(second) {
            match address.contains(':') {
                true => bgp["ipv6Address"] = format!("{address}/64").into(),
                false => bgp["ipv4Address"] = format!("{address}/24").into(),
            }
        }
        for (from, to) in [
            ("asn", "asNumber"),
            ("routeReflectorClusterID", "routeReflectorClusterID"),
        ] {
            if !node[from].is_null() {
                bgp[to] = node[from].clone();
            }
        }
        names.push(node["name"].as_str().unwrap().to_owned());
        documents.push(json!({
            "kind": "Node", "metadata": {"name": node["name"], "labels": node["labels"]}, "spec": {"bgp": bgp},
        }));
    }
    documents.extend(
        topology["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .cloned(),
    );
    let list = json!({"kind": "List", "items": documents}).to_string();
    let mut snapshot = Snapshot::default();
    assert_eq!(resources_from_yaml(&list).unwrap().apply(&mut snapshot), []);
    for (index, name) in names.iter().enumerate() {
        for pool in &pools {
            let block = match pool["cidr"].as_str().unwrap() {
                v6 if v6.contains(':') => v6.replace("::/", &format!("::{index:x}00/")),
                _ => format!("10.244.{index}.0/26"),
            };
            let block = block.split('/').next().unwrap().to_owned();
            let len = if block.contains(':') { 122 } else { 26 };
            let block = format!("{block}/{len}").parse().unwrap();
            assign_block(&mut snapshot, &name.as_str().into(), block);
        }
    }
    snapshot
}

#[test]
fn text_1_and_2_over_the_examples() {
    let have_bird = have_bird();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/examples");
    let mut texts = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|end| end != "yaml") {
            continue;
        }
        let stem = file.file_stem().unwrap().to_string_lossy();
        if stem.starts_with("flannel-") {
            // Its nodes have no speaker.
            continue;
        }
        let snapshot = cluster(&file);
        for name in snapshot.nodes.keys() {
            let config = plan(&snapshot, name, &PlanOptions::default()).config;
            assert!(!config.originate.is_empty(), "{}: {name}", file.display());
            let tunnelled = Vec::new();
            for role in [
                Role::View,
                Role::Daemon(Daemon {
                    tunnelled,
                    ..Daemon::default()
                }),
            ] {
                let options = Options {
                    role,
                    ..Options::default()
                };
                let text = render(&config, &options).unwrap();
                assert_eq!(parse(&text).unwrap(), config, "{text}");
                texts += 1;
                if have_bird && let Some(why) = complaint(&text, "example") {
                    panic!("{}: {name}: {why}\n{text}", file.display());
                }
            }
        }
    }
    assert!(texts >= 6, "the examples are missing");
}
