//! Containers of the manifests in `crun`, with the rights, mounts and environment that they name,
//! in the network namespace of a lab's node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use caracal_lab::program_command;
use serde_json::{Value, json};

/// A file or directory of the machine inside a container.
#[derive(Clone, Debug)]
pub struct Mount {
    source: PathBuf,
    destination: String,
    read_only: bool,
}

impl Mount {
    /// One that the container may write.
    #[must_use]
    pub fn writable(source: &Path, destination: &str) -> Self {
        Self {
            source: source.to_owned(),
            destination: destination.to_owned(),
            read_only: false,
        }
    }

    /// One that it may only read.
    #[must_use]
    pub fn read_only(source: &Path, destination: &str) -> Self {
        Self {
            read_only: true,
            ..Self::writable(source, destination)
        }
    }
}

/// Writes the bundle of a container of a manifest into `dir`, whose `rootfs` is there: with the
/// command and the rights that the manifest gives it.
///
/// # Panics
/// When the manifest lets the container gain rights, or the file cannot be written.
pub fn write_bundle(dir: &Path, container: &Value, netns: &Path, env: &[String], mounts: &[Mount]) {
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    let added = security["capabilities"]["add"].as_array();
    let added = added.into_iter().flatten().filter_map(Value::as_str);
    let capabilities: Vec<String> = added.map(|name| format!("CAP_{name}")).collect();
    let mut all = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}),
    ];
    all.extend(mounts.iter().map(|mount| {
        let access = if mount.read_only { "ro" } else { "rw" };
        json!({"destination": mount.destination, "type": "bind", "source": mount.source,
            "options": ["rbind", access]})
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
        "mounts": all,
        "linux": {
            "namespaces": [
                {"type": "mount"}, {"type": "pid"}, {"type": "ipc"}, {"type": "uts"},
                {"type": "network", "path": netns},
            ],
            // As container runtimes do for whatever is not privileged.
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
        },
    });
    fs::write(dir.join("config.json"), config.to_string()).expect("the bundle");
}

/// crun takes either version of control groups, but no mixture.
const ONE_VERSION: &str =
    "if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec \"$@\"";

/// A command where there is one version of control groups.
///
/// # Panics
/// When `unshare` is not installed.
#[must_use]
pub fn with_one_cgroup_version(program: &str) -> Command {
    let mut command = program_command("unshare").expect("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command.args(["sh", "-c", ONE_VERSION, "sh", program]);
    command
}

/// The command that runs a bundle under a name.
#[must_use]
pub fn crun(dir: &Path, name: &str) -> Command {
    let mut command = with_one_cgroup_version("crun");
    command
        .args(["--cgroup-manager=disabled", "--root"])
        .arg(dir.join("state"))
        .args(["run", "--bundle"])
        .arg(dir)
        .arg(name);
    command
}
