//! Single objects: concurrency, preconditions, validation.

use serde_json::{Value, json};

use super::{Server, definitions, pod, pool};

const POOLS: &str = "/apis/crd.projectcalico.org/v1/ippools";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn started(scenario: &str) -> Option<Server> {
    let server = Server::start(scenario, &[])?;
    server.kubectl(&["apply", "-k", &definitions()]);
    Some(server)
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn revisions_guard_what_is_written() {
    let Some(server) = started("revisions") else {
        return;
    };
    let made = server
        .request("POST", POOLS, &parsed(&pool("p", "10.0.0.0/16")))
        .expect(201);
    let again = server.request("POST", POOLS, &parsed(&pool("p", "10.0.0.0/16")));
    let text = again.refused(409, "AlreadyExists");
    assert_eq!(text, "ippools.crd.projectcalico.org \"p\" already exists");
    let path = format!("{POOLS}/p");
    // The same content: the same revision.
    let same = server.request("PUT", &path, &made).expect(200);
    assert_eq!(same, made);
    let mut changed = made.clone();
    changed["spec"]["disabled"] = true.into();
    let new = server.request("PUT", &path, &changed).expect(200);
    assert_ne!(
        new["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
    let text = server
        .request("PUT", &path, &changed)
        .refused(409, "Conflict");
    assert!(
        text.contains("the object has been modified; please apply"),
        "{text}"
    );
    // Without a revision: refused for custom resources, an overwrite for a Node.
    let loose = server.request("PUT", &path, &parsed(&pool("p", "10.0.0.0/16")));
    let text = loose.refused(422, "Invalid");
    assert!(
        text.contains("metadata.resourceVersion: Invalid value: 0x0"),
        "{text}"
    );
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    server.request("POST", NODES, &node).expect(201);
    server
        .request("PUT", &format!("{NODES}/n"), &node)
        .expect(200);
    let absent = server.request(
        "PUT",
        &format!("{POOLS}/q"),
        &parsed(&pool("q", "10.0.0.0/16")),
    );
    absent.refused(404, "NotFound");
    let uid = json!({"preconditions": {"uid": "other"}});
    let text = server
        .request("DELETE", &path, &uid)
        .refused(409, "Conflict");
    assert!(
        text.contains("the UID in the precondition (other) does not match"),
        "{text}"
    );
    let old = json!({"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}});
    let text = server
        .request("DELETE", &path, &old)
        .refused(409, "Conflict");
    assert!(
        text.contains("the ResourceVersion in the precondition"),
        "{text}"
    );
    let right = json!({"preconditions": {"uid": made["metadata"]["uid"]}});
    assert_eq!(
        server.request("DELETE", &path, &right).expect(200)["status"],
        "Success"
    );
    server.get(&path).refused(404, "NotFound");
}

#[test]
fn fifty_writers_lose_nothing() {
    let Some(server) = Server::start("writers", &[]) else {
        return;
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"},
        "data": {"n": "0"}});
    server.request("POST", maps, &map).expect(201);
    let path = format!("{maps}/m");
    std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                loop {
                    let mut map = server.get(&path).expect(200);
                    let n = map["data"]["n"]
                        .as_str()
                        .expect("n")
                        .parse::<u32>()
                        .expect("a number");
                    map["data"]["n"] = (n + 1).to_string().into();
                    match server.request("PUT", &path, &map).code {
                        200 => return,
                        code => assert_eq!(code, 409),
                    }
                }
            });
        }
    });
    assert_eq!(server.get(&path).expect(200)["data"]["n"], "50");
}

#[test]
fn schemas_prune_and_refuse() {
    let Some(server) = started("schemas") else {
        return;
    };
    let peers = "/apis/crd.projectcalico.org/v1/bgppeers";
    let peer = json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "BGPPeer",
        "metadata": {"name": "p", "typo": 1}, "spec": {"peerIP": "10.0.0.1", "asNumber": 64512}});
    let reply = server.request("POST", peers, &peer);
    assert_eq!(
        reply.header("warning"),
        Some("299 - \"unknown field \\\"metadata.typo\\\"\"")
    );
    assert_eq!(reply.expect(201)["metadata"]["typo"], Value::Null);
    let strict = server.request("POST", &format!("{peers}?fieldValidation=Strict"), &peer);
    let text = strict.refused(400, "BadRequest");
    assert!(
        text.contains("strict decoding error: unknown field"),
        "{text}"
    );
    let mut pool = parsed(&pool("a", "10.0.0.0/16"));
    for (size, code) in [
        (json!(9.5), 422),
        (json!(u64::MAX), 422),
        (json!("26"), 422),
        (json!(26), 201),
    ] {
        pool["spec"]["blockSize"] = size;
        assert_eq!(server.request("POST", POOLS, &pool).code, code, "{pool}");
    }
    let mut named = pool.clone();
    named["metadata"]["name"] = "k8s_x:y".into();
    let status = server.request("POST", POOLS, &named).expect(422);
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.name");
    assert_eq!(status["details"]["kind"], "IPPool");
    // Sizes: annotations, and what etcd takes.
    named["metadata"] = json!({"name": "b", "annotations": {"x": "y".repeat(300_000)}});
    server
        .request("POST", POOLS, &named)
        .refused(422, "Invalid");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"},
        "data": {"x": "y".repeat(1_700_000)}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let text = server
        .request("POST", maps, &map)
        .refused(500, "InternalError");
    assert!(text.contains("request is too large"), "{text}");
    let strategic = server.patch(&format!("{POOLS}/a"), "strategic-merge-patch", &json!({}));
    strategic.refused(415, "UnsupportedMediaType");
}

#[test]
fn the_status_has_a_door_of_its_own() {
    let Some(server) = Server::start("status", &[]) else {
        return;
    };
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "spec": {"podCIDRs": ["10.0.0.0/24"]}});
    let mut node = server.request("POST", NODES, &node).expect(201);
    node["metadata"]["annotations"]["a"] = "1".into();
    node["spec"]["unschedulable"] = true.into();
    node["status"]["phase"] = "x".into();
    let written = server
        .request("PUT", &format!("{NODES}/n/status"), &node)
        .expect(200);
    assert_eq!(written["metadata"]["annotations"]["a"], "1");
    assert_eq!(written["status"]["phase"], "x");
    assert_eq!(written["spec"]["unschedulable"], Value::Null);
    let mut node = written;
    node["status"]["phase"] = "y".into();
    node["spec"]["unschedulable"] = true.into();
    let written = server
        .request("PUT", &format!("{NODES}/n"), &node)
        .expect(200);
    assert_eq!(written["status"]["phase"], "x");
    assert_eq!(written["spec"]["unschedulable"], true);
    let condition = json!({"type": "NetworkUnavailable", "status": "False"});
    let patch = json!({"status": {"conditions": [condition]}});
    let path = format!("{NODES}/n/status");
    let patched = server
        .patch(&path, "strategic-merge-patch", &patch)
        .expect(200);
    let again = server
        .patch(&path, "strategic-merge-patch", &patch)
        .expect(200);
    assert_eq!(patched, again, "nothing was written twice");

    let web = server
        .request("POST", PODS, &pod("web", Some("n")))
        .expect(201);
    let annotations = json!({"cni.projectcalico.org/podIP": "10.0.0.7/32"});
    let mut patch =
        json!({"metadata": {"uid": web["metadata"]["uid"], "annotations": annotations}});
    let path = format!("{PODS}/web/status");
    let patched = server
        .patch(&path, "strategic-merge-patch", &patch)
        .expect(200);
    assert_eq!(patched["metadata"]["annotations"], annotations);
    patch["metadata"]["annotations"]["cni.projectcalico.org/podIP"] = "".into();
    let patched = server
        .patch(&path, "strategic-merge-patch", &patch)
        .expect(200);
    assert_eq!(
        patched["metadata"]["annotations"]["cni.projectcalico.org/podIP"],
        ""
    );
    // A pod that was replaced: 422 with its cause, not 409.
    patch["metadata"]["uid"] = "6f1c2a34-5b6d-4e7f-8a9b-0c1d2e3f4a5b".into();
    let refused = server
        .patch(&path, "strategic-merge-patch", &patch)
        .expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata.uid");
    let stale = json!({"metadata": {"resourceVersion": "1", "annotations": {"b": "2"}}});
    server
        .patch(&path, "strategic-merge-patch", &stale)
        .refused(409, "Conflict");
}
