//! Leftovers of a kill, a stopped etcd or a careless runtime, and who cleans them up.

#![allow(clippy::unwrap_used)]

mod world;

use std::fs::File;
use std::io::{Write as _, pipe};
use std::os::fd::OwnedFd;

use caracal_cni::Milestone;
use caracal_cni::replay_pending_releases;
use serde_json::json;
use world::agent::FakeAgent;
use world::{Pod, World, address, in_node, run};

fn killed(world: &World, verb: &str, pod: &Pod, at: Milestone) {
    let mut command = world.command(verb, "caracal-cni", Some(pod));
    command.env("CARACAL_CNI_DIE_AT", format!("{at:?}"));
    let answer = world.run(command);
    assert!(
        !answer.ok && answer.json.is_null(),
        "{verb} died at {at:?}: {answer:#?}"
    );
}

const ADD: [Milestone; 4] = [
    Milestone::AddressesHeld,
    Milestone::PairMade,
    Milestone::PodConfigured,
    Milestone::EndpointWritten,
];
const DEL: [Milestone; 3] = [
    Milestone::InterfaceDeleted,
    Milestone::EndpointDeleted,
    Milestone::AddressesReleased,
];

#[test]
fn cni_2_an_add_killed_anywhere_is_completed_by_the_next() {
    in_node(|world| {
        for at in ADD {
            let pod = Pod::new("8f2c41d09c");
            killed(&world, "ADD", &pod, at);
            let result = world.add(&pod);
            assert_eq!(world.in_use(), 1, "{at:?}");
            assert_eq!(world.add(&pod), result, "{at:?}");
            world.del(&pod);
            world.assert_clean();
        }
    });
}

#[test]
fn cni_2_an_add_killed_anywhere_is_removed_by_del() {
    in_node(|world| {
        for at in ADD {
            let pod = Pod::new("8f2c41d09c");
            killed(&world, "ADD", &pod, at);
            world.del(&pod);
            world.assert_clean();
        }
    });
}

#[test]
fn cni_4_a_del_killed_anywhere_is_completed_by_the_next() {
    in_node(|world| {
        for at in DEL {
            let pod = Pod::new("8f2c41d09c");
            world.add(&pod);
            killed(&world, "DEL", &pod, at);
            world.del(&pod);
            world.assert_clean();
        }
    });
}

#[test]
fn cni_4_without_etcd_del_leaves_a_pending_release_that_the_node_replays() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        world.add(&pod);
        world.etcd.kill();
        world.del(&pod);
        assert_eq!(
            world.interfaces(),
            Vec::<String>::new(),
            "the interface is gone at once"
        );
        assert_eq!(world.pending_releases(), 1);
        world.del(&pod);
        assert_eq!(world.pending_releases(), 1);
        let answer = world.call("ADD", &pod);
        assert_eq!(answer.json["code"], 11, "{answer:#?}");

        world.etcd.run();
        assert_eq!(world.in_use(), 1, "nothing is forgotten");
        let lib = world.dir.join("lib");
        let replayed =
            world.with_store(async |store| replay_pending_releases(&store, &lib).await.unwrap());
        assert_eq!(replayed.done, ["8f2c41d09c"]);
        assert!(replayed.failed.is_empty() && !replayed.busy);
        world.assert_clean();
    });
}

#[test]
fn cni_5_a_pending_release_never_hits_a_later_add_of_the_same_container() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        let first = world.add(&pod);
        world.etcd.kill();
        world.del(&pod);
        world.etcd.run();
        let second = world.add(&pod);
        assert_eq!(world.pending_releases(), 0, "ADD settled it");
        assert_ne!(
            address(&first),
            address(&second),
            "released, then taken anew"
        );
        let lib = world.dir.join("lib");
        world.with_store(async |store| replay_pending_releases(&store, &lib).await.unwrap());
        assert_eq!(world.in_use(), 1);
        assert_eq!(world.endpoints().len(), 1);
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn cni_6_gc_releases_what_the_runtime_no_longer_lists() {
    in_node(|mut world| {
        let (kept, dead, half) = (
            Pod::new("aaaaaaaaaaaa"),
            Pod::new("bbbbbbbbbbbb"),
            Pod::new("cccccccccccc"),
        );
        let result = world.add(&kept);
        world.add(&dead);
        killed(&world, "ADD", &half, Milestone::PodConfigured);
        // Another network, whose name begins like ours; and another node's pod.
        let ours = world.conf.clone();
        world.conf["name"] = json!("pods.b");
        let other = Pod::new("dddddddddddd");
        world.add(&other);
        world.put(
            "/calico/resources/v3/projectcalico.org/nodes/node-b",
            &json!({"metadata": {"name": "node-b"}, "spec": {"bgp": {"ipv4Address": "192.0.2.2/24"}}}),
        );
        world.conf = ours.clone();
        world.conf["nodename"] = json!("node-b");
        let far = Pod::new("eeeeeeeeeeee");
        killed(&world, "ADD", &far, Milestone::PodConfigured);
        world.conf = ours;
        world.conf["cni.dev/valid-attachments"] =
            json!([{"containerID": "aaaaaaaaaaaa", "ifname": "eth0"}]);
        let answer = world.run(world.command("GC", "caracal-cni", None));
        assert!(answer.ok, "{answer:#?}");
        let mut handles = world.handles();
        handles.sort();
        assert_eq!(
            handles,
            [
                "pods.aaaaaaaaaaaa",
                "pods.b.dddddddddddd",
                "pods.eeeeeeeeeeee"
            ]
        );
        let kept_interface = world::host_interface(&result);
        assert_eq!(world.interfaces().len(), 2);
        assert!(world.interfaces().contains(&kept_interface));
        assert_eq!(world.endpoints().len(), 2);
        assert_eq!(world.add(&kept), result, "what is listed is as it was");
    });
}

#[test]
fn check_names_what_differs() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        let ip = address(&result);
        world.conf["prevResult"] = result.clone();
        let differs = |world: &World, part: &str| {
            let answer = world.call("CHECK", &pod);
            assert_eq!(answer.json["code"], 105, "{answer:#?}");
            let message = answer.json["msg"].as_str().unwrap();
            assert!(message.contains(part), "{part:?} in {message}");
        };
        assert!(world.call("CHECK", &pod).ok);

        world.conf["route_wait_seconds"] = json!(10);
        differs(&world, &format!("no route to {ip}/32 on cali8f2c41d09c"));
        world::sh(&format!(
            "ip route add {ip}/32 dev cali8f2c41d09c scope link"
        ));
        assert!(world.call("CHECK", &pod).ok);
        pod.sh("ip link set eth0 mtu 1300");
        differs(&world, "eth0 has MTU 1300, prevResult 1420");
        pod.sh("ip link set eth0 mtu 1420 address 02:00:00:00:00:09");
        differs(&world, "eth0 has MAC 02:00:00:00:00:09, the endpoint ");
        let mac = result["interfaces"][1]["mac"].as_str().unwrap();
        pod.sh(&format!("ip link set eth0 address {mac}"));
        assert!(world.call("CHECK", &pod).ok);
        let route = json!({"dst": "10.5.0.0/16", "gw": "169.254.1.1"});
        world.conf["prevResult"]["routes"]
            .as_array_mut()
            .unwrap()
            .push(route);
        differs(&world, "no route to 10.5.0.0/16 via 169.254.1.1 on eth0");
        world.conf["prevResult"]["routes"]
            .as_array_mut()
            .unwrap()
            .pop();
        pod.sh("ip route del default");
        differs(&world, "no default route via 169.254.1.1 on eth0");
        pod.sh("ip addr flush dev eth0");
        differs(&world, &format!("eth0 lacks {ip}/32; it has nothing"));
        pod.sh("ip link set eth0 down");
        differs(&world, "eth0 is down in the container");
        pod.sh("ip link del eth0");
        differs(&world, "no interface eth0 in the container");
        differs(&world, "no interface cali8f2c41d09c on the host");
        world.conf["prevResult"]["ips"][0]["address"] = json!("10.90.0.250/32");
        differs(&world, "prevResult has 10.90.0.250/32");
        world.conf.as_object_mut().unwrap().remove("prevResult");
        world.del(&pod);
        differs_after_del(&world);
    });

    fn differs_after_del(world: &World) {
        let pod = Pod::new("8f2c41d09c");
        let answer = world.call("CHECK", &pod);
        assert_eq!(answer.json["code"], 105);
        assert!(
            answer.json["msg"]
                .as_str()
                .unwrap()
                .contains("is no endpoint of container")
        );
    }
}

#[test]
fn status_has_a_reason() {
    in_node(|mut world| {
        let status = |world: &World| world.run(world.command("STATUS", "caracal-cni", None));
        let answer = status(&world);
        assert_eq!(answer.json["code"], 50, "{answer:#?}");
        assert!(
            answer.json["msg"]
                .as_str()
                .unwrap()
                .contains("caracal.sock")
        );
        let agent = FakeAgent::start(&world);
        let answer = status(&world);
        assert!(answer.ok, "{answer:#?}");
        agent.says("stale", "synced");
        let answer = status(&world);
        assert_eq!(answer.json["code"], 50, "{answer:#?}");
        let message = answer.json["msg"].as_str().unwrap();
        assert!(
            message.contains("node node-a is not ready: it does not hear from the datastore"),
            "{message}"
        );
        agent.says("fresh", "synced");
        world.conf["readiness_gates"] = json!(["http://127.0.0.1:9/readiness"]);
        let answer = status(&world);
        assert_eq!(answer.json["code"], 50, "{answer:#?}");
        let message = answer.json["msg"].as_str().unwrap();
        assert!(message.contains("gate http://127.0.0.1:9/"), "{message}");
        world.conf["readiness_gates"] = json!([]);
        world.etcd.kill();
        let answer = status(&world);
        assert_eq!(answer.json["code"], 50, "{answer:#?}");
    });
}

#[test]
fn cni_2_a_repeated_add_that_fails_takes_nothing_from_a_pod_that_works() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        world.conf["route_wait_seconds"] = json!(1);
        let answer = world.call("ADD", &pod);
        assert_eq!(answer.json["code"], 104, "{answer:#?}");
        world.conf["route_wait_seconds"] = json!(0);
        assert_eq!(world.endpoints().len(), 1);
        assert_eq!(world.in_use(), 1);
        assert_eq!(world.add(&pod), result);
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn cni_6_a_late_del_spares_the_namespaces_next_container() {
    in_node(|world| {
        let mut pod = Pod::new("8f2c41d09c");
        world.add(&pod);
        world.del(&pod);
        pod.id = "1234567890".to_owned();
        let result = world.add(&pod);
        pod.id = "8f2c41d09c".to_owned();
        world.del(&pod);
        pod.id = "1234567890".to_owned();
        assert_eq!(world.interfaces().len(), 1);
        assert_eq!(world.add(&pod), result);
        world.del(&pod);
        world.assert_clean();
    });
}

/// Standard error that nobody reads, a full disk, and one whose reader has gone.
#[test]
fn who_reads_standard_error_holds_up_no_call() {
    in_node(|world| {
        let (reader, mut unread) = pipe().unwrap();
        // As much as a pipe takes.
        unread.write_all(&[b' '; 64 * 1024]).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (_, left) = pipe().unwrap();
        let streams: [OwnedFd; 3] = [unread.into(), full.into(), left.into()];
        let mut conf = world.conf.clone();
        conf["log_level"] = "debug".into();
        for stream in streams {
            let pod = Pod::new("8f2c41d09c");
            for (verb, in_use) in [("ADD", 1), ("DEL", 0)] {
                let mut command = world.command(verb, "caracal-cni", Some(&pod));
                command.stderr(stream.try_clone().unwrap());
                let answer = run(command, &conf);
                assert!(answer.ok, "{verb}: {answer:#?}");
                assert_eq!(world.in_use(), in_use, "{verb}");
            }
            world.assert_clean();
        }
        drop(reader);
    });
}
