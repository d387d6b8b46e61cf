//! A pod with fixed addresses after a power cut: no DEL was ever made, and it comes back in another
//! container. It takes over its own addresses, and nobody else does.

#![allow(clippy::unwrap_used)]

mod world;

use serde_json::{Value, json};
use world::{Answer, Pod, World, host_interface, in_node, sh};

const WISH: &str = "[\"10.90.0.50\", \"fd90::50\"]";

/// A call for a container of the pod `default/NAME`, which wishes [`WISH`].
fn call(world: &World, verb: &str, pod: &Pod, name: &str) -> Answer {
    let mut conf = world.conf.clone();
    conf["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations":
        {"cni.projectcalico.org/ipAddrs": WISH}});
    let mut command = world.command(verb, "caracal-cni", Some(pod));
    let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}");
    command.env("CNI_ARGS", arguments);
    world::run(command, &conf)
}

fn assert_refused(answer: &Answer) {
    let said = answer.json.to_string();
    assert!(!answer.ok, "{answer:#?}");
    assert!(
        said.contains("10.90.0.50 is already assigned under handle pods.8f2c41d09c"),
        "{answer:#?}"
    );
}

#[test]
fn a_pod_with_fixed_addresses_comes_back_after_a_power_cut() {
    in_node(|world| comes_back(world, |_| {}));
}

#[test]
fn so_does_a_pod_that_calicos_plugin_attached() {
    in_node(|world| comes_back(world, leave_what_calicos_plugin_writes));
}

/// Takes out of the blocks what our plugin alone writes.
fn leave_what_calicos_plugin_writes(world: &World) {
    let mut taken = 0;
    for kv in world.list("/calico/ipam/v2/assignment/") {
        let mut block: Value = serde_json::from_slice(&kv.value).unwrap();
        for attribute in block["attributes"].as_array_mut().unwrap() {
            let secondary = attribute["secondary"].as_object_mut().unwrap();
            let before = secondary.len();
            secondary.retain(|name, _| !name.starts_with("caracal-"));
            taken += before - secondary.len();
        }
        world.put(&kv.key, &block);
    }
    assert_eq!(taken, 4, "endpoint and interface, of either family");
}

/// A pod's node loses its power when the addresses are `written`.
fn comes_back(mut world: World, written: fn(&World)) {
    world.conf["ipam"]["assign_ipv6"] = json!(true);
    let (first, second, other) = (
        Pod::new("8f2c41d09c"),
        Pod::new("b7a90e3f11"),
        Pod::new("c00ffee000"),
    );
    let held = call(&world, "ADD", &first, "web-0");
    assert!(held.ok, "{held:#?}");
    assert_refused(&call(&world, "ADD", &other, "web-1"));
    assert_eq!(world.in_use(), 2);
    written(&world);

    sh(&format!("ip link del {}", host_interface(&held.json)));
    // Another pod here, and a pod of this name elsewhere.
    assert_refused(&call(&world, "ADD", &other, "web-1"));
    world.put(
        "/calico/resources/v3/projectcalico.org/nodes/node-b",
        &json!({"metadata": {"name": "node-b"}, "spec": {}}),
    );
    world.conf["nodename"] = json!("node-b");
    assert_refused(&call(&world, "ADD", &other, "web-0"));
    world.conf["nodename"] = json!("node-a");
    assert_eq!(world.in_use(), 2);

    let again = call(&world, "ADD", &second, "web-0");
    assert!(again.ok, "{again:#?}");
    assert_eq!(again.json["ips"], held.json["ips"]);
    assert_eq!((world.in_use(), world.handles().len()), (2, 1));
    assert!(
        world.handles()[0].contains("b7a90e3f11"),
        "{:?}",
        world.handles()
    );
    // Its own ADD once more.
    assert_eq!(call(&world, "ADD", &second, "web-0").json, again.json);

    // The first container's DEL comes late, and takes nothing.
    let late = call(&world, "DEL", &first, "web-0");
    assert!(late.ok, "{late:#?}");
    assert_eq!((world.in_use(), world.handles().len()), (2, 1));
    assert_eq!((world.interfaces().len(), world.endpoints().len()), (1, 1));
    let check = call(&world, "CHECK", &second, "web-0");
    assert!(check.ok, "{check:#?}");

    let end = call(&world, "DEL", &second, "web-0");
    assert!(end.ok, "{end:#?}");
    world.assert_clean();
}

/// The kernel knows better than the datastore: somebody still has the address.
#[test]
fn what_has_a_route_to_an_interface_is_not_taken_over() {
    in_node(|mut world| {
        world.conf["ipam"]["assign_ipv6"] = json!(true);
        let first = Pod::new("8f2c41d09c");
        let held = call(&world, "ADD", &first, "web-0");
        assert!(held.ok, "{held:#?}");
        sh(&format!("ip link del {}", host_interface(&held.json)));
        sh(
            "ip link add cali0 type veth peer name cali1 && ip link set cali1 up && ip link set cali0 up",
        );
        sh("ip route add 10.90.0.50/32 dev cali0");
        let second = Pod::new("b7a90e3f11");
        assert_refused(&call(&world, "ADD", &second, "web-0"));
        sh("ip link del cali0");
        let again = call(&world, "ADD", &second, "web-0");
        assert!(again.ok, "{again:#?}");
    });
}
