#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::*;
use crate::kernel_objects::{BLACKHOLE_METRIC, ForwardingTarget, PlannedRoute, Route, RouteKind};
use crate::links::{Link, Links};
use crate::ownership::{ClusterAddresses, Ownership};

fn via(gateway: &str, link: &str) -> ForwardingTarget {
    ForwardingTarget::via(Some(gateway.parse().unwrap()), &link.into(), false)
}

fn route(prefix: &str, protocol: u8, metric: u32, target: ForwardingTarget) -> Route {
    Route {
        prefix: prefix.parse().unwrap(),
        metric,
        protocol,
        target,
        mtu: None,
        source: None,
    }
}

/// Two nodes; 10.244.1.0/26 is ours.
fn desired() -> Desired {
    let mut desired = Desired {
        ownership: Ownership {
            cluster: Arc::new(ClusterAddresses {
                pools: vec![("10.244.0.0/16".parse().unwrap(), 26)],
                nodes: ["10.0.0.1", "10.0.0.2"]
                    .map(|a| (a.parse().unwrap(), 1))
                    .into_iter()
                    .collect(),
            }),
            ..Ownership::default()
        },
        ..Desired::default()
    };
    for (kind, route) in [
        (
            RouteKind::Direct,
            route("10.244.2.0/26", 80, 0, via("10.0.0.2", "eth0")),
        ),
        (
            RouteKind::Blackhole,
            route(
                "10.244.1.0/26",
                80,
                BLACKHOLE_METRIC,
                ForwardingTarget::Blackhole,
            ),
        ),
    ] {
        let planned = PlannedRoute { route, kind };
        desired.routes.insert(planned.route.prefix, planned);
    }
    desired
}

fn kernel(routes: impl IntoIterator<Item = Route>) -> Actual {
    let mut actual = Actual {
        links: Links::from_iter([Link::new(2, "eth0")]),
        ..Actual::default()
    };
    for route in routes {
        actual.push_route(route.into());
    }
    actual
}

/// Routes that Calico's BIRD leaves on such a node.
fn calicos() -> Vec<Route> {
    vec![
        route("10.244.1.0/26", 12, 0, ForwardingTarget::Blackhole),
        route("10.244.2.0/26", 12, 0, via("10.0.0.2", "eth0")),
    ]
}

/// The kernel after the ops of one pass; only routes are done.
fn apply(actual: &Actual, ops: &[Op]) -> Actual {
    let mut after = actual.clone();
    for op in ops {
        match op {
            Op::AddRoute(new) => after.push_route(new.clone().into()),
            Op::ReplaceRoute(new) => {
                after.routes.get_mut(&new.key()).unwrap()[0] = new.clone().into();
            }
            Op::DeleteRoute(old) => {
                let there = after.routes.get_mut(&old.key()).unwrap();
                there.retain(|r| r != old);
                if there.is_empty() {
                    after.routes.remove(&old.key());
                }
            }
            _ => {}
        }
    }
    after
}

#[test]
fn a_node_of_calicos_is_taken_over_in_two_passes_without_a_gap() {
    let desired = desired();
    let before = kernel(calicos());
    for phase in [Phase::Learning, Phase::Synced] {
        let ops = diff(&desired, &before, phase);
        assert!(!ops.iter().any(Op::is_delete), "{phase:?}: {ops:?}");
        assert_eq!(ops.len(), 2, "{phase:?}: {ops:?}");
    }
    let between = apply(&before, &diff(&desired, &before, Phase::Synced));
    // BIRD's blackhole goes once ours is seen; the way to the other node was replaced under the
    // same key.
    let second = diff(&desired, &between, Phase::Synced);
    assert!(
        matches!(&second[..], [Op::DeleteRoute(r)] if r.protocol == 12),
        "{second:?}"
    );
    assert_eq!(diff(&desired, &between, Phase::Learning), []);
    let after = apply(&between, &second);
    assert_eq!(diff(&desired, &after, Phase::Synced), []);
    assert!(after.all_routes().all(|r| r.protocol == 80));
    assert_eq!(conflicts(&desired, &before), []);
}

#[test]
fn stale_routes_go_only_when_nobody_but_calico_wrote_them() {
    let certain = route("10.244.7.0/26", 12, 0, via("10.0.0.2", "eth0"));
    let behind_a_router = route("10.244.8.0/26", 12, 0, via("10.0.0.254", "eth0"));
    let another_birds = route("192.0.2.0/24", 12, 0, via("10.0.0.2", "eth0"));
    let actual = kernel([certain.clone(), behind_a_router, another_birds]);
    let learning = diff(&desired(), &actual, Phase::Learning);
    assert!(!learning.iter().any(Op::is_delete), "AGENT-4: {learning:?}");
    let deleted: Vec<Op> = diff(&desired(), &actual, Phase::Synced)
        .into_iter()
        .filter(Op::is_delete)
        .collect();
    assert_eq!(deleted, [Op::DeleteRoute(certain.into())]);
}

#[test]
fn the_report_names_each_route_with_its_fate() {
    let mut routes = calicos();
    routes.push(route("10.244.7.0/26", 12, 0, via("10.0.0.2", "eth0")));
    routes.push(route("192.0.2.0/24", 12, 0, via("10.0.0.2", "eth0")));
    routes.push(route("10.244.9.0/26", 4, 0, via("10.0.0.2", "eth0")));
    let items = adoption_report(&desired(), &kernel(routes));
    let fates: Vec<_> = items
        .iter()
        .map(|item| (item.object.split(' ').next().unwrap(), item.fate))
        .collect();
    assert_eq!(
        fates,
        [
            ("10.244.1.0/26", Fate::Replaced),
            ("10.244.2.0/26", Fate::Replaced),
            ("10.244.7.0/26", Fate::Removed),
            ("10.244.9.0/26", Fate::Left),
            ("192.0.2.0/24", Fate::Left),
        ]
    );
    assert!(items.iter().all(|item| !item.reason.is_empty()));
    let desired = desired();
    let own = desired.routes.values().map(|p| p.route.clone());
    let items = adoption_report(&desired, &kernel(own));
    assert!(
        items.iter().all(|item| item.fate == Fate::Adopted),
        "{items:?}"
    );
}

#[test]
fn handing_back_gives_bird_its_routes_in_place() {
    let own: Vec<Route> = desired().routes.values().map(|p| p.route.clone()).collect();
    let mut routes = own;
    routes.push(route("10.244.3.0/26", 80, 0, via("10.0.0.3", "tunl0")));
    routes.push(route(
        "10.244.4.0/26",
        80,
        0,
        via("10.244.4.0", "vxlan.calico"),
    ));
    let pod = ForwardingTarget::via(None, &"cali1".into(), false);
    routes.push(route("10.244.1.5/32", 80, 1024, pod));
    let text = |ipip| -> Vec<String> {
        let ops = hand_back_ops(&kernel(routes.clone()), ipip);
        ops.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        text(false),
        [
            "add route 10.244.1.0/26 blackhole proto 12 metric 0",
            "replace route 10.244.2.0/26 via 10.0.0.2 dev eth0 proto 12 metric 0",
            "delete route 10.244.1.0/26 blackhole proto 80 metric 1000000",
        ]
    );
    let older = text(true);
    assert!(
        older.contains(
            &"replace route 10.244.3.0/26 via 10.0.0.3 dev tunl0 proto 12 metric 0".to_owned()
        ),
        "{older:?}"
    );
    assert_eq!(older.len(), 4, "neither VXLAN nor workloads: {older:?}");
    // And what was handed back is what is taken over again.
    let handed = apply(
        &kernel(routes.clone()),
        &hand_back_ops(&kernel(routes), false),
    );
    let fates: Vec<Fate> = adoption_report(&desired(), &handed)
        .into_iter()
        .filter(|item| item.object.contains("proto bird"))
        .map(|item| item.fate)
        .collect();
    assert_eq!(fates, [Fate::Replaced, Fate::Replaced]);
}
