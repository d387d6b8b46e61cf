//! `CARACAL_SERVICES*`: whether and how this node translates services.

use std::net::{Ipv6Addr, SocketAddr};

use caracal_agent::{NodePortAddressesError, ServiceSettings};

use super::{ConfigError, Env};

/// kube-proxy's port for its own health.
const PROXY_HEALTH: u16 = 10256;

/// `CARACAL_SERVICES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServicesMode {
    /// This node translates no services.
    #[default]
    Off,
    /// It does.
    On,
    /// It does where kube-proxy has no rules, or once it has taken over.
    Auto,
}

impl ServicesMode {
    /// True where this node may translate.
    pub(crate) fn is_on(self) -> bool {
        self != Self::Off
    }

    pub(super) fn from_env(env: &Env<'_>) -> Result<Self, ConfigError> {
        let mode = env.parse("CARACAL_SERVICES", |text| match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            _ => Err("expected on, off or auto".to_owned()),
        })?;
        Ok(mode.unwrap_or_default())
    }
}

/// `CARACAL_SERVICES_NODEPORT_ADDRESSES` and `CARACAL_SERVICES_RESET_TCP`.
pub(super) fn service_settings(env: &Env<'_>) -> Result<ServiceSettings, ConfigError> {
    let node_ports = env.parse("CARACAL_SERVICES_NODEPORT_ADDRESSES", |text| {
        text.parse()
            .map_err(|e: NodePortAddressesError| e.to_string())
    })?;
    Ok(ServiceSettings {
        node_ports: node_ports.unwrap_or_default(),
        reset_tcp: env.flag("CARACAL_SERVICES_RESET_TCP", false)?,
    })
}

/// `CARACAL_SERVICES_HEALTHZ`: where load balancers ask whether this node translates services.
pub(super) fn proxy_health(env: &Env<'_>) -> Result<Option<SocketAddr>, ConfigError> {
    let address = env.parse("CARACAL_SERVICES_HEALTHZ", |text| match text {
        "off" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            "expected off or an address with a port, such as 0.0.0.0:10256".to_owned()
        }),
    })?;
    // Dual stack: by default an IPv6 socket takes IPv4 connections too.
    Ok(address.unwrap_or_else(|| Some((Ipv6Addr::UNSPECIFIED, PROXY_HEALTH).into())))
}
