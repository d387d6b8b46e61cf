//! Each right of the two accounts of `deploy/kubernetes`, taken away in turn. The node's log, or
//! the answer of the command or plugin that needs the right, names it, says what it is needed for,
//! and which role gives it; with it again everything goes on. A right that nothing here can be
//! seen to need is one too many. `CARACAL_RIGHT="list leases"` tries one.

use std::collections::BTreeSet;

use caracal_lab::{
    Lab, PodState, delete_namespaces, error_chain, program_output, scaled_time, wait_until,
};
use caracal_tests::{
    SECOND, await_status, exit_code, kubectl, kubernetes_object, more_pods, possible,
    set_pool_modes, settled, unbind_pod, up_text,
};
use serde_json::{Value, json};

use super::bind;

/// One node without a pod: what it takes from IPAM is for its tunnel alone.
const TOPOLOGY: &str = "
name: rights
description: one node, whose account has one right less
datastore: kubernetes
pool: {cidr: 10.244.0.0/24, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - name: node1
    segment: lan
    address: 10.0.0.1
    pods: 0
    env: {CARACAL_IPAM_GC_GRACE_SECONDS: \"4\", CARACAL_POLICY: \"on\"}
";

const NODE: &str = "node1";

/// The same object under its name in the newer API group, which the test API server does not have.
const OF_THE_NEWER_GROUP: &str = "ipamconfigurations";

/// Kinds that are followed as AdminNetworkPolicies are, and with them; and what is read where no
/// variable has the pool's range, as in `daemonset.rs`.
const ELSEWHERE: [&str; 3] = [
    "baselineadminnetworkpolicies",
    "clusternetworkpolicies",
    "configmaps",
];

/// A right of a role.
struct Right<'a> {
    role: &'a Value,
    resource: String,
    verb: String,
}

impl Right<'_> {
    /// Kind and name of its role, as a refusal names it.
    fn role(&self) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &self.role["metadata"];
        let namespace = metadata["namespace"].as_str();
        let namespace = namespace.map(|n| format!("{n}/")).unwrap_or_default();
        format!(
            "{} {namespace}{}",
            text(&self.role["kind"]),
            text(&metadata["name"])
        )
    }

    /// The error when a text does not say what is missing, for what, and who gives it.
    fn is_named_in(&self, text: &str) -> Result<(), String> {
        // Quoted once more in a line of the log.
        let text = text.replace('\\', "");
        let missing = format!("cannot {} resource \"{}\"", self.verb, self.resource);
        let sentence = text.lines().find(|line| line.contains(&missing));
        let sentence = sentence
            .ok_or_else(|| format!("nothing says {missing:?}; {:?}", text.lines().last()))?;
        let given = format!("given by {} (deploy/kubernetes)", self.role());
        match sentence.contains("needed to ") && sentence.contains(&given) {
            true => Ok(()),
            false => Err(format!("not {given:?}: {sentence}")),
        }
    }
}

/// The rights of a role.
fn rights(role: &Value) -> Vec<Right<'_>> {
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut found = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                let resource = resource.clone();
                found.push(Right {
                    role,
                    resource,
                    verb,
                });
            }
        }
    }
    found.retain(|right| {
        right.resource != OF_THE_NEWER_GROUP && !ELSEWHERE.contains(&right.resource.as_str())
    });
    // A refusal does not name the group: Kubernetes' policies and Calico's are one right here.
    let mut seen = BTreeSet::new();
    found.retain(|right| seen.insert((right.resource.clone(), right.verb.clone())));
    assert!(!found.is_empty());
    if let Ok(one) = std::env::var("CARACAL_RIGHT") {
        found.retain(|right| one == format!("{} {}", right.verb, right.resource));
    }
    found
}

/// A role with everything but one verb on one resource.
pub(super) fn without(role: &Value, resource: &str, verb: &str) -> Value {
    let mut role = role.clone();
    let mut rules = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for one in rule["resources"].as_array().unwrap() {
            let mut rule = rule.clone();
            rule["resources"] = json!([one]);
            if one == resource {
                let verbs = rule["verbs"].as_array_mut().unwrap();
                verbs.retain(|v| v != verb);
            }
            rules.push(rule);
        }
    }
    role["rules"] = rules.into();
    role
}

pub(super) fn put_role(lab: &Lab, role: &Value) {
    let mut role = role.clone();
    let metadata = role["metadata"].as_object_mut().unwrap();
    metadata.shift_remove("resourceVersion");
    kubectl(lab, &["replace", "-f", "-"], role.to_string().as_bytes());
}

/// A definition of a kind that `deploy/crds` does not have, and that a cluster may have.
pub(super) fn definition(group: &str, version: &str, kind: &str, plural: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object",
        "x-kubernetes-preserve-unknown-fields": true}});
    let scope = match kind {
        "NetworkPolicy" | "NetworkSet" => "Namespaced",
        _ => "Cluster",
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(),
                "listKind": format!("{kind}List")},
            "versions": [{"name": version, "served": true, "storage": true, "schema": schema}]},
    })
}

/// Calico's kinds of policy, and one of Kubernetes'.
pub(super) fn make_kinds_of_policy(lab: &Lab) {
    let calico = ("crd.projectcalico.org", "v1");
    for ((group, version), kind, plural) in [
        (calico, "HostEndpoint", "hostendpoints"),
        (calico, "GlobalNetworkPolicy", "globalnetworkpolicies"),
        (calico, "GlobalNetworkSet", "globalnetworksets"),
        (calico, "NetworkPolicy", "networkpolicies"),
        (calico, "NetworkSet", "networksets"),
        (calico, "Tier", "tiers"),
        (OF_CLUSTERS, "AdminNetworkPolicy", "adminnetworkpolicies"),
    ] {
        let definition = definition(group, version, kind, plural).to_string();
        kubectl(lab, &["create", "-f", "-"], definition.as_bytes());
    }
}

/// Group and version of AdminNetworkPolicies.
pub(super) const OF_CLUSTERS: (&str, &str) = ("policy.networking.k8s.io", "v1alpha1");

/// As servers before 1.32, and those without the feature: where a list is a stream of a watch, no
/// right to list is needed.
fn list_in_pages(lab: &Lab) {
    let order = ["create", "--raw", "/test/faults", "-f", "-"];
    kubectl(lab, &order, br#"{"fault": "no-initial-events"}"#);
}

/// Otherwise nobody looks at Services.
fn announce_services(lab: &Lab) {
    let patch = r#"{"spec": {"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}}"#;
    let arguments = [
        "patch",
        "bgpconfigurations",
        "default",
        "--type=merge",
        "-p",
    ];
    kubectl(lab, &[&arguments[..], &[patch]].concat(), b"");
}

fn log(lab: &Lab) -> String {
    std::fs::read_to_string(lab.folder().log(NODE)).unwrap()
}

/// What the node's log says from here on.
fn follow_log(lab: &Lab) -> impl Fn() -> String + use<'_> {
    let before = log(lab).len();
    move || log(lab).get(before..).unwrap_or_default().to_owned()
}

/// Waits until the right is named; the error says what came instead. Some are needed once a minute:
/// while watches are open the node asks the server that often whether it is there.
fn await_named(right: &Right<'_>, said: impl Fn() -> String) -> Result<(), String> {
    let what = format!("{} {} to be named", right.verb, right.resource);
    let named = wait_until(100 * SECOND, &what, || right.is_named_in(&said()));
    named.map_err(|e| e.to_string())
}

/// All watches end, and what is followed has to be listed again.
fn expire_watches(lab: &Lab) {
    let expire = ["create", "--raw", "/test/watches/expire", "-f", "-"];
    // Its own connection may end with the watches.
    let order = || lab.kubectl(&expire, b"{}").map_err(|e| error_chain(&e));
    wait_until(60 * SECOND, "the watches to end", order).unwrap_or_else(|e| panic!("{e}"));
}

/// A command with the node's own account, as in its pod: what it said.
fn in_the_nodes_pod(lab: &Lab, arguments: &[&str]) -> String {
    let mut command = lab.caracal_command(NODE, arguments).unwrap();
    command.env("KUBECONFIG", lab.folder().kubeconfig(NODE));
    let netns = lab.netns(NODE).unwrap();
    let done = program_output(Some(&netns), &mut command, b"", scaled_time(60 * SECOND));
    let done = done.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    format!("{}{}", done.stdout, done.stderr)
}

fn delete(lab: &Lab, kind: &str, name: &str) {
    kubectl(lab, &["delete", kind, name, "--wait=false"], b"");
}

fn await_fresh(lab: &Lab) {
    await_status(lab, NODE, 60 * SECOND, "settled", settled);
}

/// What brings a node to use a right, by its verb and resource. The right is taken away in between.
fn provoke(lab: &mut Lab, right: &Right<'_>) -> Result<(), String> {
    match (right.verb.as_str(), right.resource.as_str()) {
        ("list", "ipamhandles") => by_command(lab, right, &["get", "ipamhandles"]),
        ("list", "leases") => by_command(lab, right, &["doctor"]),
        ("list" | "watch", _) => {
            take_away(lab, right);
            let said = follow_log(lab);
            expire_watches(lab);
            await_named(right, said)
        }
        ("get", "pods") | ("patch", "pods/status") => by_a_release(lab, right),
        ("get" | "create", "blockaffinities" | "ipamblocks" | "ipamhandles")
        | ("update", "blockaffinities") => by_a_tunnel(lab, right),
        ("update", "ipamblocks" | "ipamhandles") | ("delete", "ipamhandles") => {
            by_the_end_of_a_tunnel(lab, right)
        }
        ("delete", "ipamblocks") => {
            take_away(lab, right);
            let said = follow_log(lab);
            create(lab, &block("10.244.0.192/26", None));
            await_named(right, said)
        }
        ("delete", "blockaffinities" | "leases") => {
            take_away(lab, right);
            let said = follow_log(lab);
            make_dead_node(lab, &format!("gone-{}", right.resource));
            await_named(right, said)
        }
        _ => by_a_start(lab, right),
    }
}

fn take_away(lab: &Lab, right: &Right<'_>) {
    put_role(lab, &without(right.role, &right.resource, &right.verb));
}

fn by_command(lab: &Lab, right: &Right<'_>, arguments: &[&str]) -> Result<(), String> {
    take_away(lab, right);
    let said = in_the_nodes_pod(lab, arguments);
    let named = right.is_named_in(&said);
    named.map_err(|e| format!("{arguments:?}: {e}\n{said}"))
}

/// What a node does when it starts; what it makes where there is none is not there.
fn by_a_start(lab: &mut Lab, right: &Right<'_>) -> Result<(), String> {
    take_away(lab, right);
    match (right.verb.as_str(), right.resource.as_str()) {
        ("patch", "nodes/status") => {
            let annotation = "projectcalico.org/IPv4Address-";
            kubectl(lab, &["annotate", "node", NODE, annotation], b"");
        }
        ("create", "leases") => {
            let lease = [
                "-n",
                "kube-system",
                "delete",
                "lease",
                "caracal-lease.node1",
            ];
            kubectl(lab, &lease, b"");
        }
        (_, "ippools") => delete(lab, "ippools", "default-ipv4-ippool"),
        ("create", kind) if kind != "serviceaccounts/token" => delete(lab, kind, "default"),
        _ => {}
    }
    lab.kill9_node(NODE).unwrap();
    let before = log(lab).len();
    lab.start_node(NODE).unwrap();
    await_named(right, || {
        log(lab).get(before..).unwrap_or_default().to_owned()
    })
}

/// The first address of a tunnel, with all that has to be made for it.
fn by_a_tunnel(lab: &Lab, right: &Right<'_>) -> Result<(), String> {
    take_away(lab, right);
    let said = follow_log(lab);
    set_pool_modes(lab, "Never", "Always");
    await_named(right, said)
}

/// An address of a tunnel that is given back.
fn by_the_end_of_a_tunnel(lab: &Lab, right: &Right<'_>) -> Result<(), String> {
    set_pool_modes(lab, "Never", "Always");
    wait_until(60 * SECOND, "the address of the tunnel", || {
        let node = kubernetes_object(lab, "nodes", NODE);
        let address = &node["metadata"]["annotations"]["projectcalico.org/IPv4VXLANTunnelAddr"];
        address.as_str().map(drop).ok_or_else(|| node.to_string())
    })
    .unwrap_or_else(|e| panic!("{e}"));
    take_away(lab, right);
    let said = follow_log(lab);
    set_pool_modes(lab, "Never", "Never");
    await_named(right, said)
}

/// A pod whose DEL finds no API server is left to the node.
fn by_a_release(lab: &mut Lab, right: &Right<'_>) -> Result<(), String> {
    let pod = &more_pods(lab, [NODE])[0];
    bind(lab, pod);
    lab.cni("ADD", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    take_away(lab, right);
    lab.kill9_api_server().unwrap();
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.start_api_server().unwrap();
    let problems = || {
        let status = lab.node_status(NODE).unwrap();
        let reasons = status.problems.into_iter().map(|problem| problem.reason);
        reasons.collect::<Vec<_>>().join("\n")
    };
    let named = await_named(right, problems);
    unbind_pod(lab, pod);
    delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
    named
}

fn create(lab: &Lab, object: &Value) {
    kubectl(lab, &["create", "-f", "-"], object.to_string().as_bytes());
}

/// A block without an address.
fn block(cidr: &str, owner: Option<&str>) -> Value {
    let mut spec = json!({"cidr": cidr, "allocations": vec![Value::Null; 64], "attributes": [],
        "unallocated": (0..64).collect::<Vec<_>>(), "strictAffinity": false, "deleted": false});
    if let Some(owner) = owner {
        spec["affinity"] = json!(format!("host:{owner}"));
    }
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "spec": spec,
        "metadata": {"name": cidr.replace(['.', '/'], "-")}})
}

fn affinity(cidr: &str, node: &str) -> Value {
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity",
        "metadata": {"name": format!("{node}-{}", cidr.replace(['.', '/'], "-"))},
        "spec": {"state": "confirmed", "node": node, "type": "host", "cidr": cidr,
            "deleted": "false"}})
}

/// A node whose Node is gone and whose lease stands still: one of the others clears up after it.
fn make_dead_node(lab: &Lab, name: &str) {
    let lease = json!({"node": name, "renewed": "2026-01-05T10:11:12Z", "seconds": 5});
    create(
        lab,
        &json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": format!("caracal-lease.{name}"), "namespace": "kube-system",
                "labels": {"caracal.io/kind": "lease"},
                "annotations": {"caracal.io/key": format!("/caracal/lease/{name}"),
                    "caracal.io/value": lease.to_string()}},
            "spec": {"holderIdentity": name}}),
    );
    create(lab, &block("10.244.0.128/26", Some(name)));
    create(lab, &affinity("10.244.0.128/26", name));
}

/// Nothing of IPAM's is left, whatever a refusal has left half done.
fn clear(lab: &Lab) {
    let kinds = "ipamblocks,blockaffinities,ipamhandles";
    kubectl(lab, &["delete", kinds, "--all", "--wait=false"], b"");
}

#[test]
fn each_right_of_the_node_is_named() {
    let scenario = "each_right_of_the_node_is_named";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    // One right after the other takes minutes of waiting: each lab tries a part of them.
    const PARTS: [&str; 2] = ["rights-1", "rights-2"];
    let (mut tried, mut unnamed) = (0, Vec::new());
    std::thread::scope(|scope| {
        let tries = |(part, name)| {
            let lab = up_text(TOPOLOGY, scenario, name);
            each_right(lab, |n| n / 2 % PARTS.len() == part)
        };
        let parts = PARTS.into_iter().enumerate();
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || tries(part))).collect();
        for part in parts {
            let (more, others) = part.join().unwrap();
            tried += more;
            unnamed.extend(others);
        }
    });
    assert_all_named(&unnamed, tried);
}

/// Takes those rights away whose number is chosen; how many, and what was not named.
fn each_right(mut lab: Lab, is_chosen: impl Fn(usize) -> bool) -> (usize, Vec<String>) {
    list_in_pages(&lab);
    make_kinds_of_policy(&lab);
    announce_services(&lab);
    lab.kill9_node(NODE).unwrap();
    lab.restart_node(NODE).unwrap();
    await_fresh(&lab);
    let (mut tried, mut unnamed) = (0, Vec::new());
    for kind in ["clusterroles", "roles"] {
        let role = kubernetes_object(&lab, kind, "caracal-node");
        let chosen = rights(&role).into_iter().enumerate();
        for (_, right) in chosen.filter(|(n, _)| is_chosen(*n)) {
            println!("without {} {}", right.verb, right.resource);
            if let Err(error) = provoke(&mut lab, &right) {
                println!("{error}");
                unnamed.push(error);
            }
            put_role(&lab, &role);
            // A node that could not start has ended, or begins again by itself.
            if lab.node_status(NODE).is_err() {
                let _may_run = lab.kill9_node(NODE);
                lab.restart_node(NODE).unwrap();
            }
            await_fresh(&lab);
            set_pool_modes(&lab, "Never", "Never");
            clear(&lab);
            tried += 1;
        }
    }
    await_fresh(&lab);
    let (code, said) = exit_code(&lab, NODE, &["ipam", "check"]);
    assert_eq!(code, 0, "{said}");
    (tried, unnamed)
}

fn assert_all_named(unnamed: &[String], tried: usize) {
    assert!(
        unnamed.is_empty(),
        "{} of {tried}: {unnamed:#?}",
        unnamed.len()
    );
    println!("{tried} rights, each named without it");
}

/// What plugins say, call after call, as a runtime makes them for two pods.
fn calls(lab: &Lab, pods: &[PodState]) -> String {
    let mut said = String::new();
    let mut note = |outcome: Result<String, String>| {
        if let Err(error) = outcome {
            said.push_str(&error);
            said.push('\n');
        }
    };
    let call = |verb, pod| lab.cni(verb, pod).map_err(|e| error_chain(&e));
    for pod in pods {
        note(call("ADD", pod));
    }
    note(call("CHECK", &pods[0]));
    note(
        lab.cni_status(NODE)
            .map(|()| String::new())
            .map_err(|e| error_chain(&e)),
    );
    note(lab.cni_gc(NODE, &pods[..1]).map_err(|e| error_chain(&e)));
    for pod in pods {
        note(call("DEL", pod));
    }
    said
}

/// Blocks and affinities of a pool that somebody marked as deleted before he died: who needs one
/// deletes it first.
fn make_half_deleted(lab: &Lab) {
    for block_number in 0..4 {
        let cidr = format!("10.244.0.{}/26", block_number * 64);
        let (mut block, mut affinity) = (block(&cidr, Some(NODE)), affinity(&cidr, NODE));
        block["spec"]["deleted"] = json!(true);
        affinity["spec"]["deleted"] = json!("true");
        create(lab, &block);
        create(lab, &affinity);
    }
}

#[test]
fn each_right_of_the_plugin_is_named() {
    let scenario = "each_right_of_the_plugin_is_named";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let lab = up_text(TOPOLOGY, scenario, "rights-cni");
    await_fresh(&lab);
    let pods = more_pods(&lab, [NODE, NODE]);
    for pod in &pods {
        bind(&lab, pod);
    }
    let said = calls(&lab, &pods);
    assert_eq!(said, "", "with all rights");
    let role = kubernetes_object(&lab, "clusterroles", "caracal-cni-plugin");
    let (mut tried, mut unnamed) = (0, Vec::new());
    for right in rights(&role) {
        println!("without {} {}", right.verb, right.resource);
        clear(&lab);
        if right.verb == "delete" {
            make_half_deleted(&lab);
        }
        take_away(&lab, &right);
        let said = calls(&lab, &pods);
        if let Err(error) = right.is_named_in(&said) {
            println!("{error}\n{said}");
            unnamed.push(error);
        }
        put_role(&lab, &role);
        for pod in &pods {
            lab.cni("DEL", pod)
                .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        }
        tried += 1;
    }
    assert_all_named(&unnamed, tried);
    clear(&lab);
    assert_eq!(calls(&lab, &pods), "", "with all rights again");
    let netns: Vec<_> = pods.into_iter().map(|pod| pod.netns).collect();
    delete_namespaces(&netns).unwrap();
}
