//! The kernel side: the container's network namespace, the veth pair, sysctls of its own devices,
//! and waiting for the agent's route. Programs no route of the host: that is the agent's alone.

pub(crate) mod link;
pub(crate) mod netns;
pub(crate) mod pod;
pub(crate) mod pod_routes;
pub(crate) mod route_wait;
pub(crate) mod sysctl;
pub(crate) mod veth;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::Family;
pub(crate) use caracal_model::HOST_END_MAC as HOST_MAC;

/// The gateway of every pod. Nobody holds it; the host side answers for it.
pub(crate) const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The IPv6 gateway of every pod: the link-local address that follows from [`HOST_MAC`] (RFC 4291,
/// appendix A).
pub(crate) const GATEWAY_V6: Ipv6Addr =
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0xecee, 0xeeff, 0xfeee, 0xeeee);

/// The gateway of a family.
#[must_use]
pub(crate) const fn gateway(family: Family) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::V4(GATEWAY_V4),
        Family::Ipv6 => IpAddr::V6(GATEWAY_V6),
    }
}
