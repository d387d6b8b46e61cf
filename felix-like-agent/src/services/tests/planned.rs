//! What an address does: which endpoints it leads to, for whom, and what is said of them.

use super::*;

#[test]
fn a_cluster_address_leads_to_the_ready_endpoints() {
    let unready = json!({"conditions": {"ready": false}});
    let (_, kernel) = table(&[
        service(json!({})),
        slice(json!([
            endpoint("10.244.0.1", "a", json!({})),
            endpoint("10.244.0.2", "b", json!({"conditions": {"ready": true}})),
            endpoint("10.244.0.3", "b", unready),
        ])),
    ]);
    let service = "10.96.0.10 . tcp . 80";
    assert_eq!(
        map(&kernel, "services4"),
        [(service, "goto pick-endpoints-2")].into()
    );
    let targets: Vec<&str> = map(&kernel, "endpoints4-tcp").into_values().collect();
    assert_eq!(targets, ["10.244.0.1 . 8080", "10.244.0.2 . 8080"]);
    // Only what is here may be its own client.
    assert_eq!(
        map(&kernel, "hairpin4"),
        [("10.244.0.1 . 10.244.0.1", "")].into()
    );
    assert_eq!(map(&kernel, "cluster-ips6"), [("fd00:96::10", "")].into());
    // The other family has no endpoints.
    assert_eq!(
        map(&kernel, "refused6"),
        [("fd00:96::10 . tcp . 80", "goto refusal")].into()
    );
    assert_eq!(map(&kernel, "pods4"), [("10.244.0.0/16", "")].into());
}

#[test]
fn terminating_endpoints_serve_when_nothing_is_ready() {
    let dying = json!({"conditions": {"ready": false, "serving": true, "terminating": true}});
    let dead = json!({"conditions": {"ready": false, "serving": false, "terminating": true}});
    let of = |first: &Value| {
        let (_, kernel) = table(&[
            service(json!({})),
            slice(json!([
                endpoint("10.244.0.1", "b", first.clone()),
                endpoint("10.244.0.2", "b", dying.clone()),
                endpoint("10.244.0.3", "b", dead.clone()),
            ])),
        ]);
        let targets = map(&kernel, "endpoints4-tcp").into_values();
        targets.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of(&json!({})), ["10.244.0.1 . 8080"]);
    assert_eq!(of(&dead), ["10.244.0.2 . 8080"]);
}

#[test]
fn policies_choose_the_list_and_the_answer_without_endpoints() {
    let local = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80, "nodePort": 30080}], "internalTrafficPolicy": "Local"});
    let at = |node: &str| slice(json!([endpoint("10.244.0.1", node, json!({}))]));
    let (cluster, node_port) = ("10.96.0.10 . tcp . 80", "10.0.0.1 . tcp . 30080");
    let (_, here) = table(&[service(local.clone()), at("a")]);
    let leads = [(node_port, "goto by-sender"), (cluster, "goto pick-here-1")].into();
    assert_eq!(map(&here, "services4"), leads);
    assert_eq!(
        map(&here, "outside4"),
        [(node_port, "goto pick-here-1")].into()
    );
    assert_eq!(
        map(&here, "inside4"),
        [(node_port, "goto pick-endpoints-1")].into()
    );
    assert_eq!(map(&here, "from-node4"), [(node_port, "")].into());
    assert!(map(&here, "masqueraded4").is_empty());
    let (_, elsewhere) = table(&[service(local.clone()), at("b")]);
    let dropped = [(node_port, "drop"), (cluster, "drop")].into();
    assert_eq!(map(&elsewhere, "refused4"), dropped);
    assert_eq!(
        map(&elsewhere, "inside4"),
        [(node_port, "goto pick-endpoints-1")].into()
    );
    let (_, nowhere) = table(&[service(local)]);
    let refused = [(node_port, "goto refusal"), (cluster, "goto refusal")].into();
    assert_eq!(map(&nowhere, "refused4"), refused);
    let open = json!({"externalIPs": ["192.0.2.1"]});
    let (_, masqueraded) = table(&[service(open), at("b")]);
    let external = [("192.0.2.1 . tcp . 80", "")].into();
    assert_eq!(map(&masqueraded, "masqueraded4"), external);
}

#[test]
fn hints_count_when_every_ready_endpoint_has_one() {
    let zone = |zone: &str| json!({"hints": {"forZones": [{"name": zone}]}});
    let node = |node: &str| json!({"hints": {"forNodes": [{"name": node}]}});
    let of = |hints: [Value; 2]| {
        let [first, second] = hints;
        let (_, kernel) = table(&[
            service(json!({})),
            slice(json!([
                endpoint("10.244.0.1", "b", first),
                endpoint("10.244.0.2", "b", second),
            ])),
        ]);
        map(&kernel, "endpoints4-tcp").len()
    };
    assert_eq!(of([zone("z"), zone("y")]), 1);
    assert_eq!(of([zone("z"), json!({})]), 2);
    assert_eq!(of([zone("x"), zone("y")]), 2);
    assert_eq!(of([node("a"), node("b")]), 1);
}

#[test]
fn some_services_are_not_ours() {
    let none = |service: Value| {
        let (table, _) = table(&[
            service,
            slice(json!([endpoint("10.244.0.1", "a", json!({}))])),
        ]);
        assert!(table.entries().is_empty());
    };
    none(service(
        json!({"clusterIP": "None", "clusterIPs": ["None"]}),
    ));
    none(service(json!({"type": "ExternalName"})));
    let mut other = service(json!({}));
    other["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": ""});
    none(other);
}

#[test]
fn source_ranges_are_for_load_balancers_and_balancers_that_proxy_are_none() {
    let mut balanced = service(
        json!({"loadBalancerSourceRanges": [" 10.0.0.0/24 ", "fd01::/64"],
        "type": "LoadBalancer"}),
    );
    balanced["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "x"}]}});
    let (table, kernel) = table(&[balanced]);
    assert_eq!(
        table.entries().len(),
        3,
        "two cluster addresses, one balancer"
    );
    let limited = [("192.0.2.1 . tcp . 80", "")].into();
    assert_eq!(map(&kernel, "limited4"), limited);
    // The node is in the range, and may speak from the address.
    let senders: Vec<&str> = map(&kernel, "senders4").into_keys().collect();
    let address = "192.0.2.1 . tcp . 80";
    assert_eq!(
        senders,
        [
            format!("{address} . 10.0.0.0/24"),
            format!("{address} . 192.0.2.1")
        ]
    );
}
#[test]
fn node_ports_are_served_on_the_addresses_that_are_asked_for() {
    let node_port = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    let on = |addresses: &str| {
        let mut own = own();
        own.settings.node_ports = addresses.parse().unwrap();
        let (table, _) = table_of(&own, &[service(node_port.clone())]);
        let entries = table.entries();
        let addresses = entries.keys().filter(|address| address.port == 30080);
        let mut addresses: Vec<String> = addresses.map(|a| a.address.to_string()).collect();
        addresses.sort();
        addresses.join(" ")
    };
    assert_eq!(on("primary"), "10.0.0.1 fd00::1");
    assert_eq!(on("all"), "10.0.0.1 172.16.0.1 fd00::1");
    assert_eq!(on("172.16.0.0/12, fd01::/16"), "172.16.0.1");
    assert!("everywhere".parse::<NodePortAddresses>().is_err());
}

/// Ready, terminating and on another node; once more in the slice of another port.
#[test]
fn load_balancers_are_told_of_ready_endpoints_on_this_node() {
    let asked = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000});
    let dying = json!({"conditions": {"ready": true, "terminating": true}});
    let mut again = slice(json!([endpoint("10.244.0.1", "a", json!({}))]));
    again["metadata"]["name"] = json!("web-2");
    let (table, _) = table(&[
        service(asked.clone()),
        again,
        slice(json!([
            endpoint("10.244.0.1", "a", json!({})),
            endpoint("10.244.0.2", "a", dying),
            endpoint("10.244.0.3", "b", json!({})),
        ])),
    ]);
    let told: Vec<(String, usize)> = table
        .health()
        .into_iter()
        .map(|(at, health)| (at.to_string(), health.local_endpoints))
        .collect();
    let both = [
        ("10.0.0.1:32000".to_owned(), 1),
        ("[fd00::1]:32000".to_owned(), 1),
    ];
    assert_eq!(told, both);
    // With policy Cluster every node does, and nobody asks.
    let mut anywhere = asked;
    anywhere["externalTrafficPolicy"] = json!("Cluster");
    let (table, _) = self::table(&[service(anywhere)]);
    assert!(table.health().is_empty());
}

/// TCP belongs to an endpoint that is there, also one that ends; UDP goes to who serves.
#[test]
fn connections_end_with_their_endpoint_where_that_is_asked_for() {
    let mut own = own();
    let dead = json!({"conditions": {"ready": false, "serving": false, "terminating": true}});
    let with = |endpoints: Value| snapshot(&[service(json!({})), slice(endpoints)]);
    let both = with(json!([
        endpoint("10.244.0.1", "a", json!({})),
        endpoint("10.244.0.2", "a", json!({})),
    ]));
    let ending = with(json!([
        endpoint("10.244.0.1", "a", dead),
        endpoint("10.244.0.2", "a", json!({})),
    ]));
    let gone = with(json!([endpoint("10.244.0.2", "a", json!({}))]));
    for reset_tcp in [false, true] {
        own.settings.reset_tcp = reset_tcp;
        let mut table = ServiceTable::default();
        assert_eq!(table.follow(&both, &own), None);
        table.adopt(None);
        let flows = |table: &mut ServiceTable, snapshot| {
            let change = table.follow(snapshot, &own).unwrap();
            change.flows.values().map(BTreeSet::len).collect::<Vec<_>>()
        };
        let none: [usize; 0] = [];
        assert_eq!(flows(&mut table, &ending), none);
        let left: &[usize] = if reset_tcp { &[1] } else { &[] };
        assert_eq!(flows(&mut table, &gone), left);
        // Nothing is said of the endpoints of a Service that is gone.
        assert_eq!(flows(&mut table, &snapshot(&[])), none);
    }
}
