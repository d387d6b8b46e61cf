//! Real runtimes from Debian on Caracal: podman with a root file system, and containerd through
//! `ctr`, each on a node of its own. Their containers get addresses, reach one another, publish a
//! port, and leave nothing behind.
//!
//! A runtime runs in the network namespace of a node, in mount and process namespaces of its own,
//! where `/run`, `/var` and `/opt` are empty: the machine's containers are not seen, and everything
//! ends with the first process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use caracal_datastore::Store;
use caracal_lab::{
    Lab, RouteKind, call_program, error_chain, find_program, network_config, run_in_netns,
    spawn_in_netns, wait_until,
};
use caracal_model::{Family, KeyRange, Kind, kind_prefix};
use caracal_tests::{
    SECOND, address_of, assert_gone, await_settled, caracals, either, logs, on_each_stack_of,
    with_ipam,
};
use serde_json::{Value, json};

const TOPOLOGY: &str = "
name: runtimes
description: a node for podman and a node for containerd
pool:
  cidr: 10.244.0.0/24
  blockSize: 29
segments:
  - name: lan
    cidr: 10.0.0.0/24
nodes:
  - {name: node1, segment: lan, address: 10.0.0.1, pods: 1}
  - {name: node2, segment: lan, address: 10.0.0.2, pods: 1}
";

/// Where Debian has the plugins of the CNI project.
const PLUGINS: &str = "/usr/lib/cni";

/// The first process of a runtime's namespaces. `$1` the lab's folder, `$2` the runtime's.
const FIRST_PROCESS: &str = r#"
set -e
mount --bind "$1" /mnt
# Podman's locks are in shared memory, by one name for all.
for folder in /run /var /opt /dev/shm; do mount -t tmpfs tmpfs $folder; done
mkdir -p "$1" /run/lock /run/netns /var/tmp /var/lib /var/log /opt/cni/bin
mount --bind /mnt "$1"
umount /mnt
mount --bind "$2/net.d" /etc/cni/net.d
mount --bind "$2/bin" /opt/cni/bin
# crun takes either version of control groups, but no mixture.
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
touch "$2/ready"
while :; do sleep 1000; done
"#;

/// A place for a runtime on a node. All of its processes end with it.
struct Place {
    folder: PathBuf,
    netns: String,
    child: Child,
    first: String,
}

impl Place {
    fn new(lab: &Lab, node: &str) -> Self {
        let folder = lab.folder().path().join(format!("runtime-{node}"));
        for part in ["net.d", "bin", "rootfs/bin"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        for part in ["proc", "sys", "dev", "etc", "tmp", "run"] {
            fs::create_dir_all(folder.join("rootfs").join(part)).unwrap();
        }
        fill(lab, &folder, &network(lab, node));
        let netns = lab.netns(node).unwrap();
        let log = fs::File::create(folder.join("first.log")).unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "--pid", "--fork"])
            .args([
                "--kill-child",
                "--mount-proc",
                "sh",
                "-c",
                FIRST_PROCESS,
                "sh",
            ])
            .arg(lab.folder().path())
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let child = spawn_in_netns(&netns, &mut command).unwrap();
        let ready = || match folder.join("ready").exists() {
            true => Ok(()),
            false => Err(fs::read_to_string(folder.join("first.log")).unwrap()),
        };
        wait_until(60 * SECOND, "the runtime's namespaces", ready).unwrap();
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let first = fs::read_to_string(children).unwrap().trim().to_owned();
        Self {
            folder,
            netns,
            child,
            first,
        }
    }

    /// A command inside.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.first, "--mount", "--pid", "--"])
            .args(arguments)
            .env("CONTAINERS_CONF", self.folder.join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", self.folder.join("storage.conf"));
        command
    }

    fn call(&self, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        call_program(Some(&self.netns), &mut command, b"", 60 * SECOND)
            .unwrap_or_else(|e| panic!("{}\n{}", error_chain(&e), self.log()))
    }

    /// Starts a command that stays.
    fn start(&self, arguments: &[&str], log: &str) -> Child {
        let log = fs::File::create(self.folder.join(log)).unwrap();
        let mut command = self.command(arguments);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        spawn_in_netns(&self.netns, &mut command).unwrap()
    }

    /// Log of the plugin and the runtime.
    fn log(&self) -> String {
        ["cni.log", "containerd.log", "run.log"]
            .map(|name| fs::read_to_string(self.folder.join(name)).unwrap_or_default())
            .join("\n")
    }

    /// The verbs that the plugin has served.
    fn served(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("cni.log")).unwrap_or_default();
        let done = text.lines().filter(|line| line.contains(" done "));
        let verb = |line: &str| line.split('"').nth(1).map(str::to_owned);
        done.filter_map(verb).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The first process goes with it, and with that one all others of its namespace.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The chain of plugins: ours, then ports and rates by Debian's.
fn network(lab: &Lab, node: &str) -> Value {
    let layout = lab.layout().node(node).unwrap();
    let folder = lab.folder();
    let mut ours = network_config(layout);
    for part in ["cniVersion", "name"] {
        ours.as_object_mut().unwrap().remove(part);
    }
    ours["run_dir"] = json!(folder.run(node));
    ours["lib_dir"] = json!(folder.lib(node));
    let log = folder.path().join(format!("runtime-{node}/cni.log"));
    ours["log_file_path"] = json!(log);
    ours["mtu"] = json!(1400);
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        ours,
        {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "ingressRate": 800_000_000, "ingressBurst": 80_000_000},
    ]})
}

/// Root file system, plugins, and the configuration of both runtimes.
fn fill(lab: &Lab, folder: &Path, network: &Value) {
    let rootfs = folder.join("rootfs/bin");
    fs::copy(find_program("busybox").unwrap(), rootfs.join("busybox")).unwrap();
    for name in ["sleep", "ping", "ip", "httpd"] {
        symlink("busybox", rootfs.join(name)).unwrap();
    }
    for name in ["portmap", "bandwidth", "loopback"] {
        fs::copy(Path::new(PLUGINS).join(name), folder.join("bin").join(name)).unwrap();
    }
    symlink(
        lab.folder().bin().join("caracal"),
        folder.join("bin/caracal-cni"),
    )
    .unwrap();
    let write = |name: &str, text: String| fs::write(folder.join(name), text).unwrap();
    write("net.d/10-pods.conflist", network.to_string());
    let path = folder.display();
    write(
        "containers.conf",
        format!(
            "[network]\nnetwork_backend=\"cni\"\ncni_plugin_dirs=[\"{path}/bin\"]\n\
             network_config_dir=\"{path}/net.d\"\ndefault_network=\"pods\"\n\
             [engine]\nruntime=\"crun\"\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"none\"\n\
             static_dir=\"{path}/libpod\"\ntmp_dir=\"{path}/libpod-run\"\nvolume_path=\"{path}/volumes\"\n"
        ),
    );
    write(
        "storage.conf",
        format!(
            "[storage]\ndriver=\"vfs\"\ngraphroot=\"{path}/podman\"\nrunroot=\"{path}/podman-run\"\n"
        ),
    );
    write(
        "containerd.toml",
        format!(
            "version = 2\nroot = \"{path}/containerd\"\nstate = \"{path}/containerd-run\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.snapshotter.v1.btrfs\", \
             \"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.zfs\", \
             \"io.containerd.snapshotter.v1.devmapper\"]\n[grpc]\naddress = \"{path}/containerd.sock\"\n"
        ),
    );
}

/// Traces of attachments on nodes and in the datastore, a line each.
fn traces(lab: &Lab) -> BTreeSet<String> {
    let mut traces = BTreeSet::new();
    for node in caracals(lab) {
        let local = RouteKind::Local;
        let routes = lab.routes(&node).unwrap().into_iter();
        let local = routes.filter(|r| r.classify(&[]) == local);
        traces.extend(local.map(|r| format!("{node}: route {}", r.dst)));
        let links = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let links = run_in_netns(&lab.netns(&node).unwrap(), links).unwrap();
        let names = links.lines().filter_map(|l| l.trim().split(':').next());
        let cali = names.filter(|name| name.starts_with("cali"));
        traces.extend(cali.map(|name| format!("{node}: interface {name}")));
    }
    let (view, endpoints) = with_ipam(lab, async |client, store| {
        let endpoints = KeyRange::Prefix(kind_prefix(Kind::WorkloadEndpoint));
        let endpoints = store.read(&[endpoints]).await.unwrap().ranges.remove(0);
        (client.view().await.unwrap(), endpoints)
    });
    traces.extend(endpoints.into_iter().map(|e| e.key));
    traces.extend(view.handles.keys().map(|h| format!("handle {h}")));
    let held: usize = view.blocks.values().map(|b| b.value.in_use()).sum();
    traces.insert(format!("{held} addresses in use"));
    traces
}

/// The addresses of `eth0` in what `ip` printed, in the order of families.
fn addresses_in(text: &str, families: &BTreeSet<Family>) -> Vec<String> {
    let address = |family: &Family| {
        let (word, suffix) = either(*family, ("inet", "/32"), ("inet6", "/128"));
        let mut words = text.split_whitespace();
        let next = || words.find(|w| *w == word).and_then(|_| words.next());
        let mut global = std::iter::from_fn(next).filter(|a| !a.starts_with("fe80"));
        let address = global.next();
        let address = address.unwrap_or_else(|| panic!("no {word} in {text}"));
        let host = address.strip_suffix(suffix);
        host.unwrap_or_else(|| panic!("{address} is no host's"))
            .to_owned()
    };
    families.iter().map(address).collect()
}

/// Addresses that the web server asks for.
fn web(families: &BTreeSet<Family>) -> Vec<String> {
    let wish = |f: &Family| either(*f, "10.244.0.200", "fd00:10:244::c8").to_owned();
    families.iter().map(wish).collect()
}

/// podman: a container that serves, with addresses and a MAC of its own choice and a published
/// port.
fn podman_runs(place: &Place, families: &BTreeSet<Family>) {
    let rootfs = place.folder.join("rootfs");
    let rootfs = rootfs.to_str().unwrap();
    fs::write(place.folder.join("rootfs/etc/hello"), "hello from podman").unwrap();
    let wishes = web(families);
    let mut words = vec!["podman", "run", "--detach", "--name", "web"];
    words.extend(["--cgroups=disabled", "--network", "pods"]);
    for (family, address) in families.iter().zip(&wishes) {
        words.extend([either(*family, "--ip", "--ip6"), address]);
    }
    words.extend(["--mac-address", "02:00:00:00:00:55"]);
    words.extend(["--publish", "8080:80", "--rootfs", rootfs]);
    words.extend(["httpd", "-f", "-p", "80", "-h", "/etc"]);
    place.call(&words);
    let shown = place.call(&["podman", "exec", "web", "ip", "addr", "show", "eth0"]);
    assert_eq!(addresses_in(&shown, families), wishes, "{shown}");
    assert!(shown.contains("02:00:00:00:00:55"), "{shown}");
    assert!(shown.contains("mtu 1400"), "{shown}");
}

/// containerd: a container that sleeps; `ctr` stays until it ends, and detaches it then.
fn containerd_runs(place: &Place, families: &BTreeSet<Family>) -> (Child, Vec<String>) {
    let ready = || {
        let mut command = place.command(&["ctr", "--address", &socket(place), "version"]);
        call_program(Some(&place.netns), &mut command, b"", 60 * SECOND)
            .map_err(|e| format!("{}\n{}", error_chain(&e), place.log()))
    };
    wait_until(60 * SECOND, "containerd", ready).unwrap();
    let rootfs = place.folder.join("rootfs");
    let ctr = place.start(
        &[
            "ctr",
            "--address",
            &socket(place),
            "run",
            "--rm",
            "--cni",
            "--cgroup",
            "",
            "--rootfs",
            rootfs.to_str().unwrap(),
            "batch",
            "/bin/sleep",
            "1000",
        ],
        "run.log",
    );
    // The container is started when its network is complete, and not before.
    let running = || {
        let mut command = ctr_command(place, &["task", "list"]);
        let tasks = call_program(Some(&place.netns), &mut command, b"", 60 * SECOND)
            .map_err(|e| error_chain(&e))?;
        let task = tasks.lines().find(|line| line.starts_with("batch "));
        match task.is_some_and(|line| line.contains("RUNNING")) {
            true => Ok(()),
            false => Err(format!("{tasks}\n{}", place.log())),
        }
    };
    wait_until(60 * SECOND, "the container", running).unwrap_or_else(|e| panic!("{e}"));
    let look = [
        "task",
        "exec",
        "--exec-id",
        "look",
        "batch",
        "/bin/ip",
        "addr",
        "show",
        "eth0",
    ];
    let mut command = ctr_command(place, &look);
    let shown = call_program(Some(&place.netns), &mut command, b"", 60 * SECOND);
    let shown = shown.unwrap_or_else(|e| panic!("{}\n{}", error_chain(&e), place.log()));
    assert!(shown.contains("mtu 1400"), "{shown}");
    (ctr, addresses_in(&shown, families))
}

fn socket(place: &Place) -> String {
    place.folder.join("containerd.sock").display().to_string()
}

fn ctr_command(place: &Place, arguments: &[&str]) -> Command {
    let socket = socket(place);
    let mut all = vec!["ctr", "--address", &socket];
    all.extend(arguments);
    place.command(&all)
}

/// Answer of the container's web server.
fn fetch(server: SocketAddr) -> String {
    let mut stream = TcpStream::connect_timeout(&server, 60 * SECOND).unwrap();
    stream.set_read_timeout(Some(60 * SECOND)).unwrap();
    stream.write_all(b"GET /hello HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn podman_and_containerd_run_their_containers_on_caracal() {
    let programs = [
        "podman",
        "containerd",
        "ctr",
        "runc",
        "crun",
        "busybox",
        "nsenter",
        "unshare",
    ];
    let scenario = "podman_and_containerd_run_their_containers_on_caracal";
    on_each_stack_of(scenario, &programs, TOPOLOGY, "e2e-runtimes", containers);
}

fn containers(lab: Lab) {
    await_settled(&lab);
    let before = traces(&lab);
    let (one, two) = (Place::new(&lab, "node1"), Place::new(&lab, "node2"));

    let families: BTreeSet<Family> = lab.topology().families().into_iter().collect();
    podman_runs(&one, &families);
    let config = two.folder.join("containerd.toml");
    let config = config.to_str().unwrap().to_owned();
    let mut containerd = two.start(&["containerd", "--config", &config], "containerd.log");
    let (mut ctr, batch) = containerd_runs(&two, &families);
    let web = web(&families);
    println!("podman's container has {web:?}, containerd's {batch:?}");
    let during = traces(&lab);
    // Of each container an interface, an endpoint, a handle and a route of each family, and the
    // count of addresses.
    let new = 2 * (3 + families.len()) + 1;
    assert_eq!(during.difference(&before).count(), new, "{during:#?}");

    // Across nodes: container to container, both ways, and to and from pods of the lab.
    let pod = |f: &Family| lab.state().pods[0].address_of(*f).unwrap().to_string();
    let pods: Vec<String> = families.iter().map(pod).collect();
    // The web server's block is as new as itself: the other node may hear of it a moment later than
    // ADD waits.
    let mut pings = 0;
    let mut answered = |place: &Place, command: &dyn Fn(&str) -> Command| {
        wait_until(60 * SECOND, "an answer", || {
            pings += 1;
            let mut ping = command(&format!("ping{pings}"));
            call_program(Some(&place.netns), &mut ping, b"", 60 * SECOND)
                .map_err(|e| error_chain(&e))
        })
        .unwrap_or_else(|e| panic!("{e}\n{}", logs(lab.name())));
    };
    for target in batch.iter().chain(&pods) {
        answered(&one, &|_| {
            let words = [
                "podman", "exec", "web", "ping", "-c", "1", "-W", "5", target,
            ];
            one.command(&words)
        });
    }
    for target in web.iter().chain(&pods) {
        answered(&two, &|id| {
            let words = ["batch", "/bin/ping", "-c", "1", "-W", "5", target];
            ctr_command(
                &two,
                &[&["task", "exec", "--exec-id", id], &words[..]].concat(),
            )
        });
    }
    // The port that podman publishes, from the other node: `portmap` has found our address.
    for family in &families {
        let published = SocketAddr::new(address_of(&lab, "node1", *family), 8080);
        let page = run_in_netns(&two.netns, || fetch(published)).unwrap();
        assert!(page.ends_with("hello from podman"), "{page}");
    }

    one.call(&["podman", "rm", "--force", "--time", "0", "web"]);
    let kill = ["task", "kill", "--signal", "SIGKILL", "batch"];
    call_program(
        Some(&two.netns),
        &mut ctr_command(&two, &kill),
        b"",
        60 * SECOND,
    )
    .unwrap();
    let ended = || match ctr.try_wait().unwrap() {
        Some(_) => Ok(()),
        None => Err(two.log()),
    };
    wait_until(60 * SECOND, "the end of ctr", ended).unwrap();
    let clean = || {
        let after = traces(&lab);
        match after == before {
            true => Ok(()),
            false => Err(format!("{:#?}", after.symmetric_difference(&before))),
        }
    };
    wait_until(60 * SECOND, "the state before", clean)
        .unwrap_or_else(|e| panic!("{e}\n{}\n{}", one.log(), two.log()));
    for place in [&one, &two] {
        assert_eq!(place.served(), ["ADD", "DEL"], "{}", place.log());
    }
    let findings = with_ipam(&lab, async |client, _| client.check().await.unwrap());
    assert_eq!(findings, []);
    drop((one, two));
    containerd.wait().unwrap();
    let name = lab.name().clone();
    lab.down().unwrap();
    assert_gone(&name);
}
