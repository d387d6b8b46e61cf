//! `--ip-masq`: a table of nftables for each family.

use caracal_agent::RuleTable;
use caracal_flannel::{FlannelConfig, NodeSubnets, masquerade_rules, masquerade_table};
use caracal_model::Family;

use super::args::FlannelArgs;

/// The tables of the families that the network has.
pub(super) struct Masquerade {
    tables: Vec<(Family, RuleTable)>,
    fully_random: bool,
}

impl Masquerade {
    /// None without `--ip-masq`.
    pub(super) fn new(args: &FlannelArgs, config: &FlannelConfig) -> Option<Self> {
        if !args.ip_masq {
            return None;
        }
        let table = |family, word| (family, RuleTable::new(word, masquerade_table(family)));
        let mut tables = vec![table(Family::Ipv4, "ip")];
        if config.v6.is_some() {
            tables.push(table(Family::Ipv6, "ip6"));
        }
        Some(Self {
            tables,
            fully_random: !args.ip_masq_fully_random_disable,
        })
    }

    /// Writes what differs. False, and the reason in the log, where that is not possible.
    pub(super) async fn put(&mut self, config: &FlannelConfig, subnets: NodeSubnets) -> bool {
        let mut done = true;
        for (family, table) in &mut self.tables {
            let (Some(range), Some(subnet)) = (config.range(*family), subnets.subnet(*family))
            else {
                continue;
            };
            let rules = masquerade_rules(range.network, subnet, self.fully_random);
            match table.put(&rules).await {
                Ok(true) => {
                    tracing::info!(%subnet, "rules of {} are written", masquerade_table(*family))
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::error!("--ip-masq: {:#}", anyhow::Error::from(error));
                    done = false;
                }
            }
        }
        done
    }

    /// Resolves when somebody else has changed a table.
    pub(super) async fn changed_by_others(&mut self) {
        match &mut self.tables[..] {
            [(_, v4), (_, v6)] => tokio::select! {
                () = v4.changed_by_others() => {}
                () = v6.changed_by_others() => {}
            },
            [(_, v4), ..] => v4.changed_by_others().await,
            [] => std::future::pending().await,
        }
    }
}
