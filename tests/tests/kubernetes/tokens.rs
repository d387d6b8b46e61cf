//! The token of the CNI plugin: the node renews it in half of its lifetime, and pods get addresses
//! after the first one has ended.

use caracal_lab::{Lab, delete_namespaces, error_chain, wait_until};
use caracal_tests::{SECOND, await_settled, kubectl, more_pods, possible, unbind_pod, up_text};
use serde_json::Value;

use super::{attached, bind};

const TOPOLOGY: &str = "
name: tokens
description: one node, whose plugin gets tokens of half a minute
datastore: kubernetes
pool: {cidr: 10.244.0.0/24, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 0}
";

const NODE: &str = "node1";

#[test]
fn the_plugins_token_is_renewed_before_it_ends() {
    let scenario = "the_plugins_token_is_renewed_before_it_ends";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let mut lab = up_text(TOPOLOGY, scenario, "tokens");
    await_settled(&lab);
    // Nothing waits for it where there is no pod.
    let long = await_other_token(&lab, "");
    let limit = ["create", "--raw", "/test/tokens", "-f", "-"];
    kubectl(&lab, &limit, br#"{"seconds": 30}"#);
    // A day's token is renewed in half a day, and at a start.
    lab.kill9_node(NODE).unwrap();
    lab.restart_node(NODE).unwrap();
    let first = await_other_token(&lab, &long);
    let second = await_other_token(&lab, &first);
    assert_eq!(is_known(&lab, &first), Ok(()), "half of its time is left");
    wait_until(
        60 * SECOND,
        "the end of the first token",
        || match is_known(&lab, &first) {
            Ok(()) => Err("it is known".to_owned()),
            Err(said) if said.contains("Unauthorized") || said.contains("logged in") => Ok(()),
            Err(said) => panic!("{said}"),
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
    assert_ne!(first, second);
    let pod = &more_pods(&lab, [NODE])[0];
    bind(&lab, pod);
    attached(&lab, pod);
    let done = lab.cni("DEL", pod);
    done.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    unbind_pod(&lab, pod);
    delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
    let status = lab.node_status(NODE).unwrap();
    assert!(status.problems.is_empty(), "{:?}", status.problems);
}

/// The token in the plugin's kubeconfig; the error while there is none.
fn token(lab: &Lab) -> Result<String, String> {
    let file = lab.folder().kubeconfig(&format!("{NODE}-cni"));
    let text = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let config: Value = serde_json::from_slice(&text).unwrap();
    let token = config["users"][0]["user"]["token"].as_str();
    Ok(token.expect("a token").to_owned())
}

fn await_other_token(lab: &Lab, before: &str) -> String {
    wait_until(60 * SECOND, "another token", || match token(lab)? {
        same if same == before => Err("the same".to_owned()),
        other => Ok(other),
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

/// Does the API server know who has the token?
fn is_known(lab: &Lab, token: &str) -> Result<(), String> {
    let file = lab.folder().kubernetes().join("with-token");
    let admin = lab.folder().kubeconfig("admin");
    let mut config: Value = serde_json::from_slice(&std::fs::read(admin).unwrap()).unwrap();
    config["users"][0]["user"]["token"] = token.into();
    std::fs::write(&file, config.to_string()).unwrap();
    let file = file.display().to_string();
    let ask = ["--kubeconfig", &file, "get", "nodes", NODE];
    lab.kubectl(&ask, b"")
        .map(drop)
        .map_err(|e| error_chain(&e))
}
