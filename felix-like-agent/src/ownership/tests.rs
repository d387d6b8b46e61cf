use super::*;
use crate::actual::ActualTarget;
use crate::kernel_objects::ForwardingTarget;

fn route(protocol: u8, link: &str) -> ActualRoute {
    ActualRoute {
        prefix: "10.244.1.7/32".parse().unwrap(),
        metric: 0,
        tos: 0,
        protocol,
        target: ActualTarget::Known(ForwardingTarget::via(None, &link.into(), false)),
        mtu: None,
        source: None,
    }
}

/// A gateway on a link.
fn via(gateway: &str, link: &str) -> ForwardingTarget {
    ForwardingTarget::via(Some(gateway.parse().unwrap()), &link.into(), false)
}

/// Prefix, protocol and target of a route, and what a rule says: its owner, and whether that is
/// certain.
type Case = (&'static str, u8, ForwardingTarget, Owner, bool);

/// Asserts what a rule says of each route; for what else is to be said, answers with the routes.
fn assert_owners<const N: usize>(rule: &Ownership, cases: [Case; N]) -> [ActualRoute; N] {
    cases.map(|(prefix, protocol, target, owner, certain)| {
        let mut route = route(protocol, "eth0");
        route.prefix = prefix.parse().unwrap();
        route.target = ActualTarget::Known(target);
        assert_eq!(rule.route(&route), owner, "{route:?}");
        assert_eq!(rule.is_certain(&route), certain, "{route:?}");
        route
    })
}

#[test]
fn agent_5_ownership_is_protocol_and_device() {
    let rule = Ownership::default();
    for (protocol, link, owner) in [
        (80, "eth0", Owner::Ours),
        (80, "tunl0", Owner::Ours),
        (12, "tunl0", Owner::Ours),
        (12, "eth0", Owner::Foreign),
        (12, "cali123", Owner::Foreign),
        (3, "vxlan.calico", Owner::Ours),
        (2, "vxlan.calico", Owner::Foreign),
        (4, "vxlan.calico", Owner::Foreign),
        (3, "tunl0", Owner::Foreign),
        (3, "eth0", Owner::Foreign),
        (3, "cali123", Owner::Adoptable),
        (2, "cali123", Owner::Foreign),
        (3, "flannel.1", Owner::Foreign),
    ] {
        assert_eq!(
            rule.route(&route(protocol, link)),
            owner,
            "{protocol} {link}"
        );
    }
    let mut blackhole = route(80, "eth0");
    blackhole.target = ActualTarget::Known(ForwardingTarget::Blackhole);
    assert_eq!(rule.route(&blackhole), Owner::Ours);
    blackhole.protocol = 12;
    assert_eq!(rule.route(&blackhole), Owner::Foreign);
}

#[test]
fn agent_5_a_leftover_is_protocol_pool_and_shape() {
    let rule = Ownership {
        cluster: Arc::new(ClusterAddresses {
            pools: vec![("10.244.0.0/16".parse().unwrap(), 26)],
            nodes: [("10.0.0.2".parse().unwrap(), 1)].into_iter().collect(),
        }),
        ..Ownership::default()
    };
    let two = |a: &str, b: &str| match (via(a, "eth0"), via(b, "eth0")) {
        (ForwardingTarget::Via(a), ForwardingTarget::Via(b)) => {
            ForwardingTarget::Via([a, b].concat())
        }
        _ => unreachable!("both are ways"),
    };
    let direct = ForwardingTarget::via(None, &"eth0".into(), false);
    let cases = [
        (
            "10.244.2.0/26",
            12,
            via("10.0.0.2", "eth0"),
            Owner::Leftover,
            true,
        ),
        (
            "10.244.2.7/32",
            12,
            via("10.0.0.2", "eth0"),
            Owner::Leftover,
            true,
        ),
        // Behind a router: Calico's when we know better, and left alone when not.
        (
            "10.244.2.0/26",
            12,
            via("10.0.0.254", "eth0"),
            Owner::Leftover,
            false,
        ),
        (
            "10.244.2.0/26",
            12,
            two("10.0.0.2", "10.0.0.254"),
            Owner::Leftover,
            false,
        ),
        (
            "10.244.1.0/26",
            12,
            ForwardingTarget::Blackhole,
            Owner::Leftover,
            true,
        ),
        (
            "10.244.1.0/24",
            12,
            ForwardingTarget::Blackhole,
            Owner::Leftover,
            false,
        ),
        (
            "10.244.1.7/32",
            12,
            ForwardingTarget::Blackhole,
            Owner::Foreign,
            false,
        ),
        // Another BIRD of the host's: other prefixes, other ways.
        (
            "192.0.2.0/24",
            12,
            via("10.0.0.2", "eth0"),
            Owner::Foreign,
            true,
        ),
        (
            "0.0.0.0/0",
            12,
            via("10.0.0.254", "eth0"),
            Owner::Foreign,
            false,
        ),
        ("10.244.2.0/26", 12, direct, Owner::Foreign, false),
        (
            "10.244.2.7/32",
            12,
            via("10.0.0.2", "cali1"),
            Owner::Foreign,
            true,
        ),
        // Other programs.
        (
            "10.244.2.0/26",
            4,
            via("10.0.0.2", "eth0"),
            Owner::Foreign,
            true,
        ),
        (
            "10.244.2.0/26",
            186,
            via("10.0.0.2", "eth0"),
            Owner::Foreign,
            true,
        ),
    ];
    for route in assert_owners(&rule, cases) {
        assert_ne!(Ownership::default().route(&route), Owner::Leftover);
    }
}

#[test]
fn agent_5_of_flannels_its_devices_and_whole_subnets_to_nodes() {
    let rule = Ownership::flannel(
        vec!["flannel.1".into()],
        vec![("10.5.0.0/16".parse().unwrap(), 24)],
        ["10.0.0.2".parse().unwrap()],
    );
    let cases = [
        (
            "10.5.2.0/24",
            82,
            via("10.5.2.0", "flannel.1"),
            Owner::Ours,
            false,
        ),
        (
            "10.5.2.0/24",
            82,
            via("10.0.0.2", "eth0"),
            Owner::Ours,
            true,
        ),
        (
            "10.5.2.0/24",
            3,
            via("10.5.2.0", "flannel.1"),
            Owner::Ours,
            false,
        ),
        (
            "10.5.2.0/24",
            3,
            via("10.5.2.0", "flannel.2"),
            Owner::Leftover,
            false,
        ),
        (
            "10.5.2.0/24",
            3,
            via("10.0.0.2", "eth0"),
            Owner::Leftover,
            true,
        ),
        (
            "10.5.2.0/24",
            3,
            via("10.0.0.3", "eth0"),
            Owner::Leftover,
            false,
        ),
        // An administrator's, the kernel's, a Calico node's.
        (
            "10.5.2.9/32",
            3,
            via("10.0.0.2", "eth0"),
            Owner::Foreign,
            true,
        ),
        (
            "10.6.2.0/24",
            3,
            via("10.0.0.2", "eth0"),
            Owner::Foreign,
            true,
        ),
        (
            "10.5.2.0/24",
            4,
            via("10.0.0.2", "eth0"),
            Owner::Foreign,
            true,
        ),
        (
            "10.5.2.0/24",
            80,
            via("10.0.0.2", "eth0"),
            Owner::Foreign,
            true,
        ),
    ];
    for route in assert_owners(&rule, cases) {
        let calico = Ownership::default().route(&route);
        assert_eq!(calico == Owner::Ours, route.protocol == 80, "{route:?}");
    }
    let mut link = Link::new(3, "flannel.1");
    link.kind = "vxlan".into();
    assert!(rule.tunnel(&link) && !Ownership::default().tunnel(&link));
    for other in ["vxlan.calico", "flannel.2", "flannel.10"] {
        link.name = other.into();
        assert!(!rule.tunnel(&link), "{other}");
    }
}

#[test]
fn a_device_with_our_name_and_another_kind_is_foreign() {
    let rule = Ownership::default();
    let mut link = Link::new(3, "vxlan.calico");
    link.kind = "dummy".into();
    assert!(!rule.tunnel(&link));
    link.kind = "vxlan".into();
    assert!(rule.tunnel(&link));
    assert!(rule.address(&link, &"10.244.0.1/32".parse().unwrap()));
    assert!(!rule.address(&link, &"fe80::1/64".parse().unwrap()));
}
