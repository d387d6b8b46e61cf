//! Work that Linux leaves to whoever reads a TUN device (`IFF_VNET_HDR`, `TUNSETOFFLOAD`):
//! checksums that are not finished, and TCP segments that are not cut yet. A header before each
//! packet says so: `struct virtio_net_hdr` (virtio 1.2 §5.1.6), ten octets in the machine's order.

use std::ops::Range;

use super::checksum;
use super::packet::V6_HEADER;

const NEEDS_CHECKSUM: u8 = 1;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
/// Where TCP's and UDP's checksums stand in their headers.
pub(super) const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: u16 = 6;
pub(super) const TCP: u8 = 6;
pub(super) const FIN: u8 = 0x01;
pub(super) const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// What is left to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    flags: u8,
    kind: u8,
    header_len: u16,
    segment_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Offload {
    /// Octets of the header.
    pub const LEN: usize = 10;

    /// Reads the header before a packet, and gives what stands behind it. `None` when that is too
    /// short.
    #[must_use]
    pub fn parse(read: &mut [u8]) -> Option<(Self, &mut [u8])> {
        let (h, packet) = read.split_first_chunk_mut::<{ Self::LEN }>()?;
        let word = |at: usize| u16::from_ne_bytes([h[at], h[at + 1]]);
        let offload = Self {
            flags: h[0],
            kind: h[1],
            header_len: word(2),
            segment_size: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        };
        Some((offload, packet))
    }

    /// The header as it is written.
    #[must_use]
    pub fn to_octets(self) -> [u8; Self::LEN] {
        let mut octets = [self.flags, self.kind, 0, 0, 0, 0, 0, 0, 0, 0];
        let words = [
            self.header_len,
            self.segment_size,
            self.checksum_start,
            self.checksum_offset,
        ];
        for (to, word) in octets[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        octets
    }

    /// TCP that the kernel cuts: a header up to `header_len`, and segments of `segment_size` octets
    /// behind it. `None` for what the fields cannot say.
    pub(super) fn tcp(
        is_v4: bool,
        tcp_start: usize,
        header_len: usize,
        segment_size: usize,
    ) -> Option<Self> {
        Some(Self {
            flags: NEEDS_CHECKSUM,
            kind: if is_v4 { TCP_V4 } else { TCP_V6 },
            header_len: u16::try_from(header_len).ok()?,
            segment_size: u16::try_from(segment_size).ok()?,
            checksum_start: u16::try_from(tcp_start).ok()?,
            checksum_offset: u16::try_from(TCP_CHECKSUM).ok()?,
        })
    }

    /// True for a packet that has to be cut.
    #[must_use]
    pub const fn is_uncut(&self) -> bool {
        self.kind != 0
    }
}

/// Finishes the checksum of a packet that is not to be cut, where the kernel left it. False when
/// the header says what cannot be.
#[must_use]
pub fn complete_checksum(packet: &mut [u8], offload: &Offload) -> bool {
    if offload.flags & NEEDS_CHECKSUM == 0 {
        return true;
    }
    let start = usize::from(offload.checksum_start);
    let at = start + usize::from(offload.checksum_offset);
    let Some(covered) = packet.get(start..) else {
        return false;
    };
    // The field holds the sum of the pseudo header.
    let mut sum = checksum::finish(checksum::sum(covered));
    if sum == 0 && offload.checksum_offset == UDP_CHECKSUM {
        // Zero means none (RFC 768).
        sum = 0xffff;
    }
    let Some(field) = packet.get_mut(at..at + 2) else {
        return false;
    };
    field.copy_from_slice(&sum.to_be_bytes());
    true
}

/// A packet of a cut one: its header and its part of the data, one behind the other on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Place of the header among the headers.
    pub header: Range<usize>,
    /// Place of the data in the packet.
    pub data: Range<usize>,
}

/// Length of TCP's header at a place; `None` when it is not whole.
pub(super) fn tcp_header_len(packet: &[u8], start: usize) -> Option<usize> {
    let len = usize::from(*packet.get(start + 12)? >> 4) * 4;
    (len >= 20 && start + len <= packet.len()).then_some(len)
}

/// Cuts a TCP packet. All segments but the last have the same length. Headers are put behind those
/// in `headers`. `None` when the offload header says what cannot be; nothing is added then.
#[must_use]
pub fn split_segments(
    packet: &[u8],
    offload: &Offload,
    headers: &mut Vec<u8>,
) -> Option<Vec<Segment>> {
    let version = packet.first()? >> 4;
    if !matches!((offload.kind, version), (TCP_V4, 4) | (TCP_V6, 6)) {
        return None;
    }
    let start = usize::from(offload.checksum_start);
    let shortest = if version == 4 { 20 } else { V6_HEADER };
    let header_len = start + tcp_header_len(packet, start)?;
    let size = usize::from(offload.segment_size);
    if start < shortest || size == 0 || header_len >= packet.len() {
        return None;
    }
    let data_len = packet.len() - header_len;
    let mut segments = Vec::with_capacity(data_len.div_ceil(size));
    for from in (0..data_len).step_by(size) {
        let to = data_len.min(from + size);
        let data = header_len + from..header_len + to;
        let place = headers.len()..headers.len() + header_len;
        headers.extend_from_slice(&packet[..header_len]);
        let cut = Cut {
            number: u16::try_from(segments.len()).unwrap_or_default(),
            offset: u32::try_from(from).unwrap_or_default(),
            is_last: to == data_len,
        };
        cut.complete(&mut headers[place.clone()], start, &packet[data.clone()]);
        segments.push(Segment {
            header: place,
            data,
        });
    }
    Some(segments)
}

/// Where a segment stands in the packet that is cut.
struct Cut {
    number: u16,
    offset: u32,
    is_last: bool,
}

impl Cut {
    /// Makes of the whole packet's header that of this segment (RFC 9293 §3.1).
    fn complete(&self, header: &mut [u8], start: usize, data: &[u8]) {
        let total = header.len() + data.len();
        let word = |len: usize| u16::try_from(len).unwrap_or_default().to_be_bytes();
        let pseudo = if header[0] >> 4 == 4 {
            header[2..4].copy_from_slice(&word(total));
            let number = u16::from_be_bytes([header[4], header[5]]).wrapping_add(self.number);
            header[4..6].copy_from_slice(&number.to_be_bytes());
            put_v4_checksum(header, start);
            checksum::pseudo_header(&header[12..20], TCP, total - start)
        } else {
            header[4..6].copy_from_slice(&word(total - V6_HEADER));
            checksum::pseudo_header(&header[8..V6_HEADER], TCP, total - start)
        };
        let tcp = &mut header[start..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        tcp[4..8].copy_from_slice(&sequence.wrapping_add(self.offset).to_be_bytes());
        if !self.is_last {
            tcp[13] &= !(FIN | PSH);
        }
        if self.number > 0 {
            tcp[13] &= !CWR;
        }
        tcp[TCP_CHECKSUM..TCP_CHECKSUM + 2].fill(0);
        // The header's length is a multiple of four: the two sums may be added.
        let sum = checksum::finish(pseudo + checksum::sum(tcp) + checksum::sum(data));
        tcp[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Writes the checksum of an IPv4 header of this length.
pub(super) fn put_v4_checksum(header: &mut [u8], len: usize) {
    header[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(&header[..len]));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
