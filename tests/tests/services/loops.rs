//! `serviceLoopPrevention`: what is sent to an unused address of an announced range ends at the
//! node, whoever translates Services there, and what is translated is left alone.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};

use caracal_lab::{Lab, PodState, call_program, program_command, run_in_netns, wait_until};
use caracal_model::Family;
use caracal_tests::{
    EchoServer, PodEndpoint, SECOND, VipConnection, address_of, apply_nft, assert_full_matrix,
    await_settled, either, endpoint_slices, ip, on_each_stack_and_datastore_of, run_on,
};
use serde_json::{Value, json};

use super::takeover::proxy_table;
use super::translation::{vip, web_service};
use super::{Services, Stack};

/// A node of each mode, a router that has the ranges from them, and a client behind it.
const TOPOLOGY: &str = "name: loops
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 1, env: {CARACAL_SERVICES: 'off'}}
  - {name: n3, segment: lan, address: 10.0.0.13, pods: 1, env: {CARACAL_SERVICES: auto}}
  - {name: tor, segment: lan, address: 10.0.0.31, kind: plain}
  - {name: out, segment: lan, address: 10.0.0.41, kind: plain}
";
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const TARGET: u16 = 8080;
/// Hops that a packet may make, and how many times the router sees one that goes round.
const HOPS: u32 = 20;
const MANY: u32 = 5;

/// Ranges of cluster, external and load balancers' addresses, each with an unused address.
const fn ranges(family: Family) -> [(&'static str, &'static str); 3] {
    let ipv4 = [
        ("10.96.0.0/12", "10.96.0.99"),
        ("192.0.2.0/24", "192.0.2.99"),
        ("198.51.100.0/24", "198.51.100.99"),
    ];
    let ipv6 = [
        ("fd00:96::/108", "fd00:96::99"),
        ("2001:db8:2::/64", "2001:db8:2::99"),
        ("2001:db8:3::/64", "2001:db8:3::99"),
    ];
    either(family, ipv4, ipv6)
}

/// The router's counter of what is sent to a range.
fn counter(family: Family, at: usize) -> String {
    format!("{}_{at}", either(family, "ipv4", "ipv6"))
}

fn counter_of(to: &str) -> String {
    let of = |family| {
        let at = unused(family).iter().position(|address| *address == to)?;
        Some(counter(family, at))
    };
    let found = [Family::Ipv4, Family::Ipv6].into_iter().find_map(of);
    found.expect("an unused address")
}

fn unused(family: Family) -> [&'static str; 3] {
    ranges(family).map(|(_, address)| address)
}

fn apply(lab: &Lab, kind: &str, spec: &Value) {
    let document = json!({"apiVersion": "projectcalico.org/v3", "kind": kind,
        "metadata": {"name": "default"}, "spec": spec});
    let file = lab.folder().lib("n1").join("loops.json");
    std::fs::write(&file, document.to_string()).unwrap();
    let arguments = ["apply", "-f", &file.display().to_string()];
    lab.caracal("n1", &arguments).unwrap();
}

fn announce(lab: &Lab, external: [&str; 2]) {
    let families = lab.topology().families();
    let list = |at: usize| -> Vec<Value> {
        let of = |family: &Family| match at {
            1 => either(*family, external[0], external[1]),
            at => ranges(*family)[at].0,
        };
        let cidrs = families.iter().map(of);
        cidrs.map(|cidr| json!({"cidr": cidr})).collect()
    };
    let spec = json!({"serviceClusterIPs": list(0), "serviceExternalIPs": list(1),
        "serviceLoadBalancerIPs": list(2)});
    apply(lab, "BGPConfiguration", &spec);
}

fn prevent(lab: &Lab, how: &str, mode: &str) {
    let spec = json!({"serviceLoopPrevention": how, "nftablesMode": mode});
    apply(lab, "FelixConfiguration", &spec);
}

/// The client's way leads by the router, and the nodes' default route to it.
fn ways(lab: &Lab) {
    run_on(lab, "tor", "sysctl -qw net.ipv4.ip_forward=1");
    run_on(lab, "tor", "sysctl -qw net.ipv6.conf.all.forwarding=1");
    // Else it would learn to ask a node itself.
    run_on(
        lab,
        "out",
        "sysctl -qw net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.eth0.accept_redirects=0 \
         net.ipv6.conf.eth0.accept_redirects=0",
    );
    // Where a redirect is due, the kernel counts it against what it may refuse.
    for node in NODES.into_iter().chain(["tor"]) {
        let off = ["all", "eth0"].map(|of| format!("net.ipv4.conf.{of}.send_redirects=0"));
        run_on(lab, node, &format!("sysctl -qw {}", off.join(" ")));
    }
    let (mut counters, mut rules) = (String::new(), String::new());
    for family in lab.topology().families() {
        let tor = address_of(lab, "tor", family);
        let default = either(family, "default", "::/0");
        for node in NODES {
            ip(lab, node, &[format!("route replace {default} via {tor}")]);
        }
        let word = either(family, "ip", "ip6");
        for (at, (range, _)) in ranges(family).into_iter().enumerate() {
            ip(lab, "out", &[format!("route replace {range} via {tor}")]);
            let name = counter(family, at);
            counters += &format!(" counter {name} {{ }}\n");
            rules += &format!("  {word} daddr {range} counter name {name}\n");
        }
    }
    let table = format!(
        "table inet seen {{\n{counters} chain forward {{\n  type filter hook forward priority 0;\n{rules} }}\n}}\n"
    );
    apply_nft(lab, "tor", &table);
}

/// The router gives what is for the ranges to this node.
fn lead_to(lab: &Lab, node: &str) {
    for family in lab.topology().families() {
        let via = address_of(lab, node, family);
        for (range, _) in ranges(family) {
            ip(lab, "tor", &[format!("route replace {range} via {via}")]);
        }
    }
}

/// One echo request: what `ping` says, and how often the router has forwarded it.
fn ping(lab: &Lab, from: &str, to: &str) -> (String, u32) {
    let counter = format!("counter inet seen {}", counter_of(to));
    run_on(lab, "tor", &format!("nft reset {counter}"));
    let mut command = program_command("sh").unwrap();
    let words = format!("ping -n -c1 -W2 -t{HOPS} {to} 2>&1; true");
    command.args(["-c", &words]);
    let netns = lab.netns(from).unwrap();
    let said = call_program(Some(&netns), &mut command, b"", 60 * SECOND).unwrap();
    let seen = run_on(lab, "tor", &format!("nft list {counter}"));
    let packets = seen.split("packets ").nth(1).expect("a counter");
    let packets = packets.split(' ').next().unwrap_or_default();
    (said, packets.parse().unwrap())
}

/// Waits until what is sent to an address is this.
fn await_ping(lab: &Lab, node: &str, to: &str, what: &str, is: impl Fn(&str, u32) -> bool) {
    wait_until(
        60 * SECOND,
        &format!("{to} at {node} {what}"),
        || match ping(lab, "out", to) {
            (said, rounds) if is(&said, rounds) => Ok(()),
            (said, rounds) => Err(format!("the router saw it {rounds} times: {said}")),
        },
    )
    .unwrap_or_else(|e| panic!("{e}\n{}", run_on(lab, node, "nft list ruleset")));
}

fn is_silent(said: &str, rounds: u32) -> bool {
    rounds == 1 && said.contains(" 0 received") && !said.contains("From ")
}

fn is_refused(said: &str, rounds: u32) -> bool {
    rounds == 1 && said.to_lowercase().contains("port unreachable")
}

fn goes_round(_: &str, rounds: u32) -> bool {
    rounds >= MANY
}

/// All unused addresses side by side: silence takes seconds to be one.
fn side_by_side(lab: &Lab, one: impl Fn(&'static str) + Sync) {
    std::thread::scope(|scope| {
        for address in lab.topology().families().into_iter().flat_map(unused) {
            let one = &one;
            scope.spawn(move || one(address));
        }
    });
}

fn each_unused(lab: &Lab, node: &str, what: &str, is: fn(&str, u32) -> bool) {
    lead_to(lab, node);
    side_by_side(lab, |address| await_ping(lab, node, address, what, is));
}

/// A Service whose endpoints are on both nodes answers through each of them.
fn is_served(lab: &Lab, node: &str) {
    lead_to(lab, node);
    let client = lab.netns("out").unwrap();
    for family in lab.topology().families() {
        let to = SocketAddr::new(vip(family), 80);
        wait_until(60 * SECOND, &format!("{to} through {node}"), || {
            VipConnection::open(&client, to)
                .map(drop)
                .map_err(|e| e.to_string())
        })
        .unwrap();
    }
}

/// A rule of somebody else's in the forward hook is asked before ours.
fn others_refuse(lab: &Lab, node: &str) {
    lead_to(lab, node);
    for family in lab.topology().families() {
        let word = either(family, "ip", "ip6");
        let address: IpAddr = unused(family)[0].parse().unwrap();
        let table = format!(
            "table {word} theirs {{\n chain forward {{\n  type filter hook forward priority 0;\n  {word} daddr {address} tcp dport 81 reject with tcp reset\n }}\n}}\n"
        );
        apply_nft(lab, node, &table);
        let connect = || TcpStream::connect_timeout(&(address, 81).into(), 5 * SECOND);
        let seen = run_in_netns(&lab.netns("out").unwrap(), connect).unwrap();
        let refused = seen.as_ref().err().map(std::io::Error::kind);
        assert_eq!(refused, Some(ErrorKind::ConnectionRefused), "{seen:?}");
        run_on(lab, node, &format!("nft delete table {word} theirs"));
    }
}

/// What a node itself sends does not leave it.
fn own_packets_end(lab: &Lab, node: &str) {
    side_by_side(lab, |address| {
        let (said, rounds) = ping(lab, node, address);
        assert_eq!(rounds, 0, "{node} {address}: {said}");
    });
}

#[test]
fn what_is_sent_to_an_unused_service_address_ends_at_the_node() {
    let text = |stack: Stack, _lab: &str| stack.topology(TOPOLOGY);
    let scenario = "what_is_sent_to_an_unused_service_address_ends_at_the_node";
    let programs = ["nft", "ping", "iptables-legacy-save"];
    on_each_stack_and_datastore_of(scenario, &programs, "loops", text, loops_end);
}

fn loops_end(mut lab: Lab) {
    await_settled(&lab);
    ways(&lab);
    let whole = [Family::Ipv4, Family::Ipv6].map(|family| ranges(family)[1].0);
    each_unused(&lab, "n2", "to go round: nothing is announced", goes_round);
    announce(&lab, whole);
    for node in NODES {
        each_unused(&lab, node, "to end", is_silent);
        own_packets_end(&lab, node);
    }
    let _servers = services(&lab);
    others_refuse(&lab, "n2");
    prevent(&lab, "Reject", "Auto");
    for node in NODES {
        each_unused(&lab, node, "to be refused", is_refused);
        is_served(&lab, node);
    }
    prevent(&lab, "Disabled", "Auto");
    for node in NODES {
        each_unused(&lab, node, "to go round", goes_round);
    }
    prevent(&lab, "Drop", "Auto");
    for node in NODES {
        lab.kill9_node(node).unwrap();
        lab.restart_node(node).unwrap();
    }
    await_settled(&lab);
    for node in NODES {
        each_unused(&lab, node, "to end after a restart", is_silent);
        is_served(&lab, node);
    }
    // A range that is a Service's own address has no unused one.
    let [one, one6] = [("/32", Family::Ipv4), ("/128", Family::Ipv6)]
        .map(|(len, family)| format!("{}{len}", unused(family)[1]));
    announce(&lab, [&one, &one6]);
    lead_to(&lab, "n2");
    for family in lab.topology().families() {
        let [cluster, external, balanced] = unused(family);
        await_ping(&lab, "n2", external, "to go round", goes_round);
        await_ping(&lab, "n2", cluster, "to end", is_silent);
        await_ping(&lab, "n2", balanced, "to end", is_silent);
    }
    announce(&lab, whole);
    // The same by iptables.
    prevent(&lab, "Drop", "Disabled");
    let by_iptables = || match run_on(&lab, "n2", "nft list tables").contains("inet caracal\n") {
        true => Err("nftables has our rules".to_owned()),
        false => Ok(()),
    };
    wait_until(60 * SECOND, "the rules to be iptables'", by_iptables).unwrap();
    each_unused(&lab, "n2", "to end by iptables", is_silent);
    own_packets_end(&lab, "n2");
    prevent(&lab, "Reject", "Disabled");
    each_unused(&lab, "n2", "to be refused by iptables", is_refused);
    is_served(&lab, "n2");
    assert_full_matrix(&lab);
}

/// A Service that Caracal translates on two nodes, and rules as kube-proxy's on the third.
fn services(lab: &Lab) -> [EchoServer; 2] {
    let families = lab.topology().families();
    let pods = lab.state().pods.clone();
    let of = |node: &str| pods.iter().find(|pod| pod.node == node).unwrap();
    let served: [&PodState; 2] = [of("n1"), of("n2")];
    let start = |pod| EchoServer::start(pod, &families, TARGET);
    let servers = served.map(start);
    let endpoints = served.map(|pod| PodEndpoint {
        pod,
        port: TARGET,
        terminates: false,
    });
    let text = web_service(&families) + &endpoint_slices("web", &families, &[TARGET], &endpoints);
    let cluster = Services(lab);
    cluster.prepare();
    cluster.apply(&text);
    for family in &families {
        let server = of("n2").address_of(*family).unwrap();
        apply_nft(lab, "n2", &proxy_table(*family, server));
    }
    NODES.into_iter().for_each(|node| is_served(lab, node));
    servers
}
