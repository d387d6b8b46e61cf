//! Rules of kube-proxy or Felix in the calling thread's network namespace, in each of their modes.

use std::fmt;

use caracal_model::Family;

use super::write::programs::{
    CommandError, IP6TABLES, IP6TABLES_NFT, IPTABLES, IPTABLES_NFT, Iptables, run,
};
use crate::foreign::{RuleOwner, iptables_removal, knows_workload, nftables_removal};

/// Addresses of services that IPVS has, below three lines of header.
const VIRTUAL_SERVICES: &str = "/proc/thread-self/net/ip_vs";
const HEADER: usize = 3;
/// Interfaces; one of them holds the addresses of services in the ipvs mode.
const INTERFACES: &str = "/proc/thread-self/net/dev";
const DUMMY: &str = "kube-ipvs0";

/// Why rules of another program could not be looked for, or not be taken away.
#[derive(Debug, thiserror::Error)]
#[error("rules of {0} cannot be looked for, or not be taken away")]
pub struct ForeignRulesError(RuleOwner, #[source] CommandError);

/// Rules in one of the places where a program may write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A table of its own.
    Nftables(&'static str),
    /// Chains of iptables, in the kernel's old tables or in those of nftables.
    Iptables { family: Family, is_legacy: bool },
    /// Virtual services of IPVS, or the interface with their addresses.
    Ipvs,
}

/// Rules of another program that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignRules {
    owner: RuleOwner,
    places: Vec<Place>,
}

impl ForeignRules {
    /// None.
    #[must_use]
    pub const fn none(owner: RuleOwner) -> Self {
        Self {
            owner,
            places: Vec::new(),
        }
    }

    /// Looks for them.
    ///
    /// # Errors
    /// [`ForeignRulesError`] when a program that is needed cannot be run.
    pub async fn find(owner: RuleOwner) -> Result<Self, ForeignRulesError> {
        let failed = |error| ForeignRulesError(owner, error);
        let tables = match run("nft", &["list", "tables"], "").await {
            Ok(tables) => tables,
            // The kernel has no nftables.
            Err(CommandError::Refused { .. }) => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let own = owner.nftables(&tables).into_iter();
        let mut places: Vec<Place> = own.map(Place::Nftables).collect();
        for family in [Family::Ipv4, Family::Ipv6] {
            let listing = owner.chain_listing(family);
            if owner.has_iptables(&tables, family)
                && run("nft", &["-f", "-"], &listing).await.is_ok()
            {
                places.push(Place::Iptables {
                    family,
                    is_legacy: false,
                });
            }
        }
        for family in [Family::Ipv4, Family::Ipv6] {
            let (tool, table) = (iptables(family, true), owner.first_chain().0);
            if !tool.has_table(table) {
                continue;
            }
            let saved = run(tool.save, &["-t", table], "").await;
            if owner.has_rules(&saved.map_err(failed)?) {
                places.push(Place::Iptables {
                    family,
                    is_legacy: true,
                });
            }
        }
        let is_translator = owner == RuleOwner::KubeProxy;
        places.extend((is_translator && has_ipvs()).then_some(Place::Ipvs));
        Ok(Self { owner, places })
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// True when IPVS translates: its connections live in it, and not in conntrack, so that nobody
    /// else can go on with them.
    #[must_use]
    pub fn has_ipvs(&self) -> bool {
        self.places.contains(&Place::Ipvs)
    }

    /// Those of `interfaces` that rules of Felix's do not know in one of their places: packets of
    /// theirs are dropped there.
    ///
    /// # Errors
    /// [`ForeignRulesError`].
    pub async fn unknown_workloads(
        &self,
        interfaces: &[String],
    ) -> Result<Vec<String>, ForeignRulesError> {
        let mut unknown = vec![];
        for place in &self.places {
            let listing = match place {
                // Of ARP alone; workloads are judged in the others.
                Place::Nftables("arp calico") | Place::Ipvs => continue,
                Place::Nftables(table) => {
                    let script = format!("list table {table}\n");
                    run("nft", &["-t", "-f", "-"], &script).await
                }
                Place::Iptables { family, is_legacy } => {
                    let (tool, table) = (iptables(*family, *is_legacy), self.owner.first_chain().0);
                    run(tool.save, &["-t", table], "").await
                }
            };
            let listing = listing.map_err(|error| ForeignRulesError(self.owner, error))?;
            let missing = interfaces
                .iter()
                .filter(|name| !knows_workload(&listing, name) && !unknown.contains(*name));
            unknown.extend(missing.cloned().collect::<Vec<_>>());
        }
        Ok(unknown)
    }

    /// Takes them away, but for those of IPVS. Connections that they have translated go on as long
    /// as another table translates.
    ///
    /// # Errors
    /// [`ForeignRulesError`]; those that came before are gone.
    pub async fn remove(&self) -> Result<(), ForeignRulesError> {
        let failed = |error| ForeignRulesError(self.owner, error);
        let mut tables = Vec::new();
        for place in &self.places {
            match place {
                Place::Nftables(table) => tables.push(*table),
                Place::Iptables { family, is_legacy } => {
                    let tool = iptables(*family, *is_legacy);
                    let saved = run(tool.save, &[], "").await.map_err(failed)?;
                    let script = iptables_removal(self.owner, &saved);
                    let removed = run(tool.restore, &["--noflush"], &script).await;
                    removed.map_err(failed)?;
                }
                Place::Ipvs => {}
            }
        }
        if !tables.is_empty() {
            let removed = run("nft", &["-f", "-"], &nftables_removal(&tables)).await;
            removed.map_err(failed)?;
        }
        Ok(())
    }
}

const fn iptables(family: Family, is_legacy: bool) -> Iptables {
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

impl fmt::Display for RuleOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KubeProxy => "kube-proxy",
            Self::Felix => "Felix",
        })
    }
}

impl fmt::Display for ForeignRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (at, place) in self.places.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { ", " })?;
            match place {
                Place::Nftables(table) => write!(f, "nftables table {table}"),
                Place::Iptables { family, is_legacy } => {
                    let form = if *is_legacy { "-legacy" } else { "" };
                    write!(f, "iptables{form} ({family})")
                }
                Place::Ipvs => f.write_str("ipvs"),
            }?;
        }
        Ok(())
    }
}
