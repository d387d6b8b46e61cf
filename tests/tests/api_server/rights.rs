//! Accounts, limits and faults.

use serde_json::{Value, json};

use super::Server;

const NODES: &str = "/api/v1/nodes";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

#[test]
fn an_account_may_do_what_its_role_says() {
    let tokens = std::env::temp_dir().join(format!("api-tokens-{}", std::process::id()));
    std::fs::write(&tokens, "root-token,admin,1,\"system:masters\"\n").expect("a file");
    let file = tokens.display().to_string();
    let Some(mut server) = Server::start("rights", &["--token-auth-file", &file]) else {
        return;
    };
    let ask = |server: &Server, token: &str, method: &str, path: &str, body: &Value| {
        let bearer = format!("Bearer {token}");
        let headers = [
            ("Authorization", &*bearer),
            ("Content-Type", "application/json"),
        ];
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        server
            .send(method, path, &headers, &body)
            .expect("an answer")
    };
    let none = Value::Null;
    server
        .get("/readyz")
        .code
        .eq(&200)
        .then_some(())
        .expect("open to all");
    let text = server.get(NODES).refused(403, "Forbidden");
    assert!(
        text.contains("User \"system:anonymous\" cannot list resource \"nodes\""),
        "{text}"
    );
    ask(&server, "nonsense", "GET", NODES, &none).refused(401, "Unauthorized");
    ask(&server, "root-token", "GET", NODES, &none).expect(200);

    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "c"}});
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    ask(&server, "root-token", "POST", accounts, &account).expect(201);
    let token = |seconds: i64| {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds}});
        ask(
            &server,
            "root-token",
            "POST",
            &format!("{accounts}/c/token"),
            &request,
        )
    };
    token(60).refused(422, "Invalid");
    let answer = token(600).expect(201);
    let token = answer["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned();
    assert!(answer["status"]["expirationTimestamp"].is_string());
    let text = ask(&server, &token, "GET", NODES, &none).refused(403, "Forbidden");
    assert_eq!(
        text,
        "nodes is forbidden: User \"system:serviceaccount:kube-system:c\" cannot list resource \
         \"nodes\" in API group \"\" at the cluster scope"
    );
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "c"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]});
    ask(
        &server,
        "root-token",
        "POST",
        &format!("{RBAC}/clusterroles"),
        &role,
    )
    .expect(201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding", "metadata": {"name": "c"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "c"},
        "subjects": [{"kind": "ServiceAccount", "name": "c", "namespace": "kube-system"}]});
    let bindings = format!("{RBAC}/clusterrolebindings");
    ask(&server, "root-token", "POST", &bindings, &binding).expect(201);
    ask(&server, &token, "GET", NODES, &none).expect(200);
    ask(&server, &token, "GET", &format!("{NODES}?watch=1"), &none).refused(403, "Forbidden");
    // Tokens outlive the server, but not their account.
    server.restart();
    ask(&server, &token, "GET", NODES, &none).expect(200);
    ask(
        &server,
        "root-token",
        "DELETE",
        &format!("{accounts}/c"),
        &none,
    )
    .expect(200);
    ask(&server, &token, "GET", NODES, &none).refused(401, "Unauthorized");
    let _ = std::fs::remove_file(tokens);
}

#[test]
fn faults_come_on_demand() {
    let Some(server) = Server::start("faults", &[]) else {
        return;
    };
    let set = |rule: Value| server.request("POST", "/test/faults", &rule).expect(200);
    set(json!({"path": NODES, "count": 1, "fault": "429"}));
    let reply = server.get(NODES);
    assert_eq!((reply.code, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.body, "Too many requests, please try again later.\n");
    server.get(NODES).expect(200);
    set(json!({"path": NODES, "count": 1, "fault": "initializing"}));
    let text = server.get(NODES).refused(429, "TooManyRequests");
    assert_eq!(text, "storage is (re)initializing");
    set(json!({"method": "GET", "path": NODES, "count": 1, "fault": "500"}));
    server.get(NODES).refused(500, "InternalError");
    set(json!({"path": NODES, "count": 1, "fault": "reset"}));
    assert!(server.send("GET", NODES, &[], "").is_none());
    // The answer is lost, but it was done.
    set(json!({"path": NODES, "method": "POST", "count": 1, "fault": "lost"}));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let headers = [("Content-Type", "application/json")];
    assert!(
        server
            .send("POST", NODES, &headers, &node.to_string())
            .is_none()
    );
    server.get(&format!("{NODES}/n")).expect(200);
    // Watches end as told.
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| server.get(&format!("{NODES}?watch=1&timeoutSeconds=20")));
        let expired = caracal_lab::wait_until(super::PATIENCE, "the watch to end", || {
            server
                .request("POST", "/test/watches/expire", &Value::Null)
                .expect(200);
            if watch.is_finished() {
                Ok(())
            } else {
                Err("it goes on".to_owned())
            }
        });
        expired.expect("it ends");
        let events = watch.join().expect("an answer").events();
        let last = events.last().expect("an event");
        assert_eq!(
            (&last["type"], &last["object"]["code"]),
            (&json!("ERROR"), &json!(410))
        );
    });
    server
        .request("POST", "/test/faults", &json!({"fault": "?"}))
        .refused(400, "BadRequest");
}
