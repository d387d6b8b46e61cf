//! Whole clusters in namespaces on this machine's kernel: real etcd, real BGP, real routes, real
//! packets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;

use caracal_lab::{Lab, Route, RouteKind, VXLAN_FILTER, wait_for, wait_until};
use caracal_model::{Family, NodeStatus, Problem};
use caracal_tests::{
    Probes, SECOND, addresses, assert_full_matrix, assert_gone, await_remembered, await_settled,
    await_status, caracals, count_routes, either, family_count, focus, late_pool, on_each_stack,
    on_each_stack_and_datastore, possible, routes_by_kind, settled, speaks, start_datastore,
    stop_datastore, up,
};

#[test]
fn full_mesh_routes_directly() {
    on_each_stack_and_datastore(
        "full_mesh_routes_directly",
        &[],
        "full-mesh",
        "e2e-mesh",
        direct_routes,
    );
}

fn without_problems(status: &NodeStatus) -> Result<(), String> {
    match status.problems.is_empty() {
        true => Ok(()),
        false => Err(format!("{:?}", status.problems)),
    }
}

fn direct_routes(lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let times = family_count(&lab);
    for node in caracals(&lab) {
        let status = lab.node_status(&node).unwrap();
        assert_eq!(status.peers.len(), 2 * times, "{status:?}");
        assert_eq!(
            count_routes(&lab, &node, RouteKind::Direct),
            2 * times,
            "{:?}",
            routes_by_kind(&lab, &node)
        );
        assert_eq!(count_routes(&lab, &node, RouteKind::Blackhole), times);
        assert_eq!(
            count_routes(&lab, &node, RouteKind::Local),
            2 * times,
            "one for each pod"
        );
        await_status(&lab, &node, 60 * SECOND, "no problem", without_problems);
        for (kind, route) in routes_by_kind(&lab, &node) {
            if matches!(kind, RouteKind::Direct | RouteKind::Blackhole) {
                assert_eq!(route.protocol.as_deref(), Some("80"), "{route:?}");
            }
        }
    }
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}

#[test]
fn cross_subnet_encapsulates_only_across_the_router() {
    on_each_stack(
        "cross_subnet_encapsulates_only_across_the_router",
        &["tcpdump"],
        "cross-subnet",
        "e2e-cross",
        encapsulation_across_the_router,
    );
}

fn encapsulation_across_the_router(lab: Lab) {
    await_settled(&lab);
    let rack1 = lab.capture_segment("rack1", VXLAN_FILTER).unwrap();
    assert_full_matrix(&lab);
    rack1
        .wait_for(1, 60 * SECOND)
        .expect("packets to the other rack travel as VXLAN");
    let seen = rack1.stop();
    // No VXLAN between two nodes of one rack.
    let rack: Vec<_> = ["node1", "node2"]
        .iter()
        .flat_map(|n| addresses(&lab, n))
        .collect();
    let ends = |p: &str| {
        let is_end = |a: &&IpAddr| p.contains(&format!(" {a}."));
        rack.iter().filter(is_end).count()
    };
    assert!(
        seen.packets.iter().any(|p| ends(p) == 1),
        "{:?}",
        seen.packets
    );
    let within = |p: &&String| ends(p) >= 2;
    assert_eq!(
        seen.packets.iter().filter(within).count(),
        0,
        "{:?}",
        seen.packets
    );
    for node in caracals(&lab) {
        let seen = [RouteKind::Direct, RouteKind::Vxlan].map(|k| count_routes(&lab, &node, k));
        let times = family_count(&lab);
        assert_eq!(
            seen,
            [times, 2 * times],
            "{:?}",
            routes_by_kind(&lab, &node)
        );
    }
}

#[test]
fn reflectors_carry_routes_between_clients() {
    on_each_stack(
        "reflectors_carry_routes_between_clients",
        &[],
        "rr-pair",
        "e2e-rr",
        reflection,
    );
}

fn reflection(lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let mut reflectors = [addresses(&lab, "rr1"), addresses(&lab, "rr2")].concat();
    reflectors.sort();
    for node in ["node1", "node2", "node3"] {
        let status = lab.node_status(node).unwrap();
        let mut peers: Vec<_> = status.peers.iter().filter_map(|p| p.address).collect();
        peers.sort();
        assert_eq!(
            peers, reflectors,
            "a client peers with the reflectors alone"
        );
        assert_eq!(
            count_routes(&lab, node, RouteKind::Direct),
            2 * family_count(&lab)
        );
    }
}

/// The first loss measurement: a node's process is killed while traffic flows to and from its pod.
#[test]
fn kill_9_loses_nothing() {
    on_each_stack_and_datastore("kill_9_loses_nothing", &[], "full-mesh", "e2e-kill", kill_9);
}

fn kill_9(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1"), ("node2/p1", "node3/p1")]);
    probes.after(1000);
    let before = routes_by_kind(&lab, "node2");
    lab.kill9_node("node2").unwrap();
    probes.after(5000);
    assert_eq!(
        routes_by_kind(&lab, "node2"),
        before,
        "the kernel forwards without the process"
    );
    let stale = await_status(
        &lab,
        "node1",
        60 * SECOND,
        "node2's routes kept as stale",
        |s| match s.peers.iter().filter(|p| p.stale).count() {
            n if n == family_count(&lab) => Ok(()),
            _ => Err(format!("{:?}", s.peers)),
        },
    );
    assert_eq!(
        count_routes(&lab, "node1", RouteKind::Direct),
        2 * family_count(&lab),
        "{:?}",
        stale.peers
    );
    lab.restart_node("node2").unwrap();
    await_settled(&lab);
    probes.after(2000);
    probes.assert_none_lost("kill -9, down for 5 s, and back");
    assert_eq!(routes_by_kind(&lab, "node2"), before);
}

#[test]
fn sigterm_and_restart_lose_nothing() {
    on_each_stack(
        "sigterm_and_restart_lose_nothing",
        &[],
        "full-mesh",
        "e2e-term",
        sigterm_and_restart,
    );
}

fn sigterm_and_restart(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1")]);
    probes.after(500);
    for node in ["node2", "node1"] {
        lab.stop_node(node).unwrap();
        probes.after(2000);
        lab.restart_node(node).unwrap();
        await_settled(&lab);
    }
    probes.after(1000);
    probes.assert_none_lost("SIGTERM, down for 2 s, and back, receiver then sender");
}

#[test]
fn bad_values_are_named_and_cost_only_themselves() {
    let scenario = "bad_values_are_named_and_cost_only_themselves";
    on_each_stack(scenario, &[], "full-mesh", "e2e-bad", bad_values);
}

fn bad_values(lab: Lab) {
    let family = focus(&lab);
    await_settled(&lab);
    let resources = "/calico/resources/v3/projectcalico.org";
    let good = |kind: &str, name: &str, spec: &str| {
        let text = format!(
            r#"{{"kind":"{kind}","apiVersion":"projectcalico.org/v3","metadata":{{"name":"{name}"}},"spec":{spec}}}"#
        );
        text.into_bytes()
    };
    let bad: [(&str, Vec<u8>, &str); 5] = [
        (
            "bgpconfigurations/default",
            b"{nonsense".to_vec(),
            "key must be a string",
        ),
        (
            "ippools/nonsense",
            good(
                "IPPool",
                "nonsense",
                either(
                    family,
                    r#"{"cidr":"10.300.0.0/16"}"#,
                    r#"{"cidr":"fd00:1:::/64"}"#,
                ),
            ),
            "is not a CIDR",
        ),
        (
            "ippools/strange",
            good(
                "IPPool",
                "strange",
                either(
                    family,
                    r#"{"cidr":"10.77.0.0/16","ipipMode":"Sometimes"}"#,
                    r#"{"cidr":"fd00:77::/64","vxlanMode":"Sometimes"}"#,
                ),
            ),
            "encapsulation mode \"Sometimes\" is not known",
        ),
        (
            "bgppeers/bad-as",
            good(
                "BGPPeer",
                "bad-as",
                either(
                    family,
                    r#"{"peerIP":"10.0.0.99","asNumber":99999999999}"#,
                    r#"{"peerIP":"fd00:10::99","asNumber":99999999999}"#,
                ),
            ),
            "AS number 99999999999 is out of range",
        ),
        (
            "bgppeers/as-zero",
            good(
                "BGPPeer",
                "as-zero",
                either(
                    family,
                    r#"{"peerIP":"10.0.0.98","asNumber":0}"#,
                    r#"{"peerIP":"fd00:10::98","asNumber":0}"#,
                ),
            ),
            "RFC 7607",
        ),
    ];
    for (path, value, _) in &bad {
        lab.etcdctl(&["put", &format!("{resources}/{path}")], value)
            .unwrap();
    }
    let named = |problems: &[Problem]| -> Result<(), String> {
        for (path, _, reason) in &bad {
            let key = format!("{resources}/{path}");
            match problems.iter().find(|p| p.subject == key) {
                Some(problem) if problem.reason.contains(reason) => {}
                other => return Err(format!("{key}: expected {reason:?}, found {other:?}")),
            }
        }
        Ok(())
    };
    for node in caracals(&lab) {
        await_status(&lab, &node, 60 * SECOND, "every bad value named", |s| {
            named(&s.problems)
        });
        wait_until(60 * SECOND, "every bad value in the log", || {
            let log = lab.folder().log_tail(&node, 400);
            match bad.iter().find(|(path, ..)| !log.contains(path)) {
                Some((path, ..)) => Err(format!("{node} does not name {path} in its log:\n{log}")),
                None => Ok(()),
            }
        })
        .unwrap();
    }
    // The rest works on: a good change beside the bad ones takes effect.
    let tunnel = late_pool(&lab);
    await_status(&lab, "node1", 60 * SECOND, "the good pool's tunnel", |s| {
        if s.kernel.tunnels.iter().any(|t| t == tunnel) {
            Ok(())
        } else {
            Err(format!("{:?}", s.kernel))
        }
    });
    assert_full_matrix(&lab);
    for (path, ..) in &bad {
        lab.etcdctl(&["del", &format!("{resources}/{path}")], b"")
            .unwrap();
    }
    for node in caracals(&lab) {
        await_status(&lab, &node, 60 * SECOND, "no problem left", |s| {
            if s.problems.is_empty() {
                settled(s)
            } else {
                Err(format!("{:?}", s.problems))
            }
        });
    }
}

#[test]
fn foreign_routes_stay_and_ours_come_back() {
    on_each_stack(
        "foreign_routes_stay_and_ours_come_back",
        &[],
        "full-mesh",
        "e2e-own",
        foreign_routes_and_ours,
    );
}

fn foreign_routes_and_ours(mut lab: Lab) {
    await_settled(&lab);
    let netns = lab.netns("node1").unwrap();
    let mut foreign = Vec::new();
    for via in addresses(&lab, "node2") {
        let dsts = match via {
            IpAddr::V4(_) => ["10.244.200.0/26", "172.30.0.0/16"],
            IpAddr::V6(_) => ["fd00:10:244:0:200::/122", "fd00:172::/64"],
        };
        for dst in dsts {
            let line = format!("route add {dst} via {via} proto static");
            caracal_lab::ip_batch(Some(&netns), &[line]).unwrap();
            foreign.push(dst);
        }
    }
    let is_ours = |(kind, route): &(RouteKind, Route)| {
        *kind == RouteKind::Direct && route.protocol.as_deref() == Some("80")
    };
    let ours: Vec<_> = routes_by_kind(&lab, "node1")
        .into_iter()
        .filter(is_ours)
        .collect();
    assert_eq!(ours.len(), 2 * family_count(&lab));
    for (_, route) in &ours {
        let line = format!("route del {}", route.dst);
        caracal_lab::ip_batch(Some(&netns), &[line]).unwrap();
    }
    wait_until(60 * SECOND, "our routes are back", || {
        let left = routes_by_kind(&lab, "node1");
        match ours.iter().find(|o| !left.contains(o)) {
            None => Ok(()),
            Some(missing) => Err(format!("{missing:?}")),
        }
    })
    .unwrap();
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_settled(&lab);
    let left = lab.routes("node1").unwrap();
    for dst in foreign {
        assert!(left.iter().any(|r| r.dst == dst), "{dst} is gone: {left:?}");
    }
}

#[test]
fn traffic_that_leaves_the_pools_is_masqueraded() {
    on_each_stack(
        "traffic_that_leaves_the_pools_is_masqueraded",
        &["tcpdump", "nft"],
        "full-mesh",
        "e2e-nat",
        masquerading,
    );
}

fn masquerading(lab: Lab) {
    await_settled(&lab);
    let etcd = lab.layout().etcd[0].clone();
    let ping = |to: IpAddr| {
        let mut ping = caracal_lab::program_command("ping").unwrap();
        ping.args(["-n", "-c", "3", "-i", "0.2", "-W", "5", &to.to_string()]);
        let pod = lab.netns("node1/p1").unwrap();
        caracal_lab::call_program(Some(&pod), &mut ping, b"", 60 * SECOND).unwrap();
    };
    let pod = |node: &str| {
        let mut pods = lab.state().pods.iter();
        pods.find(|p| p.node == node).unwrap().clone()
    };
    for family in lab.topology().families() {
        let request = match family {
            Family::Ipv4 => "icmp[icmptype] == icmp-echo",
            Family::Ipv6 => "icmp6 and ip6[40] == 128",
        };
        let (node, _) = lab
            .layout()
            .node("node1")
            .unwrap()
            .uplink
            .address_of(family)
            .unwrap();
        let source = pod("node1").address_of(family).unwrap();
        let outside = lab.capture("etcd", &etcd.device, request).unwrap();
        ping(etcd.address_of(family).unwrap().0);
        outside.wait_for(3, 60 * SECOND).unwrap();
        for packet in outside.stop().packets {
            assert!(
                packet.contains(&format!(" {node} >")),
                "the node's address is the source: {packet}"
            );
        }
        // Nodes measure their paths with echoes as well.
        let other = pod("node2").address_of(family).unwrap();
        let to_pod = format!("{request} and dst host {other}");
        let inside = lab.capture("node2", "eth0", &to_pod).unwrap();
        ping(other);
        inside.wait_for(3, 60 * SECOND).unwrap();
        for packet in inside.stop().packets {
            assert!(
                packet.contains(&format!(" {source} >")),
                "between pods the pod's address stays: {packet}"
            );
        }
    }
}

#[test]
fn a_kernel_without_ipip_is_explained() {
    if !possible("a_kernel_without_ipip_is_explained", &[]) {
        return;
    }
    let lab = up("ipip-always", "e2e-noipip");
    let looked = await_status(
        &lab,
        "node1",
        60 * SECOND,
        "a tunnel or the reason why there is none",
        |s| {
            let explained = s.problems.iter().any(|p| p.code == "agent.no_ipip");
            if explained || s.kernel.tunnels.iter().any(|t| t == "tunl0") {
                Ok(())
            } else {
                Err(format!("{s:?}"))
            }
        },
    );
    let Some(problem) = looked.problems.iter().find(|p| p.code == "agent.no_ipip") else {
        println!("this kernel has IPIP: nothing to explain");
        return;
    };
    println!("{}: {}", problem.subject, problem.reason);
    for word in [
        "default-ipv4-ippool",
        "ipip",
        "load the module or use VXLAN",
    ] {
        assert!(
            problem.reason.contains(word),
            "{word} is missing: {}",
            problem.reason
        );
    }
    assert!(lab.node_runs("node1"), "no crash loop");
}

#[test]
fn a_pod_deleted_while_the_datastore_is_down_leaks_no_address() {
    on_each_stack_and_datastore(
        "a_pod_deleted_while_the_datastore_is_down_leaks_no_address",
        &[],
        "full-mesh",
        "e2e-tomb",
        a_pending_release,
    );
}

fn a_pending_release(mut lab: Lab) {
    await_settled(&lab);
    await_remembered(&lab, "node2");
    let pod = lab
        .state()
        .pods
        .iter()
        .find(|p| p.node == "node1")
        .unwrap()
        .clone();
    let in_use = |lab: &Lab| {
        let status = lab.node_status("node1").unwrap();
        status.blocks.iter().map(|b| b.in_use).sum::<usize>()
    };
    let before = in_use(&lab);
    stop_datastore(&mut lab);
    lab.cni("DEL", &pod)
        .expect("DEL succeeds without the datastore");
    a_node_that_cannot_start_says_what_it_waits_for(&mut lab, "node2");
    start_datastore(&mut lab);
    wait_for(
        60 * SECOND,
        "the address is free again",
        || in_use(&lab),
        |now| *now == before - family_count(&lab),
    )
    .unwrap();
    lab.cni("DEL", &pod).expect("DEL succeeds for what is gone");
    await_settled(&lab);
    for family in lab.topology().families() {
        let route = pod.address_of(family).unwrap().to_string();
        assert!(
            !lab.routes("node1").unwrap().iter().any(|r| r.dst == route),
            "the pod's route is gone"
        );
    }
}

/// It remembers nothing, and its datastore is away: the status names that one.
fn a_node_that_cannot_start_says_what_it_waits_for(lab: &mut Lab, node: &str) {
    lab.kill9_node(node).unwrap();
    std::fs::remove_file(lab.folder().lib(node).join("last-snapshot")).unwrap();
    lab.start_node(node).unwrap();
    await_status(lab, node, 60 * SECOND, "what it waits for", |status| {
        let datastore = &status.datastore;
        let is_told = datastore.reason.is_some() && !datastore.endpoints.is_empty();
        match datastore.state == "starting" && is_told {
            true => Ok(()),
            false => Err(format!("{datastore:?}")),
        }
    });
}

/// The demonstration as a user without rights runs it: in a user namespace, or with a clear
/// refusal.
#[test]
fn without_root_the_lab_runs_or_says_what_is_missing() {
    if !possible(
        "without_root_the_lab_runs_or_says_what_is_missing",
        &["setpriv"],
    ) {
        return;
    }
    // The build's folder may be closed to others.
    let folder = std::env::temp_dir().join(format!("caracal-rootless-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("full-mesh.yaml");
    std::fs::copy(caracal_tests::example("full-mesh"), &file).unwrap();
    let binary = folder.join("caracal");
    std::fs::copy(caracal_tests::binary_with_labs(), &binary).unwrap();
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&binary, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .args(["lab", "demo"])
        .arg(&file)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        assert!(said.contains("30 of 30 pings answered"), "{said}");
    } else {
        assert!(said.contains("needs root"), "{said}");
    }
}

/// A pod's packets fit the tunnel: the plan's MTU reaches the plugin.
#[test]
fn pods_get_the_mtu_of_the_tunnel() {
    on_each_stack(
        "pods_get_the_mtu_of_the_tunnel",
        &[],
        "cross-subnet",
        "e2e-mtu",
        mtu_of_pods,
    );
}

fn mtu_of_pods(lab: Lab) {
    await_settled(&lab);
    // The larger header is IPv6's: a pod of both families has one interface.
    let mtu = if speaks(&lab, Family::Ipv6) {
        "1430"
    } else {
        "1450"
    };
    let file = lab.folder().lib("node1").join("mtu");
    let read = || std::fs::read_to_string(&file).ok();
    wait_for(60 * SECOND, "the mtu file", read, |t| {
        t.as_deref() == Some(mtu)
    })
    .unwrap();
    let pod = lab
        .state()
        .pods
        .iter()
        .find(|p| p.node == "node1")
        .unwrap()
        .clone();
    lab.cni("DEL", &pod).unwrap();
    lab.cni("ADD", &pod).unwrap();
    let mut ip = caracal_lab::program_command("ip").unwrap();
    ip.args(["link", "show", "eth0"]);
    let link = caracal_lab::call_program(Some(&pod.netns), &mut ip, b"", 60 * SECOND).unwrap();
    assert!(link.contains(&format!(" mtu {mtu} ")), "{link}");
}

/// A reader that goes away ends a printing command quietly, as it does every filter.
#[test]
fn a_closed_pipe_ends_a_command_without_a_word() {
    use std::process::{Command, Stdio};
    if !possible("a_closed_pipe_ends_a_command_without_a_word", &[]) {
        return;
    }
    let mut child = Command::new(caracal_tests::binary())
        .args([
            "render",
            "--node",
            "node1",
            "--affinity",
            "10.244.0.0/26",
            "--input",
        ])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/resources/nodes.yaml"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
}

/// `caracal render` reads the node's settings that its text depends on.
#[test]
fn render_honours_the_settings_of_the_node() {
    use std::process::{Command, Output};
    if !possible("render_honours_the_settings_of_the_node", &[]) {
        return;
    }
    let render = |style: &str, settings: &[(&str, &str)]| -> Output {
        let mut command = Command::new(caracal_tests::binary());
        command.args(["render", "--node", "node1", "--style", style, "--input"]);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/resources/nodes.yaml"));
        command.env_clear().envs(settings.iter().copied());
        command.output().unwrap()
    };
    let text = |style: &str, settings: &[(&str, &str)]| {
        let output = render(style, settings);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{style} {settings:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for style in ["bird2", "view", "calico"] {
        let given = text(style, &[("CALICO_ROUTER_ID", "192.0.2.7")]);
        assert!(given.contains("router id 192.0.2.7;"), "{style}: {given}");
        let hashed = text(style, &[("CALICO_ROUTER_ID", "hash")]);
        let own = text(style, &[]);
        let id = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("router id "));
            line.map(str::to_owned)
        };
        assert!(id(&hashed).is_some() && id(&hashed) != id(&own), "{style}");
    }
    let wrong = render("view", &[("CALICO_ROUTER_ID", "nonsense")]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(1), "{said}");
    assert!(
        said.contains("CALICO_ROUTER_ID") && said.contains("dotted quad"),
        "{said}"
    );
    // The view is what the node's own speaker does; another daemon has the limit that somebody set.
    let limited = |style: &str, settings: &[(&str, &str)], limit: u32| {
        text(style, settings).contains(&format!("receive limit {limit} "))
    };
    assert!(limited("view", &[], 250_000));
    for style in ["view", "bird2"] {
        assert!(limited(style, &[("CARACAL_MAX_PREFIXES", "7")], 7));
    }
    assert!(!text("bird2", &[]).contains("receive limit"));
    let off = text("view", &[("CARACAL_MAX_PREFIXES", "off")]);
    assert!(!off.contains("receive limit"), "{off}");
}

/// Each method of address detection, in the real binary on real interfaces: what it finds is what
/// it registers.
#[test]
fn addresses_are_detected_and_registered() {
    on_each_stack(
        "addresses_are_detected_and_registered",
        &[],
        "full-mesh",
        "e2e-detect",
        detection,
    );
}

fn detection(lab: Lab) {
    let node = lab.layout().node("node1").unwrap().clone();
    for family in lab.topology().families() {
        let (own, len) = node.uplink.address_of(family).unwrap();
        let (other, _) = lab
            .layout()
            .node("node2")
            .unwrap()
            .uplink
            .address_of(family)
            .unwrap();
        let subnet = lab.topology().segments[0].prefix(family).unwrap();
        let (variables, field) = match family {
            Family::Ipv4 => (["IP", "IP_AUTODETECTION_METHOD"], "ipv4Address"),
            Family::Ipv6 => (["IP6", "IP6_AUTODETECTION_METHOD"], "ipv6Address"),
        };
        let methods = [
            "first-found".to_owned(),
            "interface=eth.*".to_owned(),
            "skip-interface=lo".to_owned(),
            format!("cidr={subnet}"),
            format!("can-reach={other}"),
        ];
        for (number, method) in methods.into_iter().enumerate() {
            let name = format!("detect{number}-{}", family.as_str());
            let folder = lab.folder().path().join(&name);
            let mut command = std::process::Command::new(caracal_tests::binary());
            command
                .arg("node")
                .env_clear()
                .env("NODENAME", &name)
                // The other family is not asked for.
                .env("IP", "none")
                .env(variables[0], "autodetect")
                .env(variables[1], &method)
                .env("DISABLE_NODE_IP_CHECK", "true")
                .env("CALICO_NETWORKING_BACKEND", "none")
                .env("ETCD_ENDPOINTS", &node.etcd_endpoint)
                .env("CARACAL_RUN_DIR", folder.join("run"))
                .env("CARACAL_LIB_DIR", folder.join("lib"))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null());
            let mut child = caracal_lab::spawn_in_netns(&node.netns, &mut command).unwrap();
            let key = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
            let wanted = format!(r#""{field}":"{own}/{len}""#);
            let registered = wait_until(60 * SECOND, "the Node with its address", || {
                let stored = lab
                    .etcdctl(&["get", "--print-value-only", &key], b"")
                    .map_err(|e| e.to_string())?;
                if stored.contains(&wanted) {
                    Ok(())
                } else {
                    Err(stored)
                }
            });
            child.kill().unwrap();
            child.wait().unwrap();
            registered.unwrap_or_else(|e| panic!("{method}: {e}"));
        }
    }
}

/// `caracal lab …` for a lab; what it printed.
fn by_hand(lab: &Lab, arguments: &[&str]) -> String {
    let output = std::process::Command::new(caracal_tests::binary_with_labs())
        .arg("lab")
        .args(arguments)
        .args(["--lab", lab.name().as_str()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn faults_are_made_and_mended_by_hand() {
    if !possible("faults_are_made_and_mended_by_hand", &[]) {
        return;
    }
    let lab = up("full-mesh", "e2e-hand");
    await_settled(&lab);
    for ended in ["kill", "stop"] {
        let said = by_hand(&lab, &[ended, "node2"]);
        assert!(said.contains("caracal lab start node2"), "{said}");
        let state = Lab::attach(lab.name()).unwrap();
        assert!(!state.node_runs("node2"));
        by_hand(&lab, &["start", "node2"]);
        assert!(Lab::attach(lab.name()).unwrap().node_runs("node2"));
        await_settled(&lab);
    }
    by_hand(&lab, &["cut", "node3"]);
    let cut = lab.ping_matrix_of(Family::Ipv4, SECOND).unwrap();
    let concerned = |pair: &String| pair.contains("node3/");
    assert!(!cut.is_full() && cut.lost().iter().all(|p| concerned(&format!("{p:?}"))));
    by_hand(&lab, &["heal", "node3"]);
    await_settled(&lab);
    assert_full_matrix(&lab);
    by_hand(&lab, &["kill", "datastore"]);
    assert_full_matrix(&lab);
    by_hand(&lab, &["start", "datastore"]);
    await_settled(&lab);
}
