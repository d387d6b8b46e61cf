//! Addresses from elsewhere and for others: a delegated IPAM plugin, and `caracal-ipam` under
//! another main plugin.

#![allow(clippy::unwrap_used)]

mod world;

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use caracal_datastore::Store;
use caracal_model::{Txn, TxnWrite};
use serde_json::{Value, json};
use world::agent::FakeAgent;
use world::{Pod, World, address, in_node, sh};

/// Deletes keys behind everybody's back.
fn lose(world: &World, keys: impl IntoIterator<Item = String>) {
    let mut txn = Txn::new();
    txn.writes = keys.into_iter().map(TxnWrite::Delete).collect();
    world.with_store(async |store| store.commit(&txn).await.unwrap());
}

/// An ADD that asks for an address.
fn add_with(world: &World, pod: &Pod, address: &str) -> world::Answer {
    let mut command = world.command("ADD", "caracal-cni", Some(pod));
    command.env("CNI_ARGS", format!("IP={address}"));
    world.run(command)
}

/// An IPAM plugin that gives 10.91.0.7, and once only until a DEL, as `host-local` does.
const FAKE: &str = r#"#!/bin/sh
cat > "$0.stdin"
echo "$CNI_COMMAND $CNI_CONTAINERID" >> "$0.log"
case $CNI_COMMAND in
ADD)
  if [ -e "$0.held" ]; then
    echo '{"cniVersion":"1.1.0","code":17,"msg":"duplicate","details":"one is enough"}'
    exit 1
  fi
  touch "$0.held"
  echo '{"cniVersion":"1.1.0","ips":[{"address":"10.91.0.7/24","gateway":"10.91.0.1"}],"routes":[{"dst":"10.5.0.0/16"}]}';;
DEL) rm -f "$0.held";;
esac
"#;

fn install(world: &mut World) {
    let path = world.plugins.join("fake");
    fs::write(&path, FAKE).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    world.conf["ipam"] = json!({"type": "fake", "subnet": "10.91.0.0/24"});
}

#[test]
fn another_ipam_plugin_is_run_as_the_specification_says() {
    in_node(|mut world| {
        install(&mut world);
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        assert_eq!(result["ips"][0]["address"], "10.91.0.7/32");
        assert!(result["ips"][0].get("gateway").is_none());
        let routes = pod.sh("ip route show");
        assert!(routes.contains("10.5.0.0/16 via 169.254.1.1"), "{routes}");
        assert!(routes.contains("default via 169.254.1.1"), "{routes}");
        let seen: Value =
            serde_json::from_slice(&fs::read(world.plugins.join("fake.stdin")).unwrap()).unwrap();
        assert_eq!(seen, world.conf, "it gets the configuration as it is");
        assert_eq!(
            world.endpoints()[0]["spec"]["ipNetworks"],
            json!(["10.91.0.7/32"])
        );
        assert_eq!(world.in_use(), 0, "our IPAM has no part in it");
        assert_eq!(
            world.add(&pod),
            result,
            "a repeated ADD does not ask it again"
        );
        assert!(world.call("CHECK", &pod).ok);
        world.del(&pod);
        world.assert_clean();
        let log = fs::read_to_string(world.plugins.join("fake.log")).unwrap();
        let verbs: Vec<_> = log.lines().collect();
        assert_eq!(
            verbs,
            ["ADD 8f2c41d09c", "CHECK 8f2c41d09c", "DEL 8f2c41d09c"]
        );
    });
}

#[test]
fn cni_2_a_delegated_address_of_a_killed_add_is_taken_over() {
    in_node(|mut world| {
        install(&mut world);
        let pod = Pod::new("8f2c41d09c");
        let mut command = world.command("ADD", "caracal-cni", Some(&pod));
        command.env("CARACAL_CNI_DIE_AT", "PairMade");
        assert!(!world.run(command).ok);
        let result = world.add(&pod);
        assert_eq!(address(&result), "10.91.0.7");
        let other = Pod::new("1234567890");
        fs::write(
            world.plugins.join("fake"),
            FAKE.replace("rm -f \"$0.held\"", "true"),
        )
        .unwrap();
        let answer = world.call("ADD", &other);
        assert_eq!(
            answer.json["code"], 17,
            "its code is passed on: {answer:#?}"
        );
        assert_eq!(answer.json["msg"], "fake: duplicate: one is enough");
        assert_eq!(world.interfaces().len(), 1);
    });
}

#[test]
fn gc_finds_attachments_whose_addresses_another_plugin_has() {
    in_node(|mut world| {
        install(&mut world);
        let pod = Pod::new("8f2c41d09c");
        world.add(&pod);
        // Of the second only the endpoint is left, as after a restart of the machine.
        world.put(
            "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-cni-dead-eth0",
            &json!({"kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
                "metadata": {"name": "node--a-cni-dead-eth0", "namespace": "default"},
                "spec": {"orchestrator": "cni", "node": "node-a", "containerID": "dead",
                    "endpoint": "eth0", "ipNetworks": ["10.91.0.9/32"],
                    "interfaceName": "calidead", "profiles": ["pods"]}}),
        );
        let gc = |world: &World, alive: Value| {
            let mut conf = world.conf.clone();
            conf["cni.dev/valid-attachments"] = alive;
            world::run(world.command("GC", "caracal-cni", None), &conf)
        };
        let alive = json!([{"containerID": "8f2c41d09c", "ifname": "eth0"}]);
        let answer = gc(&world, alive);
        assert!(answer.ok, "{answer:#?}");
        assert_eq!(world.endpoints().len(), 1);
        assert_eq!(world.interfaces().len(), 1);
        let answer = gc(&world, json!([]));
        assert!(answer.ok, "{answer:#?}");
        world.assert_clean();
    });
}

#[test]
fn a_missing_ipam_plugin_is_named() {
    in_node(|mut world| {
        world.conf["ipam"] = json!({"type": "host-local"});
        let pod = Pod::new("8f2c41d09c");
        let answer = world.call("ADD", &pod);
        assert_eq!(answer.json["code"], 106, "{answer:#?}");
        assert!(
            answer.json["msg"]
                .as_str()
                .unwrap()
                .contains("host-local is not in CNI_PATH")
        );
        world.conf["ipam"] = json!({"type": "../sh"});
        let answer = world.call("ADD", &pod);
        assert!(
            answer.json["msg"]
                .as_str()
                .unwrap()
                .contains("no name of a program")
        );
        world.assert_clean();
    });
}

#[test]
fn caracal_ipam_serves_alone() {
    in_node(|mut world| {
        world.conf["type"] = json!("bridge");
        world.conf["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
        let pod = Pod::new("8f2c41d09c");
        let call =
            |world: &World, verb: &str| world.run(world.command(verb, "caracal-ipam", Some(&pod)));
        let result = call(&world, "ADD");
        assert!(result.ok, "{result:#?}");
        let ip = result.json["ips"][0]["address"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(ip.starts_with("10.90.0.") && ip.ends_with("/26"), "{ip}");
        assert_eq!(result.json["routes"], json!([{"dst": "0.0.0.0/0"}]));
        assert!(result.json.get("interfaces").is_none());
        assert_eq!(call(&world, "ADD").json, result.json);
        assert_eq!(world.in_use(), 1);
        assert_eq!(world.endpoints(), Vec::<Value>::new());
        world.conf["prevResult"] = result.json.clone();
        assert!(call(&world, "CHECK").ok);
        assert!(world.run(world.command("STATUS", "caracal-ipam", None)).ok);

        world.etcd.kill();
        assert!(call(&world, "DEL").ok);
        assert_eq!(world.pending_releases(), 1);
        world.etcd.run();
        assert!(call(&world, "DEL").ok);
        world.assert_clean();
        assert_eq!(call(&world, "CHECK").json["code"], 105);
    });
}

/// A datastore that was restored from a backup of before: blocks and handles are lost, and pods
/// run.
#[test]
fn an_address_that_is_in_use_is_not_given_although_its_block_was_lost() {
    in_node(|mut world| {
        let pods: Vec<_> = (0..3).map(|n| Pod::new(&format!("pod{n}"))).collect();
        let mut given = Vec::new();
        for pod in &pods[..2] {
            let result = world.add(pod);
            // The agent's part.
            let (address, link) = (address(&result), world::host_interface(&result));
            sh(&format!("ip route add {address}/32 dev {link} proto 80"));
            given.push(address);
        }
        for prefix in ["assignment/", "handle/", "host/"] {
            let keys = world.list(&format!("/calico/ipam/v2/{prefix}"));
            lose(&world, keys.into_iter().map(|kv| kv.key));
        }
        // An endpoint of another node has the third address of the block; its route goes by the
        // block.
        let block: Ipv4Addr = given[0].parse().unwrap();
        let third = Ipv4Addr::from_bits((block.to_bits() & !63) + 2).to_string();
        let agent = FakeAgent::start(&world);
        agent.knows_in_use(&third, "default", "node--b-k8s-p-eth0");
        world.put(
            "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--b-k8s-p-eth0",
            &json!({"metadata": {"name": "node--b-k8s-p-eth0", "namespace": "default"},
                "spec": {"node": "node-b", "ipNetworks": [format!("{third}/32")], "interfaceName": "cali1"}}),
        );
        world.conf["announce_wait_seconds"] = json!(0);
        let answer = world.call("ADD", &pods[2]);
        assert!(answer.ok, "{answer:#?}");
        let fourth = address(&answer.json);
        assert!(
            !given.contains(&fourth) && fourth != third,
            "{fourth} of {given:?}, {third}"
        );
        assert!(
            answer
                .stderr
                .contains("free in IPAM and in use all the same"),
            "{answer:#?}"
        );
        assert_eq!(world.in_use(), 1, "what was not given is free");
        // A pod that asks for one of them gets an error with the reason.
        let asking = Pod::new("asking");
        for (wanted, by) in [
            (
                &given[0],
                "a route of this node leads to it by interface cali",
            ),
            (
                &third,
                "the WorkloadEndpoint default/node--b-k8s-p-eth0 has it",
            ),
        ] {
            let answer = add_with(&world, &asking, wanted);
            let text = answer.json.to_string();
            assert!(!answer.ok && text.contains(by), "{wanted}: {answer:#?}");
        }
        assert_eq!(world.in_use(), 1);
        // An endpoint that is gone by now holds nothing, whatever the node's process still says.
        let key =
            "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--b-k8s-p-eth0";
        lose(&world, [key.to_owned()]);
        let answer = add_with(&world, &asking, &third);
        assert!(answer.ok, "{answer:#?}");
    });
}

#[test]
fn an_address_with_a_route_by_a_living_interface_is_seen() {
    in_node(|world| {
        sh("ip link add caliweb type veth peer name web0 && ip link set caliweb up");
        for route in [
            "10.90.0.5/32",
            "fd90::5/128",
            "10.90.0.64/26",
            "fd90::40/122",
        ] {
            sh(&format!("ip route add {route} dev caliweb"));
        }
        sh("ip route add blackhole 10.90.0.7/32");
        let ask = || {
            let addresses = [
                "10.90.0.5",
                "fd90::5",
                "10.90.0.65",
                "fd90::41",
                "10.90.0.7",
            ];
            let addresses = addresses.map(|a| a.parse::<std::net::IpAddr>().unwrap());
            let found = world.with_store(async |_| caracal_cni::routed_addresses(addresses).await);
            let found = found.unwrap().into_iter();
            found
                .map(|(a, by)| format!("{a}: {by}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            ask(),
            [
                "10.90.0.5: a route of this node leads to it by interface caliweb",
                "fd90::5: a route of this node leads to it by interface caliweb"
            ]
        );
        sh("ip link del caliweb");
        assert_eq!(ask(), Vec::<String>::new());
    });
}

#[test]
fn exhaustion_is_explained() {
    in_node(|world| {
        world.put(
            "/calico/resources/v3/projectcalico.org/ippools/v4",
            &json!({"metadata": {"name": "v4"}, "spec": {"cidr": "10.90.0.0/31", "blockSize": 31}}),
        );
        let pods: Vec<_> = (0..3).map(|n| Pod::new(&format!("pod{n}"))).collect();
        world.add(&pods[0]);
        world.add(&pods[1]);
        let answer = world.call("ADD", &pods[2]);
        assert_eq!(answer.json["code"], 102, "{answer:#?}");
        let text = format!("{} {}", answer.json["msg"], answer.json["details"]);
        for part in ["v4", "node-a"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(world.interfaces().len(), 2);
        world.del(&pods[0]);
        world.add(&pods[2]);
    });
}
