//! With the plugins of the CNI project as Debian packs them (`containernetworking-plugins`): ours
//! beside, before and below them.

#![allow(clippy::unwrap_used)]

mod world;

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use world::{Pod, World, address, host_interface, in_node, sh};

/// Copies a plugin into the world; says so when it is not installed.
fn install(world: &World, names: &[&str]) -> bool {
    let dir = std::env::var_os("CARACAL_TEST_CNI_PLUGINS").unwrap_or_else(|| "/usr/lib/cni".into());
    for name in names {
        let path = PathBuf::from(&dir).join(name);
        if !path.exists() {
            eprintln!(
                "skipped: {} is not installed (containernetworking-plugins)",
                path.display()
            );
            return false;
        }
        fs::copy(path, world.plugins.join(name)).unwrap();
    }
    true
}

#[test]
fn caracal_ipam_serves_the_bridge_plugin() {
    in_node(|mut world| {
        if !install(&world, &["bridge"]) {
            return;
        }
        world.conf["cniVersion"] = json!("1.0.0");
        world.conf["type"] = json!("bridge");
        world.conf["bridge"] = json!("br0");
        let (one, two) = (Pod::new("8f2c41d09c"), Pod::new("1234567890"));
        for pod in [&one, &two] {
            let answer = world.run(world.command("ADD", "bridge", Some(pod)));
            assert!(answer.ok, "{answer:#?}");
        }
        assert_eq!(world.in_use(), 2);
        let ip = two.sh("ip -o -4 addr show eth0");
        let ip = ip.split_whitespace().nth(3).unwrap();
        one.sh(&format!("ping -c 1 -W 2 {}", ip.split('/').next().unwrap()));
        for pod in [&one, &two] {
            let answer = world.run(world.command("DEL", "bridge", Some(pod)));
            assert!(answer.ok, "{answer:#?}");
        }
        world.assert_clean();
    });
}

#[test]
fn host_local_serves_us() {
    in_node(|mut world| {
        if !install(&world, &["host-local"]) {
            return;
        }
        world.conf["cniVersion"] = json!("1.0.0");
        world.conf["ipam"] = json!({"type": "host-local", "dataDir": world.dir.join("host-local"),
            "ranges": [[{"subnet": "10.92.0.0/24"}], [{"subnet": "fd92::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        assert_eq!(result["ips"][0]["address"], "10.92.0.2/32");
        assert_eq!(result["ips"][1]["address"], "fd92::2/128");
        assert_eq!(world.add(&pod), result);
        assert!(world.call("CHECK", &pod).ok);
        sh(&format!(
            "ip route add 10.92.0.2/32 dev {}",
            host_interface(&result)
        ));
        pod.sh("ping -c 1 -W 1 192.0.2.1");
        world.del(&pod);
        world.del(&pod);
        world.assert_clean();
        let lease = world.dir.join("host-local/pods/10.92.0.2");
        assert!(!lease.exists(), "the address went back");
    });
}

#[test]
fn portmap_and_bandwidth_follow_us_in_a_chain() {
    in_node(|mut world| {
        if !install(&world, &["portmap", "bandwidth"]) {
            return;
        }
        world.conf["cniVersion"] = json!("1.0.0");
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        let (ip, host) = (address(&result), host_interface(&result));
        sh(&format!("ip route add {ip}/32 dev {host} scope link"));
        let next =
            |world: &World, verb: &str, program: &str, previous: &Value, capability: &Value| {
                let conf = json!({"cniVersion": "1.0.0", "name": "pods", "type": program,
                "snat": true, "capabilities": {"portMappings": true, "bandwidth": true},
                "runtimeConfig": capability, "prevResult": previous});
                world::run(world.command(verb, program, Some(&pod)), &conf)
            };
        let rate = json!({"bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000}});
        let shaped = next(&world, "ADD", "bandwidth", &result, &rate);
        assert!(shaped.ok, "{shaped:#?}");
        assert!(
            sh(&format!("tc qdisc show dev {host}")).contains("tbf"),
            "it found our interface"
        );
        let ports =
            json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]});
        let mapped = next(&world, "ADD", "portmap", &shaped.json, &ports);
        assert!(mapped.ok, "{mapped:#?}");
        assert!(
            sh("iptables-save -t nat").contains(&format!("{ip}:80")),
            "it found our address"
        );
        world.conf["prevResult"] = mapped.json.clone();
        assert!(
            world.call("CHECK", &pod).ok,
            "the result of the chain is ours"
        );
        assert!(next(&world, "DEL", "portmap", &mapped.json, &ports).ok);
        assert!(next(&world, "DEL", "bandwidth", &mapped.json, &rate).ok);
        world.del(&pod);
        world.assert_clean();
    });
}
