//! MP_REACH_NLRI and MP_UNREACH_NLRI (RFC 4760 §3 and §4), next hops as in RFC 2545 and RFC 8950.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{BufMut, BytesMut};
use caracal_model::{Family, unzoned};
use nom::bytes::complete::take;
use nom::combinator::rest;
use nom::multi::length_data;
use nom::number::complete::{be_u8, be_u16};

use super::afi_safi::AfiSafi;
use super::error::UpdateFault;
use super::format::MessageFormat;
use super::reader;

/// MP_REACH_NLRI, its prefixes not yet read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach<'a> {
    pub(super) family: AfiSafi,
    pub(super) next_hop: &'a [u8],
    pub(super) nlri: &'a [u8],
}

/// MP_UNREACH_NLRI, its prefixes not yet read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreach<'a> {
    pub(super) family: AfiSafi,
    pub(super) nlri: &'a [u8],
}

pub(super) fn decode_reach(value: &[u8]) -> Result<Reach<'_>, UpdateFault> {
    let fields = (be_u16, be_u8, length_data(be_u8), take(1usize), rest);
    let (afi, safi, next_hop, _reserved, nlri) =
        reader::whole(fields, value).map_err(|_| UpdateFault::Length {
            len: value.len(),
            expected: "AFI, SAFI, next hop and a reserved octet",
        })?;
    Ok(Reach {
        family: AfiSafi { afi, safi },
        next_hop,
        nlri,
    })
}

pub(super) fn decode_unreach(value: &[u8]) -> Result<Unreach<'_>, UpdateFault> {
    let (afi, safi, nlri) =
        reader::whole((be_u16, be_u8, rest), value).map_err(|_| UpdateFault::Length {
            len: value.len(),
            expected: "AFI and SAFI",
        })?;
    Ok(Unreach {
        family: AfiSafi { afi, safi },
        nlri,
    })
}

/// The global next hop and the link-local one that may follow it.
pub(super) fn decode_next_hop(
    octets: &[u8],
    family: Family,
    format: &MessageFormat,
) -> Result<(IpAddr, Option<Ipv6Addr>), UpdateFault> {
    let length = |expected| UpdateFault::Length {
        len: octets.len(),
        expected,
    };
    if family == Family::Ipv4
        && let Ok(v4) = <[u8; 4]>::try_from(octets)
    {
        return Ok((Ipv4Addr::from(v4).into(), None));
    }
    if family == Family::Ipv4 && !format.extended_next_hop {
        return Err(length("4"));
    }
    let (global, rest) = octets
        .split_first_chunk::<16>()
        .ok_or_else(|| length("16 or 32"))?;
    let global = Ipv6Addr::from(*global);
    if rest.is_empty() {
        return Ok((global.into(), None));
    }
    let local = <[u8; 16]>::try_from(rest).map_err(|_| length("16 or 32"))?;
    // RFC 2545 §3 wants a link-local address here; peers are known to send zeros or the global one
    // again.
    let local = Some(Ipv6Addr::from(local)).filter(Ipv6Addr::is_unicast_link_local);
    // A router without a global address on the link: nothing is told there, or the same again.
    let global = local.filter(|_| global.is_unspecified()).unwrap_or(global);
    Ok((global.into(), local))
}

/// Appends the value of MP_REACH_NLRI up to where the prefixes go.
pub(super) fn encode_reach_head(
    family: Family,
    next_hop: IpAddr,
    link_local: Option<Ipv6Addr>,
    out: &mut BytesMut,
) {
    put_family(family, out);
    match (next_hop, link_local) {
        (IpAddr::V4(a), _) => {
            out.put_u8(4);
            out.put_slice(&a.octets());
        }
        (IpAddr::V6(a), None) => {
            out.put_u8(16);
            out.put_slice(&a.octets());
        }
        (IpAddr::V6(a), Some(local)) => {
            out.put_u8(32);
            out.put_slice(&a.octets());
            out.put_slice(&unzoned(local).octets());
        }
    }
    out.put_u8(0);
}

/// Appends AFI and SAFI.
pub(super) fn put_family(family: Family, out: &mut BytesMut) {
    let AfiSafi { afi, safi } = family.into();
    out.put_u16(afi);
    out.put_u8(safi);
}
