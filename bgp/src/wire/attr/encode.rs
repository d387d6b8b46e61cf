//! The encoders of the attribute table, in its order. Each appends the value, or says that the
//! route does not have the attribute.

use std::net::IpAddr;

use bytes::{BufMut, BytesMut};

use super::EncodeInput;
use crate::attrs::Origin;
use crate::types::RouterId;
use crate::wire::as_path;

pub(super) fn put_origin(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    out.put_u8(match source.attrs.origin {
        Origin::Igp => 0,
        Origin::Egp => 1,
        Origin::Incomplete => 2,
    });
    true
}

pub(super) fn put_path(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    as_path::encode(&source.attrs.as_path, source.format.four_octet_as, out);
    true
}

pub(super) fn put_next_hop(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    match source.attrs.next_hop {
        Some(IpAddr::V4(address)) if source.classic => {
            out.put_slice(&address.octets());
            true
        }
        _ => false,
    }
}

fn put_u32(value: Option<u32>, out: &mut BytesMut) -> bool {
    if let Some(value) = value {
        out.put_u32(value);
    }
    value.is_some()
}

pub(super) fn put_med(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    put_u32(source.attrs.med, out)
}

pub(super) fn put_local_pref(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    // RFC 4271 §5.1.5: never on external sessions.
    put_u32(
        source.attrs.local_pref.filter(|_| source.format.internal),
        out,
    )
}

pub(super) fn put_atomic(source: &EncodeInput<'_>, _: &mut BytesMut) -> bool {
    source.attrs.atomic_aggregate
}

pub(super) fn put_aggregator(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    if let Some(aggregator) = source.attrs.aggregator {
        as_path::put_asn(aggregator.asn, source.format.four_octet_as, out);
        out.put_slice(&aggregator.router.octets());
    }
    source.attrs.aggregator.is_some()
}

pub(super) fn put_communities(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    for community in &source.attrs.communities {
        out.put_u32(community.0);
    }
    !out.is_empty()
}

pub(super) fn put_originator(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    // RFC 4456 §8: non-transitive, so it ends at the AS's border; the same holds for CLUSTER_LIST.
    put_u32(
        source
            .attrs
            .originator_id
            .filter(|_| source.format.internal)
            .map(RouterId::number),
        out,
    )
}

pub(super) fn put_cluster_list(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    if source.format.internal {
        for cluster in &source.attrs.cluster_list {
            out.put_slice(&cluster.0.octets());
        }
    }
    !out.is_empty()
}

/// The MP attributes carry prefixes; `update` writes them.
pub(super) fn elsewhere(_: &EncodeInput<'_>, _: &mut BytesMut) -> bool {
    false
}

pub(super) fn put_ext_communities(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    for community in &source.attrs.ext_communities {
        out.put_slice(community);
    }
    !out.is_empty()
}

pub(super) fn put_as4_path(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    let path = &source.attrs.as_path;
    if source.format.four_octet_as || !as_path::needs_four_octets(path) {
        return false;
    }
    as_path::encode(path, true, out);
    true
}

pub(super) fn put_as4_aggregator(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    match source.attrs.aggregator {
        Some(aggregator) if !source.format.four_octet_as && !aggregator.asn.is_two_octet() => {
            out.put_u32(aggregator.asn.0);
            out.put_slice(&aggregator.router.octets());
            true
        }
        _ => false,
    }
}

pub(super) fn put_large_communities(source: &EncodeInput<'_>, out: &mut BytesMut) -> bool {
    for community in &source.attrs.large_communities {
        out.put_u32(community.0);
        out.put_u32(community.1);
        out.put_u32(community.2);
    }
    !out.is_empty()
}
