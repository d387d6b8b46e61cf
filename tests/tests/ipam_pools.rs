//! Pools that are too small: nodes without a block of their own borrow addresses and are reached
//! all the same, and when nothing is left the CNI error says what, where, and what would help. And
//! pools that hand out nothing new: they take nothing away.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use caracal_lab::{CniError, Lab, PodState, error_chain, wait_until};
use caracal_model::{BlockOwner, Family, Prefix};
use caracal_tests::{
    NOTHING_NEW, SECOND, Stack, assert_full_matrix, assert_gone, await_settled, await_status,
    calico_resource, caracals, either, exit_code, family_count, has_device, has_no_problem,
    has_problem, ip, is_kubernetes, kubernetes_object, late_pool, logs, more_pods, on_each_stack,
    on_each_stack_and_datastore_of, on_stacks, routed, set_pools, settled, try_run_on, with_ipam,
};
use serde_json::{Value, json};

const TOPOLOGY: &str = "
name: borrow
description: three nodes, two blocks
pool: {}
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 2}
  - {name: node2, segment: lan, address: 10.0.0.2, pods: 2}
  - {name: node3, segment: lan, address: 10.0.0.3, pods: 2}
";

/// The pool of a family: two blocks of eight addresses.
const fn pool(family: Family) -> (&'static str, u8) {
    either(family, ("10.244.0.0/28", 29), ("fd00:10:244::/124", 125))
}

fn topology(stack: Stack, vxlan: &str) -> String {
    stack.with_pools(TOPOLOGY, |family| {
        let (cidr, block) = pool(family);
        json!({"cidr": cidr, "blockSize": block, "vxlanMode": vxlan})
    })
}

/// The nodes with a block of a family, with it.
fn owners(lab: &Lab, family: Family) -> Vec<(String, Prefix)> {
    let view = with_ipam(lab, async |client, _| client.view().await.unwrap());
    let blocks = view.blocks.values();
    let blocks = blocks.filter(|block| block.value.cidr.family() == family);
    let owned = blocks.map(|block| match block.value.owner() {
        Some(BlockOwner::Host(node)) => (node.to_string(), block.value.cidr),
        other => panic!("block {} is owned by {other:?}", block.value.cidr),
    });
    owned.collect()
}

/// The addresses of pods that lie in a block of another node, with the node that borrowed them.
fn borrowed(lab: &Lab, owners: &[(String, Prefix)]) -> Vec<(String, IpAddr)> {
    let pods = lab.state().pods.iter();
    let both = |pod: &PodState| {
        let families = [Family::Ipv4, Family::Ipv6].map(|family| pod.address_of(family));
        let node = pod.node.clone();
        let addresses = families.into_iter().flatten();
        addresses
            .map(move |address| (node.clone(), address))
            .collect::<Vec<_>>()
    };
    let addresses = pods.flat_map(both);
    let foreign = |(node, address): &(String, IpAddr)| {
        owners
            .iter()
            .any(|(owner, block)| block.contains(*address) && owner != node)
    };
    addresses.filter(foreign).collect()
}

/// Every other node, and above all the block's owner, whose blackhole covers the address, has a
/// host route.
fn assert_routed_everywhere(lab: &Lab, borrowed: &[(String, IpAddr)], device: &str) {
    for (borrower, address) in borrowed {
        for node in caracals(lab).iter().filter(|node| *node != borrower) {
            let look = || {
                let routes = lab.routes(node).unwrap();
                let found = routes.iter().find(|r| r.dst == address.to_string());
                match found {
                    Some(route) if route.dev.as_deref() == Some(device) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            };
            wait_until(60 * SECOND, "the host route", look)
                .unwrap_or_else(|e| panic!("{node}: {address}: {e}\n{}", logs(lab.name())));
        }
    }
}

fn assert_borrowing(lab: &Lab, devices: [&str; 2]) {
    await_settled(lab);
    assert_full_matrix(lab);
    for family in lab.topology().families() {
        let [ipv4, ipv6] = devices;
        assert_borrowing_of(lab, family, either(family, ipv4, ipv6));
    }
}

fn assert_borrowing_of(lab: &Lab, family: Family, device: &str) {
    let owners = owners(lab, family);
    assert_eq!(owners.len(), 2, "{owners:?}");
    let borrowed = borrowed(lab, &owners);
    let borrowers: BTreeSet<_> = borrowed.iter().map(|(node, _)| node).collect();
    assert_eq!(
        borrowers.len(),
        1,
        "two have a block: {owners:?}, {borrowed:?}"
    );
    assert_eq!(borrowed.len(), 2);
    assert_routed_everywhere(lab, &borrowed, device);
    println!("blocks {owners:?}, borrowed {borrowed:?}, each a host route on {device} elsewhere");
}

fn refusal(lab: &Lab, pod: &PodState) -> (u64, String) {
    match lab.cni("ADD", pod) {
        Err(CniError::Refused { code, message, .. }) => (code, message),
        other => panic!("an ADD into a full pool: {other:?}"),
    }
}

fn configure(lab: &Lab, config: &str) {
    lab.etcdctl(&["put", "/calico/ipam/v2/config"], config.as_bytes())
        .unwrap();
}

#[test]
fn borrowed_addresses_are_reached_and_exhaustion_is_explained() {
    let scenario = "borrowed_addresses_are_reached_and_exhaustion_is_explained";
    let text = |stack| topology(stack, "Never");
    on_stacks(scenario, &[], "e2e-borrow", text, exhaustion);
}

fn exhaustion(lab: Lab) {
    assert_borrowing(&lab, ["eth0"; 2]);
    // With both families it is IPv4 that is asked for first, and both are as full.
    let family = lab.topology().families().into_iter().next().unwrap();
    let blocks = owners(&lab, family);
    let poor = caracals(&lab)
        .into_iter()
        .find(|node| blocks.iter().all(|(owner, _)| owner != node))
        .unwrap();
    // Sixteen addresses, six in use: ten more fit.
    let pods = more_pods(&lab, [poor.as_str(); 11]);
    let (last, fit) = pods.split_last().unwrap();
    for pod in fit {
        lab.cni("ADD", pod)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    }
    let (code, full) = refusal(&lab, last);
    println!("code {code}: {full}");
    for word in [
        poor.as_str(),
        pool(family).0,
        "it holds no block",
        "no free block",
        "at most 20",
        "add a pool",
    ] {
        assert!(full.contains(word), "{word:?} is not in {full:?}");
    }
    configure(
        &lab,
        r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":1}"#,
    );
    let (_, strict) = refusal(&lab, last);
    println!("strict: {strict}");
    assert!(strict.contains("strict affinity off"), "{strict}");
    // The owner of a full block: its limit of one block is what holds it back.
    let rich = PodState {
        node: blocks[0].0.clone(),
        ..last.clone()
    };
    let (_, limit) = refusal(&lab, &rich);
    println!("limit: {limit}");
    assert!(limit.contains("the limit of 1 block per node"), "{limit}");
    assert!(limit.contains("raise maxBlocksPerHost"), "{limit}");
    // A refused ADD has left nothing, and one DEL makes room for one ADD.
    configure(
        &lab,
        r#"{"strict_affinity":false,"auto_allocate_blocks":true}"#,
    );
    lab.cni("DEL", &fit[0]).unwrap();
    lab.cni("ADD", last)
        .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
    for pod in &pods {
        lab.cni("DEL", pod).unwrap();
    }
    let findings = with_ipam(&lab, async |client, _| client.check().await.unwrap());
    assert_eq!(findings, []);
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}

/// With VXLAN the tunnel addresses come from the same blocks, so the third node's is borrowed as
/// well.
#[test]
fn borrowed_addresses_are_reached_through_vxlan() {
    let scenario = "borrowed_addresses_are_reached_through_vxlan";
    let text = |stack| topology(stack, "Always");
    on_stacks(scenario, &[], "e2e-borrow-vx", text, |lab| {
        assert_borrowing(&lab, ["vxlan.calico", "vxlan-v6.calico"]);
        let name = lab.name().clone();
        lab.down().unwrap();
        assert_gone(&name);
    });
}

/// Where the nodes say that their tunnels end, of all families.
fn tunnel_addresses(lab: &Lab) -> Vec<(String, Value, Value)> {
    let of = |node: String| {
        let (said, prefix) = match is_kubernetes(lab) {
            true => {
                let node = kubernetes_object(lab, "nodes", &node);
                (
                    node["metadata"]["annotations"].clone(),
                    "projectcalico.org/IPv",
                )
            }
            false => (calico_resource(lab, "nodes", &node)["spec"].take(), "ipv"),
        };
        let field = |family: u8| {
            let name = format!("{prefix}{family}VXLANTunnelAddr");
            said.get(name).cloned().unwrap_or_default()
        };
        (node, field(4), field(6))
    };
    caracals(lab).into_iter().map(of).collect()
}

/// As after a reboot: the process ends, and the kernel's devices are gone.
fn reboot(lab: &mut Lab, node: &str) {
    lab.stop_node(node).unwrap();
    for device in ["vxlan.calico", "vxlan-v6.calico"] {
        if has_device(lab, node, device) {
            ip(lab, node, &[format!("link del {device}")]);
        }
    }
    lab.restart_node(node).unwrap();
}

#[test]
fn a_pool_that_lends_nothing_new_takes_nothing_away() {
    let text = |stack: Stack, _: &str| {
        stack.with_pools(TOPOLOGY, |family| {
            let (cidr, block) = either(family, ("10.244.0.0/24", 29), ("fd00:10:244::/120", 125));
            json!({"cidr": cidr, "blockSize": block, "vxlanMode": "Always"})
        })
    };
    on_each_stack_and_datastore_of(
        "a_pool_that_lends_nothing_new_takes_nothing_away",
        &[],
        "in-use",
        text,
        nothing_is_taken_away,
    );
}

fn nothing_is_taken_away(mut lab: Lab) {
    await_settled(&lab);
    assert_full_matrix(&lab);
    let before = tunnel_addresses(&lab);
    let named = before
        .iter()
        .flat_map(|(_, v4, v6)| [v4, v6])
        .filter(|a| !a.is_null());
    assert_eq!(named.count(), 3 * family_count(&lab), "{before:?}");
    for (field, nothing_new, as_before) in NOTHING_NEW {
        set_pools(&lab, field, &serde_json::from_str(nothing_new).unwrap());
        reboot(&mut lab, "node2");
        await_settled(&lab);
        assert_eq!(tunnel_addresses(&lab), before, "{field}");
        assert_full_matrix(&lab);
        if field != "disabled" {
            set_pools(&lab, field, &serde_json::from_str(as_before).unwrap());
        }
        println!("{field}: {before:?} stay");
    }
    // There a Node and its pods are Kubernetes' to delete.
    if !is_kubernetes(&lab) {
        a_node_joins_and_the_last_workload_goes(&mut lab);
    }
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}

fn a_node_joins_and_the_last_workload_goes(lab: &mut Lab) {
    // A node that joins while the pool is disabled: it lends no address, and pods are reached.
    lab.stop_node("node3").unwrap();
    let pods = lab.state().pods.clone();
    for pod in pods.iter().filter(|pod| pod.node == "node3") {
        lab.cni("DEL", pod).unwrap();
    }
    let (code, said) = exit_code(lab, "node1", &["node", "delete", "node3", "--force"]);
    assert_eq!(code, 0, "{said}");
    for device in ["vxlan.calico", "vxlan-v6.calico"] {
        if has_device(lab, "node3", device) {
            ip(lab, "node3", &[format!("link del {device}")]);
        }
    }
    // And it remembers nothing of the one that had its name.
    std::fs::remove_file(lab.folder().lib("node3").join("last-snapshot")).unwrap();
    lab.restart_node("node3").unwrap();
    await_status(lab, "node3", 60 * SECOND, "node3 has joined", settled);
    for pod in pods.iter().filter(|pod| pod.node != "node3") {
        for family in lab.topology().families() {
            let address = pod.address_of(family).unwrap();
            let ping = || try_run_on(lab, "node3", &format!("ping -n -c1 -W5 {address}"));
            wait_until(60 * SECOND, "the pod answers a node that joined", || {
                ping().map(drop)
            })
            .unwrap_or_else(|e| panic!("{e}\n{}", logs(lab.name())));
        }
    }
    // The last workload goes, and with it what nobody needs.
    for pod in pods.iter().filter(|pod| pod.node != "node3") {
        lab.cni("DEL", pod).unwrap();
    }
    wait_until(60 * SECOND, "tunnel addresses given back", || {
        let left = tunnel_addresses(lab);
        let all_null = left.iter().all(|(_, v4, v6)| v4.is_null() && v6.is_null());
        all_null.then_some(()).ok_or_else(|| format!("{left:?}"))
    })
    .unwrap();
}

/// Somebody deletes a pool with pods in it, by force: they keep talking, and the nodes name it.
#[test]
fn pods_outlive_their_deleted_pool() {
    let scenario = "pods_outlive_their_deleted_pool";
    on_each_stack(scenario, &[], "full-mesh", "in-use-del", |mut lab| {
        await_settled(&lab);
        assert_full_matrix(&lab);
        let list = lab.caracal_output("node1", &["get", "ippools", "-o", "name"], 60 * SECOND);
        // When the last pool goes, the datastore is taken for emptied.
        let _device = late_pool(&lab);
        let mut ways_back = Vec::new();
        for pool in list.unwrap().stdout.lines() {
            let words = ["delete", pool, "--force"];
            let (code, said) = exit_code(&lab, "node1", &words);
            assert_eq!(code, 0, "{pool}: {said}");
            let (_, way_back) = said.split_once("as it was: ").expect(&said);
            ways_back.push(way_back.trim().to_owned());
        }
        for node in caracals(&lab) {
            await_status(&lab, &node, 60 * SECOND, "the pool is missed", |status| {
                has_problem(status, "announce.no_pool", "stays announced")
            });
            wait_until(60 * SECOND, "routes", || routed(&lab, &node)).unwrap();
        }
        assert_full_matrix(&lab);
        lab.stop_node("node2").unwrap();
        lab.restart_node("node2").unwrap();
        await_status(&lab, "node2", 60 * SECOND, "the pool is missed", |status| {
            has_problem(status, "announce.no_pool", "stays announced")
        });
        assert_full_matrix(&lab);
        // What each deletion printed makes its pool again.
        for command in &ways_back {
            let words = ["sh", "-c", command.as_str()].map(Into::into);
            assert_eq!(lab.exec("node1", &words).unwrap(), 0, "{command}");
        }
        for node in caracals(&lab) {
            await_status(&lab, &node, 60 * SECOND, "the pool is back", |status| {
                has_no_problem(status, "announce.no_pool")
            });
            wait_until(60 * SECOND, "routes", || routed(&lab, &node)).unwrap();
        }
        assert_full_matrix(&lab);
        let name = lab.name().clone();
        lab.down().unwrap();
        assert_gone(&name);
    });
}
