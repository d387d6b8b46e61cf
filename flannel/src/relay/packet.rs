//! Headers of IP, as far as a relay reads and changes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum;

/// Octets of IPv6's header.
pub(super) const V6_HEADER: usize = 40;
/// Flag of IPv4: don't fragment.
const DONT_FRAGMENT: u8 = 0x40;

/// What the header of an IP packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// Octets of the header; of IPv6's without extension headers.
    pub header_len: usize,
    /// Octets of the packet.
    pub total_len: usize,
}

impl IpHeader {
    /// Reads the header (RFC 791 §3.1, RFC 8200 §3). `None` for what is no IP packet, or is
    /// shorter than it says.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let header = match packet.first()? >> 4 {
            4 => {
                let h = packet.first_chunk::<20>()?;
                Self {
                    source: Ipv4Addr::new(h[12], h[13], h[14], h[15]).into(),
                    destination: Ipv4Addr::new(h[16], h[17], h[18], h[19]).into(),
                    header_len: usize::from(h[0] & 0xf) * 4,
                    total_len: usize::from(u16::from_be_bytes([h[2], h[3]])),
                }
            }
            6 => {
                let h = packet.first_chunk::<V6_HEADER>()?;
                let address = |from: usize| -> Option<IpAddr> {
                    let octets = h.get(from..)?.first_chunk::<16>()?;
                    Some(Ipv6Addr::from(*octets).into())
                };
                Self {
                    source: address(8)?,
                    destination: address(24)?,
                    header_len: V6_HEADER,
                    total_len: V6_HEADER + usize::from(u16::from_be_bytes([h[4], h[5]])),
                }
            }
            _ => return None,
        };
        let whole = header.header_len >= 20
            && header.total_len >= header.header_len
            && header.total_len <= packet.len();
        whole.then_some(header)
    }
}

/// Lowers the hop limit of a packet whose header was read. False when that is used up; the packet
/// is then as it was.
pub(super) fn lower_hop_limit(packet: &mut [u8]) -> bool {
    if let Some(h) = packet.first_chunk_mut::<V6_HEADER>()
        && h[0] >> 4 == 6
    {
        let left = h[7].saturating_sub(1);
        if left > 0 {
            h[7] = left;
        }
        return left > 0;
    }
    let Some(h) = packet.first_chunk_mut::<20>() else {
        return false;
    };
    let left = h[8].saturating_sub(1);
    if left == 0 {
        return false;
    }
    let before = u16::from_be_bytes([h[8], h[9]]);
    let after = u16::from_be_bytes([left, h[9]]);
    let sum = checksum::update(u16::from_be_bytes([h[10], h[11]]), before, after);
    h[8] = left;
    [h[10], h[11]] = sum.to_be_bytes();
    true
}

/// True for a packet that routers may cut: IPv4's without the flag DF.
#[must_use]
pub fn may_be_fragmented(packet: &[u8]) -> bool {
    matches!(packet, [first, _, _, _, _, _, flags, ..]
        if first >> 4 == 4 && flags & DONT_FRAGMENT == 0)
}
