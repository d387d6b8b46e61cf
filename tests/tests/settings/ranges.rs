//! Ranges of different roles that lie over each other: named by `apply`, `status` and `audit`, and
//! nothing that is in use goes.

use std::net::SocketAddr;

use caracal_lab::{Lab, scaled_time as scaled, wait_until};
use caracal_model::{Family, Prefix};
use caracal_tests::{
    Probes, RouteMonitor, SECOND, Stack, assert_full_matrix, await_settled, await_status, caracals,
    either, focus, has_no_problem, has_problem, is_kubernetes, kubectl,
    on_each_stack_and_datastore_of, put_etcd_resource, settled,
};
use serde_json::json;

const CODE: &str = "datastore.ranges";

/// Nodes without encapsulation, so that routes to blocks come by BGP.
fn topology(stack: Stack, name: &str) -> String {
    with_pool(stack, name, "")
}

/// Nodes with one more field of their pool.
fn with_pool(stack: Stack, name: &str, more: &str) -> String {
    let node = |n: u8| format!("  - {{name: node{n}, segment: lan, pods: 1}}\n");
    let nodes: String = (1..=3).map(node).collect();
    stack.topology(&format!(
        "name: {name}\npool: {{cidr: 10.244.0.0/16{more}}}\nsegments: [{{name: lan, cidr: 10.0.0.0/24}}]\nnodes:\n{nodes}"
    ))
}

/// `caracal apply` of one resource, from node1: what it printed on both channels.
fn apply(lab: &Lab, resource: &serde_json::Value) -> String {
    apply_with(lab, resource, &[])
}

fn apply_with(lab: &Lab, resource: &serde_json::Value, more: &[&str]) -> String {
    let file = lab.folder().lib("node1").join("ranges.json");
    std::fs::write(&file, resource.to_string()).unwrap();
    let file = file.display().to_string();
    let limit = scaled(60 * SECOND);
    let words = [&["apply", "-f", &file], more].concat();
    let output = lab.caracal_output("node1", &words, limit);
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    format!("{}{}", output.stdout, output.stderr)
}

fn services(cidrs: &[&str]) -> serde_json::Value {
    let cidrs: Vec<_> = cidrs.iter().map(|cidr| json!({"cidr": cidr})).collect();
    json!({"apiVersion": "projectcalico.org/v3", "kind": "BGPConfiguration",
           "metadata": {"name": "default"}, "spec": {"serviceExternalIPs": cidrs}})
}

/// Each node names the conflict, or none does.
fn await_named(lab: &Lab, named: bool) {
    for node in caracals(lab) {
        let what = format!("{CODE} to be reported: {named}");
        await_status(lab, &node, scaled(60 * SECOND), &what, |status| {
            settled(status)?;
            match named {
                true => has_problem(status, CODE, ""),
                false => has_no_problem(status, CODE),
            }
        });
    }
}

fn restart(lab: &mut Lab, node: &str) {
    lab.kill9_node(node).unwrap();
    lab.restart_node(node).unwrap();
}

#[test]
fn a_range_of_services_over_the_pods_cuts_nobody_off_and_is_named() {
    let scenario = "a_range_of_services_over_the_pods_cuts_nobody_off_and_is_named";
    on_each_stack_and_datastore_of(scenario, &[], "rngs", topology, |mut lab| {
        await_settled(&lab);
        let wide = either(focus(&lab), "10.244.0.0/15", "fd00:10:240::/44");
        let said = apply(&lab, &services(&[wide]));
        assert!(said.contains("overlap") && said.contains(wide), "{said}");
        await_named(&lab, true);
        assert_full_matrix(&lab);
        restart(&mut lab, "node2");
        await_settled(&lab);
        await_named(&lab, true);
        assert_full_matrix(&lab);
        let audit = lab.caracal_output("node2", &["audit"], scaled(60 * SECOND));
        let audit = audit.unwrap();
        assert!(audit.stdout.contains("CRL-D008"), "{audit:?}");
        apply(&lab, &services(&[]));
        await_named(&lab, false);
        assert_full_matrix(&lab);
    });
}

#[test]
fn a_pool_over_the_machines_keeps_no_session_down_and_is_named() {
    let scenario = "a_pool_over_the_machines_keeps_no_session_down_and_is_named";
    on_each_stack_and_datastore_of(scenario, &["nft"], "rngm", topology, |mut lab| {
        await_settled(&lab);
        let endpoints = lab.node_status("node1").unwrap().datastore.endpoints;
        let (_, datastore) = endpoints.split_once("//").unwrap();
        let datastore: SocketAddr = datastore.trim_end_matches('/').parse().unwrap();
        let range = Prefix::host(datastore.ip());
        let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool",
            "metadata": {"name": "store"}, "spec": {"cidr": range, "blockSize": range.len()}});
        let said = apply_with(&lab, &pool, &["--dry-run"]);
        assert!(said.contains("of the datastore"), "{said}");
        for family in lab.topology().families() {
            let (name, cidr) = match family {
                Family::Ipv4 => ("wide", "10.0.0.0/9"),
                Family::Ipv6 => ("wide6", "fd00:10::/64"),
            };
            let pool = json!({"apiVersion": "projectcalico.org/v3", "kind": "IPPool",
                "metadata": {"name": name}, "spec": {"cidr": cidr}});
            let said = apply(&lab, &pool);
            assert!(said.contains("lies over the address"), "{said}");
        }
        await_named(&lab, true);
        for node in ["node2", "node1"] {
            restart(&mut lab, node);
            await_settled(&lab);
        }
        await_named(&lab, true);
        assert_full_matrix(&lab);
    });
}

/// A Node that nobody is: its address is a pod's of node2.
fn put_rogue(lab: &Lab, family: Family) {
    let pods = &lab.state().pods;
    let pod = pods.iter().find(|pod| pod.node == "node2").unwrap();
    let address = pod.address_of(family).unwrap();
    let (field, len) = either(family, ("ipv4Address", 24), ("ipv6Address", 64));
    let address = format!("{address}/{len}");
    if is_kubernetes(lab) {
        let annotation = field.replace("ip", "projectcalico.org/IP");
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "rogue", "annotations": {annotation: address}}});
        kubectl(lab, &["create", "-f", "-"], node.to_string().as_bytes());
    } else {
        let spec = json!({"bgp": {field: address}});
        put_etcd_resource(lab, "Node", "nodes", "rogue", &spec);
    }
}

fn delete_rogue(lab: &Lab) {
    if is_kubernetes(lab) {
        kubectl(lab, &["delete", "node", "rogue"], b"");
    } else {
        let key = "/calico/resources/v3/projectcalico.org/nodes/rogue";
        lab.etcdctl(&["del", key], b"").unwrap();
    }
}

#[test]
fn a_node_with_an_address_of_a_pod_takes_nobodys_block() {
    const CODE: &str = "agent.node_address_of_pods";
    let scenario = "a_node_with_an_address_of_a_pod_takes_nobodys_block";
    on_each_stack_and_datastore_of(scenario, &[], "rngn", topology, |lab| {
        await_settled(&lab);
        let pairs = [("node1/p1", "node2/p1"), ("node3/p1", "node2/p1")];
        let probes = Probes::start(&lab, &pairs);
        let monitors = RouteMonitor::on_all(&lab);
        probes.after(100);
        for family in lab.topology().families() {
            put_rogue(&lab, family);
            for node in caracals(&lab) {
                await_status(&lab, &node, scaled(60 * SECOND), "the Node's name", |s| {
                    has_problem(s, CODE, "of node node2")
                });
            }
            probes.after(200);
            let audit = lab.caracal_output("node1", &["audit"], scaled(60 * SECOND));
            let audit = audit.unwrap();
            assert!(audit.stdout.contains("CRL-D008"), "{audit:?}");
            delete_rogue(&lab);
            for node in caracals(&lab) {
                await_status(&lab, &node, scaled(60 * SECOND), "no such Node", |s| {
                    has_no_problem(s, CODE)
                });
            }
        }
        for monitor in monitors {
            monitor.assert_nothing_deleted("a Node has a pod's address");
        }
        probes.assert_none_lost("a Node has a pod's address");
    });
}

/// A Node that says that it has node2's addresses, in `name`'s place of the order, with another AS.
fn put_copy(lab: &Lab, name: &str, spec: &serde_json::Value) {
    if is_kubernetes(lab) {
        let annotations: serde_json::Map<String, serde_json::Value> = [
            ("IPv4Address", &spec["bgp"]["ipv4Address"]),
            ("IPv6Address", &spec["bgp"]["ipv6Address"]),
            ("ASNumber", &json!("65099")),
            ("IPv4VXLANTunnelAddr", &spec["ipv4VXLANTunnelAddr"]),
            ("IPv6VXLANTunnelAddr", &spec["ipv6VXLANTunnelAddr"]),
        ]
        .into_iter()
        .filter(|(_, value)| value.is_string())
        .map(|(key, value)| (format!("projectcalico.org/{key}"), value.clone()))
        .collect();
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "annotations": annotations}});
        kubectl(lab, &["create", "-f", "-"], node.to_string().as_bytes());
    } else {
        let key = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
        let node = json!({"kind": "Node", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": name}, "spec": spec});
        lab.etcdctl(&["put", &key], node.to_string().as_bytes())
            .unwrap();
    }
}

/// What node2 says of itself, of which a copy is made.
fn addresses_of_node2(lab: &Lab) -> serde_json::Value {
    let words = ["get", "node", "node2", "-o", "json"];
    let node = lab.caracal_output("node1", &words, scaled(60 * SECOND));
    let node: serde_json::Value = serde_json::from_str(&node.unwrap().stdout).unwrap();
    let spec = &node["spec"];
    let mut copy = json!({"bgp": {"asNumber": 65099}});
    for field in ["ipv4Address", "ipv6Address"] {
        if spec["bgp"][field].is_string() {
            copy["bgp"][field] = spec["bgp"][field].clone();
        }
    }
    for field in ["ipv4VXLANTunnelAddr", "ipv6VXLANTunnelAddr"] {
        if spec[field].is_string() {
            copy[field] = spec[field].clone();
        }
    }
    copy
}

#[test]
fn a_node_with_anothers_addresses_takes_nothing_from_it() {
    let scenario = "a_node_with_anothers_addresses_takes_nothing_from_it";
    let vxlan = |stack: Stack, name: &str| with_pool(stack, name, ", vxlanMode: Always");
    on_each_stack_and_datastore_of(scenario, &[], "rngc", vxlan, |mut lab| {
        await_settled(&lab);
        // Written a moment after the sessions are up, where the datastore is Kubernetes' API.
        let whole = || {
            let copy = addresses_of_node2(&lab);
            let tunnels = ["ipv4VXLANTunnelAddr", "ipv6VXLANTunnelAddr"];
            match tunnels.iter().any(|field| copy[*field].is_string()) {
                true => Ok(copy),
                false => Err(copy),
            }
        };
        let copy = wait_until(60 * SECOND, "a tunnel's address", whole);
        let copy = copy.unwrap_or_else(|e| panic!("{e}"));
        let pairs = [("node1/p1", "node2/p1"), ("node3/p1", "node2/p1")];
        let probes = Probes::start(&lab, &pairs);
        for name in ["aaa", "zzz"] {
            put_copy(&lab, name, &copy);
            let named = |lab: &Lab| {
                for node in ["node1", "node3"] {
                    await_status(
                        lab,
                        node,
                        scaled(60 * SECOND),
                        "the copy's name",
                        |status| {
                            settled(status)?;
                            has_problem(status, CODE, "of a tunnel of node node2")?;
                            has_problem(status, "node.same_address", "node node2, which is older")
                        },
                    );
                }
            };
            named(&lab);
            restart(&mut lab, "node1");
            named(&lab);
            probes.after(200);
            assert_full_matrix(&lab);
            if is_kubernetes(&lab) {
                kubectl(&lab, &["delete", "node", name], b"");
            } else {
                let key = format!("/calico/resources/v3/projectcalico.org/nodes/{name}");
                lab.etcdctl(&["del", &key], b"").unwrap();
            }
            await_named(&lab, false);
        }
        probes.assert_none_lost("a Node with node2's addresses");
    });
}
