//! Flows that conntrack remembers. Those of UDP and TCP to an endpoint that is gone are forgotten:
//! a sender of UDP that goes on sending would keep its flow for ever. Those that policies do not
//! allow any more are marked. Messages of ctnetlink (`linux/netfilter/nfnetlink_conntrack.h`),
//! encoded here.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use caracal_model::Packet;
use netlink_sys::{Socket, SocketAddr};
use socket2::SockRef;

use super::netlink::framing::{
    attribute as append, attributes, begin, close, finish, messages, open,
};
use crate::transport::Transport;

/// `NFNL_SUBSYS_CTNETLINK << 8`, with `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`.
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
/// `IPCTNL_MSG_CT_NEW`: an entry of a dump, and a change of one.
const ENTRY: u16 = 1 << 8;
/// `NLM_F_REQUEST | NLM_F_DUMP`, `NLM_F_REQUEST | NLM_F_ACK`.
const DUMP: u16 = 0x301;
const ACKNOWLEDGED: u16 = 0x5;
/// `NLM_F_DUMP_INTR`: the table changed so much that entries may be missing.
const INTERRUPTED: u16 = 0x10;
/// `struct nlmsghdr`, and `struct nfgenmsg` behind it.
const HEADERS: usize = 20;
/// `CTA_TUPLE_ORIG`, `CTA_TUPLE_REPLY`, `CTA_PROTOINFO`, `CTA_MARK`, `CTA_ID`, `CTA_ZONE`,
/// `CTA_MARK_MASK`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATE: u16 = 4;
const MARK: u16 = 8;
const ID: u16 = 12;
const ZONE: u16 = 18;
const MARK_MASK: u16 = 21;
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
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// `CTA_PROTO_ICMP_TYPE` and `_CODE`, `CTA_PROTO_ICMPV6_TYPE` and `_CODE`.
const ICMP: [(u16, u16); 2] = [(5, 6), (8, 9)];
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
    let socket = open_socket()?;
    let mut forgotten = BTreeMap::new();
    for family in families() {
        let flows = flows_of(&socket, family, ends)?;
        for flow in flows.iter().filter(|flow| is_stale(flow)) {
            if is_done(&socket, &flow.deletion)? {
                *forgotten.entry(flow.protocol).or_default() += 1;
            }
        }
    }
    Ok(forgotten)
}

/// What became of flows' marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marked {
    /// Flows that have the bit since.
    pub(super) set: u64,
    /// Flows that have lost it.
    pub(super) taken: u64,
    /// Flows that had it, and have it still.
    pub(super) kept: u64,
}

/// Sets a bit of the marks of all flows of which this is true, and takes it from those of which it
/// is false; of others (`None`) nothing is changed. It is asked for the first packet of a flow as
/// it is behind translation of its destination.
///
/// # Errors
/// When the kernel has no conntrack, or does not answer.
pub(super) fn mark_flows(
    bit: u32,
    is_marked: impl Fn(&Packet) -> Option<bool>,
) -> io::Result<Marked> {
    let socket = open_socket()?;
    let mut all = Marked::default();
    for family in families() {
        let (mut changes, mut kept) = (Vec::new(), 0);
        dump(&socket, family, &[], &mut |message| {
            let Some(message) = message else {
                changes.clear();
                kept = 0;
                return;
            };
            let Some((packet, mark)) = marked(message) else {
                return;
            };
            let has = mark & bit != 0;
            match is_marked(&packet).filter(|wanted| *wanted != has) {
                Some(wanted) => changes.push((wanted, remark(message, bit, wanted))),
                None => kept += u64::from(has),
            }
        })?;
        for (wanted, message) in changes {
            match (is_done(&socket, &message)?, wanted) {
                (true, true) => all.set += 1,
                (true, false) => all.taken += 1,
                (false, _) => {}
            }
        }
        all.kept += kept;
    }
    Ok(all)
}

fn open_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(netlink_sys::protocols::NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    SockRef::from(&socket).set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn families() -> impl Iterator<Item = u8> {
    let families = [libc::AF_INET, libc::AF_INET6].into_iter();
    families.map(|family| u8::try_from(family).unwrap_or_default())
}

/// Sends a change of a flow. False: the flow has ended by itself.
fn is_done(socket: &Socket, change: &[u8]) -> io::Result<bool> {
    socket.send_to(change, &SocketAddr::new(0, 0), 0)?;
    match acknowledgement(socket)? {
        0 => Ok(true),
        libc::ENOENT => Ok(false),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The flows of a family to these ends, and maybe others.
fn flows_of(socket: &Socket, family: u8, ends: &[(Transport, End)]) -> io::Result<Vec<Flow>> {
    let all = || dumped(socket, family, &[]);
    if ends.len() > FEW {
        return all();
    }
    let mut found = Vec::new();
    for end in ends.iter().filter(|(_, to)| family_of(to.0) == family) {
        match dumped(socket, family, &filter(end)) {
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
fn dumped(socket: &Socket, family: u8, filter: &[u8]) -> io::Result<Vec<Flow>> {
    let mut flows = Vec::new();
    dump(socket, family, filter, &mut |message| match message {
        None => flows.clear(),
        Some(message) => flows.extend(flow(message)),
    })?;
    Ok(flows)
}

/// What a dump tells: an entry, or (`None`) that all are told anew.
type Told<'a> = &'a mut dyn FnMut(Option<&[u8]>);

fn dump(socket: &Socket, family: u8, filter: &[u8], told: Told<'_>) -> io::Result<()> {
    let mut tries = 0;
    loop {
        tries += 1;
        told(None);
        if dump_once(socket, family, filter, told)? || tries == TRIES {
            return Ok(());
        }
    }
}

/// Whether these were all.
fn dump_once(socket: &Socket, family: u8, filter: &[u8], told: Told<'_>) -> io::Result<bool> {
    let request = message(GET, DUMP, family, filter);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
    let mut whole = true;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        for message in messages(&datagram) {
            let number = |at| u16::from_ne_bytes([message[at], message[at + 1]]);
            whole &= number(6) & INTERRUPTED == 0;
            match number(4) {
                ENTRY => told(Some(message)),
                // NLMSG_ERROR; NLMSG_DONE.
                2 => return Err(io::Error::from_raw_os_error(error_of(message))),
                3 => return Ok(whole),
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

/// An attribute of an entry.
fn attribute(message: &[u8], number: u16) -> Option<&[u8]> {
    let body = message.get(HEADERS..)?;
    attributes(body).find(|(n, _)| *n == number).map(|(_, v)| v)
}

/// True for an entry of a connection that has ended.
fn has_ended(message: &[u8]) -> bool {
    let state = attribute(message, STATE).and_then(tcp_state);
    state.is_some_and(|state| ENDED.contains(&state))
}

/// Reads an entry. `None` = it is of another protocol, or has ended.
fn flow(message: &[u8]) -> Option<Flow> {
    let family = *message.get(16)?;
    let original = tuple(attribute(message, ORIGINAL)?)?;
    let reply = tuple(attribute(message, REPLY)?)?;
    let protocol = Transport::from_number(original.protocol);
    let protocol = protocol.filter(|protocol| *protocol != Transport::Sctp)?;
    if has_ended(message) {
        return None;
    }
    let mut identity = named(message);
    if let Some(value) = attribute(message, ID) {
        append(&mut identity, ID, value);
    }
    let deletion = self::message(DELETE, ACKNOWLEDGED, family, &identity);
    Some(Flow {
        protocol,
        to: original.destination,
        answers: reply.source,
        deletion,
    })
}

/// The attributes that say which entry is meant.
fn named(message: &[u8]) -> Vec<u8> {
    let mut identity = Vec::new();
    for (number, nested) in [(ORIGINAL, NESTED), (ZONE, 0)] {
        if let Some(value) = attribute(message, number) {
            append(&mut identity, number | nested, value);
        }
    }
    identity
}

/// Reads an entry of any protocol: the first packet of the flow behind translation of its
/// destination, and its mark. `None` = it cannot be read, or has ended.
fn marked(message: &[u8]) -> Option<(Packet, u32)> {
    let original = tuple(attribute(message, ORIGINAL)?)?;
    let reply = tuple(attribute(message, REPLY)?)?;
    let mark = attribute(message, MARK).and_then(|octets| octets.try_into().ok());
    let packet = Packet {
        source: original.source.0,
        destination: reply.source.0,
        protocol: original.protocol,
        ports: (original.source.1, reply.source.1),
        icmp: original.icmp,
    };
    let mark = mark.map_or(0, u32::from_be_bytes);
    (!has_ended(message)).then_some((packet, mark))
}

/// The message that sets a bit of an entry's mark, or takes it away.
fn remark(message: &[u8], bit: u32, is_set: bool) -> Vec<u8> {
    let family = message.get(16).copied().unwrap_or_default();
    let mut body = named(message);
    let mark = if is_set { bit } else { 0 };
    append(&mut body, MARK, &mark.to_be_bytes());
    append(&mut body, MARK_MASK, &bit.to_be_bytes());
    self::message(ENTRY, ACKNOWLEDGED, family, &body)
}

/// The state of a connection of TCP: `CTA_PROTOINFO_TCP`, `CTA_PROTOINFO_TCP_STATE`.
fn tcp_state(information: &[u8]) -> Option<u8> {
    let (_, tcp) = attributes(information).find(|(n, _)| *n == 1)?;
    let (_, state) = attributes(tcp).find(|(n, _)| *n == 1)?;
    state.first().copied()
}

/// Protocol and ends of one direction of a flow; ports are 0 where there are none.
struct Tuple {
    protocol: u8,
    source: End,
    destination: End,
    icmp: (u8, u8),
}

fn tuple(tuple: &[u8]) -> Option<Tuple> {
    let nested = |number| {
        attributes(tuple)
            .find(|(n, _)| *n == number)
            .map(|(_, v)| v)
    };
    let (addresses, protocol) = (nested(TUPLE_ADDRESSES)?, nested(TUPLE_PROTOCOL)?);
    let of = |number| {
        attributes(protocol)
            .find(|(n, _)| *n == number)
            .map(|(_, v)| v)
    };
    let octet = |number| of(number).and_then(|octets| octets.first().copied());
    let port = |number| {
        let octets = of(number).and_then(|octets| octets.try_into().ok());
        octets.map_or(0, u16::from_be_bytes)
    };
    let address = |numbers: [u16; 2]| {
        attributes(addresses).find_map(|(n, value)| match n {
            _ if n == numbers[0] => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
            _ if n == numbers[1] => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
            _ => None,
        })
    };
    let icmp = ICMP.into_iter();
    let mut icmp = icmp.filter_map(|(kind, code)| Some((octet(kind)?, octet(code)?)));
    Some(Tuple {
        protocol: octet(PROTOCOL_NUMBER)?,
        // CTA_IP_V4_SRC and CTA_IP_V6_SRC; CTA_IP_V4_DST and CTA_IP_V6_DST.
        source: (address([1, 3])?, port(SOURCE_PORT)),
        destination: (
            address([V4_DESTINATION, V6_DESTINATION])?,
            port(DESTINATION_PORT),
        ),
        icmp: icmp.next().unwrap_or_default(),
    })
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
