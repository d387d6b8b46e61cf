//! Real foreign speakers as members and peers of a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "interop/bfd.rs"]
mod bfd;

use caracal_lab::{Lab, wait_until};
use caracal_model::{Family, NodeStatus};
use caracal_tests::{
    SECOND, Stack, address_of, addresses, assert_full_matrix, await_settled, await_status,
    family_count, on_each_stack, on_stacks,
};

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
    let times = family_count(&lab);
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

/// A cluster of one Caracal node and a GoBGP router of another AS that announces a route and hears
/// our block, over a session of each family.
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
            too_many_prefixes(&lab, family);
        }
    });
}

/// A command of GoBGP's, in one family.
fn gobgp_command(lab: &Lab, family: Family, words: &str) -> Result<String, String> {
    let mut command = caracal_lab::program_command("gobgp").unwrap();
    command.args(words.split(' '));
    command.args(["-a", family.as_str()]);
    let netns = lab.netns("tor").unwrap();
    caracal_lab::call_program(Some(&netns), &mut command, b"", 60 * SECOND)
        .map_err(|e| e.to_string())
}

/// The BGPPeer of a family, with a limit of prefixes or without.
fn limit_gobgp(lab: &Lab, family: Family, limit: Option<&str>) {
    let name = format!("tor-{}", family.as_str());
    let key = format!("/calico/resources/v3/projectcalico.org/bgppeers/{name}");
    let annotations = limit.map(|limit| serde_json::json!({"caracal.io/max-prefixes": limit}));
    let value = serde_json::json!({
        "kind": "BGPPeer",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"peerIP": address_of(lab, "tor", family), "asNumber": 65001},
    });
    let _answer = lab
        .etcdctl(&["put", &key], value.to_string().as_bytes())
        .unwrap();
}

/// Three of four prefixes are a warning, the fifth ends the session with Cease / Maximum Number of
/// Prefixes Reached (RFC 4486): the peer's routes go, and nothing else does.
fn too_many_prefixes(lab: &Lab, family: Family) {
    let router = address_of(lab, "tor", family);
    let route = |n: usize| match family {
        Family::Ipv4 => format!("198.51.{n}.0/24"),
        Family::Ipv6 => format!("2001:db8:{n}::/64"),
    };
    let add = |n: usize| {
        let words = format!("global rib add {} nexthop {router}", route(n));
        gobgp_command(lab, family, &words).unwrap();
    };
    let kernel = || -> Vec<String> {
        let routes = lab.routes("node1").unwrap();
        let ours = routes
            .iter()
            .filter(|r| r.protocol.as_deref() == Some("80"));
        ours.map(|r| r.dst.clone()).collect()
    };
    let before = kernel();
    let await_node = |what: &str, condition: &dyn Fn(&NodeStatus) -> Result<(), String>| {
        await_status(lab, "node1", 60 * SECOND, what, condition)
    };
    let has = |status: &NodeStatus, code: &str, words: &str| {
        let mut problems = status.problems.iter();
        match problems.any(|p| p.code == code && p.reason.contains(words)) {
            true => Ok(()),
            false => Err(format!("{:?}\n{:?}", status.problems, status.peers)),
        }
    };
    let peer = || {
        let text = lab.caracal("node1", &["bgp", "peer", &router.to_string(), "-o", "json"]);
        let text = text.map_err(|e| e.to_string())?;
        serde_json::from_str::<serde_json::Value>(&text).map_err(|e| e.to_string())
    };
    limit_gobgp(lab, family, Some("4"));
    (1..=3).for_each(add);
    await_node("the warning", &|s| has(s, "bgp.prefix_limit_near", "3 IPv"));
    let near = peer().unwrap();
    assert_eq!(near["state"], "Established", "{near:#}");
    let counted = &near["families"][0];
    assert_eq!(
        (&counted["limit"], &counted["warningFrom"]),
        (&4.into(), &3.into()),
        "{near:#}"
    );
    // The table is ahead of the kernel.
    wait_until(60 * SECOND, "the routes in the kernel", || {
        let now = kernel();
        (now.len() == before.len() + 3)
            .then_some(())
            .ok_or_else(|| format!("{now:?}"))
    })
    .unwrap_or_else(|e| panic!("{e}"));

    (4..=5).for_each(add);
    wait_until(60 * SECOND, "the session to end", || {
        let peer = peer()?;
        let said = peer["lastNotificationSent"]["text"]
            .as_str()
            .unwrap_or_default();
        let why = peer["reason"].as_str().unwrap_or_default();
        let is_over = peer["state"] == "Idle" && peer["errors"]["prefixLimit"] == 1;
        match is_over && said.contains("Maximum Number of Prefixes") && why.contains("prefixes") {
            true => Ok(()),
            false => Err(format!("{peer:#}")),
        }
    })
    .unwrap();
    wait_until(60 * SECOND, "the kernel as before", || match kernel() {
        seen if seen == before => Ok(()),
        seen => Err(format!("{seen:?}, before {before:?}")),
    })
    .unwrap();
    await_node("the problem", &|s| has(s, "bgp.peer_down", "prefixes"));

    // The operator mends it: the session comes back by itself.
    for n in 1..=5 {
        let words = format!("global rib del {} nexthop {router}", route(n));
        gobgp_command(lab, family, &words).unwrap();
    }
    limit_gobgp(lab, family, None);
    await_node("the session again", &caracal_tests::settled);
    assert_eq!(kernel(), before);
}

fn routes_of_gobgp(lab: &Lab, family: Family) {
    let (route, block) = match family {
        Family::Ipv4 => ("198.51.100.0/24", "10.244."),
        Family::Ipv6 => ("2001:db8:100::/64", "fd00:10:244:"),
    };
    let router = address_of(lab, "tor", family);
    let gobgp = |words: &str| gobgp_command(lab, family, words);
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
        let is_it = |r: &caracal_lab::Route| r.dst == route && r.gateway == Some(router);
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
