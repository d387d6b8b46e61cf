//! Two racks behind a router that knows no pods, and a pool that encapsulates nothing: packets
//! between the racks are lost, and the nodes name the router, until somebody can tell it.

use caracal_lab::Lab;
use caracal_tests::{
    SECOND, await_settled, await_status, caracals, delete_calico_resource, exit_code,
    has_no_problem, has_problem, on_each_stack_and_datastore, put_calico_resource, set_pool_modes,
};
use serde_json::json;

const CODE: &str = "agent.untold_router";

#[test]
fn a_router_that_is_told_of_no_pods_is_named() {
    let scenario = "a_router_that_is_told_of_no_pods_is_named";
    on_each_stack_and_datastore(scenario, &[], "cross-subnet", "path-router", |mut lab| {
        await_settled(&lab);
        set_pool_modes(&lab, "Never", "Never");
        for node in caracals(&lab) {
            await_named(&lab, &node);
        }
        let (_, says) = exit_code(&lab, "node1", &["audit"]);
        assert!(says.contains("CRL-P003"), "{says}");
        lab.kill9_node("node1").unwrap();
        lab.restart_node("node1").unwrap();
        await_named(&lab, "node1");
        // A peer outside of the cluster may tell others.
        let peer = json!({"kind": "BGPPeer", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "router"},
            "spec": {"node": "node2", "peerIP": "10.0.1.254", "asNumber": 65000}});
        put_calico_resource(&lab, "bgppeers", &peer);
        await_silent(&lab);
        delete_calico_resource(&lab, "bgppeers", "router");
        await_named(&lab, "node1");
        set_pool_modes(&lab, "Never", "CrossSubnet");
        await_silent(&lab);
    });
}

fn await_named(lab: &Lab, node: &str) {
    await_status(lab, node, 60 * SECOND, "the router is named", |status| {
        has_problem(status, CODE, "is behind the router")
    });
}

fn await_silent(lab: &Lab) {
    for node in caracals(lab) {
        await_status(
            lab,
            &node,
            60 * SECOND,
            "the router is not named",
            |status| has_no_problem(status, CODE),
        );
    }
}
