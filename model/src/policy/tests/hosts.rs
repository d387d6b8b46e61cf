//! Host endpoints: what is read of them, and what is judged by them.

use super::*;

const P: &str = "TCP 192.0.2.1 > 10.9.0.1:80";

fn host(data: &mut PolicyData, name: &str, spec: &Value) {
    let value = json!({"metadata": {"labels": {"role": "edge"}}, "spec": spec});
    put(data, &format!("hostendpoints/{name}"), &value);
}

/// A cluster with the interface `eth0` of the node n1.
fn cluster_with_host() -> PolicyData {
    let mut data = cluster();
    let spec = json!({"node": "n1", "interfaceName": "eth0", "expectedIPs": ["10.9.0.1"],
        "ports": [{"name": "web", "protocol": "TCP", "port": 80}]});
    host(&mut data, "n1-eth0", &spec);
    data
}

/// To the node itself, and through it.
fn enter(data: &PolicyData) -> [bool; 2] {
    let (_, host) = data.host_endpoints().next().unwrap();
    let packet = packet(P);
    [
        data.judge(host, PolicyDirection::Ingress, &packet),
        data.judge_forwarded(host, PolicyDirection::Ingress, &packet),
    ]
    .map(|verdict| verdict.allowed)
}

#[test]
fn without_a_policy_the_node_is_closed_and_what_passes_through_is_open() {
    let mut data = cluster_with_host();
    assert_eq!(data.faults().count(), 0);
    assert_eq!(enter(&data), [false, true]);
    let (_, of) = data.host_endpoints().next().unwrap();
    let by = data.judge(of, PolicyDirection::Egress, &packet(P)).by;
    assert_eq!(by, Decision::NoProfile);
    // As kube-controllers make them.
    let spec = json!({"node": "n1", "interfaceName": "*",
        "profiles": [PolicyProfile::ALLOW_ALL]});
    host(&mut data, "n1-eth0", &spec);
    assert_eq!(enter(&data), [true, true]);
}

#[test]
fn policies_of_the_cluster_judge_the_node_and_those_for_it_what_passes_through() {
    let allow = json!([{"action": "Allow", "protocol": "TCP", "destination": {"ports": ["web"]}}]);
    let deny = json!([{"action": "Deny"}]);
    for (spec, expected) in [
        (json!({"ingress": allow}), [true, true]),
        (
            json!({"ingress": allow, "selector": "role == 'edge'"}),
            [true, true],
        ),
        (
            json!({"ingress": allow, "selector": "role == 'x'"}),
            [false, true],
        ),
        // A namespace has no host endpoints.
        (
            json!({"ingress": allow, "namespaceSelector": "all()"}),
            [false, true],
        ),
        (
            json!({"ingress": allow, "namespaceSelector": "global()"}),
            [true, true],
        ),
        (
            json!({"ingress": allow, "applyOnForward": true}),
            [true, true],
        ),
        (
            json!({"ingress": [], "applyOnForward": true}),
            [false, false],
        ),
        (
            json!({"ingress": deny, "applyOnForward": true}),
            [false, false],
        ),
        (
            json!({"types": ["Egress"], "applyOnForward": true}),
            [false, true],
        ),
        // These judge at other places.
        (
            json!({"ingress": deny, "applyOnForward": true, "preDNAT": true}),
            [false, true],
        ),
        (
            json!({"ingress": allow, "applyOnForward": true, "doNotTrack": true}),
            [false, true],
        ),
        // What is not understood is closed.
        (
            json!({"ingress": allow, "applyOnForward": "yes"}),
            [false, false],
        ),
    ] {
        let mut data = cluster_with_host();
        calico(&mut data, "globalnetworkpolicies/p", &spec);
        assert_eq!(enter(&data), expected, "{spec}");
        let enforces = data.enforces("globalnetworkpolicies", "p");
        assert_eq!(enforces, spec["doNotTrack"] != true, "{spec}");
    }
    // Kubernetes' policies are for pods.
    let mut data = cluster_with_host();
    let spec = json!({"podSelector": {}, "ingress": [{}]});
    kubernetes(&mut data, "all", &spec);
    assert_eq!(enter(&data), [false, true]);
}

/// What pods' rules select of host endpoints is the addresses that these expect.
#[test]
fn selectors_of_rules_select_host_endpoints() {
    for (source, allowed) in [
        (
            json!({"selector": "role == 'edge'", "namespaceSelector": "global()"}),
            true,
        ),
        (
            json!({"selector": "role == 'x'", "namespaceSelector": "global()"}),
            false,
        ),
        (json!({"selector": "role == 'edge'"}), true),
        (
            json!({"selector": "role == 'edge'", "namespaceSelector": "all()"}),
            false,
        ),
    ] {
        let mut data = cluster_with_host();
        let rule = json!({"action": "Allow", "source": source});
        let spec = json!({"selector": "app == 'web'", "ingress": [rule]});
        calico(&mut data, "globalnetworkpolicies/p", &spec);
        let enters = enters(&data, "TCP 10.9.0.1 > 10.0.0.1:80");
        assert_eq!(enters, allowed, "{source}");
    }
}

#[test]
fn what_is_not_understood_of_a_host_endpoint_allows_nothing() {
    let place = json!({"node": "n1", "interfaceName": "eth0"});
    for (field, value, told, is_there) in [
        ("node", json!(""), "spec.node", false),
        ("node", json!(7), "spec.node", false),
        (
            "interfaceName",
            json!("a name that is no name"),
            "spec.interfaceName",
            false,
        ),
        (
            "interfaceName",
            json!("\" accept"),
            "spec.interfaceName",
            false,
        ),
        (
            "interfaceName",
            json!(""),
            "spec.interfaceName: neither",
            false,
        ),
        ("expectedIPs", json!(["x"]), "spec.expectedIPs", true),
        ("profiles", json!([7]), "spec.profiles", true),
        ("ports", json!(7), "spec.ports", true),
    ] {
        let mut data = PolicyData::default();
        let mut spec = place.clone();
        spec[field] = value;
        host(&mut data, "h", &spec);
        let faults: Vec<_> = data.faults().collect();
        assert!(faults[0].1.starts_with(told), "{spec}: {faults:?}");
        assert_eq!(
            data.host_endpoints().count(),
            usize::from(is_there),
            "{spec}"
        );
        assert_eq!(data.enforces("hostendpoints", "h"), is_there, "{spec}");
    }
}
