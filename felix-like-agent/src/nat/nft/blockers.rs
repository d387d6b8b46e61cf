//! Chains of others that drop what is forwarded.

use super::TABLE;

/// A chain of somebody else's that drops by policy what is forwarded. Accepting in our own chain
/// does not help against it: a packet has to pass both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocker {
    /// `ip`, `ip6` or `inet`.
    pub family: String,
    /// Table of the chain.
    pub table: String,
    pub chain: String,
}

impl Blocker {
    /// True when it is iptables' own, and so takes rules from iptables.
    #[must_use]
    pub(crate) fn is_iptables(&self, family: &str) -> bool {
        self.family == family && self.table == "filter" && self.chain == "FORWARD"
    }
}

/// The blockers in what `nft -j list chains` prints.
#[must_use]
pub(crate) fn blockers(listing: &str) -> Vec<Blocker> {
    let listing: serde_json::Value = serde_json::from_str(listing).unwrap_or_default();
    let chains = listing["nftables"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|o| &o["chain"]);
    let text =
        |chain: &serde_json::Value, key: &str| chain[key].as_str().unwrap_or_default().to_owned();
    chains
        .filter(|c| c["hook"] == "forward" && c["policy"] == "drop")
        .map(|c| Blocker {
            family: text(c, "family"),
            table: text(c, "table"),
            chain: text(c, "name"),
        })
        .filter(|b| b.table != TABLE)
        .collect()
}
