//! From the interfaces, as the agent reads them, to the networks that no peer may route for this
//! machine.

use caracal_agent::{Links, Ownership, local_networks};
use caracal_bgp::LocalNetworks;

/// The same for the speaker.
pub(crate) fn of(local: &caracal_agent::LocalNetworks) -> LocalNetworks {
    LocalNetworks {
        subnets: local.subnets.clone(),
        addresses: local.addresses.clone(),
    }
}

/// The networks of a node: the addresses of its tunnels and the interfaces of its workloads are of
/// pools, and the datastore says whose.
pub(crate) fn of_node(links: &Links, ownership: &Ownership) -> LocalNetworks {
    of(&local_networks(links, ownership))
}
