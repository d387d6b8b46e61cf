//! The ways that routes go, as next-hop objects stand for them.

use std::net::IpAddr;

use caracal_model::net::IfName;

use crate::kernel_objects::{NextHop, Route};

/// The direction of a next hop, and the MTU of the routes that go there; `onlink` is no part of it.
/// The MTU is, although objects have none: Linux takes IPv4 routes through one object for the same
/// in everything but the prefix, and gives the later ones the first one's MTU.
pub(super) type GatewayKey<'a> = (IpAddr, &'a IfName, Option<u32>);

/// Routes that a way has at least when an object stands for it. It depends on the plan alone, so
/// that after any damage the kernel is as it was.
pub(super) const SHARED: usize = 2;

/// The way of a route that can go through an object.
pub(super) fn gateway_key(route: &Route) -> Option<GatewayKey<'_>> {
    match route.target.hops() {
        [hop] => gateway_key_of(hop, route.mtu),
        _ => None,
    }
}

pub(super) fn gateway_key_of(hop: &NextHop, mtu: Option<u32>) -> Option<GatewayKey<'_>> {
    Some((hop.gateway?, &hop.link, mtu))
}
