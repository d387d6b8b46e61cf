//! The relay of the backend `udp`, as decisions about packets: where a packet of the TUN device
//! goes, what becomes of one that another node sent, and what a sender is told. Nothing here reads
//! or writes.
//!
//! On the wire a datagram holds one IP packet and nothing else. Each side lowers its hop limit by
//! one, so that a packet crosses two routers more.

mod checksum;
mod icmp;
mod limit;
mod merge;
mod offload;
mod packet;
mod table;

use std::net::{IpAddr, SocketAddr};

use caracal_model::Family;

pub use icmp::{IcmpError, icmp_answer};
pub use limit::AnswerLimit;
pub use merge::merge_segments;
pub use offload::{Offload, Segment, complete_checksum, split_segments};
pub use packet::{IpHeader, may_be_fragmented};
pub use table::RelayTable;

/// Octets of the largest IP packet.
pub const LARGEST_PACKET: usize = 65_535;
/// Datagrams that Linux sends as one (`UDP_MAX_SEGMENTS` up to 6.2).
const MOST_SEGMENTS: usize = 64;
/// Octets that they have at most together: the largest packet without an IPv6 and a UDP header.
const MOST_OCTETS: usize = LARGEST_PACKET - 48;

/// Octets of the outer headers: UDP's eight, and those of IP.
#[must_use]
pub const fn relay_overhead(outer: Family) -> u32 {
    match outer {
        Family::Ipv4 => 28,
        Family::Ipv6 => 48,
    }
}

/// Why a packet went no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// It is no whole IP packet, or not what its offload header says.
    Malformed,
    /// Its hop limit is used up. As flanneld does, nobody is told.
    HopLimit,
    /// No lease has its destination.
    NoNextHop,
    /// Its destination is multicast, broadcast or link-local: no relay passes that on.
    LinkScope,
    /// It is too large for the path to the other node, and must not be fragmented.
    TooBig,
    /// The kernel refused to send it to the other node.
    NotSent,
    /// The kernel refused to take it from the device.
    NotWritten,
}

impl DropReason {
    /// All of them; each stands at its own number.
    pub const ALL: [Self; 7] = [
        Self::Malformed,
        Self::HopLimit,
        Self::NoNextHop,
        Self::LinkScope,
        Self::TooBig,
        Self::NotSent,
        Self::NotWritten,
    ];

    /// The word in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::HopLimit => "hop_limit",
            Self::NoNextHop => "no_next_hop",
            Self::LinkScope => "link_scope",
            Self::TooBig => "too_big",
            Self::NotSent => "not_sent",
            Self::NotWritten => "not_written",
        }
    }
}

/// Where a packet of the TUN device goes; its hop limit is lowered.
///
/// # Errors
/// It goes nowhere. The packet is then as it was.
pub fn relay_outbound(packet: &mut [u8], table: &RelayTable) -> Result<SocketAddr, DropReason> {
    let header = IpHeader::parse(packet).ok_or(DropReason::Malformed)?;
    if is_link_scope(header.destination) {
        return Err(DropReason::LinkScope);
    }
    let to = table
        .next_hop(header.destination)
        .ok_or(DropReason::NoNextHop)?;
    packet::lower_hop_limit(packet)
        .then_some(to)
        .ok_or(DropReason::HopLimit)
}

/// The length of the packet that a datagram of another node holds; its hop limit is lowered.
///
/// # Errors
/// It goes no further.
pub fn relay_inbound(datagram: &mut [u8]) -> Result<usize, DropReason> {
    let header = IpHeader::parse(datagram).ok_or(DropReason::Malformed)?;
    packet::lower_hop_limit(datagram)
        .then_some(header.total_len)
        .ok_or(DropReason::HopLimit)
}

fn is_link_scope(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_multicast() || a.is_broadcast() || a.is_link_local(),
        IpAddr::V6(a) => a.is_multicast() || a.is_unicast_link_local(),
    }
}

/// How many of the first datagrams, given by destination and octets, Linux takes in one call as
/// segments of one size (`UDP_SEGMENT`): all have one destination and, but for the last one, one
/// length.
#[must_use]
pub fn run_of_segments(datagrams: impl IntoIterator<Item = (SocketAddr, usize)>) -> usize {
    let mut datagrams = datagrams.into_iter();
    let Some((to, size)) = datagrams.next() else {
        return 0;
    };
    let (mut count, mut octets, mut last) = (1, size, size);
    for (other, len) in datagrams {
        let fits = count < MOST_SEGMENTS && octets + len <= MOST_OCTETS;
        if other != to || len > size || last < size || !fits {
            break;
        }
        count += 1;
        octets += len;
        last = len;
    }
    count
}

#[cfg(test)]
mod tests;
