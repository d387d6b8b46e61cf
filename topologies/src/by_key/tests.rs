//! After any history of changes, what is planned by key is what is planned whole.

#![allow(clippy::unwrap_used)]

use caracal_model::{
    AffinityState, AllocationAttribute, Block, BlockAffinity, BlockOwner, DocumentKind, Key,
};
use proptest::prelude::*;

use super::*;
use crate::{plan, resources_from_yaml};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A service has the address of a workload: the pool was for pods before.
const CLUSTER: &str = "
kind: IPPool
metadata: {name: p}
spec: {cidr: 10.244.0.0/16, allowedUses: [LoadBalancer]}
---
kind: BGPConfiguration
metadata: {name: default}
spec:
  serviceClusterIPs: [{cidr: 10.96.0.0/12}]
  serviceExternalIPs: [{cidr: 10.244.1.1/32}, {cidr: 192.0.2.0/24}, {cidr: 10.0.0.0/24}, {cidr: 127.0.0.0/8}]
  serviceLoadBalancerIPs: [{cidr: 198.51.100.0/24}]
  prefixAdvertisements: [{cidr: 10.244.1.0/24, communities: ['1:1']}]
---
kind: BGPPeer
metadata: {name: r}
spec: {peerIP: 192.0.2.1, asNumber: 65000}
---
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 10.0.0.1/24}}
---
kind: Node
metadata: {name: b}
spec: {bgp: {ipv4Address: 10.0.0.2/24}}
---
{apiVersion: v1, kind: Service, metadata: {name: wide, namespace: n},
  spec: {type: ClusterIP, clusterIP: 10.96.0.2, externalIPs: [10.244.1.1]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: wide, namespace: n},
  subsets: [{addresses: [{ip: 10.244.0.1, nodeName: b}]}]}
";

/// One change of the datastore; numbers choose what and how.
#[derive(Clone, Debug)]
enum Step {
    Block(u8, u8, Vec<(u8, u8)>),
    Affinity(u8, u8, u8),
    Node(u8, u8),
    Pool(u8, u8),
    Peer(u8),
    Workload(u8, u8),
    Filter(u8),
    Configuration(u8),
    Service(u8, u8, u8),
    Endpoints(u8, u8),
    Slice(u8, u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<u8>;
    let guests = proptest::collection::vec((any(), any()), 0..3);
    prop_oneof![
        8 => (any(), any(), guests).prop_map(|(at, owner, guests)| Step::Block(at, owner, guests)),
        6 => (any(), any(), any()).prop_map(|(at, owner, how)| Step::Affinity(at, owner, how)),
        4 => (any(), any()).prop_map(|(at, how)| Step::Node(at, how)),
        2 => (any(), any()).prop_map(|(at, how)| Step::Pool(at, how)),
        1 => any().prop_map(Step::Peer),
        2 => (any(), any()).prop_map(|(at, how)| Step::Workload(at, how)),
        1 => any().prop_map(Step::Filter),
        1 => any().prop_map(Step::Configuration),
        8 => (any(), any(), any()).prop_map(|(at, how, of)| Step::Service(at, how, of)),
        2 => (any(), any()).prop_map(|(at, how)| Step::Endpoints(at, how)),
        6 => (any(), any(), any()).prop_map(|(at, of, how)| Step::Slice(at, of, how)),
    ]
}

/// Blocks of many addresses and of one, and one outside all pools.
fn block(at: u8) -> Prefix {
    let text = match at % 6 {
        n @ 0..=2 => format!("10.244.{n}.0/26"),
        3 => "10.244.1.1/32".to_owned(),
        4 => "10.245.0.0/26".to_owned(),
        _ => "fd00:10::/122".to_owned(),
    };
    text.parse().unwrap()
}

const SERVICES: [&str; 3] = ["wide", "far", "near"];

/// Of few addresses, so that they are contested, and some of which are none.
fn service(at: u8, how: u8, of: u8) -> String {
    let policy = ["Local", "Local", "Cluster"][usize::from(how % 3)];
    let kind = ["LoadBalancer", "LoadBalancer", "ExternalName"][usize::from(how / 3 % 5 / 2)];
    let external = [
        "192.0.2.1",
        "10.244.1.1",
        "192.0.2",
        "10.96.0.1",
        // A node's, and nobody's.
        "10.0.0.2",
        "127.0.0.1",
    ][usize::from(of % 6)];
    let (cluster, balanced, port) = (at % 3 + 1, of / 4 % 3, of / 16 % 2 + 80);
    let cluster = match how % 11 {
        10 => "None".to_owned(),
        _ => format!("10.96.0.{cluster}"),
    };
    format!(
        r#"{{"metadata":{{"name":"s","creationTimestamp":"2026-01-0{}T00:00:00Z"}},"spec":{{"type":"{kind}",
          "clusterIP":"{cluster}","externalIPs":["{external}"],"externalTrafficPolicy":"{policy}","ports":[{{"port":{port}}}]}},
          "status":{{"loadBalancer":{{"ingress":[{{"ip":"198.51.100.{balanced}"}}]}}}}}}"#,
        of / 32 % 3 + 1
    )
}

struct World {
    snapshot: Snapshot,
    planning: BgpPlanner,
    by_key: usize,
}

impl World {
    fn new() -> Self {
        let mut snapshot = Snapshot::default();
        let refused = resources_from_yaml(CLUSTER).unwrap().apply(&mut snapshot);
        assert_eq!(refused, []);
        Self {
            snapshot,
            planning: BgpPlanner::default(),
            by_key: 0,
        }
    }

    fn apply(&mut self, path: &str, value: Option<&str>) {
        let revision = self.snapshot.revision + 1;
        self.snapshot
            .apply(path, value.map(str::as_bytes), revision);
    }

    fn put(&mut self, kind: &str, name: &str, spec: Option<String>) {
        let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
        let name = name.rsplit('/').next().unwrap();
        let value = spec.map(|spec| {
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"x"}},"spec":{{{spec}}}}}"#)
        });
        self.apply(&path, value.as_deref());
    }

    fn document(&mut self, kind: DocumentKind, name: &str, value: Option<String>) {
        let (namespace, name) = ("n".to_owned(), name.to_owned());
        let key = Key::Document {
            kind,
            namespace,
            name,
        };
        self.apply(&key.to_path(), value.as_deref());
    }

    fn step(&mut self, step: &Step) {
        let owner = |n: u8| match n % 4 {
            3 => BlockOwner::Virtual("load-balancer".into()),
            n => BlockOwner::Host(NAMES[usize::from(n)].into()),
        };
        match step {
            Step::Block(at, how, _) if how % 7 == 6 => {
                self.apply(&Key::Block(block(*at)).to_path(), None);
            }
            Step::Block(at, how, guests) => {
                let mut block = Block::new(block(*at), Some(&owner(*how)), 1);
                for (ordinal, node) in guests {
                    let ordinal = usize::from(*ordinal) % block.allocations.len().min(3);
                    let node = NAMES[usize::from(node % 3)].to_owned();
                    block.allocations[ordinal] = Some(block.attributes.len());
                    block.unallocated.retain(|free| *free != ordinal);
                    block.attributes.push(AllocationAttribute {
                        secondary: [("node".to_owned(), node)].into(),
                        ..AllocationAttribute::default()
                    });
                }
                let key = Key::Block(block.cidr).to_path();
                let value = String::from_utf8(block.to_json()).unwrap();
                self.apply(&key, Some(&value));
            }
            Step::Affinity(at, who, how) => {
                let states = [AffinityState::Confirmed, AffinityState::Pending];
                let state = states.get(usize::from(how % 3));
                let value = state.map(|state| BlockAffinity::new(*state).to_json());
                let value = value.map(|value| String::from_utf8(value).unwrap());
                let key = Key::Affinity(owner(*who), block(*at)).to_path();
                self.apply(&key, value.as_deref());
            }
            Step::Node(at, how) => {
                let n = at % 3 + 1;
                let bgp = |address: &str| format!(r#""bgp":{{"ipv4Address":"{address}{n}/24"}}"#);
                // A service may have the address of its tunnel.
                let tunnel = r#","ipv4VXLANTunnelAddr":"192.0.2.1""#;
                let spec = match how % 7 {
                    0 => None,
                    1 => Some(r#""addresses":[]"#.to_owned()),
                    // Where pods are.
                    2 | 3 => Some(bgp("10.244.1.")),
                    4 => Some(bgp("10.0.0.") + tunnel),
                    _ => Some(bgp("10.0.0.")),
                };
                self.put("nodes", NAMES[usize::from(at % 3)], spec);
            }
            Step::Pool(at, how) => {
                let cidr = ["10.244.0.0/16", "10.244.1.0/24", "fd00:10::/64"][usize::from(at % 3)];
                let hidden = how % 3 == 1;
                let spec = format!(r#""cidr":"{cidr}","disableBGPExport":{hidden}"#);
                let spec = (how % 3 < 2).then_some(spec);
                self.put("ippools", &format!("p{}", at % 3), spec);
            }
            Step::Peer(how) => {
                let spec = r#""localWorkloadSelector":"all()","asNumber":65001"#;
                let spec = (how % 2 == 0).then(|| spec.to_owned());
                self.put("bgppeers", "w", spec);
            }
            Step::Workload(at, how) => {
                let address = format!("10.244.2.{}/32", how % 8);
                let spec =
                    format!(r#""node":"a","interfaceName":"cali{at}","ipNetworks":["{address}"]"#);
                let spec = (how % 4 > 0).then_some(spec);
                self.put("workloadendpoints", &format!("x/w{}", at % 2), spec);
            }
            Step::Filter(how) => {
                let values = [r#""exportV4":[{"action":"Accept"}]"#, r#""exportV4":7"#];
                let spec = values.get(usize::from(how % 3)).map(|v| (*v).to_owned());
                self.put("bgpfilters", "f", spec);
            }
            Step::Configuration(how) => {
                let lists = [
                    r#""serviceExternalIPs":[{"cidr":"192.0.2.0/24"}]"#,
                    r#""serviceLoadBalancerIPs":[{"cidr":"198.51.100.0/24"}],"serviceLoadBalancerAggregation":"Disabled""#,
                    r#""serviceClusterIPs":[{"cidr":"10.96.0.0/12"},{"cidr":"10.96.0.1/32"}]"#,
                ];
                let mesh = format!(r#","nodeToNodeMeshEnabled":{}"#, how % 8 < 4);
                let spec = lists
                    .get(usize::from(how % 4))
                    .map(|v| (*v).to_owned() + &mesh);
                self.put("bgpconfigurations", "default", spec);
            }
            Step::Service(at, how, of) => {
                let value = (how % 8 > 0).then(|| service(*at, *how, *of));
                self.document(DocumentKind::Service, SERVICES[usize::from(at % 3)], value);
            }
            Step::Endpoints(at, how) => {
                let node = NAMES[usize::from(how % 3)];
                let value = format!(
                    r#"{{"subsets":[{{"addresses":[{{"ip":"10.244.0.1","nodeName":"{node}"}}]}}]}}"#
                );
                let value = (how % 4 > 0).then_some(value);
                self.document(
                    DocumentKind::Endpoints,
                    SERVICES[usize::from(at % 3)],
                    value,
                );
            }
            Step::Slice(at, of, how) => {
                let (of, node) = (SERVICES[usize::from(of % 3)], NAMES[usize::from(how % 3)]);
                let family = if how % 5 == 4 { "IPv6" } else { "IPv4" };
                let ready = how % 7 < 5;
                let value = format!(
                    r#"{{"metadata":{{"labels":{{"kubernetes.io/service-name":"{of}"}}}},"addressType":"{family}",
                      "endpoints":[{{"nodeName":"{node}","conditions":{{"ready":{ready}}}}}]}}"#
                );
                let value = (how % 4 > 0).then_some(value);
                self.document(DocumentKind::EndpointSlice, &format!("s{}", at % 4), value);
            }
        }
    }

    fn routes_in(&self, range: &str) -> Vec<String> {
        let range: Prefix = range.parse().unwrap();
        let originate = &self.planning.planned().unwrap().config.originate;
        let inside = originate.keys().filter(|prefix| range.covers(prefix));
        inside.map(ToString::to_string).collect()
    }

    fn check(&mut self) {
        let (node, options) = ("a".into(), PlanOptions::default());
        let before = self.planning.planned().cloned();
        let replanned = self.planning.plan(&self.snapshot, &node, &options);
        let planned = self.planning.planned().unwrap();
        assert_eq!(planned, &plan(&self.snapshot, &node, &options));
        if let Replanned::Announcements(differs) = replanned {
            self.by_key += 1;
            assert_eq!(differs, before.as_ref() != Some(planned));
        }
    }
}

proptest! {
    #[test]
    fn after_any_history_by_key_is_whole(
        history in proptest::collection::vec(proptest::collection::vec(step(), 1..3), 1..25),
    ) {
        let mut world = World::new();
        world.check();
        for steps in &history {
            for step in steps {
                world.step(step);
            }
            world.check();
        }
    }
}

#[test]
fn blocks_and_workloads_are_planned_by_key() {
    let mut world = World::new();
    world.check();
    let service = "10.244.1.1/32";
    for (step, expected) in [
        (Step::Affinity(0, 0, 0), &["10.244.0.0/26", service][..]),
        (Step::Block(0, 0, vec![(1, 0)]), &["10.244.0.0/26", service]),
        // Borrowed, beside the service with the same address.
        (Step::Block(1, 1, vec![(1, 0)]), &["10.244.0.0/26", service]),
        (
            Step::Block(2, 1, vec![(2, 0)]),
            &["10.244.0.0/26", service, "10.244.2.2/32"],
        ),
        (
            Step::Block(1, 6, Vec::new()),
            &["10.244.0.0/26", service, "10.244.2.2/32"],
        ),
        (
            Step::Workload(1, 3),
            &["10.244.0.0/26", service, "10.244.2.2/32"],
        ),
        (Step::Block(2, 1, Vec::new()), &["10.244.0.0/26", service]),
        (Step::Affinity(0, 0, 1), &[service]),
        (Step::Affinity(1, 1, 0), &[service]),
    ] {
        let before = world.by_key;
        world.step(&step);
        world.check();
        assert_eq!(world.by_key, before + 1, "{step:?} was planned whole");
        assert_eq!(world.routes_in("10.244.0.0/16"), expected, "{step:?}");
    }
}

#[test]
fn services_and_their_endpoints_are_planned_by_key() {
    let mut world = World::new();
    world.check();
    let document = |fields: &str| {
        format!(
            r#"{{"metadata":{{"name":"s","creationTimestamp":"{fields}-01-01T00:00:00Z"}},"spec":{{"type":"ClusterIP","clusterIP":"10.96.0.9",
              "externalIPs":["192.0.2.1","192.0.2"],"externalTrafficPolicy":"Local","ports":[{{"port":80}}]}}}}"#
        )
    };
    let far = |world: &mut World, value| world.document(DocumentKind::Service, "far", value);
    let near = |world: &mut World, value| world.document(DocumentKind::Service, "near", value);
    let slice = |world: &mut World, node: Option<&str>| {
        let value = node.map(|node| {
            format!(
                r#"{{"metadata":{{"labels":{{"kubernetes.io/service-name":"far"}}}},"endpoints":[{{"nodeName":"{node}"}}]}}"#
            )
        });
        world.document(DocumentKind::EndpointSlice, "s", value);
    };
    type Change<'a> = &'a dyn Fn(&mut World);
    let steps: [(Change<'_>, &[&str], usize); 8] = [
        (&|w| far(w, Some(document("2025"))), &[], 1),
        (&|w| slice(w, Some("b")), &[], 1),
        (&|w| slice(w, Some("a")), &["192.0.2.1/32"], 1),
        // An older one has it, without endpoints here.
        (&|w| near(w, Some(document("2024"))), &[], 4),
        (&|w| slice(w, Some("b")), &[], 2),
        (&|w| slice(w, Some("a")), &[], 4),
        (&|w| near(w, None), &["192.0.2.1/32"], 1),
        (&|w| slice(w, None), &[], 1),
    ];
    for (n, (change, expected, problems)) in steps.into_iter().enumerate() {
        let before = world.by_key;
        change(&mut world);
        world.check();
        assert_eq!(world.by_key, before + 1, "{n} was planned whole");
        let mut routes = world.routes_in("192.0.2.0/24");
        assert_eq!(routes.remove(0), "192.0.2.0/24");
        assert_eq!(routes, expected, "{n}");
        let planned = world.planning.planned().unwrap();
        assert_eq!(
            planned.problems.len(),
            problems,
            "{n}: {:?}",
            planned.problems
        );
    }
}

/// A node that is nobody's peer takes the address that a service has, and gives it back.
#[test]
fn a_nodes_address_is_no_services_by_key() {
    let mut world = World::new();
    let spec = r#""nodeToNodeMeshEnabled":false,"serviceExternalIPs":[{"cidr":"192.0.2.0/24"}]"#;
    world.put("bgpconfigurations", "default", Some(spec.to_owned()));
    let service = r#"{"metadata":{"name":"s"},"spec":{"type":"ClusterIP","clusterIP":"10.96.0.9",
      "externalIPs":["192.0.2.7"],"externalTrafficPolicy":"Local"}}"#;
    world.document(DocumentKind::Service, "far", Some(service.to_owned()));
    let slice = r#"{"metadata":{"labels":{"kubernetes.io/service-name":"far"}},"endpoints":[{"nodeName":"a"}]}"#;
    world.document(DocumentKind::EndpointSlice, "s", Some(slice.to_owned()));
    world.check();
    let node = |address: &str| {
        let listed = format!(r#"{{"address":"{address}","type":"ExternalIP"}}"#);
        format!(r#""addresses":[{listed}],"bgp":{{"ipv4Address":"10.0.0.3/24"}}"#)
    };
    let announced = &["192.0.2.0/24", "192.0.2.7/32"][..];
    for (spec, expected) in [
        (Some(node("192.0.2.8")), announced),
        (Some(node("192.0.2.7")), &["192.0.2.0/24"]),
        (Some(node("192.0.2.9")), announced),
        (Some(node("192.0.2.7")), &["192.0.2.0/24"]),
        (None, announced),
    ] {
        let before = world.by_key;
        world.put("nodes", "c", spec.clone());
        world.check();
        assert_eq!(world.by_key, before + 1, "{spec:?} was planned whole");
        assert_eq!(world.routes_in("192.0.2.0/24"), expected, "{spec:?}");
        let problems = &world.planning.planned().unwrap().problems;
        match &problems[..] {
            [] => assert_eq!(expected, announced),
            [problem] => {
                assert_eq!(problem.subject, "Service n/far 192.0.2.7");
                let reason = "it is not announced for this Service: it is the address of a node";
                assert_eq!(problem.reason, reason);
            }
            more => panic!("{more:?}"),
        }
    }
}

/// A block plans the sessions again where a Node says that an address of it is its own, and no
/// other block does.
#[test]
fn a_block_around_a_nodes_address_is_planned_whole() {
    let mut world = World::new();
    world.check();
    world.step(&Step::Node(2, 2));
    world.check();
    let sessions = |world: &World| world.planning.planned().unwrap().config.peers.len();
    let all = sessions(&world);
    for (step, by_key, expected) in [
        (Step::Block(0, 1, Vec::new()), 1, all),
        (Step::Block(1, 1, Vec::new()), 0, all - 1),
        (Step::Block(1, 1, vec![(1, 0)]), 1, all - 1),
        (Step::Block(1, 3, Vec::new()), 0, all),
        (Step::Block(1, 2, Vec::new()), 0, all - 1),
        (Step::Block(1, 6, Vec::new()), 0, all),
    ] {
        let before = world.by_key;
        world.step(&step);
        world.check();
        assert_eq!(world.by_key, before + by_key, "{step:?}");
        assert_eq!(sessions(&world), expected, "{step:?}");
    }
}
