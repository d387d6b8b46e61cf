//! A node that boots while its datastore is away translates what was in its last snapshot; one that
//! cannot write rules is not ready.

use std::net::SocketAddr;

use caracal_lab::{Lab, scaled_time, wait_until};
use caracal_model::NodeStatus;
use caracal_tests::{
    EchoServer, PodEndpoint, SECOND, VipConnection, assert_full_matrix, await_settled,
    await_status, endpoint_slices, has_problem, is_kubernetes, on_each_stack_and_datastore_of,
    run_on,
};

use super::translation::{vip, web_service};
use super::{Services, Stack, health};

const TOPOLOGY: &str = "name: boot
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, pods: 1, env: {CARACAL_SERVICES: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, pods: 1, env: {CARACAL_SERVICES: 'on'}}
";
const TARGET: u16 = 8080;

#[test]
fn a_node_that_boots_without_its_datastore_translates() {
    let text = |stack: Stack, _lab: &str| stack.topology(TOPOLOGY);
    let scenario = "a_node_that_boots_without_its_datastore_translates";
    on_each_stack_and_datastore_of(scenario, &["nft"], "boot", text, boot);
}

fn boot(mut lab: Lab) {
    await_settled(&lab);
    let families = lab.topology().families();
    let pods = lab.state().pods.clone();
    let of = |node: &str| pods.iter().find(|pod| pod.node == node).unwrap();
    let (client, server) = (of("n1"), of("n2"));
    let _server = EchoServer::start(server, &families, TARGET);
    let endpoint = PodEndpoint {
        pod: server,
        port: TARGET,
        terminates: false,
    };
    let text = web_service(&families) + &endpoint_slices("web", &families, &[TARGET], &[endpoint]);
    Services(&lab).prepare();
    Services(&lab).apply(&text);
    let served = |when: &str| {
        for family in &families {
            let to = SocketAddr::new(vip(*family), 80);
            wait_until(60 * SECOND, &format!("{to} {when}"), || {
                let opened = VipConnection::open(&client.netns, to);
                opened.map(drop).map_err(|e| e.to_string())
            })
            .unwrap_or_else(|e| panic!("{e}"));
        }
    };
    served("at first");

    // As a boot leaves it: the kernel has nothing of ours, and the last snapshot is there.
    lab.stop_node("n1").unwrap();
    match is_kubernetes(&lab) {
        true => lab.kill9_api_server().unwrap(),
        false => lab.kill9_etcd().unwrap(),
    }
    for table in ["caracal-services", "caracal"] {
        run_on(&lab, "n1", &format!("nft delete table inet {table}"));
    }
    lab.restart_node("n1").unwrap();
    let is_stale = |status: &NodeStatus| match status.datastore.state.as_str() {
        "stale" => Ok(()),
        state => Err(state.to_owned()),
    };
    await_status(&lab, "n1", 60 * SECOND, "no datastore", is_stale);
    served("without the datastore");
    assert_full_matrix(&lab);
    // Whoever takes the table away meanwhile does not take it for good.
    run_on(&lab, "n1", "nft delete table inet caracal-services");
    served("without the datastore, again");
    match is_kubernetes(&lab) {
        true => lab.start_api_server().unwrap(),
        false => lab.start_etcd().unwrap(),
    }
    await_settled(&lab);
    served("with the datastore");
}

/// Two nodes, of which one finds no program to write rules with.
fn without_programs(stack: Stack) -> String {
    stack.topology(
        "name: rules
pool: {cidr: 10.244.0.0/16, blockSize: 26}
segments:
  - {name: lan, cidr: 10.0.0.0/24}
nodes:
  - {name: n1, segment: lan, address: 10.0.0.11, env: {CARACAL_SERVICES: 'on'}}
  - {name: n2, segment: lan, address: 10.0.0.12, env: {CARACAL_SERVICES: 'on', PATH: /nowhere}}
",
    )
}

#[test]
fn a_node_that_cannot_write_rules_is_not_ready_and_says_so() {
    let text = |stack: Stack, _lab: &str| without_programs(stack);
    let scenario = "a_node_that_cannot_write_rules_is_not_ready_and_says_so";
    on_each_stack_and_datastore_of(scenario, &["nft"], "rules", text, |lab| {
        let ready = |node: &str, says: &[&str]| {
            let netns = lab.netns(node).unwrap();
            let asked = SocketAddr::from(([127, 0, 0, 1], 9099));
            wait_until(60 * SECOND, &format!("{node} to say {says:?}"), || {
                let said = health(&netns, asked, "/readyz").map_err(|e| e.to_string())?;
                match says.iter().all(|part| said.contains(part)) {
                    true => Ok(()),
                    false => Err(said),
                }
            })
            .unwrap_or_else(|e| panic!("{e}"));
        };
        ready(
            "n1",
            &["200 OK", "[+] kernel: ", "[+] services: translated"],
        );
        let fails = [
            "503 ",
            "[-] kernel: rules are not written",
            "[-] services: the table of services cannot be written",
        ];
        ready("n2", &fails);
        await_status(&lab, "n2", 60 * SECOND, "both named", |status| {
            has_problem(status, "agent.rules_unwritten", "")?;
            has_problem(status, "services.unwritten", "")
        });
        let audit = lab.caracal_output("n2", &["audit"], scaled_time(60 * SECOND));
        let audit = audit.unwrap();
        for part in ["replace the NAT rules", "services.unwritten"] {
            assert!(audit.stdout.contains(part), "{audit:?}");
        }
    });
}
