//! The key of a next-hop object: gateway, interface, and the MTU of the routes through it.

use std::net::IpAddr;

use caracal_model::IfName;

use crate::kernel_objects::{NextHop, Route};

/// Gateway, interface and MTU of a route; `onlink` is no part of it. The MTU is, although objects
/// have none: Linux takes IPv4 routes through one object for the same in everything but the
/// prefix, and gives the later ones the first one's MTU.
pub(super) type GatewayKey<'a> = (IpAddr, &'a IfName, Option<u32>);

/// Least number of routes through a gateway that get an object. It depends on the plan alone, so
/// that after any damage the kernel is as it was.
pub(super) const SHARED: usize = 2;

/// The key of a route that can go through an object.
pub(super) fn gateway_key(route: &Route) -> Option<GatewayKey<'_>> {
    match route.target.hops() {
        [hop] => gateway_key_of(hop, route.mtu),
        _ => None,
    }
}

pub(super) fn gateway_key_of(hop: &NextHop, mtu: Option<u32>) -> Option<GatewayKey<'_>> {
    Some((hop.gateway?, &hop.link, mtu))
}
