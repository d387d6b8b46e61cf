//! The backend `udp`, which is also what no backend at all means.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use caracal_lab::{netns_sysctl, program_command, run_in_netns, wait_for, wait_until};
use caracal_tests::{PROBE_RATE, await_datagrams, possible};

use super::site::{PATIENCE, PREFIX, Site};
use super::{assert_none_lost, probe, subnet};

const UDP: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.60.0"}"#;
const DUAL: &str = r#"{"Network":"10.5.0.0/16","SubnetMin":"10.5.1.0","SubnetMax":"10.5.60.0",
    "EnableIPv6":true,"IPv6Network":"fd00:5::/48","Backend":{"Type":"udp","Port":7890}}"#;
/// As flanneld writes it with this backend.
const FOREIGN: &str = r#"{"PublicIP":"10.200.0.3","PublicIPv6":null}"#;
/// Octets of a transfer.
const TRANSFER: usize = 16 << 20;

/// Node 3: its lease, its device, and a relay that knows the others.
fn start_foreign(site: &mut Site, bridges: &[String; 2]) {
    site.put_lease("10.5.72.0-24", FOREIGN);
    site.ip("n3", &["tuntap add flannel0 mode tun".to_owned()]);
    let mut relay = Command::new(env!("CARGO_BIN_EXE_caracal-test-plain-relay"));
    relay.arg("--bind=10.200.0.3:8285");
    for (node, bridge) in (1..).zip(bridges) {
        relay.arg(format!(
            "--route={}/24=10.200.0.{node}:8285",
            subnet(bridge)
        ));
    }
    site.start("relay", "n3", &mut relay);
    site.ip(
        "n3",
        &[
            "addr add 10.5.72.0/32 dev flannel0".to_owned(),
            "link set flannel0 mtu 1472 up".to_owned(),
            "route add 10.5.0.0/16 dev flannel0".to_owned(),
        ],
    );
}

/// Sends octets over TCP, and looks whether the same ones arrive.
fn transfer(site: &Site, from: u8, to: u8, address: &str) {
    let address: IpAddr = address.parse().unwrap();
    let listen = || TcpListener::bind((address, 0));
    let listener = run_in_netns(&site.netns(&format!("p{to}")), listen);
    let listener = listener.unwrap().expect("a listener");
    let there = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&there, PATIENCE);
    let stream = run_in_netns(&site.netns(&format!("p{from}")), connect);
    let mut stream = stream.unwrap().expect("a connection");
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let octets: Vec<u8> = (0u32..).flat_map(u32::to_le_bytes).take(TRANSFER).collect();
    let started = Instant::now();
    let received = std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut received = Vec::new();
            accepted.read_to_end(&mut received).map(|_| received)
        });
        stream.write_all(&octets).expect("it is sent");
        stream.shutdown(Shutdown::Write).unwrap();
        receiver.join().unwrap().expect("it is received")
    });
    println!(
        "p{from} to {address}: {} MB in {:?}",
        TRANSFER >> 20,
        started.elapsed()
    );
    assert!(
        received == octets,
        "p{from} to {address}: other octets arrived"
    );
}

/// What one ping prints, whatever becomes of it.
fn ping(site: &Site, from: u8, arguments: &[&str]) -> String {
    let mut command = program_command("ping").unwrap();
    command.args(["-c1", "-W5"]).args(arguments);
    let name = site.netns(&format!("p{from}"));
    let output = run_in_netns(&name, || command.output()).unwrap();
    let output = output.expect("ping runs");
    let printed = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&printed).into_owned()
}

/// The number in the line of a node's metrics that begins so.
fn metric(site: &Site, node: u8, name: &str) -> u64 {
    let answer = site.http(node, "/metrics");
    let line = answer.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap_or_else(|| panic!("{name}: {answer}")).trim();
    number.parse().unwrap()
}

#[test]
fn relays_beside_a_plain_one() {
    if !possible("udp::relays_beside_a_plain_one", &[]) {
        return;
    }
    let mut site = Site::new(&[1, 2, 3]);
    site.configure(UDP);
    // Somebody has the port: it is said, and tried again.
    let taken = run_in_netns(&site.netns("n1"), || UdpSocket::bind("10.200.0.1:8285"));
    let taken = taken.unwrap().expect("a socket");
    site.start_node(1, &["--healthz-port=8080"]);
    site.start_node(2, &["--healthz-port=8080"]);
    let said = |log: &String| log.contains("UDP port 10.200.0.1:8285 cannot be had");
    wait_for(PATIENCE, "the reason", || site.log(1), said).unwrap();
    drop(taken);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    start_foreign(&mut site, &bridges);
    let pods = [
        site.start_pod(1, &bridges[0], 1472),
        site.start_pod(2, &bridges[1], 1472),
        site.start_pod(3, "10.5.72.1/24", 1472),
    ];
    for (from, to) in [(1u8, 2u8), (2, 1), (1, 3), (3, 1), (2, 3)] {
        site.await_ping(from, &pods[usize::from(to) - 1], 1472);
    }
    looks_like_flannelds(&site, &bridges[0]);
    for (from, to) in [(1u8, 2u8), (1, 3), (3, 1)] {
        transfer(&site, from, to, &pods[usize::from(to) - 1]);
    }
    only_the_relay_works(&site, &pods);
    hops_and_answers(&site, &pods);
    narrow_path(&site, &pods);
    dies_and_comes_back(&mut site, &pods);
    // Somebody deletes the device.
    site.ip("n1", &["link del flannel0".to_owned()]);
    site.await_ping(1, &pods[2], 1472);
    site.await_ping(2, &pods[0], 1472);
    assert_eq!(site.end("n1", "-TERM"), Some(0));
    let gone = |lines: &[String]| !lines.iter().any(|l| l.contains("flannel0"));
    site.await_lines("n1", &["link"], "no device without its process", gone);
}

/// While packets are relayed, the thread that follows leases and kernel has nothing to do.
fn only_the_relay_works(site: &Site, pods: &[String; 3]) {
    let path = format!("/proc/{}/schedstat", site.id("n1"));
    let spent = || -> u64 {
        let of_first_thread = std::fs::read_to_string(&path).unwrap();
        let nanoseconds = of_first_thread.split_whitespace().next().unwrap();
        nanoseconds.parse().unwrap()
    };
    let (before, started) = (spent(), Instant::now());
    let flow = probe(site, 1, 2, &pods[1]);
    await_datagrams(&flow, 2 * u64::from(PROBE_RATE));
    drop(flow.stop());
    let worked = Duration::from_nanos(spent() - before);
    let share = worked.as_secs_f64() / started.elapsed().as_secs_f64();
    assert!(share < 0.1, "{worked:?} of {:?}", started.elapsed());
}

/// Lease, file, device, address and route of node 1.
fn looks_like_flannelds(site: &Site, bridge: &str) {
    let (key, value) = site.lease(1).unwrap();
    assert_eq!(key, format!("{PREFIX}/subnets/{}-24", subnet(bridge)));
    let lease = r#"{"PublicIP":"10.200.0.1","PublicIPv6":null}"#;
    assert_eq!(value.to_string(), lease);
    assert!(site.subnet_env(1).contains("\nFLANNEL_MTU=1472\n"));
    let device = site.show("n1", &["link", "show", "flannel0"]).join(" ");
    assert!(
        device.contains("mtu 1472") && device.contains("tun type tun pi off"),
        "{device}"
    );
    let addresses = site.show("n1", &["addr", "show", "flannel0"]).join(" ");
    let own = format!("inet {}/32", subnet(bridge));
    assert!(addresses.contains(&own), "{own}: {addresses}");
    let routes = site.show("n1", &["route"]).join("\n");
    assert!(
        routes.contains("10.5.0.0/16 dev flannel0 proto 82"),
        "{routes}"
    );
    assert_eq!(metric(site, 1, "caracal_flannel_relay_up "), 1);
    assert_eq!(metric(site, 1, "caracal_flannel_relay_subnets "), 2);
}

/// What a packet costs of its TTL, and what a sender is told at once.
fn hops_and_answers(site: &Site, pods: &[String; 3]) {
    // Two machines that route, and two relays between them.
    for (node, to) in [(2, &pods[1]), (3, &pods[2])] {
        let near = ping(site, 1, &["-t", "5", to]);
        assert!(near.contains("1 received"), "{near}");
        let far = ping(site, 1, &["-t", "4", to]);
        assert!(far.contains("Time to live exceeded"), "node {node}: {far}");
    }
    let dropped = r#"caracal_flannel_relay_dropped_total{reason="hop_limit"} "#;
    let before = metric(site, 1, dropped);
    let silent = ping(site, 1, &["-W1", "-t", "2", &pods[1]]);
    assert!(
        silent.contains("0 received") && !silent.contains("From"),
        "{silent}"
    );
    assert_eq!(metric(site, 1, dropped), before + 1);
    // A subnet that nobody has.
    let started = Instant::now();
    let refused = ping(site, 1, &["10.5.61.9"]);
    assert!(refused.contains("From 10.5.0.0 "), "{refused}");
    assert!(refused.contains("Destination Net Unreachable"), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(4), "not at once");
    // The foreign node's lease goes, and comes back.
    let key = format!("{PREFIX}/subnets/10.5.72.0-24");
    site.etcdctl(&["del", &key]);
    let refused = || ping(site, 1, &[&pods[2]]);
    let told = |printed: &String| printed.contains("Destination Net Unreachable");
    wait_for(PATIENCE, "its subnet is nobody's", refused, told).unwrap();
    site.await_ping(1, &pods[1], 1472);
    site.put_lease("10.5.72.0-24", FOREIGN);
    site.await_ping(1, &pods[2], 1472);
    let answers = r#"caracal_flannel_relay_answers_total{kind="unreachable"} "#;
    assert!(metric(site, 1, answers) >= 2);
}

/// Between nodes 1 and 2 less fits than the interfaces say.
fn narrow_path(site: &Site, pods: &[String; 3]) {
    let narrow = "route add 10.200.0.2/32 dev eth0 mtu 1400".to_owned();
    site.ip("n1", &[narrow]);
    let printed = ping(site, 1, &["-M", "do", "-s", "1400", &pods[1]]);
    assert!(
        printed.contains("mtu = 1372") || printed.contains("mtu=1372"),
        "{printed}"
    );
    // Without DF it passes in pieces.
    let printed = ping(site, 1, &["-M", "dont", "-s", "1400", &pods[1]]);
    assert!(printed.contains("1 received"), "{printed}");
    transfer(site, 1, 2, &pods[1]);
    let dropped = r#"caracal_flannel_relay_dropped_total{reason="too_big"} "#;
    assert!(metric(site, 1, dropped) >= 1);
    site.ip("n1", &["route del 10.200.0.2/32".to_owned()]);
}

/// Node 1 is killed; what comes back makes its device anew.
fn dies_and_comes_back(site: &mut Site, pods: &[String; 3]) {
    let others = probe(site, 2, 3, &pods[2]);
    site.end("n1", "-KILL");
    let gone = |lines: &[String]| !lines.iter().any(|l| l.contains("flannel0"));
    site.await_lines("n1", &["link"], "the device goes with its process", gone);
    await_datagrams(&others, 500);
    site.start_again(1, &["--healthz-port=8080"]);
    site.await_ping(2, &pods[0], 1472);
    site.await_ping(3, &pods[0], 1472);
    let through = [probe(site, 2, 1, &pods[0]), probe(site, 1, 3, &pods[2])];
    await_datagrams(&through[0], 2000);
    for probe in through {
        assert_none_lost("udp, once the device is there", probe);
    }
    assert_none_lost("udp, between the other two", others);
}

#[test]
fn relays_both_families() {
    if !possible("udp::relays_both_families", &[]) {
        return;
    }
    let mut site = Site::new(&[1, 2]);
    site.configure(DUAL);
    for node in [1, 2] {
        let there = format!("n{node}");
        let address = format!("addr add fd00:200::{node}/64 dev eth0 nodad");
        site.ip(&there, &[address]);
        let key = "net/ipv6/conf/all/forwarding";
        netns_sysctl(&site.netns(&there), key, "1", false).unwrap();
        site.start_node(node, &["--iface=eth0", "--healthz-port=8080"]);
    }
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    let pods = [1u8, 2].map(|node| {
        let pod = site.start_pod(node, &bridges[usize::from(node) - 1], 1452);
        (pod, start_ipv6(&site, node))
    });
    assert!(site.subnet_env(1).contains("\nFLANNEL_MTU=1452\n"));
    for (from, to) in [(1u8, 2usize), (2, 1)] {
        site.await_ping(from, &pods[to - 1].0, 1452);
        let ipv6 = &pods[to - 1].1;
        let printed = || ping(&site, from, &["-6", "-M", "do", "-s", "1404", ipv6]);
        let received = |printed: &String| printed.contains("1 received");
        wait_for(PATIENCE, "an echo of IPv6", printed, received).unwrap();
        transfer(&site, from, u8::try_from(to).unwrap(), ipv6);
    }
    let refused = ping(&site, 1, &["-6", "fd00:5:0:ff00::9"]);
    assert!(refused.contains("From fd00:5:: "), "{refused}");
    assert!(refused.contains("No route"), "{refused}");
    site.call(
        "n1",
        "ip",
        &[
            "-6",
            "route",
            "add",
            "fd00:200::2/128",
            "dev",
            "eth0",
            "mtu",
            "1400",
        ],
    );
    let printed = ping(&site, 1, &["-6", "-M", "do", "-s", "1400", &pods[1].1]);
    assert!(
        printed.contains("mtu=1352") || printed.contains("mtu = 1352"),
        "{printed}"
    );
    transfer(&site, 1, 2, &pods[1].1);
}

/// Gives a node's bridge and its pod addresses of the subnet of IPv6; answers with the pod's.
pub(super) fn start_ipv6(site: &Site, node: u8) -> String {
    let read = || {
        let text = site.subnet_env(node);
        let mut lines = text.lines();
        let line = lines.find_map(|l| l.strip_prefix("FLANNEL_IPV6_SUBNET="));
        line.map(str::to_owned).ok_or_else(|| text.clone())
    };
    let bridge = wait_until(PATIENCE, "a subnet of IPv6", read).unwrap();
    let gateway = bridge.strip_suffix("/64").unwrap();
    let pod = gateway.strip_suffix('1').unwrap().to_owned() + "9";
    let line = format!("addr add {bridge} dev docker0 nodad");
    site.ip(&format!("n{node}"), &[line]);
    let there = format!("p{node}");
    site.ip(&there, &[format!("addr add {pod}/64 dev eth0 nodad")]);
    let route = ["-6", "route", "add", "default", "via", gateway];
    site.call(&there, "ip", &route);
    pod
}
