//! `--ip-masq`: a table of nftables for each family; where `nft` cannot be used, a chain of
//! iptables. What is left of the other kind goes, also flanneld's, so that only one masquerades.

use std::time::Duration;

use caracal_agent::{
    IptablesChain, IptablesError, RuleTable, RuleTableError, put_iptables_chain,
    remove_iptables_chain,
};
use caracal_flannel::{
    FlannelConfig, NodeSubnets, masquerade_chain, masquerade_rules, masquerade_table,
};
use caracal_model::Family;

use super::args::FlannelArgs;

/// What writes the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Nft,
    Iptables,
}

/// The rules of the families that the network has.
pub(super) struct Masquerade {
    tables: Vec<(Family, RuleTable)>,
    fully_random: bool,
    /// Pause between looks at iptables, which tells nobody of changes.
    resync: Duration,
    /// `None` = nothing was written yet.
    tool: Option<Tool>,
    /// Nothing is left of the other tool's rules, as far as that can be known.
    alone: bool,
    /// What was said last of what is wrong; each reason once.
    told: String,
}

impl Masquerade {
    /// None without `--ip-masq`.
    pub(super) fn new(args: &FlannelArgs, config: &FlannelConfig) -> Option<Self> {
        if !args.ip_masq {
            return None;
        }
        let table = |family, word| (family, RuleTable::new(word, masquerade_table(family)));
        let tables = [(Family::Ipv4, "ip"), (Family::Ipv6, "ip6")].into_iter();
        let tables = tables.filter(|(family, _)| config.families().has(*family));
        Some(Self {
            tables: tables.map(|(family, word)| table(family, word)).collect(),
            fully_random: !args.ip_masq_fully_random_disable,
            resync: args.iptables_resync(),
            tool: None,
            alone: false,
            told: String::new(),
        })
    }

    /// Writes what differs. False, and the reason in the log, where that is not possible.
    pub(super) async fn put(&mut self, config: &FlannelConfig, subnets: NodeSubnets) -> bool {
        let mut without_nft = String::new();
        if self.tool != Some(Tool::Iptables) {
            match self.put_tables(config, subnets).await {
                Ok(()) => {
                    self.tool = Some(Tool::Nft);
                    match self.alone {
                        true => self.told.clear(),
                        false => self.remove_chains(config, subnets).await,
                    }
                    return true;
                }
                Err(error) => {
                    let hangs = error.is_timeout();
                    without_nft = format!("{:#}", anyhow::Error::from(error));
                    if hangs {
                        self.tell(without_nft);
                        return false;
                    }
                }
            }
        }
        match self.put_chains(config, subnets).await {
            Ok(()) => {
                if self.tool != Some(Tool::Iptables) {
                    tracing::warn!("--ip-masq: nft cannot be used, and iptables is: {without_nft}");
                    (self.tool, self.alone) = (Some(Tool::Iptables), false);
                    self.told.clear();
                }
                self.remove_tables().await;
                true
            }
            Err(error) => {
                let reason = format!("{:#}", anyhow::Error::from(error));
                let reason = [without_nft, reason].into_iter().filter(|r| !r.is_empty());
                self.tell(reason.collect::<Vec<_>>().join("; "));
                false
            }
        }
    }

    fn tell(&mut self, reason: String) {
        if reason != self.told {
            tracing::error!("--ip-masq: {reason}");
            self.told = reason;
        }
    }

    async fn put_tables(
        &mut self,
        config: &FlannelConfig,
        subnets: NodeSubnets,
    ) -> Result<(), RuleTableError> {
        for (family, table) in &mut self.tables {
            let (Some(range), Some(subnet)) = (config.range(*family), subnets.subnet(*family))
            else {
                continue;
            };
            let rules = masquerade_rules(range.network, subnet, self.fully_random);
            if table.put(&rules).await? {
                tracing::info!(%subnet, "rules of {} are written", masquerade_table(*family));
            }
        }
        Ok(())
    }

    async fn put_chains(
        &self,
        config: &FlannelConfig,
        subnets: NodeSubnets,
    ) -> Result<(), IptablesError> {
        for (family, chain) in self.chains(config, subnets) {
            if put_iptables_chain(family, &chain).await? {
                tracing::info!(%family, "rules of iptables' {} are written", chain.name);
            }
        }
        Ok(())
    }

    fn chains(
        &self,
        config: &FlannelConfig,
        subnets: NodeSubnets,
    ) -> impl Iterator<Item = (Family, IptablesChain)> {
        let families = [Family::Ipv4, Family::Ipv6].into_iter();
        families.filter_map(move |family| {
            let (range, subnet) = (config.range(family)?, subnets.subnet(family)?);
            let chain = masquerade_chain(range.network, subnet, self.fully_random);
            Some((family, chain))
        })
    }

    /// Beside nftables: what iptables still has of these rules, from before or from flanneld.
    async fn remove_chains(&mut self, config: &FlannelConfig, subnets: NodeSubnets) {
        let chains: Vec<_> = self.chains(config, subnets).collect();
        for (family, chain) in chains {
            match remove_iptables_chain(family, &chain).await {
                Ok(true) => tracing::info!(%family, "iptables' {} is removed", chain.name),
                Ok(false) => {}
                Err(error) => return self.tell(format!("{:#}", anyhow::Error::from(error))),
            }
        }
        self.alone = true;
        self.told.clear();
    }

    /// Beside iptables: the tables of before. Where there is no `nft` they cannot be seen, and they
    /// say the same.
    async fn remove_tables(&mut self) {
        if self.alone {
            return;
        }
        for (_, table) in &mut self.tables {
            if let Err(error) = table.remove().await {
                tracing::debug!(%error, "a table of nftables may be left");
            }
        }
        self.alone = true;
    }

    /// Resolves when the rules may have been changed by somebody else.
    pub(super) async fn changed_by_others(&mut self) {
        if self.tool == Some(Tool::Iptables) || !self.alone {
            return tokio::time::sleep(self.resync).await;
        }
        match &mut self.tables[..] {
            [(_, v4), (_, v6)] => tokio::select! {
                () = v4.changed_by_others() => {}
                () = v6.changed_by_others() => {}
            },
            [(_, only), ..] => only.changed_by_others().await,
            [] => std::future::pending().await,
        }
    }
}
