//! Damage by others to a node's kernel, its cables, its datastore and its directories, and the
//! recovery: by event, not by the periodic comparison, which these scenarios put an hour away.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "failures/lost_endpoint.rs"]
mod lost_endpoint;
#[path = "failures/programs.rs"]
mod programs;
#[path = "failures/surroundings.rs"]
mod surroundings;
#[path = "failures/swapped.rs"]
mod swapped;
#[path = "failures/unreadable.rs"]
mod unreadable;

use std::time::Instant;

use caracal_lab::{Lab, PodState, wait_for, wait_until};
use caracal_model::{Family, Prefix, Problem};
use caracal_tests::{
    Probes, RouteMonitor, SECOND, Stack, agents_state, apply_nft, assert_full_matrix,
    await_settled, await_status, caracals, datastore_port, either, example, flush_routes,
    has_no_problem, has_problem, late_pool, on_each_stack_and_datastore,
    on_each_stack_and_datastore_of, on_each_stack_of, routes_by_kind, run_on, speaks,
    start_datastore, stop_datastore, try_run_on,
};

/// A topology whose nodes compare everything once an hour only, with more environment for each.
fn far_resync(name: &str, more: &str) -> String {
    let text = std::fs::read_to_string(example(name)).unwrap();
    let environment = format!("{{FELIX_ROUTEREFRESHINTERVAL: \"3600\"}}{more}");
    text.replace(", pods:", &format!(", env: {environment}, pods:"))
}

/// Waits until what the agent keeps is as it was; tells how long that took.
fn await_repair(lab: &Lab, node: &str, what: &str, wanted: &str) {
    await_state(lab, node, what, wanted, str::to_owned);
}

/// The same, of those facts that are of interest.
fn await_state(
    lab: &Lab,
    node: &str,
    what: &str,
    wanted: &str,
    of_interest: impl Fn(&str) -> String,
) {
    let start = Instant::now();
    let look = || {
        let seen = of_interest(&agents_state(lab, node));
        if seen == wanted {
            return Ok(());
        }
        let lines = |a: &str, b: &str| -> Vec<String> {
            a.lines()
                .filter(|l| !b.lines().any(|m| m == *l))
                .map(str::to_owned)
                .collect()
        };
        Err(format!(
            "missing {:#?}, too much {:#?}",
            lines(wanted, &seen),
            lines(&seen, wanted)
        ))
    };
    wait_until(60 * SECOND, what, look)
        .unwrap_or_else(|e| panic!("{node}: {e}\n{}", lab.folder().log_tail(node, 60)));
    println!(
        "{what}: repaired within {:.2} s",
        start.elapsed().as_secs_f64()
    );
}

/// Commands with which an administrator restores the uplink's addresses, where IPv6 loses them with
/// the link, and the routes of others.
fn others_state(lab: &Lab, node: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for (address, len) in lab.layout().node(node).unwrap().uplink.addresses() {
        let dad = if address.is_ipv6() { " nodad" } else { "" };
        commands.push(format!("ip addr replace {address}/{len} dev eth0{dad}"));
    }
    for family in lab.topology().families() {
        let flag = flag(family);
        let printed = run_on(lab, node, &format!("ip {flag} route show table main"));
        let others = printed.lines().filter(|l| {
            let of_kernel = l.contains(" proto kernel ") || l.starts_with("fe80:");
            !l.contains(" proto 80 ") && !of_kernel
        });
        let command = |l: &str| format!("ip {flag} route replace {}", l.replace(" linkdown", ""));
        commands.extend(others.map(command));
    }
    commands
}

const fn flag(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "-4",
        Family::Ipv6 => "-6",
    }
}

const fn vxlan_device(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "vxlan.calico",
        Family::Ipv6 => "vxlan-v6.calico",
    }
}

fn put_back(lab: &Lab, node: &str, commands: &[String]) {
    for command in commands {
        run_on(lab, node, command);
    }
}

/// Whatever somebody does to the kernel of node1 is undone, because the kernel says so.
#[test]
fn damage_is_repaired_by_event() {
    let text = far_resync("cross-subnet", "");
    let programs = ["nft", "bridge"];
    on_each_stack_of(
        "damage_is_repaired_by_event",
        &programs,
        &text,
        "fail-damage",
        damage,
    );
}

fn damage(lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let before = agents_state(&lab, "node1");
    for family in lab.topology().families() {
        damage_of(&lab, family, &before);
    }
    for damage in [
        "nft flush chain inet caracal forward",
        "nft delete table inet caracal",
    ] {
        run_on(&lab, "node1", damage);
        await_repair(&lab, "node1", damage, &before);
    }
    assert_full_matrix(&lab);
    // For a while, so much damage in a short time looks like another agent's.
    await_status(&lab, "node1", 60 * SECOND, "no problem left", |s| {
        if s.problems.is_empty() {
            Ok(())
        } else {
            Err(format!("{:?}", s.problems))
        }
    });
}

fn damage_of(lab: &Lab, family: Family, before: &str) {
    let (flag, device) = (flag(family), vxlan_device(family));
    for fact in [
        "dev eth0 proto 80",
        &format!("dev {device} proto 80"),
        &format!("fdb {device}"),
        "oifname \"cali*\" accept",
    ] {
        assert!(before.contains(fact), "{fact}:\n{before}");
    }
    let fdb = run_on(lab, "node1", &format!("bridge fdb show dev {device}"));
    let entry = fdb.lines().find(|l| l.contains(" dst ")).unwrap();
    let mac = entry.split(' ').next().unwrap();
    let forwarding = match family {
        Family::Ipv4 => "sysctl -q net.ipv4.ip_forward=0",
        // And with it every interface's own switch.
        Family::Ipv6 => "sysctl -q net.ipv6.conf.all.forwarding=0",
    };
    let what = format!("ip {flag} route flush proto 80");
    flush_routes(lab, "node1", flag, "proto 80");
    await_repair(lab, "node1", &what, before);
    for damage in [
        &format!("ip link del {device}"),
        &format!("ip link set {device} down"),
        &format!("ip {flag} addr flush dev {device} scope global"),
        &format!("ip {flag} neigh flush nud permanent dev {device}"),
        &format!("bridge fdb del {mac} dev {device}"),
        forwarding,
    ] {
        run_on(lab, "node1", damage);
        await_repair(lab, "node1", damage, before);
    }
    // The whole table, and with it what is not ours: an administrator puts that back.
    let others = others_state(lab, "node1");
    let connected = run_on(
        lab,
        "node1",
        &format!("ip {flag} route show table main proto kernel"),
    );
    let flush = format!("ip {flag} route flush table main");
    flush_routes(lab, "node1", flag, "table main");
    let connected = connected.lines();
    let connected = connected.map(|l| format!("ip {flag} route replace {l} proto kernel"));
    put_back(lab, "node1", &connected.collect::<Vec<_>>());
    put_back(lab, "node1", &others);
    await_repair(lab, "node1", &flush, before);
}

/// The uplink flaps, is renamed, and is made anew under its old name.
#[test]
fn an_uplink_that_flaps_and_changes_is_followed() {
    // Somebody on the link to whom node1 never speaks.
    let bystander = "{name: bystander, kind: plain, segment: rack1, address: 10.0.1.31}";
    let text = far_resync("cross-subnet", "");
    let text = text.replacen("nodes:\n", &format!("nodes:\n  - {bystander}\n"), 1);
    let programs = ["nft", "bridge", "tcpdump"];
    let scenario = "an_uplink_that_flaps_and_changes_is_followed";
    on_each_stack_of(scenario, &programs, &text, "fail-link", flaps);
}

fn flaps(lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let before = agents_state(&lab, "node1");
    let others = others_state(&lab, "node1");
    for _ in 0..5 {
        lab.unplug("node1").unwrap();
        lab.plug("node1").unwrap();
    }
    await_repair(
        &lab,
        "node1",
        "the cable pulled and put in five times",
        &before,
    );
    for _ in 0..5 {
        run_on(&lab, "node1", "ip link set eth0 down");
        run_on(&lab, "node1", "ip link set eth0 up");
    }
    put_back(&lab, "node1", &others);
    await_repair(&lab, "node1", "eth0 down and up five times", &before);

    for (from, to) in [("eth0", "uplink0"), ("uplink0", "eth0")] {
        run_on(&lab, "node1", &format!("ip link set {from} down"));
        run_on(&lab, "node1", &format!("ip link set {from} name {to}"));
        run_on(&lab, "node1", &format!("ip link set {to} up"));
        let name = |word: &str| {
            if word == "eth0" {
                to.to_owned()
            } else {
                word.to_owned()
            }
        };
        let named = |l: &String| l.split(' ').map(name).collect::<Vec<_>>().join(" ");
        put_back(&lab, "node1", &others.iter().map(named).collect::<Vec<_>>());
        let renamed: Vec<String> = before.lines().map(|l| named(&l.to_owned())).collect();
        let mut renamed = renamed;
        renamed.sort();
        await_repair(
            &lab,
            "node1",
            &format!("{from} renamed to {to}"),
            &renamed.join("\n"),
        );
    }

    let uplink = lab.layout().node("node1").unwrap().uplink.clone();
    let switch = lab.layout().switch_netns();
    // Another card, in the place of one that the neighbours do not doubt for an hour.
    let old = "02:00:00:00:00:01";
    let mac = "02:00:00:00:00:02";
    let neighbour = "bystander";
    // Any ARP request tells a neighbour who sent it; only an announcement asks for the sender's own
    // address.
    let announced = lab
        .capture(neighbour, "eth0", "arp[14:4] = arp[24:4]")
        .unwrap();
    for family in lab.topology().families() {
        let version = either(family, "ipv4", "ipv6");
        let key = format!("net.{version}.neigh.eth0.base_reachable_time_ms");
        run_on(&lab, neighbour, &format!("sysctl -q -w {key}=3600000"));
    }
    let await_neighbour = |mac: &str| {
        for (address, _) in lab.layout().node("node1").unwrap().uplink.addresses() {
            let show = format!("ip neigh show {address} dev eth0");
            let seen = || run_on(&lab, neighbour, &show);
            wait_for(60 * SECOND, "the new MAC, at a neighbour", seen, |seen| {
                seen.contains(mac)
            })
            .unwrap_or_else(|e| panic!("{e}\n{}", lab.folder().log_tail("node1", 40)));
        }
    };
    run_on(&lab, "node1", "ip link del eth0");
    for line in [
        format!(
            "ip link add eth0 address {mac} type veth peer name {} netns {switch}",
            uplink.port
        ),
        "ip link set eth0 up".to_owned(),
    ] {
        run_on(&lab, "node1", &line);
    }
    for (address, _) in uplink.addresses() {
        let entry = format!("ip neigh replace {address} lladdr {old} dev eth0 nud reachable");
        run_on(&lab, neighbour, &entry);
    }
    lab.rejoin("node1").unwrap();
    lab.plug("node1").unwrap();
    put_back(&lab, "node1", &others);
    await_repair(&lab, "node1", "eth0 deleted and made anew", &before);
    await_neighbour(mac);
    if speaks(&lab, Family::Ipv4) {
        announced.wait_for(1, 60 * SECOND).unwrap();
    }
    let _seen = announced.stop();
    await_settled(&lab);
    assert_full_matrix(&lab);
}

/// A route of somebody else's with our prefix and metric wins, and everybody is told.
#[test]
fn a_conflicting_route_wins_and_is_told() {
    let text = far_resync("full-mesh", "");
    let programs = ["nft", "bridge"];
    let scenario = "a_conflicting_route_wins_and_is_told";
    on_each_stack_of(scenario, &programs, &text, "fail-foreign", conflict);
}

fn conflict(lab: Lab) {
    await_settled(&lab);
    let before = agents_state(&lab, "node1");
    for family in lab.topology().families() {
        conflict_of(&lab, family, &before);
    }
    assert_full_matrix(&lab);
}

fn conflict_of(lab: &Lab, family: Family, before: &str) {
    let flag = flag(family);
    let nobody = match family {
        Family::Ipv4 => "10.0.0.77",
        Family::Ipv6 => "fd00:10::77",
    };
    let ours = run_on(
        lab,
        "node1",
        &format!("ip {flag} route show proto 80 dev eth0"),
    );
    let prefix = ours.split(' ').next().unwrap().to_owned();
    run_on(
        lab,
        "node1",
        &format!("ip {flag} route replace {prefix} via {nobody} dev eth0 onlink proto static"),
    );
    let status = await_status(lab, "node1", 60 * SECOND, "the conflict told", |s| match s
        .problems
        .iter()
        .find(|p| p.code == "agent.foreign_route" && p.subject == prefix)
    {
        Some(problem) if problem.reason.contains("(protocol 4)") => Ok(()),
        _ => Err(format!("{:?}", s.problems)),
    });
    println!("{:?}", status.problems);
    // `caracal status` fails for probes and scripts, and prints the reason.
    let words = [
        "sh",
        "-c",
        "caracal status > /dev/null; test $? = 4 && caracal status | grep -q 'agent.foreign_route'",
    ];
    assert_eq!(lab.exec("node1", &words.map(Into::into)).unwrap(), 0);
    let theirs = run_on(lab, "node1", &format!("ip {flag} route show {prefix}"));
    assert!(
        theirs.contains(nobody) && !theirs.contains("proto 80"),
        "theirs stays alone: {theirs}"
    );
    run_on(
        lab,
        "node1",
        &format!("ip {flag} route del {prefix} proto static"),
    );
    await_repair(lab, "node1", "the foreign route taken away", before);
    await_status(lab, "node1", 60 * SECOND, "no problem left", |s| {
        if s.problems.is_empty() {
            Ok(())
        } else {
            Err(format!("{:?}", s.problems))
        }
    });
}

/// A node whose address is detected follows its change, and the others follow the node.
#[test]
fn a_change_of_the_nodes_address_is_followed() {
    let scenario = "a_change_of_the_nodes_address_is_followed";
    for (vxlan, name) in [("CrossSubnet", "fail-moved"), ("Always", "fail-movev")] {
        let text = far_resync("full-mesh", ", autodetect: true");
        let text = text.replace(
            "blockSize: 26",
            &format!("blockSize: 26\n  vxlanMode: {vxlan}"),
        );
        let change = |lab: Lab| change_of_address(&lab, vxlan);
        let programs = ["nft", "bridge"];
        let of = |stack: Stack, _lab: &str| stack.topology(&text);
        on_each_stack_and_datastore_of(scenario, &programs, name, of, change);
    }
}

/// Facts but for the rules, which name the nodes from which tunnel packets are taken, in ranges.
fn no_rules(state: &str) -> String {
    let others = state.lines().filter(|l| !l.starts_with("rule "));
    others.collect::<Vec<_>>().join("\n")
}

fn change_of_address(lab: &Lab, vxlan: &str) {
    await_settled(lab);
    assert_full_matrix(lab);
    let own = lab.layout().node("node1").unwrap().uplink.clone();
    let tunnels = (lab.layout().nodes.len() - 1) * own.addresses().count();
    // Until a node has told the address of its tunnel, the way to its pods is the plain one, and
    // there are no entries for its tunnel.
    let of_tunnels = || {
        let state = no_rules(&agents_state(lab, "node2"));
        let plain = |l: &str| l.starts_with("route ") && l.contains(" dev eth0 proto 80");
        let entries = |kind: &str| {
            let of_tunnels = |l: &&str| l.starts_with(kind) && l.contains("vxlan");
            state.lines().filter(of_tunnels).count()
        };
        let lacks = ["fdb ", "neighbour "].map(entries) != [tunnels; 2];
        match lacks || vxlan == "Always" && state.lines().any(plain) {
            true => Err(state),
            false => Ok(state),
        }
    };
    let before = wait_until(60 * SECOND, "the tunnels of all nodes", of_tunnels);
    let before = before.unwrap_or_else(|e| panic!("{e}"));
    let start = Instant::now();
    let moves: Vec<_> = own
        .addresses()
        .map(|(old, len)| {
            (
                old.to_string(),
                old.to_string()
                    .replace("::1", "::21")
                    .replace("0.1", "0.21"),
                len,
            )
        })
        .collect();
    for (old, new, len) in &moves {
        let dad = if new.contains(':') { " nodad" } else { "" };
        run_on(
            lab,
            "node1",
            &format!("ip addr add {new}/{len} dev eth0{dad}"),
        );
        run_on(lab, "node1", &format!("ip addr del {old}/{len} dev eth0"));
        // Deleting the first IPv4 address took the second one along, which was secondary.
        run_on(
            lab,
            "node1",
            &format!("ip addr replace {new}/{len} dev eth0{dad}"),
        );
    }
    let moved = |l: &str| {
        let mut line = l.to_owned();
        for (old, new, _) in &moves {
            if l.contains(&format!("via {old} ")) || l.contains(&format!("dst {old} ")) {
                line = l.replace(&format!("{old} "), &format!("{new} "));
            }
        }
        line
    };
    let mut after: Vec<String> = before.lines().map(moved).collect();
    after.sort();
    assert_ne!(after.join("\n"), before);
    await_state(
        lab,
        "node2",
        &format!("vxlanMode {vxlan}: node1's new address in node2's kernel"),
        &after.join("\n"),
        no_rules,
    );
    for (_, new, _) in &moves {
        let set = if new.contains(':') { "ip6" } else { "ip" };
        let words = format!("nft get element inet caracal {set}_senders {{ {new} }}");
        let taken = || try_run_on(lab, "node2", &words);
        wait_until(60 * SECOND, "tunnel packets from the new address", taken)
            .unwrap_or_else(|e| panic!("{e}"));
    }
    await_settled(lab);
    println!(
        "vxlanMode {vxlan}: all settled after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    // Its connections did not wait for their keepalives.
    let log = lab.folder().log_tail("node1", 1000);
    assert!(
        log.contains("connection ended: its own address is gone"),
        "{log}"
    );
    let status = lab.node_status("node1").unwrap();
    let wanted: Vec<_> = moves
        .iter()
        .map(|(_, new, len)| format!("{new}/{len}"))
        .collect();
    assert_eq!(status.addresses, wanted);
    assert!(status.problems.is_empty(), "{:?}", status.problems);
    assert_full_matrix(lab);
}

/// Packets of pods are checked by rules of ours, not by `rp_filter`; forwarding that others' rules
/// and settings prevent is opened, or reported with the remedy.
#[test]
fn spoofed_sources_and_foreign_filters() {
    let text =
        far_resync("full-mesh", "").replace("blockSize: 26", "blockSize: 26\n  vxlanMode: Always");
    let scenario = "spoofed_sources_and_foreign_filters";
    let programs = ["nft", "bridge", "tcpdump", "iptables-legacy"];
    on_each_stack_of(scenario, &programs, &text, "fail-filter", |lab| {
        await_settled(&lab);
        assert_full_matrix(&lab);
        for family in lab.topology().families() {
            spoofed_sources(&lab, family);
            dropping_policies(&lab, family);
        }
        foreign_filter(&lab);
        if speaks(&lab, Family::Ipv4) {
            strict_reverse_path(&lab);
        }
    });
}

fn spoofed_sources(lab: &Lab, family: Family) {
    let pod = |label: &str| {
        let mut pods = lab.state().pods.iter();
        pods.find(|p| p.label() == label).unwrap().clone()
    };
    let (p1, p2, far) = (pod("node1/p1"), pod("node1/p2"), pod("node2/p1"));
    // Reverse path filtering is off: it must be our rules that judge.
    run_on(lab, "node1", "sysctl -q net.ipv4.conf.all.rp_filter=0");
    // The neighbour's address, one of nobody's, and then its own: only the last one leaves the
    // node.
    let request = either(
        family,
        "icmp[icmptype] == icmp-echo",
        "icmp6 and ip6[40] == 128",
    );
    let seen = lab
        .capture("node2", far.host_interface.as_deref().unwrap(), request)
        .unwrap();
    let address = |pod: &PodState| pod.address_of(family).unwrap();
    let target = address(&far);
    let nobodys = either(family, "192.0.2.9", "2001:db8::9").to_owned();
    for source in [address(&p2).to_string(), nobodys] {
        let host = Prefix::host(source.parse().unwrap());
        let dad = either(family, "", " nodad");
        run_on(lab, "node1/p1", &format!("ip addr add {host} dev lo{dad}"));
        let ping = format!("ping -n -c 2 -i 0.2 -W 1 -I {source} {target}");
        assert!(
            try_run_on(lab, "node1/p1", &ping).is_err(),
            "{source} got an answer"
        );
        run_on(lab, "node1/p1", &format!("ip addr del {host} dev lo"));
    }
    let ping = format!("ping -n -c 2 -i 0.2 -W 5 {target}");
    run_on(lab, "node1/p1", &ping);
    seen.wait_for(2, 60 * SECOND).unwrap();
    let word = either(family, "IP", "IP6");
    let own = format!("{word} {} > {target}", address(&p1));
    let seen = seen.stop().packets;
    assert!(seen.iter().all(|packet| packet.contains(&own)), "{seen:?}");
}

/// As Docker does, in either of iptables' two forms.
fn dropping_policies(lab: &Lab, family: Family) {
    let tools = either(
        family,
        ["iptables-nft", "iptables-legacy"],
        ["ip6tables-nft", "ip6tables-legacy"],
    );
    for tool in tools {
        run_on(lab, "node1", &format!("{tool} -P FORWARD DROP"));
        if tool.ends_with("legacy") {
            // The older form tells nobody, so it is found when something else is looked at.
            run_on(lab, "node1", "nft delete table inet caracal");
        }
        let opened = || try_run_on(lab, "node1", &format!("{tool} -S FORWARD")).unwrap_or_default();
        let what = "our rules in a FORWARD that drops";
        wait_for(60 * SECOND, what, opened, |s| {
            s.contains("-j caracal-forward")
        })
        .unwrap();
        assert_full_matrix(lab);
    }
}

/// Waits until node1 tells of a problem, or does not any more.
fn await_problem(lab: &Lab, code: &str, there: bool) -> Vec<Problem> {
    let status = await_status(lab, "node1", 60 * SECOND, code, |s| match there {
        true => has_problem(s, code, ""),
        false => has_no_problem(s, code),
    });
    status.problems
}

fn foreign_filter(lab: &Lab) {
    apply_nft(
        lab,
        "node1",
        "table inet fw {\n chain f { type filter hook forward priority 5; policy drop; }\n}\n",
    );
    println!("{:?}", await_problem(lab, "agent.forward_dropped", true));
    run_on(lab, "node1", "nft delete table inet fw");
    // A table that goes takes its chains along without a word about each.
    run_on(lab, "node1", "nft flush chain inet caracal forward");
    await_problem(lab, "agent.forward_dropped", false);
}

fn strict_reverse_path(lab: &Lab) {
    run_on(lab, "node1", "sysctl -q net.ipv4.conf.all.rp_filter=1");
    println!("{:?}", await_problem(lab, "agent.strict_rp_filter", true));
    let words = "sysctl -n net.ipv4.conf.vxlan/calico.rp_filter";
    let loose = || run_on(lab, "node1", words);
    wait_for(60 * SECOND, "our tunnel made loose", loose, |v| {
        v.trim() == "2"
    })
    .unwrap();
    assert_full_matrix(lab);
    run_on(lab, "node1", "sysctl -q net.ipv4.conf.eth0.rp_filter=2");
    await_problem(lab, "agent.strict_rp_filter", false);
}

/// Every packet between this node and the datastore is lost.
fn dead(lab: &Lab) -> String {
    let port = datastore_port(lab);
    format!(
        "table inet dead {{
    chain in {{ type filter hook input priority 0; tcp sport {port} drop; }}
    chain out {{ type filter hook output priority 0; tcp dport {port} drop; }}
}}
"
    )
}

/// Connections to the datastore that are open on this side and dead on the way: no RST, no FIN,
/// just silence.
#[test]
fn a_half_open_connection_to_the_datastore_is_noticed() {
    let scenario = "a_half_open_connection_to_the_datastore_is_noticed";
    on_each_stack_and_datastore(scenario, &["nft"], "full-mesh", "fail-half", half_open);
}

fn half_open(lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let nodes = caracals(&lab);
    let monitors = RouteMonitor::on_all(&lab);
    let before: Vec<_> = nodes.iter().map(|n| routes_by_kind(&lab, n)).collect();
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1"), ("node2/p1", "node3/p1")]);
    for node in &nodes {
        apply_nft(&lab, node, &dead(&lab));
    }
    let start = Instant::now();
    for node in &nodes {
        let status = await_status(&lab, node, 60 * SECOND, "not fresh, with a reason", |s| {
            if s.datastore.state != "fresh"
                && s.datastore.reason.is_some()
                && s.kernel.phase == "learning"
            {
                Ok(())
            } else {
                Err(format!("{:?} {:?}", s.datastore, s.kernel))
            }
        });
        println!(
            "{node}: noticed after {:.1} s at the latest: {:?}",
            start.elapsed().as_secs_f64(),
            status.datastore.reason
        );
    }
    // Changes made meanwhile are followed afterwards.
    let tunnel = late_pool(&lab);
    probes.after(1000);
    let during: Vec<_> = nodes.iter().map(|n| routes_by_kind(&lab, n)).collect();
    assert_eq!(during, before);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("half-open connections to the datastore");
    }
    for node in &nodes {
        run_on(&lab, node, "nft delete table inet dead");
    }
    for node in &nodes {
        await_status(&lab, node, 60 * SECOND, "the late pool's tunnel", |s| {
            if s.datastore.state == "fresh" && s.kernel.tunnels.iter().any(|t| t == tunnel) {
                Ok(())
            } else {
                Err(format!("{:?} {:?}", s.datastore, s.kernel))
            }
        });
    }
    assert!(try_run_on(&lab, "node1", "nft list table inet dead").is_err());
    probes.assert_none_lost("half-open connections to the datastore");
}

/// For how many seconds etcd is away; `CARACAL_E2E_OUTAGE=600` is the ten minutes of
/// `docs/operations.md`.
fn outage() -> u64 {
    std::env::var("CARACAL_E2E_OUTAGE").map_or(30, |s| s.parse().expect("seconds"))
}

#[test]
fn a_datastore_down_for_a_while_deletes_nothing() {
    let scenario = "a_datastore_down_for_a_while_deletes_nothing";
    on_each_stack_and_datastore(scenario, &[], "full-mesh", "fail-etcd", datastore_down);
}

fn datastore_down(mut lab: Lab) {
    let seconds = outage();
    await_settled(&lab);
    assert_full_matrix(&lab);
    let before: Vec<_> = caracals(&lab)
        .iter()
        .map(|n| routes_by_kind(&lab, n))
        .collect();
    let monitors = RouteMonitor::on_all(&lab);
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1")]);
    probes.after(100);
    stop_datastore(&mut lab);
    probes.after(seconds * 1000);
    let stale = await_status(&lab, "node1", 60 * SECOND, "stale, with a reason", |s| {
        if s.datastore.state == "stale" && s.datastore.reason.is_some() {
            Ok(())
        } else {
            Err(format!("{:?}", s.datastore))
        }
    });
    println!("while the datastore is down: {:?}", stale.datastore);
    let during: Vec<_> = caracals(&lab)
        .iter()
        .map(|n| routes_by_kind(&lab, n))
        .collect();
    assert_eq!(during, before);
    start_datastore(&mut lab);
    await_settled(&lab);
    for monitor in &monitors {
        monitor.assert_nothing_deleted("datastore down");
    }
    // New state is picked up: another pool appears as a change of the revision that the kernel is
    // in step with.
    let revision = lab.node_status("node1").unwrap().kernel.revision;
    let tunnel = late_pool(&lab);
    await_status(&lab, "node1", 60 * SECOND, "the new pool's tunnel", |s| {
        let up = s.kernel.tunnels.iter().any(|t| t == tunnel);
        if up && s.kernel.revision > revision {
            Ok(())
        } else {
            Err(format!("{:?}", s.kernel))
        }
    });
    probes.assert_none_lost(&format!("datastore down for {seconds} s and back"));
}
