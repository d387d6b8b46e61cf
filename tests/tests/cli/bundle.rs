//! `caracal bundle`: what is in it, that no secret is, and that it is written while the node and
//! the datastore are away.

use std::path::Path;
use std::process::{Command, Output};

use caracal_lab::{Lab, spawn_in_netns};
use serde_json::{Value, json};

/// What no bundle may hold.
const SECRET: &str = "Kn1ght-hawk";

fn bundle(lab: &Lab, folder: &Path, environment: &[(&str, &str)]) -> Output {
    let arguments = ["bundle", "--all-nodes", "--log=node.log", "--out=b.tar.gz"];
    let mut command = lab.caracal_command("node1", &arguments).unwrap();
    command
        .current_dir(folder)
        .envs(environment.iter().copied())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = spawn_in_netns(&lab.netns("node1").unwrap(), &mut command).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// A file of the bundle; `None`: there is none of that name.
fn file(folder: &Path, name: &str) -> Option<String> {
    let path = format!("caracal-bundle/{name}");
    let mut tar = Command::new("tar");
    let output = tar.args(["-xzOf", "b.tar.gz", &path]).current_dir(folder);
    let output = output.output().unwrap();
    output
        .status
        .success()
        .then(|| String::from_utf8(output.stdout).unwrap())
}

fn names(folder: &Path) -> Vec<String> {
    let mut tar = Command::new("tar");
    let output = tar.args(["-tzf", "b.tar.gz"]).current_dir(folder).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).unwrap();
    let file = |line: &str| line.strip_prefix("caracal-bundle/").unwrap().to_owned();
    names.lines().map(file).collect()
}

fn assert_no_secret(folder: &Path) {
    for name in names(folder) {
        let text = file(folder, &name).unwrap();
        assert!(!text.contains(SECRET), "{name}: {text}");
    }
}

/// Secrets in the datastore, the environment, a folder and the log.
fn put_secrets(lab: &Lab, folder: &Path) {
    let applied = json!({"spec": {"password": SECRET}}).to_string();
    let filter = json!({"kind": "BGPFilter", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "secretive", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": applied,
            "example.org/token": SECRET,
            "example.org/note": format!("https://me:{SECRET}@example.org/")}},
        "spec": {}});
    let key = "/calico/resources/v3/projectcalico.org/bgpfilters/secretive";
    lab.etcdctl(&["put", key, &filter.to_string()], b"")
        .unwrap();
    std::fs::create_dir_all(folder.join("secrets/bgp")).unwrap();
    std::fs::write(folder.join("secrets/bgp/rr"), format!("{SECRET}-of-bgp\n")).unwrap();
    let log = format!(
        "a session with {SECRET}-of-bgp\npassword \"{SECRET}\"\n-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n"
    );
    std::fs::write(folder.join("node.log"), log).unwrap();
}

/// Bundles of a node that runs, of one that is down, and without a datastore.
pub(super) fn keeps_no_secret(lab: &mut Lab, folder: &Path) {
    put_secrets(lab, folder);
    let secrets = folder.join("secrets");
    let environment = [
        ("CARACAL_SECRETS_DIR", secrets.to_str().unwrap()),
        ("CARACAL_OTHER_TOKEN", SECRET),
        ("ETCD_KEY", SECRET),
        ("FELIX_NOTE", "password=Kn1ght-hawk"),
        ("SOMEBODYS_OWN", SECRET),
    ];
    bundle(lab, folder, &environment);
    assert_no_secret(folder);
    let found = names(folder);
    assert_eq!(found[0], "INDEX");
    let parse =
        |name: &str| -> Value { serde_json::from_str(&file(folder, name).unwrap()).unwrap() };
    assert_eq!(parse("status.json")["node"], "node1");
    assert_eq!(parse("audit.json")["node"], "node1");
    assert_eq!(parse("all-nodes.json").as_array().unwrap().len(), 2);
    let configuration = parse("configuration.json");
    let keys: Vec<&String> = configuration.as_object().unwrap().keys().collect();
    for key in ["/ippools/", "/nodes/node1", "/bgpfilters/secretive"] {
        assert!(keys.iter().any(|k| k.contains(key)), "{key}: {keys:?}");
    }
    for (name, part) in [
        ("routes.jsonl", "10.244.0."),
        ("kernel-routes.txt", "10.244.0."),
        ("rules.txt", "table inet caracal"),
        ("environment.txt", "CARACAL_OTHER_TOKEN=(removed)"),
        ("environment.txt", "ETCD_ENDPOINTS=http"),
        ("system.txt", "/proc/net/dev"),
        ("log.txt", "a session with (removed)"),
        ("INDEX", "Sessions up: 1 of 1"),
    ] {
        let text = file(folder, name).unwrap_or_else(|| panic!("no {name}: {found:?}"));
        assert!(text.contains(part), "{name}: {text}");
    }
    assert!(
        !file(folder, "environment.txt")
            .unwrap()
            .contains("SOMEBODYS")
    );

    lab.kill9_node("node1").unwrap();
    let mut away = environment.to_vec();
    away.push(("ETCD_ENDPOINTS", "http://127.0.0.1:1"));
    let output = bundle(lab, folder, &away);
    assert_no_secret(folder);
    let index = file(folder, "INDEX").unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    for missing in [
        "status.json",
        "audit.json",
        "routes.jsonl",
        "configuration.json",
    ] {
        assert!(index.contains(&format!("{missing}: MISSING")), "{index}");
        assert!(said.contains(&format!("without {missing}")), "{said}");
    }
    assert!(index.contains("does not answer"), "{index}");
    assert!(file(folder, "status.json").is_none());
    let routes = file(folder, "kernel-routes.txt").unwrap();
    assert!(routes.contains("10.244.0."), "{routes}");
}
