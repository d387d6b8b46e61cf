//! OPEN (RFC 4271 §4.2) and its optional parameters, also in the long form of RFC 9072.

use std::net::Ipv4Addr;

use bytes::{BufMut, BytesMut};
use nom::combinator::rest;
use nom::multi::{length_data, many0};
use nom::number::complete::{be_u8, be_u16, be_u32};

use super::capability::{self, Capability};
use super::error::OpenError;
use super::reader;
use crate::types::{Asn, RouterId};

const VERSION: u8 = 4;
/// Optional parameter type of capabilities (RFC 5492 §4).
const CAPABILITIES: u8 = 2;
/// RFC 9072 §2: both the length and the first type are 255 in the long form.
const EXTENDED: u8 = 255;

/// OPEN message (RFC 4271 §4.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenMessage {
    /// The sender's AS: that of the four-octet capability, else that of the two-octet field.
    pub asn: Asn,
    /// Proposed hold time in seconds: 0, or 3 and more.
    pub hold_time: u16,
    /// The sender's BGP Identifier.
    pub router_id: RouterId,
    /// Capabilities in the order they were sent.
    pub capabilities: Vec<Capability>,
}

pub(super) fn decode(body: &[u8]) -> Result<OpenMessage, OpenError> {
    let fields = (be_u8, be_u16, be_u16, be_u32, rest);
    let (version, my_as, hold_time, id, parameters) =
        reader::whole(fields, body).map_err(|_| OpenError::Cut)?;
    if version != VERSION {
        return Err(OpenError::Version(version));
    }
    let capabilities = decode_parameters(parameters)?;
    let four_octet = capabilities.iter().find_map(|capability| match capability {
        Capability::FourOctetAs(asn) => Some(*asn),
        _ => None,
    });
    let asn = four_octet.unwrap_or_else(|| Asn(my_as.into()));
    if asn == Asn(0) || my_as == 0 {
        return Err(OpenError::AsZero);
    }
    if matches!(hold_time, 1 | 2) {
        return Err(OpenError::HoldTime(hold_time));
    }
    if id == 0 {
        return Err(OpenError::RouterIdZero);
    }
    Ok(OpenMessage {
        asn,
        hold_time,
        router_id: RouterId(Ipv4Addr::from(id)),
        capabilities,
    })
}

fn decode_parameters(input: &[u8]) -> Result<Vec<Capability>, OpenError> {
    let parameters = match input {
        [EXTENDED, EXTENDED, long @ ..] => reader::whole(length_data(be_u16), long)
            .and_then(|value| reader::whole(many0((be_u8, length_data(be_u16))), value)),
        short => reader::whole(length_data(be_u8), short)
            .and_then(|value| reader::whole(many0((be_u8, length_data(be_u8))), value)),
    }
    .map_err(|_| OpenError::Cut)?;
    let mut capabilities = Vec::new();
    for (kind, value) in parameters {
        if kind != CAPABILITIES {
            return Err(OpenError::Parameter(kind));
        }
        capabilities.extend(capability::decode_list(value)?);
    }
    Ok(capabilities)
}

/// Writes the body. Capabilities go out in one optional parameter, in the long form only where they
/// need it.
pub(super) fn encode(open: &OpenMessage, out: &mut BytesMut) {
    out.put_u8(VERSION);
    // RFC 6793 §4.2.2: AS_TRANS stands in for a number that does not fit.
    let my_as = u16::try_from(open.asn.0).unwrap_or(TRANS);
    out.put_u16(my_as);
    out.put_u16(open.hold_time);
    out.put_u32(open.router_id.number());
    let mut list = BytesMut::new();
    for capability in &open.capabilities {
        capability.encode(&mut list);
    }
    if list.is_empty() {
        out.put_u8(0);
    } else if list.len() + 2 < usize::from(EXTENDED) {
        super::put_len_u8(out, list.len() + 2);
        out.put_u8(CAPABILITIES);
        super::put_len_u8(out, list.len());
        out.put_slice(&list);
    } else {
        out.put_slice(&[EXTENDED, EXTENDED]);
        super::put_len_u16(out, list.len() + 3);
        out.put_u8(CAPABILITIES);
        super::put_len_u16(out, list.len());
        out.put_slice(&list);
    }
}

/// AS_TRANS as the two-octet field holds it.
const TRANS: u16 = 23456;
