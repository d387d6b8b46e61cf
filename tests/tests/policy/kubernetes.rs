//! Policies in Kubernetes' API: Kubernetes' own by labels of pods and namespaces, and Calico's
//! where the cluster has their kinds.

use std::net::IpAddr;

use caracal_lab::{Lab, PodState};
use caracal_tests::{
    SECOND, await_settled, await_status, exit_code, get_http, has_no_problem, has_problem, kubectl,
    on_kubernetes_datastore, possible, put_calico_resource, run_on, up_text,
};
use serde_json::{Value, json};

use super::hosts::{CLOSED, OPEN, await_ports};
use super::{TOPOLOGY, await_pairs};

const CALICO: &str = "crd.projectcalico.org";

fn create(lab: &Lab, object: &Value) {
    kubectl(lab, &["apply", "-f", "-"], object.to_string().as_bytes());
}

/// A policy of Kubernetes' for packets to all pods.
fn policy(lab: &Lab, name: &str, from: &Value) {
    create(
        lab,
        &json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": from}}),
    );
}

fn unset(lab: &Lab, name: &str) {
    let words = ["delete", "networkpolicies.networking.k8s.io", name];
    kubectl(lab, &words, b"");
}

fn label(lab: &Lab, kind: &str, name: &str, label: &str) {
    kubectl(lab, &["label", "--overwrite", kind, name, label], b"");
}

fn name_of(pod: &PodState) -> String {
    format!("{}-{}", pod.node, pod.name)
}

/// Kinds of Calico's that `deploy/crds` does not have.
fn make_kinds(lab: &Lab) {
    for (kind, plural) in [
        ("GlobalNetworkPolicy", "globalnetworkpolicies"),
        ("GlobalNetworkSet", "globalnetworksets"),
        ("Tier", "tiers"),
        ("HostEndpoint", "hostendpoints"),
    ] {
        let schema = json!({"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}});
        create(
            lab,
            &json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.{CALICO}")},
                "spec": {"group": CALICO, "scope": "Cluster",
                    "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(),
                        "listKind": format!("{kind}List")},
                    "versions": [{"name": "v1", "served": true, "storage": true,
                        "schema": schema}]}}),
        );
    }
}

fn calico(lab: &Lab, kind: &str, plural: &str, (name, labels): (&str, Value), spec: &Value) {
    put_calico_resource(
        lab,
        plural,
        &json!({"apiVersion": format!("{CALICO}/v1"), "kind": kind,
            "metadata": {"name": name, "labels": labels}, "spec": spec}),
    );
}

/// What a node says of a connection.
fn explained(lab: &Lab, from: IpAddr, to: IpAddr) -> String {
    let (from, to) = (from.to_string(), format!("{to}:80/tcp"));
    let (code, said) = exit_code(lab, "n1", &["policy", "explain", &from, &to]);
    assert_eq!(code, 0, "{said}");
    said
}

#[test]
fn policies_in_kubernetes_close_and_open_and_stay() {
    let scenario = "policies_in_kubernetes_close_and_open_and_stay";
    if !possible(scenario, &["nft", "kubectl", "openssl"]) {
        return;
    }
    let mut lab = up_text(&on_kubernetes_datastore(TOPOLOGY), scenario, "policy-k8");
    await_settled(&lab);
    make_kinds(&lab);
    await_pairs(&lab, "all to be open", |_, _| true);

    policy(&lab, "closed", &json!([]));
    await_pairs(&lab, "all to be closed", |_, _| false);
    for node in ["n1", "n2", "n3"] {
        await_status(&lab, node, 60 * SECOND, "no complaint", |status| {
            has_no_problem(status, "policy.not_enforced")
        });
    }
    by_labels_of_a_namespace(&lab);
    by_the_label_of_a_pod(&lab);

    // While nobody runs, and after that; and a node that comes without a table.
    let client = lab.state().pods[0].clone();
    let one = |from: &PodState, _: &PodState| from.netns == client.netns;
    lab.kill9_node("n1").unwrap();
    await_pairs(&lab, "a node without its process", one);
    for node in ["n2", "n3"] {
        lab.kill9_node(node).unwrap();
    }
    let _ = run_on(&lab, "n3", "nft delete table inet caracal-policy");
    for node in ["n1", "n2", "n3"] {
        lab.restart_node(node).unwrap();
    }
    await_settled(&lab);
    await_pairs(&lab, "nodes that were restarted", one);

    are_counted(&lab);
    of_calico(&lab, &client);
    unset(&lab, "client");
    unset(&lab, "closed");
    await_pairs(&lab, "all to be open again", |_, _| true);
    of_a_host(&lab);
}

/// A host endpoint closes its node to others, and what its pods say to each other passes.
fn of_a_host(lab: &Lab) {
    let spec = json!({"node": "n1", "interfaceName": "eth0"});
    let named = ("n1-eth0", json!({"role": "edge"}));
    calico(lab, "HostEndpoint", "hostendpoints", named, &spec);
    await_ports(lab, "a node to be closed", &CLOSED);
    await_pairs(lab, "its pods to be open", |_, _| true);
    kubectl(lab, &["delete", "hostendpoints", "n1-eth0"], b"");
    await_ports(lab, "the node to be open again", &OPEN);
}

/// What `/metrics` says of the two policies that judge both pods of a node: the one that allows, by
/// a set in each family. One that allows nothing has no chain.
fn are_counted(lab: &Lab) {
    let (status, text) = get_http(lab, "n1", 9099, "/metrics").unwrap();
    assert_eq!(status, 200);
    for line in [
        "caracal_policy_endpoints 2",
        "caracal_policy_policies 1",
        "caracal_policy_sets 2",
        "caracal_policy_elements 1",
        "caracal_policy_refused 0",
        "caracal_policy_failures_total 0",
    ] {
        let is_there = text.lines().any(|said| said == line);
        assert!(is_there, "{line} is not in\n{text}");
    }
}

fn by_labels_of_a_namespace(lab: &Lab) {
    let team = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
    policy(lab, "team", &json!([{"from": [team]}]));
    label(lab, "namespace", "default", "team=a");
    await_pairs(lab, "the namespace to be let in", |_, _| true);
    label(lab, "namespace", "default", "team=b");
    await_pairs(lab, "another namespace to be kept out", |_, _| false);
    unset(lab, "team");
}

fn by_the_label_of_a_pod(lab: &Lab) {
    let role = json!({"podSelector": {"matchLabels": {"role": "client"}}});
    policy(lab, "client", &json!([{"from": [role]}]));
    let pods = lab.state().pods.clone();
    for chosen in [&pods[2], &pods[0]] {
        label(lab, "pod", &name_of(chosen), "role=client");
        let one = |from: &PodState, _: &PodState| from.netns == chosen.netns;
        await_pairs(lab, "the client to be let in", one);
        let [from, to] = [chosen, &pods[1]].map(|pod| pod.address.unwrap());
        let said = explained(lab, from, to);
        let wanted = "allowed by rule 1 of NetworkPolicy (Kubernetes) default/client";
        assert!(said.contains(wanted), "{said}");
        let said = explained(lab, to, from);
        assert!(said.contains("dropped by tier default"), "{said}");
        if chosen.netns != pods[0].netns {
            label(lab, "pod", &name_of(chosen), "role=none");
            await_pairs(lab, "nobody to be let in", |_, _| false);
        }
    }
    let (code, said) = exit_code(lab, "n1", &["policy", "show"]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains("NetworkPolicy (Kubernetes) default/closed"),
        "{said}"
    );
    assert!(said.contains("yes") && !said.contains(" no "), "{said}");
}

/// A tier before the default one, whose policy denies by a set of addresses; and what nobody
/// understands.
fn of_calico(lab: &Lab, client: &PodState) {
    let tier = json!({"order": 10, "defaultAction": "Pass"});
    calico(lab, "Tier", "tiers", ("first", json!({})), &tier);
    let net = format!("{}/32", client.address.unwrap());
    let set = ("clients", json!({"set": "clients"}));
    calico(
        lab,
        "GlobalNetworkSet",
        "globalnetworksets",
        set,
        &json!({"nets": [net]}),
    );
    let deny = json!({"action": "Deny", "source": {"selector": "set == 'clients'"}});
    let spec = json!({"tier": "first", "order": 1, "types": ["Ingress"], "ingress": [deny]});
    let named = ("first.clients", json!({}));
    calico(
        lab,
        "GlobalNetworkPolicy",
        "globalnetworkpolicies",
        named,
        &spec,
    );
    await_pairs(lab, "the tier to keep the client out", |_, _| false);
    let spec = json!({"tier": "first", "order": 1, "types": ["Ingress"], "ingress": []});
    let named = ("first.clients", json!({}));
    calico(
        lab,
        "GlobalNetworkPolicy",
        "globalnetworkpolicies",
        named,
        &spec,
    );
    let one = |from: &PodState, _: &PodState| from.netns == client.netns;
    await_pairs(lab, "the tier to pass", one);
    let spec = json!({"tier": "first", "selector": "a ==", "types": ["Ingress"]});
    let named = ("first.wrong", json!({}));
    calico(
        lab,
        "GlobalNetworkPolicy",
        "globalnetworkpolicies",
        named,
        &spec,
    );
    await_status(lab, "n1", 60 * SECOND, "what is not understood", |status| {
        has_problem(status, "policy.not_understood", "spec.selector")
    });
    await_pairs(lab, "what is not understood to close", |_, _| false);
    for name in ["first.wrong", "first.clients"] {
        kubectl(lab, &["delete", "globalnetworkpolicies", name], b"");
    }
    await_pairs(lab, "the client to be let in again", one);
}
