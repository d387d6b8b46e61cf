//! The least that a program can do to fill a table: messages made by hand, hundreds in one send,
//! one acknowledgement each. No timers, no names, no reading: a floor to compare with.

use std::net::Ipv4Addr;

use anyhow::{Result, bail, ensure};
use caracal_model::Prefix;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Messages in one send.
const BATCH: usize = 256;
/// `RTM_NEWROUTE` and `RTM_NEWNEXTHOP`.
const NEW_ROUTE: u16 = 24;
const NEW_NEXTHOP: u16 = 104;
/// `NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL`, and `NLM_F_ACK`.
const FLAGS: u16 = 0x601;
const ACK: u16 = 4;
/// The first of the objects.
const OBJECT: u32 = 1;

/// Routes to install, and the device they leave by.
pub struct Work {
    /// Destinations with their gateways; routes to one gateway stand together.
    pub routes: Vec<(Prefix, Ipv4Addr)>,
    /// Index of the device.
    pub device: u32,
    /// Through a next-hop object for each gateway.
    pub objects: bool,
}

pub fn install(work: &Work) -> Result<()> {
    let socket = open()?;
    let mut buffer = Vec::new();
    let mut object = OBJECT;
    let mut previous = None;
    for batch in work.routes.chunks(BATCH) {
        buffer.clear();
        for (n, (prefix, gateway)) in batch.iter().enumerate() {
            let std::net::IpAddr::V4(address) = prefix.address() else {
                continue;
            };
            if work.objects && previous.replace(*gateway) != Some(*gateway) {
                object += 1;
                nexthop(&mut buffer, object, work.device, *gateway);
            }
            let ack = if n + 1 == batch.len() { ACK } else { 0 };
            // family, lengths, tos, table main, protocol, scope, unicast, flags (RTNH_F_ONLINK of
            // the one hop)
            let onlink = if work.objects { 0 } else { 4 };
            let header = [2, prefix.len(), 0, 0, 254, 80, 0, 1, onlink, 0, 0, 0];
            let start = begin(&mut buffer, NEW_ROUTE, ack, &header);
            attribute(&mut buffer, 1, address.octets());
            if work.objects {
                attribute(&mut buffer, 30, object.to_ne_bytes());
            } else {
                attribute(&mut buffer, 4, work.device.to_ne_bytes());
                attribute(&mut buffer, 5, gateway.octets());
            }
            end(&mut buffer, start);
        }
        exchange(&socket, &buffer)?;
    }
    Ok(())
}

/// A socket to write through, in the present namespace.
pub fn open() -> Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    Ok(socket)
}

/// Writes the blackhole route of a block.
pub fn blackhole(socket: &Socket, prefix: &Prefix) -> Result<()> {
    let std::net::IpAddr::V4(address) = prefix.address() else {
        bail!("{prefix} is not IPv4");
    };
    let mut buffer = Vec::new();
    let header = [2, prefix.len(), 0, 0, 254, 80, 0, 6, 0, 0, 0, 0];
    let start = begin(&mut buffer, NEW_ROUTE, ACK, &header);
    attribute(&mut buffer, 1, address.octets());
    end(&mut buffer, start);
    exchange(socket, &buffer)
}

fn nexthop(buffer: &mut Vec<u8>, object: u32, device: u32, gateway: Ipv4Addr) {
    // family, scope, protocol, reserved, RTNH_F_ONLINK
    let header = [2, 0, 80, 0, 4, 0, 0, 0];
    let start = begin(buffer, NEW_NEXTHOP, 0, &header);
    attribute(buffer, 1, object.to_ne_bytes());
    attribute(buffer, 5, device.to_ne_bytes());
    attribute(buffer, 6, gateway.octets());
    end(buffer, start);
}

fn begin(buffer: &mut Vec<u8>, kind: u16, ack: u16, header: &[u8]) -> usize {
    let start = buffer.len();
    buffer.extend([0; 4]);
    buffer.extend(kind.to_ne_bytes());
    buffer.extend((FLAGS | ack).to_ne_bytes());
    buffer.extend([0; 8]);
    buffer.extend(header);
    start
}

fn attribute(buffer: &mut Vec<u8>, kind: u16, value: [u8; 4]) {
    buffer.extend(8_u16.to_ne_bytes());
    buffer.extend(kind.to_ne_bytes());
    buffer.extend(value);
}

fn end(buffer: &mut [u8], start: usize) {
    let length = (buffer.len() - start) as u32;
    buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// The first answer is a refusal or the acknowledgement of the last message.
fn exchange(socket: &Socket, buffer: &[u8]) -> Result<()> {
    socket.send_to(buffer, &SocketAddr::new(0, 0), 0)?;
    let mut answer = Vec::with_capacity(4096);
    socket.recv(&mut answer, 0)?;
    let code = answer.get(16..20);
    ensure!(code == Some(&[0; 4]), "the kernel refuses: {code:?}");
    Ok(())
}
