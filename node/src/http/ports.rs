//! Where health and metrics are served: Felix's variables and ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::config::{ConfigError, Env};

/// Felix's port for probes.
const HEALTH: u16 = 9099;
/// Felix's port for metrics.
const METRICS: u16 = 9091;

/// Addresses to serve on. Both serve every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    /// `FELIX_HEALTHENABLED` (true), `FELIX_HEALTHHOST` (localhost), `FELIX_HEALTHPORT` (9099).
    pub(crate) health: Option<SocketAddr>,
    /// `FELIX_PROMETHEUSMETRICSENABLED` (false), `…HOST` (all addresses), `…PORT` (9091).
    pub(crate) metrics: Option<SocketAddr>,
}

impl Ports {
    /// Resolves the environment.
    pub(crate) fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let local = Ipv4Addr::LOCALHOST.into();
        // Dual stack: an IPv6 socket that is not told otherwise takes IPv4 connections too.
        let any = Ipv6Addr::UNSPECIFIED.into();
        Ok(Self {
            health: listen(env, "FELIX_HEALTH", true, local, HEALTH)?,
            metrics: listen(env, "FELIX_PROMETHEUSMETRICS", false, any, METRICS)?,
        })
    }

    /// The addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let second = self.metrics.filter(|_| self.metrics != self.health);
        self.health.into_iter().chain(second)
    }
}

fn listen(
    env: &Env<'_>,
    variable: &str,
    enabled: bool,
    host: IpAddr,
    port: u16,
) -> Result<Option<SocketAddr>, ConfigError> {
    if !env.flag(&format!("{variable}ENABLED"), enabled)? {
        return Ok(None);
    }
    let chosen = env.parse(&format!("{variable}HOST"), |text| match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => text
            .parse()
            .map_err(|_| "expected an address or localhost".to_owned()),
    })?;
    let given = env.parse(&format!("{variable}PORT"), |text| {
        let number = text.parse::<u16>().ok().filter(|port| *port > 0);
        number.ok_or_else(|| "expected a port, 1 to 65535".to_owned())
    })?;
    let host = chosen.unwrap_or_else(|| possible(host));
    Ok(Some(SocketAddr::new(host, given.unwrap_or(port))))
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
    use std::collections::BTreeMap;

    use super::*;

    fn ports(pairs: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let vars: BTreeMap<String, String> = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let ports = Ports::from_env(&Env::new(&vars)).map_err(|e| e.to_string())?;
        Ok(ports.addresses().map(|a| a.to_string()).collect())
    }

    #[test]
    fn felix_variables_and_defaults() {
        assert_eq!(
            ports(&[]).as_deref(),
            Ok(&["127.0.0.1:9099".to_owned()][..])
        );
        let set = [
            ("FELIX_HEALTHPORT", "19099"),
            ("FELIX_HEALTHHOST", "::1"),
            ("FELIX_PROMETHEUSMETRICSENABLED", "true"),
            ("FELIX_PROMETHEUSMETRICSHOST", "10.0.0.1"),
        ];
        let both = ["[::1]:19099".to_owned(), "10.0.0.1:9091".to_owned()];
        assert_eq!(ports(&set).as_deref(), Ok(&both[..]));
        assert_eq!(ports(&[("FELIX_HEALTHENABLED", "false")]), Ok(Vec::new()));
        let bad = ports(&[("FELIX_HEALTHPORT", "0")]);
        assert!(bad.is_err_and(|e| e.contains("FELIX_HEALTHPORT=\"0\": expected a port")));
    }
}
