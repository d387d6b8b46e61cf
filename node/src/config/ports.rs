//! Where health and metrics are served: Felix's settings, from the environment and from
//! FelixConfigurations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use caracal_model::{NodeName, Problem, ProblemCode, Snapshot};
use serde_json::{Map, Value};

use crate::config::{ConfigError, Env};

/// Felix's port for probes.
const HEALTH: u16 = 9099;
/// Felix's port for metrics.
const METRICS: u16 = 9091;

/// Addresses to serve on. Both serve every path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ports {
    /// `healthEnabled` (true), `healthHost` (localhost), `healthPort` (9099).
    pub(crate) health: Option<SocketAddr>,
    /// `prometheusMetricsEnabled` (false), `…Host` (all addresses), `…Port` (9091).
    pub(crate) metrics: Option<SocketAddr>,
}

/// Settings of one source for one of the two endpoints; `None` = not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EndpointSettings {
    enabled: Option<bool>,
    host: Option<IpAddr>,
    port: Option<u16>,
}

impl EndpointSettings {
    /// These ports; those that are not set, from `below`.
    const fn over(self, below: Self) -> Self {
        const fn first<T: Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
            if a.is_some() { a } else { b }
        }
        Self {
            enabled: first(self.enabled, below.enabled),
            host: first(self.host, below.host),
            port: first(self.port, below.port),
        }
    }
}

/// The `FELIX_*` variables of both: they win over the datastore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortsEnv {
    health: EndpointSettings,
    metrics: EndpointSettings,
}

impl PortsEnv {
    /// Reads `FELIX_HEALTHENABLED`, `…HOST`, `…PORT` and `FELIX_PROMETHEUSMETRICSENABLED`, `…HOST`,
    /// `…PORT`.
    pub(crate) fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let from_env = |variable: &str| {
            let enabled = format!("{variable}ENABLED");
            Ok(EndpointSettings {
                enabled: match env.text(&enabled) {
                    Some(_) => Some(env.flag(&enabled, false)?),
                    None => None,
                },
                host: env.parse(&format!("{variable}HOST"), |text| {
                    host(text).ok_or_else(|| HOST.to_owned())
                })?,
                port: env.parse(&format!("{variable}PORT"), |text| {
                    port(text).ok_or_else(|| PORT.to_owned())
                })?,
            })
        };
        Ok(Self {
            health: from_env("FELIX_HEALTH")?,
            metrics: from_env("FELIX_PROMETHEUSMETRICS")?,
        })
    }

    /// The addresses, with the FelixConfigurations `default` and `node.NAME` below the environment.
    /// A value that cannot be used is named, and the one below it stays.
    pub(crate) fn with(&self, snapshot: &Snapshot, me: &NodeName) -> (Ports, Vec<Problem>) {
        let mut problems = Vec::new();
        let own = me.configuration();
        let (mut health, mut metrics) = (EndpointSettings::default(), EndpointSettings::default());
        for name in ["default", own.as_str()] {
            let Some(configuration) = snapshot.felix_configurations.get(name) else {
                continue;
            };
            let mut read = |keys: [&str; 3], below: EndpointSettings| {
                let fields = &configuration.spec.extra;
                endpoint_settings(fields, keys, name, &mut problems).over(below)
            };
            health = read(["healthEnabled", "healthHost", "healthPort"], health);
            let keys = [
                "prometheusMetricsEnabled",
                "prometheusMetricsHost",
                "prometheusMetricsPort",
            ];
            metrics = read(keys, metrics);
        }
        let ports = Ports {
            health: address(
                self.health.over(health),
                true,
                Ipv4Addr::LOCALHOST.into(),
                HEALTH,
            ),
            // Dual stack: by default an IPv6 socket takes IPv4 connections too.
            metrics: address(
                self.metrics.over(metrics),
                false,
                Ipv6Addr::UNSPECIFIED.into(),
                METRICS,
            ),
        };
        (ports, problems)
    }
}

impl Ports {
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let second = self.metrics.filter(|_| self.metrics != self.health);
        self.health.into_iter().chain(second)
    }
}

const HOST: &str = "expected an address or localhost";
const PORT: &str = "expected a port, 1 to 65535";

fn host(text: &str) -> Option<IpAddr> {
    match text {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        text => text.parse().ok(),
    }
}

fn port(text: &str) -> Option<u16> {
    text.parse::<u16>().ok().filter(|port| *port > 0)
}

/// Settings of a FelixConfiguration.
fn endpoint_settings(
    fields: &Map<String, Value>,
    [enabled, address, number]: [&str; 3],
    name: &str,
    problems: &mut Vec<Problem>,
) -> EndpointSettings {
    fn read<T>(
        fields: &Map<String, Value>,
        key: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let text = match fields.get(key) {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) if text.is_empty() => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let value = read(&text).map(Some);
        value.ok_or_else(|| format!("{key} {text:?} is not usable; {expected}; it is ignored"))
    }
    let mut note = |result: Result<(), String>| {
        if let Err(reason) = result {
            problems.push(Problem {
                code: ProblemCode::AgentInvalidSetting,
                subject: format!("FelixConfiguration {name}"),
                reason,
            });
        }
    };
    let mut settings = EndpointSettings::default();
    let boolean = |text: &str| text.parse().ok();
    note(read(fields, enabled, "expected true or false", boolean).map(|v| settings.enabled = v));
    note(read(fields, address, HOST, host).map(|v| settings.host = v));
    note(read(fields, number, PORT, port).map(|v| settings.port = v));
    settings
}

fn address(
    settings: EndpointSettings,
    enabled: bool,
    default: IpAddr,
    number: u16,
) -> Option<SocketAddr> {
    let host = settings.host.unwrap_or_else(|| possible(default));
    let address = SocketAddr::new(host, settings.port.unwrap_or(number));
    settings.enabled.unwrap_or(enabled).then_some(address)
}

/// Without IPv6 in the kernel there is no IPv6 socket to be had.
fn possible(host: IpAddr) -> IpAddr {
    let v6 = std::path::Path::new("/proc/sys/net/ipv6").exists();
    match host {
        IpAddr::V6(_) if !v6 => Ipv4Addr::UNSPECIFIED.into(),
        host => host,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use caracal_model::{Key, Kind};

    use super::*;

    fn ports(pairs: &[(&str, &str)], specs: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let vars: BTreeMap<String, String> = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let env = PortsEnv::from_env(&Env::new(&vars)).map_err(|e| e.to_string())?;
        let mut snapshot = Snapshot::default();
        for (name, spec) in specs {
            let path = Key::resource(Kind::FelixConfiguration, *name).to_path();
            let value = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
            snapshot.apply(&path, Some(value.as_bytes()), 1);
        }
        let (ports, problems) = env.with(&snapshot, &"a".into());
        match problems.first() {
            Some(problem) => Err(format!("{}: {}", problem.subject, problem.reason)),
            None => Ok(ports.addresses().map(|a| a.to_string()).collect()),
        }
    }

    #[test]
    fn felix_variables_and_defaults() {
        assert_eq!(ports(&[], &[]), Ok(vec!["127.0.0.1:9099".to_owned()]));
        let set = [
            ("FELIX_HEALTHPORT", "19099"),
            ("FELIX_HEALTHHOST", "::1"),
            ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
            ("FELIX_PROMETHEUSMETRICSHOST", "10.0.0.1"),
        ];
        let both = ["[::1]:19099".to_owned(), "10.0.0.1:9091".to_owned()];
        assert_eq!(ports(&set, &[]).as_deref(), Ok(&both[..]));
        let off = [("FELIX_HEALTHENABLED", "false")];
        assert_eq!(ports(&off, &[]), Ok(Vec::new()));
        let bad = ports(&[("FELIX_HEALTHPORT", "0")], &[]);
        assert!(bad.is_err_and(|e| e.contains("FELIX_HEALTHPORT=\"0\": expected a port")));
    }

    #[test]
    fn the_environment_wins_over_the_nodes_resource_and_that_over_the_default() {
        let default = r#"{"healthPort":1001,"healthHost":"10.0.0.9","prometheusMetricsEnabled":true,"prometheusMetricsHost":"10.0.0.9"}"#;
        let specs = [
            ("default", default),
            (
                "node.a",
                r#"{"healthPort":1002,"prometheusMetricsPort":1003}"#,
            ),
            ("node.b", r#"{"healthEnabled":false}"#),
        ];
        let of = |pairs: &[(&str, &str)]| ports(pairs, &specs).unwrap();
        assert_eq!(of(&[]), ["10.0.0.9:1002", "10.0.0.9:1003"]);
        let port = [("FELIX_HEALTHPORT", "1004")];
        assert_eq!(of(&port), ["10.0.0.9:1004", "10.0.0.9:1003"]);
        let off = [("FELIX_PROMETHEUSMETRICSENABLED", "false")];
        assert_eq!(of(&off), ["10.0.0.9:1002"]);
    }

    #[test]
    fn a_value_that_cannot_be_used_is_named_and_ignored() {
        let bad = ports(&[], &[("default", r#"{"healthPort":70000}"#)]);
        let said = "FelixConfiguration default: healthPort \"70000\" is not usable; expected a port, 1 to 65535; it is ignored";
        assert_eq!(bad, Err(said.to_owned()));
        let null = ports(
            &[],
            &[("default", r#"{"healthPort":null,"healthHost":""}"#)],
        );
        assert_eq!(null, Ok(vec!["127.0.0.1:9099".to_owned()]));
    }
}
