//! Flows of UDP and TCP that conntrack remembers: those to an endpoint that is gone are forgotten.
//! A sender of UDP that goes on sending would keep its flow for ever. Messages of ctnetlink
//! (`linux/netfilter/nfnetlink_conntrack.h`), encoded here.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

use super::netlink::framing::{
    attribute as append, attributes, begin, close, finish, messages, open,
};
use crate::transport::Transport;

/// `NFNL_SUBSYS_CTNETLINK << 8`, with `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`.
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
/// `IPCTNL_MSG_CT_NEW`: an entry of a dump.
const ENTRY: u16 = 1 << 8;
/// `NLM_F_REQUEST | NLM_F_DUMP`, `NLM_F_REQUEST | NLM_F_ACK`.
const DUMP: u16 = 0x301;
const ACKNOWLEDGED: u16 = 0x5;
/// `NLM_F_DUMP_INTR`: the table changed so much that entries may be missing.
const INTERRUPTED: u16 = 0x10;
/// `struct nlmsghdr`, and `struct nfgenmsg` behind it.
const HEADERS: usize = 20;
/// `CTA_TUPLE_ORIG`, `CTA_TUPLE_REPLY`, `CTA_PROTOINFO`, `CTA_ID`, `CTA_ZONE`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATE: u16 = 4;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// `CTA_FILTER`, and `CTA_FILTER_ORIG_FLAGS` in it.
const FILTER: u16 = 25;
const ORIGINAL_FLAGS: u16 = 1;
/// Bits of what is compared: the destination's address, and protocol with the destination's port.
const BY_ADDRESS: u32 = 1 << 1;
const BY_PORT: u32 = 1 << 3 | 1 << 5;
/// `CTA_TUPLE_IP`, with `CTA_IP_V4_DST` or `CTA_IP_V6_DST`.
const TUPLE_ADDRESSES: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_DESTINATION: u16 = 4;
/// `CTA_TUPLE_PROTO`, with `CTA_PROTO_NUM` and `CTA_PROTO_DST_PORT`.
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const DESTINATION_PORT: u16 = 3;
/// States of TCP that end a connection: `TCP_CONNTRACK_LAST_ACK`, `_TIME_WAIT` and `_CLOSE`.
const ENDED: std::ops::RangeInclusive<u8> = 6..=8;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// A kernel that does not answer for this long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tries of a dump that is interrupted.
const TRIES: u32 = 5;

/// Address and port.
pub(super) type End = (IpAddr, u16);

/// A flow of UDP or TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) protocol: Transport,
    /// Where the sender sent to.
    pub(super) to: End,
    /// Who answers.
    pub(super) answers: End,
    /// The message that deletes it.
    deletion: Vec<u8>,
}

/// With more ends than this all flows are asked for: for each the kernel walks through its table.
const FEW: usize = 8;

/// Deletes the flows of which this is true, among those that senders sent to one of these ends,
/// and maybe others; their numbers.
///
/// # Errors
/// When the kernel has no conntrack, or does not answer.
pub(super) fn forget_flows(
    ends: &[(Transport, End)],
    is_stale: impl Fn(&Flow) -> bool,
) -> io::Result<BTreeMap<Transport, u64>> {
    let mut socket = Socket::new(netlink_sys::protocols::NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    SockRef::from(&socket).set_read_timeout(Some(PATIENCE))?;
    let mut forgotten = BTreeMap::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let family = u8::try_from(family).unwrap_or_default();
        let flows = flows_of(&socket, family, ends)?;
        for flow in flows.iter().filter(|flow| is_stale(flow)) {
            socket.send_to(&flow.deletion, &SocketAddr::new(0, 0), 0)?;
            match acknowledgement(&socket)? {
                0 => *forgotten.entry(flow.protocol).or_default() += 1,
                // It has ended by itself.
                libc::ENOENT => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
    }
    Ok(forgotten)
}

/// The flows of a family to these ends, and maybe others.
fn flows_of(socket: &Socket, family: u8, ends: &[(Transport, End)]) -> io::Result<Vec<Flow>> {
    let all = || dump(socket, family, &[]);
    if ends.len() > FEW {
        return all();
    }
    let mut found = Vec::new();
    for end in ends.iter().filter(|(_, to)| family_of(to.0) == family) {
        match dump(socket, family, &filter(end)) {
            Ok(flows) => found.extend(flows),
            // One that knows no filters, or not these.
            Err(error) if error.raw_os_error().is_some() => return all(),
            Err(error) => return Err(error),
        }
        // Linux before 5.8 passes a filter over: then these are all.
        let (protocol, (_, port)) = *end;
        let is_other = |flow: &Flow| (flow.protocol, flow.to.1) != (protocol, port);
        if found.last().is_some_and(is_other) {
            break;
        }
    }
    Ok(found)
}

fn family_of(address: IpAddr) -> u8 {
    let family = match address {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    u8::try_from(family).unwrap_or_default()
}

/// Attributes of a dump of the flows to one end.
fn filter((protocol, (address, port)): &(Transport, End)) -> Vec<u8> {
    let mut body = Vec::new();
    let tuple = open(&mut body, ORIGINAL | NESTED);
    let part = open(&mut body, TUPLE_ADDRESSES | NESTED);
    match address {
        IpAddr::V4(address) => append(&mut body, V4_DESTINATION, &address.octets()),
        IpAddr::V6(address) => append(&mut body, V6_DESTINATION, &address.octets()),
    }
    close(&mut body, part);
    let part = open(&mut body, TUPLE_PROTOCOL | NESTED);
    append(&mut body, PROTOCOL_NUMBER, &[protocol.number()]);
    append(&mut body, DESTINATION_PORT, &port.to_be_bytes());
    close(&mut body, part);
    close(&mut body, tuple);
    let flags = open(&mut body, FILTER | NESTED);
    // Linux (up to 6.18 at least) leaves out the very address of IPv6 that it is asked for.
    let compared = match address {
        IpAddr::V4(_) => BY_ADDRESS | BY_PORT,
        IpAddr::V6(_) => BY_PORT,
    };
    append(&mut body, ORIGINAL_FLAGS, &compared.to_ne_bytes());
    close(&mut body, flags);
    body
}

/// The same with attributes of the request.
fn dump(socket: &Socket, family: u8, filter: &[u8]) -> io::Result<Vec<Flow>> {
    let mut tries = 0;
    loop {
        tries += 1;
        let (flows, whole) = dump_once(socket, family, filter)?;
        if whole || tries == TRIES {
            return Ok(flows);
        }
    }
}

/// The flows, and whether they are all.
fn dump_once(socket: &Socket, family: u8, filter: &[u8]) -> io::Result<(Vec<Flow>, bool)> {
    let request = message(GET, DUMP, family, filter);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
    let (mut flows, mut whole) = (Vec::new(), true);
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        for message in messages(&datagram) {
            let number = |at| u16::from_ne_bytes([message[at], message[at + 1]]);
            whole &= number(6) & INTERRUPTED == 0;
            match number(4) {
                ENTRY => flows.extend(flow(message)),
                // NLMSG_ERROR; NLMSG_DONE.
                2 => return Err(io::Error::from_raw_os_error(error_of(message))),
                3 => return Ok((flows, whole)),
                _ => {}
            }
        }
    }
}

fn acknowledgement(socket: &Socket) -> io::Result<i32> {
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if let Some(answer) = messages(&datagram).find(|m| m[4..6] == 2_u16.to_ne_bytes()) {
            return Ok(error_of(answer));
        }
    }
}

/// The number of the error in an `NLMSG_ERROR`; 0 = done.
fn error_of(message: &[u8]) -> i32 {
    let number = message
        .get(16..20)
        .and_then(|octets| octets.try_into().ok());
    number.map_or(libc::EPROTO, |octets| -i32::from_ne_bytes(octets))
}

/// Reads an entry. `None` = it is of another protocol, or has ended.
fn flow(message: &[u8]) -> Option<Flow> {
    let family = *message.get(16)?;
    let body = message.get(HEADERS..)?;
    let attribute = |number| attributes(body).find(|(n, _)| *n == number).map(|(_, v)| v);
    let original = attribute(ORIGINAL)?;
    let (protocol, _, to) = ends(original)?;
    let (_, answers, _) = ends(attribute(REPLY)?)?;
    if attribute(STATE)
        .and_then(tcp_state)
        .is_some_and(|s| ENDED.contains(&s))
    {
        return None;
    }
    let mut identity = Vec::new();
    append(&mut identity, ORIGINAL | NESTED, original);
    for number in [ID, ZONE] {
        if let Some(value) = attribute(number) {
            append(&mut identity, number, value);
        }
    }
    let deletion = self::message(DELETE, ACKNOWLEDGED, family, &identity);
    Some(Flow {
        protocol,
        to,
        answers,
        deletion,
    })
}

/// The state of a connection of TCP: `CTA_PROTOINFO_TCP`, `CTA_PROTOINFO_TCP_STATE`.
fn tcp_state(information: &[u8]) -> Option<u8> {
    let (_, tcp) = attributes(information).find(|(n, _)| *n == 1)?;
    let (_, state) = attributes(tcp).find(|(n, _)| *n == 1)?;
    state.first().copied()
}

/// Protocol, source and destination of a tuple.
fn ends(tuple: &[u8]) -> Option<(Transport, End, End)> {
    let nested = |number| {
        attributes(tuple)
            .find(|(n, _)| *n == number)
            .map(|(_, v)| v)
    };
    let (addresses, protocol) = (nested(1)?, nested(2)?);
    let of = |number| {
        attributes(protocol)
            .find(|(n, _)| *n == number)
            .map(|(_, v)| v)
    };
    let transport = match of(1)? {
        [6] => Transport::Tcp,
        [17] => Transport::Udp,
        _ => return None,
    };
    let port = |number| Some(u16::from_be_bytes(of(number)?.try_into().ok()?));
    let address = |numbers: [u16; 2]| {
        attributes(addresses).find_map(|(n, value)| match n {
            _ if n == numbers[0] => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
            _ if n == numbers[1] => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
            _ => None,
        })
    };
    // CTA_IP_V4_SRC and CTA_IP_V6_SRC; CTA_IP_V4_DST and CTA_IP_V6_DST.
    let (source, destination) = (address([1, 3])?, address([2, 4])?);
    Some((transport, (source, port(2)?), (destination, port(3)?)))
}

fn message(kind: u16, flags: u16, family: u8, body: &[u8]) -> Vec<u8> {
    let mut octets = Vec::new();
    let start = begin(&mut octets, kind, flags, 0);
    // `struct nfgenmsg`.
    octets.extend([family, 0, 0, 0]);
    octets.extend(body);
    finish(&mut octets, start);
    octets
}
