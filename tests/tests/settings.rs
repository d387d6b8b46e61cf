//! FelixConfiguration keys that concern routing, changed in the datastore while the node runs; what they do is seen in the
//! kernel, and by a machine outside the cluster.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr, UdpSocket};

use caracal_lab::wait::scaled;
use caracal_lab::{Lab, netns, wait_until};
use caracal_tests::kernel::{run, try_run};
use caracal_tests::{SECOND, await_settled, possible, set_pool_modes, up_text};
use serde_json::{Value, json};

const TOPOLOGY: &str = "
name: settings
pool: {cidr: 10.244.0.0/16, blockSize: 26, natOutgoing: true}
backend: vxlan
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, pods: 1}
  - {name: outside, kind: plain, segment: lan, address: 10.0.0.31}
";

/// Puts FelixConfiguration `default`, with these keys and no others.
fn felix(lab: &Lab, spec: &Value) {
    let key = "/calico/resources/v3/projectcalico.org/felixconfigurations/default";
    let value = json!({
        "kind": "FelixConfiguration",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": "default", "creationTimestamp": "2026-01-05T10:11:12Z"},
        "spec": spec,
    });
    let value = value.to_string();
    let _answer = lab.etcdctl(&["put", key], value.as_bytes()).unwrap();
}

/// As whom the machine outside sees a new flow of the pod.
fn seen_as(lab: &Lab) -> Result<SocketAddr, String> {
    let bind = |target: &str, address: &str| {
        let socket = || UdpSocket::bind((address, 0)).unwrap();
        netns::run(&lab.netns(target).unwrap(), socket).unwrap()
    };
    let outside = bind("outside", "10.0.0.31");
    outside.set_read_timeout(Some(SECOND)).unwrap();
    let pod = bind("node1/p1", "0.0.0.0");
    let to = outside.local_addr().unwrap();
    pod.send_to(b"who am I?", to).map_err(|e| e.to_string())?;
    let (_, from) = outside.recv_from(&mut [0; 16]).map_err(|e| e.to_string())?;
    Ok(from)
}

fn await_seen(lab: &Lab, what: &str, wanted: impl Fn(SocketAddr) -> bool) {
    let look = || match seen_as(lab) {
        Ok(from) if wanted(from) => Ok(()),
        seen => Err(format!("{seen:?}")),
    };
    wait_until(scaled(30 * SECOND), what, look)
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)));
    println!("{what}: so it is");
}

fn await_said(lab: &Lab, words: &str, wanted: impl Fn(&str) -> bool) {
    let look = || match try_run(lab, "node1", words) {
        Ok(said) if wanted(&said) => Ok(()),
        said => Err(format!("{said:?}")),
    };
    wait_until(scaled(30 * SECOND), words, look)
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)));
    println!("{words}: as it is to be");
}

#[test]
fn keys_reach_the_kernel_and_the_wire() {
    let scenario = "keys_reach_the_kernel_and_the_wire";
    if !possible(scenario, &["nft", "tcpdump", "bridge"]) {
        return;
    }
    let mut lab = up_text(TOPOLOGY, scenario, "settings");
    await_settled(&lab);
    let node: IpAddr = [10, 0, 0, 11].into();
    let second: IpAddr = [10, 0, 0, 77].into();
    let pod = lab.state().pods[0].address.unwrap();
    // The machine outside knows the way back to pods; what is masqueraded does not need it.
    run(&lab, "outside", "ip route add 10.244.0.0/16 via 10.0.0.11");
    run(&lab, "node1", "ip addr add 10.0.0.77/24 dev eth0");
    await_seen(&lab, "masqueraded as the node", |from| from.ip() == node);

    let range = 40_000..=40_009;
    felix(&lab, &json!({"natPortRange": "40000:40009"}));
    await_seen(&lab, "natPortRange", |from| {
        from.ip() == node && range.contains(&from.port())
    });
    felix(
        &lab,
        &json!({"natPortRange": "40000:40009", "natOutgoingAddress": "10.0.0.77"}),
    );
    await_seen(&lab, "natOutgoingAddress", |from| {
        from.ip() == second && range.contains(&from.port())
    });
    felix(&lab, &json!({"iptablesNATOutgoingInterfaceFilter": "wan+"}));
    await_seen(
        &lab,
        "iptablesNATOutgoingInterfaceFilter, another",
        |from| from.ip() == pod,
    );
    felix(&lab, &json!({"iptablesNATOutgoingInterfaceFilter": "eth+"}));
    await_seen(&lab, "iptablesNATOutgoingInterfaceFilter, this", |from| {
        from.ip() == node
    });

    let workload = format!("{pod} dev cali");
    felix(&lab, &json!({"deviceRouteProtocol": 99}));
    await_said(&lab, "ip route show proto 99", |said| {
        said.contains(&workload) && said.contains("blackhole 10.244.")
    });
    await_said(&lab, "ip route show proto 80", str::is_empty);
    felix(&lab, &json!({"deviceRouteProtocol": 3}));
    // The former number is anybody's now: its routes are the administrator's to take away, and that is told.
    let foreign = || {
        let status = lab.node_status("node1").map_err(|e| e.to_string())?;
        let mut told = status.problems.iter();
        match told.any(|p| p.code == "agent.foreign_route") {
            true => Ok(()),
            false => Err(format!("{:?}", status.problems)),
        }
    };
    wait_until(scaled(30 * SECOND), "agent.foreign_route", foreign).unwrap();
    run(&lab, "node1", "ip route flush proto 99");
    await_said(&lab, "ip route show proto 80", |said| {
        said.contains(&workload)
    });

    felix(&lab, &json!({"routeSyncDisabled": true}));
    await_said(&lab, "ip route show proto 80", |_| {
        let status = lab.node_status("node1").unwrap();
        let told = status.problems.iter();
        told.map(|p| p.code.as_str())
            .any(|code| code == "agent.route_sync_disabled")
    });
    run(&lab, "node1", "ip route flush proto 80");
    felix(
        &lab,
        &json!({"routeSyncDisabled": true, "ipForwarding": "Disabled"}),
    );
    let told = lab.etcdctl(&["get", "x", "-w", "json"], b"").unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    let written = told["header"]["revision"].as_i64().unwrap();
    let taken = || {
        let status = lab.node_status("node1").map_err(|e| e.to_string())?;
        match status.kernel.revision >= written {
            true => Ok(()),
            false => Err(format!("{} of {written}", status.kernel.revision)),
        }
    };
    wait_until(scaled(30 * SECOND), "both keys in force", taken).unwrap();
    run(&lab, "node1", "sysctl -q -w net.ipv4.ip_forward=0");
    felix(&lab, &json!({"ipForwarding": "Disabled"}));
    // The routes come back, so the node has looked; the switch stays as it is.
    await_said(&lab, "ip route show proto 80", |said| {
        said.contains(&workload)
    });
    let forwarding = "sysctl -n net.ipv4.ip_forward";
    assert_eq!(run(&lab, "node1", forwarding).trim(), "0");
    felix(&lab, &json!({}));
    await_said(&lab, forwarding, |said| said.trim() == "1");
    await_seen(&lab, "as in the beginning", |from| from.ip() == node);
    source_of_routes(&lab);
    period_of_comparisons(&lab);
    senders_of_tunnel_packets(&mut lab);
}

/// `deviceRouteSourceAddress`: what the node itself sends to a pod comes from there, as long as it has that address.
fn source_of_routes(lab: &Lab) {
    let pod = lab.state().pods[0].address.unwrap();
    let chosen = format!("ip -4 route get {pod}");
    run(lab, "node1", "ip addr replace 10.0.0.77/24 dev eth0");
    felix(lab, &json!({"deviceRouteSourceAddress": "10.0.0.77"}));
    await_said(lab, &chosen, |said| said.contains("src 10.0.0.77"));
    // The kernel takes such routes away with the address.
    run(lab, "node1", "ip addr del 10.0.0.77/24 dev eth0");
    await_said(lab, &chosen, |said| {
        said.contains("dev cali") && !said.contains("src 10.0.0.77")
    });
    let told = || {
        let status = lab.node_status("node1").map_err(|e| e.to_string())?;
        let mut told = status.problems.iter();
        match told.any(|p| p.code == "agent.source_address" && p.reason.contains("10.0.0.77")) {
            true => Ok(()),
            false => Err(format!("{:?}", status.problems)),
        }
    };
    wait_until(scaled(30 * SECOND), "agent.source_address", told).unwrap();
    felix(lab, &json!({}));
}

/// `routeRefreshInterval`: no event tells of this value.
fn period_of_comparisons(lab: &Lab) {
    let pod = &lab.state().pods[0];
    let interface = pod.host_interface.clone().unwrap();
    felix(lab, &json!({"routeRefreshInterval": "1s"}));
    let key = format!("net.ipv4.conf.{interface}.route_localnet");
    run(lab, "node1", &format!("sysctl -q -w {key}=0"));
    await_said(lab, &format!("sysctl -n {key}"), |said| said.trim() == "1");
    felix(lab, &json!({}));
}

/// `externalNodesList`: VXLAN of a machine that is no node is taken only when it is named; from anybody while the datastore
/// is out of reach.
fn senders_of_tunnel_packets(lab: &mut Lab) {
    let pod = lab.state().pods[0].address.unwrap();
    set_pool_modes(lab, "Never", "Always");
    let input = "nft list chain inet caracal input";
    let senders = "nft list chain inet caracal ip_tunnel_senders";
    await_said(lab, input, |said| said.contains("jump ip_tunnel_senders"));
    let link = run(lab, "node1", "ip -o link show dev vxlan.calico");
    let (_, mac) = link.split_once("link/ether ").unwrap();
    let mac = mac.split(' ').next().unwrap();
    for command in [
        "ip link add vx type vxlan id 4096 dstport 4789 local 10.0.0.31 dev eth0 nolearning",
        "ip addr add 192.0.2.31/32 dev vx",
        "ip link set vx up",
        &format!("bridge fdb append {mac} dev vx dst 10.0.0.11 self permanent"),
        &format!("ip route add {pod}/32 dev vx src 192.0.2.31"),
        &format!("ip neigh replace {pod} lladdr {mac} dev vx nud permanent"),
    ] {
        run(lab, "outside", command);
    }
    let outer = lab
        .capture("node1", "eth0", "udp dst port 4789 and src 10.0.0.31")
        .unwrap();
    let inner = lab
        .capture("node1", "vxlan.calico", "icmp and src 192.0.2.31")
        .unwrap();
    // No answer is expected: the pod has no way back. The size says when a packet was sent.
    let send = |lab: &Lab, size: u32| {
        let ping = format!("ping -n -q -c 3 -i 0.2 -W 1 -s {size} {pod}");
        let _unanswered = try_run(lab, "outside", &ping);
    };
    let taken = |lab: &Lab, what: &str, size: u32| {
        let seen = || {
            let before = inner.count();
            send(lab, size);
            match inner.count() > before {
                true => Ok(()),
                false => Err("nothing came out of the tunnel"),
            }
        };
        wait_until(scaled(30 * SECOND), what, seen).unwrap();
    };
    send(lab, 111);
    outer.wait_for(3, scaled(30 * SECOND)).unwrap();
    felix(
        lab,
        &json!({"externalNodesList": ["10.9.9.9", "10.0.0.24/29"]}),
    );
    await_said(lab, senders, |said| said.contains("10.0.0.24"));
    taken(lab, "a sender that is named", 222);
    felix(lab, &json!({}));
    await_said(lab, senders, |said| !said.contains("10.0.0.24"));
    send(lab, 333);
    lab.stop_etcd().unwrap();
    let open = || match try_run(lab, "node1", input) {
        Ok(closed) => Err(closed),
        Err(_) => Ok(()),
    };
    wait_until(scaled(60 * SECOND), "open while etcd is away", open).unwrap();
    taken(lab, "anybody while etcd is away", 444);
    lab.start_etcd().unwrap();
    await_said(lab, input, |said| said.contains("jump ip_tunnel_senders"));
    let _outer = outer.stop();
    let seen = inner.stop().packets;
    let of_size = |size: u32| {
        let length = format!("length {}", size + 8);
        seen.iter().filter(|p| p.contains(&length)).count()
    };
    assert_eq!([111, 333].map(of_size), [0, 0], "{seen:?}");
    assert!([222, 444].map(of_size).iter().all(|n| *n > 0), "{seen:?}");
    println!("VXLAN packets are taken from nodes and from whom externalNodesList names");
}
