//! Paths between nodes that carry less than the nodes' interfaces send, and say nothing of it:
//! black holes. Large packets of pods, running ones and new ones, TCP and UDP, have to arrive all
//! the same. And routers between nodes that do not know the pods.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "paths/routers.rs"]
mod routers;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use caracal_lab::{Lab, PodState, run_in_netns, scaled_time as scaled, wait_until};
use caracal_model::{Family, NodeStatus};
use caracal_tests::{
    SECOND, Stack, addresses, apply_nft, assert_full_matrix, await_settled, await_status, example,
    exit_code, family_count, ip, possible, run_on, speaks, up_text,
};

/// MTU that the router passes.
const WIDTH: u32 = 1400;
/// Octets of a large datagram: with its headers more than the tunnel through the hole carries, and
/// less than the running pods' MTU.
const LARGE: usize = 1380;
/// Octets sent by TCP.
const TRANSFER: usize = 1 << 20;
/// Anybody's route: a change of routes is a reason to measure.
const FOREIGN: &str = "192.0.2.0/24";

fn pod<'a>(lab: &'a Lab, label: &str) -> &'a PodState {
    let pods = &lab.state().pods;
    pods.iter().find(|p| p.label() == label).expect("a pod")
}

/// Sends datagrams to the pod until one arrives, at most `tries`; how many had been sent then.
fn until_one_arrives(from: &PodState, to: &PodState, family: Family, tries: u32) -> Option<u32> {
    let address = to.address_of(family).unwrap();
    let any: IpAddr = match family {
        Family::Ipv4 => [0, 0, 0, 0].into(),
        Family::Ipv6 => [0u16; 8].into(),
    };
    let socket = |pod: &PodState| {
        let bind = || UdpSocket::bind((any, 0)).unwrap();
        run_in_netns(&pod.netns, bind).unwrap()
    };
    let (sender, receiver) = (socket(from), socket(to));
    receiver.set_read_timeout(Some(SECOND / 4)).unwrap();
    let target = SocketAddr::new(address, receiver.local_addr().unwrap().port());
    let mut buffer = [0; 2048];
    for n in 1..=tries {
        // Refused when the pod's kernel knows better by now: the next one goes in fragments.
        let _sent = sender.send_to(&[7; LARGE], target);
        if receiver
            .recv(&mut buffer)
            .is_ok_and(|length| length == LARGE)
        {
            return Some(n);
        }
    }
    None
}

/// A megabyte by TCP, within the time given.
fn transfer(from: &PodState, to: &PodState, family: Family, limit: Duration) -> Result<(), String> {
    let address = to.address_of(family).unwrap();
    let listen = || TcpListener::bind((address, 0)).unwrap();
    let listener = run_in_netns(&to.netns, listen).unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let receive = scope.spawn(move || {
            let (mut stream, _) = listener.accept().map_err(|e| e.to_string())?;
            stream.set_read_timeout(Some(limit)).unwrap();
            let mut seen = 0;
            let mut buffer = vec![0; 65_536];
            while seen < TRANSFER {
                match stream.read(&mut buffer) {
                    Ok(0) => return Err(format!("closed after {seen} octets")),
                    Ok(length) => seen += length,
                    Err(error) => return Err(format!("after {seen} octets: {error}")),
                }
            }
            Ok(())
        });
        let connect = || TcpStream::connect_timeout(&target, scaled(20 * SECOND));
        let mut stream = run_in_netns(&from.netns, connect).unwrap().unwrap();
        stream.set_write_timeout(Some(limit)).unwrap();
        // The receiver says what came of it.
        let _written = stream.write_all(&vec![7; TRANSFER]);
        receive.join().unwrap()
    })
}

/// Path MTUs that a node has to know: to the other rack, and to the neighbour.
fn widths(lab: &Lab, across: u32) -> impl Fn(&NodeStatus) -> Result<(), String> {
    let wanted: Vec<(IpAddr, u32)> = [("node2", 1500), ("node3", across), ("node4", across)]
        .into_iter()
        .flat_map(|(node, mtu)| addresses(lab, node).into_iter().map(move |a| (a, mtu)))
        .collect();
    move |status| {
        let known = |address| {
            let paths = &status.kernel.paths;
            paths.iter().find(|p| p.address == address).map(|p| p.mtu)
        };
        let wrong = wanted.iter().find(|(a, mtu)| known(*a) != Some(*mtu));
        let problems = status.problems.iter();
        let reported = problems.filter(|p| p.code == "agent.path_mtu").count();
        match wrong {
            Some((address, mtu)) => Err(format!(
                "{address}: {:?} instead of {mtu}; {:?}",
                known(*address),
                status.kernel.paths
            )),
            None if (reported > 0) != (across < 1500) => Err(format!("{:?}", status.problems)),
            None => Ok(()),
        }
    }
}

/// The routes of a node that lead through a tunnel, without those to the tunnel's own far end.
fn tunnelled(lab: &Lab, node: &str, family: Family) -> Vec<String> {
    let (flag, device) = match family {
        Family::Ipv4 => ("-4", "vxlan.calico"),
        Family::Ipv6 => ("-6", "vxlan-v6.calico"),
    };
    let routes = run_on(
        lab,
        node,
        &format!("ip {flag} route show dev {device} proto 80"),
    );
    let through = routes.lines().filter(|l| l.contains(" via "));
    through.map(str::to_owned).collect()
}

const fn overhead(family: Family) -> u32 {
    match family {
        Family::Ipv4 => 50,
        Family::Ipv6 => 70,
    }
}

fn assert_route_mtu(lab: &Lab, path: u32) {
    for family in lab.topology().families() {
        let mtu = format!(" mtu {} ", path - overhead(family));
        let look = || {
            let routes = tunnelled(lab, "node1", family);
            match routes.len() == 2 && routes.iter().all(|l| format!("{l} ").contains(&mtu)) {
                true => Ok(()),
                false => Err(format!("{routes:#?}")),
            }
        };
        wait_until(scaled(20 * SECOND), &format!("routes with{mtu}"), look).unwrap();
    }
}

#[test]
fn large_packets_pass_where_a_router_swallows_them() {
    let scenario = "large_packets_pass_where_a_router_swallows_them";
    if !possible(scenario, &["nft"]) {
        return;
    }
    // Both families at once.
    let text = std::fs::read_to_string(example("cross-subnet")).unwrap();
    let text = Stack::Dual.topology(&text);
    black_hole(up_text(&text, scenario, &Stack::Dual.lab("path-mtu")));
}

fn black_hole(lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    await_status(&lab, "node1", 60 * SECOND, "all paths", widths(&lab, 1500));
    assert_route_mtu(&lab, 1500);
    let (near, far) = (pod(&lab, "node1/p1"), pod(&lab, "node3/p1"));
    let stacks = lab.topology().families();
    for pod in [near, far] {
        // A packet of several segments has no size that the router's rule could judge.
        ip(&lab, &pod.label(), &["link set dev eth0 gso_max_segs 1"]);
    }
    apply_nft(
        &lab,
        "router",
        &format!(
            "table inet hole {{ chain forward {{ type filter hook forward priority 0; meta length > {WIDTH} drop; }}; }}"
        ),
    );
    for family in &stacks {
        let arrived = until_one_arrives(near, far, *family, 5);
        assert_eq!(arrived, None, "{family}: the hole swallows large datagrams");
        let stuck = transfer(near, far, *family, 2 * SECOND);
        assert!(stuck.is_err(), "{family}: the hole swallows large segments");
    }

    for (node, router) in [("node1", "10.0.1.254"), ("node3", "10.0.2.254")] {
        let words = format!("ip route add {FOREIGN} via {router} proto static");
        run_on(&lab, node, &words);
    }
    let narrow = widths(&lab, WIDTH);
    await_status(&lab, "node1", 90 * SECOND, "narrow paths", &narrow);
    let from_rack2 = |status: &NodeStatus| {
        let paths = status.kernel.paths.iter();
        let narrow = paths.filter(|p| p.mtu == WIDTH).count();
        match narrow == 2 * family_count(&lab) {
            true => Ok(()),
            false => Err(format!("{:?}", status.kernel.paths)),
        }
    };
    await_status(&lab, "node3", 90 * SECOND, "narrow paths", from_rack2);
    assert_route_mtu(&lab, WIDTH);
    for family in &stacks {
        // Running pods: their node reports it, and then everything arrives.
        until_one_arrives(near, far, *family, 100).expect("a large datagram");
        for _ in 0..20 {
            assert_eq!(
                until_one_arrives(near, far, *family, 1),
                Some(1),
                "{family}"
            );
        }
        transfer(near, far, *family, scaled(60 * SECOND))
            .unwrap_or_else(|e| panic!("{family}: {e}"));
        transfer(far, near, *family, scaled(60 * SECOND))
            .unwrap_or_else(|e| panic!("{family}: {e}"));
        let address = far.address_of(*family).unwrap().to_string();
        let (_, output) = exit_code(&lab, "node1", &["explain", &address]);
        assert!(
            output.contains(&format!("MTU {WIDTH} to node node3")),
            "{output}"
        );
    }

    // A new pod begins with an MTU that fits.
    lab.cni("DEL", near).unwrap();
    lab.cni("ADD", near).unwrap();
    let fits = WIDTH - if speaks(&lab, Family::Ipv6) { 70 } else { 50 };
    let link = run_on(&lab, "node1/p1", "ip -o link show dev eth0");
    assert!(link.contains(&format!(" mtu {fits} ")), "{link}");

    // The network is mended.
    apply_nft(&lab, "router", "delete table inet hole");
    let back = || -> Result<(), String> {
        // Routes that change are no reason for more than a measurement in 15 s.
        for verb in ["del", "add"] {
            run_on(
                &lab,
                "node1",
                &format!("ip route {verb} {FOREIGN} via 10.0.1.254 proto static"),
            );
        }
        let status = lab.node_status("node1").map_err(|e| e.to_string())?;
        widths(&lab, 1500)(&status)
    };
    wait_until(scaled(90 * SECOND), "wide paths", back).unwrap();
    assert_route_mtu(&lab, 1500);
}
