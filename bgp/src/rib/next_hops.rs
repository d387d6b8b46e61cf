//! Which next hops can be reached (RFC 4271 §9.1.2.1): an input of the decision process, found out
//! elsewhere.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Costs of next hops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHops {
    /// The interior cost of each known next hop; `None`: it cannot be reached.
    pub known: BTreeMap<IpAddr, Option<u32>>,
    /// The answer for all others.
    pub others: Option<u32>,
}

impl Default for NextHops {
    /// Everything can be reached at no cost.
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            others: Some(0),
        }
    }
}

impl NextHops {
    /// The interior cost of a next hop; `None`: it cannot be reached.
    #[must_use]
    pub fn metric(&self, next_hop: &std::net::IpAddr) -> Option<u32> {
        self.known.get(next_hop).copied().unwrap_or(self.others)
    }
}
