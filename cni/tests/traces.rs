//! Traces of the plugins on the host: the host's state stays as it is, Calico's attachments are
//! taken down as Calico made them.

#![allow(clippy::unwrap_used)]

mod world;

use std::collections::BTreeSet;

use caracal_ipam::{AssignIpRequest, Client};
use caracal_model::AllowedUse;
use serde_json::json;
use world::{Answer, Pod, World, address, host_interface, in_node, sh, wait_for};

/// Everything in the namespace that a plugin could change, a line each, but what belongs to the
/// interface `own`.
fn host_state(own: &str) -> BTreeSet<String> {
    let state = sh(
        "ip -o link; ip -o addr; ip route show table all; ip -6 route show table all; \
         ip rule; ip -6 rule; ip neigh; ip -6 neigh; iptables-save; sysctl -a 2>/dev/null",
    );
    let steady = |line: &&str| {
        let counter = [
            "#",
            "net.netfilter.nf_conntrack_count",
            "kernel.",
            "fs.",
            "vm.",
            "dev.",
        ];
        let of_kernel = counter.iter().any(|start| line.starts_with(start));
        !of_kernel && (own.is_empty() || !line.contains(own))
    };
    // Lifetimes and the numbers of interfaces behind '@' change by themselves.
    state.lines().filter(steady).map(str::to_owned).collect()
}

#[test]
fn cni_6_nothing_of_the_host_changes_but_the_own_veth() {
    in_node(|mut world| {
        world.conf["ipam"]["assign_ipv6"] = json!(true);
        wait_for("addresses without duplicate detection", || {
            let text = sh("ip -6 -o addr");
            match text.contains("tentative") {
                true => Err(text),
                false => Ok(()),
            }
        });
        let before = host_state("");
        let pod = Pod::new("8f2c41d09c");
        let host = host_interface(&world.add(&pod));
        let during = host_state(&host);
        // Routes and neighbours that the kernel itself makes for the interface name it, too.
        let foreign: Vec<_> = during.symmetric_difference(&before).collect();
        let of_ipv6 = |line: &&String| {
            // The kernel lists a link-local address of the new interface once without its name.
            !line.starts_with("local fe80::ecee:eeff:feee:eeee")
                && !line.starts_with("anycast fe80::")
        };
        let foreign: Vec<_> = foreign.into_iter().filter(of_ipv6).collect();
        assert!(foreign.is_empty(), "while attached: {foreign:#?}");
        world.del(&pod);
        let after = host_state("");
        let foreign: Vec<_> = after.symmetric_difference(&before).collect();
        assert!(foreign.is_empty(), "after DEL: {foreign:#?}");
        world.assert_clean();
    });
}

/// An address as Calico's plugin takes it: under the container's handle, whatever the interface.
fn calico_takes(world: &World, address: &str) {
    let request = AssignIpRequest {
        address: address.parse().unwrap(),
        node: "node-a".into(),
        handle: "pods.8f2c41d09c".into(),
        attributes: [("namespace".to_owned(), "default".to_owned())].into(),
        usage: AllowedUse::Workload,
    };
    world.with_store(async |store| Client::new(store).assign_ip(request).await.unwrap());
}

fn calicos_second_interface(world: &World) {
    calico_takes(world, "10.90.0.50");
    let key = "/calico/resources/v3/projectcalico.org/workloadendpoints/default/\
               node--a-cni-8f2c41d09c-net1";
    world.put(
        key,
        &json!({"kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "node--a-cni-8f2c41d09c-net1", "namespace": "default"},
            "spec": {"orchestrator": "cni", "node": "node-a", "containerID": "8f2c41d09c",
                "endpoint": "net1", "workload": "8f2c41d09c", "ipNetworks": ["10.90.0.50/32"],
                "interfaceName": "cali8f2c41d09c", "profiles": ["pods"]}}),
    );
}

#[test]
fn a_further_interface_that_calico_made_is_released_and_no_other() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        // The first interface is ours, under the same handle.
        let first = world.add(&pod);
        calicos_second_interface(&world);
        assert_eq!(world.in_use(), 2);
        let answer = world.call_for("DEL", &pod, "net1");
        assert!(answer.ok, "{answer:#?}");
        assert_eq!(world.in_use(), 1);
        assert_eq!(world.endpoints().len(), 1);
        assert_eq!(world.add(&pod), first, "the first interface is untouched");

        // The same without etcd, by pending release.
        calicos_second_interface(&world);
        world.etcd.kill();
        assert!(world.call_for("DEL", &pod, "net1").ok);
        world.etcd.run();
        let lib = world.dir.join("lib");
        let replay = async |store| {
            caracal_cni::replay_pending_releases(&store, &lib)
                .await
                .unwrap()
        };
        let replayed = world.with_store(replay);
        assert_eq!(replayed.done.len(), 1, "{replayed:?}");
        assert_eq!(world.in_use(), 1);
        assert_eq!(world.add(&pod), first);
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn several_interfaces_of_a_container_come_and_go_each_for_itself() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let first = world.add(&pod);
        let second = world.call_for("ADD", &pod, "net1");
        assert!(second.ok, "{second:#?}");
        assert_ne!(address(&first), address(&second.json));
        assert_ne!(host_interface(&first), host_interface(&second.json));
        assert_eq!(world.interfaces().len(), 2);
        assert!(world.call_for("DEL", &pod, "net1").ok);
        assert_eq!(world.add(&pod), first);
        assert_eq!((world.in_use(), world.interfaces().len()), (1, 1));
        world.del(&pod);
        world.assert_clean();
    });
}

fn annotated(world: &World, verb: &str, pod: &Pod, name: &str, text: &str) -> Answer {
    let mut conf = world.conf.clone();
    conf["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations":
        {format!("cni.projectcalico.org/{name}"): text}});
    world::run(world.command(verb, "caracal-cni", Some(pod)), &conf)
}

#[test]
fn addresses_that_a_pod_brings_are_used_without_ipam() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        let wish = "[\"10.200.0.9\", \"fd20::9\"]";
        let refused = annotated(&world, "ADD", &pod, "ipAddrsNoIpam", wish);
        assert_eq!(refused.json["code"], 7, "{refused:#?}");
        world.assert_clean();

        world.conf["feature_control"] = json!({"ip_addrs_no_ipam": true});
        let result = annotated(&world, "ADD", &pod, "ipAddrsNoIpam", wish);
        assert!(result.ok, "{result:#?}");
        assert_eq!(result.json["ips"][0]["address"], "10.200.0.9/32");
        assert_eq!(result.json["ips"][1]["address"], "fd20::9/128");
        assert_eq!(world.in_use(), 0);
        let networks = json!(["10.200.0.9/32", "fd20::9/128"]);
        assert_eq!(world.endpoints()[0]["spec"]["ipNetworks"], networks);
        let host = host_interface(&result.json);
        sh(&format!("ip route add 10.200.0.9/32 dev {host} scope link"));
        pod.sh("ping -c 1 -W 1 192.0.2.1");
        let again = annotated(&world, "ADD", &pod, "ipAddrsNoIpam", wish);
        assert_eq!(again.json, result.json);
        let check = annotated(&world, "CHECK", &pod, "ipAddrsNoIpam", wish);
        assert!(check.ok, "{check:#?}");
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn floating_addresses_are_refused_with_a_reason() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let answer = annotated(&world, "ADD", &pod, "floatingIPs", "[\"10.90.0.200\"]");
        assert_eq!(answer.json["code"], 2, "{answer:#?}");
        let message = answer.json["msg"].as_str().unwrap();
        assert!(
            message.contains("translates no floating addresses"),
            "{message}"
        );
        world.assert_clean();
    });
}

#[test]
fn cni_2_one_family_that_fails_releases_the_other() {
    in_node(|mut world| {
        world.conf["ipam"]["assign_ipv6"] = json!(true);
        world.put(
            "/calico/resources/v3/projectcalico.org/ippools/v6",
            &json!({"metadata": {"name": "v6"}, "spec": {"cidr": "fd90::/112", "disabled": true}}),
        );
        let pod = Pod::new("8f2c41d09c");
        let answer = world.call("ADD", &pod);
        assert_eq!(answer.json["code"], 102, "{answer:#?}");
        world.assert_clean();
    });
}

#[test]
fn unknown_keys_are_named_in_a_warning() {
    in_node(|mut world| {
        world.conf["log_level"] = json!("warning");
        world.conf["mtuu"] = json!(1);
        world.conf["ipam"]["subnet"] = json!("10.0.0.0/8");
        let pod = Pod::new("8f2c41d09c");
        let answer = world.call("ADD", &pod);
        assert!(answer.ok, "{answer:#?}");
        let said = &answer.stderr;
        assert!(
            said.contains("WARN")
                && said.contains("unknown keys")
                && said.contains("mtuu, ipam.subnet"),
            "{said}"
        );
        world.del(&pod);
        world.assert_clean();
    });
}
