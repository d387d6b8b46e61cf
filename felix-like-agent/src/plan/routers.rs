//! Routers on the way to another node, for packets that are not encapsulated: a router drops those
//! for pods that it has no routes to, and knows them from BGP alone.

use std::net::IpAddr;

use caracal_model::{ProblemCode, Snapshot};

use super::Planner;
use super::destination::Destination;
use super::pools::Pool;
use crate::kernel_objects::NextHop;

/// True when a BGPPeer names an address: the routes of pods may leave the cluster by it, also
/// through a reflector or a second daemon. The mesh and selectors of nodes lead to nodes alone.
pub(super) fn may_know(snapshot: &Snapshot) -> bool {
    let mut peers = snapshot.bgp_peers.values();
    peers.any(|peer| !peer.spec.peer_ip.is_empty())
}

/// Warns of unencapsulated packets for a pool that go to `next_hop`, the node `name`, by a router
/// that nobody can have told of pods.
pub(super) fn warn(
    on: &Planner<'_>,
    to: &mut Destination,
    pool: &Pool,
    (name, next_hop): (&str, IpAddr),
    hop: &NextHop,
) {
    let Some(router) = hop.gateway.filter(|gateway| *gateway != next_hop) else {
        return;
    };
    if on.routers_may_know {
        return;
    }
    let sentence = format!(
        "{{}} is behind the router {router}, and no BGPPeer leads out of the cluster: packets for {} arrive there only if that router has routes to the pods by other means",
        pool.name
    );
    to.warn(
        ProblemCode::AgentUntoldRouter,
        pool.subject(),
        sentence,
        name,
    );
}
