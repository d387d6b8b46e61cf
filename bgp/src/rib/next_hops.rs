//! Which next hops can be reached (RFC 4271 §9.1.2.1): an input of the decision process, found out
//! elsewhere.
//!
//! What comes in is not a list of next hops but the ways by which any would be reached, so that a next hop that is
//! heard of for the first time needs no question and no answer. Whoever feeds it leaves out what this speaker put into the
//! forwarding table itself: a next hop that is reached through what it announced is not reached.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use caracal_model::net::{Family, Prefix};
use foldhash::HashMap;
use serde::{Deserialize, Serialize};

/// How a range of addresses is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The interior cost.
    pub metric: u32,
    /// The interface, when it is known.
    pub interface: Option<String>,
    /// The gateway; `None` = the address is on the link.
    pub gateway: Option<IpAddr>,
    /// Something is at the other end of the interface. Without, the way is a last resort: a path over another one
    /// wins, whatever its attributes, and with no other one the path stays in use, for the cable may come back
    /// and nothing would be won by its loss.
    pub carrier: bool,
}

impl Default for Way {
    /// Reached at no cost, nobody knows how.
    fn default() -> Self {
        Self {
            metric: 0,
            interface: None,
            gateway: None,
            carrier: true,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gateway {
            Some(gateway) => write!(f, "via {gateway}")?,
            None => f.write_str("on the link")?,
        }
        if let Some(interface) = &self.interface {
            write!(f, " dev {interface}")?;
        }
        write!(f, ", metric {}", self.metric)?;
        f.write_str(if self.carrier { "" } else { ", no carrier" })
    }
}

/// The ways to next hops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHops {
    /// Ways by range; the longest one that contains a next hop counts. `None`: it cannot be reached.
    pub known: BTreeMap<Prefix, Option<Way>>,
    /// The answer for all others.
    pub others: Option<Way>,
}

impl Default for NextHops {
    /// Everything can be reached at no cost.
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            others: Some(Way::default()),
        }
    }
}

impl NextHops {
    /// The way to a next hop; `None`: it cannot be reached.
    #[must_use]
    pub fn way(&self, next_hop: &IpAddr) -> Option<&Way> {
        let bits = Family::of(*next_hop).bits();
        let known = (0..=bits)
            .rev()
            .find_map(|len| self.known.get(&Prefix::truncated(*next_hop, len)));
        known.unwrap_or(&self.others).as_ref()
    }
}

/// What the decision process wants to know of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) metric: u32,
    pub(super) carrier: bool,
}

/// The ways in force, with the answers given so far: next hops are few and paths are many.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    next_hops: NextHops,
    answers: RefCell<HashMap<IpAddr, Option<Cost>>>,
}

impl Tracked {
    pub(super) fn new(next_hops: NextHops) -> Self {
        Self {
            next_hops,
            answers: RefCell::default(),
        }
    }

    pub(super) const fn get(&self) -> &NextHops {
        &self.next_hops
    }

    /// True once somebody has said anything.
    pub(super) fn is_tracking(&self) -> bool {
        !self.next_hops.known.is_empty() || self.next_hops.others != Some(Way::default())
    }

    /// The cost of a next hop; `None`: it cannot be reached.
    pub(super) fn cost(&self, next_hop: &IpAddr) -> Option<Cost> {
        let cost = |way: &Way| Cost {
            metric: way.metric,
            carrier: way.carrier,
        };
        if self.next_hops.known.is_empty() {
            return self.next_hops.others.as_ref().map(cost);
        }
        *self
            .answers
            .borrow_mut()
            .entry(*next_hop)
            .or_insert_with(|| self.next_hops.way(next_hop).map(cost))
    }

    /// The interface by which a next hop is reached.
    pub(super) fn interface(&self, next_hop: &IpAddr) -> Option<&str> {
        if self.next_hops.known.is_empty() {
            return None;
        }
        self.next_hops.way(next_hop)?.interface.as_deref()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn rfc4271_9_1_2_1_the_longest_range_answers() {
        let way = |metric| {
            Some(Way {
                metric,
                ..Way::default()
            })
        };
        let next_hops = NextHops {
            known: BTreeMap::from([
                ("0.0.0.0/0".parse().unwrap(), way(100)),
                ("10.0.0.0/8".parse().unwrap(), way(7)),
                ("10.1.0.0/16".parse().unwrap(), None),
                ("10.1.2.3/32".parse().unwrap(), way(1)),
            ]),
            others: None,
        };
        let tracked = Tracked::new(next_hops);
        for (address, metric) in [
            ("10.1.2.3", Some(1)),
            ("10.1.2.4", None),
            ("10.2.0.1", Some(7)),
            ("192.0.2.1", Some(100)),
            ("2001:db8::1", None),
        ] {
            for _ in 0..2 {
                let cost = tracked.cost(&address.parse().unwrap());
                assert_eq!(cost.map(|c| c.metric), metric, "{address}");
            }
        }
    }
}
