//! AS_PATH and AS4_PATH on the wire, and their merging for two-octet peers (RFC 6793 §4.2.3).

use bytes::{BufMut, BytesMut};

use super::error::UpdateFault;
use crate::attrs::{AsPath, Segment, SegmentKind};
use crate::types::Asn;

const SET: u8 = 1;
const SEQUENCE: u8 = 2;
/// ASes that one segment can count.
const MAX_SEGMENT: usize = 255;

/// Reads a path whose AS numbers have four octets, or two.
///
/// # Errors
/// A segment that is empty, cut off or of another type than set and sequence (RFC 7606 §7.2; the
/// types of RFC 5065 have no place on a session outside a confederation), or AS 0 (RFC 7607 §2).
pub(crate) fn decode(mut input: &[u8], four_octet: bool) -> Result<AsPath, UpdateFault> {
    let width = if four_octet { 4 } else { 2 };
    let mut first = None;
    let mut segments = Vec::new();
    while !input.is_empty() {
        let [kind, count, rest @ ..] = input else {
            return Err(UpdateFault::Length {
                len: input.len(),
                expected: "whole segments",
            });
        };
        let malformed = || UpdateFault::Segment {
            kind: *kind,
            count: *count,
        };
        let (octets, rest) = rest
            .split_at_checked(usize::from(*count) * width)
            .ok_or_else(malformed)?;
        let asns: Vec<Asn> = octets.chunks_exact(width).map(asn).collect();
        if asns.contains(&Asn(0)) {
            return Err(UpdateFault::AsZero);
        }
        let segment = match *kind {
            _ if *count == 0 => return Err(malformed()),
            SET => Segment::Set(asns),
            SEQUENCE => Segment::Sequence(asns),
            _ => return Err(malformed()),
        };
        match (&first, segment) {
            // Nearly all paths are one sequence, and need no list of segments.
            (None, Segment::Sequence(asns)) if rest.is_empty() => {
                return Ok(AsPath::sequence(asns));
            }
            (None, segment) => first = Some(segment),
            (Some(_), segment) => segments.push(segment),
        }
        input = rest;
    }
    Ok(AsPath::new(first.into_iter().chain(segments)))
}

/// Two or four octets as a number.
pub(super) fn asn(octets: &[u8]) -> Asn {
    Asn(octets
        .iter()
        .fold(0, |number, octet| number << 8 | u32::from(*octet)))
}

/// Appends a path. With two octets, AS_TRANS stands for each number that does not fit.
pub(crate) fn encode(path: &AsPath, four_octet: bool, out: &mut BytesMut) {
    for (kind, asns) in path.segments() {
        let kind = match kind {
            SegmentKind::Set => SET,
            SegmentKind::Sequence => SEQUENCE,
        };
        for asns in asns.chunks(MAX_SEGMENT) {
            out.put_u8(kind);
            super::put_len_u8(out, asns.len());
            for asn in asns {
                put_asn(*asn, four_octet, out);
            }
        }
    }
}

/// Appends one AS number.
pub(super) fn put_asn(asn: Asn, four_octet: bool, out: &mut BytesMut) {
    if four_octet {
        out.put_u32(asn.0);
    } else {
        let short = if asn.is_two_octet() { asn } else { Asn::TRANS };
        super::put_len_u16(out, usize::try_from(short.0).unwrap_or_default());
    }
}

/// True when the path has a number that two octets cannot hold, so that AS4_PATH must go with it.
#[must_use]
pub(crate) fn needs_four_octets(path: &AsPath) -> bool {
    path.asns().any(|asn| !asn.is_two_octet())
}

/// The path as it would have come from a four-octet speaker: AS4_PATH with, in front, what the
/// two-octet speakers on the way have prepended to AS_PATH since. A longer AS4_PATH is ignored.
#[must_use]
pub(crate) fn merge(as_path: AsPath, as4_path: &AsPath) -> AsPath {
    let Some(mut lead) = as_path.path_len().checked_sub(as4_path.path_len()) else {
        return as_path;
    };
    let mut segments = Vec::new();
    for (kind, asns) in as_path.segments() {
        if lead == 0 {
            break;
        }
        match kind {
            SegmentKind::Sequence => {
                let taken: Vec<Asn> = asns.iter().copied().take(lead).collect();
                lead -= taken.len();
                segments.push(Segment::Sequence(taken));
            }
            SegmentKind::Set => {
                lead -= 1;
                segments.push(Segment::Set(asns.to_vec()));
            }
        }
    }
    segments.extend(as4_path.segments().map(|(kind, asns)| match kind {
        SegmentKind::Sequence => Segment::Sequence(asns.to_vec()),
        SegmentKind::Set => Segment::Set(asns.to_vec()),
    }));
    AsPath::new(segments)
}
