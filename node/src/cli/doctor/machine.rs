//! This machine: kernel, programs, sysctls, MTU, listening ports.

use std::fs;
use std::path::Path;

use caracal_agent::{
    IPIP_DEVICE, IPIP_OVERHEAD, KernelSupport, Links, Settings, VXLAN_OVERHEAD, VXLAN_V6_OVERHEAD,
    WantedTunnels, vxlan_device, wanted_tunnels,
};
use caracal_model::{DoctorCode, Family, Snapshot};

use super::{CheckVerdict, DoctorFinding};
use crate::config::Config;

const HERE: &str = "this machine";
/// The tunnel devices, each with the family of its outer packets and the octets that it adds.
const TUNNELS: [(&str, Family, u32); 3] = [
    (IPIP_DEVICE, Family::Ipv4, IPIP_OVERHEAD),
    (vxlan_device(Family::Ipv4), Family::Ipv4, VXLAN_OVERHEAD),
    (vxlan_device(Family::Ipv6), Family::Ipv6, VXLAN_V6_OVERHEAD),
];

/// Looks at this machine.
pub(super) async fn check_machine(
    findings: &mut Vec<DoctorFinding>,
    snapshot: Option<&Snapshot>,
    config: &Config,
    links: &Links,
) {
    let wanted = snapshot.map(|snapshot| {
        let (settings, _) =
            Settings::resolve(&Settings::default(), snapshot, &config.node, &config.felix);
        wanted_tunnels(snapshot, &settings)
    });
    let both = WantedTunnels {
        ipip: true,
        vxlan: true,
        objects: false,
    };
    match caracal_agent::kernel_support(both).await {
        Ok(support) => kernel(findings, &support, wanted),
        Err(error) => findings.push(DoctorFinding::new(
            DoctorCode::KernelNetlink,
            HERE,
            CheckVerdict::Fail,
            error.to_string(),
            "run it as root in the node's network namespace, or with the capability NET_ADMIN",
        )),
    }
    nat(findings, snapshot);
    sysctls(findings, snapshot);
    mtu(findings, links, snapshot, config);
    port(findings);
}

fn kernel(
    findings: &mut Vec<DoctorFinding>,
    support: &KernelSupport,
    wanted: Option<WantedTunnels>,
) {
    let wanted = wanted.unwrap_or_default();
    for (check, support, wanted, module) in [
        (
            DoctorCode::KernelVxlan,
            &support.vxlan,
            wanted.vxlan,
            "vxlan",
        ),
        (DoctorCode::KernelIpip, &support.ipip, wanted.ipip, "ipip"),
    ] {
        let finding = match support {
            Ok(()) => DoctorFinding::ok(check, HERE, "the kernel makes such devices"),
            Err(reason) if wanted => DoctorFinding::new(
                check,
                HERE,
                CheckVerdict::Fail,
                format!("a pool needs it, and the kernel refuses: {reason}"),
                format!(
                    "modprobe {module}, and name {module} in /etc/modules-load.d/caracal.conf; without the module change the pool with caracal mode apply"
                ),
            ),
            Err(reason) => DoctorFinding::new(
                check,
                HERE,
                CheckVerdict::Ok,
                format!("not there ({reason}); no pool needs it"),
                "",
            ),
        };
        findings.push(finding);
    }
    findings.push(match &support.ipv6 {
        Ok(()) => DoctorFinding::ok(DoctorCode::KernelIpv6, HERE, "the kernel has IPv6"),
        Err(reason) => DoctorFinding::new(
            DoctorCode::KernelIpv6,
            HERE,
            CheckVerdict::Ok,
            reason.clone(),
            "",
        ),
    });
}

/// Pools with natOutgoing need a program that writes the rules.
fn nat(findings: &mut Vec<DoctorFinding>, snapshot: Option<&Snapshot>) {
    let pools = snapshot.into_iter().flat_map(|s| s.pools.values());
    let wanted = pools.into_iter().any(|pool| pool.spec.nat_outgoing);
    let found = ["nft", "iptables-legacy-restore"]
        .into_iter()
        .find(|program| in_path(program));
    findings.push(match found {
        Some(program) => DoctorFinding::ok(DoctorCode::KernelNat, HERE, format!("{program} is installed")),
        None => DoctorFinding::new(
            DoctorCode::KernelNat,
            HERE,
            if wanted { CheckVerdict::Fail } else { CheckVerdict::Ok },
            "neither nft nor iptables-legacy-restore is installed",
            if wanted {
                "install nftables, or set natOutgoing to false in the pools: pods cannot reach hosts outside the cluster"
            } else {
                ""
            },
        ),
    });
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

pub(super) fn sysctl(path: &str) -> Option<String> {
    let text = fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?;
    Some(text.trim().to_owned())
}

fn sysctls(findings: &mut Vec<DoctorFinding>, snapshot: Option<&Snapshot>) {
    let has = |family| snapshot.is_some_and(|s| s.has_pool(family));
    let mut forwarding = vec!["net/ipv4/ip_forward"];
    forwarding.extend(has(Family::Ipv6).then_some("net/ipv6/conf/all/forwarding"));
    for path in forwarding {
        let name = path.replace('/', ".");
        findings.push(match sysctl(path).as_deref() {
            Some("1") => DoctorFinding::ok(DoctorCode::SysctlForwarding, name, "1"),
            seen => DoctorFinding::new(
                DoctorCode::SysctlForwarding,
                name.clone(),
                CheckVerdict::Warn,
                format!(
                    "{}; caracal node sets it when it starts",
                    seen.unwrap_or("not there")
                ),
                format!(
                    "sysctl -w {name}=1, and look for what sets it back: /etc/sysctl.d, a firewall"
                ),
            ),
        });
    }
    let strict = ["all", "default"]
        .into_iter()
        .find(|scope| sysctl(&format!("net/ipv4/conf/{scope}/rp_filter")).as_deref() == Some("1"));
    findings.push(match strict {
        None => DoctorFinding::ok(DoctorCode::SysctlRpFilter, HERE, "not strict"),
        Some(scope) => DoctorFinding::new(
            DoctorCode::SysctlRpFilter,
            format!("net.ipv4.conf.{scope}.rp_filter"),
            CheckVerdict::Warn,
            "strict: a packet is dropped when its answer would leave by another device, as while a pool changes its mode",
            format!("sysctl -w net.ipv4.conf.{scope}.rp_filter=2"),
        ),
    });
}

/// Tunnel devices that are larger than what carries them.
fn mtu(
    findings: &mut Vec<DoctorFinding>,
    links: &Links,
    snapshot: Option<&Snapshot>,
    config: &Config,
) {
    let node = snapshot.and_then(|s| s.nodes.get(&config.node));
    let uplink = |family| links.holding(node?.spec.address(family)?);
    if [Family::Ipv4, Family::Ipv6]
        .into_iter()
        .all(|f| uplink(f).is_none())
    {
        let seen = "the interface with the node's address is not known yet";
        findings.push(DoctorFinding::new(
            DoctorCode::MtuDevice,
            HERE,
            CheckVerdict::Skip,
            seen,
            "",
        ));
    }
    for (name, family, overhead) in TUNNELS {
        let tunnel = links.by_name(name).filter(|link| link.up);
        let (Some(tunnel), Some(uplink)) = (tunnel, uplink(family)) else {
            continue;
        };
        let most = uplink.mtu.saturating_sub(overhead);
        let seen = format!(
            "{} over {} of {}: at most {most}",
            tunnel.mtu, uplink.name, uplink.mtu
        );
        findings.push(match tunnel.mtu <= most {
            true => DoctorFinding::ok(DoctorCode::MtuDevice, name, seen),
            false => DoctorFinding::new(
                DoctorCode::MtuDevice,
                name,
                CheckVerdict::Fail,
                seen,
                "unset FELIX_VXLANMTU, FELIX_VXLANMTUV6 and FELIX_IPINIPMTU and the FelixConfiguration fields of that name: Caracal computes them",
            ),
        });
    }
}

/// BGP's port: ours, free, or somebody else's.
fn port(findings: &mut Vec<DoctorFinding>) {
    const CHECK: DoctorCode = DoctorCode::PortBgp;
    findings.push(match listener_on(179) {
        None => DoctorFinding::ok(CHECK, HERE, "TCP 179 is free"),
        Some(owner) if owner.contains("caracal") => DoctorFinding::ok(CHECK, HERE, format!("{owner} listens")),
        Some(owner) => DoctorFinding::new(
            CHECK,
            HERE,
            CheckVerdict::Fail,
            format!("{owner} listens on TCP 179, so caracal cannot"),
            "stop it (calico-node, bird, FRR), or give caracal another port with listenPort in the BGPConfiguration",
        ),
    });
}

/// Name of the process that listens on a TCP port of this network namespace; "a process" if its
/// descriptors cannot be read.
pub(in crate::cli) fn listener_on(port: u16) -> Option<String> {
    let inodes: Vec<String> = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, port))
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let owner = processes().find(|(_, pid)| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut targets = descriptors.into_iter().flatten().flatten();
        targets.any(|entry| {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let target = target.to_string_lossy();
            inodes
                .iter()
                .any(|inode| *target == format!("socket:[{inode}]"))
        })
    });
    Some(owner.map_or_else(
        || "a process".to_owned(),
        |(name, pid)| format!("{name} (process {pid})"),
    ))
}

fn processes() -> impl Iterator<Item = (String, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((name.trim().to_owned(), pid))
    })
}

/// Inodes of sockets in the state LISTEN on a port, from proc(5)'s table.
fn listening(table: &str, port: u16) -> Vec<String> {
    let lines = table.lines().skip(1);
    lines
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let local = fields.get(1)?.rsplit_once(':')?.1;
            let is_there = u16::from_str_radix(local, 16).ok()? == port && *fields.get(3)? == "0A";
            is_there.then(|| fields.get(9).map(ToString::to_string))?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_found_by_port_and_state() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 00000000:00B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n\
             1: 0100007F:00B3 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n\
             2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1\n";
        assert_eq!(listening(table, 179), ["4711"]);
        assert_eq!(listening(table, 22), ["4713"]);
        assert_eq!(listening(table, 80), Vec::<String>::new());
    }

    #[test]
    fn a_listener_of_our_own_is_named() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0");
        let Ok(Ok(port)) = socket.as_ref().map(|s| s.local_addr().map(|a| a.port())) else {
            return;
        };
        let me = format!("(process {})", std::process::id());
        assert!(listener_on(port).is_some_and(|owner| owner.contains(&me)));
    }
}
