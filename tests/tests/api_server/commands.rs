//! Every command that writes resources, on Kubernetes' API: what it makes there, what it refuses,
//! and labels that several people set at once.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};

use caracal_tests::binary;
use serde_json::{Value, json};

use super::Server;
use super::store::started;

const POOL: &str = "
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.244.0.0/16, vxlanMode: CrossSubnet}
";

fn spawn(server: &Server, arguments: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .env("DATASTORE_TYPE", "kubernetes")
        .env("K8S_API_ENDPOINT", format!("http://{}", server.address));
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    piped.stderr(Stdio::piped()).spawn().expect("it starts")
}

fn run(server: &Server, input: &str, arguments: &[&str]) -> Output {
    let mut child = spawn(server, arguments);
    let mut stdin = child.stdin.take().expect("a pipe");
    // One that refuses before it reads is fine: the broken pipe is ignored.
    let _unread = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

/// Runs a command that has to end with this code; all that it says.
#[track_caller]
pub(crate) fn ends(server: &Server, code: i32, input: &str, arguments: &[&str]) -> String {
    let output = run(server, input, arguments);
    let texts = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    let said = texts.concat();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

#[test]
fn resources_are_written_as_objects_and_refused_for_a_reason() {
    let Some(server) = started("commands", &[]) else {
        return;
    };
    let pool = || server.object(&["ippool", "pods"]);
    let from = |verb: &'static str| [verb, "-f", "-"];
    let said = ends(&server, 0, POOL, &["apply", "-f", "-", "--dry-run"]);
    assert!(said.contains("created (dry run: not written)"), "{said}");
    ends(&server, 3, "", &["get", "ippool", "pods"]);
    ends(&server, 3, POOL, &from("replace"));
    ends(&server, 0, POOL, &from("create"));
    ends(&server, 5, POOL, &from("create"));
    let made = pool();
    assert_eq!(made["spec"]["vxlanMode"], "CrossSubnet");

    // The same again is no write.
    let said = ends(&server, 0, POOL, &from("apply"));
    assert_eq!(said, "ippool/pods unchanged\n");
    let version = &made["metadata"]["resourceVersion"];
    assert_eq!(pool()["metadata"]["resourceVersion"], *version);
    let exported = ends(
        &server,
        0,
        "",
        &["get", "ippool", "pods", "-o", "yaml", "--export"],
    );
    let said = ends(&server, 0, &exported, &from("replace"));
    assert_eq!(said, "ippool/pods unchanged\n", "{exported}");

    let patch = |text: &str, code| ends(&server, code, "", &["patch", "ipp", "pods", "-p", text]);
    let said = patch("{spec: {ipipMode: Always, vxlanMode: Never}}", 0);
    assert!(
        said.contains("from VXLAN between subnets to IPIP"),
        "{said}"
    );
    assert_eq!(pool()["spec"]["ipipMode"], "Always");
    assert_eq!(pool()["metadata"]["uid"], made["metadata"]["uid"]);
    let stale = json!({"metadata": {"resourceVersion": version}, "spec": {"natOutgoing": true}});
    let said = patch(&stale.to_string(), 6);
    assert!(said.contains("somebody has changed it"), "{said}");
    let said = patch("{spec: {blockSize: 27}}", 5);
    assert!(said.contains("it is 26 and cannot be changed"), "{said}");
    let unknown = POOL.replace("vxlanMode", "vxlanMod");
    let said = ends(&server, 5, &unknown, &from("apply"));
    assert!(said.contains("did you mean vxlanMode?"), "{said}");

    ends(&server, 0, "", &["label", "ippool", "pods", "site=a"]);
    assert!(
        server
            .kubectl(&["get", "ippool", "pods", "-o", "json"])
            .contains("site")
    );
    let replaced = POOL.replace("CrossSubnet", "Always");
    ends(&server, 0, &replaced, &from("replace"));
    assert_eq!(pool()["spec"]["vxlanMode"], "Always");
    ends(&server, 0, POOL, &from("delete"));
    ends(&server, 3, "", &["delete", "ippool", "pods"]);
    ends(
        &server,
        0,
        "",
        &["delete", "ippool", "pods", "--ignore-not-found"],
    );
    assert!(!server.kubectl(&["get", "ippools"]).contains("pods"));
}

#[test]
fn labels_that_are_set_at_once_all_stay_on_a_node_of_kubernetes() {
    let Some(server) = started("labels", &[]) else {
        return;
    };
    let words: Vec<String> = (0..8).map(|n| format!("l{n}={n}")).collect();
    let label = |word: &String| spawn(&server, &["label", "node", "node-a", word]);
    let all: Vec<Child> = words.iter().map(label).collect();
    for child in all {
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
    let node = server.object(&["node", "node-a"]);
    let metadata = &node["metadata"];
    let own = metadata["annotations"]["projectcalico.org/labels"].as_str();
    let own: Value = serde_json::from_str(own.expect("labels of Calico's")).expect("JSON");
    assert_eq!(own.as_object().expect("labels").len(), 8, "{own}");
    let kubernetes = metadata["labels"].as_object().expect("labels");
    assert_eq!(kubernetes.len(), 1, "Kubernetes' own stay: {kubernetes:?}");
}
