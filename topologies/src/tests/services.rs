//! Service addresses: whose, where, and under which policy.

use super::cluster::{THREE, snapshot};
use super::*;
use crate::services::{EXCLUDE_LABEL, Services};

const RANGES: &str = "
kind: BGPConfiguration
metadata: {name: default}
spec:
  serviceClusterIPs: [{cidr: 10.96.0.0/12}]
  serviceExternalIPs: [{cidr: 192.0.2.0/24}, {cidr: 203.0.113.7/32}]
  serviceLoadBalancerIPs: [{cidr: 198.51.100.0/24}]
";

const SERVICES: &str = "
{apiVersion: v1, kind: Service, metadata: {name: local, namespace: n}, spec: {type: LoadBalancer,
  clusterIPs: [10.96.0.1, 'fd00::9'], externalIPs: [192.0.2.1, 172.16.0.1], externalTrafficPolicy: Local},
  status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {hostname: x}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: wide, namespace: n}, spec: {type: LoadBalancer,
  clusterIP: 10.96.0.2, externalIPs: [192.0.2.2, 203.0.113.7]}, status: {loadBalancer: {ingress: [{ip: 198.51.100.2}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: idle, namespace: n}, spec: {type: LoadBalancer, clusterIP: None},
  status: {loadBalancer: {ingress: [{ip: 198.51.100.3}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: alias, namespace: n}, spec: {type: ExternalName, externalIPs: [203.0.113.7]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: wide, namespace: n}, subsets: [{addresses: [{ip: 10.244.0.1, nodeName: b}]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s, namespace: n, labels: {kubernetes.io/service-name: local}},
  endpoints: [{nodeName: a, conditions: {ready: true}}, {nodeName: b, conditions: {ready: false}}, {nodeName: c}]}
";

fn routes(node: &str, texts: &[&str]) -> (Vec<String>, Vec<String>) {
    let snapshot = snapshot(&[&[THREE, RANGES, SERVICES][..], texts].concat());
    let (services, faults) = Services::from_snapshot(&snapshot);
    assert_eq!(faults, []);
    let routes = services.routes(&snapshot, &node.into());
    let text = |set: &BTreeSet<Prefix>| set.iter().map(ToString::to_string).collect();
    // The speaker's plan says the same, of the families in which the node has an address.
    let planned = plan(&snapshot, &node.into(), &PlanOptions::default());
    let v4 = |p: &&Prefix| p.family() == Family::Ipv4;
    let originated: BTreeSet<Prefix> = planned.config.originate.keys().copied().collect();
    assert_eq!(
        originated,
        routes.announced.iter().filter(v4).copied().collect()
    );
    assert_eq!(planned.kernel.services, routes.rejected);
    (text(&routes.announced), text(&routes.rejected))
}

#[test]
fn ranges_and_what_the_local_policy_adds() {
    let ranges = [
        "10.96.0.0/12",
        "192.0.2.0/24",
        "198.51.100.0/24",
        "203.0.113.7/32",
    ];
    // Node b runs no ready endpoint of the service with the local policy.
    let (announced, rejected) = routes("b", &[]);
    assert_eq!(announced, ranges);
    assert_eq!(rejected, ranges);
    for node in ["a", "c"] {
        let (announced, _) = routes(node, &[]);
        let more: Vec<_> = announced
            .iter()
            .filter(|r| !ranges.contains(&r.as_str()))
            .collect();
        // Cluster addresses are not held against the ranges; external ones are.
        assert_eq!(
            more,
            [
                "10.96.0.1/32",
                "192.0.2.1/32",
                "198.51.100.1/32",
                "fd00::9/128"
            ]
        );
    }
}

#[test]
fn a_slice_counts_where_its_address_type_is_among_the_families_of_the_service() {
    let service = |families: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: f, namespace: n}}, spec: {{clusterIPs: [10.96.0.7],
              ipFamilies: [{families}], externalTrafficPolicy: Local}}}}"
        )
    };
    let slice = |of: &str, node: &str| {
        format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {of}, namespace: n,
              labels: {{kubernetes.io/service-name: f}}}}, addressType: {of}, endpoints: [{{nodeName: {node}}}]}}"
        )
    };
    let (v4, v6, names) = (slice("IPv4", "a"), slice("IPv6", "b"), slice("FQDN", "c"));
    let announces = |node: &str, service: &str| {
        let (announced, _) = routes(node, &[&v6, &names, &v4, service]);
        announced.contains(&"10.96.0.7/32".to_owned())
    };
    let on = |service: &str| ["a", "b", "c"].map(|node| announces(node, service));
    assert_eq!(on(&service("IPv4")), [true, false, false]);
    assert_eq!(on(&service("IPv6, IPv4")), [true, true, false]);
    // Without the field the cluster addresses say which families the service has.
    assert_eq!(on(&service("")), [true, false, false]);
}

#[test]
fn nothing_of_a_headless_service_is_announced() {
    let headless = |field: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: h, namespace: n}}, spec: {{type: LoadBalancer, {field},
              externalIPs: [192.0.2.9, 203.0.113.7], externalTrafficPolicy: Local}},
              status: {{loadBalancer: {{ingress: [{{ip: 198.51.100.9}}]}}}}}}"
        )
    };
    let slice =
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: h, namespace: n,
        labels: {kubernetes.io/service-name: h}}, addressType: IPv4, endpoints: [{nodeName: b}]}";
    let spec = RANGES.to_owned() + "  serviceLoadBalancerAggregation: Disabled\n";
    for field in ["clusterIP: None", "clusterIPs: [None]"] {
        for ranges in [RANGES, &spec] {
            let with = routes("b", &[ranges, slice, &headless(field)]);
            assert_eq!(with, routes("b", &[ranges, slice]), "{field}");
        }
    }
    // The same one with an address is announced: it is the missing one that silences it.
    let (announced, _) = routes("b", &[slice, &headless("clusterIP: 10.96.0.8")]);
    assert!(announced.contains(&"192.0.2.9/32".to_owned()));
    assert!(announced.contains(&"198.51.100.9/32".to_owned()));
}

#[test]
fn without_aggregation_a_load_balancer_goes_where_endpoints_are() {
    let spec = RANGES.to_owned() + "  serviceLoadBalancerAggregation: Disabled\n";
    let (announced, rejected) = routes("b", &[&spec]);
    assert!(announced.contains(&"198.51.100.2/32".to_owned()));
    for absent in ["198.51.100.0/24", "198.51.100.1/32", "198.51.100.3/32"] {
        assert!(!announced.contains(&absent.to_owned()), "{absent}");
    }
    assert!(rejected.contains(&"198.51.100.0/24".to_owned()));
    assert!(
        routes("a", &[&spec])
            .0
            .contains(&"198.51.100.1/32".to_owned())
    );
}

#[test]
fn a_node_that_is_excluded_announces_nothing_and_still_rejects() {
    let node = format!(
        "{{kind: Node, metadata: {{name: a, labels: {{{EXCLUDE_LABEL}: 'true'}}}}, spec: {{bgp: {{ipv4Address: 10.0.0.9/24}}}}}}"
    );
    let (announced, rejected) = routes("a", &[&node]);
    assert!(announced.is_empty());
    assert!(rejected.contains(&"10.96.0.0/12".to_owned()));
}

#[test]
fn endpoints_carry_the_orchestrators_name() {
    let node = "{kind: Node, metadata: {name: x}, spec: {bgp: {ipv4Address: 10.0.0.77/24}, orchRefs: [{nodeName: a, orchestrator: k8s}]}}";
    assert!(routes("x", &[node]).0.contains(&"192.0.2.1/32".to_owned()));
}

#[test]
fn what_is_no_address_is_reported() {
    let text = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {externalIPs: [1.2.3]}}";
    let planned = plan(
        &snapshot(&[THREE, RANGES, text]),
        &"a".into(),
        &PlanOptions::default(),
    );
    assert_eq!(planned.problems[0].subject, "Service default/s");
    assert!(
        planned.problems[0]
            .reason
            .contains("\"1.2.3\" is no address")
    );
}

#[test]
fn secrets() {
    let text = "{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {a: aHVudGVyMg==, b: '!', c: YQ}, stringData: {d: plain}}";
    let resources = resources_from_yaml(text).unwrap();
    let all: Vec<_> = resources
        .secrets
        .iter()
        .map(|(n, p)| (n.key.as_str(), p.0.as_str()))
        .collect();
    assert_eq!(all, [("a", "hunter2"), ("c", "a"), ("d", "plain")]);
    assert_eq!(resources.unknown.len(), 1);
}

#[test]
fn service_routes_have_our_next_hop_priority_and_communities() {
    let communities = "
kind: BGPConfiguration
metadata: {name: default}
spec:
  serviceExternalIPs: [{cidr: 192.0.2.0/24}]
  communities: [{name: public, value: '64512:7'}]
  prefixAdvertisements: [{cidr: 192.0.2.0/24, communities: [public]}]
";
    let snapshot = snapshot(&[THREE, communities, SERVICES]);
    let config = plan(&snapshot, &"a".into(), &PlanOptions::default()).config;
    let external: Prefix = "192.0.2.1/32".parse().unwrap();
    for prefix in ["192.0.2.0/24".parse().unwrap(), external] {
        let route = &config.originate[&prefix];
        assert_eq!(route.next_hop, Some([10, 0, 0, 9].into()));
        assert_eq!(route.local_pref, Some(CALICO_LOCAL_PREF));
        let originated: Vec<_> = route.communities.iter().map(ToString::to_string).collect();
        assert_eq!(originated, ["64512:7"]);
    }
    // Without ranges nothing of a service is announced, whatever there is.
    let none = super::cluster::snapshot(&[THREE, SERVICES]);
    let config = plan(&none, &"a".into(), &PlanOptions::default()).config;
    assert!(config.originate.is_empty());
}

/// Two Services with one external address, of which only the first one's endpoints are on node a,
/// and only the second one's on node b.
fn two(fields: [&str; 2], specs: [&str; 2]) -> Vec<String> {
    let service = |name: &str, node: &str, fields: &str, spec: &str, at: &str| {
        [
            format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: n, {fields}}}, spec: {{{spec},
                  externalTrafficPolicy: Local}}, status: {{loadBalancer: {{ingress: [{{ip: {at}}}]}}}}}}"
            ),
            format!(
                "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, namespace: n,
                  labels: {{kubernetes.io/service-name: {name}}}}}, endpoints: [{{nodeName: {node}}}]}}"
            ),
        ]
    };
    [
        service("zebra", "a", fields[0], specs[0], "198.51.100.20"),
        service("yak", "b", fields[1], specs[1], "198.51.100.21"),
    ]
    .concat()
}

/// Whether node a, b announces an address.
fn announced_by(texts: &[String], address: &str) -> [bool; 2] {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    ["a", "b"].map(|node| routes(node, &texts).0.contains(&address.to_owned()))
}

const OLDER: &str = "creationTimestamp: '2026-01-01T00:00:00Z'";
const NEWER: &str = "creationTimestamp: '2026-01-02T00:00:00Z'";

#[test]
fn an_address_is_announced_of_the_service_that_is_translated() {
    let spec = |cluster: &str, port: &str| {
        format!("clusterIPs: [{cluster}], externalIPs: [192.0.2.20], ports: [{port}]")
    };
    let http = spec("10.96.0.20", "{port: 80}");
    let also = spec("10.96.0.21", "{port: 80, protocol: TCP}");
    let shared = "192.0.2.20/32";
    let on = |fields, second: &str| announced_by(&two(fields, [&http, second]), shared);
    // The older one has it, whatever the names; of no age is youngest.
    assert_eq!(on([OLDER, NEWER], &also), [true, false]);
    assert_eq!(on([NEWER, OLDER], &also), [false, true]);
    assert_eq!(on([OLDER, ""], &also), [true, false]);
    assert_eq!(on(["uid: a", "uid: b"], &also), [true, false]);
    // Who has one port of it is sent packets.
    for port in [
        "{port: 443}",
        "{port: 80, protocol: UDP}",
        "{name: a, port: 80}, {name: b, port: 443}",
    ] {
        assert_eq!(on([OLDER, NEWER], &spec("10.96.0.21", port)), [true, true]);
    }
    // What is translated by nobody here claims nothing: headless for the family, another proxy's.
    let v6 = spec("'fd00::21'", "{port: 80}");
    assert_eq!(on([NEWER, OLDER], &v6), [true, true]);
    let other = format!("{OLDER}, labels: {{service.kubernetes.io/service-proxy-name: x}}");
    assert_eq!(on([NEWER, &other], &also), [true, true]);
    // What the loser has alone stays announced.
    let both = two([OLDER, NEWER], [&http, &also]);
    assert_eq!(announced_by(&both, "198.51.100.21/32"), [false, true]);
    assert_eq!(announced_by(&both, "10.96.0.21/32"), [false, true]);
}

#[test]
fn a_cluster_address_comes_before_an_external_one_of_an_older_service() {
    let mine = "clusterIPs: [10.96.0.20, 'fd00::20'], ports: [{port: 80}]";
    let theirs = "clusterIPs: [10.96.0.21, 'fd00::21'], ports: [{port: 80}]";
    let external = |address: &str| format!("{theirs}, externalIPs: ['{address}']");
    let ranges = "
kind: BGPConfiguration
metadata: {name: default}
spec:
  serviceClusterIPs: [{cidr: 10.96.0.0/12}, {cidr: 'fd00::/112'}]
  serviceExternalIPs: [{cidr: 10.96.0.0/12}, {cidr: 'fd00::/112'}]
";
    for address in ["10.96.0.20", "fd00::20"] {
        let mut texts = two([NEWER, OLDER], [mine, &external(address)]);
        texts.insert(0, ranges.to_owned());
        let prefix = Prefix::host(address.parse().unwrap()).to_string();
        assert_eq!(announced_by(&texts, &prefix), [true, false], "{address}");
    }
}

#[test]
fn an_address_that_is_not_announced_for_a_service_is_named() {
    let spec = "clusterIPs: [10.96.0.20], externalIPs: [192.0.2.20], ports: [{port: 80}]";
    let other = "clusterIPs: [10.96.0.21], externalIPs: [192.0.2.20], ports: [{port: 80}]";
    let texts = two([OLDER, NEWER], [spec, other]);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let snapshot = snapshot(&[&[THREE, RANGES][..], &texts].concat());
    let problems = |node: &str| plan(&snapshot, &node.into(), &PlanOptions::default()).problems;
    assert_eq!(problems("a"), []);
    let [found] = &problems("b")[..] else {
        panic!("{:?}", problems("b"));
    };
    assert_eq!(found.code, ProblemCode::ServicesConflict);
    assert_eq!(found.subject, "Service default/yak 192.0.2.20");
    assert_eq!(
        found.reason,
        "it is not announced for this Service: default/zebra has all its ports there, and it is the older one"
    );
}

/// What no node would translate, and what is a node's own: whoever follows the route would find the
/// wrong machine.
#[test]
fn what_is_no_services_address_is_announced_for_none() {
    let cluster = "
kind: IPPool
metadata: {name: p6}
spec: {cidr: 'fd00:10::/64'}
---
kind: Node
metadata: {name: d}
spec:
  bgp: {ipv4Address: 10.0.0.12/24, ipv6Address: 'fd00::12/64', ipv4IPIPTunnelAddr: 192.0.2.50}
  addresses: [{address: 192.0.2.51, type: ExternalIP}, {address: 'fd00::51', type: InternalIP}]
";
    let node = "it is the address of a node";
    let refused = [
        ("10.0.0.12", node),
        ("192.0.2.50", node),
        ("192.0.2.51", node),
        ("fd00::12", node),
        ("fd00::51", node),
        ("10.244.9.9", "it lies in the pool 10.244.0.0/16"),
        ("fd00:10::9", "it lies in the pool fd00:10::/64"),
        ("127.0.0.1", "it is a loopback address"),
        ("::1", "it is a loopback address"),
        ("169.254.1.1", "it is a link-local address"),
        ("fe80::1", "it is a link-local address"),
        ("224.0.0.9", "it is a multicast address"),
        ("ff02::1", "it is a multicast address"),
        ("0.0.0.0", "it is no address of a machine"),
    ];
    let free = [("192.0.2.52", ""), ("fd00::52", "")];
    for (address, reason) in refused.into_iter().chain(free) {
        let range = Prefix::host(address.parse().unwrap());
        let ranges = format!(
            "
kind: BGPConfiguration
metadata: {{name: default}}
spec:
  serviceExternalIPs: [{{cidr: '{range}'}}]
  serviceLoadBalancerIPs: [{{cidr: '{range}'}}]
  serviceLoadBalancerAggregation: Disabled
"
        );
        let external = format!("externalIPs: ['{address}']");
        let balanced = format!("}}, status: {{loadBalancer: {{ingress: [{{ip: '{address}'}}]}}");
        for fields in [external, balanced] {
            let service = format!(
                "{{apiVersion: v1, kind: Service, metadata: {{name: s}}, spec: {{clusterIPs: [10.96.0.9, 'fd01::9'],
                  ports: [{{port: 80}}], type: LoadBalancer, {fields}}}}}"
            );
            let snapshot = snapshot(&[THREE, cluster, &ranges, &service]);
            let (services, faults) = Services::from_snapshot(&snapshot);
            assert_eq!(faults, []);
            let routes = services.routes(&snapshot, &"d".into());
            let planned = plan(&snapshot, &"d".into(), &PlanOptions::default());
            let announced: BTreeSet<Prefix> = planned.config.originate.keys().copied().collect();
            assert_eq!(announced, routes.announced, "{service}");
            assert_eq!(planned.kernel.services, routes.rejected, "{service}");
            let found = planned
                .problems
                .iter()
                .map(|p| (p.code, &*p.subject, &*p.reason));
            let found: Vec<_> = found.collect();
            if reason.is_empty() {
                assert_eq!((found, announced.contains(&range)), (vec![], true));
                continue;
            }
            let subject = format!("Service default/s {address}");
            let said = format!("it is not announced for this Service: {reason}");
            assert_eq!(
                (found, announced.contains(&range)),
                (
                    vec![(ProblemCode::ServicesRefused, &*subject, &*said)],
                    false
                )
            );
        }
    }
}

/// An address in a pool is a Service's when the pool is gone.
#[test]
fn an_address_of_a_pool_is_announced_once_the_pool_is_gone() {
    let ranges = "
kind: BGPConfiguration
metadata: {name: default}
spec: {serviceExternalIPs: [{cidr: 10.244.9.9/32}]}
";
    let service =
        "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIP: 10.96.0.9,
      externalIPs: [10.244.9.9], ports: [{port: 80}]}}";
    let mut snapshot = snapshot(&[THREE, ranges, service]);
    let mut planner = BgpPlanner::default();
    let mut announces = |snapshot: &Snapshot| {
        let (node, options) = ("a".into(), PlanOptions::default());
        planner.plan(snapshot, &node, &options);
        let planned = planner.planned().unwrap();
        assert_eq!(planned, &plan(snapshot, &node, &options));
        !planned.config.originate.is_empty()
    };
    assert!(!announces(&snapshot));
    let path = caracal_model::Key::resource(caracal_model::Kind::IpPool, "p").to_path();
    let revision = snapshot.revision + 1;
    snapshot.apply(&path, None, revision);
    assert!(announces(&snapshot));
}

/// Of the datastore the way of this node alone is known; a cluster address may lead to it.
#[test]
fn the_datastores_address_is_announced_for_no_service_that_chose_it() {
    let ranges = "
kind: BGPConfiguration
metadata: {name: default}
spec:
  serviceClusterIPs: [{cidr: 10.96.0.9/32}]
  serviceExternalIPs: [{cidr: 192.0.2.9/32}, {cidr: 'fd00::9/128'}]
";
    let service = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {clusterIPs: [10.96.0.9, 'fd01::9'],
      externalIPs: [192.0.2.9, 'fd00::9'], ports: [{port: 80}]}}";
    let node = "{kind: Node, metadata: {name: d}, spec: {bgp: {ipv4Address: 10.0.0.12/24, ipv6Address: 'fd00::12/64'}}}";
    let snapshot = snapshot(&[THREE, ranges, service, node]);
    let mut planner = BgpPlanner::default();
    let mut planned = |datastore: &[&str]| {
        let options = PlanOptions {
            datastore: datastore.iter().map(|text| text.parse().unwrap()).collect(),
            ..PlanOptions::default()
        };
        planner.plan(&snapshot, &"d".into(), &options);
        let planned = planner.planned().unwrap();
        assert_eq!(planned, &plan(&snapshot, &"d".into(), &options));
        let announced = planned.config.originate.keys().map(ToString::to_string);
        let said = planned
            .problems
            .iter()
            .map(|p| format!("{} {}", p.subject, p.reason));
        (announced.collect::<Vec<_>>(), said.collect::<Vec<_>>())
    };
    let all = ["10.96.0.9/32", "192.0.2.9/32", "fd00::9/128"].map(str::to_owned);
    assert_eq!(planned(&[]), (all.to_vec(), vec![]));
    let said = |address: &str| {
        format!(
            "Service default/s {address} it is not announced for this Service: it is the address of the datastore"
        )
    };
    assert_eq!(
        planned(&["192.0.2.9", "fd00::9", "10.96.0.9"]),
        (all[..1].to_vec(), vec![said("192.0.2.9"), said("fd00::9")])
    );
    assert_eq!(planned(&["192.0.2.8"]), (all.to_vec(), vec![]));
}
