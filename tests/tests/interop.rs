//! Real foreign speakers as members and peers of a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use caracal_lab::{Lab, wait_until};
use caracal_tests::stack::{addresses, families, on_each_stack};
use caracal_tests::{SECOND, assert_full_matrix, await_settled, await_status, possible, up_text};

#[test]
fn a_bird_2_node_shares_the_cluster() {
    on_each_stack(
        "a_bird_2_node_shares_the_cluster",
        &["bird", "birdc"],
        "mixed-bird",
        "e2e-bird",
        bird_shares,
    );
}

fn bird_shares(lab: Lab) {
    let times = families(&lab);
    await_settled(&lab);
    // BIRD's view: both sessions up, both blocks learned, and its own block announced to us.
    wait_until(
        60 * SECOND,
        "BIRD has both blocks in its kernel table",
        || {
            let routes = lab.routes("bird1").map_err(|e| e.to_string())?;
            let learned = routes
                .iter()
                .filter(|r| r.protocol.as_deref() == Some("bird") && r.gateway.is_some());
            let learned: Vec<_> = learned.map(|r| r.dst.clone()).collect();
            if learned.len() >= 2 * times {
                Ok(learned)
            } else {
                Err(format!("{learned:?}"))
            }
        },
    )
    .unwrap();
    wait_until(60 * SECOND, "both sessions up in BIRD", || {
        let protocols = lab.birdc("bird1", &["show", "protocols"]);
        let protocols = protocols.map_err(|e| e.to_string())?;
        match protocols.matches("Established").count() == 2 * times {
            true => Ok(()),
            false => Err(protocols),
        }
    })
    .unwrap();
    for node in ["node1", "node2"] {
        for address in addresses(&lab, "bird1") {
            await_status(&lab, node, 60 * SECOND, "BIRD's block", |s| {
                match s.peers.iter().find(|p| p.address == Some(address)) {
                    Some(bird) if bird.accepted >= 1 => Ok(()),
                    other => Err(format!("{address}: {other:?}")),
                }
            });
        }
    }
    assert_full_matrix(&lab);
}

/// A cluster of one Caracal node and a GoBGP router of another AS that announces a route and hears our block.
const GOBGP: &str = r#"
name: gobgp
description: one Caracal node and a GoBGP router of another AS
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: node1, segment: lan, address: 10.0.0.11, pods: 1}
  - name: tor
    segment: lan
    address: 10.0.0.31
    kind: gobgp
    config: |
      [global.config]
        as = 65001
        router-id = "10.0.0.31"
      [[neighbors]]
        [neighbors.config]
          neighbor-address = "10.0.0.11"
          peer-as = 64512
resources:
  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {name: tor}
    spec: {peerIP: 10.0.0.31, asNumber: 65001}
"#;

#[test]
fn gobgp_peers_from_another_as() {
    if !possible("gobgp_peers_from_another_as", &["gobgpd", "gobgp"]) {
        return;
    }
    let lab = up_text(GOBGP, "gobgp.yaml", "e2e-gobgp");
    await_settled(&lab);
    let netns = lab.netns("tor").unwrap();
    let gobgp = |arguments: &[&str]| {
        let mut command = caracal_lab::program::command("gobgp").unwrap();
        command.args(arguments);
        caracal_lab::program::call(Some(&netns), &mut command, b"", 60 * SECOND)
            .map_err(|e| e.to_string())
    };
    gobgp(&[
        "global",
        "rib",
        "add",
        "198.51.100.0/24",
        "nexthop",
        "10.0.0.31",
    ])
    .unwrap();
    wait_until(60 * SECOND, "GoBGP has our block", || {
        let rib = gobgp(&["global", "rib"])?;
        if rib.contains("10.244.") && rib.contains("64512") {
            Ok(())
        } else {
            Err(rib)
        }
    })
    .unwrap();
    wait_until(60 * SECOND, "GoBGP's route is in our kernel", || {
        let routes = lab.routes("node1").map_err(|e| e.to_string())?;
        let found = routes
            .iter()
            .any(|r| r.dst == "198.51.100.0/24" && r.gateway == "10.0.0.31".parse().ok());
        if found {
            Ok(())
        } else {
            Err(format!("{routes:?}"))
        }
    })
    .unwrap();
    gobgp(&[
        "global",
        "rib",
        "del",
        "198.51.100.0/24",
        "nexthop",
        "10.0.0.31",
    ])
    .unwrap();
    wait_until(60 * SECOND, "the withdrawn route leaves our kernel", || {
        let routes = lab.routes("node1").map_err(|e| e.to_string())?;
        if routes.iter().any(|r| r.dst == "198.51.100.0/24") {
            Err(format!("{routes:?}"))
        } else {
            Ok(())
        }
    })
    .unwrap();
}
