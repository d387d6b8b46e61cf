//! The routes of a container's interface, beside those that other interfaces of the container have:
//! a second attachment never takes the way of the first, or of another plugin. Where a destination
//! is another interface's already, ours has a higher metric and serves once that one is gone.

use std::net::IpAddr;

use caracal_model::{Family, Prefix};
use futures_util::TryStreamExt;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::RouteMessageBuilder;

use super::link::{KernelError, Link, Links};
use super::{GATEWAY_V4, GATEWAY_V6, gateway};

/// The main routing table.
const MAIN: u32 = 254;

/// The gateway's own route, on the link; of IPv4 only.
///
/// # Errors
/// [`KernelError::Refused`].
pub(super) async fn add_on_link(pod: &Links, link: &Link) -> Result<(), KernelError> {
    let destination = Prefix::host(gateway(Family::Ipv4));
    let route = route(link, &destination).scope(RouteScope::Link);
    put(pod, link, &destination, None, route).await
}

/// A route through the gateway.
///
/// # Errors
/// [`KernelError::Refused`].
pub(super) async fn add_through_gateway(
    pod: &Links,
    link: &Link,
    destination: &Prefix,
) -> Result<(), KernelError> {
    let via = gateway(destination.family());
    let route = route(link, destination)
        .gateway(via)
        .expect("invariant: gateway and destination are of one family");
    put(pod, link, destination, Some(via), route).await
}

fn route(link: &Link, destination: &Prefix) -> RouteMessageBuilder<IpAddr> {
    RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(destination.address(), destination.len())
        .expect("MODEL-2: the length fits the family")
        .output_interface(link.index)
        .protocol(RouteProtocol::Boot)
}

async fn put(
    pod: &Links,
    link: &Link,
    destination: &Prefix,
    via: Option<IpAddr>,
    route: RouteMessageBuilder<IpAddr>,
) -> Result<(), KernelError> {
    let all = list(pod, destination.family()).await?;
    let same = all.iter().filter(|(to, _)| to == destination);
    let (own, others): (Vec<_>, Vec<_>) = same.partition(|(_, seen)| seen.oif == Some(link.index));
    if own.iter().any(|(_, seen)| seen.gateway == via) {
        return Ok(());
    }
    let others: Vec<_> = others
        .into_iter()
        .map(|(_, seen)| Other {
            metric: seen.priority,
            is_foreign: seen.gateway != via,
        })
        .collect();
    let metric = match own.first() {
        Some((_, seen)) => seen.priority,
        None => metric(destination.family(), &others),
    };
    let action = match via {
        Some(via) => format!("add a route to {destination} via {via} in the container"),
        None => format!("add a route to {destination} in the container"),
    };
    let request = pod.handle.route().add(route.priority(metric).build());
    let request = request.replace();
    request
        .execute()
        .await
        .map_err(KernelError::refused(action))
}

/// Another interface's route to the same destination.
struct Other {
    metric: u32,
    /// Not through our gateway: another program made it.
    is_foreign: bool,
}

/// The metric of a route beside others: behind all of other programs, and else the first that is
/// free, beginning with the one that the kernel gives.
fn metric(family: Family, others: &[Other]) -> u32 {
    let first = match family {
        Family::Ipv4 => 0,
        Family::Ipv6 => 1024,
    };
    let foreign = others.iter().filter(|other| other.is_foreign);
    let behind = foreign.map(|other| other.metric.saturating_add(1)).max();
    let mut metric = behind.unwrap_or(first).max(first);
    while metric < u32::MAX && others.iter().any(|other| other.metric == metric) {
        metric += 1;
    }
    metric
}

/// The destinations of a family that the pod reaches through the gateway on this link.
///
/// # Errors
/// [`KernelError::Refused`].
pub(crate) async fn destinations(
    pod: &Links,
    link: &Link,
    family: Family,
) -> Result<Vec<Prefix>, KernelError> {
    let all = list(pod, family).await?.into_iter();
    let through = |seen: &RouteAttributes| {
        seen.oif == Some(link.index) && seen.gateway == Some(gateway(family))
    };
    let mut destinations: Vec<_> = all
        .filter(|(_, seen)| through(seen))
        .map(|(destination, _)| destination)
        .collect();
    destinations.sort_unstable();
    Ok(destinations)
}

/// All routes of the main table.
async fn list(pod: &Links, family: Family) -> Result<Vec<(Prefix, RouteAttributes)>, KernelError> {
    let filter = match family {
        Family::Ipv4 => {
            RouteMessageBuilder::<IpAddr>::new().destination_prefix(GATEWAY_V4.into(), 0)
        }
        Family::Ipv6 => {
            RouteMessageBuilder::<IpAddr>::new().destination_prefix(GATEWAY_V6.into(), 0)
        }
    };
    let mut filter = filter.expect("invariant: zero fits every family").build();
    filter.attributes.clear();
    filter.header.kind = RouteType::Unspec;
    let found: Vec<_> = pod
        .handle
        .route()
        .get(filter)
        .execute()
        .try_collect()
        .await
        .map_err(KernelError::refused("list routes in the container"))?;
    let any = match family {
        Family::Ipv4 => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    };
    let routes = found.iter().map(|message| {
        let mut seen = RouteAttributes::default();
        seen.read(message);
        let length = message.header.destination_prefix_length;
        (
            Prefix::truncated(seen.destination.unwrap_or(any), length),
            seen,
        )
    });
    Ok(routes.filter(|(_, seen)| seen.table == MAIN).collect())
}

/// The attributes of a route that are compared.
#[derive(Default)]
pub(super) struct RouteAttributes {
    pub(super) table: u32,
    pub(super) priority: u32,
    pub(super) oif: Option<u32>,
    pub(super) gateway: Option<IpAddr>,
    pub(super) destination: Option<IpAddr>,
}

impl RouteAttributes {
    pub(super) fn read(&mut self, message: &RouteMessage) {
        self.table = u32::from(message.header.table);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Table(table) => self.table = *table,
                RouteAttribute::Priority(metric) => self.priority = *metric,
                RouteAttribute::Oif(index) => self.oif = Some(*index),
                RouteAttribute::Gateway(address) => self.gateway = ip(address),
                RouteAttribute::Destination(address) => self.destination = ip(address),
                _ => {}
            }
        }
    }
}

const fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_behind_those_of_others_and_never_in_their_place() {
        let other = |metric, is_foreign| Other { metric, is_foreign };
        for (others, v4, v6) in [
            (vec![], 0, 1024),
            (vec![other(0, false)], 1, 1024),
            (vec![other(1024, false)], 0, 1025),
            (vec![other(0, false), other(1, false)], 2, 1024),
            // The first interface that is made again is the first again.
            (vec![other(1, false)], 0, 1024),
            (vec![other(100, true)], 101, 1024),
            (vec![other(2048, true), other(2049, false)], 2050, 2050),
            (vec![other(u32::MAX, true)], u32::MAX, u32::MAX),
        ] {
            assert_eq!(metric(Family::Ipv4, &others), v4);
            assert_eq!(metric(Family::Ipv6, &others), v6);
        }
    }
}
