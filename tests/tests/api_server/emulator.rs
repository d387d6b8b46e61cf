//! Our client on a server that is not ours: the emulator of Kubernetes' API of the Python package
//! `kmock`, as far as it goes. It has discovery, lists, objects, watches and patches; it has no
//! `resourceVersion` of its own, no selectors, pages, bookmarks, preconditions or accounts, so
//! nothing of conflicts can be seen on it.

use caracal_tests::{has_python_packages, python_script};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use caracal_datastore::{
    KubernetesConfig, KubernetesStore, Store as _, View, WatchOptions, spawn_watcher,
};
use caracal_model::{Key, KeyRange, Kind, Node, Txn, TxnOutcome, kind_prefix};
use serde_json::{Value, json};

use super::PATIENCE;
use super::http::send_to;
use super::store::runtime;

const GROUP: &str = "crd.projectcalico.org/v1";

/// The emulator; it ends with its input.
struct Emulator {
    process: Child,
    port: u16,
}

impl Emulator {
    fn start(objects: &[Value]) -> Self {
        let mut command = python_script("emulator.py");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python3 runs");
        let input = process.stdin.as_mut().expect("a pipe");
        let text = Value::from(objects.to_vec());
        writeln!(input, "{text}").expect("it reads");
        let output = process.stdout.take().expect("a pipe");
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        read.expect("it says its port");
        let port = line.trim().parse().expect("a port");
        Self { process, port }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn object(api: &str, kind: &str, plural: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": api, "kind": kind, "plural": plural,
        "metadata": {"name": name, "resourceVersion": "7",
            "uid": format!("6f1c2a34-5b6d-4e7f-8a9b-{:012}", name.len())}});
    for (key, value) in rest.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    object
}

fn objects() -> Vec<Value> {
    let pool = json!({"spec": {"cidr": "10.244.0.0/16", "blockSize": 26}});
    let information = json!({"spec": {"clusterGUID": "g", "datastoreReady": true}});
    let mut node = object("v1", "Node", "nodes", "node-a", json!({}));
    node["metadata"]["annotations"] = json!({"projectcalico.org/IPv4Address": "10.0.0.1/24"});
    vec![
        object("v1", "Namespace", "namespaces", "kube-system", json!({})),
        node,
        object(
            GROUP,
            "ClusterInformation",
            "clusterinformations",
            "default",
            information,
        ),
        object(GROUP, "IPPool", "ippools", "p", pool),
    ]
}

#[test]
fn a_foreign_server_is_read_followed_and_written() {
    if !has_python_packages("a_foreign_server_is_read_followed_and_written") {
        return;
    }
    let emulator = Emulator::start(&objects());
    let endpoint = format!("http://127.0.0.1:{}", emulator.port);
    let lookup = |name: &str| (name == "K8S_API_ENDPOINT").then(|| endpoint.clone());
    let mut config = KubernetesConfig::from_lookup(lookup).expect("a configuration");
    config.progress_interval = Duration::from_millis(200);
    let store = KubernetesStore::new(config);
    runtime().block_on(async {
        let pools = KeyRange::Prefix(kind_prefix(Kind::IpPool));
        let node = Key::resource(Kind::Node, "node-a").to_path();
        let ranges = [pools, KeyRange::Key(node.clone())];
        let read = store.read(&ranges).await.expect("an answer");
        let keys: Vec<_> = read.ranges.iter().flatten().map(|kv| &*kv.key).collect();
        let pool = Key::resource(Kind::IpPool, "p").to_path();
        assert_eq!(keys, [&*pool, &*node]);

        let mut views = spawn_watcher(store.clone(), WatchOptions::default());
        let mut until = async |what: &str, is: fn(&View) -> bool| {
            let seen = tokio::time::timeout(PATIENCE, views.wait_for(is)).await;
            drop(seen.unwrap_or_else(|_| panic!("{what}")).expect("it runs"));
        };
        until("the lists", |view| {
            view.snapshot.nodes.len() == 1 && view.snapshot.pools.len() == 1
        })
        .await;

        // What others write comes by the watch.
        let second = json!({"kind": "IPPool", "apiVersion": GROUP,
            "metadata": {"name": "q", "resourceVersion": "9"}, "spec": {"cidr": "10.9.0.0/16"}});
        let address = SocketAddr::from(([127, 0, 0, 1], emulator.port));
        let path = format!("/apis/{GROUP}/ippools");
        let headers = [("Content-Type", "application/json")];
        let reply = send_to(address, "POST", &path, &headers, &second.to_string());
        reply.expect("an answer").expect(200);
        until("the second pool", |view| view.snapshot.pools.len() == 2).await;

        // What we write is there.
        let third = Key::resource(Kind::IpPool, "r").to_path();
        let value = json!({"kind": "IPPool", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "r"}, "spec": {"cidr": "10.10.0.0/16"}});
        let create = Txn::new().create(third.as_str(), value.to_string().into_bytes());
        let created = store.commit(&create).await.expect("an answer");
        assert!(matches!(created, TxnOutcome::Committed(_)), "{created:?}");
        let found = store
            .read(&[KeyRange::Key(third)])
            .await
            .expect("an answer");
        assert_eq!(found.ranges[0].len(), 1);

        // Annotations of a Node, by a patch of its status.
        let kv = &read.ranges[1][0];
        let mut changed = Node::from_json(&kv.value).expect("a Node");
        changed.spec.ipv4_vxlan_tunnel_addr = Some("10.244.0.1".parse().expect("an address"));
        let update = Txn::new().update(node.as_str(), kv.mod_revision, changed.to_json());
        let updated = store.commit(&update).await.expect("an answer");
        assert!(matches!(updated, TxnOutcome::Committed(_)), "{updated:?}");
        let read = store.read(&[KeyRange::Key(node)]).await.expect("an answer");
        let stored = Node::from_json(&read.ranges[0][0].value).expect("a Node");
        assert_eq!(
            stored.spec.ipv4_vxlan_tunnel_addr,
            changed.spec.ipv4_vxlan_tunnel_addr
        );
    });
}
