//! Next-hop objects in netlink's language (`struct nhmsg`, Linux from 5.3 on): the crates that we
//! use have no types for them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use caracal_model::{Family, InsertEach};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};

use crate::actual::ActualObject;
use crate::dataplane::netlink::error::EncodeError;
use crate::dataplane::netlink::framing::{self, HEADER, attribute};
use crate::dataplane::netlink::routes;
use crate::dataplane::netlink::{Message, Netlink, NetlinkError, Request};
use crate::kernel_objects::{NextHop, NextHopObject};
use crate::links::Links;

/// `RTM_NEWNEXTHOP`, `RTM_DELNEXTHOP`, `RTM_GETNEXTHOP`.
const NEW: u16 = 104;
const DELETE: u16 = 105;
const GET: u16 = 106;
/// Octets of `struct nhmsg`: family, scope, protocol, a reserved one, 32 bits of flags.
const NHMSG: usize = 8;
/// `RTNH_F_ONLINK`.
const ONLINK: u32 = 4;
/// `NHA_*`.
const ID: u16 = 1;
const BLACKHOLE: u16 = 4;
const DEVICE: u16 = 5;
const GATEWAY: u16 = 6;
/// Attributes of a plain next hop through a gateway; an object with another one is not of our kind.
const PLAIN: [u16; 3] = [ID, DEVICE, GATEWAY];

/// Makes an object, or changes ours.
pub(in crate::dataplane) fn put(
    object: &NextHopObject,
    replace: bool,
    links: &Links,
) -> Result<Request, EncodeError> {
    let NextHopObject { id, protocol, hop } = object;
    let no_device = || EncodeError::NoDevice(hop.link.clone());
    let device = links.by_name(hop.link.as_str()).ok_or_else(no_device)?;
    let family = hop.gateway.map_or(Family::Ipv4, Family::of);
    let flags = if hop.onlink { ONLINK } else { 0 };
    let mut body = header(routes::address_family(family), *protocol, flags);
    attribute(&mut body, ID, &id.to_ne_bytes());
    attribute(&mut body, DEVICE, &device.index.to_ne_bytes());
    if let Some(gateway) = hop.gateway {
        routes::address(&mut body, GATEWAY, gateway);
    }
    let how = if replace { NLM_F_REPLACE } else { NLM_F_EXCL };
    Ok(raw(NEW, NLM_F_CREATE | how, body))
}

/// Deletes an object, and with it, as the kernel does, every route through it.
pub(in crate::dataplane) fn delete(id: u32) -> Request {
    let mut body = header(0, 0, 0);
    attribute(&mut body, ID, &id.to_ne_bytes());
    raw(DELETE, 0, body)
}

/// Makes an object without a device, by which it is found out whether the kernel has such objects.
pub(in crate::dataplane) fn blackhole(id: u32, protocol: u8) -> Request {
    let mut body = header(routes::address_family(Family::Ipv4), protocol, 0);
    attribute(&mut body, ID, &id.to_ne_bytes());
    attribute(&mut body, BLACKHOLE, &[]);
    raw(NEW, NLM_F_CREATE | NLM_F_EXCL, body)
}

fn header(family: u8, protocol: u8, flags: u32) -> Vec<u8> {
    let mut body = vec![family, 0, protocol, 0];
    body.extend(flags.to_ne_bytes());
    body
}

const fn raw(kind: u16, flags: u16, body: Vec<u8>) -> Request {
    Request {
        message: Message::Raw { kind, body },
        flags,
    }
}

/// Reads all objects; none where the kernel has none.
pub(in crate::dataplane) async fn read(
    netlink: &mut Netlink,
    links: &Links,
) -> Result<BTreeMap<u32, ActualObject>, NetlinkError> {
    let request = raw(GET, 0, header(0, 0, 0));
    let read = |message: &[u8]| object(message, links);
    match netlink.dump_each("next-hop objects", request, read).await {
        // Kernels before 5.3 do not know the request.
        Err(NetlinkError::Dump { source, .. }) if source.code == libc::EOPNOTSUPP => {
            Ok(BTreeMap::new())
        }
        found => Ok(found?.into_iter().insert_each()),
    }
}

/// True for a message that tells of a change of an object that did not come from the netlink socket
/// `own`.
pub(in crate::dataplane) fn is_hint(message: &[u8], own: u32) -> bool {
    let kind = framing::half(message, 4);
    matches!(kind, Some(NEW | DELETE)) && framing::word(message, 12) != Some(own)
}

fn object(message: &[u8], links: &Links) -> Option<(u32, ActualObject)> {
    if framing::half(message, 4)? != NEW {
        return None;
    }
    let protocol = *message.get(HEADER + 2)?;
    let onlink = framing::word(message, HEADER + 4)? & ONLINK != 0;
    let (mut id, mut link, mut gateway, mut strange) = (None, None, None, false);
    for (kind, value) in framing::attributes(message.get(HEADER + NHMSG..)?) {
        strange |= !PLAIN.contains(&kind);
        match kind {
            ID => id = framing::word(value, 0),
            DEVICE => link = links.by_index(framing::word(value, 0)?),
            GATEWAY => gateway = address(value),
            _ => {}
        }
    }
    let hop = link.filter(|_| !strange).map(|link| NextHop {
        gateway,
        link: link.name.clone(),
        onlink,
        extra_weight: 0,
    });
    Some((id?, ActualObject { protocol, hop }))
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}
