//! `caracal node` in a container as the DaemonSet's: three capabilities, a read-only root, no new privileges, `/proc/sys`
//! read-only but for the mount of the host's network sysctls; run by `crun`, in the network namespace of a lab's node.
//! And the init container, which has no capability at all.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use caracal_lab::process::Running;
use caracal_lab::{Lab, netns, program, wait_until};
use caracal_tests::loss::Probes;
use caracal_tests::{
    SECOND, assert_full_matrix, await_settled, await_status, binary, possible, up,
};
use serde_json::{Value, json};

/// The container of a name in the DaemonSet of `deploy/base`.
fn manifest(list: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base/daemonset.yaml");
    let text = fs::read_to_string(path).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    documents[0]["spec"]["template"]["spec"][list][0].clone()
}

/// The program, nft, and the libraries that they need, as in the image but for the program's being static there.
fn root_of_image(dir: &Path) {
    for folder in [
        "proc",
        "dev",
        "tmp",
        "usr/sbin",
        "var/lib/calico",
        "var/run/caracal",
    ] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    let nft = program::find("nft").unwrap();
    for (program, name) in [(binary(), "caracal"), (nft, "usr/sbin/nft")] {
        fs::copy(&program, dir.join(name)).unwrap();
        let mut ldd = Command::new("ldd");
        ldd.arg(&program);
        let text = program::call(None, &mut ldd, b"", 60 * SECOND).unwrap();
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            let to = dir.join(&library[1..]);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(library, to).unwrap();
        }
    }
}

/// A bundle for an OCI runtime with the rights that the manifest gives a container.
fn bundle(dir: &Path, container: &Value, netns: &Path, env: &[String], binds: &[(PathBuf, &str)]) {
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    let added = security["capabilities"]["add"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let capabilities: Vec<String> = added
        .iter()
        .map(|name| format!("CAP_{}", name.as_str().unwrap()))
        .collect();
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}),
    ];
    mounts.extend(binds.iter().map(|(source, destination)| {
        json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", "rw"]})
    }));
    let config = json!({
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": security["readOnlyRootFilesystem"]},
        "process": {
            "terminal": false,
            "user": {"uid": security["runAsUser"], "gid": 0},
            "args": container["command"],
            "env": env,
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": capabilities, "effective": capabilities,
                "permitted": capabilities, "inheritable": [], "ambient": [],
            },
        },
        "mounts": mounts,
        "linux": {
            "namespaces": [
                {"type": "mount"}, {"type": "pid"}, {"type": "ipc"}, {"type": "uts"},
                {"type": "network", "path": netns},
            ],
            // As container runtimes do for whatever is not privileged.
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
        },
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// crun takes either version of control groups, but no mixture.
const CRUN: &str = "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec crun \"$@\"";

fn crun(dir: &Path, name: &str) -> Command {
    let mut command = program::command("unshare").unwrap();
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            CRUN,
            "sh",
        ])
        .args(["--cgroup-manager=disabled", "--root"])
        .arg(dir.join("state"))
        .args(["run", "--bundle"])
        .arg(dir)
        .arg(name);
    command
}

fn sysctl(lab: &Lab, node: &str, key: &str) -> String {
    let read = || fs::read_to_string(Path::new("/proc/sys").join(key));
    let text = netns::run(&lab.netns(node).unwrap(), read)
        .unwrap()
        .unwrap();
    text.trim().to_owned()
}

#[test]
fn a_node_runs_with_the_rights_of_the_manifest() {
    if !possible(
        "a_node_runs_with_the_rights_of_the_manifest",
        &["crun", "nft"],
    ) {
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
    root_of_image(&dir.join("rootfs"));
    fs::create_dir_all(dir.join("rootfs/host/proc/sys/net")).unwrap();
    let mut env: Vec<String> = layout.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    env.push("PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
    let binds = [
        (lab.folder().lib("node1"), "/var/lib/calico"),
        (lab.folder().run("node1"), "/var/run/caracal"),
        (PathBuf::from("/proc/sys/net"), "/host/proc/sys/net"),
    ];
    let netns_path = netns::path(&layout.netns);
    bundle(&dir, &manifest("containers"), &netns_path, &env, &binds);
    // What the node has to write again: through the mount, as its own /proc/sys is read-only.
    let cali = format!("net/ipv4/conf/{}/proxy_arp", workload(&lab));
    netns::sysctl(&layout.netns, &cali, "0", false).unwrap();
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
        (bin.clone(), "/host/opt/cni/bin"),
        (net.clone(), "/host/etc/cni/net.d"),
    ];
    bundle(dir, &manifest("initContainers"), netns, &env, &binds);
    let mut command = crun(dir, "caracal-e2e-install");
    let node = lab.netns("node1").unwrap();
    let said = program::call(Some(&node), &mut command, b"", 60 * SECOND).unwrap();
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
    assert_eq!(names(&bin), ["caracal-cni", "caracal-ipam"]);
    assert_eq!(names(&net), ["10-caracal.conflist"]);
    // What was installed is a plugin.
    let mut plugin = Command::new(bin.join("caracal-cni"));
    plugin.env_clear().env("CNI_COMMAND", "VERSION");
    let version = program::call(
        None,
        &mut plugin,
        b"{\"cniVersion\":\"1.0.0\"}",
        60 * SECOND,
    )
    .unwrap();
    assert!(version.contains("supportedVersions"), "{version}");
}
