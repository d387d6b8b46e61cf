//! Rules of kube-proxy in the calling thread's network namespace, in each of its modes.

use std::fmt;

use caracal_model::Family;

use super::write::programs::{
    CommandError, IP6TABLES, IP6TABLES_NFT, IPTABLES, IPTABLES_NFT, Iptables, run,
};
use crate::services::{
    chain_listing, has_iptables_nat, has_rules, iptables_removal, nftables_families,
    nftables_removal,
};

/// Where legacy iptables says which tables it has.
const LEGACY: [(Family, &str); 2] = [
    (Family::Ipv4, "/proc/thread-self/net/ip_tables_names"),
    (Family::Ipv6, "/proc/thread-self/net/ip6_tables_names"),
];
/// Addresses of services that IPVS has, below three lines of header.
const VIRTUAL_SERVICES: &str = "/proc/thread-self/net/ip_vs";
const HEADER: usize = 3;
/// Interfaces; one of them holds the addresses of services in the ipvs mode.
const INTERFACES: &str = "/proc/thread-self/net/dev";
const DUMMY: &str = "kube-ipvs0";

/// Why kube-proxy's rules could not be looked for, or not be taken away.
#[derive(Debug, thiserror::Error)]
#[error("rules of kube-proxy cannot be looked for, or not be taken away")]
pub struct KubeProxyError(#[source] CommandError);

/// Rules that one mode of kube-proxy has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyRules {
    /// A table of its own.
    Nftables(Family),
    /// Chains of iptables, in the kernel's old tables or in those of nftables.
    Iptables { family: Family, is_legacy: bool },
    /// Virtual services of IPVS, or the interface with their addresses.
    Ipvs,
}

/// Rules of kube-proxy that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeProxyRules(Vec<ProxyRules>);

impl KubeProxyRules {
    /// Looks for them.
    ///
    /// # Errors
    /// [`KubeProxyError`] when a program that is needed cannot be run.
    pub async fn find() -> Result<Self, KubeProxyError> {
        let mut found = Vec::new();
        let tables = match run("nft", &["list", "tables"], "").await {
            Ok(tables) => tables,
            // The kernel has no nftables.
            Err(CommandError::Refused { .. }) => String::new(),
            Err(error) => return Err(KubeProxyError(error)),
        };
        found.extend(
            nftables_families(&tables)
                .into_iter()
                .map(ProxyRules::Nftables),
        );
        for family in [Family::Ipv4, Family::Ipv6] {
            if !has_iptables_nat(&tables, family) {
                continue;
            }
            if run("nft", &["-f", "-"], &chain_listing(family))
                .await
                .is_ok()
            {
                found.push(ProxyRules::Iptables {
                    family,
                    is_legacy: false,
                });
            }
        }
        for (family, names) in LEGACY {
            let names = std::fs::read_to_string(names).unwrap_or_default();
            if !names.lines().any(|name| name == "nat") {
                continue;
            }
            let saved = run(iptables(family, true).save, &["-t", "nat"], "").await;
            if has_rules(&saved.map_err(KubeProxyError)?) {
                found.push(ProxyRules::Iptables {
                    family,
                    is_legacy: true,
                });
            }
        }
        found.extend(has_ipvs().then_some(ProxyRules::Ipvs));
        Ok(Self(found))
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when IPVS translates: its connections live in it, and not in conntrack, so that nobody
    /// else can go on with them.
    #[must_use]
    pub fn has_ipvs(&self) -> bool {
        self.0.contains(&ProxyRules::Ipvs)
    }

    /// Takes them away, but for those of IPVS. Connections that they have translated go on as long
    /// as another table translates.
    ///
    /// # Errors
    /// [`KubeProxyError`]; those that came before are gone.
    pub async fn remove(&self) -> Result<(), KubeProxyError> {
        let mut families = Vec::new();
        for rules in &self.0 {
            match rules {
                ProxyRules::Nftables(family) => families.push(*family),
                ProxyRules::Iptables { family, is_legacy } => {
                    let tool = iptables(*family, *is_legacy);
                    let saved = run(tool.save, &[], "").await.map_err(KubeProxyError)?;
                    let script = iptables_removal(&saved);
                    let removed = run(tool.restore, &["--noflush"], &script).await;
                    removed.map_err(KubeProxyError)?;
                }
                ProxyRules::Ipvs => {}
            }
        }
        if !families.is_empty() {
            let removed = run("nft", &["-f", "-"], &nftables_removal(&families)).await;
            removed.map_err(KubeProxyError)?;
        }
        Ok(())
    }
}

fn iptables(family: Family, is_legacy: bool) -> Iptables {
    match (family, is_legacy) {
        (Family::Ipv4, true) => IPTABLES,
        (Family::Ipv6, true) => IP6TABLES,
        (Family::Ipv4, false) => IPTABLES_NFT,
        (Family::Ipv6, false) => IP6TABLES_NFT,
    }
}

fn has_ipvs() -> bool {
    let services = std::fs::read_to_string(VIRTUAL_SERVICES).unwrap_or_default();
    let interfaces = std::fs::read_to_string(INTERFACES).unwrap_or_default();
    let mut names = interfaces.lines().filter_map(|line| line.split_once(':'));
    services.lines().count() > HEADER || names.any(|(name, _)| name.trim() == DUMMY)
}

impl fmt::Display for KubeProxyRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |rules: &ProxyRules| match rules {
            ProxyRules::Nftables(family) => format!("nftables ({family})"),
            ProxyRules::Iptables {
                family,
                is_legacy: false,
            } => format!("iptables ({family})"),
            ProxyRules::Iptables {
                family,
                is_legacy: true,
            } => {
                format!("iptables-legacy ({family})")
            }
            ProxyRules::Ipvs => "ipvs".to_owned(),
        };
        match self.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&self.0.iter().map(text).collect::<Vec<_>>().join(", ")),
        }
    }
}
