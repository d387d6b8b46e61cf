//! Devices that other network plugins left.

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

pub(super) fn check_leftovers(findings: &mut Vec<DoctorFinding>, links: &Links) {
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
}

fn owner(name: &str) -> Option<&'static str> {
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    };
    let found = DEVICES.iter().find(|(pattern, _)| matches(pattern));
    found.map(|(_, owner)| *owner)
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
        check_leftovers(&mut findings, &links);
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
}
