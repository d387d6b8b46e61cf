//! From the kernel's ways, as the agent reads them, to the next hops that the speaker decides with.

use caracal_agent::Ways;
use caracal_bgp::rib::{NextHops, Way};
use caracal_model::Prefix;

/// What cannot be found among the ways cannot be reached.
pub(crate) fn of(ways: &Ways) -> NextHops {
    without(ways, |_| false)
}

/// The same, as if there were no way by the learned routes that `barred` names.
pub(crate) fn without(ways: &Ways, barred: impl Fn(&Prefix) -> bool) -> NextHops {
    let way = |way: &caracal_agent::Way| Way {
        metric: way.metric,
        interface: Some(way.link.to_string()),
        gateway: way.gateway,
        carrier: way.carrier,
    };
    NextHops {
        known: ways
            .iter()
            .filter(|(range, known)| !known.is_some_and(|way| way.learned) || !barred(range))
            .map(|(range, known)| (*range, known.map(way)))
            .collect(),
        others: None,
    }
}
