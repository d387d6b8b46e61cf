//! TCP segments of one flow that came one behind the other, as one packet for the kernel: the
//! opposite of [`super::split_segments`], and what Linux's own GRO does for network cards.

use super::LARGEST_PACKET;
use super::checksum;
use super::offload::{Offload, PSH, TCP, TCP_CHECKSUM, put_v4_checksum, tcp_header_len};
use super::packet::V6_HEADER;

const ACK: u8 = 0x10;
/// Pieces of one packet at most: with two headers far below what Linux takes at once (`IOV_MAX`).
const MOST: usize = 256;

/// Gives the packets to `write`, in their order: what is left to the kernel, the packet or the
/// header of a merged one, and the data behind that. Segments are merged only when nothing is lost
/// by it: the kernel makes the same packets of them again. One with a wrong checksum stays alone,
/// and as it is.
pub fn merge_segments<'a>(
    packets: &[&'a [u8]],
    mut write: impl FnMut(Offload, &[u8], &[&'a [u8]]),
) {
    let mut rest = packets;
    while let Some((&first, others)) = rest.split_first() {
        let mut run = Run::start(first);
        let more = match &mut run {
            Some(run) => others.iter().take_while(|&&next| run.takes(next)).count(),
            None => 0,
        };
        match run.filter(|_| more > 0).and_then(Run::finish) {
            Some((offload, header, data)) => write(offload, &header, &data),
            None => {
                for packet in &rest[..=more] {
                    write(Offload::default(), packet, &[]);
                }
            }
        }
        rest = &others[more..];
    }
}

/// A TCP segment with data and none of the flags that a merge would lose.
#[derive(Clone, Copy)]
struct Tcp<'a> {
    packet: &'a [u8],
    start: usize,
    header_len: usize,
}

impl<'a> Tcp<'a> {
    fn parse(packet: &'a [u8]) -> Option<Self> {
        let start = match packet {
            // Without options, and no fragment.
            [0x45, _, _, _, _, _, flags, 0, _, TCP, ..] if flags & 0xbf == 0 => 20,
            [first, _, _, _, _, _, TCP, ..] if first >> 4 == 6 => V6_HEADER,
            _ => return None,
        };
        let header_len = start + tcp_header_len(packet, start)?;
        let flags = *packet.get(start + 13)?;
        let plain = flags & !PSH == ACK && header_len < packet.len();
        plain.then_some(Self {
            packet,
            start,
            header_len,
        })
    }

    const fn is_v4(&self) -> bool {
        self.start == 20
    }

    fn data(&self) -> &'a [u8] {
        &self.packet[self.header_len..]
    }

    fn tcp_header(&self) -> &'a [u8] {
        &self.packet[self.start..self.header_len]
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.packet[at], self.packet[at + 1]])
    }

    fn sequence(&self) -> u32 {
        let tcp = self.tcp_header();
        u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])
    }

    fn is_pushed(&self) -> bool {
        self.tcp_header()[13] & PSH != 0
    }

    fn addresses(&self) -> &'a [u8] {
        match self.is_v4() {
            true => &self.packet[12..20],
            false => &self.packet[8..V6_HEADER],
        }
    }

    /// True when its checksums are right. A merged packet gets new ones, which must not vouch for
    /// what was broken before.
    fn is_sound(&self) -> bool {
        let tcp = &self.packet[self.start..];
        let sum = checksum::pseudo_header(self.addresses(), TCP, tcp.len()) + checksum::sum(tcp);
        let v4 = !self.is_v4() || checksum::finish(checksum::sum(&self.packet[..20])) == 0;
        v4 && checksum::finish(sum) == 0
    }

    /// True for the same flow with the same fields and options, `number` packets later.
    fn is_followed_by(&self, other: &Tcp<'_>, number: usize) -> bool {
        let (a, b) = (self.packet, other.packet);
        if (self.start, self.header_len) != (other.start, other.header_len) {
            return false;
        }
        let ip = match self.is_v4() {
            // All but length, number and checksum. The kernel numbers cut packets one by one; the
            // number matters only without DF.
            true => {
                let number = u16::try_from(number).unwrap_or_default();
                let next = self.word(4).wrapping_add(number) == other.word(4);
                a[..2] == b[..2] && a[6..10] == b[6..10] && (next || a[6] & 0x40 != 0)
            }
            // All but the length.
            false => a[..4] == b[..4] && a[6..8] == b[6..8],
        };
        let (c, d) = (self.tcp_header(), other.tcp_header());
        // All but sequence number, PSH and checksum.
        ip && self.addresses() == other.addresses()
            && c[..4] == d[..4]
            && c[8..13] == d[8..13]
            && c[14..16] == d[14..16]
            && c[18..] == d[18..]
    }
}

/// What is left to the kernel, the header, and the data.
type Merged<'a> = (Offload, Vec<u8>, Vec<&'a [u8]>);

/// Segments that become one packet.
struct Run<'a> {
    first: Tcp<'a>,
    data: Vec<&'a [u8]>,
    /// Octets of the data.
    octets: usize,
    /// The last one was short, or is to be delivered at once.
    closed: bool,
    is_pushed: bool,
}

impl<'a> Run<'a> {
    fn start(packet: &'a [u8]) -> Option<Self> {
        let first = Tcp::parse(packet)?;
        Some(Self {
            first,
            data: vec![first.data()],
            octets: first.data().len(),
            closed: first.is_pushed(),
            is_pushed: first.is_pushed(),
        })
    }

    /// Takes the next packet, if it continues the run.
    fn takes(&mut self, packet: &'a [u8]) -> bool {
        let Some(next) = Tcp::parse(packet) else {
            return false;
        };
        let size = self.first.data().len();
        let len = next.data().len();
        let expected = u32::try_from(self.octets)
            .ok()
            .map(|octets| self.first.sequence().wrapping_add(octets));
        let fits = !self.closed
            && len <= size
            && self.data.len() < MOST
            && self.first.header_len + self.octets + len <= LARGEST_PACKET
            && expected == Some(next.sequence())
            && self.first.is_followed_by(&next, self.data.len());
        // The costly part comes last.
        if !fits || (self.data.len() == 1 && !self.first.is_sound()) || !next.is_sound() {
            return false;
        }
        self.data.push(next.data());
        self.octets += len;
        self.is_pushed = next.is_pushed();
        self.closed = len < size || next.is_pushed();
        true
    }

    fn finish(self) -> Option<Merged<'a>> {
        let first = self.first;
        let (start, is_v4) = (first.start, first.is_v4());
        let offload = Offload::tcp(is_v4, start, first.header_len, first.data().len())?;
        let mut header = first.packet[..first.header_len].to_vec();
        let total = header.len() + self.octets;
        if is_v4 {
            header[2..4].copy_from_slice(&u16::try_from(total).ok()?.to_be_bytes());
            put_v4_checksum(&mut header, start);
        } else {
            let len = u16::try_from(total - V6_HEADER).ok()?;
            header[4..6].copy_from_slice(&len.to_be_bytes());
        }
        if self.is_pushed {
            header[start + 13] |= PSH;
        }
        // The kernel finishes it.
        let pseudo = checksum::pseudo_header(first.addresses(), TCP, total - start);
        let at = start + TCP_CHECKSUM;
        header[at..at + 2].copy_from_slice(&checksum::folded(pseudo).to_be_bytes());
        Some((offload, header, self.data))
    }
}
