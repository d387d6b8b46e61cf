//! Services and EndpointSlices are read where addresses of theirs are announced, and not before;
//! they are never written.

use caracal_datastore::{
    KubernetesConfig, KubernetesStore, Store as _, StoreError, View, WatchOptions, spawn_watcher,
};
use caracal_model::{DocumentKind, Key, KeyRange, Txn};
use serde_json::json;

use super::PATIENCE;
use super::commands::ends;
use super::store::{runtime, started, store};

#[test]
fn services_are_read_once_their_addresses_are_announced() {
    let Some(server) = started("services", &[]) else {
        return;
    };
    let service = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}})
    };
    let services = "/api/v1/namespaces/default/services";
    server
        .request("POST", services, &service("first"))
        .expect(201);
    let endpoint = format!("http://{}", server.address);
    let lookup = |name: &str| (name == "K8S_API_ENDPOINT").then(|| endpoint.clone());
    let mut config = KubernetesConfig::from_lookup(lookup).expect("a configuration");
    config.follow_services = false;
    let runtime = runtime();
    let _inside = runtime.enter();
    let mut views = spawn_watcher(KubernetesStore::new(config), WatchOptions::default());
    let mut wait = |what: &dyn Fn(&View) -> bool| {
        runtime.block_on(async {
            let seen = tokio::time::timeout(PATIENCE, views.wait_for(|view| what(view))).await;
            seen.expect("in time")
                .expect("it runs")
                .snapshot
                .documents
                .len()
        })
    };
    let synced = wait(&|view| view.is_current() && view.snapshot.nodes.len() == 3);
    assert_eq!(synced, 0, "nobody announces it");
    let configuration = json!({"apiVersion": "crd.projectcalico.org/v1",
        "kind": "BGPConfiguration", "metadata": {"name": "default"},
        "spec": {"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}});
    let configurations = "/apis/crd.projectcalico.org/v1/bgpconfigurations";
    server
        .request("POST", configurations, &configuration)
        .expect(201);
    assert_eq!(
        wait(&|view| view.is_current() && !view.snapshot.documents.is_empty()),
        1
    );
    // From then on they are watched.
    server
        .request("POST", services, &service("second"))
        .expect(201);
    assert_eq!(wait(&|view| view.snapshot.documents.len() > 1), 2);
}

/// A Service of the cluster outlives `--prune` with a file that does not have it, and whoever asks
/// the store to delete it.
#[test]
fn services_of_kubernetes_are_not_written() {
    let Some(server) = started("services-apply", &[]) else {
        return;
    };
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80}]}});
    let services = "/api/v1/namespaces/default/services";
    server.request("POST", services, &service).expect(201);
    let before = server.object(&["service", "web"]);
    let empty = r#"{"kind": "List", "apiVersion": "v1", "items": []}"#;
    let changed = service.to_string().replace("10.96.0.10", "10.96.0.11");
    for (text, arguments) in [
        (empty, &["services", "apply", "-", "--prune"][..]),
        (&changed, &["services", "apply", "-"]),
        (&changed, &["services", "apply", "-", "--wait"]),
    ] {
        let said = ends(&server, 5, text, arguments);
        assert!(said.contains("use `kubectl apply`"), "{said}");
        assert_eq!(server.object(&["service", "web"]), before);
    }
    // Nor do the commands of resources.
    let said = ends(&server, 5, &changed, &["apply", "-f", "-"]);
    assert!(said.contains("else with kubectl"), "{said}");

    runtime().block_on(async {
        let store = store(&server, None);
        let path = Key::Document {
            kind: DocumentKind::Service,
            namespace: "default".into(),
            name: "web".into(),
        }
        .to_path();
        let found = store.read(&[KeyRange::Key(path.clone())]).await;
        let found = found.expect("it reads").ranges.concat();
        let delete = Txn::new().delete(path, found[0].mod_revision);
        let said = store.commit(&delete).await;
        assert!(
            matches!(&said, Err(StoreError::Refused(why)) if why.contains("Kubernetes' own")),
            "{said:?}"
        );
    });
    assert_eq!(server.object(&["service", "web"]), before);
}
