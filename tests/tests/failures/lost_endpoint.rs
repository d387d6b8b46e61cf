//! The endpoint of a pod that lives is deleted behind its back: its packets are lost, and the
//! pod's node says why, also after its restart. A node that joins has nothing to say.

use caracal_lab::{Lab, PodState, error_chain, wait_until};
use caracal_tests::{
    SECOND, await_settled, await_status, caracals, exit_code, has_no_problem, has_problem,
    is_kubernetes, kubectl, on_each_stack_and_datastore,
};

/// Longer than the node waits before it names one.
const PATIENCE: std::time::Duration = SECOND.saturating_mul(90);

#[test]
fn a_pod_that_the_datastore_does_not_know_is_named() {
    let scenario = "a_pod_that_the_datastore_does_not_know_is_named";
    on_each_stack_and_datastore(scenario, &[], "full-mesh", "fail-lost", |mut lab| {
        await_settled(&lab);
        let pods = lab.state().pods.clone();
        let pod = pods.iter().find(|pod| pod.node == "node1").unwrap();
        let interface = pod.host_interface.clone().unwrap();
        delete_endpoint(&lab, pod);
        await_named(&lab, "node1", &interface);
        for other in caracals(&lab).iter().filter(|node| *node != "node1") {
            await_status(&lab, other, PATIENCE, "not its pod", |status| {
                has_no_problem(status, "agent.no_endpoint")
            });
        }
        wait_until(PATIENCE, "the audit's finding", || {
            let (code, says) = exit_code(&lab, "node1", &["audit"]);
            match code != 0 && says.contains("CRL-W003") && says.contains(&interface) {
                true => Ok(()),
                false => Err(format!("{code}: {says}")),
            }
        })
        .unwrap_or_else(|e| panic!("{e}"));
        lab.kill9_node("node1").unwrap();
        lab.restart_node("node1").unwrap();
        await_named(&lab, "node1", &interface);
        // What the remedy is: the pod goes, and with it the problem.
        lab.cni("DEL", pod)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        await_status(&lab, "node1", PATIENCE, "nobody is lost", |status| {
            has_no_problem(status, "agent.no_endpoint")
        });
    });
}

fn await_named(lab: &Lab, node: &str, interface: &str) {
    await_status(lab, node, PATIENCE, "the pod is named", |status| {
        has_problem(status, "agent.no_endpoint", interface)
    });
}

/// By hand, while the pod's container lives.
fn delete_endpoint(lab: &Lab, pod: &PodState) {
    let name = format!("{}-{}", pod.node, pod.name);
    if is_kubernetes(lab) {
        kubectl(
            lab,
            &["delete", "pod", &name, "--force", "--grace-period=0"],
            b"",
        );
        return;
    }
    let folder = "/calico/resources/v3/projectcalico.org/workloadendpoints/";
    let keys = lab.etcdctl(&["get", folder, "--prefix", "--keys-only"], b"");
    let keys = keys.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    let of_pod = |key: &&str| key.contains(&format!("/{}-", pod.node));
    let with = |key: &str| {
        let value = lab
            .etcdctl(&["get", key, "--print-value-only"], b"")
            .unwrap();
        value.contains(&format!("{:?}", pod.host_interface.as_deref().unwrap()))
    };
    let key = keys.split_whitespace().filter(of_pod).find(|key| with(key));
    let key = key.unwrap_or_else(|| panic!("no endpoint of {name}: {keys}"));
    lab.etcdctl(&["del", key], b"").unwrap();
}
