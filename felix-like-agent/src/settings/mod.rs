//! Settings of the agent: built-in defaults, then FelixConfiguration `default`, then `node.NAME`,
//! then overrides (the `FELIX_*` environment), in Calico's order of precedence.

pub(crate) mod keys;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;
use std::time::Duration;

use caracal_model::{EncapMode, Family, NodeName, Prefix, Problem, ProblemCode, Snapshot};
use serde_json::Value;

use crate::nat::name::Interfaces;
use crate::problem::problem;
use keys::FieldEffect;

/// Which classes of routes to other nodes one of Calico's two programs is told to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramClusterRoutes {
    /// Routes of every encapsulation, and without one.
    Enabled,
    /// No routes.
    Disabled,
    /// Those of IPIP pools.
    EnabledIpipOnly,
    /// Those of pools without encapsulation.
    EnabledNoEncapOnly,
}

impl ProgramClusterRoutes {
    /// Reads Calico's spelling.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        Some(match text.to_ascii_lowercase().as_str() {
            "enabled" => Self::Enabled,
            "disabled" => Self::Disabled,
            "enabledipiponly" => Self::EnabledIpipOnly,
            "enablednoencaponly" => Self::EnabledNoEncapOnly,
            _ => return None,
        })
    }

    /// True when IPIP pools are included.
    #[must_use]
    pub const fn ipip(self) -> bool {
        matches!(self, Self::Enabled | Self::EnabledIpipOnly)
    }

    /// True when pools without encapsulation are included.
    #[must_use]
    pub const fn no_encap(self) -> bool {
        matches!(self, Self::Enabled | Self::EnabledNoEncapOnly)
    }
}

/// Tool for NAT and forwarding rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NatBackend {
    /// nftables where the kernel has it, else iptables.
    #[default]
    Auto,
    /// nftables.
    Nft,
    /// iptables in its legacy form.
    Iptables,
}

/// What becomes of packets to unused addresses of the services' ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceLoops {
    /// They are dropped.
    #[default]
    Drop,
    /// They are refused.
    Reject,
    /// They go where they go.
    Disabled,
}

/// Settings of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Prefixes of the names of workload interfaces. At least one.
    pub interface_prefixes: Vec<String>,
    /// VXLAN network identifier.
    pub vxlan_vni: u32,
    /// VXLAN UDP port.
    pub vxlan_port: u16,
    /// VXLAN devices leave checksums to the hardware below; `false` = they make them. `None` = they
    /// keep what they have.
    pub vxlan_tx_checksum: Option<bool>,
    /// MTU of `tunl0`; `None` = derived from the host's interfaces.
    pub ipip_mtu: Option<u32>,
    /// MTU of `vxlan.calico`; `None` = derived.
    pub vxlan_mtu: Option<u32>,
    /// MTU of `vxlan-v6.calico`; `None` = derived.
    pub vxlan_mtu_v6: Option<u32>,
    /// Kernel metric of routes to local workloads and of learned routes outside all pools, IPv4.
    pub ipv4_route_metric: u32,
    /// The same for IPv6.
    pub ipv6_route_metric: u32,
    /// Kernel protocol of all our routes.
    pub route_protocol: u8,
    /// Source that IPv4 routes name (`deviceRouteSourceAddress`); `None` = the kernel chooses.
    pub route_source: Option<Ipv4Addr>,
    /// The same for IPv6 (`deviceRouteSourceAddressIPv6`).
    pub route_source_v6: Option<Ipv6Addr>,
    /// Routes of the datastore's classes follow WorkloadEndpoints and not blocks (`routeSource:
    /// WorkloadIPs`).
    pub workload_routes: bool,
    /// Further sources that may send tunnel packets (`externalNodesList`).
    pub external_nodes: BTreeSet<Prefix>,
    /// How long the kernel may take for an answer (`netlinkTimeout`).
    pub kernel_timeout: Duration,
    /// IPv4 is programmed.
    pub ipv4: bool,
    /// IPv6 is programmed.
    pub ipv6: bool,
    /// FelixConfiguration's `programClusterRoutes`.
    pub felix_routes: ProgramClusterRoutes,
    /// BGPConfiguration's `programClusterRoutes`.
    pub bgp_routes: ProgramClusterRoutes,
    /// Traffic from pods to nodes' addresses keeps its source (`natOutgoingExclusions:
    /// IPPoolsAndHostIPs`).
    pub nat_excludes_hosts: bool,
    /// Source of masqueraded IPv4 traffic (`natOutgoingAddress`); `None` = that of the interface it
    /// leaves by.
    pub nat_address: Option<Ipv4Addr>,
    /// Ports of masqueraded TCP and UDP (`natPortRange`), the last one included; `None` = the
    /// kernel chooses.
    pub nat_ports: Option<(u16, u16)>,
    /// Only what leaves by this interface is masqueraded (`iptablesNATOutgoingInterfaceFilter`).
    pub nat_interface: Option<Interfaces>,
    /// Which of the two writes the rules (`nftablesMode`).
    pub nat_backend: NatBackend,
    /// Interfaces whose smallest MTU is the host's (`mtuIfacePattern`).
    pub mtu_interfaces: InterfacePattern,
    /// Time between full comparisons without cause (`routeRefreshInterval`); zero = never.
    pub route_refresh: Duration,
    /// Routes that share a gateway lead through next-hop objects where the kernel has them
    /// (`CARACAL_NEXTHOP_OBJECTS`; not a setting of Calico's).
    pub objects: bool,
    /// Routes are written (`routeSyncDisabled: false`).
    pub route_sync: bool,
    /// The kernel's forwarding is turned on (`ipForwarding`).
    pub ip_forwarding: bool,
    /// Workloads may send from the prefixes that their WorkloadEndpoint allows beside its addresses
    /// (`workloadSourceSpoofing: Any`).
    pub spoofing: bool,
    /// Workloads may send VXLAN packets (`allowVXLANPacketsFromWorkloads`).
    pub vxlan_from_workloads: bool,
    /// Workloads may send IPIP packets (`allowIPIPPacketsFromWorkloads`).
    pub ipip_from_workloads: bool,
    /// What becomes of packets to unused addresses of services (`serviceLoopPrevention`).
    pub service_loops: ServiceLoops,
}

/// Names of interfaces, as a regular expression that matches anywhere unless it is anchored.
#[derive(Clone, Debug)]
pub struct InterfacePattern(regex_lite::Regex);

impl InterfacePattern {
    /// Calico's default: interfaces named like hardware.
    pub(crate) const HARDWARE: &'static str = "^((en|wl|ww|sl|ib)[Pcopsvx].*|(eth|wlan|wwan).*)";

    /// `None` when it is no regular expression.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        regex_lite::Regex::new(text).ok().map(Self)
    }

    /// True when a name matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl Default for InterfacePattern {
    fn default() -> Self {
        // Compiled once: each pass of the agent begins with the defaults.
        static HARDWARE: LazyLock<InterfacePattern> = LazyLock::new(|| {
            InterfacePattern::new(InterfacePattern::HARDWARE)
                .expect("invariant: a constant that a test compiles")
        });
        HARDWARE.clone()
    }
}

impl PartialEq for InterfacePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for InterfacePattern {}

/// `ip route add` without a protocol, as CNI plugins and Felix's workload and VXLAN routes.
pub(crate) const PROTOCOL_BOOT: u8 = 3;
/// Protocol of our routes: Felix's own number, so that either can take over from the other.
pub(crate) const ROUTE_PROTOCOL: u8 = 80;
/// Felix's `routeRefreshInterval`.
const ROUTE_REFRESH: Duration = Duration::from_secs(90);
/// Felix's `netlinkTimeout`.
pub(crate) const KERNEL_TIMEOUT: Duration = Duration::from_secs(10);

impl Default for Settings {
    fn default() -> Self {
        Self {
            interface_prefixes: vec!["cali".to_owned()],
            vxlan_vni: 4096,
            vxlan_port: 4789,
            vxlan_tx_checksum: None,
            ipip_mtu: None,
            vxlan_mtu: None,
            vxlan_mtu_v6: None,
            ipv4_route_metric: 1024,
            ipv6_route_metric: 1024,
            route_protocol: ROUTE_PROTOCOL,
            route_source: None,
            route_source_v6: None,
            workload_routes: false,
            external_nodes: BTreeSet::new(),
            kernel_timeout: KERNEL_TIMEOUT,
            ipv4: true,
            ipv6: true,
            felix_routes: ProgramClusterRoutes::EnabledIpipOnly,
            bgp_routes: ProgramClusterRoutes::EnabledNoEncapOnly,
            nat_excludes_hosts: false,
            nat_address: None,
            nat_ports: None,
            nat_interface: None,
            nat_backend: NatBackend::Auto,
            mtu_interfaces: InterfacePattern::default(),
            route_refresh: ROUTE_REFRESH,
            objects: false,
            route_sync: true,
            ip_forwarding: true,
            spoofing: false,
            vxlan_from_workloads: false,
            ipip_from_workloads: false,
            service_loops: ServiceLoops::Drop,
        }
    }
}

/// The name of the configurations of all nodes.
const DEFAULT: &str = "default";

/// Values that win over the datastore: FelixConfiguration's keys in any case (`FELIX_VXLANMTU`
/// becomes `vxlanmtu`) with their values.
pub type Overrides = BTreeMap<String, String>;

impl Settings {
    /// The settings of a node. What cannot be read is named, and the value before it stays.
    #[must_use]
    pub fn resolve(
        base: &Self,
        snapshot: &Snapshot,
        me: &NodeName,
        overrides: &Overrides,
    ) -> (Self, Vec<Problem>) {
        let mut settings = base.clone();
        let mut problems = Vec::new();
        settings.apply_stored(DEFAULT, snapshot, &mut problems);
        let common = settings.clone();
        settings.apply_stored(&me.configuration(), snapshot, &mut problems);
        settings.name_apart(&common, snapshot, me, overrides, &mut problems);
        for (key, value) in overrides {
            let subject = format!("FELIX_{}", key.to_ascii_uppercase());
            settings.apply(&subject, key, value, &mut problems);
        }
        (settings, problems)
    }

    /// Lays the two configurations of a name over the settings.
    fn apply_stored(&mut self, name: &str, snapshot: &Snapshot, problems: &mut Vec<Problem>) {
        if let Some(configuration) = snapshot.felix_configurations.get(name) {
            let subject = format!("FelixConfiguration {name}");
            let spec = serde_json::to_value(&configuration.spec).unwrap_or_default();
            for (key, value) in spec.as_object().into_iter().flatten() {
                self.apply(&subject, key, &plain(value), problems);
            }
        }
        if let Some(configuration) = snapshot.bgp_configurations.get(name) {
            self.apply_bgp(name, &configuration.spec, problems);
        }
    }

    /// What all nodes of a VXLAN have to have alike.
    fn vxlan(&self) -> [(&'static str, u32); 2] {
        [
            ("vxlanVNI", self.vxlan_vni),
            ("vxlanPort", u32::from(self.vxlan_port)),
        ]
    }

    /// Names what this node's own FelixConfiguration sets for VXLAN otherwise than another node
    /// has it: no packet passes between the two. `common` are the settings of a node without a
    /// configuration of its own. A value of the environment counts for all nodes, as far as is
    /// known here.
    fn name_apart(
        &self,
        common: &Self,
        snapshot: &Snapshot,
        me: &NodeName,
        overrides: &Overrides,
        problems: &mut Vec<Problem>,
    ) {
        let mut pools = snapshot.pools.values();
        if !pools.any(|pool| pool.spec.vxlan_mode != EncapMode::Never) {
            return;
        }
        let pairs = self.vxlan().into_iter().zip(common.vxlan());
        for (place, ((key, own), (_, usual))) in pairs.enumerate() {
            let is_set = |name: &String| name.eq_ignore_ascii_case(key);
            if own == usual || overrides.keys().any(is_set) {
                continue;
            }
            let others = snapshot.nodes.keys().filter(|name| *name != me);
            let mut others = others.map(|name| {
                let mut settings = common.clone();
                settings.apply_stored(&name.configuration(), snapshot, &mut Vec::new());
                (name, settings.vxlan()[place].1)
            });
            let Some((other, theirs)) = others.find(|(_, theirs)| *theirs != own) else {
                continue;
            };
            problems.push(problem(
                ProblemCode::AgentClusterSetting,
                &format!("FelixConfiguration {}", me.configuration()),
                format!(
                    "{key} is {own} on this node and {theirs} on {other}: no VXLAN packet passes between the two; \
                     all nodes need the same"
                ),
            ));
        }
    }

    fn apply(&mut self, subject: &str, key: &str, value: &str, problems: &mut Vec<Problem>) {
        if let Some(FieldEffect::Without(harmless, reason)) = keys::setting_effect(key)
            && !value.is_empty()
            && !harmless.iter().any(|h| h.eq_ignore_ascii_case(value))
        {
            let reason = format!("{key} {value:?} has no effect: {reason}");
            problems.push(problem(
                ProblemCode::AgentSettingWithoutEffect,
                subject,
                reason,
            ));
        }
        if let Err(expected) = keys::set(self, key, value) {
            problems.push(problem(
                ProblemCode::AgentInvalidSetting,
                subject,
                format!("{key} {value:?} is not usable; expected {expected}; it is ignored"),
            ));
        }
    }

    fn apply_bgp(
        &mut self,
        name: &str,
        spec: &caracal_model::BgpConfigurationSpec,
        problems: &mut Vec<Problem>,
    ) {
        if let Some(metric) = spec.ipv4_normal_route_priority {
            self.ipv4_route_metric = metric;
        }
        if let Some(metric) = spec.ipv6_normal_route_priority {
            self.ipv6_route_metric = metric;
        }
        if let Some(text) = &spec.program_cluster_routes {
            match keys::program_cluster_routes(text) {
                Ok(value) => self.bgp_routes = value,
                Err(expected) => problems.push(problem(
                    ProblemCode::AgentInvalidSetting,
                    &format!("BGPConfiguration {name}"),
                    format!(
                        "programClusterRoutes {text:?} is not usable; expected {expected}; it is ignored"
                    ),
                )),
            }
        }
    }

    /// True when an interface of that name belongs to a workload.
    #[must_use]
    pub(crate) fn is_workload_interface(&self, name: &str) -> bool {
        self.interface_prefixes.iter().any(|p| name.starts_with(p))
    }

    /// True when a family is programmed.
    #[must_use]
    pub const fn family(&self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// Metric of routes to local workloads and of learned routes outside all pools.
    #[must_use]
    pub(crate) const fn route_metric(&self, family: Family) -> u32 {
        match family {
            Family::Ipv4 => self.ipv4_route_metric,
            Family::Ipv6 => self.ipv6_route_metric,
        }
    }
}

/// A value as the environment would spell it: lists with commas.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(entries: &[(&str, &str)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (name, spec) in entries {
            put(&mut snapshot, "felixconfigurations", name, spec);
        }
        snapshot
    }

    fn put(snapshot: &mut Snapshot, kind: &str, name: &str, spec: &str) {
        let path = format!("/calico/resources/v3/projectcalico.org/{kind}/{name}");
        let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
        snapshot.apply(&path, Some(value.as_bytes()), 1);
    }

    #[test]
    fn precedence_is_default_then_node_then_environment() {
        let s = snapshot(&[
            (
                "default",
                r#"{"vxlanMTU":1400,"vxlanVNI":5000,"ipipMTU":1300,"logSeverityScreen":"Info"}"#,
            ),
            ("node.a", r#"{"vxlanMTU":1300,"vxlanMTUV6":1280}"#),
            ("node.b", r#"{"vxlanMTU":1200}"#),
        ]);
        let overrides = Overrides::from([("IPINIPMTU".to_owned(), "0".to_owned())]);
        let (settings, problems) =
            Settings::resolve(&Settings::default(), &s, &"a".into(), &overrides);
        assert_eq!(settings.vxlan_mtu, Some(1300));
        assert_eq!(settings.vxlan_mtu_v6, Some(1280));
        assert_eq!(settings.vxlan_vni, 5000);
        assert_eq!(settings.ipip_mtu, None, "the environment wins");
        assert_eq!(problems, []);
    }

    #[test]
    fn lists_are_read_as_the_environment_spells_them() {
        let list = r#"{"externalNodesList":["10.0.0.9","192.0.2.0/24"],"netlinkTimeout":"2s","routeSource":"WorkloadIPs"}"#;
        let s = snapshot(&[("default", list)]);
        let none = Overrides::new();
        let (settings, problems) = Settings::resolve(&Settings::default(), &s, &"a".into(), &none);
        assert_eq!(problems, []);
        let ranges: Vec<String> = settings
            .external_nodes
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(ranges, ["10.0.0.9/32", "192.0.2.0/24"]);
        assert_eq!(settings.kernel_timeout, Duration::from_secs(2));
        assert!(settings.workload_routes);
        let environment =
            Overrides::from([("EXTERNALNODESCIDRLIST".to_owned(), "10.0.0.7".to_owned())]);
        let (settings, _) = Settings::resolve(&Settings::default(), &s, &"a".into(), &environment);
        let ranges: Vec<String> = settings
            .external_nodes
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(ranges, ["10.0.0.7/32"], "the environment wins");
    }

    #[test]
    fn who_makes_checksums_is_read_from_what_felix_is_told_of_the_kernel() {
        let of = |value: &str| {
            let spec = format!(r#"{{"featureDetectOverride":"{value}"}}"#);
            let s = snapshot(&[("default", &spec)]);
            let none = Overrides::new();
            let (settings, problems) =
                Settings::resolve(&Settings::default(), &s, &"a".into(), &none);
            (settings.vxlan_tx_checksum, problems.len())
        };
        assert_eq!(of("ChecksumOffloadBroken=true"), (Some(false), 0));
        assert_eq!(
            of("SNATFullyRandom=false, checksumoffloadbroken=false"),
            (Some(true), 0)
        );
        assert_eq!(of("RestoreSupportsLock=true"), (None, 0));
        assert_eq!(of("ChecksumOffloadBroken"), (None, 1));
        assert_eq!(of("ChecksumOffloadBroken=maybe"), (None, 1));
    }

    #[test]
    fn a_bad_value_is_named_and_the_one_before_stays() {
        let s = snapshot(&[(
            "default",
            r#"{"vxlanVNI":0,"programClusterRoutes":"Sometimes","vxlanPort":4790}"#,
        )]);
        let (settings, problems) =
            Settings::resolve(&Settings::default(), &s, &"a".into(), &Overrides::new());
        assert_eq!(settings.vxlan_vni, 4096);
        assert_eq!(settings.vxlan_port, 4790);
        let reasons: Vec<_> = problems.iter().map(|p| p.reason.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "vxlanVNI \"0\" is not usable; expected a VNI of 1 to 16777215; it is ignored",
                "programClusterRoutes \"Sometimes\" is not usable; expected Enabled, Disabled, EnabledIPIPOnly or EnabledNoEncapOnly; it is ignored",
            ]
        );
        assert_eq!(problems[0].subject, "FelixConfiguration default");
    }

    #[test]
    fn what_one_node_alone_sets_for_vxlan_is_named_there() {
        let told = |s: &Snapshot, me: &str, overrides: &Overrides| -> Vec<String> {
            let (_, problems) = Settings::resolve(&Settings::default(), s, &me.into(), overrides);
            for problem in &problems {
                assert_eq!(problem.code, ProblemCode::AgentClusterSetting);
                assert_eq!(problem.subject, format!("FelixConfiguration node.{me}"));
            }
            problems.into_iter().map(|p| p.reason).collect()
        };
        let (none, nothing) = (Overrides::new(), [""; 0]);
        let mut s = snapshot(&[
            ("default", r#"{"vxlanPort":4790}"#),
            ("node.a", r#"{"vxlanVNI":5000,"vxlanPort":4790}"#),
        ]);
        put(&mut s, "nodes", "a", "{}");
        put(&mut s, "nodes", "b", "{}");
        assert_eq!(told(&s, "a", &none), nothing, "there is no VXLAN");
        let pool = r#"{"cidr":"10.244.0.0/16","vxlanMode":"Always"}"#;
        put(&mut s, "ippools", "p", pool);
        let vni = "vxlanVNI is 5000 on this node and 4096 on b: no VXLAN packet passes between the two; all nodes need the same";
        assert_eq!(told(&s, "a", &none), [vni]);
        assert_eq!(told(&s, "b", &none), nothing, "it is not its setting");
        let port = r#"{"vxlanVNI":5000,"vxlanPort":4791}"#;
        put(&mut s, "felixconfigurations", "node.b", port);
        assert_eq!(told(&s, "a", &none), nothing, "each has 5000");
        let said = told(&s, "b", &none);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("vxlanPort is 4791 on this node and 4790 on a"));
        let environment = Overrides::from([("VXLANPORT".to_owned(), "4792".to_owned())]);
        assert_eq!(told(&s, "b", &environment), nothing, "all have 4792");
    }

    #[test]
    fn what_has_no_effect_is_told() {
        let s = snapshot(&[(
            "default",
            r#"{"wireguardEnabled":true,"bpfEnabled":false,"floatingIPs":"Disabled","mtuIfacePattern":"^bond","routeRefreshInterval":"3m"}"#,
        )]);
        let (settings, problems) =
            Settings::resolve(&Settings::default(), &s, &"a".into(), &Overrides::new());
        let reasons: Vec<_> = problems.iter().map(|p| p.reason.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "wireguardEnabled \"true\" has no effect: there is no WireGuard: nothing is encrypted"
            ]
        );
        assert_eq!(settings.route_refresh, Duration::from_secs(180));
        assert!(
            settings.mtu_interfaces.matches("bond0") && !settings.mtu_interfaces.matches("eth0")
        );
    }
}
