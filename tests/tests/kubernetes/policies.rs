//! Kubernetes' own policies, which nobody enforces: every node names them, also after a restart.

use caracal_lab::{Lab, error_chain, wait_until};
use caracal_model::NodeStatus;
use caracal_tests::{
    SECOND, await_settled, await_status, caracals, has_no_problem, has_problem, kubectl,
};
use serde_json::json;

use super::rights::{OF_CLUSTERS, definition};

const CODE: &str = "policy.not_enforced";
const POLICY: &str = "knp.default.closed";

/// Every node names the policy, or none has anything to say of policies.
fn await_named(lab: &Lab, named: bool) {
    for node in caracals(lab) {
        let what = format!("the policy to be named: {named}");
        let is_so = |status: &NodeStatus| match named {
            true => has_problem(status, CODE, POLICY),
            false => has_no_problem(status, CODE),
        };
        await_status(lab, &node, 60 * SECOND, &what, is_so);
    }
}

pub(super) fn are_named(lab: &mut Lab) {
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "default"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
    await_named(lab, false);
    kubectl(lab, &["create", "-f", "-"], policy.to_string().as_bytes());
    await_named(lab, true);
    let (group, version) = OF_CLUSTERS;
    let kind = definition(group, version, "AdminNetworkPolicy", "adminnetworkpolicies");
    kubectl(lab, &["create", "-f", "-"], kind.to_string().as_bytes());
    let of_the_cluster = json!({"apiVersion": format!("{group}/{version}"),
        "kind": "AdminNetworkPolicy", "metadata": {"name": "tenants"}, "spec": {"priority": 10}});
    wait_until(60 * SECOND, "the kind to be served", || {
        let made = lab.kubectl(
            &["create", "-f", "-"],
            of_the_cluster.to_string().as_bytes(),
        );
        made.map(drop).map_err(|e| error_chain(&e))
    })
    .unwrap_or_else(|e| panic!("{e}"));
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_settled(lab);
    await_named(lab, true);
    // Who runs looks for a kind that was not there each few minutes; who starts, at once.
    await_status(
        lab,
        "node1",
        60 * SECOND,
        "the cluster's policy",
        |status| has_problem(status, CODE, "kanp.adminnetworkpolicy.tenants"),
    );
    kubectl(lab, &["delete", "adminnetworkpolicies", "tenants"], b"");
    let delete = ["delete", "networkpolicies.networking.k8s.io", "closed"];
    kubectl(lab, &delete, b"");
    await_named(lab, false);
}
