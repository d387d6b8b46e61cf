//! Whole plans of small clusters.

#![allow(clippy::unwrap_used)]

use caracal_model::{AllocationAttribute, Applied, Block, BlockOwner};
use proptest::prelude::*;

use super::*;
use crate::kernel_objects::{
    BLACKHOLE_METRIC, FdbKey, NeighbourKey, NextHop, RouteKind, vxlan_device,
};
use crate::nat::BgpGuard;
use crate::nat::name::PlainName;
use crate::settings::ProgramClusterRoutes;

/// A cluster seen from node `a`: 10.0.0.1/24 on eth0, `b` beside it, `c` in another subnet.
pub(crate) struct World {
    pub(crate) snapshot: Snapshot,
    pub(crate) learned: SharedMap<Prefix, Learned>,
    pub(crate) links: Links,
    pub(crate) host_routes: HostRoutes,
    pub(crate) settings: Settings,
    kernel: KernelSupport,
    pub(crate) lifelines: BTreeSet<IpAddr>,
}

impl World {
    pub(crate) fn new(pool: &str) -> Self {
        let mut world = Self {
            snapshot: Snapshot::default(),
            learned: SharedMap::default(),
            links: [
                Link::new(1, "lo").with_address("127.0.0.1/8".parse().unwrap()),
                Link::new(2, "eth0")
                    .with_address("10.0.0.1/24".parse().unwrap())
                    .with_address("fd00:a::1/64".parse().unwrap()),
                Link::new(3, "cali123"),
                Link::new(4, "cali456"),
            ]
            .into_iter()
            .collect(),
            host_routes: HostRoutes::default(),
            settings: Settings::default(),
            kernel: KernelSupport::default(),
            lifelines: BTreeSet::new(),
        };
        for (n, address) in [(0u8, "10.0.0.1/24"), (1, "10.0.0.2/24"), (2, "10.0.1.3/24")] {
            let name = char::from(b'a' + n);
            world.put(
                "nodes",
                &name.to_string(),
                &format!(
                    r#""ipv4VXLANTunnelAddr":"10.244.{n}.1","bgp":{{"ipv4Address":"{address}",
                       "ipv6Address":"fd00:a::{}/64","ipv4IPIPTunnelAddr":"10.244.{n}.1"}}"#,
                    n + 1
                ),
            );
            world.block(&format!("10.244.{n}.0/26"), &name.to_string(), &[]);
        }
        world.pool("p", "10.244.0.0/16", pool);
        world
    }

    pub(crate) fn put(&mut self, kind: &str, name: &str, spec: &str) {
        let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
        let name = name.rsplit('/').next().unwrap();
        let value = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"default"}},"spec":{{{spec}}}}}"#
        );
        let revision = self.snapshot.revision + 1;
        let applied = self.snapshot.apply(&path, Some(value.as_bytes()), revision);
        assert_eq!(applied, Applied::Changed, "{value}");
    }

    pub(crate) fn pool(&mut self, name: &str, cidr: &str, rest: &str) {
        self.put("ippools", name, &format!(r#""cidr":"{cidr}"{rest}"#));
    }

    pub(crate) fn block(&mut self, cidr: &str, owner: &str, used: &[(usize, &str)]) {
        let owner = BlockOwner::Host(owner.into());
        let mut block = Block::new(cidr.parse().unwrap(), Some(&owner), 1);
        for (ordinal, node) in used {
            block.allocations[*ordinal] = Some(block.attributes.len());
            block.attributes.push(AllocationAttribute {
                secondary: [("node".to_owned(), (*node).to_owned())].into(),
                ..AllocationAttribute::default()
            });
        }
        let key = caracal_model::Key::Block(block.cidr).to_path();
        let revision = self.snapshot.revision + 1;
        self.snapshot.apply(&key, Some(&block.to_json()), revision);
    }

    pub(crate) fn workload(&mut self, name: &str, interface: &str, addresses: &str) {
        let spec = format!(
            r#""node":"a","interfaceName":"{interface}","ipNetworks":{addresses},"mac":"02:00:00:00:00:05""#
        );
        self.put("workloadendpoints", &format!("default/{name}"), &spec);
    }

    pub(crate) fn learn(&mut self, prefix: &str, hop: &str) {
        self.learned.insert(
            prefix.parse().unwrap(),
            Learned::internal(hop.parse().unwrap()),
        );
    }

    pub(crate) fn plan(&self) -> Desired {
        let inputs = PlanInputs {
            lifelines: &self.lifelines,
            snapshot: &self.snapshot,
            me: &"a".into(),
            learned: &self.learned,
            links: &self.links,
            host_routes: &self.host_routes,
            settings: &self.settings,
            kernel: &self.kernel,
        };
        let learned = inputs.resolved();
        plan(&PlanInputs {
            learned: &learned,
            ..inputs
        })
    }

    /// Routes as text, without the protocol, which is always 80.
    fn routes(&self) -> Vec<String> {
        self.plan()
            .routes
            .values()
            .map(|p| format!("{}: {}", p.kind.as_str(), p.route).replace(" proto 80", ""))
            .collect()
    }

    fn route(&self, prefix: &str) -> Option<String> {
        let prefix = prefix.parse().unwrap();
        self.plan()
            .routes
            .get(&prefix)
            .map(|p| p.route.target.to_string())
    }

    fn reasons(&self) -> Vec<String> {
        self.plan().problems.into_iter().map(|p| p.reason).collect()
    }

    fn skipped(&self, prefix: &str) -> Option<String> {
        self.plan().skipped.get(&prefix.parse().unwrap()).cloned()
    }
}

const OWN: &str = "blackhole: 10.244.0.0/26 blackhole metric 1000000";

#[test]
fn vxlan_comes_from_the_datastore() {
    let mut world = World::new(r#","vxlanMode":"Always""#);
    // A BGP route to it does not count.
    world.learn("10.244.1.0/26", "10.0.0.2");
    assert_eq!(
        world.routes(),
        [
            OWN,
            "vxlan: 10.244.1.0/26 via 10.244.1.1 dev vxlan.calico onlink metric 0 mtu 1450",
            "vxlan: 10.244.2.0/26 via 10.244.2.1 dev vxlan.calico onlink metric 0 mtu 1450",
        ]
    );
    assert_eq!(world.reasons(), Vec::<String>::new());
    let desired = world.plan();
    assert_eq!(desired.neighbours.len(), 2);
    assert_eq!(desired.fdb.len(), 2);
    assert_eq!(desired.workload_mtu, 1450);
}

/// A wrong Node does not get what is sent to another one's blocks, whatever its name.
#[test]
fn of_two_nodes_with_one_vtep_the_one_that_has_the_address_counts() {
    for name in ["aa", "zz"] {
        let mut world = World::new(r#","vxlanMode":"Always""#);
        world.pool("q", "fd00:10::/48", r#","vxlanMode":"Always""#);
        world.block("fd00:10::1:0/122", "b", &[]);
        let node = |n: u8| {
            format!(
                r#""ipv4VXLANTunnelAddr":"10.244.1.1","ipv6VXLANTunnelAddr":"fd00:10::1:1",
                   "bgp":{{"ipv4Address":"10.0.0.{n}/24","ipv6Address":"fd00:a::{n}/64"}}"#
            )
        };
        world.put("nodes", "b", &node(2));
        let before = world.plan();
        world.put("nodes", name, &node(66));
        let entries = |world: &World, family, vtep: &str| {
            let plan = world.plan();
            let link: IfName = vxlan_device(family).into();
            let address = vtep.parse().unwrap();
            let neighbour = NeighbourKey {
                link: link.clone(),
                address,
            };
            let mac = *plan.neighbours.get(&neighbour).unwrap();
            (mac, plan.fdb[&FdbKey { link, mac }])
        };
        for (family, vtep, far) in [
            (Family::Ipv4, "10.244.1.1", "10.0.0.2"),
            (Family::Ipv6, "fd00:10::1:1", "fd00:a::2"),
        ] {
            let (mac, at) = entries(&world, family, vtep);
            assert_eq!(at, far.parse::<IpAddr>().unwrap(), "{name}");
            assert!(before.neighbours.values().any(|known| *known == mac));
        }
        // IPAM says whose it is.
        world.block("10.244.1.0/26", name, &[]);
        let (_, at) = entries(&world, Family::Ipv4, "10.244.1.1");
        assert_eq!(at, "10.0.0.66".parse::<IpAddr>().unwrap(), "{name}");
        // A tunnel may have borrowed it.
        world.block("10.244.1.0/26", name, &[(1, "b")]);
        let (_, at) = entries(&world, Family::Ipv4, "10.244.1.1");
        assert_eq!(at, "10.0.0.2".parse::<IpAddr>().unwrap(), "{name}");
    }
}

#[test]
fn cross_subnet_is_direct_within_our_own_subnet() {
    let world = World::new(r#","vxlanMode":"CrossSubnet""#);
    assert_eq!(
        world.routes(),
        [
            OWN,
            "direct: 10.244.1.0/26 via 10.0.0.2 dev eth0 onlink metric 0",
            "vxlan: 10.244.2.0/26 via 10.244.2.1 dev vxlan.calico onlink metric 0 mtu 1450",
        ]
    );
    let world = World::new(r#","ipipMode":"CrossSubnet""#);
    assert_eq!(
        world.routes(),
        [
            OWN,
            "direct: 10.244.1.0/26 via 10.0.0.2 dev eth0 onlink metric 0",
            "ipip: 10.244.2.0/26 via 10.0.1.3 dev tunl0 onlink metric 0 mtu 1480",
        ]
    );
}

#[test]
fn agent_7_tunnels_exist_as_soon_as_any_pool_uses_them() {
    let mut world = World::new("");
    assert!(world.plan().tunnels.is_empty());
    // A pool without a single block, disabled at that.
    world.pool(
        "q",
        "10.245.0.0/16",
        r#","ipipMode":"CrossSubnet","disabled":true"#,
    );
    let tunnels = world.plan().tunnels;
    assert_eq!(tunnels.len(), 1);
    assert_eq!(
        tunnels["tunl0"].cidr(),
        Some("10.244.0.1/32".parse().unwrap())
    );
    world.pool("r", "10.246.0.0/16", r#","vxlanMode":"Always""#);
    let desired = world.plan();
    assert_eq!(desired.tunnels.len(), 2);
    assert_eq!(
        desired.fdb.len(),
        2,
        "every VTEP is known before a packet goes"
    );
    assert_eq!(world.routes(), [OWN], "and no route of pool p has changed");
}

/// The fields that say who gets new addresses say nothing of what is in use.
#[test]
fn a_pool_that_hands_out_nothing_new_keeps_all_it_has() {
    let changes = [
        r#","disabled":true"#,
        r#","nodeSelector":"has(nobody)""#,
        r#","allowedUses":["Workload"]"#,
        r#","assignmentMode":"Manual""#,
    ];
    for mode in ["ipipMode", "vxlanMode"] {
        for when in ["Always", "CrossSubnet"] {
            let pool = format!(r#","{mode}":"{when}","natOutgoing":true"#);
            let mut world = World::new(&pool);
            world.workload("w", "cali1", r#"["10.244.0.5/32"]"#);
            world.block("10.244.1.0/26", "b", &[(1, "b"), (2, "a")]);
            let of_v6 = r#","vxlanMode":"Always""#;
            world.pool("v6", "fd00:10:244::/48", of_v6);
            world.block("fd00:10:244:2::/122", "b", &[(1, "b")]);
            let before = Desired {
                revision: 0,
                ..world.plan()
            };
            assert!(before.nat.is_some());
            assert_eq!(before.tunnels.len(), 2, "{:?}", before.tunnels);
            for change in changes {
                world.pool("p", "10.244.0.0/16", &format!("{pool}{change}"));
                world.pool("v6", "fd00:10:244::/48", &format!("{of_v6}{change}"));
                let after = Desired {
                    revision: 0,
                    ..world.plan()
                };
                assert_eq!(after, before, "{mode} {when} {change}");
            }
        }
    }
}

#[test]
fn a_mode_change_replaces_routes_and_keeps_keys() {
    let keys = |world: &World| -> Vec<_> {
        world
            .plan()
            .routes
            .values()
            .map(|p| p.route.key())
            .collect()
    };
    let mut direct = World::new("");
    direct.learn("10.244.1.0/26", "10.0.0.2");
    direct.learn("10.244.2.0/26", "10.0.0.2");
    let all = [
        direct,
        World::new(r#","ipipMode":"Always""#),
        World::new(r#","ipipMode":"CrossSubnet""#),
        World::new(r#","vxlanMode":"Always""#),
        World::new(r#","vxlanMode":"CrossSubnet""#),
    ];
    for world in &all {
        assert_eq!(
            keys(world),
            keys(&all[0]),
            "the same kernel keys, so each change is a replacement"
        );
    }
}

#[test]
fn no_encapsulation_comes_from_bgp() {
    let mut world = World::new("");
    assert_eq!(world.routes(), [OWN], "a block alone makes no route");
    world.learn("10.244.1.0/26", "10.0.0.2");
    assert_eq!(
        world.route("10.244.1.0/26").unwrap(),
        "via 10.0.0.2 dev eth0 onlink"
    );
    // Not on a link and no route known.
    world.learn("10.244.2.0/26", "10.0.1.3");
    assert_eq!(world.route("10.244.2.0/26"), None);
    assert_eq!(
        world.reasons(),
        [
            "next hop 10.0.1.3 is neither on a link of this node nor behind a known route: learned routes of p through it are not installed"
        ]
    );
    // Behind the default router.
    world.host_routes = HostRoutes::from_routes([(
        "0.0.0.0/0".parse().unwrap(),
        100,
        NextHop {
            gateway: Some("10.0.0.254".parse().unwrap()),
            link: "eth0".into(),
            onlink: false,
            extra_weight: 0,
        },
    )]);
    assert_eq!(
        world.route("10.244.2.0/26").unwrap(),
        "via 10.0.0.254 dev eth0 onlink"
    );
    let untold = "10.0.1.3 is behind the router 10.0.0.254, and no BGPPeer leads out of the cluster: packets for p arrive there only if that router has routes to the pods by other means";
    assert_eq!(world.reasons(), [untold]);
    assert_eq!(
        world.plan().problems.first().unwrap().code,
        ProblemCode::AgentUntoldRouter
    );
    // A reflector that a selector finds is a node, and tells no router.
    world.put("bgppeers", "nodes", r#""peerSelector":"all()""#);
    assert_eq!(world.reasons(), [untold]);
    world.put(
        "bgppeers",
        "router",
        r#""peerIP":"10.0.0.254","asNumber":65000"#,
    );
    assert_eq!(world.reasons(), Vec::<String>::new());
    // Routes that lead to other next hops are the speaker's business.
    world.host_routes = HostRoutes::default();
    world.learned.insert(
        "10.0.1.0/24".parse().unwrap(),
        Learned::external("10.0.0.253".parse().unwrap()),
    );
    assert_eq!(
        world.route("10.0.1.0/24").unwrap(),
        "via 10.0.0.253 dev eth0 onlink"
    );
}

#[test]
fn equal_cost_paths_are_one_multipath_route() {
    let mut world = World::new("");
    let hops = ["10.0.0.9", "10.0.0.2", "10.0.9.9"].map(|h| h.parse().unwrap());
    let learned = Learned {
        next_hops: hops.to_vec(),
        gateways: std::sync::Arc::default(),
        internal: false,
        stale: true,
        preferred_source: None,
    };
    world
        .learned
        .insert("192.0.2.0/24".parse().unwrap(), learned);
    assert_eq!(
        world.route("192.0.2.0/24").unwrap(),
        "via 10.0.0.2 dev eth0 onlink nexthop via 10.0.0.9 dev eth0 onlink",
        "the one that cannot be reached is left out"
    );
    assert_eq!(
        world.plan().routes[&"192.0.2.0/24".parse().unwrap()]
            .route
            .metric,
        1024
    );
}

#[test]
fn what_would_cut_us_off_is_never_taken_from_bgp() {
    let mut world = World::new("");
    world.block("10.244.0.0/26", "a", &[(9, "b"), (10, "a")]);
    for refused in [
        "10.0.0.0/24",
        "10.0.0.0/25",
        "10.0.0.1/32",
        "10.0.0.7/32",
        "127.0.0.0/8",
        "10.244.0.0/26",
        "10.244.0.0/27",
        "10.244.0.10/32",
        "10.244.0.11/32",
    ] {
        let mut world = World {
            learned: SharedMap::default(),
            snapshot: world.snapshot.clone(),
            ..World::new("")
        };
        world.learn(refused, "10.0.0.2");
        let planned = world.plan().routes;
        let prefix = refused.parse().unwrap();
        assert!(
            planned
                .get(&prefix)
                .is_none_or(|p| p.kind == RouteKind::Blackhole),
            "{refused}: {planned:?}"
        );
        let own = refused.starts_with("10.244");
        assert_eq!(world.reasons().len(), usize::from(own), "{refused}");
        assert_eq!(world.skipped(refused).is_some(), !own, "{refused}");
    }
    for taken in [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.244.0.0/16",
        "10.244.0.0/25",
        "10.244.0.9/32",
    ] {
        world.learn(taken, "10.0.0.2");
        assert_eq!(
            world.route(taken).unwrap(),
            "via 10.0.0.2 dev eth0 onlink",
            "{taken}"
        );
    }
    assert_eq!(world.reasons(), Vec::<String>::new());
    assert_eq!(world.skipped("10.0.0.0/24"), None);
}

#[test]
fn an_own_block_announced_by_another_node_is_a_problem() {
    let mut world = World::new("");
    world.learn("10.244.0.0/26", "10.0.0.2");
    assert_eq!(
        world.reasons(),
        [
            "another node (10.0.0.2) announces it, but it is part of our block 10.244.0.0/26; the announcement is not used"
        ]
    );
    assert_eq!(world.routes(), [OWN]);
}

#[test]
fn borrowed_addresses_have_host_routes() {
    let mut world = World::new(r#","vxlanMode":"Always""#);
    // Of our own block, one at b; of b's block, one at c, one here, one released.
    world.block("10.244.0.0/26", "a", &[(9, "b"), (10, "a")]);
    world.block("10.244.1.0/26", "b", &[(4, "b"), (5, "c"), (6, "a")]);
    // c's tunnel address comes from b's block as well: it is on the link itself.
    world.block("10.244.2.0/26", "b", &[(1, "c")]);
    world.workload("w", "cali123", r#"["10.244.1.6/32"]"#);
    assert_eq!(
        world.routes(),
        [
            OWN,
            "vxlan: 10.244.0.9/32 via 10.244.1.1 dev vxlan.calico onlink metric 0 mtu 1450",
            "vxlan: 10.244.1.0/26 via 10.244.1.1 dev vxlan.calico onlink metric 0 mtu 1450",
            "vxlan: 10.244.1.5/32 via 10.244.2.1 dev vxlan.calico onlink metric 0 mtu 1450",
            "local: 10.244.1.6/32 dev cali123 metric 1024",
            "vxlan: 10.244.2.0/26 via 10.244.1.1 dev vxlan.calico onlink metric 0 mtu 1450",
            "vxlan: 10.244.2.1/32 dev vxlan.calico metric 0 mtu 1450",
        ]
    );
}

#[test]
fn workloads_have_routes_neighbours_and_sysctls() {
    let mut world = World::new("");
    world.pool("v6", "fd00:10:244::/48", "");
    world.workload("w", "cali123", r#"["10.244.0.5/32","fd00:10:244::5/128"]"#);
    let desired = world.plan();
    assert_eq!(
        world.routes(),
        [
            OWN,
            "local: 10.244.0.5/32 dev cali123 metric 1024",
            "local: fd00:10:244::5/128 dev cali123 metric 1024",
        ]
    );
    let neighbours: Vec<_> = desired.neighbours.keys().map(ToString::to_string).collect();
    assert_eq!(neighbours, ["10.244.0.5 dev cali123"]);
    let sysctls: Vec<_> = desired
        .sysctls
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        sysctls,
        [
            "net/ipv4/conf/cali123/forwarding=1",
            "net/ipv4/conf/cali123/proxy_arp=1",
            "net/ipv4/conf/cali123/route_localnet=0",
            "net/ipv4/conf/cali123/rp_filter=0",
            "net/ipv4/ip_forward=1",
            "net/ipv4/neigh/cali123/proxy_delay=0",
            "net/ipv6/conf/all/forwarding=1",
            "net/ipv6/conf/cali123/accept_ra=0",
            "net/ipv6/conf/cali123/forwarding=1",
            "net/ipv6/conf/cali123/proxy_ndp=1",
        ]
    );
}

#[test]
fn a_container_without_an_endpoint_is_named() {
    let mut world = World::new("");
    world.workload("w", "cali123", r#"["10.244.0.5/32"]"#);
    let pair = |index, name: &str| {
        let mut link = Link::new(index, name);
        link.kind = "veth".to_owned();
        link
    };
    let mut down = pair(11, "cali-down");
    down.up = false;
    let mut dead = pair(12, "cali-dead");
    dead.carrier = false;
    let mut lost = pair(13, "cali-lost");
    lost.alias = Some("caracal:k8s-pod-network.abc".to_owned());
    let named = pair(3, "cali123");
    for link in [named, down, dead, lost, pair(14, "veth7")] {
        world.links.insert(link);
    }
    let problems: Vec<_> = world.plan().problems.into_iter().collect();
    let [problem] = &problems[..] else {
        panic!("{problems:?}");
    };
    assert_eq!(problem.code, ProblemCode::AgentNoEndpoint);
    assert_eq!(problem.subject, "interface cali-lost");
    assert!(problem.reason.contains("(caracal:k8s-pod-network.abc)"));
    // A value that cannot be read may name it.
    let path = "/calico/resources/v3/projectcalico.org/workloadendpoints/default/broken";
    let revision = world.snapshot.revision + 1;
    world.snapshot.apply(path, Some(b"{"), revision);
    let codes = world.plan().problems.into_iter().map(|p| p.code);
    assert!(
        !codes
            .collect::<Vec<_>>()
            .contains(&ProblemCode::AgentNoEndpoint)
    );
}

#[test]
fn a_local_workload_goes_before_everything() {
    let mut world = World::new("");
    world.workload("w", "cali123", r#"["10.244.1.5/32"]"#);
    world.learn("10.244.1.5/32", "10.0.0.2");
    assert_eq!(world.route("10.244.1.5/32").unwrap(), "dev cali123");
}

#[test]
fn faulty_workloads_are_named_and_harmless() {
    let mut world = World::new("");
    world.workload("x", "eth0", r#"["10.244.0.5/32"]"#);
    world.workload("y", "cali999", r#"["10.244.0.6/32"]"#);
    world.workload("v", "cali123", r#"["10.244.0.7/32"]"#);
    world.workload("w", "cali456", r#"["10.244.0.7/32"]"#);
    assert_eq!(
        world.routes(),
        [OWN, "local: 10.244.0.7/32 dev cali123 metric 1024"]
    );
    let problems: Vec<_> = world
        .plan()
        .problems
        .into_iter()
        .map(|p| format!("{}: {}", p.subject, p.reason))
        .collect();
    assert_eq!(
        problems,
        [
            "workload default/w: 10.244.0.7/32 is also the address of another workload (dev cali123); only that one gets the route",
            "workload default/x: interface \"eth0\" does not start with cali; it is not touched and gets no route",
            "workload default/y: interface cali999 does not exist",
        ]
    );
    assert!(
        !world
            .plan()
            .sysctls
            .keys()
            .any(|path| path.contains("eth0"))
    );
}

#[test]
fn blocks_of_one_address_have_no_blackhole() {
    let mut world = World::new("");
    world.block("10.244.7.7/32", "a", &[]);
    assert_eq!(world.routes(), [OWN]);
    assert!(world.skipped("10.244.7.7/32").is_some());
}

#[test]
fn a_kernel_without_ipip_is_told_and_goes_on() {
    let mut world = World::new(r#","ipipMode":"Always""#);
    world.kernel.ipip = Err("Operation not supported".into());
    assert_eq!(
        world.routes(),
        [
            OWN,
            "direct: 10.244.1.0/26 via 10.0.0.2 dev eth0 onlink metric 0"
        ]
    );
    assert!(world.plan().tunnels.is_empty());
    assert_eq!(
        world.reasons(),
        [
            "pool p wants IPIP, but this kernel has no ipip module (Operation not supported): routes to b stay unencapsulated; load the module or use VXLAN",
            "pool p wants IPIP, but this kernel has no ipip module (Operation not supported): routes to c are not installed; load the module or use VXLAN",
        ]
    );
}

#[test]
fn a_node_without_a_vtep_keeps_its_way_during_a_change_of_mode() {
    let mut world = World::new(r#","vxlanMode":"Always""#);
    world.put("nodes", "b", r#""bgp":{"ipv4Address":"10.0.0.2/24"}"#);
    world.put("nodes", "c", r#""bgp":{"ipv4Address":"10.0.1.3/24"}"#);
    // The fabric between the subnets knows the blocks; BGP still says so.
    world.learn("10.244.2.0/26", "10.0.0.254");
    assert_eq!(
        world.routes(),
        [
            OWN,
            "direct: 10.244.1.0/26 via 10.0.0.2 dev eth0 onlink metric 0",
            "direct: 10.244.2.0/26 via 10.0.0.254 dev eth0 onlink metric 0",
        ]
    );
    assert_eq!(
        world.reasons(),
        [
            "pool p wants VXLAN, but the node has no VXLAN tunnel address in the datastore yet: routes to b, c stay unencapsulated; it gets one when its own Caracal or Calico sees the pool"
        ]
    );
}

#[test]
fn program_cluster_routes_moves_classes_between_sources() {
    // Calico up to 3.32: BIRD writes IPIP routes.
    let mut world = World::new(r#","ipipMode":"CrossSubnet""#);
    world.settings.felix_routes = ProgramClusterRoutes::Disabled;
    world.settings.bgp_routes = ProgramClusterRoutes::Enabled;
    assert_eq!(world.routes(), [OWN], "blocks alone do not count");
    world.learn("10.244.1.0/26", "10.0.0.2");
    world.learn("10.244.2.0/26", "10.0.1.3");
    let both = [
        OWN,
        "direct: 10.244.1.0/26 via 10.0.0.2 dev eth0 onlink metric 0",
        "ipip: 10.244.2.0/26 via 10.0.1.3 dev tunl0 onlink metric 0 mtu 1480",
    ];
    assert_eq!(world.routes(), both, "the same routes by the same writer");
    // Felix writes everything.
    let mut world = World::new("");
    world.settings.felix_routes = ProgramClusterRoutes::Enabled;
    world.settings.bgp_routes = ProgramClusterRoutes::Disabled;
    assert_eq!(
        world.routes(),
        [
            OWN,
            "direct: 10.244.1.0/26 via 10.0.0.2 dev eth0 onlink metric 0"
        ]
    );
    assert_eq!(
        world.reasons(),
        [
            "c is neither on a link of this node nor behind a known route: unencapsulated routes of p to it are not installed"
        ]
    );
}

#[test]
fn nat_is_left_alone_while_a_pool_cannot_be_read() {
    let mut world = World::new(r#","natOutgoing":true,"ipipMode":"Always""#);
    world.pool("q", "10.245.0.0/16", "");
    world.pool(
        "lb",
        "10.246.0.0/16",
        r#","natOutgoing":true,"allowedUses":["LoadBalancer"]"#,
    );
    let nat = Arc::unwrap_or_clone(world.plan().nat.unwrap());
    let texts = |set: &std::collections::BTreeSet<Prefix>| -> Vec<String> {
        set.iter().map(ToString::to_string).collect()
    };
    assert_eq!(texts(&nat.ipv4.masquerade), ["10.244.0.0/16"]);
    assert_eq!(texts(&nat.ipv4.exempt), ["10.244.0.0/16", "10.245.0.0/16"]);
    assert_eq!(
        nat.ipv4.tunnels[&PlainName::new("tunl0").unwrap()],
        "10.244.0.1".parse::<IpAddr>().unwrap()
    );
    world.settings.nat_excludes_hosts = true;
    let nat = Arc::unwrap_or_clone(world.plan().nat.unwrap());
    assert!(nat.ipv4.exempt.contains(&"10.0.0.2/32".parse().unwrap()));
    let senders = nat.ipv4.senders.unwrap();
    assert!(senders.ipip && senders.vxlan.is_none());
    // A value that cannot be read takes nothing out of them.
    let before = world.plan().nat;
    let unread = |world: &World| {
        assert_eq!(world.plan().nat, before);
        let unread = nat::UnreadRules::from_snapshot(&world.snapshot, &"a".into());
        (unread.ranges, unread.nodes)
    };
    assert_eq!(unread(&world), (false, false));
    let node = "/calico/resources/v3/projectcalico.org/nodes/z";
    world.snapshot.apply(node, Some(b"{nonsense"), 99);
    assert_eq!(unread(&world), (false, true));
    let pool = "/calico/resources/v3/projectcalico.org/ippools/z";
    world.snapshot.apply(pool, Some(b"{nonsense"), 100);
    assert_eq!(unread(&world), (true, true));
}

#[test]
fn tunnel_packets_come_from_nodes_and_who_is_named() {
    let mut world = World::new("");
    world.settings.external_nodes = ["192.0.2.0/24", "2001:db8::/64"]
        .map(|p| p.parse().unwrap())
        .into();
    let nat = Arc::unwrap_or_clone(world.plan().nat.unwrap());
    assert_eq!(nat.ipv4.senders, None, "no tunnel, nothing to judge");
    // c has one more address, of another program's.
    world.put(
        "nodes",
        "c",
        r#""addresses":[{"address":"10.0.9.3","type":"InternalIP"},{"address":"fd00:9::3","type":"InternalIP"}],
           "ipv4VXLANTunnelAddr":"10.244.2.1","bgp":{"ipv4Address":"10.0.1.3/24"}"#,
    );
    world.pool("v", "10.250.0.0/16", r#","vxlanMode":"CrossSubnet""#);
    let nat = Arc::unwrap_or_clone(world.plan().nat.unwrap());
    let senders = nat.ipv4.senders.unwrap();
    let from: Vec<String> = senders.from.iter().map(ToString::to_string).collect();
    assert_eq!(
        from,
        [
            "10.0.0.1/32",
            "10.0.0.2/32",
            "10.0.1.3/32",
            "10.0.9.3/32",
            "192.0.2.0/24"
        ]
    );
    assert_eq!((senders.ipip, senders.vxlan), (false, Some(4789)));
    assert_eq!(nat.ipv6.senders, None);
    world.pool("v6", "fd00:10:244::/48", r#","vxlanMode":"Always""#);
    let senders = Arc::unwrap_or_clone(world.plan().nat.unwrap())
        .ipv6
        .senders
        .unwrap();
    let from: Vec<String> = senders.from.iter().map(ToString::to_string).collect();
    assert_eq!(
        from,
        [
            "2001:db8::/64",
            "fd00:9::3/128",
            "fd00:a::1/128",
            "fd00:a::2/128"
        ]
    );
}

#[test]
fn routes_name_a_source_that_an_interface_has() {
    let mut world = World::new(r#","vxlanMode":"CrossSubnet""#);
    world.workload("w", "cali123", r#"["10.244.0.5/32"]"#);
    world.settings.route_source = Some([10, 0, 0, 1].into());
    assert_eq!(
        world.routes(),
        [
            OWN,
            "local: 10.244.0.5/32 dev cali123 metric 1024 src 10.0.0.1",
            "direct: 10.244.1.0/26 via 10.0.0.2 dev eth0 onlink metric 0 src 10.0.0.1",
            "vxlan: 10.244.2.0/26 via 10.244.2.1 dev vxlan.calico onlink metric 0 mtu 1450 src 10.0.0.1",
        ]
    );
    assert_eq!(world.reasons(), [] as [&str; 0]);
    world.settings.route_source = Some([10, 0, 0, 9].into());
    world.settings.route_source_v6 = Some("fd00:a::1".parse().unwrap());
    let routes = world.routes();
    assert!(!routes.iter().any(|r| r.contains(" src ")), "{routes:?}");
    assert_eq!(
        world.reasons(),
        ["no interface has 10.0.0.9: routes name no source until one does, and the kernel chooses"]
    );
}

#[test]
fn with_workload_ips_each_workload_has_a_route() {
    let mut world = World::new(r#","vxlanMode":"Always""#);
    world.settings.workload_routes = true;
    world.workload("here", "cali123", r#"["10.244.0.5/32"]"#);
    let elsewhere = |world: &mut World, name: &str, node: &str, address: &str| {
        let spec = format!(
            r#""node":"{node}","interfaceName":"cali9","ipNetworks":["{address}/32"],"mac":"02:00:00:00:00:09""#
        );
        world.put("workloadendpoints", &format!("default/{name}"), &spec);
    };
    // Addresses of a host-local IPAM: the blocks of the datastore do not matter.
    elsewhere(&mut world, "b1", "b", "10.244.77.9");
    elsewhere(&mut world, "c1", "c", "10.244.1.9");
    elsewhere(&mut world, "far", "c", "192.0.2.9");
    elsewhere(&mut world, "lost", "nobody", "10.244.5.5");
    let vxlan = [
        "local: 10.244.0.5/32 dev cali123 metric 1024",
        "vxlan: 10.244.1.1/32 dev vxlan.calico metric 0 mtu 1450",
        "vxlan: 10.244.1.9/32 via 10.244.2.1 dev vxlan.calico onlink metric 0 mtu 1450",
        "vxlan: 10.244.2.1/32 dev vxlan.calico metric 0 mtu 1450",
        "vxlan: 10.244.77.9/32 via 10.244.1.1 dev vxlan.calico onlink metric 0 mtu 1450",
    ];
    let own = [OWN.to_owned()];
    let wanted = own.iter().map(String::as_str).chain(vxlan);
    assert_eq!(world.routes(), wanted.collect::<Vec<_>>());
    assert_eq!(
        world.reasons(),
        ["no IPv4 address of nobody in the datastore: routes of p to it are not installed"]
    );
    let skipped = world.skipped("192.0.2.9/32");
    assert_eq!(skipped.as_deref(), Some("no pool covers this workload"));
    // Each in its own mode; the unencapsulated ones are still BGP's.
    world.pool("p", "10.244.0.0/16", r#","ipipMode":"CrossSubnet""#);
    assert_eq!(
        world.route("10.244.77.9/32").as_deref(),
        Some("via 10.0.0.2 dev eth0 onlink")
    );
    assert_eq!(
        world.route("10.244.1.9/32").as_deref(),
        Some("via 10.0.1.3 dev tunl0 onlink")
    );
    assert_eq!(
        world.route("10.244.2.1/32").as_deref(),
        Some("via 10.0.1.3 dev tunl0 onlink"),
        "what that node's own programs send comes from here"
    );
    world.pool("p", "10.244.0.0/16", "");
    assert_eq!(world.route("10.244.77.9/32"), None);
}

#[test]
fn ipv6_has_vxlan_and_direct_routes() {
    let mut world = World::new("");
    world.pool("v6", "fd00:10:244::/48", r#","vxlanMode":"Always""#);
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        let n = n + 1;
        let spec = format!(
            r#""ipv6VXLANTunnelAddr":"fd00:10:244:{n}::1","bgp":{{"ipv4Address":"10.0.0.{n}/24","ipv6Address":"fd00:a::{n}/64"}}"#
        );
        world.put("nodes", name, &spec);
    }
    world.block("fd00:10:244:2::/122", "b", &[]);
    let routes = world.routes();
    assert_eq!(
        routes,
        [
            OWN,
            "vxlan: fd00:10:244:2::/122 via fd00:10:244:2::1 dev vxlan-v6.calico onlink metric 1024 mtu 1430",
            "vxlan: fd00:10:244:2::1/128 dev vxlan-v6.calico metric 1024 mtu 1430",
        ]
    );
    world.kernel.ipv6 = Err("the kernel has no IPv6".into());
    assert_eq!(world.routes(), [OWN]);
    assert!(world.plan().tunnels.is_empty());
}

#[test]
fn a_node_that_is_not_registered_still_serves_its_workloads() {
    let mut world = World::new(r#","vxlanMode":"Always""#);
    world.workload("w", "cali123", r#"["10.244.0.5/32"]"#);
    let path = "/calico/resources/v3/projectcalico.org/nodes/a";
    world.snapshot.apply(path, None, 99);
    assert_eq!(
        world.routes(),
        [OWN, "local: 10.244.0.5/32 dev cali123 metric 1024"]
    );
    assert_eq!(
        world.reasons(),
        ["this node is not in the datastore; only local routes are written"]
    );
}

#[test]
fn an_address_that_no_interface_carries_is_named_once() {
    let mut world = World::new(r#","vxlanMode":"Always""#);
    world.links = [Link::new(2, "eth0").with_address("10.9.9.9/24".parse().unwrap())]
        .into_iter()
        .collect();
    world.settings.ipv6 = false;
    assert_eq!(
        world.reasons(),
        [
            "no interface carries the node's address 10.0.0.1; routes and tunnels that need it wait for it"
        ]
    );
    assert_eq!(world.routes(), [OWN]);
}

#[test]
fn a_blackhole_never_beats_a_workload() {
    assert!(BLACKHOLE_METRIC > Settings::default().ipv4_route_metric);
    assert!(BLACKHOLE_METRIC > Settings::default().ipv6_route_metric);
}

proptest! {
    /// Whatever BGP says: no panic, one route a prefix (by type), every next hop on a device that
    /// is there or planned, and the own block and workload keep their routes.
    #[test]
    fn no_announcement_takes_our_own_routes(
        announced in prop::collection::vec((any::<u32>(), 0u8..=32, 0u8..6), 0..30),
        near in prop::collection::vec((0u8..4, 20u8..=32, 0u8..6), 0..30),
        mode in prop::sample::select(vec!["", r#","vxlanMode":"Always""#, r#","ipipMode":"CrossSubnet""#]),
    ) {
        let mut world = World::new(mode);
        world.workload("w", "cali123", r#"["10.244.0.5/32"]"#);
        let announced = announced.into_iter().map(|(bits, len, hop)| (Prefix::v4(bits.into(), len), hop));
        let near = near.into_iter().map(|(n, len, hop)| (Prefix::v4([10, 244, n, 7].into(), len), hop));
        for (prefix, hop) in announced.chain(near) {
            let hop = Learned::internal([10, 0, hop / 3, hop].into());
            world.learned.insert(prefix, hop);
        }
        let desired = world.plan();
        for planned in desired.routes.values() {
            for link in planned.route.target.links() {
                prop_assert!(
                    world.links.by_name(link.as_str()).is_some() || desired.tunnels.contains_key(link)
                );
            }
        }
        let kind = |text: &str| desired.routes[&text.parse().unwrap()].kind;
        prop_assert_eq!(kind("10.244.0.5/32"), RouteKind::Local);
        prop_assert_eq!(kind("10.244.0.0/26"), RouteKind::Blackhole);
        let workload: Prefix = "10.244.0.5/32".parse().unwrap();
        let block: Prefix = "10.244.0.0/26".parse().unwrap();
        let inside = desired.routes.keys().any(|p| p.len() > 26 && *p != workload && block.covers(p));
        prop_assert!(!inside, "{:?}", desired.routes);
    }
}

#[test]
fn addresses_of_services_are_not_for_the_kernel() {
    let mut world = World::new("");
    world.learn("10.96.0.0/12", "10.0.0.2");
    world.learn("192.0.2.7/32", "10.0.0.2");
    assert!(world.route("10.96.0.0/12").is_some());
    let spec = r#""serviceClusterIPs":[{"cidr":"10.96.0.0/12"}],"serviceExternalIPs":[{"cidr":"192.0.2.0/24"},{"cidr":"odd"}]"#;
    world.put("bgpconfigurations", "default", spec);
    assert_eq!(world.route("10.96.0.0/12"), None);
    assert_eq!(world.route("192.0.2.7/32"), None);
    let skipped = world.plan().skipped;
    assert_eq!(
        skipped[&"192.0.2.7/32".parse().unwrap()],
        "inside 192.0.2.0/24, a range of service addresses"
    );
    world.learn("198.51.100.0/24", "10.0.0.2");
    assert!(world.route("198.51.100.0/24").is_some());
}

#[test]
fn a_range_of_services_over_a_pool_takes_no_route_to_a_block() {
    let mut world = World::new("");
    world.learn("10.244.1.0/26", "10.0.0.2");
    let before = world.route("10.244.1.0/26");
    assert!(before.is_some());
    for cidr in ["10.0.0.0/8", "10.244.0.0/16", "0.0.0.0/0"] {
        for field in [
            "serviceClusterIPs",
            "serviceExternalIPs",
            "serviceLoadBalancerIPs",
        ] {
            let spec = format!(r#""{field}":[{{"cidr":"{cidr}"}}]"#);
            world.put("bgpconfigurations", "default", &spec);
            assert_eq!(world.route("10.244.1.0/26"), before, "{field} {cidr}");
        }
    }
}

/// The guard of BGP asks by which interface a packet came: a node inside the pool's range is still
/// a node, and a pod with an address of a pool is still a pod.
#[test]
fn a_pool_over_the_machines_keeps_no_node_off() {
    let mut world = World::new("");
    world.put(
        "bgppeers",
        "node",
        r#""peerIP":"10.0.0.2","asNumber":64512"#,
    );
    let before = guard(&world);
    world.put("ippools", "wide", r#""cidr":"10.0.0.0/8""#);
    let after = guard(&world);
    assert_eq!((&before.nodes, &before.peers), (&after.nodes, &after.peers));
    let rules = Arc::unwrap_or_clone(world.plan().nat.unwrap());
    let nft = crate::nat::nft::script(&rules);
    let iptables = crate::nat::iptables::restore(&rules, &rules.ipv4, "");
    for text in [nft, iptables] {
        let about = |line: &&str| line.contains("179") && line.contains("10.0.0.0/8");
        assert_eq!(text.lines().find(about), None);
    }
}

fn guard(world: &World) -> BgpGuard {
    Arc::unwrap_or_clone(world.plan().nat.unwrap())
        .ipv4
        .bgp
        .unwrap()
}

/// A pod has its node's address behind `natOutgoing`; whoever takes BGP from nodes must not hear
/// it.
#[test]
fn workloads_are_kept_off_the_bgp_of_nodes() {
    let mut w = World::new(r#","natOutgoing":true"#);
    let found = guard(&w);
    let addresses = |set: &BTreeSet<IpAddr>| {
        set.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(addresses(&found.nodes), "10.0.0.1 10.0.0.2 10.0.1.3");
    assert_eq!(found.ports, [179].into());
    assert_eq!(found.masqueraded, ["10.244.0.0/16".parse().unwrap()].into());
    assert_eq!(
        (
            found.peers.len(),
            found.routers.len(),
            found.local_peers.len()
        ),
        (0, 0, 0)
    );
    assert!(
        Arc::unwrap_or_clone(w.plan().nat.unwrap())
            .ipv6
            .bgp
            .is_none(),
        "no workload has IPv6"
    );
    // Ports, other addresses, peers in pools and outside.
    w.put("bgpconfigurations", "default", r#""listenPort":1790"#);
    w.put("bgpconfigurations", "node.b", r#""listenPort":1791"#);
    w.put(
        "bgppeers",
        "tor",
        r#""peerIP":"192.0.2.1","asNumber":65001"#,
    );
    w.put(
        "bgppeers",
        "node",
        r#""peerIP":"10.0.0.2","asNumber":64512"#,
    );
    w.put(
        "bgppeers",
        "reflector-pod",
        r#""peerIP":"10.244.1.9:1790","asNumber":64512"#,
    );
    w.put(
        "nodes",
        "d",
        r#""addresses":[{"address":"198.51.100.4","type":"InternalIP"}]"#,
    );
    let found = guard(&w);
    assert_eq!(found.ports, [179, 1790, 1791].into());
    assert_eq!(
        addresses(&found.nodes),
        "10.0.0.1 10.0.0.2 10.0.1.3 198.51.100.4"
    );
    assert_eq!(addresses(&found.routers), "192.0.2.1");
    assert_eq!(addresses(&found.peers), "10.244.1.9");
}

#[test]
fn a_workload_that_is_a_peer_speaks_to_its_own_node() {
    let mut w = World::new("");
    let labelled = |name: &str, interface: &str, labels: &str| {
        let path =
            format!("/calico/resources/v3/projectcalico.org/workloadendpoints/default/{name}");
        let value = format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"default","labels":{{{labels}}}}},"spec":{{"node":"a","interfaceName":"{interface}","ipNetworks":["10.244.0.5/32"]}}}}"#
        );
        (path, value)
    };
    for (path, value) in [
        labelled("router", "cali123", r#""bgp":"yes""#),
        labelled("plain", "cali456", ""),
        labelled("foreign", "eth0", r#""bgp":"yes""#),
    ] {
        w.snapshot.apply(&path, Some(value.as_bytes()), 100);
    }
    let names = |w: &World| {
        let names = guard(w).local_peers;
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names(&w), [""; 0]);
    w.put(
        "bgppeers",
        "elsewhere",
        r#""node":"b","localWorkloadSelector":"has(bgp)","asNumber":65001"#,
    );
    w.put(
        "bgppeers",
        "no-number",
        r#""localWorkloadSelector":"has(bgp)""#,
    );
    assert_eq!(names(&w), [""; 0]);
    w.put(
        "bgppeers",
        "here",
        r#""node":"a","localWorkloadSelector":"has(bgp)","asNumber":65001"#,
    );
    assert_eq!(names(&w), ["cali123"]);
}

/// Routes and problems of a plan in which something may cut the node off.
fn cut_off(world: &World) -> (Vec<String>, Vec<String>) {
    let desired = world.plan();
    let problems = desired
        .problems
        .iter()
        .filter(|p| p.code == "agent.would_cut_off");
    let problems = problems
        .map(|p| format!("{}: {}", p.subject, p.reason))
        .collect();
    let routes = desired.routes.keys().map(ToString::to_string).collect();
    (routes, problems)
}

#[test]
fn a_block_that_covers_etcd_is_named_and_makes_no_route() {
    for owner in ["a", "b"] {
        let mut w = World::new(r#","vxlanMode":"Always""#);
        w.lifelines = ["192.0.2.70".parse().unwrap(), "fd00:99::1".parse().unwrap()].into();
        let (before, none) = cut_off(&w);
        assert_eq!(none, [""; 0]);
        w.pool("other", "192.0.2.0/24", r#","vxlanMode":"Always""#);
        w.block("192.0.2.64/26", owner, &[]);
        let (routes, problems) = cut_off(&w);
        assert_eq!(routes, before, "{owner}");
        let [problem] = problems.as_slice() else {
            panic!("{problems:?}");
        };
        let key = "/calico/ipam/v2/assignment/ipv4/block/192.0.2.64-26: ";
        assert!(problem.starts_with(key), "{problem}");
        assert!(
            problem.contains("192.0.2.64/26 would cover the datastore's endpoint 192.0.2.70"),
            "{problem}"
        );
        // Beside it is as good as any.
        w.lifelines = ["192.0.2.130".parse().unwrap()].into();
        let (routes, problems) = cut_off(&w);
        assert_eq!((routes.len(), problems.len()), (before.len() + 1, 0));
    }
}

#[test]
fn blocks_that_cover_nodes_or_subnets_make_no_routes() {
    let mut w = World::new("");
    let (before, none) = cut_off(&w);
    assert_eq!(none, [""; 0]);
    let second = Link::new(9, "eth1").with_address("198.51.100.17/28".parse().unwrap());
    for (cidr, covered) in [
        ("10.0.1.0/26", "the address 10.0.1.3 of node c"),
        ("10.0.0.0/26", "the address 10.0.0.1 of node a"),
        (
            "10.0.0.128/26",
            "10.0.0.0/24, a subnet of this node's interfaces",
        ),
        (
            "198.51.100.0/26",
            "198.51.100.16/28, a subnet of this node's interfaces",
        ),
        ("fd00:a::/122", "the address fd00:a::1 of node a"),
    ] {
        let mut w = World::new("");
        w.links.insert(second.clone());
        w.block(cidr, "a", &[]);
        let (routes, problems) = cut_off(&w);
        assert_eq!(routes, before, "{cidr}");
        assert!(
            problems.len() == 1 && problems[0].contains(covered),
            "{cidr}: {problems:?}"
        );
    }
    // A pool that is part of the machines' subnet is in use in places.
    w.pool("inside", "10.0.0.128/25", "");
    w.block("10.0.0.128/26", "a", &[]);
    let (routes, problems) = cut_off(&w);
    assert_eq!(
        (routes.len(), problems.len()),
        (before.len() + 1, 0),
        "{problems:?}"
    );
}

#[test]
fn a_block_may_be_the_subnet_of_a_bridge() {
    let mut w = World::new("");
    let mut bridge = Link::new(9, "cni0").with_address("10.244.0.3/26".parse().unwrap());
    w.links.insert(bridge.clone());
    let (routes, problems) = cut_off(&w);
    assert!(problems.len() == 1, "only a bridge's: {problems:?}");
    assert!(!routes.contains(&"10.244.0.0/26".to_owned()), "{routes:?}");
    bridge.kind = "bridge".to_owned();
    w.links.insert(bridge.clone());
    w.workload("w", "cali123", r#"["10.244.0.7/32"]"#);
    let (_, problems) = cut_off(&w);
    assert_eq!(problems, [""; 0]);
    let local = "local: 10.244.0.7/32 dev cali123 metric 1024";
    assert_eq!(w.routes(), [OWN, local], "behind the bridge's route");
    // A part of it is another network, which the blackhole would cover.
    bridge.addresses = vec!["10.244.0.3/27".parse().unwrap()];
    w.links.insert(bridge);
    let (_, problems) = cut_off(&w);
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn addresses_of_workloads_and_tunnels_are_nobody_elses() {
    let mut w = World::new(r#","vxlanMode":"Always""#);
    w.lifelines = ["10.244.0.9".parse().unwrap()].into();
    w.workload("w", "cali123", r#"["10.0.0.2/32"]"#);
    w.put(
        "nodes",
        "a",
        r#""ipv4VXLANTunnelAddr":"10.0.1.3","bgp":{"ipv4Address":"10.0.0.1/24"}"#,
    );
    let (routes, problems) = cut_off(&w);
    assert!(!routes.contains(&"10.0.0.2/32".to_owned()), "{routes:?}");
    assert_eq!(w.plan().tunnels["vxlan.calico"].address, None);
    let of = |text: &str| problems.iter().filter(|p| p.contains(text)).count();
    assert_eq!(
        of("the route to the workload's address 10.0.0.2/32 would cover the address"),
        1
    );
    assert_eq!(
        of("the address of vxlan.calico 10.0.1.3/32 would cover the address"),
        1
    );
    // etcd's address in a block of ours is a mistake, but for a pod that has it.
    assert_eq!(
        of("the blackhole of block 10.244.0.0/26 would cover the datastore's endpoint"),
        1
    );
    w.workload("etcd", "cali456", r#"["10.244.0.9/32"]"#);
    let (routes, _) = cut_off(&w);
    assert!(routes.contains(&"10.244.0.0/26".to_owned()), "{routes:?}");
}

/// Whoever may write a Node takes nobody's block and no workload's route with it.
#[test]
fn a_nodes_address_among_pods_takes_no_route() {
    let pools = [
        ("", "10.244.0.0/16", "10.244.1.0/26", "10.0.0.2"),
        (
            r#","vxlanMode":"Always""#,
            "10.244.0.0/16",
            "10.244.1.0/26",
            "10.0.0.2",
        ),
        ("", "fd00:10::/64", "fd00:10::1:0/122", "fd00:a::2"),
    ];
    for (mode, pool, of_b, b) in pools {
        let mut w = World::new(mode);
        let six = pool.contains("::");
        let (own, pod, guest) = match six {
            false => ("10.244.0.0/26", "10.244.0.5", "10.244.1.9"),
            true => ("fd00:10::/122", "fd00:10::5", "fd00:10::1:9"),
        };
        if six {
            w.pool("p6", pool, "");
            w.block(own, "a", &[]);
        }
        w.block(of_b, "b", &[(9, "c")]);
        if mode.is_empty() {
            w.learn(of_b, b);
        }
        let len = if six { 128 } else { 32 };
        w.workload("w", "cali123", &format!(r#"["{pod}/{len}"]"#));
        let (before, none) = cut_off(&w);
        assert_eq!(none, [""; 0]);
        for wanted in [own, of_b] {
            assert!(before.contains(&wanted.to_owned()), "{before:?}");
        }
        for address in [pod, guest] {
            // A new Node, and b's own Node with one address more.
            for name in ["rogue", "b"] {
                let bgp = if six { "ipv6Address" } else { "ipv4Address" };
                let spec = match name {
                    "b" => format!(
                        r#""ipv4VXLANTunnelAddr":"10.244.1.1","addresses":[{{"address":"{address}"}}],"bgp":{{"ipv4Address":"10.0.0.2/24","ipv6Address":"fd00:a::2/64"}}"#
                    ),
                    _ => format!(r#""bgp":{{"{bgp}":"{address}/24"}}"#),
                };
                let mut w = World {
                    snapshot: w.snapshot.clone(),
                    learned: w.learned.clone(),
                    ..World::new(mode)
                };
                w.put("nodes", name, &spec);
                let (routes, problems) = cut_off(&w);
                assert_eq!(routes, before, "{name} with {address}");
                assert_eq!(problems, [""; 0], "{name} with {address}");
                let found = w.plan().problems;
                let key = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
                let named = found.iter().find(|p| p.subject == key).unwrap();
                assert_eq!(named.code, "agent.node_address_of_pods");
                let text = format!("its address {address} is one of block ");
                assert!(named.reason.starts_with(&text), "{}", named.reason);
            }
        }
    }
}

/// Nobody sends tunnel packets from there, none is sent there, and no route leads there.
#[test]
fn a_nodes_address_among_pods_is_used_for_nothing() {
    for six in [false, true] {
        let mut w = World::new(r#","vxlanMode":"Always""#);
        let (family, pod, device) = match six {
            false => (Family::Ipv4, "10.244.0.5", "vxlan.calico"),
            true => (Family::Ipv6, "fd00:10::5", "vxlan-v6.calico"),
        };
        w.pool("p6", "fd00:10::/64", r#","vxlanMode":"Always""#);
        w.block("fd00:10::/122", "a", &[]);
        w.put(
            "nodes",
            "a",
            r#""ipv4VXLANTunnelAddr":"10.244.0.0","ipv6VXLANTunnelAddr":"fd00:10::1","bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00:a::1/64"}"#,
        );
        let of_rogue = match six {
            false => "10.244.7.0/26",
            true => "fd00:10::7:0/122",
        };
        w.block(of_rogue, "rogue", &[]);
        let rogue = |address: &str| {
            let field = if six { "ipv6Address" } else { "ipv4Address" };
            format!(
                r#""ipv4VXLANTunnelAddr":"10.244.7.0","ipv6VXLANTunnelAddr":"fd00:10::7:1","bgp":{{"{field}":"{address}/24"}}"#
            )
        };
        let seen = |w: &World, address: &str| {
            let plan = w.plan();
            let address: IpAddr = address.parse().unwrap();
            let nat = plan.nat.as_deref().unwrap();
            let rules = if six { &nat.ipv6 } else { &nat.ipv4 };
            let senders = rules.senders.as_ref().unwrap();
            (
                senders.from.contains(&Prefix::host(address)),
                plan.fdb.values().any(|far| *far == address),
                plan.routes.contains_key(&of_rogue.parse().unwrap()),
            )
        };
        assert_eq!(w.plan().tunnels[device].family(), family);
        let outside = if six { "fd00:a::7" } else { "10.0.0.7" };
        w.put("nodes", "rogue", &rogue(outside));
        assert_eq!(seen(&w, outside), (true, true, true));
        w.put("nodes", "rogue", &rogue(pod));
        assert_eq!(seen(&w, pod), (false, false, false));
        assert!(
            w.plan().problems.iter().any(|p| p
                .reason
                .contains("address of rogue is one of a block for pods")),
            "{:?}",
            w.plan().problems
        );
    }
}

/// A pool over this machine's own address is the mistake itself: there the nodes come first, and
/// etcd does everywhere.
#[test]
fn a_pool_over_this_machine_keeps_its_guard_and_etcd_has_it_everywhere() {
    let mut w = World::new("");
    w.pool("wide", "10.0.0.0/9", "");
    w.block("10.0.1.0/26", "b", &[]);
    let (routes, problems) = cut_off(&w);
    assert!(!routes.contains(&"10.0.1.0/26".to_owned()));
    assert!(problems[0].contains("the address 10.0.1.3 of node c"));
    // The same of a Node that claims to be inside, on a machine that is not.
    let mut w = World::new("");
    w.put("nodes", "a", r#""bgp":{"ipv4Address":"10.244.0.7/24"}"#);
    w.lifelines = ["10.244.0.70".parse().unwrap()].into();
    w.block("10.244.0.64/26", "a", &[]);
    let (routes, problems) = cut_off(&w);
    assert!(routes.contains(&"10.244.0.0/26".to_owned()), "{routes:?}");
    assert!(!routes.contains(&"10.244.0.64/26".to_owned()), "{routes:?}");
    assert_eq!(problems.len(), 1, "{problems:?}");
}
