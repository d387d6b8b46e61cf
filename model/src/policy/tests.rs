#![allow(clippy::unwrap_used)]

mod hosts;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A cluster with pods `web` (namespace shop), `client` (shop) and `other` (team, labels `team=a`).
fn cluster() -> PolicyData {
    let mut data = PolicyData::default();
    for (namespace, team) in [("shop", "b"), ("team", "a")] {
        put(
            &mut data,
            &format!("profiles/kns.{namespace}"),
            &json!({"spec": {
                "ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}],
                "labelsToApply": {"pcns.team": team, "pcns.projectcalico.org/name": namespace},
            }}),
        );
    }
    for (n, namespace, name) in [
        (1, "shop", "web"),
        (2, "shop", "client"),
        (3, "team", "other"),
    ] {
        put(
            &mut data,
            &format!("workloadendpoints/{namespace}/{name}"),
            &json!({
                "metadata": {"labels": {
                    "app": name, "projectcalico.org/namespace": namespace,
                    "projectcalico.org/orchestrator": "k8s",
                    "projectcalico.org/serviceaccount": format!("sa-{name}"),
                }},
                "spec": {
                    "node": "n1", "interfaceName": format!("cali{n}"),
                    "ipNetworks": [format!("10.0.0.{n}/32"), format!("fd00::{n}/128")],
                    "profiles": [format!("kns.{namespace}")],
                    "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
                },
            }),
        );
    }
    data
}

fn put(data: &mut PolicyData, path: &str, value: &Value) {
    let text = value.to_string();
    data.apply(&format!("{RESOURCES}{path}"), Some(text.as_bytes()))
        .unwrap();
}

/// A few lines of a policy would be a hundred thousand rules in the kernel: such a rule is closed,
/// and named; what is beside it counts.
#[test]
fn what_multiplies_without_bound_is_closed_and_named() {
    let ports: Vec<Value> = (1..=300).map(|n| json!(2 * n)).collect();
    let few: Vec<Value> = (1..=8).map(|n| json!(format!("192.0.{n}.0/24"))).collect();
    let side = json!({"nets": few, "ports": ports});
    let much =
        |action| json!({"action": action, "protocol": "TCP", "source": side, "destination": side});
    let mut data = cluster();
    let spec = |action| {
        json!({"spec": {"types": ["Ingress"], "ingress": [much(action),
            {"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}]}})
    };
    let path = "networkpolicies/shop/much";
    for (action, allowed) in [("Allow", true), ("Deny", false)] {
        put(&mut data, path, &spec(action));
        let verdict = verdict_of(
            &data,
            "web",
            PolicyDirection::Ingress,
            "TCP 10.0.0.2 > 10.0.0.1:80",
        );
        assert_eq!(verdict.allowed, allowed, "{action}: {:?}", verdict.by);
        let faults: Vec<_> = data.faults().collect();
        assert_eq!(faults.len(), 1);
        let (of, fault) = &faults[0];
        assert!(of.ends_with(path), "{of}");
        assert!(
            fault.starts_with("spec.ingress[0].ports: this rule becomes 5760000 rules"),
            "{fault}"
        );
    }
    // As many as fit are taken, of either kind.
    let side = json!({"nets": few, "ports": [80]});
    let fits = json!({"action": "Allow", "protocol": "TCP", "source": side, "destination": side});
    let rules: Vec<Value> = (0..150).map(|_| fits.clone()).collect();
    put(&mut data, path, &json!({"spec": {"ingress": rules}}));
    assert_eq!(data.faults().count(), 0);
    let peers: Vec<Value> = (0..200)
        .map(|n| json!({"ipBlock": {"cidr": format!("10.{n}.0.0/16")}}))
        .collect();
    let ports: Vec<Value> = (1..=40).map(|n| json!({"port": n})).collect();
    let rule = json!({"from": peers, "ports": ports});
    let spec = |rules: &[Value]| json!({"podSelector": {}, "ingress": rules});
    kubernetes(&mut data, "much", &spec(std::slice::from_ref(&rule)));
    assert_eq!(data.faults().count(), 0);
    kubernetes(&mut data, "much", &spec(&[rule.clone(), rule]));
    let faults: Vec<_> = data.faults().collect();
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].1.starts_with("spec.ingress[1].ports"),
        "{faults:?}"
    );
}

fn kubernetes(data: &mut PolicyData, name: &str, spec: &Value) {
    put(
        data,
        &format!("networkpolicies/shop/knp.default.{name}"),
        &json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec}),
    );
}

/// `PROTOCOL FROM > TO:PORT`.
fn packet(text: &str) -> Packet {
    let (protocol, rest) = text.split_once(' ').unwrap();
    let (from, to) = rest.split_once(" > ").unwrap();
    let (to, port) = to.rsplit_once(':').unwrap();
    Packet {
        source: from.parse().unwrap(),
        destination: to.parse().unwrap(),
        protocol: fields::protocol(&protocol.into()).unwrap(),
        ports: (40_000, port.parse().unwrap()),
        icmp: (8, 0),
    }
}

fn verdict_of(data: &PolicyData, name: &str, direction: PolicyDirection, text: &str) -> Verdict {
    let mut endpoints = data.endpoints();
    let (_, endpoint) = endpoints.find(|(of, _)| of.ends_with(name)).unwrap();
    data.judge(endpoint, direction, &packet(text))
}

/// What may come in to the pod `web`.
fn enters(data: &PolicyData, text: &str) -> bool {
    verdict_of(data, "/web", PolicyDirection::Ingress, text).allowed
}

fn leaves(data: &PolicyData, text: &str) -> bool {
    verdict_of(data, "/web", PolicyDirection::Egress, text).allowed
}

#[test]
fn kubernetes_policies_isolate_and_allow() {
    const CLIENT: &str = "TCP 10.0.0.2 > 10.0.0.1:80";
    const OTHER: &str = "TCP 10.0.0.3 > 10.0.0.1:80";
    const STRANGER: &str = "TCP 192.0.2.1 > 10.0.0.1:80";
    let mut data = cluster();
    assert!(
        [CLIENT, OTHER, STRANGER].iter().all(|p| enters(&data, p)),
        "nothing isolates"
    );
    // Ingress is what a policy without types is for; egress stays open.
    kubernetes(&mut data, "a", &json!({"podSelector": {}}));
    assert!([CLIENT, OTHER, STRANGER].iter().all(|p| !enters(&data, p)));
    assert!(leaves(&data, "TCP 10.0.0.1 > 192.0.2.1:443"));
    for (rule, allowed) in [
        (json!({}), [true, true, true]),
        (json!({"from": [{"podSelector": {}}]}), [true, false, false]),
        (
            json!({"from": [{"namespaceSelector": {}}]}),
            [true, true, false],
        ),
        (
            json!({"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}),
            [false, true, false],
        ),
        (
            json!({"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}},
                "podSelector": {"matchLabels": {"app": "client"}}}]}),
            [false, false, false],
        ),
        (
            json!({"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}},
                {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["client"]}]}}]}),
            [true, true, false],
        ),
        (
            json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.2/32"]}}]}),
            [false, true, false],
        ),
        // What one peer excepts another one may allow.
        (
            json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.2/32"]}},
                {"podSelector": {"matchLabels": {"app": "client"}}}]}),
            [true, true, false],
        ),
        (json!({"ports": [{"port": 80}]}), [true, true, true]),
        (
            json!({"ports": [{"port": 79, "endPort": 81}]}),
            [true, true, true],
        ),
        (
            json!({"ports": [{"port": 81}, {"port": 80, "protocol": "SCTP"}]}),
            [false, false, false],
        ),
        (
            json!({"ports": [{"protocol": "TCP"}, {"port": 81}]}),
            [true, true, true],
        ),
        // What is not understood allows nothing.
        (json!({"from": [{"cluster": "x"}]}), [false, false, false]),
        (json!({"from": [{}]}), [false, false, false]),
        (
            json!({"ports": [{"port": 80, "more": 1}]}),
            [false, false, false],
        ),
    ] {
        kubernetes(
            &mut data,
            "b",
            &json!({"podSelector": {}, "ingress": [rule]}),
        );
        let seen = [CLIENT, OTHER, STRANGER].map(|p| enters(&data, p));
        assert_eq!(seen, allowed, "{rule}");
    }
    kubernetes(
        &mut data,
        "b",
        &json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}),
    );
    assert!(enters(&data, "TCP 10.0.0.2 > 10.0.0.1:8080"));
    assert!(!enters(&data, CLIENT) && !enters(&data, "UDP 10.0.0.2 > 10.0.0.1:8080"));
    // A rule without ports lets everything through.
    kubernetes(
        &mut data,
        "b",
        &json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}),
    );
    assert!(
        enters(&data, "ICMP 10.0.0.2 > 10.0.0.1:0") && enters(&data, "47 10.0.0.2 > 10.0.0.1:0")
    );
    // Both families.
    assert!(
        enters(&data, "TCP fd00::2 > fd00::1:80") && !enters(&data, "TCP fd00::3 > fd00::1:80")
    );
    // By name on the side that is asked.
    kubernetes(
        &mut data,
        "b",
        &json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}]}),
    );
    assert!(leaves(&data, "TCP 10.0.0.1 > 10.0.0.2:8080"));
    assert!(!leaves(&data, "TCP 10.0.0.1 > 10.0.0.2:80"));
    assert!(
        !leaves(&data, "TCP 10.0.0.1 > 10.0.0.3:8080"),
        "another namespace"
    );
}

fn calico(data: &mut PolicyData, path: &str, spec: &Value) {
    put(data, path, &json!({"spec": spec}));
}

#[test]
fn tiers_judge_one_behind_the_other() {
    const P: &str = "TCP 10.0.0.2 > 10.0.0.1:80";
    let mut data = cluster();
    let by = |data: &PolicyData| {
        let verdict = verdict_of(data, "/web", PolicyDirection::Ingress, P);
        (verdict.allowed, verdict.by)
    };
    let title = |text: &str, at| Decision::Rule(text.to_owned(), at);
    assert_eq!(
        by(&data),
        (true, Decision::Profile("kns.shop".to_owned(), 0))
    );
    // In no tier that is there: last, and closed.
    calico(
        &mut data,
        "globalnetworkpolicies/lost",
        &json!({"tier": "lost", "ingress": []}),
    );
    assert_eq!(by(&data), (false, Decision::EndOfTier("lost".to_owned())));
    calico(
        &mut data,
        "tiers/default",
        &json!({"order": 100, "defaultAction": "Deny"}),
    );
    calico(
        &mut data,
        "networkpolicies/shop/p",
        &json!({"order": 20,
        "ingress": [{"action": "Log"}, {"action": "Allow", "protocol": "TCP"}]}),
    );
    assert_eq!(by(&data), (true, title("NetworkPolicy shop/p", 1)));
    calico(
        &mut data,
        "networkpolicies/shop/q",
        &json!({"order": 10,
        "ingress": [{"action": "Deny", "source": {"selector": "app == 'client'"}}]}),
    );
    assert_eq!(by(&data), (false, title("NetworkPolicy shop/q", 0)));
    calico(
        &mut data,
        "tiers/first",
        &json!({"order": 1, "defaultAction": "Pass"}),
    );
    calico(
        &mut data,
        "globalnetworkpolicies/first",
        &json!({"tier": "first", "selector": "app == 'web'",
        "ingress": [{"action": "Allow", "source": {"namespaceSelector": "team == 'a'"}}]}),
    );
    assert_eq!(
        by(&data),
        (false, title("NetworkPolicy shop/q", 0)),
        "the tier passes it on"
    );
    calico(
        &mut data,
        "globalnetworkpolicies/first",
        &json!({"tier": "first",
        "ingress": [{"action": "Allow", "source": {"serviceAccounts": {"names": ["sa-client"]}}}]}),
    );
    assert_eq!(by(&data), (true, title("GlobalNetworkPolicy first", 0)));
    calico(
        &mut data,
        "globalnetworkpolicies/first",
        &json!({"tier": "first",
        "ingress": [{"action": "Pass"}, {"action": "Allow"}]}),
    );
    assert_eq!(
        by(&data),
        (false, title("NetworkPolicy shop/q", 0)),
        "a rule passes it on"
    );
    // It says nothing of this direction.
    calico(
        &mut data,
        "globalnetworkpolicies/first",
        &json!({"tier": "first", "types": ["Egress"]}),
    );
    assert_eq!(by(&data), (false, title("NetworkPolicy shop/q", 0)));
}

#[test]
fn selectors_of_rules_stay_in_their_namespace() {
    let mut data = cluster();
    put(
        &mut data,
        "globalnetworksets/office",
        &json!({"metadata": {"labels": {"site": "x"}},
        "spec": {"nets": ["192.0.2.0/24"]}}),
    );
    put(
        &mut data,
        "networksets/shop/office",
        &json!({"metadata": {"labels": {"site": "y"}},
        "spec": {"nets": ["198.51.100.0/24"]}}),
    );
    for (source, allowed) in [
        // Client, the pod of the other namespace, a global set, a set of the namespace, nobody.
        (
            json!({"selector": "all()"}),
            [true, false, false, true, false],
        ),
        (
            json!({"selector": "has(site)"}),
            [false, false, false, true, false],
        ),
        (
            json!({"selector": "has(site)", "namespaceSelector": "global()"}),
            [false, false, true, false, false],
        ),
        (
            json!({"namespaceSelector": "all()"}),
            [true, true, false, true, false],
        ),
        (
            json!({"namespaceSelector": "team == 'b'"}),
            [true, false, false, true, false],
        ),
        (
            json!({"notSelector": "app == 'client'"}),
            [false, false, false, true, false],
        ),
        (
            json!({"notNets": ["192.0.2.0/24"]}),
            [true, true, false, true, true],
        ),
        (
            json!({"nets": ["0.0.0.0/0"], "notNets": ["10.0.0.0/8"]}),
            [false, false, true, true, true],
        ),
        (json!({"notNets": ["0.0.0.0/0"]}), [false; 5]),
        (json!({}), [true; 5]),
    ] {
        let rules =
            json!({"types": ["Ingress"], "ingress": [{"action": "Allow", "source": source}]});
        calico(&mut data, "networkpolicies/shop/p", &rules);
        let from = [
            "10.0.0.2",
            "10.0.0.3",
            "192.0.2.9",
            "198.51.100.9",
            "203.0.113.9",
        ];
        let seen = from.map(|from| enters(&data, &format!("TCP {from} > 10.0.0.1:80")));
        assert_eq!(seen, allowed, "{source}");
    }
}

#[test]
fn what_is_not_understood_is_closed_and_told() {
    const P: &str = "TCP 10.0.0.2 > 10.0.0.1:80";
    for (spec, allowed, told) in [
        (json!({"ingress": [{"action": "Allow"}]}), true, None),
        (
            json!({"selector": "app = 'web'"}),
            false,
            Some("spec.selector"),
        ),
        (
            json!({"ingress": [{"action": "Allow", "source": {"services": {"name": "x"}}}]}),
            false,
            Some("spec.ingress[0].source.services: this field"),
        ),
        (
            json!({"ingress": [{"action": "Deny", "more": true}, {"action": "Allow"}]}),
            false,
            Some("spec.ingress[0].more"),
        ),
        (
            json!({"ingress": [{"action": "Allow", "more": true}, {"action": "Allow"}]}),
            true,
            Some("spec.ingress[0].more"),
        ),
        (
            json!({"ingress": [{"action": "Perhaps"}, {"action": "Allow"}]}),
            false,
            Some("spec.ingress[0].action"),
        ),
        (
            json!({"ingress": [{"action": "Allow", "destination": {"ports": [80]}}]}),
            false,
            Some("spec.ingress[0].protocol: ports need"),
        ),
        (
            json!({"ingress": [{"action": "Allow", "protocol": "TCP", "destination": {"ports": ["90:80"]}}]}),
            false,
            Some("spec.ingress[0].destination.ports"),
        ),
        (
            json!({"ingress": 7}),
            false,
            Some("spec.ingress: expected a list"),
        ),
        (json!(7), false, Some("spec: expected an object")),
        (
            json!({"types": ["Egress", "Both"]}),
            false,
            Some("spec.types"),
        ),
    ] {
        let mut data = cluster();
        calico(&mut data, "networkpolicies/shop/p", &spec);
        assert_eq!(enters(&data, P), allowed, "{spec}");
        let fault = data.faults().next().map(|(_, fault)| fault.to_owned());
        match told {
            None => assert_eq!(fault, None, "{spec}"),
            Some(told) => assert!(
                fault.as_ref().unwrap().starts_with(told),
                "{spec}: {fault:?}"
            ),
        }
        // The other namespace has nothing to do with it.
        let other = verdict_of(
            &data,
            "/other",
            PolicyDirection::Ingress,
            "TCP 10.0.0.2 > 10.0.0.3:80",
        );
        assert!(other.allowed, "{spec}");
    }
}

#[test]
fn the_last_good_value_stays() {
    const P: &str = "TCP 10.0.0.2 > 10.0.0.1:80";
    let mut data = cluster();
    let path = format!("{RESOURCES}networkpolicies/shop/p");
    assert_eq!(data.apply(&path, Some(b"{")), Some(true));
    assert!(!enters(&data, P), "it is not known what it says");
    calico(
        &mut data,
        "networkpolicies/shop/p",
        &json!({"ingress": [{"action": "Allow"}]}),
    );
    assert!(enters(&data, P));
    assert_eq!(data.apply(&path, Some(b"{")), Some(true));
    assert!(enters(&data, P));
    assert!(
        data.faults()
            .next()
            .unwrap()
            .1
            .ends_with("the last good value stays in use")
    );
    // Also over a list.
    let mut next = cluster();
    next.apply(&path, Some(b"{"));
    assert!(!enters(&next, P));
    next.keep_last_good(&data);
    assert!(enters(&next, P));
    assert_eq!(data.apply(&path, None), Some(true));
    assert_eq!(data.apply(&path, None), Some(false));
    assert_eq!(data.faults().count(), 0);
}

#[test]
fn a_profile_that_is_missing_closes() {
    let mut data = cluster();
    data.apply(&format!("{RESOURCES}profiles/kns.shop"), None);
    assert!(!enters(&data, "TCP 10.0.0.2 > 10.0.0.1:80"));
    let verdict = verdict_of(
        &data,
        "/web",
        PolicyDirection::Ingress,
        "TCP 10.0.0.2 > 10.0.0.1:80",
    );
    assert_eq!(verdict.by, Decision::MissingProfile("kns.shop".to_owned()));
}

proptest! {
    #[test]
    fn no_value_panics(text in "\\PC{0,60}", kind in 0..POLICY_DATA_KINDS.len()) {
        let mut data = PolicyData::default();
        let path = format!("{RESOURCES}{}/shop/p", POLICY_DATA_KINDS[kind]);
        data.apply(&path, Some(text.as_bytes()));
        data.apply(&path, Some(format!("{{\"spec\":{text:?}}}").as_bytes()));
    }
}
