//! Leftovers of other network plugins: devices, and configurations that a runtime would prefer to
//! ours.

use std::path::{Path, PathBuf};

use caracal_agent::Links;

use super::{CheckVerdict, DoctorFinding};
use caracal_model::DoctorCode;

/// Devices by name or by its beginning (`*`), and whose they are.
const DEVICES: [(&str, &str); 12] = [
    ("flannel*", "flannel"),
    ("cni0", "the bridge plugin, as flannel uses it"),
    ("kube-bridge", "kube-router"),
    ("kube-dummy-if", "kube-router"),
    ("cilium_*", "Cilium"),
    ("lxc_health", "Cilium"),
    ("weave", "Weave Net"),
    ("vethwe*", "Weave Net"),
    ("ovn-k8s*", "OVN-Kubernetes"),
    ("antrea*", "Antrea"),
    ("genev_sys*", "Open vSwitch"),
    ("wireguard.cali", "Calico's WireGuard"),
];

/// The host's folder of CNI configurations as the DaemonSet mounts it.
pub(super) const MOUNTED: &str = "/host/etc/cni/net.d";
/// The same folder on the host.
const ON_HOST: &str = "/etc/cni/net.d";

/// The folder of CNI configurations to look at: the one that the environment names, else the
/// mounted one where there is one, else the host's.
pub(super) fn conf_dir(named: Option<PathBuf>, mounted: &Path) -> PathBuf {
    let named = named.filter(|dir| !dir.as_os_str().is_empty());
    named.unwrap_or_else(|| match mounted.is_dir() {
        true => mounted.to_owned(),
        false => PathBuf::from(ON_HOST),
    })
}

/// The path of a file as the host knows it.
fn on_host(path: &Path) -> PathBuf {
    match path.strip_prefix("/host") {
        Ok(rest) => Path::new("/").join(rest),
        Err(_) => path.to_owned(),
    }
}

pub(super) fn check_leftovers(findings: &mut Vec<DoctorFinding>, links: &Links, conf_dir: &Path) {
    let devices: Vec<(String, &str)> = links
        .iter()
        .filter_map(|link| Some((link.name.to_string(), owner(link.name.as_str())?)))
        .collect();
    for (device, owner) in &devices {
        findings.push(DoctorFinding::new(
            DoctorCode::LeftoverDevice,
            device,
            CheckVerdict::Fail,
            format!("a device of {owner} is there: its routes compete with ours, and its pods are not ours"),
            format!("stop {owner} on this node if it runs, move its pods, then: ip link delete {device}"),
        ));
    }
    if devices.is_empty() {
        findings.push(DoctorFinding::ok(
            DoctorCode::LeftoverDevice,
            "devices",
            "none of another network plugin",
        ));
    }
    configurations(findings, conf_dir);
}

fn owner(name: &str) -> Option<&'static str> {
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    let found = DEVICES.iter().find(|(pattern, _)| matches(pattern));
    found.map(|(_, owner)| *owner)
}

/// Names of CNI configurations in the order in which runtimes read them; the first one counts.
pub(in crate::cli) fn conflists(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            [".conf", ".conflist", ".json"]
                .iter()
                .any(|end| name.ends_with(end))
        })
        .collect();
    names.sort();
    names
}

fn configurations(findings: &mut Vec<DoctorFinding>, dir: &Path) {
    const CHECK: DoctorCode = DoctorCode::CniConfiguration;
    let names = conflists(dir);
    let is_ours = |name: &String| {
        let text = std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        text.contains("caracal-cni")
    };
    let subject = dir.display().to_string();
    findings.push(
        match (names.first(), names.iter().find(|name| is_ours(name))) {
            (None, _) => DoctorFinding::new(
                CHECK,
                subject,
                CheckVerdict::Warn,
                "no CNI configuration: the runtime starts no pods",
                "caracal install-cni",
            ),
            (Some(first), Some(ours)) if first == ours => {
                DoctorFinding::ok(CHECK, subject, format!("{ours} is the first"))
            }
            (Some(first), Some(ours)) => DoctorFinding::new(
                CHECK,
                subject,
                CheckVerdict::Fail,
                format!(
                    "{first} comes before {ours}: the runtime calls another plugin for new pods"
                ),
                format!(
                    "remove {}, or rename it so that it does not end in .conf, .conflist or .json",
                    on_host(&dir.join(first)).display()
                ),
            ),
            (Some(first), None) => DoctorFinding::new(
                CHECK,
                subject,
                CheckVerdict::Warn,
                format!("{first} is another plugin's, and there is none of ours"),
                "caracal install-cni; CNI_CONF_NAME names the file to replace",
            ),
        },
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use caracal_agent::Link;

    #[test]
    fn devices_are_known_by_their_names() {
        let links: Links = ["lo", "eth0", "flannel.1", "cali123", "vxlan.calico"]
            .iter()
            .zip(1..)
            .map(|(name, index)| Link::new(index, name))
            .collect();
        let mut findings = Vec::new();
        check_leftovers(&mut findings, &links, Path::new("/nonexistent"));
        let failed: Vec<&str> = findings
            .iter()
            .filter(|f| f.verdict == CheckVerdict::Fail)
            .map(|f| f.subject.as_str())
            .collect();
        assert_eq!(failed, ["flannel.1"]);
        assert!(findings[0].fix.contains("ip link delete flannel.1"));
        assert_eq!(owner("cni0"), Some("the bridge plugin, as flannel uses it"));
        assert_eq!(owner("cni01"), None);
    }

    #[test]
    fn the_folder_is_the_named_one_else_the_mounted_one_else_the_hosts() {
        let named = |name: &str| Some(PathBuf::from(name));
        let (there, missing) = (std::env::temp_dir(), Path::new("/nonexistent/net.d"));
        assert_eq!(conf_dir(named("/x"), &there), Path::new("/x"));
        assert_eq!(conf_dir(None, &there), there);
        assert_eq!(conf_dir(named(""), &there), there);
        assert_eq!(conf_dir(None, missing), Path::new("/etc/cni/net.d"));
        let shown = |path: &str| on_host(Path::new(path));
        assert_eq!(
            shown("/host/etc/cni/net.d/05-x.conf"),
            Path::new("/etc/cni/net.d/05-x.conf")
        );
        assert_eq!(shown("/etc/cni/net.d"), Path::new("/etc/cni/net.d"));
    }

    #[test]
    fn the_first_configuration_is_the_one_that_counts() {
        let dir = std::env::temp_dir().join(format!("caracal-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let verdict = || {
            let mut findings = Vec::new();
            configurations(&mut findings, &dir);
            findings[0].verdict
        };
        assert_eq!(verdict(), CheckVerdict::Warn);
        std::fs::write(dir.join("10-caracal.conflist"), r#"{"type":"caracal-cni"}"#).unwrap();
        std::fs::write(dir.join(".10.caracal-new"), "{}").unwrap();
        assert_eq!(verdict(), CheckVerdict::Ok);
        std::fs::write(dir.join("05-cilium.conflist"), "{}").unwrap();
        assert_eq!(verdict(), CheckVerdict::Fail);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
