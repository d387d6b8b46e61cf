//! Requests that a server refuses for a while, watches that it forgets or cuts.

use caracal_datastore::{KubernetesStore, Store as _, WatchOptions, spawn_watcher};
use caracal_lab::wait_until;
use caracal_model::{Key, KeyRange};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::store::{config, runtime, started};
use super::{PATIENCE, Server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

#[test]
fn too_many_requests_at_once_are_refused() {
    let Some(server) = Server::start("limit", &["--max-requests-inflight", "0"]) else {
        return;
    };
    let reply = server.get(MAPS);
    assert_eq!((reply.code, reply.header("retry-after")), (429, Some("1")));
    // Watches do not count.
    let reply = server.get(&format!("{MAPS}?watch=1&timeoutSeconds=1"));
    assert_eq!(reply.code, 200);
}

#[test]
fn custom_resources_are_not_there_at_once() {
    let arguments = [
        "--calico-definitions",
        "--initializing-milliseconds",
        "5000",
    ];
    let Some(server) = Server::start("initializing", &arguments) else {
        return;
    };
    let reply = server.get(POOLS);
    assert_eq!(reply.header("retry-after"), Some("1"));
    let text = reply.refused(429, "TooManyRequests");
    assert_eq!(text, "storage is (re)initializing");
    // The server says that it is ready, and the core is.
    assert_eq!(server.get("/readyz").code, 200);
    server.get(MAPS).expect(200);
    let there = wait_until(PATIENCE, "pools to be there", || {
        match server.get(POOLS).code {
            200 => Ok(()),
            code => Err(code.to_string()),
        }
    });
    there.expect("they come");
}

#[test]
fn what_is_too_old_is_gone() {
    let Some(server) = Server::start("history", &["--history", "3"]) else {
        return;
    };
    let first = server.request("POST", MAPS, &map("first")).expect(201);
    let old = first["metadata"]["resourceVersion"]
        .as_str()
        .expect("a revision");
    let list = format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    server.get(&list).expect(200);
    for name in ["a", "b", "c", "d"] {
        server.request("POST", MAPS, &map(name)).expect(201);
    }
    server.get(&list).refused(410, "Expired");
    let events = server
        .get(&format!("{MAPS}?watch=1&resourceVersion={old}"))
        .events();
    assert_eq!(events[0]["object"]["code"], 410, "{events:?}");
    // Not older than that is no matter.
    let list = format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=NotOlderThan");
    let all = server.get(&list).expect(200);
    assert_eq!(all["items"].as_array().map(Vec::len), Some(5));
}

#[test]
fn a_watch_is_cut_in_the_middle() {
    let Some(server) = Server::start("cut", &[]) else {
        return;
    };
    server.request("POST", MAPS, &map("a")).expect(201);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| server.get(&format!("{MAPS}?watch=1&timeoutSeconds=25")));
        let ended = wait_until(PATIENCE, "the watch to end", || {
            server
                .request("POST", "/test/watches/cut", &Value::Null)
                .expect(200);
            if watch.is_finished() {
                Ok(())
            } else {
                Err("it goes on".to_owned())
            }
        });
        ended.expect("it ends");
        let events = watch.join().expect("an answer").events();
        // No last event tells why.
        assert!(events.iter().all(|e| e["type"] == "ADDED"), "{events:?}");
    });
}

#[test]
fn finalizers_keep_an_object() {
    let Some(server) = Server::start("finalizers", &[]) else {
        return;
    };
    let mut kept = map("kept");
    kept["metadata"]["finalizers"] = json!(["example.org/keep"]);
    server.request("POST", MAPS, &kept).expect(201);
    let path = format!("{MAPS}/kept");
    let leaving = server.request("DELETE", &path, &Value::Null).expect(200);
    assert!(
        leaving["metadata"]["deletionTimestamp"].is_string(),
        "{leaving}"
    );
    let mut there = server.get(&path).expect(200);
    there["metadata"]["finalizers"] = json!([]);
    server.request("PUT", &path, &there).expect(200);
    server.get(&path).refused(404, "NotFound");
}

#[test]
fn what_is_followed_does_not_wait_behind_other_requests() {
    let Some(server) = started("budget", &[]) else {
        return;
    };
    runtime().block_on(async {
        let mut config = config(&server, Some("node-a"));
        config.requests_per_second = 1;
        let store = KubernetesStore::new(config);
        let mut others = JoinSet::new();
        for _ in 0..200 {
            let store = store.clone();
            others.spawn(async move {
                let range = [KeyRange::Key(Key::IpamConfig.to_path())];
                store.read(&range).await.expect("an answer");
            });
        }
        // All the others have asked by then.
        for _ in 0..3 {
            others.join_next().await.expect("one").expect("no panic");
        }
        let mut views = spawn_watcher(store, WatchOptions::default());
        let synced = views.wait_for(|view| view.is_current() && view.snapshot.nodes.len() == 3);
        let synced = tokio::time::timeout(PATIENCE, synced).await;
        drop(synced.expect("in time").expect("it runs"));
        let pool = serde_json::from_str(&super::pool("q", "10.9.0.0/16")).expect("JSON");
        server.request("POST", POOLS, &pool).expect(201);
        let followed = views.wait_for(|view| view.snapshot.pools.len() == 2);
        let followed = tokio::time::timeout(PATIENCE, followed).await;
        drop(followed.expect("in time").expect("it runs"));
        while others.try_join_next().is_some() {}
        assert!(others.len() > 100, "{} wait", others.len());
    });
}
