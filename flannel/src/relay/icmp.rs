//! What a sender is told of a packet that goes nowhere: ICMP (RFC 792) and `ICMPv6` (RFC 4443).

use std::net::IpAddr;

use super::checksum;
use super::packet::{IpHeader, V6_HEADER};

/// Octets of an answer at most: what every host takes (RFC 1812 §4.3.2.3, RFC 4443 §2.4 (c)).
const LARGEST: [usize; 2] = [576, 1280];
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Octets before the packet that an answer is about.
const ICMP_HEADER: usize = 8;
/// Types of ICMP that are errors (RFC 1122 §3.2.2).
const ERRORS: [u8; 5] = [3, 4, 5, 11, 12];
/// Hop limit of answers.
const HOP_LIMIT: u8 = 64;
/// Precedence of answers: internetwork control (RFC 1812 §4.3.2.5).
const PRECEDENCE: u8 = 0xc0;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// No node has the destination: type 3 code 0, in IPv6 type 1 code 0.
    Unreachable,
    /// It is too large, and may not be cut: type 3 code 4 (RFC 1191 §4), in IPv6 type 2.
    TooBig {
        /// Octets that a packet may have.
        mtu: u32,
    },
}

impl IcmpError {
    const fn kind(self, is_v4: bool) -> [u8; 2] {
        match (self, is_v4) {
            (Self::Unreachable, true) => [3, 0],
            (Self::TooBig { .. }, true) => [3, 4],
            (Self::Unreachable, false) => [1, 0],
            (Self::TooBig { .. }, false) => [2, 0],
        }
    }

    const fn word(self) -> [u8; 4] {
        match self {
            Self::Unreachable => [0; 4],
            Self::TooBig { mtu } => mtu.to_be_bytes(),
        }
    }
}

/// The answer to a packet, from `source`. `None` when nobody may be told: about an ICMP error, a
/// later fragment, and a packet from or to more than one host (RFC 1812 §4.3.2.7, RFC 4443 §2.4
/// (e)).
#[must_use]
pub fn icmp_answer(packet: &[u8], source: IpAddr, error: IcmpError) -> Option<Vec<u8>> {
    let header = IpHeader::parse(packet)?;
    if !is_one_host(header.source) || !is_one_host(header.destination) {
        return None;
    }
    let about = packet.get(..header.total_len)?;
    match (source, header.source) {
        (IpAddr::V4(source), IpAddr::V4(to)) if !is_error_v4(about, header.header_len)? => {
            let room = LARGEST[0] - 20 - ICMP_HEADER;
            let message = message(&about[..about.len().min(room)], error, true, 0);
            let total = u16::try_from(20 + message.len()).ok()?.to_be_bytes();
            let mut answer = vec![0x45, PRECEDENCE, total[0], total[1], 0, 0, 0, 0];
            answer.extend([HOP_LIMIT, ICMP, 0, 0]);
            answer.extend(source.octets());
            answer.extend(to.octets());
            let sum = checksum::finish(checksum::sum(&answer)).to_be_bytes();
            answer[10..12].copy_from_slice(&sum);
            answer.extend(message);
            Some(answer)
        }
        (IpAddr::V6(source), IpAddr::V6(to)) if !is_error_v6(about)? => {
            let room = LARGEST[1] - V6_HEADER - ICMP_HEADER;
            let about = &about[..about.len().min(room)];
            let addresses = [source.octets(), to.octets()].concat();
            let len = ICMP_HEADER + about.len();
            let pseudo = checksum::pseudo_header(&addresses, ICMPV6, len);
            let len = u16::try_from(len).ok()?.to_be_bytes();
            let mut answer = vec![0x60, 0, 0, 0, len[0], len[1], ICMPV6, HOP_LIMIT];
            answer.extend(addresses);
            answer.extend(message(about, error, false, pseudo));
            Some(answer)
        }
        _ => None,
    }
}

fn message(about: &[u8], error: IcmpError, is_v4: bool, pseudo: u32) -> Vec<u8> {
    let mut message = error.kind(is_v4).to_vec();
    message.extend([0, 0]);
    message.extend(error.word());
    message.extend(about);
    let sum = checksum::finish(pseudo + checksum::sum(&message)).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

const fn is_one_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            !(a.is_unspecified() || a.is_loopback() || a.is_multicast() || a.is_broadcast())
        }
        IpAddr::V6(a) => !(a.is_unspecified() || a.is_loopback() || a.is_multicast()),
    }
}

/// True also for a later fragment; `None` when it cannot be told.
fn is_error_v4(packet: &[u8], header_len: usize) -> Option<bool> {
    let offset = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff;
    if offset != 0 {
        return Some(true);
    }
    match *packet.get(9)? {
        ICMP => Some(ERRORS.contains(packet.get(header_len)?)),
        _ => Some(false),
    }
}

/// The same for IPv6, behind its extension headers (RFC 8200 §4).
fn is_error_v6(packet: &[u8]) -> Option<bool> {
    let (mut next, mut at) = (*packet.get(6)?, V6_HEADER);
    loop {
        let len = match next {
            ICMPV6 => return Some(*packet.get(at)? < 128),
            // Hop-by-hop options, routing, destination options.
            0 | 43 | 60 => 8 + usize::from(*packet.get(at + 1)?) * 8,
            // Fragment.
            44 => {
                let offset = u16::from_be_bytes([*packet.get(at + 2)?, *packet.get(at + 3)?]);
                if offset & 0xfff8 != 0 {
                    return Some(true);
                }
                8
            }
            // Authentication (RFC 4302 §2.2).
            51 => 8 + usize::from(*packet.get(at + 1)?) * 4,
            _ => return Some(false),
        };
        next = *packet.get(at)?;
        at += len;
    }
}
