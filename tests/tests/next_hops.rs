//! Next-hop objects end to end: as a node starts, to plain routes and back to objects, changes of
//! mode and a killed node meanwhile, and to plain routes again, under a thousand datagrams a second
//! between each pair of pods, of which none may be lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use caracal_lab::{Lab, RouteKind, wait_until};
use caracal_tests::{
    BLOCKS_PER_NODE, Probes, RouteMonitor, SECOND, assert_full_matrix, await_nexthop_objects,
    await_settled, await_status, caracals, count_routes, either, exit_code, family_count,
    kernel_has_nexthop_objects, on_each_stack_of, set_nexthop_objects, set_pool_modes, try_run_on,
    with_two_blocks,
};

const RING: [(&str, &str); 3] = [
    ("node1/p1", "node2/p1"),
    ("node2/p1", "node3/p1"),
    ("node3/p1", "node1/p1"),
];

fn restart_all(lab: &mut Lab, probes: &Probes, next_hops: &str) {
    for node in caracals(lab) {
        lab.stop_node(&node).unwrap();
        probes.after(300);
        lab.restart_node(&node).unwrap();
        await_status(
            lab,
            &node,
            60 * SECOND,
            "the other form",
            |status| match &status.kernel {
                k if k.next_hops == next_hops && k.phase == "synced" => Ok(()),
                other => Err(format!("{other:?}")),
            },
        );
    }
    await_settled(lab);
}

fn await_count(lab: &Lab, kind: RouteKind, wanted: usize) {
    for node in caracals(lab) {
        wait_until(60 * SECOND, "the other mode", || {
            match count_routes(lab, &node, kind) {
                n if n == wanted => Ok(()),
                n => Err(format!("{node}: {n} routes of {kind:?}")),
            }
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(&node, 60)));
    }
}

#[test]
fn from_objects_to_plain_routes_and_back_under_traffic() {
    let scenario = "from_objects_to_plain_routes_and_back_under_traffic";
    let text = with_two_blocks("full-mesh");
    on_each_stack_of(scenario, &[], &text, "nexthops", there_and_back);
}

fn there_and_back(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    if !kernel_has_nexthop_objects(&lab) {
        return;
    }
    // Two other nodes, each with its blocks, in each family.
    let nodes = 2 * family_count(&lab);
    let (objects, plain) = ((nodes, nodes * BLOCKS_PER_NODE), (0, 0));
    await_nexthop_objects(&lab, objects);
    let monitors = RouteMonitor::on_all(&lab);
    let probes = Probes::start(&lab, &RING);
    probes.after(500);
    set_nexthop_objects(&lab, "off");
    restart_all(&mut lab, &probes, "plain");
    await_nexthop_objects(&lab, plain);
    set_nexthop_objects(&lab, "auto");
    restart_all(&mut lab, &probes, "objects");
    await_nexthop_objects(&lab, objects);
    check_commands(&lab);

    set_pool_modes(&lab, "Never", "Always");
    await_count(&lab, RouteKind::Vxlan, nodes * BLOCKS_PER_NODE);
    await_nexthop_objects(&lab, objects);
    check_commands(&lab);
    lab.kill9_node("node1").unwrap();
    probes.after(500);
    lab.restart_node("node1").unwrap();
    await_settled(&lab);
    await_nexthop_objects(&lab, objects);
    set_pool_modes(&lab, "Never", "Never");
    await_count(&lab, RouteKind::Direct, nodes * BLOCKS_PER_NODE);
    await_nexthop_objects(&lab, objects);

    set_nexthop_objects(&lab, "off");
    restart_all(&mut lab, &probes, "plain");
    await_nexthop_objects(&lab, plain);
    probes.after(500);
    probes.assert_none_lost("objects → plain → objects → VXLAN → kill -9 → host-gw → plain");
    for monitor in &monitors {
        monitor.assert_only_vteps_deleted("objects → plain → objects → plain");
    }
    assert_full_matrix(&lab);
}

/// Commands that answer questions understand such routes.
fn check_commands(lab: &Lab) {
    let (code, audit) = wait_until(
        90 * SECOND,
        "an audit without findings",
        || match exit_code(lab, "node1", &["audit"]) {
            (0, text) => Ok((0, text)),
            (code, text) => Err(format!("exit code {code}:\n{text}")),
        },
    )
    .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(code, 0, "{audit}");
    for family in lab.topology().families() {
        let ip = either(family, "ip -4", "ip -6");
        let routes = try_run_on(lab, "node1", &format!("{ip} route show proto 80")).unwrap();
        let through = routes.lines().find(|line| line.contains(" nhid "));
        let prefix = through.and_then(|line| line.split(' ').next()).unwrap();
        let (code, explained) = exit_code(lab, "node1", &["explain", prefix]);
        assert_eq!(code, 0, "{explained}");
        assert!(explained.contains("nhid "), "{explained}");
    }
}
