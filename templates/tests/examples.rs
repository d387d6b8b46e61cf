//! Every node of every example cluster: the plan is rendered, reads back as it was, and the real BIRD 2 takes it.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use caracal_model::snapshot::Snapshot;
use caracal_templates::{Options, Role, parse, render};
use caracal_topologies::{PlanOptions, plan, resources};
use serde_json::{Value, json};

/// An example's nodes, pool and resources, as the datastore would hold them, with a block for each node.
fn cluster(file: &std::path::Path) -> Snapshot {
    let topology: Value = serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut documents = vec![json!({
        "kind": "IPPool", "metadata": {"name": "default-ipv4-ippool"}, "spec": topology["pool"],
    })];
    let mut names = Vec::new();
    for (index, node) in topology["nodes"].as_array().unwrap().iter().enumerate() {
        if matches!(node["kind"].as_str(), Some("gobgp" | "plain")) {
            continue;
        }
        let address = node["address"]
            .as_str()
            .map_or_else(|| format!("10.0.0.{}", 101 + index), str::to_owned);
        let mut bgp = json!({"ipv4Address": format!("{address}/24")});
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
    assert_eq!(
        resources::from_yaml(&list).unwrap().apply(&mut snapshot),
        []
    );
    for (index, name) in names.iter().enumerate() {
        let block = format!("10.244.{index}.0/26").parse().unwrap();
        resources::claim(&mut snapshot, &name.as_str().into(), block);
    }
    snapshot
}

#[test]
fn text_1_and_2_over_the_examples() {
    let have_bird = Command::new("bird").arg("--version").output().is_ok();
    if !have_bird {
        println!("not checked with BIRD: no program \"bird\" (apt-get install bird2)");
    }
    let checked =
        std::env::temp_dir().join(format!("caracal-examples-{}.conf", std::process::id()));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/examples");
    let mut texts = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|end| end != "yaml") {
            continue;
        }
        let snapshot = cluster(&file);
        for name in snapshot.nodes.keys() {
            let config = plan(&snapshot, name, &PlanOptions::default()).config;
            assert!(!config.originate.is_empty(), "{}: {name}", file.display());
            let tunnelled = Vec::new();
            for role in [Role::View, Role::Daemon { tunnelled }] {
                let options = Options {
                    role,
                    ..Options::default()
                };
                let text = render(&config, &options).unwrap();
                assert_eq!(parse(&text).unwrap(), config, "{text}");
                texts += 1;
                if have_bird {
                    std::fs::write(&checked, &text).unwrap();
                    let output = Command::new("bird")
                        .arg("-p")
                        .arg("-c")
                        .arg(&checked)
                        .output();
                    let output = output.unwrap();
                    let why = String::from_utf8_lossy(&output.stderr);
                    assert!(
                        output.status.success(),
                        "{}: {name}: {why}\n{text}",
                        file.display()
                    );
                }
            }
        }
    }
    let _ = std::fs::remove_file(&checked);
    assert!(texts >= 6, "the examples are missing");
}
