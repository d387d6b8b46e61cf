//! Kubernetes' own NetworkPolicies, which nobody enforces: every node names them, also after a
//! restart.

use caracal_lab::Lab;
use caracal_model::NodeStatus;
use caracal_tests::{
    SECOND, await_settled, await_status, caracals, has_no_problem, has_problem, kubectl,
};
use serde_json::json;

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
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_settled(lab);
    await_named(lab, true);
    let delete = ["delete", "networkpolicies.networking.k8s.io", "closed"];
    kubectl(lab, &delete, b"");
    await_named(lab, false);
}
