//! The example clusters in `topologies/examples`.

#![allow(clippy::unwrap_used)]

use caracal_bgp::{PeerName, SpeakerConfig};
use caracal_model::{Applied, Family, Key, Kind, Snapshot};
use caracal_topologies::{PlanOptions, RouterIdChoice, plan};
use serde_json::{Value, json};

fn names(config: &SpeakerConfig) -> Vec<&str> {
    config.peers.keys().map(PeerName::as_str).collect()
}

/// `CALICO_ROUTER_ID=hash`, which nodes without IPv4 have.
fn by_name() -> PlanOptions {
    PlanOptions {
        router_id: RouterIdChoice::Hash,
        ..PlanOptions::default()
    }
}

fn is_ipv6(cidr: &Value) -> bool {
    cidr.as_str().is_some_and(|text| text.contains(':'))
}

/// Node resources, the pool and the file's own resources of an example, as the lab would write
/// them.
fn example(file: &str) -> Snapshot {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/");
    let text = std::fs::read_to_string(format!("{path}{file}")).unwrap();
    let topology: Value = serde_saphyr::from_str(&text).unwrap();
    let mut snapshot = Snapshot::default();
    let mut put = |kind: Kind, value: Value| {
        let key = Key::resource(kind, value["metadata"]["name"].as_str().unwrap());
        let applied = snapshot.apply(&key.to_path(), Some(value.to_string().as_bytes()), 1);
        assert_eq!(applied, Applied::Changed, "{key}");
    };
    for pool in ["pool", "pool6"].map(|key| &topology[key]) {
        if !pool.is_null() {
            let family = match is_ipv6(&pool["cidr"]) {
                true => "ipv6",
                false => "ipv4",
            };
            let name = format!("default-{family}-ippool");
            put(
                Kind::IpPool,
                json!({"metadata": {"name": name}, "spec": pool}),
            );
        }
    }
    let only_ipv6 = is_ipv6(&topology["segments"][0]["cidr"]);
    let mut free = 1;
    for node in topology["nodes"].as_array().unwrap() {
        if matches!(node["kind"].as_str(), Some("gobgp" | "plain")) {
            continue;
        }
        let address = node["address"].as_str().map_or_else(
            || {
                free += 1;
                format!("10.0.0.{free}")
            },
            str::to_owned,
        );
        let mut bgp = json!({});
        if only_ipv6 {
            bgp["ipv6Address"] = json!(format!("fd00:10::{free}/64"));
        } else {
            bgp["ipv4Address"] = json!(format!("{address}/24"));
        }
        if let Some(second) = node["address6"].as_str() {
            bgp["ipv6Address"] = json!(format!("{second}/64"));
        }
        for (from, to) in [
            ("asn", "asNumber"),
            ("routeReflectorClusterID", "routeReflectorClusterID"),
        ] {
            if !node[from].is_null() {
                bgp[to] = node[from].clone();
            }
        }
        put(
            Kind::Node,
            json!({"metadata": {"name": node["name"], "labels": node["labels"]}, "spec": {"bgp": bgp}}),
        );
    }
    for resource in topology["resources"].as_array().into_iter().flatten() {
        let kind = Kind::ALL
            .into_iter()
            .find(|k| Some(k.as_str()) == resource["kind"].as_str())
            .unwrap();
        put(kind, resource.clone());
    }
    snapshot
}

#[test]
fn full_mesh() {
    let s = example("full-mesh.yaml");
    let planned = plan(&s, &"node1".into(), &PlanOptions::default());
    assert_eq!(planned.problems, []);
    assert_eq!(planned.config.peers.len(), 2);
    assert!(planned.config.peers.values().all(|p| p.kind == "mesh"));
}

/// Calico runs two daemons with a session each; here it is one speaker with two sessions.
#[test]
fn dual_stack_has_a_session_of_each_family_with_every_node() {
    let s = example("dual-stack.yaml");
    let planned = plan(&s, &"node1".into(), &PlanOptions::default());
    assert_eq!(planned.problems, []);
    let families = planned.config.peers.values().map(|p| p.address.is_ipv6());
    assert_eq!(families.clone().filter(|v6| *v6).count(), 3);
    assert_eq!(families.filter(|v6| !*v6).count(), 3);
}

#[test]
fn ipv6_alone_needs_no_ipv4_address() {
    let s = example("ipv6.yaml");
    let planned = plan(&s, &"node1".into(), &by_name());
    assert_eq!(planned.problems, []);
    assert_eq!(planned.config.peers.len(), 2);
    assert!(planned.config.peers.values().all(|p| p.address.is_ipv6()));
    // Not asked for, it is chosen all the same, and said.
    let surprised = plan(&s, &"node1".into(), &PlanOptions::default());
    assert_eq!(surprised.config, planned.config);
    assert_eq!(surprised.problems[0].code, "bgp.router_id");
}

#[test]
fn route_reflector_pair() {
    let s = example("rr-pair.yaml");
    let node = plan(&s, &"node1".into(), &PlanOptions::default());
    assert_eq!(node.problems, []);
    assert_eq!(names(&node.config), ["Node_10_0_0_1", "Node_10_0_0_2"]);
    let reflector = plan(&s, &"rr1".into(), &PlanOptions::default()).config;
    assert_eq!(
        names(&reflector),
        [
            "Node_10_0_0_11",
            "Node_10_0_0_12",
            "Node_10_0_0_13",
            "Node_10_0_0_2"
        ]
    );
    let clients = reflector.peers.values().filter(|p| p.client_of.is_some());
    assert_eq!(clients.count(), 3);
}

#[test]
fn every_example_plans_without_problems() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        // Nodes of flannel's have no peers.
        if !file.ends_with(".yaml") || file.starts_with("flannel-") {
            continue;
        }
        let s = example(&file);
        for name in s.nodes.keys() {
            let options = match s.nodes[name].spec.address(Family::Ipv4) {
                Some(_) => PlanOptions::default(),
                None => by_name(),
            };
            let planned = plan(&s, name, &options);
            assert_eq!(planned.problems, [], "{file}, {name}");
            assert!(!planned.config.peers.is_empty(), "{file}, {name}");
        }
        seen += 1;
    }
    assert!(seen >= 3, "examples are missing");
}
