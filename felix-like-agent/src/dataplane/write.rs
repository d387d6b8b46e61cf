//! [`Op`]s → netlink messages, and what the kernel's answers to them mean.

use std::collections::HashMap;
use std::net::IpAddr;

use caracal_model::names::IfName;
use caracal_model::net::{Cidr, Prefix};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteNextHop,
    RouteNextHopFlags, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::{Netlink, NetlinkError, Refusal, Request};
use super::read::MAIN_TABLE;
use crate::actual::{ActualRoute, ActualTarget};
use crate::desired::{FdbKey, NeighbourKey, NextHop, Route, Target, Tunnel, TunnelKind};
use crate::links::Links;
use crate::op::Op;

/// Why an op has no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A device is not there.
    #[error("there is no device {0}")]
    NoDevice(IfName),
}

/// Sends ops in order; one result each. Those that are not netlink's are passed over.
pub(super) async fn send(
    netlink: &mut Netlink,
    ops: &[Op],
    links: &Links,
) -> Result<Vec<Result<(), String>>, NetlinkError> {
    let mut results = Vec::with_capacity(ops.len());
    // The last batch is judged behind the loop.
    let mut judged = 0;
    let mut unsent = HashMap::new();
    for (index, op) in ops.iter().enumerate() {
        let full = match request(op, links) {
            Some(Ok(request)) => netlink.writer().push(request),
            Some(Err(error)) => {
                unsent.insert(index, Err(error.to_string()));
                false
            }
            None => {
                unsent.insert(index, Ok(()));
                false
            }
        };
        if full || index + 1 == ops.len() {
            let mut answers = netlink.writer().flush().await?.into_iter();
            let of_batch = ops[judged..=index].iter().zip(judged..);
            results.extend(of_batch.map(|(op, index)| {
                let unsent = unsent.remove(&index);
                unsent.unwrap_or_else(|| judge(op, answers.next()))
            }));
            judged = index + 1;
        }
    }
    Ok(results)
}

/// An object that is gone needs no deletion, and a device that has come needs no creation.
pub(super) fn judge(op: &Op, answer: Option<Result<(), Refusal>>) -> Result<(), String> {
    match answer {
        Some(Ok(())) => Ok(()),
        Some(Err(refusal)) => {
            let gone = [libc::ESRCH, libc::ENOENT, libc::ENODEV, libc::EADDRNOTAVAIL];
            if op.is_delete() && gone.contains(&refusal.code) {
                return Ok(());
            }
            Err(refusal.to_string())
        }
        None => Err("no answer from the kernel".to_owned()),
    }
}

/// The message of an op; `None` for ops that are not netlink's (sysctls, NAT).
pub(super) fn request(op: &Op, links: &Links) -> Option<Result<Request, EncodeError>> {
    request_in(op, links, MAIN_TABLE)
}

/// The same with routes in this table.
pub(super) fn request_in(
    op: &Op,
    links: &Links,
    table: u32,
) -> Option<Result<Request, EncodeError>> {
    let request = message(op, links)?;
    Some(request.map(|mut request| {
        if let RouteNetlinkMessage::NewRoute(m) | RouteNetlinkMessage::DelRoute(m) =
            &mut request.message
        {
            put_into(m, table);
        }
        request
    }))
}

fn put_into(message: &mut RouteMessage, table: u32) {
    match u8::try_from(table) {
        Ok(number) => message.header.table = number,
        Err(_) => {
            message.header.table = RouteHeader::RT_TABLE_UNSPEC;
            message.attributes.push(RouteAttribute::Table(table));
        }
    }
}

fn message(op: &Op, links: &Links) -> Option<Result<Request, EncodeError>> {
    Some(match op {
        Op::AddTunnel(tunnel) => add_tunnel(tunnel, links),
        Op::SetTunnel(tunnel) => set_tunnel(tunnel, links),
        Op::DeleteTunnel(name) => delete_link(name, links),
        Op::AddAddress(link, cidr) => {
            address(link, *cidr, links).map(|m| put(RouteNetlinkMessage::NewAddress(m)))
        }
        Op::DeleteAddress(link, cidr) => {
            address(link, *cidr, links).map(|m| plain(RouteNetlinkMessage::DelAddress(m)))
        }
        Op::PutNeighbour(key, mac) => neighbour(key, links).map(|mut m| {
            m.header.state = NeighbourState::Permanent;
            m.attributes
                .push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
            put(RouteNetlinkMessage::NewNeighbour(m))
        }),
        Op::DeleteNeighbour(key) => {
            neighbour(key, links).map(|m| plain(RouteNetlinkMessage::DelNeighbour(m)))
        }
        Op::PutFdb(key, remote) => {
            fdb(key, *remote, links).map(|m| put(RouteNetlinkMessage::NewNeighbour(m)))
        }
        Op::DeleteFdb(key, remote) => {
            fdb(key, *remote, links).map(|m| plain(RouteNetlinkMessage::DelNeighbour(m)))
        }
        Op::AddRoute(route) => self::route(route, links).map(|m| Request {
            message: RouteNetlinkMessage::NewRoute(m),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        }),
        Op::ReplaceRoute(route) => {
            self::route(route, links).map(|m| put(RouteNetlinkMessage::NewRoute(m)))
        }
        Op::DeleteRoute(route) => {
            delete_route(route, links).map(|m| plain(RouteNetlinkMessage::DelRoute(m)))
        }
        Op::WriteSysctl(..) | Op::PutNat(_) | Op::DeleteNat => return None,
    })
}

const fn put(message: RouteNetlinkMessage) -> Request {
    Request {
        message,
        flags: NLM_F_CREATE | NLM_F_REPLACE,
    }
}

const fn plain(message: RouteNetlinkMessage) -> Request {
    Request { message, flags: 0 }
}

fn index(link: &IfName, links: &Links) -> Result<u32, EncodeError> {
    links
        .by_name(link.as_str())
        .map(|l| l.index)
        .ok_or_else(|| EncodeError::NoDevice(link.clone()))
}

const fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn up(message: &mut LinkMessage) {
    message.header.flags |= LinkFlags::Up;
    message.header.change_mask |= LinkFlags::Up;
}

fn add_tunnel(tunnel: &Tunnel, links: &Links) -> Result<Request, EncodeError> {
    let mut message = LinkMessage::default();
    up(&mut message);
    message.attributes.extend([
        LinkAttribute::IfName(tunnel.name.as_str().to_owned()),
        LinkAttribute::Mtu(tunnel.mtu),
    ]);
    let info = match &tunnel.kind {
        TunnelKind::Ipip => vec![LinkInfo::Kind(InfoKind::IpIp)],
        TunnelKind::Vxlan {
            vni,
            port,
            local,
            parent,
            mac,
        } => {
            message
                .attributes
                .push(LinkAttribute::Address(mac.to_vec()));
            let parameters = vec![
                InfoVxlan::Id(*vni),
                InfoVxlan::Port(*port),
                InfoVxlan::Link(index(parent, links)?),
                InfoVxlan::Learning(false),
                match local {
                    IpAddr::V4(a) => InfoVxlan::Local(*a),
                    IpAddr::V6(a) => InfoVxlan::Local6(*a),
                },
            ];
            vec![
                LinkInfo::Kind(InfoKind::Vxlan),
                LinkInfo::Data(InfoData::Vxlan(parameters)),
            ]
        }
    };
    message.attributes.push(LinkAttribute::LinkInfo(info));
    Ok(Request {
        message: RouteNetlinkMessage::NewLink(message),
        flags: NLM_F_CREATE | NLM_F_EXCL,
    })
}

fn set_tunnel(tunnel: &Tunnel, links: &Links) -> Result<Request, EncodeError> {
    let mut message = LinkMessage::default();
    message.header.index = index(&tunnel.name, links)?;
    up(&mut message);
    message.attributes.push(LinkAttribute::Mtu(tunnel.mtu));
    if let TunnelKind::Vxlan { mac, .. } = &tunnel.kind {
        message
            .attributes
            .push(LinkAttribute::Address(mac.to_vec()));
    }
    Ok(plain(RouteNetlinkMessage::SetLink(message)))
}

fn delete_link(name: &IfName, links: &Links) -> Result<Request, EncodeError> {
    let mut message = LinkMessage::default();
    message.header.index = index(name, links)?;
    Ok(plain(RouteNetlinkMessage::DelLink(message)))
}

fn address(link: &IfName, cidr: Cidr, links: &Links) -> Result<AddressMessage, EncodeError> {
    let mut message = AddressMessage::default();
    message.header.family = family(cidr.address);
    message.header.prefix_len = cidr.len;
    message.header.index = index(link, links)?;
    if cidr.address.is_ipv4() {
        message
            .attributes
            .push(AddressAttribute::Local(cidr.address));
    } else {
        // Nobody on the tunnel could answer a probe for duplicates.
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message
        .attributes
        .push(AddressAttribute::Address(cidr.address));
    Ok(message)
}

fn neighbour_address(address: IpAddr) -> NeighbourAddress {
    match address {
        IpAddr::V4(a) => NeighbourAddress::Inet(a),
        IpAddr::V6(a) => NeighbourAddress::Inet6(a),
    }
}

fn neighbour(key: &NeighbourKey, links: &Links) -> Result<NeighbourMessage, EncodeError> {
    let mut message = NeighbourMessage::default();
    message.header.family = family(key.address);
    message.header.ifindex = index(&key.link, links)?;
    message
        .attributes
        .push(NeighbourAttribute::Destination(neighbour_address(
            key.address,
        )));
    Ok(message)
}

fn fdb(key: &FdbKey, remote: IpAddr, links: &Links) -> Result<NeighbourMessage, EncodeError> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index(&key.link, links)?;
    message.header.state = NeighbourState::Permanent;
    // NTF_SELF: the device's own table, not that of a bridge above it.
    message.header.flags = NeighbourFlags::Own;
    message.attributes.extend([
        NeighbourAttribute::LinkLayerAddress(key.mac.to_vec()),
        NeighbourAttribute::Destination(neighbour_address(remote)),
    ]);
    Ok(message)
}

const fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(a) => RouteAddress::Inet(a),
        IpAddr::V6(a) => RouteAddress::Inet6(a),
    }
}

fn route_header(prefix: Prefix, metric: u32, protocol: u8) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(prefix.address());
    message.header.destination_prefix_length = prefix.len();
    message.header.protocol = protocol.into();
    if prefix.len() > 0 {
        message
            .attributes
            .push(RouteAttribute::Destination(route_address(prefix.address())));
    }
    if metric > 0 {
        message.attributes.push(RouteAttribute::Priority(metric));
    }
    message
}

fn route(route: &Route, links: &Links) -> Result<RouteMessage, EncodeError> {
    let mut message = route_header(route.prefix, route.metric, route.protocol);
    target(&mut message, &route.target, links)?;
    if let Some(mtu) = route.mtu {
        message
            .attributes
            .push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    }
    if let Some(source) = route.source {
        message
            .attributes
            .push(RouteAttribute::PrefSource(route_address(source)));
    }
    Ok(message)
}

fn target(message: &mut RouteMessage, target: &Target, links: &Links) -> Result<(), EncodeError> {
    match target {
        Target::Blackhole => message.header.kind = RouteType::BlackHole,
        Target::Via(hops) => {
            message.header.kind = RouteType::Unicast;
            // Directly reachable destinations have link scope, the others are behind a gateway.
            if hops.iter().all(|h| h.gateway.is_none()) {
                message.header.scope = RouteScope::Link;
            }
            if let [hop] = hops.as_slice() {
                if hop.onlink {
                    message.header.flags |= RouteFlags::Onlink;
                }
                message
                    .attributes
                    .extend(gateway(hop, message.header.address_family));
                let index = index(&hop.link, links)?;
                message.attributes.push(RouteAttribute::Oif(index));
            } else {
                let of = message.header.address_family;
                let hops: Result<Vec<_>, _> = hops.iter().map(|h| next_hop(h, of, links)).collect();
                message.attributes.push(RouteAttribute::MultiPath(hops?));
            }
        }
    }
    Ok(())
}

/// The gateway; one of another family than the route's has an attribute of its own (`via inet6`, RFC 8950).
fn gateway(hop: &NextHop, of: AddressFamily) -> Option<RouteAttribute> {
    hop.gateway.map(|address| {
        if family(address) == of {
            RouteAttribute::Gateway(route_address(address))
        } else {
            RouteAttribute::Via(RouteVia::from(address))
        }
    })
}

fn next_hop(hop: &NextHop, of: AddressFamily, links: &Links) -> Result<RouteNextHop, EncodeError> {
    let mut message = RouteNextHop::default();
    message.interface_index = index(&hop.link, links)?;
    if hop.onlink {
        message.flags |= RouteNextHopFlags::Onlink;
    }
    message.attributes.extend(gateway(hop, of));
    Ok(message)
}

/// Names a route as exactly as the kernel lets us, so that a foreign one in its place is not hit.
fn delete_route(route: &ActualRoute, links: &Links) -> Result<RouteMessage, EncodeError> {
    let mut message = route_header(route.prefix, route.metric, route.protocol);
    match &route.target {
        ActualTarget::Known(known) => target(&mut message, known, links)?,
        ActualTarget::Other(kind) => message.header.kind = (*kind).into(),
    }
    message.header.tos = route.tos;
    // "Any scope".
    message.header.scope = RouteScope::NoWhere;
    message.header.flags = RouteFlags::empty();
    Ok(message)
}
