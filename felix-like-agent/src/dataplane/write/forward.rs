//! Chains that drop by policy what is forwarded, as Docker sets iptables' `FORWARD`: a packet has
//! to pass all of them, so that accepting in a table of ours is not enough.

use caracal_model::{Family, Prefix};

use super::chains::{IptablesError, remove_iptables_chain};
use super::programs::{
    CommandError, IP6TABLES, IP6TABLES_NFT, IPTABLES, IPTABLES_NFT, Iptables, run, unless_refused,
};
use crate::nat::iptables;
use crate::nat::iptables::chain::{IptablesChain, IptablesRule};
use crate::nat::nft::blockers::{Blocker, blockers};

/// Who drops by policy what is forwarded in the calling thread's network namespace.
pub(in crate::dataplane) struct ClosedForwards {
    /// Instances of iptables, with what they hold.
    pub(in crate::dataplane) iptables: Vec<(Iptables, String)>,
    /// Chains of somebody's nftables tables, which take no rules from us.
    pub(in crate::dataplane) blockers: Vec<Blocker>,
}

impl ClosedForwards {
    /// # Errors
    /// [`CommandError::Timeout`]: it is not known who drops.
    pub(in crate::dataplane) async fn read() -> Result<Self, CommandError> {
        let chains = unless_refused(run("nft", &["-j", "list", "chains"], "").await)?;
        let mut found = Self {
            iptables: Vec::new(),
            blockers: Vec::new(),
        };
        for blocker in blockers(&chains.unwrap_or_default()) {
            let tool = match &blocker {
                b if b.is_iptables("ip") => Some(IPTABLES_NFT),
                b if b.is_iptables("ip6") => Some(IP6TABLES_NFT),
                _ => None,
            };
            let saved = match &tool {
                Some(tool) => unless_refused(run(tool.save, &[], "").await)?,
                None => None,
            };
            match (tool, saved) {
                (Some(tool), Some(saved)) => found.iptables.push((tool, saved)),
                _ => found.blockers.push(blocker),
            }
        }
        for tool in [IPTABLES, IP6TABLES] {
            if !tool.has_table("filter") {
                continue;
            }
            let saved = unless_refused(run(tool.save, &[], "").await)?.unwrap_or_default();
            if iptables::drops_forward(&saved) {
                found.iptables.push((tool, saved));
            }
        }
        Ok(found)
    }
}

/// Why forwarded packets do not pass.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The program refused, or cannot be run.
    #[error("the chain {chain} cannot be written")]
    Chain {
        /// Chain of the rules.
        chain: &'static str,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Somebody's nftables chain drops by policy, and rules of other tables cannot undo that.
    #[error(
        "chain {chain} of nftables table {table} drops by policy what is forwarded; let {ranges} pass there"
    )]
    Blocked {
        /// Name of the chain.
        chain: String,
        /// Family and name of the table.
        table: String,
        /// The ranges of the rules.
        ranges: String,
    },
}

impl ForwardError {
    fn of_chain(chain: &'static str, source: CommandError) -> Self {
        Self::Chain {
            chain,
            source: source.into(),
        }
    }
}

/// Lets pass what comes from or goes to some ranges where iptables (either form, either family)
/// drops by policy what is forwarded, by a chain at the head of its `FORWARD`. Where nothing drops,
/// nothing is written.
#[derive(Clone, Debug)]
pub struct ForwardRules {
    name: &'static str,
    comment: &'static str,
    ranges: Vec<Prefix>,
}

impl ForwardRules {
    /// Rules in the chain `name`, with `comment` on each.
    #[must_use]
    pub const fn new(name: &'static str, comment: &'static str, ranges: Vec<Prefix>) -> Self {
        Self {
            name,
            comment,
            ranges,
        }
    }

    /// Writes what is missing. True when something was.
    ///
    /// # Errors
    /// [`ForwardError`] when a program refuses, and when somebody drops who takes no rules.
    pub async fn put(&self) -> Result<bool, ForwardError> {
        let closed = ClosedForwards::read().await;
        let closed = closed.map_err(|source| ForwardError::of_chain(self.name, source))?;
        let mut written = false;
        for (tool, saved) in closed.iptables {
            let chain = self.chain(tool.family);
            if chain.rules.is_empty() {
                continue;
            }
            if let Some(script) = chain.restore(&saved) {
                let answer = run(tool.restore, &["--noflush"], &script).await;
                answer.map_err(|source| ForwardError::of_chain(self.name, source))?;
                written = true;
            }
        }
        let drops = |blocker: &&Blocker| {
            let has = |family| self.ranges.iter().any(|range| range.family() == family);
            match blocker.family.as_str() {
                "ip" => has(Family::Ipv4),
                "ip6" => has(Family::Ipv6),
                _ => true,
            }
        };
        match closed.blockers.iter().find(drops) {
            None => Ok(written),
            Some(blocker) => Err(ForwardError::Blocked {
                chain: blocker.chain.clone(),
                table: format!("{} {}", blocker.family, blocker.table),
                ranges: self
                    .ranges
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }

    /// Removes the chain from all instances of iptables. True when it was there.
    ///
    /// # Errors
    /// [`IptablesError`] when a program refuses.
    pub async fn remove(&self) -> Result<bool, IptablesError> {
        let mut removed = false;
        for family in [Family::Ipv4, Family::Ipv6] {
            removed |= remove_iptables_chain(family, &self.chain(family)).await?;
        }
        Ok(removed)
    }

    fn chain(&self, family: Family) -> IptablesChain {
        let of_family = |range: &&Prefix| range.family() == family;
        let both = |range: &Prefix| {
            ["-s", "-d"].map(|side| IptablesRule {
                packets: format!("{side} {range}"),
                target: "ACCEPT",
            })
        };
        IptablesChain {
            table: "filter",
            hook: "FORWARD",
            name: self.name,
            comment: self.comment,
            rules: self
                .ranges
                .iter()
                .filter(of_family)
                .flat_map(both)
                .collect(),
        }
    }
}
