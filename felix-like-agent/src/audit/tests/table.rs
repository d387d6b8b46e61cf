//! One fault for each code, and what is found.

use super::*;

pub(super) type Fault = fn(&mut Case);

/// Fault, code, subject, and words of the sentence.
pub(super) const TABLE: &[(Fault, AuditCode, &str, &str)] = &[
    (
        |c| {
            let code = ProblemCode::ServicesUnwritten;
            c.problems
                .push(problem(code, "nftables", "no nft".to_owned()));
        },
        AuditCode::Services,
        "nftables",
        "services.unwritten: no nft",
    ),
    (
        |c| {
            c.services = Some(ServiceDifferences {
                missing: vec!["services4 10.96.0.10 . tcp . 80 : goto pick-endpoints-2".to_owned()],
                ..ServiceDifferences::default()
            })
        },
        AuditCode::ServicesMissing,
        "services4 10.96.0.10 . tcp . 80",
        "the kernel has not this element",
    ),
    (
        |c| {
            c.services = Some(ServiceDifferences {
                unwanted: vec!["hits4 10.96.0.11 . tcp . 80".to_owned()],
                ..ServiceDifferences::default()
            })
        },
        AuditCode::ServicesLeftover,
        "hits4 10.96.0.11",
        "no Service asks for",
    ),
    (
        |c| c.stale = Some("no answer for 31 s"),
        AuditCode::DatastoreStale,
        "datastore",
        "no answer for 31 s",
    ),
    (
        |c| {
            let path = "/calico/resources/v3/projectcalico.org/bgppeers/x";
            c.world.snapshot.apply(path, Some(b"{"), 1);
        },
        AuditCode::InvalidValue,
        "/calico/resources/v3/projectcalico.org/bgppeers/x",
        "ignored until it is corrected",
    ),
    (
        |c| {
            let path = "/calico/resources/v3/projectcalico.org/bgpconfigurations/x";
            let value = br#"{"metadata":{"name":"x"},"spec":{"listenProt":1790}}"#;
            c.world.snapshot.apply(path, Some(value), 1);
        },
        AuditCode::FieldWithoutEffect,
        "/calico/resources/v3/projectcalico.org/bgpconfigurations/x spec.listenProt",
        "did you mean listenPort?",
    ),
    (
        |c| drop(c.world.snapshot.nodes.remove(&"a".into())),
        AuditCode::NodeMissing,
        "a",
        "no Node \"a\"",
    ),
    (
        |c| {
            c.rib.peers.push(AuditPeer {
                name: "c".to_owned(),
                established: false,
                wrong: None,
                disabled: false,
                state: "Active".to_owned(),
                reason: Some("TCP 179 refused".to_owned()),
            });
        },
        AuditCode::PeerDown,
        "c",
        "is Active: TCP 179 refused",
    ),
    (
        |c| {
            c.rib.peers.push(AuditPeer {
                name: "c".to_owned(),
                established: false,
                wrong: None,
                disabled: true,
                state: "Idle".to_owned(),
                reason: Some("disabled here: rack 7".to_owned()),
            });
        },
        AuditCode::PeerDisabled,
        "c",
        "is wanted: disabled here: rack 7",
    ),
    (
        |c| own(c).originated = false,
        AuditCode::BlockNotOriginated,
        "10.245.0.0/26",
        "no own route",
    ),
    (
        |c| {
            own(c).advertised_to.clear();
            let why = "rejected by filter".to_owned();
            own(c).withheld.insert("b".to_owned(), why);
        },
        AuditCode::BlockNotAnnounced,
        "10.245.0.0/26",
        "(b: rejected by filter)",
    ),
    (
        |c| {
            c.world.learned.clear();
            c.rib.learned = SharedMap::default();
            c.settle();
        },
        AuditCode::NoPathToBlock,
        "10.245.1.0/26",
        "block of node b",
    ),
    (
        |c| {
            c.world.learned.clear();
            c.rib.learned = SharedMap::default();
            let why = "the path from tor is not used: because".to_owned();
            c.rib.unused.insert(prefix("10.245.1.0/26"), why);
            c.settle();
        },
        AuditCode::PathRefused,
        "10.245.1.0/26",
        "block of node b, and the path from tor is not used",
    ),
    (
        |c| said(c, ProblemCode::BgpNotOwner, "a"),
        AuditCode::NotOwner,
        "a",
        "because",
    ),
    (
        |c| said(c, ProblemCode::BgpListen, "listening socket"),
        AuditCode::ListenFailed,
        "listening socket",
        "because",
    ),
    (
        |c| {
            c.rib.drained = Some("new rack".to_owned());
            c.rib.peers[0].established = false;
        },
        AuditCode::Drained,
        "a",
        "new rack",
    ),
    (
        |c| said(c, ProblemCode::BgpFilterMissing, "BGPPeer x"),
        AuditCode::BgpConfiguration,
        "BGPPeer x",
        "bgp.filter_missing: because",
    ),
    (
        |c| drop(c.actual.routes.remove(&c.route("10.244.1.0/26"))),
        AuditCode::RouteMissing,
        "10.244.1.0/26",
        "no route 10.244.1.0/26 via 10.244.1.1",
    ),
    (
        |c| {
            let key = c.route("10.245.1.0/26");
            let wrong = ForwardingTarget::via(Some([10, 0, 0, 9].into()), &"eth0".into(), true);
            c.actual.routes.get_mut(&key).unwrap()[0].target = ActualTarget::Known(wrong);
        },
        AuditCode::RouteWrong,
        "10.245.1.0/26",
        "via 10.0.0.9",
    ),
    (
        |c| c.foreign("10.245.1.0/26", 0),
        AuditCode::RouteForeign,
        "10.245.1.0/26",
        "protocol 4",
    ),
    (
        |c| {
            c.foreign("10.246.0.0/26", 0);
            let route = c.actual.routes.values_mut().flatten();
            for route in route.filter(|r| r.protocol == 4) {
                route.protocol = 80;
            }
        },
        AuditCode::RouteLeftover,
        "10.246.0.0/26",
        "nothing asks for",
    ),
    (
        |c| {
            let path = Learned::internal([10, 0, 0, 2].into());
            c.rib.learned.insert(prefix("192.0.2.0/24"), path);
        },
        AuditCode::PathNotPlanned,
        "192.0.2.0/24",
        "via 10.0.0.2",
    ),
    (
        |c| {
            c.actual.remove_link(&VXLAN.into());
            only_device(c);
        },
        AuditCode::DeviceMissing,
        VXLAN,
        "no vxlan device",
    ),
    (
        |c| c.actual.links.by_name_mut(VXLAN).unwrap().mtu = 1400,
        AuditCode::DeviceWrong,
        VXLAN,
        "MTU 1400",
    ),
    (
        |c| {
            let link = c.actual.links.by_name_mut(VXLAN).unwrap();
            link.vxlan.as_mut().unwrap().learning = true;
            only_device(c);
        },
        AuditCode::DeviceWrong,
        VXLAN,
        "not made as planned",
    ),
    (
        |c| c.actual.links.by_name_mut(VXLAN).unwrap().kind = "dummy".to_owned(),
        AuditCode::DeviceForeign,
        VXLAN,
        "\"dummy\"",
    ),
    (
        |c| c.actual.links.by_name_mut(VXLAN).unwrap().addresses.clear(),
        AuditCode::TunnelAddressMissing,
        VXLAN,
        "10.244.0.1/32",
    ),
    (
        |c| {
            c.through_objects();
            let (id, object) = c.actual.objects.iter().next().unwrap();
            let (id, mut hop) = (*id, object.hop.clone().unwrap());
            hop.gateway = Some([10, 0, 0, 77].into());
            let turned = NextHopObject {
                id,
                protocol: 80,
                hop,
            };
            apply_op(&mut c.actual, &Op::ReplaceObject(turned)).unwrap();
        },
        AuditCode::NextHopMissing,
        "1",
        "no next-hop object",
    ),
    (
        |c| {
            let hop = NextHop {
                gateway: Some([10, 0, 0, 77].into()),
                link: "eth0".into(),
                onlink: true,
                extra_weight: 0,
            };
            let object = NextHopObject {
                id: FIRST_OBJECT,
                protocol: 80,
                hop,
            };
            apply_op(&mut c.actual, &Op::AddObject(object)).unwrap();
        },
        AuditCode::NextHopLeftover,
        "1124073472",
        "no route leads through",
    ),
    (
        |c| {
            let mut link = Link::new(77, "vxlan-v6.calico");
            link.kind = "vxlan".to_owned();
            c.actual.links.insert(link);
        },
        AuditCode::DeviceLeftover,
        "vxlan-v6.calico",
        "no pool uses it",
    ),
    (
        |c| assert!(c.actual.fdb.remove(&c.vtep_fdb()).is_some()),
        AuditCode::FdbMissing,
        "dev vxlan.calico",
        "no such entry",
    ),
    (
        |c| {
            assert!(
                c.actual
                    .fdb
                    .insert(c.vtep_fdb(), [10, 9, 9, 9].into())
                    .is_some()
            )
        },
        AuditCode::FdbMissing,
        "dev vxlan.calico",
        "sends to 10.9.9.9",
    ),
    (
        |c| {
            let key = FdbKey {
                link: VXLAN.into(),
                mac: [2, 0, 0, 0, 0, 9],
            };
            c.actual.fdb.insert(key, [10, 0, 0, 9].into());
        },
        AuditCode::FdbLeftover,
        "02:00:00:00:00:09 dev vxlan.calico",
        "10.0.0.9",
    ),
    (
        |c| assert!(c.actual.neighbours.remove(&c.vtep_neighbour()).is_some()),
        AuditCode::NeighbourMissing,
        "dev vxlan.calico",
        "does not have neighbour",
    ),
    (
        |c| {
            let mut key = c.vtep_neighbour();
            let neighbour = c.actual.neighbours[&key];
            key.address = [10, 244, 9, 9].into();
            c.actual.neighbours.insert(key, neighbour);
        },
        AuditCode::NeighbourLeftover,
        "10.244.9.9 dev vxlan.calico",
        "nothing asks for",
    ),
    (
        |c| c.actual.nat = None,
        AuditCode::NatWrong,
        "nat",
        "there are none",
    ),
    (
        |c| {
            let path = "net/ipv4/ip_forward".to_owned();
            c.actual.sysctls.insert(path, "0".to_owned());
        },
        AuditCode::SysctlWrong,
        "net/ipv4/ip_forward",
        "is 0, and is to be 1",
    ),
    (
        |c| {
            c.world.links.remove("cali123");
            c.actual.remove_link(&"cali123".into());
            c.settle();
            c.actual.links.remove("cali123");
        },
        AuditCode::InterfaceMissing,
        "default/pod",
        "no such interface",
    ),
    (
        |c| {
            c.world.links.by_name_mut("cali123").unwrap().up = false;
            c.actual.links.by_name_mut("cali123").unwrap().up = false;
            c.settle();
        },
        AuditCode::InterfaceDown,
        "default/pod",
        "cali123",
    ),
    (
        |c| {
            let mut link = Link::new(78, "cali456");
            link.kind = "veth".to_owned();
            c.actual.links.insert(link);
        },
        AuditCode::InterfaceUnknown,
        "cali456",
        "no endpoint",
    ),
    (
        |c| {
            c.world.block("10.244.0.0/26", "a", &[]);
            c.settle();
        },
        AuditCode::AddressNotAllocated,
        "default/pod 10.244.0.5/32",
        "free in its block",
    ),
    (
        |c| said(c, ProblemCode::AgentKernelRefused, "add route x"),
        AuditCode::KernelRefused,
        "add route x",
        "because",
    ),
    (
        |c| said(c, ProblemCode::AgentUndone, "add route x"),
        AuditCode::Undone,
        "add route x",
        "because",
    ),
    (
        |c| c.unreadable = Some("no buffer space"),
        AuditCode::KernelUnreadable,
        "kernel",
        "no buffer space",
    ),
    (
        |c| {
            c.agent.phase = "learning".to_owned();
            c.agent.reason = Some("waiting for b".to_owned());
            // An object that may be unwanted stays, and is no finding.
            c.foreign("10.246.0.0/26", 0);
            let mut routes = c.actual.routes.values_mut().flatten();
            routes.find(|r| r.protocol == 4).unwrap().protocol = 80;
        },
        AuditCode::NotSynced,
        "agent",
        "waiting for b",
    ),
    (
        |c| c.agent.revision -= 1,
        AuditCode::Behind,
        "revision",
        "the kernel at",
    ),
    (
        |c| said(c, ProblemCode::AgentNoParent, "a"),
        AuditCode::CannotPlan,
        "a agent.no_parent",
        "agent.no_parent: because",
    ),
    (
        |c| said(c, ProblemCode::AgentNodeAddressOfPods, "b"),
        AuditCode::RangesOverlap,
        "b",
        "because",
    ),
    (
        |c| said(c, ProblemCode::AgentPathMtu, "b"),
        AuditCode::PathNarrow,
        "b",
        "because",
    ),
    (
        |c| said(c, ProblemCode::AgentUntoldRouter, "pool p"),
        AuditCode::UntoldRouter,
        "pool p",
        "because",
    ),
    (
        |c| said(c, ProblemCode::IpamTunnelAddress, "a"),
        AuditCode::Ipam,
        "a",
        "because",
    ),
    (
        |c| said(c, ProblemCode::BgpOwnerUnknown, "a"),
        AuditCode::OwnerUnknown,
        "a",
        "because",
    ),
    (
        |c| said(c, ProblemCode::DatastoreNoWrites, "a"),
        AuditCode::NoWrites,
        "a",
        "because",
    ),
    (
        |c| {
            let path = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
            let value = br#"{"spec":{"datastoreReady":false}}"#;
            c.world.snapshot.apply(path, Some(value), 1);
        },
        AuditCode::DatastoreLocked,
        "/calico/resources/v3/projectcalico.org/clusterinformations/default",
        "caracal datastore unlock",
    ),
    (
        |c| {
            let path = "/calico/resources/v3/projectcalico.org/networkpolicies/a/b";
            c.world.snapshot.apply(path, Some(b"{}"), 1);
        },
        AuditCode::PolicyNotEnforced,
        "/calico/resources/v3/projectcalico.org/networkpolicies",
        "nobody here enforces it",
    ),
    (
        |c| said(c, ProblemCode::DatastoreNodeGone, "a"),
        AuditCode::NodeGone,
        "a",
        "because",
    ),
    (
        |c| said(c, ProblemCode::DatastoreRanges, "a"),
        AuditCode::RangesOverlap,
        "a",
        "because",
    ),
    (
        |c| said(c, ProblemCode::NodeLibDir, "a"),
        AuditCode::NodeRecord,
        "a",
        "because",
    ),
    (
        |c| said(c, ProblemCode::NodeRegistration, "a"),
        AuditCode::NodeRecord,
        "a",
        "because",
    ),
];

fn own(c: &mut Case) -> &mut OwnBlock {
    c.rib.own_blocks.get_mut(&prefix("10.245.0.0/26")).unwrap()
}

fn said(c: &mut Case, code: ProblemCode, subject: &str) {
    c.problems
        .push(problem(code, subject, "because".to_owned()));
}

/// Objects on a device are missing with it; here only the device is compared.
fn only_device(c: &mut Case) {
    c.desired.routes.retain(|_, planned| {
        !planned
            .route
            .target
            .links()
            .any(|link| link.as_str() == VXLAN)
    });
    c.actual.routes.retain(|_, routes| {
        !routes
            .iter()
            .any(|r| r.next_hops().iter().any(|hop| hop.link.as_str() == VXLAN))
    });
    c.desired
        .neighbours
        .retain(|key, _| key.link.as_str() != VXLAN);
    c.desired.fdb.clear();
    c.actual
        .neighbours
        .retain(|key, _| key.link.as_str() != VXLAN);
    c.actual.fdb.clear();
    c.desired.tunnels.get_mut(VXLAN).unwrap().address = None;
    let prefixes = ["10.244.1.0/26", "10.244.2.0/26"].map(prefix);
    for prefix in prefixes {
        c.desired.skipped.insert(prefix, "not looked at".to_owned());
    }
}
