//! Protocol data units (RFC 8210 §5; RFC 6810 §5 for version 0).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use caracal_model::Prefix;

use crate::policy::Roa;

const HEADER: usize = 8;

/// An error report quotes a unit of ours and a text; nothing that a cache sends is longer (RFC 8210
/// §5.1 leaves it open).
const LONGEST: usize = 64 << 10;

/// Longest part of a unit that an error report of ours quotes.
const QUOTED: usize = 256;

/// The versions of the protocol that we speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Version {
    /// RFC 6810.
    V0 = 0,
    /// RFC 8210.
    V1 = 1,
}

/// Times of a cache, in seconds (RFC 8210 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) refresh: u32,
    pub(super) retry: u32,
    pub(super) expire: u32,
}

/// What a cache sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pdu {
    /// There is something new (§5.2).
    Notify { session: u16, serial: u32 },
    /// Entries follow (§5.5).
    Response { session: u16 },
    /// An entry comes, or goes (§5.6, §5.7).
    Prefix { announced: bool, entry: Roa },
    /// The entries are whole (§5.8). Version 0 has no times.
    EndOfData {
        session: u16,
        serial: u32,
        times: Option<Times>,
    },
    /// It cannot tell the difference from what we have (§5.9).
    Reset,
    /// A key of a router, which is for BGPsec (§5.10).
    RouterKey,
    /// Something is wrong (§5.11).
    Error { code: u16, text: String },
}

/// What we ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    /// The difference since this serial number (§5.3).
    Serial { session: u16, serial: u32 },
    /// Everything (§5.4).
    Reset,
}

/// What is wrong with what a cache sends; the codes of §12.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Corrupt(String),
    #[error("the cache speaks version {0}, and we versions 0 and 1")]
    Version(u8),
    #[error("a unit of type {0}, which there is not")]
    Type(u8),
    #[error("the cache withdraws {0}, which it has not announced")]
    Unknown(String),
    #[error("the cache announces {0} twice")]
    Duplicate(String),
    #[error("the cache went from version {0} to version {1}")]
    OtherVersion(u8, u8),
}

impl Fault {
    const fn code(&self) -> u16 {
        match self {
            Self::Corrupt(_) => 0,
            Self::Version(_) => 4,
            Self::Type(_) => 5,
            Self::Unknown(_) => 6,
            Self::Duplicate(_) => 7,
            Self::OtherVersion(..) => 8,
        }
    }
}

/// Codes of error reports (§12) that are told apart here.
pub(super) const NO_DATA: u16 = 2;
pub(super) const UNSUPPORTED_VERSION: u16 = 4;

/// What a code of an error report stands for (§12).
pub(super) const fn error_word(code: u16) -> &'static str {
    match code {
        0 => "corrupt data",
        1 => "internal error",
        NO_DATA => "no data available",
        3 => "invalid request",
        UNSUPPORTED_VERSION => "unsupported protocol version",
        5 => "unsupported type of unit",
        6 => "withdrawal of an unknown record",
        7 => "duplicate announcement",
        8 => "unexpected protocol version",
        _ => "an error",
    }
}

/// A question in octets.
pub(super) fn encode_query(version: Version, query: Query) -> Bytes {
    let mut out = BytesMut::with_capacity(HEADER + 4);
    out.put_u8(version as u8);
    match query {
        Query::Serial { session, serial } => {
            out.put_u8(1);
            out.put_u16(session);
            out.put_u32(12);
            out.put_u32(serial);
        }
        Query::Reset => {
            out.put_u8(2);
            out.put_u16(0);
            out.put_u32(8);
        }
    }
    out.freeze()
}

/// An error report about a unit of the cache (§5.11).
pub(super) fn encode_error(version: Version, fault: &Fault, about: &[u8]) -> Bytes {
    let about = &about[..about.len().min(QUOTED)];
    let text = fault.to_string();
    let len = HEADER + 4 + about.len() + 4 + text.len();
    let mut out = BytesMut::with_capacity(len);
    out.put_u8(version as u8);
    out.put_u8(10);
    out.put_u16(fault.code());
    put_len(&mut out, len);
    put_len(&mut out, about.len());
    out.put_slice(about);
    put_len(&mut out, text.len());
    out.put_slice(text.as_bytes());
    out.freeze()
}

fn put_len(out: &mut BytesMut, len: usize) {
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// A unit, with its version and its octets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) version: u8,
    pub(super) pdu: Pdu,
    pub(super) octets: Bytes,
}

/// Takes the first unit out of what was received; `None` while it is not whole.
///
/// # Errors
/// What is wrong, and the octets that it is about. Nothing after it can be understood.
pub(super) fn decode(received: &mut BytesMut) -> Result<Option<Unit>, (Fault, Bytes)> {
    let Some(header) = received.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [version, kind, ..] = *header;
    let len = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
    if version > Version::V1 as u8 {
        // It may be an error report in the cache's own version, whose form is the same.
        let fault = Fault::Version(version);
        return Err((fault, Bytes::copy_from_slice(header)));
    }
    if !(HEADER..=LONGEST).contains(&len) {
        let fault = Fault::Corrupt(format!("a unit of {len} octets"));
        return Err((fault, Bytes::copy_from_slice(header)));
    }
    if received.len() < len {
        return Ok(None);
    }
    let octets = received.split_to(len).freeze();
    match body(version, kind, &octets) {
        Ok(pdu) => Ok(Some(Unit {
            version,
            pdu,
            octets,
        })),
        Err(fault) => Err((fault, octets)),
    }
}

fn body(version: u8, kind: u8, octets: &Bytes) -> Result<Pdu, Fault> {
    let session = u16::from_be_bytes([octets[2], octets[3]]);
    let mut rest = &octets[HEADER..];
    let wanted = match (kind, version) {
        (0, _) => 4,
        (3 | 8, _) => 0,
        (4, _) => 12,
        (6, _) => 24,
        (7, 0) => 4,
        (7, _) => 16,
        (9 | 10, _) => rest.len(),
        _ => return Err(Fault::Type(kind)),
    };
    if rest.len() != wanted {
        let len = octets.len();
        let text = format!("a unit of type {kind} with {len} octets");
        return Err(Fault::Corrupt(text));
    }
    Ok(match kind {
        0 => Pdu::Notify {
            session,
            serial: rest.get_u32(),
        },
        3 => Pdu::Response { session },
        4 | 6 => prefix(kind, rest)?,
        7 => Pdu::EndOfData {
            session,
            serial: rest.get_u32(),
            times: (version > 0).then(|| Times {
                refresh: rest.get_u32(),
                retry: rest.get_u32(),
                expire: rest.get_u32(),
            }),
        },
        8 => Pdu::Reset,
        9 => Pdu::RouterKey,
        _ => Pdu::Error {
            code: session,
            text: error_text(rest),
        },
    })
}

/// RFC 8210 §5.6 and §5.7: flags, length, longest length, zero, address, AS.
fn prefix(kind: u8, mut rest: &[u8]) -> Result<Pdu, Fault> {
    let [flags, len, max] = [rest.get_u8(), rest.get_u8(), rest.get_u8()];
    rest.advance(1);
    let address = match kind {
        4 => IpAddr::from(Ipv4Addr::from(rest.get_u32())),
        _ => IpAddr::from(Ipv6Addr::from(rest.get_u128())),
    };
    let asn = rest.get_u32();
    match Prefix::new(address, len) {
        Ok(prefix) if (len..=prefix.family().bits()).contains(&max) => Ok(Pdu::Prefix {
            announced: flags & 1 == 1,
            entry: Roa { prefix, max, asn },
        }),
        _ => {
            let text = format!("an entry for {address}/{len} up to length {max}");
            Err(Fault::Corrupt(text))
        }
    }
}

/// The text of an error report; without one, or with one that is cut off, nothing.
fn error_text(mut rest: &[u8]) -> String {
    let mut field = || -> Option<&[u8]> {
        let (len, after) = rest.split_first_chunk::<4>()?;
        let (field, after) = after.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        rest = after;
        Some(field)
    };
    let text = field().and_then(|_quoted| field()).unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    // It goes to a log and a terminal.
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read(octets: &[u8]) -> Result<Option<Pdu>, Fault> {
        let mut received = BytesMut::from(octets);
        match decode(&mut received) {
            Ok(unit) => Ok(unit.map(|unit| unit.pdu)),
            Err((fault, _)) => Err(fault),
        }
    }

    #[test]
    fn rfc8210_5_units() {
        let notify = [1, 0, 0, 7, 0, 0, 0, 12, 0, 0, 1, 0];
        let (session, serial) = (7, 256);
        assert_eq!(read(&notify), Ok(Some(Pdu::Notify { session, serial })));
        assert_eq!(read(&notify[..11]), Ok(None), "not whole");
        assert_eq!(read(&notify[..7]), Ok(None), "not even a header");
        let response = [1, 3, 0, 7, 0, 0, 0, 8];
        assert_eq!(read(&response), Ok(Some(Pdu::Response { session })));
        let v4 = [
            1, 4, 0, 0, 0, 0, 0, 20, 1, 8, 24, 0, 10, 0, 0, 0, 0, 0, 0xfd, 0xe8,
        ];
        let entry = Roa {
            prefix: "10.0.0.0/8".parse().unwrap(),
            max: 24,
            asn: 65000,
        };
        let announced = true;
        assert_eq!(read(&v4), Ok(Some(Pdu::Prefix { announced, entry })));
        let mut v6 = vec![0, 6, 0, 0, 0, 0, 0, 32, 0, 32, 48, 0, 0x20, 1, 0x0d, 0xb8];
        v6.extend([0; 12]);
        v6.extend([0, 0, 0, 0]);
        let entry = Roa {
            prefix: "2001:db8::/32".parse().unwrap(),
            max: 48,
            asn: 0,
        };
        let announced = false;
        assert_eq!(read(&v6), Ok(Some(Pdu::Prefix { announced, entry })));
        let mut end = vec![1, 7, 0, 7, 0, 0, 0, 24, 0, 0, 1, 0];
        end.extend([0, 0, 0, 60, 0, 0, 0, 10, 0, 0, 2, 88]);
        let times = Some(Times {
            refresh: 60,
            retry: 10,
            expire: 600,
        });
        let whole = Pdu::EndOfData {
            session,
            serial,
            times,
        };
        assert_eq!(read(&end), Ok(Some(whole)));
        let old = [0, 7, 0, 7, 0, 0, 0, 12, 0, 0, 1, 0];
        let whole = Pdu::EndOfData {
            session,
            serial,
            times: None,
        };
        assert_eq!(read(&old), Ok(Some(whole)), "version 0");
        assert_eq!(read(&[1, 8, 0, 0, 0, 0, 0, 8]), Ok(Some(Pdu::Reset)));
        let key = [1, 9, 1, 0, 0, 0, 0, 9, 0];
        assert_eq!(read(&key), Ok(Some(Pdu::RouterKey)));
    }

    #[test]
    fn what_is_no_unit_is_told() {
        let corrupt = |octets: &[u8]| matches!(read(octets), Err(Fault::Corrupt(_)));
        assert!(corrupt(&[1, 8, 0, 0, 0, 0, 0, 7]), "shorter than a header");
        assert!(corrupt(&[1, 8, 0, 0, 0xff, 0, 0, 0]), "longer than any");
        assert!(corrupt(&[1, 8, 0, 0, 0, 0, 0, 9, 0]), "a wrong length");
        let entry = |len, max| {
            [
                1, 4, 0, 0, 0, 0, 0, 20, 1, len, max, 0, 10, 0, 0, 0, 0, 0, 0, 1,
            ]
        };
        assert!(!corrupt(&entry(8, 8)));
        assert!(corrupt(&entry(8, 7)), "max below the length");
        assert!(corrupt(&entry(8, 33)), "max beyond the family");
        assert_eq!(read(&[1, 11, 0, 0, 0, 0, 0, 8]), Err(Fault::Type(11)));
        assert_eq!(read(&[2, 8, 0, 0, 0, 0, 0, 8]), Err(Fault::Version(2)));
    }

    #[test]
    fn error_reports_go_both_ways() {
        let fault = Fault::Duplicate("10.0.0.0/8".to_owned());
        let report = encode_error(Version::V1, &fault, &[9; 300]);
        assert_eq!(report.len(), 8 + 4 + QUOTED + 4 + fault.to_string().len());
        let text = fault.to_string();
        assert_eq!(read(&report), Ok(Some(Pdu::Error { code: 7, text })));
        // Cut off inside the text: what cannot be read is left out.
        let cut = [1, 10, 0, 2, 0, 0, 0, 12, 0, 0, 0, 9];
        let text = String::new();
        assert_eq!(read(&cut), Ok(Some(Pdu::Error { code: 2, text })));
    }

    #[test]
    fn rfc8210_5_3_and_5_4_questions() {
        let (session, serial) = (7, 256);
        let asked = encode_query(Version::V1, Query::Serial { session, serial });
        assert_eq!(&*asked, [1, 1, 0, 7, 0, 0, 0, 12, 0, 0, 1, 0]);
        let asked = encode_query(Version::V0, Query::Reset);
        assert_eq!(&*asked, [0, 2, 0, 0, 0, 0, 0, 8]);
    }
}
