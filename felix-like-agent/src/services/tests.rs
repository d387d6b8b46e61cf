//! The plan of services, and the table as a modelled kernel takes it.

#![allow(clippy::unwrap_used)]

mod contests;
mod refused;
mod theirs;

use std::collections::{BTreeMap, BTreeSet};

use caracal_model::{Applied, NodeName, Snapshot};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::listing::{Listed, stray_clients};
use super::settings::{NodePortAddresses, ServiceNode, ServiceSettings};
use super::table::{ServiceTable, TableChange};

/// Our table in a kernel that refuses to add what is there otherwise and to delete what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kernel {
    elements: BTreeMap<(String, String), Option<String>>,
    chains: BTreeMap<String, Vec<String>>,
    maps: BTreeSet<String>,
}

impl Kernel {
    /// Carries out transactions; the number of elements that were named.
    fn run(&mut self, change: &TableChange) -> usize {
        let scripts = change.transactions.iter();
        let named = scripts.map(|of| self.transaction(&of.script)).sum();
        if change.breaks_seal {
            self.transaction(&ServiceTable::sealing(&self.listing()));
        }
        named
    }

    fn transaction(&mut self, script: &str) -> usize {
        let mut named = 0;
        let mut inside = false;
        for line in script.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["table", ..] => inside = true,
                // The marks of a layout: what is inside is not modelled.
                ["chain", name, "{"] if inside => {
                    self.chains.insert(name.to_owned(), Vec::new());
                }
                ["set" | "map", name, "{", ..] if inside => _ = self.maps.insert(name.to_owned()),
                ["delete", "table", ..] => *self = Self::default(),
                [verb @ ("add" | "delete"), "element", "inet", _, set, ..] => {
                    let (_, elements) = line.split_once('{').unwrap();
                    let elements = elements.strip_suffix('}').unwrap().split(", ");
                    for element in elements {
                        named += 1;
                        self.element(verb, set, element.trim());
                    }
                }
                ["add", "chain", _, _, name] => {
                    self.chains.entry(name.to_owned()).or_default();
                }
                ["flush", "chain", _, _, name] => self.chains.get_mut(name).unwrap().clear(),
                ["add", "rule", _, _, name, ..] => {
                    let rule = words[5..].join(" ");
                    self.chains.get_mut(name).unwrap().push(rule);
                }
                ["delete", "chain", _, _, name] => {
                    let used = |data: &Option<String>| {
                        data.as_deref() == Some(format!("goto {name}").as_str())
                    };
                    assert!(!self.elements.values().any(used), "{name} is in use");
                    let goes = |rule: &String| rule.ends_with(&format!("goto {name}"));
                    assert!(
                        !self.chains.values().flatten().any(goes),
                        "{name} is in use"
                    );
                    assert!(self.chains.remove(name).is_some(), "{line}");
                }
                ["add", "map", _, _, name, ..] => _ = self.maps.insert(name.to_owned()),
                ["delete", "map", _, _, name] => assert!(self.maps.remove(name), "{line}"),
                _ => assert!(inside || line.starts_with("add table"), "{line}"),
            }
        }
        self.leads_somewhere();
        named
    }

    fn element(&mut self, verb: &str, set: &str, element: &str) {
        let (key, data) = match element.split_once(" : ") {
            Some((key, data)) => (key, Some(data.to_owned())),
            None => (element, None),
        };
        let key = (set.to_owned(), key.to_owned());
        if verb == "add" {
            let before = self.elements.insert(key.clone(), data.clone());
            assert!(
                before.is_none_or(|before| before == data),
                "{key:?} is there otherwise"
            );
        } else {
            assert_eq!(self.elements.remove(&key), Some(data), "{key:?}");
        }
    }

    /// What a verdict leads to is there, and each index below the count has its endpoint.
    fn leads_somewhere(&self) {
        for ((set, key), data) in &self.elements {
            let Some(chain) = data.as_deref().and_then(|data| data.strip_prefix("goto ")) else {
                continue;
            };
            if matches!(chain, "by-sender" | "refusal") {
                continue;
            }
            assert!(self.chains.contains_key(chain), "{chain}");
            let Some((map, count)) = chain
                .strip_prefix("pick-")
                .and_then(|rest| rest.rsplit_once('-'))
            else {
                continue;
            };
            let family = set.chars().find(char::is_ascii_digit).unwrap();
            for index in 0..count.parse::<usize>().unwrap() {
                let protocol = key.split(" . ").nth(1).unwrap();
                let map = format!("{map}{family}-{protocol}");
                let key = (map, format!("{key} . {index}"));
                assert!(self.elements.contains_key(&key), "{key:?}");
            }
        }
    }

    /// As nftables prints it.
    fn listing(&self) -> String {
        let mut text = "table inet caracal-services {\n".to_owned();
        let names = self.maps.iter().map(|name| (name.as_str(), Vec::new()));
        let mut sets: BTreeMap<&str, Vec<String>> = names.collect();
        for ((set, key), data) in &self.elements {
            let data = data.as_ref().map(|data| format!(" : {data}"));
            sets.entry(set)
                .or_default()
                .push(format!("{key}{}", data.unwrap_or_default()));
        }
        for (set, elements) in sets {
            let elements = elements.join(",\n\t\t\t     ");
            let elements = match elements.is_empty() {
                true => elements,
                false => format!("\t\telements = {{ {elements} }}\n"),
            };
            text += &format!("\tmap {set} {{\n{elements}\t}}\n");
        }
        for chain in self.chains.keys() {
            text += &format!("\tchain {chain} {{\n\t}}\n");
        }
        text + "}\n"
    }

    /// Without what may differ between two histories: the order of endpoints, chains that pick.
    fn content(&self) -> Self {
        let mut content = self.clone();
        let stays = |name: &str| !name.starts_with("pick-") && !name.starts_with("printed_");
        content.chains.retain(|name, _| stays(name));
        let targets = content.elements.extract_if(.., |(set, _), _| {
            set.starts_with("endpoints") || set.starts_with("here")
        });
        let targets: Vec<_> = targets.collect();
        for ((set, key), target) in targets {
            let address = key.rsplit_once(" . ").unwrap().0;
            let key = (set, format!("{address} -> {}", target.unwrap()));
            content.elements.insert(key, None);
        }
        content
    }
}

fn snapshot(documents: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let node = json!({"metadata": {"name": "a", "labels": {"topology.kubernetes.io/zone": "z"}},
        "spec": {"bgp": {"ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::1/64"}}});
    let pool = |cidr: &str| json!({"metadata": {"name": "p"}, "spec": {"cidr": cidr}});
    let resources = "/calico/resources/v3/projectcalico.org";
    for (path, value) in [
        ("nodes/a", node),
        ("ippools/p", pool("10.244.0.0/16")),
        ("ippools/q", pool("fd00:244::/64")),
    ] {
        snapshot.apply(
            &format!("{resources}/{path}"),
            Some(value.to_string().as_bytes()),
            1,
        );
    }
    for document in documents {
        put(&mut snapshot, document);
    }
    snapshot
}

fn path(document: &Value) -> String {
    let name = document["metadata"]["name"].as_str().unwrap();
    let kind = match document["kind"].as_str().unwrap() {
        "Service" => "services",
        _ => "endpointslices",
    };
    format!("/calico/caracal/v1/{kind}/shop/{name}")
}

fn put(snapshot: &mut Snapshot, document: &Value) {
    let revision = snapshot.revision + 1;
    let text = document.to_string();
    let applied = snapshot.apply(&path(document), Some(text.as_bytes()), revision);
    assert_eq!(applied, Applied::Changed);
}

/// A Service `web` with this in its spec.
fn service(more: Value) -> Value {
    let mut spec = json!({"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::10"],
        "ports": [{"port": 80}]});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let metadata = json!({"name": "web", "namespace": "shop"});
    json!({"kind": "Service", "metadata": metadata, "spec": spec})
}

fn slice(endpoints: Value) -> Value {
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": "web-1", "namespace": "shop", "labels": labels},
        "ports": [{"name": "", "port": 8080}]})
}

fn endpoint(address: &str, node: &str, more: Value) -> Value {
    let mut value = json!({"addresses": [address], "nodeName": node});
    value
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    value
}

/// Node `a`, with an address beside those of its Node resource.
fn own() -> ServiceNode {
    let node = ServiceNode::new(NodeName::from("a"), ServiceSettings::default());
    ServiceNode {
        addresses: ["10.0.0.1", "fd00::1", "172.16.0.1", "127.0.0.1"]
            .map(|address| address.parse().unwrap())
            .into(),
        ..node
    }
}

/// The table of a node that starts with these documents.
fn table(documents: &[Value]) -> (ServiceTable, Kernel) {
    table_of(&own(), documents)
}

fn table_of(own: &ServiceNode, documents: &[Value]) -> (ServiceTable, Kernel) {
    let mut table = ServiceTable::default();
    let mut kernel = Kernel::default();
    assert_eq!(table.follow(&snapshot(documents), own), None);
    kernel.run(&table.adopt(None));
    (table, kernel)
}

fn map<'a>(kernel: &'a Kernel, set: &str) -> BTreeMap<&'a str, &'a str> {
    let of = kernel.elements.iter().filter(|((of, _), _)| of == set);
    of.map(|((_, key), data)| (key.as_str(), data.as_deref().unwrap_or_default()))
        .collect()
}

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

/// A cluster address before external ones and these before node ports, then the older Service: a
/// newcomer takes nothing.
#[test]
fn of_several_services_with_one_address_kind_and_age_decide() {
    let of = |name: &str, created: &str, uid: &str, spec: Value| {
        let mut document = service(spec);
        let mut metadata = json!({"name": name, "namespace": "shop", "uid": uid});
        if !created.is_empty() {
            metadata["creationTimestamp"] = json!(created);
        }
        document["metadata"] = metadata;
        document
    };
    let cluster = || json!({"clusterIP": "192.0.2.1", "clusterIPs": ["192.0.2.1"]});
    let external = || json!({"clusterIP": "10.96.0.11", "clusterIPs": ["10.96.0.11"], "externalIPs": ["192.0.2.1"]});
    let node_port = || json!({"clusterIP": "10.96.0.12", "clusterIPs": ["10.96.0.12"], "type": "NodePort", "ports": [{"port": 1, "nodePort": 30080}]});
    let here = || json!({"clusterIP": "10.96.0.13", "clusterIPs": ["10.96.0.13"], "externalIPs": ["10.0.0.1"], "ports": [{"port": 30080}]});
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z");
    for (has, loses) in [
        (
            of("zz", new, "z", cluster()),
            of("aa", old, "a", external()),
        ),
        (of("zz", new, "z", here()), of("aa", old, "a", node_port())),
        (
            of("zz", old, "z", external()),
            of("aa", new, "a", external()),
        ),
        (
            of("zz", old, "a", external()),
            of("aa", old, "b", external()),
        ),
        (
            of("zz", new, "z", external()),
            of("aa", "", "a", external()),
        ),
        (
            of("zz", new, "z", external()),
            of("aa", "yesterday", "a", external()),
        ),
    ] {
        let documents = [loses.clone(), has.clone()];
        let (mut table, mut kernel) = table(&documents[1..]);
        let change = table.follow(&snapshot(&documents), &own()).unwrap();
        kernel.run(&change);
        for address in ["192.0.2.1", "10.0.0.1"] {
            let all = table.entries();
            let found = all.iter().find(|(at, _)| at.address.to_string() == address);
            assert!(
                found.is_none_or(|(_, entry)| entry.service == "shop/zz"),
                "{documents:?}"
            );
        }
        let mut problems = table.problems();
        problems.retain(|p| !p.subject.contains(" 10.96."));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].code, "services.conflict");
        let reason = &problems[0].reason;
        assert!(
            reason.starts_with("shop/zz (") && reason.contains("; shop/aa ("),
            "{reason}"
        );
        let (_, anew) = self::table(&documents);
        assert_eq!(kernel.content(), anew.content());
    }
}

#[test]
fn two_services_with_one_address_are_a_problem_and_the_first_has_it() {
    let mut second = service(json!({}));
    second["metadata"]["name"] = json!("zzz");
    let (mut table, mut kernel) = table(&[service(json!({})), second.clone()]);
    let owners: BTreeSet<_> = table
        .entries()
        .values()
        .map(|e| e.service.clone())
        .collect();
    assert_eq!(owners, ["shop/web".to_owned()].into());
    assert_eq!(table.problems()[0].code, "services.conflict");
    let change = table.follow(&snapshot(&[second]), &own()).unwrap();
    kernel.run(&change);
    let owners: BTreeSet<_> = table
        .entries()
        .values()
        .map(|e| e.service.clone())
        .collect();
    assert_eq!(owners, ["shop/zzz".to_owned()].into());
    assert_eq!(table.problems(), []);
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

/// SVC-2.
#[test]
fn an_endpoint_more_or_less_is_a_handful_of_elements() {
    let all: Vec<Value> = (1..=200)
        .map(|n| endpoint(&format!("10.244.1.{n}"), "b", json!({})))
        .collect();
    let (mut table, mut kernel) = table(&[service(json!({})), slice(json!(all))]);
    let mut fewer = all.clone();
    fewer.remove(17);
    for endpoints in [fewer, all] {
        let documents = [service(json!({})), slice(json!(endpoints))];
        let change = table.follow(&snapshot(&documents), &own()).unwrap();
        // The verdict, and the endpoint that goes or moves, each old and new.
        let named = kernel.run(&change);
        assert!(named <= 5, "{named} elements: {:?}", change.transactions);
    }
}

/// Where clients keep their endpoints, another endpoint changes no chain, and needs no program.
#[test]
fn another_endpoint_of_clients_that_keep_theirs_is_elements_alone() {
    let of = |last: u8| {
        let all = [1, 2, last].map(|n| endpoint(&format!("10.244.1.{n}"), "b", json!({})));
        let spec = json!({"sessionAffinity": "ClientIP"});
        [service(spec), slice(json!(all))]
    };
    let (mut table, mut kernel) = table(&of(3));
    let change = table.follow(&snapshot(&of(4)), &own()).unwrap();
    kernel.run(&change);
    assert!(!change.breaks_seal);
    let edits = change.transactions.iter().map(|of| of.edits.is_some());
    assert_eq!(
        edits.collect::<Vec<_>>(),
        [true],
        "{:?}",
        change.transactions
    );
    let looked_at: Vec<_> = change.clients.keys().collect();
    assert_eq!(looked_at, ["clients4/shop/web//tcp"]);
}

/// Names of chains that pick one of several endpoints.
fn picks(kernel: &Kernel) -> Vec<&str> {
    let names = kernel.chains.keys().map(String::as_str);
    names.filter(|name| name.starts_with("pick-")).collect()
}

#[test]
fn chains_that_pick_among_no_services_endpoints_go() {
    let of = |count: u8| {
        let all = (1..=count).map(|n| endpoint(&format!("10.244.1.{n}"), "b", json!({})));
        snapshot(&[
            service(json!({})),
            slice(json!(all.collect::<Vec<Value>>())),
        ])
    };
    let (mut table, mut kernel) = table(&[service(json!({}))]);
    let mut follow = |kernel: &mut Kernel, snapshot: &Snapshot| {
        let change = table.follow(snapshot, &own()).unwrap();
        let last = change.transactions.last().cloned().unwrap_or_default();
        let last = last.script;
        assert!(!last.contains("element") || !last.contains("delete chain"));
        kernel.run(&change);
        change.breaks_seal
    };
    // However many endpoints there have been, the table holds few chains.
    for count in 1..=100 {
        follow(&mut kernel, &of(count));
        assert!(picks(&kernel).len() <= 2, "{:?}", picks(&kernel));
    }
    // A number that comes back is elements alone.
    for count in [99, 100, 99, 100] {
        assert!(!follow(&mut kernel, &of(count)), "{count}");
    }
    // Those of Services that are gone go with the next change of chains, or with the process.
    follow(&mut kernel, &snapshot(&[]));
    let mut next = kernel.clone();
    follow(&mut next, &of(7));
    assert_eq!(picks(&next), ["pick-endpoints-7"]);
    let mut later = ServiceTable::default();
    assert!(later.follow(&snapshot(&[]), &own()).is_none());
    kernel.run(&later.adopt(Some(&kernel.listing())));
    assert_eq!(picks(&kernel), [""; 0]);
}

#[test]
fn what_nftables_prints_is_read_back() {
    let text = "table inet caracal-services {
\tmap endpoints4-udp {
\t\ttypeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport
\t\telements = { 10.96.0.1 . udp . 53 . 1 : 10.2.0.9 . 5353,
\t\t\t     10.96.0.1 . udp . 53 . 0 : 10.2.0.1 . 5353 }
\t}

\tset pods4 {
\t\ttype ipv4_addr
\t\tflags interval
\t\telements = { 10.0.0.0/8 }
\t}
\tmap clients4/shop/web//tcp {
\t\telements = { 10.0.0.1 timeout 3h expires 2h : 10.2.0.9 . 80 }
\t}
\tchain pick-endpoints-2 {
\t}
}";
    let listed = Listed::parse(text);
    assert_eq!(listed.elements.len(), 3);
    assert!(listed.chains.contains("pick-endpoints-2") && !listed.is_ours());
    let address = super::ServiceAddress::of_key("10.96.0.1 . udp . 53").unwrap();
    let (order, here) = listed.order(&address);
    let order: Vec<String> = order.iter().map(ToString::to_string).collect();
    assert_eq!(order, ["10.2.0.1 . 5353", "10.2.0.9 . 5353"]);
    assert_eq!(here, []);
    let clients = "map inet x y {\nelements = { 10.0.0.1 timeout 3h expires 2h : 10.2.0.9 . 80,
        10.0.0.2 timeout 3h expires 1s : 10.2.0.8 . 80 }\n}";
    let allowed = super::ServiceTarget::of_value("10.2.0.8 . 80").unwrap();
    assert_eq!(stray_clients(clients, &[allowed].into()), ["10.0.0.1"]);
}

/// A Service or slice among few, so that histories meet.
fn documents() -> impl Strategy<Value = Vec<Value>> {
    let word = |a: &'static str, b: &'static str| prop_oneof![Just(a), Just(b)];
    let service = (
        0..3_u8,
        word("Cluster", "Local"),
        word("Cluster", "Local"),
        word("None", "ClientIP"),
        0..4_u8,
        any::<bool>(),
    )
        .prop_map(|(name, internal, external, affinity, kind, ranged)| {
            let mut document = service(json!({
                "clusterIP": format!("10.96.0.{}", 10 + name / 2),
                "clusterIPs": [format!("10.96.0.{}", 10 + name / 2), "fd00:96::10"],
                "type": "LoadBalancer",
                "internalTrafficPolicy": internal,
                "externalTrafficPolicy": external,
                "sessionAffinity": affinity,
                "externalIPs": (0..kind).map(|n| format!("192.0.2.{n}")).collect::<Vec<_>>(),
                "loadBalancerSourceRanges": if ranged { vec!["203.0.113.0/24"] } else { vec![] },
                "ports": [{"name": "p", "port": 80, "nodePort": 30080}, {"name": "q", "port": 81}],
            }));
            document["metadata"]["name"] = json!(format!("web{name}"));
            document["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
            document
        });
    let endpoint = (1..8_u8, word("a", "b"), any::<bool>(), any::<bool>()).prop_map(
        |(n, node, ready, terminating)| {
            let conditions = json!({"ready": ready, "serving": true, "terminating": terminating});
            endpoint(
                &format!("10.244.0.{n}"),
                node,
                json!({"conditions": conditions}),
            )
        },
    );
    let slice = (0..3_u8, 0..3_u8, prop::collection::vec(endpoint, 0..6)).prop_map(
        |(name, of, endpoints)| {
            let mut document = slice(json!(endpoints));
            document["metadata"]["name"] = json!(format!("slice{name}"));
            document["metadata"]["labels"] =
                json!({"kubernetes.io/service-name": format!("web{of}")});
            document["ports"] =
                json!([{"name": "p", "port": 8080}, {"name": "q", "port": 8081 + u32::from(of)}]);
            document
        },
    );
    prop::collection::vec(prop_oneof![service, slice], 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// SVC-1 and SVC-3.
    #[test]
    fn any_history_gives_the_table_of_a_new_plan(
        history in prop::collection::vec((documents(), any::<bool>()), 1..8)
    ) {
        let me = own();
        let mut ours = ServiceTable::default();
        let mut kernel = Kernel::default();
        ours.follow(&snapshot(&[]), &me);
        kernel.run(&ours.adopt(None));
        for (documents, restart) in history {
            let wanted = snapshot(&documents);
            if restart {
                let listing = kernel.listing();
                ours = ServiceTable::default();
                prop_assert!(ours.follow(&wanted, &me).is_none());
                kernel.run(&ours.adopt(Some(&listing)));
            } else {
                let change = ours.follow(&wanted, &me).unwrap();
                kernel.run(&change);
            }
            let (mut fresh, anew) = table(&documents);
            let known = |name: &str| anew.chains.contains_key(name) || name.starts_with("pick-");
            let mut content = kernel.content();
            // Of what went while nobody looked empty chains and maps may be left.
            content.chains.retain(|name, rules| known(name) || !rules.is_empty());
            let mut wanted_content = anew.content();
            content.maps.retain(|map| wanted_content.maps.contains(map));
            wanted_content.maps.retain(|map| content.maps.contains(map));
            prop_assert_eq!(&content.elements, &wanted_content.elements);
            for (name, rules) in &wanted_content.chains {
                prop_assert_eq!(Some(rules), content.chains.get(name));
            }
            // What is there is not written again.
            fresh.doubt();
            prop_assert!(fresh.follow(&wanted, &me).is_none());
            let again = fresh.adopt(Some(&kernel.listing()));
            let elements = again.transactions.iter();
            let elements = elements.filter(|of| of.script.contains(" element ")).count();
            prop_assert_eq!(elements, 0, "{:?}", again.transactions);
        }
    }
}
