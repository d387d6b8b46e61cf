//! `caracal node` in a container as the DaemonSet's: three capabilities, a read-only root, no new
//! privileges, `/proc/sys` read-only but for the mount of the host's network sysctls; run by
//! `crun`, in the network namespace of a lab's node. And the init container, which has no
//! capability at all. What runs is the image that ships, with the static program.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "container/materials.rs"]
mod materials;
#[path = "container/package.rs"]
mod package;

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use caracal_lab::{
    Lab, RunningProcess as Running, call_program, netns_sysctl, program_command, run_in_netns,
    wait_until,
};
use caracal_tests::{
    Mount, Probes, SECOND, assert_full_matrix, await_settled, await_status, crun, is_static_built,
    possible, static_binary, up, with_one_cgroup_version, write_bundle,
};
use serde_json::Value;

/// The most that the static program may have, in octets (decision 0042).
const MOST: u64 = 15_000_000;

/// The container of a name in the DaemonSet of `deploy/base`.
fn manifest(list: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/daemonset.yaml");
    let text = fs::read_to_string(path).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    documents[0]["spec"]["template"]["spec"][list][0].clone()
}

/// The image that `deploy/image/build` makes of the static program, in a storage of its own. A
/// plain user builds it, exports it and runs it, without ranges of subordinate identifiers: podman
/// is rootless.
struct Image {
    dir: PathBuf,
}

const TAG: &str = "localhost/caracal:test";
/// `nobody`, as user and group.
const PLAIN_USER: u32 = 65534;

impl Image {
    fn build(name: &str) -> Self {
        let dir = format!("caracal-image-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"{0}/graph\"\nrunroot = \"{0}/run\"\n\
             [storage.options]\nignore_chown_errors = \"true\"\n",
            dir.display()
        );
        // A plain user's podman looks for them nowhere else.
        let settings = dir.join(".config/containers");
        fs::create_dir_all(&settings).unwrap();
        fs::write(settings.join("storage.conf"), storage).unwrap();
        // Locks in shared memory would be those of every podman of the machine.
        let locks = "[engine]\nlock_type = \"file\"\n";
        fs::write(settings.join("containers.conf"), locks).unwrap();
        fs::create_dir(dir.join("runtime")).unwrap();
        for path in ["", "runtime", ".config", ".config/containers"] {
            let owner = Some(PLAIN_USER);
            std::os::unix::fs::chown(dir.join(path), owner, owner).unwrap();
        }
        let image = Self { dir };
        let build = root.join("deploy/image/build");
        let mut build = image.as_plain_user(build.to_str().unwrap());
        build.arg("--program").arg(static_binary()).arg(TAG);
        let said = call_program(None, &mut build, b"", 120 * SECOND).unwrap();
        assert!(said.contains("Successfully tagged"), "{said}");
        let rootless = image.podman(&["info", "--format", "{{.Host.Security.Rootless}}"]);
        assert_eq!(rootless.trim(), "true");
        image
    }

    /// A command of the plain user, with its storage and its locks.
    fn as_plain_user(&self, program: &str) -> Command {
        let mut command = with_one_cgroup_version("setpriv");
        let user = PLAIN_USER.to_string();
        command.args([
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            program,
        ]);
        command.env("HOME", &self.dir);
        command.env("XDG_RUNTIME_DIR", self.dir.join("runtime"));
        command.current_dir(&self.dir);
        command
    }

    fn podman(&self, arguments: &[&str]) -> String {
        let mut command = self.as_plain_user("podman");
        command.args(arguments);
        call_program(None, &mut command, b"", 120 * SECOND).unwrap()
    }

    /// Content of the image, as a root file system with the directories that a runtime makes for
    /// its mounts.
    fn unpack(&self, to: &Path) {
        let archive = self.dir.join("root.tar");
        let id = self.podman(&["create", "--network", "none", TAG]);
        self.podman(&["export", "-o", archive.to_str().unwrap(), id.trim()]);
        for folder in ["proc", "dev", "var/lib/calico", "var/run/caracal", "etc"] {
            fs::create_dir_all(to.join(folder)).unwrap();
        }
        let mut tar = program_command("tar").unwrap();
        tar.arg("-xf").arg(&archive).arg("-C").arg(to);
        call_program(None, &mut tar, b"", 60 * SECOND).unwrap();
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // The process that holds the user's namespaces.
        let _ended = self
            .as_plain_user("podman")
            .args(["system", "migrate"])
            .output();
        // A gigabyte after a few runs otherwise.
        let _removed = fs::remove_dir_all(&self.dir);
    }
}

/// Answers DNS queries in a namespace, on the loopback address: each name has one IPv4 address.
fn name_server(namespace: &str, address: Ipv4Addr) {
    let socket = run_in_netns(namespace, || UdpSocket::bind("127.0.0.1:53"));
    let socket = socket.unwrap().unwrap();
    // It ends with the test program.
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let query = &buffer[..len];
            // Header, name, type and class.
            let end = 12 + query[12..].iter().position(|b| *b == 0).unwrap() + 5;
            let is_a = query[end - 4..end - 2] == [0, 1];
            let mut answer = query[..end].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            if is_a {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(address.octets());
            }
            let _sent = socket.send_to(&answer, from);
        }
    });
}

fn sysctl(lab: &Lab, node: &str, key: &str) -> String {
    let read = || fs::read_to_string(Path::new("/proc/sys").join(key));
    let text = run_in_netns(&lab.netns(node).unwrap(), read)
        .unwrap()
        .unwrap();
    text.trim().to_owned()
}

#[test]
fn the_image_runs() {
    let scenario = "the_image_runs";
    if !possible(scenario, &["podman", "crun", "nft", "setpriv", "tar"])
        || !is_static_built(scenario)
    {
        return;
    }
    let image = Image::build("alone");
    let run = [
        "run",
        "--rm",
        "--network",
        "none",
        "--cgroups=disabled",
        "--read-only",
    ];
    let version = image.podman(&[&run[..], &[TAG, "--version"]].concat());
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    let label = r#"{{index .Labels "org.opencontainers.image.version"}}"#;
    let label = image.podman(&["image", "inspect", "--format", label, TAG]);
    assert_eq!(label.trim(), env!("CARGO_PKG_VERSION"));
    let nft = [
        &run[..],
        &["--entrypoint", "/usr/sbin/nft", TAG, "--version"],
    ]
    .concat();
    assert!(image.podman(&nft).contains("nftables"));
    for plugin in ["bandwidth", "host-local", "loopback", "portmap", "tuning"] {
        let program = format!("/cni-plugins/{plugin}");
        let asked = ["-e", "CNI_COMMAND=VERSION", "--entrypoint", &program, TAG];
        let said = image.podman(&[&run[..], &asked].concat());
        assert!(said.contains("supportedVersions"), "{plugin}: {said}");
    }
    // A name out of /etc/hosts is found before the name server is asked, of which there is none
    // here.
    let ask = ["--add-host", "etcd.caracal.example:127.0.0.1", "-e"];
    let ask = [
        &ask[..],
        &[
            "ETCD_ENDPOINTS=http://etcd.caracal.example:1",
            TAG,
            "ipam",
            "show",
        ],
    ];
    let mut command = image.as_plain_user("podman");
    command.args(run).args(ask.concat());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("refused"),
        "{said}"
    );
}

#[test]
fn the_static_program_is_small() {
    let scenario = "the_static_program_is_small";
    if !is_static_built(scenario) {
        return;
    }
    let size = fs::metadata(static_binary()).unwrap().len();
    assert!(
        size <= MOST,
        "{size} octets, at most {MOST}: docs/decisions/0042 says how to see what takes the space"
    );
}

#[test]
fn the_static_program_has_both_datastores_and_no_labs() {
    if !is_static_built("the_static_program_has_both_datastores_and_no_labs") {
        return;
    }
    let said = |arguments: &[&str]| {
        let output = Command::new(static_binary())
            .args(arguments)
            .env("DATASTORE_TYPE", "kubernetes")
            .env("KUBECONFIG", "/nonexistent/kubeconfig")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let get = said(&["get", "nodes"]);
    assert!(get.contains("/nonexistent/kubeconfig"), "{get}");
    for labs in [&["lab", "list"][..], &["trace", "node1/p1", "node2/p1"]] {
        let lab = said(labs);
        assert!(lab.contains("built without labs"), "{lab}");
    }
}

/// The program has no tables for unwinding (decision 0042). An error looks for a backtrace where
/// one is asked for, and is told all the same.
#[test]
fn an_error_is_told_when_backtraces_are_asked_for() {
    if !is_static_built("an_error_is_told_when_backtraces_are_asked_for") {
        return;
    }
    let output = Command::new(static_binary())
        .arg("status")
        .env("CARACAL_RUN_DIR", "/nonexistent")
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("/nonexistent"), "{text}");
}

#[test]
fn a_node_runs_with_the_rights_of_the_manifest() {
    if !possible(
        "a_node_runs_with_the_rights_of_the_manifest",
        &["podman", "crun", "nft", "setpriv", "tar"],
    ) || !is_static_built("a_node_runs_with_the_rights_of_the_manifest")
    {
        return;
    }
    let mut lab = up("full-mesh", "e2e-container");
    await_settled(&lab);
    let probes = Probes::start(&lab, &[("node1/p1", "node2/p1"), ("node2/p1", "node1/p1")]);
    probes.after(300);
    lab.stop_node("node1").unwrap();

    let layout = lab.layout().node("node1").unwrap().clone();
    let dir = lab.folder().run("node1").join("container");
    fs::create_dir_all(&dir).unwrap();
    let image = Image::build("node");
    image.unpack(&dir.join("rootfs"));
    fs::create_dir_all(dir.join("rootfs/host/proc/sys/net")).unwrap();
    let mut env: Vec<String> = layout.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    env.push("PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    // By its name, which a static program has to find without the libraries that a distribution has
    // for it.
    let endpoints = env.iter_mut().find(|e| e.starts_with("ETCD_ENDPOINTS="));
    let endpoints = endpoints.expect("etcd's address");
    let (address, port) = endpoints
        .rsplit_once("://")
        .unwrap()
        .1
        .split_once(':')
        .unwrap();
    name_server(&layout.netns, address.parse().unwrap());
    *endpoints = format!("ETCD_ENDPOINTS=http://etcd.caracal.example:{port}");
    fs::write(dir.join("rootfs/etc/resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    let binds = [
        Mount::writable(&lab.folder().lib("node1"), "/var/lib/calico"),
        Mount::writable(&lab.folder().run("node1"), "/var/run/caracal"),
        Mount::writable(Path::new("/proc/sys/net"), "/host/proc/sys/net"),
    ];
    let netns_path = caracal_lab::netns_path(&layout.netns);
    write_bundle(&dir, &manifest("containers"), &netns_path, &env, &binds);
    // A setting that the node has to write again: through the mount, as its own /proc/sys is
    // read-only.
    let cali = format!("net/ipv4/conf/{}/proxy_arp", workload(&lab));
    netns_sysctl(&layout.netns, &cali, "0", false).unwrap();
    let log = lab.folder().log("node1-container");
    let mut running =
        Running::start(&layout.netns, &mut crun(&dir, "caracal-e2e-node"), &log).unwrap();
    let said = || lab.folder().log_tail("node1-container", 60);
    wait_until(
        60 * SECOND,
        "the sysctls of a workload's interface",
        || match sysctl(&lab, "node1", &cali).as_str() {
            "1" => Ok(()),
            other => Err(format!("{cali} = {other}; {:?}", running.ended())),
        },
    )
    .unwrap_or_else(|e| panic!("{e}\n{}", said()));
    await_settled(&lab);
    await_status(
        &lab,
        "node1",
        60 * SECOND,
        "no problem, NAT by nft",
        |s| match s.problems.is_empty() && s.kernel.nat == "nft" {
            true => Ok(()),
            false => Err(format!("{:?} {:?}\n{}", s.problems, s.kernel, said())),
        },
    );
    probes.after(500);
    probes.assert_none_lost("a node goes on in a container without privileges");
    assert_full_matrix(&lab);
    let _ended = running.stop(60 * SECOND);

    install(&lab, &dir, &netns_path);
}

/// The first interface of a workload on node1.
fn workload(lab: &Lab) -> String {
    let routes = lab.routes("node1").unwrap();
    let mut devices = routes.into_iter().filter_map(|route| route.dev);
    devices
        .find(|dev| dev.starts_with("cali"))
        .expect("a pod on node1")
}

/// The init container, with other directories of the host.
fn install(lab: &Lab, dir: &Path, netns: &Path) {
    let (bin, net) = (dir.join("bin"), dir.join("net.d"));
    for (path, inside) in [(&bin, "host/opt/cni/bin"), (&net, "host/etc/cni/net.d")] {
        fs::create_dir_all(path).unwrap();
        fs::create_dir_all(dir.join("rootfs").join(inside)).unwrap();
    }
    let env = [
        "ETCD_ENDPOINTS=http://10.0.0.5:2379".to_owned(),
        "CNI_CONF_NAME=10-caracal.conflist".to_owned(),
    ];
    let binds = [
        Mount::writable(&bin, "/host/opt/cni/bin"),
        Mount::writable(&net, "/host/etc/cni/net.d"),
    ];
    write_bundle(dir, &manifest("initContainers"), netns, &env, &binds);
    let mut command = crun(dir, "caracal-e2e-install");
    let node = lab.netns("node1").unwrap();
    let said = call_program(Some(&node), &mut command, b"", 60 * SECOND).unwrap();
    assert!(
        said.contains("/host/etc/cni/net.d/10-caracal.conflist"),
        "{said}"
    );
    let names = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|e| e.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    // The standard plugins of the image are there as well: this host had none.
    let installed = [
        "bandwidth",
        "caracal-cni",
        "caracal-ipam",
        "host-local",
        "loopback",
        "portmap",
        "tuning",
    ];
    assert_eq!(names(&bin), installed);
    assert_eq!(names(&net), ["10-caracal.conflist"]);
    // The installed program is a plugin.
    let mut plugin = Command::new(bin.join("caracal-cni"));
    plugin.env_clear().env("CNI_COMMAND", "VERSION");
    let version = call_program(
        None,
        &mut plugin,
        b"{\"cniVersion\":\"1.0.0\"}",
        60 * SECOND,
    )
    .unwrap();
    assert!(version.contains("supportedVersions"), "{version}");
}
