//! What an operator may set for the agent: built-in defaults, then FelixConfiguration `default`, then
//! `node.NAME`, then overrides (the `FELIX_*` environment), in Calico's order of precedence.

use std::collections::BTreeMap;

use caracal_model::net::Family;
use caracal_model::snapshot::Problem;
use caracal_model::{NodeName, Snapshot};
use serde_json::Value;

use crate::desired::problem;

/// Which classes of routes to other nodes one of Calico's two programs is told to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramClusterRoutes {
    /// All.
    Enabled,
    /// None.
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

/// Settings of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Prefixes of the names of workload interfaces. At least one.
    pub interface_prefixes: Vec<String>,
    /// VXLAN network identifier.
    pub vxlan_vni: u32,
    /// VXLAN UDP port.
    pub vxlan_port: u16,
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
    /// IPv4 is programmed.
    pub ipv4: bool,
    /// IPv6 is programmed.
    pub ipv6: bool,
    /// FelixConfiguration's `programClusterRoutes`.
    pub felix_routes: ProgramClusterRoutes,
    /// BGPConfiguration's `programClusterRoutes`.
    pub bgp_routes: ProgramClusterRoutes,
    /// Traffic from pods to nodes' addresses keeps its source (`natOutgoingExclusions: IPPoolsAndHostIPs`).
    pub nat_excludes_hosts: bool,
}

/// Protocol of our routes: Felix's own number, so that either can take over from the other.
pub const ROUTE_PROTOCOL: u8 = 80;

impl Default for Settings {
    fn default() -> Self {
        Self {
            interface_prefixes: vec!["cali".to_owned()],
            vxlan_vni: 4096,
            vxlan_port: 4789,
            ipip_mtu: None,
            vxlan_mtu: None,
            vxlan_mtu_v6: None,
            ipv4_route_metric: 1024,
            ipv6_route_metric: 1024,
            route_protocol: ROUTE_PROTOCOL,
            ipv4: true,
            ipv6: true,
            felix_routes: ProgramClusterRoutes::EnabledIpipOnly,
            bgp_routes: ProgramClusterRoutes::EnabledNoEncapOnly,
            nat_excludes_hosts: false,
        }
    }
}

/// Values that win over the datastore: FelixConfiguration's keys in any case (`FELIX_VXLANMTU` becomes
/// `vxlanmtu`) with their values.
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
        let own = format!("node.{me}");
        for name in ["default", own.as_str()] {
            if let Some(configuration) = snapshot.felix_configurations.get(name) {
                let subject = format!("FelixConfiguration {name}");
                let spec = serde_json::to_value(&configuration.spec).unwrap_or_default();
                for (key, value) in spec.as_object().into_iter().flatten() {
                    settings.apply(&subject, key, &plain(value), &mut problems);
                }
            }
            if let Some(configuration) = snapshot.bgp_configurations.get(name) {
                settings.apply_bgp(name, &configuration.spec, &mut problems);
            }
        }
        for (key, value) in overrides {
            let subject = format!("FELIX_{}", key.to_ascii_uppercase());
            settings.apply(&subject, key, value, &mut problems);
        }
        (settings, problems)
    }

    fn apply(&mut self, subject: &str, key: &str, value: &str, problems: &mut Vec<Problem>) {
        if let Err(expected) = self.set(key, value) {
            problems.push(problem(
                "agent.invalid_setting",
                subject,
                format!("{key} {value:?} is not usable; expected {expected}; it is ignored"),
            ));
        }
    }

    /// `Err` says what would be accepted. Keys that do not concern the agent are none of its business.
    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        const MTU: &str = "an MTU of 576 to 65535 octets, or 0 for automatic";
        match key.to_ascii_lowercase().as_str() {
            "interfaceprefix" => {
                let prefixes: Vec<String> = value
                    .split(',')
                    .map(str::trim)
                    .filter(|p| !p.is_empty())
                    .map(str::to_owned)
                    .collect();
                if prefixes.is_empty() {
                    return Err("at least one prefix of interface names");
                }
                self.interface_prefixes = prefixes;
            }
            "vxlanvni" => {
                self.vxlan_vni = number(value, 1, 0x00ff_ffff).ok_or("a VNI of 1 to 16777215")?;
            }
            "vxlanport" => {
                self.vxlan_port = number(value, 1, u16::MAX).ok_or("a UDP port of 1 to 65535")?;
            }
            "ipipmtu" | "ipinipmtu" => self.ipip_mtu = mtu(value).ok_or(MTU)?,
            "vxlanmtu" => self.vxlan_mtu = mtu(value).ok_or(MTU)?,
            "vxlanmtuv6" => self.vxlan_mtu_v6 = mtu(value).ok_or(MTU)?,
            "ipv4normalroutepriority" => {
                self.ipv4_route_metric = metric(value).ok_or("a metric of 1 to 999999")?;
            }
            "ipv6normalroutepriority" => {
                self.ipv6_route_metric = metric(value).ok_or("a metric of 1 to 999999")?;
            }
            "programclusterroutes" => self.felix_routes = program_cluster_routes(value)?,
            "natoutgoingexclusions" => {
                self.nat_excludes_hosts = match value {
                    "IPPoolsOnly" => false,
                    "IPPoolsAndHostIPs" => true,
                    _ => return Err("IPPoolsOnly or IPPoolsAndHostIPs"),
                };
            }
            "ipv6support" => {
                self.ipv6 = value.parse().map_err(|_| "true or false")?;
            }
            _ => {}
        }
        Ok(())
    }

    fn apply_bgp(
        &mut self,
        name: &str,
        spec: &caracal_model::resource::bgp::BgpConfigurationSpec,
        problems: &mut Vec<Problem>,
    ) {
        if let Some(metric) = spec.ipv4_normal_route_priority {
            self.ipv4_route_metric = metric;
        }
        if let Some(metric) = spec.ipv6_normal_route_priority {
            self.ipv6_route_metric = metric;
        }
        if let Some(text) = &spec.program_cluster_routes {
            match program_cluster_routes(text) {
                Ok(value) => self.bgp_routes = value,
                Err(expected) => problems.push(problem(
                    "agent.invalid_setting",
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
    pub fn is_workload_interface(&self, name: &str) -> bool {
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
    pub const fn route_metric(&self, family: Family) -> u32 {
        match family {
            Family::Ipv4 => self.ipv4_route_metric,
            Family::Ipv6 => self.ipv6_route_metric,
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn number<T: std::str::FromStr + PartialOrd>(text: &str, low: T, high: T) -> Option<T> {
    text.parse().ok().filter(|n| (low..=high).contains(n))
}

fn metric(text: &str) -> Option<u32> {
    number(text, 1, crate::desired::BLACKHOLE_METRIC - 1)
}

#[allow(clippy::option_option, reason = "unusable / automatic / a value")]
fn mtu(text: &str) -> Option<Option<u32>> {
    match text.parse().ok()? {
        0 => Some(None),
        n @ 576..=65_535 => Some(Some(n)),
        _ => None,
    }
}

fn program_cluster_routes(text: &str) -> Result<ProgramClusterRoutes, &'static str> {
    ProgramClusterRoutes::from_text(text)
        .ok_or("Enabled, Disabled, EnabledIPIPOnly or EnabledNoEncapOnly")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(entries: &[(&str, &str)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (name, spec) in entries {
            let path = format!("/calico/resources/v3/projectcalico.org/felixconfigurations/{name}");
            let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
            snapshot.apply(&path, Some(value.as_bytes()), 1);
        }
        snapshot
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
}
