//! Several attachments of one container, and several calls for one attachment at once.

#![allow(clippy::unwrap_used)]

mod world;

use serde_json::{Value, json};
use world::{Answer, Pod, World, address, host_interface, in_node, sh, wait_for};

const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0";

/// A call of another network for a container, as a runtime makes it for a second attachment.
fn second(world: &World, verb: &str, pod: &Pod, ifname: &str, args: &str) -> Answer {
    let mut conf = world.conf.clone();
    conf["name"] = json!("more");
    let mut command = world.command(verb, "caracal-cni", Some(pod));
    command.env("CNI_IFNAME", ifname).env("CNI_ARGS", args);
    world::run(command, &conf)
}

fn first(world: &World, verb: &str, pod: &Pod, args: &str) -> Answer {
    let mut command = world.command(verb, "caracal-cni", Some(pod));
    command.env("CNI_ARGS", args);
    let answer = world.run(command);
    assert!(answer.ok, "{verb}: {answer:#?}");
    answer
}

/// The answer of a call that may hang.
fn in_time(world: &World, command: std::process::Command, what: &str) -> Answer {
    let (told, heard) = std::sync::mpsc::sync_channel(1);
    let conf = world.conf.clone();
    std::thread::spawn(move || told.send(world::run(command, &conf)));
    wait_for("an answer", || {
        heard.try_recv().map_err(|_| format!("none: {what}"))
    })
}

/// All routes of the container that people or programs made.
fn routes(pod: &Pod) -> Vec<String> {
    let text = pod.sh("ip route show; ip -6 route show");
    let made = |line: &&str| !line.contains("proto kernel");
    text.lines()
        .filter(made)
        .map(|l| l.trim().to_owned())
        .collect()
}

/// The interface by which the container's packets leave.
fn leaves_by(pod: &Pod) -> [String; 2] {
    ["192.0.2.1", "2001:db8::1"].map(|to| {
        let route = pod.sh(&format!("ip route get {to}"));
        let mut words = route.split_whitespace();
        words.find(|word| *word == "dev").unwrap();
        words.next().unwrap().to_owned()
    })
}

/// All of the datastore that attachments change, without what moves by itself.
fn stored(world: &World) -> (Vec<String>, Vec<Value>, usize) {
    (world.handles(), world.endpoints(), world.in_use())
}

#[test]
fn cni_6_a_second_interface_takes_no_route_of_the_first() {
    in_node(|mut world| {
        world.conf["ipam"]["assign_ipv6"] = json!(true);
        sh("ip -6 addr add 2001:db8::1/128 dev lo nodad");
        let pod = Pod::new("8f2c41d09c");
        let result = world.add(&pod);
        // Acts as the agent.
        let host = host_interface(&result);
        sh(&format!("ip route add {} dev {host}", address(&result)));
        let before = (routes(&pod), stored(&world));
        let reached = || {
            pod.sh("ping -c 1 -W 1 192.0.2.1");
        };
        reached();

        let added = second(&world, "ADD", &pod, "net1", "");
        assert!(added.ok, "{added:#?}");
        let now = routes(&pod);
        assert!(
            before.0.iter().all(|route| now.contains(route)),
            "{before:#?}\n{now:#?}"
        );
        assert_eq!(leaves_by(&pod), ["eth0", "eth0"], "{now:#?}");
        reached();
        let again = second(&world, "ADD", &pod, "net1", "");
        assert_eq!(
            (again.json, routes(&pod)),
            (added.json, now),
            "a repeated ADD"
        );
        assert_eq!(world.in_use(), 4);
        let checked = world.call("CHECK", &pod);
        assert!(checked.ok, "{checked:#?}");
        let checked = second(&world, "CHECK", &pod, "net1", "");
        assert!(checked.ok, "{checked:#?}");

        let deleted = second(&world, "DEL", &pod, "net1", "");
        assert!(deleted.ok, "{deleted:#?}");
        assert_eq!((routes(&pod), stored(&world)), before);
        reached();

        let added = second(&world, "ADD", &pod, "net1", "");
        assert!(added.ok, "{added:#?}");
        world.del(&pod);
        assert_eq!(leaves_by(&pod), ["net1", "net1"], "the second one is whole");
        assert!(second(&world, "DEL", &pod, "net1", "").ok);
        world.assert_clean();
    });
}

#[test]
fn cni_6_a_route_of_another_program_stays() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        pod.sh(
            "ip link add br0 type veth peer name br1 && ip link set br0 up && ip link set br1 up",
        );
        pod.sh("ip addr add 10.1.0.2/24 dev br0 && ip route add default via 10.1.0.1");
        let before = routes(&pod);
        let added = world.call_for("ADD", &pod, "net1");
        assert!(added.ok, "{added:#?}");
        let now = routes(&pod);
        assert!(
            before.iter().all(|route| now.contains(route)),
            "{before:#?}\n{now:#?}"
        );
        assert!(world.call_for("DEL", &pod, "net1").ok);
        assert_eq!(routes(&pod), before);
        world.assert_clean();
    });
}

#[test]
fn cni_6_another_network_does_not_take_the_interface() {
    in_node(|world| {
        for args in ["", POD] {
            let pod = Pod::new("8f2c41d09c");
            let result = first(&world, "ADD", &pod, args).json;
            let index = pod.sh("ip -o link show eth0");
            let before = (routes(&pod), stored(&world));
            let untouched = |after: &str| {
                assert_eq!((routes(&pod), stored(&world)), before, "{after}");
                assert_eq!(pod.sh("ip -o link show eth0"), index, "{after}");
                assert_eq!(world.pending_releases(), 0, "{after}");
            };
            let refused = second(&world, "ADD", &pod, "eth0", args);
            assert!(!refused.ok, "{refused:#?}");
            assert_eq!(refused.json["code"], 4, "{refused:#?}");
            let said = refused.json["msg"].as_str().unwrap();
            for part in ["eth0", "pods.8f2c41d09c", "CNI_IFNAME"] {
                assert!(said.contains(part), "{said}");
            }
            untouched("ADD");
            let deleted = second(&world, "DEL", &pod, "eth0", args);
            assert!(deleted.ok, "{deleted:#?}");
            untouched("DEL");
            assert_eq!(first(&world, "ADD", &pod, args).json, result);
            first(&world, "DEL", &pod, args);
            world.assert_clean();
        }
    });
}

#[test]
fn cni_6_without_etcd_the_second_del_leaves_nothing_against_the_first() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        world.add(&pod);
        world.etcd.kill();
        assert!(second(&world, "DEL", &pod, "eth0", "").ok);
        let left = caracal_cni::list_pending_releases(&world.dir.join("lib")).unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].endpoint, None, "the endpoint is the first one's");
    });
}

#[test]
fn on_kubernetes_api_only_the_first_interface_is_attached() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        // Nobody is asked.
        world.conf["datastore_type"] = json!("kubernetes");
        world.conf["kubernetes"] = json!({"k8s_api_root": "http://127.0.0.1:1"});
        world.conf.as_object_mut().unwrap().remove("etcd_endpoints");
        let refused = second(&world, "ADD", &pod, "net1", POD);
        assert!(!refused.ok, "{refused:#?}");
        assert_eq!(refused.json["code"], 4, "{refused:#?}");
        let said = refused.json["msg"].as_str().unwrap();
        for part in ["net1", "default/web-0", "eth0", "etcd"] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(world.interfaces(), Vec::<String>::new());
    });
}

#[test]
fn twenty_adds_of_one_container_at_once_succeed_with_what_stays() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let answers: Vec<Answer> = std::thread::scope(|scope| {
            let call = |_| {
                let command = world.command("ADD", "caracal-cni", Some(&pod));
                scope.spawn(|| world::run(command, &world.conf))
            };
            let calls: Vec<_> = (0..20).map(call).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        let links = [pod.sh("ip -o link show eth0"), world.interfaces().join(" ")];
        for answer in &answers {
            assert!(answer.ok, "{answer:#?}");
            assert_eq!(answer.json, answers[0].json);
        }
        assert_eq!(links[1], host_interface(&answers[0].json));
        assert!(
            pod.sh("ip -o addr show eth0")
                .contains(&address(&answers[0].json))
        );
        assert_eq!((world.in_use(), world.endpoints().len()), (1, 1));
        assert_eq!(world.add(&pod), answers[0].json);
        assert_eq!(pod.sh("ip -o link show eth0"), links[0]);
        world.del(&pod);
        world.assert_clean();
    });
}

#[test]
fn what_is_no_namespace_is_refused_at_once() {
    in_node(|world| {
        let pod = Pod::new("8f2c41d09c");
        let fifo = world.dir.join("fifo");
        sh(&format!("mkfifo {}", fifo.display()));
        for path in [
            fifo,
            "/dev/zero".into(),
            "/tmp".into(),
            "/proc/self/ns/mnt".into(),
        ] {
            let mut command = world.command("ADD", "caracal-cni", Some(&pod));
            command.env("CNI_NETNS", &path);
            let answer = in_time(&world, command, &path.display().to_string());
            assert_eq!(answer.json["code"], 3, "{path:?}: {answer:#?}");
        }
        world.assert_clean();
    });
}

/// A call of a plugin whose mask takes everything from others.
fn masked(world: &World, verb: &str, pod: &Pod) -> Answer {
    let program = world.plugins.join("caracal-cni");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\""]).arg(program);
    let plain = world.command(verb, "caracal-cni", Some(pod));
    command.env_clear().stdin(std::process::Stdio::piped());
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap());
    }
    world::run(command, &world.conf)
}

#[test]
fn modes_of_files_do_not_follow_the_mask() {
    in_node(|mut world| {
        let pod = Pod::new("8f2c41d09c");
        assert!(masked(&world, "ADD", &pod).ok);
        world.etcd.kill();
        assert!(masked(&world, "DEL", &pod).ok);
        let modes = sh(&format!(
            "cd {} && find run lib -printf \"%p %m\\n\" | sort",
            world.dir.display()
        ));
        let modes: Vec<_> = modes.lines().collect();
        let expected = [
            "lib 755",
            "lib/cni-tombstones 755",
            "lib/cni-tombstones/pods.8f2c41d09c.json 644",
            "run 755",
            "run/ipam.lock 644",
        ];
        assert_eq!(modes, expected);
    });
}

#[test]
fn files_that_would_never_end_do_not_hold_a_call_up() {
    in_node(|mut world| {
        world.conf.as_object_mut().unwrap().remove("mtu");
        let pod = Pod::new("8f2c41d09c");
        for (folder, name) in [
            ("lib", "mtu"),
            ("run", "no-addresses"),
            ("run", "ipam.lock"),
        ] {
            let folder = world.dir.join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join(name);
            sh(&format!("rm -f {0} && mkfifo {0}", path.display()));
            let command = world.command("ADD", "caracal-cni", Some(&pod));
            let answer = in_time(&world, command, name);
            assert!(answer.ok, "{name}: {answer:#?}");
            let command = world.command("DEL", "caracal-cni", Some(&pod));
            assert!(in_time(&world, command, name).ok, "{name}");
            std::fs::remove_file(path).unwrap();
        }
        world.assert_clean();
    });
}
