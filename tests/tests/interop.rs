//! Real foreign speakers as members and peers of a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use caracal_lab::{Lab, wait_until};
use caracal_model::Family;
use caracal_tests::stack::{Stack, address_of, addresses, families, on_each_stack, on_stacks};
use caracal_tests::{SECOND, assert_full_matrix, await_settled, await_status};

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

/// A cluster of one Caracal node and a GoBGP router of another AS that announces a route and hears our block, over a
/// session of each family.
fn gobgp(stack: Stack) -> String {
    let mut sessions = String::new();
    let mut peers = String::new();
    for family in stack.families() {
        let (node, router, name) = match family {
            Family::Ipv4 => ("10.0.0.11", "10.0.0.31", "ipv4"),
            Family::Ipv6 => ("fd00:10::11", "fd00:10::31", "ipv6"),
        };
        sessions += &format!(
            "      [[neighbors]]
        [neighbors.config]
          neighbor-address = \"{node}\"
          peer-as = 64512
        [[neighbors.afi-safis]]
          [neighbors.afi-safis.config]
            afi-safi-name = \"{name}-unicast\"
"
        );
        peers += &format!(
            "  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {{name: tor-{name}}}
    spec: {{peerIP: \"{router}\", asNumber: 65001}}
"
        );
    }
    stack.topology(&format!(
        "
name: gobgp
description: one Caracal node and a GoBGP router of another AS
pool: {{cidr: 10.244.0.0/16, blockSize: 26}}
segments:
  - {{name: lan, cidr: 10.0.0.0/24}}
nodes:
  - {{name: node1, segment: lan, address: 10.0.0.11, pods: 1}}
  - name: tor
    segment: lan
    address: 10.0.0.31
    kind: gobgp
    config: |
      [global.config]
        as = 65001
        router-id = \"10.0.0.31\"
{sessions}resources:
{peers}"
    ))
}

#[test]
fn gobgp_peers_from_another_as() {
    let scenario = "gobgp_peers_from_another_as";
    on_stacks(scenario, &["gobgpd", "gobgp"], "e2e-gobgp", gobgp, |lab| {
        await_settled(&lab);
        for family in lab.topology().families() {
            routes_of_gobgp(&lab, family);
        }
    });
}

fn routes_of_gobgp(lab: &Lab, family: Family) {
    let (route, block) = match family {
        Family::Ipv4 => ("198.51.100.0/24", "10.244."),
        Family::Ipv6 => ("2001:db8:100::/64", "fd00:10:244:"),
    };
    let router = address_of(lab, "tor", family);
    let netns = lab.netns("tor").unwrap();
    let gobgp = |words: &str| {
        let mut command = caracal_lab::program::command("gobgp").unwrap();
        command.args(words.split(' '));
        command.args(["-a", family.as_str()]);
        caracal_lab::program::call(Some(&netns), &mut command, b"", 60 * SECOND)
            .map_err(|e| e.to_string())
    };
    gobgp(&format!("global rib add {route} nexthop {router}")).unwrap();
    wait_until(60 * SECOND, "GoBGP has our block", || {
        let rib = gobgp("global rib")?;
        if rib.contains(block) && rib.contains("64512") {
            Ok(())
        } else {
            Err(rib)
        }
    })
    .unwrap();
    let in_kernel = || -> Result<bool, String> {
        let routes = lab.routes("node1").map_err(|e| e.to_string())?;
        let is_it = |r: &caracal_lab::ip::Route| r.dst == route && r.gateway == Some(router);
        Ok(routes.iter().any(is_it))
    };
    let await_route = |what: &str, wanted: bool| {
        wait_until(60 * SECOND, what, || match in_kernel()? {
            seen if seen == wanted => Ok(()),
            _ => Err(format!("{:?}", lab.routes("node1"))),
        })
        .unwrap();
    };
    await_route("GoBGP's route is in our kernel", true);
    gobgp(&format!("global rib del {route} nexthop {router}")).unwrap();
    await_route("the withdrawn route leaves our kernel", false);
}
