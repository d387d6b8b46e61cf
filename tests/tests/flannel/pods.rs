//! Containers attached by our plugin, which has `bridge` and `host-local` do the work.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use caracal_lab::{program_output, wait_for};
use caracal_tests::{SECOND, binary, possible};
use serde_json::json;

use super::VXLAN;
use super::runtime::{Container, NEEDED, Runtime};
use super::site::{PATIENCE, Site};

/// `code` and `msg` of an error.
fn told(error: &serde_json::Value) -> (u64, &str) {
    (
        error["code"].as_u64().unwrap(),
        error["msg"].as_str().unwrap(),
    )
}

#[test]
fn containers_are_attached_and_nothing_is_left_of_them() {
    let scenario = "containers_are_attached_and_nothing_is_left_of_them";
    if !possible(scenario, &[&NEEDED[..], &["iptables"]].concat()) {
        return;
    }
    // The namespace of the third pod is a second container of node 1.
    let mut site = Site::new(&[1, 2, 3]);
    let runtimes = [
        Runtime::new(&site, 1, "flannel"),
        Runtime::new(&site, 2, "caracal-flannel"),
    ];
    before_the_daemon_is_ready(&site, &runtimes[0]);
    site.configure(VXLAN);
    site.start_node(1, &["--ip-blackhole-route"]);
    site.start_node(2, &["-ip-masq"]);
    let bridges = [1, 2].map(|node| site.bridge_address(node));
    let mut containers = [
        runtimes[0].container(&site, 1),
        runtimes[1].container(&site, 2),
    ];
    let mut addresses = Vec::new();
    for (runtime, container) in runtimes.iter().zip(&mut containers) {
        addresses.push(runtime.add(container).unwrap());
    }
    looks_as_flannel_has_it(&site, &runtimes[0], &containers[0], &bridges[0]);
    let reach_each_other = |site: &Site| {
        site.await_ping(1, &addresses[1], 1450);
        site.await_ping(2, &addresses[0], 1450);
    };
    reach_each_other(&site);
    // Out of the network with the node's address: there `bridge` masquerades, here the daemon.
    site.await_ping(1, "10.200.0.100", 1450);
    site.await_ping(2, "10.200.0.100", 1450);
    // A second ADD takes nothing from the first.
    let error = runtimes[0].add(&mut containers[0].clone()).unwrap_err();
    let (code, message) = told(&error);
    assert_eq!(code, 4, "{message}");
    assert!(
        message.contains("already has an interface eth0"),
        "{message}"
    );
    reach_each_other(&site);
    the_daemon_is_away(&mut site, &runtimes[0], &addresses[1]);
    what_fails_leaves_nothing(&site);
    what_is_left_goes(&site, &runtimes[0]);
    docker_is_told(&site, &bridges[0]);
    reach_each_other(&site);
    for (runtime, container) in runtimes.iter().zip(&containers) {
        runtime.del(container).unwrap();
        runtime.assert_clean(&site, "after DEL");
        runtime.del(container).expect("what is gone is no error");
    }
    for pod in ["p1", "p2", "p3"] {
        let links = site.show(pod, &["link"]).join("\n");
        assert!(!links.contains("eth0"), "{pod}: {links}");
    }
}

fn before_the_daemon_is_ready(site: &Site, runtime: &Runtime) {
    let mut container = runtime.container(site, 1);
    let error = runtime.add(&mut container).unwrap_err();
    let (code, message) = told(&error);
    assert_eq!(code, 11, "try again later: {message}");
    let path = site.subnet_file(1).display().to_string();
    for says in ["the flannel daemon of this node is not ready", &path, "log"] {
        assert!(message.contains(says), "{says}: {message}");
    }
    assert!(
        error["details"].as_str().unwrap().contains("No such file"),
        "{error}"
    );
    runtime.del(&container).unwrap();
    runtime.assert_clean(site, "without subnet.env");
    let links = site.show("n1", &["link"]).join("\n");
    assert!(!links.contains("cni0"), "{links}");
    let mut conf = runtime.configurations(None)[0].clone();
    conf["cniVersion"] = json!("1.1.0");
    let error = runtime.call("STATUS", &conf, None).unwrap_err();
    assert_eq!(told(&error).0, 50, "{error}");
}

fn looks_as_flannel_has_it(site: &Site, runtime: &Runtime, container: &Container, bridge: &str) {
    let result = container.result.as_ref().unwrap();
    assert_eq!(result["cniVersion"], "0.3.1");
    assert_eq!(result["ips"][0]["version"], "4");
    let gateway = bridge.split('/').next().unwrap();
    assert_eq!(result["ips"][0]["gateway"], gateway);
    assert_eq!(result["routes"][0]["dst"], "10.5.0.0/16");
    let interface = site.show("p1", &["link", "show", "eth0"]).join(" ");
    assert!(interface.contains("mtu 1450"), "{interface}");
    let on_bridge = site.show("n1", &["addr", "show", "cni0"]).join(" ");
    assert!(on_bridge.contains(&format!("inet {bridge}")), "{on_bridge}");
    let name = format!("{}:eth0", container.id);
    assert_eq!(runtime.saved(), [name.as_str()]);
    let mode = runtime
        .saved_file(&name)
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600, "for root alone");
    let subnet = super::subnet(bridge);
    let routes = site
        .show("n1", &["route", "show", "type", "blackhole"])
        .join(" ");
    for says in [
        format!("blackhole {subnet}/24 proto 82"),
        "metric 1000000".to_owned(),
    ] {
        assert!(routes.contains(&says), "{says}: {routes}");
    }
}

/// Containers come and go beside a daemon that was killed.
fn the_daemon_is_away(site: &mut Site, runtime: &Runtime, other: &str) {
    site.end("n1", "-KILL");
    let mut container = runtime.container(site, 3);
    let address = runtime.add(&mut container).unwrap();
    site.await_ping(3, other, 1450);
    site.await_ping(2, &address, 1450);
    runtime.del(&container).unwrap();
    assert_eq!(runtime.saved().len(), 1, "the first container's");
    site.start_again(1, &["--ip-blackhole-route"]);
    let taken = || site.log(1).matches("lease: own lease").count();
    wait_for(PATIENCE, "its lease", taken, |n| *n >= 1).unwrap();
}

/// `bridge` has given an address and made a cable when it finds another subnet on its bridge.
fn what_fails_leaves_nothing(site: &Site) {
    let mut runtime = Runtime::new(site, 1, "flannel");
    let other = site.folder().join("other.env");
    let text = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.200.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    std::fs::write(&other, text).unwrap();
    runtime.ours()["subnetFile"] = json!(other);
    let before = (runtime.saved(), runtime.held(), runtime.cables(site));
    let mut container = runtime.container(site, 3);
    let error = runtime.add(&mut container).unwrap_err();
    assert!(told(&error).1.contains("bridge"), "{error}");
    let after = (runtime.saved(), runtime.held(), runtime.cables(site));
    assert_eq!(after, before);
    for (key, value, code, says) in [
        ("subnetFile", json!(site.folder()), 5, "cannot read"),
        (
            "delegate",
            json!({"type": "no-such-plugin"}),
            106,
            "no-such-plugin is not in CNI_PATH",
        ),
        (
            "delegate",
            json!({"ipam": {}}),
            7,
            "\"ipam\" must not be in it",
        ),
    ] {
        let mut runtime = Runtime::new(site, 1, "flannel");
        runtime.ours()[key] = value;
        let error = runtime.add(&mut container).unwrap_err();
        let (seen, message) = told(&error);
        assert!(seen == code && message.contains(says), "{error}");
    }
    let after = (runtime.saved(), runtime.held(), runtime.cables(site));
    assert_eq!(after, before);
}

/// An ADD that was broken off, a file of flannel's own plugin, and a list of the living.
fn what_is_left_goes(site: &Site, runtime: &Runtime) {
    let mut runtime_1 = Runtime::new(site, 1, "flannel");
    runtime_1.list["cniVersion"] = json!("1.0.0");
    // As after a reboot, below, no rule of `bridge` is left either.
    runtime_1.ours()["delegate"]["ipMasq"] = json!(false);
    let mut container = runtime_1.container(site, 3);
    let first = runtime_1.add(&mut container).unwrap();
    runtime_1.check(&container).unwrap();
    // An address is held, and there is no interface.
    site.ip("p3", &["link del eth0".to_owned()]);
    let error = runtime_1.check(&container).unwrap_err();
    assert!(told(&error).1.contains("eth0"), "{error}");
    let second = runtime_1.add(&mut container).unwrap();
    assert_ne!(first, second, "host-local goes on to the next one");
    assert!(!runtime_1.held().contains(&first), "{:?}", runtime_1.held());
    let name = format!("{}:eth0", container.id);
    let flannels = runtime.saved_file(&container.id);
    std::fs::rename(runtime.saved_file(&name), &flannels).unwrap();
    runtime_1.del(&container).unwrap();
    assert!(
        !flannels.exists(),
        "flannel's plugin had no interface in the name"
    );
    assert_eq!(runtime_1.held().len(), 1, "the first container's");
    // The runtime has forgotten a container; the first one of this node it lists.
    let living = runtime.saved().remove(0);
    let living = living.split(':').next().unwrap();
    runtime_1.add(&mut container).unwrap();
    let mut conf = runtime_1.configurations(None)[0].clone();
    conf["cni.dev/valid-attachments"] = json!([{"containerID": living, "ifname": "eth0"}]);
    // Debian's bridge is older than GC: it is asked behind our own part, and says so.
    let answer = runtime_1.call("GC", &conf, None);
    println!("GC: {answer:?}");
    assert_eq!(runtime_1.saved().len(), 1, "the first container's");
    assert_eq!(runtime_1.held().len(), 1, "the first container's");
    // Without a namespace nothing but the address can go; the interface ends with the namespace.
    site.ip("p3", &["link del eth0".to_owned()]);
}

/// Options of Docker's daemon, from a file that the daemon wrote.
fn docker_is_told(site: &Site, bridge: &str) {
    let out = site.folder().join("docker/opts.env");
    let write = |node: &str| {
        let mut command = Command::new(binary());
        command.args(["flannel", "docker-opts", "-c", "-f"]);
        command.arg(site.subnet_file(1)).arg("-d").arg(&out);
        program_output(Some(&site.netns(node)), &mut command, b"", 30 * SECOND).unwrap()
    };
    let output = write("n1");
    assert!(output.status.success(), "{}", output.stderr);
    let expected = format!("DOCKER_OPTS=\" --bip={bridge} --ip-masq=true --mtu=1450\"\n");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), expected);
    // On node 2 the subnet is another machine's.
    std::fs::remove_file(&out).unwrap();
    let output = write("n2");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output.stderr.contains("another machine has this subnet"),
        "{}",
        output.stderr
    );
    assert!(!out.exists());
}
