//! The lab's instruments, held against links whose losses are known: the loss counter, captures and
//! faults. Needs root; says so and passes without.
#![allow(clippy::unwrap_used)]

use caracal_lab::{IPIP_FILTER, Lab, Probe, Stream, wait_until};

mod support;

use support::{SECOND, network, ping};

fn possible(test: &str) -> bool {
    support::possible(test, &["tcpdump"])
}

fn stream(lab: &Lab, from: &str, to: &str) -> Stream {
    let target = lab.layout().node(to).unwrap();
    Stream {
        from: lab.netns(from).unwrap(),
        to: target.netns.clone(),
        address: target.uplink.address,
        rate: 2000,
        size: 64,
    }
}

fn received(probe: &Probe, count: u64) {
    let enough = || match probe.received() {
        n if n >= count => Ok(()),
        n => Err(format!("{n} received, {} sent", probe.sent())),
    };
    wait_until(10 * SECOND, "datagrams to arrive", enough).unwrap();
}

#[test]
fn a_healthy_path_loses_nothing() {
    if !possible("a_healthy_path_loses_nothing") {
        return;
    }
    let lab = network("cross-subnet", "healthy");
    ping(&lab, "node1", "10.0.2.12");
    let probe = Probe::start(stream(&lab, "node1", "node4")).unwrap();
    received(&probe, 2000);
    let loss = probe.stop();
    println!("{loss}");
    assert_eq!(
        (loss.lost, loss.duplicated, loss.refused),
        (0, 0, 0),
        "{loss}"
    );
    assert_eq!(loss.received, loss.sent);
    // 2000 per second were asked for; the pace is the clock's, not the machine's.
    let per_second = 2000.0 * loss.duration.as_secs_f64();
    let sent = f64::from(u32::try_from(loss.sent).unwrap());
    assert!((sent - per_second).abs() < 0.1 * per_second, "{loss}");
}

#[test]
fn every_loss_is_counted() {
    if !possible("every_loss_is_counted") {
        return;
    }
    let lab = network("full-mesh", "losses");
    ping(&lab, "node1", "10.0.0.2");
    let probe = Probe::start(stream(&lab, "node1", "node2")).unwrap();
    received(&probe, 200);
    lab.isolate("node2").unwrap();
    let (sent, received_before) = (probe.sent(), probe.received());
    let more = || {
        if probe.sent() >= sent + 600 {
            Ok(())
        } else {
            Err(probe.sent())
        }
    };
    wait_until(10 * SECOND, "600 datagrams into the void", more).unwrap();
    let during = probe.received() - received_before;
    lab.rejoin("node2").unwrap();
    received(&probe, received_before + 500);
    let loss = probe.stop();
    println!("{loss}");
    // Carrier stayed, so the sender's kernel refused nothing; only those between the two commands
    // are gone.
    assert!(loss.lost >= 600 - during, "{loss}");
    assert_eq!(loss.received + loss.lost, loss.sent);
    assert_eq!(loss.overflowed, 0, "{loss}");
    let gap = loss.longest_gap.unwrap();
    assert!(gap.count >= 500 && gap.first >= 200, "{loss}");
    assert!(gap.duration.as_millis() >= 250, "{loss}");
}

#[test]
fn a_sender_without_a_route_is_told_apart() {
    if !possible("a_sender_without_a_route_is_told_apart") {
        return;
    }
    let lab = network("full-mesh", "refused");
    let lines = ["route add blackhole 10.0.0.2/32".to_owned()];
    caracal_lab::ip_batch(Some(&lab.netns("node1").unwrap()), &lines).unwrap();
    let probe = Probe::start(stream(&lab, "node1", "node2")).unwrap();
    let some = || {
        if probe.sent() >= 100 {
            Ok(())
        } else {
            Err(probe.sent())
        }
    };
    wait_until(10 * SECOND, "datagrams to be refused", some).unwrap();
    let loss = probe.stop();
    assert_eq!(
        (loss.received, loss.lost, loss.refused),
        (0, loss.sent, loss.sent),
        "{loss}"
    );
    assert!(
        loss.to_string().contains("refused by the sender's kernel"),
        "{loss}"
    );
}

#[test]
fn a_capture_sees_what_crosses_a_segment_and_nothing_else() {
    if !possible("a_capture_sees_what_crosses_a_segment_and_nothing_else") {
        return;
    }
    let lab = network("cross-subnet", "capture");
    let near = lab
        .capture_segment("rack1", "icmp[icmptype] = icmp-echo")
        .unwrap();
    let far = lab
        .capture_segment("rack2", "icmp[icmptype] = icmp-echo")
        .unwrap();
    let tunnel = lab.capture_segment("rack1", IPIP_FILTER).unwrap();
    ping(&lab, "node1", "10.0.1.12");
    ping(&lab, "node1", "10.0.2.12");
    near.wait_for(2, 5 * SECOND).unwrap();
    far.wait_for(1, 5 * SECOND).unwrap();
    let near = near.stop();
    assert_eq!(near.packets.len(), 2, "{near:?}");
    assert!(
        near.packets[1].contains("10.0.1.11 > 10.0.2.12"),
        "{near:?}"
    );
    assert_eq!(far.stop().packets.len(), 1);
    let tunnel = tunnel.stop();
    assert_eq!((tunnel.packets.len(), tunnel.dropped), (0, 0), "{tunnel:?}");
    assert!(lab.capture_segment("rack9", "icmp").is_err());
    let error = lab
        .capture("node1", "eth0", "no such filter")
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("tcpdump does not listen"),
        "{error}"
    );
}

#[test]
fn a_pulled_cable_is_seen_and_an_isolated_node_sees_nothing() {
    if !possible("a_pulled_cable_is_seen_and_an_isolated_node_sees_nothing") {
        return;
    }
    let lab = network("full-mesh", "cables");
    let netns = lab.netns("node1").unwrap();
    let carrier = || {
        let mut command = caracal_lab::program_command("ip").unwrap();
        command.args(["-o", "link", "show", "dev", "eth0"]);
        let line = caracal_lab::call_program(Some(&netns), &mut command, b"", 5 * SECOND).unwrap();
        if line.contains("NO-CARRIER") {
            "down"
        } else {
            "up"
        }
    };
    let is = |want: &str| {
        let look = || Some(carrier()).filter(|s| *s == want).ok_or("the other");
        wait_until(5 * SECOND, &format!("carrier {want}"), look).unwrap();
    };
    is("up");
    lab.unplug("node1").unwrap();
    is("down");
    lab.plug("node1").unwrap();
    is("up");
    lab.isolate("node1").unwrap();
    is("up");
    lab.rejoin("node1").unwrap();
    assert!(ping(&lab, "node1", "10.0.0.2").contains("ttl=64"));
    assert!(lab.unplug("nobody").is_err());
}

/// Only where the kernel has ipip: in the guest of `with-ipip-kernel`, mostly.
#[test]
fn a_capture_tells_ip_in_ip_from_plain_packets() {
    let test = "a_capture_tells_ip_in_ip_from_plain_packets";
    if !possible(test) {
        return;
    }
    let lab = network("ipip-always", "ipip");
    let tunnel = |node: u8| {
        let other = 3 - node;
        let lines = [
            "link set dev tunl0 up".to_owned(),
            format!("address add 10.244.{node}.1/32 dev tunl0"),
            format!("route add 10.244.{other}.0/26 via 10.0.0.{other} dev tunl0 onlink"),
        ];
        caracal_lab::ip_batch(Some(&lab.netns(&format!("node{node}")).unwrap()), &lines)
    };
    if let Err(error) = tunnel(1) {
        println!("{test}: skipped, this kernel has no tunl0: {error}");
        return;
    }
    tunnel(2).unwrap();
    let encapsulated = lab.capture_segment("lan", IPIP_FILTER).unwrap();
    let plain = lab.capture_segment("lan", "icmp").unwrap();
    ping(&lab, "node1", "10.244.2.1");
    encapsulated.wait_for(2, 5 * SECOND).unwrap();
    let encapsulated = encapsulated.stop();
    assert_eq!(encapsulated.packets.len(), 2, "{encapsulated:?}");
    assert!(
        encapsulated.packets[0].contains("10.0.0.1 > 10.0.0.2"),
        "{encapsulated:?}"
    );
    assert_eq!(plain.stop().packets.len(), 0);
    let routes = lab.routes("node1").unwrap();
    let kinds: Vec<_> = routes
        .iter()
        .map(|r| r.classify(&lab.underlay()).as_str())
        .collect();
    assert!(kinds.contains(&"ipip"), "{routes:?}");
}
