//! Foreign speakers in the lab: a real BIRD 2 and a real GoBGP, with configurations of the topology
//! file, come up, peer with each other, die and come back. Needs root; says so and passes without.
#![allow(clippy::unwrap_used)]

use caracal_lab::{Lab, Topology, UpOptions, wait_until};

mod support;

use support::{SECOND, unique};

const TOPOLOGY: &str = r#"
name: speakers
segments: [{name: lan, cidr: 10.0.0.0/24}]
nodes:
  - name: bird1
    segment: lan
    address: 10.0.0.1
    kind: bird2
    config: |
      router id 10.0.0.1;
      protocol device {}
      protocol kernel { ipv4 { export all; }; }
      protocol static { ipv4; route 10.9.1.0/24 blackhole; }
      protocol bgp peer_gobgp {
        local 10.0.0.1 as 64512;
        neighbor 10.0.0.2 as 64513;
        connect retry time 1;
        connect delay time 1;
        ipv4 { import all; export where source = RTS_STATIC; };
      }
  - name: gobgp1
    segment: lan
    address: 10.0.0.2
    kind: gobgp
    config: |
      [global.config]
        as = 64513
        router-id = "10.0.0.2"
      [[neighbors]]
        [neighbors.config]
          neighbor-address = "10.0.0.1"
          peer-as = 64512
        [neighbors.timers.config]
          connect-retry = 1
"#;

fn bring_up(text: &str, name: &str) -> Result<Lab, String> {
    let topology = Topology::parse(text, "speakers.yaml").unwrap();
    let options = UpOptions::test("/bin/true", &unique(name));
    Lab::up(topology, text, options, &|_| {}).map_err(|e| caracal_lab::error_chain(&e))
}

#[test]
fn bird_and_gobgp_peer_die_and_come_back() {
    if !support::possible(
        "bird_and_gobgp_peer_die_and_come_back",
        &["bird", "birdc", "gobgpd"],
    ) {
        return;
    }
    let mut lab = bring_up(TOPOLOGY, "speakers").unwrap();
    assert_eq!(lab.await_sessions(30 * SECOND).unwrap(), 1);
    let report = lab.report(None).unwrap();
    let bird = &report.nodes[0];
    let peer = &bird.status.as_ref().unwrap().peers[0];
    assert_eq!((&*peer.name, peer.asn), ("peer_gobgp", 64513));
    assert_eq!(peer.advertised, 1, "{peer:?}");
    assert_eq!(bird.routes.get("blackhole"), Some(&1), "{:?}", bird.routes);

    lab.kill9_node("gobgp1").unwrap();
    assert!(!lab.node_runs("gobgp1"));
    let lost = || match lab.await_sessions(SECOND / 100) {
        Ok(_) => Err("still established"),
        Err(_) => Ok(()),
    };
    wait_until(30 * SECOND, "BIRD to lose its peer", lost).unwrap();
    lab.restart_node("gobgp1").unwrap();
    assert!(lab.start_node("gobgp1").is_err(), "it runs already");
    lab.await_sessions(60 * SECOND).unwrap();

    lab.stop_node("bird1").unwrap();
    let report = lab.report(None).unwrap();
    assert_eq!(
        report.nodes[0].error.as_deref(),
        Some("its process is not running")
    );
    assert!(!report.is_healthy());
}

#[test]
fn a_bad_configuration_is_explained_by_bird_itself() {
    if !support::possible(
        "a_bad_configuration_is_explained_by_bird_itself",
        &["bird", "birdc"],
    ) {
        return;
    }
    let text = TOPOLOGY.replace("protocol device {}", "protocol device { nonsense; }");
    let error = bring_up(&text, "badbird").unwrap_err();
    assert!(error.contains("cannot start speaker bird1"), "{error}");
    assert!(error.contains("bird.conf:2"), "{error}");
}
