//! The decoders of the attribute table, in its order. Each checks the value's form and nothing
//! else; what a fault costs is in the table.

use std::net::{IpAddr, Ipv4Addr};

use super::Parsed;
use crate::attrs::{Aggregator, Origin, UnknownAttr};
use crate::types::{Asn, ClusterId, Community, LargeCommunity, RouterId};
use crate::wire::error::UpdateFault;
use crate::wire::format::MessageFormat;
use crate::wire::{as_path, mp};

fn fixed<const N: usize>(value: &[u8], expected: &'static str) -> Result<[u8; N], UpdateFault> {
    <[u8; N]>::try_from(value).map_err(|_| UpdateFault::Length {
        len: value.len(),
        expected,
    })
}

/// A list of items of `N` octets each; never empty (RFC 7606 §7.8, §7.10, §7.14, RFC 8092 §5).
fn list<const N: usize, T: Ord>(
    value: &[u8],
    expected: &'static str,
    item: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, UpdateFault> {
    let (chunks, rest) = value.as_chunks::<N>();
    if chunks.is_empty() || !rest.is_empty() {
        return Err(UpdateFault::Length {
            len: value.len(),
            expected,
        });
    }
    Ok(chunks.iter().map(|octets| item(*octets)).collect())
}

fn set<const N: usize, T: Ord>(
    value: &[u8],
    expected: &'static str,
    item: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>, UpdateFault> {
    let mut items = list(value, expected, item)?;
    items.sort_unstable();
    items.dedup();
    Ok(items)
}

pub(super) fn origin(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    let [octet] = fixed(value, "1")?;
    parsed.attrs.origin = match octet {
        0 => Origin::Igp,
        1 => Origin::Egp,
        2 => Origin::Incomplete,
        other => return Err(UpdateFault::Origin(other)),
    };
    Ok(())
}

pub(super) fn path(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.attrs.as_path = as_path::decode(value, format.four_octet_as)?;
    Ok(())
}

pub(super) fn next_hop(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    let address = Ipv4Addr::from(fixed::<4>(value, "4")?);
    parsed.attrs.next_hop = Some(host(address.into())?);
    Ok(())
}

/// A next hop must be a host address (RFC 4271 §6.3). Loopback addresses pass: speakers may share a
/// host.
pub(in crate::wire) fn host(address: IpAddr) -> Result<IpAddr, UpdateFault> {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(UpdateFault::NextHop(address));
    }
    Ok(address)
}

pub(super) fn med(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.attrs.med = Some(u32::from_be_bytes(fixed(value, "4")?));
    Ok(())
}

pub(super) fn local_pref(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateFault> {
    internal(format)?;
    parsed.attrs.local_pref = Some(u32::from_be_bytes(fixed(value, "4")?));
    Ok(())
}

fn internal(format: &MessageFormat) -> Result<(), UpdateFault> {
    if format.internal {
        Ok(())
    } else {
        Err(UpdateFault::External)
    }
}

pub(super) fn atomic(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    let [] = fixed(value, "0")?;
    parsed.attrs.atomic_aggregate = true;
    Ok(())
}

pub(super) fn aggregator(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.attrs.aggregator = Some(decode_aggregator(value, format.four_octet_as)?);
    Ok(())
}

fn decode_aggregator(value: &[u8], four_octet: bool) -> Result<Aggregator, UpdateFault> {
    let (asn, router) = if four_octet {
        let [asn @ .., a, b, c, d] = fixed::<8>(value, "8")?;
        (as_path::asn(&asn), Ipv4Addr::new(a, b, c, d))
    } else {
        let [asn @ .., a, b, c, d] = fixed::<6>(value, "6")?;
        (as_path::asn(&asn), Ipv4Addr::new(a, b, c, d))
    };
    if asn == Asn(0) {
        return Err(UpdateFault::AsZero);
    }
    Ok(Aggregator { asn, router })
}

pub(super) fn communities(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.attrs.communities = set(value, "a multiple of 4", |octets| {
        Community(u32::from_be_bytes(octets))
    })?;
    Ok(())
}

pub(super) fn originator(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateFault> {
    internal(format)?;
    parsed.attrs.originator_id = Some(RouterId(Ipv4Addr::from(fixed::<4>(value, "4")?)));
    Ok(())
}

pub(super) fn cluster_list(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateFault> {
    internal(format)?;
    parsed.attrs.cluster_list = list(value, "a multiple of 4", |octets: [u8; 4]| {
        ClusterId(Ipv4Addr::from(octets))
    })?
    .into();
    Ok(())
}

pub(super) fn reach<'a>(
    parsed: &mut Parsed<'a>,
    value: &'a [u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.reach = Some(mp::decode_reach(value)?);
    Ok(())
}

pub(super) fn unreach<'a>(
    parsed: &mut Parsed<'a>,
    value: &'a [u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.unreach = Some(mp::decode_unreach(value)?);
    Ok(())
}

pub(super) fn ext_communities(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.attrs.ext_communities = set(value, "a multiple of 8", |octets: [u8; 8]| octets)?.into();
    Ok(())
}

pub(super) fn as4_path(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateFault> {
    if format.four_octet_as {
        return Err(UpdateFault::FourOctet);
    }
    parsed.as4_path = Some(as_path::decode(value, true)?);
    Ok(())
}

pub(super) fn as4_aggregator(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateFault> {
    if format.four_octet_as {
        return Err(UpdateFault::FourOctet);
    }
    parsed.as4_aggregator = Some(decode_aggregator(value, true)?);
    Ok(())
}

pub(super) fn large_communities(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    parsed.attrs.large_communities = set(value, "a multiple of 12", |octets: [u8; 12]| {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = octets;
        LargeCommunity(
            u32::from_be_bytes([a, b, c, d]),
            u32::from_be_bytes([e, f, g, h]),
            u32::from_be_bytes([i, j, k, l]),
        )
    })?
    .into();
    Ok(())
}

pub(super) fn only_to_customer(
    parsed: &mut Parsed<'_>,
    value: &[u8],
    _: &MessageFormat,
) -> Result<(), UpdateFault> {
    let asn = Asn(u32::from_be_bytes(fixed(value, "4")?));
    let kept = UnknownAttr::only_to_customer(asn);
    parsed.attrs.unknown.edit(|list| list.push(kept));
    Ok(())
}
