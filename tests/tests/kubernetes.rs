//! A cluster whose datastore is Kubernetes' API, on the test API server: nodes register and route,
//! pods get addresses by CNI, the objects have Calico's shape, and neither a server that is away
//! nor a node that restarts meanwhile loses a packet or a route.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "kubernetes/addresses.rs"]
mod addresses;
#[path = "kubernetes/attachments.rs"]
mod attachments;
#[path = "kubernetes/bumped.rs"]
mod bumped;
#[path = "kubernetes/daemonset.rs"]
mod daemonset;
#[path = "kubernetes/deleted_nodes.rs"]
mod deleted_nodes;
#[path = "kubernetes/emptied.rs"]
mod emptied;
#[path = "kubernetes/labels.rs"]
mod labels;
#[path = "kubernetes/overlays.rs"]
mod overlays;
#[path = "kubernetes/pods.rs"]
mod pods;
#[path = "kubernetes/policies.rs"]
mod policies;
#[path = "kubernetes/ranges.rs"]
mod ranges;
#[path = "kubernetes/rights.rs"]
mod rights;
#[path = "kubernetes/secrets.rs"]
mod secrets;
#[path = "kubernetes/tokens.rs"]
mod tokens;

use std::net::IpAddr;

use caracal_lab::{Datastore, Lab, PodState, error_chain, parse_cni_result, wait_until};
use caracal_model::NodeStatus;
use caracal_tests::{
    LogLines, Probes, RouteMonitor, SECOND, assert_full_matrix, await_settled, await_status,
    bind_pods, caracals, exit_code, has_python_packages, kubectl, kubernetes_object,
    kubernetes_objects, more_pods, possible, routes_by_kind, run_on, schema_faults, settled,
    unbind_pod, up,
};
use serde_json::Value;

const PAIRS: [(&str, &str); 2] = [("node1/p1", "node2/p1"), ("node3/p1", "node1/p1")];

/// Sessions are up, what the node knows is old, and the kernel is not swept.
fn forwards_stale(status: &NodeStatus) -> Result<(), String> {
    let down = status.peers.iter().find(|p| p.state != "Established");
    if down.is_some() || status.peers.is_empty() || status.datastore.state != "stale" {
        return Err(format!("{:?} {:?}", status.datastore, status.peers));
    }
    Ok(())
}

fn stale(status: &NodeStatus) -> Result<(), String> {
    match status.datastore.state.as_str() {
        "stale" => Ok(()),
        _ => Err(format!("{:?}", status.datastore)),
    }
}

#[test]
fn a_cluster_lives_in_kubernetes_api() {
    let scenario = "a_cluster_lives_in_kubernetes_api";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let mut lab = up("kubernetes", "kube");
    await_settled(&lab);
    assert_full_matrix(&lab);
    asks_through_one_connection(&lab);
    has_calicos_shape(&lab);
    answers_on_the_command_line(&lab);
    prints_fields_as_kubectl_does(&lab);
    gives_a_pod_its_address_and_takes_it_back(&lab);
    keeps_containers_of_one_pod_apart(&lab);
    attachments::keep_the_first(&lab);
    attachments::that_fail_leave_nothing(&lab);
    collects_what_has_no_pod(&lab);
    labels::labels_make_reflectors(&lab);
    policies::are_named(&mut lab);
    loses_nothing_without_its_server(&mut lab);
    emptied::a_server_that_lost_its_data_is_no_order(&mut lab);
    deletes_what_kubernetes_deleted(&lab);
    logs_objects_and_no_keys(&lab);
}

/// Whoever reads a log knows the API's objects, and no keys of etcd's.
fn logs_objects_and_no_keys(lab: &Lab) {
    for node in caracals(lab) {
        let log = std::fs::read_to_string(lab.folder().log(&node)).unwrap();
        assert!(!log.is_empty(), "{node}: nothing was said");
        let key = log.lines().find(|line| line.contains("/calico/"));
        assert_eq!(key, None, "{node}");
    }
}

/// A node has one connection to the API server, whatever it watches.
fn asks_through_one_connection(lab: &Lab) {
    for node in caracals(lab) {
        let endpoints = lab.node_status(&node).unwrap().datastore.endpoints;
        let (_, server) = endpoints.split_once("//").expect("a URL");
        let server = server.trim_end_matches('/');
        let question = format!("ss -Htn state established dst {server}");
        wait_until(60 * SECOND, "one connection to the API server", || {
            let said = run_on(lab, &node, &question);
            match said.lines().count() {
                1 => Ok(()),
                _ => Err(format!("{node}: {said}")),
            }
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }
}

/// What Calico's nodes and kubectl find.
fn has_calicos_shape(lab: &Lab) {
    let node = kubernetes_object(lab, "nodes", "node1");
    let annotations = &node["metadata"]["annotations"];
    assert_eq!(annotations["projectcalico.org/IPv4Address"], "10.0.0.1/24");
    let pod = &lab.state().pods.iter().find(|p| p.label() == "node1/p1");
    let pod = pod.expect("a pod of the topology");
    let address = format!("{}/32", pod.address.unwrap());
    let stored = kubernetes_object(lab, "pods", "node1-p1");
    let annotations = &stored["metadata"]["annotations"];
    assert_eq!(annotations["cni.projectcalico.org/podIP"], address);
    assert_eq!(
        annotations["cni.projectcalico.org/containerID"],
        pod.container
    );
    let blocks = kubernetes_objects(lab, "ipamblocks");
    assert_eq!(blocks.len(), 3, "one for each node");
    for affinity in kubernetes_objects(lab, "blockaffinities") {
        assert_eq!(affinity["spec"]["state"], "confirmed");
        let labels = &affinity["metadata"]["labels"];
        assert_eq!(labels["projectcalico.org/affinity-type"], "host");
    }
    let lease = kubernetes_object(lab, "leases", "caracal-lease.node1");
    assert_eq!(lease["metadata"]["namespace"], "kube-system");
    assert!(lease["spec"]["holderIdentity"].is_string(), "{lease}");
    // Whoever looks with kubectl sees what the node sees.
    let condition = |node: &Value| {
        let all = node["status"]["conditions"].as_array();
        let mut all = all.into_iter().flatten();
        all.find(|c| c["type"] == "NetworkUnavailable").cloned()
    };
    wait_until(
        60 * SECOND,
        "the condition NetworkUnavailable",
        || match condition(&kubernetes_object(lab, "nodes", "node1")) {
            Some(c) if c["status"] == "False" && c["reason"] == "CalicoIsUp" => Ok(()),
            other => Err(format!("{other:?}")),
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
    // What the nodes and the plugin have written is what Kubernetes' schemas allow.
    if has_python_packages("has_calicos_shape") {
        let kinds = ["nodes", "pods", "leases", "serviceaccounts"].into_iter();
        let written: Vec<_> = kinds
            .flat_map(|kind| kubernetes_objects(lab, kind))
            .collect();
        assert_eq!(schema_faults(&written), Vec::<String>::new());
    }
}

fn answers_on_the_command_line(lab: &Lab) {
    let says = |arguments: &[&str], what: &str| {
        let (code, said) = exit_code(lab, "node1", arguments);
        assert!(
            code == 0 && said.contains(what),
            "{arguments:?}: {code}: {said}"
        );
    };
    says(&["status"], "fresh at revision");
    says(&["status"], "Kubernetes' API at https://");
    says(&["get", "nodes"], "10.0.0.3/24");
    says(&["get", "ippools", "-o", "yaml"], "cidr: 10.244.0.0/16");
    says(&["ipam", "check"], "found 0 problems");
    says(&["audit"], "");
    says(&["explain", "10.244.179.64"], "in the datastore: block");
    says(
        &[
            "mode",
            "plan",
            "default-ipv4-ippool",
            "--vxlan",
            "CrossSubnet",
        ],
        "",
    );
}

/// The same templates give the same texts as kubectl's.
fn prints_fields_as_kubectl_does(lab: &Lab) {
    for form in [
        "jsonpath={.items[*].metadata.name}",
        "jsonpath={.items[0].spec.blockSize}",
        "jsonpath={.items[-1].spec.allowedUses[*]}",
        "jsonpath={.items[0].spec['cidr', 'blockSize']}",
        "jsonpath={.items[?(@.spec.blockSize==26)].spec.cidr}",
        "jsonpath={.items[?(@.spec.blockSize>26)].spec.cidr}",
        "jsonpath={range .items[*]}{.metadata.name}: {.spec.cidr}{\"\\n\"}{end}",
        "jsonpath={..cidr}",
        "jsonpath={.items[0].spec.nothing}",
        "custom-columns=NAME:.metadata.name,BLOCK:.spec.blockSize,NO:.spec.nothing",
        "custom-columns=USES:spec.allowedUses[*]",
        "go-template={{range .items}}{{.metadata.name}} {{.spec.cidr}} {{.spec.blockSize}}{{\"\\n\"}}{{end}}",
        "go-template={{range $i, $pool := .items}}{{$i}} {{$pool.spec.allowedUses}} {{with .nothing}}x{{else}}y{{end}}{{end}}",
        "go-template={{len .items}} {{(index .items 0).spec.nothing}} {{printf \"%-12s|\" (index .items 0).kind}}",
    ] {
        let arguments = ["get", "ippools", "-o", form];
        let (code, said) = exit_code(lab, "node1", &arguments);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let theirs = kubectl(lab, &arguments, b"");
        assert_eq!((code, words(&said)), (0, words(&theirs)), "{form}");
    }
    let wrong = ["get", "ippools", "-o", "jsonpath={.items[}"];
    assert_eq!(exit_code(lab, "node1", &wrong).0, 2);
    let unknown = ["get", "ippools", "-o", "custom-columns=MASK"];
    assert_eq!(exit_code(lab, "node1", &unknown).0, 2);
}

/// A pod that is bound to a node after the lab came up.
fn bind(lab: &Lab, pod: &PodState) -> Value {
    bind_pods(lab, std::slice::from_ref(pod));
    kubernetes_object(lab, "pods", &format!("{}-{}", pod.node, pod.name))
}

fn gives_a_pod_its_address_and_takes_it_back(lab: &Lab) {
    let pod = &more_pods(lab, ["node2"])[0];
    // Kubernetes makes pods; the plugin does not.
    let error = error_chain(&lab.cni("ADD", pod).expect_err("there is no such pod"));
    assert!(error.contains("Kubernetes has no such pod"), "{error}");
    lab.cni("DEL", pod).unwrap();
    let bound = bind(lab, pod);
    let name = bound["metadata"]["name"].as_str().unwrap();
    let (_, before) = exit_code(lab, "node2", &["ipam", "show"]);
    lab.cni("ADD", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.cni("CHECK", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let annotation = |name: &str| {
        let pod = kubernetes_object(lab, "pods", name);
        let text = &pod["metadata"]["annotations"]["cni.projectcalico.org/podIP"];
        text.as_str().unwrap_or_default().to_owned()
    };
    assert!(
        annotation(name).starts_with("10.244."),
        "{}",
        annotation(name)
    );
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    assert_eq!(annotation(name), "");
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("again: {}", error_chain(&e)));
    let (_, after) = exit_code(lab, "node2", &["ipam", "show"]);
    assert_eq!(before, after, "its address is free again");
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
}

fn attached(lab: &Lab, pod: &PodState) -> IpAddr {
    let answer = lab.cni("ADD", pod);
    let answer = answer.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    parse_cni_result(&answer).expect("a result").address
}

/// A pod's annotations, which hold what its endpoint is.
fn endpoint(lab: &Lab, name: &str) -> [String; 2] {
    let pod = kubernetes_object(lab, "pods", name);
    ["podIP", "containerID"].map(|key| {
        let text = &pod["metadata"]["annotations"][format!("cni.projectcalico.org/{key}")];
        text.as_str().unwrap_or_default().to_owned()
    })
}

/// A pod whose sandbox is made anew: its endpoint is the new container's, whatever comes late of
/// the old one; and a pod that is gone first leaves no address.
fn keeps_containers_of_one_pod_apart(lab: &Lab) {
    let pods = more_pods(lab, ["node3", "node3"]);
    let [first, spare] = &pods[..] else {
        unreachable!("two pods");
    };
    bind(lab, first);
    let (_, before) = exit_code(lab, "node3", &["ipam", "show"]);
    let one = attached(lab, first);
    assert_eq!(attached(lab, first), one, "a repeated ADD gives the same");
    let second = PodState {
        name: first.name.clone(),
        ..spare.clone()
    };
    let other = attached(lab, &second);
    lab.cni("DEL", first).expect("the old one's DEL comes late");
    let name = format!("node3-{}", first.name);
    let wanted = [format!("{other}/32"), second.container.clone()];
    assert_eq!(endpoint(lab, &name), wanted);
    lab.cni("CHECK", &second).expect("the new one is whole");
    lab.cni_status("node3").expect("another pod could come");

    unbind_pod(lab, &second);
    lab.cni("DEL", &second).expect("its pod is gone already");
    let (_, after) = exit_code(lab, "node3", &["ipam", "show"]);
    assert_eq!(before, after, "its address is free again");
    let netns: Vec<_> = pods.iter().map(|pod| pod.netns.clone()).collect();
    caracal_lab::delete_namespaces(&netns).unwrap();
}

/// GC: a container that the runtime forgot has no address any more, those that it names keep
/// theirs.
fn collects_what_has_no_pod(lab: &Lab) {
    let pods = more_pods(lab, ["node2", "node3"]);
    let (_, before) = exit_code(lab, "node3", &["ipam", "show"]);
    let forgotten = &pods[1];
    bind(lab, forgotten);
    let _address = attached(lab, forgotten);
    let collected = lab.cni_gc("node3", &lab.state().pods);
    collected.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let (_, after) = exit_code(lab, "node3", &["ipam", "show"]);
    assert_eq!(before, after, "its address is free again");
    assert_eq!(
        endpoint(lab, &format!("node3-{}", forgotten.name))[0],
        "",
        "and its pod has none"
    );
    let netns: Vec<_> = pods.iter().map(|pod| pod.netns.clone()).collect();
    caracal_lab::delete_namespaces(&netns).unwrap();
    assert_full_matrix(lab);
}

fn loses_nothing_without_its_server(lab: &mut Lab) {
    await_settled(lab);
    let before: Vec<_> = caracals(lab)
        .iter()
        .map(|n| routes_by_kind(lab, n))
        .collect();
    let monitors = RouteMonitor::on_all(lab);
    let probes = Probes::start(lab, &PAIRS);
    probes.after(500);

    // A node restarts, in order and killed.
    lab.stop_node("node2").unwrap();
    lab.restart_node("node2").unwrap();
    lab.kill9_node("node3").unwrap();
    lab.restart_node("node3").unwrap();
    await_settled(lab);

    // The server is away, and so long nodes restart from what they remember, which may be older
    // than the blocks of the others: routes to those stay until the server is back and says whose
    // they are.
    let said = LogLines::on_all(lab);
    lab.kill9_api_server().unwrap();
    for node in caracals(lab) {
        await_status(lab, &node, 60 * SECOND, "stale", stale);
    }
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_status(lab, "node1", 60 * SECOND, "forwarding", forwards_stale);
    let pod = &more_pods(lab, ["node1"])[0];
    let error = error_chain(&lab.cni("ADD", pod).expect_err("nobody gives an address"));
    assert!(error.contains("does not answer"), "{error}");
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
    assert_full_matrix(lab);
    said.assert_few(lab, &["node2", "node3"], "without the API server");
    lab.start_api_server().unwrap();
    await_settled(lab);

    // Its etcd is away, and it is not.
    let said = LogLines::on_all(lab);
    lab.stop_etcd().unwrap();
    for node in caracals(lab) {
        await_status(lab, &node, 120 * SECOND, "stale", stale);
    }
    said.assert_few(lab, &["node1", "node2", "node3"], "without the etcd behind");
    lab.start_etcd().unwrap();
    await_settled(lab);

    probes.after(500);
    let afterwards: Vec<_> = caracals(lab)
        .iter()
        .map(|n| routes_by_kind(lab, n))
        .collect();
    assert_eq!(afterwards, before);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("without the API server");
    }
    assert_full_matrix(lab);
    probes.assert_none_lost("without the API server");
}

/// A Node that Kubernetes deleted is nobody's to write again; it comes back with its kubelet.
fn deletes_what_kubernetes_deleted(lab: &Lab) {
    let pool = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: second}\nspec: {cidr: 10.99.0.0/24}\n";
    let file = lab.folder().kubernetes().join("pool.yaml");
    std::fs::write(&file, pool).unwrap();
    let path = file.display().to_string();
    let (code, said) = exit_code(lab, "node1", &["apply", "-f", &path]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        kubernetes_object(lab, "ippools", "second")["spec"]["cidr"],
        "10.99.0.0/24"
    );
    await_status(lab, "node1", 60 * SECOND, "settled", settled);
    kubectl(lab, &["delete", "ippool", "second"], b"");
    let (code, said) = exit_code(lab, "node1", &["get", "ippool", "second"]);
    assert_eq!(code, 3, "{said}");
}

/// `make demo TOPOLOGY=kubernetes`, once it is built.
#[test]
fn the_demonstration_is_one_command() {
    let scenario = "the_demonstration_is_one_command";
    if !possible(scenario, &["openssl"]) {
        return;
    }
    let output = std::process::Command::new(caracal_tests::binary_with_labs())
        .args(["lab", "demo"])
        .arg(caracal_tests::example("kubernetes"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{failed}");
    assert!(said.contains("30 of 30 pings answered"), "{said}");
}

/// Calico's data go to etcd and back while pods talk: no packet is lost and no route deleted.
#[test]
fn a_cluster_moves_to_etcd_and_back() {
    let scenario = "a_cluster_moves_to_etcd_and_back";
    if !possible(scenario, &["kubectl", "openssl"]) {
        return;
    }
    let mut lab = up("kubernetes", "move");
    await_settled(&lab);
    assert_full_matrix(&lab);
    let before: Vec<_> = caracals(&lab)
        .iter()
        .map(|n| routes_by_kind(&lab, n))
        .collect();
    let monitors = RouteMonitor::on_all(&lab);
    let probes = Probes::start(&lab, &PAIRS);
    probes.after(500);

    let (code, said) = exit_code(&lab, "node1", &["datastore", "export"]);
    assert_eq!(code, 5, "without a lock nothing is exported: {said}");
    moves(&mut lab, Datastore::Etcd);
    let (_, said) = exit_code(&lab, "node1", &["get", "ippools"]);
    assert!(said.contains("10.244.0.0/16"), "{said}");

    // Kubernetes forgets Calico's data, as if it never had them. Its Nodes and pods stay.
    for kind in [
        "ipamblocks",
        "blockaffinities",
        "ipamhandles",
        "ippools",
        "bgpconfigurations",
        "felixconfigurations",
        "ipamconfigs",
        "clusterinformations",
    ] {
        kubectl(&lab, &["delete", kind, "--all"], b"");
    }
    moves(&mut lab, Datastore::Kubernetes);
    assert_eq!(kubernetes_objects(&lab, "ipamblocks").len(), 3);

    probes.after(500);
    let afterwards: Vec<_> = caracals(&lab)
        .iter()
        .map(|n| routes_by_kind(&lab, n))
        .collect();
    assert_eq!(afterwards, before);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("while the data moved");
    }
    assert_full_matrix(&lab);
    probes.assert_none_lost("while the data moved");
}

fn moves(lab: &mut Lab, to: Datastore) {
    let file = lab.folder().kubernetes().join("export.json");
    let path = file.display().to_string();
    let does = |lab: &Lab, arguments: &[&str]| {
        let (code, said) = exit_code(lab, "node1", arguments);
        assert_eq!(code, 0, "{arguments:?}: {said}");
        said
    };
    does(lab, &["datastore", "lock"]);
    let pod = &more_pods(lab, ["node2"])[0];
    bind(lab, pod);
    let refused = lab.cni("ADD", pod).expect_err("the datastore is locked");
    let said = error_chain(&refused);
    assert!(said.contains("locked"), "{said}");
    unbind_pod(lab, pod);
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
    does(lab, &["datastore", "export", "-f", &path]);
    lab.use_datastore(to);
    does(lab, &["datastore", "import", "-f", &path]);
    let again = does(lab, &["datastore", "import", "-f", &path]);
    assert!(again.contains("0 values written"), "{again}");
    for node in caracals(lab) {
        lab.stop_node(&node).unwrap();
        lab.restart_node(&node).unwrap();
    }
    await_settled(lab);
    does(lab, &["datastore", "unlock"]);
    let said = does(lab, &["ipam", "check"]);
    assert!(said.contains("found 0 problems"), "{said}");
}
