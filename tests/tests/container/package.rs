//! The Debian package in a container of its own: a copy of this machine's root file system that is
//! gone afterwards, without a network.

use std::path::Path;

use caracal_lab::{call_program, program_command};
use caracal_tests::{SECOND, is_static_built, possible, static_binary};

/// Makes the container; then what happens in it, then what is left of it.
const CONTAINER: &str = r#"
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
# No systemd is running here.
mount -t tmpfs tmpfs "$1/root/run"
cp "$2" "$1/root/run/caracal.deb"
chroot "$1/root" bash -euc "$3"
find "$1/upper" -not -type d -printf 'left over: %P\n'
"#;

/// Installed, run as the unit runs it, installed once more over changed settings, removed, purged.
const STEPS: &str = r#"
install() { dpkg --no-triggers --install /run/caracal.deb; }
install
caracal version
bash -c 'source /usr/share/bash-completion/completions/caracal; complete -p caracal'
zcat /usr/share/man/man1/caracal-node.1.gz | grep -c '^\.TH'
cp /usr/share/doc/caracal/examples/reflector.conf /etc/caracal/
unit=/lib/systemd/system/caracal-reflector.service
export $(sed -n 's/^Environment=//p' $unit)
mkdir -p "$CARACAL_RUN_DIR"
ip link set lo up
ip address add 10.0.0.1/24 dev lo
$(sed -n 's/^ExecStartPre=//p' $unit)
$(sed -n 's/^ExecStart=//p' $unit) &
for attempt in {1..300}; do
  peers=$(caracal bgp peers -o json 2>&1) && break
  read -rt 0.1 <> <(:) || true
done
echo "peers: $(grep -c '"asn": 64512' <<<"$peers" || echo "$peers")"
kill %1
wait %1
rm /etc/caracal/reflector.conf
echo CARACAL_LOG=debug >>/etc/caracal/caracal.env
install
echo "kept: $(tail -1 /etc/caracal/caracal.env)"
dpkg --no-triggers --remove caracal
echo "removed: $(ls /usr/bin/caracal $unit 2>&1 | grep -c 'No such file')"
echo "kept: $(tail -1 /etc/caracal/caracal.env)"
dpkg --no-triggers --purge caracal
echo "purged: $(ls /etc/caracal 2>&1)"
"#;

#[test]
fn the_package_is_installed_run_and_removed() {
    let scenario = "the_package_is_installed_run_and_removed";
    if !possible(scenario, &["dpkg", "dpkg-deb", "bash", "unshare"]) || !is_static_built(scenario) {
        return;
    }
    let dir = std::env::temp_dir().join(format!("caracal-package-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("root")).unwrap();
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/deb/build");
    let mut build = program_command(build.to_str().unwrap()).unwrap();
    build.arg("--program").arg(static_binary());
    build.arg("--out").arg(&dir);
    let package = call_program(None, &mut build, b"", 120 * SECOND).unwrap();
    let mut container = program_command("unshare").unwrap();
    container.args(["--mount", "--net", "--pid", "--ipc", "--uts", "--fork"]);
    container.args(["--kill-child", "sh", "-c", CONTAINER, "sh"]);
    container
        .arg(dir.join("root"))
        .args([package.trim(), STEPS]);
    container.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let said = call_program(None, &mut container, b"", 120 * SECOND);
    std::fs::remove_dir_all(&dir).unwrap();
    let said = said.unwrap();
    println!("{said}");
    for says in [
        concat!("caracal ", env!("CARGO_PKG_VERSION")),
        " -F _clap_complete_caracal caracal",
        "caracal: its routes, devices and rules stay in the kernel",
        "removed: 2",
        "peers: 2",
    ] {
        assert!(said.contains(says), "{says}");
    }
    assert_eq!(said.matches("kept: CARACAL_LOG=debug").count(), 2);
    assert!(said.contains("purged: ls: cannot access"), "{said}");
    let left: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("left over: "))
        .filter(|file| {
            !["var/lib/dpkg/", "var/log/"]
                .iter()
                .any(|d| file.starts_with(d))
        })
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
