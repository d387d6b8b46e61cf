//! One bad Service stops no other, and is named.

use super::*;

/// A good Service beside a bad one: it is served whatever the other one says.
fn beside(bad: &[Value]) -> (ServiceTable, Kernel) {
    let mut good = service(json!({"clusterIP": "10.96.0.99", "clusterIPs": ["10.96.0.99"]}));
    good["metadata"]["name"] = json!("good");
    let mut of = slice(json!([endpoint("10.244.0.9", "a", json!({}))]));
    of["metadata"]["name"] = json!("good-1");
    of["metadata"]["labels"] = json!({"kubernetes.io/service-name": "good"});
    let (table, kernel) = table(&[bad, &[good, of]].concat());
    assert_eq!(
        map(&kernel, "services4").get("10.96.0.99 . tcp . 80"),
        Some(&"goto pick-endpoints-1")
    );
    (table, kernel)
}

fn refusal(table: &ServiceTable) -> String {
    let problems = table.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].code, "services.refused");
    problems[0].reason.clone()
}

#[test]
fn what_an_api_server_would_refuse_is_named() {
    for (spec, named) in [
        (
            json!({"ports": [{"port": 80, "protocol": "ICMP"}]}),
            "protocol \"ICMP\"",
        ),
        (json!({"ports": [{"port": 0}]}), "port 0"),
        (
            json!({"ports": [{"port": 80, "nodePort": 30080}]}),
            "nodePort 30080 counts for the types NodePort and LoadBalancer alone",
        ),
        (
            json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 22}]}),
            "ports of nodes below 1024 are for the machine's own services",
        ),
        (
            json!({"ports": [{"port": 80, "name": "a } ; flush ruleset"}]}),
            "\"a } ; flush ruleset\" is no name",
        ),
        (
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]}),
            "\"a\" is the name of two ports",
        ),
        (
            json!({"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv6"]}),
            "10.96.0.10 is not of the family IPv6",
        ),
        (
            json!({"clusterIPs": ["10.96.0.10", "10.96.0.11"]}),
            "10.96.0.11 is a second address of its family",
        ),
        (
            json!({"externalIPs": ["name.example"]}),
            "\"name.example\" is no address",
        ),
        (json!({"externalIPs": ["192.0.2.1 } ; x"]}), "is no address"),
        (
            json!({"clusterIP": "10.96.0.300", "clusterIPs": []}),
            "\"10.96.0.300\" is no address",
        ),
        (
            json!({"externalTrafficPolicy": "local"}),
            "externalTrafficPolicy \"local\"",
        ),
        (
            json!({"internalTrafficPolicy": "x"}),
            "internalTrafficPolicy \"x\"",
        ),
        (
            json!({"sessionAffinity": "Cookie"}),
            "sessionAffinity \"Cookie\"",
        ),
    ] {
        let (table, _) = beside(&[service(spec)]);
        let reason = refusal(&table);
        assert!(reason.contains(named), "{named}: {reason}");
    }
    // A number that is no port is no document.
    let bad = service(json!({"ports": [{"port": 80000}]}));
    let mut snapshot = snapshot(&[]);
    let applied = snapshot.apply(&path(&bad), Some(bad.to_string().as_bytes()), 2);
    assert!(matches!(applied, Applied::Invalid(_)), "{applied:?}");
}

#[test]
fn a_name_that_no_rule_can_hold_is_refused() {
    for name in ["Web", "web}", "-web", "a b", &"w".repeat(64)] {
        let mut bad = service(json!({"sessionAffinity": "ClientIP"}));
        bad["metadata"]["name"] = json!(name);
        let (table, kernel) = beside(&[bad]);
        assert!(refusal(&table).contains("is no name"));
        assert_eq!(table.entries().len(), 1, "{name}");
        let with = |chain: &&String| chain.contains(name);
        assert_eq!(kernel.chains.keys().find(with), None);
    }
}

#[test]
fn what_is_wrong_in_a_slice_is_named() {
    let good = endpoint("10.244.0.1", "a", json!({}));
    let wrong = |first: &str| slice(json!([endpoint(first, "a", json!({})), good]));
    let mut typed = wrong("10.244.0.2");
    typed["addressType"] = json!("IPv5");
    let mut port = wrong("10.244.0.2");
    port["ports"] =
        json!([{"name": "", "port": 8080, "protocol": "ICMP"}, {"name": "", "port": 8080}]);
    for (of, named) in [
        (wrong("fd00::7"), "web-1: fd00::7 is not of the family IPv4"),
        (wrong("name.example"), "web-1: an endpoint has no address"),
        (
            wrong("127.0.0.1"),
            "endpoint 127.0.0.1:8080/tcp: it is a loopback address",
        ),
        (
            wrong("224.0.0.1"),
            "endpoint 224.0.0.1:8080/tcp: it is a multicast address",
        ),
        (typed, "web-1: addressType \"IPv5\""),
        (port, "web-1: protocol \"ICMP\""),
    ] {
        let (table, _) = beside(&[service(json!({})), of]);
        let reason = refusal(&table);
        assert!(reason.contains(named), "{named}: {reason}");
    }
}

/// Ranges that cannot be read let nobody in.
#[test]
fn source_ranges_that_are_none_let_nobody_in() {
    let addresses = ["192.0.2.1", "2001:db8::1"];
    let sets = |ranges: Value| {
        let mut balanced =
            service(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}));
        balanced["status"] =
            json!({"loadBalancer": {"ingress": [{"ip": addresses[0]}, {"ip": addresses[1]}]}});
        let (table, kernel) = beside(&[balanced]);
        let count = |set: &str| map(&kernel, set).len();
        let limited = [count("limited4"), count("limited6")];
        (
            limited,
            [count("senders4"), count("senders6")],
            table.problems().len(),
        )
    };
    assert_eq!(sets(json!(["10.1.0.0/33"])), ([1, 1], [0, 0], 1));
    assert_eq!(
        sets(json!(["everybody", "203.0.113.0/24"])),
        ([1, 1], [1, 0], 1)
    );
    assert_eq!(sets(json!(["203.0.113.0/24"])), ([1, 0], [1, 0], 0));
    assert_eq!(sets(json!(["0.0.0.0/0"])), ([0, 0], [0, 0], 0));
    assert_eq!(sets(json!([])), ([0, 0], [0, 0], 0));
}

/// Of an endpoint without a node nobody knows whether it is here: it may be its own client.
#[test]
fn an_endpoint_without_a_node_may_be_its_own_client() {
    let endpoints =
        json!([{"addresses": ["198.51.100.7"]}, {"addresses": ["10.244.0.1"], "nodeName": "b"}]);
    let (table, kernel) = table(&[service(json!({})), slice(endpoints)]);
    let pairs: Vec<&str> = map(&kernel, "hairpin4").into_keys().collect();
    assert_eq!(pairs, ["198.51.100.7 . 198.51.100.7"]);
    let entries = table.entries();
    assert!(entries.values().all(|e| e.own.is_empty()), "it is not here");
}

/// Of two Services with one `healthCheckNodePort` the older has it, whatever their names are.
#[test]
fn a_newcomer_does_not_take_the_port_of_health_checks() {
    let asked = |name: &str, created: &str, address: &str| {
        let mut found = service(json!({"type": "LoadBalancer", "clusterIP": address,
            "clusterIPs": [address], "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000}));
        found["metadata"] =
            json!({"name": name, "namespace": "shop", "creationTimestamp": created});
        found
    };
    let older = asked("mm", "2026-01-01T00:00:00Z", "10.96.0.21");
    for name in ["aa", "zz"] {
        let newcomer = asked(name, "2026-01-01T00:00:01Z", "10.96.0.22");
        let (mut table, _) = table(&[older.clone(), newcomer.clone()]);
        let told = |table: &ServiceTable| -> BTreeSet<String> {
            let told = table.health().into_values();
            told.map(|health| health.service.1).collect()
        };
        assert_eq!(told(&table), ["mm".to_owned()].into());
        let problems = table.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].code, "services.conflict");
        assert_eq!(problems[0].subject, "healthCheckNodePort 32000");
        let reason = &problems[0].reason;
        assert!(reason.starts_with("shop/mm has it"), "{reason}");
        assert!(reason.ends_with(&format!("shop/{name}")), "{reason}");
        // What the older one leaves is the newcomer's.
        let _change = table.follow(&snapshot(&[newcomer]), &own());
        assert_eq!(told(&table), [name.to_owned()].into());
        assert_eq!(table.problems(), []);
    }
}
