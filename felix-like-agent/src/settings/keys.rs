//! Reads the values of FelixConfiguration's keys. The table of all fields
//! ([`caracal_model::FELIX_FIELDS`]) says what each key does here. A key that would
//! change what Felix does, and changes nothing here, is reported.

use std::collections::BTreeSet;
use std::time::Duration;

use caracal_model::{Cidr, FELIX_FIELDS, FieldEntry, Prefix};

pub(crate) use caracal_model::FieldEffect;

use super::{
    InterfacePattern, NatBackend, PROTOCOL_BOOT, ProgramClusterRoutes, ROUTE_PROTOCOL,
    ServiceLoops, Settings,
};
use crate::nat::name::{Interfaces, PlainName};

/// Further names of keys of FelixConfiguration in the environment.
const ALIASES: [(&str, &str); 4] = [
    ("ipInIpMtu", "ipipMTU"),
    ("ipInIpEnabled", "ipipEnabled"),
    ("netlinkTimeoutSecs", "netlinkTimeout"),
    ("externalNodesCIDRList", "externalNodesList"),
];

/// Keys of the environment alone: read by the node, or nothing here differs by them.
const ENVIRONMENT: [&str; 1] = ["felixHostname"];

/// The effect of a key in any case, FelixConfiguration's or the environment's; `None` for what is
/// neither.
#[must_use]
pub fn setting_effect(key: &str) -> Option<FieldEffect> {
    if ENVIRONMENT
        .iter()
        .any(|name| name.eq_ignore_ascii_case(key))
    {
        return Some(FieldEffect::NotApplicable("the node's name is NODENAME"));
    }
    let alias = ALIASES
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(key));
    let key = alias.map_or(key, |(_, name)| name);
    let same = |(path, _): &&FieldEntry| path["spec.".len()..].eq_ignore_ascii_case(key);
    FELIX_FIELDS.iter().find(same).map(|(_, effect)| *effect)
}

/// Keys that another part of Caracal reads.
#[cfg(test)]
const ELSEWHERE: [&str; 8] = [
    "failsafeInboundHostPorts",
    "failsafeOutboundHostPorts",
    "healthEnabled",
    "healthHost",
    "healthPort",
    "prometheusMetricsEnabled",
    "prometheusMetricsHost",
    "prometheusMetricsPort",
];

/// A kernel that is well answers within milliseconds; less than this would only be a way to fail.
const SHORTEST_ANSWER: Duration = Duration::from_millis(100);

/// Protocol numbers of other routing programs (iproute2's `rt_protos`) and of the kernel: who took
/// one of them would take their routes for its own.
const OTHERS: [u8; 21] = [
    0, 1, 2, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 42, 186, 187, 188, 189, 192, 196,
];

/// Lays a value over the settings. `Err` says what would be accepted.
pub(super) fn set(settings: &mut Settings, key: &str, value: &str) -> Result<(), &'static str> {
    const MTU: &str = "an MTU of 576 to 65535 octets, or 0 for automatic";
    match key.to_ascii_lowercase().as_str() {
        "interfaceprefix" => settings.interface_prefixes = prefixes(value)?,
        "vxlanvni" => {
            settings.vxlan_vni = number(value, 1, 0x00ff_ffff).ok_or("a VNI of 1 to 16777215")?;
        }
        "vxlanport" => {
            settings.vxlan_port = number(value, 1, u16::MAX).ok_or("a UDP port of 1 to 65535")?;
        }
        "featuredetectoverride" => settings.vxlan_tx_checksum = tx_checksum(value)?,
        "ipipmtu" | "ipinipmtu" => settings.ipip_mtu = mtu(value).ok_or(MTU)?,
        "vxlanmtu" => settings.vxlan_mtu = mtu(value).ok_or(MTU)?,
        "vxlanmtuv6" => settings.vxlan_mtu_v6 = mtu(value).ok_or(MTU)?,
        "mtuifacepattern" => {
            settings.mtu_interfaces = InterfacePattern::new(value).ok_or("a regular expression")?;
        }
        "ipv4normalroutepriority" => {
            settings.ipv4_route_metric = metric(value).ok_or("a metric of 1 to 999999")?;
        }
        "ipv6normalroutepriority" => {
            settings.ipv6_route_metric = metric(value).ok_or("a metric of 1 to 999999")?;
        }
        "programclusterroutes" => settings.felix_routes = program_cluster_routes(value)?,
        "devicerouteprotocol" => {
            settings.route_protocol = protocol(value)?;
        }
        "routerefreshinterval" => {
            settings.route_refresh = duration(value).ok_or("a time such as 90s, or 0 for never")?;
        }
        "routesyncdisabled" => settings.route_sync = !boolean(value)?,
        "natoutgoingexclusions" => {
            settings.nat_excludes_hosts = match value {
                "IPPoolsOnly" => false,
                "IPPoolsAndHostIPs" => true,
                _ => return Err("IPPoolsOnly or IPPoolsAndHostIPs"),
            };
        }
        "natportrange" => settings.nat_ports = ports(value)?,
        "iptablesnatoutgoinginterfacefilter" => settings.nat_interface = interface(value)?,
        "nftablesmode" => {
            settings.nat_backend = match value.to_ascii_lowercase().as_str() {
                "auto" => NatBackend::Auto,
                "enabled" => NatBackend::Nft,
                "disabled" => NatBackend::Iptables,
                _ => return Err("Auto, Enabled or Disabled"),
            };
        }
        "natoutgoingaddress" => settings.nat_address = address(value, "an IPv4 address")?,
        "deviceroutesourceaddress" => {
            settings.route_source = address(value, "an IPv4 address of this node")?;
        }
        "deviceroutesourceaddressipv6" => {
            settings.route_source_v6 = address(value, "an IPv6 address of this node")?;
        }
        "routesource" => {
            settings.workload_routes =
                switch(value, "WorkloadIPs", "CalicoIPAM").ok_or("CalicoIPAM or WorkloadIPs")?;
        }
        "externalnodeslist" | "externalnodescidrlist" => {
            settings.external_nodes = ranges(value)?;
        }
        "netlinktimeout" | "netlinktimeoutsecs" => {
            settings.kernel_timeout = duration(value)
                .filter(|time| *time >= SHORTEST_ANSWER)
                .ok_or("a time of 100ms or more, such as 10s")?;
        }
        "ipforwarding" => {
            settings.ip_forwarding =
                switch(value, "Enabled", "Disabled").ok_or("Enabled or Disabled")?
        }
        "workloadsourcespoofing" => {
            settings.spoofing = switch(value, "Any", "Disabled").ok_or("Any or Disabled")?;
        }
        "allowvxlanpacketsfromworkloads" => settings.vxlan_from_workloads = boolean(value)?,
        "allowipippacketsfromworkloads" => settings.ipip_from_workloads = boolean(value)?,
        "serviceloopprevention" => settings.service_loops = service_loops(value)?,
        "ipv6support" => settings.ipv6 = boolean(value)?,
        _ => {}
    }
    Ok(())
}

fn prefixes(value: &str) -> Result<Vec<String>, &'static str> {
    let parts = value.split(',').map(str::trim).filter(|p| !p.is_empty());
    let prefixes: Vec<String> = parts.map(str::to_owned).collect();
    // They stand in firewall rules and in file names.
    let plain = |prefix: &String| PlainName::beginning(prefix).is_some();
    if prefixes.is_empty() || !prefixes.iter().all(plain) {
        return Err(
            "beginnings of interface names, with commas between them: letters, digits, '.', '_' and '-', at most 14 each",
        );
    }
    Ok(prefixes)
}

fn boolean(value: &str) -> Result<bool, &'static str> {
    switch(value, "true", "false").ok_or("true or false")
}

/// `NAME=true,NAME=false`: what Felix is told of the kernel. All but one name is about programs
/// that only Felix runs.
fn tx_checksum(value: &str) -> Result<Option<bool>, &'static str> {
    const EXPECTED: &str = "names with true or false, such as ChecksumOffloadBroken=true";
    let mut leaves_it = None;
    let parts = value.split(',').map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or(EXPECTED)?;
        let is_so = boolean(value.trim()).map_err(|_| EXPECTED)?;
        if name.trim().eq_ignore_ascii_case("ChecksumOffloadBroken") {
            leaves_it = Some(!is_so);
        }
    }
    Ok(leaves_it)
}

fn switch(value: &str, on: &str, off: &str) -> Option<bool> {
    let is = |word: &str| value.eq_ignore_ascii_case(word);
    (is(on) || is(off)).then(|| is(on))
}

fn service_loops(value: &str) -> Result<ServiceLoops, &'static str> {
    Ok(match value.to_ascii_lowercase().as_str() {
        "drop" => ServiceLoops::Drop,
        "reject" => ServiceLoops::Reject,
        "disabled" => ServiceLoops::Disabled,
        _ => return Err("Drop, Reject or Disabled"),
    })
}

/// Felix's default, boot, stands for its number 80 on all that is not a device route.
fn protocol(value: &str) -> Result<u8, &'static str> {
    match number(value, 1, u8::MAX) {
        Some(PROTOCOL_BOOT) => Ok(ROUTE_PROTOCOL),
        Some(number) if !OTHERS.contains(&number) => Ok(number),
        _ => Err("3 for the default, or a number of 5 to 255 that no other routing program has"),
    }
}

/// `MIN:MAX`; Felix's default, 0, lets the kernel choose.
fn ports(value: &str) -> Result<Option<(u16, u16)>, &'static str> {
    const EXPECTED: &str = "a range of ports such as 32768:65535, or 0 for any";
    if value.is_empty() || value == "0" {
        return Ok(None);
    }
    let (first, last) = value.split_once(':').unwrap_or((value, value));
    let number = |text| number(text, 1, u16::MAX).ok_or(EXPECTED);
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(EXPECTED);
    }
    Ok(Some((first, last)))
}

/// The name of an interface, or its beginning with `+` behind it; it stands in rules as it is.
fn interface(value: &str) -> Result<Option<Interfaces>, &'static str> {
    if value.is_empty() {
        return Ok(None);
    }
    let interfaces = Interfaces::from_text(value);
    let interfaces = interfaces.ok_or("the name of an interface, or its beginning and a +");
    interfaces.map(Some)
}

fn address<T: std::str::FromStr>(
    value: &str,
    expected: &'static str,
) -> Result<Option<T>, &'static str> {
    if value.is_empty() {
        return Ok(None);
    }
    value.parse().map(Some).map_err(|_| expected)
}

/// Addresses and CIDRs; bits behind a CIDR's length do not matter.
fn ranges(value: &str) -> Result<BTreeSet<Prefix>, &'static str> {
    let entries = value.split(',').map(str::trim).filter(|e| !e.is_empty());
    let range = |entry: &str| {
        let cidr = entry.parse::<Cidr>();
        cidr.map_err(|_| "a list of addresses and CIDRs")
    };
    entries.map(|entry| Ok(range(entry)?.prefix())).collect()
}

pub(super) fn number<T: std::str::FromStr + PartialOrd>(text: &str, low: T, high: T) -> Option<T> {
    text.parse().ok().filter(|n| (low..=high).contains(n))
}

fn metric(text: &str) -> Option<u32> {
    number(text, 1, crate::kernel_objects::BLACKHOLE_METRIC - 1)
}

#[allow(clippy::option_option, reason = "unusable / automatic / a value")]
fn mtu(text: &str) -> Option<Option<u32>> {
    match text.parse().ok()? {
        0 => Some(None),
        n @ 576..=65_535 => Some(Some(n)),
        _ => None,
    }
}

pub(super) fn program_cluster_routes(text: &str) -> Result<ProgramClusterRoutes, &'static str> {
    ProgramClusterRoutes::from_text(text)
        .ok_or("Enabled, Disabled, EnabledIPIPOnly or EnabledNoEncapOnly")
}

/// `90` (seconds, as in the environment), `90s`, `1m30s`, `500ms`.
fn duration(text: &str) -> Option<Duration> {
    const LONGEST: f64 = 366.0 * 86_400.0;
    let seconds = |text: &str| text.parse().ok().filter(|s| (0.0..=LONGEST).contains(s));
    if let Some(plain) = seconds(text) {
        return Some(Duration::from_secs_f64(plain));
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let amount: f64 = seconds(&rest[..digits])?;
        let unit = &rest[digits..];
        let length = unit
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(unit.len());
        total += amount
            * match &unit[..length] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &unit[length..];
    }
    (!text.is_empty() && total <= LONGEST).then(|| Duration::from_secs_f64(total))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_applied_key_changes_something() {
        let values = [
            "gen,eth",
            "9",
            "1400",
            "^bond0$",
            "Enabled",
            "Disabled",
            "200",
            "17s",
            "true",
            "false",
            "Any",
            "IPPoolsAndHostIPs",
            "192.0.2.7",
            "40000:40999",
            "2001:db8::7",
            "WorkloadIPs",
            "ChecksumOffloadBroken=true",
        ];
        for (path, effect) in FELIX_FIELDS {
            let key = &path["spec.".len()..];
            let changes = |value: &&str| {
                let mut settings = Settings::default();
                set(&mut settings, key, value).is_ok() && settings != Settings::default()
            };
            let any = values.iter().any(changes);
            let honoured = *effect == FieldEffect::Honoured && !ELSEWHERE.contains(&key);
            assert_eq!(any, honoured, "{key}");
        }
    }

    #[test]
    fn an_interface_prefix_is_the_beginning_of_a_name() {
        assert_eq!(
            prefixes("cali, tap"),
            Ok(vec!["cali".to_owned(), "tap".to_owned()])
        );
        for hostile in [
            "cali*\" accept }\ntable inet evil {",
            "cali,x y",
            "",
            "-i",
            "../cali",
        ] {
            assert!(prefixes(hostile).is_err(), "{hostile:?}");
        }
    }

    #[test]
    fn the_environments_names_are_known() {
        for (alias, name) in ALIASES {
            assert_eq!(setting_effect(alias), setting_effect(name), "{alias}");
            assert!(setting_effect(alias).is_some(), "{alias}");
        }
        assert_eq!(setting_effect("VXLANMTU"), Some(FieldEffect::Honoured));
        assert_eq!(setting_effect("wibble"), None);
    }

    #[test]
    fn lists_of_ranges_are_checked() {
        let texts = |value| -> Result<Vec<String>, &str> {
            Ok(ranges(value)?.iter().map(ToString::to_string).collect())
        };
        let three = texts(" 10.0.0.9, 192.0.2.7/24,2001:db8::/32,");
        let expected = ["10.0.0.9/32", "192.0.2.0/24", "2001:db8::/32"];
        assert_eq!(three, Ok(expected.map(str::to_owned).to_vec()));
        assert_eq!(texts(""), Ok(vec![]));
        for bad in ["host", "10.0.0.9/33", "10.0.0.9;10.0.0.8"] {
            assert!(texts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_read_as_felix_does() {
        for (text, ms) in [
            ("90", Some(90_000)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("1.5s", Some(1500)),
            ("1m30s", Some(90_000)),
            ("2h500ms", Some(7_200_500)),
            ("", None),
            ("s", None),
            ("5d", None),
            ("-1", None),
            ("9e99", None),
        ] {
            assert_eq!(duration(text), ms.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn ranges_of_ports_and_interfaces_are_checked() {
        assert_eq!(ports("40000:40999"), Ok(Some((40_000, 40_999))));
        assert_eq!(ports("80"), Ok(Some((80, 80))));
        assert_eq!(ports("0"), Ok(None));
        for bad in ["9:8", "0:9", "1:", "a:b", "1:65536"] {
            assert!(ports(bad).is_err(), "{bad}");
        }
        assert_eq!(interface("eth+"), Ok(Interfaces::from_text("eth+")));
        assert_eq!(interface(""), Ok(None));
        for bad in ["+", "eth0 drop", "a\"b", "0123456789abcdef"] {
            assert!(interface(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn protocols_of_other_programs_are_not_taken() {
        assert_eq!(protocol("3"), Ok(80));
        assert_eq!(protocol("80"), Ok(80));
        assert_eq!(protocol("99"), Ok(99));
        for bad in ["0", "2", "4", "12", "16", "186", "256", "bird"] {
            assert!(protocol(bad).is_err(), "{bad}");
        }
    }
}
