//! Kubernetes' API as the datastore: [`KubernetesStore`] on the test API server.

use std::collections::BTreeSet;
use std::time::Duration;

use caracal_datastore::{
    KubernetesConfig, KubernetesStore, Store, StoreError, WatchOptions, spawn_watcher,
};
use caracal_ipam::{AffinityOutcome, AssignRequest, Client, Inconsistency};
use caracal_lab::wait_until;
use caracal_model::{
    AffinityState, BlockAffinity, BlockOwner, Family, Key, KeyRange, Kind, Node, Txn, TxnOutcome,
    affinity_prefix, kind_prefix,
};
use serde_json::json;

use super::{PATIENCE, Server, definitions, pod, pool};

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

pub(crate) fn config(server: &Server, node: Option<&str>) -> KubernetesConfig {
    let endpoint = format!("http://{}", server.address);
    let lookup = |name: &str| (name == "K8S_API_ENDPOINT").then(|| endpoint.clone());
    let mut config = KubernetesConfig::from_lookup(lookup).expect("a configuration");
    config.pods_of = node.map(Into::into);
    config.progress_interval = Duration::from_millis(200);
    config
}

pub(crate) fn store(server: &Server, node: Option<&str>) -> KubernetesStore {
    KubernetesStore::new(config(server, node))
}

/// A server with all of Calico's kinds, a pool of 16 blocks of 16 addresses, and three Nodes.
pub(crate) fn started(scenario: &str, arguments: &[&str]) -> Option<Server> {
    let server = Server::start(scenario, arguments)?;
    server.kubectl(&["apply", "-k", &definitions()]);
    let mut small: serde_json::Value =
        serde_json::from_str(&pool("p", "10.0.0.0/24")).expect("JSON");
    small["spec"]["blockSize"] = 28.into();
    let pools = "/apis/crd.projectcalico.org/v1/ippools";
    server.request("POST", pools, &small).expect(201);
    for name in ["node-a", "node-b", "node-c"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
            "labels": {"kubernetes.io/hostname": name}}});
        server.request("POST", "/api/v1/nodes", &node).expect(201);
    }
    Some(server)
}

pub(crate) fn request(node: &str, handle: &str) -> AssignRequest {
    let mut request = AssignRequest::workload(node.into(), handle.into());
    request.num_v4 = 1;
    request
}

/// Leftovers of a crash are not looked for: nothing dies here. A handle may count too much.
fn faults(found: Vec<Inconsistency>) -> Vec<Inconsistency> {
    let mut found = found;
    found.retain(|one| {
        let excused = matches!(one, Inconsistency::Count { counted: Some(counted), held, .. } if counted > held);
        one.is_fault() && !excused
    });
    found
}

#[test]
fn addresses_are_taken_and_released_as_objects() {
    let Some(server) = started("take", &[]) else {
        return;
    };
    runtime().block_on(async {
        let store = store(&server, None);
        let client = Client::new(store.clone());
        let got = client
            .auto_assign(request("node-a", "k8s-pod-network.8f2c"))
            .await;
        let got = got.expect("an address");
        let block = got.v4[0].block;
        let name = format!("node-a-{}", block.to_string().replace(['.', '/'], "-"));
        let affinity = server.object(&["blockaffinity", &name]);
        assert_eq!(affinity["spec"]["state"], "confirmed");
        assert_eq!(affinity["spec"]["deleted"], "false");
        let handle = server.object(&["ipamhandle", "k8s-pod-network.8f2c"]);
        assert_eq!(handle["spec"]["block"], json!({(block.to_string()): 1}));
        // A further interface has a handle that can be no name.
        let further = request("node-a", "k8s-pod-network.8f2c:eth1");
        client.auto_assign(further).await.expect("an address");
        assert_eq!(client.check().await.expect("a check"), []);
        for handle in ["k8s-pod-network.8f2c", "k8s-pod-network.8f2c:eth1"] {
            let released = client.release_by_handle(&handle.into(), &[]).await;
            assert_eq!(released.expect("a release").addresses.len(), 1);
        }
        assert!(server.kubectl(&["get", "ipamhandles"]).is_empty());
        let owner = BlockOwner::Host("node-a".into());
        let back = client.release_block_affinity(&owner, block, true).await;
        assert_eq!(back.expect("given back"), AffinityOutcome::Deleted);
        let view = client.view().await.expect("a view");
        assert!(view.blocks.is_empty() && view.affinities.is_empty() && view.handles.is_empty());
    });
}

#[test]
fn fifty_clients_never_get_an_address_twice() {
    let Some(server) = started("race", &[]) else {
        return;
    };
    runtime().block_on(async {
        let mut running = tokio::task::JoinSet::new();
        for task in 0..50 {
            // Each a process of its own: nothing is shared but the API.
            let client = Client::new(store(&server, None));
            let node = ["node-a", "node-b", "node-c"][task % 3];
            running.spawn(async move {
                let mut mine = Vec::new();
                for round in 0..3 {
                    let handle = format!("h.{task}.{round}");
                    let got = client.auto_assign(request(node, &handle)).await;
                    mine.push(got.expect("an address").v4[0].address);
                }
                let handle = format!("h.{task}.0");
                client
                    .release_by_handle(&(&*handle).into(), &[])
                    .await
                    .expect("a release");
                mine.split_off(1)
            });
        }
        let mut held = BTreeSet::new();
        let mut count = 0;
        while let Some(mine) = running.join_next().await {
            let mine = mine.expect("no panic");
            count += mine.len();
            held.extend(mine);
        }
        assert_eq!(
            (held.len(), count),
            (100, 100),
            "an address was given twice"
        );
        let client = Client::new(store(&server, None));
        assert_eq!(faults(client.check().await.expect("a check")), []);
        let view = client.view().await.expect("a view");
        let used = view.blocks.values().map(|known| known.value.in_use());
        assert_eq!(used.sum::<usize>(), 100);
    });
}

#[test]
fn an_interrupted_deletion_is_finished_by_who_comes_next() {
    let Some(server) = started("two-steps", &[]) else {
        return;
    };
    runtime().block_on(async {
        let store = store(&server, None);
        let owner = BlockOwner::Host("node-a".into());
        let cidr = "10.0.0.16/28".parse().expect("a prefix");
        let key = Key::Affinity(owner.clone(), cidr).to_path();
        let pending = BlockAffinity::new(AffinityState::Pending).to_json();
        let create = Txn::new().create(key.as_str(), pending.clone());
        let TxnOutcome::Committed(first) = store.commit(&create).await.expect("written") else {
            panic!("nobody else is here")
        };
        assert_eq!(
            store.commit(&create).await.expect("an answer"),
            TxnOutcome::Conflict
        );
        // Somebody marks it and dies.
        let name = "node-a-10-0-0-16-28";
        let mark = r#"{"spec":{"deleted":"true"}}"#;
        server.kubectl(&["patch", "blockaffinity", name, "--type=merge", "-p", mark]);
        let stale = Txn::new().update(key.as_str(), first, pending);
        assert_eq!(
            store.commit(&stale).await.expect("an answer"),
            TxnOutcome::Conflict
        );
        assert!(server.kubectl(&["get", "blockaffinities"]).is_empty());
        assert!(matches!(
            store.commit(&create).await,
            Ok(TxnOutcome::Committed(_))
        ));
        let own = KeyRange::Prefix(affinity_prefix(&owner, Family::Ipv4));
        let read = store.read(&[own]).await.expect("a list");
        assert_eq!(read.ranges[0].len(), 1, "it has Calico's labels");
    });
}

/// The account of a node may list pools and create one, and not get one by its name: of several
/// nodes that start in a bare cluster all but one find that there is one already.
#[test]
fn who_comes_second_with_the_first_pool_reads_nothing() {
    let Some(server) = started("pools", &[]) else {
        return;
    };
    let existing = "/apis/crd.projectcalico.org/v1/ippools/p";
    let rule = json!({"path": existing, "method": "GET", "fault": "500"});
    server.request("POST", "/test/faults", &rule).expect(200);
    runtime().block_on(async {
        let store = store(&server, None);
        let key = Key::resource(Kind::IpPool, "p".to_owned()).to_path();
        let again = pool("p", "10.9.0.0/24").into_bytes();
        let create = Txn::new().create(key, again);
        let outcome = store.commit(&create).await.expect("an answer");
        assert_eq!(outcome, TxnOutcome::Conflict);
    });
}

#[test]
fn a_node_and_a_pod_are_written_as_annotations() {
    let Some(server) = started("annotations", &[]) else {
        return;
    };
    runtime().block_on(async {
        let store = store(&server, None);
        let key = Key::resource(Kind::Node, "node-a").to_path();
        let read = store
            .read(&[KeyRange::Key(key.clone())])
            .await
            .expect("a Node");
        let kv = &read.ranges[0][0];
        let mut node = Node::from_json(&kv.value).expect("a Node");
        node.spec.ipv4_vxlan_tunnel_addr = Some("10.0.0.1".parse().expect("an address"));
        node.metadata
            .labels
            .insert("route-reflector".into(), "true".into());
        let txn = Txn::new().update(key.as_str(), kv.mod_revision, node.to_json());
        let written = store.commit(&txn).await.expect("an answer");
        assert!(matches!(written, TxnOutcome::Committed(_)));
        let object = server.object(&["node", "node-a"]);
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(
            annotations["projectcalico.org/IPv4VXLANTunnelAddr"],
            "10.0.0.1"
        );
        assert_eq!(
            annotations["projectcalico.org/labels"],
            r#"{"route-reflector":"true"}"#
        );
        assert_eq!(
            store.commit(&txn).await.expect("an answer"),
            TxnOutcome::Conflict
        );
        // Only Kubernetes makes Nodes.
        let other = Key::resource(Kind::Node, "node-x").to_path();
        let create = Txn::new().create(other.as_str(), node.to_json());
        let said = store
            .commit(&create)
            .await
            .expect_err("refused")
            .to_string();
        assert!(said.contains("only Kubernetes makes one"), "{said}");

        let pods = "/api/v1/namespaces/default/pods";
        server
            .request("POST", pods, &pod("web-0", Some("node-a")))
            .expect(201);
        let endpoint = Key::workload("default", "node--a-k8s-web--0-eth0").to_path();
        let value = json!({"kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "node--a-k8s-web--0-eth0", "namespace": "default"},
            "spec": {"orchestrator": "k8s", "node": "node-a", "pod": "web-0", "endpoint": "eth0",
                "containerID": "8f2c", "ipNetworks": ["10.0.0.17/32"]}});
        let create = Txn::new().create(endpoint.as_str(), value.to_string().into_bytes());
        let TxnOutcome::Committed(_) = store.commit(&create).await.expect("written") else {
            panic!("nobody else is here")
        };
        let range = [KeyRange::Prefix(kind_prefix(Kind::WorkloadEndpoint))];
        let found = store.read(&range).await.expect("a list");
        assert_eq!(found.ranges[0].len(), 1);
        let revision = found.ranges[0][0].mod_revision;
        let delete = Txn::new().delete(endpoint.as_str(), revision);
        let gone = store.commit(&delete).await.expect("an answer");
        assert!(matches!(gone, TxnOutcome::Committed(_)));
        assert_eq!(store.read(&range).await.expect("a list").ranges[0], []);
    });
}

#[test]
fn the_watcher_follows_and_outlives_a_restart() {
    let Some(mut server) = started("watcher", &[]) else {
        return;
    };
    let runtime = runtime();
    let mut views = runtime.block_on(async {
        let mut views = spawn_watcher(store(&server, Some("node-a")), WatchOptions::default());
        let synced = views.wait_for(|view| view.is_current() && view.snapshot.nodes.len() == 3);
        tokio::time::timeout(PATIENCE, synced)
            .await
            .expect("in time")
            .expect("it runs");
        views
    });
    let pods = "/api/v1/namespaces/default/pods";
    for (name, node) in [("mine", "node-a"), ("other", "node-b")] {
        server
            .request("POST", pods, &pod(name, Some(node)))
            .expect(201);
        let status =
            json!({"metadata": {"annotations": {"cni.projectcalico.org/podIP": "10.0.0.18/32"}}});
        server
            .patch(&format!("{pods}/{name}/status"), "merge-patch", &status)
            .expect(200);
    }
    let wait = |views: &mut tokio::sync::watch::Receiver<caracal_datastore::View>,
                what: &dyn Fn(&caracal_datastore::View) -> bool| {
        runtime.block_on(async {
            let seen = tokio::time::timeout(PATIENCE, views.wait_for(|view| what(view))).await;
            drop(seen.expect("in time").expect("it runs"));
        });
    };
    wait(&mut views, &|view| view.snapshot.workloads.len() == 1);
    assert!(
        views.borrow().snapshot.elsewhere.is_empty(),
        "pods of others are not read"
    );
    server.restart();
    let second = pool("q", "10.9.0.0/24");
    let pools = "/apis/crd.projectcalico.org/v1/ippools";
    let second = serde_json::from_str(&second).expect("JSON");
    // A server that has just started throttles custom resources.
    wait_until(PATIENCE, "the pool is made", || {
        match server.request("POST", pools, &second).code {
            201 => Ok(()),
            code => Err(code),
        }
    })
    .expect("in time");
    wait(&mut views, &|view| {
        view.snapshot.pools.len() == 2 && view.is_current()
    });
    assert_eq!(views.borrow().snapshot.nodes.len(), 3, "nothing was lost");
    // No kubelet is there to say that it has ended.
    server.kubectl(&["delete", "pod", "mine", "--force", "--grace-period=0"]);
    wait(&mut views, &|view| view.snapshot.workloads.is_empty());
}

#[test]
fn a_cluster_without_calicos_kinds_and_a_server_that_is_away_are_told() {
    let Some(mut server) = Server::start("told", &[]) else {
        return;
    };
    runtime().block_on(async {
        let store = store(&server, None);
        let mut views = spawn_watcher(store.clone(), WatchOptions::default());
        let reported = views.wait_for(|view| {
            let reason = view.freshness.reason().unwrap_or_default();
            reason.contains("none of Calico's custom resources")
        });
        tokio::time::timeout(PATIENCE, reported)
            .await
            .expect("in time")
            .expect("it runs");
        server.process.kill().expect("it is killed");
        server.process.wait().expect("it ends");
        let away = store
            .read(&[KeyRange::Key(Key::IpamConfig.to_path())])
            .await;
        assert!(
            matches!(away, Err(StoreError::Unavailable { .. })),
            "{away:?}"
        );
    });
}
