//! Several attachments of one pod, as Multus makes them, and one that fails: with Kubernetes' API a
//! pod has one attachment by our plugin, and nothing that comes later takes any of it away.

use std::process::Command;

use caracal_lab::{CniError, Lab, PodState, error_chain};
use caracal_tests::{exit_code, kubernetes_object, more_pods, unbind_pod};

use super::rights::{put_role, without};
use super::{attached, bind, endpoint};

/// What runs in the namespace of a pod.
fn in_pod(pod: &PodState, line: &str) -> String {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &pod.netns, "sh", "-c", line]);
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All that an attachment consists of: the pod's annotations, its interfaces, addresses and routes,
/// the host's interfaces and routes to pods, and what IPAM has given out.
fn state(lab: &Lab, pod: &PodState) -> [String; 4] {
    let node = PodState {
        netns: lab.netns(&pod.node).unwrap(),
        ..pod.clone()
    };
    let annotations = endpoint(lab, &format!("{}-{}", pod.node, pod.name)).join(" ");
    let of_pod = in_pod(pod, "ip -br addr; ip route show; ip -6 route show");
    // Traffic of other pods renews neighbours and nothing else that is shown here.
    let of_node = in_pod(&node, "ip -br link | grep cali; ip route show | grep cali");
    let (code, given_out) = exit_code(lab, &pod.node, &["ipam", "show"]);
    assert_eq!(code, 0, "{given_out}");
    [annotations, of_pod, of_node, given_out]
}

fn refused(result: Result<String, CniError>) -> (u64, String) {
    match result {
        Err(CniError::Refused { code, message, .. }) => (code, message),
        Err(error) => panic!("{}", error_chain(&error)),
        Ok(answer) => panic!("it was attached: {answer}"),
    }
}

pub(super) fn keep_the_first(lab: &Lab) {
    let pod = &more_pods(lab, ["node1"])[0];
    bind(lab, pod);
    let address = attached(lab, pod);
    let before = state(lab, pod);
    assert!(before[0].starts_with(&address.to_string()), "{before:?}");
    assert!(before[1].contains("default via"), "{before:?}");
    let reached = |when: &str| {
        let far = lab.state().pods.iter().find(|p| p.node == "node2").unwrap();
        let line = format!(
            "ping -c 1 -W 5 {} >/dev/null && echo reached",
            far.address.unwrap()
        );
        assert_eq!(in_pod(pod, &line).trim(), "reached", "{when}");
    };
    reached("before");

    // Another network by another interface, and one that wants the same.
    for (interface, what) in [
        ("net1", "one attachment by this plugin"),
        ("eth0", "is an attachment of another network"),
    ] {
        for verb in ["ADD", "ADD", "DEL", "DEL"] {
            let answer = lab.cni_of_network(verb, pod, "second", interface);
            if verb == "ADD" {
                let (code, said) = refused(answer);
                assert_eq!(code, 4, "{said}");
                assert!(said.contains(what), "{said}");
            } else {
                // Who was refused cleans up.
                answer.unwrap_or_else(|e| panic!("{}", error_chain(&e)));
            }
            assert_eq!(state(lab, pod), before, "{verb} {interface}");
        }
        reached(interface);
    }
    lab.cni("CHECK", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    unbind_pod(lab, pod);
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
}

/// The address is given out, and then the pod cannot be told.
pub(super) fn that_fail_leave_nothing(lab: &Lab) {
    let pod = &more_pods(lab, ["node1"])[0];
    bind(lab, pod);
    // An ADD leaves the loopback up, as every plugin and runtime does.
    in_pod(pod, "ip link set lo up");
    let before = state(lab, pod);
    let role = kubernetes_object(lab, "clusterroles", "caracal-cni-plugin");
    put_role(lab, &without(&role, "pods/status", "patch"));
    let (_, said) = refused(lab.cni("ADD", pod));
    assert!(said.contains("pods/status"), "{said}");
    assert_eq!(state(lab, pod), before, "{said}");
    put_role(lab, &role);
    attached(lab, pod);
    lab.cni("DEL", pod)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    // As with Calico the annotation says which container it was.
    assert_eq!(state(lab, pod)[1..], before[1..], "given back");
    let [address, _] = endpoint(lab, &format!("{}-{}", pod.node, pod.name));
    assert_eq!(address, "", "given back");
    unbind_pod(lab, pod);
    caracal_lab::delete_namespaces(std::slice::from_ref(&pod.netns)).unwrap();
}
