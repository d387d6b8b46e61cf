//! ADD and DEL as a runtime sees them, with real namespaces and a real etcd.

#![allow(clippy::unwrap_used)]

mod world;

use serde_json::json;
use world::{Pod, address, host_interface, in_node, sh};

#[test]
fn a_pod_is_attached_reached_and_detached() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        let (ip, host) = (address(&result), host_interface(&result));
        assert_eq!(host, "cali8f2c41d09c");
        assert_eq!(result["cniVersion"], "1.1.0");
        assert_eq!(result["ips"][0]["address"], format!("{ip}/32"));
        assert_eq!(result["ips"][0]["interface"], 1);
        assert_eq!(result["interfaces"][0]["mac"], "ee:ee:ee:ee:ee:ee");
        assert_eq!(result["interfaces"][1]["name"], "eth0");
        assert_eq!(result["interfaces"][1]["mtu"], 1420);
        assert_eq!(
            result["interfaces"][1]["sandbox"],
            pod.path().to_str().unwrap()
        );

        let routes = pod.sh("ip route show");
        assert!(
            routes.contains("default via 169.254.1.1 dev eth0"),
            "{routes}"
        );
        assert!(
            routes.contains("169.254.1.1 dev eth0 scope link"),
            "{routes}"
        );
        assert!(pod.sh("ip -o link show lo").contains("UP"));
        assert_eq!(
            sh("ip route show | grep cali || true"),
            "",
            "routes are the agent's"
        );

        let endpoint = &world.endpoints()[0];
        assert_eq!(endpoint["metadata"]["name"], "node--a-cni-8f2c41d09c-eth0");
        assert_eq!(endpoint["spec"]["ipNetworks"], json!([format!("{ip}/32")]));
        assert_eq!(endpoint["spec"]["interfaceName"], host);
        assert_eq!(endpoint["spec"]["mac"], result["interfaces"][1]["mac"]);
        assert_eq!(endpoint["spec"]["containerID"], "8f2c41d09c");
        assert_eq!(endpoint["spec"]["profiles"], json!(["pods"]));
        assert_eq!(world.handles(), ["pods.8f2c41d09c"]);

        // Acts as the agent.
        sh(&format!("ip route add {ip}/32 dev {host} scope link"));
        sh(&format!("ping -c 1 -W 2 {ip}"));
        pod.sh("ping -c 1 -W 2 192.0.2.1");

        world.del(&pod);
        assert_eq!(pod.sh("ip -o link show | grep eth0 || true"), "");
        world.assert_clean();
    });
}

#[test]
fn cni_1_a_repeated_add_gives_the_same_answer() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let first = world.add(&pod);
        let index = pod.sh("cat /proc/net/dev_mcast | head -1; ip -o link show eth0");
        assert_eq!(world.add(&pod), first);
        assert_eq!(
            pod.sh("cat /proc/net/dev_mcast | head -1; ip -o link show eth0"),
            index,
            "the interface is the same one"
        );
        assert_eq!(world.in_use(), 1);
        assert_eq!(world.endpoints().len(), 1);
        world.del(&pod);
        world.assert_clean();
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn cni_1_what_the_host_lost_is_rebuilt() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let first = world.add(&pod);
        sh(&format!("ip link del {}", host_interface(&first)));
        assert_eq!(world.add(&pod), first);
        pod.sh("ip addr flush dev eth0");
        assert_eq!(world.add(&pod), first);
        assert!(pod.sh("ip -o -4 addr show eth0").contains(&address(&first)));
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn both_families_are_reached_without_delay() {
    in_node(|mut world| {
        world.conf["ipam"]["assign_ipv6"] = json!("true");
        sh("ip -6 addr add 2001:db8::1/128 dev lo nodad");
        let pod = Pod::new("8f2c41d09c");
        let answer = world.call("ADD", &pod);
        assert!(answer.ok, "{answer:#?}");
        assert!(!answer.stderr.contains("slow to come up"), "{answer:#?}");
        let result = answer.json;
        let ips = result["ips"].as_array().unwrap();
        assert_eq!(ips.len(), 2, "{result:#}");
        let v6 = ips[1]["address"].as_str().unwrap();
        assert!(v6.starts_with("fd90::") && v6.ends_with("/128"), "{v6}");
        let v6 = v6.trim_end_matches("/128");
        let host = host_interface(&result);
        sh(&format!(
            "ip route add {}/32 dev {host} scope link",
            address(&result)
        ));
        sh(&format!("ip -6 route add {v6}/128 dev {host}"));
        // The first packet of each family, with no second to lose to ARP or duplicate address
        // detection.
        pod.sh("ping -c 1 -W 1 192.0.2.1");
        pod.sh("ping -c 1 -W 1 2001:db8::1");
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn a_kubernetes_pod_has_calicos_names() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;\
                    K8S_POD_INFRA_CONTAINER_ID=8f2c41d09c";
        let call = |verb: &str, pod: &Pod| {
            let mut command = world.command(verb, "caracal-cni", Some(pod));
            command.env("CNI_ARGS", args);
            world.run(command)
        };
        let result = call("ADD", &pod);
        assert!(result.ok, "{result:#?}");
        assert_eq!(host_interface(&result.json), "cali0d7763386da");
        let endpoint = &world.endpoints()[0];
        assert_eq!(endpoint["metadata"]["name"], "node--a-k8s-web--0-eth0");
        assert_eq!(endpoint["metadata"]["namespace"], "default");
        assert_eq!(endpoint["spec"]["pod"], "web-0");
        assert_eq!(endpoint["spec"]["profiles"], json!(["kns.default"]));
        let uid = endpoint["metadata"]["uid"].clone();

        // The sandbox is replaced; the old one's DEL comes late, with and without its namespace.
        let newer = Pod::new("1234567890");
        let second = call("ADD", &newer);
        assert!(second.ok, "{second:#?}");
        assert_eq!(world.endpoints()[0]["metadata"]["uid"], uid);
        assert_ne!(address(&result.json), address(&second.json));
        assert!(call("DEL", &pod).ok);
        assert_eq!(world.interfaces(), ["cali0d7763386da"]);
        assert_eq!(world.endpoints()[0]["spec"]["containerID"], "1234567890");
        assert_eq!(world.handles(), ["pods.1234567890"]);
        let newer_id = newer.id.clone();
        drop(newer);
        let mut gone = world.command("DEL", "caracal-cni", None);
        gone.env("CNI_ARGS", args)
            .env("CNI_CONTAINERID", newer_id)
            .env("CNI_NETNS", "/run/netns/gone")
            .env("CNI_IFNAME", "eth0");
        assert!(world.run(gone).ok);
        world.assert_clean();
    });
}

#[test]
fn the_pod_waits_for_the_agents_route() {
    in_node(|mut world| {
        world.conf["route_wait_seconds"] = json!(20);
        let pod = Pod::new("8f2c41d09c");
        let child = world.command("ADD", "caracal-cni", Some(&pod));
        let conf = world.conf.clone();
        let answer = std::thread::scope(|scope| {
            let call = scope.spawn(|| world::run(child, &conf));
            let endpoint = world::wait_for("the endpoint", || {
                world
                    .endpoints()
                    .pop()
                    .ok_or_else(|| "no endpoint".to_owned())
            });
            assert!(!call.is_finished(), "ADD waits");
            let network = endpoint["spec"]["ipNetworks"][0].as_str().unwrap();
            let name = endpoint["spec"]["interfaceName"].as_str().unwrap();
            // Not it: another device, another length.
            sh(&format!("ip route add {network} dev up0 metric 9"));
            sh(&format!(
                "ip route add {}/31 dev {name} 2>/dev/null || true",
                network.trim_end_matches("/32")
            ));
            sh(&format!("ip route replace {network} dev {name} scope link"));
            call.join().unwrap()
        });
        assert!(answer.ok, "{answer:#?}");
    });
}

#[test]
fn cni_2_without_the_agents_route_add_fails_and_nothing_stays() {
    in_node(|mut world| {
        world.conf["route_wait_seconds"] = json!(1);
        let pod = Pod::new("8f2c41d09c");
        let answer = world.call("ADD", &pod);
        assert!(!answer.ok);
        assert_eq!(answer.json["code"], 104);
        assert_eq!(answer.json["cniVersion"], "1.1.0");
        let message = answer.json["msg"].as_str().unwrap();
        for part in [
            "cali8f2c41d09c after 1 s",
            "`caracal status`",
            "node node-a",
        ] {
            assert!(message.contains(part), "{message}");
        }
        world.assert_clean();
    });
}

#[test]
fn cni_6_a_foreign_interface_is_not_touched() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        pod.sh("ip link add eth0 type veth peer name eth9");
        let answer = world.call("ADD", &pod);
        assert!(!answer.ok);
        assert_eq!(answer.json["code"], 103);
        assert!(
            answer.json["msg"]
                .as_str()
                .unwrap()
                .contains("already has an interface eth0")
        );
        world.assert_clean();
        world.del(&pod);
        assert!(
            pod.sh("ip -o link show").contains("eth0"),
            "DEL leaves it as well"
        );
    });
}

#[test]
fn the_hosts_own_namespace_and_one_that_is_gone_are_refused() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        for (path, code) in [
            ("/proc/thread-self/ns/net", 4),
            ("/run/netns/gone", 3),
            ("/etc/hostname", 3),
        ] {
            for (verb, ok) in [("ADD", false), ("DEL", true)] {
                let mut command = world.command(verb, "caracal-cni", Some(&pod));
                command.env("CNI_NETNS", path);
                let answer = world.run(command);
                assert_eq!(answer.ok, ok, "{verb} {path}: {answer:#?}");
                if !ok {
                    assert_eq!(answer.json["code"], code, "{verb} {path}: {answer:#?}");
                }
            }
        }
        world.assert_clean();
    });
}

#[test]
fn wished_addresses_and_mac_are_given() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        let mut command = world.command("ADD", "caracal-cni", Some(&pod));
        command.env("CNI_ARGS", "IP=10.90.0.77;MAC=02:00:00:00:00:07");
        let answer = world.run(command);
        assert!(answer.ok, "{answer:#?}");
        assert_eq!(address(&answer.json), "10.90.0.77");
        assert_eq!(answer.json["interfaces"][1]["mac"], "02:00:00:00:00:07");

        let other = Pod::new("1234567890");
        world.conf["runtimeConfig"] = json!({"ips": ["10.90.0.77/24"]});
        let answer = world.call("ADD", &other);
        assert!(!answer.ok);
        assert_eq!(answer.json["code"], 102, "{answer:#?}");
        world.del(&other);
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn an_unknown_node_and_a_locked_datastore_are_named() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        world.conf["nodename"] = json!("node-z");
        let answer = world.call("ADD", &pod);
        assert_eq!(answer.json["code"], 11, "{answer:#?}");
        assert!(
            answer.json["msg"]
                .as_str()
                .unwrap()
                .contains("node node-z is not in the datastore")
        );
        world.conf["nodename"] = json!("node-a");
        world.put(
            "/calico/resources/v3/projectcalico.org/clusterinformations/default",
            &json!({"metadata": {"name": "default"}, "spec": {"datastoreReady": false}}),
        );
        let answer = world.call("ADD", &pod);
        assert_eq!(answer.json["code"], 11, "{answer:#?}");
        let said = answer.json["msg"].as_str().unwrap();
        assert!(
            said.contains("locked") && said.contains("caracal datastore unlock"),
            "{said}"
        );
        world.assert_clean();
    });
}

#[test]
fn twenty_pods_at_once_have_twenty_addresses() {
    in_node(|world| {
        let pods: Vec<_> = (0..20).map(|n| Pod::new(&format!("{n:012x}"))).collect();
        let answers = |verb: &str| -> Vec<world::Answer> {
            std::thread::scope(|scope| {
                let calls: Vec<_> = pods
                    .iter()
                    .map(|pod| {
                        let command = world.command(verb, "caracal-cni", Some(pod));
                        scope.spawn(|| world::run(command, &world.conf))
                    })
                    .collect();
                calls.into_iter().map(|call| call.join().unwrap()).collect()
            })
        };
        let added = answers("ADD");
        assert!(added.iter().all(|a| a.ok), "{added:#?}");
        let mut addresses: Vec<_> = added.iter().map(|a| address(&a.json)).collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 20);
        assert_eq!(world.interfaces().len(), 20);
        assert_eq!(world.in_use(), 20);
        let deleted = answers("DEL");
        assert!(deleted.iter().all(|a| a.ok), "{deleted:#?}");
        world.assert_clean();
    });
}

#[test]
fn cni_6_an_interface_of_another_container_is_not_taken_away() {
    in_node(|world| {
        // Ids of more than 31 hexadecimal digits count as drawn; these two were not.
        let first = Pod::new("00000000000000000000000000000001");
        let second = Pod::new("00000000000000000000000000000002");
        let result = world.add(&first);
        let answer = world.call("ADD", &second);
        assert_eq!(answer.json["code"], 103, "{answer:#?}");
        let message = answer.json["msg"].as_str().unwrap();
        assert!(
            message.contains("belongs to pods.00000000000000000000000000000001"),
            "{message}"
        );
        world.del(&second);
        assert_eq!(world.add(&first), result, "untouched");
        world.del(&first);
        world.assert_clean();
    });
}
