//! From the kernel's ways, as the agent reads them, to the next hops that the speaker decides with.

use caracal_agent::Ways;
use caracal_bgp::rib::{NextHops, Way};

/// What cannot be found among the ways cannot be reached.
pub(crate) fn of(ways: &Ways) -> NextHops {
    let way = |way: &caracal_agent::Way| Way {
        metric: way.metric,
        interface: Some(way.link.to_string()),
        gateway: way.gateway,
        carrier: way.carrier,
    };
    NextHops {
        known: ways
            .iter()
            .map(|(range, known)| (*range, known.map(way)))
            .collect(),
        others: None,
    }
}
