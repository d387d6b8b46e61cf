//! Network policy on whole clusters: what it closes and opens, over restarts, and on a node that
//! has no table yet.
#![allow(clippy::unwrap_used)]

#[path = "policy/felix.rs"]
mod felix;
#[path = "policy/hosts.rs"]
mod hosts;
#[path = "policy/kubernetes.rs"]
mod kubernetes;

use caracal_lab::{Lab, PodState, call_program, program_command, wait_until};
use caracal_tests::{
    SECOND, assert_gone, await_settled, await_status, delete_calico_resource, has_no_problem,
    has_problem, more_pods, on_each_stack_of, put_etcd_resource, run_on,
};
use serde_json::{Value, json};

const TOPOLOGY: &str = "name: policy
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 2, env: {CARACAL_POLICY: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 1, env: {CARACAL_POLICY: 'on'}}
  - {name: n3, segment: lan, address: 10.0.0.13, pods: 1, env: {CARACAL_POLICY: 'on'}}
";

#[test]
fn policies_close_and_open_and_stay() {
    let scenario = "policies_close_and_open_and_stay";
    on_each_stack_of(scenario, &["nft"], TOPOLOGY, "policy", close_and_open);
}

fn policy(lab: &Lab, name: &str, spec: &Value) {
    put_etcd_resource(
        lab,
        "NetworkPolicy",
        "networkpolicies",
        &format!("default/{name}"),
        spec,
    );
}

fn ping(netns: &str, address: &str) -> Result<(), String> {
    let mut ping = program_command("ping").map_err(|e| e.to_string())?;
    ping.args(["-n", "-q", "-c1", "-W1", address]);
    let done = call_program(Some(netns), &mut ping, b"", 60 * SECOND);
    done.map(drop).map_err(|e| e.to_string())
}

fn addresses(pod: &PodState) -> Vec<String> {
    let all = [
        pod.address.map(|a| a.to_string()),
        pod.address6.map(|a| a.to_string()),
    ];
    all.into_iter().flatten().collect()
}

/// All pairs are as wanted, which policies come to within moments.
fn await_pairs(lab: &Lab, what: &str, wanted: impl Fn(&PodState, &PodState) -> bool) {
    let pods = lab.state().pods.clone();
    let mut pairs = Vec::new();
    for from in &pods {
        for to in pods.iter().filter(|to| to.netns != from.netns) {
            pairs.extend(
                addresses(to)
                    .into_iter()
                    .map(|a| (from, a, wanted(from, to))),
            );
        }
    }
    wait_until(60 * SECOND, what, || {
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let asked = pairs.iter().map(|(from, address, wanted)| {
                scope.spawn(move || match ping(&from.netns, address).is_ok() {
                    answered if answered == *wanted => None,
                    answered => Some(format!("{} > {address}: {answered}", from.label())),
                })
            });
            let asked: Vec<_> = asked.collect();
            asked
                .into_iter()
                .filter_map(|asked| asked.join().unwrap())
                .collect()
        });
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("; ")),
        }
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

fn close_and_open(mut lab: Lab) {
    await_settled(&lab);
    let open = json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]});
    put_etcd_resource(&lab, "Profile", "profiles", "kns.default", &open);
    await_pairs(&lab, "all to be open", |_, _| true);
    for node in ["n1", "n2", "n3"] {
        await_status(&lab, node, 60 * SECOND, "no complaint", |status| {
            has_no_problem(status, "policy.not_enforced")
        });
    }

    // Nobody gets in; a connection to the node itself stays possible.
    policy(&lab, "closed", &json!({"types": ["Ingress"]}));
    await_pairs(&lab, "all to be closed", |_, _| false);
    let first = lab.state().pods[0].clone();
    let _ = run_on(
        &lab,
        &first.node,
        &format!("ping -n -q -c1 -W2 {}", first.address.unwrap()),
    );

    // One pod may, to all others.
    let chosen = first.netns.clone();
    let rule = |nets: &[String]| json!({"action": "Allow", "source": {"nets": nets}});
    let (v6, v4): (Vec<_>, Vec<_>) = addresses(&first).into_iter().partition(|a| a.contains(':'));
    let both = [v4, v6].into_iter().filter(|nets| !nets.is_empty());
    let rules: Vec<Value> = both.map(|nets| rule(&nets)).collect();
    policy(
        &lab,
        "one",
        &json!({"types": ["Ingress"], "ingress": rules}),
    );
    let one = |from: &PodState, _: &PodState| from.netns == chosen;
    await_pairs(&lab, "one to be let in", one);

    // While nobody runs, and after that.
    lab.kill9_node("n1").unwrap();
    await_pairs(&lab, "a node without its process", one);
    lab.restart_node("n1").unwrap();
    await_settled(&lab);
    await_pairs(&lab, "a node that was restarted", one);

    // A node that comes without a table.
    lab.kill9_node("n3").unwrap();
    let _ = run_on(&lab, "n3", "nft delete table inet caracal-policy");
    lab.restart_node("n3").unwrap();
    await_settled(&lab);
    await_pairs(&lab, "a node that has no table", one);

    // A pod that is added is judged as soon as it is there.
    let added = more_pods(&lab, ["n2"]);
    let _ = lab.cni("ADD", &added[0]).unwrap();
    let to = addresses(&first).remove(0);
    assert!(ping(&added[0].netns, &to).is_err(), "not let in");
    policy(
        &lab,
        "all",
        &json!({"types": ["Ingress"], "ingress": [{"action": "Allow",
        "source": {"selector": "projectcalico.org/orchestrator == 'k8s'"}}]}),
    );
    wait_until(60 * SECOND, "the pod to be let in", || {
        ping(&added[0].netns, &to)
    })
    .unwrap_or_else(|e| panic!("{e}"));
    await_pairs(&lab, "all to be let in", |_, _| true);

    // What cannot be understood is told, and closes what it is about alone.
    policy(
        &lab,
        "all",
        &json!({"types": ["Ingress"], "ingress": [{"action": "Allow", "more": 1}]}),
    );
    await_pairs(&lab, "what is not understood to close", one);
    await_status(
        &lab,
        "n1",
        60 * SECOND,
        "what is not understood",
        |status| has_problem(status, "policy.not_understood", "ingress[0].more"),
    );
    for name in ["all", "one", "closed"] {
        delete_calico_resource(&lab, "networkpolicies", &format!("default/{name}"));
    }
    await_pairs(&lab, "all to be open again", |_, _| true);
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}
