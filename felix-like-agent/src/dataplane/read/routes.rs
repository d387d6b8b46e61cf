//! Routes from netlink's language (`struct rtmsg`), read straight out of the datagrams: there may
//! be hundreds of thousands of them, and all are read again after each notification.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use caracal_model::{Family, Prefix};

use crate::actual::{ActualObject, ActualRoute, ActualTarget};
use crate::dataplane::netlink::framing::{HEADER, attribute, attributes, half, word};
use crate::dataplane::netlink::routes::{
    BLACKHOLE, DESTINATION, DEVICE, GATEWAY, METRICS, MTU, MULTIPATH, NEW, OBJECT, ONLINK,
    PRIORITY, SOURCE, TABLE, UNICAST, VIA, address_family,
};
use crate::dataplane::netlink::{Message, Netlink, NetlinkError, Request};
use crate::kernel_objects::{ForwardingTarget, NextHop};
use crate::links::Links;

/// `RTM_GETROUTE`.
const GET: u16 = 26;
/// Octets of `struct rtmsg`.
const RTMSG: usize = 12;
/// Octets of `struct rtnexthop`.
const RTNEXTHOP: usize = 8;
/// `RTA_ENCAP`.
const ENCAP: u16 = 22;
/// `RTM_F_CLONED`: an entry of the routing cache.
const CLONED: u32 = 0x200;

/// Reads the routes of a table in the kernel's order.
pub(in crate::dataplane) async fn read(
    netlink: &mut Netlink,
    family: Family,
    table: u32,
    links: &Links,
    objects: &BTreeMap<u32, ActualObject>,
) -> Result<Vec<ActualRoute>, NetlinkError> {
    let mut body = vec![0; RTMSG];
    body[0] = address_family(family);
    attribute(&mut body, TABLE, &table.to_ne_bytes());
    let request = Request {
        message: Message::Raw { kind: GET, body },
        flags: 0,
    };
    let read = |message: &[u8]| route(message, table, links, objects);
    match netlink.dump_each("routes", request, read).await {
        // A table that nobody has written to yet.
        Err(NetlinkError::Dump { source, .. }) if source.code == libc::ENOENT => Ok(Vec::new()),
        found => found,
    }
}

/// `None` for routes of other tables and clones of the routing cache.
fn route(
    message: &[u8],
    table: u32,
    links: &Links,
    objects: &BTreeMap<u32, ActualObject>,
) -> Option<ActualRoute> {
    if half(message, 4)? != NEW {
        return None;
    }
    let header = message.get(HEADER..HEADER + RTMSG)?;
    let flags = word(header, 8)?;
    if flags & CLONED != 0 {
        return None;
    }
    let unspecified: IpAddr = match header[0] {
        2 => Ipv4Addr::UNSPECIFIED.into(),
        10 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut parts = RouteParts {
        destination: unspecified,
        table: u32::from(header[4]),
        ..RouteParts::default()
    };
    for (kind, value) in attributes(message.get(HEADER + RTMSG..)?) {
        parts.read(kind, value);
    }
    if parts.table != table {
        return None;
    }
    let onlink = flags & u32::from(ONLINK) != 0;
    Some(ActualRoute {
        prefix: Prefix::truncated(parts.destination, header[1]),
        metric: parts.metric,
        tos: header[3],
        protocol: header[5],
        target: parts.target(header[7], onlink, links, objects),
        mtu: parts.mtu,
        source: parts.source,
    })
}

struct RouteParts<'a> {
    destination: IpAddr,
    table: u32,
    metric: u32,
    mtu: Option<u32>,
    source: Option<IpAddr>,
    gateway: Option<IpAddr>,
    link: Option<u32>,
    multipath: &'a [u8],
    object: Option<u32>,
    /// Something that we never write.
    strange: bool,
}

impl Default for RouteParts<'_> {
    fn default() -> Self {
        Self {
            destination: Ipv4Addr::UNSPECIFIED.into(),
            table: 0,
            metric: 0,
            mtu: None,
            source: None,
            gateway: None,
            link: None,
            multipath: &[],
            object: None,
            strange: false,
        }
    }
}

impl<'a> RouteParts<'a> {
    fn read(&mut self, kind: u16, value: &'a [u8]) {
        match kind {
            DESTINATION => self.destination = address(value).unwrap_or(self.destination),
            GATEWAY => self.gateway = address(value),
            SOURCE => self.source = address(value),
            DEVICE => self.link = word(value, 0),
            PRIORITY => self.metric = word(value, 0).unwrap_or(0),
            TABLE => self.table = word(value, 0).unwrap_or(self.table),
            MULTIPATH => self.multipath = value,
            METRICS => {
                let mtu = attributes(value).find(|(kind, _)| *kind == MTU);
                self.mtu = mtu.and_then(|(_, mtu)| word(mtu, 0));
            }
            VIA => match via(value) {
                Some(address) => self.gateway = Some(address),
                None => self.strange = true,
            },
            OBJECT => self.object = word(value, 0),
            ENCAP => self.strange = true,
            _ => {}
        }
    }

    fn target(
        &self,
        kind: u8,
        onlink: bool,
        links: &Links,
        objects: &BTreeMap<u32, ActualObject>,
    ) -> ActualTarget {
        let other = ActualTarget::Other(kind);
        if self.strange {
            return other;
        }
        // Of other objects (groups of other daemons) the route itself says where it leads, unless
        // `nexthop_compat_mode` is 0.
        if let Some(id) = self.object
            && let Some(hop) = objects.get(&id).and_then(|object| object.hop.clone())
        {
            return ActualTarget::Known(ForwardingTarget::Object(id, hop));
        }
        match kind {
            BLACKHOLE => ActualTarget::Known(ForwardingTarget::Blackhole),
            UNICAST => self.next_hops(onlink, links).map_or(other, |hops| {
                ActualTarget::Known(ForwardingTarget::Via(hops))
            }),
            _ => other,
        }
    }

    /// `None` when a device is not known, as when it went during the reading.
    fn next_hops(&self, onlink: bool, links: &Links) -> Option<Vec<NextHop>> {
        let name = |index: u32| links.by_index(index).map(|l| l.name.clone());
        if self.multipath.is_empty() {
            return Some(vec![NextHop {
                gateway: self.gateway,
                link: name(self.link?)?,
                onlink,
                extra_weight: 0,
            }]);
        }
        let mut hops = Vec::new();
        let mut rest = self.multipath;
        while let Some(length) = half(rest, 0) {
            let hop = rest
                .get(..usize::from(length))
                .filter(|h| h.len() >= RTNEXTHOP)?;
            let gateway = attributes(&hop[RTNEXTHOP..]).find_map(|(kind, value)| match kind {
                GATEWAY => address(value),
                VIA => via(value),
                _ => None,
            });
            hops.push(NextHop {
                gateway,
                link: name(word(hop, 4)?)?,
                onlink: hop[2] & ONLINK != 0,
                extra_weight: hop[3],
            });
            let next = usize::from(length).next_multiple_of(4);
            rest = rest.get(next..).unwrap_or_default();
        }
        hops.sort_unstable();
        Some(hops)
    }
}

/// An address of either family.
pub(super) fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}

/// A gateway of the other family (RFC 8950, `struct rtvia`).
fn via(value: &[u8]) -> Option<IpAddr> {
    let family = half(value, 0)?;
    let address = address(value.get(2..)?)?;
    (family == u16::from(address_family(Family::of(address)))).then_some(address)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use caracal_model::IfName;
    use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
    use netlink_packet_route::route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteNextHop,
        RouteNextHopFlags, RouteProtocol, RouteType, RouteVia,
    };
    use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

    use super::*;
    use crate::dataplane::netlink::framing;
    use crate::dataplane::netlink::routes::{Devices, body, kind};
    use crate::kernel_objects::Route;
    use crate::links::Link;
    use crate::op::Op;

    fn links() -> Links {
        [Link::new(2, "eth0"), Link::new(7, "eth1")]
            .into_iter()
            .collect()
    }

    fn read(message: &[u8]) -> Option<ActualRoute> {
        let hop = NextHop {
            gateway: Some([10, 0, 0, 9].into()),
            link: "eth1".into(),
            onlink: false,
            extra_weight: 0,
        };
        let object = ActualObject {
            protocol: 80,
            hop: Some(hop),
        };
        route(message, 254, &links(), &[(5, object)].into())
    }

    fn via(gateway: Option<&str>, link: &str, onlink: bool) -> NextHop {
        NextHop {
            gateway: gateway.map(|g| g.parse().unwrap()),
            link: IfName::from(link),
            onlink,
            extra_weight: 0,
        }
    }

    /// What is written is read as it was written.
    #[test]
    fn our_own_messages_are_read_as_they_are_meant() {
        for (prefix, metric, target, mtu, source) in [
            (
                "10.244.1.0/26",
                0,
                ForwardingTarget::Via(vec![via(Some("10.0.0.2"), "eth0", true)]),
                Some(1400),
                None,
            ),
            ("10.244.1.0/26", 7, ForwardingTarget::Blackhole, None, None),
            (
                "0.0.0.0/0",
                20,
                ForwardingTarget::Via(vec![via(None, "eth1", false)]),
                None,
                Some("10.0.0.1"),
            ),
            (
                "fd00::/64",
                1024,
                ForwardingTarget::Via(vec![via(Some("fe80::1"), "eth0", true)]),
                None,
                None,
            ),
            (
                "10.9.0.0/16",
                0,
                ForwardingTarget::Via(vec![
                    via(Some("10.0.0.2"), "eth0", false),
                    via(Some("10.0.0.3"), "eth1", true),
                ]),
                None,
                None,
            ),
            (
                "10.8.0.0/16",
                0,
                ForwardingTarget::Via(vec![via(Some("fe80::2"), "eth0", true)]),
                None,
                None,
            ),
            (
                "10.7.0.0/16",
                0,
                ForwardingTarget::Object(5, via(Some("10.0.0.9"), "eth1", false)),
                None,
                None,
            ),
        ] {
            let route = Route {
                prefix: prefix.parse().unwrap(),
                metric,
                protocol: 80,
                target,
                mtu,
                source: source.map(|s: &str| s.parse().unwrap()),
            };
            let op = Op::AddRoute(route.clone());
            let mut datagram = Vec::new();
            let (kind, flags) = kind(&op).unwrap();
            let start = framing::begin(&mut datagram, kind, flags, 1);
            body(&mut datagram, &op, 254, &mut Devices::new(&links())).unwrap();
            framing::finish(&mut datagram, start);
            assert_eq!(read(&datagram), Some(ActualRoute::from(route)));
            // Cut off anywhere it is something else or nothing, and never a panic.
            for cut in 0..datagram.len() {
                let _ = read(&datagram[..cut]);
            }
        }
    }

    /// Routes as the crates write them, with what we never do.
    #[test]
    fn messages_of_others_are_read_as_they_are_meant() {
        let hop = |link, gateway, flags| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = link;
            hop.flags = flags;
            hop.hops = u8::from(link == 2) * 4;
            hop.attributes = vec![gateway];
            hop
        };
        let v4 = |text: &str| RouteAddress::Inet(text.parse().unwrap());
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 24;
        message.header.tos = 8;
        message.header.table = 0;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            RouteAttribute::Destination(v4("192.0.2.0")),
            RouteAttribute::Table(254),
            RouteAttribute::Priority(3),
            RouteAttribute::Metrics(vec![RouteMetric::Hoplimit(9), RouteMetric::Mtu(1300)]),
            RouteAttribute::MultiPath(vec![
                hop(
                    7,
                    RouteAttribute::Gateway(v4("10.0.0.8")),
                    RouteNextHopFlags::Onlink,
                ),
                hop(
                    2,
                    RouteAttribute::Via(RouteVia::Inet6("fe80::3".parse().unwrap())),
                    RouteNextHopFlags::empty(),
                ),
            ]),
        ];
        let octets = |message: &RouteMessage| {
            let payload = RouteNetlinkMessage::NewRoute(message.clone());
            let mut message = NetlinkMessage::from(payload);
            assert!(matches!(message.payload, NetlinkPayload::InnerMessage(_)));
            message.finalize();
            let mut octets = vec![0; message.buffer_len()];
            message.serialize(&mut octets);
            octets
        };
        let hops = vec![
            via(Some("10.0.0.8"), "eth1", true),
            NextHop {
                extra_weight: 4,
                ..via(Some("fe80::3"), "eth0", false)
            },
        ];
        let expected = ActualRoute {
            prefix: "192.0.2.0/24".parse().unwrap(),
            metric: 3,
            tos: 8,
            protocol: 4,
            target: ActualTarget::Known(ForwardingTarget::Via(hops)),
            mtu: Some(1300),
            source: None,
        };
        assert_eq!(read(&octets(&message)), Some(expected.clone()));
        // A device that is gone.
        let mut gone = message.clone();
        gone.attributes[4] = RouteAttribute::Oif(99);
        let unknown = ActualRoute {
            target: ActualTarget::Other(1),
            ..expected.clone()
        };
        assert_eq!(read(&octets(&gone)), Some(unknown));
        let mut unreachable = message.clone();
        unreachable.header.kind = RouteType::Unreachable;
        let target = read(&octets(&unreachable)).map(|route| route.target);
        assert_eq!(target, Some(ActualTarget::Other(7)));
        let mut cloned = message.clone();
        cloned.header.flags = RouteFlags::Cloned;
        let mut elsewhere = message;
        elsewhere.attributes[1] = RouteAttribute::Table(255);
        for other in [cloned, elsewhere] {
            assert_eq!(read(&octets(&other)), None);
        }
    }
}
