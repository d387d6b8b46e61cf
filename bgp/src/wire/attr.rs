//! The attribute table: for each path attribute its code, flags, decoder, encoder, and what RFC
//! 7606 does when it is malformed. A new attribute is a new row.

mod decode;
mod encode;

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use super::as_path;
use super::error::{AttrFault, ErrorHandling, UpdateError, UpdateFault};
use super::format::MessageFormat;
use super::mp::{Reach, Unreach};
use super::notification::UpdateSubcode;
use crate::attrs::{Aggregator, AsPath, ONLY_TO_CUSTOMER, PathAttrs, UnknownAttr};
use crate::types::Asn;
pub(super) use decode::host;

const OPTIONAL: u8 = 0x80;
const TRANSITIVE: u8 = 0x40;
const PARTIAL: u8 = 0x20;
const EXTENDED_LENGTH: u8 = 0x10;

const WELL_KNOWN: u8 = TRANSITIVE;
const OPTIONAL_TRANSITIVE: u8 = OPTIONAL | TRANSITIVE;
const OPTIONAL_NON_TRANSITIVE: u8 = OPTIONAL;

/// Type code of ORIGIN (RFC 4271 §5.1.1).
pub(crate) const ORIGIN: u8 = 1;
/// Type code of AS_PATH (RFC 4271 §5.1.2).
pub(crate) const AS_PATH: u8 = 2;
/// Type code of NEXT_HOP (RFC 4271 §5.1.3).
pub(crate) const NEXT_HOP: u8 = 3;
/// Type code of MP_REACH_NLRI (RFC 4760 §3).
pub(crate) const MP_REACH_NLRI: u8 = 14;
/// Type code of MP_UNREACH_NLRI (RFC 4760 §4).
pub(crate) const MP_UNREACH_NLRI: u8 = 15;

/// Error handling of a malformed attribute (RFC 7606 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnFault {
    Discard,
    Withdraw,
    Reset,
}

type Decode = for<'a> fn(&mut Parsed<'a>, &'a [u8], &MessageFormat) -> Result<(), UpdateFault>;
/// Appends the value; false = the route does not have the attribute.
type Encode = fn(&EncodeInput<'_>, &mut BytesMut) -> bool;

struct Row {
    code: u8,
    name: &'static str,
    flags: u8,
    on_fault: OnFault,
    decode: Decode,
    encode: Encode,
}

#[rustfmt::skip]
static TABLE: [Row; 17] = [
    Row { code: ORIGIN, name: "ORIGIN", flags: WELL_KNOWN, on_fault: OnFault::Withdraw, decode: decode::origin, encode: encode::put_origin },
    Row { code: AS_PATH, name: "AS_PATH", flags: WELL_KNOWN, on_fault: OnFault::Withdraw, decode: decode::path, encode: encode::put_path },
    Row { code: NEXT_HOP, name: "NEXT_HOP", flags: WELL_KNOWN, on_fault: OnFault::Withdraw, decode: decode::next_hop, encode: encode::put_next_hop },
    Row { code: 4, name: "MULTI_EXIT_DISC", flags: OPTIONAL_NON_TRANSITIVE, on_fault: OnFault::Withdraw, decode: decode::med, encode: encode::put_med },
    Row { code: 5, name: "LOCAL_PREF", flags: WELL_KNOWN, on_fault: OnFault::Withdraw, decode: decode::local_pref, encode: encode::put_local_pref },
    Row { code: 6, name: "ATOMIC_AGGREGATE", flags: WELL_KNOWN, on_fault: OnFault::Discard, decode: decode::atomic, encode: encode::put_atomic },
    Row { code: 7, name: "AGGREGATOR", flags: OPTIONAL_TRANSITIVE, on_fault: OnFault::Discard, decode: decode::aggregator, encode: encode::put_aggregator },
    Row { code: 8, name: "COMMUNITIES", flags: OPTIONAL_TRANSITIVE, on_fault: OnFault::Withdraw, decode: decode::communities, encode: encode::put_communities },
    Row { code: 9, name: "ORIGINATOR_ID", flags: OPTIONAL_NON_TRANSITIVE, on_fault: OnFault::Withdraw, decode: decode::originator, encode: encode::put_originator },
    Row { code: 10, name: "CLUSTER_LIST", flags: OPTIONAL_NON_TRANSITIVE, on_fault: OnFault::Withdraw, decode: decode::cluster_list, encode: encode::put_cluster_list },
    Row { code: MP_REACH_NLRI, name: "MP_REACH_NLRI", flags: OPTIONAL_NON_TRANSITIVE, on_fault: OnFault::Reset, decode: decode::reach, encode: encode::elsewhere },
    Row { code: MP_UNREACH_NLRI, name: "MP_UNREACH_NLRI", flags: OPTIONAL_NON_TRANSITIVE, on_fault: OnFault::Reset, decode: decode::unreach, encode: encode::elsewhere },
    Row { code: 16, name: "EXTENDED COMMUNITIES", flags: OPTIONAL_TRANSITIVE, on_fault: OnFault::Withdraw, decode: decode::ext_communities, encode: encode::put_ext_communities },
    Row { code: 17, name: "AS4_PATH", flags: OPTIONAL_TRANSITIVE, on_fault: OnFault::Discard, decode: decode::as4_path, encode: encode::put_as4_path },
    Row { code: 18, name: "AS4_AGGREGATOR", flags: OPTIONAL_TRANSITIVE, on_fault: OnFault::Discard, decode: decode::as4_aggregator, encode: encode::put_as4_aggregator },
    Row { code: 32, name: "LARGE_COMMUNITY", flags: OPTIONAL_TRANSITIVE, on_fault: OnFault::Withdraw, decode: decode::large_communities, encode: encode::put_large_communities },
    Row { code: ONLY_TO_CUSTOMER, name: "ONLY_TO_CUSTOMER", flags: OPTIONAL_TRANSITIVE, on_fault: OnFault::Withdraw, decode: decode::only_to_customer, encode: encode::elsewhere },
];

/// The attribute's name in the standards.
#[must_use]
pub(crate) fn name(code: u8) -> &'static str {
    row(code).map_or("unknown attribute", |row| row.name)
}

fn row(code: u8) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.code == code)
}

impl fmt::Display for AttrFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "{}: {}", name(code), self.fault),
            None => write!(f, "UPDATE: {}", self.fault),
        }
    }
}

/// The attribute list of one UPDATE.
#[derive(Debug, Default)]
pub(super) struct Parsed<'a> {
    pub(super) attrs: PathAttrs,
    pub(super) reach: Option<Reach<'a>>,
    pub(super) unreach: Option<Unreach<'a>>,
    pub(super) faults: Vec<AttrFault>,
    as4_path: Option<AsPath>,
    as4_aggregator: Option<Aggregator>,
    seen: Seen,
}

/// Set of the type codes that occurred.
#[derive(Debug, Default)]
struct Seen([u128; 2]);

impl Seen {
    /// Notes `code`; false when it was there already.
    fn insert(&mut self, code: u8) -> bool {
        let bit = 1u128 << (code & 0x7f);
        let [low, high] = &mut self.0;
        let half = if code < 0x80 { low } else { high };
        let new = *half & bit == 0;
        *half |= bit;
        new
    }

    const fn contains(&self, code: u8) -> bool {
        let [low, high] = self.0;
        let half = if code < 0x80 { low } else { high };
        half & (1u128 << (code & 0x7f)) != 0
    }

    /// True when nothing but `code` occurred.
    const fn only(&self, code: u8) -> bool {
        let [low, high] = self.0;
        low & !(1u128 << (code & 0x7f)) == 0 && high == 0
    }
}

impl Parsed<'_> {
    pub(super) fn has(&self, code: u8) -> bool {
        self.seen.contains(code)
    }

    pub(super) fn has_only(&self, code: u8) -> bool {
        self.seen.only(code)
    }

    pub(super) fn fault(&mut self, code: u8, fault: UpdateFault, handling: ErrorHandling) {
        self.faults.push(AttrFault {
            code: Some(code),
            fault,
            handling,
        });
    }

    /// Merges AS4_PATH and AS4_AGGREGATOR into AS_PATH and AGGREGATOR (RFC 6793 §4.2.3).
    fn merge_four_octet(&mut self) {
        let as4_path = self.as4_path.take();
        if let Some(aggregator) = &mut self.attrs.aggregator {
            if aggregator.asn != Asn::TRANS && self.as4_aggregator.is_some() {
                return;
            }
            if let Some(four) = self.as4_aggregator.take() {
                *aggregator = four;
            }
        }
        if let Some(four) = as4_path {
            let two = std::mem::take(&mut self.attrs.as_path);
            self.attrs.as_path = as_path::merge(two, &four);
        }
    }
}

/// Reads an attribute list.
pub(super) fn decode<'a>(
    mut input: &'a [u8],
    format: &MessageFormat,
) -> Result<Parsed<'a>, UpdateError> {
    let mut parsed = Parsed::default();
    while !input.is_empty() {
        let Some((flags, code, value, rest)) = split(input) else {
            // RFC 7606 §4: the lengths contradict each other; the prefixes are still where they
            // are.
            let code = input.get(1).copied();
            let handling = ErrorHandling::TreatAsWithdraw;
            parsed.faults.push(AttrFault {
                code,
                fault: UpdateFault::Overrun,
                handling,
            });
            break;
        };
        let whole = input.get(..input.len() - rest.len()).unwrap_or_default();
        decode_one(&mut parsed, flags, code, value, whole, format)?;
        input = rest;
    }
    parsed.merge_four_octet();
    if !parsed.attrs.unknown.is_empty() {
        let sort = |list: &mut Vec<UnknownAttr>| list.sort_by_key(|attr| attr.code);
        parsed.attrs.unknown.edit(sort);
    }
    Ok(parsed)
}

/// Flags, code and value of the first attribute, and what follows it.
fn split(input: &[u8]) -> Option<(u8, u8, &[u8], &[u8])> {
    let (flags, code, len, rest) = match input {
        [flags, code, high, low, rest @ ..] if flags & EXTENDED_LENGTH != 0 => (
            *flags,
            *code,
            usize::from(u16::from_be_bytes([*high, *low])),
            rest,
        ),
        [flags, code, len, rest @ ..] if flags & EXTENDED_LENGTH == 0 => {
            (*flags, *code, usize::from(*len), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(len)?;
    Some((flags, code, value, rest))
}

fn decode_one<'a>(
    parsed: &mut Parsed<'a>,
    flags: u8,
    code: u8,
    value: &'a [u8],
    whole: &[u8],
    format: &MessageFormat,
) -> Result<(), UpdateError> {
    let reset = |fault, subcode| {
        Err(UpdateError::reset_with(
            Some(code),
            fault,
            subcode,
            Bytes::copy_from_slice(whole),
        ))
    };
    if !parsed.seen.insert(code) {
        // RFC 7606 §3 g: the first one counts, except for the MP attributes.
        if matches!(code, MP_REACH_NLRI | MP_UNREACH_NLRI) {
            return Err(UpdateError::reset(
                Some(code),
                UpdateFault::Duplicate,
                UpdateSubcode::MalformedList,
            ));
        }
        parsed.fault(
            code,
            UpdateFault::Duplicate,
            ErrorHandling::AttributeDiscard,
        );
        return Ok(());
    }
    let Some(row) = row(code) else {
        if flags & OPTIONAL == 0 {
            return reset(
                UpdateFault::Unrecognized,
                UpdateSubcode::UnrecognizedWellKnown,
            );
        }
        if flags & TRANSITIVE != 0 {
            // RFC 4271 §5: passed on with the Partial bit.
            let flags = OPTIONAL_TRANSITIVE | PARTIAL;
            let value = Bytes::copy_from_slice(value);
            let attr = UnknownAttr { flags, code, value };
            parsed.attrs.unknown.edit(|list| list.push(attr));
        }
        return Ok(());
    };
    if (flags ^ row.flags) & (OPTIONAL | TRANSITIVE) != 0 {
        // RFC 7606 §3 c. The prefixes of an MP attribute are read all the same: they are to be
        // withdrawn.
        let handling = match row.code {
            17 | 18 => ErrorHandling::AttributeDiscard,
            _ => ErrorHandling::TreatAsWithdraw,
        };
        parsed.fault(code, UpdateFault::Flags(flags), handling);
        if row.on_fault != OnFault::Reset {
            return Ok(());
        }
    }
    match (row.decode)(parsed, value, format) {
        Ok(()) => Ok(()),
        // RFC 7606 §7.5, §7.9, §7.10; RFC 6793 §4.1.
        Err(fault @ (UpdateFault::External | UpdateFault::FourOctet)) => {
            parsed.fault(code, fault, ErrorHandling::AttributeDiscard);
            Ok(())
        }
        Err(fault) => {
            match row.on_fault {
                OnFault::Discard => parsed.fault(code, fault, ErrorHandling::AttributeDiscard),
                OnFault::Withdraw => parsed.fault(code, fault, ErrorHandling::TreatAsWithdraw),
                OnFault::Reset => return reset(fault, UpdateSubcode::OptionalAttribute),
            }
            Ok(())
        }
    }
}

/// Input of the encoders.
pub(super) struct EncodeInput<'a> {
    pub(super) attrs: &'a PathAttrs,
    pub(super) format: &'a MessageFormat,
    /// The next hop goes into NEXT_HOP and not into MP_REACH_NLRI.
    pub(super) classic: bool,
}

/// Appends all attributes but the MP ones, in ascending order of type.
pub(super) fn encode(source: &EncodeInput<'_>, out: &mut BytesMut) {
    let mut value = BytesMut::new();
    for row in &TABLE {
        value.clear();
        if (row.encode)(source, &mut value) {
            put(row.flags, row.code, &value, out);
        }
    }
    for attr in &source.attrs.unknown {
        put(attr.flags, attr.code, &attr.value, out);
    }
}

fn put(flags: u8, code: u8, value: &[u8], out: &mut BytesMut) {
    match u8::try_from(value.len()) {
        Ok(len) => out.put_slice(&[flags, code, len]),
        Err(_) => {
            out.put_slice(&[flags | EXTENDED_LENGTH, code]);
            super::put_len_u16(out, value.len());
        }
    }
    out.put_slice(value);
}

/// Appends the header of an MP attribute whose value of `len` octets follows.
pub(super) fn put_mp_header(code: u8, len: usize, out: &mut BytesMut) {
    out.put_slice(&[OPTIONAL_NON_TRANSITIVE | EXTENDED_LENGTH, code]);
    super::put_len_u16(out, len);
}

/// Octets that [`put_mp_header`] appends.
pub(super) const MP_HEADER_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_each_code_is_there_once() {
        assert!(TABLE.is_sorted_by(|a, b| a.code < b.code));
    }
}
