//! Routes in netlink's language (`struct rtmsg`), written straight into a datagram: there may be
//! hundreds of thousands of them, and what a message takes on its way here is added to what the
//! kernel takes.

use std::net::IpAddr;

use caracal_model::{Family, IfName, Prefix};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};

use crate::actual::{ActualRoute, ActualTarget};
use crate::dataplane::netlink::error::EncodeError;
use crate::dataplane::netlink::framing::{attribute, close, open};
use crate::kernel_objects::{ForwardingTarget, NextHop, Route};
use crate::links::{Link, Links};
use crate::op::Op;

/// `RTM_NEWROUTE`, `RTM_DELROUTE`.
pub(in crate::dataplane) const NEW: u16 = 24;
const DELETE: u16 = 25;
/// `RTA_*`.
pub(in crate::dataplane) const DESTINATION: u16 = 1;
pub(in crate::dataplane) const DEVICE: u16 = 4;
pub(in crate::dataplane) const GATEWAY: u16 = 5;
pub(in crate::dataplane) const PRIORITY: u16 = 6;
pub(in crate::dataplane) const SOURCE: u16 = 7;
pub(in crate::dataplane) const METRICS: u16 = 8;
pub(in crate::dataplane) const MULTIPATH: u16 = 9;
pub(in crate::dataplane) const TABLE: u16 = 15;
pub(in crate::dataplane) const VIA: u16 = 18;
pub(in crate::dataplane) const OBJECT: u16 = 30;
/// `RTAX_MTU`.
pub(in crate::dataplane) const MTU: u16 = 2;
/// `RTN_UNICAST`, `RTN_BLACKHOLE`.
pub(in crate::dataplane) const UNICAST: u8 = 1;
pub(in crate::dataplane) const BLACKHOLE: u8 = 6;
/// `RT_SCOPE_UNIVERSE`, `RT_SCOPE_LINK`; in a deletion `RT_SCOPE_NOWHERE` stands for any.
const UNIVERSE: u8 = 0;
const LINK: u8 = 253;
const NOWHERE: u8 = 255;
/// `RTNH_F_ONLINK`.
pub(in crate::dataplane) const ONLINK: u8 = 4;

/// `AF_INET`, `AF_INET6`.
pub(in crate::dataplane) const fn address_family(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 2,
        Family::Ipv6 => 10,
    }
}

/// Indices of devices by their names. Routes in a row mostly have the same one.
pub(in crate::dataplane) struct Devices<'a> {
    links: &'a Links,
    last: Option<&'a Link>,
}

impl<'a> Devices<'a> {
    pub(in crate::dataplane) const fn new(links: &'a Links) -> Self {
        Self { links, last: None }
    }

    /// Those of which the indices are.
    pub(in crate::dataplane) const fn links(&self) -> &'a Links {
        self.links
    }

    fn index(&mut self, name: &IfName) -> Result<u32, EncodeError> {
        if self.last.is_none_or(|link| link.name != *name) {
            self.last = self.links.by_name(name.as_str());
        }
        let link = self.last.ok_or_else(|| EncodeError::NoDevice(name.clone()));
        link.map(|link| link.index)
    }
}

/// Type and flags of the message of a change of a route; `None` for other changes.
pub(in crate::dataplane) const fn kind(op: &Op) -> Option<(u16, u16)> {
    match op {
        Op::AddRoute(_) => Some((NEW, NLM_F_CREATE | NLM_F_EXCL)),
        Op::ReplaceRoute(_) => Some((NEW, NLM_F_CREATE | NLM_F_REPLACE)),
        Op::DeleteRoute(_) => Some((DELETE, 0)),
        _ => None,
    }
}

/// Appends the body of the message of a change of a route in this table; nothing for other changes.
pub(in crate::dataplane) fn body(
    message: &mut Vec<u8>,
    op: &Op,
    table: u32,
    devices: &mut Devices<'_>,
) -> Result<(), EncodeError> {
    match op {
        Op::AddRoute(route) | Op::ReplaceRoute(route) => put(message, route, table, devices),
        Op::DeleteRoute(route) => delete(message, route, table, devices),
        _ => Ok(()),
    }
}

/// Fields that all kinds of routes share.
struct Header {
    prefix: Prefix,
    metric: u32,
    protocol: u8,
    table: u32,
    tos: u8,
    scope: u8,
    kind: u8,
    flags: u8,
}

impl Header {
    fn write(&self, message: &mut Vec<u8>) {
        let family = address_family(self.prefix.family());
        // Tables with larger numbers have an attribute.
        let table = u8::try_from(self.table).unwrap_or(0);
        message.extend_from_slice(&[family, self.prefix.len(), 0, self.tos]);
        message.extend_from_slice(&[table, self.protocol, self.scope, self.kind]);
        message.extend_from_slice(&u32::from(self.flags).to_ne_bytes());
        if self.prefix.len() > 0 {
            address(message, DESTINATION, self.prefix.address());
        }
        if self.metric > 0 {
            attribute(message, PRIORITY, &self.metric.to_ne_bytes());
        }
        if table == 0 {
            attribute(message, TABLE, &self.table.to_ne_bytes());
        }
    }
}

fn put(
    message: &mut Vec<u8>,
    route: &Route,
    table: u32,
    devices: &mut Devices<'_>,
) -> Result<(), EncodeError> {
    let hops = route.target.hops();
    let through_object = matches!(route.target, ForwardingTarget::Object(..));
    // Directly reachable destinations have link scope, the others are behind a gateway.
    let on_link =
        !through_object && !hops.is_empty() && hops.iter().all(|hop| hop.gateway.is_none());
    let header = Header {
        prefix: route.prefix,
        metric: route.metric,
        protocol: route.protocol,
        table,
        tos: 0,
        scope: if on_link { LINK } else { UNIVERSE },
        kind: kind_of(&route.target),
        flags: match hops {
            // Objects and lists of next hops have flags of their own.
            [hop] if hop.onlink && !through_object => ONLINK,
            _ => 0,
        },
    };
    header.write(message);
    target(message, &route.target, route.prefix.family(), devices)?;
    if let Some(mtu) = route.mtu {
        let metrics = open(message, METRICS);
        attribute(message, MTU, &mtu.to_ne_bytes());
        close(message, metrics);
    }
    if let Some(source) = route.source {
        address(message, SOURCE, source);
    }
    Ok(())
}

/// Names a route as exactly as the kernel lets us, so that a foreign one in its place is not hit.
fn delete(
    message: &mut Vec<u8>,
    route: &ActualRoute,
    table: u32,
    devices: &mut Devices<'_>,
) -> Result<(), EncodeError> {
    let header = Header {
        prefix: route.prefix,
        metric: route.metric,
        protocol: route.protocol,
        table,
        tos: route.tos,
        scope: NOWHERE,
        kind: match &route.target {
            ActualTarget::Known(known) => kind_of(known),
            ActualTarget::Other(kind) => *kind,
        },
        flags: 0,
    };
    header.write(message);
    match &route.target {
        ActualTarget::Known(known) => target(message, known, route.prefix.family(), devices),
        ActualTarget::Other(_) => Ok(()),
    }
}

const fn kind_of(target: &ForwardingTarget) -> u8 {
    match target {
        ForwardingTarget::Blackhole => BLACKHOLE,
        ForwardingTarget::Via(_) | ForwardingTarget::Object(..) => UNICAST,
    }
}

fn target(
    message: &mut Vec<u8>,
    target: &ForwardingTarget,
    family: Family,
    devices: &mut Devices<'_>,
) -> Result<(), EncodeError> {
    match target {
        ForwardingTarget::Blackhole => {}
        ForwardingTarget::Object(id, _) => attribute(message, OBJECT, &id.to_ne_bytes()),
        ForwardingTarget::Via(hops) => {
            if let [hop] = hops.as_slice() {
                gateway(message, hop, family);
                attribute(message, DEVICE, &devices.index(&hop.link)?.to_ne_bytes());
            } else {
                let list = open(message, MULTIPATH);
                for hop in hops {
                    next_hop(message, hop, family, devices)?;
                }
                close(message, list);
            }
        }
    }
    Ok(())
}

/// One of several next hops: `struct rtnexthop` and its attributes.
fn next_hop(
    message: &mut Vec<u8>,
    hop: &NextHop,
    family: Family,
    devices: &mut Devices<'_>,
) -> Result<(), EncodeError> {
    let index = devices.index(&hop.link)?;
    let start = message.len();
    let flags = if hop.onlink { ONLINK } else { 0 };
    message.extend_from_slice(&[0, 0, flags, hop.extra_weight]);
    message.extend_from_slice(&index.to_ne_bytes());
    gateway(message, hop, family);
    close(message, start);
    Ok(())
}

/// The gateway; one of another family than the route's has an attribute of its own (`via inet6`,
/// RFC 8950).
fn gateway(message: &mut Vec<u8>, hop: &NextHop, family: Family) {
    let Some(gateway) = hop.gateway else { return };
    let of = Family::of(gateway);
    if of == family {
        address(message, GATEWAY, gateway);
    } else {
        let via = open(message, VIA);
        message.extend_from_slice(&u16::from(address_family(of)).to_ne_bytes());
        match gateway {
            IpAddr::V4(gateway) => message.extend_from_slice(&gateway.octets()),
            IpAddr::V6(gateway) => message.extend_from_slice(&gateway.octets()),
        }
        close(message, via);
    }
}

/// Appends an attribute that is an address.
pub(in crate::dataplane) fn address(message: &mut Vec<u8>, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => attribute(message, kind, &address.octets()),
        IpAddr::V6(address) => attribute(message, kind, &address.octets()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHop,
        RouteNextHopFlags, RouteScope, RouteType, RouteVia,
    };

    use super::*;
    use crate::dataplane::netlink::framing::{begin, finish};

    fn links() -> Links {
        [Link::new(2, "eth0"), Link::new(7, "vxlan.calico")]
            .into_iter()
            .collect()
    }

    /// The message as somebody else's code reads it.
    fn read_back(op: &Op, table: u32) -> RouteMessage {
        let (kind, flags) = kind(op).unwrap();
        // Something stands before it.
        let mut datagram = vec![0; 20];
        let start = begin(&mut datagram, kind, flags, 7);
        body(&mut datagram, op, table, &mut Devices::new(&links())).unwrap();
        finish(&mut datagram, start);
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram[start..]);
        let message = message.unwrap();
        assert_eq!(message.header.sequence_number, 7);
        assert_eq!(message.header.flags, flags);
        let length = usize::try_from(message.header.length).unwrap();
        assert_eq!(length, datagram.len() - start);
        assert_eq!(length % 4, 0);
        match message.payload {
            NetlinkPayload::InnerMessage(
                RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
            ) => route,
            other => panic!("{other:?}"),
        }
    }

    fn via(gateway: Option<&str>, link: &str, onlink: bool) -> NextHop {
        NextHop {
            gateway: gateway.map(|g| g.parse().unwrap()),
            link: link.into(),
            onlink,
            extra_weight: 0,
        }
    }

    fn route(prefix: &str, target: ForwardingTarget) -> Route {
        Route {
            prefix: prefix.parse().unwrap(),
            metric: 0,
            protocol: 80,
            target,
            mtu: None,
            source: None,
        }
    }

    fn inet(text: &str) -> RouteAddress {
        match text.parse().unwrap() {
            IpAddr::V4(a) => RouteAddress::Inet(a),
            IpAddr::V6(a) => RouteAddress::Inet6(a),
        }
    }

    #[test]
    fn a_route_through_a_gateway() {
        let hop = via(Some("10.0.0.2"), "vxlan.calico", true);
        let mut route = route("10.244.1.0/26", ForwardingTarget::Via(vec![hop]));
        route.metric = 9;
        route.mtu = Some(1400);
        route.source = Some("10.0.0.1".parse().unwrap());
        let message = read_back(&Op::AddRoute(route), 254);
        assert_eq!(message.header.destination_prefix_length, 26);
        assert_eq!(message.header.table, 254);
        assert_eq!(u8::from(message.header.protocol), 80);
        assert_eq!(message.header.scope, RouteScope::Universe);
        assert_eq!(message.header.kind, RouteType::Unicast);
        assert_eq!(message.header.flags, RouteFlags::Onlink);
        let expected = [
            RouteAttribute::Destination(inet("10.244.1.0")),
            RouteAttribute::Priority(9),
            RouteAttribute::Gateway(inet("10.0.0.2")),
            RouteAttribute::Oif(7),
            RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400)]),
            RouteAttribute::PrefSource(inet("10.0.0.1")),
        ];
        assert_eq!(message.attributes, expected);
    }

    #[test]
    fn routes_of_other_kinds() {
        let local = ForwardingTarget::via(None, &"eth0".into(), false);
        let message = read_back(&Op::ReplaceRoute(route("::/0", local)), 10_000);
        assert_eq!(message.header.scope, RouteScope::Link);
        assert_eq!(message.header.table, 0);
        let expected = [RouteAttribute::Table(10_000), RouteAttribute::Oif(2)];
        assert_eq!(message.attributes, expected);

        let black = read_back(
            &Op::AddRoute(route("10.0.0.0/8", ForwardingTarget::Blackhole)),
            254,
        );
        assert_eq!(black.header.kind, RouteType::BlackHole);
        assert_eq!(black.header.scope, RouteScope::Universe);

        let hop = via(Some("10.0.0.2"), "eth0", true);
        let through = route("10.0.0.0/8", ForwardingTarget::Object(0x4300_0001, hop));
        let message = read_back(&Op::AddRoute(through), 254);
        assert_eq!(message.header.flags, RouteFlags::empty());
        assert_eq!(message.attributes[1..], [RouteAttribute::NhId(0x4300_0001)]);
    }

    #[test]
    fn several_next_hops_of_both_families() {
        let hops = vec![
            via(Some("10.0.0.2"), "eth0", false),
            NextHop {
                extra_weight: 199,
                ..via(Some("fe80::1"), "vxlan.calico", true)
            },
        ];
        let message = read_back(
            &Op::AddRoute(route("10.9.0.0/16", ForwardingTarget::Via(hops))),
            254,
        );
        let mut first = RouteNextHop::default();
        first.interface_index = 2;
        first.attributes = vec![RouteAttribute::Gateway(inet("10.0.0.2"))];
        let mut second = RouteNextHop::default();
        second.interface_index = 7;
        second.flags = RouteNextHopFlags::Onlink;
        second.hops = 199;
        let address: IpAddr = "fe80::1".parse().unwrap();
        second.attributes = vec![RouteAttribute::Via(RouteVia::from(address))];
        let expected = RouteAttribute::MultiPath(vec![first, second]);
        assert_eq!(message.attributes[1..], [expected]);
    }

    #[test]
    fn a_deletion_names_everything_but_the_scope() {
        let mut there = ActualRoute::from(route(
            "10.244.1.0/26",
            ForwardingTarget::via(Some("10.0.0.2".parse().unwrap()), &"eth0".into(), true),
        ));
        there.tos = 8;
        let message = read_back(&Op::DeleteRoute(there.clone()), 254);
        assert_eq!(message.header.tos, 8);
        assert_eq!(message.header.scope, RouteScope::NoWhere);
        assert_eq!(message.header.flags, RouteFlags::empty());
        let expected = [
            RouteAttribute::Destination(inet("10.244.1.0")),
            RouteAttribute::Gateway(inet("10.0.0.2")),
            RouteAttribute::Oif(2),
        ];
        assert_eq!(message.attributes, expected);
        there.target = ActualTarget::Other(7);
        let message = read_back(&Op::DeleteRoute(there), 254);
        assert_eq!(message.header.kind, RouteType::Unreachable);
    }

    #[test]
    fn a_device_that_is_not_there_is_told() {
        let route = route(
            "10.0.0.0/8",
            ForwardingTarget::via(None, &"eth9".into(), false),
        );
        let op = Op::AddRoute(route);
        let message = body(&mut Vec::new(), &op, 254, &mut Devices::new(&links()));
        assert_eq!(message, Err(EncodeError::NoDevice("eth9".into())));
    }
}
