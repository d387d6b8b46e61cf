//! What is read beside Calico's data: a pod with its namespace, ranges of Nodes, Secrets by name.

use std::time::Duration;

use caracal_datastore::{Datastore, DatastoreConfig, SecretContent, spawn_watcher};
use caracal_model::{Family, Prefix};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::store::runtime;
use super::{PATIENCE, Server, definitions, pod};

fn store(server: &Server, ranges: bool) -> Datastore {
    let endpoint = format!("http://{}", server.address);
    let config = DatastoreConfig::from_lookup(|name| match name {
        "DATASTORE_TYPE" => Some("kubernetes".to_owned()),
        "K8S_API_ENDPOINT" => Some(endpoint.clone()),
        "USE_POD_CIDR" => Some(ranges.to_string()),
        _ => None,
    });
    config.and_then(DatastoreConfig::open).expect("a store")
}

#[test]
fn a_pod_is_read_with_its_namespace() {
    let Some(server) = Server::start("beside-pod", &[]) else {
        return;
    };
    let namespace =
        json!({"metadata": {"annotations": {"cni.projectcalico.org/ipv4pools": "[\"p\"]"}}});
    let path = "/api/v1/namespaces/default";
    server.patch(path, "merge-patch", &namespace).expect(200);
    let mut object = pod("web", Some("node-a"));
    object["metadata"]["labels"] = json!({"app": "web"});
    object["spec"]["serviceAccountName"] = "builder".into();
    let made = server
        .request("POST", &format!("{path}/pods"), &object)
        .expect(201);
    runtime().block_on(async {
        let store = store(&server, false);
        let read = store
            .pod("default", "web")
            .await
            .expect("an answer")
            .expect("it is there");
        assert_eq!(made["metadata"]["uid"], read.uid);
        assert_eq!(read.labels["app"], "web");
        assert_eq!(read.profiles, ["kns.default", "ksa.default.builder"]);
        assert_eq!(
            read.namespace_annotations["cni.projectcalico.org/ipv4pools"],
            "[\"p\"]"
        );
        for (namespace, name) in [("default", "other"), ("nowhere", "web")] {
            assert_eq!(store.pod(namespace, name).await.expect("an answer"), None);
        }
    });
}

#[test]
fn ranges_of_nodes_are_blocks() {
    let Some(server) = Server::start("beside-ranges", &[]) else {
        return;
    };
    server.kubectl(&["apply", "-k", &definitions()]);
    let node = |name: &str, ranges: &[&str]| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"podCIDRs": ranges}});
    let nodes = "/api/v1/nodes";
    server
        .request(
            "POST",
            nodes,
            &node("node-a", &["10.244.1.0/24", "fd00:1::/64"]),
        )
        .expect(201);
    runtime().block_on(async {
        let store = store(&server, true);
        let own = store.pod_cidrs(&"node-a".into()).await.expect("an answer");
        let own: Vec<String> = own
            .expect("it is there")
            .iter()
            .map(Prefix::to_string)
            .collect();
        assert_eq!(own, ["10.244.1.0/24", "fd00:1::/64"]);
        assert_eq!(
            store.pod_cidrs(&"node-x".into()).await.expect("an answer"),
            None
        );
        let mut views = spawn_watcher(store.clone(), store.watch_options());
        let mut until = async |count: usize| {
            let seen = views.wait_for(|view| {
                view.is_current()
                    && view.snapshot.blocks.len() == count
                    && view.snapshot.affinities.len() == count
            });
            let view = tokio::time::timeout(PATIENCE, seen).await.expect("in time");
            view.expect("it runs").snapshot.clone()
        };
        let first = until(2).await;
        assert!(first.invalid.is_empty(), "{:?}", first.invalid);
        server
            .request("POST", nodes, &node("node-b", &["10.244.2.0/24"]))
            .expect(201);
        let second = until(3).await;
        let block = second.block_of(&"10.244.2.7/32".parse().expect("an address"));
        assert_eq!(block.expect("a block").host(), Some(&"node-b".into()));
        assert_eq!(block.map(|block| block.cidr.family()), Some(Family::Ipv4));
        server.kubectl(&["delete", "node", "node-a"]);
        until(1).await;
    });
}

#[test]
fn a_secret_is_followed_by_its_name() {
    let Some(server) = Server::start("beside-secret", &[]) else {
        return;
    };
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = |name: &str, value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "data": {"mesh": value},
            "metadata": {"name": name, "namespace": "kube-system"}})
    };
    server
        .request("POST", secrets, &secret("other", "eA=="))
        .expect(201);
    runtime().block_on(async {
        let store = store(&server, false);
        let mut followed = store
            .secret("kube-system", "bgp")
            .expect("there are Secrets");
        let mut next = async || {
            let item = tokio::time::timeout(Duration::from_secs(60), followed.next()).await;
            item.expect("in time").expect("it does not end")
        };
        let content = |text: &str| SecretContent([("mesh".to_owned(), text.to_owned())].into());
        assert_eq!(next().await.expect("an answer"), SecretContent::default());
        server
            .request("POST", secrets, &secret("bgp", "b25l"))
            .expect(201);
        assert_eq!(next().await.expect("an answer"), content("one"));
        // A watch that is too old, and one that is cut, go on by a list.
        server.request("POST", "/test/watches/expire", &Value::Null);
        server
            .request("PUT", &format!("{secrets}/bgp"), &secret("bgp", "dHdv"))
            .expect(200);
        let mut seen = next().await.expect("an answer");
        while seen == content("one") {
            seen = next().await.expect("an answer");
        }
        assert_eq!(seen, content("two"));
        server.kubectl(&["-n", "kube-system", "delete", "secret", "bgp"]);
        assert_eq!(next().await.expect("an answer"), SecretContent::default());
    });
}
