//! Prefixes on the wire (RFC 4271 §4.3): a length in bits, then as many octets as it needs.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::{BufMut, BytesMut};
use caracal_model::{Family, Prefix};

use super::error::UpdateFault;

/// Appends every prefix of `input` to `out`. Bits beyond the length are ignored (RFC 4271 §4.3).
///
/// # Errors
/// A length beyond the family's or a prefix cut off. `out` then holds the prefixes before it.
pub(crate) fn decode(
    mut input: &[u8],
    family: Family,
    out: &mut Vec<Prefix>,
) -> Result<(), UpdateFault> {
    // Of IPv4 most have four octets, of IPv6 nine.
    out.reserve(match family {
        Family::Ipv4 => input.len().div_ceil(4),
        Family::Ipv6 => input.len().div_ceil(9),
    });
    while let Some((len, rest)) = input.split_first() {
        let (prefix, rest) = one(*len, rest, family)?;
        out.push(prefix);
        input = rest;
    }
    Ok(())
}

/// [`decode`] for a family whose prefixes each follow a path identifier (RFC 7911 §3).
///
/// # Errors
/// A length beyond the family's, a prefix or an identifier cut off. Both lists then hold what was
/// before it.
pub(crate) fn decode_with_ids(
    mut input: &[u8],
    family: Family,
    out: &mut Vec<Prefix>,
    ids: &mut Vec<u32>,
) -> Result<(), UpdateFault> {
    while !input.is_empty() {
        let (id, rest) = input.split_first_chunk().ok_or(UpdateFault::PrefixCut)?;
        let (len, rest) = rest.split_first().ok_or(UpdateFault::PrefixCut)?;
        let (prefix, rest) = one(*len, rest, family)?;
        out.push(prefix);
        ids.push(u32::from_be_bytes(*id));
        input = rest;
    }
    Ok(())
}

/// The prefix of this length at the start of `input`, and what comes after it.
#[inline]
fn one(len: u8, input: &[u8], family: Family) -> Result<(Prefix, &[u8]), UpdateFault> {
    if len > family.bits() {
        return Err(UpdateFault::PrefixLength(len));
    }
    let (octets, rest) = input
        .split_at_checked(usize::from(len.div_ceil(8)))
        .ok_or(UpdateFault::PrefixCut)?;
    let prefix = match family {
        Family::Ipv4 => Prefix::v4(Ipv4Addr::from(padded::<4>(input, octets)), len),
        Family::Ipv6 => Prefix::v6(Ipv6Addr::from(padded::<16>(input, octets)), len),
    };
    Ok((prefix, rest))
}

/// Entry of a list of destinations: a prefix, or a prefix with its path identifier (RFC 7911 §3).
pub trait Nlri {
    /// Destination without its path identifier.
    fn prefix(&self) -> &Prefix;
    /// Octets that it takes.
    fn encoded_len(&self) -> usize;
    /// Appends the entry as it stands in an UPDATE.
    fn encode(&self, out: &mut BytesMut);
}

impl Nlri for Prefix {
    fn prefix(&self) -> &Prefix {
        self
    }

    fn encoded_len(&self) -> usize {
        encoded_len(self)
    }

    fn encode(&self, out: &mut BytesMut) {
        encode(self, out);
    }
}

impl Nlri for (Prefix, u32) {
    fn prefix(&self) -> &Prefix {
        &self.0
    }

    fn encoded_len(&self) -> usize {
        4 + encoded_len(&self.0)
    }

    fn encode(&self, out: &mut BytesMut) {
        out.put_u32(self.1);
        encode(&self.0, out);
    }
}

/// `octets`, filled up to the width of an address. Behind them come the next prefixes, whose bits
/// are host bits of this one and are cleared; only at the end of the list zeros are needed. The
/// caller has checked the length.
#[inline]
fn padded<const N: usize>(input: &[u8], octets: &[u8]) -> [u8; N] {
    if let Some(full) = input.first_chunk() {
        return *full;
    }
    let mut full = [0; N];
    for (to, from) in full.iter_mut().zip(octets) {
        *to = *from;
    }
    full
}

/// Octets that `prefix` takes.
#[must_use]
pub(crate) fn encoded_len(prefix: &Prefix) -> usize {
    1 + usize::from(prefix.len().div_ceil(8))
}

/// Appends length and address of a prefix (RFC 4271 §4.3).
#[inline]
pub(crate) fn encode(prefix: &Prefix, out: &mut BytesMut) {
    let octets = usize::from(prefix.len().div_ceil(8));
    // Arrays of a known length are copied without a call; what is too much is cut off again.
    let too_much = match prefix.address() {
        std::net::IpAddr::V4(addr) => {
            let [a, b, c, d] = addr.octets();
            out.extend_from_slice(&[prefix.len(), a, b, c, d]);
            4 - octets
        }
        std::net::IpAddr::V6(addr) => {
            let mut all = [prefix.len(); 17];
            all[1..].copy_from_slice(&addr.octets());
            out.extend_from_slice(&all);
            16 - octets
        }
    };
    out.truncate(out.len() - too_much);
}
