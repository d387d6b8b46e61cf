//! FelixConfiguration keys that concern routing, changed in the datastore while the node runs; what
//! they do is seen in the kernel, and by a machine outside the cluster. On a cluster of both
//! families, in one after the other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "settings/pools.rs"]
mod pools;
#[path = "settings/ranges.rs"]
mod ranges;
#[path = "settings/reports.rs"]
mod reports;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use caracal_lab::{Lab, run_in_netns, scaled_time as scaled, wait_until};
use caracal_model::Family;
use caracal_tests::{
    SECOND, address_of, await_settled, await_status, either, has_problem, on_each_stack_of, run_on,
    set_pool_modes, try_run_on,
};
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

/// Names and addresses of the scenarios, in one family.
struct Side<'a> {
    lab: &'a Lab,
    family: Family,
    pod: IpAddr,
    node: IpAddr,
    /// An address that node1 gets beside its own.
    second: &'static str,
    outside: IpAddr,
    /// `ip -4` or `ip -6`.
    ip: &'static str,
}

impl<'a> Side<'a> {
    fn new(lab: &'a Lab, family: Family) -> Self {
        Self {
            lab,
            family,
            pod: lab.state().pods[0].address_of(family).unwrap(),
            node: address_of(lab, "node1", family),
            second: either(family, "10.0.0.77", "fd00:10::77"),
            outside: address_of(lab, "outside", family),
            ip: either(family, "ip -4", "ip -6"),
        }
    }

    fn add_second(&self) {
        let Self { ip, second, .. } = self;
        let how = either(self.family, "/24 dev eth0", "/64 dev eth0 nodad");
        run_on(
            self.lab,
            "node1",
            &format!("{ip} addr replace {second}{how}"),
        );
    }

    /// The line of the pod's own route.
    fn workload(&self) -> String {
        format!("{} dev cali", self.pod)
    }

    fn routes_of(&self, protocol: u8) -> String {
        format!("{} route show proto {protocol}", self.ip)
    }

    /// As whom the machine outside sees a new flow of the pod.
    fn seen_as(&self) -> Result<SocketAddr, String> {
        let bind = |target: &str, address: IpAddr| {
            let socket = || UdpSocket::bind((address, 0)).unwrap();
            run_in_netns(&self.lab.netns(target).unwrap(), socket).unwrap()
        };
        let outside = bind("outside", self.outside);
        outside.set_read_timeout(Some(SECOND)).unwrap();
        let any = either(self.family, "0.0.0.0", "::");
        let pod = bind("node1/p1", any.parse().unwrap());
        let to = outside.local_addr().unwrap();
        pod.send_to(b"who am I?", to).map_err(|e| e.to_string())?;
        let (_, from) = outside.recv_from(&mut [0; 16]).map_err(|e| e.to_string())?;
        Ok(from)
    }

    fn await_seen(&self, what: &str, wanted: impl Fn(SocketAddr) -> bool) {
        let look = || match self.seen_as() {
            Ok(from) if wanted(from) => Ok(()),
            seen => Err(format!("{seen:?}")),
        };
        wait_until(scaled(30 * SECOND), what, look)
            .unwrap_or_else(|e| panic!("{e}\n{}", self.lab.folder().log_tail("node1", 40)));
        println!("{what}, {}: so it is", self.family);
    }
}

fn await_said(lab: &Lab, words: &str, wanted: impl Fn(&str) -> bool) {
    let look = || match try_run_on(lab, "node1", words) {
        Ok(said) if wanted(&said) => Ok(()),
        said => Err(format!("{said:?}")),
    };
    wait_until(scaled(30 * SECOND), words, look)
        .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)));
    println!("{words}: as it is to be");
}

/// Waits until node1 reports a problem.
fn await_reported(lab: &Lab, code: &str, word: &str) {
    let is_reported = || {
        let status = lab.node_status("node1").map_err(|e| e.to_string())?;
        has_problem(&status, code, word)
    };
    wait_until(scaled(30 * SECOND), code, is_reported).unwrap();
}

#[test]
fn keys_reach_the_kernel_and_the_wire() {
    let scenario = "keys_reach_the_kernel_and_the_wire";
    let programs = ["nft", "tcpdump", "bridge", "ethtool"];
    on_each_stack_of(scenario, &programs, TOPOLOGY, "settings", |mut lab| {
        await_settled(&lab);
        let families = lab.topology().families();
        for family in &families {
            let side = Side::new(&lab, *family);
            outgoing_packets(&side);
            protocol_of_routes(&side);
            switches(&side);
            source_of_routes(&side);
            period_of_comparisons(&side);
        }
        set_pool_modes(&lab, "Never", "Always");
        for family in families {
            checksums_of_tunnel_packets(&lab, family);
            senders_of_tunnel_packets(&mut lab, family);
        }
    });
}

/// `natPortRange`, `natOutgoingAddress`, `iptablesNATOutgoingInterfaceFilter`.
fn outgoing_packets(side: &Side<'_>) {
    let Side { lab, node, pod, .. } = *side;
    // The machine outside knows the way back to pods; what is masqueraded does not need it.
    let pods = either(side.family, "10.244.0.0/16", "fd00:10:244::/64");
    let way = format!("{} route add {pods} via {node}", side.ip);
    run_on(lab, "outside", &way);
    side.await_seen("masqueraded as the node", |from| from.ip() == node);

    let range = 40_000..=40_009;
    felix(lab, &json!({"natPortRange": "40000:40009"}));
    side.await_seen("natPortRange", |from| {
        from.ip() == node && range.contains(&from.port())
    });
    // There is no such key for IPv6.
    if side.family == Family::Ipv4 {
        side.add_second();
        felix(
            lab,
            &json!({"natPortRange": "40000:40009", "natOutgoingAddress": side.second}),
        );
        let second: IpAddr = side.second.parse().unwrap();
        side.await_seen("natOutgoingAddress", |from| {
            from.ip() == second && range.contains(&from.port())
        });
    }
    felix(lab, &json!({"iptablesNATOutgoingInterfaceFilter": "wan+"}));
    side.await_seen("iptablesNATOutgoingInterfaceFilter, another", |from| {
        from.ip() == pod
    });
    felix(lab, &json!({"iptablesNATOutgoingInterfaceFilter": "eth+"}));
    side.await_seen("iptablesNATOutgoingInterfaceFilter, this", |from| {
        from.ip() == node
    });
}

/// `deviceRouteProtocol`.
fn protocol_of_routes(side: &Side<'_>) {
    let lab = side.lab;
    let workload = side.workload();
    let blackhole = either(side.family, "blackhole 10.244.", "blackhole fd00:10:244:");
    felix(lab, &json!({"deviceRouteProtocol": 99}));
    await_said(lab, &side.routes_of(99), |said| {
        said.contains(&workload) && said.contains(blackhole)
    });
    await_said(lab, &side.routes_of(80), str::is_empty);
    felix(lab, &json!({"deviceRouteProtocol": 3}));
    // The former number is anybody's now: its routes are the administrator's to take away, and that
    // is reported.
    await_reported(lab, "agent.foreign_route", "");
    flush(lab, 99);
    await_said(lab, &side.routes_of(80), |said| said.contains(&workload));
}

/// Takes away the routes of a protocol, of either family.
fn flush(lab: &Lab, protocol: u8) {
    for ip in ["ip -4", "ip -6"] {
        run_on(lab, "node1", &format!("{ip} route flush proto {protocol}"));
    }
}

/// `routeSyncDisabled`, `ipForwarding`.
fn switches(side: &Side<'_>) {
    let Side { lab, node, .. } = *side;
    let workload = side.workload();
    let forwarding = either(
        side.family,
        "net.ipv4.ip_forward",
        "net.ipv6.conf.all.forwarding",
    );
    felix(lab, &json!({"routeSyncDisabled": true}));
    await_reported(lab, "agent.route_sync_disabled", "");
    flush(lab, 80);
    felix(
        lab,
        &json!({"routeSyncDisabled": true, "ipForwarding": "Disabled"}),
    );
    let answer = lab.etcdctl(&["get", "x", "-w", "json"], b"").unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let written = answer["header"]["revision"].as_i64().unwrap();
    let taken = || {
        let status = lab.node_status("node1").map_err(|e| e.to_string())?;
        match status.kernel.revision >= written {
            true => Ok(()),
            false => Err(format!("{} of {written}", status.kernel.revision)),
        }
    };
    wait_until(scaled(30 * SECOND), "both keys in force", taken).unwrap();
    run_on(lab, "node1", &format!("sysctl -q -w {forwarding}=0"));
    felix(lab, &json!({"ipForwarding": "Disabled"}));
    // The routes come back, so the node has looked; the switch stays as it is.
    await_said(lab, &side.routes_of(80), |said| said.contains(&workload));
    let forwarding = format!("sysctl -n {forwarding}");
    assert_eq!(run_on(lab, "node1", &forwarding).trim(), "0");
    felix(lab, &json!({}));
    await_said(lab, &forwarding, |said| said.trim() == "1");
    side.await_seen("as in the beginning", |from| from.ip() == node);
}

/// `deviceRouteSourceAddress` and `deviceRouteSourceAddressIPv6`: what the node itself sends to a
/// pod comes from there, as long as it has that address.
fn source_of_routes(side: &Side<'_>) {
    let Side { lab, second, .. } = *side;
    let chosen = format!("{} route get {}", side.ip, side.pod);
    let source = format!("src {second}");
    side.add_second();
    let key = either(
        side.family,
        "deviceRouteSourceAddress",
        "deviceRouteSourceAddressIPv6",
    );
    felix(lab, &json!({key: second}));
    await_said(lab, &chosen, |said| said.contains(&source));
    // IPv4 takes such routes away with the address, IPv6 their sources.
    let gone = format!(
        "{} addr del {second}{} dev eth0",
        side.ip,
        either(side.family, "/24", "/64")
    );
    run_on(lab, "node1", &gone);
    await_said(lab, &chosen, |said| {
        said.contains("dev cali") && !said.contains(&source)
    });
    await_reported(lab, "agent.source_address", second);
    felix(lab, &json!({}));
}

/// `routeRefreshInterval`: no event tells of this value.
fn period_of_comparisons(side: &Side<'_>) {
    let lab = side.lab;
    let pod = &lab.state().pods[0];
    let interface = pod.host_interface.clone().unwrap();
    felix(lab, &json!({"routeRefreshInterval": "1s"}));
    let (key, wrong, right) = either(
        side.family,
        ("net.ipv4.conf", ".route_localnet=1", ".route_localnet"),
        ("net.ipv6.conf", ".accept_ra=1", ".accept_ra"),
    );
    run_on(
        lab,
        "node1",
        &format!("sysctl -q -w {key}.{interface}{wrong}"),
    );
    await_said(
        lab,
        &format!("sysctl -n {key}.{interface}{right}"),
        |said| said.trim() == "0",
    );
    felix(lab, &json!({}));
}

/// `featureDetectOverride`, also of a device that somebody takes away.
fn checksums_of_tunnel_packets(lab: &Lab, family: Family) {
    let device = either(family, "vxlan.calico", "vxlan-v6.calico");
    let asked = format!("ethtool -k {device}");
    let says = |is: &str| await_said(lab, &asked, |said| said.contains(is));
    says("tx-checksum-ip-generic: on");
    felix(
        lab,
        &json!({"featureDetectOverride": "ChecksumOffloadBroken=true"}),
    );
    says("tx-checksum-ip-generic: off");
    run_on(lab, "node1", &format!("ip link delete {device}"));
    says("tx-checksum-ip-generic: off");
    felix(
        lab,
        &json!({"featureDetectOverride": "ChecksumOffloadBroken=false"}),
    );
    says("tx-checksum-ip-generic: on");
    felix(lab, &json!({}));
}

/// `externalNodesList`: VXLAN of a machine that is no node is taken only when it is named; from
/// anybody once the datastore has been out of reach for a while.
fn senders_of_tunnel_packets(lab: &mut Lab, family: Family) {
    let Side {
        pod,
        node,
        outside,
        ip,
        ..
    } = Side::new(lab, family);
    let device = either(family, "vxlan.calico", "vxlan-v6.calico");
    let input = "nft list chain inet caracal input";
    let chain = either(family, "ip_tunnel_senders", "ip6_tunnel_senders");
    let senders = format!("nft list chain inet caracal {chain}");
    let jump = format!("jump {chain}");
    await_said(lab, input, |said| said.contains(&jump));
    let link = run_on(lab, "node1", &format!("ip -o link show dev {device}"));
    let (_, mac) = link.split_once("link/ether ").unwrap();
    let mac = mac.split(' ').next().unwrap();
    let (vx, inside, length) = either(
        family,
        ("vx", "192.0.2.31", 32),
        ("vx6", "2001:db8::31", 128),
    );
    for command in [
        &format!(
            "ip link add {vx} type vxlan id 4096 dstport 4789 local {outside} dev eth0 nolearning"
        ),
        &format!(
            "ip addr add {inside}/{length} dev {vx}{}",
            either(family, "", " nodad")
        ),
        &format!("ip link set {vx} up"),
        &format!("bridge fdb append {mac} dev {vx} dst {node} self permanent"),
        &format!("{ip} route add {pod}/{length} dev {vx} src {inside}"),
        &format!("ip neigh replace {pod} lladdr {mac} dev {vx} nud permanent"),
    ] {
        run_on(lab, "outside", command);
    }
    let outer = format!("udp dst port 4789 and src {outside}");
    let outer = lab.capture("node1", "eth0", &outer).unwrap();
    let inner = format!("{} and src {inside}", either(family, "icmp", "icmp6"));
    let inner = lab.capture("node1", device, &inner).unwrap();
    // No answer is expected: the pod has no way back. The size says when a packet was sent.
    let send = |lab: &Lab, size: u32| {
        let ping = format!("ping -n -q -c 3 -i 0.2 -W 1 -s {size} {pod}");
        let _unanswered = try_run_on(lab, "outside", &ping);
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
    let (other, range) = either(
        family,
        ("10.9.9.9", "10.0.0.24/29"),
        ("fd00::9", "fd00:10::30/124"),
    );
    felix(lab, &json!({"externalNodesList": [other, range]}));
    await_said(lab, &senders, |said| said.contains(range));
    taken(lab, "a sender that is named", 222);
    felix(lab, &json!({}));
    await_said(lab, &senders, |said| !said.contains(range));
    send(lab, 333);
    lab.stop_etcd().unwrap();
    await_status(
        lab,
        "node1",
        60 * SECOND,
        "etcd to be missed",
        |status| match status.datastore.state.as_str() {
            "fresh" => Err("fresh".to_owned()),
            _ => Ok(()),
        },
    );
    // A connection that flaps changes no rule.
    assert!(run_on(lab, "node1", input).contains(&jump));
    let open = || match try_run_on(lab, "node1", input) {
        Ok(closed) if closed.contains(&jump) => Err(closed),
        _ => Ok(()),
    };
    wait_until(scaled(90 * SECOND), "open while etcd is away", open).unwrap();
    taken(lab, "anybody while etcd is away", 444);
    lab.start_etcd().unwrap();
    await_said(lab, input, |said| said.contains(&jump));
    let _outer = outer.stop();
    let seen = inner.stop().packets;
    let of_size = |size: u32| {
        let length = format!("length {}", size + 8);
        seen.iter().filter(|p| p.contains(&length)).count()
    };
    assert_eq!([111, 333].map(of_size), [0, 0], "{seen:?}");
    assert!([222, 444].map(of_size).iter().all(|n| *n > 0), "{seen:?}");
    println!(
        "VXLAN packets over {family} are taken from nodes and from whom externalNodesList names"
    );
}
