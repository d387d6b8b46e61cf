//! ROUTE-REFRESH (RFC 2918) with the demarcation of RFC 7313.

use bytes::{BufMut, Bytes, BytesMut};

use super::MESSAGE_HEADER_LEN;
use super::capability::AfiSafi;
use super::error::RefreshError;

/// ROUTE-REFRESH message (RFC 2918 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteRefresh {
    /// Family whose routes are asked for.
    pub family: AfiSafi,
    /// Request, begin or end.
    pub kind: RefreshKind,
}

/// The octet that RFC 7313 gives a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefreshKind {
    /// 0: please send all routes again.
    Request,
    /// 1: all routes follow (BoRR).
    Begin,
    /// 2: that was all (EoRR).
    End,
    /// Anything else; ignored (RFC 7313 §5).
    Other(u8),
}

pub(super) fn decode(body: &[u8]) -> Result<RouteRefresh, RefreshError> {
    let [a, b, subtype, safi] = body else {
        let len = body.len() + MESSAGE_HEADER_LEN;
        return Err(RefreshError {
            len,
            body: Bytes::copy_from_slice(body),
        });
    };
    let kind = match subtype {
        0 => RefreshKind::Request,
        1 => RefreshKind::Begin,
        2 => RefreshKind::End,
        other => RefreshKind::Other(*other),
    };
    Ok(RouteRefresh {
        family: AfiSafi {
            afi: u16::from_be_bytes([*a, *b]),
            safi: *safi,
        },
        kind,
    })
}

pub(super) fn encode(refresh: &RouteRefresh, out: &mut BytesMut) {
    out.put_u16(refresh.family.afi);
    out.put_u8(match refresh.kind {
        RefreshKind::Request => 0,
        RefreshKind::Begin => 1,
        RefreshKind::End => 2,
        RefreshKind::Other(octet) => octet,
    });
    out.put_u8(refresh.family.safi);
}
