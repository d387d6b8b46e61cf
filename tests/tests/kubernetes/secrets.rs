//! Passwords of sessions from Secrets: read by name, with rights on these alone.

use std::time::Instant;

use caracal_lab::Lab;
use caracal_model::NodeStatus;
use caracal_tests::{SECOND, await_settled, await_status, exit_code, kubectl, possible, up};
use serde_json::{Value, json};

const CONFIGURATION: &str = "apiVersion: projectcalico.org/v3\nkind: BGPConfiguration\nmetadata: {name: default}\n\
    spec: {nodeMeshPassword: {secretKeyRef: {name: bgp, key: mesh}}}\n";

#[test]
fn passwords_are_secrets_read_by_name() {
    let scenario = "passwords_are_secrets_read_by_name";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let mut lab = up("kubernetes", "secrets");
    await_settled(&lab);
    let file = lab.folder().kubernetes().join("configuration.yaml");
    std::fs::write(&file, CONFIGURATION).unwrap();
    let path = file.display().to_string();
    let (code, said) = exit_code(&lab, "node1", &["apply", "-f", &path]);
    assert_eq!(code, 0, "{said}");

    // Without the right, and then without the Secret, there is no session, and it is said why.
    await_problem(&lab, "cannot list resource \"secrets\"");
    allow(&lab);
    await_problem(&lab, "is not known to this node");
    secret(&lab, "create", "one");
    await_settled(&lab);

    // Another password: who starts has it alone, and the others change with their sessions up.
    let since = Instant::now();
    secret(&lab, "replace", "two");
    lab.kill9_node("node2").unwrap();
    lab.restart_node("node2").unwrap();
    await_settled(&lab);
    let elapsed = since.elapsed().as_secs();
    await_status(&lab, "node1", 60 * SECOND, "a session as old", |status| {
        let mut peers = status.peers.iter();
        let other = peers.find(|peer| peer.name == "Mesh_10_0_0_3");
        match other.map(|peer| peer.since_seconds) {
            Some(age) if age >= elapsed => Ok(()),
            age => Err(format!("{age:?}, {elapsed} s ago")),
        }
    });
    let log = std::fs::read_to_string(lab.folder().kubernetes().join("audit.log")).unwrap();
    let asked = log.lines().map(serde_json::from_str::<Value>);
    let asked = asked.map(Result::unwrap).filter(|line| {
        line["resource"] == "secrets" && line["user"].as_str().unwrap().ends_with(":caracal-node")
    });
    let asked: Vec<_> = asked.collect();
    assert!(!asked.is_empty());
    assert!(asked.iter().all(|line| line["name"] == "bgp"), "{asked:?}");

    // A Secret that was deleted is no password.
    kubectl(&lab, &["-n", "kube-system", "delete", "secret", "bgp"], b"");
    await_problem(&lab, "is not known to this node");
}

fn await_problem(lab: &Lab, part: &str) {
    let has = |status: &NodeStatus| {
        let mut problems = status.problems.iter();
        match problems.any(|p| p.reason.contains(part)) {
            true => Ok(()),
            false => Err(format!("{:?}", status.problems)),
        }
    };
    await_status(lab, "node1", 120 * SECOND, part, has);
}

fn secret(lab: &Lab, verb: &str, password: &str) {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bgp", "namespace": "kube-system"},
        "type": "Opaque", "data": {"mesh": base64(password)},
    });
    kubectl(lab, &[verb, "-f", "-"], object.to_string().as_bytes());
}

/// As Kubernetes has what is secret.
fn base64(text: &str) -> &'static str {
    match text {
        "one" => "b25l",
        _ => "dHdv",
    }
}

/// What docs/topologies.md tells people to make.
fn allow(lab: &Lab) {
    let metadata = json!({"name": "caracal-bgp-secrets", "namespace": "kube-system"});
    let rule = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["bgp"],
        "verbs": ["list", "watch"]});
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let role =
        json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]});
    let binding = json!({
        "apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "caracal-bgp-secrets"},
        "subjects": [{"kind": "ServiceAccount", "name": "caracal-node", "namespace": "kube-system"}],
    });
    for object in [role, binding] {
        kubectl(lab, &["create", "-f", "-"], object.to_string().as_bytes());
    }
}
