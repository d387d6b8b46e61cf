//! Prefixes on the wire (RFC 4271 §4.3): a length in bits, then as many octets as it needs.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::{BufMut, BytesMut};
use caracal_model::net::{Family, Prefix};

use super::error::Fault;

/// Appends every prefix of `input` to `out`. Bits beyond the length are ignored (RFC 4271 §4.3).
///
/// # Errors
/// A length beyond the family's or a prefix cut off. `out` then holds the prefixes before it.
pub fn decode(mut input: &[u8], family: Family, out: &mut Vec<Prefix>) -> Result<(), Fault> {
    while let Some((len, rest)) = input.split_first() {
        if *len > family.bits() {
            return Err(Fault::PrefixLength(*len));
        }
        let (octets, rest) = rest
            .split_at_checked(usize::from(len.div_ceil(8)))
            .ok_or(Fault::PrefixCut)?;
        out.push(match family {
            Family::Ipv4 => Prefix::v4(Ipv4Addr::from(padded::<4>(octets)), *len),
            Family::Ipv6 => Prefix::v6(Ipv6Addr::from(padded::<16>(octets)), *len),
        });
        input = rest;
    }
    Ok(())
}

/// `octets`, filled up with zeros. The caller has checked the length.
fn padded<const N: usize>(octets: &[u8]) -> [u8; N] {
    let mut full = [0; N];
    for (to, from) in full.iter_mut().zip(octets) {
        *to = *from;
    }
    full
}

/// Octets that `prefix` takes.
#[must_use]
pub fn encoded_len(prefix: &Prefix) -> usize {
    1 + usize::from(prefix.len().div_ceil(8))
}

/// Appends one prefix.
pub fn encode(prefix: &Prefix, out: &mut BytesMut) {
    let octets = usize::from(prefix.len().div_ceil(8));
    out.put_u8(prefix.len());
    match prefix.address() {
        std::net::IpAddr::V4(a) => out.put_slice(a.octets().get(..octets).unwrap_or_default()),
        std::net::IpAddr::V6(a) => out.put_slice(a.octets().get(..octets).unwrap_or_default()),
    }
}
