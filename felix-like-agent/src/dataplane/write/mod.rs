//! [`Op`]s → netlink messages (those of routes: [`crate::dataplane::netlink::routes`]), and what
//! the kernel's answers to them mean.

pub(in crate::dataplane) mod chains;
pub(in crate::dataplane) mod forward;
pub(in crate::dataplane) mod nat;
pub(in crate::dataplane) mod programs;
pub(in crate::dataplane) mod saved_sysctls;
pub(in crate::dataplane) mod sysctl;
pub(in crate::dataplane) mod tables;

use std::collections::HashMap;
use std::net::IpAddr;

use caracal_model::{Cidr, Family, IfName, Mac};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoIpTunnel, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::dataplane::netlink::batch::Writer;
use crate::dataplane::netlink::routes::{self, Devices};
use crate::dataplane::netlink::{
    EncodeError, KernelRefusal, Message, Netlink, NetlinkError, Request,
};
use crate::dataplane::read::MAIN_TABLE;
use crate::kernel_objects::{FdbKey, NeighbourKey, Tunnel, TunnelDevice};
use crate::links::Links;
use crate::op::Op;

/// Sends ops in order; one result each. Those that are not netlink's are passed over.
pub(in crate::dataplane) async fn send(
    netlink: &mut Netlink,
    ops: &[Op],
    links: &Links,
) -> Result<Vec<Result<(), String>>, NetlinkError> {
    send_into(netlink, ops, links, |_| MAIN_TABLE).await
}

/// The same with routes in the table of their family.
pub(in crate::dataplane) async fn send_into(
    netlink: &mut Netlink,
    ops: &[Op],
    links: &Links,
    table: impl Fn(Family) -> u32,
) -> Result<Vec<Result<(), String>>, NetlinkError> {
    let mut results = Vec::with_capacity(ops.len());
    let mut devices = Devices::new(links);
    // The last batch is judged behind the loop.
    let mut judged = 0;
    let mut unsent = HashMap::new();
    for (index, op) in ops.iter().enumerate() {
        let full = match push(netlink.writer(), op, &mut devices, &table) {
            Some(Ok(full)) => full,
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
            // The kernel answers at once: without this, many batches are one step of the task.
            tokio::task::yield_now().await;
        }
    }
    Ok(results)
}

/// Puts the message of an op behind those that wait; true = they have to be sent. `None` for ops
/// that are not netlink's (sysctls, NAT).
fn push(
    writer: &mut Writer,
    op: &Op,
    devices: &mut Devices<'_>,
    table: impl Fn(Family) -> u32,
) -> Option<Result<bool, EncodeError>> {
    if let (Some(kind), Some(prefix)) = (routes::kind(op), op.prefix()) {
        let table = table(prefix.family());
        return Some(writer.compose(kind, |message| routes::body(message, op, table, devices)));
    }
    let request = request(op, devices.links())?;
    Some(request.map(|request| writer.push(request)))
}

/// An object that is gone needs no deletion, and a device that has come needs no creation.
fn judge(op: &Op, answer: Option<Result<(), KernelRefusal>>) -> Result<(), String> {
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

/// The message of an op that is not about a route; `None` for ops that are not netlink's.
fn request(op: &Op, links: &Links) -> Option<Result<Request, EncodeError>> {
    Some(match op {
        Op::AddTunnel(tunnel) => add_tunnel(tunnel, links),
        Op::SetTunnel(tunnel) => set_tunnel(tunnel, links),
        Op::SetMac(name, mac) => set_mac(name, mac, links),
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
        Op::AddObject(object) => crate::dataplane::netlink::objects::put(object, false, links),
        Op::ReplaceObject(object) => crate::dataplane::netlink::objects::put(object, true, links),
        Op::DeleteObject(id) => Ok(crate::dataplane::netlink::objects::delete(*id)),
        Op::AddRoute(_)
        | Op::ReplaceRoute(_)
        | Op::DeleteRoute(_)
        | Op::WriteSysctl(..)
        | Op::PutNat(_)
        | Op::DeleteNat => return None,
    })
}

const fn put(message: RouteNetlinkMessage) -> Request {
    Request {
        message: Message::Rtnetlink(message),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
    }
}

const fn plain(message: RouteNetlinkMessage) -> Request {
    Request {
        message: Message::Rtnetlink(message),
        flags: 0,
    }
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
        TunnelDevice::Ipip { local } => {
            let local = local.map(|address| vec![InfoIpTunnel::Local(address)]);
            let data = local.map(|local| LinkInfo::Data(InfoData::IpTunnel(local)));
            std::iter::once(LinkInfo::Kind(InfoKind::IpIp))
                .chain(data)
                .collect()
        }
        TunnelDevice::Vxlan {
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
        // rtnetlink makes none.
        TunnelDevice::Tun => return Err(EncodeError::NoDevice(tunnel.name.clone())),
    };
    message.attributes.push(LinkAttribute::LinkInfo(info));
    Ok(Request {
        message: Message::Rtnetlink(RouteNetlinkMessage::NewLink(message)),
        flags: NLM_F_CREATE | NLM_F_EXCL,
    })
}

fn set_tunnel(tunnel: &Tunnel, links: &Links) -> Result<Request, EncodeError> {
    let mut message = LinkMessage::default();
    message.header.index = index(&tunnel.name, links)?;
    up(&mut message);
    message.attributes.push(LinkAttribute::Mtu(tunnel.mtu));
    if let TunnelDevice::Vxlan { mac, .. } = &tunnel.kind {
        message
            .attributes
            .push(LinkAttribute::Address(mac.to_vec()));
    }
    Ok(plain(RouteNetlinkMessage::SetLink(message)))
}

fn set_mac(name: &IfName, mac: &Mac, links: &Links) -> Result<Request, EncodeError> {
    let mut message = LinkMessage::default();
    message.header.index = index(name, links)?;
    message
        .attributes
        .push(LinkAttribute::Address(mac.to_vec()));
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
