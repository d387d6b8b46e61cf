//! BFD of a BGPPeer, with a real BIRD 2 on the nodes' link.

use std::fmt::Write as _;

use caracal_lab::Lab;
use caracal_model::NodeStatus;
use caracal_tests::{
    SECOND, Stack, address_of, await_settled, await_status, calico_resource, either,
    on_each_stack_and_datastore_of, put_calico_resource,
};
use serde_json::json;

const ON: &str = "BFDIfDirectlyConnected";

/// A node and a router of another AS, whose BGP alone would notice a loss after minutes.
fn topology(stack: Stack, name: &str) -> String {
    let (mut sessions, mut peers) = (String::new(), String::new());
    for family in stack.families() {
        let channel = either(*family, "ipv4", "ipv6");
        let [node, router] = either(
            *family,
            ["10.0.0.11", "10.0.0.31"],
            ["fd00:10::11", "fd00:10::31"],
        );
        let _ = write!(
            sessions,
            "      protocol bgp node_{channel} {{
        local {router} as 65001;
        neighbor {node} as 64512;
        direct; bfd; hold time 240;
        connect retry time 1; connect delay time 1; error wait time 1, 2;
        {channel} {{ import all; export all; }};
      }}
"
        );
        let _ = write!(
            peers,
            "  - apiVersion: projectcalico.org/v3
    kind: BGPPeer
    metadata: {{name: tor-{channel}}}
    spec: {{peerIP: '{router}', asNumber: 65001, failureDetectionMode: {ON}}}
"
        );
    }
    stack.topology(&format!(
        "name: {name}
pool: {{cidr: 10.244.0.0/16, blockSize: 26}}
segments: [{{name: lan, cidr: 10.0.0.0/24}}]
nodes:
  - {{name: node1, segment: lan, address: 10.0.0.11, pods: 1}}
  - name: tor
    segment: lan
    address: 10.0.0.31
    kind: bird2
    asn: 65001
    config: |
      router id 10.0.0.31;
      protocol device {{}}
      protocol bfd {{}}
{sessions}resources:
{peers}"
    ))
}

#[test]
fn bfd_of_a_bgppeer_watches_a_router_on_the_link() {
    let scenario = "bfd_of_a_bgppeer_watches_a_router_on_the_link";
    on_each_stack_and_datastore_of(scenario, &["bird"], "ibfd", topology, watched);
}

/// Sessions and BFD with the router, as `condition` has it, in all families.
fn await_router(lab: &Lab, what: &str, condition: impl Fn(&str, Option<&str>) -> bool) {
    let families = lab.topology().families();
    let routers: Vec<_> = families
        .iter()
        .map(|f| address_of(lab, "tor", *f))
        .collect();
    await_status(lab, "node1", 60 * SECOND, what, |status: &NodeStatus| {
        for router in &routers {
            let peer = status.peers.iter().find(|p| p.address == Some(*router));
            let peer = peer.ok_or_else(|| format!("no peer {router}"))?;
            let bfd = peer.bfd.as_ref().map(|bfd| bfd.state.as_str());
            if !condition(&peer.state, bfd) {
                return Err(format!("{router}: {} {:?}", peer.state, peer.bfd));
            }
        }
        Ok(())
    });
}

fn watched(mut lab: Lab) {
    await_settled(&lab);
    let is_up = |state: &str, bfd: Option<&str>| state == "Established" && bfd == Some("Up");
    await_router(&lab, "BFD of the field", is_up);
    // The router stands still, and its kernel answers for it: BGP would notice after minutes.
    lab.pause_node("tor").unwrap();
    await_router(&lab, "the loss", |state, _| state != "Established");
    lab.resume_node("tor").unwrap();
    await_router(&lab, "BFD after the loss", is_up);
    lab.kill9_node("node1").unwrap();
    lab.restart_node("node1").unwrap();
    await_router(&lab, "BFD after a restart", is_up);
    // Without the field, and by the annotation, for a definition of the kind that lacks the field.
    for (mode, has_bfd) in [("None", false), (ON, true)] {
        for family in lab.topology().families() {
            let name = either(family, "tor-ipv4", "tor-ipv6");
            let mut peer = calico_resource(&lab, "bgppeers", name);
            let spec = peer["spec"].as_object_mut().unwrap();
            spec.shift_remove("failureDetectionMode");
            peer["metadata"]["annotations"] = json!({"caracal.io/failure-detection-mode": mode});
            put_calico_resource(&lab, "bgppeers", &peer);
        }
        await_router(&lab, mode, |state, bfd| {
            state == "Established" && bfd == has_bfd.then_some("Up")
        });
    }
}
