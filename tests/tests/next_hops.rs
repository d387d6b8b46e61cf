//! Next-hop objects end to end: from plain routes to objects, changes of mode and a killed node meanwhile, and back to
//! plain routes, under a thousand datagrams a second between each pair of pods, of which none may be lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use caracal_lab::ip::RouteKind;
use caracal_lab::{Lab, wait_until};
use caracal_tests::kernel::try_run;
use caracal_tests::loss::{Probes, RouteMonitor, count};
use caracal_tests::{
    SECOND, assert_full_matrix, await_settled, await_status, binary, caracals, exit_code, possible,
    set_pool_modes, up,
};

const RING: [(&str, &str); 3] = [
    ("node1/p1", "node2/p1"),
    ("node2/p1", "node3/p1"),
    ("node3/p1", "node1/p1"),
];

/// What the lab starts as `caracal` from now on has this setting.
fn set(lab: &Lab, setting: &str) {
    let place = lab.folder().bin().join("caracal");
    let program = format!(
        "#!/bin/sh\nexport CARACAL_NEXTHOP_OBJECTS={setting}\nexec {} \"$@\"\n",
        binary().display()
    );
    let draft = lab.folder().bin().join(".caracal.new");
    fs::write(&draft, program).unwrap();
    fs::set_permissions(&draft, PermissionsExt::from_mode(0o755)).unwrap();
    fs::rename(&draft, &place).unwrap();
}

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

/// Objects of ours on a node, and routes of ours that lead through one, as `ip` sees them.
fn seen(lab: &Lab, node: &str) -> (usize, usize) {
    let lines = |words: &str| -> Vec<String> {
        let text = try_run(lab, node, words).unwrap();
        text.lines().map(str::to_owned).collect()
    };
    let objects = lines("ip nexthop list protocol 80").len();
    let routes = lines("ip route show proto 80");
    let through = routes.iter().filter(|r| r.contains(" nhid ")).count();
    (objects, through)
}

fn await_seen(lab: &Lab, wanted: (usize, usize)) {
    for node in caracals(lab) {
        wait_until(
            60 * SECOND,
            "objects and routes through them",
            || match seen(lab, &node) {
                seen if seen == wanted => Ok(()),
                seen => Err(format!("{node}: {seen:?}, not {wanted:?}")),
            },
        )
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(&node, 60)));
    }
}

fn await_count(lab: &Lab, kind: RouteKind, wanted: usize) {
    for node in caracals(lab) {
        wait_until(60 * SECOND, "the other mode", || {
            match count(lab, &node, kind) {
                n if n == wanted => Ok(()),
                n => Err(format!("{node}: {n} routes of {kind:?}")),
            }
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail(&node, 60)));
    }
}

#[test]
fn from_plain_routes_to_objects_and_back_under_traffic() {
    if !possible("from_plain_routes_to_objects_and_back_under_traffic", &[]) {
        return;
    }
    let mut lab = up("full-mesh", "nexthops");
    await_settled(&lab);
    assert_full_matrix(&lab);
    if try_run(&lab, "node1", "ip nexthop list").is_err() {
        println!("skipped: this kernel has no next-hop objects");
        return;
    }
    let monitors: Vec<_> = caracals(&lab)
        .iter()
        .map(|n| RouteMonitor::start(&lab, n))
        .collect();
    let probes = Probes::start(&lab, &RING);
    probes.after(500);
    set(&lab, "auto");
    restart_all(&mut lab, &probes, "objects");
    await_seen(&lab, (2, 2));
    told(&lab);

    set_pool_modes(&lab, "Never", "Always");
    await_count(&lab, RouteKind::Vxlan, 2);
    await_seen(&lab, (2, 2));
    told(&lab);
    lab.kill9_node("node1").unwrap();
    probes.after(500);
    lab.restart_node("node1").unwrap();
    await_settled(&lab);
    await_seen(&lab, (2, 2));
    set_pool_modes(&lab, "Never", "Never");
    await_count(&lab, RouteKind::Direct, 2);
    await_seen(&lab, (2, 2));

    set(&lab, "off");
    restart_all(&mut lab, &probes, "plain");
    await_seen(&lab, (0, 0));
    probes.after(500);
    probes.assert_none_lost("plain → objects → VXLAN → kill -9 → host-gw → plain");
    for monitor in &monitors {
        monitor.assert_nothing_deleted("plain → objects → plain");
    }
    assert_full_matrix(&lab);
}

/// What answers questions understands such routes.
fn told(lab: &Lab) {
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
    let routes = try_run(lab, "node1", "ip route show proto 80").unwrap();
    let through = routes.lines().find(|line| line.contains(" nhid "));
    let prefix = through.and_then(|line| line.split(' ').next()).unwrap();
    let (code, explained) = exit_code(lab, "node1", &["explain", prefix]);
    assert_eq!(code, 0, "{explained}");
    assert!(explained.contains("nhid "), "{explained}");
}
